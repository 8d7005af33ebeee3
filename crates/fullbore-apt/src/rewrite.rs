//! Rewrites an index in one pass: decompresses, patches, hashes, compresses and writes it.
//!
//! The text is never whole in memory. It is processed in frames (see [`frames`](crate::frames)), and unchanged frames
//! are copied. The new text is hashed once. The old text is hashed only to explain a wrong result.

mod clocks;
mod inline;
mod parallel;
mod pass;
mod source;
mod target;

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::{Path, PathBuf};

use fullbore_debian::compression::Form;
use fullbore_debian::pdiff::{Edits, SpliceError};
use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::files::FileError;
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use thiserror::Error;

use self::clocks::Clocks;
use self::source::Stream;
use self::target::Target;
use crate::frames::{Encoder, Layout, Level};

/// A pass: the old index, the edits, and the new index.
#[derive(Debug, Clone, Copy)]
pub struct Rewrite<'a> {
    /// The old index. Links are followed.
    pub old: &'a Path,
    /// Its form; by its extension if not given.
    pub old_form: Option<Form>,
    /// The edits; empty for a conversion.
    pub edits: &'a Edits,
    /// The new index, written under a temporary name and renamed when its content is right. It may be `old`.
    pub new: &'a Path,
    /// Its form; by its extension if not given. bz2 cannot be written.
    pub new_form: Option<Form>,
    /// How hard changed frames are compressed.
    pub level: Level,
    /// The expected result. Without it, the result is not verified.
    pub expected: Option<Expected>,
    /// Receives the clocks of the stages.
    pub ledger: Option<&'a Ledger>,
    /// Number of cores to use; 0 for all available. With 1 no other threads are used.
    pub threads: usize,
}

/// Size and hash that the new index must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expected {
    /// Length of the decompressed content in bytes.
    pub size: u64,
    /// SHA-256 of the decompressed content, from the signed Release.
    pub sha256: Sha256,
}

/// Sizes, hash and frame counts of a completed pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rewritten {
    /// Length of the plain content, in bytes.
    pub plain_size: u64,
    /// SHA-256 of the decompressed content.
    pub sha256: Sha256,
    /// Length of the new file, in bytes.
    pub file_size: u64,
    /// Number of frames that were copied unchanged.
    pub frames_copied: u64,
    /// Number of frames that were compressed anew.
    pub frames_encoded: u64,
}

/// Why a pass failed. The old index is unchanged then, and no temporary file is left.
#[derive(Debug, Error)]
pub enum RewriteError {
    /// The old index cannot be read or decompressed.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the old index.
        path: PathBuf,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// The new index cannot be written.
    #[error(transparent)]
    Write(#[from] FileError),
    /// The new index has an unusable path, or a form that cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Target {
        /// Path of the new index.
        path: PathBuf,
        /// Why it cannot be written.
        reason: &'static str,
    },
    /// A codec has no memory, or a thread cannot be started.
    #[error("cannot make {}: {source}", path.display())]
    Codec {
        /// The path of the new index.
        path: PathBuf,
        /// The error of the system or the library.
        source: io::Error,
    },
    /// The edits do not fit the old index.
    #[error("{}: {source}", path.display())]
    Splice {
        /// The path of the old index.
        path: PathBuf,
        /// Where and why the edits do not fit.
        source: SpliceError,
    },
    /// The result is not the expected content.
    #[error("{}: {wrong}", path.display())]
    Mismatch {
        /// The path of the new index.
        path: PathBuf,
        /// The actual and the expected content.
        wrong: Box<Mismatch>,
    },
    /// The content is implausibly large, and its expected size is unknown.
    #[error("{}: decompresses to more than {}", path.display(), units::bytes(*limit_bytes))]
    TooLarge {
        /// The path of the old index.
        path: PathBuf,
        /// The limit in bytes.
        limit_bytes: u64,
    },
    /// A thread panicked: a bug in fullbore.
    #[error("a thread that works on {} panicked: {message}", path.display())]
    Panicked {
        /// The path of the new index.
        path: PathBuf,
        /// Text of the panic.
        message: String,
    },
}

