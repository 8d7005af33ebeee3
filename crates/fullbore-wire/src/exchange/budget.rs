//! A budget for the bytes in all sockets of a run: about as many as the path carries in a second.
//!
//! Bytes in a socket cannot be held back or moved to another connection, and nobody can tell whether they are stalled.
//! On an uplink of 400 kbit/s, the initial windows of 64 connections alone take a quarter of a minute. So bytes are
//! written under a budget. It is at least one second of such an uplink, and otherwise the bytes delivered within a
//! second. It grows up to fourfold per round, twice as fast as TCP's slow start. Time is an argument; there is no clock
//! here.
//!
//! A connection may be granted what TCP sends at once even if the budget has no room, because those bytes are on the
//! path the next moment. They count all the same, so that the connection has no further bytes waiting beside them.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::memory::Memory;

/// Minimum budget: one second of 400 kbit/s, and ten requests of small objects.
const FLOOR_BYTES: u64 = 48 << 10;

/// Time for which bytes may be held.
const HELD_FOR: Duration = Duration::from_secs(1);

/// A further request is started while earlier ones need no longer than this. On a connection that has not met the queue
/// yet, Linux retransmits unacknowledged bytes after 200 ms (`TCP_RTO_MIN`), and wastes a slow link on copies.
const QUEUED_FOR: Duration = Duration::from_millis(200);

/// A further request is started in any case beside this number of bytes: a request or two of small objects. While no
/// round was large enough to reveal a slow path, half the minimum budget applies.
const BESIDE_BYTES: u64 = 8 << 10;

/// Bytes of a round from which on its rate is the path's, not the sender's.
const TELLING_BYTES: u64 = 16 << 10;

/// Maximum growth of the budget in a round: a burst of acknowledgements may distort one round.
const GROWTH: u64 = 4;

/// Number of rounds whose best rate counts, and the age at which a round is forgotten: paths may become slow.
const ROUNDS: usize = 4;
const REMEMBERED_FOR: Duration = Duration::from_secs(2);

/// Minimum duration assumed for a round. Sockets are observed every 10 ms ([`super::connection`]), so the progress
/// between two readings may have happened in a moment.
const ROUND_LEAST: Duration = Duration::from_millis(20);

/// Minimum size of a write, if more bytes are to be sent; a smaller minimum applies where TCP would send at once, since
/// a window may be as small as a segment.
const WRITE_LEAST: u64 = 4 << 10;
const WRITE_FREE_LEAST: u64 = 1 << 10;

/// State shared by all sockets of a run: the budget, the read buffers, and the times at which they are observed.
#[derive(Debug)]
pub struct Sockets {
    begun: Instant,
    pub(super) budget: Budget,
    pub(super) memory: Memory,
}

impl Sockets {
    /// Creates the state. Idle read buffers of up to `kept_bytes` in total are kept.
    pub fn new(kept_bytes: usize) -> Sockets {
        Sockets { begun: Instant::now(), budget: Budget::default(), memory: Memory::new(kept_bytes) }
    }

    /// Time until the next observation of all sockets, at multiples of `every`. Separate times per socket would wake
    /// the process for each.
    pub(super) fn until_refresh(&self, every: Duration, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.begun).as_nanos() % every.as_nanos().max(1);
        every.saturating_sub(Duration::from_nanos(passed as u64))
    }
}

/// The budget of a run.
#[derive(Debug)]
pub(super) struct Budget(Mutex<State>);

#[derive(Debug)]
struct State {
    /// Bytes written, or about to be, that are not known to be delivered.
    held: u64,
    delivered: u64,
    allowed: u64,
    round: Option<Round>,
    /// Ends of the last rounds, with their rates in bytes per second.
    rates: VecDeque<(Instant, f64)>,
    /// Smallest round trip of all connections.
    round_trip: Option<Duration>,
    /// Whether a round was large enough to measure the path.
    is_told: bool,
}

/// A period in which as many bytes were delivered as were held at its start, by whatever connection. It ends early
/// after twice the time that bytes may be held.
#[derive(Debug, Clone, Copy)]
struct Round {
    begun: Instant,
    /// `delivered` at its start.
    from: u64,
    /// `delivered` at its end.
    to: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        let (rates, allowed) = (VecDeque::with_capacity(ROUNDS), FLOOR_BYTES);
        let state = State { held: 0, delivered: 0, allowed, round: None, rates, round_trip: None, is_told: false };
        Budget(Mutex::new(state))
    }
}

impl Budget {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reserves up to `wanted` bytes for a write that follows at once; zero when the rest is not worth a write. `free`
    /// bytes are granted in any case.
    pub(super) fn reserve(&self, wanted: u64, free: u64, now: Instant) -> u64 {
        let mut state = self.state();
        let room = state.allowed.saturating_sub(state.held).max(free);
        if room < wanted.min(if free > 0 { WRITE_FREE_LEAST } else { WRITE_LEAST }) {
            return 0;
        }
        let granted = wanted.min(room);
        state.held += granted;
        if state.round.is_none() {
            state.begin(now);
        }
        granted
    }

