//! A two-way byte stream between the ends.

use std::fmt;
use std::io::{BufReader, BufWriter, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use fullbore_wire::tcp_info::TcpInfo;

/// Size of a pipe's write buffer, which collects small messages.
pub(super) const PIPE_BYTES: usize = 64 << 10;

/// One connection, with separate directions so that each has its own thread.
pub struct Stream {
    pub(super) reader: Box<dyn Read + Send>,
    pub(super) writer: Box<dyn Write + Send>,
    pub(super) socket: Option<TcpStream>,
    /// Whether written data is lost if this process ends before the other end has it.
    pub(super) lingers: bool,
}

impl fmt::Debug for Stream {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Stream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl Stream {
    /// Makes a stream of the two pipes of a process that carries the bytes to the other machine.
    pub fn pipe(reader: impl Read + Send + 'static, writer: impl Write + Send + 'static) -> Stream {
        Stream {
            reader: Box::new(BufReader::with_capacity(PIPE_BYTES, reader)),
            writer: Box::new(BufWriter::with_capacity(PIPE_BYTES, writer)),
            socket: None,
            lingers: false,
        }
    }

    /// Round-trip time of the path, if the kernel knows it.
    pub fn round_trip(&self) -> Option<Duration> {
        let info = TcpInfo::read(self.socket.as_ref()?.as_fd()).ok()?;
        Some(info.path_rtt())
    }
}
