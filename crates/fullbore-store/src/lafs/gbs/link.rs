//! The connection to one server: one task that writes requests ahead and reads their answers in order.
//!
//! A request stays here with its body until it is answered, so that a broken connection costs the bytes
//! that were under way and no more: the next one carries them again. All requests may be repeated; the one
//! that is not the same the second time is the one for room, and whoever asked is told ([`Reply::repeated`]).
//! A server that does not take a byte for the time limit, breaks connections without answering, or is not
//! who it should be, is given up, and everything that waits for it is told so.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut, BytesMut};
use fullbore_engine::stage::{HostClock, Kind, Ledger, SendReading, StageClock};
use fullbore_wire::connect::{ConnectOptions, Connected, Endpoint, Scheme, connect};
use fullbore_wire::http1::{BodyLength, Event, Http1, Limits};
use fullbore_wire::rate_limit::RateLimit;
use fullbore_wire::resolve::Resolver;
use fullbore_wire::socket::SocketOptions;
use fullbore_wire::stream::Stream;
use fullbore_wire::tcp_info::TcpInfo;
use fullbore_wire::tls::{Offer, Tls, Trust};
use tokio::io::AsyncWriteExt;
use tokio::sync::{mpsc, oneshot};

use super::flow::{Doing, Flow, FlowReading, congestion_window};
use super::{Answer, Call, Requests};
use crate::lafs::servers::Server;

/// Requests under way on one connection: servers were seen to take a thousand.
const REQUESTS_IN_FLIGHT: usize = 1000;

/// Bytes handed to the connection and not yet written: some records of TLS. More waits in the queue.
const OUTGOING_BYTES: usize = 256 << 10;

/// Bytes of one record of TLS (RFC 8446, section 5.1), and pieces that are joined to fill it.
const RECORD_BYTES: usize = 16 << 10;
const JOINED_PIECE_BYTES: usize = 4 << 10;

/// Unsent bytes in the kernel at most; on slow paths less, see [`unsent_allowed`].
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// How often the kernel's counters are looked at while something is under way.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Idle time after which a connection is closed before the server does (60 s by default): a request that
/// crosses the server's close would have to be repeated.
const IDLE: Duration = Duration::from_secs(50);

/// Connections opened in a row without one answer, until a server is given up.
const ATTEMPTS: u32 = 3;

/// Wait before the second attempt; twice as long before the third.
const ATTEMPT_WAIT: Duration = Duration::from_millis(500);

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

/// The way to one server. Clones share it; the connection ends with the last of them.
#[derive(Debug, Clone)]
pub struct Link {
    shared: Arc<Shared>,
    queue: mpsc::UnboundedSender<Order>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    requests: Requests,
    flow: Flow,
    given_up: Mutex<Option<String>>,
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
}

impl Pending {
    /// Waits for it.
    ///
    /// # Errors
    /// When the server is given up.
    pub async fn reply(self) -> Result<Reply, LinkError> {
        match self.reply.await {
            Ok(reply) => Ok(reply),
            Err(_) => Err(self.shared.given_up().unwrap_or_else(|| LinkError {
                server: self.shared.name.clone(),
                reason: "the connection was ended".into(),
            })),
        }
    }
}

