//! How a run uses the network, as its user says.

use std::path::{Path, PathBuf};

use fullbore_engine::run::CommandError;
use fullbore_engine::window::Window;

use super::buckets::{Buckets, is_bucket, open_bucket};
use crate::auth::AuthConf;
use crate::connect::ConnectOptions;
use crate::dispatcher::Limits;
use crate::fetch::FetchOptions;
use crate::proxy::{ProxyError, ProxySettings};
use crate::tls::{Authorities, Offer, Tls, Trust};
use crate::url::{Url, UrlError, public_part, shown};

/// Bytes read and not yet written: so much for each connection keeps what a killed run loses below
/// 1 MB, and four hosts of four connections busy. Bounded, since many hosts share one disk.
const WINDOW_BYTES_PER_CONNECTION: u64 = 768 << 10;
const WINDOW_BYTES_MAX: u64 = 32 << 20;

/// Chunks read and not yet written. Small files make many of them.
const WINDOW_ITEMS: u32 = 8192;

/// How a run reaches mirrors: TLS, proxies, limits, addresses.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkSettings {
    /// Connections to one host at once, 1 to 16.
    pub connections_per_host: usize,
    /// Body bytes received per second over all hosts.
    pub limit_rate_bytes_per_s: Option<u64>,
    /// Certificates trusted in addition to the system's, a PEM file.
    pub ca_file: Option<PathBuf>,
    /// The file of certificates that apt's configuration names, in the place of `ca_file` if there is none.
    pub apt_ca_file: Option<PathBuf>,
    /// Whether to use HTTP/1.1 only, and never HTTP/2.
    pub http1_only: bool,
    /// Ask a second host for what a measurably slower one is sending.
    pub hedge: bool,
    /// Files in apt's auth.conf format, readable when settings were made.
    pub auth_files: Vec<PathBuf>,
    /// Addresses of proxies, and hosts that need none.
    pub proxy: ProxyAddresses,
    /// Where the verdict's samples are recorded, line by line as JSON, for whoever tunes it.
    pub record: Option<PathBuf>,
    /// Opens archives in buckets; `None` where a run reads none.
    pub buckets: Option<Buckets>,
}

impl Default for NetworkSettings {
    /// Four connections per host, since public mirrors ask for few; no limits, no proxies.
    fn default() -> Self {
        NetworkSettings {
            connections_per_host: 4,
            limit_rate_bytes_per_s: None,
            ca_file: None,
            apt_ca_file: None,
            http1_only: false,
            hedge: true,
            auth_files: Vec::new(),
            proxy: ProxyAddresses::default(),
            record: None,
            buckets: None,
        }
    }
}

/// Proxies as the usual variables name them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ProxyAddresses {
    /// Address of the proxy for `http://` URLs.
    pub http: Option<String>,
    /// Address of the proxy for `https://` URLs.
    pub https: Option<String>,
    /// Hosts reached directly, as in the variable `no_proxy`, split at commas and spaces.
    pub no_proxy: Vec<String>,
    /// Hosts with a proxy of their own, or `DIRECT`.
    pub hosts: Vec<(String, String)>,
}

/// The window of a run with so many hosts.
pub(super) fn window(hosts: usize, network: &NetworkSettings) -> Window {
    let connections = hosts as u64 * network.connections_per_host as u64;
    Window::new((connections * WINDOW_BYTES_PER_CONNECTION).min(WINDOW_BYTES_MAX), WINDOW_ITEMS)
}

/// How a run reaches these mirrors of one archive; the addresses at which the wire asks for them.
///
/// # Errors
/// As [`addresses`] and [`fetch_options`]; buckets that cannot be opened.
pub fn site<'a>(
    texts: impl Iterator<Item = &'a String>,
    network: &NetworkSettings,
) -> Result<(Vec<Url>, FetchOptions), CommandError> {
    let mut urls = Vec::new();
    let (mut auth, mut signed) = (AuthConf::new(), Vec::new());
    for text in texts {
        if is_bucket(text) {
            let mirror = open_bucket(text, network)?;
            urls.push(mirror.signer.address());
            signed.push(mirror);
        } else {
            let (url, own) = addresses(std::iter::once(text))?;
            urls.extend(url);
            auth.extend(&own);
        }
    }
    let mut options = fetch_options(network, auth)?;
    options.signed = signed;
    Ok((urls, options))
}

