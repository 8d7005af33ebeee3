//! `fullbore install`: packages into an existing root, as its own apt would install them.
//!
//! [`run`] is the walk: the root's apt says what is needed → package files by our wire, into apt's own archives
//! directory → apt installs, as ever, with its locks, hooks and records; what it wants unpacked it
//! asks of us (`installing::unpacker`), and everything that dpkg and scripts do is without syncs → one sync.

use std::io::{IsTerminal as _, Write as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use fullbore_apt::lists::lock::Lock;
use fullbore_engine::stage::Ledger;
use fullbore_install::inside::Inside;
use fullbore_install::nosync;
use fullbore_install::nosync::session::Session;
use fullbore_install::relay::Relay;
use fullbore_install::resolve::{self, Action, PRINT_URIS, Step, Wanted};

use crate::error::{CommandError, ErrorKind};
use crate::events::{Events, Phase};
use crate::fetching::Stop;
use crate::installing::Part;
use crate::installing::account::Account;
use crate::installing::download::{Downloads, is_ours};
use crate::installing::log::Log;
use crate::installing::serving::Serving;
use crate::installing::unpacker::Unpacker;
use crate::report::{Report, units};
use crate::settings::InstallSettings;

/// Where apt keeps package files unless it is configured otherwise.
const ARCHIVES: &str = "var/cache/apt/archives";

/// Installs packages.
///
/// # Errors
/// See [`ErrorKind`]; the root is then as apt and dpkg have left it.
pub fn run(settings: &InstallSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    if !rustix::process::geteuid().is_root() {
        return Err(CommandError::usage("packages are installed by root only"));
    }
    if settings.is_own_root()
        && !settings.force
        && let Some(manager) = nosync::service_manager()
    {
        return Err(CommandError::usage(format_args!("services could be started here: process 1 is {manager}"))
            .context("a service that a package starts would never again wait for the disk, as long as it lives")
            .hint(
                "deny starts by a policy-rc.d while this runs, install into an image by --root, or insist with --force",
            ));
    }
    let root = &settings.root;
    let session = Arc::new(Session::open(root).map_err(|error| CommandError::disk(root, &error))?);
    let mut account =
        Account::begin("install", &settings.root, &settings.root.join("var/lib/dpkg"), Part::Resolve, events);
    let archives = root.join(ARCHIVES);
    let mut downloads = Downloads::open(&archives, &settings.network, &[], &Ledger::new())?;
    let stop = downloads.listen();
    let log = Log::open(&root.join("var/lib/dpkg"), false)?;
    let inside = Inside::living(root, &session);
    let walk = Walk { settings, inside: &inside, session: &session, log: &log, stop: &stop };
    let result = walk.run(&mut downloads, &mut account, events);
    let report = account.report(&mut downloads);
    match result {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

/// What all steps know.
struct Walk<'a> {
    settings: &'a InstallSettings,
    inside: &'a Inside<'a>,
    session: &'a Session,
    log: &'a Log,
    stop: &'a Stop,
}

impl Walk<'_> {
    /// The walk, in order.
    fn run(
        &self,
        downloads: &mut Downloads,
        account: &mut Account,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        account.turn(events, Phase::Resolve, Part::Resolve);
        let (wanted, steps) = self.resolve()?;
        if steps.is_empty() {
            // apt has something to say all the same, and may have to mark packages.
            return self.install(&[], account, events);
        }
        self.agree(&wanted, &steps)?;
        let packages = steps.iter().filter(|step| step.action == Action::Unpack).count() as u64;
        if let Some(line) = account.flush().expectation(packages) {
            events.note(line);
        }
        account.turn(events, Phase::Fetch, Part::Download);
        let ours: Vec<Wanted> = wanted.into_iter().filter(|wanted| is_ours(&wanted.uri)).collect();
        if !ours.is_empty() {
            // As apt-get holds it while it fetches.
            let lock = Lock::take(&self.settings.root.join(ARCHIVES));
            let _lock = lock.map_err(|error| {
                CommandError::new(ErrorKind::Locked, error).hint("another apt-get runs; wait for it to end")
            })?;
            downloads.fetch(&ours, self.stop, events)?;
            downloads.finish()?;
        }
        self.stop.check()?;
        self.install(&ours, account, events)
    }

    /// What apt would do, and which files it needs for that.
    fn resolve(&self) -> Result<(Vec<Wanted>, Vec<Step>), CommandError> {
        let ask = |arguments: &[&str]| {
            let mut command = self.apt(None);
            command.args(arguments).arg("install").args(&self.settings.packages);
            command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
            command
        };
        let mut list = ask(&PRINT_URIS);
        let mut simulate = ask(&["--yes", "--simulate", "--option", "Debug::NoLocking=1"]);
        let uris = self.log.read(&mut list, "apt-get --print-uris")?;
        let steps = self.log.read(&mut simulate, "apt-get --simulate")?;
        let strange = |error: resolve::ResolveError| CommandError::new(ErrorKind::Internal, error);
        let wanted = match resolve::uris(&uris) {
            // A local file has no hash in an index; apt takes it by itself.
            Err(resolve::ResolveError::NoHash(_)) => Vec::new(),
            other => other.map_err(strange)?,
        };
        Ok((wanted, resolve::steps(&steps).map_err(strange)?))
    }

    /// Asks, where apt-get would.
    fn agree(&self, wanted: &[Wanted], steps: &[Step]) -> Result<(), CommandError> {
        if self.settings.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || self.settings.json {
            return Err(CommandError::usage("nobody can be asked here").hint("--yes installs without asking"));
        }
        let count = |is: &dyn Fn(&Step) -> bool| steps.iter().filter(|step| is(step)).count();
        let bytes: u64 = wanted.iter().map(|wanted| wanted.size).sum();
        let names: Vec<&str> =
            steps.iter().filter(|step| step.action != Action::Configure).map(|step| step.package.as_str()).collect();
        let mut stderr = std::io::stderr();
        let told = write!(
            stderr,
            "{}\n{} new, {} upgraded, {} removed; {} to fetch. Continue? [Y/n] ",
            names.join(" "),
            count(&|step| step.action == Action::Unpack && !step.is_upgrade),
            count(&|step| step.action == Action::Unpack && step.is_upgrade),
            count(&|step| step.action == Action::Remove),
            units::bytes(bytes),
        );
        let mut answer = String::new();
        let heard = told.and_then(|()| stderr.flush()).and_then(|()| std::io::stdin().read_line(&mut answer));
        match heard {
            Ok(count) if count > 0 && matches!(answer.trim(), "" | "y" | "Y" | "yes") => Ok(()),
            _ => Err(CommandError::new(ErrorKind::Interrupted, "nothing was installed")),
        }
    }

    /// The root's apt-get, with the user's options.
    fn apt(&self, configuration: Option<&std::path::Path>) -> Command {
        let mut command = self.inside.command("apt-get");
        match (configuration, &self.settings.apt_config) {
            (Some(configuration), _) => {
                command.env("APT_CONFIG", configuration);
            }
            (None, Some(own)) => {
                command.env("APT_CONFIG", own);
            }
            (None, None) => {}
        }
        for option in &self.settings.apt_options {
            command.args(["--option", option]);
        }
        command
    }

    /// apt installs, and asks us.
    fn install(&self, wanted: &[Wanted], account: &mut Account, events: &mut dyn Events) -> Result<(), CommandError> {
        let root = &self.settings.root;
        let disk = |error: std::io::Error| CommandError::disk(root, &error);
        let relay = Relay::place(root, &[]).map_err(disk)?;
        // In a file, not on the command line, which apt writes into its history.
        let mut text = String::new();
        if let Some(own) = &self.settings.apt_config {
            text.push_str(&format!("#include \"{own}\";\n"));
        }
        text.push_str(&format!("Dir::Bin::dpkg \"{}\";\n", relay.program().display()));
        let configuration = relay.add_file("apt.conf", &text).map_err(disk)?;
        account.turn(events, Phase::Unpack, Part::Dpkg);
        let mut command = self.apt(Some(&configuration));
        if self.settings.yes {
            command.arg("--yes");
        }
        command.arg("install").args(&self.settings.packages).stdin(Stdio::inherit());
        if !self.settings.yes {
            // Asked already.
            command.arg("--yes");
        }
        if self.settings.quiet || self.settings.json {
            self.log.take(&mut command, true)?;
        }
        let mut child = command.spawn().map_err(|error| CommandError::usage(format_args!("apt-get: {error}")))?;
        let mut unpacker = Unpacker::new(self.inside, self.log, wanted);
        unpacker.ask_dpkg();
        let mut serving = Serving::new(root, &unpacker, Vec::new(), self.settings.epoch);
        let served = serving.serve(&relay, &mut child, account);
        if served.is_err() {
            let _ = child.wait();
        }
        let ended = match serving.failure.take() {
            Some(error) => Err(error),
            None => served.map_err(disk).and_then(|status| self.log.judge(status, "apt-get install")),
        };
        account.turn(events, Phase::Sync, Part::Sync);
        // Also after a failure: what dpkg has done is to stay.
        let flushed = self.session.sync();
        ended?;
        if let Some((path, error)) = flushed.failed.iter().chain(&flushed.missed).next() {
            return Err(CommandError::disk(path, error)
                .context("the packages are installed, but may not be on the disk as they should"));
        }
        let survivors = self.session.survivors();
        if survivors.is_empty() {
            return Ok(());
        }
        let names: Vec<String> =
            survivors.iter().map(|process| format!("{} ({})", process.name, process.pid)).collect();
        Err(CommandError::new(
            ErrorKind::Partial,
            format_args!("programs were started that run on, with their sync calls void: {}", names.join(", ")),
        )
        .hint("end them, and start them again outside: they stay so as long as they live"))
    }
}
