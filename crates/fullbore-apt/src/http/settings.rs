//! APT's configuration for this method.
//!
//! A setting is looked up as APT's own methods do. For https: below `Acquire::https::HOST`, `Acquire::http::HOST`,
//! `Acquire::https` and `Acquire::http`, in this order. For http: below the two with http. A method of another name
//! also has settings below its own names (see [`MethodName::settings`]).

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fullbore_debian::release_date::{DateCheck, MAX_FUTURE_S};
use fullbore_wire::auth::AuthConf;
use fullbore_wire::connect::{CONNECT_LIMIT, ConnectOptions};
use fullbore_wire::dispatcher::Limits;
use fullbore_wire::fetch::FetchOptions;
use fullbore_wire::http1::PIPELINE_DEPTH;
use fullbore_wire::proxy::{ProxyError, ProxySettings, Route};
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::resolve::{Family, Resolver};
use fullbore_wire::tls::{Authorities, Identity, Overlook, Tls, TlsError, Trust};
use fullbore_wire::url::{Scheme, Url};

use super::mirror_releases::{ReleaseCheck, Sources};
use super::mirrors::{LIST_BYTES_MAX, MirrorSets};
use super::wanted::WantedFile;
use super::words;
use crate::acquire::{Configuration, MethodName};
use crate::system::parts::files_of;

/// The setting with lists of mirrors; a list of paths.
pub(crate) const MIRRORS_SETTING: &str = "Acquire::fullbore::Mirrors";

/// The setting with the number of connections per host.
pub(crate) const CONNECTIONS_SETTING: &str = "Acquire::fullbore::Connections";

/// Characters of an unknown scheme that are shown.
const SCHEME_SHOWN: usize = 20;

/// Default of `Timeout` in seconds, as in APT: to connect, and for silence.
const TIMEOUT_S: i64 = 30;

/// Failed connections in a row after which a single host is given up; APT retries by itself (`Acquire::Retries`).
const FAILURES_ALONE: u32 = 3;

/// Environment variables that the http and https methods use.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Environment {
    /// APT's working directory, for relative paths.
    pub directory: PathBuf,
    /// Value of `http_proxy`, the proxy for http addresses.
    pub http_proxy: Option<String>,
    /// Value of `https_proxy`, the proxy for https addresses.
    pub https_proxy: Option<String>,
    /// Value of `no_proxy`, the hosts that are reached without a proxy.
    pub no_proxy: Option<String>,
}

/// The proxy of methods whose names begin with `tor`, unless the user sets another, as in apt. Without a proxy such a
/// method would connect directly, and reveal what it has to hide.
const TOR_PROXY: (&str, &str) = ("Acquire::tor::Proxy", "socks5h://apt-transport-tor@127.0.0.1:9050");

/// The settings of a run.
pub(super) struct Settings {
    method: MethodName,
    configuration: Configuration,
    environment: Environment,
    /// Sets of mirrors, from `Acquire::fullbore::Mirrors`.
    pub mirrors: MirrorSets,
    /// The sources, with the keys that may sign a mirror's Release.
    pub sources: Sources,
    auth: AuthConf,
    /// Each auth.conf separately, for warnings.
    auth_files: Vec<(PathBuf, AuthConf)>,
    rate_limit: Option<Arc<RateLimit>>,
    /// Warnings about unreadable files, to send with the first request.
    pub warnings: Vec<String>,
}

