//! Redirects: where a Location leads (RFC 3986, section 5), and where it must not lead.
//!
//! These are refused: line breaks and other controls, raw or encoded (CVE-2019-3462), the step from https to http,
//! userinfo, loops, and long chains. Nothing is ever decoded.

use crate::url::{Scheme, URL_BYTES_MAX, Url, UrlError, is_path_byte, push_encoded, split_scheme};

/// Maximum number of consecutive redirects for one file. Real archives need one or two (deb.example.org to a CDN, a
/// login to a bucket); RFC 2068 recommended 5.
pub(crate) const REDIRECTS_MAX: usize = 5;

/// Why a redirect is not followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectError {
    /// The answer has no Location.
    #[error("redirect from {from} without a Location")]
    NoLocation {
        /// The redirecting URL.
        from: String,
    },
    /// The Location has a line break, NUL or another control character, raw or encoded.
    #[error("redirect from {from} holds a control character: {location:?}")]
    Control {
        /// The redirecting URL.
        from: String,
        /// The Location, cut to 100 characters.
        location: String,
    },
    /// The redirect leads from https to http.
    #[error("redirect from {from} would leave https for {to}")]
    Downgrade {
        /// The redirecting URL.
        from: String,
        /// Target of the redirect.
        to: String,
    },
    /// The redirect leads back to a URL of the same chain.
    #[error("redirect loop: {to} was asked before")]
    Loop {
        /// Target of the redirect.
        to: String,
    },
    /// The chain has more than `REDIRECTS_MAX` redirects.
    #[error("more than {REDIRECTS_MAX} redirects, the last from {from}")]
    TooMany {
        /// The redirecting URL.
        from: String,
    },
    /// The Location is not an accepted URL.
    #[error("redirect from {from}: {error}")]
    Url {
        /// The redirecting URL.
        from: String,
        /// Why the URL is not accepted.
        error: UrlError,
    },
}

/// Whether a status is a redirect. 300, 304, 305 and 306 are not.
pub fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

/// The chain of one file's redirects.
#[derive(Clone, Debug)]
pub struct Redirects {
    /// First the requested URL, last the present one. Never empty.
    chain: Vec<Url>,
}

impl Redirects {
    /// Starts a chain of redirects at the requested URL.
    pub fn from(url: Url) -> Self {
        Self { chain: vec![url] }
    }

    /// The URL to request now: the last of the chain.
    pub fn current(&self) -> &Url {
        self.chain.last().expect("the chain begins with one URL")
    }

    /// Whether no redirect was followed yet.
    pub(crate) fn is_at_first(&self) -> bool {
        self.chain.len() == 1
    }

    /// The URL that was requested first.
    pub fn first(&self) -> &Url {
        self.chain.first().expect("the chain begins with one URL")
    }

    /// Follows a redirect and returns the URL to request.
    ///
    /// # Errors
    /// [`RedirectError::NoLocation`] without a Location; [`RedirectError::Loop`] back to a URL of the chain;
    /// [`RedirectError::TooMany`] beyond `REDIRECTS_MAX`; otherwise as [`resolve`].
    pub fn follow(&mut self, location: Option<&str>) -> Result<&Url, RedirectError> {
        let current = self.current();
        let from = shown(current);
        let location = location.ok_or_else(|| RedirectError::NoLocation { from: from.clone() })?;
        let next = resolve(current, location)?;
        if self.chain.contains(&next) {
            return Err(RedirectError::Loop { to: shown(&next) });
        }
        if self.chain.len() > REDIRECTS_MAX {
            return Err(RedirectError::TooMany { from });
        }
        self.chain.push(next);
        Ok(self.current())
    }
}

/// Resolves a Location against the URL that it answered.
///
/// # Errors
/// [`RedirectError::Control`] if `location` has a control character; [`RedirectError::Downgrade`] from `https` to
/// `http`; [`RedirectError::Url`] if the result is not a URL.
pub fn resolve(base: &Url, location: &str) -> Result<Url, RedirectError> {
    let from = shown(base);
    let refused = |error| RedirectError::Url { from: from.clone(), error };
    if location.len() > URL_BYTES_MAX {
        return Err(refused(UrlError::TooLong { bytes: location.len() }));
    }
    let location = location.trim_matches([' ', '\t']);
    let control =
        || RedirectError::Control { from: from.clone(), location: without_query(location).chars().take(100).collect() };
    if location.chars().any(char::is_control) {
        return Err(control());
    }
    // RFC 9110, 10.2.2: a fragment is for the reader of a document, not for the server.
    let location = location.split_once('#').map_or(location, |(before, _)| before);

    let next = if split_scheme(location).is_some() {
        Url::parse(&tidy_absolute(location))
    } else if let Some(authority) = location.strip_prefix("//") {
        let scheme = base.scheme().as_str();
        Url::parse(&tidy_absolute(&format!("{scheme}://{authority}")))
    } else if has_scheme(location) {
        return Err(refused(UrlError::Scheme { found: location.chars().take_while(|&c| c != ':').take(16).collect() }));
    } else {
        base.with_target(relative_target(base, &encode(location)))
    };
    let next = next.map_err(|error| match error {
        UrlError::PercentEncoding { .. } if encodes_control(location) => control(),
        other => refused(other),
    })?;
    // Dot segments of absolute and scheme-relative forms are removed as well (RFC 3986, 5.2.2).
    let next = next.with_target(remove_dot_segments(next.target())).map_err(refused)?;
    if base.scheme() == Scheme::Https && next.scheme() == Scheme::Http {
        return Err(RedirectError::Downgrade { from, to: shown(&next) });
    }
    Ok(next)
}

