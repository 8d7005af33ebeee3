//! What the options of a copy promise, seen from between its ends.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use fullbore_copy::options::{Compress, Options};
use fullbore_copy::session::Event;
use fullbore_copy::wire::{Account, Message, ProblemKind};
use pair::{Pair, Step, equal, options, tree};
use tempfile::TempDir;

/// A source with one of everything, and an empty destination.
fn places(seed: u64) -> (TempDir, PathBuf, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    tree(&source, seed);
    fs::create_dir(&target).unwrap();
    (directory, source, target)
}

/// What went over.
#[derive(Debug, Default)]
struct Sent {
    payload_bytes: usize,
    blocks: BTreeSet<u64>,
    account: Account,
    events: Vec<Event>,
}

fn copy(source: &Path, target: &Path, options: &Options) -> Sent {
    let mut sent = Sent::default();
    let events = Mutex::new(Vec::new());
    let look = |message: &Message| {
        match message {
            Message::Pack(pack) => sent.payload_bytes += pack.payload.bytes().len(),
            Message::Block(block) => {
                sent.payload_bytes += block.payload.bytes().len();
                sent.blocks.insert(block.index);
            }
            _ => {}
        }
        Step::Pass
    };
    let account = Pair::new(source, target, options).run_and_tell(look, &|event| events.lock().unwrap().push(event));
    let events = events.into_inner().unwrap();
    Sent { account: account.expect("the copy came to its end"), events, ..sent }
}

/// Changes one byte and leaves length and time as they were.
fn flip(path: &Path, at: u64) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[!byte[0]], at).unwrap();
    file.set_modified(modified).unwrap();
}

#[test]
fn checksum_finds_what_times_do_not_tell_and_writes_nothing_else() {
    let (_directory, source, target) = places(1);
    copy(&source, &target, &options());
    let checksum = Options { checksum: true, ..options() };
    let sent = copy(&source, &target, &checksum);
    assert_eq!((sent.payload_bytes, sent.account.files), (0, 0), "{sent:?}");
    for (name, at) in [("dir/sub/7", 100), ("big", 2 << 20), ("sparse", 10 << 20)] {
        flip(&target.join(name), at);
    }
    // A time that differs is no reason to write what is the same.
    let exact = fs::File::options().write(true).open(target.join("exact")).unwrap();
    exact.set_modified(std::time::UNIX_EPOCH).unwrap();
    let inode = exact.metadata().unwrap().ino();
    assert_eq!(copy(&source, &target, &options()).account.files, 1, "by time alone only one is seen to differ");
    exact.set_modified(std::time::UNIX_EPOCH).unwrap();
    let planned = copy(&source, &target, &Options { dry_run: true, tell_names: true, ..checksum.clone() });
    let names: BTreeSet<&[u8]> = planned
        .events
        .iter()
        .filter_map(|event| if let Event::Wanted(path) = event { Some(&path[..]) } else { None })
        .collect();
    assert_eq!(names, BTreeSet::from([&b"dir/sub/7"[..], b"big", b"sparse"]));
    assert_eq!(planned.account.wanted_files, 3, "{planned:?}");
    let before = fs::metadata(target.join("exact")).unwrap().ino();
    let sent = copy(&source, &target, &checksum);
    assert_eq!(sent.account.files, 3, "{sent:?}");
    assert_eq!(fs::metadata(target.join("exact")).unwrap().ino(), before);
    assert_ne!(inode, before, "the copy by time has written it");
    equal(&source, &target);
}

#[test]
fn hashes_follow_the_answer_that_announces_them() {
    let (_directory, source, target) = places(4);
    for number in 0..2000 {
        fs::write(source.join(format!("dir/{number}")), [number as u8; 100]).unwrap();
    }
    copy(&source, &target, &options());
    let (mut wanted, mut compared, mut early) = (BTreeSet::new(), 0, Vec::new());
    let look = |message: &Message| {
        match message {
            Message::Answer(answer) => wanted.extend(answer.wanted.iter().map(|wanted| wanted.id)),
            Message::Basis(basis) => {
                early.extend((!wanted.contains(&basis.id)).then_some(basis.id));
                compared += usize::from(basis.last);
            }
            _ => {}
        }
        Step::Pass
    };
    let checksum = Options { checksum: true, ..options() };
    assert!(Pair::new(&source, &target, &checksum).run(look));
    assert_eq!((early, compared >= 2000), (vec![], true), "{compared}");
}

