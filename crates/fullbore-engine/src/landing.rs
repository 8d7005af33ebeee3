//! Where bytes from the network become files: written, hashed while they pass, and
//! given their final name only when both size and SHA-256 are right.
//!
//! Plain threads do the work, one per core; a file belongs to one of them. Bytes at the
//! front of a file are hashed from memory. Bytes that come out of order (ranges from
//! several hosts) are written, and read back from the page cache when the front reaches
//! them. A file that turns out wrong keeps its data: each range gets a SHA-256 of its own,
//! the caller has some ranges sent again from other hosts, and when the whole is right the
//! landing tells whose bytes had differed. What was written is logged in a [`Journal`], so
//! that a killed run goes on where it was.

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

/// Chunks that may wait before one thread. Their bytes are bounded by the window; this
/// bounds small files. A guess: a millisecond's worth.
const QUEUE_CHUNKS: usize = 256;

/// Stands for a thread that has not been chosen yet.
const NO_THREAD: usize = usize::MAX;
/// Stands for a time that is not known.
const NO_TIME: i64 = i64::MIN;

/// The source of bytes that an earlier run had fetched; nobody is to blame for them.
pub const RESUMED: u16 = u16::MAX;

/// A file that is to come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSpec {
    /// Number of the file, chosen by the caller.
    pub item: u32,
    /// Its final path beneath the target.
    pub path: String,
    /// Its length in bytes, from a signed index.
    pub size: u64,
    /// Its SHA-256, from a signed index.
    pub sha256: Sha256,
    /// Its time of last change, Unix seconds, where known.
    pub mtime: Option<i64>,
}

/// Bytes of a file at an offset, with the permit they hold.
#[derive(Debug)]
pub struct Chunk {
    /// Number of the file that the bytes belong to.
    pub item: u32,
    /// Where in it the bytes belong.
    pub offset: u64,
    /// The bytes, as received from the source.
    pub data: Bytes,
    /// Goes home when they are written and hashed.
    pub permit: Permit,
    /// Number of the source that sent the bytes, below [`RESUMED`].
    pub source: u16,
}

/// What the bytes of one source in one range hash to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeDigest {
    /// Which bytes of the file.
    pub range: Range<u64>,
    /// Who sent it, or [`RESUMED`].
    pub source: u16,
    /// The SHA-256 of these bytes alone.
    pub sha256: Sha256,
}

/// What is sent again of a file that was wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Retry {
    /// All of it.
    Whole,
    /// These ranges; the rest is kept.
    Ranges(Vec<Range<u64>>),
}

/// Result of a file: verified, or the reason why not.
#[derive(Debug)]
pub enum Outcome {
    /// It is right and has its final name.
    Verified {
        /// The file.
        item: u32,
        /// Whose bytes it is made of, [`RESUMED`] left out.
        sources: Vec<u16>,
        /// Who had sent other bytes before.
        culprits: Vec<u16>,
    },
    /// All of it has come and it is wrong. It waits for [`Landing::retry`] or
    /// [`Landing::abandon`].
    Mismatch {
        /// The file.
        item: u32,
        /// Its length.
        size: u64,
        /// What it hashes to.
        got: Sha256,
        /// The same per range and source, in order.
        ranges: Vec<RangeDigest>,
    },
    /// The destination failed; what was written stays for the next run.
    Failed {
        /// The file.
        item: u32,
        /// What went wrong.
        cause: Cause,
    },
}

/// Why a file failed on this side.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The destination refused.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// Two files of one plan have one path.
    #[error("{path}: another file of this run has the same path")]
    PathTaken {
        /// The path.
        path: String,
    },
    /// The thread that wrote it has panicked: an error of this program.
    #[error("{path}: the thread that was writing it has failed")]
    ThreadFailed {
        /// The path.
        path: String,
    },
    /// Somebody removed the unfinished file while we went on with it.
    #[error("{path}: its unfinished file has vanished")]
    Vanished {
        /// The path.
        path: String,
    },
}

impl Cause {
    /// The kind of system error, when it is one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            Cause::Target(error) => error.kind(),
            _ => None,
        }
    }

    /// Whether the destination is full or the quota used up.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self, Cause::Target(error) if error.is_out_of_space())
    }
}

/// Why a landing cannot vouch for what it wrote.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LandingError {
    /// The sync of a checkpoint failed: files since the last good one are in doubt.
    #[error("what was written may not be on the disk: {0}")]
    Sync(Arc<TargetError>),
    /// The journal cannot be written: a killed run would fetch more again.
    #[error("the journal cannot be written: {0}")]
    Journal(Arc<FileError>),
}

