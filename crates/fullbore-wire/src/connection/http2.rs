//! One HTTP/2 connection: a stream per part, all at once.
//!
//! The same dispatcher, the same parts, and the same landing as over HTTP/1.1; only answers come in
//! any order and an unwanted one is cancelled by itself. What h2 has received goes back to its
//! windows when the landing has taken it.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::window::Place;
use tokio::task::JoinSet;

use super::part::{FilePart, SmallPart, land};
use super::{Busy, follow};
use crate::answer::{Answer, judge};
use crate::connect::{Connected, Scheme};
use crate::dispatcher::{ConnectionId, Ended, Keep, Next};
use crate::fetch::{Base, GetError, Shared, lock};
use crate::hosts::{Fault, HostId};
use crate::http2::{Http2, Http2Body, Http2Error, Http2Response};
use crate::url;

/// How often a connection looks whether it is overdue.
const OVERDUE_EVERY: Duration = Duration::from_millis(250);

/// How a stream ended.
enum StreamEnd {
    /// Answered, rightly or not; the dispatcher knows.
    Answered,
    /// The server did not look at the request.
    Unanswered,
    /// The same, and it takes no more on this connection.
    GoneAway,
    /// Not wanted any more.
    Superseded,
    /// This connection is to end.
    Connection(Ended),
    /// Not there: to be asked for once more, with `+` written in the other form.
    OtherForm(u64, Box<FilePart>),
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
    // Frames and TLS are the driver's work, and count as this stage's.
    let network = shared.network.clone();
    let mut driver = tokio::spawn(async move { network.watch(driver).await });
    let mut serving = Serving { shared, host, id, base, http, streams: JoinSet::new(), closing: None };
    let how = tokio::select! {
        how = serving.run() => how,
        ended = &mut driver => match ended {
            // Closed while idle says nothing; with requests unanswered it is a count to learn.
            Ok(Ok(())) if serving.streams.is_empty() => Ended::Ours,
            Ok(Ok(())) => Ended::Clean,
            Ok(Err(error)) => Ended::Fault(Fault::Broken(error.to_string())),
            Err(_) => Ended::Fault(Fault::Broken("connection task ended".into())),
        },
    };
    driver.abort();
    how
}

struct Serving<'a> {
    shared: &'a Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: &'a Base,
    http: Http2,
    streams: JoinSet<StreamEnd>,
    /// The server takes no more requests, or is elsewhere now: end so when all streams have.
    closing: Option<Ended>,
}

impl Serving<'_> {
    async fn run(&mut self) -> Ended {
        let shared = self.shared;
        let mut overdue = tokio::time::interval(OVERDUE_EVERY);
        let mut busy = Busy::new(&shared.host_clocks[self.host as usize]);
        loop {
            let mut woken = pin!(shared.wake.notified());
            woken.as_mut().enable();
            if let Some(how) = self.ask().await {
                return how;
            }
            busy.set(!self.streams.is_empty());
            if self.streams.is_empty()
                && let Some(how) = self.closing.take()
            {
                return how;
            }
            tokio::select! {
                Some(ended) = self.streams.join_next() => match ended {
                    Ok(StreamEnd::Answered | StreamEnd::Superseded | StreamEnd::Unanswered) => {}
                    Ok(StreamEnd::GoneAway) => self.closing = Some(Ended::Clean),
                    Ok(StreamEnd::Connection(how)) => return how,
                    Ok(StreamEnd::OtherForm(tag, part)) => {
                        let ready = self.http.ready().await;
                        let ended = match ready {
                            Ok(()) => self.send(tag, *part),
                            Err(error) => {
                                shared.dispatcher().unanswered(self.id, tag, Instant::now());
                                self.cannot_send(&error)
                            }
                        };
                        if let Some(how) = ended {
                            return how;
                        }
                    }
                    Err(_) => return Ended::Fault(Fault::Broken("stream task ended".into())),
                },
                () = woken => {}
                _ = overdue.tick() => {
                    if let Some(fault) = shared.dispatcher().overdue(self.id, Instant::now()) {
                        return Ended::Fault(fault);
                    }
                }
            }
        }
    }

    async fn ask(&mut self) -> Option<Ended> {
        while self.closing.is_none() && self.streams.len() < self.http.streams_allowed() {
            if let Err(error) = self.http.ready().await {
                return self.cannot_send(&error);
            }
            let pending = lock(&self.shared.gets)[self.host as usize].pop_front();
            if let Some(pending) = pending {
                let small = SmallPart::new(pending);
                match small.request(self.base, false) {
                    Ok(head) => match self.http.send(&head) {
                        Ok(response) => {
                            let task =
                                SmallStream { shared: self.shared.clone(), host: self.host, base: self.base.clone() };
                            self.streams.spawn(task.run(small, response));
                        }
                        Err(error) => {
                            lock(&self.shared.gets)[self.host as usize].extend(small.again());
                            return self.cannot_send(&error);
                        }
                    },
                    Err(reason) => small.fail(GetError::Unreachable { host: self.base.url.host_and_port(), reason }),
                }
                continue;
            }
            let next = self.shared.dispatcher().next(self.id, Instant::now());
            match next {
                Next::Ask { tag, segment } => {
                    let path = self.shared.begin(segment.item);
                    let part = FilePart::new(segment, path);
                    if let Some(how) = self.send(tag, part) {
                        return Some(how);
                    }
                }
                Next::Wait => break,
                Next::Close => return Some(Ended::Ours),
            }
        }
        None
    }

    /// Asks for a part of a file, on a stream of its own.
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

