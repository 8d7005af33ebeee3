//! Moves messages between machines, over connections.
//!
//! A `stream::Stream` is a two-way byte stream: an encrypted TCP connection, or the pipe of ssh. The pipe carries
//! control messages in both directions until another stream takes them over (`handover`). Further streams carry content
//! in one direction. If there is only the pipe, it carries everything. The threads of [`Transport`] move messages
//! between streams and the queues of a [`Link`], so sender and receiver need not know any of this.

pub(crate) mod congestion;
pub(crate) mod far;
pub(crate) mod grow;
mod handover;
pub(crate) mod join;
pub(crate) mod keys;
pub(crate) mod near;
pub mod setup;
pub(crate) mod stream;
pub(crate) mod tls;

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind, Ledger, SendReading, StageClock};
use fullbore_wire::tcp_info::TcpInfo;
use serde::{Deserialize, Serialize};

use crate::error::CopyError;
use crate::queue::{Queue, Taken};
use crate::session::{CancelToken, Link};
use crate::wire::{Decoder, Message, encode};
use congestion::{Evidence, Sight, segments};
pub(crate) use handover::FIRST_BYTES;
use handover::Handover;
use stream::Stream;

/// Time for sending the last messages before connections are closed.
const FAREWELL: Duration = Duration::from_secs(5);
/// Interval for reading the kernel's counters of the connections.
const LOOK: Duration = Duration::from_millis(100);
/// Time to gather messages after a list, or after the answer to one. Further lists usually follow within microseconds;
/// sending each by itself would cost both ends more than listing it.
const GATHERING: Duration = Duration::from_millis(1);
/// Longest wait for the other end's connection, after it announced that messages will come over it.
const FIRST_TIME: Duration = Duration::from_secs(10);
/// Most streams of one session. Each costs a thread, and a peer that proved the key may open any number. `--streams`, a
/// number below 256, never needs more.
const STREAMS_MAX: usize = 256;
/// Most messages of the other end's transport that wait to be read. It sends a few in a session, and then requests for
/// connections, seconds apart.
const WAYS: usize = 64;
/// Most content records that wait for a pipe that carries control messages as well, so that these are not delayed.
const MERGED: usize = 2;
/// Padding after the last message in the pipe, where nobody reads it any more. Without it ssh's connection holds a
/// short message back until all earlier data is acknowledged, which the other kernel delays by up to 40 ms (RFC 896,
/// RFC 1122). The padding is longer than a segment, even with jumbo frames.
const PUSH: [u8; 10_000] = [0; 10_000];
/// Congestion control for paths that lose segments without a full queue: it does not take loss for a full link.
const LOSSY_CONTROL: &str = "bbr";
/// Round trip above which a connection may hold only [`UNSENT_BYTES`] of unsent data. Data in the memory of a slow
/// connection cannot move to a faster one, and the end of a copy waits for it. On short paths it is sent at once.
const LONG_TRIP: Duration = Duration::from_millis(2);
const UNSENT_BYTES: u32 = 512 << 10;

/// How an end of a pipe detects that the other one has gone. The kernel watches our own TCP connections, and ssh
/// watches the user's end. But a firewall may forget an idle flow, and the far end would wait for hours and hold the
/// destination meanwhile.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    /// Interval of heartbeats on a pipe with nothing else to send.
    beat: Duration,
    /// Time without any message after which the other end counts as gone.
    silence: Duration,
}

/// Like ssh at the user's end: three requests, 15 s apart.
const PULSE: Pulse = Pulse { beat: Duration::from_secs(10), silence: Duration::from_secs(45) };
/// The heartbeat: an empty message that is not passed on.
const BEAT: Message = Message::Counters(Vec::new());

/// Moves messages between a link and its streams.
#[derive(Debug)]
pub struct Transport {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    link: Link,
    cancel: CancelToken,
    /// Whether this end sends content; else it receives.
    sends: bool,
    /// The congestion control that the user chose.
    congestion: Option<String>,
    clock: Arc<StageClock>,
    ledger: Ledger,
    state: Mutex<State>,
    /// Total bytes of all streams, in both directions.
    moved_bytes: AtomicU64,
    over: AtomicBool,
    /// Whether this end's last message has been sent, so that the other end may close connections.
    last_said: AtomicBool,
    pulse: Pulse,
    began: Instant,
    /// Time of the last data from the other end, in milliseconds since `began`.
    heard_ms: AtomicU64,
    /// Number of the read that a pipe's reader waits in; 0 if it does not wait.
    awaited: AtomicU64,
    handover: Handover,
    /// Receives the other end's decisions on how messages travel.
    ways: Mutex<Option<mpsc::SyncSender<Vec<u8>>>>,
}

