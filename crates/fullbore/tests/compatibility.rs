//! What an older version left on a user's machine, used by this one: mirrors with their state, lists directories,
//! journals of runs that were killed, settings, configuration of apt, units of systemd, and flags in scripts.
//!
//! The fixtures in `compatibility/` were made by that version; the README there says by which one, and how.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "compatibility/copies.rs"]
mod copies;
#[path = "compatibility/enabled.rs"]
mod enabled;
#[path = "compatibility/flags.rs"]
mod flags;
mod harness;
#[path = "compatibility/lists.rs"]
mod lists;
#[path = "compatibility/log.rs"]
mod log;
#[path = "compatibility/mirrors.rs"]
mod mirrors;
#[path = "compatibility/puts.rs"]
mod puts;
#[path = "compatibility/settings.rs"]
mod settings;
#[allow(dead_code, reason = "another test binary uses the rest of it")]
#[path = "s3/store.rs"]
mod store;

use std::path::{Path, PathBuf};
use std::process::Command;

use fullbore_testkit::process::clean_command;
use harness::{Ran, need};

/// The address that the older version was given. It is reached by a proxy, so that no port is part of what was noted.
const SITE: &str = "http://archive.example";

/// A file of the fixtures.
fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compatibility").join(name)
}

fn fixture_text(name: &str) -> String {
    std::fs::read_to_string(fixture(name)).unwrap()
}

/// Unpacks a fixture into a new directory, with modes and times as they were.
fn unpack(name: &str, to: &Path) {
    need("xz", "xz-utils");
    std::fs::create_dir_all(to).unwrap();
    let mut tar = clean_command("tar");
    tar.args(["--extract", "--xz", "--preserve-permissions", "--file"]);
    let output = tar.arg(fixture(&format!("{name}.tar.xz"))).arg("--directory").arg(to).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
}

/// The plain text of an index, by the tool that everybody has.
fn plain(path: &Path) -> Vec<u8> {
    need("xz", "xz-utils");
    let output = clean_command("xz").arg("-dc").arg(path).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// Content of files that were put and copied: `lines` of `compatibility/make`.
fn lines(megabytes: usize) -> Vec<u8> {
    let line = |number: usize| format!("{number:015} {}\n", "x".repeat(4079));
    (0..megabytes << 8).flat_map(|number| line(number).into_bytes()).collect()
}

/// The program under test.
fn fullbore() -> Command {
    clean_command(env!("CARGO_BIN_EXE_fullbore"))
}

/// Runs a command that writes its report to this file.
fn ran(command: &mut Command, report: &Path) -> Ran {
    let output = command.arg("--report").arg(report).output().unwrap();
    let report = std::fs::read(report).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    Ran {
        code: output.status.code(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        report: report.unwrap_or_default(),
    }
}

/// This boot of this machine, as it is noted in logs.
fn this_boot() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// Another boot.
const OTHER_BOOT: &str = "00000000-0000-4000-8000-000000000000";
