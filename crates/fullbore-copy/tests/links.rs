//! Hard links: which names are one file is the same at both ends, and no copy changes a file that is not in it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use fullbore_copy::options::Options;
use fullbore_copy::session::Event;
use fullbore_copy::wire::Account;
use pair::{Pair, Step, options};
use proptest::prelude::*;
use tempfile::TempDir;

/// A file before it has names: its content, which its time tells as well, and its permissions.
type Inode = (u8, u32);

/// Names that the source has.
const NAMES: [&str; 6] = ["a", "b", "c", "dir/d", "dir/e", "f"];
/// Names that the destination may have besides.
const EXTRAS: [&str; 2] = ["dir/x", "y"];

/// Makes names of these files: which of them, by name.
fn make(root: &Path, inodes: &[Inode], names: &[(&str, usize)]) {
    fs::create_dir_all(root.join("dir")).unwrap();
    let mut firsts: BTreeMap<usize, PathBuf> = BTreeMap::new();
    for (name, number) in names {
        let path = root.join(name);
        if let Some(first) = firsts.get(number) {
            fs::hard_link(first, path).unwrap();
            continue;
        }
        let (content, mode) = inodes[*number];
        fs::write(&path, [content; 100]).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1_000_000 + u64::from(content));
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        firsts.insert(*number, path);
    }
}

/// What is under each name: content, permissions, time.
fn files(root: &Path, names: &[&str]) -> Vec<Option<(Vec<u8>, u32, i64)>> {
    let file = |name: &&str| {
        let status = fs::metadata(root.join(name)).ok()?;
        Some((fs::read(root.join(name)).unwrap(), status.mode() & 0o7777, status.mtime()))
    };
    names.iter().map(file).collect()
}

/// For each name the first one that is the same file.
fn partition(root: &Path, names: &[&str]) -> Vec<usize> {
    let inodes: Vec<u64> = names.iter().map(|name| fs::metadata(root.join(name)).unwrap().ino()).collect();
    inodes.iter().map(|inode| inodes.iter().position(|other| other == inode).unwrap()).collect()
}

fn copy(source: &Path, target: &Path, options: &Options) -> Account {
    let tell = |event: Event| assert!(!matches!(event, Event::Problem(_)), "{event:?}");
    Pair::new(source, target, options).run_and_tell(|_| Step::Pass, &tell).unwrap()
}

fn changes(account: &Account) -> (u64, u64, u64, u64) {
    (account.files, account.made, account.retouched, account.deleted)
}

fn places() -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let [source, target] = ["src", "dst"].map(|name| directory.path().join(name));
    fs::create_dir_all(source.join("dir")).unwrap();
    fs::create_dir_all(target.join("dir")).unwrap();
    (directory, source, target)
}

fn inodes() -> impl Strategy<Value = Vec<Inode>> {
    let inode = (0..2_u8, prop::sample::select(vec![0o644, 0o600]));
    prop::collection::vec(inode, NAMES.len() + EXTRAS.len())
}

