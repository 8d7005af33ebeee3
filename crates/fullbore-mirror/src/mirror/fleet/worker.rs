//! A worker of one run: it pulls tasks, has their files fetched and stored, and tells the queue what is done.
//!
//! Tasks and their ends are the affair of [`WorkerQueue`], and connections that of [`Slots`]; here are files, leases and
//! the store. All requests are tasks of their own, so that a queue that does not answer holds up nothing: what is held is
//! fetched and stored meanwhile.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fullbore_engine::run::events::{Event, Events};
use fullbore_fleet::book::{Begun, Book, TaskNumber};
use fullbore_fleet::budget::{Activity, Slots};
use fullbore_fleet::message::{HostCount, Item, Kind, Run};
use fullbore_fleet::names::WorkerId;
use fullbore_fleet::queue::Queue;
use fullbore_fleet::worker::{DRAIN_MAX, LAST_REQUESTS_MAX, Pulled, REPORT_EVERY, TICK, WorkerQueue};
use fullbore_s3::WHOLE_BYTES_MAX;
use fullbore_wire::fetch::Watch;
use fullbore_wire::rate_limit::RateLimit;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::budgets::{self, Connections};
use super::judgement::Clocks;
use crate::mirror::work::feed::{Ended, Feed, Outcome, Outcomes};
use crate::mirror::work::session::Seen;

/// Time without a task after which a worker gives its connections back, and time until it asks for them again.
const IDLE_UNTIL_REST: Duration = Duration::from_secs(5);
const REST: Duration = Duration::from_secs(10);

/// Time without a stored file after which the store is asked whether it is there, and the limit of the answer.
const STORE_SILENCE: Duration = Duration::from_secs(5);
const STORE_ANSWER: Duration = Duration::from_secs(5);

/// Tasks that fail one after the other until the worker begins anew, with fresh connections to all mirrors.
const FAILED_IN_A_ROW_MAX: u32 = 3;

/// Why a worker refuses a large file.
const NO_ROOM: &str = "no room in the worker's temporary directory: free some, or choose another one with --scratch";

/// Mirrors in a report.
const HOSTS_REPORTED_MAX: usize = 256;

/// What a worker is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Work.
    Work,
    /// Pull nothing more; store what is held, and give the rest back.
    Drain,
    /// End at once: the run has ended.
    End,
}

/// Why a worker of a run has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Why {
    /// It was told to.
    Told,
    /// Everything fails: another session may be luckier.
    Failing,
    /// The queue refuses what this worker needs: its words.
    Denied(String),
}

/// What a worker has done in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Done {
    /// Files and bytes that it has stored.
    pub stored: (u64, u64),
    /// Files and bytes that somebody else had stored meanwhile.
    pub present: (u64, u64),
    /// Files that it could neither fetch nor store, by path, with the last reason.
    pub failed: BTreeMap<String, String>,
}

/// Most failed files that are remembered for the report.
const FAILED_KEPT: usize = 200;

impl Done {
    /// Remembers a failed file, unless there are too many.
    pub fn note_failed(&mut self, path: &str, reason: &str) {
        if self.failed.len() < FAILED_KEPT || self.failed.contains_key(path) {
            self.failed.insert(path.to_owned(), reason.to_owned());
        }
    }
}

/// The limit that the sampler of the session names at present.
#[derive(Clone, Default)]
pub(super) struct Present(Arc<Mutex<Option<String>>>);

