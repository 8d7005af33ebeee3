//! Faults of workers, queue and messages, on a queue in memory under a virtual clock.
//!
//! In each test, the store ends with exactly the files of the plan, whatever went wrong; the time is what a fault
//! costs. Starred faults happen to a real nats-server in `nats.rs` as well.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::time::Duration;

use fullbore_digest::Sha256;
use fullbore_fleet::memory::{Faults, MemoryQueue};
use fullbore_fleet::message::{Item, Kind, Task};
use fullbore_fleet::queue::Queue as _;
use fullbore_fleet::random::Random;
use support::*;

/// Time between two steps.
const STEP: Duration = Duration::from_millis(250);

/// A run that takes longer is stuck.
const TIME_MAX: Duration = Duration::from_secs(1800);

struct Fleet {
    queue: MemoryQueue,
    store: Store,
    items: Vec<Item>,
    planner: Planner<MemoryQueue>,
    workers: Vec<Worker<MemoryQueue>>,
}

impl Fleet {
    /// 200 files of 320 MB together, and workers at 10 MB/s each: 8 s of work for four.
    fn new(workers: usize, seed: u64) -> Fleet {
        let (queue, store, items) = (MemoryQueue::new(seed), Store::default(), files(200, 320_000_000, seed));
        let worker = |number| Worker::new(number, queue.connect(), &store, 10_000_000);
        let workers = (0..workers).map(worker).collect();
        let planner = Planner::new(queue.connect(), &store, &items);
        Fleet { queue, store, items, planner, workers }
    }

    /// Runs to the end; `meddle` is called before each step. Gives the time.
    fn run(&mut self, mut meddle: impl FnMut(Duration, &mut Fleet)) -> Duration {
        let mut now = Duration::ZERO;
        loop {
            assert!(now < TIME_MAX, "{} of {} files after {now:?}", self.store.count(), self.items.len());
            self.queue.advance_to(now);
            meddle(now, self);
            if ready(self.planner.step(now)) {
                break;
            }
            for worker in &mut self.workers {
                ready(worker.step(now));
            }
            now += STEP;
        }
        self.store.assert_has_exactly(&self.items);
        now
    }

    /// Bytes sent to the store, as a multiple of the files.
    fn sent(&self) -> f64 {
        self.store.sent_bytes() as f64 / self.items.iter().map(|item| item.size).sum::<u64>() as f64
    }
}

fn at(now: Duration, seconds: f64) -> bool {
    now == Duration::from_secs_f64(seconds)
}

#[test]
fn without_a_fault_every_file_is_sent_once() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|_, _| {});
    assert!(time <= Duration::from_secs(13), "{time:?}");
    assert_eq!(fleet.sent(), 1.0);
    assert_eq!(fleet.planner.round(), 1);
    assert!(fleet.workers.iter().all(|worker| worker.failed_requests == 0));
}

/// F1*
#[test]
fn a_killed_worker_s_tasks_go_to_others_after_the_ack_wait() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|now, fleet| {
        if at(now, 4.0) {
            fleet.workers[0].state = State::Dead;
        }
    });
    assert!((10..25).contains(&time.as_secs()), "{time:?}");
    // What the dead worker had begun is not counted as sent; the rest goes once.
    assert_eq!(fleet.sent(), 1.0);
    assert_eq!(fleet.planner.round(), 1);
}

/// F2*
#[test]
fn a_worker_that_was_frozen_harms_nobody_when_it_wakes() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|now, fleet| {
        if at(now, 4.0) {
            fleet.workers[0].state = State::Frozen;
        }
        if at(now, 15.0) {
            fleet.workers[0].state = State::Working;
        }
    });
    assert!((10..25).contains(&time.as_secs()), "{time:?}");
    assert!(fleet.sent() <= 1.25, "{}", fleet.sent());
}

/// F3
#[test]
fn a_worker_that_is_five_times_slower_gets_less_work_and_lapses_nothing() {
    let mut fleet = Fleet::new(4, 1);
    fleet.workers[0].rate_bytes_per_s = 2_000_000;
    let time = fleet.run(|_, _| {});
    // 320 MB at 32 MB/s are 10 s; the slow one may end with its two tasks.
    assert!(time <= Duration::from_secs(60), "{time:?}");
    assert_eq!(fleet.sent(), 1.0);
    let deliveries: Vec<usize> = fleet.workers.iter().map(|worker| worker.deliveries).collect();
    assert!(deliveries[1..].iter().all(|count| *count >= deliveries[0]), "{deliveries:?}");
}

/// F4*
#[test]
fn a_queue_that_was_killed_and_forgot_its_deliveries_costs_little() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|now, fleet| {
        if at(now, 4.0) {
            fleet.queue.freeze(true);
        }
        if at(now, 4.5) {
            fleet.queue.freeze(false);
            fleet.queue.forget_deliveries();
        }
    });
    assert!(time <= Duration::from_secs(20), "{time:?}");
    assert!(fleet.sent() <= 1.5, "{}", fleet.sent());
}