#[test]
fn of_a_big_file_that_changed_only_the_changed_blocks_go_over() {
    let (_directory, source, target) = places(2);
    let big = source.join("big");
    let noise: Vec<u8> = (0..(24_u32 << 20)).map(|place| (place.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&big, &noise).unwrap();
    copy(&source, &target, &options());
    let mut changed = noise;
    changed[5 << 20] ^= 1;
    changed.extend_from_slice(&[7; 1000]);
    fs::write(&big, &changed).unwrap();
    // The sender has to be slower than the comparing, as over a network: it waits for all hashes.
    let sent = copy(&source, &target, &Options { delta: true, ..options() });
    assert!(sent.blocks.contains(&5) && sent.blocks.contains(&24), "{:?}", sent.blocks);
    assert_eq!(sent.account.reused_bytes + sent.payload_bytes as u64, changed.len() as u64);
    equal(&source, &target);
    // Touched, and nothing else: nothing is written if its hashes come in time.
    fs::File::options().write(true).open(&big).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    copy(&source, &target, &Options { delta: true, ..options() });
    equal(&source, &target);
}

#[test]
fn compressed_content_arrives_as_it_was() {
    let (_directory, source, target) = places(3);
    let sent = copy(&source, &target, &Options { compress: Compress::Always, ..options() });
    assert!(sent.payload_bytes as u64 * 4 < sent.account.written_bytes, "{sent:?}");
    equal(&source, &target);
}

#[test]
fn what_is_on_the_destinations_disk_goes_at_the_source_and_nothing_else() {
    let (_directory, source, target) = places(4);
    symlink("big", source.join("link")).unwrap();
    fs::hard_link(source.join("big"), source.join("dir/again")).unwrap();
    // There already: it goes as well.
    copy(&source, &target, &options());
    fs::write(source.join("new"), "new").unwrap();
    let whole = tempfile::tempdir().unwrap();
    copy(&source, whole.path(), &options());
    let removing = Options { remove_source_files: true, ..options() };
    copy(&source, &target, &Options { dry_run: true, ..removing.clone() });
    assert!(source.join("new").exists(), "a dry run removes nothing");
    // Written to between listing and removal: it stays.
    let edited = Mutex::new(false);
    let look = |message: &Message| {
        if matches!(message, Message::Visible { .. }) && !std::mem::replace(&mut *edited.lock().unwrap(), true) {
            fs::write(source.join("dir/medium"), "edited").unwrap();
        }
        Step::Pass
    };
    assert!(Pair::new(&source, &target, &removing).run(look));
    let mut left = Vec::new();
    for directory in [source.clone(), source.join("dir"), source.join("dir/sub")] {
        left.extend(fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| !path.is_dir()));
    }
    assert_eq!(left, [source.join("dir/medium")]);
    equal(whole.path(), &target);
}

#[test]
fn a_dry_run_descends_into_directories_that_replace_files_and_links() {
    let (_directory, source, target) = places(5);
    for name in ["one", "two"] {
        fs::create_dir_all(source.join(name).join("below")).unwrap();
        fs::write(source.join(name).join("below/file"), "x").unwrap();
    }
    copy(&source, &target, &options());
    for name in ["one", "two"] {
        fs::remove_dir_all(target.join(name)).unwrap();
    }
    fs::write(target.join("one"), "a file").unwrap();
    std::os::unix::fs::symlink("dir", target.join("two")).unwrap();
    let planned = copy(&source, &target, &Options { dry_run: true, ..options() });
    assert_eq!((planned.account.wanted_files, planned.account.made), (2, 4), "{planned:?}");
    assert!(!planned.events.iter().any(|event| matches!(event, Event::Problem(_))), "{planned:?}");
    copy(&source, &target, &options());
    equal(&source, &target);
}

#[test]
fn what_was_written_is_read_back() {
    let (_directory, source, target) = places(5);
    let mut total = 0;
    for name in ["big", "exact", "sparse", "dir/medium"] {
        total += fs::metadata(source.join(name)).unwrap().len();
    }
    total += (0..30).map(|number| fs::metadata(source.join(format!("dir/sub/{number}"))).unwrap().len()).sum::<u64>();
    let sent = copy(&source, &target, &Options { verify: true, ..options() });
    assert_eq!(sent.account.verified_bytes, total);
    equal(&source, &target);
}

