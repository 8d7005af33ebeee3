//! The queue on a real nats-server, started by each test: what it does as the queue in memory does, what it does in the
//! faults with a star, and what the permissions of `packaging/nats` allow.
//!
//! A test that waits for the ack wait takes half a minute. All tests run at once and use little processor time.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod nats_server;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use fullbore_fleet::message::{Fault, Item, Kind, Report, Stat, Task};
use fullbore_fleet::names::{Class, RunId, WorkerId};
use fullbore_fleet::nats::{ConnectError, Credentials, NatsQueue, NatsSettings, Role};
use fullbore_fleet::queue::{Counts, Held, Published, Queue, QueueError};
use nats_server::Server;
use support::*;

/// Runs a test that waits for a server. Nothing here may take longer.
fn test(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(240), future).await.expect("too slow") });
}

/// Makes the stream of tasks before the planner does, with room for little.
async fn make_small_stream(server: &Server, bytes: i64) {
    use async_nats::jetstream::{self, stream};
    let context = jetstream::new(async_nats::connect(server.url()).await.unwrap());
    let config = stream::Config {
        name: "FULLBORE".to_owned(),
        subjects: vec!["fb.*.q.*".to_owned()],
        retention: stream::RetentionPolicy::WorkQueue,
        discard: stream::DiscardPolicy::New,
        max_bytes: bytes,
        ..stream::Config::default()
    };
    context.create_stream(config).await.unwrap();
}

async fn connect(server: &Server, role: Role) -> NatsQueue {
    NatsQueue::connect(&NatsSettings::new(&server.url(), role)).await.unwrap()
}

fn some_tasks(round: u32, count: usize) -> Vec<Task> {
    let items = files(count, 1_000, 1);
    items
        .into_iter()
        .map(|item: Item| Task { kind: Kind::Fetch, run: run(), round, items: vec![item], replaces: Vec::new() })
        .collect()
}

/// Pulls this number of tasks: a consumer may learn of a new task a moment after its publisher has the answer.
async fn pull(queue: &NatsQueue, count: usize) -> Vec<Held> {
    let mut held = Vec::new();
    while held.len() < count {
        let more = queue.pull(&run(), Class::Large, count - held.len(), 10 * SECOND).await.unwrap();
        assert!(!more.is_empty(), "{} of {count} tasks", held.len());
        held.extend(more);
    }
    held
}

async fn counts(queue: &NatsQueue) -> (u64, u64) {
    let Counts { waiting, held } = queue.counts(&run()).await.unwrap();
    (waiting, held)
}

