//! Downloads files from many mirrors: files to fetch go in, verified files come out.
//!
//! [`Fetcher`] has a [`Dispatcher`], which decides, and starts one task per allowed connection. A connection asks the
//! dispatcher for parts of files, and hands received bytes to the landing, which hashes and writes them. Outcomes of
//! the landing come back to the fetcher, which reports them to the dispatcher. So the path of a byte is socket →
//! connection → landing → file; everything else only decides.

mod addresses;
mod get;
mod shared;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullbore_engine::buffers::Buffers;
use fullbore_engine::digest::Sha256;
use fullbore_engine::landing::{Cause, FileSpec, Landing, Outcome, RESUMED, RangeDigest, Retry};
use fullbore_engine::stage::{Kind, Ledger};
use fullbore_engine::window::Window;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use crate::auth::AuthConf;
use crate::connect::ConnectOptions;
use crate::connection;
use crate::dispatcher::{Dispatcher, GivenUp, Hold, Limits, Remedy};
use crate::hosts::{Host, HostId, HostSet, HostTotals, MAX_HOSTS};
use crate::proxy::{ProxySettings, Route};
use crate::queue::{Item, ItemId, Segment};
use crate::rate_limit::RateLimit;
use crate::signer::SignedMirror;
use crate::tls::{Offer, Protocol, Tls};
use crate::trial::{Seen, Step, Subject, TICK, Trials};
use crate::url::{self, Url};
use addresses::Addresses;
pub use get::{Get, GetError, Got, HeadSeen, Piece, Streamed, Watch};
pub(crate) use get::{PendingGet, Reply};
pub(crate) use shared::{Base, Shared, lock};

/// Read buffers kept for reuse; at 256 KiB each this is 8 MiB.
const BUFFERS_KEPT: usize = 32;

/// How often the run looks for files that no host is left to serve, if nothing wakes it.
const LOOK_FOR_HOPELESS: Duration = Duration::from_millis(500);

/// Paths and expected content of the files of a run, supplied by the caller.
pub trait Catalogue: Send + Sync {
    /// Path of the file below each mirror's address (see [`FetchOptions::paths_are_encoded`]).
    fn path(&self, item: ItemId) -> String;
    /// Further header fields of requests for the file, such as `Cache-Control`.
    fn fields(&self, _item: ItemId) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Another path with the same content, tried when no host has the first.
    fn other_path(&self, _item: ItemId) -> Option<String> {
        None
    }
    /// SHA-256 of the file, from the signed index.
    fn sha256(&self, item: ItemId) -> Sha256;
    /// Final path, size and hash of the file, for the landing.
    fn spec(&self, item: ItemId) -> FileSpec;
}

/// A head sent or received on a connection.
#[derive(Clone, Copy, Debug)]
pub enum WireHead<'a> {
    /// Head of a request, without credentials.
    Request(&'a str),
    /// Head of an answer, with the requested address.
    Answer(&'a str, &'a Url),
}

