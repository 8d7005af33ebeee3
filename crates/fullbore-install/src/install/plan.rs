//! The steps that apt would take, and the question to the user.

use std::collections::HashSet;
use std::process::Stdio;

use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::{Changes, Confirm, InstallRun, apt};
use crate::installing::download::is_remote;
use crate::installing::estimate::Expected;
use crate::resolve::{self, Action, PRINT_URIS, Step, Wanted};

/// Options for simulations: apt takes no locks, because the waiting process holds them.
const WITHOUT_LOCKS: [&str; 2] = ["--option", "Debug::NoLocking=1"];

/// apt's plan of an installation.
pub(super) struct Plan {
    /// Required package files, with the hashes of the indexes.
    pub wanted: Vec<Wanted>,
    /// Steps of apt's simulation, in order.
    pub steps: Vec<Step>,
}

impl Plan {
    /// Number of packages that apt will unpack.
    pub(super) fn unpacked(&self) -> u64 {
        self.count(&|step| step.action == Action::Unpack) as u64
    }

    /// Amounts that the duration of the run depends on.
    pub(super) fn expected(&self) -> Expected {
        Expected {
            bytes: self.wanted.iter().map(|wanted| wanted.size).sum(),
            packages: self.count(&|step| step.action == Action::Configure) as u64,
            ..Expected::default()
        }
    }

    /// Number of packages that apt will remove.
    pub(super) fn removed(&self) -> u64 {
        self.count(&|step| step.action == Action::Remove) as u64
    }

    /// Whether apt changes only the named packages; then apt-get does not ask either. Like apt-get, compares numbers only.
    fn is_what_was_named(&self, packages: &[String]) -> bool {
        let named: HashSet<&String> = packages.iter().collect();
        self.removed() == 0 && self.unpacked() == named.len() as u64
    }

    fn count(&self, is: &dyn Fn(&Step) -> bool) -> usize {
        self.steps.iter().filter(|step| is(step)).count()
    }
}

impl InstallRun<'_> {
    /// Asks apt for its plan and the required files.
    pub(super) fn plan(&self) -> Result<Plan, CommandError> {
        let ask = |arguments: &[&str]| {
            let mut command = apt(self.settings, self.inside, "apt-get", None);
            command.args(WITHOUT_LOCKS).args(arguments).arg("install").args(&self.settings.packages);
            command.env("LC_ALL", "C.UTF-8").stdin(Stdio::null());
            command
        };
        let uris = self.log.ask(&mut ask(&PRINT_URIS), "apt-get --print-uris").map_err(|error| {
            if self.configured.has_lists() {
                return error;
            }
            let within = if self.settings.is_own_root() {
                String::new()
            } else {
                format!("chroot {} ", self.settings.root.display())
            };
            error.hint(format_args!("the root has no indexes of its archives: `{within}apt-get update` fetches them"))
        })?;
        let steps = self.log.ask(&mut ask(&["--yes", "--simulate"]), "apt-get --simulate")?;
        let strange = |error: resolve::ResolveError| CommandError::new(ErrorKind::Internal, error);
        let remote: Vec<&str> = uris.lines().filter(|line| is_ours_to_fetch(line)).collect();
        Ok(Plan {
            wanted: resolve::uris(&remote.join("\n"), &|_, _| None).map_err(strange)?,
            steps: resolve::steps(&steps).map_err(strange)?,
        })
    }

    /// Asks the user in the cases in which apt-get asks.
    pub(super) fn agree(&self, plan: &Plan, confirm: &Confirm<'_>) -> Result<(), CommandError> {
        if self.settings.yes || self.configured.yes || plan.is_what_was_named(&self.settings.packages) {
            return Ok(());
        }
        let changed = plan.steps.iter().filter(|step| step.action != Action::Configure);
        let changes = Changes {
            packages: changed.map(|step| step.package.clone()).collect(),
            new: plan.count(&|step| step.action == Action::Unpack && !step.is_upgrade) as u64,
            upgraded: plan.count(&|step| step.action == Action::Unpack && step.is_upgrade) as u64,
            removed: plan.removed(),
            fetch_bytes: plan.wanted.iter().map(|wanted| wanted.size).sum(),
        };
        if confirm(&changes, &|| self.stop.check())? {
            Ok(())
        } else {
            Err(CommandError::new(ErrorKind::Interrupted, "nothing was installed"))
        }
    }
}

/// Whether fullbore fetches the file of a line of `--print-uris`. apt uses a local file in place. A file without
/// SHA-256 is also left to apt, which decides whether its other hashes suffice.
fn is_ours_to_fetch(line: &str) -> bool {
    let is_known = line.rsplit(' ').next().is_some_and(|hash| hash.starts_with("SHA256:"));
    is_known && line.strip_prefix('\'').is_some_and(is_remote)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_sha256_is_left_to_apt() {
        let line = |uri: &str, hash: &str| is_ours_to_fetch(&format!("'{uri}' x_1_all.deb 3 {hash}"));
        assert!(line("http://h/x.deb", "SHA256:00"));
        assert!(
            !line("http://h/x.deb", "SHA512:00") && !line("http://h/x.deb", "") && !line("file:/x.deb", "SHA256:00")
        );
        assert!(!is_ours_to_fetch("Need to get 3 B of archives."));
    }

    #[test]
    fn apt_asks_where_more_is_done_than_what_was_named() {
        let plan = |steps: &str| Plan { wanted: Vec::new(), steps: resolve::steps(steps).unwrap() };
        let named = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let one = "Inst a (1 x [all])\nConf a (1 x [all])\n";
        assert!(plan(one).is_what_was_named(&named(&["a", "a"])));
        let two = format!("Inst b (1 x [all])\n{one}");
        assert!(!plan(&two).is_what_was_named(&named(&["a"])));
        assert!(!plan(&format!("Remv c [1]\n{one}")).is_what_was_named(&named(&["a"])));
    }
}
