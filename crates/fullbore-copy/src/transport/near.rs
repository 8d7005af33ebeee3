//! The near end of a connection: the one that the user started.
//!
//! It starts the program on the other machine by the user's ssh and gives it the task at once. Messages flow by ssh's
//! pipe from then on, while both directions are tried: it dials where the far end listens, and listens where the far
//! end dials. The first connection that proves the right key decides, and takes over. If there is none within three
//! seconds, everything stays with ssh.

use std::ffi::OsString;
use std::io::{BufReader, Write as _};
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_wire::tcp_info::TcpInfo;
use rustls::{ClientConfig, ServerConfig};

use super::grow::{self, Growth, Step};
use super::join;
use super::keys::{Cipher, OwnKey, Speeds};
use super::lane::Lane;
use super::quic::{self, Quic, Terms};
use super::setup::{self, Decision, Hello, Joint, Ready, Task, Way};
use super::{Side, Transport, tls};
use crate::error::CopyError;
use crate::wire::VERSION;

/// How long a direct connection is tried.
pub const RACE_TIME: Duration = Duration::from_secs(3);
/// Connections that are being proved at once. Strangers cannot make us hold more.
pub(super) const PROVING: usize = 32;
/// Longest time between looks whether what is waited for is still wanted.
pub(super) const ACCEPT_LOOK: Duration = Duration::from_millis(5);
/// Time that the far end may take to be ready for further connections by ssh.
const JOINT_TIME: Duration = Duration::from_secs(30);
/// Time between looks whether ssh has ended.
const END_LOOK: Duration = Duration::from_millis(1);
/// Round trips from which a path counts as long: one connection would need seconds to fill it.
const LONG_TRIP: Duration = Duration::from_millis(2);
/// Connections for content on short and on long paths. Four fill a gigabit at 50 ms under the default
/// buffers (measured: 107 of 118 MB/s); sixteen are what a lossy path needs until its congestion control
/// is changed.
const SHORT_STREAMS: u8 = 4;
const LONG_STREAMS: u8 = 16;
/// Connections by ssh besides the first, where nothing else is possible: four are faster than one, and sshd
/// takes ten that have not proved themselves yet (sshd_config(5), `MaxStartups`).
const MORE_PIPES: u8 = 3;

/// What the near end wants of the connection.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The command that runs the program on the other machine, its pipes joined to ours.
    pub command: Vec<OsString>,
    /// What is said to the command first, where it is known to be ssh.
    pub options: &'static [&'static str],
    /// Bytes that the command reads before the program there says anything: the program itself, if it is sent
    /// along.
    pub preface: Vec<u8>,
    /// The host as the user named it, to dial it.
    pub host: String,
    /// TCP connections of our own are tried, and QUIC; else everything goes by ssh.
    pub tcp: bool,
    /// QUIC is tried where TCP is not, or does not get through.
    pub quic: bool,
    /// Connections for content; 0 for as many as the path needs.
    pub streams: u8,
    /// This program's version.
    pub program: String,
    /// The command that runs the program there once more, without asking anybody for anything; the name that
    /// it is to join is still to be added to its last word. None where that cannot be known.
    pub more_pipes: Option<Vec<OsString>>,
}

/// The other machine answers.
#[derive(Debug)]
pub struct Peer {
    child: Child,
    output: BufReader<ChildStdout>,
    own: OwnKey,
    speeds: Speeds,
    listener: Option<TcpListener>,
    datagrams: Option<UdpSocket>,
    /// The congestion control of QUIC is BBR.
    bbr: bool,
    /// What it says of itself.
    pub hello: Hello,
}

/// Another thread's hold on ssh. It refers to that process, and never to another of the same number.
#[derive(Debug)]
pub struct Tether {
    process: OwnedFd,
}

impl Tether {
    /// None before Linux 5.3, or where a container forbids it.
    fn of(child: &Child) -> Option<Tether> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok().map(|process| Tether { process })
    }

    /// Ends it: whoever waits for it goes on.
    pub fn cut(&self) {
        // It may have ended by itself.
        let _ = rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::KILL);
    }
}

