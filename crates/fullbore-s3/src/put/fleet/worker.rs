//! A worker of a `put`: it takes tasks, reads their files below its own mount, and stores them.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::tree::found::Root;
use fullbore_engine::window::Window;
use fullbore_fleet::book::{Begun, Book, Step, TaskNumber};
use fullbore_fleet::message::{Item, Kind, PutSource, Report, Run, Stat};
use fullbore_fleet::names::{Class, RunId, WorkerId};
use fullbore_fleet::pull::{self, Load, RateMeter};
use fullbore_fleet::queue::{Held, Queue, QueueError};
use fullbore_wire::rate_limit::RateLimits;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::super::fields;
use super::super::known::Known;
use super::super::plan::Planned;
use super::super::send::{Outcome, Sending};
use super::super::unchanged::Unchanged;
use super::super::{READY, WINDOW_BYTES};
use super::{item, place_of};
use crate::address::Location;
use crate::bucket::{self, BucketSettings};
use crate::key;
use crate::upload::Uploader;
use crate::work::Work;

/// Time that a worker who is told to end gives to the tasks that it has.
const GRACE: Duration = Duration::from_secs(20);

/// Between two looks at the clock, and two reports.
const TICK: Duration = Duration::from_secs(1);

/// For how long a request for tasks waits for the first one.
const PULL_WAIT: Duration = Duration::from_secs(1);

/// Pause after an answer without tasks.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);

/// Pause after a queue or store that did not answer.
const PAUSE: Duration = Duration::from_secs(5);

/// A worker's own settings.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The bucket of the run, with this worker's credentials. The location is that of the run.
    pub bucket: BucketSettings,
    /// Directories of planners and where this machine has them.
    pub roots: Vec<(PathBuf, PathBuf)>,
    /// Where parts too large for memory are kept.
    pub spool: PathBuf,
    /// Highest upload rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

/// What a worker has stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Files that the store has confirmed.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Works on a run until `over`, or until the queue has no such run.
///
/// # Errors
/// - [`ErrorKind::Usage`]: a run whose directory this machine does not have; a store that refuses.
/// - [`ErrorKind::Disk`]: the directory cannot be opened.
pub async fn serve<Q: Queue>(
    queue: Q,
    run: &Run,
    worker: WorkerId,
    settings: &WorkerSettings,
    over: watch::Receiver<bool>,
) -> Result<Served, CommandError> {
    let Some(source) = &run.put else {
        return Err(CommandError::new(ErrorKind::Internal, "a run of another kind"));
    };
    let Some((to, beneath)) = place_of(&source.root, &settings.roots) else {
        return Err(CommandError::usage(format_args!("run {}: no --root has {}", run.id, source.root))
            .hint("pass --root FROM=TO, with the planner's directory and this machine's"));
    };
    let (stop, stopped) = watch::channel(false);
    let ledger = Ledger::off();
    let location = Location { bucket: run.to.bucket().to_owned(), key: run.to.prefix().to_owned() };
    let limits = RateLimits::sending(settings.limit_rate_bytes_per_s);
    let client =
        bucket::open(&BucketSettings { location, ..settings.bucket.clone() }, limits, stopped.clone(), &ledger)?;
    let items = u32::try_from(client.connections()).unwrap_or(u32::MAX).saturating_mul(4).saturating_add(READY);
    let window = Window::new(WINDOW_BYTES, items);
    let uploader =
        Uploader { work: Arc::new(Work::new(&ledger)), ..Uploader::new(client.clone(), window, &settings.spool) };
    let sending = |known| Arc::new(sending_of(source, &uploader, known, stopped.clone()));
    let bench = Bench::open(&to, &beneath, run, sending(Known::overwrite()), sending(Known::default()))?;
    let mut station = Station::new(queue, run.id.clone(), worker, bench);
    station.work(over).await;
    // Uploads that are still on their way are given up.
    stop.send_replace(true);
    Ok(station.served)
}

/// The means of sending, as the announcement has them.
fn sending_of(source: &PutSource, uploader: &Uploader, known: Known, stop: watch::Receiver<bool>) -> Sending {
    let content_type = source.content_type.clone();
    Sending {
        client: uploader.client.clone(),
        uploader: uploader.clone(),
        known,
        unchanged: Unchanged::none(),
        asks_for_conditions: false,
        handle: Handle::current(),
        stop,
        threads: 1,
        dry_run: false,
        fields: source.fields.clone(),
        content_type: Arc::new(move |key| fields::content_type(content_type.as_deref(), key)),
        large: Sending::large_window(),
        pipes: Sending::pipes_window(),
        over: watch::Sender::new(false),
        succeeded: AtomicUsize::new(0),
        failed: AtomicUsize::new(0),
    }
}

