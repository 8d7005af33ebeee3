//! Rebuilds indexes, by patches or conversion, one per thread, while others are downloaded.

use std::fs::File;
use std::io::{BufReader, Read};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use fullbore_debian::compression::{Checked, Form, Reader};
use fullbore_debian::pdiff::{Edits, ScriptError};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;

use super::strategy::Patch;
use crate::frames::Level;
use crate::rewrite::{Expected, Rewrite, RewriteError, rewrite};

/// Largest plain patch in bytes; bounds the memory for it. Debian's largest have 10 MB.
const PATCH_BYTES_MAX: u64 = 1 << 30;

/// An index to rebuild from a local or downloaded file.
#[derive(Debug)]
pub(super) struct RebuildJob {
    /// Number of the index, which its result carries.
    pub number: usize,
    /// The source: the old index, or the downloaded one.
    pub old: PathBuf,
    /// Compression of the source.
    pub old_form: Form,
    /// Patches with their files, oldest first; none for a conversion.
    pub patches: Vec<(Patch, PathBuf)>,
    /// The path of the new index.
    pub new: PathBuf,
    /// Compression of the new index.
    pub new_form: Form,
    /// Expected size and hash of the new plain content.
    pub expected: Option<Expected>,
}

/// Why an index could not be rebuilt.
#[derive(Debug, thiserror::Error)]
pub(super) enum RebuildError {
    /// A patch cannot be read, or is not as signed.
    #[error("patch {name}: {what}")]
    Patch {
        /// Name of the patch.
        name: String,
        /// Why it cannot be used.
        what: String,
    },
    /// An invalid patch, or patches that do not fit together.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The pass failed.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// A bug in fullbore.
    #[error("the thread that made it panicked")]
    Panicked,
}

/// Number of the job's index, and its result.
pub(super) type RebuildResult = (usize, Result<(), RebuildError>);

/// The threads that rebuild indexes, one per core.
pub(super) struct RebuildPool {
    jobs: Option<Sender<RebuildJob>>,
    made: Receiver<RebuildResult>,
    threads: Vec<JoinHandle<()>>,
}

impl RebuildPool {
    /// Starts one thread per core.
    ///
    /// # Errors
    /// `Internal` if the system cannot start threads.
    pub(super) fn open(ledger: &Ledger, level: Level) -> Result<RebuildPool, CommandError> {
        let (jobs, waiting) = channel::<RebuildJob>();
        let (done, made) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let mut threads = Vec::new();
        for _ in 0..std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(8) {
            let (waiting, done, ledger) = (waiting.clone(), done.clone(), ledger.clone());
            let work = move || {
                loop {
                    let job = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    let Ok(job) = job else { return };
                    let result = guarded(|| make(&job, level, &ledger));
                    if done.send((job.number, result)).is_err() {
                        return;
                    }
                }
            };
            let thread = std::thread::Builder::new().name("index".into()).spawn(work);
            threads.push(thread.map_err(|error| CommandError::new(ErrorKind::Internal, error))?);
        }
        Ok(RebuildPool { jobs: Some(jobs), made, threads })
    }

    /// Queue for jobs. Drop it when there are no more.
    pub(super) fn jobs(&self) -> Sender<RebuildJob> {
        self.jobs.clone().unwrap_or_else(|| channel().0)
    }

    /// Waits until all jobs are done, and returns their results.
    pub(super) fn close(mut self) -> Vec<RebuildResult> {
        self.jobs = None;
        let made = self.made.iter().collect();
        for thread in self.threads.drain(..) {
            // A panic is already an error of its job.
            let _ = thread.join();
        }
        made
    }
}

/// Turns a panic into an error of one index, so that the caller does not wait forever.
fn guarded(make: impl FnOnce() -> Result<(), RebuildError>) -> Result<(), RebuildError> {
    // Unfinished files are in `partial/`; jobs share nothing else.
    catch_unwind(AssertUnwindSafe(make)).unwrap_or(Err(RebuildError::Panicked))
}

fn make(job: &RebuildJob, level: Level, ledger: &Ledger) -> Result<(), RebuildError> {
    let steps = job.patches.iter().map(|(patch, path)| read(patch, path)).collect::<Result<Vec<_>, _>>()?;
    let edits = Edits::chain(steps)?;
    rewrite(&Rewrite {
        old: &job.old,
        old_form: Some(job.old_form),
        edits: &edits,
        new: &job.new,
        new_form: Some(job.new_form),
        level,
        expected: job.expected,
        ledger: Some(ledger),
        threads: 0,
    })?;
    Ok(())
}

/// Reads a patch and verifies its plain content; the compressed file is verified already.
fn read(patch: &Patch, path: &Path) -> Result<Edits, RebuildError> {
    let wrong = |what: String| RebuildError::Patch { name: patch.plain.name.clone(), what };
    if patch.plain.size > PATCH_BYTES_MAX {
        return Err(wrong(format!("{} is more than a patch may have", units::bytes(patch.plain.size))));
    }
    let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
    let reader =
        Reader::open(Form::Gz, BufReader::new(file), patch.plain.size).map_err(|error| wrong(error.to_string()))?;
    let mut text = Vec::new();
    let mut reader = Checked::new(reader, patch.plain.size, patch.plain.sha256);
    reader.read_to_end(&mut text).map_err(|error| wrong(error.to_string()))?;
    Ok(Edits::parse(text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error_of_its_order() {
        assert!(guarded(|| Ok(())).is_ok());
        assert!(matches!(guarded(|| panic!("on purpose")), Err(RebuildError::Panicked)));
    }
}
