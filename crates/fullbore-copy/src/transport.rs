//! Between machines: messages over connections.
//!
//! A [`stream::Stream`] is a stream of bytes both ways: an encrypted TCP connection, or the pipe of ssh. The
//! pipe carries control messages in both directions until another stream takes them over (`handover`), further
//! streams content in one; where there is only the pipe it carries everything. [`Transport`] has the threads that
//! move messages between streams and the queues of a [`Link`], so that sender and receiver do not know of any of this.

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

/// Time that the last messages have to leave in before connections are cut.
const FAREWELL: Duration = Duration::from_secs(5);
/// Time between looks at the kernel's counters of the connections.
const LOOK: Duration = Duration::from_millis(100);
/// A list is rarely the last: a directory more or less takes some microseconds. What comes within this time behind one,
/// or behind the answer to one, goes with it; each by itself would cost both ends more than listing it.
const GATHERING: Duration = Duration::from_millis(1);
/// Time that the other end's connection may take after it was said that messages come by it.
const FIRST_TIME: Duration = Duration::from_secs(10);
/// Streams of one session: each costs a thread, and who proved the key may open as many as it likes. More than
/// `--streams`, a number below 256, asks for.
const STREAMS_MAX: usize = 256;
/// What the other end's transport said and nobody has heard yet. It says a few things in a session, and then asks for
/// connections, seconds apart.
const WAYS: usize = 64;
/// Records that wait in front of a pipe that carries control messages as well: those must not wait long.
const MERGED: usize = 2;
/// What goes behind the last message by the pipe, where nobody reads it any more. That message is short: ssh's
/// connection would keep it until all before is acknowledged, and the other machine's kernel waits up to 40 ms before it
/// acknowledges (RFC 896, RFC 1122). Behind it there has to be more than a segment, with jumbo frames as well.
const PUSH: [u8; 10_000] = [0; 10_000];
/// The congestion control for paths that lose what no queue has cost: it does not take loss for a full link.
const LOSSY_CONTROL: &str = "bbr";
/// On a path with a longer round trip than this, a connection holds no more than these bytes that it has not
/// sent yet: what waits in the memory of a slow connection cannot go by a faster one, and the end of a copy
/// waits for it. On short paths it is gone at once.
const LONG_TRIP: Duration = Duration::from_millis(2);
const UNSENT_BYTES: u32 = 512 << 10;

/// How an end of a pipe learns that the other one has gone. The kernel looks after TCP connections of our own, and
/// ssh after the user's end of its; but the far end of a flow that was forgotten on the way may wait for hours, and
/// hold the destination meanwhile.
#[derive(Clone, Copy, Debug)]
struct Pulse {
    /// A pipe that has nothing to say says so as often as this.
    beat: Duration,
    /// One by which nothing came for so long has no other end.
    silence: Duration,
}

/// As ssh does it at the user's end: three questions, 15 s apart.
const PULSE: Pulse = Pulse { beat: Duration::from_secs(10), silence: Duration::from_secs(45) };
/// A message that says nothing, and goes no further: no counters.
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
    /// This end sends content; else it receives.
    sends: bool,
    /// The congestion control that the user wants.
    congestion: Option<String>,
    clock: Arc<StageClock>,
    ledger: Ledger,
    state: Mutex<State>,
    /// Bytes that went through all streams, in either direction.
    moved_bytes: AtomicU64,
    over: AtomicBool,
    /// This end's last message is on its way: the other end may close connections now.
    last_said: AtomicBool,
    pulse: Pulse,
    began: Instant,
    /// Milliseconds from `began` to when something came from the other end last.
    heard_ms: AtomicU64,
    /// What a pipe's reader waits for: the number of its read; 0 if it does not wait.
    awaited: AtomicU64,
    handover: Handover,
    /// Who hears how messages shall go.
    ways: Mutex<Option<mpsc::SyncSender<Vec<u8>>>>,
}

/// Which end of ssh's pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    /// The one that started ssh.
    Near,
    /// The one that ssh started: it ends with ssh, by which way ever messages go.
    Far,
}

#[derive(Default)]
struct State {
    sockets: Vec<Watched>,
    /// Streams with content so far.
    streams: usize,
    writers: Vec<JoinHandle<()>>,
    readers: Vec<JoinHandle<()>>,
    /// Not all that was written to the streams arrives by itself if this process ends.
    lingers: bool,
    /// The pipe that control messages went by. As long as it is open, the other end knows that this one is there.
    pipe: Option<Box<dyn Write + Send>>,
    /// See [`Path::control`].
    control: Option<String>,
    /// What has been seen of the path.
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
    /// It carries content, and not only what the two ends say to each other.
    has_content: bool,
    since: Instant,
    /// When it was looked at last.
    seen: Instant,
    last: TcpInfo,
}

