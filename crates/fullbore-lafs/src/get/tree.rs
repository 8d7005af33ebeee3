//! Gets a directory of a grid, with all below it, and sets the times of files and directories.
//!
//! Whoever may write to the directories chose the names: each has to be a single name, and the engine's [`TreeWriter`]
//! follows none outside. A file gets its name and its time once all of it is on the disk. A file that exists with this
//! size and time is not read again. Failures are reported one by one, and the rest is got.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::files::FileError;
use fullbore_engine::files::tree::{Mtime, TreeFile, TreeWriter, explain as local};
use fullbore_engine::filter::{Missing, Selection};
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::sink::check_directory;
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Stop};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::GetSettings;
use crate::cap::{Cap, StorageIndex};
use crate::contents::{Contents, explain, listing_bytes};
use crate::directory::{Entry, Time};
use crate::download::Downloaded;

/// Files and directories read at once; the next constant bounds the bytes of those files. Each holds some segments in
/// memory.
const FILES_AT_ONCE: usize = 100;
const AHEAD_BYTES: u64 = 64 << 20;

/// Segments buffered between decoding and writing.
const PIECES: usize = 4;

/// Counts of what was got.
#[derive(Debug, Default)]
pub(super) struct Got {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    /// Files that existed already.
    pub present: u64,
    /// Files and directories that failed.
    pub failed: u64,
    /// Time spent writing, over all threads.
    pub target: Duration,
}

/// A child of a directory, to be got.
struct Child {
    /// Path below the destination.
    path: String,
    cap: Cap,
    modified: Option<Time>,
    /// The directories above it, to find a directory that contains itself.
    above: Arc<Vec<StorageIndex>>,
}

/// The result for a child.
enum Done {
    /// The children of a directory were listed.
    Listed { child: Child, entries: Vec<Entry>, troubles: Vec<String>, bytes: u64 },
    /// A file is complete, but has no name yet; it is counted when it gets it.
    Written { path: String, weight: u64, troubles: Vec<String> },
    /// The file existed already.
    Present { bytes: u64 },
    /// `fatal`: the disk is full, and nothing else would fit either.
    Failed { path: String, bytes: u64, error: CommandError, fatal: bool },
}

type Finished = Arc<Mutex<HashMap<String, u64>>>;

/// Gets all files below a directory.
pub(super) struct Tree<'a> {
    contents: Contents,
    tree: Arc<TreeWriter>,
    /// Which paths to get; the next field has those not found yet.
    selection: Selection,
    missing: Missing,
    /// Children not yet begun, in reverse order.
    waiting: Vec<Child>,
    tasks: JoinSet<Done>,
    /// Bytes of memory charged for the reads in progress.
    ahead: u64,
    /// Times of directories, set last, because writing into a directory changes its time.
    times: Vec<(String, Time)>,
    got: Got,
    /// Bytes of complete files without a name yet, by path.
    finished: Finished,
    written: Arc<AtomicU64>,
    write_ns: Arc<AtomicU64>,
    known: Counts,
    events: &'a mut dyn Events,
}

