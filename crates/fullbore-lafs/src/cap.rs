//! Caps: the texts that name a file and are the right to read it.
//!
//! A cap is a secret. There is no `Display` and no telling `Debug` for one, so that none gets into a log by
//! accident; [`Cap::to_text`] is what writes it.

use std::fmt;

use super::base32;
use super::geometry::Encoding;
use super::hash::{Hash, tagged};

/// Longest content of a literal cap, bytes: what the stock client chooses.
pub const LITERAL_BYTES_MAX: u64 = 55;

/// Characters of a cap that are read. A literal of 55 bytes has 96, a CHK cap of the largest file 150; old
/// clients may have written longer literals.
const TEXT_BYTES_MAX: usize = 4096;

/// An AES-128 key, which is the right to read.
pub type Key = [u8; 16];

/// What servers know a file by.
pub type StorageIndex = [u8; 16];

/// The storage index that belongs to a key.
pub fn storage_index(key: &Key) -> StorageIndex {
    first_half(&tagged(b"allmydata_immutable_key_to_storage_index_v1", key))
}

/// The first 16 bytes of a hash: keys and storage indexes.
pub(super) fn first_half(hash: &Hash) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hash[..16]);
    half
}

/// The right to read a file that was cut into shares.
#[derive(Clone, PartialEq, Eq)]
pub struct Chk {
    /// AES-128 key that decrypts the file.
    pub key: Key,
    /// Hash of the URI extension block, from which everything else is checked.
    pub extension_hash: Hash,
    /// Number of shares needed to restore the file, k.
    pub needed: u16,
    /// Number of shares that were made, n.
    pub total: u16,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Chk {
    /// What servers know the file by.
    pub fn storage_index(&self) -> StorageIndex {
        storage_index(&self.key)
    }

    /// The right to check the file without reading it.
    pub fn verifier(&self) -> Verifier {
        Verifier {
            storage_index: self.storage_index(),
            extension_hash: self.extension_hash,
            needed: self.needed,
            total: self.total,
            size: self.size,
        }
    }

    fn fields(&self) -> String {
        let (key, hash) = (base32::encode(&self.key), base32::encode(&self.extension_hash));
        format!("{key}:{hash}:{}:{}:{}", self.needed, self.total, self.size)
    }
}

impl fmt::Debug for Chk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Chk({}-of-{}, {} bytes)", self.needed, self.total, self.size)
    }
}

/// The right to check a file's shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    /// What servers know the file by.
    pub storage_index: StorageIndex,
    /// Hash of the URI extension block.
    pub extension_hash: Hash,
    /// Number of shares needed to restore the file, k.
    pub needed: u16,
    /// Number of shares that were made, n.
    pub total: u16,
    /// Size of the file in bytes.
    pub size: u64,
}

/// A cap of an immutable file or directory.
#[derive(Clone, PartialEq, Eq)]
pub enum Cap {
    /// `URI:LIT:`, the content itself.
    Literal(Vec<u8>),
    /// `URI:CHK:`.
    Chk(Chk),
    /// `URI:CHK-Verifier:`.
    Verifier(Verifier),
    /// `URI:DIR2-LIT:`, a small immutable directory.
    LiteralDirectory(Vec<u8>),
    /// `URI:DIR2-CHK:`, an immutable directory.
    Directory(Chk),
}

impl fmt::Debug for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cap::Literal(data) => write!(f, "Literal({} bytes)", data.len()),
            Cap::LiteralDirectory(data) => write!(f, "LiteralDirectory({} bytes)", data.len()),
            Cap::Chk(chk) => write!(f, "Cap({chk:?})"),
            Cap::Directory(chk) => write!(f, "Directory({chk:?})"),
            Cap::Verifier(verifier) => write!(f, "{verifier:?}"),
        }
    }
}

