//! A copy that is cut anywhere goes on where it was: nothing that was acknowledged is sent again, and
//! whatever the source was changed to in between, the destination is equal to it at the end.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod pair;

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Instant;

use fullbore_copy::options::Options;
use fullbore_copy::wire::Message;
use pair::scene::LONG;
use pair::{Pair, Step, equal, options, tree};

/// A small generator of numbers (splitmix64), so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut value = self.0;
        value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (value ^ (value >> 31)) % limit
    }
}

/// Content of a file: its path, and the block of a big one.
type Piece = (Vec<u8>, u64);

/// One run, cut at this message of those that are seen while the destination has a part of the big file.
fn cut_in_the_middle(source: &Path, target: &Path, at: u64) {
    let mut seen = 0;
    Pair::new(source, target, &options()).run(|_| {
        seen += u64::from(target.join(".big.fullbore-part").exists());
        if seen >= at { Step::Cut } else { Step::Pass }
    });
}

/// One run, cut when so many bytes of content have gone over. Gives whether it came to its end.
fn run(source: &Path, target: &Path, cut_after: u64, acknowledged: &mut HashSet<Piece>) -> bool {
    let mut paths: Vec<Vec<u8>> = Vec::new();
    let mut under_way: Vec<(u64, Vec<Piece>)> = Vec::new();
    let mut bytes = 0;
    let mut again = Vec::new();
    let options = options();
    let ended = Pair::new(source, target, &options).run(|message| {
        let mut sent = |sequence, pieces: Vec<Piece>, length: usize| {
            again.extend(pieces.iter().filter(|piece| acknowledged.contains(*piece)).cloned());
            under_way.push((sequence, pieces));
            bytes += length as u64;
        };
        match message {
            Message::List(list) => {
                paths.extend(list.entries.iter().map(|entry| [&list.directory[..], b"/", &entry.name].concat()));
            }
            Message::Pack(pack) => {
                let pieces = pack.files.iter().map(|file| (paths[file.id as usize].clone(), 0)).collect();
                sent(pack.sequence, pieces, pack.payload.bytes().len());
            }
            Message::Block(block) => {
                let pieces = vec![(paths[block.id as usize].clone(), block.index)];
                sent(block.sequence, pieces, block.payload.bytes().len());
            }
            Message::Acknowledge { sequence } => {
                let place = under_way.iter().position(|(number, _)| number == sequence);
                acknowledged.extend(place.map(|place| under_way.swap_remove(place).1).unwrap_or_default());
            }
            _ => {}
        }
        if bytes > cut_after { Step::Cut } else { Step::Pass }
    });
    assert!(again.is_empty(), "sent again although acknowledged: {again:?}");
    ended
}

#[test]
fn two_hundred_cuts_lose_nothing_that_was_acknowledged() {
    let mut random = Random(42);
    let mut cuts = 0;
    while cuts < 200 {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
        let total = tree(&source, random.below(1000));
        fs::create_dir(&target).unwrap();
        let mut acknowledged = HashSet::new();
        while !run(&source, &target, random.below(total / 2), &mut acknowledged) {
            cuts += 1;
        }
        assert!(!target.join(".fullbore-copy").exists());
        equal(&source, &target);
    }
}

#[test]
fn a_source_that_was_edited_between_runs_voids_what_was_kept_of_it() {
    let mut random = Random(7);
    let mut edited_in_the_middle = 0;
    for round in 0..15 {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
        let total = tree(&source, round);
        fs::create_dir(&target).unwrap();
        run(&source, &target, random.below(total), &mut HashSet::new());
        if target.join("big").exists() {
            continue; // complete before the edit: then the time is all that there is to compare
        }
        edited_in_the_middle += 1;
        // The same length and the same time, as a careless program leaves it: the change time tells.
        let path = source.join("big");
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        let mut content = fs::read(&path).unwrap();
        let at = random.below(content.len() as u64) as usize;
        content[at] ^= 0xff;
        fs::write(&path, &content).unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert!(run(&source, &target, u64::MAX, &mut HashSet::new()));
        equal(&source, &target);
    }
    assert!(edited_in_the_middle > 2, "cuts came too late to test anything");
}

#[test]
fn what_was_kept_of_a_file_goes_when_the_source_has_it_no_longer() {
    let mut torn = 0;
    for cut in 1..20 {
        let directory = tempfile::tempdir().unwrap();
        let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
        tree(&source, cut);
        fs::create_dir(&target).unwrap();
        cut_in_the_middle(&source, &target, cut / 4 + 1);
        torn += u64::from(target.join(".big.fullbore-part").exists());
        if target.join("big").exists() {
            continue;
        }
        fs::remove_file(source.join("big")).unwrap();
        assert!(run(&source, &target, u64::MAX, &mut HashSet::new()));
        equal(&source, &target);
    }
    assert!(torn > 2, "{torn}: cuts came at no time that tests anything");
}

/// Leaves what a run that was killed leaves of a small file: all of it under no name yet.
fn leave_part(source: &Path, target: &Path, name: &str, content: &[u8]) {
    let modified = fs::metadata(source.join("dir/sub").join(name)).unwrap().modified().unwrap();
    let part = target.join(format!("dir/sub/.{name}.fullbore-part"));
    fs::write(&part, content).unwrap();
    fs::File::options().write(true).open(&part).unwrap().set_modified(modified).unwrap();
}

