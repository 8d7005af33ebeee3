//! `fullbore check` as people use it: what it finds, mends and says.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use fullbore_testkit::archive::{Archive, FileKind};
use fullbore_testkit::faults;
use fullbore_testkit::server::Server;
use harness::{Mirror, Ran, common, own_archive, stranger, tree, verified};

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
    std::fs::write(mirror.to.join("pool/extra"), "x").unwrap();
    mirror.check(&[]).exits(4).says("1 file is not as signed").says("1 file (1 B) is named by no signed index");
    std::fs::remove_file(mirror.to.join(gone)).unwrap();

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
fn each_command_writes_its_trace() {
    let (mirror, server) = mirrored(common());
    let trace = mirror.to.with_file_name("trace.json");
    let flag = ["--trace", trace.to_str().unwrap()];
    let written = || {
        let trace: serde_json::Value = serde_json::from_slice(&std::fs::read(&trace).unwrap()).unwrap();
        std::fs::remove_file(mirror.to.with_file_name("trace.json")).unwrap();
        assert!(!trace["traceEvents"].as_array().unwrap().is_empty());
    };
    mirror.check(&flag).exits(0);
    written();
    mirror.run_with(&[&server], &flag).exits(0);
    written();
    // One that cannot be written is no reason to be silent about the run.
    std::fs::create_dir(&trace).unwrap();
    mirror.run_with(&[&server], &flag).exits(7).says("trace.json");
    let other = Mirror::new(common()).suite("none");
    other.run_with(&[&server], &flag).exits(3).says("none: no mirror has its Release").says("trace.json");
}

#[test]
fn both_names_of_a_wrong_index_are_mended() {
    let (mirror, _server) = mirrored(common());
    let index = "dists/trixie/main/binary-amd64/Packages.xz";
    faults::flip_bit(&mirror.to.join(index), 10).unwrap();
    let found = mirror.check(&["--repair"]).exits(0);
    assert_eq!(found.number("totals.files"), 2, "{}", found.stdout);
    mirror.check(&[]).exits(0).prints("all as signed.");
    verified(&mirror.to, common(), 0);
}

/// The archive has gone on, and has the index by its hash only.
#[test]
fn an_index_of_an_older_state_is_mended() {
    let (_directory, archive) = own_archive(|builder| builder.churn(1.0));
    let (mirror, server) = mirrored(&archive);
    server.switch_root(&archive.state(1).root);
    let directory = mirror.to.join("dists/trixie/main/binary-amd64");
    let index = directory.join("Packages.xz");
    // Its other name has it.
    std::fs::remove_file(&index).unwrap();
    server.take_log();
    mirror.check(&["--repair"]).exits(0);
    assert!(server.take_log().is_empty(), "nothing is fetched that is here");
    verified(&mirror.to, &archive, 0);
    // No name has it, nor has the store: they are one file.
    faults::flip_bit(&index, 10).unwrap();
    mirror.check(&["--repair"]).exits(0);
    let asked: Vec<String> = server.take_log().into_iter().map(|entry| entry.path).collect();
    assert!(asked.len() == 1 && asked[0].contains("/by-hash/SHA256/"), "{asked:?}");
    verified(&mirror.to, &archive, 0);
}

#[test]
fn the_link_of_a_suite_is_part_of_the_mirror() {
    let (mirror, server) = mirrored(common());
    let link = mirror.to.join("dists/stable");
    let says = || std::fs::read_link(&link).ok().map(|target| target.display().to_string());
    assert_eq!(says().as_deref(), Some("trixie"), "the test needs a link");
    std::fs::remove_file(&link).unwrap();
    mirror.check(&[]).exits(4).says("dists/stable: no symbolic link to trixie").says("--repair");
    mirror.check(&["--repair"]).exits(0);
    assert_eq!(says().as_deref(), Some("trixie"));
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("nowhere", &link).unwrap();
    mirror.check(&[]).exits(4).says("dists/stable: links to nowhere instead of trixie");
    mirror.run(&[&server]).exits(0).says("the published dists/stable was changed; it is restored");
    assert_eq!(says().as_deref(), Some("trixie"));
    let again = mirror.run(&[&server]).exits(0);
    assert!(!again.stderr.contains("it is restored"), "{}", again.stderr);
}

