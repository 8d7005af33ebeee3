//! In place of QUIC, where fullbore is built without it: there is never such a connection.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::{ClientConfig, ServerConfig};

use super::lane::Lane;

/// Nothing to listen on.
pub(super) fn bind() -> Option<UdpSocket> {
    None
}

/// See the module of the same name in a build with QUIC.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "what QUIC would need")]
pub(super) struct Terms {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    pub(super) bbr: bool,
}

/// A connection that cannot be.
#[derive(Clone, Debug)]
pub enum Quic {}

impl Quic {
    pub(super) fn meet(_: UdpSocket, _: &Terms, _: &[SocketAddr], _: Instant) -> Result<Quic, String> {
        Err("this fullbore is built without QUIC".to_owned())
    }

    pub(super) fn open(&self) -> io::Result<Lane> {
        match *self {}
    }

    /// Round trip of the path.
    pub fn round_trip(&self) -> Duration {
        match *self {}
    }

    /// Share of packets that were lost.
    pub fn loss(&self) -> f64 {
        match *self {}
    }

    pub(super) fn close(&self) {
        match *self {}
    }
}

pub(super) fn answer(
    _: UdpSocket,
    _: &Terms,
    _: Option<SocketAddr>,
    _: Instant,
    _: impl Fn(Lane) + Clone + Send + 'static,
) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
