//! A hundred workers for an hour, in seconds: events under a virtual clock, with the decisions that real workers make.
//!
//! Tasks come from an archive like Debian 12 main (amd64 and all): 63,440 files, 95.3 GB, of which 1.3 % of the files
//! have 62 % of the bytes, and the largest has 1.54 GB. A worker fetches one task after the other, at the rate of its
//! line or of its connections to mirrors. Each row prints its seed and its figures:
//!
//!     cargo test --release -p fullbore-fleet --test simulation -- --include-ignored --nocapture --test-threads=1
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod support;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use fullbore_digest::Sha256;
use fullbore_fleet::book::{Book, Step, TaskNumber};
use fullbore_fleet::budget::{self, Activity, LEASE_TTL, Slots};
use fullbore_fleet::memory::MemoryQueue;
use fullbore_fleet::message::{Item, Kind, Task};
use fullbore_fleet::names::{self, Class, LEASE_KEYS, WorkerId};
use fullbore_fleet::pull::{self, Demand, Load, RateMeter};
use fullbore_fleet::queue::Queue;
use fullbore_fleet::random::Random;
use fullbore_fleet::{shards, tasks};
use support::{PATIENCE, ready, run};

/// 1 Gbit/s.
const LINE_BYTES_PER_S: f64 = 125e6;

/// Connections of the whole fleet to one mirror.
const BUDGET: u32 = 4;

/// Sizes with a Pareto distribution between two bounds, whose sum is as given: the exponent is searched for.
fn pareto(count: usize, least: f64, most: f64, total: f64) -> Vec<u64> {
    let size = |number: usize, exponent: f64| {
        let share = (number as f64 + 0.5) / count as f64;
        least * (1.0 - share * (1.0 - (least / most).powf(exponent))).powf(-1.0 / exponent)
    };
    let (mut low, mut high) = (0.01, 5.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        let sum: f64 = (0..count).map(|number| size(number, middle)).sum();
        if sum > total { low = middle } else { high = middle }
    }
    (0..count).map(|number| size(number, low) as u64).collect()
}

/// Sizes of the files of the archive.
fn archive() -> Vec<u64> {
    let mut sizes = pareto(825, 16.8e6, 1.54e9, 59.1e9);
    sizes.extend(pareto(62_615, 1e3, 16.7e6, 36.2e9));
    sizes
}

/// The tasks of the archive.
fn archive_tasks() -> Vec<Task> {
    let sizes = archive();
    let item =
        |(number, size): (usize, &u64)| Item { path: format!("pool/{number}"), size: *size, sha256: Sha256::of(b"") };
    tasks::pack(&run(), 1, sizes.iter().enumerate().map(item).collect())
}

/// The same sizes of tasks, as often as the total needs, with one file in each: the simulation moves tasks, not files.
fn many_tasks(total_bytes: f64) -> Vec<Task> {
    let sizes: Vec<u64> = archive_tasks().iter().map(Task::bytes).collect();
    let copies = (total_bytes / sizes.iter().sum::<u64>() as f64).round() as usize;
    let mut sizes: Vec<u64> = sizes.iter().flat_map(|size| std::iter::repeat_n(*size, copies)).collect();
    sizes.sort_unstable_by_key(|size| Reverse(*size));
    let task = |(number, size): (usize, &u64)| Task {
        kind: Kind::Fetch,
        run: run(),
        round: 1,
        items: vec![Item { path: format!("pool/{number}"), size: *size, sha256: Sha256([0; 32]) }],
        replaces: Vec::new(),
    };
    sizes.iter().enumerate().map(task).collect()
}

/// What is simulated.
struct Scene {
    workers: usize,
    /// A quarter of the workers has 30 % of the rate.
    has_slow_quarter: bool,
    /// Mirrors of 1 Gbit/s each; 0: as many as needed.
    mirrors: usize,
    /// A worker dies each minute, and another one begins.
    has_deaths: bool,
    /// Workers hold eight tasks, whatever their size: the policy that lost.
    holds_eight: bool,
    seed: u64,
}

