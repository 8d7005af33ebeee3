//! What one end found to be its limit, as it is told to the other, and the verdict on both.

use std::collections::BTreeMap;

use fullbore_engine::stage::{SendReading, StageReading};
use fullbore_engine::verdict::{Limit, Verdict};
use serde::{Deserialize, Serialize};

use crate::probe::DiskFacts;

/// One end's verdict, without the course of time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judgement {
    /// What limited it.
    pub limit: Limit,
    /// As a person says it.
    pub part: String,
    /// The strongest evidence.
    pub reason: String,
    /// Whether two signals agreed.
    pub confident: bool,
    /// All parts with their shares of the wall time.
    pub shares: BTreeMap<String, f64>,
    /// Measured facts.
    pub evidence: Vec<String>,
    /// Clocks of the roles.
    pub stages: Vec<StageReading>,
    /// What held connections up, if this end sent.
    #[serde(default)]
    pub sending: SendReading,
    /// Cores that may be used here.
    #[serde(default)]
    pub cores: usize,
    /// What the disks here did.
    #[serde(default)]
    pub disks: DiskFacts,
}

impl Default for Judgement {
    fn default() -> Judgement {
        Judgement {
            limit: Limit::Mixed,
            part: Limit::Mixed.to_string(),
            reason: String::new(),
            confident: false,
            shares: BTreeMap::new(),
            evidence: Vec::new(),
            stages: Vec::new(),
            sending: SendReading::default(),
            cores: 0,
            disks: DiskFacts::default(),
        }
    }
}

impl Judgement {
    /// The short form of a verdict.
    pub fn of(verdict: &Verdict) -> Judgement {
        Judgement {
            limit: verdict.limit.clone(),
            part: verdict.part.clone(),
            reason: verdict.reason.clone(),
            confident: verdict.confident,
            shares: verdict.shares.iter().map(|share| (share.part.clone(), share.share)).collect(),
            evidence: verdict.evidence.clone(),
            stages: verdict.counters.stages.clone(),
            sending: verdict.counters.sending,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            disks: DiskFacts::default(),
        }
    }

    /// With what the disks did.
    pub fn with_disks(mut self, disks: DiskFacts) -> Judgement {
        self.disks = disks;
        self
    }

    /// For the wire.
    pub fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// From the wire; nothing if it makes no sense.
    pub fn decode(json: &[u8]) -> Option<Judgement> {
        serde_json::from_slice(json).ok()
    }

    /// Whether it blames something of its own machine, by two signals.
    fn blames_itself(&self) -> bool {
        self.confident && matches!(self.limit, Limit::Cpu { .. } | Limit::OneCore { .. } | Limit::Disk)
    }

    /// `part (reason)`.
    pub fn words(&self) -> String {
        if self.reason.is_empty() { self.part.clone() } else { format!("{} ({})", self.part, self.reason) }
    }
}

/// What limited a copy between two machines, and why: the end that blames something of its own is
/// believed, the sender's word on the path where neither does. Two that blame themselves are two limits.
pub fn joined(near: &Judgement, far: Option<&Judgement>, host: &str, near_sends: bool) -> String {
    let Some(far) = far else { return near.words() };
    match (near.blames_itself(), far.blames_itself()) {
        (true, false) => near.words(),
        (false, true) => format!("{} on {host}", far.words()),
        (true, true) if near.limit == far.limit => format!("{}, here and on {host}", near.words()),
        (true, true) => format!("mixed ({} here; {} on {host})", near.part, far.part),
        (false, false) => {
            let sender = if near_sends { near } else { far };
            match sender.limit {
                Limit::RemoteOrPath => "the network".to_owned(),
                _ => sender.words(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judgement(limit: Limit, part: &str) -> Judgement {
        Judgement { limit, part: part.to_owned(), confident: true, ..Judgement::default() }
    }

    #[test]
    fn the_end_that_blames_itself_is_believed() {
        let path = judgement(Limit::RemoteOrPath, "the network");
        let receiver = judgement(Limit::Receiver, "the receiver");
        let disk = judgement(Limit::Disk, "disk writes");
        let mixed = Judgement { confident: false, ..judgement(Limit::Mixed, "mixed") };
        assert_eq!(joined(&receiver, Some(&disk), "host", true), "disk writes on host");
        assert_eq!(joined(&path, Some(&mixed), "host", true), "the network");
        assert_eq!(joined(&mixed, Some(&path), "host", false), "the network");
        let cpu = judgement(Limit::Cpu { consumer: "read".to_owned() }, "CPU (read)");
        assert_eq!(joined(&cpu, Some(&disk), "host", true), "mixed (CPU (read) here; disk writes on host)");
        assert_eq!(Judgement::decode(&cpu.encode()), Some(cpu));
    }
}
