//! The interface of a fleet's queue, for planner and workers.
//!
//! The queue only tells which worker is busy with which task; only the store knows what is done. A task may be
//! delivered twice, to two workers at once, or never: each of these costs time but no data. So an implementation may
//! lose, repeat and reorder messages. It must not deliver a task of another run.
//!
//! Beside tasks, a queue has keys with a time to live: leases of connections, live workers, announced runs.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::message::{Report, Task};
use crate::names::{Class, RunId, WorkerId};

/// Time after which a task goes to another worker, unless its worker has extended it. If one of four workers dies, the
/// others run out of their own tasks later than this. A longer wait would leave them idle at the end of a short run. A
/// live worker with an interrupted path to the queue continues, so some bytes are transferred twice.
pub const ACK_WAIT: Duration = Duration::from_secs(8);

/// Interval of extensions of a task, so that two of them may be lost within [`ACK_WAIT`].
pub const EXTEND_INTERVAL: Duration = Duration::from_millis(2500);

/// Capacity of the queue in bytes: 170,000 tasks of 3 kB. A planner that finds it full waits, so a run of any size
/// needs no more.
pub const QUEUE_BYTES_MAX: u64 = 512 << 20;

/// Time within which the queue drops a second publication of a task. A planner that was killed publishes the same tasks
/// again after its restart.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(3600);

/// Most workers that a planner remembers. Messages of others are ignored.
pub const WORKERS_MAX: usize = 10_000;

/// Most reports that wait for the planner; later ones are dropped. 100 workers send one each second.
pub const REPORTS_WAITING_MAX: usize = 1000;

/// Why the queue did not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no connection, or no answer in time. The request may have been carried out.
    #[error("the queue does not answer: {0}")]
    Unreachable(String),
    /// The queue has lost its data, or the run has ended.
    #[error("the queue has no such run: {0}")]
    Missing(String),
    /// The credentials do not permit the request.
    #[error("the queue refuses: {0}")]
    Denied(String),
    /// The queue reports another error.
    #[error("the queue reports an error: {0}")]
    Other(String),
}

/// The part of a publication that the queue has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// Number of tasks at the start of the list that the queue has, including those that it had before.
    pub accepted: usize,
    /// Whether the queue is full, so that the rest must wait.
    pub is_full: bool,
}

/// Identifies one delivery of a task. A later delivery of the same task has another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivery(pub(crate) String);

/// A task that was delivered to this worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The message, not yet parsed and untrusted.
    pub message: Bytes,
    /// Number of deliveries of this task, as the queue counts them; it forgets the number in a crash.
    pub deliveries: u32,
    /// Identifies the delivery for an acknowledgement.
    pub delivery: Delivery,
}

/// Number of a run's tasks in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks that no worker holds.
    pub waiting: u64,
    /// Tasks that workers hold.
    pub held: u64,
}

/// A key that [`Queue::list`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Name of the key.
    pub key: String,
    /// Value of the key, which is untrusted.
    pub value: Bytes,
    /// Revision of the key, for renewing or removing it.
    pub revision: u64,
}

/// A queue of tasks, and keys with a time to live. A clone is another handle of the same connection.
///
/// Every method returns within a few seconds, with or without a result. After [`QueueError::Unreachable`] it is unknown
/// whether the request had an effect. All requests may be repeated.
pub trait Queue: Clone + Send + Sync + 'static {
    /// Number of connections made so far. If it has grown, the queue may have lost the state of its deliveries.
    fn connections(&self) -> u64 {
        1
    }

    /// Creates what a run needs; existing parts stay. For planners.
    fn open(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Removes the run's tasks, and everything that [`open`](Queue::open) created for this run alone. For planners.
    fn close(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Publishes tasks of one run, in order. For planners.
    fn publish(&self, tasks: &[Task]) -> impl Future<Output = Result<Published, QueueError>> + Send;

    /// Counts the tasks of a run in the queue. For planners.
    fn counts(&self, run: &RunId) -> impl Future<Output = Result<Counts, QueueError>> + Send;

    /// Removes all tasks of a run that no worker has acknowledged. For planners.
    fn purge(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Receives reports of the run's workers from now on. Some may be lost. For planners.
    fn reports(&self, run: &RunId) -> impl Future<Output = Result<mpsc::Receiver<Report>, QueueError>> + Send;

    /// Takes at most `max` tasks of a class. Waits at most `wait` for the first one.
    fn pull(
        &self,
        run: &RunId,
        class: Class,
        max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Extends a task that is being worked on by another [`ACK_WAIT`].
    fn extend(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Reports that the store has all files of the task. The queue accepts this even for a lapsed delivery.
    fn acknowledge(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Gives a task back, to be delivered again after `delay`. Never for a lapsed delivery, because another worker may
    /// have the task by now.
    fn give_back(&self, delivery: &Delivery, delay: Duration) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Removes a task that no worker can do. Never for a lapsed delivery.
    fn discard(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Sends a report, which may get lost.
    fn report(
        &self,
        run: &RunId,
        worker: &WorkerId,
        report: &Report,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Creates a key that expires after `ttl`. Returns its revision; `None` if the key exists.
    fn create(
        &self,
        key: &str,
        value: Bytes,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<u64>, QueueError>> + Send;

    /// Renews a key that has this revision. Returns the next revision; `None` if the key has expired or changed.
    fn renew(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<u64>, QueueError>> + Send;

    /// Removes a key if it has this revision.
    fn remove(&self, key: &str, revision: u64) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Lists the keys that start with `prefix`, which is one of those in [`names`](crate::names).
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Entry>, QueueError>> + Send;
}
