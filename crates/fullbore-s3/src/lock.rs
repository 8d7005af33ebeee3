//! A lock in the form of an object: only one run at a time changes a mirror in a store.
//!
//! The lock is created if it does not exist (`If-None-Match`), renewed every 30 s, and removed by its ETag. Another run
//! takes it over after 125 s without a renewal by the store's own clock: `Date` minus `Last-Modified` of one answer, so
//! no machine's clock counts. Its holder trusts it for 100 s after sending the last renewal, by a monotonic clock that
//! includes suspended time. So a holder that was frozen knows at once that it may have lost the lock. A lock of an
//! ended process of this machine, as after a kill, is taken over at once.
//!
//! A run may be frozen between the check of its lock and a request. So requests that change objects pass a [`Fence`]:
//! they are signed with the time of the last renewal, and stores refuse signatures older than 15 minutes. Some requests
//! cannot have a condition; those that a frozen run has left may be executed until then, and not later.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fullbore_engine::machine::{boot_id, since_boot};
use fullbore_engine::random::random;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::client::CallError;
use crate::credentials::unix_now;
use crate::objects::{Condition, Objects, SmallObject, Written};
use crate::sign::hex;

/// Maximum size of a lock that is read, in bytes; fullbore writes about 150.
const LOCK_BYTES_MAX: usize = 4096;

/// Interval of checks of a lock that was not renewed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An ETag that no lock has, in the form of an MD5 sum.
const NO_TAG: &str = "00000000000000000000000000000000";

/// Maximum number of attempts to take a lock that changes hands meanwhile.
const ATTEMPTS: u32 = 3;

/// Times of a lock.
#[derive(Debug, Clone, Copy)]
pub struct LockTimes {
    /// Time between renewals.
    pub renew_every: Duration,
    /// Time from sending a renewal during which the holder trusts the lock.
    pub believed: Duration,
    /// Time after a renewal, by the store's clock, after which another run may take the lock over. The store counts in
    /// seconds, and the two times of one answer may differ by one.
    pub over_after: Duration,
}

impl Default for LockTimes {
    fn default() -> LockTimes {
        LockTimes {
            renew_every: Duration::from_secs(30),
            believed: Duration::from_secs(100),
            over_after: Duration::from_secs(125),
        }
    }
}

/// Why a lock was not taken, or is not held any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another run holds it.
    #[error("another run changes it: {holder}, seen {age_s} s ago")]
    Held {
        /// Process and machine of the holder, as it says.
        holder: String,
        /// Seconds since the last renewal, by the store's clock.
        age_s: i64,
    },
    /// Another run has taken the lock over.
    #[error("another run has taken over, as this one was not seen for too long")]
    Lost,
    /// Another run may have taken the lock over: the store did not answer for too long, or this process was frozen.
    #[error("the lock was not renewed for too long, and another run may have it")]
    Unseen,
    /// The store ignores conditions.
    #[error("the store ignores conditions (If-None-Match or If-Match), so that no lock can be held in it")]
    NoConditions,
    /// A request to the store failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// Content of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    /// Random id of the holding run.
    owner: String,
    host: String,
    /// Where `pid` is valid: this boot, and this PID namespace.
    #[serde(default)]
    processes: String,
    pid: u32,
    /// Number of takeovers, plus one.
    epoch: u64,
    /// Number of renewals; it gives each one an ETag of its own.
    renewal: u64,
}

#[derive(Debug)]
struct Held {
    content: Content,
    tag: String,
    /// Time at which the last successful renewal was sent.
    sent: Moment,
    is_lost: bool,
    /// The store's time of the takeover of another run's lock.
    taken_over_at: Option<i64>,
}

/// A moment by two clocks.
#[derive(Debug, Clone, Copy)]
struct Moment {
    since_boot: Duration,
    unix_s: i64,
}

impl Moment {
    fn now() -> Moment {
        Moment { since_boot: since_boot(), unix_s: unix_now() }
    }
}

