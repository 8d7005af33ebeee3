//! The pass over an index: decompressed, patched, hashed, compressed and written at once.
//!
//! The text is never whole in memory: it passes in frames (see [`kept`](crate::frames)), and what no
//! edit touches is written as it was read. Everything is hashed once, on the way; the hash of the
//! old index is not needed when that of the new one is right, and is computed only to explain that
//! it is not.

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
use thiserror::Error;

use self::clocks::Clocks;
use self::source::Stream;
use self::target::Target;
use crate::frames::{Encoder, Layout, Level};

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
    /// There is no memory to compress or decompress with, or no thread to be had.
    #[error("cannot make {}: {source}", path.display())]
    Codec {
        /// The path of the new index.
        path: PathBuf,
        /// What the system or the library said.
        source: io::Error,
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
    /// More came out than a file of its size can be meant to hold, where nobody said how much it must be.
    #[error("{}: more than {limit_bytes} bytes come out of it", path.display())]
    TooLarge {
        /// The path of the old index.
        path: PathBuf,
        /// How much may.
        limit_bytes: u64,
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
    "content of {size} bytes has SHA-256 {sha256}, expected are {} bytes, {}{}",
    expected.size, expected.sha256, old.map_or_else(String::new, |old| format!("; the old content has {} bytes, {}", old.size, old.sha256))
)]
pub struct Mismatch {
    /// What should have come out.
    pub expected: Expected,
    /// How much did, in bytes; a pass ends when it is more than expected.
    pub size: u64,
    /// And what that was.
    pub sha256: Sha256,
    /// The old content: whether it was the right one to patch. Not where nothing was patched, or where it is
    /// far larger than what was to come out.
    pub old: Option<Expected>,
}

/// Threads that help with compression, at most: the hash is one chain, and eight threads compress
/// faster than it hashes, at all levels of ours.
const THREADS_MAX: usize = 8;

/// Memory for what these threads compress with. With the text under way (2 MB for each, when
/// eight) and the program itself a pass stays below 40 MB.
const ENCODERS_BYTES: usize = 24 << 20;

/// Bytes of text for each of a file where nobody says how much comes out. A guess: indexes have 5 to 20, a bomb
/// of xz has 7000.
const EXPANSION_MAX: u64 = 1000;

/// A tiny file may be that large in any case; no file may be larger than that.
const PLAIN_BYTES_LEAST: u64 = 64 << 20;
const PLAIN_BYTES_MAX: u64 = 64 << 30;

/// Bytes of an old index, beyond twice the new one's, that are read to explain a failure.
const EXPLAINED_BYTES: u64 = 64 << 20;

/// Makes the new index out of the old one.
///
/// # Errors
/// As [`RewriteError`] says.
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
        // The file is not what its table says: read as anybody else would read it.
        plan.layout = None;
        result = attempt(&plan, job);
    }
    result.map_err(|stop| explain(stop, &plan, job))
}

fn form_of(path: &Path) -> Form {
    Form::of(&path.to_string_lossy())
}

/// What is clear before the pass.
struct Plan<'a> {
    file: &'a File,
    /// Where the old frames are; none if it is read from its beginning.
    layout: Option<&'a Layout>,
    old_form: Form,
    new_form: Form,
    level: Level,
    /// Most bytes of text that may come out.
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

/// A pass that has come to its end; nothing is visible yet.
struct PassResult {
    hasher: Sha256Hasher,
    target: Target,
    copied: u64,
    encoded: u64,
}

/// Why a pass ended before its end.
enum PassError {
    Read(io::Error),
    /// A frame is not what the table says.
    Frame(io::Error),
    /// No memory for a codec, no thread.
    Codec(io::Error),
    Write(FileError),
    /// The new path has no name that could be written.
    Name,
    Splice(SpliceError),
    /// More came out than is expected: so far this.
    TooLong(Option<Box<Sha256Hasher>>),
    /// All came out, and it is not what is expected.
    Wrong(Sha256, u64),
    Panicked(String),
    /// Another thread is gone; it knows why.
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
            return RewriteError::Panicked { path: new, message: "it has ended without a word".to_owned() };
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
    // Whether the old index was the right one is what the reader of the message wants to know.
    let limit = expected.size.saturating_mul(2).saturating_add(EXPLAINED_BYTES);
    match plan.stream().map_err(|_| ()).and_then(|stream| stream.hash(limit).map_err(|_| ())) {
        Ok(hasher) => mismatch(hasher.map(|hasher| Expected { size: hasher.bytes(), sha256: hasher.finish() })),
        Err(()) => RewriteError::Read { path: old, source: io::Error::other("it changed while it was read") },
    }
}

/// How much may come out of a file where nobody says it.
fn plausible_bytes(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.len().saturating_mul(EXPANSION_MAX).clamp(PLAIN_BYTES_LEAST, PLAIN_BYTES_MAX))
}
