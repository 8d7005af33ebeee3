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
pub(super) enum SuiteFault {
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
    /// The local error, such as a full disk, if the reason is one. It says nothing about the suite.
    pub(super) fn is_local(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            SuiteFault::Signature(error @ SignatureError::Scratch { .. }) => Some(error),
            SuiteFault::File(error @ FileError::Io { .. }) => Some(error),
            _ => None,
        }
    }

    /// Whether another keyring may help: the signature could not be verified with this one.
    pub(super) fn is_of_keyring(&self) -> bool {
        matches!(self, SuiteFault::Signature(SignatureError::NoPublicKey { .. } | SignatureError::NoKeyring))
    }
}

/// A suite in the checked tree.
#[derive(Debug)]
pub(super) struct SuiteFound {
    /// Directory of the suite, relative to the tree.
    pub directory: String,
    /// Verified Release, or the reason why it cannot be verified.
    pub release: Result<Box<Release>, SuiteFault>,
}

/// Fault of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// Missing.
    Missing,
    /// Another size, in bytes.
    Size(u64),
    /// Another hash: the SHA-256 of the content.
    Content(Sha256),
    /// Unreadable, or not a regular file.
    Unreadable(String),
    /// An index with the right hash that cannot be parsed.
    Damaged(String),
    /// The state's list of files cannot be read to its end.
    List(String),
    /// `Release` or `Release.gpg` contradicts the `InRelease`, or has no valid signature.
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
    /// Whether fetching the content again repairs the fault.
    pub(super) fn is_of_content(&self) -> bool {
        matches!(self, Fault::Missing | Fault::Size(_) | Fault::Content(_) | Fault::Unreadable(_))
    }
}

/// A file that differs from the signed indexes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    /// Path relative to the checked directory.
    pub path: String,
    /// Expected size in bytes, if known.
    pub size: Option<u64>,
    /// Expected SHA-256 of the content.
    pub sha256: Sha256,
    /// Difference from the signed indexes.
    pub fault: Fault,
    /// All names of the file, if it is an index.
    pub names: Option<IndexNames>,
}

/// Paths under which one index is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct IndexNames {
    /// Path by the name in the Release.
    pub canonical: String,
    /// By-hash paths, if the suite has them.
    pub by_hash: Vec<String>,
}

impl IndexNames {
    /// All names, the canonical one first.
    pub(super) fn all(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&self.canonical).chain(&self.by_hash).map(String::as_str)
    }

    /// Links the content into the store of files by hash, from whichever name has it. Returns whether one has.
    ///
    /// # Errors
    /// [`StateError`] if a file of the mirror cannot be read or linked.
    pub(super) fn adopt(&self, tree: &dyn Tree, sha256: Sha256, size: u64) -> Result<bool, StateError> {
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
                    "damaged: {why}; until the next run of `fullbore mirror`, it is not known which files were mirrored"
                )
            }
            (Fault::Detached(why), _) => write!(f, "{why}"),
            (Fault::Link { target, is_copied: true, .. }, _) => write!(f, "no complete copy of dists/{target}"),
            (Fault::Link { target, found: None, .. }, _) => write!(f, "no symbolic link to {target}"),
            (Fault::Link { target, found: Some(found), .. }, _) => write!(f, "links to {found} instead of {target}"),
        }
    }
}

/// Result of a check.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Suites of the tree, in order of directory.
    pub suites: Vec<SuiteFound>,
    /// Number and size of the expected files, with indexes.
    pub wanted: Tally,
    /// Number and size of the files that were read and found right.
    pub read: Tally,
    /// Problems, in order of path.
    pub problems: Vec<Problem>,
    /// Files in `dists/` and `pool/` that no index names: path and size in bytes.
    pub extra: Vec<(String, u64)>,
    /// Package lists that are missing and may never have been mirrored: the suite has no state.
    pub absent: Vec<String>,
    /// Directories of suites that were mirrored without a signature, and so are checked without one.
    pub unsigned: Vec<String>,
}
