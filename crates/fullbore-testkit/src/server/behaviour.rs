//! What a server does wrong, and to whom.

use std::{path::PathBuf, sync::Arc, time::Duration};

/// Which requests a fault is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PathMatch {
    /// All.
    Any,
    /// Exactly this path, with its leading slash.
    Exact(String),
    /// Paths that begin so: `/pool/`.
    Prefix(String),
    /// Paths that end so: `.deb`.
    Suffix(String),
    /// Paths that contain it.
    Contains(String),
}

impl PathMatch {
    /// Whether the path is meant.
    pub fn matches(&self, path: &str) -> bool {
        match self {
            PathMatch::Any => true,
            PathMatch::Exact(text) => path == text,
            PathMatch::Prefix(text) => path.starts_with(text.as_str()),
            PathMatch::Suffix(text) => path.ends_with(text.as_str()),
            PathMatch::Contains(text) => path.contains(text.as_str()),
        }
    }
}

/// One way to answer wrongly. What a fault cuts or changes lies at a place drawn from the
/// seed and the path.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// This status with a short body.
    Status(u16),
    /// 429 or 503 with `Retry-After`.
    RetryAfter {
        /// The status.
        status: u16,
        /// Value of the field, seconds.
        seconds: u32,
    },
    /// RST in the middle of the body.
    Reset,
    /// A clean close in the middle of the body.
    Truncate,
    /// The right length, some bytes flipped.
    Corrupt,
    /// As `Corrupt`, but only in 206 answers.
    CorruptRanges,
    /// 200 with the page of a captive portal.
    Portal,
    /// `Content-Length` up to 100 bytes too small: the rest leaks into the next answer.
    ShortLength,
    /// `Content-Length` up to 100 bytes too large.
    LongLength,
    /// 302 to the same path at this base URL.
    Redirect(String),
    /// 302 to the same path at this base URL, with a signature behind it: good for this one file.
    RedirectSigned(String),
    /// 302 to itself.
    RedirectLoop,
    /// 302 whose `Location` holds encoded newlines and forged lines behind them (CVE-2019-3462).
    RedirectInjection,
    /// Half of the body, then silence.
    Stall,
    /// No answer at all.
    Hang,
    /// The body at so many bytes per second.
    Drip(u64),
    /// The answer comes so much later; what is behind it waits too.
    Delay(Duration),
    /// A close after the answer, without `Connection: close`.
    Close,
    /// Chunked, no `Content-Length`.
    Chunked,
    /// No length at all: the close ends the body.
    UntilClose,
    /// Status line and habits of HTTP/1.0.
    Http10,
    /// `Content-Encoding: x-gzip` on a body that is as it is.
    GzipEncoding,
    /// A body without end, without a length.
    Endless,
    /// 200 and everything, whatever range was asked for.
    IgnoreRange,
    /// 206, but of another range, and says so.
    WrongRange,
    /// 206 that claims the range asked for and holds the bytes of another.
    LyingRange,
    /// 304, asked for or not.
    NotModified,
    /// A header field of so many bytes.
    BigHeader(usize),
    /// 200 with this body.
    Body(Arc<[u8]>),
    /// Served from another tree, as if the rest were newer or older.
    From(PathBuf),
}

impl Fault {
    /// The name in logs and on the command line of the test server.
    pub fn name(&self) -> &'static str {
        match self {
            Fault::Status(_) => "status",
            Fault::RetryAfter { .. } => "retry",
            Fault::Reset => "reset",
            Fault::Truncate => "truncate",
            Fault::Corrupt => "corrupt",
            Fault::CorruptRanges => "corrupt-ranges",
            Fault::Portal => "portal",
            Fault::ShortLength => "short-length",
            Fault::LongLength => "long-length",
            Fault::Redirect(_) => "redirect",
            Fault::RedirectSigned(_) => "redirect-signed",
            Fault::RedirectLoop => "redirect-loop",
            Fault::RedirectInjection => "redirect-injection",
            Fault::Stall => "stall",
            Fault::Hang => "hang",
            Fault::Drip(_) => "drip",
            Fault::Delay(_) => "delay",
            Fault::Close => "close",
            Fault::Chunked => "chunked",
            Fault::UntilClose => "until-close",
            Fault::Http10 => "http10",
            Fault::GzipEncoding => "gzip-encoding",
            Fault::Endless => "endless",
            Fault::IgnoreRange => "ignore-range",
            Fault::WrongRange => "wrong-range",
            Fault::LyingRange => "lying-range",
            Fault::NotModified => "not-modified",
            Fault::BigHeader(_) => "big-header",
            Fault::Body(_) => "body",
            Fault::From(_) => "from",
        }
    }
}

