//! The exchange client against servers on loopback, with the options of both kinds of users: `small` shares a queue
//! among connections and fails the requests of a broken one, `always` pipelines and sends them again.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::*;
use crate::connect::ConnectOptions;
use crate::http1::Method;
use crate::loopback::{Authority, listen};
use crate::tls::{Tls, Trust};
use crate::url::Scheme;

const LONG: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(500);

/// A service that asks for paths and counts answers.
pub(super) struct Plain {
    endpoint: Arc<Endpoint>,
    pub answers: AtomicUsize,
    pub opened: AtomicUsize,
    /// Microseconds that the server took.
    latency_us: AtomicUsize,
}

impl Service for Plain {
    type Job = String;
    type Server = Endpoint;

    fn server(&self) -> Arc<Endpoint> {
        Arc::clone(&self.endpoint)
    }

    fn endpoint(server: &Endpoint) -> &Endpoint {
        server
    }

    fn name(&self, server: &Endpoint) -> String {
        server.host.clone()
    }

    fn head(&self, job: &String, server: &Endpoint, _: bool) -> RequestHead {
        RequestHead::new(Method::Put, server.host.clone(), job.clone())
    }

    fn record(&self, measurement: Measurement<'_>) {
        match measurement {
            Measurement::Answered(timing) => {
                self.answers.fetch_add(1, Ordering::Relaxed);
                self.latency_us.fetch_add(timing.server_latency.as_micros() as usize, Ordering::Relaxed);
            }
            Measurement::ConnectionOpened(_) => _ = self.opened.fetch_add(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// As for a store.
pub(super) fn small(connections: usize) -> Options {
    Options {
        connect: ConnectOptions::default(),
        connections,
        depth: 4,
        pipelining: Pipelining::Small,
        stall_timeout: LONG,
        idle_timeout: LONG,
        connect_backoff: Duration::from_millis(250),
        tolerance: Tolerance::Time { first: Duration::from_secs(4), later: LONG },
        observed_bytes: SMALL_BYTES,
        limit: None,
        receive_limit: None,
        sockets: Arc::new(Sockets::new(1 << 20)),
    }
}

/// As for a server of a grid.
pub(super) fn always() -> Options {
    Options {
        depth: 1000,
        pipelining: Pipelining::Always,
        connect_backoff: Duration::from_millis(20),
        tolerance: Tolerance::Attempts(3),
        observed_bytes: 0,
        ..small(1)
    }
}

pub(super) fn plain(port: u16, scheme: Scheme) -> Plain {
    let host = if scheme == Scheme::Https { "localhost" } else { "127.0.0.1" };
    let endpoint = Arc::new(Endpoint { scheme, host: host.into(), port, proxy: None });
    Plain {
        endpoint,
        answers: AtomicUsize::default(),
        opened: AtomicUsize::default(),
        latency_us: AtomicUsize::default(),
    }
}

/// A client of this server, which serves each connection by `serve`; its number is given.
async fn client<F, Serving>(options: Options, serve: F) -> Client<Plain>
where
    F: Fn(TcpStream, usize) -> Serving + Send + Sync + 'static,
    Serving: Future<Output = io::Result<()>> + Send + 'static,
{
    let (listener, address) = listen().await;
    tokio::spawn(accept(listener, serve));
    Client::new(plain(address.port(), Scheme::Http), options)
}

async fn accept<F, Serving>(listener: TcpListener, serve: F)
where
    F: Fn(TcpStream, usize) -> Serving,
    Serving: Future<Output = io::Result<()>> + Send + 'static,
{
    for number in 0.. {
        let Ok((stream, _)) = listener.accept().await else { return };
        tokio::spawn(serve(stream, number));
    }
}

const EXPECTED: Expected =
    Expected { bytes_max: 1000, is_range: false, stream: None, in_pieces: false, is_progress: false };

/// Sends and waits; `None` when the server is given up.
async fn exchange(client: &Client<Plain>, path: &str, body: Vec<Bytes>) -> Option<Outcome<Plain>> {
    let receiver = client.send(path.to_owned(), Body::Memory(body), EXPECTED).ok()?;
    timeout(LONG, receiver).await.expect("an end").ok()
}

/// Reads one head and its body; false at the end.
async fn read_request(stream: &mut (impl AsyncReadExt + Unpin), inbox: &mut Vec<u8>) -> io::Result<bool> {
    let end = loop {
        if let Some(end) = inbox.windows(4).position(|four| four == b"\r\n\r\n") {
            break end + 4;
        }
        if stream.read_buf(inbox).await? == 0 {
            return Ok(false);
        }
    };
    let head = String::from_utf8_lossy(&inbox[..end]).to_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next()?.parse().ok());
    while inbox.len() < end + length.unwrap_or(0) {
        if stream.read_buf(inbox).await? == 0 {
            return Ok(false);
        }
    }
    inbox.drain(..end + length.unwrap_or(0));
    Ok(true)
}

const FINE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi";

const CLOSING: &[u8] = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi";

async fn serve_all(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin) -> io::Result<()> {
    let mut inbox = Vec::new();
    while read_request(&mut stream, &mut inbox).await? {
        stream.write_all(FINE).await?;
        stream.flush().await?;
    }
    Ok(())
}

fn body_of(outcome: Option<Outcome<Plain>>) -> Bytes {
    outcome.expect("the server is not given up").expect("an answer").body
}

#[tokio::test]
async fn many_requests_share_few_connections() {
    for options in [small(3), always()] {
        let most = options.connections;
        let client = client(options, |stream, _| serve_all(stream)).await;
        let send = |number: usize| {
            let receiver = client.send(format!("/{number}"), Body::Memory(vec![Bytes::from(vec![7; 1000])]), EXPECTED);
            async { timeout(LONG, receiver.unwrap()).await.expect("an end").ok() }
        };
        let sent: Vec<_> = (0..200).map(send).collect();
        for one in sent {
            assert_eq!(body_of(one.await), "hi");
        }
        assert_eq!(client.answers.load(Ordering::Relaxed), 200);
        assert!((1..=most).contains(&client.opened.load(Ordering::Relaxed)));
    }
}

#[tokio::test]
async fn an_answer_may_end_with_the_connection() {
    for options in [small(1), always()] {
        let client = client(options, |mut stream, _| async move {
            read_request(&mut stream, &mut Vec::new()).await?;
            for part in ["HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n", "as long ", "as it lasts"] {
                stream.write_all(part.as_bytes()).await?;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
        .await;
        assert_eq!(body_of(exchange(&client, "/", vec![]).await), "as long as it lasts");
        assert_eq!(body_of(exchange(&client, "/", vec![]).await), "as long as it lasts", "and the next one elsewhere");
    }
}

#[tokio::test]
async fn a_request_that_came_while_the_path_was_full_is_sent_once_there_is_room() {
    // The first body is read in two steps, and answered with the second one.
    let (has_begun, goes_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (second_came, steps) = (Arc::new(Notify::new()), (Arc::clone(&has_begun), Arc::clone(&goes_on)));
    let client = client(small(2), move |mut stream, number| {
        let ((has_begun, goes_on), second_came) = (steps.clone(), Arc::clone(&second_came));
        async move {
            let mut inbox = Vec::new();
            if number > 0 {
                second_came.notify_one();
                return serve_all(stream).await;
            }
            read_request(&mut stream, &mut inbox).await?;
            stream.write_all(FINE).await?;
            stream.read_buf(&mut inbox).await?;
            has_begun.notify_one();
            goes_on.notified().await;
            read_request(&mut stream, &mut inbox).await?;
            second_came.notified().await;
            stream.write_all(FINE).await
        }
    })
    .await;
    let send = |bytes| client.send("/".to_owned(), Body::Memory(vec![Bytes::from(vec![7; bytes])]), EXPECTED).unwrap();
    let answered = async |sent: oneshot::Receiver<_>| body_of(timeout(LONG, sent).await.expect("an answer").ok());
    assert_eq!(answered(send(10)).await, "hi");
    let first = send(8 << 20);
    timeout(LONG, has_begun.notified()).await.expect("it begins");
    let second = send(8 << 20);
    goes_on.notify_one();
    assert_eq!(answered(second).await, "hi");
    assert_eq!(answered(first).await, "hi");
}

#[tokio::test]
async fn the_time_of_a_server_is_not_the_paths() {
    const TURN: Duration = Duration::from_millis(50);
    for (options, closes) in [(small(1), true), (small(1), false), (always(), true), (always(), false)] {
        let client = client(options, move |mut stream, _| async move {
            let mut inbox = Vec::new();
            while read_request(&mut stream, &mut inbox).await? {
                tokio::time::sleep(TURN).await;
                stream.write_all(if closes { CLOSING } else { FINE }).await?;
                if closes {
                    break;
                }
            }
            Ok(())
        })
        .await;
        for _ in 0..4 {
            assert_eq!(body_of(exchange(&client, "/", vec![]).await), "hi");
        }
        let at_server = Duration::from_micros(client.latency_us.load(Ordering::Relaxed) as u64);
        assert!(at_server >= TURN * 4 * 7 / 10, "{at_server:?}, closing: {closes}");
    }
}

#[tokio::test]
async fn a_refusal_is_read_before_the_error_of_a_write() {
    for options in [small(1), always()] {
        let client = client(options, |mut stream, _| async move {
            // The body is not read: what of it comes after the close is answered by a reset.
            stream.read_exact(&mut [0; 20_000]).await?;
            stream.write_all(b"HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno").await
        })
        .await;
        for round in 0..10 {
            let body = vec![Bytes::from(vec![1; 4 << 20])];
            let answer = exchange(&client, "/", body).await.expect("not given up").expect("an answer");
            assert_eq!((answer.head.status, &answer.body[..]), (403, &b"no"[..]), "{round}");
        }
    }
}

#[tokio::test]
async fn what_a_broken_connection_carried_is_sent_again_or_fails() {
    let breaks = |mut stream: TcpStream, number| async move {
        let mut inbox = Vec::new();
        read_request(&mut stream, &mut inbox).await?;
        if number > 0 {
            stream.write_all(FINE).await?;
            return serve_all(stream).await;
        }
        Ok(())
    };
    let again = client(always(), breaks).await;
    let answer = exchange(&again, "/", vec![]).await.expect("not given up").expect("an answer");
    assert_eq!((answer.times_sent, again.given_up()), (2, None));
    let fails = client(small(1), breaks).await;
    let reason = exchange(&fails, "/", vec![]).await.expect("not given up").unwrap_err();
    assert!(reason.contains("closed the connection"), "{reason}");
    assert_eq!(body_of(exchange(&fails, "/", vec![]).await), "hi");
}

#[tokio::test]
async fn a_server_that_says_little_by_little_stalls() {
    let drips = |mut stream: TcpStream, _| async move {
        read_request(&mut stream, &mut Vec::new()).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").await?;
        loop {
            stream.write_all(b"x").await?;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let fails = client(Options { stall_timeout: SHORT, ..small(1) }, drips).await;
    assert!(exchange(&fails, "/", vec![]).await.expect("not given up").unwrap_err().contains("stalled"));
    let given_up = client(Options { stall_timeout: SHORT, ..always() }, drips).await;
    assert!(exchange(&given_up, "/", vec![]).await.is_none());
    assert!(given_up.given_up().expect("given up").reason.contains("stalled"));
    assert_eq!(given_up.opened.load(Ordering::Relaxed), 1, "it had all the time");
    timeout(LONG, given_up.until_given_up()).await.expect("it is told");
}

#[tokio::test]
async fn answers_that_nobody_asked_for_and_long_ones_break_the_connection() {
    for said in [
        [FINE, FINE].concat(),
        b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n".iter().copied().chain([b'x'; 5000]).collect(),
    ] {
        let client = client(small(1), move |mut stream, _| {
            let said = said.clone();
            async move {
                read_request(&mut stream, &mut Vec::new()).await?;
                stream.write_all(&said).await?;
                stream.read_exact(&mut [0; 1]).await.map(|_| ())
            }
        })
        .await;
        // What follows a good answer is no answer to the next request.
        let first = exchange(&client, "/", vec![]).await.expect("not given up");
        let second = exchange(&client, "/", vec![]).await.expect("not given up");
        assert!(first.as_ref().is_ok_and(|answer| answer.body == "hi") || first.is_err());
        assert!(second.as_ref().is_ok_and(|answer| answer.body == "hi") || second.is_err());
        assert!(client.opened.load(Ordering::Relaxed) >= 2, "the connection is of no further use");
    }
}

#[tokio::test]
async fn the_whole_that_is_sent_for_a_range_is_cut_or_streamed() {
    for options in [small(1), always()] {
        let client = client(options, |mut stream, _| async move {
            let mut inbox = Vec::new();
            while read_request(&mut stream, &mut inbox).await? {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 500000\r\n\r\n").await?;
                stream.write_all(&[b'x'; 500_000]).await?;
            }
            Ok(())
        })
        .await;
        let ask = |expected| client.send("/".into(), Body::Memory(vec![]), expected).unwrap();
        let range = || Expected { is_range: true, ..EXPECTED };
        let cut = timeout(LONG, ask(range())).await.unwrap().unwrap().unwrap();
        assert_eq!((cut.head.status, cut.is_cut, cut.body.len(), cut.pieces.len()), (200, true, 0, 0));
        let (sender, mut arriving) = tokio::sync::mpsc::channel(1);
        let answer = ask(Expected { stream: Some(sender), ..EXPECTED });
        assert!(matches!(arriving.recv().await, Some(Streamed::Head(head)) if head.content_length == Some(500_000)));
        let mut bytes = 0;
        while let Some(Streamed::Data(data)) = arriving.recv().await {
            bytes += data.len();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let answer = timeout(LONG, answer).await.unwrap().unwrap().unwrap();
        assert_eq!((bytes, answer.body.len(), answer.is_cut), (500_000, 0, false));
        // Whose taker is gone, that is not read to its end.
        let (sender, arriving) = tokio::sync::mpsc::channel(1);
        drop(arriving);
        assert!(timeout(LONG, ask(Expected { stream: Some(sender), ..EXPECTED })).await.unwrap().is_err());
        assert!(timeout(LONG, ask(range())).await.unwrap().unwrap().unwrap().is_cut, "others go on");
    }
}

#[tokio::test]
async fn small_pieces_of_a_streamed_answer_arrive_before_its_end() {
    let go_on = Arc::new(tokio::sync::Notify::new());
    let served = go_on.clone();
    let client = client(small(1), move |mut stream, _| {
        let go_on = served.clone();
        async move {
            read_request(&mut stream, &mut Vec::new()).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 65536\r\n\r\n").await?;
            for piece in 0..64 {
                if piece == 48 {
                    go_on.notified().await;
                }
                stream.write_all(&[b'x'; 1024]).await?;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(())
        }
    })
    .await;
    let (sender, mut arriving) = tokio::sync::mpsc::channel(1);
    let answer = client.send("/".into(), Body::Memory(vec![]), Expected { stream: Some(sender), ..EXPECTED }).unwrap();
    let mut bytes = 0;
    while let Some(streamed) = timeout(LONG, arriving.recv()).await.expect("the next piece") {
        if let Streamed::Data(data) = streamed {
            bytes += data.len();
            // The rest comes only after this.
            go_on.notify_one();
        }
    }
    assert_eq!(bytes, 65_536);
    assert!(timeout(LONG, answer).await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn connections_end_with_the_last_client() {
    let (ended, mut told) = tokio::sync::mpsc::unbounded_channel();
    let client = client(always(), move |stream, _| {
        let ended = ended.clone();
        async move {
            serve_all(stream).await?;
            _ = ended.send(());
            Ok(())
        }
    })
    .await;
    let receiver = client.send("/".into(), Body::Memory(vec![]), EXPECTED).unwrap();
    drop(client);
    assert!(timeout(LONG, receiver).await.unwrap().unwrap().is_ok(), "what was sent is answered");
    timeout(LONG / 2, told.recv()).await.expect("the connection ends").unwrap();
}

/// Lengths of the records with application data that a client sends.
async fn records_of(options: Options, body: Vec<Bytes>) -> Vec<usize> {
    let authority = Authority::new();
    let acceptor = authority.certify("localhost", (2020, 2090)).acceptor(&[]);
    let (listener, address) = listen().await;
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    tokio::spawn(async move {
        let (mut outer, _) = listener.accept().await.unwrap();
        let (near, far) = tokio::io::duplex(1 << 20);
        tokio::spawn(async move { serve_all(acceptor.accept(far).await?).await });
        let (mut from_server, mut to_server) = tokio::io::split(near);
        let (mut from_client, mut to_client) = outer.split();
        let up = async {
            let mut piece = vec![0; 64 << 10];
            while let Ok(count @ 1..) = from_client.read(&mut piece).await {
                record.lock().unwrap().extend_from_slice(&piece[..count]);
                to_server.write_all(&piece[..count]).await?;
            }
            Ok::<(), io::Error>(())
        };
        _ = tokio::join!(up, tokio::io::copy(&mut from_server, &mut to_client));
    });
    let tls = Tls::new(Trust::Only(authority.authorities()));
    let connect = ConnectOptions { tls, ..ConnectOptions::default() };
    let client = Client::new(plain(address.port(), Scheme::Https), Options { connect, ..options });
    assert_eq!(body_of(exchange(&client, "/", body).await), "hi");
    let bytes = seen.lock().unwrap().clone();
    let (mut at, mut lengths) = (0, Vec::new());
    while let Some(head) = bytes.get(at..at + 5) {
        let length = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if head[0] == 23 {
            lengths.push(length);
        }
        at += 5 + length;
    }
    lengths
}

#[tokio::test]
async fn small_pieces_share_a_record_of_tls() {
    for options in [small(1), always()] {
        let records = records_of(options, vec![Bytes::from(vec![5; 5000]), Bytes::from(vec![6; 5000])]).await;
        // The first one is the end of the handshake.
        assert_eq!(records.len(), 2, "{records:?}");
        assert!(records[1] > 10_000, "head and body: {records:?}");
    }
}

/// A planner asks the store from the runtime of its queue, which ends before the run does. Connections that were opened for
/// these requests must not go with it: others count on them.
#[test]
fn a_runtime_that_ends_takes_no_connection_along() {
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let own = runtime();
    let (listener, address) = own.block_on(listen());
    own.spawn(accept(listener, |stream, _| serve_all(stream)));
    let made = || Client::new(plain(address.port(), Scheme::Http), small(4));
    let ask = async |client: &Client<Plain>| assert_eq!(body_of(exchange(client, "/", vec![]).await), "hi");
    let outside = made();
    own.block_on(ask(&outside));
    for client in [own.block_on(async { made() }), outside.beside(plain(address.port(), Scheme::Http)), outside] {
        let passing = runtime();
        passing.block_on(async { tokio::join!(ask(&client), ask(&client), ask(&client)) });
        drop(passing);
        own.block_on(async { timeout(SHORT, ask(&client)).await.expect("a connection takes it") });
    }
}
