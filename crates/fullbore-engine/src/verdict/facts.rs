//! The figures of a sample as shares, for the judge.

use std::collections::BTreeMap;

use super::sample::{Sample, StageSample};
use super::timeline::StagePoint;
use crate::stage::Kind;
use crate::window::{Operation, Position};

/// The role that flushes to the disk, during the run or at its end.
pub(super) const SYNC: &str = "sync";

/// A thread over all its roles within a sample, as shares of the sample's length.
#[derive(Clone, Debug, Default)]
pub(super) struct ThreadFacts {
    /// The role that its CPU time counts for.
    pub stage: String,
    /// Whether that role has threads of its own; otherwise it is a thread of a runtime.
    pub plain: bool,
    /// Whether its CPU time is known; otherwise only its waits and device calls are.
    pub owned: bool,
    /// Share of the sample in which the thread existed.
    pub alive: f64,
    pub compute: f64,
    pub run_delay: f64,
    pub starved: f64,
    pub blocked: f64,
    /// Asleep in wrapped calls, without their CPU time.
    pub device: f64,
    /// The role of most of that time.
    pub device_stage: String,
    /// Asleep for unmeasured reasons.
    pub other: f64,
}

/// Figures of a sample; shares of its length unless stated otherwise.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub seconds: f64,
    pub received_bytes: u64,
    pub threads: Vec<ThreadFacts>,
    /// Busy share of the allowed cores.
    pub cores_busy: f64,
    pub throttled: f64,
    /// Used share of the CPU time that a quota allows.
    pub quota_used: Option<f64>,
    /// CPU time and waits for a core of all our threads, in cores.
    pub compute_cores: f64,
    pub run_delay_cores: f64,
    pub device_busy: Option<f64>,
    pub network: NetworkFacts,
    pub positions: PositionFacts,
    /// Share of time in which a caller waited for a permit.
    pub window_exhausted: f64,
    /// Mean time a permit is out, in round trips; `None` if unknown.
    pub window_round_trips: Option<f64>,
}

/// Shares of all waits and work of connections.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NetworkFacts {
    /// Whether any connection worked or waited.
    pub active: bool,
    pub empty: f64,
    pub blocked: f64,
    pub throttled: f64,
    /// Polls, and waits for a poll.
    pub busy: f64,
    /// Share of reads that found the socket empty.
    pub reads_empty: f64,
    /// Number of reads in the sample, so that a share of few reads is not trusted.
    pub reads: u64,
}

/// Shares of the bytes held by permits, by position.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PositionFacts {
    /// Whether any permit was held.
    pub known: bool,
    pub network: f64,
    pub local: f64,
    /// Finished here, not confirmed yet.
    pub later: f64,
    /// Held share of the window's bytes; 1 if its size is unknown.
    pub held: f64,
}

fn share(part_ns: u64, whole_ns: f64) -> f64 {
    (part_ns as f64 / whole_ns).max(0.0)
}

impl Facts {
    pub(super) fn of(sample: &Sample) -> Facts {
        let length_ns = (sample.length.as_nanos() as f64).max(1.0);
        let seconds = length_ns / 1e9;
        let threads = thread_facts(&sample.stages, length_ns);
        let received_bytes = sample.received_bytes();
        let allowed = if sample.cpu.allowed_cores > 0.0 { sample.cpu.allowed_cores } else { 1.0 };
        Facts {
            seconds,
            received_bytes,
            cores_busy: (share(sample.cpu.busy_ns, length_ns) / allowed).min(1.0),
            throttled: share(sample.cpu.throttled_ns, length_ns).min(1.0),
            quota_used: (sample.cpu.quota_ns > 0).then(|| share(sample.cpu.used_ns, sample.cpu.quota_ns as f64)),
            compute_cores: threads.iter().map(|thread| thread.compute).sum(),
            run_delay_cores: threads.iter().map(|thread| thread.run_delay).sum(),
            device_busy: sample.device.as_ref().map(|device| share(device.busy_ns, length_ns).min(1.0)),
            network: network_facts(&sample.stages),
            positions: position_facts(sample),
            window_exhausted: share(sample.window.exhausted_ns, length_ns).min(1.0),
            window_round_trips: window_round_trips(sample),
            threads,
        }
    }