/// Takes files. Clones are handles to the same one.
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

/// The length of an unfinished file from an earlier run.
type ResumedLength = dyn Fn(&str) -> Option<u64> + Send + Sync;

/// A handle to one thread.
struct WriterThread {
    chunks: Sender<Message>,
    load: Arc<Load>,
}

/// What waits for one thread.
#[derive(Default)]
struct Load {
    /// Bytes handed over and not written.
    bytes: AtomicU64,
    /// Bytes written and not hashed.
    put_off_bytes: AtomicU64,
    /// Commands of callers that must not wait. At most a few per unfinished file.
    commands: Mutex<Vec<Command>>,
}

/// What the threads share with each other and with the handles.
struct Shared {
    journal: Arc<Journal>,
    outcomes: UnboundedSender<Outcome>,
    registry: Mutex<Registry>,
    counters: Counters,
    journal_error: Mutex<Option<Arc<FileError>>>,
    pending_commits: PendingCommits,
}

/// The files under way.
#[derive(Default)]
struct Registry {
    items: HashMap<u32, Arc<Entry>>,
    paths: HashMap<String, u32>,
    /// Abandoned files that their thread still has open, with that thread: if the same
    /// path is begun again, that must happen there, after the old file is closed.
    leaving: HashMap<String, (usize, u32)>,
}

#[derive(Default)]
struct Counters {
    written_bytes: AtomicU64,
    wasted_bytes: AtomicU64,
    reread_bytes: AtomicU64,
    files: AtomicU64,
}

/// What has been done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LandingCounts {
    /// Bytes written to the target, each counted once.
    pub written_bytes: u64,
    /// Bytes that came for nothing: there already, or of files not under way.
    pub wasted_bytes: u64,
    /// Bytes read back for hashing, because they came out of order or in an earlier run.
    pub reread_bytes: u64,
    /// Files that were verified and have their names.
    pub files: u64,
}

/// A file under way, as everybody sees it.
struct Entry {
    spec: FileSpec,
    resumed: Vec<Range<u64>>,
    thread: AtomicUsize,
    mtime: AtomicI64,
    /// How often it was retried: bytes handed over before a retry are no answer to it.
    round: AtomicU32,
    /// It takes no more bytes: it is complete, it has failed, or nobody wants it any more.
    closed: AtomicBool,
}

enum Message {
    /// Bytes, and the round they belong to.
    Chunk(Arc<Entry>, u32, Chunk),
    /// There are commands.
    Wake,
}

enum Command {
    Start(Arc<Entry>),
    /// Begins this round of the file.
    Retry(u32, u32, Retry),
    Abandon(Arc<Entry>),
    End,
}

impl Landing {
    /// Starts `threads` threads (and one for checkpoints) that write to `target`.
    ///
    /// # Errors
    /// When the system starts no more threads.
    pub fn start<T: Target>(
        target: Arc<T>,
        journal: Arc<Journal>,
        threads: usize,
        ledger: &Ledger,
        outcomes: UnboundedSender<Outcome>,
    ) -> io::Result<Landing> {
        Landing::start_with(target, journal, threads, digest::streams_at_once(), ledger, outcomes)
    }

    /// `side_by_side` files are hashed by a thread in the time of one.
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

    /// Which bytes of a file an earlier run has left, for those who plan what to ask for.
    /// Never all of them: something is left to ask for, so that every file is begun.
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

    /// Announces a file. Returns what [`Landing::present`] says of it; an impossible path
    /// shows in its outcome. A file without bytes is finished by this alone.
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

    /// Hands over bytes of a file that was begun; others are dropped. Waits while the
    /// file's thread is behind.
    pub async fn chunk(&self, chunk: Chunk) {
        self.reserve(chunk.item).await.take(chunk);
    }

    /// Waits while the file's thread is behind: for those who must know, before they say of bytes
    /// that they have come, that nothing can keep them from the landing any more.
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

    /// Sets the time of last change, as an answer told it; counts until the file is done.
    pub fn set_mtime(&self, item: u32, unix_s: i64) {
        if let Some(entry) = self.inner.shared.entry(item) {
            entry.mtime.store(unix_s, Ordering::Relaxed);
        }
    }

    /// After a mismatch: has the landing take bytes again. Never waits.
    pub fn retry(&self, item: u32, retry: Retry) {
        if let Some(entry) = self.inner.shared.entry(item) {
            let round = entry.round.fetch_add(1, Ordering::AcqRel) + 1;
            self.command(&entry, Command::Retry(item, round, retry));
        }
    }

