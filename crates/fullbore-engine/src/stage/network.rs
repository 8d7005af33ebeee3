//! Network counters for the verdict: bytes per host, round-trip times, trials, and the kernel's counters of sending
//! sockets.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::verdict::thresholds::{FASTER, GAIN, NAMED, NO_FASTER, NO_OTHER};

/// Counters of one host, updated by the connections to it.
#[derive(Debug)]
pub struct HostClock {
    name: String,
    bytes: AtomicU64,
    busy_connections: AtomicI64,
    round_trip_us: AtomicU64,
    capped: AtomicBool,
    waited_alone_us: AtomicU64,
}

impl HostClock {
    pub(super) fn new(name: &str) -> HostClock {
        HostClock {
            name: name.to_owned(),
            bytes: AtomicU64::new(0),
            busy_connections: AtomicI64::new(0),
            round_trip_us: AtomicU64::new(0),
            capped: AtomicBool::new(false),
            waited_alone_us: AtomicU64::new(0),
        }
    }

    /// Name of the host, as in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counts bytes received from the host, useful or not.
    pub fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Records that a connection has unanswered requests from now on.
    pub fn connection_busy(&self) {
        self.busy_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that a connection has no unanswered requests any more, or is closed.
    pub fn connection_idle(&self) {
        self.busy_connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// Records a measured round trip. The smallest is kept, because larger ones include queues that we fill ourselves.
    pub fn round_trip(&self, time: Duration) {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let _ = self.round_trip_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
            (known == 0 || time_us < known).then_some(time_us)
        });
    }

    /// Sets whether we hold this host back ourselves: by a rate limit, after 429 or Retry-After, or by a limit on
    /// connections.
    pub fn set_capped(&self, capped: bool) {
        self.capped.store(capped, Ordering::Relaxed);
    }

    /// Records how long all other hosts were idle and could not help, while this host still owed data.
    pub fn set_waited_alone(&self, time: Duration) {
        self.waited_alone_us.store(u64::try_from(time.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the counters of the host since its clock was made.
    pub fn reading(&self) -> HostReading {
        HostReading {
            name: self.name.clone(),
            bytes: self.bytes.load(Ordering::Relaxed),
            connections: u32::try_from(self.busy_connections.load(Ordering::Relaxed)).unwrap_or(0),
            round_trip_us: self.round_trip_us.load(Ordering::Relaxed),
            capped: self.capped.load(Ordering::Relaxed),
            waited_alone_us: self.waited_alone_us.load(Ordering::Relaxed),
        }
    }
}

/// Counters of one host at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReading {
    /// Name of the host, as in reports.
    pub name: String,
    /// Number of bytes received from the host.
    pub bytes: u64,
    /// Number of connections with unanswered requests.
    pub connections: u32,
    /// The smallest round trip seen, in microseconds; 0 if unknown.
    pub round_trip_us: u64,
    /// Whether we hold the host back ourselves.
    pub capped: bool,
    /// Time in which all faster hosts were idle while this one still owed data, in microseconds.
    pub waited_alone_us: u64,
}

impl HostReading {
    pub(super) fn add(&mut self, other: &HostReading) {
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.capped |= other.capped;
        self.waited_alone_us += other.waited_alone_us;
        self.round_trip_us = match (self.round_trip_us, other.round_trip_us) {
            (0, known) | (known, 0) => known,
            (mine, theirs) => mine.min(theirs),
        };
    }
}

/// A trial (intervention): a host, or one connection to it, paused, and the total rate was compared. It distinguishes
/// the access link from the hosts as the limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// Name of the paused host.
    pub host: String,
    /// Whether the whole host paused; otherwise one connection to it.
    pub new_host: bool,
    /// Rate of all others during the pause, in bytes per second.
    pub before_bytes_per_s: f64,
    /// Total rate without the pause, in bytes per second.
    pub after_bytes_per_s: f64,
    /// Share of the paused host in that rate, in bytes per second; 0 if unknown (one connection).
    pub brought_bytes_per_s: f64,
}

/// Conclusion of a trial about the limit of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Finding {
    /// The others took up the bandwidth that the pause left: they share a limit.
    Shared,
    /// The others did not get faster: each has a limit of its own.
    Apart,
}

