//! Faults of a run by many machines in which a server or a worker stands still, or comes back: F2, F4, F6 and F12 of
//! docs/design/0023-fleet.md, with a real nats-server and store.

use super::fleet::{Nats, Worker};
use super::fleet_faults::{slow, stored, wait_for};
use super::*;

/// A store, a mirror, and the machines of a run that has stored its first file.
struct Running {
    bucket: Bucket,
    workers: [Worker; 2],
    planner: Worker,
    _server: Server,
}

fn running(store: &servers::Server, nats: &Nats) -> Running {
    let (server, bucket) = (slow(0), Bucket::at(&store.url));
    let workers = [0, 1].map(|_| bucket.worker_of(&nats.url(), &["--once"]));
    let planner = Worker::start(bucket.planner_of(&[&server], &nats.url(), &["--no-local"]));
    wait_for("nothing is stored", || stored(store) > 0);
    Running { bucket, workers, planner, _server: server }
}

impl Running {
    /// All end well, and the store has everything, once.
    #[track_caller]
    fn ends_well(mut self, store: &servers::Server) -> String {
        let said = self.planner.exits(0);
        assert_eq!(contents(&data(store)), *reference(0));
        self.workers.iter_mut().for_each(|worker| drop(worker.exits(0)));
        assert_eq!(contents(&data(store)), *reference(0));
        self.bucket.check(&[]).exits(0);
        said
    }
}

/// F2: it wakes after its tasks have gone to another worker.
#[test]
fn a_worker_that_wakes_after_its_tasks_have_gone_harms_nothing() {
    let (store, nats) = (versitygw(), Nats::start(""));
    let mut running = running(&store, &nats);
    running.workers[0].signal("STOP");
    running.planner.exits(0);
    assert_eq!(contents(&data(&store)), *reference(0));
    running.workers[0].signal("CONT");
    running.ends_well(&store);
}

/// F4
#[test]
fn a_queue_that_is_killed_and_started_again_costs_no_file() {
    let (store, mut nats) = (versitygw(), Nats::start(""));
    let running = running(&store, &nats);
    nats.kill();
    nats.start_again();
    let said = running.ends_well(&store);
    assert!(!said.contains("fetches everything itself"), "{said}");
}

/// F6: workers store what they hold while the queue is frozen.
#[test]
fn a_queue_that_freezes_for_a_while_costs_no_file() {
    let (store, nats) = (versitygw(), Nats::start(""));
    let running = running(&store, &nats);
    nats.signal("STOP");
    // Longer than both limits after which a client takes a server for gone: two pings of 5 s.
    std::thread::sleep(Duration::from_secs(12));
    nats.signal("CONT");
    running.ends_well(&store);
}

/// F12
#[test]
fn a_store_that_is_killed_and_comes_back_costs_no_file() {
    let (mut store, nats) = (versitygw(), Nats::start(""));
    let running = running(&store, &nats);
    store.kill();
    std::thread::sleep(Duration::from_secs(5));
    store.start_again();
    running.ends_well(&store);
}
