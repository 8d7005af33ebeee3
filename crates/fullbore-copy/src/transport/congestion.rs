//! Whether a path loses segments that its own queue does not cost.
//!
//! A full queue loses segments too: at the end of slow start, by the thousands, and from then on each time
//! that a connection finds out how much there is. Those losses say that the link is full, not that another
//! congestion control would fill it. What tells them apart is the round trip: before a full link it is longer
//! than the shortest one seen. So losses count only where no queue stands, and not while connections start.

use std::time::Duration;

use fullbore_wire::tcp_info::TcpInfo;

/// A path is given another congestion control from this share of segments sent twice, and this round
/// trip: cubic fills short or clean paths by itself (measured: 0.1 % on 50 ms costs it nine tenths). On 5 ms the
/// connections that a copy begins with carry 180 MB/s through 0.1 %, and bursts that overrun a small queue between two
/// looks pass for such a path: BBR made that worse (7 and 15 % sent twice).
pub(crate) const LOSS: f64 = 0.0002;
const LONG_TRIP: Duration = Duration::from_millis(10);
/// Segments that must have been sent before loss is judged, and those of them that must have been lost.
const ENOUGH_SEGMENTS: u64 = 5000;
const ENOUGH_LOST: u64 = 3;
/// How long a connection counts as starting: slow start and the repair of what it overran are over by then,
/// on paths of up to a fifth of a second.
const STARTING: Duration = Duration::from_secs(2);
/// A queue stands where the round trip is longer than the shortest one by this factor. The queues of routers
/// hold about a round trip; one that is nearly empty adds a few percent.
const QUEUED: f64 = 1.25;
/// ... and by this time at least: on a path of microseconds, threads that wait for a processor add as much. Linux itself
/// lets a connection queue for a millisecond before a link that is full (`tcp_small_queue_check` in `net/ipv4`).
const QUEUE_TIME: Duration = Duration::from_micros(500);

/// What one look at one connection finds.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sight {
    /// Segments sent, and those sent again, since the last look.
    pub(super) sent: u64,
    pub(super) again: u64,
    /// Round trip now, and the shortest one.
    pub(super) trip: Duration,
    pub(super) shortest: Duration,
    /// How long it has been there.
    pub(super) age: Duration,
}

impl Sight {
    /// What has changed between two readings of the kernel's counters.
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

/// Segments that have arrived, of all that a connection has sent.
pub(super) fn segments(info: &TcpInfo) -> u64 {
    info.bytes_acknowledged / u64::from(info.segment_bytes.max(1))
}

/// What has been seen of a path.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    sent: u64,
    again: u64,
    longest: Duration,
    queued: bool,
}

impl Evidence {
    /// Takes a look at all connections.
    pub(super) fn record(&mut self, sights: &[Sight]) {
        let busy = || sights.iter().filter(|sight| sight.sent > 0);
        // One path, one queue: it stands for all connections or for none.
        self.queued = busy().filter(|sight| sight.is_queued()).count() * 2 > busy().count();
        for sight in busy().filter(|sight| !self.queued && sight.age >= STARTING) {
            self.sent += sight.sent;
            self.again += sight.again;
        }
        self.longest = sights.iter().map(|sight| sight.shortest).max().unwrap_or_default();
    }

    /// Whether it is a long path that loses what no queue has cost.
    pub(super) fn is_lossy(&self) -> bool {
        let enough = self.sent >= ENOUGH_SEGMENTS && self.again >= ENOUGH_LOST;
        enough && self.again as f64 >= LOSS * self.sent as f64 && self.longest >= LONG_TRIP
    }

    /// Whether a queue stood before the link at the last look: then it is full, and more connections would
    /// only part it otherwise.
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
