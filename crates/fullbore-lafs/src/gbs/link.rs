//! The link to one server: its window, its connections, and the order of requests.
//!
//! The wire's exchange client keeps a request with its body until it is answered. So a broken connection costs only the
//! bytes in flight: the next connection carries them again. All requests may be repeated. Only the one that allocates
//! shares is answered differently the second time, and its sender is told ([`Reply::repeated`]).
//!
//! A server is given up if it takes no byte for the time limit, breaks connections without answering, or has another
//! key than its NURL says. Everything that waits for it then fails.

pub mod extra;

use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::stage::{HostClock, Kind, Ledger, SendReading, StageClock};
use fullbore_wire::connect::{ConnectOptions, Endpoint, Handshake, Scheme};
use fullbore_wire::exchange::{
    Body, Cause, Client, Expected, Measurement, Options, Outcome, Pipelining, Service, Sockets, Tolerance, Unreachable,
};
use fullbore_wire::http1::RequestHead;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::resolve::Resolver;
use fullbore_wire::socket::SocketOptions;
use fullbore_wire::tcp_info::TcpInfo;
use fullbore_wire::tls::{Offer, Tls, Trust};
use tokio::sync::{oneshot, watch};

use super::flow::{Flow, FlowReading};
use super::{ANSWER_BYTES_MAX, Answer, Call, Requests};
use crate::servers::Server;
use extra::{ExtraConnections, FAR, FURTHER_LIMIT, NEAR};

/// Most unsent bytes in the kernel; less on slow paths.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Connections opened in a row without an answer until a server is given up.
const ATTEMPTS: u32 = 3;

/// Pause before the second attempt to connect; twice as long before the third.
const ATTEMPT_WAIT: Duration = Duration::from_millis(500);

/// Requests in flight on one connection. Servers were seen to accept a thousand.
const REQUESTS_IN_FLIGHT: usize = 1000;

/// Idle time after which a connection is closed. Servers close it after 60 s by default; a request that crosses that
/// would have to be repeated.
const IDLE: Duration = Duration::from_secs(50);

/// Bytes of buffers kept for later answers: content is copied out of them at once.
const KEPT_BYTES: usize = 4 << 20;

/// Bytes charged to the window for a request beside its body.
const HEAD_BYTES: u64 = 512;

/// How servers are reached.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Resolves host names.
    pub resolver: Arc<Resolver>,
    /// Time without progress until a server is given up; also the limit for connecting.
    pub patience: Duration,
    /// Limits in bytes per second, for all servers together.
    pub limits: RateLimits,
    /// Counts answers and the kernel's sending counters, in the stage `send`.
    pub ledger: Ledger,
    /// Resources shared by all connections with these options.
    pub sockets: Arc<Sockets>,
    /// Least round trip of a far server; by default [`FAR`].
    pub far: Duration,
    /// Round trip below which a server is near; by default [`NEAR`].
    pub near: Duration,
}

impl LinkOptions {
    /// Options without a rate limit, counted in no ledger.
    pub fn new(patience: Duration) -> LinkOptions {
        let (resolver, sockets) = (Arc::default(), Arc::new(Sockets::new(KEPT_BYTES)));
        let limits = RateLimits::default();
        LinkOptions { resolver, patience, limits, ledger: Ledger::off(), sockets, far: FAR, near: NEAR }
    }
}

/// Why a server was given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {reason}")]
pub struct LinkError {
    /// Name of the server.
    pub server: String,
    /// What happened.
    pub reason: String,
}

/// An answer, and whether the request was repeated.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The server's answer.
    pub answer: Answer,
    /// Whether the request was sent more than once; an earlier copy may have had its effect.
    pub repeated: bool,
}

/// The link to one server. Clones share it; its connections close with the last clone. A far server may have further
/// connections ([`Link::widen`]).
#[derive(Debug, Clone)]
pub struct Link {
    exchange: Client<Storage>,
    extra: Arc<ExtraConnections>,
}

/// The parts of the exchange client that are specific to storage servers. [`Requests`] prepares the requests.
#[derive(Debug)]
struct Storage {
    name: String,
    endpoint: Arc<Endpoint>,
    requests: Requests,
    flow: Arc<Flow>,
    /// State of the TCP handshake; its duration tells how far the server is.
    handshake: watch::Sender<Handshake>,
    far: Duration,
    near: Duration,
    /// Reports to the run's verdict.
    ledger: Ledger,
    send: Arc<StageClock>,
    server: Arc<HostClock>,
}

/// A prepared request, with its part of the window, which it frees when dropped.
#[derive(Debug)]
struct AdmittedRequest {
    head: RequestHead,
    flow: Arc<Flow>,
    weight: u64,
}

impl Drop for AdmittedRequest {
    fn drop(&mut self) {
        self.flow.release(self.weight);
    }
}

