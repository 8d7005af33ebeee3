//! The far end of a copy between machines: `fullbore copy --server`, started by ssh.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::BufReader;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;

use crate::error::CopyError;
use crate::judgement::Judgement;
use crate::open_files;
use crate::overlap;
use crate::probe::{self, Disks};
use crate::reach::Ports;
use crate::receiver::journal::boot;
use crate::receiver::{self, Destination};
use crate::run::Current;
use crate::send_program;
use crate::sender::{self, OpenedSources, REMOTE_WINDOW_BYTES, Source, Sources, WINDOW_RECORDS};
use crate::session::{CancelToken, Context, Event, Exchange, Link, Progress, RateLimit};
use crate::transport::Transport;
use crate::transport::near::ssh_connection;
use crate::transport::setup::{Ready, Role, Task};
use crate::transport::{far, join};
use crate::wire::Account;

/// The environment of the far end.
#[derive(Debug)]
pub struct Server {
    /// Standard input, with the messages of the near end.
    pub input: File,
    /// Standard output, for messages to the near end.
    pub output: File,
    /// The user's home directory, which replaces `~` in paths.
    pub home: Option<OsString>,
    /// The addresses of both machines, in the format of ssh's `SSH_CONNECTION`.
    pub ssh_connection: Option<String>,
    /// Ports to listen on; `None` for any.
    pub ports: Option<Ports>,
    /// Whether to remove the program's own file, which was sent along for this run.
    pub remove_self: bool,
    /// Ends the process. Called when a probe's connection has gone and a disk does not answer.
    pub give_up: fn(),
}

/// Serves one copy or probe, and returns the exit code. Reports nothing to the user: the near end does.
pub fn run(server: Server) -> u8 {
    open_files::allow();
    receiver::reserve_descriptors();
    if server.remove_self {
        send_program::remove_self();
    }
    match serve(server) {
        Ok(()) => 0,
        Err(error) => error.exit_code(),
    }
}

/// Carries the bytes of one further connection by ssh, and returns the exit code.
pub fn join(name: &str, input: File, output: File) -> u8 {
    join::carry(name, input, output).map_or_else(|error| error.exit_code(), |()| 0)
}

/// The part that this end has in the task.
enum Part {
    Send(OpenedSources),
    Receive(Destination),
}

