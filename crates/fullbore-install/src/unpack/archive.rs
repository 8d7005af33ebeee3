//! A `.deb` file that was opened: everything before its files is in memory.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_debian::deb::{Control, DataMember, DebError, Package, Proof};
use fullbore_engine::digest::{Sha256, Sha256Hasher};

use super::read_ahead::{PlainReader, Slot};
use crate::database::Stanza;

/// Why a package could not be opened or is not the expected one.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the kernel says.
        #[source]
        source: io::Error,
    },
    /// It is no package, or a damaged one.
    #[error("{}: {source}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: DebError,
    },
    /// Its control file does not say what it is.
    #[error("{}: control file: {what}", path.display())]
    Control {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// Its bytes are not those that the signed index names.
    #[error("{}: {bytes} bytes with SHA-256 {actual}; the index says {expected_bytes} bytes, {expected}", path.display())]
    Mismatch {
        /// Which file.
        path: PathBuf,
        /// Length found.
        bytes: u64,
        /// Hash found.
        actual: Sha256,
        /// Length announced.
        expected_bytes: u64,
        /// Hash announced.
        expected: Sha256,
    },
}

/// An opened package.
#[derive(Debug, Clone)]
pub struct Archive {
    path: PathBuf,
    package: Package,
    stanza: Stanza,
    /// Has seen what lies before `data.tar`: exactly the bytes that were parsed.
    beginning: Sha256Hasher,
    expected: Option<(u64, Sha256)>,
    ahead: Option<Arc<Slot>>,
}

impl Archive {
    /// Reads a package up to its files. Nothing is verified yet.
    ///
    /// # Errors
    /// See [`ArchiveError`].
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

    /// The size in bytes and SHA-256 that a signed index names. Without, nothing is verified but
    /// what the formats check themselves.
    #[must_use]
    pub fn expecting(mut self, bytes: u64, sha256: Sha256) -> Archive {
        self.expected = Some((bytes, sha256));
        self
    }

    /// Its plain files are there already, or will be ([`super::ReadAhead`]).
    #[must_use]
    pub fn ahead(mut self, slot: Arc<Slot>) -> Archive {
        self.ahead = Some(slot);
        self
    }

    /// Its plain `data.tar`, verified, if it was decompressed before its turn.
    pub(super) fn plain(&self) -> Option<PlainReader> {
        self.ahead.as_ref()?.wait()
    }

    /// Where it lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The package's name.
    pub fn name(&self) -> &str {
        self.stanza.get("Package").unwrap_or_default()
    }

    /// Its version, as the control file has it.
    pub fn version(&self) -> &str {
        self.stanza.get("Version").unwrap_or_default()
    }

    /// Its architecture; `all` for any.
    pub fn architecture(&self) -> &str {
        self.stanza.get("Architecture").unwrap_or_default()
    }

    /// The fields of its control file.
    pub fn stanza(&self) -> &Stanza {
        &self.stanza
    }

    /// Scripts, conffiles, triggers and so on.
    pub fn control(&self) -> &Control {
        &self.package.control
    }

    /// Whether a script has to run before its files are there.
    pub fn has_preinst(&self) -> bool {
        self.control().file("preinst").is_some()
    }

    /// Where its files are.
    pub fn data(&self) -> DataMember {
        self.package.data
    }

    /// Reads the whole file and compares it with what is expected; nothing if nothing is.
    ///
    /// # Errors
    /// [`ArchiveError::Mismatch`], [`ArchiveError::Read`].
    pub fn verify(&self) -> Result<(), ArchiveError> {
        if self.expected.is_none() {
            return Ok(());
        }
        let Hashing { input, mut hasher, .. } = self.data_reader()?;
        hasher.read_to_end(input).map_err(|source| ArchiveError::Read { path: self.path.clone(), source })?;
        self.check(hasher)
    }

    /// A reader that stands at `data.tar` and hashes what it reads, the beginning included.
    pub(super) fn data_reader(&self) -> Result<Hashing<File>, ArchiveError> {
        let error = |source| ArchiveError::Read { path: self.path.clone(), source };
        let mut file = File::open(&self.path).map_err(error)?;
        file.seek(SeekFrom::Start(self.package.data.offset)).map_err(error)?;
        Ok(Hashing { input: file, hasher: self.beginning.clone(), on: self.expected.is_some() })
    }

    /// What says that its files are right.
    pub(super) fn proof(&self) -> Proof {
        if self.expected.is_some() { Proof::HashOfPacked } else { Proof::Checksums }
    }

    /// Compares the hash of all bytes with what is expected.
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

/// Reads a whole file, whatever it is, and compares it with what a signed index names.
///
/// # Errors
/// [`ArchiveError::Mismatch`], [`ArchiveError::Read`].
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

/// Hashes what is read.
#[derive(Debug)]
pub(super) struct Hashing<R> {
    pub input: R,
    pub hasher: Sha256Hasher,
    /// Whether anything is expected of the bytes.
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
