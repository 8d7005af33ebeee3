//! The report of a mirror run: suites, plan, deletions, missing files.

use std::collections::BTreeMap;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{self, Event, Events, Phase, Pinned};
use fullbore_engine::run::report::{FleetReport, Mirrored, Report, SuiteReport, SuiteState, VerdictReport};
use fullbore_engine::units;
use fullbore_wire::fetch::HostSeen;
use fullbore_wire::run::RunReport;
use fullbore_wire::run::refusals::Why;
use fullbore_wire::url::Url;

use super::batch::IndexDownload;
use super::free_space::FreeSpace;
use super::indexes;
use super::offer::{self, OfferedSuite};
use super::plan::Plan;
use super::pool::FetchPlan;
use super::retention::GuardError;
use super::select::Absent;
use super::session::Session;
use super::state::{Header, ReleaseChange};
use super::subtract::Tally;
use super::trace_files::{self, Trace};
use super::upstream::Upstream;
use super::work::RunId;
use crate::settings::MirrorSettings;

/// Maximum number of lines in an error about missing files or wrong indexes. The report has all of them.
const MISSING_NAMED: usize = 8;

/// Context of a suite that cannot be mirrored while others are.
const STAYS: &str = "it stays as it was; the other suites are mirrored";

/// Report of one run, filled in by its steps.
pub(crate) struct ReportBuilder {
    /// Name of this mirror in its trace files.
    pub host: String,
    /// Whether the last round was complete.
    pub complete: bool,
    run: RunReport,
    directories: Vec<String>,
    refused_deletion: Option<String>,
    /// Verdict on the part that workers did, which is nearly all of the run.
    fleet_verdict: Option<VerdictReport>,
    /// Bytes and faults of each mirror, as reported by workers.
    hosts_of_workers: BTreeMap<String, (u64, u64)>,
}

impl ReportBuilder {
    /// Begins the report of a run.
    pub(crate) fn new(settings: &MirrorSettings, events: &mut dyn Events) -> ReportBuilder {
        let mut run = RunReport::start("mirror", settings.name.as_deref(), &settings.dir, events);
        run.summary.dry_run = settings.dry_run;
        ReportBuilder {
            host: settings
                .trace_host
                .clone()
                .unwrap_or_else(|| rustix::system::uname().nodename().to_string_lossy().into_owned()),
            complete: false,
            run,
            directories: Vec::new(),
            refused_deletion: None,
            fleet_verdict: None,
            hosts_of_workers: BTreeMap::new(),
        }
    }

    /// Begins the next phase, and emits its event.
    pub(crate) fn phase(&mut self, events: &mut dyn Events, session: &Session, phase: Phase) {
        self.run.phase(events, &session.ledger, phase);
    }

    /// Adds a warning, and emits it.
    pub(crate) fn warn(&mut self, events: &mut dyn Events, line: String) {
        self.run.warn(events, line);
    }

    /// Adds a line for each offered suite.
    pub(crate) fn offered(&mut self, offers: &[OfferedSuite]) {
        self.directories.clear();
        self.run.summary.suites.clear();
        for offer in offers {
            self.directories.push(offer.layout.directory.clone());
            self.run.summary.suites.push(SuiteReport {
                suite: offer.requested.clone(),
                codename: offer.release.codename.clone().unwrap_or_else(|| offer.requested.clone()),
                version: offer.release.version.clone(),
                date_unix_s: offer.release.date.unwrap_or_default(),
                valid_until_unix_s: offer.release.valid_until,
                state: if offer.change == ReleaseChange::Unchanged {
                    SuiteState::Unchanged
                } else {
                    SuiteState::NotPublished
                },
            });
        }
    }

    /// Sets the number and size of the mirrored files, from the state.
    pub(crate) fn holds(&mut self, header: &Header) {
        self.run.summary.mirrored = header.named.map(|named| Mirrored { files: named.files, bytes: named.bytes });
    }

    /// Adds the amounts of the plan, and emits its event.
    pub(crate) fn planned(
        &mut self,
        events: &mut dyn Events,
        plan: &Plan,
        wanted: &FetchPlan,
        indexes: &[IndexDownload],
        space: &FreeSpace,
        deletions: Tally,
    ) {
        let index_bytes: u64 = indexes.iter().map(|index| index.size).sum();
        self.run.summary.plan = events::Plan {
            wanted_files: plan.len() as u64,
            // Not the sum of the plan: indexes have no sizes of installer images.
            wanted_bytes: wanted.subtraction.present.bytes + wanted.fetch.bytes,
            fetch_files: wanted.fetch.files + indexes.len() as u64,
            fetch_bytes: (wanted.fetch.bytes + index_bytes).saturating_sub(wanted.resumed_bytes),
            delete_files: deletions.files,
            delete_bytes: deletions.bytes,
            free_bytes: space.free_bytes,
            free_inodes: space.free_inodes.unwrap_or(u64::MAX),
        };
        self.run.summary.totals.kept_files = wanted.subtraction.present.files;
        self.run.summary.totals.kept_bytes = wanted.subtraction.present.bytes;
        self.run.summary.totals.resumed_bytes = wanted.resumed_bytes;
        events.emit(Event::Plan(self.run.summary.plan));
    }