impl Present {
    fn now(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Events for Present {
    fn emit(&mut self, event: Event) {
        if let Event::Progress(progress) = event {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = progress.limit;
        }
    }
}

/// The answers to requests.
enum Answer {
    Told,
    Seen(u64, Result<Seen, String>),
    Slots(budgets::Answer),
    Store { answers: bool },
}

/// A file of a task that is on its way.
struct OnTheWay {
    task: TaskNumber,
    place: usize,
    item: Item,
}

/// A worker of one run. It outlives its sessions.
pub(super) struct Worker<Q> {
    queue: Q,
    run: Run,
    name: WorkerId,
    tasks: WorkerQueue<Q>,
    slots: Slots,
    /// What it has done.
    pub done: Done,
    clocks: Clocks,
    received: BTreeMap<String, (u64, u64)>,
    /// Files of the present session, by their numbers there.
    files: HashMap<u64, OnTheWay>,
}

/// What a worker has of its session.
pub(super) struct OfSession {
    /// The connections to the mirrors.
    pub watch: Watch,
    /// The mirrors' names in the budget, in the order of the session.
    pub names: Vec<String>,
    /// The sampler's present limit.
    pub present: Present,
    /// The limit of the session's rate, and that of this worker's own settings.
    pub rate_limit: Option<Arc<RateLimit>>,
    /// See `rate_limit`.
    pub own_rate_bytes_per_s: Option<u64>,
    /// Whether the store limits the session, by its clocks so far.
    pub store_limits: Box<dyn Fn() -> bool + Send>,
    /// Bytes that the store has acknowledged in this session.
    pub acknowledged_bytes: Box<dyn Fn() -> u64 + Send>,
    /// Whether the temporary directory has room for a file of this size.
    pub has_room: Box<dyn Fn(u64) -> bool + Send>,
}

/// One session while it works.
struct Shift<'w, Q> {
    worker: &'w mut Worker<Q>,
    feed: Feed,
    session: OfSession,
    connections: Connections,
    jobs: JoinSet<Answer>,
    next_tag: u64,
    /// Since when it has no task and none came.
    idle_since: Option<Instant>,
    rests_until: Option<Instant>,
    stored_at: Instant,
    is_asking_store: bool,
    is_store_away: bool,
    failed_in_a_row: u32,
    last_report: Instant,
    last_slots: Instant,
    last_tick: Instant,
    avoided: BTreeSet<String>,
    is_slow_store: bool,
}

impl<Q: Queue> Worker<Q> {
    /// A worker of this run. `patience` is the time without a byte after which the client of the store gives up;
    /// `connections_max` limits the connections to each mirror, whatever the budget is.
    pub(super) fn new(
        queue: Q,
        run: Run,
        name: WorkerId,
        patience: Duration,
        connections_max: usize,
        notes: mpsc::UnboundedSender<String>,
    ) -> Worker<Q> {
        let most = u32::try_from(connections_max).unwrap_or(u32::MAX);
        let budget = |host: &fullbore_wire::url::Url| {
            let host = host.host_and_port();
            let budget = run.budgets.of(&host).min(most);
            (host, budget)
        };
        let slots = Slots::new(&name, run.hosts.iter().map(budget));
        let book = Book::new(name.clone(), patience).only(run.id.clone(), |kind| *kind == Kind::Fetch);
        let warn = move |line| drop(notes.send(line));
        Worker {
            tasks: WorkerQueue::new(queue.clone(), run.id.clone(), name.clone(), book, warn),
            queue,
            run,
            name,
            slots,
            done: Done::default(),
            clocks: Clocks::default(),
            received: BTreeMap::new(),
            files: HashMap::new(),
        }
    }

    /// Works in a session until it is told to end, or everything fails.
    pub(super) async fn work(
        &mut self,
        feed: Feed,
        outcomes: &mut Outcomes,
        session: OfSession,
        mut order: watch::Receiver<Order>,
    ) -> Why {
        // None before a slot is leased.
        (0..).zip(&session.names).for_each(|(host, _)| session.watch.allow(host, 0));
        feed.take_moved();
        feed.verified_files();
        self.files.clear();
        let connections = Connections::new(session.watch.clone(), session.names.clone());
        let now = Instant::now();
        let mut shift = Shift {
            worker: self,
            feed,
            session,
            connections,
            jobs: JoinSet::new(),
            next_tag: 0,
            idle_since: None,
            rests_until: None,
            stored_at: now,
            is_asking_store: false,
            is_store_away: false,
            failed_in_a_row: 0,
            last_report: now,
            last_slots: now.checked_sub(REPORT_EVERY).unwrap_or(now),
            last_tick: now,
            avoided: BTreeSet::new(),
            is_slow_store: false,
        };
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut drain_until, mut denied) = (None, None);
        let why = loop {
            tokio::select! {
                biased;
                Some(ended) = outcomes.recv() => shift.ended(ended),
                Some(answer) = shift.jobs.join_next() => {
                    if let Ok(answer) = answer {
                        shift.answered(answer).await;
                    }
                }
                pulled = shift.worker.tasks.pulled() => {
                    // A queue that has given tasks may have others.
                    shift.session.watch.expect_more(matches!(pulled, Pulled::Tasks(_)));
                    match pulled {
                        Pulled::Tasks(begun) => shift.begin(begun).await,
                        Pulled::Denied(why) => denied = Some(why),
                        Pulled::Nothing | Pulled::Failed => {}
                    }
                }
                // Without anybody who could give orders, the run has ended.
                changed = order.changed() => if changed.is_err() { return Why::Told },
                _ = tick.tick() => shift.tick(),
            }
            match *order.borrow_and_update() {
                // The run is over, and so are its tasks.
                Order::End => return Why::Told,
                Order::Drain => {
                    let until = *drain_until.get_or_insert_with(|| Instant::now() + DRAIN_MAX);
                    shift.worker.tasks.drain();
                    shift.session.watch.expect_more(false);
                    if shift.worker.tasks.is_idle() || Instant::now() >= until {
                        break Why::Told;
                    }
                }
                Order::Work if denied.is_some() => break Why::Denied(denied.take().unwrap_or_default()),
                Order::Work if shift.failed_in_a_row >= FAILED_IN_A_ROW_MAX && !shift.is_store_away => {
                    break Why::Failing;
                }
                Order::Work => shift.pull(),
            }
        };
        shift.finish().await;
        why
    }

