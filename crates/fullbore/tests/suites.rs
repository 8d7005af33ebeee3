//! `fullbore mirror` of several suites in one directory, and of indexes by more than one hash.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use fullbore_testkit::archive::{Archive, SuiteSpec};
use fullbore_testkit::server::{Fault, FaultRule, Life, PathMatch, Server};
use fullbore_testkit::verify;
use harness::{Mirror, Ran, own_archive, verified};

const SOON: [&str; 5] = ["--keep-generations", "0", "--keep-hours", "0", "--force-delete"];

fn two_suites() -> (tempfile::TempDir, Archive) {
    own_archive(|builder| {
        let suites = vec![SuiteSpec::main("trixie", "stable"), SuiteSpec::updates("trixie-updates", "stable-updates")];
        builder.suites(suites).sources(24).churn(0.6)
    })
}

/// Panics unless all of a suite's state is in the mirror.
#[track_caller]
fn has(mirror: &Path, archive: &Archive, suite: &str, state: usize) {
    let state = archive.state(state);
    let files = state.select(|file| file.suite == suite);
    assert!(!files.is_empty());
    let mut problems = verify::suite(mirror, state, suite);
    problems.extend(verify::files(mirror, &files));
    problems.extend(verify::leftovers(mirror));
    assert!(problems.is_empty(), "{suite}: {problems:#?}");
}

#[test]
fn two_suites_of_one_run_are_complete() {
    let (_directory, archive) = two_suites();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive).suite("trixie,trixie-updates");
    for state in [0, 1] {
        server.switch_root(&archive.state(state).root);
        mirror.run(&[&server]).exits(0);
        for suite in ["trixie", "trixie-updates"] {
            has(&mirror.to, &archive, suite, state);
        }
        mirror.check(&[]).exits(0).prints("all as signed.");
    }
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

/// What is mirrored is more than what one run plans, and is told also where there is nothing to plan.
#[test]
fn every_run_tells_what_is_mirrored() {
    let (_directory, archive) = two_suites();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirrored = |ran: &Ran| (ran.number("mirrored.files"), ran.number("mirrored.bytes"));
    let mirror = Mirror::new(&archive).suite("trixie");
    let first = mirrored(&mirror.run(&[&server]).exits(0));
    assert_eq!(mirrored(&mirror.check(&[]).exits(0)), first);
    let mirror = mirror.suite("trixie-updates");
    let second = mirrored(&mirror.run(&[&server]).exits(0));
    assert!(second.0 > first.0 && second.1 > first.1, "{first:?} {second:?}");
    assert_eq!(mirrored(&mirror.check(&[]).exits(0)), second);
    let metrics = mirror.to.with_extension("prom").display().to_string();
    let ran = mirror.run_with(&[&server], &["--changed-exit", "--metrics", &metrics]).exits(10);
    assert_eq!(mirrored(&ran), second);
    let line =
        format!("fullbore_mirrored_files{{mirror=\"{}\",command=\"mirror\"}} {}\n", mirror.to.display(), second.0);
    assert!(std::fs::read_to_string(&metrics).unwrap().contains(&line), "{line}");
    server.live(Life::Refusing);
    assert_eq!(mirrored(&mirror.run(&[&server]).exits(3)), second);
    // What is kept of earlier states does not count.
    server.live(Life::Alive);
    server.switch_root(&archive.state(1).root);
    let mirror = mirror.suite("trixie,trixie-updates");
    let third = mirrored(&mirror.run(&[&server]).exits(0));
    assert_eq!(mirrored(&mirror.check(&[]).exits(0)), third);
}

/// Cleaning after one suite leaves what the other names, of which it knows by the state alone.
#[test]
fn cleaning_after_one_suite_keeps_files_of_the_other() {
    let (_directory, archive) = two_suites();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive).suite("trixie");
    mirror.run(&[&server]).exits(0);
    let mirror = mirror.suite("trixie-updates");
    mirror.run_with(&[&server], &SOON).exits(0);
    has(&mirror.to, &archive, "trixie", 0);
    has(&mirror.to, &archive, "trixie-updates", 0);
    server.switch_root(&archive.state(1).root);
    let mirror = mirror.suite("trixie");
    let deleted = mirror.run_with(&[&server], &SOON).exits(0).number("totals.deleted_files");
    assert!(deleted > 0, "the test needs files that are deleted");
    has(&mirror.to, &archive, "trixie", 1);
    has(&mirror.to, &archive, "trixie-updates", 0);
    let mirror = mirror.suite("trixie-updates");
    mirror.run_with(&[&server], &SOON).exits(0);
    has(&mirror.to, &archive, "trixie", 1);
    has(&mirror.to, &archive, "trixie-updates", 1);
    mirror.check(&[]).exits(0).prints("all as signed.");
}

