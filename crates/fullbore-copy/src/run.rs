//! Runs a copy from settings to a report: the end that the user started.
//!
//! [`run`] decides which ends are on this machine. A local copy has both, connected by queues ([`crate::local`]). For
//! another machine, `remote` connects to its far end ([`crate::server`]), and reconnects when the connection is lost.
//! [`control`] lets other processes of the user query a copy, and change its rate limit.

pub mod control;
mod hash_list;
pub(crate) mod live_progress;
mod remote;
mod report;
mod stopping;
mod table;
mod teller;
mod waits;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fullbore_engine::run::Report;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use fullbore_engine::verdict::{Sampler, SamplerConfig};

use crate::error::CopyError;
use crate::judgement::{Judgement, joined};
use crate::local::LocalCopy;
use crate::location::{Location, Locations};
use crate::open_files;
use crate::options::Options;
use crate::overlap;
use crate::probe::Disks;
use crate::reach::Reach;
use crate::receiver::{self, Destination};
use crate::sender::OpenedSources;
use crate::session::Progress;
use crate::wire::Account;
use control::Levers;
use live_progress::LiveProgress;
pub(crate) use remote::{connections, explain};
use report::{Done, Ends};
pub(crate) use stopping::Current;
pub(crate) use table::disk_words;
pub(crate) use teller::Teller;
use waits::Waits;

/// Interval at which the progress is read.
const LOOK_TIME: Duration = Duration::from_millis(250);

/// Settings of a copy: sources, destination, options.
#[derive(Clone, Debug)]
pub struct CopySettings {
    /// The sources: paths on this machine, or `[user@]host:PATH` on another one. Never empty.
    pub sources: Vec<OsString>,
    /// The destination, as the user named it: a path or `[user@]host:PATH`.
    pub destination: OsString,
    /// Copy only these paths below the single source ([`crate::paths`]).
    pub only: Option<Vec<Vec<u8>>>,
    /// Options that apply to both ends.
    pub options: Options,
    /// How to reach the other machine.
    pub reach: Reach,
    /// How long to try to reconnect after a connection is lost; zero for not at all.
    pub retry_for: Duration,
    /// File for the hashes that [`Options::hashes`] selects.
    pub hash_list: Option<PathBuf>,
}

impl CopySettings {
    /// Copies one source with the default options. A lost connection ends the copy.
    pub fn new(source: impl Into<OsString>, destination: impl Into<OsString>) -> CopySettings {
        CopySettings {
            sources: vec![source.into()],
            destination: destination.into(),
            only: None,
            options: Options::default(),
            reach: Reach::default(),
            retry_for: Duration::ZERO,
            hash_list: None,
        }
    }

    /// Source and destination as the user named them.
    fn places(&self) -> (String, String) {
        let first = self.sources.first().map_or_else(String::new, |first| first.to_string_lossy().into_owned());
        let more = self.sources.len().saturating_sub(1);
        let source = if more > 0 { format!("{first} and {more} more") } else { first };
        (source, self.destination.to_string_lossy().into())
    }
}

/// Whether a path is on another machine, in the form `[user@]host:PATH`.
pub fn is_remote(path: &OsStr) -> bool {
    matches!(Location::parse(path), Ok(Location::Remote { .. }))
}

/// Copies, and reports what was done and what limited it. A report with problems of single files has the exit code of
/// [`ErrorKind::Partial`].
///
/// # Errors
/// The error that ended the copy early. Its kind is `Usage` for wrong settings or paths, `Network` for a lost
/// connection or a violated protocol. `Verification` means damaged content, `Locked` another copy, `Disk` a full or
/// failing destination, `Interrupted` a signal. Files that were finished by then are kept, and another run continues.
pub fn run(settings: &CopySettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    open_files::allow();
    receiver::reserve_descriptors();
    let teller = Teller::new(events);
    if let Some(path) = settings.hash_list.as_deref().filter(|_| !settings.options.dry_run) {
        teller.keep_hashes(path)?;
    }
    let copy = Copying { settings, teller: &teller };
    copy.run()
}