/// The program does not run there, or another version of it does.
#[derive(Debug)]
pub enum NoPeer {
    /// ssh's exit code; 127 where the program is not found.
    Ended(Option<i32>),
    /// Another version.
    Version(Hello),
    /// Anything else.
    Failed(CopyError),
}

/// A connection to the other machine: by ssh's pipe at first.
#[derive(Debug)]
pub struct Connection {
    /// The cipher of direct connections.
    pub cipher: Cipher,
    /// Whether the task can be done there.
    pub ready: Ready,
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    search: Option<Search>,
    /// How messages go, as far as is known yet.
    pub routing: Routing,
    opener: Arc<Opener>,
    children: Arc<Mutex<Vec<Child>>>,
}

/// What is known of how messages go: more, once something is found.
#[derive(Clone, Debug)]
pub struct Routing {
    route: Arc<Mutex<Route>>,
}

impl Routing {
    /// How they go now.
    pub fn now(&self) -> Route {
        self.route.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn decide(&self, route: Route) {
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = route;
    }
}

/// How messages go.
#[derive(Clone, Debug)]
pub struct Route {
    /// By the pipe, until something else is decided on.
    pub way: Way,
    /// Why not directly.
    pub fallback: Option<String>,
    /// The connection by QUIC.
    pub quic: Option<Quic>,
    /// Connections for content that a copy has at first, besides the pipe if that carries content.
    pub streams: u8,
    /// How further pipes are made: the command, and what the far end's other connections are told.
    joining: Option<(Vec<OsString>, Joint)>,
}

impl Route {
    const PIPE: Route = Route { way: Way::Pipe, fallback: None, quic: None, streams: 0, joining: None };
}

/// What is looked for while messages go by the pipe.
#[derive(Debug)]
struct Search {
    race: Option<Race>,
    datagrams: Option<UdpSocket>,
    bbr: bool,
    /// Where the far end waits for QUIC.
    peers: Peers,
    /// The number of connections for content that the user wants; 0 for as many as the path needs.
    streams: u8,
    more_pipes: Option<Vec<OsString>>,
}

/// The far end's addresses, as far as its name is known yet.
#[derive(Debug)]
struct Peers {
    host: String,
    known: Option<IpAddr>,
    port: Option<u16>,
}

/// Makes further connections.
#[derive(Debug)]
struct Opener {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    listener: Option<TcpListener>,
    address: Mutex<Option<SocketAddr>>,
    /// Connections for content dialled before they are asked for.
    ahead: Mutex<Option<Ahead>>,
    /// The number of connections for content that the user wants; 0 for as many as the path needs.
    streams: u8,
    /// Connections of the far end that have proved its key.
    proved: Mutex<(mpsc::Sender<Lane>, mpsc::Receiver<Lane>)>,
    /// Held by each that is being proved.
    proving: Arc<()>,
}

/// Connections that are being made, to where a first one got through.
#[derive(Debug)]
struct Ahead {
    address: SocketAddr,
    lanes: Vec<JoinHandle<std::io::Result<Lane>>>,
}

impl Peer {
    /// Starts the program there, gives it the task, and hears what it says of itself. That may take as long as it
    /// likes: whoever does not want to wait ends ssh, which is told of by `started`. What there is to say goes right
    /// behind the task.
    ///
    /// # Errors
    /// When it does not run there.
    pub fn start(
        wish: &Wish,
        mut task: Task,
        transport: &Transport,
        started: impl FnOnce(Option<Tether>),
    ) -> Result<Peer, NoPeer> {
        let failed = |what, error| NoPeer::Failed(CopyError::System { what, error });
        let (program, arguments) = wish.command.split_first().ok_or(NoPeer::Ended(None))?;
        let mut child = Command::new(program)
            .args(wish.options)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed("start ssh", error))?;
        started(Tether::of(&child));
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(NoPeer::Ended(None));
        };
        // If nobody takes it, the exit code tells why.
        let _ = input.write_all(&wish.preface);
        let mut output = BufReader::with_capacity(64 << 10, output);
        // While ssh is on its way.
        let own = OwnKey::generate().map_err(NoPeer::Failed)?;
        let speeds = Speeds::measure();
        let listener = if wish.tcp { listen() } else { None };
        let datagrams = if wish.quic { quic::bind() } else { None };
        task.key = own.public().to_vec();
        task.port = listener.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.port()));
        task.udp = datagrams.as_ref().and_then(|socket| Some(socket.local_addr().ok()?.port()));
        task.speeds = speeds;
        let bbr = task.options.congestion.as_deref() == Some("bbr");
        let give = |mut input: ChildStdin| {
            // As above.
            let _ = setup::write(&mut input, &task);
            transport.speak(input);
        };
        // What takes the program off the pipe may take more than that.
        let waiting = if wish.preface.is_empty() {
            give(input);
            None
        } else {
            Some(input)
        };
        match setup::read::<Hello>(&mut output) {
            Ok(Some(hello)) if hello.version == VERSION => {
                waiting.into_iter().for_each(give);
                Ok(Peer { child, output, own, speeds, listener, datagrams, bbr, hello })
            }
            Ok(Some(hello)) => {
                end(&mut child);
                Err(NoPeer::Version(hello))
            }
            Ok(None) => Err(NoPeer::Ended(child.wait().ok().and_then(|status| status.code()))),
            Err(error) => {
                end(&mut child);
                Err(NoPeer::Failed(error))
            }
        }
    }

    /// Hears whether the task can be done there, and begins to look for a better way than ssh's pipe.
    ///
    /// # Errors
    /// When the task cannot be done there, or ssh breaks.
    pub fn connect(mut self, wish: &Wish) -> Result<Connection, CopyError> {
        let (own, speeds) = (&self.own, self.speeds);
        let cipher = self.hello.speeds.map_or(Cipher::Aes, |theirs| speeds.choose(&theirs));
        let opener = Arc::new(Opener {
            client: own.client(&self.hello.key, cipher)?,
            server: own.server(&self.hello.key, cipher)?,
            listener: self.listener,
            address: Mutex::default(),
            ahead: Mutex::default(),
            streams: wish.streams,
            proved: Mutex::new(mpsc::channel()),
            proving: Arc::new(()),
        });
        let race = wish.tcp.then(|| race(&opener, &self.hello, &wish.host));
        let ready = setup::read::<Ready>(&mut self.output)?;
        let ready = ready.ok_or_else(|| CopyError::Network("the program on the other machine ended".to_owned()))?;
        if let Some((exit_code, text)) = ready.refused {
            end(&mut self.child);
            return Err(CopyError::Remote { exit_code, text });
        }
        let search = Search {
            race,
            datagrams: self.datagrams.filter(|_| self.hello.udp.is_some()),
            bbr: self.bbr,
            peers: Peers { host: wish.host.clone(), known: self.hello.address, port: self.hello.udp },
            streams: wish.streams,
            more_pipes: wish.more_pipes.clone(),
        };
        Ok(Connection {
            cipher,
            ready,
            child: self.child,
            output: Some(self.output),
            search: Some(search),
            routing: Routing { route: Arc::new(Mutex::new(Route::PIPE)) },
            opener,
            children: Arc::default(),
        })
    }
}

