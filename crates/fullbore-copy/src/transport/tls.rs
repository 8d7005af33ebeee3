//! A TCP connection with TLS, with separate directions.
//!
//! TLS has one state for both directions, so it is behind a lock. Sockets are read and written without the lock: else
//! two ends that each wait for the other to read would deadlock.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use socket2::{SockRef, TcpKeepalive};

use super::stream::Stream;

/// Bytes that are read from a socket at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes that are encrypted before they are written: enough for few system calls, little enough for the cache.
const WRITE_BYTES: usize = 256 << 10;
/// Time limit of each step of a handshake, which takes two round trips.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Time without an answer after which a connection counts as dead.
const DEAD_TIME: Duration = Duration::from_secs(30);

/// Does the TLS handshake on a connection that this end made.
///
/// # Errors
/// The error of the socket. `InvalidData` if the other end does not have the expected key, `UnexpectedEof` if it closes
/// the connection, `WouldBlock` or `TimedOut` if it does not answer in time.
pub(crate) fn connect(socket: TcpStream, config: Arc<ClientConfig>) -> io::Result<Stream> {
    let name = ServerName::try_from("copy.invalid").map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    secure(socket, connection.into())
}

/// Does the TLS handshake on a connection that this end accepted.
///
/// # Errors
/// The errors of [`connect`].
pub(crate) fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Stream> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    secure(socket, connection.into())
}

fn secure(mut socket: TcpStream, mut connection: Connection) -> io::Result<Stream> {
    socket.set_nodelay(true)?;
    let options = SockRef::from(&socket);
    options.set_tcp_user_timeout(Some(DEAD_TIME))?;
    let probes = TcpKeepalive::new().with_time(DEAD_TIME / 2).with_interval(DEAD_TIME / 6).with_retries(3);
    options.set_tcp_keepalive(&probes)?;
    socket.set_read_timeout(Some(HANDSHAKE_TIME))?;
    socket.set_write_timeout(Some(HANDSHAKE_TIME))?;
    while connection.is_handshaking() || connection.wants_write() {
        connection.complete_io(&mut socket)?;
    }
    socket.set_read_timeout(None)?;
    socket.set_write_timeout(None)?;
    connection.set_buffer_limit(None);
    let state = Arc::new(Mutex::new(connection));
    let reader =
        Reader { state: state.clone(), socket: socket.try_clone()?, inbox: vec![0; READ_BYTES], at: 0, end: 0 };
    let writer = Writer { state, socket: socket.try_clone()?, plain: Vec::with_capacity(WRITE_BYTES) };
    Ok(Stream { reader: Box::new(reader), writer: Box::new(writer), socket: Some(socket), lingers: false })
}

fn locked(state: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Reader {
    state: Arc<Mutex<Connection>>,
    socket: TcpStream,
    inbox: Vec<u8>,
    at: usize,
    end: usize,
}

impl Read for Reader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            {
                let mut state = locked(&self.state);
                loop {
                    match state.reader().read(buffer) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        result => return result,
                    }
                    if self.at == self.end {
                        break;
                    }
                    self.at += state.read_tls(&mut &self.inbox[self.at..self.end])?;
                    state.process_new_packets().map_err(io::Error::other)?;
                }
            }
            self.at = 0;
            self.end = self.socket.read(&mut self.inbox)?;
            if self.end == 0 {
                // Without a TLS closure this is an error, which the next read reports.
                locked(&self.state).read_tls(&mut io::empty())?;
            }
        }
    }
}

struct Writer {
    state: Arc<Mutex<Connection>>,
    socket: TcpStream,
    /// Buffer that collects small writes.
    plain: Vec<u8>,
}

impl Writer {
    fn send(&self, plain: &[u8]) -> io::Result<()> {
        for part in plain.chunks(WRITE_BYTES) {
            locked(&self.state).writer().write_all(part)?;
            self.send_encrypted()?;
        }
        Ok(())
    }

    /// Sends encrypted data from its buffers to the socket, without another copy. The lock is never held while the
    /// socket is full.
    fn send_encrypted(&self) -> io::Result<()> {
        loop {
            let mut state = locked(&self.state);
            if !state.wants_write() {
                return Ok(());
            }
            match state.write_tls(&mut AtOnce(&self.socket)) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                result => {
                    result?;
                    continue;
                }
            }
            drop(state);
            match poll(&mut [PollFd::new(&self.socket, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send_gathered(&mut self) -> io::Result<()> {
        let plain = std::mem::take(&mut self.plain);
        let sent = self.send(&plain);
        self.plain = plain;
        self.plain.clear();
        sent
    }
}

impl Write for Writer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.plain.len() + bytes.len() > WRITE_BYTES {
            self.send_gathered()?;
        }
        if bytes.len() >= WRITE_BYTES {
            self.send(bytes)?;
        } else {
            self.plain.extend_from_slice(bytes);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send_gathered()
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        locked(&self.state).send_close_notify();
        // The other end may have gone already.
        let _ = self.send_encrypted();
    }
}

/// A socket's non-blocking writer.
struct AtOnce<'a>(&'a TcpStream);

impl Write for AtOnce<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        SockRef::from(self.0).send_vectored_with_flags(parts, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::keys::tests::friends;
    use super::*;

    /// More than all buffers on the way hold.
    const MUCH: usize = 32 << 20;

    #[test]
    fn ends_that_both_send_more_than_fits_on_the_way_read_meanwhile() {
        let (client, server) = friends();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (near, far) = std::thread::scope(|scope| {
            let accepting = scope.spawn(|| accept(listener.accept().unwrap().0, server));
            let near = connect(TcpStream::connect(address).unwrap(), client).unwrap();
            (near, accepting.join().unwrap().unwrap())
        });
        let sent: Arc<[u8]> = (0..MUCH).map(|at| (at / 7) as u8).collect();
        let (ended, ends) = std::sync::mpsc::channel();
        for stream in [near, far] {
            let (mut reader, mut writer, sent, ended) = (stream.reader, stream.writer, sent.clone(), ended.clone());
            let written = sent.clone();
            // Detached: one that hangs is told by the time limit below.
            std::thread::spawn(move || writer.write_all(&written).and_then(|()| writer.flush()));
            std::thread::spawn(move || {
                let mut received = vec![0; MUCH];
                let is_right = reader.read_exact(&mut received).is_ok() && received[..] == sent[..];
                ended.send(is_right)
            });
        }
        for _ in 0..2 {
            assert_eq!(ends.recv_timeout(Duration::from_secs(60)), Ok(true));
        }
    }
}
