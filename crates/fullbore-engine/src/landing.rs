//! Turns bytes from the network into files: writes and hashes them, and gives a file its final name only if size and
//! SHA-256 are right.
//!
//! Plain threads do the work, one per core; each file belongs to one of them. Bytes at the front of a file are hashed
//! from memory. Bytes that arrive out of order (ranges from several hosts) are written, and read back from the page
//! cache when the front reaches them.
//!
//! A wrong file keeps its data. Each range gets a SHA-256 of its own, and the caller fetches some ranges again from
//! other hosts. Once the whole file is right, the landing reports the sources whose bytes differed. Written ranges are
//! logged in a [`Journal`], so that a killed run can resume.

mod checkpoint;
mod commits;
mod file;
mod hashing;
mod sources;
mod worker;

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use tokio::sync::mpsc::UnboundedSender;

use crate::digest::{self, Sha256};
use crate::files::FileError;
use crate::journal::Journal;
use crate::pipeline::{self, Sender};
use crate::stage::{Kind, Ledger};
use crate::target::{Target, TargetError};
use crate::window::Permit;
use checkpoint::Checkpoints;
use commits::PendingCommits;
use worker::Worker;

/// Maximum number of chunks that wait for one thread. The window bounds their bytes; this bounds small files. A guess:
/// work for a millisecond.
const QUEUE_CHUNKS: usize = 256;

/// Marks a file whose thread has not been chosen yet.
const NO_THREAD: usize = usize::MAX;
/// Marks an unknown modification time.
const NO_TIME: i64 = i64::MIN;

/// Source number of bytes that an earlier run had fetched. No host is to blame for them.
pub const RESUMED: u16 = u16::MAX;

/// A file that the landing is to receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Number of the file, chosen by the caller.
    pub item: u32,
    /// Final path beneath the target.
    pub path: String,
    /// Length in bytes, from a signed index.
    pub size: u64,
    /// SHA-256 of the content, from a signed index.
    pub sha256: Sha256,
    /// Modification time in Unix seconds, if known.
    pub mtime: Option<i64>,
}

/// Bytes of a file at an offset, with the permit they hold.
#[derive(Debug)]
pub struct Chunk {
    /// Number of the file that the bytes belong to.
    pub item: u32,
    /// Offset of the bytes in the file.
    pub offset: u64,
    /// The bytes, as received from the source.
    pub data: Bytes,
    /// Permit for the bytes; dropped when they are written and hashed.
    pub permit: Permit,
    /// Number of the source that sent the bytes, below [`RESUMED`].
    pub source: u16,
}

/// SHA-256 of the bytes that one source sent in one range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeDigest {
    /// Byte range within the file.
    pub range: Range<u64>,
    /// Number of the source, or [`RESUMED`].
    pub source: u16,
    /// SHA-256 of the bytes in `range` alone.
    pub sha256: Sha256,
}

/// Which part of a wrong file is fetched again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    /// The whole file.
    Whole,
    /// These ranges; the other bytes are kept.
    Ranges(Vec<Range<u64>>),
}

/// Result of a file: verified, or the reason why not.
#[derive(Debug)]
pub enum Outcome {
    /// The content is right and the file has its final name.
    Verified {
        /// Number of the file.
        item: u32,
        /// Sources whose bytes the file consists of, without [`RESUMED`].
        sources: Vec<u16>,
        /// Sources that had sent different bytes before.
        culprits: Vec<u16>,
    },
    /// All bytes have arrived and the hash is wrong. The file waits for [`Landing::retry`] or [`Landing::abandon`].
    Mismatch {
        /// Number of the file.
        item: u32,
        /// Length of the file, in bytes.
        size: u64,
        /// SHA-256 of the received content.
        got: Sha256,
        /// SHA-256 per range and source, in order.
        ranges: Vec<RangeDigest>,
    },
    /// The destination failed. The written bytes stay for the next run.
    Failed {
        /// Number of the file.
        item: u32,
        /// Reason of the failure.
        cause: Cause,
    },
}

