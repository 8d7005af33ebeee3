//! Files that a run has put, and that later runs need not read.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, WaitIdOptions};

use super::faults::well;
use super::servers::{Client, Server, content, finish, interrupt, moto, versitygw};
use super::store::{Fault, Request, Store};

/// Longer than a tick of the clock by which file systems set times.
const TICKS: Duration = Duration::from_millis(60);

/// Each file of a tree. All of them are more than a run reads apart from them: libraries, settings, certificates, answers.
const FILE_BYTES: usize = 400_000;

/// A tree of `count` files, on a file system whose times of change are relied on, which a tmpfs in /tmp would not be.
fn tree(count: u64) -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let tree = directory.path().join("tree");
    fs::create_dir(&tree).unwrap();
    for number in 0..count {
        fs::write(tree.join(number.to_string()), content(FILE_BYTES, number)).unwrap();
    }
    std::thread::sleep(TICKS);
    (directory, tree)
}

/// A run of `put`.
struct Put {
    files: u64,
    present: u64,
    stderr: String,
    /// Bytes that the process read in all, those of its sockets left out.
    read_bytes: u64,
}

/// Puts a file or directory, which has to go well.
fn put(client: &Client, source: &Path, more: &[&str]) -> Put {
    let mut arguments = vec!["put", "--json", source.to_str().unwrap(), "s3://bucket/t/"];
    arguments.extend(more);
    let out = client.home.path().join("stdout");
    let mut child =
        client.command(arguments).stdout(File::create(&out).unwrap()).stderr(Stdio::piped()).spawn().unwrap();
    // It has ended and is still there, with its counts.
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
    rustix::process::waitid(rustix::process::WaitId::Pid(pid), options).unwrap();
    let counts = fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
    let read = counts.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap();
    let stderr = std::io::read_to_string(child.stderr.take().unwrap()).unwrap();
    assert!(child.wait().unwrap().success(), "{stderr}");
    let summary = fs::read_to_string(out).unwrap();
    let summary: serde_json::Value = serde_json::from_str(summary.lines().last().unwrap()).unwrap();
    let count = |name: &str| summary["store"][name].as_u64().unwrap();
    Put {
        files: count("files") + count("would_store"),
        present: count("present"),
        stderr,
        read_bytes: read.parse().unwrap(),
    }
}

impl Put {
    fn counts(&self) -> (u64, u64) {
        (self.files, self.present)
    }

    /// How many files of the tree it read, rounded down.
    fn read_files(&self) -> u64 {
        // What a run reads apart from files is less than one of them.
        self.read_bytes / FILE_BYTES as u64
    }
}

fn rewrite(path: &Path, seed: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let size = usize::try_from(file.metadata().unwrap().len()).unwrap();
    file.write_all_at(&content(size, seed), 0).unwrap();
    // As `touch -d` does.
    file.set_modified(modified).unwrap();
}

