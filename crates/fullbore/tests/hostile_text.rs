//! Text that servers and far ends fill in, with everything in it that a terminal obeys or nobody sees: no output of the
//! program holds any of it, and no line of it looks like one of the program's own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod copy_harness;
#[path = "copy/far_end.rs"]
mod far_end;
mod harness;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use copy_harness::{Place, said};
use far_end::{against, fullbore, relayed};
use fullbore_copy::transport::setup::{self, Hello, Ready};
use fullbore_copy::wire::{Message, Problem, ProblemKind, VERSION};
use fullbore_engine::escape::is_hidden;
use fullbore_testkit::digest::Digest;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{Mirror, own_archive};
use serde_json::Value;

/// ESC sequences, a forged line behind LF, CR and CRLF, C1, DEL, bidi controls, separators, invisible characters.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{1b}[2K\r\nerror: forged\nerror: forged\rerror: forged\u{9b}31m\u{85}\u{7f}\
                       \u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\u{2029}\u{feff}\u{200b}";
/// The same without the characters that HTTP and XML refuse by themselves.
const HOSTILE_MILD: &str = "\u{9b}31m\u{85}\u{9d}0;x\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\u{2029}\u{feff}\u{200b}";

/// Panics unless an output is harmless, and shows what it was given.
#[track_caller]
fn assert_harmless(what: &str, output: &[u8]) {
    let text = std::str::from_utf8(output).unwrap_or_else(|_| panic!("{what}: no text: {output:?}"));
    let hidden: Vec<char> = text.chars().filter(|c| is_hidden(*c) && *c != '\n').collect();
    assert!(hidden.is_empty(), "{what}: {hidden:?} in {text:?}");
    assert!(!text.lines().any(|line| line.trim_start().starts_with("error: forged")), "{what}: {text}");
}

#[track_caller]
fn assert_all_harmless(place: &Place, output: &Output) {
    assert_harmless("stdout", &output.stdout);
    assert_harmless("stderr", &output.stderr);
    if let Ok(log) = fs::read(place.path("log")) {
        assert_harmless("--log-file", &log);
        for line in String::from_utf8(log).unwrap().lines() {
            assert!(
                line.get(..20).is_some_and(|time| time.ends_with('Z')),
                "a line of a log begins with its time: {line}"
            );
        }
    }
}

fn hello(version: u32) -> Hello {
    Hello { version, program: HOSTILE.to_owned(), key: vec![0; 100], port: None, address: None, speeds: None }
}

#[test]
fn a_far_end_of_another_version_forges_no_lines() {
    for command in [&["copy", "--log-file", "log", "src/", "host:dst"][..], &["probe", "src/", "host:dst"]] {
        let (place, output) = against(command, |mut near| {
            setup::write(&mut near, &hello(VERSION + 1)).unwrap();
        });
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert!(said(&output).contains("\\u{1b}]0;x"), "{}", said(&output));
        assert_all_harmless(&place, &output);
    }
}

/// Texts of counters that only people read. Others are words of the protocol, and checked.
const TEXTS: [&str; 7] = ["part", "reason", "evidence", "file_system", "control", "name", "words"];

/// Appends hostile text to each text of a peer's counters. The names of stages are looked up, and stay.
fn spoil(value: &mut Value, is_text: bool, spoiled: &mut usize) {
    match value {
        Value::String(text) if is_text => {
            text.push_str(HOSTILE);
            *spoiled += 1;
        }
        Value::Array(values) => values.iter_mut().for_each(|value| spoil(value, is_text, spoiled)),
        Value::Object(fields) => {
            for (key, value) in fields.iter_mut() {
                match key.as_str() {
                    "stages" => {}
                    "control" => {
                        *value = HOSTILE.into();
                        *spoiled += 1;
                    }
                    key => spoil(value, TEXTS.contains(&key), spoiled),
                }
            }
        }
        _ => {}
    }
}

fn spoil_counters(message: Message) -> Message {
    let Message::Counters(json) = message else { return message };
    let mut value: Value = serde_json::from_slice(&json).unwrap();
    let mut spoiled = 0;
    spoil(&mut value, false, &mut spoiled);
    Message::Counters(serde_json::to_vec(&value).unwrap())
}