/// The parts of a run that local and remote copies share.
#[derive(Clone, Copy)]
struct Copying<'a, 't> {
    settings: &'a CopySettings,
    teller: &'a Teller<'t>,
}

impl Copying<'_, '_> {
    fn run(&self) -> Result<Report, CommandError> {
        let settings = self.settings;
        if settings.only.is_some() && settings.sources.len() != 1 {
            return Err(CommandError::usage("--files-from goes with one SRC"));
        }
        let began = Instant::now();
        let only = settings.only.clone();
        // Sorted, as paths of a list are found by binary search.
        let sorted = |mut paths: Vec<Vec<u8>>| {
            paths.sort_unstable();
            Arc::new(paths)
        };
        let ends = (Location::common(&settings.sources)?, Location::parse(&settings.destination)?);
        self.teller.emit(Event::started("copy", settings.destination.to_string_lossy().into_owned()));
        let done = match ends {
            (Locations::Local(paths), Location::Local(target)) => self.here(&paths, only, target),
            (Locations::Local(paths), Location::Remote { host, path }) => {
                let sources = open(&paths, only.is_some(), &settings.options)?;
                let task = remote::Task {
                    sends: Some(sources),
                    paths: Vec::new(),
                    only: only.map(sorted),
                    target: path,
                    host,
                };
                remote::run(*self, task)
            }
            (Locations::Remote { host, paths }, Location::Local(target)) => {
                let target = target.into();
                remote::run(*self, remote::Task { sends: None, paths, only: only.map(sorted), target, host })
            }
            (Locations::Remote { .. }, Location::Remote { .. }) => {
                Err(CommandError::usage("one of SRC and DST has to be on this machine"))
            }
        };
        let done = done.map_err(|error| report::unfinished(error, settings, began))?;
        self.teller.publish_hashes()?;
        Ok(self.ended_well(&done))
    }

    /// Copies between source and destination on this machine.
    fn here(&self, paths: &[&Path], only: Option<Vec<Vec<u8>>>, target: &Path) -> Result<Done, CommandError> {
        let options = &self.settings.options;
        let opened = open(paths, only.is_some(), options)?;
        let destination = Destination::resolve(target, opened.are_files(), opened.are_many(), options.dry_run);
        let destination = Destination { beside_source: true, ..destination.map_err(|error| failure(&error))? };
        let whereabouts = opened.whereabouts();
        overlap::refuse(&whereabouts, &destination, options).map_err(|error| failure(&error))?;
        let (ledger, progress) = (Ledger::new(), Arc::new(Progress::default()));
        let disks = [paths.first().copied().unwrap_or(Path::new(".")), &destination.directory].map(Disks::under);
        let before = [disks[0].read(), disks[1].read()];
        let mut copy = LocalCopy::default();
        let config = SamplerConfig { destination: Some(destination.directory.clone()), ..SamplerConfig::default() };
        let sampler = Sampler::start(&ledger, config).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
        let began = Instant::now();
        Current::of(&copy.cancel).listen()?;
        let levers = Levers::new(options.limit_bytes_per_s, &ledger);
        copy.limit = levers.limit.clone();
        copy.missing = opened.missing;
        let live = Arc::new(LiveProgress::of(&progress));
        let _socket = self.listen(&levers, &live);
        let waits = Waits::default();
        let watch = Watch { live: &live, levers: &levers, sampler: &sampler, waits: &waits };
        let result = watch.watched(
            self.teller,
            || Duration::ZERO,
            || copy.run((opened.sources, only), &destination, options, &ledger, &progress, self.teller),
        );
        let verdict = sampler.finish();
        let account = result.map_err(|error| torn(failure(&error), &progress.account()))?;
        let wall = began.elapsed();
        let found = || joined(&Judgement::of(&verdict), None, "", true);
        let found = levers.reached(account.written_bytes, wall).unwrap_or_else(found);
        let ends = Ends {
            here: (true, true),
            disks: disks[0].since(&before[0]),
            target_disks: disks[1].since(&before[1]).written(progress.is_direct()),
            ..Ends::default()
        };
        Ok(Done { account, wall, found, verdict, far: None, way: String::new(), waits: waits.words(), ends })
    }

