//! What a run stands on: directory and lock, journal and landing, fetcher and sampler.
//!
//! The walk (`mirror.rs`) is plain blocking code; connections live on the one worker of a tokio
//! runtime, so that parsing an index never holds up a socket.

use std::ops::Range;
use std::path::Path;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::Durability;
use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::landing::{Cause, Landing};
use fullbore_engine::stage::{Kind, Ledger, StageClock};
use fullbore_engine::target::LocalTarget;
use fullbore_engine::verdict::{RecordSamples, Sampler, SamplerConfig};
use fullbore_engine::window::Window;
use fullbore_wire::auth::AuthConf;
use fullbore_wire::connect::ConnectOptions;
use fullbore_wire::dispatcher::{GivenUp, Limits};
use fullbore_wire::fetch::{Catalogue, FetchEvent, FetchOptions, Fetcher, Parts, Watch};
use fullbore_wire::proxy::ProxySettings;
use fullbore_wire::queue::{Item, ItemId};
use fullbore_wire::tls::{Authorities, Offer, Tls, Trust};
use fullbore_wire::url::Url;

use super::places::Places;
use super::state::{LOG_PATH, OWN_DIRECTORY};
use super::subtract::LoggedFile;
use crate::error::{CommandError, ErrorKind};
use crate::events::{Event, Events, Progress};
use crate::settings::{DurabilityChoice, NetworkSettings};

/// Bytes read and not yet written: so much for each connection keeps what a killed run loses below
/// 1 MB, and four hosts of four connections busy. Bounded, since many hosts share one disk.
const WINDOW_BYTES_PER_CONNECTION: u64 = 768 << 10;
const WINDOW_BYTES_MAX: u64 = 32 << 20;

/// Chunks read and not yet written. Small files make many of them.
const WINDOW_ITEMS: u32 = 8192;

/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Where the verdict's samples are to be recorded, for whoever tunes it (`bench/verdict`).
const RECORD_VARIABLE: &str = "FULLBORE_RECORD";

fn samples() -> Result<Option<Box<dyn RecordSamples>>, CommandError> {
    let Some(path) = std::env::var_os(RECORD_VARIABLE) else { return Ok(None) };
    let file = std::fs::File::create(&path).map_err(|error| {
        CommandError::new(ErrorKind::Usage, format!("{RECORD_VARIABLE}={}: {error}", path.to_string_lossy()))
    })?;
    Ok(Some(Box::new(std::io::BufWriter::new(file))))
}

/// A run's means.
pub struct Session {
    /// The mirror's directory.
    pub root: Arc<Root>,
    /// That, and where the run may write.
    pub places: Places,
    /// What is written to.
    pub target: Arc<LocalTarget>,
    /// What a killed run goes on from.
    pub journal: Arc<Journal>,
    /// Files that a killed run had finished, and whether they are on the disk for certain.
    pub logged: Vec<(LoggedFile, bool)>,
    /// The clocks of the stages.
    pub ledger: Ledger,
    /// Where bytes become files.
    pub landing: Landing,
    /// Where they come from.
    pub fetcher: Fetcher,
    /// Where connections live.
    pub runtime: tokio::runtime::Runtime,
    /// The clock of the stage "local scan".
    pub scan: Arc<StageClock>,
    /// The clock of the stage "sync".
    pub sync: Arc<StageClock>,
    /// When the run began.
    pub started: Instant,
    sampler: Option<Sampler>,
    counters: Arc<Counters>,
    faults: Faults,
}

/// Tells of the hosts' faults while the run goes on.
struct Faults {
    watch: Watch,
    /// How many of each host.
    told: Vec<u64>,
}

impl Faults {
    fn tell(&mut self, events: &mut dyn Events) {
        let hosts = self.watch.faults();
        self.told.resize(hosts.len(), 0);
        let names = self.watch.names();
        for ((name, (strikes, last)), told) in names.into_iter().zip(hosts).zip(&mut self.told) {
            if strikes > *told
                && let Some(last) = last
            {
                *told = strikes;
                events.emit(Event::HostFault { host: name, fault: last.fault, strikes });
            }
        }
    }
}

/// What has come so far, over all batches of a run.
#[derive(Debug, Default)]
struct Counters {
    files: AtomicU64,
    bytes: AtomicU64,
    total_files: AtomicU64,
    total_bytes: AtomicU64,
}