/// Content that differs from the expected one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "content of {size} bytes has SHA-256 {sha256}, expected are {} bytes, {}{}",
    expected.size, expected.sha256, old.map_or_else(String::new, |old| format!("; the old content has {} bytes, {}", old.size, old.sha256))
)]
pub struct Mismatch {
    /// Expected size and hash of the content.
    pub expected: Expected,
    /// Actual length in bytes; a pass ends when it exceeds the expected one.
    pub size: u64,
    /// SHA-256 of the actual content.
    pub sha256: Sha256,
    /// The old content, which may be the wrong one to patch; `None` for a conversion, or if it is far larger than expected.
    pub old: Option<Expected>,
}

/// Largest number of compressing threads: eight compress faster than one thread hashes, at every level.
const THREADS_MAX: usize = 8;

/// Memory for the encoders. With the buffers (2 MB per thread) and the program a pass stays below 40 MB.
const ENCODERS_BYTES: usize = 24 << 20;

/// Largest expansion of a file of unknown plain size. A guess: indexes have 5 to 20, an xz bomb has 7000.
const EXPANSION_MAX: u64 = 1000;

/// Bounds of that limit: always allowed, and never exceeded.
const PLAIN_BYTES_LEAST: u64 = 64 << 20;
const PLAIN_BYTES_MAX: u64 = 64 << 30;

/// Bytes of an old index, beyond twice the new size, that are hashed to explain a failure.
const EXPLAINED_BYTES: u64 = 64 << 20;

/// Makes the new index from the old one.
///
/// # Errors
/// [`RewriteError`] if the old index cannot be read or does not fit the edits, if the new one cannot be written, or if
/// its content is not the expected one.
pub fn rewrite(job: &Rewrite<'_>) -> Result<Rewritten, RewriteError> {
    let old_form = job.old_form.unwrap_or_else(|| form_of(job.old));
    let new_form = job.new_form.unwrap_or_else(|| form_of(job.new));
    if new_form == Form::Bz2 {
        return Err(RewriteError::Target { path: job.new.to_owned(), reason: "bz2 is only read" });
    }
    let read_error = |source| RewriteError::Read { path: job.old.to_owned(), source };
    let file = source::open(job.old).map_err(read_error)?;
    let layout = Layout::of(&file, old_form).map_err(read_error)?;
    let available = || std::thread::available_parallelism().map_or(1, usize::from);
    let threads_max = (ENCODERS_BYTES / Encoder::memory_bytes(new_form, job.level)).clamp(1, THREADS_MAX);
    let mut plan = Plan {
        file: &file,
        layout: layout.as_ref(),
        old_form,
        new_form,
        level: job.level,
        limit: match job.expected {
            Some(expected) => expected.size,
            None => plausible_bytes(&file).map_err(read_error)?,
        },
        threads: if job.threads == 0 { available() } else { job.threads }.min(threads_max),
        clocks: Clocks::new(job.ledger),
    };
    let mut result = attempt(&plan, job);
    if matches!(result, Err(PassError::Frame(_))) {
        // The table is wrong: read the file from its beginning.
        plan.layout = None;
        result = attempt(&plan, job);
    }
    result.map_err(|stop| explain(stop, &plan, job))
}

fn form_of(path: &Path) -> Form {
    Form::of(&path.to_string_lossy())
}

/// The fixed parameters of a pass.
struct Plan<'a> {
    file: &'a File,
    /// The old frames; `None` if the file is read from its beginning.
    layout: Option<&'a Layout>,
    old_form: Form,
    new_form: Form,
    level: Level,
    /// Largest size of the new text in bytes.
    limit: u64,
    threads: usize,
    clocks: Clocks,
}

