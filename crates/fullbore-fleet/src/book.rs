//! The tasks that a worker holds, and what the queue is told about them.
//!
//! The worker reports events (bytes moved, a file stored, a file failed); the book answers with [`Step`]s for the
//! queue. It reads no clock. Two rules protect other workers:
//!
//! - A task is acknowledged only when the store has confirmed all its files.
//! - A delivery that has lapsed may be another worker's by now. The book still acknowledges it when the work is done,
//!   and never gives it back or discards it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::message::{Fault, Item, Kind, Task};
use crate::names::{Class, RunId, WorkerId};
use crate::pull::Load;
use crate::queue::{ACK_WAIT, Delivery, EXTEND_INTERVAL, Held};

/// Delay before a failed task is delivered again; it doubles with each delivery.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// Deliveries after which a failed task is given up. The planner's next look at the store decides about its files.
const DELIVERIES_MAX: u32 = 5;

/// Deliveries after which no worker takes a task: each one that took it may have been killed by it. Workers that are told to
/// end, or are too old for a task, count here, too.
const TAKEN_MAX: u32 = 100;

/// Time after a reconnection within which a queue may have lost the state of its deliveries. nats-server lost it in 8
/// of 8 kills right after a pull.
const DOUBT_AFTER_RECONNECT: Duration = Duration::from_secs(60);

/// A step that the worker takes for the book.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Call [`Queue::extend`](crate::queue::Queue::extend).
    Extend(Delivery),
    /// Call [`Queue::acknowledge`](crate::queue::Queue::acknowledge). A missing answer counts as success: if the
    /// request was lost, the task comes again, and its files are found in the store.
    Acknowledge(Delivery),
    /// Call [`Queue::give_back`](crate::queue::Queue::give_back) with this delay.
    GiveBack(Delivery, Duration),
    /// Call [`Queue::discard`](crate::queue::Queue::discard).
    Discard(Delivery),
    /// Call [`Queue::report`](crate::queue::Queue::report).
    Report(Fault),
    /// Show this line to the worker's user.
    Warn(String),
}

/// Number of a task in a book; never used twice.
pub type TaskNumber = u64;

/// The work of a task that has just been taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begun {
    /// Number of the task in the book.
    pub number: TaskNumber,
    /// What to do with its files.
    pub kind: Kind,
    /// The files of the task.
    pub items: Vec<Item>,
    /// What each object may replace: see [`Task::replaces`].
    pub replaces: Vec<Option<String>>,
    /// Ask the store for each file before fetching it: another worker may have stored it.
    pub asks_store: bool,
}

/// Progress of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Bytes of it are still missing.
    Incomplete,
    /// It is complete and not stored; this number of bytes is still to be sent.
    Fetched(u64),
    /// It is stored, or has failed.
    Ended,
}

/// Files of a task.
#[derive(Debug, Clone, Copy, Default)]
struct Files {
    count: usize,
    bytes: u64,
}

impl Files {
    fn add(&mut self, bytes: u64) {
        (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
    }

    fn remove(&mut self, bytes: u64) {
        (self.count, self.bytes) = (self.count - 1, self.bytes - bytes);
    }
}

struct Entry {
    task: Task,
    delivery: Delivery,
    deliveries: u32,
    /// Size and class of the task, kept so that the load need not add them up each time.
    bytes: u64,
    class: Class,
    /// Progress of each file, and totals of files and bytes for each state.
    progress: Vec<Progress>,
    incomplete: Files,
    fetched: Files,
    has_failed: bool,
    /// Whether a failure may pass: another delivery may bring that file.
    may_pass: bool,
    /// Time of the last fetched or sent byte, or of the delivery.
    moved: Duration,
    is_begun: bool,
    extended: Duration,
}

impl Entry {
    fn has_lapsed(&self, now: Duration) -> bool {
        now.saturating_sub(self.extended) >= ACK_WAIT
    }

    fn is_given_up(&self) -> bool {
        self.has_failed && !self.may_pass || self.is_last_delivery()
    }

