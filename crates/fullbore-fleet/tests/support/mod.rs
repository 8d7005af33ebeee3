//! A planner, workers and a store that are models: they make the requests that real ones make, and fetch nothing. They
//! run on any queue, in steps, so that a test decides what time it is.

#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fullbore_digest::Sha256;
use fullbore_fleet::book::{Book, Step, TaskNumber};
use fullbore_fleet::message::{Item, Report, Stat, Task};
use fullbore_fleet::names::{Class, RunId, WorkerId};
use fullbore_fleet::pull::{self, Load, RateMeter};
use fullbore_fleet::queue::{Queue, QueueError};
use fullbore_fleet::random::Random;
use fullbore_fleet::tasks;
use fullbore_fleet::watchdog::{Next, Watch, Watchdog};
use tokio::sync::mpsc;

pub const SECOND: Duration = Duration::from_secs(1);

/// Time without a byte that a worker allows.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a future of a queue in memory, which is ready at once.
pub fn ready<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a future of the queue in memory waits"),
    }
}

pub fn run() -> RunId {
    RunId::parse("9c1f").unwrap()
}

/// Files as an archive has them: many small ones, some large ones.
pub fn files(count: usize, total_bytes: u64, seed: u64) -> Vec<Item> {
    let mut random = Random::new(seed);
    let weights: Vec<f64> = (0..count).map(|_| random.fraction().powi(6) + 0.005).collect();
    let sum: f64 = weights.iter().sum();
    let item = |(number, weight): (usize, &f64)| {
        let path = format!("pool/main/f/file{number}/file{number}_1_amd64.deb");
        Item { sha256: Sha256::of(path.as_bytes()), path, size: (total_bytes as f64 * weight / sum) as u64 }
    };
    weights.iter().enumerate().map(item).collect()
}

/// What a store has, and what was sent to it.
#[derive(Default)]
struct Objects {
    stored: BTreeMap<String, Sha256>,
    /// Bytes of all puts, also of those that it had already.
    sent_bytes: u64,
    /// Puts of objects that it had.
    refused: u64,
    is_away: bool,
}

/// A store that takes an object only if it has none of that name.
#[derive(Clone, Default)]
pub struct Store(Arc<Mutex<Objects>>);

impl Store {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.0.lock().unwrap()
    }

    fn put(&self, item: &Item) {
        let mut objects = self.objects();
        objects.sent_bytes += item.size;
        if objects.stored.contains_key(&item.path) {
            objects.refused += 1;
        } else {
            objects.stored.insert(item.path.clone(), item.sha256);
        }
    }

    pub fn has(&self, path: &str) -> bool {
        self.objects().stored.contains_key(path)
    }

    pub fn count(&self) -> usize {
        self.objects().stored.len()
    }

    pub fn sent_bytes(&self) -> u64 {
        self.objects().sent_bytes
    }

    pub fn set_away(&self, is_away: bool) {
        self.objects().is_away = is_away;
    }

    fn is_away(&self) -> bool {
        self.objects().is_away
    }

    /// The store has these files, with the right content, and no others.
    pub fn assert_has_exactly(&self, items: &[Item]) {
        let expected: BTreeMap<String, Sha256> = items.iter().map(|item| (item.path.clone(), item.sha256)).collect();
        assert_eq!(self.objects().stored, expected);
    }
}

/// What a test does to a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Working,
    /// As by SIGSTOP.
    Frozen,
    /// As by SIGKILL.
    Dead,
}

pub struct Worker<Q: Queue> {
    pub name: WorkerId,
    pub queue: Q,
    pub state: State,
    pub rate_bytes_per_s: u64,
    /// Files that no mirror has.
    pub lost_files: BTreeSet<String>,
    pub store: Store,
    pub book: Book,
    meter: RateMeter,
    /// Files in the order of their tasks: task, index, file, bytes to fetch, whether the store is asked.
    work: VecDeque<(TaskNumber, usize, Item, u64, bool)>,
    done: (u64, u64),
    last_step: Duration,
    last_report: Duration,
    /// Tasks that were delivered to it, and lines for its user.
    pub deliveries: usize,
    pub warnings: Vec<String>,
    pub failed_requests: usize,
}

