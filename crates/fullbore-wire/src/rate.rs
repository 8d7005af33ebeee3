//! How fast bytes arrive on one connection.

use std::time::{Duration, Instant};

/// Length of one sample. Shorter ones see the gaps between bursts, longer ones miss slow start.
const SAMPLE: Duration = Duration::from_millis(100);

/// Weight of the newest sample in the moving average.
const WEIGHT: f64 = 0.3;

/// A moving average of received bytes per second, and the newest sample.
#[derive(Clone, Debug)]
pub struct Rate {
    average: Option<f64>,
    newest: f64,
    since: Instant,
    bytes: u64,
    /// Rate of the best burst that ended before a sample was over.
    burst: f64,
}

impl Rate {
    /// Nothing received yet.
    pub fn new(now: Instant) -> Self {
        Rate { average: None, newest: 0.0, since: now, bytes: 0, burst: 0.0 }
    }

    /// Begins a sample: the connection was idle until now, which says nothing about its speed.
    pub fn restart(&mut self, now: Instant) {
        self.since = now;
        self.bytes = 0;
    }

    /// All that was asked for has come: what came was at least so fast, round trip included, and from
    /// now on the silence says nothing.
    pub fn end(&mut self, now: Instant) {
        let lasted = now.saturating_duration_since(self.since);
        if self.bytes > 0 && !lasted.is_zero() {
            self.burst = self.burst.max(self.bytes as f64 / lasted.as_secs_f64());
        }
        self.restart(now);
    }

    /// Bytes arrived.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        self.settle(now);
    }

    /// Closes a sample that is old enough, also when nothing arrived.
    pub fn settle(&mut self, now: Instant) {
        let lasted = now.saturating_duration_since(self.since);
        if lasted < SAMPLE {
            return;
        }
        self.newest = self.bytes as f64 / lasted.as_secs_f64();
        // A long sample stands for several short ones.
        let weight = 1.0 - (1.0 - WEIGHT).powf(lasted.as_secs_f64() / SAMPLE.as_secs_f64());
        self.average = Some(match self.average {
            None => self.newest,
            Some(average) => average + weight * (self.newest - average),
        });
        self.since = now;
        self.bytes = 0;
    }

    /// Bytes per second on average; `None` before the first sample.
    pub fn average(&self) -> Option<f64> {
        self.average
    }

    /// Bytes per second on average, or where no sample was ever full, what is surely possible.
    pub fn at_least(&self) -> Option<f64> {
        self.average.or_else(|| (self.burst > 0.0).then_some(self.burst))
    }

    /// The larger of average and newest sample: while a connection speeds up, the average lags.
    pub fn latest(&self) -> Option<f64> {
        self.average.map(|average| average.max(self.newest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_a_steady_rate_and_decays_in_silence() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.average(), None);
        for step in 1..=40 {
            rate.add(5_000, start + Duration::from_millis(50 * step));
        }
        let steady = rate.average().expect("samples");
        assert!((steady - 100_000.0).abs() < 1_000.0, "{steady}");
        rate.settle(start + Duration::from_secs(5));
        assert!(rate.average().expect("samples") < 1_000.0);
    }

    #[test]
    fn a_short_burst_tells_the_least_that_is_possible() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.at_least(), None);
        rate.add(1_000, start + Duration::from_millis(20));
        rate.end(start + Duration::from_millis(20));
        let least = rate.at_least().expect("a burst");
        assert!((least - 50_000.0).abs() < 1.0 && rate.average().is_none(), "{least}");
        rate.end(start + Duration::from_secs(5));
        assert_eq!(rate.at_least(), Some(least), "silence after the burst is nobody's fault");
    }
}
