//! Decides how many tasks a worker requests.
//!
//! With a fixed number, a worker could hold the eight largest files of an archive while others are idle. In the
//! simulation, 20 workers then take 1.8 times the ideal time. So a worker holds three seconds of work to fetch, as much
//! again on the way to the store, and one very large file.

use std::collections::VecDeque;
use std::time::Duration;

/// Work that a worker holds in advance: more than a round trip to a distant queue, less than the end of a run.
const AHEAD: Duration = Duration::from_secs(3);

/// Least tasks that a worker holds, so that the next one is there when one ends.
const TASKS_MIN: usize = 2;

/// Most tasks that a worker holds: three seconds of 100 Mbit/s in packs of 1 MB.
const TASKS_MAX: usize = 32;

/// Tasks of the class `xl` that a worker fetches at once. It may still send others, but no more than six seconds of its work.
const XL_TASKS_MAX: usize = 1;

/// Largest task of the other class, assumed for the first one: see [`XL_BYTES_MIN`](crate::tasks::XL_BYTES_MIN).
const TASK_BYTES: u64 = crate::tasks::XL_BYTES_MIN;

/// Time over which a rate is measured: some tasks of a slow worker.
const RATE_WINDOW: Duration = Duration::from_secs(10);

/// Least time over which the first bytes are averaged, as the first file may be small.
const RATE_TIME_MIN: Duration = Duration::from_secs(1);

/// The work that a worker holds, and whether it may pull.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Load {
    /// Number of tasks that it holds.
    pub tasks: usize,
    /// Number of those with an incomplete file.
    pub incomplete_tasks: usize,
    /// Bytes of their incomplete files. A worker that only sends has all of its bytes here.
    pub incomplete_bytes: u64,
    /// Bytes of their complete files that are still to be sent to the store.
    pub fetched_bytes: u64,
    /// Size of the largest file among them in bytes; 0 if it holds none.
    pub largest_bytes: u64,
    /// Number of tasks of the class `xl` with missing bytes.
    pub incomplete_xl_tasks: usize,
    /// Rate at which the worker sends to the store, in bytes per second; 0 if it is not known yet.
    pub rate_bytes_per_s: u64,
    /// Whether the worker may not begin anything: it ends, the store does not answer, or it has no connection to any
    /// mirror.
    pub is_paused: bool,
}

/// Numbers of tasks to request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Demand {
    /// Number of tasks of the class `xl`.
    pub xl_tasks: usize,
    /// Number of tasks of the other class. Request them after those of the class `xl`, with the load that these have
    /// made.
    pub tasks: usize,
}

/// Decides how many tasks to request now.
///
/// ```
/// use fullbore_fleet::pull::{Demand, Load, demand};
///
/// // A new worker does not know its rate.
/// assert_eq!(demand(&Load::default()), Demand { xl_tasks: 1, tasks: 2 });
/// // One with 1 Gbit/s would have 375 MB to fetch, and has at most 32 tasks.
/// let (tasks, rate_bytes_per_s, largest_bytes) = (25, 125_000_000, 8_000_000);
/// let load = Load { tasks, incomplete_bytes: 200_000_000, largest_bytes, rate_bytes_per_s, ..Load::default() };
/// assert_eq!(demand(&load), Demand { xl_tasks: 1, tasks: 7 });
/// // Its link from the mirrors is not to be idle while it sends all of that to the store.
/// let load = Load { incomplete_bytes: 0, fetched_bytes: 400_000_000, ..load };
/// assert_eq!(demand(&load), Demand { xl_tasks: 1, tasks: 7 });
/// ```
pub fn demand(load: &Load) -> Demand {
    if load.is_paused || load.tasks >= TASKS_MAX {
        return Demand::default();
    }
    let ahead = load.rate_bytes_per_s.saturating_mul(AHEAD.as_secs());
    let to_fetch = ahead.saturating_sub(load.incomplete_bytes);
    let held_bytes = load.incomplete_bytes.saturating_add(load.fetched_bytes);
    let missing_bytes = to_fetch.min(ahead.saturating_mul(2).saturating_sub(held_bytes));
    // Tasks come largest first.
    let next_bytes = if load.largest_bytes == 0 { TASK_BYTES } else { load.largest_bytes.min(TASK_BYTES) };
    let by_bytes = usize::try_from(missing_bytes.div_ceil(next_bytes)).unwrap_or(TASKS_MAX);
    // Before the first file is stored, the rate is unknown, but the link from the mirrors should not be idle.
    let counted = if load.rate_bytes_per_s == 0 { load.incomplete_tasks.max(load.tasks / 2) } else { load.tasks };
    let tasks = by_bytes.max(TASKS_MIN.saturating_sub(counted)).min(TASKS_MAX - load.tasks);
    Demand { xl_tasks: XL_TASKS_MAX.saturating_sub(load.incomplete_xl_tasks).min(tasks), tasks }
}

/// Measures bytes per second over the last ten seconds.
#[derive(Debug, Clone, Default)]
pub struct RateMeter {
    /// Times and amounts of sent bytes.
    sent: VecDeque<(Duration, u64)>,
    bytes: u64,
    began: Option<Duration>,
}

