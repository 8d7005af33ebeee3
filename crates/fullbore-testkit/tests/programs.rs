//! The test server as a program: its URL, its settings while it runs, its log.

#![allow(clippy::unwrap_used)]

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

fn get(url: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn the_server_obeys_its_standard_input() {
    let tree = tempfile::tempdir().unwrap();
    fs::create_dir(tree.path().join("pool")).unwrap();
    fs::write(tree.path().join("pool/a"), "hello").unwrap();
    let log = tree.path().join("log");
    let mut child = Command::new(env!("CARGO_BIN_EXE_fullbore-testserver"))
        .arg(tree.path())
        .arg("--log")
        .arg(&log)
        .arg("status:404=1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    let url = output.next().unwrap().unwrap();
    assert!(get(&url, "/pool/a").starts_with("HTTP/1.1 404 "));
    // The counters come back only after the setting before them was applied.
    input.write_all(b"clear=1\ncounters\n").unwrap();
    assert!(output.next().unwrap().unwrap().contains("\"requests\":1"));
    assert!(get(&url, "/pool/a").ends_with("\r\n\r\nhello"));
    let written = || fs::read_to_string(&log).unwrap().lines().count();
    let given_up = Instant::now() + Duration::from_secs(10);
    while written() < 2 && Instant::now() < given_up {
        thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(written(), 2, "the log of a server that still runs");
    drop(input);
    assert!(child.wait().unwrap().success());
    let log = fs::read_to_string(&log).unwrap();
    let lines: Vec<Vec<&str>> = log.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!((lines[0][6], lines[0][7]), ("404", "status"));
    assert_eq!((lines[1][6], lines[1][8]), ("200", "5"));
}
