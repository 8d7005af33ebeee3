//! Gives final names to files in groups: a flush of the file system, then the renames.
//!
//! A group has at most a gibibyte, or ten seconds of files (see [`crate::options::GROUP_TIME_MS`]). So an interrupted
//! copy has all files but the last group, and no name refers to data that is not on the disk. The next group is written
//! while one is flushed. A group begins as soon as it is worth it, so that the disk works while more data arrives.
//! Unfinished big files get a checkpoint in their journals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::{Kind, StageClock};
use rustix::io::Errno;

use super::backup::Backup;
use super::changed::ChangedFiles;
use super::in_the_way::InTheWay;
use super::partial::Partial;
use super::tree::{Folder, Tree};
use crate::error::CopyError;
use crate::names;
use crate::options::{GROUP_BYTES, GROUP_WORTH_BYTES, GROUP_WORTH_TIME};
use crate::session::{Context, add};
use crate::wire::{Message, ProblemKind, VISIBLE_IDS};

/// Interval at which the committer checks whether enough was written for a group.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// Most finished files that wait for the committer. It keeps only their names, no content.
const FINISHED: usize = 65_536;
/// Most threads that rename, and least files per thread.
const NAMERS: usize = 4;
const FILES_EACH: usize = 2000;

/// What the committer needs to give names.
#[derive(Clone, Copy)]
pub(super) struct Naming<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) tree: &'a Tree,
    pub(super) problem: &'a (dyn Fn(ProblemKind, &[u8], String) + Sync),
    pub(super) backup: Option<&'a Backup<'a>>,
}

/// A file that is complete and verified, and has all attributes but its name.
#[derive(Debug)]
pub(super) struct Finished {
    pub(super) id: u64,
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    pub(super) bytes: u64,
    /// Whether it has a journal to remove.
    pub(super) big: bool,
    /// Whether all of its attributes were kept, so that the source may be removed if the user wants that.
    pub(super) sure: bool,
}

/// Finished files that have no name yet.
#[derive(Default)]
struct Gathered {
    files: Vec<Finished>,
    closed: bool,
}

impl Gathered {
    fn is_full(&self) -> bool {
        !self.closed && self.files.len() >= FINISHED
    }
}

/// Collects finished files for the committer.
pub(super) struct Commit {
    gathered: Mutex<Gathered>,
    /// Wakes the committer when there is work.
    wake: Condvar,
    /// Wakes writers when the committer has made room.
    room: Condvar,
    partials: Mutex<Vec<Weak<Partial>>>,
    /// Entries that have their names; the next flush brings them to the disk.
    named: Mutex<Vec<u64>>,
    /// Whether a flush has failed.
    failed: AtomicBool,
    /// Finished files whose name a non-empty directory occupies; they get it at the end.
    pub(super) in_the_way: InTheWay,
    /// Files that changed at the source while they were read.
    pub(super) changed: ChangedFiles,
}

impl Commit {
    pub(super) fn new() -> Commit {
        Commit {
            gathered: Mutex::default(),
            wake: Condvar::new(),
            room: Condvar::new(),
            partials: Mutex::default(),
            named: Mutex::default(),
            failed: AtomicBool::new(false),
            in_the_way: InTheWay::default(),
            changed: ChangedFiles::default(),
        }
    }

    /// Whether a flush has failed. Data written since the previous flush may then exist only in memory, or not even
    /// there.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Records an entry that has its name. Its source may be removed once that is on the disk.
    pub(super) fn named(&self, id: u64) {
        self.names().push(id);
    }

    fn names(&self) -> MutexGuard<'_, Vec<u64>> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes all entries that got their names since the last call.
    pub(super) fn take_named(&self) -> Vec<u64> {
        std::mem::take(&mut *self.names())
    }

