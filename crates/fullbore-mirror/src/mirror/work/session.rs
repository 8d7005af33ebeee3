//! Resources of a worker: connections to mirrors and to the bucket, and nothing else.
//!
//! A worker has no tree, no lock and no state of a mirror. Files arrive one by one ([`Feed`]), and each has an outcome:
//! verified and stored, already there, or given up with the reasons. A worker never replaces an object, because others
//! store the same files at the same time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::journal::Journal;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::run::report::VerdictReport;
use fullbore_engine::stage::Ledger;
use fullbore_engine::window::Window;
use fullbore_fleet::message::Item;
use fullbore_s3::Uploader;
use fullbore_s3::bucket::{BucketSettings, explain};
use fullbore_s3::objects::Objects;
use fullbore_s3::target::StoreTarget;
use fullbore_s3::verdict::{Facts, judge};
use fullbore_wire::hosts::HostId;
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::run::refusals::Hosts;
use fullbore_wire::run::{
    FedEvent, Network, NetworkSettings, Progression, Site, SiteParts, addresses, fetch_options, sending_runtime,
};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch};

use super::feed::{Feed, Files, Outcomes};
use super::landing::Landing;
use crate::mirror::bucket::{BEGUN_BYTES_MAX, UPLOADS_MAX, WINDOW_BYTES, judge_with_store};
use crate::mirror::directories::Scratch;
use crate::mirror::free_space::{self, Need};
use crate::mirror::session::{THREADS_MAX, disk};

/// Name of the store in an internal verdict.
const STORE: &str = "the store of this session";

/// Settings of a worker's session.
#[derive(Debug, Clone, PartialEq)]
pub struct SessionSettings {
    /// Bucket and prefix of the mirror.
    pub bucket: BucketSettings,
    /// Directory for temporary files: files above 16 MiB, until they are stored.
    pub scratch: std::path::PathBuf,
    /// Addresses of the archive (`http://` or `https://`), without a slash at the end.
    pub hosts: Vec<String>,
    /// `Cache-Control` of names that change (RFC 9111); by default caches keep them for a minute.
    pub cache_control: Option<String>,
    /// Proxies, certificates and rate limit. Also the maximum number of connections to a mirror during the session.
    pub network: NetworkSettings,
}

/// Connections, threads and clocks of a worker.
pub struct Session {
    /// Client for the objects below the mirror's prefix.
    pub objects: Objects,
    /// Clocks of all stages, for the verdict.
    pub ledger: Ledger,
    /// Mirrors from which files are fetched.
    pub site: Site,
    /// Counters of files and bytes, and the sampler.
    pub progression: Progression,
    /// Runtime of the connections to the mirrors.
    pub network: Network,
    /// Rate limit, which may change while files are fetched.
    pub rate_limit: Option<Arc<RateLimit>>,
    landing: Arc<Landing>,
    opened: Instant,
    stop: watch::Sender<bool>,
    /// Runtime of the connections to the store.
    runtime: Runtime,
    own: Arc<Root>,
    /// Removed at the end, after all that uses it.
    _scratch: Scratch,
}

/// Content of the store at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// No object.
    Absent,
    /// The expected file, as far as the store knows its hash.
    Present,
    /// An object with other content.
    Other,
}

impl Session {
    /// Opens everything except connections to mirrors.
    ///
    /// # Errors
    /// `Usage` for settings that cannot be used, `Disk` if the temporary directory cannot be created, and `Internal` if
    /// a thread cannot be started.
    pub fn open(settings: &SessionSettings) -> Result<Session, CommandError> {
        let opened = Instant::now();
        let ledger = Ledger::new();
        let below = &settings.scratch;
        let scratch = Scratch::make(below).map_err(|error| {
            let message = format!("cannot make a temporary directory in {}: {error}", below.display());
            CommandError::new(ErrorKind::Disk, message)
        })?;
        let made = |error: FileError| CommandError::from_error(ErrorKind::Disk, &error);
        let own = Arc::new(Root::open(scratch.path()).map_err(made)?);
        // The sampler starts first, so that the verdict covers the set-up too.
        let progression = Progression::start(&ledger, scratch.path(), settings.network.record.as_deref())?;
        let runtime = sending_runtime(&Ledger::off())?;
        let (stop, stopped) = watch::channel(false);
        let objects = {
            let _inside = runtime.enter();
            Objects::open(&settings.bucket, stopped, &Ledger::off())?
        };
        let landing = Arc::new(Landing::new(settings.cache_control.clone()));
        let uploader = Uploader::new(objects.client().clone(), Window::new(WINDOW_BYTES, UPLOADS_MAX), own.path());
        let target =
            StoreTarget::new(objects.clone(), uploader, own.clone(), landing.clone(), runtime.handle().clone());
        let (urls, auth) = addresses(settings.hosts.iter())?;
        let network = Network::start(&ledger)?;
        let parts =
            SiteParts { runtime: &network, ledger: &ledger, network: &settings.network, threads_max: THREADS_MAX };
        let mut options = fetch_options(&settings.network, auth)?;
        options.limits.memory_bytes = BEGUN_BYTES_MAX;
        let rate = settings.network.limit_rate_bytes_per_s;
        let rate_limit = rate.map(|rate| Arc::new(RateLimit::new(rate, Instant::now())));
        options.shared_rate_limit.clone_from(&rate_limit);
        let site = Site::open(urls, options, Arc::new(target), Arc::new(Journal::none()), &parts)?;
        Ok(Session {
            objects,
            ledger,
            site,
            progression,
            network,
            rate_limit,
            landing,
            opened,
            stop,
            runtime,
            own,
            _scratch: scratch,
        })
    }

