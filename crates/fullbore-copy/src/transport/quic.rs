//! QUIC, for networks that let UDP through and no TCP connection, or that mangle TCP.
//!
//! Both ends know the other's keys and UDP port by then, so both dial from the socket that they listen on: each
//! opens its own firewall for the other. The near end's first connection is the one that is used; a lane is a
//! stream of it. It costs four times the processor of TLS over TCP (measured: 1.36 + 1.15 s for a gigabyte
//! against 0.28 + 0.32), which is why it comes second.

use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, RecvStream, SendStream, TokioRuntime, TransportConfig, VarInt};
use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256;
use rustls::{ClientConfig, ServerConfig, quic};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::lane::Lane;

/// Bytes under way on one stream and on all: as many as the window of content has.
const STREAM_WINDOW: u32 = 64 << 20;
const WINDOW: u32 = 256 << 20;
/// Time without a packet after which the other machine is gone, and between packets of a quiet connection.
const DEAD_TIME: Duration = Duration::from_secs(30);
const QUIET_TIME: Duration = Duration::from_secs(5);
/// Time that the last bytes have to arrive in.
const FAREWELL: Duration = Duration::from_secs(5);
/// Threads that encrypt and send packets.
const THREADS: usize = 2;
/// The name in the handshake; keys decide, not names.
const NAME: &str = "copy.invalid";

/// A socket that both listens and dials, on a port of the system's choice.
pub(super) fn bind() -> Option<UdpSocket> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    UdpSocket::bind(any).or_else(|_| UdpSocket::bind(("0.0.0.0", 0))).ok()
}

/// The two ends' keys, and how the path is used.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    pub(super) client: Arc<ClientConfig>,
    pub(super) server: Arc<ServerConfig>,
    /// BBR congestion control instead of cubic.
    pub(super) bbr: bool,
}

/// What drives all connections of this process. It lasts as long: lanes end in threads of all kinds, and a runtime
/// may not end in one of its own.
fn runtime() -> io::Result<&'static Runtime> {
    static RUNTIME: OnceLock<Option<Runtime>> = OnceLock::new();
    let make = || {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(THREADS).thread_name("quic").enable_all().build().ok()
    };
    RUNTIME.get_or_init(make).as_ref().ok_or_else(|| io::Error::other("no threads for QUIC"))
}

/// An endpoint with what drives it.
#[derive(Clone, Debug)]
struct Station {
    runtime: &'static Runtime,
    endpoint: Endpoint,
}

impl Station {
    fn open(socket: UdpSocket, terms: &Terms) -> io::Result<Station> {
        let refused = |_| io::Error::other("QUIC does not take the keys");
        // Packets of the handshake are always of AES-128-GCM (RFC 9001, 5.2), whatever cipher content gets.
        let initial = || -> io::Result<quic::Suite> {
            let suite = TLS13_AES_128_GCM_SHA256.tls13().and_then(|suite| suite.quic_suite());
            suite.ok_or_else(|| io::Error::other("QUIC needs AES-128-GCM"))
        };
        let client = QuicClientConfig::with_initial(terms.client.clone(), initial()?).map_err(refused)?;
        let server = QuicServerConfig::with_initial(terms.server.clone(), initial()?).map_err(refused)?;
        let mut transport = TransportConfig::default();
        transport
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW))
            .receive_window(VarInt::from_u32(WINDOW))
            .send_window(u64::from(WINDOW))
            .keep_alive_interval(Some(QUIET_TIME))
            .max_idle_timeout(Some(DEAD_TIME.try_into().map_err(io::Error::other)?));
        if terms.bbr {
            transport.congestion_controller_factory(Arc::new(quinn::congestion::BbrConfig::default()));
        }
        let transport = Arc::new(transport);
        let mut server = quinn::ServerConfig::with_crypto(Arc::new(server));
        server.transport_config(transport.clone());
        let mut client = quinn::ClientConfig::new(Arc::new(client));
        client.transport_config(transport);
        let runtime = runtime()?;
        let within = runtime.enter();
        let mut endpoint = Endpoint::new(EndpointConfig::default(), Some(server), socket, Arc::new(TokioRuntime))?;
        drop(within);
        endpoint.set_default_client_config(client);
        Ok(Station { runtime, endpoint })
    }

    /// Dials these addresses and lets the other end dial, until the time is over; `found` says whether to go on.
    fn connections(
        &self,
        peers: &[SocketAddr],
        until: Instant,
        mut found: impl FnMut(quinn::Connection) -> bool,
    ) -> String {
        self.runtime.block_on(async {
            let mut trials = JoinSet::new();
            let mut reasons = Vec::new();
            let own = self.endpoint.local_addr().ok();
            for peer in peers {
                match self.endpoint.connect(reachable(*peer, own), NAME) {
                    Ok(connecting) => drop(trials.spawn(connecting)),
                    Err(error) => reasons.push(format!("{peer}: {error}")),
                }
            }
            let end = tokio::time::sleep_until(until.into());
            tokio::pin!(end);
            loop {
                tokio::select! {
                    () = &mut end => break reasons.push(format!("nothing until {} s", super::near::RACE_TIME.as_secs())),
                    Some(incoming) = self.endpoint.accept() => {
                        if let Ok(connecting) = incoming.accept() {
                            trials.spawn(connecting);
                        }
                    }
                    Some(result) = trials.join_next() => match result {
                        Ok(Ok(connection)) => {
                            if !found(connection) {
                                break;
                            }
                        }
                        Ok(Err(error)) => reasons.push(error.to_string()),
                        Err(_) => {}
                    },
                }
            }
            reasons.join("; ")
        })
    }

    fn lane(&self, (writing, reading): (SendStream, RecvStream)) -> Lane {
        Lane {
            reader: Box::new(Reading { stream: reading, runtime: self.runtime }),
            writer: Box::new(Writing { stream: writing, runtime: self.runtime }),
            socket: None,
            lingers: true,
        }
    }
}