impl Search {
    /// Finds the best way, and begins to take it.
    fn decide(self, opener: &Arc<Opener>, transport: &Transport) -> std::io::Result<Route> {
        let mut route = Route::PIPE;
        let mut first = None;
        match self.race.map(Race::winner) {
            Some(Ok((way, lane))) => (route.way, first) = (way, Some(lane)),
            Some(Err(reason)) => route.fallback = Some(reason),
            None => {}
        }
        if let Some(socket) = self.datagrams.filter(|_| first.is_none() && !transport.is_over()) {
            transport.say_way(&Decision { way: Way::Quic, streams: 0 })?;
            let terms = Terms { client: opener.client.clone(), server: opener.server.clone(), bbr: self.bbr };
            let met = Quic::meet(socket, &terms, &self.peers.addresses(), Instant::now() + RACE_TIME);
            match met.and_then(|met| Ok((met.open().map_err(|error| error.to_string())?, met))) {
                Ok((lane, met)) => (route.way, first, route.quic) = (Way::Quic, Some(lane), Some(met)),
                Err(reason) => {
                    let reasons = route.fallback.into_iter().chain([format!("QUIC: {reason}")]);
                    route.fallback = reasons.reduce(|one, two| one + "; " + &two);
                }
            }
        }
        let Some(mut lane) = first else {
            transport.stay_with_pipe();
            if self.more_pipes.is_some() {
                route.streams = self.streams.checked_sub(1).unwrap_or(MORE_PIPES).min(MORE_PIPES);
            }
            let ways = transport.ways();
            transport.say_way(&Decision { way: Way::Pipe, streams: route.streams })?;
            if let Some(command) = self.more_pipes.filter(|_| route.streams > 0) {
                // Without them the pipe carries everything.
                let joint = ways.recv_timeout(JOINT_TIME).ok().and_then(|json| serde_json::from_slice(&json).ok());
                route.joining = joint.map(|joint| (command, joint));
            }
            return Ok(route);
        };
        route.streams = streams(self.streams, lane.round_trip().unwrap_or_default());
        if route.way == Way::FarDials {
            transport.say_way(&Decision { way: route.way, streams: route.streams })?;
        }
        lane.mark(0)?;
        transport.hand_over(lane, true);
        Ok(route)
    }
}

