//! `check` of files in a grid: are all shares there? It can renew leases, and make missing shares again.
//!
//! [`run`] reads caps as they come (`caps`) and checks each file by itself (`file`), a bounded number of them at once.
//! The contents of directories are checked before the next cap is taken, so that few names are kept in memory. A file
//! seen before, under whatever name, is not checked again: directories of a grid may contain each other.

mod caps;
mod file;
mod share;

use std::collections::HashSet;
use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::memory_pool::MemoryPool;
use fullbore_engine::run::checked::CheckedFile;
use fullbore_engine::run::costs::process_costs;
use fullbore_engine::run::pace::PROGRESS_EVERY;
use fullbore_engine::run::report::{self, GridCheck, Report, StoreReport, Summary};
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop};
use fullbore_engine::stage::Ledger;
use fullbore_engine::units::several;
use fullbore_engine::window::Window;
use fullbore_wire::rate_limit::RateLimits;
use fullbore_wire::run::sending_runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::base32;
use crate::cap::{Cap, StorageIndex};
use crate::contents::{Contents, explain};
use crate::directory::Entry;
use crate::download::Downloader;
use crate::grid::{self, GridSettings, access, connect};
use crate::upload::produce::{Meter, Pool, ProducerContext};
use crate::upload::{Grid, Uploader};
use crate::verdict::{DownloadCosts, Facts, judge};
use caps::{Caps, Named, Unreadable};
use file::{Checked, Checker, REPAIRS_AT_ONCE, SHARES_AT_ONCE};

/// Files checked at once. Each server gets as many requests ahead, so that round trips do not limit the rate.
const FILES_AT_ONCE: usize = 500;

/// Memory for blocks of shares that are made again, in bytes; as in `put`.
const MEMORY_BYTES: u64 = 64 << 20;

/// A grid of at most this many servers is connected to as a whole at the start.
const WARM_SERVERS: usize = 1000;

/// Settings of one `fullbore check` of files in a grid.
#[derive(Clone)]
pub struct CheckSettings {
    /// The grid and how to reach it.
    pub grid: GridSettings,
    /// Caps of files and directories; `-` stands for stdin, with one cap per line.
    pub caps: Vec<OsString>,
    /// List of caps: one per line, or as `put --caps` writes it.
    pub list: Option<PathBuf>,
    /// Read all shares, and compare every block with its hash.
    pub verify: bool,
    /// Renew the leases on all shares found.
    pub renew: bool,
    /// Make missing shares again.
    pub repair: bool,
}

impl fmt::Debug for CheckSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CheckSettings").field("grid", &self.grid).field("list", &self.list).finish_non_exhaustive()
    }
}