/// The two ends of ssh's pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The end that started ssh.
    Near,
    /// The end that ssh started. It ends with ssh, whatever way messages travel.
    Far,
}

#[derive(Default)]
struct State {
    sockets: Vec<Watched>,
    /// Number of streams with content so far.
    streams: usize,
    writers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    /// Whether data written to the streams may be lost if this process ends now.
    lingers: bool,
    /// The pipe that carried control messages. While it is open, the other end knows that this one is there.
    pipe: Option<Box<dyn Write + Send>>,
    /// The congestion control in use; see [`Path::control`].
    control: Option<String>,
    /// Measurements of the path.
    evidence: Evidence,
}

impl std::fmt::Debug for State {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("State").field("sockets", &self.sockets).finish_non_exhaustive()
    }
}

#[derive(Debug)]
struct Watched {
    socket: TcpStream,
    /// Whether it carries content, and not only control messages.
    has_content: bool,
    since: Instant,
    /// Time of the last reading.
    seen: Instant,
    last: TcpInfo,
}

/// Kernel figures of the connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Number of connections with content.
    pub streams: usize,
    /// The smallest round-trip time so far.
    pub round_trip: Option<Duration>,
    /// Retransmitted segments as a share of all sent.
    pub loss: f64,
    /// Congestion control that was set on them, or why it is the system's; `None` if none was wanted.
    pub control: Option<String>,
}

impl Path {
    /// Adds the figures that only the sending end knows.
    #[must_use]
    pub(crate) fn when_sent_by(self, sender: Path) -> Path {
        Path { loss: sender.loss, control: sender.control, ..self }
    }
}

impl Transport {
    /// Makes a transport without streams.
    pub fn new(link: &Link, cancel: &CancelToken, sends: bool, ledger: &Ledger, congestion: Option<&str>) -> Transport {
        Transport::with(PULSE, link, cancel, sends, ledger, congestion)
    }

    fn with(
        pulse: Pulse,
        link: &Link,
        cancel: &CancelToken,
        sends: bool,
        ledger: &Ledger,
        congestion: Option<&str>,
    ) -> Transport {
        let clock = ledger.stage(if sends { "send" } else { "receive" }, Kind::Thread);
        let shared = Arc::new(Shared {
            link: link.clone(),
            cancel: cancel.clone(),
            sends,
            congestion: congestion.map(str::to_owned),
            clock,
            ledger: ledger.clone(),
            state: Mutex::default(),
            moved_bytes: AtomicU64::new(0),
            over: AtomicBool::new(false),
            last_said: AtomicBool::new(false),
            pulse,
            began: Instant::now(),
            heard_ms: AtomicU64::new(0),
            awaited: AtomicU64::new(0),
            handover: Handover::default(),
            ways: Mutex::default(),
        });
        let watching = shared.clone();
        // The thread ends within one interval of the run's end. Without it the verdict knows less.
        drop(spawn("connections", move || watching.watch()));
        Transport { shared }
    }

    /// Adds a stream that carries content; closes it if there are too many.
    pub fn add(&self, stream: Stream) {
        let shared = &self.shared;
        let Stream { reader, writer, socket, lingers } = stream;
        let mut state = shared.lock();
        if state.streams >= STREAMS_MAX {
            tracing::debug!(streams = state.streams, "one connection more than there may be: closed");
            return;
        }
        state.streams += 1;
        state.lingers |= lingers;
        if let Some(peer) = socket.as_ref().and_then(|socket| socket.peer_addr().ok()) {
            tracing::info!(%peer, streams = state.streams, "a connection carries content");
        }
        shared.monitor(socket, true, &mut state);
        let own = shared.clone();
        if shared.sends {
            let queue = shared.link.data.clone();
            // Keep its reader open: closing it would tell the other end that nobody listens.
            state.writers.extend(spawn("send", move || {
                own.write(writer, &queue, false);
                drop(reader);
            }));
        } else {
            state.readers.extend(spawn("receive", move || {
                own.read(reader, None);
                drop(writer);
            }));
        }
    }