#[test]
fn tasks_come_in_order_and_leave_when_they_are_acknowledged() {
    test(async {
        let server = Server::start("");
        let (planner, worker) = (connect(&server, Role::Planner).await, connect(&server, Role::Worker).await);
        assert!(matches!(planner.counts(&run()).await, Err(QueueError::Missing(_))));
        planner.open(&run()).await.unwrap();
        planner.open(&run()).await.unwrap();
        let tasks = some_tasks(1, 300);
        assert_eq!(planner.publish(&tasks).await, Ok(Published { accepted: 300, is_full: false }));
        let held = pull(&worker, 3).await;
        let parsed: Vec<Task> = held.iter().map(|held| Task::parse(&held.message).unwrap()).collect();
        assert_eq!(parsed, tasks[..3]);
        assert_eq!(counts(&planner).await, (297, 3));
        worker.extend(&held[0].delivery).await.unwrap();
        worker.acknowledge(&held[0].delivery).await.unwrap();
        worker.discard(&held[1].delivery).await.unwrap();
        worker.give_back(&held[2].delivery, SECOND).await.unwrap();
        let begun = Instant::now();
        let again = loop {
            let pulled = worker.pull(&run(), Class::Large, 300, Duration::ZERO).await.unwrap();
            if let Some(again) = pulled.into_iter().find(|held| held.deliveries == 2) {
                break again;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        };
        assert!((900..5000).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());
        assert_eq!(Task::parse(&again.message).unwrap(), tasks[2]);
        assert_eq!(counts(&planner).await, (0, 298));

        // Of another class there is nothing, and the worker waits for it no longer than it says.
        let begun = Instant::now();
        assert_eq!(worker.pull(&run(), Class::Xl, 1, SECOND).await, Ok(vec![]));
        assert!((900..2900).contains(&begun.elapsed().as_millis()), "{:?}", begun.elapsed());

        // A known id is dropped, also after its task has ended.
        planner.publish(&tasks[..2]).await.unwrap();
        assert_eq!(counts(&planner).await, (0, 298));
        planner.purge(&run()).await.unwrap();
        assert_eq!(counts(&planner).await, (0, 0));
        planner.publish(&some_tasks(2, 5)).await.unwrap();
        assert_eq!(pull(&worker, 5).await.len(), 5);
        planner.close(&run()).await.unwrap();
        assert!(matches!(planner.counts(&run()).await, Err(QueueError::Missing(_))));
        let gone = worker.pull(&run(), Class::Large, 1, Duration::ZERO).await;
        assert!(matches!(gone, Err(QueueError::Missing(_))), "{gone:?}");
        planner.close(&run()).await.unwrap();
    });
}

/// F11
#[test]
fn two_planners_publish_each_task_once_until_the_run_is_opened_anew() {
    test(async {
        let server = Server::start("");
        let (first, second) = (connect(&server, Role::Planner).await, connect(&server, Role::Planner).await);
        let tasks = some_tasks(1, 3);
        for planner in [&first, &second] {
            planner.open(&run()).await.unwrap();
            planner.publish(&tasks).await.unwrap();
            assert_eq!(counts(planner).await, (3, 0));
        }
        first.close(&run()).await.unwrap();
        second.open(&run()).await.unwrap();
        second.publish(&tasks).await.unwrap();
        assert_eq!(counts(&second).await, (3, 0));
    });
}

#[test]
fn a_worker_that_waits_gets_the_task_as_soon_as_it_is_published() {
    test(async {
        let server = Server::start("");
        let (planner, worker) = (connect(&server, Role::Planner).await, connect(&server, Role::Worker).await);
        planner.open(&run()).await.unwrap();
        let waiting = tokio::spawn(async move { worker.pull(&run(), Class::Large, 5, 20 * SECOND).await });
        tokio::time::sleep(Duration::from_millis(300)).await;
        let begun = Instant::now();
        planner.publish(&some_tasks(1, 1)).await.unwrap();
        assert_eq!(waiting.await.unwrap().unwrap().len(), 1);
        assert!(begun.elapsed() < 3 * SECOND, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_lease_is_taken_once_renewed_by_revision_and_expires_each_time() {
    test(async {
        let server = Server::start("");
        let queue = connect(&server, Role::Planner).await;
        assert!(matches!(queue.list("lease.").await, Err(QueueError::Missing(_))));
        queue.open(&run()).await.unwrap();
        assert_eq!(queue.list("lease.").await, Ok(vec![]));
        let (key, ttl) = ("lease.a.example=3a443.0", 2 * SECOND);
        let create = || queue.create(key, Bytes::from("w1"), ttl);
        let first = create().await.unwrap().unwrap();
        assert_eq!(create().await, Ok(None));
        let second = queue.renew(key, "w1".into(), first, ttl).await.unwrap().unwrap();
        assert_eq!(queue.renew(key, "w2".into(), first, ttl).await, Ok(None));
        let listed = queue.list("lease.").await.unwrap();
        assert_eq!(listed.len(), 1);
        assert_eq!((&*listed[0].key, &*listed[0].value, listed[0].revision), (key, &b"w1"[..], second));
        assert_eq!(queue.list("worker.").await, Ok(vec![]));

        // The second lease is made over the marker of the first, and must expire as well.
        for _ in 0..2 {
            let begun = Instant::now();
            let revision = loop {
                if let Some(revision) = create().await.unwrap() {
                    break revision;
                }
                assert!(begun.elapsed() < 10 * SECOND, "the lease does not expire");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            assert!(begun.elapsed() > Duration::from_millis(800), "{:?}", begun.elapsed());
            assert_eq!(queue.renew(key, "w1".into(), second, ttl).await, Ok(None));
            assert_eq!(queue.list("lease.").await.unwrap()[0].revision, revision);
        }
        let held = queue.list("lease.").await.unwrap()[0].revision;
        queue.remove(key, second).await.unwrap();
        assert_eq!(queue.list("lease.").await.unwrap().len(), 1, "of another revision");
        queue.remove(key, held).await.unwrap();
        assert_eq!(queue.list("lease.").await, Ok(vec![]));
        assert!(create().await.unwrap().is_some());
    });
}

#[test]
fn many_keys_are_listed_at_once() {
    test(async {
        let server = Server::start("");
        let queue = connect(&server, Role::Planner).await;
        queue.open(&run()).await.unwrap();
        for number in 0..400 {
            let key = fullbore_fleet::names::lease_key("a.example:80", number);
            assert!(queue.create(&key, Bytes::new(), 60 * SECOND).await.unwrap().is_some());
        }
        assert_eq!(queue.list("lease.").await.unwrap().len(), 400);
    });
}

#[test]
fn reports_reach_the_planner() {
    test(async {
        let server = Server::start("");
        let (planner, worker) = (connect(&server, Role::Planner).await, connect(&server, Role::Worker).await);
        let mut reports = planner.reports(&run()).await.unwrap();
        planner.counts(&run()).await.unwrap_err();
        let name = WorkerId::parse("w7").unwrap();
        let stat = Report::Stat(Stat::new(name.clone()));
        let fault = Report::Fault(Fault::new(name.clone(), None, "pool/a".to_owned(), "404", false));
        for report in [&stat, &fault] {
            worker.report(&run(), &name, report).await.unwrap();
        }
        worker.report(&RunId::parse("other").unwrap(), &name, &stat).await.unwrap();
        let mut received = vec![reports.recv().await.unwrap(), reports.recv().await.unwrap()];
        received.sort_by_key(|report| matches!(report, Report::Fault(_)));
        assert_eq!(received, [stat, fault]);
    });
}

/// F7
#[test]
fn a_full_stream_takes_no_more_until_it_drains() {
    test(async {
        let server = Server::start("");
        let queue = connect(&server, Role::Planner).await;
        make_small_stream(&server, 20_000).await;
        queue.open(&run()).await.unwrap();
        let tasks = some_tasks(1, 500);
        let published = queue.publish(&tasks).await.unwrap();
        assert!(published.is_full && (5..400).contains(&published.accepted), "{published:?}");
        for held in pull(&queue, 5).await {
            queue.acknowledge(&held.delivery).await.unwrap();
        }
        let more = queue.publish(&tasks[published.accepted..]).await.unwrap();
        assert!(more.is_full && more.accepted >= 1, "{more:?}");
    });
}

/// A fleet of models on a real server, in real time.
struct Fleet {
    server: Server,
    store: Store,
    items: Vec<Item>,
    workers: Vec<Arc<Switch>>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    planner: Planner<NatsQueue>,
    begun: Instant,
}

/// What a test does to a worker that runs as a task.
#[derive(Default)]
struct Switch {
    is_dead: AtomicBool,
    is_frozen: AtomicBool,
}

const STEP: Duration = Duration::from_millis(100);

impl Fleet {
    /// 200 files of 320 MB together, and four workers at 10 MB/s: 8 s of work.
    async fn new() -> Fleet {
        let (server, store, items) = (Server::start(""), Store::default(), files(200, 320_000_000, 1));
        let (begun, is_over) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let planner = Planner::new(connect(&server, Role::Planner).await, &store, &items);
        let (mut workers, mut tasks) = (Vec::new(), Vec::new());
        for number in 0..4 {
            let queue = connect(&server, Role::Worker).await;
            let mut worker = Worker::new(number, queue, &store, 10_000_000);
            let (switch, is_over) = (Arc::new(Switch::default()), is_over.clone());
            workers.push(switch.clone());
            tasks.push(tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) && !switch.is_dead.load(Ordering::Relaxed) {
                    let is_frozen = switch.is_frozen.load(Ordering::Relaxed);
                    worker.state = if is_frozen { State::Frozen } else { State::Working };
                    worker.step(begun.elapsed()).await;
                    tokio::time::sleep(STEP).await;
                }
            }));
        }
        Fleet { server, store, items, workers, tasks, is_over, planner, begun }
    }

    /// Runs for a while; gives whether the run has ended.
    async fn run_for(&mut self, time: Duration) -> bool {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if self.planner.step(self.begun.elapsed()).await {
                return true;
            }
            tokio::time::sleep(STEP).await;
        }
        false
    }

    /// Runs to the end; gives the time since the start, and the bytes sent as a multiple of the files.
    async fn finish(mut self) -> (Duration, f64, Planner<NatsQueue>) {
        assert!(self.run_for(180 * SECOND).await, "{} of {} files", self.store.count(), self.items.len());
        let time = self.begun.elapsed();
        self.is_over.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.store.assert_has_exactly(&self.items);
        let total: u64 = self.items.iter().map(|item| item.size).sum();
        println!("{time:?}, {} bytes of {total}, round {}", self.store.sent_bytes(), self.planner.round());
        (time, self.store.sent_bytes() as f64 / total as f64, self.planner)
    }
}

#[test]
fn without_a_fault_every_file_is_sent_once() {
    test(async {
        let fleet = Fleet::new().await;
        let (_, sent, planner) = fleet.finish().await;
        assert_eq!((sent, planner.round(), planner.is_alone), (1.0, 1, false));
    });
}

/// F1
#[test]
fn a_killed_worker_s_tasks_go_to_others_after_the_ack_wait() {
    test(async {
        let mut fleet = Fleet::new().await;
        assert!(!fleet.run_for(4 * SECOND).await);
        fleet.workers[0].is_dead.store(true, Ordering::Relaxed);
        let (time, sent, planner) = fleet.finish().await;
        assert!(time >= 8 * SECOND, "{time:?}");
        assert_eq!((sent, planner.is_alone), (1.0, false));
    });
}

/// F2
#[test]
fn a_worker_that_was_frozen_harms_nobody_when_it_wakes() {
    test(async {
        let mut fleet = Fleet::new().await;
        assert!(!fleet.run_for(4 * SECOND).await);
        fleet.workers[0].is_frozen.store(true, Ordering::Relaxed);
        fleet.run_for(12 * SECOND).await;
        fleet.workers[0].is_frozen.store(false, Ordering::Relaxed);
        let (_, sent, planner) = fleet.finish().await;
        assert!(sent <= 1.3, "{sent}");
        assert!(!planner.is_alone);
    });
}

/// F4
#[test]
fn a_server_that_is_killed_and_started_again_costs_little() {
    test(async {
        let mut fleet = Fleet::new().await;
        assert!(!fleet.run_for(4 * SECOND).await);
        fleet.server.kill();
        fleet.server.start_again();
        let (_, sent, planner) = fleet.finish().await;
        assert!(sent <= 1.5, "{sent}");
        assert!(!planner.is_alone);
    });
}

/// F5
#[test]
fn a_server_that_lost_its_data_gets_the_tasks_again() {
    test(async {
        let mut fleet = Fleet::new().await;
        assert!(!fleet.run_for(4 * SECOND).await);
        fleet.server.kill();
        fleet.server.lose_data();
        fleet.server.start_again();
        let (_, sent, planner) = fleet.finish().await;
        assert!(sent <= 1.5, "{sent}");
        assert!(planner.round() >= 2 && !planner.is_alone, "round {}", planner.round());
    });
}

/// F6
#[test]
fn a_frozen_server_stops_nobody_who_has_work() {
    test(async {
        let mut fleet = Fleet::new().await;
        assert!(!fleet.run_for(3 * SECOND).await);
        let before = fleet.store.count();
        fleet.server.signal("STOP");
        fleet.run_for(12 * SECOND).await;
        assert!(fleet.store.count() > before);
        fleet.server.signal("CONT");
        let (_, sent, planner) = fleet.finish().await;
        assert!(sent <= 1.5, "{sent}");
        assert!(!planner.is_alone);
    });
}

/// F9
#[test]
fn a_planner_finishes_alone_when_the_server_is_gone_for_good() {
    test(async {
        let mut fleet = Fleet::new().await;
        fleet.workers.iter().for_each(|worker| worker.is_dead.store(true, Ordering::Relaxed));
        fleet.planner.step(SECOND).await;
        fleet.server.kill();
        // Two minutes of the planner's clock in a second.
        for second in 2..400 {
            if fleet.planner.step(second * SECOND).await {
                break;
            }
        }
        assert!(fleet.planner.is_alone);
        fleet.store.assert_has_exactly(&fleet.items);
    });
}

/// The permissions that packagers install.
fn permissions() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/nats/permissions.conf");
    std::fs::read_to_string(path).unwrap()
}

fn user(server: &Server, role: Role, name: &str, password: &str) -> NatsSettings {
    let credentials = Credentials::Password { user: name.to_owned(), password: password.to_owned() };
    NatsSettings { credentials, ..NatsSettings::new(&server.url(), role) }
}

#[test]
fn a_worker_s_permissions_are_enough_for_a_worker_and_for_nothing_else() {
    test(async {
        let server = Server::start(&permissions());
        let planner = NatsQueue::connect(&user(&server, Role::Planner, "planner", "planner-password")).await.unwrap();
        let worker = NatsQueue::connect(&user(&server, Role::Worker, "worker", "worker-password")).await.unwrap();
        planner.open(&run()).await.unwrap();
        let mut reports = planner.reports(&run()).await.unwrap();
        planner.publish(&some_tasks(1, 4)).await.unwrap();

        // Pull, extend, acknowledge, give back, discard.
        let held = pull(&worker, 4).await;
        assert_eq!(held.len(), 4);
        worker.extend(&held[0].delivery).await.unwrap();
        worker.acknowledge(&held[0].delivery).await.unwrap();
        worker.give_back(&held[1].delivery, Duration::ZERO).await.unwrap();
        worker.discard(&held[2].delivery).await.unwrap();
        let again = worker.pull(&run(), Class::Large, 4, 5 * SECOND).await.unwrap();
        assert_eq!(again[0].deliveries, 2);
        assert_eq!(counts(&planner).await, (0, 2));
        // Lease, renew, list, free; live; avoid a mirror; report.
        for key in ["lease.a.0", "worker.w1", "bad.a"] {
            let revision = worker.create(key, Bytes::from("w1"), 10 * SECOND).await.unwrap().unwrap();
            assert_eq!(worker.list(&key[..key.find('.').unwrap() + 1]).await.unwrap().len(), 1);
            let revision = worker.renew(key, Bytes::from("w1"), revision, 10 * SECOND).await.unwrap().unwrap();
            worker.remove(key, revision).await.unwrap();
            assert!(worker.create(key, Bytes::new(), 10 * SECOND).await.unwrap().is_some());
        }
        let name = WorkerId::parse("w1").unwrap();
        worker.report(&run(), &name, &Report::Stat(Stat::new(name.clone()))).await.unwrap();
        assert!(matches!(reports.recv().await, Some(Report::Stat(_))));
        let announced = planner.create("run.9c1f", Bytes::from("{}"), 100 * SECOND).await.unwrap().unwrap();
        assert_eq!(worker.list("run.").await.unwrap()[0].revision, announced);

        // No tasks, no purge, no deletion, no change of consumers, no announcement of runs.
        assert!(worker.publish(&some_tasks(1, 6)).await.is_err());
        assert!(worker.purge(&run()).await.is_err());
        assert!(worker.open(&RunId::parse("other").unwrap()).await.is_err());
        assert!(worker.close(&run()).await.is_err());
        assert!(worker.create("run.evil", Bytes::from("{}"), 10 * SECOND).await.is_err());
        assert!(worker.remove("run.9c1f", announced).await.is_err());
        assert_eq!(planner.list("run.").await.unwrap().len(), 1);
        assert_eq!(counts(&planner).await, (0, 2));

        let refused = NatsQueue::connect(&user(&server, Role::Worker, "worker", "wrong")).await;
        assert!(matches!(refused, Err(ConnectError::Refused { .. })), "{:?}", refused.err());
        let stranger = NatsQueue::connect(&NatsSettings::new(&server.url(), Role::Worker)).await;
        assert!(matches!(stranger, Err(ConnectError::Refused { .. })), "{:?}", stranger.err());
    });
}

/// A key of this test alone: SHA-256 of `fullbore test` as the seed.
const SEED: &str = "SUAHR4ABWPLTEYQXDJDNMBYULWTJSUDUZEHI6H4SZBGXBCTIEY323SGZOQ";
const PUBLIC_KEY: &str = "UBIJU42BIFPNCUOHVWSAIKLQIWC5ZCM6XPRXO6UHT5FLL4KYXQQWNVAE";

#[test]
fn a_worker_with_an_nkey_shows_who_it_is_without_sending_it() {
    test(async {
        let server = Server::start(&format!("authorization {{ users: [ {{ nkey: {PUBLIC_KEY} }} ] }}\n"));
        let mut settings = NatsSettings::new(&server.url(), Role::Planner);
        assert!(matches!(NatsQueue::connect(&settings).await, Err(ConnectError::Refused { .. })));
        settings.credentials = Credentials::NKey(SEED.to_owned());
        NatsQueue::connect(&settings).await.unwrap().open(&run()).await.unwrap();
        settings.credentials = Credentials::File("/no/such/file".into());
        assert!(matches!(NatsQueue::connect(&settings).await, Err(ConnectError::File { .. })));
    });
}

#[test]
fn a_connection_by_tls_checks_the_server_s_certificate() {
    test(async {
        let server = Server::start_with_tls();
        let mut settings = NatsSettings::new(&server.url(), Role::Planner);
        let untrusted = NatsQueue::connect(&settings).await;
        assert!(untrusted.is_err());
        settings.authorities = Some(server.authority());
        let queue = NatsQueue::connect(&settings).await.unwrap();
        queue.open(&run()).await.unwrap();
        assert_eq!(queue.publish(&some_tasks(1, 3)).await.unwrap().accepted, 3);
        // No downgrade: a server without TLS is refused.
        let plain = Server::start("");
        settings.url = plain.url().replace("nats://", "tls://");
        assert!(NatsQueue::connect(&settings).await.is_err());
    });
}

#[test]
fn without_a_server_the_error_names_it() {
    test(async {
        let refused = NatsQueue::connect(&NatsSettings::new("nats://127.0.0.1:1", Role::Planner)).await;
        let Err(error) = refused else { panic!("a server at port 1") };
        assert!(error.to_string().starts_with("cannot connect to the queue nats://127.0.0.1:1: "), "{error}");
    });
}
