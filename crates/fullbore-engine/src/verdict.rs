//! The verdict: which part limited a run, with evidence, the next limit behind
//! it, and what would help.
//!
//! A [`Sampler`] reads the stage clocks and the kernel's counters ten times a
//! second over the whole wall time, set-up and final sync included, and feeds
//! them to a judge that does no I/O. A part is named when two signals agree
//! (where the work stands, and a counter of the kernel or an intervention) for
//! most of the time; otherwise the verdict is `mixed`, with shares.

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
    /// The cores we may use are full, or a quota holds us back.
    Cpu {
        /// The largest consumer: a role of ours, or another process.
        consumer: String,
    },
    /// A role is at the limit of its threads while other cores are free.
    OneCore {
        /// The role.
        stage: String,
    },
    /// The disk of the destination (or source).
    Disk,
    /// Our own link to the network.
    AccessLink,
    /// One host, or the path to it.
    Host {
        /// Its name.
        name: String,
    },
    /// The hosts together, or the paths to them: our link had room for more.
    Hosts,
    /// The network: our link, the hosts, or the paths to them; nothing told which.
    RemoteOrPath,
    /// The machine that receives from us.
    Receiver,
    /// Our own in-flight window or send buffer.
    Window,
    /// The rate the user allowed.
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
    /// What would help, where that depends on nothing else.
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

/// The part that would limit next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NextLimit {
    /// Name of the part that would limit the run next.
    pub part: String,
    /// How much of it this run used, from 0 to 1.
    pub used: f64,
}

/// What limited a run, with the evidence for it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The part that limited the run.
    pub limit: Limit,
    /// The same as a person says it: "disk writes".
    pub part: String,
    /// The strongest evidence, short: "busy 91 %; network blocked 74 %".
    pub reason: String,
    /// False if no part could be named.
    pub confident: bool,
    /// Share of the wall time of what is named; of the largest part where nothing is.
    #[serde(default)]
    pub share: f64,
    /// Wall time, from the start of the sampler.
    pub wall: Duration,
    /// Bytes safely written or acknowledged; the program may set it to what it
    /// counts as delivered.
    pub bytes: u64,
    /// Number of bytes received, useful or not.
    pub received_bytes: u64,
    /// All parts with their shares of the wall time, the largest first.
    pub shares: Vec<Share>,
    /// The part that would be the limit after this one.
    pub next: Option<NextLimit>,
    /// What would help, and what would not pay.
    pub advice: String,
    /// Measured facts for the verdict, one per line.
    pub evidence: Vec<String>,
    /// What more hosts and connections did.
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

    /// The limit and its reason without the figures of the run:
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