    /// Ends requests to the store when `stop` becomes true.
    pub fn stop_with(&self, mut stop: watch::Receiver<bool>) {
        let ours = self.stop.clone();
        self.runtime.spawn(async move {
            if stop.wait_for(|stop| *stop).await.is_ok() {
                let _ = ours.send(true);
            }
        });
    }

    /// Temporary directory of the session.
    pub(super) fn scratch(&self) -> &Root {
        &self.own
    }

    /// Returns a function that changes the number of connections to a mirror while files are fetched. Its arguments are
    /// the place of the mirror in the settings, and a number up to the maximum of the settings. Any task may call it.
    pub fn allowance(&self) -> impl Fn(HostId, usize) + Send + Sync + Clone + 'static {
        let watch = self.site.fetcher.watch();
        move |host, connections| watch.allow(host, connections)
    }

    /// Runs a request to the store, before files are fetched or after.
    ///
    /// # Errors
    /// `Network` if the store does not answer, `Usage` if it refuses the request.
    pub fn ask<T>(&self, question: impl Future<Output = Result<T, fullbore_s3::CallError>>) -> Result<T, CommandError> {
        self.runtime.block_on(question).map_err(|error| explain(&error))
    }

    /// Fetches and stores files until `driver` ends. The driver gets a feed for files, and their outcomes as soon as
    /// each is known. Files without an outcome are abandoned when the driver ends; each of them is either not in the
    /// store, or complete.
    ///
    /// # Errors
    /// The errors of the store, or `Disk` for the temporary directory, if they fail permanently. Faults of mirrors are
    /// outcomes.
    pub fn work<T, F: Future<Output = T>>(
        &mut self,
        events: &mut dyn Events,
        driver: impl FnOnce(Feed, Outcomes) -> F,
    ) -> Result<T, CommandError> {
        let (items, fed) = mpsc::channel(1);
        let (tell, outcomes) = mpsc::unbounded_channel();
        let files = Arc::new(Files::new(tell));
        let watch = self.site.fetcher.watch();
        let landing = self.landing.clone();
        let feed = Feed::new(
            files.clone(),
            items,
            self.progression.totals().clone(),
            self.objects.clone(),
            watch.clone(),
            landing.clone(),
        );
        let of_event = files.clone();
        let mut on_event = move |event: FedEvent| match event {
            FedEvent::Verified(item) => of_event.stored(item, |path| landing.take_was_there(path)),
            FedEvent::GivenUp(given_up) => of_event.given_up(&given_up, &Hosts::of(&watch.hosts())),
            FedEvent::Refused(item, cause) => of_event.refused(item, &cause),
        };
        let driver = driver(feed, outcomes);
        let fed = self.site.fed(files, fed);
        self.progression.fetch_fed(&self.network, fed, driver, events, &mut on_event)
    }

    /// Ends connections and threads, and waits for their writes.
    ///
    /// # Errors
    /// `Disk` or the errors of the store if a write failed.
    pub fn close(&mut self) -> Result<(), CommandError> {
        self.site.fetcher.halt();
        self.site.landing.finish().map_err(|error| disk(&error))
    }

    /// Returns a function that tells whether the store limits this session, by its clocks since it was opened.
    pub fn store_limits(&self) -> Box<dyn Fn() -> bool + Send> {
        let (client, opened) = (self.objects.client().clone(), self.opened);
        let processor = Duration::from_millis(process_costs().0);
        Box::new(move || {
            let verdict = judge(&Facts {
                wall: opened.elapsed(),
                cores: std::thread::available_parallelism().map_or(1, usize::from),
                processor: Duration::from_millis(process_costs().0).saturating_sub(processor),
                threads: 1,
                connections: client.reading(),
                store: STORE.to_owned(),
                slowed: client.slowed(),
                ..Facts::default()
            });
            verdict.confident && verdict.limit.contains(STORE)
        })
    }

    /// Returns a function that tells the number of bytes that the store has acknowledged.
    pub fn acknowledged_bytes(&self) -> Box<dyn Fn() -> u64 + Send> {
        let client = self.objects.client().clone();
        Box::new(move || client.reading().acknowledged_bytes)
    }

    /// Returns a function that tells whether the temporary directory has room for a number of bytes.
    pub fn has_room(&self) -> Box<dyn Fn(u64) -> bool + Send> {
        let own = self.own.clone();
        Box::new(move |bytes| {
            let space = free_space::measure(&own, Need { bytes, ..Need::default() });
            // If the space cannot be measured, the file is tried.
            space.map_or(true, |space| space.check().is_ok())
        })
    }

    /// Verdict of the session: the store, if its clocks name it and the clocks of this machine and of the mirrors name
    /// nothing.
    pub fn judge(&self, near: Option<VerdictReport>, moved_bytes: u64) -> Option<VerdictReport> {
        judge_with_store(&self.objects, self.opened, near, moved_bytes)
    }
}

/// Looks what the store has at the path of a file.
///
/// # Errors
/// [`fullbore_s3::CallError`] if the store does not answer, or refuses the request.
pub async fn look(objects: &Objects, file: &Item) -> Result<Seen, fullbore_s3::CallError> {
    Ok(match objects.head(&file.path).await? {
        None => Seen::Absent,
        Some(facts) if facts.is(file.size, file.sha256) => Seen::Present,
        Some(_) => Seen::Other,
    })
}
