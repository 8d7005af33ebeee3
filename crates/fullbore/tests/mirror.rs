//! `fullbore mirror` as people use it: what it fetches, keeps and says, and how it fails.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::path::PathBuf;
use std::time::Duration;

use fullbore_testkit::archive::FileKind;
use fullbore_testkit::digest::Digest;
use fullbore_testkit::faults;
use fullbore_testkit::server::{Life, Server};
use fullbore_testkit::verify;
use harness::{Mirror, common, lost, own_archive, stranger, verified};

/// A server of state 0 of the common archive, and a mirror of it.
fn mirrored() -> (Mirror, Server) {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, common(), 0);
    server.take_log();
    (mirror, server)
}

#[test]
fn wrong_suite_name() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common()).suite("trixi");
    mirror
        .run(&[&server])
        .exits(3)
        .says("trixi: no mirror has its Release")
        .says("404")
        .says("hint: check the address");
    assert!(mirror.tree().is_empty());
    let inrelease = std::fs::read(common().state(0).root.join("dists/trixie/InRelease")).unwrap();
    let (_directory, other) = own_archive(|builder| builder.states(1));
    let directory = other.state(0).root.join("dists/bookworm");
    std::fs::create_dir(&directory).unwrap();
    std::fs::write(directory.join("InRelease"), inrelease).unwrap();
    let server = Server::start(&other.state(0).root).unwrap();
    let mirror = Mirror::new(common()).suite("bookworm");
    let ran = mirror.run(&[&server]);
    assert!(matches!(ran.code, Some(1 | 4)), "{ran:?}");
    ran.says("asked for suite \"bookworm\"");
}

#[test]
fn no_such_component_or_architecture() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    mirror.run_with(&[&server], &["--component", "mian"]).exits(1).says("mian").says("main");
    mirror.run_with(&[&server], &["--arch", "amd46"]).exits(1).says("amd46").says("amd64");
    assert_eq!(before, mirror.tree());
}

#[test]
fn key_of_somebody_else() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let keyring = mirror.to.with_extension("gpg");
    std::fs::write(&keyring, stranger().public_key().unwrap()).unwrap();
    let mirror = mirror.keyring(keyring);
    mirror.run(&[&server]).exits(4).says("hint: give the archive's keyring with --keyring");
    assert!(mirror.tree().is_empty());
    let mirror = mirror.keyring(PathBuf::from("/nonexistent/key.gpg"));
    mirror.run(&[&server]).exits(1).says("/nonexistent/key.gpg");
}

#[test]
fn all_mirrors_dead() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    let other = Server::start(&common().state(0).root).unwrap();
    server.live(Life::Refusing);
    other.live(Life::Refusing);
    mirror.run(&[&server, &other]).exits(3).says(&server.url()).says(&other.url()).says("hint:");
    assert_eq!(before, mirror.tree());
}

#[test]
fn one_mirror_dies_in_mid_run() {
    let good = Server::start(&common().state(0).root).unwrap();
    let dying =
        Server::builder(&common().state(0).root).behaviour(|b| b.die_after_bytes = Some(20_000)).start().unwrap();
    let mirror = Mirror::new(common());
    mirror.run(&[&good, &dying]).exits(0);
    verified(&mirror.to, common(), 0);
    // The origin itself: its InRelease came, the rest is with the other.
    let dying =
        Server::builder(&common().state(0).root).behaviour(|b| b.die_after_bytes = Some(20_000)).start().unwrap();
    let mirror = Mirror::new(common());
    let ran = mirror.run(&[&dying, &good]).exits(0);
    assert!(ran.number("totals.files") > 10);
}

