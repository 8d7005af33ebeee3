//! The files of one check: the signed file, keyrings in the verifier's format, and the text that `gpgv` verified.
//!
//! The files have no names, so no other process can change what the verifier reads, and a killed run leaves nothing
//! behind.

use std::cell::RefCell;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, memfd_create};

use super::{SignatureError, keyring};
use crate::clearsign;
use crate::keys::KeySource;

/// Prefix of the names of directories for a check.
const PREFIX: &str = "verify-";

/// A home directory that does not exist and cannot be created.
const NO_HOME: &str = "/dev/null/gpgv";

/// Removes the directories that killed runs left in `scratch`, on systems without `/proc`. The caller must hold the
/// lock of that directory, because this would remove the files of a running check.
pub fn sweep(scratch: &Path) {
    let Ok(entries) = fs::read_dir(scratch) else { return };
    for entry in entries.flatten() {
        let is_ours = entry.file_name().to_str().is_some_and(is_name_of_ours);
        // A symbolic link is not a directory here, and stays.
        if is_ours && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            // If it fails, only a few KB stay in our own directory.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether the name is `verify-PID-NUMBER`.
fn is_name_of_ours(name: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-'));
    numbers.is_some_and(|(process, number)| is_number(process) && is_number(number))
}

/// The files of one check.
pub(super) struct CheckFiles(Storage);

/// The format of a binary keyring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyringKind {
    /// OpenPGP packets, one after the other.
    Packets,
    /// GnuPG's own format, with `KBXf` at byte 8.
    Keybox,
}

enum Storage {
    /// Nameless files (memfd_create(2)), which the kernel removes even after a kill. The verifier opens them through
    /// this process's directory of file descriptors.
    Memory { descriptors: PathBuf, files: RefCell<Vec<File>> },
    /// A directory of mode 0700, if `/proc` is not mounted.
    Directory(PathBuf),
}

impl CheckFiles {
    pub(super) fn create(scratch: &Path) -> Result<CheckFiles, SignatureError> {
        Ok(CheckFiles(match in_memory() {
            Some(place) => place,
            None => Storage::Directory(directory(scratch)?),
        }))
    }

    /// Home directory for `gpgv`, which reads no keyring there because each has an absolute path.
    pub(super) fn home(&self) -> &Path {
        match &self.0 {
            Storage::Memory { .. } => Path::new(NO_HOME),
            Storage::Directory(path) => path,
        }
    }

    /// Creates a file with this content, and returns its path.
    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, SignatureError> {
        match &self.0 {
            Storage::Memory { descriptors, files } => {
                let fault = |source: io::Error| SignatureError::Scratch { path: PathBuf::from(name), source };
                let mut file =
                    File::from(memfd_create(name, MemfdFlags::CLOEXEC).map_err(|errno| fault(errno.into()))?);
                file.write_all(bytes).map_err(fault)?;
                let path = descriptors.join(file.as_raw_fd().to_string());
                files.borrow_mut().push(file);
                Ok(path)
            }
            Storage::Directory(directory) => {
                let path = directory.join(name);
                fs::write(&path, bytes).map_err(|source| SignatureError::Scratch { path: path.clone(), source })?;
                Ok(path)
            }
        }
    }

    /// Path for the verified text, which `gpgv` writes.
    pub(super) fn output(&self) -> Result<PathBuf, SignatureError> {
        match &self.0 {
            Storage::Memory { .. } => self.write("text", &[]),
            // `gpgv` creates it.
            Storage::Directory(directory) => Ok(directory.join("text")),
        }
    }

    /// Provides a keyring in the form that every verifier reads: binary, with an absolute path. The kind shows whether
    /// only `gpgv` reads it.
    pub(super) fn keyring(&self, number: usize, key: &KeySource) -> Result<(PathBuf, KeyringKind), SignatureError> {
        let (name, text) = match key {
            KeySource::Inline(text) => {
                ("Signed-By".to_owned(), text.lines().map(unfold).collect::<Vec<_>>().join("\n"))
            }
            KeySource::File(path) => {
                let name = path.display().to_string();
                let fault =
                    |error: io::Error| SignatureError::Keyring { keyring: name.clone(), what: error.to_string() };
                let path = fs::canonicalize(path).map_err(fault)?;
                let bytes = keyring::read(&path).map_err(fault)?;
                if !keyring::is_armoured(&bytes) {
                    if bytes.is_empty() {
                        return Err(SignatureError::Keyring { keyring: name, what: "is empty".to_owned() });
                    }
                    let kind = if keyring::is_keybox(&bytes) { KeyringKind::Keybox } else { KeyringKind::Packets };
                    return Ok((path, kind));
                }
                (name, String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        let bytes = clearsign::dearmour(&text, "PGP PUBLIC KEY BLOCK")
            .map_err(|what| SignatureError::Keyring { keyring: name, what: what.to_owned() })?;
        Ok((self.write(&format!("keyring-{number}.gpg"), &bytes)?, KeyringKind::Packets))
    }
}

/// Decodes a line of a key within a control file: ` .` stands for an empty one.
fn unfold(line: &str) -> &str {
    match line.trim() {
        "." => "",
        line => line,
    }
}

/// `None` if another program could not open such a file: without `/proc`, with another process's `/proc`, or in a
/// process that has changed its user. In the last case the kernel gives that directory to root.
fn in_memory() -> Option<Storage> {
    let file = File::from(memfd_create("probe", MemfdFlags::CLOEXEC).ok()?);
    let descriptors = fs::canonicalize("/proc/self").ok()?.join("fd");
    let seen = File::open(descriptors.join(file.as_raw_fd().to_string())).ok()?.metadata().ok()?;
    let own = file.metadata().ok()?;
    let is_same = (seen.dev(), seen.ino()) == (own.dev(), own.ino());
    let is_ours = fs::metadata(&descriptors).is_ok_and(|directory| directory.uid() == own.uid());
    (is_same && is_ours).then(|| Storage::Memory { descriptors, files: RefCell::default() })
}

fn directory(scratch: &Path) -> Result<PathBuf, SignatureError> {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    // A killed process with the same process ID may have left one.
    for _ in 0..1000 {
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let path = scratch.join(format!("{PREFIX}{}-{number}", std::process::id()));
        match DirBuilder::new().mode(0o700).create(&path) {
            // gpgv reads a relative keyring path as one in its home directory.
            Ok(()) => return fs::canonicalize(&path).map_err(|source| SignatureError::Scratch { path, source }),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(source) => return Err(SignatureError::Scratch { path: scratch.to_owned(), source }),
        }
    }
    let source = io::Error::from(io::ErrorKind::AlreadyExists);
    Err(SignatureError::Scratch { path: scratch.to_owned(), source })
}

impl Drop for CheckFiles {
    fn drop(&mut self) {
        if let Storage::Directory(path) = &self.0 {
            // If it fails, only a few KB stay in our own directory.
            let _ = fs::remove_dir_all(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_killed_run_has_left_is_swept() {
        let scratch = tempfile::tempdir().expect("a directory");
        let names =
            ["verify-1-0", "verify-4194304-17", "verify-", "verify-1", "verify-1-", "verify-x-0", "verify-1-0-1"];
        let others = ["verify-+1-0", "verify-1-0.old", "my-verify-1-0"];
        for name in names.iter().chain(&others) {
            fs::create_dir(scratch.path().join(name)).expect("a directory");
        }
        fs::write(scratch.path().join("verify-2-0"), "").expect("a file");
        std::os::unix::fs::symlink("/nowhere", scratch.path().join("verify-3-0")).expect("a link");
        sweep(scratch.path());
        for name in names[2..].iter().chain(&others).chain(&["verify-2-0", "verify-3-0"]) {
            assert!(scratch.path().join(name).symlink_metadata().is_ok(), "{name}");
        }
        for name in &names[..2] {
            assert!(!scratch.path().join(name).exists(), "{name}");
        }
    }

    #[test]
    fn files_are_without_names_or_in_a_directory_that_goes() {
        let scratch = tempfile::tempdir().expect("a directory");
        for in_directory in [false, true] {
            let files = CheckFiles(match in_directory {
                false => in_memory().expect("/proc"),
                true => Storage::Directory(directory(scratch.path()).expect("a directory")),
            });
            let path = files.write("one", b"text").expect("a file");
            assert_eq!(fs::read(&path).expect("readable"), b"text");
            assert_eq!(fs::read_dir(scratch.path()).expect("scratch").count(), usize::from(in_directory));
        }
        assert_eq!(fs::read_dir(scratch.path()).expect("scratch").count(), 0);
    }
}
