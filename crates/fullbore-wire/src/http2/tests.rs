use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

use super::*;
use crate::range::{ByteRange, ContentRange};

fn get(path: &str) -> RequestHead {
    RequestHead::get("mirror.example.org", path)
}

/// A client whose driver runs; the handle gives the end of the connection.
async fn spawn(stream: DuplexStream) -> (Http2, JoinHandle<Result<(), Http2Error>>) {
    let (client, driver) = Http2::start(stream, Scheme::Https).await.unwrap();
    (client, tokio::spawn(driver))
}

/// A client and the bytes its server sees.
async fn raw() -> (Http2, JoinHandle<Result<(), Http2Error>>, RawServer) {
    let (near, far) = tokio::io::duplex(1 << 20);
    let (client, driver) = spawn(near).await;
    let mut server = RawServer(far);
    let mut preface = [0; 24];
    server.0.read_exact(&mut preface).await.unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    (client, driver, server)
}

/// Speaks in frames (RFC 9113, section 4.1), so that it can do what no proper server library does.
struct RawServer(DuplexStream);

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
/// `:status: 200` by the static table of RFC 7541.
const STATUS_200: &[u8] = &[0x88];

impl RawServer {
    async fn read(&mut self) -> (u8, u32, Vec<u8>) {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.0.read_exact(&mut payload).await.unwrap();
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
        (head[3], stream, payload)
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = (payload.len() as u32).to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.0.write_all(&frame).await.unwrap();
    }

    async fn await_requests(&mut self, mut requests: usize) {
        while requests > 0 {
            requests -= usize::from(self.read().await.0 == HEADERS);
        }
    }
}

#[tokio::test]
async fn large_windows_are_advertised() {
    let (_client, _driver, mut server) = raw().await;
    let (kind, stream, payload) = server.read().await;
    assert_eq!((kind, stream), (SETTINGS, 0));
    let settings: Vec<(u16, u32)> = payload
        .chunks(6)
        .map(|entry| {
            let value = u32::from_be_bytes([entry[2], entry[3], entry[4], entry[5]]);
            (u16::from_be_bytes([entry[0], entry[1]]), value)
        })
        .collect();
    // ENABLE_PUSH, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE.
    for expected in [(2, 0), (4, 16 << 20), (5, 256 << 10), (6, 32 << 10)] {
        assert!(settings.contains(&expected), "{settings:?}");
    }
    server.write(SETTINGS, 0, 0, &[]).await;
    loop {
        let (kind, stream, payload) = server.read().await;
        if kind == WINDOW_UPDATE {
            assert_eq!((stream, payload), (0, ((16_u32 << 20) - 65_535).to_be_bytes().to_vec()));
            break;
        }
    }
}

#[tokio::test]
async fn goaway_leaves_later_streams_unanswered_and_earlier_ones_alive() {
    let (mut client, driver, mut server) = raw().await;
    server.write(SETTINGS, 0, 0, &[]).await;
    let mut answers = Vec::new();
    for path in ["/a", "/b", "/c"] {
        client.ready().await.unwrap();
        answers.push(client.send(&get(path)).unwrap());
    }
    server.await_requests(3).await;
    server.write(HEADERS, END_HEADERS, 1, STATUS_200).await;
    server.write(DATA, 0, 1, b"half ").await;
    server.write(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).await;

    let mut answers = answers.into_iter();
    let (head, mut body) = answers.next().unwrap().await.unwrap();
    assert_eq!(head.status, 200);
    for answer in answers {
        let error = answer.await.unwrap_err();
        assert!(matches!(error, Http2Error::GoneAway { reason: Reason::NO_ERROR }), "{error}");
    }
    let error = client.ready().await.unwrap_err();
    assert!(matches!(error, Http2Error::GoneAway { .. }), "{error:?}");
    server.write(DATA, END_STREAM, 1, b"and half").await;
    assert_eq!(body.chunk().await.unwrap().unwrap(), "half ");
    assert_eq!(body.chunk().await.unwrap().unwrap(), "and half");
    assert_eq!(body.chunk().await.unwrap(), None);
    drop((client, body, server));
    driver.await.unwrap().unwrap();
}

