//! A limit on bytes per second over all connections of a run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time whose bytes may pass at once after a quiet time. Short enough that a second's average keeps to the limit, long
/// enough for one read.
const BURST: Duration = Duration::from_millis(100);

/// A limit of bytes per second over all connections. A reader pays for bytes after reading them, a sender before
/// sending them. Either waits as long as [`RateLimit::pay`] says. The kernel's receive window then slows the other end
/// down.
#[derive(Debug)]
pub struct RateLimit {
    state: Mutex<State>,
}

/// The limits of a run in each direction; `None` means unlimited.
#[derive(Debug, Clone, Default)]
pub struct RateLimits {
    /// Limit of sent bytes.
    pub send: Option<Arc<RateLimit>>,
    /// Limit of received bytes.
    pub receive: Option<Arc<RateLimit>>,
}

impl RateLimits {
    /// Creates a limit for sending only.
    pub fn sending(bytes_per_s: Option<u64>) -> RateLimits {
        RateLimits { send: shared(bytes_per_s), receive: None }
    }

    /// Creates a limit for receiving only.
    pub fn receiving(bytes_per_s: Option<u64>) -> RateLimits {
        RateLimits { send: None, receive: shared(bytes_per_s) }
    }
}

fn shared(bytes_per_s: Option<u64>) -> Option<Arc<RateLimit>> {
    bytes_per_s.map(|rate| Arc::new(RateLimit::new(rate, Instant::now())))
}

#[derive(Debug)]
struct State {
    /// The limit; 0 for none.
    bytes_per_s: u64,
    /// Time at which all bytes so far are paid for.
    paid_until: Instant,
    changes: u64,
}

impl RateLimit {
    /// Limits to `bytes_per_s`; 0 means no limit.
    pub fn new(bytes_per_s: u64, now: Instant) -> Self {
        RateLimit { state: Mutex::new(State { bytes_per_s, paid_until: now, changes: 0 }) }
    }

    /// Replaces the limit during the run. Bytes paid for under the old limit cause no further wait.
    pub fn set(&self, bytes_per_s: u64) {
        let mut state = self.lock();
        *state = State { bytes_per_s, paid_until: Instant::now(), changes: state.changes + 1 };
    }

    /// The limit in bytes per second; 0 means no limit.
    pub fn bytes_per_s(&self) -> u64 {
        self.lock().bytes_per_s
    }

    /// Number of times that [`RateLimit::set`] replaced the limit.
    pub fn changes(&self) -> u64 {
        self.lock().changes
    }

    /// Whether any payer has to wait at present.
    pub fn is_awaited(&self) -> bool {
        let state = self.lock();
        state.bytes_per_s > 0 && state.paid_until > Instant::now()
    }

    /// Size of a read or write that suits this limit: one burst, and at least some segments.
    fn burst_bytes(&self) -> u64 {
        ((self.bytes_per_s() as f64 * BURST.as_secs_f64()) as u64).max(4 << 10)
    }

    /// Number of bytes to read at once; `most` without a limit.
    pub(crate) fn read_bytes(&self, most: usize) -> usize {
        match self.bytes_per_s() {
            0 => most,
            _ => usize::try_from(self.burst_bytes()).unwrap_or(usize::MAX).min(most),
        }
    }

    /// Accounts for `bytes` and returns how long to wait.
    pub fn pay(&self, bytes: u64, now: Instant) -> Duration {
        self.spend(bytes, now).1.saturating_duration_since(now)
    }

    /// Start and end of the time that `bytes` cost, behind everything paid for before.
    fn spend(&self, bytes: u64, now: Instant) -> (Instant, Instant) {
        let mut state = self.lock();
        if state.bytes_per_s == 0 {
            return (now, now);
        }
        let from = state.paid_until.max(now.checked_sub(BURST).unwrap_or(now));
        state.paid_until = from + Duration::from_secs_f64(bytes as f64 / state.bytes_per_s as f64);
        (from, state.paid_until)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One connection's share of a common limit. It pays before it writes, so that connections take turns. A short request
/// waits for one burst of each other connection, not until they have nothing to send.
#[derive(Debug, Default)]
pub struct Allowance {
    /// The common limit; without one, everything is allowed.
    limit: Option<Arc<RateLimit>>,
    /// Bytes that are paid for and not written.
    bytes: u64,
    /// Time from which on they may be written.
    not_before: Option<Instant>,
}

impl Allowance {
    /// Creates an allowance under this limit; `None` for no limit.
    pub fn new(limit: Option<Arc<RateLimit>>) -> Allowance {
        Allowance { limit, ..Allowance::default() }
    }

    /// Number of bytes that may be written now, if `waiting` bytes wait. Bytes that are not written stay allowed.
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

    /// Time at which more may be written, if the limit delays it.
    pub(crate) fn held_until(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|from| self.bytes > 0 && *from > now)
    }

    /// Records that allowed bytes were written.
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
    fn a_new_limit_counts_at_once() {
        let now = Instant::now();
        let limit = RateLimit::new(1_000_000, now);
        limit.pay(1, now);
        assert!(!limit.is_awaited(), "less was paid for than a burst");
        assert!(limit.pay(1 << 40, now) > Duration::from_secs(3600) && limit.is_awaited());
        limit.set(0);
        assert_eq!((limit.pay(1 << 40, now), limit.is_awaited(), limit.changes()), (Duration::ZERO, false, 1));
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
