//! Mirrors: one that is complete, and two whose runs were killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fullbore_testkit::digest::Digest;
use fullbore_testkit::server::{LogEntry, Server};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::Ran;
use crate::log::Log;
use crate::{OTHER_BOOT, SITE, fullbore, plain, ran, this_boot, unpack};

/// A mirror of an older version, and the two states of its archive.
struct OldMirror {
    directory: TempDir,
}

impl OldMirror {
    fn new(mirror: &str) -> OldMirror {
        let directory = tempfile::tempdir().unwrap();
        unpack("archive", &directory.path().join("archive"));
        unpack(mirror, &directory.path().join("mirror"));
        OldMirror { directory }
    }

    fn mirror(&self) -> PathBuf {
        self.directory.path().join("mirror")
    }

    fn state(&self, number: usize) -> PathBuf {
        self.directory.path().join(format!("archive/T{number}"))
    }

    fn key(&self) -> PathBuf {
        self.directory.path().join("archive/key.gpg")
    }

    /// The command that the older version was run by.
    fn run(&self, server: &Server, more: &[&str]) -> Ran {
        let mut command = fullbore();
        command.args(["mirror", "--from", SITE, "--suite", "sid", "--trace-host", "mirror.example", "--to"]);
        command.arg(self.mirror()).arg("--keyring").arg(self.key()).args(more);
        command.env("http_proxy", server.url()).env("APT_CONFIG", "/dev/null");
        ran(&mut command, &self.directory.path().join("report.json"))
    }

    fn check(&self) -> Ran {
        let mut command = fullbore();
        command.arg("check").arg(self.mirror()).arg("--keyring").arg(self.key());
        ran(&mut command, &self.directory.path().join("report.json"))
    }

    /// Panics unless everything of a state is in the mirror, and right, and no temporary is left.
    #[track_caller]
    fn is(&self, number: usize) {
        // The next state's directory has the files of the one before as well, which need not be here.
        let named = named(&self.state(number));
        let is_of_it = |path: &String| match path.split_once("/by-hash/") {
            // A patch has its plain name alone.
            Some((directory, hash)) => !directory.ends_with(".diff") && is_index(&self.state(number), hash),
            None => !path.starts_with("pool/") || named.contains(path),
        };
        for path in files(&self.state(number)).into_iter().filter(is_of_it) {
            let there = fs::read(self.state(number).join(&path)).unwrap();
            assert!(fs::read(self.mirror().join(&path)).is_ok_and(|here| here == there), "{path}");
        }
        let is_left = |path: &String| path.ends_with(".part") || path.contains("Update-in-Progress");
        let left: Vec<_> = files(&self.mirror()).into_iter().filter(is_left).collect();
        assert_eq!(left, [] as [&str; 0]);
        self.check().exits(0);
    }

    /// Files of the pool that are new in the second state, with their sizes.
    fn news(&self) -> BTreeMap<String, u64> {
        let old = files(&self.state(0));
        let new = files(&self.state(1)).into_iter().filter(|path| path.starts_with("pool/") && !old.contains(path));
        new.map(|path| (path.clone(), self.state(1).join(path).metadata().unwrap().len())).collect()
    }
}

/// Whether a state's Release names an index of this hash.
fn is_index(state: &Path, hash: &str) -> bool {
    let hash = hash.rsplit('/').next().unwrap();
    fs::read_to_string(state.join("dists/sid/Release")).unwrap().contains(hash)
}

/// Paths of all files and links.
fn files(root: &Path) -> BTreeSet<String> {
    let (mut found, mut open) = (BTreeSet::new(), vec![root.to_owned()]);
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.symlink_metadata().unwrap().is_dir() {
                open.push(path);
            } else {
                found.insert(path.strip_prefix(root).unwrap().to_str().unwrap().to_owned());
            }
        }
    }
    found
}

/// Every file with its content, and what a write to it would change.
fn all_of(root: &Path) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for path in files(root) {
        let about = root.join(&path).symlink_metadata().unwrap();
        let content = if about.is_symlink() { None } else { Some(Digest::of_file(&root.join(&path)).unwrap().0) };
        let what = format!("{} {} {} {content:?}", about.ino(), about.mtime(), about.mtime_nsec());
        all.insert(path, what);
    }
    // The number of the last process that held it.
    all.remove(".fullbore/lock");
    // Written anew by the first run after a boot.
    all.remove(".fullbore/log");
    all
}

/// The ranges of a file that were asked for.
fn asked(log: &[LogEntry], path: &str, size: u64) -> Vec<Range<u64>> {
    let of_it = log.iter().filter(|entry| entry.path.strip_prefix('/') == Some(path));
    let range = |entry: &LogEntry| match &entry.range {
        None => 0..size,
        Some(text) => {
            let (first, last) = text.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            first.parse().unwrap()..last.parse::<u64>().map_or(size, |last| last + 1)
        }
    };
    of_it.map(range).collect()
}

/// Bytes of a file's content that came.
fn came(log: &[LogEntry], path: &str) -> u64 {
    let of_it = log.iter().filter(|entry| entry.path.strip_prefix('/') == Some(path));
    of_it.map(|entry| entry.body_bytes).sum()
}