impl Trial {
    /// Factor by which the others were faster during the pause; `None` if the share of the paused host is unknown.
    pub(crate) fn others_faster(&self) -> Option<f64> {
        let others = self.after_bytes_per_s - self.brought_bytes_per_s;
        (self.brought_bytes_per_s > 0.0 && others > 0.0).then(|| self.before_bytes_per_s / others)
    }

    /// Conclusion of the trial, if it is clear.
    pub fn finding(&self) -> Option<Finding> {
        let Some(faster) = self.others_faster() else {
            let lost = 1.0 - self.before_bytes_per_s / self.after_bytes_per_s.max(1.0);
            return match lost {
                _ if lost <= FASTER => Some(Finding::Shared),
                // One of two or more connections cannot have carried so much: something else has happened.
                _ if lost > NAMED => None,
                _ => Some(Finding::Apart),
            };
        };
        let most = self.brought_bytes_per_s / (self.after_bytes_per_s - self.brought_bytes_per_s);
        // The others' gain need not equal the whole paused share, because they may soon reach limits of their own.
        // Against a small host's share they cannot become much faster; then most of that share has to be taken up, or
        // not. If they became slower, something else happened: a full disk, a lost host.
        match faster - 1.0 {
            gain if gain >= FASTER.min(NAMED * most) => Some(Finding::Shared),
            gain if gain < -GAIN => None,
            gain if gain <= NO_FASTER.min(NO_OTHER * most) => Some(Finding::Apart),
            _ => None,
        }
    }
}

/// Sums of TCP_INFO over sending sockets, in microseconds (`tcpi_busy_time`, `tcpi_rwnd_limited`,
/// `tcpi_sndbuf_limited`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendReading {
    /// Time for which the sockets were watched; 0 if it was not counted.
    #[serde(default)]
    pub watched_us: u64,
    /// Time with unsent or unacknowledged data.
    pub busy_us: u64,
    /// Part of `busy_us` in which the receiver's window was full.
    pub receiver_limited_us: u64,
    /// Part of `busy_us` in which our send buffer was full.
    pub buffer_limited_us: u64,
}

impl SendReading {
    /// Share of the time in which the path had data to carry, if it was counted.
    pub fn busy(&self) -> Option<f64> {
        (self.watched_us > 0).then(|| (self.busy_us as f64 / self.watched_us as f64).min(1.0))
    }

    /// Difference of the counters to an earlier reading.
    pub fn since(&self, earlier: &SendReading) -> SendReading {
        SendReading {
            watched_us: self.watched_us.saturating_sub(earlier.watched_us),
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            receiver_limited_us: self.receiver_limited_us.saturating_sub(earlier.receiver_limited_us),
            buffer_limited_us: self.buffer_limited_us.saturating_sub(earlier.buffer_limited_us),
        }
    }
}

impl AddAssign for SendReading {
    fn add_assign(&mut self, other: SendReading) {
        self.watched_us += other.watched_us;
        self.busy_us += other.busy_us;
        self.receiver_limited_us += other.receiver_limited_us;
        self.buffer_limited_us += other.buffer_limited_us;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_round_trip_counts() {
        let host = HostClock::new("a");
        for ms in [30, 20, 25] {
            host.round_trip(Duration::from_millis(ms));
        }
        assert_eq!(host.reading().round_trip_us, 20_000);
    }

    #[test]
    fn what_the_others_take_up_tells_what_they_share() {
        let trial = |without| Trial {
            before_bytes_per_s: without,
            after_bytes_per_s: 100.0,
            brought_bytes_per_s: 50.0,
            ..Default::default()
        };
        // Beside it the others bring 50; alone they are soon at a limit of their own.
        assert_eq!(trial(60.0).finding(), Some(Finding::Shared));
        assert_eq!(trial(53.0).finding(), None);
        assert_eq!(trial(50.5).finding(), Some(Finding::Apart));
        // All of them stood still: that is another matter.
        assert_eq!(trial(20.0).finding(), None);
    }

    #[test]
    fn a_gain_within_noise_raises_nothing() {
        let trial = |before| Trial { before_bytes_per_s: before, after_bytes_per_s: 100.0, ..Default::default() };
        assert_eq!(trial(96.0).finding(), Some(Finding::Shared));
        assert_eq!(trial(75.0).finding(), Some(Finding::Apart));
        assert_eq!(trial(5.0).finding(), None);
    }
}
