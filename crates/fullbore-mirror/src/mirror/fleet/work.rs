//! `fullbore work tls://HOST:4222`: a worker of all runs of a queue that store below its `--only` places.
//!
//! A worker waits for runs, serves each in a thread with a session of its own, and outlives planners, stores and queues
//! that go away. It has its own credentials, and stores only where its user says.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events};
use fullbore_engine::run::report::{Report, Summary};
use fullbore_engine::run::{Stop, report};
use fullbore_engine::units;
use fullbore_fleet::announcement::RUN_RENEW_EVERY;
use fullbore_fleet::message::{Run, Scope};
use fullbore_fleet::names::{RUN_KEYS, RunId, WorkerId};
use fullbore_fleet::queue::{Queue, QueueError};
use fullbore_fleet::settings::NatsSettings;
use fullbore_s3::bucket::BucketSettings;
use fullbore_s3::put;
use fullbore_wire::run::{NetworkSettings, add_transfers};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};

use super::attempts::{Attempts, FailedRuns};
use super::budgets;
use super::connection::{self, Connection};
use super::keys::{Card, Presence};
use super::put::serve_put;
use super::worker::{Done, OfSession, Order, Present, Why, Worker};
use super::worker_name;
use crate::mirror::work::session::{Session, SessionSettings};

/// Runs that are served at once; others wait. Each has its own connections and memory.
const RUNS_MAX: usize = 4;

/// How often the queue is asked for runs.
const LOOK_EVERY: Duration = Duration::from_millis(250);

/// Time without its key after which a run has ended. A queue that has lost its data gets the key again at the planner's
/// next renewal.
const GONE_AFTER: Duration = Duration::from_secs(3 * RUN_RENEW_EVERY.as_secs());

/// Time for which a worker waits for its first run, with `--once`: whoever starts both at once has a planner that reads
/// indexes first.
const FIRST_RUN_MAX: Duration = Duration::from_secs(60);

/// Time without the queue after which `--once` gives up.
const AWAY_MAX: Duration = Duration::from_secs(300);

/// Longest pause between two attempts to reach the queue, which double.
const CONNECT_PAUSE_MAX: Duration = Duration::from_secs(60);

/// Connections to a mirror at most, as `--connections` has it.
const CONNECTIONS_MAX: usize = 16;

/// Time that threads have to end after they were told: somewhat more than they take for what they hold.
const END_MAX: Duration = Duration::from_secs(30);

/// Faults of a mirror that are kept for the report, of all sessions and runs: a worker may serve runs for months. A
/// guess.
const FAULTS_KEPT: usize = 100;

/// Mirrors that are kept for the report. A guess above the number of mirrors that one user has.
const HOSTS_KEPT: usize = 1000;

/// A place where a worker may store.
#[derive(Debug, Clone, PartialEq)]
pub struct Allowed {
    /// The place, and its store.
    pub scope: Scope,
    /// How the store is reached, and by which credentials.
    pub bucket: BucketSettings,
}

/// Settings of a worker.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkSettings {
    /// The queue, and who this worker is there.
    pub queue: NatsSettings,
    /// Where it may store. Never empty.
    pub only: Vec<Allowed>,
    /// Whether it ends when the queue has no run for it any more.
    pub once: bool,
    /// Directory for temporary files: those above 16 MiB, until they are stored.
    pub scratch: PathBuf,
    /// Proxies, certificates, rate limit and connections of this worker.
    pub network: NetworkSettings,
    /// Most connections to each mirror, whatever the run allows.
    pub connections_max: Option<usize>,
    /// Directories of planners and where this machine has them, for runs of `put`.
    pub roots: Vec<(PathBuf, PathBuf)>,
}

/// One run to serve.
pub struct Serving<Q> {
    /// The queue.
    pub queue: Q,
    /// The run.
    pub run: Run,
    /// The worker's name.
    pub name: WorkerId,
    /// The bucket and prefix of the mirror.
    pub bucket: BucketSettings,
    /// Directory for temporary files.
    pub scratch: PathBuf,
    /// Proxies, certificates, and limits of this worker.
    pub network: NetworkSettings,
    /// Addresses of the archive that this worker knows with credentials; others are taken from the run.
    pub origins: Vec<String>,
    /// `Cache-Control` of names that change.
    pub cache_control: Option<String>,
    /// Where requests to the queue run when there is no session.
    pub handle: Handle,
}

