//! The planner of a run: publishes tasks, listens to workers, and looks at the store.
//!
//! It decides nothing by itself: what to do when is [`Watchdog`]'s affair. Whatever the queue loses goes out as a new
//! round, and after three rounds, or without the queue, the planner of the mirror fetches what is missing itself.

use std::collections::{BTreeSet, VecDeque};
use std::future::Future;
use std::time::Duration;

use fullbore_engine::run::error::ErrorKind;
use fullbore_fleet::announcement::Announcement;
use fullbore_fleet::message::{Fault, Item, Report, Run, Task};
use fullbore_fleet::names::{LEASE_KEYS, parse_lease_key};
use fullbore_fleet::queue::{Counts, Queue, QueueError};
use fullbore_fleet::tasks;
use fullbore_fleet::watchdog::{Next, Watch, Watchdog};
use fullbore_s3::CallError;
use fullbore_s3::bucket::explain;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::judgement::Looks;
use super::lanes::{Change, Lanes};

/// Tasks of one publication; between two of them, workers are heard.
const PUBLISHED_AT_ONCE: usize = 1024;

/// Time between two attempts to publish into a full queue.
const FULL_PAUSE: Duration = Duration::from_secs(1);

/// Time between two looks at the leases and at the store, for the verdict.
const SURVEY_EVERY: Duration = Duration::from_secs(2);

/// An answer of the store that takes longer is late.
const LATE: Duration = Duration::from_secs(1);

/// Pause after a look at a store that fails.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Time for which looks at the store may fail until the run ends. A guess: longer than the restart of a store.
const STORE_AWAY_MAX: Duration = Duration::from_secs(300);

/// Time between two steps.
pub(super) const STEP_EVERY: Duration = Duration::from_millis(250);

/// What the planner asks of the store.
pub(super) trait Store {
    /// The places of those files that the store lacks.
    fn lacking(&self, wanted: &[usize]) -> impl Future<Output = Result<Vec<usize>, CallError>>;

    /// Whether it answers, and soon.
    fn probe(&self, limit: Duration) -> impl Future<Output = bool> + Send + 'static;
}

/// What happens while a run goes on.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Happening {
    /// A worker came or went.
    Worker(Change),
    /// A worker could not fetch or store a file.
    Fault(Fault),
    /// A line for the planner's user.
    Note(String),
    /// A line for the planner's user about something that costs time.
    Warning(String),
}

/// Where a run stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct View {
    /// Files and bytes that workers have stored.
    pub done: (u64, u64),
    /// Workers that are alive.
    pub workers: usize,
    /// Slots that workers hold, and those that there are.
    pub slots: (u64, u64),
    /// Workers that have been silent for a while, and for how long.
    pub silent: Vec<(String, u64)>,
    /// Tasks that failed and were given out again.
    pub redelivered: u64,
    /// Tasks in the queue.
    pub counts: Counts,
}

/// The planner of one run.
pub(super) struct Planner<'a, Q, S> {
    queue: Q,
    run: Run,
    items: &'a [Item],
    store: S,
    began: Instant,
    watchdog: Watchdog,
    announcement: Announcement<Q>,
    is_open: bool,
    must_purge: bool,
    unpublished: VecDeque<Task>,
    not_before: Instant,
    reports: Option<mpsc::Receiver<Report>>,
    /// The workers.
    pub lanes: Lanes,
    /// What was seen for the verdict.
    pub looks: Looks,
    /// Files that a worker gave up for good: in another round it would be the same.
    given_up: BTreeSet<String>,
    /// Tasks that were published.
    pub tasks: u64,
    /// Tasks that failed and were given out again.
    pub redelivered: u64,
    counts: Counts,
    /// The mirrors of the run: other runs may hold leases of others.
    hosts: BTreeSet<String>,
    slots: (u64, u64),
    /// Slots that workers held at most.
    pub slots_most: u64,
    surveyed: Option<Instant>,
    probe: Option<tokio::task::JoinHandle<bool>>,
    /// Since when looks at the store have failed.
    store_failing_since: Option<Instant>,
    was_full: bool,
    was_unreachable: bool,
}

