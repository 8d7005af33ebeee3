//! The real APT with fullbore's methods, over archives with the oddities of real ones: it gets what it gets with its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "odd_archives/client.rs"]
mod client;

use std::collections::BTreeSet;

use client::{Served, apt_for, assert_no_differences, download, serve};
use fullbore_testkit::odd_archives::{self, OddArchive};
use harness::apt::{Apt, FULLBORE};

/// The SHA-256 is right and the SHA-512 beside it is not: APT checks both, fullbore takes the file by its SHA-256.
const DIFFERENT: &[&str] = &["hash-sha512-wrong"];

/// How an update ended, and the packages that APT gets by it.
#[derive(Debug, PartialEq, Eq)]
struct Got {
    code: Option<i32>,
    packages: BTreeSet<String>,
}

fn got(apt: &Apt, names: &BTreeSet<String>) -> (Got, String) {
    let updated = apt.update(&[]);
    let mut text = updated.text;
    let packages = download(apt, names, &mut text);
    (Got { code: updated.code, packages }, text)
}

/// What differs, if anything does.
fn difference(archive: &OddArchive) -> Option<String> {
    let Served { directory, server, key } = serve(archive);
    let at = |name: &str| directory.path().join(name);
    let names = archive.names();
    let (theirs, their_text) = got(&apt_for(&at("apt"), archive, &server.url(), &key), &names);
    let ours = apt_for(&at("ours"), archive, &server.url(), &key);
    let ours = ours.option("Dir::Bin::Methods::http", FULLBORE).option("Dir::Bin::Methods::rred", FULLBORE);
    let (ours, our_text) = got(&ours, &names);
    (ours != theirs).then(|| {
        format!("{}: {theirs:?} with APT's methods, {ours:?} with ours\n{their_text}\n---\n{our_text}", archive.name)
    })
}

#[test]
fn apt_gets_with_our_methods_what_it_gets_with_its_own() {
    let mut archives = odd_archives::all();
    archives.retain(|archive| !DIFFERENT.contains(&archive.name));
    assert_no_differences(&archives, |archive| difference(archive).into_iter().collect());
}
