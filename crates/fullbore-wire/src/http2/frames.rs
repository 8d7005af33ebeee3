//! Limits on the heads of answers, and on frames without content, that a server sends.
//!
//! h2 queues interim heads until a stream is polled, and flow control does not cover them: a server could fill the
//! memory between two polls. [`Metered`] sits below h2 and reads the headers of the passing frames (RFC 9113, section
//! 4.1). The connection fails if more heads arrive than its requests justify.
//!
//! h2 itself bounds its other queues: small DATA frames, CONTINUATION frames, and replies to PING and SETTINGS. But it
//! reads such frames without end, at the expense of all other connections. So the connection also fails if more frames
//! other than DATA arrive than its requests and content justify.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::INFORMATIONAL_MAX;

/// Number of HEADERS frames that one request justifies: interim heads, the final head, and trailers.
const HEADS_PER_STREAM: u64 = INFORMATIONAL_MAX as u64 + 2;

/// Number of frames other than DATA that need no justification. A guess: servers begin with about five, and an idle
/// connection gets a PING every few seconds.
const CONTROL_FRAMES_FREE: u64 = 10_000;

/// Number of frames other than DATA that one request justifies. A guess: PRIORITY, WINDOW_UPDATE and RST_STREAM, a few
/// each.
const CONTROL_FRAMES_PER_REQUEST: u64 = 100;

/// Number of content bytes that justify one further frame. Servers send a WINDOW_UPDATE for some KiB of an upload, and
/// a PING for some KiB of an answer. An acknowledgement is smaller, and does not justify the next PING.
const BYTES_PER_CONTROL_FRAME: u64 = 64;

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const GOAWAY: u8 = 7;

/// Number of requests of a connection, counted by its client and read by its [`Metered`].
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<AtomicU64>);

impl Requests {
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counters of received frames and of the requests that justify them.
#[derive(Debug, Default)]
struct Meter {
    requests: Requests,
    /// The frame header being read, and the number of its bytes read so far.
    header: [u8; HEADER_BYTES],
    header_read: usize,
    /// Bytes of the present frame that are still to come.
    payload_left: usize,
    heads: u64,
    /// Number of frames other than DATA.
    control_frames: u64,
    /// Bytes of received DATA frames, and all sent bytes.
    content_bytes: u64,
    /// Whether the server sent GOAWAY. How the connection ends after that is nobody's fault.
    has_goodbye: bool,
}

impl Meter {
    /// Counts received bytes, however they are split.
    fn receive(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let skipped = self.payload_left.min(bytes.len());
            self.payload_left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEADER_BYTES - self.header_read).min(bytes.len());
            self.header[self.header_read..][..taken].copy_from_slice(&bytes[..taken]);
            self.header_read += taken;
            bytes = &bytes[taken..];
            if self.header_read == HEADER_BYTES {
                self.header_read = 0;
                self.frame()?;
            }
        }
        Ok(())
    }

    fn frame(&mut self) -> io::Result<()> {
        let [high, middle, low, kind, ..] = self.header;
        self.payload_left = u32::from_be_bytes([0, high, middle, low]) as usize;
        let requests = self.requests.0.load(Ordering::Relaxed);
        self.heads += u64::from(kind == HEADERS);
        self.has_goodbye |= kind == GOAWAY;
        let heads_max = HEADS_PER_STREAM.saturating_mul(requests);
        if self.heads > heads_max {
            return Err(too_many(heads_max, "heads"));
        }
        match kind {
            DATA => self.content_bytes += self.payload_left as u64,
            _ => self.control_frames += 1,
        }
        let explained = CONTROL_FRAMES_PER_REQUEST * requests + self.content_bytes / BYTES_PER_CONTROL_FRAME;
        let control_frames_max = CONTROL_FRAMES_FREE + explained;
        if self.control_frames > control_frames_max {
            return Err(too_many(control_frames_max, "frames without content"));
        }
        Ok(())
    }
}

fn too_many(limit: u64, what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("server sent more than {limit} {what}"))
}

