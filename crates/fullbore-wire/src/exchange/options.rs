//! What an exchange client does, and within which bounds.

use std::sync::Arc;
use std::time::Duration;

use super::budget::Sockets;
use crate::connect::ConnectOptions;
use crate::rate_limit::RateLimit;

/// What a client does, and within which bounds.
#[derive(Debug, Clone)]
pub struct Options {
    /// How the client opens connections: TLS, time limits, sockets.
    pub connect: ConnectOptions,
    /// Maximum number of open connections to the server.
    pub connections: usize,
    /// Requests on one connection before the first is answered.
    pub depth: usize,
    /// When a request may follow another one that is not answered yet.
    pub pipelining: Pipelining,
    /// Time without any progress until a connection is given up.
    pub stall_timeout: Duration,
    /// Idle time after which a connection is closed, before the server closes it.
    pub idle_timeout: Duration,
    /// Wait between attempts to connect; each is twice as long.
    pub connect_backoff: Duration,
    /// How many broken connections the client tolerates.
    pub tolerance: Tolerance,
    /// Requests with bodies of this size have their progress observed with each write; for others a round trip is
    /// assumed.
    pub observed_bytes: u64,
    /// Bytes per second that are sent over all connections.
    pub limit: Option<Arc<RateLimit>>,
    /// Bytes per second that are received over all connections.
    pub receive_limit: Option<Arc<RateLimit>>,
    /// The sockets that share a budget.
    pub sockets: Arc<Sockets>,
}

/// When a request may follow another one on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pipelining {
    /// Small ones, once all connections are busy and [`Client::pipeline`] has allowed it. A request is started only while
    /// those before it do not fill the path.
    Small,
    /// Always. The bytes in flight are bounded by the caller. What TCP can send at once is not held back: the first
    /// flight of each connection counts.
    Always,
}

/// What follows broken connections, and when the server is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tolerance {
    /// The requests fail; a server without any connection is given up after a time.
    Time {
        /// Before its first answer.
        first: Duration,
        /// Later: servers are restarted.
        later: Duration,
    },
    /// The requests are sent again; a server is given up after this number of connections in a row without an answer. One
    /// that stalls, or does not complete a connection within its limit, is given up at once: it had all the time.
    Attempts(u32),
}
