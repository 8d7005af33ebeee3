//! A worker of a `put`: takes tasks, reads their files below its own mount, and uploads them.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::tree::found::Root;
use fullbore_engine::window::Window;
use fullbore_fleet::book::{Begun, Book, TaskNumber};
use fullbore_fleet::message::{Item, Kind, Part, PutSource, Run};
use fullbore_fleet::names::{RunId, WorkerId};
use fullbore_fleet::queue::Queue;
use fullbore_fleet::worker::{DRAIN_MAX, Pulled, REPORT_EVERY, TICK, WorkerQueue};
use fullbore_wire::rate_limit::RateLimits;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};

use super::super::fields;
use super::super::known::Known;
use super::super::plan::Planned;
use super::super::send::{Outcome, Sending};
use super::super::unchanged::Unchanged;
use super::super::{READY, WINDOW_BYTES};
use super::{condition, item, place_of};
use crate::address::Location;
use crate::bucket::{self, BucketSettings, explain};
use crate::client::CallError;
use crate::compare;
use crate::key;
use crate::objects::Condition;
use crate::upload::{UploadError, Uploader};
use crate::work::Work;

/// Key of a test request; the object need not exist.
const PROBE: &str = ".fullbore/probe";

/// Why a worker skips a file.
const CHANGED: &str = "the file has changed since the planner listed it";

/// Settings of a worker.
#[derive(Debug, Clone)]
pub struct WorkerSettings {
    /// The bucket of the run, with this worker's credentials. The location is the run's.
    pub bucket: BucketSettings,
    /// Directories of planners, with their places on this machine.
    pub roots: Vec<(PathBuf, PathBuf)>,
    /// Directory for parts that are too large for memory.
    pub spool: PathBuf,
    /// Highest upload rate in bytes per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

/// Result of a worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of files that the store has confirmed.
    pub files: u64,
    /// Total size of these files, in bytes.
    pub bytes: u64,
    /// Whether the work ended early because the store refuses every file, or cannot be reached. The reason is in the
    /// log.
    pub is_refused: bool,
}

/// Works on a run until `over` becomes true.
///
/// # Errors
/// A [`CommandError`] of one of these kinds:
///
/// - [`ErrorKind::Usage`]: this machine does not have the run's directory, or the store refuses.
/// - [`ErrorKind::Network`]: the store cannot be reached.
/// - [`ErrorKind::Disk`]: the directory cannot be opened.
pub async fn serve<Q: Queue>(
    queue: Q,
    run: &Run,
    worker: WorkerId,
    settings: &WorkerSettings,
    mut over: watch::Receiver<bool>,
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
    // Any answer will do. A worker that cannot reach the store takes no task.
    let answer = tokio::select! {
        answer = compare::head(&client, PROBE) => answer,
        () = told(&mut over) => return Ok(Served::default()),
    };
    if let Err(error @ (CallError::Network { .. } | CallError::Unreachable(_))) = answer {
        return Err(explain(&error));
    }
    let items = u32::try_from(client.connections()).unwrap_or(u32::MAX).saturating_mul(4).saturating_add(READY);
    let window = Window::new(WINDOW_BYTES, items);
    let uploader =
        Uploader { work: Arc::new(Work::new(&ledger)), ..Uploader::new(client.clone(), window, &settings.spool) };
    let sending = |known| Arc::new(sending_of(source, &uploader, known, stopped.clone()));
    let bench = Bench::open(&to, &beneath, run, sending(Known::overwrite()), sending(Known::default()))?;
    let served = Station::new(queue, run.id.clone(), worker, bench).work(over).await;
    // Uploads still in flight are abandoned.
    stop.send_replace(true);
    Ok(served)
}

/// The upload settings of the announcement.
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

/// Source of the files, and the ways to upload them.
#[derive(Clone)]
pub(super) struct Bench {
    place: PathBuf,
    root: Arc<Root>,
    /// Prefix of all keys.
    prefix: String,
    /// Uploads files that the planner knows to be missing.
    direct: Arc<Sending>,
    /// Compares with the store first.
    asking: Arc<Sending>,
}