impl Service for Storage {
    type Job = AdmittedRequest;
    type Server = Endpoint;

    fn server(&self) -> Arc<Endpoint> {
        Arc::clone(&self.endpoint)
    }

    fn endpoint(endpoint: &Endpoint) -> &Endpoint {
        endpoint
    }

    fn name(&self, _: &Endpoint) -> String {
        self.name.clone()
    }

    fn head(&self, job: &AdmittedRequest, _: &Endpoint, _: bool) -> RequestHead {
        job.head.clone()
    }

    fn ahead_bytes(&self) -> u64 {
        self.flow.ahead_bytes()
    }

    fn record(&self, measurement: Measurement<'_>) {
        let now = Instant::now();
        match measurement {
            Measurement::ConnectionOpened(at) => self.flow.connected(at),
            Measurement::Activity(doing) => self.flow.doing(doing, now),
            Measurement::Received(bytes) => self.flow.received(bytes, now),
            Measurement::Counters(before, after) => {
                self.flow.record_tcp_info(before, after);
                self.count_sending(before, after);
            }
            Measurement::Answered(answered) => {
                let bytes = answered.sent_bytes.max(answered.received_bytes);
                self.send.add_items(1, bytes);
                self.server.received(bytes);
                if let Some(time) = answered.round_trip {
                    self.server.round_trip(time);
                }
                self.flow.answered(bytes, answered.server_latency, answered.round_trip, now);
            }
            Measurement::GivenUp => self.flow.close(),
            Measurement::ConnectionClosed(_) | Measurement::WaitedForRoom(_) => {}
        }
    }
}

impl Storage {
    /// Adds the increase of the kernel's counters to the ledger.
    fn count_sending(&self, before: &TcpInfo, now: &TcpInfo) {
        let us = |before: Duration, now: Duration| now.saturating_sub(before).as_micros() as u64;
        self.ledger.add_sending(SendReading {
            busy_us: us(before.busy, now.busy),
            receiver_limited_us: us(before.receive_window_limited, now.receive_window_limited),
            buffer_limited_us: us(before.send_buffer_limited, now.send_buffer_limited),
            ..SendReading::default()
        });
    }
}

/// An awaited answer.
#[derive(Debug)]
pub struct Pending {
    link: Link,
    reply: oneshot::Receiver<Outcome<Storage>>,
    /// The link and the request to repeat over it if a further connection fails.
    instead: Option<Box<(Link, Call, u64)>>,
}

impl Pending {
    /// Waits for the answer.
    ///
    /// # Errors
    /// [`LinkError`] if the server is given up, or the connection was ended.
    pub async fn reply(self) -> Result<Reply, LinkError> {
        if let Ok(Ok(answer)) = self.reply.await {
            let repeated = answer.times_sent > 1;
            return Ok(Reply { answer: Answer { status: answer.head.status, body: answer.body }, repeated });
        }
        let ended = || LinkError { server: self.link.name().to_owned(), reason: "the connection was ended".into() };
        let error = self.link.given_up().unwrap_or_else(ended);
        let Some((link, call, answer)) = self.instead.map(|instead| *instead) else { return Err(error) };
        let reply = Box::pin(link.send(call, answer).await?.reply()).await?;
        // The failed connection may have delivered the request.
        Ok(Reply { repeated: true, ..reply })
    }
}

impl Link {
    /// Starts to connect at once, on the current runtime: the handshakes pass while the file is encoded.
    pub fn open(server: &Server, options: &LinkOptions) -> Link {
        // Shares are encrypted by keys that never cross the connection. The rest (names of files, secrets of servers
        // and uploads) depends on the servers' RSA keys, which fall when X25519 does.
        let tls = Tls::new(Trust::SpkiPins(vec![server.nurl.pin])).with_small_key_shares();
        Link::begin(server, options, ExtraConnections::new(server.clone(), options.clone(), tls.clone()), tls)
    }

    fn begin(server: &Server, options: &LinkOptions, beside: ExtraConnections, tls: Tls) -> Link {
        let exchange = Link::exchange(server, options, beside.is_further(), tls);
        exchange.open();
        Link { exchange, extra: Arc::new(beside) }
    }

