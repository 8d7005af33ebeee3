//! Whether programs of the root's architecture run here at all.

use std::fs;

use crate::error::CommandError;
use crate::settings::BootstrapSettings;
use crate::settings::apt::native_architecture;

/// What the kernel calls the interpreter for a Debian architecture: `qemu-NAME`.
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

/// Machines that run programs of another architecture by themselves.
const RUNS_TOO: [(&str, &str); 1] = [("amd64", "i386")];

/// Refuses an architecture whose programs cannot be run.
pub fn check(settings: &BootstrapSettings) -> Result<(), CommandError> {
    let (own, wanted) = (native_architecture(), settings.architecture());
    if own == wanted || RUNS_TOO.contains(&(own, wanted)) {
        return Ok(());
    }
    let Some((_, name)) = INTERPRETERS.iter().find(|(architecture, _)| *architecture == wanted) else {
        return Err(CommandError::usage(format_args!("{wanted}: no such architecture is known")));
    };
    let entry = format!("/proc/sys/fs/binfmt_misc/qemu-{name}");
    let text = fs::read_to_string(&entry).unwrap_or_default();
    let is_enabled = text.lines().any(|line| line == "enabled");
    // F: opened when it was registered, so that it need not be in the root.
    let is_fixed = text.lines().any(|line| line.strip_prefix("flags:").is_some_and(|flags| flags.contains('F')));
    match (is_enabled, is_fixed) {
        (true, true) => Ok(()),
        (true, false) => {
            Err(CommandError::usage(format_args!("{entry}: the interpreter would have to be in the root"))
                .hint("the package qemu-user-static registers one that need not be"))
        }
        _ => Err(CommandError::usage(format_args!("programs of {wanted} do not run on this machine ({own})"))
            .context("maintainer scripts have to be run while the root is made")
            .hint("install qemu-user-static and binfmt-support, or make the root on such a machine")),
    }
}
