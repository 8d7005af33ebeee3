//! Measures where the connections' time went, for the verdict.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{HostClock, Kind, Ledger, StageClock};
use fullbore_wire::exchange::{Measurement, RequestTiming};

/// Measurements of all connections together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Number of requests that were answered.
    pub answers: u64,
    /// Bytes of the bodies of answered requests.
    pub sent_bytes: u64,
    /// Bytes that the other end's kernel has acknowledged, including headers, TLS, and unanswered requests.
    pub acknowledged_bytes: u64,
    /// Number of received body bytes.
    pub received_bytes: u64,
    /// Time in which bytes waited to be sent or were on the path in either direction, or in which a connection was
    /// given no request because the path was full.
    pub path: Duration,
    /// Time in which the server had a whole request and had not answered.
    pub server: Duration,
    /// Part of `path` in which the rate limit held bytes back.
    pub limited: Duration,
    /// Sum of the time for which connections were open.
    pub open: Duration,
    /// Number of connections that were opened.
    pub connections: u64,
    /// Highest number of connections at one time.
    pub connections_at_once: u64,
    /// Number of requests that were sent again.
    pub repeated: u64,
    /// Smallest round trip measured by TCP.
    pub round_trip: Option<Duration>,
}

/// Sums measurements, and passes them to the run's ledger.
#[derive(Debug)]
pub(crate) struct Meter {
    state: Mutex<(Reading, Open)>,
    /// Time from which on times are counted.
    origin: Instant,
    send: Arc<StageClock>,
    store: Arc<HostClock>,
}

/// Number of open connections.
#[derive(Debug, Default)]
struct Open {
    count: u32,
    /// Sum of the times at which they were opened.
    since: Duration,
}

impl Meter {
    /// Creates a meter that counts traffic with this store in the ledger: stage `send`.
    pub(crate) fn new(ledger: &Ledger, store: &str) -> Meter {
        let (send, store) = (ledger.stage("send", Kind::Task), ledger.host(store));
        Meter { state: Mutex::default(), origin: Instant::now(), send, store }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Reading, &mut Open) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reading, open) = &mut *state;
        change(reading, open)
    }

    /// Records a measurement of a connection.
    pub(crate) fn record(&self, measurement: Measurement<'_>) {
        match measurement {
            Measurement::ConnectionOpened(at) => self.opened(at),
            Measurement::ConnectionClosed(opened) => self.closed(opened),
            Measurement::Answered(answered) => self.answered(answered),
            // A connection was given no request, because others filled the path.
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
            // The server's time includes the whole of a long answer.
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

    /// Counts a request that is sent again.
    pub(crate) fn repeated(&self) {
        self.with(|reading, _| reading.repeated += 1);
    }

    /// Measurements so far, including open connections.
    pub(crate) fn reading(&self) -> Reading {
        self.with(|reading, open| {
            let lasted = (open.count * self.origin.elapsed()).saturating_sub(open.since);
            Reading { open: reading.open + lasted, ..reading.clone() }
        })
    }
}