impl Scene {
    fn new(workers: usize) -> Scene {
        let (has_slow_quarter, has_deaths, holds_eight) = (false, false, false);
        Scene { workers, has_slow_quarter, mirrors: 0, has_deaths, holds_eight, seed: 30 }
    }
}

/// What came out.
struct Outcome {
    seconds: f64,
    /// Time as a multiple of all bytes at all rates.
    ratio: f64,
    /// Bytes fetched in vain, as a share of all.
    repeated: f64,
    tasks: usize,
    /// Slots in use, as a share of all, in the mean.
    slots_used: f64,
}

struct Worker {
    slots: Option<Slots>,
    book: Book,
    meter: RateMeter,
    line: f64,
    /// Connections to each mirror, and since when.
    connections: Vec<u32>,
    connected: f64,
    /// Tasks in order: number, name of the first file, bytes, whether the store is asked.
    work: VecDeque<(TaskNumber, String, f64, bool)>,
    /// Bytes of the first task that are fetched, at the time of the last look.
    fetched: f64,
    looked: f64,
    rate: f64,
    /// Events of an earlier plan do not count.
    plan: u64,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Finish(usize, u64),
    Tick(usize),
    Second,
    Death,
}

/// A time in nanoseconds, for the order of events.
fn key(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

struct Simulation {
    scene: Scene,
    queue: MemoryQueue,
    random: Random,
    now: f64,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    next_event: u64,
    workers: Vec<Worker>,
    begun_workers: usize,
    unpublished: VecDeque<Task>,
    stored: HashSet<String>,
    wasted_bytes: f64,
    connections: Vec<u32>,
    /// Leases as of this second.
    leases: BTreeSet<(String, u32)>,
    leases_of: u64,
    slot_seconds: f64,
    seconds: u32,
}

impl Simulation {
    fn run(scene: Scene, tasks: Vec<Task>) -> Outcome {
        let count = tasks.len();
        let bytes: f64 = tasks.iter().map(|task| task.bytes() as f64).sum();
        let mirrors = scene.mirrors;
        let mut simulation = Simulation {
            queue: MemoryQueue::new(scene.seed),
            random: Random::new(scene.seed),
            now: 0.0,
            events: BinaryHeap::new(),
            next_event: 0,
            workers: Vec::new(),
            begun_workers: 0,
            unpublished: tasks.into(),
            stored: HashSet::new(),
            wasted_bytes: 0.0,
            connections: vec![0; mirrors],
            leases: BTreeSet::new(),
            leases_of: u64::MAX,
            slot_seconds: 0.0,
            seconds: 0,
            scene,
        };
        ready(simulation.queue.open(&run())).unwrap();
        simulation.publish();
        for number in 0..simulation.scene.workers {
            let worker = simulation.new_worker(number);
            simulation.workers.push(worker);
            simulation.at(0.0, Event::Tick(number));
        }
        simulation.at(0.0, Event::Second);
        if simulation.scene.has_deaths {
            simulation.at(60.0, Event::Death);
        }
        let lines: f64 = simulation.workers.iter().map(|worker| worker.line).sum();
        let limit = if mirrors == 0 { lines } else { lines.min(mirrors as f64 * LINE_BYTES_PER_S) };
        while simulation.stored.len() < count {
            simulation.step();
            assert!(simulation.now < 36_000.0, "{} of {count} tasks", simulation.stored.len());
        }
        let seconds = simulation.now;
        Outcome {
            seconds,
            ratio: seconds / (bytes / limit),
            repeated: simulation.wasted_bytes / bytes,
            tasks: count,
            slots_used: simulation.slot_seconds / (f64::from(simulation.seconds * BUDGET) * mirrors.max(1) as f64),
        }
    }

    fn new_worker(&mut self, number: usize) -> Worker {
        let name = WorkerId::parse(&format!("w{}", self.begun_workers)).unwrap();
        self.begun_workers += 1;
        let budgets = (0..self.scene.mirrors).map(|mirror| (format!("m{mirror:02}"), BUDGET));
        let is_slow = self.scene.has_slow_quarter && number.is_multiple_of(4);
        Worker {
            slots: (self.scene.mirrors > 0).then(|| Slots::new(&name, budgets)),
            book: Book::new(name, PATIENCE),
            meter: RateMeter::default(),
            line: if is_slow { 0.3 * LINE_BYTES_PER_S } else { LINE_BYTES_PER_S },
            connections: vec![0; self.scene.mirrors],
            connected: self.now,
            work: VecDeque::new(),
            fetched: 0.0,
            looked: self.now,
            rate: 0.0,
            plan: 0,
        }
    }

    fn at(&mut self, seconds: f64, event: Event) {
        self.next_event += 1;
        self.events.push(Reverse((key(seconds), self.next_event, event)));
    }

    fn time(&self) -> Duration {
        Duration::from_secs_f64(self.now)
    }

    fn step(&mut self) {
        let Reverse((time, _, event)) = self.events.pop().expect("ticks never end");
        self.now = time as f64 / 1e9;
        self.queue.advance_to(self.time());
        match event {
            Event::Second => {
                self.publish();
                self.seconds += 1;
                self.slot_seconds += f64::from(self.connections.iter().sum::<u32>());
                self.at(self.now + 1.0, Event::Second);
            }
            Event::Tick(number) => self.tick(number),
            Event::Finish(number, plan) if self.workers[number].plan == plan => self.finish(number),
            Event::Finish(..) => {}
            Event::Death => self.die(),
        }
    }

    /// The planner tops up the queue.
    fn publish(&mut self) {
        // Some thousand tasks at a time, because all of them would be looked at again while the queue is full.
        while !self.unpublished.is_empty() {
            let count = self.unpublished.len().min(1000);
            let published = ready(self.queue.publish(&self.unpublished.make_contiguous()[..count])).unwrap();
            self.unpublished.drain(..published.accepted);
            if published.is_full {
                break;
            }
        }
    }

    fn tick(&mut self, number: usize) {
        self.look(number);
        let now = self.time();
        if !self.workers[number].work.is_empty() && self.workers[number].rate > 0.0 {
            let task = self.workers[number].work[0].0;
            self.workers[number].book.moved(now, task);
        }
        for step in self.workers[number].book.tick(now) {
            if let Step::Extend(delivery) = step {
                ready(self.queue.extend(&delivery)).unwrap();
            }
        }
        if self.scene.mirrors > 0 {
            self.lease(number, Activity::Fetching);
        }
        self.pull(number);
        self.at(self.now + 1.0, Event::Tick(number));
    }

    /// Takes, renews and frees slots, and changes the rates of all whom it concerns.
    fn lease(&mut self, number: usize, activity: Activity) {
        let (now, live) = (self.time(), self.workers.len());
        let Some(mut slots) = self.workers[number].slots.take() else { return };
        // A look that found free slots is acted on at once.
        let mut has_looked = true;
        while std::mem::take(&mut has_looked) {
            for step in slots.tick(now, activity) {
                match step {
                    budget::Step::Look => {
                        self.list_leases();
                        slots.listed(now, live, &self.leases, &BTreeSet::new());
                        has_looked = true;
                    }
                    budget::Step::Take { host, number } => {
                        let key = names::lease_key(&host, number);
                        let revision = ready(self.queue.create(&key, Bytes::new(), LEASE_TTL)).unwrap();
                        slots.taken(now, &host, number, revision);
                        self.leases.insert((host, number));
                    }
                    budget::Step::Renew { host, number, revision } => {
                        let key = names::lease_key(&host, number);
                        let next = ready(self.queue.renew(&key, Bytes::new(), revision, LEASE_TTL)).unwrap();
                        slots.renewed(now, &host, number, next);
                    }
                    budget::Step::Free { host, number, revision } => {
                        ready(self.queue.remove(&names::lease_key(&host, number), revision)).unwrap();
                        self.leases.remove(&(host, number));
                    }
                }
            }
        }
        // The mirrors' names are in order.
        let connections: Vec<u32> = slots.connections(now).into_iter().map(|(_, count)| count).collect();
        self.workers[number].slots = Some(slots);
        self.connect(number, connections);
    }

    fn list_leases(&mut self) {
        let second = self.now as u64;
        if std::mem::replace(&mut self.leases_of, second) != second {
            let entries = ready(self.queue.list(LEASE_KEYS)).unwrap();
            self.leases = entries.iter().filter_map(|entry| names::parse_lease_key(&entry.key)).collect();
        }
    }

    /// Opens and closes connections.
    fn connect(&mut self, number: usize, connections: Vec<u32>) {
        let before = std::mem::replace(&mut self.workers[number].connections, connections);
        let after = self.workers[number].connections.clone();
        if before == after {
            return;
        }
        self.workers[number].connected = self.now;
        let mut concerned = BTreeSet::from([number]);
        for mirror in 0..before.len() {
            if before[mirror] != after[mirror] {
                self.connections[mirror] = self.connections[mirror] + after[mirror] - before[mirror];
                concerned.extend((0..self.workers.len()).filter(|other| self.workers[*other].connections[mirror] > 0));
            }
        }
        concerned.into_iter().for_each(|number| self.look(number));
        if after.iter().all(|count| *count == 0) && before.iter().any(|count| *count > 0) {
            // Without a connection, nothing can be done: others take the tasks.
            self.wasted_bytes += self.workers[number].fetched;
            let (now, worker) = (self.time(), &mut self.workers[number]);
            worker.fetched = 0.0;
            worker.work.clear();
            for step in worker.book.give_back(now) {
                if let Step::GiveBack(delivery, delay) = step {
                    ready(self.queue.give_back(&delivery, delay)).unwrap();
                }
            }
        }
    }

    /// Counts what a worker has fetched, and plans its next event.
    fn look(&mut self, number: usize) {
        let rate = self.rate(number);
        let time = self.time();
        let (now, worker) = (self.now, &mut self.workers[number]);
        let fetched = worker.rate * (now - worker.looked);
        worker.fetched += fetched;
        worker.meter.count(time, fetched as u64);
        (worker.looked, worker.rate) = (now, 0.0);
        let Some((.., bytes, _)) = worker.work.front() else { return };
        if worker.fetched > *bytes {
            worker.fetched = *bytes;
        }
        worker.rate = rate;
        worker.plan += 1;
        if rate > 0.0 {
            let (end, plan) = (now + (*bytes - worker.fetched) / rate, worker.plan);
            self.at(end, Event::Finish(number, plan));
        }
    }

    fn rate(&self, number: usize) -> f64 {
        let worker = &self.workers[number];
        if self.scene.mirrors == 0 {
            return worker.line;
        }
        let shares = worker.connections.iter().zip(&self.connections);
        let share = |(ours, all): (&u32, &u32)| LINE_BYTES_PER_S * f64::from(*ours) / f64::from((*all).max(1));
        shares.map(share).sum::<f64>().min(worker.line)
    }

    fn finish(&mut self, number: usize) {
        let now = self.time();
        self.look(number);
        let Some((task, name, bytes, asks_store)) = self.workers[number].work.pop_front() else { return };
        let is_new = self.stored.insert(name);
        // With a question to the store, a task that is done is not fetched again: its time here is an upper bound.
        if !is_new && !asks_store {
            self.wasted_bytes += bytes;
        }
        let worker = &mut self.workers[number];
        (worker.fetched, worker.looked, worker.rate) = (0.0, self.now, 0.0);
        let mut item = 0;
        // A task's files are stored together at its end.
        loop {
            let steps = worker.book.stored(now, task, item);
            if let Some(Step::Acknowledge(delivery)) = steps.first() {
                ready(self.queue.acknowledge(delivery)).unwrap();
                break;
            }
            item += 1;
            if item > tasks::PACK_FILES_MAX {
                break;
            }
        }
        // Slots that have been held for a minute can be passed on now.
        if self.scene.mirrors > 0 && self.now - self.workers[number].connected >= 60.0 {
            self.lease(number, Activity::BetweenFiles);
        }
        self.pull(number);
        self.look(number);
    }

    fn pull(&mut self, number: usize) {
        let now = self.time();
        let is_idle = self.workers[number].work.is_empty();
        for class in Class::ALL {
            let worker = &mut self.workers[number];
            let is_paused = self.scene.mirrors > 0 && worker.connections.iter().all(|count| *count == 0);
            let load = Load { rate_bytes_per_s: worker.meter.bytes_per_s(now), is_paused, ..worker.book.load() };
            let demand = if self.scene.holds_eight {
                let tasks = 8_usize.saturating_sub(load.tasks);
                Demand { xl_tasks: tasks, tasks }
            } else {
                pull::demand(&load)
            };
            let max = if class == Class::Xl { demand.xl_tasks } else { demand.tasks };
            if max == 0 {
                continue;
            }
            for held in ready(self.queue.pull(&run(), class, max, Duration::ZERO)).unwrap() {
                let (begun, _) = worker.book.take(now, held);
                let Some(begun) = begun else { continue };
                let bytes: u64 = begun.items.iter().map(|item| item.size).sum();
                let name = begun.items[0].path.clone();
                let has = begun.asks_store && self.stored.contains(&name);
                // The store has it: acknowledged without a byte.
                worker.work.push_back((begun.number, name, if has { 0.0 } else { bytes as f64 }, begun.asks_store));
            }
        }
        if is_idle {
            self.look(number);
        }
    }

    /// A worker dies with all that it had, and a new one begins.
    fn die(&mut self) {
        let number = self.random.below(self.workers.len());
        self.look(number);
        self.connect(number, vec![0; self.scene.mirrors]);
        self.wasted_bytes += self.workers[number].fetched;
        let mut worker = self.new_worker(number);
        worker.plan = self.workers[number].plan + 1;
        self.workers[number] = worker;
        self.at(self.now + 60.0, Event::Death);
    }
}

fn simulate(title: &str, scene: Scene, tasks: Vec<Task>) -> Outcome {
    let (seed, workers, begun) = (scene.seed, scene.workers, thread_seconds());
    let outcome = Simulation::run(scene, tasks);
    println!(
        "{title}: seed {seed}, {workers} workers, {} tasks, {:.1} s, {:.2} x ideal, {:.2} % repeated, \
         {:.0} % of the slots; \
         {:.2} s of this core",
        outcome.tasks,
        outcome.seconds,
        outcome.ratio,
        100.0 * outcome.repeated,
        100.0 * outcome.slots_used,
        thread_seconds() - begun
    );
    outcome
}

/// Processor time of this thread: the machine may be busy with other things.
fn thread_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: f64 = fields[11].parse::<f64>().unwrap() + fields[12].parse::<f64>().unwrap();
    // Linux reports hundredths to all programs.
    ticks / 100.0
}