impl<'a, Q: Queue, S: Store> Planner<'a, Q, S> {
    /// A planner for these files. `is_taken_over` says that the queue may have tasks of an earlier planner.
    pub(super) fn new(
        queue: Q,
        run: Run,
        items: &'a [Item],
        store: S,
        announcement: Announcement<Q>,
        is_taken_over: bool,
    ) -> Planner<'a, Q, S> {
        let unpublished: VecDeque<Task> = tasks::pack(&run.id, run.round, items.to_vec()).into();
        let hosts: BTreeSet<String> = run.hosts.iter().map(|host| host.host_and_port()).collect();
        let slots = hosts.iter().map(|host| u64::from(run.budgets.of(host))).sum();
        let now = Instant::now();
        Planner {
            queue,
            items,
            store,
            began: now,
            watchdog: Watchdog::new(Duration::ZERO, run.round),
            run,
            announcement,
            is_open: false,
            must_purge: is_taken_over,
            tasks: 0,
            unpublished,
            not_before: now,
            reports: None,
            lanes: Lanes::new(is_taken_over),
            looks: Looks::default(),
            given_up: BTreeSet::new(),
            redelivered: 0,
            counts: Counts::default(),
            hosts,
            slots: (0, slots),
            slots_most: 0,
            surveyed: None,
            probe: None,
            store_failing_since: None,
            was_full: false,
            was_unreachable: false,
        }
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// Rounds so far.
    pub(super) fn rounds(&self) -> u32 {
        self.watchdog.round()
    }

    /// Where the run stands.
    pub(super) fn view(&self) -> View {
        let now = self.now();
        let silent = self.lanes.silent(now);
        View {
            done: self.lanes.done(),
            workers: self.lanes.live(now),
            slots: self.slots,
            silent: silent.into_iter().map(|(worker, seconds)| (worker.to_string(), seconds)).collect(),
            redelivered: self.redelivered,
            counts: self.counts,
        }
    }

    /// Goes on with the run. Gives the places of the files that the store lacks, once workers can do no more: none if
    /// all is done. An error is that of a store that refuses, or that has not answered for [`STORE_AWAY_MAX`]. Call it
    /// every [`STEP_EVERY`].
    pub(super) async fn step(&mut self, happens: &mut impl FnMut(Happening)) -> Option<Result<Vec<usize>, CallError>> {
        self.listen(happens);
        let now = self.now();
        match self.tend(happens).await {
            Ok(()) => self.is_reachable(happens),
            // Only of what was there: a server that starts knows nothing yet.
            Err(QueueError::Missing(_)) if self.is_open => {
                self.is_open = false;
                self.watchdog.lost(now);
            }
            Err(error) if !self.was_unreachable => {
                self.was_unreachable = true;
                happens(Happening::Warning(format!("{error}; workers go on with what they hold")));
            }
            Err(_) => {}
        }
        self.listen(happens);
        let now = self.now();
        self.lanes.sample(now);
        self.lanes.gone(now).into_iter().for_each(|change| happens(Happening::Worker(change)));
        self.watchdog.moved(now, self.lanes.moved_bytes());
        match self.watchdog.watch(now) {
            Watch::Wait => None,
            Watch::Look => self.look(happens).await,
        }
    }

    fn is_reachable(&mut self, happens: &mut impl FnMut(Happening)) {
        if std::mem::take(&mut self.was_unreachable) {
            happens(Happening::Note("the queue answers again".to_owned()));
        }
    }

    /// Takes what workers report.
    fn listen(&mut self, happens: &mut impl FnMut(Happening)) {
        while let Some(report) = self.reports.as_mut().and_then(|reports| reports.try_recv().ok()) {
            let now = self.now();
            let (change, fault) = self.lanes.heard(now, report);
            if let Some(change) = change {
                happens(Happening::Worker(change));
            }
            let Some(fault) = fault else { continue };
            match fault.is_final {
                true => drop(self.given_up.insert(fault.path.clone())),
                false => self.redelivered += 1,
            }
            happens(Happening::Fault(fault));
        }
    }

