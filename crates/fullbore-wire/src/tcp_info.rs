//! The kernel's counters of one TCP connection: round trip, retransmissions, and the limits of the sender.
//!
//! `TCP_INFO` is the second signal of the verdict (see the engine). A stage reports that it starves; the kernel shows
//! whether the path, the other end's window or our own buffer is the reason. The call is the only `unsafe` code here;
//! all other code reads bytes whose number the kernel reported.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Size of the buffer for the kernel's `struct tcp_info`: 248 bytes as of Linux 6.8. The kernel fills what fits and
/// reports how much, so a larger or smaller struct is harmless.
const TCP_INFO_BYTES: usize = 384;

/// Length up to and including `tcpi_total_retrans`, available since Linux 2.6. A shorter answer is not that of a TCP
/// socket.
const TCP_INFO_MINIMUM_BYTES: usize = 104;

/// The kernel's value of the smallest round trip while it has not measured one.
const UNKNOWN: u32 = u32::MAX;

/// One reading of `TCP_INFO` (`linux/tcp.h`). Fields unknown to a kernel are zero, or `None` where zero would be
/// misleading. Counters grow over the connection's life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Smoothed round-trip time, as measured by the sending side of this end.
    pub rtt: Duration,
    /// Mean deviation of `rtt` (RFC 6298, RTTVAR).
    pub rtt_variation: Duration,
    /// Smallest round-trip time of the recent past (Linux 4.9).
    pub min_rtt: Option<Duration>,
    /// Round-trip time as the receiver estimates it; the useful one on a connection that mostly receives. Zero until
    /// data has arrived.
    pub receive_rtt: Duration,
    /// Bytes per round trip that the application copies, as estimated by receive-buffer autotuning.
    pub receive_space_bytes: u32,
    /// Size of the congestion window, in segments.
    pub congestion_window_segments: u32,
    /// Maximum segment size of the sender, in bytes.
    pub segment_bytes: u32,
    /// Segments sent and not yet acknowledged.
    pub unacknowledged_segments: u32,
    /// Segments retransmitted over the life of the connection.
    pub retransmitted_segments: u32,
    /// Payload bytes that the other end acknowledged (Linux 4.1).
    pub bytes_acknowledged: u64,
    /// Payload bytes received, in order; since Linux 4.1.
    pub bytes_received: u64,
    /// Bytes written to the socket and not sent yet (Linux 4.6).
    pub unsent_bytes: u32,
    /// Recent goodput of the sending direction, bytes per second (Linux 4.9).
    pub delivery_rate_bytes_per_s: u64,
    /// Time with data to send in flight (Linux 4.9). Zero on a mere receiver.
    pub busy: Duration,
    /// Part of `busy` in which the other end's receive window was full: the receiver limits.
    pub receive_window_limited: Duration,
    /// Part of `busy` in which our own send buffer was the limit.
    pub send_buffer_limited: Duration,
}