/// What became of a batch.
#[derive(Debug, Default)]
pub struct Fetched {
    /// Files verified and in place.
    pub verified: Vec<ItemId>,
    /// Files that no host served right.
    pub given_up: Vec<GivenUp>,
}

/// A batch's files: where they are found and what they are.
pub trait Batch: Catalogue {
    /// Bytes of an item, for progress.
    fn size(&self, item: ItemId) -> u64;
}

impl Session {
    /// Opens everything but connections. The directory is locked already.
    pub fn open(
        places: Places,
        origins: &[String],
        origin_only: bool,
        network: &NetworkSettings,
        durability: DurabilityChoice,
    ) -> Result<Session, CommandError> {
        let ledger = Ledger::new();
        let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
        // The sampler first: the verdict covers set-up too.
        let config = SamplerConfig {
            destination: Some(places.volume.path().to_owned()),
            record: samples()?,
            ..SamplerConfig::default()
        };
        let sampler = Sampler::start(&ledger, config).map_err(internal)?;
        places.work.create_directory(OWN_DIRECTORY, 0o700).map_err(|error| disk(&error))?;
        let mut logged = Vec::new();
        let journal = Journal::open(&places.work, LOG_PATH, &mut |file, trusted| {
            logged.push((LoggedFile { path: file.path, size: file.size, sha256: file.sha256 }, trusted));
        })
        .map_err(|error| disk(&error))?;
        let journal = Arc::new(journal);
        let target = Arc::new(LocalTarget::new(places.work.clone(), durability_of(durability)));
        let urls = urls(origins, origin_only)?;
        let connections = urls.0.len() as u64 * network.connections_per_host as u64;
        let window = Window::new((connections * WINDOW_BYTES_PER_CONNECTION).min(WINDOW_BYTES_MAX), WINDOW_ITEMS);
        ledger.watch_window(&window);
        let (sender, outcomes) = tokio::sync::mpsc::unbounded_channel();
        let threads = std::thread::available_parallelism().map_or(2, |cores| cores.get()).min(8);
        let landing = Landing::start(target.clone(), journal.clone(), threads, &ledger, sender).map_err(internal)?;
        let clock = ledger.stage("network", Kind::Task);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("network")
            .on_thread_start(move || clock.adopt_thread())
            .enable_all()
            .build()
            .map_err(internal)?;
        let options = fetch_options(network, urls.1)?;
        let fetcher = {
            let _inside = runtime.enter();
            Fetcher::start(
                urls.0,
                options,
                Parts { landing: landing.clone(), outcomes, window, ledger: ledger.clone() },
            )
        };
        Ok(Session {
            faults: Faults { watch: fetcher.watch(), told: Vec::new() },
            scan: ledger.stage("local scan", Kind::Thread),
            sync: ledger.stage("sync", Kind::Thread),
            root: places.root.clone(),
            places,
            target,
            journal,
            logged,
            ledger,
            landing,
            fetcher,
            runtime,
            started: Instant::now(),
            sampler: Some(sampler),
            counters: Arc::default(),
        })
    }

