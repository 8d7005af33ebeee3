//! One HTTP/2 connection: a stream per part, all at once.
//!
//! Dispatcher, parts and landing are those of HTTP/1.1. But answers come in any order, and an unwanted one is cancelled
//! alone. Received bytes are returned to h2's windows when the landing has taken them, and only then does the
//! dispatcher count them. So a stream may end at any moment without loss.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, Instant};

use fullbore_engine::landing::Chunk;
use fullbore_engine::window::{Operation, Position};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, JoinSet};

use super::part::{FilePart, SmallPart};
use super::{Busy, Followed, RedirectedRequest};
use crate::answer::{Answer, judge};
use crate::connect::{Connected, Scheme};
use crate::counted::Counted;
use crate::dispatcher::{ConnectionId, Ended, Keep, Next};
use crate::fetch::{Base, GetError, Shared, lock};
use crate::hosts::{Fault, HostId};
use crate::http2::{Http2, Http2Body, Http2Error, Http2Response};
use crate::redirect::Redirects;
use crate::url;

/// How often a connection checks whether it is overdue.
const OVERDUE_EVERY: Duration = Duration::from_millis(250);

/// End of a stream.
enum StreamEnd {
    /// The request was answered, rightly or not; the dispatcher knows.
    Answered,
    /// The server did not process the request.
    Unanswered,
    /// The server did not process the request and accepts no more on this connection.
    GoneAway,
    /// The part is not wanted any more.
    Superseded,
    /// This connection must end.
    Connection(Ended),
    /// The file was not found, and is requested once more under another name: with `+` in the other form, or at the
    /// target of a redirect.
    OtherName(u64, Box<FilePart>),
}

/// Serves one connection until it ends.
pub(super) async fn serve(
    shared: &Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: &Base,
    connected: Connected,
) -> Ended {
    let scheme = match base.url.scheme() {
        url::Scheme::Http => Scheme::Http,
        url::Scheme::Https => Scheme::Https,
    };
    let (http, driver) = match Http2::start(connected.stream, scheme).await {
        Ok(started) => started,
        Err(error) => return Ended::Fault(Fault::Broken(error.to_string())),
    };
    // The driver handles frames and TLS, so its time counts as this stage's.
    let network = shared.network.clone();
    let driver = tokio::spawn(async move { network.watch(driver).await });
    let mut serving = Serving {
        shared,
        host,
        id,
        base,
        http,
        driver,
        streams: JoinSet::new(),
        for_us: Arc::default(),
        more: Arc::default(),
        end: Arc::default(),
        answered: 0,
        no_streams_since: None,
        closing: None,
        is_over: false,
    };
    let how = match serving.run().await {
        // A server that closes without any answer will not answer the next time either.
        Ended::Clean if serving.answered == 0 => Ended::Fault(Fault::Broken("closed without an answer".into())),
        how => how,
    };
    serving.driver.abort();
    if let Ended::Fault(fault) = &how {
        let _ = serving.end.set(fault.to_string());
    }
    how
}

struct Serving<'a> {
    shared: &'a Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: &'a Base,
    http: Http2,
    driver: JoinHandle<Result<(), Http2Error>>,
    streams: JoinSet<StreamEnd>,
    /// Number of streams that wait for our own side. A silent connection is not the server's fault then.
    for_us: Arc<AtomicUsize>,
    /// A stream calls it when so few bytes are in flight that more should be requested.
    more: Arc<Notify>,
    /// Why the connection failed, for the small files that are cut off with it.
    end: Arc<OnceLock<String>>,
    /// Number of answered streams.
    answered: u64,
    /// Start of the time in which the server has allowed no stream at all.
    no_streams_since: Option<Instant>,
    /// The server accepts no more requests, or has moved: the connection ends like this when all streams have ended.
    closing: Option<Ended>,
    /// Nothing more is read. Streams first get the data that arrived for them, and then their end.
    is_over: bool,
}

