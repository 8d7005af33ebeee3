//! Credentials: `user:password@` from URLs and the netrc-like files of apt_auth.conf(5).
//!
//! They go to the host they were written for and to no other. Neither `Debug` nor any
//! error shows a password.

use std::fmt;

use base64::Engine;

use crate::url::{Host, Scheme, Url, decode_hex, parse_host_and_port, split_scheme};

/// Bytes of one auth.conf file; a guess far above real ones.
pub const AUTH_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Machine entries in all. A guess.
const ENTRIES_MAX: usize = 10_000;

/// A user name and a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    user: String,
    password: String,
}

impl Credentials {
    /// Makes credentials from a plain user name and password.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self { user: user.into(), password: password.into() }
    }

    /// From the percent-encoded `user[:password]` of a URL; `None` if it is not.
    pub(crate) fn from_userinfo(userinfo: &str) -> Option<Self> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        Some(Self::new(decode(user)?, decode(password)?))
    }

    /// The user name, without the password.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// The value of a Basic Authorization field (RFC 7617, UTF-8).
    pub fn basic(&self) -> Authorization {
        let plain = format!("{}:{}", self.user, self.password);
        let encoded = base64::engine::general_purpose::STANDARD.encode(plain);
        Authorization(format!("Basic {encoded}"))
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credentials({:?}, password hidden)", self.user)
    }
}

/// The value of an Authorization or Proxy-Authorization field.
#[derive(Clone, PartialEq, Eq)]
pub struct Authorization(String);

impl Authorization {
    /// Any scheme, e.g. `Bearer …`; checked for line breaks when the request is queued.
    pub fn new(header_value: impl Into<String>) -> Self {
        Self(header_value.into())
    }

    /// The secret itself, for the request alone.
    pub fn header_value(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Authorization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authorization(hidden)")
    }
}

/// Why an auth.conf file is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AuthError {
    /// Too long a file.
    #[error("auth file has {bytes} bytes, at most {AUTH_FILE_BYTES_MAX} are read")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Too many machines.
    #[error("more than {ENTRIES_MAX} machine entries")]
    TooManyEntries,
    /// `machine`, `login` or `password` without what must follow.
    #[error("auth file, line {line}: nothing follows {token:?}")]
    Incomplete {
        /// Line number from 1.
        line: usize,
        /// The token.
        token: &'static str,
    },
}

/// Entries of auth.conf files, and credentials that came with URLs.
#[derive(Clone, Debug, Default)]
pub struct AuthConf {
    entries: Vec<Entry>,
}

#[derive(Clone)]
struct Entry {
    scheme: Scheme,
    /// The scheme was not written.
    is_bare: bool,
    /// Written into a URL, which takes precedence over every file.
    is_of_url: bool,
    host: Host,
    /// `None`: any port.
    port: Option<u16>,
    /// Prefix of the path; may be empty.
    path: String,
    login: String,
    password: String,
}

impl AuthConf {
    /// Makes an empty list of credentials.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no credentials at all.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Adds the entries of another, behind those that are here.
    pub fn extend(&mut self, other: &AuthConf) {
        let room = ENTRIES_MAX.saturating_sub(self.entries.len());
        self.entries.extend(other.entries.iter().take(room).cloned());
    }

