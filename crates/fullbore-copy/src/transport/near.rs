//! The near end of a connection: the one that the user started.
//!
//! It starts the program on the other machine through the user's ssh, and sends the task at once. From then on messages
//! flow through ssh's pipe. Meanwhile it connects to the far end's port, and listens for the far end's connection. The
//! first connection that proves the right key wins and takes over. If there is none within three seconds, ssh carries
//! everything.

mod links;
pub(super) mod opener;
mod search;

use std::ffi::OsString;
use std::io::BufReader;
use std::net::{IpAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::grow::Growth;
use super::keys::{Cipher, OwnKey, Speeds};
use super::setup::{self, Hello, Joint, Ready, Task, Way};
use super::{Side, Transport};
use crate::error::CopyError;
use crate::reach::Ports;
use crate::send_program::{NoProgram, Programs};
use crate::wire::VERSION;
use links::Links;
use opener::{Opener, listen};
use search::{Search, race};

/// Time limit for the search for a direct connection.
pub(crate) const RACE_TIME: Duration = Duration::from_secs(3);
/// Interval of checks whether ssh has ended.
const END_LOOK: Duration = Duration::from_millis(1);

/// Settings of the near end for a connection.
#[derive(Clone, Debug)]
pub(crate) struct ConnectSettings {
    /// The command that runs the program on the other machine, with its pipes connected to this process.
    pub command: Vec<OsString>,
    /// Options for the command, if it is known to be ssh.
    pub options: &'static [&'static str],
    /// Programs to send with `--send-program`; one of them is sent before anything else.
    pub(crate) programs: Option<Programs>,
    /// The host as the user named it, for direct connections.
    pub host: String,
    /// Whether to try direct TCP connections; else ssh carries everything.
    pub tcp: bool,
    /// Ports that this end listens on; `None` for any.
    pub ports: Option<Ports>,
    /// Number of connections for content; 0 for as many as the path needs.
    pub streams: u8,
    /// Command that starts the program there once more, without asking for a password. The name of the session to join
    /// is appended to its last word. `None` if there is no such command.
    pub more_pipes: Option<Vec<OsString>>,
    /// Pipe for the command's stderr, which the other machine partly controls. Without it, stderr is this process's
    /// own.
    pub messages: Option<Arc<OwnedFd>>,
}

/// The answering program on the other machine.
#[derive(Debug)]
pub(crate) struct Peer {
    child: Child,
    output: BufReader<ChildStdout>,
    own: OwnKey,
    speeds: Speeds,
    listener: Option<TcpListener>,
    /// Its description of itself.
    pub hello: Hello,
}

/// Handle to the ssh process for other threads. It never refers to another process with the same number.
#[derive(Debug)]
pub(crate) struct SshHandle {
    process: OwnedFd,
}

impl SshHandle {
    /// `None` before Linux 5.3, or if a container forbids it.
    fn of(child: &Child) -> Option<SshHandle> {
        use rustix::process::{Pid, PidfdFlags, pidfd_open};
        pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok().map(|process| SshHandle { process })
    }

    /// Ends ssh, so that the thread that waits for it goes on.
    pub(crate) fn cut(&self) {
        // It may have ended by itself.
        let _ = rustix::process::pidfd_send_signal(&self.process, rustix::process::Signal::KILL);
    }
}

/// Why there is no usable program on the other machine.
#[derive(Debug)]
pub(crate) enum NoPeer {
    /// The command ended, with this exit code; 127 if the program was not found.
    Ended(Option<i32>),
    /// The program there has another version of the protocol.
    Version(Hello),
    /// There is no program that can be sent to that machine.
    NoProgram(NoProgram),
    /// Any other error.
    Failed(CopyError),
}

/// A connection to the other machine, through ssh's pipe at first.
#[derive(Debug)]
pub(crate) struct Connection {
    /// The cipher of direct connections.
    pub cipher: Cipher,
    /// Whether the task can be done there.
    pub ready: Ready,
    child: Child,
    output: Option<BufReader<ChildStdout>>,
    search: Option<Search>,
    /// Number of connections that the user wants; 0 for as many as the path needs.
    streams: u8,
    /// How messages travel, as far as known.
    pub routing: Routing,
    opener: Arc<Opener>,
    children: Arc<Mutex<Vec<Child>>>,
}

/// The current route of messages; updated when a better one is found.
#[derive(Clone, Debug)]
pub(crate) struct Routing {
    route: Arc<Mutex<Route>>,
}

impl Routing {
    /// The current route.
    pub(crate) fn now(&self) -> Route {
        self.route.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn decide(&self, route: Route) {
        *self.route.lock().unwrap_or_else(PoisonError::into_inner) = route;
    }
}

/// How messages travel.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    /// ssh's pipe, until another way is chosen.
    pub way: Way,
    /// Why there is no direct connection.
    pub fallback: Option<String>,
    /// Number of connections for content at first, besides the pipe if that carries content.
    pub streams: u8,
    /// Duration of the search.
    pub searched: Duration,
    /// How to make further connections by ssh: the command, and the session that they join.
    joining: Option<(Vec<OsString>, Joint)>,
}