    /// Makes requests to the queue that are due.
    async fn tend(&mut self, happens: &mut impl FnMut(Happening)) -> Result<(), QueueError> {
        if !self.is_open {
            self.queue.open(&self.run.id).await?;
            self.reports = Some(self.queue.reports(&self.run.id).await?);
            self.is_open = true;
        }
        if self.must_purge {
            self.queue.purge(&self.run.id).await?;
            self.must_purge = false;
        }
        if self.announcement.is_due() {
            self.announcement.say(&self.run).await?;
        }
        if !self.unpublished.is_empty() && Instant::now() >= self.not_before {
            self.publish(happens).await?;
        }
        let counts = self.queue.counts(&self.run.id).await?;
        self.counts = counts;
        self.looks.queue += 1;
        self.looks.waiting += u32::from(counts.waiting > 0 || !self.unpublished.is_empty());
        let now = self.now();
        self.watchdog.counted(now, counts);
        self.survey().await
    }

    async fn publish(&mut self, happens: &mut impl FnMut(Happening)) -> Result<(), QueueError> {
        let next = self.unpublished.len().min(PUBLISHED_AT_ONCE);
        let tasks: Vec<Task> = self.unpublished.iter().take(next).cloned().collect();
        let published = self.queue.publish(&tasks).await?;
        self.unpublished.drain(..published.accepted);
        self.tasks += published.accepted as u64;
        if published.is_full {
            self.not_before = Instant::now() + FULL_PAUSE;
            if !std::mem::replace(&mut self.was_full, true) {
                happens(Happening::Note("the queue is full: the rest is published as workers take tasks".to_owned()));
            }
        }
        if self.unpublished.is_empty() {
            let now = self.now();
            self.watchdog.all_published(now);
        }
        Ok(())
    }

    /// Looks at leases and store, for the verdict and for people.
    async fn survey(&mut self) -> Result<(), QueueError> {
        if self.surveyed.is_some_and(|at| at.elapsed() < SURVEY_EVERY) {
            return Ok(());
        }
        self.surveyed = Some(Instant::now());
        match self.probe.take() {
            Some(probe) if probe.is_finished() => {
                self.looks.store += 1;
                self.looks.late += u32::from(!probe.await.unwrap_or(false));
            }
            // It has not answered since the last look.
            Some(probe) => {
                (self.looks.store, self.looks.late) = (self.looks.store + 1, self.looks.late + 1);
                self.probe = Some(probe);
            }
            None => {}
        }
        if self.probe.is_none() {
            self.probe = Some(tokio::spawn(self.store.probe(LATE)));
        }
        let leases = self.queue.list(LEASE_KEYS).await?;
        let leased = leases.iter().filter_map(|entry| parse_lease_key(&entry.key));
        self.slots.0 = leased.filter(|(host, _)| self.hosts.contains(host)).count() as u64;
        self.slots_most = self.slots_most.max(self.slots.0);
        self.looks.leases += 1;
        self.looks.taken += u32::from(self.slots.0 >= self.slots.1);
        Ok(())
    }

    /// Finds out what the store has, and begins another round if files are missing.
    async fn look(&mut self, happens: &mut impl FnMut(Happening)) -> Option<Result<Vec<usize>, CallError>> {
        let all: Vec<usize> = (0..self.items.len()).collect();
        let missing = match self.store.lacking(&all).await {
            Ok(missing) => {
                self.store_failing_since = None;
                missing
            }
            // Credentials and policies do not mend themselves.
            Err(error) if explain(&error).kind != ErrorKind::Network => return Some(Err(error)),
            Err(error) => {
                let since = *self.store_failing_since.get_or_insert_with(Instant::now);
                if since.elapsed() >= STORE_AWAY_MAX {
                    return Some(Err(error));
                }
                happens(Happening::Warning(format!("the store cannot be asked what it has: {error}")));
                tokio::time::sleep(LOOK_AGAIN).await;
                return None;
            }
        };
        let now = self.now();
        let is_hopeless = || missing.iter().all(|at| self.given_up.contains(&self.items[*at].path));
        if !missing.is_empty() && is_hopeless() {
            return Some(Ok(missing));
        }
        match self.watchdog.looked(now, missing.len()) {
            Next::Publish => Some(Ok(Vec::new())),
            Next::Alone => Some(Ok(missing)),
            Next::Round { round, purges } => {
                happens(Happening::Note(format!(
                    "round {round}: the store lacks {} of {} files, and nobody moves them",
                    missing.len(),
                    self.items.len()
                )));
                self.run.round = round;
                let files = missing.iter().map(|at| self.items[*at].clone()).collect();
                self.unpublished = tasks::pack(&self.run.id, round, files).into();
                self.must_purge |= purges;
                self.given_up.clear();
                // The new round is announced at once.
                if let Err(error) = self.announcement.say(&self.run).await {
                    happens(Happening::Warning(format!("round {round} is not announced yet: {error}")));
                }
                None
            }
        }
    }

