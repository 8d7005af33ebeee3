//! One connection: takes requests from the queue, writes them, and returns the answers to the senders.
//!
//! The head of a request is built when it is written, so that a signature is fresh however long the request waited.
//! Bodies from a source are read piece by piece as the socket accepts them. The kernel's counters tell which requests
//! have arrived at the server, and whether the connection makes progress.

mod answers;
mod health;
mod in_flight;
mod source;
mod writing;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::queue::Assignment;
use super::{Body, Measurement, Request, Service, Shared, Tolerance};
use crate::connect::Connected;
use crate::http1::{BodyLength, Http1, Limits};
use crate::rate_limit::Allowance;
use crate::tcp_info::TcpInfo;
use in_flight::InFlight;
use source::{SourceBody, piece};
use writing::{Wakeup, WriteAllowance, Writer, is_burst};

/// Maximum number of bytes in the protocol machine that are not written yet.
pub(super) const OUTGOING_BYTES: usize = 512 << 10;

/// Intervals at which the kernel's counters are read. The first applies while an observed request is in flight, or a
/// request waits for room in the sockets; the second while the kernel holds bytes of ours; the third otherwise.
const REFRESH_OBSERVED: Duration = Duration::from_millis(10);
const REFRESH_SENDING: Duration = Duration::from_millis(100);
const REFRESH_WAITING: Duration = Duration::from_millis(500);

/// Why a connection ended.
#[derive(Debug)]
pub(super) enum CloseReason {
    /// The server closed it between answers, or while idle.
    Clean,
    /// The connection failed.
    Broken(String),
    /// The connection made no progress for too long.
    Stalled(String),
}

pub(super) struct Connection<'a, S: Service> {
    shared: &'a Arc<Shared<S>>,
    server: Arc<S::Server>,
    connected: Connected,
    http: Http1,
    in_flight: VecDeque<InFlight<S>>,
    /// Number of requests in flight that are not small, and are observed.
    large: usize,
    observed: usize,
    source_body: Option<SourceBody>,
    /// Total of bytes queued in the protocol machine so far.
    queued_bytes: u64,
    tags: u64,
    answers: u64,
    last_answer: Instant,
    /// Sum of TCP's acknowledged and received bytes, and the time when it last grew.
    progress: (u64, Instant),
    /// Time of the last check for progress.
    checked: Instant,
    info: TcpInfo,
    /// Number of bytes read from the socket.
    received_bytes: u64,
    allowance: Allowance,
    /// Time for which the rate limit has held the present request back.
    limited: Duration,
    writer: Writer,
    /// Bytes of ours that count in the budget: written, and not known to be at the server.
    unconfirmed: u64,
}

