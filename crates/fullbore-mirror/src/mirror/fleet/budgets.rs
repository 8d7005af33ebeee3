//! The leases of a worker: the steps of [`Slots`](fullbore_fleet::budget::Slots) as requests, and their answers.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use fullbore_fleet::budget::{LEASE_TTL, Slots, Step};
use fullbore_fleet::message::Run;
use fullbore_fleet::names::{
    BAD_KEYS, LEASE_KEYS, WORKER_KEYS, WorkerId, bad_key, lease_key, parse_bad_key, parse_lease_key,
};
use fullbore_fleet::queue::{Entry, Queue, QueueError};
use fullbore_wire::fetch::Watch;
use fullbore_wire::url::Url;

use super::keys::Card;

/// Time for which a slot is kept until its connection has closed; then its lease is over anyway.
const CLOSING_MAX: Duration = Duration::from_secs(20);

/// How often it is looked whether the connection has closed.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The answer to a step. Times are those of the requests.
#[derive(Debug)]
pub(super) enum Answer {
    /// To [`Step::Look`].
    Listed { sharers: Sharers, leases: BTreeSet<(String, u32)>, avoided: BTreeSet<String> },
    /// To [`Step::Take`].
    Taken { sent: Duration, host: String, number: u32, revision: Option<u64> },
    /// To [`Step::Renew`].
    Renewed { sent: Duration, host: String, number: u32, revision: Option<u64> },
    /// Nothing was learned.
    Nothing,
}

/// The connections that a worker has now, by the names of mirrors in the budget.
#[derive(Clone)]
pub(super) struct Connections {
    watch: Watch,
    names: Vec<String>,
}

impl Connections {
    /// Of these mirrors, in the order of the fetcher's.
    pub(super) fn new(watch: Watch, names: Vec<String>) -> Connections {
        Connections { watch, names }
    }

    /// Open connections to a mirror. Two addresses may lead to one host.
    fn open_to(&self, name: &str) -> usize {
        let hosts = self.watch.hosts();
        let of_name = hosts.iter().zip(&self.names).filter(|(_, own)| *own == name);
        of_name.map(|(host, _)| host.connections).sum()
    }

