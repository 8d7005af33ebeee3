//! A Release that lists the suite's own signed files: `apt-ftparchive release . > Release` and scripts over
//! `find | sha256sum` write such entries, which tell of an earlier state.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fullbore_testkit::archive::{Archive, SuiteSpec};
use fullbore_testkit::digest::Digest;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::{Mirror, own_archive};

const SIGNED: [&str; 3] = ["Release", "Release.gpg", "InRelease"];
const SOON: [&str; 5] = ["--keep-generations", "0", "--keep-hours", "0", "--force-delete"];

/// Entries that a Release may have of signed files.
fn entries(names: &[&str]) -> String {
    let line = |name: &&str| format!(" {} {:>8} {name}\n", Digest::of(name.as_bytes()), 38);
    names.iter().map(line).collect()
}

fn forge(archive: &Archive, suite: &str, names: &[&str]) {
    let forge = archive.forge(0, suite);
    let text = forge.release().unwrap();
    forge.set_release(&(text + &entries(names))).unwrap();
}

fn signed(root: &Path) -> BTreeMap<&'static str, Vec<u8>> {
    SIGNED.into_iter().filter_map(|name| Some((name, fs::read(root.join(name)).ok()?))).collect()
}

/// Selections after the first run, upstream unchanged.
const CHANGES: [&[&str]; 4] = [&["--without", "contents"], &["--arch", "amd64"], &["--component", "main"], &[]];

#[test]
fn a_release_that_lists_signed_files_keeps_them() {
    let all = [
        "Release",
        "./InRelease",
        "Release.gpg",
        "Release.gz",
        "InRelease.xz",
        "main/InRelease",
        "by-hash/SHA256/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ];
    for (names, has_inrelease) in [(&["Release"][..], true), (&all, true), (&["./Release"], false), (&all, false)] {
        let (_directory, archive) = own_archive(|builder| builder.states(1));
        // The ordinary Release of a component's directory is an entry like others.
        let inner = archive.state(0).root.join("dists/trixie/main/binary-amd64/Release");
        fs::write(&inner, "Architecture: amd64\n").unwrap();
        let text = archive.forge(0, "trixie").release().unwrap();
        let entry = format!(" {} 20 main/binary-amd64/Release\n", Digest::of(b"Architecture: amd64\n"));
        archive.forge(0, "trixie").set_release(&(text + &entry)).unwrap();
        forge(&archive, "trixie", names);
        if !has_inrelease {
            archive.forge(0, "trixie").remove_in_release().unwrap();
        }
        let server = Server::start(&archive.state(0).root).unwrap();
        let upstream = signed(&archive.state(0).root.join("dists/trixie"));
        assert_eq!(upstream.len(), 2 + usize::from(has_inrelease));
        let mirror = Mirror::new(&archive);
        let suite = mirror.to.join("dists/trixie");
        mirror.run(&[&server]).exits(0);
        for change in CHANGES {
            let more = [change, &SOON, &["--clean-foreign"]].concat();
            mirror.run_with(&[&server], &more).exits(0);
            assert!(signed(&suite) == upstream, "{names:?} {change:?}: {:?}", signed(&suite).keys());
            mirror.check(&[]).exits(0);
        }
        assert!(suite.join("main/binary-amd64/Release").exists(), "the ordinary one of a component");
    }
}

#[test]
fn signed_files_lost_to_an_earlier_version_come_back() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    forge(&archive, "trixie", &SIGNED);
    let server = Server::start(&archive.state(0).root).unwrap();
    let upstream = signed(&archive.state(0).root.join("dists/trixie"));
    let mirror = Mirror::new(&archive);
    let suite = mirror.to.join("dists/trixie");
    mirror.run(&[&server]).exits(0);
    for lost in [&["Release"][..], &["Release.gpg"], &["Release", "Release.gpg"], &SIGNED] {
        lost.iter().for_each(|name| fs::remove_file(suite.join(name)).unwrap());
        if suite.join("InRelease").exists() {
            mirror.check(&[]).exits(4);
        }
        mirror.run(&[&server]).exits(0);
        assert!(signed(&suite) == upstream, "{lost:?}");
        mirror.check(&[]).exits(0);
    }
}

/// They are asked for in vain beside an `InRelease` that is not new: what lies here is of that very Release.
#[test]
fn a_busy_host_takes_no_published_signature_away() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let before = signed(&mirror.to.join("dists/trixie"));
    for name in ["Release", "Release.gpg"] {
        server.add_fault(FaultRule::always(PathMatch::Exact(format!("/dists/trixie/{name}")), Fault::Status(404)));
    }
    mirror.run_with(&[&server], &["--without", "contents"]).exits(0);
    assert!(signed(&mirror.to.join("dists/trixie")) == before);
    mirror.check(&[]).exits(0);
}