/// Keeps requests from changing objects while another run may hold the lock: they wait until the lock is renewed, or
/// known to be lost. It is open before there is a lock.
#[derive(Debug, Default)]
pub struct Fence {
    lock: Mutex<Option<Lock>>,
    is_lost: AtomicBool,
}

impl Fence {
    /// The lock slot; put the lock here once it is taken.
    pub fn lock(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request failed because the lock was lost.
    pub fn was_closed(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// The time to sign with in requests that change objects: that of the lock's last renewal. `None` if there is no
    /// lock.
    ///
    /// # Errors
    /// [`LockError::Lost`] if another run has taken the lock over; [`LockError::Unseen`] if it was not renewed for so
    /// long that another run may have it.
    pub fn signed_at(&self) -> Result<Option<i64>, LockError> {
        self.lock().as_ref().map(Lock::renewed_at).transpose()
    }

    /// As [`Fence::signed_at`], but waits for a renewal, so that a store that was away for some minutes does not end
    /// the run.
    ///
    /// # Errors
    /// [`LockError::Lost`] if another run has taken the lock over; [`LockError::Unseen`] if it is not renewed within
    /// `within`.
    pub(crate) async fn pass(&self, within: Duration) -> Result<Option<i64>, LockError> {
        let until = since_boot() + within;
        loop {
            match self.signed_at() {
                Err(LockError::Unseen) if since_boot() < until => tokio::time::sleep(LOOK_EVERY).await,
                Ok(signed_at) => return Ok(signed_at),
                Err(error) => {
                    self.is_lost.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }
}

#[derive(Debug)]
struct Shared {
    objects: Objects,
    path: String,
    times: LockTimes,
    held: Mutex<Held>,
}

/// A lock that this run holds until it is released or dropped. A dropped lock expires.
#[derive(Debug)]
pub struct Lock {
    shared: Arc<Shared>,
    renewing: JoinHandle<()>,
}

impl Lock {
    /// Takes the lock at `path`, and renews it on the runtime of this call.
    ///
    /// # Errors
    /// - [`LockError::Held`] if another run holds it.
    /// - [`LockError::NoConditions`] if the store ignores `If-None-Match` or `If-Match`, or sends no ETags.
    /// - [`LockError::Call`] if a request fails.
    pub async fn take(objects: &Objects, path: &str, host: &str, times: LockTimes) -> Result<Lock, LockError> {
        let mut content = Content {
            owner: hex(&random::<16>()),
            host: host.to_owned(),
            processes: processes(),
            pid: std::process::id(),
            epoch: 1,
            renewal: 0,
        };
        for _ in 0..ATTEMPTS {
            let sent = Moment::now();
            if let Written::Stored(tag) = write(objects, path, &content, &Condition::Absent).await? {
                let tag = tag.ok_or(LockError::NoConditions)?;
                if !heeds_conditions(objects, path, &content).await? {
                    objects.delete(path, &Condition::None).await?;
                    return Err(LockError::NoConditions);
                }
                let held = Held { content, tag, sent, is_lost: false, taken_over_at: None };
                return Ok(Lock::held(objects, path, times, held));
            }
            let Some(found) = objects.get(path, LOCK_BYTES_MAX).await? else { continue };
            let there: Option<Content> = serde_json::from_slice(&found.content).ok();
            let age_s = age_s(&found);
            let has_ended = there.as_ref().is_some_and(|there| has_ended(there, &content));
            if !has_ended && age_s <= i64::try_from(times.over_after.as_secs()).unwrap_or(i64::MAX) {
                let holder = there.map_or_else(
                    || "an unknown holder".to_owned(),
                    |there| format!("process {} on {}", there.pid, there.host),
                );
                return Err(LockError::Held { holder, age_s });
            }
            let Some(tag) = found.facts.etag else { return Err(LockError::NoConditions) };
            content.epoch = there.map_or(0, |there| there.epoch) + 1;
            let sent = Moment::now();
            if let Written::Stored(Some(tag)) = write(objects, path, &content, &Condition::Tag(tag)).await? {
                let taken_over_at = Some(found.facts.answered.unwrap_or_else(unix_now));
                let held = Held { content, tag, sent, is_lost: false, taken_over_at };
                return Ok(Lock::held(objects, path, times, held));
            }
        }
        Err(LockError::Lost)
    }

    fn held(objects: &Objects, path: &str, times: LockTimes, held: Held) -> Lock {
        let shared =
            Arc::new(Shared { objects: objects.clone(), path: path.to_owned(), times, held: Mutex::new(held) });
        let renewing = Handle::current().spawn(renew(shared.clone()));
        Lock { shared, renewing }
    }

    /// Number of times that a run has taken the lock over from another, plus one.
    pub fn epoch(&self) -> u64 {
        self.shared.held().content.epoch
    }

    /// If this run took the lock over from another: the time, by the store's clock, in Unix seconds.
    pub fn taken_over_at(&self) -> Option<i64> {
        self.shared.held().taken_over_at
    }

    /// Checks that no other run is known to have taken the lock over. Requests are checked more strictly by their
    /// [`Fence`].
    ///
    /// # Errors
    /// [`LockError::Lost`] if a renewal has found another run's lock.
    pub fn check(&self) -> Result<(), LockError> {
        match self.shared.held().is_lost {
            true => Err(LockError::Lost),
            false => Ok(()),
        }
    }

    /// Time of the last renewal, by the clock of this machine, in Unix seconds.
    ///
    /// # Errors
    /// [`LockError::Lost`] if another run has taken the lock over; [`LockError::Unseen`] if another run may have taken
    /// it over since.
    fn renewed_at(&self) -> Result<i64, LockError> {
        let held = self.shared.held();
        if held.is_lost {
            return Err(LockError::Lost);
        }
        match since_boot().saturating_sub(held.sent.since_boot) < self.shared.times.believed {
            true => Ok(held.sent.unix_s),
            false => Err(LockError::Unseen),
        }
    }

    /// Releases the lock.
    ///
    /// # Errors
    /// [`LockError::Lost`] if another run holds it by now; [`LockError::Call`] if a request fails. Then the lock
    /// expires by itself.
    pub async fn release(self) -> Result<(), LockError> {
        self.renewing.abort();
        let (tag, owner) = {
            let held = self.shared.held();
            (held.tag.clone(), held.content.owner.clone())
        };
        let Shared { objects, path, .. } = &*self.shared;
        // Not every store checks the condition of a removal.
        let found = objects.get(path, LOCK_BYTES_MAX).await?;
        let is_ours = |found: &SmallObject| {
            serde_json::from_slice(&found.content).is_ok_and(|there: Content| there.owner == owner)
        };
        let Some(found) = found.filter(is_ours) else { return Err(LockError::Lost) };
        match objects.delete(path, &Condition::Tag(found.facts.etag.unwrap_or(tag))).await? {
            Written::Stored(_) => Ok(()),
            Written::Refused => Err(LockError::Lost),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.renewing.abort();
    }
}

impl Shared {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Renews the lock until it is lost. A store that does not answer is asked again while the lock may still be held.
async fn renew(shared: Arc<Shared>) {
    let mut next = Instant::now() + shared.times.renew_every;
    loop {
        tokio::time::sleep_until(next).await;
        let (mut content, tag) = {
            let held = shared.held();
            (held.content.clone(), held.tag.clone())
        };
        content.renewal += 1;
        let sent = Moment::now();
        // A renewal that took long because an answer was lost does not delay the next one. The holder trusts the lock
        // from the sending of the last renewal.
        next = Instant::now() + shared.times.renew_every;
        match write(&shared.objects, &shared.path, &content, &Condition::Tag(tag)).await {
            Ok(Written::Stored(Some(tag))) => {
                let mut held = shared.held();
                (held.content, held.tag, held.sent) = (content, tag, sent);
            }
            Ok(_) => {
                shared.held().is_lost = true;
                return;
            }
            // Time decides whether the lock is still trusted.
            Err(error) => tracing::debug!(%error, "the lock was not renewed"),
        }
    }
}

/// Whether a store refuses to replace the existing lock under a condition: that none exists, and that it has an ETag
/// which nothing has.
async fn heeds_conditions(objects: &Objects, path: &str, content: &Content) -> Result<bool, CallError> {
    let other = Content { renewal: 1, ..content.clone() };
    let no_tag = Condition::Tag(NO_TAG.to_owned());
    let (absent, tag) =
        tokio::join!(write(objects, path, &other, &Condition::Absent), write(objects, path, &other, &no_tag));
    Ok(absent? == Written::Refused && tag? == Written::Refused)
}

async fn write(objects: &Objects, path: &str, content: &Content, condition: &Condition) -> Result<Written, CallError> {
    let json = serde_json::to_vec(content).expect("a lock has only strings and numbers");
    let fields = vec![("Content-Type".to_owned(), "application/json".to_owned())];
    objects.put(path, fields, Bytes::from(json), condition).await
}

/// Identifies the PID namespace of this machine: containers have their own.
fn processes() -> String {
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot_id(), space.display())
}

/// Whether the holder was a process here and has ended. Unknown where `/proc` hides processes.
fn has_ended(holder: &Content, ours: &Content) -> bool {
    let shows_all = || std::fs::read_to_string("/proc/self/mounts").is_ok_and(|mounts| shows_all_processes(&mounts));
    let is_known = Path::new("/proc/self").exists() && !boot_id().is_empty();
    is_known
        && holder.processes == ours.processes
        && !Path::new("/proc").join(holder.pid.to_string()).exists()
        && shows_all()
}

/// Whether `/proc` shows the processes of all users, by the text of `/proc/self/mounts`. `hidepid` (proc(5)) hides
/// those of others, and systemd's `ProtectProc` sets it for a service.
fn shows_all_processes(mounts: &str) -> bool {
    // The last mount is on top.
    let of_proc =
        mounts.lines().rev().map(|line| line.split(' ')).find(|fields| fields.clone().nth(1) == Some("/proc"));
    let options = of_proc.and_then(|mut fields| fields.nth(3));
    options.is_some_and(|options| !options.split(',').any(|option| option.starts_with("hidepid=")))
}

/// Seconds since an object was written, by the store's clock; 0 if the store does not give its time.
fn age_s(found: &SmallObject) -> i64 {
    match (found.facts.answered, found.facts.modified) {
        (Some(now), Some(then)) => now.saturating_sub(then).max(0),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn content(pid: u32) -> Content {
        Content { owner: String::new(), host: String::new(), processes: processes(), pid, epoch: 1, renewal: 0 }
    }

    fn has_ended_here(pid: u32) -> bool {
        has_ended(&content(pid), &content(std::process::id()))
    }

    #[test]
    fn a_process_that_was_waited_for_has_ended() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!has_ended_here(child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended_here(child.id()));
        let elsewhere = Content { processes: "another boot".into(), ..content(child.id()) };
        assert!(!has_ended(&elsewhere, &content(std::process::id())));
    }

    #[test]
    fn a_proc_that_hides_processes_is_told_by_its_mounts() {
        let mounts = |options: &[&str]| {
            let line = |options: &&str| format!("proc /proc proc {options} 0 0\n");
            format!("/dev/sda / ext4 rw 0 0\n{}", options.iter().map(line).collect::<String>())
        };
        let shows_all = |options: &[&str]| shows_all_processes(&mounts(options));
        assert!(shows_all(&["rw,nosuid,nodev"]));
        assert!(shows_all(&["rw,hidepid=2", "rw"]), "another one is on top");
        for hiding in ["rw,hidepid=2", "rw,hidepid=invisible,gid=4", "rw,hidepid=ptraceable"] {
            assert!(!shows_all(&["rw", hiding]), "{hiding}");
        }
        assert!(!shows_all(&[]), "nothing is known of it");
    }
}
