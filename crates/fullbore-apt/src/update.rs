//! `fullbore update`: APT's indexes as `apt-get update` keeps them, by patches where that is faster.
//!
//! [`run`] goes through these steps:
//!
//! 1. fetch the Release of each source (`release`), and find the changed indexes (`wanted`);
//! 2. choose the fastest strategy for each of these (`strategy`);
//! 3. fetch patches and files from all sites in parallel (`files`), and rebuild each index as soon as its files have
//!    arrived (`rebuild`);
//! 4. sync once, and give the new names (`publish`).
//!
//! A source that fails keeps its files; the others continue.

mod files;
mod hooks;
mod publish;
mod rebuild;
mod release;
mod report;
mod repositories;
mod session;
mod settings;
mod strategy;
mod wanted;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File as OpenFile;
use std::io::BufReader;
use std::sync::Arc;

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::DiffIndex;
use fullbore_debian::path::PART_BYTES_MAX;
use fullbore_engine::digest::{Sha256, Sha256Hasher};
use fullbore_engine::files::Root;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Events, Phase};
use fullbore_engine::run::report::Report;
use fullbore_engine::units;
use fullbore_wire::fetch::Catalogue as _;
use fullbore_wire::run::RemoteFile;
use fullbore_wire::run::refusals::{self, Hosts};

use crate::lists::Defaults;
use crate::lists::languages;
use crate::lists::{Lock, LockError};
use crate::rewrite::{Expected, RewriteError};
use crate::system::sources::native_architecture;
use files::{Download, batches, of_release, partial};
use publish::{Publication, is_kept_as_fetched, kept_name};
use rebuild::{RebuildError, RebuildJob, RebuildPool};
use release::{OfferedRelease, Outcome};
use report::ReportBuilder;
use repositories::{Repositories, Repository, repositories};
use session::{Session, disk, file};
pub use settings::UpdateSettings;
use strategy::{Limits, Network, Patch, Strategy};
use wanted::{Present, Selected, WantedIndex, select};

/// Largest `diff/Index` read: 10,000 patches in all its lists.
const DIFF_INDEX_BYTES_MAX: u64 = 16 << 20;

/// apt's suffix for the name of an index's `diff/Index`.
const DIFF_INDEX_ENDING: &str = ".diff_Index";

/// Largest local index that is hashed, in bytes, if no Release has its hash.
const OLD_INDEX_BYTES_MAX: u64 = 64 << 30;

/// Brings a lists directory to the state of its sources, as `apt-get update` does.
///
/// # Errors
/// - [`ErrorKind::Usage`]: contradicting sources;
/// - [`ErrorKind::Locked`]: APT or another run works in the directory;
/// - [`ErrorKind::Partial`], [`ErrorKind::Network`], [`ErrorKind::Stale`], [`ErrorKind::Verification`]: a source failed;
/// - [`ErrorKind::Disk`], [`ErrorKind::Interrupted`].
///
/// A failed source keeps its previous indexes.
pub fn run(settings: &UpdateSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let root = Arc::new(Root::create(&settings.lists).map_err(file)?);
    let _lock = lock(&settings.lists)?;
    // As in apt, a failed command fails the update only at its end.
    let before = hook(settings, "APT::Update::Pre-Invoke");
    let mut result = refresh(settings, root, events);
    let some_succeeded = match &result {
        Ok(_) => true,
        Err(error) => error.report.as_ref().is_some_and(|report| report.summary.has_current_suite()),
    };
    let success = if some_succeeded { hook(settings, "APT::Update::Post-Invoke-Success") } else { Ok(()) };
    let after = hook(settings, "APT::Update::Post-Invoke");
    if let (Ok(report), Err(error)) = (&mut result, before.and(success).and(after)) {
        return Err(error.with_report(std::mem::take(report)));
    }
    result
}

fn hook(settings: &UpdateSettings, list: &str) -> Result<(), CommandError> {
    if settings.hooks { hooks::run(&settings.configuration, list) } else { Ok(()) }
}

