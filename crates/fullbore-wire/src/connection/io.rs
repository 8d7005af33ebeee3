//! Reads and writes of one HTTP/1.1 connection: both at once, without waiting for more data than is there.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, BufMut, BytesMut};
use fullbore_engine::stage::StageClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::Http1;
use crate::stream::Stream;

/// What a connection can do next.
pub(super) enum Turn {
    /// Data is there to be read.
    Readable,
    /// Requests were written.
    Written,
}

/// Writes the queued requests, or waits until data is there to be read.
pub(super) async fn turn(stream: &mut Stream, http: &mut Http1, tls: &StageClock) -> io::Result<Turn> {
    poll_fn(|cx| {
        if http.outgoing().has_remaining() {
            match pin!(stream.write_buf(http.outgoing())).poll(cx) {
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(Turn::Written)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        // With TLS, this decrypts a first record.
        let readable = if stream.is_tls() { tls.work(|| stream.poll_readable(cx)) } else { stream.poll_readable(cx) };
        readable.map_ok(|()| Turn::Readable)
    })
    .await
}

/// Reads the available bytes, at most as many as fit into the buffer. Returns their number, and whether the stream has
/// ended. Does not wait.
pub(super) async fn read_now(stream: &mut Stream, inbox: &mut BytesMut, tls: &StageClock) -> io::Result<(usize, bool)> {
    if stream.is_tls() {
        return tls.work(|| read_records(stream, inbox));
    }
    let room = inbox.capacity() - inbox.len();
    let mut limited = (&mut *inbox).limit(room);
    // `poll_read` instead of `try_read`: after a short read it knows that the socket is empty, which saves a system
    // call.
    let read = poll_fn(|cx| match pin!(stream.read_buf(&mut limited)).poll(cx) {
        Poll::Ready(read) => Poll::Ready(read),
        Poll::Pending => Poll::Ready(Err(io::ErrorKind::WouldBlock.into())),
    });
    let bytes = read.await?;
    Ok((bytes, bytes == 0 && room > 0))
}

/// Reads TLS records until none is left or the buffer is full.
fn read_records(stream: &mut Stream, inbox: &mut BytesMut) -> io::Result<(usize, bool)> {
    let mut total = 0;
    while inbox.capacity() > inbox.len() {
        match stream.try_read_buf(inbox) {
            Ok(0) => return Ok((total, true)),
            Ok(bytes) => total += bytes,
            // The bytes before the error are good; the next read gets the error again.
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok((total, false))
}
