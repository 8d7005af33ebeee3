//! Starting the program under test, and interrupting it.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Variables that change what a network program does; tests and the demonstration must not
/// depend on the machine they run on.
const REMOVED: &[&str] = &[
    "http_proxy",
    "https_proxy",
    "no_proxy",
    "all_proxy",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
    "SOURCE_DATE_EPOCH",
    "TMPDIR",
];

/// Copies a program, for everybody to run. `cp` does it: another thread that starts a process while this one has a file open
/// for writing hands it on for a moment, and the kernel runs no such file ("Text file busy").
///
/// # Panics
/// If it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(from.as_ref()).arg(to.as_ref()).status().expect("cp");
    assert!(copied.success(), "{} is not copied", from.as_ref().display());
    let mode = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(to, mode).expect("the copy is ours");
}

/// Writes a script, for everybody to run; see [`copy_program`].
///
/// # Panics
/// If it cannot be written.
pub fn write_program(to: impl AsRef<Path>, text: &str) {
    let to = to.as_ref();
    let mut written = to.as_os_str().to_owned();
    written.push(".written");
    std::fs::write(&written, text).expect("a script");
    copy_program(&written, to);
    std::fs::remove_file(written).expect("it is there");
}

/// A command without the proxies and the settings (`FULLBORE_…`) of this process' environment.
pub fn clean_command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for name in REMOVED {
        command.env_remove(name);
    }
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FULLBORE_") {
            command.env_remove(name);
        }
    }
    command
}

/// Waits until a process has a handler for Ctrl-C, and would not just end by it.
///
/// # Panics
/// When it never has.
pub fn wait_for_interrupt_handler(pid: u32) {
    const INTERRUPT: u64 = 1 << (2 - 1);
    let begun = Instant::now();
    let caught = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask & INTERRUPT != 0)
    };
    while !caught() {
        assert!(begun.elapsed() < Duration::from_secs(60), "process {pid} does not listen for Ctrl-C");
        std::thread::sleep(Duration::from_millis(10));
    }
}