impl Serving<'_> {
    async fn run(&mut self) -> Ended {
        let shared = self.shared;
        let mut overdue = tokio::time::interval(OVERDUE_EVERY);
        let mut busy = Busy::new(&shared.host_clocks[self.host as usize]);
        loop {
            let mut woken = pin!(shared.wake.notified());
            woken.as_mut().enable();
            let asked = self.ask().await;
            if let PendingRequest::End(how) = asked {
                return how;
            }
            busy.set(!self.streams.is_empty());
            if self.streams.is_empty()
                && let Some(how) = self.closing.take()
            {
                return how;
            }
            if self.streams.is_empty() && shared.addresses.is_wanted(&self.base.url) {
                return Ended::Ours;
            }
            let looks = self.streams.is_empty() && shared.dispatcher().is_at_the_end();
            tokio::select! {
                Some(ended) = self.streams.join_next() => match ended {
                    Ok(StreamEnd::Answered) => self.answered += 1,
                    Ok(StreamEnd::Superseded | StreamEnd::Unanswered) => {}
                    Ok(StreamEnd::GoneAway) => self.closing = Some(Ended::Clean),
                    // The reason is known; other streams may still receive data that has arrived.
                    Ok(StreamEnd::Connection(_)) if self.is_over => {}
                    Ok(StreamEnd::Connection(how)) => return how,
                    Ok(StreamEnd::OtherName(tag, part)) => {
                        let silence = shared.options.limits.silence;
                        let ended = match tokio::time::timeout(silence, self.http.ready()).await {
                            Ok(Ok(())) => self.send(tag, *part),
                            Ok(Err(error)) => {
                                shared.dispatcher().unanswered(self.id, tag, Instant::now());
                                self.cannot_send(&error)
                            }
                            Err(_) => Some(Ended::Fault(Fault::Slow)),
                        };
                        if let Some(how) = ended {
                            return how;
                        }
                    }
                    Err(_) => return Ended::Fault(Fault::Broken("stream task ended".into())),
                },
                ended = &mut self.driver, if !self.is_over => {
                    self.is_over = true;
                    self.closing = Some(match ended {
                        // A close while idle means nothing; with unanswered requests, it gives the number of requests
                        // per connection.
                        Ok(Ok(())) if self.streams.is_empty() => self.closing.take().unwrap_or(Ended::Ours),
                        Ok(Ok(())) => self.closing.take().unwrap_or(Ended::Clean),
                        Ok(Err(error)) => Ended::Fault(Fault::Broken(error.to_string())),
                        Err(_) => Ended::Fault(Fault::Broken("connection task ended".into())),
                    });
                }
                _ = self.http.ready(), if matches!(asked, PendingRequest::NotReady) => {}
                () = woken => {}
                () = shared.look_again(), if looks => {}
                () = self.more.notified() => {}
                _ = overdue.tick() => {
                    if let Some(fault) = self.overdue() {
                        return Ended::Fault(fault);
                    }
                }
            }
        }
    }

    /// Whether the server has made us wait for too long.
    fn overdue(&mut self) -> Option<Fault> {
        let now = Instant::now();
        let idle = self.streams.is_empty() && self.closing.is_none() && self.http.streams_allowed() == 0;
        self.no_streams_since = idle.then(|| self.no_streams_since.unwrap_or(now));
        if self.no_streams_since.is_some_and(|since| now - since > self.shared.options.limits.silence) {
            return Some(Fault::Slow);
        }
        let mut dispatcher = self.shared.dispatcher();
        if self.for_us.load(Ordering::Relaxed) > 0 {
            dispatcher.waits_for_us(self.id, now);
            return None;
        }
        dispatcher.overdue(self.id, now)
    }

    async fn ask(&mut self) -> PendingRequest {
        while self.closing.is_none() && self.streams.len() < self.http.streams_allowed() {
            // Not awaited here: a server that allows no further stream may do so for ever.
            match poll_fn(|context| Poll::Ready(self.http.poll_ready(context))).await {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(error)) => return PendingRequest::of(self.cannot_send(&error)),
                Poll::Pending => return PendingRequest::NotReady,
            }
            let pending = lock(&self.shared.gets)[self.host as usize].pop_front();
            if let Some(pending) = pending {
                let mut small = SmallPart::new(pending);
                match small.request(self.base, false) {
                    Ok(head) => match self.http.send(&head) {
                        Ok(response) => {
                            let task = SmallStream {
                                shared: self.shared.clone(),
                                host: self.host,
                                base: self.base.clone(),
                                end: self.end.clone(),
                                small: Some(small),
                            };
                            self.streams.spawn(task.run(response));
                        }
                        Err(error) => {
                            lock(&self.shared.gets)[self.host as usize].extend(small.again());
                            return PendingRequest::of(self.cannot_send(&error));
                        }
                    },
                    Err(reason) => small.fail(GetError::Unreachable { host: self.base.url.host_and_port(), reason }),
                }
                continue;
            }
            match self.shared.next(self.id) {
                Next::Ask { tag, segment } => {
                    let path = self.shared.begin(segment.item);
                    let part = FilePart::new(segment, path);
                    if let Some(how) = self.send(tag, part) {
                        return PendingRequest::End(how);
                    }
                }
                Next::Wait => break,
                Next::Close => return PendingRequest::End(Ended::Ours),
            }
        }
        PendingRequest::All
    }

    /// Requests a part of a file, on a stream of its own.
    fn send(&mut self, tag: u64, mut part: FilePart) -> Option<Ended> {
        let head = match part.request(self.base, false) {
            Ok(head) => head,
            Err(reason) => return Some(Ended::Fault(Fault::WrongAnswer(reason))),
        };
        match self.http.send(&head) {
            Ok(response) => {
                let stream = Stream {
                    shared: self.shared.clone(),
                    host: self.host,
                    id: self.id,
                    base: self.base.clone(),
                    for_us: self.for_us.clone(),
                    more: self.more.clone(),
                    tag,
                    part,
                };
                self.streams.spawn(stream.run(response));
                None
            }
            Err(error) => {
                self.shared.dispatcher().unanswered(self.id, tag, Instant::now());
                self.cannot_send(&error)
            }
        }
    }

    fn cannot_send(&mut self, error: &Http2Error) -> Option<Ended> {
        if is_goodbye(error) {
            self.closing = Some(Ended::Clean);
            return None;
        }
        Some(Ended::Fault(Fault::Broken(error.to_string())))
    }
}