    /// Adds the work of a queue's workers.
    pub(crate) fn fleet(&mut self, fleet: FleetReport, verdict: VerdictReport, hosts: BTreeMap<String, (u64, u64)>) {
        self.fleet_verdict = Some(verdict);
        self.hosts_of_workers = hosts;
        self.run.summary.fleet = Some(fleet);
    }

    /// Adds the name under which the plan was pinned, and the files for workers.
    pub(crate) fn pinned(&mut self, events: &mut dyn Events, run: &RunId, missing: Tally) {
        let pinned = Pinned { run: run.to_string(), files: missing.files, bytes: missing.bytes };
        events.emit(Event::Pinned(pinned.clone()));
        self.run.summary.changed = missing.files > 0;
        self.run.summary.pinned = Some(pinned);
    }

    /// Reports the deletions of a dry run.
    pub(crate) fn would_delete(&mut self, events: &mut dyn Events, files: Vec<(String, u64)>) {
        for (path, bytes) in files {
            events.emit(Event::WouldDelete { path, bytes });
        }
    }

    /// Adds a published suite.
    pub(crate) fn published(&mut self, events: &mut dyn Events, directory: &str) {
        let Some(position) = self.directories.iter().position(|own| own == directory) else { return };
        let suite = &mut self.run.summary.suites[position];
        if suite.state != SuiteState::Unchanged {
            suite.state = SuiteState::Published;
            self.run.summary.changed = true;
        }
        events.emit(Event::Published {
            suite: suite.suite.clone(),
            codename: suite.codename.clone(),
            date_unix_s: suite.date_unix_s,
        });
    }

    /// Adds deleted files.
    pub(crate) fn deleted(&mut self, removed: Tally) {
        self.run.summary.totals.deleted_files += removed.files;
        self.run.summary.totals.deleted_bytes += removed.bytes;
        self.run.summary.plan.delete_files += removed.files;
        self.run.summary.plan.delete_bytes += removed.bytes;
    }

    /// Adds the refusal of the delete guard.
    pub(crate) fn guarded(&mut self, events: &mut dyn Events, error: &GuardError) {
        self.refused_deletion = Some(error.to_string());
        self.warn(events, error.to_string());
    }

    /// Warns about wrong forms of indexes, a line for each.
    pub(crate) fn wrong_forms(&mut self, events: &mut dyn Events, mut lines: Vec<String>) {
        let more = lines.len().saturating_sub(MISSING_NAMED);
        lines.truncate(MISSING_NAMED);
        if more > 0 {
            lines.push(format!("{} more were wrong on every mirror", units::several(more as u64, "index", "indexes")));
        }
        lines.into_iter().for_each(|line| self.warn(events, line));
    }

    /// Ends the run if suites could not be mirrored while others were.
    ///
    /// # Errors
    ///
    /// The first of `errors`, with the messages of the others.
    pub(crate) fn refused(&mut self, errors: Vec<CommandError>) -> Result<(), CommandError> {
        errors.iter().for_each(|error| self.run.summary.problem(error.message.clone()));
        offer::together(errors).map_or(Ok(()), |error| Err(error.context(STAYS)))
    }

    /// Warns about the parts that suites lack. Returns lines about those that make the run fail.
    pub(crate) fn absent(&mut self, events: &mut dyn Events, absent: Vec<Absent>) -> Vec<String> {
        let (expected, others): (Vec<_>, Vec<_>) = absent.into_iter().partition(|absent| absent.is_expected);
        expected.into_iter().for_each(|absent| self.warn(events, format!("{}; it is skipped there", absent.error)));
        others.into_iter().map(|absent| absent.error.to_string()).collect()
    }

    /// Ends the run if entries were left out of the published suites.
    ///
    /// # Errors
    ///
    /// `Partial` with the first `lines`, if there are any.
    pub(crate) fn left_out(&mut self, lines: Vec<String>) -> Result<(), CommandError> {
        if lines.is_empty() {
            return Ok(());
        }
        let entries = units::several(lines.len() as u64, "entry", "entries");
        let error = CommandError::new(
            ErrorKind::Partial,
            format_args!("{entries} of the archive left out; the rest is published"),
        );
        let error = lines.iter().take(MISSING_NAMED).fold(error, CommandError::context);
        let error = match lines.len().saturating_sub(MISSING_NAMED) {
            0 => error,
            more => error.context(format_args!("and {more} more (named in the report, up to 200)")),
        };
        lines.into_iter().for_each(|line| self.run.summary.problem(line));
        Err(error
            .hint("this is the archive's own fault: tell its maintainers, or leave the packages out with --exclude"))
    }

