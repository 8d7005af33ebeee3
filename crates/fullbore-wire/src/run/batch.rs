//! Fetches files from all hosts of several archives at once: the loop with progress and signals, and the errors when it
//! ends early.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Instant;

use fullbore_engine::files::FileError;
use fullbore_engine::landing::{Cause, Landing};
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::{
    CommandError, Counts, ErrorKind, Event, Events, Pace, Progress, Stop, StoreFailure, interruption,
};
use fullbore_engine::stage::Ledger;
use fullbore_engine::target::TargetError;
use fullbore_engine::verdict::{RecordSamples, Sampler, SamplerConfig, Verdict};

use tokio::sync::mpsc;

use crate::dispatcher::GivenUp;
use crate::fetch::{Catalogue, FetchEvent, Fetcher, Watch};
use crate::hosts::HostSet;
use crate::queue::{Item, ItemId};

/// Reports new faults of a fetcher's hosts as events.
pub struct Faults {
    watch: Watch,
    /// Number of reported faults per host.
    told: Vec<u64>,
}

impl Faults {
    /// Starts with no fault reported.
    pub fn of(fetcher: &Fetcher) -> Faults {
        Faults { watch: fetcher.watch(), told: Vec::new() }
    }

    fn tell(&mut self, events: &mut dyn Events) {
        let hosts = self.watch.faults();
        self.told.resize(hosts.len(), 0);
        let names = self.watch.names();
        for ((name, (strikes, last)), told) in names.into_iter().zip(hosts).zip(&mut self.told) {
            if strikes > *told
                && let Some(last) = last
            {
                *told = strikes;
                events.emit(Event::HostFault { host: name, path: last.path, fault: last.fault, strikes });
            }
        }
    }
}

/// Result of a batch: verified files and failures.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Files that were verified and have their final names.
    pub verified: Vec<ItemId>,
    /// Files that no host served right.
    pub given_up: Vec<GivenUp>,
}

/// Whether a file cannot be written because of its own name.
fn is_of_one_file(cause: &Cause) -> bool {
    use FileError::{NotRegular, Path, Symlink};
    let of_a_name = |error: &FileError| matches!(error, Path { .. } | Symlink { .. } | NotRegular { .. });
    match cause {
        Cause::PathTaken { .. } | Cause::Target(TargetError::Occupied { .. }) => true,
        Cause::Target(TargetError::File(error)) => of_a_name(error),
        _ => false,
    }
}

/// Hint for a store that failed while files were fetched.
const NEXT_RUN_FINDS: &str = "run again when the store answers: stored files are found";

/// The error for a file that could not be written.
pub(crate) fn local_failure(path: &str, cause: &Cause) -> CommandError {
    if let Some(failure) = StoreFailure::behind(cause) {
        return failure.command(format_args!("{path}: {cause}")).hint(NEXT_RUN_FINDS);
    }
    let error = CommandError::new(ErrorKind::Disk, format_args!("{path}: {cause}"));
    let hint = if cause.is_out_of_space() {
        "the file system is full; what was fetched is kept, and a run with more room goes on from there"
    } else {
        "what was fetched is kept; run again when the destination is mended"
    };
    error.hint(hint)
}

/// A batch of files for one fetcher.
pub struct Job<'a> {
    /// Names, sizes and hashes of the files.
    pub batch: Arc<dyn Catalogue>,
    /// The files to fetch.
    pub items: Vec<Item>,
    /// The fetcher that requests the files.
    pub fetcher: &'a mut Fetcher,
    /// The landing that writes the files.
    pub landing: &'a Landing,
    /// Faults reported so far.
    pub faults: &'a mut Faults,
}

/// Files that become known during the run, for one fetcher.
pub struct Fed<'a> {
    /// Names, sizes and hashes of the files; it must know each before the feed has it.
    pub catalogue: Arc<dyn Catalogue>,
    /// The files to fetch.
    pub items: mpsc::Receiver<Vec<Item>>,
    /// The fetcher that requests the files.
    pub fetcher: &'a mut Fetcher,
    /// The landing that writes the files.
    pub landing: &'a Landing,
    /// Faults reported so far.
    pub faults: &'a mut Faults,
}

/// Outcome of a file of a feed.
#[derive(Debug)]
pub enum FedEvent {
    /// The file is verified and has its final name.
    Verified(ItemId),
    /// No host served it right.
    GivenUp(GivenUp),
    /// The destination refused this one file.
    Refused(ItemId, Cause),
}

/// Creates the file for the verdict's samples, if one is wanted.
fn samples(record: Option<&Path>) -> Result<Option<Box<dyn RecordSamples>>, CommandError> {
    let Some(path) = record else { return Ok(None) };
    let file = std::fs::File::create(path).map_err(|error| CommandError::cannot("create", path, &error))?;
    Ok(Some(Box::new(std::io::BufWriter::new(file))))
}

/// Counts files and bytes of a run so far. Clones share the counters.
#[derive(Debug, Clone, Default)]
pub struct Totals(Arc<Counters>);

#[derive(Debug, Default)]
struct Counters {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: AtomicU64,
    total_bytes: AtomicU64,
    /// The part that other machines do.
    elsewhere: Elsewhere,
}

