//! Where the time of the connections went, for the verdict.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{HostClock, Kind, Ledger, StageClock};
use fullbore_wire::exchange::{Measurement, RequestTiming};

/// What was measured of all connections together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Number of requests that were answered.
    pub answers: u64,
    /// Bytes of the bodies of answered requests.
    pub sent_bytes: u64,
    /// Bytes that the other end's kernel has acknowledged: headers, TLS, and those of unanswered requests among them.
    pub acknowledged_bytes: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Time in which bytes waited to be sent, were on the path, or came back on it, and in which a connection was not given
    /// a request because the path was full.
    pub path: Duration,
    /// Time in which the server had a whole request and its answer was awaited.
    pub server: Duration,
    /// Part of `path` in which the limit on the rate held bytes back.
    pub limited: Duration,
    /// Time in which connections existed.
    pub open: Duration,
    /// Number of connections that were opened.
    pub connections: u64,
    /// Most of them at once.
    pub connections_at_once: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Smallest round trip that TCP saw.
    pub round_trip: Option<Duration>,
}

/// Adds up, and tells the run's ledger.
#[derive(Debug)]
pub struct Meter {
    state: Mutex<(Reading, Open)>,
    /// From when on times are counted.
    origin: Instant,
    send: Arc<StageClock>,
    store: Arc<HostClock>,
}

/// Connections that there are.
#[derive(Debug, Default)]
struct Open {
    count: u32,
    /// When they were opened, all added up.
    since: Duration,
}

impl Meter {
    /// Counts in this ledger what goes to this store, and what comes from it: stage `send`.
    pub fn new(ledger: &Ledger, store: &str) -> Meter {
        let (send, store) = (ledger.stage("send", Kind::Task), ledger.host(store));
        Meter { state: Mutex::default(), origin: Instant::now(), send, store }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Reading, &mut Open) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reading, open) = &mut *state;
        change(reading, open)
    }

    /// What a connection measured.
    pub fn record(&self, measurement: Measurement<'_>) {
        match measurement {
            Measurement::ConnectionOpened(at) => self.opened(at),
            Measurement::ConnectionClosed(opened) => self.closed(opened),
            Measurement::Answered(answered) => self.answered(answered),
            // A connection was not given a request, because others fill the path.
            Measurement::WaitedForRoom(time) => self.with(|reading, _| reading.path += time),
            Measurement::Counters(before, now) => {
                let bytes = now.bytes_acknowledged.saturating_sub(before.bytes_acknowledged);
                self.with(|reading, _| reading.acknowledged_bytes += bytes);
            }
            Measurement::Activity(_) | Measurement::Received(_) | Measurement::GivenUp => {}
        }
    }

    fn answered(&self, timing: &RequestTiming) {
        let moved = timing.sent_bytes + timing.received_bytes;
        self.send.add_items(1, moved);
        self.store.received(moved);
        if let Some(time) = timing.round_trip {
            self.store.round_trip(time);
        }
        self.with(|reading, _| {
            reading.answers += 1;
            reading.sent_bytes += timing.sent_bytes;
            reading.received_bytes += timing.received_bytes;
            // Of an answer that is long, too, all is the server's turn.
            let server = (timing.server_latency + timing.receiving).min(timing.total);
            reading.path += timing.total - server;
            reading.server += server;
            reading.limited += timing.limited;
            if let Some(time) = timing.round_trip {
                reading.round_trip = Some(reading.round_trip.map_or(time, |before| before.min(time)));
            }
        });
    }

    fn opened(&self, at: Instant) {
        self.with(|reading, open| {
            open.count += 1;
            open.since += at.saturating_duration_since(self.origin);
            reading.connections += 1;
            reading.connections_at_once = reading.connections_at_once.max(u64::from(open.count));
        });
    }

    fn closed(&self, opened: Instant) {
        self.with(|reading, open| {
            open.count = open.count.saturating_sub(1);
            open.since = open.since.saturating_sub(opened.saturating_duration_since(self.origin));
            reading.open += opened.elapsed();
        });
    }

    /// A request is sent once more.
    pub fn repeated(&self) {
        self.with(|reading, _| reading.repeated += 1);
    }

    /// What was measured so far, connections that are open included.
    pub fn reading(&self) -> Reading {
        self.with(|reading, open| {
            let lasted = (open.count * self.origin.elapsed()).saturating_sub(open.since);
            Reading { open: reading.open + lasted, ..reading.clone() }
        })
    }
}
