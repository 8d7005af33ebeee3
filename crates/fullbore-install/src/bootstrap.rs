//! `fullbore bootstrap`: a Debian root, like that of mmdebstrap.
//!
//! [`run`] goes through these steps:
//!
//! 1. create an empty directory with a marker (`target`), with directories, sources and devices;
//! 2. fetch and verify the indexes (`indexes`); apt resolves the packages (`apt`);
//! 3. fetch package files (`download`), those of the Essential packages first;
//! 4. unpack the Essential packages, and configure them with dpkg (`first`) while the other files arrive;
//! 5. apt installs the other packages, and fullbore unpacks them (`rest`);
//! 6. clean, sync once, and remove the marker.
//!
//! No command syncs before the last step (`nosync::session`).

mod apt;
mod apt_paths;
mod clean;
mod ext_image;
mod first;
mod foreign;
mod hook;
mod hook_socket;
mod indexes;
pub mod oci;
mod own_mount;
mod pack;
mod rest;
pub mod skips;
mod target;
pub mod tools;
mod ustar;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::ScopedJoinHandle;

use fullbore_apt::http::MirrorSets;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Event, Events, Phase};
use fullbore_engine::run::report::Report;
use fullbore_engine::stage::Ledger;

use crate::apt_network::apt_network;
use crate::hooks::Moment;
use crate::inside::{OwnProcesses, RootCommands, may_have_own_processes};
use crate::installing::download::{Downloads, is_remote};
use crate::installing::estimate::Expected;
use crate::installing::log::Log;
use crate::installing::record::RunRecord;
use crate::installing::run_events::{RunEvents, RunProgress};
use crate::installing::unpacker::Unpacker;
use crate::installing::{NO_NEW_PRIVILEGES, Part, still_syncing};
use crate::nosync::Process;
use crate::nosync::session::Session;
use crate::resolve::{Action, Wanted};
use crate::root::RootError;
use crate::settings::{BootstrapSettings, Format, Mode, Namespaces, Variant};
use crate::skeleton::{self, ScriptMounts, Skeleton};
use crate::unpack::ReadAhead;
use apt::{AptOptions, PrivateApt, Selection};
use hook_socket::HookSocket;
use own_mount::OwnMount;
use target::TargetDirectory;

/// Directory in which apt looks for package files.
const ARCHIVES: &str = "var/cache/apt/archives";

/// Makes a root. The process should be in its own mount namespace: mounts into the root end with its last process.
///
/// # Errors
/// The [kind](ErrorKind) of the error tells what failed. `Usage`: settings, sources or a missing program. `Network` and
/// `Verification`: indexes or package files. `Partial`: apt, dpkg, a maintainer script or a hook failed. `Locked`:
/// another run makes this root. `Disk`: a file of the root cannot be read or written. `Interrupted`: a signal.
///
/// After an error a directory stays marked as unfinished, and the next run starts over. An unfinished archive is
/// removed.
pub fn run(settings: &BootstrapSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    // First of all, because shells know only descriptors of one digit.
    let hook_socket = HookSocket::open().map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
    let run_events = RunEvents::new(events);
    run_events.tell_during(|| made(settings, &hook_socket, &run_events.run_progress(), &mut &run_events))
}

