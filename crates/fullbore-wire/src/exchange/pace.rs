//! The pace of requests to a server that asks for fewer (`503 SlowDown`, `429`): their number at once, and pauses. Time
//! is an argument; there is no clock here.
//!
//! The rule is TCP's: halve at once, and add one for each round of answers. A burst of refusals counts as one sign.

use std::time::{Duration, Instant};

/// Refusals within this time belong to the same burst.
const ONE_BURST: Duration = Duration::from_millis(500);

/// First pause; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(100);

/// Longest pause of our own.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// Longest pause that a server may request.
const ASKED_MAX: Duration = Duration::from_secs(60);

/// Pace of the requests to one server.
#[derive(Debug, Clone)]
pub struct Pace {
    most: f64,
    allowed: f64,
    pause: Duration,
    not_before: Option<Instant>,
    slowed: Option<Instant>,
}

impl Pace {
    /// Starts with at most `most` requests at once.
    pub fn new(most: usize) -> Pace {
        let most = most.max(1) as f64;
        Pace { most, allowed: most, pause: PAUSE_FIRST, not_before: None, slowed: None }
    }

    /// Reduces the pace below `in_flight`, the number of requests that the server had. `asked` is its Retry-After.
    /// `chance`, from 0 to 1, spreads requests that were refused together.
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

    /// Records a good answer.
    pub fn answered(&mut self) {
        if self.allowed < self.most {
            self.allowed = (self.allowed + 1.0 / self.allowed).min(self.most);
            self.pause = (self.pause - self.pause / 16).max(PAUSE_FIRST);
        }
    }

    /// Checks whether a further request may be sent beside `in_flight`.
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
    fn the_pace_halves_at_once_and_recovers_step_by_step() {
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