/// Result of requesting parts.
enum PendingRequest {
    /// There is nothing more to request now.
    All,
    /// The server must allow a further stream first.
    NotReady,
    /// The connection must end.
    End(Ended),
}

impl PendingRequest {
    fn of(how: Option<Ended>) -> PendingRequest {
        how.map_or(PendingRequest::All, PendingRequest::End)
    }
}

/// Whether this is a GOAWAY without an error: the normal end after a number of requests.
fn is_goodbye(error: &Http2Error) -> bool {
    matches!(error, Http2Error::GoneAway { reason: h2::Reason::NO_ERROR })
}

/// Receives a small file. If the connection ends in between, the file is requested again on the next one, unless the
/// connection has failed.
struct SmallStream {
    shared: Arc<Shared>,
    host: HostId,
    base: Base,
    /// See [`Serving::end`].
    end: Arc<OnceLock<String>>,
    /// `None` once the caller has been answered.
    small: Option<SmallPart>,
}

impl SmallStream {
    async fn run(mut self, response: Http2Response) -> StreamEnd {
        let Some(small) = &mut self.small else { return StreamEnd::Superseded };
        let (head, mut body) = match response.await {
            Ok(answer) => answer,
            Err(error) => return self.failed(&error),
        };
        match small.follow(&self.shared, self.host, &self.base, &head) {
            Some(Followed::Moved) => return StreamEnd::Connection(Ended::Ours),
            Some(Followed::Elsewhere(to)) => {
                if let Some(small) = self.small.take() {
                    self.shared.detour(self.host, small.elsewhere(to));
                }
                return StreamEnd::Answered;
            }
            _ => small.head(head),
        }
        let mut release = body.release();
        loop {
            match body.chunk().await {
                Ok(Some(data)) => {
                    self.shared.network.add_items(0, data.len() as u64);
                    self.shared.host_clocks[self.host as usize].received(data.len() as u64);
                    release.release(data.len());
                    if let Some(why) = small.body(data).await {
                        if let Some(small) = self.small.take() {
                            small.refuse(why, self.base.url.host_and_port());
                        }
                        return StreamEnd::Answered;
                    }
                }
                Ok(None) => {
                    if let Some(small) = self.small.take() {
                        small.done().await;
                    }
                    return StreamEnd::Answered;
                }
                Err(error) => return self.failed(&error),
            }
        }
    }

