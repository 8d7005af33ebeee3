//! Options and limits of an exchange client.

use std::sync::Arc;
use std::time::Duration;

use super::budget::Sockets;
use crate::connect::ConnectOptions;
use crate::rate_limit::RateLimit;

/// Options and limits of a client.
#[derive(Debug, Clone)]
pub struct Options {
    /// How the client opens connections: TLS, time limits, sockets.
    pub connect: ConnectOptions,
    /// Maximum number of open connections to the server.
    pub connections: usize,
    /// Maximum number of unanswered requests on one connection.
    pub depth: usize,
    /// When requests may be pipelined on a connection.
    pub pipelining: Pipelining,
    /// Time without progress after which a connection is given up.
    pub stall_timeout: Duration,
    /// Idle time after which a connection is closed, before the server closes it.
    pub idle_timeout: Duration,
    /// Time between the first two attempts to connect; it doubles with each further attempt.
    pub connect_backoff: Duration,
    /// How many broken connections the client tolerates.
    pub tolerance: Tolerance,
    /// Requests with bodies of at least this size are observed with each write. For others, the client assumes one
    /// round trip.
    pub observed_bytes: u64,
    /// Limit of sent bytes per second over all connections.
    pub limit: Option<Arc<RateLimit>>,
    /// Limit of received bytes per second over all connections.
    pub receive_limit: Option<Arc<RateLimit>>,
    /// Budget that is shared with other sockets.
    pub sockets: Arc<Sockets>,
}

/// When requests may be pipelined on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipelining {
    /// Only small requests, once all connections are busy and [`Client::pipeline`](super::Client::pipeline) has allowed it. A request is started
    /// only while earlier ones do not fill the path.
    Small,
    /// Always. The caller bounds the bytes in flight. Bytes that TCP can send at once are not held back: the first
    /// flight of each connection counts.
    Always,
}

/// How the client reacts to broken connections, and when it gives the server up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// Unanswered requests fail. A server without any connection is given up after a time.
    Time {
        /// That time before the server's first answer.
        first: Duration,
        /// That time afterwards: servers may be restarted.
        later: Duration,
    },
    /// Unanswered requests are sent again. The server is given up after this number of consecutive connections without
    /// an answer. A server that stalls, or does not complete a connection within its limit, is given up at once: it had
    /// enough time.
    Attempts(u32),
}
