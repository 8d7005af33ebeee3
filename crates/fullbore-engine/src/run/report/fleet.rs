//! What a run of many machines did, worker by worker.

use serde::{Deserialize, Serialize};

/// The part of a run that workers of a queue did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FleetReport {
    /// Name of the run in the queue.
    pub run: String,
    /// Number of tasks that were published, in all rounds.
    pub tasks: u64,
    /// Number of tasks that the queue had at the end.
    pub pending_tasks: u64,
    /// Number of rounds: more than one if the store lacked files when the queue had no task left, or was lost.
    pub rounds: u32,
    /// Files and bytes that workers stored.
    pub files: u64,
    /// See `files`.
    pub bytes: u64,
    /// Files that were left to the planner.
    pub left_files: u64,
    /// Tasks that failed, and were given to a worker again.
    pub redelivered: u64,
    /// Connections that were leased at most at one time.
    pub slots_most: u64,
    /// Connections that the budgets of all mirrors allow.
    pub slots: u64,
    /// The workers, in order of their names.
    pub workers: Vec<WorkerReport>,
}

/// The lane of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WorkerReport {
    /// Its name.
    pub worker: String,
    /// Number of files that it stored.
    pub files: u64,
    /// Sum of their sizes.
    pub bytes: u64,
    /// Number of bytes that it received from mirrors.
    pub received_bytes: u64,
    /// Number of files that it reported as not fetched or not stored; some of them more than once.
    pub faults: u64,
    /// Milliseconds from the planner's start until it was first heard of.
    pub joined_ms: u64,
    /// Time in which it had no connection to a mirror, because others had all of them.
    pub waited_for_slots_ms: u64,
    /// Time in which the store took no more, or did not answer.
    pub waited_for_store_ms: u64,
    /// Time in which the queue had no task for it.
    pub idle_ms: u64,
    /// Whether it had not been heard of for half a minute at the end.
    pub is_gone: bool,
    /// Milliseconds between two points of `stored_bytes`.
    pub interval_ms: u64,
    /// Bytes that it had stored, from the planner's start on.
    pub stored_bytes: Vec<u64>,
}