    /// Takes the last outcomes of a session that has failed, and waits for requests in progress, at most
    /// [`LAST_REQUESTS_MAX`]. So files that the store has do not count as failed. It runs in the session's runtime, which
    /// runs these requests.
    pub(super) async fn wind_up(&mut self, outcomes: &mut Outcomes) {
        while let Ok(Ended { tag, outcome }) = outcomes.try_recv() {
            if let Some(file) = self.files.remove(&tag) {
                self.ended(file, outcome);
            }
        }
        self.tasks.finish().await;
    }

    fn ended(&mut self, OnTheWay { task, place, item }: OnTheWay, outcome: Outcome) {
        match outcome {
            Outcome::Stored => {
                self.tasks.stored(task, place, (1, item.size));
                self.done.stored = self.tasks.done;
            }
            Outcome::Present => {
                self.done.present.0 += 1;
                self.done.present.1 += item.size;
                self.tasks.present(task, place);
            }
            Outcome::GivenUp(refusal) => {
                self.done.note_failed(&item.path, &refusal.reason);
                let host = refusal.faults.first().map(|(host, _)| host.clone());
                match refusal.is_lost {
                    true => self.tasks.lost(task, place, &refusal.reason),
                    false => self.tasks.failed(task, place, host, &refusal.reason),
                }
            }
        }
    }

    /// Gives back what it holds, and its slots.
    pub(super) async fn give_back(&mut self) {
        self.tasks.give_back().await;
        self.free_slots().await;
    }

    /// As [`Worker::give_back`], after a failure of its own: its tasks count as failed.
    pub(super) async fn fail(&mut self, fault: &str) {
        self.tasks.fail(fault).await;
        self.free_slots().await;
    }

    async fn free_slots(&mut self) {
        for step in self.slots.free_all() {
            if let fullbore_fleet::budget::Step::Free { host, number, revision } = step {
                let _ = self.queue.remove(&fullbore_fleet::names::lease_key(&host, number), revision).await;
            }
        }
    }
}

