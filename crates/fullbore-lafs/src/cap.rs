//! Capabilities ("caps"): texts that name a file and give the right to read it.
//!
//! A cap is a secret. It has no `Display`, and its `Debug` shows nothing of it, so that no cap gets into a log by
//! accident. [`Cap::to_text`] writes it.

use std::fmt;

use super::base32;
use super::geometry::Encoding;
use super::hash::{Hash, tagged};

/// Longest content of a literal cap in bytes; the stock client chooses the same.
pub(crate) const LITERAL_BYTES_MAX: u64 = 55;

/// Longest cap that is read, in characters. A literal of 55 bytes has 96, a CHK cap of the largest file 150. Old
/// clients may have written longer literals.
const TEXT_BYTES_MAX: usize = 4096;

/// An AES-128 key: the right to read a file.
pub(crate) type Key = [u8; 16];

/// Identifies a file on the servers: 16 bytes derived from the key.
pub(crate) type StorageIndex = [u8; 16];

/// The storage index of a file with this key.
pub fn storage_index(key: &Key) -> StorageIndex {
    first_half(&tagged(b"allmydata_immutable_key_to_storage_index_v1", key))
}

/// The first 16 bytes of a hash: keys and storage indexes.
pub(super) fn first_half(hash: &Hash) -> [u8; 16] {
    let mut half = [0; 16];
    half.copy_from_slice(&hash[..16]);
    half
}

/// The right to read an immutable file that was cut into shares.
#[derive(Clone, PartialEq, Eq)]
pub struct Chk {
    /// AES-128 key that decrypts the file.
    pub key: Key,
    /// Hash of the URI extension block. Everything else is checked from it.
    pub extension_hash: Hash,
    /// Number of shares needed to restore the file, k.
    pub needed: u16,
    /// Number of shares made, n.
    pub total: u16,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Chk {
    /// The storage index of the file.
    pub fn storage_index(&self) -> StorageIndex {
        storage_index(&self.key)
    }

    /// The right to verify the file without reading it.
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

/// The right to verify a file's shares, but not to read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verifier {
    /// The storage index of the file.
    pub storage_index: StorageIndex,
    /// Hash of the URI extension block.
    pub extension_hash: Hash,
    /// Number of shares needed to restore the file, k.
    pub needed: u16,
    /// Number of shares made, n.
    pub total: u16,
    /// Size of the file in bytes.
    pub size: u64,
}

impl Verifier {
    fn fields(&self) -> String {
        let (index, hash) = (base32::encode(&self.storage_index), base32::encode(&self.extension_hash));
        format!("{index}:{hash}:{}:{}:{}", self.needed, self.total, self.size)
    }

    fn parse(text: &str) -> Result<Verifier, CapError> {
        let parts = parts(text)?;
        let Encoding { needed, total, .. } = encoding(&parts)?;
        Ok(Verifier {
            storage_index: binary("storage index", parts[0])?,
            extension_hash: binary("hash", parts[1])?,
            needed,
            total,
            size: number("size", parts[4])?,
        })
    }
}

/// The right that a cap gives to a mutable file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MutableRight {
    /// Write, read and verify, by the write key.
    Write(Key),
    /// Read and verify, by the read key.
    Read(Key),
    /// Verify only.
    Verify(StorageIndex),
}

/// A right to a mutable file: to write it, to read it, or only to verify its shares.
#[derive(Clone, PartialEq, Eq)]
pub struct Mutable {
    right: MutableRight,
    /// Hash of the public key that verifies the file's signature.
    pub fingerprint: Hash,
    /// Whether the cap is for the format with several segments (MDMF). Each share states its own format as well.
    pub is_mdmf: bool,
}

impl Mutable {
    /// The storage index of the file.
    pub fn storage_index(&self) -> StorageIndex {
        match self.right {
            MutableRight::Verify(index) => index,
            MutableRight::Write(_) | MutableRight::Read(_) => {
                let key = self.read_key().unwrap_or_default();
                first_half(&tagged(b"allmydata_mutable_readkey_to_storage_index_v1", &key))
            }
        }
    }

