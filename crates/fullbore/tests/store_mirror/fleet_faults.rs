//! Faults of a run by many machines: F1 to F18 of docs/design/0023-fleet.md, with a real nats-server and store.

use super::fleet::{Nats, Worker, fetched_from, pool_files, workers};
use super::*;

use std::thread;

use fullbore_testkit::server::{Fault, FaultRule};

/// An archive that takes some seconds: every answer takes a while.
pub(super) fn slow(state: usize) -> Server {
    let server = served(state);
    server.change(|behaviour| behaviour.delay = Duration::from_millis(150));
    server
}

pub(super) fn stored(store: &servers::Server) -> usize {
    contents(&data(store)).keys().filter(|path| path.starts_with("pool/")).count()
}

#[track_caller]
pub(super) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// F1
#[test]
fn a_worker_that_is_killed_costs_time_and_no_file() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    let [first, second] = &mut both;
    first.signal("KILL");
    planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    second.exits(0);
}

/// F2: a worker that is told to end stores what it holds, and gives the rest back.
#[test]
fn a_worker_that_is_told_to_end_ends_well_and_soon() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut worker = bucket.worker_of(&nats.url(), &[]);
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    worker.signal("TERM");
    let begun = Instant::now();
    worker.exits(0);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    let _other = bucket.worker_of(&nats.url(), &[]);
    planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// A command whose clock is off by this many seconds.
fn with_clock(mut command: Command, off_s: i32) -> Command {
    let libraries = fs::read_dir("/usr/lib").unwrap();
    let mut libraries = libraries.map(|entry| entry.unwrap().path().join("faketime/libfaketimeMT.so.1"));
    let library = libraries.find(|path| path.exists()).expect("the package `faketime` is needed");
    command.env("LD_PRELOAD", library).env("FAKETIME", format!("{off_s:+}s")).env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    command
}

/// F3: nothing depends on whose clock is right.
#[test]
fn clocks_that_are_an_hour_off_cost_no_file() {
    const HOUR: i32 = 3600;
    for [of_planner, of_first, of_second] in [[0, HOUR, -HOUR], [HOUR, 0, -HOUR], [-HOUR, HOUR, 0]] {
        let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
        let bucket = Bucket::at(&store.url);
        let mut both = [of_first, of_second]
            .map(|off_s| Worker::start(with_clock(bucket.queue_worker_command(&nats.url(), &["--once"]), off_s)));
        let planner = bucket.planner_of(&[&server], &nats.url(), &["--no-local"]);
        Worker::start(with_clock(planner, of_planner)).exits(0);
        assert_eq!(contents(&data(&store)), *reference(0), "{of_planner} {of_first} {of_second}");
        both.iter_mut().for_each(|worker| drop(worker.exits(0)));
    }
}

/// F10: the lock of one that was killed on this machine is taken over at once.
#[test]
fn a_planner_that_is_killed_is_followed_by_another_one_which_goes_on() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut worker = bucket.worker_of(&nats.url(), &["--once"]);
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    planner.signal("KILL");
    planner.wait();
    assert!(!data(&store).join("dists/trixie/InRelease").exists());
    let ran = bucket.share(&[&server], &nats.url(), &["--no-local"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    let again: BTreeMap<String, usize> = fetched_from(&[&server]).into_iter().filter(|(_, times)| *times > 1).collect();
    assert!(again.len() <= pool_files(0) / 2, "{again:?} of {}, {ran:?}", pool_files(0));
    worker.exits(0);
}

/// F11
#[test]
fn of_two_planners_one_works() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut first = Worker::start(bucket.planner_of(&[&server], &nats.url(), &[]));
    wait_for("nothing is stored", || stored(&store) > 0);
    let other = Bucket::at(&store.url);
    other.share(&[&server], &nats.url(), &[]).exits(6);
    first.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
}

/// F12
#[test]
fn a_store_that_is_away_for_a_while_costs_time_and_no_file() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let away = Arc::new(Mutex::new(None::<Instant>));
    let until = away.clone();
    let proxy = Proxy::start(&store.url, move |_, _| match *until.lock().unwrap() {
        Some(until) if Instant::now() < until => Action::Answer(503),
        _ => Action::now(),
    });
    let bucket = Bucket::at(&proxy.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    *away.lock().unwrap() = Some(Instant::now() + Duration::from_secs(5));
    planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    both.iter_mut().for_each(|worker| drop(worker.exits(0)));
}