fn made(
    settings: &BootstrapSettings,
    hook_socket: &HookSocket,
    run_progress: &Arc<RunProgress>,
    events: &mut dyn Events,
) -> Result<Report, CommandError> {
    settings.warnings.iter().for_each(|warning| events.warn(warning.clone()));
    if settings.namespaces == Namespaces::Callers {
        events.warn(own_mount::without_namespaces());
    }
    // Modes are those of packages and of Debian's defaults, not the caller's.
    rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
    if !settings.skips.has("check/qemu") {
        foreign::check(settings)?;
    }
    tools::check(settings)?;
    oci::check(settings, events)?;
    let place = TargetDirectory::open(settings)?;
    let root = place.root().to_owned();
    let own_mount = OwnMount::of(&root, settings.namespaces)?;
    let session = Arc::new(Session::open(&root).map_err(|error| CommandError::cannot("open", &root, &error))?);
    let mut record = RunRecord::begin("bootstrap", &settings.target, &root, Part::Around, events);
    if session.gives_up_privileges() {
        events.note(NO_NEW_PRIVILEGES.to_owned());
    }
    let log = Log::open(&root, settings.commands_print_to.clone())?;
    let mut mirrors = MirrorSets::default();
    // apt fetches sources with another scheme.
    let remote: Vec<&str> = settings.mirrors.iter().map(String::as_str).filter(|uri| is_remote(uri)).collect();
    if let Some(error) = mirrors.add(&remote.join("\n")).first() {
        return Err(CommandError::usage(&error.reason));
    }
    let mut may_cut = place.can_begin_anew();
    loop {
        let archives = root.join(ARCHIVES);
        let mut downloads = Downloads::open(&archives, &settings.network, mirrors.clone(), &Ledger::new())?;
        let stop = downloads.stop(&session);
        let own_processes = own_processes(settings, &archives)?;
        let inside = RootCommands::alone(&root, &session, own_processes, environment(settings));
        // The download and dpkg use one core.
        let threads = cores().saturating_sub(1).max(1);
        let ahead = Arc::new(ReadAhead::start(threads, bytes_ahead()));
        downloads.decompress_ahead(ahead.clone());
        let run = BootstrapRun {
            settings,
            inside: &inside,
            log: &log,
            stop: &stop,
            may_cut,
            ahead,
            run_progress,
            hook_socket,
        };
        let result = match run.run(&mut downloads, &mut record, events) {
            Ok(Attempt::Complete) => run.finish(&place, &session, &own_mount, &mut record, events),
            Ok(Attempt::OtherThanAll) if stop.check().is_ok() => {
                events.note("with all packages of the archive apt decides differently: starting over".to_owned());
                record.part(Part::Around);
                record.forget();
                run_progress.begin_anew();
                place.begin_anew()?;
                may_cut = false;
                continue;
            }
            Ok(Attempt::OtherThanAll) => Err(interrupted()),
            Err(error) => Err(error),
        };
        // A process that a signal killed has failed as well.
        let result = result.map_err(|error| stop.check().err().map_or(error, |_| interrupted()));
        let result = result.map_err(starts_over);
        if result.is_err() {
            // No process may write there any more.
            session.end_survivors();
        }
        own_mount.end();
        let result = if settings.format == Format::Dir { result } else { discard(place, result) };
        let report = record.report(&mut downloads);
        return match result {
            Ok(()) => Ok(report),
            Err(error) => Err(error.with_report(report)),
        };
    }
}

/// Whether commands get PID namespaces of their own.
fn own_processes(settings: &BootstrapSettings, scratch: &Path) -> Result<OwnProcesses, CommandError> {
    if settings.namespaces == Namespaces::Callers {
        return Ok(OwnProcesses::No);
    }
    let may = may_have_own_processes(scratch).map_err(|error| {
        CommandError::usage(format_args!("unshare: {error}")).hint("install the package util-linux")
    })?;
    Ok(match may {
        false => OwnProcesses::No,
        true if settings.skips.has("chroot/mount/proc") => OwnProcesses::WithoutProc,
        true => OwnProcesses::WithProc,
    })
}

/// Removes the root from which an archive was made: only the archive was requested.
fn discard(place: TargetDirectory, result: Result<(), CommandError>) -> Result<(), CommandError> {
    let root = place.root().to_owned();
    match (place.discard(), result) {
        (Ok(()), result) => result,
        (Err(error), Ok(())) => Err(error),
        (Err(left), Err(error)) => {
            Err(error.context(format_args!("the unfinished root is still in {}: {}", root.display(), left.message)))
        }
    }
}

