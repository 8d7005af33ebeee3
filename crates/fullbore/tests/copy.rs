//! `fullbore copy` on one machine, as a user sees it.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use harness::{Place, SmallDisk, assert_same, said};

#[test]
fn everything_is_kept_and_a_second_run_copies_nothing() {
    let place = Place::new();
    let source = place.tree("src");
    place.copy(&["src/", "dst"]);
    assert_same(&source, &place.path("dst"));
    let before = fs::metadata(place.path("dst/big")).unwrap();
    let text = place.copy(&["src/", "dst"]);
    assert!(text.starts_with("nothing to copy"), "{text}");
    assert_eq!(fs::metadata(place.path("dst/big")).unwrap().ino(), before.ino());
    assert_same(&source, &place.path("dst"));
}

#[test]
fn the_letters_that_rsyncs_users_type_by_habit_are_taken() {
    let place = Place::new();
    let source = place.tree("src");
    place.copy(&["-avhP", "src/", "dst"]);
    place.copy(&["-rlptgoDxzHAXS", "--human-readable", "--progress", "src/", "other"]);
    assert_same(&source, &place.path("dst"));
    assert_same(&source, &place.path("other"));
    place.copy(&[
        "-n",
        "-n",
        "--exclude",
        "-x",
        "--devices",
        "--specials",
        "--no-o",
        "--no-g",
        "--no-p",
        "src/",
        "other",
    ]);
    let pipe = std::process::Command::new("mkfifo").arg(place.path("pipe")).status().unwrap();
    assert!(pipe.success());
    place.copy(&["--no-specials", "pipe", "renamed"]);
    assert!(!place.path("renamed").exists());
    assert!(place.copy(&["-h"]).contains("--bwlimit"), "alone it asks for help");
}

#[test]
fn paths_follow_rsyncs_rules_and_a_rerun_nests_nothing() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/sub")).unwrap();
    fs::write(place.path("src/sub/file"), "x").unwrap();
    fs::write(place.path("lone"), "y").unwrap();
    let mut times = Vec::new();
    for _ in 0..2 {
        place.copy(&["src", "lone", "dst"]);
        times.push(fs::metadata(place.path("dst")).unwrap().modified().unwrap());
        place.copy(&["src/sub/.", "inner"]);
        place.copy(&["lone", "renamed"]);
        place.copy(&["lone", "into/"]);
        place.copy(&["lone", "dot/."]);
    }
    assert_eq!(times[0], times[1], "a run that copied nothing left a trace");
    let mut names: Vec<_> = fs::read_dir(place.path("dst")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["lone", "src"]);
    assert!(place.path("dot/lone").exists());
    assert!(!place.path("dst/src/src").exists() && place.path("dst/src/sub/file").exists());
    assert_eq!(fs::read(place.path("inner/file")).unwrap(), b"x");
    assert_eq!(
        (fs::read(place.path("renamed")).unwrap(), fs::read(place.path("into/lone")).unwrap()),
        (b"y".to_vec(), b"y".to_vec())
    );
}

