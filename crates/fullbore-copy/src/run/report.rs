//! Makes the report that all commands share from the results of a copy.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fullbore_engine::run::error::{CommandError, EXIT_VANISHED, ErrorKind};
use fullbore_engine::run::events::Plan;
use fullbore_engine::run::report::{self, CopyReport, Report, Summary, Timeline, Totals, VerdictReport};
use fullbore_engine::verdict::Verdict;

use super::CopySettings;
use super::table::Outcome;
use super::teller::{Counted, name};
use crate::judgement::Judgement;
use crate::probe::DiskFacts;
use crate::transport::Path as NetworkPath;
use crate::wire::{Account, ProblemKind};

/// The results of a successful copy.
pub(super) struct Done {
    pub(super) account: Account,
    pub(super) wall: Duration,
    /// The verdict on what limited it.
    pub(super) found: VerdictReport,
    /// This end's verdict.
    pub(super) verdict: Verdict,
    /// The verdict of the far end, if it sent one.
    pub(super) far: Option<Judgement>,
    /// How content was transferred, in words; empty on one machine.
    pub(super) way: String,
    /// Times in which the copy waited for a known reason, in words.
    pub(super) waits: Vec<String>,
    pub(super) ends: Ends,
}

/// What the table at the end needs besides the clocks.
#[derive(Default)]
pub(super) struct Ends {
    /// Whether the source, and whether the destination, is on this machine.
    pub(super) here: (bool, bool),
    /// Facts about the connections.
    pub(super) path: Option<NetworkPath>,
    /// Activity of this machine's disks.
    pub(super) disks: DiskFacts,
    /// Activity of the destination's disks, if source and destination are both on this machine.
    pub(super) target_disks: DiskFacts,
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn section(settings: &CopySettings) -> CopyReport {
    let (source, destination) = settings.places();
    CopyReport { source, destination, ..CopyReport::default() }
}

fn totals(account: &Account) -> Totals {
    Totals {
        files: account.files,
        needed_bytes: account.wanted_bytes,
        written_bytes: account.written_bytes,
        resumed_bytes: account.resumed_bytes,
        kept_files: account.kept,
        deleted_files: account.deleted,
        ..Totals::default()
    }
}

/// Report of the work of an interrupted copy.
pub(super) fn of_torn(account: &Account) -> Report {
    let summary = Summary { totals: totals(account), changed: true, ..Summary::default() };
    Report { summary, ..Report::default() }
}

/// Adds all known facts about a copy to the error that ended it.
pub(super) fn unfinished(mut error: CommandError, settings: &CopySettings, began: Instant) -> CommandError {
    // A usage error means that no copy has started.
    if error.kind == ErrorKind::Usage {
        return error;
    }
    let wall = began.elapsed();
    let known = error.report.take().map(|report| report.summary).unwrap_or_default();
    let summary = Summary {
        started_unix_s: report::began(wall),
        duration_ms: ms(wall).max(1),
        dry_run: settings.options.dry_run,
        copy: Some(section(settings)),
        ..known
    };
    error.with_report(Report { summary, ..Report::default() })
}

/// The exit code of a copy with problems of these kinds.
fn exit_code(mut problems: impl Iterator<Item = ProblemKind>) -> u8 {
    match problems.next() {
        None => 0,
        Some(ProblemKind::Vanished) if problems.all(|kind| kind == ProblemKind::Vanished) => EXIT_VANISHED,
        Some(_) => ErrorKind::Partial.exit_code(),
    }
}

impl Done {
    pub(super) fn report(&self, settings: &CopySettings, problems: &BTreeMap<ProblemKind, Counted>) -> Report {
        let account = &self.account;
        let dry_run = settings.options.dry_run;
        let faults = || problems.iter().filter(|(kind, _)| !kind.is_wished());
        let (source, destination) = settings.places();
        let copy = CopyReport {
            finished: true,
            entries: account.entries,
            retouched: account.retouched,
            made: account.made,
            reused_bytes: account.reused_bytes,
            verified_bytes: account.verified_bytes,
            verify_us: account.verify_us,
            sync_us: account.sync_us,
            problems: faults().map(|(kind, counted)| (name(*kind), counted.count)).collect(),
            way: self.way.clone(),
            parts: self.with_run((&source, &destination), |run| run.rows()),
            advice: self.with_run((&source, &destination), |run| run.advice()),
            far: self.far.as_ref().and_then(|far| serde_json::to_value(far).ok()),
            ..section(settings)
        };
        let missing = || problems.iter().filter(|(kind, _)| kind.prevents_deletion());
        let mut summary = Summary {
            started_unix_s: report::began(self.wall),
            duration_ms: ms(self.wall),
            exit_code: exit_code(faults().map(|(kind, _)| *kind)),
            changed: !dry_run && account.files + account.made + account.retouched + account.deleted > 0,
            dry_run,
            plan: Plan {
                fetch_files: account.wanted_files,
                fetch_bytes: account.wanted_bytes,
                delete_files: if dry_run { account.deleted } else { 0 },
                ..Plan::default()
            },
            totals: Totals {
                deleted_files: if dry_run { 0 } else { account.deleted },
                missing_files: missing().map(|(_, counted)| counted.count).sum(),
                ..totals(account)
            },
            copy: Some(copy),
            verdict: Some(self.verdict_report((&source, &destination))),
            waits: self.waits.clone(),
            ..Summary::default()
        };
        faults().flat_map(|(_, counted)| &counted.lines).for_each(|line| summary.problem(line));
        Report { summary, timeline: Timeline::of(&self.verdict, &[]) }
    }

    fn verdict_report(&self, places: (&str, &str)) -> VerdictReport {
        let own = VerdictReport::of(&self.verdict);
        let far = self.far.iter().flat_map(|far| far.evidence.iter().map(|line| format!("far end: {line}")));
        let evidence = own.evidence.into_iter().chain(far).collect();
        VerdictReport { next: self.with_run(places, |run| run.next_limit()), evidence, ..self.found.clone() }
    }

    /// Passes the run to `use_run`, in the form that its table needs.
    fn with_run<R>(&self, places: (&str, &str), use_run: impl FnOnce(&Outcome<'_>) -> R) -> R {
        let verdict = &self.verdict;
        let (near, nobody) = (Judgement::of(verdict), Judgement::default());
        let far = self.far.as_ref().unwrap_or(&nobody);
        let ends = &self.ends;
        let (sender, receiver, source_disks, target_disks) = match ends.here {
            (true, true) => (&near, None, &ends.disks, &ends.target_disks),
            (true, false) => (&near, Some(far), &ends.disks, &far.disks),
            _ => (far, Some(&near), &far.disks, &ends.disks),
        };
        use_run(&Outcome {
            sender,
            receiver,
            path: ends.path.as_ref(),
            disks: (source_disks, target_disks),
            places,
            verdict: Some(verdict),
            bytes: self.account.written_bytes,
            wall: self.wall,
            sync: Duration::from_micros(self.account.sync_us),
        })
    }
}