#[test]
fn counters_of_a_far_end_forge_nothing_in_the_table_of_a_copy() {
    // A table comes after two seconds.
    for more in [&[][..], &["--json"], &["-v"]] {
        let mut arguments = vec!["copy", "--log-file", "log", "--bwlimit", "40K", "--durability", "none"];
        arguments.extend(more);
        let source = tempfile::tempdir().unwrap();
        fs::write(source.path().join("file"), vec![b'x'; 100_000]).unwrap();
        let there = format!("host:{}/", source.path().display());
        arguments.extend([there.as_str(), "dst"]);
        let (place, output) = against(&arguments, |near| relayed(near, |message| vec![spoil_counters(message)]));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_all_harmless(&place, &output);
        let text = said(&output);
        let shown = if more == ["--json"] { "\\u001b]0;x" } else { "\\u{1b}]0;x" };
        assert!(text.contains(shown), "{text}");
        if more.is_empty() {
            assert!(text.contains("\npart ") && text.contains("congestion control"), "{text}");
        }
    }
}

#[test]
fn the_reason_of_an_abort_and_problems_forge_no_lines() {
    for exit_code in [2, 7, 255] {
        let abort = move |message: Message| match message {
            // Once the near end has told its list.
            Message::Answer(_) | Message::Begin => {
                let problem = |kind, path: &[u8]| {
                    Message::Problem(Problem { kind, path: path.to_vec(), text: HOSTILE.to_owned() })
                };
                vec![
                    problem(ProblemKind::Unwritable, HOSTILE.as_bytes()),
                    problem(ProblemKind::Unwritable, b"\xff\x1b[2J"),
                    Message::Abort { exit_code, text: HOSTILE.to_owned() },
                ]
            }
            message => vec![message],
        };
        for more in [&[][..], &["--json"]] {
            let mut arguments = vec!["copy", "--log-file", "log", "--retry-for", "0", "--durability", "none"];
            arguments.extend(more);
            let target = tempfile::tempdir().unwrap();
            let there = format!("host:{}/dst", target.path().display());
            arguments.extend(["src/", &there]);
            let (place, output) = against(&arguments, move |near| relayed(near, abort));
            assert_ne!(output.status.code(), Some(0), "{}", said(&output));
            assert_all_harmless(&place, &output);
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert!(stderr.contains("error: ") && stderr.contains("\\u{1b}]0;x"), "{stderr}");
            assert!(stderr.contains("\\377\\u{1b}[2J: "), "a problem's path: {stderr}");
        }
    }
}

#[test]
fn a_refusal_of_the_far_end_forges_no_lines() {
    for command in ["copy", "probe"] {
        let (place, output) = against(&[command, "src/", "host:dst"], |near| {
            let mut hearing = BufReader::new(near.try_clone().unwrap());
            let mut near = near;
            // A key that is one: its own. The far end does not get as far as using it.
            let own = far_hello();
            near.write_all(&own).unwrap();
            let mut task = Vec::new();
            hearing.read_until(b'\n', &mut task).unwrap();
            let refused = Some((7, HOSTILE.to_owned()));
            setup::write(&mut near, &Ready { refused, ..Ready::default() }).unwrap();
        });
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        assert!(said(&output).contains("error: host: \\u{1b}]0;x"), "{}", said(&output));
        assert_all_harmless(&place, &output);
    }
}

