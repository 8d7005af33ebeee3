//! The findings of a check: unverifiable suites, wrong files, extra files.

use fullbore_debian::release::{Release, ReleaseError};
use fullbore_debian::signature::SignatureError;
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;

use crate::mirror::state::StateError;
use crate::mirror::store;
use crate::mirror::subtract::Tally;
use crate::mirror::tree::Tree;

/// Why a suite could not be verified.
#[derive(Debug, thiserror::Error)]
pub enum SuiteFault {
    /// An invalid signature.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// A malformed Release.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// `Release` without `Release.gpg`, and no `InRelease`.
    #[error("there is no signature")]
    NoSignature,
    /// An unreadable file.
    #[error(transparent)]
    File(#[from] FileError),
}

impl SuiteFault {
    /// The local error, such as a full disk, if there is one; it says nothing about the suite.
    pub fn is_local(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SuiteFault::Signature(error @ SignatureError::Scratch { .. }) => Some(error),
            SuiteFault::File(error @ FileError::Io { .. }) => Some(error),
            _ => None,
        }
    }

    /// Whether another keyring may help.
    pub fn is_of_keyring(&self) -> bool {
        matches!(self, SuiteFault::Signature(SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring))
    }
}

/// A suite of the tree.
#[derive(Debug)]
pub struct SuiteFound {
    /// Its directory.
    pub directory: String,
    /// Its verified Release, or the reason against it.
    pub release: Result<Box<Release>, SuiteFault>,
}

/// What is wrong with a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Missing.
    Missing,
    /// Another size.
    Size(u64),
    /// Another hash.
    Content(Sha256),
    /// Unreadable, or not a regular file.
    Unreadable(String),
    /// An index with the right hash that cannot be parsed.
    Damaged(String),
    /// The state's list of files cannot be read to its end.
    List(String),
    /// `Release` or `Release.gpg` that contradicts the `InRelease`, or is not signed.
    Detached(String),
    /// A missing or wrong symbolic link of a suite.
    Link {
        /// The expected target.
        target: String,
        /// The target on disk, if the link exists.
        found: Option<String>,
        /// Whether the name is a directory of copies, as in a bucket.
        is_copied: bool,
    },
}

impl Fault {
    /// Whether fetching the content again repairs it.
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
    /// All names of an index.
    pub names: Option<IndexNames>,
}

/// The names of an index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexNames {
    /// The name in the Release.
    pub canonical: String,
    /// By-hash names, if the suite has them.
    pub by_hash: Vec<String>,
}

impl IndexNames {
    /// All names, the canonical one first.
    pub fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.canonical).chain(&self.by_hash).map(String::as_str)
    }

    /// Links the content into the store from any name that has it.
    ///
    /// # Errors
    /// A file of the mirror cannot be read, written or removed.
    pub fn adopt(&self, tree: &dyn Tree, sha256: Sha256, size: u64) -> Result<bool, StateError> {
        for name in self.all() {
            if store::adopt(tree, name, sha256, size)? {
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
            (Fault::List(why), _) => {
                write!(
                    f,
                    "damaged: {why}; until the next run of `fullbore mirror`, nobody knows which files were mirrored"
                )
            }
            (Fault::Detached(why), _) => write!(f, "{why}"),
            (Fault::Link { target, is_copied: true, .. }, _) => write!(f, "no complete copy of dists/{target}"),
            (Fault::Link { target, found: None, .. }, _) => write!(f, "no symbolic link to {target}"),
            (Fault::Link { target, found: Some(found), .. }, _) => write!(f, "links to {found} instead of {target}"),
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
    /// Files whose content was read and right.
    pub read: Tally,
    /// Files that are not as signed, in order of path.
    pub problems: Vec<Problem>,
    /// Files in `dists/` and `pool/` that nothing names, with their sizes.
    pub extra: Vec<(String, u64)>,
    /// Missing package lists of a suite without a state, which may never have been mirrored.
    pub absent: Vec<String>,
    /// Directories of suites that were mirrored, and are checked, without a signature.
    pub unsigned: Vec<String>,
}
