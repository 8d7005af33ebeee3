//! Addresses of objects: `s3://bucket/key` as people write it, and the host and path of requests.
//!
//! At the default stores the bucket is part of the host name (virtual-hosted style), unless its name has a dot, which
//! no certificate for `*.s3…` covers. At a custom endpoint it is part of the path, as most such stores expect. Either
//! style can be set explicitly.

use std::net::IpAddr;

use fullbore_wire::connect::Endpoint;
use fullbore_wire::url::{Host, Url, UrlError};

use super::key::encode_path;

/// Where the bucket is placed in the URL of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// By the rules of this module's documentation.
    #[default]
    Auto,
    /// In the path: `https://host/bucket/key`.
    Path,
    /// In the host name: `https://bucket.host/key`.
    Virtual,
}

/// Why an address is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AddressError {
    /// The text is not of the form `s3://bucket/…`.
    #[error("{text:?}: not of the form s3://BUCKET/KEY")]
    Location {
        /// The given text.
        text: String,
    },
    /// The bucket name is invalid (Amazon S3 user guide, "Bucket naming rules", and the older, looser rules).
    #[error("bucket {name:?}: a name has 3 to 255 letters, digits, dots, hyphens and underscores")]
    Bucket {
        /// The given name.
        name: String,
    },
    /// The endpoint is not a URL.
    #[error("endpoint {text:?}: {reason}")]
    Endpoint {
        /// The given text, without credentials.
        text: String,
        /// Why it is invalid.
        reason: String,
    },
    /// The region has characters that no region has.
    #[error("region {name:?}: a name has only letters, digits and hyphens")]
    Region {
        /// The given name.
        name: String,
    },
}

/// An address `s3://bucket/key`; the key may be empty, or a prefix of keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Location {
    /// Name of the bucket, 3 to 255 characters.
    pub bucket: String,
    /// Key or prefix: the text after the slash, not decoded.
    pub key: String,
}

/// Scheme of the address of a bucket or object.
pub const SCHEME: &str = "s3://";

impl Location {
    /// Parses an address. As in the AWS tools, nothing in it is decoded.
    ///
    /// ```
    /// let location = fullbore_s3::Location::parse("s3://films/1927/metropolis.mkv")?;
    /// assert_eq!((&*location.bucket, &*location.key), ("films", "1927/metropolis.mkv"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AddressError::Location` if the text does not begin with `s3://` and a bucket; `AddressError::Bucket` if the
    /// bucket's name is invalid.
    pub fn parse(text: &str) -> Result<Location, AddressError> {
        let rest = text.strip_prefix(SCHEME).ok_or_else(|| AddressError::Location { text: text.to_owned() })?;
        let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        let edges = bucket.starts_with(['.', '-']) || bucket.ends_with(['.', '-']) || bucket.contains("..");
        // Do not show what looks like a password.
        let bucket = bucket.rsplit_once('@').map_or(bucket, |(_, rest)| rest);
        if !(3..=255).contains(&bucket.len()) || !bucket.bytes().all(allowed) || edges {
            return Err(AddressError::Bucket { name: bucket.to_owned() });
        }
        Ok(Location { bucket: bucket.to_owned(), key: key.to_owned() })
    }
}

/// A bucket, with the endpoint that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Name of the bucket.
    pub name: String,
    /// The endpoint to connect to.
    pub endpoint: Endpoint,
    /// Value of the Host field, which the signature covers.
    pub host: String,
    /// Path before the slash of a key: empty, or `/bucket` after the path of the endpoint's URL.
    pub base: String,
    /// Region that requests are signed for, such as `eu-north-1`.
    pub region: String,
    /// Whether the endpoint is Amazon's own, derived from the region. Then another region has another host.
    pub is_default: bool,
}

