//! How many requests a server is given at once when it asks for less (`503 SlowDown`, `429`), and how long it is left
//! alone. A machine without a clock: time comes in.
//!
//! As TCP does: half of it at once, and one more for each round of answers. A burst of refusals is one sign, not many.

use std::time::{Duration, Instant};

/// Refusals within this time are answers to the same burst.
const ONE_BURST: Duration = Duration::from_millis(500);

/// The first pause; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// The longest pause of our own accord.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The longest that a server may ask for.
const ASKED_MAX: Duration = Duration::from_secs(60);

/// The pace of a run.
#[derive(Debug, Clone)]
pub struct Pace {
    most: f64,
    allowed: f64,
    pause: Duration,
    not_before: Option<Instant>,
    slowed: Option<Instant>,
}

impl Pace {
    /// At most so many requests at once.
    pub fn new(most: usize) -> Pace {
        let most = most.max(1) as f64;
        Pace { most, allowed: most, pause: PAUSE_FIRST, not_before: None, slowed: None }
    }

    /// The server wants less than the `in_flight` that it had. `asked` is its Retry-After; `chance`, from 0 to 1,
    /// spreads those who were refused together.
    pub fn slow_down(&mut self, in_flight: usize, asked: Option<Duration>, chance: f64, now: Instant) {
        let again =
            asked.unwrap_or_default().min(ASKED_MAX).max(self.pause.mul_f64(0.5 + 0.5 * chance.clamp(0.0, 1.0)));
        self.not_before = Some(self.not_before.map_or(now + again, |until| until.max(now + again)));
        if self.slowed.is_some_and(|slowed| now.saturating_duration_since(slowed) < ONE_BURST) {
            return;
        }
        self.slowed = Some(now);
        self.allowed = (self.allowed.min(in_flight as f64) / 2.0).max(1.0);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }

    /// An answer as it should be.
    pub fn answered(&mut self) {
        if self.allowed < self.most {
            self.allowed = (self.allowed + 1.0 / self.allowed).min(self.most);
            self.pause = (self.pause - self.pause / 16).max(PAUSE_FIRST);
        }
    }

    /// Whether one more may be sent beside `in_flight`; otherwise when to ask again, if it is time that is missing.
    ///
    /// # Errors
    /// `Some` with the time at which the pause ends; `None` if an answer must arrive before the next request.
    pub fn may(&mut self, in_flight: usize, now: Instant) -> Result<(), Option<Instant>> {
        if let Some(until) = self.not_before {
            if now < until {
                return Err(Some(until));
            }
            self.not_before = None;
        }
        if (in_flight as f64) < self.allowed.floor() { Ok(()) } else { Err(None) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_at_once_and_back_step_by_step() {
        let start = Instant::now();
        let mut pace = Pace::new(64);
        assert!(pace.may(63, start).is_ok());
        for _ in 0..50 {
            pace.slow_down(64, None, 0.0, start);
        }
        let Err(Some(until)) = pace.may(0, start) else { panic!("no pause") };
        assert!(until > start && pace.may(31, until).is_ok() && pace.may(32, until).is_err());
        for _ in 0..33 {
            pace.answered();
        }
        assert!(pace.may(32, until).is_ok() && pace.may(33, until).is_err());
        for _ in 0..10_000 {
            pace.answered();
        }
        assert!(pace.may(63, until).is_ok() && pace.may(64, until).is_err());
    }

    #[test]
    fn one_always_goes_and_what_is_asked_for_is_bounded() {
        let mut now = Instant::now();
        let mut pace = Pace::new(8);
        for _ in 0..20 {
            now += ONE_BURST;
            pace.slow_down(8, Some(Duration::from_secs(100_000)), 1.0, now);
        }
        assert_eq!(pace.may(0, now), Err(Some(now + ASKED_MAX)));
        now += ASKED_MAX;
        assert_eq!(pace.may(0, now), Ok(()));
        assert_eq!(pace.may(1, now), Err(None));
    }
}