#[test]
fn a_big_file_that_ends_in_a_hole_and_changes_meanwhile_is_told_of() {
    let (_directory, source, target) = places(6);
    let look = |message: &Message| {
        if matches!(message, Message::Begin) {
            let sparse = fs::File::options().write(true).open(source.join("sparse")).unwrap();
            sparse.set_modified(std::time::UNIX_EPOCH).unwrap();
        }
        Step::Pass
    };
    let changed = Mutex::new(Vec::new());
    let tell = |event: Event| {
        if let Event::Problem(problem) = event {
            changed.lock().unwrap().push((problem.kind, problem.path));
        }
    };
    // One reader: where there are two, one of them may read a block until the other one has seen the hole.
    let alone = Options { threads: 1, ..options() };
    Pair::new(&source, &target, &alone).run_and_tell(look, &tell).unwrap();
    let changed = changed.into_inner().unwrap();
    // Told once, and heard of by the receiver.
    assert_eq!(changed, vec![(ProblemKind::Changed, b"sparse".to_vec()); changed.len()]);
    assert!((1..=2).contains(&changed.len()), "{changed:?}");
}

#[test]
fn a_source_that_is_the_destination_keeps_all_it_has() {
    let (_directory, source, _) = places(6);
    symlink("big", source.join("link")).unwrap();
    fs::hard_link(source.join("big"), source.join("dir/again")).unwrap();
    let copy = tempfile::tempdir().unwrap();
    Pair::new(&source, copy.path(), &options()).run(|_| Step::Pass);
    let removing = Options { remove_source_files: true, ..options() };
    assert!(Pair::new(&source, &source, &removing).run(|_| Step::Pass));
    equal(&source, copy.path());
}

#[test]
fn times_of_whole_seconds_are_no_reason_to_overlook_a_change() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    let set = |path: PathBuf, content: &str, milliseconds: u64| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        let time = std::time::UNIX_EPOCH + std::time::Duration::from_millis(milliseconds);
        fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    };
    for (name, there, here) in [("second", 1_700_000_101_000, 1_700_000_100_000), ("fraction", 5_500, 5_000)] {
        set(source.join(name), "new", there);
        set(target.join(name), "old", here);
    }
    let planned = copy(&source, &target, &Options { dry_run: true, ..options() });
    assert_eq!(planned.account.wanted_files, 2);
    assert_eq!(copy(&source, &target, &options()).account.files, 2);
    equal(&source, &target);
}

