//! Output that cannot be written: a full disk and a closed descriptor are an error at the end, a closed pipe is none.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod copy_harness;
mod harness;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use copy_harness::SmallDisk;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{Mirror, common};

/// Runs a command by a shell, which gives it this stdout.
fn redirected(command: &Command, stdout: &str) -> Output {
    let mut shell = clean_command("bash");
    shell.args(["-c", &format!("exec \"$@\" {stdout}"), "bash"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell.output().unwrap()
}

/// What a shell does with stdout, and what of it is in the error; nothing for a quiet end.
const WAYS: [(&str, Option<&str>); 5] = [
    (">/dev/full", Some("error: cannot write to stdout: No space left on device")),
    (">&-", Some("error: cannot write to stdout: Bad file descriptor")),
    ("</dev/null 1</dev/null", Some("error: cannot write to stdout: Bad file descriptor")),
    ("1<>/dev/null", None),
    (">/dev/null", None),
];

#[track_caller]
fn assert_told(command: &Command, good: i32) {
    for (way, error) in WAYS {
        let output = redirected(command, way);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let expected = if error.is_some() && matches!(good, 0 | 10) { 7 } else { good };
        assert_eq!(output.status.code(), Some(expected), "{command:?} {way}: {stderr}");
        assert_eq!(stderr.contains("error: cannot write to stdout: "), error.is_some(), "{command:?} {way}: {stderr}");
        assert!(error.is_none_or(|error| stderr.contains(error)), "{command:?} {way}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        let told = stderr.matches("error: cannot write to stdout").count();
        assert_eq!(told, usize::from(error.is_some()), "once: {stderr}");
    }
    let output = redirected(command, "> >(exec <&-; sleep 0.2)");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("stdout"), "{command:?}: a closed pipe is a quiet end: {stderr}");
}

fn fullbore(directory: &Path, arguments: &[&str]) -> Command {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments).current_dir(directory);
    command
}

#[test]
fn output_that_is_lost_is_told_by_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir_all(at.join("src/sub")).unwrap();
    fs::write(at.join("src/file"), "content").unwrap();
    fs::create_dir_all(at.join("root/etc/apt/apt.conf.d")).unwrap();
    fs::write(at.join("root/etc/apt/apt.conf.d/x"), "").unwrap();
    fs::write(at.join("mirror.list"), "deb http://deb.debian.org/debian trixie main\n").unwrap();
    fs::write(at.join("one"), "1a\nx\n.\n").unwrap();
    fs::create_dir_all(at.join("root/var/lib/dpkg/info")).unwrap();
    fs::write(at.join("root/var/lib/dpkg/status"), "").unwrap();
    let lit = "URI:LIT:krugkidfnzsc4";
    for (arguments, good) in [
        (&["--help"][..], 0),
        (&["--version"], 0),
        (&["mirror", "--help"], 0),
        (&["copy", "-h"], 0),
        (&["copy", "src/", "dst"], 0),
        (&["copy", "--json", "src/", "dst"], 0),
        (&["copy", "-n", "src/", "elsewhere"], 0),
        (&["convert", "--format", "apt-mirror", "mirror.list"], 0),
        (&["pdiff", "merge", "one"], 0),
        (&["get", lit], 0),
        (&["get", "--json", "-o", "got", lit], 0),
        (&["apt", "status", "--root", "root"], 0),
        (&["apt", "status", "--json", "--root", "root"], 0),
        // A failure of another kind keeps its code, and its event is lost.
        (
            &[
                "mirror",
                "--json",
                "--from",
                "http://127.0.0.1:1/",
                "--suite",
                "s",
                "--to",
                "m",
                "--keyring",
                "/dev/null",
            ],
            3,
        ),
    ] {
        assert_told(&fullbore(at, arguments), good);
    }
    // Once: its trials take their time.
    let output = redirected(&fullbore(at, &["probe", "--time", "3", "src", "there"]), ">/dev/full");
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_mirror_is_published_though_its_events_are_lost() {
    let archive = common();
    let server = Server::start(&archive.state(0).root).unwrap();
    for more in [&["--json"][..], &[]] {
        for (way, code) in [(">/dev/full", 7), (">&-", 7), (">/dev/null", 0), ("> >(exec <&-)", 0)] {
            let mirror = Mirror::new(archive);
            let output = redirected(&mirror.command(&[&server], more), way);
            assert_eq!(output.status.code(), Some(code), "{way}: {}", String::from_utf8_lossy(&output.stderr));
            harness::verified(&mirror.to, archive, 0);
        }
        // Nothing new is a success as well.
        let mirror = Mirror::new(archive);
        mirror.run(&[&server]).exits(0);
        let output = redirected(&mirror.command(&[&server], &[more, &["--changed-exit"]].concat()), ">/dev/full");
        assert_eq!(output.status.code(), Some(7));
        let mut check = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        check.arg("check").arg(&mirror.to).arg("--keyring").arg(archive.key());
        assert_told(&check, 0);
    }
}

#[test]
fn a_command_under_nosync_finds_stdout_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let command = fullbore(directory.path(), &["nosync", "--force", "sh", "-c", "echo x || exit 42"]);
    for (way, code) in [(">&-", 42), (">/dev/full", 42), (">/dev/null", 0)] {
        let output = redirected(&command, way);
        assert_eq!(output.status.code(), Some(code), "{way}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn lost_stderr_changes_no_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("src")).unwrap();
    for way in ["2>/dev/full", "2>&-", "2> >(exec <&-; sleep 0.2)", ">/dev/full 2>/dev/full"] {
        let lost = way.contains(" 2>/dev/full");
        for (arguments, good) in [
            (&["copy", "-v", "src/", "dst"][..], 0),
            (
                &[
                    "mirror",
                    "-vvv",
                    "--from",
                    "http://127.0.0.1:1/",
                    "--suite",
                    "s",
                    "--to",
                    "m",
                    "--keyring",
                    "/dev/null",
                ],
                3,
            ),
            (&["get", "-vvv", "URI:LIT:krugkidfnzsc4"], 0),
            (&["--wrong"], 1),
        ] {
            let output = redirected(&fullbore(directory.path(), arguments), way);
            let expected = if lost && good == 0 { 7 } else { good };
            assert_eq!(output.status.code(), Some(expected), "{arguments:?} {way}");
        }
    }
}

#[test]
fn logs_and_reports_on_a_full_disk_fail_a_good_run() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    fs::create_dir(at.join("src")).unwrap();
    fs::write(at.join("src/file"), "x").unwrap();
    let output = fullbore(at, &["copy", "--log-file", "/dev/full", "src/", "dst"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{stderr}");
    assert!(stderr.contains("error: cannot write /dev/full: No space left on device"), "{stderr}");
    assert!(stderr.contains("--log-file"), "{stderr}");
    assert!(at.join("dst/file").exists(), "the copy goes on");
    let output = fullbore(at, &["copy", "--json", "--log-file", "/dev/full", "src/", "dst"]).output().unwrap();
    let last: serde_json::Value =
        serde_json::from_str(String::from_utf8_lossy(&output.stdout).lines().last().unwrap()).unwrap();
    assert_eq!((output.status.code(), &last["exit_code"]), (Some(7), &7.into()), "{last}");
    // Full from the beginning.
    let disk = SmallDisk::new(at.join("disk"), "64k");
    let _ = fs::write(disk.0.join("fill"), vec![0; 1 << 20]);
    let archive = common();
    let server = Server::start(&archive.state(0).root).unwrap();
    for flag in ["--report", "--metrics", "--trace"] {
        let mirror = Mirror::new(archive);
        let mut arguments = mirror.arguments(&[&server], &[]);
        // The harness has a report of its own.
        let own = arguments.iter().position(|word| word == "--report").unwrap();
        arguments.drain(own..own + 2);
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(arguments).arg(flag).arg(disk.0.join("file.json"));
        let output = command.env("APT_CONFIG", mirror.apt_config("")).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{flag}: {stderr}");
        assert!(stderr.contains("No space left on device"), "{flag}: {stderr}");
        harness::verified(&mirror.to, archive, 0);
    }
}