#[test]
fn permission_denied() {
    assert!(faults::can_mount(), "a read-only destination is a mount: run as root, or allow user namespaces");
    let server = Server::start(&common().state(0).root).unwrap();
    let disk = faults::SmallDisk::new(8 << 20, 0).unwrap();
    let remounted = disk.command("mount").args(["-o", "remount,ro"]).arg(disk.inner_path()).status().unwrap();
    assert!(remounted.success());
    let mirror = Mirror::new(common());
    let mut command = disk.command(env!("CARGO_BIN_EXE_fullbore"));
    let to = mirror.to.display().to_string();
    let inner = disk.inner_path().join("m").display().to_string();
    command
        .args(mirror.arguments(&[&server], &[]).into_iter().map(|text| if text == to { inner.clone() } else { text }));
    mirror.finish(command).exits(7).says(&inner).says("ead-only");
    assert_eq!(server.counters().requests, 0, "nothing is asked for when nothing can be written");
}

#[test]
fn nothing_changed() {
    let (mirror, server) = mirrored();
    let (before, connections) = (mirror.tree(), server.counters().connections);
    mirror.run(&[&server]).exits(0);
    let log = server.take_log();
    assert!(log.len() <= 2, "{log:#?}");
    assert!(server.counters().connections - connections <= 1);
    assert_eq!(before, mirror.tree());
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

#[test]
fn dry_run_changes_nothing() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    server.switch_root(&common().state(1).root);
    let ran = mirror.run_with(&[&server], &["--dry-run"]).exits(0);
    assert_eq!(before, mirror.tree());
    assert!(server.take_log().iter().all(|entry| !entry.path.starts_with("/pool/") || entry.method == "HEAD"));
    let planned = ran.number("plan.fetch_files");
    assert!(planned > 0);
    let ran = mirror.run(&[&server]).exits(0);
    assert_eq!(planned, ran.number("plan.fetch_files"), "the dry run planned what the run did");
    verified(&mirror.to, common(), 1);
}

#[test]
fn a_snapshot_stays() {
    let (mirror, server) = mirrored();
    mirror.run_with(&[&server], &["--snapshot", "first"]).exits(0);
    mirror.run_with(&[&server], &["--snapshot", "first"]).exits(1).says("first");
    server.switch_root(&common().state(1).root);
    mirror.run_with(&[&server], &["--keep-generations", "0", "--keep-hours", "0", "--force-delete"]).exits(0);
    verified(&mirror.to, common(), 1);
    let snapshot = mirror.to.join("snapshots/first");
    verified(&snapshot, common(), 0);
    let state = common().state(0);
    let (path, _) = state.select(|file| file.kind == FileKind::Deb).into_iter().next().unwrap();
    assert!(snapshot.join(path).exists());
}

#[test]
fn a_tree_of_another_program_is_adopted() {
    let (mirror, server) = mirrored();
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    mirror.run(&[&server]).exits(0);
    let fetched: Vec<_> = server.take_log().into_iter().filter(|entry| entry.path.starts_with("/pool/")).collect();
    assert!(fetched.is_empty(), "{fetched:#?}");
    verified(&mirror.to, common(), 0);
    // One file of it is wrong: that one is fetched.
    std::fs::remove_dir_all(mirror.to.join(".fullbore")).unwrap();
    let state = common().state(0);
    let (path, _) = state.select(|file| file.kind == FileKind::Deb).into_iter().next().unwrap();
    faults::flip_bit(&mirror.to.join(path), 10).unwrap();
    mirror.run(&[&server]).exits(0);
    let fetched = server.take_log().into_iter().filter(|entry| entry.path.starts_with("/pool/")).count();
    assert_eq!(fetched, 1);
    verified(&mirror.to, common(), 0);
}

