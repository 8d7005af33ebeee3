//! `fullbore copy` while nobody watches: who asks it from elsewhere, its log, its events and its table.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{Place, assert_same, said};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Time that a busy machine may take for what takes a moment.
const LONG: Duration = Duration::from_secs(120);

/// A slow copy of some megabytes, started as a cron job is: without the variables of a login.
struct Slow {
    place: Place,
    copy: Child,
}

impl Slow {
    fn start(arguments: &[&str]) -> Slow {
        Slow::start_at("", arguments)
    }

    /// `host` is empty for the source's own machine, or `host:`.
    fn start_at(host: &str, arguments: &[&str]) -> Slow {
        let place = Place::new();
        fs::create_dir(place.path("src")).unwrap();
        for number in 0..40 {
            fs::write(place.path(&format!("src/{number}")), vec![number; 100_000]).unwrap();
        }
        // For a copy from another machine.
        fullbore_testkit::process::write_program(place.path("way"), "#!/bin/sh\nexec $2\n");
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        let source =
            if host.is_empty() { "src/".to_owned() } else { format!("{host}{}/", place.path("src").display()) };
        command.arg("copy").args(arguments).args([&source, "dst"]).current_dir(place.path(""));
        command.env_remove("XDG_RUNTIME_DIR").env_remove("TMPDIR");
        let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Slow { place, copy }
    }

