//! Signature Version 4 of requests, in their header fields ("Authenticating Requests: Using the Authorization Header",
//! Amazon S3 API reference).
//!
//! It is implemented here because every field must be signed, including checksums and metadata, and a request that is
//! repeated or waits for a connection needs a fresh signature. rusty-s3 signs URLs ahead of time, without fields. The
//! cost is four HMACs a day and two hashes per request.

use std::sync::{Mutex, PoisonError};

use aws_lc_rs::hmac;
use fullbore_engine::digest::Sha256;
use jiff::Timestamp;

use super::key::encode_query;

/// Used instead of the content's hash if the signature does not cover the content.
pub(crate) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";

/// Credentials for signing. Nothing shows the secrets, `Debug` included.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    /// Public half of the key pair, which requests name.
    pub access_key_id: String,
    /// Secret half of the key pair, which signs and is never sent.
    pub secret_access_key: String,
    /// Token of temporary credentials.
    pub session_token: Option<String>,
    /// Expiry of temporary credentials, in Unix seconds.
    pub expires: Option<i64>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Identity { access_key_id, expires, .. } = self;
        write!(f, "Identity({access_key_id:?}, secrets hidden, expires {expires:?})")
    }
}

/// The parts of a request that its signature covers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Signable<'a> {
    /// Method of the request, in capitals.
    pub method: &'a str,
    /// Path, encoded as it is sent.
    pub path: &'a str,
    /// Query parameters, not encoded.
    pub query: &'a [(&'a str, &'a str)],
    /// Value of the header field `Host`.
    pub host: &'a str,
    /// All other fields to sign; values without surrounding space.
    pub fields: &'a [(String, String)],
    /// SHA-256 of the content in hex, or [`UNSIGNED_PAYLOAD`].
    pub payload: &'a str,
}

/// Signs requests to one service. The key of the present day is cached.
#[derive(Debug)]
pub(crate) struct Signer {
    service: &'static str,
    day: Mutex<Option<Day>>,
}

/// A signing key, with its inputs.
struct Day {
    identity: Identity,
    region: String,
    date: String,
    key: hmac::Key,
}

impl std::fmt::Debug for Day {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Day({}, {})", self.date, self.region)
    }
}

impl Signer {
    /// Creates a signer for this service: `s3` or `sts`.
    pub(crate) fn new(service: &'static str) -> Signer {
        Signer { service, day: Mutex::new(None) }
    }

    /// Returns the value of `Authorization`. `fields` must contain `x-amz-date` with [`amz_date`] of the same time, and
    /// `x-amz-security-token` if the identity has a token.
    pub(crate) fn authorization(&self, request: &Signable<'_>, identity: &Identity, region: &str, now: i64) -> String {
        let time = amz_date(now);
        let date = &time[..8];
        let mut fields: Vec<(String, &str)> =
            request.fields.iter().map(|(name, value)| (name.to_ascii_lowercase(), value.as_str())).collect();
        fields.push(("host".to_owned(), request.host));
        fields.sort();
        let mut names = String::new();
        for (name, _) in &fields {
            if !names.is_empty() {
                names.push(';');
            }
            names.push_str(name);
        }
        let mut canonical = String::with_capacity(1024);
        for part in [request.method, "\n", request.path, "\n", &query_string(request.query), "\n"] {
            canonical.push_str(part);
        }
        for (name, value) in &fields {
            for part in [name, ":", value.trim(), "\n"] {
                canonical.push_str(part);
            }
        }
        for part in ["\n", &names, "\n", request.payload] {
            canonical.push_str(part);
        }
        let scope = format!("{date}/{region}/{}/aws4_request", self.service);
        let hash = Sha256::of(canonical.as_bytes()).to_hex();
        let text = format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{}", hash.as_str());
        let signature = hmac::sign(&self.key(identity, region, date), text.as_bytes());
        format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope},SignedHeaders={names},Signature={}",
            identity.access_key_id,
            hex(signature.as_ref())
        )
    }

    fn key(&self, identity: &Identity, region: &str, date: &str) -> hmac::Key {
        let mut day = self.day.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(day) = day.as_ref()
            && (&day.identity, day.region.as_str(), day.date.as_str()) == (identity, region, date)
        {
            return day.key.clone();
        }
        let secret = format!("AWS4{}", identity.secret_access_key);
        let mut key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        for part in [date, region, self.service, "aws4_request"] {
            key = hmac::Key::new(hmac::HMAC_SHA256, hmac::sign(&key, part.as_bytes()).as_ref());
        }
        *day = Some(Day {
            identity: identity.clone(),
            region: region.to_owned(),
            date: date.to_owned(),
            key: key.clone(),
        });
        key
    }
}

