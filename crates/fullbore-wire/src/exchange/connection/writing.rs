//! How many bytes are given to the kernel, and when: as many as TCP can send, with few that wait there.

use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio::io::AsyncWriteExt;

use super::super::Pipelining;
use super::super::budget::Budget;
use crate::http1::Http1;
use crate::stream::Stream;
use crate::tcp_info::TcpInfo;

/// Size of a TLS record in bytes (RFC 8446, section 5.1); smaller pieces are joined to fill it.
const RECORD_BYTES: usize = 16 << 10;
const JOINED_PIECE_BYTES: usize = 4 << 10;

/// Result of a wait.
pub(super) enum Wakeup {
    Written,
    Readable,
    /// A request was put into the queue.
    Queued,
    /// A piece of a source was read.
    Source(io::Result<Bytes>),
    Timer,
}

/// State of writing to a stream.
pub(super) struct Writer {
    /// Small pieces, joined: each write makes a TLS record, and each record costs extra bytes.
    pub joined: BytesMut,
    pub flushed: bool,
}

impl Default for Writer {
    fn default() -> Writer {
        Writer { joined: BytesMut::new(), flushed: true }
    }
}

/// How much may be written now.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteAllowance {
    /// Maximum number of bytes.
    pub bytes: u64,
    /// Number of these bytes that need no room in the budget.
    pub free: u64,
}

impl WriteAllowance {
    /// Allowance for observed requests, within `limit`: what TCP can send at once, and some bytes to wait in the
    /// kernel. TLS accepts any amount, so a slow path is given little.
    pub(super) fn observed(info: &TcpInfo, limit: u64, pipelining: Pipelining) -> WriteAllowance {
        let (sendable, unsent) = (sendable(info), u64::from(info.unsent_bytes));
        let bytes = limit.min((unsent_allowed(info) + sendable).saturating_sub(unsent));
        let free = if pipelining == Pipelining::Always { sendable.saturating_sub(unsent) } else { 0 };
        WriteAllowance { bytes, free }
    }
}

/// Number of bytes that the kernel would send at once.
fn sendable(info: &TcpInfo) -> u64 {
    info.congestion_window_bytes().saturating_sub(info.under_way_bytes())
}

/// Number of unsent bytes that may wait in the kernel, within the budget. On a slow path it is half a second's worth,
/// so that a slow uplink is not taken for a stalled one. Before anything is measured, it is as little as on the slowest
/// path. On fast paths it is at least twice the congestion window; otherwise slow start would find nothing to send.
fn unsent_allowed(info: &TcpInfo) -> u64 {
    const LEAST: u64 = 4 << 10;
    const SLOW_BYTES_PER_S: u64 = 64 << 10;
    match info.delivery_rate_bytes_per_s {
        rate if rate < SLOW_BYTES_PER_S => (rate / 2).max(LEAST),
        rate => (rate / 2).max(2 * info.congestion_window_bytes()),
    }
}

/// Whether a request after this silence would send a burst that the path's buffers may not hold. A congestion window
/// that grew over many round trips would go out at once. Measured with 10 MB to ten servers at 100 ms, over connections
/// that had just carried as much. In five of eight runs segments were lost, up to one in ten, and they took 1.2 to 1.8
/// s; paced runs took 0.65 s.
pub(super) fn is_burst(info: &TcpInfo, silence: Duration) -> bool {
    const LEAST_RTT: Duration = Duration::from_millis(10);
    const LEAST_SEGMENTS: u32 = 80;
    let rtt = info.path_rtt();
    rtt >= LEAST_RTT && silence >= rtt && info.congestion_window_segments >= LEAST_SEGMENTS
}

impl Writer {
    /// Number of bytes that wait to be written.
    pub(super) fn waiting(&self, http: &mut Http1) -> u64 {
        (self.joined.len() + http.outgoing().len()) as u64
    }

    /// Writes allowed bytes (`None`: none now) as far as the budget permits, or waits until data can be read.
    pub(crate) async fn write_or_wait(
        &mut self,
        stream: &mut Stream,
        http: &mut Http1,
        budget: &Budget,
        allowed: Option<WriteAllowance>,
    ) -> io::Result<(u64, Wakeup)> {
        poll_fn(|cx| {
            let wanted = allowed.map_or(0, |allowed| allowed.bytes).min(self.waiting(http));
            let free = allowed.map_or(0, |allowed| allowed.free);
            let granted = if wanted > 0 { budget.reserve(wanted, free, Instant::now()) } else { 0 };
            if granted > 0 {
                let most = usize::try_from(granted).unwrap_or(usize::MAX);
                let waiting = http.outgoing();
                if self.joined.is_empty() && stream.is_tls() && waiting.chunk().len() < JOINED_PIECE_BYTES {
                    self.joined.put(waiting.take(RECORD_BYTES));
                }
                let polled = if self.joined.is_empty() {
                    pin!(stream.write_buf(&mut http.outgoing().take(most))).poll(cx)
                } else {
                    pin!(stream.write_buf(&mut (&mut self.joined).take(most))).poll(cx)
                };
                let written = if let Poll::Ready(Ok(written)) = &polled { *written as u64 } else { 0 };
                budget.give_back(granted - written);
                match polled {
                    Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                    Poll::Ready(Ok(_)) => {
                        self.flushed = false;
                        return Poll::Ready(Ok((written, Wakeup::Written)));
                    }
                    // The server may have refused before it accepted all bytes: read the refusal first.
                    Poll::Ready(Err(error)) => match stream.poll_readable(cx) {
                        Poll::Ready(Ok(())) => return Poll::Ready(Ok((0, Wakeup::Readable))),
                        _ => return Poll::Ready(Err(error)),
                    },
                    Poll::Pending => {}
                }
            } else if !self.flushed {
                match pin!(stream.flush()).poll(cx) {
                    Poll::Ready(Ok(())) => self.flushed = true,
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => {}
                }
            }
            stream.poll_readable(cx).map_ok(|()| (0, Wakeup::Readable))
        })
        .await
    }
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

    #[test]
    fn little_waits_in_the_kernel_before_anything_is_measured() {
        let info = |rate| TcpInfo {
            delivery_rate_bytes_per_s: rate,
            congestion_window_segments: 10,
            segment_bytes: 1448,
            unacknowledged_segments: 4,
            ..TcpInfo::default()
        };
        assert_eq!([0, 10_000, 60_000].map(|rate| unsent_allowed(&info(rate))), [4 << 10, 5_000, 30_000]);
        assert_eq!([100_000, 1_000_000].map(|rate| unsent_allowed(&info(rate))), [50_000, 500_000]);
        assert_eq!(unsent_allowed(&info(65_536)), 32_768);
        assert_eq!(sendable(&info(0)), 6 * 1448);
    }

    #[test]
    fn a_socket_that_nobody_counts_takes_what_it_is_given() {
        let allowed = WriteAllowance::observed(&TcpInfo::uncounted(1000, 0), 1 << 20, Pipelining::Always);
        assert_eq!((allowed.bytes, allowed.free), (1 << 20, 1460 << 20));
        assert_eq!(TcpInfo::uncounted(1000, 0).in_kernel_bytes(), 0, "all has arrived");
        assert!(!is_burst(&TcpInfo::uncounted(0, 0), Duration::from_secs(60)));
    }
}
