//! The near end of a copy between machines: starts ssh, makes connections, and reconnects when they are lost.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;

use super::control::Levers;
use super::live_progress::LiveProgress;
use super::report::{Done, Ends};
use super::waits::Waits;
use super::{Copying, Current, Teller, Watch, failure, failure_with, torn};
use crate::error::CopyError;
use crate::judgement::{Judgement, joined};
use crate::options::Options;
use crate::overlap;
use crate::probe::Disks;
use crate::reach::{self, SERVER};
use crate::receiver::journal::boot;
use crate::receiver::{self, Destination, Requested};
use crate::send_program;
use crate::sender::{self, OpenedSources, REMOTE_WINDOW_BYTES, Source, Sources, WINDOW_RECORDS};
use crate::session::{CancelToken, Context, Exchange, Link, Progress};
use crate::ssh_messages::Messages;
use crate::transport::near::{ConnectSettings, Connection, NoPeer, Peer, Route};
use crate::transport::setup::{self, Role, Way};
use crate::transport::{FIRST_BYTES, Path as NetworkPath, Transport};
use crate::wire::Account;

/// First wait before reconnecting, doubled each time, and the longest wait.
const FIRST_WAIT: Duration = Duration::from_secs(1);
const LONGEST_WAIT: Duration = Duration::from_secs(30);
/// Interval at which a wait checks for signals.
const WAIT_LOOK: Duration = Duration::from_millis(50);
/// Exit codes: a shell's for a program that does not exist, and ssh's for a failed connection.
const NOT_FOUND: i32 = 127;
const SSH_FAILED: i32 = 255;

/// What to copy between this machine and the other one.
pub(super) struct Task {
    /// Open sources on this machine; `None` if the sources are on the other one.
    pub(super) sends: Option<OpenedSources>,
    /// Paths of sources on the other machine.
    pub(super) paths: Vec<OsString>,
    /// Only these paths below the source, sorted.
    pub(super) only: Option<Arc<Vec<Vec<u8>>>>,
    /// The destination's path.
    pub(super) target: OsString,
    /// The other machine, in ssh's form.
    pub(super) host: String,
}

struct RemoteRun<'a, 't> {
    task: &'a Task,
    options: &'a Options,
    connect: ConnectSettings,
    teller: &'a Teller<'t>,
    ledger: Ledger,
    progress: Arc<Progress>,
    live: Arc<LiveProgress>,
    levers: Levers,
    current: Current,
    sampler: Sampler,
    waits: Waits,
    /// When the connection was lost; `None` while there is one.
    lost: Mutex<Option<Instant>>,
}

/// The result of one connection.
struct Session {
    result: Result<(), Arc<CopyError>>,
    /// What was done; `None` if the connection was lost before it did anything.
    account: Option<Account>,
    far: Option<Judgement>,
    way: String,
    path: NetworkPath,
}

/// Copies, over one connection after another if they are lost.
pub(super) fn run(copy: Copying<'_, '_>, task: Task) -> Result<Done, CommandError> {
    std::thread::scope(|scope| {
        let host = task.host.clone();
        let messages = Messages::listen(scope, move |line| copy.teller.said(&host, line));
        let messages = messages.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let connect =
            ConnectSettings { messages: messages.descriptor(), ..copy.settings.reach.connect_settings(&task.host)? };
        dialled(copy, &task, connect)
    })
}