/// Query parameters as they are sent and signed: encoded, and sorted by name.
pub(crate) fn query_string(parameters: &[(&str, &str)]) -> String {
    let mut encoded: Vec<(String, String)> = parameters
        .iter()
        .map(|(name, value)| {
            let (mut encoded_name, mut encoded_value) = (String::new(), String::new());
            encode_query(name, &mut encoded_name);
            encode_query(value, &mut encoded_value);
            (encoded_name, encoded_value)
        })
        .collect();
    encoded.sort();
    let mut text = String::new();
    for (name, value) in encoded {
        if !text.is_empty() {
            text.push('&');
        }
        for part in [&name, "=", &value] {
            text.push_str(part);
        }
    }
    text
}

/// A time as in signatures: `20130524T000000Z`. Times out of range become the epoch.
pub(crate) fn amz_date(unix_s: i64) -> String {
    let time = Timestamp::from_second(unix_s).unwrap_or(Timestamp::UNIX_EPOCH);
    time.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Lower-case hex.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|byte| [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]])
        .map(char::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    /// 2013-05-24T00:00:00Z, the time of the examples in the API reference.
    const THEN: i64 = 1_369_353_600;

    fn identity() -> Identity {
        Identity {
            access_key_id: "AKIAIOSFODNN7EXAMPLE".into(),
            secret_access_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".into(),
            session_token: None,
            expires: None,
        }
    }

    fn signature(method: &str, path: &str, query: &[(&str, &str)], fields: &[(&str, &str)], payload: &str) -> String {
        let mut all = vec![("x-amz-date", "20130524T000000Z"), ("x-amz-content-sha256", payload)];
        all.extend(fields);
        let fields: Vec<_> = all.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let request =
            Signable { method, path, query, host: "examplebucket.s3.amazonaws.com", fields: &fields, payload };
        let value = Signer::new("s3").authorization(&request, &identity(), "us-east-1", THEN);
        value.rsplit_once('=').unwrap().1.to_owned()
    }

    /// The four examples of the API reference.
    #[test]
    fn signatures_are_those_of_the_published_examples() {
        assert_eq!(
            signature("GET", "/test.txt", &[], &[("Range", "bytes=0-9")], EMPTY),
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
        );
        assert_eq!(
            signature(
                "PUT",
                "/test%24file.text",
                &[],
                &[("Date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
                "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
            ),
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
        );
        assert_eq!(
            signature("GET", "/", &[("lifecycle", "")], &[], EMPTY),
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"
        );
        assert_eq!(
            signature("GET", "/", &[("prefix", "J"), ("max-keys", "2")], &[], EMPTY),
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"
        );
    }

    #[test]
    fn nothing_shows_a_secret() {
        let mut identity = identity();
        identity.session_token = Some("the-token".into());
        let shown = format!("{identity:?}");
        assert!(!shown.contains("wJalr") && !shown.contains("the-token"), "{shown}");
        let signer = Signer::new("s3");
        signer.key(&identity, "r", "20130524");
        assert!(!format!("{signer:?}").contains("wJalr"));
    }

    #[test]
    fn another_day_region_or_identity_has_another_key() {
        let signer = Signer::new("s3");
        let request =
            Signable { method: "GET", path: "/", query: &[], host: "h", fields: &[], payload: UNSIGNED_PAYLOAD };
        let first = signer.authorization(&request, &identity(), "a", THEN);
        let mut other = identity();
        other.secret_access_key.push('x');
        for (identity, region, time) in [(identity(), "b", THEN), (identity(), "a", THEN + 86_400), (other, "a", THEN)]
        {
            assert_ne!(first, signer.authorization(&request, &identity, region, time));
        }
        assert_eq!(first, signer.authorization(&request, &identity(), "a", THEN));
    }
}
