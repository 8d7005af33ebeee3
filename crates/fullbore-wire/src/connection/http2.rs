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

use super::follow;
use super::part::{FilePart, SmallPart, land};
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
    Unanswered { gone_away: bool },
    /// Not wanted any more.
    Superseded,
    /// This connection is to end.
    Connection(Ended),
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
    let (http, mut driver) = match Http2::spawn(connected.stream, scheme).await {
        Ok(spawned) => spawned,
        Err(error) => return Ended::Fault(Fault::Broken(error.to_string())),
    };
    let mut serving = Serving { shared, host, id, base, http, streams: JoinSet::new(), closing: false };
    let how = tokio::select! {
        how = serving.run() => how,
        ended = &mut driver => match ended {
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
    /// The server takes no more requests, or is elsewhere now: end when all streams have.
    closing: bool,
}

impl Serving<'_> {
    async fn run(&mut self) -> Ended {
        let shared = self.shared;
        let mut overdue = tokio::time::interval(OVERDUE_EVERY);
        loop {
            let mut woken = pin!(shared.wake.notified());
            woken.as_mut().enable();
            if let Some(how) = self.ask().await {
                return how;
            }
            if self.closing && self.streams.is_empty() {
                return Ended::Clean;
            }
            tokio::select! {
                Some(ended) = self.streams.join_next() => match ended {
                    Ok(StreamEnd::Answered | StreamEnd::Superseded) => {}
                    Ok(StreamEnd::Unanswered { gone_away }) => self.closing |= gone_away,
                    Ok(StreamEnd::Connection(how)) => return how,
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
        while !self.closing && self.streams.len() < self.http.streams_allowed() {
            if let Err(error) = self.http.ready().await {
                return self.cannot_send(&error);
            }
            let pending = lock(&self.shared.gets)[self.host as usize].pop_front();
            if let Some(pending) = pending {
                let small = SmallPart::new(pending);
                match small.request(self.base, false) {
                    Ok(head) => match self.http.send(&head) {
                        Ok(response) => drop(self.streams.spawn(get(self.base.url.host_and_port(), small, response))),
                        Err(error) => {
                            lock(&self.shared.gets)[self.host as usize].push_back(small.again());
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
                        }
                        Err(error) => {
                            self.shared.dispatcher().unanswered(self.id, tag);
                            return self.cannot_send(&error);
                        }
                    }
                }
                Next::Wait => break,
                Next::Close => return Some(Ended::Ours),
            }
        }
        None
    }

    fn cannot_send(&mut self, error: &Http2Error) -> Option<Ended> {
        if error.is_unanswered() {
            self.closing = true;
            return None;
        }
        Some(Ended::Fault(Fault::Broken(error.to_string())))
    }
}

/// Gathers a small file.
async fn get(host: String, mut small: SmallPart, response: Http2Response) -> StreamEnd {
    let unreachable = |error: Http2Error| GetError::Unreachable { host: host.clone(), reason: error.to_string() };
    let (head, mut body) = match response.await {
        Ok(answer) => answer,
        Err(error) => {
            small.fail(unreachable(error));
            return StreamEnd::Answered;
        }
    };
    small.head(head);
    let mut release = body.release();
    loop {
        match body.chunk().await {
            Ok(Some(data)) => {
                release.release(data.len());
                if !small.body(&data) {
                    let (path, limit_bytes) = (small.get.path.clone(), small.get.limit_bytes);
                    small.fail(GetError::TooLarge { host, path, limit_bytes });
                    return StreamEnd::Answered;
                }
            }
            Ok(None) => {
                small.done();
                return StreamEnd::Answered;
            }
            Err(error) => {
                small.fail(unreachable(error));
                return StreamEnd::Answered;
            }
        }
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
                if let Some(modified) = head.last_modified {
                    self.shared.landing.set_mtime(self.part.segment.item, modified);
                }
            }
            Answer::Redirect(location) => {
                match follow(&self.shared, self.host, &self.base, &self.part.path, &location) {
                    None => return StreamEnd::Connection(Ended::Ours),
                    Some(fault) => return self.refused(fault),
                }
            }
            Answer::Fault(fault) => return self.refused(fault),
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
        if error.is_unanswered() {
            self.shared.dispatcher().unanswered(self.id, self.tag);
            return StreamEnd::Unanswered { gone_away: matches!(error, Http2Error::GoneAway { .. }) };
        }
        match error {
            Http2Error::Reset { .. } => self.refused(Fault::Broken(error.to_string())),
            Http2Error::Protocol { .. } | Http2Error::Head(_) => self.refused(Fault::WrongAnswer(error.to_string())),
            _ => StreamEnd::Connection(Ended::Fault(Fault::Broken(error.to_string()))),
        }
    }
}
