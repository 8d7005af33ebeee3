//! The route to a host: direct, or through a proxy.
//!
//! It decides by the settings passed in; the caller reads the environment or apt.conf. The order is apt's: the setting
//! for one host, then no_proxy, then the scheme's proxy, then `all_proxy`.

use std::net::IpAddr;

use crate::auth::Credentials;
use crate::connect::ProxyServer;
use crate::url::{Host, Scheme, Url, UrlError, parse_host_and_port};

/// Maximum number of entries in a no_proxy list. A guess.
const NO_PROXY_ENTRIES_MAX: usize = 1000;

/// An HTTP proxy: its address, scheme and credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Address of the proxy; with https, TLS is spoken to the proxy itself.
    pub endpoint: Url,
    /// Credentials for the field `Proxy-Authorization`, if any.
    pub credentials: Option<Credentials>,
}

/// How to reach a URL: directly or through a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// Connect to the host itself.
    Direct,
    /// For `http://`: send requests to the proxy in absolute form.
    Forward(Proxy),
    /// For `https://`: CONNECT through the proxy, then TLS with the host.
    Tunnel(Proxy),
}

impl Route {
    /// The proxy to connect to, with its credentials in the form of a header field.
    pub fn server(&self) -> Option<ProxyServer> {
        match self {
            Route::Direct => None,
            Route::Forward(proxy) | Route::Tunnel(proxy) => Some(ProxyServer {
                scheme: proxy.endpoint.scheme(),
                host: proxy.endpoint.host().to_string(),
                port: proxy.endpoint.port(),
                authorization: proxy.credentials.as_ref().map(|own| own.basic().header_value().to_owned()),
            }),
        }
    }
}

