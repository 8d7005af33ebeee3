//! What the wire tells the verdict: bytes per host, round-trip times, trials,
//! and the kernel's counters of sending sockets.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counters of one host, kept by the connections to it.
#[derive(Debug)]
pub struct HostClock {
    name: String,
    bytes: AtomicU64,
    busy_connections: AtomicI64,
    round_trip_us: AtomicU64,
    capped: AtomicBool,
}

impl HostClock {
    pub(super) fn new(name: &str) -> HostClock {
        HostClock {
            name: name.to_owned(),
            bytes: AtomicU64::new(0),
            busy_connections: AtomicI64::new(0),
            round_trip_us: AtomicU64::new(0),
            capped: AtomicBool::new(false),
        }
    }

    /// The host's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Bytes received from it, wanted or not.
    pub fn received(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A connection has requests outstanding from now on.
    pub fn connection_busy(&self) {
        self.busy_connections.fetch_add(1, Ordering::Relaxed);
    }

    /// A connection has no requests outstanding any more, or is gone.
    pub fn connection_idle(&self) {
        self.busy_connections.fetch_sub(1, Ordering::Relaxed);
    }

    /// A measured round trip; the smallest one is kept, since larger ones
    /// include the queues we fill ourselves.
    pub fn round_trip(&self, time: Duration) {
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1);
        let _ = self.round_trip_us.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |known| {
            (known == 0 || time_us < known).then_some(time_us)
        });
    }

    /// Whether we hold this host back ourselves (our rate limit, 429 and
    /// Retry-After, a limit of connections that it could exceed).
    pub fn set_capped(&self, capped: bool) {
        self.capped.store(capped, Ordering::Relaxed);
    }

    /// The counters now.
    pub fn reading(&self) -> HostReading {
        HostReading {
            name: self.name.clone(),
            bytes: self.bytes.load(Ordering::Relaxed),
            connections: u32::try_from(self.busy_connections.load(Ordering::Relaxed)).unwrap_or(0),
            round_trip_us: self.round_trip_us.load(Ordering::Relaxed),
            capped: self.capped.load(Ordering::Relaxed),
        }
    }
}

/// What was counted for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostReading {
    /// The host's name.
    pub name: String,
    /// Bytes received.
    pub bytes: u64,
    /// Connections with requests outstanding.
    pub connections: u32,
    /// The smallest round trip seen, in microseconds; 0 if unknown.
    pub round_trip_us: u64,
    /// Whether we hold it back ourselves.
    pub capped: bool,
}

impl HostReading {
    pub(super) fn add(&mut self, other: &HostReading) {
        self.bytes += other.bytes;
        self.connections += other.connections;
        self.capped |= other.capped;
        self.round_trip_us = match (self.round_trip_us, other.round_trip_us) {
            (0, known) | (known, 0) => known,
            (mine, theirs) => mine.min(theirs),
        };
    }
}

/// An intervention: one more connection or host was used, and this is what
/// became of the total rate. It tells the access link from the hosts' side.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Trial {
    /// The host that got a connection more.
    pub host: String,
    /// Whether the host was a new one (else: one more connection to it).
    pub new_host: bool,
    /// Total rate before, in bytes per second, once steady.
    pub before_bytes_per_s: f64,
    /// Total rate after, in bytes per second, once steady.
    pub after_bytes_per_s: f64,
    /// What the new host itself brings of the total after; 0 when not known (one more connection).
    pub brought_bytes_per_s: f64,
}

/// Gains below this are noise: rates over a second or two vary by a few per
/// cent on a quiet path (a guess, to be tuned on the matrix).
const RAISED: f64 = 1.08;

/// Share of what a new host brings that must be extra, when that is known: what the others lose to it
/// came over the same link.
const EXTRA: f64 = 0.5;

impl Trial {
    /// Whether the total rose.
    pub fn raised(&self) -> bool {
        if self.brought_bytes_per_s > 0.0 {
            return self.after_bytes_per_s - self.before_bytes_per_s > EXTRA * self.brought_bytes_per_s;
        }
        self.after_bytes_per_s > self.before_bytes_per_s * RAISED
    }
}

/// TCP_INFO of sending sockets, summed over them, in microseconds
/// (`tcpi_busy_time`, `tcpi_rwnd_limited`, `tcpi_sndbuf_limited`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SendReading {
    /// Time with unsent or unacknowledged data.
    pub busy_us: u64,
    /// Of it, held up by the receiver's window.
    pub receiver_limited_us: u64,
    /// Of it, held up by our send buffer.
    pub buffer_limited_us: u64,
}

impl SendReading {
    /// What was counted since `earlier`.
    pub fn since(&self, earlier: &SendReading) -> SendReading {
        SendReading {
            busy_us: self.busy_us.saturating_sub(earlier.busy_us),
            receiver_limited_us: self.receiver_limited_us.saturating_sub(earlier.receiver_limited_us),
            buffer_limited_us: self.buffer_limited_us.saturating_sub(earlier.buffer_limited_us),
        }
    }
}

impl AddAssign for SendReading {
    fn add_assign(&mut self, other: SendReading) {
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
    fn what_a_new_host_takes_from_the_others_is_not_extra() {
        let trial = |before| Trial {
            before_bytes_per_s: before,
            after_bytes_per_s: 100.0,
            brought_bytes_per_s: 25.0,
            ..Default::default()
        };
        // Without it the others brought 90, more than the 75 they bring beside it.
        assert!(!trial(90.0).raised());
        assert!(trial(76.0).raised());
    }

    #[test]
    fn a_gain_within_noise_raises_nothing() {
        let trial = |after| Trial { before_bytes_per_s: 100.0, after_bytes_per_s: after, ..Default::default() };
        assert!(!trial(104.0).raised());
        assert!(trial(120.0).raised());
    }
}
