//! URLs of archives: http and https only, strict, bounded (RFC 3986, RFC 9110 4.2).
//!
//! A [`Url`] never holds userinfo or a fragment, so it can be printed and logged.
//! Its path is stored percent-encoded, ready for a request line; no byte in it can
//! end a line, and an encoded control character is refused too (some servers and
//! proxies decode and re-emit).

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::auth::Credentials;

/// Bytes of a URL. RFC 9110, 4.1 asks for support of at least 8000.
pub(crate) const URL_BYTES_MAX: usize = 8000;

/// Bytes of a host name (RFC 1035, 2.3.4: 255 on the wire, 253 as text).
const HOST_BYTES_MAX: usize = 253;

/// Bytes of one label of a host name (RFC 1035, 2.3.4).
const LABEL_BYTES_MAX: usize = 63;

/// Schemes of URLs that fullbore can fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

impl Scheme {
    /// The scheme as text: `http` or `https`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    /// 80 or 443.
    pub(crate) fn default_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// A host: a lower-case name or an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Host {
    /// A DNS name, lower case, without a final dot.
    Name(String),
    /// An address; IPv6 is written in brackets.
    Address(IpAddr),
}

impl Host {
    /// A name, an IPv4 address, or an IPv6 address in brackets.
    ///
    /// # Errors
    /// [`UrlError::Host`] with the reason if the text is no valid host.
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        let bad = |reason| UrlError::Host { host: shortened(text), reason };
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner.strip_suffix(']').ok_or_else(|| bad("'[' without ']'"))?;
            // A zone (`%eth0`) has no meaning beyond this machine; the parser refuses it.
            let address = Ipv6Addr::from_str(inner).map_err(|_| bad("not an IPv6 address"))?;
            return Ok(Self::Address(address.into()));
        }
        if let Ok(address) = Ipv4Addr::from_str(text) {
            return Ok(Self::Address(address.into()));
        }
        let name = text.strip_suffix('.').unwrap_or(text);
        if name.is_empty() {
            return Err(bad("empty"));
        }
        if name.len() > HOST_BYTES_MAX {
            return Err(bad("longer than 253 bytes"));
        }
        if !name.is_ascii() {
            return Err(bad("not ASCII; write the xn-- form"));
        }
        for label in name.split('.') {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
            if label.is_empty() || label.len() > LABEL_BYTES_MAX || !label.bytes().all(allowed) {
                return Err(bad("a label is empty, too long or has a forbidden character"));
            }
        }
        // `127.1`, `0x7f.1` and the like: resolvers take them for addresses, which then
        // would go by no_proxy and credentials under a name.
        let last = name.rsplit('.').next().unwrap_or(name);
        let hexadecimal = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        if last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").or(last.strip_prefix("0X")).is_some_and(hexadecimal)
        {
            return Err(bad("a number that is no IPv4 address"));
        }
        Ok(Self::Name(name.to_ascii_lowercase()))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => address.fmt(f),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

/// Why a URL is refused. Texts hold no userinfo.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// More than 8,000 bytes.
    #[error("URL of {bytes} bytes, at most {URL_BYTES_MAX} are allowed")]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Neither http nor https.
    #[error("URL must begin with http:// or https://, not {found:?}")]
    Scheme {
        /// The text without credentials, cut if it is long.
        found: String,
    },
    /// A host, or a host and a path, without a scheme.
    #[error("URL without http:// or https://; write https://{found}")]
    NoScheme {
        /// The text without credentials, cut if it is long.
        found: String,
    },
    /// The host is none.
    #[error("invalid host {host:?} in URL: {reason}")]
    Host {
        /// The host.
        host: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The port is no number from 1 to 65535.
    #[error("invalid port {port:?} in URL")]
    Port {
        /// The port.
        port: String,
    },
    /// Userinfo where none may be.
    #[error("URL for host {host} holds a user name or password; use auth.conf")]
    UserInfo {
        /// The host.
        host: String,
    },
    /// No valid host, and an `@` behind it: a user name or password may contain a slash.
    #[error("URL with an @ behind an invalid host; write a / in a user name or password as %2F")]
    UnencodedUserInfo,
    /// `#…`.
    #[error("URL has a fragment (#)")]
    Fragment,
    /// A byte that must be percent-encoded, or never may appear.
    #[error("URL path holds {byte:#04x} at byte {offset}, which is not allowed there")]
    Byte {
        /// The byte.
        byte: u8,
        /// Its place in the path.
        offset: usize,
    },
    /// `%` without two hexadecimal digits, or an encoded control character.
    #[error("URL path holds a bad percent-encoding at byte {offset}")]
    PercentEncoding {
        /// Its place in the path.
        offset: usize,
    },
    /// An archive path that is empty, absolute, or has empty, `.` or `..` parts.
    #[error("{path:?} is no relative archive path")]
    ArchivePath {
        /// The path.
        path: String,
    },
}