#[test]
fn a_killed_run_goes_on_where_it_was() {
    const CONNECTIONS: u64 = 4;
    let (_directory, archive) =
        own_archive(|builder| builder.states(1).pool_bytes(24_000_000).largest_file_bytes(12_000_000));
    let server =
        Server::builder(&archive.state(0).root).behaviour(|b| b.rate_bytes_per_s = Some(8_000_000)).start().unwrap();
    let mirror = Mirror::new(&archive);
    let half = || server.counters().body_bytes > 12_000_000;
    let killed = faults::kill_when(&mut mirror.command(&[&server], &[]), half).unwrap();
    assert!(killed.finished.is_none(), "{}", killed.said);
    let ran = mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 0);
    assert!(ran.number("totals.resumed_bytes") > 0 || ran.number("totals.kept_bytes") > 0);
    let pool: u64 = archive.state(0).select(|_| true).values().map(|file| file.size).sum();
    let kept = ran.number("totals.resumed_bytes") + ran.number("totals.kept_bytes");
    let fetched = ran.number("totals.received_bytes");
    // What the server handed to the kernel before the kill need not have reached the program.
    let again = (fetched + 12_000_000).saturating_sub(pool);
    assert!(again <= (CONNECTIONS + 1) << 20, "{again} bytes came twice; {kept} of {pool} kept, {fetched} fetched");
}

#[test]
fn flat_repository() {
    let (_directory, archive) = own_archive(|builder| builder.states(1).flat(true));
    // As apt's `deb URL/flat ./`: file names are relative to the address, not to the suite.
    let server = Server::start(archive.state(0).root.join("flat")).unwrap();
    let mirror = Mirror::new(&archive).suite("./");
    mirror.run(&[&server]).exits(0);
    let expected = archive.state(0).select(|file| file.suite == "flat");
    assert!(!expected.is_empty());
    for (path, file) in expected {
        let here = mirror.to.join(path.trim_start_matches("flat/"));
        assert_eq!(Digest::of_file(&here).unwrap(), (file.sha256, file.size), "{path}");
    }
    assert!(mirror.to.join("InRelease").exists());
    mirror.run_with(&[&server], &["--changed-exit"]).exits(10);
}

#[test]
fn repository_without_by_hash_and_without_inrelease() {
    let (_directory, archive) = own_archive(|builder| builder.by_hash(false));
    let server = Server::start(&archive.state(0).root).unwrap();
    let mirror = Mirror::new(&archive);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 0);
    archive.forge(1, "trixie").remove_in_release().unwrap();
    server.switch_root(&archive.state(1).root);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, &archive, 1);
    let stale = mirror.to.join("dists/trixie/InRelease");
    assert!(!stale.exists(), "the InRelease of the state before contradicts the new indexes");
}

#[test]
fn index_formats() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    mirror.run_with(&[&server], &["--index-formats", "xz"]).exits(0);
    verified(&mirror.to, common(), 0);
    let tree = mirror.tree();
    assert!(tree.keys().any(|path| path.ends_with("Packages.xz")));
    assert!(!tree.keys().any(|path| path.ends_with(".gz")), "{tree:#?}");
}

#[test]
fn filters() {
    let server = Server::start(&common().state(0).root).unwrap();
    let state = common().state(0);
    let pool = |mirror: &Mirror| -> Vec<String> {
        mirror.tree().into_keys().filter(|path| path.starts_with("pool/")).collect()
    };
    let mirrored = |flags: &[&str]| {
        let mirror = Mirror::new(common());
        mirror.run_with(&[&server], flags).exits(0);
        let all = state.select(|file| file.suite == "trixie");
        let names = pool(&mirror);
        harness::holds(
            &mirror.to,
            &all.into_iter().filter(|(path, _)| names.iter().any(|name| name == path)).collect(),
        );
        names
    };
    let expected = |wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
        state.select(|file| file.suite == "trixie" && wanted(&file.path)).into_keys().map(str::to_owned).collect()
    };
    let is_deb = |path: &str| path.ends_with(".deb");
    assert_eq!(mirrored(&["--include", r"\.deb$"]), expected(&is_deb));
    assert_eq!(mirrored(&["--exclude", r"\.deb$"]), expected(&|path| !is_deb(path)));
    assert_eq!(mirrored(&["--arch", "source"]), expected(&|path| !is_deb(path)));
    assert!(mirrored(&["--section", "no-such-section"]).is_empty());
    let newest = mirrored(&["--newest", "1"]);
    assert!(!newest.is_empty() && newest.len() <= expected(&|_| true).len());
}