#[test]
fn changes_of_every_kind_are_followed_and_extras_go_only_with_delete() {
    let place = Place::new();
    let source = place.tree("src");
    place.copy(&["src/", "dst"]);
    fs::write(source.join("onemib"), vec![7; 2_000_000]).unwrap();
    fs::remove_file(source.join("big")).unwrap();
    fs::create_dir(source.join("big")).unwrap();
    fs::remove_dir_all(source.join("a/b/c")).unwrap();
    fs::write(source.join("a/b/c"), "a file now").unwrap();
    fs::remove_file(source.join("abs")).unwrap();
    std::os::unix::fs::symlink("elsewhere", source.join("abs")).unwrap();
    std::process::Command::new("setfattr").args(["-x", "user.dir"]).arg(source.join("a/b")).status().unwrap();
    std::process::Command::new("setfacl").args(["-b"]).arg(source.join("a/zero")).status().unwrap();
    fs::create_dir(place.path("dst/extra")).unwrap();
    fs::write(place.path("dst/extra/file"), "x").unwrap();
    // Without --delete the full directory in the way of a file stays, and that is said.
    let output = place.fullbore(&["src/", "dst"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("a/b/c: could not be written"), "{}", said(&output));
    assert!(place.path("dst/extra/file").exists() && place.path("dst/big").is_dir());
    let planned = place.copy(&["-n", "--delete", "src/", "dst"]);
    assert!(planned.contains("deleting extra") && place.path("dst/extra").exists(), "{planned}");
    place.copy(&["--delete", "src/", "dst"]);
    assert_same(&source, &place.path("dst"));
}

#[test]
fn filters_choose_and_protect() {
    let place = Place::new();
    for (path, content) in [("src/keep.log", "1"), ("src/a.log", "2"), ("src/cache/x", "3"), ("src/text", "4")] {
        fs::create_dir_all(place.path(path).parent().unwrap()).unwrap();
        fs::write(place.path(path), content).unwrap();
    }
    fs::create_dir_all(place.path("dst/cache")).unwrap();
    fs::write(place.path("dst/cache/mine"), "protected").unwrap();
    fs::write(place.path("dst/old"), "goes").unwrap();
    place.copy(&["--delete", "--include", "keep.log", "--exclude", "*.log", "--exclude", "cache/", "src/", "dst"]);
    let mut names: Vec<_> = fs::read_dir(place.path("dst")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["cache", "keep.log", "text"]);
    assert!(place.path("dst/cache/mine").exists() && !place.path("dst/cache/x").exists());
    fs::write(place.path("list"), "# chosen\ncache/x\n/text\n").unwrap();
    place.copy(&["--files-from", "list", "src", "chosen"]);
    assert!(place.path("chosen/cache/x").exists() && place.path("chosen/text").exists());
    assert!(!place.path("chosen/a.log").exists());
}

#[test]
fn without_proc_what_is_reached_by_it_alone_is_named_and_files_are_copied() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/dir")).unwrap();
    fs::write(place.path("src/dir/marked"), "x").unwrap();
    let mut set = std::process::Command::new("setfattr");
    let set = set.args(["-n", "user.a", "-v", "b"]).arg(place.path("src/dir/marked")).status();
    assert!(set.unwrap().success(), "needs the package attr");
    fs::create_dir_all(place.path("dst/dir")).unwrap();
    fs::write(place.path("dst/dir/marked"), "as it was").unwrap();
    let script = "umount -l /proc && exec \"$0\" copy --delete src/ dst";
    let mut unshare = std::process::Command::new("unshare");
    unshare.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_fullbore")]);
    let output = unshare.current_dir(place.path("")).output().unwrap();
    assert!(said(&output).contains("dir/marked: extended attributes"), "{}", said(&output));
    assert_eq!((output.status.code(), fs::read(place.path("dst/dir/marked")).unwrap()), (Some(2), b"x".to_vec()));
}

#[test]
fn what_cannot_be_read_is_named_and_nothing_is_deleted() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/good"), "x").unwrap();
    // Not even root may read it: a temporary of a torn copy is none of the source's files.
    fs::write(place.path("src/.x.fullbore-part"), "x").unwrap();
    fs::create_dir(place.path("dst")).unwrap();
    fs::write(place.path("dst/extra"), "stays").unwrap();
    let output = place.fullbore(&["--delete", "src/", "dst"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains(".x.fullbore-part"), "{}", said(&output));
    assert!(place.path("dst/extra").exists() && place.path("dst/good").exists());
}

