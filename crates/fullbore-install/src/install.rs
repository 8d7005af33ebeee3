//! `fullbore install`: packages into an existing root, as its own apt would install them.
//!
//! [`run`] goes through these steps:
//!
//! 1. fork the process that becomes apt, which takes dpkg's locks and waits;
//! 2. the root's apt resolves the packages;
//! 3. fetch package files into its archives directory, with its proxies and credentials;
//! 4. apt fetches the missing files and installs, with its locks, hooks and records. It asks fullbore to unpack
//!    (`installing::unpacker`), and dpkg and scripts run without syncs;
//! 5. sync once.

mod plan;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fullbore_apt::acquire::Configuration;
use fullbore_apt::http::{LIST_BYTES_MAX, MirrorSets};
use fullbore_apt::lists::Lock;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Events, Phase};
use fullbore_engine::run::named_files::read_text;
use fullbore_engine::run::report::Report;
use fullbore_engine::stage::Ledger;
use fullbore_wire::run::NetworkSettings;

use crate::apt_network::apt_network;
use crate::frontend::{FrontendError, LockTimeout, WaitingFrontend};
use crate::inside::RootCommands;
use crate::installing::download::Downloads;
use crate::installing::dpkg_server::{DpkgServer, of_relay};
use crate::installing::log::{Log, removed};
use crate::installing::record::RunRecord;
use crate::installing::run_events::{RunEvents, RunProgress};
use crate::installing::unpacker::Unpacker;
use crate::installing::{NO_NEW_PRIVILEGES, Part, still_syncing};
use crate::nosync;
use crate::nosync::session::Session;
use crate::relay::Relay;
use crate::resolve::Wanted;
use crate::root::{Root, within};
use crate::settings::InstallSettings;

/// Default directory of apt for package files.
const ARCHIVES: &str = "/var/cache/apt/archives";

/// Default directory of apt for indexes.
const LISTS: &str = "/var/lib/apt/lists";

/// The changes of an installation, for the question to the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changes {
    /// Packages to unpack or remove, in order.
    pub packages: Vec<String>,
    /// Number of these that are new.
    pub new: u64,
    /// Number of packages that change their version.
    pub upgraded: u64,
    /// Number of packages that apt would remove.
    pub removed: u64,
    /// Bytes of package files to fetch.
    pub fetch_bytes: u64,
}

/// Asks the user to confirm the changes, in the cases in which apt-get asks. While it waits, it calls its second
/// argument repeatedly, and returns the error of that if the run was stopped.
pub type Confirm<'a> = dyn Fn(&Changes, &dyn Fn() -> Result<(), CommandError>) -> Result<bool, CommandError> + 'a;

/// Installs packages into an existing root; apt decides which.
///
/// # Errors
/// The [kind](ErrorKind) of the error tells what failed. `Usage`: settings, a missing program or a root in which
/// services could start. `Network` and `Verification`: package files. `Partial`: apt, dpkg or a maintainer script
/// failed. `Locked`: another process holds a lock of dpkg or apt. `Disk`: a file cannot be read, written or synced.
/// `Interrupted`: a signal, or the user declined.
///
/// After an error the root is in the state in which apt and dpkg left it.
pub fn run(settings: &InstallSettings, confirm: &Confirm<'_>, events: &mut dyn Events) -> Result<Report, CommandError> {
    let run_events = RunEvents::new(events);
    run_events.tell_during(|| installed(settings, confirm, &run_events.run_progress(), &mut &run_events))
}

