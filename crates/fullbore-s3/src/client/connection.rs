//! One connection: takes requests from the queue, signs and writes them, and gives their answers out.
//!
//! A request is signed when it is written, so that it is of that moment however long it waited. Bodies that are files
//! are read piece by piece as the socket takes them. What breaks is told to whoever asked, and asked again there.

mod writing;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use fullbore_wire::connect::{Connected, connect};
use fullbore_wire::http1::{BodyLength, Event, Http1, Limits, ResponseHead};
use fullbore_wire::rate_limit::Allowance;
use fullbore_wire::tcp_info::{Arrival, TcpInfo};
use tokio::task::JoinHandle;

use super::measure::Answered;
use super::queue::{Order, PIPELINE_DEPTH, Take};
use super::{Answer, Body, Call, SMALL_ANSWER, Shared, Unreachable};
use crate::spool::Kept;
use writing::{Turn, unsent_allowed, write_or_wait};

/// Bytes handed to the connection and not yet written.
const OUTGOING_BYTES: usize = 512 << 10;

/// Bytes of a file read at once.
const PIECE_BYTES: u64 = 512 << 10;

/// Bytes read from the socket at once.
pub(super) const READ_BYTES: usize = 256 << 10;

/// What comes of a range in smaller pieces is joined: a store that sends single bytes would need a list of millions.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// How often the kernel's counters are looked at while a large body is under way or somebody waits for room in the
/// sockets, while the kernel has bytes of ours, and otherwise.
const LOOK_EVERY: Duration = Duration::from_millis(10);
const LOOK_OFTEN: Duration = Duration::from_millis(100);
const LOOK_SELDOM: Duration = Duration::from_millis(500);

/// Bytes of a connection that moves nothing for so long are not counted as the path's any more: others need the room.
const STUCK: Duration = Duration::from_secs(2);

/// Idle time after which a connection is closed before the server does: Amazon's ends after some 20 s without a
/// request (measured by others, not documented), and a request that crosses the close has to be repeated.
const IDLE: Duration = Duration::from_secs(10);

/// Bodies from this size on have their acknowledgement by TCP looked at; for smaller ones a round trip is taken off.
const WATCHED_BYTES: u64 = 64 << 10;

/// How a connection ended.
enum Ended {
    /// Between answers, or idle.
    Quietly,
    /// Something broke.
    Broken(String),
}

/// Has connections to the store until nothing waits any more.
pub(super) async fn serve(shared: Arc<Shared>) {
    loop {
        let bucket = shared.bucket();
        match connect(&bucket.endpoint, &shared.options.connect).await {
            Err(error) => {
                let unreachable = Unreachable::new(&bucket.host, &bucket.endpoint, &error);
                tracing::info!(reason = unreachable.reason, "no connection");
                match shared.queue.not_connected(unreachable, Instant::now()) {
                    Some(wait) => tokio::time::sleep(wait).await,
                    None => return,
                }
            }
            Ok(connected) => {
                shared.queue.connected();
                tracing::info!(host = bucket.host, "connected");
                let begun = Instant::now();
                shared.meter.opened(begun);
                let host = Host { field: bucket.host.clone(), generation: Arc::clone(&bucket) };
                let was_idle = Connection::new(&shared, connected, host).run().await;
                shared.meter.closed(begun);
                match shared.queue.closed(was_idle) {
                    0 => return,
                    // This task serves the first.
                    others => open(&shared, others - 1),
                }
            }
        }
    }
}

/// Opens so many connections.
pub(super) fn open(shared: &Arc<Shared>, count: usize) {
    for _ in 0..count {
        tokio::spawn(serve(Arc::clone(shared)));
    }
}

/// Which bucket's address this connection is for: another region is another host.
struct Host {
    field: String,
    generation: Arc<crate::address::Bucket>,
}

/// A request that was handed over, or is being.
struct Asked {
    order: Order,
    /// Where its last byte is, among all that were handed over.
    end: u64,
    /// When its last byte had been written.
    written: Option<Instant>,
    /// When it had arrived there.
    arrival: Arrival,
    begun: Instant,
    head: Option<Box<ResponseHead>>,
    body: BytesMut,
    pieces: Vec<Bytes>,
    received_bytes: usize,
}

impl Asked {
    /// Whether what comes is the range that was asked for, and no error.
    fn is_range(&self) -> bool {
        let is_good = |head: &ResponseHead| (200..300).contains(&head.status);
        self.order.call.range.is_some() && self.head.as_deref().is_some_and(is_good)
    }

