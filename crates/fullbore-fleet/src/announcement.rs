//! The announcement of a run in the queue: a key that its planner renews.
//!
//! The announcement outlives a killed planner. So workers wait for the next planner, which continues the same run: a
//! run's name follows from what is to be stored.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::message::Run;
use crate::names::{RUN_KEYS, run_key};
use crate::queue::{Entry, Queue, QueueError};

/// Time to live of a mirror's run. The lock of a killed planner lasts for two minutes, and whoever restarts it needs
/// some time, too.
pub const RUN_TTL: Duration = Duration::from_secs(300);

/// Interval of renewals. Workers that end with the last run wait for three of them.
pub const RUN_RENEW_EVERY: Duration = Duration::from_secs(5);

/// Time for which a planner without a lock waits for signs of another planner.
const OTHER_PLANNER_LOOK: Duration = Duration::from_secs(12);

/// The state of the queue when a run is announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// The queue has no such run.
    Nothing,
    /// The run of a planner that is gone. The queue may have tasks of it.
    Run {
        /// The last round of that run.
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
    /// Makes an announcement that is not in the queue yet. It lives for `ttl` after each renewal.
    pub fn new(queue: Q, run: &Run, ttl: Duration) -> Announcement<Q> {
        Announcement { queue, key: run_key(&run.id), ttl, revision: None, renewed: None }
    }

    /// Finds out what the queue has of this run. `has_lock` says that no other planner of it can exist.
    ///
    /// # Errors
    /// [`QueueError::Unreachable`] if the queue does not answer; otherwise its refusal or error.
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

    /// Whether a renewal is due.
    pub fn is_due(&self) -> bool {
        self.renewed.is_none_or(|renewed| renewed.elapsed() >= RUN_RENEW_EVERY)
    }

    /// Makes or renews the announcement, with the round of `run`.
    ///
    /// # Errors
    /// [`QueueError::Unreachable`] if the queue does not answer; otherwise its refusal or error.
    pub async fn say(&mut self, run: &Run) -> Result<(), QueueError> {
        let (key, value) = (&self.key, Bytes::from(run.to_bytes()));
        if let Some(revision) = self.revision {
            self.revision = self.queue.renew(key, value.clone(), revision, self.ttl).await?;
        }
        if self.revision.is_none() {
            self.revision = self.queue.create(key, value.clone(), self.ttl).await?;
        }
        // Our own request whose answer was lost, or an earlier planner's.
        if self.revision.is_none()
            && let Some(entry) = self.entry().await?
        {
            self.revision = self.queue.renew(key, value, entry.revision, self.ttl).await?;
        }
        self.renewed = Some(Instant::now());
        Ok(())
    }

    /// The queue has lost its data: the announcement has to be made again.
    pub fn forget(&mut self) {
        (self.revision, self.renewed) = (None, None);
    }

    /// Removes the announcement, as the run has ended.
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
