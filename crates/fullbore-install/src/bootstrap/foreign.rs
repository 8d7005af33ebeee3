//! Checks whether programs of the root's architecture run on this machine.

use std::fs;
use std::process::Command;

use fullbore_apt::system::sources::native_architecture;
use fullbore_engine::run::error::CommandError;

use crate::settings::BootstrapSettings;

/// Names of the kernel's interpreters, `qemu-NAME`, by Debian architecture.
const INTERPRETERS: [(&str, &str); 14] = [
    ("amd64", "x86_64"),
    ("arm64", "aarch64"),
    ("armel", "arm"),
    ("armhf", "arm"),
    ("i386", "i386"),
    ("loong64", "loongarch64"),
    ("mips64el", "mips64el"),
    ("mipsel", "mipsel"),
    ("ppc64", "ppc64"),
    ("ppc64el", "ppc64le"),
    ("riscv64", "riscv64"),
    ("s390x", "s390x"),
    ("powerpc", "ppc"),
    ("hppa", "hppa"),
];

/// Pairs of architectures: kernels of the first can run programs of the second, if the processor can. Some arm64
/// servers cannot.
const RUNS_TOO: [(&str, &str); 3] = [("amd64", "i386"), ("arm64", "armhf"), ("arm64", "armel")];

/// Checks that programs of the root's architecture run on this machine.
///
/// # Errors
///
/// `Usage` if the kernel cannot run them: the architecture is unknown, no interpreter of qemu-user is registered, or
/// the kernel would look for the interpreter within the root.
pub(super) fn check(settings: &BootstrapSettings) -> Result<(), CommandError> {
    let (own, wanted) = (native_architecture(), settings.architecture());
    if own == wanted || runs_too(own, wanted) {
        return Ok(());
    }
    let Some((_, name)) = INTERPRETERS.iter().find(|(architecture, _)| *architecture == wanted) else {
        return Err(CommandError::usage(format_args!("unknown architecture {wanted}")));
    };
    let entry = format!("/proc/sys/fs/binfmt_misc/qemu-{name}");
    match Interpreter::of(&fs::read_to_string(&entry).unwrap_or_default()) {
        Interpreter::Fixed => Ok(()),
        Interpreter::LookedUp => {
            Err(CommandError::usage(format_args!("{entry}: the kernel looks for the interpreter in the root"))
                .hint("install qemu-user-static, whose interpreters need not be in the root"))
        }
        Interpreter::None => {
            Err(CommandError::usage(format_args!("cannot run programs of {wanted} on this machine ({own})"))
                .context("maintainer scripts must run in the new root")
                .hint(
                    "install qemu-user-static and binfmt-support, or make the root on a machine of that architecture",
                ))
        }
    }
}

/// Whether the kernel itself runs the programs, according to setarch(8).
fn runs_too(own: &str, wanted: &str) -> bool {
    RUNS_TOO.contains(&(own, wanted))
        && Command::new("setarch").args(["linux32", "true"]).status().is_ok_and(|status| status.success())
}

/// Interpreter for programs of an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interpreter {
    /// None is registered, or it is disabled.
    None,
    /// The kernel looks for it in the root of the program.
    LookedUp,
    /// The kernel opened it at registration, so that the root does not need it.
    Fixed,
}

impl Interpreter {
    /// Parses the kernel's description (Documentation/admin-guide/binfmt-misc.rst).
    fn of(text: &str) -> Interpreter {
        let mut flags = text.lines().filter_map(|line| line.strip_prefix("flags:"));
        match text.lines().any(|line| line == "enabled") {
            false => Interpreter::None,
            true if flags.any(|flags| flags.contains('F')) => Interpreter::Fixed,
            true => Interpreter::LookedUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_of_the_smaller_architecture_run_here_too() {
        if cfg!(target_arch = "x86_64") {
            assert!(runs_too("amd64", "i386"));
        }
        assert!(!runs_too("amd64", "armhf"));
    }

    #[test]
    fn what_the_kernel_says_of_an_interpreter_is_understood() {
        let entry = |state: &str, flags: &str| {
            format!(
                "{state}\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: {flags}\noffset 0\nmagic 7f45\n"
            )
        };
        assert_eq!(Interpreter::of(&entry("enabled", "POF")), Interpreter::Fixed);
        assert_eq!(Interpreter::of(&entry("enabled", "OC")), Interpreter::LookedUp);
        assert_eq!(Interpreter::of(&entry("enabled", "")), Interpreter::LookedUp);
        assert_eq!(Interpreter::of(&entry("disabled", "F")), Interpreter::None);
        assert_eq!(Interpreter::of(""), Interpreter::None);
    }
}