#[test]
fn the_archive_is_like_debian_s() {
    let sizes = archive();
    let total: u64 = sizes.iter().sum();
    assert!((95.0e9..95.6e9).contains(&(total as f64)), "{total}");
    let large: u64 = sizes.iter().filter(|size| **size > 16 << 20).sum();
    let share = large as f64 / total as f64;
    assert!((0.60..0.64).contains(&share), "{share}");
    assert!((1.4e9..1.54e9).contains(&(*sizes.iter().max().unwrap() as f64)));
    let tasks = archive_tasks().len();
    // 4,922 for the real one, which has fewer files between 4 and 16 MB.
    assert!((4_400..6_200).contains(&tasks), "{tasks}");
}

#[test]
fn equal_workers_take_the_ideal_time() {
    for workers in [8, 20] {
        let outcome = simulate("equal", Scene::new(workers), archive_tasks());
        assert!(outcome.ratio < 1.04, "{workers}: {}", outcome.ratio);
        assert_eq!(outcome.repeated, 0.0);
    }
}

#[test]
fn slow_workers_do_not_hold_up_the_others() {
    let outcome = simulate("a quarter at 30 %", Scene { has_slow_quarter: true, ..Scene::new(20) }, archive_tasks());
    assert!(outcome.ratio < 1.08, "{}", outcome.ratio);
}

