//! Computes the rate and the remaining time of a run from growing counters.

use std::time::{Duration, Instant};

use super::events::Progress;
use super::heard::{Silence, silent_s};

/// Interval between progress events: four per second.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(250);

/// Weight of the newest quarter of a second in the rate shown.
const PACE_WEIGHT: f64 = 0.15;

/// Finished and planned work of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of files that are finished.
    pub files: u64,
    /// Bytes that are acknowledged or safely written.
    pub bytes: u64,
    /// Number of files of the whole run.
    pub total_files: u64,
    /// Bytes of the whole run; 0 until they are known.
    pub total_bytes: u64,
}

/// Progress of a run, with its recent rate.
#[derive(Debug)]
pub struct Pace {
    started: Instant,
    last: Option<(Instant, u64)>,
    rate_bytes_per_s: f64,
    /// Silence of the other end, if the run waits for one.
    silence: Option<Silence>,
}

impl Pace {
    /// Starts to measure a run that began at `started`.
    pub fn new(started: Instant) -> Pace {
        Pace { started, last: None, rate_bytes_per_s: 0.0, silence: None }
    }

    /// As [`Pace::new`], for a run that waits for another end all the time: it also reports silence.
    pub fn with_peers(started: Instant) -> Pace {
        Pace { silence: Some(Silence::new(Instant::now())), ..Pace::new(started) }
    }

    /// Whether a quarter of a second has passed since the last progress event.
    pub fn is_due(&self, now: Instant) -> bool {
        self.last.is_none_or(|(last, _)| now.saturating_duration_since(last) >= PROGRESS_EVERY)
    }

    /// Progress at `now`. `limit` is the part that limits the run at the moment.
    pub fn progress(&mut self, counts: Counts, limit: Option<String>, now: Instant) -> Progress {
        let is_known = counts.total_bytes > 0;
        let bytes = if is_known { counts.bytes.min(counts.total_bytes) } else { counts.bytes };
        let (then, before) = self.last.unwrap_or((self.started, 0));
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(0.01);
        let newest = bytes.saturating_sub(before) as f64 / seconds;
        let weight = if self.last.is_none() { 1.0 } else { PACE_WEIGHT };
        self.rate_bytes_per_s += weight * (newest - self.rate_bytes_per_s);
        self.last = Some((now, bytes));
        let silence = self.silence.as_mut().map(|silence| {
            // Sockets are not read while the disk accepts nothing.
            if limit.as_deref().is_some_and(|limit| limit.starts_with("disk")) {
                silence.is_broken(now);
            }
            silence.lasts(now)
        });
        let to_go = counts.total_bytes.saturating_sub(bytes) as f64;
        Progress {
            files: counts.files,
            bytes,
            total_files: counts.total_files,
            total_bytes: counts.total_bytes,
            rate_bytes_per_s: self.rate_bytes_per_s as u64,
            eta_s: (is_known && self.rate_bytes_per_s > 1.0).then(|| (to_go / self.rate_bytes_per_s) as u64),
            limit,
            silent_s: silence.and_then(silent_s),
            ..Progress::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rate_and_time_to_go_follow_the_counters() {
        let started = Instant::now();
        let mut pace = Pace::new(started);
        assert!(pace.is_due(started));
        let counts = |bytes| Counts { files: 1, bytes, total_files: 2, total_bytes: 1000 };
        let first = pace.progress(counts(100), None, started + Duration::from_secs(1));
        assert_eq!((first.rate_bytes_per_s, first.eta_s), (100, Some(9)));
        assert!(!pace.is_due(started + Duration::from_millis(1100)));
        assert!(pace.is_due(started + Duration::from_millis(1300)));
        // A counter that goes beyond the whole, or back, is no other rate than none.
        let last = pace.progress(counts(5000), Some("disk".into()), started + Duration::from_secs(2));
        assert_eq!((last.bytes, last.eta_s, last.limit.as_deref()), (1000, Some(0), Some("disk")));
        let unknown = Counts { total_bytes: 0, ..counts(900) };
        let unknown = pace.progress(unknown, None, started + Duration::from_millis(2500));
        assert_eq!((unknown.bytes, unknown.eta_s), (900, None));
        assert!(pace.progress(counts(0), None, started + Duration::from_secs(3)).rate_bytes_per_s < 250);
    }

    #[test]
    fn only_the_silence_of_another_end_is_told() {
        let started = Instant::now();
        let at = |seconds| started + Duration::from_secs(seconds);
        let silent = |pace: &mut Pace, limit: Option<&str>, seconds| {
            pace.progress(Counts::default(), limit.map(str::to_owned), at(seconds)).silent_s
        };
        let (mut alone, mut with_peers) = (Pace::new(started), Pace::with_peers(started));
        assert_eq!(silent(&mut alone, None, 30), None);
        assert_eq!(silent(&mut with_peers, None, 10), None);
        assert!(silent(&mut with_peers, None, 30) >= Some(29));
        assert_eq!(silent(&mut with_peers, Some("disk"), 40), None);
        assert_eq!(silent(&mut with_peers, None, 50), None);
        assert_eq!(silent(&mut with_peers, Some("host x"), 65), Some(25));
    }
}
