//! The announcement of a run in the queue: a key that its planner renews.
//!
//! It outlives a killed planner until the lock of the mirror is over, so that workers wait for the next planner, which
//! goes on with the same run: a run's name is made from what is to be mirrored.

use std::time::Duration;

use bytes::Bytes;
use fullbore_fleet::message::Run;
use fullbore_fleet::names::run_key;
use fullbore_fleet::queue::{Entry, Queue, QueueError};
use tokio::time::Instant;

/// Time to live: the lock of a killed planner lasts for two minutes, and whoever starts it again needs some time, too.
pub const RUN_TTL: Duration = Duration::from_secs(300);

/// Time between two renewals. Workers that end with the last run wait for three of them.
pub const RUN_RENEW_EVERY: Duration = Duration::from_secs(5);

/// Time for which a planner without a lock looks whether the run has a planner.
const OTHER_PLANNER_LOOK: Duration = Duration::from_secs(12);

/// What stood in the queue when a run was announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// No such run.
    Nothing,
    /// The run of a planner that is gone, in this round. The queue may have tasks of it.
    Run {
        /// Its last round.
        round: u32,
    },
    /// The run of a planner that is alive.
    Taken,
}

/// The announcement of one run.
pub struct Announcement<Q> {
    queue: Q,
    key: String,
    revision: Option<u64>,
    renewed: Option<Instant>,
}

impl<Q: Queue> Announcement<Q> {
    /// Finds out what the queue has of this run. `has_lock` says that nobody else can be its planner.
    ///
    /// # Errors
    /// A queue that does not answer, or refuses.
    pub async fn find(queue: Q, run: &Run, has_lock: bool) -> Result<(Announcement<Q>, Found), QueueError> {
        let mut announcement = Announcement { queue, key: run_key(&run.id), revision: None, renewed: None };
        let Some(entry) = announcement.entry().await? else { return Ok((announcement, Found::Nothing)) };
        if !has_lock {
            let began = Instant::now();
            while began.elapsed() < OTHER_PLANNER_LOOK {
                tokio::time::sleep(Duration::from_secs(1)).await;
                if announcement.entry().await?.is_some_and(|now| now.revision != entry.revision) {
                    return Ok((announcement, Found::Taken));
                }
            }
        }
        announcement.revision = Some(entry.revision);
        let round = Run::parse(&entry.value).map_or(1, |run| run.round);
        Ok((announcement, Found::Run { round }))
    }

    async fn entry(&self) -> Result<Option<Entry>, QueueError> {
        let entries = self.queue.list(fullbore_fleet::names::RUN_KEYS).await;
        match entries {
            Ok(entries) => Ok(entries.into_iter().find(|entry| entry.key == self.key)),
            // Nobody has used this queue yet.
            Err(QueueError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether it is time to say it again.
    pub fn is_due(&self) -> bool {
        self.renewed.is_none_or(|renewed| renewed.elapsed() >= RUN_RENEW_EVERY)
    }

    /// Says it, or says it again with another round.
    ///
    /// # Errors
    /// A queue that does not answer, or refuses.
    pub async fn say(&mut self, run: &Run) -> Result<(), QueueError> {
        let value = Bytes::from(run.to_bytes());
        let renewed = match self.revision {
            Some(revision) => self.queue.renew(&self.key, value.clone(), revision, RUN_TTL).await?,
            None => None,
        };
        self.revision = match renewed {
            Some(revision) => Some(revision),
            None => match self.queue.create(&self.key, value, RUN_TTL).await? {
                Some(revision) => Some(revision),
                // Our own request whose answer was lost, or another planner's: its next renewal is ours.
                None => self.entry().await?.map(|entry| entry.revision),
            },
        };
        self.renewed = Some(Instant::now());
        Ok(())
    }

    /// Takes it away: the run has ended.
    pub async fn end(&mut self) {
        if let Some(revision) = self.revision.take() {
            let _ = self.queue.remove(&self.key, revision).await;
        }
    }
}
