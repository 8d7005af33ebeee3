//! The parsers on what apt has fetched on this machine: real keys, real indexes.
//! Not part of the normal run, for it needs a Debian system after `apt-get update`:
//! `cargo test -p fullbore-debian --test this_machine -- --ignored --nocapture`

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use fullbore_debian::classify::{IndexKind, classify};
use fullbore_debian::index::{self, IndexError};
use fullbore_debian::keys::KeySource;
use fullbore_debian::release::Release;
use fullbore_debian::signature::Verifier;
use fullbore_debian::sources_list;

const LISTS: &str = "/var/lib/apt/lists";

fn lists(part: &str) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(LISTS)
        .expect("apt's lists")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().contains(part))
        .collect();
    found.sort();
    found
}

#[test]
#[ignore = "needs a Debian system after apt-get update"]
fn releases_verify_and_parse() {
    let scratch = tempfile::tempdir().expect("scratch");
    let keyring = Path::new("/usr/share/keyrings/debian-archive-keyring.gpg");
    let verifier = Verifier::new(scratch.path(), vec![KeySource::File(keyring.to_owned())]);
    for path in lists("_InRelease") {
        let bytes = std::fs::read(&path).expect("readable");
        let signed = verifier.verify_inrelease(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let release = Release::parse(&signed).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let others: Vec<_> = release
            .entries
            .iter()
            .map(|entry| entry.path.as_str())
            .filter(|path| classify(path).kind == IndexKind::Other)
            .collect();
        println!(
            "{}: {} entries, by {} signers, dated {:?} until {:?}, unclassified {others:?}",
            path.display(),
            release.entries.len(),
            signed.signers().len(),
            release.date,
            release.valid_until
        );
        assert!(others.is_empty());
    }
}

#[test]
#[ignore = "needs a Debian system after apt-get update"]
fn packages_parse() {
    for path in lists("_Packages") {
        // apt keeps its lists in any form it likes; its own helper reads them all.
        let mut helper = Command::new("/usr/lib/apt/apt-helper")
            .arg("cat-file")
            .arg(&path)
            .stdout(Stdio::piped())
            .spawn()
            .expect("apt-helper");
        let mut bytes = 0;
        let count = index::packages(helper.stdout.take().expect("piped"), |entry| {
            bytes += entry.size;
            Ok::<_, IndexError>(())
        })
        .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(helper.wait().expect("apt-helper").success());
        println!("{}: {count} packages, {bytes} bytes", path.display());
    }
}

#[test]
#[ignore = "needs a Debian system"]
fn sources_files_parse() {
    for entry in std::fs::read_dir("/etc/apt/sources.list.d").expect("readable") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("readable");
        let sources = match path.extension().and_then(|extension| extension.to_str()) {
            Some("sources") => sources_list::parse_deb822(&text, "amd64"),
            Some("list") => sources_list::parse_one_line(&text, "amd64"),
            _ => continue,
        };
        println!("{}: {:?}", path.display(), sources.unwrap_or_else(|error| panic!("{}: {error}", path.display())));
    }
}