impl<Q: Queue> Worker<Q> {
    pub fn new(number: usize, queue: Q, store: &Store, rate_bytes_per_s: u64) -> Worker<Q> {
        let name = WorkerId::parse(&format!("w{number}")).unwrap();
        Worker {
            book: Book::new(name.clone(), PATIENCE),
            name,
            queue,
            state: State::Working,
            rate_bytes_per_s,
            lost_files: BTreeSet::new(),
            store: store.clone(),
            meter: RateMeter::default(),
            work: VecDeque::new(),
            done: (0, 0),
            last_step: Duration::ZERO,
            last_report: Duration::ZERO,
            deliveries: 0,
            warnings: Vec::new(),
            failed_requests: 0,
        }
    }

    /// Works until `now`.
    pub async fn step(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.last_step);
        self.last_step = now;
        if self.state != State::Working {
            return;
        }
        let mut steps = self.book.tick(now);
        // The time of a thawed worker does not count as work.
        if !self.store.is_away() {
            self.fetch(now, elapsed.min(SECOND), &mut steps);
        }
        self.perform(steps).await;
        self.pull(now).await;
        if now.saturating_sub(self.last_report) >= SECOND {
            self.last_report = now;
            let mut stat = Stat::new(self.name.clone());
            stat.done = self.done;
            let _ = self.queue.report(&run(), &self.name, &Report::Stat(stat)).await;
        }
    }

    fn fetch(&mut self, now: Duration, elapsed: Duration, steps: &mut Vec<Step>) {
        let mut budget = self.rate_bytes_per_s * elapsed.as_millis() as u64 / 1000;
        while let Some((number, index, item, left, asks_store)) = self.work.front_mut() {
            let (number, index, taken) = (*number, *index, budget.min(*left));
            if *asks_store && self.store.has(&item.path) {
                steps.extend(self.book.stored(now, number, index));
            } else if self.lost_files.contains(&item.path) {
                steps.extend(self.book.failed(now, number, index, None, "404"));
            } else {
                (*left, budget) = (*left - taken, budget - taken);
                self.book.moved(now, number);
                if *left > 0 {
                    return;
                }
                self.store.put(item);
                self.done = (self.done.0 + 1, self.done.1 + item.size);
                self.meter.count(now, item.size);
                steps.extend(self.book.stored(now, number, index));
            }
            self.work.pop_front();
        }
    }

    async fn pull(&mut self, now: Duration) {
        let rate = self.meter.bytes_per_s(now);
        for class in Class::ALL {
            let load = Load { rate_bytes_per_s: rate, is_paused: self.store.is_away(), ..self.book.load() };
            let demand = pull::demand(&load);
            let max = if class == Class::Xl { demand.xl_tasks } else { demand.tasks };
            if max == 0 {
                continue;
            }
            let Ok(pulled) = self.queue.pull(&run(), class, max, Duration::ZERO).await else {
                self.failed_requests += 1;
                // What comes after a failure may have been delivered to others before.
                self.book.reconnected(now);
                return;
            };
            self.deliveries += pulled.len();
            for held in pulled {
                let (begun, steps) = self.book.take(now, held);
                self.perform(steps).await;
                let Some(begun) = begun else { continue };
                let items = begun.items.into_iter().enumerate();
                let asks_store = begun.asks_store;
                self.work.extend(items.map(|(at, item)| {
                    let size = item.size;
                    (begun.number, at, item, size, asks_store)
                }));
            }
        }
    }

    async fn perform(&mut self, steps: Vec<Step>) {
        for step in steps {
            let result = match &step {
                Step::Extend(delivery) => self.queue.extend(delivery).await,
                Step::Acknowledge(delivery) => self.queue.acknowledge(delivery).await,
                Step::GiveBack(delivery, delay) => self.queue.give_back(delivery, *delay).await,
                Step::Discard(delivery) => self.queue.discard(delivery).await,
                Step::Report(fault) => self.queue.report(&run(), &self.name, &Report::Fault(fault.clone())).await,
                Step::Warn(line) => {
                    self.warnings.push(line.clone());
                    Ok(())
                }
            };
            self.failed_requests += usize::from(result.is_err());
        }
    }
}