#[test]
fn an_incomplete_suite_stays_and_the_other_is_published() {
    let (_directory, archive) = two_suites();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive).suite("trixie,trixie-updates");
    mirror.run(&[&server]).exits(0);
    let state = archive.state(1);
    let of = |suite: &str| state.select(|file| file.suite == suite).into_keys().collect::<BTreeSet<_>>();
    let (main, updates) = (of("trixie"), of("trixie-updates"));
    let before = archive.state(0).select(|_| true);
    let only = updates.iter().find(|path| !main.contains(*path) && !before.contains_key(*path));
    let missing = *only.expect("a new file of the one suite");
    server.switch_root(&state.root);
    server.add_fault(FaultRule::always(PathMatch::Exact(format!("/{missing}")), Fault::Status(404)));
    mirror.run_with(&[&server], &SOON).exits(2).says(missing);
    has(&mirror.to, &archive, "trixie", 1);
    has(&mirror.to, &archive, "trixie-updates", 0);
    server.change(|behaviour| behaviour.faults.clear());
    server.take_log();
    mirror.run(&[&server]).exits(0);
    let pool: Vec<String> =
        server.take_log().into_iter().map(|entry| entry.path).filter(|path| path.starts_with("/pool/")).collect();
    assert_eq!(pool, [format!("/{missing}")], "the rest came before");
    has(&mirror.to, &archive, "trixie-updates", 1);
}

/// On release day names go from one codename to the next, and codenames that were published under one are asked for
/// under another.
#[test]
fn names_move_on_release_day() {
    let (_directory, archive) = own_archive(|builder| {
        let suites = [("bookworm", "stable"), ("trixie", "testing"), ("forky", "next")];
        builder.suites(suites.map(|(codename, suite)| SuiteSpec::main(codename, suite)).into()).sources(6).churn(0.5)
    });
    let dists = archive.state(1).root.join("dists");
    for (codename, suite) in [("bookworm", "oldstable"), ("trixie", "stable"), ("forky", "testing")] {
        archive.forge(1, codename).set_field("Suite", suite).unwrap();
        let _ = std::fs::remove_file(dists.join(suite));
        std::os::unix::fs::symlink(codename, dists.join(suite)).unwrap();
    }
    let server = Server::start(&archive.state(0).root).unwrap();
    for (before, after) in [
        ("stable,testing", "stable,testing"),
        ("testing,stable", "oldstable,stable"),
        ("testing", "stable"),
        ("testing,trixie", "testing,trixie"),
    ] {
        server.switch_root(&archive.state(0).root);
        let mirror = Mirror::new(&archive).suite(before);
        mirror.run(&[&server]).exits(0);
        let mirror = mirror.suite(after);
        server.switch_root(&archive.state(1).root);
        mirror.run(&[&server]).exits(0);
        for suite in after.split(',').chain(["trixie"]) {
            let signed = |root: &Path| std::fs::read(root.join("dists").join(suite).join("InRelease")).unwrap();
            assert!(signed(&mirror.to) == signed(&archive.state(1).root), "{before}: {suite}");
        }
        let stable = std::fs::read_link(mirror.to.join("dists/stable")).unwrap();
        assert_eq!(stable.to_str(), Some("trixie"), "{before}");
        mirror.check(&[]).exits(0).prints("all as signed.");
        server.take_log();
        mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
        // What goes by two names is known by the first of them.
        let asked = server.take_log();
        assert!(asked.iter().all(|entry| entry.status == 304 || after.contains(",trixie")), "{after}: {asked:#?}");
    }
}

