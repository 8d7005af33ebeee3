//! The report of a run that fetches from mirrors: phases, warnings, transfers and hosts.

use std::path::Path;
use std::time::{Duration, Instant};

use fullbore_engine::run::events::{Event, Events, Phase};
use fullbore_engine::run::report::{self, FaultReport, HostReport, Report, Summary, Timeline, VerdictReport};
use fullbore_engine::stage::Ledger;

use super::batch::Progression;
use super::site::Site;
use crate::fetch::HostSeen;
use crate::hosts::SeenFault;

/// The report of a running command.
pub struct RunReport {
    /// The summary so far.
    pub summary: Summary,
    started: Instant,
    phases: Vec<(u64, Phase)>,
}

impl RunReport {
    /// Begins the report of `command` on `dir`, and emits [`Event::Started`].
    pub fn start(command: &str, name: Option<&str>, dir: &Path, events: &mut dyn Events) -> RunReport {
        let started_unix_s = report::began(Duration::ZERO);
        events.emit(Event::Started {
            command: command.to_owned(),
            version: fullbore_engine::VERSION.to_owned(),
            name: name.map(str::to_owned),
            dir: dir.display().to_string(),
            started_unix_s,
        });
        let summary = Summary { command: command.to_owned(), started_unix_s, ..Summary::default() };
        RunReport { summary, started: Instant::now(), phases: Vec::new() }
    }

    /// Begins the next phase, and emits it as an event.
    pub fn phase(&mut self, events: &mut dyn Events, ledger: &Ledger, phase: Phase) {
        self.phases.push((self.started.elapsed().as_millis() as u64, phase));
        ledger.mark(phase.name());
        events.emit(Event::Phase { phase });
    }

    /// Warns the user now, and in the report.
    pub fn warn(&mut self, events: &mut dyn Events, line: String) {
        self.summary.warn(line.clone());
        events.warn(line);
    }

    /// Adds the transfers and ends the report.
    pub fn finish<'s>(mut self, progression: &mut Progression, sites: impl IntoIterator<Item = &'s Site>) -> Report {
        self.summary.duration_ms = self.started.elapsed().as_millis() as u64;
        let timeline = add_transfers(&mut self.summary, self.started, &self.phases, progression, sites);
        Report { summary: self.summary, timeline }
    }
}

/// Adds transferred files and bytes, the verdict and the hosts of all sites to `summary`. Returns the timeline since
/// `started`.
pub fn add_transfers<'s>(
    summary: &mut Summary,
    started: Instant,
    phases: &[(u64, Phase)],
    progression: &mut Progression,
    sites: impl IntoIterator<Item = &'s Site>,
) -> Timeline {
    let verdict = progression.verdict();
    let timeline = verdict.as_ref().map(|verdict| Timeline::of(verdict, phases)).unwrap_or_default();
    summary.verdict = verdict.as_ref().map(VerdictReport::of);
    let totals = &mut summary.totals;
    (totals.files, totals.written_bytes) = progression.done();
    totals.needed_bytes = progression.needed_bytes();
    let run = HostsOf { started, duration_ms: started.elapsed().as_millis() as u64, timeline: &timeline };
    for site in sites {
        totals.wasted_bytes += site.landing.counts().wasted_bytes;
        for (number, host) in site.fetcher.hosts().iter().enumerate() {
            totals.received_bytes += host.totals.received_bytes;
            totals.wasted_bytes += host.totals.wasted_bytes;
            totals.requests += host.totals.requests;
            totals.connections += host.totals.connections;
            totals.hedged_requests += host.totals.hedged;
            summary.hosts.push(run.report(number == 0, host));
        }
    }
    timeline
}

/// The run whose hosts are reported.
struct HostsOf<'a> {
    started: Instant,
    duration_ms: u64,
    /// Timeline with a lane for each host.
    timeline: &'a Timeline,
}

impl HostsOf<'_> {
    /// Report of one host. `origin` is true for the host that decided the state.
    fn report(&self, origin: bool, host: &HostSeen) -> HostReport {
        let totals = &host.totals;
        let seen = |fault: &SeenFault| FaultReport {
            at_ms: fault.at.saturating_duration_since(self.started).as_millis() as u64,
            path: fault.path.clone(),
            fault: fault.fault.clone(),
        };
        // A point of the timeline covers a tenth of a second or more; a shorter transfer has none.
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

/// The state of a host, in words.
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
