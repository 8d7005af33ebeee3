//! Downloads objects as a tree of files: all objects below prefixes, and single ones.
//!
//! [`run`] is the walk. One thread finds the objects (`find`): it lists prefixes and reads keys. A second thread judges
//! their names and starts a task for each (`object`), under a permit of the window. The main thread receives the
//! results, and gives finished files their names in groups.
//!
//! Finished objects below a prefix are not kept, so memory does not grow with their number. With several arguments, or
//! addresses from stdin, two objects might map to one file; then the paths of all are kept.

mod find;
mod object;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::files::tree::{self, TreeWriter};
use fullbore_engine::filter::Selection;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::report::{self, Report, StageTimes, StoreKind, StoreReport, Summary};
use fullbore_engine::run::sink::check_directory;
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop, interruption};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units::several;
use fullbore_engine::window::Window;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;

use super::facts;
use crate::address::SCHEME;
use crate::bucket::{self, BucketSettings};
use crate::download::{RANGES_AT_ONCE, WINDOW_BYTES};
use crate::put::report::of_store;
use crate::verdict::judge;
pub use find::Names;
use find::{Find, Found};
use object::Getter;

/// Maximum number of objects in flight: enough for 64 connections over a path of a tenth of a second.
const OBJECTS_AT_ONCE: u32 = 256;

/// Maximum number of bytes of small objects in flight.
const SMALL_BYTES: u64 = 32 << 20;

/// Maximum number of objects found ahead of their turn.
const AHEAD: usize = 1000;

/// Maximum number of single warnings about objects without a checksum.
const UNVERIFIED_TOLD: u64 = 20;

