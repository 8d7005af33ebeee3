//! The part of a mirror's run that workers do: from the files that are missing to those that are still missing.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, WorkerChange};
use fullbore_engine::run::pace::{Counts as Paced, Pace};
use fullbore_engine::run::report::FleetReport;
use fullbore_engine::run::{Stop, interruption};
use fullbore_engine::units;
use fullbore_fleet::announcement::{Announcement, Found};
use fullbore_fleet::message::{Budgets, Item, Run, StorePlace};
use fullbore_fleet::names::{RunId, WorkerId};
use fullbore_fleet::queue::Queue;
use fullbore_s3::CallError;
use fullbore_s3::bucket::{BucketSettings, explain};
use fullbore_s3::lock::LockError;
use fullbore_s3::objects::Objects;
use fullbore_s3::target::Layout as _;
use fullbore_wire::hosts::HostId;
use fullbore_wire::run::NetworkSettings;
use fullbore_wire::url::Url;
use tokio::sync::{mpsc, watch};

use super::budgets;
use super::connection::{self, Connection};
use super::keys::{Card, Presence};
use super::lanes::Change;
use super::planner::{Happening, Planner, STEP_EVERY, Store, View};
use super::work::{Served, serve};
use super::worker::Order;
use super::{FleetSettings, worker_name};
use crate::mirror::bucket::BucketMirror;
use crate::mirror::plan::{FileId, Plan};
use crate::mirror::pool::FetchPlan;
use crate::mirror::report::ReportBuilder;
use crate::mirror::session::Session;
use crate::mirror::subtract::Tally;
use crate::mirror::tree::Tree as _;
use crate::mirror::work::session::Seen;
use crate::mirror::work::stored::{self, Flaw, VERIFIED_MAX};
use crate::settings::MirrorSettings;

/// Faults of workers that are told while the run goes on; the rest is counted.
const FAULTS_TOLD: usize = 50;

/// Time that the local worker has to end.
const LOCAL_END_MAX: Duration = Duration::from_secs(10);

/// Time that the planner's own connections have to close before workers open theirs.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// How often the screen is told where the run stands.
const SHOWN_EVERY: Duration = Duration::from_millis(250);

/// A run whose missing files go to workers.
pub(crate) struct Shared<'a> {
    /// How the queue is used.
    pub fleet: &'a FleetSettings,
    /// The mirror.
    pub settings: &'a MirrorSettings,
    /// Its bucket.
    pub bucket: &'a Arc<BucketMirror>,
    /// The plan of the run.
    pub plan: &'a Arc<Plan>,
}

/// The store's own URL, as planner and workers name it; `None` for Amazon's.
///
/// # Errors
/// An endpoint that is no URL.
pub fn endpoint_of(bucket: &BucketSettings) -> Result<Option<Url>, CommandError> {
    let endpoint = bucket.endpoint.as_deref().or(bucket.aws.endpoint.as_deref());
    endpoint.map(Url::parse).transpose().map_err(CommandError::usage)
}

/// The files that workers may store, in order of the plan, and their numbers there.
struct FilesOfWorkers {
    items: Vec<Item>,
    ids: Vec<FileId>,
}

impl FilesOfWorkers {
    /// Not those that only the planner writes: replacements of files that are there, and images of unknown size.
    fn of(plan: &Plan, wanted: &FetchPlan) -> FilesOfWorkers {
        let mut files = FilesOfWorkers { items: Vec::new(), ids: Vec::new() };
        let subtraction = &wanted.subtraction;
        for id in subtraction.fetch.iter().copied().filter(|id| !subtraction.replace.contains(*id)) {
            let file = plan.file(id);
            let Some(size) = file.known_size() else { continue };
            let item = Item { path: file.path.to_owned(), size, sha256: file.sha256 };
            if item.check().is_ok() {
                files.items.push(item);
                files.ids.push(id);
            }
        }
        files
    }

    fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.size).sum()
    }
}

