//! Starting the program under test, and interrupting it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
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

/// The sqv of Debian 13, which `script/sqv` builds; the distribution may have an older one.
///
/// # Panics
/// If it is not there.
pub fn newer_sqv() -> PathBuf {
    let program = match std::env::var_os("FULLBORE_TEST_SQV") {
        Some(path) => PathBuf::from(path),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/sqv/bin/sqv"),
    };
    assert!(
        program.exists(),
        "sqv is needed at {}: `script/sqv` builds it, FULLBORE_TEST_SQV names another one",
        program.display()
    );
    program
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
