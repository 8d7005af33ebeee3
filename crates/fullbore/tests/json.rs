//! Each line of `--json` is as `docs/reference/events.schema.json` says, and has no key that it does not name.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "harness/made.rs"]
mod made;
#[path = "harness/packages.rs"]
mod packages;
#[path = "harness/roots.rs"]
mod roots;
#[path = "harness/schema.rs"]
mod schema;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use fullbore_testkit::faults;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};

use harness::apt::{Apt, passable};
use harness::{Mirror, common, own_archive};

fn output(command: &mut Command) -> Output {
    command.output().unwrap()
}

fn told(command: &str, output: &Output) -> BTreeSet<String> {
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    schema::names(command, &String::from_utf8_lossy(&output.stdout))
}

fn fails(command: &str, output: &Output, code: i32, kind: &str) {
    assert_eq!(output.status.code(), Some(code), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    schema::fails(command, &String::from_utf8_lossy(&output.stdout), code, kind);
}

fn fullbore(words: &[&str]) -> Command {
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(words);
    command
}

/// Nobody listens there, nor will: a port that was free a moment ago may go to a server of another test.
const NOBODY: &str = "http://127.0.0.1:1";

#[test]
fn what_is_wrong_is_found() {
    let is_valid = |text: &str| schema::schema().is_valid(&serde_json::from_str(text).unwrap());
    assert!(is_valid(r#"{"event":"note","message":"x"}"#));
    assert!(is_valid(r#"{"event":"progress","bytes":1,"percent":4,"packages":1,"total_packages":9}"#));
    assert!(!is_valid(r#"{"event":"progress","percent":"4"}"#));
    assert!(!is_valid(r#"{"event":"note","message":"x","more":1}"#));
    assert!(!is_valid(r#"{"event":"note"}"#));
    assert!(!is_valid(r#"{"event":"unheard","message":"x"}"#));
}

#[test]
fn events_of_mirror_and_check_keep_the_schema() {
    let archive = common();
    let (server, bad) =
        (Server::start(&archive.state(0).root).unwrap(), Server::start(&archive.state(0).root).unwrap());
    bad.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), Fault::Status(404)));
    let mirror = Mirror::new(archive);
    schema::names("mirror --dry-run", &mirror.run_with(&[&server], &["--json", "--dry-run"]).exits(0).stdout);
    let names = schema::names("mirror", &mirror.run_with(&[&server, &bad], &["--json"]).exits(0).stdout);
    for event in ["started", "phase", "plan", "progress", "published", "summary"] {
        assert!(names.contains(event), "{event} of {names:?}");
    }
    let deb = archive.state(0).select(|file| file.path.ends_with(".deb")).into_keys().next().unwrap();
    faults::flip_bit(&mirror.to.join(deb), 3).unwrap();
    fs::write(mirror.to.join("pool/extra"), "x").unwrap();
    assert!(schema::names("check", &mirror.check(&["--json"]).exits(4).stdout).contains("error"));
    let from = server.url();
    let mended = mirror.check(&["--repair", "--from", &from, "--json"]).exits(0);
    assert!(schema::names("check --repair", &mended.stdout).contains("repaired"));
}

#[test]
fn events_of_update_keep_the_schema() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let server = Server::start(&archive.state(0).root).unwrap();
    let directory = passable();
    let apt = Apt::new(directory.path().join("apt"), &server.url(), &archive.key());
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["update", "--json"]).env("APT_CONFIG", apt.directory.join("etc/apt.conf"));
    told("update", &output(&mut command));
}

#[test]
fn events_of_pdiff_publish_keep_the_schema() {
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
fn events_of_copy_and_probe_keep_the_schema() {
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
fn events_of_bootstrap_keep_the_schema() {
    let archive = packages::packages();
    let server = archive.serve();
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let mut command = made::fullbore();
    command.args(["bootstrap", "--json", "--variant", "essential", "--keyring"]);
    command.arg(&archive.key).arg(&archive.codename).arg(directory.path().join("root")).arg(server.url());
    told("bootstrap", &output(&mut command));
}

#[test]
fn events_of_install_keep_the_schema() {
    let archive = made::Archive::new();
    archive.add("small", "1", "", "mkdir -p usr/lib; echo x > usr/lib/small");
    let server = archive.serve();
    let root = made::root_for(&server, "");
    told("install", &output(&mut made::install(&root.path().join("root"), &["small", "--json"])));
}

/// Failures too: the kind and the exit code are in the error, and in the summary where something was done.
#[test]
fn commands_that_fail_tell_kind_and_exit_code() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let nobody = NOBODY;
    // No network: nothing was done.
    let (server, mirror) = (Server::start(&common().state(0).root).unwrap(), Mirror::new(common()));
    server.add_fault(FaultRule::always(PathMatch::Prefix("/dists/".into()), Fault::Status(404)));
    schema::fails("mirror", &mirror.run_with(&[&server], &["--json"]).exits(3).stdout, 3, "network");
    // Wrong flags and settings.
    fails(
        "mirror, a wrong address",
        &output(&mut fullbore(&["mirror", "--json", "--from", "ftp://x/", "--suite", "sid", "--to", &path("m")])),
        1,
        "usage",
    );
    fails("check of no mirror", &output(&mut fullbore(&["check", "--json", &path("none")])), 1, "usage");
    fails(
        "pdiff publish of nothing",
        &output(&mut fullbore(&["pdiff", "publish", "--json", &path("none")])),
        1,
        "usage",
    );
    fails("copy of nothing", &output(&mut fullbore(&["copy", "--json", &path("none"), &path("to")])), 1, "usage");
    fails("probe of nothing", &output(&mut fullbore(&["probe", "--json", &path("none"), &path("to")])), 1, "usage");
    fs::write(path("f"), "x").unwrap();
    let mut put = fullbore(&["put", "--json", &path("f"), "s3://bucket/f", "--endpoint", nobody]);
    put.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b").env("HOME", directory.path());
    fails("put", &output(&mut put), 3, "network");
    let mut get = fullbore(&["get", "--json", "-o", &path("g"), "s3://bucket/f", "--endpoint", nobody]);
    get.env("AWS_ACCESS_KEY_ID", "a").env("AWS_SECRET_ACCESS_KEY", "b").env("HOME", directory.path());
    fails("get", &output(&mut get), 3, "network");
    fails(
        "put without a grid",
        &output(fullbore(&["put", "--json", &path("f"), "--node", &path("none")]).env("HOME", directory.path())),
        1,
        "usage",
    );
    fails(
        "install into no root",
        &output(&mut fullbore(&["install", "--json", "--root", &path("none"), "x"])),
        1,
        "usage",
    );
    let archive = common();
    let key = archive.key().to_str().unwrap().to_owned();
    fails(
        "bootstrap",
        &output(made::fullbore().args(["bootstrap", "--json", "--keyring", &key, "sid", &path("root"), nobody])),
        3,
        "network",
    );
    let apt = Apt::new(directory.path().join("apt"), nobody, &archive.key());
    fails(
        "update",
        &output(fullbore(&["update", "--json"]).env("APT_CONFIG", apt.directory.join("etc/apt.conf"))),
        3,
        "network",
    );
}

/// Commands without events: `apt status` has one object of its own, the others have nothing that a script could want
/// beside the exit code; `nosync` has the command's own output.
#[test]
fn commands_without_events_refuse_the_flag() {
    for words in [&["convert", "--json", "x"][..], &["apt", "enable", "--json"], &["divert", "--json", "list"]] {
        let refused = output(&mut fullbore(words));
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(1), 0), "{words:?}: {said}");
        assert!(said.contains("--json"), "{words:?}: {said}");
    }
    let status = output(&mut fullbore(&["apt", "status", "--json", "--root", "/"]));
    let text = String::from_utf8_lossy(&status.stdout).into_owned();
    let object: serde_json::Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    assert!(object.is_object() && object.get("event").is_none(), "{text}");
}
