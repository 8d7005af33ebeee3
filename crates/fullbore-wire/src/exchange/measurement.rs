//! Measurements of connections and requests.

use std::time::{Duration, Instant};

use crate::tcp_info::TcpInfo;

/// A measurement of a request or a connection.
#[derive(Debug, Clone, Copy)]
pub enum Measurement<'a> {
    /// A connection was opened at this time.
    ConnectionOpened(Instant),
    /// A connection that was opened at this time has ended.
    ConnectionClosed(Instant),
    /// The activity of a connection changed.
    Activity(Activity),
    /// Bytes arrived from the server.
    Received(usize),
    /// The kernel's counters of a connection: previous and present reading.
    Counters(&'a TcpInfo, &'a TcpInfo),
    /// A request was answered, with its timing.
    Answered(&'a RequestTiming),
    /// For this time a connection was given no request, because others filled the path.
    WaitedForRoom(Duration),
    /// The server was given up.
    GivenUp,
}

/// Present activity of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// No request is in flight.
    Idle,
    /// Bytes are on the network path.
    Network,
    /// The server has the whole request and has not begun to answer.
    Server,
}

/// Timing of one answer, as its connection measured it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestTiming {
    /// Size of the request's body, in bytes.
    pub sent_bytes: u64,
    /// Size of the answer's body, in bytes.
    pub received_bytes: u64,
    /// Time from the start of the request, or the end of the answer before it, to the end of the answer.
    pub total: Duration,
    /// Part of `total` from the arrival of the request at the server to the start of the answer.
    pub server_latency: Duration,
    /// Part of `total` from the start of the answer to its end.
    pub receiving: Duration,
    /// Part of `total` in which the rate limit held bytes back.
    pub limited: Duration,
    /// Smallest round trip of the connection so far.
    pub round_trip: Option<Duration>,
}