/// Settings that prevent fetching from a host.
#[derive(Debug, thiserror::Error)]
pub(super) enum SettingsError {
    /// An unusable proxy.
    #[error("{} ({setting}: {error})", words::unsupported_proxy(proxy))]
    Proxy {
        /// Name of the setting with the proxy.
        setting: String,
        /// The proxy, without credentials.
        proxy: String,
        /// Why the proxy cannot be used.
        error: ProxyError,
    },
    /// Certificates or keys that cannot be used.
    #[error("{0}")]
    Tls(#[from] TlsError),
    /// A setting that the method does not support.
    #[error("{0} is not supported by fullbore's method")]
    Unsupported(String),
}

impl Settings {
    /// Reads the files that the configuration names. Call it before dropping privileges: only root may read `auth.conf`.
    pub(super) fn read(method: MethodName, mut configuration: Configuration, environment: Environment) -> Settings {
        if configuration.get(TOR_PROXY.0).is_none() {
            configuration.set(TOR_PROXY.0, TOR_PROXY.1);
        }
        let mut settings = Settings {
            method,
            auth_files: Vec::new(),
            mirrors: MirrorSets::default(),
            sources: Sources::default(),
            auth: AuthConf::new(),
            rate_limit: None,
            warnings: Vec::new(),
            environment,
            configuration,
        };
        let (mirrors, warnings) =
            MirrorSets::configured(&settings.configuration, |path| read_text(path, LIST_BYTES_MAX));
        settings.mirrors = mirrors;
        settings.warnings.extend(warnings);
        if !settings.mirrors.is_empty() {
            settings.sources = Sources::read(&settings.configuration);
        }
        settings.read_auth();
        // If this is set, APT runs one process for all hosts.
        let kilobytes = settings.find(None, Scheme::Http, "Dl-Limit").and_then(|text| text.parse::<u64>().ok());
        if let Some(kilobytes) = kilobytes.filter(|limit| *limit > 0) {
            settings.rate_limit = Some(Arc::new(RateLimit::new(kilobytes.saturating_mul(1024), Instant::now())));
        }
        settings
    }

    fn read_auth(&mut self) {
        let mut files: Vec<_> = self.configuration.path("Dir::Etc::netrc").into_iter().collect();
        if let Some(parts) = self.configuration.path("Dir::Etc::netrcparts") {
            match files_of(&parts, &["conf"]) {
                Ok(more) => files.extend(more),
                // Usually there is no such directory.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => self.warnings.push(format!("cannot read {}: {error}", parts.display())),
            }
        }
        for path in files {
            match read_text(&path, fullbore_wire::auth::AUTH_FILE_BYTES_MAX as u64) {
                Ok(text) => {
                    let mut own = AuthConf::new();
                    if let Err(error) = own.add_file(&text) {
                        self.warnings.push(format!("{}: {error}", path.display()));
                    }
                    self.auth.extend(&own);
                    self.auth_files.push((path, own));
                }
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => self.warnings.push(format!("cannot read {}: {error}", path.display())),
            }
        }
    }

    /// APT's working directory, for relative paths.
    pub(super) fn directory(&self) -> &Path {
        &self.environment.directory
    }

    /// APT's configuration, for dropping privileges.
    pub(super) fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// The name under which APT started this method.
    pub(super) fn method(&self) -> &MethodName {
        &self.method
    }

    /// Whether APT sends addresses %-encoded (`Acquire::Send-URI-Encoded`).
    pub(super) fn sends_encoded(&self) -> bool {
        self.configuration.bool("Acquire::Send-URI-Encoded", false)
    }

    /// The hash type that `Acquire::ForceHash` demands, if any.
    pub(super) fn forced_hash(&self) -> Option<&str> {
        self.configuration.get("Acquire::ForceHash")
    }

    /// Whether requests and answers are logged: `Debug::Acquire::http`, or the same for another name of this method.
    pub(super) fn shows_heads(&self) -> bool {
        let names = self.method.settings();
        // As in apt, plain `http` counts only for methods of that name.
        let own = names.iter().take(2).filter(|name| **name != "http" || self.method.binary() == "http");
        own.into_iter().any(|name| self.configuration.bool(&format!("Debug::Acquire::{name}"), false))
    }

