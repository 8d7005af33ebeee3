//! Each fault of the test server, seen on the wire.

// A test that cannot set up its world has failed; a panic says so best.
#![allow(clippy::unwrap_used)]

use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use fullbore_testkit::{
    random::content_vec,
    server::{Fault, FaultRule, Life, PathMatch, Server, TestCa, TlsSpec},
};

const BIG_BYTES: u64 = 300_000;
/// Whatever takes longer does not end.
const LONGEST: Duration = Duration::from_secs(60);

fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::create_dir(directory.path().join("pool")).unwrap();
    for name in ["a", "b", "a+b~1:2"] {
        std::fs::write(directory.path().join("pool").join(name), name).unwrap();
    }
    std::fs::write(directory.path().join("pool/big"), big()).unwrap();
    directory
}

fn big() -> Vec<u8> {
    content_vec(1, "big", BIG_BYTES)
}

fn server(root: &Path, fault: Option<Fault>) -> Server {
    let mut builder = Server::builder(root);
    if let Some(fault) = fault {
        builder = builder.fault(FaultRule::pool(1.0, fault));
    }
    builder.start().unwrap()
}

struct Client(TcpStream, Vec<u8>);

struct Seen {
    status: u16,
    head: String,
    body: Vec<u8>,
}

impl Client {
    fn new(address: SocketAddr) -> Client {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LONGEST)).unwrap();
        Client(stream, Vec::new())
    }

    fn ask(&mut self, path: &str, fields: &str) {
        self.0.write_all(format!("GET {path} HTTP/1.1\r\nHost: t\r\n{fields}\r\n").as_bytes()).unwrap();
    }

    fn more(&mut self) -> std::io::Result<usize> {
        let mut buffer = [0; 65536];
        let n = self.0.read(&mut buffer)?;
        self.1.extend_from_slice(&buffer[..n]);
        Ok(n)
    }

    /// As `more`, of what does not end here.
    fn some(&mut self) -> usize {
        let n = self.more().unwrap();
        assert!(n > 0, "closed");
        n
    }

    fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        while self.more()? > 0 {}
        Ok(std::mem::take(&mut self.1))
    }

    fn head(&mut self) -> (u16, String) {
        let end = loop {
            if let Some(at) = self.1.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            assert!(self.more().unwrap() > 0, "closed in the head: {:?}", String::from_utf8_lossy(&self.1));
        };
        let head = String::from_utf8(self.1.drain(..end).collect()).unwrap();
        (head[9..12].parse().unwrap(), head)
    }

    fn answer(&mut self) -> Seen {
        let (status, head) = self.head();
        let length =
            head.lines().find_map(|line| line.strip_prefix("Content-Length: ")).map_or(0, |n| n.parse().unwrap());
        while self.1.len() < length {
            assert!(self.more().unwrap() > 0, "closed in the body");
        }
        Seen { status, head, body: self.1.drain(..length).collect() }
    }

    fn closed(&mut self) -> bool {
        matches!(self.more(), Ok(0))
    }
}

fn get(server: &Server, path: &str, fields: &str) -> Seen {
    let mut client = Client::new(server.address());
    client.ask(path, fields);
    client.answer()
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let tree = tree();
    let server = server(tree.path(), None);
    let mut client = Client::new(server.address());
    for path in ["/pool/a", "/pool/big", "/pool/none", "/pool/a%2Bb~1%3A2", "/pool/../pool/a", "http://h/pool/b"] {
        client.ask(path, "");
    }
    let statuses: Vec<(u16, usize)> =
        (0..6).map(|_| client.answer()).map(|seen| (seen.status, seen.body.len())).collect();
    assert_eq!(statuses, [(200, 1), (200, BIG_BYTES as usize), (404, 10), (200, 7), (404, 10), (200, 1)]);
    let log = server.log();
    assert_eq!(log[3].path, "/pool/a+b~1:2");
    assert_eq!(
        log.iter().map(|entry| (entry.connection, entry.number)).collect::<Vec<_>>(),
        (1..=6).map(|n| (1, n)).collect::<Vec<_>>()
    );
    assert_eq!(server.counters().requests, 6);
}

