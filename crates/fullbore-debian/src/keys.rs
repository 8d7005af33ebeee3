//! The keys that may sign: keyring files, keys in a sources file, fingerprints.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use thiserror::Error;

/// A keyring file, or the text of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeySource {
    /// A keyring, binary or armoured; the content decides, not the extension.
    File(PathBuf),
    /// An armoured key block, as in `Signed-By`. A line ` .` stands for an empty one.
    Inline(String),
}

/// The text is not a fingerprint. Short key ids are refused, because they can be forged.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0:?} is not a key fingerprint (40 or 64 hexadecimal digits)")]
pub struct FingerprintError(pub String);

/// Fingerprint of a key, as in `Signed-By`: 40 or 64 hexadecimal digits. A `!` at the end excludes subkeys.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint {
    hex: String,
    exact: bool,
}

impl Fingerprint {
    /// Whether this fingerprint covers a signature by the key `signing`, if that is known, with the primary key
    /// `primary`. Both are in upper case, as in the `VALIDSIG` line of gpgv.
    pub fn covers(&self, signing: Option<&str>, primary: &str) -> bool {
        signing == Some(self.hex.as_str()) || (!self.exact && self.hex == primary)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let (hex, exact) = match text.strip_suffix('!') {
            Some(hex) => (hex, true),
            None => (text, false),
        };
        let hex = hex.strip_prefix("0x").unwrap_or(hex);
        if !matches!(hex.len(), 40 | 64) || !hex.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(FingerprintError(text.chars().take(80).collect()));
        }
        Ok(Fingerprint { hex: hex.to_ascii_uppercase(), exact })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.hex, if self.exact { "!" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_fingerprints_are_taken() {
        let hex = "a".repeat(40);
        let any: Fingerprint = hex.parse().expect("40 digits");
        let exact: Fingerprint = format!("{hex}!").parse().expect("with !");
        assert_eq!((any.to_string(), exact.to_string()), (hex.to_uppercase(), format!("{}!", hex.to_uppercase())));
        for wrong in ["", "!", "DEADBEEF", "0123456789ABCDEF", &"g".repeat(40), &"a".repeat(41)] {
            assert!(wrong.parse::<Fingerprint>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn exact_means_this_subkey_only() {
        let (primary, signing) = ("A".repeat(40), "B".repeat(40));
        let parsed = |text: String| text.parse::<Fingerprint>().expect("valid");
        let covers = |text: String| parsed(text).covers(Some(&signing), &primary);
        assert!(covers(primary.clone()));
        assert!(covers(signing.clone()));
        assert!(covers(format!("{signing}!")));
        assert!(!covers(format!("{primary}!")));
        assert!(!covers("C".repeat(40)));
        // Of a signature by an unknown key of `primary`.
        assert!(parsed(primary.clone()).covers(None, &primary));
        assert!(!parsed(format!("{primary}!")).covers(None, &primary));
        assert!(!parsed(signing.clone()).covers(None, &primary));
    }
}
