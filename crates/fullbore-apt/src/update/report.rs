//! The report of an update.

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{self, Event, Events, Phase};
use fullbore_engine::run::report::{IndexTotals, Report, SuiteReport, SuiteState};
use fullbore_wire::run::RunReport;

use super::files::Download;
use super::release::Outcome;
use super::repositories::Repository;
use super::session::Session;
use super::settings::UpdateSettings;

/// Collects the report of one run, and emits its events.
pub(super) struct ReportBuilder {
    run: RunReport,
    /// Errors of single repositories; the others were updated.
    failures: Vec<CommandError>,
}

impl ReportBuilder {
    /// Begins the report and emits the first events.
    pub(super) fn new(settings: &UpdateSettings, events: &mut dyn Events) -> ReportBuilder {
        ReportBuilder { run: RunReport::start("update", None, &settings.lists, events), failures: Vec::new() }
    }

    /// Begins the next phase of the run.
    pub(super) fn phase(&mut self, events: &mut dyn Events, session: &Session, phase: Phase) {
        self.run.phase(events, &session.ledger, phase);
    }

    /// Adds a warning and emits it.
    pub(super) fn warn(&mut self, events: &mut dyn Events, line: String) {
        self.run.warn(events, line);
    }

    /// Adds the error of a repository.
    pub(super) fn failed(&mut self, error: CommandError) {
        self.failures.push(error);
    }

    /// Adds the Releases that the repositories offered.
    pub(super) fn offered(&mut self, repositories: &[Repository], outcomes: &[Outcome]) {
        for (own, outcome) in repositories.iter().zip(outcomes) {
            let mut suite = SuiteReport { suite: own.shown(), ..SuiteReport::default() };
            if let Ok(offered) = outcome {
                suite.codename = offered.release.codename.clone().unwrap_or_else(|| own.suite.clone());
                suite.version = offered.release.version.clone();
                suite.date_unix_s = offered.release.date.unwrap_or_default();
                suite.valid_until_unix_s = offered.release.valid_until;
            }
            self.run.summary.suites.push(suite);
        }
    }

    /// Adds these downloads to the plan.
    pub(super) fn planned(&mut self, events: &mut dyn Events, downloads: &[Download]) {
        let files = downloads.len() as u64;
        let bytes: u64 = downloads.iter().map(|download| download.file.size).sum();
        let plan = &mut self.run.summary.plan;
        *plan = events::Plan { fetch_files: plan.fetch_files + files, fetch_bytes: plan.fetch_bytes + bytes, ..*plan };
        events.emit(Event::Plan(*plan));
    }

    /// Totals of updated indexes, to be counted up.
    pub(super) fn indexes(&mut self) -> &mut IndexTotals {
        self.run.summary.indexes.get_or_insert_default()
    }

    /// A repository was published, or is unchanged.
    pub(super) fn published(&mut self, events: &mut dyn Events, number: usize, changed: bool) {
        let suite = &mut self.run.summary.suites[number];
        suite.state = if changed { SuiteState::Published } else { SuiteState::Unchanged };
        if changed {
            events.emit(Event::Published {
                suite: suite.suite.clone(),
                codename: suite.codename.clone(),
                date_unix_s: suite.date_unix_s,
            });
        }
        self.run.summary.changed |= changed;
    }

    /// Counts files that were removed from the lists directory.
    pub(super) fn deleted(&mut self, files: u64) {
        self.run.summary.totals.deleted_files += files;
    }

    /// Returns the error of the run if repositories failed.
    ///
    /// # Errors
    ///
    /// The first repository's error, with the others as context. Its kind becomes `Partial` if it was `Network` and
    /// other repositories were published.
    pub(super) fn verdict_on_failures(&mut self) -> Result<(), CommandError> {
        let mut failures = std::mem::take(&mut self.failures).into_iter();
        let Some(mut first) = failures.next() else { return Ok(()) };
        let published = self.run.summary.has_current_suite();
        for other in failures {
            first = first.context(format_args!("also: {}", other.message));
            self.run.summary.problem(other.message);
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

    /// Ends the report, and adds the totals of all sites.
    pub(super) fn report(self, session: &mut Session) -> Report {
        self.run.finish(&mut session.progression, session.retired.iter().chain(&session.sites))
    }
}
