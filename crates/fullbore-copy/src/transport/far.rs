//! The far end of a connection: started by ssh, with the task on its standard input.
//!
//! It listens, and connects to the near end at the same time. A connection counts once it proves the key that came by
//! ssh. The near end says on each what it is for, and closes those that it does not need.

use std::io::{BufRead, Read as _, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};

use rustls::{ClientConfig, ServerConfig};

use super::grow::MOST_STREAMS;
use super::join;
use super::keys::{Cipher, OwnKey, Speeds};
use super::near::RACE_TIME;
use super::near::opener::{ACCEPT_LOOK, PROVING, await_dialler, listen};
use super::setup::{self, Decision, Hello, Ready, Task, Way};
use super::stream::Stream;
use super::{Side, Transport, tls};
use crate::error::CopyError;
use crate::reach::Ports;
use crate::wire::VERSION;

/// Most connections that the near end may request in one session: twice as many as it adds, one by one, while they
/// help.
const DIALS: u8 = 2 * MOST_STREAMS;

/// The far end with its task.
#[derive(Debug)]
pub(crate) struct Far {
    /// The task.
    pub task: Task,
    dialler: Dialler,
    found_streams: mpsc::Receiver<(u8, Stream)>,
    over: Arc<AtomicBool>,
    /// Number of connections that this end may still make.
    dials: u8,
}

/// Makes connections to the near end.
#[derive(Clone, Debug)]
struct Dialler {
    client: Arc<ClientConfig>,
    near: Option<SocketAddr>,
    found: mpsc::Sender<(u8, Stream)>,
}

/// Sends this end's description, receives the task, and starts looking for connections.
///
/// `addresses` are the near end's and this one's, as ssh reports them. This end listens on one of `ports`.
///
/// # Errors
/// [`CopyError::Network`] if the pipe ends or breaks. [`CopyError::Meaning`] if the task is malformed.
/// [`CopyError::System`] if keys cannot be made.
pub(crate) fn greet(
    input: &mut impl BufRead,
    output: &mut impl Write,
    program: &str,
    addresses: Option<(IpAddr, IpAddr)>,
    ports: Option<Ports>,
) -> Result<Far, CopyError> {
    let own = OwnKey::generate()?;
    let speeds = Speeds::measure();
    let listener = listen(ports);
    let hello = Hello {
        version: VERSION,
        program: program.to_owned(),
        key: own.public().to_vec(),
        port: listener.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.port())),
        address: addresses.map(|(_, server)| server),
        speeds: Some(speeds),
    };
    let gone = || CopyError::Network("the other end has gone".to_owned());
    setup::write(output, &hello).map_err(|_| gone())?;
    let task = setup::read::<Task>(input, setup::TASK_BYTES)?.ok_or_else(gone)?;
    let cipher: Cipher = speeds.choose(&task.speeds);
    tracing::debug!(role = ?task.role, cipher = cipher.name(), "the near end has given a task");
    let (client, server) = (own.client(&task.key, cipher)?, own.server(&task.key, cipher)?);
    let (found, found_streams) = mpsc::channel();
    let over = Arc::new(AtomicBool::new(false));
    if let Some(listener) = listener {
        let (found, over) = (found.clone(), over.clone());
        std::thread::spawn(move || accept(&listener, &server, &found, &over));
    }
    let near = addresses.and_then(|(client, _)| Some(SocketAddr::new(client, task.port?)));
    let dialler = Dialler { client, near, found };
    dialler.dial(1);
    Ok(Far { task, dialler, found_streams, over, dials: DIALS })
}

fn accept(listener: &TcpListener, server: &Arc<ServerConfig>, found: &mpsc::Sender<(u8, Stream)>, over: &AtomicBool) {
    if listener.set_nonblocking(true).is_err() {
        return;
    }
    let proving = Arc::new(());
    while !over.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((socket, _)) if Arc::strong_count(&proving) <= PROVING && socket.set_nonblocking(false).is_ok() => {
                let (server, found, held) = (server.clone(), found.clone(), proving.clone());
                std::thread::spawn(move || {
                    if let Ok(stream) = tls::accept(socket, server) {
                        drop(held);
                        hear(stream, &found);
                    }
                });
            }
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => await_dialler(listener),
            Err(_) => std::thread::sleep(ACCEPT_LOOK),
        }
    }
}

/// Waits for the near end to say what a connection is for.
fn hear(mut stream: Stream, found: &mpsc::Sender<(u8, Stream)>) {
    let mut number = [0];
    if stream.reader.read_exact(&mut number).is_ok() {
        let _ = found.send((number[0], stream));
    }
}

impl Dialler {
    fn dial(&self, count: u8) {
        let Some(address) = self.near else { return };
        for _ in 0..count {
            let (client, found) = (self.client.clone(), self.found.clone());
            std::thread::spawn(move || {
                let stream =
                    TcpStream::connect_timeout(&address, RACE_TIME).and_then(|socket| tls::connect(socket, client));
                match stream {
                    Ok(stream) => hear(stream, &found),
                    Err(error) => tracing::debug!(%address, %error, "cannot connect to the near end"),
                }
            });
        }
    }
}

impl Far {
    /// Reports whether the task can be done, and puts ssh's pipe and later connections to work. If it cannot be done,
    /// waits until the near end has received that.
    ///
    /// # Errors
    /// [`CopyError::Network`] if the near end has gone.
    pub(crate) fn start<I: BufRead + Send + 'static, O: Write + Send + 'static>(
        mut self,
        mut input: I,
        mut output: O,
        ready: &Ready,
        transport: &Arc<Transport>,
    ) -> Result<Started, CopyError> {
        setup::write(&mut output, ready).map_err(|_| CopyError::Network("the other end has gone".to_owned()))?;
        let over = self.over.clone();
        if ready.refused.is_some() {
            let _ = std::io::copy(&mut input, &mut std::io::sink());
            return Ok(Started { over });
        }
        let ways = transport.ways();
        transport.speak(output);
        transport.hear(Side::Far, input);
        let found_streams = std::mem::replace(&mut self.found_streams, mpsc::channel().1);
        let adding = transport.clone();
        std::thread::spawn(move || {
            let mut controlled = false;
            while let Ok((number, stream)) = found_streams.recv() {
                match number {
                    0 if std::mem::replace(&mut controlled, true) => {}
                    0 => adding.hand_over(stream, false),
                    _ => adding.add(stream),
                }
            }
        });
        let transport = transport.clone();
        std::thread::spawn(move || {
            for json in ways {
                let decided = serde_json::from_slice(&json).map_err(std::io::Error::other);
                if let Err(error) = decided.and_then(|decision| self.follow(decision, &transport)) {
                    transport.fail(&error);
                }
            }
        });
        Ok(Started { over })
    }

    /// Carries out the near end's decision.
    fn follow(&mut self, decision: Decision, transport: &Arc<Transport>) -> std::io::Result<()> {
        tracing::debug!(way = ?decision.way, streams = decision.streams, "the near end has decided on a way");
        match decision.way {
            Way::NearDials => {}
            Way::FarDials => {
                let count = decision.streams.min(MOST_STREAMS).min(self.dials);
                self.dials -= count;
                self.dialler.dial(count);
            }
            Way::Pipe => {
                self.over.store(true, Ordering::Release);
                transport.stay_with_pipe();
                if decision.streams > 0 {
                    transport.say_way(&join::listen(transport)?)?;
                }
            }
        }
        Ok(())
    }
}

/// The connections of the far end; accepts no more when dropped.
#[derive(Debug)]
pub(crate) struct Started {
    over: Arc<AtomicBool>,
}

impl Drop for Started {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
    }
}
