//! `fullbore copy` where the way to the other machine fails, or never comes about: a script stands for ssh.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use harness::{Place, assert_same, said};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Time that a busy machine may take for what takes a moment.
const LONG: Duration = Duration::from_secs(120);

fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end, "not within {LONG:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A source whose copy takes a while at a limited rate.
fn source(place: &Place) -> String {
    fs::create_dir(place.path("src")).unwrap();
    for number in 0..4 {
        fs::write(place.path(&format!("src/{number}")), vec![number; 2 << 20]).unwrap();
    }
    format!("{}/", place.path("src").display())
}

/// A stand-in for ssh; it is given the host and a command.
fn script(place: &Place, text: &str) -> String {
    let path = place.path("way");
    fullbore_testkit::process::write_program(&path, &format!("#!/bin/sh\ncd {}\n{text}\n", place.path("").display()));
    path.display().to_string()
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.arg("copy").args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for its end; what does not end is killed.
fn end(mut copy: Child) -> Output {
    let until = Instant::now() + LONG;
    while copy.try_wait().unwrap().is_none() {
        if Instant::now() >= until {
            copy.kill().unwrap();
            panic!("it does not end: {}", said(&copy.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    copy.wait_with_output().unwrap()
}

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

/// Whether content has begun to come.
fn has_part(target: &Path) -> bool {
    let is_part = |name: &std::ffi::OsStr| name.to_string_lossy().ends_with(".fullbore-part");
    fs::read_dir(target).is_ok_and(|names| names.flatten().any(|name| is_part(&name.file_name())))
}

#[test]
fn sources_are_listed_while_ssh_is_on_its_way() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    // What listing finds and cannot copy.
    fs::write(place.path("src/.one.fullbore-part"), "").unwrap();
    let listed = "until grep -q fullbore-part log || test $((tries += 1)) -gt 600; do sleep 0.1; done; exit 255";
    let way = script(&place, listed);
    let log = place.path("log");
    let output = place.fullbore(&["--log-file", "log", "-e", &way, "src/", "host:dst"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(fs::read_to_string(log).unwrap().contains(".one.fullbore-part"), "{}", said(&output));
}

#[test]
fn a_host_that_does_not_come_back_is_given_up() {
    let place = Place::new();
    let (source, target) = (source(&place), place.path("dst"));
    let way = script(&place, "mkdir once 2>/dev/null || exit 255\necho $$ > started && mv started pid\nexec $2");
    let there = format!("host:{}", target.display());
    let remote = ["--remote-path", env!("CARGO_BIN_EXE_fullbore"), "--ssh-only"];
    let mut arguments = vec!["-e", &way, "--retry-for", "3", "--bwlimit", "1M", &source, &there];
    arguments.splice(0..0, remote);
    let copy = start(&arguments);
    until("content comes", || has_part(&target));
    signal(fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap(), Signal::KILL);
    let output = end(copy);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert!(said(&output).contains("dialling again"), "{}", said(&output));
    // It was only away.
    let way = script(&place, "exec $2");
    arguments[4] = &way;
    let output = end(start(&arguments));
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_same(&place.path("src"), &target);
}

#[test]
fn a_list_of_paths_that_fills_no_line_goes_to_a_far_sender() {
    let place = Place::new();
    let directories = vec!["d".repeat(248); 15].join("/");
    fs::create_dir_all(place.path("src").join(&directories)).unwrap();
    fs::write(place.path("src").join(&directories).join("file"), "x").unwrap();
    fs::write(place.path("src/other"), "y").unwrap();
    // Eighty megabytes, and several times as much as text of numbers.
    fs::write(place.path("list"), format!("{directories}/file\n").repeat(21_000)).unwrap();
    let way = script(&place, "exec $2");
    let there = format!("host:{}/", place.path("src").display());
    let remote = ["-e", &way, "--remote-path", env!("CARGO_BIN_EXE_fullbore"), "--ssh-only"];
    let mut arguments = remote.to_vec();
    arguments.extend(["--files-from", "list", &there, "dst"]);
    let output = place.fullbore(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_eq!(fs::read_to_string(place.path("dst").join(&directories).join("file")).unwrap(), "x");
    assert!(!place.path("dst/other").exists());
}

/// Command lines and environments of all processes, as ps shows them.
fn shown() -> Vec<(String, String)> {
    let processes = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
    let text = |path: &Path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).replace('\0', " ");
    processes.map(|process| (text(&process.join("cmdline")), text(&process.join("environ")))).collect()
}

#[test]
fn by_ssh_there_are_four_connections_and_what_opens_them_shows_nowhere() {
    let place = Place::new();
    let (source, target) = (source(&place), place.path("dst"));
    // ssh as it is called: options first. What is said by each connection is kept.
    let ssh = place.path("ssh");
    let script = format!(
        "#!/bin/sh\ncd {}\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\n\
         tee \"said.$$\" | sh -c \"$2\" | tee \"heard.$$\"\n",
        place.path("").display()
    );
    fullbore_testkit::process::write_program(&ssh, &script);
    let (ssh, there) = (ssh.display().to_string(), format!("host:{}", target.display()));
    let program = env!("CARGO_BIN_EXE_fullbore");
    // Too slow to end by itself. Both ends log all that there is; a pipe would be full of it.
    let log = place.path("stderr");
    let mut command = Command::new(program);
    command.args(["copy", "-e", &ssh, "--remote-path", program, "--ssh-only", "--bwlimit", "10K", &source, &there]);
    command.env("FULLBORE_LOG", "trace").stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap());
    let copy = command.spawn().unwrap();
    let heard = |prefix: &str| -> Vec<u8> {
        let names = fs::read_dir(place.path("")).unwrap().flatten().map(|entry| entry.path());
        let ours = names.filter(|path| path.file_name().unwrap().to_string_lossy().starts_with(prefix));
        ours.flat_map(|path| fs::read(path).unwrap()).collect()
    };
    let joint = || -> Option<Value> {
        let heard = heard("heard.");
        // It is among messages.
        let from = heard.windows(8).position(|bytes| bytes == b"{\"name\":")?;
        serde_json::Deserializer::from_slice(&heard[from..]).into_iter::<Value>().next()?.ok()
    };
    until("the far end can be joined", || joint().is_some());
    let joint = joint().unwrap();
    let (name, token) = (joint["name"].as_str().unwrap(), joint["token"].as_str().unwrap());
    assert!(token.len() >= 32 && token != name, "{joint}");
    // tee, sh and the program each.
    let joins = |line: &str| line.starts_with(program) && line.contains("--join") && line.contains(name);
    until("three more are joined", || shown().iter().filter(|(line, _)| joins(line)).count() == 3);
    until("they say the token", || {
        heard("said.").windows(token.len()).filter(|said| *said == token.as_bytes()).count() == 3
    });
    for (line, environment) in shown() {
        assert!(!line.contains(token) && !environment.contains(token), "{line}");
    }
    until("they are welcome", || heard("heard.").windows(13).filter(|heard| heard == b"\"joined\":true").count() == 3);
    let pid = copy.id().to_string();
    let set = Command::new(program).args(["copy", "--set", "bwlimit=0", "--pid", &pid]).output().unwrap();
    assert_eq!(set.status.code(), Some(0), "{}", said(&set));
    let output = end(copy);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("content went by ssh, 4 connections"), "{}", said(&output));
    assert_same(&place.path("src"), &target);
    let log = fs::read_to_string(log).unwrap();
    assert!(log.contains("content goes by ssh") && log.contains("host: "), "both ends log: {log}");
    assert!(!log.contains(token), "the token is logged");
    // The keys of both ends, as each form that a log may have of bytes.
    let keys: Vec<Vec<u8>> = ["said.", "heard."].map(heard).iter().map(|bytes| key(bytes)).collect();
    for key in keys {
        let hex: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
        let listed = key.iter().map(u8::to_string).collect::<Vec<_>>();
        for shown in [hex, listed.join(","), listed.join(", ")] {
            assert!(!log.to_lowercase().contains(&shown), "a key is logged");
        }
    }
}

/// The key that an end says first by the first of its connections.
fn key(said: &[u8]) -> Vec<u8> {
    let begin = b"fullbore-copy {";
    // What goes before is of another connection.
    let places = said.windows(begin.len()).enumerate().filter(|(_, bytes)| bytes == begin);
    let mut keys = places.filter_map(|(place, _)| {
        let json = &said[place + begin.len() - 1..];
        let greeting = serde_json::Deserializer::from_slice(json).into_iter::<Value>().next()?.ok()?;
        serde_json::from_value::<Vec<u8>>(greeting["key"].clone()).ok()
    });
    let key = keys.next().unwrap();
    assert!(key.len() > 32, "{key:?}");
    key
}

#[test]
fn a_far_end_that_says_nothing_for_20_seconds_is_told_of() {
    let place = Place::new();
    let (source, target) = (source(&place), place.path("dst"));
    let way = script(&place, "echo $$ > started && mv started pid\nexec $2");
    let log = place.path("stderr");
    let there = format!("host:{}", target.display());
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["copy", "-e", &way, "--remote-path", env!("CARGO_BIN_EXE_fullbore"), "--ssh-only"]);
    command.args(["--bwlimit", "100K", "--line-time", "200", &source, &there]);
    let copy = command.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
    until("content comes", || has_part(&target));
    let far = fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap();
    let told = || fs::read_to_string(&log).unwrap().contains(", nothing heard for 2");
    assert!(!told());
    signal(far, Signal::STOP);
    until("it is told", told);
    signal(far, Signal::CONT);
    let set = ["copy", "--set", "bwlimit=0", "--pid", &copy.id().to_string()];
    assert!(Command::new(env!("CARGO_BIN_EXE_fullbore")).args(set).status().unwrap().success());
    let output = end(copy);
    assert_eq!(output.status.code(), Some(0), "{}", fs::read_to_string(&log).unwrap());
    assert_same(&place.path("src"), &target);
}

#[test]
fn a_signal_ends_the_wait_for_an_ssh_that_says_nothing() {
    let place = Place::new();
    let way = script(&place, "echo $$ > started && mv started pid\nexec sleep 1000");
    let copy = start(&["-e", &way, &source(&place), "host:there"]);
    until("ssh is started", || place.path("pid").exists());
    signal(copy.id(), Signal::TERM);
    let output = end(copy);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let pid = fs::read_to_string(place.path("pid")).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "ssh still runs");
}

#[test]
fn a_copy_that_is_to_outlive_its_terminal_does() {
    let place = Place::new();
    let (source, target) = (source(&place), place.path("dst"));
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP", env!("CARGO_BIN_EXE_fullbore"), "copy", "--bwlimit", "4M", &source]);
    let copy = command.arg(&target).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    until("content comes", || has_part(&target));
    signal(copy.id(), Signal::HUP);
    let output = end(copy);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_same(&place.path("src"), &target);
}