fn dialled(copy: Copying<'_, '_>, task: &Task, connect: ConnectSettings) -> Result<Done, CommandError> {
    let Copying { settings, teller } = copy;
    let options = &settings.options;
    let ledger = Ledger::new();
    let levers = Levers::new(options.limit_bytes_per_s, &ledger);
    let progress = Arc::new(Progress::default());
    let live = Arc::new(LiveProgress::of(&progress));
    let _socket = copy.listen(&levers, &live);
    let config = SamplerConfig {
        destination: task.sends.is_none().then(|| PathBuf::from(&task.target)),
        delivery_stage: if task.sends.is_some() { "send" } else { "disk write" }.to_owned(),
        ..SamplerConfig::default()
    };
    let sampler = Sampler::start(&ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let disks = Disks::under(match &task.sends {
        Some(_) => settings.sources.first().map_or(Path::new("."), Path::new),
        None => Path::new(&task.target),
    });
    let disks_before = disks.read();
    let current = Current::default();
    current.listen()?;
    let (waits, lost) = (Waits::default(), Mutex::default());
    let run =
        RemoteRun { task, options, connect, teller, ledger, progress, live, levers, current, sampler, waits, lost };
    let began = Instant::now();
    let retry_for = settings.retry_for;
    let (mut lost_since, mut wait, mut under_way) = (None::<Instant>, FIRST_WAIT, false);
    let mut sum = Account::default();
    loop {
        let left = retry_for.saturating_sub(lost_since.map_or(Duration::ZERO, |since: Instant| since.elapsed()));
        let session = run.session(under_way.then_some(left));
        if session.is_err() && run.current.is_stopped() {
            return Err(torn(failure(&CopyError::Interrupted), &sum));
        }
        let session = session?;
        session.account.iter().for_each(|account| add(&mut sum, account));
        match session.result {
            Ok(_) => {
                let verdict = run.sampler.finish();
                let near = Judgement::of(&verdict);
                let wall = began.elapsed();
                let found = || joined(&near, session.far.as_ref(), &task.host, task.sends.is_some());
                let found = run.levers.reached(sum.written_bytes, wall).unwrap_or_else(found);
                return Ok(Done {
                    account: sum,
                    wall,
                    found,
                    verdict,
                    far: session.far,
                    way: session.way,
                    waits: run.waits.words(),
                    ends: Ends {
                        here: (task.sends.is_some(), task.sends.is_none()),
                        path: Some(session.path),
                        disks: disks.since(&disks_before).written(run.progress.is_direct()),
                        ..Ends::default()
                    },
                });
            }
            Err(error) => {
                if session.account.is_some_and(|account| has_worked(&account)) {
                    // The connection worked for a while, so the time limit starts anew.
                    (lost_since, wait) = (None, FIRST_WAIT);
                }
                let since = *lost_since.get_or_insert_with(Instant::now);
                let stopped = || run.current.is_stopped().then(|| torn(failure(&CopyError::Interrupted), &sum));
                if let Some(stopped) = stopped() {
                    return Err(stopped);
                }
                if !is_to_be_dialled_again(&error, under_way) || since.elapsed() + wait > retry_for {
                    return Err(torn(failure_with(&task.host, &error), &sum));
                }
                under_way |= session.account.is_some();
                run.live.away();
                run.lost.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Instant::now);
                tracing::info!(host = %task.host, %error, wait_s = wait.as_secs(), "connection lost; dialling again");
                teller.warn(format!("{error}; dialling again in {} s", wait.as_secs()));
                let until = Instant::now() + wait;
                while Instant::now() < until && !run.current.is_stopped() {
                    std::thread::sleep(WAIT_LOOK);
                }
                if let Some(stopped) = stopped() {
                    return Err(stopped);
                }
                wait = (wait * 2).min(LONGEST_WAIT);
            }
        }
    }
}

impl RemoteRun<'_, '_> {
    /// Runs one connection, from ssh to its end. The outer error is one that reconnecting cannot cure. When
    /// reconnecting, the connection has to be up within `again_within`.
    fn session(&self, again_within: Option<Duration>) -> Result<Session, CommandError> {
        let link = Link::remote();
        let cancel = CancelToken::new(&link);
        let sends = self.task.sends.is_some();
        let congestion = self.options.congestion.as_deref();
        let transport = Arc::new(Transport::new(&link, &cancel, sends, &self.ledger, congestion));
        let exchange = Exchange::default();
        let context = Context {
            options: self.options,
            link,
            cancel,
            ledger: &self.ledger,
            progress: &self.progress,
            tell: self.teller,
            exchange: &exchange,
            limit: &self.levers.limit,
        };
        std::thread::scope(|scope| {
            // List local sources while ssh connects. Not when reconnecting: the other machine may be away for long.
            let sends = self.task.sends.as_ref().filter(|_| again_within.is_none());
            let ahead = sends.map(|sources| scope.spawn(|| self.send(&context, sources)));
            let reached = self.reach(&transport, again_within);
            if !matches!(reached, Ok(Ok(_))) {
                // Nobody will take these lists.
                context.cancel.cancel(CopyError::Interrupted);
                transport.finish();
            }
            reached?.map_or_else(Ok, |connection| self.copy(&context, &transport, connection, ahead))
        })
    }