/// Why a file failed on this machine.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The destination failed.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Two files of one plan have the same path.
    #[error("{path}: another file of this run has the same path")]
    PathTaken {
        /// Path of the file, beneath the target.
        path: String,
    },
    /// The thread that wrote the file has panicked: a bug of this program.
    #[error("{path}: the thread that was writing it has failed")]
    ThreadFailed {
        /// Path of the file, beneath the target.
        path: String,
    },
    /// Somebody removed or cut the unfinished file while this run used it.
    #[error("{path}: its unfinished file has vanished")]
    Vanished {
        /// Path of the file, beneath the target.
        path: String,
    },
}

impl Cause {
    /// The kind of the system's error; `None` for the other variants.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Cause::Target(error) => error.kind(),
            _ => None,
        }
    }

    /// Whether the error is a full destination or an exceeded quota.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Cause::Target(error) if error.is_out_of_space())
    }
}

/// Why the files that a landing wrote may not be safe.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandingError {
    /// The sync of a checkpoint failed: files since the last successful checkpoint are in doubt.
    #[error("what was written may not be on the disk: {0}")]
    Sync(Arc<TargetError>),
    /// The journal cannot be written: after a kill, the next run would fetch more again.
    #[error("the journal cannot be written: {0}")]
    Journal(Arc<FileError>),
}

/// Receives files, on threads of its own. Clones are handles to the same landing.
#[derive(Clone)]
pub struct Landing {
    inner: Arc<Inner>,
}

struct Inner {
    shared: Arc<Shared>,
    writers: Vec<WriterThread>,
    side_by_side: usize,
    threads: Mutex<Vec<JoinHandle<()>>>,
    checkpoints: Checkpoints,
    kept: Box<ResumedLength>,
}

/// Returns the length of the unfinished file that an earlier run left at a path.
type ResumedLength = dyn Fn(&str) -> Option<u64> + Send + Sync;

/// Handle of one writer thread.
struct WriterThread {
    chunks: Sender<Message>,
    load: Arc<Load>,
}

/// Work that waits for one writer thread.
#[derive(Default)]
struct Load {
    /// Bytes handed over and not yet written.
    bytes: AtomicU64,
    /// Bytes written and not yet hashed.
    put_off_bytes: AtomicU64,
    /// Commands of callers that must not wait. At most a few per unfinished file.
    commands: Mutex<Vec<Command>>,
}

/// State that the threads share with each other and with the handles.
struct Shared {
    journal: Arc<Journal>,
    outcomes: UnboundedSender<Outcome>,
    registry: Mutex<Registry>,
    counters: Counters,
    journal_error: Mutex<Option<Arc<FileError>>>,
    pending_commits: PendingCommits,
}

/// The files in progress.
#[derive(Default)]
struct Registry {
    items: HashMap<u32, Arc<Entry>>,
    paths: HashMap<String, u32>,
    /// Abandoned files that a thread still has open, with that thread. If the same path is begun again, the same thread
    /// must do it, after it has closed the old file.
    leaving: HashMap<String, (usize, u32)>,
}

#[derive(Default)]
struct Counters {
    written_bytes: AtomicU64,
    wasted_bytes: AtomicU64,
    reread_bytes: AtomicU64,
    files: AtomicU64,
}

/// Counters of a landing since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LandingCounts {
    /// Bytes written to the target, each counted once.
    pub written_bytes: u64,
    /// Bytes received in vain: present already, or of a file not in progress.
    pub wasted_bytes: u64,
    /// Bytes read back for hashing, because they arrived out of order or in an earlier run.
    pub reread_bytes: u64,
    /// Number of files that were verified and have their names.
    pub files: u64,
}

/// A file in progress, as all threads see it.
struct Entry {
    spec: FileSpec,
    resumed: Vec<Range<u64>>,
    thread: AtomicUsize,
    mtime: AtomicI64,
    /// Number of retries. Bytes handed over before a retry do not count for it.
    round: AtomicU32,
    /// The file takes no more bytes: it is complete, has failed, or was abandoned.
    closed: AtomicBool,
}

enum Message {
    /// A chunk, and the round that it belongs to.
    Chunk(Arc<Entry>, u32, Chunk),
    /// Wakes the thread for its commands.
    Wake,
}

enum Command {
    Start(Arc<Entry>),
    /// Begins this round of the file (item, round, ranges).
    Retry(u32, u32, Retry),
    Abandon(Arc<Entry>),
    End,
}

