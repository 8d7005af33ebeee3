//! Connections of the whole fleet to each mirror, shared by leases.
//!
//! A mirror with a budget of four has the slots 0 to 3. A worker opens a connection for each slot whose lease it holds,
//! and renews the leases while it uses them. The lease of a dead worker expires. A worker first takes
//! one slot of each mirror, soon its share of all slots, and more only if a slot was free for a while. If no slot is free, a worker with more than its share gives
//! some back; if there are fewer slots than workers, they are passed on after a minute.
//!
//! A worker without a queue cannot renew. It keeps half of its connections, because the rest of the fleet may have
//! taken its slots: so a mirror has at most twice its budget, and no work stops.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::names::WorkerId;
use crate::random::Random;

/// Time to live of a lease. A worker's own time counts from the request, so that its lease ends before the queue's.
pub const LEASE_TTL: Duration = Duration::from_secs(30);

/// Time between two renewals: two may be lost.
const RENEW_INTERVAL: Duration = Duration::from_secs(10);

/// Time between the first two readings of all leases, in which the other workers that wait for the run join it: they look
/// for runs every 250 ms. The first worker to join would else take all slots, and the others would have to wait until its
/// connections end.
const JOINING: Duration = Duration::from_millis(400);

/// Time between two calls of [`Slots::tick`] after that.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval of readings of all leases: at first, while other workers of the run join; while a slot may become free; and
/// otherwise.
const LOOK_INTERVAL_AT_FIRST: Duration = Duration::from_secs(1);
const LOOK_INTERVAL_HUNGRY: Duration = Duration::from_secs(2);
const LOOK_INTERVAL: Duration = Duration::from_secs(10);

/// Duration of the first phase.
const AT_FIRST: Duration = Duration::from_secs(10);

/// Time for which a slot must have been free before a worker takes it beyond its share. A worker below its share reads
/// the leases as often.
const FREE_MIN: Duration = Duration::from_secs(2);

/// Time after which a slot is passed on if there are not enough for all: long enough for a connection to reach its
/// rate.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// A step that the worker takes for its slots. The answers go to the method that the step names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// List leases, live workers and avoided mirrors; then [`Slots::listed`].
    Look,
    /// Create the lease; then [`Slots::taken`].
    Take {
        /// Name of the mirror.
        host: String,
        /// Number of the slot.
        number: u32,
    },
    /// Renew the lease; then [`Slots::renewed`].
    Renew {
        /// Name of the mirror.
        host: String,
        /// Number of the slot.
        number: u32,
        /// Revision of the lease.
        revision: u64,
    },
    /// Remove the lease. Its connection must end after the answer in progress.
    Free {
        /// Name of the mirror.
        host: String,
        /// Number of the slot.
        number: u32,
        /// Revision of the lease.
        revision: u64,
    },
}

#[derive(Debug)]
struct Slot {
    number: u32,
    revision: u64,
    since: Duration,
    /// Time of the last request that the queue has confirmed.
    confirmed: Duration,
    /// Time of the last renewal request.
    asked: Duration,
}

#[derive(Debug, Default)]
struct Host {
    budget: u32,
    slots: Vec<Slot>,
    /// Slots whose leases are requested.
    pending: BTreeSet<u32>,
    /// Slots without a lease, with the time since when.
    free: BTreeMap<u32, Duration>,
    is_avoided: bool,
}

impl Host {
    fn held(&self) -> usize {
        self.slots.len() + self.pending.len()
    }
}

/// What a worker does with its connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activity {
    /// It has no work: all slots go back.
    Nothing,
    /// A file has ended and the next one has not begun, so a slot can be passed on without repeating anything.
    BetweenFiles,
    /// It fetches.
    Fetching,
}

/// The slots that a worker may have.
#[derive(Clone, Copy)]
struct Shares {
    /// Slots of all mirrors together that every worker can have.
    least: usize,
    /// The same, rounded up if the slots cannot be divided evenly.
    most: usize,
    /// Whether no mirror has a free slot.
    is_scarce: bool,
}