/// A connection whose received frames are counted.
///
/// A server may say goodbye (GOAWAY; RFC 9113, section 6.8) and close while we still write to it. What it sent before is
/// heard, although a write fails first: all further bytes are dropped. The error follows what was received, unless that has
/// a goodbye.
pub(super) struct Metered<S> {
    stream: S,
    meter: Meter,
    /// Why nothing more can be written.
    unwritable: Option<io::Error>,
    /// Whether everything was received.
    is_at_end: bool,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, requests: Requests) -> Self {
        Metered { stream, meter: Meter { requests, ..Meter::default() }, unwritable: None, is_at_end: false }
    }

    /// The number of bytes that were written, or are dropped because nothing can be.
    fn written(&mut self, result: io::Result<usize>, all: usize) -> io::Result<usize> {
        match result {
            Ok(written) => {
                self.meter.content_bytes += written as u64;
                Ok(written)
            }
            Err(error) if self.is_at_end && !self.meter.has_goodbye => Err(error),
            Err(error) => {
                self.unwritable = Some(error);
                Ok(all)
            }
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buffer));
        read.or_else(|error| if self.meter.has_goodbye { Ok(()) } else { Err(error) })?;
        if buffer.filled().len() == before {
            self.is_at_end = true;
            let error = if self.meter.has_goodbye { None } else { self.unwritable.take() };
            return Poll::Ready(error.map_or(Ok(()), Err));
        }
        Poll::Ready(self.meter.receive(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.unwritable.is_some() {
            return Poll::Ready(Ok(bytes.len()));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(cx, bytes));
        Poll::Ready(self.written(written, bytes.len()))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all = bytes.iter().map(|piece| piece.len()).sum();
        if self.unwritable.is_some() {
            return Poll::Ready(Ok(all));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(cx, bytes));
        Poll::Ready(self.written(written, all))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unwritable.is_none() {
            let flushed = ready!(Pin::new(&mut self.stream).poll_flush(cx));
            return Poll::Ready(self.written(flushed.map(|()| 0), 0).map(|_| ()));
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.unwritable.is_some() {
            return Poll::Ready(Ok(()));
        }
        let closed = ready!(Pin::new(&mut self.stream).poll_shutdown(cx));
        Poll::Ready(if self.meter.has_goodbye { Ok(()) } else { closed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u32) -> Vec<u8> {
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, 0, 0, 0, 0, 1]);
        frame.resize(HEADER_BYTES + length as usize, 0);
        frame
    }

    #[test]
    fn more_heads_than_the_requests_explain_are_refused() {
        // A payload of bytes that would be HEADERS frames if it were not skipped.
        let data = [frame(0, 300), frame(9, 0)].concat();
        let group = [&data[..9], &[HEADERS; 300][..], &data[309..], &frame(HEADERS, 3)[..]].concat();
        for requests in [1, 2, 7] {
            for read_bytes in [1, 7, 9, 310, 4096] {
                // The other limit is not met here.
                let mut meter = Meter { content_bytes: u64::MAX / 2, ..Meter::default() };
                (0..requests).for_each(|_| meter.requests.one_more());
                let limit = HEADS_PER_STREAM * requests;
                let explained = group.repeat(limit as usize);
                assert!(
                    explained.chunks(read_bytes).all(|piece| meter.receive(piece).is_ok()),
                    "{requests} {read_bytes}"
                );
                let error = group.chunks(read_bytes).find_map(|piece| meter.receive(piece).err());
                assert_eq!(error.expect("one head too many").kind(), io::ErrorKind::InvalidData);
                assert_eq!(meter.heads, limit + 1);
            }
        }
    }

    #[test]
    fn frames_without_content_end_a_connection_unless_content_explains_them() {
        for kind in 1..=255 {
            let mut meter = Meter::default();
            (0..2).for_each(|_| meter.requests.one_more());
            let flood = frame(kind, 8);
            let limit = CONTROL_FRAMES_FREE + 2 * CONTROL_FRAMES_PER_REQUEST;
            let accepted = if kind == HEADERS { 2 * HEADS_PER_STREAM } else { limit };
            let received = (0..=limit).take_while(|_| meter.receive(&flood).is_ok()).count() as u64;
            assert_eq!(received, accepted, "frames of kind {kind}");
        }
        // One PING for each 100 bytes of an answer.
        let mut meter = Meter::default();
        let answer = [frame(6, 8), frame(DATA, 100)].concat();
        assert!((0..10 * CONTROL_FRAMES_FREE).all(|_| meter.receive(&answer).is_ok()));
    }
}