    fn is_last_delivery(&self) -> bool {
        self.deliveries >= DELIVERIES_MAX
    }

    /// Ends a failed task.
    fn end_failed(self) -> Step {
        if self.is_given_up() {
            return Step::Discard(self.delivery);
        }
        let delay = RETRY_DELAY * 2_u32.pow(self.deliveries.saturating_sub(1));
        Step::GiveBack(self.delivery, delay)
    }

    /// Records progress of a file. A file that has ended stays so.
    fn advance(&mut self, item: usize, to: Progress) {
        let (Some(progress), Some(item)) = (self.progress.get_mut(item), self.task.items.get(item)) else { return };
        let bytes = self.task.bytes_of(item);
        match *progress {
            Progress::Incomplete => self.incomplete.remove(bytes),
            Progress::Fetched(unsent) => self.fetched.remove(unsent),
            Progress::Ended => return,
        }
        *progress = to;
        match to {
            Progress::Incomplete => self.incomplete.add(bytes),
            Progress::Fetched(unsent) => self.fetched.add(unsent),
            Progress::Ended => {}
        }
    }

    fn is_incomplete_xl(&self) -> bool {
        self.class == Class::Xl && self.incomplete.count > 0
    }

    fn has_ended(&self) -> bool {
        self.incomplete.count + self.fetched.count == 0
    }
}

/// Whether a task of this kind is one of the run's.
type IsOurs = fn(&Kind) -> bool;

/// The tasks of one worker.
pub struct Book {
    worker: WorkerId,
    /// The run, and a test for the kinds of its tasks; `None` accepts any.
    only: Option<(RunId, IsOurs)>,
    /// Time without a byte after which a file counts as stuck: the time limit of the stores' client.
    patience: Duration,
    entries: BTreeMap<TaskNumber, Entry>,
    next: TaskNumber,
    moved: Duration,
    reconnected: Option<Duration>,
    has_warned_of_skew: bool,
}

impl Book {
    /// Makes an empty book. `patience` is the time without a byte after which the worker lets a task lapse, so that a
    /// stuck call cannot hold it for ever.
    pub fn new(worker: WorkerId, patience: Duration) -> Book {
        Book {
            worker,
            only: None,
            patience,
            entries: BTreeMap::new(),
            next: 0,
            moved: Duration::ZERO,
            reconnected: None,
            has_warned_of_skew: false,
        }
    }

    /// Restricts the book to tasks of this run and these kinds. Others are refused, because the checks of a task depend
    /// on its kind: a task to put files may name paths that only the planner of a mirror writes.
    #[must_use]
    pub fn only(mut self, run: RunId, is_ours: IsOurs) -> Book {
        self.only = Some((run, is_ours));
        self
    }

    /// Whether a task is of another run or kind.
    fn is_foreign(&self, task: &Task) -> bool {
        self.only.as_ref().is_some_and(|(run, is_ours)| *run != task.run || !is_ours(&task.kind))
    }