#[test]
fn ranges_and_conditions_are_obeyed() {
    let tree = tree();
    let server = server(tree.path(), None);
    let seen = get(&server, "/pool/big", "Range: bytes=100-199\r\n");
    assert_eq!((seen.status, &seen.body[..]), (206, &big()[100..200]));
    assert!(seen.head.contains("Content-Range: bytes 100-199/300000\r\n"));
    let tag = seen.head.lines().find_map(|line| line.strip_prefix("ETag: ")).unwrap().to_string();
    assert_eq!(get(&server, "/pool/big", &format!("If-None-Match: {tag}\r\n")).status, 304);
    assert_eq!(get(&server, "/pool/big", &format!("Range: bytes=5-\r\nIf-Range: {tag}\r\n")).status, 206);
    assert_eq!(get(&server, "/pool/big", "Range: bytes=5-\r\nIf-Range: \"other\"\r\n").status, 200);
    assert_eq!(get(&server, "/pool/big", "Range: bytes=300000-\r\n").status, 416);
    server.change(|behaviour| behaviour.ranges = false);
    assert_eq!(get(&server, "/pool/big", "Range: bytes=5-\r\n").status, 200);
}

#[test]
fn faults_answer_with_their_status_and_fields() {
    let tree = tree();
    for (fault, status, text) in [
        (Fault::Status(503), 503, ""),
        (Fault::RetryAfter { status: 429, seconds: 7 }, 429, "Retry-After: 7\r\n"),
        (Fault::Portal, 200, "text/html"),
        (Fault::Redirect("http://other:1/x/".into()), 302, "Location: http://other:1/x/pool/big\r\n"),
        (Fault::RedirectLoop, 302, "Location: /pool/big\r\n"),
        (Fault::RedirectInjection, 302, "Location: /pool/big%0A%0A201"),
        (Fault::NotModified, 304, ""),
        (Fault::GzipEncoding, 200, "Content-Encoding: x-gzip\r\n"),
        (Fault::BigHeader(70_000), 200, "X-Big: xxxx"),
        (Fault::Body(Arc::from(&b"hello"[..])), 200, "Content-Length: 5\r\n"),
    ] {
        let server = server(tree.path(), Some(fault.clone()));
        let seen = get(&server, "/pool/big", "");
        assert_eq!(seen.status, status, "{fault:?}");
        assert!(seen.head.contains(text), "{fault:?}: {}", seen.head);
        assert_eq!(server.log()[0].fault, fault.name());
    }
}

#[test]
fn bodies_are_broken_as_each_fault_says() {
    let tree = tree();
    let read = |fault: Fault, fields: &str| {
        let server = server(tree.path(), Some(fault));
        let mut client = Client::new(server.address());
        client.ask("/pool/big", fields);
        let (status, head) = client.head();
        (status, head, client.rest())
    };
    assert_eq!(read(Fault::Reset, "").2.unwrap_err().kind(), ErrorKind::ConnectionReset);
    assert!(read(Fault::Truncate, "").2.unwrap().len() < BIG_BYTES as usize);
    let (_, head, body) = read(Fault::UntilClose, "");
    assert_eq!(body.unwrap(), big());
    assert!(!head.contains("Content-Length") && head.contains("Connection: close"));
    let (_, head, body) = read(Fault::Http10, "");
    assert!(head.starts_with("HTTP/1.0 200 ") && body.unwrap() == big());
    let (_, _, body) = read(Fault::Close, "");
    assert_eq!(body.unwrap(), big());
    let (_, head, body) = read(Fault::Chunked, "Connection: close\r\n");
    let body = body.unwrap();
    assert!(head.contains("Transfer-Encoding: chunked") && body.ends_with(b"0\r\nX-Trailer: end\r\n\r\n"));
    for (fault, more) in [(Fault::ShortLength, false), (Fault::LongLength, true)] {
        let (_, head, body) = read(fault, "Connection: close\r\n");
        let length: u64 = head.split_once("Content-Length: ").unwrap().1.split_once('\r').unwrap().0.parse().unwrap();
        assert!(if more { length > BIG_BYTES } else { length < BIG_BYTES });
        assert_eq!(body.unwrap(), big());
    }
    let wrong = |a: &[u8], b: &[u8]| a.iter().zip(b).filter(|(a, b)| a != b).count();
    let (_, _, body) = read(Fault::Corrupt, "Connection: close\r\n");
    let differing = wrong(&body.unwrap(), &big());
    assert!((1..=3).contains(&differing), "{differing}");
    assert_eq!(read(Fault::CorruptRanges, "Connection: close\r\n").2.unwrap(), big());
    let part = "Range: bytes=1000-1999\r\nConnection: close\r\n";
    assert_ne!(read(Fault::CorruptRanges, part).2.unwrap(), &big()[1000..2000]);
    let (status, head, body) = read(Fault::WrongRange, part);
    assert!(status == 206 && !head.contains("bytes 1000-1999") && body.unwrap() != big()[1000..2000]);
    let (_, head, body) = read(Fault::LyingRange, part);
    assert!(head.contains("bytes 1000-1999") && body.unwrap() != big()[1000..2000]);
    assert_eq!(read(Fault::IgnoreRange, part).0, 200);
}