impl RateMeter {
    /// Counts bytes that the store has acknowledged. `now` is the time since the worker's start.
    pub fn count(&mut self, now: Duration, bytes: u64) {
        self.began.get_or_insert(now);
        match self.sent.back_mut() {
            // One entry per tenth of a second bounds the list.
            Some((time, counted)) if now.saturating_sub(*time) < RATE_WINDOW / 100 => *counted += bytes,
            _ => self.sent.push_back((now, bytes)),
        }
        self.bytes += bytes;
    }

    /// Records that the worker had nothing to do.
    pub fn rested(&mut self) {
        *self = RateMeter::default();
    }

    /// The current rate in bytes per second.
    pub fn bytes_per_s(&mut self, now: Duration) -> u64 {
        while let Some((time, bytes)) = self.sent.front().copied()
            && now.saturating_sub(time) > RATE_WINDOW
        {
            self.sent.pop_front();
            self.bytes -= bytes;
        }
        let since = self.began.map_or(Duration::ZERO, |began| now.saturating_sub(began));
        let elapsed_ms = since.clamp(RATE_TIME_MIN, RATE_WINDOW).as_millis();
        u64::try_from(u128::from(self.bytes) * 1000 / elapsed_ms).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(tasks: usize, bytes: u64, rate_bytes_per_s: u64) -> Load {
        let incomplete_tasks = tasks;
        Load {
            tasks,
            incomplete_tasks,
            incomplete_bytes: bytes,
            incomplete_xl_tasks: 1,
            rate_bytes_per_s,
            ..Load::default()
        }
    }

    #[test]
    fn a_worker_holds_at_least_two_tasks_and_at_most_32() {
        // 10 kB/s: three seconds are less than one task.
        assert_eq!(demand(&load(0, 0, 10_000)).tasks, 2);
        assert_eq!(demand(&load(1, 8_000_000, 10_000)).tasks, 1);
        assert_eq!(demand(&load(2, 16_000_000, 10_000)).tasks, 0);
        // 100 Gbit/s
        assert_eq!(demand(&load(0, 0, 12_500_000_000)).tasks, 32);
        assert_eq!(demand(&load(31, 248_000_000, 12_500_000_000)).tasks, 1);
        assert_eq!(demand(&load(32, 256_000_000, 12_500_000_000)), Demand::default());
    }

    #[test]
    fn a_new_worker_fetches_its_third_task_while_it_sends_the_first() {
        let held = |tasks, incomplete_tasks| Load { incomplete_tasks, ..load(tasks, 8_000_000, 0) };
        assert_eq!(demand(&held(2, 2)).tasks, 0);
        assert_eq!(demand(&held(2, 1)).tasks, 1);
        assert_eq!(demand(&held(3, 1)).tasks, 1);
        assert_eq!(demand(&held(4, 0)).tasks, 0, "nothing was stored yet");
        assert_eq!(demand(&Load { rate_bytes_per_s: 1, ..held(2, 0) }).tasks, 0, "it is slow");
    }

    #[test]
    fn a_worker_fetches_while_it_sends_but_no_more_than_it_can_send() {
        let held = |incomplete_bytes, fetched_bytes| Load { fetched_bytes, ..load(3, incomplete_bytes, 10_000_000) };
        assert_eq!(demand(&held(24_000_000, 0)).tasks, 1);
        assert_eq!(demand(&held(0, 24_000_000)).tasks, 1);
        assert_eq!(demand(&held(30_000_000, 0)).tasks, 0, "enough to fetch");
        assert_eq!(demand(&held(0, 60_000_000)).tasks, 0, "enough to send");
        assert_eq!(demand(&held(20_000_000, 40_000_000)).tasks, 0);
    }

    #[test]
    fn a_worker_asks_for_several_small_tasks_at_once() {
        let small = |largest_bytes| demand(&Load { largest_bytes, ..load(1, 1_000_000, 4_000_000) }).tasks;
        assert_eq!(small(8_000_000), 2);
        assert_eq!(small(1_000_000), 11);
        assert_eq!(small(900_000_000), 1, "those after a very large one are smaller than that");
    }

    #[test]
    fn a_worker_fetches_one_xl_task_at_once() {
        assert_eq!(demand(&Load { incomplete_xl_tasks: 1, ..Load::default() }).xl_tasks, 0);
        assert_eq!(demand(&load(1, 2_000_000_000, 125_000_000)), Demand { xl_tasks: 0, tasks: 1 });
        // The next one comes in while the rest of it is sent.
        let sends = |fetched_bytes| Load { fetched_bytes, incomplete_xl_tasks: 0, ..load(2, 0, 10_000_000) };
        assert_eq!(demand(&sends(40_000_000)).xl_tasks, 1);
        assert_eq!(demand(&sends(60_000_000)).xl_tasks, 0, "enough to send");
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

    #[test]
    fn the_first_bytes_make_no_rate_of_a_moment_and_a_rest_counts_for_nothing() {
        let (mut meter, second) = (RateMeter::default(), Duration::from_secs(1));
        meter.count(50 * second, 1_000_000);
        assert_eq!(meter.bytes_per_s(50 * second), 1_000_000);
        assert_eq!(meter.bytes_per_s(54 * second), 250_000);
        meter.rested();
        meter.count(90 * second, 1_000_000);
        assert_eq!(meter.bytes_per_s(92 * second), 500_000);
    }
}