    /// A setting of the http methods; `None` if it does not exist or is empty.
    pub(super) fn find(&self, host: Option<&str>, scheme: Scheme, name: &str) -> Option<&str> {
        let methods = match scheme {
            scheme if scheme == self.method.scheme() => self.method.settings(),
            Scheme::Https => vec!["https", "http"],
            Scheme::Http => vec!["http"],
        };
        let of_host = methods.iter().filter_map(|method| host.map(|host| format!("Acquire::{method}::{host}::{name}")));
        let of_all = methods.iter().map(|method| format!("Acquire::{method}::{name}"));
        of_host.chain(of_all).find_map(|name| self.configuration.get(&name))
    }

    /// Whether a partial file may be continued with a range request.
    pub(super) fn allows_ranges(&self, url: &Url) -> bool {
        self.is(url, "AllowRanges", true)
    }

    /// Warnings about credentials for this address that are not sent because the connection is not encrypted.
    pub(super) fn unencrypted(&self, url: &Url) -> Vec<String> {
        let told = |(file, own): &(PathBuf, AuthConf)| {
            let machine = own.needs_scheme(url)?;
            Some(words::unencrypted(file, &machine, url.scheme().as_str()))
        };
        let has_own = self.auth.lookup(url).is_some();
        self.auth_files.iter().filter_map(told).filter(|_| !has_own).collect()
    }

    fn find_of(&self, url: &Url, name: &str) -> Option<&str> {
        self.find(Some(&url.host().to_string()), url.scheme(), name)
    }

    /// A boolean setting, as APT reads it.
    pub(super) fn is(&self, url: &Url, name: &str, default: bool) -> bool {
        let mut one = Configuration::new();
        one.set("x", self.find_of(url, name).unwrap_or_default());
        one.bool("x", default)
    }

    fn number(&self, url: &Url, name: &str, default: i64) -> i64 {
        let mut one = Configuration::new();
        one.set("x", self.find_of(url, name).unwrap_or_default());
        one.number("x", default)
    }

    /// How long a host may be silent.
    pub(super) fn timeout(&self, url: &Url) -> Duration {
        Duration::from_secs(u64::try_from(self.number(url, "Timeout", TIMEOUT_S)).unwrap_or(0).max(1))
    }

    /// The check of a mirror's Release for this request; see [`Sources::check`].
    pub(super) fn release_check(
        &self,
        wanted: &WantedFile,
        local: Option<&[u8]>,
        now: SystemTime,
    ) -> Option<ReleaseCheck> {
        let now = unix_s(now).unwrap_or_default();
        self.sources.check(wanted, &self.method, &self.configuration, local, now)
    }

    /// The date check of a `Release`.
    pub(super) fn date_check(&self, now: SystemTime) -> DateCheck {
        // With a clock before 1970 no date is in the future.
        let now = unix_s(now);
        let checked = self.configuration.bool("Acquire::Check-Date", true) && now.is_some();
        let max_future_s = self.configuration.number("Acquire::Max-FutureTime", MAX_FUTURE_S);
        DateCheck::new(now.unwrap_or_default(), checked, max_future_s)
    }

    /// Whether redirects are followed (`AllowRedirect`).
    pub(super) fn follows_redirects(&self, url: &Url) -> bool {
        self.is(url, "AllowRedirect", true)
    }

    /// Further fields of a request, as APT's own method sends them.
    pub(super) fn fields(&self, wanted: &WantedFile) -> Vec<(String, String)> {
        let url = &wanted.url;
        let mut fields = Vec::new();
        let mut add = |name: &str, value: String| fields.push((name.to_owned(), value));
        if self.is(url, "No-Cache", false) {
            add("Cache-Control", "no-cache".into());
            add("Pragma", "no-cache".into());
        } else if wanted.is_index {
            add("Cache-Control", format!("max-age={}", self.number(url, "Max-Age", 0)));
        } else if self.is(url, "No-Store", false) {
            add("Cache-Control", "no-store".into());
        }
        // Servers that negotiate would send a compressed file for a name without an extension.
        let name = url.path().rsplit('/').next().unwrap_or_default();
        if self.is(url, "SendAccept", true) && !name.contains('.') {
            add("Accept", "text/*".into());
        }
        if let Some(referer) = self.find_of(url, "Referer") {
            add("Referer", referer.to_owned());
        }
        fields
    }