impl<'a> Tree<'a> {
    /// Prepares the run: creates the destination if it does not exist.
    pub(super) fn new(
        contents: Contents,
        output: &Path,
        settings: &GetSettings,
        events: &'a mut dyn Events,
    ) -> Result<Tree<'a>, CommandError> {
        check_directory(output)?;
        let tree = TreeWriter::create(output, &settings.private);
        let tree = tree.map_err(|error| CommandError::from_error(ErrorKind::Disk, &error).context("-o"))?;
        Ok(Tree {
            contents,
            tree: Arc::new(tree),
            selection: settings.selection.clone(),
            missing: Missing::of(&settings.selection),
            waiting: Vec::new(),
            tasks: JoinSet::new(),
            ahead: 0,
            times: Vec::new(),
            got: Got::default(),
            finished: Arc::default(),
            written: Arc::default(),
            write_ns: Arc::default(),
            known: Counts::default(),
            events,
        })
    }

    /// Gets everything. Returns the counts with an error, too.
    pub(super) async fn run(
        mut self,
        cap: Cap,
        stop: &Stop,
        begun: Instant,
        limit: impl Fn(Duration, u64) -> Option<String>,
    ) -> (Got, Result<(), CommandError>) {
        let mut pace = Pace::with_peers(begun);
        let result = self.walk(cap, stop, &mut pace, begun, &limit).await;
        // Counts results that were not yet handled.
        while let Some(Ok(done)) = self.tasks.try_join_next() {
            let _ = self.done(done);
        }
        // Complete files get their names even if the run failed.
        self.publish();
        self.set_times();
        self.got.target = Duration::from_nanos(self.write_ns.load(Ordering::Relaxed));
        (self.got, result)
    }

    async fn walk(
        &mut self,
        cap: Cap,
        stop: &Stop,
        pace: &mut Pace,
        begun: Instant,
        limit: &impl Fn(Duration, u64) -> Option<String>,
    ) -> Result<(), CommandError> {
        let top = self.contents.directory(&cap);
        let listing = stop.or(top).await?.map_err(|error| explain(&error))?;
        listing.troubles.into_iter().for_each(|trouble| self.events.warn(trouble));
        let above = cap.storage_index().into_iter().collect();
        let top = Child { path: String::new(), cap, modified: None, above: Arc::new(above) };
        self.children(&top, listing.entries);
        loop {
            while self.has_room()
                && let Some(child) = self.waiting.pop()
            {
                self.begin(child);
            }
            if self.tasks.is_empty() {
                for path in std::mem::take(&mut self.missing).paths() {
                    let error = CommandError::new(ErrorKind::Partial, "there is no such file or directory");
                    self.fail(&String::from_utf8_lossy(&path), &error);
                }
                return Ok(());
            }
            let next = stop.or(self.tasks.join_next());
            match timeout(PROGRESS_EVERY, next).await {
                Err(_) => {}
                Ok(Err(error)) => return Err(error),
                Ok(Ok(Some(Ok(done)))) => self.done(done)?,
                Ok(Ok(Some(Err(error)))) => return Err(CommandError::new(ErrorKind::Internal, error)),
                Ok(Ok(None)) => {}
            }
            if self.tree.is_due() {
                self.publish();
            }
            if pace.is_due(Instant::now()) {
                let bytes = self.written.load(Ordering::Relaxed);
                let limit = limit(begun.elapsed(), bytes);
                let finished = locked(&self.finished).len() as u64;
                let counts = Counts { files: self.got.files + self.got.present + finished, bytes, ..self.known };
                self.events.emit(Event::Progress(pace.progress(counts, limit, Instant::now())));
            }
        }
    }

    fn has_room(&self) -> bool {
        self.tasks.len() < FILES_AT_ONCE && (self.ahead < AHEAD_BYTES || self.tasks.is_empty())
    }

    /// Enqueues the children of a directory; reports those with an invalid name or cap.
    fn children(&mut self, directory: &Child, entries: Vec<Entry>) {
        let mut names = HashSet::new();
        for Entry { name, cap, modified } in entries.into_iter().rev() {
            let path = match directory.path.as_str() {
                "" => name.clone(),
                above => format!("{above}/{name}"),
            };
            let refused = |reason: &str| CommandError::new(ErrorKind::Partial, reason);
            let is_directory = cap.as_ref().is_ok_and(Cap::is_directory);
            let bytes = path.as_bytes();
            self.missing.found(bytes);
            if !(if is_directory { self.selection.enters(bytes) } else { self.selection.takes(bytes) }) {
                continue;
            }
            let cap = match cap {
                _ if name.contains('/') => Err(refused("left out: a name with a slash in it")),
                _ if !names.insert(name) => Err(refused("left out: the name is in the directory twice")),
                Ok(cap)
                    if cap
                        .storage_index()
                        .is_some_and(|index| cap.is_directory() && directory.above.contains(&index)) =>
                {
                    Err(refused("left out: the directory contains itself"))
                }
                Ok(cap) => Ok(cap),
                Err(error) => Err(refused(&format!("left out: {error}"))),
            };
            let cap = cap.and_then(|cap| self.tree.judge(&path).map(|()| cap).map_err(|error| local(&error)));
            match cap {
                Err(error) => self.fail(&path, &error),
                Ok(cap) => {
                    let size = cap.size().filter(|_| !cap.is_directory()).unwrap_or(0);
                    self.known.total_files += u64::from(!cap.is_directory());
                    // A cap may claim any size.
                    self.known.total_bytes = self.known.total_bytes.saturating_add(size);
                    self.waiting.push(Child { path, cap, modified, above: Arc::clone(&directory.above) });
                }
            }
        }
    }

    fn begin(&mut self, child: Child) {
        let (contents, tree) = (self.contents.clone(), Arc::clone(&self.tree));
        self.ahead += weight(&child.cap);
        if child.cap.is_directory() {
            self.tasks.spawn(list(contents, tree, child));
            return;
        }
        let (written, write_ns) = (Arc::clone(&self.written), Arc::clone(&self.write_ns));
        self.tasks.spawn(file(contents, tree, child, Arc::clone(&self.finished), written, write_ns));
    }

    fn done(&mut self, done: Done) -> Result<(), CommandError> {
        match done {
            Done::Listed { child, entries, troubles, bytes } => {
                self.ahead = self.ahead.saturating_sub(bytes);
                self.tell(&child.path, troubles);
                self.got.directories += 1;
                self.children(&child, entries);
                if let Some(time) = child.modified {
                    self.times.push((child.path, time));
                }
            }
            Done::Present { bytes } => {
                self.ahead = self.ahead.saturating_sub(bytes.min(AHEAD_BYTES));
                self.written.fetch_add(bytes, Ordering::Relaxed);
                self.got.present += 1;
            }
            Done::Written { path, weight, troubles } => {
                self.ahead = self.ahead.saturating_sub(weight);
                self.tell(&path, troubles);
            }
            Done::Failed { path, bytes, error, fatal } => {
                self.ahead = self.ahead.saturating_sub(bytes);
                self.fail(&path, &error);
                if fatal {
                    return Err(CommandError { message: format!("{path}: {}", error.message), ..error });
                }
            }
        }
        Ok(())
    }

    fn tell(&mut self, path: &str, troubles: Vec<String>) {
        for trouble in troubles {
            self.events.warn(format!("{path}: {trouble}"));
        }
    }

    fn fail(&mut self, path: &str, error: &CommandError) {
        self.got.failed += 1;
        let (problem, path) = (error.kind.name().to_owned(), path.to_owned());
        let message = match error.context.first() {
            Some(context) => format!("{} ({context})", error.message),
            None => error.message.clone(),
        };
        self.events.emit(Event::Problem { problem, path, message, harmless: false });
    }

    /// Names files that are on the disk.
    fn publish(&mut self) {
        for committed in self.tree.commit() {
            let bytes = locked(&self.finished).remove(&committed.path).unwrap_or(0);
            match committed.result {
                Ok(()) => {
                    self.got.files += 1;
                    self.got.bytes += bytes;
                }
                // For example if a directory has the name already.
                Err(error) => self.fail(&committed.path, &local(&error)),
            }
        }
    }

    fn set_times(&mut self) {
        // The deepest first: setting one time must not change another.
        let times: BTreeSet<(String, Time)> = std::mem::take(&mut self.times).into_iter().collect();
        for (path, time) in times.into_iter().rev() {
            if let Err(error) = self.tree.set_directory_mtime(&path, mtime(time)) {
                self.events.warn(format!("its time is not set: {error}"));
            }
        }
    }
}

