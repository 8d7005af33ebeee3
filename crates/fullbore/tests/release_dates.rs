//! A Release that is dated in the future: refused, and replaced where it was published before.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::path::PathBuf;

use fullbore_testkit::archive::Archive;
use fullbore_testkit::server::{Life, Server};
use harness::{Mirror, Ran, own_archive, published};

/// Both states of an archive; the first has a Release of the year 2100.
const FAR: &str = "Fri, 01 Jan 2100 00:00:00 UTC";

fn of_the_future() -> (tempfile::TempDir, Archive) {
    let (directory, archive) = own_archive(|builder| builder);
    archive.forge(0, "trixie").set_field("Date", FAR).unwrap();
    (directory, archive)
}

/// A source of apt's with more lines.
fn sources(mirror: &Mirror, server: &Server, trust: &str, more: &str) -> PathBuf {
    let path = mirror.to.with_extension("sources");
    let text = format!("Types: deb\nURIs: {}\nSuites: trixie\nComponents: main\n{trust}\n{more}", server.url());
    std::fs::write(&path, text).unwrap();
    path
}

fn run_by(mirror: &Mirror, sources: &std::path::Path) -> Ran {
    mirror.run_with(&[], &["--sources", sources.to_str().unwrap()])
}

/// A mirror that has the Release of the future, as an earlier version published it, or a machine whose clock was wrong.
fn published_far(archive: &Archive, server: &Server, trust: &str) -> Mirror {
    let mirror = Mirror::new(archive).suite("").no_keyring();
    run_by(&mirror, &sources(&mirror, server, trust, "Check-Date: no\n")).exits(0);
    mirror
}

fn signed_by(archive: &Archive) -> String {
    format!("Signed-By: {}", archive.key().display())
}

#[test]
fn a_release_of_the_future_is_refused_with_both_clocks() {
    let (_directory, archive) = of_the_future();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    let ran = mirror.run(&[&server]).exits(5).says(FAR).says("this machine's clock says ");
    let ran = ran.says("hint: set this machine's clock right").says("nothing was published");
    let year = jiff::Timestamp::now().to_string()[..4].to_owned();
    assert!(ran.stderr.contains(&year), "{}", ran.stderr);
    assert_eq!(published(&mirror.to, &archive), None);
    // As with one that has expired, no other mirror stands in; where the origin is down, one that is right does.
    let good = Server::start(&archive.state(1).root).unwrap();
    mirror.run(&[&server, &good]).exits(5);
    let dead = Server::start(&archive.state(0).root).unwrap();
    dead.live(Life::Refusing);
    mirror.run(&[&dead, &server, &good]).exits(0).says(&format!("this run uses {}", good.url()));
    assert_eq!(published(&mirror.to, &archive), Some(1));
}

#[test]
fn a_source_says_how_far_ahead_a_release_may_be() {
    let (_directory, archive) = own_archive(|builder| builder);
    let ahead = jiff::Timestamp::now().as_second() + 1800 - archive.state(0).date_unix_s;
    archive.forge(0, "trixie").older_by_s(-ahead).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    for (more, code) in [
        ("", 5),
        ("Date-Max-Future: 60\n", 5),
        ("Date-Max-Future: 3600\n", 0),
        ("Check-Date: yes\n", 5),
        ("Check-Date: no\n", 0),
    ] {
        let mirror = Mirror::new(&archive).suite("").no_keyring();
        let ran = run_by(&mirror, &sources(&mirror, &server, &signed_by(&archive), more));
        assert_eq!(ran.code, Some(code), "{more}: {}", ran.stderr);
    }
}

