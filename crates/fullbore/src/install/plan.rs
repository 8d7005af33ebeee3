//! What apt would do, and whether the user wants it.

use std::io::{IsTerminal as _, Write as _};
use std::process::Stdio;

use fullbore_install::resolve::{self, Action, PRINT_URIS, Step, Wanted};

use super::{Walk, apt};
use crate::error::{CommandError, ErrorKind};
use crate::installing::download::is_remote;
use crate::report::units;

/// The root's apt holds no locks for questions: its process that waits has them.
const WITHOUT_LOCKS: [&str; 2] = ["--option", "Debug::NoLocking=1"];

/// What apt would do.
pub(super) struct Plan {
    /// Files that it needs, with the hashes of its indexes.
    pub wanted: Vec<Wanted>,
    /// What it would do with packages, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// How many packages are to be unpacked.
    pub fn unpacked(&self) -> u64 {
        self.count(&|step| step.action == Action::Unpack) as u64
    }

    fn count(&self, is: &dyn Fn(&Step) -> bool) -> usize {
        self.steps.iter().filter(|step| is(step)).count()
    }
}

impl Walk<'_> {
    /// What apt would do, and which files it needs for that.
    pub(super) fn plan(&self) -> Result<Plan, CommandError> {
        let ask = |arguments: &[&str]| {
            let mut command = apt(self.settings, self.inside, "apt-get", None);
            command.args(WITHOUT_LOCKS).args(arguments).arg("install").args(&self.settings.packages);
            command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
            command
        };
        let uris = self.log.read(&mut ask(&PRINT_URIS), "apt-get --print-uris")?;
        let steps = self.log.read(&mut ask(&["--yes", "--simulate"]), "apt-get --simulate")?;
        let strange = |error: resolve::ResolveError| CommandError::new(ErrorKind::Internal, error);
        // A local file stays where it is, and may have no hash; apt takes it from there.
        let is_wanted = |line: &&str| line.strip_prefix('\'').is_some_and(is_remote);
        let remote: Vec<&str> = uris.lines().filter(is_wanted).collect();
        Ok(Plan {
            wanted: resolve::uris(&remote.join("\n")).map_err(strange)?,
            steps: resolve::steps(&steps).map_err(strange)?,
        })
    }

    /// Asks, where apt-get would.
    pub(super) fn agree(&self, plan: &Plan) -> Result<(), CommandError> {
        if self.settings.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || self.settings.json {
            return Err(CommandError::usage("nobody can be asked here").hint("--yes installs without asking"));
        }
        let bytes: u64 = plan.wanted.iter().map(|wanted| wanted.size).sum();
        let changed = plan.steps.iter().filter(|step| step.action != Action::Configure);
        let names: Vec<&str> = changed.map(|step| step.package.as_str()).collect();
        let mut stderr = std::io::stderr();
        let told = write!(
            stderr,
            "{}\n{} new, {} upgraded, {} removed; {} to fetch. Continue? [Y/n] ",
            names.join(" "),
            plan.count(&|step| step.action == Action::Unpack && !step.is_upgrade),
            plan.count(&|step| step.action == Action::Unpack && step.is_upgrade),
            plan.count(&|step| step.action == Action::Remove),
            units::bytes(bytes),
        );
        let mut answer = String::new();
        let heard = told.and_then(|()| stderr.flush()).and_then(|()| std::io::stdin().read_line(&mut answer));
        match heard {
            Ok(count) if count > 0 && matches!(answer.trim(), "" | "y" | "Y" | "yes") => Ok(()),
            _ => Err(CommandError::new(ErrorKind::Interrupted, "nothing was installed")),
        }
    }
}