    /// The key from which the content keys are derived; `None` if the cap can only verify.
    pub fn read_key(&self) -> Option<Key> {
        match self.right {
            MutableRight::Write(key) => Some(first_half(&tagged(b"allmydata_mutable_writekey_to_readkey_v1", &key))),
            MutableRight::Read(key) => Some(key),
            MutableRight::Verify(_) => None,
        }
    }

    /// The key from which the servers' write secrets are derived; `None` without the right to write.
    pub fn write_key(&self) -> Option<Key> {
        match self.right {
            MutableRight::Write(key) => Some(key),
            MutableRight::Read(_) | MutableRight::Verify(_) => None,
        }
    }

    fn to_text(&self, is_directory: bool) -> String {
        let format = match (is_directory, self.is_mdmf) {
            (false, false) => "SSK",
            (false, true) => "MDMF",
            (true, false) => "DIR2",
            (true, true) => "DIR2-MDMF",
        };
        let (right, key) = match &self.right {
            MutableRight::Write(key) => ("", key),
            MutableRight::Read(key) => ("-RO", key),
            MutableRight::Verify(index) => ("-Verifier", index),
        };
        format!("URI:{format}{right}:{}:{}", base32::encode(key), base32::encode(&self.fingerprint))
    }

    /// Parses the part of a cap after its kind. Old clients wrote hints after the fingerprint of an MDMF cap.
    fn parse(text: &str, right: fn([u8; 16]) -> MutableRight, is_mdmf: bool) -> Result<Mutable, CapError> {
        let parts: Vec<&str> = text.splitn(3, ':').collect();
        let [key, fingerprint, hints @ ..] = &parts[..] else {
            return Err(CapError::Parts { found: parts.len(), wanted: 2 });
        };
        if !hints.is_empty() && !is_mdmf {
            return Err(CapError::Parts { found: parts.len(), wanted: 2 });
        }
        Ok(Mutable { right: right(binary("key", key)?), fingerprint: binary("fingerprint", fingerprint)?, is_mdmf })
    }
}

impl fmt::Debug for Mutable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let right = match self.right {
            MutableRight::Write(_) => "write",
            MutableRight::Read(_) => "read",
            MutableRight::Verify(_) => "verify",
        };
        write!(f, "Mutable({right}, MDMF {})", self.is_mdmf)
    }
}

/// A cap of a file or directory.
#[derive(Clone, PartialEq, Eq)]
pub enum Cap {
    /// `URI:LIT:`: the content itself.
    Literal(Vec<u8>),
    /// `URI:CHK:`: an immutable file.
    Chk(Chk),
    /// `URI:CHK-Verifier:`: verifies an immutable file.
    Verifier(Verifier),
    /// `URI:DIR2-LIT:`: the content of a small immutable directory.
    LiteralDirectory(Vec<u8>),
    /// `URI:DIR2-CHK:`: an immutable directory.
    Directory(Chk),
    /// `URI:DIR2-CHK-Verifier:`: verifies an immutable directory.
    DirectoryVerifier(Verifier),
    /// `URI:SSK:`, `URI:MDMF:` and their read-only and verify forms: a mutable file.
    Mutable(Mutable),
    /// `URI:DIR2:`, `URI:DIR2-MDMF:` and their read-only and verify forms: a mutable directory.
    MutableDirectory(Mutable),
}

impl fmt::Debug for Cap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cap::Literal(data) => write!(f, "Literal({} bytes)", data.len()),
            Cap::LiteralDirectory(data) => write!(f, "LiteralDirectory({} bytes)", data.len()),
            Cap::Chk(chk) => write!(f, "Cap({chk:?})"),
            Cap::Directory(chk) => write!(f, "Directory({chk:?})"),
            Cap::Verifier(verifier) | Cap::DirectoryVerifier(verifier) => write!(f, "{verifier:?}"),
            Cap::Mutable(mutable) => write!(f, "{mutable:?}"),
            Cap::MutableDirectory(mutable) => write!(f, "Directory({mutable:?})"),
        }
    }
}

