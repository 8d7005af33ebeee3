//! A mirror that misbehaves on purpose: HTTP/1.1, TLS, HTTP/2, and every fault we know of.
//!
//! A [`Server`] listens on loopback and runs in a thread of its own until it is dropped.
//! What it does wrong is a [`Behaviour`] that a test may change at any moment; the change
//! counts from the next request. It logs each request, so a test can ask what the client did.

mod answer;
mod behaviour;
mod http1;
mod http2;
mod log;
mod open;
pub mod settings;
mod throttle;
mod tls;

use std::{
    collections::HashMap,
    io,
    net::{Ipv4Addr, SocketAddr},
    os::fd::AsFd,
    path::PathBuf,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpSocket, TcpStream},
    sync::{oneshot, watch},
};

use answer::{Answer, Request};
pub use behaviour::{Behaviour, Fault, FaultRule, Life, PathMatch};
pub use log::{Counters, LogEntry};
use open::OpenConnections;
use throttle::Throttle;
pub use tls::{CertificateError, OwnCertificate, TestCa, TlsSpec};

use crate::random::Random;

/// Paths whose requests are counted; beyond it draws no longer depend on the count.
const COUNTED_PATHS: usize = 1_000_000;
/// The longest wait for a port to open or close.
const PORT_WAIT: Duration = Duration::from_secs(10);

/// What all connections of a server share.
#[derive(Debug)]
struct Shared {
    behaviour: Mutex<Arc<Behaviour>>,
    asked: Mutex<HashMap<String, u32>>,
    log: Mutex<Vec<LogEntry>>,
    connections: AtomicU64,
    open: Mutex<OpenConnections>,
    requests: AtomicU64,
    faults: AtomicU64,
    body_bytes: AtomicU64,
    life: watch::Sender<Life>,
    /// Whether the port is open, as [`Server::live`] waits for it.
    listens: Mutex<bool>,
    listens_changed: Condvar,
    throttle: Throttle,
    started: Instant,
}

/// A poisoned lock means that a thread of a test died; its data are as good as before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    fn listens(&self, listens: bool) {
        *lock(&self.listens) = listens;
        self.listens_changed.notify_all();
    }

    fn behaviour(&self) -> Arc<Behaviour> {
        lock(&self.behaviour).clone()
    }

    /// Counts a request and decides what is sent for it.
    fn begin(&self, behaviour: &Behaviour, request: &Request) -> Answer {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let count = {
            let mut asked = lock(&self.asked);
            if asked.len() < COUNTED_PATHS || asked.contains_key(&request.path) {
                let count = asked.entry(request.path.clone()).or_default();
                *count += 1;
                *count
            } else {
                1
            }
        };
        let mut fault = None;
        for (number, rule) in behaviour.faults.iter().enumerate() {
            if !rule.path.matches(&request.path) || rule.first.is_some_and(|first| count > first) {
                continue;
            }
            let count = if rule.sticky { 0 } else { count };
            let draw = Random::new(behaviour.seed, &format!("{number}/{}/{count}", request.path)).unit();
            if draw < rule.probability {
                fault = Some(&rule.fault);
                self.faults.fetch_add(1, Ordering::Relaxed);
                break;
            }
        }
        let label = format!("place/{}/{count}", request.path);
        answer::answer(behaviour, request, fault, Random::new(behaviour.seed, &label))
    }

    /// Counts bytes that the kernel took; ends the server when they were its last.
    fn sent(&self, behaviour: &Behaviour, body_bytes: u64) {
        let total = self.body_bytes.fetch_add(body_bytes, Ordering::Relaxed) + body_bytes;
        if behaviour.die_after_bytes.is_some_and(|limit| total >= limit) {
            self.life.send_if_modified(|life| {
                let dies = *life == Life::Alive;
                if dies {
                    *life = behaviour.death;
                }
                dies
            });
        }
    }

    fn record(&self, origin: RequestOrigin, request: Request, answer: &Answer, body_bytes: u64) {
        let entry = LogEntry {
            at: origin.arrived.duration_since(self.started),
            connection: origin.connection,
            number: origin.number,
            http2: origin.http2,
            range: request.header("range").map(ToString::to_string),
            method: request.method,
            path: request.path,
            headers: request.headers,
            status: if answer.hang { 0 } else { answer.status },
            fault: answer.fault,
            body_bytes,
            took: origin.arrived.elapsed(),
        };
        let mut log = lock(&self.log);
        if log.len() < log::LOG_ENTRIES {
            log.push(entry);
        }
    }
}

