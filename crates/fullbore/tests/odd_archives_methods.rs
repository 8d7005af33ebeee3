//! The real APT with fullbore's methods, over archives with the oddities of real ones: it gets what it gets with its own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

#[path = "odd_archives/client.rs"]
mod client;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use client::{apt_for, download};
use fullbore_testkit::odd_archives::{self, OddArchive};
use fullbore_testkit::server::Server;
use harness::apt::{Apt, FULLBORE, passable};
use harness::signer;

/// Archives that are tried at the same time: two processors, and every step waits for processes and sockets.
const WORKERS: usize = 4;

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
    let directory = passable();
    let at = |name: &str| directory.path().join(name);
    archive.write(&at("archive"), &signer()).unwrap();
    let key = at("key.gpg");
    std::fs::write(&key, signer().public_key().unwrap()).unwrap();
    let server = Server::start(at("archive")).unwrap();
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
    let (next, found) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(archive) = archives.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let difference = difference(archive);
                    found.lock().unwrap().extend(difference);
                }
            });
        }
    });
    let found = found.into_inner().unwrap();
    assert!(found.is_empty(), "{} differences\n{}", found.len(), found.join("\n"));
}
