//! A limit on bytes per second over all connections of a run.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What may be received at once after a quiet time. Short enough that a second's average keeps to
/// the limit, long enough for one read.
const BURST: Duration = Duration::from_millis(100);

/// Bytes are paid for after they were read; whoever overdrew waits. The kernel's receive window
/// then slows the sender.
#[derive(Debug)]
pub struct RateLimit {
    bytes_per_s: f64,
    /// Time at which everything received so far is paid for.
    paid_until: Mutex<Instant>,
}

impl RateLimit {
    /// At most so many bytes per second; at least one.
    pub fn new(bytes_per_s: u64, now: Instant) -> Self {
        RateLimit { bytes_per_s: bytes_per_s.max(1) as f64, paid_until: Mutex::new(now) }
    }

    /// What is worth one read or write under this limit: a burst, and some segments at least.
    pub fn burst_bytes(&self) -> u64 {
        ((self.bytes_per_s * BURST.as_secs_f64()) as u64).max(4 << 10)
    }

    /// Accounts for bytes received and says how long to wait before the next read.
    pub fn pay(&self, bytes: u64, now: Instant) -> Duration {
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let from = (*paid_until).max(now.checked_sub(BURST).unwrap_or(now));
        *paid_until = from + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        paid_until.saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_average_keeps_to_the_limit() {
        let start = Instant::now();
        let limit = RateLimit::new(1_000_000, start);
        let mut now = start;
        for _ in 0..50 {
            now += limit.pay(100_000, now);
        }
        let lasted = (now - start).as_secs_f64();
        assert!((4.8..=5.01).contains(&lasted), "{lasted}");
    }
}
