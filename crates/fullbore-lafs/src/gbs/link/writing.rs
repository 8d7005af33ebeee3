//! What is handed to the kernel, and when: as much as it can send, and little that waits there.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use fullbore_wire::http1::Http1;
use fullbore_wire::stream::Stream;
use fullbore_wire::tcp_info::TcpInfo;
use tokio::io::AsyncWriteExt;

use super::connection::Turn;

/// Bytes given to TLS in one call: some records.
pub(super) const AT_ONCE_BYTES: usize = 256 << 10;

/// Bytes of one record of TLS (RFC 8446, section 5.1), and pieces that are joined to fill it.
const RECORD_BYTES: usize = 16 << 10;
const JOINED_PIECE_BYTES: usize = 4 << 10;

/// What is on its way into TLS.
pub(super) struct Out {
    /// Small pieces, joined: each call makes a record of TLS, and many records are many bytes.
    pub joined: BytesMut,
    pub flushed: bool,
}

/// Bytes that the kernel would send at once.
pub(super) fn sendable(info: &TcpInfo) -> u64 {
    info.congestion_window_bytes().saturating_sub(info.under_way_bytes())
}

/// Bytes that may wait unsent in the kernel, as far as [`super::Sockets`] lets all of them. On a slow path half a
/// second of it, and before anything is measured as little as on the slowest: what waits waits here. On fast paths
/// also twice the congestion window, or slow start would find nothing to send.
pub(super) fn unsent_allowed(info: &TcpInfo) -> u64 {
    const LEAST: u64 = 4 << 10;
    const SLOW_BYTES_PER_S: u64 = 64 << 10;
    match info.delivery_rate_bytes_per_s {
        rate if rate < SLOW_BYTES_PER_S => (rate / 2).max(LEAST),
        rate => (rate / 2).max(2 * info.congestion_window_bytes()),
    }
}

/// Whether what is sent after such a time of silence would be a burst that the path's buffers may not hold: a window that many
/// round trips have opened goes out at once. Measured: 10 MB to ten servers over connections that had just carried as much,
/// 100 ms: in five runs of eight segments were lost, up to one in ten, and they took 1.2 to 1.8 s; paced 0.65 s.
pub(super) fn is_burst(info: &TcpInfo, silence: Duration) -> bool {
    const LEAST_RTT: Duration = Duration::from_millis(10);
    const LEAST_SEGMENTS: u32 = 80;
    let rtt = info.path_rtt();
    rtt >= LEAST_RTT && silence >= rtt && info.congestion_window_segments >= LEAST_SEGMENTS
}

/// Writes at most `most` bytes of what waits (`None`: nothing now), or waits until something is there to be read.
pub(super) async fn write_or_wait(
    stream: &mut Stream,
    http: &mut Http1,
    out: &mut Out,
    most: Option<usize>,
) -> io::Result<(usize, Turn)> {
    poll_fn(|cx| {
        if let Some(most) = most
            && (out.joined.has_remaining() || http.outgoing().has_remaining())
        {
            let waiting = http.outgoing();
            if out.joined.is_empty() && waiting.chunk().len() < JOINED_PIECE_BYTES {
                out.joined.put(waiting.take(RECORD_BYTES));
            }
            let polled = if out.joined.is_empty() {
                pin!(stream.write_buf(&mut http.outgoing().take(most))).poll(cx)
            } else {
                pin!(stream.write_buf(&mut (&mut out.joined).take(most))).poll(cx)
            };
            match polled {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    out.flushed = false;
                    return Poll::Ready(Ok((written, Turn::Written)));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        } else if !out.flushed {
            match pin!(stream.flush()).poll(cx) {
                Poll::Ready(Ok(())) => out.flushed = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        stream.poll_readable(cx).map_ok(|()| (0, Turn::Readable))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_window_after_silence_is_a_burst() {
        let ms = Duration::from_millis;
        let of = |rtt, segments, silence| {
            let info = TcpInfo { rtt: ms(rtt), congestion_window_segments: segments, ..TcpInfo::default() };
            is_burst(&info, ms(silence))
        };
        assert!(of(100, 80, 100));
        assert!(!of(100, 79, 100), "a narrow one");
        assert!(!of(100, 400, 99), "less than a round trip of silence");
        assert!(!of(9, 400, 1000), "near by");
    }
}
