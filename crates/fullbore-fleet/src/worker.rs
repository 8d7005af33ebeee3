//! The queue as a worker of one run uses it: it pulls tasks, enters them in the book, and answers the queue.
//!
//! [`Book`] and [`pull`](crate::pull) decide; this module has the clock and makes the requests. The caller handles the
//! items of a task: it gets a [`Begun`], and reports the result of each item. Each request to the queue runs in its own
//! async task, so a queue that does not answer delays nothing.

use std::time::Duration;

use tokio::task::{self, JoinSet};
use tokio::time::Instant;

use crate::book::{Begun, Book, Step, TaskNumber};
use crate::message::{ClockMs, HostCount, Report, Stat};
use crate::names::{Class, RunId, WorkerId};
use crate::pull::{Load, RateMeter, demand};
use crate::queue::{Delivery, Held, Queue, QueueError};

/// How often a worker calls [`WorkerQueue::tick`].
pub const TICK: Duration = Duration::from_millis(200);

/// Interval of a worker's reports.
pub const REPORT_EVERY: Duration = Duration::from_secs(1);

/// Time that a worker has to finish its tasks when it is told to end.
pub const DRAIN_MAX: Duration = Duration::from_secs(20);

/// Time for requests in progress when a worker ends: above all acknowledgements of stored files.
pub const LAST_REQUESTS_MAX: Duration = Duration::from_secs(2);

/// Time for which one request of a worker without a task waits.
const PULL_WAIT: Duration = Duration::from_secs(2);

/// Time between two requests of a worker that has tasks.
const PULL_EVERY: Duration = Duration::from_millis(300);

/// Pause of a worker without a task after an answer without tasks, as a queue may answer at once.
const EMPTY_PAUSE: Duration = Duration::from_millis(100);

/// Pause after a request that failed.
const FAILED_PAUSE: Duration = Duration::from_secs(1);

/// Pause while the queue does not know the run. Planners check for it every 250 ms.
const MISSING_PAUSE: Duration = Duration::from_millis(250);

/// Consecutive failed tasks after which a worker pauses between tasks. Its own machine may be at fault, and would take
/// the tasks of all others and fail them.
const FAILURES_FREE: u32 = 8;

/// The first such pause, which doubles with each further failure, and the longest one.
const FAILURES_PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Fewest acknowledged bytes that count as progress; fewer may be status requests to the store.
const PROGRESS_BYTES: u64 = 64 << 10;

/// The result of a request for tasks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pulled {
    /// Tasks arrived, but perhaps none for this worker.
    Tasks(Vec<Begun>),
    /// The queue has no task now.
    Nothing,
    /// The queue did not answer, reported an error, or does not know the run. In that case its planner is about to open
    /// it, or to reopen it after a loss of data. Whether a run has ended, its announcement tells.
    Failed,
    /// The queue refuses this worker's requests for tasks, or its acknowledgements; with the queue's reason.
    Denied(String),
}

/// The answer to a request.
enum Answer {
    Pulled(Result<Vec<Held>, QueueError>),
    Told,
    /// An acknowledgement was refused.
    Denied(String),
}

/// The tasks of a worker in one run, and its requests to the queue.
pub struct WorkerQueue<Q> {
    queue: Q,
    run: RunId,
    name: WorkerId,
    began: Instant,
    book: Book,
    meter: RateMeter,
    warn: Box<dyn Fn(String) + Send + Sync>,
    connections_seen: u64,
    requests: JoinSet<Answer>,
    /// The request for tasks in progress.
    pulling: Option<task::Id>,
    is_draining: bool,
    next_pull: Instant,
    failures: Failures,
    /// Files and bytes that this worker has stored.
    pub done: (u64, u64),
    /// Bytes that this worker has sent to the store, for reports, and those of the current session; see
    /// [`WorkerQueue::sent`].
    sent_bytes: u64,
    session_bytes: u64,
    /// Counts by mirror, for reports.
    pub hosts: Vec<HostCount>,
    /// Clocks, for reports.
    pub clocks: ClockMs,
}

