//! The data of a queue in memory, and its clock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use super::Faults;
use crate::message::{Report, Task};
use crate::names::{Class, RunId};
use crate::queue::{ACK_WAIT, Counts, DUPLICATE_WINDOW, Delivery, Entry, Held, Published, QUEUE_BYTES_MAX, QueueError};
use crate::random::Random;

/// Bytes of a message beside its content: subject, id, and the store's own.
const OVERHEAD_BYTES: u64 = 150;

/// State of a task. Each time is the end of that state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Waiting,
    Delayed(Duration),
    Held(Duration),
}

struct Message {
    run: RunId,
    class: Class,
    body: Bytes,
    place: Place,
    deliveries: u32,
}

impl Message {
    fn bytes(&self) -> u64 {
        self.body.len() as u64 + OVERHEAD_BYTES
    }
}

struct Key {
    value: Bytes,
    revision: u64,
    expires: Duration,
}

#[derive(Default)]
struct OpenRun {
    /// Number of the run's opening, among all openings.
    opening: u64,
    waiting: [VecDeque<u64>; 2],
    counts: Counts,
}

pub(super) struct State {
    now: Duration,
    random: Random,
    pub(super) faults: Faults,
    pub(super) capacity_bytes: u64,
    pub(super) is_frozen: bool,
    runs: BTreeMap<RunId, OpenRun>,
    messages: HashMap<u64, Message>,
    next_message: u64,
    bytes: u64,
    /// Number of openings of runs so far.
    opened: u64,
    /// Known message ids with the opening of their run, and until when they count.
    ids: HashMap<(u64, String), Duration>,
    /// Ends of deliveries and delays; outdated ones are skipped.
    alarms: BinaryHeap<Reverse<(Duration, u64)>>,
    keys: BTreeMap<String, Key>,
    next_revision: u64,
    listeners: Vec<(RunId, mpsc::Sender<Report>)>,
}

impl State {
    pub(super) fn new(seed: u64) -> State {
        State {
            now: Duration::ZERO,
            random: Random::new(seed),
            faults: Faults::default(),
            capacity_bytes: QUEUE_BYTES_MAX,
            is_frozen: false,
            runs: BTreeMap::new(),
            messages: HashMap::new(),
            next_message: 0,
            bytes: 0,
            opened: 0,
            ids: HashMap::new(),
            alarms: BinaryHeap::new(),
            keys: BTreeMap::new(),
            next_revision: 1,
            listeners: Vec::new(),
        }
    }

    /// Draws whether this request gets no answer, and whether it has its effect nevertheless.
    pub(super) fn draw_loss(&mut self) -> (bool, bool) {
        let is_lost = self.faults.loss > 0.0 && self.random.fraction() < self.faults.loss;
        (is_lost, is_lost && self.random.below(2) == 0)
    }

    pub(super) fn advance_to(&mut self, now: Duration) {
        self.now = self.now.max(now);
        while let Some(Reverse((time, number))) = self.alarms.peek().copied()
            && time <= self.now
        {
            self.alarms.pop();
            let place = self.messages.get(&number).map(|message| message.place);
            if place == Some(Place::Held(time)) || place == Some(Place::Delayed(time)) {
                self.wait_again(number);
            }
        }
    }

    /// Moves a task; keeps the counts of its run.
    fn place(&mut self, number: u64, place: Place) {
        let Some(message) = self.messages.get_mut(&number) else { return };
        let before = std::mem::replace(&mut message.place, place);
        let Some(run) = self.runs.get_mut(&message.run) else { return };
        for (place, sign) in [(before, -1), (place, 1)] {
            let count = if matches!(place, Place::Held(_)) { &mut run.counts.held } else { &mut run.counts.waiting };
            *count = count.saturating_add_signed(sign);
        }
        if let Place::Held(time) | Place::Delayed(time) = place {
            self.alarms.push(Reverse((time, number)));
        }
    }

    /// Makes a task wait again, ahead of those that were never delivered.
    fn wait_again(&mut self, number: u64) {
        self.place(number, Place::Waiting);
        if let Some(message) = self.messages.get(&number)
            && let Some(run) = self.runs.get_mut(&message.run)
        {
            run.waiting[message.class as usize].push_front(number);
        }
    }

    pub(super) fn open(&mut self, run: &RunId) {
        self.opened += 1;
        let opening = self.opened;
        self.runs.entry(run.clone()).or_insert_with(|| OpenRun { opening, ..OpenRun::default() });
    }

    pub(super) fn close(&mut self, run: &RunId) {
        let _ = self.purge(run);
        self.runs.remove(run);
    }

    fn run(&self, run: &RunId) -> Result<&OpenRun, QueueError> {
        self.runs.get(run).ok_or_else(|| QueueError::Missing(run.to_string()))
    }

    pub(super) fn publish(&mut self, tasks: &[Task]) -> Result<Published, QueueError> {
        let mut published = Published { accepted: 0, is_full: false };
        for task in tasks {
            let id = (self.run(&task.run)?.opening, task.id());
            if self.ids.get(&id).is_some_and(|until| *until > self.now) {
                published.accepted += 1;
                continue;
            }
            let body = Bytes::from(task.to_bytes());
            let (run, class) = (task.run.clone(), task.class());
            let message = Message { run, class, body, place: Place::Waiting, deliveries: 0 };
            if self.bytes + message.bytes() > self.capacity_bytes {
                published.is_full = true;
                break;
            }
            self.bytes += message.bytes();
            self.ids.insert(id, self.now + DUPLICATE_WINDOW);
            let number = self.next_message;
            self.next_message += 1;
            if let Some(run) = self.runs.get_mut(&task.run) {
                run.waiting[message.class as usize].push_back(number);
                run.counts.waiting += 1;
            }
            self.messages.insert(number, message);
            published.accepted += 1;
        }
        Ok(published)
    }