    /// Enters a delivered task. `now` is the time since the worker's start.
    pub fn take(&mut self, now: Duration, held: Held) -> (Option<Begun>, Vec<Step>) {
        let Held { message, deliveries, delivery } = held;
        let refused = |reason: &str| {
            let fault = Fault::new(self.worker.clone(), None, String::new(), &format!("refused: {reason}"), true);
            let warning = Step::Warn(format!("a task was refused: {reason}"));
            (None, vec![Step::Report(fault), warning, Step::Discard(delivery.clone())])
        };
        let task = match Task::parse(&message) {
            Ok(task) if self.is_foreign(&task) => return refused("it is of another run, or of another kind of work"),
            Ok(task) => task,
            Err(error) if error.is_skew() => {
                // Other workers may be newer.
                let mut steps = vec![Step::GiveBack(delivery, RETRY_DELAY)];
                if !std::mem::replace(&mut self.has_warned_of_skew, true) {
                    steps.push(Step::Warn(format!("a task is left to newer workers: {error}")));
                }
                return (None, steps);
            }
            Err(error) => return refused(&error.to_string()),
        };
        if deliveries > TAKEN_MAX {
            return (None, self.refuse_all(&task, delivery));
        }
        if let Some(entry) = self.entries.values_mut().find(|entry| entry.task == task) {
            // Our own delivery has lapsed, and the task came back to us. The later delivery counts.
            (entry.delivery, entry.deliveries, entry.extended) = (delivery, deliveries, now);
            return (None, Vec::new());
        }
        let is_doubtful = self.reconnected.is_some_and(|time| now.saturating_sub(time) < DOUBT_AFTER_RECONNECT);
        let asks_store = deliveries > 1 || task.round > 1 || is_doubtful;
        let number = self.next;
        self.next += 1;
        let Task { kind, items, replaces, .. } = task.clone();
        let begun = Begun { number, kind, items, replaces, asks_store };
        let progress = vec![Progress::Incomplete; task.items.len()];
        let (bytes, class) = (task.bytes(), task.class());
        let incomplete = Files { count: task.items.len(), bytes };
        let entry = Entry {
            task,
            delivery,
            deliveries,
            bytes,
            class,
            progress,
            incomplete,
            fetched: Files::default(),
            has_failed: false,
            may_pass: false,
            moved: now,
            is_begun: false,
            extended: now,
        };
        self.entries.insert(number, entry);
        (Some(begun), Vec::new())
    }

    /// Ends a task that has been delivered too often.
    fn refuse_all(&self, task: &Task, delivery: Delivery) -> Vec<Step> {
        let why = format!("delivered more than {TAKEN_MAX} times");
        let fault = |item: &Item| Step::Report(Fault::new(self.worker.clone(), None, item.path.clone(), &why, true));
        let mut steps: Vec<Step> = task.items.iter().map(fault).collect();
        steps.push(Step::Discard(delivery));
        steps
    }

    /// The connection to the queue is back after a loss.
    pub fn reconnected(&mut self, now: Duration) {
        self.reconnected = Some(now);
    }

    /// Bytes of a task's file have been fetched or sent.
    pub fn moved(&mut self, now: Duration, number: TaskNumber) {
        self.moved = now;
        if let Some(entry) = self.entries.get_mut(&number) {
            (entry.moved, entry.is_begun) = (now, true);
        }
    }

    /// Bytes have been sent, but it is unknown for which task: all of them count as active.
    pub fn any_moved(&mut self, now: Duration) {
        self.moved = now;
        self.entries.values_mut().for_each(|entry| (entry.moved, entry.is_begun) = (now, true));
    }

    /// A file of a task is complete. `sent_bytes` of it are in the store already; the rest is being sent.
    pub fn fetched(&mut self, number: TaskNumber, item: usize, sent_bytes: u64) {
        let Some(entry) = self.entries.get_mut(&number) else { return };
        let Some(bytes) = entry.task.items.get(item).map(|item| entry.task.bytes_of(item)) else { return };
        entry.advance(item, Progress::Fetched(bytes.saturating_sub(sent_bytes)));
    }

    /// The store has confirmed a file of a task, or had it already.
    pub fn stored(&mut self, now: Duration, number: TaskNumber, item: usize) -> Vec<Step> {
        self.moved(now, number);
        self.close(now, number, item)
    }

    /// A file could not be fetched from any mirror, or not be stored. Another delivery may bring it.
    pub fn failed(
        &mut self,
        now: Duration,
        number: TaskNumber,
        item: usize,
        host: Option<String>,
        fault: &str,
    ) -> Vec<Step> {
        let Some(entry) = self.entries.get_mut(&number) else { return Vec::new() };
        entry.may_pass = true;
        let is_final = entry.is_last_delivery();
        self.report(now, number, item, (host, fault), is_final)
    }

    /// No other delivery brings the file: every mirror has answered and none has it, or the store has other content in its
    /// place. Other files of the task may still be delivered again.
    pub fn lost(&mut self, now: Duration, number: TaskNumber, item: usize, fault: &str) -> Vec<Step> {
        self.report(now, number, item, (None, fault), true)
    }

