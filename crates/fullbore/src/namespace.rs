//! A bootstrap runs in a mount namespace of its own, and, for who is not root, in a user namespace.
//!
//! Mounts into the new root are seen by nobody else there, and go with the last process, however the
//! run ends. The program starts itself again by `unshare`: a process with threads cannot enter a user
//! namespace.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_install::settings::Mode;

use crate::stdio;

/// Set where the program is in its namespaces, to its mode: there everybody is root.
pub const IN_NAMESPACE: &str = "FULLBORE_IN_NAMESPACE";

/// The value for the namespaces of who is not root.
const UNSHARED: &str = "unshare";

/// The mode that a value of [`IN_NAMESPACE`] stands for.
pub fn mode_of(value: &str) -> Mode {
    if value == UNSHARED { Mode::Unshare } else { Mode::Root }
}

/// Becomes this program in namespaces of its own. Comes back only if that fails.
pub fn enter(mode: Mode) -> CommandError {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return CommandError::new(ErrorKind::Internal, format_args!("/proc/self/exe: {error}")),
    };
    if mode == Mode::Root && !rustix::process::geteuid().is_root() {
        return CommandError::usage("--mode root needs root privileges").hint("run as root, or pass --mode unshare");
    }
    if mode == Mode::Unshare
        && let Err(error) = has_numbers()
    {
        return error;
    }
    let mut command = Command::new("unshare");
    command.arg("--mount");
    if mode == Mode::Unshare {
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    let value = if mode == Mode::Unshare { UNSHARED } else { "root" };
    command.arg("--").arg(program).args(std::env::args_os().skip(1)).env(IN_NAMESPACE, value);
    stdio::pass_on_closed_stdout();
    let error = command.exec();
    CommandError::usage(format_args!("unshare: {error}")).hint("install the package util-linux")
}

/// What `newuidmap` will ask for; its own message names neither file nor package.
fn has_numbers() -> Result<(), CommandError> {
    let own = rustix::process::geteuid().as_raw().to_string();
    let name = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = name.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == own).then(|| name.to_owned())
    });
    for file in ["/etc/subuid", "/etc/subgid"] {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let is_own = |line: &str| {
            let owner = line.split(':').next().unwrap_or_default();
            owner == own || Some(owner) == name.as_deref()
        };
        if !text.lines().any(is_own) {
            return Err(CommandError::usage(format_args!("{file} has no numbers for {}", name.unwrap_or(own)))
                .hint("`usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER` adds them"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_root_in_a_namespace_only_stays_so() {
        assert_eq!(mode_of(UNSHARED), Mode::Unshare);
        assert_eq!(mode_of("root"), Mode::Root);
    }
}
