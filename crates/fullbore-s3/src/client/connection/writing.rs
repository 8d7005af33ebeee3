//! The writing half of a connection: how much of what waits is written now.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use bytes::{Buf, Bytes};
use fullbore_wire::http1::Http1;
use fullbore_wire::stream::Stream;
use fullbore_wire::tcp_info::TcpInfo;
use tokio::io::AsyncWriteExt;

use super::super::budget::Budget;

/// What moved.
pub(super) enum Turn {
    Written,
    Readable,
    Arrived,
    Fed(io::Result<Bytes>),
    Look,
}

/// Unsent bytes in the kernel that a path of this speed may have, as far as the budget of all connections goes. Where it
/// is slow half a second of it, so that a slow uplink is not taken for a stalled one; elsewhere also twice the congestion
/// window, or slow start would find nothing to send.
pub(super) fn unsent_allowed(info: &TcpInfo) -> u64 {
    const LEAST: u64 = 4 << 10;
    const SLOW_BYTES_PER_S: u64 = 64 << 10;
    match info.delivery_rate_bytes_per_s {
        1..SLOW_BYTES_PER_S => (info.delivery_rate_bytes_per_s / 2).max(LEAST),
        rate => (rate / 2).max(2 * info.congestion_window_bytes()).max(LEAST),
    }
}

/// Writes at most `most` bytes of what waits (`None`: nothing now), as far as the budget goes, or waits until something is
/// there to be read.
pub(super) async fn write_or_wait(
    stream: &mut Stream,
    http: &mut Http1,
    flushed: &mut bool,
    budget: &Budget,
    most: Option<u64>,
) -> io::Result<(u64, Turn)> {
    poll_fn(|cx| {
        let wanted = most.unwrap_or(0).min(http.outgoing().remaining() as u64);
        let granted = if wanted > 0 { budget.reserve(wanted, Instant::now()) } else { 0 };
        if granted > 0 {
            let mut limited = http.outgoing().take(usize::try_from(granted).unwrap_or(usize::MAX));
            let polled = pin!(stream.write_buf(&mut limited)).poll(cx);
            let written = if let Poll::Ready(Ok(written)) = &polled { *written as u64 } else { 0 };
            budget.give_back(granted - written);
            match polled {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(_)) => {
                    *flushed = false;
                    return Poll::Ready(Ok((written, Turn::Written)));
                }
                // A refusal may have come before all of it was taken: it is read first.
                Poll::Ready(Err(error)) => match stream.poll_readable(cx) {
                    Poll::Ready(Ok(())) => return Poll::Ready(Ok((0, Turn::Readable))),
                    _ => return Poll::Ready(Err(error)),
                },
                Poll::Pending => {}
            }
        } else if !*flushed {
            match pin!(stream.flush()).poll(cx) {
                Poll::Ready(Ok(())) => *flushed = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        stream.poll_readable(cx).map_ok(|()| (0, Turn::Readable))
    })
    .await
}