#[test]
fn a_client_with_the_previous_inrelease_finds_everything() {
    let (mirror, server) = mirrored();
    let before = mirror.tree();
    server.switch_root(&common().state(1).root);
    mirror.run(&[&server]).exits(0);
    verified(&mirror.to, common(), 1);
    let old = common().state(0);
    harness::holds(&mirror.to, &old.select(|file| file.suite == "trixie"));
    for index in old.indexes.iter().filter(|index| index.present) {
        let directory = mirror.to.join("dists/trixie").join(&index.path).parent().unwrap().join("by-hash/SHA256");
        assert!(directory.join(index.sha256.to_string()).exists(), "{} by its old hash", index.path);
    }
    let lost = lost(&before, &mirror.tree());
    assert!(lost.iter().all(|path| path.starts_with("dists/") && !path.contains("by-hash")), "{lost:#?}");
    let gone = old.select(|file| !common().state(1).files.iter().any(|new| new.path == file.path));
    assert!(!gone.is_empty(), "the test needs a file that only the old state names");
    // With retention over, they go; what the present state names stays.
    mirror
        .run_with(&[&server], &["--keep-generations", "0", "--keep-hours", "0", "--clean-foreign", "--force-delete"])
        .exits(0);
    assert!(verify::files(&mirror.to, &common().state(1).select(|_| true)).is_empty());
}

#[test]
fn json_lines_end_with_the_totals() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let ran = mirror.run_with(&[&server], &["--json"]).exits(0);
    let events: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(events.first().unwrap()["event"], "started");
    let last = events.last().unwrap();
    assert_eq!(last["event"], "summary");
    assert_eq!(last["exit_code"], 0);
    assert_eq!(last["totals"]["written_bytes"], ran.number("totals.written_bytes"));
    assert!(last["verdict"]["limit"].is_string() || last["verdict"].is_object(), "{last:#}");
    assert_eq!(events.iter().filter(|event| event["event"] == "summary").count(), 1);
    // A failure too is one event, and the totals follow.
    server.live(Life::Refusing);
    let ran = mirror.run_with(&[&server], &["--json"]).exits(3);
    let events: Vec<serde_json::Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let error = events.iter().find(|event| event["event"] == "error").unwrap();
    assert_eq!(error["exit_code"], 3);
}

#[test]
fn the_report_page_needs_nothing_else() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let page = mirror.to.with_extension("html");
    let mut arguments = mirror.arguments(&[&server], &[]);
    let place = arguments.iter().position(|text| text == "--report").unwrap() + 1;
    arguments[place] = page.display().to_string();
    let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(arguments);
    mirror.finish(command).exits(0);
    let text = std::fs::read_to_string(page).unwrap();
    assert!(text.to_lowercase().starts_with("<!doctype html>") && text.trim_end().ends_with("</html>"));
    for outside in ["src=\"", "href=\"http", "url(http", "@import", "<link", "<script src", "<iframe"] {
        assert!(!text.contains(outside), "{outside}");
    }
    assert!(text.contains("<svg"));
}

#[test]
fn rate_limit_holds() {
    let server = Server::start(&common().state(0).root).unwrap();
    let mirror = Mirror::new(common());
    let start = std::time::Instant::now();
    let ran = mirror.run_with(&[&server], &["--limit-rate", "200k"]).exits(0);
    let seconds = start.elapsed().as_secs_f64();
    let rate = ran.number("totals.received_bytes") as f64 / seconds;
    // The first burst may be a fifth of a second's worth.
    assert!(rate < 260_000.0, "{rate} bytes/s");
    assert!(start.elapsed() < Duration::from_secs(30));
}
