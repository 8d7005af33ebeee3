//! What rsync's users, and those who move a service, expect of `fullbore copy` besides the options that are rsync's own.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod harness;

use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use harness::{Place, SmallDisk, said};

fn write(path: &Path, content: impl AsRef<[u8]>) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

fn ended(output: &Output, code: i32) -> String {
    let text = said(output);
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

/// A script that stands for ssh: it runs the last word here, as a shell there would.
fn way(place: &Place, script: &str) -> String {
    let path = place.path("way");
    fullbore_testkit::process::write_program(&path, &format!("#!/bin/sh\n{script}\n"));
    path.display().to_string()
}

/// The far end on this machine.
fn here() -> String {
    format!("for last; do :; done; PATH={}:$PATH exec sh -c \"$last\"", program().parent().unwrap().display())
}

fn program() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_fullbore"))
}

#[test]
fn where_only_deletions_make_room_they_come_first_if_asked_for() {
    let place = Place::new();
    let disk = SmallDisk::new(place.path("disk"), "16m");
    write(&disk.0.join("dst/old"), vec![1; 10 << 20]);
    write(&disk.0.join("dst/way/inner"), "");
    write(&place.path("src/new"), vec![2; 10 << 20]);
    write(&place.path("src/way"), "a file in the place of a directory");
    let text = ended(&place.fullbore(&["--delete", "src/", "disk/dst"]), 7);
    assert!(text.contains("deletions would free 10.5 MB at the end; use --delete-before"), "{text}");
    assert!(disk.0.join("dst/old").exists() && !disk.0.join("dst/new").exists());
    let text = ended(&place.fullbore(&["src/", "disk/dst"]), 7);
    assert!(!text.contains("free 1048") || !text.contains("--delete-before"), "{text}");
    ended(&place.fullbore(&["--delete-before", "src/", "disk/dst"]), 0);
    assert!(!disk.0.join("dst/old").exists() && disk.0.join("dst/way").is_file());
    assert_eq!(fs::metadata(disk.0.join("dst/new")).unwrap().len(), 10 << 20);
}

#[test]
fn deletions_before_a_copy_wait_for_a_whole_listing() {
    let place = Place::new();
    write(&place.path("src/file"), "x");
    write(&place.path("dst/old"), "x");
    let output = place.fullbore(&["--delete-before", "src/", "nowhere/", "dst"]);
    let text = ended(&output, 2);
    assert!(text.contains("nowhere/: could not be read") && place.path("dst/old").exists(), "{text}");
    assert!(place.path("dst/file").exists(), "{text}");
    ended(&place.fullbore(&["--delete-before", "--ignore-errors", "src/", "nowhere/", "dst"]), 2);
    assert!(!place.path("dst/old").exists());
}

#[test]
fn one_missing_source_of_several_stops_no_other() {
    let place = Place::new();
    write(&place.path("one/file"), "1");
    write(&place.path("dst/two/old"), "kept, as the source may have it");
    let text = ended(&place.fullbore(&["--delete", "one", "two", "dst"]), 2);
    assert!(text.contains("two: could not be read: No such file or directory"), "{text}");
    assert!(place.path("dst/one/file").exists() && place.path("dst/two/old").exists(), "{text}");
    // The only one of two that is there gets no new name.
    ended(&place.fullbore(&["one/file", "three", "other"]), 2);
    assert!(place.path("other/file").exists());
    ended(&place.fullbore(&["three", "other"]), 1);
    ended(&place.fullbore(&["three", "four", "other"]), 1);
    // The same by ssh, in either direction.
    let way = way(&place, &here());
    let there = |path: &str| format!("there:{}", place.path(path).display());
    let text = ended(&place.fullbore(&["-e", &way, "one", "two", &there("pushed")]), 2);
    assert!(text.contains("two: could not be read") && place.path("pushed/one/file").exists(), "{text}");
    let text = ended(&place.fullbore(&["-e", &way, &there("one"), &there("two"), "pulled"]), 2);
    assert!(text.contains("two: could not be read") && place.path("pulled/one/file").exists(), "{text}");
}