/// Mirrors' addresses, with the credentials that were written into them.
///
/// # Errors
/// A [`CommandError`] of kind usage if a text is no URL, or has more credentials than fit.
pub fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Result<(Vec<Url>, AuthConf), CommandError> {
    let mut auth = AuthConf::new();
    let mut urls = Vec::new();
    for text in texts {
        let usage = |error: &dyn std::fmt::Display| CommandError::usage(format_args!("{}: {error}", shown(text)));
        let (url, credentials) = Url::parse_with_userinfo(text).map_err(|error| usage(&error))?;
        if let Some(credentials) = credentials {
            auth.add_for_url(&url, &credentials).map_err(|error| usage(&error))?;
        }
        urls.push(url);
    }
    Ok((urls, auth))
}

/// How the wire uses the network, as these settings say.
///
/// # Errors
/// A [`CommandError`] of kind usage if a file of credentials or certificates cannot be read or parsed, or a proxy is no
/// address.
pub fn fetch_options(network: &NetworkSettings, mut auth: AuthConf) -> Result<FetchOptions, CommandError> {
    for path in &network.auth_files {
        let text = std::fs::read_to_string(path).map_err(|error| CommandError::unreadable(path, &error))?;
        auth.add_file(&text).map_err(|error| usage_of(path, &error))?;
    }
    let trust = match (&network.ca_file, &network.apt_ca_file) {
        (Some(path), _) => Trust::SystemAnd(Authorities::read(path).map_err(CommandError::usage)?),
        // It is of no use for most sources, so they do not fail for it.
        (None, Some(path)) => Authorities::read(path).map_or_else(
            |error| {
                tracing::warn!("Acquire::https::CaInfo is not used: {error}");
                Trust::System
            },
            Trust::SystemAnd,
        ),
        (None, None) => Trust::System,
    };
    Ok(FetchOptions {
        limits: Limits {
            connections_per_host: network.connections_per_host,
            hedge: network.hedge,
            ..Limits::default()
        },
        connect: ConnectOptions {
            tls: Tls::new(trust),
            offer: if network.http1_only { Offer::Http1 } else { Offer::Either },
            ..ConnectOptions::default()
        },
        proxies: proxies(&network.proxy)?,
        auth,
        rate_limit_bytes_per_s: network.limit_rate_bytes_per_s,
        ..FetchOptions::default()
    })
}

/// Which way to each host, as these settings say.
///
/// # Errors
/// One of them names no proxy that can be used.
pub fn proxies(given: &ProxyAddresses) -> Result<ProxySettings, CommandError> {
    let mut proxies = ProxySettings::new();
    let wrong = |error: ProxyError| CommandError::usage(error);
    if let Some(proxy) = &given.http {
        proxies.set_http(proxy).map_err(wrong)?;
    }
    if let Some(proxy) = &given.https {
        proxies.set_https(proxy).map_err(wrong)?;
    }
    proxies.set_no_proxy(&given.no_proxy.join(",")).map_err(wrong)?;
    for (host, proxy) in &given.hosts {
        proxies.set_host(host, proxy).map_err(wrong)?;
    }
    Ok(proxies)
}

/// A file named by the settings that cannot be used.
fn usage_of(path: &Path, error: &dyn std::fmt::Display) -> CommandError {
    CommandError::usage(format_args!("{}: {error}", path.display()))
}

/// The schemes of archives.
const ONLY_THESE: &str = "only http, https and s3 archives can be mirrored";
/// A path, or a `file://` address, in the place of an archive's address.
const LOCAL_DIRECTORY: &str = "a local directory; only http, https and s3 archives can be mirrored";
/// What to do with an archive that is a local directory.
const SERVE_IT: &str = "serve the directory by HTTP, put it into a bucket, or copy it with `fullbore copy`";

/// The error for the address of an archive that has no scheme: a path, or an address whose beginning is missing.
fn without_scheme(text: &str, bad: &dyn Fn(&str) -> CommandError) -> CommandError {
    // apt takes `file:/srv/debian` with one slash as well.
    let begins = |start: &str| text.get(..start.len()).is_some_and(|text| text.eq_ignore_ascii_case(start));
    if begins("file:/") || begins("copy:/") || text.starts_with(['/', '.', '~']) || Path::new(text).is_dir() {
        return bad(LOCAL_DIRECTORY).hint(SERVE_IT);
    }
    let with_scheme = public_part(text).map(|part| format!("https://{part}"));
    match with_scheme.filter(|address| Url::parse(address).is_ok()) {
        // `http:/host`: one slash is missing.
        Some(address) if !text.contains(":/") => bad("not an address").hint(format_args!("write {address}")),
        _ => bad("not an address").hint("write the address of an archive as https://deb.example.org/debian"),
    }
}