    /// Removes what the queue has of the run.
    pub(super) async fn end(&mut self) {
        self.announcement.end().await;
        let _ = self.queue.close(&self.run.id).await;
        if let Some(probe) = self.probe.take() {
            probe.abort();
        }
        // What workers said last.
        self.listen(&mut |_| {});
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    use fullbore_engine::digest::Sha256;
    use fullbore_fleet::memory::MemoryQueue;
    use fullbore_fleet::message::Stat;
    use fullbore_fleet::names::{Class, RunId, WorkerId};

    use super::*;
    use fullbore_fleet::announcement::Found;

    const RUN: &[u8] =
        br#"{"v":1,"id":"9c1f","kind":"mirror","to":"s3://bucket/debian","hosts":["https://a/debian"],"round":1}"#;

    /// What the store has, by path.
    #[derive(Clone, Default)]
    struct Objects {
        stored: Arc<Mutex<BTreeMap<String, u64>>>,
        paths: Arc<Vec<String>>,
    }

    impl Store for Objects {
        async fn lacking(&self, wanted: &[usize]) -> Result<Vec<usize>, CallError> {
            let stored = self.stored.lock().unwrap();
            Ok(wanted.iter().copied().filter(|at| !stored.contains_key(&self.paths[*at])).collect())
        }

        fn probe(&self, _limit: Duration) -> impl Future<Output = bool> + Send + 'static {
            std::future::ready(true)
        }
    }

    fn items(count: usize) -> Vec<Item> {
        let item = |number| Item { path: format!("pool/{number}"), size: 9_000_000, sha256: Sha256::of(b"") };
        (0..count).map(item).collect()
    }

    fn store_of(items: &[Item]) -> Objects {
        let paths = Arc::new(items.iter().map(|item| item.path.clone()).collect());
        Objects { paths, ..Objects::default() }
    }