#[test]
fn views_of_the_kernel_are_no_sources() {
    let place = Place::new();
    write(&place.path("src/file"), "x");
    for source in ["/proc/self", "/proc/self/", "/proc", "/proc/", "/proc/self/status", "/sys/kernel"] {
        let text = ended(&place.fullbore(&[source, "dst"]), 1);
        assert!(text.contains("nothing of /proc and /sys is copied"), "{source}: {text}");
        let text = ended(&place.fullbore(&["src", source, "dst"]), 2);
        assert!(text.contains("nothing of /proc and /sys is copied"), "{source}: {text}");
    }
    symlink("/proc/self/status", place.path("src/status")).unwrap();
    let text = ended(&place.fullbore(&["-L", "src/", "followed"]), 2);
    assert!(text.contains("status: could not be read") && !place.path("followed/status").exists(), "{text}");
    ended(&place.fullbore(&["src/", "linked"]), 0);
    assert!(fs::symlink_metadata(place.path("linked/status")).unwrap().is_symlink());
}

#[test]
fn names_of_unfinished_copies_are_explained_and_may_be_excluded() {
    let place = Place::new();
    for name in ["src/.fullbore-copy", "src/.a.fullbore-part", "src/.b.fullbore-blocks/inner/file", "src/file"] {
        write(&place.path(name), "x");
    }
    let text = ended(&place.fullbore(&["src/", "dst"]), 2);
    assert!(text.contains("rename it, or leave it out with --exclude '.*.fullbore-*'"), "{text}");
    assert!(text.contains("--exclude '/.fullbore-copy'") && place.path("dst/file").exists(), "{text}");
    let excluding = ["--exclude", ".*.fullbore-*", "--exclude", "/.fullbore-copy", "src/", "other"];
    ended(&place.fullbore(&excluding), 0);
    // The same where they are the sources themselves, or named in a list.
    let text = ended(&place.fullbore(&["src/.b.fullbore-blocks", "src/file", "third"]), 2);
    assert!(text.contains("rename it") && !place.path("third/.b.fullbore-blocks").exists(), "{text}");
    fs::write(place.path("list"), ".b.fullbore-blocks\nfile\n").unwrap();
    let text = ended(&place.fullbore(&["-r", "--files-from", "list", "src", "fourth"]), 2);
    assert!(text.contains("rename it") && place.path("fourth/file").exists(), "{text}");
}

#[test]
fn vanished_files_have_an_exit_code_of_their_own() {
    let place = Place::new();
    write(&place.path("src/file"), vec![1; 100]);
    let gone = place.path("src/gone");
    write(&gone, vec![2; 2 << 20]);
    // ssh takes a moment, in which everything has been listed.
    let way = way(&place, &format!("sleep 0.5; rm -f {}; {}", gone.display(), here()));
    let target = format!("there:{}", place.path("dst").display());
    let text = ended(&place.fullbore(&["-e", &way, "src/", &target]), 24);
    assert!(text.contains("gone: vanished before being read") && place.path("dst/file").exists(), "{text}");
    write(&gone, vec![2; 2 << 20]);
    write(&place.path("src/.x.fullbore-part"), "");
    ended(&place.fullbore(&["-e", &way, "src/", &format!("{target}2")]), 2);
}

