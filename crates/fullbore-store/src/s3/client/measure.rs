//! Where the time of the connections went, for the verdict.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// What was measured of all connections together.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Requests answered.
    pub answers: u64,
    /// Bytes of bodies sent.
    pub sent_bytes: u64,
    /// Bytes of bodies received.
    pub received_bytes: u64,
    /// Time in which bytes waited to be sent, were on the path, or came back on it.
    pub path: Duration,
    /// Time in which the server had a whole request and its answer was awaited.
    pub server: Duration,
    /// Time in which connections existed.
    pub open: Duration,
    /// Connections opened.
    pub connections: u64,
    /// Most of them at once.
    pub connections_at_once: u64,
    /// Requests that were sent again.
    pub repeated: u64,
    /// Smallest round trip that TCP saw.
    pub round_trip: Option<Duration>,
}

/// Adds up.
#[derive(Debug, Default)]
pub struct Meter {
    state: Mutex<(Reading, u64)>,
}

/// One answer, as its connection saw it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Answered {
    /// Bytes of the request's body.
    pub sent_bytes: u64,
    /// Bytes of the answer's.
    pub received_bytes: u64,
    /// On the path.
    pub path: Duration,
    /// The server's turn.
    pub server: Duration,
    /// The smallest round trip so far.
    pub round_trip: Option<Duration>,
}

impl Meter {
    fn with<T>(&self, change: impl FnOnce(&mut Reading, &mut u64) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (reading, now) = &mut *state;
        change(reading, now)
    }

    /// An answer.
    pub fn answered(&self, answered: &Answered) {
        self.with(|reading, _| {
            reading.answers += 1;
            reading.sent_bytes += answered.sent_bytes;
            reading.received_bytes += answered.received_bytes;
            reading.path += answered.path;
            reading.server += answered.server;
            if let Some(time) = answered.round_trip {
                reading.round_trip = Some(reading.round_trip.map_or(time, |before| before.min(time)));
            }
        });
    }

    /// A connection was opened.
    pub fn opened(&self) {
        self.with(|reading, now| {
            reading.connections += 1;
            *now += 1;
            reading.connections_at_once = reading.connections_at_once.max(*now);
        });
    }

    /// It ended after this time.
    pub fn closed(&self, lasted: Duration) {
        self.with(|reading, now| {
            reading.open += lasted;
            *now = now.saturating_sub(1);
        });
    }

    /// A request is sent once more.
    pub fn repeated(&self) {
        self.with(|reading, _| reading.repeated += 1);
    }

    /// What was measured so far.
    pub fn reading(&self) -> Reading {
        self.with(|reading, _| reading.clone())
    }
}