/// Where a request came from.
#[derive(Clone, Copy, Debug)]
struct RequestOrigin {
    connection: u64,
    number: u32,
    http2: bool,
    arrived: Instant,
}

/// One connection: its number and a second handle on the socket, to reset it beneath TLS.
#[derive(Debug)]
struct Connection {
    shared: Arc<Shared>,
    id: u64,
    socket: Arc<socket2::Socket>,
    crowded: bool,
}

impl Connection {
    /// Makes the close that follows an RST.
    fn reset_on_close(&self) {
        // A socket that the peer has reset already cannot be told so; nothing is lost.
        let _ = self.socket.set_linger(Some(Duration::ZERO));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        lock(&self.shared.open).remove(self.id);
    }
}

/// How a server is to listen.
pub struct ServerBuilder {
    behaviour: Behaviour,
    address: SocketAddr,
    tls: Option<Arc<rustls::ServerConfig>>,
}

impl ServerBuilder {
    /// Address and port; default 127.0.0.1 and a free port.
    pub fn listen(self, address: SocketAddr) -> Self {
        Self { address, ..self }
    }

    /// Speaks TLS with a certificate of this authority.
    pub fn tls(self, authority: &TestCa, spec: &TlsSpec) -> Result<Self, CertificateError> {
        Ok(Self { tls: Some(authority.server(spec)?), ..self })
    }

    /// Speaks TLS with a certificate that signed itself.
    pub fn own_certificate(self, certificate: &OwnCertificate) -> Self {
        Self { tls: Some(certificate.config.clone()), ..self }
    }

    /// Changes the behaviour before the first request.
    pub fn behaviour(mut self, change: impl FnOnce(&mut Behaviour)) -> Self {
        change(&mut self.behaviour);
        self
    }

    /// Adds a fault behind those it has.
    pub fn fault(mut self, rule: FaultRule) -> Self {
        self.behaviour.faults.push(rule);
        self
    }

    /// Starts to listen.
    pub fn start(self) -> io::Result<Server> {
        let listener = std::net::TcpListener::bind(self.address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            behaviour: Mutex::new(Arc::new(self.behaviour)),
            asked: Mutex::default(),
            log: Mutex::default(),
            connections: AtomicU64::new(0),
            open: Mutex::default(),
            requests: AtomicU64::new(0),
            faults: AtomicU64::new(0),
            body_bytes: AtomicU64::new(0),
            life: watch::Sender::new(Life::Alive),
            listens: Mutex::new(true),
            listens_changed: Condvar::new(),
            throttle: Throttle::new(),
            started: Instant::now(),
        });
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let (for_thread, secure) = (shared.clone(), self.tls.is_some());
        let tls = self.tls.map(tokio_rustls::TlsAcceptor::from);
        let thread = thread::Builder::new().name("test-server".into()).spawn(move || {
            // Dropping the runtime ends all connections.
            runtime.block_on(async {
                tokio::select! {
                    _ = stopped => {}
                    () = listen(listener, address, for_thread, tls) => {}
                }
            });
        })?;
        Ok(Server { address, secure, shared, stop: Some(stop), thread: Some(thread) })
    }
}