/// Receives every head on HTTP/1.1 connections, for debugging.
#[derive(Clone)]
pub struct HeadLog(Arc<dyn Fn(WireHead<'_>) + Send + Sync>);

impl HeadLog {
    /// Creates a log that calls `tell`. The connections' tasks call it, so it must not block.
    pub fn new(tell: impl Fn(WireHead<'_>) + Send + Sync + 'static) -> HeadLog {
        HeadLog(Arc::new(tell))
    }

    pub(crate) fn tell(&self, head: WireHead<'_>) {
        (self.0)(head);
    }
}

impl std::fmt::Debug for HeadLog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HeadLog")
    }
}

/// Network options of a run.
#[derive(Clone, Debug)]
pub struct FetchOptions {
    /// Limits of connections per host, segments and hedging.
    pub limits: Limits,
    /// How to open connections: TLS, time limits, sockets.
    pub connect: ConnectOptions,
    /// Which proxy leads to which host.
    pub proxies: ProxySettings,
    /// Credentials; each is sent to its own host only.
    pub auth: AuthConf,
    /// Limit of received bytes per second over all connections.
    pub rate_limit_bytes_per_s: Option<u64>,
    /// A limit that is shared with other fetchers.
    pub shared_rate_limit: Option<Arc<RateLimit>>,
    /// TLS settings for single hosts, and for https proxies of these names.
    pub tls_of_hosts: Vec<(url::Host, Tls)>,
    /// Value of `User-Agent`; `None` for [`USER_AGENT`](crate::http1::USER_AGENT).
    pub user_agent: Option<Arc<str>>,
    /// Whether paths are %-encoded already and may have a query; otherwise they are plain names from an index.
    pub paths_are_encoded: bool,
    /// Whether to follow redirects: for the whole host if it keeps the file's path, otherwise for the one file. If
    /// false, each redirected file gets [`Fault::Elsewhere`](crate::hosts::Fault::Elsewhere).
    pub follow_redirects: bool,
    /// Whether to run trials that find the limit of the run, by pausing a host now and then.
    pub trials: bool,
    /// Receives the heads that are sent and received. With it, only HTTP/1.1 is used.
    pub head_log: Option<HeadLog>,
    /// Mirrors that want signed requests.
    pub signed: Vec<SignedMirror>,
}

impl Default for FetchOptions {
    fn default() -> Self {
        FetchOptions {
            limits: Limits::default(),
            connect: ConnectOptions::default(),
            proxies: ProxySettings::default(),
            auth: AuthConf::default(),
            rate_limit_bytes_per_s: None,
            shared_rate_limit: None,
            tls_of_hosts: Vec::new(),
            user_agent: None,
            paths_are_encoded: false,
            follow_redirects: true,
            trials: true,
            head_log: None,
            signed: Vec::new(),
        }
    }
}

impl FetchOptions {
    /// Connection options for the host of `base`.
    pub(crate) fn connect_to(&self, base: &Base) -> ConnectOptions {
        let tls_of =
            |url: &Url| self.tls_of_hosts.iter().find(|(host, _)| host == url.host()).map(|(_, tls)| tls.clone());
        let proxy_tls = match &base.route {
            Route::Direct => None,
            Route::Forward(proxy) | Route::Tunnel(proxy) => tls_of(&proxy.endpoint),
        };
        let own = base.tls.clone().or_else(|| tls_of(&base.url));
        let tls = own.unwrap_or_else(|| self.connect.tls.clone());
        // A proxy without TLS settings of its own gets those of the run, not those of the host behind it.
        let proxy_tls = Some(proxy_tls.unwrap_or_else(|| self.connect.tls.clone()));
        let offer = if self.head_log.is_some() { Offer::Http1 } else { self.connect.offer };
        ConnectOptions { tls, proxy_tls, offer, ..self.connect.clone() }
    }
}

/// Event of a run, as it happens.
#[derive(Debug)]
pub enum FetchEvent {
    /// The file is verified and has its final name.
    Verified(ItemId),
    /// No host served the file right.
    GivenUp(GivenUp),
    /// The file failed on our side: full disk, permission, broken device.
    LocalFailure(ItemId, Cause),
}

/// A run over many mirrors. Create it inside a tokio runtime; dropping it ends its tasks.
pub struct Fetcher {
    shared: Arc<Shared>,
    outcomes: mpsc::UnboundedReceiver<Outcome>,
    tasks: JoinSet<()>,
}

/// Parts of the engine that a fetcher uses.
pub struct Parts {
    /// Landing that writes and hashes received bytes.
    pub landing: Landing,
    /// Receives the outcomes of the landing.
    pub outcomes: mpsc::UnboundedReceiver<Outcome>,
    /// Bounds the bytes that are read and not yet written.
    pub window: Window,
    /// Ledger with the stage "network" and the counters of the hosts.
    pub ledger: Ledger,
}

/// State and totals of one host.
#[derive(Clone, Debug)]
pub struct HostSeen {
    /// Host and port of the mirror, as reports show them.
    pub name: String,
    /// The host's own reason phrases, by error status.
    pub phrases: BTreeMap<u16, String>,
    /// Totals of the host: bytes, requests, faults.
    pub totals: HostTotals,
    /// Why the host is not used for the rest of the run.
    pub out: Option<String>,
    /// Number of open connections to the host.
    pub connections: usize,
    /// Smallest round-trip time; `None` if no connection was opened.
    pub rtt: Option<Duration>,
    /// Protocol of the last connection; `None` before the first one.
    pub protocol: Option<Protocol>,
    /// Maximum number of unanswered requests on one connection; 1 if the host cannot pipeline.
    pub depth: usize,
}

/// The empty catalogue before the first batch.
struct Nothing;

impl Catalogue for Nothing {
    fn path(&self, _: ItemId) -> String {
        String::new()
    }

    fn sha256(&self, _: ItemId) -> Sha256 {
        Sha256::EMPTY
    }

    fn spec(&self, item: ItemId) -> FileSpec {
        FileSpec { item, path: String::new(), size: 0, sha256: Sha256::EMPTY, mtime: None }
    }
}

impl Fetcher {
    /// Starts the tasks of a run; connections are opened only when there is something to fetch. The first mirror is the
    /// origin. Mirrors beyond [`MAX_HOSTS`] are not used.
    pub fn start(mirrors: Vec<Url>, options: FetchOptions, parts: Parts) -> Fetcher {
        let base = |url: Url| match options.signed.iter().find(|mirror| mirror.signer.address() == url) {
            Some(mirror) => Base::signed(mirror.clone(), &options),
            None => Base::at(url, &options),
        };
        let bases: Vec<Base> = mirrors.into_iter().take(MAX_HOSTS).map(base).collect();
        let name = |base: &Base| base.signer.as_ref().map_or_else(|| base.url.host_field(), |signer| signer.name());
        let host_clocks = bases.iter().map(|base| parts.ledger.host(&name(base))).collect();
        if let Some(rate) = options.rate_limit_bytes_per_s {
            parts.ledger.set_rate_limit(rate);
        }
        let own_limit = || {
            let rate = options.rate_limit_bytes_per_s?;
            Some(Arc::new(RateLimit::new(rate, Instant::now())))
        };
        let rate_limit = options.shared_rate_limit.clone().or_else(own_limit);
        let hosts = bases.iter().map(|base| Host::new(name(base))).collect();
        let count = bases.len();
        let connections_per_host = options.limits.connections_per_host;
        let shared = Arc::new(Shared {
            dispatcher: Mutex::new(Dispatcher::new(hosts, options.limits)),
            bases: Mutex::new(bases),
            gets: Mutex::new((0..count).map(|_| VecDeque::new()).collect()),
            detours: Mutex::new((0..count).map(|_| VecDeque::new()).collect()),
            detoured: Notify::new(),
            addresses: Addresses::new(connections_per_host),
            catalogue: Mutex::new(Arc::new(Nothing)),
            landing: parts.landing,
            window: parts.window,
            buffers: Buffers::new(BUFFERS_KEPT),
            network: parts.ledger.stage("network", Kind::Task),
            tls: parts.ledger.stage("TLS", Kind::Task),
            host_clocks,
            rate_limit,
            ledger: parts.ledger,
            options,
            begun: Mutex::default(),
            other_name: Mutex::default(),
            warm: AtomicBool::new(false),
            wake: Notify::new(),
            attention: Notify::new(),
        });
        let mut tasks = JoinSet::new();
        for host in 0..count as HostId {
            for slot in 0..connections_per_host {
                tasks.spawn(connection::keep(shared.clone(), host, slot));
                tasks.spawn(connection::keep_detours(shared.clone(), host));
            }
        }
        Fetcher { shared, outcomes: parts.outcomes, tasks }
    }

    /// Fetches a small file from one host into memory, whatever the status of the answer.
    ///
    /// # Errors
    /// A [`GetError`]: the host cannot be reached or delivers nothing for 30 s, refuses every request, or sends more
    /// than [`Get::limit_bytes`].
    pub async fn get(&self, host: HostId, get: Get) -> Result<Got, GetError> {
        self.watch().get(host, get).await
    }

    /// Closes all connections for good. Call it before the landing ends, so that the landing gets no more bytes.
    pub fn halt(&mut self) {
        self.tasks.abort_all();
    }

    /// Sets whether to open connections in advance, because files will follow soon.
    pub fn warm(&self, on: bool) {
        self.shared.warm.store(on, Ordering::Relaxed);
        self.shared.wake.notify_waiters();
    }

    /// Fetches files until each is verified or given up, and reports each as it happens.
    pub async fn fetch(
        &mut self,
        catalogue: Arc<dyn Catalogue>,
        items: Vec<Item>,
        on_event: &mut (dyn FnMut(FetchEvent) + Send),
    ) {
        let (feed, fed) = mpsc::channel(1);
        // The channel has room for one batch, and this is the only one.
        let _ = feed.try_send(items);
        drop(feed);
        self.fetch_fed(catalogue, fed, on_event).await;
    }

    /// As [`Fetcher::fetch`], for files that become known while others are being fetched. It ends when the feed has
    /// ended and each file is verified or given up. The catalogue must know a file before the feed has it.
    pub async fn fetch_fed(
        &mut self,
        catalogue: Arc<dyn Catalogue>,
        mut feed: mpsc::Receiver<Vec<Item>>,
        on_event: &mut (dyn FnMut(FetchEvent) + Send),
    ) {
        let names = catalogue.clone();
        self.shared.dispatcher().begin(Some(Box::new(move |item| names.path(item))));
        *lock(&self.shared.catalogue) = catalogue;
        lock(&self.shared.begun).clear();
        lock(&self.shared.other_name).clear();
        let mut open = 0;
        let mut is_fed = true;
        let mut trials = self.trials();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(LOOK_FOR_HOPELESS);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while open > 0 || is_fed {
            tokio::select! {
                items = feed.recv(), if is_fed => match items {
                    Some(items) => self.add(items),
                    None => is_fed = false,
                },
                outcome = self.outcomes.recv() => match outcome {
                    Some(outcome) => self.outcome(outcome, on_event),
                    // The landing is gone; its last outcome gave the reason.
                    None => return,
                },
                _ = tick.tick(), if trials.is_some() => if let Some(trials) = &mut trials {
                    self.try_out(trials);
                    // A timer tick: nothing has changed for the files.
                    continue;
                },
                () = self.shared.attention.notified() => self.give_up_hopeless(on_event),
                _ = look.tick() => self.give_up_hopeless(on_event),
            }
            open = self.shared.dispatcher().unfinished_files();
        }
        let mut dispatcher = self.shared.dispatcher();
        dispatcher.hold(None);
        for (clock, host) in self.shared.host_clocks.iter().zip(dispatcher.hosts()) {
            clock.set_waited_alone(host.totals.waited_alone);
        }
    }

    fn add(&self, items: Vec<Item>) {
        // An empty file needs no request.
        let empty: Vec<ItemId> = items.iter().filter(|item| item.size == 0).map(|item| item.id).collect();
        self.shared.dispatcher().add(items);
        for item in empty {
            self.shared.begin(item);
        }
        self.shared.warm.store(false, Ordering::Relaxed);
        self.shared.wake.notify_waiters();
    }

    /// Under a rate limit of ours there is nothing to find out.
    fn trials(&self) -> Option<Trials> {
        let names = self.shared.host_clocks.iter().map(|clock| clock.name().to_owned()).collect();
        let wanted = self.shared.options.trials && self.shared.rate_limit.is_none();
        wanted.then(|| Trials::new(names, Instant::now()))
    }

    fn try_out(&self, trials: &mut Trials) {
        let shared = &self.shared;
        let received: Vec<u64> = shared.host_clocks.iter().map(|clock| clock.reading().bytes).collect();
        let mut dispatcher = shared.dispatcher();
        let used = dispatcher.hosts().iter().filter(|host| !host.is_out() && host.totals.received_bytes > 0);
        let seen = Seen {
            received: &received,
            rtt: used.map(Host::rtt).max().unwrap_or_default(),
            unasked_bytes: dispatcher.unasked_bytes(),
            held_is_quiet: dispatcher.held_is_quiet(),
        };
        match trials.tick(Instant::now(), &seen) {
            Step::Go => {}
            Step::Hold(Subject::Host(host)) => dispatcher.hold(Some(Hold::Host(host))),
            // Without a second busy connection nothing is held, and so nothing becomes quiet.
            Step::Hold(Subject::OneConnection(host)) => {
                let hold = dispatcher.sparable(host).map(Hold::Connection);
                dispatcher.hold(hold);
            }
            Step::Release(trial) => {
                dispatcher.hold(None);
                drop(dispatcher);
                if let Some(trial) = trial {
                    tracing::debug!(?trial, "trial");
                    shared.ledger.trial(trial);
                }
                shared.wake.notify_waiters();
            }
        }
    }

    /// State and totals of every host.
    pub fn hosts(&self) -> Vec<HostSeen> {
        self.watch().hosts()
    }

    /// A handle for code that watches the run from another task.
    pub fn watch(&self) -> Watch {
        Watch { shared: self.shared.clone() }
    }

    fn outcome(&self, outcome: Outcome, on_event: &mut (dyn FnMut(FetchEvent) + Send)) {
        let now = Instant::now();
        let (Outcome::Verified { item, .. } | Outcome::Mismatch { item, .. } | Outcome::Failed { item, .. }) = outcome;
        if !lock(&self.shared.begun).contains(&item) {
            // The file was given up meanwhile.
            return;
        }
        match outcome {
            Outcome::Verified { item, mut sources, mut culprits } => {
                sources.retain(|source| *source != RESUMED);
                culprits.retain(|source| *source != RESUMED);
                let mut dispatcher = self.shared.dispatcher();
                let waited_for_room = dispatcher.waits_for_room();
                dispatcher.verified(item, &sources, &culprits, now);
                drop(dispatcher);
                lock(&self.shared.begun).remove(&item);
                on_event(FetchEvent::Verified(item));
                if !waited_for_room {
                    // A started file without an event needs no attention.
                    return;
                }
            }
            Outcome::Mismatch { item, size, got, ranges } => {
                let remedy = self.mismatch(item, size, got, &ranges, now);
                if remedy == Remedy::GiveUp {
                    self.shared.landing.abandon(item);
                    let faults = self.shared.dispatcher().faults_with(item);
                    let tried = ranges.iter().filter(|range| range.source != RESUMED).fold(
                        HostSet::default(),
                        |mut set, range| {
                            set.insert(range.source);
                            set
                        },
                    );
                    self.abandon(item, now);
                    on_event(FetchEvent::GivenUp(GivenUp { item, tried, missing: false, faults }));
                }
            }
            Outcome::Failed { item, cause } => {
                self.abandon(item, now);
                on_event(FetchEvent::LocalFailure(item, cause));
            }
        }
        self.shared.wake.notify_waiters();
    }

    fn mismatch(&self, item: ItemId, size: u64, got: Sha256, ranges: &[RangeDigest], now: Instant) -> Remedy {
        let segment = |range: &Range<u64>| Segment { item, start: range.start, end: range.end, size };
        let whole = segment(&(0..size));
        if size == 0 {
            // The index contradicts itself, and no host can change that.
            return Remedy::GiveUp;
        }
        let mut shares: BTreeMap<HostId, u64> = BTreeMap::new();
        for range in ranges.iter().filter(|range| range.source != RESUMED) {
            *shares.entry(range.source).or_default() += range.range.end - range.range.start;
        }
        let shares: Vec<(HostId, u64)> = shares.into_iter().collect();
        let mut dispatcher = self.shared.dispatcher();
        // Bytes of an earlier run are nobody's fault: they are fetched again before any host is blamed.
        let resumed: Vec<Range<u64>> =
            ranges.iter().filter(|range| range.source == RESUMED).map(|range| range.range.clone()).collect();
        if !resumed.is_empty() {
            self.shared.landing.retry(item, Retry::Ranges(resumed.clone()));
            resumed.iter().for_each(|range| dispatcher.ask_again(&segment(range)));
            return Remedy::Whole;
        }
        if let [(host, bytes)] = shares[..] {
            // Right bytes of another file: not wrong bytes, but the wrong order.
            let recent = dispatcher.recently_asked(host);
            if self.shared.is_hash_of(got, &recent) && dispatcher.mixed_up(item, host, bytes, now) {
                self.shared.landing.retry(item, Retry::Whole);
                dispatcher.ask_again(&whole);
                return Remedy::Whole;
            }
        }
        let remedy = dispatcher.mismatch(item, size, &shares, now);
        // The landing must know of the retry before any connection can get a part of it.
        match remedy {
            Remedy::Whole => {
                self.shared.landing.retry(item, Retry::Whole);
                dispatcher.ask_again(&whole);
            }
            Remedy::AllBut(judge) => {
                let others: Vec<Range<u64>> =
                    ranges.iter().filter(|range| range.source != judge).map(|range| range.range.clone()).collect();
                self.shared.landing.retry(item, Retry::Ranges(others.clone()));
                others.iter().for_each(|range| dispatcher.ask_again(&segment(range)));
            }
            Remedy::GiveUp => {}
        }
        remedy
    }

    fn give_up_hopeless(&self, on_event: &mut (dyn FnMut(FetchEvent) + Send)) {
        let hopeless = self.shared.dispatcher().hopeless();
        for given_up in hopeless {
            let item = given_up.item;
            let catalogue = lock(&self.shared.catalogue).clone();
            if given_up.missing && catalogue.other_path(item).is_some() && lock(&self.shared.other_name).insert(item) {
                self.shared.dispatcher().ask_under_other_name(item);
                self.shared.wake.notify_waiters();
                continue;
            }
            let begun = lock(&self.shared.begun).contains(&item);
            if !self.shared.landing.abandon(item) && begun {
                // The outcome of the file was sent already, and has more information.
                continue;
            }
            self.abandon(item, Instant::now());
            on_event(FetchEvent::GivenUp(given_up));
        }
    }

    /// Drops a file that is not wanted any more.
    fn abandon(&self, item: ItemId, now: Instant) {
        self.shared.dispatcher().abandon(item, now);
        lock(&self.shared.begun).remove(&item);
    }
}