    /// Starts sending messages through ssh's pipe, content included.
    fn speak(&self, writer: impl Write + Send + 'static) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.streams += 1;
        let (queue, own) = (shared.link.control_out.clone(), shared.clone());
        let writer = Box::new(io::BufWriter::with_capacity(stream::PIPE_BYTES, writer));
        state.writers.extend(spawn("control out", move || own.write(writer, &queue, true)));
        if shared.sends {
            // There is one pipe: content goes through the queue of control messages.
            let own = shared.clone();
            state.writers.extend(spawn("merge", move || own.merge()));
        }
    }

    /// Starts receiving messages from ssh's pipe.
    fn hear(&self, side: Side, reader: impl Read + Send + 'static) {
        let own = self.shared.clone();
        // Until now the setup read from the pipe.
        own.hears();
        let reader = Box::new(io::BufReader::with_capacity(stream::PIPE_BYTES, reader));
        self.shared.lock().readers.extend(spawn("control in", move || own.read(reader, Some(side))));
    }

    /// Tells the other end's transport how messages will travel.
    fn say_way(&self, way: &impl serde::Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(way).map_err(io::Error::other)?;
        let said = self.shared.link.control_out.push(Message::Way(json), &self.shared.clock);
        said.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// Decisions of the other end's transport on how messages travel.
    fn ways(&self) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::sync_channel(WAYS);
        *self.shared.ways.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Moves control messages from the pipe to this stream as soon as possible. The end that `decided` announces it
    /// first; the other end follows when it receives that.
    fn hand_over(&self, stream: Stream, decided: bool) {
        let shared = &self.shared;
        let is_short = stream.round_trip().is_some_and(|trip| trip < LONG_TRIP);
        let Stream { reader, writer, socket, lingers } = stream;
        {
            let mut state = shared.lock();
            state.streams -= 1;
            state.lingers |= lingers;
            shared.monitor(socket, false, &mut state);
        }
        shared.handover.offer(Stream { reader, writer, socket: None, lingers }, is_short);
        if shared.sends {
            // Wakes the thread that waits for content for the pipe.
            shared.link.data.nudge();
        }
        if decided {
            shared.say_switch();
        }
    }

    /// ssh's pipe stays the only connection.
    fn stay_with_pipe(&self) {
        self.shared.handover.stay();
    }

    /// Ends the run: a required connection could not be made, or was lost.
    pub fn fail(&self, error: &io::Error) {
        self.shared.broken(error);
    }

    /// Current kernel figures of the connections.
    pub fn path(&self) -> Path {
        let state = self.shared.lock();
        let infos = || state.sockets.iter().map(|watched| &watched.last);
        let sent: u64 = infos().map(segments).sum();
        let again: u64 = infos().map(|info| u64::from(info.retransmitted_segments)).sum();
        Path {
            streams: state.streams,
            round_trip: infos().map(TcpInfo::path_rtt).filter(|trip| !trip.is_zero()).min(),
            loss: if sent > 0 { again as f64 / sent as f64 } else { 0.0 },
            control: state.control.clone(),
        }
    }

    /// Total bytes of all connections so far.
    pub fn moved_bytes(&self) -> u64 {
        self.shared.moved_bytes.load(Ordering::Relaxed)
    }

    /// Time since the last data from the other end.
    pub fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.shared.heard_ms.load(Ordering::Relaxed));
        self.shared.began.elapsed().saturating_sub(heard)
    }

    /// Whether a queue has formed before the link, so that it is full.
    pub(crate) fn is_queued(&self) -> bool {
        self.shared.lock().evidence.is_queued()
    }

    /// Whether the run has ended.
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire) || self.shared.cancel.is_cancelled()
    }

    /// Sends all remaining messages, ends the streams, and waits until the threads and the other end have done the
    /// same.
    pub fn finish(&self) {
        self.end(true);
    }

    /// Like [`Transport::finish`], for the end with the very last message. TCP and ssh deliver it after this process
    /// has ended, so it does not wait for the other end.
    pub fn leave(&self) {
        let lingers = self.shared.lock().lingers;
        self.end(lingers);
    }

    fn end(&self, waits: bool) {
        let shared = self.shared.clone();
        shared.link.data.close();
        shared.link.control_out.close();
        // All content has been acknowledged, or nobody needs it any more.
        shared.handover.end();
        let until = Instant::now() + FAREWELL;
        let writers = std::mem::take(&mut shared.lock().writers);
        let waiting = writers.iter().any(|writer| {
            while !writer.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(2));
            }
            !writer.is_finished()
        });
        shared.over.store(true, Ordering::Release);
        shared.cut(if waiting || shared.cancel.is_cancelled() { Shutdown::Both } else { Shutdown::Write });
        shared.link.control_in.break_off();
        let (readers, pipe) = {
            let mut state = shared.lock();
            (std::mem::take(&mut state.readers), state.pipe.take())
        };
        if waiting {
            // Nobody takes their data; the threads end with the process.
            return;
        }
        drop(writers.into_iter().map(JoinHandle::join).collect::<Vec<_>>());
        if !waits {
            return;
        }
        while readers.iter().any(|reader| !reader.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        shared.cut(Shutdown::Both);
        // The other end takes the end of the pipe for the end of this process.
        drop(pipe);
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Option<JoinHandle<()>> {
    std::thread::Builder::new().name(name.to_owned()).spawn(work).ok()
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Monitors a connection from now on, and sets the congestion control that the others have.
    fn monitor(&self, socket: Option<TcpStream>, has_content: bool, state: &mut State) {
        let Some(socket) = socket else { return };
        let set = |name: &str| rustix::net::sockopt::set_tcp_congestion(&socket, name).map_err(io::Error::from);
        if let Some(name) = &self.congestion {
            let refused = |error| format!("not {name} ({error}) but the system's");
            state.control = Some(set(name).map_or_else(refused, |()| name.clone()));
        } else if state.control.as_deref() == Some(LOSSY_CONTROL) {
            // The others have it; one connection without it does no harm.
            let _ = set(LOSSY_CONTROL);
        }
        let last = TcpInfo::read(socket.as_fd()).unwrap_or_default();
        if self.sends && last.path_rtt() >= LONG_TRIP {
            // Without it the end of a copy takes slightly longer.
            let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES);
        }
        let since = Instant::now();
        state.sockets.push(Watched { socket, has_content, since, seen: since, last });
    }

    /// Sends the last message through the pipe. On a short path, queued messages move to the new connection. On a long
    /// one ssh's connection is faster for a while, as its congestion window has grown.
    fn say_switch(&self) {
        if self.handover.is_to_be_said() {
            let queue = &self.link.control_out;
            // Fails if the run is over: then the last messages go through the pipe.
            let _ = match self.handover.is_short() {
                true => queue.push_first(Message::Switch),
                false => queue.push(Message::Switch, &self.clock),
            };
        }
    }

    /// Moves content into ssh's pipe, as much as it may carry.
    fn merge(&self) {
        while self.handover.may_carry() {
            match self.link.data.pop_within(self.pulse.silence, &self.clock) {
                Taken::Item(message) => {
                    self.handover.carry(message.content_bytes());
                    if self.link.control_out.push_behind(message, MERGED, &self.clock).is_err() {
                        return;
                    }
                }
                Taken::TimedOut => {}
                Taken::End => return,
            }
        }
    }

    fn cut(&self, how: Shutdown) {
        for watched in &self.lock().sockets {
            // Fails for a connection that the other end has closed.
            let _ = watched.socket.shutdown(how);
        }
    }

    /// Ends the run because of a broken connection, unless it is over anyway.
    fn broken(&self, error: &io::Error) {
        if !self.over.load(Ordering::Acquire) {
            let reason = match error.kind() {
                // The message of TLS is for programmers.
                io::ErrorKind::UnexpectedEof => "the other end closed it without a last message".to_owned(),
                _ => error.to_string(),
            };
            // At the end of a run, the later end always finds the other one gone.
            if !self.last_said.load(Ordering::Acquire) {
                tracing::info!(%error, "the connection broke");
            }
            self.cancel.cancel(CopyError::Network(format!("the connection broke: {reason}")));
        }
    }

    /// Records that data has arrived from the other end.
    fn hears(&self) {
        self.heard_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn moved(&self, bytes: u64, messages: u64) {
        self.clock.add_items(messages, bytes);
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Writes messages from a queue to a stream, until the queue is closed and empty. `beats` sends heartbeats on a
    /// pipe.
    fn write(&self, mut writer: Box<dyn Write + Send>, queue: &Queue<Message>, mut beats: bool) {
        self.clock.adopt_thread();
        let mut head = Vec::with_capacity(64 << 10);
        let mut gathers = false;
        let (mut bytes, mut holds_back) = (0, beats);
        loop {
            if holds_back && Handover::is_enough(bytes) {
                holds_back = false;
                self.clock.blocked_in(|| self.handover.hold_back());
            }
            let message = match queue.try_pop() {
                Some(message) => message,
                None if gathers => {
                    gathers = false;
                    self.clock.starved_in(|| std::thread::sleep(GATHERING));
                    continue;
                }
                None => {
                    // No more messages for now, and other streams may take the next ones: flush.
                    if let Err(error) = self.clock.blocked_in(|| writer.flush()) {
                        return self.broken(&error);
                    }
                    let next = match beats {
                        true => queue.pop_within(self.pulse.beat, &self.clock),
                        false => queue.pop(&self.clock).map_or(Taken::End, Taken::Item),
                    };
                    match next {
                        Taken::Item(message) => message,
                        Taken::TimedOut => BEAT,
                        Taken::End => return,
                    }
                }
            };
            if matches!(message, Message::Account { last: true, .. } | Message::Abort { .. }) {
                self.last_said.store(true, Ordering::Release);
            }
            gathers = matches!(message, Message::List(_) | Message::Answer(_));
            head.clear();
            let content = encode(&message, &mut head);
            let sent = self.clock.blocked_in(|| writer.write_all(&head).and_then(|()| writer.write_all(content)));
            if let Err(error) = sent {
                return self.broken(&error);
            }
            let length = (head.len() + content.len()) as u64;
            bytes += length;
            self.moved(length, 1);
            if let Message::Pack(pack) = message {
                self.link.pool.give(pack.payload.into_buffer());
            } else if let Message::Block(block) = message {
                self.link.pool.give(block.payload.into_buffer());
            } else if message == Message::Switch {
                if let Err(error) = writer.write_all(&PUSH).and_then(|()| writer.flush()) {
                    return self.broken(&error);
                }
                let Some(next) = self.handover.writer() else {
                    return self.broken(&io::ErrorKind::NotConnected.into());
                };
                self.lock().pipe = Some(std::mem::replace(&mut writer, next));
                beats = false;
            }
        }
    }

    /// Reads messages from a stream into the queues, until it ends. `pipe` is set for ssh's pipe, which carries control
    /// messages.
    fn read(self: &Arc<Shared>, mut reader: Box<dyn Read + Send>, pipe: Option<Side>) {
        self.clock.adopt_thread();
        let control = pipe.is_some();
        // The other end sends heartbeats on a pipe.
        let mut beats = control;
        let mut decoder = Decoder::with_pool(self.link.pool.clone());
        for number in 1.. {
            if beats {
                self.awaited.store(number, Ordering::Release);
            }
            let read = self.clock.starved_in(|| reader.read(decoder.space()));
            if beats {
                self.awaited.store(0, Ordering::Release);
            }
            let count = match read {
                Ok(0) if decoder.is_between_frames() => {
                    if !control && !self.sends {
                        self.ended_early();
                    }
                    break;
                }
                Ok(0) => return self.broken(&io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.broken(&error);
                    break;
                }
            };
            self.moved(count as u64, 0);
            self.hears();
            match decoder.filled(count) {
                Ok(None) => {}
                Ok(Some(message)) if message == BEAT => {}
                Ok(Some(Message::Way(json))) if control => {
                    if let Some(ways) = &*self.ways.lock().unwrap_or_else(PoisonError::into_inner) {
                        // Nobody listens once the way is decided, or the run is over.
                        if let Err(mpsc::TrySendError::Full(_)) = ways.try_send(json) {
                            return self
                                .cancel
                                .cancel(CopyError::Meaning("more words on connections than a copy needs"));
                        }
                    }
                }
                Ok(Some(Message::Switch)) if beats => {
                    beats = false;
                    let Some(next) = self.handover.reader(FIRST_TIME) else {
                        return self.broken(&io::ErrorKind::TimedOut.into());
                    };
                    self.follow(std::mem::replace(&mut reader, next), pipe);
                }
                Ok(Some(message)) => {
                    let is_data = message.is_data();
                    if !control && !is_data || is_data && self.sends {
                        return self.cancel.cancel(CopyError::Meaning("a message on the wrong connection"));
                    }
                    let queue = if is_data { &self.link.data } else { &self.link.control_in };
                    if queue.push(message, &self.clock).is_err() {
                        break;
                    }
                }
                Err(error) => return self.cancel.cancel(error.into()),
            }
        }
        if control {
            self.link.control_in.close();
        }
    }

    /// The other end has sent its last message through the pipe. This end does the same, unless it has, and keeps the
    /// pipe open.
    fn follow(self: &Arc<Shared>, mut pipe: Box<dyn Read + Send>, side: Option<Side>) {
        let own = self.clone();
        // In another thread: sending may have to wait until the other end has read.
        spawn("pipe", move || {
            own.say_switch();
            let ended = io::copy(&mut pipe, &mut io::sink());
            if side == Some(Side::Far) {
                let error = io::Error::new(io::ErrorKind::ConnectionAborted, "ssh has ended");
                own.broken(ended.as_ref().err().unwrap_or(&error));
            }
        });
    }

    /// A content connection ended between records. Unless the run is over, records in flight on it are lost. But the
    /// reason may be about to arrive on another connection.
    fn ended_early(&self) {
        let until = Instant::now() + FAREWELL;
        while !self.last_said.load(Ordering::Acquire)
            && !self.over.load(Ordering::Acquire)
            && !self.cancel.is_cancelled()
        {
            if Instant::now() >= until {
                return self.broken(&io::ErrorKind::UnexpectedEof.into());
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Feeds the verdict with the kernel's counters, changes the congestion control if that pays, and detects that the
    /// other end has gone.
    fn watch(&self) {
        let mut silence = Silence::default();
        while !self.over.load(Ordering::Acquire) {
            std::thread::sleep(LOOK);
            if silence.observe(self.awaited.load(Ordering::Acquire)) >= self.pulse.silence {
                self.broken(&io::Error::new(io::ErrorKind::TimedOut, "the other machine says nothing any more"));
            }
            let mut state = self.lock();
            let state = &mut *state;
            let mut sum = SendReading::default();
            let mut sights = Vec::with_capacity(state.sockets.len());
            let now = Instant::now();
            for watched in &mut state.sockets {
                let Ok(info) = TcpInfo::read(watched.socket.as_fd()) else { continue };
                let us = |now: Duration, before: Duration| now.saturating_sub(before).as_micros() as u64;
                if watched.has_content {
                    sum += SendReading {
                        watched_us: now.saturating_duration_since(watched.seen).as_micros() as u64,
                        busy_us: us(info.busy, watched.last.busy),
                        receiver_limited_us: us(info.receive_window_limited, watched.last.receive_window_limited),
                        buffer_limited_us: us(info.send_buffer_limited, watched.last.send_buffer_limited),
                    };
                }
                sights.push(Sight::between(&watched.last, &info, watched.since.elapsed()));
                (watched.last, watched.seen) = (info, now);
            }
            if self.sends {
                self.ledger.add_sending(sum);
            }
            state.evidence.record(&sights);
            let free = self.sends && self.congestion.is_none();
            if free && state.control.is_none() && state.evidence.is_lossy() {
                let changed = |watched: &Watched| {
                    rustix::net::sockopt::set_tcp_congestion(&watched.socket, LOSSY_CONTROL).is_ok()
                };
                // Not permitted, or not available: the system's stays.
                let is_changed = state.sockets.iter().all(changed);
                state.control = Some(if is_changed { LOSSY_CONTROL } else { "the system's" }.to_owned());
                tracing::debug!(control = state.control, "the path loses segments: another congestion control");
            }
        }
    }
}

/// How long a pipe's reader has waited in the same read. It counts intervals: while this process is suspended none
/// passes, and data that arrived meanwhile can still be read.
#[derive(Debug, Default)]
struct Silence {
    awaited: u64,
    looks: u32,
}

impl Silence {
    fn observe(&mut self, awaited: u64) -> Duration {
        self.looks = if awaited > 0 && awaited == self.awaited { self.looks + 1 } else { 0 };
        self.awaited = awaited;
        LOOK * self.looks
    }
}

#[cfg(test)]
mod tests;
