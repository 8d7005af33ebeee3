//! The judge: takes samples and returns shares of time per cause. No I/O, no clock.
//!
//! Each sample is judged together with its two neighbours on either side: half a second, because ticks of `/proc/stat`
//! are too coarse for less. If two signals agree on one cause, the sample's time counts for that cause. Otherwise the
//! clocks spread its time over causes, and it counts for `mixed` only. The numbers are in `thresholds.rs`.

use std::collections::{BTreeMap, VecDeque};

use super::facts::{Facts, SYNC, ThreadFacts};
use super::sample::Sample;
use super::thresholds::{
    ANSWERS_BYTES_PER_S, BACKLOG, CORES_FULL, FULL, IDLE_CORES, LARGER_PART, MOSTLY_ALIVE, NAMED, NO_OTHER, PATH_BUSY,
    READS_EMPTY, RUN_DELAY, RUN_DELAY_CORES, SLIGHT, SLOWED, TAKES_TURNS, THREAD_WANTS_CORE, THREAD_WANTS_CORE_HARD,
    THROTTLED, THROTTLED_HARD, THROTTLED_NEARLY_ALWAYS, THROTTLED_SENDER, UNEXPLAINED, UNHINDERED, USED_UP,
    WANTED_CORES, WINDOW_ROUND_TRIPS,
};
use super::timeline::Timeline;

/// Number of samples judged together: half a second. Guess: ticks of `/proc/stat` are too coarse for less.
const SPAN: usize = 5;
/// Number of those after the judged one. Guess: the middle.
const AHEAD: usize = 2;
/// After this number of unhindered samples, data queued in sockets is gone. Guess: a second.
const DRAINED: usize = 10;

/// What can hold a run up, as far as samples show. The trials decide at the end which part of the network it was.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Cause {
    Cpu,
    OneCore(String),
    Disk,
    Network,
    SendPath,
    Receiver,
    SendBuffer,
    Window,
    RateLimit,
    Answers,
    Nobody,
}

/// Time of one cause.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Seconds in which both signals named this cause.
    pub agreed_s: f64,
    /// Part of `agreed_s` in which the disk was busy at its limit.
    pub device_busy_s: f64,
    /// Seconds assigned by the clocks where no signals agreed.
    pub spread_s: f64,
    /// Part of `spread_s` in which the disk was busy at its limit.
    pub spread_busy_s: f64,
}

/// The whole run, as the judge saw it.
#[derive(Clone, Debug, Default)]
pub(super) struct Findings {
    pub wall_s: f64,
    pub causes: BTreeMap<Cause, Tally>,
    /// Seconds waiting for the disk at the very end, with no more data arriving.
    pub final_disk_s: f64,
    /// Seconds in which the disk was busy at its limit while data arrived, and the part of them in which connections
    /// waited for later stages.
    pub disk_busy_s: f64,
    pub stood_s: f64,
    /// Bytes that arrived while the disk was busy.
    pub disk_busy_bytes: u64,
    /// Highest rate, over half a second, at which bytes arrived unhindered.
    pub carried_bytes_per_s: f64,
    /// Unexplained sleep of the worst thread, as a share of the wall time.
    pub other: f64,
    /// Seconds in which wrapped calls of a role held the run up, by role.
    pub device_stages: BTreeMap<String, f64>,
    /// Seconds in which a consumer used most of the full cores, by consumer, ours included.
    pub consumers: BTreeMap<String, f64>,
    /// All samples of the run merged; `None` if there were none.
    pub total: Option<Sample>,
    pub timeline: Timeline,
}

#[derive(Debug, Default)]
pub(super) struct Judge {
    recent: VecDeque<Sample>,
    /// Index in `recent` of the next sample to judge.
    next: usize,
    findings: Findings,
    other_s: BTreeMap<String, f64>,
    /// Limit of the last judged sample.
    present: &'static str,
    /// Number of consecutive samples, up to that one, in which nothing hindered the connections.
    unhindered: usize,
}

impl Judge {
    pub(super) fn push(&mut self, sample: Sample) {
        match &mut self.findings.total {
            Some(total) => total.add(&sample),
            None => self.findings.total = Some(sample.clone()),
        }
        self.recent.push_back(sample);
        if self.recent.len() > self.next + AHEAD {
            self.judge_next();
        }
        while self.next > SPAN - 1 - AHEAD {
            self.recent.pop_front();
            self.next -= 1;
        }
    }

    /// Limit of the last judged sample; empty if none could be named.
    pub(super) fn present(&self) -> &str {
        self.present
    }