    fn send(&self, context: &Context<'_>, opened: &OpenedSources) -> Result<Account, Arc<CopyError>> {
        let OpenedSources { sources, missing } = opened.clone();
        let rotational = sources.iter().any(Source::is_rotational);
        let only = self.task.only.as_deref().cloned();
        let sources = Sources { sources, missing, only, skip: None, rotational };
        sender::run(context, &sources, &Window::new(REMOTE_WINDOW_BYTES, WINDOW_RECORDS))
    }

    /// Makes the connection. Otherwise returns the reason why there is none.
    fn reach(
        &self,
        transport: &Transport,
        again_within: Option<Duration>,
    ) -> Result<Result<Connection, Session>, CommandError> {
        std::thread::scope(|scope| {
            let (there, awaited) = mpsc::channel::<()>();
            if let Some(time) = again_within {
                scope.spawn(move || {
                    if awaited.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                        self.current.give_up_dialling();
                    }
                });
            }
            let connection = self.dial(transport, again_within.is_some());
            drop(there);
            connection
        })
    }

    fn dial(&self, transport: &Transport, again: bool) -> Result<Result<Connection, Session>, CommandError> {
        let lost = |error: CopyError| Session {
            result: Err(Arc::new(error)),
            account: None,
            far: None,
            way: String::new(),
            path: NetworkPath::default(),
        };
        let settings = &if again { reach::again(&self.connect) } else { self.connect.clone() };
        let peer = match Peer::start(settings, self.setup(), transport, |ssh| self.current.dial(ssh)) {
            Ok(peer) => peer,
            Err(no_peer) if again && is_away(&no_peer) => {
                return Ok(Err(lost(CopyError::Network(format!("{}: ssh does not get through", self.task.host)))));
            }
            Err(no_peer) => return Err(explain(no_peer, &self.connect, &self.task.host)),
        };
        match peer.connect(&self.connect) {
            Ok(connection) => Ok(Ok(connection)),
            Err(error) if error.is_lost_connection() => Ok(Err(lost(error))),
            Err(error) => Err(failure_with(&self.task.host, &error)),
        }
    }

    /// Reports why there is no direct connection, once that is known or the run is over.
    fn tell_fallback(&self, decided: &mpsc::Receiver<Option<Route>>) {
        if let Ok(Some(Route { fallback: Some(reason), searched, .. })) = decided.recv() {
            // Content that fits the pipe's first bytes did not wait.
            if self.progress.account().wanted_bytes > FIRST_BYTES as u64 {
                self.waits.searched(searched);
            }
            let port = "open one of these ports, or name one that is open with --port";
            self.teller.note(format!("no direct connection ({reason}); content goes by ssh; {port}"));
        }
    }

    fn setup(&self) -> setup::Task {
        let sends = self.task.sends.as_ref();
        let role = if sends.is_some() { Role::Receive } else { Role::Send };
        setup::Task {
            sources: self.task.paths.iter().map(|path| path.as_bytes().to_vec()).collect(),
            only: self.task.only.is_some() && sends.is_none(),
            target: self.task.target.clone().into_vec(),
            single_file: sends.is_some_and(OpenedSources::are_files),
            many: sends.map_or(self.task.paths.len() > 1, OpenedSources::are_many),
            boot: boot().to_vec(),
            whereabouts: sends.map(OpenedSources::whereabouts).unwrap_or_default(),
            ..setup::Task::new(role, self.options.clone())
        }
    }

    /// Copies over a connection; `ahead` has started to send already.
    fn copy(
        &self,
        context: &Context<'_>,
        transport: &Arc<Transport>,
        mut connection: Connection,
        ahead: Option<ScopedJoinHandle<'_, Result<Account, Arc<CopyError>>>>,
    ) -> Result<Session, CommandError> {
        let (link, cancel) = (&context.link, &context.cancel);
        if let Some(lost) = self.lost.lock().unwrap_or_else(PoisonError::into_inner).take() {
            self.waits.away(lost.elapsed());
        }
        self.current.set(cancel);
        self.progress.restart();
        self.teller.restart_hashes();
        let destination = match &self.task.sends {
            Some(_) => None,
            None => {
                let many = self.task.paths.len() > 1;
                let single_file = connection.ready.single_file;
                let resolved =
                    Destination::resolve(Path::new(&self.task.target), single_file, many, self.options.dry_run);
                let beside_source = connection.ready.boot == boot();
                let requested = match &self.task.only {
                    Some(only) => Requested::only(only.clone()),
                    None => Requested::sources(&self.task.paths, self.options, &connection.ready.whereabouts),
                };
                let resolved = Destination {
                    beside_source,
                    requested: Some(requested),
                    ..resolved.map_err(|error| failure(&error))?
                };
                if beside_source {
                    let refused = overlap::refuse_by_ssh(&connection.ready.whereabouts, &resolved, self.options);
                    refused.map_err(|error| failure(&error))?;
                }
                Some(resolved)
            }
        };
        let (end, decided) = mpsc::channel();
        let deciding = end.clone();
        if let Err(error) = connection.start(transport, move |route| drop(deciding.send(Some(route)))) {
            transport.fail(&error);
        }
        if destination.is_some() {
            if let Some(paths) = &self.task.only {
                // Fails if the run is over, which is reported elsewhere.
                let _ = link.ask_for_paths(paths, &self.ledger);
            }
            *self.levers.far_sender.lock().unwrap_or_else(PoisonError::into_inner) = Some(link.clone());
            // The limit may have changed since the task began.
            let _ = link.ask_for_limit(self.levers.limit.bytes_per_s(), &self.ledger);
        }
        let work = || match (ahead, &self.task.sends, &destination) {
            (Some(sending), ..) => sending.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            (None, Some(sources), _) => self.send(context, sources),
            (None, None, Some(destination)) => receiver::run(context, destination),
            (None, None, None) => Err(Arc::new(CopyError::Meaning("nothing to do"))),
        };
        let result = std::thread::scope(|scope| {
            scope.spawn(move || self.tell_fallback(&decided));
            let RemoteRun { live, levers, sampler, waits, .. } = self;
            let result = Watch { live, levers, sampler, waits }.watched(self.teller, || transport.silence(), work);
            // The route may not have been decided by then.
            drop(end.send(None));
            result
        });
        let far = context.exchange.peer.lock().ok().and_then(|json| Judgement::decode(&json));
        let sender = far.as_ref().filter(|_| destination.is_some()).map(|far| far.path.clone());
        let path = sender.into_iter().fold(transport.path(), NetworkPath::when_sent_by);
        let way = way(&connection, &path);
        transport.finish();
        connection.finish();
        let account = Some(*result.as_ref().unwrap_or(&self.progress.account()));
        Ok(Session { result: result.map(drop), account, far, way, path })
    }
}

