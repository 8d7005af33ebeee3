//! `fullbore copy --delete`: what goes, what is protected, and what takes the place of full directories.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use harness::{Place, SmallDisk, assert_same, said};

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn rsync(place: &Place, arguments: &[&str]) -> Output {
    let output = Command::new("rsync").arg("--modify-window=-1").args(arguments).current_dir(place.path("")).output();
    output.expect("the package rsync is needed")
}

/// What a copy with `-v` or `-n` says that it deletes, in order of names.
fn deleted(text: &str) -> Vec<&str> {
    let mut names: Vec<_> = text.lines().filter_map(|line| line.strip_prefix("deleting ")).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_dry_run_names_exactly_the_deletions_of_the_real_run() {
    let place = Place::new();
    for path in ["one/of-one", "two/of-two", "dst/of-one", "dst/of-two", "dst/old/a", "dst/old/b.log", "dst/old/c/d"] {
        fs::create_dir_all(place.path(path).parent().unwrap()).unwrap();
        fs::write(place.path(path), "").unwrap();
    }
    let arguments = ["--delete", "--exclude", "*.log", "one/", "two/", "dst"];
    let planned = place.fullbore(&[&["-n"][..], &arguments].concat());
    let done = place.fullbore(&[&["-v"][..], &arguments].concat());
    for output in [&planned, &done] {
        let text = said(output);
        assert_eq!(deleted(&text), ["old/a", "old/c", "old/c/d"], "{text}");
        assert!(
            text.contains("old: not deleted: there is something excluded in it") && output.status.success(),
            "{text}"
        );
    }
    assert!(place.path("dst/of-one").exists() && place.path("dst/of-two").exists());
    assert_eq!(fs::read_dir(place.path("dst/old")).unwrap().count(), 1);
}

#[test]
fn a_source_within_the_destination_is_not_deleted_there() {
    let place = Place::new();
    for path in ["dst/a/deep/one", "dst/a/deep/two.log", "dst/old"] {
        write(&place.path(path), "x");
    }
    for source in ["dst/a/deep/", "dst/../dst/a/deep/."] {
        let refused = place.fullbore(&["--delete", "--exclude", "*.log", source, "dst"]);
        assert!(said(&refused).contains("is within DST, and --delete would delete it"), "{}", said(&refused));
        assert_eq!(refused.status.code(), Some(1), "{}", said(&refused));
    }
    assert!(place.path("dst/old").exists() && place.path("dst/a/deep/two.log").exists());
    let output = place.fullbore(&["--delete", "--exclude", "/a", "dst/a/deep/", "dst"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(place.path("dst/one").exists() && place.path("dst/a/deep/one").exists() && !place.path("dst/old").exists());
}

#[test]
fn one_file_system_deletes_nothing_on_mounts_below() {
    let place = Place::new();
    fs::create_dir(place.path("src")).unwrap();
    fs::create_dir_all(place.path("dst/old/inner")).unwrap();
    let disk = SmallDisk::new(place.path("dst/old/disk"), "1m");
    fs::write(disk.0.join("precious"), "").unwrap();
    let output = place.fullbore(&["-x", "--delete", "src/", "dst"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("old/disk: could not be deleted"), "{}", said(&output));
    assert!(disk.0.join("precious").exists() && !place.path("dst/old/inner").exists());
}

/// A source with one of everything that is no directory, and a destination with a full directory of each name.
fn in_the_way(place: &Place) -> Vec<&'static str> {
    let source = place.path("src");
    write(&source.join("d/small"), "content");
    write(&source.join("d/empty"), "");
    write(&source.join("d/big"), vec![7; 3_000_000]);
    write(&source.join("d/kept"), "here already");
    fs::hard_link(source.join("d/kept"), source.join("d/name-of-kept")).unwrap();
    fs::hard_link(source.join("d/small"), source.join("d/name-of-small")).unwrap();
    fs::hard_link(source.join("d/small"), source.join("another-name-of-small")).unwrap();
    symlink("elsewhere", source.join("d/link")).unwrap();
    fs::hard_link(source.join("d/link"), source.join("d/name-of-link")).unwrap();
    assert!(Command::new("mkfifo").arg(source.join("pipe")).status().unwrap().success());
    let names =
        vec!["d/small", "d/empty", "d/big", "d/name-of-kept", "d/name-of-small", "d/link", "d/name-of-link", "pipe"];
    for name in &names {
        write(&place.path("dst").join(name).join("sub/file"), "old");
        symlink("/", place.path("dst").join(name).join("to-all")).unwrap();
    }
    write(&place.path("dst/extra"), "old");
    names
}

#[test]
fn files_links_and_pipes_take_the_place_of_full_directories_as_with_rsync() {
    let place = Place::new();
    let names = in_the_way(&place);
    rsync(&place, &["-a", "dst/", "before"]);
    rsync(&place, &["-a", "dst/", "theirs"]);
    rsync(&place, &["-aHAX", "--delete", "src/", "theirs"]);
    let planned = place.copy(&["-n", "--delete", "src/", "dst"]);
    assert_same(&place.path("before"), &place.path("dst"));
    let done = place.copy(&["-v", "--delete", "src/", "dst"]);
    assert_eq!(deleted(&planned).len(), 4 * names.len() + 1, "{planned}");
    assert_eq!(deleted(&planned), deleted(&done));
    let made = |text: &str| {
        let mut names: Vec<_> = text.lines().filter(|line| !line.contains(' ')).map(str::to_owned).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(made(&planned), made(&done));
    for name in names {
        assert!(made(&done).iter().any(|line| line == name), "{name} is not told of: {done}");
    }
    assert_same(&place.path("src"), &place.path("theirs"));
    assert_same(&place.path("src"), &place.path("dst"));
    assert!(place.copy(&["--delete", "src/", "dst"]).starts_with("nothing to copy"));
}

#[test]
fn without_delete_full_directories_stay_and_nothing_is_left_beside_them() {
    let place = Place::new();
    let names = in_the_way(&place);
    for arguments in [&["-n", "src/", "dst"][..], &["src/", "dst"]] {
        let text = said(&place.fullbore(arguments));
        for name in &names {
            let problem = format!("{name}: could not be written: a non-empty directory is in its place: --del");
            assert!(text.contains(&problem), "{name}: {text}");
            assert!(place.path("dst").join(name).join("sub/file").exists());
        }
        assert!(!text.lines().any(|line| names.contains(&line)), "what is not copied is told as copied: {text}");
    }
    assert!(!said(&rsync(&place, &["-a", "--list-only", "dst/"])).contains("fullbore"));
}

#[test]
fn excluded_files_and_mounts_protect_a_directory_in_the_way() {
    let place = Place::new();
    write(&place.path("src/name"), vec![7; 3_000_000]);
    write(&place.path("dst/name/a/keep.log"), "mine");
    write(&place.path("dst/name/b"), "old");
    write(&place.path("dst/extra"), "old");
    let refused = |arguments: &[&str], why: &str| {
        let output = place.fullbore(arguments);
        let text = said(&output);
        let problem = format!("name: could not be written: a non-empty directory is in its place: {why}");
        assert!(output.status.code() == Some(2) && text.contains(&problem), "{text}");
        assert!(text.contains("nothing was deleted") && deleted(&text).is_empty(), "{text}");
        assert!(place.path("dst/name/a/keep.log").exists() && place.path("dst/name/b").exists());
        assert!(place.path("dst/extra").exists() && !place.path("dst/.name.fullbore-part").exists());
        let in_vain = !text.contains("nothing to copy") && !text.contains("would copy 0 B in 0 files");
        assert!(!in_vain, "its content was sent: {text}");
    };
    for dry_run in [&["-n"][..], &[]] {
        let excluding = ["--delete", "--exclude", "*.log", "src/", "dst"];
        refused(&[dry_run, &excluding].concat(), "name/a/keep.log is excluded");
    }
    let disk = SmallDisk::new(place.path("dst/name/disk"), "1m");
    refused(&["-x", "--delete", "src/", "dst"], "name/disk is another file system");
    drop(disk);
    place.copy(&["-x", "--delete", "src/", "dst"]);
    assert_same(&place.path("src"), &place.path("dst"));
}

#[test]
fn after_an_error_received_files_wait_beside_the_directory() {
    let place = Place::new();
    let names = in_the_way(&place);
    // No copy takes such a file along: an error of its own.
    write(&place.path("src/.x.fullbore-part"), "");
    for verify in [&["--verify"][..], &[]] {
        let output = place.fullbore(&[verify, &["--delete", "src/", "dst"]].concat());
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains("nothing was deleted"), "{text}");
        for name in &names {
            let problem = format!("{name}: could not be written: a directory is in its place, which is deleted when");
            assert!(text.contains(&problem), "{name}: {text}");
            assert!(place.path("dst").join(name).join("sub/file").exists() && place.path("dst/extra").exists());
        }
    }
    fs::remove_file(place.path("src/.x.fullbore-part")).unwrap();
    let text = place.copy(&["--delete", "src/", "dst"]);
    assert!(text.contains("3.00 MB were there from an earlier run"), "{text}");
    assert_same(&place.path("src"), &place.path("dst"));
}

#[test]
fn a_copy_killed_while_deleting_loses_nothing_and_the_next_finishes() {
    let place = Place::new();
    write(&place.path("src/name"), vec![7; 3_000_000]);
    write(&place.path("src/other"), "other");
    write(&place.path("dst/zzz/extra"), "old");
    let old = |number: u32| place.path("dst/name").join(format!("{}{number}", "x".repeat(200)));
    (0..2000).for_each(|number| write(&old(number), "old"));
    let mut copy = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    copy.args(["copy", "-v", "--delete", "src/", "dst"]).current_dir(place.path("")).stdout(Stdio::piped());
    let mut copy = copy.spawn().unwrap();
    // It waits with its words as soon as the pipe is full, long before all is deleted.
    let mut lines = BufReader::new(copy.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().starts_with("deleting name/")));
    copy.kill().unwrap();
    copy.wait().unwrap();
    let left = (0..2000).filter(|number| old(*number).exists()).count();
    assert!(left > 0 && left < 2000, "{left} left: it was not killed in the middle");
    assert_eq!(fs::read(place.path("dst/.name.fullbore-part")).unwrap(), vec![7; 3_000_000]);
    assert!(place.path("dst/zzz/extra").exists() && place.path("dst/other").exists());
    let text = place.copy(&["--delete", "src/", "dst"]);
    assert!(text.contains("3.00 MB were there from an earlier run"), "{text}");
    assert_same(&place.path("src"), &place.path("dst"));
}

#[test]
fn excluded_names_keep_their_directory_as_with_rsync_and_that_is_no_error() {
    let place = Place::new();
    write(&place.path("src/file"), "new");
    for path in ["gone/a/keep.log", "gone/a/old", "gone/cache/x", "gone/b/old"] {
        write(&place.path("dst").join(path), path);
    }
    rsync(&place, &["-a", "dst/", "theirs"]);
    let filters = ["--delete", "--exclude", "*.log", "--exclude", "cache/"];
    let theirs = rsync(&place, &[&["-a"], &filters[..], &["src/", "theirs"]].concat());
    assert!(theirs.status.success() && said(&theirs).contains("cannot delete non-empty directory"), "{theirs:?}");
    let text = place.copy(&[&filters[..], &["src/", "dst"]].concat());
    for directory in ["gone", "gone/a"] {
        assert!(text.contains(&format!("{directory}: not deleted: there is something excluded in it")), "{text}");
    }
    let events = place.copy(&[&["--json"], &filters[..], &["src/", "dst"]].concat());
    let told = r#""event":"problem","problem":"protected","path":"gone/a""#;
    assert!(events.contains(told) && events.contains("\"harmless\":true"), "{events}");
    assert!(events.contains("\"problems\":{}") && events.contains("\"exit_code\":0"), "{events}");
    // Of times of what is kept no program says anything.
    assert_eq!(said(&rsync(&place, &["-rni", "--checksum", "--delete", "theirs/", "dst"])), "");
    assert!(place.path("dst/gone/cache/x").exists() && !place.path("dst/gone/b").exists());
}

#[test]
fn a_failed_hard_link_stops_deletion_and_a_copied_one_does_not() {
    let place = Place::new();
    write(&place.path("src/first"), "content");
    write(&place.path("dst/extra"), "old");
    fs::hard_link(place.path("src/first"), place.path("src/mount")).unwrap();
    let disk = SmallDisk::new(place.path("dst/mount"), "1m");
    let output = place.fullbore(&["--delete", "src/", "dst"]);
    let text = said(&output);
    assert!(text.contains("mount: could not be written") && text.contains("nothing was deleted"), "{text}");
    assert!(output.status.code() == Some(2) && place.path("dst/extra").exists(), "{text}");
    assert_eq!(fs::read_dir(place.path("dst")).unwrap().count(), 3, "something was left beside it");
    fs::remove_file(place.path("src/mount")).unwrap();
    fs::create_dir(place.path("src/mount")).unwrap();
    fs::hard_link(place.path("src/first"), place.path("src/mount/second")).unwrap();
    let output = place.fullbore(&["--delete", "src/", "dst"]);
    let text = said(&output);
    assert!(text.contains("mount/second: hard link not kept: copied instead"), "{text}");
    assert!(output.status.code() == Some(2) && !text.contains("nothing was deleted"), "{text}");
    assert!(!place.path("dst/extra").exists() && disk.0.join("second").exists());
}

#[test]
fn a_directory_does_not_replace_a_file_of_another_source() {
    let place = Place::new();
    write(&place.path("one/name"), "file");
    write(&place.path("two/name/sub/file"), "in a directory");
    write(&place.path("two/other"), "other");
    write(&place.path("dst/extra"), "old");
    for _ in 0..2 {
        let output = place.fullbore(&["--delete", "one/", "two/", "dst"]);
        let text = said(&output);
        assert!(output.status.code() == Some(2) && text.contains("nothing was deleted"), "{text}");
        assert!(text.contains("name: name not possible at the destination: another source"), "{text}");
        assert_eq!(fs::read(place.path("dst/name")).unwrap(), b"file");
        assert!(place.path("dst/extra").exists() && place.path("dst/other").exists());
    }
    // The directory comes first: as with rsync it stays, and what is in it.
    fs::remove_file(place.path("dst/name")).unwrap();
    place.copy(&["--delete", "two/", "one/", "dst"]);
    assert_eq!(fs::read(place.path("dst/name/sub/file")).unwrap(), b"in a directory");
    assert!(!place.path("dst/extra").exists());
}

fn chown_to_nobody(place: &Place, names: &[&str]) {
    let status = Command::new("chown").args(["-R", "65534:65534"]).args(names).current_dir(place.path("")).status();
    assert!(status.unwrap().success());
}

/// Runs a program as a user who is not root, whom permissions bind.
fn as_nobody(place: &Place, program: &Path, arguments: &[&str]) -> Output {
    let user = ["--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut command = Command::new("setpriv");
    command.args(user).arg(program).args(arguments).current_dir(place.path(""));
    command.output().unwrap()
}

/// The permissions beneath a name, which are opened to look at them: this is root.
fn modes(place: &Place, name: &str) -> [u32; 2] {
    ["", "sub"].map(|inner| fs::metadata(place.path(name).join(inner)).unwrap().mode() & 0o7777)
}

#[test]
fn linked_files_of_ours_that_we_cannot_read_are_separated() {
    let place = Place::new();
    let program = place.path("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
    for (name, mode) in [("src/a", 0o644), ("src/b", 0o600), ("dst/a", 0o200)] {
        write(&place.path(name), "content");
        fs::File::options().write(true).open(place.path(name)).unwrap().set_modified(time).unwrap();
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::hard_link(place.path("dst/a"), place.path("dst/b")).unwrap();
    // A name outside of the copy keeps its permissions.
    fs::hard_link(place.path("dst/a"), place.path("outside")).unwrap();
    chown_to_nobody(&place, &["src", "dst"]);
    let output = as_nobody(&place, &program, &["copy", "src/", "dst"]);
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    for (name, mode) in [("dst/a", 0o644), ("dst/b", 0o600), ("outside", 0o200)] {
        let status = fs::metadata(place.path(name)).unwrap();
        assert_eq!((status.mode() & 0o7777, status.nlink()), (mode, 1), "{name}");
        assert_eq!(fs::read(place.path(name)).unwrap(), b"content");
    }
}

#[test]
fn a_read_only_destination_of_ours_is_copied_into() {
    let place = Place::new();
    let program = place.path("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for (arguments, at, after) in [
        // The destination has the permissions of the source, or, if it is not part of the copy, its own.
        (&["src/", "dst"][..], "dst", [0o750, 0o755]),
        (&["--no-perms", "src/", "dst"], "dst", [0, 0]),
        (&["src/sub/file", "dst"], "dst", [0, 0]),
        (&["src", "dst"], "dst", [0, 0]),
        (&["src", "dst"], "dst/src", [0o750, 0o755]),
    ] {
        for mode in [0o555, 0o500, 0o3555, 0o300, 0] {
            let _ = fs::remove_dir_all(place.path("src"));
            let _ = fs::remove_dir_all(place.path("dst"));
            write(&place.path("src/sub/file"), "content");
            write(&place.path("dst/sub/old"), "old");
            write(&place.path("dst/src/sub/old"), "old");
            for (name, mode) in [
                ("src", 0o750),
                ("src/sub", 0o755),
                ("dst/sub", mode),
                ("dst/src", mode),
                ("dst/src/sub", mode),
                ("dst", mode),
            ] {
                fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            chown_to_nobody(&place, &["src", "dst"]);
            // chown takes set-id bits away from nobody here: these are directories.
            let after = after.map(|after| if after == 0 { mode } else { after });
            let call = [&["copy"][..], arguments].concat();
            let output = as_nobody(&place, &program, &call);
            assert_eq!(output.status.code(), Some(0), "{call:?} {mode:o}: {}", said(&output));
            assert_eq!(modes(&place, at), after, "{call:?} {mode:o}");
            let copied = ["dst/sub/file", "dst/file", "dst/src/sub/file"].map(|name| place.path(name).exists());
            assert!(copied.contains(&true), "{call:?} {mode:o}");
            assert!(!place.path("dst/.fullbore-copy").exists());
            // A dry run of the same makes nothing, and has nothing to say against it where it can look.
            if mode & 0o500 == 0o500 {
                fs::remove_file(place.path("dst/sub/file"))
                    .or_else(|_| fs::remove_file(place.path("dst/src/sub/file")))
                    .ok();
                let output = as_nobody(&place, &program, &[&["copy", "-n"][..], arguments].concat());
                assert_eq!(output.status.code(), Some(0), "-n {call:?} {mode:o}: {}", said(&output));
                assert_eq!(modes(&place, at), after, "-n {call:?} {mode:o}");
            }
        }
    }
}

#[test]
fn directories_of_ours_that_let_nobody_write_are_deleted_as_with_rsync() {
    let place = Place::new();
    let program = place.path("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    fs::create_dir(place.path("src")).unwrap();
    write(&place.path("dst/gone/read-only/file"), "old");
    write(&place.path("dst/gone/closed/file"), "old");
    write(&place.path("dst/stays/keep.log"), "mine");
    write(&place.path("dst/stays/file"), "old");
    let change = |name: &str, mode| fs::set_permissions(place.path(name), fs::Permissions::from_mode(mode)).unwrap();
    for (name, mode) in [("dst/gone/read-only", 0o555), ("dst/gone/closed", 0), ("dst/stays", 0o555), ("", 0o755)] {
        change(name, mode);
    }
    chown_to_nobody(&place, &["src", "dst"]);
    let output = as_nobody(&place, &program, &["copy", "--delete", "--exclude", "*.log", "src/", "dst"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(!place.path("dst/gone").exists() && !place.path("dst/stays/file").exists());
    let stays = fs::metadata(place.path("dst/stays")).unwrap();
    assert!(place.path("dst/stays/keep.log").exists() && stays.mode() & 0o777 == 0o555, "{:o}", stays.mode());
}

#[test]
fn a_file_of_any_source_is_not_deleted_whatever_their_order() {
    let place = Place::new();
    for path in ["file", "content/of-content", "content/named/both", "named/both", "named/of-named", "dst/extra"] {
        write(&place.path(path), path);
    }
    for path in ["content", "content/named"] {
        fs::set_permissions(place.path(path), fs::Permissions::from_mode(0o700)).unwrap();
    }
    for sources in [["file", "content/", "named"], ["named", "content/", "file"], ["content/", "file", "named"]] {
        rsync(&place, &[&["-aHAX", "--delete"], &sources[..], &["theirs"]].concat());
        for _ in 0..2 {
            place.copy(&[&["--delete"], &sources[..], &["dst"]].concat());
            assert_same(&place.path("theirs"), &place.path("dst"));
            assert_eq!(fs::read_dir(place.path("dst")).unwrap().count(), 3, "{sources:?}");
        }
    }
}

/// The names in a directory, in their order.
fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn what_any_source_has_of_a_shared_directory_is_not_deleted() {
    let place = Place::new();
    for path in ["x/b/c", "x/b/cd/file", "y/b/q", "y/b/d/of-y", "z/b/d/of-z", "dst/b/old", "dst/b/d/old"] {
        write(&place.path(path), path);
    }
    symlink("c", place.path("x/b/link")).unwrap();
    let orders: [&[&str]; 4] = [
        &["x/./b/c", "x/./b/cd", "x/./b/link", "y/./b", "z/./b/d"],
        &["z/./b/d", "x/./b/link", "x/./b/cd", "x/./b/c", "y/./b/"],
        &["y/./b", "x/./b/c", "z/./b/d/of-z", "x/./b/cd", "x/./b/link"],
        &["z/./b/d/of-z", "x/./b/c", "x/./b/cd", "y/./b", "x/./b/link"],
    ];
    for sources in orders {
        for _ in 0..3 {
            write(&place.path("dst/b/old"), "old");
            place.copy(&[&["-R", "--delete"], sources, &["dst"]].concat());
            assert_eq!(names(&place.path("dst/b")), ["c", "cd", "d", "link", "q"], "{sources:?}");
            assert_eq!(names(&place.path("dst/b/d")), ["of-y", "of-z"], "{sources:?}");
            assert_eq!(names(&place.path("dst/b/cd")), ["file"], "{sources:?}");
        }
    }
}

#[test]
fn nothing_goes_where_one_of_several_sources_cannot_be_listed() {
    let place = Place::new();
    for path in ["s1/sub/a", "s1/ok/one", "s2/sub/b", "s2/sub/gone/of-s2", "s2/ok/two"] {
        write(&place.path(path), path);
    }
    symlink("nowhere", place.path("s1/sub/gone")).unwrap();
    for path in ["dst/sub/old", "dst/sub/gone/of-s1", "dst/ok/old"] {
        write(&place.path(path), "old");
    }
    // Several rounds: threads list both directories at the same time.
    for sources in [["s1/", "s2/"], ["s2/", "s1/"]].repeat(8) {
        write(&place.path("dst/ok/old"), "old");
        let output = place.fullbore(&["-L", "--ignore-errors", "--delete", sources[0], sources[1], "dst"]);
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert_eq!(names(&place.path("dst/sub")), ["a", "b", "gone", "old"], "{sources:?}");
        assert_eq!(names(&place.path("dst/sub/gone")), ["of-s1", "of-s2"], "{sources:?}");
        assert_eq!(names(&place.path("dst/ok")), ["one", "two"], "{sources:?}");
    }
    // What was copied of one that is not there stays.
    write(&place.path("dst/another/file"), "x");
    write(&place.path("dst/ok/old"), "old");
    let output = place.fullbore(&["--ignore-errors", "--delete", "s2/", "elsewhere/another", "dst"]);
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(place.path("dst/another/file").exists() && !place.path("dst/ok/old").exists());
}

#[test]
fn no_source_is_deleted_that_lies_where_another_one_is_complete() {
    let place = Place::new();
    let make = || {
        let _ = fs::remove_dir_all(place.path("d"));
        for path in ["d/a/b/f", "d/a/file", "d/b/b/deep", "d/c/c", "d/old", "e/of-e", "e/a/of-e", "e/p/a/b/of-e"] {
            write(&place.path(path), path);
        }
        write(&place.path("files/a"), "a file");
        let _ = fs::remove_file(place.path("link"));
        symlink("d/a/b", place.path("link")).unwrap();
    };
    let cases: [&[&str]; 9] = [
        // Beside the content of another source.
        &["d/a/b", "e/", "d"],
        &["d/a/file", "e/", "d"],
        &["e/", "d/../d/a/./b", "d"],
        // In a directory that another source names, or that the source itself makes.
        &["d/a/b", "e/a", "d"],
        &["d/b/b", "d"],
        // In the way of a file.
        &["d/a/b", "files/a", "d"],
        &["d/c/c", "d"],
        &["-R", "d/a/./b", "e/./a", "d"],
        &["-L", "link", "e/", "d"],
    ];
    for case in cases {
        for delete in ["--delete", "--delete-before"] {
            make();
            let refused = place.fullbore(&[&[delete], case].concat());
            let text = said(&refused);
            assert!(text.contains("is within DST, and --delete would delete it"), "{case:?}: {text}");
            assert_eq!(refused.status.code(), Some(1), "{case:?}: {text}");
            for kept in ["d/a/b/f", "d/a/file", "d/b/b/deep", "d/c/c", "d/old"] {
                assert!(place.path(kept).exists(), "{case:?}: {kept}");
            }
        }
    }
    // Where nothing else is complete, or it is excluded, nothing speaks against it.
    for case in [&["d/a/b", "d"][..], &["--exclude", "/a", "d/a/b", "e/", "d"], &["d/a/b", "files/a", "e/p", "else"]] {
        make();
        place.copy(&[&["--delete"], case].concat());
        assert!(place.path("d/a/b/f").exists(), "{case:?}");
    }
}

#[test]
fn a_link_that_has_to_be_a_copy_gets_its_name_only_when_it_is_whole() {
    let place = Place::new();
    write(&place.path("src/a"), vec![7; 3_000_000]);
    fs::create_dir_all(place.path("src/sub")).unwrap();
    fs::hard_link(place.path("src/a"), place.path("src/sub/b")).unwrap();
    fs::create_dir_all(place.path("dst")).unwrap();
    {
        // It is seen to be too small before anything is copied.
        let disk = SmallDisk::new(place.path("dst/sub"), "1m");
        let output = place.fullbore(&["src/", "dst"]);
        assert_eq!(output.status.code(), Some(7), "{}", said(&output));
        assert!(said(&output).contains("the destination is too small"), "{}", said(&output));
        assert!(names(&disk.0).is_empty() && !place.path("dst/a").exists());
    }
    fs::remove_dir(place.path("dst/sub")).unwrap();
    // It is filled meanwhile by somebody else.
    let disk = SmallDisk::new(place.path("dst/sub"), "4m");
    let mut command = Command::new(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["copy", "--bwlimit", "1M", "src/", "dst"]).current_dir(place.path(""));
    let copy = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while !place.path("dst/.a.fullbore-part").exists() && !place.path("dst/a").exists() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    fs::write(disk.0.join("filler"), vec![1; 3 << 20]).unwrap();
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", said(&output));
    assert_eq!(names(&disk.0), ["filler"], "{}", said(&output));
    fs::remove_file(disk.0.join("filler")).unwrap();
    for old in [false, true] {
        if old {
            fs::write(disk.0.join("b"), "old").unwrap();
        }
        let output = place.fullbore(&["-b", "--verify", "src/", "dst"]);
        assert!(said(&output).contains("sub/b: hard link not kept: copied instead"), "{}", said(&output));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert_eq!(fs::read(disk.0.join("b")).unwrap(), fs::read(place.path("src/a")).unwrap());
        assert_eq!(names(&disk.0), if old { &["b", "b~"][..] } else { &["b"] });
    }
    assert_eq!(fs::read(disk.0.join("b~")).unwrap(), b"old");
}

#[test]
fn files_that_the_receivers_user_may_not_read_are_read_back() {
    let place = Place::new();
    let program = place.path("fullbore");
    fullbore_testkit::process::copy_program(env!("CARGO_BIN_EXE_fullbore"), &program);
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    for (name, length) in [("src/small", 100), ("src/big", 3_000_000)] {
        write(&place.path(name), vec![5; length]);
        fs::set_permissions(place.path(name), fs::Permissions::from_mode(0o0)).unwrap();
    }
    fs::create_dir(place.path("dst")).unwrap();
    chown_to_nobody(&place, &["dst"]);
    let way = place.path("way");
    let script = "#!/bin/sh\nexec setpriv --reuid=65534 --regid=65534 --clear-groups $2\n";
    fullbore_testkit::process::write_program(&way, script);
    fs::set_permissions(&way, fs::Permissions::from_mode(0o755)).unwrap();
    let there = format!("host:{}", place.path("dst").display());
    let remote = ["-e", way.to_str().unwrap(), "--remote-path", program.to_str().unwrap(), "--ssh-only"];
    let all = [&remote[..], &["--verify", "--no-owner", "--no-group", "--hash-list", "list", "src/", &there]].concat();
    let copied = |text: &str| text.starts_with("nothing to copy");
    for run in 0..2 {
        let text = place.copy(&all);
        assert_eq!(copied(&text), run == 1, "{text}");
        assert_eq!(fs::read_to_string(place.path("list")).unwrap().lines().count(), 2, "{text}");
        assert_eq!(names(&place.path("dst")), ["big", "small"]);
        for name in ["big", "small"] {
            let [here, there] = ["src", "dst"].map(|at| fs::metadata(place.path(at).join(name)).unwrap());
            assert_eq!((there.mode() & 0o7777, there.mtime()), (0, here.mtime()), "{name}");
        }
    }
}
