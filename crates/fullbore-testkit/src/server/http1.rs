//! HTTP/1.1 as servers speak it: pipelined requests answered in order, unless told otherwise.

use std::time::{Duration, Instant, SystemTime};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    sync::{mpsc, watch},
    time::{sleep, sleep_until, timeout},
};

use super::{
    Connection, RequestOrigin,
    answer::{Answer, Break, Framing, Request, decode},
    throttle::{Throttle, piece_bytes},
};

/// Requests read ahead of their answers.
const PIPELINE_DEPTH: usize = 10_000;

/// Largest head of a request, as in Apache and nginx.
const HEAD_BYTES: usize = 32 << 10;

/// Small answers are gathered up to here before they are written.
const GATHER_BYTES: usize = 64 << 10;

/// How long a server reads on after its last answer, so that what it sent is not lost to an
/// RST (nginx: lingering_timeout 5 s).
const LINGER: Duration = Duration::from_secs(5);

/// How long a permuting server waits for a second request to swap with.
const SWAP_WAIT: Duration = Duration::from_millis(5);

/// Time for the first half of a broken body to leave before the RST overtakes it.
const BEFORE_RESET: Duration = Duration::from_millis(20);

struct Incoming {
    /// `None`: not HTTP.
    request: Option<Request>,
    arrived: Instant,
}

/// How a connection is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Reset,
    Close,
}

/// Answers the requests of one connection until either side has had enough.
pub(super) async fn serve<S: AsyncRead + AsyncWrite + Unpin>(stream: S, connection: &Connection) {
    let (mut read, mut write) = tokio::io::split(stream);
    let (to_writer, from_reader) = mpsc::channel(PIPELINE_DEPTH);
    let gone = watch::Sender::new(false);
    let seen = gone.subscribe();
    let ending = tokio::select! {
        biased;
        ending = answer_all(&mut write, connection, from_reader, seen) => ending,
        () = async {
            read_requests(&mut read, to_writer).await;
            gone.send_replace(true);
            std::future::pending::<()>().await;
        } => Ending::Reset,
    };
    match ending {
        Ending::Reset => connection.reset_on_close(),
        Ending::Close => {
            let _ = write.shutdown().await;
            let mut rest = [0; 4096];
            let _ = timeout(LINGER, async { while matches!(read.read(&mut rest).await, Ok(1..)) {} }).await;
        }
    }
}

async fn read_requests(read: &mut (impl AsyncRead + Unpin), to_writer: mpsc::Sender<Incoming>) {
    let mut buffer: Vec<u8> = Vec::new();
    loop {
        while let Some(end) = buffer.windows(4).position(|four| four == b"\r\n\r\n") {
            let request = parse(&buffer[..end]);
            buffer.drain(..end + 4);
            let last = request.is_none();
            if to_writer.send(Incoming { request, arrived: Instant::now() }).await.is_err() || last {
                return;
            }
        }
        if buffer.len() > HEAD_BYTES || !matches!(read.read_buf(&mut buffer).await, Ok(1..)) {
            return;
        }
    }
}

fn parse(head: &[u8]) -> Option<Request> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (method, target, version) = (first.next()?, first.next()?, first.next()?);
    if !version.starts_with("HTTP/1.") || first.next().is_some() {
        return None;
    }
    let headers = lines
        .map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_ascii_lowercase(), value.trim().to_string()))
        })
        .collect::<Option<Vec<_>>>()?;
    Some(Request { method: method.into(), path: decode(target), headers, http10: version == "HTTP/1.0" })
}

/// Bytes on their way to the socket.
struct Out<'a, W> {
    write: &'a mut W,
    connection: &'a Connection,
    bytes: Vec<u8>,
    body_bytes: u64,
}

impl<W: AsyncWrite + Unpin> Out<'_, W> {
    async fn flush(&mut self) -> Result<(), Ending> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        self.write.write_all(&self.bytes).await.map_err(|_| Ending::Reset)?;
        self.write.flush().await.map_err(|_| Ending::Reset)?;
        self.bytes.clear();
        let shared = &self.connection.shared;
        shared.sent(&shared.behaviour(), std::mem::take(&mut self.body_bytes));
        Ok(())
    }
}

async fn answer_all(
    write: &mut (impl AsyncWrite + Unpin),
    connection: &Connection,
    mut requests: mpsc::Receiver<Incoming>,
    mut gone: watch::Receiver<bool>,
) -> Ending {
    let mut out = Out { write, connection, bytes: Vec::new(), body_bytes: 0 };
    let own_throttle = Throttle::new();
    let mut held: Option<Incoming> = None;
    let mut number = 0;
    loop {
        let incoming = match held.take() {
            Some(incoming) => incoming,
            None => {
                let next = match requests.try_recv() {
                    Ok(next) => Some(next),
                    Err(_) => match out.flush().await {
                        Ok(()) => requests.recv().await,
                        Err(ending) => return ending,
                    },
                };
                let Some(next) = next else {
                    return Ending::Close;
                };
                if !connection.shared.behaviour().permute {
                    next
                } else if let Ok(Some(other)) = timeout(SWAP_WAIT, requests.recv()).await {
                    held = Some(next);
                    other
                } else {
                    next
                }
            }
        };
        number += 1;
        match answer_one(&mut out, incoming, number, &own_throttle, &mut gone).await {
            Ok(true) => {}
            Ok(false) => return out.flush().await.err().unwrap_or(Ending::Close),
            Err(ending) => return ending,
        }
    }
}