impl TcpInfo {
    /// Reads the kernel's counters of a TCP socket (`TCP_INFO`, tcp(7)).
    ///
    /// # Errors
    /// The error of `getsockopt`: `ENOTSOCK`, or `EOPNOTSUPP` for a socket that is not TCP.
    /// [`io::ErrorKind::InvalidData`] if the kernel's answer is shorter than that of any known kernel.
    pub fn read(socket: BorrowedFd<'_>) -> io::Result<TcpInfo> {
        let mut raw = [0_u8; TCP_INFO_BYTES];
        let mut length = TCP_INFO_BYTES as libc::socklen_t;
        // SAFETY: `raw` is valid for writes of `length` bytes for the whole call, and the
        // kernel writes at most `length` bytes; `length` is a valid socklen_t that the kernel
        // replaces by the number of bytes written. `socket` is open for the borrow's life.
        let status = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                raw.as_mut_ptr().cast(),
                &mut length,
            )
        };
        if status != 0 {
            return Err(io::Error::last_os_error());
        }
        let filled = raw.get(..length as usize).unwrap_or(&raw);
        TcpInfo::parse(filled)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, format!("TCP_INFO of {length} bytes")))
    }

    /// A reading for a socket whose kernel counts nothing, such as qemu's user mode and some sandboxes. All written
    /// bytes count as arrived, and the path accepts any amount.
    pub(crate) fn uncounted(written_bytes: u64, received_bytes: u64) -> TcpInfo {
        TcpInfo {
            segment_bytes: 1460,
            congestion_window_segments: 1 << 20,
            bytes_acknowledged: written_bytes,
            bytes_received: received_bytes,
            ..TcpInfo::default()
        }
    }

    /// Parses the struct that the kernel filled. The offsets are those of `linux/tcp.h`, which only grows at its end.
    fn parse(raw: &[u8]) -> Option<TcpInfo> {
        if raw.len() < TCP_INFO_MINIMUM_BYTES {
            return None;
        }
        let u32_at =
            |offset: usize| -> Option<u32> { raw.get(offset..offset + 4)?.try_into().ok().map(u32::from_ne_bytes) };
        let u64_at =
            |offset: usize| -> Option<u64> { raw.get(offset..offset + 8)?.try_into().ok().map(u64::from_ne_bytes) };
        let microseconds = |value: u32| Duration::from_micros(u64::from(value));
        Some(TcpInfo {
            segment_bytes: u32_at(16)?,
            unacknowledged_segments: u32_at(24)?,
            rtt: microseconds(u32_at(68)?),
            rtt_variation: microseconds(u32_at(72)?),
            congestion_window_segments: u32_at(80)?,
            receive_rtt: microseconds(u32_at(92)?),
            receive_space_bytes: u32_at(96)?,
            retransmitted_segments: u32_at(100)?,
            bytes_acknowledged: u64_at(120).unwrap_or(0),
            bytes_received: u64_at(128).unwrap_or(0),
            unsent_bytes: u32_at(144).unwrap_or(0),
            min_rtt: u32_at(148).filter(|&value| value != UNKNOWN).map(microseconds),
            delivery_rate_bytes_per_s: u64_at(160).unwrap_or(0),
            busy: Duration::from_micros(u64_at(168).unwrap_or(0)),
            receive_window_limited: Duration::from_micros(u64_at(176).unwrap_or(0)),
            send_buffer_limited: Duration::from_micros(u64_at(184).unwrap_or(0)),
        })
    }

    /// Best estimate of the path's round trip in either direction of the data: the smaller of the sender's smoothed
    /// value and the smallest seen, if measured.
    #[must_use]
    pub fn path_rtt(&self) -> Duration {
        self.min_rtt.map_or(self.rtt, |minimum| minimum.min(self.rtt))
    }

    /// Payload bytes sent and not acknowledged; a partial segment counts as a full one.
    #[must_use]
    pub fn under_way_bytes(&self) -> u64 {
        u64::from(self.unacknowledged_segments) * u64::from(self.segment_bytes)
    }

    /// Size of the congestion window, in bytes.
    #[must_use]
    pub fn congestion_window_bytes(&self) -> u64 {
        u64::from(self.congestion_window_segments) * u64::from(self.segment_bytes)
    }

    /// Payload bytes written to the socket that the other end is not known to have.
    #[must_use]
    pub(crate) fn in_kernel_bytes(&self) -> u64 {
        u64::from(self.unsent_bytes) + self.under_way_bytes()
    }
}

/// Tells when data written to a connection has arrived at its other end.
#[derive(Debug, Clone, Copy, Default)]
pub struct Arrival {
    /// Value of `bytes_acknowledged` at which all of it has arrived.
    end: Option<u64>,
    /// Time at which it was last seen in flight.
    missing: Option<Instant>,
    at: Option<Instant>,
}

impl Arrival {
    /// Call it from time to time, from when all of the data is written.
    pub fn update(&mut self, info: &TcpInfo, now: Instant) {
        let in_kernel = info.in_kernel_bytes();
        let end = *self.end.get_or_insert(info.bytes_acknowledged + in_kernel);
        // A partial segment counts as a full one; nothing in flight means that all has arrived.
        if self.at.is_none() {
            match info.bytes_acknowledged >= end || in_kernel == 0 {
                true => self.at = Some(now),
                false => self.missing = Some(now),
            }
        }
    }

    /// Time of the arrival, from an estimate and the observations. The counters are read too seldom to know the exact
    /// time: a first reading after the answer would give the time of the answer.
    #[must_use]
    pub fn estimated(&self, estimate: Option<Instant>) -> Option<Instant> {
        let Some(estimate) = estimate else { return self.at };
        let not_before = estimate.max(self.missing.unwrap_or(estimate));
        Some(self.at.map_or(not_before, |at| at.min(not_before)))
    }

