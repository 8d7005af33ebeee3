//! What `fullbore apt enable` wrote.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::harness::apt::{FULLBORE, passable};
use crate::harness::need;
use crate::{fixture, fullbore};

const SNIPPET: &str = "etc/apt/apt.conf.d/90fullbore";

/// A root in which the package was upgraded: this version is where the older one was.
fn upgraded(snippet: &str) -> TempDir {
    need("apt-config", "apt");
    let root = passable();
    for directory in ["etc/apt/apt.conf.d", "etc/fullbore", "usr/bin"] {
        fs::create_dir_all(root.path().join(directory)).unwrap();
    }
    fs::copy("/etc/passwd", root.path().join("etc/passwd")).unwrap();
    fs::write(root.path().join("etc/fullbore/mirrors.txt"), "http://deb.example.org/debian\n").unwrap();
    fs::write(root.path().join("etc/apt/apt.conf.d/50other"), "Acquire::Retries \"3\";\n").unwrap();
    let program = root.path().join("usr/bin/fullbore");
    if fs::hard_link(FULLBORE, &program).is_err() {
        fullbore_testkit::process::copy_program(FULLBORE, &program);
    }
    fs::copy(fixture(snippet), root.path().join(SNIPPET)).unwrap();
    root
}

fn apt(root: &Path, command: &str, more: &[&str]) -> (Option<i32>, String) {
    let output = fullbore().args(["apt", command, "--root"]).arg(root).args(more).output().unwrap();
    let text = [&output.stdout[..], &output.stderr[..]].map(String::from_utf8_lossy).concat();
    (output.status.code(), text)
}

/// Everything below /etc, with its content.
fn etc(root: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let (mut found, mut open) = (Vec::new(), vec![root.join("etc")]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let is_directory = path.is_dir();
            found.push((path.clone(), if is_directory { Vec::new() } else { fs::read(&path).unwrap() }));
            open.extend(is_directory.then_some(path));
        }
    }
    found.sort();
    found
}

#[test]
fn what_was_enabled_is_known_and_taken_away_exactly() {
    for (snippet, methods) in [("apt-enable-rred", &["rred"][..]), ("apt-enable-mirrors", &["rred", "http", "https"])] {
        let root = upgraded(snippet);
        let (code, text) = apt(root.path(), "status", &["--json"]);
        assert_eq!(code, Some(0), "{snippet}: {text}");
        let status: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&status["standing"], &status["problems"]),
            (&"ours".into(), &Value::Array(Vec::new())),
            "{snippet}"
        );
        let used = status["methods"].as_array().unwrap().iter().filter(|used| used["program"] == "/usr/bin/fullbore");
        assert_eq!(used.map(|used| used["method"].as_str().unwrap()).collect::<Vec<_>>(), methods, "{snippet}");
        let lists: Vec<Value> = if methods.len() > 1 { vec!["/etc/fullbore/mirrors.txt".into()] } else { Vec::new() };
        assert_eq!(status["mirrors"], Value::Array(lists), "{snippet}");

        let mut expected = etc(root.path());
        expected.retain(|(path, _)| *path != root.path().join(SNIPPET));
        let (code, text) = apt(root.path(), "disable", &[]);
        assert_eq!(code, Some(0), "{snippet}: {text}");
        assert!(etc(root.path()) == expected, "{snippet}: only the snippet is gone");
    }
}

/// One that is enabled again is written as this version does it, and one changed by hand is left alone.
#[test]
fn what_was_enabled_may_be_enabled_anew_unless_it_was_changed_by_hand() {
    let root = upgraded("apt-enable-rred");
    let (code, text) = apt(root.path(), "enable", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert_eq!(apt(root.path(), "status", &[]).0, Some(0));
    let edited = fs::read_to_string(fixture("apt-enable-rred")).unwrap().replace("rred", "store");
    fs::write(root.path().join(SNIPPET), &edited).unwrap();
    let (code, text) = apt(root.path(), "disable", &[]);
    assert_eq!((code, fs::read_to_string(root.path().join(SNIPPET)).unwrap()), (Some(1), edited), "{text}");
}