/// Settings of one `fullbore get` of several objects.
#[derive(Debug, Clone)]
pub struct TreeSettings {
    /// The bucket; its key is ignored.
    pub bucket: BucketSettings,
    /// The objects to download.
    pub names: Vec<Names>,
    /// Selects objects below a prefix.
    pub selection: Selection,
    /// Directory below which files are written.
    pub output: PathBuf,
    /// Name of directories in which nothing is written, such as a mirror's state; empty for none.
    pub private: String,
    /// Whether an object that no checksum of the store verifies is an error.
    pub require_checksum: bool,
    /// Highest download rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

/// Result of an object, or of several.
enum Done {
    /// The content is written and verified; the next commit names and counts the file.
    Written,
    /// The file existed already with this content.
    Present { bytes: u64 },
    /// A directory was created for the object.
    Directory,
    /// The object failed. `fatal`: other objects would fail as well.
    Failed { path: String, error: CommandError, fatal: bool },
}

/// Counters while objects are in flight.
#[derive(Default)]
struct Seen {
    /// Number of objects found, and their total size.
    objects: AtomicU64,
    bytes: AtomicU64,
    /// Number of bytes written.
    written: AtomicU64,
    /// Time for writing and examining files, over all threads.
    target_ns: AtomicU64,
    /// Whether all objects are found.
    is_complete: AtomicBool,
    /// Number of objects that were started and have no result yet.
    under_way: AtomicU64,
    /// Files without final names, by path.
    finished: Mutex<HashMap<String, Finished>>,
}

/// Counts to add when a file gets its name.
struct Finished {
    bytes: u64,
    /// Why its content is unverified.
    doubt: Option<&'static str>,
}

impl Seen {
    fn finished(&self) -> MutexGuard<'_, HashMap<String, Finished>> {
        self.finished.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A started object; dropped when its result is reported.
struct UnderWay(Arc<Seen>);

impl UnderWay {
    fn new(seen: &Arc<Seen>) -> UnderWay {
        seen.under_way.fetch_add(1, Ordering::SeqCst);
        UnderWay(Arc::clone(seen))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Downloads all objects below a directory.
///
/// # Errors
/// A [`CommandError`] whose [`ErrorKind`] tells the cause: usage for an invalid `-o`, disk if the directory cannot be
/// written, partial if some objects failed, interrupted after a signal. Downloaded files stay, and are in the report.
pub fn run(settings: &TreeSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    let begun = Instant::now();
    let location = &settings.bucket.location;
    events.emit(Event::started("get", format!("{SCHEME}{}", location.bucket)));
    check_directory(&settings.output)?;
    let tree = TreeWriter::create(&settings.output, &settings.private);
    let tree = Arc::new(tree.map_err(|error| CommandError::from_error(ErrorKind::Disk, &error).context("-o"))?);
    let ledger = Ledger::off();
    let runtime = sending_runtime(&ledger)?;
    let limits = RateLimits::receiving(settings.limit_rate_bytes_per_s);
    let client = bucket::open(&settings.bucket, limits, stop.watch(), &ledger)?;
    events.emit(Event::Phase { phase: Phase::Fetch });
    let seen = Arc::new(Seen::default());
    let (done, ended) = mpsc::channel::<Done>();
    let (found_by, to_begin) = mpsc::sync_channel::<Found>(AHEAD);
    let over = Arc::new(AtomicBool::new(false));
    let find = Find {
        client: client.clone(),
        handle: runtime.handle().clone(),
        names: settings.names.clone(),
        selection: settings.selection.clone(),
        seen: Arc::clone(&seen),
        found: found_by,
        done: done.clone(),
        over: Arc::clone(&over),
        taken: (settings.names.len() > 1 || settings.names.contains(&Names::Stdin)).then(Mutex::default),
    };
    // A thread may wait for stdin, so it is not joined.
    let finding = std::thread::Builder::new().name("find".into()).spawn(move || find.run());
    finding.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let getter = Arc::new(Getter {
        client: client.clone(),
        tree: Arc::clone(&tree),
        objects: Window::new(SMALL_BYTES, OBJECTS_AT_ONCE),
        ranges: Window::new(WINDOW_BYTES, RANGES_AT_ONCE),
        large: Window::new(u64::MAX, object::LARGE_AT_ONCE),
        named: Window::new(u64::MAX, OBJECTS_AT_ONCE),
        required: settings.require_checksum,
        seen: Arc::clone(&seen),
    });
    let (starting, over_too) = (Arc::clone(&getter), Arc::clone(&over));
    let (handle, stopped) = (runtime.handle().clone(), stop.watch());
    let beginning = std::thread::Builder::new().name("begin".into()).spawn(move || {
        while let Ok(found) = to_begin.recv() {
            // Count it first: a main thread that ends the run and finds nothing in flight must be sure that nothing
            // will be.
            let under_way = UnderWay::new(&starting.seen);
            if *stopped.borrow() || over_too.load(Ordering::SeqCst) {
                break;
            }
            starting.begin(found, &handle, &done, under_way);
        }
    });
    beginning.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let mut account = Account { tree: &tree, seen: &seen, events, totals: Totals::default(), first: None };
    let limit = |totals: &Totals| {
        let written = seen.written.load(Ordering::Relaxed);
        let verdict = judge(&facts(&client, settings.limit_rate_bytes_per_s, begun, totals.target(&seen), written));
        verdict.confident.then_some(verdict.limit)
    };
    account.hear_all(&ended, begun, stop, &over, &limit);
    over.store(true, Ordering::Relaxed);
    account.commit();
    let Account { totals, first, .. } = account;
    runtime.shutdown_background();
    let facts = facts(&client, settings.limit_rate_bytes_per_s, begun, totals.target(&seen), totals.bytes);
    let report = gather(&totals, &seen, &facts, location.bucket.as_str());
    match totals.ending(first, stop, seen.objects.load(Ordering::Relaxed)) {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

/// Totals of finished objects.
#[derive(Debug, Default)]
struct Totals {
    files: u64,
    directories: u64,
    present: u64,
    failed: u64,
    bytes: u64,
    unverified: u64,
}

impl Totals {
    /// Time spent writing, divided by the number of threads.
    fn target(&self, seen: &Seen) -> Duration {
        let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
        Duration::from_nanos(seen.target_ns.load(Ordering::Relaxed) / threads)
    }

    fn ending(&self, first: Option<CommandError>, stop: &Stop, objects: u64) -> Result<(), CommandError> {
        if *stop.watch().borrow() {
            return Err(interruption());
        }
        let Some(first) = first else {
            return match objects {
                0 => Err(CommandError::usage("no such object, and no objects below this prefix")
                    .hint("`fullbore ls s3://BUCKET/` shows what is there")),
                _ => Ok(()),
            };
        };
        let there = self.files + self.present + self.directories;
        if there == 0 && self.failed <= 1 {
            return Err(first);
        }
        let text = format!("{} not written; each is named above", several(self.failed, "object was", "objects were"));
        let kind = if there == 0 { first.kind } else { ErrorKind::Partial };
        Err(CommandError::new(kind, text))
    }
}

/// Reports results, and gives finished files their names.
struct Account<'a> {
    tree: &'a TreeWriter,
    seen: &'a Seen,
    events: &'a mut dyn Events,
    totals: Totals,
    /// The first failure.
    first: Option<CommandError>,
}

impl Account<'_> {
    fn hear_all(
        &mut self,
        ended: &Receiver<Done>,
        begun: Instant,
        stop: &Stop,
        over: &AtomicBool,
        limit: &dyn Fn(&Totals) -> Option<String>,
    ) {
        let mut pace = Pace::with_peers(begun);
        let stopped = stop.watch();
        loop {
            match ended.recv_timeout(PROGRESS_EVERY) {
                Ok(done) => {
                    if matches!(done, Done::Failed { fatal: true, .. }) {
                        over.store(true, Ordering::SeqCst);
                    }
                    self.hear(done);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if self.tree.is_due() {
                self.commit();
            }
            // Do not wait until the channel is closed: finding objects may wait for stdin, which nobody closes.
            let ends = over.load(Ordering::SeqCst) && self.seen.under_way.load(Ordering::SeqCst) == 0;
            if ends || *stopped.borrow() {
                ended.try_iter().for_each(|done| self.hear(done));
                break;
            }
            if pace.is_due(Instant::now()) {
                self.show_progress(&mut pace, limit);
            }
        }
        self.show_progress(&mut pace, limit);
    }

    fn show_progress(&mut self, pace: &mut Pace, limit: &dyn Fn(&Totals) -> Option<String>) {
        let Totals { files, present, directories, .. } = self.totals;
        let is_complete = self.seen.is_complete.load(Ordering::Relaxed);
        let counts = Counts {
            files: files + present + directories + self.seen.finished().len() as u64,
            bytes: self.seen.written.load(Ordering::Relaxed),
            total_files: self.seen.objects.load(Ordering::Relaxed),
            // The remaining bytes are known once all objects are found.
            total_bytes: if is_complete { self.seen.bytes.load(Ordering::Relaxed) } else { 0 },
        };
        let limit = limit(&self.totals);
        self.events.emit(Event::Progress(pace.progress(counts, limit, Instant::now())));
    }

    fn hear(&mut self, done: Done) {
        match done {
            Done::Written => {}
            Done::Present { bytes } => {
                self.totals.present += 1;
                self.seen.written.fetch_add(bytes, Ordering::Relaxed);
            }
            Done::Directory => self.totals.directories += 1,
            Done::Failed { path, error, .. } => self.fail(path, error),
        }
    }

    fn fail(&mut self, path: String, error: CommandError) {
        if error.kind == ErrorKind::Interrupted {
            return;
        }
        self.totals.failed += 1;
        let (problem, message) = (error.kind.name().to_owned(), error.message.clone());
        if self.first.is_none() {
            let named =
                if path.is_empty() { error } else { CommandError { message: format!("{path}: {message}"), ..error } };
            self.first = Some(named);
        }
        self.events.emit(Event::Problem { problem, path, message, harmless: false });
    }

    /// Counts a file that has its name.
    fn count(&mut self, path: &str, finished: &Finished) {
        self.totals.files += 1;
        self.totals.bytes += finished.bytes;
        let Some(doubt) = finished.doubt else { return };
        self.totals.unverified += 1;
        if self.totals.unverified <= UNVERIFIED_TOLD {
            self.events.warn(format!("{path}: {doubt}"));
        } else if self.totals.unverified == UNVERIFIED_TOLD + 1 {
            self.events.warn(format!("more than {UNVERIFIED_TOLD} objects are unverified; the rest is counted only"));
        }
    }

    /// Gives finished files their names.
    fn commit(&mut self) {
        let begun = Instant::now();
        for committed in self.tree.commit() {
            let finished = self.seen.finished().remove(&committed.path);
            match (committed.result, finished) {
                (Ok(()), Some(finished)) => self.count(&committed.path, &finished),
                (Ok(()), None) => self.totals.files += 1,
                (Err(error), _) => self.fail(committed.path, tree::explain(&error)),
            }
        }
        self.seen.target_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }
}

fn gather(totals: &Totals, seen: &Seen, facts: &crate::verdict::Facts, bucket: &str) -> Report {
    let store = StoreReport {
        kind: StoreKind::Bucket,
        files: totals.files,
        directories: totals.directories,
        present: totals.present,
        failed: totals.failed,
        bytes: totals.bytes,
        verified: Some(totals.unverified == 0),
        stages: StageTimes { target_ms: Some(StoreReport::ms(facts.target)), ..StageTimes::default() },
        ..StoreReport::default()
    };
    let all = report::Totals {
        files: totals.files + totals.present,
        needed_bytes: seen.bytes.load(Ordering::Relaxed),
        received_bytes: facts.connections.received_bytes,
        written_bytes: totals.bytes,
        kept_files: totals.present,
        missing_files: totals.failed,
        ..report::Totals::default()
    };
    let changed = totals.files + totals.directories > 0;
    let summary = Summary { changed, dir: format!("{SCHEME}{bucket}"), ..of_store(facts, all, store) };
    Report { summary, ..Report::default() }
}
