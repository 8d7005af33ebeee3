//! One connection: requests are written ahead, answers are read in order, and the kernel's counters tell which
//! requests have arrived over there.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, BytesMut};
use fullbore_wire::connect::Connected;
use fullbore_wire::http1::{BodyLength, Event, Http1, Limits};
use fullbore_wire::rate_limit::Allowance;
use fullbore_wire::tcp_info::{Arrival, TcpInfo};

use super::task::{Ended, Task};
use super::writing::{AT_ONCE_BYTES, Out, is_burst, sendable, unsent_allowed, write_or_wait};
use super::{Order, Reply};
use crate::gbs::flow::Doing;
use crate::gbs::{ANSWER_BYTES_MAX, Answer};

/// Requests under way on one connection: servers were seen to take a thousand.
const REQUESTS_IN_FLIGHT: usize = 1000;

/// How often the kernel's counters are looked at while something is under way.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Idle time after which a connection is closed before the server does (60 s by default): a request that
/// crosses the server's close would have to be repeated.
const IDLE: Duration = Duration::from_secs(50);

/// A request that was written, or is being written.
struct Asked {
    order: Order,
    /// Where its last byte is, among all that were handed to the connection.
    end: u64,
    arrival: Arrival,
    /// When its answer began: the server's turn was over.
    begun: Option<Instant>,
    status: u16,
    body: BytesMut,
}

pub(super) struct Connection<'a> {
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
    allowance: Allowance,
    out: Out,
}

/// What moved.
pub(super) enum Turn {
    Written,
    Readable,
    Order(Option<Box<Order>>),
    Look,
}

impl<'a> Connection<'a> {
    pub fn new(task: &'a mut Task, connected: Connected) -> Connection<'a> {
        let now = Instant::now();
        Connection {
            info: connected.tcp.read().unwrap_or_default(),
            connected,
            allowance: Allowance::new(task.limit.clone()),
            task,
            http: Http1::new(Limits::with_depth(REQUESTS_IN_FLIGHT)),
            asked: VecDeque::new(),
            handed: 0,
            tags: 0,
            answers: 0,
            last_answer: now,
            progress: (0, now),
            out: Out { joined: BytesMut::new(), flushed: true },
        }
    }

    /// Serves until the connection ends; what was not answered waits again.
    pub async fn run(mut self) -> (Ended, u64) {
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
        self.task.sockets.closed(&self.info);
        (ended, self.answers)
    }

    /// Hands requests over, as many as there is room for.
    fn ask(&mut self) -> Result<(), String> {
        while self.has_room() {
            let Some(mut order) = self.task.waiting.pop_front().or_else(|| self.task.orders.try_recv().ok()) else {
                break;
            };
            // Whoever asked has gone, and the server has not heard of it.
            if order.sent == 0 && order.reply.is_closed() {
                self.task.shared.flow.release(order.weight);
                continue;
            }
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
            let asked = Asked {
                order,
                end: self.handed,
                arrival: Arrival::default(),
                begun: None,
                status: 0,
                body: BytesMut::new(),
            };
            if self.asked.is_empty() {
                self.begin(Instant::now());
            }
            self.asked.push_back(asked);
            queued.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Something is asked after a time when nothing was.
    fn begin(&mut self, now: Instant) {
        // Silence until now was nobody's fault.
        self.progress.1 = now;
        if is_burst(&self.info, now.saturating_duration_since(self.last_answer)) {
            self.connected.tcp.pace();
        }
    }

    /// Whether another request may be begun.
    fn has_room(&mut self) -> bool {
        (self.http.outgoing().len() as u64) < self.task.shared.flow.ahead_bytes() && self.http.room() > 0
    }

    async fn turn(&mut self) -> io::Result<Turn> {
        let now = Instant::now();
        let waiting = self.http.outgoing().remaining() + self.out.joined.remaining();
        let allowed = self.allowance.bytes(waiting as u64, now);
        let held_until = self.allowance.held_until(now);
        // What may be handed to the kernel: what it can send at once, and some that waits there. TLS takes
        // what it is given, so that a slow path is given little.
        let unsent = unsent_allowed(&self.info).min(self.task.sockets.allowed(&self.info));
        let room = (unsent + sendable(&self.info)).saturating_sub(u64::from(self.info.unsent_bytes));
        let may_write = held_until.is_none() && room > 0;
        let look = if self.asked.is_empty() { IDLE } else { self.task.sockets.until_look(LOOK_EVERY, now) };
        let wait = held_until.map_or(look, |until| look.min(until - now));
        let most = usize::try_from(room.min(allowed)).unwrap_or(usize::MAX).min(AT_ONCE_BYTES);
        let closed = self.task.orders.is_closed() && self.task.orders.is_empty();
        // When nobody is left to ask, only the end of what is under way is waited for.
        let wants_orders = (!closed || self.asked.is_empty()) && self.has_room();
        let (stream, http, out) = (&mut self.connected.stream, &mut self.http, &mut self.out);
        tokio::select! {
            biased;
            turn = write_or_wait(stream, http, out, may_write.then_some(most)) => {
                let (written, turn) = turn?;
                self.allowance.written(written as u64);
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
        self.task.shared.flow.received(filled.bytes, Instant::now());
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
        if filled.end || (self.http.is_closing() && self.http.answering().is_none()) {
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
            Event::Head { head, .. } => {
                front.status = head.status;
                front.begun.get_or_insert_with(Instant::now);
            }
            Event::Body { data, .. } => {
                if front.body.len() + data.len() > front.order.call.answer_bytes_max.max(ANSWER_BYTES_MAX) {
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
        let begun = asked.arrival.at().unwrap_or(now).max(self.last_answer);
        let turn_around = asked.begun.unwrap_or(now).saturating_duration_since(begun);
        self.last_answer = now;
        self.progress.1 = now;
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
        let now = Instant::now();
        self.task.sockets.looked(&self.info, &info, now);
        self.info = info;
        let written = self.handed - (self.http.outgoing().len() + self.out.joined.len()) as u64;
        for asked in &mut self.asked {
            if asked.end > written || (asked.end == written && !self.out.flushed) {
                break;
            }
            asked.arrival.look(&info, now);
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
        // A long answer is on the path once it has begun.
        let at_server = self.asked.front().is_some_and(|asked| asked.arrival.at().is_some() && asked.begun.is_none());
        self.task.shared.flow.doing(if at_server { Doing::Server } else { Doing::Path }, now);
        // What is no part of a share comes in one piece: a server that gives it out byte by byte would hold us for ever.
        let is_read = self.asked.front().is_some_and(|asked| asked.order.call.head.range.is_some());
        let received = if is_read { self.info.bytes_received } else { 0 };
        let moved = self.info.bytes_acknowledged + received;
        if moved != self.progress.0 || self.allowance.held_until(now).is_some() {
            self.progress = (moved, now);
        }
        (now.saturating_duration_since(self.progress.1) >= self.task.patience).then_some(Ended::Stalled)
    }
}
