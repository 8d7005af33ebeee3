//! `put` into a grid: uploads files and directories, each of which gets a cap.
//!
//! [`run`] does the steps: settings and secrets (`settings`); the items to put ([`fullbore_engine::tree`]); all files
//! at once, and directories when their children have caps (`work`); the list of caps, and what limited the run. Caps go
//! to the list and to events that are data, and nowhere else.

mod settings;
mod spool;
mod work;

use std::path::Path;
use std::time::Instant;

use fullbore_engine::run::list::List;
use fullbore_engine::run::report::{self, Report, StageTimes, StoreReport, Summary, Timeline};
use fullbore_engine::run::stored::{NotStored, all_stored};
use fullbore_engine::run::{CommandError, Counts, ErrorKind, Event, Events, Pace, Phase, Stop, StoredFile};
use fullbore_engine::tree::{self, Item};

use crate::grid;
use crate::verdict::{Facts, judge};
use settings::Resolved;
pub use settings::{KeySettings, PutSettings};
use work::{PutContext, PutEvent, PutResult, Unreadable};

/// Uploads all files and directories, and emits their caps.
///
/// # Errors
/// - [`ErrorKind::Usage`] for invalid settings, node directory or servers file.
/// - [`ErrorKind::Disk`] if the list cannot be written.
/// - [`ErrorKind::Partial`] if some items are not in the grid. The caps of the others are emitted all the same.
/// - [`ErrorKind::Interrupted`] if the run was stopped.
/// - [`ErrorKind::Internal`] if a thread or task fails.
pub fn run(settings: &PutSettings, events: &mut dyn Events, stop: &Stop) -> Result<Report, CommandError> {
    let resolved = Resolved::new(settings, events)?;
    let begun = Instant::now();
    events.emit(Event::started("put", settings.grid.name()));
    events.emit(Event::Phase { phase: Phase::Plan });
    let listing = tree::list(&settings.paths, &settings.choice)?;
    listing.tell_left_out(events);
    let items = listing.items;
    let unreadable: Unreadable<'_> =
        listing.unreadable.iter().map(|(path, error)| (path.as_path(), error.to_string())).collect();
    // Opened after listing the items: the list may be in a directory that is put, but is not one of them.
    let list = List::open(settings.list.as_deref())?;
    if stop.check().is_err() {
        return Err(CommandError::new(ErrorKind::Interrupted, "interrupted; nothing was put"));
    }
    let context = PutContext::new(settings, &resolved, events, stop)?;
    events.emit(Event::Phase { phase: Phase::Put });
    let has_stdin = items.iter().any(|item| matches!(item, Item::Stdin));
    let bytes = if has_stdin { settings.stdin_bytes } else { listing.bytes };
    // Missing items among these are reported in their turn.
    let is_item = |path: &Path| items.iter().any(|item| item.path() == path);
    let missing = unreadable.iter().filter(|(path, _)| !is_item(path));
    let missing = missing.map(|(path, why)| (path.to_path_buf(), CommandError::new(ErrorKind::Disk, why))).collect();
    let account = Account {
        settings,
        context: &context,
        list,
        total: (items.len() as u64, bytes.unwrap_or(0)),
        totals: Totals::default(),
        missing,
        begun,
        // While stdin gives nothing, no server is waited for.
        pace: if has_stdin { Pace::new(begun) } else { Pace::with_peers(begun) },
    };
    let result = account.put(&items, &unreadable, events);
    context.end(result.is_ok());
    result
}

/// Counts of what was put.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    files: u64,
    directories: u64,
    bytes: u64,
    sent_bytes: u64,
}

impl Totals {
    fn add(&mut self, bytes: u64, sent_bytes: u64, is_directory: bool) {
        if is_directory {
            self.directories += 1;
        } else {
            self.files += 1;
            self.bytes += bytes;
        }
        self.sent_bytes += sent_bytes;
    }
}

/// Reports results and progress.
struct Account<'a> {
    settings: &'a PutSettings,
    context: &'a PutContext<'a>,
    list: List,
    /// Number of items, and bytes, of the whole run.
    total: (u64, u64),
    totals: Totals,
    missing: NotStored,
    begun: Instant,
    pace: Pace,
}

