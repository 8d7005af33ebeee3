//! The reading half of a connection: passes answers to the senders of the requests, with their timing.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;

use super::super::memory::READ_BYTES;
use super::super::{Answer, Measurement, Request, RequestTiming, Service, Streamed};
use super::in_flight::InFlight;
use super::{CloseReason, Connection};
use crate::http1::Event;

/// Number of answers to unobserved requests after which the counters are read.
const ANSWERS_PER_REFRESH: u64 = 32;

/// Whether a connection can continue to be used.
enum More {
    Yes,
    No,
}

impl<S: Service> Connection<'_, S> {
    /// Reads available data and passes answers on. `Some` ends the connection.
    pub(super) async fn read(&mut self, inbox: &mut BytesMut) -> Option<CloseReason> {
        self.shared.options.sockets.memory.make_room(inbox);
        // Under a rate limit, one read is as long as a burst: the others would wait for a longer one.
        let most = self.shared.options.receive_limit.as_ref().map_or(READ_BYTES, |limit| limit.read_bytes(READ_BYTES));
        let filled = match self.connected.stream.read_into(inbox, most).await {
            Ok(filled) => filled,
            Err(error) => return Some(self.broken(&error.to_string())),
        };
        self.received_bytes += filled.bytes as u64;
        self.shared.service.record(Measurement::Received(filled.bytes));
        if let Some(limit) = &self.shared.options.receive_limit {
            // While nothing is read, the kernel's receive window slows the server down.
            tokio::time::sleep(limit.pay(filled.bytes as u64, Instant::now())).await;
            self.progress.1 = Instant::now();
        }
        loop {
            let mut event = self.http.receive(inbox);
            if filled.end && matches!(event, Ok(None)) {
                event = self.http.end_of_stream();
            }
            match event {
                Ok(Some(event)) => {
                    if matches!(event, Event::End { .. }) && !self.pass_on(true).await {
                        return Some(CloseReason::Clean);
                    }
                    match self.event(event) {
                        Ok(More::Yes) => {}
                        Ok(More::No) => return Some(CloseReason::Clean),
                        Err(reason) => return Some(CloseReason::Broken(reason)),
                    }
                    if !self.pass_on(false).await {
                        return Some(CloseReason::Clean);
                    }
                }
                Ok(None) => break,
                Err(error) => return Some(self.broken(&error.to_string())),
            }
        }
        // A server may announce the close in the head of an answer whose body is still being received.
        if filled.end || (self.http.is_closing() && self.http.answering().is_none()) {
            return Some(match self.in_flight.front() {
                None => CloseReason::Clean,
                Some(_) if self.answers > 0 && self.http.is_closing() => CloseReason::Clean,
                Some(_) => self.broken("the server closed the connection"),
            });
        }
        None
    }

    /// A kept connection that turns out to be dead is nobody's fault, once.
    pub(super) fn broken(&self, reason: &str) -> CloseReason {
        let nothing_came = self.in_flight.iter().all(|in_flight| in_flight.head.is_none());
        let quick = self.in_flight.front().is_some_and(|first| first.begun.elapsed() < Duration::from_secs(1));
        let reused = self.answers > 0 && self.in_flight.len() == 1 && self.source_body.is_none() && quick;
        if reused && nothing_came && self.last_answer.elapsed() > Duration::from_secs(2) {
            return CloseReason::Clean;
        }
        CloseReason::Broken(reason.to_owned())
    }

    /// Passes the received part of a streamed answer to its taker, and waits until the taker has room. Returns false if
    /// the taker has gone, and with it the request.
    async fn pass_on(&mut self, has_ended: bool) -> bool {
        let Some(front) = self.in_flight.front_mut() else { return true };
        let Some(stream) = front.request.expected.stream.clone() else { return true };
        let mut passed = front.take_streamed(has_ended).into_iter().map(Streamed::Data).collect::<Vec<_>>();
        if let Some(head) = front.head.as_ref().filter(|_| front.is_streamed() && !front.is_begun) {
            passed.insert(0, Streamed::Head(head.clone()));
            front.is_begun = true;
        }
        if passed.is_empty() {
            return true;
        }
        for one in passed {
            if stream.send(one).await.is_err() {
                if let Some(in_flight) = self.in_flight.pop_front() {
                    self.count(&in_flight.request, -1);
                    self.shared.queue.ended(true);
                }
                return false;
            }
        }
        // The taker's delay is not the server's.
        self.progress.1 = Instant::now();
        true
    }

    fn event(&mut self, event: Event) -> Result<More, String> {
        let Some(front) = self.in_flight.front_mut() else { return Err("an answer without a request".into()) };
        match event {
            Event::Head { head, .. } => {
                front.head = Some(head);
                front.answering = Some(Instant::now());
                let length = front.head.as_ref().and_then(|head| head.content_length).unwrap_or(0);
                if front.ignores_range(length) {
                    return Ok(self.cut());
                }
            }
            Event::Body { data, .. } => {
                let received = front.received_bytes + data.len();
                if front.ignores_range(received as u64) {
                    return Ok(self.cut());
                }
                if received > front.request.expected.bytes_max && !front.is_streamed() {
                    return Err("the answer is longer than requested".into());
                }
                front.push_body(data);
            }
            Event::End { .. } => {
                let is_observed = front.request.length >= self.shared.options.observed_bytes;
                if is_observed || self.answers.is_multiple_of(ANSWERS_PER_REFRESH) {
                    self.refresh_tcp_info();
                }
                if let Some(in_flight) = self.in_flight.pop_front() {
                    self.answer(in_flight);
                }
            }
        }
        Ok(More::Yes)
    }

    /// Answers the first request by its head alone. The rest of the answer is not read, which ends the connection.
    fn cut(&mut self) -> More {
        if let Some(mut in_flight) = self.in_flight.pop_front() {
            in_flight.cut();
            self.answer(in_flight);
        }
        More::No
    }

    fn answer(&mut self, mut in_flight: InFlight<S>) {
        in_flight.end_piece();
        self.count(&in_flight.request, -1);
        // An answer before the end of the request's body: the rest of the body is not sent.
        if self.in_flight.is_empty() {
            self.source_body = None;
        }
        let now = Instant::now();
        // The server has this whole request, and the written part of those behind it.
        let behind = self.written().saturating_sub(in_flight.end);
        self.confirm(behind, now);
        let round_trip = Some(self.info.path_rtt()).filter(|time| !time.is_zero());
        // The server's time begins when it has the request and has answered the one before. It ends with the first byte
        // of the answer.
        let arrived = in_flight.written.map(|written| written + round_trip.unwrap_or_default());
        let from = in_flight.arrival.estimated(arrived).unwrap_or(now).max(self.last_answer);
        let began = in_flight.answering.unwrap_or(now);
        let total = now.saturating_duration_since(in_flight.begun.max(self.last_answer));
        self.shared.service.record(Measurement::Answered(&RequestTiming {
            sent_bytes: in_flight.request.length,
            received_bytes: in_flight.received_bytes as u64,
            total,
            server_latency: began.saturating_duration_since(from).min(total),
            receiving: now.saturating_duration_since(began.max(from)),
            limited: std::mem::take(&mut self.limited).min(total),
            round_trip,
        }));
        self.last_answer = now;
        self.answers += 1;
        self.progress.1 = now;
        self.shared.queue.ended(true);
        if self.in_flight.is_empty() {
            self.shared.queue.idle();
        }
        let InFlight { request, head, body, pieces, is_cut, .. } = in_flight;
        let Request { job, reply, times_sent, .. } = request;
        drop(job);
        if let Some(head) = head {
            // The sender may have gone.
            let _ = reply.send(Ok(Answer {
                head,
                body: body.freeze(),
                pieces,
                is_cut,
                times_sent,
                server: Arc::clone(&self.server),
            }));
        }
    }
}