/// Whether a host may come back after a while. This is for a copy under way; on the first attempt it is an error.
fn is_away(no_peer: &NoPeer) -> bool {
    match no_peer {
        // ssh was ended by a signal, or by us.
        NoPeer::Ended(code) => matches!(code, None | Some(SSH_FAILED)),
        NoPeer::Failed(error) => error.is_lost_connection(),
        NoPeer::Version(_) | NoPeer::NoProgram(_) => false,
    }
}

/// Whether a connection worked for a while: its receiver has counted something. Long lists and comparisons of existing
/// files write nothing.
fn has_worked(account: &Account) -> bool {
    *account != Account::default()
}

/// Whether reconnecting may help after this error. `under_way` tells whether an earlier connection worked.
fn is_to_be_dialled_again(error: &CopyError, under_way: bool) -> bool {
    match error {
        // The far end of the previous connection has not noticed its end yet, and holds the destination's lock.
        CopyError::Remote { exit_code, .. } if *exit_code == ErrorKind::Locked.exit_code() => under_way,
        error => error.is_lost_connection(),
    }
}

/// `1 connection`, `4 connections`.
pub(crate) fn connections(count: usize) -> String {
    format!("{count} {}", if count == 1 { "connection" } else { "connections" })
}

/// Describes how content was transferred.
fn way(connection: &Connection, path: &NetworkPath) -> String {
    if connection.routing.now().way == Way::Pipe {
        return format!("content went by ssh, {}", connections(path.streams));
    }
    let trip =
        path.round_trip.map_or_else(String::new, |trip| format!(", round trip {:.1} ms", trip.as_secs_f64() * 1e3));
    let control = path.control.as_ref().map_or_else(String::new, |control| format!(", {control} congestion control"));
    format!(
        "{}, {}{trip}, {:.2} % of segments sent twice{control}",
        connections(path.streams),
        connection.cipher.name(),
        path.loss * 100.0
    )
}

