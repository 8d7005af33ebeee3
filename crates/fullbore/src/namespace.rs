//! A bootstrap runs in a mount namespace of its own, and, for who is not root, in a user namespace.
//!
//! Mounts into the new root are seen by nobody else there, and go with the last process, however the
//! run ends. The program starts itself again by `unshare`: a process with threads cannot enter a user
//! namespace.
//!
//! An ordinary container allows its root no namespace. The run then goes on in those that it has, as mmdebstrap does, and
//! says what is missing.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use fullbore_engine::run::error::{CommandError, ErrorKind};
pub use fullbore_install::IN_NAMESPACE;
use fullbore_install::settings::{Mode, Namespaces};

use crate::{program, stdio};

/// The value for `--mode unshare`.
const UNSHARED: &str = "unshare";

/// The value for `--mode root`.
const ROOT: &str = "root";

/// What a value ends with, by the namespaces.
const ENDS: [(&str, Namespaces); 3] =
    [("-shared", Namespaces::Shared), ("-without", Namespaces::Callers), ("", Namespaces::Own)];

/// Options of unshare for the namespaces of who is not root.
const OF_USER: &[&str] = &["--mount", "--user", "--map-root-user", "--map-auto"];

/// Options of unshare for root, and the namespaces that they give. In a chroot whose `/` is no mount point, no mount can be
/// made private.
const OF_ROOT: [(&[&str], Namespaces); 2] =
    [(&["--mount"], Namespaces::Own), (&["--mount", "--propagation", "unchanged"], Namespaces::Shared)];

/// Kernel settings that refuse user namespaces to ordinary users: each with the value that refuses, and one that allows. The
/// first is Debian's, the second Ubuntu's (AppArmor), the third is described in user_namespaces(7).
const REFUSALS: [(&str, &str, &str); 3] = [
    ("kernel.unprivileged_userns_clone", "0", "1"),
    ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ("user.max_user_namespaces", "0", "10000"),
];

/// Where the program runs that [`enter`] has started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InNamespace {
    /// With which privileges a root is made.
    pub mode: Mode,
    /// Its namespaces.
    pub namespaces: Namespaces,
    /// Whether it was called by the name of mmdebstrap.
    pub is_mmdebstrap: bool,
}

/// What a value begins with for a program that was called by the name of mmdebstrap.
const AS_MMDEBSTRAP: &str = "mmdebstrap-";

impl InNamespace {
    /// The state that a value of [`IN_NAMESPACE`] stands for.
    pub fn parse(value: &str) -> InNamespace {
        let (is_mmdebstrap, value) = match value.strip_prefix(AS_MMDEBSTRAP) {
            Some(rest) => (true, rest),
            None => (false, value),
        };
        let mut ends = ENDS.into_iter().filter_map(|(end, namespaces)| Some((value.strip_suffix(end)?, namespaces)));
        let (name, namespaces) = ends.next().unwrap_or((value, Namespaces::Own));
        let mode = if name == UNSHARED { Mode::Unshare } else { Mode::Root };
        InNamespace { mode, namespaces, is_mmdebstrap }
    }

    fn value(self) -> String {
        let name = if self.mode == Mode::Unshare { UNSHARED } else { ROOT };
        let end = ENDS.into_iter().find_map(|(end, namespaces)| (namespaces == self.namespaces).then_some(end));
        let begin = if self.is_mmdebstrap { AS_MMDEBSTRAP } else { "" };
        format!("{begin}{name}{}", end.unwrap_or_default())
    }
}

/// Becomes this program in namespaces of its own. Comes back only if that fails.
pub fn enter(mode: Mode) -> CommandError {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => {
            return CommandError::new(ErrorKind::Internal, format_args!("cannot read /proc/self/exe: {error}"));
        }
    };
    let is_root = rustix::process::geteuid().is_root();
    if mode == Mode::Root && !is_root {
        return CommandError::usage("--mode root needs root privileges").hint("run as root, or pass --mode unshare");
    }
    if !is_root && let Err(error) = has_numbers() {
        return error;
    }
    let options = if is_root { for_root() } else { for_user() };
    let (options, namespaces) = match options {
        Ok(options) => options,
        Err(error) => return error,
    };
    let mut command = Command::new("unshare");
    command.args(options).arg("--").arg(&program);
    if namespaces == Namespaces::Callers {
        command = Command::new(&program);
    }
    let mut words: Vec<OsString> = std::env::args_os().collect();
    let name = (!words.is_empty()).then(|| words.remove(0));
    let is_mmdebstrap = program::is_mmdebstrap(name.as_ref());
    command.args(program::as_command(name.as_ref(), words));
    command.env(IN_NAMESPACE, InNamespace { mode, namespaces, is_mmdebstrap }.value());
    stdio::pass_on_closed_stdout();
    let error = command.exec();
    no_unshare(&error)
}

