//! A TCP connection with TLS, its directions apart.
//!
//! The state of TLS is one for both directions, so it is behind a lock; sockets are read and written
//! outside of it, or two ends that wait for each other's reading would wait for ever.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Connection, ServerConfig, ServerConnection};
use socket2::{SockRef, TcpKeepalive};

use super::lane::Lane;

/// Bytes read from a socket at once.
const READ_BYTES: usize = 256 << 10;
/// Bytes encrypted before they are written: enough for few system calls, little enough for the cache.
const WRITE_BYTES: usize = 256 << 10;
/// A handshake takes two round trips; a peer that takes longer is none.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);
/// Time without an answer of the other machine after which a connection is dead.
const DEAD_TIME: Duration = Duration::from_secs(30);

/// Makes a connection that we opened secure.
///
/// # Errors
/// When the other end is not the owner of the expected key, or goes away.
pub fn connect(socket: TcpStream, config: Arc<ClientConfig>) -> io::Result<Lane> {
    let name = ServerName::try_from("copy.invalid").map_err(io::Error::other)?;
    let connection = ClientConnection::new(config, name).map_err(io::Error::other)?;
    secure(socket, connection.into())
}

/// Makes a connection that we accepted secure.
///
/// # Errors
/// As [`connect`].
pub fn accept(socket: TcpStream, config: Arc<ServerConfig>) -> io::Result<Lane> {
    let connection = ServerConnection::new(config).map_err(io::Error::other)?;
    secure(socket, connection.into())
}

fn secure(mut socket: TcpStream, mut connection: Connection) -> io::Result<Lane> {
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
    let writer = Writer { state, socket: socket.try_clone()?, plain: Vec::with_capacity(WRITE_BYTES), out: Vec::new() };
    Ok(Lane { reader: Box::new(reader), writer: Box::new(writer), socket: Some(socket), lingers: false })
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
                // Without a farewell this is an error, which the next read tells.
                locked(&self.state).read_tls(&mut io::empty())?;
            }
        }
    }
}

struct Writer {
    state: Arc<Mutex<Connection>>,
    socket: TcpStream,
    /// Small writes, gathered.
    plain: Vec<u8>,
    out: Vec<u8>,
}

impl Writer {
    fn send(&mut self, plain: &[u8]) -> io::Result<()> {
        for part in plain.chunks(WRITE_BYTES) {
            {
                let mut state = locked(&self.state);
                state.writer().write_all(part)?;
                while state.wants_write() {
                    state.write_tls(&mut self.out)?;
                }
            }
            self.socket.write_all(&self.out)?;
            self.out.clear();
        }
        Ok(())
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
        let farewell = {
            let mut state = locked(&self.state);
            state.send_close_notify();
            let mut bytes = Vec::new();
            while state.wants_write() && state.write_tls(&mut bytes).is_ok() {}
            bytes
        };
        // To an end that has gone already nothing can be said.
        let _ = self.socket.write_all(&farewell);
    }
}