/// Our acknowledgement of its settings cannot be written any more when they are read.
#[tokio::test]
async fn goaway_is_heard_although_a_write_fails_first() {
    for says_goodbye in [true, false] {
        let (mut client, driver, mut server) = raw().await;
        let mut answers = Vec::new();
        for path in ["/a", "/b", "/c"] {
            client.ready().await.unwrap();
            answers.push(client.send(&get(path)).unwrap());
        }
        server.await_requests(3).await;
        server.write(SETTINGS, 0, 0, &[]).await;
        server.write(HEADERS, END_HEADERS, 1, STATUS_200).await;
        server.write(DATA, END_STREAM, 1, b"all").await;
        if says_goodbye {
            server.write(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]).await;
        }
        drop(server);
        let mut answers = answers.into_iter();
        let (_, mut body) = answers.next().unwrap().await.unwrap();
        assert_eq!(body.chunk().await.unwrap().unwrap(), "all");
        for answer in answers {
            let error = answer.await.unwrap_err();
            let is_goodbye = matches!(error, Http2Error::GoneAway { reason: Reason::NO_ERROR });
            assert!(is_goodbye == says_goodbye && (is_goodbye || matches!(error, Http2Error::Io(_))), "{error}");
        }
        drop((client, body));
        assert_eq!(driver.await.unwrap().is_ok(), says_goodbye);
    }
}

#[tokio::test]
async fn refused_and_reset_streams_differ_and_harm_no_other() {
    let (mut client, _driver, mut server) = raw().await;
    server.write(SETTINGS, 0, 0, &[]).await;
    let mut answers = Vec::new();
    for path in ["/refused", "/reset", "/short", "/fine"] {
        client.ready().await.unwrap();
        answers.push(client.send(&get(path)).unwrap());
    }
    server.await_requests(4).await;
    server.write(RST_STREAM, 0, 1, &7_u32.to_be_bytes()).await;
    server.write(HEADERS, END_HEADERS, 3, STATUS_200).await;
    server.write(DATA, 0, 3, b"some").await;
    server.write(RST_STREAM, 0, 3, &2_u32.to_be_bytes()).await;
    // Content-Length: 9, by name 28 of the static table, then 4 bytes.
    server.write(HEADERS, END_HEADERS, 5, &[0x88, 0x5c, 0x01, b'9']).await;
    server.write(DATA, END_STREAM, 5, b"some").await;
    server.write(HEADERS, END_HEADERS | END_STREAM, 7, STATUS_200).await;

    let mut answers = answers.into_iter();
    let mut next = || answers.next().unwrap();
    let error = next().await.unwrap_err();
    assert!(matches!(error, Http2Error::Refused), "{error}");
    let cut = next();
    let cut = async {
        let (_, mut body) = cut.await?;
        while body.chunk().await?.is_some() {}
        Ok::<(), Http2Error>(())
    };
    let error = cut.await.unwrap_err();
    assert!(matches!(error, Http2Error::Reset { reason: Reason::INTERNAL_ERROR }), "{error}");
    let short = next();
    let short = async {
        let (head, mut body) = short.await?;
        assert_eq!(head.content_length, Some(9));
        while body.chunk().await?.is_some() {}
        Ok::<(), Http2Error>(())
    };
    let error = short.await.unwrap_err();
    assert!(matches!(error, Http2Error::Protocol { .. }), "{error:?}");
    let (head, mut body) = next().await.unwrap();
    assert!(head.status == 200 && body.chunk().await.unwrap().is_none());
}

#[tokio::test]
async fn a_broken_connection_and_one_without_http2_are_errors() {
    let (mut client, driver, server) = raw().await;
    client.ready().await.unwrap();
    let answer = client.send(&get("/a")).unwrap();
    drop(server);
    let error = answer.await.unwrap_err();
    assert!(matches!(error, Http2Error::Io(_)), "{error:?}");
    assert!(driver.await.unwrap().is_err());

    let (mut client, driver, mut server) = raw().await;
    client.ready().await.unwrap();
    let answer = client.send(&get("/a")).unwrap();
    server.0.write_all(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n").await.unwrap();
    assert!(!matches!(answer.await.unwrap_err(), Http2Error::GoneAway { .. } | Http2Error::Refused));
    assert!(driver.await.unwrap().is_err());
}

type Respond = h2::server::SendResponse<Bytes>;

/// A client, and a server that hands each request to `serve` in a task of its own.
async fn served<F, Fut>(builder: &h2::server::Builder, serve: F) -> (Http2, JoinHandle<()>)
where
    F: Fn(http::Request<RecvStream>, Respond) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let (near, far) = tokio::io::duplex(1 << 20);
    let builder = builder.clone();
    let server = tokio::spawn(async move {
        let mut connection = builder.handshake(far).await.unwrap();
        while let Some(request) = connection.accept().await {
            let Ok((request, respond)) = request else {
                return;
            };
            tokio::spawn(serve(request, respond));
        }
    });
    let (client, _) = spawn(near).await;
    (client, server)
}

async fn send_body(respond: &mut Respond, bytes: usize) {
    let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
    let mut left = bytes;
    while left > 0 {
        stream.reserve_capacity(left);
        let Some(Ok(room)) = poll_fn(|cx| stream.poll_capacity(cx)).await else {
            return;
        };
        let now = room.min(left).min(1 << 20);
        left -= now;
        if stream.send_data(Bytes::from(vec![b'x'; now]), left == 0).is_err() {
            return;
        }
    }
}

