//! A request of APT, parsed.

use std::path::PathBuf;

use fullbore_engine::digest::Sha256;
use fullbore_wire::auth::Credentials;
use fullbore_wire::conditional::parse_http_date;
use fullbore_wire::url::{Url, UrlError};

use super::settings::Settings;
use crate::acquire::{ExpectedHashes, Request};

/// Largest file of unknown size without `Maximum-Size`, in bytes. An endless answer must not fill the disk. APT's own
/// method has no limit. A guess.
const PLAIN_BYTES_MAX: u64 = 16 << 30;

/// Characters shown of a wrong address.
const URI_SHOWN: usize = 80;

/// A file that APT requests.
#[derive(Debug, Clone)]
pub(super) struct WantedFile {
    /// The request of APT, as received.
    pub request: Request,
    /// The absolute path to write to.
    pub target: PathBuf,
    /// Its URI, without user and password.
    pub url: Url,
    /// User and password of the URI.
    pub credentials: Option<Credentials>,
    /// What is known of the file before it is fetched.
    pub kind: Kind,
    /// The hashes that APT expects, if any.
    pub expected: ExpectedHashes,
    /// Time of APT's own copy, Unix seconds.
    pub last_modified: Option<i64>,
    /// Whether it is an index (`Index-File`), which caches must revalidate.
    pub is_index: bool,
    /// The suite of an index, by its address.
    pub suite: Option<String>,
    /// The proxy for its host, if APT sends one.
    pub proxy: Option<String>,
}

/// The known properties of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Size and hash: any mirror may send any part.
    Known {
        /// The SHA-256 that the file must have.
        sha256: Sha256,
        /// The size that the file must have, in bytes.
        size: u64,
    },
    /// `InRelease` or `Release`: signed and dated, without a known hash.
    Release {
        /// Largest size that is accepted, in bytes.
        limit_bytes: u64,
    },
    /// Anything else: whole from one host. APT judges it by the hashes of the answer.
    Plain {
        /// Largest size that is accepted, in bytes.
        limit_bytes: u64,
    },
}

/// A request that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// An unsupported URI.
    #[error("{0}")]
    Url(#[from] UrlError),
    /// An address of another method.
    #[error("{0:?} is not an address of this method")]
    OtherMethod(String),
    /// The request has no `Filename`.
    #[error("APT sent no file name to write to")]
    NoFilename,
}

impl WantedFile {
    /// Parses a request. A relative `Filename` (from `apt-get source`) is below the directory where APT was started.
    ///
    /// # Errors
    ///
    /// [`RequestError`] if the address is invalid or of another method, or if there is no `Filename`.
    pub(super) fn new(request: Request, settings: &Settings) -> Result<WantedFile, RequestError> {
        let other = || RequestError::OtherMethod(request.uri.chars().take(URI_SHOWN).collect());
        let plain = settings.method().plain(&request.uri).ok_or_else(other)?;
        // APT encodes much, but no backslash.
        let plain = if settings.sends_encoded() { plain.replace('\\', "%5C") } else { encoded(&plain) };
        let (url, credentials) = Url::parse_with_userinfo(&plain)?;
        if request.filename.as_os_str().is_empty() {
            return Err(RequestError::NoFilename);
        }
        let target = settings.directory().join(&request.filename);
        let message = &request.message;
        let number = |name: &str| message.get(name).and_then(|text| text.parse::<u64>().ok());
        let expected = ExpectedHashes::of(message, settings.forced_hash());
        let sha256 = request.expected_sha256().filter(|_| expected.counts_sha256());
        let is_index = message.get("Index-File") == Some("true");
        let limit_bytes =
            request.expected_size().or(number("Maximum-Size")).filter(|size| *size > 0).unwrap_or(PLAIN_BYTES_MAX);
        let kind = match (sha256, request.expected_size()) {
            (Some(sha256), Some(size)) => Kind::Known { sha256, size },
            (None, None) if is_index && !expected.is_usable() && is_release(&url) => Kind::Release { limit_bytes },
            _ => Kind::Plain { limit_bytes },
        };
        Ok(WantedFile {
            kind,
            expected,
            last_modified: message.get("Last-Modified").and_then(parse_http_date),
            is_index,
            suite: message.get("Target-Base-URI").map(str::to_owned),
            proxy: message.get("Proxy").map(str::to_owned),
            url,
            credentials,
            target,
            request,
        })
    }

    /// Whether its name is a hash, so that every mirror has the same content.
    pub(super) fn is_by_hash(&self) -> bool {
        self.url.path().contains("/by-hash/")
    }

    /// Whether the file is an `InRelease`, by its name.
    pub(super) fn is_inrelease(&self) -> bool {
        self.url.path().ends_with("/InRelease")
    }

    /// Whether it is a Release file or signature, for which APT has a fallback.
    pub(super) fn is_of_release(&self) -> bool {
        is_release(&self.url) || self.is_signature()
    }

    /// Whether the file is a `Release.gpg`, by its name.
    pub(super) fn is_signature(&self) -> bool {
        self.url.path().ends_with("/Release.gpg")
    }
}

fn is_release(url: &Url) -> bool {
    ["/InRelease", "/Release"].iter().any(|name| url.path().ends_with(name))
}