impl<Q: Queue> WorkerQueue<Q> {
    /// Makes a worker that holds nothing. `warn` receives lines for its user.
    pub fn new(
        queue: Q,
        run: RunId,
        name: WorkerId,
        book: Book,
        warn: impl Fn(String) + Send + Sync + 'static,
    ) -> WorkerQueue<Q> {
        let now = Instant::now();
        WorkerQueue {
            connections_seen: queue.connections(),
            queue,
            run,
            name,
            began: now,
            book,
            meter: RateMeter::default(),
            warn: Box::new(warn),
            requests: JoinSet::new(),
            pulling: None,
            is_draining: false,
            next_pull: now,
            failures: Failures::default(),
            done: (0, 0),
            sent_bytes: 0,
            session_bytes: 0,
            hosts: Vec::new(),
            clocks: ClockMs::new(),
        }
    }

    /// Time since the start of the worker.
    pub fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The work that the worker holds.
    pub fn load(&self) -> Load {
        self.book.load()
    }

    /// Whether the worker holds nothing, and no request for tasks is in progress.
    pub fn is_idle(&self) -> bool {
        self.load().tasks == 0 && self.pulling.is_none()
    }

    /// Requests tasks, if the worker may have more; [`WorkerQueue::pulled`] returns the answer.
    pub fn pull(&mut self, is_paused: bool) {
        let not_before = self.failures.until.map_or(self.next_pull, |until| until.max(self.next_pull));
        if self.pulling.is_some() || self.is_draining || Instant::now() < not_before {
            return;
        }
        let load = Load { is_paused, rate_bytes_per_s: self.meter.bytes_per_s(self.began.elapsed()), ..self.load() };
        let wanted = demand(&load);
        if wanted.tasks + wanted.xl_tasks == 0 {
            return;
        }
        let wait = if load.tasks == 0 { PULL_WAIT } else { Duration::ZERO };
        let (queue, run) = (self.queue.clone(), self.run.clone());
        let pulling = self.requests.spawn(async move {
            let mut held = match wanted.xl_tasks {
                0 => Vec::new(),
                most => match queue.pull(&run, Class::Xl, most, Duration::ZERO).await {
                    Ok(held) => held,
                    Err(error) => return Answer::Pulled(Err(error)),
                },
            };
            let most = wanted.tasks.saturating_sub(held.len());
            if most > 0 {
                let wait = if held.is_empty() { wait } else { Duration::ZERO };
                match queue.pull(&run, Class::Large, most, wait).await {
                    Ok(more) => held.extend(more),
                    // The worker has the tasks of the first request all the same.
                    Err(error) if held.is_empty() => return Answer::Pulled(Err(error)),
                    Err(_) => {}
                }
            }
            Answer::Pulled(Ok(held))
        });
        self.pulling = Some(pulling.id());
    }

    /// Requests nothing more. Tasks that still arrive are given back.
    pub fn drain(&mut self) {
        self.is_draining = true;
    }

