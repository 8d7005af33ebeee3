//! Each line of `--json` is as `docs/reference/events.schema.json` says, and has no key that it does not name.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "harness/made.rs"]
mod made;
#[path = "harness/packages.rs"]
mod packages;
#[path = "harness/roots.rs"]
mod roots;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fullbore_testkit::faults;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use serde_json::Value;

use harness::apt::{Apt, passable};
use harness::{Mirror, common, own_archive};

/// The schema as it is published: later versions may add keys.
fn published() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/events.schema.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// This version adds none: objects with named keys have no others.
fn closed(mut schema: Value) -> Value {
    fn close(value: &mut Value) {
        match value {
            Value::Object(map) => {
                map.values_mut().for_each(close);
                // What is put together of several parts is closed part by part.
                if map.contains_key("properties") && !map.contains_key("$ref") && !map.contains_key("oneOf") {
                    map.insert("additionalProperties".into(), Value::Bool(false));
                }
            }
            Value::Array(values) => values.iter_mut().for_each(close),
            _ => {}
        }
    }
    // Variants that take over a structure name its keys by reference: they are left open.
    let variants = schema["oneOf"].as_array_mut().unwrap();
    let (by_reference, mut named): (Vec<Value>, Vec<Value>) =
        variants.drain(..).partition(|variant| variant.get("$ref").is_some() || variant.get("allOf").is_some());
    named.iter_mut().for_each(close);
    named.extend(by_reference);
    schema["oneOf"] = Value::Array(named);
    schema
}

/// Panics unless each line is valid; gives the names of the events.
fn validated(command: &str, stdout: &str) -> BTreeSet<String> {
    let schema = closed(published());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let mut names = BTreeSet::new();
    for line in stdout.lines() {
        let event: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{command}: {error}: {line}"));
        if let Err(error) = validator.validate(&event) {
            panic!("{command}: {error} ({}): {line}", error.instance_path());
        }
        names.insert(event["event"].as_str().unwrap().to_owned());
        if event["event"] == "summary" {
            for key in ["command", "version", "exit_code", "duration_ms", "totals", "hosts"] {
                assert!(event.get(key).is_some(), "{command}: the summary has no {key}: {line}");
            }
        }
    }
    assert!(stdout.lines().last().is_some_and(|line| line.contains(r#""event":"summary""#)), "{command}: {stdout}");
    names
}

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn told(command: &str, output: &Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    validated(command, &String::from_utf8_lossy(&output.stdout))
}

#[test]
fn what_is_wrong_is_found() {
    let schema = closed(published());
    let validator = jsonschema::validator_for(&schema).unwrap();
    let is_valid = |text: &str| validator.is_valid(&serde_json::from_str(text).unwrap());
    assert!(is_valid(r#"{"event":"note","message":"x"}"#));
    assert!(!is_valid(r#"{"event":"note","message":"x","more":1}"#));
    assert!(!is_valid(r#"{"event":"note"}"#));
    assert!(!is_valid(r#"{"event":"unheard","message":"x"}"#));
}

#[test]
fn mirror_and_check() {
    let archive = common();
    let (server, bad) =
        (Server::start(&archive.state(0).root).unwrap(), Server::start(&archive.state(0).root).unwrap());
    bad.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Status(404)));
    let mirror = Mirror::new(archive);
    validated("mirror --dry-run", &mirror.run_with(&[&server], &["--json", "--dry-run"]).exits(0).stdout);
    let names = validated("mirror", &mirror.run_with(&[&server, &bad], &["--json"]).exits(0).stdout);
    for event in ["started", "phase", "plan", "progress", "published", "summary"] {
        assert!(names.contains(event), "{event} of {names:?}");
    }
    let deb = archive.state(0).select(|file| file.path.ends_with(".deb")).into_keys().next().unwrap();
    faults::flip_bit(&mirror.to.join(deb), 3).unwrap();
    fs::write(mirror.to.join("pool/extra"), "x").unwrap();
    assert!(validated("check", &mirror.check(&["--json"]).exits(4).stdout).contains("error"));
    let from = server.url();
    let mended = mirror.check(&["--repair", "--from", &from, "--json"]).exits(0);
    assert!(validated("check --repair", &mended.stdout).contains("repaired"));
}

#[test]
fn update() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let server = Server::start(&archive.state(0).root).unwrap();
    let directory = passable();
    let apt = Apt::new(directory.path().join("apt"), &server.url(), &archive.key());
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["update", "--json"]).env("APT_CONFIG", apt.directory.join("etc/apt.conf"));
    told("update", &output(&mut command));
}

#[test]
fn pdiff_publish() {
    let directory = tempfile::tempdir().unwrap();
    let index = directory.path().join("main/binary-amd64");
    fs::create_dir_all(&index).unwrap();
    for (state, text) in ["Package: a\nVersion: 1\n\n", "Package: a\nVersion: 2\n\n"].into_iter().enumerate() {
        fs::write(index.join("Packages"), text).unwrap();
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        let names = told("pdiff publish", &output(command.args(["pdiff", "publish", "--json"]).arg(directory.path())));
        assert!(names.contains("index"), "state {state}: {names:?}");
    }
}

/// A tree with two files in it.
fn tree(directory: &Path) {
    fs::create_dir_all(directory.join("sub")).unwrap();
    fs::write(directory.join("a"), "content").unwrap();
    fs::write(directory.join("sub/b"), vec![7; 300_000]).unwrap();
}

#[test]
fn copy_and_probe() {
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    tree(&from);
    for words in [&["copy", "--json", "--dry-run"][..], &["copy", "--json"], &["probe", "--json"]] {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        let from = format!("{}/", from.display());
        told(&words.join(" "), &output(command.args(words).arg(from).arg(&to)));
    }
}

#[test]
fn bootstrap() {
    let archive = packages::packages();
    let server = archive.serve();
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = made::fullbore();
    command.args(["bootstrap", "--json", "--variant", "essential", "--keyring"]);
    command.arg(&archive.key).arg(&archive.codename).arg(directory.path().join("root")).arg(server.url());
    told("bootstrap", &output(&mut command));
}

#[test]
fn install() {
    let archive = made::Archive::new();
    archive.add("small", "1", "", "mkdir -p usr/lib; echo x > usr/lib/small");
    let server = archive.serve();
    let root = made::root_for(&server, "");
    told("install", &output(&mut made::install(&root.path().join("root"), &["small", "--json"])));
}