/// How `+` is written: legal raw in a path, but some object stores and CDNs read it
/// as a space and need `%2B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plus {
    /// `+`
    Raw,
    /// `%2B`
    Encoded,
}

/// An http or https URL without userinfo and fragment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Url {
    scheme: Scheme,
    host: Host,
    port: u16,
    /// Begins with `/`, may end in `?query`.
    path: String,
}

impl Url {
    /// Parses a URL; userinfo is refused.
    ///
    /// ```
    /// use fullbore_wire::url::{Plus, Url};
    ///
    /// let archive = Url::parse("http://deb.example.org/debian")?;
    /// let file = archive.join("pool/main/g/g++_1.deb", Plus::Encoded)?;
    /// assert_eq!(file.to_string(), "http://deb.example.org/debian/pool/main/g/g%2B%2B_1.deb");
    /// # Ok::<(), fullbore_wire::url::UrlError>(())
    /// ```
    ///
    /// # Errors
    /// [`UrlError::UserInfo`] if the URL has a user name or password; otherwise as [`Url::parse_with_userinfo`].
    pub fn parse(text: &str) -> Result<Self, UrlError> {
        match Self::parse_with_userinfo(text)? {
            (url, None) => Ok(url),
            (url, Some(_)) => Err(UrlError::UserInfo { host: url.host.to_string() }),
        }
    }

