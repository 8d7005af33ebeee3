//! A storage server in this process that speaks the storage protocol over TLS, keeps shares in memory, and
//! misbehaves as it is told. What it is asked is kept, so that a test can see what was sent and when.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use minicbor::data::Tag;
use minicbor::{Decoder, Encoder};
use rustls::NamedGroup;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use rcgen::PublicKeyData;

/// How a server misbehaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fault {
    #[default]
    None,
    /// Takes connections and says nothing, not even of TLS.
    Mute,
    /// Takes no share and does not say why: full, or read-only.
    Full,
    /// Takes shares below this number only, and has no room for others.
    Takes { below: u16 },
    /// Answers writes from this offset on with this status.
    Write { from: u64, status: u16 },
    /// Says that this write is good, and keeps nothing from here on: the share is never complete.
    Forgets { from: u64 },
    /// Breaks the connection at the first write from this offset on, and takes no other.
    Dies { from: u64 },
    /// From the first write at this offset on nothing is read or answered any more.
    Stalls { from: u64 },
    /// From the first write at this offset on answers come byte by byte, and have no end.
    Drips { from: u64 },
    /// Reads of shares are never answered; everything else is.
    SilentReads,
    /// Answers to reads of shares come byte by byte, and have no end.
    DripsReads,
    /// As `DripsReads`, for what is behind the beginning of a share.
    DripsBlocks,
    /// Answers reads of this share with 500.
    Refuses { share: u16 },
    /// Closes a connection on which nothing was asked for so long.
    ClosesIdle(Duration),
    /// Closes the connection once, at the first write from this offset on, without an answer.
    BreaksOnce { from: u64 },
    /// As `BreaksOnce`, and shares that were not complete are gone after it: the server was started again.
    Restarts { from: u64 },
    /// Ends every connection but the first.
    OneConnection,
    /// So much later each answer comes.
    Delays(Duration),
    /// From now on answers nothing until so many requests have come on a connection.
    Holds { requests: usize },
    /// Closes the connection after each answer to a read, and says so in its head, long before the body.
    ClosesAfterReads,
}

#[derive(Debug, Default)]
pub struct StoredShare {
    pub bytes: Vec<u8>,
    /// Ranges that are there.
    there: Vec<(u64, u64)>,
    pub complete: bool,
}

#[derive(Debug, Default)]
pub struct State {
    pub fault: Fault,
    pub shares: BTreeMap<(String, u16), StoredShare>,
    /// Method and path of each request.
    pub log: Vec<String>,
    /// Ranges that were written: share, from, to.
    pub writes: Vec<(u16, u64, u64)>,
    pub connections: usize,
    /// What the last connection's keys were agreed on by.
    pub key_exchange: Option<NamedGroup>,
    broken: bool,
}

impl State {
    /// Shares that were begun and are not complete.
    pub fn incomplete(&self) -> usize {
        self.shares.values().filter(|share| !share.complete).count()
    }
}

/// A server. It ends with the runtime.
#[derive(Clone)]
pub struct GbsServer {
    pub nurl: String,
    pub state: Arc<Mutex<State>>,
}

struct Request {
    method: String,
    path: String,
    range: Option<(u64, u64)>,
    body: Vec<u8>,
}

enum Act {
    Answer(u16, Vec<u8>),
    Break,
    Hang,
    Drip,
}

