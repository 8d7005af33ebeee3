//! An open `.deb` file, with everything before its file archive in memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_debian::deb::{Control, DataMember, DebError, Package, Proof};
use fullbore_engine::digest::{Sha256, Sha256Hasher};

use super::read_ahead::{PlainReader, Slot};
use crate::database::Stanza;

/// Error in opening or verifying a package.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ArchiveError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The file is not a package, or is damaged.
    #[error("{}: {source}", path.display())]
    Format {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        #[source]
        source: DebError,
    },
    /// The control file is incomplete.
    #[error("{}: control file: {what}", path.display())]
    Control {
        /// Path of the file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// Size or SHA-256 differ from the signed index.
    #[error("{}: {bytes} bytes with SHA-256 {actual}; the index says {expected_bytes} bytes, {expected}", path.display())]
    Mismatch {
        /// Path of the file.
        path: PathBuf,
        /// Actual size in bytes.
        bytes: u64,
        /// Actual SHA-256.
        actual: Sha256,
        /// Signed size in bytes.
        expected_bytes: u64,
        /// Signed SHA-256.
        expected: Sha256,
    },
}

/// An open package.
#[derive(Debug, Clone)]
pub struct Archive {
    path: PathBuf,
    package: Package,
    stanza: Stanza,
    /// Hash of exactly the parsed bytes, those before `data.tar`.
    beginning: Sha256Hasher,
    expected: Option<(u64, Sha256)>,
    ahead: Option<Arc<Slot>>,
}

impl Archive {
    /// Reads a package up to its files, without verification.
    ///
    /// # Errors
    /// Every variant of [`ArchiveError`] but `Mismatch`.
    pub fn open(path: &Path) -> Result<Archive, ArchiveError> {
        let path = path.to_owned();
        let file = File::open(&path).map_err(|source| ArchiveError::Read { path: path.clone(), source })?;
        let mut input =
            Hashing { input: BufReader::with_capacity(64 << 10, file), hasher: Sha256Hasher::new(), on: true };
        let package =
            Package::read(&mut input).map_err(|source| ArchiveError::Format { path: path.clone(), source })?;
        let wrong = |what: String| ArchiveError::Control { path: path.clone(), what };
        let text = std::str::from_utf8(package.control.stanza()).map_err(|_| wrong("not UTF-8".to_owned()))?;
        let stanza = Stanza::parse(text.trim_matches('\n')).map_err(wrong)?;
        for field in ["Package", "Version", "Architecture"] {
            if stanza.get(field).is_none_or(str::is_empty) {
                return Err(wrong(format!("no {field}")));
            }
        }
        Ok(Archive { path, package, stanza, beginning: input.hasher, expected: None, ahead: None })
    }

    /// Sets the size in bytes and the SHA-256 of a signed index. Without them only the checksums of the formats are
    /// verified.
    #[must_use]
    pub fn expecting(mut self, bytes: u64, sha256: Sha256) -> Archive {
        self.expected = Some((bytes, sha256));
        self
    }

    /// Sets the slot of the decompressed files (see [`super::ReadAhead`]).
    #[must_use]
    pub fn ahead(mut self, slot: Arc<Slot>) -> Archive {
        self.ahead = Some(slot);
        self
    }

    /// Verified plain `data.tar`, if it was decompressed ahead.
    pub(super) fn plain(&self) -> Option<PlainReader> {
        self.ahead.as_ref()?.wait()
    }

    /// Path of the package file, as given to [`Archive::open`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Name of the package, from its control file.
    pub fn name(&self) -> &str {
        self.stanza.get("Package").unwrap_or_default()
    }

    /// Version, as in the control file.
    pub fn version(&self) -> &str {
        self.stanza.get("Version").unwrap_or_default()
    }

    /// Architecture of the package; `all` if it fits any.
    pub fn architecture(&self) -> &str {
        self.stanza.get("Architecture").unwrap_or_default()
    }

    /// All fields of the package's control file.
    pub fn stanza(&self) -> &Stanza {
        &self.stanza
    }

    /// Control files: scripts, conffiles, triggers and others.
    pub fn control(&self) -> &Control {
        &self.package.control
    }

    /// Whether the package has a preinst script.
    pub fn has_preinst(&self) -> bool {
        self.control().file("preinst").is_some()
    }

    /// Position and format of `data.tar` in the package file.
    pub fn data(&self) -> DataMember {
        self.package.data
    }

    /// Reads the whole file and compares it with the expected size and SHA-256, if set.
    ///
    /// # Errors
    /// [`ArchiveError::Read`] if the file cannot be read, [`ArchiveError::Mismatch`] for another size or SHA-256.
    pub fn verify(&self) -> Result<(), ArchiveError> {
        if self.expected.is_none() {
            return Ok(());
        }
        let Hashing { input, mut hasher, .. } = self.data_reader()?;
        hasher.read_to_end(input).map_err(|source| ArchiveError::Read { path: self.path.clone(), source })?;
        self.check(hasher)
    }

    /// Opens the file at `data.tar`. The reader hashes its bytes in addition to those before.
    pub(super) fn data_reader(&self) -> Result<Hashing<File>, ArchiveError> {
        let error = |source| ArchiveError::Read { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(error)?;
        file.seek(SeekFrom::Start(self.package.data.offset)).map_err(error)?;
        Ok(Hashing { input: file, hasher: self.beginning.clone(), on: self.expected.is_some() })
    }

    /// Evidence that the files are correct.
    pub(super) fn proof(&self) -> Proof {
        if self.expected.is_some() { Proof::HashOfPacked } else { Proof::Checksums }
    }

    /// Compares the hash of all bytes with the expected one.
    pub(super) fn check(&self, hasher: Sha256Hasher) -> Result<(), ArchiveError> {
        let Some((expected_bytes, expected)) = self.expected else { return Ok(()) };
        let bytes = hasher.bytes();
        match hasher.verify(expected_bytes, expected) {
            Ok(_) => Ok(()),
            Err(actual) => {
                Err(ArchiveError::Mismatch { path: self.path.clone(), bytes, actual, expected_bytes, expected })
            }
        }
    }
}

/// Reads a whole file and compares it with the size and SHA-256 of a signed index.
///
/// # Errors
/// [`ArchiveError::Read`] if the file cannot be read, [`ArchiveError::Mismatch`] for another size or SHA-256.
pub fn verify(path: &Path, bytes: u64, sha256: Sha256) -> Result<(), ArchiveError> {
    let error = |source| ArchiveError::Read { path: path.to_owned(), source };
    let mut hasher = Sha256Hasher::new();
    hasher.read_to_end(File::open(path).map_err(error)?).map_err(error)?;
    let found = hasher.bytes();
    hasher.verify(bytes, sha256).map(|_| ()).map_err(|actual| ArchiveError::Mismatch {
        path: path.to_owned(),
        bytes: found,
        actual,
        expected_bytes: bytes,
        expected: sha256,
    })
}

/// Reader that hashes its bytes.
#[derive(Debug)]
pub(super) struct Hashing<R> {
    pub input: R,
    pub hasher: Sha256Hasher,
    /// Whether a hash is expected.
    on: bool,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.input.read(buffer)?;
        if self.on {
            self.hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}