fn serve(server: Server) -> Result<(), Arc<CopyError>> {
    let Server { input, mut output, home, ssh_connection: addresses, give_up, ports, .. } = server;
    let mut input = BufReader::new(input);
    let addresses = addresses.and_then(|text| ssh_connection(&text));
    let far = far::greet(&mut input, &mut output, crate::VERSION, addresses, ports)?;
    let task = far.task.clone();
    let local = |path: &[u8]| local(path, home.as_deref());
    if matches!(task.role, Role::ProbeSource | Role::ProbeTarget) {
        return probe::serve(far, input, output, local, give_up);
    }
    let part = part(&task, &local);
    let single_file = match &part {
        Ok(Part::Send(sources)) => sources.are_files(),
        _ => task.single_file,
    };
    let refused = part.as_ref().err().map(|error| (error.exit_code(), error.to_string()));
    let (link, ledger, progress) = (Link::remote(), Ledger::new(), Progress::default());
    let cancel = CancelToken::new(&link);
    let config = SamplerConfig {
        destination: Some(match &part {
            Ok(Part::Receive(destination)) => destination.directory.clone(),
            _ => task.sources.first().map_or_else(|| PathBuf::from("."), |path| local(path)),
        }),
        delivery_stage: if task.role == Role::Send { "read" } else { "disk write" }.to_owned(),
        ..SamplerConfig::default()
    };
    let sampler = Sampler::start(&ledger, config).map_err(|error| CopyError::System { what: "a thread", error })?;
    let transport =
        Arc::new(Transport::new(&link, &cancel, task.role == Role::Send, &ledger, task.options.congestion.as_deref()));
    let whereabouts = match &part {
        Ok(Part::Send(sources)) => sources.whereabouts(),
        _ => Vec::new(),
    };
    let ready = Ready { refused, single_file, boot: boot().to_vec(), whereabouts };
    let started = far.start(input, output, &ready, &transport)?;
    let part = part?;
    // A signal ends this end, just as a lost connection does.
    let _ = Current::of(&cancel).listen();
    let sampler = Mutex::new(Some(sampler));
    let disks = Disks::under(&match &part {
        Part::Receive(destination) => destination.directory.clone(),
        Part::Send(_) => task.sources.first().map_or_else(|| PathBuf::from("."), |path| local(path)),
    });
    let disks_before = disks.read();
    let own = || {
        let sampler = sampler.lock().unwrap_or_else(PoisonError::into_inner).take();
        sampler
            .map(|sampler| {
                let disks = disks.since(&disks_before).written(progress.is_direct());
                Judgement::of(&sampler.finish()).with(disks, transport.path()).encode()
            })
            .unwrap_or_default()
    };
    let exchange = Exchange { own: Some(&own), ..Exchange::default() };
    let silent = |_: Event| {};
    let limit = RateLimit::new(task.options.limit_bytes_per_s, Instant::now());
    let context = Context {
        options: &task.options,
        link,
        cancel,
        ledger: &ledger,
        progress: &progress,
        tell: &silent,
        exchange: &exchange,
        limit: &limit,
    };
    let result = match part {
        Part::Send(sources) => send(&context, &task, sources),
        Part::Receive(destination) => receiver::run(&context, &destination),
    };
    if result.is_ok() && task.role == Role::Receive {
        transport.leave();
    } else {
        transport.finish();
    }
    drop(started);
    result.map(drop)
}

fn send(context: &Context<'_>, task: &Task, opened: OpenedSources) -> Result<Account, Arc<CopyError>> {
    let only = if task.only { Some(context.link.hear_paths(context.ledger)) } else { None };
    let only = only.transpose().map_err(|error| {
        context.cancel.cancel(error);
        context.cancel.reason().unwrap_or_else(|| Arc::new(CopyError::Interrupted))
    })?;
    let OpenedSources { sources, missing } = opened;
    let rotational = sources.iter().any(Source::is_rotational);
    let sources = Sources { sources, missing, only, skip: None, rotational };
    sender::run(context, &sources, &Window::new(REMOTE_WINDOW_BYTES, WINDOW_RECORDS))
}

fn part(task: &Task, local: &dyn Fn(&[u8]) -> PathBuf) -> Result<Part, CopyError> {
    match task.role {
        // A probe is served elsewhere.
        Role::ProbeSource | Role::ProbeTarget => Err(CopyError::Meaning("a probe among copies")),
        Role::Send => {
            let named = |path: &Vec<u8>| if task.only { local(path).join("") } else { local(path) };
            let paths: Vec<PathBuf> = task.sources.iter().map(named).collect();
            OpenedSources::open(&paths, &task.options).map(Part::Send)
        }
        Role::Receive => {
            let target = local(&task.target);
            let destination = Destination::resolve(&target, task.single_file, task.many, task.options.dry_run)?;
            let destination = Destination { beside_source: task.boot == boot(), ..destination };
            if destination.beside_source {
                overlap::refuse_by_ssh(&task.whereabouts, &destination, &task.options)?;
            }
            Ok(Part::Receive(destination))
        }
    }
}

/// Resolves a path that the near end's user wrote. It is relative to the home directory, where ssh starts programs.
fn local(path: &[u8], home: Option<&OsStr>) -> PathBuf {
    match (path, home) {
        (b"", _) => PathBuf::from("."),
        // Without a slash at its end, which would select the content of the directory.
        (b"~", Some(home)) => Path::new(home).components().collect(),
        ([b'~', b'/', rest @ ..], Some(home)) => Path::new(home).join(OsStr::from_bytes(rest)),
        _ => PathBuf::from(OsStr::from_bytes(path)),
    }
}