/// `None` if it is not done although all others have had their turns. They run on this one thread and without
/// sockets, so that nothing depends on time.
async fn quiet<T>(future: impl Future<Output = T>) -> Option<T> {
    let turns = async {
        for _ in 0..1000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        biased;
        done = future => Some(done),
        () = turns => None,
    }
}

#[tokio::test]
async fn the_server_waits_for_what_has_not_been_released() {
    const BODY: usize = 20 << 20;
    let (mut client, server) = served(&h2::server::Builder::new(), |_, mut respond| async move {
        send_body(&mut respond, BODY).await;
    })
    .await;
    client.ready().await.unwrap();
    let (_, mut body) = client.send(&get("/large")).unwrap().await.unwrap();
    let mut release = body.release();
    let mut received = 0;
    while let Some(chunk) = quiet(body.chunk()).await {
        received += chunk.unwrap().unwrap().len();
    }
    assert_eq!(received, STREAM_WINDOW_BYTES as usize);

    // Another file has to wait, as the connection's window is the same size; dropping the
    // first gives everything back.
    client.ready().await.unwrap();
    let (_, mut other) = client.send(&get("/other")).unwrap().await.unwrap();
    assert!(quiet(other.chunk()).await.is_none());
    release.release(received);
    release.release(1); // too much: nothing happens
    drop((body, release));
    let mut release = other.release();
    let mut received = 0;
    while let Some(chunk) = other.chunk().await.unwrap() {
        received += chunk.len();
        release.release(chunk.len());
    }
    assert_eq!(received, BODY);
    drop((client, other, release));
    quiet(server).await.expect("the connection ends when nothing of it is left").unwrap();
}

#[tokio::test]
async fn dropping_an_unreleased_body_gives_its_window_back() {
    let (mut client, _server) = served(&h2::server::Builder::new(), |_, mut respond| async move {
        send_body(&mut respond, 15 << 20).await;
    })
    .await;
    for _ in 0..3 {
        client.ready().await.unwrap();
        let (_, mut body) = client.send(&get("/large")).unwrap().await.unwrap();
        let mut received = 0;
        while received < 14 << 20 {
            received += quiet(body.chunk()).await.expect("window open").unwrap().unwrap().len();
        }
    }
}

#[tokio::test]
async fn the_servers_limit_on_streams_is_kept() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = Arc::clone(&most);
    let mut builder = h2::server::Builder::new();
    builder.max_concurrent_streams(3);
    let (client, _server) = served(&builder, move |_, mut respond| {
        let (running, most) = (Arc::clone(&running), Arc::clone(&seen));
        async move {
            most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, SeqCst);
            send_body(&mut respond, 10).await;
        }
    })
    .await;
    assert_eq!(client.streams_allowed(), STREAMS_BEFORE_SETTINGS);
    let mut requests = tokio::task::JoinSet::new();
    let mut first = client.clone();
    first.ready().await.unwrap();
    first.send(&get("/first")).unwrap().await.unwrap();
    assert_eq!(client.streams_allowed(), 3);
    for _ in 0..12 {
        let mut client = client.clone();
        requests.spawn(async move {
            client.ready().await.unwrap();
            let (_, mut body) = client.send(&get("/file")).unwrap().await.unwrap();
            while body.chunk().await.unwrap().is_some() {}
        });
    }
    while let Some(done) = requests.join_next().await {
        done.unwrap();
    }
    assert_eq!(most.load(SeqCst), 3);
}

#[test]
fn requests_and_answers_are_said_in_both_protocols() {
    let mut request = get("/pool/a%2Bb_1~2.deb?x=1");
    request.host = "mirror.example.org:8443".to_owned();
    request.range = ByteRange::new(5, Some(9));
    request.if_modified_since = Some(784_111_777);
    request.authorization = Some(crate::auth::Authorization::new("Basic c2VjcmV0"));
    request.close = true;
    request.fields = vec![("Cache-Control".to_owned(), "no-cache".to_owned()), ("TE".to_owned(), "x".to_owned())];
    let head = to_http(&request, Scheme::Https, BodyLength::None).unwrap();
    assert_eq!(head.uri(), "https://mirror.example.org:8443/pool/a%2Bb_1~2.deb?x=1");
    let fields: Vec<_> =
        head.headers().iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    for expected in [
        "range: bytes=5-9",
        "if-modified-since: Sun, 06 Nov 1994 08:49:37 GMT",
        "accept-encoding: identity",
        "authorization: Basic c2VjcmV0",
        "cache-control: no-cache",
    ] {
        assert!(fields.iter().any(|field| field == expected), "{fields:?}");
    }
    assert_eq!(fields.len(), 6, "and the user agent: {fields:?}");
    assert!(!format!("{head:?}").contains("c2VjcmV0"));
    let put = RequestHead::new(Method::Put, "h", "/");
    let head = to_http(&put, Scheme::Http, BodyLength::None).unwrap();
    assert_eq!(head.headers()[header::CONTENT_LENGTH], "0");

    let mut fields = HeaderMap::new();
    fields.insert(header::CONTENT_RANGE, HeaderValue::from_static("bytes 5-9/100"));
    fields.insert(header::CONTENT_LENGTH, HeaderValue::from_static("5"));
    fields.insert(header::SERVER, HeaderValue::from_bytes(b"a\xff").unwrap());
    let head = to_head(206, &fields).unwrap();
    assert_eq!((head.status, head.content_length, head.close), (206, Some(5), false));
    let range = ContentRange::Bytes { first: 5, last: 9, complete: Some(100) };
    assert_eq!(head.content_range, Some(range));
    fields.append(header::CONTENT_LENGTH, HeaderValue::from_static("6"));
    assert!(matches!(to_head(206, &fields), Err(Http2Error::Head(_))));
}