#[test]
fn a_name_of_the_destination_that_is_a_link_is_replaced_and_not_followed() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/dir")).unwrap();
    fs::write(place.path("src/dir/file"), "new").unwrap();
    fs::write(place.path("src/name"), "new").unwrap();
    fs::create_dir_all(place.path("outside")).unwrap();
    fs::write(place.path("outside/file"), "old").unwrap();
    fs::create_dir(place.path("dst")).unwrap();
    std::os::unix::fs::symlink("../outside", place.path("dst/dir")).unwrap();
    std::os::unix::fs::symlink("../outside/file", place.path("dst/name")).unwrap();
    place.copy(&["src/", "dst"]);
    assert_eq!(fs::read(place.path("outside/file")).unwrap(), b"old");
    assert_eq!(fs::read(place.path("dst/dir/file")).unwrap(), b"new");
    assert!(fs::symlink_metadata(place.path("dst/name")).unwrap().is_file());
}

#[test]
fn a_second_copy_into_the_same_place_is_refused() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::create_dir(place.path("dst")).unwrap();
    let marker = fs::File::create(place.path("dst/.fullbore-copy")).unwrap();
    rustix::fs::flock(&marker, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let output = place.fullbore(&["src/", "dst"]);
    assert_eq!(output.status.code(), Some(6), "{}", said(&output));
}

/// A file system that takes names that differ in case alone for the same: exFAT, as memory cards have it, by FUSE
/// (not every kernel has ext4's `casefold`).
struct IgnoringCase {
    path: std::path::PathBuf,
    device: String,
}

impl IgnoringCase {
    fn new(place: &Place) -> IgnoringCase {
        assert!(rustix::process::geteuid().is_root(), "mounts an image: run as root (script/test does)");
        let (image, path) = (place.path("image"), place.path("card"));
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        fs::create_dir(&path).unwrap();
        let run = |program: &str, arguments: &[&std::ffi::OsStr]| {
            let output = std::process::Command::new(program).args(arguments).output();
            let output = output.unwrap_or_else(|_| panic!("{program}: needs exfat-fuse, exfatprogs, mount"));
            assert!(output.status.success(), "{program} (needs loop devices and /dev/fuse): {}", said(&output));
            String::from_utf8(output.stdout).unwrap()
        };
        run("mkfs.exfat", &[image.as_os_str()]);
        let device = run("losetup", &["-f".as_ref(), "--show".as_ref(), image.as_os_str()]).trim().to_owned();
        let disk = IgnoringCase { path, device };
        run("mount.exfat-fuse", &[disk.device.as_ref(), disk.path.as_os_str()]);
        disk
    }
}

impl Drop for IgnoringCase {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.path).status();
        let _ = std::process::Command::new("losetup").args(["-d", &self.device]).status();
    }
}

#[test]
fn names_that_differ_by_case_are_refused_where_case_is_ignored() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    for name in ["Makefile", "makefile", "other"] {
        fs::write(place.path("src").join(name), name).unwrap();
    }
    let card = IgnoringCase::new(&place);
    let output = place.fullbore(&["src/", "card"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("akefile"), "{}", said(&output));
    assert_eq!(fs::read_dir(&card.path).unwrap().count(), 0, "something is half done");
    fs::remove_file(place.path("src/makefile")).unwrap();
    fs::write(card.path.join("MAKEFILE"), "old").unwrap();
    // No owners there: what cannot be kept is told, and what is there by another case is not deleted.
    let output = place.fullbore(&["--delete", "src/", "card"]);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{}", said(&output));
    assert_eq!(fs::read_to_string(card.path.join("Makefile")).unwrap(), "Makefile");
    assert_eq!(fs::read_to_string(card.path.join("other")).unwrap(), "other");
}

#[test]
fn what_does_not_fit_is_refused_before_the_first_byte() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/small"), "x").unwrap();
    fs::write(place.path("src/large"), vec![1; 6 << 20]).unwrap();
    let disk = SmallDisk::new(place.path("disk"), "4m");
    let output = place.fullbore(&["src/", "disk"]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains(" more is needed"), "{}", said(&output));
    assert!(!disk.0.join("small").exists() && !disk.0.join("large").exists());
    // What other things it would have replaced is there as it was.
    for directory in ["x", "y", "empty"] {
        fs::create_dir(if directory == "empty" { disk.0.join(directory) } else { place.path("src").join(directory) })
            .unwrap();
    }
    fs::write(disk.0.join("x"), "old").unwrap();
    std::os::unix::fs::symlink("old", disk.0.join("y")).unwrap();
    fs::write(place.path("src/empty"), "new").unwrap();
    let output = place.fullbore(&["src/", "disk"]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert_eq!(fs::read(disk.0.join("x")).unwrap(), b"old");
    assert_eq!(fs::read_link(disk.0.join("y")).unwrap(), std::path::Path::new("old"));
    assert!(disk.0.join("empty").is_dir());
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 3);
}

