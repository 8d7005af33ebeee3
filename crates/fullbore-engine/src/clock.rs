//! Time as the engine sees it: a duration since the clock began.
//!
//! The data path asks a `Clock` instead of the operating system, so that time
//! limits, back-off and journals can be tested with a simulated clock that
//! moves only when the test says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A monotonic clock, real or simulated. Clones share the same time.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's monotonic clock, counted from the given instant.
    Real(Instant),
    /// A clock that a test moves; nanoseconds since its start.
    Simulated(Arc<AtomicU64>),
}

impl Default for Clock {
    fn default() -> Clock {
        Clock::real()
    }
}

impl Clock {
    /// The machine's clock, starting at zero now.
    pub fn real() -> Clock {
        Clock::Real(Instant::now())
    }

    /// A clock that stands at zero until [`Clock::advance`] moves it.
    pub fn simulated() -> Clock {
        Clock::Simulated(Arc::new(AtomicU64::new(0)))
    }

    /// Time since the clock began.
    pub fn now(&self) -> Duration {
        match self {
            Clock::Real(origin) => origin.elapsed(),
            Clock::Simulated(nanoseconds) => Duration::from_nanos(nanoseconds.load(Ordering::Acquire)),
        }
    }

    /// Moves a simulated clock forward; a real clock moves by itself and ignores this.
    pub fn advance(&self, by: Duration) {
        if let Clock::Simulated(nanoseconds) = self {
            let by_ns = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
            nanoseconds.fetch_add(by_ns, Ordering::AcqRel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_simulated_clock_moves_only_when_told_and_clones_share_it() {
        let clock = Clock::simulated();
        let same = clock.clone();
        assert_eq!(clock.now(), Duration::ZERO);
        clock.advance(Duration::from_millis(250));
        assert_eq!(same.now(), Duration::from_millis(250));
    }

    #[test]
    fn a_real_clock_never_goes_back() {
        let clock = Clock::real();
        let before = clock.now();
        clock.advance(Duration::from_secs(1000));
        let after = clock.now();
        assert!(after >= before && after < Duration::from_secs(1000));
    }
}