impl GbsServer {
    pub async fn start(fault: Fault) -> GbsServer {
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = rcgen::CertificateParams::new(vec!["grid".into()]).unwrap().self_signed(&key).unwrap();
        let pin = URL_SAFE_NO_PAD.encode(digest(&SHA256, &key.subject_public_key_info()));
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(
                vec![CertificateDer::from(certificate.der().to_vec())],
                PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der())),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let nurl = format!("pb://{pin}@127.0.0.1:{}/swissnum#v=1", listener.local_addr().unwrap().port());
        let state = Arc::new(Mutex::new(State { fault, ..State::default() }));
        let server = GbsServer { nurl, state };
        let (own, acceptor) = (server.clone(), TlsAcceptor::from(Arc::new(config)));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (own, acceptor) = (own.clone(), acceptor.clone());
                tokio::spawn(async move { own.serve(stream, acceptor).await });
            }
        });
        server
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Questions for room that came.
    pub fn asked_for_room(&self) -> usize {
        self.state().log.iter().filter(|line| line.starts_with("POST ")).count()
    }

    async fn serve(&self, stream: TcpStream, acceptor: TlsAcceptor) -> Option<()> {
        if self.state().fault == Fault::Mute {
            self.state().connections += 1;
            std::future::pending::<()>().await;
        }
        let mut stream = acceptor.accept(stream).await.ok()?;
        {
            let mut state = self.state();
            if state.broken && matches!(state.fault, Fault::Dies { .. }) {
                return None;
            }
            if state.connections > 0 && state.fault == Fault::OneConnection {
                return None;
            }
            state.connections += 1;
            state.key_exchange = stream.get_ref().1.negotiated_key_exchange_group().map(|group| group.name());
        }
        let mut inbox = Vec::new();
        let (mut requests, mut held) = (0, Vec::new());
        loop {
            let idle = match self.state().fault {
                Fault::ClosesIdle(time) => time,
                _ => Duration::from_secs(3600),
            };
            let request = tokio::time::timeout(idle, read_request(&mut stream, &mut inbox)).await.ok()??;
            match self.act(&request) {
                Act::Answer(206, body) if self.state().fault == Fault::ClosesAfterReads => {
                    let length = body.len();
                    let head = format!("HTTP/1.1 206 X\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n");
                    let (one, two) = body.split_at(length / 2);
                    for part in [head.as_bytes(), one, two] {
                        stream.write_all(part).await.ok()?;
                        stream.flush().await.ok()?;
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    return None;
                }
                Act::Answer(status, body) => {
                    let head = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len());
                    held.extend([head.as_bytes(), &body].concat());
                    let fault = self.state().fault;
                    match fault {
                        Fault::Holds { requests: all } => {
                            requests += 1;
                            if requests < all {
                                continue;
                            }
                        }
                        Fault::Delays(time) => tokio::time::sleep(time).await,
                        _ => {}
                    }
                    stream.write_all(&std::mem::take(&mut held)).await.ok()?;
                    stream.flush().await.ok()?;
                }
                Act::Break => return None,
                Act::Hang => std::future::pending().await,
                Act::Drip => {
                    stream.write_all(b"HTTP/1.1 200 X\r\nX: ").await.ok()?;
                    loop {
                        stream.write_all(b"x").await.ok()?;
                        stream.flush().await.ok()?;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                }
            }
        }
    }

    fn act(&self, request: &Request) -> Act {
        let mut state = self.state();
        let Request { method, path, range, body } = request;
        state.log.push(format!("{method} {path}"));
        let mut parts = path.trim_start_matches("/storage/v1/").split('/').skip(1);
        let index = parts.next().unwrap_or_default().to_owned();
        let number = parts.next().and_then(|number| number.parse::<u16>().ok());
        match (method.as_str(), number) {
            ("GET", None) if path.ends_with("/version") => {
                Act::Answer(200, version(matches!(state.fault, Fault::Takes { .. })))
            }
            ("GET", None) => Act::Answer(200, set_body(state.held(&index).into_iter())),
            ("POST", None) => state.allocate(&index, body),
            ("PATCH", Some(number)) => state.write(&index, number, range.unwrap(), body),
            ("PUT", Some(number)) => {
                let there = state.shares.get(&(index.clone(), number)).map(|share| share.complete);
                if there == Some(false) {
                    state.shares.remove(&(index, number));
                }
                Act::Answer(if there == Some(true) { 405 } else { 200 }, Vec::new())
            }
            ("GET", Some(number)) => state.read(&index, number, range.unwrap()),
            _ => Act::Answer(404, Vec::new()),
        }
    }
}

