//! A TCP connection with options for bulk transfer, and a probe for its counters.
//!
//! [`open`] connects to one address. [`Socket`] is the stream. [`TcpProbe`] reads its `TCP_INFO` and can request
//! pacing, from any thread, however deep the stream is wrapped in TLS or HTTP/2. It keeps the last reading after the
//! end of the stream, without keeping the stream open.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BufMut;
use fullbore_engine::run::heard::moved;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::pacing::pace;
use crate::tcp_info::TcpInfo;

/// Idle time before the kernel sends a keepalive probe. Less than the 120 s after which many home routers forget a
/// connection (a guess from common defaults).
pub(crate) const KEEPALIVE_IDLE: Duration = Duration::from_secs(45);
/// Time between keepalive probes.
pub(crate) const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);
/// Number of unanswered probes until the connection counts as dead: 45 s + 4 × 15 s.
pub(crate) const KEEPALIVE_PROBES: u32 = 4;

/// Socket options of a connection.
///
/// The receive buffer is left alone unless set. Setting `SO_RCVBUF` switches off receive autotuning
/// (`tcp_moderate_rcvbuf`), which follows the path up to the maximum of `tcp_rmem`, and caps the value at the far
/// smaller `rmem_max`. `TCP_NODELAY` is always on: requests are written whole, and Nagle's algorithm would delay the
/// second one by a round trip.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// Congestion control by name (`bbr`, `cubic`); the system's default when `None`.
    pub congestion_control: Option<String>,
    /// `SO_RCVBUF` in bytes; `None` leaves autotuning on.
    pub receive_buffer_bytes: Option<usize>,
    /// `SO_SNDBUF` in bytes; `None` leaves autotuning on.
    pub send_buffer_bytes: Option<usize>,
    /// `TCP_NOTSENT_LOWAT`: the socket counts as writable only below this number of unsent bytes. For senders: waiting
    /// bytes then stay in our window, where they are accounted and can be reordered, and not in the kernel's buffer.
    pub unsent_low_water_bytes: Option<u32>,
}

/// Connects to one address. `options` are set before the first packet, so that window scale and congestion control
/// apply to slow start. It has no time limit of its own.
///
/// # Errors
/// The error of the kernel, such as `ECONNREFUSED` or `ENETUNREACH`. An unknown congestion control is named.
pub async fn open(address: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    configure(SockRef::from(&socket), options)?;
    Socket::new(socket.connect(address).await?)
}

/// Sets `options` and the fixed options on a socket, connected or not.
///
/// # Errors
/// The error of `setsockopt`. An unknown congestion control is named.
pub fn configure(socket: SockRef<'_>, options: &SocketOptions) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_IDLE).with_interval(KEEPALIVE_INTERVAL).with_retries(KEEPALIVE_PROBES),
    )?;
    if let Some(name) = &options.congestion_control {
        socket
            .set_tcp_congestion(name.as_bytes())
            .map_err(|error| io::Error::new(error.kind(), format!("congestion control {name}: {error}")))?;
    }
    if let Some(bytes) = options.receive_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.unsent_low_water_bytes {
        socket.set_tcp_notsent_lowat(bytes)?;
    }
    Ok(())
}

/// A connected TCP stream whose counters a [`TcpProbe`] can read.
#[derive(Debug)]
pub struct Socket {
    stream: TcpStream,
    probe: TcpProbe,
}

impl Socket {
    /// Wraps a connected or accepted stream.
    ///
    /// # Errors
    /// `EMFILE` or `ENFILE` if no descriptor is left: the probe needs one of its own.
    pub fn new(stream: TcpStream) -> io::Result<Socket> {
        let own = stream.as_fd().try_clone_to_owned()?;
        let probe = TcpProbe { state: Arc::new(Mutex::new(Probed::Open(own))) };
        Ok(Socket { stream, probe })
    }

    /// A probe for this connection. It is cheap to clone and may outlive the socket.
    #[must_use]
    pub fn probe(&self) -> TcpProbe {
        self.probe.clone()
    }