    fn judge_next(&mut self) {
        let from = self.next.saturating_sub(SPAN - 1 - AHEAD);
        let to = (self.next + AHEAD + 1).min(self.recent.len());
        let around = Sample::merged(self.recent.range(from..to)).expect("the judged sample is one of them");
        let sample = &self.recent[self.next];
        let seconds = sample.length.as_secs_f64();
        let facts = Facts::of(&around);
        let cause = cause(&around, &facts);
        let disk_busy = facts.device_busy.is_some_and(|busy| busy >= FULL);
        let findings = &mut self.findings;
        findings.wall_s += seconds;
        if disk_busy && around.received_bytes() > 0 {
            findings.disk_busy_s += seconds;
            findings.stood_s += facts.network.blocked * seconds;
            findings.disk_busy_bytes += sample.received_bytes();
        }
        self.unhindered = if facts.network.blocked <= UNHINDERED { self.unhindered + 1 } else { 0 };
        if self.unhindered >= DRAINED {
            let rate = facts.received_bytes as f64 / facts.seconds;
            findings.carried_bytes_per_s = findings.carried_bytes_per_s.max(rate);
        }
        self.present = cause.as_ref().map_or("", Cause::label);
        findings.timeline.push(sample, self.present);
        match &cause {
            Some(cause) => {
                let tally = findings.causes.entry(cause.clone()).or_default();
                tally.agreed_s += seconds;
                if disk_busy {
                    tally.device_busy_s += seconds;
                }
            }
            None => {
                for (cause, part) in spread(&facts) {
                    let tally = findings.causes.entry(cause).or_default();
                    tally.spread_s += part * seconds;
                    tally.spread_busy_s += if disk_busy { part * seconds } else { 0.0 };
                }
            }
        }
        if cause == Some(Cause::Disk) {
            let stage = facts.most_in_device().map_or("", |thread| &thread.device_stage);
            *findings.device_stages.entry(stage.to_owned()).or_default() += seconds;
        }
        if cause == Some(Cause::Disk) && around.received_bytes() == 0 {
            findings.final_disk_s += seconds;
        } else if around.received_bytes() > 0 {
            findings.final_disk_s = 0.0;
        }
        if cause == Some(Cause::Cpu) {
            *findings.consumers.entry(consumer(&around, &facts)).or_default() += seconds;
        }
        for thread in facts.plain_threads() {
            *self.other_s.entry(thread.stage.clone()).or_default() += thread.other * seconds;
        }
        self.next += 1;
    }

    pub(super) fn finish(mut self) -> Findings {
        while self.next < self.recent.len() {
            self.judge_next();
        }
        let wall_s = self.findings.wall_s.max(1e-9);
        self.findings.other = self.other_s.values().fold(0.0, |most: f64, one| most.max(*one)) / wall_s;
        if self.findings.final_disk_s >= BACKLOG * wall_s || self.findings.stood_for_the_disk() {
            self.findings.give_busy_time_to_the_disk();
        }
        self.findings
    }
}

impl Findings {
    /// Whether connections waited for so much of the disk's busy time that the disk was the limit.
    fn stood_for_the_disk(&self) -> bool {
        if self.disk_busy_s <= 0.0 {
            return false;
        }
        let stood = self.stood_s / self.disk_busy_s;
        let slowed = self.disk_busy_bytes as f64 <= SLOWED * self.carried_bytes_per_s * self.disk_busy_s;
        stood >= TAKES_TURNS || stood >= SLIGHT && slowed
    }

    fn give_busy_time_to_the_disk(&mut self) {
        let mut moved_s = 0.0;
        for (cause, tally) in &mut self.causes {
            if !matches!(cause, Cause::Disk | Cause::Cpu) {
                moved_s += tally.device_busy_s;
                tally.agreed_s -= tally.device_busy_s;
                tally.device_busy_s = 0.0;
            }
            // Where no signals agreed, the disk was one of the candidates.
            if *cause != Cause::Cpu {
                moved_s += tally.spread_busy_s;
                tally.spread_s -= tally.spread_busy_s;
                tally.spread_busy_s = 0.0;
            }
        }
        self.causes.entry(Cause::Disk).or_default().agreed_s += moved_s;
    }

    /// Whether thread clocks leave too much unexplained for a verdict that relies on them.
    pub(super) fn is_unexplained(&self) -> bool {
        self.other > UNEXPLAINED
    }
}

