//! Runs a probe from settings to a report, and serves its far end.

use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::run::Report;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events};
use fullbore_engine::stage::Ledger;

use super::report::Found;
use super::{Connections, End, Figures, Means, TrialSettings, conduct, find, predict};
use crate::error::CopyError;
use crate::location::Location;
use crate::open_files;
use crate::options::Options;
use crate::reach::Reach;
use crate::run::{Current, Teller, connections, explain, failure, failure_with};
use crate::session::{CancelToken, Link};
use crate::ssh_messages::Messages;
use crate::transport::Transport;
use crate::transport::far::Far;
use crate::transport::grow::Growth;
use crate::transport::near::{self, Connection, Peer};
use crate::transport::setup::{Ready, Role, Task, Way};

/// Time after which the far end of a lost connection is ended, even if a disk does not answer.
const LAST_TIME: Duration = Duration::from_secs(5);
/// Interval for checking whether connections are there.
const LOOK: Duration = Duration::from_millis(200);

/// Settings of a probe.
#[derive(Clone, Debug)]
pub struct ProbeSettings {
    /// The source: a path on this machine, or `[user@]host:PATH` on another one.
    pub source: OsString,
    /// The destination: a path on this machine, or `[user@]host:PATH` on another one.
    pub destination: OsString,
    /// Time limit of the whole probe.
    pub time: Duration,
    /// Stay on the source's file system (`--one-file-system`).
    pub one_file_system: bool,
    /// How to reach the other machine.
    pub reach: Reach,
}

/// Measures the parts of a copy, and reports what would limit it and how long it would take.
///
/// # Errors
/// `Usage` if source and destination are both on other machines, or a path cannot be used; `Disk` if the destination
/// cannot be written; `Network` if the other machine cannot be reached; else as [`CopyError::exit_code`] says.
pub fn run(settings: &ProbeSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let teller = &Teller::new(events);
    let trial = TrialSettings { time: settings.time, began: Instant::now(), one_file_system: settings.one_file_system };
    let tell = |what: &str| teller.emit(Event::Trial { what: what.to_owned() });
    open_files::allow();
    let (figures, way) = match (Location::parse(&settings.source)?, Location::parse(&settings.destination)?) {
        (Location::Local(source), Location::Local(target)) => (here(source, target, trial, &tell)?, String::new()),
        (Location::Local(source), Location::Remote { host, path }) => {
            let remote = Remote { reach: &settings.reach, teller, host, near: source, far: path, sends: true };
            there(&remote, trial, &tell)?
        }
        (Location::Remote { host, path }, Location::Local(target)) => {
            let remote = Remote { reach: &settings.reach, teller, host, near: target, far: path, sends: false };
            there(&remote, trial, &tell)?
        }
        (Location::Remote { .. }, Location::Remote { .. }) => {
            return Err(CommandError::usage("one of SRC and DST has to be on this machine"));
        }
    };
    let prediction = predict(&figures);
    let finding = find(&figures, &prediction);
    let found = Found {
        source: settings.source.to_string_lossy().into_owned(),
        target: settings.destination.to_string_lossy().into_owned(),
        figures: &figures,
        prediction: &prediction,
        finding: &finding,
        way,
        seconds: trial.began.elapsed().as_secs_f64(),
    };
    Ok(found.report())
}

/// Probes within this machine, with both ends in this process.
fn here(source: &Path, target: &Path, trial: TrialSettings, tell: &dyn Fn(&str)) -> Result<Figures, CommandError> {
    let wrong = |error: CopyError| failure(&error);
    let (one, other) = Link::pair();
    let (cancel, ledger) = (CancelToken::new(&one), Ledger::new());
    let mut near = Means::new(one.clone(), cancel.clone(), ledger.clone(), None, source.to_owned());
    let mut far = Means::new(other, cancel.clone(), ledger, None, target.to_owned());
    // One end watches the disks for both.
    (near.watched, far.watched) = (Some(target.to_owned()), None);
    let mut near = End::source(near, vec![source.to_owned()]).map_err(wrong)?;
    let far = End::target(far).map_err(wrong)?;
    Current::of(&cancel).listen()?;
    let serving = std::thread::spawn(move || far.serve());
    let figures = conduct(&mut near, trial, None, tell);
    one.control_out.close();
    let served = serving.join();
    match (figures, served) {
        (Err(_), Ok(Err(error))) if !matches!(error, CopyError::Network(_)) => Err(wrong(error)),
        (figures, _) => figures.map_err(wrong),
    }
}

/// A probe between two machines.
struct Remote<'a> {
    reach: &'a Reach,
    teller: &'a Teller<'a>,
    host: String,
    near: &'a Path,
    far: OsString,
    /// Whether the source is on this machine.
    sends: bool,
}

fn there(remote: &Remote<'_>, trial: TrialSettings, tell: &dyn Fn(&str)) -> Result<(Figures, String), CommandError> {
    tell("ssh");
    std::thread::scope(|scope| {
        let messages = Messages::listen(scope, |line| remote.teller.said(&remote.host, line));
        let messages = messages.map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let peer_settings =
            near::ConnectSettings { messages: messages.descriptor(), ..remote.reach.connect_settings(&remote.host)? };
        reached(remote, &peer_settings, trial, tell)
    })
}