    /// Reports a failed file. `is_final` says that no other delivery brings it.
    fn report(
        &mut self,
        now: Duration,
        number: TaskNumber,
        item: usize,
        (host, fault): (Option<String>, &str),
        is_final: bool,
    ) -> Vec<Step> {
        let Some(entry) = self.entries.get_mut(&number) else { return Vec::new() };
        let Some(path) = entry.task.items.get(item).map(|item| item.path.clone()) else { return Vec::new() };
        entry.has_failed = true;
        let is_final = is_final && !entry.has_lapsed(now);
        let mut steps = vec![Step::Report(Fault::new(self.worker.clone(), host, path, fault, is_final))];
        steps.extend(self.close(now, number, item));
        steps
    }

    /// Counts a file as stored or failed; after the last one, the task ends.
    fn close(&mut self, now: Duration, number: TaskNumber, item: usize) -> Vec<Step> {
        let Some(entry) = self.entries.get_mut(&number) else { return Vec::new() };
        entry.advance(item, Progress::Ended);
        if !entry.has_ended() {
            return Vec::new();
        }
        let Some(entry) = self.entries.remove(&number) else { return Vec::new() };
        if !entry.has_failed {
            return vec![Step::Acknowledge(entry.delivery)];
        }
        if entry.has_lapsed(now) {
            return Vec::new();
        }
        vec![entry.end_failed()]
    }

    /// Returns the steps that are due, such as extensions of active tasks. Call it at least every second.
    pub fn tick(&mut self, now: Duration) -> Vec<Step> {
        let (patience, any_moved) = (self.patience, self.moved);
        let mut steps = Vec::new();
        for entry in self.entries.values_mut() {
            let is_due = now.saturating_sub(entry.extended) >= EXTEND_INTERVAL && !entry.has_lapsed(now);
            // A task that waits for its turn is active as long as the worker is.
            let moved = if entry.is_begun { entry.moved } else { entry.moved.max(any_moved) };
            if is_due && now.saturating_sub(moved) <= patience {
                entry.extended = now;
                steps.push(Step::Extend(entry.delivery.clone()));
            }
        }
        steps
    }

    /// Gives all tasks back at once, as the worker ends and its time for finishing them is over.
    pub fn give_back(&mut self, now: Duration) -> Vec<Step> {
        let entries = std::mem::take(&mut self.entries).into_values();
        let live = entries.filter(|entry| !entry.has_lapsed(now));
        live.map(|entry| Step::GiveBack(entry.delivery, Duration::ZERO)).collect()
    }

    /// Counts all held tasks as failed, because something of this worker's own broke and would break again. They are
    /// delivered again later, and given up after several deliveries, as after any failure.
    pub fn fail_all(&mut self, now: Duration, fault: &str) -> Vec<Step> {
        let mut steps = Vec::new();
        for mut entry in std::mem::take(&mut self.entries).into_values().filter(|entry| !entry.has_lapsed(now)) {
            entry.may_pass = true;
            let is_final = entry.is_last_delivery();
            let items = entry.task.items.iter().zip(&entry.progress);
            let open = items.filter(|(_, progress)| **progress != Progress::Ended);
            // The planner needs each path of a task that is given up; otherwise one report is enough.
            let reported = if is_final { usize::MAX } else { 1 };
            for (item, _) in open.take(reported) {
                let fault = Fault::new(self.worker.clone(), None, item.path.clone(), fault, is_final);
                steps.push(Step::Report(fault));
            }
            steps.push(entry.end_failed());
        }
        steps
    }

    /// Drops the tasks of earlier rounds or ended runs, on which the worker has stopped its work.
    pub fn forget(&mut self, is_over: impl Fn(&Task) -> bool) {
        self.entries.retain(|_, entry| !is_over(&entry.task));
    }