/// What the store has, for the planner.
struct StoredFiles {
    objects: Objects,
    items: Arc<Vec<Item>>,
}

impl Store for StoredFiles {
    async fn lacking(&self, wanted: &[usize]) -> Result<Vec<usize>, CallError> {
        let found = stored::find(&self.objects, &self.items, wanted).await?;
        Ok(found.into_iter().filter(|(_, seen)| *seen != Seen::Present).map(|(at, _)| at).collect())
    }

    fn probe(&self, limit: Duration) -> impl Future<Output = bool> + Send + 'static {
        let (objects, path) = (self.objects.clone(), self.items.first().map(|item| item.path.clone()));
        async move {
            let Some(path) = path else { return true };
            matches!(tokio::time::timeout(limit, objects.head(&path)).await, Ok(Ok(_)))
        }
    }
}

/// The worker of this machine.
struct Local {
    order: watch::Sender<Order>,
    thread: std::thread::JoinHandle<Served>,
    presence: Presence<connection::Client>,
}

impl Shared<'_> {
    /// Has workers store what is missing. FilesOfWorkers that the store has at the end are done; the rest stays to be fetched.
    ///
    /// # Errors
    /// Settings or credentials that cannot be used; a queue that is away if the settings need it; a signal.
    pub(crate) fn store(
        &self,
        wanted: &mut FetchPlan,
        session: &mut Session,
        stop: &Stop,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let files = FilesOfWorkers::of(self.plan, wanted);
        let mut run = self.run()?;
        let has_lock = self.settings.store.as_ref().is_none_or(|store| store.locks);
        if files.items.is_empty() {
            self.end_left_run(&run, has_lock);
            return Ok(());
        }
        let opened = connection::connect(&self.fleet.queue).and_then(|connection| {
            let found = connection.runtime.block_on(async {
                connection.queue.open(&run.id).await?;
                Announcement::find(connection.queue.clone(), &run, has_lock).await
            });
            found.map_err(|error| connection::failed(&error)).map(|found| (connection, found))
        });
        let (connection, (announcement, found)) = match opened {
            Ok(opened) => opened,
            Err(error) if error.kind == ErrorKind::Network && !self.fleet.needs_queue => {
                report.warn(events, format!("{}; this machine fetches everything itself", error.message));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        match found {
            Found::Nothing => {}
            Found::Run { round } => {
                run.round = round.saturating_add(1);
                report.warn(events, "an earlier planner of this run has ended: the run goes on".to_owned());
            }
            Found::Taken => {
                return Err(CommandError::new(ErrorKind::Locked, "another planner works on this run")
                    .hint("wait for it to end; a planner that was killed is over after a quarter of a minute"));
            }
        }
        // The planner's own connections would come on top of the budgets.
        let watch = session.site.fetcher.watch();
        let hosts = watch.names().len() as HostId;
        (0..hosts).for_each(|host| watch.allow(host, 0));
        let began = Instant::now();
        while watch.hosts().iter().any(|host| host.connections > 0) && began.elapsed() < CLOSING_MAX {
            std::thread::sleep(Duration::from_millis(20));
        }
        let items = Arc::new(files.items);
        let files = FilesOfWorkers { items: items.to_vec(), ids: files.ids };
        let result = self.conduct(
            &connection,
            run,
            (announcement, found != Found::Nothing),
            &files,
            items,
            session,
            stop,
            report,
            events,
        );
        (0..hosts).for_each(|host| watch.allow(host, usize::MAX));
        let left = result?;
        self.settle(wanted, &files, left);
        Ok(())
    }

    /// Ends the run of a planner that was killed after the last file was stored: workers would wait for it. If that
    /// fails, its announcement expires.
    fn end_left_run(&self, run: &Run, has_lock: bool) {
        let Ok(connection) = connection::connect(&self.fleet.queue) else { return };
        connection.runtime.block_on(async {
            let found = Announcement::find(connection.queue.clone(), run, has_lock).await;
            if let Ok((mut announcement, Found::Run { .. })) = found {
                announcement.end().await;
                let _ = connection.queue.close(&run.id).await;
            }
        });
    }

    /// The announcement of this run. Its name is made from what is to be mirrored, so that a planner that is started
    /// again goes on with the same run.
    fn run(&self) -> Result<Run, CommandError> {
        let settings = self.settings;
        let to = self.bucket.tree.name();
        let mut hasher = Sha256Hasher::new();
        hasher.update(format!("{to}\0").as_bytes());
        for file in self.plan.files() {
            hasher.update(file.path.as_bytes());
            hasher.update(format!("\0{}\n", file.sha256).as_bytes());
        }
        let mut name = hasher.finish().to_string();
        name.truncate(32);
        let url = |mirror: &String| {
            Url::parse(mirror).map_err(|error| CommandError::usage(format_args!("{mirror}: {error}")))
        };
        let connections = u32::try_from(settings.network.connections_per_host).unwrap_or(u32::MAX);
        let bucket = settings.store.as_ref().map(|store| &store.bucket);
        Ok(Run {
            id: RunId::parse(&name).map_err(CommandError::usage)?,
            to: StorePlace::parse(&to).map_err(CommandError::usage)?,
            endpoint: bucket.map(endpoint_of).transpose()?.flatten(),
            region: bucket.and_then(|bucket| bucket.region.clone().or_else(|| bucket.aws.region.clone())),
            hosts: settings.mirrors_for_workers()?.iter().map(url).collect::<Result<_, _>>()?,
            budgets: Budgets::new([("*".to_owned(), connections)].into()).map_err(CommandError::usage)?,
            rate_bytes_per_s: settings.network.limit_rate_bytes_per_s,
            planner: Card::here().host,
            fullbore: fullbore_engine::VERSION.to_owned(),
            round: 1,
            put: None,
        })
    }

    /// The worker of this machine, with a session of its own: what holds for one worker holds for all.
    fn local(
        &self,
        connection: &Connection,
        run: &Run,
        scratch: PathBuf,
        notes: mpsc::UnboundedSender<String>,
    ) -> Result<Option<Local>, CommandError> {
        let name = worker_name();
        let Some(store) = self.settings.store.as_ref().filter(|_| self.fleet.is_worker) else { return Ok(None) };
        let (order, ordered) = watch::channel(Order::Work);
        let serving = super::work::Serving {
            queue: connection.queue.clone(),
            run: run.clone(),
            name: name.clone(),
            bucket: store.bucket.clone(),
            scratch,
            // The rate is that of the run, which all workers share.
            network: NetworkSettings { limit_rate_bytes_per_s: None, ..self.settings.network.clone() },
            // With credentials, which no message has.
            origins: self.settings.origins.clone(),
            cache_control: store.cache_control.clone(),
            handle: connection.runtime.handle().clone(),
        };
        let thread =
            std::thread::Builder::new().name("worker".to_owned()).spawn(move || serve(serving, ordered, notes));
        let thread = thread.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        Ok(Some(Local { order, thread, presence: Presence::new(connection.queue.clone(), &name) }))
    }

    #[allow(clippy::too_many_arguments)]
    fn conduct(
        &self,
        connection: &Connection,
        run: Run,
        (announcement, is_taken_over): (Announcement<connection::Client>, bool),
        files: &FilesOfWorkers,
        items: Arc<Vec<Item>>,
        session: &mut Session,
        stop: &Stop,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<Vec<(usize, Flaw)>, CommandError> {
        let (notes, mut noted) = mpsc::unbounded_channel();
        let scratch = self.settings.store.as_ref().map(|store| store.scratch.clone()).unwrap_or_default();
        let mut local = self.local(connection, &run, scratch, notes)?;
        let card = Card::serving([(&run.id, &budgets::hosts_of(&run))]);
        let objects = self.bucket.objects().clone();
        let store = StoredFiles { objects: objects.clone(), items: items.clone() };
        let (count, total) = (files.items.len() as u64, files.bytes());
        let id = run.id.clone();
        let mut planner = Planner::new(connection.queue.clone(), run, &files.items, store, announcement, is_taken_over);
        let mut screen = Screen::new(session, (count, total));
        let mut told = 0;
        // Other machines store them, whose word is not enough.
        let (stored, seen_stored) = watch::channel(0);
        let verification = stored::verify_meanwhile(objects.clone(), items, seen_stored);
        let verification = connection.runtime.spawn(verification);
        let left = connection.runtime.block_on(async {
            let mut tick = tokio::time::interval(STEP_EVERY);
            tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
            loop {
                tokio::select! {
                    biased;
                    () = stop.requested() => break Err(interruption()),
                    _ = tick.tick() => {}
                }
                if let Some(local) = &mut local {
                    // The planner itself says when the queue is away.
                    let _ = local.presence.say(&card).await;
                }
                // Before the step: what is in the queue is the other planner's by now.
                if self.has_lost_lock() {
                    break Err(CommandError::new(ErrorKind::Locked, "the lock of the mirror is lost")
                        .hint("run again: stored files are found"));
                }
                let left = planner.step(&mut |happening| tell(happening, &mut told, report, events)).await;
                while let Ok(line) = noted.try_recv() {
                    report.warn(events, line);
                }
                let view = planner.view();
                stored.send_replace(view.done.0);
                screen.show(&view, events);
                if let Some(left) = left {
                    break left.map_err(|error| explain(&error));
                }
            }
        });
        if let Some(local) = local {
            end(local, connection);
        }
        let view = planner.view();
        let pending = view.counts.waiting + view.counts.held;
        if !self.has_lost_lock() {
            connection.runtime.block_on(planner.end());
        }
        let left = left?;
        drop(stored);
        let left = connection.runtime.block_on(async {
            let verifying = async {
                let is_right = verification.await.unwrap_or_default();
                // Of missing files, the look shows which to replace.
                let missing: HashSet<usize> = left.into_iter().collect();
                let is_known = |at: &usize| is_right.get(*at) == Some(&true) && !missing.contains(at);
                let mut looked: Vec<usize> = (0..files.items.len()).filter(|at| !is_known(at)).collect();
                if looked.len() > VERIFIED_MAX {
                    looked.retain(|at| missing.contains(at));
                }
                stored::verify(&objects, &files.items, looked).await.map_err(|error| explain(&error))
            };
            tokio::select! {
                biased;
                () = stop.requested() => Err(interruption()),
                flaws = verifying => flaws,
            }
        })?;
        let done_bytes = total - left.iter().map(|(at, _)| files.items[*at].size).sum::<u64>();
        let done = (count - left.len() as u64, done_bytes);
        session.progression.totals().elsewhere(done, done);
        let fleet = FleetReport {
            run: id.to_string(),
            tasks: planner.tasks,
            pending_tasks: pending,
            rounds: planner.rounds(),
            files: done.0,
            bytes: done.1,
            left_files: left.len() as u64,
            redelivered: planner.redelivered,
            slots_most: planner.slots_most,
            slots: planner.view().slots.1,
            workers: planner.lanes.reports(),
        };
        let clocks = planner.lanes.clocks();
        let verdict = super::judgement::judge(&clocks, &planner.looks, fleet.workers.len());
        report.fleet(fleet, verdict, planner.lanes.hosts());
        if !left.is_empty() {
            let files = units::several(left.len() as u64, "file", "files");
            report.warn(events, format!("workers did not store {files}: this machine fetches what is missing"));
        }
        Ok(left)
    }

    /// Whether another run has taken the lock of the mirror over.
    fn has_lost_lock(&self) -> bool {
        let tree = &self.bucket.tree;
        tree.is_overtaken() || tree.lock().as_ref().is_some_and(|lock| matches!(lock.check(), Err(LockError::Lost)))
    }

    /// Counts right objects as done. Wrong ones are replaced when the mirror is published, as in any run.
    fn settle(&self, wanted: &mut FetchPlan, files: &FilesOfWorkers, left: Vec<(usize, Flaw)>) {
        let left: HashMap<usize, Flaw> = left.into_iter().collect();
        let subtraction = &mut wanted.subtraction;
        for (at, (item, id)) in files.items.iter().zip(&files.ids).enumerate() {
            match left.get(&at) {
                None => {
                    subtraction.done.insert(*id);
                    self.bucket.tree.changed(&item.path, Some((item.sha256, item.size, None)));
                }
                Some(Flaw::Wrong(found)) => {
                    subtraction.replace.insert(*id);
                    // Publishing replaces the object only if it is still this one.
                    self.bucket.tree.changed(&item.path, Some((item.sha256, found.size, found.etag.clone())));
                }
                Some(Flaw::Absent) => {}
            }
        }
        let done = &subtraction.done;
        subtraction.fetch.retain(|id| !done.contains(*id));
        let mut fetch = Tally::default();
        let sizes: HashMap<FileId, u64> = wanted.learned.iter().copied().collect();
        for id in &subtraction.fetch {
            fetch.add(self.plan.file(*id).known_size().or_else(|| sizes.get(id).copied()).unwrap_or(0));
        }
        wanted.fetch = fetch;
    }
}

/// Ends the local worker. The run is over for it, so it is not waited for if something hangs.
fn end(local: Local, connection: &Connection) {
    let _ = local.order.send(Order::End);
    let began = Instant::now();
    while !local.thread.is_finished() && began.elapsed() < LOCAL_END_MAX {
        std::thread::sleep(Duration::from_millis(20));
    }
    if local.thread.is_finished() {
        let _ = local.thread.join();
    }
    connection.runtime.block_on(local.presence.end());
}

fn tell(happening: Happening, told: &mut usize, report: &mut ReportBuilder, events: &mut dyn Events) {
    let worker = |worker: &WorkerId, change| Event::Worker { worker: worker.to_string(), change };
    match happening {
        Happening::Worker(Change::Joined(name)) => events.emit(worker(&name, WorkerChange::Joined)),
        Happening::Worker(Change::Left(name)) => events.emit(worker(&name, WorkerChange::Left)),
        Happening::Fault(fault) => {
            *told += 1;
            if *told <= FAULTS_TOLD {
                let host = fault.host.iter().map(|host| format!("{host}: "));
                let text: String = host.chain([fault.fault.clone()]).collect();
                let change = WorkerChange::Fault { path: fault.path.clone(), fault: text };
                events.emit(worker(&fault.worker, change));
            }
        }
        Happening::Note(message) => events.emit(Event::Note { message }),
        Happening::Warning(line) => report.warn(events, line),
    }
}

/// One line for the whole run.
struct Screen {
    pace: Pace,
    total: (u64, u64),
    totals: fullbore_wire::run::Totals,
    shown: Option<Instant>,
}

impl Screen {
    fn new(session: &Session, total: (u64, u64)) -> Screen {
        let totals = session.progression.totals().clone();
        Screen { pace: Pace::new(Instant::now()), total, totals, shown: None }
    }

    fn show(&mut self, view: &View, events: &mut dyn Events) {
        if self.shown.is_some_and(|shown| shown.elapsed() < SHOWN_EVERY) {
            return;
        }
        let now = Instant::now();
        self.shown = Some(now);
        let done = (view.done.0.min(self.total.0), view.done.1.min(self.total.1));
        self.totals.elsewhere(done, self.total);
        let counts = Paced { files: done.0, bytes: done.1, total_files: self.total.0, total_bytes: self.total.1 };
        let mut progress = self.pace.progress(counts, None, now);
        progress.fleet = Some(fullbore_engine::run::events::FleetProgress {
            workers: view.workers as u64,
            slots: view.slots.0,
            slots_total: view.slots.1,
            redelivered: view.redelivered,
            silent: view.silent.clone(),
        });
        events.emit(Event::Progress(progress));
    }
}