fn only_changed_files_are_read(server: &Server) {
    let client = Client::new(&server.url);
    let (_directory, tree) = tree(20);
    let large = content(20 << 20, 99);
    fs::write(tree.join("large"), &large).unwrap();
    std::thread::sleep(TICKS);
    let first = put(&client, &tree, &[]);
    assert_eq!(first.counts(), (21, 0));
    assert!(first.read_files() >= 20 + 50, "this test sees what is read: {}", first.read_bytes);
    let again = put(&client, &tree, &[]);
    assert_eq!((again.counts(), again.read_files()), ((0, 21), 0), "{} {}", again.read_bytes, again.stderr);
    let all = put(&client, &tree, &["--checksum"]);
    assert_eq!(all.counts(), (0, 21));
    assert!(all.read_files() >= 20 + 50, "{}", all.read_bytes);

    // The same sizes and times of modification, and other bytes.
    rewrite(&tree.join("3"), 103);
    rewrite(&tree.join("large"), 199);
    let other = tree.join("other");
    fs::write(&other, content(FILE_BYTES, 104)).unwrap();
    let modified = fs::metadata(tree.join("4")).unwrap().modified().unwrap();
    File::options().write(true).open(&other).unwrap().set_modified(modified).unwrap();
    fs::rename(other, tree.join("4")).unwrap();
    // A file that only looks new is compared, and not sent.
    File::options().write(true).open(tree.join("5")).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    std::thread::sleep(TICKS);
    let changed = put(&client, &tree, &[]);
    assert_eq!(changed.counts(), (3, 18));
    assert!((53..110).contains(&changed.read_files()), "{}", changed.read_bytes);
    assert_eq!(client.get("s3://bucket/t/3"), content(FILE_BYTES, 103));
    assert_eq!(client.get("s3://bucket/t/4"), content(FILE_BYTES, 104));
    assert!(client.get("s3://bucket/t/large") == content(20 << 20, 199));
    assert_eq!(put(&client, &tree, &[]).read_files(), 0);

    // The object was changed: by another one of the same size, and by deletion.
    let (_elsewhere, others) = self::tree(1);
    rewrite(&others.join("0"), 107);
    fs::rename(others.join("0"), others.join("7")).unwrap();
    assert_eq!(put(&client, &others.join("7"), &[]).counts(), (1, 0));
    let repaired = put(&client, &tree, &[]);
    assert_eq!((repaired.counts(), repaired.read_files()), ((1, 20), 1), "{}", repaired.read_bytes);
    assert_eq!(client.get("s3://bucket/t/7"), content(FILE_BYTES, 7));

    // Without the notes all is read, and nothing is sent.
    let state = client.home.path().join(".local/state/fullbore/put");
    let notes: Vec<_> = fs::read_dir(&state).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(notes.len(), 1, "{notes:?}");
    fs::write(&notes[0], "damaged").unwrap();
    let dry = put(&client, &tree, &["--dry-run"]);
    assert_eq!(dry.counts(), (0, 21));
    assert!(dry.read_files() >= 70, "{}", dry.read_bytes);
    assert_eq!(fs::read(&notes[0]).unwrap(), b"damaged", "a dry run changes nothing");
    assert!(put(&client, &tree, &[]).read_files() >= 70);
    assert_eq!(put(&client, &tree, &["--dry-run"]).read_files(), 0);
    // A dry run lists what it would upload, and nothing else.
    fs::write(tree.join("new"), "new").unwrap();
    let dry = client.command(["put", "--dry-run", tree.to_str().unwrap(), "s3://bucket/t/"]).output().unwrap();
    let listed = String::from_utf8_lossy(&dry.stdout).into_owned();
    let addresses: Vec<&str> = listed.lines().filter(|line| line.starts_with("s3://")).collect();
    assert_eq!(addresses, ["s3://bucket/t/new"], "{listed}");
    fs::remove_file(tree.join("new")).unwrap();
    // Another directory for the state: nothing is known there yet.
    let elsewhere = client.home.path().join("state");
    let done = put(&client, &tree, &["--state-dir", elsewhere.to_str().unwrap()]);
    assert!(done.counts() == (0, 21) && done.read_files() >= 70, "{}", done.read_bytes);
    assert_eq!(put(&client, &tree, &["--state-dir", elsewhere.to_str().unwrap()]).read_files(), 0);
}

#[test]
fn only_changed_files_are_read_of_versitygw() {
    only_changed_files_are_read(&versitygw());
}

#[test]
fn only_changed_files_are_read_of_moto() {
    only_changed_files_are_read(&moto());
}

fn methods(store: &Store) -> Vec<String> {
    let mut methods: Vec<_> = store.requests().into_iter().map(|request| request.method).collect();
    methods.sort();
    methods
}

/// A store whose ETags are no MD5 sums: without notes, it is asked for each object.
fn store(script: impl FnMut(&Request) -> Fault + Send + 'static) -> (Store, Client) {
    let store = Store::start(script);
    store.has_one_etag();
    let client = Client::new(&store.url);
    (store, client)
}