/// The slots of one worker in one run.
#[derive(Debug)]
pub struct Slots {
    hosts: BTreeMap<String, Host>,
    live: u32,
    looked: Option<Duration>,
    /// Number of readings so far, up to two.
    readings: u8,
    /// When this worker last passed a slot on.
    passed: Option<Duration>,
    random: Random,
}

impl Slots {
    /// Starts without any slot of these mirrors. The seed differs between workers, so that they try different slots.
    pub fn new(worker: &WorkerId, budgets: impl IntoIterator<Item = (String, u32)>) -> Slots {
        let hosts = budgets.into_iter().map(|(host, budget)| (host, Host { budget, ..Host::default() })).collect();
        let seed = worker.as_str().bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31) + u64::from(byte));
        Slots { hosts, live: 1, looked: None, readings: 0, passed: None, random: Random::new(seed) }
    }

    /// Whether other workers may still be joining the run.
    fn is_joining(&self) -> bool {
        self.readings < 2
    }

    /// Time after which [`Slots::tick`] should be called again.
    pub fn tick_interval(&self) -> Duration {
        if self.is_joining() { JOINING / 2 } else { TICK_INTERVAL }
    }

    /// Returns the steps that are due. Call it every [`Slots::tick_interval`], and between files.
    pub fn tick(&mut self, now: Duration, activity: Activity) -> Vec<Step> {
        let mut steps = Vec::new();
        let wants = activity != Activity::Nothing;
        let interval = match wants {
            true if self.is_joining() => JOINING,
            true if now < AT_FIRST => LOOK_INTERVAL_AT_FIRST,
            true if self.is_hungry() => LOOK_INTERVAL_HUNGRY,
            _ => LOOK_INTERVAL,
        };
        if self.looked.is_none_or(|looked| now.saturating_sub(looked) >= interval) {
            self.looked = Some(now);
            steps.push(Step::Look);
        }
        self.renew(now, activity, &mut steps);
        if wants && self.readings > 0 {
            self.take(now, &mut steps);
        }
        steps
    }

    /// Number of this worker's slots on all mirrors.
    fn held(&self) -> usize {
        self.hosts.values().map(Host::held).sum()
    }

    fn shares(&self) -> Shares {
        let mut usable = self.hosts.values().filter(|host| !host.is_avoided);
        let budget: u32 = usable.clone().map(|host| host.budget).sum();
        Shares {
            least: (budget / self.live) as usize,
            most: budget.div_ceil(self.live) as usize,
            is_scarce: usable.all(|host| host.free.is_empty()),
        }
    }

    /// Whether another reading may soon bring a slot.
    fn is_hungry(&self) -> bool {
        let shares = self.shares();
        self.held() < shares.most || !shares.is_scarce
    }

    /// Renews leases, or gives them back.
    fn renew(&mut self, now: Duration, activity: Activity, steps: &mut Vec<Step>) {
        let (shares, live, mut held) = (self.shares(), self.live, self.held());
        for (name, host) in &mut self.hosts {
            let mut of_host = host.held();
            let most_of_host = host.budget.div_ceil(live) as usize;
            let passed = &mut self.passed;
            host.slots.retain_mut(|slot| {
                let is_passed_on = activity == Activity::BetweenFiles
                    && shares.is_scarce
                    && held > shares.least
                    && now.saturating_sub(slot.since) >= HOLD_MAX;
                let is_surplus = shares.is_scarce && (held > shares.most || of_host > most_of_host);
                if now.saturating_sub(slot.asked) < RENEW_INTERVAL && !is_passed_on && !is_surplus {
                    return true;
                }
                let wants = activity != Activity::Nothing;
                let (host, number, revision) = (name.clone(), slot.number, slot.revision);
                if wants && !is_surplus && !is_passed_on {
                    slot.asked = now;
                    steps.push(Step::Renew { host, number, revision });
                    return true;
                }
                if is_passed_on {
                    *passed = Some(now);
                }
                (held, of_host) = (held - 1, of_host - 1);
                steps.push(Step::Free { host, number, revision });
                false
            });
        }
    }

    /// Requests leases of free slots: up to the share at once, and one more of each mirror if it was free for a while. As
    /// long as workers join, one of each mirror is enough to begin with.
    fn take(&mut self, now: Duration, steps: &mut Vec<Step>) {
        if self.hosts.values().all(|host| host.free.is_empty()) {
            return;
        }
        // A worker that has just passed a slot on leaves it to others.
        let has_passed = self.passed.is_some_and(|time| now.saturating_sub(time) < HOLD_MAX);
        let share = if has_passed { 0 } else { self.shares().most };
        let (live, mut held, is_joining) = (self.live, self.held(), self.is_joining());
        // In another order for each worker.
        let mut names: Vec<String> = self.hosts.keys().cloned().collect();
        self.random.shuffle(&mut names);
        for name in names {
            let Some(host) = self.hosts.get_mut(&name).filter(|host| !host.is_avoided) else { continue };
            let mut numbers: Vec<u32> = host.free.keys().copied().collect();
            self.random.shuffle(&mut numbers);
            let mut has_extra = false;
            for number in numbers {
                if is_joining && host.held() > 0 {
                    break;
                }
                let is_extra = held >= share || host.held() >= host.budget.div_ceil(live) as usize;
                let was_free = host.free.get(&number).is_some_and(|since| now.saturating_sub(*since) >= FREE_MIN);
                if is_extra && (has_extra || !was_free) {
                    continue;
                }
                has_extra |= is_extra;
                held += 1;
                host.free.remove(&number);
                host.pending.insert(number);
                steps.push(Step::Take { host: name.clone(), number });
            }
        }
    }

    /// The answer to [`Step::Look`]: workers that share these mirrors, this one among them; all leases; mirrors that the
    /// fleet avoids.
    pub fn listed(
        &mut self,
        now: Duration,
        workers: usize,
        leases: &BTreeSet<(String, u32)>,
        avoided: &BTreeSet<String>,
    ) {
        self.live = u32::try_from(workers).unwrap_or(u32::MAX).max(1);
        self.readings = (self.readings + 1).min(2);
        for (name, host) in &mut self.hosts {
            host.is_avoided = avoided.contains(name);
            let before = std::mem::take(&mut host.free);
            let is_free = |number: &u32| {
                let is_ours = host.slots.iter().any(|slot| slot.number == *number) || host.pending.contains(number);
                !is_ours && !leases.contains(&(name.clone(), *number))
            };
            let free = (0..host.budget).filter(is_free);
            host.free = free.map(|number| (number, before.get(&number).copied().unwrap_or(now))).collect();
        }
    }

    /// The answer to [`Step::Take`]: the revision of the new lease, or `None` if there is no lease. `sent` is the time
    /// of the request.
    pub fn taken(&mut self, sent: Duration, host: &str, number: u32, revision: Option<u64>) {
        let Some(host) = self.hosts.get_mut(host) else { return };
        host.pending.remove(&number);
        if let Some(revision) = revision {
            host.slots.push(Slot { number, revision, since: sent, confirmed: sent, asked: sent });
        }
    }

    /// The answer to [`Step::Renew`]: the new revision, or `None` if the lease is lost. Without an answer, do not call
    /// it.
    pub fn renewed(&mut self, sent: Duration, host: &str, number: u32, revision: Option<u64>) {
        let Some(host) = self.hosts.get_mut(host) else { return };
        match revision {
            None => host.slots.retain(|slot| slot.number != number),
            Some(revision) => {
                for slot in host.slots.iter_mut().filter(|slot| slot.number == number) {
                    (slot.revision, slot.confirmed) = (revision, sent);
                }
            }
        }
    }

    /// Connections that the worker may have to each mirror.
    pub fn connections(&self, now: Duration) -> Vec<(&str, u32)> {
        let has_lapsed = |slot: &&Slot| now.saturating_sub(slot.confirmed) >= LEASE_TTL;
        let lapsed_of = |host: &Host| host.slots.iter().filter(has_lapsed).count();
        let total: usize = self.hosts.values().map(|host| host.slots.len()).sum();
        let lapsed: usize = self.hosts.values().map(lapsed_of).sum();
        // Slots with a lease, and lapsed ones up to half of all.
        let mut kept_lapsed = if lapsed == 0 { 0 } else { (total / 2).max(1).saturating_sub(total - lapsed) };
        let mut connections = Vec::with_capacity(self.hosts.len());
        for (name, host) in &self.hosts {
            let lapsed = lapsed_of(host);
            let kept = lapsed.min(kept_lapsed);
            kept_lapsed -= kept;
            let count = if host.is_avoided { 0 } else { host.slots.len() - lapsed + kept };
            connections.push((name.as_str(), u32::try_from(count).unwrap_or(u32::MAX)));
        }
        connections
    }

    /// Connections that the worker may have to one mirror.
    pub fn allowed(&self, now: Duration, host: &str) -> u32 {
        self.connections(now).into_iter().find(|(name, _)| *name == host).map_or(0, |(_, count)| count)
    }

    /// Connections to all mirrors.
    pub fn allowed_in_all(&self, now: Duration) -> u32 {
        self.connections(now).into_iter().map(|(_, count)| count).sum()
    }

    /// Steps that give all slots back: the session has ended, and nobody waits for answers any more. A lease whose answer
    /// is lost expires.
    pub fn free_all(&mut self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (name, host) in &mut self.hosts {
            host.pending.clear();
            let free = host.slots.drain(..).map(|Slot { number, revision, .. }| (number, revision));
            steps.extend(free.map(|(number, revision)| Step::Free { host: name.clone(), number, revision }));
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// The leases that a queue would have, without expiry.
    #[derive(Default)]
    struct Leases(BTreeMap<(String, u32), (usize, u64)>);

    fn slots(number: usize, budgets: &[(&str, u32)]) -> Slots {
        let worker = WorkerId::parse(&format!("w{number}")).unwrap();
        Slots::new(&worker, budgets.iter().map(|(host, budget)| ((*host).to_owned(), *budget)))
    }

    impl Leases {
        fn answer(&mut self, worker: usize, slots: &mut Slots, now: Duration, live: usize, steps: Vec<Step>) {
            for step in steps {
                match step {
                    Step::Look => {
                        slots.listed(now, live, &self.0.keys().cloned().collect(), &BTreeSet::new());
                    }
                    Step::Take { host, number } => {
                        let is_free = !self.0.contains_key(&(host.clone(), number));
                        if is_free {
                            self.0.insert((host.clone(), number), (worker, 1));
                        }
                        slots.taken(now, &host, number, is_free.then_some(1));
                    }
                    Step::Renew { host, number, revision } => {
                        let lease = self.0.get_mut(&(host.clone(), number)).filter(|lease| lease.0 == worker);
                        let next = lease.map(|lease| {
                            assert_eq!(lease.1, revision);
                            lease.1 += 1;
                            lease.1
                        });
                        slots.renewed(now, &host, number, next);
                    }
                    Step::Free { host, number, revision } => {
                        assert_eq!(self.0.remove(&(host, number)), Some((worker, revision)));
                    }
                }
            }
        }
    }

    /// Runs some workers for some seconds; every second, all have at most the budget together.
    fn run(workers: &mut [Slots], leases: &mut Leases, budgets: &[(&str, u32)], seconds: std::ops::Range<u32>) {
        for second in seconds {
            let (now, live) = (second * SECOND, workers.len());
            // In another order each second, as on a network.
            let mut order: Vec<usize> = (0..live).collect();
            Random::new(u64::from(second)).shuffle(&mut order);
            for number in order {
                let steps = workers[number].tick(now, Activity::BetweenFiles);
                leases.answer(number, &mut workers[number], now, live, steps);
            }
            for (host, budget) in budgets {
                let used: u32 = workers.iter().map(|worker| worker.allowed(now, host)).sum();
                assert!(used <= *budget, "{host}: {used} at {second} s");
            }
        }
    }

    #[test]
    fn one_worker_takes_the_whole_budget() {
        let (budgets, mut leases) = ([("a", 4), ("b", 2)], Leases::default());
        let mut workers = [slots(0, &budgets)];
        run(&mut workers, &mut leases, &budgets, 0..100);
        assert_eq!(workers[0].allowed(99 * SECOND, "a"), 4);
        assert_eq!(workers[0].allowed_in_all(99 * SECOND), 6);
        assert_eq!(workers[0].allowed(99 * SECOND, "unknown"), 0);
    }

    /// All begin at the same time, and each sees the others only at its second reading.
    #[test]
    fn workers_that_join_together_have_their_shares_without_giving_any_back() {
        let (budgets, mut leases) = ([("a", 8), ("b", 8)], Leases::default());
        let mut workers: Vec<Slots> = (0..4).map(|number| slots(number, &budgets)).collect();
        for tick in 0..10 {
            let now = tick * JOINING / 2;
            for (number, worker) in workers.iter_mut().enumerate() {
                let live = if tick < 2 { 1 } else { 4 };
                // What is due after an answer is done at once.
                for _ in 0..2 {
                    let steps = worker.tick(now, Activity::BetweenFiles);
                    assert!(!steps.iter().any(|step| matches!(step, Step::Free { .. })), "{steps:?}");
                    leases.answer(number, worker, now, live, steps);
                }
                if tick < 2 {
                    assert_eq!(["a", "b"].map(|host| worker.allowed(now, host)), [1, 1], "at once");
                }
            }
        }
        for worker in &workers {
            assert_eq!(worker.allowed_in_all(5 * JOINING), 4);
        }
    }

    #[test]
    fn a_new_worker_gets_its_share() {
        let (budgets, mut leases) = ([("a", 4)], Leases::default());
        let mut workers = vec![slots(0, &budgets)];
        run(&mut workers, &mut leases, &budgets, 0..30);
        workers.push(slots(1, &budgets));
        run(&mut workers, &mut leases, &budgets, 30..70);
        assert_eq!([0, 1].map(|number: usize| workers[number].allowed(69 * SECOND, "a")), [2, 2]);
    }

    #[test]
    fn workers_that_begin_one_after_the_other_have_equal_shares_after_seconds() {
        let (budgets, mut leases) = ([("a", 8), ("b", 8)], Leases::default());
        let mut workers = Vec::new();
        for number in 0..4_u32 {
            workers.push(slots(number as usize, &budgets));
            run(&mut workers, &mut leases, &budgets, number..number + 1);
        }
        // The workers here act on a look a second later.
        run(&mut workers, &mut leases, &budgets, 4..15);
        let allowed: Vec<u32> = workers.iter().map(|worker| worker.allowed_in_all(14 * SECOND)).collect();
        assert_eq!(allowed, [4; 4]);
    }

    /// F17
    #[test]
    fn a_hundred_workers_share_three_mirrors_within_their_budgets() {
        let (budgets, mut leases) = ([("a", 4), ("b", 4), ("c", 4)], Leases::default());
        let mut workers: Vec<Slots> = (0..100).map(|number| slots(number, &budgets)).collect();
        let mut had = BTreeSet::new();
        let mut used = 0;
        for second in 0..1800 {
            run(&mut workers, &mut leases, &budgets, second..second + 1);
            let now = second * SECOND;
            for (number, worker) in workers.iter().enumerate() {
                used += worker.allowed_in_all(now);
                if worker.allowed_in_all(now) > 0 {
                    had.insert(number);
                }
            }
        }
        assert!(used > 12 * 1800 * 95 / 100, "{used} of {} are used", 12 * 1800);
        assert!(had.len() > 90, "{} workers had a slot in half an hour", had.len());
    }

    /// F17
    #[test]
    fn a_worker_whose_renewals_are_lost_keeps_half_and_at_least_one() {
        for (budgets, kept) in [(vec![("a", 4), ("b", 2)], 3), (vec![("a", 1)], 1)] {
            let mut leases = Leases::default();
            let mut workers = [slots(0, &budgets)];
            run(&mut workers, &mut leases, &budgets, 0..20);
            let all: u32 = budgets.iter().map(|(_, budget)| budget).sum();
            let worker = &mut workers[0];
            // No answers from here. The first slots were leased a second before the others.
            let mut before = all;
            for second in 20..100 {
                worker.tick(second * SECOND, Activity::Fetching);
                let allowed = worker.allowed_in_all(second * SECOND);
                let expected = match second {
                    ..40 => all..=all,
                    40..43 => kept..=before,
                    43.. => kept..=kept,
                };
                assert!(expected.contains(&allowed), "{allowed} at {second} s");
                before = allowed;
            }
            assert_eq!(worker.allowed_in_all(99 * SECOND), kept);
            // The queue is back, and others have the slots.
            for (host, budget) in &budgets {
                (0..*budget).for_each(|number| worker.renewed(100 * SECOND, host, number, None));
            }
            assert_eq!(worker.allowed_in_all(100 * SECOND), 0);
        }
    }

    #[test]
    fn a_worker_without_work_gives_its_slots_back() {
        let (budgets, mut leases) = ([("a", 4)], Leases::default());
        let mut workers = [slots(0, &budgets)];
        run(&mut workers, &mut leases, &budgets, 0..20);
        let steps = workers[0].tick(30 * SECOND, Activity::Nothing);
        leases.answer(0, &mut workers[0], 30 * SECOND, 1, steps);
        assert_eq!(workers[0].allowed_in_all(30 * SECOND), 0);
        assert!(leases.0.is_empty());
        run(&mut workers, &mut leases, &budgets, 31..50);
        assert_eq!(workers[0].free_all().len(), 4);
    }

    #[test]
    fn a_slot_whose_answer_never_came_is_asked_for_again_in_the_next_session() {
        let (budgets, mut leases) = ([("a", 4)], Leases::default());
        let mut workers = [slots(0, &budgets)];
        for now in [Duration::ZERO, JOINING] {
            workers[0].listed(now, 1, &BTreeSet::new(), &BTreeSet::new());
        }
        let asked = workers[0].tick(SECOND, Activity::BetweenFiles);
        assert_eq!(asked.iter().filter(|step| matches!(step, Step::Take { .. })).count(), 4, "{asked:?}");
        assert_eq!(workers[0].free_all(), []);
        run(&mut workers, &mut leases, &budgets, 2..20);
        assert_eq!(workers[0].allowed(19 * SECOND, "a"), 4);
    }

    /// F14
    #[test]
    fn a_mirror_that_the_fleet_avoids_gets_no_connection() {
        let (budgets, mut leases) = ([("a", 4)], Leases::default());
        let mut workers = [slots(0, &budgets)];
        run(&mut workers, &mut leases, &budgets, 0..20);
        let taken: BTreeSet<(String, u32)> = leases.0.keys().cloned().collect();
        workers[0].listed(20 * SECOND, 1, &taken, &BTreeSet::from(["a".to_owned()]));
        assert_eq!(workers[0].allowed(20 * SECOND, "a"), 0);
        workers[0].listed(21 * SECOND, 1, &taken, &BTreeSet::new());
        assert_eq!(workers[0].allowed(21 * SECOND, "a"), 4);
    }
}