impl Account<'_> {
    /// Uploads all items; returns the report.
    fn put(
        mut self,
        items: &[Item],
        unreadable: &Unreadable<'_>,
        events: &mut dyn Events,
    ) -> Result<Report, CommandError> {
        let context = self.context;
        let result = context.put_all(items, unreadable, &mut |heard| {
            let told = match heard {
                PutEvent::Done(done) => self.tell(done, events),
                PutEvent::Nothing => Ok(()),
            };
            if self.pace.is_due(Instant::now()) {
                self.show_progress(events);
            }
            told
        });
        self.show_progress(events);
        self.list.publish(result.is_ok() && self.missing.is_empty())?;
        let facts = context.last_facts(self.begun.elapsed(), self.totals.sent_bytes);
        let report = self.report(&facts);
        match result.and_then(|()| all_stored(self.missing, self.totals.files + self.totals.directories)) {
            Ok(()) => Ok(report),
            Err(error) => Err(error.with_report(report)),
        }
    }

    /// Reports an item. Without a list its cap is only in the events: somebody has to read them.
    fn tell(&mut self, done: PutResult, events: &mut dyn Events) -> Result<(), CommandError> {
        for trouble in &done.troubles {
            events.warn(format!("{}: {trouble}", done.path.display()));
        }
        let cap = match done.result {
            Ok(cap) => cap,
            Err(error) => {
                self.missing.push((done.path, error));
                return Ok(());
            }
        };
        self.totals.add(done.size, done.sent_bytes, done.is_directory);
        let file = StoredFile {
            happiness: Some(done.happiness),
            is_shown: done.is_argument,
            ..StoredFile::new(&done.path, done.size, &cap.to_text())
        };
        self.list.add(&file);
        let event = if self.settings.dry_run { Event::WouldStore(file) } else { Event::Stored(file) };
        if self.settings.list.is_none() {
            return events.tell(event);
        }
        events.emit(event);
        Ok(())
    }

    fn show_progress(&mut self, events: &mut dyn Events) {
        let Totals { files, directories, bytes, sent_bytes } = self.totals;
        let facts = self.context.facts(self.begun.elapsed(), sent_bytes);
        let acknowledged: u64 = facts.servers.iter().map(|(_, reading)| reading.bytes).sum();
        // Whole files, and the acknowledged part of those in progress.
        let under_way = self.context.content_bytes(acknowledged.saturating_sub(sent_bytes));
        let (total_files, total_bytes) = self.total;
        let counts = Counts { files: files + directories, bytes: bytes + under_way, total_files, total_bytes };
        let verdict = judge(&Facts { moved_bytes: acknowledged, ..facts });
        let limit = verdict.confident.then_some(verdict.limit);
        events.emit(Event::Progress(self.pace.progress(counts, limit, Instant::now())));
    }

    fn report(&self, facts: &Facts) -> Report {
        let verdict = judge(facts);
        let Totals { files, directories, bytes, sent_bytes } = self.totals;
        let (missing, dry_run) = (self.missing.len() as u64, self.settings.dry_run);
        let store = StoreReport {
            files: if dry_run { 0 } else { files },
            would_store: if dry_run { files } else { 0 },
            directories,
            failed: missing,
            bytes,
            sent_bytes,
            stages: StageTimes {
                source_ms: StoreReport::ms(facts.costs.source),
                hash_ms: Some(StoreReport::ms(facts.costs.hash)),
                encode_ms: Some(StoreReport::ms(facts.costs.encode)),
                memory_wait_ms: Some(StoreReport::ms(facts.costs.memory)),
                ..StageTimes::default()
            },
            ..StoreReport::default()
        };
        let summary =
            grid::summary(&self.settings.grid, facts.wall, &facts.servers, self.context.given_up(), verdict, store);
        let totals = report::Totals {
            files: files + directories,
            needed_bytes: bytes,
            // Bytes of shares that servers acknowledged, of all files: here bytes are sent, not received.
            received_bytes: sent_bytes,
            written_bytes: sent_bytes,
            requests: summary.hosts.iter().map(|host| host.requests).sum(),
            connections: summary.hosts.iter().map(|host| host.connections).sum(),
            missing_files: missing,
            ..report::Totals::default()
        };
        let verdict = summary.verdict.clone().filter(|_| !dry_run);
        let summary = Summary { changed: sent_bytes > 0, dry_run, totals, verdict, ..summary };
        Report { summary, timeline: facts.engine.as_ref().map(|engine| Timeline::of(engine, &[])).unwrap_or_default() }
    }
}