/// The first line of a real far end.
fn far_hello() -> Vec<u8> {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let mut far = command.args(["copy", "--server"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = Vec::new();
    BufReader::new(far.stdout.take().unwrap()).read_until(b'\n', &mut line).unwrap();
    drop(far.stdin.take());
    far.wait().unwrap();
    line
}

#[test]
fn figures_of_a_far_end_forge_nothing_in_a_probe() {
    for more in [&[][..], &["--json"]] {
        let mut arguments = vec!["probe", "--time", "3"];
        arguments.extend(more);
        let target = tempfile::tempdir().unwrap();
        let there = format!("host:{}", target.path().display());
        arguments.extend(["src/", &there]);
        let (place, output) = against(&arguments, |near| relayed(near, |message| vec![spoil_counters(message)]));
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
        assert_all_harmless(&place, &output);
        let shown = if more.is_empty() { "\\u{1b}]0;x" } else { "\\u001b]0;x" };
        assert!(said(&output).contains(shown), "{}", said(&output));
    }
}

#[test]
fn stderr_of_ssh_and_of_the_far_machine_is_escaped() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    let path = place.path("way");
    fs::write(place.path("words"), HOSTILE).unwrap();
    let script = format!("#!/bin/sh\ncat {} >&2; exit 255\n", place.path("words").display());
    fullbore_testkit::process::write_program(&path, &script);
    for command in ["copy", "probe"] {
        let output = fullbore(&place, &[command, "-e", path.to_str().unwrap(), "src/", "host:dst"]);
        assert_eq!(output.status.code(), Some(3), "{}", said(&output));
        assert_harmless("stderr", &output.stderr);
        let stderr = String::from_utf8(output.stderr).unwrap();
        let last = stderr.lines().last().unwrap();
        assert!(stderr.lines().any(|line| line.starts_with("host: \\u{1b}]0;x\\u{7}")), "{stderr}");
        assert_eq!(last, "error: host: ssh does not get through", "its last words come before ours: {stderr}");
    }
}

#[test]
fn names_of_files_forge_no_lines_of_a_listing() {
    let place = Place::new();
    let name = HOSTILE.replace('/', "");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src").join(&name), "x").unwrap();
    fs::write(place.path("src/back\\slash"), "x").unwrap();
    let output = fullbore(&place, &["copy", "-v", "--log-file", "log", "src/", "dst"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert_all_harmless(&place, &output);
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(stdout.lines().any(|line| line == "back\\slash"), "a backslash stays as it is: {stdout}");
    let events = fullbore(&place, &["copy", "-v", "--json", "src/", "again"]);
    assert_all_harmless(&place, &events);
    let events = String::from_utf8(events.stdout).unwrap();
    let events = events.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    assert!(events.into_iter().any(|event| event["path"] == name.as_str()), "JSON has the exact name");
}

#[test]
fn words_of_the_command_line_are_escaped() {
    let place = Place::new();
    for arguments in [
        &[HOSTILE][..],
        &["mirror", HOSTILE],
        &["mirror", "--limit-rate", HOSTILE],
        &["copy", "--congestion", HOSTILE, "a", "b"],
        &["copy", HOSTILE, "b"],
        &["apt", "status", "--root", HOSTILE],
        &["pdiff", "merge", HOSTILE, HOSTILE],
        &["convert", HOSTILE],
        &["check", HOSTILE],
        &["get", HOSTILE],
        &["put", HOSTILE, "s3://bucket/x"],
        &["divert", "status", "--root", HOSTILE],
    ] {
        let output = fullbore(&place, arguments);
        assert_ne!(output.status.code(), Some(0), "{arguments:?}");
        assert_harmless(&format!("{arguments:?}"), &output.stderr);
        assert_harmless(&format!("{arguments:?}"), &output.stdout);
    }
}

/// An address may stand anywhere on a command line, also where none belongs.
#[test]
fn credentials_of_addresses_are_in_no_message() {
    let place = Place::new();
    for address in
        ["https://me:secret@host.invalid/x", "https://secret@host.invalid/x", "https://me:a/secret@host.invalid/x"]
    {
        for words in [
            "bootstrap trixie URL",
            "bootstrap trixie root URL",
            "install URL",
            "copy URL dst",
            "copy src URL",
            "probe src URL",
            "check URL",
            "mirror URL",
            "mirror --to URL --suite trixie",
            "convert URL",
            "work URL",
            "update URL",
            "update --sources URL",
            "pdiff URL",
            "pdiff make URL",
            "put URL URL",
            "put --node URL src",
            "get URL",
            "ls URL",
            "nosync URL",
            "divert URL",
            "completions URL",
            "URL",
            "mirror --limit-rate URL",
            "mirror --URL",
        ] {
            let words: Vec<String> = words.split(' ').map(|word| word.replace("URL", address)).collect();
            let output = fullbore(&place, &words.iter().map(String::as_str).collect::<Vec<_>>());
            assert_ne!(output.status.code(), Some(0), "{words:?}");
            let told = said(&output);
            assert!(!told.contains("secret"), "{words:?}: {told}");
        }
    }
}

/// Answers every request with these bytes; gives its address.
fn answering(answer: impl Fn(u16) -> Vec<u8> + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut reader = BufReader::new(stream);
            let mut line = String::new();
            while matches!(reader.read_line(&mut line), Ok(1..)) && line != "\r\n" {
                line.clear();
            }
            let _ = reader.get_mut().write_all(&answer(port));
        }
    });
    format!("http://127.0.0.1:{port}")
}