    /// Waits for the answer to a request for tasks. Dropping the future loses nothing.
    pub async fn pulled(&mut self) -> Pulled {
        loop {
            match self.requests.join_next().await {
                Some(Ok(Answer::Pulled(pulled))) => return self.take_all(pulled),
                Some(Ok(Answer::Denied(why))) => return Pulled::Denied(why),
                Some(Ok(Answer::Told)) => {}
                Some(Err(error)) if self.pulling == Some(error.id()) => {
                    return self.take_all(Err(QueueError::Other(error.to_string())));
                }
                Some(Err(_)) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn take_all(&mut self, pulled: Result<Vec<Held>, QueueError>) -> Pulled {
        self.pulling = None;
        let (now, at) = (self.now(), Instant::now());
        match pulled {
            Ok(held) if held.is_empty() => {
                self.next_pull = at + if self.load().tasks == 0 { EMPTY_PAUSE } else { PULL_EVERY };
                Pulled::Nothing
            }
            Ok(held) if self.is_draining => {
                held.into_iter().for_each(|held| self.refuse(held.delivery));
                Pulled::Nothing
            }
            Ok(held) => {
                self.next_pull = at;
                if self.load().tasks == 0 {
                    self.meter.rested();
                }
                Pulled::Tasks(held.into_iter().filter_map(|held| self.take(now, held)).collect())
            }
            Err(error) => {
                let is_missing = matches!(error, QueueError::Missing(_));
                self.next_pull = at + if is_missing { MISSING_PAUSE } else { FAILED_PAUSE };
                // Tasks of the next answer may have been delivered to others before.
                self.book.reconnected(now);
                match error {
                    QueueError::Denied(why) => Pulled::Denied(why),
                    _ => Pulled::Failed,
                }
            }
        }
    }

    fn take(&mut self, now: Duration, held: Held) -> Option<Begun> {
        let (begun, steps) = self.book.take(now, held);
        self.tell(steps);
        begun
    }

    /// The store has confirmed a file, or a part of one, that this worker has sent.
    pub fn stored(&mut self, task: TaskNumber, item: usize, (files, bytes): (u64, u64)) {
        let now = self.now();
        self.done = (self.done.0 + files, self.done.1 + bytes);
        self.failures = Failures::default();
        let steps = self.book.stored(now, task, item);
        self.tell(steps);
    }

    /// The store had a file already.
    pub fn present(&mut self, task: TaskNumber, item: usize) {
        self.failures = Failures::default();
        let steps = self.book.stored(self.now(), task, item);
        self.tell(steps);
    }

    /// A file could not be fetched, read or stored. `host` is the mirror at fault, if one is.
    pub fn failed(&mut self, task: TaskNumber, item: usize, host: Option<String>, fault: &str) {
        self.failures.count(task, Instant::now());
        let steps = self.book.failed(self.now(), task, item, host, fault);
        self.tell(steps);
    }

    /// A file is on no mirror.
    pub fn lost(&mut self, task: TaskNumber, item: usize, fault: &str) {
        let steps = self.book.lost(self.now(), task, item, fault);
        self.tell(steps);
    }

    /// Bytes of this task's file have been fetched or sent.
    pub fn moved(&mut self, task: TaskNumber) {
        let now = self.now();
        self.book.moved(now, task);
    }

    /// A task's file is complete. `sent_bytes` of it are in the store already; the rest is being sent. May be called
    /// again with more bytes.
    pub fn fetched(&mut self, task: TaskNumber, item: usize, sent_bytes: u64) {
        self.book.fetched(task, item, sent_bytes);
    }

    /// This number of bytes has been sent to the store in this session, but it is unknown for which tasks.
    pub fn sent(&mut self, bytes: u64) {
        if bytes < self.session_bytes {
            self.session_bytes = 0;
        }
        let more = bytes - self.session_bytes;
        if more >= PROGRESS_BYTES {
            (self.sent_bytes, self.session_bytes) = (self.sent_bytes + more, bytes);
            let now = self.now();
            self.meter.count(now, more);
            self.book.any_moved(now);
        }
    }

    /// Extends tasks that are due. Call it every [`TICK`].
    pub fn tick(&mut self) {
        let now = self.now();
        let connections = self.queue.connections();
        if connections > self.connections_seen {
            self.connections_seen = connections;
            self.book.reconnected(now);
        }
        let steps = self.book.tick(now);
        self.tell(steps);
    }

    /// Reports progress. Call it every [`REPORT_EVERY`].
    pub fn report(&mut self) {
        let (queue, run, name) = (self.queue.clone(), self.run.clone(), self.name.clone());
        let stat = Report::Stat(self.stat());
        self.requests.spawn(async move {
            // This is progress for people, so it may be lost.
            let _ = queue.report(&run, &name, &stat).await;
            Answer::Told
        });
    }

    /// Gives a delivery back at once.
    fn refuse(&mut self, delivery: Delivery) {
        self.tell(vec![Step::GiveBack(delivery, Duration::ZERO)]);
    }

    fn stat(&self) -> Stat {
        let load = self.book.load();
        let mut stat = Stat::new(self.name.clone());
        (stat.done, stat.sent_bytes) = (self.done, self.sent_bytes);
        stat.held = (load.tasks as u64, load.incomplete_bytes + load.fetched_bytes);
        stat.hosts.clone_from(&self.hosts);
        stat.clocks.clone_from(&self.clocks);
        stat
    }

    /// Carries out the steps of the book, one after the other.
    fn tell(&mut self, steps: Vec<Step>) {
        let (warnings, steps): (Vec<Step>, Vec<Step>) =
            steps.into_iter().partition(|step| matches!(step, Step::Warn(_)));
        for warning in warnings {
            if let Step::Warn(line) = warning {
                (self.warn)(line);
            }
        }
        if steps.is_empty() {
            return;
        }
        // The planner may end after the last acknowledgement, so report the work before that.
        let is_last = self.load().tasks == 0 && steps.iter().any(|step| matches!(step, Step::Acknowledge(_)));
        let stat = is_last.then(|| Report::Stat(self.stat()));
        let (queue, run, name) = (self.queue.clone(), self.run.clone(), self.name.clone());
        self.requests.spawn(async move {
            if let Some(stat) = stat {
                let _ = queue.report(&run, &name, &stat).await;
            }
            perform(&queue, &run, &name, steps).await.map_or(Answer::Told, Answer::Denied)
        });
    }

    /// Waits for requests in progress, and accepts no more tasks.
    pub async fn finish(&mut self) {
        let until = Instant::now() + LAST_REQUESTS_MAX;
        while let Ok(Some(answer)) = tokio::time::timeout_at(until, self.requests.join_next()).await {
            match answer {
                Ok(Answer::Pulled(pulled)) => {
                    self.pulling = None;
                    pulled.into_iter().flatten().for_each(|held| self.refuse(held.delivery));
                }
                Err(error) if self.pulling == Some(error.id()) => self.pulling = None,
                _ => {}
            }
        }
    }

    /// Gives all tasks back, and reports. Requests that are still in progress are dropped; the worker may start again.
    pub async fn give_back(&mut self) {
        let steps = self.book.give_back(self.now());
        self.end(steps).await;
    }

    /// Like [`WorkerQueue::give_back`], after a failure of the worker itself: its tasks count as failed.
    pub async fn fail(&mut self, fault: &str) {
        let steps = self.book.fail_all(self.now(), fault);
        self.end(steps).await;
    }

    async fn end(&mut self, steps: Vec<Step>) {
        // They may belong to a runtime that ends with a session of the worker.
        self.requests = JoinSet::new();
        self.pulling = None;
        perform(&self.queue, &self.run, &self.name, steps).await;
        let _ = self.queue.report(&self.run, &self.name, &Report::Stat(self.stat())).await;
    }
}

/// Counts consecutive failed tasks.
#[derive(Debug, Default)]
struct Failures {
    count: u32,
    last: Option<TaskNumber>,
    /// When the worker may take tasks again.
    until: Option<Instant>,
}

impl Failures {
    /// Several files of a task are one failure.
    fn count(&mut self, task: TaskNumber, now: Instant) {
        if self.last.replace(task) == Some(task) {
            return;
        }
        self.count = self.count.saturating_add(1);
        if let Some(doubled) = self.count.checked_sub(FAILURES_FREE) {
            let pause = FAILURES_PAUSE.0.saturating_mul(2_u32.saturating_pow(doubled));
            self.until = Some(now + pause.min(FAILURES_PAUSE.1));
        }
    }
}

/// Sends the book's steps to the queue. A failed request has the same effect as a lost one: the task comes again, and
/// its files are found in the store. Returns the queue's text if it refuses an acknowledgement, as it would refuse
/// others, too.
async fn perform<Q: Queue>(queue: &Q, run: &RunId, worker: &WorkerId, steps: Vec<Step>) -> Option<String> {
    let mut denied = None;
    for step in steps {
        let _ = match step {
            Step::Extend(delivery) => queue.extend(&delivery).await,
            Step::Acknowledge(delivery) => {
                let answer = queue.acknowledge(&delivery).await;
                if let Err(QueueError::Denied(why)) = &answer {
                    denied = Some(why.clone());
                }
                answer
            }
            Step::GiveBack(delivery, delay) => queue.give_back(&delivery, delay).await,
            Step::Discard(delivery) => queue.discard(&delivery).await,
            Step::Report(fault) => queue.report(run, worker, &Report::Fault(fault)).await,
            Step::Warn(_) => Ok(()),
        };
    }
    denied
}

#[cfg(test)]
mod tests {
    use fullbore_digest::Sha256;

    use super::*;
    use crate::memory::MemoryQueue;
    use crate::message::Item;
    use crate::queue::Counts;
    use crate::tasks;

    fn run() -> RunId {
        RunId::parse("9c1f").unwrap()
    }

    fn name() -> WorkerId {
        WorkerId::parse("w").unwrap()
    }

    async fn queue(sizes: &[u64]) -> MemoryQueue {
        let queue = MemoryQueue::new(1);
        queue.open(&run()).await.unwrap();
        let item = |(number, size): (usize, &u64)| Item {
            path: format!("pool/{number}"),
            size: *size,
            sha256: Sha256::of(b""),
        };
        let items = sizes.iter().enumerate().map(item).collect();
        queue.publish(&tasks::pack(&run(), 1, items)).await.unwrap();
        queue
    }

    fn worker(queue: &MemoryQueue) -> WorkerQueue<MemoryQueue> {
        let book = Book::new(name(), Duration::from_secs(60));
        WorkerQueue::new(queue.connect(), run(), name(), book, |line| panic!("{line}"))
    }

    fn test<F: Future<Output = ()>>(future: F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(Duration::from_secs(30), future).await.expect("too slow") });
    }

    async fn tasks(worker: &mut WorkerQueue<MemoryQueue>) -> Vec<Begun> {
        worker.pull(false);
        match worker.pulled().await {
            Pulled::Tasks(begun) => begun,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_planner_hears_of_all_work_before_the_last_acknowledgement() {
        test(async {
            let queue = queue(&[70_000_000, 9_000_000]).await;
            let mut reports = queue.reports(&run()).await.unwrap();
            let mut worker = worker(&queue);
            let begun = tasks(&mut worker).await;
            assert_eq!(begun.len(), 2, "one of each class");
            worker.sent(80_000_000);
            for begun in &begun {
                worker.stored(begun.number, 0, (1, begun.items[0].size));
            }
            worker.finish().await;
            assert_eq!(queue.counts(&run()).await.unwrap(), Counts::default());
            let Some(Report::Stat(stat)) = reports.recv().await else { panic!("no report") };
            assert_eq!((stat.done, stat.sent_bytes, stat.held), ((2, 79_000_000), 80_000_000, (0, 0)));
        });
    }

    #[test]
    fn questions_to_the_store_are_no_progress_and_sessions_add_up() {
        test(async {
            let mut worker = worker(&queue(&[]).await);
            let mut sent = |bytes| {
                worker.sent(bytes);
                worker.stat().sent_bytes
            };
            assert_eq!(sent(PROGRESS_BYTES - 1), 0);
            assert_eq!(sent(PROGRESS_BYTES), PROGRESS_BYTES);
            assert_eq!(sent(PROGRESS_BYTES + 500), PROGRESS_BYTES);
            assert_eq!(sent(0), PROGRESS_BYTES, "a new session");
            assert_eq!(sent(PROGRESS_BYTES), 2 * PROGRESS_BYTES);
        });
    }

    #[test]
    fn a_request_for_tasks_that_is_aborted_counts_as_failed() {
        test(async {
            let queue = queue(&[9_000_000]).await;
            let mut worker = worker(&queue);
            worker.pull(false);
            worker.requests.abort_all();
            assert_eq!(worker.pulled().await, Pulled::Failed);
            assert!(worker.is_idle());
            tokio::time::sleep(FAILED_PAUSE).await;
            assert_eq!(tasks(&mut worker).await.len(), 1);
        });
    }

    #[test]
    fn a_worker_on_which_all_fails_leaves_tasks_to_others() {
        let (mut failures, now) = (Failures::default(), Instant::now());
        let pause = |failures: &Failures| failures.until.map(|until| until - now);
        (0..8).for_each(|task| failures.count(task / 2, now));
        assert_eq!((failures.count, pause(&failures)), (4, None), "two files of each task");
        (4..8).for_each(|task| failures.count(task, now));
        assert_eq!(pause(&failures), Some(FAILURES_PAUSE.0));
        (8..11).for_each(|task| failures.count(task, now));
        assert_eq!(pause(&failures), Some(8 * FAILURES_PAUSE.0));
        (11..100).for_each(|task| failures.count(task, now));
        assert_eq!(pause(&failures), Some(FAILURES_PAUSE.1));
        test(async {
            let queue = queue(&[1, 2, 3]).await;
            let mut worker = worker(&queue);
            let begun = tasks(&mut worker).await;
            (100..108).for_each(|task| worker.failures.count(task, Instant::now()));
            worker.pull(false);
            assert!(worker.pulling.is_none(), "it pauses");
            worker.stored(begun[0].number, 0, (1, 1));
            worker.next_pull = Instant::now();
            worker.pull(false);
            assert!(worker.pulling.is_some());
        });
    }

    #[test]
    fn a_worker_that_ends_gives_back_what_it_holds_and_what_was_on_its_way() {
        test(async {
            let queue = queue(&[9_000_000, 9_000_001, 9_000_002]).await;
            let mut worker = worker(&queue);
            let begun = tasks(&mut worker).await;
            worker.stored(begun[0].number, 0, (1, 9_000_002));
            worker.pull(false);
            worker.drain();
            assert!(!worker.is_idle());
            worker.finish().await;
            worker.give_back().await;
            assert_eq!(queue.counts(&run()).await.unwrap(), Counts { waiting: 2, held: 0 });
            assert!(worker.is_idle());
        });
    }

    #[test]
    fn a_worker_begins_anew_when_the_runtime_of_its_requests_has_ended() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (queue, outer) = (runtime().block_on(queue(&[9_000_000])), runtime());
        let mut worker = worker(&queue);
        let session = runtime();
        session.block_on(async { worker.pull(false) });
        drop(session);
        outer.block_on(async {
            worker.give_back().await;
            assert_eq!(tasks(&mut worker).await.len(), 1);
        });
    }

    #[test]
    fn a_worker_goes_on_when_the_queue_answers_or_its_run_is_opened_again() {
        test(async {
            let queue = queue(&[]).await;
            let connection = queue.connect();
            let book = Book::new(name(), Duration::from_secs(60));
            let mut worker = WorkerQueue::new(connection.clone(), run(), name(), book, |_| {});
            worker.pull(true);
            assert!(worker.is_idle(), "a paused worker asks for nothing");
            worker.pull(false);
            assert_eq!(worker.pulled().await, Pulled::Nothing);
            tokio::time::sleep(EMPTY_PAUSE).await;
            connection.cut(true);
            worker.pull(false);
            assert_eq!(worker.pulled().await, Pulled::Failed);
            connection.cut(false);
            queue.close(&run()).await.unwrap();
            tokio::time::sleep(FAILED_PAUSE).await;
            worker.pull(false);
            assert_eq!(worker.pulled().await, Pulled::Failed);
            queue.open(&run()).await.unwrap();
            let item = Item { path: "pool/again".to_owned(), size: 9_000_000, sha256: Sha256::of(b"") };
            queue.publish(&tasks::pack(&run(), 2, vec![item])).await.unwrap();
            tokio::time::sleep(MISSING_PAUSE).await;
            assert_eq!(tasks(&mut worker).await.len(), 1);
        });
    }
}
