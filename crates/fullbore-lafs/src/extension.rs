//! The URI extension block: what a reader has to know of a file before anything else, with the roots of all trees. The
//! cap has its hash, and every share a copy of it.

use super::geometry::{Encoding, Geometry, GeometryError};
use super::hash::{Hash, netstring, tagged};

/// Longest block that is read, in bytes. Ours have about 500; old clients wrote some more fields.
pub(crate) const EXTENSION_BYTES_MAX: u64 = 16 << 10;

/// Name of the erasure code in every block.
const CODEC: &[u8] = b"crs";

/// The content of the URI extension block: sizes, and the roots of all hash trees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extension {
    /// How the file is cut. Readers do not know `happy`; it is 1.
    pub geometry: Geometry,
    /// Hash of the whole ciphertext, if the writer stored it.
    pub crypttext_hash: Option<Hash>,
    /// Root of the tree over the segments' ciphertext.
    pub crypttext_root: Hash,
    /// Root of the tree over the shares.
    pub share_root: Hash,
}

/// Why a block cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtensionError {
    /// Not a sequence of `key:netstring`.
    #[error("malformed at byte {position}")]
    Malformed {
        /// Offset in bytes.
        position: usize,
    },
    /// A field is missing or unreadable.
    #[error("field {field} is missing or unreadable")]
    Field {
        /// Name of the field.
        field: &'static str,
    },
    /// A field contradicts the others, or the cap.
    #[error("field {field} contradicts the others, or the cap")]
    Contradiction {
        /// Name of the field.
        field: &'static str,
    },
    /// The numbers do not describe a possible file.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
}

/// The hash of a block, as in the cap.
pub(crate) fn extension_hash(block: &[u8]) -> Hash {
    tagged(b"allmydata_uri_extension_v1", block)
}

impl Extension {
    /// Writes the block as the stock client does: sorted, without the fields that it no longer writes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let cut = &self.geometry;
        let Encoding { needed, total, .. } = cut.encoding;
        let params = |segment: u64| format!("{segment}-{needed}-{total}").into_bytes();
        let number = |value: u64| value.to_string().into_bytes();
        let mut fields: Vec<(&str, Vec<u8>)> = vec![
            ("codec_name", CODEC.to_vec()),
            ("codec_params", params(cut.segment_size)),
            ("crypttext_root_hash", self.crypttext_root.to_vec()),
            ("needed_shares", number(needed.into())),
            ("num_segments", number(cut.segments)),
            ("segment_size", number(cut.segment_size)),
            ("share_root_hash", self.share_root.to_vec()),
            ("size", number(cut.size)),
            ("tail_codec_params", params(cut.padded_tail())),
            ("total_shares", number(total.into())),
        ];
        if let Some(hash) = self.crypttext_hash {
            fields.insert(2, ("crypttext_hash", hash.to_vec()));
        }
        let mut block = Vec::with_capacity(512);
        for (key, value) in fields {
            block.extend_from_slice(key.as_bytes());
            block.push(b':');
            netstring(&mut block, &value);
        }
        block
    }

    /// Length of the block for a file of this geometry in bytes; the hashes do not change it.
    pub fn length(geometry: Geometry) -> u64 {
        let hashes =
            Extension { geometry, crypttext_hash: Some([0; 32]), crypttext_root: [0; 32], share_root: [0; 32] };
        hashes.to_bytes().len() as u64
    }

    /// Parses a block whose hash was compared with the cap's, and checks it against the cap's numbers. Unknown fields
    /// are ignored.
    ///
    /// # Errors
    /// `ExtensionError::Malformed` if it is not a sequence of fields; `ExtensionError::Field` for a missing or
    /// unreadable field; `ExtensionError::Contradiction` for a field that contradicts the others or the cap;
    /// `ExtensionError::Geometry` for an impossible encoding or segment size.
    pub fn parse(block: &[u8], needed: u16, total: u16, size: u64) -> Result<Extension, ExtensionError> {
        let fields = fields(block)?;
        let field = |name: &'static str| -> Result<&[u8], ExtensionError> {
            fields
                .iter()
                .find(|(key, _)| *key == name.as_bytes())
                .map(|(_, value)| *value)
                .ok_or(ExtensionError::Field { field: name })
        };
        let number = |name: &'static str| -> Result<u64, ExtensionError> {
            let text = std::str::from_utf8(field(name)?).ok().filter(|text| text.bytes().all(|b| b.is_ascii_digit()));
            text.and_then(|text| text.parse().ok()).ok_or(ExtensionError::Field { field: name })
        };
        let hash = |name: &'static str| -> Result<Hash, ExtensionError> {
            field(name)?.try_into().map_err(|_| ExtensionError::Field { field: name })
        };
        let wrong = |field| Err(ExtensionError::Contradiction { field });
        // The cap's numbers take precedence, as in the stock reader.
        let encoding = Encoding::new(needed, 1, total)?;
        let segment_size = number("segment_size")?;
        let geometry = Geometry::new(encoding, size, segment_size.max(1))?;
        if geometry.segment_size != segment_size {
            return wrong("segment_size");
        }
        for (name, expected) in [
            ("needed_shares", u64::from(needed)),
            ("total_shares", u64::from(total)),
            ("size", size),
            ("num_segments", geometry.segments),
        ] {
            if fields.iter().any(|(key, _)| *key == name.as_bytes()) && number(name)? != expected {
                return wrong(name);
            }
        }
        if fields.iter().any(|(key, value)| *key == b"codec_name" && *value != CODEC) {
            return wrong("codec_name");
        }
        Ok(Extension {
            geometry,
            crypttext_hash: hash("crypttext_hash").ok(),
            crypttext_root: hash("crypttext_root_hash")?,
            share_root: hash("share_root_hash")?,
        })
    }
}