impl Peers {
    /// Where the far end may be reached: by the address that ssh reached it by, and those that its name stands for.
    fn addresses(&self) -> Vec<SocketAddr> {
        let Some(port) = self.port else { return Vec::new() };
        let known = self.known.map(|address| SocketAddr::new(address, port));
        known.into_iter().chain(named(&self.host, port).filter(|named| Some(*named) != known)).collect()
    }
}

/// Connections for content at first, of which the user wants so many, on a path with this round trip.
fn streams(wished: u8, trip: Duration) -> u8 {
    match wished {
        0 if trip >= LONG_TRIP => LONG_STREAMS,
        0 => SHORT_STREAMS,
        wished => wished,
    }
}

/// Waits until somebody dials, or a moment.
pub(super) fn await_dialler(listener: &TcpListener) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let time = Timespec { tv_sec: 0, tv_nsec: ACCEPT_LOOK.as_nanos() as i64 };
    // Interrupted or not: the next look tells.
    let _ = poll(&mut [PollFd::new(listener, PollFlags::IN)], Some(&time));
}

fn listen() -> Option<TcpListener> {
    let any = SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0));
    let listener = TcpListener::bind(any).or_else(|_| TcpListener::bind(("0.0.0.0", 0))).ok()?;
    listener.set_nonblocking(true).ok()?;
    Some(listener)
}

/// What a host's name stands for.
fn named(host: &str, port: u16) -> impl Iterator<Item = SocketAddr> {
    let host = host.rsplit('@').next().unwrap_or(host);
    (host, port).to_socket_addrs().into_iter().flatten()
}

/// Both directions at once.
#[derive(Debug)]
struct Race {
    results: mpsc::Receiver<Result<(Way, Lane), String>>,
    until: Instant,
}

fn race(opener: &Arc<Opener>, hello: &Hello, host: &str) -> Race {
    let (sender, results) = mpsc::channel();
    let until = Instant::now() + RACE_TIME;
    if let Some(port) = hello.port {
        let (dialling, own) = (sender.clone(), opener.clone());
        let dial = move |address: SocketAddr| {
            let (sender, own) = (dialling.clone(), own.clone());
            std::thread::spawn(move || {
                let lane = own.dial_first(&address).map(|lane| (Way::NearDials, lane));
                let _ = sender.send(lane.map_err(|error| format!("{address}: {}", said_of(&error))));
            });
        };
        // What the name stands for may take long to find.
        let known = hello.address.map(|address| SocketAddr::new(address, port));
        known.into_iter().for_each(&dial);
        let host = host.to_owned();
        std::thread::spawn(move || named(&host, port).filter(|named| Some(*named) != known).for_each(dial));
    }
    let own = opener.clone();
    std::thread::spawn(move || {
        let _ = sender.send(own.accept(until).map(|lane| (Way::FarDials, lane)).map_err(|error| error.to_string()));
    });
    Race { results, until }
}