#[test]
fn answers_of_a_mirror_forge_nothing_on_screen_and_in_reports() {
    let heads: [fn(u16) -> String; 4] = [
        |_| format!("HTTP/1.1 404 {HOSTILE_MILD}\r\nContent-Length: 0\r\n\r\n"),
        |_| format!("HTTP/1.1 302 Found\r\nLocation: http://{HOSTILE_MILD}/x\r\nContent-Length: 0\r\n\r\n"),
        |port| {
            format!(
                "HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:{port}/{HOSTILE_MILD}\r\nContent-Length: 0\r\n\r\n"
            )
        },
        |_| format!("HTTP/1.1 200 OK\r\nContent-Length: {HOSTILE_MILD}\r\n\r\n"),
    ];
    for head in heads {
        let place = Place::new();
        let server = answering(move |port| head(port).into_bytes());
        for more in [&["-vv", "--report", "report.html"][..], &["--json", "--report", "report.json"]] {
            let mut arguments = vec!["mirror", "--from", &server, "--suite", "s", "--to", "m", "--metrics", "m.prom"];
            arguments.extend(["--keyring", "/dev/null", "--trace", "trace.json"]);
            arguments.extend(more);
            let output = fullbore(&place, &arguments);
            assert_ne!(output.status.code(), Some(0), "{}", said(&output));
            assert_harmless("stdout", &output.stdout);
            assert_harmless("stderr", &output.stderr);
            for file in ["report.html", "report.json", "m.prom", "trace.json"] {
                assert_harmless(file, &fs::read(place.path(file)).unwrap_or_default());
            }
        }
        for command in ["update", "bootstrap"] {
            let mut command = vec![command];
            fs::write(place.path("s.list"), format!("deb [trusted=yes] {server} s main\n")).unwrap();
            match command[0] {
                "update" => command.extend(["--sources", "s.list", "--lists", "lists"]),
                _ => command.extend(["s", "root.tar", &server]),
            }
            let output = fullbore(&place, &command);
            assert_ne!(output.status.code(), Some(0), "{}", said(&output));
            assert_harmless("stdout", &output.stdout);
            assert_harmless("stderr", &output.stderr);
        }
    }
}

#[test]
fn fields_of_a_release_and_paths_of_an_index_forge_nothing() {
    let mild = HOSTILE_MILD.replace(['\u{85}', '\u{2028}', '\u{2029}'], "");
    for field in
        ["Codename", "Suite", "Origin", "Label", "Version", "Architectures", "Components", "Date", "Valid-Until"]
    {
        let (_directory, archive) = own_archive(|builder| builder);
        archive.forge(0, "trixie").set_field(field, &format!("trixie{mild}")).unwrap();
        let server = Server::start(&archive.state(0).root).unwrap();
        let mirror = Mirror::new(&archive);
        let html = mirror.to.with_extension("html");
        for more in [&["-v"][..], &["--json"]] {
            let mut command = mirror.command(&[&server], more);
            command.arg("--report").arg(&html);
            let ran = command.output().unwrap();
            assert_harmless(&format!("{field}: stdout"), &ran.stdout);
            assert_harmless(&format!("{field}: stderr"), &ran.stderr);
            assert_harmless(&format!("{field}: html"), &fs::read(&html).unwrap_or_default());
        }
    }
}

/// A flat repository without signatures whose index names this path.
fn index_with(path: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let digest = Digest::of(b"12345");
    let index =
        format!("Package: x\nVersion: 1\nArchitecture: all\nFilename: pool/{path}/x.deb\nSize: 5\nSHA256: {digest}\n");
    let entry = format!("SHA256:\n {} {} Packages\n", Digest::of(index.as_bytes()), index.len());
    fs::create_dir(directory.path().join("s")).unwrap();
    fs::write(directory.path().join("s/Packages"), index).unwrap();
    fs::write(directory.path().join("s/Release"), format!("Date: Thu, 01 Jan 2026 00:00:00 UTC\n{entry}")).unwrap();
    directory
}