pub struct Planner<Q: Queue> {
    pub queue: Q,
    store: Store,
    items: Vec<Item>,
    watchdog: Watchdog,
    is_open: bool,
    must_purge: bool,
    unpublished: VecDeque<Task>,
    reports: Option<mpsc::Receiver<Report>>,
    done_bytes: BTreeMap<WorkerId, u64>,
    pub faults: Vec<fullbore_fleet::message::Fault>,
    /// It fetches the rest itself.
    pub is_alone: bool,
    pub was_full: bool,
    last_step: Option<Duration>,
}

impl<Q: Queue> Planner<Q> {
    pub fn new(queue: Q, store: &Store, items: &[Item]) -> Planner<Q> {
        let unpublished = tasks::pack(&run(), 1, items.to_vec()).into();
        Planner {
            queue,
            store: store.clone(),
            items: items.to_vec(),
            watchdog: Watchdog::new(Duration::ZERO, 1),
            is_open: false,
            must_purge: false,
            unpublished,
            reports: None,
            done_bytes: BTreeMap::new(),
            faults: Vec::new(),
            is_alone: false,
            was_full: false,
            last_step: None,
        }
    }

    pub fn round(&self) -> u32 {
        self.watchdog.round()
    }

    fn missing(&self) -> Vec<Item> {
        self.items.iter().filter(|item| !self.store.has(&item.path)).cloned().collect()
    }

    /// Looks after the run; true when the store has all files. It acts once a second.
    pub async fn step(&mut self, now: Duration) -> bool {
        if self.last_step.is_some_and(|last| now.saturating_sub(last) < SECOND) {
            return false;
        }
        self.last_step = Some(now);
        if self.is_alone {
            // One file a second: a slow planner.
            if let Some(item) = self.missing().first() {
                self.store.put(item);
            }
            return self.missing().is_empty();
        }
        if let Err(QueueError::Missing(_)) = self.tend(now).await {
            self.is_open = false;
            self.watchdog.lost(now);
        }
        if self.watchdog.watch(now) == Watch::Wait {
            return false;
        }
        let missing = self.missing();
        match self.watchdog.looked(now, missing.len()) {
            Next::Publish => return true,
            Next::Alone => self.is_alone = true,
            Next::Round { round, purges } => {
                self.unpublished = tasks::pack(&run(), round, missing).into();
                self.must_purge = purges;
            }
        }
        false
    }

    async fn tend(&mut self, now: Duration) -> Result<(), QueueError> {
        if !self.is_open {
            self.queue.open(&run()).await?;
            self.reports = Some(self.queue.reports(&run()).await?);
            self.is_open = true;
        }
        if self.must_purge {
            self.queue.purge(&run()).await?;
            self.must_purge = false;
        }
        if !self.unpublished.is_empty() {
            let published = self.queue.publish(self.unpublished.make_contiguous()).await?;
            self.unpublished.drain(..published.accepted);
            self.was_full |= published.is_full;
            if self.unpublished.is_empty() {
                self.watchdog.all_published(now);
            }
        }
        while let Some(report) = self.reports.as_mut().and_then(|reports| reports.try_recv().ok()) {
            match report {
                Report::Stat(stat) => drop(self.done_bytes.insert(stat.worker, stat.done.1)),
                Report::Fault(fault) => self.faults.push(fault),
            }
        }
        self.watchdog.moved(now, self.done_bytes.values().sum());
        self.watchdog.counted(now, self.queue.counts(&run()).await?);
        Ok(())
    }
}
