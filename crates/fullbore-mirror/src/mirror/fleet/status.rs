//! `fullbore work tls://HOST:4222 --status`: runs, workers and connections of a queue.

use std::collections::BTreeMap;

use fullbore_engine::run::error::CommandError;
use fullbore_engine::units;
use fullbore_fleet::message::Run;
use fullbore_fleet::names::{
    BAD_KEYS, LEASE_KEYS, RUN_KEYS, RunId, WORKER_KEYS, WorkerId, parse_bad_key, parse_lease_key,
};
use fullbore_fleet::queue::{Counts, Entry, Queue, QueueError};
use fullbore_fleet::settings::NatsSettings;

use super::connection;
use super::keys::Card;

/// What a queue has at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Status {
    /// Announced runs, with the tasks that the queue has of each, if this user may ask for that.
    pub runs: Vec<(Run, Option<Counts>)>,
    /// Live workers.
    pub workers: Vec<(WorkerId, Card)>,
    /// Leased connections of each mirror, by worker.
    pub slots: BTreeMap<String, BTreeMap<String, u32>>,
    /// Mirrors that the whole fleet avoids for the moment.
    pub avoided: Vec<String>,
}

/// Asks a queue.
///
/// # Errors
/// Settings or credentials that cannot be used; a queue that does not answer.
pub fn status(settings: &NatsSettings) -> Result<Status, CommandError> {
    let connection = connection::connect(settings)?;
    connection.runtime.block_on(ask(&connection.queue)).map_err(|error| connection::failed(&error))
}

async fn ask<Q: Queue>(queue: &Q) -> Result<Status, QueueError> {
    let mut status = Status::default();
    for entry in keys(queue, RUN_KEYS).await? {
        let Ok(run) = Run::parse(&entry.value) else { continue };
        let counts = counts(queue, &run.id).await;
        status.runs.push((run, counts));
    }
    status.workers = keys(queue, WORKER_KEYS).await?.iter().filter_map(Card::read).collect();
    for entry in keys(queue, LEASE_KEYS).await? {
        let Some((host, _)) = parse_lease_key(&entry.key) else { continue };
        let worker = std::str::from_utf8(&entry.value).ok().and_then(|name| WorkerId::parse(name).ok());
        let worker = worker.map_or_else(|| "unknown".to_owned(), |worker| worker.to_string());
        *status.slots.entry(host).or_default().entry(worker).or_default() += 1;
    }
    status.avoided = keys(queue, BAD_KEYS).await?.iter().filter_map(|entry| parse_bad_key(&entry.key)).collect();
    Ok(status)
}

async fn keys<Q: Queue>(queue: &Q, prefix: &str) -> Result<Vec<Entry>, QueueError> {
    match queue.list(prefix).await {
        // Nobody has used this queue yet.
        Err(QueueError::Missing(_)) => Ok(Vec::new()),
        other => other,
    }
}

/// Only planners may ask for it.
async fn counts<Q: Queue>(queue: &Q, run: &RunId) -> Option<Counts> {
    queue.counts(run).await.ok()
}

impl Status {
    /// For people, line by line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.runs.is_empty() {
            lines.push("no run".to_owned());
        }
        for (run, counts) in &self.runs {
            let tasks = match counts {
                Some(Counts { waiting, held }) => format!(", {waiting} tasks wait, {held} are held"),
                None => String::new(),
            };
            lines.push(format!(
                "run {}: {} from {}, round {}, planner {} (fullbore {}){tasks}",
                run.id,
                run.to,
                units::several(run.hosts.len() as u64, "mirror", "mirrors"),
                run.round,
                run.planner,
                run.fullbore,
            ));
            for host in &run.hosts {
                let name = host.host_and_port();
                let held: u32 = self.slots.get(&name).into_iter().flat_map(BTreeMap::values).sum();
                let avoided = if self.avoided.contains(&name) { ", avoided by all" } else { "" };
                lines.push(format!("  mirror {name}: {held} of {} connections{avoided}", run.budgets.of(&name)));
            }
        }
        if self.workers.is_empty() {
            lines.push("no worker".to_owned());
        }
        for (worker, card) in &self.workers {
            let held: u32 = self.slots.values().filter_map(|slots| slots.get(worker.as_str())).sum();
            let runs = if card.runs.is_empty() { "no run".to_owned() } else { card.runs.join(", ") };
            lines.push(format!(
                "worker {worker} on {} (fullbore {}): {runs}, {}",
                card.host,
                card.fullbore,
                units::several(held.into(), "connection", "connections"),
            ));
        }
        lines
    }
}