    /// Bytes of the answer's body.
    fn take_in(&mut self, data: Bytes) {
        self.received_bytes += data.len();
        if !self.is_range() || data.len() < PIECE_BYTES_MIN {
            self.body.extend_from_slice(&data);
        } else {
            self.end_piece();
            self.pieces.push(data);
        }
    }

    fn end_piece(&mut self) {
        if self.is_range() && !self.body.is_empty() {
            self.pieces.push(self.body.split().freeze());
        }
    }
}

/// A body that is read from a file as it goes.
struct Feeding {
    tag: u64,
    file: Arc<Kept>,
    offset: u64,
    remaining: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

struct Connection<'a> {
    shared: &'a Arc<Shared>,
    host: Host,
    connected: Connected,
    http: Http1,
    asked: VecDeque<Asked>,
    feeding: Option<Feeding>,
    handed: u64,
    tags: u64,
    answers: u64,
    last_answer: Instant,
    /// TCP's acknowledged and received bytes, and when they last grew.
    progress: (u64, Instant),
    /// When that was looked at.
    looked: Instant,
    info: TcpInfo,
    allowance: Allowance,
    /// Time that the limit on the rate has held the present request back.
    limited: Duration,
    flushed: bool,
    /// Bytes of ours that count in the budget: written, and not known to be at the other end.
    unconfirmed: u64,
}

