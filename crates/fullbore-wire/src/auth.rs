//! Credentials: `user:password@` from URLs, and the netrc-like files of apt_auth.conf(5).
//!
//! They go only to the host that they were written for. Neither `Debug` nor any error shows a password.

use std::fmt;

use base64::Engine;
use fullbore_engine::units;

use crate::url::{Host, Scheme, Url, decode_hex, parse_host_and_port, split_scheme};

/// Maximum size of an auth.conf file, in bytes; a guess far above real ones.
pub const AUTH_FILE_BYTES_MAX: usize = 1024 * 1024;

/// Maximum number of machine entries. A guess.
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

    /// Decodes the percent-encoded `user[:password]` of a URL; `None` if it is malformed.
    pub(crate) fn from_userinfo(userinfo: &str) -> Option<Self> {
        let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
        Some(Self::new(decode(user)?, decode(password)?))
    }

    /// The user name, without the password.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// Returns the value of a Basic Authorization field (RFC 7617, UTF-8).
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
    /// Creates a value of any scheme, e.g. `Bearer …`. It is checked for line breaks when the request is queued.
    pub fn new(header_value: impl Into<String>) -> Self {
        Self(header_value.into())
    }

    /// The secret itself, for the request only.
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
    /// The file is too long.
    #[error(
        "auth file of {} is larger than the limit of {}",
        units::bytes(*bytes as u64),
        units::bytes(AUTH_FILE_BYTES_MAX as u64)
    )]
    TooLong {
        /// Length of the file, in bytes.
        bytes: usize,
    },
    /// There are too many machine entries.
    #[error("more than {ENTRIES_MAX} machine entries")]
    TooManyEntries,
    /// A `machine`, `login` or `password` token lacks its argument.
    #[error("auth file, line {line}: nothing follows {token:?}")]
    Incomplete {
        /// Line number, from 1.
        line: usize,
        /// The incomplete token.
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
    /// Whether the entry has no scheme.
    is_bare: bool,
    /// Whether the credentials come from a URL, which takes precedence over every file.
    is_of_url: bool,
    host: Host,
    /// Port of the entry; `None` for any port.
    port: Option<u16>,
    /// Prefix of the path; may be empty.
    path: String,
    login: String,
    password: String,
}

impl AuthConf {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there are no credentials.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Appends the entries of `other`.
    pub fn extend(&mut self, other: &AuthConf) {
        let room = ENTRIES_MAX.saturating_sub(self.entries.len());
        self.entries.extend(other.entries.iter().take(room).cloned());
    }

    /// Adds the entries of one file's text. As in apt, unknown tokens are skipped. A machine with another scheme or a
    /// bad name is skipped with its login and password.
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
        // A login or password before the first `machine`, or of a skipped machine, is dropped.
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

    /// Adds credentials from a URL. They apply to its scheme, host and port, below its path. As in apt, they take
    /// precedence over those of files.
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

    /// Returns the credentials for a URL. Among the matching entries, those of a URL precede those of a file, then the
    /// longest path wins, then an entry with a port, then the first. (apt takes the first match in file order; for the
    /// files that its manual recommends, the result is the same.)
    pub fn lookup(&self, url: &Url) -> Option<Credentials> {
        let mut best: Option<&Entry> = None;
        for entry in self.entries.iter().filter(|entry| entry.matches(url)) {
            if best.is_none_or(|best| entry.weight() > best.weight()) {
                best = Some(entry);
            }
        }
        best.map(|entry| Credentials::new(&entry.login, &entry.password))
    }

    /// Returns the host of an entry without a scheme that would match this unencrypted address. Such an entry is for
    /// https only, so the user should be told.
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

    /// Whether the entry matches this address, apart from the scheme.
    fn fits(&self, url: &Url) -> bool {
        // Dots in a path could leave the prefix on the server.
        let climbs = || {
            let lower = url.path().to_ascii_lowercase().replace("%2e", ".");
            lower.split('/').any(|part| part == "..")
        };
        self.host == *url.host()
            && self.port.is_none_or(|port| port == url.port())
            && self.is_prefix_of(url.path())
            && (self.path.len() <= 1 || !climbs())
    }

    /// Whether the entry's path is a prefix of `path`. In a file, any prefix counts. In a URL it is a directory:
    /// `/debian` does not match `/debian-security`.
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

/// Parses `[scheme://]host[:port][/path]`. Without a scheme, an entry is for https only.
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

/// Percent-decodes to UTF-8.
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
    fn examples_of_the_manual_apply_as_it_says() {
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
    fn credentials_go_over_plain_http_only_when_asked_for() {
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
    fn the_longest_entry_wins_and_no_other_host_gets_it() {
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
    fn odd_entries_are_refused_or_skipped_whole() {
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
        fn arbitrary_input_never_panics(text in "(machine|login|password|[\\PC\\n\\t:/#]{0,6}| |\n){0,30}") {
            let mut conf = AuthConf::new();
            if conf.add_file(&text).is_ok() {
                let _ = conf.lookup(&Url::parse("https://h/").unwrap());
            }
        }
    }
}
