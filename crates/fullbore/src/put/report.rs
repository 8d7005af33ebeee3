//! The report and the trace of a run, in the forms of other commands. Neither has a cap or a file's name.

use std::path::Path;
use std::time::Duration;

use fullbore_engine::verdict::remote::Verdict;
use fullbore_lafs::verdict::Facts;

use super::Totals;
use crate::cli::PutArgs;
use crate::output::write_atomically;
use crate::program::process_costs;
use crate::report::{html, json, perfetto};
use crate::stdio;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::report::{self, HostReport, Report, Summary, Timeline, VerdictReport};

/// Whether one of them is wanted.
pub fn is_wanted(arguments: &PutArgs) -> bool {
    arguments.report.is_some() || arguments.trace.is_some()
}

/// Writes what was asked for. One that cannot be written is told at once, and its exit code is the result: it fails a
/// run that was good, no other.
pub fn write(arguments: &PutArgs, gather: impl FnOnce() -> Report) -> u8 {
    if !is_wanted(arguments) {
        return 0;
    }
    let written = write_all(arguments, &gather());
    written.map_or_else(
        |error| {
            stdio::say_error(&error);
            error.exit_code()
        },
        |()| 0,
    )
}

fn write_all(arguments: &PutArgs, report: &Report) -> Result<(), CommandError> {
    if let Some(path) = &arguments.report {
        let as_json = path.extension().is_some_and(|extension| extension == "json");
        put(path, &if as_json { json::render(report) } else { html::render(report) })?;
    }
    if let Some(path) = &arguments.trace {
        put(path, &perfetto::render(report))?;
    }
    Ok(())
}

fn put(path: &Path, text: &str) -> Result<(), CommandError> {
    write_atomically(path, text.as_bytes()).map_err(|error| CommandError::disk(path, &error))
}

/// What every report of `put` says: where to, and what it cost.
pub fn summary(place: String, wall: Duration) -> Summary {
    let (cpu_ms, peak_rss_bytes) = process_costs();
    Summary {
        command: "put".to_owned(),
        version: crate::VERSION.to_owned(),
        dir: place,
        started_unix_s: jiff::Timestamp::now().as_second() - wall.as_secs() as i64,
        duration_ms: wall.as_millis() as u64,
        cpu_ms,
        peak_rss_bytes,
        ..Summary::default()
    }
}

/// The verdict in the report's own form.
pub fn verdict_report(verdict: &Verdict) -> VerdictReport {
    VerdictReport {
        limit: verdict.limit.clone(),
        reason: verdict.reason.clone(),
        confident: verdict.confident,
        share: verdict.shares.first().map_or(0.0, |(_, share)| *share),
        shares: verdict.shares.clone(),
        next: None,
        advice: verdict.advice.clone(),
        evidence: verdict.evidence.clone(),
    }
}

/// The report of a run to a grid.
pub fn of_grid(
    totals: &Totals,
    facts: &Facts,
    verdict: &Verdict,
    given_up: &[(String, String)],
    failed: usize,
) -> Report {
    let hosts = facts.servers.iter().map(|(name, reading)| HostReport {
        host: name.clone(),
        protocol: if reading.answers > 0 { "HTTP/1.1".to_owned() } else { String::new() },
        received_bytes: reading.bytes,
        requests: reading.answers,
        connections: reading.connections,
        rtt_ms: (reading.round_trip > Duration::ZERO).then_some(reading.round_trip.as_secs_f64() * 1e3),
        state: match given_up.iter().find(|(server, _)| server == name) {
            Some((_, reason)) => format!("dropped: {reason}"),
            None => "good".to_owned(),
        },
        ..HostReport::default()
    });
    let hosts: Vec<HostReport> = hosts.collect();
    let place = format!("a grid of {} servers", hosts.len());
    let summary = Summary {
        changed: totals.sent_bytes > 0,
        totals: report::Totals {
            files: totals.files + totals.directories,
            needed_bytes: totals.bytes,
            // What servers acknowledged, shares of all files: on this way bytes are sent, not received.
            received_bytes: totals.sent_bytes,
            written_bytes: totals.sent_bytes,
            requests: hosts.iter().map(|host| host.requests).sum(),
            connections: hosts.iter().map(|host| host.connections).sum(),
            missing_files: failed as u64,
            ..report::Totals::default()
        },
        hosts,
        verdict: Some(verdict_report(verdict)),
        ..summary(place, facts.wall)
    };
    let timeline = facts.engine.as_ref().map(|engine| Timeline::of(engine, &[])).unwrap_or_default();
    Report { summary, timeline }
}