#[test]
fn what_cannot_be_said_is_refused_without_its_secrets() {
    let refused = |change: fn(&mut RequestHead)| {
        let mut request = get("/a");
        change(&mut request);
        let error = to_http(&request, Scheme::Https, BodyLength::None).unwrap_err();
        assert!(matches!(error, Http2Error::Request { .. }), "{error}");
        error.to_string()
    };
    refused(|request| request.target = "/a b\n".to_owned());
    refused(|request| request.host = "a b".to_owned());
    refused(|request| request.fields = vec![("a b".to_owned(), String::new())]);
    refused(|request| request.fields = vec![("a".to_owned(), "\r\nb: c".to_owned())]);
    refused(|request| request.method = Method::Connect);
    let secret = refused(|request| {
        request.authorization = Some(crate::auth::Authorization::new("secret\n"));
    });
    assert!(!secret.contains("secret"), "{secret}");
}

/// `:status: 103`, by name 8 of the static table.
const STATUS_103: &[u8] = &[0x08, 3, b'1', b'0', b'3'];

#[tokio::test]
async fn a_few_interim_heads_pass_and_more_are_a_flood() {
    for (interim, passes) in [(0, true), (INFORMATIONAL_MAX, true), (INFORMATIONAL_MAX + 1, false)] {
        let (mut client, _driver, mut server) = raw().await;
        server.write(SETTINGS, 0, 0, &[]).await;
        client.ready().await.unwrap();
        let answer = client.send(&get("/a")).unwrap();
        server.await_requests(1).await;
        for _ in 0..interim {
            server.write(HEADERS, END_HEADERS, 1, STATUS_103).await;
        }
        server.write(HEADERS, END_HEADERS | END_STREAM, 1, STATUS_200).await;
        match answer.await {
            Ok((head, _)) => assert!(passes && head.status == 200, "{interim}"),
            Err(error) => assert!(!passes && error.is_flood(), "{interim}: {error}"),
        }
    }
}

#[tokio::test]
async fn frames_of_one_byte_each_end_the_connection() {
    let (mut client, driver, mut server) = raw().await;
    server.write(SETTINGS, 0, 0, &[]).await;
    client.ready().await.unwrap();
    let answer = client.send(&get("/a")).unwrap();
    server.await_requests(1).await;
    server.write(HEADERS, END_HEADERS, 1, STATUS_200).await;
    let (_, _unread) = answer.await.unwrap();
    // Each costs h2 about 250 bytes of its queue, and the window of 16 MiB allows millions. h2 has a limit of its own.
    let small = [0, 0, 1, DATA, 0, 0, 0, 0, 1, b'x'].repeat(1000);
    let mut written = 0;
    while server.0.write_all(&small).await.is_ok() {
        written += 1;
        assert!(written < 1000, "a million frames of one byte were taken");
    }
    let error = driver.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("excessive load"), "{error}");
}

#[tokio::test]
async fn heads_that_no_request_explains_end_the_connection() {
    let (mut client, driver, mut server) = raw().await;
    server.write(SETTINGS, 0, 0, &[]).await;
    client.ready().await.unwrap();
    // Not polled: the limit holds below h2.
    let _unread = client.send(&get("/a")).unwrap();
    server.await_requests(1).await;
    let head = [&[0, 0, STATUS_103.len() as u8, HEADERS, END_HEADERS, 0, 0, 0, 1], STATUS_103].concat().repeat(1000);
    let mut written = 0;
    while server.0.write_all(&head).await.is_ok() {
        written += 1;
        assert!(written < 1000, "a million heads were taken");
    }
    let error = driver.await.unwrap().unwrap_err();
    assert!(matches!(&error, Http2Error::Io(error) if error.kind() == io::ErrorKind::InvalidData), "{error}");
}