#[test]
fn a_published_release_of_the_future_is_replaced_with_a_warning() {
    let (_directory, archive) = of_the_future();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = published_far(&archive, &server, &signed_by(&archive));
    assert_eq!(published(&mirror.to, &archive), Some(0));
    // The archive still has it.
    let sources = sources(&mirror, &server, &signed_by(&archive), "");
    run_by(&mirror, &sources).exits(5).says(FAR);
    server.switch_root(&archive.state(1).root);
    run_by(&mirror, &sources).exits(0).says("warning: trixie: the offered Release replaces the mirrored one").says(FAR);
    assert_eq!(published(&mirror.to, &archive), Some(1));
    // What is here now has a right date: nothing older takes its place.
    archive.forge(0, "trixie").set_field("Date", "Sat, 01 Jan 2000 00:00:00 UTC").unwrap();
    server.switch_root(&archive.state(0).root);
    run_by(&mirror, &sources).exits(5).says("older than the one mirrored");
    assert_eq!(published(&mirror.to, &archive), Some(1));
    mirror.keyring(archive.key()).check(&[]).exits(0);
}

/// A state that was lost, a tree of another program: what lies in the directory counts by its signature.
#[test]
fn a_release_of_the_future_without_a_state_is_replaced() {
    let (_directory, archive) = of_the_future();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = published_far(&archive, &server, &signed_by(&archive));
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    server.switch_root(&archive.state(1).root);
    let sources = sources(&mirror, &server, &signed_by(&archive), "");
    run_by(&mirror, &sources).exits(0).says(FAR);
    assert_eq!(published(&mirror.to, &archive), Some(1));
    mirror.keyring(archive.key()).check(&[]).exits(0);
}

#[test]
fn an_unsigned_release_replaces_no_signed_one_of_the_future() {
    let (_directory, archive) = of_the_future();
    let server = Server::start(&archive.state(0).root).unwrap();
    for lose_state in [false, true] {
        server.switch_root(&archive.state(0).root);
        let mirror = published_far(&archive, &server, &signed_by(&archive));
        if lose_state {
            std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
        }
        server.switch_root(&archive.state(1).root);
        let trusted = sources(&mirror, &server, "Trusted: yes", "");
        run_by(&mirror, &trusted).exits(5).says("older than the one mirrored");
        assert_eq!(published(&mirror.to, &archive), Some(0));
    }
    // One that was never signed does not bind.
    server.switch_root(&archive.state(0).root);
    let mirror = published_far(&archive, &server, "Trusted: yes");
    server.switch_root(&archive.state(1).root);
    run_by(&mirror, &sources(&mirror, &server, "Trusted: yes", "")).exits(0).says(FAR);
    assert_eq!(published(&mirror.to, &archive), Some(1));
}

/// Ends before any package is unpacked: the archive need not be one that a root can be made of.
#[test]
fn a_bootstrap_from_a_release_of_the_future_is_exit_5() {
    harness::need("apt-get", "apt");
    let (_directory, archive) = of_the_future();
    let server = Server::start(&archive.state(0).root).unwrap();
    let place = tempfile::tempdir().unwrap();
    for name in ["root.tar", "root.squashfs"] {
        let to = place.path().join(name);
        let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["bootstrap", "--variant", "custom", "--keyring"]).arg(archive.key());
        let output = command.arg("trixie").arg(&to).arg(server.url()).output().unwrap();
        let ran = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(5), "{ran}");
        assert!(ran.contains(FAR) && ran.contains("this machine's clock says "), "{ran}");
        assert!(!to.exists(), "{name}");
    }
}

/// An archive that never expires may say so by the last second of the calendar.
#[test]
fn valid_until_of_the_last_day_is_no_fault() {
    let (_directory, archive) = own_archive(|builder| builder.states(1));
    archive.forge(0, "trixie").set_field("Valid-Until", "Fri, 31 Dec 9999 23:59:59 UTC").unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    mirror.check(&[]).exits(0);
    archive.forge(0, "trixie").set_field("Date", "Fri, 31 Dec 9999 23:59:59 UTC").unwrap();
    Mirror::new(&archive).run(&[&server]).exits(5).says("this machine's clock says ");
}