#[test]
fn an_unchanged_archive_costs_one_request_and_changes_nothing() {
    let place = OldMirror::new("mirror");
    let server = Server::start(place.state(0)).unwrap();
    let before = all_of(&place.mirror());
    place.run(&server, &["--changed-exit"]).exits(10);
    let log = server.take_log();
    assert_eq!((log.len(), log[0].status, log[0].path.as_str()), (1, 304, "/dists/sid/InRelease"), "{log:?}");
    assert_eq!(all_of(&place.mirror()), before);
    place.is(0);
}

#[test]
fn of_the_next_state_only_what_is_new_is_fetched() {
    let place = OldMirror::new("mirror");
    let server = Server::start(place.state(1)).unwrap();
    let before = all_of(&place.mirror());
    let ran = place.run(&server, &[]).exits(0);
    assert!(!ran.stderr.contains("warning"), "the older version's state is believed: {}", ran.stderr);
    let log = server.take_log();
    for (path, size) in &place.news() {
        assert_eq!(came(&log, path), *size, "{path}");
    }
    let pool = log.iter().filter(|entry| entry.path.starts_with("/pool/"));
    let paths: BTreeSet<String> = pool.map(|entry| entry.path.trim_start_matches('/').to_owned()).collect();
    assert_eq!(paths, place.news().into_keys().collect());
    place.is(1);
    // Clients of the state before have its files for some time, and the snapshot has them for ever.
    let after = all_of(&place.mirror());
    for (path, what) in before.iter().filter(|(path, _)| path.starts_with("pool/") || path.starts_with("snapshots/")) {
        assert_eq!(after.get(path), Some(what), "{path}");
    }
    let inrelease = |root: &Path| fs::read(root.join("dists/sid/InRelease")).unwrap();
    assert_eq!(inrelease(&place.mirror().join("snapshots/first")), inrelease(&place.state(0)));
    // And the state that was written over the older one is as good.
    place.run(&server, &["--changed-exit"]).exits(10);
}

#[test]
fn a_damaged_file_is_found_and_repaired_by_what_the_state_says() {
    let place = OldMirror::new("mirror");
    let server = Server::start(place.state(0)).unwrap();
    let path = files(&place.mirror()).into_iter().find(|path| path.starts_with("pool/")).unwrap();
    let right = fs::read(place.mirror().join(&path)).unwrap();
    // A new file: the snapshot has the other name of the old one.
    fs::remove_file(place.mirror().join(&path)).unwrap();
    fs::write(place.mirror().join(&path), vec![b'x'; right.len()]).unwrap();
    place.check().exits(4);
    let mut command = fullbore();
    command.arg("check").arg(place.mirror()).arg("--repair").arg("--keyring").arg(place.key());
    // Where from, only the state tells.
    command.env("http_proxy", server.url());
    ran(&mut command, &place.directory.path().join("report.json")).exits(0);
    assert_eq!(came(&server.take_log(), &path), right.len() as u64);
    assert!(fs::read(place.mirror().join(&path)).unwrap() == right);
    place.is(0);
}

/// The packages that the indexes of a state name, read without the code under test.
fn named(state: &Path) -> BTreeSet<String> {
    let index = |path: &str| String::from_utf8(plain(&state.join("dists/sid/main").join(path))).unwrap();
    let packages = index("binary-amd64/Packages.xz");
    let mut named: BTreeSet<String> =
        packages.lines().filter_map(|line| line.strip_prefix("Filename: ")).map(str::to_owned).collect();
    for stanza in index("source/Sources.xz").split("\n\n") {
        let Some(directory) = stanza.lines().find_map(|line| line.strip_prefix("Directory: ")) else { continue };
        let files = stanza.lines().skip_while(|line| *line != "Checksums-Sha256:").skip(1);
        let files = files.take_while(|line| line.starts_with(' ')).map(|line| line.rsplit(' ').next().unwrap());
        named.extend(files.map(|name| format!("{directory}/{name}")));
    }
    named
}

/// Makes the older version's last run one of this many seconds ago: the fixture is of any age, and was made by a clock
/// that may be before this one.
fn published_before(mirror: &Path, seconds: i64) {
    let path = mirror.join(".fullbore/state");
    let text = fs::read_to_string(&path).unwrap();
    let mut header: Value = serde_json::from_str(text.split_once('\n').unwrap().1).unwrap();
    let at = jiff::Timestamp::now().as_second() - seconds;
    let later = at - header["suites"][0]["published_at"].as_i64().unwrap();
    header["suites"][0]["published_at"] = at.into();
    header["clean_due"] = (header["clean_due"].as_i64().expect("something is to go") + later).into();
    let lefts = header["standings"].as_array_mut().unwrap().iter_mut().filter_map(|one| one.get_mut("left"));
    for left in lefts.flat_map(|lefts| lefts.as_array_mut().unwrap()) {
        left["at"] = (left["at"].as_i64().unwrap() + later).into();
    }
    let header = header.to_string();
    fs::write(path, format!("fullbore-state 1 {}\n{header}", Digest::of(header.as_bytes()))).unwrap();
}