#[test]
fn a_list_of_hashes_is_what_the_usual_tools_check() {
    let place = Place::new();
    for (path, length) in
        [("src/small", 10), ("src/d/big", 3_000_000), ("src/empty", 0), ("src/new\nline", 5), ("src/b\\s", 5)]
    {
        write(&place.path(path), vec![7; length]);
    }
    fs::hard_link(place.path("src/small"), place.path("src/d/linked")).unwrap();
    symlink("small", place.path("src/link")).unwrap();
    let check = |tool: &str, directory: &str, list: &str| {
        let list = place.path(list);
        let output = Command::new(tool).arg("-c").arg(list).current_dir(place.path(directory)).output().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        String::from_utf8_lossy(&output.stdout).lines().count()
    };
    // The second run copies nothing; the list is the same.
    for _ in 0..2 {
        ended(&place.fullbore(&["--hash-list", "list", "src/", "dst"]), 0);
        assert_eq!((check("sha256sum", "dst", "list"), check("sha256sum", "src", "list")), (6, 6));
    }
    ended(&place.fullbore(&["-n", "--hash-list", "none", "src/", "dst"]), 0);
    assert!(!place.path("none").exists());
    let way = way(&place, &here());
    let there = |path: &str| format!("there:{}", place.path(path).display());
    ended(&place.fullbore(&["-e", &way, "--hash-list", "pushed.sums", "src/", &there("pushed")]), 0);
    ended(&place.fullbore(&["-e", &way, "--hash-list", "pulled.sums", &there("src/"), "pulled"]), 0);
    assert_eq!((check("sha256sum", "pushed", "pushed.sums"), check("sha256sum", "pulled", "pulled.sums")), (6, 6));
    ended(&place.fullbore(&["--hash-list", "list.b3", "src/", "dst"]), 0);
    let list = fs::read_to_string(place.path("list.b3")).unwrap();
    let hash = blake3::hash(&[7; 10]).to_hex().to_string();
    assert!(list.contains(&format!("{hash}  small\n")), "{list}");
    // Its place may be where deletions are made; it is not copied or deleted while it is written.
    for _ in 0..2 {
        ended(&place.fullbore(&["--delete", "--hash-list", "dst/sums", "src/", "dst"]), 0);
        assert_eq!(check("sha256sum", "dst", "dst/sums"), 6);
    }
    // What cannot be written is an error before anything is copied.
    ended(&place.fullbore(&["--hash-list", "nowhere/list", "src/", "dst"]), 7);
}

#[test]
fn words_of_habit_are_taken() {
    let place = Place::new();
    write(&place.path("src/file"), "x");
    let habits = [
        "-avPs",
        "--stats",
        "--info=progress2,stats",
        "--partial-dir=.partial",
        "--mkpath",
        "--timeout=60",
        "--contimeout=5",
        "--no-inc-recursive",
        "--fsync",
        "-E",
        "-y",
        "--compress-level=3",
        "--zc=zstd",
        "--delete-during",
        "src/",
        "a/b/dst",
    ];
    ended(&place.fullbore(&habits), 0);
    assert!(place.path("a/b/dst/file").exists());
    let text = ended(&place.fullbore(&["--info=name", "src/", "named"]), 0);
    assert!(text.lines().any(|line| line == "file"), "{text}");
    // The word for the program there names rsync, and means ours.
    let way = way(&place, "for last; do :; done; echo \"$last\" >> said; exit 1");
    for (path, runs) in [
        ("sudo rsync", "sudo fullbore copy --server"),
        ("/usr/bin/rsync", "fullbore copy --server"),
        ("env A=b /opt/fullbore", "env A=b /opt/fullbore copy --server"),
    ] {
        place.fullbore(&["-e", &way, "--rsync-path", path, "--port", "5000-5010", "src/", "there:dst"]);
        let said = fs::read_to_string(place.path("said")).unwrap();
        assert_eq!(said.lines().last(), Some(&*format!("{runs} --port 5000-5010")), "{path}");
    }
}

#[test]
fn direct_connections_use_ports_of_a_range() {
    let place = Place::new();
    write(&place.path("src/file"), vec![1; 3 << 20]);
    let there = format!("127.0.0.1:{}", place.path("dst").display());
    // Nothing says where the near end is, so that only it dials: to a port of this range.
    let way_to_here = way(&place, &here());
    let text = ended(&place.fullbore(&["-v", "-e", &way_to_here, "--port", "47113-47119", "src/", &there]), 0);
    assert!(text.contains("127.0.0.1:4711"), "{text}");
    // Where none is free, that is said.
    let taken = std::net::TcpListener::bind("[::]:47121").unwrap();
    let text = ended(&place.fullbore(&["-e", &way_to_here, "--port", "47121", "src/", &format!("{there}2")]), 0);
    assert!(text.contains("no direct connection") && text.contains("no free TCP port of 47121 here"), "{text}");
    assert!(text.contains("listens on no TCP port of 47121") && text.contains("--port"), "{text}");
    drop(taken);
    assert_eq!(fs::metadata(place.path("dst2/file")).unwrap().size(), 3 << 20);
    ended(&place.fullbore(&["--port", "0", "src/", "dst"]), 1);
}
