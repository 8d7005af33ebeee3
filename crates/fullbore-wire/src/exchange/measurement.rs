//! What is measured of connections and requests.

use std::time::{Duration, Instant};

use crate::tcp_info::TcpInfo;

/// A measured fact about requests or connections.
#[derive(Debug, Clone, Copy)]
pub enum Measurement<'a> {
    /// A connection was opened then.
    ConnectionOpened(Instant),
    /// A connection that was opened then has ended.
    ConnectionClosed(Instant),
    /// What a connection does from now on.
    Activity(Activity),
    /// Bytes arrived from the server.
    Received(usize),
    /// The kernel's counters of a connection, before and now.
    Counters(&'a TcpInfo, &'a TcpInfo),
    /// A request was answered.
    Answered(&'a RequestTiming),
    /// A connection was not given a request for this time, because others fill the path.
    WaitedForRoom(Duration),
    /// The server is given up.
    GivenUp,
}

/// What a connection does at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// Nothing is requested.
    Idle,
    /// Bytes are on the path.
    Network,
    /// The server has the whole request, and has not begun to answer.
    Server,
}

/// One answer as its connection measured it.
#[derive(Debug, Clone, Copy, Default)]
pub struct RequestTiming {
    /// Size of the request's body, in bytes.
    pub sent_bytes: u64,
    /// Size of the answer's body, in bytes.
    pub received_bytes: u64,
    /// From the request, or the answer before it, to the end of the answer.
    pub total: Duration,
    /// Part of it from the arrival of the request to the beginning of the answer.
    pub server_latency: Duration,
    /// Part of it from the beginning of the answer to its end.
    pub receiving: Duration,
    /// Part of it in which the limit on the rate held bytes back.
    pub limited: Duration,
    /// The smallest round trip of the connection so far.
    pub round_trip: Option<Duration>,
}
