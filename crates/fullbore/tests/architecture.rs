//! ARCHITECTURE.md names what is there, and can be read in one sitting.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::fs;
use std::path::{Path, PathBuf};

/// A page that a newcomer reads to its end.
const LINES_MAX: usize = 250;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All sources, as `wire/stream.rs` is in the crate fullbore-wire.
fn sources(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for package in fs::read_dir(root.join("crates")).unwrap() {
        let package = package.unwrap();
        let name = package.file_name().into_string().unwrap();
        let short = name.strip_prefix("fullbore-").unwrap_or(&name).to_owned();
        walk(&package.path().join("src"), &short, &mut found);
    }
    found
}

fn walk(directory: &Path, name: &str, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let below = format!("{name}/{}", entry.file_name().into_string().unwrap());
        if entry.file_type().unwrap().is_dir() {
            walk(&entry.path(), &below, found);
        } else {
            found.push(below);
        }
    }
}

/// Names of files between backticks: `wire/stream.rs`.
fn named(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).filter(|name| name.ends_with(".rs")).collect()
}

#[test]
fn every_file_that_is_named_exists() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let sources = sources(&root);
    let names = named(&text);
    assert!(names.len() > 50, "{names:?}");
    let is_there = |name: &&str| {
        let name = name.replace("src/", "");
        sources.iter().any(|source| *source == name || source.ends_with(&format!("/{name}")))
    };
    let missing: Vec<&str> = names.into_iter().filter(|name| !is_there(name)).collect();
    assert!(missing.is_empty(), "ARCHITECTURE.md names files that are not there: {missing:?}");
}

#[test]
fn it_can_be_read_in_one_sitting() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= LINES_MAX, "{lines} lines");
}