/// What a worker did in one run.
#[derive(Debug, Default)]
pub struct Served {
    /// Files and bytes.
    pub done: Done,
    /// Hosts, requests and verdict of its sessions.
    pub summary: Summary,
    /// Why it ended before it was told to.
    pub fault: Option<String>,
}

/// Serves a run until it is told to end. Sessions that fail are replaced by others.
pub fn serve<Q: Queue>(
    serving: Serving<Q>,
    mut order: watch::Receiver<Order>,
    notes: mpsc::UnboundedSender<String>,
) -> Served {
    let mut served = Served::default();
    let Serving { queue, run, name, bucket, scratch, mut network, origins, cache_control, handle } = serving;
    let names: Vec<String> = run.hosts.iter().map(|host| host.host_and_port()).collect();
    let most = names.iter().map(|host| run.budgets.of(host)).max().unwrap_or(1) as usize;
    let connections_max = network.connections_per_host.min(CONNECTIONS_MAX);
    network.connections_per_host = most.clamp(1, connections_max.max(1));
    let own_rate = network.limit_rate_bytes_per_s;
    network.limit_rate_bytes_per_s = [network.limit_rate_bytes_per_s, run.rate_bytes_per_s].into_iter().flatten().min();
    let hosts: Vec<String> = run.hosts.iter().map(|host| with_credentials(host.to_string(), &origins)).collect();
    let patience = bucket.patience;
    let settings = SessionSettings { bucket, scratch, hosts, cache_control, network };
    let mut worker = handle.block_on(async {
        Worker::new(queue, run, name, patience, settings.network.connections_per_host, notes.clone())
    });
    let mut attempts = Attempts::default();
    loop {
        let before = worker.done.stored;
        let (fault, is_own) = match session(&settings, &names, own_rate, &mut worker, &order, &mut served.summary) {
            Ok(Why::Told) => break,
            Ok(Why::Failing) => ("every mirror fails".to_owned(), false),
            // Others may be allowed to do these tasks.
            Ok(Why::Denied(why)) => (QueueError::Denied(why).to_string(), false),
            Err(error) => (error.message, true),
        };
        if worker.done.stored != before {
            attempts.progressed();
        }
        let (pause, line) = attempts.failed(&fault);
        if let Some(line) = line {
            let _ = notes.send(line);
        }
        // Others may do it meanwhile. What breaks a session of each of them is given up in the end.
        match is_own {
            true => handle.block_on(worker.fail(&fault)),
            false => handle.block_on(worker.give_back()),
        }
        let is_over = |order: &Order| *order != Order::Work;
        let waited = handle.block_on(async { tokio::time::timeout(pause, order.wait_for(is_over)).await.is_ok() });
        if waited {
            break;
        }
    }
    handle.block_on(worker.give_back());
    served.done = std::mem::take(&mut worker.done);
    served
}

/// An address of the run, with the credentials that this machine knows for it.
fn with_credentials(host: String, origins: &[String]) -> String {
    let address = host.trim_end_matches('/');
    let is_same = |origin: &&String| fullbore_wire::url::without_credentials(origin).trim_end_matches('/') == address;
    origins.iter().find(is_same).cloned().unwrap_or_else(|| address.to_owned())
}

fn session<Q: Queue>(
    settings: &SessionSettings,
    names: &[String],
    own_rate_bytes_per_s: Option<u64>,
    worker: &mut Worker<Q>,
    order: &watch::Receiver<Order>,
    summary: &mut Summary,
) -> Result<Why, CommandError> {
    let began = Instant::now();
    let mut session = Session::open(settings)?;
    let mut present = Present::default();
    let of_session = OfSession {
        watch: session.site.fetcher.watch(),
        names: names.to_vec(),
        present: present.clone(),
        store_limits: session.store_limits(),
        acknowledged_bytes: session.acknowledged_bytes(),
        has_room: session.has_room(),
        rate_limit: session.rate_limit.clone(),
        own_rate_bytes_per_s,
    };
    // Kept here, because a session that fails drops its driver.
    let mut kept = None;
    let result = session
        .work(&mut present, |feed, outcomes| worker.work(feed, kept.insert(outcomes), of_session, order.clone()));
    if let (Err(_), Some(mut outcomes)) = (&result, kept) {
        session.network.block_on(worker.wind_up(&mut outcomes));
    }
    let closed = session.close();
    let mut own = Summary::default();
    let _ = add_transfers(&mut own, began, &[], &mut session.progression, [&session.site]);
    own.verdict = session.judge(own.verdict.take(), own.totals.written_bytes);
    add(summary, own);
    let why = result?;
    closed?;
    Ok(why)
}