impl Landing {
    /// Starts `threads` threads that write to `target`, and one for checkpoints.
    ///
    /// # Errors
    /// The system's error if a thread cannot be started.
    pub fn start<T: Target>(
        target: Arc<T>,
        journal: Arc<Journal>,
        threads: usize,
        ledger: &Ledger,
        outcomes: UnboundedSender<Outcome>,
    ) -> io::Result<Landing> {
        Landing::start_with(target, journal, threads, digest::streams_at_once(), ledger, outcomes)
    }

    /// As [`Landing::start`], with `side_by_side` streams hashed at once by each thread.
    fn start_with<T: Target>(
        target: Arc<T>,
        journal: Arc<Journal>,
        threads: usize,
        side_by_side: usize,
        ledger: &Ledger,
        outcomes: UnboundedSender<Outcome>,
    ) -> io::Result<Landing> {
        let shared = Arc::new(Shared {
            journal,
            outcomes,
            registry: Mutex::default(),
            counters: Counters::default(),
            journal_error: Mutex::default(),
            pending_commits: PendingCommits::default(),
        });
        let clocks = worker::Clocks {
            network: ledger.stage("network", Kind::Task),
            hash: ledger.stage("hash", Kind::Thread),
            write: ledger.stage("disk write", Kind::Thread),
        };
        let mut writers = Vec::new();
        let mut handles = Vec::new();
        for number in 0..threads.max(1) {
            let (sender, receiver) = pipeline::channel(QUEUE_CHUNKS, &clocks.network, &clocks.hash);
            let load = Arc::new(Load::default());
            let worker =
                Worker::new(target.clone(), shared.clone(), number, load.clone(), clocks.clone(), side_by_side);
            let work = move || worker.run(receiver);
            handles.push(std::thread::Builder::new().name("hash and write".into()).spawn(work)?);
            writers.push(WriterThread { chunks: sender, load });
        }
        let checkpoints = Checkpoints::start(target.clone(), shared.clone(), ledger)?;
        let kept = Box::new(move |path: &str| target.kept(path).ok().flatten());
        let threads = Mutex::new(handles);
        Ok(Landing { inner: Arc::new(Inner { shared, writers, side_by_side, threads, checkpoints, kept }) })
    }

    /// Byte ranges of a file that an earlier run has left, for planning requests. Never the whole file: at least one
    /// byte is left to request, so that every file is begun.
    pub fn present(&self, path: &str, size: u64, sha256: Sha256) -> Vec<Range<u64>> {
        let mut present = self.inner.shared.journal.present(path, size, sha256);
        if present.is_empty() {
            return Vec::new();
        }
        let kept = (self.inner.kept)(path).unwrap_or(0);
        present.clamp(kept.min(size));
        if present.bytes() == size {
            present.clamp(size - 1);
        }
        present.as_slice().to_vec()
    }

    /// Announces a file and returns its [`Landing::present`] ranges. An invalid path shows in its outcome. An empty
    /// file needs nothing more.
    pub fn begin(&self, spec: FileSpec) -> Vec<Range<u64>> {
        let (item, size) = (spec.item, spec.size);
        let resumed = self.present(&spec.path, size, spec.sha256);
        let entry = {
            let mut registry = self.inner.shared.registry();
            if registry.items.contains_key(&item) || registry.paths.contains_key(&spec.path) {
                drop(registry);
                let cause = Cause::PathTaken { path: spec.path };
                self.inner.shared.tell(Outcome::Failed { item, cause });
                return Vec::new();
            }
            let mtime = AtomicI64::new(spec.mtime.unwrap_or(NO_TIME));
            let thread = registry.leaving.get(&spec.path).map_or(NO_THREAD, |(thread, _)| *thread);
            registry.paths.insert(spec.path.clone(), item);
            let entry = Arc::new(Entry {
                spec,
                resumed: resumed.clone(),
                thread: AtomicUsize::new(thread),
                mtime,
                round: AtomicU32::new(0),
                closed: AtomicBool::new(false),
            });
            registry.items.insert(item, entry.clone());
            entry
        };
        if size == 0 {
            self.command(&entry, Command::Start(entry.clone()));
        }
        resumed
    }

    /// Hands over bytes of a file that was begun; bytes of other files are dropped. Waits while the queue of the file's
    /// thread is full.
    pub async fn chunk(&self, chunk: Chunk) {
        self.reserve(chunk.item).await.take(chunk);
    }