    /// Answers `--status` and `--set` for this run, as long as the result is held.
    fn listen(&self, levers: &Levers, live: &Arc<LiveProgress>) -> Option<control::Socket> {
        let directory = control::directory();
        let socket = control::serve(&directory, levers.clone(), self.settings.places(), live.clone());
        let directory = directory.display();
        socket
            .inspect_err(|error| {
                self.teller.note(format!("{directory}: {error}: --status and --set will not find this copy"));
            })
            .ok()
    }

    /// Reports the number of problems, and makes the report.
    fn ended_well(&self, done: &Done) -> Report {
        let problems = self.teller.problems();
        for (kind, counted) in &problems {
            self.teller.note(format!("{}: {}", units::several(counted.count, "file", "files"), kind.words()));
        }
        let prevented = problems.keys().any(|kind| kind.prevents_deletion());
        if self.settings.options.delete && done.account.deleted == 0 && prevented {
            self.teller.note("nothing was deleted: the copy is not whole");
        }
        done.report(self.settings, &problems)
    }
}

/// Opens sources on this machine.
fn open(paths: &[&Path], listed: bool, options: &Options) -> Result<OpenedSources, CommandError> {
    // Paths of a list are within SRC, with or without a slash at its end.
    let named = |path: &&Path| if listed { path.join("") } else { path.to_path_buf() };
    let paths: Vec<PathBuf> = paths.iter().map(named).collect();
    OpenedSources::open(&paths, options).map_err(|error| failure(&error))
}

/// Shows the progress of a copy.
struct Watch<'a> {
    live: &'a LiveProgress,
    levers: &'a Levers,
    sampler: &'a Sampler,
    waits: &'a Waits,
}

impl Watch<'_> {
    /// Runs `work` and reports the progress meanwhile. `silent` returns the time since the other end was last heard.
    fn watched<R>(&self, teller: &Teller<'_>, silent: impl Fn() -> Duration + Sync, work: impl FnOnce() -> R) -> R {
        let (end, ended) = mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let (ended, silent) = (Mutex::new(ended), &silent);
            scope.spawn(move || {
                let Ok(ended) = ended.into_inner() else { return };
                let timed_out = |waited| matches!(waited, Err(RecvTimeoutError::Timeout));
                while timed_out(self.waits.timed(LOOK_TIME, || ended.recv_timeout(LOOK_TIME))) {
                    let limit = self.levers.present(self.sampler.present());
                    teller.emit(Event::Progress(self.live.figures(limit, silent())));
                }
            });
            let result = work();
            drop(end);
            result
        })
    }
}

/// Adds the totals of an interrupted copy to its error.
fn torn(failure: CommandError, account: &Account) -> CommandError {
    if account.written_bytes == 0 {
        return failure;
    }
    let files = units::bytes(account.visible_bytes);
    failure
        .context(format_args!("{files} are complete and in place"))
        .hint("run it again to go on from there")
        .with_report(report::of_torn(account))
}

/// The error of an operation with another machine; names the host if the error happened there.
pub(crate) fn failure_with(host: &str, error: &CopyError) -> CommandError {
    let failure = failure(error);
    match error {
        CopyError::Remote { .. } => CommandError { message: format!("{host}: {}", failure.message), ..failure },
        _ => failure,
    }
}

pub(crate) fn failure(error: &CopyError) -> CommandError {
    let kind = match error.exit_code() {
        2 => ErrorKind::Partial,
        3 => ErrorKind::Network,
        4 => ErrorKind::Verification,
        6 => ErrorKind::Locked,
        7 => ErrorKind::Disk,
        130 => ErrorKind::Interrupted,
        _ => ErrorKind::Usage,
    };
    CommandError::new(kind, error)
}