fn installed(
    settings: &InstallSettings,
    confirm: &Confirm<'_>,
    run_progress: &Arc<RunProgress>,
    events: &mut dyn Events,
) -> Result<Report, CommandError> {
    if !rustix::process::geteuid().is_root() {
        return Err(CommandError::usage("only root can install packages"));
    }
    if settings.is_own_root()
        && !settings.force
        && let Some(manager) = nosync::service_manager()
    {
        return Err(CommandError::usage(format_args!("process 1 ({manager}) could start services here"))
            .context("a service started by a package would run without syncs until it ends")
            .hint("forbid starts with a policy-rc.d, install into an image with --root, or pass --force"));
    }
    let root = &settings.root;
    let session = Arc::new(Session::open(root).map_err(|error| CommandError::cannot("open", root, &error))?);
    let database = Path::new("var/lib/dpkg");
    let database = within(root, database).map_err(|error| CommandError::cannot("find", database, &error))?;
    let log = Log::open(&database, None)?;
    let inside = RootCommands::living(root, &session);
    let configured = Configured::ask(settings, &inside, &log, events)?;
    let mut record = RunRecord::begin("install", &settings.root, &database, Part::Resolve, events);
    let mut downloads =
        Downloads::open(&configured.archives, &configured.network, configured.mirrors.clone(), &Ledger::new())?;
    if session.gives_up_privileges() {
        events.note(NO_NEW_PRIVILEGES.to_owned());
    }
    let stop = downloads.listen();
    let run = InstallRun {
        settings,
        configured: &configured,
        inside: &inside,
        session: &session,
        log: &log,
        stop: &stop,
        confirm,
        run_progress,
    };
    let result = run.run(&mut downloads, &mut record, events);
    let report = record.report(&mut downloads);
    match result {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

/// Configuration of the root's apt.
struct Configured {
    /// Directory of package files, as a path outside of the root.
    archives: PathBuf,
    /// Directory of indexes, outside of the root as well.
    lists: PathBuf,
    /// How long to wait for dpkg's locks.
    lock_timeout: LockTimeout,
    /// Whether to skip the question.
    yes: bool,
    /// Whether to keep package files after the installation.
    keeps_archives: bool,
    /// Proxies, credentials and limits of the root's apt.
    network: NetworkSettings,
    /// Mirror lists of apt's `mirror+file:` sources.
    mirrors: MirrorSets,
}

impl Configured {
    fn ask(
        settings: &InstallSettings,
        inside: &RootCommands<'_>,
        log: &Log,
        events: &mut dyn Events,
    ) -> Result<Configured, CommandError> {
        let mut command = apt(settings, inside, "apt-config", None);
        let dump = log.read(command.args(Configuration::DUMP), "apt-config dump")?;
        let configuration = Configuration::from_dump(&dump).map_err(CommandError::usage)?;
        let directory = |name: &str, default: &str| {
            let path = configuration.path(name).unwrap_or_else(|| PathBuf::from(default));
            within(&settings.root, &path).map_err(|error| CommandError::cannot("find", &path, &error))
        };
        Ok(Configured {
            archives: directory("Dir::Cache::archives", ARCHIVES)?,
            lists: directory("Dir::State::lists", LISTS)?,
            lock_timeout: LockTimeout::of_seconds(configuration.number("DPkg::Lock::Timeout", 0)),
            yes: configuration.bool("APT::Get::Assume-Yes", false),
            keeps_archives: configuration.bool("APT::Keep-Downloaded-Packages", true),
            network: apt_network(&settings.network, &configuration, &settings.root),
            mirrors: mirrors(&configuration, &settings.root, events),
        })
    }

    /// Whether the root has an index of any archive.
    fn has_lists(&self) -> bool {
        let is_list = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.is_ok_and(|entry| entry.file_name() != "lock" && entry.file_type().is_ok_and(|kind| kind.is_file()))
        };
        std::fs::read_dir(&self.lists).is_ok_and(|mut entries| entries.any(is_list))
    }

    /// apt does this for files that it fetched itself, but not for files that were in its archives directory before.
    fn remove_unless_kept(&self, fetched: &[Wanted]) -> Result<(), CommandError> {
        let removable = if self.keeps_archives { &[] } else { fetched };
        removable.iter().try_for_each(|file| removed(&self.archives.join(&file.file_name)))
    }
}

/// Mirror sets of the root's mirror lists. Errors in the lists are reported, as the http method does.
fn mirrors(configuration: &Configuration, root: &Path, events: &mut dyn Events) -> MirrorSets {
    let (sets, warnings) = MirrorSets::configured(configuration, |list| {
        let path = within(root, list).map_err(|error| CommandError::cannot("find", list, &error))?;
        read_text(&path, LIST_BYTES_MAX)
    });
    warnings.into_iter().for_each(|warning| events.warn(warning));
    sets
}

/// State that all steps use.
struct InstallRun<'a> {
    settings: &'a InstallSettings,
    configured: &'a Configured,
    inside: &'a RootCommands<'a>,
    session: &'a Session,
    log: &'a Log,
    stop: &'a Stop,
    confirm: &'a Confirm<'a>,
    run_progress: &'a Arc<RunProgress>,
}

