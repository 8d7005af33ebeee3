//! `get` from a grid: files by their caps, to stdout or to a file that appears when it is complete; or a directory with
//! all below it (`tree`).

mod caps;
mod tree;

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_engine::filter::Selection;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::report::{self, Report, StageTimes, StoreReport, Summary, UsedShare};
use fullbore_engine::run::sink::Sink;
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop, stopped};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units::several;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::cap::{Cap, Chk};
use crate::contents::{Contents, Found, ReadError, explain};
use crate::download::{Downloaded, Downloader, GetError};
use crate::grid::{self, GridSettings, access, connect};
use crate::upload::Grid;
use crate::upload::produce::Pool;
use crate::verdict::{DownloadCosts, Facts, judge};
use caps::{Caps, Wanted};
use tree::Tree;

/// Segments buffered between decoding and writing.
const PIECES: usize = 4;

/// Files read at once; the next constant bounds the bytes of files that wait to be written. Each file holds some
/// segments in memory.
const FILES_AT_ONCE: usize = 100;
const AHEAD_BYTES: u64 = 32 << 20;

/// A grid of at most this many servers is connected to as a whole while the next cap is awaited.
const WARM_SERVERS: usize = 100;

/// Settings of one `fullbore get` from a grid.
#[derive(Clone)]
pub struct GetSettings {
    /// The grid; not needed for literal caps.
    pub grid: GridSettings,
    /// Caps of files, or of one directory; `-` reads caps from stdin, one per line.
    pub caps: Vec<OsString>,
    /// File to write, or the destination for a directory; `None`: stdout.
    pub output: Option<PathBuf>,
    /// Which of the files below a directory to get.
    pub selection: Selection,
    /// Name of directories in which nothing is written, such as a mirror's state; empty: none.
    pub private: String,
    /// Highest download rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

impl fmt::Debug for GetSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GetSettings").field("grid", &self.grid).field("output", &self.output).finish_non_exhaustive()
    }
}

/// Downloads files one after the other to a file or to `stdout`, or a directory with all below it. Returns `None` if
/// the reader of stdout has closed it.
///
/// # Errors
/// - [`ErrorKind::Usage`] for an invalid cap, node directory or servers file, or a directory among other caps.
/// - [`ErrorKind::Network`] if too few servers answer.
/// - [`ErrorKind::Verification`] if too few shares are good.
/// - [`ErrorKind::Disk`] if the output cannot be written.
/// - [`ErrorKind::Partial`] if some files of a directory could not be got.
/// - [`ErrorKind::Interrupted`] if the run was stopped.
pub fn run(
    settings: &GetSettings,
    stdout: &mut (dyn Write + Send),
    events: &mut dyn Events,
    stop: &Stop,
) -> Result<Option<Report>, CommandError> {
    let mut caps = caps::read(&settings.caps)?;
    let begun = Instant::now();
    events.emit(Event::started("get", settings.grid.name()));
    let runtime = sending_runtime(&Ledger::off())?;
    let seen = Arc::new(Seen { rate_limit: settings.limit_rate_bytes_per_s, ..Seen::default() });
    // The first cap tells whether the output is a file or a directory.
    let mut first = runtime.block_on(stop.or(caps.recv()))?;
    let mut reading = None;
    if let Some(Ok(Wanted::Other(cap, path))) = &first {
        let reading = reading.insert(Reading::new(settings, stop, &seen)?);
        let walk = async { stop.or(reading.contents.walk(cap.clone(), path)).await };
        let Found { cap: found, troubles } = runtime.block_on(walk)?.map_err(|error| explain(&error))?;
        troubles.into_iter().for_each(|trouble| events.warn(trouble));
        if found.is_directory() {
            if let Some(another) = runtime.block_on(stop.or(caps.recv()))? {
                another?;
                return Err(CommandError::usage("cannot get a directory together with other caps")
                    .hint("run get once for each directory"));
            }
            let output = settings.output.as_deref().ok_or_else(|| explain(&ReadError::IsADirectory))?;
            return directory(settings, reading, found, output, (&runtime, &seen), events, stop, begun).map(Some);
        }
        first = Some(Ok(Wanted::Other(found, String::new())));
    }
    if !settings.selection.is_all() {
        return Err(CommandError::usage("--include, --exclude and --files-from need the cap of a directory"));
    }
    let mut files = Files::new(settings, caps, stop.clone(), Arc::clone(&seen));
    files.reading = reading;
    let _inside = runtime.enter();
    files.begin(first)?;
    let mut sink = Sink::open(settings.output.as_deref(), None, stdout)?;
    events.emit(Event::Phase { phase: Phase::Fetch });
    // While stdin gives nothing, no server is waited for.
    let mut pace = if settings.caps.iter().any(|cap| cap == "-") { Pace::new(begun) } else { Pace::with_peers(begun) };
    loop {
        // Dropping the future would lose the file that it ends: it is kept across ticks.
        let next = runtime.block_on(async {
            let mut next = pin!(files.next());
            loop {
                match timeout(PROGRESS_EVERY, &mut next).await {
                    Ok(next) => break next,
                    Err(_) => seen.show(&mut pace, &sink, begun, events),
                }
            }
        });
        let Some(bytes) = next? else { break };
        sink.write(&bytes)?;
        if sink.is_abandoned {
            return Ok(None);
        }
        if pace.is_due(Instant::now()) {
            seen.show(&mut pace, &sink, begun, events);
        }
    }
    if seen.files.load(Ordering::Relaxed) == 0 {
        return Err(CommandError::usage("stdin has no cap"));
    }
    seen.show(&mut pace, &sink, begun, events);
    let bytes = sink.written;
    let target = sink.publish()?;
    let Files { reading, got, waited, .. } = files;
    for trouble in &got.troubles {
        events.warn(trouble.clone());
    }
    let decode = reading.as_ref().map(|reading| reading.downloader.decode_time()).unwrap_or_default();
    let costs = DownloadCosts { source: waited, decode, target };
    let facts = seen.facts(begun.elapsed(), costs, bytes);
    let given_up = seen.grid.get().map(|grid| grid.given_up()).unwrap_or_default();
    Ok(Some(report(&settings.grid, &facts, costs, given_up, got, seen.files.load(Ordering::Relaxed))))
}