/// What unshare can do for root: nothing if the kernel or a filter refuses it.
fn for_root() -> Result<Unsharing, CommandError> {
    for (options, namespaces) in OF_ROOT {
        if trial(options)?.status.success() {
            return Ok((options, namespaces));
        }
    }
    Ok((&[], Namespaces::Callers))
}

/// The namespaces of an ordinary user. The error of a refusal names what refuses.
fn for_user() -> Result<Unsharing, CommandError> {
    let tried = trial(OF_USER)?;
    if tried.status.success() {
        return Ok((OF_USER, Namespaces::Own));
    }
    let said = String::from_utf8_lossy(&tried.stderr);
    let said = said.lines().next().map_or_else(|| tried.status.to_string(), |line| line.trim().to_owned());
    let hint = match newuidmap().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        true => "install the package uidmap".to_owned(),
        false => refusal_hint(|path| std::fs::read_to_string(path).ok()),
    };
    Err(CommandError::usage(format_args!("cannot make a user namespace: {said}")).hint(hint))
}

/// Options of unshare, and the namespaces that they create.
type Unsharing = (&'static [&'static str], Namespaces);

/// Tries these options of unshare with the program `true`.
fn trial(options: &[&str]) -> Result<Output, CommandError> {
    let mut trial = Command::new("unshare");
    trial.args(options).args(["--", "true"]).stdin(Stdio::null());
    trial.output().map_err(|error| no_unshare(&error))
}

/// Calls the program that writes the mapping of subordinate numbers; without arguments, it only says how to use it.
fn newuidmap() -> std::io::Result<Output> {
    Command::new("newuidmap").stdin(Stdio::null()).output()
}

/// The hint for a kernel that refuses user namespaces. `read` reads a file of `/proc/sys`.
fn refusal_hint(read: impl Fn(&str) -> Option<String>) -> String {
    for (setting, refusing, allowing) in REFUSALS {
        let path = format!("/proc/sys/{}", setting.replace('.', "/"));
        if read(&path).is_some_and(|value| value.trim() == refusing) {
            return format!("`sysctl {setting}={allowing}` as root allows it, or run as root");
        }
    }
    "run as root, or where user namespaces are allowed: many containers refuse them".to_owned()
}

fn no_unshare(error: &std::io::Error) -> CommandError {
    CommandError::usage(format_args!("cannot run unshare: {error}")).hint("install the package util-linux")
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
    fn a_setting_that_refuses_user_namespaces_is_named() {
        let with = |path: &'static str, value: &'static str| {
            refusal_hint(|asked| (asked == path).then(|| format!("{value}\n")))
        };
        assert!(with("/proc/sys/kernel/unprivileged_userns_clone", "0").contains("kernel.unprivileged_userns_clone=1"));
        let apparmor = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns";
        assert!(with(apparmor, "1").contains("kernel.apparmor_restrict_unprivileged_userns=0"));
        assert!(with("/proc/sys/user/max_user_namespaces", "0").contains("user.max_user_namespaces=10000"));
        assert!(with("/proc/sys/user/max_user_namespaces", "15000").starts_with("run as root"));
    }

    #[test]
    fn who_is_root_in_a_namespace_only_stays_so() {
        for mode in [Mode::Root, Mode::Unshare] {
            for namespaces in [Namespaces::Own, Namespaces::Shared, Namespaces::Callers] {
                for is_mmdebstrap in [false, true] {
                    let state = InNamespace { mode, namespaces, is_mmdebstrap };
                    assert_eq!(InNamespace::parse(&state.value()), state);
                }
            }
        }
    }
}