/// The update between the commands of apt's configuration. The directory is locked.
fn refresh(settings: &UpdateSettings, root: Arc<Root>, events: &mut dyn Events) -> Result<Report, CommandError> {
    let mut report = ReportBuilder::new(settings, events);
    let names: Vec<OsString> = root.list("").map_err(file)?.into_iter().map(|(name, _)| name).collect();
    let languages = languages(&settings.configuration, &settings.locale, &names);
    let defaults = Defaults::new(&settings.configuration, native_architecture(), languages);
    let mut repositories = repositories(settings, &defaults)?;
    for mut failure in repositories.failures.drain(..) {
        failure.kind = ErrorKind::Partial;
        report.failed(failure);
    }
    let mut session = Session::open(settings, root, &repositories.sites)?;
    let stop = Stop::listen(&session.runtime);
    let walk = Run { settings, repositories: &repositories, present: Present::new(&names) };
    let result = walk.run(&mut session, &stop, &mut report, events);
    let ended = match &result {
        Ok(()) => session.close(),
        Err(_) => {
            session.break_off();
            Ok(())
        }
    };
    let result = result.and(ended).and_then(|()| report.verdict_on_failures());
    let report = report.report(&mut session);
    match result {
        Ok(()) => Ok(report),
        Err(error) => Err(error.with_report(report)),
    }
}

fn lock(lists: &std::path::Path) -> Result<Lock, CommandError> {
    Lock::take(lists).map_err(|error| match error {
        LockError::Held { .. } => CommandError::new(ErrorKind::Locked, &error)
            .hint("wait for the other `apt-get update` or `fullbore update` to end"),
        LockError::File { .. } => disk(&error).hint("apt's own lists can be changed by root only"),
    })
}

/// The update of one index.
struct IndexUpdate<'a> {
    index: &'a WantedIndex,
    way: Strategy,
    /// Forms of the whole file that failed.
    tried: Vec<Form>,
    /// Missing files before it can be rebuilt.
    open: usize,
    state: State,
    /// Whether a received file differs from its signed hash.
    is_wrong: bool,
}

impl<'a> IndexUpdate<'a> {
    fn new(index: &'a WantedIndex, way: Strategy) -> IndexUpdate<'a> {
        IndexUpdate { index, way, tried: Vec::new(), open: 0, state: State::Open, is_wrong: false }
    }
}

#[derive(Debug, PartialEq)]
enum State {
    /// Incomplete.
    Open,
    /// Complete in `partial/`, under its final name.
    Made,
    /// Failed, with the reason.
    Failed(String),
}

/// The inputs of all steps.
struct Run<'a> {
    settings: &'a UpdateSettings,
    repositories: &'a Repositories,
    present: Present,
}

