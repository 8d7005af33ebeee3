//! The power fails at any point of a copy: what has a name is right, and the next boot goes on with what is.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use fullbore_copy::receiver::journal;
use fullbore_testkit::power_cut::{AfterCut, BlockLog};
use fullbore_testkit::random::Random;
use fullbore_testkit::slowdisk::SlowDisk;
use harness::{Place, assert_same, said};

/// Points looked at, besides each flush.
const CUTS: usize = 8;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);

/// Small files, big ones, and one with holes; 15 MB that do not repeat, so that a block in the wrong place shows.
fn source(path: &Path, random: &mut Random) {
    fs::create_dir_all(path.join("dir")).unwrap();
    let mut noise = |length: usize| -> Vec<u8> { (0..length / 8).flat_map(|_| random.bits().to_le_bytes()).collect() };
    for number in 0..40 {
        fs::write(path.join(format!("dir/{number}")), noise(20_000)).unwrap();
    }
    for name in ["big", "bigger"] {
        fs::write(path.join(name), noise(6 << 20)).unwrap();
    }
    let sparse = fs::File::create(path.join("sparse")).unwrap();
    sparse.set_len(30 << 20).unwrap();
    sparse.write_all_at(&noise(2 << 20), 11 << 20).unwrap();
}

/// Every name that was given is that of a whole file.
fn names_are_of_whole_files(source: &Path, target: &Path) {
    for entry in fs::read_dir(target).unwrap().map(Result::unwrap) {
        let (name, path) = (entry.file_name(), entry.path());
        if name.to_string_lossy().starts_with(".fullbore") || name.to_string_lossy().contains("fullbore-") {
            continue;
        }
        if entry.file_type().unwrap().is_dir() {
            names_are_of_whole_files(&source.join(&name), &path);
        } else {
            assert!(fs::read(&path).unwrap() == fs::read(source.join(&name)).unwrap(), "{}", path.display());
        }
    }
}

/// A copy as in another boot of the machine.
fn copy_in_boot(number: u8, place: &Place, target: &Path) -> Command {
    let boot = place.path(&format!("boot-{number}"));
    fs::write(&boot, format!("00000000-0000-4000-8000-00000000000{number}\n")).unwrap();
    let script = "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script]).arg(boot).arg(env!("CARGO_BIN_EXE_fullbore")).arg("copy");
    command.args([place.path("src").join(""), target.to_owned()]);
    command
}

/// Copies again, as if the machine had booted meanwhile; gives what is said.
fn goes_on(place: &Place, target: &Path) -> String {
    let output = copy_in_boot(9, place, target).output().unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    text
}

/// Cuts the power at every flush and at random points, mounts what is there then, and looks at the destination:
/// names are of whole files, and `look`, given the point and the directory.
fn after_each_cut(place: &Place, log: &BlockLog, random: &mut Random, mut look: impl FnMut(usize, &Path)) {
    let mut points = log.flushes();
    points.extend((0..CUTS).map(|_| random.below(log.len() as u64 + 1) as usize));
    for (number, point) in points.into_iter().enumerate() {
        // The kernel may still hold the one before.
        let image = place.path(&format!("image-{number}"));
        let share = [0.0, 0.5, 1.0][random.below(3) as usize];
        log.image(point, &mut || random.chance(share), &image).unwrap();
        let cut = AfterCut::mount(&image, &place.path("after")).unwrap_or_else(|error| panic!("at {point}: {error}"));
        let target = place.path("after/dst");
        names_are_of_whole_files(&place.path("src"), &target);
        look(point, &target);
        drop(cut);
        fs::remove_file(image).unwrap();
    }
}

#[test]
fn after_a_power_cut_named_files_are_whole_and_right_blocks_stay() {
    SlowDisk::available().unwrap();
    let place = Place::new();
    let mut random = Random::new(4, "power cut of a copy");
    source(&place.path("src"), &mut random);
    fs::create_dir(place.path("disk")).unwrap();
    let disk = SlowDisk::mount(&place.path("disk"), &place.path("backing"), 96 << 20, 0).unwrap();
    fs::create_dir(place.path("disk/dst")).unwrap();
    rustix::fs::syncfs(fs::File::open(place.path("disk")).unwrap()).unwrap();
    disk.record(&place.path("base")).unwrap();
    // Slow enough for a few checkpoints.
    place.copy(&["--bwlimit", "10M", "--group-time", "200", "src/", "disk/dst"]);
    let log = disk.recorded().unwrap();
    drop(disk);

    assert!(log.flushes().len() > 3, "no checkpoints: {log:?}");
    let mut resumed = 0;
    after_each_cut(&place, &log, &mut random, |_, target| {
        let text = goes_on(&place, target);
        resumed += u32::from(text.contains("were there from an earlier run"));
        assert_same(&place.path("src"), target);
    });
    assert!(resumed > 2, "blocks were taken over in {resumed} cases only");
}

/// Blocks of a file that are in its journal, if it has one that is whole; and those of them that are flushed.
fn entered(target: &Path, name: &str) -> (usize, usize) {
    let bytes = fs::read(target.join(format!(".{name}.fullbore-blocks"))).unwrap_or_default();
    let blocks = journal::parse(&bytes).map(|contents| contents.blocks).unwrap_or_default();
    (blocks.len(), blocks.iter().filter(|block| block.flushed).count())
}

#[test]
fn a_second_power_cut_loses_nothing_that_survived_the_first() {
    SlowDisk::available().unwrap();
    let place = Place::new();
    let mut random = Random::new(5, "two power cuts of a copy");
    source(&place.path("src"), &mut random);
    let (mount, target) = (place.path("disk"), place.path("disk/dst"));
    fs::create_dir(&mount).unwrap();
    let disk = SlowDisk::mount(&mount, &place.path("backing"), 96 << 20, 0).unwrap();
    fs::create_dir(&target).unwrap();
    let mut first = copy_in_boot(1, &place, &target);
    let first = first.args(["--bwlimit", "4M", "--group-time", "200"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut first = first.spawn().unwrap();
    let until = Instant::now() + LONG;
    let has_checkpoint = |name: &str| entered(&target, name).1 >= 2;
    while !["big", "bigger"].into_iter().any(has_checkpoint) {
        assert!(first.try_wait().unwrap().is_none() && Instant::now() < until, "no checkpoint is seen");
        std::thread::sleep(Duration::from_millis(2));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    // The file system writes what it knows of names each second, and nothing but that: the copy makes no checkpoint.
    let mounted = Command::new("mount").args(["-o", "remount,commit=1"]).arg(&mount).status();
    assert!(mounted.unwrap().success());
    disk.record(&place.path("base")).unwrap();
    let begun: Vec<&str> = ["big", "bigger"].into_iter().filter(|name| entered(&target, name).0 > 0).collect();
    let output = copy_in_boot(2, &place, &target).args(["--bwlimit", "3M", "--group-time", "60000"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let log = disk.recorded().unwrap();
    drop(disk);

    let mut unfinished = 0;
    after_each_cut(&place, &log, &mut random, |point, target| {
        for name in begun.iter().filter(|name| !target.join(name).exists()) {
            unfinished += 1;
            assert!(entered(target, name).1 >= 2, "{name} is begun anew after a cut at {point} of {log:?}");
        }
    });
    assert!(unfinished > 2, "cuts came at no time that tests anything: {log:?}");
}
