//! What apt would do, and whether the user wants it.

use std::collections::HashSet;
use std::os::fd::AsFd;
use std::process::Stdio;

use fullbore_install::resolve::{self, Action, PRINT_URIS, Step, Wanted};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use super::{Walk, apt};
use crate::installing::download::is_remote;
use crate::stdio;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::units;

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

    /// How many are to be removed.
    pub fn removed(&self) -> u64 {
        self.count(&|step| step.action == Action::Remove) as u64
    }

    /// Whether what was named is installed and nothing else happens: then apt-get does not ask either. It counts, too.
    fn is_what_was_named(&self, packages: &[String]) -> bool {
        let named: HashSet<&String> = packages.iter().collect();
        self.removed() == 0 && self.unpacked() == named.len() as u64
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
        if self.settings.yes || self.configured.yes || plan.is_what_was_named(&self.settings.packages) {
            return Ok(());
        }
        let bytes: u64 = plan.wanted.iter().map(|wanted| wanted.size).sum();
        let changed = plan.steps.iter().filter(|step| step.action != Action::Configure);
        let names: Vec<&str> = changed.map(|step| step.package.as_str()).collect();
        stdio::say(&names.join(" "));
        stdio::ask(&format!(
            "{} new, {} upgraded, {} removed; {} to fetch. Continue? [Y/n] ",
            plan.count(&|step| step.action == Action::Unpack && !step.is_upgrade),
            plan.count(&|step| step.action == Action::Unpack && step.is_upgrade),
            plan.removed(),
            units::bytes(bytes),
        ));
        let answer = answer(std::io::stdin(), &|| self.stop.check())?;
        match answer.as_deref().map(str::trim) {
            None => Err(CommandError::usage("nobody can be asked here").hint("--yes installs without asking")),
            Some(answer) if answer.is_empty() || answer.starts_with(['y', 'Y']) => Ok(()),
            Some(_) => Err(CommandError::new(ErrorKind::Interrupted, "nothing was installed")),
        }
    }
}

/// How often is looked, while nobody answers, whether an answer is still wanted.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One line, and no byte more: what follows in a pipe may be for scripts. None at the end. An error if it is not
/// `wanted` any more.
fn answer(from: impl AsFd, wanted: &dyn Fn() -> Result<(), CommandError>) -> Result<Option<String>, CommandError> {
    /// A yes or no, generously.
    const BYTES_MAX: usize = 1024;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < BYTES_MAX {
        wanted()?;
        // A signal may come between; what cannot be polled can be read at once.
        if matches!(
            rustix::event::poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&LOOK_EVERY)),
            Ok(0) | Err(Errno::INTR)
        ) {
            continue;
        }
        match rustix::io::retry_on_intr(|| rustix::io::read(&from, &mut byte)) {
            Ok(1) if byte[0] == b'\n' => return Ok(Some(String::from_utf8_lossy(&line).into_owned())),
            Ok(1) => line.push(byte[0]),
            _ => break,
        }
    }
    Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn one_line_is_taken_as_the_answer() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"yes\nfor a script\nn").unwrap();
        drop(writer);
        let line = || answer(&reader, &|| Ok(())).unwrap();
        assert_eq!(line().as_deref(), Some("yes"));
        assert_eq!(line().as_deref(), Some("for a script"));
        assert_eq!(line().as_deref(), Some("n"));
        assert_eq!(line(), None);
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