fn reached(
    remote: &Remote<'_>,
    peer_settings: &near::ConnectSettings,
    trial: TrialSettings,
    tell: &dyn Fn(&str),
) -> Result<(Figures, String), CommandError> {
    let options = Options { congestion: remote.reach.congestion.clone(), ..Options::default() };
    let path = remote.far.clone().into_vec();
    let task = if remote.sends {
        Task { target: path, ..Task::new(Role::ProbeTarget, options) }
    } else {
        Task { sources: vec![path], ..Task::new(Role::ProbeSource, options) }
    };
    let (link, ledger) = (Link::remote(), Ledger::new());
    let cancel = CancelToken::new(&link);
    let congestion = remote.reach.congestion.as_deref();
    let transport = Arc::new(Transport::new(&link, &cancel, remote.sends, &ledger, congestion));
    let means = Means::new(link, cancel.clone(), ledger, Some(transport.clone()), remote.near.to_owned());
    // Report local mistakes before ssh asks for a password.
    let end = if remote.sends { End::source(means, vec![remote.near.to_owned()]) } else { End::target(means) };
    let mut end = end.map_err(|error| failure(&error))?;
    let peer = Peer::start(peer_settings, task, &transport, drop)
        .map_err(|no_peer| explain(no_peer, peer_settings, &remote.host))?;
    let wrong = |error: CopyError| failure_with(&remote.host, &error);
    let mut connection = peer.connect(peer_settings).map_err(wrong)?;
    Current::of(&cancel).listen()?;
    let begun = connection.begin(&transport).map_err(CopyError::from_pipe);
    let route = connection.routing.now();
    // With ssh's pipe, the first connection is the pipe, which exists already.
    let first = if route.way == Way::Pipe { 0 } else { route.streams.min(1) };
    let mut dialled = Dialled { connection: &connection, transport: &transport, first, growth: connection.growth() };
    let figures = begun.and_then(|()| {
        connection.open(&transport, 1, first);
        conduct(&mut end, trial, Some(&mut dialled), tell)
    });
    let way = way(&connection, transport.path().streams);
    transport.finish();
    connection.finish();
    Ok((figures.map_err(wrong)?, way))
}

/// Opens connections when the schedule needs them.
struct Dialled<'a> {
    connection: &'a Connection,
    transport: &'a Arc<Transport>,
    /// Number of connections that exist already.
    first: u8,
    growth: Option<Growth>,
}

impl Connections for Dialled<'_> {
    fn begin(&mut self) {
        let route = self.connection.routing.now();
        self.connection.open(self.transport, self.first + 1, route.streams);
        // With ssh's pipe, the first connection carries content as well.
        let by_ssh = usize::from(route.way == Way::Pipe);
        wait_for(self.transport, usize::from(route.streams) + by_ssh);
    }

    fn grow(&mut self, bytes_per_s: f64) -> bool {
        let Some(growth) = &mut self.growth else { return false };
        let more = self.connection.grow(self.transport, growth, bytes_per_s);
        if more {
            wait_for(self.transport, usize::from(growth.streams()));
        }
        more
    }
}

/// Waits until this number of connections is up. A connection that comes later does not help the trial.
fn wait_for(transport: &Transport, streams: usize) {
    let until = Instant::now() + Duration::from_secs(2);
    while transport.path().streams < streams && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn way(connection: &Connection, streams: usize) -> String {
    let route = connection.routing.now();
    let by = match route.way {
        Way::Pipe => format!("content goes by ssh, {}", connections(streams)),
        Way::NearDials | Way::FarDials => format!("{}, {}", connections(streams), connection.cipher.name()),
    };
    match &route.fallback {
        Some(reason) => format!("no direct connection ({reason}); {by}"),
        None => by,
    }
}

/// Serves the far end of a probe. `local` turns the near end's text into a path; `give_up` ends the process.
pub(crate) fn serve(
    far: Far,
    input: BufReader<File>,
    output: File,
    local: impl Fn(&[u8]) -> PathBuf,
    give_up: fn(),
) -> Result<(), Arc<CopyError>> {
    let task = far.task.clone();
    let sends = task.role == Role::ProbeSource;
    let (link, ledger) = (Link::remote(), Ledger::new());
    let cancel = CancelToken::new(&link);
    let transport = Arc::new(Transport::new(&link, &cancel, sends, &ledger, task.options.congestion.as_deref()));
    let sources: Vec<PathBuf> = task.sources.iter().map(|path| local(path)).collect();
    let path = if sends { sources.first().cloned().unwrap_or_default() } else { local(&task.target) };
    let means = Means::new(link, cancel.clone(), ledger, Some(transport.clone()), path);
    let end = if sends { End::source(means, sources) } else { End::target(means) };
    let refused = end.as_ref().err().map(|error| (error.exit_code(), error.to_string()));
    let started = far.start(input, output, &Ready { refused, ..Ready::default() }, &transport)?;
    let end = end?;
    end_with(&cancel, give_up);
    let result = end.serve();
    transport.finish();
    drop(started);
    Ok(result?)
}

/// Ends the process soon after its connection is lost, even if a disk does not answer.
fn end_with(cancel: &CancelToken, give_up: fn()) {
    let cancel = cancel.clone();
    std::thread::spawn(move || {
        while !cancel.is_cancelled() {
            std::thread::sleep(LOOK);
        }
        std::thread::sleep(LAST_TIME);
        give_up();
    });
}