/// Why a text is not a supported cap. The error does not repeat the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CapError {
    /// Longer than any cap can be.
    #[error("longer than {TEXT_BYTES_MAX} characters")]
    TooLong,
    /// Begins with `URI:`, but its kind is not supported.
    #[error("unknown kind of cap: {kind:?}")]
    Kind {
        /// The word after `URI:`.
        kind: String,
    },
    /// Does not begin with `URI:`.
    #[error("not a cap: it does not begin with URI:")]
    NotACap,
    /// A mutable child of a directory that may only have immutable ones.
    #[error("a mutable child of an immutable directory")]
    Mutable,
    /// A part is missing, or there are too many parts.
    #[error("{found} parts after the kind, but {wanted} are needed")]
    Parts {
        /// Number of parts found.
        found: usize,
        /// Number of parts expected.
        wanted: usize,
    },
    /// A part cannot be parsed.
    #[error("{part}: {reason}")]
    Part {
        /// Name of the part.
        part: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}

impl Cap {
    /// Writes the cap as text. The text is a secret: show it only to the user who asked for it.
    pub fn to_text(&self) -> String {
        match self {
            Cap::Literal(data) => format!("URI:LIT:{}", base32::encode(data)),
            Cap::LiteralDirectory(data) => format!("URI:DIR2-LIT:{}", base32::encode(data)),
            Cap::Chk(chk) => format!("URI:CHK:{}", chk.fields()),
            Cap::Directory(chk) => format!("URI:DIR2-CHK:{}", chk.fields()),
            Cap::Verifier(verifier) => format!("URI:CHK-Verifier:{}", verifier.fields()),
            Cap::DirectoryVerifier(verifier) => format!("URI:DIR2-CHK-Verifier:{}", verifier.fields()),
            Cap::Mutable(mutable) => mutable.to_text(false),
            Cap::MutableDirectory(mutable) => mutable.to_text(true),
        }
    }

    /// Parses a cap; surrounding white space is ignored.
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
    /// [`CapError::TooLong`] for more than 4096 characters; [`CapError::NotACap`] if it does not begin with `URI:`;
    /// [`CapError::Kind`] for an unsupported kind; [`CapError::Parts`] or [`CapError::Part`] for a missing, superfluous
    /// or malformed part.
    pub fn parse(text: &str) -> Result<Cap, CapError> {
        let text = text.trim();
        if text.len() > TEXT_BYTES_MAX {
            return Err(CapError::TooLong);
        }
        // Newer clients write such a prefix before the caps in directories; the rest of the cap says the same.
        let text = text.strip_prefix("ro.").or_else(|| text.strip_prefix("imm.")).unwrap_or(text);
        let rest = text.strip_prefix("URI:").ok_or(CapError::NotACap)?;
        let (kind, rest) = rest.split_once(':').ok_or(CapError::NotACap)?;
        match kind {
            "LIT" => return Ok(Cap::Literal(literal(rest)?)),
            "DIR2-LIT" => return Ok(Cap::LiteralDirectory(literal(rest)?)),
            "CHK" => return Ok(Cap::Chk(chk(rest)?)),
            "DIR2-CHK" => return Ok(Cap::Directory(chk(rest)?)),
            "CHK-Verifier" => return Ok(Cap::Verifier(Verifier::parse(rest)?)),
            "DIR2-CHK-Verifier" => return Ok(Cap::DirectoryVerifier(Verifier::parse(rest)?)),
            _ => {}
        }
        let (format, right): (&str, fn([u8; 16]) -> MutableRight) =
            match (kind.strip_suffix("-RO"), kind.strip_suffix("-Verifier")) {
                (Some(format), _) => (format, MutableRight::Read),
                (_, Some(format)) => (format, MutableRight::Verify),
                (None, None) => (kind, MutableRight::Write),
            };
        match format {
            "SSK" => Ok(Cap::Mutable(Mutable::parse(rest, right, false)?)),
            "MDMF" => Ok(Cap::Mutable(Mutable::parse(rest, right, true)?)),
            "DIR2" => Ok(Cap::MutableDirectory(Mutable::parse(rest, right, false)?)),
            "DIR2-MDMF" => Ok(Cap::MutableDirectory(Mutable::parse(rest, right, true)?)),
            _ => Err(CapError::Kind { kind: kind.chars().take(24).collect() }),
        }
    }