impl Cause {
    pub(super) fn label(&self) -> &'static str {
        match self {
            Cause::Cpu => "CPU",
            Cause::OneCore(_) => "one core",
            Cause::Disk => "disk",
            Cause::Network => "network",
            Cause::SendPath => "path",
            Cause::Receiver => "receiver",
            Cause::SendBuffer | Cause::Window => "window",
            Cause::RateLimit => "rate limit",
            Cause::Answers => "waiting for answers",
            Cause::Nobody => "",
        }
    }
}

/// The cause on which two signals agree, if any. The order matters. Our own limit is certain. A full CPU looks like
/// every other stage. Sockets are empty behind a small window as well.
fn cause(sample: &Sample, facts: &Facts) -> Option<Cause> {
    let network_waits = is_network_waiting(facts);
    if is_rate_limited(sample, facts) {
        return Some(Cause::RateLimit);
    }
    if is_cpu_short(sample, facts, network_waits) {
        return Some(Cause::Cpu);
    }
    if let Some(thread) = facts.most_computing().filter(|thread| thread.compute >= FULL) {
        let pressed = if !facts.network.active || facts.received_bytes == 0 {
            true // nobody else is at work
        } else if thread.plain {
            is_local_pressed(facts)
        } else {
            facts.network.reads_empty < READS_EMPTY
        };
        return pressed.then(|| Cause::OneCore(thread.stage.clone()));
    }
    if is_disk_slow(facts) {
        return Some(Cause::Disk);
    }
    if let Some(cause) = sending(sample, facts) {
        return Some(cause);
    }
    if facts.window_exhausted >= NAMED
        && !is_local_pressed(facts)
        && facts.window_round_trips.is_some_and(|trips| trips <= WINDOW_ROUND_TRIPS)
    {
        return Some(Cause::Window);
    }
    let few = (facts.received_bytes as f64) < ANSWERS_BYTES_PER_S * facts.seconds;
    if few && is_idle(facts) {
        return Some(Cause::Answers);
    }
    network_waits.then_some(Cause::Network)
}

fn is_rate_limited(sample: &Sample, facts: &Facts) -> bool {
    let limit = sample.rate_limit_bytes_per_s as f64;
    let reached = limit > 0.0 && facts.received_bytes as f64 >= limit * facts.seconds * FULL;
    facts.network.throttled >= LARGER_PART || reached
}

fn is_cpu_short(sample: &Sample, facts: &Facts, network_waits: bool) -> bool {
    let delayed = facts.run_delay_ratio() >= RUN_DELAY && facts.run_delay_cores >= RUN_DELAY_CORES;
    let wanted = facts.compute_cores + facts.run_delay_cores >= WANTED_CORES;
    let short = facts.throttled >= THROTTLED || wanted && (facts.cores_busy >= CORES_FULL || delayed);
    // A sender under a CPU quota fills its sockets whenever it may run, and seems to wait for the path while it is
    // throttled. But then the path has nothing to carry for much of the time. Other processes may fill the cores, so
    // that we wait for one at each packet. That costs nothing as long as every thread finishes its work before more
    // arrives.
    let busiest = facts.threads.iter().map(|thread| thread.compute + thread.run_delay).fold(0.0, f64::max);
    let hard = facts.throttled >= THROTTLED_HARD && busiest >= THREAD_WANTS_CORE_HARD;
    let harder = facts.throttled >= THROTTLED_NEARLY_ALWAYS && facts.run_delay_ratio() >= FULL;
    let is_path_idle = sample.sending.busy().is_some_and(|busy| busy < PATH_BUSY);
    let sender = facts.throttled >= THROTTLED_SENDER && is_path_idle;
    let used_up = facts.throttled >= THROTTLED && facts.quota_used.is_some_and(|used| used >= USED_UP);
    hard || harder || sender || used_up || short && busiest >= THREAD_WANTS_CORE && !network_waits
}

/// Signal A for the stages behind the network: connections wait for them, or the bytes are before or in them.
fn is_local_pressed(facts: &Facts) -> bool {
    let positions = &facts.positions;
    let stands = positions.local >= NAMED && positions.later <= SLIGHT && positions.held >= LARGER_PART;
    facts.network.blocked >= NAMED || stands
}

fn is_disk_slow(facts: &Facts) -> bool {
    let is_asleep = |thread: &ThreadFacts| thread.device >= NAMED;
    let asleep = facts.threads.iter().any(is_asleep);
    let busy = facts.device_busy.is_some_and(|busy| busy >= FULL);
    // With nothing arriving, a thread asleep for the disk is all that happens: the final sync, or a local scan.
    if facts.received_bytes == 0 && asleep {
        return true;
    }
    // The waits of a copy's connections are not measured, but its writers hinder them. A role that only flushes does
    // not.
    if !facts.network.active && facts.threads.iter().any(|thread| thread.device_stage != SYNC && is_asleep(thread)) {
        return true;
    }
    is_local_pressed(facts) && (busy || asleep)
}

