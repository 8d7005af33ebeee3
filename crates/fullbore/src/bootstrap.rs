//! `fullbore bootstrap`: a Debian root, made as mmdebstrap makes it, faster.
//!
//! [`run`] is the walk: an empty place with a marker (`place`) → directories, sources, devices → apt verifies
//! indexes and says what is needed (`apt`) → package files by our wire (`download`), the Essential
//! ones first → these are unpacked at once and configured by dpkg (`first`) while the others come → apt
//! installs the others; what it wants unpacked, we unpack (`rest`) → cleaned → one sync → the
//! marker goes. No command that is started syncs: `nosync::session` sees to that.

mod apt;
mod clean;
mod first;
mod foreign;
mod hook;
mod namespace;
mod pack;
mod place;
mod rest;

use std::sync::{Arc, Mutex, PoisonError, mpsc};

use fullbore_engine::stage::Ledger;
use fullbore_install::hooks::Moment;
use fullbore_install::inside::{Inside, may_have_own_processes};
use fullbore_install::nosync::session::Session;
use fullbore_install::resolve::Wanted;
use fullbore_install::skeleton::{Skeleton, SkeletonError, Stage};

use crate::cli::BootstrapFormat;
use crate::error::{CommandError, ErrorKind};
use crate::events::{Event, Events, Phase};
use crate::fetching::Stop;
use crate::installing::Part;
use crate::installing::account::Account;
use crate::installing::download::Downloads;
use crate::installing::log::Log;
use crate::installing::unpacker::Unpacker;
use crate::report::Report;
use crate::settings::BootstrapSettings;
use apt::{PrivateApt, Selection};
use place::Place;

pub use namespace::{IN_NAMESPACE, enter};

/// Where apt looks for package files.
const ARCHIVES: &str = "var/cache/apt/archives";

/// Makes a root. The process is in a mount namespace of its own ([`enter`]).
///
/// # Errors
/// See [`ErrorKind`]; the target is then marked as unfinished, and a further run starts over.
pub fn run(settings: &BootstrapSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    // Modes are those of packages and of Debian's defaults, not the caller's.
    rustix::process::umask(rustix::fs::Mode::from_bits_retain(0o022));
    foreign::check(settings)?;
    let place = Place::open(settings)?;
    let root = place.root().to_owned();
    let session = Arc::new(Session::open(&root).map_err(|error| CommandError::disk(&root, &error))?);
    let mut account = Account::begin("bootstrap", &settings.target, &root, Part::Around, events);
    let archives = root.join(ARCHIVES);
    let mut downloads = Downloads::open(&archives, &settings.network, &settings.mirrors, &Ledger::new())?;
    let stop = downloads.stop(&session);
    let log = Log::open(&root, settings.verbose > 0)?;
    let own_processes = may_have_own_processes(&archives).map_err(|error| {
        CommandError::usage(format_args!("unshare: {error}")).hint("it is in the package util-linux")
    })?;
    let inside = Inside::alone(&root, &session, own_processes, environment(settings));
    let walk = Walk { settings, inside: &inside, log: &log, stop: &stop, own_processes };
    let result = walk.run(&mut downloads, &mut account, events);
    let result = result.and_then(|()| walk.finish(place, &session, &mut account, events));
    // What a signal has killed has failed as well.
    let result = result.map_err(|error| stop.check().err().map_or(error, |_| interrupted()));
    let report = account.report(&mut downloads);
    match result {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

fn interrupted() -> CommandError {
    CommandError::new(ErrorKind::Interrupted, "interrupted; the root is not complete").hint("run again: it starts over")
}

/// For all commands: nobody is asked anything.
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

/// What all steps know.
struct Walk<'a> {
    settings: &'a BootstrapSettings,
    inside: &'a Inside<'a>,
    log: &'a Log,
    stop: &'a Stop,
    own_processes: bool,
}

/// Events from the walk and from the download beside it.
struct Shared<'a, 'b>(&'a Mutex<&'b mut dyn Events>);

impl Events for Shared<'_, '_> {
    fn emit(&mut self, event: Event) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).emit(event);
    }
}