fn locked(finished: &Finished) -> MutexGuard<'_, HashMap<String, u64>> {
    finished.lock().unwrap_or_else(PoisonError::into_inner)
}

fn mtime(time: Time) -> Mtime {
    Mtime { unix_s: time.seconds, nanoseconds: time.nanoseconds }
}

/// Bytes of memory charged for a child while it is read. A cap may claim any size; one child is always read, whatever
/// its size.
fn weight(cap: &Cap) -> u64 {
    let bytes = match cap.is_directory() {
        true => listing_bytes(cap),
        false => cap.size().unwrap_or(0),
    };
    bytes.min(AHEAD_BYTES)
}

/// The result of a failed file operation: it ends the run if the disk is full.
fn failed_here(path: String, bytes: u64, error: &FileError) -> Done {
    Done::Failed { path, bytes, error: local(error), fatal: error.is_out_of_space() }
}

/// Creates a directory, and lists its counterpart in the grid.
async fn list(contents: Contents, tree: Arc<TreeWriter>, mut child: Child) -> Done {
    let bytes = weight(&child.cap);
    let failed = |path: String, error| Done::Failed { path, bytes, error, fatal: false };
    let path = child.path.clone();
    let making = tokio::task::spawn_blocking(move || tree.create_directory(&path));
    match making.await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => return failed_here(child.path, bytes, &error),
        Err(error) => return failed(child.path, CommandError::new(ErrorKind::Internal, error)),
    }
    match contents.directory(&child.cap).await {
        Ok(listing) => {
            let mut above = Vec::clone(&child.above);
            above.extend(child.cap.storage_index());
            child.above = Arc::new(above);
            Done::Listed { child, entries: listing.entries, troubles: listing.troubles, bytes }
        }
        Err(error) => failed(child.path, explain(&error)),
    }
}