impl InstallRun<'_> {
    /// Runs all steps in order.
    fn run(
        &self,
        downloads: &mut Downloads,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        record.turn(events, Phase::Resolve, Part::Resolve);
        let root = &self.settings.root;
        let relay = Relay::place(root, &[]).map_err(|error| of_relay(&error))?;
        let waiting = self.take_locks(&relay, events)?;
        Relay::clear_abandoned(root).map_err(|error| of_relay(&error))?;
        let plan = self.plan()?;
        self.stop.check()?;
        // Without any change apt still prints a message, and may have to mark packages.
        if !plan.steps.is_empty() {
            self.agree(&plan, self.confirm)?;
            self.run_progress.expect(plan.expected());
            if let Some(line) = record.flush().expectation(plan.unpacked()) {
                events.note(line);
            }
            self.fetch(&plan.wanted, downloads, record, events)?;
            self.stop.check()?;
        }
        self.install(relay, waiting, &plan.wanted, record, events)?;
        record.removed(plan.removed());
        Ok(())
    }

    /// Starts the process that becomes apt. It holds dpkg's locks from now on, and waits.
    fn take_locks(&self, relay: &Relay, events: &mut dyn Events) -> Result<WaitingFrontend, CommandError> {
        let root = Root::open(&self.settings.root).map_err(|error| CommandError::new(ErrorKind::Disk, error))?;
        let command = self.installing(relay)?;
        let mut wanted = Ok(());
        let waiting = WaitingFrontend::start(command, &root, self.configured.lock_timeout, &mut |holder| {
            if let Some(holder) = holder {
                events.note(format!("waiting: {holder}"));
            }
            wanted = self.stop.check();
            if wanted.is_ok() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        wanted?;
        waiting.map_err(|error| match error {
            FrontendError::Held(_) => CommandError::new(ErrorKind::Locked, error)
                .hint("wait for it to end, or pass --aptopt DPkg::Lock::Timeout=SECONDS"),
            error => CommandError::usage(error),
        })
    }

    /// Fetches package files. apt later fetches those that fullbore cannot, possibly in another way.
    fn fetch(
        &self,
        wanted: &[Wanted],
        downloads: &mut Downloads,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        record.turn(events, Phase::Fetch, Part::Download);
        if wanted.is_empty() {
            return Ok(());
        }
        // apt-get holds this lock too while it fetches.
        let _lock = Lock::take(&self.configured.archives)
            .map_err(|error| CommandError::new(ErrorKind::Locked, error).hint("wait for the other apt-get to end"))?;
        let fetched = downloads.fetch(wanted, self.stop, events);
        downloads.finish()?;
        let Err(error) = fetched else { return Ok(()) };
        if !matches!(error.kind, ErrorKind::Network | ErrorKind::Usage) {
            return Err(error);
        }
        downloads.discard_unfinished(wanted)?;
        let why: Vec<&str> = std::iter::once(&error.message).chain(&error.context).map(String::as_str).collect();
        events.warn(format!("{}; apt fetches the missing files", why.join(": ")));
        Ok(())
    }

    /// The command of apt-get for the installation, with fullbore in place of dpkg.
    fn installing(&self, relay: &Relay) -> Result<Command, CommandError> {
        // In a file, because apt writes its command line into its history.
        let mut text = String::new();
        if let Some(own) = &self.settings.apt_config {
            text.push_str(&format!("#include \"{own}\";\n"));
        }
        text.push_str(&format!("Dir::Bin::dpkg \"{}\";\n", relay.program().display()));
        let configuration = relay.add_file("apt.conf", &text);
        let configuration =
            configuration.map_err(|error| CommandError::cannot("write into", &self.settings.root, &error))?;
        let mut command = apt(self.settings, self.inside, "apt-get", Some(&configuration));
        // The user has confirmed already.
        command.args(["--yes", "install"]).args(&self.settings.packages).stdin(Stdio::inherit());
        if self.settings.quiet || self.settings.json {
            self.log.take(&mut command, true)?;
        }
        Ok(command)
    }

    /// Runs the installation by apt, and answers its calls of dpkg.
    fn install(
        &self,
        relay: Relay,
        waiting: WaitingFrontend,
        wanted: &[Wanted],
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let root = &self.settings.root;
        record.turn(events, Phase::Unpack, Part::Dpkg);
        let mut child = waiting.go().map_err(CommandError::usage)?;
        let mut unpacker = Unpacker::new(self.inside, self.log, wanted, self.run_progress.clone());
        unpacker.ask_dpkg();
        let mut server = DpkgServer::new(root, &unpacker, Vec::new(), self.settings.epoch);
        let served = server.serve(&relay, &mut child, record, events);
        // With the pipes closed, no script waits for an answer that never comes.
        drop(relay);
        if served.is_err() {
            let _ = child.wait();
        }
        let ended = match server.failure.take() {
            Some(error) => Err(error),
            None => served
                .map_err(|error| CommandError::disk(root, &error))
                .and_then(|status| self.log.judge(status, "apt-get install")),
        };
        let ended = ended.and_then(|()| self.configured.remove_unless_kept(wanted));
        record.turn(events, Phase::Sync, Part::Sync);
        // Also after a failure, because dpkg's changes stay.
        let flushed = self.session.sync(&mut |path| events.note(still_syncing(path)));
        ended?;
        if let Some((path, error)) = flushed.failed.iter().chain(&flushed.missed).next() {
            return Err(CommandError::cannot("sync", path, error)
                .context("the packages are installed, but some files may not be on disk"));
        }
        for (path, error) in &flushed.beyond {
            events.warn(format!("{}: not synced: {error}; dpkg has nothing there", path.display()));
        }
        let survivors = self.session.settled_survivors();
        if survivors.is_empty() {
            return Ok(());
        }
        let names: Vec<String> =
            survivors.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
        // apt does not wait for them either, and the packages are installed.
        events.warn(format!(
            "programs that packages started still run, without syncs until they end; restart them: {}",
            names.join(", ")
        ));
        Ok(())
    }
}

/// A command of the root's apt, with the user's options.
fn apt(settings: &InstallSettings, inside: &RootCommands<'_>, program: &str, configuration: Option<&Path>) -> Command {
    let mut command = inside.command(program);
    match (configuration, &settings.apt_config) {
        (Some(configuration), _) => command.env("APT_CONFIG", configuration),
        (None, Some(own)) => command.env("APT_CONFIG", own),
        (None, None) => &mut command,
    };
    for option in &settings.apt_options {
        command.args(["--option", option]);
    }
    command
}
