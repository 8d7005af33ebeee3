//! HTTP/2 by the `h2` crate: the same answers, each on a stream of its own.
//!
//! Faults of HTTP/1.1's framing have no counterpart here: wrong lengths end the stream early
//! or late, a reset resets the stream, a close is a GOAWAY.

use std::{sync::Arc, time::Instant};

use bytes::Bytes;
use h2::{Reason, SendStream, server::SendResponse};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{sleep, sleep_until},
};

use super::{
    Behaviour, Connection, RequestOrigin, Shared,
    answer::{Answer, Break, Framing, Request, decode},
    throttle::{Throttle, piece_bytes},
};

/// Streams at a time, as nginx and Apache allow them (128 and 100).
const STREAMS: u32 = 128;

/// Answers the streams of one connection.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: &Connection) {
    let mut builder = h2::server::Builder::new();
    let Ok(mut session) = builder.max_concurrent_streams(STREAMS).handshake::<S, Bytes>(stream).await else {
        return;
    };
    let own_throttle = Arc::new(Throttle::new());
    let mut number = 0;
    let mut tasks = tokio::task::JoinSet::new();
    while let Some(Ok((head, respond))) = session.accept().await {
        number += 1;
        let behaviour = connection.shared.behaviour();
        if behaviour.requests_per_connection == Some(number) {
            session.graceful_shutdown();
        }
        let stream = Stream {
            shared: connection.shared.clone(),
            behaviour,
            own_throttle: own_throttle.clone(),
            origin: RequestOrigin { connection: connection.id, number, http2: true, arrived: Instant::now() },
        };
        tasks.spawn(stream.answer(request(&head), respond));
        while tasks.try_join_next().is_some() {}
    }
}

fn request<B>(head: &http::Request<B>) -> Request {
    let value = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    Request {
        method: head.method().to_string(),
        path: decode(head.uri().path()),
        headers: head.headers().iter().map(|(name, text)| (name.to_string(), value(text))).collect(),
        http10: false,
    }
}

/// One request of a connection.
struct Stream {
    shared: Arc<Shared>,
    behaviour: Arc<Behaviour>,
    own_throttle: Arc<Throttle>,
    origin: RequestOrigin,
}

impl Stream {
    async fn answer(self, request: Request, mut respond: SendResponse<Bytes>) {
        sleep_until((self.origin.arrived + self.behaviour.delay).into()).await;
        let answer = self.shared.begin(&self.behaviour, &request);
        sleep(answer.delay).await;
        let mut sent = 0;
        if answer.hang {
            let _ = std::future::poll_fn(|context| respond.poll_reset(context)).await;
        } else {
            // A stream that the client gave up is no error of the server.
            let _ = self.send(&answer, &mut respond, &mut sent).await;
        }
        self.shared.record(self.origin, request, &answer, sent);
    }

    async fn send(&self, answer: &Answer, respond: &mut SendResponse<Bytes>, sent: &mut u64) -> Result<(), h2::Error> {
        let mut head = http::Response::builder().status(answer.status).header("server", "testkit");
        for (name, value) in &answer.headers {
            head = head.header(name, value);
        }
        if let Framing::Length(length) = answer.framing {
            head = head.header("content-length", length);
        }
        let Ok(head) = head.body(()) else {
            return Ok(());
        };
        // h2 refuses to send more or less than a content-length says, so lies become early ends.
        let length = match answer.framing {
            Framing::Length(claim) => answer.length.min(claim),
            _ => answer.length,
        };
        let end = answer.broken.map_or(length, |(after, _)| after);
        let empty = length == 0 && answer.broken.is_none();
        let mut stream = respond.send_response(head, empty)?;
        let rates =
            [self.behaviour.rate_bytes_per_s, self.behaviour.connection_rate_bytes_per_s, answer.rate_bytes_per_s];
        let piece = piece_bytes(&rates);
        while *sent < end {
            let Ok(bytes) = answer.read(*sent, piece.min(end - *sent)) else {
                stream.send_reset(Reason::INTERNAL_ERROR);
                return Ok(());
            };
            if let Some(rate) = rates[0] {
                self.shared.throttle.take(bytes.len() as u64, rate).await;
            }
            if let Some(rate) = rates[1..].iter().flatten().min() {
                self.own_throttle.take(bytes.len() as u64, *rate).await;
            }
            let last = answer.broken.is_none() && *sent + bytes.len() as u64 == end;
            self.send_piece(&mut stream, bytes.into(), last, sent).await?;
        }
        match answer.broken {
            None => {}
            Some((_, Break::Stall)) => {
                let _ = std::future::poll_fn(|context| stream.poll_reset(context)).await;
            }
            Some(_) => stream.send_reset(Reason::INTERNAL_ERROR),
        }
        Ok(())
    }

    /// Sends as the client's window allows.
    async fn send_piece(
        &self,
        stream: &mut SendStream<Bytes>,
        mut bytes: Bytes,
        last: bool,
        sent: &mut u64,
    ) -> Result<(), h2::Error> {
        while !bytes.is_empty() {
            stream.reserve_capacity(bytes.len());
            let room = std::future::poll_fn(|context| stream.poll_capacity(context)).await;
            let room = room.unwrap_or_else(|| Err(Reason::CANCEL.into()))?;
            let part = bytes.split_to(room.min(bytes.len()));
            let length = part.len() as u64;
            stream.send_data(part, last && bytes.is_empty())?;
            *sent += length;
            self.shared.sent(&self.behaviour, length);
        }
        Ok(())
    }
}
