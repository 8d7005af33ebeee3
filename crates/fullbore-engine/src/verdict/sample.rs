//! One sample of the run: the counts of clocks and kernel within a tenth of a second. Plain data, so that tests can
//! feed the judge with invented samples.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stage::{Kind, SendReading, StageReading, ThreadReading};
use crate::window::PositionBytes;

/// Role of the threads that receive a copy from its connections.
const RECEIVE: &str = "receive";

/// A role within a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StageSample {
    /// Counters of its tasks, with the role's name and kind.
    pub tasks: StageReading,
    /// Counters of its threads.
    pub threads: Vec<ThreadReading>,
}

impl StageSample {
    /// Creates a role without counts.
    pub fn new(name: &str, kind: Kind) -> StageSample {
        StageSample { tasks: StageReading::new(name, kind), threads: Vec::new() }
    }

    /// Name of the role, as reports show it.
    pub fn name(&self) -> &str {
        &self.tasks.name
    }

    fn add(&mut self, later: &StageSample) {
        self.tasks += &later.tasks;
        for thread in &later.threads {
            match self.threads.iter_mut().find(|mine| mine.slot == thread.slot) {
                Some(mine) => mine.add(thread),
                None => self.threads.push(*thread),
            }
        }
    }
}

/// A host within a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostSample {
    /// Name of the host, without its port.
    pub name: String,
    /// Bytes received from it during the sample.
    pub bytes: u64,
    /// Connections with unanswered requests at the end of the sample.
    pub connections: u32,
    /// Smallest round trip so far in microseconds; 0 if unknown.
    pub round_trip_us: u64,
    /// Whether we hold the host back ourselves.
    pub capped: bool,
}

/// The CPU within a sample.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CpuSample {
    /// Cores this process may use (affinity).
    pub allowed_cores: f64,
    /// CPU time used by anybody on those cores, in nanoseconds.
    pub busy_ns: u64,
    /// Part of it that the hypervisor took.
    pub steal_ns: u64,
    /// Time for which the quota held back the control group, in nanoseconds.
    pub throttled_ns: u64,
    /// CPU time that the quota allows; 0 if there is none.
    pub quota_ns: u64,
    /// CPU time of this process, all threads.
    pub used_ns: u64,
    /// The other process that used most CPU where cores were full, and the number of cores.
    pub hog: Option<(String, f64)>,
}

/// The destination's disk within a sample: its busiest member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceSample {
    /// Name as in `/sys/block`.
    pub name: String,
    /// Time with requests in flight, in nanoseconds.
    pub busy_ns: u64,
    /// Bytes written by any process.
    pub written_bytes: u64,
}

/// The windows together within a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowSample {
    /// Size of the window in bytes.
    pub bytes: u64,
    /// Size of the window in items.
    pub items: u64,
    /// Held bytes multiplied by the seconds for which they were held.
    pub held_byte_seconds: f64,
    /// Positions of the held bytes; summed over merged samples.
    pub positions: PositionBytes,
    /// Time in which a caller waited for a permit, in nanoseconds.
    pub exhausted_ns: u64,
}

/// One sample, or several merged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// End of the sample, since the start of the run.
    pub at: Duration,
    /// Duration of the sample.
    pub length: Duration,
    /// Counters of all roles.
    pub stages: Vec<StageSample>,
    /// State of the window at the end of the sample.
    pub window: WindowSample,
    /// Load of the cores during the sample.
    pub cpu: CpuSample,
    /// The destination's disk, if it has one.
    pub device: Option<DeviceSample>,
    /// The hosts that sent bytes.
    pub hosts: Vec<HostSample>,
    /// State of the sockets that the run sends on.
    pub sending: SendReading,
    /// Bytes safely written or acknowledged.
    pub delivered_bytes: u64,
    /// The user's limit in bytes per second; 0 for none.
    pub rate_limit_bytes_per_s: u64,
}

impl Sample {
    /// Adds the next sample to this one.
    pub fn add(&mut self, later: &Sample) {
        self.at = later.at;
        self.length += later.length;
        for stage in &later.stages {
            match self.stages.iter_mut().find(|mine| mine.name() == stage.name()) {
                Some(mine) => mine.add(stage),
                None => self.stages.push(stage.clone()),
            }
        }
        for host in &later.hosts {
            match self.hosts.iter_mut().find(|mine| mine.name == host.name) {
                Some(mine) => {
                    let bytes = mine.bytes + host.bytes;
                    *mine = HostSample { bytes, ..host.clone() };
                }
                None => self.hosts.push(host.clone()),
            }
        }
        // PositionBytes are states, not flows; sums keep their proportions, and the judge uses only those.
        let mut positions = self.window.positions;
        positions += later.window.positions;
        let exhausted_ns = self.window.exhausted_ns + later.window.exhausted_ns;
        let held_byte_seconds = self.window.held_byte_seconds + later.window.held_byte_seconds;
        self.window = WindowSample { positions, exhausted_ns, held_byte_seconds, ..later.window };
        self.cpu.allowed_cores = later.cpu.allowed_cores;
        self.cpu.busy_ns += later.cpu.busy_ns;
        self.cpu.steal_ns += later.cpu.steal_ns;
        self.cpu.throttled_ns += later.cpu.throttled_ns;
        self.cpu.quota_ns += later.cpu.quota_ns;
        self.cpu.used_ns += later.cpu.used_ns;
        if later.cpu.hog.is_some() {
            self.cpu.hog.clone_from(&later.cpu.hog);
        }
        self.device = match (self.device.take(), &later.device) {
            (Some(mine), Some(theirs)) => Some(DeviceSample {
                name: if theirs.busy_ns > mine.busy_ns { theirs.name.clone() } else { mine.name },
                busy_ns: mine.busy_ns + theirs.busy_ns,
                written_bytes: mine.written_bytes + theirs.written_bytes,
            }),
            (mine, theirs) => mine.or_else(|| theirs.clone()),
        };
        self.sending += later.sending;
        self.delivered_bytes += later.delivered_bytes;
        self.rate_limit_bytes_per_s = later.rate_limit_bytes_per_s;
    }

    /// Merges consecutive samples; `None` if there are none.
    pub fn merged<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Option<Sample> {
        let mut samples = samples.into_iter();
        let mut merged = samples.next()?.clone();
        samples.for_each(|sample| merged.add(sample));
        Some(merged)
    }

    /// Bytes received from hosts. Where the wire counts no hosts: bytes counted by tasks that read sockets, and by
    /// threads that receive a copy.
    pub fn received_bytes(&self) -> u64 {
        let hosts: u64 = self.hosts.iter().map(|host| host.bytes).sum();
        let tasks = self.stages.iter().filter(|stage| stage.tasks.reads > 0).map(|stage| stage.tasks.bytes);
        let receivers = self.stages.iter().filter(|stage| stage.name() == RECEIVE).flat_map(|stage| &stage.threads);
        if hosts > 0 { hosts } else { tasks.chain(receivers.map(|thread| thread.bytes)).sum() }
    }
}