    fn exchange(server: &Server, options: &LinkOptions, is_further: bool, tls: Tls) -> Client<Storage> {
        // A further connection is worth having at once, or not at all.
        let (attempts, limit) = match is_further {
            false => (ATTEMPTS, options.patience),
            true => (1, options.patience.min(FURTHER_LIMIT)),
        };
        let handshake = watch::Sender::default();
        let name = server.name();
        let storage = Storage {
            endpoint: Arc::new(Endpoint {
                scheme: Scheme::Https,
                host: server.nurl.host.clone(),
                port: server.nurl.port,
                proxy: None,
            }),
            requests: Requests::new(&server.nurl),
            flow: Arc::new(Flow::new(options.limits.send.is_some(), Instant::now())),
            handshake: handshake.clone(),
            far: options.far,
            near: options.near,
            ledger: options.ledger.clone(),
            send: options.ledger.stage("send", Kind::Task),
            server: options.ledger.host(&name),
            name,
        };
        let connect = ConnectOptions {
            tls,
            offer: Offer::Http1,
            resolver: Arc::clone(&options.resolver),
            socket: SocketOptions { unsent_low_water_bytes: Some(UNSENT_BYTES_MAX), ..SocketOptions::default() },
            limit,
            handshake: Some(handshake),
            writes_at_once: true,
            ..ConnectOptions::default()
        };
        let exchange = Options {
            connect,
            connections: 1,
            depth: REQUESTS_IN_FLIGHT,
            pipelining: Pipelining::Always,
            stall_timeout: options.patience,
            idle_timeout: IDLE,
            connect_backoff: ATTEMPT_WAIT,
            tolerance: Tolerance::Attempts(attempts),
            observed_bytes: 0,
            limit: options.limits.send.clone(),
            receive_limit: options.limits.receive.clone(),
            sockets: Arc::clone(&options.sockets),
        };
        Client::new(storage, exchange)
    }

    /// Name of the server for people.
    pub fn name(&self) -> &str {
        &self.exchange.name
    }

    /// Makes requests for this server.
    pub fn requests(&self) -> &Requests {
        &self.exchange.requests
    }

    /// Size of the next write in bytes.
    pub(crate) fn write_bytes(&self) -> u64 {
        self.exchange.flow.write_bytes()
    }

    /// Why the server was given up; `None` while it is not.
    pub fn given_up(&self) -> Option<LinkError> {
        let Unreachable { reason, cause } = self.exchange.given_up()?;
        let reason = match cause {
            Cause::UnknownIssuer | Cause::WrongCertificate => {
                format!("the certificate is not the one in the NURL: {reason}")
            }
            Cause::Silence | Cause::Name => reason,
        };
        Some(LinkError { server: self.exchange.name.clone(), reason })
    }

    /// Time since the last progress of any connection to the server.
    pub fn silence(&self, now: Instant) -> Duration {
        let silences = self.extra.links().into_iter().map(|link| link.exchange.flow.silence(now));
        silences.fold(self.exchange.flow.silence(now), Duration::min)
    }

    /// Measurements over all connections.
    pub fn reading(&self) -> FlowReading {
        let beside = self.extra.links().into_iter().map(|link| link.exchange.flow.reading());
        beside.fold(self.exchange.flow.reading(), FlowReading::merge)
    }

    /// Enqueues a request once the window has room. Requests are sent in the order in which this function returns.
    /// `answer`: expected bytes of the answer.
    ///
    /// # Errors
    /// [`LinkError`] if the server is given up.
    pub async fn send(&self, call: Call, answer: u64) -> Result<Pending, LinkError> {
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        self.exchange.flow.admit(weight).await;
        self.queue(call, weight)
    }

    /// As [`Link::send`], but only if the window has room now. Otherwise it returns the request in `Ok(Err(…))`.
    ///
    /// # Errors
    /// [`LinkError`] if the server is given up.
    pub fn try_send(&self, call: Call, answer: u64) -> Result<Result<Pending, Box<Call>>, LinkError> {
        if let Some(error) = self.given_up() {
            return Err(error);
        }
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        if !self.exchange.flow.try_admit(weight) {
            return Ok(Err(Box::new(call)));
        }
        self.queue(call, weight).map(Ok)
    }

    /// Enqueues an admitted request.
    fn queue(&self, call: Call, weight: u64) -> Result<Pending, LinkError> {
        let expected = Expected {
            bytes_max: call.answer_bytes_max.max(ANSWER_BYTES_MAX),
            is_range: false,
            stream: None,
            in_pieces: false,
            // Answers other than share data are short. A server that sends one byte by byte would otherwise stall us
            // for ever.
            is_progress: call.head.range.is_some(),
        };
        let job = AdmittedRequest { head: call.head, flow: Arc::clone(&self.exchange.flow), weight };
        let sent = self.exchange.send(job, Body::Memory(call.body), expected);
        let reply = sent.map_err(|given_up| {
            let reason = given_up.reason;
            self.given_up().unwrap_or_else(|| LinkError { server: self.exchange.name.clone(), reason })
        })?;
        Ok(Pending { link: self.clone(), reply, instead: None })
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`LinkError`] if the server is given up.
    pub async fn call(&self, call: Call) -> Result<Reply, LinkError> {
        self.send(call, 0).await?.reply().await
    }
}