impl State {
    fn held(&self, index: &str) -> Vec<u16> {
        self.shares.iter().filter(|((i, _), share)| i == index && share.complete).map(|((_, n), _)| *n).collect()
    }

    fn allocate(&mut self, index: &str, body: &[u8]) -> Act {
        let mut decoder = Decoder::new(body);
        let (mut wanted, mut size) = (Vec::new(), 0);
        for _ in 0..decoder.map().unwrap().unwrap() {
            match decoder.str().unwrap() {
                "share-numbers" => {
                    decoder.tag().unwrap();
                    wanted = decoder.array_iter::<u16>().unwrap().map(Result::unwrap).collect();
                }
                _ => size = decoder.u64().unwrap(),
            }
        }
        let have = self.held(index);
        let mut allocated = Vec::new();
        for number in wanted {
            let key = (index.to_owned(), number);
            let is_taken = match self.fault {
                Fault::Full => false,
                Fault::Takes { below } => number < below,
                _ => true,
            };
            if is_taken && !self.shares.contains_key(&key) {
                self.shares.insert(key, StoredShare { bytes: vec![0; size as usize], ..StoredShare::default() });
                allocated.push(number);
            }
        }
        let mut answer = Vec::new();
        let mut encoder = Encoder::new(&mut answer);
        encoder.map(2).unwrap().str("already-have").unwrap();
        set(&mut encoder, have.into_iter());
        encoder.str("allocated").unwrap();
        set(&mut encoder, allocated.into_iter());
        Act::Answer(200, answer)
    }

    fn write(&mut self, index: &str, number: u16, (from, to): (u64, u64), body: &[u8]) -> Act {
        assert_eq!(body.len() as u64, to - from, "the range says how much comes");
        match self.fault {
            Fault::Write { from: at, status } if to > at => return Act::Answer(status, Vec::new()),
            Fault::Stalls { from: at } if to > at => return Act::Hang,
            Fault::Drips { from: at } if to > at => return Act::Drip,
            Fault::Dies { from: at } if to > at => {
                self.broken = true;
                return Act::Break;
            }
            Fault::BreaksOnce { from: at } if to > at && !self.broken => {
                self.broken = true;
                return Act::Break;
            }
            Fault::Restarts { from: at } if to > at && !self.broken => {
                self.broken = true;
                self.shares.retain(|_, share| share.complete);
                return Act::Break;
            }
            _ => {}
        }
        let forgets = matches!(self.fault, Fault::Forgets { from: at } if to > at);
        let Some(share) = self.shares.get_mut(&(index.to_owned(), number)).filter(|share| !share.complete) else {
            return Act::Answer(404, Vec::new());
        };
        self.writes.push((number, from, to));
        if !forgets {
            // Where it meets what is there, the bytes have to be the same.
            let mut meets = share.there.iter().map(|&(a, b)| (a.max(from), b.min(to))).filter(|(a, b)| a < b);
            let at = |range: (u64, u64), start: u64| (range.0 - start) as usize..(range.1 - start) as usize;
            if meets.any(|range| share.bytes[at(range, 0)] != body[at(range, from)]) {
                return Act::Answer(409, Vec::new());
            }
            share.bytes[from as usize..to as usize].copy_from_slice(body);
            share.there.push((from, to));
        }
        let required = share.missing();
        share.complete = required.is_empty();
        let mut answer = Vec::new();
        let mut encoder = Encoder::new(&mut answer);
        encoder.map(1).unwrap().str("required").unwrap().array(required.len() as u64).unwrap();
        for (begin, end) in &required {
            encoder.map(2).unwrap().str("begin").unwrap().u64(*begin).unwrap().str("end").unwrap().u64(*end).unwrap();
        }
        Act::Answer(if required.is_empty() { 201 } else { 200 }, answer)
    }

