//! Starting the program under test.

use std::{ffi::OsStr, process::Command};

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