#[test]
fn a_listing_is_all_that_unchanged_files_need() {
    let (store, client) = store(well());
    let (_directory, tree) = tree(30);
    assert_eq!(put(&client, &tree, &[]).counts(), (30, 0));
    store.requests();
    let again = put(&client, &tree, &[]);
    assert_eq!((again.counts(), again.read_files()), ((0, 30), 0));
    assert_eq!(methods(&store), ["GET"]);
    // An ETag that only seems to be the one of the file's content.
    store.put("t/1", &content(FILE_BYTES, 101));
    assert_eq!(put(&client, &tree, &[]).counts(), (1, 29));
    assert_eq!(store.object("t/1").unwrap().content, content(FILE_BYTES, 1));
}

#[test]
fn of_few_files_the_objects_are_asked_for_before_the_files_are_read() {
    let (store, client) = store(well());
    let (_directory, tree) = tree(3);
    assert_eq!(put(&client, &tree, &[]).counts(), (3, 0));
    store.requests();
    let again = put(&client, &tree, &[]);
    assert_eq!((again.counts(), again.read_files()), ((0, 3), 0), "{}", again.read_bytes);
    assert_eq!(methods(&store), ["HEAD"; 3]);
    rewrite(&tree.join("1"), 101);
    // Another size, and none.
    store.put("t/2", b"short");
    let changed = put(&client, &tree, &[]);
    assert_eq!((changed.counts(), changed.read_files()), ((2, 1), 2), "{}", changed.read_bytes);
    for (number, seed) in [(0, 0), (1, 101), (2, 2)] {
        assert_eq!(store.object(&format!("t/{number}")).unwrap().content, content(FILE_BYTES, seed));
    }
    // A store that does not tell: all are read and sent.
    store.script(|request| match request.method.as_str() {
        "HEAD" => Fault::Answer(403, "", ""),
        _ => Fault::None,
    });
    assert_eq!(put(&client, &tree, &[]).files, 3);
}

#[test]
fn a_file_that_was_just_changed_is_read_again() {
    let (_store, client) = store(well());
    let (_directory, tree) = tree(12);
    let path = tree.join("1");
    let mut child = client.command(["put", tree.to_str().unwrap(), "s3://bucket/t/"]).spawn().unwrap();
    // While the run is under way, somebody writes; the same size and time of modification.
    for seed in 0.. {
        if child.try_wait().unwrap().is_some() {
            break;
        }
        rewrite(&path, 1000 + seed);
    }
    let _ = finish(child);
    rewrite(&path, 1);
    let last = put(&client, &tree, &[]);
    assert!(last.read_files() >= 1, "{}", last.read_bytes);
    assert_eq!(client.get("s3://bucket/t/1"), content(FILE_BYTES, 1));
}

#[test]
fn what_an_interrupted_run_has_put_is_not_read_again() {
    let (store, client) = store(|request| match request.is_put() && request.path.ends_with('7') {
        true => Fault::Stall(Duration::from_secs(60)),
        false => Fault::None,
    });
    let (_directory, tree) = tree(20);
    let child = client.command(["put", tree.to_str().unwrap(), "s3://bucket/t/"]).spawn().unwrap();
    let begun = std::time::Instant::now();
    while store.keys().len() < 18 {
        assert!(begun.elapsed() < Duration::from_secs(60), "{:?}", store.keys());
        std::thread::sleep(Duration::from_millis(20));
    }
    interrupt(&child);
    let first = finish(child);
    assert_eq!(first.code, 130, "{}", first.stderr);
    // It may not have seen all answers of the store yet.
    let (_, there) = first.stderr.split_once("interrupted; ").unwrap();
    let there: u64 = there.split(' ').next().unwrap().parse().unwrap();
    assert!(there > 0, "{}", first.stderr);
    store.script(well());
    let rest = put(&client, &tree, &[]);
    assert_eq!((rest.counts(), rest.read_files()), ((2, 18), 20 - there), "{}", rest.read_bytes);
}