    /// Asks it, from a session of another kind.
    fn ask(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["copy", "--pid", &self.copy.id().to_string()]).args(arguments);
        command.env("XDG_RUNTIME_DIR", self.place.path("src")).env("TMPDIR", self.place.path("src"));
        command.output().unwrap()
    }

    /// Waits until it knows all that it has to do, and gives what it tells.
    fn listed(&mut self) -> Value {
        let until = Instant::now() + LONG;
        loop {
            assert!(self.copy.try_wait().unwrap().is_none(), "it ended before");
            assert!(Instant::now() < until, "it lists nothing");
            let told = self.ask(&["--status", "--json"]).stdout;
            match serde_json::from_slice::<Value>(&told) {
                Ok(status) if status["complete"] == true && status["limit"].is_string() => return status,
                _ => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Waits for its end; what does not end is killed.
    fn end(mut self) -> (Place, Output) {
        let until = Instant::now() + LONG;
        while self.copy.try_wait().unwrap().is_none() {
            if Instant::now() >= until {
                self.copy.kill().unwrap();
                panic!("it does not end: {}", said(&self.copy.wait_with_output().unwrap()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        (self.place, self.copy.wait_with_output().unwrap())
    }
}

#[test]
fn any_session_finds_a_running_copy_and_can_change_its_limit() {
    // A rate at which it does not end by itself within the test.
    let mut slow = Slow::start(&["--bwlimit", "10K"]);
    let status = slow.listed();
    let pid = slow.copy.id();
    assert_eq!((&status["pid"], &status["source"]), (&pid.into(), &"src/".into()), "{status}");
    assert_eq!((&status["destination"], &status["total_files"]), (&"dst".into(), &40.into()), "{status}");
    assert_eq!(status["bwlimit_bytes_per_s"], 10_240, "{status}");
    assert!(status["rate_bytes_per_s"].is_u64() && status["entries"] == 41, "{status}");
    let text = said(&slow.ask(&["--status"]));
    assert!(text.starts_with(&format!("{pid}: src/ to dst: ")) && text.contains(" of 40 files, "), "{text}");
    assert!(text.contains(", limited by ") && text.contains(", at most 10.2 kB/s"), "{text}");
    let until = Instant::now() + LONG;
    while slow.listed()["limit"] != "rate limit" {
        assert!(Instant::now() < until, "{}", said(&slow.ask(&["--status"])));
    }
    // Of this user, whoever that is, and of nobody else.
    let user = rustix::process::geteuid();
    let directory =
        if user.is_root() { "/run/fullbore".to_owned() } else { format!("/tmp/fullbore-{}", user.as_raw()) };
    let socket = Path::new(&directory).join(pid.to_string());
    assert_eq!(fs::metadata(&socket).unwrap().mode() & 0o777, 0o600, "nobody else may use it");
    assert_eq!(fs::metadata(&directory).unwrap().mode() & 0o777, 0o700);
    let text = said(&slow.ask(&["--set", "bwlimit=0"]));
    assert_eq!(text, format!("{pid}: no limit from now on\n"));
    let (place, output) = slow.end();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_same(&place.path("src"), &place.path("dst"));
    assert!(!socket.exists(), "the socket stays");
}

#[test]
fn one_copy_is_given_another_limit_and_no_other_copy_is() {
    let (mut one, mut other) = (Slow::start(&["--bwlimit", "10K"]), Slow::start(&["--bwlimit", "10K"]));
    one.listed();
    other.listed();
    one.ask(&["--set", "bwlimit=0"]);
    assert_eq!(one.end().1.status.code(), Some(0));
    assert_eq!(other.listed()["bwlimit_bytes_per_s"], 10_240);
    other.copy.kill().unwrap();
    other.copy.wait().unwrap();
    let output = other.ask(&["--status"]);
    assert_eq!(output.status.code(), Some(1), "a copy that was killed is none: {}", said(&output));
}

#[test]
fn the_other_end_of_a_pull_is_given_another_limit() {
    let there = ["-e", "./way", "--remote-path", env!("CARGO_BIN_EXE_fullbore"), "--ssh-only", "--bwlimit", "10K"];
    let mut slow = Slow::start_at("host:", &there);
    slow.listed();
    let output = slow.ask(&["--set", "bwlimit=0"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (place, output) = slow.end();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_same(&place.path("src"), &place.path("dst"));
}

#[test]
fn the_hangup_of_a_closed_terminal_ends_a_copy_where_it_can_go_on() {
    let mut slow = Slow::start(&["--bwlimit", "500K", "--log-file", "log"]);
    while slow.listed()["bytes"] == 0 {}
    kill_process(Pid::from_raw(slow.copy.id() as i32).unwrap(), Signal::HUP).unwrap();
    let (place, output) = slow.end();
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(fs::read_to_string(place.path("log")).unwrap().contains("run it again to go on"), "{}", said(&output));
    assert!(place.path("dst/.fullbore-copy").exists());
    place.copy(&["src/", "dst"]);
    assert_same(&place.path("src"), &place.path("dst"));
}

/// Lines without their times.
fn untimed(text: &str) -> Vec<String> {
    let untimed = |line: &str| {
        let (time, text) = line.split_once(' ').unwrap_or_else(|| panic!("{line}"));
        assert!(time.len() == 20 && time.ends_with('Z'), "{line}");
        text.to_owned()
    };
    text.lines().map(untimed).collect()
}

/// Lines of the log without their times.
fn logged(place: &Place) -> Vec<String> {
    untimed(&fs::read_to_string(place.path("log")).unwrap())
}

#[test]
fn each_line_is_logged_once_and_log_and_copy_end_with_what_was_done() {
    // 4 MB take three seconds, so that there is a table; a line comes four times a second.
    let slow = Slow::start(&["--bwlimit", "1300K", "--log-file", "log", "--line-time", "250"]);
    let (place, output) = slow.end();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let (stdout, stderr) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    let lines = untimed(&stderr);
    assert!(lines.len() >= 4 && lines[0] == "started: dst", "{stderr}");
    // Whoever looks at the log alone sees how it ended.
    let closing = stdout.lines().take(1).map(str::to_owned);
    assert_eq!(logged(&place), lines.iter().cloned().chain(closing).collect::<Vec<_>>());
    let line = lines.iter().find(|line| line.contains(" left")).unwrap_or_else(|| panic!("{stderr}"));
    assert!(line.contains(" of 4.00 MB, ") && line.contains(" of 40 files, ") && line.contains("B/s, "), "{line}");
    assert!(lines.iter().any(|line| line.contains(", limited by ")), "{stderr}");
    assert!(stdout.starts_with("copied 4.00 MB, 40 files in ") && stdout.contains(" Limited by: "), "{stdout}");
    for part in ["\npart ", "\nlist source ", "\nread + hash src/ ", "\nverify + write dst ", "\nfinal sync "] {
        assert!(stdout.contains(part), "{part:?} in {stdout}");
    }
}

#[test]
fn a_copy_that_was_suspended_says_for_how_long() {
    // Four seconds of work.
    let mut slow = Slow::start(&["--bwlimit", "1000K"]);
    slow.listed();
    let pid = Pid::from_raw(slow.copy.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(5));
    kill_process(pid, Signal::CONT).unwrap();
    let (_, output) = slow.end();
    let text = said(&output);
    // A busy machine may let it wait a little longer.
    let seconds = text.split_once(" Suspended for ").and_then(|(_, rest)| rest.split_once(" s."));
    let seconds: u64 = seconds.unwrap_or_else(|| panic!("{text}")).0.parse().unwrap();
    assert!((4..60).contains(&seconds), "{text}");
}

#[test]
fn events_come_each_second_and_a_log_beside_them_has_few_lines() {
    let slow = Slow::start(&["--bwlimit", "1300K", "--log-file", "log", "--json"]);
    let (place, output) = slow.end();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let stdout = String::from_utf8(output.stdout).unwrap();
    let events: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let (summary, events) = events.split_last().unwrap();
    let progress: Vec<&Value> = events.iter().filter(|event| event["event"] == "progress").collect();
    assert!(!progress.is_empty(), "{stdout}");
    for event in &progress {
        for field in ["bytes", "total_bytes", "files", "entries", "rate_bytes_per_s"] {
            assert!(event[field].is_u64(), "{field} in {event}");
        }
        assert!(event["complete"].is_boolean(), "{event}");
    }
    let last = progress.last().unwrap();
    assert!(last["eta_s"].is_u64() && last["limit"].is_string(), "{last}");
    assert_eq!((&last["total_files"], &last["total_bytes"]), (&40.into(), &4_000_000.into()), "{last}");
    let started = &events[0];
    assert_eq!((&started["event"], &started["command"]), (&"started".into(), &"copy".into()), "{started}");
    assert_eq!((&summary["event"], &summary["exit_code"]), (&"summary".into(), &0.into()), "{summary}");
    assert_eq!((&summary["command"], &summary["dir"]), (&"copy".into(), &"dst".into()), "{summary}");
    let totals = &summary["totals"];
    assert_eq!((&totals["files"], &totals["written_bytes"]), (&40.into(), &4_000_000.into()), "{summary}");
    let copy = &summary["copy"];
    let parts: Vec<&str> = copy["parts"].as_array().unwrap().iter().map(|row| row["part"].as_str().unwrap()).collect();
    assert!(parts.contains(&"read + hash src/") && parts.contains(&"final sync"), "{parts:?}");
    assert!(copy["problems"] == serde_json::json!({}) && copy["finished"] == true, "{summary}");
    let verdict = &summary["verdict"];
    assert!(verdict["limit"].is_string() && verdict["shares"].is_array(), "{summary}");
    assert!(verdict["advice"].is_string() && verdict["evidence"].is_array(), "{summary}");
    let logged = logged(&place);
    assert!(
        logged.len() == 2 && logged[1].starts_with("copied 4.00 MB"),
        "it took less than half a minute: {logged:?}"
    );
}

/// As in an empty root, in which only the static program is. Permissions were not kept there.
#[test]
fn without_proc_permissions_are_kept() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/below")).unwrap();
    fs::write(place.path("src/below/file"), "text").unwrap();
    let copy = |directory: u32, file: u32| {
        let set = |path: &str, mode| fs::set_permissions(place.path(path), fs::Permissions::from_mode(mode)).unwrap();
        set("src/below/file", file);
        set("src/below", directory);
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-c", "mount -t tmpfs tmpfs /proc && exec \"$@\"", "sh"]);
        command.args([env!("CARGO_BIN_EXE_fullbore"), "copy", "src/", "dst"]).current_dir(place.path(""));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        let mode = |path: &str| fs::metadata(place.path(path)).unwrap().mode() & 0o7777;
        assert_eq!((mode("dst/below"), mode("dst/below/file")), (directory, file));
    };
    copy(0o2750, 0o640);
    // What is there already.
    copy(0o711, 0o604);
}
