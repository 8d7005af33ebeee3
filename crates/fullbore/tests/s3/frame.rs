//! What `put` and `get` share with all commands: progress, log, summary, errors with hints.

use std::process::Command;
use std::time::Duration;

use super::faults::{put, with_files};
use super::servers::{Client, content, finish};
use super::store::{Fault, Store};

#[test]
fn a_store_that_is_not_reached_is_named_once_with_a_hint() {
    let client = Client::new("http://127.0.0.1:9");
    let file = client.file("f", b"x");
    let failed = client.run(["put", file.to_str().unwrap(), "s3://bucket/f"]);
    let refused = "127.0.0.1:9: cannot connect: Connection refused (os error 111)";
    let hint = "check the address and the network; a proxy is named by http_proxy and https_proxy in the environment";
    assert_eq!(failed.stderr, format!("error: {}: {refused}\nhint: {hint}\n", file.display()));
    assert_eq!((failed.code, failed.stdout.as_str()), (3, ""));
}

#[test]
fn progress_and_summary_have_the_form_of_all_commands() {
    let (_store, client, tree) = with_files(40, |_| Fault::Delay(Duration::from_millis(100)));
    let done = put(&client, &tree, &["--connections", "2"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let events = done.events();
    assert_eq!(events[0]["event"], "started");
    let progress: Vec<_> = events.iter().filter(|event| event["event"] == "progress").collect();
    assert!(progress.len() > 1, "a run of more than a second: {}", done.stdout);
    assert!(progress.iter().all(|event| event["total_bytes"] == 40 * 300 && event["total_files"] == 40));
    let first = progress[0];
    assert!(first["bytes"].as_u64().unwrap() < 40 * 300, "{first}");
    let summary = done.summary();
    assert_eq!(summary["event"], "summary");
    assert_eq!((&summary["command"], &summary["exit_code"]), (&"put".into(), &0.into()));
    assert!(summary["version"].is_string() && summary["cpu_ms"].is_u64(), "{summary}");
    let verdict = &summary["verdict"];
    for key in ["limit", "share", "shares", "advice", "evidence"] {
        assert!(!verdict[key].is_null(), "{key}: {verdict}");
    }
    assert_eq!((&summary["store"]["kind"], &summary["hosts"][0]["host"]), (&"bucket".into(), &"127.0.0.1".into()));
}

#[test]
fn a_terminal_shows_how_far_the_run_is_and_what_limits_it() {
    let (_store, client, tree) = with_files(40, |_| Fault::Delay(Duration::from_millis(100)));
    let program = env!("CARGO_BIN_EXE_fullbore");
    let line = format!("{program} put --connections 2 --endpoint {} {tree} s3://bucket/t", client.endpoint);
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    script.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", client.home.path()).env("TERM", "xterm");
    script.envs(client.variables.iter().map(|(name, value)| (name, value)));
    let output = script.output().unwrap();
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{shown}");
    for part in ["put", " % ", "/s", " left", "limit"] {
        assert!(shown.contains(part), "{part}: {shown:?}");
    }
    assert!(shown.contains("server 127.0.0.1 (server latency)"), "{shown:?}");
    assert!(shown.contains("s3://bucket/t/39"), "addresses are on stdout: {shown:?}");
}

#[test]
fn a_short_run_says_nothing_off_a_terminal_but_its_last_line() {
    let (_store, client, tree) = with_files(3, |_| Fault::None);
    let done = client.run(["put", &tree, "s3://bucket/t"]);
    assert_eq!((done.code, done.stderr.lines().count()), (0, 1), "{}", done.stderr);
    assert!(done.stderr.starts_with("3 files, 900 B in "), "{}", done.stderr);
}

#[test]
fn the_log_has_connections_and_retries_and_no_secret() {
    let mut refused = 0;
    let (_store, client, tree) = with_files(9, move |request| {
        refused += usize::from(request.is_put());
        let fields = "Content-Type: application/xml\r\n";
        if request.is_put() && refused == 1 { Fault::Answer(500, fields, "") } else { Fault::None }
    });
    let out = client.home.path().join("out");
    let get = ["get", "-o", out.to_str().unwrap(), "s3://bucket/t/0"];
    let commands: [&[&str]; 2] = [&["put", &tree, "s3://bucket/t"], &get];
    for (number, command) in commands.into_iter().enumerate() {
        let usual = client.run([command, &["-v"]].concat());
        assert_eq!(usual.code, 0, "{}", usual.stderr);
        assert!(usual.stderr.contains("connected"), "{}", usual.stderr);
        assert_eq!(usual.stderr.contains("asked again"), number == 0, "{}", usual.stderr);
        let traced = finish(client.command(command.iter().copied()).env("FULLBORE_LOG", "trace").spawn().unwrap());
        assert!(traced.stderr.contains("connected"), "{}", traced.stderr);
        for secret in ["only-for-tests", "Signature=", "Credential=", "AWS4-HMAC"] {
            assert!(!traced.stderr.contains(secret), "{secret}: {}", traced.stderr);
        }
    }
}

#[test]
fn the_log_has_a_connection_that_is_reset_before_any_answer() {
    // The first request of a connection, and one behind another.
    for (puts, text) in [(false, "connection broken"), (true, "connection closed before all answers")] {
        let mut was_reset = false;
        let (_store, client, tree) = with_files(1, move |request| {
            let resets = request.is_put() == puts && !was_reset;
            was_reset |= resets;
            if resets { Fault::Reset } else { Fault::None }
        });
        let done = client.run(["put", "-v", "--connections", "1", &tree, "s3://bucket/t"]);
        assert_eq!(done.code, 0, "{}", done.stderr);
        let parts = ["INFO", text, "server=\"127.0.0.1", "in_flight=1"];
        let told = done.stderr.lines().any(|line| parts.iter().all(|part| line.contains(part)));
        assert!(told, "{text}: {}", done.stderr);
        let quiet = client.run(["put", &tree, "s3://bucket/u"]);
        assert!(!quiet.stderr.contains("INFO"), "{}", quiet.stderr);
    }
}

#[test]
fn the_log_has_the_retry_of_a_part_with_its_reason() {
    let mut failed = false;
    let store = Store::start(move |request| {
        let fails = !failed && request.is_put() && request.query.contains("partNumber=2&");
        failed |= fails;
        if fails { Fault::Answer(500, "", "") } else { Fault::None }
    });
    let client = Client::new(&store.url);
    let large = content(24 << 20, 1);
    let file = client.file("large", &large).to_str().unwrap().to_owned();
    let done = client.run(["put", "-v", &file, "s3://bucket/large"]);
    assert_eq!(done.code, 0, "{}", done.stderr);
    let parts = ["INFO", "asked again", "PUT large", "500"];
    let told = done.stderr.lines().any(|line| parts.iter().all(|part| line.contains(part)));
    assert!(told, "{}", done.stderr);
    assert!(store.object("large").unwrap().content == large);
}