impl Route {
    const PIPE: Route = Route { way: Way::Pipe, fallback: None, streams: 0, searched: Duration::ZERO, joining: None };
}

impl Peer {
    /// Starts the program there, sends the task, and receives its description. This has no time limit: a caller who
    /// does not want to wait ends ssh with the handle that `started` receives. Messages follow directly after the task.
    ///
    /// # Errors
    /// [`NoPeer`] if it does not run there, or has another protocol version, or no program can be sent.
    /// [`NoPeer::Failed`] also if the pipe breaks.
    pub(crate) fn start(
        settings: &ConnectSettings,
        mut task: Task,
        transport: &Transport,
        started: impl FnOnce(Option<SshHandle>),
    ) -> Result<Peer, NoPeer> {
        let failed = |what, error| NoPeer::Failed(CopyError::System { what, error });
        let (program, arguments) = settings.command.split_first().ok_or(NoPeer::Ended(None))?;
        let began = Instant::now();
        // The last word is a shell command of which the log shows only host and program.
        tracing::info!(host = %settings.host, program = %program.display(), "starting the far end");
        let mut command = Command::new(program);
        command.args(settings.options).args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some(messages) = &settings.messages {
            command.stderr(messages.try_clone().map_err(|error| failed("start ssh", error))?);
        }
        let mut child = command.spawn().map_err(|error| failed("start ssh", error))?;
        drop(command);
        started(SshHandle::of(&child));
        let (Some(mut input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(NoPeer::Ended(None));
        };
        let mut output = BufReader::with_capacity(64 << 10, output);
        // While ssh connects.
        let own = OwnKey::generate().map_err(NoPeer::Failed)?;
        let speeds = Speeds::measure();
        let listener = if settings.tcp { listen(settings.ports) } else { None };
        task.key = own.public().to_vec();
        task.port = listener.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.port()));
        task.speeds = speeds;
        if let Some(programs) = &settings.programs {
            match programs.send(&mut output, &mut input) {
                Ok(Ok(())) => {}
                Ok(Err(no_program)) => {
                    end(&mut child);
                    return Err(NoPeer::NoProgram(no_program));
                }
                Err(error) => {
                    end(&mut child);
                    return Err(NoPeer::Failed(error));
                }
            }
        }
        let give = |mut input: ChildStdin| {
            // If the program has ended, its exit code has the reason.
            let _ = setup::write(&mut input, &task);
            transport.speak(input);
        };
        // The shell's `head`, which reads the program from the pipe, may read more than that.
        let waiting = if settings.programs.is_none() {
            give(input);
            None
        } else {
            Some(input)
        };
        match setup::read::<Hello>(&mut output, setup::ANSWER_BYTES) {
            Ok(Some(hello)) if hello.version == VERSION => {
                let (version, protocol, time_ms) = (&hello.program, hello.version, began.elapsed().as_millis());
                tracing::info!(host = %settings.host, %version, protocol, time_ms, "the far end answers");
                waiting.into_iter().for_each(give);
                Ok(Peer { child, output, own, speeds, listener, hello })
            }
            Ok(Some(hello)) => {
                end(&mut child);
                let (version, protocol) = (&hello.program, hello.version);
                tracing::info!(host = %settings.host, %version, protocol, "the far end has another protocol");
                Err(NoPeer::Version(hello))
            }
            Ok(None) => {
                let code = child.wait().ok().and_then(|status| status.code());
                tracing::info!(host = %settings.host, code, "ssh ended before the far end said anything");
                Err(NoPeer::Ended(code))
            }
            Err(error) => {
                end(&mut child);
                Err(NoPeer::Failed(error))
            }
        }
    }

    /// Receives whether the task can be done there, and starts to look for a better way than ssh's pipe.
    ///
    /// # Errors
    /// The other end's error if it refuses the task. [`CopyError::Network`] if ssh breaks, [`CopyError::Meaning`] if
    /// the answer is malformed.
    pub(crate) fn connect(mut self, settings: &ConnectSettings) -> Result<Connection, CopyError> {
        let (own, speeds) = (&self.own, self.speeds);
        let cipher = self.hello.speeds.map_or(Cipher::Aes, |theirs| speeds.choose(&theirs));
        let (client, server) = (own.client(&self.hello.key, cipher)?, own.server(&self.hello.key, cipher)?);
        let opener = Arc::new(Opener::new(client, server, self.listener, settings.streams, settings.ports));
        let race = settings.tcp.then(|| race(&opener, &self.hello, settings));
        let ready = setup::read::<Ready>(&mut self.output, setup::ANSWER_BYTES)?;
        let ready = ready.ok_or_else(|| CopyError::Network("the program on the other machine ended".to_owned()))?;
        if let Some((exit_code, text)) = ready.refused {
            tracing::info!(host = %settings.host, exit_code, reason = text, "the far end refuses the task");
            end(&mut self.child);
            return Err(CopyError::Remote { exit_code, text });
        }
        let search = Search { race, streams: settings.streams, more_pipes: settings.more_pipes.clone() };
        Ok(Connection {
            cipher,
            ready,
            child: self.child,
            output: Some(self.output),
            streams: search.streams,
            search: Some(search),
            routing: Routing { route: Arc::new(Mutex::new(Route::PIPE)) },
            opener,
            children: Arc::default(),
        })
    }
}

