//! Whether what is here and what is there are the same, by checksums.
//!
//! The store's SHA-256 is believed first: of the whole object, or of its parts' sums. Where it has none, an ETag that is
//! an MD5 sum does: of objects put in one piece, and not encrypted by a key of the customer's, whose ETags are
//! something else. Time and size alone are never enough.

use std::fs::File;
use std::io::{self, Read};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_engine::digest::{READ_BYTES, Sha256Hasher};
use fullbore_wire::http1::Method;
use md5::{Digest, Md5};

use super::client::{Answer, CHECKSUM_FIELD, Call, CallError, Client};
use super::parts::{Composite, Cut, base64};
use super::sign::hex;

/// An object that is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Present {
    /// Its length in bytes.
    pub size: u64,
    /// Its ETag without quotes.
    pub etag: Option<String>,
    /// Its SHA-256, as the store has it: base64, with `-` and the number of parts for one in parts.
    pub checksum: Option<String>,
    /// Encrypted so that its ETag says nothing of its content.
    pub opaque_etag: bool,
}

/// What shows the content of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// SHA-256 in base64.
    Whole(String),
    /// SHA-256 of the sums of parts, cut so.
    Parts(String, Cut),
    /// MD5 in hex.
    Md5(String),
    /// Nothing does.
    None,
}

impl Present {
    /// Reads what the answer to HEAD says.
    pub fn of(answer: &Answer) -> Present {
        let head = &answer.head;
        let encryption = head.store_field("x-amz-server-side-encryption").unwrap_or_default();
        Present {
            size: head.content_length.unwrap_or(0),
            etag: answer.etag(),
            checksum: head.store_field(CHECKSUM_FIELD).map(str::to_owned),
            opaque_etag: encryption.starts_with("aws:kms")
                || head.store_field("x-amz-server-side-encryption-customer-algorithm").is_some(),
        }
    }

    /// What shows its content; `first_part` is the size of the first part, if that is known.
    pub fn proof(&self, first_part: Option<u64>) -> Proof {
        if let Some(checksum) = &self.checksum {
            // The number of parts; some stores have it at the ETag alone.
            let number = |text: &str| text.rsplit_once('-').map(|(_, parts)| parts.parse::<u64>());
            let parts = number(checksum).or_else(|| self.etag.as_deref().and_then(number));
            return match parts {
                None => Proof::Whole(checksum.clone()),
                Some(Ok(parts)) => Cut::guess(self.size, parts, first_part)
                    .map_or(Proof::None, |cut| Proof::Parts(sum_of(checksum).to_owned(), cut)),
                Some(Err(_)) => Proof::None,
            };
        }
        match &self.etag {
            Some(etag) if !self.opaque_etag && is_md5(etag) => Proof::Md5(etag.to_ascii_lowercase()),
            _ => Proof::None,
        }
    }
}

/// A checksum without the number of parts.
pub fn sum_of(checksum: &str) -> &str {
    checksum.split_once('-').map_or(checksum, |(sum, _)| sum)
}

/// Whether an ETag may be an MD5 sum.
pub fn is_md5(etag: &str) -> bool {
    etag.len() == 32 && etag.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// MD5 of content in hex, as ETags have it.
pub fn md5_hex(content: &[u8]) -> String {
    hex(Md5::digest(content).as_slice())
}

/// The ETag that stores of the usual kind give an object in parts: the MD5 of its parts' ETags, and their number. `None`
/// where these are no MD5 sums.
pub fn composite_etag<'a>(parts: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let count = parts.len();
    let mut md5 = Md5::new();
    for etag in parts.map(str::as_bytes) {
        let digit = |byte: u8| char::from(byte).to_digit(16);
        if etag.len() != 32 {
            return None;
        }
        for pair in etag.chunks(2) {
            md5.update([u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()?]);
        }
    }
    Some(format!("{}-{count}", hex(md5.finalize().as_slice())))
}

/// MD5 of content in base64, as `Content-MD5` has it.
pub fn md5_base64(content: &[u8]) -> String {
    STANDARD.encode(Md5::digest(content))
}

/// Hashes content by whatever a proof needs.
pub enum Checker {
    /// For [`Proof::Whole`].
    Whole(Box<Sha256Hasher>, String),
    /// For [`Proof::Parts`].
    Parts(Box<Composite>, String),
    /// For [`Proof::Md5`].
    Md5(Box<Md5>, String),
    /// For [`Proof::None`].
    None,
}

impl Checker {
    /// For this proof.
    pub fn new(proof: Proof) -> Checker {
        match proof {
            Proof::Whole(sum) => Checker::Whole(Box::default(), sum),
            Proof::Parts(sum, cut) => Checker::Parts(Box::new(Composite::new(cut)), sum_of(&sum).to_owned()),
            Proof::Md5(sum) => Checker::Md5(Box::default(), sum),
            Proof::None => Checker::None,
        }
    }

    /// The next bytes, in pieces.
    pub fn update<D: AsRef<[u8]>>(&mut self, pieces: &[D]) {
        let bytes = pieces.iter().map(AsRef::as_ref);
        match self {
            Checker::Whole(hasher, _) => bytes.for_each(|piece| hasher.update(piece)),
            Checker::Parts(composite, _) => composite.update(pieces),
            Checker::Md5(md5, _) => bytes.for_each(|piece| md5.update(piece)),
            Checker::None => {}
        }
    }