/// Gets a directory into `output`.
#[allow(clippy::too_many_arguments)] // what the run of files has as well
fn directory(
    settings: &GetSettings,
    reading: &Reading,
    cap: Cap,
    output: &Path,
    (runtime, seen): (&Runtime, &Arc<Seen>),
    events: &mut dyn Events,
    stop: &Stop,
    begun: Instant,
) -> Result<Report, CommandError> {
    events.emit(Event::Phase { phase: Phase::Fetch });
    let tree = Tree::new(reading.contents.clone(), output, settings, events)?;
    let costs = |target| DownloadCosts { decode: reading.downloader.decode_time(), target, ..DownloadCosts::default() };
    let limit = |wall, bytes| {
        let verdict = judge(&seen.facts(wall, costs(Duration::ZERO), bytes));
        verdict.confident.then_some(verdict.limit)
    };
    let (got, result) = runtime.block_on(tree.run(cap, stop, begun, limit));
    let facts = seen.facts(begun.elapsed(), costs(got.target), got.bytes);
    let store = StoreReport {
        files: got.files,
        // Plus the directory of the cap itself.
        directories: got.directories + 1,
        present: got.present,
        failed: got.failed,
        bytes: got.bytes,
        ..StoreReport::default()
    };
    let report = summarized(&settings.grid, &facts, costs(got.target), reading.grid.given_up(), store);
    let partial = || {
        let text =
            format!("{} could not be downloaded", several(got.failed, "file or directory", "files or directories"));
        CommandError::new(ErrorKind::Partial, text)
    };
    match result.and_then(|()| if got.failed == 0 { Ok(()) } else { Err(partial()) }) {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

fn report(
    settings: &GridSettings,
    facts: &Facts,
    costs: DownloadCosts,
    given_up: Vec<(String, String)>,
    got: Downloaded,
    files: u64,
) -> Report {
    let store = StoreReport {
        files,
        bytes: facts.moved_bytes,
        shares: got.used.into_iter().map(|(share, server)| UsedShare { share, server }).collect(),
        troubles: got.troubles,
        ..StoreReport::default()
    };
    summarized(settings, facts, costs, given_up, store)
}

/// The report of a run.
fn summarized(
    settings: &GridSettings,
    facts: &Facts,
    costs: DownloadCosts,
    given_up: Vec<(String, String)>,
    store: StoreReport,
) -> Report {
    let (files, bytes) = (store.files, store.bytes);
    let missing_files = store.failed;
    let store = StoreReport {
        stages: StageTimes {
            source_ms: StoreReport::ms(costs.source),
            decode_ms: Some(StoreReport::ms(costs.decode)),
            target_ms: Some(StoreReport::ms(costs.target)),
            ..StageTimes::default()
        },
        ..store
    };
    let summary = grid::summary(settings, facts.wall, &facts.servers, given_up, judge(facts), store);
    let totals = report::Totals {
        files,
        needed_bytes: bytes,
        received_bytes: facts.servers.iter().map(|(_, reading)| reading.bytes).sum(),
        written_bytes: bytes,
        missing_files,
        requests: summary.hosts.iter().map(|host| host.requests).sum(),
        connections: summary.hosts.iter().map(|host| host.connections).sum(),
        ..report::Totals::default()
    };
    Report { summary: Summary { changed: true, totals, ..summary }, ..Report::default() }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The state of the run while files are in progress.
#[derive(Default)]
struct Seen {
    /// Number of caps.
    files: AtomicU64,
    /// Bytes of their files, as far as known.
    bytes: AtomicU64,
    /// Set at the first cap that needs the grid.
    grid: OnceLock<Arc<Grid>>,
    /// Limit in bytes per second.
    rate_limit: Option<u64>,
}

impl Seen {
    fn facts(&self, wall: Duration, costs: DownloadCosts, moved_bytes: u64) -> Facts {
        Facts {
            wall,
            processor: Duration::from_millis(process_costs().0),
            cores: threads(),
            threads: threads(),
            download: Some(costs),
            servers: self.grid.get().map(|grid| grid.readings()).unwrap_or_default(),
            rate_limit: self.rate_limit,
            moved_bytes,
            ..Facts::default()
        }
    }

    /// Reports progress. More caps than are known now may come from stdin.
    fn show(&self, pace: &mut Pace, sink: &Sink<'_>, begun: Instant, events: &mut dyn Events) {
        let costs = DownloadCosts { target: sink.worked(), ..DownloadCosts::default() };
        let verdict = judge(&self.facts(begun.elapsed(), costs, sink.written));
        let limit = verdict.confident.then_some(verdict.limit);
        let (total_files, total_bytes) = (self.files.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed));
        let files = if sink.written >= total_bytes { total_files } else { 0 };
        let counts = Counts { files, bytes: sink.written, total_files, total_bytes };
        events.emit(Event::Progress(pace.progress(counts, limit, Instant::now())));
    }
}

/// Files in progress, in the order in which they are written.
struct Files<'a> {
    settings: &'a GetSettings,
    stop: Stop,
    caps: Caps,
    /// Counts of caps and bytes, for progress.
    seen: Arc<Seen>,
    /// Whether all caps have come.
    is_end: bool,
    coming: VecDeque<Coming>,
    /// Bytes of the files in `coming`, received or not.
    ahead: u64,
    /// Set at the first cap that needs the grid.
    reading: Option<Reading>,
    got: Downloaded,
    /// Time idle before the next cap came.
    waited: Duration,
}

/// The means to read from a grid.
struct Reading {
    grid: Arc<Grid>,
    downloader: Arc<Downloader>,
    contents: Contents,
}

/// A file that waits for its turn to be written.
enum Coming {
    Literal(Vec<u8>),
    Read(Download),
    /// A cap that failed; the error ends the run in its turn.
    Refused(CommandError),
}

/// A file in progress: its size, its content and its result.
struct Download {
    size: u64,
    pieces: mpsc::Receiver<Bytes>,
    task: JoinHandle<Result<Downloaded, ReadError>>,
}

impl<'a> Files<'a> {
    fn new(settings: &'a GetSettings, caps: Caps, stop: Stop, seen: Arc<Seen>) -> Files<'a> {
        Files {
            settings,
            stop,
            caps,
            seen,
            is_end: false,
            coming: VecDeque::new(),
            ahead: 0,
            reading: None,
            got: Downloaded::default(),
            waited: Duration::ZERO,
        }
    }

    /// The next bytes to write; `None` at the end of all files.
    async fn next(&mut self) -> Result<Option<Bytes>, CommandError> {
        loop {
            match self.coming.pop_front() {
                Some(Coming::Literal(content)) => return Ok(Some(content.into())),
                Some(Coming::Refused(error)) => return Err(error),
                None if self.is_end => return Ok(None),
                None => {
                    let cap = match self.caps.try_recv() {
                        Ok(cap) => Some(cap),
                        Err(_) => self.wait().await?,
                    };
                    self.begin(cap)?;
                }
                Some(Coming::Read(mut download)) => {
                    let has_room = !self.is_end && self.coming.len() + 1 < FILES_AT_ONCE && self.ahead < AHEAD_BYTES;
                    tokio::select! {
                        biased;
                        cap = self.caps.recv(), if has_room => {
                            self.coming.push_front(Coming::Read(download));
                            self.begin(cap)?;
                        }
                        piece = download.pieces.recv() => match piece {
                            Some(piece) => {
                                self.coming.push_front(Coming::Read(download));
                                return Ok(Some(piece));
                            }
                            None => self.end(download).await?,
                        },
                    }
                }
            }
        }
    }

    /// Waits for the next cap, and meanwhile opens the connections that it may need.
    async fn wait(&mut self) -> Result<Option<Result<Wanted, CommandError>>, CommandError> {
        if let Some(reading) = self.reading.as_ref().filter(|_| !self.caps.is_closed()) {
            reading.grid.warm(WARM_SERVERS);
        }
        let begun = Instant::now();
        let cap = self.stop.or(self.caps.recv()).await;
        self.waited += begun.elapsed();
        cap
    }

    /// Starts to read a file; `None`: there are no more.
    fn begin(&mut self, cap: Option<Result<Wanted, CommandError>>) -> Result<(), CommandError> {
        let Some(cap) = cap else {
            self.is_end = true;
            return Ok(());
        };
        self.seen.files.fetch_add(1, Ordering::Relaxed);
        let one = match cap {
            Ok(Wanted::Literal(content)) => {
                self.seen.bytes.fetch_add(content.len() as u64, Ordering::Relaxed);
                Coming::Literal(content)
            }
            Ok(Wanted::Chk(chk)) => {
                self.seen.bytes.fetch_add(chk.size, Ordering::Relaxed);
                self.ahead = chk.size.saturating_add(self.ahead);
                Coming::Read(self.download(chk)?)
            }
            Ok(Wanted::Other(cap, path)) => Coming::Read(self.other(cap, path)?),
            Err(error) => Coming::Refused(error),
        };
        self.coming.push_back(one);
        Ok(())
    }

    fn reading(&mut self) -> Result<&Reading, CommandError> {
        Ok(match &mut self.reading {
            Some(reading) => reading,
            none => none.insert(Reading::new(self.settings, &self.stop, &self.seen)?),
        })
    }

    /// Starts to read a file of unknown size.
    fn other(&mut self, cap: Cap, path: String) -> Result<Download, CommandError> {
        let contents = self.reading()?.contents.clone();
        let (out, pieces) = mpsc::channel::<Bytes>(PIECES);
        let mut stop = self.stop.watch();
        let reading = async move {
            let Found { cap, mut troubles } = contents.walk(cap, &path).await?;
            if cap.is_directory() {
                return Err(ReadError::IsADirectory);
            }
            let got = contents.read(&cap, &out).await?;
            troubles.extend(got.troubles);
            Ok(Downloaded { troubles, ..got })
        };
        // Stopping ends the reading at once: servers of a mutable file may be slow.
        let task = tokio::spawn(async move {
            tokio::select! {
                () = stopped(&mut stop) => Err(GetError::Interrupted.into()),
                read = reading => read,
            }
        });
        Ok(Download { size: 0, pieces, task })
    }

    fn download(&mut self, chk: Chk) -> Result<Download, CommandError> {
        let reading = self.reading()?;
        let (out, pieces) = mpsc::channel::<Bytes>(PIECES);
        let (size, downloader) = (chk.size, Arc::clone(&reading.downloader));
        let task = tokio::spawn(async move { Ok(downloader.get(&chk, &out).await?) });
        Ok(Download { size, pieces, task })
    }

    /// Takes the result of a file whose content was written.
    async fn end(&mut self, download: Download) -> Result<(), CommandError> {
        let result = download.task.await.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let Downloaded { used, troubles } = result.map_err(|error| explain(&error))?;
        self.got.used.extend(used);
        self.got.troubles.extend(troubles);
        self.ahead = self.ahead.saturating_sub(download.size);
        Ok(())
    }
}

impl Reading {
    fn new(settings: &GetSettings, stop: &Stop, seen: &Seen) -> Result<Reading, CommandError> {
        let Some(access) = access(&settings.grid)? else {
            return Err(CommandError::usage("no Tahoe-LAFS grid is named")
                .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE"));
        };
        let grid = Arc::new(connect(
            settings.grid.patience,
            &access,
            RateLimits::receiving(settings.limit_rate_bytes_per_s),
            &Ledger::off(),
        ));
        let _ = seen.grid.set(Arc::clone(&grid));
        let downloader = Arc::new(Downloader::new(Arc::clone(&grid), Pool::new(threads()), stop.watch()));
        let contents = Contents::new(Arc::clone(&grid), Arc::clone(&downloader));
        Ok(Reading { grid, downloader, contents })
    }
}