    /// Ends the run if files are missing, or deletion was refused.
    ///
    /// # Errors
    ///
    /// For missing files `Partial`, or `Verification` if their content was wrong. `Partial` also if the delete guard
    /// refused.
    pub(crate) fn missing(&mut self, missing: Vec<String>, why: Why, is_absent: bool) -> Result<(), CommandError> {
        if missing.is_empty() {
            return match self.refused_deletion.take() {
                Some(message) => Err(CommandError::new(ErrorKind::Partial, message)
                    .context("the new state is published; nothing was deleted")
                    .hint("check whether the archive really shrank; pass --force-delete to delete anyway, or raise --max-delete")),
                None => Ok(()),
            };
        }
        self.run.summary.totals.missing_files = missing.len() as u64;
        let count = missing.len() as u64;
        let (files, them) = (units::several(count, "file", "files"), units::noun(count, "it", "them"));
        let mut error = CommandError::new(
            match why {
                Why::Various => ErrorKind::Partial,
                Why::Wrong | Why::Corrupt => ErrorKind::Verification,
            },
            format_args!("{files} could not be fetched; suites that need {them} stay as they were"),
        );
        for line in missing.iter().take(MISSING_NAMED) {
            error = error.context(line);
        }
        missing.into_iter().for_each(|line| self.run.summary.problem(line));
        let error = error.hint(match why {
            Why::Corrupt | Why::Wrong => {
                "add another --from: the received content is not what the archive signed, perhaps for damaged \
                 storage or a cache"
            }
            Why::Various => "the mirrors may be half-way through an update: run again later, or add another --from",
        });
        Err(if is_absent { error.hint(indexes::HINT_IGNORE_MISSING) } else { error })
    }

    /// Content of this mirror's trace file.
    pub(crate) fn trace(
        &self,
        settings: &MirrorSettings,
        offers: &[OfferedSuite],
        hosts: &[HostSeen],
        above: Upstream,
    ) -> Trace {
        let mut architectures: Vec<String> =
            settings.sources.iter().flat_map(|source| source.architectures.iter().cloned()).collect();
        if settings.sources.iter().any(|source| source.sources) {
            architectures.push("source".to_owned());
        }
        if settings.sources.iter().any(|source| source.binaries && source.architectures.is_empty()) {
            architectures.extend(offers.iter().flat_map(|offer| offer.release.architectures.iter().cloned()));
        }
        architectures.sort_unstable();
        architectures.dedup();
        Trace {
            host: self.host.clone(),
            started: self.run.summary.started_unix_s,
            finished: jiff::Timestamp::now().as_second(),
            archive_serial: above.master.as_deref().and_then(trace_files::archive_serial).map(str::to_owned),
            master: above.master,
            all_architectures: settings
                .sources
                .iter()
                .all(|source| source.binaries && source.sources && source.architectures.is_empty()),
            architectures,
            suites: self.run.summary.suites.iter().map(|suite| suite.suite.clone()).collect(),
            upstream: hosts.first().map(|host| host.name.clone()).unwrap_or_default(),
            upstream_hierarchy: above.hierarchy,
            received_bytes: hosts.iter().map(|host| host.totals.received_bytes).sum(),
            info: settings.trace_info.clone(),
        }
    }

    /// Ends the report and returns it.
    pub(crate) fn report(self, session: &mut Session) -> Report {
        let mut report = self.run.finish(&mut session.progression, [&session.site]);
        let summary = &mut report.summary;
        for host in &mut summary.hosts {
            let name = Url::parse(&format!("http://{}/", host.host)).map(|url| url.host_and_port());
            let seen = name.ok().and_then(|name| self.hosts_of_workers.get(&name)).or_else(|| {
                let secure = Url::parse(&format!("https://{}/", host.host)).map(|url| url.host_and_port()).ok()?;
                self.hosts_of_workers.get(&secure)
            });
            let Some((bytes, faults)) = seen else { continue };
            host.received_bytes += bytes;
            host.strikes = host.strikes.saturating_add(u32::try_from(*faults).unwrap_or(u32::MAX));
            summary.totals.received_bytes += bytes;
        }
        if self.fleet_verdict.is_some() {
            summary.verdict = self.fleet_verdict;
        }
        report
    }
}