    /// Adds the entries of one file's text. Unknown tokens are skipped, as apt does; a
    /// machine that is no host of ours (another scheme, a bad name) is skipped whole.
    ///
    /// # Errors
    /// [`AuthError::TooLong`] if `text` has more than [`AUTH_FILE_BYTES_MAX`] bytes; [`AuthError::Incomplete`] if a
    /// token lacks its argument; [`AuthError::TooManyEntries`] beyond the limit of entries.
    pub fn add_file(&mut self, text: &str) -> Result<(), AuthError> {
        if text.len() > AUTH_FILE_BYTES_MAX {
            return Err(AuthError::TooLong { bytes: text.len() });
        }
        // apt skips lines that begin with '#'; elsewhere it is part of a token.
        let mut tokens = text
            .lines()
            .enumerate()
            .filter(|(_, line)| !line.starts_with('#'))
            .flat_map(|(number, line)| line.split_ascii_whitespace().map(move |token| (number + 1, token)));
        // Login and password before the first `machine`, or of a skipped one, go nowhere.
        let mut current: Option<Entry> = None;
        while let Some((line, token)) = tokens.next() {
            let mut argument = |token| match tokens.next() {
                Some((_, argument)) => Ok(argument),
                None => Err(AuthError::Incomplete { line, token }),
            };
            match token {
                "machine" => {
                    self.add_entry(current.take())?;
                    current = parse_machine(argument("machine")?);
                }
                "login" => {
                    let login = argument("login")?;
                    if let Some(entry) = &mut current {
                        entry.login = login.to_owned();
                    }
                }
                "password" => {
                    let password = argument("password")?;
                    if let Some(entry) = &mut current {
                        entry.password = password.to_owned();
                    }
                }
                _ => {}
            }
        }
        self.add_entry(current)
    }

    /// Adds credentials that were written into a URL: good for that scheme, host and port,
    /// below that path. As in apt, they take precedence over those of files.
    ///
    /// # Errors
    /// [`AuthError::TooManyEntries`] beyond the limit of entries.
    pub fn add_for_url(&mut self, url: &Url, credentials: &Credentials) -> Result<(), AuthError> {
        self.add_entry(Some(Entry {
            scheme: url.scheme(),
            is_bare: false,
            is_of_url: true,
            host: url.host().clone(),
            port: Some(url.port()),
            path: url.path().to_owned(),
            login: credentials.user.clone(),
            password: credentials.password.clone(),
        }))
    }

    /// The credentials for a URL: of the matching entries those of a URL before those of a file, then
    /// the one with the longest path, then one that names the port, then the first. (apt takes the first match in file
    /// order; for the files its manual recommends the result is the same.)
    pub fn lookup(&self, url: &Url) -> Option<Credentials> {
        let mut best: Option<&Entry> = None;
        for entry in self.entries.iter().filter(|entry| entry.matches(url)) {
            if best.is_none_or(|best| entry.weight() > best.weight()) {
                best = Some(entry);
            }
        }
        best.map(|entry| Credentials::new(&entry.login, &entry.password))
    }

    /// The host of an entry that says nothing of encryption and would match this unencrypted address: such an entry is
    /// for https alone, and whoever wrote it should know.
    pub fn needs_scheme(&self, url: &Url) -> Option<String> {
        if url.scheme() == Scheme::Https {
            return None;
        }
        let fits = |entry: &&Entry| entry.is_bare && entry.fits(url);
        self.entries.iter().find(fits).map(|entry| match entry.port {
            Some(port) => format!("{}:{port}", entry.host),
            None => entry.host.to_string(),
        })
    }

    fn add_entry(&mut self, entry: Option<Entry>) -> Result<(), AuthError> {
        let Some(entry) = entry.filter(|entry| !entry.login.is_empty() || !entry.password.is_empty()) else {
            return Ok(());
        };
        if self.entries.len() >= ENTRIES_MAX {
            return Err(AuthError::TooManyEntries);
        }
        self.entries.push(entry);
        Ok(())
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = self.scheme.as_str();
        write!(f, "{scheme}://{}{}, password hidden", self.host, self.path)
    }
}

impl Entry {
    fn matches(&self, url: &Url) -> bool {
        self.scheme == url.scheme() && self.fits(url)
    }

    /// Whether it is for this address, the scheme aside.
    fn fits(&self, url: &Url) -> bool {
        // Dots in a path could climb out of the prefix on the server.
        let climbs = || {
            let lower = url.path().to_ascii_lowercase().replace("%2e", ".");
            lower.split('/').any(|part| part == "..")
        };
        self.host == *url.host()
            && self.port.is_none_or(|port| port == url.port())
            && self.is_prefix_of(url.path())
            && (self.path.len() <= 1 || !climbs())
    }