#[test]
fn paths_within_an_index_forge_nothing() {
    for path in [HOSTILE_MILD, "\u{1b}]0;x\u{7}", "a\rerror: forged", "\u{7f}\u{9b}31m", "%1b%0aerror: forged"] {
        let directory = index_with(path);
        let server = Server::start(directory.path()).unwrap();
        let place = Place::new();
        let sources = format!("Types: deb\nURIs: {}\nSuites: s/\nTrusted: yes\n", server.url());
        fs::write(place.path("s.sources"), sources).unwrap();
        let report = ["report.html", "report.json"];
        for more in [&["--dry-run"][..], &["-vv"], &["--json"]] {
            for report in report {
                let mut arguments = vec!["mirror", "--sources", "s.sources", "--to", "m", "--report", report];
                arguments.extend(["--metrics", "m.prom", "--trace", "trace.json"]);
                arguments.extend(more);
                let output = fullbore(&place, &arguments);
                // Planned in a dry run, missing in another one, or refused.
                let is_planned = more == ["--dry-run"] && output.status.code() == Some(0);
                assert!(is_planned || output.status.code() != Some(0), "{}", said(&output));
                assert_harmless(&format!("{path:?}: stdout"), &output.stdout);
                assert_harmless(&format!("{path:?}: stderr"), &output.stderr);
            }
        }
        let mut written = 0;
        for file in [&report[..], &["m.prom", "trace.json"]].concat() {
            let content = fs::read(place.path(file)).unwrap_or_default();
            written += usize::from(!content.is_empty());
            assert_harmless(file, &content);
        }
        assert!(written >= 2, "the test needs reports");
        let output = fullbore(&place, &["check", "m"]);
        assert_harmless("check", &[output.stdout, output.stderr].concat());
    }
}

#[test]
fn errors_of_a_store_forge_no_lines() {
    let body = format!(
        "<Error><Code>{HOSTILE_MILD}&#13;&#10;error: forged</Code>\
         <Message>{HOSTILE_MILD}&#10;error: forged&#127;</Message></Error>"
    );
    let listing = format!(
        "<ListBucketResult><IsTruncated>false</IsTruncated><Contents><Key>t/{HOSTILE_MILD}&#10;error: forged</Key>\
         <Size>3</Size></Contents></ListBucketResult>"
    );
    for (status, body) in [("403 Forbidden", &body), ("400 Bad", &body), ("404 Not", &body), ("200 OK", &listing)] {
        let place = Place::new();
        fs::create_dir(place.path("t")).unwrap();
        fs::write(place.path("t/file"), "abc").unwrap();
        let head =
            format!("HTTP/1.1 {status}\r\nx-amz-request-id: {HOSTILE_MILD}\r\nContent-Length: {}\r\n\r\n", body.len());
        let answer = format!("{head}{body}").into_bytes();
        let server = answering(move |_| answer.clone());
        for arguments in [
            &["put", "t", "s3://bucket/t", "--delete", "--dry-run"][..],
            &["put", "--json", "t", "s3://bucket/t", "--delete", "--force-delete"],
            &["get", "-vvv", "-o", "got", "s3://bucket/t"],
        ] {
            let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
            command.args(arguments).args(["--endpoint", &server, "--region", "x"]).current_dir(place.path(""));
            command.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b");
            let output = command.output().unwrap();
            assert_harmless(&format!("{arguments:?}: stdout"), &output.stdout);
            assert_harmless(&format!("{arguments:?}: stderr"), &output.stderr);
        }
    }
}

#[test]
fn a_method_of_apt_forges_no_messages() {
    let place = Place::new();
    let method = place.path("http");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_fullbore"), &method).unwrap();
    let server = answering(|_| format!("HTTP/1.1 404 {HOSTILE_MILD}\r\nContent-Length: 0\r\n\r\n").into_bytes());
    let mut command: Command = clean_command(&method);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let file = place.path("got");
    write!(stdin, "601 Configuration\nConfig-Item: APT::Sandbox::User=root\n\n").unwrap();
    write!(stdin, "600 URI Acquire\nURI: {server}/x\nFilename: {}\n\n", file.display()).unwrap();
    // It answers and goes on until it is left alone.
    let mut text = String::new();
    let mut reader = BufReader::new(child.stdout.take().unwrap());
    while !text.contains("400 URI Failure") && matches!(reader.read_line(&mut text), Ok(1..)) {}
    drop(stdin);
    reader.read_to_string(&mut text).unwrap();
    let _ = child.wait();
    assert!(text.contains("400 URI Failure") && text.contains("404"), "{text}");
    assert_harmless("messages to apt", text.as_bytes());
}
