//! The far end of a copy between machines: `fullbore copy --server`, started by ssh.

use std::fs::File;
use std::io::BufReader;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_copy::error::CopyError;
use fullbore_copy::judgement::Judgement;
use fullbore_copy::overlap;
use fullbore_copy::probe::Disks;
use fullbore_copy::receiver::journal::boot;
use fullbore_copy::receiver::{self, Destination};
use fullbore_copy::sender::{self, REMOTE_WINDOW_BYTES, Source, Sources, WINDOW_RECORDS};
use fullbore_copy::session::{Brake, Context, Event, Exchange, Link, Progress, RateLimit};
use fullbore_copy::transport::Transport;
use fullbore_copy::transport::near::ssh_connection;
use fullbore_copy::transport::setup::{Ready, Role, Task};
use fullbore_copy::transport::{far, join};
use fullbore_copy::wire::Account;
use fullbore_engine::stage::Ledger;
use fullbore_engine::verdict::{Sampler, SamplerConfig};
use fullbore_engine::window::Window;

use crate::stdio;

/// Serves one copy; the result is the exit code. Says nothing: the near end does.
pub fn run(remove_self: bool) -> u8 {
    if remove_self {
        super::send_program::remove_self();
    }
    match serve() {
        Ok(()) => 0,
        Err(error) => error.exit_code(),
    }
}

/// Carries the bytes of one more connection by ssh; the result is the exit code.
pub fn join(name: &str) -> u8 {
    let pipe = |descriptor: std::io::Result<std::os::fd::OwnedFd>| descriptor.map(File::from);
    let input = pipe(std::io::stdin().as_fd().try_clone_to_owned());
    let output = stdio::stdout_file();
    match (input, output) {
        (Ok(input), Ok(output)) => join::carry(name, input, output).map_or_else(|error| error.exit_code(), |()| 0),
        _ => 1,
    }
}

/// What the task comes to.
enum Part {
    Send(Vec<Source>),
    Receive(Destination),
}

fn serve() -> Result<(), Arc<CopyError>> {
    let pipe = |descriptor: std::io::Result<std::os::fd::OwnedFd>| {
        descriptor.map(File::from).map_err(|error| CopyError::System { what: "standard input and output", error })
    };
    let mut input = BufReader::new(pipe(std::io::stdin().as_fd().try_clone_to_owned())?);
    let mut output = pipe(stdio::stdout_file().map(Into::into))?;
    let addresses = std::env::var("SSH_CONNECTION").ok().and_then(|text| ssh_connection(&text));
    let far = far::greet(&mut input, &mut output, crate::VERSION, addresses)?;
    let task = far.task.clone();
    if matches!(task.role, Role::ProbeSource | Role::ProbeTarget) {
        return crate::probe::serve(far, input, output, local);
    }
    let part = part(&task);
    let single_file = match &part {
        Ok(Part::Send(sources)) => sources.iter().all(|source| source.single_file().is_some()),
        _ => task.single_file,
    };
    let refused = part.as_ref().err().map(|error| (error.exit_code(), error.to_string()));
    let (link, ledger, progress) = (Link::remote(), Ledger::new(), Progress::default());
    let brake = Brake::new(&link);
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
        Arc::new(Transport::new(&link, &brake, task.role == Role::Send, &ledger, task.options.congestion.as_deref()));
    let whereabouts = match &part {
        Ok(Part::Send(sources)) => sources.iter().filter_map(Source::whereabouts).collect(),
        _ => Vec::new(),
    };
    let ready = Ready { refused, single_file, boot: boot().to_vec(), whereabouts };
    let started = far.start(input, output, &ready, &transport)?;
    let part = part?;
    // A signal ends this end as well as a lost connection does.
    let _ = super::signals::pull(&super::signals::Current::of(&brake));
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
    let limit = RateLimit::new(task.options.limit_bytes_per_s);
    let context = Context {
        options: &task.options,
        link,
        brake,
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

fn send(context: &Context<'_>, task: &Task, sources: Vec<Source>) -> Result<Account, Arc<CopyError>> {
    let only = if task.only { Some(context.link.hear_paths(context.ledger)) } else { None };
    let only = only.transpose().map_err(|error| {
        context.brake.pull(error);
        context.brake.reason().unwrap_or_else(|| Arc::new(CopyError::Interrupted))
    })?;
    let rotational = sources.iter().any(Source::is_rotational);
    let sources = Sources { sources, only, skip: None, rotational };
    sender::run(context, &sources, &Window::new(REMOTE_WINDOW_BYTES, WINDOW_RECORDS))
}

fn part(task: &Task) -> Result<Part, CopyError> {
    match task.role {
        // A probe has its own end.
        Role::ProbeSource | Role::ProbeTarget => Err(CopyError::Meaning("a probe among copies")),
        Role::Send => {
            let open = |path: &Vec<u8>| Source::open(&if task.only { local(path).join("") } else { local(path) });
            task.sources.iter().map(open).collect::<Result<_, _>>().map(Part::Send)
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

/// A path as the near end's user wrote it: relative to the home directory, where ssh starts programs.
fn local(path: &[u8]) -> PathBuf {
    let text = std::ffi::OsStr::from_bytes(path);
    match (path, std::env::var_os("HOME")) {
        (b"", _) => PathBuf::from("."),
        (b"~", Some(home)) => PathBuf::from(home),
        ([b'~', b'/', rest @ ..], Some(home)) => Path::new(&home).join(std::ffi::OsStr::from_bytes(rest)),
        _ => PathBuf::from(text),
    }
}
