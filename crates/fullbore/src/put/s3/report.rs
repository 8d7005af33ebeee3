//! The report of a run to a store. It has no names of files.

use fullbore_engine::verdict as engine;
use fullbore_engine::verdict::remote::Verdict;
use fullbore_s3::address::{Location, SCHEME};
use fullbore_s3::verdict::Facts;

use super::Totals;
use crate::put::report::{summary, verdict_report};
use fullbore_engine::run::report::{self, HostReport, Report, Summary, Timeline};

/// Gathers it.
pub fn of_store(
    location: &Location,
    totals: &Totals,
    facts: &Facts,
    verdict: &Verdict,
    failed: usize,
    stages: Option<engine::Verdict>,
) -> Report {
    let connections = &facts.connections;
    let host = HostReport {
        host: facts.store.clone(),
        protocol: if connections.answers > 0 { "HTTP/1.1".to_owned() } else { String::new() },
        received_bytes: connections.sent_bytes + connections.received_bytes,
        requests: connections.answers,
        connections: connections.connections,
        rtt_ms: connections.round_trip.map(|time| time.as_secs_f64() * 1e3),
        state: "good".to_owned(),
        ..HostReport::default()
    };
    let summary = Summary {
        changed: totals.stored > 0,
        totals: report::Totals {
            files: totals.stored + totals.present + totals.wanted,
            needed_bytes: totals.bytes,
            // What the store acknowledged: on this way bytes are sent, not received.
            received_bytes: totals.sent_bytes,
            written_bytes: totals.sent_bytes,
            requests: connections.answers,
            connections: connections.connections,
            missing_files: failed as u64,
            ..report::Totals::default()
        },
        hosts: vec![host],
        verdict: Some(verdict_report(verdict)),
        ..summary(format!("{SCHEME}{}", location.bucket), facts.wall)
    };
    Report { summary, timeline: stages.map(|stages| Timeline::of(&stages, &[])).unwrap_or_default() }
}