/// F12: answers come late, but they come.
#[test]
fn a_store_that_answers_slowly_for_a_while_costs_time_and_no_file() {
    let (store, server, nats) = (versitygw(), slow(0), Nats::start(""));
    let slow_until = Instant::now() + Duration::from_secs(4);
    let proxy = Proxy::start(&store.url, move |_, line| match line.starts_with("PUT") && Instant::now() < slow_until {
        true => Action::Pass(Duration::from_secs(12)),
        false => Action::now(),
    });
    let bucket = Bucket::at(&proxy.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    bucket.share(&[&server], &nats.url(), &["--no-local"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    assert_eq!(fetched_from(&[&server]).values().max(), Some(&1), "a task that is at work goes to nobody else");
    both.iter_mut().for_each(|worker| drop(worker.exits(0)));
}

/// F17: workers use the mirrors' connections together; the planner has its own for indexes.
#[test]
fn five_workers_together_keep_to_the_connections_of_each_mirror() {
    let (store, servers, nats) = (versitygw(), [slow(0), slow(0)], Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut workers = [0; 5].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let from: Vec<&Server> = servers.iter().collect();
    bucket.share(&from, &nats.url(), &["--no-local", "--connections", "2"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    for server in &servers {
        let most = server.counters().max_open_connections;
        assert!((1..=2 + 2).contains(&most), "{most} connections");
    }
    workers.iter_mut().for_each(|worker| drop(worker.exits(0)));
}

/// F14: a corrupt one, one that asks for a pause, a stale one, and one that sends to another.
#[test]
fn bad_mirrors_leave_no_wrong_byte() {
    let (store, nats) = (versitygw(), Nats::start(""));
    let servers = [0; 5].map(served);
    servers[3].add_fault(FaultRule::pool(1.0, Fault::Status(404)));
    servers[4].add_fault(FaultRule::pool(1.0, Fault::Redirect(servers[0].url())));
    servers[1].add_fault(FaultRule::pool(1.0, Fault::Corrupt));
    servers[2].add_fault(FaultRule::pool(1.0, Fault::RetryAfter { status: 429, seconds: 5 }));
    servers[0].change(|behaviour| behaviour.delay = Duration::from_millis(100));
    let bucket = Bucket::at(&store.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let from: Vec<&Server> = servers.iter().collect();
    bucket.share(&from, &nats.url(), &["--no-local"]).exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    both.iter_mut().for_each(|worker| drop(worker.exits(0)));
}

/// F5
#[test]
fn a_queue_that_loses_its_data_gets_it_again() {
    let (store, server, mut nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut both = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    nats.kill();
    nats.lose_data();
    nats.start_again();
    planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    both.iter_mut().for_each(|worker| drop(worker.exits(0)));
}

/// F9: the planner waits a minute for the queue, and then fetches the rest itself.
#[test]
fn a_queue_that_goes_for_good_leaves_the_rest_to_the_planner() {
    let (store, server, mut nats) = (versitygw(), slow(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let worker = bucket.worker_of(&nats.url(), &[]);
    let mut planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(&store) > 0);
    nats.kill();
    let said = planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    assert!(said.contains("workers go on with what they hold"), "{said}");
    drop(worker);
}

/// F18: a worker serves only places that its user names.
#[test]
fn a_run_outside_of_only_is_left_to_others() {
    let (store, server, nats) = (versitygw(), served(0), Nats::start(""));
    let bucket = Bucket::at(&store.url);
    let mut command = fullbore_testkit::process::clean_command(env!("CARGO_BIN_EXE_fullbore"));
    command.args(["work", &nats.url(), "--only", "s3://bucket/ubuntu", "--endpoint", &bucket.endpoint]);
    command.envs(bucket.keys.iter().copied());
    let foreign = Worker::start(command);
    let ran = bucket.share(&[&server], &nats.url(), &[]).exits(0);
    assert_eq!(workers(&ran).len(), 1, "{ran:?}");
    assert!(!foreign.said().contains("stores at s3://bucket/debian\n"), "{}", foreign.said());
}