impl Run<'_> {
    fn repository(&self, number: usize) -> &Repository {
        &self.repositories.all[number]
    }

    /// The steps, in order.
    fn run(
        &self,
        session: &mut Session,
        stop: &Stop,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let now = jiff::Timestamp::now().as_second();
        report.phase(events, session, Phase::Release);
        let all = &self.repositories.all;
        let mut warn = |line| report.warn(events, line);
        let outcomes = release::fetch(self.settings, session, all, now, stop, &mut warn)?;
        report.offered(all, &outcomes);
        stop.check()?;
        let (selected, mut failed) = self.select(&outcomes, report, events);
        let wanted: Vec<&WantedIndex> = selected.iter().flat_map(|selected| &selected.wanted).collect();
        report.indexes().current = selected.iter().map(|selected| selected.current.len() as u64).sum();

        report.phase(events, session, Phase::Indexes);
        let ways = self.ways(session, &wanted, stop, report, events)?;
        report.phase(events, session, Phase::Fetch);
        let mut updates: Vec<IndexUpdate<'_>> =
            wanted.iter().zip(ways).map(|(index, way)| IndexUpdate::new(index, way)).collect();
        self.fetch_and_build(session, &mut updates, stop, report, events)?;
        while self.choose_fallbacks(session, &mut updates, report, events) {
            self.fetch_and_build(session, &mut updates, stop, report, events)?;
        }
        stop.check()?;

        report.phase(events, session, Phase::Publish);
        self.judge(&updates, &mut failed, report);
        // apt keeps the index of the patches that it used.
        let by_patches = |update: &&IndexUpdate<'_>| matches!(update.way, Strategy::Patches(_));
        let mut publications = Vec::new();
        let mut numbers = Vec::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            let Ok(offered) = outcome else { continue };
            if failed.contains(&number) {
                continue;
            }
            let own = || updates.iter().filter(|update| update.index.repository == number);
            let made: Vec<&WantedIndex> = own().map(|update| update.index).collect();
            let patched: Vec<String> = own().filter(by_patches).map(|update| diff_index_name(update.index)).collect();
            numbers.push((number, !(offered.unchanged && made.is_empty())));
            publications.push(Publication {
                repository: self.repository(number),
                offered,
                made,
                patched,
                current: &selected[number].current,
                emptied: &selected[number].emptied,
            });
        }
        publish::publish(session, &publications, &self.present)?;
        for (number, changed) in numbers {
            report.published(events, number, changed);
        }
        publish::sweep(session)?;
        if self.settings.clean {
            report.phase(events, session, Phase::Clean);
            let failed = failed.iter().map(|number| self.repository(*number).prefix.as_str());
            let left: Vec<&str> = failed.chain(self.repositories.left_to_apt.iter().map(String::as_str)).collect();
            publish::clean(session, &publications, &left, &mut |files| report.deleted(files))?;
        }
        Ok(())
    }

    /// The changes of each repository, and the repositories that cannot be updated.
    fn select(
        &self,
        outcomes: &[Outcome],
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> (Vec<Selected>, BTreeSet<usize>) {
        let mut failed = BTreeSet::new();
        let mut all = Vec::new();
        for line in &self.repositories.warnings {
            report.warn(events, line.clone());
        }
        for (number, outcome) in outcomes.iter().enumerate() {
            let pdiffs = self.settings.pdiffs;
            let selected = outcome.as_ref().map_err(copy).and_then(|offered: &OfferedRelease| {
                select(number, self.repository(number), offered, &self.present, pdiffs)
            });
            match selected {
                Ok(selected) => {
                    selected.warnings.iter().for_each(|line| report.warn(events, line.clone()));
                    all.push(selected);
                }
                Err(error) => {
                    report.failed(error);
                    failed.insert(number);
                    all.push(Selected::default());
                }
            }
        }
        (all, failed)
    }

    /// Fetches the indexes of patches, and finds the fastest strategy for each index.
    fn ways(
        &self,
        session: &mut Session,
        wanted: &[&WantedIndex],
        stop: &Stop,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<Vec<Strategy>, CommandError> {
        let mut files = Vec::new();
        for (number, index) in wanted.iter().enumerate() {
            let Some(entry) = &index.diff_index else { continue };
            let own = self.repository(index.repository);
            let file = of_release(own, entry, index.by_hash, &diff_index_name(index));
            files.push(Download { site: own.site, index: number, file });
        }
        report.planned(events, &files);
        let mut fetched = vec![None; wanted.len()];
        if !files.is_empty() {
            let (batches, indexes) = batches(files, session.sites.len());
            session.fetch(&batches, stop, events, &mut |batch, item| {
                let target = batches[batch].files.0[item as usize].target.clone();
                fetched[indexes[batch][item as usize]] = Some(target);
            })?;
        }
        let network = self.network(session);
        let limits = Limits::of(&self.settings.configuration);
        let mut ways = Vec::new();
        for (index, path) in wanted.iter().zip(fetched) {
            let whole = strategy::whole(&index.forms, &[], index.plain.map(|(size, _)| size), network);
            let patched = match path.map(|path| self.patched(session, index, &path)) {
                Some(Ok(ways)) => ways,
                Some(Err(why)) => {
                    let own = self.repository(index.repository).shown();
                    report.warn(events, format!("{own}: {}: no patches: {why}", index.meta_key));
                    Vec::new()
                }
                None => Vec::new(),
            };
            let size = index.plain.map_or(0, |(size, _)| size);
            let best = strategy::best(patched, whole, size, network, limits);
            let best = best.ok_or_else(|| CommandError::new(ErrorKind::Internal, "an index without a form"))?;
            let (own, bytes) = (self.repository(index.repository).shown(), units::bytes(best.bytes()));
            tracing::info!("{own}: {}: {best}, {bytes}", index.meta_key);
            ways.push(best);
        }
        Ok(ways)
    }

    /// The strategies of an index's `diff/Index`.
    fn patched(&self, session: &Session, index: &WantedIndex, path: &str) -> Result<Vec<Strategy>, String> {
        let text = session.root.read(path, DIFF_INDEX_BYTES_MAX).map_err(|error| error.to_string())?;
        let diff_index = DiffIndex::parse(text.unwrap_or_default().as_slice()).map_err(|error| error.to_string())?;
        let (sha256, size) = diff_index.current;
        if index.plain != Some((size, sha256)) {
            return Err("they lead to another state than the Release names".to_owned());
        }
        let Some(old) = &index.old else { return Ok(Vec::new()) };
        let state = match old.plain {
            Some(state) => state,
            // Its Release is gone: hash the file.
            None => state_of(session, &old.file, old.form).map_err(|error| format!("{}: {error}", old.file))?,
        };
        let mut ways = strategy::patched(&diff_index, state);
        // The name of a patch together with its index's may be too long.
        ways.retain(|way| match way {
            Strategy::Patches(patches) => patches.iter().all(|patch| patch_name(index, patch).len() <= PART_BYTES_MAX),
            Strategy::Whole(..) => true,
        });
        Ok(ways)
    }

    /// The measured network of the fastest site.
    fn network(&self, session: &Session) -> Network {
        let mut network = Network::UNKNOWN;
        let rtts = session.sites.iter().flat_map(|site| site.fetcher.hosts()).filter_map(|host| host.rtt);
        if let Some(rtt) = rtts.min() {
            network.rtt_s = rtt.as_secs_f64();
            // A near host is fast: on loopback or in a data centre only decompression counts.
            if network.rtt_s < 0.002 {
                network.bytes_per_s = 125e6;
            }
        }
        if let Some(rate) = self.settings.network.limit_rate_bytes_per_s {
            network.bytes_per_s = network.bytes_per_s.min(rate as f64);
        }
        network
    }

    /// Fetches the files of open updates, and rebuilds indexes as soon as their files are there.
    fn fetch_and_build(
        &self,
        session: &mut Session,
        updates: &mut [IndexUpdate<'_>],
        stop: &Stop,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let mut files = Vec::new();
        for (number, update) in updates.iter_mut().enumerate().filter(|(_, update)| update.state == State::Open) {
            let own = self.files(update);
            update.open = own.len();
            let site = self.repository(update.index.repository).site;
            files.extend(own.into_iter().map(|file| Download { site, index: number, file }));
        }
        if files.is_empty() {
            return Ok(());
        }
        report.planned(events, &files);
        session.renew(self.settings, &self.repositories.sites)?;
        let pool = RebuildPool::open(&session.ledger, self.settings.level)?;
        let jobs = pool.jobs();
        let (batches, owners) = batches(files, session.sites.len());
        let lists = self.settings.lists.as_path();
        let fetched = session.fetch(&batches, stop, events, &mut |batch, item| {
            let number = owners[batch][item as usize];
            let update = &mut updates[number];
            update.open -= 1;
            if update.open > 0 {
                return;
            }
            match rebuild_job(number, update, lists) {
                Some(job) => drop(jobs.send(job)),
                None => update.state = State::Made,
            }
        });
        drop(jobs);
        // Also after a failure: no thread may write after the return.
        let made = pool.close();
        for (batch, fetched) in fetched?.into_iter().enumerate() {
            for given_up in fetched.given_up {
                let update = &mut updates[owners[batch][given_up.item as usize]];
                let path = batches[batch].files.path(given_up.item);
                let hosts = Hosts::of(&session.sites[batches[batch].site].fetcher.hosts());
                update.is_wrong |= refusals::is_wrong(&given_up);
                update.state = State::Failed(match given_up.missing {
                    true => format!("{path} is missing"),
                    false => format!("cannot fetch {path}: {}", hosts.why(&given_up)),
                });
            }
        }
        for (number, result) in made {
            let update = &mut updates[number];
            match result {
                Ok(()) => update.state = State::Made,
                Err(RebuildError::Rewrite(error)) if out_of_space(&error) => return Err(disk(&error)),
                Err(error) => {
                    // A verified file whose plain content is not as in the Release.
                    update.is_wrong |= matches!(update.way, Strategy::Whole(..))
                        && matches!(
                            error,
                            RebuildError::Rewrite(RewriteError::Mismatch { .. } | RewriteError::Read { .. })
                        );
                    update.state = State::Failed(error.to_string());
                }
            }
        }
        Ok(())
    }

    /// The files of an update.
    fn files(&self, update: &IndexUpdate<'_>) -> Vec<RemoteFile> {
        let index = update.index;
        let own = self.repository(index.repository);
        match &update.way {
            Strategy::Whole(form, entry) => {
                let name = format!("{}{}", index.name, form.extension());
                vec![of_release(own, entry, index.by_hash, &name)]
            }
            Strategy::Patches(patches) => patches
                .iter()
                .map(|patch| RemoteFile {
                    path: format!("{}{}.diff/{}", own.directory, index.meta_key, patch.download.name),
                    other_path: None,
                    target: partial(&patch_name(index, patch)),
                    size: patch.download.size,
                    sha256: patch.download.sha256,
                })
                .collect(),
        }
    }

    /// Chooses the whole file after failed patches, and another form after a failed file. Says whether any is left.
    fn choose_fallbacks(
        &self,
        session: &Session,
        updates: &mut [IndexUpdate<'_>],
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> bool {
        let network = self.network(session);
        let mut any = false;
        for update in updates.iter_mut() {
            let State::Failed(why) = &update.state else { continue };
            if let Strategy::Whole(form, _) = &update.way {
                update.tried.push(*form);
            }
            let (index, size) = (update.index, update.index.plain.map(|(size, _)| size));
            let Some(way) = strategy::whole(&index.forms, &update.tried, size, network) else { continue };
            let instead = match (&update.way, &way) {
                (Strategy::Patches(_), _) => "it is fetched whole".to_owned(),
                (_, Strategy::Whole(form, _)) => format!("it is fetched as {form}"),
                _ => continue,
            };
            let own = self.repository(index.repository).shown();
            report.warn(events, format!("{own}: {}: {why}; {instead}", index.meta_key));
            (update.way, update.state, any) = (way, State::Open, true);
        }
        any
    }

    /// Counts rebuilt indexes, and finds the incomplete repositories.
    fn judge(&self, updates: &[IndexUpdate<'_>], failed: &mut BTreeSet<usize>, report: &mut ReportBuilder) {
        // One failure per repository is reported; wrong content says more than a missing file.
        let (wrong, others): (Vec<_>, Vec<_>) = updates.iter().partition(|update| update.is_wrong);
        for update in wrong.into_iter().chain(others) {
            match (&update.state, &update.way) {
                (State::Made, Strategy::Patches(patches)) => {
                    report.indexes().patched += 1;
                    report.indexes().patches += patches.len() as u64;
                }
                (State::Made, Strategy::Whole(..)) => report.indexes().whole += 1,
                (state @ (State::Failed(_) | State::Open), _) => {
                    let why = match state {
                        State::Failed(why) => why,
                        _ => "not all files were received",
                    };
                    report.indexes().failed += 1;
                    if failed.insert(update.index.repository) {
                        let own = self.repository(update.index.repository);
                        let kind = if update.is_wrong { ErrorKind::Verification } else { ErrorKind::Partial };
                        let error = CommandError::new(kind, format_args!("{}: {why}", own.shown()));
                        report.failed(
                            error
                                .context("its indexes stay as they were")
                                .hint("the mirror may be half-way through an update: run again later"),
                        );
                    }
                }
            }
        }
    }
}

/// The name of an index's `diff/Index`, as apt has it.
fn diff_index_name(index: &WantedIndex) -> String {
    format!("{}{DIFF_INDEX_ENDING}", index.name)
}

/// The name of a patch in `partial/`, as apt has it.
fn patch_name(index: &WantedIndex, patch: &Patch) -> String {
    format!("{}.ed.{}", index.name, patch.download.name)
}

/// The job for received files; `None` if the file is kept as fetched.
fn rebuild_job(number: usize, update: &IndexUpdate<'_>, lists: &std::path::Path) -> Option<RebuildJob> {
    let index = update.index;
    let expected = index.plain.map(|(size, sha256)| Expected { size, sha256 });
    let new = lists.join(partial(&kept_name(index)));
    match &update.way {
        Strategy::Whole(form, _) if is_kept_as_fetched(index, *form) => None,
        Strategy::Whole(form, _) => Some(RebuildJob {
            number,
            old: lists.join(partial(&format!("{}{}", index.name, form.extension()))),
            old_form: *form,
            patches: Vec::new(),
            new,
            new_form: index.stored_form,
            expected,
        }),
        Strategy::Patches(patches) => {
            let old = index.old.as_ref()?;
            let file = |patch: &Patch| (patch.clone(), lists.join(partial(&patch_name(index, patch))));
            Some(RebuildJob {
                number,
                old: lists.join(&old.file),
                old_form: old.form,
                patches: patches.iter().map(file).collect(),
                new,
                new_form: index.stored_form,
                expected,
            })
        }
    }
}

/// Size and hash of the plain content of a file in the lists directory.
fn state_of(session: &Session, name: &str, form: Form) -> std::io::Result<(u64, Sha256)> {
    let input = BufReader::with_capacity(1 << 18, OpenFile::open(session.root.path().join(name))?);
    let mut reader = Reader::open(form, input, OLD_INDEX_BYTES_MAX)?;
    let mut hasher = Sha256Hasher::new();
    hasher.read_to_end(&mut reader)?;
    Ok((hasher.bytes(), hasher.finish()))
}

fn out_of_space(error: &crate::rewrite::RewriteError) -> bool {
    matches!(error, crate::rewrite::RewriteError::Write(error) if error.is_out_of_space())
}

/// A copy of an error, for the report.
fn copy(error: &CommandError) -> CommandError {
    let mut copy = CommandError::new(error.kind, &error.message);
    copy.context = error.context.clone();
    copy.hints = error.hints.clone();
    copy
}