/// Checks all files given, and those in the directories given.
///
/// # Errors
/// - [`ErrorKind::Partial`] if files lack shares but can still be read, or a cap cannot be resolved.
/// - [`ErrorKind::Verification`] if files cannot be read any more, or shares are damaged.
/// - [`ErrorKind::Network`] if too few servers answer to tell.
/// - [`ErrorKind::Usage`] for an invalid cap, node directory or servers file.
/// - [`ErrorKind::Interrupted`] if the run was stopped.
pub fn run(settings: &CheckSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    let Some(access) = access(&settings.grid)? else {
        return Err(CommandError::usage("no Tahoe-LAFS grid is named")
            .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE"));
    };
    if settings.renew && access.node.is_none() {
        return Err(CommandError::usage("--renew needs --node: leases belong to a node, and its secret renews them"));
    }
    let caps = caps::read(&settings.caps, settings.list.as_deref())?;
    let begun = Instant::now();
    events.emit(Event::started("check", settings.grid.name()));
    events.emit(Event::Phase { phase: Phase::Read });
    let ledger = Ledger::off();
    let runtime = sending_runtime(&ledger)?;
    let grid = Arc::new(connect(settings.grid.patience, &access, RateLimits::default(), &ledger));
    if grid.servers().is_empty() {
        return Err(CommandError::new(ErrorKind::Network, "the grid has no server that can be used")
            .hint("start the node once, so that it learns of its servers, or write private/servers.yaml"));
    }
    grid.not_used().for_each(|warning| events.warn(warning));
    let pool = Pool::new(threads());
    let downloader = Arc::new(Downloader::new(Arc::clone(&grid), pool.clone(), stop.watch()));
    let uploader = settings.repair.then(|| {
        let context = ProducerContext {
            pool: pool.clone(),
            memory: Window::new(MEMORY_BYTES, u32::MAX),
            spare: MemoryPool::default(),
            meter: Arc::new(Meter::default()),
        };
        Uploader::new(Arc::clone(&grid), context, access.lease.clone(), stop.watch(), None)
    });
    let checker = Checker {
        grid: Arc::clone(&grid),
        downloader: Arc::clone(&downloader),
        pool,
        verify: settings.verify,
        renew: settings.renew.then(|| access.lease.clone()),
        lease: access.lease.clone(),
        uploader,
        encoding: access.node.as_ref().map(|node| node.encoding),
        reading: Semaphore::new(SHARES_AT_ONCE),
        repairing: Semaphore::new(REPAIRS_AT_ONCE),
    };
    let walk = Walk {
        checker: Arc::new(checker),
        contents: Contents::new(Arc::clone(&grid), downloader),
        caps,
        is_end: false,
        below: Vec::new(),
        seen: HashSet::new(),
        tasks: JoinSet::new(),
        account: Account::default(),
    };
    let mut pace = Pace::with_peers(begun);
    let walked = runtime.block_on(async {
        grid.warm(WARM_SERVERS);
        walk.run(events, stop, &mut pace, begun).await
    });
    let (account, ended) = walked;
    let report = report(settings, &account, &grid, begun.elapsed());
    runtime.shutdown_background();
    match ended.and_then(|()| account.judge(settings.repair)) {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The result for one file or directory.
struct Done {
    name: String,
    cap: Cap,
    is_argument: bool,
    /// `None`: the content is in the cap itself.
    checked: Option<Checked>,
    /// Its entries, if it is a directory that could be read.
    children: Vec<Entry>,
    /// Why the file could not be found, or the directory not read.
    trouble: Option<CommandError>,
    /// A directory whose contents the cap cannot read.
    is_closed: bool,
}

/// Counts of the run so far.
#[derive(Default)]
struct Account {
    counts: GridCheck,
    /// The worst fault so far; it decides the exit code.
    worst: Option<ErrorKind>,
}

struct Walk {
    checker: Arc<Checker>,
    contents: Contents,
    caps: Caps,
    is_end: bool,
    /// Entries found in directories and not yet begun, in reverse order.
    below: Vec<Named>,
    seen: HashSet<StorageIndex>,
    tasks: JoinSet<Box<Done>>,
    account: Account,
}

impl Walk {
    async fn run(
        mut self,
        events: &mut dyn Events,
        stop: &Stop,
        pace: &mut Pace,
        begun: Instant,
    ) -> (Account, Result<(), CommandError>) {
        let grid = Arc::clone(&self.checker.grid);
        let mut last = Instant::now();
        let result = loop {
            while self.tasks.len() < FILES_AT_ONCE
                && let Some(named) = self.below.pop()
            {
                self.begin(named);
            }
            let has_room = self.tasks.len() < FILES_AT_ONCE && self.below.is_empty() && !self.is_end;
            if !has_room && self.tasks.is_empty() {
                break Ok(());
            }
            let next = async {
                tokio::select! {
                    biased;
                    () = stop.requested() => Next::Stop,
                    Some(done) = self.tasks.join_next(), if !self.tasks.is_empty() => Next::Done(done),
                    cap = self.caps.recv(), if has_room => Next::Cap(cap),
                }
            };
            match timeout(PROGRESS_EVERY, next).await {
                Err(_) => {}
                Ok(Next::Stop) => break Err(CommandError::new(ErrorKind::Interrupted, "interrupted")),
                Ok(Next::Done(Err(error))) => {
                    break Err(CommandError::new(ErrorKind::Internal, format_args!("a task failed: {error}")));
                }
                Ok(Next::Done(Ok(done))) => self.done(*done, events),
                Ok(Next::Cap(None)) => self.is_end = true,
                Ok(Next::Cap(Some(Err(error)))) => break Err(error),
                Ok(Next::Cap(Some(Ok(Err(Unreadable { name, reason }))))) => {
                    self.account.counts.failed += 1;
                    self.account.fault(
                        ErrorKind::Partial,
                        "unreadable",
                        &name,
                        &format!("not a cap: {reason}"),
                        events,
                    );
                }
                Ok(Next::Cap(Some(Ok(Ok(named))))) => self.begin(named),
            }
            if pace.is_due(Instant::now()) || last.elapsed() >= PROGRESS_EVERY {
                last = Instant::now();
                self.account.show(&grid, pace, begun, self.seen.len(), events);
            }
        };
        self.account.show(&grid, pace, begun, self.seen.len(), events);
        if result.is_ok() && self.account.counts.is_empty() {
            return (self.account, Err(CommandError::usage("no cap was given")));
        }
        (self.account, result)
    }

    fn begin(&mut self, named: Named) {
        let (checker, contents) = (Arc::clone(&self.checker), self.contents.clone());
        let Named { name, cap, path, is_argument } = named;
        if path.is_empty()
            && let Some(index) = cap.storage_index()
            && !self.seen.insert(index)
        {
            self.account.counts.repeated += 1;
            return;
        }
        self.tasks.spawn(async move {
            let (checked, children, trouble, is_closed) = (None, Vec::new(), None, false);
            let mut done = Box::new(Done { name, cap, is_argument, checked, children, trouble, is_closed });
            match contents.walk(done.cap.clone(), &path).await {
                Ok(found) => done.cap = found.cap,
                Err(error) => {
                    done.trouble = Some(explain(&error));
                    return done;
                }
            }
            done.checked = checker.check(&done.cap).await;
            if !done.cap.is_directory() {
                return done;
            }
            // An unreadable file has been reported as such; that its directory cannot be listed adds nothing.
            if done.checked.as_ref().is_some_and(|checked| !checked.is_recoverable()) {
                return done;
            }
            match &done.cap {
                Cap::DirectoryVerifier(_) => done.is_closed = true,
                Cap::MutableDirectory(mutable) if mutable.read_key().is_none() => done.is_closed = true,
                cap => match contents.directory(cap).await {
                    Ok(listing) => done.children = listing.entries,
                    Err(error) => done.trouble = Some(explain(&error)),
                },
            }
            done
        });
    }

    fn done(&mut self, done: Done, events: &mut dyn Events) {
        let Done { name, cap, is_argument, checked, children, trouble, is_closed } = done;
        if let Some(error) = trouble {
            self.account.counts.failed += 1;
            self.account.fault(ErrorKind::Partial.max_with(error.kind), "unreadable", &name, &error.message, events);
        } else {
            self.account.checked(&name, &cap, is_argument, checked, events);
        }
        if is_closed {
            events.warn(format!("{name}: what is in the directory is not checked: its cap can only verify it"));
        }
        for child in children.into_iter().rev() {
            let name = format!("{name}/{}", child.name);
            match child.cap {
                Ok(cap) => self.below.push(Named { name, cap, path: String::new(), is_argument: false }),
                Err(error) => {
                    self.account.counts.failed += 1;
                    self.account.fault(ErrorKind::Partial, "unreadable", &name, &error.to_string(), events);
                }
            }
        }
    }
}

enum Next {
    Stop,
    Done(Result<Box<Done>, tokio::task::JoinError>),
    Cap(Option<Result<Result<Named, Unreadable>, CommandError>>),
}

impl Account {
    /// Counts and reports one more file.
    fn checked(&mut self, name: &str, cap: &Cap, is_argument: bool, checked: Option<Checked>, events: &mut dyn Events) {
        let counts = &mut self.counts;
        match cap.is_directory() {
            true => counts.directories += 1,
            false => counts.files += 1,
        }
        let Some(checked) = checked else {
            counts.healthy += 1;
            let file =
                CheckedFile { path: name.to_owned(), healthy: true, recoverable: true, ..CheckedFile::default() };
            events.emit(Event::Checked(CheckedFile { is_shown: is_argument, ..file }));
            return;
        };
        let (is_healthy, is_recoverable): (bool, bool) = (checked.is_healthy(), checked.is_recoverable());
        match (is_healthy, is_recoverable, checked.is_unknown()) {
            (true, ..) => counts.healthy += 1,
            (_, true, _) => counts.unhealthy += 1,
            (_, _, true) => counts.unknown += 1,
            (..) => counts.unrecoverable += 1,
        }
        counts.damaged_shares += checked.damaged.len() as u64;
        counts.renewed_leases += checked.leases.unwrap_or(0) as u64;
        counts.refused_leases += checked.lease_troubles.len() as u64;
        if let Some(Ok(sent)) = checked.repaired {
            counts.repaired += u64::from(is_healthy);
            counts.sent_shares += sent as u64;
        }
        let file = CheckedFile {
            path: name.to_owned(),
            storage_index: cap.storage_index().map(|index| base32::encode(&index)),
            needed: u64::from(checked.needed),
            total: u64::from(checked.total),
            shares: checked.shares as u64,
            servers: checked.servers as u64,
            happiness: checked.happiness as u64,
            healthy: is_healthy,
            recoverable: is_recoverable,
            damaged: checked.damaged.clone(),
            leases: checked.leases.map(|leases| leases as u64),
            sent_shares: checked.repaired.as_ref().and_then(|repaired| repaired.as_ref().ok()).map(|&sent| sent as u64),
            message: words(&checked),
            is_shown: is_argument,
        };
        events.emit(Event::Checked(file));
        let kind = match (is_recoverable, checked.is_unknown()) {
            (_, true) => ErrorKind::Network,
            (true, _) if checked.damaged.is_empty() => ErrorKind::Partial,
            (..) => ErrorKind::Verification,
        };
        if !is_healthy {
            self.note(kind);
        }
        for trouble in &checked.lease_troubles {
            self.fault(ErrorKind::Partial, "lease", name, trouble, events);
        }
    }

    /// Reports a fault other than missing shares.
    fn fault(&mut self, kind: ErrorKind, problem: &str, name: &str, message: &str, events: &mut dyn Events) {
        let (problem, path) = (problem.to_owned(), name.to_owned());
        events.emit(Event::Problem { problem, path, message: message.to_owned(), harmless: false });
        self.note(kind);
    }

    fn note(&mut self, kind: ErrorKind) {
        self.worst = Some(self.worst.map_or(kind, |worst| worst.max_with(kind)));
    }

    fn show(&self, grid: &Grid, pace: &mut Pace, begun: Instant, known: usize, events: &mut dyn Events) {
        let counts = &self.counts;
        let done = counts.files + counts.directories;
        let facts = facts(grid, begun.elapsed());
        let bytes = facts.moved_bytes;
        let verdict = judge(&facts);
        let limit = verdict.confident.then_some(verdict.limit);
        let totals = Counts { files: done, bytes, total_files: (known as u64).max(done), total_bytes: 0 };
        events.emit(Event::Progress(pace.progress(totals, limit, Instant::now())));
    }

    /// The run's error, if anything is wrong.
    fn judge(&self, has_repaired: bool) -> Result<(), CommandError> {
        let Some(kind) = self.worst else { return Ok(()) };
        let GridCheck { unhealthy, unrecoverable, unknown, damaged_shares, failed, refused_leases, .. } = self.counts;
        let parts = [
            (unrecoverable, several(unrecoverable, "file cannot be read any more", "files cannot be read any more")),
            (
                unknown,
                several(
                    unknown,
                    "file cannot be judged, as servers do not answer",
                    "files cannot be judged, as servers do not answer",
                ),
            ),
            (unhealthy, several(unhealthy, "file is not as it should be", "files are not as they should be")),
            (damaged_shares, several(damaged_shares, "share is damaged", "shares are damaged")),
            (failed, several(failed, "cap cannot be resolved", "caps cannot be resolved")),
            (refused_leases, several(refused_leases, "lease was refused", "leases were refused")),
        ];
        let text: Vec<String> = parts.into_iter().filter(|(count, _)| *count > 0).map(|(_, text)| text).collect();
        let error = CommandError::new(kind, text.join("; "));
        let error = match unhealthy {
            1.. if !has_repaired => {
                error.hint("--repair makes missing shares again, as long as enough of the others are left")
            }
            _ => error,
        };
        Err(error)
    }
}

/// Orders error kinds by severity: the worse one decides.
trait Worse {
    fn max_with(self, other: ErrorKind) -> ErrorKind;
}

impl Worse for ErrorKind {
    fn max_with(self, other: ErrorKind) -> ErrorKind {
        let rank = |kind: ErrorKind| match kind {
            ErrorKind::Verification => 3,
            ErrorKind::Network => 2,
            ErrorKind::Partial => 1,
            _ => 0,
        };
        if rank(other) > rank(self) { other } else { self }
    }
}

/// One line for a person about one file.
fn words(checked: &Checked) -> String {
    let Checked { needed, total, shares, servers, happiness, .. } = checked;
    let state = match (checked.is_healthy(), checked.is_recoverable(), checked.is_unknown()) {
        (true, ..) => "healthy",
        (_, true, _) => "not healthy",
        (_, _, true) => "cannot be judged",
        (..) => "cannot be read",
    };
    let mut text = match total {
        0 => format!("{state}: no shares were found"),
        _ => format!(
            "{state}: {shares} of {} ({needed} needed) on {}, happiness {happiness}",
            several(u64::from(*total), "share", "shares"),
            several(*servers as u64, "server", "servers"),
        ),
    };
    if let Some(happy) = checked.happy.filter(|happy| *happiness < usize::from(*happy)) {
        text += &format!(" ({happy} wanted)");
    }
    if checked.old_shares > 0 {
        text += &format!("; {} of other versions", several(checked.old_shares as u64, "share", "shares"));
    }
    if checked.silent > 0 {
        text += &format!("; {} did not answer", several(checked.silent as u64, "server", "servers"));
    }
    for damage in &checked.damaged {
        text += &format!("; {damage}");
    }
    if let Some(leases) = checked.leases {
        text += &format!("; leases renewed on {}", several(leases as u64, "server", "servers"));
    }
    match &checked.repaired {
        Some(Ok(sent)) => text += &format!("; {} made again", several(*sent as u64, "share was", "shares were")),
        Some(Err(why)) => text += &format!("; not repaired: {why}"),
        None => {}
    }
    text
}

fn facts(grid: &Grid, wall: Duration) -> Facts {
    let servers = grid.readings();
    let moved_bytes = servers.iter().map(|(_, reading)| reading.bytes).sum();
    Facts {
        wall,
        processor: Duration::from_millis(process_costs().0),
        cores: threads(),
        threads: threads(),
        download: Some(DownloadCosts::default()),
        servers,
        moved_bytes,
        ..Facts::default()
    }
}

fn report(settings: &CheckSettings, account: &Account, grid: &Grid, wall: Duration) -> Report {
    let facts = facts(grid, wall);
    let counts = account.counts;
    let store = StoreReport {
        files: counts.files,
        directories: counts.directories,
        check: Some(counts),
        ..StoreReport::default()
    };
    let verdict = judge(&facts);
    let summary = grid::summary(&settings.grid, wall, &facts.servers, grid.given_up(), verdict, store);
    let totals = report::Totals {
        checked_files: counts.files + counts.directories,
        missing_files: counts.unrecoverable,
        received_bytes: facts.moved_bytes,
        requests: summary.hosts.iter().map(|host| host.requests).sum(),
        connections: summary.hosts.iter().map(|host| host.connections).sum(),
        ..report::Totals::default()
    };
    // Names of files are only in events, as with `put` and `get`.
    Report { summary: Summary { changed: counts.sent_shares > 0, totals, ..summary }, ..Report::default() }
}