    pub(super) fn counts(&self, run: &RunId) -> Result<Counts, QueueError> {
        Ok(self.run(run)?.counts)
    }

    pub(super) fn purge(&mut self, run: &RunId) -> Result<(), QueueError> {
        self.run(run)?;
        let of_run = self.messages.values().filter(|message| message.run == *run);
        let bytes: u64 = of_run.map(Message::bytes).sum();
        self.bytes -= bytes;
        self.messages.retain(|_, message| message.run != *run);
        let opening = self.run(run)?.opening;
        self.runs.insert(run.clone(), OpenRun { opening, ..OpenRun::default() });
        Ok(())
    }

    pub(super) fn pull(&mut self, run: &RunId, class: Class, max: usize) -> Result<Vec<Held>, QueueError> {
        self.run(run)?;
        let mut held = Vec::new();
        while held.len() < max {
            let Some(open) = self.runs.get_mut(run) else { break };
            let waiting = &mut open.waiting[class as usize];
            if self.faults.is_reordered && !waiting.is_empty() {
                let at = self.random.below(waiting.len());
                waiting.swap(0, at);
            }
            let Some(number) = waiting.pop_front() else { break };
            let Some(message) = self.messages.get_mut(&number) else { continue };
            message.deliveries += 1;
            let deliveries = message.deliveries;
            let delivery = Delivery(format!("{number}"));
            held.push(Held { message: message.body.clone(), deliveries, delivery });
            if deliveries < self.faults.copies {
                waiting.push_back(number);
            }
            self.place(number, Place::Held(self.now + ACK_WAIT));
        }
        Ok(held)
    }

    fn number(delivery: &Delivery) -> u64 {
        delivery.0.parse().unwrap_or(u64::MAX)
    }

    pub(super) fn extend(&mut self, delivery: &Delivery) {
        let number = State::number(delivery);
        if self.messages.get(&number).is_some_and(|message| matches!(message.place, Place::Held(_))) {
            self.place(number, Place::Held(self.now + ACK_WAIT));
        }
    }

    pub(super) fn give_back(&mut self, delivery: &Delivery, delay: Duration) {
        let number = State::number(delivery);
        if delay.is_zero() {
            self.wait_again(number);
        } else {
            self.place(number, Place::Delayed(self.now + delay));
        }
    }

    pub(super) fn remove_task(&mut self, delivery: &Delivery) {
        if let Some(message) = self.messages.remove(&State::number(delivery)) {
            self.bytes -= message.bytes();
            if let Some(run) = self.runs.get_mut(&message.run) {
                let is_held = matches!(message.place, Place::Held(_));
                let count = if is_held { &mut run.counts.held } else { &mut run.counts.waiting };
                *count = count.saturating_sub(1);
            }
        }
    }

    pub(super) fn forget_deliveries(&mut self) {
        let mut held: Vec<u64> = self
            .messages
            .iter_mut()
            .filter(|(_, message)| message.place != Place::Waiting)
            .map(|(number, message)| {
                message.deliveries = 0;
                *number
            })
            .collect();
        // A map has no order, and a seed must give the same run each time.
        held.sort_unstable();
        held.into_iter().for_each(|number| self.wait_again(number));
    }

    pub(super) fn wipe(&mut self) {
        self.runs.clear();
        self.messages.clear();
        self.ids.clear();
        self.keys.clear();
        self.bytes = 0;
    }

    pub(super) fn hide_tasks(&mut self) {
        self.messages.clear();
        self.bytes = 0;
        self.runs.values_mut().for_each(|run| *run = OpenRun { opening: run.opening, ..OpenRun::default() });
    }

    pub(super) fn listen(&mut self, run: &RunId, sender: mpsc::Sender<Report>) {
        self.listeners.push((run.clone(), sender));
    }

    pub(super) fn report(&mut self, run: &RunId, report: &Report) {
        self.listeners.retain(|(_, sender)| !sender.is_closed());
        for (_, sender) in self.listeners.iter().filter(|(listened, _)| listened == run) {
            let _ = sender.try_send(report.clone());
        }
    }

    /// Writes a key that does not exist, or one with this revision.
    pub(super) fn write_key(&mut self, key: &str, value: Bytes, revision: Option<u64>, ttl: Duration) -> Option<u64> {
        let current = self.keys.get(key).filter(|key| key.expires > self.now).map(|key| key.revision);
        if current != revision {
            return None;
        }
        let revision = self.next_revision;
        self.next_revision += 1;
        self.keys.insert(key.to_owned(), Key { value, revision, expires: self.now + ttl });
        Some(revision)
    }

    pub(super) fn remove_key(&mut self, key: &str, revision: u64) {
        if self.keys.get(key).is_some_and(|key| key.revision == revision) {
            self.keys.remove(key);
        }
    }

    pub(super) fn keys(&mut self, prefix: &str) -> Vec<Entry> {
        let now = self.now;
        self.keys.retain(|_, key| key.expires > now);
        let found = self.keys.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix));
        let entry = |(name, key): (&String, &Key)| Entry {
            key: name.clone(),
            value: key.value.clone(),
            revision: key.revision,
        };
        found.map(entry).collect()
    }
}
