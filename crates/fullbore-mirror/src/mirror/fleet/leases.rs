//! Leases of the planner's own connections, for files that workers have left to it.
//!
//! Workers keep their connections for some seconds after the last task, and workers of other runs use the same mirrors.
//! So the planner leases its connections like a worker.

use std::time::Duration;

use fullbore_fleet::budget::{Activity, LEASE_TTL, Slots, Step};
use fullbore_fleet::names::WorkerId;
use fullbore_fleet::queue::Queue;
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use super::budgets::{self, Answer, Connections};
use super::connection::Connection;
use super::worker_name;

/// How often the planner looks after its leases.
const TICK: Duration = Duration::from_secs(1);

/// Time that requests have to give leases back; then they expire.
const END_MAX: Duration = Duration::from_secs(2);

/// Leases that are renewed until this is dropped.
pub struct Leases(Option<Kept>);

struct Kept {
    connection: Connection,
    over: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Leases {
    /// None are needed.
    pub fn none() -> Leases {
        Leases(None)
    }

    /// Leases connections to the mirrors of these budgets, and lets them be opened.
    pub fn begin(connection: Connection, connections: Connections, budgets: Vec<(String, u32)>) -> Leases {
        let (over, ended) = watch::channel(false);
        let keeping = keep(connection.queue.clone(), worker_name(), connections, budgets, ended);
        let task = connection.runtime.spawn(keeping);
        Leases(Some(Kept { connection, over, task }))
    }
}

impl Drop for Leases {
    fn drop(&mut self) {
        let Some(Kept { connection, over, task }) = self.0.take() else { return };
        over.send_replace(true);
        let _ = connection.runtime.block_on(task);
    }
}

async fn keep<Q: Queue>(
    queue: Q,
    name: WorkerId,
    connections: Connections,
    budgets: Vec<(String, u32)>,
    mut over: watch::Receiver<bool>,
) {
    connections.allow_all_but(|name| budgets.iter().any(|(host, _)| host == name));
    let mut slots = Slots::new(&name, budgets);
    let (began, mut answered) = (Instant::now(), Instant::now());
    let mut jobs = JoinSet::new();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            biased;
            // A closed channel is an end, too.
            _ = over.wait_for(|over| *over) => break,
            Some(answer) = jobs.join_next() => {
                if let Ok(answer) = answer {
                    if !matches!(answer, Answer::Nothing) {
                        answered = Instant::now();
                    }
                    budgets::apply(&mut slots, began.elapsed(), answer);
                }
            }
            _ = tick.tick() => {}
        }
        if answered.elapsed() >= LEASE_TTL {
            // The queue is gone, and so are the leases of workers.
            connections.allow_all_but(|_| false);
            continue;
        }
        let now = began.elapsed();
        let steps = slots.tick(now, Activity::BetweenFiles);
        connections.allow(&slots, now);
        for step in steps {
            let allowed = match &step {
                Step::Free { host, .. } => slots.allowed(now, host) as usize,
                _ => 0,
            };
            jobs.spawn(budgets::perform(queue.clone(), name.clone(), step, now, connections.clone(), allowed));
        }
    }
    let _ = tokio::time::timeout(END_MAX, async {
        // What was leased meanwhile is freed, too.
        while let Some(answer) = jobs.join_next().await {
            if let Ok(answer) = answer {
                budgets::apply(&mut slots, began.elapsed(), answer);
            }
        }
        let (now, steps) = (began.elapsed(), slots.free_all());
        connections.allow(&slots, now);
        for step in steps {
            budgets::perform(queue.clone(), name.clone(), step, now, connections.clone(), 0).await;
        }
    })
    .await;
    connections.allow_all_but(|_| false);
}
