//! A request on a connection, and the received part of its answer.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::super::{Expected, Request, Service};
use crate::http1::ResponseHead;
use crate::tcp_info::Arrival;

/// Smaller pieces of an answer are joined: a server that sends single bytes would otherwise fill a list of millions.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// A request that was queued on the connection.
pub(super) struct InFlight<S: Service> {
    pub request: Request<S>,
    /// Position of its last byte among all bytes queued on the connection.
    pub end: u64,
    pub begun: Instant,
    /// Time at which its last byte was written.
    pub written: Option<Instant>,
    /// Time at which it arrived at the server.
    pub arrival: Arrival,
    /// Time at which its answer began.
    pub answering: Option<Instant>,
    pub head: Option<Box<ResponseHead>>,
    pub body: BytesMut,
    pub pieces: Vec<Bytes>,
    pub received_bytes: usize,
    /// Whether the taker of a streamed answer has its head.
    pub is_begun: bool,
    /// The rest of the answer is not read.
    pub is_cut: bool,
}

impl<S: Service> InFlight<S> {
    pub(super) fn new(request: Request<S>, begun: Instant) -> InFlight<S> {
        InFlight {
            request,
            end: u64::MAX,
            begun,
            written: None,
            arrival: Arrival::default(),
            answering: None,
            head: None,
            body: BytesMut::new(),
            pieces: Vec::new(),
            received_bytes: 0,
            is_begun: false,
            is_cut: false,
        }
    }

    /// Whether the answer is a success and is returned in pieces.
    fn is_in_pieces(&self) -> bool {
        let Expected { in_pieces, stream, .. } = &self.request.expected;
        (*in_pieces || stream.is_some()) && self.head.as_deref().is_some_and(is_good)
    }

    /// Whether the server ignores the range and sends the whole object, with more than `bytes` bytes.
    pub(super) fn ignores_range(&self, bytes: u64) -> bool {
        let expected = &self.request.expected;
        let is_whole = self.head.as_deref().is_some_and(|head| head.status == 200);
        expected.is_range && is_whole && bytes > expected.bytes_max as u64
    }

    /// Drops the received part of the body.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        self.body.clear();
        self.pieces.clear();
    }

    /// Whether the body goes to its taker as it arrives.
    pub(super) fn is_streamed(&self) -> bool {
        self.request.expected.stream.is_some() && self.head.as_deref().is_some_and(is_good)
    }

    /// Next part of a streamed body to pass on; everything left if it has ended.
    pub(super) fn take_streamed(&mut self, has_ended: bool) -> Vec<Bytes> {
        if !self.is_streamed() {
            return Vec::new();
        }
        // Small pieces are joined, but not the whole body.
        if has_ended || self.body.len() >= PIECE_BYTES_MIN {
            self.end_piece();
        }
        std::mem::take(&mut self.pieces)
    }

    /// Appends bytes of the answer's body.
    pub(crate) fn push_body(&mut self, data: Bytes) {
        self.received_bytes += data.len();
        if !self.is_in_pieces() || data.len() < PIECE_BYTES_MIN {
            self.body.extend_from_slice(&data);
        } else {
            self.end_piece();
            self.pieces.push(data);
        }
    }

    pub(crate) fn end_piece(&mut self) {
        if self.is_in_pieces() && !self.body.is_empty() {
            self.pieces.push(self.body.split().freeze());
        }
    }
}

fn is_good(head: &ResponseHead) -> bool {
    (200..300).contains(&head.status)
}
