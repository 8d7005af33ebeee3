//! A limit on the heads of answers that a server sends.
//!
//! h2 queues interim heads until a stream is polled, and flow control does not cover them: a server could fill the memory
//! between two polls. [`Metered`] sits below h2 and reads the frame headers that pass (RFC 9113, section 4.1). The
//! connection fails when more heads arrive than its requests explain. h2 itself limits what else it queues: small DATA
//! frames, CONTINUATION frames, and replies to PING and SETTINGS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::http1::INFORMATIONAL_MAX;

/// HEADERS frames that one request explains: interim heads, the final head, and trailers.
const HEADS_PER_STREAM: u64 = INFORMATIONAL_MAX as u64 + 2;

const HEADER_BYTES: usize = 9;
const HEADERS: u8 = 1;

/// The requests of a connection, counted by its client and read by its [`Metered`].
#[derive(Clone, Debug, Default)]
pub(super) struct Requests(Arc<AtomicU64>);

impl Requests {
    pub(super) fn one_more(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The heads that have arrived, and the requests that explain them.
#[derive(Debug, Default)]
struct Meter {
    requests: Requests,
    /// The frame header that is being read, and how much of it is there.
    header: [u8; HEADER_BYTES],
    header_read: usize,
    /// Bytes of the present frame that are still to come.
    payload_left: usize,
    heads: u64,
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
        let [high, middle, low, kind, ..] = self.header;
        self.payload_left = u32::from_be_bytes([0, high, middle, low]) as usize;
        self.heads += u64::from(kind == HEADERS);
        let limit = HEADS_PER_STREAM.saturating_mul(self.requests.0.load(Ordering::Relaxed));
        if self.heads > limit {
            return Err(io::Error::new(io::ErrorKind::InvalidData, format!("server sent more than {limit} heads")));
        }
        Ok(())
    }
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
                let mut meter = Meter::default();
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
}
