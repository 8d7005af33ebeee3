//! A limit on the frames that bring no content.
//!
//! h2 queues interim heads and small or empty DATA frames until a stream is polled, and flow control covers neither:
//! a server could fill the memory between two polls. [`Metered`] sits below h2 and reads the frame headers that pass
//! (RFC 9113, section 4.1). The connection fails when they exceed what its requests and its content explain.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::INFORMATIONAL_MAX;

/// HEADERS frames that one request explains: interim heads, the final head, and trailers.
const HEADS_PER_STREAM: u64 = INFORMATIONAL_MAX as u64 + 2;

/// Other frames that a connection may bring whatever it carries. A guess: a server that probes the path with a PING
/// each second needs an hour for them.
const FRAMES_FREE: u64 = 4096;

/// The same for each request: the parts of a small file, window updates, the end of the stream. A guess.
const FRAMES_PER_STREAM: u64 = 16;

/// Content that pays for one more frame. h2 keeps about 250 bytes for a frame in its queue, so a full window of such
/// frames holds 64 MB. Servers send 1 KiB or more in a frame.
const BYTES_PER_FRAME: u64 = 64;

/// Longest padding of a frame, with the byte that tells its length. h2 gives padding back to the windows by itself.
const PADDING_BYTES_MAX: u64 = 256;

const HEADER_BYTES: usize = 9;
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;

/// The requests of a connection, counted by its client and read by its [`Metered`].
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<AtomicU64>);

impl Requests {
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The frames that have arrived, and what explains them.
#[derive(Debug, Default)]
struct Meter {
    requests: Requests,
    /// The frame header that is being read, and how much of it is there.
    header: [u8; HEADER_BYTES],
    header_read: usize,
    /// Bytes of the present frame that are still to come.
    payload_left: usize,
    heads: u64,
    frames: u64,
    content_bytes: u64,
}

impl Meter {
    /// Takes received bytes, however they are split.
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
        let [high, middle, low, kind, flags, ..] = self.header;
        let length = u32::from_be_bytes([0, high, middle, low]);
        self.payload_left = length as usize;
        let requests = self.requests.0.load(Ordering::Relaxed);
        match kind {
            HEADERS => {
                self.heads += 1;
                let limit = HEADS_PER_STREAM.saturating_mul(requests);
                return at_most(limit, self.heads, "heads of answers");
            }
            DATA => {
                let padding = if flags & PADDED == 0 { 0 } else { PADDING_BYTES_MAX };
                self.content_bytes += u64::from(length).saturating_sub(padding);
            }
            _ => {}
        }
        self.frames += 1;
        let limit = FRAMES_FREE + FRAMES_PER_STREAM.saturating_mul(requests) + self.content_bytes / BYTES_PER_FRAME;
        at_most(limit, self.frames, "frames with little or no content")
    }
}

fn at_most(limit: u64, count: u64, what: &str) -> io::Result<()> {
    if count <= limit {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, format!("server sent more than {limit} {what}")))
}

/// A connection whose received frames are counted.
pub(super) struct Metered<S> {
    stream: S,
    meter: Meter,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, requests: Requests) -> Self {
        Metered { stream, meter: Meter { requests, ..Meter::default() } }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        Poll::Ready(self.meter.receive(&buffer.filled()[before..]))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, length: u32) -> Vec<u8> {
        let mut frame = length.to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags, 0, 0, 0, 1]);
        frame.resize(HEADER_BYTES + length as usize, 0);
        frame
    }

    /// How many of these frames one request explains, in reads of this length.
    fn accepted(frame: &[u8], read_bytes: usize) -> u64 {
        let mut meter = Meter::default();
        meter.requests.one_more();
        let bytes = frame.repeat(10_000);
        for piece in bytes.chunks(read_bytes) {
            if meter.receive(piece).is_err() {
                return meter.heads + meter.frames - 1;
            }
        }
        10_000
    }

    #[test]
    fn frames_without_content_are_limited() {
        let few = FRAMES_FREE + FRAMES_PER_STREAM;
        let kinds = [
            ("interim heads", frame(HEADERS, 4, 3), HEADS_PER_STREAM),
            ("empty DATA", frame(DATA, 0, 0), few),
            ("DATA of padding alone", frame(DATA, PADDED, 256), few),
            ("PING", frame(6, 0, 8), few),
            ("SETTINGS", frame(4, 0, 0), few),
            ("CONTINUATION", frame(9, 0, 0), few),
            ("RST_STREAM", frame(3, 0, 4), few),
            ("unknown", frame(0xbb, 0, 0), few),
        ];
        for (what, frame, limit) in kinds {
            for read_bytes in [1, 7, 9, 4096] {
                assert_eq!(accepted(&frame, read_bytes), limit, "{what} in reads of {read_bytes} bytes");
            }
        }
        assert!(accepted(&frame(DATA, 0, 1), 4096) < few + few / 32, "DATA of one byte");
        assert_eq!(accepted(&frame(DATA, 0, 1024), 4096), 10_000, "ordinary content");
    }
}