    /// Returns bytes that were not written, or were lost with a connection.
    pub(super) fn give_back(&self, bytes: u64) {
        if bytes == 0 {
            return;
        }
        let mut state = self.state();
        state.held = state.held.saturating_sub(bytes);
        let to_come = state.delivered + state.held;
        let is_over = state.held == 0;
        if let Some(round) = &mut state.round {
            round.to = round.to.min(to_come);
        }
        if is_over {
            state.round = None;
        }
    }

    /// Records bytes that the other end has acknowledged.
    pub(super) fn delivered(&self, bytes: u64, now: Instant) {
        let mut state = self.state();
        state.held = state.held.saturating_sub(bytes);
        state.delivered += bytes;
        let Some(Round { begun, from, to }) = state.round else { return };
        let lasted = now.saturating_duration_since(begun);
        if state.delivered < to && lasted < 2 * state.held_for() {
            return;
        }
        let rate = (state.delivered - from) as f64 / lasted.max(ROUND_LEAST).as_secs_f64();
        state.is_told |= state.delivered - from >= TELLING_BYTES;
        state.record(rate, now);
        state.round = None;
        if state.held > 0 {
            state.begin(now);
        }
    }

    /// Records a round trip of the path.
    pub(super) fn round_trip(&self, time: Duration) {
        let mut state = self.state();
        state.round_trip = Some(state.round_trip.map_or(time, |known| known.min(time)));
    }

    /// Whether a further request may be started: the remaining bytes of started requests come first.
    pub(super) fn has_room(&self) -> bool {
        let state = self.state();
        state.held < state.beside()
    }

    /// Whether any bytes were delivered yet.
    pub(crate) fn is_measured(&self) -> bool {
        !self.state().rates.is_empty()
    }
}

impl State {
    fn begin(&mut self, now: Instant) {
        self.round = Some(Round { begun: now, from: self.delivered, to: self.delivered + self.held });
    }

    /// A path longer than half a second needs two round trips' worth of bytes to grow.
    fn held_for(&self) -> Duration {
        HELD_FOR.max(2 * self.round_trip.unwrap_or_default())
    }

