//! Adds connections while they make a copy faster.
//!
//! The number that a path needs is unknown at first, and changes within hours. So a copy begins with a few connections,
//! and tries more from time to time. If they make it faster, it tries still more; if not, it keeps the number until the
//! rate changes. If a queue has formed before the link, the link is full, and nothing is tried.

use std::time::Duration;

/// Most connections for content.
pub(crate) const MOST_STREAMS: u8 = 48;
/// Time for new connections to get up to speed.
pub(crate) const SETTLE: Duration = Duration::from_millis(1500);
/// Time over which the rate of each number is measured.
pub(crate) const TRIAL: Duration = Duration::from_millis(1500);
/// Duration of one step: [`SETTLE`] and [`TRIAL`].
pub(crate) const STEP: Duration = SETTLE.saturating_add(TRIAL);
/// Least speed-up for a successful trial; less may be chance.
const GAIN: f64 = 1.08;
/// Rate in bytes per second above which no more connections are needed: four fill what a core encrypts.
const ENOUGH_BYTES_PER_S: f64 = 1.5e9;
/// Steps to rest after a failed trial: 24 seconds at first, doubled after each further failure. Connections that do not
/// help stay open, so there must not be many such trials.
const FIRST_REST: u32 = 8;
/// A rate that differs by this factor is a different one: the path, or its use by others, has changed.
const CHANGED: f64 = 1.3;

/// The decision after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Add this number of connections, then try again.
    More(u8),
    /// Keep the current number.
    Stay,
}

/// Decides by the rates of trials.
#[derive(Debug)]
pub(crate) struct Growth {
    streams: u8,
    state: State,
    /// Number of steps of the next rest.
    rest: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The current number is being tried. `before_bytes_per_s` is the rate before the last connections were added.
    Trial { before_bytes_per_s: Option<f64> },
    /// Nothing is tried for this number of steps, as long as the rate is about the same.
    Rest { looks: u32, bytes_per_s: f64 },
}

impl Growth {
    /// Starts with this number of connections.
    pub(crate) fn new(streams: u8) -> Growth {
        Growth { streams, state: State::Trial { before_bytes_per_s: None }, rest: FIRST_REST }
    }

    /// Current number of connections.
    pub(crate) fn streams(&self) -> u8 {
        self.streams
    }

    /// Decides by the rate with the current connections. `queued` means that the link is full.
    pub(crate) fn step(&mut self, bytes_per_s: f64, queued: bool) -> Step {
        let is_enough = queued || self.streams >= MOST_STREAMS || bytes_per_s >= ENOUGH_BYTES_PER_S;
        let is_about = |rate: f64| bytes_per_s < CHANGED * rate && bytes_per_s * CHANGED > rate;
        match self.state {
            State::Rest { looks: looks @ 1.., bytes_per_s } => {
                self.state = State::Rest { looks: looks - 1, bytes_per_s };
                Step::Stay
            }
            State::Rest { bytes_per_s: rate, .. } if is_enough || is_about(rate) => Step::Stay,
            State::Trial { before_bytes_per_s: Some(before) } if bytes_per_s < GAIN * before => self.pause(bytes_per_s),
            _ if is_enough => self.pause(bytes_per_s),
            _ => self.more(bytes_per_s),
        }
    }

    fn pause(&mut self, bytes_per_s: f64) -> Step {
        self.state = State::Rest { looks: self.rest, bytes_per_s };
        self.rest = self.rest.saturating_mul(2);
        Step::Stay
    }

    fn more(&mut self, bytes_per_s: f64) -> Step {
        self.state = State::Trial { before_bytes_per_s: Some(bytes_per_s) };
        let more = (self.streams / 2).max(1).min(MOST_STREAMS - self.streams);
        self.streams += more;
        Step::More(more)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many connections there are in the end, if each brings so much and the path has so much.
    fn grown(first: u8, each: f64, path: f64) -> u8 {
        let mut growth = Growth::new(first);
        let mut streams = first;
        while let Step::More(more) = growth.step((each * f64::from(streams)).min(path), false) {
            streams += more;
        }
        assert_eq!(streams, growth.streams);
        streams
    }

    #[test]
    fn there_are_as_many_as_the_path_needs_and_one_trial_more() {
        assert_eq!(grown(4, 30e6, 117e6), 6, "four are enough");
        assert!((12..=24).contains(&grown(4, 10e6, 117e6)));
        assert_eq!(grown(16, 1e6, 1e9), MOST_STREAMS);
        assert_eq!(grown(4, 1e9, 4e9), 4, "nothing more is needed");
        assert_eq!(Growth::new(16).step(117e6, true), Step::Stay, "the link is full");
    }

    #[test]
    fn after_a_lost_trial_another_one_comes_when_the_rate_is_another() {
        let mut growth = Growth::new(4);
        assert_eq!((growth.step(50e6, false), growth.step(50e6, false)), (Step::More(2), Step::Stay), "lost");
        assert!((0..1000).all(|_| growth.step(52e6, false) == Step::Stay), "nothing has changed");
        assert_eq!(growth.step(90e6, true), Step::Stay, "a full link needs none");
        // Somebody else's traffic is gone: perhaps the path has more for us.
        assert_eq!((growth.step(90e6, false), growth.step(140e6, false)), (Step::More(3), Step::More(4)));
        // Lost again: now the rest is longer, whatever the rate does.
        assert_eq!(growth.step(140e6, false), Step::Stay);
        let rest = (0..1000).take_while(|_| growth.step(20e6, false) == Step::Stay).count();
        assert_eq!(rest, 2 * FIRST_REST as usize);
    }
}