    /// Fetches a batch. Failures of our own side end it; what was fetched by then stays for the
    /// next run.
    pub fn fetch<B: Batch + 'static>(
        &mut self,
        batch: Arc<B>,
        items: Vec<Item>,
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<Fetched, CommandError> {
        let missing = |item: &Item| item.size - item.present.iter().map(|range| range.end - range.start).sum::<u64>();
        self.counters.total_files.fetch_add(items.len() as u64, Ordering::Relaxed);
        self.counters.total_bytes.fetch_add(items.iter().map(missing).sum(), Ordering::Relaxed);
        let result: Mutex<(Fetched, Option<CommandError>)> = Mutex::default();
        let failed = tokio::sync::Notify::new();
        let counters = self.counters.clone();
        let catalogue = batch.clone();
        let mut on_event = |event: FetchEvent| {
            let mut result = result.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                FetchEvent::Verified(item) => {
                    counters.files.fetch_add(1, Ordering::Relaxed);
                    counters.bytes.fetch_add(catalogue.size(item), Ordering::Relaxed);
                    result.0.verified.push(item);
                }
                FetchEvent::GivenUp(given_up) => result.0.given_up.push(given_up),
                FetchEvent::LocalFailure(item, cause) => {
                    let path = catalogue.path(item);
                    result.1.get_or_insert_with(|| local_failure(&path, &cause));
                    failed.notify_one();
                }
            }
        };
        let mut pace = Pace::new(self.counters.clone(), self.landing.clone(), self.started);
        let faults = &mut self.faults;
        let (sampler, fetcher) = (&self.sampler, &mut self.fetcher);
        let interrupted = self.runtime.block_on(async {
            let mut fetch = pin!(fetcher.fetch(batch, items, &mut on_event));
            let mut tick = tokio::time::interval(PROGRESS_EVERY);
            loop {
                tokio::select! {
                    () = &mut fetch => break false,
                    () = failed.notified() => break false,
                    () = stop.requested() => break true,
                    _ = tick.tick() => {
                        faults.tell(events);
                        let limit = sampler.as_ref().and_then(Sampler::present);
                        events.emit(Event::Progress(Progress { limit, ..pace.progress() }));
                    }
                }
            }
        });
        faults.tell(events);
        events.emit(Event::Progress(pace.progress()));
        let (fetched, error) = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        match error {
            Some(error) => Err(error),
            None if interrupted => Err(interruption()),
            None => Ok(fetched),
        }
    }

    /// Which bytes of a file an earlier run left.
    pub fn present(&self, path: &str, size: u64, sha256: Sha256) -> Result<Vec<Range<u64>>, FileError> {
        if !self.places.is_untouched() {
            return Ok(self.landing.present(path, size, sha256));
        }
        // The landing would look beside the copy of the log; the unfinished file is in the mirror.
        let mut present = self.journal.present(path, size, sha256);
        if !present.is_empty() {
            present.clamp(self.root.part_size(path)?.unwrap_or(0));
        }
        Ok(present.as_slice().to_vec())
    }

    /// Files and bytes verified so far.
    pub fn done(&self) -> (u64, u64) {
        (self.counters.files.load(Ordering::Relaxed), self.counters.bytes.load(Ordering::Relaxed))
    }

    /// Bytes that had to come.
    pub fn needed_bytes(&self) -> u64 {
        self.counters.total_bytes.load(Ordering::Relaxed)
    }

    /// Ends the sampler; the verdict is on everything until now. `None` the second time.
    pub fn verdict(&mut self) -> Option<fullbore_engine::verdict::Verdict> {
        self.sampler.take().map(Sampler::finish)
    }
}

/// The addresses, with credentials that were written into them.
fn urls(origins: &[String], origin_only: bool) -> Result<(Vec<Url>, AuthConf), CommandError> {
    let mut auth = AuthConf::new();
    let mut urls = Vec::new();
    let used = if origin_only { 1 } else { origins.len() };
    for text in origins.iter().take(used) {
        let usage = |error: &dyn std::fmt::Display| CommandError::usage(format_args!("--from {text}: {error}"));
        let (url, credentials) = Url::parse_with_userinfo(text).map_err(|error| usage(&error))?;
        if let Some(credentials) = credentials {
            auth.add_for_url(&url, &credentials).map_err(|error| usage(&error))?;
        }
        urls.push(url);
    }
    Ok((urls, auth))
}

fn fetch_options(network: &NetworkSettings, mut auth: AuthConf) -> Result<FetchOptions, CommandError> {
    for path in &network.auth_files {
        let text = std::fs::read_to_string(path).map_err(|error| usage_of(path, &error))?;
        auth.add_file(&text).map_err(|error| usage_of(path, &error))?;
    }
    let trust = match &network.ca_file {
        Some(path) => Trust::SystemAnd(Authorities::read(path).map_err(|error| usage_of(path, &error))?),
        None => Trust::System,
    };
    let mut proxies = ProxySettings::new();
    let wrong = |error: fullbore_wire::proxy::ProxyError| CommandError::usage(error);
    if let Some(proxy) = &network.proxy.http {
        proxies.set_http(proxy).map_err(wrong)?;
    }
    if let Some(proxy) = &network.proxy.https {
        proxies.set_https(proxy).map_err(wrong)?;
    }
    proxies.set_no_proxy(&network.proxy.no_proxy.join(",")).map_err(wrong)?;
    for (host, proxy) in &network.proxy.hosts {
        proxies.set_host(host, proxy).map_err(wrong)?;
    }
    Ok(FetchOptions {
        limits: Limits { connections_per_host: network.connections_per_host, hedge: network.hedge },
        connect: ConnectOptions {
            tls: Tls::new(trust),
            offer: if network.http1_only { Offer::Http1 } else { Offer::Either },
            ..ConnectOptions::default()
        },
        proxies,
        auth,
        rate_limit_bytes_per_s: network.limit_rate_bytes_per_s,
    })
}