/// Adds to an error that the next run starts over: an incomplete root is never reused, even if its package files were
/// kept.
fn starts_over(mut error: CommandError) -> CommandError {
    // The hint of a file without access is right as it is.
    let is_full = error.kind == ErrorKind::Disk && !error.message.contains("Permission denied");
    if is_full && !error.hints.is_empty() {
        error.hints = vec!["free some space or use another disk, and run again: the root is made anew".to_owned()];
    }
    error
}

fn interrupted() -> CommandError {
    CommandError::new(ErrorKind::Interrupted, "interrupted; the root is not complete").hint("run again: it starts over")
}

/// Environment of all commands: no questions.
fn environment(settings: &BootstrapSettings) -> Vec<(String, String)> {
    [
        ("DEBIAN_FRONTEND", "noninteractive"),
        ("DEBCONF_NONINTERACTIVE_SEEN", "true"),
        ("LC_ALL", "C.UTF-8"),
        ("LANGUAGE", "C.UTF-8"),
        ("LANG", "C.UTF-8"),
        ("PATH", &settings.path),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .collect()
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Memory for packages that are decompressed ahead: a quarter of the free memory, limited to the needs of a large set.
fn bytes_ahead() -> u64 {
    const BYTES_MAX: u64 = 1 << 30;
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let available = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    available.map_or(0, |kilobytes| (kilobytes * 1024 / 4).min(BYTES_MAX))
}

/// State that all steps use.
struct BootstrapRun<'a> {
    settings: &'a BootstrapSettings,
    inside: &'a RootCommands<'a>,
    log: &'a Log,
    stop: &'a Stop,
    /// Whether apt may see only a part of the archive first.
    may_cut: bool,
    ahead: Arc<ReadAhead>,
    run_progress: &'a Arc<RunProgress>,
    hook_socket: &'a HookSocket,
}

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// The root has its packages.
    Complete,
    /// With the whole archive, apt would have made another root.
    OtherThanAll,
}

/// The decision of apt with the whole archive, computed when it is needed.
enum Confirmation<'scope> {
    Open(ScopedJoinHandle<'scope, bool>),
    Known(bool),
}

impl Confirmation<'_> {
    /// Whether it is the same decision as before.
    fn is_given(&mut self) -> bool {
        *self = Confirmation::Known(match std::mem::replace(self, Confirmation::Known(false)) {
            Confirmation::Open(asking) => asking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Confirmation::Known(is_given) => is_given,
        });
        matches!(self, Confirmation::Known(true))
    }
}

/// Events of the steps and of the concurrent download.
struct Shared<'a, 'b>(&'a Mutex<&'b mut dyn Events>);

impl Events for Shared<'_, '_> {
    fn emit(&mut self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).emit(event);
    }

    fn lend_terminal(&mut self, is_lent: bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).lend_terminal(is_lent);
    }
}

