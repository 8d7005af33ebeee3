//! Keyrings: those named, or the system's.

use std::path::PathBuf;

use fullbore_debian::keys::{Fingerprint, KeySource};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::{absolute, readable};

use super::SignedBy;

/// Where Debian and its derivatives keep the keys of their archives.
const DEFAULT_KEYRINGS: &[&str] = &[
    "/usr/share/keyrings/debian-archive-keyring.pgp",
    "/usr/share/keyrings/debian-archive-keyring.gpg",
    "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
];

/// Any key of the keyrings named, or of the system's. As in apt's `Signed-By`, a fingerprint may stand among
/// them (a file of such a name would be `./NAME`): then only the keys named so.
pub(super) fn signed_by(named: &[PathBuf]) -> Result<SignedBy, CommandError> {
    let (mut keyrings, mut fingerprints) = (Vec::new(), Vec::new());
    for word in named {
        match word.to_str().and_then(|word| word.parse::<Fingerprint>().ok()) {
            Some(fingerprint) => fingerprints.push(fingerprint),
            None => keyrings.push(word.clone()),
        }
    }
    Ok(SignedBy::Keys { keys: keys_or_default(&keyrings)?, fingerprints })
}

/// The keyrings named, which must be readable, or those of the system.
pub(super) fn keys_or_default(named: &[PathBuf]) -> Result<Vec<KeySource>, CommandError> {
    if !named.is_empty() {
        return named.iter().map(|file| readable(file).and_then(|()| absolute(file)).map(KeySource::File)).collect();
    }
    let found: Vec<KeySource> =
        DEFAULT_KEYRINGS.iter().map(PathBuf::from).filter(|path| readable(path).is_ok()).map(KeySource::File).collect();
    if found.is_empty() {
        return Err(CommandError::usage("no keyring to verify signatures with")
            .context(format_args!("looked for {}", DEFAULT_KEYRINGS.join(", ")))
            .hint("install debian-archive-keyring, or say `--keyring FILE`"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_among_the_keyrings_chooses_keys() {
        let directory = tempfile::tempdir().unwrap();
        let keyring = directory.path().join("key.gpg");
        std::fs::write(&keyring, "").unwrap();
        let hex = "0123456789abcdef0123456789ABCDEF01234567";
        let named = signed_by(&[keyring.clone(), format!("{hex}!").into()]).unwrap();
        let expected = SignedBy::Keys {
            keys: vec![KeySource::File(keyring)],
            fingerprints: vec![format!("{hex}!").parse().unwrap()],
        };
        assert_eq!(named, expected);
        assert!(signed_by(&[format!("./{hex}").into()]).is_err(), "a file that is not there");
    }
}