    fn failed(mut self, error: &Http2Error) -> StreamEnd {
        if is_goodbye(error) {
            return StreamEnd::GoneAway;
        }
        self.fail(error.to_string());
        match error {
            error if error.is_flood() => StreamEnd::Connection(Ended::Fault(Fault::WrongAnswer(error.to_string()))),
            Http2Error::Io(_) | Http2Error::GoneAway { .. } => {
                StreamEnd::Connection(Ended::Fault(Fault::Broken(error.to_string())))
            }
            _ => StreamEnd::Answered,
        }
    }

    fn fail(&mut self, reason: String) {
        if let Some(small) = self.small.take() {
            small.fail(GetError::Unreachable { host: self.base.url.host_and_port(), reason });
        }
    }
}

impl Drop for SmallStream {
    fn drop(&mut self) {
        if let Some(reason) = self.end.get().cloned() {
            self.fail(reason);
        } else if let Some(small) = self.small.take() {
            lock(&self.shared.gets)[self.host as usize].extend(small.again());
            self.shared.wake.notify_waiters();
        }
    }
}

/// A part of a file being received.
struct Stream {
    shared: Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: Base,
    /// See [`Serving::for_us`].
    for_us: Arc<AtomicUsize>,
    /// See [`Serving::more`].
    more: Arc<Notify>,
    tag: u64,
    part: FilePart,
}

impl Stream {
    async fn run(mut self, response: Http2Response) -> StreamEnd {
        let (head, body) = match response.await {
            Ok(answer) => answer,
            Err(error) => return self.failed(&error),
        };
        match judge(&head, &self.part.path, &self.part.segment, super::http1::unix_now_s()) {
            Answer::Body => {
                self.part.note_form(&self.base, true);
                if self.shared.dispatcher().shows_files(self.host) {
                    self.shared.wake.notify_waiters();
                }
                if let Some(modified) = head.last_modified {
                    self.shared.landing.set_mtime(self.part.segment.item, modified);
                }
            }
            Answer::Redirect(location) => match self.part.follow(&self.shared, self.host, &self.base, &location) {
                Followed::Moved => return StreamEnd::Connection(Ended::Ours),
                Followed::Elsewhere(to) => return self.elsewhere(to),
                Followed::Refused(fault) => return self.refused(fault),
            },
            Answer::Fault(fault) => {
                let missing = matches!(fault, Fault::Missing(_));
                self.part.fault = Some(fault.clone());
                if self.part.try_other_form(&self.base) {
                    return StreamEnd::OtherName(self.tag, Box::new(self.part));
                }
                if missing {
                    self.part.note_form(&self.base, false);
                }
                return self.refused(fault);
            }
        }
        self.body(body).await
    }

    /// The part is at another address, perhaps of this very server.
    fn elsewhere(mut self, to: Box<Redirects>) -> StreamEnd {
        let target = to.current().clone();
        self.part.to = Some(to);
        if target.same_origin(&self.base.url) {
            return StreamEnd::OtherName(self.tag, Box::new(self.part));
        }
        let ticket = self.shared.dispatcher().detour(self.id, self.tag, Instant::now());
        if let Some(ticket) = ticket {
            self.shared.detour(self.host, RedirectedRequest::File(ticket, Box::new(self.part), target));
        }
        StreamEnd::Answered
    }

