//! A lock that is an object: one run at a time changes a mirror in a store.
//!
//! It is made where there is none (`If-None-Match`), renewed every 30 s and removed by its ETag. It is taken over when it was
//! not renewed for 125 s by the store's own clock: `Date` less `Last-Modified` of one answer, so that no machine's clock
//! counts. Its holder believes in it for 100 s from the sending of the last renewal, by a clock that only goes forward, also
//! while the machine is suspended. So a holder that was frozen knows at once that it may hold it no more. The lock of a
//! process of this machine that has ended, as after a kill, is taken over at once.
//!
//! A run may be frozen between the look at its lock and the request. So its requests that change objects pass a
//! [`Fence`]: they are signed with the time of the last renewal, and stores refuse signatures that are 15 minutes old. Some
//! requests cannot have a condition; those that a frozen run has left may be carried out until then, and not later.

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

/// Largest content of a lock that is read; fullbore writes some 150 bytes.
const LOCK_BYTES_MAX: usize = 4096;

/// Time between two looks at a lock that was not renewed.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// An ETag that no lock has: it has the form of an MD5 sum.
const NO_TAG: &str = "00000000000000000000000000000000";

/// Attempts to take a lock that changes hands meanwhile.
const ATTEMPTS: u32 = 3;

/// The times of a lock.
#[derive(Debug, Clone, Copy)]
pub struct LockTimes {
    /// Between renewals.
    pub renew_every: Duration,
    /// From the sending of a renewal until its holder does not believe in it any more.
    pub believed: Duration,
    /// After a renewal, by the store's clock, until another run may take it over. The store counts in seconds, and the two
    /// times of one answer may differ by one.
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
        /// Who says to hold it.
        holder: String,
        /// Seconds since it was renewed, by the store's clock.
        age_s: i64,
    },
    /// Another run has taken it over.
    #[error("another run has taken over, as this one was not seen for too long")]
    Lost,
    /// Another run may have taken it over: the store did not answer for too long, or this process was frozen.
    #[error("the lock was not renewed for too long, and another run may have it")]
    Unseen,
    /// The store writes whatever the condition says.
    #[error("the store ignores conditions (If-None-Match or If-Match), so that no lock can be held in it")]
    NoConditions,
    /// The store failed.
    #[error(transparent)]
    Call(#[from] CallError),
}

/// The content of a lock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Content {
    /// Of this run alone.
    owner: String,
    host: String,
    /// Where its number is that of a process: this boot, and this space of process numbers.
    #[serde(default)]
    processes: String,
    pid: u32,
    /// Number of takeovers.
    epoch: u64,
    /// Number of renewals, so that each has an ETag of its own.
    renewal: u64,
}

#[derive(Debug)]
struct Held {
    content: Content,
    tag: String,
    /// When the last renewal that succeeded was sent.
    sent: Moment,
    is_lost: bool,
    /// The store's time when another run's lock was taken over.
    taken_over_at: Option<i64>,
}

/// A point of time by two clocks.
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

/// Keeps requests from changing objects when the lock may be another run's: they wait until it is renewed, or known to be
/// lost. Open before there is a lock.
#[derive(Debug, Default)]
pub struct Fence {
    lock: Mutex<Option<Lock>>,
    is_lost: AtomicBool,
}

impl Fence {
    /// The lock that is to be held from now on.
    pub fn lock(&self) -> MutexGuard<'_, Option<Lock>> {
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request was given up for it.
    pub fn was_closed(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Our time in the signatures of requests that change objects: that of the lock's last renewal. `None` if there is no
    /// lock.
    ///
    /// # Errors
    /// [`LockError::Lost`], [`LockError::Unseen`].
    pub fn signed_at(&self) -> Result<Option<i64>, LockError> {
        self.lock().as_ref().map(Lock::renewed_at).transpose()
    }

    /// As [`Fence::signed_at`], when the lock is renewed. A store that was away for some minutes ends no run.
    ///
    /// # Errors
    /// [`LockError::Lost`]; [`LockError::Unseen`] when it is not renewed in this time.
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

/// A lock that this run holds, until released or dropped; dropped, it ends when it is over.
#[derive(Debug)]
pub struct Lock {
    shared: Arc<Shared>,
    renewing: JoinHandle<()>,
}

impl Lock {
    /// Takes the lock at `path`, and renews it on the runtime of this call.
    ///
    /// # Errors
    /// See [`LockError`].
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

    /// Number of runs that have taken the lock over from another, and one.
    pub fn epoch(&self) -> u64 {
        self.shared.held().content.epoch
    }

    /// If this run took the lock over from another: when, by the store's clock, Unix seconds.
    pub fn taken_over_at(&self) -> Option<i64> {
        self.shared.held().taken_over_at
    }

    /// Whether no other run is known to have taken it over. Requests ask more, at their [`Fence`].
    ///
    /// # Errors
    /// [`LockError::Lost`].
    pub fn check(&self) -> Result<(), LockError> {
        match self.shared.held().is_lost {
            true => Err(LockError::Lost),
            false => Ok(()),
        }
    }

    /// When it was last renewed, by the clock of this machine, Unix seconds.
    ///
    /// # Errors
    /// [`LockError::Lost`]; [`LockError::Unseen`] if another run can have taken it over since.
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

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`LockError::Lost`] if another run has it by now; a failure of the store. It is over by itself then.
    pub async fn release(self) -> Result<(), LockError> {
        self.renewing.abort();
        let (tag, owner) = {
            let held = self.shared.held();
            (held.tag.clone(), held.content.owner.clone())
        };
        let Shared { objects, path, .. } = &*self.shared;
        // Not every store looks at the condition of a removal.
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

/// Renews the lock until it is lost. A store that does not answer is asked again, as long as the lock may be held.
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
        // A renewal that took long, because an answer was lost, does not put off the next one: the holder believes in the
        // lock from the sending of the last one.
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
            // Whether it is still believed in is a question of time.
            Err(error) => tracing::debug!(%error, "the lock was not renewed"),
        }
    }
}

/// Whether a store refuses to replace the lock that is there by another one: if there must be none, and if it must have
/// an ETag that nothing has.
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

/// What process numbers of this machine are worth: containers have their own.
fn processes() -> String {
    let space = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    format!("{} {}", boot_id(), space.display())
}

/// Whether the holder was a process here and is none any more. Where `/proc` hides processes, nobody knows.
fn has_ended(holder: &Content, ours: &Content) -> bool {
    let shows_all = || std::fs::read_to_string("/proc/self/mounts").is_ok_and(|mounts| shows_all_processes(&mounts));
    let is_known = Path::new("/proc/self").exists() && !boot_id().is_empty();
    is_known
        && holder.processes == ours.processes
        && !Path::new("/proc").join(holder.pid.to_string()).exists()
        && shows_all()
}

/// Whether `/proc` has the processes of all users, by the text of `/proc/self/mounts`: `hidepid` (proc(5)) hides those of
/// others, and systemd's `ProtectProc` mounts it so for a service.
fn shows_all_processes(mounts: &str) -> bool {
    // The last one is on top.
    let of_proc =
        mounts.lines().rev().map(|line| line.split(' ')).find(|fields| fields.clone().nth(1) == Some("/proc"));
    let options = of_proc.and_then(|mut fields| fields.nth(3));
    options.is_some_and(|options| !options.split(',').any(|option| option.starts_with("hidepid=")))
}

/// Seconds since an object was written, by the store's clock; 0 where the store does not tell its time.
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
