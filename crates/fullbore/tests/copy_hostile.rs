//! `fullbore copy` from a machine in others' hands: it writes and deletes nothing but what was asked for.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

#[path = "copy/harness.rs"]
mod copy_harness;
#[path = "copy/far_end.rs"]
mod far_end;

use std::fs;
use std::path::Path;
use std::process::Output;

use copy_harness::{Place, said};
use far_end::{against, relayed};
use fullbore_copy::entry::{Entry, Kind};
use fullbore_copy::wire::{List, Message};

/// A tree that is asked for, on the other machine.
fn source() -> tempfile::TempDir {
    let source = tempfile::tempdir().unwrap();
    fs::create_dir_all(source.path().join("data/sub")).unwrap();
    for name in ["report.txt", "data/file", "data/sub/file"] {
        fs::write(source.path().join(name), "content").unwrap();
    }
    source
}

/// Copies this path into a home directory that has a key and a file, by a far end whose lists are changed.
fn pull(path: &Path, options: &[&str], change: impl Fn(List) -> List + Send + 'static) -> (Place, Output) {
    let there = format!("host:{}", path.display());
    let arguments = [&["copy", "--durability", "none"][..], options, &[&there, "."]].concat();
    against(&arguments, move |near| {
        relayed(near, |message| {
            [match message {
                Message::List(list) => Message::List(change(list)),
                message => message,
            }]
        });
    })
}

fn entry(name: &[u8], kind: Kind) -> Entry {
    Entry { size: 7, ..Entry::plain(name, kind) }
}

fn assert_left(place: &Place, output: &Output) {
    assert_eq!(output.status.code(), Some(3), "{}", said(output));
    assert!(said(output).contains("it lists entries that were not requested"), "{}", said(output));
    assert!(!place.path(".ssh").exists() && !place.path(".fullbore-copy").exists());
    assert_eq!(fs::read(place.path("src/file")).unwrap().len(), 100_000, "what is here stays");
}

#[test]
fn a_far_sender_adds_no_names_to_those_that_were_asked_for() {
    let source = source();
    let report = source.path().join("report.txt");
    let content = source.path().join("");
    let another_file = |list: List| List { entries: vec![entry(b".bashrc", Kind::File)], ..list };
    let another_directory = |list: List| List { entries: vec![entry(b".ssh", Kind::Directory)], ..list };
    let elsewhere = |list: List| List { directory: b".ssh".to_vec(), ..list };
    let within_here = |list: List| List { directory: b"src".to_vec(), ..list };
    for (path, options) in [(&report, &[][..]), (&content, &["--exclude", ".*", "--exclude", "src"])] {
        for change in [another_file, another_directory, elsewhere, within_here] {
            let (place, output) = pull(path, options, move |list| {
                if list.entries.first().is_some_and(|first| !first.name.is_empty()) { change(list) } else { list }
            });
            // One that stands for the destination's content may have what the filters leave.
            assert_left(&place, &output);
        }
    }
    let listed = source.path().join("list");
    fs::write(&listed, "report.txt\ndata/sub/\n").unwrap();
    let listed = ["--files-from", listed.to_str().unwrap()];
    for change in [another_file, another_directory, elsewhere, within_here] {
        let (place, output) =
            pull(source.path(), &listed, move |list| if list.directory.is_empty() { change(list) } else { list });
        assert_left(&place, &output);
    }
}

#[test]
fn a_far_sender_of_a_file_deletes_nothing_beside_it() {
    let source = source();
    let complete = |list: List| List { complete: list.directory.is_empty(), ..list };
    for name in ["report.txt", "data"] {
        let (place, output) = pull(&source.path().join(name), &["--delete"], complete);
        assert_left(&place, &output);
    }
}

#[test]
fn what_was_asked_for_comes_from_an_honest_far_sender() {
    let source = source();
    let kept = format!("{}/./data/sub", source.path().display());
    let list = source.path().join("list");
    fs::write(&list, "report.txt\ndata/sub/\n").unwrap();
    let list = ["--files-from", list.to_str().unwrap()];
    // A path, options, and names that come and that do not.
    type Case<'a> = (&'a str, &'a [&'a str], &'a [&'a str], &'a [&'a str]);
    let cases: [Case<'_>; 6] = [
        ("report.txt", &[], &["report.txt"], &["data"]),
        ("data", &["--delete"], &["data/file", "data/sub/file"], &["report.txt"]),
        ("data/", &["--exclude", "/sub"], &["file"], &["sub", "data"]),
        ("", &["--exclude", "sub/", "--delete", "--exclude", "/src"], &["report.txt", "data/file"], &["data/sub"]),
        ("", &list, &["report.txt", "data/sub/file"], &["data/file"]),
        (&kept, &["-R"], &["data/sub/file"], &["data/file", "report.txt"]),
    ];
    for (path, options, there, not_there) in cases {
        let (place, output) = pull(&source.path().join(path), options, |list| list);
        assert_eq!(output.status.code(), Some(0), "{path} {options:?}: {}", said(&output));
        assert!(there.iter().all(|name| place.path(name).exists()), "{path} {options:?}");
        assert!(!not_there.iter().any(|name| place.path(name).exists()), "{path} {options:?}");
    }
}