    /// What the worker holds; the caller adds its rate.
    pub fn load(&self) -> Load {
        Load {
            tasks: self.entries.len(),
            incomplete_tasks: self.entries.values().filter(|entry| entry.incomplete.count > 0).count(),
            incomplete_bytes: self.entries.values().map(|entry| entry.incomplete.bytes).sum(),
            fetched_bytes: self.entries.values().map(|entry| entry.fetched.bytes).sum(),
            largest_bytes: self.entries.values().map(|entry| entry.bytes).max().unwrap_or_default(),
            incomplete_xl_tasks: self.entries.values().filter(|entry| entry.is_incomplete_xl()).count(),
            ..Load::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fullbore_digest::Sha256;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn task(round: u32, files: usize) -> Task {
        let items = (0..files).map(|number| {
            let path = format!("pool/{number}");
            Item { path, size: 1_000, sha256: Sha256::of(b"") }
        });
        let (run, items) = (RunId::parse("9c1f").unwrap(), items.collect());
        Task { kind: Kind::Fetch, run, round, items, replaces: Vec::new() }
    }

    fn held(task: &Task, deliveries: u32, name: &str) -> Held {
        Held { message: Bytes::from(task.to_bytes()), deliveries, delivery: delivery(name) }
    }

    fn delivery(name: &str) -> Delivery {
        Delivery(name.to_owned())
    }

    fn book() -> Book {
        Book::new(WorkerId::parse("w").unwrap(), 20 * SECOND)
    }

    fn begin(book: &mut Book, now: Duration, held: Held) -> Begun {
        let (begun, steps) = book.take(now, held);
        assert_eq!(steps, []);
        begun.unwrap()
    }

    #[test]
    fn a_task_is_acknowledged_when_the_store_has_all_files() {
        let mut book = book();
        let begun = begin(&mut book, SECOND, held(&task(1, 2), 1, "a"));
        assert!(!begun.asks_store);
        let of_tasks = Load { tasks: 1, incomplete_tasks: 1, ..Load::default() };
        let load = Load { incomplete_bytes: 2_000, largest_bytes: 2_000, ..of_tasks };
        assert_eq!(book.load(), load);
        book.fetched(begun.number, 1, 400);
        assert_eq!(book.load(), Load { incomplete_bytes: 1_000, fetched_bytes: 600, ..load });
        assert_eq!(book.stored(SECOND, begun.number, 1), []);
        assert_eq!(book.stored(SECOND, begun.number, 1), [], "the same file again");
        book.fetched(begun.number, 1, 0);
        assert_eq!(book.load(), Load { incomplete_bytes: 1_000, ..load });
        assert_eq!(book.stored(SECOND, begun.number, 0), [Step::Acknowledge(delivery("a"))]);
        assert_eq!(book.load(), Load::default());
        assert_eq!(book.stored(SECOND, begun.number, 0), []);
    }

    /// F1
    #[test]
    fn a_task_that_others_may_have_done_begins_with_a_question_to_the_store() {
        let mut book = book();
        assert!(begin(&mut book, SECOND, held(&task(1, 1), 2, "a")).asks_store, "delivered again");
        assert!(begin(&mut book, SECOND, held(&task(2, 2), 1, "b")).asks_store, "a later round");
        book.reconnected(10 * SECOND);
        assert!(begin(&mut book, 69 * SECOND, held(&task(1, 3), 1, "c")).asks_store, "the queue may have forgotten");
        assert!(!begin(&mut book, 70 * SECOND, held(&task(1, 4), 1, "d")).asks_store);
    }

    #[test]
    fn a_failed_task_is_given_back_later_and_later_and_then_discarded() {
        for (deliveries, step) in [
            (1, Step::GiveBack(delivery("a"), 5 * SECOND)),
            (2, Step::GiveBack(delivery("a"), 10 * SECOND)),
            (4, Step::GiveBack(delivery("a"), 40 * SECOND)),
            (5, Step::Discard(delivery("a"))),
        ] {
            let mut book = book();
            let begun = begin(&mut book, SECOND, held(&task(1, 2), deliveries, "a"));
            let steps = book.failed(SECOND, begun.number, 0, Some("h".to_owned()), "404");
            assert!(matches!(&steps[..], [Step::Report(fault)] if fault.is_final == (deliveries == 5)), "{steps:?}");
            assert_eq!(book.stored(SECOND, begun.number, 1), [step]);
        }
    }

    #[test]
    fn a_lost_file_ends_its_task_unless_another_may_still_come() {
        let mut book = book();
        let begun = begin(&mut book, SECOND, held(&task(1, 2), 1, "a"));
        let steps = book.lost(SECOND, begun.number, 0, "on no mirror");
        assert!(matches!(&steps[..], [Step::Report(fault)] if fault.is_final), "{steps:?}");
        assert_eq!(book.stored(SECOND, begun.number, 1), [Step::Discard(delivery("a"))]);
        let begun = begin(&mut book, SECOND, held(&task(1, 2), 1, "b"));
        book.lost(SECOND, begun.number, 0, "on no mirror");
        let steps = book.failed(SECOND, begun.number, 1, None, "503");
        let again = Step::GiveBack(delivery("b"), 5 * SECOND);
        assert!(matches!(&steps[..], [Step::Report(fault), last] if !fault.is_final && *last == again), "{steps:?}");
    }

    /// F2
    #[test]
    fn a_worker_that_was_frozen_acknowledges_late_and_gives_nothing_back() {
        let mut book = book();
        let first = begin(&mut book, SECOND, held(&task(1, 1), 1, "a"));
        let second = begin(&mut book, SECOND, held(&task(1, 2), 1, "b"));
        let third = begin(&mut book, SECOND, held(&task(1, 3), 5, "c"));
        let now = 60 * SECOND;
        assert_eq!(book.tick(now), [], "what has lapsed is not extended");
        assert_eq!(book.stored(now, first.number, 0), [Step::Acknowledge(delivery("a"))]);
        book.stored(now, second.number, 0);
        let steps = book.failed(now, second.number, 1, None, "timeout");
        assert!(matches!(&steps[..], [Step::Report(_)]), "{steps:?}");
        let steps = [0, 1, 2].map(|item| book.failed(now, third.number, item, None, "404"));
        assert!(steps.iter().flatten().all(|step| matches!(step, Step::Report(fault) if !fault.is_final)), "{steps:?}");
        assert_eq!(book.give_back(now), []);
    }

    #[test]
    fn a_task_that_comes_back_to_its_own_worker_is_no_second_one() {
        let mut book = book();
        let begun = begin(&mut book, SECOND, held(&task(1, 1), 1, "a"));
        assert_eq!(book.take(40 * SECOND, held(&task(1, 1), 2, "b")), (None, vec![]));
        assert_eq!(book.load().tasks, 1);
        assert_eq!(book.stored(41 * SECOND, begun.number, 0), [Step::Acknowledge(delivery("b"))]);
    }

    #[test]
    fn a_task_is_extended_while_its_bytes_move() {
        let mut book = book();
        let begun = begin(&mut book, Duration::ZERO, held(&task(1, 1), 1, "a"));
        assert_eq!(book.tick(2 * SECOND), []);
        book.moved(2 * SECOND, begun.number);
        assert_eq!(book.tick(3 * SECOND), [Step::Extend(delivery("a"))]);
        assert_eq!(book.tick(4 * SECOND), []);
        for number in 2..=7 {
            assert_eq!(book.tick(3 * number * SECOND), [Step::Extend(delivery("a"))]);
        }
        // 20 s without a byte are allowed; then the task lapses.
        assert_eq!(book.tick(24 * SECOND), []);
    }

    #[test]
    fn a_task_that_waits_for_its_turn_is_extended_while_others_move() {
        let mut book = book();
        let first = begin(&mut book, Duration::ZERO, held(&task(1, 1), 1, "a"));
        begin(&mut book, Duration::ZERO, held(&task(1, 2), 1, "b"));
        for number in 1..=20 {
            let now = number * EXTEND_INTERVAL / 2;
            book.moved(now, first.number);
            let extended = book.tick(now).len();
            assert_eq!(extended, if number % 2 == 0 { 2 } else { 0 });
        }
    }

    /// F15
    #[test]
    fn a_task_of_a_later_version_is_left_to_others_with_one_warning() {
        let mut book = book();
        let message = Bytes::from_static(b"{\"v\":2}");
        for number in 0..2 {
            let held = Held { message: message.clone(), deliveries: 1, delivery: delivery("a") };
            let (begun, steps) = book.take(SECOND, held);
            assert_eq!(begun, None);
            assert_eq!(steps[0], Step::GiveBack(delivery("a"), 5 * SECOND));
            assert_eq!(steps.len(), 2 - number, "{steps:?}");
        }
    }

    /// F18
    #[test]
    fn a_hostile_task_is_reported_and_discarded() {
        let mut hostile = task(1, 1);
        hostile.items[0].path = "../../etc/passwd".to_owned();
        let (begun, steps) = book().take(SECOND, held(&hostile, 1, "a"));
        assert_eq!(begun, None);
        let [Step::Report(fault), Step::Warn(_), Step::Discard(discarded)] = &steps[..] else { panic!("{steps:?}") };
        assert_eq!(discarded, &delivery("a"));
        assert!(fault.is_final && fault.fault.contains("`..`"), "{fault:?}");
    }

    /// F18
    #[test]
    fn a_task_of_another_run_or_kind_is_reported_and_discarded() {
        let mut book = book().only(RunId::parse("9c1f").unwrap(), |kind| *kind == Kind::Fetch);
        let put = Task { kind: Kind::Put, ..task(1, 1) };
        let other = Task { run: RunId::parse("9c20").unwrap(), ..task(1, 1) };
        for foreign in [put, other] {
            let (begun, steps) = book.take(SECOND, held(&foreign, 1, "a"));
            assert_eq!(begun, None);
            let [Step::Report(fault), Step::Warn(_), Step::Discard(_)] = &steps[..] else { panic!("{steps:?}") };
            assert!(fault.is_final, "{fault:?}");
        }
        begin(&mut book, SECOND, held(&task(1, 1), 1, "a"));
    }

    #[test]
    fn a_task_that_comes_again_and_again_is_left_to_the_planner() {
        let mut book = book();
        begin(&mut book, SECOND, held(&task(1, 1), TAKEN_MAX, "a"));
        let (begun, steps) = book.take(SECOND, held(&task(1, 2), TAKEN_MAX + 1, "b"));
        assert_eq!(begun, None);
        let [Step::Report(first), Step::Report(other), Step::Discard(_)] = &steps[..] else { panic!("{steps:?}") };
        assert!(first.is_final && other.is_final && first.path != other.path, "{steps:?}");
    }

    #[test]
    fn tasks_of_a_worker_that_breaks_are_given_up_after_some_deliveries() {
        for (deliveries, reports, end) in
            [(1, 1, Step::GiveBack(delivery("a"), 5 * SECOND)), (5, 2, Step::Discard(delivery("a")))]
        {
            let mut book = book();
            let begun = begin(&mut book, SECOND, held(&task(1, 3), deliveries, "a"));
            book.stored(SECOND, begun.number, 0);
            let steps = book.fail_all(2 * SECOND, "no room");
            let (last, faults) = steps.split_last().unwrap();
            assert_eq!((last, faults.len()), (&end, reports));
            let is_right = |step: &Step| matches!(step, Step::Report(fault) if fault.is_final == (deliveries == 5));
            assert!(faults.iter().all(is_right), "{steps:?}");
            assert_eq!(book.load().tasks, 0);
        }
    }

    #[test]
    fn a_worker_that_ends_gives_its_tasks_back_at_once() {
        let mut book = book();
        begin(&mut book, SECOND, held(&task(1, 1), 1, "a"));
        begin(&mut book, SECOND, held(&task(2, 1), 1, "b"));
        book.forget(|task| task.round < 2);
        assert_eq!(book.give_back(2 * SECOND), [Step::GiveBack(delivery("b"), Duration::ZERO)]);
    }
}
