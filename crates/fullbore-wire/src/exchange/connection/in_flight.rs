//! A request that was handed to a connection, and what has arrived of its answer.

use std::time::Instant;

use bytes::{Bytes, BytesMut};

use super::super::{Expected, Request, Service};
use crate::http1::ResponseHead;
use crate::tcp_info::Arrival;

/// Smaller pieces of an answer are joined: a server that sends single bytes would need a list of millions.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// A request that was queued_bytes to the connection.
pub(super) struct InFlight<S: Service> {
    pub request: Request<S>,
    /// Where its last byte is, among all that were queued_bytes over.
    pub end: u64,
    pub begun: Instant,
    /// When its last byte had been written.
    pub written: Option<Instant>,
    /// When it had arrived at the server.
    pub arrival: Arrival,
    /// When its answer began.
    pub answering: Option<Instant>,
    pub head: Option<Box<ResponseHead>>,
    pub body: BytesMut,
    pub pieces: Vec<Bytes>,
    pub received_bytes: usize,
    /// The taker of a streamed answer has its head.
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

    /// Whether the answer is what was asked for, in pieces, and no error.
    fn is_in_pieces(&self) -> bool {
        let Expected { in_pieces, stream, .. } = &self.request.expected;
        (*in_pieces || stream.is_some()) && self.head.as_deref().is_some_and(is_good)
    }

    /// Whether the whole comes, where a part was asked for and so many bytes would be too many.
    pub(super) fn ignores_range(&self, bytes: u64) -> bool {
        let expected = &self.request.expected;
        let is_whole = self.head.as_deref().is_some_and(|head| head.status == 200);
        expected.is_range && is_whole && bytes > expected.bytes_max as u64
    }

    /// Gives up what has arrived of the body.
    pub(super) fn cut(&mut self) {
        self.is_cut = true;
        self.body.clear();
        self.pieces.clear();
    }

    /// Whether the body of the answer goes to its taker as it arrives.
    pub(super) fn is_streamed(&self) -> bool {
        self.request.expected.stream.is_some() && self.head.as_deref().is_some_and(is_good)
    }

    /// What is to be passed on of a streamed body: all of it when it has ended.
    pub(super) fn take_streamed(&mut self, has_ended: bool) -> Vec<Bytes> {
        if !self.is_streamed() {
            return Vec::new();
        }
        // Small pieces are gathered, and not the whole body.
        if has_ended || self.body.len() >= PIECE_BYTES_MIN {
            self.end_piece();
        }
        std::mem::take(&mut self.pieces)
    }

    /// Bytes of the answer's body.
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