#[test]
fn a_file_of_exbibytes_that_is_nearly_all_hole_is_a_small_one() {
    use std::os::unix::fs::FileExt as _;
    let place = Place::new();
    // In memory files may be as long as numbers are.
    let disk = SmallDisk::new(place.path("disk"), "16m");
    fs::create_dir(disk.0.join("src")).unwrap();
    let (size, island) = (7 << 60, 3 << 60);
    let file = fs::File::create(disk.0.join("src/huge")).unwrap();
    file.set_len(size).unwrap();
    file.write_all_at(b"island", island).unwrap();
    fs::write(disk.0.join("src/small"), "x").unwrap();
    place.copy(&["--verify", "disk/src/", "disk/dst"]);
    let copied = fs::File::open(disk.0.join("dst/huge")).unwrap();
    let (mut content, status) = ([0; 8], copied.metadata().unwrap());
    copied.read_exact_at(&mut content, island - 1).unwrap();
    assert_eq!((&content, status.len()), (b"\0island\0", size));
    assert!(status.blocks() * 512 <= 4 << 20, "{} blocks", status.blocks());
    assert!(place.copy(&["disk/src/", "disk/dst"]).starts_with("nothing to copy"));
}

#[test]
fn a_copy_that_is_refused_leaves_no_directory_that_was_made_for_it() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/large"), vec![1; 6 << 20]).unwrap();
    let disk = SmallDisk::new(place.path("disk"), "4m");
    for arguments in [["src/", "disk/new/deep"], ["src/large", "disk/new/deep/renamed"]] {
        let output = place.fullbore(&arguments);
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0, "{arguments:?}");
    }
}

#[test]
fn room_is_that_of_the_file_system_that_a_file_goes_to() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/mount")).unwrap();
    fs::write(place.path("src/small"), "x").unwrap();
    fs::write(place.path("src/mount/large"), vec![1; 6 << 20]).unwrap();
    // Little room at a mount within the destination.
    fs::create_dir(place.path("dst")).unwrap();
    let mount = SmallDisk::new(place.path("dst/mount"), "4m");
    let output = place.fullbore(&["src/", "dst"]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(!place.path("dst/small").exists() && fs::read_dir(&mount.0).unwrap().next().is_none());
    drop(mount);
    // Much of it there, and little at the destination.
    let disk = SmallDisk::new(place.path("disk"), "4m");
    let mount = SmallDisk::new(disk.0.join("mount"), "20m");
    place.copy(&["src/", "disk"]);
    assert_same(&place.path("src"), &disk.0);
    drop(mount);
}

#[test]
fn more_files_than_there_are_inodes_are_refused_before_the_first_byte() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/dir")).unwrap();
    for number in 0..30 {
        fs::write(place.path(&format!("src/dir/{number}")), "x").unwrap();
    }
    let disk = SmallDisk::new(place.path("disk"), "4m,nr_inodes=20");
    let output = place.fullbore(&["src/", "disk"]);
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("more files are needed"), "{}", said(&output));
    assert_eq!(fs::read_dir(&disk.0).unwrap().count(), 0);
    // Root, marker, directory: these fit to the last one.
    drop(disk);
    let disk = SmallDisk::new(place.path("exact"), "4m,nr_inodes=33");
    place.copy(&["src/", "exact"]);
    assert_same(&place.path("src"), &disk.0);
}

