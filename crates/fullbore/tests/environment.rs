//! Flags given in the environment, and flags that win over them.

#![allow(clippy::unwrap_used)]

use assert_cmd::Command;

fn fullbore() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.env_clear().arg("mirror");
    command
}

/// What the program says about these variables and flags; none of them names a reachable archive.
fn error(variables: &[(&str, &str)], flags: &[&str]) -> String {
    let output = fullbore().envs(variables.iter().copied()).args(flags).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_flag_may_be_a_variable() {
    let text = error(&[("FULLBORE_FROM", "ftp://a/")], &["--suite", "s", "--to", "x"]);
    assert!(text.contains("ftp://a"), "{text}");
    for on in ["1", "yes", "true"] {
        let text = error(&[("FULLBORE_NO_CLEAN", on), ("FULLBORE_FROM", "ftp://a/")], &["--to", "x", "--suite", "s"]);
        assert!(text.contains("ftp://a"), "{text}");
    }
}

#[test]
fn a_flag_wins_over_its_variable() {
    let text = error(&[("FULLBORE_FROM", "ftp://a/")], &["--from", "ftp://b/", "--suite", "s", "--to", "x"]);
    assert!(text.contains("ftp://b") && !text.contains("ftp://a"), "{text}");
}

#[test]
fn a_variable_wins_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("m.toml");
    std::fs::write(&file, "[mirror.a]\nfrom = 'ftp://file/'\nsuite = 's'\nto = '/x'\n").unwrap();
    let file = file.to_str().unwrap();
    let text = error(&[], &["--config", file]);
    assert!(text.contains("ftp://file") && text.contains("in [mirror.a]"), "{text}");
    let text = error(&[("FULLBORE_FROM", "ftp://variable/")], &["--config", file]);
    assert!(text.contains("ftp://variable"), "{text}");
}

#[test]
fn wrong_values_of_variables_are_named() {
    let text = error(&[("FULLBORE_LIMIT_RATE", "fast")], &[]);
    assert!(text.contains("--limit-rate"), "{text}");
}