#[test]
fn what_stands_beside_the_inrelease_must_say_the_same() {
    let (mirror, server) = mirrored(common());
    let (release, signature) = ("dists/trixie/Release", "dists/trixie/Release.gpg");
    let put_right = |name: &str| {
        mirror.run(&[&server]).exits(0).says(&format!("the published {name} was changed; it is restored"));
        mirror.check(&[]).exits(0).prints("all as signed.");
    };
    // A hard link to the store: the altered one must not change what lies there.
    let text = std::fs::read_to_string(mirror.to.join(release)).unwrap();
    std::fs::remove_file(mirror.to.join(release)).unwrap();
    std::fs::write(mirror.to.join(release), text.replacen("Suite: stable", "Suite: st4ble", 1)).unwrap();
    let found = mirror.check(&[]).exits(4).says("dists/trixie/Release: says something else than the signed InRelease");
    let found = found.says("hint: run `fullbore mirror` to repair the signed files");
    assert!(!found.stderr.contains("--repair"), "{}", found.stderr);
    put_right("Release");
    std::fs::remove_file(mirror.to.join(signature)).unwrap();
    mirror.check(&[]).exits(4).says("dists/trixie/Release.gpg: missing");
    put_right("Release.gpg");
}

#[test]
fn what_came_unsigned_is_checked_without_a_signature() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let keyring = mirror.to.with_extension("gpg");
    std::fs::write(&keyring, stranger().public_key().unwrap()).unwrap();
    let sources = mirror.to.with_extension("sources");
    let text = format!("Types: deb\nURIs: {}\nSuites: trixie\nComponents: main\nTrusted: yes\n", server.url());
    std::fs::write(&sources, text).unwrap();
    let mirror = mirror.suite("").no_keyring();
    mirror.run_with(&[], &["--sources", &sources.display().to_string()]).exits(0);
    let mirror = mirror.keyring(keyring);
    let ran = mirror.check(&[]).exits(0).says("warning: dists/trixie: mirrored without a signature");
    ran.prints("all as signed.");
    faults::flip_bit(&mirror.to.join(debs()[0]), 10).unwrap();
    mirror.check(&[]).exits(4).says(debs()[0]);
}

#[test]
fn files_too_many_are_named() {
    let (mirror, _server) = mirrored(common());
    std::fs::write(mirror.to.join("pool/extra"), "x").unwrap();
    mirror.check(&[]).exits(0).says("warning: 1 file (1 B) is named by no signed index: pool/extra");
    std::fs::write(mirror.to.join("pool/second"), "x").unwrap();
    mirror.check(&["-v"]).exits(0).says("2 files").says("named by no signed index: pool/second, 1 B");
    let told = mirror.check(&["--json"]).exits(0);
    assert!(told.stdout.contains(r#""event":"extra","path":"pool/second""#), "{}", told.stdout);
}

#[test]
fn what_no_mirror_has_stays_wrong() {
    let (mirror, server) = mirrored(common());
    std::fs::remove_file(mirror.to.join(debs()[0])).unwrap();
    server.live(fullbore_testkit::server::Life::Refusing);
    let ran = mirror.check(&["--repair"]).exits(4).says(debs()[0]).says("the mirrors lack the remaining files");
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
    mirror.check(&[]).exits(0).says("warning: dists/trixie/main/").says("listed in the Release and missing here");
    std::fs::remove_dir_all(mirror.to.join("dists/trixie/contrib")).unwrap();
    mirror.check(&[]).exits(4).says("missing");
}

#[test]
fn a_suite_that_cannot_be_verified_is_not_called_right() {
    let (mirror, _server) = mirrored(common());
    let keyring = mirror.to.with_extension("gpg");
    std::fs::write(&keyring, stranger().public_key().unwrap()).unwrap();
    let ran = mirror.keyring(keyring).check(&[]).exits(4).says("dists/trixie: ");
    let ran = ran.says("hint: pass the archive's keyring with --keyring");
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
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o0)).unwrap();
    let mut command = harness::as_another();
    command.arg("check").arg(&mirror.to).arg("--keyring").arg(&key);
    let ran: Ran = mirror.finish(command);
    let _ = std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o700));
    ran.exits(0).prints("all as signed.").says("warning: cannot");
}

#[test]
fn nothing_is_left_in_a_tree_of_others() {
    let mirror = Mirror::new(common());
    let names = || {
        let names = std::fs::read_dir(&mirror.to).unwrap().map(|entry| entry.unwrap().file_name());
        names.collect::<std::collections::BTreeSet<_>>()
    };
    std::fs::create_dir(&mirror.to).unwrap();
    mirror.check(&[]).exits(1).says("not a Debian archive");
    assert!(names().is_empty());
    std::fs::remove_dir(&mirror.to).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(&common().state(0).root).arg(&mirror.to).status();
    assert!(copied.unwrap().success());
    let before = names();
    mirror.check(&[]).exits(0).prints("all as signed.");
    assert_eq!(names(), before);
    std::fs::remove_file(mirror.to.join(debs()[0])).unwrap();
    mirror.check(&[]).exits(4).says(debs()[0]);
    assert_eq!(names(), before);
}