    /// Parses a URL as a person may write it, and splits `user:password@` off.
    ///
    /// # Errors
    /// The [`UrlError`] that names the wrong part: scheme, host, port, path, a fragment, or a length above
    /// 8,000 bytes.
    pub fn parse_with_userinfo(text: &str) -> Result<(Self, Option<Credentials>), UrlError> {
        if text.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong { bytes: text.len() });
        }
        let (scheme, rest) = split_scheme(text).ok_or_else(|| scheme_error(text))?;
        if rest.contains('#') {
            return Err(UrlError::Fragment);
        }
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let (userinfo, host_and_port) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        // Such a "host" may be the first half of a password.
        let hidden = |error| if path.contains('@') { UrlError::UnencodedUserInfo } else { error };
        let (host, port) = parse_host_and_port(host_and_port).map_err(hidden)?;
        check_path(path)?;
        let slash = if path.starts_with('/') { "" } else { "/" };
        let credentials = match userinfo {
            Some(userinfo) => Some(Credentials::from_userinfo(userinfo).ok_or_else(|| UrlError::Host {
                host: host.to_string(),
                reason: "the user name or password before it is not properly encoded",
            })?),
            None => None,
        };
        let url = Self { scheme, host, port: port.unwrap_or(scheme.default_port()), path: format!("{slash}{path}") };
        Ok((url, credentials))
    }

    /// The scheme of the URL, which decides about TLS.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host of the URL: a name or an address.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// The port, the scheme's own if none was written.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Path and query as they go into the request line (origin form).
    pub fn target(&self) -> &str {
        &self.path
    }

    /// The path of the URL, without the query.
    pub fn path(&self) -> &str {
        self.path.split_once('?').map_or(&self.path, |(path, _)| path)
    }

    /// The Host field: without the scheme's own port.
    pub fn host_field(&self) -> String {
        if self.port == self.scheme.default_port() {
            self.host.to_string()
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// `host:port`, always with the port: the target of CONNECT.
    pub fn host_and_port(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Same scheme, host and port: the reach of credentials.
    pub fn same_origin(&self, other: &Self) -> bool {
        self.scheme == other.scheme && self.host == other.host && self.port == other.port
    }

    /// The URL of a file beneath this one, which is taken as a directory. `path` is the
    /// file's raw name from an index; every byte that may not stand raw is encoded.
    ///
    /// # Errors
    /// [`UrlError::ArchivePath`] if `path` has an empty part, `.` or `..`; [`UrlError::Byte`] if it has a control
    /// character.
    pub fn join(&self, path: &str, plus: Plus) -> Result<Self, UrlError> {
        let improper = |part: &str| part.is_empty() || part == "." || part == "..";
        // A final slash may stand: directories of a flat repository.
        if path.strip_suffix('/').unwrap_or(path).split('/').any(improper) {
            return Err(UrlError::ArchivePath { path: shortened(path) });
        }
        let base = self.path().trim_end_matches('/');
        let mut joined = String::with_capacity(base.len() + 1 + path.len());
        joined.push_str(base);
        joined.push('/');
        for (offset, byte) in path.bytes().enumerate() {
            match byte {
                0..=0x1f | 0x7f => return Err(UrlError::Byte { byte, offset }),
                b'+' if plus == Plus::Encoded => joined.push_str("%2B"),
                b'/' => joined.push('/'),
                _ if is_path_byte(byte) => joined.push(byte as char),
                _ => push_encoded(&mut joined, byte),
            }
        }
        self.with_target(joined)
    }

    /// The URL of a file beneath this one, whose path is encoded already; a query may follow it.
    /// `..` is refused, for it would leave what credentials were given for.
    pub(crate) fn join_encoded(&self, path: &str) -> Result<Self, UrlError> {
        let before_query = path.split_once('?').map_or(path, |(before, _)| before);
        let climbs = |part: &str| part == ".." || part.to_ascii_lowercase().replace("%2e", ".") == "..";
        if before_query.split('/').any(climbs) {
            return Err(UrlError::ArchivePath { path: shortened(path) });
        }
        self.with_target(format!("{}/{path}", self.path().trim_end_matches('/')))
    }

    /// Same origin, other path (already encoded, beginning with `/`).
    pub(crate) fn with_target(&self, path: String) -> Result<Self, UrlError> {
        if path.len() > URL_BYTES_MAX {
            return Err(UrlError::TooLong { bytes: path.len() });
        }
        check_path(&path)?;
        Ok(Self { path, ..self.clone() })
    }
}

/// Also the absolute form of the request target towards a proxy.
impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}{}", self.scheme.as_str(), self.host_field(), self.path)
    }
}

impl FromStr for Url {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<Self, UrlError> {
        Self::parse(text)
    }
}

/// `host[:port]`; an empty port is the same as none (RFC 3986, 3.2.3).
pub(crate) fn parse_host_and_port(text: &str) -> Result<(Host, Option<u16>), UrlError> {
    let host_end = match text.rfind(']') {
        Some(bracket) => bracket + 1,
        None => text.find(':').unwrap_or(text.len()),
    };
    let (host, port) = text.split_at(host_end);
    let bad_port = || UrlError::Port { port: shortened(port) };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        None => return Err(bad_port()),
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => match digits.parse::<u16>() {
            Ok(number) if number > 0 => Some(number),
            _ => return Err(bad_port()),
        },
        Some(_) => return Err(bad_port()),
    };
    Ok((Host::parse(host)?, port))
}

/// The scheme, and what follows `://`.
pub(crate) fn split_scheme(text: &str) -> Option<(Scheme, &str)> {
    let (scheme, rest) = text.split_once("://")?;
    if scheme.eq_ignore_ascii_case("http") {
        Some((Scheme::Http, rest))
    } else if scheme.eq_ignore_ascii_case("https") {
        Some((Scheme::Https, rest))
    } else {
        None
    }
}

