//! Requests with their bodies, and answers.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::Service;
use crate::http1::ResponseHead;

/// Bodies up to this size are small: such requests may be pipelined on one connection.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Content that is read while it is sent.
pub trait ReadAt: Send + Sync {
    /// Fills `into` with the bytes from `offset` on.
    ///
    /// # Errors
    /// The error of the source, such as `UnexpectedEof` if the file has become shorter, or `EIO`.
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()>;
}

impl ReadAt for File {
    fn read_exact_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, into, offset)
    }
}

/// The body of a request, from memory or a reader.
#[derive(Clone)]
pub enum Body {
    /// Pieces in memory; may be empty.
    Memory(Vec<Bytes>),
    /// A part of a source.
    Source {
        /// The source of the bytes.
        source: Arc<dyn ReadAt>,
        /// Offset of the part, in bytes.
        offset: u64,
        /// Length of the part, in bytes.
        length: u64,
    },
}

impl Body {
    /// Length of the body, in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Body::Memory(pieces) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            Body::Source { length, .. } => *length,
        }
    }

    /// Whether the body has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// An empty body.
impl Default for Body {
    fn default() -> Body {
        Body::Memory(Vec::new())
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(piece: B) -> Body {
        Body::Memory(vec![piece.into()])
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Body({} bytes)", self.len())
    }
}

/// Expectations about an answer.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Maximum number of bytes of its body; more is a fault of the server.
    pub bytes_max: usize,
    /// Only a range was requested. A server that sends the whole object, with more than `bytes_max`, does not support
    /// ranges. Its answer is returned by its head alone, and the connection ends.
    pub is_range: bool,
    /// Taker of the body of a good answer. It gets the body as it arrives, of any length, and the connection reads no
    /// more than the taker accepts.
    pub stream: Option<mpsc::Sender<Streamed>>,
    /// Return the body of a good answer in pieces: joining them would copy it once more.
    pub in_pieces: bool,
    /// Count received bytes as progress. Without it, a server that sends an answer byte by byte stalls.
    pub is_progress: bool,
}

/// Part of a streamed answer.
#[derive(Debug)]
pub enum Streamed {
    /// Head of an answer, before its content. If the request is sent again, another head follows, and the content
    /// begins anew.
    Head(Box<ResponseHead>),
    /// Next bytes of the content.
    Data(Bytes),
}

/// A request that waits for a connection or an answer.
pub(super) struct Request<S: Service> {
    pub job: S::Job,
    pub body: Body,
    pub length: u64,
    pub expected: Expected,
    pub reply: oneshot::Sender<Outcome<S>>,
    /// Number of times that it was written to a connection, at least in part.
    pub times_sent: u32,
}

impl<S: Service> Request<S> {
    pub(super) fn is_small(&self) -> bool {
        self.length.max(self.expected.bytes_max as u64) <= SMALL_BYTES
    }
}

/// An answer, or the reason of the failure. If the server is given up, the channel is closed without an outcome.
pub type Outcome<S> = Result<Answer<<S as Service>::Server>, String>;

/// The answer to a request: head and body.
#[derive(Debug)]
pub struct Answer<P> {
    /// Status and header fields of the answer.
    pub head: Box<ResponseHead>,
    /// The body, unless it is returned in pieces.
    pub body: Bytes,
    /// Body of the answer in pieces, if [`Expected::in_pieces`] is set.
    pub pieces: Vec<Bytes>,
    /// The server ignored the range ([`Expected::is_range`]); the body was not read.
    pub is_cut: bool,
    /// Number of times that the request was sent. The server may have executed an earlier copy whose answer was lost.
    pub times_sent: u32,
    /// The server that the request was sent to.
    pub server: Arc<P>,
}
