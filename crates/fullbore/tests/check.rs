//! `fullbore check` as people use it: what it finds, mends and says.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fullbore_testkit::archive::{Archive, FileKind};
use fullbore_testkit::faults;
use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::Server;
use harness::{Mirror, Ran, common, need, own_archive, stranger, tree, verified};

fn mirrored(archive: &Archive) -> (Mirror, Server) {
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(archive);
    mirror.run(&[&server]).exits(0);
    (mirror, server)
}

/// Packages of state 0, by their paths.
fn debs() -> Vec<&'static str> {
    common().state(0).select(|file| file.kind == FileKind::Deb).into_keys().collect()
}

#[test]
fn damage_is_found_and_mended() {
    let (mirror, server) = mirrored(common());
    mirror.check(&[]).exits(0).prints("all as signed.");
    let before = tree(&mirror.to);
    let (flipped, gone) = (debs()[0], debs()[1]);
    faults::flip_bit(&mirror.to.join(flipped), 10).unwrap();
    std::fs::remove_file(mirror.to.join(gone)).unwrap();
    std::fs::write(mirror.to.join("pool/extra"), "x").unwrap();

    let found = mirror.check(&[]).exits(4).says("2 files are not as signed").says("--repair");
    for said in [format!("{flipped}: SHA-256"), format!("{gone}: missing")] {
        assert!(found.stderr.contains(&said), "{said:?} in {}", found.stderr);
    }
    assert_eq!((found.number("totals.missing_files"), found.number("totals.files")), (2, 0));
    assert!(!found.stdout.contains("all as signed"), "{}", found.stdout);
    // Nothing is read of a share of nothing; that a file is there, and how long, is seen of all.
    let share = mirror.check(&["--read-data-subset", "0%"]).exits(4);
    assert!(share.stderr.contains(gone) && !share.stderr.contains(flipped), "{}", share.stderr);

    server.take_log();
    let mended = mirror.check(&["--repair", "--json"]).exits(0);
    let events: Vec<serde_json::Value> = mended.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let named = |path: &str| events.iter().any(|event| event["event"] == "repaired" && event["path"] == path);
    assert!(named(flipped) && named(gone), "{}", mended.stdout);
    assert_eq!((mended.number("totals.files"), mended.number("totals.missing_files")), (2, 0));
    assert!(mended.number("totals.received_bytes") > 0);
    assert_eq!(mended.report["summary"]["hosts"][0]["files"], 2, "{}", mended.report["summary"]["hosts"]);
    assert_eq!(server.take_log().len(), 2, "only what was wrong is fetched");
    let after = tree(&mirror.to);
    assert!(before.keys().all(|path| after.contains_key(path)), "nothing else went");
    verified(&mirror.to, common(), 0);
    mirror.check(&[]).exits(0).prints("all as signed.");
}

#[test]
fn what_no_mirror_has_stays_wrong() {
    let (mirror, server) = mirrored(common());
    std::fs::remove_file(mirror.to.join(debs()[0])).unwrap();
    server.live(fullbore_testkit::server::Life::Refusing);
    let ran = mirror.check(&["--repair"]).exits(4).says(debs()[0]).says("could not be had");
    assert!(!ran.stdout.contains("all as signed"), "{}", ran.stdout);
}

#[test]
fn what_the_selection_gave_up_is_not_missed() {
    let (_directory, archive) = own_archive(|builder| builder.components(&["main", "contrib"]).states(1).sources(16));
    let (mirror, server) = mirrored(&archive);
    let narrow = ["--component", "contrib", "--arch", "amd64,all", "--force-delete"];
    mirror.run_with(&[&server], &[&narrow[..], &["--keep-generations", "0", "--keep-hours", "0"]].concat()).exits(0);
    assert!(!mirror.to.join("dists/trixie/main").exists(), "the test needs indexes that are gone");
    server.take_log();
    mirror.check(&["--repair"]).exits(0).prints("all as signed.");
    assert!(server.take_log().is_empty(), "nothing is fetched that nobody wants");
    let wanted = tree(&mirror.to);
    mirror.run_with(&[&server], &narrow).exits(0);
    assert_eq!(wanted, tree(&mirror.to));
}

/// The same while its retention lasts, when the suite goes on.
#[test]
fn what_the_selection_gave_up_may_be_of_an_older_state() {
    let (_directory, archive) = own_archive(|builder| builder.components(&["main", "contrib"]).sources(16).churn(1.0));
    let (mirror, server) = mirrored(&archive);
    let narrow = ["--component", "contrib"];
    mirror.run_with(&[&server], &narrow).exits(0);
    server.switch_root(&archive.state(1).root);
    mirror.run_with(&[&server], &narrow).exits(0);
    assert!(mirror.to.join("dists/trixie/main").exists(), "the test needs indexes of an older state");
    mirror.check(&[]).exits(0).prints("all as signed.");
}

#[test]
fn without_a_state_missing_indexes_are_told_of() {
    let (_directory, archive) = own_archive(|builder| builder.components(&["main", "contrib"]).states(1).sources(16));
    let (mirror, _server) = mirrored(&archive);
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    mirror.check(&[]).exits(0).prints("all as signed.");
    std::fs::remove_dir_all(mirror.to.join("dists/trixie/main")).unwrap();
    mirror.check(&[]).exits(0).says("warning: dists/trixie/main/").says("named by the Release and not here");
    std::fs::remove_dir_all(mirror.to.join("dists/trixie/contrib")).unwrap();
    mirror.check(&[]).exits(4).says("missing");
}

#[test]
fn a_suite_that_cannot_be_verified_is_not_called_right() {
    let (mirror, _server) = mirrored(common());
    let keyring = mirror.to.with_extension("gpg");
    std::fs::write(&keyring, stranger().public_key().unwrap()).unwrap();
    let ran = mirror.keyring(keyring).check(&[]).exits(4).says("dists/trixie: ");
    assert!(!ran.stdout.contains("all as signed"), "{}", ran.stdout);
}

#[test]
fn somebody_else_may_check_a_tree_that_they_may_read() {
    let (mirror, _server) = mirrored(common());
    let everybody = std::fs::Permissions::from_mode(0o755);
    let above = mirror.to.parent().unwrap();
    std::fs::set_permissions(above, everybody).unwrap();
    let own = mirror.to.join(".fullbore");
    let key: PathBuf = above.join("key.gpg");
    std::fs::copy(common().key(), &key).unwrap();
    let mut command = if rustix::process::getuid().is_root() {
        need("setpriv", "util-linux");
        let mut command = clean_command("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_fullbore")]);
        command
    } else {
        std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o0)).unwrap();
        clean_command(env!("CARGO_BIN_EXE_fullbore"))
    };
    command.arg("check").arg(&mirror.to).arg("--keyring").arg(&key);
    let ran: Ran = mirror.finish(command);
    let _ = std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700));
    ran.exits(0).prints("all as signed.").says("warning: cannot");
}
