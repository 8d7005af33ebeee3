//! How many tasks a worker asks for.
//!
//! A fixed number would let a worker hold the eight largest files of an archive while others are idle: in the
//! simulation, 20 workers then take 1.8 times the ideal time. So a worker holds three seconds of work at its own rate,
//! and one very large file.

use std::collections::VecDeque;
use std::time::Duration;

/// Work that a worker holds in advance: more than a round trip to a distant queue, less than the end of a run.
const AHEAD: Duration = Duration::from_secs(3);

/// Tasks that a worker holds at least, so that the next one is there when one ends.
const TASKS_MIN: usize = 2;

/// Tasks that a worker holds at most.
const TASKS_MAX: usize = 8;

/// Tasks of the class `xl` that a worker holds at most.
const XL_TASKS_MAX: usize = 1;

/// Largest task of the other class, which the next one may be: see [`XL_BYTES_MIN`](crate::tasks::XL_BYTES_MIN).
const TASK_BYTES: u64 = crate::tasks::XL_BYTES_MIN;

/// Time over which a rate is measured: some tasks of a slow worker.
const RATE_WINDOW: Duration = Duration::from_secs(10);

/// What a worker holds, and whether it may pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Tasks that it holds.
    pub tasks: usize,
    /// Their bytes that are not yet stored.
    pub bytes: u64,
    /// Tasks of the class `xl` among them.
    pub xl_tasks: usize,
    /// Bytes that the worker stores per second; 0 if it is not known yet.
    pub rate_bytes_per_s: u64,
    /// The worker may not begin anything: it ends, the store does not answer, or it has no connection to any mirror.
    pub is_paused: bool,
}

/// Tasks to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// Tasks of the class `xl`.
    pub xl_tasks: usize,
    /// Tasks of the other class. Ask for them after those of the class `xl`, with the load that these have made.
    pub tasks: usize,
}

/// How many tasks to ask for now.
///
/// ```
/// use fullbore_fleet::pull::{Demand, Load, demand};
///
/// // A new worker does not know its rate.
/// assert_eq!(demand(&Load::default()), Demand { xl_tasks: 1, tasks: 2 });
/// // One at 1 Gbit/s holds up to 375 MB.
/// let load = Load { tasks: 1, bytes: 200_000_000, xl_tasks: 1, rate_bytes_per_s: 125_000_000, is_paused: false };
/// assert_eq!(demand(&load), Demand { xl_tasks: 0, tasks: 3 });
/// ```
pub fn demand(load: &Load) -> Demand {
    if load.is_paused || load.tasks >= TASKS_MAX {
        return Demand::default();
    }
    let ahead = load.rate_bytes_per_s.saturating_mul(AHEAD.as_secs());
    let missing_bytes = ahead.saturating_sub(load.bytes);
    let by_bytes = usize::try_from(missing_bytes.div_ceil(TASK_BYTES)).unwrap_or(TASKS_MAX);
    let tasks = by_bytes.max(TASKS_MIN.saturating_sub(load.tasks)).min(TASKS_MAX - load.tasks);
    Demand { xl_tasks: XL_TASKS_MAX.saturating_sub(load.xl_tasks).min(tasks), tasks }
}

/// Bytes per second over the last ten seconds.
#[derive(Debug, Clone, Default)]
pub struct RateMeter {
    /// When bytes were stored, and how many.
    stored: VecDeque<(Duration, u64)>,
    bytes: u64,
    began: Option<Duration>,
}

impl RateMeter {
    /// Counts stored bytes. `now` is the time since the worker's start.
    pub fn count(&mut self, now: Duration, bytes: u64) {
        self.began.get_or_insert(now);
        match self.stored.back_mut() {
            // One entry per tenth of a second bounds the list.
            Some((time, counted)) if now.saturating_sub(*time) < RATE_WINDOW / 100 => *counted += bytes,
            _ => self.stored.push_back((now, bytes)),
        }
        self.bytes += bytes;
    }

    /// Says that work begins, so that the time until the first bytes counts.
    pub fn begin(&mut self, now: Duration) {
        self.began.get_or_insert(now);
    }

    /// The rate.
    pub fn bytes_per_s(&mut self, now: Duration) -> u64 {
        while let Some((time, bytes)) = self.stored.front().copied()
            && now.saturating_sub(time) > RATE_WINDOW
        {
            self.stored.pop_front();
            self.bytes -= bytes;
        }
        let since = self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began)).min(RATE_WINDOW);
        match since.as_millis() {
            0 => 0,
            elapsed_ms => u64::try_from(u128::from(self.bytes) * 1000 / elapsed_ms).unwrap_or(u64::MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(tasks: usize, bytes: u64, rate_bytes_per_s: u64) -> Load {
        Load { tasks, bytes, xl_tasks: 1, rate_bytes_per_s, is_paused: false }
    }

    #[test]
    fn a_worker_holds_at_least_two_and_at_most_eight_tasks() {
        // 10 kB/s: three seconds are less than one task.
        assert_eq!(demand(&load(0, 0, 10_000)).tasks, 2);
        assert_eq!(demand(&load(1, 8_000_000, 10_000)).tasks, 1);
        assert_eq!(demand(&load(2, 16_000_000, 10_000)).tasks, 0);
        // 100 Gbit/s
        assert_eq!(demand(&load(0, 0, 12_500_000_000)).tasks, 8);
        assert_eq!(demand(&load(7, 56_000_000, 12_500_000_000)).tasks, 1);
        assert_eq!(demand(&load(8, 64_000_000, 12_500_000_000)), Demand::default());
    }

    #[test]
    fn a_worker_holds_one_xl_task() {
        assert_eq!(demand(&Load { xl_tasks: 1, ..Load::default() }).xl_tasks, 0);
        assert_eq!(demand(&load(1, 2_000_000_000, 125_000_000)), Demand { xl_tasks: 0, tasks: 1 });
    }

    #[test]
    fn a_paused_worker_asks_for_nothing() {
        assert_eq!(demand(&Load { is_paused: true, ..Load::default() }), Demand::default());
    }

    /// F3
    #[test]
    fn a_worker_that_becomes_slow_asks_for_less() {
        let mut meter = RateMeter::default();
        let second = Duration::from_secs(1);
        meter.begin(Duration::ZERO);
        for number in 1..=20 {
            meter.count(second * number, 100_000_000);
        }
        let fast = meter.bytes_per_s(second * 20);
        assert!((95_000_000..=115_000_000).contains(&fast), "{fast}");
        for number in 21..=40 {
            meter.count(second * number, 20_000_000);
        }
        let slow = meter.bytes_per_s(second * 40);
        assert!((19_000_000..=23_000_000).contains(&slow), "{slow}");
        assert!(demand(&load(0, 0, slow)).tasks < demand(&load(0, 0, fast)).tasks);
        assert_eq!(meter.bytes_per_s(second * 100), 0);
    }
}