    /// Options for these mirrors; the first is the origin, for which `wanted` may name a proxy.
    ///
    /// # Errors
    /// [`SettingsError`] for a proxy, certificate or key that cannot be used, or a setting that is not supported.
    pub(super) fn fetch_options(&self, mirrors: &[Url], wanted: &WantedFile) -> Result<FetchOptions, SettingsError> {
        let origin = &wanted.url;
        let timeout = self.timeout(origin);
        let alone = mirrors.len() == 1;
        let mut auth = self.auth.clone();
        auth.extend(self.mirrors.auth());
        if let (Some(credentials), Some(base)) = (&wanted.credentials, mirrors.first()) {
            // With too many entries the existing ones are used.
            let _ = auth.add_for_url(base, credentials);
        }
        let depth = self.number(origin, "Pipeline-Depth", PIPELINE_DEPTH as i64);
        let agent = concat!("Debian APT-HTTP/1.3 (fullbore/", env!("CARGO_PKG_VERSION"), ")");
        let proxies = self.proxies(mirrors, wanted)?;
        let mut tls_of_hosts = Vec::new();
        for url in mirrors {
            let proxy = match proxies.route(url) {
                Route::Direct => None,
                Route::Forward(proxy) | Route::Tunnel(proxy) => Some(proxy.endpoint),
            };
            for url in [Some(url), proxy.as_ref()].into_iter().flatten().filter(|url| url.scheme() == Scheme::Https) {
                tls_of_hosts.push((url.host().clone(), self.tls(url)?));
            }
        }
        Ok(FetchOptions {
            limits: Limits {
                connections_per_host: self.connections(),
                // With several mirrors a silent host is dropped sooner.
                silence: if alone { timeout } else { timeout.min(Limits::default().silence) },
                pipeline_depth: usize::try_from(depth).unwrap_or(0).min(PIPELINE_DEPTH),
                failures_until_dead: if alone { FAILURES_ALONE } else { Limits::default().failures_until_dead },
                caller_retries: true,
                redirects_are_faults: !alone,
                ..Limits::default()
            },
            connect: ConnectOptions {
                resolver: Arc::new(self.resolver(origin)),
                limit: if alone { timeout } else { timeout.min(CONNECT_LIMIT) },
                ..ConnectOptions::default()
            },
            proxies,
            auth,
            shared_rate_limit: self.rate_limit.clone(),
            tls_of_hosts,
            user_agent: Some(self.find_of(origin, "User-Agent").unwrap_or(agent).into()),
            paths_are_encoded: true,
            follow_redirects: !alone && self.follows_redirects(origin),
            trials: false,
            head_log: None,
            ..FetchOptions::default()
        })
    }

    /// Most connections to one host.
    fn connections(&self) -> usize {
        let most = self.configuration.number(CONNECTIONS_SETTING, Limits::default().connections_per_host as i64);
        usize::try_from(most).unwrap_or(1).clamp(1, 16)
    }

    fn resolver(&self, origin: &Url) -> Resolver {
        let mut resolver = Resolver::default();
        let set = |name: &str| self.is(origin, name, self.configuration.bool(&format!("Acquire::{name}"), false));
        match (set("ForceIPv4"), set("ForceIPv6")) {
            (true, _) => resolver.only(Family::V4),
            (_, true) => resolver.only(Family::V6),
            _ => {}
        }
        resolver
    }