impl Connection {
    /// Starts to receive through ssh's pipe, and adds better connections as they are made. `decided` gets the final
    /// route.
    ///
    /// # Errors
    /// `NotConnected` if it was started before.
    pub(crate) fn start(
        &mut self,
        transport: &Arc<Transport>,
        decided: impl FnOnce(Route) + Send + 'static,
    ) -> std::io::Result<()> {
        let search = self.begin_by_pipe(transport)?;
        let links = self.links(transport);
        let (routing, wished) = (self.routing.clone(), search.streams);
        std::thread::spawn(move || match search.decide(&links.transport) {
            Ok(route) => {
                routing.decide(route.clone());
                decided(route.clone());
                links.open(&route, 1, route.streams);
                if let Some(growth) = growth(wished, &route) {
                    links.grow(&route, growth);
                }
            }
            Err(error) => links.transport.fail(&error),
        });
        Ok(())
    }

    /// Like [`Connection::start`], but waits for the final route, and opens no connections for content.
    ///
    /// # Errors
    /// `NotConnected` if it was started before. The error of the pipe if the other end has gone.
    pub(crate) fn begin(&mut self, transport: &Arc<Transport>) -> std::io::Result<()> {
        let search = self.begin_by_pipe(transport)?;
        let decided = search.decide(transport)?;
        self.routing.decide(decided);
        Ok(())
    }

    fn begin_by_pipe(&mut self, transport: &Transport) -> std::io::Result<Search> {
        let started = self.output.take().zip(self.search.take());
        let (output, search) = started.ok_or(std::io::ErrorKind::NotConnected)?;
        transport.hear(Side::Near, output);
        Ok(search)
    }

    /// Opens the connections with these numbers, and adds each to the transport once it is there.
    pub(crate) fn open(&self, transport: &Arc<Transport>, from: u8, to: u8) {
        self.links(transport).open(&self.routing.now(), from, to);
    }

    /// Growth of the number of connections, for a caller who has opened those of the route; `None` if the number is
    /// fixed.
    pub(crate) fn growth(&self) -> Option<Growth> {
        growth(self.streams, &self.routing.now())
    }

    /// Opens more connections if a copy at this rate would try more. Returns whether it did.
    pub(crate) fn grow(&self, transport: &Arc<Transport>, growth: &mut Growth, bytes_per_s: f64) -> bool {
        // If the far end has gone, the next trial reports it.
        self.links(transport).more(&self.routing.now(), growth, bytes_per_s).unwrap_or(false)
    }

    fn links(&self, transport: &Arc<Transport>) -> Links {
        Links { opener: self.opener.clone(), transport: transport.clone(), children: self.children.clone() }
    }

    /// Ends the program on the other machine, unless it has ended by itself.
    pub(crate) fn finish(mut self) {
        let children = std::mem::take(&mut *self.children.lock().unwrap_or_else(PoisonError::into_inner));
        // Their data has arrived, or never will.
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

/// Growth of the number of connections; `None` if the user fixed it.
fn growth(wished: u8, route: &Route) -> Option<Growth> {
    let grows = wished == 0 && matches!(route.way, Way::NearDials | Way::FarDials);
    grows.then(|| Growth::new(route.streams))
}

fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

/// Parses the addresses in `SSH_CONNECTION`: client, its port, server, its port (ssh(1)).
pub(crate) fn ssh_connection(text: &str) -> Option<(IpAddr, IpAddr)> {
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
    use crate::session::{CancelToken, Link};

    #[test]
    fn another_version_is_told_from_no_program_at_all() {
        let settings = |script: &str| ConnectSettings {
            command: ["sh", "-c", script].map(OsString::from).into(),
            options: &[],
            programs: None,
            host: "host".to_owned(),
            tcp: false,
            streams: 0,
            more_pipes: None,
            messages: None,
            ports: None,
        };
        let other = format!("echo 'fullbore-copy {{\"version\":{},\"program\":\"9.9\"}}'; cat", VERSION + 1);
        let start = |settings: &ConnectSettings| {
            let link = Link::remote();
            let transport = Transport::new(&link, &CancelToken::new(&link), true, &Ledger::off(), None);
            let task = Task::new(setup::Role::Receive, Default::default());
            Peer::start(settings, task, &transport, |_| {})
        };
        match start(&settings(&other)) {
            Err(NoPeer::Version(hello)) => assert_eq!((hello.version, &*hello.program), (VERSION + 1, "9.9")),
            other => panic!("{other:?}"),
        }
        let ended = start(&settings("echo Welcome; exit 3"));
        assert!(matches!(ended, Err(NoPeer::Ended(Some(3)))), "{ended:?}");
    }
}
