//! Makes connections between the two ends: connects to the far end, and accepts its connections that prove its key.

use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd as _;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_wire::tcp_info::TcpInfo;
use rustls::{ClientConfig, ServerConfig};

use super::RACE_TIME;
use crate::reach::Ports;
use crate::transport::setup::Way;
use crate::transport::stream::Stream;
use crate::transport::tls;

/// Most connections whose keys are being checked at once, so that strangers cannot occupy more.
pub(in crate::transport) const PROVING: usize = 32;
/// Longest interval of checks whether a wait is still needed.
pub(in crate::transport) const ACCEPT_LOOK: Duration = Duration::from_millis(5);
/// Longest wait for a connection that the far end was asked for.
const ASKED_TIME: Duration = Duration::from_secs(60);
/// Round trip from which a path counts as long: one connection would need seconds to fill it.
const LONG_TRIP: Duration = Duration::from_millis(2);
/// Connections for content on short paths: one per core, within these bounds, as their purpose is to encrypt on several
/// cores. On two cores, four of them take a tenth more processor time for the whole copy than two (measured). On long
/// paths sixteen: four fill a gigabit at 50 ms with the default buffers (measured: 107 of 118 MB/s). A lossy path needs
/// sixteen until its congestion control is changed.
const SHORT_STREAMS: std::ops::RangeInclusive<usize> = 2..=4;
const LONG_STREAMS: u8 = 16;

/// Opens further connections.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    listener: Option<TcpListener>,
    /// The user's choice of ports to listen on.
    ports: Option<Ports>,
    address: Mutex<Option<SocketAddr>>,
    /// Connections for content that were made before they are needed.
    ahead: Mutex<Option<Ahead>>,
    /// Number of connections for content that the user wants; 0 for as many as the path needs.
    streams: u8,
    /// Connections of the far end that have proved its key.
    proved: Mutex<(mpsc::Sender<Stream>, mpsc::Receiver<Stream>)>,
    /// Counts connections whose keys are being checked, by its references.
    proving: Arc<()>,
}

/// Connections that are being made to an address where a first one succeeded.
#[derive(Debug)]
struct Ahead {
    address: SocketAddr,
    dialled: Vec<JoinHandle<std::io::Result<Stream>>>,
}

/// Number of connections for content at first, by the user's wish and the round trip of the path.
pub(super) fn streams(wished: u8, trip: Duration) -> u8 {
    match wished {
        0 if trip >= LONG_TRIP => LONG_STREAMS,
        0 => short_streams(std::thread::available_parallelism().map_or(1, usize::from)),
        wished => wished,
    }
}

fn short_streams(cores: usize) -> u8 {
    cores.clamp(*SHORT_STREAMS.start(), *SHORT_STREAMS.end()) as u8
}

/// Waits for an incoming connection, or for a moment.
pub(in crate::transport) fn await_dialler(listener: &TcpListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let time = Timespec { tv_sec: 0, tv_nsec: ACCEPT_LOOK.as_nanos() as i64 };
    // Whether it was interrupted shows at the next check.
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&time));
}