#[test]
fn a_server_hangs_stalls_drips_or_never_ends() {
    let tree = tree();
    for (fault, bytes) in [(Fault::Hang, 0..1), (Fault::Stall, 140_000..160_000)] {
        let server = server(tree.path(), Some(fault));
        let mut client = Client::new(server.address());
        client.ask("/pool/big", "");
        let mut total = 0;
        while total < bytes.start {
            total += client.some();
        }
        client.0.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while let Ok(n) = client.more() {
            assert!(n > 0, "closed");
            total += n;
        }
        assert!(bytes.contains(&total), "{total}");
    }
    let endless = server(tree.path(), Some(Fault::Endless));
    let mut client = Client::new(endless.address());
    client.ask("/pool/big", "");
    let mut total = 0;
    while total < 1_000_000 {
        total += client.some();
    }
    let drips = server(tree.path(), Some(Fault::Drip(1000)));
    let mut client = Client::new(drips.address());
    let start = Instant::now();
    client.ask("/pool/big", "");
    let mut total = 0;
    while start.elapsed() < Duration::from_millis(500) {
        total += client.some();
    }
    assert!((total as f64) < 4000.0 * start.elapsed().as_secs_f64(), "{total} in {:?}", start.elapsed());
}

#[test]
fn keepalive_closes_after_k_answers_with_and_without_notice() {
    let tree = tree();
    let server = Server::builder(tree.path()).behaviour(|b| b.requests_per_connection = Some(3)).start().unwrap();
    for announced in [true, false] {
        server.change(|behaviour| behaviour.announce_close = announced);
        let mut client = Client::new(server.address());
        for _ in 0..10 {
            client.ask("/pool/a", "");
        }
        let heads: Vec<String> = (0..3).map(|_| client.answer().head).collect();
        assert_eq!(heads[2].contains("Connection: close"), announced);
        assert!(!heads[1].contains("Connection: close") && client.closed());
    }
}

#[test]
fn delay_does_not_stop_the_pipeline() {
    let tree = tree();
    let server = Server::builder(tree.path()).behaviour(|b| b.delay = Duration::from_millis(100)).start().unwrap();
    let mut client = Client::new(server.address());
    let start = Instant::now();
    for _ in 0..20 {
        client.ask("/pool/a", "");
    }
    for _ in 0..20 {
        assert_eq!(client.answer().body, b"a");
    }
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(100) && took < Duration::from_secs(5), "{took:?}");
}

#[test]
fn permuted_answers_carry_the_wrong_body() {
    let tree = tree();
    let server = Server::builder(tree.path()).behaviour(|b| b.permute = true).start().unwrap();
    let mut client = Client::new(server.address());
    client.ask("/pool/a", "");
    client.ask("/pool/b", "");
    assert_eq!((client.answer().body, client.answer().body), (b"b".to_vec(), b"a".to_vec()));
}

