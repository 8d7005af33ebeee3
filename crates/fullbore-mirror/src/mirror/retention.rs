//! Retention of files that no index names any more, and the delete guard.
//!
//! A client reads `InRelease`, then indexes, then packages, and may take a day for it. So files of earlier Releases
//! stay for some generations *and* some hours. The guard refuses to delete too much: an upstream that is suddenly empty
//! is more often a fault than an intention.

use fullbore_engine::units;
use serde::{Deserialize, Serialize};

use super::membership::Departure;

/// Time for which a file stays after the last index that names it is gone. Both conditions must be met.
///
/// ```
/// let retention = fullbore_mirror::Retention::default();
/// assert_eq!((retention.generations, retention.hours), (3, 24));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retention {
    /// Number of earlier Releases of the suite whose files stay.
    pub generations: u32,
    /// Hours since the first generation without the file was published.
    pub hours: u32,
}

impl Default for Retention {
    /// Three generations and a day: Debian publishes four times a day, and apt clients
    /// with unattended upgrades read indexes once a day.
    fn default() -> Self {
        Retention { generations: 3, hours: 24 }
    }
}

impl Retention {
    /// Whether a file that a suite stopped naming with `left` may be deleted. `generation` is the current one of the
    /// suite. `None` for a suite that is gone; then only the hours count.
    pub fn is_over(&self, left: &Departure, generation: Option<u32>, now: i64) -> bool {
        let hours_passed = now.saturating_sub(left.at) >= i64::from(self.hours) * 3600;
        // The generation before the one without the file is the first earlier one.
        let generations_passed =
            generation.is_none_or(|present| present.saturating_sub(left.generation) >= self.generations);
        hours_passed && generations_passed
    }
}

/// A limit on the share of the mirrored files, and of their bytes, that one run may delete.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeleteGuard {
    /// Maximum share of files, and of bytes, from 0 to 1.
    pub share_max: f64,
    /// Whether to delete even above the limit.
    pub forced: bool,
}

impl Default for DeleteGuard {
    /// 40 %, as apt-mirror2 has it; a Debian point release deletes below 10 %.
    fn default() -> Self {
        DeleteGuard { share_max: 0.4, forced: false }
    }
}

/// Fewer files than this may always be deleted: in a mirror of a few packages an update may replace half of them. A
/// guess.
const GUARDED_FILES_MIN: u64 = 20;

/// A refused deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "refused to delete {files} of {files_all} files ({} of {}): more than the allowed {share_max_percent} %",
    units::bytes(*bytes),
    units::bytes(*bytes_all)
)]
pub struct GuardError {
    /// Number of files to be deleted.
    pub files: u64,
    /// Number of files in the mirror.
    pub files_all: u64,
    /// Size of the files to be deleted, in bytes.
    pub bytes: u64,
    /// Size of all files in the mirror, in bytes.
    pub bytes_all: u64,
    /// The limit in percent, rounded down.
    pub share_max_percent: u32,
}

impl DeleteGuard {
    /// Checks the deletion of `files` and `bytes` out of all that the mirror has.
    ///
    /// # Errors
    ///
    /// `GuardError` if the share exceeds the limit, and the deletion is neither small nor forced.
    pub fn check(&self, files: u64, files_all: u64, bytes: u64, bytes_all: u64) -> Result<(), GuardError> {
        let over = |part: u64, all: u64| part as f64 > self.share_max * all as f64;
        if self.forced
            || files < GUARDED_FILES_MIN.min(files_all)
            || !(over(files, files_all) || over(bytes, bytes_all))
        {
            return Ok(());
        }
        let share_max_percent = (self.share_max * 100.0) as u32;
        Err(GuardError { files, files_all, bytes, bytes_all, share_max_percent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_hours_and_generations_must_have_passed() {
        let retention = Retention::default();
        let left = Departure { suite: 0, generation: 10, at: 1_000_000 };
        let day_later = 1_000_000 + 24 * 3600;
        assert!(!retention.is_over(&left, Some(12), day_later));
        assert!(!retention.is_over(&left, Some(13), day_later - 1));
        assert!(retention.is_over(&left, Some(13), day_later));
        assert!(retention.is_over(&left, None, day_later), "a suite that is gone has no generations to wait for");
        assert!(!retention.is_over(&left, Some(99), 0), "a clock set back keeps files");
    }

    #[test]
    fn a_suddenly_empty_upstream_deletes_nothing() {
        let guard = DeleteGuard::default();
        assert_eq!(guard.check(400, 1000, 0, 10), Ok(()));
        let error = guard.check(401, 1000, 0, 10).unwrap_err();
        assert_eq!(error.to_string(), "refused to delete 401 of 1000 files (0 B of 10 B): more than the allowed 40 %");
        assert!(guard.check(30, 1000, 9, 10).is_err(), "few files but most bytes");
        assert!(guard.check(5, 5, 9, 9).is_err(), "everything, though it is little");
        assert_eq!(guard.check(3, 5, 9, 9), Ok(()));
        assert_eq!(DeleteGuard { forced: true, ..guard }.check(1000, 1000, 10, 10), Ok(()));
    }
}