    /// Whether the content is what the proof says; `None`: nothing says.
    pub fn finish(self) -> Option<bool> {
        match self {
            Checker::Whole(hasher, sum) => Some(base64(&hasher.finish()) == sum),
            Checker::Parts(composite, sum) => Some(sum_of(&composite.finish()) == sum),
            Checker::Md5(md5, sum) => Some(hex(md5.finalize().as_slice()) == sum),
            Checker::None => None,
        }
    }
}

/// Whether a file has the content that a proof tells of. Reads from where the file stands.
///
/// # Errors
/// The file's.
pub fn file_matches(mut file: &File, proof: Proof) -> io::Result<bool> {
    let mut checker = Checker::new(proof);
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(checker.finish() == Some(true)),
            Ok(count) => checker.update(&[&buffer[..count]]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Asks for an object; `None`: there is none.
///
/// # Errors
/// [`CallError`]
pub async fn head(client: &Client, key: &str) -> Result<Option<Present>, CallError> {
    let call = Call::new(Method::Head, Some(key)).field("x-amz-checksum-mode", "ENABLED");
    let answer = client.call(call).await?;
    Ok((answer.head.status != 404).then(|| Present::of(&answer)))
}

/// What shows an object's content, asked for once more where its parts are unknown.
///
/// # Errors
/// [`CallError`]
pub async fn proof(client: &Client, key: &str, present: &Present) -> Result<Proof, CallError> {
    let proof = present.proof(None);
    if proof != Proof::None || present.checksum.is_none() {
        return Ok(proof);
    }
    let first = client.call(Call::new(Method::Head, Some(key)).query("partNumber", "1")).await;
    Ok(match first {
        Ok(answer) if (200..300).contains(&answer.head.status) => present.proof(answer.head.content_length),
        // A store that knows no parts of finished objects.
        Ok(_) | Err(CallError::Refused { .. }) => Proof::None,
        Err(error) => return Err(error),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use fullbore_engine::digest::Sha256;
    use std::io::Write;

    fn present(size: u64, etag: &str, checksum: Option<&str>) -> Present {
        Present { size, etag: Some(etag.into()), checksum: checksum.map(str::to_owned), opaque_etag: false }
    }

    #[test]
    fn what_is_believed_and_in_which_order() {
        let md5 = "900150983cd24fb0d6963f7d28e17f72";
        assert_eq!(present(3, md5, Some("s=")).proof(None), Proof::Whole("s=".into()));
        assert_eq!(present(3, md5, None).proof(None), Proof::Md5(md5.into()));
        assert_eq!(present(3, &format!("{md5}-1"), None).proof(None), Proof::None);
        assert_eq!(Present { opaque_etag: true, ..present(3, md5, None) }.proof(None), Proof::None);
        let parts = present(20 << 20, md5, Some("s=-3"));
        assert_eq!(parts.proof(None), Proof::Parts("s=".into(), Cut::Even(8 << 20)));
        let counted_by_etag = present(20 << 20, "e-3", Some("s="));
        assert_eq!(counted_by_etag.proof(None), Proof::Parts("s=".into(), Cut::Even(8 << 20)));
        assert_eq!(present(20 << 20, md5, Some("s=-2")).proof(None), Proof::None);
        assert_eq!(
            present(20 << 20, md5, Some("s=-2")).proof(Some(10 << 20)),
            Proof::Parts("s=".into(), Cut::Even(10 << 20))
        );
        assert_eq!(present(3, md5, Some("s=-x")).proof(None), Proof::None);
    }

    #[test]
    fn the_etag_of_parts_is_made_from_theirs() {
        let part = md5_hex(b"abc");
        // `(printf abc | openssl md5 -binary; printf abc | openssl md5 -binary) | openssl md5`
        let whole = composite_etag([part.as_str(), &part.to_uppercase()].into_iter());
        assert_eq!(whole.as_deref(), Some("043a916d6cfeecedf5e04f0312ba762d-2"));
        assert_eq!(composite_etag(["part1"].into_iter()), None);
        assert_eq!(composite_etag(["x".repeat(32).as_str()].into_iter()), None);
    }

    #[test]
    fn files_are_compared_by_each_proof() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let content = b"abc".repeat(1000);
        File::create(&path).unwrap().write_all(&content).unwrap();
        let cut = Cut::Even(1000);
        let mut composite = Composite::new(cut);
        composite.update(&[&content]);
        let (parts, whole) = (composite.finish(), base64(&Sha256::of(&content)));
        let matches = |proof| file_matches(&File::open(&path).unwrap(), proof).unwrap();
        assert!(matches(Proof::Whole(whole)) && matches(Proof::Parts(parts, cut)));
        assert!(matches(Proof::Md5(md5_hex(&content))));
        assert_eq!(md5_hex(b"abc"), "900150983cd24fb0d6963f7d28e17f72");
        assert_eq!(md5_base64(b""), "1B2M2Y8AsgTpgAmY7PhCfg==");
        for wrong in [Proof::None, Proof::Whole("x".into()), Proof::Md5(md5_hex(b"x"))] {
            assert!(!matches(wrong));
        }
    }
}