/// A fault, for whom and how often.
#[derive(Clone, Debug)]
pub struct FaultRule {
    /// Which requests.
    pub path: PathMatch,
    /// How likely, 0 to 1. The draw depends on seed, path and how often the path was asked
    /// for, not on timing.
    pub probability: f64,
    /// The draw ignores how often the path was asked for: a bad file stays bad.
    pub sticky: bool,
    /// Only the first so many requests of each path.
    pub first: Option<u32>,
    /// What goes wrong.
    pub fault: Fault,
}

impl FaultRule {
    /// Every request of these paths.
    pub fn always(path: PathMatch, fault: Fault) -> FaultRule {
        FaultRule { path, probability: 1.0, sticky: false, first: None, fault }
    }

    /// A share of the requests of the pool.
    pub fn pool(probability: f64, fault: Fault) -> FaultRule {
        FaultRule { probability, ..FaultRule::always(PathMatch::Prefix("/pool/".into()), fault) }
    }

    /// The first request of each of these paths; a second try is answered well.
    pub fn once(path: PathMatch, fault: Fault) -> FaultRule {
        FaultRule { first: Some(1), ..FaultRule::always(path, fault) }
    }
}

/// Whether and how a server lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Answers.
    Alive,
    /// Resets all connections and listens no more.
    Refusing,
    /// Keeps connections and takes new ones, but neither reads nor writes.
    Silent,
}

/// Everything about a server that can be changed while it runs.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// The tree it serves.
    pub root: PathBuf,
    /// Seed of all draws.
    pub seed: u64,
    /// Tried in order; the first that is drawn counts.
    pub faults: Vec<FaultRule>,
    /// Each answer begins no earlier than this after its request arrived; requests wait side
    /// by side, so it acts as a round trip.
    pub delay: Duration,
    /// Bytes per second of all bodies of this server together.
    pub rate_bytes_per_s: Option<u64>,
    /// Bytes per second of the bodies of one connection.
    pub connection_rate_bytes_per_s: Option<u64>,
    /// Answers before the connection is closed (HTTP/2: GOAWAY).
    pub requests_per_connection: Option<u32>,
    /// Whether the last answer of a connection says `Connection: close`.
    pub announce_close: bool,
    /// Whether ranges are served.
    pub ranges: bool,
    /// Whether answers have `ETag` and `Last-Modified`.
    pub validators: bool,
    /// Whether `ETag` is among these.
    pub tags: bool,
    /// Two pipelined requests that wait are answered in the wrong order.
    pub permute: bool,
    /// Connections above this number are answered 503 and closed.
    pub max_connections: Option<u64>,
    /// The server dies (see `death`) after so many bytes of bodies.
    pub die_after_bytes: Option<u64>,
    /// How it dies.
    pub death: Life,
    /// Value of `Authorization` without which it answers 401.
    pub authorization: Option<String>,
}

impl Behaviour {
    /// A faultless server of this tree.
    pub fn good(root: impl Into<PathBuf>) -> Behaviour {
        Behaviour {
            root: root.into(),
            seed: 1,
            faults: Vec::new(),
            delay: Duration::ZERO,
            rate_bytes_per_s: None,
            connection_rate_bytes_per_s: None,
            requests_per_connection: None,
            announce_close: true,
            ranges: true,
            validators: true,
            tags: true,
            permute: false,
            max_connections: None,
            die_after_bytes: None,
            death: Life::Refusing,
            authorization: None,
        }
    }
}