    /// Threads of roles behind the network.
    pub(super) fn plain_threads(&self) -> impl Iterator<Item = &ThreadFacts> {
        self.threads.iter().filter(|thread| thread.plain)
    }

    /// The thread with the most time in wrapped calls.
    pub(super) fn most_in_device(&self) -> Option<&ThreadFacts> {
        self.threads.iter().max_by(|one, two| one.device.total_cmp(&two.device))
    }

    /// The thread with the most CPU time.
    pub(super) fn most_computing(&self) -> Option<&ThreadFacts> {
        self.threads.iter().max_by(|one, two| one.compute.total_cmp(&two.compute))
    }

    /// Ratio of the wait for a core to computing and waiting together.
    pub(super) fn run_delay_ratio(&self) -> f64 {
        let wanted = self.compute_cores + self.run_delay_cores;
        if wanted > 0.0 { self.run_delay_cores / wanted } else { 0.0 }
    }

    /// Utilisation per role, for the timeline.
    pub(super) fn stage_points(&self, sample: &Sample) -> Vec<(String, StagePoint)> {
        let length_ns = (sample.length.as_nanos() as f64).max(1.0);
        sample.stages.iter().map(|stage| (stage.name().to_owned(), stage_point(stage, length_ns))).collect()
    }
}

fn stage_point(stage: &StageSample, length_ns: f64) -> StagePoint {
    let sum = |counter: fn(&crate::stage::ThreadReading) -> u64| -> u64 { stage.threads.iter().map(counter).sum() };
    let tasks = &stage.tasks;
    if tasks.kind == Kind::Task {
        let waits = tasks.socket_empty_ns + tasks.starved_ns + tasks.blocked_ns + tasks.throttled_ns;
        let compute_ns = sum(|thread| thread.compute_ns + thread.run_delay_ns).max(tasks.poll_ns);
        // Computing is a share of the wall time, waits are a share of all tasks' time.
        let whole_ns = ((waits + tasks.poll_ns + tasks.ready_ns) as f64).max(1.0);
        return StagePoint {
            busy: share(compute_ns, length_ns).min(1.0) as f32,
            device: share(sum(|thread| thread.device_ns), length_ns).min(1.0) as f32,
            starved: share(tasks.socket_empty_ns + tasks.starved_ns, whole_ns) as f32,
            blocked: share(tasks.blocked_ns + tasks.throttled_ns, whole_ns) as f32,
        };
    }
    let whole_ns = (stage.threads.len() as f64).max(1.0) * length_ns;
    let of_threads = |part_ns: u64| share(part_ns, whole_ns).min(1.0) as f32;
    StagePoint {
        busy: of_threads(sum(|thread| thread.compute_ns + thread.run_delay_ns)),
        device: of_threads(sum(|thread| thread.device_ns)),
        starved: of_threads(sum(|thread| thread.starved_ns) + tasks.starved_ns),
        blocked: of_threads(sum(|thread| thread.blocked_ns) + tasks.blocked_ns),
    }
}

fn thread_facts(stages: &[StageSample], length_ns: f64) -> Vec<ThreadFacts> {
    #[derive(Default)]
    struct Sum {
        facts: ThreadFacts,
        device_most: f64,
    }
    let mut sums: BTreeMap<u32, Sum> = BTreeMap::new();
    for stage in stages {
        for thread in &stage.threads {
            let sum = sums.entry(thread.thread_id).or_default();
            let compute = share(thread.compute_ns, length_ns);
            let run_delay = share(thread.run_delay_ns, length_ns);
            let device = share(thread.device_ns, length_ns);
            // A thread with several roles belongs to the role that it worked for most.
            let first = thread.owner && !sum.facts.owned;
            if first || compute + run_delay > sum.facts.compute + sum.facts.run_delay {
                stage.name().clone_into(&mut sum.facts.stage);
                sum.facts.plain = stage.tasks.kind == Kind::Thread;
            }
            sum.facts.owned |= thread.owner;
            sum.facts.alive = sum.facts.alive.max(share(thread.alive_ns, length_ns)).min(1.0);
            sum.facts.compute += compute;
            sum.facts.run_delay += run_delay;
            sum.facts.starved += share(thread.starved_ns, length_ns);
            sum.facts.device += device;
            sum.facts.blocked += share(thread.blocked_ns, length_ns);
            if device > sum.device_most {
                sum.device_most = device;
                stage.name().clone_into(&mut sum.facts.device_stage);
            }
        }
    }
    sums.into_values().map(|sum| finished(sum.facts)).collect()
}