impl Bench {
    /// Opens the directory of a run: `beneath`, below the directory `to` that the user of this machine named.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the directory cannot be opened, or a symbolic link is on the way.
    pub(super) fn open(
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

    /// Opens the file of an item if it is as the planner saw it.
    fn open_planned(&self, wanted: &Item) -> Result<(File, Planned), String> {
        let (path, found) = (self.place.join(&wanted.path), self.root.found(None));
        let file = found.open(&path).map_err(|error| error.to_string())?;
        if !is_as_planned(wanted, &file) {
            return Err(CHANGED.to_owned());
        }
        let key = format!("{}{}", self.prefix, wanted.path);
        key::check(&key).map_err(|error| error.to_string())?;
        Ok((file, Planned { path, found: Some(found), key, turn: 0, replaces: Condition::None }))
    }

    /// Uploads the files of a task, and reports each. Blocks.
    fn store(&self, begun: &Begun, tell: &mpsc::UnboundedSender<Ended>) {
        let sending = if begun.asks_store { &self.asking } else { &self.direct };
        let (done, ended) = std::sync::mpsc::channel();
        let told = |at: usize, size: u64, result: Result<Outcome, String>| {
            let _ = tell.send(Ended { task: begun.number, item: at, count: (1, size), fault: result.err() });
        };
        for (at, wanted) in begun.items.iter().enumerate() {
            match self.open_planned(wanted) {
                Ok((_, planned)) => {
                    let replaces = condition(begun.replaces.get(at).and_then(Option::as_deref));
                    sending.begin(&Planned { replaces, ..planned }, at, &done);
                }
                Err(fault) => told(at, wanted.size, Err(fault)),
            }
        }
        drop(done);
        for done in ended {
            told(done.number, done.size, done.result.map_err(|error| error.to_string()));
        }
    }

    /// Uploads a part of a file into the planner's multipart upload.
    async fn store_part(&self, task: TaskNumber, wanted: Item, part: Part) -> Ended {
        let range = part.range(wanted.size);
        // The last part counts as the file.
        let count = (u64::from(range.end == wanted.size), range.end - range.start);
        let ended = |fault| Ended { task, item: 0, count, fault };
        let opened = {
            let (bench, wanted) = (self.clone(), wanted.clone());
            tokio::task::spawn_blocking(move || bench.open_planned(&wanted)).await
        };
        let (file, key) = match opened {
            Ok(Ok((file, planned))) => (Arc::new(file), planned.key),
            Ok(Err(fault)) => return ended(Some(fault)),
            Err(error) => return ended(Some(error.to_string())),
        };
        let number = u64::from(part.number.saturating_sub(1));
        match self.direct.uploader.put_part((&key, &part.upload), &file, number, range).await {
            Ok(()) if !is_as_planned(&wanted, &file) => ended(Some(CHANGED.to_owned())),
            Ok(()) => {
                self.direct.succeeded.fetch_add(1, Ordering::Relaxed);
                ended(None)
            }
            // The object is complete, or the planner has aborted it: nobody needs this part.
            Err(UploadError::Call(error)) if error.status() == Some(404) && error.code() != "NoSuchBucket" => {
                tracing::info!(%error, "a part of an upload that has ended");
                Ended { count: (0, 0), ..ended(None) }
            }
            Err(error) => ended(Some(self.direct.explained(&error).to_string())),
        }
    }

    /// Whether the store refuses every file.
    fn is_refused(&self) -> bool {
        *self.direct.over.borrow() || *self.asking.over.borrow()
    }

    /// Number of bytes sent to the store, including those of unanswered requests: a slow link may take minutes for one.
    fn moved_bytes(&self) -> u64 {
        self.direct.client.reading().acknowledged_bytes
    }
}

/// Whether a file is as the planner saw it.
fn is_as_planned(wanted: &Item, file: &File) -> bool {
    file.metadata().is_ok_and(|about| item(wanted.path.clone(), &about) == *wanted)
}

/// Result of a file or a part.
struct Ended {
    task: TaskNumber,
    item: usize,
    /// Files and bytes that are stored now.
    count: (u64, u64),
    fault: Option<String>,
}

/// A working worker.
pub(super) struct Station<Q> {
    tasks: WorkerQueue<Q>,
    bench: Bench,
}

impl<Q: Queue> Station<Q> {
    /// Creates a worker without tasks.
    pub(super) fn new(queue: Q, run: RunId, worker: WorkerId, bench: Bench) -> Station<Q> {
        let book = Book::new(worker.clone(), crate::client::TRY_FOR)
            .only(run.clone(), |kind| matches!(kind, Kind::Put | Kind::Part(_)));
        Station { tasks: WorkerQueue::new(queue, run, worker, book, |line| tracing::warn!("{line}")), bench }
    }

