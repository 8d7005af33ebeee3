//! Runs of a queue, with a real nats-server: workers without the queue, runs that fail on a worker, and what
//! `work --status` shows. The faults are those of docs/design/0023-fleet.md.

use super::fleet::{Nats, Worker, status};
use super::fleet_faults::{stored, wait_for};
use super::*;

use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;

use fullbore_testkit::process::clean_command;
use fullbore_testkit::server::{Fault, FaultRule, PathMatch};

/// A line to a server, which can be cut.
struct Link {
    url: String,
    streams: Arc<Mutex<Option<Vec<TcpStream>>>>,
}

impl Link {
    fn to(server: &str) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("nats://{}", listener.local_addr().unwrap());
        let (server, streams) =
            (server.trim_start_matches("nats://").to_owned(), Arc::new(Mutex::new(Some(Vec::new()))));
        let open = streams.clone();
        thread::spawn(move || {
            for near in listener.incoming().flatten() {
                // After the cut, it is closed at once.
                let Some(streams) = &mut *open.lock().unwrap() else { continue };
                let Ok(far) = TcpStream::connect(&server) else { continue };
                for (mut from, mut to) in
                    [(&near, &far), (&far, &near)].map(|(a, b)| (a.try_clone().unwrap(), b.try_clone().unwrap()))
                {
                    thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                }
                streams.extend([near, far]);
            }
        });
        Link { url, streams }
    }

    fn cut(&self) {
        for stream in self.streams.lock().unwrap().take().unwrap_or_default() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// F6: half of the workers lose the queue.
#[test]
fn workers_without_the_queue_store_what_they_hold_and_others_the_rest() {
    let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
    server.change(|behaviour| behaviour.delay = Duration::from_millis(150));
    let (bucket, line) = (Bucket::at(&store.url), Link::to(&nats.url()));
    let lone = bucket.worker_of(&line.url, &[]);
    let mut other = bucket.worker_of(&nats.url(), &["--once"]);
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    line.cut();
    planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    wait_for("the worker does not notice", || lone.said().contains("what is held is stored meanwhile"));
    other.exits(0);
}

/// A worker whose directory is mounted too late serves the run after a pause, and tells the fault once.
#[test]
fn a_run_that_fails_on_a_worker_is_begun_again_after_a_pause() {
    let (store, nats) = (versitygw(), Nats::start(""));
    let directory = tempfile::tempdir().unwrap();
    let (from, to) = (directory.path().join("from"), directory.path().join("to"));
    fs::create_dir(&from).unwrap();
    fs::write(from.join("a"), "content").unwrap();
    let bucket = Bucket::at(&store.url);
    let root = format!("{}={}", from.display(), to.display());
    let mut worker = bucket.worker_of(&nats.url(), &["--root", &root]);
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.arg("put").arg(format!("{}/", from.display())).args([TO, "--endpoint", &bucket.endpoint]);
    command.args(["--queue", &nats.url(), "--no-local"]).envs(bucket.keys.iter().copied());
    let mut planner = Worker::start(command);
    wait_for("the worker does not fail", || worker.said().contains("the next try is in 5 s"));
    let failed = Instant::now();
    fs::create_dir(&to).unwrap();
    fs::write(to.join("a"), "content").unwrap();
    let copied = Command::new("touch").arg("-r").arg(from.join("a")).arg(to.join("a")).status().unwrap();
    assert!(copied.success());
    wait_for("the worker stores nothing", || data(&store).join("a").exists());
    assert!(failed.elapsed() > Duration::from_secs(3), "{:?}", failed.elapsed());
    planner.exits(0);
    worker.signal("TERM");
    let said = worker.exits(0);
    assert_eq!(said.matches("the next try is in").count(), 1, "{said}");
}

#[test]
fn the_status_of_a_queue_is_told_in_json_as_in_words() {
    let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
    // The run does not end before its status is asked for.
    let late = Fault::Delay(Duration::from_secs(2));
    server.add_fault(FaultRule::always(PathMatch::Prefix("/pool/".into()), late));
    let bucket = Bucket::at(&store.url);
    let serving = bucket.worker_of(&nats.url(), &[]);
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("the worker has no run", || serving.said().contains("stores at"));
    let mut command = clean_command(env!("CARGO_BIN_EXE_fullbore"));
    let output = command.args(["work", &nats.url(), "--status", "--json"]).output().unwrap();
    let words = status(&nats.url());
    let events = servers::schema::events("work --status", &String::from_utf8_lossy(&output.stdout));
    let names: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!((output.status.code(), names), (Some(0), vec!["started", "queue", "summary"]));
    let (run, worker) = (&events[1]["runs"][0], &events[1]["workers"][0]);
    assert_eq!((run["to"].as_str(), run["kind"].as_str()), (Some(TO), Some("mirror")), "{run}");
    assert_eq!(run["mirrors"][0]["connections_max"], 4, "{run}");
    assert!(words.contains(&format!("run {}: {TO} from 1 mirror", run["run"].as_str().unwrap())), "{words}");
    assert!(words.contains(&format!("worker {} on ", worker["worker"].as_str().unwrap())), "{words}");
    planner.exits(0);
}