    /// Size of the content in bytes; `None` for a mutable file, whose cap does not say it.
    pub fn size(&self) -> Option<u64> {
        match self {
            Cap::Literal(data) | Cap::LiteralDirectory(data) => Some(data.len() as u64),
            Cap::Chk(chk) | Cap::Directory(chk) => Some(chk.size),
            Cap::Verifier(verifier) | Cap::DirectoryVerifier(verifier) => Some(verifier.size),
            Cap::Mutable(_) | Cap::MutableDirectory(_) => None,
        }
    }

    /// Whether the cap is that of a directory.
    pub fn is_directory(&self) -> bool {
        match self {
            Cap::LiteralDirectory(_) | Cap::Directory(_) | Cap::DirectoryVerifier(_) | Cap::MutableDirectory(_) => true,
            Cap::Literal(_) | Cap::Chk(_) | Cap::Verifier(_) | Cap::Mutable(_) => false,
        }
    }

    /// The storage index of the shares; `None` for a literal.
    pub fn storage_index(&self) -> Option<StorageIndex> {
        match self {
            Cap::Literal(_) | Cap::LiteralDirectory(_) => None,
            Cap::Chk(chk) | Cap::Directory(chk) => Some(chk.storage_index()),
            Cap::Verifier(verifier) | Cap::DirectoryVerifier(verifier) => Some(verifier.storage_index),
            Cap::Mutable(mutable) | Cap::MutableDirectory(mutable) => Some(mutable.storage_index()),
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

/// Parses a decimal number in its only form: digits, without sign or leading zeros.
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
        let mutable = Mutable { right: MutableRight::Write([0x41; 16]), fingerprint: [7; 32], is_mdmf: false };
        let mutable = Cap::MutableDirectory(mutable);
        assert!(mutable.to_text().contains(&key));
        for shown in [format!("{cap:?}"), format!("{mutable:?}"), format!("{:?}", Cap::Literal(b"secret".to_vec()))] {
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
            "URI:NEW:aaaa",
            "URI:DIR2-RO:aaaa",
            "URI:SSK:aeaqcaibaeaqcaibaeaqcaibae:aebagbafaydqqcikbmga2dqpcaireeyuculbogazdinryhi6d4qa:3",
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
                Cap::Chk(chk.clone()), Cap::Directory(chk.clone()), verifier, Cap::DirectoryVerifier(chk.verifier()),
                Cap::Literal(data.clone()), Cap::LiteralDirectory(data),
            ] {
                prop_assert_eq!(Cap::parse(&format!("ro.{}", cap.to_text())).unwrap(), cap);
            }
            for right in [MutableRight::Write(key), MutableRight::Read(key), MutableRight::Verify(key)] {
                for is_mdmf in [false, true] {
                    let mutable = Mutable { right, fingerprint: extension_hash, is_mdmf };
                    for cap in [Cap::Mutable(mutable.clone()), Cap::MutableDirectory(mutable)] {
                        prop_assert_eq!(Cap::parse(&cap.to_text()).unwrap(), cap);
                    }
                }
            }
        }

        #[test]
        fn nothing_makes_the_parser_panic(text in "(URI:)?(CHK|LIT|DIR2-CHK|CHK-Verifier|SSK|DIR2-RO|DIR2-MDMF-Verifier)?:?[a-z2-7:0-9]{0,90}") {
            let _ = Cap::parse(&text);
        }
    }
}