impl<'a, S: Service> Connection<'a, S> {
    pub(super) fn new(shared: &'a Arc<Shared<S>>, connected: Connected, server: Arc<S::Server>) -> Connection<'a, S> {
        let now = Instant::now();
        Connection {
            shared,
            server,
            info: connected.tcp.read().unwrap_or_else(|| TcpInfo::uncounted(0, 0)),
            connected,
            http: Http1::new(Limits::with_depth(shared.options.depth)),
            in_flight: VecDeque::new(),
            large: 0,
            observed: 0,
            source_body: None,
            queued_bytes: 0,
            tags: 0,
            answers: 0,
            last_answer: now,
            progress: (0, now),
            checked: now,
            received_bytes: 0,
            allowance: Allowance::new(shared.options.limit.clone()),
            limited: Duration::ZERO,
            writer: Writer::default(),
            unconfirmed: 0,
        }
    }

    /// Serves until the connection ends. Returns the reason, and whether nothing was in flight.
    pub(super) async fn run(mut self) -> (CloseReason, bool) {
        let mut inbox = self.shared.options.sockets.memory.inbox();
        let ended = loop {
            if self.in_flight.is_empty() && (!self.is_usable() || self.shared.queue.is_over()) {
                break CloseReason::Clean;
            }
            let not_before = match self.start_requests() {
                Ok(not_before) => not_before,
                Err(reason) => break CloseReason::Broken(reason),
            };
            let mut is_due = self.observed > 0 || self.checked.elapsed() >= REFRESH_WAITING;
            match self.wait(not_before).await {
                Ok(Wakeup::Written | Wakeup::Queued) => {}
                Ok(Wakeup::Timer) => is_due = true,
                Ok(Wakeup::Readable) => {
                    if let Some(ended) = self.read(&mut inbox).await {
                        break ended;
                    }
                }
                Ok(Wakeup::Source(piece)) => {
                    if let Err(reason) = self.source_read(piece) {
                        break CloseReason::Broken(reason);
                    }
                }
                Err(error) => break self.broken(&error.to_string()),
            }
            // There may be progress all the time without a result.
            if is_due && let Some(ended) = self.check() {
                break ended;
            }
        };
        let was_idle = self.in_flight.is_empty();
        self.end(&ended);
        (ended, was_idle)
    }

    /// Handles unanswered requests: they are sent again on another connection, or their senders get an error.
    fn end(mut self, ended: &CloseReason) {
        let Shared { queue, options, .. } = &**self.shared;
        options.sockets.budget.give_back(self.unconfirmed);
        let requests = self.in_flight.drain(..).map(|in_flight| in_flight.request);
        let (server, in_flight) = (self.shared.service.name(&self.server), requests.len());
        let (reason, tolerance) = match ended {
            CloseReason::Clean if in_flight == 0 => return tracing::debug!(server, "connection closed"),
            CloseReason::Clean => {
                tracing::info!(server, in_flight, "connection closed before all answers; the requests are sent again");
                return queue.push_back(requests);
            }
            CloseReason::Broken(reason) | CloseReason::Stalled(reason) => (reason, options.tolerance),
        };
        tracing::info!(server, reason, in_flight, "connection broken");
        match tolerance {
            Tolerance::Attempts(_) => queue.push_back(requests),
            Tolerance::Time { .. } => requests.for_each(|request| {
                queue.ended(false);
                let _ = request.reply.send(Err(reason.clone()));
            }),
        }
    }

    fn is_usable(&self) -> bool {
        !self.http.is_closing() && Arc::ptr_eq(&self.server, &self.shared.service.server())
    }

    /// Starts as many requests as allowed. Returns a time before which no further one may be started, if there is one.
    fn start_requests(&mut self) -> Result<Option<Instant>, String> {
        self.read_source();
        while self.has_room() && self.is_usable() {
            let now = Instant::now();
            let (assignment, open) = self.shared.queue.take(self.in_flight.len(), self.large, now);
            super::open(self.shared, open);
            match assignment {
                Assignment::Request(request) => self.start(*request, now)?,
                Assignment::Nothing => break,
                Assignment::Until(time) => return Ok(Some(time)),
            }
        }
        Ok(None)
    }

    /// Whether a further request may be started.
    fn has_room(&mut self) -> bool {
        let ahead = self.http.outgoing().len() as u64;
        self.source_body.is_none() && self.http.free_slots() > 0 && ahead < self.shared.service.ahead_bytes()
    }

    fn start(&mut self, mut request: Request<S>, now: Instant) -> Result<(), String> {
        let before = self.http.outgoing().len() as u64;
        self.tags += 1;
        let tag = self.tags;
        if self.in_flight.is_empty() {
            // The silence until now was nobody's fault.
            self.progress.1 = now;
            if is_burst(&self.info, now.saturating_duration_since(self.last_answer)) {
                self.connected.tcp.pace();
            }
        }
        request.times_sent += 1;
        let head = self.shared.service.head(&request.job, &self.server, self.connected.absolute_form);
        let (body, length) = (request.body.clone(), request.length);
        self.count(&request, 1);
        self.in_flight.push_back(InFlight::new(request, now));
        let announced = if length > 0 { BodyLength::Known(length) } else { BodyLength::None };
        let mut queued = self.http.request(&head, tag, announced);
        match body {
            Body::Memory(pieces) if length > 0 => {
                for piece in pieces {
                    queued = queued.and_then(|()| self.http.body(tag, piece));
                }
                queued = queued.and_then(|()| self.http.body_end(tag));
            }
            Body::Source { source, offset, length: remaining } if length > 0 => {
                self.source_body = Some(SourceBody { tag, source, offset, remaining, reading: None });
            }
            _ => {}
        }
        queued.map_err(|error| error.to_string())?;
        self.queued_bytes += self.http.outgoing().len() as u64 - before;
        let still_to_come = self.source_body.as_ref().map_or(0, |body| body.remaining);
        if let Some(in_flight) = self.in_flight.back_mut() {
            in_flight.end = self.queued_bytes + still_to_come;
        }
        self.read_source();
        Ok(())
    }

    /// Counts a request in flight, or removes it from the count (`by` is -1).
    fn count(&mut self, request: &Request<S>, by: isize) {
        let add = |count: usize, is: bool| if is { count.saturating_add_signed(by) } else { count };
        self.large = add(self.large, !request.is_small());
        self.observed = add(self.observed, request.length >= self.shared.options.observed_bytes);
    }

    /// Waits for an event. No request may be started before `not_before`.
    async fn wait(&mut self, not_before: Option<Instant>) -> io::Result<Wakeup> {
        let now = Instant::now();
        let Shared { queue, options, service, .. } = &**self.shared;
        let budget = &options.sockets.budget;
        let waiting = self.writer.waiting(&mut self.http);
        let limit = self.allowance.bytes(waiting, now).min(OUTGOING_BYTES as u64);
        let limited_until = self.allowance.held_until(now);
        let is_idle = self.in_flight.is_empty();
        let waits_for_room = not_before.is_some() && is_idle && !budget.has_room();
        let allowed = match self.observed {
            0 => WriteAllowance { bytes: limit, free: 0 },
            _ => WriteAllowance::observed(&self.info, limit, options.pipelining),
        };
        let may_write = limited_until.is_none() && allowed.bytes > 0;
        let refresh = match (is_idle, self.observed > 0 || (waiting > 0 && may_write), self.unconfirmed) {
            (true, ..) => options.idle_timeout,
            (false, true, _) => options.sockets.until_refresh(REFRESH_OBSERVED, now),
            (false, false, 0) => REFRESH_WAITING,
            (false, false, _) if !budget.has_room() => REFRESH_OBSERVED,
            (false, false, _) => REFRESH_SENDING,
        };
        let until = [limited_until, not_before].into_iter().flatten().min();
        let timeout = until.map_or(refresh, |until| refresh.min(until.saturating_duration_since(now)));
        let wants_more = not_before.is_none() && self.has_room() && (is_idle || queue.may_pipeline(self.large));
        let reading = self.source_body.as_mut().and_then(|body| body.reading.as_mut());
        let (stream, http) = (&mut self.connected.stream, &mut self.http);
        let wakeup = tokio::select! {
            biased;
            wakeup = self.writer.write_or_wait(stream, http, budget, may_write.then_some(allowed)) => {
                let (written, wakeup) = wakeup?;
                self.unconfirmed += written;
                self.allowance.written(written);
                wakeup
            }
            piece = piece(reading) => Wakeup::Source(piece),
            () = queue.arrived.notified(), if wants_more => Wakeup::Queued,
            () = tokio::time::sleep(timeout) => Wakeup::Timer,
        };
        if limited_until.is_some() {
            self.limited += now.elapsed();
        }
        if waits_for_room {
            service.record(Measurement::WaitedForRoom(now.elapsed()));
        }
        if matches!(wakeup, Wakeup::Written) {
            self.note_written();
        }
        Ok(wakeup)
    }

    /// Bytes that the stream has accepted, of all that were queued in the protocol machine.
    fn written(&mut self) -> u64 {
        self.queued_bytes - self.writer.waiting(&mut self.http)
    }

    /// Records which requests have been written completely.
    fn note_written(&mut self) {
        let (written, now) = (self.written(), Instant::now());
        let not_noted = self.in_flight.iter_mut().rev().take_while(|in_flight| in_flight.written.is_none());
        for in_flight in not_noted.filter(|in_flight| in_flight.end <= written) {
            in_flight.written = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use bytes::Bytes;

    use super::super::tests::{Plain, always, plain, small};
    use super::super::{Client, Expected, Options};
    use super::*;
    use crate::connect::Timings;
    use crate::loopback::pair;
    use crate::pacing::rate;
    use crate::stream::Stream;
    use crate::tls::Protocol;
    use crate::url::Scheme;

    /// A connection that is driven by hand, and its other end.
    async fn connection(client: &Client<Plain>) -> (Connection<'_, Plain>, tokio::net::TcpStream) {
        let (near, far) = pair().await;
        let connected = Connected {
            tcp: near.probe(),
            peer: far.local_addr().unwrap(),
            stream: Stream::Plain(near),
            protocol: Protocol::Http1,
            absolute_form: false,
            timings: Timings::default(),
        };
        (Connection::new(client.shared(), connected, client.server()), far)
    }

    fn request(bytes: usize) -> Request<Plain> {
        let (reply, receiver) = tokio::sync::oneshot::channel();
        std::mem::forget(receiver);
        let body = Body::Memory(vec![Bytes::from(vec![0; bytes])]);
        let (job, expected) = ("/".to_owned(), Expected::default());
        Request { job, length: body.len(), body, expected, reply, times_sent: 0 }
    }

    #[tokio::test]
    async fn a_wide_window_is_paced_after_silence() {
        for options in [small(1), always()] {
            let client = Client::new(plain(1, Scheme::Http), options);
            let (mut connection, _far) = connection(&client).await;
            let paced = |connection: &Connection<'_, Plain>| {
                let Stream::Plain(socket) = &connection.connected.stream else { panic!("no TLS here") };
                rate(socket.tcp().as_fd()) != libc::c_uint::MAX
            };
            (connection.info.rtt, connection.info.min_rtt) = (Duration::from_millis(20), None);
            connection.info.congestion_window_segments = 100;
            let now = Instant::now();
            connection.start(request(10), now).unwrap();
            assert!(!paced(&connection), "no silence yet");
            connection.in_flight.clear();
            connection.start(request(10), connection.last_answer + Duration::from_secs(1)).unwrap();
            assert!(paced(&connection));
        }
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_its_turn_does_not_stall() {
        for options in [small(1), always()] {
            let client =
                Client::new(plain(1, Scheme::Http), Options { stall_timeout: Duration::from_secs(5), ..options });
            let (mut connection, _far) = connection(&client).await;
            let now = Instant::now();
            connection.start(request(100_000), now).unwrap();
            let long_ago = now.checked_sub(Duration::from_secs(100)).unwrap();
            connection.progress = (connection.info.bytes_acknowledged, long_ago);
            assert!(connection.check().is_none(), "others fill the sockets");
            assert!(connection.progress.1 >= now, "it waits from now on");
            // All is written, and nothing is acknowledged or answered.
            let waiting = connection.http.outgoing().len();
            bytes::Buf::advance(connection.http.outgoing(), waiting);
            connection.progress = (connection.info.bytes_acknowledged, long_ago);
            assert!(matches!(connection.check(), Some(CloseReason::Stalled(_))));
        }
    }
}
