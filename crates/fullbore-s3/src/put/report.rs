//! The report of a run on a store. It contains no names of files.

use fullbore_engine::run::report::{self, HostReport, Report, StageTimes, StoreReport, StoreServer, Summary, Timeline};
use fullbore_engine::run::report::{StoreKind, VerdictReport};
use fullbore_engine::verdict as engine;

use super::{Deleted, PutSettings, Totals};
use crate::address::SCHEME;
use crate::verdict::{Facts, judge};

/// Makes the report; `failed` files are missing.
pub(super) fn gather(
    settings: &PutSettings,
    totals: &Totals,
    facts: &Facts,
    failed: u64,
    deleted: Deleted,
    stages: Option<&engine::Verdict>,
) -> Report {
    let sent_bytes = totals.sent_bytes + totals.elsewhere.1;
    let is_of_many = totals.elsewhere.1 > totals.sent_bytes;
    let store = StoreReport {
        kind: StoreKind::Bucket,
        files: totals.stored,
        present: totals.present,
        would_store: totals.wanted,
        failed,
        deleted: deleted.count as u64,
        kept: deleted.kept as u64,
        unconfirmed: totals.unconfirmed,
        bytes: totals.bytes,
        sent_bytes,
        stages: StageTimes {
            source_ms: StoreReport::ms(facts.source),
            hash_ms: Some(StoreReport::ms(facts.hash)),
            ..StageTimes::default()
        },
        ..StoreReport::default()
    };
    let totals = report::Totals {
        files: totals.stored + totals.present + totals.wanted,
        needed_bytes: totals.bytes,
        // Acknowledged bytes: here bytes are sent, not received.
        received_bytes: sent_bytes,
        written_bytes: sent_bytes,
        kept_files: totals.present,
        deleted_files: deleted.count as u64,
        missing_files: failed,
        ..report::Totals::default()
    };
    let changed = !settings.dry_run && (store.files > 0 || store.deleted > 0);
    let summary = Summary { changed, dry_run: settings.dry_run, ..of_store(facts, totals, store) };
    // The clocks of one machine do not explain the work of several.
    let verdict = if is_of_many { Some(of_many()) } else { summary.verdict.clone() };
    let summary = Summary { verdict, ..summary };
    let summary = Summary { dir: format!("{SCHEME}{}", settings.bucket.location.bucket), ..summary };
    Report { summary, timeline: stages.map(|stages| Timeline::of(stages, &[])).unwrap_or_default() }
}

/// The verdict of a run in which other machines sent most bytes.
fn of_many() -> VerdictReport {
    VerdictReport {
        limit: "unknown".to_owned(),
        reason: "several machines took part; each tells its own limit".to_owned(),
        ..VerdictReport::default()
    }
}

/// The common part of `put` and `get`: the store, its measurements, and the limit of the run.
pub(crate) fn of_store(facts: &Facts, totals: report::Totals, store: StoreReport) -> Summary {
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
    let answers = u32::try_from(connections.answers.max(1)).unwrap_or(u32::MAX);
    let server = StoreServer {
        name: facts.store.clone(),
        answers: connections.answers,
        connections: connections.connections,
        connections_at_once: Some(connections.connections_at_once),
        repeated: Some(connections.repeated),
        slow_downs: Some(facts.slowed),
        open_ms: Some(StoreReport::ms(connections.open)),
        path_ms: StoreReport::ms(connections.path),
        server_latency_ms: StoreReport::ms(connections.server),
        mean_server_latency_ms: StoreReport::ms(connections.server / answers),
        round_trip_ms: connections.round_trip.map(StoreReport::ms),
        ..StoreServer::default()
    };
    Summary {
        started_unix_s: report::began(facts.wall),
        duration_ms: facts.wall.as_millis() as u64,
        totals: report::Totals { requests: connections.answers, connections: connections.connections, ..totals },
        hosts: vec![host],
        store: Some(StoreReport { servers: vec![server], ..store }),
        verdict: Some(judge(facts)),
        ..Summary::default()
    }
}