/// Listens on the first of these ports that is free; on any port for `None`.
pub(in crate::transport) fn listen(ports: Option<Ports>) -> Option<TcpListener> {
    let Ports { first, last } = ports.unwrap_or(Ports { first: 0, last: 0 });
    let bind = |port| {
        let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
        TcpListener::bind(any).or_else(|_| TcpListener::bind(("0.0.0.0", port)))
    };
    let listener = (first..=last).find_map(|port| bind(port).ok())?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

fn dial(address: &SocketAddr, client: Arc<ClientConfig>) -> std::io::Result<Stream> {
    tls::connect(TcpStream::connect_timeout(address, RACE_TIME)?, client)
}

impl Opener {
    pub(super) fn new(
        client: Arc<ClientConfig>,
        server: Arc<ServerConfig>,
        listener: Option<TcpListener>,
        streams: u8,
        ports: Option<Ports>,
    ) -> Opener {
        Opener {
            client,
            server,
            listener,
            ports,
            address: Mutex::default(),
            ahead: Mutex::default(),
            streams,
            proved: Mutex::new(mpsc::channel()),
            proving: Arc::new(()),
        }
    }

    pub(super) fn accept(&self, until: Instant) -> std::io::Result<Stream> {
        let Some(listener) = &self.listener else {
            let ports = self.ports.map_or_else(|| "there is".to_owned(), |ports| format!("of {ports}"));
            return Err(std::io::Error::other(format!("no free TCP port {ports} here")));
        };
        loop {
            // Each connection is checked in its own thread, so silent strangers delay nobody.
            if let Ok(stream) = self.proved.lock().unwrap_or_else(PoisonError::into_inner).1.try_recv() {
                return Ok(stream);
            }
            match listener.accept() {
                Ok((socket, _)) if Arc::strong_count(&self.proving) <= PROVING => {
                    socket.set_nonblocking(false)?;
                    let found = self.proved.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
                    let (server, held) = (self.server.clone(), self.proving.clone());
                    std::thread::spawn(move || {
                        // A connection without the key is dropped.
                        if let Ok(stream) = tls::accept(socket, server) {
                            let _ = found.send(stream);
                        }
                        drop(held);
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => await_dialler(listener),
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                let port = listener.local_addr().map_or(0, |address| address.port());
                let text = format!("the other machine did not get through to TCP port {port} here");
                return Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text));
            }
        }
    }

    /// Makes the first connection to an address.
    pub(super) fn dial_first(self: &Arc<Self>, address: &SocketAddr) -> std::io::Result<Stream> {
        let socket = TcpStream::connect_timeout(address, RACE_TIME)?;
        let trip = TcpInfo::read(socket.as_fd()).map(|info| info.path_rtt()).unwrap_or_default();
        let (own, to) = (self.clone(), *address);
        // At once, but not before its own handshake: when the first file is requested, the others have finished theirs.
        std::thread::spawn(move || own.dial_ahead(to, streams(own.streams, trip)));
        let stream = tls::connect(socket, self.client.clone())?;
        self.address.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(*address);
        Ok(stream)
    }

    /// Makes connections for content in advance, where a first connection succeeds.
    fn dial_ahead(&self, address: SocketAddr, streams: u8) {
        let dial = |_| {
            let client = self.client.clone();
            std::thread::spawn(move || dial(&address, client))
        };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.get_or_insert_with(|| Ahead { address, dialled: (0..streams).map(dial).collect() });
    }

    pub(super) fn open(&self, way: Way) -> std::io::Result<Stream> {
        if way == Way::FarDials {
            // The request for them is behind content in ssh's pipe, which may be slow.
            return self.accept(Instant::now() + ASKED_TIME);
        }
        let address = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        let ahead = {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            // From now on no connections are made in advance. If another address has won, these may take long.
            let ahead = ahead.get_or_insert_with(|| Ahead { address, dialled: Vec::new() });
            if ahead.address == address { ahead.dialled.pop() } else { None }
        };
        match ahead.map(JoinHandle::join) {
            Some(Ok(Ok(stream))) => Ok(stream),
            _ => dial(&address, self.client.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::keys::{Cipher, OwnKey};

    #[test]
    fn a_short_path_has_as_many_connections_as_cores_and_a_long_one_many() {
        assert_eq!([1, 2, 3, 64].map(short_streams), [2, 2, 3, 4]);
        assert_eq!([0, 1].map(|wished| streams(wished, LONG_TRIP)), [LONG_STREAMS, 1]);
        assert_eq!(streams(7, Duration::ZERO), 7);
    }

    #[test]
    fn who_is_asked_to_dial_may_hear_of_it_late() {
        let (near, far) = (OwnKey::generate().unwrap(), OwnKey::generate().unwrap());
        let ends = |own: &OwnKey, other: &OwnKey| {
            let key = other.public().to_vec();
            (own.client(&key, Cipher::Aes).unwrap(), own.server(&key, Cipher::Aes).unwrap())
        };
        let listener = listen(None).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], listener.local_addr().unwrap().port()));
        let (client, server) = ends(&near, &far);
        let opener = Opener::new(client, server, Some(listener), 1, None);
        let dialling = std::thread::spawn(move || {
            std::thread::sleep(RACE_TIME + Duration::from_millis(500));
            dial(&address, ends(&far, &near).0)
        });
        opener.open(Way::FarDials).unwrap();
        dialling.join().unwrap().unwrap();
    }
}
