//! Final names, given in groups: a flush of the file system, then the renames.
//!
//! A group is at most a gibibyte or ten seconds, so that all but the last of a copy that is cut off
//! are there, and so that no name refers to data that is not on the disk. The flush of one group goes
//! on while the next is being written. Big files not yet whole get a checkpoint in their journals.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::{Kind, StageClock};
use rustix::io::Errno;

use super::partial::Partial;
use super::tree::Tree;
use crate::error::CopyError;
use crate::names;
use crate::queue::{Queue, Taken};
use crate::session::{Context, add};
use crate::wire::{Message, ProblemKind};

/// A group is given its names when so many bytes were written since the last one.
const GROUP_BYTES: u64 = 1 << 30;
/// Or after this time.
const GROUP_TIME: Duration = Duration::from_secs(10);
/// How often the committer looks whether enough was written.
const LOOK: Duration = Duration::from_millis(250);
/// Finished files that wait for the committer. It holds no content, only names.
const FINISHED: usize = 65_536;

/// A file that is whole, verified, and has all its attributes but its name.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) id: u64,
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    pub(super) bytes: u64,
    /// It has a journal to be removed.
    pub(super) big: bool,
}

/// Where finished files go.
pub(super) struct Commit {
    pub(super) queue: Queue<Finished>,
    partials: Mutex<Vec<Weak<Partial>>>,
}

impl Commit {
    pub(super) fn new() -> Commit {
        Commit { queue: Queue::new(FINISHED), partials: Mutex::default() }
    }

    /// Has checkpoints entered in a file's journal while it lives.
    pub(super) fn watch(&self, partial: &Arc<Partial>) {
        let mut partials = self.partials.lock().unwrap_or_else(PoisonError::into_inner);
        if partials.len() >= 1024 && partials.len().is_power_of_two() {
            partials.retain(|partial| partial.strong_count() > 0);
        }
        partials.push(Arc::downgrade(partial));
    }

    /// Gives names until the queue is closed; then to what is left.
    pub(super) fn run(
        &self,
        context: &Context<'_>,
        tree: &Tree,
        problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync),
    ) {
        let clock = context.ledger.stage("sync", Kind::Thread);
        clock.adopt_thread();
        let written = || context.progress.account().written_bytes;
        let mut group: Vec<Finished> = Vec::new();
        let (mut since, mut before) = (Instant::now(), 0);
        loop {
            let mut over = false;
            match self.queue.pop_within(LOOK, &clock) {
                Taken::Item(file) => group.push(file),
                Taken::End => over = true,
                Taken::TimedOut => {}
            }
            let is_due = over
                || since.elapsed() >= GROUP_TIME && written() > before
                || written().saturating_sub(before) >= GROUP_BYTES
                || group.len() >= FINISHED;
            if is_due {
                before = written();
                since = Instant::now();
                if let Err(error) = self.group(context, tree, &mut group, &clock, problem) {
                    return context.brake.pull(error);
                }
            }
            if over {
                return;
            }
        }
    }

    fn group(
        &self,
        context: &Context<'_>,
        tree: &Tree,
        group: &mut Vec<Finished>,
        clock: &StageClock,
        problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync),
    ) -> Result<(), CopyError> {
        let partials: Vec<(Arc<Partial>, u64)> = {
            let partials = self.partials.lock().unwrap_or_else(PoisonError::into_inner);
            partials.iter().filter_map(Weak::upgrade).map(|partial| (partial.clone(), partial.entered())).collect()
        };
        if group.is_empty() && partials.is_empty() {
            return Ok(());
        }
        if context.options.durability != Durability::None {
            flush(tree, clock)?;
            for (partial, entered) in partials {
                let error = |error| disk(&crate::entry::join(&partial.directory, &partial.entry.name), error);
                partial.checkpoint(entered).map_err(error)?;
            }
        }
        let mut ids = Vec::with_capacity(group.len());
        for file in group.drain(..) {
            let renamed = tree.folder(&file.directory).and_then(|folder| {
                clock.device(|| folder.rename(&names::part(&file.name), &file.name))?;
                if file.big { folder.unlink(&names::blocks(&file.name)) } else { Ok(()) }
            });
            match renamed {
                Ok(()) => {
                    add(&context.progress.visible_bytes, file.bytes);
                    ids.push(file.id);
                }
                Err(error) => {
                    let path = crate::entry::join(&file.directory, &file.name);
                    if is_fatal(error) {
                        return Err(disk(&path, error.into()));
                    }
                    problem(ProblemKind::Unwritable, &path, std::io::Error::from(error).to_string());
                }
            }
        }
        if context.options.remove_source_files && !ids.is_empty() {
            for ids in ids.chunks(10_000) {
                let _ = context.link.control_out.push(Message::Visible { ids: ids.to_vec() }, clock);
            }
        }
        Ok(())
    }
}

/// Flushes every file system that was written to.
pub(super) fn flush(tree: &Tree, clock: &StageClock) -> Result<(), CopyError> {
    for file_system in tree.file_systems() {
        clock.device(|| rustix::fs::syncfs(&*file_system)).map_err(|error| disk(b"", error.into()))?;
    }
    Ok(())
}

/// Whether the destination itself fails, and not one file: full, quota used up, read-only, broken.
pub(super) fn is_fatal(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// A failure of the destination at this path.
pub(super) fn disk(path: &[u8], error: std::io::Error) -> CopyError {
    let path = if path.is_empty() { "the destination".to_owned() } else { crate::entry::shown(path) };
    CopyError::Disk(format!("{path}: {error}"))
}