/// Why a text is no cap that is understood. The text is not repeated.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapError {
    /// Longer than any cap.
    #[error("longer than {TEXT_BYTES_MAX} characters")]
    TooLong,
    /// Begins with `URI:`, but is of a kind that is not handled here.
    #[error("a cap of kind {kind:?}; handled are CHK, LIT, CHK-Verifier, DIR2-CHK and DIR2-LIT")]
    Kind {
        /// The word behind `URI:`.
        kind: String,
    },
    /// Not a cap at all.
    #[error("not a cap: it does not begin with URI:")]
    NotACap,
    /// A part is missing, or there are too many.
    #[error("{found} parts behind the kind, {wanted} are needed")]
    Parts {
        /// Parts found.
        found: usize,
        /// Parts needed.
        wanted: usize,
    },
    /// A part cannot be read.
    #[error("{part}: {reason}")]
    Part {
        /// Which one.
        part: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl Cap {
    /// Writes the cap: a secret that goes to nobody but the one who asked for it.
    pub fn to_text(&self) -> String {
        match self {
            Cap::Literal(data) => format!("URI:LIT:{}", base32::encode(data)),
            Cap::LiteralDirectory(data) => format!("URI:DIR2-LIT:{}", base32::encode(data)),
            Cap::Chk(chk) => format!("URI:CHK:{}", chk.fields()),
            Cap::Directory(chk) => format!("URI:DIR2-CHK:{}", chk.fields()),
            Cap::Verifier(verifier) => {
                let (index, hash) = (base32::encode(&verifier.storage_index), base32::encode(&verifier.extension_hash));
                let Verifier { needed, total, size, .. } = verifier;
                format!("URI:CHK-Verifier:{index}:{hash}:{needed}:{total}:{size}")
            }
        }
    }

    /// Reads a cap; white space around it does not count.
    ///
    /// ```
    /// use fullbore_lafs::{Cap, base32};
    ///
    /// let Cap::Literal(content) = Cap::parse("URI:LIT:nbuq")? else { panic!("a literal") };
    /// assert_eq!(content, b"hi");
    /// assert_eq!(base32::encode(b"hi"), "nbuq");
    /// # Ok::<(), fullbore_lafs::CapError>(())
    /// ```
    ///
    /// # Errors
    /// [`CapError`] if the text is too long, is of an unsupported kind, or has a missing or malformed part.
    pub fn parse(text: &str) -> Result<Cap, CapError> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(CapError::TooLong);
        }
        let rest = text.strip_prefix("URI:").ok_or(CapError::NotACap)?;
        let (kind, rest) = rest.split_once(':').ok_or(CapError::NotACap)?;
        match kind {
            "LIT" => Ok(Cap::Literal(literal(rest)?)),
            "DIR2-LIT" => Ok(Cap::LiteralDirectory(literal(rest)?)),
            "CHK" => Ok(Cap::Chk(chk(rest)?)),
            "DIR2-CHK" => Ok(Cap::Directory(chk(rest)?)),
            "CHK-Verifier" => {
                let parts = parts(rest)?;
                Ok(Cap::Verifier(Verifier {
                    storage_index: binary("storage index", parts[0])?,
                    extension_hash: binary("hash", parts[1])?,
                    needed: encoding(&parts)?.needed,
                    total: encoding(&parts)?.total,
                    size: number("size", parts[4])?,
                }))
            }
            _ => Err(CapError::Kind { kind: kind.chars().take(24).collect() }),
        }
    }

    /// Size of the content that the cap refers to, in bytes.
    pub fn size(&self) -> u64 {
        match self {
            Cap::Literal(data) | Cap::LiteralDirectory(data) => data.len() as u64,
            Cap::Chk(chk) | Cap::Directory(chk) => chk.size,
            Cap::Verifier(verifier) => verifier.size,
        }
    }
}

fn literal(text: &str) -> Result<Vec<u8>, CapError> {
    base32::decode(text).map_err(|error| CapError::Part { part: "content", reason: error.to_string() })
}

