//! A limit on bytes per second over all connections of a run.

use std::sync::{Arc, Mutex, PoisonError};
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
    fn burst_bytes(&self) -> u64 {
        ((self.bytes_per_s * BURST.as_secs_f64()) as u64).max(4 << 10)
    }

    /// Accounts for bytes received and says how long to wait before the next read.
    pub fn pay(&self, bytes: u64, now: Instant) -> Duration {
        self.spend(bytes, now).1.saturating_duration_since(now)
    }

    /// When the time begins, and when it ends, that so many bytes cost: behind all that was asked for before.
    fn spend(&self, bytes: u64, now: Instant) -> (Instant, Instant) {
        let mut paid_until = self.paid_until.lock().unwrap_or_else(PoisonError::into_inner);
        let from = (*paid_until).max(now.checked_sub(BURST).unwrap_or(now));
        *paid_until = from + Duration::from_secs_f64(bytes as f64 / self.bytes_per_s);
        (from, *paid_until)
    }
}

/// What one connection of many may write under a limit that they share. It is paid for before it is written, so that
/// they take turns: a short question waits for one burst of each of the others, not until they have nothing to send.
#[derive(Debug, Default)]
pub struct Allowance {
    /// Without one, everything is allowed.
    limit: Option<Arc<RateLimit>>,
    /// Paid for, and not written.
    bytes: u64,
    /// They may be written from then on.
    not_before: Option<Instant>,
}

impl Allowance {
    /// Under this limit.
    pub fn new(limit: Option<Arc<RateLimit>>) -> Allowance {
        Allowance { limit, ..Allowance::default() }
    }

    /// Bytes that may be written now, when so many wait to be. What is not written stays allowed.
    pub fn bytes(&mut self, waiting: u64, now: Instant) -> u64 {
        let Some(limit) = &self.limit else { return u64::MAX };
        if self.bytes == 0 && waiting > 0 {
            self.bytes = waiting.min(limit.burst_bytes());
            self.not_before = Some(limit.spend(self.bytes, now).0);
        }
        match self.held_until(now) {
            Some(_) => 0,
            None => self.bytes,
        }
    }

    /// When more may be written, if it is the limit that is waited for.
    pub fn held_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|from| self.bytes > 0 && *from > now)
    }

    /// Of what is allowed, so much was written.
    pub fn written(&mut self, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
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

    #[test]
    fn who_has_little_to_write_waits_for_one_burst_of_each_of_the_others() {
        let start = Instant::now();
        let limit = Arc::new(RateLimit::new(1_000_000, start));
        let allowance = || Allowance::new(Some(Arc::clone(&limit)));
        let (mut busy, mut seldom) = ([allowance(), allowance(), allowance()], allowance());
        let (mut written, mut waited, mut asked) = (0, Duration::ZERO, None);
        for ms in 0..20_000 {
            let now = start + Duration::from_millis(ms);
            // Those with much to write are always asked first.
            for one in &mut busy {
                let bytes = one.bytes(10_000_000, now);
                one.written(bytes);
                written += bytes;
            }
            let since = *asked.get_or_insert(now);
            if seldom.bytes(300, now) > 0 {
                seldom.written(300);
                waited = waited.max(now - since);
                asked = None;
            }
        }
        // And for the one that is on its way.
        assert!(waited <= Duration::from_millis(405), "{waited:?}");
        assert!((19_700_000..=20_400_000).contains(&written), "{written}");
    }

    #[test]
    fn what_is_not_written_stays_allowed() {
        let now = Instant::now();
        let mut allowance = Allowance::new(Some(Arc::new(RateLimit::new(100_000, now))));
        assert_eq!(allowance.bytes(0, now), 0);
        assert_eq!((allowance.bytes(50_000, now), allowance.held_until(now)), (10_000, None));
        allowance.written(4_000);
        assert_eq!(allowance.bytes(50_000, now), 6_000);
        allowance.written(6_000);
        assert_eq!(allowance.bytes(50_000, now), 0);
        let until = allowance.held_until(now).unwrap();
        assert_eq!(allowance.bytes(50_000, until), 10_000);
        assert_eq!(Allowance::default().bytes(1, now), u64::MAX);
    }
}