/// Adds the transfers of another session or run.
fn add(summary: &mut Summary, other: Summary) {
    let (totals, more) = (&mut summary.totals, other.totals);
    totals.received_bytes += more.received_bytes;
    totals.wasted_bytes += more.wasted_bytes;
    totals.needed_bytes += more.needed_bytes;
    totals.requests += more.requests;
    totals.connections += more.connections;
    totals.hedged_requests += more.hedged_requests;
    for host in other.hosts {
        let has_room = summary.hosts.len() < HOSTS_KEPT;
        match summary.hosts.iter_mut().find(|known| known.host == host.host) {
            Some(known) => {
                known.received_bytes += host.received_bytes;
                known.wasted_bytes += host.wasted_bytes;
                known.files += host.files;
                known.requests += host.requests;
                known.connections += host.connections;
                known.strikes = known.strikes.saturating_add(host.strikes);
                known.best_rate_bytes_per_s = known.best_rate_bytes_per_s.max(host.best_rate_bytes_per_s);
                let room = FAULTS_KEPT.saturating_sub(known.faults.len());
                known.faults.extend(host.faults.into_iter().take(room));
                known.state = host.state;
            }
            None if has_room => summary.hosts.push(host),
            None => {}
        }
    }
    summary.verdict = other.verdict.or(summary.verdict.take());
}

/// A run that is served.
struct Post {
    /// The mirrors of the run, as in leases.
    hosts: BTreeSet<String>,
    order: watch::Sender<Order>,
    thread: JoinHandle<Served>,
    seen: Instant,
}