fn sending(sample: &Sample, facts: &Facts) -> Option<Cause> {
    let sending = sample.sending;
    let busy_s = sending.busy_us as f64 * 1e-6;
    if busy_s < NAMED * facts.seconds {
        return None;
    }
    let of_busy = |part_us: u64| part_us as f64 / sending.busy_us as f64;
    Some(if of_busy(sending.receiver_limited_us) >= LARGER_PART {
        Cause::Receiver
    } else if of_busy(sending.buffer_limited_us) >= LARGER_PART {
        Cause::SendBuffer
    } else {
        Cause::SendPath
    })
}

/// Both signals for receiving: the work is at the other side, and sockets are empty.
fn is_network_waiting(facts: &Facts) -> bool {
    let empty = facts.network.reads_empty >= READS_EMPTY || facts.network.empty >= FULL;
    if !facts.network.active || !empty || facts.network.blocked >= NO_OTHER {
        return false;
    }
    // All bytes that are not at the other side are in later stages, so the second half of the rule decides.
    let outside = facts.positions.known && facts.positions.network >= 1.0 - SLIGHT;
    let passed_on = facts.positions.held <= SLIGHT;
    let starved = facts
        .plain_threads()
        .filter(|thread| thread.alive >= MOSTLY_ALIVE)
        .map(|thread| thread.starved)
        .reduce(f64::min)
        .is_some_and(|least| least >= NAMED);
    let unknown = !facts.positions.known && facts.plain_threads().next().is_none();
    outside || passed_on || starved || (unknown && facts.network.empty >= NAMED)
}

fn is_idle(facts: &Facts) -> bool {
    let computing = facts.compute_cores + facts.run_delay_cores >= IDLE_CORES;
    let asleep = facts.most_in_device().is_some_and(|thread| thread.device >= LARGER_PART);
    !computing && !asleep
}

/// Shares of a sample without agreement, by what connections spent their time on. Their blocked time is divided by what
/// the later threads did.
fn spread(facts: &Facts) -> Vec<(Cause, f64)> {
    // A flush hinders nobody while data arrives.
    let in_the_way = |thread: &&ThreadFacts| facts.received_bytes == 0 || thread.device_stage != SYNC;
    let device: f64 = facts.threads.iter().filter(in_the_way).map(|thread| thread.device).sum();
    let busiest = facts.most_computing();
    let compute: f64 = facts.plain_threads().map(|thread| thread.compute + thread.run_delay).sum();
    let local = (device + compute).max(1e-9);
    let local_share = if facts.network.active { facts.network.blocked } else { (device + compute).min(1.0) };
    let hash = busiest.map_or(Cause::Nobody, |thread| Cause::OneCore(thread.stage.clone()));
    let mut parts = vec![
        (Cause::Network, facts.network.empty),
        (Cause::RateLimit, facts.network.throttled),
        (Cause::Disk, local_share * device / local),
        (hash, local_share * compute / local),
        (Cause::Cpu, if facts.network.active { facts.network.busy } else { 0.0 }),
    ];
    let known: f64 = parts.iter().map(|(_, part)| part).sum();
    parts.push((Cause::Nobody, (1.0 - known).max(0.0)));
    parts.retain(|(_, part)| *part > 0.0);
    parts
}

/// The consumer of the full cores: our role that computes most, or another process.
fn consumer(sample: &Sample, facts: &Facts) -> String {
    let mut roles: BTreeMap<&str, f64> = BTreeMap::new();
    for thread in &facts.threads {
        *roles.entry(&thread.stage).or_default() += thread.compute;
    }
    let ours = roles.into_iter().max_by(|one, two| one.1.total_cmp(&two.1)).unwrap_or(("", 0.0));
    let length_ns = (sample.length.as_nanos() as f64).max(1.0);
    if facts.throttled >= THROTTLED {
        return format!("{}, under a CPU quota", ours.0);
    }
    let steal_cores = sample.cpu.steal_ns as f64 / length_ns;
    let others_cores = sample.cpu.busy_ns as f64 / length_ns - facts.compute_cores - steal_cores;
    if steal_cores > ours.1 && steal_cores > others_cores {
        return "other virtual machines".to_owned();
    }
    match &sample.cpu.hog {
        Some((name, cores)) if *cores > ours.1 => format!("process {name}"),
        None if others_cores > facts.compute_cores => "other processes".to_owned(),
        _ => ours.0.to_owned(),
    }
}

#[cfg(test)]
mod tests;