/// The policy that lost: eight tasks for each worker, whatever their size.
#[test]
fn eight_tasks_for_each_worker_leave_others_idle() {
    let outcome = simulate("eight tasks", Scene { holds_eight: true, ..Scene::new(20) }, archive_tasks());
    assert!(outcome.ratio > 1.4, "{}", outcome.ratio);
}

/// 8 s of work for each, and the largest file alone takes 12 s.
#[test]
fn the_largest_file_limits_a_hundred_workers() {
    let outcome = simulate("a hundred", Scene::new(100), archive_tasks());
    assert!((1.5..2.2).contains(&outcome.ratio), "{}", outcome.ratio);
}

#[test]
fn a_hundred_workers_behind_twenty_mirrors_are_near_the_ideal_time() {
    let outcome = simulate("twenty mirrors", Scene { mirrors: 20, ..Scene::new(100) }, archive_tasks());
    // 46 s, because the largest file comes over one connection at a quarter of its mirror's rate.
    assert!(outcome.ratio < 1.35, "{}", outcome.ratio);
}

#[test]
fn a_death_a_minute_repeats_little() {
    let outcome = simulate("deaths", Scene { has_deaths: true, ..Scene::new(100) }, many_tasks(1.9e12));
    // 152 s, with two deaths.
    assert!(outcome.ratio < 1.08, "{}", outcome.ratio);
    assert!(outcome.repeated < 0.005, "{}", outcome.repeated);
}