    /// The TCP stream, to wait for readiness.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        &self.stream
    }

    /// Appends available data to `buf`, like [`TcpStream::try_read_buf`].
    ///
    /// # Errors
    /// As [`TcpStream::try_read_buf`]: `WouldBlock` if no data is there, otherwise the error of the socket.
    pub(crate) fn try_read_buf(&self, buf: &mut impl BufMut) -> io::Result<usize> {
        self.stream.try_read_buf(buf).inspect(|bytes| moved(*bytes))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Close the probe's descriptor first: only the last close informs the other end.
        self.probe.close();
    }
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buf);
        moved(buf.filled().len() - before);
        polled
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        counted(Pin::new(&mut self.stream).poll_write(cx, bytes))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        counted(Pin::new(&mut self.stream).poll_write_vectored(cx, slices))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

fn counted(polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
    if let Poll::Ready(Ok(bytes)) = polled {
        moved(bytes);
    }
    polled
}

/// Reads a connection's `TCP_INFO` from any thread. Clones share the connection. While the [`Socket`] exists, each call
/// asks the kernel; afterwards it returns the last reading.
#[derive(Debug, Clone)]
pub struct TcpProbe {
    state: Arc<Mutex<Probed>>,
}

#[derive(Debug)]
enum Probed {
    /// A duplicate descriptor, so that the stream may be anywhere, such as inside another task.
    Open(OwnedFd),
    /// The last reading, if there was one.
    Closed(Option<TcpInfo>),
}

impl TcpProbe {
    /// The counters now, or at the connection's end. `None` only if the kernel refused.
    #[must_use]
    pub fn read(&self) -> Option<TcpInfo> {
        match &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            Probed::Open(socket) => TcpInfo::read(socket.as_fd()).ok(),
            Probed::Closed(last) => *last,
        }
    }

    /// Requests pacing of further sends (see `pace`). A kernel without pacing sends as before.
    pub fn pace(&self) {
        if let Probed::Open(socket) = &*self.state.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ = pace(socket.as_fd());
        }
    }

    /// Whether the connection's [`Socket`] still exists.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(&*self.state.lock().unwrap_or_else(PoisonError::into_inner), Probed::Open(_))
    }

    fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Probed::Open(socket) = &*state {
            let last = TcpInfo::read(socket.as_fd()).ok();
            *state = Probed::Closed(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    #[tokio::test]
    async fn the_probe_outlives_the_socket_without_keeping_it_open() {
        let (mut near, mut far) = crate::loopback::pair().await;
        let probe = near.probe();
        far.write_all(&[1; 1000]).await.unwrap();
        near.read_exact(&mut [0; 1000]).await.unwrap();
        assert_eq!(probe.read().unwrap().bytes_received, 1000);
        assert!(probe.is_open());
        drop(near);
        // The end arrives although the probe lives.
        assert_eq!(far.read(&mut [0; 1]).await.unwrap(), 0);
        assert!(!probe.is_open());
        assert_eq!(probe.clone().read().unwrap().bytes_received, 1000);
    }

    #[tokio::test]
    async fn options_reach_the_kernel() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let plain = open(address, &SocketOptions::default()).await.unwrap();
        let socket = SockRef::from(plain.tcp());
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE_IDLE);

        let current = socket.tcp_congestion().unwrap();
        let current = String::from_utf8(current).unwrap().trim_end_matches('\0').to_owned();
        let asked = SocketOptions {
            congestion_control: Some(current.clone()),
            receive_buffer_bytes: Some(40_000),
            send_buffer_bytes: Some(50_000),
            unsent_low_water_bytes: Some(131_072),
        };
        let tuned = open(address, &asked).await.unwrap();
        let socket = SockRef::from(tuned.tcp());
        assert_eq!(socket.tcp_notsent_lowat().unwrap(), 131_072);
        // Linux doubles what is asked for, to cover its own bookkeeping.
        assert_eq!(socket.recv_buffer_size().unwrap(), 80_000);
        assert_eq!(socket.send_buffer_size().unwrap(), 100_000);

        let unknown = SocketOptions { congestion_control: Some("no-such".to_owned()), ..SocketOptions::default() };
        let error = open(address, &unknown).await.unwrap_err();
        assert!(error.to_string().contains("no-such"), "{error}");
    }
}
