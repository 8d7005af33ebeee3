//! Readings of clocks: plain counters that can be serialised, and added across threads, processes and machines.

use std::ops::AddAssign;

use serde::{Deserialize, Serialize};

use super::network::{HostReading, SendReading, Trial};
use crate::window::WindowReading;

/// Whether a role runs on threads of its own or as async tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Plain threads.
    #[default]
    Thread,
    /// Async tasks.
    Task,
}

/// Counters of one role. Times are nanoseconds summed over its threads or tasks, so they may exceed the wall time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StageReading {
    /// Name of the role, such as `hash`.
    pub name: String,
    /// Whether threads or tasks play the role.
    pub kind: Kind,
    /// Number of threads whose CPU time counts for this role.
    pub threads: u64,
    /// Number of items that the role has finished.
    pub items: u64,
    /// Number of bytes that the role has finished.
    pub bytes: u64,
    /// CPU time of the role's threads, in nanoseconds.
    pub compute_ns: u64,
    /// Time that its threads were runnable without a core, in nanoseconds.
    pub run_delay_ns: u64,
    /// Time that the role waited for input, in nanoseconds.
    pub starved_ns: u64,
    /// Time that the role waited for a taker of its output, or for a permit, in nanoseconds.
    pub blocked_ns: u64,
    /// Wall time of calls wrapped in `device`, including their CPU time, in nanoseconds.
    pub device_ns: u64,
    /// Number of calls that waited for a device.
    pub device_calls: u64,
    /// Lifetime of the role's tasks together, in nanoseconds.
    pub task_ns: u64,
    /// Number of times that tasks of the role were polled.
    pub polls: u64,
    /// Time spent inside polls, in nanoseconds.
    pub poll_ns: u64,
    /// Time between waking and polling of tasks, in nanoseconds.
    pub ready_ns: u64,
    /// Number of reads from sockets.
    pub reads: u64,
    /// Number of reads that found the socket empty at first.
    pub socket_empty: u64,
    /// Time until those sockets had data, in nanoseconds.
    pub socket_empty_ns: u64,
    /// Time that the role waited for our own rate limit, in nanoseconds.
    pub throttled_ns: u64,
}

macro_rules! each_counter {
    ($mine:expr, $other:expr, $combine:expr) => {
        each_counter!(@ $mine, $other, $combine, threads items bytes compute_ns run_delay_ns
            starved_ns blocked_ns device_ns device_calls task_ns polls poll_ns ready_ns reads
            socket_empty socket_empty_ns throttled_ns)
    };
    (@ $mine:expr, $other:expr, $combine:expr, $($field:ident)*) => {
        $($mine.$field = $combine($mine.$field, $other.$field);)*
    };
}

impl StageReading {
    /// Creates a reading with all counters zero.
    pub fn new(name: &str, kind: Kind) -> StageReading {
        StageReading { name: name.to_owned(), kind, ..StageReading::default() }
    }

    /// Difference of the counters to an earlier reading; never below zero.
    pub fn since(&self, earlier: &StageReading) -> StageReading {
        let mut difference = self.clone();
        each_counter!(difference, earlier, u64::saturating_sub);
        difference
    }

    /// Takes the larger value of each counter. A reading taken while a thread changes its counters may lag. Differences
    /// against the highest values so far count nothing twice.
    pub fn highest(&mut self, other: &StageReading) {
        each_counter!(self, other, u64::max);
    }
}

impl AddAssign<&StageReading> for StageReading {
    fn add_assign(&mut self, other: &StageReading) {
        each_counter!(self, other, u64::saturating_add);
    }
}

/// All counters of a ledger. They can be added across processes, by the names of roles and hosts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LedgerReading {
    /// Readings of the roles, in the order of their creation.
    pub stages: Vec<StageReading>,
    /// Readings of all windows of the ledger.
    pub windows: Vec<WindowReading>,
    /// Readings of all hosts that sent bytes.
    pub hosts: Vec<HostReading>,
    /// Trials: how one more host or connection changed the total rate.
    pub trials: Vec<Trial>,
    /// Kernel counters of the sockets that send, added up.
    pub sending: SendReading,
}

impl LedgerReading {
    /// Returns the reading of the role with this name.
    pub fn stage(&self, name: &str) -> Option<&StageReading> {
        self.stages.iter().find(|stage| stage.name == name)
    }
}

impl AddAssign<LedgerReading> for LedgerReading {
    fn add_assign(&mut self, other: LedgerReading) {
        for theirs in other.stages {
            match self.stages.iter_mut().find(|mine| mine.name == theirs.name) {
                Some(mine) => *mine += &theirs,
                None => self.stages.push(theirs),
            }
        }
        for theirs in other.hosts {
            match self.hosts.iter_mut().find(|mine| mine.name == theirs.name) {
                Some(mine) => mine.add(&theirs),
                None => self.hosts.push(theirs),
            }
        }
        self.windows.extend(other.windows);
        self.trials.extend(other.trials);
        self.sending += other.sending;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_of_two_processes_merge_by_name_and_survive_json() {
        let stage = |name: &str, bytes| StageReading { bytes, ..StageReading::new(name, Kind::Thread) };
        let mut mine = LedgerReading { stages: vec![stage("hash", 10)], ..Default::default() };
        let theirs = LedgerReading { stages: vec![stage("hash", 5), stage("sync", 1)], ..Default::default() };
        let sent = serde_json::to_string(&theirs).expect("counters serialise");
        mine += serde_json::from_str(&sent).expect("and come back");
        assert_eq!(mine.stage("hash").map(|stage| stage.bytes), Some(15));
        assert_eq!(mine.stage("sync").map(|stage| stage.bytes), Some(1));
    }

    #[test]
    fn a_lagging_reading_counts_nothing_twice() {
        let at = |starved_ns| StageReading { starved_ns, ..Default::default() };
        let mut highest = at(0);
        let mut counted = 0;
        for reading in [at(10), at(4), at(12), at(12)] {
            counted += reading.since(&highest).starved_ns;
            highest.highest(&reading);
        }
        assert_eq!(counted, 12);
    }

    #[test]
    fn a_reading_from_an_older_version_lacks_fields_and_is_still_read() {
        let reading: StageReading =
            serde_json::from_str(r#"{"name":"hash","kind":"thread","bytes":3}"#).expect("defaults");
        assert_eq!((reading.bytes, reading.throttled_ns), (3, 0));
    }
}