#[test]
fn without_permissions_nobody_gets_more_and_programs_stay_programs() {
    use std::os::unix::fs::PermissionsExt as _;
    let (_directory, source, target) = places(7);
    let modes = [("dir/sub/1", 0o600), ("big", 0o600), ("dir/medium", 0o755), ("dir/sub", 0o700), ("dir", 0o755)];
    for (name, mode) in modes {
        fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    copy(&source, &target, &Options { permissions: false, ..options() });
    for (name, mode) in modes {
        let kept = fs::metadata(target.join(name)).unwrap().mode();
        assert_eq!((kept & 0o700, kept & 0o077 & !mode), (mode & 0o700, 0), "{name}: {kept:o}");
    }
    equal(&source, &target);
}

#[test]
fn with_delete_the_leavings_of_torn_copies_go_and_those_of_others_stay() {
    let (_directory, source, target) = places(8);
    copy(&source, &target, &options());
    fs::write(target.join("dir/.gone.fullbore-part"), "x").unwrap();
    fs::create_dir(source.join("other")).unwrap();
    fs::create_dir(target.join("other")).unwrap();
    for name in [".fullbore-copy", ".theirs.fullbore-part"] {
        fs::write(target.join("other").join(name), "x").unwrap();
    }
    copy(&source, &target, &options());
    assert!(target.join("dir/.gone.fullbore-part").exists(), "it may be somebody's");
    copy(&source, &target, &Options { delete: true, ..options() });
    assert!(!target.join("dir/.gone.fullbore-part").exists());
    assert_eq!(fs::read_dir(target.join("other")).unwrap().count(), 2);
}

/// Copies while the source changes at the beginning of the content; gives the problems by path.
fn copy_while(
    source: &Path,
    target: &Path,
    mut change: impl FnMut(&Message) + Send,
) -> BTreeSet<(String, ProblemKind)> {
    let problems = Mutex::new(BTreeSet::new());
    let tell = |event: Event| {
        if let Event::Problem(problem) = event {
            problems.lock().unwrap().insert((String::from_utf8(problem.path).unwrap(), problem.kind));
        }
    };
    let look = |message: &Message| {
        change(message);
        Step::Pass
    };
    Pair::new(source, target, &Options { threads: 1, ..options() }).run_and_tell(look, &tell).unwrap();
    problems.into_inner().unwrap()
}

#[test]
fn files_that_change_before_they_are_read_are_named_and_copied_next_run() {
    let (_directory, source, target) = places(15);
    for name in ["shrinks", "grows", "vanishes"] {
        fs::write(source.join(name), vec![1; 5000]).unwrap();
        fs::write(source.join(format!("big-{name}")), vec![2; 3 << 20]).unwrap();
    }
    let resize = |name: &str, length: u64| {
        let file = fs::File::options().write(true).open(source.join(name)).unwrap();
        file.set_len(length).unwrap();
        file.write_all_at(b"edited", 0).unwrap();
    };
    let problems = copy_while(&source, &target, |message| {
        if matches!(message, Message::Begin) {
            resize("shrinks", 1000);
            resize("big-shrinks", (1 << 20) + 1);
            resize("grows", 9000);
            resize("big-grows", 4 << 20);
            fs::remove_file(source.join("vanishes")).unwrap();
            fs::remove_file(source.join("big-vanishes")).unwrap();
        }
    });
    let expected = ["shrinks", "grows", "vanishes"].into_iter().flat_map(|name| {
        let kind = if name == "vanishes" { ProblemKind::Vanished } else { ProblemKind::Changed };
        [(name.to_owned(), kind), (format!("big-{name}"), kind)]
    });
    assert_eq!(problems, expected.collect());
    let length = |name: &str| fs::metadata(target.join(name)).unwrap().len();
    assert_eq!([length("shrinks"), length("big-shrinks")], [1000, (1 << 20) + 1]);
    assert_eq!([length("grows"), length("big-grows")], [5000, 3 << 20], "as long as they were listed");
    assert!(!target.join("vanishes").exists() && !target.join("big-vanishes").exists());
    copy(&source, &target, &options());
    equal(&source, &target);
}

#[test]
fn a_file_that_shrinks_while_read_is_copied_up_to_its_new_end() {
    let (_directory, source, target) = places(16);
    let path = source.join("huge");
    // More than is on its way between the ends at any time.
    fs::write(&path, vec![3; 80 << 20]).unwrap();
    let end = (75 << 20) + 5;
    let problems = copy_while(&source, &target, |message| {
        if matches!(message, Message::Acknowledge { .. }) && fs::metadata(&path).unwrap().len() > end {
            fs::File::options().write(true).open(&path).unwrap().set_len(end).unwrap();
        }
    });
    assert_eq!(problems, BTreeSet::from([("huge".to_owned(), ProblemKind::Changed)]));
    assert!(fs::read(target.join("huge")).unwrap() == fs::read(&path).unwrap());
    copy(&source, &target, &options());
    equal(&source, &target);
}

/// Makes directories one within the other, as no path could name them; gives the innermost.
fn deep(path: &Path, names: &[String]) -> std::os::fd::OwnedFd {
    use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let mut directory = openat(CWD, path, flags, Mode::empty()).unwrap();
    for name in names {
        mkdirat(&directory, name, Mode::RWXU).unwrap();
        directory = openat(&directory, name, flags, Mode::empty()).unwrap();
    }
    directory
}

#[test]
fn paths_longer_than_the_system_takes_are_problems_of_their_own() {
    use rustix::fs::{Mode, OFlags, openat};
    let (_directory, source, target) = places(17);
    let names: Vec<String> = (0..20).map(|number| format!("{number:0>250}")).collect();
    let make = OFlags::WRONLY | OFlags::CREATE;
    openat(deep(&source, &names), "unreachable", make, Mode::RUSR).unwrap();
    for _ in 0..2 {
        let problems = copy_while(&source, &target, |_| {});
        assert!(!problems.is_empty(), "nothing was said of what cannot be copied");
        assert!(problems.iter().all(|(path, _)| path.len() >= 4000), "other problems than that of the path");
        assert!(fs::read(target.join("big")).unwrap() == fs::read(source.join("big")).unwrap());
    }
    // A name that makes a path too long, where the directory's own is not: it is reached by the directory.
    let (_directory, source, target) = places(18);
    let names: Vec<String> = (0..16).map(|number| format!("{number:0>254}")).collect();
    let name = "x".repeat(200);
    openat(deep(&source, &names), format!("copied-{name}"), make, Mode::RUSR).unwrap();
    openat(deep(&target, &names), format!("extra-{name}"), make, Mode::RUSR).unwrap();
    let deleted = Mutex::new(0);
    let look = |message: &Message| {
        *deleted.lock().unwrap() += u32::from(matches!(message, Message::Deleted { .. }));
        Step::Pass
    };
    let options = Options { delete: true, tell_names: true, ..options() };
    assert!(Pair::new(&source, &target, &options).run(look));
    assert_eq!(deleted.into_inner().unwrap(), 1);
    assert!(Pair::new(&source, &target, &options).run(|_| Step::Pass));
}

#[test]
fn a_disk_with_an_arm_is_read_in_the_order_of_inodes() {
    let (_place, source, target) = places(1);
    fs::create_dir(source.join("many")).unwrap();
    // Names and inodes have opposite orders, and there are several records.
    for number in (0..60_u8).rev() {
        fs::write(source.join(format!("many/{number:02}")), vec![number; 100_000]).unwrap();
    }
    let mut by_inode: Vec<(u64, Vec<u8>)> = fs::read_dir(source.join("many"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.metadata().unwrap().ino(), entry.file_name().into_encoded_bytes()))
        .collect();
    by_inode.sort();
    let (listed, read) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    let options = options();
    let look = |message: &Message| {
        match message {
            Message::List(list) if list.directory == b"many" => {
                let numbered = list.entries.iter().zip(list.first..);
                listed.lock().unwrap().extend(numbered.map(|(entry, id)| (id, entry.name.clone())));
            }
            Message::Pack(pack) => read.lock().unwrap().extend(pack.files.iter().map(|file| file.id)),
            _ => {}
        }
        Step::Pass
    };
    assert!(Pair::new(&source, &target, &options).on_an_arm().run(look));
    let listed = listed.into_inner().unwrap();
    assert!(listed.iter().map(|(_, name)| name).eq(by_inode.iter().map(|(_, name)| name)), "{listed:?}");
    let read: Vec<u64> = read.into_inner().unwrap();
    let of_many = read.into_iter().filter(|id| listed.iter().any(|(listed, _)| listed == id));
    assert!(of_many.eq(listed.iter().map(|(id, _)| *id)), "one reader reads one file after the other");
    equal(&source, &target);
}

#[test]
fn a_change_that_leaves_length_and_time_is_copied_next_run() {
    let (_directory, source, target) = places(17);
    fs::hard_link(source.join("exact"), source.join("dir/exact-as-well")).unwrap();
    let names = ["dir/sub/7", "big", "exact", "dir/medium"];
    let problems = copy_while(&source, &target, |message| {
        if matches!(message, Message::Begin) {
            names.iter().for_each(|name| flip(&source.join(name), 1000));
        }
    });
    let changed = problems.iter().filter(|(_, kind)| *kind == ProblemKind::Changed).count();
    assert_eq!(changed, names.len(), "{problems:?}");
    let planned = copy(&source, &target, &Options { dry_run: true, ..options() });
    assert_eq!(planned.account.wanted_files, names.len() as u64, "the next run does not see them");
    assert_eq!(copy(&source, &target, &options()).account.files, names.len() as u64);
    equal(&source, &target);
}

#[test]
fn a_change_whose_time_is_set_back_after_the_copy_is_copied_next_run() {
    let (_directory, source, target) = places(18);
    let path = source.join("big");
    let time = fs::metadata(&path).unwrap().modified().unwrap();
    let problems = copy_while(&source, &target, |message| {
        if matches!(message, Message::Begin) {
            fs::File::options().write(true).open(&path).unwrap().write_all_at(b"new", 5).unwrap();
        }
    });
    assert_eq!(problems, BTreeSet::from([("big".to_owned(), ProblemKind::Changed)]));
    fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    assert_eq!(copy(&source, &target, &options()).account.files, 1);
    equal(&source, &target);
}