/// A GOAWAY without an error: the normal end after so many requests.
fn is_goodbye(error: &Http2Error) -> bool {
    matches!(error, Http2Error::GoneAway { reason: h2::Reason::NO_ERROR })
}

/// Gathers a small file.
struct SmallStream {
    shared: Arc<Shared>,
    host: HostId,
    base: Base,
}

impl SmallStream {
    async fn run(self, mut small: SmallPart, response: Http2Response) -> StreamEnd {
        let (head, mut body) = match response.await {
            Ok(answer) => answer,
            Err(error) => return self.failed(small, &error),
        };
        if small.follow(&self.shared, self.host, &self.base, &head) {
            self.again(small);
            return StreamEnd::Connection(Ended::Ours);
        }
        small.head(head);
        let mut release = body.release();
        loop {
            match body.chunk().await {
                Ok(Some(data)) => {
                    release.release(data.len());
                    if let Some(why) = small.body(data).await {
                        small.refuse(why, self.base.url.host_and_port());
                        return StreamEnd::Answered;
                    }
                }
                Ok(None) => {
                    small.done().await;
                    return StreamEnd::Answered;
                }
                Err(error) => return self.failed(small, &error),
            }
        }
    }

    fn again(&self, small: SmallPart) {
        lock(&self.shared.gets)[self.host as usize].extend(small.again());
    }

    fn failed(&self, small: SmallPart, error: &Http2Error) -> StreamEnd {
        if is_goodbye(error) {
            self.again(small);
            return StreamEnd::GoneAway;
        }
        let host = self.base.url.host_and_port();
        small.fail(GetError::Unreachable { host, reason: error.to_string() });
        StreamEnd::Answered
    }
}

/// One part of a file on its way.
struct Stream {
    shared: Arc<Shared>,
    host: HostId,
    id: ConnectionId,
    base: Base,
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
                if let Some(modified) = head.last_modified {
                    self.shared.landing.set_mtime(self.part.segment.item, modified);
                }
            }
            Answer::Redirect(location) => {
                match follow(&self.shared, self.host, &self.base, &self.part.path, self.part.asked_as, &location) {
                    None => return StreamEnd::Connection(Ended::Ours),
                    Some(fault) => return self.refused(fault),
                }
            }
            Answer::Fault(fault) => {
                let missing = matches!(fault, Fault::Missing(_));
                self.part.fault = Some(fault.clone());
                if self.part.try_other_form(&self.base) {
                    return StreamEnd::OtherForm(self.tag, Box::new(self.part));
                }
                if missing {
                    self.part.note_form(&self.base, false);
                }
                return self.refused(fault);
            }
        }
        self.body(body).await
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
                return self.refused(Fault::WrongAnswer("answer is longer than the file".into()));
            }
            shared.network.add_items(0, bytes as u64);
            shared.host_clocks[self.host as usize].received(bytes as u64);
            let keep = shared.dispatcher().received(self.id, self.tag, bytes as u64, Instant::now());
            let Keep::First { wanted } = keep else {
                return StreamEnd::Connection(Ended::Ours);
            };
            if wanted > 0 {
                let mut permit = shared.network.blocked(shared.window.acquire_bytes(bytes as u64)).await;
                permit.at(Place::Wire);
                let item = self.part.segment.item;
                land(&shared, self.host, item, self.part.at, data.slice(..wanted as usize), permit).await;
            }
            self.part.at += bytes as u64;
            release.release(bytes);
            shared.throttle(bytes as u64).await;
            if wanted < bytes as u64 {
                // The rest is brought by another connection; this stream is cancelled by its drop.
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

    fn refused(&self, fault: Fault) -> StreamEnd {
        self.shared.dispatcher().refused(self.id, self.tag, fault, Instant::now());
        self.shared.attention.notify_one();
        self.shared.wake.notify_waiters();
        StreamEnd::Answered
    }

    fn failed(&self, error: &Http2Error) -> StreamEnd {
        match error {
            Http2Error::Refused => {
                self.shared.dispatcher().unanswered(self.id, self.tag, Instant::now());
                StreamEnd::Unanswered
            }
            Http2Error::GoneAway { .. } if is_goodbye(error) => {
                self.shared.dispatcher().unanswered(self.id, self.tag, Instant::now());
                StreamEnd::GoneAway
            }
            Http2Error::Reset { .. } => self.refused(Fault::Broken(error.to_string())),
            Http2Error::Protocol { .. } | Http2Error::Head(_) => self.refused(Fault::WrongAnswer(error.to_string())),
            _ => StreamEnd::Connection(Ended::Fault(Fault::Broken(error.to_string()))),
        }
    }
}