    async fn body(&mut self, mut body: Http2Body) -> StreamEnd {
        let shared = self.shared.clone();
        let mut release = body.release();
        loop {
            let data = match shared.network.socket_read(body.chunk()).await {
                Ok(Some(data)) => data,
                Ok(None) => break,
                Err(error) => return self.failed(&error),
            };
            let bytes = data.len();
            if bytes as u64 > self.part.segment.end - self.part.at {
                return self.refused(Fault::WrongSize("answer is longer than the file".into()));
            }
            shared.network.add_items(0, bytes as u64);
            shared.host_clocks[self.host as usize].received(bytes as u64);
            let item = self.part.segment.item;
            let _for_us = Counted::one_more(&self.for_us);
            // Wait before passing the bytes on: a run must not end before its last bytes are paid for.
            shared.throttle(bytes as u64).await;
            let mut permit = shared.network.blocked(shared.window.acquire_bytes(bytes as u64)).await;
            permit.at(Position::OnTheWire);
            let room = shared.landing.reserve(item).await;
            // From here to the landing nothing waits. This stream may be dropped at any await, and bytes that the
            // dispatcher counts as received are not requested again.
            let Some(wanted) = self.received(bytes as u64) else { return StreamEnd::Connection(Ended::Ours) };
            if wanted > 0 {
                permit.at(Position::Before(Operation::Hash));
                let data = data.slice(..wanted as usize);
                room.take(Chunk { item, offset: self.part.at, data, permit, source: self.host });
            }
            self.part.at += bytes as u64;
            release.release(bytes);
            if wanted < bytes as u64 {
                // Another connection brings the rest; dropping this stream cancels it.
                shared.dispatcher().answered(self.id, self.tag);
                return StreamEnd::Superseded;
            }
        }
        match self.part.shortfall() {
            Some(fault) => self.refused(fault),
            None => {
                shared.dispatcher().answered(self.id, self.tag);
                StreamEnd::Answered
            }
        }
    }

    /// How many of these bytes are wanted; `None` if the connection must end.
    fn received(&self, bytes: u64) -> Option<u64> {
        let mut dispatcher = self.shared.dispatcher();
        let keep = dispatcher.received(self.id, self.tag, bytes, Instant::now());
        // Not only when the stream ends: otherwise nothing would be in flight until the next answer.
        if dispatcher.may_ask_more(self.id) {
            self.more.notify_one();
        }
        match keep {
            Keep::First { wanted } => Some(wanted),
            Keep::Close => None,
        }
    }

    fn refused(&self, fault: Fault) -> StreamEnd {
        self.shared.dispatcher().refused(self.id, self.tag, fault, Instant::now());
        self.shared.attention.notify_one();
        self.shared.wake.notify_waiters();
        StreamEnd::Answered
    }

    fn failed(&self, error: &Http2Error) -> StreamEnd {
        match error {
            Http2Error::Refused => {
                self.shared.dispatcher().refused_unseen(self.id, self.tag, Instant::now());
                self.shared.attention.notify_one();
                StreamEnd::Unanswered
            }
            Http2Error::GoneAway { .. } if is_goodbye(error) => {
                self.shared.dispatcher().unanswered(self.id, self.tag, Instant::now());
                StreamEnd::GoneAway
            }
            // Other streams of such a server deliver nothing more, and each could be flooded anew.
            error if error.is_flood() => StreamEnd::Connection(Ended::Fault(Fault::WrongAnswer(error.to_string()))),
            Http2Error::Reset { .. } => self.refused(Fault::Broken(error.to_string())),
            Http2Error::Protocol { .. } | Http2Error::Head(_) => self.refused(Fault::WrongAnswer(error.to_string())),
            _ => StreamEnd::Connection(Ended::Fault(Fault::Broken(error.to_string()))),
        }
    }
}