    /// Rate of the best recent round, in bytes per second.
    fn best(&self) -> f64 {
        self.rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max)
    }

    /// Number of bytes that may be held when a further request is started.
    fn beside(&self) -> u64 {
        let time = QUEUED_FOR.max(2 * self.round_trip.unwrap_or_default());
        let worth = (self.best() * time.as_secs_f64()) as u64;
        worth.max(if self.is_told { BESIDE_BYTES } else { FLOOR_BYTES / 2 }).min(self.allowed / 2)
    }

    fn record(&mut self, rate: f64, now: Instant) {
        let old = |(ended, _): &(Instant, f64)| now.saturating_duration_since(*ended) > REMEMBERED_FOR;
        while self.rates.len() == ROUNDS || self.rates.front().is_some_and(old) {
            self.rates.pop_front();
        }
        self.rates.push_back((now, rate));
        let worth = (self.best() * self.held_for().as_secs_f64()) as u64;
        self.allowed = worth.min(self.allowed.saturating_mul(GROWTH)).max(FLOOR_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// A path: what is written is on its way for `trip`, and leaves at this rate.
    struct Path {
        rate_bytes_per_s: u64,
        trip: Duration,
        queued: u64,
        leaving: VecDeque<(Instant, u64)>,
    }

    impl Path {
        /// Whoever sends has always more. Gives the most that was held, and what was delivered.
        fn run(&mut self, budget: &Budget, from: Instant, time: Duration) -> (u64, u64) {
            let (mut now, mut most, mut delivered) = (from, 0, 0);
            while now < from + time {
                self.queued += budget.reserve(u64::MAX, 0, now);
                most = most.max(budget.state().held);
                let leaves = self.queued.min((self.rate_bytes_per_s as f64 * STEP.as_secs_f64()) as u64);
                self.queued -= leaves;
                self.leaving.push_back((now + self.trip, leaves));
                now += STEP;
                while self.leaving.front().is_some_and(|(at, _)| *at <= now) {
                    let bytes = self.leaving.pop_front().map_or(0, |(_, bytes)| bytes);
                    budget.delivered(bytes, now);
                    delivered += bytes;
                }
            }
            (most, delivered)
        }
    }

    fn path(rate_bytes_per_s: u64, trip_ms: u64) -> Path {
        Path { rate_bytes_per_s, trip: Duration::from_millis(trip_ms), queued: 0, leaving: VecDeque::new() }
    }

    #[test]
    fn a_slow_uplink_holds_a_second() {
        let budget = Budget::default();
        let (most, delivered) = path(50_000, 11).run(&budget, Instant::now(), Duration::from_secs(20));
        assert!(most <= 55_000, "{most} bytes held");
        assert!(delivered > 950_000, "{delivered} bytes in 20 s");
    }

    #[test]
    fn fast_and_long_paths_are_filled() {
        for (rate, trip_ms, seconds) in [(125_000_000, 20, 2), (125_000_000, 300, 8), (12_500_000, 1500, 40)] {
            let budget = Budget::default();
            budget.round_trip(Duration::from_millis(trip_ms));
            let (_, delivered) = path(rate, trip_ms).run(&budget, Instant::now(), Duration::from_secs(seconds));
            let of_it = delivered as f64 / (rate * seconds) as f64;
            assert!(of_it > 0.6, "{of_it:.2} of {rate} bytes/s at {trip_ms} ms");
        }
    }

    #[test]
    fn requests_on_a_slow_uplink_do_not_wait_until_tcp_sends_them_again() {
        let (budget, begun) = (Budget::default(), Instant::now());
        let (mut queued, mut most, mut done) = (0_u64, 0, 0);
        for step in 0..1000 {
            let now = begun + step * STEP;
            while budget.has_room() {
                queued += budget.reserve(4800, 0, now);
            }
            // The first burst is what it is: nothing is known yet.
            most = if step > 200 { queued.max(most) } else { 0 };
            let leaves = queued.min(500);
            queued -= leaves;
            done += leaves;
            budget.delivered(leaves, now + STEP);
        }
        assert!(most <= 15_000, "{most} bytes are 200 ms and the request that is begun");
        assert_eq!(done, 500_000, "the link is never idle");
    }

    #[test]
    fn a_path_that_becomes_slow_holds_less_again() {
        let budget = Budget::default();
        let mut path = path(12_500_000, 20);
        let begun = Instant::now();
        path.run(&budget, begun, Duration::from_secs(5));
        path.rate_bytes_per_s = 500_000;
        path.run(&budget, begun + Duration::from_secs(5), Duration::from_secs(60));
        let (most, _) = path.run(&budget, begun + Duration::from_secs(65), Duration::from_secs(5));
        assert!(most <= 600_000, "{most} bytes held");
    }

    #[test]
    fn a_burst_of_acknowledgements_is_not_a_fast_path() {
        let (budget, now) = (Budget::default(), Instant::now());
        assert_eq!(budget.reserve(u64::MAX, 0, now), FLOOR_BYTES);
        budget.delivered(FLOOR_BYTES, now + Duration::from_micros(10));
        assert_eq!(budget.reserve(u64::MAX, 0, now), GROWTH * FLOOR_BYTES);
    }

    #[test]
    fn what_went_with_a_connection_comes_back() {
        let (budget, now) = (Budget::default(), Instant::now());
        assert!(budget.has_room() && !budget.is_measured());
        assert_eq!(budget.reserve(40_000, 0, now), 40_000);
        assert!(!budget.has_room());
        assert_eq!(budget.reserve(40_000, 0, now), FLOOR_BYTES - 40_000);
        assert_eq!(budget.reserve(1, 0, now), 0);
        budget.give_back(FLOOR_BYTES);
        assert!(budget.has_room() && !budget.is_measured());
        assert_eq!(budget.reserve(300, 0, now), 300);
        budget.delivered(300, now + Duration::from_millis(100));
        assert!(budget.is_measured());
        assert_eq!(budget.reserve(u64::MAX, 0, now), FLOOR_BYTES);
    }

    #[test]
    fn what_tcp_sends_at_once_is_granted_and_nothing_beside_it() {
        let (budget, now) = (Budget::default(), Instant::now());
        // Ten first windows: more than the floor.
        for connection in 1..=10 {
            assert_eq!(budget.reserve(14_480, 14_480, now), 14_480, "{connection}");
        }
        assert_eq!(budget.state().held, 144_800);
        assert_eq!(budget.reserve(20_000, 0, now), 0, "the floor is full");
        assert_eq!(budget.reserve(20_000, 5_000, now), 5_000);
        budget.delivered(149_800, now + Duration::from_millis(20));
        assert_eq!(budget.reserve(u64::MAX, 0, now), GROWTH * FLOOR_BYTES);
    }

    #[test]
    fn all_sockets_are_observed_at_once() {
        let (sockets, every) = (Sockets::new(0), STEP);
        let at = |us| {
            let now = sockets.begun + Duration::from_micros(us);
            now + sockets.until_refresh(every, now) - sockets.begun
        };
        assert_eq!([0, 1, 9_999, 10_000, 123_456].map(at), [10, 10, 10, 20, 130].map(Duration::from_millis));
    }
}