/// A running server; ends when dropped.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    secure: bool,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Server {
    /// A server of this tree, faultless until told otherwise.
    pub fn builder(root: impl Into<PathBuf>) -> ServerBuilder {
        ServerBuilder {
            behaviour: Behaviour::good(root),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls: None,
        }
    }

    /// A faultless HTTP/1.1 server of this tree on a free port.
    pub fn start(root: impl Into<PathBuf>) -> io::Result<Server> {
        Server::builder(root).start()
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `http://127.0.0.1:PORT`, or `https://localhost:PORT` with TLS; no slash at the end.
    pub fn url(&self) -> String {
        match self.secure {
            true => format!("https://localhost:{}", self.address.port()),
            false => format!("http://{}", self.address),
        }
    }

    /// Changes what it does from the next request on.
    pub fn change(&self, change: impl FnOnce(&mut Behaviour)) {
        let mut behaviour = lock(&self.shared.behaviour);
        let mut next = Behaviour::clone(&behaviour);
        change(&mut next);
        *behaviour = Arc::new(next);
    }

    /// Serves another tree from the next request on, as a mirror does that was updated.
    pub fn switch_root(&self, root: impl Into<PathBuf>) {
        let root = root.into();
        self.change(|behaviour| behaviour.root = root);
    }

    /// Adds a fault behind those it has.
    pub fn add_fault(&self, rule: FaultRule) {
        self.change(|behaviour| behaviour.faults.push(rule));
    }

    /// What it does now.
    pub fn behaviour(&self) -> Arc<Behaviour> {
        self.shared.behaviour()
    }

    /// Dies or comes back to life, all its connections included. The port is open or closed when this returns.
    pub fn live(&self, life: Life) {
        self.shared.life.send_replace(life);
        let wanted = life != Life::Refusing;
        let listens = lock(&self.shared.listens);
        // Not for ever: the port may have gone to another program meanwhile.
        drop(self.shared.listens_changed.wait_timeout_while(listens, PORT_WAIT, |listens| *listens != wanted));
    }

    /// Whether it lives; see `die_after_bytes`.
    pub fn life(&self) -> Life {
        *self.shared.life.borrow()
    }

    /// Requests so far, in the order in which their answers ended.
    pub fn log(&self) -> Vec<LogEntry> {
        lock(&self.shared.log).clone()
    }

    /// Takes the log, so that the next one begins empty.
    pub fn take_log(&self) -> Vec<LogEntry> {
        std::mem::take(&mut lock(&self.shared.log))
    }

    /// Totals.
    pub fn counters(&self) -> Counters {
        let shared = &self.shared;
        let open = lock(&shared.open);
        Counters {
            connections: shared.connections.load(Ordering::Relaxed),
            open_connections: open.count(),
            max_open_connections: open.most,
            requests: shared.requests.load(Ordering::Relaxed),
            faults: shared.faults.load(Ordering::Relaxed),
            body_bytes: shared.body_bytes.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic in there was printed already.
            let _ = thread.join();
        }
    }
}

/// Takes connections as long as the server lives, and again when it comes back.
async fn listen(
    first: std::net::TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    tls: Option<tokio_rustls::TlsAcceptor>,
) {
    let mut life = shared.life.subscribe();
    let mut listener = TcpListener::from_std(first).ok();
    // Bound and not listening, so that no other server gets the port while this one refuses.
    let mut reserved = None;
    loop {
        if *life.borrow_and_update() == Life::Refusing {
            listener = None;
            if reserved.is_none() {
                reserved = reserve(address).ok();
            }
            shared.listens(false);
            if life.changed().await.is_err() {
                return;
            }
            continue;
        }
        if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
            shared.listens(listener.is_some());
        }
        let Some(open) = &listener else {
            // The port may be taken for a moment by connections that linger.
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        let accepted = tokio::select! {
            accepted = open.accept() => accepted,
            _ = life.changed() => continue,
        };
        if let Ok((stream, _)) = accepted {
            take(stream, &shared, tls.clone());
        }
    }
}

fn reserve(address: SocketAddr) -> std::io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The listener may have it again.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn take(stream: TcpStream, shared: &Arc<Shared>, tls: Option<tokio_rustls::TlsAcceptor>) {
    let _ = stream.set_nodelay(true);
    let Ok(socket) = stream.as_fd().try_clone_to_owned() else {
        return;
    };
    let id = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
    let socket = Arc::new(socket2::Socket::from(socket));
    let open = lock(&shared.open).add(id, Arc::clone(&socket));
    let crowded = shared.behaviour().max_connections.is_some_and(|most| open > most);
    let connection = Connection { shared: shared.clone(), id, socket, crowded };
    tokio::spawn(async move {
        let mut life = connection.shared.life.subscribe();
        let ends = async {
            match tls {
                None => http1::serve(stream, &connection).await,
                Some(tls) => {
                    let Ok(stream) = tls.accept(stream).await else {
                        return;
                    };
                    if stream.get_ref().1.alpn_protocol() == Some(b"h2") {
                        http2::serve(stream, &connection).await;
                    } else {
                        http1::serve(stream, &connection).await;
                    }
                }
            }
        };
        // The stream lives in `ends`, which is kept while the server is silent.
        tokio::pin!(ends);
        loop {
            let now = *life.borrow_and_update();
            match now {
                Life::Alive => tokio::select! {
                    () = &mut ends => return,
                    _ = life.changed() => {}
                },
                Life::Silent => {
                    if life.changed().await.is_err() {
                        return;
                    }
                }
                Life::Refusing => return connection.reset_on_close(),
            }
        }
    });
}
