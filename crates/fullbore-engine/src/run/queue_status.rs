//! State of a queue at one moment, in the form of `--json`.

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

/// Task of the workers of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QueueRunKind {
    /// They fetch files from mirrors and store them.
    #[default]
    Mirror,
    /// They store files that they can read locally.
    Put,
}

/// An announced run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueRun {
    /// Name of the run.
    pub run: String,
    /// Task of its workers.
    pub kind: QueueRunKind,
    /// Destination of the files, `s3://BUCKET/PREFIX`.
    pub to: String,
    /// Number of the present round, from 1.
    pub round: u32,
    /// Name of the planner's machine.
    pub planner: String,
    /// Version of fullbore of the planner.
    pub version: String,
    /// Mirrors that serve the files.
    pub mirrors: Vec<QueueMirror>,
    /// Number of tasks that no worker holds. Absent if this user may not ask for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting_tasks: Option<u64>,
    /// Number of tasks that workers hold.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_tasks: Option<u64>,
}

/// A mirror of a run, with its connections.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueMirror {
    /// Host and port of the mirror.
    pub host: String,
    /// Number of connections that workers have leased.
    pub connections: u32,
    /// Number of connections that all workers together may open.
    pub connections_max: u32,
    /// Whether all workers avoid the mirror at present.
    pub avoided: bool,
}

/// A live worker of a queue.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct QueueWorker {
    /// Name of the worker.
    pub worker: String,
    /// Name of its machine.
    pub host: String,
    /// Version of fullbore of the worker.
    pub version: String,
    /// Names of the runs that it works for.
    pub runs: Vec<String>,
    /// Number of connections to mirrors that it has leased.
    pub connections: u32,
}

impl QueueStatus {
    /// Formats the state for people, one line per run, mirror and worker.
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