    /// Waits for a slot in the queue of the file's thread. A caller reserves before it acknowledges bytes: afterwards,
    /// nothing can keep them from the landing.
    pub async fn reserve(&self, item: u32) -> ChunkSlot<'_> {
        let shared = &*self.inner.shared;
        let Some(entry) = shared.entry(item) else { return ChunkSlot { shared, to: None } };
        let writer = &self.inner.writers[self.thread_of(&entry)];
        match writer.chunks.reserve().await {
            Ok(slot) => ChunkSlot { shared, to: Some((entry, &writer.load, slot)) },
            Err(_) => {
                shared.thread_failed(item);
                ChunkSlot { shared, to: None }
            }
        }
    }

    /// Sets the modification time that an answer gave. It has an effect until the file is done.
    pub fn set_mtime(&self, item: u32, unix_s: i64) {
        if let Some(entry) = self.inner.shared.entry(item) {
            entry.mtime.store(unix_s, Ordering::Relaxed);
        }
    }

    /// Accepts bytes again after [`Outcome::Mismatch`]. Never waits.
    pub fn retry(&self, item: u32, retry: Retry) {
        if let Some(entry) = self.inner.shared.entry(item) {
            let round = entry.round.fetch_add(1, Ordering::AcqRel) + 1;
            self.command(&entry, Command::Retry(item, round, retry));
        }
    }

    /// Abandons a file. Bytes that may be right stay for the next run; a file found wrong is removed. There is no
    /// outcome. Never waits. False if the file is not in progress: if it was begun, its outcome was already sent.
    pub fn abandon(&self, item: u32) -> bool {
        let Some(entry) = self.inner.shared.entry(item) else { return false };
        let thread = self.thread_of(&entry);
        let left = self.inner.shared.leave(&entry, thread);
        if left {
            self.command(&entry, Command::Abandon(entry.clone()));
        }
        left
    }

    /// Makes all files finished so far as durable as the target promises. Blocks; call it on a plain thread.
    ///
    /// # Errors
    /// [`LandingError::Sync`] if this sync or an earlier one failed; [`LandingError::Journal`] if a write to the
    /// journal failed.
    pub fn checkpoint(&self) -> Result<(), LandingError> {
        self.inner.checkpoints.now()?;
        self.inner.shared.journal_result()
    }

    /// Returns the counters since the landing was started.
    pub fn counts(&self) -> LandingCounts {
        let counters = &self.inner.shared.counters;
        LandingCounts {
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
            wasted_bytes: counters.wasted_bytes.load(Ordering::Relaxed),
            reread_bytes: counters.reread_bytes.load(Ordering::Relaxed),
            files: counters.files.load(Ordering::Relaxed),
        }
    }

    /// Ends the threads after the work handed to them, logs the unfinished files, and takes a last checkpoint if any
    /// bytes arrived. Blocks; call it on a plain thread.
    ///
    /// # Errors
    /// [`LandingError::Sync`] if the last sync or an earlier one failed; [`LandingError::Journal`] if a write to the
    /// journal failed.
    pub fn finish(&self) -> Result<(), LandingError> {
        for writer in &self.inner.writers {
            writer.send(Command::End);
        }
        let threads = std::mem::take(&mut *locked(&self.inner.threads));
        for thread in threads {
            // The panic hook has printed a panic of the thread; its written ranges are in the journal.
            let _ = thread.join();
        }
        self.inner.shared.wait_for_commits();
        let counts = self.counts();
        let result = if counts.files > 0 || counts.written_bytes > 0 {
            self.checkpoint()
        } else {
            // A sync would only wait for other programs' writes to the same file system.
            self.inner.checkpoints.so_far().and_then(|()| self.inner.shared.journal_result())
        };
        self.inner.checkpoints.end();
        result
    }

    fn command(&self, entry: &Entry, command: Command) {
        let writer = &self.inner.writers[self.thread_of(entry)];
        writer.send(command);
        if writer.chunks.is_closed() {
            self.inner.shared.thread_failed(entry.spec.item);
        }
    }

    /// Returns the file's thread, which is chosen at its first bytes.
    fn thread_of(&self, entry: &Entry) -> usize {
        let chosen = entry.thread.load(Ordering::Acquire);
        if chosen != NO_THREAD {
            return chosen;
        }
        let waiting = self.inner.writers.iter().map(|writer| writer.load.waiting_bytes());
        let thread = hashing::thread_for_new(self.inner.side_by_side, waiting);
        // Several connections may receive the file's first bytes at once.
        match entry.thread.compare_exchange(NO_THREAD, thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => thread,
            Err(chosen) => chosen,
        }
    }
}