/// The error for a text that does not begin with `http://` or `https://`.
fn scheme_error(text: &str) -> UrlError {
    let found = |hidden: &str| shortened(&public_part(text).unwrap_or_else(|| hidden.to_owned()));
    let lacks_only_scheme = !text.contains(":/") && Url::parse_with_userinfo(&format!("https://{text}")).is_ok();
    if lacks_only_scheme {
        UrlError::NoScheme { found: found(HIDDEN_HOST) }
    } else {
        UrlError::Scheme { found: found(HIDDEN) }
    }
}

/// Checks an encoded path with query.
fn check_path(path: &str) -> Result<(), UrlError> {
    let bytes = path.as_bytes();
    for (offset, &byte) in bytes.iter().enumerate() {
        match byte {
            b'/' | b'?' => {}
            b'%' => {
                let decoded = bytes.get(offset + 1..offset + 3).and_then(decode_hex);
                // Encoded controls: CVE-2019-3462 was a newline that came back decoded.
                if !decoded.is_some_and(|byte| byte >= b' ' && byte != 0x7f) {
                    return Err(UrlError::PercentEncoding { offset });
                }
            }
            _ if is_path_byte(byte) => {}
            _ => return Err(UrlError::Byte { byte, offset }),
        }
    }
    Ok(())
}

/// `pchar` of RFC 3986 without `%`.
pub(crate) fn is_path_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@".contains(&byte)
}

pub(crate) fn push_encoded(text: &mut String, byte: u8) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(DIGITS[usize::from(byte >> 4)] as char);
    text.push(DIGITS[usize::from(byte & 15)] as char);
}

/// Two hexadecimal digits.
pub(crate) fn decode_hex(digits: &[u8]) -> Option<u8> {
    let &[high, low] = digits else { return None };
    let digit = |byte: u8| (byte as char).to_digit(16);
    u8::try_from(digit(high)? << 4 | digit(low)?).ok()
}

/// Characters of a foreign text in an error. A guess: a host name or a path in full, on two lines of a terminal.
const SHOWN_CHARS_MAX: usize = 100;

/// A foreign text for an error message: an ellipsis marks the cut.
fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Stands in an error for an address that may not be shown.
const HIDDEN: &str = "…";

/// Stands in a hint for a host that may not be shown.
pub const HIDDEN_HOST: &str = "HOST…";

/// The part of a foreign address that an error may show: all but credentials. `None` if nothing of it may be shown.
///
/// An `@` behind the first slash may belong to a path, or end a password that contains a slash. Nothing tells which.
pub fn public_part(address: &str) -> Option<String> {
    let is_scheme = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    // `me:pass://word@host` has no scheme.
    let rest_at = address.find("://").filter(|end| is_scheme(&address[..*end])).map_or(0, |end| end + "://".len());
    let (scheme, rest) = address.split_at(rest_at);
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    if path.contains('@') {
        return None;
    }
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    Some(format!("{scheme}{host}{path}"))
}

/// A foreign address for an error message: its [`public_part`], or an ellipsis.
pub fn shown(address: &str) -> String {
    public_part(address).unwrap_or_else(|| HIDDEN.to_owned())
}

