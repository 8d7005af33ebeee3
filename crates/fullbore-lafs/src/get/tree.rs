//! A directory of a grid into one of this machine, with all that is below it and the times of all.
//!
//! Names come from whoever may write to the directories: each has to be a single name, and the engine's [`TreeWriter`]
//! leads none of them outside. A file gets its name, and its time, when all of it is here and on the disk; one that is
//! here already with this size and time is not read again. What cannot be got is named, and the rest is got all the
//! same.

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

/// Files and directories that are read at once, and bytes of those files: each holds some segments in memory.
const FILES_AT_ONCE: usize = 100;
const AHEAD_BYTES: u64 = 64 << 20;

/// Segments between decoding and writing.
const PIECES: usize = 4;

/// What was got.
#[derive(Debug, Default)]
pub(super) struct Got {
    pub files: u64,
    pub directories: u64,
    pub bytes: u64,
    /// Files that were here already.
    pub present: u64,
    /// Files and directories that could not be got.
    pub failed: u64,
    /// Time that writing took, over all threads.
    pub target: Duration,
}

/// A child of a directory that is to be got.
struct Child {
    /// Beneath the destination.
    path: String,
    cap: Cap,
    modified: Option<Time>,
    /// The directories that it is in, which it cannot contain.
    above: Arc<Vec<StorageIndex>>,
}

/// What became of a child.
enum Done {
    /// A directory's children are known.
    Listed { child: Child, entries: Vec<Entry>, troubles: Vec<String>, bytes: u64 },
    /// A file is here, without its name; it is counted when it gets it.
    Written { path: String, weight: u64, troubles: Vec<String> },
    /// A file was here.
    Present { bytes: u64 },
    /// `fatal`: nothing else would fit on the disk either.
    Failed { path: String, bytes: u64, error: CommandError, fatal: bool },
}

type Finished = Arc<Mutex<HashMap<String, u64>>>;

/// Gets all that is below a directory.
pub(super) struct Tree<'a> {
    contents: Contents,
    tree: Arc<TreeWriter>,
    /// Which of the paths, and those of them that are not found yet.
    selection: Selection,
    missing: Missing,
    /// What is to be begun, the last first.
    waiting: Vec<Child>,
    tasks: JoinSet<Done>,
    /// What is being read takes so many bytes of memory, or would.
    ahead: u64,
    /// Directories that get their times last, because what is written into them changes these.
    times: Vec<(String, Time)>,
    got: Got,
    /// Bytes of files that have no names yet, by their paths.
    finished: Finished,
    written: Arc<AtomicU64>,
    write_ns: Arc<AtomicU64>,
    known: Counts,
    events: &'a mut dyn Events,
}

impl<'a> Tree<'a> {
    /// Begins: makes the destination if it is not there.
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

    /// Gets everything. What was got until then is given back with an error, too.
    pub(super) async fn run(
        mut self,
        cap: Cap,
        stop: &Stop,
        begun: Instant,
        limit: impl Fn(Duration, u64) -> Option<String>,
    ) -> (Got, Result<(), CommandError>) {
        let mut pace = Pace::with_peers(begun);
        let result = self.walk(cap, stop, &mut pace, begun, &limit).await;
        // What is done and not told of yet counts, too.
        while let Some(Ok(done)) = self.tasks.try_join_next() {
            let _ = self.done(done);
        }
        // Files that are complete are worth their names, whatever ended the run.
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

    /// Takes over the children of a directory; those whose names are none are told of.
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
                    // Caps may claim anything.
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

    /// Gives names to what is here, once it is on the disk.
    fn publish(&mut self) {
        for committed in self.tree.commit() {
            let bytes = locked(&self.finished).remove(&committed.path).unwrap_or(0);
            match committed.result {
                Ok(()) => {
                    self.got.files += 1;
                    self.got.bytes += bytes;
                }
                // A directory is in its place, for one.
                Err(error) => self.fail(&committed.path, &local(&error)),
            }
        }
    }

    fn set_times(&mut self) {
        // The deepest first: no time is changed by what is set after it.
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

/// Bytes of memory that count for a child while it is read. What a cap claims may be any number; one at a time goes on
/// whatever it is.
fn weight(cap: &Cap) -> u64 {
    let bytes = match cap.is_directory() {
        true => listing_bytes(cap),
        false => cap.size().unwrap_or(0),
    };
    bytes.min(AHEAD_BYTES)
}

/// What a failure of the file system ends: it alone, or the run where the disk is full.
fn failed_here(path: String, bytes: u64, error: &FileError) -> Done {
    Done::Failed { path, bytes, error: local(error), fatal: error.is_out_of_space() }
}

/// Lists a directory, and makes its counterpart.
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

/// Reads a file into one without a name.
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
            // Before, because it may get its name at once.
            locked(&finished).insert(path.clone(), bytes);
            let named = tree.finish(file, bytes, modified.map(mtime));
            if named.is_err() {
                locked(&finished).remove(&path);
            }
            named.map(|()| troubles).map_err(|error| (local(&error), error.is_out_of_space()))
        }
        Err(error) => {
            // The content that came is of no use without the rest.
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

/// Why a file is not begun.
#[derive(Debug)]
enum Unprepared {
    /// The disk has not the room that its cap claims. Others may fit.
    NoRoom(FileError),
    Other(FileError),
}

impl From<FileError> for Unprepared {
    fn from(error: FileError) -> Unprepared {
        Unprepared::Other(error)
    }
}

/// Looks at what is in the place of a file: `None` if it is the file, of this size and time. Otherwise begins it; what
/// else has its name is not replaced.
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
            // Where even an empty file has no room, nothing else has.
            tree.discard(tree.begin(path, 0)?)?;
            return Err(Unprepared::NoRoom(error));
        }
        begun => begun?,
    };
    // What a killed run has left cannot be verified without the beginning of its segment.
    file.start_over()?;
    Ok(Some(file))
}

/// Whether a file has this time; a time that cannot be read is another one.
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
        // Below the largest file that ext4 can have, and more than the disk of a test.
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
