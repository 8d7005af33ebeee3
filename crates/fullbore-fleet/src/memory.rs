//! A queue in memory under a virtual clock, with faults on request: for tests and simulations.
//!
//! It behaves as JetStream was observed to, even where that is awkward. It accepts the acknowledgement of a lapsed
//! delivery, drops a message whose id it has seen, and delivers a task once more that is given back in a lapsed
//! delivery. On request it loses requests and answers, delivers copies, changes the order, and forgets its deliveries
//! or all its data.
//!
//! All futures are ready at once: [`pull`](Queue::pull) returns what there is, without waiting.

mod state;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use crate::message::{Report, Task};
use crate::names::{Class, RunId, WorkerId};
use crate::queue::{Counts, Delivery, Entry, Held, Published, Queue, QueueError, REPORTS_WAITING_MAX};
use state::State;

/// Permanent faults of the queue.
#[derive(Debug, Clone, Copy, Default)]
pub struct Faults {
    /// Share of requests without an answer, from 0 to 1. Half of them have their effect.
    pub loss: f64,
    /// Number of deliveries of each task, to any worker; 0 and 1 mean one.
    pub copies: u32,
    /// Whether tasks come in random order.
    pub is_reordered: bool,
}

/// A connection to a queue in memory. A clone is another handle of the same connection.
#[derive(Clone)]
pub struct MemoryQueue {
    state: Arc<Mutex<State>>,
    is_cut: Arc<AtomicBool>,
}

impl MemoryQueue {
    /// A queue at time zero. The seed decides what is lost.
    pub fn new(seed: u64) -> MemoryQueue {
        MemoryQueue { state: Arc::new(Mutex::new(State::new(seed))), is_cut: Arc::default() }
    }

    /// Another connection to the same queue.
    pub fn connect(&self) -> MemoryQueue {
        MemoryQueue { state: self.state.clone(), is_cut: Arc::default() }
    }

    /// Sets the clock of the queue. It never goes back.
    pub fn advance_to(&self, now: Duration) {
        self.state().advance_to(now);
    }

    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Sets the capacity of the queue, in bytes of messages.
    pub fn set_capacity(&self, bytes: u64) {
        self.state().capacity_bytes = bytes;
    }

    /// Cuts this connection, or restores it.
    pub fn cut(&self, is_cut: bool) {
        self.is_cut.store(is_cut, Ordering::Relaxed);
    }

    /// Freezes the queue for all, or thaws it. Time goes on for leases and deliveries.
    pub fn freeze(&self, is_frozen: bool) {
        self.state().is_frozen = is_frozen;
    }

    /// Forgets all deliveries, like a killed server: all tasks come again at once.
    pub fn forget_deliveries(&self) {
        self.state().forget_deliveries();
    }

    /// Loses all data, like a server with an empty disk.
    pub fn wipe(&self) {
        self.state().wipe();
    }

    /// Loses the waiting tasks without reporting it. Their ids stay known, so repeated publications are dropped.
    pub fn hide_tasks(&self) {
        self.state().hide_tasks();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a request with an answer.
    fn ask<T>(&self, request: impl FnOnce(&mut State) -> Result<T, QueueError>) -> Result<T, QueueError> {
        let unreachable = |why: &str| Err(QueueError::Unreachable(why.to_owned()));
        if self.is_cut.load(Ordering::Relaxed) {
            return unreachable("the connection is cut");
        }
        let mut state = self.state();
        if state.is_frozen {
            return unreachable("frozen");
        }
        let (is_lost, has_effect) = state.draw_loss();
        if is_lost && !has_effect {
            return unreachable("the request is lost");
        }
        let answer = request(&mut state);
        if is_lost { unreachable("the answer is lost") } else { answer }
    }

    /// Sends a message without an answer.
    fn send(&self, request: impl FnOnce(&mut State)) -> Result<(), QueueError> {
        let sent = self.ask(|state| {
            request(state);
            Ok(())
        });
        // A client does not learn that a server froze or a message was lost.
        if self.is_cut.load(Ordering::Relaxed) { sent } else { Ok(()) }
    }
}

impl Queue for MemoryQueue {
    async fn open(&self, run: &RunId) -> Result<(), QueueError> {
        self.ask(|state| {
            state.open(run);
            Ok(())
        })
    }

    async fn close(&self, run: &RunId) -> Result<(), QueueError> {
        self.ask(|state| {
            state.close(run);
            Ok(())
        })
    }

    async fn publish(&self, tasks: &[Task]) -> Result<Published, QueueError> {
        self.ask(|state| state.publish(tasks))
    }

    async fn counts(&self, run: &RunId) -> Result<Counts, QueueError> {
        self.ask(|state| state.counts(run))
    }

    async fn purge(&self, run: &RunId) -> Result<(), QueueError> {
        self.ask(|state| state.purge(run))
    }

    async fn reports(&self, run: &RunId) -> Result<mpsc::Receiver<Report>, QueueError> {
        let (sender, receiver) = mpsc::channel(REPORTS_WAITING_MAX);
        self.ask(|state| {
            state.listen(run, sender);
            Ok(receiver)
        })
    }

    async fn pull(&self, run: &RunId, class: Class, max: usize, _wait: Duration) -> Result<Vec<Held>, QueueError> {
        self.ask(|state| state.pull(run, class, max))
    }

    async fn extend(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.send(|state| state.extend(delivery))
    }

    async fn acknowledge(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.ask(|state| {
            state.remove_task(delivery);
            Ok(())
        })
    }

    async fn give_back(&self, delivery: &Delivery, delay: Duration) -> Result<(), QueueError> {
        self.send(|state| state.give_back(delivery, delay))
    }

    async fn discard(&self, delivery: &Delivery) -> Result<(), QueueError> {
        self.send(|state| state.remove_task(delivery))
    }

    async fn report(&self, run: &RunId, _worker: &WorkerId, report: &Report) -> Result<(), QueueError> {
        self.send(|state| state.report(run, report))
    }

    async fn create(&self, key: &str, value: Bytes, ttl: Duration) -> Result<Option<u64>, QueueError> {
        self.ask(|state| Ok(state.write_key(key, value, None, ttl)))
    }

    async fn renew(&self, key: &str, value: Bytes, revision: u64, ttl: Duration) -> Result<Option<u64>, QueueError> {
        self.ask(|state| Ok(state.write_key(key, value, Some(revision), ttl)))
    }

    async fn remove(&self, key: &str, revision: u64) -> Result<(), QueueError> {
        self.ask(|state| {
            state.remove_key(key, revision);
            Ok(())
        })
    }

    async fn list(&self, prefix: &str) -> Result<Vec<Entry>, QueueError> {
        self.ask(|state| Ok(state.keys(prefix)))
    }
}

#[cfg(test)]
mod tests;