/// A reserved slot for one chunk of a file in the queue of its thread.
pub struct ChunkSlot<'a> {
    shared: &'a Shared,
    /// `None` if the file is not in progress.
    to: Option<(Arc<Entry>, &'a Load, pipeline::Slot<'a, Message>)>,
}

impl ChunkSlot<'_> {
    /// Hands the chunk to the thread that writes its file.
    pub fn take(self, chunk: Chunk) {
        let bytes = chunk.data.len() as u64;
        let Some((entry, load, slot)) = self.to else {
            self.shared.counters.wasted_bytes.fetch_add(bytes, Ordering::Relaxed);
            return;
        };
        load.bytes.fetch_add(bytes, Ordering::Relaxed);
        let round = entry.round.load(Ordering::Acquire);
        slot.send(Message::Chunk(entry, round, chunk));
    }
}

impl Load {
    fn waiting_bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed) + self.put_off_bytes.load(Ordering::Relaxed)
    }
}

impl WriterThread {
    fn send(&self, command: Command) {
        locked(&self.load.commands).push(command);
        // A full queue has messages, and the thread takes its commands after each.
        let _ = self.chunks.try_send(Message::Wake);
    }
}

impl Shared {
    fn registry(&self) -> MutexGuard<'_, Registry> {
        locked(&self.registry)
    }

    fn entry(&self, item: u32) -> Option<Arc<Entry>> {
        self.registry().items.get(&item).cloned()
    }

    /// Removes a file from those in progress.
    fn close(&self, item: u32) -> Option<Arc<Entry>> {
        let mut registry = self.registry();
        let entry = registry.items.remove(&item)?;
        registry.paths.remove(&entry.spec.path);
        entry.closed.store(true, Ordering::Release);
        Some(entry)
    }

    /// Removes an abandoned file from those in progress; false when it was removed already.
    fn leave(&self, entry: &Entry, thread: usize) -> bool {
        let mut registry = self.registry();
        let (item, path) = (entry.spec.item, &entry.spec.path);
        if registry.items.remove(&item).is_none() {
            return false;
        }
        registry.paths.remove(path);
        registry.leaving.insert(path.clone(), (thread, item));
        entry.closed.store(true, Ordering::Release);
        true
    }

    /// Records that the thread of an abandoned file has closed it.
    fn left(&self, entry: &Entry) {
        let mut registry = self.registry();
        if registry.leaving.get(&entry.spec.path).is_some_and(|(_, item)| *item == entry.spec.item) {
            registry.leaving.remove(&entry.spec.path);
        }
    }

    /// Reports a file whose thread is gone. After the end of all threads nobody receives it, and nobody needs to.
    fn thread_failed(&self, item: u32) {
        if let Some(entry) = self.close(item) {
            let path = entry.spec.path.clone();
            self.tell(Outcome::Failed { item, cause: Cause::ThreadFailed { path } });
        }
    }

    /// Numbers of the files that belong to a thread.
    fn items_of(&self, thread: usize) -> Vec<u32> {
        let registry = self.registry();
        let own = |entry: &Entry| entry.thread.load(Ordering::Acquire) == thread;
        registry.items.iter().filter(|(_, entry)| own(entry)).map(|(item, _)| *item).collect()
    }

    fn tell(&self, outcome: Outcome) {
        // The caller may be gone, as after an interrupt.
        let _ = self.outcomes.send(outcome);
    }

    fn note_journal(&self, result: Result<(), FileError>) {
        if let Err(error) = result {
            locked(&self.journal_error).get_or_insert_with(|| Arc::new(error));
        }
    }

    fn journal_result(&self) -> Result<(), LandingError> {
        match &*locked(&self.journal_error) {
            Some(error) => Err(LandingError::Journal(error.clone())),
            None => Ok(()),
        }
    }
}

/// The data behind these locks is consistent after every statement, so a poisoned lock is still good.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