    fn read(&self, index: &str, number: u16, (from, to): (u64, u64)) -> Act {
        match self.fault {
            Fault::SilentReads => return Act::Hang,
            Fault::DripsReads => return Act::Drip,
            Fault::DripsBlocks if from > 0 => return Act::Drip,
            Fault::Refuses { share } if share == number => return Act::Answer(500, Vec::new()),
            _ => {}
        }
        match self.shares.get(&(index.to_owned(), number)).filter(|share| share.complete) {
            None => Act::Answer(404, Vec::new()),
            Some(share) => {
                let end = (to as usize).min(share.bytes.len());
                match share.bytes.get(from as usize..end).filter(|bytes| !bytes.is_empty()) {
                    None => Act::Answer(204, Vec::new()),
                    Some(bytes) => Act::Answer(206, bytes.to_vec()),
                }
            }
        }
    }
}

impl StoredShare {
    /// One that is complete.
    pub fn whole(bytes: Vec<u8>) -> StoredShare {
        StoredShare { there: vec![(0, bytes.len() as u64)], bytes, complete: true }
    }

    fn missing(&self) -> Vec<(u64, u64)> {
        let (mut there, mut at, mut missing) = (self.there.clone(), 0, Vec::new());
        there.sort_unstable();
        for (from, to) in there {
            if from > at {
                missing.push((at, from));
            }
            at = at.max(to);
        }
        if at < self.bytes.len() as u64 {
            missing.push((at, self.bytes.len() as u64));
        }
        missing
    }
}

type Bodies<'a> = Encoder<&'a mut Vec<u8>>;

fn set(encoder: &mut Bodies<'_>, numbers: impl ExactSizeIterator<Item = u16>) {
    encoder.tag(Tag::new(258)).unwrap().array(numbers.len() as u64).unwrap();
    for number in numbers {
        encoder.u16(number).unwrap();
    }
}

fn set_body(numbers: impl ExactSizeIterator<Item = u16>) -> Vec<u8> {
    let mut body = Vec::new();
    set(&mut Encoder::new(&mut body), numbers);
    body
}

fn version(is_full: bool) -> Vec<u8> {
    let mut body = Vec::new();
    let mut encoder = Encoder::new(&mut body);
    encoder.map(1).unwrap().bytes(b"http://allmydata.org/tahoe/protocols/storage/v1").unwrap();
    encoder.map(2).unwrap().bytes(b"maximum-immutable-share-size").unwrap().u64(1 << 40).unwrap();
    encoder.bytes(b"available-space").unwrap().u64(if is_full { 0 } else { 1 << 40 }).unwrap();
    body
}

/// `None` at the end of the connection.
async fn read_request(stream: &mut (impl AsyncReadExt + Unpin), inbox: &mut Vec<u8>) -> Option<Request> {
    let end = loop {
        if let Some(end) = inbox.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        (stream.read_buf(inbox).await.ok()? > 0).then_some(())?;
    };
    let head = String::from_utf8(inbox.drain(..end + 4).collect()).ok()?;
    let mut lines = head.lines();
    let mut words = lines.next()?.split(' ');
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let (mut length, mut range) = (0, None);
    for (name, value) in lines.filter_map(|line| line.split_once(": ")) {
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "content-range" => range = bounds(value.strip_prefix("bytes ")?.strip_suffix("/*")?),
            "range" => range = bounds(value.strip_prefix("bytes=")?),
            _ => {}
        }
    }
    while inbox.len() < length {
        (stream.read_buf(inbox).await.ok()? > 0).then_some(())?;
    }
    Some(Request { method, path, range, body: inbox.drain(..length).collect() })
}

/// `a-b`, both of them within the range.
fn bounds(text: &str) -> Option<(u64, u64)> {
    let (from, last) = text.split_once('-')?;
    Some((from.parse().ok()?, last.parse::<u64>().ok()? + 1))
}
