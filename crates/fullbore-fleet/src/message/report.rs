//! Reports of workers on their progress. These messages may be lost; no result depends on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{MessageError, VERSION, Versioned, bounded, parse};
use crate::names::WorkerId;

/// Mirrors in one report; no run has more.
const HOSTS_MAX: usize = 256;

/// Stage clocks in one report. fullbore has about ten stages.
const CLOCKS_MAX: usize = 32;

/// Bytes and faults of one mirror, as counted by one worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostCount(
    /// Host name of the mirror, with its port.
    pub String,
    /// Bytes received from it.
    pub u64,
    /// Number of faults.
    pub u64,
);

/// Milliseconds that each stage of a worker has been busy or waiting.
pub type ClockMs = BTreeMap<String, u64>;

/// Progress of a worker, since its start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Version of the format.
    v: u32,
    /// Name of the worker that reports.
    pub worker: WorkerId,
    /// Files and bytes that the store has confirmed.
    pub done: (u64, u64),
    /// Bytes sent to the store, those of unanswered requests among them; 0 from workers that do not count them.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Number of tasks that the worker holds, and their bytes.
    pub held: (u64, u64),
    /// Bytes and faults by mirror.
    #[serde(default)]
    pub hosts: Vec<HostCount>,
    /// Stage clocks, for the verdict of the run.
    #[serde(default)]
    pub clocks: ClockMs,
}

impl Stat {
    /// Makes a report of a worker that has done nothing yet.
    pub fn new(worker: WorkerId) -> Stat {
        Stat {
            v: VERSION,
            worker,
            done: (0, 0),
            sent_bytes: 0,
            held: (0, 0),
            hosts: Vec::new(),
            clocks: ClockMs::new(),
        }
    }
}

/// A file that a worker could not fetch or store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Version of the format.
    v: u32,
    /// Name of the worker that reports.
    pub worker: WorkerId,
    /// The mirror at fault, if there is one.
    #[serde(default)]
    pub host: Option<String>,
    /// The file; empty if the message that should have named it was refused.
    pub path: String,
    /// The reason, for people. It may contain any characters.
    pub fault: String,
    /// Whether the worker gave the task up for good, so that only the planner's next look at the store brings it back.
    #[serde(default)]
    pub is_final: bool,
}

impl Fault {
    /// Makes a report of one fault.
    pub fn new(worker: WorkerId, host: Option<String>, path: String, fault: &str, is_final: bool) -> Fault {
        Fault { v: VERSION, worker, host, path, fault: bounded(fault), is_final }
    }
}

impl Versioned for Stat {
    fn version(&self) -> u32 {
        self.v
    }
}

impl Versioned for Fault {
    fn version(&self) -> u32 {
        self.v
    }
}

/// A report, as the planner receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// Progress of a worker.
    Stat(Stat),
    /// A file that a worker could not fetch or store.
    Fault(Fault),
}

impl Report {
    /// Parses a progress report. `sender` is the worker in the message's subject. It replaces the one in the content,
    /// because a queue server can restrict a worker's subjects, but not the content.
    ///
    /// # Errors
    /// [`MessageError::TooLarge`], [`MessageError::Newer`] or [`MessageError::Json`] if it is not a report that this
    /// version can read. [`MessageError::Bound`] for too many mirrors or clocks.
    pub fn parse_stat(bytes: &[u8], sender: &WorkerId) -> Result<Report, MessageError> {
        let mut stat: Stat = parse(bytes)?;
        if stat.hosts.len() > HOSTS_MAX {
            return Err(MessageError::Bound { field: "hosts", value: stat.hosts.len() as u64 });
        }
        if stat.clocks.len() > CLOCKS_MAX {
            return Err(MessageError::Bound { field: "clocks", value: stat.clocks.len() as u64 });
        }
        stat.worker = sender.clone();
        Ok(Report::Stat(stat))
    }

    /// Parses a report of a fault.
    ///
    /// # Errors
    /// [`MessageError::TooLarge`], [`MessageError::Newer`] or [`MessageError::Json`] if it is not a report that this
    /// version can read.
    pub fn parse_fault(bytes: &[u8]) -> Result<Report, MessageError> {
        let fault: Fault = parse(bytes)?;
        let (path, host) = (bounded(&fault.path), fault.host.as_deref().map(bounded));
        Ok(Report::Fault(Fault { path, host, fault: bounded(&fault.fault), ..fault }))
    }

    /// Formats the report as a message.
    pub fn to_bytes(&self) -> Vec<u8> {
        let written = match self {
            Report::Stat(stat) => serde_json::to_vec(stat),
            Report::Fault(fault) => serde_json::to_vec(fault),
        };
        written.expect("text and numbers have a form in JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_way_through_their_messages() {
        let worker = WorkerId::parse("w7").unwrap();
        let mut stat = Stat::new(worker.clone());
        (stat.done, stat.held) = ((3, 4_000_000_000), (2, 5));
        stat.hosts.push(HostCount("a.example:443".to_owned(), 7, 1));
        stat.clocks.insert("network".to_owned(), 1200);
        let stat = Report::Stat(stat);
        assert_eq!(Report::parse_stat(&stat.to_bytes(), &worker).unwrap(), stat);
        let fault = Report::Fault(Fault::new(worker, Some("a".to_owned()), "pool/a".to_owned(), "404", true));
        assert_eq!(Report::parse_fault(&fault.to_bytes()).unwrap(), fault);
    }

    /// F18
    #[test]
    fn a_hostile_report_is_refused_or_cut() {
        let worker = WorkerId::parse("w7").unwrap();
        let mut stat = Stat::new(WorkerId::parse("other").unwrap());
        stat.hosts = vec![HostCount("a".to_owned(), 0, 0); 257];
        assert!(Report::parse_stat(&Report::Stat(stat.clone()).to_bytes(), &worker).is_err());
        stat.hosts.clear();
        let Ok(Report::Stat(stat)) = Report::parse_stat(&Report::Stat(stat).to_bytes(), &worker) else { panic!() };
        assert_eq!(stat.worker, worker, "the subject counts");
        let long = "x".repeat(5_000);
        let fault =
            format!("{{\"v\":1,\"worker\":\"w\",\"host\":\"{long}\",\"path\":\"{long}\",\"fault\":\"{long}\"}}");
        let Ok(Report::Fault(fault)) = Report::parse_fault(fault.as_bytes()) else { panic!() };
        assert_eq!([fault.path.len(), fault.fault.len(), fault.host.unwrap().len()], [500; 3]);
        assert!(Report::parse_fault(b"{\"v\":9}").unwrap_err().is_skew());
    }
}
