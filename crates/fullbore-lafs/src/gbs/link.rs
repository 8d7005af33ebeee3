//! The connection to one server: one task that writes requests ahead and reads their answers in order.
//!
//! A request stays here with its body until it is answered, so that a broken connection costs the bytes
//! that were under way and no more: the next one carries them again. All requests may be repeated; the one
//! that is not the same the second time is the one for room, and whoever asked is told ([`Reply::repeated`]).
//! A server that does not take a byte for the time limit, breaks connections without answering, or is not
//! who it should be, is given up, and everything that waits for it is told so.

pub mod beside;
mod connection;
mod sockets;
mod task;
mod writing;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind, Ledger};
use fullbore_wire::connect::{ConnectOptions, Endpoint, Handshake, Scheme};
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::resolve::Resolver;
use fullbore_wire::socket::SocketOptions;
use fullbore_wire::tls::{Offer, Tls, Trust};
use tokio::sync::{mpsc, oneshot, watch};

use super::flow::{Flow, FlowReading};
use super::{Answer, Call, Requests};
use crate::servers::Server;
use beside::{Beside, FAR, FURTHER_LIMIT, NEAR};
pub use sockets::Sockets;
use task::{Clocks, Task};

/// Unsent bytes in the kernel at most; on slow paths less, see [`writing::unsent_allowed`].
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Connections opened in a row without one answer, until a server is given up.
const ATTEMPTS: u32 = 3;

/// What is counted against the window for a request beside its body.
const HEAD_BYTES: u64 = 512;

/// How servers are reached.
#[derive(Debug, Clone)]
pub struct LinkOptions {
    /// Where names come from.
    pub resolver: Arc<Resolver>,
    /// Time without any progress until a server is given up; also the limit to connect.
    pub patience: Duration,
    /// Bytes per second to all servers together.
    pub limit: Option<Arc<RateLimit>>,
    /// Where answers, and the kernel's counters of sending, are counted: stage `send`.
    pub ledger: Ledger,
    /// What all connections that are made so hold together.
    pub sockets: Arc<Sockets>,
    /// A server is far from this round trip on; [`FAR`].
    pub far: Duration,
    /// And near below this one; [`NEAR`].
    pub near: Duration,
}

impl LinkOptions {
    /// Without a limit, counted nowhere.
    pub fn new(patience: Duration) -> LinkOptions {
        let (resolver, sockets) = (Arc::default(), Arc::default());
        LinkOptions { resolver, patience, limit: None, ledger: Ledger::off(), sockets, far: FAR, near: NEAR }
    }
}

/// Why a server is given up.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {reason}")]
pub struct LinkError {
    /// Its name.
    pub server: String,
    /// What happened.
    pub reason: String,
}

/// An answer, and how it came.
#[derive(Debug, Clone)]
pub struct Reply {
    /// What the server said.
    pub answer: Answer,
    /// The request was sent more than once; an earlier copy may have had its effect.
    pub repeated: bool,
}

/// The way to one server. Clones share it; the connection ends with the last of them. To a far server there may be
/// further connections beside the first ([`Link::widen`]).
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Order>,
    beside: Arc<Beside>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    requests: Requests,
    flow: Flow,
    given_up: Mutex<Option<String>>,
    /// How far its TCP handshake is, which tells how far the server is.
    handshake: watch::Sender<Handshake>,
    far: Duration,
    near: Duration,
}

impl Shared {
    fn given_up(&self) -> Option<LinkError> {
        let reason = self.given_up.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        Some(LinkError { server: self.name.clone(), reason })
    }
}

/// A request on its way through the task.
#[derive(Debug)]
struct Order {
    call: Call,
    weight: u64,
    sent: u32,
    reply: oneshot::Sender<Reply>,
}

/// An answer that is awaited.
#[derive(Debug)]
pub struct Pending {
    shared: Arc<Shared>,
    reply: oneshot::Receiver<Reply>,
    /// What is asked again, and where, when a further connection fails.
    instead: Option<Box<(Link, Call, u64)>>,
}

impl Pending {
    /// Waits for it.
    ///
    /// # Errors
    /// When the server is given up.
    pub async fn reply(self) -> Result<Reply, LinkError> {
        let error = match self.reply.await {
            Ok(reply) => return Ok(reply),
            Err(_) => self.shared.given_up().unwrap_or_else(|| LinkError {
                server: self.shared.name.clone(),
                reason: "the connection was ended".into(),
            }),
        };
        let Some((link, call, answer)) = self.instead.map(|instead| *instead) else { return Err(error) };
        let reply = Box::pin(link.send(call, answer).await?.reply()).await?;
        // It may have been heard on the connection that failed.
        Ok(Reply { repeated: true, ..reply })
    }
}

