//! A request with its body, and its answer.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::Service;
use crate::http1::ResponseHead;

/// Bodies up to this size are small: such requests may be sent on one connection behind one another.
pub const SMALL_BYTES: u64 = 64 << 10;

/// Content that is read as it is sent.
pub trait ReadAt: Send + Sync {
    /// Fills `into` from this offset on.
    ///
    /// # Errors
    /// The source's.
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
    /// Pieces in memory; may be none.
    Memory(Vec<Bytes>),
    /// A part of a source.
    Source {
        /// The source.
        source: Arc<dyn ReadAt>,
        /// Where it begins, bytes.
        offset: u64,
        /// Bytes of it.
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

/// No body.
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

/// What is expected of an answer.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Bytes of its body at most; more is a fault of the server.
    pub bytes_max: usize,
    /// Only a part was asked for. A server that sends the whole instead, and more than `bytes_max`, does not know
    /// ranges: its answer is given back by its head alone, and the connection ends.
    pub is_range: bool,
    /// The body of a good answer goes there as it arrives, whatever its length, and the connection reads no more than
    /// is taken.
    pub stream: Option<mpsc::Sender<Streamed>>,
    /// The body of a good answer is returned in pieces: joined it would be copied once more.
    pub in_pieces: bool,
    /// Received bytes show that the connection moves. Without it a server that sends an answer byte by byte stalls.
    pub is_progress: bool,
}

/// What arrives of an answer that is streamed.
#[derive(Debug)]
pub enum Streamed {
    /// The head of an answer, before its content. Another one follows if the request is sent again: the content begins
    /// anew then.
    Head(Box<ResponseHead>),
    /// The next bytes of the content.
    Data(Bytes),
}

/// A request on its way.
pub(super) struct Request<S: Service> {
    pub job: S::Job,
    pub body: Body,
    pub length: u64,
    pub expected: Expected,
    pub reply: oneshot::Sender<Outcome<S>>,
    /// Times that it was written to a connection, or begun to be.
    pub times_sent: u32,
}

impl<S: Service> Request<S> {
    pub(super) fn is_small(&self) -> bool {
        self.length.max(self.expected.bytes_max as u64) <= SMALL_BYTES
    }
}

/// An answer, or what broke. The sender of a request hears nothing (the channel is closed) when the server is given up.
pub type Outcome<S> = Result<Answer<<S as Service>::Server>, String>;

/// The answer to a request: head and body.
#[derive(Debug)]
pub struct Answer<P> {
    /// Status and header fields of the answer.
    pub head: Box<ResponseHead>,
    /// The body, unless it is in pieces.
    pub body: Bytes,
    /// Body of the answer in pieces, if [`Expected::in_pieces`] is set.
    pub pieces: Vec<Bytes>,
    /// The server sends the whole, of which only a part was asked for ([`Expected::is_range`]); it was not read.
    pub is_cut: bool,
    /// Times that the request was sent: an earlier copy may have been carried out, and its answer lost.
    pub times_sent: u32,
    /// The server that the request was sent to.
    pub server: Arc<P>,
}
