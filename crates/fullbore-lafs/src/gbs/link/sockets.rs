//! What the sockets of all connections to a grid hold together, beyond what TCP has sent: no more than a second of the link.
//!
//! What is in a socket cannot be held back, and a connection whose bytes wait behind those of a hundred others looks like
//! one that stalls. How fast the link is shows in what was acknowledged on all connections. A machine without a clock:
//! time comes in.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_wire::tcp_info::TcpInfo;

/// What they may hold in any case: a second of 400 kbit/s.
const LEAST_BYTES: u64 = 48 << 10;

/// Time over which the link's rate is measured: longer than the gap between two bursts of acknowledgements.
const SAMPLE: Duration = Duration::from_millis(100);

/// All sockets of a run.
#[derive(Debug)]
pub struct Sockets {
    begun: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    unsent: u64,
    /// Acknowledged since then.
    acknowledged: u64,
    since: Instant,
    bytes_per_s: f64,
}

impl Default for Sockets {
    fn default() -> Sockets {
        let begun = Instant::now();
        let state = State { unsent: 0, acknowledged: 0, since: begun, bytes_per_s: 0.0 };
        Sockets { begun, state: Mutex::new(state) }
    }
}

impl Sockets {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time until the next of those moments, `every` so long, at which all of them are looked at: each at a time of its
    /// own would wake the process for each.
    pub(super) fn until_look(&self, every: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.begun).as_nanos() % every.as_nanos().max(1);
        every.saturating_sub(Duration::from_nanos(passed as u64))
    }

    /// One of them was looked at.
    pub(super) fn looked(&self, before: &TcpInfo, after: &TcpInfo, now: Instant) {
        let mut state = self.state();
        state.unsent = (state.unsent + u64::from(after.unsent_bytes)).saturating_sub(before.unsent_bytes.into());
        state.acknowledged += after.bytes_acknowledged.saturating_sub(before.bytes_acknowledged);
        let lasted = now.saturating_duration_since(state.since);
        if lasted >= SAMPLE {
            let rate = state.acknowledged as f64 / lasted.as_secs_f64();
            if rate > state.bytes_per_s {
                state.bytes_per_s = rate;
            } else if state.unsent > 0 {
                // A link that had nothing to carry may be as fast as it was.
                state.bytes_per_s = (3.0 * state.bytes_per_s + rate) / 4.0;
            }
            (state.acknowledged, state.since) = (0, now);
        }
    }

    /// One of them is no more, and what it held.
    pub(super) fn closed(&self, last: &TcpInfo) {
        let mut state = self.state();
        state.unsent = state.unsent.saturating_sub(last.unsent_bytes.into());
    }

    /// Unsent bytes that this one may have beside the others.
    pub(super) fn allowed(&self, own: &TcpInfo) -> u64 {
        let state = self.state();
        let others = state.unsent.saturating_sub(own.unsent_bytes.into());
        // Slow start is not to wait until a sample is over.
        let so_far = state.acknowledged as f64 / SAMPLE.as_secs_f64();
        (state.bytes_per_s.max(so_far) as u64).max(LEAST_BYTES).saturating_sub(others)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(unsent_bytes: u32, bytes_acknowledged: u64) -> TcpInfo {
        TcpInfo { unsent_bytes, bytes_acknowledged, ..TcpInfo::default() }
    }

    #[test]
    fn all_are_looked_at_at_once() {
        let (sockets, every) = (Sockets::default(), Duration::from_millis(10));
        let at = |us| {
            let now = sockets.begun + Duration::from_micros(us);
            now + sockets.until_look(every, now) - sockets.begun
        };
        assert_eq!([0, 1, 9_999, 10_000, 123_456].map(at), [10, 10, 10, 20, 130].map(Duration::from_millis));
    }

    #[test]
    fn however_many_they_are_they_hold_a_second_of_the_link() {
        let (sockets, begun) = (Sockets::default(), Instant::now());
        let none = socket(0, 0);
        for count in 0..12 {
            assert_eq!(sockets.allowed(&none), LEAST_BYTES - count * 4096);
            sockets.looked(&none, &socket(4 << 10, 0), begun);
        }
        assert_eq!((sockets.allowed(&none), sockets.allowed(&socket(4 << 10, 0))), (0, 4 << 10), "its own is its own");
        sockets.looked(&none, &socket(0, 10_000), begun);
        assert_eq!(sockets.allowed(&none), 100_000 - LEAST_BYTES, "at once");
        // A megabyte in a second.
        let mut before = socket(4 << 10, 0);
        for step in 1..=100 {
            let after = socket(4 << 10, step * 10_000);
            sockets.looked(&before, &after, begun + Duration::from_millis(step * 10));
            before = after;
        }
        let allowed = sockets.allowed(&none);
        assert!((900_000..1_000_000).contains(&allowed), "{allowed}");
        sockets.closed(&before);
        assert_eq!(sockets.allowed(&none), allowed + (4 << 10));
        // Nothing for as long, while something waits to be sent.
        let stands = socket(0, before.bytes_acknowledged);
        for step in 101..=400 {
            sockets.looked(&stands, &stands, begun + Duration::from_millis(step * 10));
        }
        assert_eq!(sockets.allowed(&socket(11 * 4096, 0)), LEAST_BYTES, "it has become slow");
    }
}
