//! A private directory for one run of `gpgv`: the signed file, keyrings in the form it
//! reads, and the text that it verified. Gone when dropped.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::SignatureError;
use crate::clearsign;
use crate::keys::KeySource;

/// Largest keyring that is read to find out its form; Debian's whole keyring has 60 KB.
const KEYRING_BYTES_MAX: u64 = 16 << 20;

/// What the names of rooms begin with.
const PREFIX: &str = "verify-";

/// Removes the rooms that killed runs have left in `scratch`. For whoever holds the lock of that
/// directory: a room of a run that goes on would be taken away from it.
pub fn sweep(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in entries.flatten() {
        let is_room = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // A link is no directory here, and stays.
        if is_room && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // What cannot be removed is a few KB in our own directory.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A directory of mode 0700 that goes when dropped.
pub(super) struct Room {
    pub(super) path: PathBuf,
}

impl Room {
    pub(super) fn create(scratch: &Path) -> Result<Room, SignatureError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        // A leftover of a killed process with our number must not stand in the way.
        for _ in 0..1000 {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = scratch.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // gpgv reads a relative keyring path as one in its home directory.
                Ok(()) => {
                    let path = fs::canonicalize(&path).map_err(|source| SignatureError::Scratch { path, source })?;
                    return Ok(Room { path });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    return Err(SignatureError::Scratch { path: scratch.to_owned(), source });
                }
            }
        }
        let source = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(SignatureError::Scratch { path: scratch.to_owned(), source })
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, SignatureError> {
        let path = self.path.join(name);
        fs::write(&path, bytes).map_err(|source| SignatureError::Scratch { path: path.clone(), source })?;
        Ok(path)
    }

    /// A keyring as `gpgv` reads it: binary, with an absolute path.
    pub(super) fn keyring(&self, number: usize, key: &KeySource) -> Result<PathBuf, SignatureError> {
        let (name, text) = match key {
            KeySource::Inline(text) => {
                ("Signed-By".to_owned(), text.lines().map(unfold).collect::<Vec<_>>().join("\n"))
            }
            KeySource::File(path) => {
                let name = path.display().to_string();
                let fault =
                    |error: io::Error| SignatureError::Keyring { keyring: name.clone(), what: error.to_string() };
                let path = fs::canonicalize(path).map_err(fault)?;
                let mut bytes = Vec::new();
                fs::File::open(&path)
                    .and_then(|file| file.take(KEYRING_BYTES_MAX).read_to_end(&mut bytes))
                    .map_err(fault)?;
                if !bytes.windows(15).any(|window| window == b"-----BEGIN PGP ") {
                    if bytes.is_empty() {
                        return Err(SignatureError::Keyring { keyring: name, what: "is empty".to_owned() });
                    }
                    return Ok(path);
                }
                (name, String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        let bytes = clearsign::dearmour(&text, "PGP PUBLIC KEY BLOCK")
            .map_err(|what| SignatureError::Keyring { keyring: name, what: what.to_owned() })?;
        self.write(&format!("keyring-{number}.gpg"), &bytes)
    }
}

/// A line of a key within a control file: ` .` stands for an empty one.
fn unfold(line: &str) -> &str {
    match line.trim() {
        "." => "",
        line => line,
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed is a few KB in our own directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}