/// A URL for error messages, without its query, which may grant access to any reader.
fn shown(url: &Url) -> String {
    without_query(&url.to_string()).to_owned()
}

fn without_query(address: &str) -> &str {
    address.split('?').next().unwrap_or_default()
}

/// Whether the reference has a scheme: letters before a colon, before any slash.
fn has_scheme(reference: &str) -> bool {
    let end = reference.find([':', '/', '?']).unwrap_or(reference.len());
    let (scheme, rest) = reference.split_at(end);
    rest.starts_with(':')
        && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte))
}

/// RFC 3986, 5.2.2 and 5.2.3, for references without scheme and authority.
fn relative_target(base: &Url, reference: &str) -> String {
    if reference.is_empty() {
        return base.target().to_owned();
    }
    if reference.starts_with('/') {
        return reference.to_owned();
    }
    if reference.starts_with('?') {
        return format!("{}{reference}", base.path());
    }
    let directory = base.path().rfind('/').map_or("/", |slash| &base.path()[..=slash]);
    format!("{directory}{reference}")
}

/// RFC 3986, 5.2.4, on the path before a query.
fn remove_dot_segments(target: &str) -> String {
    let (path, query) = match target.find('?') {
        Some(mark) => target.split_at(mark),
        None => (target, ""),
    };
    let mut kept: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let last = segments.peek().is_none();
        match segment {
            "." if !last => {}
            "." => kept.push(""),
            ".." => {
                kept.pop();
                if last {
                    kept.push("");
                }
            }
            _ => kept.push(segment),
        }
    }
    format!("/{}{query}", kept.join("/"))
}

/// Percent-encodes bytes behind the authority that servers wrongly leave raw.
fn tidy_absolute(url: &str) -> String {
    let authority_start = url.find("://").map_or(0, |at| at + 3);
    let path_start = url[authority_start..].find(['/', '?']).map_or(url.len(), |at| authority_start + at);
    let (before, path) = url.split_at(path_start);
    format!("{before}{}", encode(path))
}

/// Percent-encodes spaces, brackets, UTF-8 and the like; existing encodings stay.
fn encode(path: &str) -> String {
    let mut encoded = String::with_capacity(path.len());
    for byte in path.bytes() {
        match byte {
            b'/' | b'?' | b'%' => encoded.push(byte as char),
            _ if is_path_byte(byte) => encoded.push(byte as char),
            _ => push_encoded(&mut encoded, byte),
        }
    }
    encoded
}

