//! The byte stream under a protocol: plain TCP or TLS, read in large pieces.
//!
//! [`Stream::read_into`] takes all available data, up to a limit, before it returns, so that a few large chunks are
//! passed on instead of many small ones. It also reports whether it had to wait, which is the verdict's "socket found
//! empty".

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::{Buf, BufMut, BytesMut};
use rustls::ClientConfig;
use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::forward::writes_go_to;
use crate::socket::{Socket, TcpProbe};
use crate::tls::{Protocol, TlsError, server_name};

/// Number of bytes read from the kernel at once on a TLS connection. rustls itself asks for 4 KiB at a time
/// (`READ_SIZE` in its deframer), which would take 64 system calls.
const TLS_READ_AHEAD_BYTES: usize = 256 << 10;

/// Minimum spare room; below it a buffer gets new memory instead of being filled up. It is the payload of one TLS
/// record, and about what a system call is worth.
const MIN_SPARE_BYTES: usize = 16 << 10;

/// A connection to a server, plain or with TLS.
#[derive(Debug)]
pub enum Stream {
    /// Plain TCP.
    Plain(Socket),
    /// TLS over TCP, or over TLS to a proxy.
    Tls(Box<TlsSocket>),
}

/// Result of one call of [`Stream::read_into`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Filled {
    /// Number of bytes that were appended to the buffer.
    pub bytes: usize,
    /// Whether no data was there at first, so that the call waited.
    pub waited: bool,
    /// Whether the other end has finished. TLS ends without `close_notify` count as well, because many servers send
    /// none. Length and hash judge whether a body is complete.
    pub end: bool,
}

impl Stream {
    /// Probe for the TCP connection beneath.
    #[must_use]
    pub fn probe(&self) -> TcpProbe {
        match self {
            Stream::Plain(socket) => socket.probe(),
            Stream::Tls(tls) => tls.inner.get_ref().0.stream.probe(),
        }
    }

    /// Whether the bytes are encrypted.
    #[must_use]
    pub(crate) fn is_tls(&self) -> bool {
        matches!(self, Stream::Tls(_))
    }

    /// Waits until a read would return data, the end or an error.
    ///
    /// # Errors
    /// The error of the socket, if polling it fails.
    pub async fn readable(&mut self) -> io::Result<()> {
        std::future::poll_fn(|cx| self.poll_readable(cx)).await
    }