impl<'a> Connection<'a> {
    fn new(shared: &'a Arc<Shared>, connected: Connected, host: Host) -> Connection<'a> {
        let now = Instant::now();
        Connection {
            shared,
            host,
            info: connected.tcp.read().unwrap_or_default(),
            connected,
            http: Http1::new(Limits::with_depth(PIPELINE_DEPTH)),
            asked: VecDeque::new(),
            feeding: None,
            handed: 0,
            tags: 0,
            answers: 0,
            last_answer: now,
            progress: (0, now),
            looked: now,
            allowance: Allowance::new(shared.options.limit.clone()),
            limited: Duration::ZERO,
            flushed: true,
            unconfirmed: 0,
        }
    }

    /// Serves until the connection ends; whether it had nothing under way then.
    async fn run(mut self) -> bool {
        let mut inbox = self.shared.memory.inbox();
        let ended = loop {
            if self.asked.is_empty() && !self.may_go_on() {
                break Ended::Quietly;
            }
            let held = match self.ask() {
                Ok(held) => held,
                Err(reason) => break Ended::Broken(reason),
            };
            let mut is_due = self.looked.elapsed() >= LOOK_SELDOM;
            match self.turn(held).await {
                Ok(Turn::Written | Turn::Arrived) => {}
                Ok(Turn::Look) => is_due = true,
                Ok(Turn::Readable) => {
                    if let Some(ended) = self.read(&mut inbox).await {
                        break ended;
                    }
                }
                Ok(Turn::Fed(piece)) => {
                    if let Err(reason) = self.fed(piece) {
                        break Ended::Broken(reason);
                    }
                }
                Err(error) => break Ended::Broken(error.to_string()),
            }
            // Something may move all the time, and nothing come of it.
            if is_due && let Some(ended) = self.look() {
                break ended;
            }
        };
        self.end(ended)
    }

    /// Tells those who wait.
    fn end(mut self, ended: Ended) -> bool {
        let was_idle = self.asked.is_empty();
        let queue = &self.shared.queue;
        queue.budget.give_back(self.unconfirmed);
        match ended {
            // What the server did not look at is asked again, elsewhere, and nobody has to know.
            Ended::Quietly => queue.push_back(self.asked.drain(..).map(|asked| asked.order)),
            Ended::Broken(reason) => {
                tracing::debug!(reason, under_way = self.asked.len(), "connection broken");
                for asked in self.asked.drain(..) {
                    queue.ended(false);
                    let _ = asked.order.reply.send(Err(reason.clone()));
                }
            }
        }
        was_idle
    }

    fn may_go_on(&self) -> bool {
        !self.http.is_closing() && Arc::ptr_eq(&self.host.generation, &self.shared.bucket())
    }

    /// Hands requests over, as many as there may be; gives the time before which none may.
    fn ask(&mut self) -> Result<Option<Instant>, String> {
        self.feed();
        while self.has_room() {
            if !self.may_go_on() {
                break;
            }
            let all_small = self.asked.iter().all(|asked| asked.order.is_small());
            let now = Instant::now();
            let (take, open) = self.shared.queue.take(self.asked.len(), all_small, now);
            self::open(self.shared, open);
            match take {
                Take::Order(order) => self.hand_over(*order, now)?,
                Take::Nothing => break,
                Take::Until(time) => return Ok(Some(time)),
            }
        }
        Ok(None)
    }

    /// Whether another request may be handed over.
    fn has_room(&mut self) -> bool {
        self.feeding.is_none() && self.http.outgoing().len() < OUTGOING_BYTES && self.http.room() > 0
    }

    fn hand_over(&mut self, mut order: Order, now: Instant) -> Result<(), String> {
        let before = self.http.outgoing().len() as u64;
        self.tags += 1;
        let tag = self.tags;
        let head = self.shared.head(&order, &self.host.field, self.connected.absolute_form);
        let length = order.call.body.len();
        let body = if length > 0 { BodyLength::Known(length) } else { BodyLength::None };
        if self.asked.is_empty() {
            // Silence until now was nobody's fault.
            self.progress.1 = now;
        }
        order.times_sent += 1;
        let call = Arc::clone(&order.call);
        self.asked.push_back(Asked {
            order,
            end: 0,
            written: None,
            arrival: Arrival::default(),
            begun: now,
            head: None,
            body: BytesMut::new(),
            pieces: Vec::new(),
            received_bytes: 0,
        });
        let queued = self.http.request(&head, tag, body).and_then(|()| match &call.body {
            Body::Memory(bytes) if !bytes.is_empty() => {
                self.http.body(tag, bytes.clone()).and_then(|()| self.http.body_end(tag))
            }
            _ => Ok(()),
        });
        queued.map_err(|error| error.to_string())?;
        if let Body::File { file, offset, length } = &call.body
            && *length > 0
        {
            let (file, offset, remaining) = (Arc::clone(file), *offset, *length);
            self.feeding = Some(Feeding { tag, file, offset, remaining, reading: None });
        }
        self.handed += self.http.outgoing().len() as u64 - before;
        let still_to_come = self.feeding.as_ref().map_or(0, |feeding| feeding.remaining);
        if let Some(asked) = self.asked.back_mut() {
            asked.end = self.handed + still_to_come;
        }
        self.feed();
        Ok(())
    }

    /// Has the next piece of a file read, if there is room for it.
    fn feed(&mut self) {
        let room = self.http.outgoing().len() < OUTGOING_BYTES;
        let Some(feeding) = self.feeding.as_mut().filter(|feeding| room && feeding.reading.is_none()) else { return };
        let (file, offset) = (Arc::clone(&feeding.file), feeding.offset);
        let length = feeding.remaining.min(PIECE_BYTES) as usize;
        feeding.reading = Some(tokio::task::spawn_blocking(move || {
            let mut piece = BytesMut::zeroed(length);
            file.read_exact_at(&mut piece, offset)?;
            Ok(piece.freeze())
        }));
    }

    /// A piece is there.
    fn fed(&mut self, piece: io::Result<Bytes>) -> Result<(), String> {
        let Some(feeding) = &mut self.feeding else { return Ok(()) };
        let piece = piece.map_err(|error| format!("the file could not be read on: {error}"))?;
        let (tag, length) = (feeding.tag, piece.len() as u64);
        feeding.reading = None;
        feeding.offset += length;
        feeding.remaining -= length;
        let done = feeding.remaining == 0;
        self.handed += length;
        if done {
            self.feeding = None;
        }
        // The server may have answered before it had all of it; then nothing more is sent.
        match self.http.body(tag, piece).and_then(|()| if done { self.http.body_end(tag) } else { Ok(()) }) {
            Ok(()) => Ok(()),
            Err(_) if self.http.is_closing() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    }

    async fn turn(&mut self, held: Option<Instant>) -> io::Result<Turn> {
        let now = Instant::now();
        let waiting = self.http.outgoing().remaining();
        let at_once = self.allowance.bytes(waiting as u64, now);
        let held_until = self.allowance.held_until(now);
        let waits_for_room = held.is_some() && self.asked.is_empty() && !self.shared.queue.budget.has_room();
        let allowed = unsent_allowed(&self.info);
        let watched = self.asked.iter().any(|asked| asked.order.call.body.len() >= WATCHED_BYTES);
        let has_room = !watched || u64::from(self.info.unsent_bytes) < allowed;
        let may_write = held_until.is_none() && has_room;
        let look = match (self.asked.is_empty(), watched || (waiting > 0 && may_write), self.unconfirmed) {
            (true, ..) => IDLE,
            (false, true, _) => LOOK_EVERY,
            (false, false, 0) => LOOK_SELDOM,
            (false, false, _) if !self.shared.queue.budget.has_room() => LOOK_EVERY,
            (false, false, _) => LOOK_OFTEN,
        };
        let until = [held_until, held].into_iter().flatten().min();
        let wait = until.map_or(look, |until| look.min(until.saturating_duration_since(now)));
        let most = at_once.min(if watched { allowed } else { u64::MAX }).min(OUTGOING_BYTES as u64);
        let wants_more = held.is_none()
            && self.has_room()
            && (self.asked.is_empty()
                || (self.asked.iter().all(|asked| asked.order.is_small()) && self.shared.queue.may_pipeline()));
        let reading = self.feeding.as_mut().and_then(|feeding| feeding.reading.as_mut());
        let (stream, http, flushed) = (&mut self.connected.stream, &mut self.http, &mut self.flushed);
        let budget = &self.shared.queue.budget;
        let turn = tokio::select! {
            biased;
            turn = write_or_wait(stream, http, flushed, budget, may_write.then_some(most)) => {
                let (written, turn) = turn?;
                self.unconfirmed += written;
                self.allowance.written(written);
                turn
            }
            piece = wait_for(reading) => Turn::Fed(piece),
            () = self.shared.queue.arrived.notified(), if wants_more => Turn::Arrived,
            () = tokio::time::sleep(wait) => Turn::Look,
        };
        if held_until.is_some() {
            self.limited += now.elapsed();
        }
        if waits_for_room {
            self.shared.meter.waited_for_room(now.elapsed());
        }
        if matches!(turn, Turn::Written) {
            self.note_written();
        }
        Ok(turn)
    }

    /// Notes which requests have left us.
    fn note_written(&mut self) {
        let written = self.handed - self.http.outgoing().len() as u64;
        let now = Instant::now();
        for asked in &mut self.asked {
            if asked.written.is_none() && asked.end <= written && asked.end > 0 {
                asked.written = Some(now);
            }
        }
    }

    /// Reads what is there and gives answers out. `Some` ends the connection.
    async fn read(&mut self, inbox: &mut BytesMut) -> Option<Ended> {
        self.shared.memory.make_room(inbox);
        let filled = match self.connected.stream.read_into(inbox, READ_BYTES).await {
            Ok(filled) => filled,
            Err(error) => return Some(self.broken(&error.to_string())),
        };
        loop {
            let mut event = self.http.receive(inbox);
            if filled.end && matches!(event, Ok(None)) {
                event = self.http.end_of_stream();
            }
            match event {
                Ok(Some(event)) => {
                    if let Err(reason) = self.event(event) {
                        return Some(Ended::Broken(reason));
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(self.broken(&error.to_string())),
            }
        }
        // A server may announce the close at the head of an answer whose body still comes.
        if filled.end || (self.http.is_closing() && self.http.answering().is_none()) {
            return Some(match self.asked.front() {
                None => Ended::Quietly,
                Some(_) if self.answers > 0 && self.http.is_closing() => Ended::Quietly,
                Some(_) => self.broken("the server closed the connection"),
            });
        }
        None
    }

    /// A connection that was kept and is found dead is nobody's fault, once.
    fn broken(&self, reason: &str) -> Ended {
        let nothing_came = self.asked.iter().all(|asked| asked.head.is_none());
        let quick = self.asked.front().is_some_and(|asked| asked.begun.elapsed() < Duration::from_secs(1));
        let reused = self.answers > 0 && self.asked.len() == 1 && self.feeding.is_none() && quick;
        if reused && nothing_came && self.last_answer.elapsed() > Duration::from_secs(2) {
            return Ended::Quietly;
        }
        Ended::Broken(reason.to_owned())
    }

    fn event(&mut self, event: Event) -> Result<(), String> {
        let Some(front) = self.asked.front_mut() else { return Err("an answer to nothing".into()) };
        match event {
            Event::Head { head, .. } => front.head = Some(head),
            Event::Body { data, .. } => {
                if front.received_bytes + data.len() > front.order.call.answer_bytes_max {
                    return Err("a longer answer than was asked for".into());
                }
                front.take_in(data);
            }
            Event::End { .. } => {
                if let Some(asked) = self.asked.pop_front() {
                    self.answer(asked);
                }
            }
        }
        Ok(())
    }

    fn answer(&mut self, mut asked: Asked) {
        asked.end_piece();
        let now = Instant::now();
        if self.answers.is_multiple_of(32) || asked.order.call.body.len() >= WATCHED_BYTES {
            self.see();
        }
        // An answer before the end of the body: nothing more of it is sent.
        if self.asked.is_empty() {
            self.feeding = None;
        }
        // The server has all of it, and of those after it what was written.
        let written = self.handed - self.http.outgoing().len() as u64;
        self.confirm(written.saturating_sub(asked.end), now);
        let round_trip = Some(self.info.path_rtt()).filter(|time| !time.is_zero());
        // The server's turn begins when it has the request, and is done with the one before.
        let there =
            asked.arrival.at().or_else(|| asked.written.map(|written| written + round_trip.unwrap_or_default()));
        let turn = there.map_or(Duration::ZERO, |there| now.saturating_duration_since(there.max(self.last_answer)));
        let whole = now.saturating_duration_since(asked.begun.max(self.last_answer));
        self.shared.meter.answered(&Answered {
            sent_bytes: asked.order.call.body.len(),
            received_bytes: asked.received_bytes as u64,
            path: whole.saturating_sub(turn),
            server: turn.min(whole),
            limited: std::mem::take(&mut self.limited).min(whole),
            round_trip,
        });
        self.last_answer = now;
        self.answers += 1;
        self.progress.1 = now;
        self.shared.queue.ended(true);
        if self.asked.is_empty() {
            self.shared.queue.idle();
        }
        if let Some(head) = asked.head {
            // Whoever asked may have gone.
            let _ = asked.order.reply.send(Ok(Answer {
                head,
                body: asked.body.freeze(),
                pieces: asked.pieces,
                times_sent: asked.order.times_sent,
                asked: Arc::clone(&self.host.generation),
            }));
        }
    }

    /// Reads the kernel's counters: which requests have arrived over there.
    fn see(&mut self) {
        let Some(info) = self.connected.tcp.read() else { return };
        self.info = info;
        let now = Instant::now();
        self.confirm(info.in_kernel_bytes(), now);
        if !info.path_rtt().is_zero() {
            self.shared.queue.budget.round_trip(info.path_rtt());
        }
        for asked in &mut self.asked {
            if asked.written.is_none() || !self.flushed {
                break;
            }
            asked.arrival.look(&info, now);
        }
    }

    /// Of what was written no more than this is still on its way.
    fn confirm(&mut self, under_way: u64, now: Instant) {
        let arrived = self.unconfirmed.saturating_sub(under_way);
        if arrived > 0 {
            self.unconfirmed -= arrived;
            self.shared.queue.budget.delivered(arrived, now);
        }
    }

    /// Looks where things stand. `Some` ends the connection.
    fn look(&mut self) -> Option<Ended> {
        let now = Instant::now();
        self.looked = now;
        if self.asked.is_empty() {
            let idle = now.saturating_duration_since(self.last_answer) >= IDLE;
            return (idle || !self.may_go_on()).then_some(Ended::Quietly);
        }
        // Large requests of somebody who is gone are not worth their bytes.
        if self.asked.iter().all(|asked| asked.order.reply.is_closed() && !asked.order.is_small()) {
            return Some(Ended::Broken("not wanted any more".into()));
        }
        self.see();
        let moved = self.info.bytes_acknowledged + self.received_that_counts();
        // What waits for its turn does not stall.
        let holds_nothing = self.info.in_kernel_bytes() == 0 && self.http.outgoing().has_remaining();
        if moved != self.progress.0 || self.allowance.held_until(now).is_some() || holds_nothing {
            self.progress = (moved, now);
        }
        if now.saturating_duration_since(self.progress.1) >= STUCK {
            self.shared.queue.budget.give_back(std::mem::take(&mut self.unconfirmed));
        }
        let patience = self.shared.options.patience;
        (now.saturating_duration_since(self.progress.1) >= patience)
            .then(|| Ended::Broken(format!("stalled: nothing moved for {} s", patience.as_secs())))
    }

    /// Bytes received, where they show that something moves. A small answer comes in one piece: a server that gives it
    /// out byte by byte would hold us for ever. Only while it joins parts it sends spaces to show that it lives.
    fn received_that_counts(&self) -> u64 {
        let is_small = |call: &Call| call.answer_bytes_max <= SMALL_ANSWER && !call.errors_in_body;
        match self.asked.front() {
            Some(asked) if is_small(&asked.order.call) => 0,
            _ => self.info.bytes_received,
        }
    }
}

async fn wait_for(reading: Option<&mut JoinHandle<io::Result<Bytes>>>) -> io::Result<Bytes> {
    match reading {
        Some(reading) => reading.await.unwrap_or_else(|error| Err(io::Error::other(error))),
        None => std::future::pending().await,
    }
}