impl Bucket {
    /// Determines the host and path of a bucket. Without an endpoint it is Amazon's.
    ///
    /// ```
    /// use fullbore_s3::{Addressing, Bucket};
    ///
    /// let bucket = Bucket::new("films", None, "eu-north-1", Addressing::Auto)?;
    /// assert_eq!(bucket.host, "films.s3.eu-north-1.amazonaws.com");
    /// assert_eq!(bucket.path(Some("a b")), "/a%20b");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `AddressError::Bucket`, `AddressError::Region` or `AddressError::Endpoint` for the value that is invalid.
    pub fn new(
        name: &str,
        endpoint: Option<&str>,
        region: &str,
        addressing: Addressing,
    ) -> Result<Bucket, AddressError> {
        if !is_region(region) {
            return Err(AddressError::Region { name: region.to_owned() });
        }
        let suffix = amazons(region);
        let text = endpoint.map_or_else(|| format!("https://s3.{region}.{suffix}"), str::to_owned);
        // Do not show a password in it.
        let shown = text.rsplit_once('@').map_or(text.as_str(), |(_, rest)| rest);
        let bad = |reason: String| AddressError::Endpoint { text: shown.to_owned(), reason };
        let url = Url::parse(&text).map_err(|error| match error {
            UrlError::UserInfo { .. } => {
                bad("put credentials into the environment or a profile, not into the URL".into())
            }
            error => bad(error.to_string()),
        })?;
        if url.target().contains('?') {
            return Err(bad("has a query".into()));
        }
        let is_address = matches!(url.host(), Host::Address(IpAddr::V4(_) | IpAddr::V6(_)));
        let virtual_host = match addressing {
            Addressing::Path => false,
            Addressing::Virtual if is_address => {
                return Err(bad("a bucket cannot be part of a numeric address; --addressing path".into()));
            }
            Addressing::Virtual => true,
            Addressing::Auto => endpoint.is_none() && !name.contains(['.', '_']),
        };
        let mut base = url.path().trim_end_matches('/').to_owned();
        let (host_field, host) = if virtual_host {
            (format!("{name}.{}", url.host_field()), format!("{name}.{}", url.host()))
        } else {
            base.push('/');
            encode_path(name, &mut base);
            (url.host_field(), url.host().to_string())
        };
        Ok(Bucket {
            name: name.to_owned(),
            endpoint: Endpoint { scheme: url.scheme(), host, port: url.port(), proxy: None },
            host: host_field,
            base,
            region: region.to_owned(),
            is_default: endpoint.is_none(),
        })
    }

    /// The same bucket in virtual-hosted style; `None` if it is there already, or the host is an IP address.
    pub fn as_virtual_host(&self) -> Option<Bucket> {
        let mut in_path = String::from("/");
        encode_path(&self.name, &mut in_path);
        let base = self.base.strip_suffix(&in_path)?.to_owned();
        if self.endpoint.host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok() {
            return None;
        }
        let endpoint = Endpoint { host: format!("{}.{}", self.name, self.endpoint.host), ..self.endpoint.clone() };
        Some(Bucket { endpoint, host: format!("{}.{}", self.name, self.host), base, ..self.clone() })
    }

    /// The same bucket in another region, which has another host at Amazon; `None` if the region is invalid.
    pub fn in_region(&self, region: &str) -> Option<Bucket> {
        if !is_region(region) {
            return None;
        }
        if !self.is_default {
            return Some(Bucket { region: region.to_owned(), ..self.clone() });
        }
        let is_virtual = self.host.starts_with(&format!("{}.", self.name));
        let addressing = if is_virtual { Addressing::Virtual } else { Addressing::Path };
        let mut moved = Bucket::new(&self.name, None, region, addressing).ok()?;
        moved.endpoint.proxy.clone_from(&self.endpoint.proxy);
        Some(moved)
    }

    /// The path of an object, or of the bucket itself without a key.
    pub fn path(&self, key: Option<&str>) -> String {
        let mut path = self.base.clone();
        // The bucket itself: `/` in virtual-hosted style, `/bucket` otherwise.
        match key {
            None if path.is_empty() => path.push('/'),
            None => {}
            Some(key) => {
                path.push('/');
                encode_path(key, &mut path);
            }
        }
        path
    }