impl Plan<'_> {
    /// Whether frames may be copied from the old file to the new one.
    fn copies(&self) -> bool {
        self.layout.is_some() && self.old_form == self.new_form
    }

    /// The old text from its beginning.
    fn stream(&self) -> Result<Stream, PassError> {
        let open = || {
            let mut file = self.file.try_clone()?;
            file.rewind()?;
            Stream::open(file, self.old_form, self.new_form != Form::Plain, &self.clocks)
        };
        open().map_err(PassError::Read)
    }
}

/// A finished pass; its file is not renamed yet.
struct PassResult {
    hasher: Sha256Hasher,
    target: Target,
    copied: u64,
    encoded: u64,
}

/// Why a pass failed.
enum PassError {
    Read(io::Error),
    /// A frame differs from the table.
    Frame(io::Error),
    /// No memory for a codec, or no thread.
    Codec(io::Error),
    Write(FileError),
    /// The new path is not UTF-8.
    Name,
    Splice(SpliceError),
    /// The text exceeds the expected size; its hash so far.
    TooLong(Option<Box<Sha256Hasher>>),
    /// The complete text is wrong.
    Wrong(Sha256, u64),
    Panicked(String),
    /// Another thread ended; its error says why.
    Lost,
}

fn attempt(plan: &Plan<'_>, job: &Rewrite<'_>) -> Result<Rewritten, PassError> {
    let target = Target::create(job.new, plan.clocks.write.clone())?;
    let made = match plan.threads {
        1 => inline::run(plan, job.edits, target),
        _ => parallel::run(plan, job.edits, target),
    }?;
    let plain_size = made.hasher.bytes();
    let sha256 = match job.expected {
        Some(expected) => {
            let verified = made.hasher.verify(expected.size, expected.sha256);
            verified.map_err(|actual| PassError::Wrong(actual, plain_size))?.sha256()
        }
        None => made.hasher.finish(),
    };
    let file_size = made.target.finish().map_err(PassError::Write)?;
    Ok(Rewritten { plain_size, sha256, file_size, frames_copied: made.copied, frames_encoded: made.encoded })
}

fn explain(stop: PassError, plan: &Plan<'_>, job: &Rewrite<'_>) -> RewriteError {
    let (old, new) = (job.old.to_owned(), job.new.to_owned());
    let (sha256, size) = match stop {
        PassError::Read(source) | PassError::Frame(source) => return RewriteError::Read { path: old, source },
        PassError::Codec(source) => return RewriteError::Codec { path: new, source },
        PassError::Write(error) => return RewriteError::Write(error),
        PassError::Name => return RewriteError::Target { path: new, reason: "its name is not UTF-8" },
        PassError::Splice(source) => return RewriteError::Splice { path: old, source },
        PassError::Panicked(message) => return RewriteError::Panicked { path: new, message },
        PassError::Lost => {
            return RewriteError::Panicked { path: new, message: "it ended without a result".to_owned() };
        }
        PassError::Wrong(sha256, size) => (sha256, size),
        PassError::TooLong(seen) => seen.map_or((Sha256::EMPTY, 0), |hasher| (hasher.clone().finish(), hasher.bytes())),
    };
    let Some(expected) = job.expected else {
        return RewriteError::TooLarge { path: old, limit_bytes: plan.limit };
    };
    let mismatch =
        |old| RewriteError::Mismatch { path: new, wrong: Box::new(Mismatch { expected, size, sha256, old }) };
    if job.edits.is_empty() {
        return mismatch(None);
    }
    // The message says whether the old index was the right one.
    let limit = expected.size.saturating_mul(2).saturating_add(EXPLAINED_BYTES);
    match plan.stream().map_err(|_| ()).and_then(|stream| stream.hash(limit).map_err(|_| ())) {
        Ok(hasher) => mismatch(hasher.map(|hasher| Expected { size: hasher.bytes(), sha256: hasher.finish() })),
        Err(()) => RewriteError::Read { path: old, source: io::Error::other("it changed while it was read") },
    }
}

/// The limit for a file of unknown plain size.
fn plausible_bytes(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len().saturating_mul(EXPANSION_MAX).clamp(PLAIN_BYTES_LEAST, PLAIN_BYTES_MAX))
}