/// Works until a signal comes; with `once`, until there is no run any more.
///
/// # Errors
/// - [`ErrorKind::Usage`]: settings or credentials that cannot be used;
/// - [`ErrorKind::Network`]: the queue was away for five minutes, with `once`.
pub fn run(settings: &WorkSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let began = Instant::now();
    events.emit(Event::started("work", settings.queue.url.as_str()));
    let mut summary =
        Summary { command: "work".to_owned(), started_unix_s: report::began(Duration::ZERO), ..Summary::default() };
    let waiting = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let waiting = waiting.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let stop = Stop::listen(&waiting);
    let mut desk = Desk::new(settings);
    let result = match desk.connect(&waiting, &stop, events) {
        Ok(Some(connection)) => {
            let result = connection.runtime.block_on(desk.attend(&connection, &stop, &mut summary, events));
            let served = connection.runtime.block_on(desk.end(&mut summary, events));
            result.and(served)
        }
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    summary.totals.files = desk.done.stored.0;
    summary.totals.written_bytes = desk.done.stored.1;
    (summary.totals.kept_files, summary.totals.kept_bytes) = desk.done.present;
    summary.changed = desk.done.stored.0 > 0;
    summary.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    for (path, reason) in &desk.done.failed {
        summary.problem(format!("{path}: {reason}"));
    }
    let report = Report { summary, ..Report::default() };
    match result {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

/// The runs of a worker.
struct Desk<'a> {
    settings: &'a WorkSettings,
    name: WorkerId,
    posts: BTreeMap<RunId, Post>,
    done: Done,
    notes: (mpsc::UnboundedSender<String>, mpsc::UnboundedReceiver<String>),
    /// Keys of announced runs that are not served, which were told of.
    told: BTreeSet<String>,
    /// Announced runs whose work has ended by itself.
    failed: FailedRuns,
    last_run: Instant,
    has_seen_run: bool,
}

impl<'a> Desk<'a> {
    fn new(settings: &'a WorkSettings) -> Desk<'a> {
        Desk {
            settings,
            name: worker_name(),
            posts: BTreeMap::new(),
            done: Done::default(),
            notes: mpsc::unbounded_channel(),
            told: BTreeSet::new(),
            failed: FailedRuns::default(),
            last_run: Instant::now(),
            has_seen_run: false,
        }
    }

    /// Connects; waits for a queue that is away. `None` after a signal.
    fn connect(
        &self,
        waiting: &tokio::runtime::Runtime,
        stop: &Stop,
        events: &mut dyn Events,
    ) -> Result<Option<Connection>, CommandError> {
        let mut queue = self.settings.queue.clone();
        queue.name = self.name.to_string();
        let (began, mut pause) = (Instant::now(), Duration::from_secs(1));
        let mut has_told = false;
        loop {
            match connection::connect(&queue) {
                Ok(connection) => return Ok(Some(connection)),
                Err(error) if error.kind != ErrorKind::Network => return Err(error),
                Err(error) if self.settings.once && began.elapsed() >= AWAY_MAX => return Err(error),
                Err(error) if !has_told => {
                    has_told = true;
                    events.warn(format!("{}; waiting for it", error.message));
                }
                Err(_) => {}
            }
            if waiting.block_on(async { tokio::time::timeout(pause, stop.requested()).await.is_ok() }) {
                return Ok(None);
            }
            pause = (pause * 2).min(CONNECT_PAUSE_MAX);
        }
    }

    async fn attend(
        &mut self,
        connection: &Connection,
        stop: &Stop,
        summary: &mut Summary,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let mut presence = Presence::new(connection.queue.clone(), &self.name);
        let (mut answered, mut is_away) = (Instant::now(), false);
        events.note(format!("worker {} waits for runs of {}", self.name, self.settings.queue.url));
        let result = 'attending: loop {
            let seen = match connection.queue.list(RUN_KEYS).await {
                Ok(entries) => Ok(entries),
                // Nobody has used this queue yet.
                Err(QueueError::Missing(_)) => Ok(Vec::new()),
                Err(error) => Err(error),
            };
            match seen {
                Ok(entries) => {
                    if std::mem::take(&mut is_away) {
                        events.note("the queue answers again".to_owned());
                        self.saw_all();
                    }
                    answered = Instant::now();
                    self.told.retain(|key| entries.iter().any(|entry| entry.key == *key));
                    for entry in entries {
                        if let Err(error) = self.see(&entry.key, &entry.value, connection, events) {
                            break 'attending Err(error);
                        }
                    }
                    self.end_gone();
                    // With the runs just seen: the other workers of a run share its connections with this one.
                    let card = Card::serving(self.posts.iter().map(|(run, post)| (run, &post.hosts)));
                    let _ = presence.say(&card).await;
                    let patience = if self.has_seen_run { GONE_AFTER } else { FIRST_RUN_MAX };
                    if self.settings.once && self.posts.is_empty() && self.last_run.elapsed() >= patience {
                        break Ok(());
                    }
                }
                Err(error @ QueueError::Denied(_)) => break Err(connection::failed(&error)),
                Err(error) => {
                    if !std::mem::replace(&mut is_away, true) {
                        events.warn(format!("{error}; what is held is stored meanwhile"));
                    }
                    if self.settings.once && answered.elapsed() >= AWAY_MAX {
                        break Err(connection::failed(&error));
                    }
                }
            }
            self.collect(summary);
            while let Ok(line) = self.notes.1.try_recv() {
                summary.warn(line.clone());
                events.warn(line);
            }
            tokio::select! {
                () = stop.requested() => break Ok(()),
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        };
        // Work in progress is finished after an error, too.
        for post in self.posts.values() {
            let _ = post.order.send(Order::Drain);
        }
        let began = Instant::now();
        while !self.posts.is_empty() && began.elapsed() < END_MAX {
            self.collect(summary);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        presence.end().await;
        result
    }

    /// Looks at an announced run.
    fn see(
        &mut self,
        key: &str,
        value: &[u8],
        connection: &Connection,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let run = match Run::parse(value) {
            Ok(run) => run,
            Err(error) => {
                if self.told.insert(key.to_owned()) {
                    let who = if error.is_skew() { "is left to newer workers" } else { "is refused" };
                    events.warn(format!("{key} {who}: {error}"));
                }
                return Ok(());
            }
        };
        let Some(allowed) = self.settings.only.iter().find(|allowed| allowed.scope.allows(&run)) else {
            if self.told.insert(key.to_owned()) {
                events.note(format!("the run {} stores at {}, which --only does not name", run.id, run.to));
            }
            return Ok(());
        };
        (self.last_run, self.has_seen_run) = (Instant::now(), true);
        if let Some(post) = self.posts.get_mut(&run.id) {
            post.seen = Instant::now();
            return Ok(());
        }
        if !self.failed.may_begin(Instant::now(), &run.id) || self.posts.len() >= RUNS_MAX {
            return Ok(());
        }
        if let Some(source) = &run.put
            && !put::fleet::has_place(&source.root, &self.settings.roots)
        {
            if self.told.insert(key.to_owned()) {
                events.note(format!("the run {} puts files of {}, which no --root has", run.id, source.root));
            }
            return Ok(());
        }
        if !self.failed.has(&run.id) {
            events.note(format!("the run {} of {} stores at {}", run.id, run.planner, run.to));
        }
        let mut bucket = allowed.bucket.clone();
        bucket.location.bucket = run.to.bucket().to_owned();
        bucket.location.key = run.to.prefix().to_owned();
        if bucket.region.is_none() && bucket.aws.region.is_none() {
            bucket.region.clone_from(&run.region);
        }
        let (order, ordered) = watch::channel(Order::Work);
        let thread = std::thread::Builder::new().name("worker".to_owned());
        let hosts = if run.put.is_some() { BTreeSet::new() } else { budgets::hosts_of(&run) };
        if run.put.is_some() {
            let settings = put::fleet::WorkerSettings {
                bucket,
                roots: self.settings.roots.clone(),
                spool: self.settings.scratch.clone(),
                limit_rate_bytes_per_s: self.settings.network.limit_rate_bytes_per_s,
            };
            let (queue, name, handle) =
                (connection.queue.clone(), self.name.clone(), connection.runtime.handle().clone());
            let id = run.id.clone();
            let thread = thread.spawn(move || serve_put(queue, &run, name, &settings, ordered, &handle));
            let thread = thread.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
            self.posts.insert(id, Post { hosts, order, thread, seen: Instant::now() });
            return Ok(());
        }
        let mut network = self.settings.network.clone();
        network.connections_per_host = self.settings.connections_max.unwrap_or(CONNECTIONS_MAX);
        let (id, notes) = (run.id.clone(), self.notes.0.clone());
        let serving = Serving {
            queue: connection.queue.clone(),
            run,
            name: self.name.clone(),
            bucket,
            scratch: self.settings.scratch.clone(),
            network,
            origins: Vec::new(),
            cache_control: None,
            handle: connection.runtime.handle().clone(),
        };
        let thread = thread.spawn(move || serve(serving, ordered, notes));
        let thread = thread.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        self.posts.insert(id, Post { hosts, order, thread, seen: Instant::now() });
        Ok(())
    }

    /// Counts all runs as just seen: planners need a moment to announce them again in a queue that has lost its data.
    fn saw_all(&mut self) {
        self.last_run = Instant::now();
        self.posts.values_mut().for_each(|post| post.seen = Instant::now());
    }

    /// Ends the work on runs that are not announced any more.
    fn end_gone(&mut self) {
        for post in self.posts.values().filter(|post| post.seen.elapsed() >= GONE_AFTER) {
            let _ = post.order.send(Order::End);
        }
        self.failed.forget_gone(Instant::now(), GONE_AFTER);
    }

    /// Takes the results of threads that have ended.
    fn collect(&mut self, summary: &mut Summary) {
        let ended: Vec<RunId> =
            self.posts.iter().filter(|(_, post)| post.thread.is_finished()).map(|(run, _)| run.clone()).collect();
        for run in ended {
            let Some(post) = self.posts.remove(&run) else { continue };
            let panicked = |_| Served { fault: Some("its thread has panicked".to_owned()), ..Served::default() };
            let served = post.thread.join().unwrap_or_else(panicked);
            if *post.order.borrow() == Order::Work {
                let has_stored = served.done.stored.0 > 0;
                let line = self.failed.ended(Instant::now(), run, has_stored, served.fault.as_deref());
                line.into_iter().for_each(|line| drop(self.notes.0.send(line)));
            } else if let Some(fault) = served.fault {
                summary.warn(format!("run {run}: {fault}"));
            }
            self.done.stored.0 += served.done.stored.0;
            self.done.stored.1 += served.done.stored.1;
            self.done.present.0 += served.done.present.0;
            self.done.present.1 += served.done.present.1;
            for (path, reason) in &served.done.failed {
                self.done.note_failed(path, reason);
            }
            add(summary, served.summary);
        }
    }

    /// What is left when the worker ends.
    async fn end(&mut self, summary: &mut Summary, events: &mut dyn Events) -> Result<(), CommandError> {
        self.collect(summary);
        if !self.posts.is_empty() {
            let runs = units::several(self.posts.len() as u64, "run", "runs");
            events.warn(format!("the work on {runs} did not end in time; its tasks go to others"));
        }
        Ok(())
    }
}