    /// [`Stream::readable`] for pollers, e.g. beside a write.
    ///
    /// # Errors
    /// As [`Stream::readable`].
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Plain(socket) => socket.tcp().poll_read_ready(cx),
            Stream::Tls(tls) if tls.deferred.is_some() => Poll::Ready(Ok(())),
            Stream::Tls(tls) => {
                Pin::new(&mut tls.inner).poll_fill_buf(cx).map(|filled| filled.map(|_| ()).or_else(end_without_notice))
            }
        }
    }

    /// Appends available data, at most as much as fits into the buffer, without waiting. `Ok(0)` means the end, or a
    /// buffer without room, which does not grow.
    ///
    /// # Errors
    /// `WouldBlock` if no data is there; otherwise the error of the connection.
    pub(crate) fn try_read_buf(&mut self, buf: &mut BytesMut) -> io::Result<usize> {
        let room = buf.capacity() - buf.len();
        if room == 0 {
            return Ok(0);
        }
        if let Stream::Plain(socket) = self {
            return socket.try_read_buf(&mut buf.limit(room));
        }
        // No waker: `readable` or `read_into` registers the task's own when it waits.
        match self.poll_fill(&mut Context::from_waker(Waker::noop()), buf, room) {
            Poll::Ready(outcome) => outcome,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    /// Waits for data and appends all available, at most `max` bytes. A buffer with little room grows by `max`; a
    /// caller with a buffer of fixed size passes its room. Cancelling loses nothing.
    ///
    /// # Errors
    /// The error of the connection. Earlier calls have returned the bytes before it.
    pub async fn read_into(&mut self, buf: &mut BytesMut, max: usize) -> io::Result<Filled> {
        if buf.capacity() - buf.len() < max.min(MIN_SPARE_BYTES) {
            buf.reserve(max);
        }
        let room = max.min(buf.capacity() - buf.len());
        let mut waited = false;
        let bytes = poll_fn(|cx| {
            let polled = self.poll_fill(cx, buf, room);
            waited |= polled.is_pending();
            polled
        })
        .await?;
        Ok(Filled { bytes, waited, end: bytes == 0 && room > 0 })
    }

    /// Appends available data, at most `room` bytes, which must fit into the buffer; 0 means the end.
    fn poll_fill(&mut self, cx: &mut Context<'_>, buf: &mut BytesMut, room: usize) -> Poll<io::Result<usize>> {
        let mut filled = 0;
        while filled < room {
            let mut limited = (&mut *buf).limit(room - filled);
            match pin!(self.read_buf(&mut limited)).poll(cx) {
                Poll::Ready(Ok(0)) => break,
                Poll::Ready(Ok(bytes)) => filled += bytes,
                Poll::Ready(Err(error)) => match self {
                    // Return the data first; a socket reports an error only once.
                    Stream::Tls(tls) if filled > 0 => {
                        tls.deferred = Some(error);
                        break;
                    }
                    _ => return Poll::Ready(Err(error)),
                },
                Poll::Pending if filled == 0 => return Poll::Pending,
                Poll::Pending => break,
            }
            // The kernel returns all bytes of a plain socket at once; TLS returns them record by record.
            if !self.is_tls() {
                break;
            }
        }
        Poll::Ready(Ok(filled))
    }
}

/// Treats an unexpected end as a normal one. Servers often close without TLS's `close_notify`, which rustls reports as
/// an error. Length and hash judge a body.
fn end_without_notice(error: io::Error) -> io::Result<()> {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => Ok(()),
        _ => Err(error),
    }
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Stream::Plain(socket) => Pin::new(socket).poll_read(cx, buf),
            Stream::Tls(tls) => {
                if let Some(error) = tls.deferred.take() {
                    return Poll::Ready(Err(error));
                }
                let outcome = ready!(Pin::new(&mut tls.inner).poll_read(cx, buf));
                Poll::Ready(outcome.or_else(end_without_notice))
            }
        }
    }
}

impl Stream {
    /// The writer for sending.
    fn writer(&mut self) -> &mut (dyn AsyncWrite + Unpin) {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &mut tls.inner,
        }
    }
}

writes_go_to!(Stream, |stream| stream.writer());

/// A TLS session over a socket.
#[derive(Debug)]
pub struct TlsSocket {
    inner: TlsStream<Beneath>,
    /// An error that followed data in one `read_into`.
    deferred: Option<io::Error>,
}

impl TlsSocket {
    /// Does the TLS handshake as a client for `host`, and returns the negotiated protocol. `stream` is plain TCP, or
    /// TLS to an https proxy, inside which this session runs.
    ///
    /// # Errors
    /// A [`TlsError`] that names the host and the reason. There is no time limit here.
    pub async fn connect(
        config: Arc<ClientConfig>,
        host: &str,
        stream: Stream,
    ) -> Result<(TlsSocket, Protocol), TlsError> {
        TlsSocket::handshake(config, host, stream, Stage::Over).await
    }

    /// As [`TlsSocket::connect`], but the end of the handshake is sent together with the first write, or before the
    /// first read. For callers that do either at once. As a packet of its own, it would be a tenth of TCP's first
    /// flight.
    ///
    /// # Errors
    /// As [`TlsSocket::connect`].
    pub(crate) async fn connect_to_write(
        config: Arc<ClientConfig>,
        host: &str,
        stream: Stream,
    ) -> Result<(TlsSocket, Protocol), TlsError> {
        TlsSocket::handshake(config, host, stream, Stage::Hello).await
    }

    async fn handshake(
        config: Arc<ClientConfig>,
        host: &str,
        stream: Stream,
        stage: Stage,
    ) -> Result<(TlsSocket, Protocol), TlsError> {
        let name = server_name(host)?;
        let beneath = Beneath { stream, ahead: BytesMut::new(), held: BytesMut::new(), stage };
        let mut inner = TlsConnector::from(config)
            .connect(name, beneath)
            .await
            .map_err(|error| TlsError::of_handshake(host, error))?;
        inner.get_mut().0.stage = Stage::Over;
        let protocol = match inner.get_ref().1.alpn_protocol() {
            Some(b"h2") => Protocol::Http2,
            _ => Protocol::Http1,
        };
        Ok((TlsSocket { inner, deferred: None }, protocol))
    }