    fn test<F: Future<Output = ()>>(future: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("too slow") });
    }

    async fn planner<'a>(queue: &MemoryQueue, items: &'a [Item], store: &Objects) -> Planner<'a, MemoryQueue, Objects> {
        let run = Run::parse(RUN).unwrap();
        queue.open(&run.id).await.unwrap();
        let (announcement, found) = Announcement::find(queue.clone(), &run, true).await.unwrap();
        assert_eq!(found, Found::Nothing);
        Planner::new(queue.clone(), run, items, store.clone(), announcement, false)
    }

    fn run() -> RunId {
        RunId::parse("9c1f").unwrap()
    }

    /// Takes all tasks; stores those files that the function lets it store.
    async fn work(queue: &MemoryQueue, store: &Objects, stores: impl Fn(&str) -> bool) {
        let worker = WorkerId::parse("w").unwrap();
        for held in queue.pull(&run(), Class::Large, 100, Duration::ZERO).await.unwrap_or_default() {
            for item in Task::parse(&held.message).unwrap().items {
                match stores(&item.path) {
                    true => drop(store.stored.lock().unwrap().insert(item.path, item.size)),
                    false => {
                        let fault = Fault::new(worker.clone(), None, item.path, "not there (404)", true);
                        queue.report(&run(), &worker, &Report::Fault(fault)).await.unwrap();
                    }
                }
            }
            queue.acknowledge(&held.delivery).await.unwrap();
        }
        let mut stat = Stat::new(worker.clone());
        stat.done.0 = store.stored.lock().unwrap().len() as u64;
        queue.report(&run(), &worker, &Report::Stat(stat)).await.unwrap();
    }

    #[test]
    fn a_run_is_done_when_the_store_has_all_and_not_when_the_queue_is_empty() {
        test(async {
            let (queue, items) = (MemoryQueue::new(1), items(20));
            let store = store_of(&items);
            let mut planner = planner(&queue, &items, &store).await;
            assert_eq!(planner.step(&mut |_| {}).await, None);
            // The queue says that all is acknowledged, and the store has the half.
            let lost: Vec<_> = queue.pull(&run(), Class::Large, 10, Duration::ZERO).await.unwrap();
            for held in lost {
                queue.acknowledge(&held.delivery).await.unwrap();
            }
            let mut happenings = Vec::new();
            let left = loop {
                work(&queue, &store, |_| true).await;
                if let Some(left) = planner.step(&mut |happening| happenings.push(happening)).await {
                    break left.unwrap();
                }
                tokio::time::sleep(STEP_EVERY).await;
            };
            assert_eq!((left, planner.rounds()), (vec![], 2));
            assert!(happenings.contains(&Happening::Worker(Change::Joined(WorkerId::parse("w").unwrap()))));
            assert_eq!(planner.lanes.done().0, 20);
            planner.end().await;
            assert_eq!(queue.list("run.").await.unwrap(), []);
        });
    }

    /// F5
    #[test]
    fn a_queue_that_was_wiped_gets_the_run_again() {
        test(async {
            let (queue, items) = (MemoryQueue::new(1), items(5));
            let store = store_of(&items);
            let mut planner = planner(&queue, &items, &store).await;
            planner.step(&mut |_| {}).await;
            queue.wipe();
            let left = loop {
                if let Some(left) = planner.step(&mut |_| {}).await {
                    break left.unwrap();
                }
                work(&queue, &store, |_| true).await;
                tokio::time::sleep(STEP_EVERY).await;
            };
            assert_eq!((left, planner.rounds()), (vec![], 2));
        });
    }

    #[test]
    fn a_store_that_refuses_ends_the_run() {
        struct Refusing;
        impl Store for Refusing {
            async fn lacking(&self, _wanted: &[usize]) -> Result<Vec<usize>, CallError> {
                let what = "HEAD pool/0".to_owned();
                Err(CallError::Refused { what, status: 403, error: Default::default() })
            }

            fn probe(&self, _limit: Duration) -> impl Future<Output = bool> + Send + 'static {
                std::future::ready(false)
            }
        }
        test(async {
            let (queue, items) = (MemoryQueue::new(1), items(1));
            let run = Run::parse(RUN).unwrap();
            queue.open(&run.id).await.unwrap();
            let (announcement, _) = Announcement::find(queue.clone(), &run, true).await.unwrap();
            let mut planner = Planner::new(queue.clone(), run, &items, Refusing, announcement, false);
            planner.step(&mut |_| {}).await;
            queue.wipe();
            let error = loop {
                if let Some(left) = planner.step(&mut |_| {}).await {
                    break left.unwrap_err();
                }
            };
            assert_eq!(error.status(), Some(403));
        });
    }

    /// Leases of a mirror of another run are not this run's.
    #[test]
    fn only_the_slots_of_its_own_mirrors_are_counted() {
        test(async {
            let (queue, items) = (MemoryQueue::new(1), items(1));
            let store = store_of(&items);
            let mut planner = planner(&queue, &items, &store).await;
            for host in ["a:443", "b:443"] {
                let key = fullbore_fleet::names::lease_key(host, 0);
                queue.create(&key, bytes::Bytes::new(), Duration::from_secs(60)).await.unwrap();
            }
            planner.step(&mut |_| {}).await;
            assert_eq!(planner.view().slots, (1, 4));
        });
    }

    #[test]
    fn files_that_workers_give_up_come_back_to_the_planner_at_once() {
        test(async {
            let (queue, items) = (MemoryQueue::new(1), items(5));
            let store = store_of(&items);
            let mut planner = planner(&queue, &items, &store).await;
            let left = loop {
                if let Some(left) = planner.step(&mut |_| {}).await {
                    break left.unwrap();
                }
                work(&queue, &store, |path| path != "pool/3").await;
                tokio::time::sleep(STEP_EVERY).await;
            };
            assert_eq!((left, planner.rounds()), (vec![3], 1));
        });
    }
}