/// Sends one answer; false when the connection is to be closed after it.
async fn answer_one<W: AsyncWrite + Unpin>(
    out: &mut Out<'_, W>,
    incoming: Incoming,
    number: u32,
    own_throttle: &Throttle,
    gone: &mut watch::Receiver<bool>,
) -> Result<bool, Ending> {
    let connection = out.connection;
    let shared = &connection.shared;
    let behaviour = shared.behaviour();
    let Some(request) = incoming.request else {
        out.bytes.extend_from_slice(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return Ok(false);
    };
    let due = incoming.arrived + behaviour.delay;
    if due > Instant::now() {
        out.flush().await?;
        sleep_until(due.into()).await;
    }
    let mut answer = shared.begin(&behaviour, &request);
    if connection.crowded {
        (answer.status, answer.framing, answer.length) = (503, Framing::Length(0), 0);
    }
    let asked_close =
        request.http10 || request.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
    let worn_out = behaviour.requests_per_connection.is_some_and(|most| number >= most);
    let announced = asked_close
        || connection.crowded
        || (worn_out && behaviour.announce_close)
        || answer.http10
        || answer.framing == Framing::UntilClose;
    let close = announced || worn_out || answer.close;
    let mut body_bytes = 0;
    let ended = send(out, &answer, announced, &behaviour, own_throttle, &mut body_bytes, gone).await;
    let origin = RequestOrigin { connection: connection.id, number, http2: false, arrived: incoming.arrived };
    shared.record(origin, request, &answer, body_bytes);
    ended.map(|()| !close)
}

async fn send<W: AsyncWrite + Unpin>(
    out: &mut Out<'_, W>,
    answer: &Answer,
    announced_close: bool,
    behaviour: &super::Behaviour,
    own_throttle: &Throttle,
    body_bytes: &mut u64,
    gone: &mut watch::Receiver<bool>,
) -> Result<(), Ending> {
    if !answer.delay.is_zero() {
        out.flush().await?;
        sleep(answer.delay).await;
    }
    if answer.hang {
        out.flush().await?;
        let _ = gone.wait_for(|gone| *gone).await;
        return Err(Ending::Reset);
    }
    out.bytes.extend_from_slice(head(answer, announced_close).as_bytes());
    let rates = [behaviour.rate_bytes_per_s, behaviour.connection_rate_bytes_per_s, answer.rate_bytes_per_s];
    let limited = rates.iter().any(Option::is_some);
    let piece = piece_bytes(&rates);
    let end = answer.broken.map_or(answer.length, |(after, _)| after);
    let mut position = 0;
    while position < end {
        // A file that shrinks under the server ends the connection, as in real ones.
        let bytes = answer.read(position, piece.min(end - position)).map_err(|_| Ending::Reset)?;
        let length = bytes.len() as u64;
        if let Some(rate) = behaviour.rate_bytes_per_s {
            out.connection.shared.throttle.take(length, rate).await;
        }
        let own = [behaviour.connection_rate_bytes_per_s, answer.rate_bytes_per_s].into_iter().flatten().min();
        if let Some(rate) = own {
            own_throttle.take(length, rate).await;
        }
        if answer.framing == Framing::Chunked {
            // An extension on some chunks: a client has to skip it.
            let extension = if length % 2 == 1 { ";odd=\"yes\"" } else { "" };
            out.bytes.extend_from_slice(format!("{length:x}{extension}\r\n").as_bytes());
        }
        out.bytes.extend_from_slice(&bytes);
        if answer.framing == Framing::Chunked {
            out.bytes.extend_from_slice(b"\r\n");
        }
        position += length;
        *body_bytes += length;
        out.body_bytes += length;
        if limited || out.bytes.len() >= GATHER_BYTES {
            out.flush().await?;
        }
    }
    match answer.broken {
        None => {}
        Some((_, how)) => {
            out.flush().await?;
            match how {
                Break::Close => return Err(Ending::Close),
                Break::Stall => drop(gone.wait_for(|gone| *gone).await),
                Break::Reset => sleep(BEFORE_RESET).await,
            }
            return Err(Ending::Reset);
        }
    }
    if answer.framing == Framing::Chunked {
        out.bytes.extend_from_slice(b"0\r\nX-Trailer: end\r\n\r\n");
    }
    Ok(())
}

fn head(answer: &Answer, announced_close: bool) -> String {
    let version = if answer.http10 { "1.0" } else { "1.1" };
    let reason =
        http::StatusCode::from_u16(answer.status).ok().and_then(|code| code.canonical_reason()).unwrap_or("Odd");
    let mut text = format!("HTTP/{version} {} {reason}\r\nServer: testkit\r\n", answer.status);
    text.push_str(&format!("Date: {}\r\n", httpdate::fmt_http_date(SystemTime::now())));
    for (name, value) in &answer.headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    match answer.framing {
        Framing::Length(length) => text.push_str(&format!("Content-Length: {length}\r\n")),
        Framing::Chunked => text.push_str("Transfer-Encoding: chunked\r\n"),
        Framing::UntilClose | Framing::None => {}
    }
    if announced_close && !answer.http10 {
        text.push_str("Connection: close\r\n");
    }
    text.push_str("\r\n");
    text
}