    /// The store of the bucket, independent of the region, which may be known only after the first answer. Names of
    /// Amazon's buckets are unique among all regions of a partition.
    pub fn store(&self) -> &str {
        if self.is_default { amazons(&self.region) } else { &self.host }
    }
}

/// Whether a text can be a region's name. It becomes part of signatures and host names.
pub(crate) fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

/// Suffix of Amazon's host names in a region.
fn amazons(region: &str) -> &'static str {
    if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_taken_as_they_are_written() {
        let parsed = Location::parse("s3://my-bucket/a b/%41+c").unwrap();
        assert_eq!((parsed.bucket.as_str(), parsed.key.as_str()), ("my-bucket", "a b/%41+c"));
        assert_eq!(Location::parse("s3://my-bucket").unwrap().key, "");
        for bad in
            ["my-bucket/a", "s3:/b/c", "s3://", "s3:///key", "s3://a/b", "s3://a..b/c", "s3://-bcd/e", "s3://ab c/d"]
        {
            assert!(Location::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_store_is_the_same_in_all_regions() {
        let store =
            |endpoint, region| Bucket::new("bucket", endpoint, region, Addressing::Auto).unwrap().store().to_owned();
        assert_eq!(store(None, "us-east-1"), store(None, "eu-west-1"));
        assert_ne!(store(None, "us-east-1"), store(None, "cn-north-1"));
        let own = Some("https://store.example:9000");
        assert_eq!(store(own, "us-east-1"), "store.example:9000");
    }

    #[test]
    fn buckets_are_in_the_host_or_in_the_path() {
        let of = |name: &str, endpoint, region, addressing| {
            let bucket = Bucket::new(name, endpoint, region, addressing).unwrap();
            let Endpoint { host, port, .. } = bucket.endpoint.clone();
            (host, port, bucket.host.clone(), bucket.path(Some("a b")), bucket.path(None))
        };
        let text = |host: &str, port, field: &str, object: &str, bucket: &str| {
            (host.to_owned(), port, field.to_owned(), object.to_owned(), bucket.to_owned())
        };
        assert_eq!(
            of("bucket", None, "eu-west-1", Addressing::Auto),
            text("bucket.s3.eu-west-1.amazonaws.com", 443, "bucket.s3.eu-west-1.amazonaws.com", "/a%20b", "/")
        );
        assert_eq!(
            of("dotted.bucket", None, "cn-north-1", Addressing::Auto),
            text(
                "s3.cn-north-1.amazonaws.com.cn",
                443,
                "s3.cn-north-1.amazonaws.com.cn",
                "/dotted.bucket/a%20b",
                "/dotted.bucket"
            )
        );
        assert_eq!(
            of("bucket", Some("http://127.0.0.1:7070/s3/"), "us-east-1", Addressing::Auto),
            text("127.0.0.1", 7070, "127.0.0.1:7070", "/s3/bucket/a%20b", "/s3/bucket")
        );
        assert_eq!(
            of("bucket", Some("https://store.example:9000"), "x", Addressing::Virtual),
            text("bucket.store.example", 9000, "bucket.store.example:9000", "/a%20b", "/")
        );
        assert!(Bucket::new("bucket", Some("http://127.0.0.1"), "x", Addressing::Virtual).is_err());
        assert!(Bucket::new("bucket", Some("store.example"), "x", Addressing::Auto).is_err());
        assert!(Bucket::new("bucket", None, "x/y", Addressing::Auto).is_err());
        let secret = Bucket::new("bucket", Some("http://me:pass@store.example"), "x", Addressing::Auto);
        let error = secret.unwrap_err().to_string();
        assert!(error.contains("store.example") && error.contains("profile") && !error.contains("pass@"), "{error}");
    }
}
