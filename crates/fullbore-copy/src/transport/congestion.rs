//! Detects a path that loses segments without a full queue.
//!
//! A full queue loses segments, too: thousands at the end of slow start, and later whenever a connection probes for
//! more bandwidth. Those losses mean that the link is full, and another congestion control would not help. The round
//! trip tells the difference: before a full link it is longer than the shortest one seen. So losses count only while
//! there is no queue, and not while connections start.

use std::time::Duration;

use fullbore_wire::tcp_info::TcpInfo;

/// Loss rate, and round trip, from which a path gets another congestion control. cubic fills short or clean paths by
/// itself (measured: a loss of 0.1 % at 50 ms costs it nine tenths). At 5 ms the first connections of a copy carry 180
/// MB/s at a loss of 0.1 %. Bursts that overflow a small queue between two readings look like such a path; BBR made
/// that worse (7 and 15 % retransmitted).
pub(crate) const LOSS: f64 = 0.0002;
const LONG_TRIP: Duration = Duration::from_millis(10);
/// Least segments sent before loss is judged, and least segments lost.
const ENOUGH_SEGMENTS: u64 = 5000;
const ENOUGH_LOST: u64 = 3;
/// How long a connection counts as starting. By then slow start and the repair of its losses are over, on paths with a
/// round trip of up to 0.2 s.
const STARTING: Duration = Duration::from_secs(2);
/// A queue has formed if the round trip exceeds the shortest one by this factor. Queues of routers hold about one round
/// trip; a nearly empty one adds a few percent.
const QUEUED: f64 = 1.25;
/// The least absolute excess for a queue. On a path of microseconds, threads that wait for a processor add as much.
/// Linux itself lets a connection queue for a millisecond before a full link (`tcp_small_queue_check` in `net/ipv4`).
const QUEUE_TIME: Duration = Duration::from_micros(500);

/// Changes of one connection's counters between two readings.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// Segments sent, and those retransmitted, since the last reading.
    pub(super) sent: u64,
    pub(super) again: u64,
    /// Current round trip, and the shortest one.
    pub(super) trip: Duration,
    pub(super) shortest: Duration,
    /// Age of the connection.
    pub(super) age: Duration,
}

impl Sight {
    /// The change between two readings of the kernel's counters.
    pub(super) fn between(before: &TcpInfo, now: &TcpInfo, age: Duration) -> Sight {
        Sight {
            sent: segments(now).saturating_sub(segments(before)),
            again: u64::from(now.retransmitted_segments.saturating_sub(before.retransmitted_segments)),
            trip: now.rtt,
            shortest: now.path_rtt(),
            age,
        }
    }

    fn is_queued(&self) -> bool {
        self.trip >= self.shortest.mul_f64(QUEUED).max(self.shortest + QUEUE_TIME)
    }
}

/// Segments that have arrived, out of all that a connection has sent.
pub(super) fn segments(info: &TcpInfo) -> u64 {
    info.bytes_acknowledged / u64::from(info.segment_bytes.max(1))
}

/// Measurements of a path.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    sent: u64,
    again: u64,
    longest: Duration,
    queued: bool,
}

impl Evidence {
    /// Adds a reading of all connections.
    pub(super) fn record(&mut self, sights: &[Sight]) {
        let busy = || sights.iter().filter(|sight| sight.sent > 0);
        // One path has one queue, so there is a queue for all connections or for none.
        self.queued = busy().filter(|sight| sight.is_queued()).count() * 2 > busy().count();
        for sight in busy().filter(|sight| !self.queued && sight.age >= STARTING) {
            self.sent += sight.sent;
            self.again += sight.again;
        }
        self.longest = sights.iter().map(|sight| sight.shortest).max().unwrap_or_default();
    }

    /// Whether this is a long path that loses segments without a queue.
    pub(super) fn is_lossy(&self) -> bool {
        let enough = self.sent >= ENOUGH_SEGMENTS && self.again >= ENOUGH_LOST;
        enough && self.again as f64 >= LOSS * self.sent as f64 && self.longest >= LONG_TRIP
    }

    /// Whether there was a queue at the last reading. The link is full then, and more connections would only share it.
    pub(super) fn is_queued(&self) -> bool {
        self.queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(trip_ms: u64, again: u64, age_ms: u64) -> Evidence {
        let mut evidence = Evidence::default();
        for look in 0..20 {
            let (trip, shortest) = (Duration::from_millis(trip_ms), Duration::from_millis(50));
            let age = Duration::from_millis(age_ms + 100 * look);
            evidence.record(&[Sight { sent: 1000, again, trip, shortest, age }; 4]);
        }
        evidence
    }

    #[test]
    fn losses_count_where_no_queue_stands_and_not_while_connections_start() {
        assert!(seen(51, 1, 3000).is_lossy());
        assert!(!seen(51, 0, 3000).is_lossy(), "nothing is lost");
        assert!(!seen(90, 10, 3000).is_lossy(), "the queue is full");
        assert!(seen(90, 10, 3000).is_queued() && !seen(51, 1, 3000).is_queued());
        assert!(!seen(51, 400, 0).is_lossy(), "slow start has overrun the queue");
    }

    #[test]
    fn on_short_paths_what_processors_add_is_no_queue() {
        for (shortest_us, trip_us, queued) in [
            (4, 400, false),
            (100, 130, false),
            (100, 590, false),
            (100, 2000, true),
            (4000, 4900, false),
            (4000, 5000, true),
        ] {
            let [shortest, trip] = [shortest_us, trip_us].map(Duration::from_micros);
            let mut evidence = Evidence::default();
            evidence.record(&[Sight { sent: 1000, trip, shortest, ..Sight::default() }; 2]);
            assert_eq!(evidence.is_queued(), queued, "{trip:?} where {shortest:?} were seen");
        }
    }

    #[test]
    fn on_short_paths_nothing_is_changed() {
        for (trip_us, lossy) in [(200, false), (5000, false), (20_000, true)] {
            let mut evidence = Evidence::default();
            let trip = Duration::from_micros(trip_us);
            let sight = Sight { sent: 100_000, again: 1000, trip, shortest: trip, age: Duration::from_secs(9) };
            evidence.record(&[sight]);
            assert_eq!(evidence.is_lossy(), lossy, "{trip:?}");
        }
    }
}