impl<Q: Queue> Shift<'_, Q> {
    fn ended(&mut self, Ended { tag, outcome }: Ended) {
        let Some(file) = self.worker.files.remove(&tag) else { return };
        match &outcome {
            Outcome::Stored | Outcome::Present => self.is_good(),
            Outcome::GivenUp(refusal) => self.failed_in_a_row += u32::from(!refusal.is_lost),
        }
        self.worker.ended(file, outcome);
    }

    fn is_good(&mut self) {
        (self.stored_at, self.is_store_away, self.failed_in_a_row) = (Instant::now(), false, 0);
    }

    /// Waits for requests in progress, and takes nothing more.
    async fn finish(&mut self) {
        let slots = async {
            while let Some(answer) = self.jobs.join_next().await {
                if let Ok(Answer::Slots(answer)) = answer {
                    // What was leased is to be freed.
                    budgets::apply(&mut self.worker.slots, self.worker.tasks.now(), answer);
                }
            }
        };
        let _ = tokio::time::timeout(LAST_REQUESTS_MAX, slots).await;
        self.worker.tasks.finish().await;
    }

    async fn answered(&mut self, answer: Answer) {
        let now = self.worker.tasks.now();
        match answer {
            Answer::Told => {}
            Answer::Seen(tag, seen) => self.seen(tag, seen).await,
            Answer::Slots(answer) => {
                if let budgets::Answer::Listed { sharers, .. } = &answer {
                    self.share_rate(sharers.of_run);
                }
                budgets::apply(&mut self.worker.slots, now, answer);
                // A look that found free slots is acted on at once.
                self.look_after_slots();
            }
            Answer::Store { answers } => {
                self.is_asking_store = false;
                self.is_store_away = !answers;
                if answers {
                    self.stored_at = Instant::now();
                }
            }
        }
    }

    /// All workers together keep the rate of the run.
    fn share_rate(&self, workers: usize) {
        let share = self.worker.run.rate_bytes_per_s.map(|rate| (rate / workers.max(1) as u64).max(1));
        let rate = [share, self.session.own_rate_bytes_per_s].into_iter().flatten().min();
        if let (Some(limit), Some(rate)) = (&self.session.rate_limit, rate)
            && limit.bytes_per_s() != rate
        {
            limit.set(rate);
        }
    }

    /// Begins tasks.
    async fn begin(&mut self, begun: Vec<Begun>) {
        (self.idle_since, self.rests_until) = (None, None);
        for begun in begun {
            self.begin_one(begun).await;
        }
    }

    async fn begin_one(&mut self, Begun { number, items, asks_store, .. }: Begun) {
        let mut fetched = Vec::with_capacity(items.len());
        for (place, item) in items.into_iter().enumerate() {
            // Smaller files are in memory.
            if item.size > WHOLE_BYTES_MAX && !(self.session.has_room)(item.size) {
                self.worker.done.note_failed(&item.path, NO_ROOM);
                self.worker.tasks.failed(number, place, None, NO_ROOM);
                continue;
            }
            let tag = self.next_tag;
            self.next_tag += 1;
            if asks_store {
                let (feed, item) = (self.feed.clone(), item.clone());
                self.jobs.spawn(async move {
                    let seen = feed.look(&item).await.map_err(|error| error.to_string());
                    Answer::Seen(tag, seen)
                });
            } else {
                fetched.push((tag, item.clone()));
            }
            self.worker.files.insert(tag, OnTheWay { task: number, place, item });
        }
        // If the session has ended, its caller gives everything back.
        let _ = self.feed.add(fetched).await;
    }

    async fn seen(&mut self, tag: u64, seen: Result<Seen, String>) {
        let (fault, is_lost) = match seen {
            Ok(Seen::Absent) => {
                if let Some(file) = self.worker.files.get(&tag) {
                    let _ = self.feed.add([(tag, file.item.clone())]).await;
                }
                return;
            }
            Ok(Seen::Present) => {
                self.ended(Ended { tag, outcome: Outcome::Present });
                return;
            }
            // Only the planner may replace it, so no other delivery helps.
            Ok(Seen::Other) => ("the store has other content there".to_owned(), true),
            Err(error) => (format!("cannot ask the store: {error}"), false),
        };
        let Some(OnTheWay { task, place, item }) = self.worker.files.remove(&tag) else { return };
        self.worker.done.note_failed(&item.path, &fault);
        match is_lost {
            true => self.worker.tasks.lost(task, place, &fault),
            false => self.worker.tasks.failed(task, place, None, &fault),
        }
    }

    fn tick(&mut self) {
        let now = self.worker.tasks.now();
        for tag in self.feed.take_moved() {
            if let Some(file) = self.worker.files.get(&tag) {
                self.worker.tasks.moved(file.task);
            }
        }
        for (tag, sent_bytes) in self.feed.verified_files() {
            if let Some(file) = self.worker.files.get(&tag) {
                self.worker.tasks.fetched(file.task, file.place, sent_bytes);
            }
        }
        self.worker.tasks.sent((self.session.acknowledged_bytes)());
        self.worker.tasks.tick();
        let elapsed = self.last_tick.elapsed();
        self.last_tick = Instant::now();
        self.count_time(now, elapsed);
        self.worker.tasks.clocks = self.worker.clocks.in_ms();
        if self.last_slots.elapsed() >= self.worker.slots.tick_interval() {
            self.look_after_slots();
        }
        if self.last_report.elapsed() >= REPORT_EVERY {
            self.last_report = Instant::now();
            self.ask_store();
            self.is_slow_store = (self.session.store_limits)();
            self.count_hosts();
            self.worker.tasks.report();
        }
    }

    /// Counts what this time went into.
    fn count_time(&mut self, now: Duration, elapsed: Duration) {
        let has_tasks = self.worker.tasks.load().tasks > 0;
        let is_connected = self.worker.slots.allowed_in_all(now) > 0;
        let present = self.session.present.now();
        let clocks = &mut self.worker.clocks;
        clocks.wall += elapsed;
        if self.is_store_away || has_tasks && self.is_slow_store {
            clocks.store += elapsed;
        } else if !is_connected && self.rests_until.is_none() {
            clocks.slots += elapsed;
        } else if !has_tasks {
            clocks.idle += elapsed;
        } else {
            match present.as_deref() {
                Some(limit) if limit.starts_with("mirror ") => clocks.mirrors += elapsed,
                Some(_) => clocks.own += elapsed,
                None => {}
            }
        }
    }

    fn count_hosts(&mut self) {
        for (host, name) in self.session.watch.hosts().iter().zip(&self.session.names) {
            let seen = (host.totals.received_bytes, host.totals.faults + host.totals.missing);
            self.worker.received.insert(name.clone(), seen);
        }
        let counts = self.worker.received.iter().take(HOSTS_REPORTED_MAX);
        self.worker.tasks.hosts =
            counts.map(|(host, (bytes, faults))| HostCount(host.clone(), *bytes, *faults)).collect();
        let pauses = self.session.watch.to_avoid();
        for (name, pause) in self.session.names.iter().zip(pauses) {
            match pause {
                Some(pause) if self.avoided.insert(name.clone()) => {
                    let (queue, worker, name) = (self.worker.queue.clone(), self.worker.name.clone(), name.clone());
                    self.jobs.spawn(async move {
                        let _ = budgets::avoid(&queue, &worker, &name, pause).await;
                        Answer::Told
                    });
                }
                Some(_) => {}
                None => drop(self.avoided.remove(name)),
            }
        }
    }

    fn look_after_slots(&mut self) {
        self.last_slots = Instant::now();
        let now = self.worker.tasks.now();
        let activity = match self.rests_until {
            Some(until) if Instant::now() < until => Activity::Nothing,
            // A slot that is lost closes its connection after the answer in progress, so nothing is fetched twice.
            _ => Activity::BetweenFiles,
        };
        let steps = self.worker.slots.tick(now, activity);
        self.connections.allow(&self.worker.slots, now);
        for step in steps {
            let allowed = match &step {
                fullbore_fleet::budget::Step::Free { host, .. } => self.worker.slots.allowed(now, host) as usize,
                _ => 0,
            };
            let (queue, name, run) = (self.worker.queue.clone(), self.worker.name.clone(), self.worker.run.clone());
            let connections = self.connections.clone();
            self.jobs.spawn(async move {
                Answer::Slots(budgets::perform(queue, name, run, step, now, connections, allowed).await)
            });
        }
    }

    /// Asks the store whether it is there, if it has confirmed nothing for a while: nothing is pulled while it is away.
    fn ask_store(&mut self) {
        let has_tasks = self.worker.tasks.load().tasks > 0;
        if !has_tasks && !self.is_store_away {
            self.stored_at = Instant::now();
        }
        if self.is_asking_store || self.stored_at.elapsed() < STORE_SILENCE {
            return;
        }
        let Some(item) = self.worker.files.values().next().map(|file| file.item.clone()) else {
            self.is_store_away = false;
            return;
        };
        self.is_asking_store = true;
        let feed = self.feed.clone();
        self.jobs.spawn(async move {
            let asked = tokio::time::timeout(STORE_ANSWER, feed.look(&item)).await;
            Answer::Store { answers: matches!(asked, Ok(Ok(_))) }
        });
    }

    fn pull(&mut self) {
        let now = self.worker.tasks.now();
        let is_paused = self.is_store_away || self.worker.slots.allowed_in_all(now) == 0;
        if self.worker.tasks.load().tasks > 0 {
            self.idle_since = None;
        } else if !is_paused {
            let since = *self.idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() >= IDLE_UNTIL_REST {
                self.idle_since = None;
                self.rests_until = Some(Instant::now() + REST);
            }
        }
        self.worker.tasks.pull(is_paused);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_files_are_remembered_up_to_a_bound() {
        let mut done = Done::default();
        for number in 0..=FAILED_KEPT {
            done.note_failed(&format!("pool/{number}"), "404");
        }
        done.note_failed("pool/0", "timeout");
        assert_eq!(done.failed.len(), FAILED_KEPT);
        assert_eq!(done.failed["pool/0"], "timeout");
    }
}