    fn tls(&self, url: &Url) -> Result<Tls, SettingsError> {
        if !self.configuration.bool("Acquire::AllowTLS", true) {
            return Err(SettingsError::Unsupported("TLS (Acquire::AllowTLS is false)".into()));
        }
        for name in ["IssuerCert", "SslForceVersion", "CrlFile"] {
            if self.find_of(url, name).is_some() {
                return Err(SettingsError::Unsupported(format!("Acquire::https::{name}")));
            }
        }
        let trust = match self.find_of(url, "CaInfo") {
            Some(path) => Trust::Only(Authorities::read(Path::new(path))?),
            None => Trust::System,
        };
        let overlook = if !self.is(url, "Verify-Peer", true) {
            Overlook::Everything
        } else if !self.is(url, "Verify-Host", true) {
            Overlook::Name
        } else {
            Overlook::Nothing
        };
        let tls = Tls::new(trust).overlooking(overlook);
        let Some(chain) = self.find_of(url, "SslCert") else { return Ok(tls) };
        let key = self.find_of(url, "SslKey").unwrap_or(chain);
        Ok(tls.with_identity(Identity::read(Path::new(chain), Path::new(key))?))
    }

    /// The proxy of each mirror, in APT's order: of this request, of the host, of the scheme, of the environment.
    /// `no_proxy` overrides all.
    fn proxies(&self, mirrors: &[Url], wanted: &WantedFile) -> Result<ProxySettings, SettingsError> {
        let mut proxies = ProxySettings::new();
        let none = |value: &str| value.eq_ignore_ascii_case("false");
        let checked = |setting: &str, proxy: &str, result: Result<(), ProxyError>| {
            let (setting, proxy) = (setting.to_owned(), without_userinfo(proxy));
            result.map_err(|error| SettingsError::Proxy { setting, proxy, error })
        };
        let is_used = |scheme: Scheme| mirrors.iter().any(|url| url.scheme() == scheme);
        let of_scheme = |scheme: Scheme| self.find(None, scheme, "Proxy").filter(|value| !none(value));
        let is_off = |scheme: Scheme| self.find(None, scheme, "Proxy").is_some_and(none);
        let environment = &self.environment;
        let http = of_scheme(Scheme::Http).or(environment.http_proxy.as_deref().filter(|_| !is_off(Scheme::Http)));
        let https_variable = environment.https_proxy.as_deref().or(environment.http_proxy.as_deref());
        let https = of_scheme(Scheme::Https).or(https_variable.filter(|_| !is_off(Scheme::Https)));
        // A proxy that is not used may be of any kind.
        if let Some(http) = http.filter(|_| is_used(Scheme::Http)) {
            checked("Acquire::http::Proxy", http, known_scheme(http).and_then(|()| proxies.set_http(http)))?;
        }
        if let Some(https) = https.filter(|_| is_used(Scheme::Https)) {
            checked("Acquire::https::Proxy", https, known_scheme(https).and_then(|()| proxies.set_https(https)))?;
        }
        let no_proxy = environment.no_proxy.as_deref().unwrap_or_default();
        checked("no_proxy", no_proxy, proxies.set_no_proxy(no_proxy))?;
        for (number, url) in mirrors.iter().enumerate() {
            let host = url.host().to_string();
            let name = format!("Proxy::{host}");
            let told = wanted.proxy.as_deref().filter(|_| number == 0);
            // APT has run the program for its own host.
            let detected = || (number > 0).then(|| super::detect::proxy(self, url)).flatten();
            let Some(own) =
                told.map(str::to_owned).or_else(|| self.find_of(url, &name).map(str::to_owned)).or_else(detected)
            else {
                continue;
            };
            if !is_excepted(no_proxy, url) {
                let own = if none(&own) { "DIRECT" } else { &own };
                let set = known_scheme(own).and_then(|()| proxies.set_host(&host, own));
                checked(&format!("Acquire::{}::{name}", url.scheme().as_str()), own, set)?;
            }
        }
        Ok(proxies)
    }
}

fn unix_s(time: SystemTime) -> Option<i64> {
    i64::try_from(time.duration_since(UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// As in apt, a proxy needs a scheme: `user:word@host:1` could be an address with the scheme `user`.
fn known_scheme(proxy: &str) -> Result<(), ProxyError> {
    let is_known = proxy.contains("://") || proxy.is_empty() || proxy.eq_ignore_ascii_case("direct");
    let scheme = || proxy.split(':').next().unwrap_or_default().chars().take(SCHEME_SHOWN).collect();
    if is_known { Ok(()) } else { Err(ProxyError::Unsupported { scheme: scheme() }) }
}

/// A proxy's address without credentials, for messages.
fn without_userinfo(proxy: &str) -> String {
    let (scheme, rest) = proxy.split_once("://").map_or(("", proxy), |(scheme, rest)| (scheme, rest));
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
}

/// Whether `no_proxy` excludes a host.
fn is_excepted(no_proxy: &str, url: &Url) -> bool {
    let mut probe = ProxySettings::new();
    let set = probe.set_all("http://proxy.invalid").is_ok() && probe.set_no_proxy(no_proxy).is_ok();
    set && probe.route(url) == Route::Direct
}

fn read_text(path: &Path, limit_bytes: u64) -> std::io::Result<String> {
    let mut text = String::new();
    let file = std::fs::File::open(path)?;
    let read = std::io::Read::read_to_string(&mut std::io::Read::take(file, limit_bytes + 1), &mut text)?;
    if read as u64 > limit_bytes {
        return Err(std::io::Error::other(format!("larger than {limit_bytes} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::{Message, Request};

    fn settings(items: &[(&str, &str)], environment: Environment) -> Settings {
        let mut configuration = Configuration::new();
        items.iter().for_each(|(name, value)| configuration.set(name, value));
        Settings::read(MethodName::new("http"), configuration, environment)
    }

    fn wanted(uri: &str, fields: &[(&str, &str)]) -> WantedFile {
        let message = Message::new(600, "URI Acquire").with("URI", uri).with("Filename", "/p/f");
        let message = fields.iter().fold(message, |message, (name, value)| message.with(name, value));
        let scheme = uri.split(':').next().unwrap();
        let encoded = Configuration::from_dump("Acquire::Send-URI-Encoded=1").unwrap();
        let settings = Settings::read(MethodName::new(scheme), encoded, Environment::default());
        WantedFile::new(Request::new(message), &settings).unwrap()
    }

    fn way(settings: &Settings, uri: &str, fields: &[(&str, &str)]) -> String {
        let wanted = wanted(uri, fields);
        let base = Url::parse(uri).unwrap();
        match settings.fetch_options(std::slice::from_ref(&base), &wanted).unwrap().proxies.route(&base) {
            Route::Direct => "direct".into(),
            Route::Forward(proxy) | Route::Tunnel(proxy) => proxy.endpoint.host_and_port(),
        }
    }

    #[test]
    fn the_nearest_setting_counts() {
        let settings = settings(
            &[
                ("Acquire::http::Timeout", "7"),
                ("Acquire::https::Timeout", "8"),
                ("Acquire::http::h::Timeout", "9"),
                ("Acquire::http::Dl-Limit", "5"),
            ],
            Environment::default(),
        );
        let seconds = |url: &str| settings.timeout(&Url::parse(url).unwrap()).as_secs();
        assert_eq!(
            (seconds("http://x/"), seconds("https://x/"), seconds("http://h/"), seconds("https://h/")),
            (7, 8, 9, 9)
        );
        assert!(settings.rate_limit.is_some());
    }

    #[test]
    fn proxies_are_chosen_in_apts_order() {
        let environment = || Environment { http_proxy: Some("http://env:1".into()), ..Environment::default() };
        let none = settings(&[], Environment::default());
        assert_eq!(way(&none, "http://h/", &[]), "direct");
        assert_eq!(way(&none, "http://h/", &[("Proxy", "http://told:2")]), "told:2");
        let env = settings(&[], environment());
        assert_eq!((way(&env, "http://h/", &[]).as_str(), way(&env, "https://h/", &[]).as_str()), ("env:1", "env:1"));
        assert_eq!(way(&env, "http://h/", &[("Proxy", "DIRECT")]), "direct");
        let own = settings(
            &[("Acquire::http::Proxy", "http://conf:3"), ("Acquire::http::Proxy::h", "http://host:4")],
            Environment { no_proxy: Some("local.example".into()), ..environment() },
        );
        assert_eq!((way(&own, "http://x/", &[]).as_str(), way(&own, "https://x/", &[]).as_str()), ("conf:3", "conf:3"));
        assert_eq!(way(&own, "http://h/", &[]), "host:4");
        assert_eq!(way(&own, "http://local.example/", &[("Proxy", "http://told:2")]), "direct");
        let off = settings(&[("Acquire::http::Proxy", "false")], environment());
        assert_eq!(way(&off, "http://h/", &[]), "direct");
        let socks = settings(&[("Acquire::http::Proxy", "socks5h://s:1")], Environment::default());
        let error = socks.fetch_options(&[Url::parse("http://h/").unwrap()], &wanted("http://h/x", &[])).unwrap_err();
        assert!(error.to_string().contains("Acquire::http::Proxy") && error.to_string().contains("socks5h"), "{error}");
    }

    #[test]
    fn caches_and_servers_are_told_what_apt_tells_them() {
        let plain = settings(&[], Environment::default());
        let fields = |settings: &Settings, uri: &str, fields: &[(&str, &str)]| {
            let fields = settings.fields(&wanted(uri, fields));
            fields.into_iter().map(|(name, value)| format!("{name}: {value}")).collect::<Vec<_>>().join(", ")
        };
        let index = [("Index-File", "true")];
        assert_eq!(fields(&plain, "http://h/InRelease", &index), "Cache-Control: max-age=0, Accept: text/*");
        assert_eq!(fields(&plain, "http://h/a.deb", &[]), "");
        let special = settings(
            &[
                ("Acquire::http::No-Store", "true"),
                ("Acquire::http::Max-Age", "60"),
                ("Acquire::http::n::No-Cache", "1"),
                ("Acquire::http::SendAccept", "no"),
            ],
            Environment::default(),
        );
        assert_eq!(fields(&special, "http://h/a.deb", &[]), "Cache-Control: no-store");
        assert_eq!(fields(&special, "http://h/Packages", &index), "Cache-Control: max-age=60");
        assert_eq!(fields(&special, "http://n/Packages", &index), "Cache-Control: no-cache, Pragma: no-cache");
    }

    #[test]
    fn what_would_be_ignored_is_refused() {
        for name in ["CrlFile", "IssuerCert", "SslForceVersion", "CaInfo"] {
            let settings = settings(&[(&format!("Acquire::https::{name}"), "/none")], Environment::default());
            let result = settings.fetch_options(&[Url::parse("https://h/").unwrap()], &wanted("https://h/x", &[]));
            let error = result.err().unwrap().to_string();
            assert!(error.contains(name) || error.contains("/none"), "{error}");
            assert!(settings.fetch_options(&[Url::parse("http://h/").unwrap()], &wanted("http://h/x", &[])).is_ok());
        }
    }

    #[test]
    fn files_that_cannot_be_read_are_told_and_not_fatal() {
        let directory = tempfile::tempdir().unwrap();
        let list = directory.path().join("mirrors");
        std::fs::write(&list, "http://a/x\nnonsense\n").unwrap();
        let auth = directory.path().join("auth.conf");
        std::fs::write(&auth, "machine http://a login l password p").unwrap();
        let settings = settings(
            &[
                ("Acquire::fullbore::Mirrors::", &list.display().to_string()),
                ("Acquire::fullbore::Mirrors::", "/none"),
                ("Acquire::fullbore::Mirrors::", &list.display().to_string()),
                ("Acquire::fullbore::Mirrors::", "/none"),
                ("Dir::Etc::netrc", &auth.display().to_string()),
                ("Dir::Etc::netrcparts", "/none"),
            ],
            Environment::default(),
        );
        assert_eq!(settings.warnings.len(), 2, "{:?}", settings.warnings);
        assert!(settings.mirrors.find(&Url::parse("http://a/x/y").unwrap()).is_some());
        assert!(!settings.auth.is_empty());
    }
}