/// 100 workers × 1 h, with deaths, behind 10 mirrors with budgets: 4.5 TB.
#[test]
#[ignore = "half a minute without optimisation; script/test-long runs it with"]
fn an_hour_of_a_hundred_workers_takes_seconds() {
    let tasks = many_tasks(4.5e12);
    let begun = thread_seconds();
    let scene = Scene { mirrors: 10, has_deaths: true, ..Scene::new(100) };
    let outcome = simulate("an hour", scene, tasks);
    assert!((3_500.0..4_100.0).contains(&outcome.seconds), "{}", outcome.seconds);
    assert!(outcome.ratio < 1.10, "{}", outcome.ratio);
    assert!(outcome.repeated < 0.01, "{}", outcome.repeated);
    assert!(outcome.slots_used > 0.9, "{}", outcome.slots_used);
    let took = thread_seconds() - begun;
    // A slow machine took 8 s, with the checks of a debug build and the optimisation of script/test-long.
    let limit = if cfg!(debug_assertions) { 15.0 } else { 5.0 };
    assert!(took < limit, "{took} s");
}

/// Rows of the sizing table of docs/guide/fleet.md: time for the archive with lines and mirrors of 1 Gbit/s.
fn check_sizing(mirrors: &[usize]) {
    const WORKERS: [usize; 6] = [1, 2, 4, 8, 20, 100];
    let largest_s = *archive().iter().max().unwrap() as f64 / LINE_BYTES_PER_S;
    for &mirrors in mirrors {
        let mut row = Vec::new();
        for workers in WORKERS {
            let outcome = simulate("sizing", Scene { mirrors, ..Scene::new(workers) }, archive_tasks());
            // A file comes over one connection, which may have a quarter of its mirror.
            let limit = 1.05 * outcome.seconds / outcome.ratio + f64::from(BUDGET) * largest_s + 2.0;
            assert!(outcome.seconds < limit, "{workers} workers, {mirrors} mirrors: {}", outcome.seconds);
            row.push(outcome.seconds);
        }
        let cells: Vec<String> = row.iter().map(|seconds| format!("{seconds:.0} s")).collect();
        println!("| {mirrors} | {} |", cells.join(" | "));
        // With more workers than mirrors, the largest file has a part of its mirror.
        assert!(row.is_sorted_by(|few, many| *many <= few + largest_s), "more workers are slower: {row:?}");
        // As many workers as mirrors use all of them.
        let enough = WORKERS.iter().position(|workers| *workers >= mirrors).unwrap();
        assert!(row[0] > 0.85 * mirrors.min(WORKERS[enough]) as f64 * row[enough], "{row:?}");
    }
}

