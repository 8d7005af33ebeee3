//! Report of a run on many machines, worker by worker.

use serde::{Deserialize, Serialize};

/// Part of a run that the workers of a queue did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct FleetReport {
    /// Name of the run in the queue.
    pub run: String,
    /// Number of tasks that were published, in all rounds.
    pub tasks: u64,
    /// Number of tasks left in the queue at the end.
    pub pending_tasks: u64,
    /// Number of rounds. More than one if the store lacked files when the queue was empty, or if the queue was lost.
    pub rounds: u32,
    /// Number of files that workers stored.
    pub files: u64,
    /// Number of bytes that workers stored.
    pub bytes: u64,
    /// Number of files that were left to the planner.
    pub left_files: u64,
    /// Number of tasks that failed and were assigned again.
    pub redelivered: u64,
    /// Highest number of connections leased at one time.
    pub slots_most: u64,
    /// Number of connections that the budgets of all mirrors allow.
    pub slots: u64,
    /// Workers in order of their names.
    pub workers: Vec<WorkerReport>,
}

/// Figures of one worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct WorkerReport {
    /// Name of the worker.
    pub worker: String,
    /// Number of files that it stored.
    pub files: u64,
    /// Sum of the sizes of these files, in bytes.
    pub bytes: u64,
    /// Number of bytes that it received from mirrors.
    pub received_bytes: u64,
    /// Number of failed fetches or stores that the worker reported; a file may count more than once.
    pub faults: u64,
    /// Milliseconds from the planner's start to the worker's first report.
    pub joined_ms: u64,
    /// Time without a connection to a mirror because other workers had leased all of them, in milliseconds.
    pub waited_for_slots_ms: u64,
    /// Time in which the store accepted nothing or did not answer, in milliseconds.
    pub waited_for_store_ms: u64,
    /// Time in which the queue had no task for the worker, in milliseconds.
    pub idle_ms: u64,
    /// Whether the worker had been silent for half a minute at the end.
    pub is_gone: bool,
    /// Milliseconds between two points of `stored_bytes`.
    pub interval_ms: u64,
    /// Bytes stored so far, at each point from the planner's start on.
    pub stored_bytes: Vec<u64>,
}