#[derive(Debug, Default)]
struct Elsewhere {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: AtomicU64,
    total_bytes: AtomicU64,
}

impl Totals {
    /// Sets the files and bytes that other machines have done, and must do in total. Each call replaces the one before.
    pub fn elsewhere(&self, done: (u64, u64), total: (u64, u64)) {
        let elsewhere = &self.0.elsewhere;
        elsewhere.files.store(done.0, Ordering::Relaxed);
        elsewhere.bytes.store(done.1, Ordering::Relaxed);
        elsewhere.total_files.store(total.0, Ordering::Relaxed);
        elsewhere.total_bytes.store(total.1, Ordering::Relaxed);
    }

    fn elsewhere_bytes(&self) -> u64 {
        self.0.elsewhere.bytes.load(Ordering::Relaxed)
    }

    /// Files and bytes of the whole run.
    fn all(&self) -> (u64, u64) {
        let (own, other) = (&self.0, &self.0.elsewhere);
        let sum = |own: &AtomicU64, other: &AtomicU64| own.load(Ordering::Relaxed) + other.load(Ordering::Relaxed);
        (sum(&own.total_files, &other.total_files), sum(&own.total_bytes, &other.total_bytes))
    }

    /// Adds files and bytes to be fetched.
    pub fn expect(&self, files: u64, bytes: u64) {
        self.0.total_files.fetch_add(files, Ordering::Relaxed);
        self.0.total_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn verified(&self, bytes: u64) {
        self.0.files.fetch_add(1, Ordering::Relaxed);
        self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// Progress over all batches of a run, with the sampler of its limit.
pub struct Progression {
    sampler: Option<Sampler>,
    started: Instant,
    totals: Totals,
}

impl Progression {
    /// Starts the sampler. `destination` is where the run writes; samples are recorded in `record`, if given.
    ///
    /// # Errors
    /// A [`CommandError`] if the file of `record` cannot be created, or the system cannot start a thread.
    pub fn start(ledger: &Ledger, destination: &Path, record: Option<&Path>) -> Result<Progression, CommandError> {
        let config = SamplerConfig {
            destination: Some(destination.to_owned()),
            record: samples(record)?,
            ..SamplerConfig::default()
        };
        let sampler = Sampler::start(ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        Ok(Progression { sampler: Some(sampler), started: Instant::now(), totals: Totals::default() })
    }

    /// The counters of this run.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Fetches a batch with each of these fetchers, all at once. `on_verified` is called with the index of the job for
    /// each file that has its final name. A failure on our own side ends it; files fetched by then stay for the next
    /// run.
    ///
    /// # Errors
    /// A [`CommandError`] of kind interrupted after a signal, or of the destination if files cannot be written or
    /// synced. Faults of mirrors are no errors: [`Fetched`] has them.
    pub fn fetch(
        &self,
        runtime: &tokio::runtime::Runtime,
        jobs: Vec<Job<'_>>,
        stop: &Stop,
        events: &mut dyn Events,
        on_verified: &mut (dyn FnMut(usize, ItemId) + Send),
    ) -> Result<Vec<Fetched>, CommandError> {
        let missing = |item: &Item| item.size - item.present.iter().map(|range| range.end - range.start).sum::<u64>();
        for job in &jobs {
            self.totals.expect(job.items.len() as u64, job.items.iter().map(missing).sum());
        }
        let mut fetched = Vec::new();
        fetched.resize_with(jobs.len(), Fetched::default);
        let result = Mutex::new((fetched, None::<CommandError>, on_verified));
        let failed = tokio::sync::Notify::new();
        let mut pace = Shown::new(self, jobs.iter().map(|job| job.landing.clone()).collect());
        let mut faults = Vec::new();
        let mut fetches: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
        for (place, job) in jobs.into_iter().enumerate() {
            let Job { batch, items, fetcher, faults: own, .. } = job;
            faults.push(own);
            let (result, failed) = (&result, &failed);
            fetches.push(Box::pin(async move {
                let catalogue = batch.clone();
                let mut on_event = |event: FetchEvent| {
                    let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
                    match event {
                        FetchEvent::Verified(item) => {
                            self.totals.verified(catalogue.spec(item).size);
                            result.0[place].verified.push(item);
                            (result.2)(place, item);
                        }
                        FetchEvent::GivenUp(given_up) => result.0[place].given_up.push(given_up),
                        // The next file may have a better name.
                        FetchEvent::LocalFailure(item, cause) if is_of_one_file(&cause) => {
                            tracing::warn!("{}: {cause}", catalogue.path(item));
                            let (tried, faults) = (HostSet::default(), Vec::new());
                            result.0[place].given_up.push(GivenUp { item, tried, missing: false, faults });
                        }
                        FetchEvent::LocalFailure(item, cause) => {
                            let path = catalogue.path(item);
                            result.1.get_or_insert_with(|| local_failure(&path, &cause));
                            failed.notify_one();
                        }
                    }
                };
                fetcher.fetch(batch, items, &mut on_event).await;
            }));
        }
        let interrupted = runtime.block_on(async {
            let mut all = std::pin::pin!(all(fetches));
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            loop {
                tokio::select! {
                    () = &mut all => break false,
                    () = failed.notified() => break false,
                    () = stop.requested() => break true,
                    _ = tick.tick() => {
                        faults.iter_mut().for_each(|faults| faults.tell(events));
                        let limit = self.sampler.as_ref().and_then(Sampler::present);
                        events.emit(Event::Progress(pace.progress(limit)));
                    }
                }
            }
        });
        faults.iter_mut().for_each(|faults| faults.tell(events));
        events.emit(Event::Progress(pace.progress(None)));
        let (fetched, error, _) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => Err(error),
            None if interrupted => Err(interruption()),
            None => Ok(fetched),
        }
    }

    /// Fetches the files of a feed until `driver` ends. `on_event` is called for each file, so that the driver can
    /// supply the next. Files still being fetched then are abandoned. The caller counts the files by
    /// [`Progression::totals`].
    ///
    /// # Errors
    /// A [`CommandError`] of the destination if files cannot be written. Faults of mirrors, and refusals of one file,
    /// are events.
    pub fn fetch_fed<T>(
        &self,
        runtime: &tokio::runtime::Runtime,
        fed: Fed<'_>,
        driver: impl Future<Output = T>,
        events: &mut dyn Events,
        on_event: &mut (dyn FnMut(FedEvent) + Send),
    ) -> Result<T, CommandError> {
        let Fed { catalogue, items, fetcher, landing, faults } = fed;
        let (failed, failure) = (tokio::sync::Notify::new(), Mutex::new(None::<CommandError>));
        let mut pace = Shown::new(self, vec![landing.clone()]);
        let mut on_fetched = |event: FetchEvent| match event {
            FetchEvent::Verified(item) => {
                self.totals.verified(catalogue.spec(item).size);
                on_event(FedEvent::Verified(item));
            }
            FetchEvent::GivenUp(given_up) => on_event(FedEvent::GivenUp(given_up)),
            FetchEvent::LocalFailure(item, cause) if is_of_one_file(&cause) => {
                on_event(FedEvent::Refused(item, cause));
            }
            FetchEvent::LocalFailure(item, cause) => {
                let path = catalogue.path(item);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| local_failure(&path, &cause));
                failed.notify_one();
            }
        };
        let ended = runtime.block_on(async {
            let mut fetching = std::pin::pin!(fetcher.fetch_fed(catalogue.clone(), items, &mut on_fetched));
            let mut driver = std::pin::pin!(driver);
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            let mut is_fetching = true;
            loop {
                tokio::select! {
                    () = failed.notified() => break None,
                    ended = &mut driver => break Some(ended),
                    () = &mut fetching, if is_fetching => is_fetching = false,
                    _ = tick.tick() => {
                        faults.tell(events);
                        let limit = self.sampler.as_ref().and_then(Sampler::present);
                        events.emit(Event::Progress(pace.progress(limit)));
                    }
                }
            }
        });
        faults.tell(events);
        events.emit(Event::Progress(pace.progress(None)));
        let failure = failure.into_inner().unwrap_or_else(PoisonError::into_inner);
        match (failure, ended) {
            (Some(error), _) => Err(error),
            (None, Some(ended)) => Ok(ended),
            (None, None) => Err(CommandError::new(ErrorKind::Internal, "a fetch ended without a reason")),
        }
    }

    /// Files and bytes verified so far.
    pub fn done(&self) -> (u64, u64) {
        let (own, other) = (&self.totals.0, &self.totals.0.elsewhere);
        let sum = |own: &AtomicU64, other: &AtomicU64| own.load(Ordering::Relaxed) + other.load(Ordering::Relaxed);
        (sum(&own.files, &other.files), sum(&own.bytes, &other.bytes))
    }

    /// Number of bytes that were not present and had to be fetched.
    pub fn needed_bytes(&self) -> u64 {
        self.totals.all().1
    }

    /// Ends the sampler and returns the verdict so far; `None` the second time.
    pub fn verdict(&mut self) -> Option<Verdict> {
        self.sampler.take().map(Sampler::finish)
    }
}

/// Waits until all futures have ended.
async fn all(mut futures: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>>) {
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Rate and remaining time of the received bytes, independent of files.
struct Shown<'a> {
    progression: &'a Progression,
    landings: Vec<Landing>,
    pace: Pace,
}

impl<'a> Shown<'a> {
    fn new(progression: &'a Progression, landings: Vec<Landing>) -> Self {
        Shown { progression, landings, pace: Pace::with_peers(progression.started) }
    }

    fn progress(&mut self, limit: Option<String>) -> Progress {
        let total_bytes = self.progression.needed_bytes();
        // Bytes fetched twice must not exceed the total.
        let own: u64 = self.landings.iter().map(|landing| landing.counts().written_bytes).sum();
        let bytes = (own + self.progression.totals.elsewhere_bytes()).min(total_bytes);
        let counts = Counts {
            files: self.progression.done().0,
            bytes,
            total_files: self.progression.totals.all().0,
            total_bytes,
        };
        self.pace.progress(counts, limit, Instant::now())
    }
}