/// Silence, whether the race or the system's own limit for a connection, which is as long, has ended first.
fn nothing() -> String {
    format!("nothing within {} s", RACE_TIME.as_secs())
}

fn said_of(error: &std::io::Error) -> String {
    if error.kind() == std::io::ErrorKind::TimedOut { nothing() } else { error.to_string() }
}

impl Race {
    /// The first connection that proved the right key; else what went wrong.
    fn winner(self) -> Result<(Way, Lane), String> {
        let mut reasons = Vec::new();
        loop {
            match self.results.recv_timeout(self.until.saturating_duration_since(Instant::now())) {
                Ok(Ok(winner)) => return Ok(winner),
                Ok(Err(reason)) => reasons.push(reason),
                Err(RecvTimeoutError::Timeout) => {
                    reasons.push(nothing());
                    break;
                }
                // All have been tried.
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        Err(reasons.join("; "))
    }
}

fn dial(address: &SocketAddr, client: Arc<ClientConfig>) -> std::io::Result<Lane> {
    tls::connect(TcpStream::connect_timeout(address, RACE_TIME)?, client)
}

impl Opener {
    fn accept(&self, until: Instant) -> std::io::Result<Lane> {
        let listener = self.listener.as_ref().ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        loop {
            // Strangers who say nothing keep nobody waiting: each is proved by a thread of its own.
            if let Ok(lane) = self.proved.lock().unwrap_or_else(PoisonError::into_inner).1.try_recv() {
                return Ok(lane);
            }
            match listener.accept() {
                Ok((socket, _)) if Arc::strong_count(&self.proving) <= PROVING => {
                    socket.set_nonblocking(false)?;
                    let found = self.proved.lock().unwrap_or_else(PoisonError::into_inner).0.clone();
                    let (server, held) = (self.server.clone(), self.proving.clone());
                    std::thread::spawn(move || {
                        // Whoever dialled without the key is nobody.
                        if let Ok(lane) = tls::accept(socket, server) {
                            let _ = found.send(lane);
                        }
                        drop(held);
                    });
                }
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => await_dialler(listener),
                Err(error) => return Err(error),
            }
            if Instant::now() >= until {
                return Err(std::io::Error::new(
                    std::io::ErrorKind::TimedOut,
                    "the other machine did not get through to here",
                ));
            }
        }
    }

    /// Makes the first connection to an address.
    fn dial_first(self: &Arc<Self>, address: &SocketAddr) -> std::io::Result<Lane> {
        let socket = TcpStream::connect_timeout(address, RACE_TIME)?;
        let trip = TcpInfo::read(socket.as_fd()).map(|info| info.path_rtt()).unwrap_or_default();
        let (own, to) = (self.clone(), *address);
        // At once, but not in front of its handshake: when the first file is wanted, the others have had theirs.
        std::thread::spawn(move || own.dial_ahead(to, streams(own.streams, trip)));
        let lane = tls::connect(socket, self.client.clone())?;
        self.address.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(*address);
        Ok(lane)
    }

    /// Dials for content, where a first connection gets through.
    fn dial_ahead(&self, address: SocketAddr, streams: u8) {
        let dial = |_| {
            let client = self.client.clone();
            std::thread::spawn(move || dial(&address, client))
        };
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.get_or_insert_with(|| Ahead { address, lanes: (0..streams).map(dial).collect() });
    }

    fn open(&self, way: Way) -> std::io::Result<Lane> {
        if way == Way::FarDials {
            return self.accept(Instant::now() + RACE_TIME);
        }
        let address = *self.address.lock().unwrap_or_else(PoisonError::into_inner);
        let address = address.ok_or(std::io::ErrorKind::AddrNotAvailable)?;
        let ahead = {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            // From now on nobody dials ahead. Where another first one got through, its followers may wait long.
            let ahead = ahead.get_or_insert_with(|| Ahead { address, lanes: Vec::new() });
            if ahead.address == address { ahead.lanes.pop() } else { None }
        };
        match ahead.map(JoinHandle::join) {
            Some(Ok(Ok(lane))) => Ok(lane),
            _ => dial(&address, self.client.clone()),
        }
    }
}

impl Connection {
    /// Puts ssh's pipe to work, and what is better as it comes; `decided` hears how messages go.
    ///
    /// # Errors
    /// When it was started before.
    pub fn start(
        &mut self,
        transport: &Arc<Transport>,
        decided: impl FnOnce(Route) + Send + 'static,
    ) -> std::io::Result<()> {
        let search = self.begin_by_pipe(transport)?;
        let links =
            Links { opener: self.opener.clone(), transport: transport.clone(), children: self.children.clone() };
        let (routing, grows) = (self.routing.clone(), search.streams == 0);
        std::thread::spawn(move || match search.decide(&links.opener, &links.transport) {
            Ok(route) => {
                routing.decide(route.clone());
                decided(route.clone());
                links.open(&route, 1, route.streams);
                if grows && matches!(route.way, Way::NearDials | Way::FarDials) {
                    links.grow(route.way, Growth::new(route.streams));
                }
            }
            Err(error) => links.transport.fail(&error),
        });
        Ok(())
    }

    /// As [`Connection::start`], but waits until it is known how messages go, and makes no connections for content.
    ///
    /// # Errors
    /// When it was started before, or the other end has gone.
    pub fn begin(&mut self, transport: &Arc<Transport>) -> std::io::Result<()> {
        let search = self.begin_by_pipe(transport)?;
        let decided = search.decide(&self.opener, transport)?;
        self.routing.decide(decided);
        Ok(())
    }

    fn begin_by_pipe(&mut self, transport: &Transport) -> std::io::Result<Search> {
        let started = self.output.take().zip(self.search.take());
        let (output, search) = started.ok_or(std::io::ErrorKind::NotConnected)?;
        transport.hear(Side::Near, output);
        Ok(search)
    }

    /// Makes the connections with these numbers, and puts each to work as it comes.
    pub fn open(&self, transport: &Arc<Transport>, from: u8, to: u8) {
        let (opener, transport, children) = (self.opener.clone(), transport.clone(), self.children.clone());
        Links { opener, transport, children }.open(&self.routing.now(), from, to);
    }

    /// Ends the program on the other machine, if it has not ended by itself.
    pub fn finish(mut self) {
        let children = std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        self.routing.now().quic.iter().for_each(Quic::close);
        // What they had to carry has arrived, or never will.
        children.into_iter().for_each(|mut child| end(&mut child));
        let until = Instant::now() + RACE_TIME;
        while Instant::now() < until {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(END_LOOK);
        }
        end(&mut self.child);
    }
}

/// Makes connections for content.
struct Links {
    opener: Arc<Opener>,
    transport: Arc<Transport>,
    children: Arc<Mutex<Vec<Child>>>,
}

impl Links {
    fn open(&self, route: &Route, from: u8, to: u8) {
        for number in from..=to {
            let transport = self.transport.clone();
            if route.way == Way::Pipe {
                let Some((command, joint)) = route.joining.clone() else { break };
                let children = self.children.clone();
                std::thread::spawn(move || match join::dial(&command, &joint, &children) {
                    Ok(lane) => transport.add(lane),
                    // One less is no matter: the first one carries everything.
                    Err(error) => tracing::debug!(%error, "a further connection by ssh failed"),
                });
                continue;
            }
            let (opener, way, quic) = (self.opener.clone(), route.way, route.quic.clone());
            std::thread::spawn(move || {
                let lane = quic.map_or_else(|| opener.open(way), |quic| quic.open());
                // One less is no matter, if it is not the only one.
                match lane.and_then(|mut lane| lane.mark(number).map(|()| lane)) {
                    Ok(lane) => transport.add(lane),
                    Err(error) if number == 1 => transport.fail(&error),
                    Err(error) => tracing::debug!(%error, number, "a connection failed"),
                }
            });
        }
    }

    /// Opens more connections while they make the copy faster.
    fn grow(&self, way: Way, mut growth: Growth) {
        let transport = &self.transport;
        let rate = || {
            std::thread::sleep(grow::SETTLE);
            let (before, since) = (transport.moved_bytes(), Instant::now());
            std::thread::sleep(grow::TRIAL);
            transport.moved_bytes().saturating_sub(before) as f64 / since.elapsed().as_secs_f64()
        };
        let mut number = growth.streams();
        loop {
            let rate = rate();
            if transport.is_over() {
                return;
            }
            // While nothing moves nothing can be learned.
            let Step::More(more) = (if rate > 0.0 { growth.step(rate, transport.is_queued()) } else { Step::Stay })
            else {
                continue;
            };
            // Where the far end dials it is asked to.
            if way == Way::FarDials && transport.say_way(&Decision { way, streams: more }).is_err() {
                return;
            }
            for _ in 0..more {
                number += 1;
                match self.opener.open(way).and_then(|mut lane| lane.mark(number).map(|()| lane)) {
                    Ok(lane) if !transport.is_over() => transport.add(lane),
                    Ok(_) => return,
                    Err(error) => tracing::debug!(%error, number, "a further connection failed"),
                }
            }
        }
    }
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

impl Lane {
    /// Tells the far end which connection this is.
    fn mark(&mut self, number: u8) -> std::io::Result<()> {
        self.writer.write_all(&[number])?;
        self.writer.flush()
    }
}

/// Addresses as ssh tells them in `SSH_CONNECTION`: client, its port, server, its port (ssh(1)).
pub fn ssh_connection(text: &str) -> Option<(IpAddr, IpAddr)> {
    let mut words = text.split_whitespace();
    let address = |word: &str| word.split('%').next().and_then(|word| word.parse().ok());
    let client = address(words.next()?)?;
    let server = address(words.nth(1)?)?;
    Some((client, server))
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::Ledger;

    use super::*;
    use crate::session::{Brake, Link};

    fn lane() -> Lane {
        Lane::pipe(std::io::empty(), std::io::sink())
    }

    #[test]
    fn another_version_is_told_from_no_program_at_all() {
        let wish = |script: &str| Wish {
            command: ["sh", "-c", script].map(OsString::from).into(),
            options: &[],
            preface: Vec::new(),
            host: "host".to_owned(),
            tcp: false,
            quic: false,
            streams: 0,
            program: "1.0".to_owned(),
            more_pipes: None,
        };
        let other = format!("echo 'fullbore-copy {{\"version\":{},\"program\":\"9.9\"}}'; cat", VERSION + 1);
        let start = |wish: &Wish| {
            let link = Link::remote();
            let transport = Transport::new(&link, &Brake::new(&link), true, &Ledger::off(), None);
            let task = Task::new(setup::Role::Receive, Default::default());
            Peer::start(wish, task, &transport, |_| {})
        };
        match start(&wish(&other)) {
            Err(NoPeer::Version(hello)) => assert_eq!((hello.version, &*hello.program), (VERSION + 1, "9.9")),
            other => panic!("{other:?}"),
        }
        let ended = start(&wish("echo Welcome; exit 3"));
        assert!(matches!(ended, Err(NoPeer::Ended(Some(3)))), "{ended:?}");
    }

    #[test]
    fn a_connection_that_comes_right_behind_one_that_failed_is_taken() {
        let (sender, results) = mpsc::channel();
        sender.send(Err("no".to_owned())).unwrap();
        sender.send(Ok((Way::NearDials, lane()))).unwrap();
        let won = Race { results, until: Instant::now() + RACE_TIME }.winner();
        assert!(matches!(won, Ok((Way::NearDials, _))), "{:?}", won.err());
        let (sender, results) = mpsc::channel();
        for reason in ["no", "never"] {
            sender.send(Err(reason.to_owned())).unwrap();
        }
        drop(sender);
        let lost = Race { results, until: Instant::now() + RACE_TIME }.winner();
        assert_eq!(lost.err().as_deref(), Some("no; never"));
    }
}