#[test]
fn more_workers_help_until_a_file_or_the_mirrors_limit_them() {
    check_sizing(&[4]);
}

#[test]
#[ignore = "half a minute without optimisation; script/test-long runs it with"]
fn more_workers_help_behind_any_number_of_mirrors() {
    check_sizing(&[1, 2, 4, 20]);
}

/// Machines without a queue: shards, then help in random order. Times as multiples of the ideal, and bytes in vain.
fn shards(rates: &[f64], dies: Option<(usize, f64)>, has_help: bool, seed: u64) -> (Option<f64>, f64) {
    let sizes = archive();
    let count = rates.len() as u32;
    let of = shards::assign(&sizes, count);
    let mut random = Random::new(seed);
    let mut stored = vec![false; sizes.len()];
    let queue = |shard| {
        let mut files: Vec<usize> = (0..sizes.len()).filter(|file| of[*file] == shard).collect();
        files.sort_by_key(|file| Reverse(sizes[*file]));
        VecDeque::from(files)
    };
    let mut queues: Vec<VecDeque<usize>> = (0..count).map(queue).collect();
    let mut is_helping = vec![false; rates.len()];
    let mut events: BinaryHeap<Reverse<(u64, usize, Option<usize>)>> =
        (0..rates.len()).map(|machine| Reverse((0, machine, None))).collect();
    let (mut wasted, mut end) = (0.0, 0.0);
    while let Some(Reverse((time, machine, finished))) = events.pop() {
        let now = time as f64 / 1e9;
        if dies.is_some_and(|(dead, when)| dead == machine && now >= when) {
            continue;
        }
        if let Some(file) = finished {
            if std::mem::replace(&mut stored[file], true) {
                wasted += sizes[file] as f64;
            } else {
                end = now;
            }
        }
        // The store is asked before each file of others.
        let next = loop {
            match queues[machine].pop_front() {
                Some(file) if stored[file] => {}
                Some(file) => break Some(file),
                None if has_help && !is_helping[machine] => {
                    is_helping[machine] = true;
                    let mut missing: Vec<usize> = (0..sizes.len()).filter(|file| !stored[*file]).collect();
                    shards::help_order(&mut missing, random.next_u64());
                    queues[machine] = missing.into();
                }
                None => break None,
            }
        };
        if let Some(file) = next {
            let finish = now + sizes[file] as f64 / rates[machine];
            events.push(Reverse((key(finish), machine, Some(file))));
        }
    }
    let total: f64 = sizes.iter().map(|size| *size as f64).sum();
    let ideal = total / rates.iter().sum::<f64>();
    (stored.iter().all(|stored| *stored).then_some(end / ideal), wasted / total)
}