#[test]
fn files_of_the_state_before_go_when_their_time_is_over() {
    let place = OldMirror::new("mirror-updated");
    let (before, now) = (named(&place.state(0)), named(&place.state(1)));
    let pool = || -> BTreeSet<String> {
        files(&place.mirror()).into_iter().filter(|path| path.starts_with("pool/")).collect()
    };
    assert!(pool() == before.union(&now).cloned().collect() && before != now, "the fixture is in order");
    let server = Server::start(place.state(1)).unwrap();
    let settings = ["--keep-generations", "0", "--keep-hours", "1", "--max-delete", "100%"];
    published_before(&place.mirror(), 3000);
    place.run(&server, &settings).exits(0);
    assert!(pool().is_superset(&before), "it is not over yet");
    published_before(&place.mirror(), 4000);
    server.take_log();
    place.run(&server, &settings).exits(0);
    // Signed files and those that describe the mirror are written anew by every run that changes something.
    let is_small = |path: &str| {
        path.starts_with("/dists/sid/") && path.matches('/').count() == 3 || path.starts_with("/project/trace/")
    };
    let others: Vec<_> = server.take_log().into_iter().filter(|entry| !is_small(&entry.path)).collect();
    assert!(others.is_empty(), "nothing of the archive is fetched for that: {others:?}");
    assert_eq!(pool(), now);
    place.is(1);
}

/// Nothing that was whole is asked for again.
#[track_caller]
fn nothing_whole_came_again(log: &[LogEntry], unfinished: &Log) {
    for path in &unfinished.finished {
        let name = path.strip_prefix(".fullbore/index/").unwrap_or(path);
        let again: Vec<_> = log.iter().filter(|entry| entry.path.ends_with(name)).collect();
        assert!(again.is_empty(), "{path}: {again:?}");
    }
}

/// Goes on with a run that was killed in this boot, to the state of this number.
fn gone_on_with(place: &OldMirror, number: usize) {
    let mut unfinished = Log::of(&place.mirror());
    unfinished.say_it_was_written_in(&this_boot());
    assert!(
        unfinished.finished.iter().filter(|path| path.starts_with("pool/")).count() >= 3,
        "the fixture is in order"
    );
    assert!(unfinished.parts.values().any(|ranges| !ranges.is_empty()), "the fixture is in order");
    let server = Server::start(place.state(number)).unwrap();
    place.run(&server, &[]).exits(0);
    let log = server.take_log();
    nothing_whole_came_again(&log, &unfinished);
    for (path, there) in &unfinished.parts {
        let size = place.state(number).join(path).metadata().unwrap().len();
        let asked = asked(&log, path, size);
        for there in there {
            let again = asked.iter().any(|asked| asked.start < there.end && there.start < asked.end);
            assert!(!again, "{path}: {there:?} was there, {asked:?} was asked for");
        }
        let noted: u64 = there.iter().map(|range| range.end - range.start).sum();
        assert!(noted == size || !asked.is_empty(), "{path}: some of it was missing");
    }
    place.is(number);
}

#[test]
fn an_unfinished_mirror_is_gone_on_with() {
    let place = OldMirror::new("mirror-unfinished");
    assert!(!place.mirror().join("dists/sid/InRelease").exists(), "nothing is published yet");
    gone_on_with(&place, 0);
}

#[test]
fn an_unfinished_update_is_gone_on_with() {
    let place = OldMirror::new("mirror-updating");
    let inrelease = |root: PathBuf| fs::read(root.join("dists/sid/InRelease")).unwrap();
    assert_eq!(inrelease(place.mirror()), inrelease(place.state(0)), "the state before is published");
    gone_on_with(&place, 1);
}

/// The machine went down after the version was changed: nobody knows what of the unsynced reached the disk. Whole files
/// are read and count; of a half one nothing does.
#[test]
fn after_another_boot_whole_files_are_read_and_half_ones_come_again() {
    for (mirror, number) in [("mirror-unfinished", 0), ("mirror-updating", 1)] {
        let place = OldMirror::new(mirror);
        let mut unfinished = Log::of(&place.mirror());
        unfinished.say_it_was_written_in(OTHER_BOOT);
        // One of the whole ones did not.
        let lost = unfinished.finished.iter().rfind(|path| path.starts_with("pool/")).unwrap().clone();
        let size = place.mirror().join(&lost).metadata().unwrap().len();
        fs::write(place.mirror().join(&lost), vec![0; usize::try_from(size).unwrap()]).unwrap();
        unfinished.finished.remove(&lost);
        let server = Server::start(place.state(number)).unwrap();
        place.run(&server, &[]).exits(0);
        let log = server.take_log();
        nothing_whole_came_again(&log, &unfinished);
        for path in unfinished.parts.keys().chain([&lost]) {
            assert_eq!(came(&log, path), place.state(number).join(path).metadata().unwrap().len(), "{path}");
        }
        place.is(number);
    }
}
