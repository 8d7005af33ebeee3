//! ARCHITECTURE.md names what is there, walks down through it, and can be read in one sitting.

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
fn the_map_can_be_read_in_one_sitting() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let lines = text.lines().count();
    assert!(lines <= LINES_MAX, "{lines} lines");
}

/// The tables of the page: in each, the names of files in order.
fn tables(text: &str) -> Vec<Vec<&str>> {
    let lines: Vec<&str> = text.lines().collect();
    let tables = lines.split(|line| !line.starts_with('|'));
    tables
        .map(|table| table.iter().flat_map(|row| named(row)).collect())
        .filter(|names: &Vec<_>| !names.is_empty())
        .collect()
}

/// The source that a name means, after `before` in the same table: `http2.rs` stands for a file beside the one before it
/// or, if there is none, for the only one of that name in its crate or in all.
fn meant<'a>(name: &str, before: Option<&str>, sources: &'a [String]) -> &'a str {
    let same: Vec<&String> =
        sources.iter().filter(|source| **source == name || source.ends_with(&format!("/{name}"))).collect();
    let folder = before.map(|before| before.rsplit_once('/').unwrap().0);
    let beside = folder.map(|folder| format!("{folder}/{name}"));
    let in_crate = |source: &str| before.is_some_and(|before| package(before) == package(source));
    let (exact, near) =
        (sources.iter().find(|source| *source == name), same.iter().filter(|source| in_crate(source)).count());
    let found =
        exact.or(same.iter().find(|source| Some(**source) == beside.as_ref()).copied()).or(match (near, same.len()) {
            (1, _) => same.iter().find(|source| in_crate(source)).copied(),
            (0, 1) => same.first().copied(),
            _ => None,
        });
    found.unwrap_or_else(|| panic!("`{name}` after {before:?} may be one of {same:?}"))
}

fn package(source: &str) -> &str {
    source.split('/').next().unwrap()
}

/// Whether a crate uses another one, directly or not, by the manifests.
fn uses(root: &Path, user: &str, used: &str) -> bool {
    let name = if user == "fullbore" { user.to_owned() } else { format!("fullbore-{user}") };
    let manifest = fs::read_to_string(root.join("crates").join(name).join("Cargo.toml")).unwrap();
    let (_, after) = manifest.split_once("\n[dependencies]\n").unwrap();
    let dependencies = after.split("\n[").next().unwrap();
    let mut direct = dependencies.lines().filter_map(|line| line.strip_prefix("fullbore-")?.split(['.', ' ']).next());
    direct.any(|next| next == used || uses(root, next, used))
}

/// What keeps a table from being a walk: a file that is met twice, or a step into a crate that the one before does not use.
fn faults(root: &Path, names: &[&str], sources: &[String]) -> Vec<String> {
    let (mut met, mut faults) = (Vec::new(), Vec::new());
    for name in names {
        let before = met.last().copied();
        let source = meant(name, before, sources);
        if met.contains(&source) {
            faults.push(format!("{source} stands twice"));
        }
        if let Some(before) = before
            && package(before) != package(source)
            && !uses(root, package(before), package(source))
        {
            faults.push(format!(
                "{before} is followed by {source}: {} does not use {}",
                package(before),
                package(source)
            ));
        }
        met.push(source);
    }
    faults
}

#[test]
fn each_table_is_a_walk_down_that_meets_each_file_once() {
    let root = root();
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).unwrap();
    let (sources, tables) = (sources(&root), tables(&text));
    assert!(tables.iter().filter(|names| names.len() > 5).count() >= 8, "{tables:?}");
    let faults: Vec<String> = tables.iter().flat_map(|names| faults(&root, names, &sources)).collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[test]
fn a_table_that_climbs_or_returns_is_found() {
    let (root, sources) = (root(), sources(&root()));
    let found = |names: &[&str]| faults(&root, names, &sources);
    assert!(found(&["fullbore/program.rs", "mirror/mirror.rs", "wire/stream.rs", "engine/landing.rs"]).is_empty());
    let climbs = found(&["engine/durability.rs", "mirror/publish.rs"]);
    assert_eq!(climbs, ["engine/durability.rs is followed by mirror/mirror/publish.rs: engine does not use mirror"]);
    assert_eq!(found(&["engine/landing.rs", "landing/worker.rs", "landing.rs"]), ["engine/landing.rs stands twice"]);
    assert_eq!(found(&["s3/put.rs", "lafs/put.rs"]).len(), 1, "neither uses the other");
}