/// F5*
#[test]
fn a_queue_that_was_wiped_gets_its_tasks_again() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|now, fleet| {
        if at(now, 4.0) {
            fleet.queue.wipe();
        }
    });
    assert_eq!(fleet.planner.round(), 2);
    assert!(time <= Duration::from_secs(25), "{time:?}");
    assert!(fleet.sent() <= 1.5, "{}", fleet.sent());
}

/// F6*
#[test]
fn a_frozen_queue_stops_nobody_who_has_work() {
    let mut fleet = Fleet::new(4, 1);
    let mut stored = (0, 0);
    let time = fleet.run(|now, fleet| {
        if at(now, 3.0) {
            fleet.queue.freeze(true);
            stored.0 = fleet.store.count();
        }
        if at(now, 15.0) {
            fleet.queue.freeze(false);
            stored.1 = fleet.store.count();
        }
    });
    assert!(stored.1 > stored.0, "{stored:?}");
    assert!(time <= Duration::from_secs(60), "{time:?}");
    assert!(!fleet.planner.is_alone);
    assert!(fleet.sent() <= 1.25, "{}", fleet.sent());
}

/// F6*
#[test]
fn half_of_the_workers_without_a_queue_leave_the_rest_to_the_others() {
    let mut fleet = Fleet::new(4, 1);
    let time = fleet.run(|now, fleet| {
        if at(now, 3.0) {
            fleet.workers[..2].iter().for_each(|worker| worker.queue.cut(true));
        }
    });
    assert!(time <= Duration::from_secs(60), "{time:?}");
    assert!(fleet.sent() <= 1.25, "{}", fleet.sent());
}

/// F7
#[test]
fn a_planner_tops_up_a_full_queue() {
    let mut fleet = Fleet::new(4, 1);
    let bytes: u64 = fullbore_fleet::tasks::pack(&run(), 1, fleet.items.clone())
        .iter()
        .map(|task: &Task| task.to_bytes().len() as u64 + 200)
        .max()
        .unwrap();
    fleet.queue.set_capacity(2 * bytes);
    fleet.run(|_, _| {});
    assert!(fleet.planner.was_full);
    assert_eq!(fleet.planner.round(), 1);
    assert_eq!(fleet.sent(), 1.0);
}

/// F8
#[test]
fn a_queue_that_hides_its_tasks_is_found_out_by_the_store() {
    let mut fleet = Fleet::new(4, 1);
    fleet.run(|now, fleet| {
        if at(now, 1.25) {
            fleet.queue.hide_tasks();
        }
    });
    assert_eq!(fleet.planner.round(), 2);
    assert!(fleet.sent() <= 1.5, "{}", fleet.sent());
}

/// F9
#[test]
fn a_planner_finishes_alone_without_a_queue() {
    for gone_at in [0.0, 4.0] {
        let mut fleet = Fleet::new(4, 1);
        let time = fleet.run(|now, fleet| {
            if at(now, gone_at) {
                fleet.queue.freeze(true);
            }
        });
        assert!(fleet.planner.is_alone);
        assert!(time > Duration::from_secs(60), "{time:?}");
        assert!(fleet.sent() <= 1.0 + 1e-9, "{}", fleet.sent());
    }
}

#[test]
fn without_workers_the_planner_fetches_everything() {
    let mut fleet = Fleet::new(0, 1);
    fleet.run(|_, _| {});
    assert!(fleet.planner.is_alone);
}

/// F11: without a lock, two planners of one run publish the same ids.
#[test]
fn two_planners_publish_each_task_once() {
    let mut fleet = Fleet::new(4, 1);
    let mut second = Planner::new(fleet.queue.connect(), &fleet.store, &fleet.items);
    fleet.run(|now, _| {
        ready(second.step(now));
    });
    assert_eq!(fleet.sent(), 1.0);
}

/// F12: without workers that pull and give back what they cannot store.
#[test]
fn a_store_that_is_away_makes_workers_hold_their_tasks() {
    let mut fleet = Fleet::new(4, 1);
    let mut held = Vec::new();
    fleet.run(|now, fleet| {
        if at(now, 3.0) {
            fleet.store.set_away(true);
        }
        if at(now, 4.0) || at(now, 40.0) {
            held.push(fleet.workers.iter().map(|worker| worker.deliveries).sum::<usize>());
        }
        if at(now, 40.0) {
            fleet.store.set_away(false);
        }
    });
    assert_eq!(held[0], held[1], "deliveries while the store is away");
    assert_eq!(fleet.sent(), 1.0);
}