    /// Time at which the arrival was first observed.
    #[must_use]
    pub fn at(&self) -> Option<Instant> {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd;

    #[test]
    fn counters_have_what_loopback_carried() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 5000]).unwrap();
        far.read_exact(&mut [0; 5000]).unwrap();
        far.write_all(&[8; 300]).unwrap();
        near.read_exact(&mut [0; 300]).unwrap();
        let info = TcpInfo::read(near.as_fd()).unwrap();
        assert_eq!(info.bytes_received, 300);
        assert!(info.bytes_acknowledged >= 5000, "{info:?}");
        assert!(info.rtt > Duration::ZERO && info.rtt < Duration::from_secs(1), "{info:?}");
        assert!(info.path_rtt() <= info.rtt);
        assert!(info.congestion_window_segments >= 1, "{info:?}");
        assert!((500..=65_536).contains(&info.segment_bytes), "{info:?}");
        assert!(info.busy < Duration::from_secs(5), "{info:?}");
    }

    #[test]
    fn an_arrival_is_estimated_within_what_was_seen() {
        let begun = Instant::now();
        let at = |ms| begun + Duration::from_millis(ms);
        let unsent = |bytes| TcpInfo { unsent_bytes: bytes, ..TcpInfo::default() };
        // Looked at first when it was long there.
        let mut arrival = Arrival::default();
        assert_eq!(arrival.estimated(Some(at(10))), Some(at(10)));
        arrival.update(&unsent(0), at(500));
        assert_eq!((arrival.at(), arrival.estimated(Some(at(10)))), (Some(at(500)), Some(at(10))));
        assert_eq!(arrival.estimated(None), Some(at(500)));
        assert_eq!(arrival.estimated(Some(at(600))), Some(at(500)), "it was seen");
        // The path was slower than the estimate.
        let mut arrival = Arrival::default();
        arrival.update(&unsent(5), at(300));
        arrival.update(&unsent(0), at(310));
        assert_eq!(arrival.estimated(Some(at(10))), Some(at(300)));
    }

    #[test]
    fn offsets_agree_with_libc() {
        use libc::tcp_info as c;
        use std::mem::offset_of;
        assert_eq!(offset_of!(c, tcpi_snd_mss), 16);
        assert_eq!(offset_of!(c, tcpi_unacked), 24);
        assert_eq!(offset_of!(c, tcpi_rtt), 68);
        assert_eq!(offset_of!(c, tcpi_rttvar), 72);
        assert_eq!(offset_of!(c, tcpi_snd_cwnd), 80);
        assert_eq!(offset_of!(c, tcpi_rcv_rtt), 92);
        assert_eq!(offset_of!(c, tcpi_rcv_space), 96);
        assert_eq!(offset_of!(c, tcpi_total_retrans), 100);
        assert_eq!(offset_of!(c, tcpi_bytes_acked), 120);
        assert_eq!(offset_of!(c, tcpi_bytes_received), 128);
        assert_eq!(offset_of!(c, tcpi_notsent_bytes), 144);
        assert_eq!(offset_of!(c, tcpi_min_rtt), 148);
        assert_eq!(offset_of!(c, tcpi_delivery_rate), 160);
        assert_eq!(offset_of!(c, tcpi_busy_time), 168);
        assert_eq!(offset_of!(c, tcpi_rwnd_limited), 176);
        assert_eq!(offset_of!(c, tcpi_sndbuf_limited), 184);
    }

    #[test]
    fn short_answers_leave_younger_fields_empty() {
        assert_eq!(TcpInfo::parse(&[0xff; TCP_INFO_MINIMUM_BYTES - 1]), None);
        let old = TcpInfo::parse(&[1; TCP_INFO_MINIMUM_BYTES]).unwrap();
        assert_eq!(old.rtt, Duration::from_micros(0x0101_0101));
        assert_eq!((old.bytes_received, old.min_rtt, old.busy), (0, None, Duration::ZERO));
        // Cut within a field: that field is absent, not half read.
        let cut = TcpInfo::parse(&[1; 130]).unwrap();
        assert_eq!(cut.bytes_acknowledged, 0x0101_0101_0101_0101);
        assert_eq!(cut.bytes_received, 0);
    }

    #[test]
    fn other_sockets_are_refused() {
        let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(TcpInfo::read(udp.as_fd()).is_err());
    }
}