/// What the kernel says of the connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Path {
    /// Connections with content.
    pub streams: usize,
    /// The smallest round trip seen.
    pub round_trip: Option<Duration>,
    /// Segments sent again, of all sent.
    pub loss: f64,
    /// The congestion control that was put on them, or why it is the system's; none if none was wanted.
    pub control: Option<String>,
}

impl Path {
    /// With what only the end knows that sends.
    #[must_use]
    pub(crate) fn when_sent_by(self, sender: Path) -> Path {
        Path { loss: sender.loss, control: sender.control, ..self }
    }
}

impl Transport {
    /// A transport without streams yet.
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
        // Ends by itself within a look of the end; without it the verdict knows less.
        drop(spawn("connections", move || watching.watch()));
        Transport { shared }
    }

    /// Puts a stream to work that carries content; closes it if there are too many.
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
            // Its reader stays: closing it would tell the other end that nobody listens.
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

    /// Begins to say by ssh's pipe what there is to say, content included.
    fn speak(&self, writer: impl Write + Send + 'static) {
        let shared = &self.shared;
        let mut state = shared.lock();
        state.streams += 1;
        let (queue, own) = (shared.link.control_out.clone(), shared.clone());
        let writer = Box::new(io::BufWriter::with_capacity(stream::PIPE_BYTES, writer));
        state.writers.extend(spawn("control out", move || own.write(writer, &queue, true)));
        if shared.sends {
            // One pipe for all: content goes by the way of control messages.
            let own = shared.clone();
            state.writers.extend(spawn("merge", move || own.merge()));
        }
    }

    /// Begins to hear what comes by ssh's pipe.
    fn hear(&self, side: Side, reader: impl Read + Send + 'static) {
        let own = self.shared.clone();
        // Until now others have heard it.
        own.hears();
        let reader = Box::new(io::BufReader::with_capacity(stream::PIPE_BYTES, reader));
        self.shared.lock().readers.extend(spawn("control in", move || own.read(reader, Some(side))));
    }

    /// Says to the other end's transport how messages shall go.
    fn say_way(&self, way: &impl serde::Serialize) -> io::Result<()> {
        let json = serde_json::to_vec(way).map_err(io::Error::other)?;
        let said = self.shared.link.control_out.push(Message::Way(json), &self.shared.clock);
        said.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// What the other end's transport says of how messages shall go.
    fn ways(&self) -> mpsc::Receiver<Vec<u8>> {
        let (sender, receiver) = mpsc::sync_channel(WAYS);
        *self.shared.ways.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
        receiver
    }

    /// Control messages go by this stream as soon as they can, no longer by the pipe. The end that decided it says so
    /// first, the other one when it hears of it.
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
            // Whoever waits for content for the pipe.
            shared.link.data.nudge();
        }
        if decided {
            shared.say_switch();
        }
    }

    /// There is nothing better than ssh's pipe.
    fn stay_with_pipe(&self) {
        self.shared.handover.stay();
    }

    /// Ends the run: a connection that is needed could not be made, or has gone.
    pub fn fail(&self, error: &io::Error) {
        self.shared.broken(error);
    }

    /// What the kernel says of the connections now.
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

    /// Bytes that went through all connections so far.
    pub fn moved_bytes(&self) -> u64 {
        self.shared.moved_bytes.load(Ordering::Relaxed)
    }

    /// For how long nothing has come from the other end.
    pub fn silence(&self) -> Duration {
        let heard = Duration::from_millis(self.shared.heard_ms.load(Ordering::Relaxed));
        self.shared.began.elapsed().saturating_sub(heard)
    }

    /// Whether a queue stands before the link: it is full.
    pub(crate) fn is_queued(&self) -> bool {
        self.shared.lock().evidence.is_queued()
    }

    /// Whether the run has ended.
    pub fn is_over(&self) -> bool {
        self.shared.over.load(Ordering::Acquire) || self.shared.cancel.is_cancelled()
    }

    /// Sends what is left, ends the streams, and waits for the threads and for the other end to do the same.
    pub fn finish(&self) {
        self.end(true);
    }

    /// As [`Transport::finish`], for the end whose word was the last of all: by TCP and by ssh that arrives without it,
    /// so it does not wait for the other end.
    pub fn leave(&self) {
        let lingers = self.shared.lock().lingers;
        self.end(lingers);
    }

    fn end(&self, waits: bool) {
        let shared = self.shared.clone();
        shared.link.data.close();
        shared.link.control_out.close();
        // All content has been acknowledged, or nobody wants it any more.
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
            // Nobody takes what they have; they end with the process.
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
        // The other end takes the end of the pipe for ours.
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

    /// Looks after a connection from now on; it gets the congestion control that the others have.
    fn monitor(&self, socket: Option<TcpStream>, has_content: bool, state: &mut State) {
        let Some(socket) = socket else { return };
        let set = |name: &str| rustix::net::sockopt::set_tcp_congestion(&socket, name).map_err(io::Error::from);
        if let Some(name) = &self.congestion {
            let refused = |error| format!("not {name} ({error}) but the system's");
            state.control = Some(set(name).map_or_else(refused, |()| name.clone()));
        } else if state.control.as_deref() == Some(LOSSY_CONTROL) {
            // The others have it; one without it does no harm.
            let _ = set(LOSSY_CONTROL);
        }
        let last = TcpInfo::read(socket.as_fd()).unwrap_or_default();
        if self.sends && last.path_rtt() >= LONG_TRIP {
            // Without it the end takes a little longer.
            let _ = socket2::SockRef::from(&socket).set_tcp_notsent_lowat(UNSENT_BYTES);
        }
        let since = Instant::now();
        state.sockets.push(Watched { socket, has_content, since, seen: since, last });
    }

    /// The last thing that is said by the pipe. On a short path what waits goes by the connection. On a long one ssh's
    /// is faster for a while, as it has found out how much it may send at once.
    fn say_switch(&self) {
        if self.handover.is_to_be_said() {
            let queue = &self.link.control_out;
            // Refused where the run is over: then the last words go by the pipe.
            let _ = match self.handover.is_short() {
                true => queue.push_first(Message::Switch),
                false => queue.push(Message::Switch, &self.clock),
            };
        }
    }

    /// Content by ssh's pipe: as much as that may carry.
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
            // Fails for one that the other end has closed.
            let _ = watched.socket.shutdown(how);
        }
    }

    /// A broken connection ends the run, unless it is over anyway.
    fn broken(&self, error: &io::Error) {
        if !self.over.load(Ordering::Acquire) {
            let reason = match error.kind() {
                // TLS has words of its own for it, which are for programmers.
                io::ErrorKind::UnexpectedEof => "the other end has gone without a last word".to_owned(),
                _ => error.to_string(),
            };
            // At the end of a run whichever end is last finds the other one gone.
            if !self.last_said.load(Ordering::Acquire) {
                tracing::info!(%error, "the connection broke");
            }
            self.cancel.cancel(CopyError::Network(format!("the connection broke: {reason}")));
        }
    }

    /// Something has come from the other end.
    fn hears(&self) {
        self.heard_ms.store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn moved(&self, bytes: u64, messages: u64) {
        self.clock.add_items(messages, bytes);
        self.moved_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// From a queue to a stream, until the queue is closed and empty; `beats` on a pipe, which shows that this end is
    /// there.
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
                    // Nothing more to say for now, and others may take what comes next: out with it.
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

    /// From a stream to the queues, until it ends; with control messages if it is an end of ssh's pipe.
    fn read(self: &Arc<Shared>, mut reader: Box<dyn Read + Send>, pipe: Option<Side>) {
        self.clock.adopt_thread();
        let control = pipe.is_some();
        // On a pipe the other end shows that it is there.
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
                        // Nobody listens who has decided, or whose run is over.
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

    /// The other end has said the last by the pipe: this one says so as well, unless it has, and keeps the pipe.
    fn follow(self: &Arc<Shared>, mut pipe: Box<dyn Read + Send>, side: Option<Side>) {
        let own = self.clone();
        // Not by the thread that reads: to say something may have to wait until the other end has read.
        spawn("pipe", move || {
            own.say_switch();
            let ended = io::copy(&mut pipe, &mut io::sink());
            if side == Some(Side::Far) {
                let error = io::Error::new(io::ErrorKind::ConnectionAborted, "ssh has ended");
                own.broken(ended.as_ref().err().unwrap_or(&error));
            }
        });
    }

    /// A connection with content ends where a record does. While more has to come, what was under way on it is
    /// lost; but the reason may be about to come by another one.
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

    /// Feeds the verdict with the kernel's counters, changes the congestion control where it pays, and misses an other
    /// end that has gone.
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
                // Not allowed, or not there: then it stays as it is.
                let is_changed = state.sockets.iter().all(changed);
                state.control = Some(if is_changed { LOSSY_CONTROL } else { "the system's" }.to_owned());
                tracing::debug!(control = state.control, "the path loses segments: another congestion control");
            }
        }
    }
}

/// For how long a pipe's reader has waited for the same thing. Counted in looks: while this process is stopped nothing
/// is looked at, and what came meanwhile is still to be read.
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