    /// Registers a file's journal for checkpoints, as long as the file is open.
    pub(super) fn watch(&self, partial: &Arc<Partial>) {
        let mut partials = self.partials.lock().unwrap_or_else(PoisonError::into_inner);
        if partials.len() >= 1024 && partials.len().is_power_of_two() {
            partials.retain(|partial| partial.strong_count() > 0);
        }
        partials.push(Arc::downgrade(partial));
    }

    /// Hands over a finished file. Waits while too many files have no name.
    pub(super) fn finished(&self, file: Finished, clock: &StageClock) {
        let mut finished = self.lock();
        if finished.is_full() {
            drop(finished);
            self.wake.notify_one();
            finished = clock.blocked_in(|| {
                let full = |finished: &mut Gathered| finished.is_full();
                self.room.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner)
            });
        }
        // The committer checks by itself, so it is not woken for each file.
        finished.files.push(file);
    }

    /// No more files will be finished.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
        self.room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives names until [`Commit::close`], then to the remaining files.
    pub(super) fn run(&self, naming: &Naming<'_>) {
        let context = naming.context;
        let _guard = context.cancel.guard();
        let clock = context.ledger.stage("sync", Kind::Thread);
        clock.adopt_thread();
        let written = || context.progress.account().written_bytes;
        let group_time = Duration::from_millis(context.options.group_time_ms);
        let interval = POLL_INTERVAL.min(group_time);
        let (mut since, mut before) = (Instant::now(), 0);
        loop {
            let (over, full) = clock.starved_in(|| {
                let idle = |gathered: &mut Gathered| !gathered.closed && !gathered.is_full();
                let waited = self.wake.wait_timeout_while(self.lock(), interval, idle);
                let gathered = waited.unwrap_or_else(PoisonError::into_inner).0;
                (gathered.closed, gathered.is_full())
            });
            let is_due = over
                || full
                || since.elapsed() >= group_time && written() > before
                || written().saturating_sub(before) >= GROUP_BYTES
                || since.elapsed() >= GROUP_WORTH_TIME && written().saturating_sub(before) >= GROUP_WORTH_BYTES
                || !self.names().is_empty() && (since.elapsed() >= group_time || self.names().len() >= FINISHED);
            if is_due {
                before = written();
                since = Instant::now();
                let files = std::mem::take(&mut self.lock().files);
                self.room.notify_all();
                if let Err(error) = self.group(naming, files, &clock) {
                    // Nobody takes finished files any more.
                    self.close();
                    return context.cancel.cancel(error);
                }
            }
            if over {
                return;
            }
        }
    }

    fn group(&self, naming: &Naming<'_>, group: Vec<Finished>, clock: &StageClock) -> Result<(), CopyError> {
        let Naming { context, tree, .. } = *naming;
        let partials: Vec<(Arc<Partial>, u64)> = {
            let partials = self.partials.lock().unwrap_or_else(PoisonError::into_inner);
            partials.iter().filter_map(Weak::upgrade).map(|partial| (partial.clone(), partial.entered())).collect()
        };
        // With `--verify`, files are reported only at the very end, after they were read back.
        let named = if context.options.verify { Vec::new() } else { self.take_named() };
        if group.is_empty() && partials.is_empty() && named.is_empty() {
            return Ok(());
        }
        if context.options.durability != Durability::None {
            flush(tree, clock).inspect_err(|_| self.failed.store(true, Ordering::Release))?;
            for (partial, entered) in partials {
                let error = |error| disk(&crate::entry::join(&partial.directory, &partial.entry.name), error);
                partial.checkpoint(entered).map_err(error)?;
            }
        }
        tell_visible(context, &named, false, clock);
        // A rename costs little, but there may be tens of thousands, and everyone waits for the last ones.
        let cores = std::thread::available_parallelism().map_or(1, usize::from).min(NAMERS);
        let share = group.len().div_ceil(cores).max(FILES_EACH);
        std::thread::scope(|scope| {
            let mut shares = group.chunks(share);
            let own = shares.next().unwrap_or_default();
            let spawn = |files| {
                scope.spawn(move || {
                    let _guard = context.cancel.guard();
                    clock.adopt_thread();
                    self.give_names(naming, files, clock)
                })
            };
            let others: Vec<_> = shares.map(spawn).collect();
            let own = self.give_names(naming, own, clock);
            let results = std::iter::once(own).chain(others.into_iter().filter_map(|thread| thread.join().ok()));
            results.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn give_names(&self, naming: &Naming<'_>, files: &[Finished], clock: &StageClock) -> Result<(), CopyError> {
        let Naming { context, tree, problem, backup } = *naming;
        let mut open: Option<(&Arc<Vec<u8>>, Arc<Folder>)> = None;
        for file in files {
            let known = open.as_ref().filter(|(path, _)| Arc::ptr_eq(path, &file.directory));
            let folder = match known {
                Some((_, folder)) => Ok(folder.clone()),
                None => tree.folder(&file.directory),
            };
            let renamed = folder.and_then(|folder| {
                open = Some((&file.directory, folder.clone()));
                if let Some(backup) = backup {
                    let path = crate::entry::join(&file.directory, &file.name);
                    if !clock.device(|| backup.keep(&folder, &path, problem))? {
                        folder.discard(&names::blocks(&file.name))?;
                        return folder.discard(&names::part(&file.name)).map(|()| false);
                    }
                }
                let part = names::part(&file.name);
                if self.changed.are_any() {
                    let path = crate::entry::join(&file.directory, &file.name);
                    self.changed.mark(&folder, &part, &path)?;
                }
                clock.device(|| folder.rename(&part, &file.name))?;
                if file.big {
                    folder.unlink(&names::blocks(&file.name))?
                }
                Ok(true)
            });
            match renamed {
                Ok(false) => {}
                Ok(true) => {
                    add(&context.progress.visible_bytes, file.bytes);
                    if file.sure && context.options.remove_source_files {
                        self.named(file.id);
                    }
                }
                Err(error) => {
                    let path = crate::entry::join(&file.directory, &file.name);
                    if matches!(error, Errno::NOTEMPTY | Errno::EXIST) && self.in_the_way.is_followed(&path) {
                        continue;
                    }
                    if is_fatal(error) {
                        return Err(disk(&path, error.into()));
                    }
                    problem(ProblemKind::Unwritable, &path, std::io::Error::from(error).to_string());
                }
            }
        }
        Ok(())
    }
}

/// Tells the sender which entries are on the disk under their final names.
pub(super) fn tell_visible(context: &Context<'_>, ids: &[u64], last: bool, clock: &StageClock) {
    let mut chunks = ids.chunks(VISIBLE_IDS).peekable();
    while let Some(ids) = chunks.next() {
        let message = Message::Visible { ids: ids.to_vec(), last: last && chunks.peek().is_none() };
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let _ = context.link.control_out.push(message, clock);
    }
    if last && ids.is_empty() {
        let _ = context.link.control_out.push(Message::Visible { ids: Vec::new(), last }, clock);
    }
}

/// Flushes every file system that was written to.
pub(super) fn flush(tree: &Tree, clock: &StageClock) -> Result<(), CopyError> {
    for file_system in tree.file_systems() {
        clock.device(|| rustix::fs::syncfs(&file_system.directory)).map_err(|error| disk(b"", error.into()))?;
    }
    Ok(())
}

/// Whether an error is of the destination itself, not of one file: full, over quota, read-only or broken.
pub(super) fn is_fatal(error: Errno) -> bool {
    matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::ROFS | Errno::IO)
}

/// The error of a failing destination at this path.
pub(super) fn disk(path: &[u8], error: std::io::Error) -> CopyError {
    let path = if path.is_empty() { "the destination".to_owned() } else { crate::entry::shown(path) };
    CopyError::Disk(format!("{path}: {error}"))
}