/// Key and value of a field.
type Field<'a> = (&'a [u8], &'a [u8]);

/// Splits a block into keys and values.
fn fields(block: &[u8]) -> Result<Vec<Field<'_>>, ExtensionError> {
    let mut fields = Vec::new();
    let mut rest = block;
    while !rest.is_empty() {
        let malformed = ExtensionError::Malformed { position: block.len() - rest.len() };
        let (field, behind) = one_field(rest).ok_or(malformed)?;
        fields.push(field);
        rest = behind;
    }
    Ok(fields)
}

/// Parses `key:LENGTH:value,`; returns the field and the rest.
fn one_field(text: &[u8]) -> Option<(Field<'_>, &[u8])> {
    let (key, rest) = split(text)?;
    let (length, rest) = split(rest)?;
    if length.is_empty() || !length.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let length: usize = std::str::from_utf8(length).ok()?.parse().ok()?;
    let (value, rest) = rest.split_at_checked(length)?;
    Some(((key, value), rest.strip_prefix(b",")?))
}

fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = text.iter().position(|&byte| byte == b':')?;
    Some((&text[..colon], &text[colon + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> Extension {
        let geometry = Geometry::new(Encoding::new(3, 1, 10).unwrap(), 1000, 300).unwrap();
        Extension { geometry, crypttext_hash: Some([1; 32]), crypttext_root: [2; 32], share_root: [3; 32] }
    }

    #[test]
    fn what_is_written_is_read() {
        let block = example().to_bytes();
        assert_eq!(block.len() as u64, Extension::length(example().geometry));
        assert!(block.starts_with(b"codec_name:3:crs,codec_params:8:300-3-10,crypttext_hash:32:"));
        assert_eq!(Extension::parse(&block, 3, 10, 1000), Ok(example()));
    }

    #[test]
    fn what_contradicts_the_cap_is_refused() {
        let block = example().to_bytes();
        assert!(Extension::parse(&block, 4, 10, 1000).is_err());
        assert!(Extension::parse(&block, 3, 11, 1000).is_err());
        assert_eq!(Extension::parse(&block, 3, 10, 999), Err(ExtensionError::Contradiction { field: "size" }));
        assert_eq!(Extension::parse(b"size:9:1,", 3, 10, 1), Err(ExtensionError::Malformed { position: 0 }));
        assert_eq!(Extension::parse(b"", 3, 10, 1), Err(ExtensionError::Field { field: "segment_size" }));
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(
            mut block in Just(example().to_bytes()), at: prop::sample::Index, byte: u8, cut: prop::sample::Index,
        ) {
            let at = at.index(block.len());
            block[at] = byte;
            let _ = Extension::parse(&block, 3, 10, 1000);
            block.truncate(cut.index(block.len()));
            let _ = Extension::parse(&block, 3, 10, 1000);
        }
    }
}
