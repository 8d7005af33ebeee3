//! Reading and writing as one HTTP/1.1 connection does: both at once, and never waiting for more than is there.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, BufMut, BytesMut};
use fullbore_engine::stage::StageClock;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http1::Http1;
use crate::stream::Stream;

/// What a connection could do.
pub(super) enum Turn {
    /// Something is there to be read.
    Readable,
    /// Requests were written.
    Written,
}

/// Writes what waits to be written, or waits until something is there to be read.
pub(super) async fn turn(stream: &mut Stream, http: &mut Http1, tls: &StageClock) -> io::Result<Turn> {
    poll_fn(|cx| {
        if http.outgoing().has_remaining() {
            match pin!(stream.write_buf(http.outgoing())).poll(cx) {
                Poll::Ready(Ok(_)) => return Poll::Ready(Ok(Turn::Written)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        // Over TLS this decrypts a first record.
        let readable = if stream.is_tls() { tls.work(|| stream.poll_readable(cx)) } else { stream.poll_readable(cx) };
        readable.map_ok(|()| Turn::Readable)
    })
    .await
}

/// Reads what is there, at most what the buffer has room for: bytes read, and whether that was the
/// end. Does not wait.
pub(super) async fn read_now(stream: &mut Stream, inbox: &mut BytesMut, tls: &StageClock) -> io::Result<(usize, bool)> {
    if stream.is_tls() {
        return tls.work(|| read_records(stream, inbox));
    }
    let room = inbox.capacity() - inbox.len();
    let mut limited = (&mut *inbox).limit(room);
    // `poll_read` and not `try_read`: after a short read it knows that the socket is empty, which
    // saves a system call that would only say so.
    let read = poll_fn(|cx| match pin!(stream.read_buf(&mut limited)).poll(cx) {
        Poll::Ready(read) => Poll::Ready(read),
        Poll::Pending => Poll::Ready(Err(io::ErrorKind::WouldBlock.into())),
    });
    let bytes = read.await?;
    Ok((bytes, bytes == 0 && room > 0))
}

/// Reads TLS records until there is none or the buffer is full.
fn read_records(stream: &mut Stream, inbox: &mut BytesMut) -> io::Result<(usize, bool)> {
    let mut total = 0;
    while inbox.capacity() > inbox.len() {
        match stream.try_read_buf(inbox) {
            Ok(0) => return Ok((total, true)),
            Ok(bytes) => total += bytes,
            // What came before the error is good; the next read meets the error again.
            Err(_) if total > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok((total, false))
}
