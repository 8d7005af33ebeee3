//! `fullbore mirror` and `check` in directories that are not as the last run left them: links of others, a state
//! that is lost or older than the tree, what a killed run began.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use fullbore_testkit::archive::{Archive, FileKind};
use fullbore_testkit::faults::{self, SmallDisk};
use fullbore_testkit::server::{Fault, FaultRule, PathMatch, Server};
use harness::{Mirror, own_archive, verified};

const IMAGES: &str = "dists/trixie/main/installer-amd64";

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

/// What was asked for, but signed and trace files.
fn fetched(server: &Server) -> Vec<String> {
    let signed = ["/InRelease", "/Release", "/Release.gpg"];
    let paths = server.take_log().into_iter().filter(|entry| entry.method == "GET").map(|entry| entry.path);
    paths.filter(|path| !signed.iter().any(|name| path.ends_with(name)) && !path.contains("/project/trace/")).collect()
}

/// Everything of this state is in the mirror, and `check` says so.
#[track_caller]
fn complete(mirror: &Mirror, archive: &Archive, state: usize) {
    verified(&mirror.to, archive, state);
    mirror.check(&[]).exits(0).prints("all as signed.");
}

/// A tree as rsync brings it: the installer of the day is a directory, `current` a link to it.
fn rsynced(archive: &Archive) -> Mirror {
    let mirror = Mirror::new(archive);
    copy(&archive.state(0).root, &mirror.to);
    let images = mirror.to.join(IMAGES);
    std::fs::rename(images.join("current"), images.join("20250615")).unwrap();
    symlink("20250615", images.join("current")).unwrap();
    mirror
}

#[test]
fn a_link_to_a_directory_is_adopted_and_replaced() {
    let (_directory, archive) = own_archive(|builder| builder.installer(true).states(3));
    let mirror = rsynced(&archive);
    let mirrored = |path: &str| mirror.to.join(IMAGES).join(path);
    mirror.check(&[]).exits(0).prints("all as signed.");
    let server = Server::start(&archive.state(0).root).unwrap();
    let dated =
        || harness::tree(&mirror.to).into_iter().filter(|(path, _)| path.contains("/20250615/")).collect::<Vec<_>>();
    let before = dated();
    assert!(before.len() > 2, "{before:?}");
    mirror.run_with(&[&server], &["--dry-run"]).exits(0);
    assert!(mirrored("current").is_symlink());
    assert!(fetched(&server).iter().all(|path| path.contains("/by-hash/")), "a dry run reads indexes, no images");
    mirror.run(&[&server]).exits(0);
    assert_eq!(fetched(&server), [""; 0]);
    assert!(!mirrored("current").is_symlink());
    complete(&mirror, &archive, 0);
    // The next installer goes to its own directory: what the link led to is nobody's but its owner's.
    server.switch_root(&archive.state(2).root);
    mirror.run(&[&server]).exits(0);
    complete(&mirror, &archive, 2);
    assert_eq!(before, dated());
}

#[test]
fn a_link_that_leads_outside_is_not_followed() {
    let (_directory, archive) = own_archive(|builder| builder.installer(true).states(1));
    let mirror = rsynced(&archive);
    let outside = mirror.to.with_extension("outside");
    std::fs::rename(mirror.to.join(IMAGES).join("20250615"), &outside).unwrap();
    let link = mirror.to.join(IMAGES).join("current");
    std::fs::remove_file(&link).unwrap();
    symlink(&outside, &link).unwrap();
    let server = Server::start(&archive.state(0).root).unwrap();
    mirror.run(&[&server]).exits(0);
    assert!(fetched(&server).iter().all(|path| path.contains("/current/images/")));
    complete(&mirror, &archive, 0);
    assert!(outside.join("images/SHA256SUMS").exists() && !link.is_symlink());
}

