//! What each host did, from what the wire saw of it.

use std::time::Instant;

use fullbore_engine::run::report::{FaultReport, HostReport, Timeline};

use crate::fetch::HostSeen;
use crate::hosts::SeenFault;

/// The run whose hosts are reported.
pub struct HostsOf<'a> {
    /// When it began.
    pub started: Instant,
    /// How long it took.
    pub duration_ms: u64,
    /// Its course, with a lane for each host.
    pub timeline: &'a Timeline,
}

impl HostsOf<'_> {
    /// One host's part; `origin` decided the state.
    pub fn report(&self, origin: bool, host: &HostSeen) -> HostReport {
        let totals = &host.totals;
        let seen = |fault: &SeenFault| FaultReport {
            at_ms: fault.at.saturating_duration_since(self.started).as_millis() as u64,
            path: fault.path.clone(),
            fault: fault.fault.clone(),
        };
        // The picture's points are a tenth of a second or longer. What came in less has no point.
        let lane = self.timeline.hosts.iter().find(|lane| lane.host == host.name);
        let best = lane.map_or(0.0, |lane| lane.bytes_per_s.iter().copied().fold(0.0, f32::max)) as u64;
        let average = totals.received_bytes.saturating_mul(1000) / self.duration_ms.max(1);
        HostReport {
            host: host.name.clone(),
            origin,
            protocol: host.protocol.as_ref().map(ToString::to_string).unwrap_or_default(),
            received_bytes: totals.received_bytes,
            wasted_bytes: totals.wasted_bytes,
            files: totals.files,
            requests: totals.requests,
            connections: totals.connections,
            rtt_ms: host.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            best_rate_bytes_per_s: best.max(average),
            faults: totals.seen_faults.iter().map(seen).collect(),
            strikes: u32::try_from(totals.faults + totals.missing).unwrap_or(u32::MAX),
            state: state_of(host),
        }
    }
}

/// What became of a host, in words.
fn state_of(host: &HostSeen) -> String {
    let totals = &host.totals;
    match (&host.out, totals.seen_faults.last()) {
        (Some(reason), _) => format!("dropped: {reason}"),
        (None, Some(fault)) if totals.requests == 0 => format!("not reached: {}", fault.fault),
        (None, None) if totals.connections == 0 => "not asked".to_owned(),
        (None, None) if totals.requests == 0 => "not needed".to_owned(),
        _ => "good".to_owned(),
    }
}
