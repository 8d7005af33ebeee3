//! `put` by several machines, with a queue in memory or on a real nats-server, and with a store that misbehaves or
//! versitygw, whose objects are files that can be looked at.

#![allow(clippy::unwrap_used)]

mod common;
#[path = "put_fleet/conditions.rs"]
mod conditions;
#[path = "put_fleet/failing_workers.rs"]
mod failing_workers;
#[path = "../../fullbore/tests/s3/store.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod misbehaving;
#[path = "../../fullbore-fleet/tests/nats_server/mod.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod nats_server;
#[path = "put_fleet/parts.rs"]
mod parts;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fullbore_engine::run::report::Report;
use fullbore_engine::run::{CommandError, ErrorKind, Event, Events, Stop};
use fullbore_fleet::memory::MemoryQueue;
use fullbore_fleet::message::Run;
use fullbore_fleet::names::{RUN_KEYS, WorkerId};
use fullbore_fleet::queue::Queue;
use fullbore_s3::put::fleet::{Connect, FleetPut, SPLIT_BYTES_MIN, Served, WorkerSettings, serve};
use fullbore_s3::put::{self, FieldSettings, PutSettings};
use tokio::sync::watch;

use common::bucket_at;

/// A store that ends with the test.
struct Store {
    process: Child,
    url: String,
    directory: tempfile::TempDir,
}

impl Drop for Store {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Store {
    fn start() -> Store {
        let servers = match std::env::var_os("FULLBORE_TEST_S3_SERVERS") {
            Some(servers) => PathBuf::from(servers),
            None => Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("s3-servers"),
        };
        let program = servers.join("versitygw");
        assert!(program.exists(), "versitygw is needed at {}: `script/s3-servers` gets it", program.display());
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        fs::create_dir_all(directory.path().join("data/bucket")).unwrap();
        let port = fullbore_testkit::ports::free();
        let mut command = Command::new(program);
        command.env_clear().args(["--access", "fullbore", "--secret", "only-for-tests", "--quiet"]);
        command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(directory.path().join("data"));
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let begun = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "the store does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Store { process, url: format!("http://127.0.0.1:{port}"), directory }
    }

    /// Path → content of the objects below the prefix `p`.
    fn objects(&self) -> BTreeMap<String, Vec<u8>> {
        files(&self.directory.path().join("data/bucket/p"))
    }
}

fn files(root: &Path) -> BTreeMap<String, Vec<u8>> {
    let (mut found, mut directories) = (BTreeMap::new(), vec![root.to_owned()]);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
            if entry.file_type().unwrap().is_dir() {
                directories.push(entry.path());
            } else {
                let path = entry.path().strip_prefix(root).unwrap().to_str().unwrap().to_owned();
                found.insert(path, fs::read(entry.path()).unwrap());
            }
        }
    }
    found
}

/// What a run says.
#[derive(Default)]
struct Heard {
    warnings: Vec<String>,
    stored: usize,
    present: usize,
    /// Checksums of stored objects, where they are known.
    checksums: Vec<String>,
}

impl Events for Heard {
    fn emit(&mut self, event: Event) {
        match event {
            Event::Warning { message } => self.warnings.push(message),
            Event::Stored(file) => {
                self.stored += 1;
                self.checksums.extend(file.checksum_sha256);
            }
            Event::Present(_) => self.present += 1,
            _ => {}
        }
    }
}

/// A queue that is there, or none.
struct Ready<Q>(Option<Q>);

impl<Q: Queue> Connect for Ready<Q> {
    type Queue = Q;

    async fn connect(&self) -> Result<Q, CommandError> {
        self.0.clone().ok_or_else(|| CommandError::new(ErrorKind::Network, "no queue there"))
    }
}

fn settings(store: &Store, directory: &Path, last: &[&str]) -> PutSettings {
    settings_at(&store.url, &store.directory.path().join("journals"), directory, last)
}

fn settings_at(url: &str, journals: &Path, directory: &Path, last: &[&str]) -> PutSettings {
    PutSettings {
        bucket: bucket_at(url, "s3://bucket/p"),
        sources: vec![directory.to_owned()],
        choice: Default::default(),
        fields: FieldSettings::default(),
        last: last.iter().map(|pattern| (*pattern).to_owned()).collect(),
        overwrite: false,
        compare_all: false,
        delete: None,
        dry_run: false,
        list: None,
        journals: Some(journals.to_owned()),
        spool: "/var/tmp".into(),
        limit_rate_bytes_per_s: None,
        watch_stages: false,
    }
}