#[test]
fn a_state_older_than_the_tree_is_noticed() {
    let (_directory, archive) = own_archive(|builder| builder.installer(true).states(3).churn(0.5));
    let server = Server::start(&archive.state(1).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    let own = mirror.to.join(".fullbore");
    let old = mirror.to.with_extension("old");
    copy(&own, &old);
    server.switch_root(&archive.state(2).root);
    mirror.run(&[&server]).exits(0);
    let before = mirror.tree();
    // The archive of the old state is no way back.
    std::fs::remove_dir_all(&own).unwrap();
    copy(&old, &own);
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(5).says("older than the one mirrored");
    assert_eq!(before, mirror.tree());
    // A file of both states that is gone since: the old state thinks it is there.
    let both = archive.state(1).select(|file| file.kind == FileKind::Deb);
    let now = archive.state(2).select(|file| file.kind == FileKind::Deb);
    let gone = now.keys().find(|path| both.contains_key(*path)).unwrap();
    std::fs::remove_file(mirror.to.join(gone)).unwrap();
    std::fs::remove_dir_all(&own).unwrap();
    copy(&old, &own);
    server.switch_root(&archive.state(2).root);
    server.take_log();
    let ran = mirror.run(&[&server]).exits(0).says("the Release on disk is not the recorded one");
    assert_eq!(fetched(&server), [format!("/{gone}")], "{}", ran.stderr);
    assert!(mirror.tree().keys().eq(before.keys()));
    complete(&mirror, &archive, 2);
    // It is the state of this tree now.
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

#[test]
fn what_a_killed_run_began_and_nobody_wants_goes() {
    let (_directory, archive) = own_archive(|builder| builder.churn(0.9));
    let next = archive.state(1).select(|_| true);
    let is_plain = |path: &str| path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/._-".contains(&byte));
    let first = archive.state(0).select(|file| file.suite == "trixie" && file.size < 100_000 && is_plain(&file.path));
    let path = *first.keys().find(|path| !next.contains_key(*path)).unwrap();
    let stall = FaultRule::always(PathMatch::Exact(format!("/{path}")), Fault::Stall);
    let server = Server::builder(&archive.state(0).root).fault(stall).start().unwrap();
    let mirror = Mirror::new(&archive);
    let (directory, name) = path.rsplit_once('/').unwrap();
    let part = mirror.to.join(directory).join(format!(".{name}.part"));
    let killed = faults::kill_when(&mut mirror.command(&[&server], &[]), || part.exists()).unwrap();
    assert!(killed.finished.is_none() && part.exists(), "{}", killed.said);
    server.change(|behaviour| behaviour.faults.clear());
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(0);
    assert!(!part.exists());
    verified(&mirror.to, &archive, 1);
}

/// Room for the whole of a large file is reserved when it begins: a run that goes on needs no more.
#[test]
fn a_run_goes_on_where_there_is_just_room() {
    assert!(
        faults::can_mount(),
        "no small disk can be mounted: run as root (script/test does), or allow user namespaces"
    );
    let (_directory, archive) =
        own_archive(|builder| builder.states(1).pool_bytes(24_000_000).largest_file_bytes(12_000_000));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    let on = |disk: &SmallDisk, from: &Server| {
        let (to, inner) = (mirror.to.display().to_string(), disk.inner_path().join("m").display().to_string());
        let mut command = disk.command(env!("CARGO_BIN_EXE_fullbore"));
        let arguments = mirror.arguments(&[from], &[]);
        command.args(arguments.into_iter().map(|text| if text == to { inner.clone() } else { text }));
        mirror.finish(command)
    };
    // What the run needs is what it is refused with.
    let small = SmallDisk::new(8 << 20, 0).unwrap();
    let refused = on(&small, &server).exits(7);
    let needed = refused.stderr.split("the run needs ").nth(1).unwrap().split(',').next().unwrap().to_owned();
    let (number, unit) = needed.split_once(' ').unwrap();
    assert_eq!(unit, "MB", "{needed}");
    let needed = (number.parse::<f64>().unwrap() * 1e6) as u64;
    let disk = SmallDisk::new(needed + (1 << 20), 0).unwrap();
    let dying =
        Server::builder(&archive.state(0).root).behaviour(|b| b.die_after_bytes = Some(3_000_000)).start().unwrap();
    let ran = on(&disk, &dying);
    assert!(ran.code != Some(0) && ran.code != Some(7), "{ran:?}");
    on(&disk, &server).exits(0);
    verified(&disk.path().join("m"), &archive, 0);
}
