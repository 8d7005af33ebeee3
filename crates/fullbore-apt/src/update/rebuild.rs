//! Where indexes are made: patched or converted, one per thread, while others are still on their way.

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

use super::strategy::Patch;
use crate::frames::Level;
use crate::rewrite::{Expected, Rewrite, RewriteError, rewrite};

/// Largest patch, plain. The signed index says how large it is; this bounds what we hold in memory of it.
/// Debian's largest have 10 MB.
const PATCH_BYTES_MAX: u64 = 1 << 30;

/// One index to be made.
#[derive(Debug)]
pub struct RebuildJob {
    /// The caller's number.
    pub number: usize,
    /// What it is made of.
    pub old: PathBuf,
    /// The form of that.
    pub old_form: Form,
    /// Patches with the files they are in, oldest first; none for a conversion.
    pub patches: Vec<(Patch, PathBuf)>,
    /// Where it goes.
    pub new: PathBuf,
    /// The form in which it is kept.
    pub new_form: Form,
    /// What it must be.
    pub expected: Option<Expected>,
}

/// Why an index could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RebuildError {
    /// A patch cannot be read, or is not the one that was signed.
    #[error("patch {name}: {what}")]
    Patch {
        /// Its name.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A patch is no script, or patches do not fit together.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The pass failed.
    #[error(transparent)]
    Rewrite(#[from] RewriteError),
    /// An error of this program.
    #[error("the thread that made it panicked")]
    Panicked,
}

/// What became of an order.
pub type RebuildResult = (usize, Result<(), RebuildError>);

/// Threads that make indexes.
pub struct RebuildPool {
    jobs: Option<Sender<RebuildJob>>,
    made: Receiver<RebuildResult>,
    threads: Vec<JoinHandle<()>>,
}

impl RebuildPool {
    /// One thread per core.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn open(ledger: &Ledger, level: Level) -> Result<RebuildPool, CommandError> {
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

    /// A handle through which jobs are given.
    pub fn jobs(&self) -> Sender<RebuildJob> {
        self.jobs.clone().unwrap_or_else(|| channel().0)
    }

    /// Waits for all that was ordered.
    pub fn close(mut self) -> Vec<RebuildResult> {
        self.jobs = None;
        let made = self.made.iter().collect();
        for thread in self.threads.drain(..) {
            // A panic was an error of its order.
            let _ = thread.join();
        }
        made
    }
}

/// Makes of a panic an error of the one index, whose caller would wait for word of it otherwise.
fn guarded(make: impl FnOnce() -> Result<(), RebuildError>) -> Result<(), RebuildError> {
    // What is half done is in `partial/`, and nothing else is shared with the next order.
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

/// Reads a patch, which must be the signed one: its file was verified as it is served, this is its content.
fn read(patch: &Patch, path: &Path) -> Result<Edits, RebuildError> {
    let wrong = |what: String| RebuildError::Patch { name: patch.plain.name.clone(), what };
    if patch.plain.size > PATCH_BYTES_MAX {
        return Err(wrong(format!("{} bytes are more than can be held", patch.plain.size)));
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
