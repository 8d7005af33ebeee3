//! The pass over an index: decompressed, patched, hashed, compressed and written at once.

use std::io;
use std::path::{Path, PathBuf};

use fullbore_debian::compression::Form;
use fullbore_debian::pdiff::{Edits, SpliceError};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;
use fullbore_engine::stage::Ledger;
use thiserror::Error;

use crate::kept::Level;

/// One pass: an old index and what changes in it.
#[derive(Debug, Clone, Copy)]
pub struct Rewrite<'a> {
    /// The index as it is. Links are followed.
    pub old: &'a Path,
    /// Its form; by its extension if not given.
    pub old_form: Option<Form>,
    /// What changes; nothing for the conversion of a file that was fetched.
    pub edits: &'a Edits,
    /// The index as it shall be; written beside it under a temporary name, and visible only
    /// when its content is right. May be the same as `old`.
    pub new: &'a Path,
    /// Its form; by its extension if not given. All but bz2 can be written.
    pub new_form: Option<Form>,
    /// How hard to compress what is compressed.
    pub level: Level,
    /// What must come out. Without it the result is as good as `old` and the edits.
    pub expected: Option<Expected>,
    /// Where the stages put their clocks.
    pub ledger: Option<&'a Ledger>,
    /// Cores to use; 0 for all that this process may run on. With 1 nothing is handed over
    /// between threads.
    pub threads: usize,
}

/// What the plain content must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Length, in bytes.
    pub size: u64,
    /// SHA-256.
    pub sha256: Sha256,
}

/// What a pass has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewritten {
    /// Length of the plain content, in bytes.
    pub plain_size: u64,
    /// SHA-256 of the plain content.
    pub sha256: Sha256,
    /// Length of the new file, in bytes.
    pub file_size: u64,
    /// Frames that were taken over as they were.
    pub frames_copied: u64,
    /// Frames that were compressed.
    pub frames_encoded: u64,
}

/// Why there is no new index. The old one is untouched then, and nothing is left beside it.
#[derive(Debug, Error)]
pub enum RewriteError {
    /// The old index cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// What the system or the decompressor said.
        source: io::Error,
    },
    /// The new one cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// A path that cannot be written to, or a form that we do not write.
    #[error("cannot write {}: {reason}", path.display())]
    Target {
        /// The path.
        path: PathBuf,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The edits do not fit the old index.
    #[error("{}: {source}", path.display())]
    Splice {
        /// The path of the old index.
        path: PathBuf,
        /// What does not fit.
        source: SpliceError,
    },
    /// Something else came out.
    #[error("{}: {wrong}", path.display())]
    Mismatch {
        /// The path of the new index.
        path: PathBuf,
        /// What, and from what.
        wrong: Box<Mismatch>,
    },
    /// An error of this program.
    #[error("a thread that works on {} panicked: {message}", path.display())]
    Panicked {
        /// The path of the new index.
        path: PathBuf,
        /// What the panic said.
        message: String,
    },
}

/// What came out instead of what was expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "patched content of {size} bytes has SHA-256 {sha256}, expected are {} bytes, {}; the old content has {old_size} bytes, {old_sha256}",
    expected.size, expected.sha256
)]
pub struct Mismatch {
    /// What should have come out.
    pub expected: Expected,
    /// How much did, in bytes; a pass ends when it is more than expected.
    pub size: u64,
    /// And what that was.
    pub sha256: Sha256,
    /// Length of the old content: whether it was the right one to patch.
    pub old_size: u64,
    /// SHA-256 of the old content.
    pub old_sha256: Sha256,
}

/// Makes the new index out of the old one.
///
/// # Errors
/// As [`RewriteError`] says.
pub fn rewrite(job: &Rewrite<'_>) -> Result<Rewritten, RewriteError> {
    Err(RewriteError::Target { path: job.new.to_owned(), reason: "this is not built yet" })
}