fn encodes_control(location: &str) -> bool {
    let bytes = location.as_bytes();
    bytes.windows(3).any(|window| {
        window[0] == b'%' && crate::url::decode_hex(&window[1..]).is_some_and(|byte| byte.is_ascii_control())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    /// RFC 3986, section 5.4, with our base in place of `http://a/b/c/d;p?q`; the
    /// fragment is dropped, as for any redirect.
    #[test]
    fn references_resolve_as_in_rfc_3986() {
        let base = url("http://a/b/c/d;p?q");
        for (reference, resolved) in [
            ("g", "http://a/b/c/g"),
            ("./g", "http://a/b/c/g"),
            ("g/", "http://a/b/c/g/"),
            ("/g", "http://a/g"),
            ("//g", "http://g/"),
            ("?y", "http://a/b/c/d;p?y"),
            ("g?y", "http://a/b/c/g?y"),
            ("#s", "http://a/b/c/d;p?q"),
            ("g#s", "http://a/b/c/g"),
            ("g?y#s", "http://a/b/c/g?y"),
            (";x", "http://a/b/c/;x"),
            ("g;x", "http://a/b/c/g;x"),
            ("", "http://a/b/c/d;p?q"),
            (".", "http://a/b/c/"),
            ("./", "http://a/b/c/"),
            ("..", "http://a/b/"),
            ("../", "http://a/b/"),
            ("../g", "http://a/b/g"),
            ("../..", "http://a/"),
            ("../../g", "http://a/g"),
            ("../../../g", "http://a/g"),
            ("../../../../g", "http://a/g"),
            ("/./g", "http://a/g"),
            ("/../g", "http://a/g"),
            ("g.", "http://a/b/c/g."),
            (".g", "http://a/b/c/.g"),
            ("g..", "http://a/b/c/g.."),
            ("..g", "http://a/b/c/..g"),
            ("./../g", "http://a/b/g"),
            ("./g/.", "http://a/b/c/g/"),
            ("g/./h", "http://a/b/c/g/h"),
            ("g/../h", "http://a/b/c/h"),
            ("g;x=1/../y", "http://a/b/c/y"),
            ("g?y/../x", "http://a/b/c/g?y/../x"),
            ("HTTPS://Other:443/x/../y", "https://other/y"),
        ] {
            assert_eq!(resolve(&base, reference).unwrap().to_string(), resolved, "{reference:?}");
        }
        for reference in ["g:h", "mailto:x", "ftp://a/", "file:///etc/passwd", "http:g", "javascript:x"] {
            assert!(matches!(resolve(&base, reference), Err(RedirectError::Url { .. })), "{reference:?}");
        }
    }

    #[test]
    fn a_redirect_injects_no_line() {
        let base = url("http://deb.example.org/debian/pool/x.deb");
        for location in [
            "/new\r\n201 URI Done",
            "/new\n",
            "\n/new",
            "/a\0b",
            "/a\u{7f}",
            "/new%0a201%20URI%20Done%0aSHA256-Hash:%20aa",
            "/new%0D%0A",
            "/%00",
            "/%1b[31m",
            "/?q=%0a",
            "new%0a",
            "//other/%0a",
            "http://other/%0a",
            "http://other%0a/",
            "http://other\r\n/",
            "/a\u{85}b",
        ] {
            let answer = resolve(&base, location);
            assert!(answer.is_err(), "{location:?} gave {answer:?}");
            let text = answer.unwrap_err().to_string();
            assert!(!text.contains(char::is_control), "the message itself injects: {text:?}");
        }
        // Encoded twice stays encoded: we never decode.
        assert_eq!(resolve(&base, "/a%250ab").unwrap().target(), "/a%250ab");
    }

    #[test]
    fn careless_servers_are_understood() {
        let base = url("http://h/d/");
        for (location, target) in [
            ("/a b", "/a%20b"),
            ("x[1].deb", "/d/x%5B1%5D.deb"),
            ("/ü", "/%C3%BC"),
            (" /x\t", "/x"),
            ("/g++_1~2:3", "/g++_1~2:3"),
        ] {
            assert_eq!(resolve(&base, location).unwrap().target(), target);
        }
        for location in ["http://user:secret@h/x", "//u@h/", "/%zz", "http:///x", "http://h:0/"] {
            let error = resolve(&base, location).unwrap_err();
            assert!(!error.to_string().contains("secret"));
        }
    }

    #[test]
    fn chains_end() {
        let mut chain = Redirects::from(url("http://h/0"));
        for step in 1..=REDIRECTS_MAX {
            chain.follow(Some(&format!("/{step}"))).unwrap();
        }
        assert!(matches!(chain.follow(Some("/6")), Err(RedirectError::TooMany { .. })));
        let mut chain = Redirects::from(url("http://h/0"));
        chain.follow(Some("/1")).unwrap();
        assert!(matches!(chain.follow(Some("http://H:80/0")), Err(RedirectError::Loop { .. })));
        assert!(matches!(chain.follow(None), Err(RedirectError::NoLocation { .. })));
        assert_eq!(chain.current().target(), "/1");
    }

    #[test]
    fn errors_keep_to_themselves_what_opens_an_address() {
        let signed = "http://store/x?signature=secret";
        let mut chain = Redirects::from(url("http://h/0"));
        chain.follow(Some(signed)).unwrap();
        let around = chain.follow(Some(signed)).unwrap_err();
        let down = resolve(&url("https://h/0"), signed).unwrap_err();
        let injected = resolve(&url("http://h/0"), "http://store/x?signature=secret%0a").unwrap_err();
        for error in [around, down, injected] {
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn https_is_not_left_and_credentials_stay_home() {
        let secure = url("https://h/0");
        assert!(matches!(resolve(&secure, "http://h/0"), Err(RedirectError::Downgrade { .. })));
        assert!(resolve(&secure, "//other/0").is_ok());
        for (location, may) in [
            ("/x", true),
            ("https://H:443/y", true),
            ("https://h:444/", false),
            ("https://other/", false),
            ("https://h.other/", false),
        ] {
            assert_eq!(resolve(&secure, location).unwrap().same_origin(&secure), may, "{location}");
        }
        let upgraded = resolve(&url("http://h/0"), "https://h/0").unwrap();
        assert!(!upgraded.same_origin(&url("http://h/0")));
    }

    proptest! {
        #[test]
        fn any_redirect_is_refused_or_gives_a_clean_target(location in "[\\PC\\r\\n\\x00%/.?#:@]{0,60}") {
            if let Ok(next) = resolve(&url("http://a/b/c?d"), &location) {
                prop_assert!(next.to_string().bytes().all(|byte| byte.is_ascii_graphic()));
                prop_assert!(!next.path().split('/').any(|part| part == "." || part == ".."));
            }
        }
    }
}
