//! The queue of a fleet, as planner and workers see it.
//!
//! The queue only says which worker is busy with which task. What is done, only the store knows: a task may be
//! delivered twice, to two workers at once, or never, and each of these costs time and no data. So an implementation
//! may lose messages, repeat them and reorder them. It must not deliver a task of another run.
//!
//! Beside tasks, a queue has keys with a time to live: leases of connections, live workers, announced runs.

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use thiserror::Error;
use tokio::sync::mpsc;

use crate::message::{Report, Task};
use crate::names::{Class, RunId, WorkerId};

/// Time after which a task that its worker has not extended goes to another worker. After the death of one of four workers,
/// the others run out of their own tasks later. A longer wait would keep them idle at the end of a short run. A live worker
/// whose path to the queue is interrupted for longer goes on, so some bytes are then moved twice.
pub const ACK_WAIT: Duration = Duration::from_secs(10);

/// Time between two extensions of a task, so that two of them may be lost within [`ACK_WAIT`].
pub const EXTEND_INTERVAL: Duration = Duration::from_secs(3);

/// Size of the queue. A planner that finds it full waits, so a run of any size needs no more. 170,000 tasks of 3 kB.
pub const QUEUE_BYTES_MAX: u64 = 512 << 20;

/// Time within which the queue drops a second publication of a task. A planner that was killed publishes the same tasks
/// again after its restart.
pub const DUPLICATE_WINDOW: Duration = Duration::from_secs(3600);

/// Workers that a planner remembers. The messages of others are not counted.
pub const WORKERS_MAX: usize = 10_000;

/// Reports that wait for the planner; later ones are dropped. 100 workers send one each second.
pub const REPORTS_WAITING_MAX: usize = 1000;

/// Why the queue did not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QueueError {
    /// No connection, or no answer in time. What was asked for may have happened.
    #[error("the queue does not answer: {0}")]
    Unreachable(String),
    /// The queue has lost its data, or the run has ended.
    #[error("the queue has no such run: {0}")]
    Missing(String),
    /// The credentials do not allow it.
    #[error("the queue refuses: {0}")]
    Denied(String),
    /// Anything else that the queue reports.
    #[error("the queue reports an error: {0}")]
    Other(String),
}

/// How many tasks of a publication the queue has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Published {
    /// The first tasks of the list that the queue has, among them those that it had before.
    pub accepted: usize,
    /// Whether the queue is full, so that the rest must wait.
    pub is_full: bool,
}

/// Identifies one delivery of a task. A later delivery of the same task has another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Delivery(pub(crate) String);

/// A delivered task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The message: not yet parsed, and untrusted.
    pub message: Bytes,
    /// How often the queue says it has delivered this task; it forgets the number in a crash.
    pub deliveries: u32,
    /// For acknowledgements.
    pub delivery: Delivery,
}

/// Tasks of a run in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Tasks that no worker has.
    pub waiting: u64,
    /// Tasks that workers have.
    pub held: u64,
}

/// A key, as [`Queue::list`] finds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Its value: untrusted.
    pub value: Bytes,
    /// Its revision, with which it can be renewed.
    pub revision: u64,
}

/// A queue of tasks, and keys with a time to live. A clone is another handle of the same connection.
///
/// Every method returns within a few seconds, with or without a result: [`QueueError::Unreachable`] says that it is
/// unknown whether the request had an effect. All requests may be repeated.
pub trait Queue: Clone + Send + Sync + 'static {
    /// How often the connection has been made. Higher than at the last look: the queue may have lost the state of its
    /// deliveries.
    fn connections(&self) -> u64 {
        1
    }

    /// Makes what a run needs; what exists already stays. For planners.
    fn open(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Removes the run's tasks and all that [`open`](Queue::open) made for this run alone. For planners.
    fn close(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Publishes tasks of one run, in order. For planners.
    fn publish(&self, tasks: &[Task]) -> impl Future<Output = Result<Published, QueueError>> + Send;

    /// Tasks of a run in the queue. For planners.
    fn counts(&self, run: &RunId) -> impl Future<Output = Result<Counts, QueueError>> + Send;

    /// Removes all tasks of a run that no worker has acknowledged. For planners.
    fn purge(&self, run: &RunId) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Reports of the run's workers from now on. Some may be lost. For planners.
    fn reports(&self, run: &RunId) -> impl Future<Output = Result<mpsc::Receiver<Report>, QueueError>> + Send;

    /// Takes at most `max` tasks of a class; waits at most `wait` for the first one.
    fn pull(
        &self,
        run: &RunId,
        class: Class,
        max: usize,
        wait: Duration,
    ) -> impl Future<Output = Result<Vec<Held>, QueueError>> + Send;

    /// Says that the task is being worked on, for another [`ACK_WAIT`].
    fn extend(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Says that the store has all files of the task. The queue accepts this of a lapsed delivery too.
    fn acknowledge(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Gives a task back; it is delivered again after `delay`. Never for a lapsed delivery, because another worker may
    /// have the task by now.
    fn give_back(&self, delivery: &Delivery, delay: Duration) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Removes a task that nobody can do. Never for a lapsed delivery.
    fn discard(&self, delivery: &Delivery) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Sends a report; nobody may receive it.
    fn report(
        &self,
        run: &RunId,
        worker: &WorkerId,
        report: &Report,
    ) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// Makes a key that does not exist, and gives its revision; `None` if it exists. It vanishes after `ttl`.
    fn create(
        &self,
        key: &str,
        value: Bytes,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<u64>, QueueError>> + Send;

    /// Renews a key of this revision, and gives its next one; `None` if it has vanished or somebody has changed it.
    fn renew(
        &self,
        key: &str,
        value: Bytes,
        revision: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<Option<u64>, QueueError>> + Send;

    /// Removes a key of this revision; another revision stays.
    fn remove(&self, key: &str, revision: u64) -> impl Future<Output = Result<(), QueueError>> + Send;

    /// The keys that start with `prefix`, which is one of those in [`names`](crate::names).
    fn list(&self, prefix: &str) -> impl Future<Output = Result<Vec<Entry>, QueueError>> + Send;
}
