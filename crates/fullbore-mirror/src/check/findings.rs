//! What a check found: suites that cannot be believed, files that are not as signed, files that are too many.

use fullbore_debian::release::{Release, ReleaseError};
use fullbore_debian::signature::SignatureError;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Root};

use crate::mirror::state::StateError;
use crate::mirror::store;
use crate::mirror::subtract::Tally;

/// Why a suite's indexes were not believed.
#[derive(Debug, thiserror::Error)]
pub enum SuiteFault {
    /// The signature.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// What was signed.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// `Release` without `Release.gpg`, and no `InRelease`.
    #[error("there is no signature")]
    NoSignature,
    /// It cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
}

impl SuiteFault {
    /// A refusal of this machine, such as a full disk, which says nothing about the suite.
    pub fn is_local(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SuiteFault::Signature(error @ SignatureError::Scratch { .. }) => Some(error),
            SuiteFault::File(error @ FileError::Io { .. }) => Some(error),
            _ => None,
        }
    }

    /// Whether it is a key that was not given, so that another keyring may help.
    pub fn is_of_keyring(&self) -> bool {
        matches!(self, SuiteFault::Signature(SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring))
    }
}

/// A suite that was met.
#[derive(Debug)]
pub struct SuiteFound {
    /// Its directory.
    pub directory: String,
    /// Its Release, or why there is none to believe.
    pub release: Result<Box<Release>, SuiteFault>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// It is not there.
    Missing,
    /// It has another size.
    Size(u64),
    /// It has the right size, or one that nobody tells, and another hash.
    Content(Sha256),
    /// It cannot be read, or is no file.
    Unreadable(String),
    /// An index with the right hash that cannot be understood.
    Damaged(String),
    /// `Release` or `Release.gpg` beside an `InRelease` that says something else, or is signed while they are not.
    Detached(String),
    /// A suite's symbolic link that does not lead to its directory.
    Link {
        /// What it should say.
        target: String,
        /// What it says, if there is one.
        found: Option<String>,
    },
}

impl Fault {
    /// Whether the right content, fetched by its hash, mends it.
    pub fn is_of_content(&self) -> bool {
        matches!(self, Fault::Missing | Fault::Size(_) | Fault::Content(_) | Fault::Unreadable(_))
    }
}

/// A file that is not as signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Path below the directory.
    pub path: String,
    /// The size it should have, where known.
    pub size: Option<u64>,
    /// The hash it should have.
    pub sha256: Sha256,
    /// What is wrong.
    pub fault: Fault,
    /// Of an index, all names under which it may be had.
    pub names: Option<IndexNames>,
}

/// The names of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexNames {
    /// That in the Release.
    pub canonical: String,
    /// Those by hash, if the suite has them.
    pub by_hash: Vec<String>,
}

impl IndexNames {
    /// One after the other.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.canonical).chain(&self.by_hash).map(String::as_str)
    }

    /// Takes the content into the store from whichever name has it.
    ///
    /// # Errors
    /// Refusals of the system.
    pub fn adopt(&self, root: &Root, sha256: Sha256, size: u64) -> Result<bool, StateError> {
        for name in self.all() {
            if store::adopt(root, name, sha256, size)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.path)?;
        match (&self.fault, self.size) {
            (Fault::Missing, _) => write!(f, "missing"),
            (Fault::Size(found), Some(size)) => write!(f, "size {found}, index says {size}"),
            (Fault::Size(found), None) => write!(f, "size {found}"),
            (Fault::Content(found), _) => write!(f, "SHA-256 {found}, index says {}", self.sha256),
            (Fault::Unreadable(error), _) => write!(f, "cannot be read: {error}"),
            (Fault::Damaged(error), _) => write!(f, "is as signed, but damaged: {error}"),
            (Fault::Detached(why), _) => write!(f, "{why}"),
            (Fault::Link { target, found: None }, _) => write!(f, "no symbolic link to {target}"),
            (Fault::Link { target, found: Some(found) }, _) => write!(f, "links to {found} instead of {target}"),
        }
    }
}

/// What was found.
#[derive(Debug, Default)]
pub struct Findings {
    /// The suites.
    pub suites: Vec<SuiteFound>,
    /// Files that are wanted, indexes included.
    pub wanted: Tally,
    /// Of these, files whose content was read, and right.
    pub read: Tally,
    /// Files that are not as signed, in order of path: what is to be repaired.
    pub problems: Vec<Problem>,
    /// Files in `dists/` and `pool/` that nothing names, with their sizes.
    pub extra: Vec<(String, u64)>,
    /// Lists of packages that a Release names, of which no form is here, where no state tells whether they
    /// were ever wanted.
    pub absent: Vec<String>,
    /// Directories of suites that were mirrored without a signature, and so are checked without one.
    pub unsigned: Vec<String>,
}