    /// In a file, a path is any beginning. In a URL, it is a directory: `/debian` has no `/debian-security`.
    fn is_prefix_of(&self, path: &str) -> bool {
        if !self.is_of_url {
            return path.starts_with(&self.path);
        }
        let rest = path.strip_prefix(self.path.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    fn weight(&self) -> (bool, usize, bool) {
        (self.is_of_url, self.path.len(), self.port.is_some())
    }
}

/// `[scheme://]host[:port][/path]`. Without a scheme an entry is for https alone.
fn parse_machine(token: &str) -> Option<Entry> {
    let (scheme, rest, is_bare) = match split_scheme(token) {
        Some((scheme, rest)) => (scheme, rest, false),
        None if token.contains("://") => return None,
        None => (Scheme::Https, token, true),
    };
    let (authority, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, ""),
    };
    let (host, port) = parse_host_and_port(authority).ok()?;
    Some(Entry {
        scheme,
        is_bare,
        is_of_url: false,
        host,
        port,
        path: path.to_owned(),
        login: String::new(),
        password: String::new(),
    })
}

/// Percent-decoding to UTF-8.
fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        if byte == b'%' {
            decoded.push(decode_hex(after.get(..2)?)?);
            rest = &after[2..];
        } else {
            decoded.push(byte);
            rest = after;
        }
    }
    String::from_utf8(decoded).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn conf(text: &str) -> AuthConf {
        let mut conf = AuthConf::new();
        conf.add_file(text).unwrap();
        conf
    }

    fn found(conf: &AuthConf, url: &str) -> Option<String> {
        conf.lookup(&Url::parse(url).unwrap()).map(|found| format!("{}:{}", found.user, found.password))
    }

    /// The examples of apt_auth.conf(5). One differs on purpose: an entry with `:443` is
    /// used for https without a written port, which is the same server.
    #[test]
    fn examples_of_the_manual() {
        let url = "https://example.org/debian";
        for (machine, applies) in [
            ("example.org", true),
            ("example.org/deb", true),
            ("example.org/debian", true),
            ("https://example.org", true),
            ("EXAMPLE.org", true),
            ("example.org:443", true),
            ("example.org/deb/", false),
            ("example.org/ubuntu", false),
            ("example.orga", false),
            ("example.net", false),
            ("example.org:444", false),
            ("http://example.org", false),
            ("tor+https://example.org", false),
        ] {
            let one_line = conf(&format!("machine {machine} login apt password debian"));
            assert_eq!(found(&one_line, url).is_some(), applies, "{machine}");
        }
        let slash = conf("machine example.org/debian/ login apt password debian");
        assert_eq!(found(&slash, "https://example.org/debian/dists").as_deref(), Some("apt:debian"));
        let lines = conf("# comment\nmachine example.org\n\tlogin apt\npassword debian\n");
        assert_eq!(found(&lines, url).as_deref(), Some("apt:debian"));
    }

    #[test]
    fn plain_http_only_when_asked_for() {
        let https = conf("machine h login a password b");
        assert_eq!(found(&https, "http://h/"), None);
        let http = conf("machine http://h login a password b");
        assert_eq!(found(&http, "http://h/").as_deref(), Some("a:b"));
        assert_eq!(found(&http, "https://h/"), None);
    }

    #[test]
    fn an_entry_that_does_not_say_http_is_told_of() {
        let hint = |text: &str, url: &str| conf(text).needs_scheme(&Url::parse(url).unwrap());
        assert_eq!(hint("machine h login a password b", "http://h/x").as_deref(), Some("h"));
        assert_eq!(hint("machine h:81 login a password b", "http://h:81/x").as_deref(), Some("h:81"));
        for (text, url) in [
            ("machine h login a password b", "https://h/x"),
            ("machine h/y login a password b", "http://h/x"),
            ("machine other login a password b", "http://h/x"),
            ("machine https://h login a password b", "http://h/x"),
            ("machine http://h login a password b", "http://h/x"),
        ] {
            assert_eq!(hint(text, url), None, "{text} {url}");
        }
    }

    #[test]
    fn never_for_another_host_and_longest_wins() {
        let conf = conf(
            "machine h login any password 0 machine h/a login a password 1 machine h/a/b login b password 2\n\
             machine h:8443 login port password 3 machine other login o password 4 account x port 5",
        );
        for (url, login) in [
            ("https://h/", Some("any:0")),
            ("https://h/a/x", Some("a:1")),
            ("https://h/a/b/x", Some("b:2")),
            ("https://h:8443/x", Some("port:3")),
            ("https://other/", Some("o:4")),
            ("https://sub.h/", None),
            ("https://h.evil/", None),
            ("https://hh/", None),
            ("https://h/a/b/../../c", Some("any:0")),
            ("https://h/a/%2E%2e/c", Some("any:0")),
        ] {
            assert_eq!(found(&conf, url).as_deref(), login, "{url}");
        }
    }

    #[test]
    fn odd_files() {
        for text in ["machine", "machine h login", "machine h login a password", "login"] {
            assert!(AuthConf::new().add_file(text).is_err(), "{text:?}");
        }
        for text in [
            "",
            "login a password b",
            "machine ftp://h login a password b",
            "machine a:b:c login a password b",
            "default login a password b",
        ] {
            assert!(conf(text).entries.is_empty(), "{text:?}");
        }
        // A skipped machine's password must not fall to the one before.
        let two = conf("machine h login a password b machine bad::1 login c password d");
        assert_eq!(found(&two, "https://h/").as_deref(), Some("a:b"));
        // A password may be any token, a keyword too.
        assert_eq!(found(&conf("machine h login machine password #x"), "https://h/").as_deref(), Some("machine:#x"));
        assert!(AuthConf::new().add_file(&" ".repeat(AUTH_FILE_BYTES_MAX + 1)).is_err());
        assert!(matches!(
            AuthConf::new().add_file(&"machine h login a ".repeat(ENTRIES_MAX + 1)),
            Err(AuthError::TooManyEntries)
        ));
    }

    #[test]
    fn credentials_of_a_url_stay_below_it() {
        let (url, credentials) = Url::parse_with_userinfo("http://u:p%20w@h/debian/").unwrap();
        let mut conf = AuthConf::new();
        conf.add_for_url(&url, &credentials.unwrap()).unwrap();
        assert_eq!(found(&conf, "http://h/debian/x").as_deref(), Some("u:p w"));
        for other in ["http://h/x", "http://h:81/debian/x", "https://h/debian/x", "http://o/debian/x"] {
            assert_eq!(found(&conf, other), None, "{other}");
        }
    }

    #[test]
    fn credentials_of_a_url_come_before_those_of_files() {
        let with_url = |url: &str| {
            let mut conf =
                conf("machine http://h/ra login file password f machine http://h/ra/x login file password g");
            let (url, credentials) = Url::parse_with_userinfo(url).unwrap();
            conf.add_for_url(&url, &credentials.unwrap()).unwrap();
            conf
        };
        for (url, target, expected) in [
            ("http://u:p@h/", "http://h/ra/x/y", "u:p"),
            ("http://u:p@h/ra", "http://h/ra/x/y", "u:p"),
            ("http://u@h/ra/", "http://h/ra/x/y", "u:"),
            ("http://u:p@h/rb", "http://h/ra/x/y", "file:g"),
            ("http://u:p@h/r", "http://h/ra/y", "file:f"),
            ("http://u:p@h:81/", "http://h/ra/y", "file:f"),
        ] {
            assert_eq!(found(&with_url(url), target).as_deref(), Some(expected), "{url} {target}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        let credentials = Credentials::new("user", "secret");
        let conf = conf("machine h login user password secret");
        let shown = format!("{credentials:?} {:?} {conf:?}", credentials.basic());
        assert!(!shown.contains("secret") && !shown.contains("c2VjcmV0") && !shown.contains("Basic"), "{shown}");
        assert_eq!(
            Credentials::new("Aladdin", "open sesame").basic().header_value(),
            "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="
        );
    }

    proptest! {
        #[test]
        fn never_panics(text in "(machine|login|password|[\\PC\\n\\t:/#]{0,6}| |\n){0,30}") {
            let mut conf = AuthConf::new();
            if conf.add_file(&text).is_ok() {
                let _ = conf.lookup(&Url::parse("https://h/").unwrap());
            }
        }
    }
}