/// F14: a file that no mirror has is reported by its path and tried again, also in the next rounds.
#[test]
fn a_file_that_no_mirror_has_is_reported_and_left_to_the_planner() {
    let mut fleet = Fleet::new(2, 1);
    let lost = fleet.items[7].path.clone();
    for worker in &mut fleet.workers {
        worker.lost_files.insert(lost.clone());
    }
    fleet.run(|_, _| {});
    assert!(fleet.planner.is_alone, "the planner gives it up with the reasons");
    let faults = &fleet.planner.faults;
    assert!(faults.iter().all(|fault| fault.path == lost), "{faults:?}");
    assert!(faults.len() > 3, "{faults:?}");
}

/// F15
#[test]
fn a_worker_that_is_older_than_a_task_leaves_it_to_others() {
    use bytes::Bytes;
    use fullbore_fleet::book::{Book, Step};

    let (queue, store) = (MemoryQueue::new(1), Store::default());
    let items = files(1, 1_000, 1);
    let mut planner = Planner::new(queue.connect(), &store, &items);
    ready(planner.step(Duration::ZERO));
    // An old worker sees what to it is version 2.
    let mut held = ready(queue.pull(&run(), fullbore_fleet::names::Class::Large, 1, SECOND)).unwrap();
    let mut held = held.remove(0);
    let newer = String::from_utf8(held.message.to_vec()).unwrap().replace("\"v\":1", "\"v\":2");
    held.message = Bytes::from(newer);
    let mut old = Book::new(fullbore_fleet::names::WorkerId::parse("old").unwrap(), PATIENCE);
    let (begun, steps) = old.take(Duration::ZERO, held);
    assert_eq!(begun, None);
    let [Step::GiveBack(delivery, delay), Step::Warn(_)] = &steps[..] else { panic!("{steps:?}") };
    ready(queue.give_back(delivery, *delay)).unwrap();
    // A newer one does it.
    let mut newer = Worker::new(1, queue.connect(), &store, 1_000_000);
    let mut now = Duration::ZERO;
    while !ready(planner.step(now)) {
        queue.advance_to(now);
        ready(newer.step(now));
        now += STEP;
        assert!(now < TIME_MAX);
    }
    store.assert_has_exactly(&items);
    assert!(now >= *delay, "{now:?}");
}

/// F16: 200 seeds; script/test-long sets FULLBORE_FLEET_SEEDS to 10,000.
#[test]
fn copies_disorder_and_loss_end_with_the_same_objects() {
    let seeds: u64 = std::env::var("FULLBORE_FLEET_SEEDS").map_or(200, |text| text.parse().expect("a number"));
    for seed in 0..seeds {
        // A seed that fails is the last line.
        println!("seed {seed}");
        let mut fleet = Fleet::new(4, seed);
        let mut random = Random::new(seed);
        fleet.queue.set_faults(Faults { loss: 0.3, copies: 3, is_reordered: true });
        let death = Duration::from_secs(random.below(20) as u64);
        let freeze = Duration::from_secs(random.below(20) as u64);
        let time = fleet.run(|now, fleet| {
            if now == death {
                fleet.workers[0].state = State::Dead;
            }
            if now == freeze {
                fleet.workers[1].state = State::Frozen;
            }
            if now == freeze + Duration::from_secs(35) {
                fleet.workers[1].state = State::Working;
            }
        });
        // No rate: how much is sent twice. Three copies are at most three times.
        assert!(fleet.sent() <= 3.0, "seed {seed}: {} in {time:?}", fleet.sent());
    }
}

/// F18
#[test]
fn a_hostile_task_stops_nobody() {
    let (queue, store) = (MemoryQueue::new(1), Store::default());
    let items = files(20, 1_000_000, 1);
    let mut planner = Planner::new(queue.connect(), &store, &items);
    ready(queue.open(&run())).unwrap();
    let hostile = |path: &str, size| Task {
        kind: Kind::Fetch,
        run: run(),
        round: 1,
        items: vec![Item { path: path.to_owned(), size, sha256: Sha256::of(b"") }; 2],
        replaces: Vec::new(),
    };
    let tasks = [
        hostile("../../etc/passwd", 1),
        hostile("dists/sid/InRelease", 1),
        hostile(".fullbore/state", 1),
        hostile("pool/a", 5_000_000_000),
    ];
    ready(queue.publish(&tasks)).unwrap();
    let mut worker = Worker::new(0, queue.connect(), &store, 1_000_000);
    let mut now = Duration::ZERO;
    while !ready(planner.step(now)) {
        ready(worker.step(now));
        now += STEP;
        queue.advance_to(now);
        assert!(now < Duration::from_secs(10), "{:?}", worker.warnings);
    }
    store.assert_has_exactly(&items);
    assert_eq!(worker.warnings.len(), tasks.len(), "{:?}", worker.warnings);
    // Nothing was sent to the planner before it listened; the queue has none of them any more.
    assert_eq!(ready(queue.counts(&run())).unwrap(), fullbore_fleet::queue::Counts::default());
}
