//! A mirror by many machines that a queue tells what to do, with a real nats-server: `mirror --queue`, `work nats://…`.
//! The faults F1 to F14 are those of docs/design/0023-fleet.md.

use super::*;

use std::process::Child;
use std::thread;

use fullbore_testkit::process::clean_command;

#[path = "../../../fullbore-fleet/tests/nats_server/mod.rs"]
#[allow(dead_code, reason = "shared by several test binaries")]
mod nats_server;

pub(super) use nats_server::{Authority, Server as Nats};

/// Nothing here may take longer.
const SLOW: Duration = Duration::from_secs(120);

/// A worker of a queue, which ends with the test.
pub(super) struct Worker {
    process: Child,
    output: tempfile::TempDir,
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Worker {
    pub(super) fn start(mut command: Command) -> Worker {
        let output = tempfile::tempdir().unwrap();
        let file = |name: &str| fs::File::create(output.path().join(name)).unwrap();
        let process = command.stdin(Stdio::null()).stdout(file("out")).stderr(file("err")).spawn().unwrap();
        Worker { process, output }
    }

    pub(super) fn signal(&self, name: &str) {
        let status = Command::new("kill").arg(format!("-{name}")).arg(self.process.id().to_string()).status().unwrap();
        assert!(status.success());
    }

    pub(super) fn command_line(&self) -> String {
        let line = fs::read(format!("/proc/{}/cmdline", self.process.id())).unwrap();
        String::from_utf8(line).unwrap()
    }

    pub(super) fn printed(&self) -> String {
        fs::read_to_string(self.output.path().join("out")).unwrap()
    }

    pub(super) fn said(&self) -> String {
        fs::read_to_string(self.output.path().join("err")).unwrap()
    }

    /// Waits for the end of one that was killed.
    pub(super) fn wait(&mut self) {
        self.process.wait().unwrap();
    }

    /// Waits for its end.
    #[track_caller]
    pub(super) fn exits(&mut self, code: i32) -> String {
        let begun = Instant::now();
        let status = loop {
            match self.process.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(begun.elapsed() < SLOW, "it does not end: {}", self.said()),
            }
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(status.code(), Some(code), "{}", self.said());
        self.said()
    }
}

impl Bucket {
    pub(super) fn worker_of(&self, queue: &str, more: &[&str]) -> Worker {
        Worker::start(self.queue_worker_command(queue, more))
    }

    pub(super) fn queue_worker_command(&self, queue: &str, more: &[&str]) -> Command {
        let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
        command.args(["work", queue, "--only", TO, "--endpoint", &self.endpoint]).args(more);
        command.envs(self.keys.iter().copied());
        command
    }

    pub(super) fn planner_of(&self, from: &[&Server], queue: &str, more: &[&str]) -> Command {
        let mut command = self.mirror.command(from, &[&["--queue", queue], more].concat());
        command.args(["--endpoint", &self.endpoint]).envs(self.keys.iter().copied());
        command
    }

    pub(super) fn share(&self, from: &[&Server], queue: &str, more: &[&str]) -> Ran {
        self.mirror.finish(self.planner_of(from, queue, more))
    }
}

pub(super) fn status(queue: &str) -> String {
    let output = clean_command(env!("CARGO_BIN_EXE_fullbore")).args(["work", queue, "--status"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

pub(super) fn pool_files(state: usize) -> usize {
    reference(state).keys().filter(|path| path.starts_with("pool/")).count()
}

/// Files and names of the workers of a report.
pub(super) fn workers(ran: &Ran) -> Vec<(String, u64)> {
    let workers = ran.report.pointer("/summary/fleet/workers").and_then(|workers| workers.as_array()).unwrap();
    let of =
        |worker: &serde_json::Value| (worker["worker"].as_str().unwrap().to_owned(), worker["files"].as_u64().unwrap());
    workers.iter().map(of).collect()
}

#[test]
fn a_planner_and_two_workers_store_the_archive_and_each_file_once() {
    let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
    server.change(|behaviour| behaviour.delay = Duration::from_millis(20));
    let bucket = Bucket::at(&store.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let ran = bucket.share(&[&server], &nats.url(), &["--no-local"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    verified(&data(&store), common(), 0);
    assert_eq!(ran.number("fleet.files"), pool_files(0) as u64, "{ran:?}");
    let of_all = reference(0).keys().filter(|path| path.starts_with("pool/")).count() as u64;
    assert!(ran.number("totals.files") > of_all, "the pool and the indexes: {ran:?}");
    assert_eq!((ran.number("fleet.rounds"), ran.number("fleet.left_files")), (1, 0));
    let sum: u64 = workers(&ran).iter().map(|(_, files)| files).sum();
    assert_eq!(sum, pool_files(0) as u64, "{:?}", workers(&ran));
    assert_eq!(fetched_from(&[&server]).len(), pool_files(0));
    // The planner fetches the last indexes while workers, which have no task any more, still have their connections.
    let most = server.counters().max_open_connections;
    assert!(most <= 4 + 4, "{most} connections");
    for worker in &mut both {
        worker.exits(0);
    }
    assert!(status(&nats.url()).starts_with("no run\nno worker\n"), "{}", status(&nats.url()));
    bucket.run(&server, &["--changed-exit"]).exits(10);
    bucket.check(&[]).exits(0);
}

/// How often each pool file was fetched from any of these servers.
pub(super) fn fetched_from(servers: &[&Server]) -> BTreeMap<String, usize> {
    let mut fetched = BTreeMap::new();
    for entry in servers.iter().flat_map(|server| server.log()) {
        if entry.path.starts_with("/pool/") && entry.method == "GET" && entry.status < 300 {
            *fetched.entry(entry.path.trim_start_matches('/').to_owned()).or_default() += 1;
        }
    }
    fetched
}

#[test]
fn a_run_without_any_worker_is_an_ordinary_run() {
    let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let begun = Instant::now();
    let ran = bucket.share(&[&server], &nats.url(), &[]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    assert_eq!((workers(&ran).len(), ran.number("fleet.rounds")), (1, 1), "{ran:?}");
    assert!(begun.elapsed() < Duration::from_secs(40), "{:?}", begun.elapsed());
    // Nothing new: nothing is asked of the queue, which may be away.
    drop(nats);
    bucket.share(&[&server], "nats://127.0.0.1:9", &["--changed-exit"]).exits(10);
}

/// F9
#[test]
fn without_a_queue_the_planner_goes_alone_unless_it_needs_workers() {
    let (store, server) = (versitygw(), served(0));
    let bucket = Bucket::at(&store.url);
    let away = "nats://127.0.0.1:9";
    bucket.share(&[&server], away, &["--require-workers"]).exits(3).says("cannot connect to the queue");
    assert!(!data(&store).join("dists/trixie/InRelease").exists());
    bucket.share(&[&server], away, &[]).exits(0).says("this machine fetches everything itself");
    assert_eq!(contents(&data(&store)), *reference(0));
}
