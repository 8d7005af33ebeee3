//! A request of APT, parsed.

use std::path::{Path, PathBuf};

use fullbore_engine::digest::Sha256;
use fullbore_wire::auth::Credentials;
use fullbore_wire::conditional::parse_http_date;
use fullbore_wire::url::{Url, UrlError};

use crate::acquire::Request;

/// Largest file of unknown size without `Maximum-Size`, in bytes: an endless answer must not fill the disk. APT's own
/// method has no limit. A guess.
const PLAIN_BYTES_MAX: u64 = 16 << 30;

/// Hashes that are too weak to accept a file by.
const WEAK: [&str; 2] = ["Expected-MD5Sum", "Expected-SHA1"];

/// A file that APT requests.
#[derive(Debug, Clone)]
pub(super) struct WantedFile {
    /// The request.
    pub request: Request,
    /// The path to write; absolute.
    pub target: PathBuf,
    /// Its URI, without user and password.
    pub url: Url,
    /// User and password of the URI.
    pub credentials: Option<Credentials>,
    /// Its known properties.
    pub kind: Kind,
    /// Time of APT's own copy, Unix seconds.
    pub last_modified: Option<i64>,
    /// `Index-File`: caches must revalidate it.
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
        /// Its SHA-256.
        sha256: Sha256,
        /// Its size in bytes.
        size: u64,
    },
    /// `InRelease` or `Release`: signed and dated, without a known hash.
    Release {
        /// Largest size in bytes.
        limit_bytes: u64,
    },
    /// Anything else: whole from one host.
    Plain {
        /// Largest size in bytes.
        limit_bytes: u64,
        /// Its SHA-256, if known without the size.
        sha256: Option<Sha256>,
        /// Its SHA-512, if no SHA-256 is known.
        sha512: Option<[u8; 64]>,
    },
}

/// A request that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum RequestError {
    /// An unsupported URI.
    #[error("{0}")]
    Url(#[from] UrlError),
    /// Only MD5 or SHA-1 is known.
    #[error("only weak hashes (MD5, SHA-1) are known of this file; fullbore accepts files by SHA-256 or SHA-512")]
    OnlyWeak,
    /// No `Filename`.
    #[error("APT names no file to write to")]
    NoFilename,
}

impl WantedFile {
    /// Parses a request. A relative `Filename` (from `apt-get source`) is below `directory`, where APT was started.
    pub fn new(request: Request, directory: &Path) -> Result<WantedFile, RequestError> {
        let (url, credentials) = Url::parse_with_userinfo(&request.uri)?;
        if request.filename.as_os_str().is_empty() {
            return Err(RequestError::NoFilename);
        }
        let target = directory.join(&request.filename);
        let message = &request.message;
        let number = |name: &str| message.get(name).and_then(|text| text.parse::<u64>().ok());
        let sha256 = request.expected_sha256();
        let sha512 = message.get("Expected-SHA512").and_then(hex);
        let is_index = message.get("Index-File") == Some("true");
        let limit_bytes =
            request.expected_size().or(number("Maximum-Size")).filter(|size| *size > 0).unwrap_or(PLAIN_BYTES_MAX);
        let kind = match (sha256, request.expected_size()) {
            (Some(sha256), Some(size)) => Kind::Known { sha256, size },
            (None, _) if sha512.is_none() && WEAK.iter().any(|name| message.get(name).is_some()) => {
                return Err(RequestError::OnlyWeak);
            }
            (None, None) if is_index && sha512.is_none() && is_release(&url) => Kind::Release { limit_bytes },
            _ => Kind::Plain { limit_bytes, sha256, sha512: sha512.filter(|_| sha256.is_none()) },
        };
        Ok(WantedFile {
            kind,
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
    pub fn is_by_hash(&self) -> bool {
        self.url.path().contains("/by-hash/")
    }

    /// Whether it is an `InRelease`.
    pub fn is_inrelease(&self) -> bool {
        self.url.path().ends_with("/InRelease")
    }

    /// Whether it is a Release file or signature, for which APT has a fallback.
    pub fn is_of_release(&self) -> bool {
        is_release(&self.url) || self.is_signature()
    }

    /// Whether it is `Release.gpg`.
    pub fn is_signature(&self) -> bool {
        self.url.path().ends_with("/Release.gpg")
    }
}

fn is_release(url: &Url) -> bool {
    ["/InRelease", "/Release"].iter().any(|name| url.path().ends_with(name))
}

/// 128 hexadecimal digits.
fn hex(text: &str) -> Option<[u8; 64]> {
    let digits = text.as_bytes();
    let mut bytes = [0; 64];
    if digits.len() != 128 {
        return None;
    }
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |digit: u8| char::from(digit).to_digit(16);
        *byte = u8::try_from(digit(pair[0])? << 4 | digit(pair[1])?).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acquire::Message;

    const SHA256: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn wanted(uri: &str, fields: &[(&str, &str)]) -> Result<WantedFile, RequestError> {
        let message = Message::new(600, "URI Acquire").with("URI", uri).with("Filename", "f");
        let request = Request::new(fields.iter().fold(message, |message, (name, value)| message.with(name, value)));
        WantedFile::new(request, Path::new("/p"))
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
        let plain = |sha256, limit_bytes| Kind::Plain { limit_bytes, sha256, sha512: None };
        assert_eq!(kind("http://h/dists/s/Release.gpg", &[]), plain(None, PLAIN_BYTES_MAX));
        assert_eq!(kind("http://h/x", &[("Expected-SHA256", SHA256)]), plain(Some(Sha256::EMPTY), PLAIN_BYTES_MAX));
        let sha512 = "ab".repeat(64);
        let other = kind("http://h/x", &[("Expected-SHA512", &sha512), size]);
        assert_eq!(other, Kind::Plain { limit_bytes: 7, sha256: None, sha512: Some([0xab; 64]) });
        let weak = wanted("http://h/x", &[("Expected-MD5Sum", "0"), size]);
        assert_eq!(weak.unwrap_err(), RequestError::OnlyWeak);
    }

    #[test]
    fn names_and_credentials() {
        let by_hash = wanted("http://u:p%40@h/d/by-hash/SHA256/0", &[]).unwrap();
        assert!(by_hash.is_by_hash() && !by_hash.is_signature());
        assert_eq!(
            (by_hash.url.to_string().as_str(), by_hash.request.uri.as_str()),
            ("http://h/d/by-hash/SHA256/0", "http://u:p%40@h/d/by-hash/SHA256/0")
        );
        assert_eq!(by_hash.credentials.unwrap(), Credentials::new("u", "p@"));
        assert!(wanted("tor+http://h/x", &[]).is_err());
        let nowhere = Request::new(Message::new(600, "URI Acquire").with("URI", "http://h/x"));
        assert_eq!(WantedFile::new(nowhere, Path::new("/")).unwrap_err(), RequestError::NoFilename);
        assert_eq!((by_hash.target.as_path(), by_hash.request.filename.as_path()), (Path::new("/p/f"), Path::new("f")));
    }

    proptest::proptest! {
        #[test]
        fn never_panics(uri in "(https?://|[a-z@:/%?#.]|[0-9]|\\PC){0,30}", size in "[0-9-]{0,25}", hash in "[0-9a-fg]{0,130}") {
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