#[test]
fn unflushed_data_of_another_boot_is_never_trusted() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    tree(&source, 11);
    fs::create_dir_all(target.join("dir/sub")).unwrap();
    fs::write(target.join(".fullbore-copy"), "fullbore copy\n00000000-0000-4000-8000-00000000000b\n").unwrap();
    // Length and time are on the disk, the data is not.
    leave_part(&source, &target, "9", &[0; 6300]);
    let early = options();
    assert!(!Pair::new(&source, &target, &early).run(|_| Step::Cut));
    assert!(target.join("dir/sub/.9.fullbore-part").exists() && target.join(".fullbore-copy").exists());
    assert!(run(&source, &target, u64::MAX, &mut HashSet::new()));
    equal(&source, &target);
}

#[test]
fn an_edited_small_file_with_its_old_mtime_is_sent_again() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    tree(&source, 12);
    fs::create_dir_all(target.join("dir/sub")).unwrap();
    let boot = fullbore_copy::receiver::journal::boot();
    let marker = format!("fullbore copy\n{}\n", String::from_utf8_lossy(&boot));
    fs::write(target.join(".fullbore-copy"), marker).unwrap();
    leave_part(&source, &target, "9", &[1; 6300]);
    assert!(run(&source, &target, u64::MAX, &mut HashSet::new()));
    equal(&source, &target);
}

/// Files with content below a directory that are not our own.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, status) = (entry.path(), entry.metadata().unwrap());
        if status.is_dir() {
            all.extend(files(&path));
        } else if status.len() > 0 && !entry.file_name().to_string_lossy().contains("fullbore-") {
            all.push(path);
        }
    }
    all
}

/// Other content of the same length and time: as a disk does it that loses what it was given.
fn damage(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, 0).unwrap();
    file.write_all_at(&[!byte[0]], 0).unwrap();
    file.set_modified(modified).unwrap();
}

/// Waits until what is written has another change time than what is there: the kernel's clock for them has coarse ticks.
fn until_the_clock_ticks(directory: &Path) {
    let path = directory.join("tick");
    let now = || {
        fs::write(&path, "x").unwrap();
        let status = fs::metadata(&path).unwrap();
        (status.ctime(), status.ctime_nsec())
    };
    let before = now();
    let until = Instant::now() + LONG;
    while now() == before {
        assert!(Instant::now() < until, "the clock stands still");
    }
    fs::remove_file(path).unwrap();
}

#[test]
fn files_a_torn_run_did_not_read_back_are_read_back_by_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    tree(&source, 13);
    fs::create_dir(&target).unwrap();
    // There before: the torn run has nothing to do with it.
    let earlier = source.join("dir/earlier");
    fs::create_dir_all(&earlier).unwrap();
    fs::create_dir_all(target.join("dir")).unwrap();
    for number in 0..5 {
        fs::write(earlier.join(number.to_string()), "finished").unwrap();
    }
    assert!(
        Pair::new(
            &earlier,
            &{
                let path = target.join("dir/earlier");
                fs::create_dir(&path).unwrap();
                path
            },
            &options()
        )
        .run(|_| Step::Pass)
    );
    until_the_clock_ticks(directory.path());
    let verifying = Options { verify: true, ..options() };
    let mut records = 0;
    let ended = Pair::new(&source, &target, &verifying).run(|message| {
        records += u32::from(matches!(message, Message::Acknowledge { .. }));
        if records == 4 { Step::Cut } else { Step::Pass }
    });
    let mut named = files(&target);
    named.retain(|path| !path.starts_with(target.join("dir/earlier")));
    assert!(!ended && !named.is_empty());
    damage(&named[0]);
    let (mut compared, mut paths) = (Vec::new(), Vec::new());
    let look = |message: &Message| {
        match message {
            Message::List(list) => {
                paths.extend(list.entries.iter().map(|entry| [&list.directory[..], b"/", &entry.name].concat()));
            }
            Message::Answer(answer) => {
                let ids = answer.wanted.iter().filter(|wanted| wanted.compare).map(|wanted| wanted.id as usize);
                compared.extend(ids.map(|id| String::from_utf8(paths[id].clone()).unwrap()));
            }
            _ => {}
        }
        Step::Pass
    };
    let account = Pair::new(&source, &target, &verifying).run_and_tell(look, &|_| {}).unwrap();
    equal(&source, &target);
    let not_compared = named.iter().filter(|path| {
        let path = path.strip_prefix(&target).unwrap().to_str().unwrap();
        !compared.iter().any(|compared| compared.trim_start_matches('/') == path)
    });
    assert_eq!(not_compared.count(), 0, "{compared:?}");
    assert!(!compared.iter().any(|path| path.contains("earlier")), "{compared:?}");
    let total: u64 = files(&source).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
    assert_eq!(account.verified_bytes, total - 5 * 8);
}

#[test]
fn a_run_that_ends_while_it_reads_back_is_not_finished() {
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("src"), directory.path().join("dst"));
    tree(&source, 14);
    fs::create_dir(&target).unwrap();
    let options = Options { verify: true, group_time_ms: 1, ..options() };
    let until = Instant::now() + LONG;
    let ended = Pair::new(&source, &target, &options).run(|message| {
        if matches!(message, Message::Finish { .. }) {
            // It may have been said before the last content came.
            if !target.join("dir/medium").exists() && Instant::now() < until {
                return Step::Later;
            }
            damage(&target.join("dir/medium"));
        }
        Step::Pass
    });
    assert!(!ended && target.join(".fullbore-copy").exists());
    assert!(Pair::new(&source, &target, &options).run(|_| Step::Pass));
    assert!(!target.join(".fullbore-copy").exists());
    equal(&source, &target);
}
