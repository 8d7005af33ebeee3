//! The checksums that stores have of objects: their algorithms and forms, and the hashing.
//!
//! "Checking object integrity" of the Amazon S3 user guide: a checksum covers the full object, or it is composite, the
//! checksum of the parts' checksums. A composite one mostly ends with `-` and the number of parts.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crc_fast::CrcAlgorithm;
use fullbore_engine::digest::Sha256Hasher;
use fullbore_wire::http1::ResponseHead;
use sha1::{Digest, Sha1};

/// Algorithms of checksums, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// SHA-256 (FIPS 180-4).
    Sha256,
    /// SHA-1 (FIPS 180-4).
    Sha1,
    /// CRC-64 of NVM Express; the default of the AWS tools.
    Crc64Nvme,
    /// CRC-32C, with Castagnoli's polynomial.
    Crc32c,
    /// CRC-32 of zlib and Ethernet.
    Crc32,
}

impl Algorithm {
    /// All algorithms, the strongest first.
    pub const ALL: [Algorithm; 5] =
        [Algorithm::Sha256, Algorithm::Sha1, Algorithm::Crc64Nvme, Algorithm::Crc32c, Algorithm::Crc32];

    /// Header field of an answer with this checksum.
    pub fn field(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "x-amz-checksum-sha256",
            Algorithm::Sha1 => "x-amz-checksum-sha1",
            Algorithm::Crc64Nvme => "x-amz-checksum-crc64nvme",
            Algorithm::Crc32c => "x-amz-checksum-crc32c",
            Algorithm::Crc32 => "x-amz-checksum-crc32",
        }
    }

    /// Length of a checksum of this algorithm in bytes.
    pub fn bytes(self) -> usize {
        match self {
            Algorithm::Sha256 => 32,
            Algorithm::Sha1 => 20,
            Algorithm::Crc64Nvme => 8,
            Algorithm::Crc32c | Algorithm::Crc32 => 4,
        }
    }
}

/// The data that a checksum covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The full object.
    Whole,
    /// The checksums of this many parts; `None` if the store does not give the number.
    Parts(Option<u64>),
    /// An object of this many parts; the store does not say which of the two forms it is.
    Either(u64),
    /// The store gives neither a form nor parts. The checksum covers the full object, unless a copy kept the composite
    /// checksum of its source.
    Untold,
}

/// A checksum of an object, as the store has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Checksum {
    /// Algorithm that computes the checksum.
    pub algorithm: Algorithm,
    /// Value of the checksum, decoded from base64.
    pub sum: Vec<u8>,
    /// The data that the checksum covers: the object, or the checksums of its parts.
    pub form: Form,
}

impl Checksum {
    /// All checksums in an answer, the strongest first. `etag` gives the number of parts if nothing else does. Invalid
    /// values are skipped.
    pub(crate) fn all(head: &ResponseHead, etag: Option<&str>) -> Vec<Checksum> {
        let kind = head.store_field("x-amz-checksum-type");
        let found = Algorithm::ALL.into_iter().filter_map(|algorithm| {
            let value = head.store_field(algorithm.field())?;
            Checksum::read(algorithm, value, kind, etag)
        });
        found.collect()
    }

    fn read(algorithm: Algorithm, value: &str, kind: Option<&str>, etag: Option<&str>) -> Option<Checksum> {
        let (text, parts) = match value.trim().split_once('-') {
            Some((text, parts)) => (text, Some(parts.parse().ok()?)),
            None => (value.trim(), None),
        };
        let sum = STANDARD.decode(text).ok().filter(|sum| sum.len() == algorithm.bytes())?;
        let by_etag = || etag.and_then(|etag| etag.rsplit_once('-')?.1.parse().ok());
        let form = match (parts, kind) {
            (Some(parts), _) => Form::Parts(Some(parts)),
            (None, Some("FULL_OBJECT")) => Form::Whole,
            (None, Some("COMPOSITE")) => Form::Parts(by_etag()),
            // Amazon has no composite checksum of this algorithm.
            (None, _) if algorithm == Algorithm::Crc64Nvme => Form::Whole,
            // Stores without checksum types, such as older ones and moto.
            (None, _) => by_etag().map_or(Form::Untold, Form::Either),
        };
        Some(Checksum { algorithm, sum, form })
    }
}