/// A Release that lists everything below it names the signed files of a suite that lies there.
#[test]
fn a_suite_within_another_keeps_its_signed_files() {
    let (_directory, archive) = own_archive(|builder| {
        builder.states(1).suites(vec![SuiteSpec::main("trixie", "stable"), SuiteSpec::updates("other", "other")])
    });
    let root = &archive.state(0).root;
    fs::rename(root.join("dists/other"), root.join("dists/trixie/inner")).unwrap();
    let names = ["inner/Release", "inner/InRelease", "inner/Release.gpg"];
    forge(&archive, "trixie", &names);
    let server = Server::start(root).unwrap();
    let flat = |mirror: Mirror| mirror.suite("dists/trixie/inner/");
    let mirror = flat(Mirror::new(&archive));
    mirror.run(&[&server]).exits(0);
    let inner = mirror.to.join("dists/trixie/inner");
    let upstream = signed(&root.join("dists/trixie/inner"));
    assert!(signed(&inner) == upstream, "the test needs a suite within a suite");
    let mirror = mirror.suite("trixie");
    for change in CHANGES {
        mirror.run_with(&[&server], &[change, &SOON].concat()).exits(0);
        assert!(signed(&inner) == upstream, "{change:?}");
        mirror.check(&[]).exits(0);
    }
}

/// Such a Release names the indexes of the inner suite, too, as they were before its last Release.
#[test]
fn an_outer_release_takes_no_index_of_an_inner_suite() {
    let (_directory, archive) = own_archive(|builder| {
        builder.states(1).suites(vec![SuiteSpec::main("trixie", "stable"), SuiteSpec::updates("other", "other")])
    });
    let root = &archive.state(0).root;
    fs::rename(root.join("dists/other"), root.join("dists/trixie/inner")).unwrap();
    let indexes = ["xz", "gz"].map(|form| format!("inner/main/binary-amd64/Packages.{form}"));
    let there: Vec<&str> =
        indexes.iter().map(String::as_str).filter(|path| root.join("dists/trixie").join(path).exists()).collect();
    assert!(!there.is_empty(), "the test needs an index of the inner suite");
    forge(&archive, "trixie", &[&there[..], &["inner/Release"]].concat());
    let server = Server::start(root).unwrap();
    let mirror = Mirror::new(&archive).suite("dists/trixie/inner/");
    mirror.run(&[&server]).exits(0);
    let inner = harness::tree(&mirror.to);
    assert!(inner.contains_key(&format!("dists/trixie/{}", there[0])), "{inner:?}");
    let outer = mirror.suite("trixie");
    for change in CHANGES {
        outer.run_with(&[&server], &[change, &SOON, &["--clean-foreign"]].concat()).exits(0);
        let lost = harness::lost(&inner, &harness::tree(&outer.to));
        assert_eq!(lost, <[String; 0]>::default(), "{change:?}");
        outer.check(&[]).exits(0);
    }
    // Where the state of the inner suite is lost, its signed files tell of it.
    fs::remove_dir_all(outer.to.join(".fullbore")).unwrap();
    outer.run_with(&[&server], &["--without", "contents"]).exits(0);
    assert_eq!(harness::lost(&inner, &harness::tree(&outer.to)), <[String; 0]>::default());
    outer.check(&[]).exits(0);
}

/// The Release of a flat repository at the top, made before the archive replaced a file of the pool.
#[test]
fn a_release_over_the_whole_archive_withdraws_no_pool_file() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let root = &archive.state(0).root;
    let pool = archive.state(0).select(|file| file.suite == "trixie" && file.path.ends_with(".deb"));
    let path = *pool.keys().next().unwrap();
    let packages = format!(
        "Package: top\nVersion: 1\nArchitecture: all\nMaintainer: M <m@example.org>\nFilename: ./top.deb\nSize: 3\n\
         SHA256: {}\nDescription: top\n\n",
        Digest::of(b"top")
    );
    fs::write(root.join("top.deb"), "top").unwrap();
    fs::write(root.join("Packages"), &packages).unwrap();
    let entry = format!(" {} {} Packages\n", Digest::of(packages.as_bytes()), packages.len());
    let date = "Date: Sat, 10 Feb 2024 11:07:25 UTC";
    fs::write(root.join("Release"), format!("{date}\nSHA256:\n{entry}{}", entries(&["Release", path]))).unwrap();
    let server = Server::start(root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let before = harness::tree(&mirror.to);
    let list = mirror.to.with_extension("list");
    fs::write(&list, format!("deb [trusted=yes] {} ./\n", server.url())).unwrap();
    let mirror = mirror.suite("").no_keyring();
    for more in [&[][..], &["--without", "contents"]] {
        mirror.run_with(&[], &[&["--sources", list.to_str().unwrap()][..], more, &SOON].concat()).exits(0);
        assert_eq!(harness::lost(&before, &harness::tree(&mirror.to)), <[String; 0]>::default(), "{path}");
    }
    mirror.keyring(archive.key()).check(&[]).exits(0);
}

/// Only the outer suite is mirrored: the inner `Release` is one of its files, and has no signature here.
#[test]
fn a_release_that_an_outer_suite_lists_is_checked_as_its_file() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    let inner = archive.state(0).root.join("dists/trixie/updates/Release");
    fs::create_dir(inner.parent().unwrap()).unwrap();
    fs::write(&inner, "Codename: inner\n").unwrap();
    let text = archive.forge(0, "trixie").release().unwrap();
    let entry = format!(" {} 16 updates/Release\n", Digest::of(b"Codename: inner\n"));
    archive.forge(0, "trixie").set_release(&(text + &entry)).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let here = mirror.to.join("dists/trixie/updates/Release");
    assert!(here.exists(), "the test needs this file in the mirror");
    mirror.check(&[]).exits(0);
    // Its content counts all the same, also where no state tells of it.
    fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    mirror.check(&[]).exits(0);
    fs::remove_file(&here).unwrap();
    fs::write(&here, "Codename: other\n").unwrap();
    mirror.check(&[]).exits(4);
}