fn usage_of(path: &Path, error: &dyn std::fmt::Display) -> CommandError {
    CommandError::usage(format_args!("{}: {error}", path.display()))
}

fn durability_of(choice: DurabilityChoice) -> Durability {
    match choice {
        DurabilityChoice::None => Durability::None,
        DurabilityChoice::AtEnd => Durability::AtEnd,
        DurabilityChoice::Each => Durability::Each,
    }
}

/// The kernel's id of this boot; empty where it has none, which trusts nothing unsynced.
pub fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map_or_else(|_| String::new(), |id| id.trim().to_owned())
}

/// A failure to do with the destination.
pub fn disk(error: &dyn std::error::Error) -> CommandError {
    let error = CommandError::new(ErrorKind::Disk, error);
    error.hint("the mirror as it was published before is intact; run again when this is mended")
}

fn local_failure(path: &str, cause: &Cause) -> CommandError {
    let error = CommandError::new(ErrorKind::Disk, format_args!("{path}: {cause}"));
    let hint = if cause.is_out_of_space() {
        "the file system is full; what was fetched is kept, and a run with more room goes on from there"
    } else {
        "what was fetched is kept; run again when the destination is mended"
    };
    error.hint(hint)
}

fn interruption() -> CommandError {
    CommandError::new(ErrorKind::Interrupted, "interrupted; nothing new was published")
        .hint("run again: what was fetched is kept")
}

/// SIGINT and SIGTERM, once: the run ends where it can be taken up again.
#[derive(Clone)]
pub struct Stop {
    seen: tokio::sync::watch::Receiver<bool>,
}

impl Stop {
    /// Listens from now on. A second signal ends the program at once.
    pub fn listen(runtime: &tokio::runtime::Runtime) -> Stop {
        let (sender, seen) = tokio::sync::watch::channel(false);
        runtime.spawn(async move {
            use tokio::signal::unix::{SignalKind, signal};
            let (Ok(mut interrupt), Ok(mut terminate)) =
                (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
            else {
                return;
            };
            for count in 0.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                }
                if count > 0 {
                    std::process::exit(i32::from(ErrorKind::Interrupted.exit_code()));
                }
                let _ = sender.send(true);
            }
        });
        Stop { seen }
    }

    /// Returns when a signal has come.
    pub async fn requested(&self) {
        let mut seen = self.seen.clone();
        if seen.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// An error if a signal has come.
    pub fn check(&self) -> Result<(), CommandError> {
        if *self.seen.borrow() { Err(interruption()) } else { Ok(()) }
    }
}

/// Rate and time to go.
struct Pace {
    counters: Arc<Counters>,
    landing: Landing,
    started: Instant,
    last: Option<(Instant, u64)>,
    rate_bytes_per_s: f64,
}

/// Weight of the newest quarter of a second in the rate shown.
const PACE_WEIGHT: f64 = 0.15;

impl Pace {
    fn new(counters: Arc<Counters>, landing: Landing, started: Instant) -> Self {
        Pace { counters, landing, started, last: None, rate_bytes_per_s: 0.0 }
    }

    fn progress(&mut self) -> Progress {
        let now = Instant::now();
        let total_bytes = self.counters.total_bytes.load(Ordering::Relaxed);
        // As they come, not file by file; a file that came twice does not make it more than all.
        let bytes = self.landing.counts().written_bytes.min(total_bytes);
        let (then, before) = self.last.unwrap_or((self.started, 0));
        let seconds = now.duration_since(then).as_secs_f64().max(0.01);
        let newest = bytes.saturating_sub(before) as f64 / seconds;
        let weight = if self.last.is_none() { 1.0 } else { PACE_WEIGHT };
        self.rate_bytes_per_s += weight * (newest - self.rate_bytes_per_s);
        self.last = Some((now, bytes));
        let to_go = total_bytes.saturating_sub(bytes) as f64;
        Progress {
            files: self.counters.files.load(Ordering::Relaxed),
            bytes,
            total_files: self.counters.total_files.load(Ordering::Relaxed),
            total_bytes,
            rate_bytes_per_s: self.rate_bytes_per_s as u64,
            eta_s: (self.rate_bytes_per_s > 1.0).then(|| (to_go / self.rate_bytes_per_s) as u64),
            limit: None,
        }
    }
}