impl Link {
    /// Begins to connect on the present runtime, at once: the handshakes pass while the file is encoded.
    pub fn open(server: &Server, options: &LinkOptions) -> Link {
        // Shares are encrypted by keys that go over no connection. What else is in it, which files and the servers' and
        // uploads' secrets, is protected by RSA keys of theirs, which fall when X25519 does.
        let tls = Tls::new(Trust::SpkiPins(vec![server.nurl.pin])).with_small_key_shares();
        Link::begin(server, options, Beside::new(server.clone(), options.clone(), tls.clone()), tls)
    }

    fn begin(server: &Server, options: &LinkOptions, beside: Beside, tls: Tls) -> Link {
        // A further connection is one to be had at once, or not at all.
        let (attempts, limit) = match beside.is_further() {
            false => (ATTEMPTS, options.patience),
            true => (1, options.patience.min(FURTHER_LIMIT)),
        };
        let handshake = watch::Sender::default();
        let shared = Arc::new(Shared {
            name: server.name(),
            requests: Requests::new(&server.nurl),
            flow: Flow::new(options.limit.is_some(), Instant::now()),
            given_up: Mutex::new(None),
            handshake: handshake.clone(),
            far: options.far,
            near: options.near,
        });
        let (queue, orders) = mpsc::unbounded_channel();
        let endpoint =
            Endpoint { scheme: Scheme::Https, host: server.nurl.host.clone(), port: server.nurl.port, proxy: None };
        let connecting = ConnectOptions {
            tls,
            offer: Offer::Http1,
            resolver: Arc::clone(&options.resolver),
            socket: SocketOptions { unsent_low_water_bytes: Some(UNSENT_BYTES_MAX), ..SocketOptions::default() },
            limit,
            handshake: Some(handshake),
            writes_at_once: true,
            ..ConnectOptions::default()
        };
        let task = Task {
            shared: Arc::clone(&shared),
            orders,
            waiting: VecDeque::new(),
            endpoint,
            connecting,
            attempts,
            patience: options.patience,
            limit: options.limit.clone(),
            sockets: Arc::clone(&options.sockets),
            clocks: Clocks {
                ledger: options.ledger.clone(),
                send: options.ledger.stage("send", Kind::Task),
                server: options.ledger.host(&server.name()),
            },
        };
        tokio::spawn(task.run());
        Link { shared, queue, beside: Arc::new(beside) }
    }

    /// What the server is called.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Makes requests for this server.
    pub fn requests(&self) -> &Requests {
        &self.shared.requests
    }

    /// Bytes that the next write should have.
    pub fn write_bytes(&self) -> u64 {
        self.shared.flow.write_bytes()
    }

    /// Why the server was given up, if it was.
    pub fn given_up(&self) -> Option<LinkError> {
        self.shared.given_up()
    }

    /// Time since anything worth waiting for came from the server, on whatever connection.
    pub fn silence(&self, now: Instant) -> Duration {
        let silences = self.beside.links().into_iter().map(|link| link.shared.flow.silence(now));
        silences.fold(self.shared.flow.silence(now), Duration::min)
    }

    /// What was measured, over all connections.
    pub fn reading(&self) -> FlowReading {
        let beside = self.beside.links().into_iter().map(|link| link.shared.flow.reading());
        beside.fold(self.shared.flow.reading(), FlowReading::beside)
    }

    /// Puts a request into the queue once the window has room. Requests are sent in the order in which this
    /// returns. `answer` bytes are expected back.
    ///
    /// # Errors
    /// When the server is given up.
    pub async fn send(&self, call: Call, answer: u64) -> Result<Pending, LinkError> {
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        self.shared.flow.admit(weight).await;
        if let Some(error) = self.given_up() {
            self.shared.flow.release(weight);
            return Err(error);
        }
        Ok(self.queue(call, weight))
    }

    /// As `send`, if the window has room now; otherwise the request comes back.
    ///
    /// # Errors
    /// When the server is given up.
    pub fn try_send(&self, call: Call, answer: u64) -> Result<Result<Pending, Box<Call>>, LinkError> {
        if let Some(error) = self.given_up() {
            return Err(error);
        }
        let weight = call.body_len().max(answer) + HEAD_BYTES;
        if !self.shared.flow.try_admit(weight) {
            return Ok(Err(Box::new(call)));
        }
        Ok(Ok(self.queue(call, weight)))
    }

    fn queue(&self, call: Call, weight: u64) -> Pending {
        let (reply, receiver) = oneshot::channel();
        // A task that has ended drops the order, and the reply with it.
        let _ = self.queue.send(Order { call, weight, sent: 0, reply });
        Pending { shared: Arc::clone(&self.shared), reply: receiver, instead: None }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the server is given up.
    pub async fn call(&self, call: Call) -> Result<Reply, LinkError> {
        self.send(call, 0).await?.reply().await
    }
}