/// Reads a file into one that has no name yet.
async fn file(
    contents: Contents,
    tree: Arc<TreeWriter>,
    child: Child,
    finished: Finished,
    written: Arc<AtomicU64>,
    write_ns: Arc<AtomicU64>,
) -> Done {
    let Child { path, cap, modified, .. } = child;
    let (size, weight) = (cap.size(), weight(&cap));
    let failed = |path: String, error| Done::Failed { path, bytes: weight, error, fatal: false };
    let (target, preparing) = (path.clone(), Arc::clone(&tree));
    let preparing = tokio::task::spawn_blocking(move || prepare(&preparing, &target, size, modified));
    let mut file = match preparing.await {
        Err(error) => return failed(path, CommandError::new(ErrorKind::Internal, error)),
        Ok(Err(Unprepared::NoRoom(error))) => return failed(path, local(&error)),
        Ok(Err(Unprepared::Other(error))) => return failed_here(path, weight, &error),
        Ok(Ok(None)) => return Done::Present { bytes: size.unwrap_or(0) },
        Ok(Ok(Some(file))) => file,
    };
    let (out, mut pieces) = mpsc::channel::<Bytes>(PIECES);
    let writer = Arc::clone(&tree);
    let writing = tokio::task::spawn_blocking(move || -> Result<(TreeFile, u64), FileError> {
        let mut offset = 0;
        while let Some(piece) = pieces.blocking_recv() {
            let begun = Instant::now();
            writer.write(&mut file, offset, &piece)?;
            write_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
            offset += piece.len() as u64;
            written.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
        Ok((file, offset))
    });
    let reading = async {
        let read = contents.read(&cap, &out).await;
        drop(out);
        read
    };
    let (read, wrote) = tokio::join!(reading, writing);
    let (file, bytes) = match wrote {
        Err(error) => return failed(path, CommandError::new(ErrorKind::Internal, error)),
        Ok(Err(error)) => return failed_here(path, weight, &error),
        Ok(Ok(written)) => written,
    };
    let ending = tokio::task::spawn_blocking(move || match read {
        Ok(Downloaded { troubles, .. }) => {
            let path = file.path().to_owned();
            // Before `finish`, which may name the file at once.
            locked(&finished).insert(path.clone(), bytes);
            let named = tree.finish(file, bytes, modified.map(mtime));
            if named.is_err() {
                locked(&finished).remove(&path);
            }
            named.map(|()| troubles).map_err(|error| (local(&error), error.is_out_of_space()))
        }
        Err(error) => {
            // The partial content is useless without the rest.
            let _ = tree.discard(file);
            Err((explain(&error), false))
        }
    });
    match ending.await {
        Ok(Ok(troubles)) => Done::Written { path, weight, troubles },
        Ok(Err((error, fatal))) => Done::Failed { path, bytes: weight, error, fatal },
        Err(error) => failed(path, CommandError::new(ErrorKind::Internal, error)),
    }
}

/// Why a file was not begun.
#[derive(Debug)]
enum Unprepared {
    /// The disk has no room for the size that the cap claims. Other files may fit.
    NoRoom(FileError),
    Other(FileError),
}

impl From<FileError> for Unprepared {
    fn from(error: FileError) -> Unprepared {
        Unprepared::Other(error)
    }
}

/// Prepares a file to write. Returns `None` if a file of this size and time exists. Anything else of this name is not
/// replaced.
fn prepare(
    tree: &TreeWriter,
    path: &str,
    size: Option<u64>,
    modified: Option<Time>,
) -> Result<Option<TreeFile>, Unprepared> {
    if let Some((file, status)) = tree.existing(path)?
        && let (Some(size), Some(time)) = (size, modified)
        && status.size == size
        && has_time(&file, time)
    {
        tree.keep(path, &status)?;
        return Ok(None);
    }
    let mut file = match tree.begin(path, size.unwrap_or(0)) {
        Err(error) if error.is_out_of_space() => {
            // If even an empty file does not fit, the disk is full.
            tree.discard(tree.begin(path, 0)?)?;
            return Err(Unprepared::NoRoom(error));
        }
        begun => begun?,
    };
    // The rest of a killed run cannot be verified without the beginning of its segment.
    file.start_over()?;
    Ok(Some(file))
}

/// Whether a file has this time; false if its time cannot be read.
fn has_time(file: &File, time: Time) -> bool {
    let of = |about: std::fs::Metadata| (about.mtime(), u32::try_from(about.mtime_nsec()).unwrap_or(0));
    file.metadata().is_ok_and(|about| of(about) == (time.seconds, time.nanoseconds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cap::Chk;

    fn chk(size: u64) -> Chk {
        Chk { key: [1; 16], extension_hash: [2; 32], needed: 3, total: 10, size }
    }

    #[test]
    fn a_size_that_does_not_fit_fails_its_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let tree = TreeWriter::create(directory.path(), "").unwrap();
        // Less than the largest ext4 file, and more than the disk of a test has.
        let huge = prepare(&tree, "huge", Some(10_000_000_000_000), None);
        assert!(matches!(huge, Err(Unprepared::NoRoom(_))), "{huge:?}");
        assert_eq!(directory.path().read_dir().unwrap().count(), 0, "nothing is left of it");
        assert!(prepare(&tree, "small", Some(300_000), None).unwrap().is_some());
    }

    #[test]
    fn a_full_disk_and_a_full_quota_end_the_run() {
        let error =
            |errno: rustix::io::Errno| FileError::Io { operation: "write", path: "a".into(), source: errno.into() };
        for (errno, is_fatal) in
            [(rustix::io::Errno::NOSPC, true), (rustix::io::Errno::DQUOT, true), (rustix::io::Errno::ACCESS, false)]
        {
            let Done::Failed { fatal, .. } = failed_here("a".into(), 0, &error(errno)) else { panic!() };
            assert_eq!(fatal, is_fatal, "{errno}");
        }
    }

    #[test]
    fn listings_count_and_no_claim_counts_more_than_all() {
        assert_eq!(weight(&Cap::Directory(chk(8 << 20))), 40 << 20);
        assert_eq!(weight(&Cap::Directory(chk(u64::MAX))), AHEAD_BYTES);
        assert_eq!(weight(&Cap::Chk(chk(u64::MAX))), AHEAD_BYTES);
        assert_eq!(weight(&Cap::Chk(chk(1000))), 1000);
        let text = "URI:DIR2-RO:aeaqcaibaeaqcaibaeaqcaibae:aeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaqcaibaeaq";
        assert_eq!(weight(&Cap::parse(text).unwrap()), 5 << 20, "a guess");
    }
}