#[test]
fn the_rate_is_shared_by_all_connections() {
    let tree = tree();
    let server = Server::builder(tree.path()).behaviour(|b| b.rate_bytes_per_s = Some(1_500_000)).start().unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(get(&server, "/pool/big", "").body, big()));
        }
    });
    let took = start.elapsed();
    assert!(took > Duration::from_millis(330) && took < Duration::from_secs(6), "{took:?}");
    assert_eq!(server.counters().max_open_connections, 2);
}

#[test]
fn a_server_dies_in_the_middle_and_comes_back() {
    let tree = tree();
    let server = Server::builder(tree.path()).behaviour(|b| b.die_after_bytes = Some(100_000)).start().unwrap();
    let mut client = Client::new(server.address());
    client.ask("/pool/big", "");
    assert!(client.rest().is_err());
    assert_eq!(server.life(), Life::Refusing);
    let died = Instant::now();
    while TcpStream::connect(server.address()).is_ok() {
        assert!(died.elapsed() < LONGEST, "it still listens");
    }
    // It knows by itself that the port is closed when this returns.
    server.live(Life::Refusing);
    server.change(|behaviour| behaviour.die_after_bytes = None);
    server.live(Life::Alive);
    assert_eq!(get(&server, "/pool/a", "").body, b"a");
    server.live(Life::Silent);
    let mut client = Client::new(server.address());
    client.0.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    client.ask("/pool/a", "");
    assert!(client.more().is_err());
}

#[test]
fn draws_depend_on_the_seed_and_roots_switch() {
    let (tree, other) = (tree(), tree());
    std::fs::write(other.path().join("pool/a"), "another").unwrap();
    let outcomes = |seed: u64| -> Vec<u16> {
        let server = Server::builder(tree.path())
            .behaviour(|b| b.seed = seed)
            .fault(FaultRule::pool(0.5, Fault::Status(500)))
            .start()
            .unwrap();
        (0..20).map(|_| get(&server, "/pool/a", "").status).collect()
    };
    assert_eq!(outcomes(1), outcomes(1));
    assert_ne!(outcomes(1), outcomes(2));
    let server = Server::builder(tree.path())
        .fault(FaultRule::once(PathMatch::Suffix("/b".into()), Fault::Status(404)))
        .start()
        .unwrap();
    assert_eq!((get(&server, "/pool/b", "").status, get(&server, "/pool/b", "").status), (404, 200));
    server.switch_root(other.path());
    assert_eq!(get(&server, "/pool/a", "").body, b"another");
}

#[test]
fn the_server_speaks_tls_and_http2() {
    let tree = tree();
    let authority = TestCa::new().unwrap();
    let server = Server::builder(tree.path())
        .tls(&authority, &TlsSpec::default())
        .unwrap()
        .fault(FaultRule::always(PathMatch::Suffix("/b".into()), Fault::Status(404)))
        .start()
        .unwrap();
    let ca = tree.path().join("ca.pem");
    std::fs::write(&ca, authority.pem()).unwrap();
    let curl = |protocol: &str, name: &str| {
        std::process::Command::new("curl")
            .args([
                "--silent",
                "--show-error",
                protocol,
                "--write-out",
                "%{http_version} %{http_code}",
                "--output",
                "/dev/null",
            ])
            .arg("--cacert")
            .arg(&ca)
            .arg(format!("{}/pool/{name}", server.url()))
            .output()
            .expect("curl does not run: apt-get install curl")
    };
    let said = |output: std::process::Output| String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(said(curl("--http2", "big")), "2 200");
    assert_eq!(said(curl("--http2", "b")), "2 404");
    assert_eq!(said(curl("--http1.1", "big")), "1.1 200");
    assert_eq!(server.log().iter().filter(|entry| entry.http2).count(), 2);
    assert_eq!(server.log()[0].body_bytes, BIG_BYTES);
}
