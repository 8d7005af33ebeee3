//! More connections while more connections help.
//!
//! What a path needs is not known before. So there are a few at first, and now and then some more: if the copy
//! gets faster by them there will be still more, if not it stays at what there is. Where a queue stands before the
//! link, it is full already, and nothing is tried.

use std::time::Duration;

/// Most connections for content.
pub const MOST_STREAMS: u8 = 48;
/// How long each number is tried, after a moment to get going.
pub const SETTLE: Duration = Duration::from_millis(1500);
pub const TRIAL: Duration = Duration::from_millis(1500);
/// A trial is won by so much more; less may be chance.
const GAIN: f64 = 1.08;
/// A rate that no more connections are needed for, in bytes per second: four fill what a core encrypts.
const ENOUGH_BYTES_PER_S: f64 = 1.5e9;

/// What to do after a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// So many more connections, and then another trial.
    More(u8),
    /// It stays as it is.
    Stay,
}

/// Decides from the rates of trials.
#[derive(Debug)]
pub struct Growth {
    streams: u8,
    before_bytes_per_s: Option<f64>,
}

impl Growth {
    /// With so many connections at first.
    pub fn new(streams: u8) -> Growth {
        Growth { streams, before_bytes_per_s: None }
    }

    /// How many there are now.
    pub fn streams(&self) -> u8 {
        self.streams
    }

    /// With as many connections as there are, this is the rate; `queued`: the link is full.
    pub fn step(&mut self, bytes_per_s: f64, queued: bool) -> Step {
        let won = self.before_bytes_per_s.is_none_or(|before| bytes_per_s >= GAIN * before);
        if !won || queued || self.streams >= MOST_STREAMS || bytes_per_s >= ENOUGH_BYTES_PER_S {
            return Step::Stay;
        }
        self.before_bytes_per_s = Some(bytes_per_s);
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
}
