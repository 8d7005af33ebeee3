//! Measures the rate of arriving bytes on one connection.

use std::time::{Duration, Instant};

/// Length of one sample. Shorter ones see the gaps between bursts; longer ones miss slow start.
const SAMPLE: Duration = Duration::from_millis(100);

/// Minimum duration assumed for a burst: shorter times are noise.
const BURST_LEAST: Duration = Duration::from_millis(5);

/// Time after the first byte was due from which on the rate is estimated from the received bytes. A guess: two turns of
/// a scheduler.
const FIRST_SIGHT: Duration = Duration::from_millis(5);

/// Weight of the newest sample in the moving average.
const WEIGHT: f64 = 0.3;

/// A moving average of received bytes per second, and the newest sample.
#[derive(Clone, Debug)]
pub struct Rate {
    average: Option<f64>,
    newest: f64,
    since: Instant,
    bytes: u64,
    /// Nothing has arrived since the idle time: that is the round trip, not a rate.
    waits: bool,
    /// Rate of the best burst, whether or not it filled a sample.
    burst: f64,
}

impl Rate {
    /// Creates a meter that has counted nothing.
    pub fn new(now: Instant) -> Self {
        Rate { average: None, newest: 0.0, since: now, bytes: 0, waits: true, burst: 0.0 }
    }

    /// Begins a new sample after an idle time, which says nothing about the rate.
    pub fn restart(&mut self, now: Instant) {
        self.since = now;
        self.bytes = 0;
        self.waits = true;
    }

    /// Ends the measurement when all requested bytes have arrived. They give a rate, without the round trip to the
    /// first byte. Later silence counts for nothing.
    pub fn end(&mut self, round_trip: Duration, now: Instant) {
        let lasted = now.saturating_duration_since(self.since);
        if self.bytes > 0 {
            let arriving = lasted.saturating_sub(round_trip).max(BURST_LEAST);
            self.burst = self.burst.max(self.bytes as f64 / arriving.as_secs_f64());
        }
        self.restart(now);
    }

    /// Counts bytes that were received at `now`.
    pub fn add(&mut self, bytes: u64, now: Instant) {
        self.bytes += bytes;
        self.settle(now);
        self.waits = false;
    }

    /// Closes a sample that is old enough, even if nothing arrived.
    pub fn settle(&mut self, now: Instant) {
        let lasted = now.saturating_duration_since(self.since);
        if lasted < SAMPLE {
            return;
        }
        if self.waits && self.bytes == 0 {
            return;
        }
        self.newest = self.bytes as f64 / lasted.as_secs_f64();
        self.average = Some(match self.average {
            None => self.newest,
            Some(average) => average + weight(lasted.as_secs_f64()) * (self.newest - average),
        });
        self.since = now;
        self.bytes = 0;
    }

    /// Best estimate at `now`, in bytes per second: the average and the bytes since then, silence included. Before the
    /// first sample it counts from the time when the first byte was due, one round trip after the request. `None` for
    /// the first moments.
    pub fn so_far(&self, round_trip: Duration, now: Instant) -> Option<f64> {
        let lasted = now.saturating_duration_since(self.since);
        let Some(average) = self.average else {
            let due = lasted.saturating_sub(round_trip);
            return (due >= FIRST_SIGHT).then(|| self.bytes as f64 / due.as_secs_f64());
        };
        if self.waits && lasted <= round_trip {
            return Some(average);
        }
        let lasted_s = lasted.max(BURST_LEAST).as_secs_f64();
        // If bytes arrive in bursts, the next one may come within a sample.
        let newest = self.bytes as f64 / lasted_s.max(SAMPLE.as_secs_f64());
        Some(average + weight(lasted_s) * (newest - average))
    }

    /// Whether nothing has arrived of the present requests, after all earlier ones were complete.
    pub fn waits(&self) -> bool {
        self.waits
    }

    /// Bytes per second on average; `None` before the first sample.
    pub fn average(&self) -> Option<f64> {
        self.average
    }

    /// Average in bytes per second; if no sample was ever full, the rate of the best burst.
    pub fn at_least(&self) -> Option<f64> {
        self.average.or_else(|| (self.burst > 0.0).then_some(self.burst))
    }

    /// The larger of average and newest sample: while a connection speeds up, the average lags.
    pub fn latest(&self) -> Option<f64> {
        self.average.map(|average| average.max(self.newest))
    }
}

/// Weight of a sample of this length: a long one stands for several short ones.
fn weight(lasted_s: f64) -> f64 {
    1.0 - (1.0 - WEIGHT).powf(lasted_s / SAMPLE.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_follows_a_steady_rate_and_decays_in_silence() {
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
    fn a_short_burst_tells_about_how_fast_it_goes() {
        let start = Instant::now();
        let mut rate = Rate::new(start);
        assert_eq!(rate.at_least(), None);
        rate.add(1_000, start + Duration::from_millis(20));
        rate.end(Duration::from_millis(10), start + Duration::from_millis(20));
        let least = rate.at_least().expect("a burst");
        assert!((least - 100_000.0).abs() < 1.0 && rate.average().is_none(), "{least}");
        rate.end(Duration::ZERO, start + Duration::from_secs(5));
        assert_eq!(rate.at_least(), Some(least), "silence after the burst is nobody's fault");
    }
}