    #[cfg(test)]
    pub(crate) fn handshake_kind(&self) -> Option<rustls::HandshakeKind> {
        self.inner.get_ref().1.handshake_kind()
    }
}

/// The transport beneath a TLS session. It reads in large pieces for rustls, which asks for small ones, and may hold
/// back the end of the handshake.
#[derive(Debug)]
struct Beneath {
    stream: Stream,
    ahead: BytesMut,
    /// Bytes that rustls has written, and that are not sent yet.
    held: BytesMut,
    stage: Stage,
}

/// State of a handshake whose end is held back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The server has not answered yet.
    Hello,
    /// The server has answered: written bytes are held back, and sent before anything more is read.
    Answered,
    /// Nothing is held back any more.
    Over,
}

impl Beneath {
    /// Sends the bytes that are held back.
    fn poll_release(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.held.is_empty() {
            match ready!(Pin::new(&mut self.stream).poll_write(cx, &self.held))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => self.held.advance(written),
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Beneath {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if this.ahead.is_empty() {
            ready!(this.poll_release(cx))?;
            this.ahead.reserve(TLS_READ_AHEAD_BYTES);
            let read = pin!(this.stream.read_buf(&mut this.ahead)).poll(cx);
            if ready!(read)? == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.stage == Stage::Hello {
                this.stage = Stage::Answered;
            }
        }
        let amount = this.ahead.len().min(buf.remaining());
        buf.put_slice(&this.ahead[..amount]);
        this.ahead.advance(amount);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Beneath {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        if this.stage == Stage::Answered {
            bufs.iter().for_each(|buf| this.held.extend_from_slice(buf));
            return Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()));
        }
        while !this.held.is_empty() {
            let all: Vec<IoSlice<'_>> = [IoSlice::new(&this.held)].into_iter().chain(bufs.iter().copied()).collect();
            let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, &all))?;
            let held = this.held.len();
            this.held.advance(written.min(held));
            match written {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                _ if written > held => return Poll::Ready(Ok(written - held)),
                _ => {}
            }
        }
        Pin::new(&mut this.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.stage == Stage::Answered {
            return Poll::Ready(Ok(()));
        }
        ready!(this.poll_release(cx))?;
        Pin::new(&mut this.stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_release(cx))?;
        Pin::new(&mut this.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loopback::{Authority, pair};
    use crate::tls::{Offer, Tls, Trust};
    use std::time::Duration;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;

    async fn tls_pair() -> (Stream, tokio_rustls::server::TlsStream<TcpStream>) {
        let authority = Authority::new();
        let acceptor = authority.certify("localhost", (2020, 2080)).acceptor(&[]);
        let config = Tls::new(Trust::Only(authority.authorities())).config(Offer::Either).unwrap();
        let (near, far) = pair().await;
        let near = TlsSocket::connect(config, "localhost", Stream::Plain(near));
        let (near, far) = tokio::join!(near, acceptor.accept(far));
        (Stream::Tls(Box::new(near.unwrap().0)), far.unwrap())
    }

    async fn read_all(stream: &mut Stream, max: usize) -> (BytesMut, usize) {
        let (mut all, mut reads) = (BytesMut::new(), 0);
        loop {
            let mut chunk = BytesMut::new();
            let filled = stream.read_into(&mut chunk, max).await.unwrap();
            assert_eq!(chunk.len(), filled.bytes);
            assert!(filled.bytes <= max);
            if filled.end {
                return (all, reads);
            }
            reads += 1;
            all.extend_from_slice(&chunk);
        }
    }

    #[tokio::test]
    async fn the_end_of_a_handshake_goes_out_with_the_first_write_or_before_a_read() {
        let authority = Authority::new();
        let acceptor = authority.certify("localhost", (2020, 2080)).acceptor(&[]);
        for writes in [true, false] {
            let config = Tls::new(Trust::Only(authority.authorities())).config(Offer::Either).unwrap();
            let (near, far) = pair().await;
            let accepting = tokio::spawn(acceptor.accept(far));
            let near = TlsSocket::connect_to_write(config, "localhost", Stream::Plain(near)).await.unwrap().0;
            let mut near = Stream::Tls(Box::new(near));
            tokio::time::sleep(Duration::from_millis(20)).await;
            assert!(!accepting.is_finished(), "the server does not know yet that the handshake is over");
            if writes {
                near.write_all(b"hello").await.unwrap();
                near.flush().await.unwrap();
                let mut read = [0; 5];
                accepting.await.unwrap().unwrap().read_exact(&mut read).await.unwrap();
                assert_eq!(&read, b"hello");
            } else {
                tokio::select! {
                    far = accepting => drop(far.unwrap().unwrap()),
                    _ = near.readable() => panic!("nothing is there to be read"),
                }
            }
        }
    }

    fn pattern(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|index| (index / 251) as u8 ^ index as u8).collect()
    }

    #[tokio::test]
    async fn tls_is_read_in_chunks_larger_than_its_records() {
        let (mut near, mut far) = tls_pair().await;
        let data = pattern(1_500_000);
        let sent = data.clone();
        let sender = tokio::spawn(async move {
            far.write_all(&sent).await.unwrap();
            far.shutdown().await.unwrap();
        });
        // What has arrived by now is much more than one record.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut first = BytesMut::new();
        let filled = near.read_into(&mut first, 200_000).await.unwrap();
        assert!(filled.bytes >= 48 << 10 && !filled.waited, "{filled:?}");
        let (rest, _) = read_all(&mut near, 256 << 10).await;
        first.extend_from_slice(&rest);
        assert!(first == data);
        sender.await.unwrap();
        assert!(near.probe().read().unwrap().bytes_received > 1_500_000);
    }

    #[tokio::test]
    async fn an_end_without_close_notify_is_an_end() {
        let (mut near, mut far) = tls_pair().await;
        far.write_all(b"all of it").await.unwrap();
        far.flush().await.unwrap();
        drop(far.into_inner().0);
        let (all, _) = read_all(&mut near, 4096).await;
        assert_eq!(&all[..], b"all of it");
        assert_eq!(near.try_read_buf(&mut BytesMut::with_capacity(10)).unwrap(), 0);
        near.readable().await.unwrap();
    }

    #[tokio::test]
    async fn waiting_shows_on_both_kinds() {
        let (near, far) = pair().await;
        let (tls, tls_far) = tls_pair().await;
        type Far = Box<dyn AsyncWrite + Unpin>;
        let kinds: [(Stream, Far); 2] = [(Stream::Plain(near), Box::new(far)), (tls, Box::new(tls_far))];
        for (mut near, mut far) in kinds {
            let mut buf = BytesMut::with_capacity(64);
            // TLS has its session tickets to read first; they are no data.
            let error = near.try_read_buf(&mut buf).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            let late = tokio::time::timeout(Duration::from_millis(20), near.readable()).await;
            if near.is_tls() {
                assert!(late.is_err());
            }
            let reading = async { near.read_into(&mut buf, 64).await.unwrap() };
            let writing = async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                far.write_all(b"hello").await.unwrap();
                far.flush().await.unwrap();
            };
            let (filled, ()) = tokio::join!(reading, writing);
            assert_eq!(filled, Filled { bytes: 5, waited: true, end: false });
            far.write_all(b" again").await.unwrap();
            far.flush().await.unwrap();
            near.readable().await.unwrap();
            assert_eq!(near.try_read_buf(&mut buf).unwrap(), 6);
            assert_eq!(&buf[..], b"hello again");
            // A full buffer takes nothing and grows by nothing.
            let mut full = BytesMut::zeroed(8);
            let room = full.capacity() - full.len();
            full.extend_from_slice(&vec![0; room]);
            assert_eq!(near.try_read_buf(&mut full).unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_reset_after_data_is_told_after_the_data() {
        let (mut near, mut far) = tls_pair().await;
        far.write_all(&[7; 1000]).await.unwrap();
        far.flush().await.unwrap();
        let far = far.into_inner().0;
        let mut buf = BytesMut::new();
        assert_eq!(near.read_into(&mut buf, 1 << 16).await.unwrap().bytes, 1000);
        near.write_all(b"unread").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        // Closing with unread data makes the kernel send a reset.
        drop(far);
        let error = near.read_into(&mut buf, 1 << 16).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }
}