impl BootstrapRun<'_> {
    /// Runs all steps in order.
    fn run(
        &self,
        downloads: &mut Downloads,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<Attempt, CommandError> {
        let root = self.inside.root();
        let skeleton = Skeleton {
            root,
            architectures: &self.settings.architectures,
            sources: &self.settings.sources,
            apt_options: &self.settings.apt_options,
            dpkg_options: &self.settings.dpkg_options,
            options_name: self.settings.options_name,
            makes_devices: self.settings.mode == Mode::Root,
        };
        let has_devices =
            if self.settings.skips.has("setup") { skeleton::has_devices(root) } else { skeleton.lay_out() };
        let has_devices = has_devices.map_err(|error| disk(&error))?;
        if !self.needs_packages() {
            return self.run_hooks_alone(has_devices, record, events);
        }
        let apt = PrivateApt::prepare(self.settings, self.inside, self.log)?;
        self.hooks(Moment::Setup, Some(&apt), &Selection::default(), record, events)?;
        self.check_apt_paths()?;
        record.turn(events, Phase::Indexes, Part::Indexes);
        let configuration = apt.dump()?;
        // Settings of the new root's apt, besides those of this machine's apt.
        let network = apt_network(&self.settings.network, &configuration, Path::new("/"));
        downloads.reach_by(network.clone());
        indexes::prepare(&configuration, root)?;
        if !self.settings.skips.has("update") {
            indexes::refresh(self.settings, network, &apt, configuration.clone(), root, events)?;
        }
        self.stop.check()?;
        record.turn(events, Phase::Resolve, Part::Resolve);
        let cut = if self.may_cut { indexes::cut(self.settings, &apt, &configuration, root)? } else { None };
        let (is_cut, options, first) = match cut
            .map(|options| apt.first(self.settings, &options).map(|first| (options, first)))
        {
            Some(Ok((options, first))) => (true, options, first),
            // If apt cannot resolve the cut indexes, its answer for the whole archive counts.
            Some(Err(_)) | None => (false, AptOptions::default(), apt.first(self.settings, &AptOptions::default())?),
        };
        let requested = PrivateApt::requested(self.settings);
        if self.settings.simulate {
            let rest = apt.rest(&first, &requested, &options)?;
            tell_steps(&first, &rest, events);
            return Ok(Attempt::Complete);
        }
        indexes::lock_archives(&first.files, root)?;
        if self.settings.variant == Variant::Extract {
            return self.extract(&apt, &first, has_devices, downloads, record, events);
        }
        let events = Mutex::new(events);
        let (orders, ordered) = mpsc::channel::<Vec<Wanted>>();
        let (tell, told) = mpsc::channel::<Result<(), CommandError>>();
        // `None` if apt decides otherwise with all packages.
        let (say, said) = mpsc::channel::<Result<Option<Selection>, CommandError>>();
        let walked = std::thread::scope(|scope| {
            let (begin, unpacked) = mpsc::channel::<()>();
            let (stop, events) = (self.stop, &events);
            let downloads = &mut *downloads;
            scope.spawn(move || {
                for wanted in ordered {
                    let fetched = downloads.fetch(&wanted, stop, &mut Shared(events));
                    let failed = fetched.is_err();
                    if tell.send(fetched).is_err() || failed {
                        break;
                    }
                }
            });
            let arrived = || told.recv().unwrap_or_else(|_| Err(interrupted()));
            let told_to = events;
            let events = &mut Shared(told_to);
            let gone = |_| CommandError::new(ErrorKind::Internal, "the download has ended");
            orders.send(first.files.clone()).map_err(gone)?;
            // Concurrent with the download and all steps of the first packages.
            let (apt, first, requested, options, flush) = (&apt, &first, &requested, &options, record.flush());
            let confirming = scope.spawn(move || {
                let rest = match apt.rest(first, requested, options) {
                    Ok(rest) => rest,
                    Err(error) if !is_cut => return say.send(Err(error)).is_ok(),
                    // With all packages apt may succeed; if not, its message for the whole archive is the right one.
                    Err(_) => {
                        let whole = apt.rest(first, requested, &AptOptions::default());
                        return say.send(whole.map(|_| None)).is_ok();
                    }
                };
                let (first_packages, packages) = (first.files.len(), first.files.len() + rest.files.len());
                self.run_progress.expect(Expected {
                    bytes: first.files.iter().chain(&rest.files).map(|file| file.size).sum(),
                    packages: packages as u64,
                    first_packages: first_packages as u64,
                    becomes_archive: self.settings.format != Format::Dir,
                });
                if let Some(line) = flush.expectation(packages as u64) {
                    Shared(told_to).note(line);
                }
                // The download may have failed meanwhile, and reports its own error.
                let _ = orders.send(rest.files.clone());
                let _ = say.send(Ok(Some(rest.clone())));
                // Until then all cores unpack; afterwards one core configures.
                if unpacked.recv().is_err() {
                    return false;
                }
                // With two cores, dpkg uses the other one.
                let _paused = (cores() <= 2).then(|| self.ahead.pause());
                !is_cut || apt.confirms(self.settings, first, &rest, requested)
            });
            let mut confirmation = Confirmation::Open(confirming);
            let mut stage = None;
            let decided = || said.recv().unwrap_or_else(|_| Err(interrupted()));
            let mut walk_on = || {
                record.turn(events, Phase::Fetch, Part::Download);
                let mut rest = None;
                // Before anything is unpacked, because apt may not know the packages, or cannot install them.
                if !self.settings.include.is_empty() {
                    rest = decided()?;
                    if rest.is_none() {
                        return Ok(Attempt::OtherThanAll);
                    }
                }
                arrived()?;
                record.turn(events, Phase::Unpack, Part::Unpack);
                let mut unpacker = Unpacker::new(self.inside, self.log, &first.files, self.run_progress.clone());
                unpacker.take_from(self.ahead.clone());
                let done = self.unpack_first(&unpacker, first, record)?;
                let _ = begin.send(());
                let mut warn = |line| events.warn(line);
                let entered = ScriptMounts::enter(root, has_devices, &self.settings.skips, &mut warn);
                stage = Some(entered.map_err(|error| disk(&error))?);
                self.hooks(Moment::Extract, Some(apt), first, record, events)?;
                record.turn(events, Phase::Configure, Part::Dpkg);
                self.configure_first(&mut unpacker, &done, first)?;
                record.turn(events, Phase::Resolve, Part::Resolve);
                let rest = match rest {
                    Some(rest) => rest,
                    None => match decided()? {
                        Some(rest) => rest,
                        None => return Ok(Attempt::OtherThanAll),
                    },
                };
                // The user's commands run only once, so the root must be final here.
                if self.has_hooks(Moment::Essential) && !confirmation.is_given() {
                    return Ok(Attempt::OtherThanAll);
                }
                self.hooks(Moment::Essential, Some(apt), first, record, events)?;
                record.turn(events, Phase::Fetch, Part::Download);
                arrived()?;
                unpacker.expect(&rest.files);
                record.turn(events, Phase::Unpack, Part::Dpkg);
                self.install_rest(apt.installing(options), &unpacker, &rest, requested, record, events)?;
                record.turn(events, Phase::Resolve, Part::Resolve);
                if !confirmation.is_given() {
                    return Ok(Attempt::OtherThanAll);
                }
                self.hooks(Moment::Customize, Some(apt), first, record, events)?;
                Ok(Attempt::Complete)
            };
            let mut walked = walk_on();
            // A failure with the cut indexes is not final: with all packages apt would have chosen others.
            if is_cut && walked.as_ref().is_err_and(|error: &CommandError| error.kind == ErrorKind::Partial) {
                let _ = begin.send(());
                if !confirmation.is_given() {
                    walked = Ok(Attempt::OtherThanAll);
                }
            }
            record.turn(events, Phase::Clean, Part::Around);
            if let Some(left) = stage.map(ScriptMounts::leave)
                && walked.is_ok()
            {
                left.map_err(|error| disk(&error))?;
            }
            walked
        })?;
        downloads.finish()?;
        Ok(walked)
    }

    /// Whether any package is to be installed: a hook may bring a root with all of them.
    fn needs_packages(&self) -> bool {
        let settings = self.settings;
        !matches!(settings.variant, Variant::Custom | Variant::Extract)
            || !settings.include.is_empty()
            || !settings.skips.has("update")
    }

    /// Runs the hooks on a root that gets no packages.
    fn run_hooks_alone(
        &self,
        has_devices: bool,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<Attempt, CommandError> {
        let none = Selection::default();
        self.hooks(Moment::Setup, None, &none, record, events)?;
        let moments: &[Moment] = match self.settings.variant {
            Variant::Extract => &[Moment::Extract],
            _ => &[Moment::Extract, Moment::Essential, Moment::Customize],
        };
        self.hooks_with_mounts(moments, has_devices, None, &none, record, events)
    }

    /// Unpacks packages, and configures none.
    fn extract(
        &self,
        apt: &PrivateApt<'_>,
        first: &Selection,
        has_devices: bool,
        downloads: &mut Downloads,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<Attempt, CommandError> {
        record.turn(events, Phase::Fetch, Part::Download);
        downloads.fetch(&first.files, self.stop, events)?;
        downloads.finish()?;
        record.turn(events, Phase::Unpack, Part::Unpack);
        let unpacker = Unpacker::new(self.inside, self.log, &first.files, self.run_progress.clone());
        for name in &first.order {
            unpacker.put_files(&self.inside.root().join(ARCHIVES).join(name))?;
            self.stop.check()?;
        }
        self.hooks_with_mounts(&[Moment::Extract], has_devices, Some(apt), first, record, events)
    }

    /// Runs the hooks of these moments, with mounts if there are any.
    fn hooks_with_mounts(
        &self,
        moments: &[Moment],
        has_devices: bool,
        apt: Option<&PrivateApt<'_>>,
        first: &Selection,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<Attempt, CommandError> {
        if !moments.iter().any(|moment| self.has_hooks(*moment)) {
            return Ok(Attempt::Complete);
        }
        let mut warn = |line| events.warn(line);
        let stage = ScriptMounts::enter(self.inside.root(), has_devices, &self.settings.skips, &mut warn);
        let stage = stage.map_err(|error| disk(&error))?;
        let mut hooks = moments.iter().map(|moment| self.hooks(*moment, apt, first, record, events));
        let run = hooks.find(Result::is_err).unwrap_or(Ok(()));
        drop(hooks);
        let left = stage.leave().map_err(|error| disk(&error));
        run.and(left).map(|()| Attempt::Complete)
    }

    /// Turns a root into the requested form, on the disk.
    fn finish(
        &self,
        place: &TargetDirectory,
        session: &Session,
        own_mount: &OwnMount,
        record: &mut RunRecord,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        self.stop.check()?;
        end_survivors(session, events)?;
        clean::clean(self.inside.root(), &self.settings.skips)?;
        if self.settings.simulate && self.settings.format != Format::Dir {
            return Ok(());
        }
        if self.settings.format != Format::Dir {
            record.turn(events, Phase::Pack, Part::Pack);
            self.run_progress.root_has(record.unpacked_bytes());
            return pack::pack(self.settings, self.inside, self.log, &self.run_progress.packed_bytes);
        }
        record.turn(events, Phase::Sync, Part::Sync);
        synced(session, events)?;
        own_mount.end();
        place.complete()?;
        synced(session, events)
    }
}

/// Shows the packages that would be installed.
fn tell_steps(first: &Selection, rest: &Selection, events: &mut dyn Events) {
    let steps = || first.steps.iter().chain(&rest.steps);
    for step in steps().filter(|step| step.action == Action::Unpack) {
        events.note(format!("would install {} {} ({})", step.package, step.version, step.architecture));
    }
    for step in steps().filter(|step| step.action == Action::Remove) {
        events.note(format!("would remove {}", step.package));
    }
}

/// Ends processes that hooks left behind, as a PID namespace does for scripts. A hook may start a service for use
/// during the run, but the service must be finished with the root by now.
fn end_survivors(session: &Session, events: &mut dyn Events) -> Result<(), CommandError> {
    let (ended, left) = session.end_survivors();
    let names =
        |processes: &[Process]| processes.iter().map(|process| process.name.clone()).collect::<Vec<_>>().join(", ");
    if !left.is_empty() {
        return Err(CommandError::new(
            ErrorKind::Partial,
            format_args!("programs started for the root cannot be killed: {}", names(&left)),
        ));
    }
    if !ended.is_empty() {
        events
            .warn(format!("programs that a hook or script had started still ran, and were killed: {}", names(&ended)));
    }
    Ok(())
}

fn synced(session: &Session, events: &mut dyn Events) -> Result<(), CommandError> {
    let flushed = session.sync(&mut |path| events.note(still_syncing(path)));
    match flushed.failed.iter().chain(&flushed.missed).next() {
        None => Ok(()),
        Some((path, error)) => {
            Err(CommandError::cannot("sync", path, error).context("some files of the root may not be on disk"))
        }
    }
}

fn disk(error: &RootError) -> CommandError {
    CommandError::new(ErrorKind::Disk, error)
}
