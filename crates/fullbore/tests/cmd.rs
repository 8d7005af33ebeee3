//! What the program prints: help texts and errors, compared with `tests/cmd/*.trycmd`.
//!
//! After a wanted change: `TRYCMD=overwrite cargo test -p fullbore --test cmd`.

#![allow(clippy::unwrap_used)]

mod harness;

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;

#[test]
fn commands_print_their_recorded_texts() {
    trycmd::TestCases::new().case("tests/cmd/*.trycmd").env("COLUMNS", "100").env("NO_COLOR", "1");
}

/// Nothing is listening at the address: a command that does not look first ends with another code.
#[test]
fn a_file_that_is_not_a_keyring_is_refused_by_every_command() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (text, sources, signed) = (path("text"), path("a.sources"), path("signed.sources"));
    std::fs::write(&text, "root:x:0:0:root:/root:/bin/sh\n").unwrap();
    let entry = "Types: deb\nURIs: http://127.0.0.1:9/debian\nSuites: sid\nComponents: main\n";
    std::fs::write(&sources, entry).unwrap();
    std::fs::write(&signed, format!("{entry}Signed-By: {text}\n")).unwrap();
    let (to, root) = (path("to"), path("root"));
    for arguments in [
        &["mirror", "--keyring", &text, "--from", "http://127.0.0.1:9/debian", "--suite", "sid", "--to", &to][..],
        &["mirror", "--sources", &signed, "--to", &to],
        &["check", "--keyring", &text, directory.path().to_str().unwrap()],
        &["update", "--keyring", &text, "--sources", &sources, "--lists", &to],
        &["bootstrap", "--keyring", &text, "sid", &root, "http://127.0.0.1:9/debian"],
    ] {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore")).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert!(said.contains("text: not an OpenPGP keyring"), "{arguments:?}: {said}");
    }
}

/// Modes do not bind root, so the program runs as another user.
#[test]
fn a_file_without_access_has_one_exit_code_and_one_hint_in_every_command() {
    let directory = harness::apt::passable();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (closed, list, out) = (path("closed"), path("list"), path("out"));
    let (file, root, below) = (path("closed/file"), path("closed/root"), path("closed/out"));
    std::fs::create_dir_all(&root).unwrap();
    std::fs::write(&file, "x").unwrap();
    std::fs::write(&list, "x").unwrap();
    for path in [&list, &closed] {
        std::fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }
    let mut faults = Vec::new();
    for arguments in [
        &["copy", &file, &out][..],
        &["copy", "--files-from", &list, "/usr", &out],
        &["put", "--files-from", &list, "/usr", "s3://bucket/prefix"],
        &["get", "--files-from", &list, "-o", &out, "s3://bucket/prefix/"],
        &["get", "-o", &below, "URI:LIT:krugkidfnzsc4"],
        &["install", "--root", &root, "hello"],
        &["mirror", "--config", &list],
        &["check", &closed],
        &["convert", &list],
    ] {
        let output = harness::as_another().args(arguments).env("HOME", "/nonexistent").output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let hint = "\nhint: run as a user who has access to it, or change its permissions\n";
        if output.status.code() != Some(7) || !said.contains(hint) || said.matches("hint: ").count() != 1 {
            faults.push(format!("{arguments:?}: {:?}: {said}", output.status.code()));
        }
    }
    for path in [&closed, &list] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn settings_are_converted_into_a_directory_that_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let (list, output) = (directory.path().join("mirror.list"), directory.path().join("etc/fullbore/mirror.toml"));
    std::fs::write(&list, "deb http://archive.example.org/debian trixie main\n").unwrap();
    let convert = || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.arg("convert").arg(&list).arg("-o").arg(&output).output().unwrap()
    };
    let first = convert();
    assert_eq!(first.status.code(), Some(0), "{}", String::from_utf8_lossy(&first.stderr));
    assert!(std::fs::read_to_string(&output).unwrap().contains("http://archive.example.org/debian"));
    assert_eq!(convert().status.code(), Some(1), "an existing file stays");
}

/// Nothing is listening at the address: a command that uses the variable's flag, or refuses it, ends with another code.
#[test]
fn a_variable_of_another_kind_of_store_is_no_mistake() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (file, node, archive) = (path("file"), path("node"), path("archive"));
    std::fs::write(&file, "content").unwrap();
    std::fs::create_dir(&archive).unwrap();
    let store = ["--endpoint", "http://127.0.0.1:9"];
    let credentials = [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "y")];
    let grid = [("FULLBORE_NODE", node.as_str()), ("FULLBORE_ENCODING", "1,1,1")];
    let bucket = [("FULLBORE_ENDPOINT", "http://127.0.0.1:9"), ("FULLBORE_PROFILE", "x")];
    for (variables, words) in [
        (grid, [&["put", &file, "s3://bucket/x"][..], &store].concat()),
        (grid, [&["check", "s3://bucket/x"][..], &store].concat()),
        (grid, vec!["check", &archive]),
        (bucket, vec!["put", "--dry-run", "--convergence", "aaaa", &file]),
        (bucket, vec!["get", "URI:LIT:krugkidfnzsc4"]),
        (bucket, vec!["check", &archive]),
        (bucket, vec!["check", "--servers", "/nonexistent", "URI:LIT:krugkidfnzsc4"]),
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(&words).envs(variables).envs(credentials).env("HOME", directory.path());
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!said.contains(" is for ") && !said.contains("are given"), "{words:?}: {said}");
    }
    // On the command line, it is one.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore"));
    let output = command.args(["put", "--node", &node, &file, "s3://bucket/x"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("--node is for Tahoe-LAFS grids"));
}