fn add(sum: &mut Account, account: &Account) {
    sum.entries = account.entries;
    sum.files += account.files;
    sum.written_bytes += account.written_bytes;
    sum.visible_bytes += account.visible_bytes;
    sum.kept = account.kept;
    sum.retouched += account.retouched;
    sum.made += account.made;
    sum.deleted += account.deleted;
    sum.wanted_files = account.wanted_files;
    sum.wanted_bytes = account.wanted_bytes;
    sum.sync_us += account.sync_us;
    sum.reused_bytes += account.reused_bytes;
    sum.verified_bytes += account.verified_bytes;
    sum.verify_us += account.verify_us;
    // A later connection finds content of an earlier one, which was counted as written.
    sum.resumed_bytes = sum.resumed_bytes.max(account.resumed_bytes);
}

/// Explains why the program does not run on the other machine, and what to do.
pub(crate) fn explain(no_peer: NoPeer, settings: &ConnectSettings, host: &str) -> CommandError {
    let ssh: Vec<String> = settings.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let ssh = ssh[..ssh.len().saturating_sub(2)].join(" ");
    let install = format!("{ssh} {host} 'cat > fullbore && chmod +x fullbore' < \"$(command -v fullbore)\"");
    let command = settings.command.last().map_or("", |word| word.to_str().unwrap_or(""));
    // Of `sudo -n fullbore copy --server`, the part before the program stays.
    let before =
        command.find(SERVER).map(|end| &command[..end]).and_then(|program| program.trim_end().rsplit_once(' '));
    let remote_path = before.map_or("./fullbore".to_owned(), |(before, _)| format!("'{before} ./fullbore'"));
    let install = format!("{install}; then add --remote-path {remote_path}");
    let send = "or add --send-program, which takes this program along for one run";
    let network = |text: String| CommandError::new(ErrorKind::Network, text);
    match no_peer {
        NoPeer::Ended(Some(SSH_FAILED)) => network(format!("{host}: ssh does not get through")),
        NoPeer::Ended(Some(code)) if settings.programs.is_some() && send_program::explain(code).is_some() => {
            network(format!("{host}: {}", send_program::explain(code).unwrap_or_default()))
        }
        NoPeer::Ended(Some(NOT_FOUND)) => {
            // A shell reports this for the first word, and programs such as env for the next one.
            let or = before.map_or_else(String::new, |(before, _)| format!(", or `{before}` is not"));
            network(format!("{host}: fullbore is not installed there{or}")).hint(install).hint(send)
        }
        NoPeer::Ended(None) => network(format!("{host}: `{command}` was ended by a signal before it said anything")),
        NoPeer::Ended(Some(code)) => {
            let error = network(format!("{host}: `{command}` ended with exit code {code} before it said anything"));
            match settings.programs.is_none() {
                // sudo returns 1 if the program does not exist, and so does a fullbore without the copy command.
                true => error.hint(format_args!("if fullbore is missing or too old there: {install}")).hint(send),
                false => error,
            }
        }
        NoPeer::Version(hello) => {
            let text = format!("{host}: fullbore {} there cannot talk to {} here", hello.program, crate::VERSION);
            network(text).hint(install).hint(send)
        }
        NoPeer::NoProgram(none) => network(format!("{host}: {}", none.reason)).hint(none.hint),
        NoPeer::Failed(error) => failure(&error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_far_program_is_named_with_the_command_to_install_it() {
        let settings = |program: &str| ConnectSettings {
            command: ["ssh", "-p", "22", "host", &format!("{program} copy --server")].map(OsString::from).into(),
            options: &[],
            programs: None,
            host: "host".to_owned(),
            tcp: true,
            streams: 0,
            more_pipes: None,
            messages: None,
            ports: None,
        };
        let hello = setup::Hello {
            version: 1,
            program: "0.1".to_owned(),
            key: Vec::new(),
            port: None,
            address: None,
            speeds: None,
        };
        let put = "ssh -p 22 host 'cat > fullbore && chmod +x fullbore' < \"$(command -v fullbore)\"";
        for (no_peer, program, path) in [
            (NoPeer::Ended(Some(NOT_FOUND)), "fullbore", "./fullbore"),
            (NoPeer::Ended(Some(1)), "sudo fullbore", "'sudo ./fullbore'"),
            (NoPeer::Ended(Some(2)), "sudo -n /opt/fullbore", "'sudo -n ./fullbore'"),
            (NoPeer::Version(hello), "fullbore", "./fullbore"),
        ] {
            let error = explain(no_peer, &settings(program), "host").to_string();
            assert!(error.contains(&format!("{put}; then add --remote-path {path}\n")), "{error}");
            assert!(error.contains("--send-program"), "{error}");
        }
        let error = explain(NoPeer::Ended(Some(NOT_FOUND)), &settings("sudo -n fullbore"), "host").to_string();
        assert!(error.contains("fullbore is not installed there, or `sudo -n` is not\n"), "{error}");
        let programs = Some(send_program::Programs::File("program".into()));
        let sent = ConnectSettings { programs, ..settings("fullbore") };
        let error = explain(NoPeer::Ended(Some(1)), &sent, "host").to_string();
        assert!(error.contains("ended with exit code 1") && !error.contains("hint"), "{error}");
    }

    #[test]
    fn a_connection_that_only_listed_and_compared_has_worked() {
        assert!(has_worked(&Account { entries: 1000, kept: 900, ..Account::default() }));
        assert!(!has_worked(&Account::default()));
    }

    #[test]
    fn what_may_mend_itself_is_dialled_again() {
        let remote = |exit_code| CopyError::Remote { exit_code, text: String::new() };
        for (error, first, later) in [
            (CopyError::Network(String::new()), true, true),
            (remote(6), false, true),
            (remote(3), false, false),
            (remote(7), false, false),
            (CopyError::Locked(String::new()), false, false),
            (CopyError::Interrupted, false, false),
        ] {
            let again = (is_to_be_dialled_again(&error, false), is_to_be_dialled_again(&error, true));
            assert_eq!(again, (first, later), "{error:?}");
        }
        for (no_peer, away) in [
            (NoPeer::Ended(None), true),
            (NoPeer::Ended(Some(SSH_FAILED)), true),
            (NoPeer::Ended(Some(NOT_FOUND)), false),
            (NoPeer::Failed(CopyError::Network(String::new())), true),
            (NoPeer::Failed(CopyError::Meaning("noise")), false),
        ] {
            assert_eq!(is_away(&no_peer), away, "{no_peer:?}");
        }
    }
}