fn parts(text: &str) -> Result<[&str; 5], CapError> {
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let found = parts.len();
    parts.try_into().map_err(|_| CapError::Parts { found, wanted: 5 })
}

fn chk(text: &str) -> Result<Chk, CapError> {
    let parts = parts(text)?;
    let Encoding { needed, total, .. } = encoding(&parts)?;
    Ok(Chk {
        key: binary("key", parts[0])?,
        extension_hash: binary("hash", parts[1])?,
        needed,
        total,
        size: number("size", parts[4])?,
    })
}

fn encoding(parts: &[&str; 5]) -> Result<Encoding, CapError> {
    let (needed, total) = (number("shares needed", parts[2])?, number("shares made", parts[3])?);
    Encoding::new(needed, needed, total).map_err(|error| CapError::Part { part: "shares", reason: error.to_string() })
}

fn binary<const N: usize>(part: &'static str, text: &str) -> Result<[u8; N], CapError> {
    base32::decode_array(text).map_err(|error| CapError::Part { part, reason: error.to_string() })
}

/// A decimal number as it is written: digits, no sign, no leading zero.
fn number<T: std::str::FromStr>(part: &'static str, text: &str) -> Result<T, CapError> {
    let wrong = || CapError::Part { part, reason: "not a number that fits".into() };
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits || (text.len() > 1 && text.starts_with('0')) {
        return Err(wrong());
    }
    text.parse().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_cap_does_not_show_itself() {
        let chk = Chk { key: [0x41; 16], extension_hash: [7; 32], needed: 3, total: 10, size: 1000 };
        let cap = Cap::Chk(chk.clone());
        let key = base32::encode(&chk.key);
        assert!(cap.to_text().contains(&key));
        for shown in [format!("{cap:?}"), format!("{:?}", Cap::Literal(b"secret".to_vec()))] {
            assert!(!shown.contains(&key) && !shown.contains("secret") && !shown.contains("115"), "{shown}");
        }
    }

    #[test]
    fn what_is_no_cap_is_refused_without_repeating_it() {
        let good = Cap::Chk(Chk { key: [1; 16], extension_hash: [2; 32], needed: 3, total: 10, size: 99 }).to_text();
        for bad in [
            "",
            "URI:",
            "URI:CHK",
            "URI:CHK:",
            "URI:SSK:aaaa",
            "http://x",
            &good.replace(":3:10:", ":11:10:"),
            &good.replace(":3:10:", ":0:10:"),
            &good.replace(":10:99", ":257:99"),
            &good.replace(":99", ":099"),
            &good.replace(":99", ":-9"),
            &good.replace(":99", ""),
            &format!("{good}:1"),
            &good.replace(":99", ":99999999999999999999"),
            &"URI:LIT:".repeat(1000),
        ] {
            let error = Cap::parse(bad).expect_err(bad).to_string();
            assert!(!error.contains("aeaq"), "{error}");
        }
        assert_eq!(Cap::parse(&format!(" {good}\n")).unwrap().to_text(), good);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            key: [u8; 16], extension_hash: [u8; 32], needed in 1_u16..=256, more in 0_u16..256, size: u64,
            data in proptest::collection::vec(any::<u8>(), 0..56),
        ) {
            let total = (needed + more).min(256);
            let chk = Chk { key, extension_hash, needed, total, size };
            let verifier = Cap::Verifier(chk.verifier());
            for cap in [
                Cap::Chk(chk.clone()), Cap::Directory(chk), verifier, Cap::Literal(data.clone()), Cap::LiteralDirectory(data),
            ] {
                prop_assert_eq!(Cap::parse(&cap.to_text()).unwrap(), cap);
            }
        }

        #[test]
        fn nothing_makes_it_panic(text in "(URI:)?(CHK|LIT|DIR2-CHK|CHK-Verifier)?:?[a-z2-7:0-9]{0,90}") {
            let _ = Cap::parse(&text);
        }
    }
}