fn plan(settings: &PutSettings, queue: Option<&MemoryQueue>, is_worker: bool) -> (Result<Report, CommandError>, Heard) {
    plan_in_parts(settings, queue.map(MemoryQueue::connect), is_worker, SPLIT_BYTES_MIN)
}

/// A planner that has files from this size on put in parts.
fn plan_in_parts<Q: Queue>(
    settings: &PutSettings,
    queue: Option<Q>,
    is_worker: bool,
    split_bytes_min: u64,
) -> (Result<Report, CommandError>, Heard) {
    let fleet = FleetPut {
        queue: Ready(queue),
        worker: WorkerId::parse("planner").unwrap(),
        is_worker,
        requires_workers: false,
        machine: "here".to_owned(),
        split_bytes_min,
    };
    let (mut heard, stop) = (Heard::default(), Stop::in_thread(|| ()).unwrap());
    let result = put::run_with(settings, Some(&fleet), &mut heard, &stop);
    (result, heard)
}

/// Machines that take part in each run of the queue, until they are told to end.
struct Workers {
    over: watch::Sender<bool>,
    threads: Vec<JoinHandle<Served>>,
}

impl Workers {
    /// Each has the files of planners below `from` at its own place.
    fn start(store: &Store, queue: &MemoryQueue, from: &Path, places: &[&Path]) -> Workers {
        Workers::of(places.iter().map(|place| (queue.connect(), *place)), &store.url, from)
    }

    /// One for each of these connections to a queue, with the files of planners below `from` at its own place.
    fn of<'a, Q: Queue>(each: impl Iterator<Item = (Q, &'a Path)>, url: &str, from: &Path) -> Workers {
        let over = watch::Sender::new(false);
        let start = |(number, (queue, place)): (usize, (Q, &Path))| {
            let over = over.subscribe();
            let settings = worker_settings(url, from, place);
            std::thread::spawn(move || {
                let runtime =
                    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
                let name = WorkerId::parse(&format!("w{number}")).unwrap();
                runtime.block_on(work(queue, name, &settings, over))
            })
        };
        let threads = each.enumerate().map(start).collect();
        Workers { over, threads }
    }

    fn end(self) -> Vec<Served> {
        self.over.send_replace(true);
        self.threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }
}

fn worker_settings(url: &str, from: &Path, place: &Path) -> WorkerSettings {
    WorkerSettings {
        bucket: bucket_at(url, "s3://bucket"),
        roots: vec![(from.to_owned(), place.to_owned())],
        spool: "/var/tmp".into(),
        limit_rate_bytes_per_s: None,
    }
}