/// The address of an archive as it is recorded and compared: without what stands before the host's `@` (RFC 3986,
/// 3.2.1). Errors about addresses that may be malformed use [`shown`].
pub fn without_credentials(address: &str) -> String {
    let (scheme, rest) = address.split_once("://").map_or(("", address), |(scheme, rest)| (scheme, rest));
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let (userinfo, host) = authority.rsplit_once('@').map_or((None, authority), |(user, host)| (Some(user), host));
    // The first half of a password with a slash is no host.
    if split_scheme(address).is_some() && path.contains('@') && parse_host_and_port(host).is_err() {
        return HIDDEN.to_owned();
    }
    if userinfo.is_none() {
        return address.to_owned();
    }
    let slashes = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{slashes}{host}{path}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn urls_are_read_and_shown_normalised() {
        for (text, shown, host_field, target) in [
            ("http://deb.example.org", "http://deb.example.org/", "deb.example.org", "/"),
            ("HTTPS://Deb.Example.ORG./debian", "https://deb.example.org/debian", "deb.example.org", "/debian"),
            ("http://h:80/x", "http://h/x", "h", "/x"),
            ("http://h:/x", "http://h/x", "h", "/x"),
            ("https://h:80/x", "https://h:80/x", "h:80", "/x"),
            ("http://127.0.0.1:8080/a?b=c/d", "http://127.0.0.1:8080/a?b=c/d", "127.0.0.1:8080", "/a?b=c/d"),
            ("http://[2001:DB8::1]:8080/", "http://[2001:db8::1]:8080/", "[2001:db8::1]:8080", "/"),
            ("http://h?q", "http://h/?q", "h", "/?q"),
            ("http://h/a%20b%2Bc+~:", "http://h/a%20b%2Bc+~:", "h", "/a%20b%2Bc+~:"),
            ("http://my_host-1/", "http://my_host-1/", "my_host-1", "/"),
        ] {
            let url = Url::parse(text).unwrap();
            assert_eq!(
                (url.to_string().as_str(), url.host_field().as_str(), url.target()),
                (shown, host_field, target)
            );
            assert_eq!(Url::parse(shown).unwrap(), url);
        }
    }

    #[test]
    fn malformed_urls_are_refused() {
        for text in [
            "",
            "/",
            "h/x",
            "ftp://h/",
            "file:///x",
            "http:/h",
            "http://",
            "http:///x",
            "http://:80/",
            "http://h:0/",
            "http://h:65536/",
            "http://h:+80/",
            "http://h:8 0/",
            "http://h:80:80/",
            "http://a b/",
            "http://a..b/",
            "http://.a/",
            "http://h%41/",
            "http://bücher.example/",
            "http://127.1/",
            "http://1.2.3.4.5/",
            "http://0x7f.1/",
            "http://127.0.0.0x1/",
            "http://300.1.1.1/",
            "http://[::1/",
            "http://::1/",
            "http://[::1]x/",
            "http://[fe80::1%25eth0]/",
            "http://[v1.x]/",
            "http://h/a b",
            "http://h/a\r\nb",
            "http://h/\0",
            "http://h/ü",
            "http://h/<x>",
            "http://h/\\",
            "http://h/%",
            "http://h/%4",
            "http://h/%zz",
            "http://h/%0a",
            "http://h/%0D",
            "http://h/%00",
            "http://h/%7f",
            "http://h/?%0a",
            "http://h/#x",
            "http://user@h/",
            "http://u:p@h/",
        ] {
            assert!(Url::parse(text).is_err(), "{text:?}");
        }
        assert!(Url::parse(&format!("http://h/{}", "a".repeat(URL_BYTES_MAX))).is_err());
        assert!(Url::parse(&format!("http://{}/", "a".repeat(64))).is_err());
    }

    #[test]
    fn userinfo_is_split_off_and_not_shown() {
        let (url, credentials) = Url::parse_with_userinfo("https://us%40er:se%3acret@h/x").unwrap();
        assert_eq!(url.to_string(), "https://h/x");
        assert_eq!(credentials, Some(Credentials::new("us@er", "se:cret")));
        let error = Url::parse("https://user:secret@h/x").unwrap_err();
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
        for text in [
            "secret@h",
            "user:secret@h",
            "user:sec/secret@h",
            "secret/x@h",
            "ftp://user:secret@h/x",
            "minio://AKIA:secret/cd@store",
            "minio://AKIA:ab/secret@store",
            "https:/user:secret@h",
            "https://user:secret/x@h",
            "https://user:x/secret@h",
            "https://us@er:secret/x@h",
            "https://sec+ret:secret?x@h",
        ] {
            let error = Url::parse(text).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
            assert!(!format!("{error:?}").contains('@'), "{error:?}");
            assert!(!shown(text).contains("secret"), "{text}");
        }
        assert_eq!(without_credentials("https://user:secret/x@h"), "…");
    }

    #[test]
    fn an_address_is_shown_only_if_its_credentials_are_told_apart() {
        for (text, part) in [
            ("store.example.org/a", Some("store.example.org/a")),
            ("minio://AKIA:abcd@store/x", Some("minio://store/x")),
            ("AKIA:ab@cd@store:9000", Some("store:9000")),
            ("minio://AKIA:ab/cd@store", None),
            ("me@x:ab/cd@store", None),
            ("me:ab://cd@store", None),
            ("store.example.org/a@b", None),
            ("https://h/a@b", None),
            ("//me:ab@h", None),
            ("me:ab?c@h", None),
        ] {
            assert_eq!(public_part(text).as_deref(), part, "{text}");
        }
        let error = Url::parse("store.example.org/a@b").unwrap_err();
        assert!(error.to_string().ends_with("write https://HOST…"), "{error}");
        assert_eq!(Url::parse("https://h/a@b").unwrap().path(), "/a@b");
        assert_eq!(without_credentials("https://me:x@h/a@b"), "https://h/a@b");
        assert_eq!(without_credentials("s3://bucket/a@b"), "s3://bucket/a@b");
    }

    #[test]
    fn a_text_without_a_scheme_is_shown_whole() {
        let found = |text: &str| Url::parse(text).unwrap_err();
        for text in ["store.example.org", "store.example.org:9000/x", "127.0.0.1:9000", "localhost"] {
            assert_eq!(found(text), UrlError::NoScheme { found: text.to_owned() });
            assert!(found(text).to_string().ends_with(&format!("write https://{text}")), "{text}");
        }
        for text in ["", "/srv", "http:/h", "ftp://ftp.example.org/debian", "s3:bucket"] {
            assert_eq!(found(text), UrlError::Scheme { found: text.to_owned() });
        }
        let long = format!("ftp://{}", "ä".repeat(200));
        let UrlError::Scheme { found } = found(&long) else { panic!("{long}") };
        assert_eq!((found.chars().count(), found.ends_with("ä…")), (SHOWN_CHARS_MAX + 1, true));
    }

    #[test]
    fn archive_paths_are_joined_to_a_base() {
        let base = Url::parse("http://h/debian/").unwrap();
        for (path, plus, target) in [
            ("pool/main/g/g++/g++_1.0~rc1+b1.deb", Plus::Raw, "/debian/pool/main/g/g++/g++_1.0~rc1+b1.deb"),
            ("pool/g++/x", Plus::Encoded, "/debian/pool/g%2B%2B/x"),
            ("a:b", Plus::Raw, "/debian/a:b"),
            ("a b%20c?d#e", Plus::Raw, "/debian/a%20b%2520c%3Fd%23e"),
            ("ü", Plus::Raw, "/debian/%C3%BC"),
            ("dists/x/", Plus::Raw, "/debian/dists/x/"),
        ] {
            assert_eq!(base.join(path, plus).unwrap().target(), target);
        }
        assert_eq!(Url::parse("http://h?x").unwrap().join("a", Plus::Raw).unwrap().target(), "/a");
        for path in ["", "/", "/a", "a//b", "../a", "a/..", "a/./b", "a\nb", "a\0", "a//"] {
            assert!(base.join(path, Plus::Raw).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn any_url_is_refused_or_free_of_control_characters(
            text in "(https?://)?[\\PC\\r\\n\\t\\x00%:@/\\[\\]]{0,80}",
        ) {
            if let Ok((url, _)) = Url::parse_with_userinfo(&text) {
                prop_assert!(url.to_string().bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert_eq!(Url::parse(&url.to_string()), Ok(url));
            }
        }

        #[test]
        fn joined_paths_decode_to_themselves(path in "[^/\\x00-\\x1f\\x7f]{1,40}") {
            prop_assume!(path != "." && path != "..");
            let url = Url::parse("http://h/").unwrap().join(&path, Plus::Encoded).unwrap();
            let bytes = url.target().as_bytes();
            let (mut decoded, mut at) = (Vec::new(), 1);
            while at < bytes.len() {
                let encoded = bytes[at] == b'%';
                decoded.push(if encoded { decode_hex(&bytes[at + 1..at + 3]).unwrap() } else { bytes[at] });
                at += if encoded { 3 } else { 1 };
            }
            prop_assert_eq!(decoded, path.into_bytes());
        }
    }
}