/// Computes a checksum of any [`Algorithm`].
pub enum Hasher {
    /// SHA-256.
    Sha256(Box<Sha256Hasher>),
    /// SHA-1.
    Sha1(Box<Sha1>),
    /// A CRC, with the number of its bytes that count.
    Crc(Box<crc_fast::Digest>, usize),
}

impl Hasher {
    /// Creates a hasher of the empty input.
    pub fn new(algorithm: Algorithm) -> Hasher {
        let crc = |name| Hasher::Crc(Box::new(crc_fast::Digest::new(name)), algorithm.bytes());
        match algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Box::default()),
            Algorithm::Sha1 => Hasher::Sha1(Box::default()),
            Algorithm::Crc64Nvme => crc(CrcAlgorithm::Crc64Nvme),
            Algorithm::Crc32c => crc(CrcAlgorithm::Crc32Iscsi),
            Algorithm::Crc32 => crc(CrcAlgorithm::Crc32IsoHdlc),
        }
    }

    /// Adds the next bytes of the content.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Crc(digest, _) => digest.update(bytes),
        }
    }

    /// Returns the checksum; a CRC begins with its most significant byte, as in stores.
    pub fn finish(self) -> Vec<u8> {
        match self {
            Hasher::Sha256(hasher) => hasher.finish().as_bytes().to_vec(),
            Hasher::Sha1(hasher) => hasher.finalize().to_vec(),
            Hasher::Crc(digest, bytes) => digest.finalize().to_be_bytes()[8 - bytes..].to_vec(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(crate) fn hash(algorithm: Algorithm, content: &[u8]) -> Vec<u8> {
        let mut hasher = Hasher::new(algorithm);
        content.chunks(3).for_each(|piece| hasher.update(piece));
        hasher.finish()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn checksums_have_the_values_of_their_catalogues() {
        // The check values of the CRC catalogue (reveng), and of FIPS 180-4's tools, for "123456789".
        let expected = [
            "15e2b0d3c33891ebb0f1ef609ec419420c20e320ce94c65fbc8c3312448eb225",
            "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
            "ae8b14860a799888",
            "e3069283",
            "cbf43926",
        ];
        for (algorithm, expected) in Algorithm::ALL.into_iter().zip(expected) {
            assert_eq!(hex(&hash(algorithm, b"123456789")), expected, "{algorithm:?}");
            assert_eq!(hash(algorithm, b"").len(), algorithm.bytes());
        }
    }

    #[test]
    fn the_form_of_a_checksum_is_told_by_its_value_or_its_type_or_the_etag() {
        let read =
            |value: &str, kind, etag| Checksum::read(Algorithm::Crc32, value, kind, etag).map(|checksum| checksum.form);
        let sum = "y/Q5Jg==";
        let of_parts = format!("{sum}-3");
        assert_eq!(read(sum, None, None), Some(Form::Untold));
        assert_eq!(read(sum, None, Some("abc")), Some(Form::Untold));
        assert_eq!(read(sum, Some("FULL_OBJECT"), Some("abc-3")), Some(Form::Whole));
        assert_eq!(read(&of_parts, None, None), Some(Form::Parts(Some(3))));
        assert_eq!(read(&of_parts, Some("FULL_OBJECT"), None), Some(Form::Parts(Some(3))));
        assert_eq!(read(sum, Some("COMPOSITE"), Some("abc-4")), Some(Form::Parts(Some(4))));
        assert_eq!(read(sum, Some("COMPOSITE"), None), Some(Form::Parts(None)));
        assert_eq!(read(sum, None, Some("abc-4")), Some(Form::Either(4)));
        let nvme = Checksum::read(Algorithm::Crc64Nvme, "rosUhgp5mIg=", None, Some("abc-4"));
        assert_eq!(nvme.map(|checksum| checksum.form), Some(Form::Whole));
        for none in ["", "-", "x", "y/Q5Jg==-x", "y/Q5Jg==-1-2", "cbf43926", "rosUhgp5mIg="] {
            assert_eq!(read(none, None, None), None, "{none:?}");
        }
    }
}