    /// Nobody wants the file any more. What may be right of it stays for the next run;
    /// what was found wrong is removed. There is no outcome. Never waits. False when the file is not
    /// under way: if it was begun, its outcome is out.
    pub fn abandon(&self, item: u32) -> bool {
        let Some(entry) = self.inner.shared.entry(item) else { return false };
        let thread = self.thread_of(&entry);
        let left = self.inner.shared.leave(&entry, thread);
        if left {
            self.command(&entry, Command::Abandon(entry.clone()));
        }
        left
    }

    /// Makes everything finished so far as durable as the target promises, now.
    /// Blocks: for a plain thread.
    ///
    /// # Errors
    /// This sync or an earlier one has failed, or the journal.
    pub fn checkpoint(&self) -> Result<(), LandingError> {
        self.inner.checkpoints.now()?;
        self.inner.shared.journal_result()
    }

    /// Returns the counters since the landing was made.
    pub fn counts(&self) -> LandingCounts {
        let counters = &self.inner.shared.counters;
        LandingCounts {
            written_bytes: counters.written_bytes.load(Ordering::Relaxed),
            wasted_bytes: counters.wasted_bytes.load(Ordering::Relaxed),
            reread_bytes: counters.reread_bytes.load(Ordering::Relaxed),
            files: counters.files.load(Ordering::Relaxed),
        }
    }

    /// Ends the threads after what they have been handed, logs what is unfinished, and
    /// takes a last checkpoint if anything came at all. Blocks: for a plain thread.
    ///
    /// # Errors
    /// A [`LandingError`] if the last sync, an earlier sync, or a write to the journal has failed.
    pub fn finish(&self) -> Result<(), LandingError> {
        for writer in &self.inner.writers {
            writer.send(Command::End);
        }
        let threads = std::mem::take(&mut *locked(&self.inner.threads));
        for thread in threads {
            // A panic there is reported by its message; what it had is in the journal.
            let _ = thread.join();
        }
        self.inner.shared.wait_for_commits();
        let counts = self.counts();
        let result = if counts.files > 0 || counts.written_bytes > 0 {
            self.checkpoint()
        } else {
            // A sync would only wait for what other programs have written to the same file system.
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

    /// The file's thread, chosen at its first bytes.
    fn thread_of(&self, entry: &Entry) -> usize {
        let chosen = entry.thread.load(Ordering::Acquire);
        if chosen != NO_THREAD {
            return chosen;
        }
        let waiting = self.inner.writers.iter().map(|writer| writer.load.waiting_bytes());
        let thread = hashing::thread_for_new(self.inner.side_by_side, waiting);
        // Several connections may bring the file's first bytes at once.
        match entry.thread.compare_exchange(NO_THREAD, thread, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => thread,
            Err(chosen) => chosen,
        }
    }
}

/// A reserved slot for one chunk of a file in the queue of its thread.
pub struct ChunkSlot<'a> {
    shared: &'a Shared,
    /// None where nobody waits for bytes of the file.
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
        // Full means that the thread has messages, after which it takes its commands.
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

    /// Takes a file out of those under way.
    fn close(&self, item: u32) -> Option<Arc<Entry>> {
        let mut registry = self.registry();
        let entry = registry.items.remove(&item)?;
        registry.paths.remove(&entry.spec.path);
        entry.closed.store(true, Ordering::Release);
        Some(entry)
    }

    /// Takes an abandoned file out of those under way; false when it is out already.
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

    /// The thread of an abandoned file has closed it.
    fn left(&self, entry: &Entry) {
        let mut registry = self.registry();
        if registry.leaving.get(&entry.spec.path).is_some_and(|(_, item)| *item == entry.spec.item) {
            registry.leaving.remove(&entry.spec.path);
        }
    }

    /// Its thread is gone. After the end of all threads nobody hears of it, and nobody needs to.
    fn thread_failed(&self, item: u32) {
        if let Some(entry) = self.close(item) {
            let path = entry.spec.path.clone();
            self.tell(Outcome::Failed { item, cause: Cause::ThreadFailed { path } });
        }
    }

    /// Whose files these are.
    fn items_of(&self, thread: usize) -> Vec<u32> {
        let registry = self.registry();
        let own = |entry: &Entry| entry.thread.load(Ordering::Acquire) == thread;
        registry.items.iter().filter(|(_, entry)| own(entry)).map(|(item, _)| *item).collect()
    }

    fn tell(&self, outcome: Outcome) {
        // The caller may have gone, as after an interrupt.
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

/// What is behind these locks is whole after every statement.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