impl Link {
    /// Begins to connect on the present runtime, at once: the handshakes pass while the file is encoded.
    pub fn open(server: &Server, options: &LinkOptions) -> Link {
        let shared = Arc::new(Shared {
            name: server.name(),
            requests: Requests::new(&server.nurl),
            flow: Flow::new(Instant::now()),
            given_up: Mutex::new(None),
        });
        let (queue, orders) = mpsc::unbounded_channel();
        let endpoint =
            Endpoint { scheme: Scheme::Https, host: server.nurl.host.clone(), port: server.nurl.port, proxy: None };
        let connecting = ConnectOptions {
            tls: Tls::new(Trust::SpkiPins(vec![server.nurl.pin])),
            offer: Offer::Http1,
            resolver: Arc::clone(&options.resolver),
            socket: SocketOptions { unsent_low_water_bytes: Some(UNSENT_BYTES_MAX), ..SocketOptions::default() },
            limit: options.patience,
            ..ConnectOptions::default()
        };
        let task = Task {
            shared: Arc::clone(&shared),
            orders,
            waiting: VecDeque::new(),
            endpoint,
            connecting,
            patience: options.patience,
            limit: options.limit.clone(),
            clocks: Clocks {
                ledger: options.ledger.clone(),
                send: options.ledger.stage("send", Kind::Task),
                server: options.ledger.host(&server.name()),
            },
        };
        tokio::spawn(task.run());
        Link { shared, queue }
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

    /// Time since anything came from the server.
    pub fn silence(&self, now: Instant) -> Duration {
        self.shared.flow.silence(now)
    }

    /// What was measured.
    pub fn reading(&self) -> FlowReading {
        self.shared.flow.reading()
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
        Pending { shared: Arc::clone(&self.shared), reply: receiver }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When the server is given up.
    pub async fn call(&self, call: Call) -> Result<Reply, LinkError> {
        self.send(call, 0).await?.reply().await
    }
}

struct Task {
    shared: Arc<Shared>,
    orders: mpsc::UnboundedReceiver<Order>,
    /// To be sent: again, or for the first time.
    waiting: VecDeque<Order>,
    endpoint: Endpoint,
    connecting: ConnectOptions,
    patience: Duration,
    limit: Option<Arc<RateLimit>>,
    clocks: Clocks,
}

/// What the run's verdict hears of this server.
struct Clocks {
    ledger: Ledger,
    send: Arc<StageClock>,
    server: Arc<HostClock>,
}

impl Clocks {
    /// What the kernel counted since the last look.
    fn looked(&self, before: &TcpInfo, now: &TcpInfo) {
        let us = |before: Duration, now: Duration| now.saturating_sub(before).as_micros() as u64;
        self.ledger.add_sending(SendReading {
            busy_us: us(before.busy, now.busy),
            receiver_limited_us: us(before.receive_window_limited, now.receive_window_limited),
            buffer_limited_us: us(before.send_buffer_limited, now.send_buffer_limited),
        });
    }

    fn answered(&self, bytes: u64, round_trip: Duration) {
        self.send.add_items(1, bytes);
        self.server.received(bytes);
        if !round_trip.is_zero() {
            self.server.round_trip(round_trip);
        }
    }
}

/// How a connection ended.
enum Ended {
    /// Nothing was under way: idle, or closed by the server between answers.
    Quietly,
    /// It broke.
    Broken(String),
    /// The server took or sent nothing for too long.
    Stalled,
    /// Nobody is left to ask for anything.
    Done,
}

impl Task {
    async fn run(mut self) {
        let mut failures = 0;
        let mut first = true;
        loop {
            // The first connection is opened before anybody asks: that is a round trip or two won.
            if self.waiting.is_empty() && !std::mem::take(&mut first) {
                match self.orders.recv().await {
                    Some(order) => self.waiting.push_back(order),
                    None => return,
                }
            }
            self.shared.flow.doing(if self.waiting.is_empty() { Doing::Idle } else { Doing::Path }, Instant::now());
            let reason = match connect(&self.endpoint, &self.connecting).await {
                Err(error) if error.is_untrusted() => {
                    let reason = format!("not the server of this NURL: {}", error.without_host(&self.endpoint));
                    return self.give_up(&reason);
                }
                Err(error) => error.without_host(&self.endpoint),
                Ok(connected) => {
                    self.shared.flow.connected(Instant::now());
                    let (ended, answers) = Connection::new(&mut self, connected).run().await;
                    self.shared.flow.doing(Doing::Idle, Instant::now());
                    if answers > 0 {
                        failures = 0;
                    }
                    match ended {
                        Ended::Done => return,
                        Ended::Quietly => continue,
                        Ended::Stalled => {
                            let limit = self.patience.as_secs();
                            return self.give_up(&format!("stalled: nothing moved for {limit} s"));
                        }
                        Ended::Broken(reason) => reason,
                    }
                }
            };
            failures += 1;
            tracing::info!(server = self.shared.name, failures, reason, "connection failed");
            if failures >= ATTEMPTS {
                return self.give_up(&reason);
            }
            tokio::time::sleep(ATTEMPT_WAIT * failures).await;
        }
    }

    /// Tells everybody. Dropping an order's reply is the message.
    fn give_up(mut self, reason: &str) {
        *self.shared.given_up.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.to_owned());
        self.shared.flow.close();
        self.shared.flow.doing(Doing::Idle, Instant::now());
        self.orders.close();
        while let Ok(order) = self.orders.try_recv() {
            self.waiting.push_back(order);
        }
        let weight = self.waiting.drain(..).map(|order| order.weight).sum();
        self.shared.flow.release(weight);
    }
}

/// A request that was written, or is being written.
struct Asked {
    order: Order,
    /// Where its last byte is, among all that were handed to the connection.
    end: u64,
    /// Where it is among TCP's bytes, once it is written.
    tcp_end: Option<u64>,
    /// When TCP's acknowledgement of it was seen.
    acknowledged: Option<Instant>,
    status: u16,
    body: BytesMut,
}

struct Connection<'a> {
    task: &'a mut Task,
    connected: Connected,
    http: Http1,
    asked: VecDeque<Asked>,
    /// Bytes handed over so far.
    handed: u64,
    tags: u64,
    answers: u64,
    last_answer: Instant,
    /// Progress of any kind: TCP's acknowledged and received bytes, and when they last grew.
    progress: (u64, Instant),
    info: TcpInfo,
    /// Nothing is written before this: the rate limit.
    not_before: Option<Instant>,
    out: Out,
}

