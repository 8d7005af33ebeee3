//! The verdict: which part limited a run, with evidence, the next limit behind it, and advice.
//!
//! A [`Sampler`] reads the stage clocks and the kernel's counters ten times a second over the whole wall time,
//! including set-up and final sync. It feeds them to a judge that does no I/O. A part is named if two signals agree on
//! it for most of the time: the position of the work, and a counter of the kernel or an intervention. Otherwise the
//! verdict is `mixed`, with shares.

mod cgroup;
pub(crate) mod cpu;
mod device;
mod facts;
mod judge;
mod opinion;
mod record;
pub mod remote;
mod sample;
mod sampler;
pub mod thresholds;
mod timeline;

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use device::{Device, DiskStat};

pub use record::{RecordSamples, judge_record};
pub use sample::{CpuSample, DeviceSample, HostSample, Sample, StageSample, WindowSample};
pub use sampler::{Sampler, SamplerConfig};
pub use timeline::{StagePoint, Timeline, TimelinePoint};

use crate::stage::{LedgerReading, Trial};
use crate::units;

/// The part of the system that limited a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The cores that we may use are full, or a quota limits us.
    Cpu {
        /// The largest consumer: a role of ours, or another process.
        consumer: String,
    },
    /// A role is at the limit of its threads while other cores are free.
    OneCore {
        /// Name of the role.
        stage: String,
    },
    /// The disk of the destination (or source).
    Disk,
    /// Our own link to the network is full.
    AccessLink,
    /// One host, or the path to it.
    Host {
        /// Name of the host.
        name: String,
    },
    /// The hosts together, or the paths to them: our link had spare capacity.
    Hosts,
    /// The network: our link, the hosts, or the paths to them; no signal showed which.
    RemoteOrPath,
    /// The machine that receives from us.
    Receiver,
    /// Our own in-flight window or send buffer.
    Window,
    /// The user's rate limit.
    RateLimit,
    /// Waiting for answers: round trips, not bandwidth.
    RoundTrips,
    /// No single part.
    Mixed,
}

impl fmt::Display for Limit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Limit::Cpu { consumer } => write!(formatter, "CPU ({consumer})"),
            Limit::OneCore { stage } => write!(formatter, "one core ({stage})"),
            Limit::Disk => formatter.write_str("disk"),
            Limit::AccessLink => formatter.write_str("the access link"),
            Limit::Host { name } => write!(formatter, "{name} or the path to it"),
            Limit::Hosts => formatter.write_str("the hosts or the paths to them"),
            Limit::RemoteOrPath => formatter.write_str("the network"),
            Limit::Receiver => formatter.write_str("the receiver"),
            Limit::Window => formatter.write_str("our in-flight window"),
            Limit::RateLimit => formatter.write_str("the rate limit"),
            Limit::RoundTrips => formatter.write_str("waiting for answers (round trips)"),
            Limit::Mixed => formatter.write_str(remote::MIXED),
        }
    }
}

impl Limit {
    /// Advice for this limit, if it needs no further figures.
    pub fn advice(&self) -> &'static str {
        match self {
            Limit::Receiver => "A faster receiver would help. A faster network would not pay.",
            Limit::Window => "A larger in-flight window would help; nothing else was full.",
            Limit::RateLimit => "A higher rate limit would help.",
            Limit::RoundTrips => "A nearer host would help; bandwidth would not.",
            _ => remote::MIXED_ADVICE,
        }
    }
}

/// A part and its share of the wall time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the part, as reports show it.
    pub part: String,
    /// Share of the run's time, from 0 to 1.
    pub share: f64,
}

/// The part that would limit the run next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextLimit {
    /// Name of the part that would limit the run next.
    pub part: String,
    /// Used share of its capacity in this run, from 0 to 1.
    pub used: f64,
}

/// What limited a run, with the evidence for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The part that limited the run.
    pub limit: Limit,
    /// The limit in words: "disk writes".
    pub part: String,
    /// The strongest evidence, short: "busy 91 %; network blocked 74 %".
    pub reason: String,
    /// False if no part could be named.
    pub confident: bool,
    /// Share of the wall time of the named part; of the largest part if none is named.
    #[serde(default)]
    pub share: f64,
    /// Wall time since the start of the sampler.
    pub wall: Duration,
    /// Bytes safely written or acknowledged. The program may replace it by its own count of delivered bytes.
    pub bytes: u64,
    /// Number of bytes received, useful or not.
    pub received_bytes: u64,
    /// All parts with their shares of the wall time, the largest first.
    pub shares: Vec<Share>,
    /// The part that would be the limit after this one.
    pub next: Option<NextLimit>,
    /// What would help, and what would not.
    pub advice: String,
    /// Measured facts for the verdict, one per line.
    pub evidence: Vec<String>,
    /// Trials with more hosts and connections.
    pub trials: Vec<Trial>,
    /// All counters of the run, from its ledger.
    pub counters: LedgerReading,
    /// The course of the run as consecutive points.
    pub timeline: Timeline,
}

impl Verdict {
    /// Bytes per second over the wall time.
    pub fn rate_bytes_per_s(&self) -> f64 {
        self.bytes as f64 / self.wall.as_secs_f64().max(1e-9)
    }

    /// Formats the limit and its reason without the figures of the run:
    /// `disk writes (busy 91 %; network blocked 74 %)`.
    pub(crate) fn limited_by(&self) -> String {
        if self.reason.is_empty() { self.part.clone() } else { format!("{} ({})", self.part, self.reason) }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wall = units::time(self.wall);
        write!(formatter, "{} in {wall}", units::bytes(self.bytes))?;
        if self.bytes > 0 {
            write!(formatter, ", {}", units::rate(self.rate_bytes_per_s()))?;
        }
        write!(formatter, ". Limited by: {}.", self.limited_by())
    }
}

fn shares_text(shares: &[Share]) -> String {
    let texts = shares.iter().map(|share| format!("{} {}", share.part, units::percent(share.share)));
    texts.collect::<Vec<_>>().join(", ")
}
