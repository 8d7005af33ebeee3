//! What stands in the keys of a queue beside leases: live workers. For people, and to count them.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use fullbore_fleet::names::{RunId, WORKER_KEYS, WorkerId, worker_key};
use fullbore_fleet::queue::{Entry, Queue, QueueError};
use serde::{Deserialize, Serialize};

/// Time to live of a worker's key, and time between two renewals: two may be lost.
const WORKER_TTL: Duration = Duration::from_secs(30);
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// Most letters of a text of somebody else that is shown.
const TEXT_CHARS_MAX: usize = 100;

/// Most mirrors in a card.
const HOSTS_MAX: usize = 100;

/// What a worker tells of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Card {
    /// Its machine.
    pub host: String,
    /// Its version of fullbore.
    pub fullbore: String,
    /// The runs that it serves.
    pub runs: Vec<String>,
    /// The mirrors of these runs, as in leases. `None` from a worker of an earlier version.
    pub hosts: Option<Vec<String>>,
}

impl Card {
    /// Of this machine.
    pub(super) fn here() -> Card {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        Card { host, fullbore: fullbore_engine::VERSION.to_owned(), ..Card::default() }
    }

    /// Of a worker that serves these runs.
    pub(super) fn serving<'a>(runs: impl IntoIterator<Item = (&'a RunId, &'a BTreeSet<String>)>) -> Card {
        let mut card = Card::here();
        let mut hosts = BTreeSet::new();
        for (run, of_run) in runs {
            card.runs.push(run.to_string());
            hosts.extend(of_run.iter().cloned());
        }
        card.hosts = Some(hosts.into_iter().take(HOSTS_MAX).collect());
        card
    }

    /// Whether it wants connections to one of these mirrors.
    pub(super) fn wants_any(&self, hosts: &BTreeSet<String>) -> bool {
        match &self.hosts {
            Some(own) => own.iter().any(|host| hosts.contains(host)),
            None => !self.runs.is_empty(),
        }
    }

    /// What a key says. It may hold anything.
    pub(super) fn read(entry: &Entry) -> Option<(WorkerId, Card)> {
        let worker = WorkerId::parse(entry.key.strip_prefix(WORKER_KEYS)?).ok()?;
        let mut card: Card = serde_json::from_slice(&entry.value).unwrap_or_default();
        let cut = |text: &mut String| *text = text.chars().take(TEXT_CHARS_MAX).collect();
        cut(&mut card.host);
        cut(&mut card.fullbore);
        card.runs.truncate(TEXT_CHARS_MAX);
        card.runs.iter_mut().for_each(cut);
        card.hosts.iter_mut().for_each(|hosts| hosts.truncate(HOSTS_MAX));
        Some((worker, card))
    }
}

/// The key that exists while a worker is alive.
pub(super) struct Presence<Q> {
    queue: Q,
    key: String,
    revision: Option<u64>,
    renewed: Option<tokio::time::Instant>,
    /// What was said last.
    said: Option<Card>,
}

impl<Q: Queue> Presence<Q> {
    /// Not said yet.
    pub(super) fn new(queue: Q, worker: &WorkerId) -> Presence<Q> {
        Presence { queue, key: worker_key(worker), revision: None, renewed: None, said: None }
    }

    /// Says that the worker is alive, if it is time or the card has changed. Call it about once a second.
    ///
    /// # Errors
    /// A queue that does not answer, or refuses.
    pub(super) async fn say(&mut self, card: &Card) -> Result<(), QueueError> {
        let is_known = self.said.as_ref() == Some(card);
        if is_known && self.renewed.is_some_and(|renewed| renewed.elapsed() < RENEW_EVERY) {
            return Ok(());
        }
        let value = Bytes::from(serde_json::to_vec(card).expect("text has a form in JSON"));
        let renewed = match self.revision {
            Some(revision) => self.queue.renew(&self.key, value.clone(), revision, WORKER_TTL).await?,
            None => None,
        };
        self.revision = match renewed {
            Some(revision) => Some(revision),
            // It has expired, or the queue has lost its data.
            None => self.queue.create(&self.key, value, WORKER_TTL).await?,
        };
        // Without a revision, a key of an earlier say is still there: it is said again when that has expired.
        self.said = self.revision.is_some().then(|| card.clone());
        self.renewed = Some(tokio::time::Instant::now());
        Ok(())
    }

    /// Takes the key away. If that fails, it expires.
    pub(super) async fn end(self) {
        if let Some(revision) = self.revision {
            let _ = self.queue.remove(&self.key, revision).await;
        }
    }
}