    /// Lets the mirrors have as many connections as there are slots.
    pub(super) fn allow(&self, slots: &Slots, now: Duration) {
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
pub(super) async fn perform<Q: Queue>(
    queue: Q,
    worker: WorkerId,
    run: Run,
    step: Step,
    sent: Duration,
    connections: Connections,
    allowed: usize,
) -> Answer {
    let value = || Bytes::from(worker.as_str().to_owned());
    match step {
        Step::Look => look(&queue, &worker, &run).await.unwrap_or(Answer::Nothing),
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

async fn look<Q: Queue>(queue: &Q, worker: &WorkerId, run: &Run) -> Result<Answer, QueueError> {
    let (leases, workers, avoided) =
        tokio::try_join!(queue.list(LEASE_KEYS), queue.list(WORKER_KEYS), queue.list(BAD_KEYS))?;
    let sharers = Sharers::of(worker, run, &leases, &workers);
    let leases = leases.iter().filter_map(|entry| parse_lease_key(&entry.key)).collect();
    Ok(Answer::Listed { sharers, leases, avoided: avoided_hosts(&avoided) })
}

/// Numbers of workers, this one among them. Workers that wait for other runs take nothing from this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sharers {
    /// Those that serve this run.
    pub(crate) of_run: usize,
    /// These, and those of other runs that have or want a connection to one of its mirrors.
    pub(crate) of_mirrors: usize,
}

impl Sharers {
    fn of(worker: &WorkerId, run: &Run, leases: &[Entry], workers: &[Entry]) -> Sharers {
        let hosts = hosts_of(run);
        let cards: Vec<(String, Card)> =
            workers.iter().filter_map(Card::read).map(|(worker, card)| (worker.to_string(), card)).collect();
        let those = |wanted: &dyn Fn(&Card) -> bool| -> BTreeSet<String> {
            let named = cards.iter().filter(|(_, card)| wanted(card)).map(|(worker, _)| worker.clone());
            named.chain([worker.to_string()]).collect()
        };
        let of_run = those(&|card| card.runs.iter().any(|id| id == run.id.as_str())).len();
        let mut sharers = those(&|card| card.wants_any(&hosts));
        let is_of_mirror = |entry: &&Entry| parse_lease_key(&entry.key).is_some_and(|(host, _)| hosts.contains(&host));
        let holders = leases.iter().filter(is_of_mirror);
        sharers.extend(holders.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()));
        Sharers { of_run, of_mirrors: sharers.len() }
    }
}

/// The mirrors of a run, as in leases.
pub(super) fn hosts_of(run: &Run) -> BTreeSet<String> {
    run.hosts.iter().map(Url::host_and_port).collect()
}

fn avoided_hosts(entries: &[Entry]) -> BTreeSet<String> {
    entries.iter().filter_map(|entry| parse_bad_key(&entry.key)).collect()
}

/// Applies an answer; `now` is the time of the answer.
pub(super) fn apply(slots: &mut Slots, now: Duration, answer: Answer) {
    match answer {
        Answer::Listed { sharers, leases, avoided } => slots.listed(now, sharers.of_mirrors, &leases, &avoided),
        Answer::Taken { sent, host, number, revision } => slots.taken(sent, &host, number, revision),
        Answer::Renewed { sent, host, number, revision } => slots.renewed(sent, &host, number, revision),
        Answer::Nothing => {}
    }
}

/// Tells the fleet to avoid a mirror for a while.
pub(super) async fn avoid<Q: Queue>(
    queue: &Q,
    worker: &WorkerId,
    host: &str,
    pause: Duration,
) -> Result<(), QueueError> {
    let value = Bytes::from(worker.as_str().to_owned());
    queue.create(&bad_key(host), value, pause.max(Duration::from_secs(1))).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_that_wait_for_other_runs_take_no_share() {
        let run = r#"{"v":1,"id":"9c1f","kind":"mirror","to":"s3://bucket/debian","planner":"p1","fullbore":"0.9",
            "hosts":["https://a/debian"],"budget":{"*":4},"round":1}"#;
        let run = Run::parse(run.as_bytes()).unwrap();
        let entry = |key: &str, value: &str| Entry {
            key: key.to_owned(),
            value: Bytes::copy_from_slice(value.as_bytes()),
            revision: 1,
        };
        let workers = [
            entry("worker.w1", r#"{"runs":["9c1f"],"hosts":["a:443"]}"#),
            entry("worker.w2", r#"{"runs":["7777","9c1f"],"hosts":["a:443","b:443"]}"#),
            entry("worker.w3", r#"{"runs":["7777"],"hosts":["b:443"]}"#),
            entry("worker.w4", r#"{"runs":[],"hosts":[]}"#),
            entry("worker.w5", r#"{"runs":["7777"],"hosts":["b:443"]}"#),
            entry("worker.w7", r#"{"runs":["8888"],"hosts":["a:443"]}"#),
            entry("worker.w8", r#"{"runs":["put"],"hosts":[]}"#),
        ];
        let leases = [entry(&lease_key("a:443", 0), "w3"), entry(&lease_key("b:443", 0), "w5")];
        let of = |own: &str, workers: &[Entry]| Sharers::of(&WorkerId::parse(own).unwrap(), &run, &leases, workers);
        let expected = Sharers { of_run: 2, of_mirrors: 4 };
        assert_eq!(of("w1", &workers), expected, "w3 has a connection, and w7 wants one");
        let earlier = [entry("worker.w9", r#"{"runs":["7777"]}"#)];
        assert_eq!(of("w1", &earlier), Sharers { of_run: 1, of_mirrors: 3 }, "nobody knows what w9 wants");
        assert_eq!(of("w6", &[]), Sharers { of_run: 1, of_mirrors: 2 }, "its own key may not be there yet");
    }
}
