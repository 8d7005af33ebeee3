//! What a server remembers of its requests.

use std::time::Duration;

/// Entries kept; a test that makes more requests looks at the counters.
pub(super) const LOG_ENTRIES: usize = 1_000_000;

/// One answered (or deliberately unanswered) request.
#[derive(Clone, Debug)]
pub struct LogEntry {
    /// When it arrived, since the server started.
    pub at: Duration,
    /// Number of the connection, from 1.
    pub connection: u64,
    /// Number of the request in its connection, from 1.
    pub number: u32,
    /// Whether it came over HTTP/2.
    pub http2: bool,
    /// `GET`, `HEAD`.
    pub method: String,
    /// Decoded path.
    pub path: String,
    /// The `Range` field.
    pub range: Option<String>,
    /// All header fields, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Status of the answer; 0 when there was none.
    pub status: u16,
    /// Name of the fault, or `-`.
    pub fault: &'static str,
    /// Bytes of the body that were handed to the kernel.
    pub body_bytes: u64,
    /// From the request's arrival to the last byte handed to the kernel.
    pub took: Duration,
}

impl LogEntry {
    /// A header field by its lower-case name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(other, _)| other == name).map(|(_, value)| value.as_str())
    }
}

/// Totals since the start of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections taken.
    pub connections: u64,
    /// Connections open now.
    pub open_connections: u64,
    /// Most connections open at a time.
    pub max_open_connections: u64,
    /// Requests read.
    pub requests: u64,
    /// Requests that met a fault.
    pub faults: u64,
    /// Bytes of bodies handed to the kernel.
    pub body_bytes: u64,
}