    /// Works until `over` becomes true, then continues its tasks for a while. Returns the totals.
    pub(super) async fn work(mut self, mut over: watch::Receiver<bool>) -> Served {
        let (tell, mut ended) = mpsc::unbounded_channel();
        let (mut tick, mut report) = (interval(TICK), interval(REPORT_EVERY));
        let (mut ends_at, mut is_denied) = (None, false);
        loop {
            tokio::select! {
                Some(ended) = ended.recv() => self.ended(ended),
                pulled = self.tasks.pulled() => match pulled {
                    Pulled::Tasks(begun) => begun.into_iter().for_each(|begun| self.begin(begun, &tell)),
                    Pulled::Denied(why) if !std::mem::replace(&mut is_denied, true) => {
                        tracing::warn!("the queue refuses: {why}");
                    }
                    Pulled::Nothing | Pulled::Failed | Pulled::Denied(_) => {}
                },
                _ = tick.tick() => {
                    self.tasks.sent(self.bench.moved_bytes());
                    self.tasks.tick();
                }
                _ = report.tick() => self.tasks.report(),
                () = told(&mut over), if ends_at.is_none() => ends_at = Some(Instant::now() + DRAIN_MAX),
            }
            // The next start uses a new client, which tries again.
            if ends_at.is_none() && self.bench.is_refused() {
                tracing::warn!("the store refuses what any file would need, or cannot be reached");
                ends_at = Some(Instant::now() + DRAIN_MAX);
            }
            match ends_at {
                Some(end) => {
                    self.tasks.drain();
                    if self.tasks.is_idle() || Instant::now() >= end {
                        break;
                    }
                }
                None => self.tasks.pull(false),
            }
        }
        self.tasks.finish().await;
        self.tasks.give_back().await;
        let (files, bytes) = self.tasks.done;
        Served { files, bytes, is_refused: self.bench.is_refused() }
    }

    fn begin(&self, begun: Begun, tell: &mpsc::UnboundedSender<Ended>) {
        let (bench, tell) = (self.bench.clone(), tell.clone());
        match (&begun.kind, begun.items.first()) {
            (Kind::Part(part), Some(item)) => {
                let (task, item, part) = (begun.number, item.clone(), part.clone());
                tokio::spawn(async move { tell.send(bench.store_part(task, item, part).await) });
            }
            _ => drop(tokio::task::spawn_blocking(move || bench.store(&begun, &tell))),
        }
    }

    fn ended(&mut self, Ended { task, item, count, fault }: Ended) {
        match fault {
            None => self.tasks.stored(task, item, count),
            Some(fault) => {
                tracing::warn!(fault, "a file was not stored");
                self.tasks.failed(task, item, None, &fault);
            }
        }
    }
}

/// Waits for `over`. A closed channel counts as well.
async fn told(over: &mut watch::Receiver<bool>) {
    let _ = over.wait_for(|over| *over).await;
}

fn interval(every: Duration) -> Interval {
    let mut interval = tokio::time::interval(every);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}