#[test]
fn shards_with_help_finish_what_slow_and_dead_machines_leave() {
    let equal = vec![LINE_BYTES_PER_S; 8];
    let mut slow = vec![LINE_BYTES_PER_S; 20];
    slow[..5].fill(0.3 * LINE_BYTES_PER_S);
    let fast = vec![LINE_BYTES_PER_S; 20];
    let row = |title: &str, rates: &[f64], dies, has_help| {
        let (ratio, wasted) = shards(rates, dies, has_help, 76);
        println!("shards, {title}: seed 76, {ratio:.2?} x ideal, {:.1} % twice", 100.0 * wasted);
        (ratio, wasted)
    };
    let (ratio, wasted) = row("8 equal", &equal, None, true);
    assert!(ratio.unwrap() < 1.02 && wasted < 0.005, "{ratio:?} {wasted}");
    let (ratio, _) = row("a quarter at 30 %, no help", &slow, None, false);
    assert!(ratio.unwrap() > 2.5, "{ratio:?}");
    let (ratio, wasted) = row("a quarter at 30 %", &slow, None, true);
    assert!(ratio.unwrap() < 1.05 && wasted < 0.05, "{ratio:?} {wasted}");
    let (ratio, _) = row("one dies at 5 s, no help", &fast, Some((3, 5.0)), false);
    assert_eq!(ratio, None, "files are missing");
    let (ratio, wasted) = row("one dies at 5 s", &fast, Some((3, 5.0)), true);
    // The dead machine had begun with a file of 1 GB, which now comes last: all others are idle, and fetch it too.
    assert!(ratio.unwrap() < 1.3 && wasted < 0.3, "{ratio:?} {wasted}");
}