#[test]
fn mounts_are_crossed_but_with_x_and_views_of_the_kernel_never() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/proc")).unwrap();
    fs::create_dir(place.path("src/sys")).unwrap();
    let mount = SmallDisk::new(place.path("src/mount"), "4m");
    fs::write(mount.0.join("file"), "x").unwrap();
    // In namespaces of its own: this machine's mounts stay as they are.
    let script = "mount -t proc none src/proc && mount -t sysfs none src/sys && exec \"$0\" copy \"$@\"";
    for arguments in [&["src/", "all"][..], &["-x", "src/", "one"]] {
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "--pid", "--fork", "sh", "-c", script, env!("CARGO_BIN_EXE_fullbore")]);
        let output = command.args(arguments).current_dir(place.path("")).output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    }
    let count = |name: &str| fs::read_dir(place.path(name)).unwrap().count();
    assert_eq!([count("all"), count("all/mount"), count("all/proc"), count("all/sys")], [3, 1, 0, 0]);
    assert_eq!([count("one"), count("one/mount"), count("one/proc"), count("one/sys")], [3, 0, 0, 0]);
}

#[test]
fn owners_are_mapped_by_their_names_and_with_numeric_ids_by_their_numbers() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    for (name, id) in [("known", 2001), ("unknown", 2009)] {
        fs::write(place.path("src").join(name), name).unwrap();
        std::os::unix::fs::chown(place.path("src").join(name), Some(id), Some(id + 100)).unwrap();
    }
    let acl = ["-m", "u:2001:r", "known"];
    let set = std::process::Command::new("setfacl").args(acl).current_dir(place.path("src")).status();
    assert!(set.unwrap().success(), "needs the package acl");
    // Two machines that call the same person by other numbers.
    for (end, id) in [("near", 2001), ("far", 3001)] {
        let group = format!("people:x:{}:\n", id + 100);
        fs::write(place.path(&format!("{end}.passwd")), format!("alice:x:{id}:{}::/:/bin/sh\n", id + 100)).unwrap();
        fs::write(place.path(&format!("{end}.group")), group).unwrap();
    }
    let directory = place.path("");
    let as_end = |end: &str, rest: &str| {
        let bind = |name: &str| format!("mount --bind '{0}/{end}.{name}' /etc/{name}", directory.display());
        format!("{} && {} && {rest}", bind("passwd"), bind("group"))
    };
    // In the place of ssh: HOST COMMAND.
    let rsh = format!(
        "#!/bin/sh\nexport COMMAND=\"$2\"\nexec unshare --mount sh -c \"{}\"\n",
        as_end("far", "eval \\\"\\$COMMAND\\\"")
    );
    fullbore_testkit::process::write_program(place.path("rsh"), &rsh);
    let program = env!("CARGO_BIN_EXE_fullbore");
    let copy = |arguments: &[&str]| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--mount", "sh", "-c", &as_end("near", "exec \"$0\" copy \"$@\""), program, "--ssh-only"]);
        command.args(["-e", "./rsh", "--remote-path", program]).args(arguments).current_dir(&directory);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    };
    let owner = |path: &str| {
        let status = fs::metadata(place.path(path)).unwrap();
        (status.uid(), status.gid())
    };
    let there = |name: &str| format!("host:{}", place.path(name).display());
    let in_acl = |path: &str| {
        let output = std::process::Command::new("getfacl").args(["-n", path]).current_dir(&directory).output();
        said(&output.unwrap()).lines().find_map(|line| line.strip_prefix("user:")?.strip_suffix(":r--")?.parse().ok())
    };
    copy(&["src/", &there("pushed")]);
    assert_eq!([owner("pushed/known"), owner("pushed/unknown")], [(3001, 3101), (2009, 2109)]);
    assert_eq!(in_acl("pushed/known"), Some(3001));
    copy(&[&there("pushed/"), "pulled"]);
    assert_eq!([owner("pulled/known"), owner("pulled/unknown")], [(2001, 2101), (2009, 2109)]);
    copy(&["--numeric-ids", "src/", &there("numeric")]);
    assert_eq!([owner("numeric/known"), owner("numeric/unknown")], [(2001, 2101), (2009, 2109)]);
    assert_eq!(in_acl("numeric/known"), Some(2001));
}