/// The address of an archive that may be in a bucket, as [`address`] otherwise.
///
/// # Errors
/// As [`address`]; a bucket that cannot be opened.
pub fn mirror_address(text: &str, network: &NetworkSettings) -> Result<String, CommandError> {
    if is_bucket(text) {
        return open_bucket(text, network).map(|_| text.to_owned());
    }
    address(text)
}

/// An archive's address without slashes at its end; only its scheme and host are checked here.
///
/// # Errors
/// Another scheme, no host, a query or a fragment.
pub fn address(text: &str) -> Result<String, CommandError> {
    let text = text.trim().trim_end_matches('/');
    let bad = |why: &str| CommandError::usage(format_args!("{:?}: {why}", shown(text)));
    let Some((scheme, rest)) = text.split_once("://") else {
        return Err(without_scheme(text, &bad));
    };
    match scheme.to_ascii_lowercase().as_str() {
        "http" | "https" => {}
        "file" | "copy" => return Err(bad(LOCAL_DIRECTORY).hint(SERVE_IT)),
        "ssh" | "sftp" | "scp" => {
            return Err(bad(ONLY_THESE).hint("copy the tree with `fullbore copy HOST:PATH DIR`"));
        }
        _ => return Err(bad(ONLY_THESE).hint("try https with the same host and path")),
    }
    let host = rest.split('/').next().unwrap_or_default();
    if host.is_empty() || text.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(bad("not an address"));
    }
    if let Err(error @ UrlError::UnencodedUserInfo) = Url::parse_with_userinfo(text) {
        return Err(bad(&error.to_string()));
    }
    if text.contains(['?', '#']) {
        return Err(bad("the address of an archive ends with its directory: no `?` and no `#`"));
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::without_credentials;

    #[test]
    fn an_address_is_shown_without_credentials() {
        let shown = |text: &str| without_credentials(text);
        assert_eq!(shown("http://us:se@kret@host:80/debian"), "http://host:80/debian");
        assert_eq!(shown("https://host/a@b"), "https://host/a@b");
        assert_eq!(shown("us:sekret@host"), "host");
        for text in [
            "ftp://us:sekret@host/debian",
            "ftp://us:se/sekret@host/debian",
            "us:se/sekret@host/debian",
            "us:sekret/se@host/debian",
            "https://us:sekret/se@host/debian",
            "https:/us:sekret@host/debian",
            "https://us:sekret@host/debian?x",
        ] {
            let refused = address(text).unwrap_err().to_string();
            assert!(!refused.contains("sekret"), "{refused}");
        }
        let text = "https://us:sekret/se@host/debian".to_owned();
        let refused = addresses(std::iter::once(&text)).unwrap_err().to_string();
        assert!(!refused.contains("sekret") && refused.contains("%2F"), "{refused}");
    }

    #[test]
    fn a_wrong_address_is_told_what_to_write() {
        for (text, message, hint) in [
            ("deb.example.org/debian", "not an address", "write https://deb.example.org/debian"),
            ("us:sekret@host/debian", "\"host/debian\": not an address", "write https://host/debian"),
            ("https:/host/debian", "not an address", "write the address of an archive as https://"),
            ("file:///srv/debian", "a local directory; only http", "serve the directory by HTTP"),
            ("/srv/debian", "a local directory; only http", "serve the directory by HTTP"),
            ("file:/srv/debian", "a local directory; only http", "serve the directory by HTTP"),
            ("COPY:/srv/debian", "a local directory; only http", "serve the directory by HTTP"),
            // The directory of this crate, where tests run.
            ("src/run", "a local directory; only http", "serve the directory by HTTP"),
            ("us:se/kret@host/debian", "\"…\": not an address", "write the address of an archive as https://"),
            ("ssh://host/srv/debian", "only http, https and s3", "fullbore copy HOST:PATH DIR"),
            ("ftp://host/debian", "only http, https and s3", "try https with the same host and path"),
        ] {
            let error = address(text).unwrap_err();
            assert!(error.message.contains(message), "{text}: {error}");
            assert!(error.hints[0].contains(hint) && !error.to_string().contains("sekret"), "{text}: {error}");
        }
    }

    #[test]
    fn a_query_is_no_part_of_an_archive() {
        for text in ["https://host/debian?x=1", "https://host/debian#x", "https://host?x"] {
            assert!(address(text).unwrap_err().to_string().contains("ends with its directory"), "{text}");
        }
    }
}