/// Lists the indexes of a state by SHA-512 as well; gives back path and hash of each that is there.
fn list_sha512(archive: &Archive, state: usize) -> Vec<(String, String)> {
    harness::need("sha512sum", "coreutils");
    let forge = archive.forge(state, "trixie");
    let (state, mut list) = (archive.state(state), Vec::new());
    let mut text = forge.release().unwrap() + "SHA512:\n";
    for index in state.indexes.iter().filter(|index| index.present) {
        let output = Command::new("sha512sum").arg(state.root.join("dists/trixie").join(&index.path)).output().unwrap();
        let hash = String::from_utf8(output.stdout).unwrap().split(' ').next().unwrap().to_owned();
        text.push_str(&format!(" {hash} {} {}\n", index.size, index.path));
        list.push((index.path.clone(), hash));
    }
    forge.set_release(&text).unwrap();
    list
}

/// apt asks for an index by the strongest hash that the Release lists.
#[test]
fn indexes_have_names_by_sha512_where_it_is_listed() {
    let (_directory, archive) = own_archive(|builder| builder.churn(1.0));
    let lists = [0, 1].map(|state| list_sha512(&archive, state));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    let name = |(path, hash): &(String, String)| {
        mirror.to.join("dists/trixie").join(path).with_file_name("by-hash").join("SHA512").join(hash)
    };
    let right = |list: &[(String, String)]| {
        for entry in list {
            let output = Command::new("sha512sum").arg(name(entry)).output().unwrap();
            assert!(output.stdout.starts_with(entry.1.as_bytes()), "{entry:?}: {output:?}");
        }
    };
    mirror.run(&[&server]).exits(0);
    right(&lists[0]);
    let one = name(&lists[0][0]);
    std::fs::remove_file(&one).unwrap();
    mirror.check(&[]).exits(4).says("by-hash/SHA512");
    mirror.check(&["--repair"]).exits(0);
    assert!(one.exists());
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(0);
    lists.iter().for_each(|list| right(list));
    verified(&mirror.to, &archive, 1);
    mirror.run_with(&[&server], &[&SOON[..], &["--exclude", "no-such-file"]].concat()).exits(0);
    right(&lists[1]);
    assert!(!name(&lists[0][0]).exists(), "an index of an older state");
    mirror.check(&[]).exits(0).prints("all as signed.");
}

/// Names the first file of both suites' `Packages` alike, with this content, in both suites of a state.
fn in_place(archive: &Archive, state: usize, suites: &[&str], content: &str) {
    let root = &archive.state(state).root;
    std::fs::create_dir_all(root.join("pool/shared")).unwrap();
    std::fs::write(root.join("pool/shared/same_1_amd64.deb"), content).unwrap();
    let stanza = format!(
        "Package: same\nVersion: 1\nArchitecture: amd64\nMaintainer: M <m@example.org>\n\
         Filename: pool/shared/same_1_amd64.deb\nSize: {}\nSHA256: {}\nDescription: same\n\n",
        content.len(),
        fullbore_testkit::digest::Digest::of(content.as_bytes())
    );
    for suite in suites {
        let forge = archive.forge(state, suite);
        let text = forge.index("main/binary-amd64/Packages").unwrap();
        forge.set_index("main/binary-amd64/Packages", &(stanza.clone() + &text)).unwrap();
    }
}

const BOTH: [&str; 2] = ["trixie", "trixie-updates"];

/// Each suite has a run of its own, and the archive replaces a file of both.
fn replaced_in_place() -> (tempfile::TempDir, Archive, Server, Mirror) {
    let (directory, archive) = two_suites();
    in_place(&archive, 0, &BOTH, "first content");
    in_place(&archive, 1, &BOTH, "second, other content");
    let server = Server::start(&archive.state(0).root).unwrap();
    let mut mirror = Mirror::new(&archive);
    for suite in BOTH {
        mirror = mirror.suite(suite);
        mirror.run(&[&server]).exits(0);
    }
    server.switch_root(&archive.state(1).root);
    (directory, archive, server, mirror)
}

fn shared(mirror: &Mirror) -> String {
    std::fs::read_to_string(mirror.to.join("pool/shared/same_1_amd64.deb")).unwrap()
}