/// Why a proxy setting is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// The setting is not an http(s) URL, `host:port` or `DIRECT`.
    #[error("proxy setting: {0}")]
    Url(#[from] UrlError),
    /// The proxy's scheme is not supported, such as socks.
    #[error("proxies of kind {scheme:?} are not supported, only http and https")]
    Unsupported {
        /// The scheme of the setting.
        scheme: String,
    },
    /// The no_proxy list is too long.
    #[error("no_proxy has more than {NO_PROXY_ENTRIES_MAX} entries")]
    TooManyEntries,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Choice {
    Direct,
    Via(Proxy),
}

/// All proxy settings of a run. The values have the form of the environment variables
/// and of apt's `Acquire::http::Proxy`: a URL, `host:port`, `DIRECT`, or empty for unset.
#[derive(Clone, Debug, Default)]
pub struct ProxySettings {
    http: Option<Choice>,
    https: Option<Choice>,
    all: Option<Choice>,
    hosts: Vec<(Host, Choice)>,
    no_proxy: Vec<Exception>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exception {
    Everything,
    /// The host itself and all names below it, at this port or any.
    Domain(String, Option<u16>),
    Address(IpAddr, Option<u16>),
    /// Network and prefix length.
    Network(IpAddr, u8),
}

impl ProxySettings {
    /// Creates settings without any proxy.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the proxy for `http` URLs (`http_proxy`, `Acquire::http::Proxy`).
    ///
    /// # Errors
    /// [`ProxyError::Url`] if `value` is not an address; [`ProxyError::Unsupported`] for schemes other than `http` and
    /// `https`.
    pub fn set_http(&mut self, value: &str) -> Result<(), ProxyError> {
        self.http = parse_choice(value)?;
        Ok(())
    }

    /// Sets the proxy for `https` URLs (`https_proxy`, `Acquire::https::Proxy`).
    ///
    /// # Errors
    /// [`ProxyError::Url`] if `value` is not an address; [`ProxyError::Unsupported`] for schemes other than `http` and
    /// `https`.
    pub fn set_https(&mut self, value: &str) -> Result<(), ProxyError> {
        self.https = parse_choice(value)?;
        Ok(())
    }

    /// Sets the proxy for URLs without one of their scheme (`all_proxy`).
    ///
    /// # Errors
    /// [`ProxyError::Url`] if `value` is not an address; [`ProxyError::Unsupported`] for schemes other than `http` and
    /// `https`.
    pub fn set_all(&mut self, value: &str) -> Result<(), ProxyError> {
        self.all = parse_choice(value)?;
        Ok(())
    }

    /// Sets the proxy for one host (`Acquire::http::Proxy::HOST`), which precedes all other settings.
    ///
    /// # Errors
    /// [`ProxyError::Url`] if `host` is not a host name or `value` is not an address; [`ProxyError::Unsupported`] for
    /// schemes other than `http` and `https`.
    pub fn set_host(&mut self, host: &str, value: &str) -> Result<(), ProxyError> {
        let host = Host::parse(host)?;
        self.hosts.retain(|(known, _)| *known != host);
        if let Some(choice) = parse_choice(value)? {
            self.hosts.push((host, choice));
        }
        Ok(())
    }

    /// Sets `no_proxy`: a list of names, addresses and networks (`10.0.0.0/8`), separated by commas or blanks. A name
    /// includes all names below it; a leading dot changes nothing. Names and addresses may have a port. `*` means
    /// everything. Other entries are skipped.
    ///
    /// # Errors
    /// [`ProxyError::TooManyEntries`] beyond the limit of entries; the entries before it are kept.
    pub fn set_no_proxy(&mut self, value: &str) -> Result<(), ProxyError> {
        let entries = value.split([',', ' ', '\t']).map(str::trim).filter(|entry| !entry.is_empty());
        self.no_proxy.clear();
        for entry in entries {
            if self.no_proxy.len() >= NO_PROXY_ENTRIES_MAX {
                return Err(ProxyError::TooManyEntries);
            }
            self.no_proxy.extend(parse_exception(entry));
        }
        Ok(())
    }

    /// Returns how to reach a URL under these settings.
    pub fn route(&self, url: &Url) -> Route {
        let by_host = self.hosts.iter().find(|(host, _)| host == url.host());
        let choice = match by_host {
            Some((_, choice)) => Some(choice),
            None if self.is_exception(url) => None,
            None => match url.scheme() {
                Scheme::Http => self.http.as_ref(),
                Scheme::Https => self.https.as_ref(),
            }
            .or(self.all.as_ref()),
        };
        match choice {
            None | Some(Choice::Direct) => Route::Direct,
            Some(Choice::Via(proxy)) => match url.scheme() {
                Scheme::Http => Route::Forward(proxy.clone()),
                Scheme::Https => Route::Tunnel(proxy.clone()),
            },
        }
    }

    fn is_exception(&self, url: &Url) -> bool {
        let at_port = |port: &Option<u16>| port.is_none_or(|port| port == url.port());
        self.no_proxy.iter().any(|exception| match (exception, url.host()) {
            (Exception::Everything, _) => true,
            (Exception::Domain(domain, port), Host::Name(name)) => {
                at_port(port)
                    && name
                        .strip_suffix(domain.as_str())
                        .is_some_and(|before| before.is_empty() || before.ends_with('.'))
            }
            (Exception::Address(excepted, port), Host::Address(address)) => at_port(port) && excepted == address,
            (Exception::Network(network, bits), Host::Address(address)) => contains(*network, *bits, *address),
            _ => false,
        })
    }
}

fn parse_choice(value: &str) -> Result<Option<Choice>, ProxyError> {
    let value = value.trim();
    if value.is_empty() {
        return Ok(None);
    }
    if value.eq_ignore_ascii_case("direct") {
        return Ok(Some(Choice::Direct));
    }
    let (endpoint, credentials) = match value.split_once("://") {
        None => Url::parse_with_userinfo(&format!("http://{value}"))?,
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https") => {
            Url::parse_with_userinfo(value)?
        }
        Some((scheme, _)) => {
            return Err(ProxyError::Unsupported { scheme: scheme.chars().take(20).collect() });
        }
    };
    Ok(Some(Choice::Via(Proxy { endpoint, credentials })))
}

fn parse_exception(entry: &str) -> Option<Exception> {
    if entry == "*" {
        return Some(Exception::Everything);
    }
    if let Some((network, bits)) = entry.split_once('/') {
        let network: IpAddr = network.trim_matches(['[', ']']).parse().ok()?;
        let bits: u8 = bits.parse().ok()?;
        let width = if network.is_ipv4() { 32 } else { 128 };
        return (bits <= width).then_some(Exception::Network(network, bits));
    }
    // Users write IPv6 addresses here without brackets.
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Some(Exception::Address(address, None));
    }
    let entry = entry.strip_prefix("*.").unwrap_or(entry);
    let (host, port) = parse_host_and_port(entry.trim_start_matches('.')).ok()?;
    Some(match host {
        Host::Name(name) => Exception::Domain(name, port),
        Host::Address(address) => Exception::Address(address, port),
    })
}