#[test]
fn sources_are_not_removed_in_favour_of_links() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/a"), "only").unwrap();
    let output = place.fullbore(&["--remove-source-files", "--link-dest", "../before", "src/", "dst"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(place.path("src/a").exists() && !place.path("dst").exists());
}

#[test]
fn a_source_is_not_copied_to_itself() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/a"), "only").unwrap();
    std::os::unix::fs::symlink("src", place.path("link")).unwrap();
    for (source, target) in [("src/a", "src"), ("src/a", "src/a"), ("src/", "src"), ("src", "."), ("src/a", "link/")] {
        let output = place.fullbore(&["--remove-source-files", source, target]);
        assert_eq!(output.status.code(), Some(1), "{source} {target}: {}", said(&output));
        assert_eq!(fs::read(place.path("src/a")).unwrap(), b"only", "{source} {target}");
    }
    place.copy(&["src/a", "src/b"]);
    // Nor into itself, unless something else is copied as well.
    let output = place.fullbore(&["src", "src"]);
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    place.copy(&["src/", "src/new"]);
    assert!(place.path("src/new/a").exists() && !place.path("src/new/new").exists());
    fs::create_dir(place.path("src/old")).unwrap();
    let output = place.fullbore(&["src/", "src/old"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("old: could not be read: it is the destination"), "{}", said(&output));
    assert!(place.path("src/old/new/a").exists() && !place.path("src/old/old").exists());
}

#[test]
fn lists_of_paths_may_overlap_and_name_whole_directories() {
    let place = Place::new();
    for path in ["src/a/b/3", "src/a/4", "src/c/d/5", "src/e"] {
        fs::create_dir_all(place.path(path).parent().unwrap()).unwrap();
        fs::write(place.path(path), path).unwrap();
    }
    let there = |name: &str| place.path(name).exists();
    let list = |text: &str| fs::write(place.path("list"), text).unwrap();
    list("a\na/b\na/b/3\n");
    place.copy(&["-r", "--files-from", "list", "src", "one"]);
    assert!(there("one/a/b/3") && there("one/a/4") && !there("one/c"));
    list("a/b/3\0e");
    place.copy(&["--exclude", "a", "-0", "--files-from", "list", "src", "two"]);
    assert!(there("two/a/b/3") && there("two/e") && !there("two/a/4"));
    list("c/\n");
    place.copy(&["--files-from", "list", "src", "three"]);
    assert!(there("three/c/d") && !there("three/c/d/5") && !there("three/e"));
    list(".\n");
    place.copy(&["--files-from", "list", "src", "four"]);
    assert!(there("four/a") && !there("four/a/4") && there("four/e"));
    place.copy(&["-r", "--files-from", "list", "src", "five"]);
    assert_same(&place.path("src"), &place.path("five"));
    list("gone/x\ngone/y/z\ne");
    let output = place.fullbore(&["--files-from", "list", "src", "six"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("1 file: could not be read") && there("six/e"), "{}", said(&output));
}

#[test]
fn links_and_directories_are_told_of_as_files_are() {
    let place = Place::new();
    fs::create_dir_all(place.path("src/directory")).unwrap();
    std::os::unix::fs::symlink("nowhere", place.path("src/link")).unwrap();
    fs::create_dir(place.path("dst")).unwrap();
    for dry in ["-n", "-v"] {
        let text = place.copy(&[dry, "src/", "dst"]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines.contains(&"link") && lines.contains(&"directory"), "{text}");
        assert!(text.contains("2 links, directories and devices made"), "{text}");
    }
    assert!(place.copy(&["-v", "src/", "dst"]).starts_with("nothing to copy"));
    fs::write(place.path("dst/extra"), "").unwrap();
    fs::write(place.path("src/.x.fullbore-part"), "").unwrap();
    let output = place.fullbore(&["--delete", "src/", "dst"]);
    assert!(said(&output).contains("nothing was deleted"), "{}", said(&output));
}

#[test]
fn a_disk_that_fills_up_keeps_old_files_and_the_copy_resumes() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    for number in 0..8 {
        fs::write(place.path(&format!("src/{number}")), vec![number; 1 << 20]).unwrap();
    }
    let disk = SmallDisk::new(place.path("disk"), "20m");
    fs::write(disk.0.join("0"), "old").unwrap();
    // It fits when it is looked at; then somebody else takes the room.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["copy", "--bwlimit", "2M"]).args([place.path("src/"), disk.0.clone()]);
    let mut copy = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    until_written(&mut copy, &disk.0);
    fs::write(disk.0.join("hog"), vec![1; 14 << 20]).unwrap();
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert!(said(&output).contains("run it again to go on"), "{}", said(&output));
    let first = fs::read(disk.0.join("0")).unwrap();
    assert!(first == b"old" || first == vec![0; 1 << 20], "half a file has the name");
    fs::remove_file(disk.0.join("hog")).unwrap();
    place.copy(&["src/", "disk"]);
    for number in 0..8 {
        assert_eq!(fs::read(disk.0.join(number.to_string())).unwrap(), vec![number; 1 << 20]);
    }
}

#[test]
fn what_a_disk_took_into_memory_and_then_refused_is_copied_again() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/big"), vec![7; 24 << 20]).unwrap();
    // A disk that promises more than it has, as thin provisioning does: writing back fails.
    let below = SmallDisk::new(place.path("below"), "12m");
    let (image, thin) = (below.0.join("image"), place.path("thin"));
    fs::File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir(&thin).unwrap();
    let run = |program: &str, options: &[&str], paths: &[&Path]| {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let status = std::process::Command::new(program).env("PATH", path).args(options).args(paths).status();
        assert!(status.unwrap().success(), "{program}: needs e2fsprogs, mount, loop devices");
    };
    // Without a journal of its own, or the file system ends with the first error.
    run("mkfs.ext4", &["-q", "-F", "-O", "^has_journal"], &[&image]);
    run("mount", &["-o", "loop"], &[&image, &thin]);
    let first = place.fullbore(&["src/", "thin/dst"]);
    run("mount", &["-o", "remount,size=100m"], &[&below.0]);
    // The disk may tell once more of what it lost.
    let next = (0..3).map(|_| place.fullbore(&["src/", "thin/dst"])).find(|output| output.status.success());
    run("umount", &[], &[&thin]);
    assert_eq!(first.status.code(), Some(7), "{}", said(&first));
    let text = said(&next.expect("there is room by now"));
    assert!(text.starts_with("copied 25.2 MB, 1 file") && !text.contains("from an earlier run"), "{text}");
}

/// Waits until a copy has begun to write a file.
fn until_written(copy: &mut std::process::Child, target: &Path) {
    let is_part = |entry: fs::DirEntry| entry.file_name().to_string_lossy().ends_with("fullbore-part");
    let begun = std::time::Instant::now();
    while !fs::read_dir(target).is_ok_and(|directory| directory.flatten().any(is_part)) {
        assert!(copy.try_wait().unwrap().is_none(), "it ended before");
        assert!(begun.elapsed().as_secs() < 60, "it writes nothing");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn killed_at_any_moment_a_copy_goes_on_and_ends_right() {
    let place = Place::new();
    let source = place.tree("src");
    for round in 0..12 {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["copy", "--bwlimit", "20M"]).args([source.join("."), place.path("dst")]);
        let mut copy = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(10 + 25 * round));
        copy.kill().unwrap();
        copy.wait().unwrap();
    }
    place.copy(&["src/", "dst"]);
    assert_same(&source, &place.path("dst"));
    assert!(!place.path("dst/.fullbore-copy").exists());
}
