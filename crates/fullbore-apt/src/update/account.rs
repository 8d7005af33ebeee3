//! What an update did, gathered for events and report.

use std::time::Instant;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{self, Event, Events, Phase};
use fullbore_engine::run::report::{IndexTotals, Report, SuiteReport, SuiteState, Summary, Timeline, VerdictReport};
use fullbore_wire::run::host_reports::HostsOf;

use super::release::Outcome;
use super::repositories::Repository;
use super::session::Session;
use super::settings::UpdateSettings;

/// Totals and course of one run.
pub struct Account {
    summary: Summary,
    phases: Vec<(u64, Phase)>,
    started: Instant,
    /// What went wrong with single repositories; the others were updated.
    failures: Vec<CommandError>,
}

impl Account {
    /// Begins; tells so.
    pub fn new(settings: &UpdateSettings, events: &mut dyn Events) -> Account {
        let started_unix_s = jiff::Timestamp::now().as_second();
        events.emit(Event::Started {
            command: "update".to_owned(),
            version: fullbore_engine::VERSION.to_owned(),
            name: None,
            dir: settings.lists.display().to_string(),
            started_unix_s,
        });
        Account {
            summary: Summary { started_unix_s, ..Summary::default() },
            phases: Vec::new(),
            started: Instant::now(),
            failures: Vec::new(),
        }
    }

    /// The next part of the walk.
    pub fn phase(&mut self, events: &mut dyn Events, session: &Session, phase: Phase) {
        self.phases.push((self.started.elapsed().as_millis() as u64, phase));
        session.ledger.mark(phase.name());
        events.emit(Event::Phase { phase });
    }

    /// Something the reader should know.
    pub fn warn(&mut self, events: &mut dyn Events, line: String) {
        self.summary.warn(line.clone());
        events.warn(line);
    }

    /// A repository that stays as it was.
    pub fn failed(&mut self, error: CommandError) {
        self.failures.push(error);
    }

    /// The repositories as offered.
    pub fn offered(&mut self, repositories: &[Repository], outcomes: &[Outcome]) {
        for (own, outcome) in repositories.iter().zip(outcomes) {
            let mut suite = SuiteReport { suite: own.shown(), ..SuiteReport::default() };
            if let Ok(offered) = outcome {
                suite.codename = offered.release.codename.clone().unwrap_or_else(|| own.suite.clone());
                suite.version = offered.release.version.clone();
                suite.date_unix_s = offered.release.date.unwrap_or_default();
                suite.valid_until_unix_s = offered.release.valid_until;
            }
            self.summary.suites.push(suite);
        }
    }

    /// What is to be fetched.
    pub fn planned(&mut self, events: &mut dyn Events, files: u64, bytes: u64) {
        let plan = &mut self.summary.plan;
        *plan = events::Plan { fetch_files: plan.fetch_files + files, fetch_bytes: plan.fetch_bytes + bytes, ..*plan };
        events.emit(Event::Plan(*plan));
    }

    /// What became of the indexes.
    pub fn indexes(&mut self) -> &mut IndexTotals {
        self.summary.indexes.get_or_insert_default()
    }

    /// A repository became visible, or is as it was offered.
    pub fn published(&mut self, events: &mut dyn Events, number: usize, changed: bool) {
        let suite = &mut self.summary.suites[number];
        suite.state = if changed { SuiteState::Published } else { SuiteState::Unchanged };
        if changed {
            events.emit(Event::Published {
                suite: suite.suite.clone(),
                codename: suite.codename.clone(),
                date_unix_s: suite.date_unix_s,
            });
        }
        self.summary.changed |= changed;
    }

    /// Files were removed.
    pub fn deleted(&mut self, files: u64) {
        self.summary.totals.deleted_files += files;
    }

    /// The failure of the run, if repositories failed: of the first one's kind.
    pub fn verdict_on_failures(&mut self) -> Result<(), CommandError> {
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut first) = failures.next() else { return Ok(()) };
        let published = self.summary.has_current_suite();
        for other in failures {
            first = first.context(format_args!("also: {}", other.message));
            self.summary.problem(other.message);
        }
        if published {
            first = first.context("the other sources are up to date");
            // The others were served: part of the work is done.
            if first.kind == ErrorKind::Network {
                first.kind = ErrorKind::Partial;
            }
        }
        Err(first)
    }

    /// Everything, at the end.
    pub fn report(mut self, session: &mut Session) -> Report {
        let (files, bytes) = session.progress.done();
        let totals = &mut self.summary.totals;
        totals.files = files;
        totals.written_bytes = bytes;
        totals.needed_bytes = session.progress.needed_bytes();
        let hosts: Vec<_> = session
            .retired
            .iter()
            .chain(&session.sites)
            .flat_map(|site| site.fetcher.hosts().into_iter().enumerate())
            .collect();
        for (_, host) in &hosts {
            totals.received_bytes += host.totals.received_bytes;
            totals.wasted_bytes += host.totals.wasted_bytes;
            totals.requests += host.totals.requests;
            totals.connections += host.totals.connections;
            totals.hedged_requests += host.totals.hedged;
        }
        totals.wasted_bytes += session.sites.iter().map(|site| site.landing.counts().wasted_bytes).sum::<u64>();
        self.summary.duration_ms = self.started.elapsed().as_millis() as u64;
        let mut timeline = Timeline::default();
        if let Some(verdict) = session.progress.verdict() {
            timeline = Timeline::of(&verdict, &self.phases);
            self.summary.verdict = Some(VerdictReport::of(&verdict));
        }
        let run = HostsOf { started: self.started, duration_ms: self.summary.duration_ms, timeline: &timeline };
        self.summary.hosts = hosts.iter().map(|(place, host)| run.report(*place == 0, host)).collect();
        Report { summary: self.summary, timeline }
    }
}
