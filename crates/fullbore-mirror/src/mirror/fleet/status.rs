//! `fullbore work tls://HOST:4222 --status`: runs, workers and connections of a queue.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::{Event, Events};
use fullbore_engine::run::queue_status::{QueueMirror, QueueRun, QueueRunKind, QueueStatus, QueueWorker};
use fullbore_engine::run::report::{self, Report, Summary};
use fullbore_fleet::message::Run;
use fullbore_fleet::names::{BAD_KEYS, LEASE_KEYS, RUN_KEYS, WORKER_KEYS, WorkerId, parse_bad_key, parse_lease_key};
use fullbore_fleet::queue::{Counts, Entry, Queue, QueueError};
use fullbore_fleet::settings::NatsSettings;

use super::connection;
use super::keys::Card;

/// Asks a queue, and tells what it has.
///
/// # Errors
/// Settings or credentials that cannot be used; a queue that does not answer.
pub fn run(settings: &NatsSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let began = Instant::now();
    events.emit(Event::started("status", settings.url.as_str()));
    let connection = connection::connect(settings)?;
    let status = connection.runtime.block_on(ask(&connection.queue)).map_err(|error| connection::failed(&error))?;
    events.emit(Event::Queue(status));
    let mut summary =
        Summary { command: "status".to_owned(), started_unix_s: report::began(Duration::ZERO), ..Summary::default() };
    summary.duration_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
    Ok(Report { summary, ..Report::default() })
}

async fn ask<Q: Queue>(queue: &Q) -> Result<QueueStatus, QueueError> {
    let mut runs = Vec::new();
    for entry in keys(queue, RUN_KEYS).await? {
        let Ok(run) = Run::parse(&entry.value) else { continue };
        // Only planners may ask for it.
        let counts = queue.counts(&run.id).await.ok();
        runs.push((run, counts));
    }
    let workers: Vec<(WorkerId, Card)> = keys(queue, WORKER_KEYS).await?.iter().filter_map(Card::read).collect();
    // By mirror, and by worker.
    let (mut of_mirror, mut of_worker) = (BTreeMap::<String, u32>::new(), BTreeMap::<Vec<u8>, u32>::new());
    for entry in keys(queue, LEASE_KEYS).await? {
        let Some((host, _)) = parse_lease_key(&entry.key) else { continue };
        *of_mirror.entry(host).or_default() += 1;
        *of_worker.entry(entry.value.to_vec()).or_default() += 1;
    }
    let avoided: BTreeSet<String> =
        keys(queue, BAD_KEYS).await?.iter().filter_map(|entry| parse_bad_key(&entry.key)).collect();
    let mirror = |run: &Run, host: String| QueueMirror {
        connections: of_mirror.get(&host).copied().unwrap_or_default(),
        connections_max: run.budgets.of(&host),
        avoided: avoided.contains(&host),
        host,
    };
    let run = |(run, counts): (Run, Option<Counts>)| QueueRun {
        run: run.id.to_string(),
        kind: if run.put.is_some() { QueueRunKind::Put } else { QueueRunKind::Mirror },
        to: run.to.to_string(),
        round: run.round,
        mirrors: run.hosts.iter().map(|host| mirror(&run, host.host_and_port())).collect(),
        waiting_tasks: counts.map(|counts| counts.waiting),
        held_tasks: counts.map(|counts| counts.held),
        planner: run.planner,
        version: run.fullbore,
    };
    let worker = |(worker, card): (WorkerId, Card)| QueueWorker {
        connections: of_worker.get(worker.as_str().as_bytes()).copied().unwrap_or_default(),
        worker: worker.to_string(),
        host: card.host,
        version: card.fullbore,
        runs: card.runs,
    };
    Ok(QueueStatus { runs: runs.into_iter().map(run).collect(), workers: workers.into_iter().map(worker).collect() })
}

async fn keys<Q: Queue>(queue: &Q, prefix: &str) -> Result<Vec<Entry>, QueueError> {
    match queue.list(prefix).await {
        // Nobody has used this queue yet.
        Err(QueueError::Missing(_)) => Ok(Vec::new()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use fullbore_fleet::memory::MemoryQueue;
    use fullbore_fleet::names::{bad_key, lease_key, run_key, worker_key};

    use super::*;

    const RUN: &str = r#"{"v":1,"id":"9c1f","kind":"mirror","to":"s3://bucket/debian","planner":"p1","fullbore":"0.9",
        "hosts":["https://a/debian","https://b/debian"],"budget":{"*":4},"round":2}"#;

    #[test]
    fn a_status_has_runs_mirrors_workers_and_their_connections() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let queue = MemoryQueue::new(1);
            assert_eq!(ask(&queue).await.unwrap(), QueueStatus::default());
            let run = Run::parse(RUN.as_bytes()).unwrap();
            let worker = WorkerId::parse("w7").unwrap();
            let card = r#"{"host":"m7","fullbore":"0.8","runs":["9c1f"]}"#;
            for (key, value) in [
                (run_key(&run.id), RUN),
                (worker_key(&worker), card),
                (lease_key("a:443", 0), "w7"),
                (lease_key("a:443", 3), "w7"),
                (bad_key("b:443"), "w7"),
            ] {
                queue.create(&key, Bytes::from(value), Duration::from_secs(60)).await.unwrap();
            }
            let status = ask(&queue).await.unwrap();
            // No planner has opened the run, so nobody counts its tasks.
            assert_eq!(
                status.lines(),
                [
                    "run 9c1f: s3://bucket/debian from 2 mirrors, round 2, planner p1 (fullbore 0.9)",
                    "  mirror a:443: 2 of 4 connections",
                    "  mirror b:443: 0 of 4 connections, avoided by all",
                    "worker w7 on m7 (fullbore 0.8): 9c1f, 2 connections",
                ]
            );
            queue.open(&run.id).await.unwrap();
            let run = ask(&queue).await.unwrap().runs.remove(0);
            assert_eq!((run.waiting_tasks, run.held_tasks), (Some(0), Some(0)));
        });
    }
}