fn contains(network: IpAddr, bits: u8, address: IpAddr) -> bool {
    let (network, address, width) = match (network, address) {
        (IpAddr::V4(network), IpAddr::V4(address)) => {
            (u128::from(network.to_bits()), u128::from(address.to_bits()), 32)
        }
        (IpAddr::V6(network), IpAddr::V6(address)) => (network.to_bits(), address.to_bits(), 128),
        _ => return false,
    };
    let host_bits = width - u32::from(bits);
    // Rust does not allow a shift by the full width; /0 of IPv6 contains everything.
    (network ^ address).checked_shr(host_bits).unwrap_or(0) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn route(settings: &ProxySettings, url: &str) -> String {
        match settings.route(&Url::parse(url).unwrap()) {
            Route::Direct => "direct".into(),
            Route::Forward(proxy) => format!("forward {}", proxy.endpoint),
            Route::Tunnel(proxy) => format!("tunnel {}", proxy.endpoint),
        }
    }

    #[test]
    fn a_proxy_is_chosen_by_host_scheme_and_order() {
        let mut settings = ProxySettings::new();
        assert_eq!(route(&settings, "http://h/"), "direct");
        settings.set_all("https://all:1").unwrap();
        settings.set_http("http://user:pw@plain:3128/").unwrap();
        assert_eq!(route(&settings, "http://h/"), "forward http://plain:3128/");
        assert_eq!(route(&settings, "https://h/"), "tunnel https://all:1/");
        settings.set_https("proxy.local:8080").unwrap();
        assert_eq!(route(&settings, "https://h/"), "tunnel http://proxy.local:8080/");
        settings.set_host("special.h", "DIRECT").unwrap();
        settings.set_host("other", "http://own").unwrap();
        settings.set_no_proxy("h, other").unwrap();
        assert_eq!(route(&settings, "http://special.h/"), "direct");
        assert_eq!(route(&settings, "http://other/"), "forward http://own/", "the host's own setting wins");
        assert_eq!(route(&settings, "http://sub.h/"), "direct");
        settings.set_http("DIRECT").unwrap();
        assert_eq!(route(&settings, "http://elsewhere/"), "direct", "DIRECT is not the same as unset");
        settings.set_http("").unwrap();
        assert_eq!(route(&settings, "http://elsewhere/"), "forward https://all:1/");
    }

    #[test]
    fn every_form_of_no_proxy_is_understood() {
        let list = "localhost,.internal *.corp 127.0.0.1,10.0.0.0/8, [::1]:80 fd00::/8,2001:db8::5,h:8080,bad/99,";
        let mut settings = ProxySettings::new();
        settings.set_all("p:1").unwrap();
        settings.set_no_proxy(list).unwrap();
        for (url, direct) in [
            ("http://localhost/", true),
            ("http://LOCALHOST:99/", true),
            ("http://notlocalhost/", false),
            ("http://a.b.internal/", true),
            ("http://internal/", true),
            ("http://xinternal/", false),
            ("http://internal.evil/", false),
            ("http://x.corp/", true),
            ("http://127.0.0.1:8080/", true),
            ("http://127.0.0.2/", false),
            ("http://10.255.0.1/", true),
            ("http://11.0.0.1/", false),
            ("http://[::1]/", true),
            ("http://[::1]:81/", false),
            ("http://[fd12::1]/", true),
            ("http://[fe80::1]/", false),
            ("http://[2001:db8::5]/", true),
            ("http://h:8080/", true),
            ("http://h/", false),
        ] {
            assert_eq!(route(&settings, url) == "direct", direct, "{url}");
        }
        settings.set_no_proxy("*").unwrap();
        assert_eq!(route(&settings, "https://anything/"), "direct");
        settings.set_no_proxy("0.0.0.0/0 ::/0").unwrap();
        assert_eq!(route(&settings, "http://8.8.8.8/"), "direct");
        assert_eq!(route(&settings, "http://[2001::1]/"), "direct");
        assert!(settings.set_no_proxy(&"a,".repeat(NO_PROXY_ENTRIES_MAX + 1)).is_err());
    }

    #[test]
    fn wrong_settings_are_refused_and_passwords_hidden() {
        let mut settings = ProxySettings::new();
        for value in ["socks5://h:1080", "ftp://h", "http://", "http://h:0", "a b", "h\r\nx"] {
            assert!(settings.set_http(value).is_err(), "{value:?}");
        }
        settings.set_http("http://user:secret@h").unwrap();
        assert!(!format!("{settings:?}").contains("secret"));
        let Route::Forward(proxy) = settings.route(&Url::parse("http://x/").unwrap()) else { panic!("not forwarded") };
        assert_eq!(proxy.credentials, Some(Credentials::new("user", "secret")));
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(value in "[\\PC,/:.*\\[\\]0-9]{0,40}") {
            let mut settings = ProxySettings::new();
            let _ = settings.set_http(&value);
            let _ = settings.set_no_proxy(&value);
            let _ = settings.route(&Url::parse("http://10.0.0.1/").unwrap());
            let _ = settings.route(&Url::parse("https://[::1]/").unwrap());
        }
    }
}
