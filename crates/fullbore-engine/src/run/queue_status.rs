//! What a queue has at one moment, as `--json` has it.

use serde::{Deserialize, Serialize};

use crate::units;

/// Runs and workers of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueStatus {
    /// Announced runs.
    pub runs: Vec<QueueRun>,
    /// Live workers.
    pub workers: Vec<QueueWorker>,
}

/// What workers of a run do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QueueRunKind {
    /// They fetch files from mirrors, and store them.
    #[default]
    Mirror,
    /// They store files that they can read.
    Put,
}

/// An announced run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueRun {
    /// Its name.
    pub run: String,
    /// What its workers do.
    pub kind: QueueRunKind,
    /// Where the files go, `s3://BUCKET/PREFIX`.
    pub to: String,
    /// The round that is being worked on.
    pub round: u32,
    /// The planner's machine.
    pub planner: String,
    /// The planner's version of fullbore.
    pub version: String,
    /// The mirrors that have the files.
    pub mirrors: Vec<QueueMirror>,
    /// Tasks that no worker has. Without it, this user may not ask.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_tasks: Option<u64>,
    /// Tasks that workers have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_tasks: Option<u64>,
}

/// A mirror of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueMirror {
    /// Host and port.
    pub host: String,
    /// Connections that workers have leased.
    pub connections: u32,
    /// Connections that all workers together may have.
    pub connections_max: u32,
    /// Whether all workers avoid it for the moment.
    pub avoided: bool,
}

/// A live worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueWorker {
    /// Its name.
    pub worker: String,
    /// Its machine.
    pub host: String,
    /// Its version of fullbore.
    pub version: String,
    /// The runs that it serves.
    pub runs: Vec<String>,
    /// Connections to mirrors that it has leased.
    pub connections: u32,
}

impl QueueStatus {
    /// For people, line by line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.runs.is_empty() {
            lines.push("no run".to_owned());
        }
        for run in &self.runs {
            let tasks = match (run.waiting_tasks, run.held_tasks) {
                (Some(waiting), Some(held)) => format!(", {waiting} tasks wait, {held} are held"),
                _ => String::new(),
            };
            let from = match run.kind {
                QueueRunKind::Mirror => units::several(run.mirrors.len() as u64, "mirror", "mirrors"),
                QueueRunKind::Put => "a directory".to_owned(),
            };
            let QueueRun { run: name, to, round, planner, version, .. } = run;
            lines.push(format!(
                "run {name}: {to} from {from}, round {round}, planner {planner} (fullbore {version}){tasks}"
            ));
            for QueueMirror { host, connections, connections_max, avoided } in &run.mirrors {
                let avoided = if *avoided { ", avoided by all" } else { "" };
                lines.push(format!("  mirror {host}: {connections} of {connections_max} connections{avoided}"));
            }
        }
        if self.workers.is_empty() {
            lines.push("no worker".to_owned());
        }
        for QueueWorker { worker, host, version, runs, connections } in &self.workers {
            let runs = if runs.is_empty() { "no run".to_owned() } else { runs.join(", ") };
            let connections = units::several((*connections).into(), "connection", "connections");
            lines.push(format!("worker {worker} on {host} (fullbore {version}): {runs}, {connections}"));
        }
        lines
    }
}