/// Waits for a run, and works on it.
async fn work<Q: Queue>(queue: Q, name: WorkerId, settings: &WorkerSettings, over: watch::Receiver<bool>) -> Served {
    let run = loop {
        // A queue that nobody has used yet has no keys.
        if let Some(entry) = queue.list(RUN_KEYS).await.unwrap_or_default().first() {
            break Run::parse(&entry.value).unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    serve(queue, &run, name, settings, over).await.unwrap()
}

/// A queue whose clock goes as fast as the wall's.
fn queue() -> MemoryQueue {
    let queue = MemoryQueue::new(78);
    let (clock, begun) = (queue.clone(), Instant::now());
    std::thread::spawn(move || {
        while begun.elapsed() < Duration::from_secs(300) {
            clock.advance_to(begun.elapsed());
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    queue
}

/// 150 small files, one above the size of a pack and one in parts; odd names are among them.
fn make(directory: &Path) {
    fs::create_dir_all(directory.join("dists")).unwrap();
    for number in 0..150 {
        fs::write(directory.join(format!("file {number}+ü")), vec![number as u8; 1000 * number]).unwrap();
    }
    fs::write(directory.join("pack"), vec![7; 9_000_000]).unwrap();
    fs::write(directory.join("parts"), vec![8; 20_000_000]).unwrap();
    fs::write(directory.join("dists/InRelease"), "signed").unwrap();
}

/// A copy with the same times, as another machine's mount has them.
fn mount(of: &Path, at: &Path) {
    let status = Command::new("cp").arg("-a").arg(of).arg(at).status().unwrap();
    assert!(status.success());
}

#[test]
fn workers_read_below_their_own_mounts_and_store_all_files_in_turn() {
    let (store, queue, home) = (Store::start(), queue(), tempfile::tempdir().unwrap());
    let directory = home.path().join("share");
    make(&directory);
    let mounts = [home.path().join("mount-1"), home.path().join("mount-2")];
    mounts.iter().for_each(|at| mount(&directory, at));
    let workers = Workers::start(&store, &queue, &directory, &[&mounts[0], &mounts[1]]);
    let settings = settings(&store, &directory, &["dists/***"]);
    let (result, heard) = plan(&settings, Some(&queue), false);
    let report = result.unwrap();
    let served = workers.end();
    assert_eq!(store.objects(), files(&directory));
    assert_eq!((heard.stored, heard.present), (153, 0));
    let bytes: usize = files(&directory).values().map(Vec::len).sum();
    assert_eq!(report.summary.totals.written_bytes, bytes as u64);
    assert!(heard.warnings.is_empty(), "{:?}", heard.warnings);
    // The planner has stored none of them, and each worker some.
    assert_eq!(served.iter().map(|served| served.files).sum::<u64>(), 153, "{served:?}");
    assert!(served.iter().all(|served| served.files > 0), "{served:?}");
    // What comes last came after all others.
    let written = |path: &str| {
        let path = store.directory.path().join("data/bucket/p").join(path);
        fs::metadata(path).unwrap().modified().unwrap()
    };
    let last = written("dists/InRelease");
    assert!(files(&directory).keys().all(|path| path == "dists/InRelease" || written(path) < last));

    // Nothing is new: nothing is read or sent, and no task is published.
    let (result, heard) = plan(&settings, Some(&queue), false);
    result.unwrap();
    assert_eq!((heard.stored, heard.present), (0, 153));
}

#[test]
fn a_planner_alone_is_a_worker() {
    let (store, queue, home) = (Store::start(), queue(), tempfile::tempdir().unwrap());
    make(home.path());
    let (result, heard) = plan(&settings(&store, home.path(), &[]), Some(&queue), true);
    result.unwrap();
    assert_eq!(heard.stored, 153);
    assert_eq!(store.objects(), files(home.path()));
    // Nothing of the run stays in the queue.
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    assert!(runtime.block_on(queue.list(RUN_KEYS)).unwrap().is_empty());
}

#[test]
fn without_a_queue_the_planner_puts_all_files_with_a_warning() {
    let (store, home) = (Store::start(), tempfile::tempdir().unwrap());
    make(home.path());
    let (result, heard) = plan(&settings(&store, home.path(), &[]), None, true);
    result.unwrap();
    assert!(heard.warnings.iter().any(|line| line.contains("no queue there")), "{:?}", heard.warnings);
    assert_eq!(store.objects(), files(home.path()));
}

#[test]
fn what_a_worker_sees_otherwise_the_planner_puts_itself() {
    let (store, queue, home) = (Store::start(), queue(), tempfile::tempdir().unwrap());
    let (directory, stale) = (home.path().join("share"), home.path().join("mount"));
    make(&directory);
    mount(&directory, &stale);
    // Another size, another time, a link out of the mount, no file.
    fs::write(stale.join("pack"), "old").unwrap();
    File::open(stale.join("parts")).unwrap().set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    fs::remove_file(stale.join("file 149+ü")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", stale.join("file 149+ü")).unwrap();
    fs::remove_file(stale.join("file 148+ü")).unwrap();
    let workers = Workers::start(&store, &queue, &directory, &[&stale]);
    let (result, heard) = plan(&settings(&store, &directory, &[]), Some(&queue), false);
    result.unwrap();
    let served = workers.end();
    assert_eq!(store.objects(), files(&directory));
    assert_eq!(heard.stored, 153);
    assert_eq!(served[0].files, 149, "{served:?}");
    assert!(
        heard.warnings.iter().any(|line| line.contains("pack") && line.contains("changed")),
        "{:?}",
        heard.warnings
    );
}

#[test]
fn files_that_changed_with_the_same_size_are_compared_by_the_planner() {
    let (store, queue, home) = (Store::start(), queue(), tempfile::tempdir().unwrap());
    make(home.path());
    let settings = settings(&store, home.path(), &[]);
    plan(&settings, None, true).0.unwrap();
    fs::write(home.path().join("pack"), vec![9; 9_000_000]).unwrap();
    fs::write(home.path().join("new"), "new").unwrap();
    let (result, heard) = plan(&settings, Some(&queue), true);
    result.unwrap();
    assert_eq!((heard.stored, heard.present), (2, 152));
    assert_eq!(store.objects(), files(home.path()));
}