/// Where files come from, and how they are stored.
#[derive(Clone)]
pub struct Bench {
    place: PathBuf,
    root: Arc<Root>,
    /// What all keys begin with.
    prefix: String,
    /// Stores what the planner knows to be missing.
    direct: Arc<Sending>,
    /// Compares with the store before.
    asking: Arc<Sending>,
}

impl Bench {
    /// Opens the directory of a run: the path beneath a directory that the user of this machine named.
    pub fn open(
        to: &Path,
        beneath: &Path,
        run: &Run,
        direct: Arc<Sending>,
        asking: Arc<Sending>,
    ) -> Result<Bench, CommandError> {
        let place = to.join(beneath);
        let root = Root::open_beneath(to, beneath)
            .map_err(|error| CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", place.display())))?;
        let prefix = run.to.prefix();
        let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Ok(Bench { place, root, prefix, direct, asking })
    }

    /// The file of an item, if it is as the planner saw it.
    fn planned(&self, wanted: &Item) -> Result<Planned, String> {
        let (path, found) = (self.place.join(&wanted.path), self.root.found(None));
        let about = found.open(&path).and_then(|file| file.metadata()).map_err(|error| error.to_string())?;
        if item(wanted.path.clone(), &about) != *wanted {
            return Err("the file has changed since the planner listed it".to_owned());
        }
        let key = format!("{}{}", self.prefix, wanted.path);
        key::check(&key).map_err(|error| error.to_string())?;
        Ok(Planned { path, found: Some(found), key, turn: 0 })
    }

    /// Stores the files of a task, and tells of each. It blocks.
    fn store(&self, begun: &Begun, tell: &mpsc::UnboundedSender<Ended>) {
        let sending = if begun.asks_store { &self.asking } else { &self.direct };
        let (done, ended) = std::sync::mpsc::channel();
        let told = |at: usize, size: u64, result: Result<Outcome, String>| {
            let _ = tell.send(Ended { task: begun.number, item: at, size, fault: result.err() });
        };
        for (at, wanted) in begun.items.iter().enumerate() {
            match self.planned(wanted) {
                Ok(planned) => sending.begin(&planned, at, &done),
                Err(fault) => told(at, wanted.size, Err(fault)),
            }
        }
        drop(done);
        for done in ended {
            told(done.number, done.size, done.result.map_err(|error| error.to_string()));
        }
    }

    fn sent_bytes(&self) -> u64 {
        self.direct.client.reading().sent_bytes
    }
}

/// The end of one file.
struct Ended {
    task: TaskNumber,
    item: usize,
    size: u64,
    fault: Option<String>,
}

/// A worker at its work.
pub struct Station<Q> {
    queue: Q,
    run: RunId,
    worker: WorkerId,
    bench: Bench,
    book: Book,
    meter: RateMeter,
    begun: Instant,
    /// Tasks whose files are being stored.
    under_way: Vec<TaskNumber>,
    paused_until: Duration,
    /// What was stored.
    pub served: Served,
}

type Pulled = Result<Vec<Held>, QueueError>;

impl<Q: Queue> Station<Q> {
    /// A worker that holds nothing.
    pub fn new(queue: Q, run: RunId, worker: WorkerId, bench: Bench) -> Station<Q> {
        Station {
            queue,
            book: Book::new(worker.clone(), crate::client::TRY_FOR).only(run.clone(), Kind::Put),
            run,
            worker,
            bench,
            meter: RateMeter::default(),
            begun: Instant::now(),
            under_way: Vec::new(),
            paused_until: Duration::ZERO,
            served: Served::default(),
        }
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Works until `over`, or until the run is gone; then finishes for a while what it has.
    pub async fn work(&mut self, mut over: watch::Receiver<bool>) {
        let (tell, mut ended) = mpsc::unbounded_channel();
        let mut tick = tokio::time::interval(TICK);
        let mut pulling: Option<tokio::task::JoinHandle<Pulled>> = None;
        let mut sent_bytes = self.bench.sent_bytes();
        let mut ends_at = None;
        loop {
            let is_over = ends_at.is_some() || *over.borrow();
            if is_over && ends_at.is_none() {
                ends_at = Some(self.now() + GRACE);
            }
            if ends_at.is_some_and(|end| self.book.load().tasks == 0 || self.now() >= end) {
                break;
            }
            if pulling.is_none() && !is_over {
                pulling = self.pull();
            }
            let has_pulled = async {
                match &mut pulling {
                    Some(pulling) => pulling.await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(ended) = ended.recv() => self.ended(ended).await,
                pulled = has_pulled => {
                    pulling = None;
                    match pulled {
                        // A queue may answer at once, and would be asked again and again.
                        Ok(Ok(held)) if held.is_empty() => self.paused_until = self.now() + EMPTY_PAUSE,
                        Ok(Ok(held)) => self.take(held, &tell).await,
                        Ok(Err(QueueError::Missing(_))) => ends_at = Some(self.now() + GRACE),
                        // Tasks may have been delivered to others meanwhile.
                        _ => {
                            self.book.reconnected(self.now());
                            self.paused_until = self.now() + PAUSE;
                        }
                    }
                }
                _ = tick.tick() => {
                    let sent = self.bench.sent_bytes();
                    if std::mem::replace(&mut sent_bytes, sent) != sent {
                        let now = self.now();
                        self.under_way.iter().for_each(|task| self.book.moved(now, *task));
                    }
                    let steps = self.book.tick(self.now());
                    self.perform(steps).await;
                    self.report().await;
                }
                changed = over.changed(), if ends_at.is_none() => {
                    if changed.is_err() {
                        ends_at = Some(self.now() + GRACE);
                    }
                }
            }
        }
        let steps = self.book.give_back(self.now());
        self.perform(steps).await;
        self.report().await;
    }

    /// Asks for tasks, if the worker may have more.
    fn pull(&self) -> Option<tokio::task::JoinHandle<Pulled>> {
        let is_refused = *self.bench.direct.over.borrow() || *self.bench.asking.over.borrow();
        let is_paused = is_refused || self.now() < self.paused_until;
        let load = Load { is_paused, rate_bytes_per_s: self.meter.clone().bytes_per_s(self.now()), ..self.book.load() };
        let demand = pull::demand(&load);
        if demand.tasks == 0 && demand.xl_tasks == 0 {
            return None;
        }
        let (queue, run) = (self.queue.clone(), self.run.clone());
        Some(tokio::spawn(async move {
            if demand.xl_tasks > 0 {
                let held = queue.pull(&run, Class::Xl, demand.xl_tasks, Duration::ZERO).await?;
                if !held.is_empty() {
                    return Ok(held);
                }
            }
            queue.pull(&run, Class::Large, demand.tasks, PULL_WAIT).await
        }))
    }

    async fn take(&mut self, held: Vec<Held>, tell: &mpsc::UnboundedSender<Ended>) {
        let now = self.now();
        self.meter.begin(now);
        for held in held {
            let (begun, steps) = self.book.take(now, held);
            self.perform(steps).await;
            let Some(begun) = begun else { continue };
            self.under_way.push(begun.number);
            let (bench, tell) = (self.bench.clone(), tell.clone());
            tokio::task::spawn_blocking(move || bench.store(&begun, &tell));
        }
    }

    async fn ended(&mut self, Ended { task, item, size, fault }: Ended) {
        let now = self.now();
        let steps = match fault {
            None => {
                self.served.files += 1;
                self.served.bytes += size;
                self.meter.count(now, size);
                self.book.stored(now, task, item)
            }
            Some(fault) => self.book.failed(now, task, item, None, &fault),
        };
        self.perform(steps).await;
    }

    /// A request that fails has the same end as a lost one: the task comes again, and its files are found in the store.
    async fn perform(&mut self, steps: Vec<Step>) {
        for step in steps {
            let result = match &step {
                Step::Extend(delivery) => self.queue.extend(delivery).await,
                Step::Acknowledge(delivery) => self.queue.acknowledge(delivery).await,
                Step::GiveBack(delivery, delay) => self.queue.give_back(delivery, *delay).await,
                Step::Discard(delivery) => self.queue.discard(delivery).await,
                Step::Report(fault) => {
                    tracing::warn!(path = fault.path, fault = fault.fault, "a file was not stored");
                    self.queue.report(&self.run, &self.worker, &Report::Fault(fault.clone())).await
                }
                Step::Warn(line) => {
                    tracing::warn!("{line}");
                    Ok(())
                }
            };
            if let Err(error) = result {
                tracing::info!(%error, "the queue does not take what the worker says");
            }
        }
    }

    async fn report(&self) {
        let mut stat = Stat::new(self.worker.clone());
        stat.done = (self.served.files, self.served.bytes);
        let load = self.book.load();
        stat.held = (load.tasks as u64, load.bytes);
        // Progress for people; it may be lost.
        let _ = self.queue.report(&self.run, &self.worker, &Report::Stat(stat)).await;
    }
}