impl Walk<'_> {
    /// The walk, in order.
    fn run(
        &self,
        downloads: &mut Downloads,
        account: &mut Account,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let root = self.inside.root();
        let skeleton = Skeleton {
            root,
            architectures: &self.settings.architectures,
            sources: &self.settings.sources,
            apt_options: &self.settings.apt_options,
            dpkg_options: &self.settings.dpkg_options,
        };
        let has_devices = skeleton.lay_out().map_err(|error| disk(&error))?;
        let apt = PrivateApt::prepare(self.settings, self.inside, self.log)?;
        self.hooks(Moment::Setup, &apt, &Selection::default(), account)?;
        account.turn(events, Phase::Indexes, Part::Indexes);
        apt.update()?;
        self.stop.check()?;
        account.turn(events, Phase::Resolve, Part::Resolve);
        let first = apt.first(self.settings)?;
        let wishes = PrivateApt::wishes(self.settings);
        let events = Mutex::new(events);
        let (orders, ordered) = mpsc::channel::<Vec<Wanted>>();
        let (tell, told) = mpsc::channel::<Result<(), CommandError>>();
        std::thread::scope(|scope| {
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
            // Beside the download and all that is done with the first packages.
            let (apt, first, wishes, flush) = (&apt, &first, &wishes, account.flush());
            let resolving = scope.spawn(move || {
                let rest = apt.rest(first, wishes)?;
                if let Some(line) = flush.expectation((first.files.len() + rest.files.len()) as u64) {
                    Shared(told_to).note(line);
                }
                // The download may have failed meanwhile, and tells itself.
                let _ = orders.send(rest.files.clone());
                Ok::<_, CommandError>(rest)
            });
            account.turn(events, Phase::Fetch, Part::Download);
            arrived()?;
            account.turn(events, Phase::Unpack, Part::Unpack);
            let mut unpacker = Unpacker::new(self.inside, self.log, &first.files);
            let done = self.unpack_first(&unpacker, first, account)?;
            let mut warn = |line| events.warn(line);
            let stage = Stage::enter(root, has_devices, self.own_processes, &mut warn).map_err(|error| disk(&error))?;
            self.hooks(Moment::Extract, apt, first, account)?;
            account.turn(events, Phase::Configure, Part::Dpkg);
            self.configure_first(&mut unpacker, &done, first)?;
            self.hooks(Moment::Essential, apt, first, account)?;
            account.turn(events, Phase::Resolve, Part::Resolve);
            let rest = resolving.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            account.turn(events, Phase::Fetch, Part::Download);
            arrived()?;
            unpacker.expect(&rest.files);
            account.turn(events, Phase::Unpack, Part::Dpkg);
            self.install_rest(apt, &unpacker, &rest, wishes, account)?;
            self.hooks(Moment::Customize, apt, first, account)?;
            account.turn(events, Phase::Clean, Part::Around);
            stage.leave().map_err(|error| disk(&error))
        })?;
        downloads.finish()?;
        clean::clean(root)
    }

    /// From a root to what was asked for, on the disk.
    fn finish(
        &self,
        place: Place,
        session: &Session,
        account: &mut Account,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        self.stop.check()?;
        let survivors: Vec<String> = session.survivors().iter().map(|process| process.name.clone()).collect();
        if !survivors.is_empty() {
            session.kill();
            return Err(CommandError::new(
                ErrorKind::Partial,
                format_args!("programs started in the root had not ended: {}", survivors.join(", ")),
            )
            .context("they were killed; what they did may be incomplete")
            .hint("find the package or hook that starts them"));
        }
        if self.settings.format != BootstrapFormat::Dir {
            account.turn(events, Phase::Pack, Part::Pack);
            pack::pack(self.settings, self.inside, self.log)?;
            return place.discard();
        }
        account.turn(events, Phase::Sync, Part::Sync);
        synced(session)?;
        place.complete()?;
        synced(session)
    }
}

fn synced(session: &Session) -> Result<(), CommandError> {
    let flushed = session.sync();
    match flushed.failed.iter().chain(&flushed.missed).next() {
        None => Ok(()),
        Some((path, error)) => Err(CommandError::disk(path, error)
            .context("the root may not be on the disk as it should")
            .hint("run again on a disk that works")),
    }
}

fn disk(error: &SkeletonError) -> CommandError {
    CommandError::new(ErrorKind::Disk, error)
}