fn options_to_try() -> impl Strategy<Value = Options> {
    (any::<bool>(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(hard_links, checksum, delete, verify)| {
        Options { hard_links, checksum, delete, verify, ..options() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_links_become_those_of_the_source_in_one_run(
        (inodes_there, inodes_here) in (inodes(), inodes()),
        there in prop::collection::vec(0..4_usize, NAMES.len()),
        here in prop::collection::vec(0..5_usize, NAMES.len() + EXTRAS.len()),
        missing in 0..64_u32,
        cut in 0..40_usize,
        options in options_to_try(),
    ) {
        let (_directory, source, target) = places();
        let names: Vec<(&str, usize)> = NAMES.into_iter().zip(there).collect();
        make(&source, &inodes_there, &names);
        let names: Vec<(&str, usize)> = NAMES.into_iter().chain(EXTRAS).zip(here).collect();
        let names: Vec<(&str, usize)> =
            names.into_iter().enumerate().filter(|(place, _)| *place > 5 || missing >> place & 1 == 0).map(|(_, name)| name).collect();
        make(&target, &inodes_here, &names);
        let extras = files(&target, &EXTRAS);
        let before = (files(&target, &NAMES), extras.clone());
        let planned = copy(&source, &target, &Options { dry_run: true, ..options.clone() });
        prop_assert_eq!((files(&target, &NAMES), files(&target, &EXTRAS)), before);
        let is_cut = cut < 20;
        if is_cut {
            // The connection breaks somewhere; the next run does the rest.
            let mut left = cut;
            Pair::new(&source, &target, &options).run(|_| {
                left = left.saturating_sub(1);
                if left == 0 { Step::Cut } else { Step::Pass }
            });
        }
        let done = copy(&source, &target, &options);
        prop_assert_eq!(files(&source, &NAMES), files(&target, &NAMES));
        if options.hard_links {
            prop_assert_eq!(partition(&source, &NAMES), partition(&target, &NAMES));
        }
        if !is_cut && !options.checksum {
            prop_assert_eq!(changes(&planned), (0, done.made, done.retouched, done.deleted));
        }
        prop_assert_eq!(files(&target, &EXTRAS), if options.delete { vec![None; EXTRAS.len()] } else { extras });
        let again = copy(&source, &target, &options);
        prop_assert_eq!(changes(&again), (0, 0, 0, 0));
        let ours = fs::read_dir(&target).unwrap().chain(fs::read_dir(target.join("dir")).unwrap());
        prop_assert!(ours.map(|entry| entry.unwrap().file_name()).all(|name| !name.as_encoded_bytes().starts_with(b".")));
    }
}

#[test]
fn names_no_longer_linked_at_the_source_are_separated() {
    for checksum in [false, true] {
        let (_directory, source, target) = places();
        let options = Options { checksum, ..options() };
        make(&source, &[(1, 0o644), (1, 0o600)], &[("a", 0), ("b", 1)]);
        make(&target, &[(1, 0o644)], &[("a", 0), ("b", 0)]);
        let done = copy(&source, &target, &options);
        assert_eq!((done.written_bytes, partition(&target, &["a", "b"])), (0, vec![0, 1]), "{checksum}: {done:?}");
        assert_eq!(files(&source, &["a", "b"]), files(&target, &["a", "b"]));
        assert_eq!(changes(&copy(&source, &target, &options)), (0, 0, 0, 0));
    }
}

#[test]
fn groups_of_links_that_were_dealt_out_anew_are_followed() {
    let (_directory, source, target) = places();
    let four = ["a", "b", "c", "f"];
    make(&source, &[(1, 0o644), (1, 0o644)], &[("a", 0), ("b", 1), ("c", 0), ("f", 1)]);
    make(&target, &[(1, 0o644), (1, 0o644)], &[("a", 0), ("b", 0), ("c", 1), ("f", 1)]);
    copy(&source, &target, &options());
    assert_eq!(partition(&target, &four), [0, 1, 0, 1]);
    // All in one, and back.
    let (_other, one, _) = places();
    make(&one, &[(1, 0o644)], &four.map(|name| (name, 0)));
    copy(&one, &target, &options());
    assert_eq!(partition(&target, &four), [0; 4]);
    copy(&source, &target, &options());
    assert_eq!(partition(&target, &four), [0, 1, 0, 1]);
    assert_eq!(changes(&copy(&source, &target, &options())), (0, 0, 0, 0));
}

#[test]
fn a_file_outside_of_the_copy_keeps_its_attributes() {
    let (directory, source, target) = places();
    make(&source, &[(1, 0o600), (1, 0o755)], &[("a", 0), ("b", 1), ("c", 1)]);
    make(&target, &[(1, 0o644), (1, 0o644)], &[("a", 0), ("b", 1), ("c", 1)]);
    let outside = directory.path().join("backup-of-yesterday");
    fs::hard_link(target.join("a"), &outside).unwrap();
    let before = fs::metadata(target.join("b")).unwrap().ino();
    let done = copy(&source, &target, &options());
    assert_eq!(fs::metadata(&outside).unwrap().mode() & 0o777, 0o644);
    assert_eq!(files(&source, &["a", "b", "c"]), files(&target, &["a", "b", "c"]));
    // All names of this one are in the copy: it is changed in place.
    assert_eq!(fs::metadata(target.join("c")).unwrap().ino(), before);
    assert_eq!(changes(&done), (0, 1, 1, 0));
    // What is right is shared further on: older backups take no more room.
    let kept = directory.path().join("backup-of-today");
    fs::hard_link(target.join("b"), &kept).unwrap();
    assert_eq!(changes(&copy(&source, &target, &options())), (0, 0, 0, 0));
    assert_eq!(fs::metadata(kept).unwrap().ino(), before);
}

#[test]
fn links_and_pipes_that_are_one_here_are_separated_as_well() {
    let (_directory, source, target) = places();
    let pipe = |path: &Path, mode: &str| {
        assert!(std::process::Command::new("mkfifo").args(["-m", mode]).arg(path).status().unwrap().success());
    };
    symlink("to", source.join("a")).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    symlink("to", source.join("b")).unwrap();
    pipe(&source.join("c"), "600");
    pipe(&source.join("f"), "644");
    symlink("to", target.join("a")).unwrap();
    fs::hard_link(target.join("a"), target.join("b")).unwrap();
    pipe(&target.join("c"), "600");
    fs::hard_link(target.join("c"), target.join("f")).unwrap();
    copy(&source, &target, &options());
    let status = |root: &Path, name: &str| fs::symlink_metadata(root.join(name)).unwrap();
    for (one, other) in [("a", "b"), ("c", "f")] {
        assert_ne!(status(&target, one).ino(), status(&target, other).ino());
        for name in [one, other] {
            let of = |root: &Path| (status(root, name).mode(), status(root, name).modified().unwrap());
            assert_eq!(of(&source), of(&target), "{name}");
        }
    }
    assert_eq!(changes(&copy(&source, &target, &options())), (0, 0, 0, 0));
}