/// What is on its way into TLS.
struct Out {
    /// Small pieces, joined: each call makes a record of TLS, and many records are many bytes.
    joined: BytesMut,
    flushed: bool,
}

/// What moved.
enum Turn {
    Written,
    Readable,
    Order(Option<Box<Order>>),
    Look,
}

impl<'a> Connection<'a> {
    fn new(task: &'a mut Task, connected: Connected) -> Connection<'a> {
        let now = Instant::now();
        Connection {
            info: connected.tcp.read().unwrap_or_default(),
            connected,
            task,
            http: Http1::new(Limits::with_depth(REQUESTS_IN_FLIGHT)),
            asked: VecDeque::new(),
            handed: 0,
            tags: 0,
            answers: 0,
            last_answer: now,
            progress: (0, now),
            not_before: None,
            out: Out { joined: BytesMut::new(), flushed: true },
        }
    }

    /// Serves until the connection ends; what was not answered waits again.
    async fn run(mut self) -> (Ended, u64) {
        let mut inbox = BytesMut::with_capacity(64 << 10);
        let ended = loop {
            if let Err(reason) = self.ask() {
                break Ended::Broken(reason);
            }
            match self.turn().await {
                Ok(Turn::Written) => {}
                Ok(Turn::Readable) => {
                    if let Some(ended) = self.read(&mut inbox).await {
                        break ended;
                    }
                }
                Ok(Turn::Order(Some(order))) => self.task.waiting.push_back(*order),
                Ok(Turn::Order(None)) if self.asked.is_empty() && self.task.waiting.is_empty() => break Ended::Done,
                Ok(Turn::Order(None) | Turn::Look) => {}
                Err(error) => break Ended::Broken(error.to_string()),
            }
            if let Some(ended) = self.look() {
                break ended;
            }
        };
        let unanswered = self.asked.drain(..).map(|asked| asked.order);
        let mut waiting: VecDeque<Order> = unanswered.collect();
        waiting.append(&mut self.task.waiting);
        self.task.waiting = waiting;
        (ended, self.answers)
    }

    /// Hands requests over, as many as there is room for.
    fn ask(&mut self) -> Result<(), String> {
        while self.http.outgoing().len() < OUTGOING_BYTES && self.http.room() > 0 {
            let Some(mut order) = self.task.waiting.pop_front().or_else(|| self.task.orders.try_recv().ok()) else {
                break;
            };
            let before = self.http.outgoing().len() as u64;
            self.tags += 1;
            let length = order.call.body_len();
            let body = if length > 0 { BodyLength::Known(length) } else { BodyLength::None };
            let tag = self.tags;
            let mut queue = || {
                self.http.request(&order.call.head, tag, body)?;
                if length > 0 {
                    order.call.body.iter().try_for_each(|piece| self.http.body(tag, piece.clone()))?;
                    self.http.body_end(tag)?;
                }
                Ok(())
            };
            let queued: Result<(), fullbore_wire::http1::RequestError> = queue();
            order.sent += 1;
            self.handed += self.http.outgoing().len() as u64 - before;
            let asked =
                Asked { order, end: self.handed, tcp_end: None, acknowledged: None, status: 0, body: BytesMut::new() };
            if self.asked.is_empty() {
                // Silence until now was nobody's fault.
                self.progress.1 = Instant::now();
            }
            self.asked.push_back(asked);
            queued.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn turn(&mut self) -> io::Result<Turn> {
        let now = Instant::now();
        if self.not_before.is_some_and(|until| until <= now) {
            self.not_before = None;
        }
        // What may be handed to the kernel: what it can send at once, and some that waits there. TLS takes
        // what it is given, so that a slow path is given little.
        let room =
            (unsent_allowed(&self.info) + sendable(&self.info)).saturating_sub(u64::from(self.info.unsent_bytes));
        let may_write = self.not_before.is_none() && room > 0;
        let look = if self.asked.is_empty() { IDLE } else { LOOK_EVERY };
        let wait = self.not_before.map_or(look, |until| look.min(until - now));
        let most = usize::try_from(room).unwrap_or(usize::MAX).min(OUTGOING_BYTES);
        let closed = self.task.orders.is_closed() && self.task.orders.is_empty();
        // When nobody is left to ask, only the end of what is under way is waited for.
        let wants_orders =
            (!closed || self.asked.is_empty()) && self.http.outgoing().len() < OUTGOING_BYTES && self.http.room() > 0;
        let (stream, http, out) = (&mut self.connected.stream, &mut self.http, &mut self.out);
        tokio::select! {
            biased;
            turn = write_or_wait(stream, http, out, may_write.then_some(most)) => {
                let (written, turn) = turn?;
                if written > 0 && let Some(limit) = &self.task.limit {
                    let wait = limit.pay(written as u64, Instant::now());
                    self.not_before = (!wait.is_zero()).then(|| Instant::now() + wait);
                }
                Ok(turn)
            }
            order = self.task.orders.recv(), if wants_orders => Ok(Turn::Order(order.map(Box::new))),
            () = tokio::time::sleep(wait) => Ok(Turn::Look),
        }
    }

    /// Reads what is there and gives answers out. `Some` ends the connection.
    async fn read(&mut self, inbox: &mut BytesMut) -> Option<Ended> {
        let filled = match self.connected.stream.read_into(inbox, 256 << 10).await {
            Ok(filled) => filled,
            Err(error) => return Some(Ended::Broken(error.to_string())),
        };
        self.task.shared.flow.heard(Instant::now());
        loop {
            match self.http.receive(inbox) {
                Ok(Some(event)) => {
                    if let Err(reason) = self.event(event) {
                        return Some(Ended::Broken(reason));
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(Ended::Broken(error.to_string())),
            }
        }
        if filled.end || self.http.is_closing() {
            return Some(match self.asked.front() {
                None => Ended::Quietly,
                Some(_) if self.answers > 0 && self.http.is_closing() => Ended::Quietly,
                Some(_) => Ended::Broken("the server closed the connection".into()),
            });
        }
        None
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        let Some(front) = self.asked.front_mut() else { return Err("an answer to nothing".into()) };
        match event {
            Event::Head { head, .. } => front.status = head.status,
            Event::Body { data, .. } => {
                if front.body.len() + data.len() > front.order.call.answer_bytes_max.max(super::ANSWER_BYTES_MAX) {
                    return Err("a longer answer than was asked for".into());
                }
                front.body.extend_from_slice(&data);
            }
            Event::End { .. } => {
                self.see();
                let Some(asked) = self.asked.pop_front() else { return Ok(()) };
                self.answer(asked);
            }
        }
        Ok(())
    }

    fn answer(&mut self, asked: Asked) {
        let now = Instant::now();
        // The server's turn began when it had the request, and was done with the one before.
        let begun = asked.acknowledged.unwrap_or(now).max(self.last_answer);
        let turn_around = now.saturating_duration_since(begun);
        self.last_answer = now;
        self.answers += 1;
        let flow = &self.task.shared.flow;
        let bytes = asked.order.call.body_len().max(asked.body.len() as u64);
        self.task.clocks.answered(bytes, self.info.path_rtt());
        flow.answered(bytes, turn_around, Some(self.info.path_rtt()), now);
        flow.release(asked.order.weight);
        let answer = Answer { status: asked.status, body: asked.body.freeze() };
        // Whoever asked may have gone.
        let _ = asked.order.reply.send(Reply { answer, repeated: asked.order.sent > 1 });
    }

    /// Reads the kernel's counters: which requests have arrived over there.
    fn see(&mut self) {
        let Some(info) = self.connected.tcp.read() else { return };
        self.task.shared.flow.looked(&self.info, &info);
        self.task.clocks.looked(&self.info, &info);
        self.info = info;
        let now = Instant::now();
        let written = self.handed - (self.http.outgoing().len() + self.out.joined.len()) as u64;
        let in_kernel =
            u64::from(info.unsent_bytes) + u64::from(info.unacknowledged_segments) * u64::from(info.segment_bytes);
        for asked in &mut self.asked {
            if asked.end > written || (asked.end == written && !self.out.flushed) {
                break;
            }
            let end = *asked.tcp_end.get_or_insert(info.bytes_acknowledged + in_kernel);
            // An open segment counts as a full one above; nothing under way means that all is there.
            if asked.acknowledged.is_none() && (info.bytes_acknowledged >= end || in_kernel == 0) {
                asked.acknowledged = Some(now);
            }
        }
    }

    /// Looks where things stand. `Some` ends the connection.
    fn look(&mut self) -> Option<Ended> {
        let now = Instant::now();
        if self.asked.is_empty() {
            self.task.shared.flow.doing(Doing::Idle, now);
            let idle = now.saturating_duration_since(self.last_answer) >= IDLE;
            return (idle && self.task.waiting.is_empty()).then_some(Ended::Quietly);
        }
        self.see();
        let at_server = self.asked.front().is_some_and(|asked| asked.acknowledged.is_some());
        self.task.shared.flow.doing(if at_server { Doing::Server } else { Doing::Path }, now);
        let moved = self.info.bytes_acknowledged + self.info.bytes_received;
        if moved != self.progress.0 || self.not_before.is_some() {
            self.progress = (moved, now);
        }
        (now.saturating_duration_since(self.progress.1) >= self.task.patience).then_some(Ended::Stalled)
    }
}

/// Bytes that the kernel would send at once.
fn sendable(info: &TcpInfo) -> u64 {
    let under_way = u64::from(info.unacknowledged_segments) * u64::from(info.segment_bytes);
    congestion_window(info).saturating_sub(under_way)
}

/// Bytes that may wait unsent in the kernel. On a slow path half a second of it, and before anything is
/// measured as little as on the slowest: what waits waits here, and ten servers on an uplink of 400 kbit/s
/// have less than a second of it in their sockets. On fast paths also twice the congestion window, or slow
/// start would find nothing to send.
fn unsent_allowed(info: &TcpInfo) -> u64 {
    const LEAST: u64 = 4 << 10;
    const SLOW_BYTES_PER_S: u64 = 64 << 10;
    match info.delivery_rate_bytes_per_s {
        rate if rate < SLOW_BYTES_PER_S => (rate / 2).max(LEAST),
        rate => (rate / 2).max(2 * congestion_window(info)),
    }
}

/// Writes at most `most` bytes of what waits (`None`: nothing now), or waits until something is there to be read.
async fn write_or_wait(
    stream: &mut Stream,
    http: &mut Http1,
    out: &mut Out,
    most: Option<usize>,
) -> io::Result<(usize, Turn)> {
    poll_fn(|cx| {
        if let Some(most) = most
            && (out.joined.has_remaining() || http.outgoing().has_remaining())
        {
            let waiting = http.outgoing();
            if out.joined.is_empty() && waiting.chunk().len() < JOINED_PIECE_BYTES {
                out.joined.put(waiting.take(RECORD_BYTES));
            }
            let polled = if out.joined.is_empty() {
                pin!(stream.write_buf(&mut http.outgoing().take(most))).poll(cx)
            } else {
                pin!(stream.write_buf(&mut (&mut out.joined).take(most))).poll(cx)
            };
            match polled {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(written)) => {
                    out.flushed = false;
                    return Poll::Ready(Ok((written, Turn::Written)));
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        } else if !out.flushed {
            match pin!(stream.flush()).poll(cx) {
                Poll::Ready(Ok(())) => out.flushed = true,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {}
            }
        }
        stream.poll_readable(cx).map_ok(|()| (0, Turn::Readable))
    })
    .await
}