/// An address as the family of our socket has it.
fn reachable(peer: SocketAddr, own: Option<SocketAddr>) -> SocketAddr {
    match peer {
        SocketAddr::V4(four) if own.is_some_and(|own| own.is_ipv6()) => {
            SocketAddr::from((four.ip().to_ipv6_mapped(), four.port()))
        }
        peer => peer,
    }
}

/// The near end's connection.
#[derive(Clone, Debug)]
pub struct Quic {
    station: Station,
    connection: quinn::Connection,
}

impl Quic {
    /// Finds a connection to an end that looks for this one at the same time.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub(super) fn meet(socket: UdpSocket, terms: &Terms, peers: &[SocketAddr], until: Instant) -> Result<Quic, String> {
        let station = Station::open(socket, terms).map_err(|error| error.to_string())?;
        let mut first = None;
        let reasons = station.connections(peers, until, |connection| {
            first = Some(connection);
            false
        });
        first.map(|connection| Quic { station, connection }).ok_or(reasons)
    }

    /// One more lane.
    pub(super) fn open(&self) -> io::Result<Lane> {
        let streams = self.station.runtime.block_on(self.connection.open_bi()).map_err(io::Error::other)?;
        Ok(self.station.lane(streams))
    }

    /// Round trip of the path.
    pub fn round_trip(&self) -> Duration {
        self.connection.rtt()
    }

    /// Share of packets that were lost.
    pub fn loss(&self) -> f64 {
        let path = self.connection.stats().path;
        path.lost_packets as f64 / path.sent_packets.max(1) as f64
    }

    /// Says farewell.
    pub(super) fn close(&self) {
        self.connection.close(VarInt::from_u32(0), b"");
        // The other end needs no farewell: its copy is over as well.
        let idle = async { tokio::time::timeout(FAREWELL / 5, self.station.endpoint.wait_idle()).await };
        let _ = self.station.runtime.block_on(idle);
    }
}

/// The far end: looks for the near one, and gives each lane that is opened to `found`, until `is_over`.
pub(super) fn answer(
    socket: UdpSocket,
    terms: &Terms,
    near: Option<SocketAddr>,
    until: Instant,
    found: impl Fn(Lane) + Clone + Send + 'static,
) -> io::Result<()> {
    let station = Station::open(socket, terms)?;
    let peers: Vec<SocketAddr> = near.into_iter().collect();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        station.connections(&peers, until, |connection| {
            let (own, found, taken) = (station.clone(), found.clone(), connection.clone());
            station.runtime.spawn(async move {
                // Ends with the connection.
                while let Ok(streams) = taken.accept_bi().await {
                    let (lane, found) = (own.lane(streams), found.clone());
                    std::thread::spawn(move || found(lane));
                }
            });
            open.push(connection);
            true
        });
        // Which of them is used the near end decides; they last as long as it wants.
        station.runtime.block_on(async {
            for connection in open {
                connection.closed().await;
            }
        });
    });
    Ok(())
}

struct Reading {
    stream: RecvStream,
    runtime: &'static Runtime,
}

impl Read for Reading {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let read = self.runtime.block_on(self.stream.read(buffer));
        read.map(|count| count.unwrap_or(0)).map_err(io::Error::other)
    }
}

struct Writing {
    stream: SendStream,
    runtime: &'static Runtime,
}

impl Write for Writing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.runtime.block_on(self.stream.write(bytes)).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        if self.stream.finish().is_ok() {
            // What was written counts as sent only when it has arrived: the process may end now.
            let arrived = self.stream.stopped();
            let _ = self.runtime.block_on(async { tokio::time::timeout(FAREWELL, arrived).await });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::super::keys::tests::{Ends, friends, strangers};
    use super::*;

    /// Longer than any busy machine needs for a handshake on loopback.
    const PATIENCE: Duration = Duration::from_secs(60);
    /// Time in which strangers do not get in; most are told so at once.
    const KNOCKING: Duration = Duration::from_secs(2);

    /// Whether both take each other: whether a lane that the near end opens comes about.
    fn meet((client, server): Ends, time: Duration) -> bool {
        let (other_client, other_server) = friends();
        let near = Terms { client, server: other_server, bbr: false };
        let far = Terms { client: other_client, server, bbr: false };
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let address = sockets[1].local_addr().unwrap();
        let [here, there] = sockets;
        let until = Instant::now() + time;
        let (found, met) = mpsc::channel();
        let refused = found.clone();
        answer(there, &far, None, until, move |lane| {
            // Held, so that the other end hears no refusal.
            let _ = found.send(Some(lane));
        })
        .unwrap();
        std::thread::spawn(move || {
            if let Ok(quic) = Quic::meet(here, &near, &[address], until)
                && let Ok(mut lane) = quic.open()
                && lane.writer.write_all(b"x").is_ok()
            {
                // Until the far end says that it does not know this one.
                let _ = lane.reader.read(&mut [0]);
            }
            let _ = refused.send(None);
        });
        met.recv_timeout(PATIENCE).unwrap().is_some()
    }

    #[test]
    fn connections_are_made_with_the_expected_key_alone() {
        assert!(meet(friends(), PATIENCE));
        std::thread::scope(|scope| {
            for (who, ends) in strangers() {
                scope.spawn(move || assert!(!meet(ends, KNOCKING), "{who}"));
            }
        });
    }
}