/// Encodes characters that an address cannot contain, for an APT that sends addresses unencoded.
fn encoded(uri: &str) -> String {
    let start = uri.find("://").map_or(0, |at| at + 3);
    let path = uri[start..].find('/').map_or(uri.len(), |at| start + at);
    let mut out = uri[..path].to_owned();
    for byte in uri[path..].bytes() {
        match byte {
            b'!' | b'$'..=b'~' if !b"%<>\\^`{|}".contains(&byte) => out.push(byte.into()),
            _ => out.push_str(&format!("%{byte:02x}")),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::acquire::{Configuration, Message, MethodName};
    use crate::http::settings::Environment;

    const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn settings(items: &[(&str, &str)]) -> Settings {
        let mut configuration = Configuration::new();
        configuration.set("Acquire::Send-URI-Encoded", "1");
        items.iter().for_each(|(name, value)| configuration.set(name, value));
        let environment = Environment { directory: "/p".into(), ..Environment::default() };
        Settings::read(MethodName::new("http"), configuration, environment)
    }

    fn wanted_with(settings: &Settings, uri: &str, fields: &[(&str, &str)]) -> Result<WantedFile, RequestError> {
        let message = Message::new(600, "URI Acquire").with("URI", uri).with("Filename", "f");
        let request = Request::new(fields.iter().fold(message, |message, (name, value)| message.with(name, value)));
        WantedFile::new(request, settings)
    }

    fn wanted(uri: &str, fields: &[(&str, &str)]) -> Result<WantedFile, RequestError> {
        wanted_with(&settings(&[]), uri, fields)
    }

    #[test]
    fn a_backslash_that_apt_leaves_as_it_is_is_encoded() {
        for encodes in ["0", "1"] {
            let settings = settings(&[("Acquire::Send-URI-Encoded", encodes)]);
            let wanted = wanted_with(&settings, r"http://h/pool\x.deb", &[]).unwrap();
            assert!(wanted.url.path().eq_ignore_ascii_case("/pool%5Cx.deb"), "{}", wanted.url.path());
        }
    }

    #[test]
    fn what_is_known_decides_who_may_bring_it() {
        let kind = |uri: &str, fields: &[(&str, &str)]| wanted(uri, fields).unwrap().kind;
        let size = ("Expected-Checksum-FileSize", "7");
        let all = kind("http://h/x.deb", &[("Expected-SHA256", SHA256), ("Expected-MD5Sum", "0"), size]);
        assert_eq!(all, Kind::Known { sha256: Sha256::EMPTY, size: 7 });
        let index = ("Index-File", "true");
        assert_eq!(
            kind("http://h/dists/s/InRelease", &[index, ("Maximum-Size", "10")]),
            Kind::Release { limit_bytes: 10 }
        );
        assert_eq!(kind("http://h/dists/s/Release", &[index]), Kind::Release { limit_bytes: PLAIN_BYTES_MAX });
        let plain = |limit_bytes| Kind::Plain { limit_bytes };
        assert_eq!(kind("http://h/dists/s/Release.gpg", &[]), plain(PLAIN_BYTES_MAX));
        assert_eq!(kind("http://h/x", &[("Expected-SHA256", SHA256)]), plain(PLAIN_BYTES_MAX));
        let sha512 = "ab".repeat(64);
        assert_eq!(kind("http://h/x", &[("Expected-SHA512", &sha512), size]), plain(7));
        assert_eq!(kind("http://h/x", &[("Expected-MD5Sum", "0"), size]), plain(7));
        assert_eq!(kind("http://h/x", &[("Expected-SHA256", "no hash"), size]), plain(7));
        let forced = settings(&[("Acquire::ForceHash", "SHA512")]);
        let forced = wanted_with(&forced, "http://h/x", &[("Expected-SHA256", SHA256), size]).unwrap();
        assert_eq!(forced.kind, plain(7), "APT would not take it by its SHA-256");
    }

    #[test]
    fn credentials_leave_the_address_and_by_hash_names_are_known() {
        let by_hash = wanted("http://u:p%40@h/d/by-hash/SHA256/0", &[]).unwrap();
        assert!(by_hash.is_by_hash() && !by_hash.is_signature());
        assert_eq!(
            (by_hash.url.to_string().as_str(), by_hash.request.uri.as_str()),
            ("http://h/d/by-hash/SHA256/0", "http://u:p%40@h/d/by-hash/SHA256/0")
        );
        assert_eq!(by_hash.credentials.unwrap(), Credentials::new("u", "p@"));
        assert!(wanted("tor+http://h/x", &[]).is_err());
        let nowhere = Request::new(Message::new(600, "URI Acquire").with("URI", "http://h/x"));
        assert_eq!(WantedFile::new(nowhere, &settings(&[])).unwrap_err(), RequestError::NoFilename);
        let raw = settings(&[("Acquire::Send-URI-Encoded", "0")]);
        let raw = wanted_with(&raw, "http://h/a b%20~", &[]).unwrap();
        assert_eq!(raw.url.to_string(), "http://h/a%20b%2520~");
        assert_eq!((by_hash.target.as_path(), by_hash.request.filename.as_path()), (Path::new("/p/f"), Path::new("f")));
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_input_never_panics(uri in "(https?://|[a-z@:/%?#.]|[0-9]|\\PC){0,30}", size in "[0-9-]{0,25}", hash in "[0-9a-fg]{0,130}") {
            let fields = [
                ("Expected-Checksum-FileSize", size.as_str()),
                ("Maximum-Size", &size),
                ("Expected-SHA256", &hash),
                ("Expected-SHA512", &hash),
                ("Last-Modified", &size),
                ("Index-File", "true"),
            ];
            let _ = wanted(&uri, &fields);
        }
    }
}
