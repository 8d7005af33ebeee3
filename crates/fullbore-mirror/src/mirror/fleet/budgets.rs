//! The leases of a worker: the steps of [`Slots`](fullbore_fleet::budget::Slots) as requests, and their answers.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use fullbore_fleet::budget::{LEASE_TTL, Slots, Step};
use fullbore_fleet::names::{
    BAD_KEYS, LEASE_KEYS, WORKER_KEYS, WorkerId, bad_key, lease_key, parse_bad_key, parse_lease_key,
};
use fullbore_fleet::queue::{Entry, Queue, QueueError};
use fullbore_wire::fetch::Watch;

/// Time for which a slot is kept until its connection has closed; then its lease is over anyway.
const CLOSING_MAX: Duration = Duration::from_secs(20);

/// How often it is looked whether the connection has closed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The answer to a step. Times are those of the requests.
#[derive(Debug)]
pub enum Answer {
    /// To [`Step::Look`].
    Listed { live: usize, leases: BTreeSet<(String, u32)>, avoided: BTreeSet<String> },
    /// To [`Step::Take`].
    Taken { sent: Duration, host: String, number: u32, revision: Option<u64> },
    /// To [`Step::Renew`].
    Renewed { sent: Duration, host: String, number: u32, revision: Option<u64> },
    /// Nothing was learned.
    Nothing,
}

/// The connections that a worker has now, by the names of mirrors in the budget.
#[derive(Clone)]
pub struct Connections {
    watch: Watch,
    names: Vec<String>,
}

impl Connections {
    /// Of these mirrors, in the order of the fetcher's.
    pub fn new(watch: Watch, names: Vec<String>) -> Connections {
        Connections { watch, names }
    }

    /// Open connections to a mirror. Two addresses may lead to one host.
    fn open_to(&self, name: &str) -> usize {
        let hosts = self.watch.hosts();
        let of_name = hosts.iter().zip(&self.names).filter(|(_, own)| *own == name);
        of_name.map(|(host, _)| host.connections).sum()
    }

    /// Lets the mirrors have as many connections as there are slots.
    pub fn allow(&self, slots: &Slots, now: Duration) {
        for (name, count) in slots.connections(now) {
            let same = || (0..).zip(&self.names).filter(|(_, own)| *own == name).map(|(place, _)| place);
            let (count, shared_by) = (count as usize, same().count().max(1));
            for (turn, place) in same().enumerate() {
                let one_more = usize::from(turn < count % shared_by);
                self.watch.allow(place, count / shared_by + one_more);
            }
        }
    }
}

/// Makes the request of a step.
pub async fn perform<Q: Queue>(
    queue: Q,
    worker: WorkerId,
    step: Step,
    sent: Duration,
    connections: Connections,
    allowed: usize,
) -> Answer {
    let value = || Bytes::from(worker.as_str().to_owned());
    match step {
        Step::Look => look(&queue).await.unwrap_or(Answer::Nothing),
        Step::Take { host, number } => {
            let revision = queue.create(&lease_key(&host, number), value(), LEASE_TTL).await.unwrap_or(None);
            Answer::Taken { sent, host, number, revision }
        }
        Step::Renew { host, number, revision } => {
            match queue.renew(&lease_key(&host, number), value(), revision, LEASE_TTL).await {
                Ok(revision) => Answer::Renewed { sent, host, number, revision },
                // It is unknown whether it was renewed: the next one says.
                Err(_) => Answer::Nothing,
            }
        }
        Step::Free { host, number, revision } => {
            // The next worker must not connect before our connection is closed.
            let began = tokio::time::Instant::now();
            while connections.open_to(&host) > allowed && began.elapsed() < CLOSING_MAX {
                tokio::time::sleep(LOOK_EVERY).await;
            }
            let _ = queue.remove(&lease_key(&host, number), revision).await;
            Answer::Nothing
        }
    }
}

async fn look<Q: Queue>(queue: &Q) -> Result<Answer, QueueError> {
    let (leases, workers, avoided) =
        tokio::try_join!(queue.list(LEASE_KEYS), queue.list(WORKER_KEYS), queue.list(BAD_KEYS))?;
    let leases = leases.iter().filter_map(|entry| parse_lease_key(&entry.key)).collect();
    Ok(Answer::Listed { live: workers.len(), leases, avoided: avoided_hosts(&avoided) })
}

fn avoided_hosts(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().filter_map(|entry| parse_bad_key(&entry.key)).collect()
}

/// Applies an answer; `now` is the time of the answer.
pub fn apply(slots: &mut Slots, now: Duration, answer: Answer) {
    match answer {
        Answer::Listed { live, leases, avoided } => slots.listed(now, live, &leases, &avoided),
        Answer::Taken { sent, host, number, revision } => slots.taken(sent, &host, number, revision),
        Answer::Renewed { sent, host, number, revision } => slots.renewed(sent, &host, number, revision),
        Answer::Nothing => {}
    }
}

/// Tells the fleet to avoid a mirror for a while.
pub async fn avoid<Q: Queue>(queue: &Q, worker: &WorkerId, host: &str, pause: Duration) -> Result<(), QueueError> {
    let value = Bytes::from(worker.as_str().to_owned());
    queue.create(&bad_key(host), value, pause.max(Duration::from_secs(1))).await.map(drop)
}
