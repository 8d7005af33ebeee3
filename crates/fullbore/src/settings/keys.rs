//! Keyrings: those named, or the system's.

use std::io::Read as _;
use std::path::{Path, PathBuf};

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

/// The keyrings named, which must be readable.
pub(super) fn named(files: &[PathBuf]) -> Result<Vec<KeySource>, CommandError> {
    files.iter().map(|file| keyring(file).map(KeySource::File)).collect()
}

/// The keyrings named, or those of the system.
pub(super) fn keys_or_default(named: &[PathBuf]) -> Result<Vec<KeySource>, CommandError> {
    if !named.is_empty() {
        return self::named(named);
    }
    let found = system_keyrings();
    if found.is_empty() { Err(no_keyring()) } else { Ok(found) }
}

/// The keyrings of the distributions' archives that are here.
pub(super) fn system_keyrings() -> Vec<KeySource> {
    let found = DEFAULT_KEYRINGS.iter().map(PathBuf::from).filter(|path| readable(path).is_ok());
    found.map(KeySource::File).collect()
}

/// There is no keyring.
pub(super) fn no_keyring() -> CommandError {
    CommandError::usage("no keyring to verify signatures with")
        .context(format_args!("looked for {}", DEFAULT_KEYRINGS.join(", ")))
        .hint("install debian-archive-keyring, or give --keyring FILE")
}

/// Bytes of a keyring that are looked at: an armored one may begin with comments.
const START_BYTES: u64 = 64 << 10;

/// The absolute path of a keyring that is named, which must be readable.
pub(super) fn keyring(file: &Path) -> Result<PathBuf, CommandError> {
    readable(file).map_err(|error| with_hint_if_absent(error, file))?;
    check_keyring(file)?;
    absolute(file)
}

/// The same error with a hint, if the keyring does not exist.
pub(super) fn with_hint_if_absent(error: CommandError, keyring: &Path) -> CommandError {
    match keyring.try_exists() {
        Ok(false) => error.hint(
            "name a keyring that exists; the package debian-archive-keyring has \
             /usr/share/keyrings/debian-archive-keyring.gpg",
        ),
        _ => error,
    }
}

/// Refuses a file that does not look like a keyring, before the network is used: gpgv would only say that keys are
/// missing.
pub(super) fn check_keyring(path: &Path) -> Result<(), CommandError> {
    // Reading would empty a pipe, and apt takes directories of keyrings as well.
    if !path.is_file() {
        return Ok(());
    }
    let mut start = Vec::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(START_BYTES).read_to_end(&mut start))
        .map_err(|error| CommandError::unreadable(path, &error))?;
    if is_keyring(&start) {
        return Ok(());
    }
    Err(CommandError::usage(format_args!("{}: not an OpenPGP keyring", path.display()))
        .hint("pass a file such as /usr/share/keyrings/debian-archive-keyring.gpg"))
}

/// Whether a file that begins so may hold keys: packets (RFC 9580, section 4.2: the first bit of a packet is set), a
/// keybox of GnuPG, or an armored block (section 6.2).
fn is_keyring(start: &[u8]) -> bool {
    const ARMOR: &[u8] = b"-----BEGIN PGP PUBLIC KEY BLOCK-----";
    start.first().is_some_and(|first| first & 0x80 != 0)
        || start.get(8..12) == Some(b"KBXf")
        || start.windows(ARMOR.len()).any(|window| window == ARMOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_among_the_keyrings_chooses_keys() {
        let directory = tempfile::tempdir().unwrap();
        let keyring = directory.path().join("key.gpg");
        std::fs::write(&keyring, b"\x99").unwrap();
        let hex = "0123456789abcdef0123456789ABCDEF01234567";
        let named = signed_by(&[keyring.clone(), format!("{hex}!").into()]).unwrap();
        let expected = SignedBy::Keys {
            keys: vec![KeySource::File(keyring)],
            fingerprints: vec![format!("{hex}!").parse().unwrap()],
        };
        assert_eq!(named, expected);
        let absent = signed_by(&[format!("./{hex}").into()]).unwrap_err();
        assert!(absent.message.starts_with("cannot read ./0123") && absent.hints.len() == 1, "{absent}");
        assert!(absent.hints[0].starts_with("name a keyring that exists; "), "{absent}");
        assert!(check_keyring(directory.path()).is_ok(), "a directory of keyrings, for apt");
    }

    #[test]
    fn a_file_of_another_kind_is_no_keyring() {
        for start in [&b""[..], b"root:x:0:0:root:/root:/bin/bash\n", b"\x7fELF", b"-----BEGIN CERTIFICATE-----\n"] {
            assert!(!is_keyring(start));
        }
        let armored = b"Comment\n-----BEGIN PGP PUBLIC KEY BLOCK-----\n\n";
        for start in [&b"\x99\x02\x0d"[..], b"\xc6\x33", b"\x00\x00\x00\x20\x01\x01\x00\x02KBXf", armored] {
            assert!(is_keyring(start));
        }
    }
}