#[test]
fn a_file_replaced_in_place_in_two_suites_is_solved() {
    for (suite, other) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])] {
        let (_directory, archive, server, mirror) = replaced_in_place();
        let mirror = mirror.suite(suite);
        let ran = mirror.run(&[&server]).exits(0);
        ran.says(&format!("pool/shared/same_1_amd64.deb was replaced, and {other} names it as well"));
        assert_eq!(shared(&mirror), "second, other content");
        for suite in BOTH {
            let signed =
                |root: &std::path::Path| std::fs::read(root.join("dists").join(suite).join("InRelease")).unwrap();
            assert!(signed(&mirror.to) == signed(&archive.state(1).root), "{suite}");
        }
        mirror.check(&[]).exits(0).prints("all as signed.");
        // Its own run finds nothing new.
        let before = harness::tree(&mirror.to);
        let mirror = mirror.suite(other);
        assert!(!mirror.run(&[&server]).exits(0).stderr.contains("was replaced"));
        assert!(harness::tree(&mirror.to) == before);
    }
}

/// The run of one suite does not know what the run of the other one selects.
#[test]
fn a_file_replaced_in_place_under_other_settings_names_the_way_out() {
    let (_directory, _archive, server, mut mirror) = replaced_in_place();
    // What is selected, and which Releases are accepted.
    let other_settings = [["--without", "translations"].as_slice(), &["--ignore-valid-until"]];
    for ((suite, other), settings) in [(BOTH[0], BOTH[1]), (BOTH[1], BOTH[0])].into_iter().zip(other_settings) {
        mirror = mirror.suite(suite);
        let ran = mirror.run_with(&[&server], settings).exits(4).says("nothing was published or deleted");
        ran.says(&format!("one run with both suites publishes both: --suite {suite} --suite {other}"));
        assert_eq!(shared(&mirror), "first content", "published indexes still name it");
        mirror.check(&[]).exits(0);
    }
    // The command of the hint.
    let mirror = mirror.suite("");
    mirror.run_with(&[&server], &["--suite", BOTH[0], "--suite", BOTH[1]]).exits(0);
    assert_eq!(shared(&mirror), "second, other content");
    mirror.check(&[]).exits(0).prints("all as signed.");
    for suite in BOTH {
        mirror.run_with(&[&server], &["--suite", suite]).exits(0);
    }
    mirror.check(&[]).exits(0).prints("all as signed.");
}

/// It is taken in, and the conflict stays: its Release in the archive is the old one, or cannot be verified.
#[test]
fn a_suite_that_cannot_be_taken_in_is_said_so() {
    for is_broken in [false, true] {
        let (_directory, archive, server, mirror) = replaced_in_place();
        let [old, new] = [0, 1].map(|state| archive.state(state).root.join("dists/trixie-updates"));
        if is_broken {
            std::fs::write(new.join("InRelease"), "no Release").unwrap();
        } else {
            std::fs::remove_dir_all(&new).unwrap();
            assert!(Command::new("cp").arg("-a").args([&old, &new]).status().unwrap().success());
        }
        let mirror = mirror.suite("trixie");
        let ran = mirror.run(&[&server]).exits(4);
        let ran = ran.says("trixie-updates was added because it names").says("nothing was published");
        assert!(!ran.stderr.contains("one run with both"), "{}", ran.stderr);
        assert_eq!(shared(&mirror), "first content");
        mirror.check(&[]).exits(0);
    }
}

#[test]
fn one_suite_that_still_names_the_old_content_is_said_so() {
    let (_directory, archive, server, mirror) = replaced_in_place();
    // The archive replaces the file and signs one suite alone anew.
    let old = archive.state(0).root.join("dists/trixie-updates");
    let new = archive.state(1).root.join("dists/trixie-updates");
    std::fs::remove_dir_all(&new).unwrap();
    assert!(Command::new("cp").arg("-a").args([&old, &new]).status().unwrap().success());
    let mirror = mirror.suite("trixie,trixie-updates");
    mirror.run(&[&server]).exits(4).says("still names the old content");
    assert_eq!(shared(&mirror), "first content");
    mirror.check(&[]).exits(0);
}

#[test]
fn a_suite_that_is_gone_from_the_tree_names_nothing() {
    let (_directory, _archive, server, mirror) = replaced_in_place();
    std::fs::remove_dir_all(mirror.to.join("dists/trixie-updates")).unwrap();
    let mirror = mirror.suite("trixie");
    mirror.run(&[&server]).exits(0);
    assert_eq!(shared(&mirror), "second, other content");
    mirror.check(&[]).exits(0);
    // It may come back.
    let mirror = mirror.suite("trixie-updates");
    mirror.run(&[&server]).exits(0);
    assert!(mirror.to.join("dists/trixie-updates/InRelease").exists());
    mirror.check(&[]).exits(0).prints("all as signed.");
}
