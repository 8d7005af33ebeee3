//! The announcement of a run in the queue: a key that its planner renews.
//!
//! It outlives a killed planner, so that workers wait for the next planner, which goes on with the same run: a run's name
//! is made from what is to be stored.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::message::Run;
use crate::names::{RUN_KEYS, run_key};
use crate::queue::{Entry, Queue, QueueError};

/// Time to live for a mirror: the lock of a killed planner lasts for two minutes, and whoever starts it again needs some time, too.
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
    ttl: Duration,
    revision: Option<u64>,
    renewed: Option<Instant>,
}

impl<Q: Queue> Announcement<Q> {
    /// Not said yet. It lives for `ttl` after each renewal.
    pub fn new(queue: Q, run: &Run, ttl: Duration) -> Announcement<Q> {
        Announcement { queue, key: run_key(&run.id), ttl, revision: None, renewed: None }
    }

    /// Finds out what the queue has of this run. `has_lock` says that nobody else can be its planner.
    ///
    /// # Errors
    /// A queue that does not answer, or refuses.
    pub async fn find(queue: Q, run: &Run, has_lock: bool) -> Result<(Announcement<Q>, Found), QueueError> {
        let mut announcement = Announcement::new(queue, run, RUN_TTL);
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
        let entries = self.queue.list(RUN_KEYS).await;
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
        let (key, value) = (&self.key, Bytes::from(run.to_bytes()));
        if let Some(revision) = self.revision {
            self.revision = self.queue.renew(key, value.clone(), revision, self.ttl).await?;
        }
        if self.revision.is_none() {
            self.revision = self.queue.create(key, value.clone(), self.ttl).await?;
        }
        // Our own request whose answer was lost, or that of an earlier planner.
        if self.revision.is_none()
            && let Some(entry) = self.entry().await?
        {
            self.revision = self.queue.renew(key, value, entry.revision, self.ttl).await?;
        }
        self.renewed = Some(Instant::now());
        Ok(())
    }

    /// The queue has lost its data: it is time to say it again.
    pub fn forget(&mut self) {
        (self.revision, self.renewed) = (None, None);
    }

    /// Takes it away: the run has ended.
    pub async fn end(&mut self) {
        let revision = match self.revision.take() {
            Some(revision) => Some(revision),
            None => self.entry().await.ok().flatten().map(|entry| entry.revision),
        };
        if let Some(revision) = revision {
            let _ = self.queue.remove(&self.key, revision).await;
        }
    }
}