/// Subtracts CPU time from device time, and computes the unexplained rest.
fn finished(mut facts: ThreadFacts) -> ThreadFacts {
    if !facts.owned {
        // Only its waits and calls are known: nothing can be subtracted or left over.
        facts.device_stage.clone_into(&mut facts.stage);
        facts.device = facts.device.min(1.0);
        return facts;
    }
    let measured = facts.compute + facts.run_delay + facts.starved + facts.blocked;
    facts.device = facts.device.min((1.0 - measured).max(0.0));
    let rest = (facts.alive - measured - facts.device).max(0.0);
    if facts.plain {
        facts.other = rest;
    } else {
        // An idle runtime thread waits for an event of its tasks.
        facts.starved += rest;
    }
    facts
}

fn network_facts(stages: &[StageSample]) -> NetworkFacts {
    let mut facts = NetworkFacts::default();
    let mut whole_ns = 0;
    let (mut empty_ns, mut blocked_ns, mut throttled_ns, mut busy_ns) = (0, 0, 0, 0);
    let mut empty_reads = 0;
    for stage in stages {
        let tasks = &stage.tasks;
        let waits_ns = tasks.socket_empty_ns + tasks.blocked_ns + tasks.throttled_ns;
        if tasks.kind != Kind::Task || (tasks.reads == 0 && waits_ns == 0) {
            continue; // TLS counts its work within the polls of the connection
        }
        empty_ns += tasks.socket_empty_ns;
        blocked_ns += tasks.blocked_ns;
        throttled_ns += tasks.throttled_ns;
        busy_ns += tasks.poll_ns + tasks.ready_ns;
        facts.reads += tasks.reads;
        empty_reads += tasks.socket_empty;
        whole_ns += waits_ns + tasks.poll_ns + tasks.ready_ns;
    }
    if whole_ns == 0 {
        return facts;
    }
    let whole = whole_ns as f64;
    facts.active = true;
    facts.empty = share(empty_ns, whole);
    facts.blocked = share(blocked_ns, whole);
    facts.throttled = share(throttled_ns, whole);
    facts.busy = share(busy_ns, whole);
    facts.reads_empty = if facts.reads > 0 {
        (empty_reads as f64 / facts.reads as f64).min(1.0)
    } else if empty_ns > 0 {
        1.0 // no read began, so those under way have been waiting all the time
    } else {
        0.0
    };
    facts
}

fn position_facts(sample: &Sample) -> PositionFacts {
    let positions = &sample.window.positions;
    let total = positions.total();
    let room = sample.window.bytes as f64 * sample.length.as_secs_f64();
    let held = if room > 0.0 { sample.window.held_byte_seconds / room } else { 1.0 };
    if total == 0 {
        return PositionFacts { held, ..PositionFacts::default() };
    }
    let whole = total as f64;
    PositionFacts {
        known: true,
        network: share(positions.network(), whole),
        local: share(positions.before_or_in(&[Operation::Encode, Operation::Hash, Operation::Write]), whole),
        later: share(positions.at(Position::AwaitingAcknowledgement), whole),
        held,
    }
}

/// By Little's law, the mean time a permit is out is the held bytes divided by the rate. If it is hardly longer than
/// the bare round trip, no queue has formed anywhere, and the window itself limits the rate.
fn window_round_trips(sample: &Sample) -> Option<f64> {
    let timed = || sample.hosts.iter().filter(|host| host.round_trip_us > 0);
    let bytes: u64 = timed().map(|host| host.bytes).sum();
    if bytes == 0 || sample.window.held_byte_seconds <= 0.0 {
        return None;
    }
    let round_trip_s: f64 =
        timed().map(|host| host.round_trip_us as f64 * 1e-6 * (host.bytes as f64 / bytes as f64)).sum();
    let stay_s = sample.window.held_byte_seconds / bytes as f64;
    Some(stay_s / round_trip_s)
}
