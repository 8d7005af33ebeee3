//! `fullbore mirror`: mirrors one archive from several servers into a directory or a bucket.
//!
//! [`run`] goes through these steps:
//!
//! 1. fetch the signed Releases (`offer`) and their indexes (`indexes`), which make the plan;
//! 2. subtract the present files from the plan (`pool`), and fetch the missing ones (`fetch_files`);
//! 3. sync once, and give the new names (`publish`);
//! 4. write the state (`commit`) and the trace files, and delete expired files (`clean`).
//!
//! No published name changes before all content is verified and on disk.

mod alternatives;
pub(crate) mod batch;
pub(crate) mod bucket;
mod cache;
mod cached_release;
pub(crate) mod clean;
mod commit;
pub(crate) mod directories;
mod dry_run;
mod fetch_files;
mod filter;
mod fingerprint;
pub mod fleet;
mod free_space;
pub(crate) mod hash_files;
mod hold_back;
pub(crate) mod index_reader;
mod indexes;
pub(crate) mod layout;
pub(crate) mod links;
mod local_release;
pub(crate) mod lock;
pub(crate) mod membership;
mod merge_sources;
pub(crate) mod offer;
pub(crate) mod other_suites;
pub(crate) mod plan;
mod pool;
mod publish;
mod records;
mod replaced;
pub(crate) mod report;
pub(crate) mod retention;
pub(crate) mod select;
pub(crate) mod session;
pub(crate) mod signed_files;
pub(crate) mod sizes;
pub(crate) mod snapshot;
pub(crate) mod state;
pub(crate) mod store;
pub(crate) mod subtract;
pub(crate) mod trace_files;
pub(crate) mod tree;
mod upstream;
pub mod work;

use std::collections::BTreeMap;
use std::sync::Arc;

use fullbore_engine::durability::Durability;
use fullbore_engine::files::Root;
use fullbore_engine::machine::boot_id;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::{Events, Phase};
use fullbore_engine::run::report::Report;
use fullbore_engine::stage::Ledger;
use fullbore_engine::units;
use fullbore_wire::url::without_credentials;

use crate::settings::{Clean, MirrorSettings};
use bucket::{Abandoned, BucketMirror};
use commit::{Commit, PathSet, SuiteUpdate};
use directories::Directories;
use fetch_files::FetchResult;
use indexes::SuiteIndexes;
use layout::is_of_snapshots;
use lock::take_lock;
use membership::{Departure, SuiteId};
use offer::{OfferedSuite, Offers};
use other_suites::OtherSuites;
use plan::{FileId, Plan};
use pool::FetchPlan;
use publish::{Publication, StoredFile};
use replaced::{Failure, Replaced};
use report::ReportBuilder;
use select::{Selection, within_indexes};
use session::{Session, disk};
use signed_files::NestedSuites;
use snapshot::SnapshotError;
use state::{Conflict, ReleaseChange, State, SuiteRecord};
use subtract::{FileSet, LoggedFile, Tally};
use tree::Tree;
use work::pins::{self, Pins};

/// Maximum number of rounds of one run while pushes keep reporting that the archive has changed.
const ROUNDS_MAX: u32 = 3;

/// Makes or updates a mirror of one archive.
///
/// # Errors
/// - [`ErrorKind::Usage`]: an address, a snapshot name or a selection that the archive does not have;
/// - [`ErrorKind::Locked`]: another run works in the directory;
/// - [`ErrorKind::Network`], [`ErrorKind::Stale`], [`ErrorKind::Verification`]: no usable Release or index;
/// - [`ErrorKind::Partial`]: some files are missing, or the delete guard refused;
/// - [`ErrorKind::Disk`]: a file cannot be read or written, or the disk is too small;
/// - [`ErrorKind::Interrupted`]: a signal.
///
/// The previously published tree stays intact.
pub fn run(settings: &MirrorSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    attempt(settings, events).map_err(|error| error.within(&settings.dir))
}

fn attempt(settings: &MirrorSettings, events: &mut dyn Events) -> Result<Report, CommandError> {
    let (directories, _lock) = if let Some(store) = &settings.store {
        let suites: Vec<&str> = settings.sources.iter().flat_map(|source| &source.suites).map(String::as_str).collect();
        suites.iter().try_for_each(|suite| is_no_snapshot(suite))?;
        let bucket = BucketMirror::open(store, &suites, &Ledger::off())?;
        (Directories::of_bucket(bucket), None)
    } else if settings.dry_run {
        // Without a lock: a dry run writes nothing, and may lack the permission.
        let directories = Directories::untouched(&settings.dir, &std::env::temp_dir()).map_err(|error| disk(&error))?;
        (directories, None)
    } else {
        let root = Arc::new(Root::create(&settings.dir).map_err(|error| disk(&error))?);
        let lock = take_lock(&root)?;
        (Directories::of(root), Some(lock))
    };
    snapshot_name_is_free(settings, &directories)?;
    let mut report = ReportBuilder::new(settings, events);
    settings.notes.iter().for_each(|note| report.warn(events, note.clone()));
    let mut session =
        Session::open(directories, &settings.origins, settings.origin_only, &settings.network, settings.durability)?;
    let stop = Stop::listen(&session.runtime);
    let bucket = session.directories.bucket.clone();
    if let Some(bucket) = &bucket {
        bucket.stop_with(stop.watch());
    }
    let mut result = walk_with_others(settings, &mut session, &stop, &mut report, events);
    for _ in 1..ROUNDS_MAX {
        // A push arrived during this round, so its result may be outdated already (ftpsync). Buckets get no pushes.
        let done = !settings.publishes() || bucket.is_some() || result.is_err();
        if done || !trace_files::take_update_required(&*session.tree, &report.host).unwrap_or(false) {
            break;
        }
        result = walk_with_others(settings, &mut session, &stop, &mut report, events);
    }
    let result = result.and(snapshot_of(settings, &session, &mut report, events));
    session.site.fetcher.halt();
    let ended = session.site.landing.finish().map_err(|error| disk(&error));
    let unreleased = bucket.as_ref().and_then(|bucket| bucket.release());
    if let Some(reason) = unreleased.filter(|_| result.is_ok()) {
        report.warn(events, format!("the lock of the mirror was not given back: {reason}"));
    }
    let mut report = report.report(&mut session);
    if let Some(bucket) = &bucket {
        report.summary.verdict = bucket.judge(report.summary.verdict.take(), report.summary.totals.written_bytes);
    }
    let explain = |error| match &bucket {
        Some(bucket) => bucket.explain(error),
        None => error,
    };
    let result = result.and(ended).map_err(explain);
    match result {
        Ok(()) => Ok(report),
        Err(error) if settings.dry_run && error.kind == ErrorKind::Interrupted => {
            Err(CommandError::new(error.kind, "interrupted; a dry run changes nothing").with_report(report))
        }
        Err(error) => Err(error.with_report(report)),
    }
}

/// In a bucket, refuses a suite that would be published among the snapshots and damage them.
fn is_no_snapshot(suite: &str) -> Result<(), CommandError> {
    let directory = match suite.ends_with('/') {
        true => suite.trim_start_matches("./").trim_end_matches('/').to_owned(),
        false => format!("dists/{suite}"),
    };
    if !is_of_snapshots(&directory) {
        return Ok(());
    }
    Err(CommandError::usage(format_args!(
        "suite {suite}: in a bucket, dists/snapshots has the snapshots of the mirror"
    ))
    .hint("mirror this suite into a directory"))
}

/// Runs one round. If the archive replaced a file that a suite of another run also names, another round includes that
/// suite.
fn walk_with_others(
    settings: &MirrorSettings,
    session: &mut Session,
    stop: &Stop,
    report: &mut ReportBuilder,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    let mut settings = settings.clone();
    let mut outcome = walk(&settings, session, stop, report, events);
    // Each further round includes one more suite that the state knows.
    let mut added: Option<String> = None;
    while let Err(Failure::Replaced(replaced)) = outcome {
        let Replaced { path, suite, source: Some(source), .. } = *replaced else {
            // The added suite could not be used.
            return Err(added.into_iter().fold(replaced.error, CommandError::context));
        };
        report.warn(
            events,
            format!("{path} was replaced, and {suite} names it as well: {suite} is mirrored in this run, too"),
        );
        settings = replaced::with_suite(&settings, source, &suite);
        let text = added.insert(format!("{suite} was added because it names {path}, which was replaced"));
        outcome = walk(&settings, session, stop, report, events).map_err(|failure| match failure {
            Failure::Other(why) => Failure::Other(why.context(text)),
            replaced => replaced,
        });
    }
    outcome.map_err(Failure::into_command)
}

/// Runs the steps of one round, in order.
fn walk(
    settings: &MirrorSettings,
    session: &mut Session,
    stop: &Stop,
    report: &mut ReportBuilder,
    events: &mut dyn Events,
) -> Result<(), Failure> {
    let now = jiff::Timestamp::now().as_second();
    let (own, tree) = (session.own.clone(), session.tree.clone());
    report.complete = false;
    let mut state = State::open(&own, &boot_id()).map_err(CommandError::from)?;
    if let (None, Some(recorded)) = (&session.directories.bucket, &state.header.mirror) {
        let text = format_args!("the state is that of the mirror {recorded}, not of this directory");
        return Err(Failure::Other(
            CommandError::usage(text).hint("give the mirror in the bucket a --state of its own"),
        ));
    }
    if let Some(reason) = state.lost.take() {
        report.warn(events, format!("{reason}; files on the disk are read again instead of fetched"));
    }
    report.holds(&state.header);

    report.phase(events, session, Phase::Release);
    let Offers { suites: offers, refused: unusable } =
        offer::fetch(settings, session, &state, now, stop, &mut |line| report.warn(events, line))?;
    report.offered(&offers);
    if offers.iter().any(|offer| offer.overtaken) {
        state.overtaken = true;
        // Files of a deletion that was begun may be wanted again.
        if state.header.removal == state::Removal::Begun {
            state.header.removal = state::Removal::None;
        }
    }
    let due = settings.keep.clean != Clean::Nothing && state.header.clean_due.is_some_and(|due| due <= now);
    let news = |offer: &OfferedSuite| {
        // A plan is finished even if another run has already published its Release.
        let is_finished = settings.finish.is_some();
        let is_to_be_mended = state.suite(&offer.layout.directory).is_some_and(|suite| suite.mend_until.is_some());
        let is_asked_for = due || is_finished || is_to_be_mended || settings.keep.clean == Clean::Untracked;
        offer.change != ReleaseChange::Unchanged || is_asked_for
    };
    let mut offers: Vec<OfferedSuite> = offers.into_iter().filter(|offer| news(offer)).collect();
    if offers.is_empty() {
        report.complete = unusable.is_empty();
        if let Some(bucket) = session.directories.bucket.as_ref().filter(|_| settings.pin) {
            report.pinned(events, &pins::pin_nothing(settings, bucket, now)?, Tally::default());
        }
        return Ok(report.refused(unusable)?);
    }
    let directories: Vec<String> = offers.iter().map(|offer| offer.layout.directory.clone()).collect();
    if let Some(bucket) = &session.directories.bucket {
        let of_run: Vec<&str> = directories.iter().map(String::as_str).collect();
        if settings.publishes() {
            bucket.lock(&report.host)?;
        }
        bucket.prepare(&of_run, Abandoned::Remove)?;
        bucket.note_takeover(&mut state)?;
    }
    let mut pins = match &session.directories.bucket {
        Some(bucket) if !settings.pin => {
            Pins::read(bucket, settings.finish.as_ref(), &mut |line| report.warn(events, line))?
        }
        _ => Pins::default(),
    };
    for (offer, outer) in offers.iter_mut().zip(&directories) {
        let of_run = directories.iter().map(String::as_str);
        let mut inner = NestedSuites::new(&*tree, outer, &state.header.suites, of_run);
        inner.leave_out(&mut offer.release).map_err(|error| disk(&error))?;
    }
    session.site.fetcher.warm(settings.publishes());

    report.phase(events, session, Phase::Indexes);
    if settings.publishes() {
        if settings.keep.clean != Clean::Nothing {
            clean::remove_expired(&own, &*tree, &mut state, || sync(session))?;
        }
        state.begin(&own, offers.iter().any(|offer| !offer.signed)).map_err(CommandError::from)?;
        session.destination.save().map_err(|error| disk(&error))?;
    }
    let _changing = settings.publishes().then(|| InProgress::mark(&tree, report, events));
    let side = offer::ask_for_side_files(settings, session, &offers);
    let above = settings.publishes().then(|| upstream::ask(session));
    let (mut refused, mut absent) = (Vec::new(), Vec::new());
    let mut suites = indexes::select(&offers, session, &mut refused, &mut absent)?;
    let mut left_out = report.absent(events, absent);
    let mut refusals = indexes::fetch(&offers, &mut suites, session, stop, events)?;
    if settings.ignore_missing {
        left_out.extend(indexes::ignore_absent(&offers, &mut suites, &refusals, session));
    }
    refused.extend(indexes::unreadable_suites(&offers, &suites, &refusals));
    if let Some(cache) = session.directories.bucket.as_ref().and_then(|bucket| bucket.cache.as_ref())
        && let Err(error) = cache.keep(&own, &indexes::read_ones(&suites), now)
    {
        report.warn(events, format!("the cache of indexes was not written: {error}"));
    }
    session.site.fetcher.warm(false);

    report.phase(events, session, Phase::Plan);
    let directories: Vec<&str> = directories.iter().map(String::as_str).collect();
    let ids = state.number_suites(&directories);
    let planned = indexes::plan(settings, &offers, &suites, &ids, refused, session, stop, events)?;
    let indexes::Planned { plan, left_out: odd, refused } = planned;
    if refused.len() == offers.len() {
        // Nothing is left to publish.
        let errors = refused.into_iter().map(|(_, error)| error).chain(unusable);
        let error = offer::together(errors.collect()).expect("there is an offer, and each has an error");
        return Err(error.context(offer::NOTHING_PUBLISHED).into());
    }
    let plan = Arc::new(plan);
    left_out.extend(odd);
    if plan.is_empty() && !settings.filters.is_empty() {
        report.warn(events, "the filters exclude every file: only indexes are mirrored".to_owned());
    }
    let signed: Vec<(SuiteId, bool)> = ids.iter().copied().zip(offers.iter().map(|offer| offer.signed)).collect();
    let in_conflict = |conflict: &Conflict| Failure::of(conflict, settings, &offers);
    let warn = &mut |line| report.warn(events, line);
    // A worker may have stored these files and then died. Its credentials may differ, so their content is compared.
    let stored = pins.stored_files(&*tree)?;
    session.logged.extend(stored.into_iter().map(|file| (file, false)));
    let mut wanted = pool::need(&plan, &state, session, &signed, &in_conflict, stop, warn)?;
    let is_damaged = wanted.subtraction.damage.is_some();
    let skipped = wanted.skipped_images.clone();
    let run_of = |offers, suites| Run {
        settings,
        plan: &plan,
        offers,
        suites,
        ids: &ids,
        refused: &refused,
        pins: &pins,
        is_damaged,
        skipped: &skipped,
        now,
    };
    let others = indexes::missing(&offers, &suites, false);
    let space = pool::free_space(&wanted, &others, session)?;
    if let Some(bucket) = session.directories.bucket.clone().filter(|_| settings.pin) {
        report.planned(events, &plan, &wanted, &others, &space, Tally::default());
        let (run, missing) = pins::pin(settings, &bucket, &plan, &wanted, &state, now)?;
        report.pinned(events, &run, missing);
        report.refused(refused.into_iter().map(|(_, error)| error).chain(unusable).collect())?;
        return Ok(report.left_out(left_out)?);
    }
    if settings.dry_run {
        suites.iter_mut().for_each(SuiteIndexes::all_came);
        offer::take_side_files(side, session, stop, &mut offers)?;
        let run = run_of(&offers, &suites);
        run.note_damage(&mut state, &|place| !run.is_refused(place));
        let deletions = run.preview(session, &state, &mut wanted, report, events)?;
        report.planned(events, &plan, &wanted, &others, &space, Tally::of(&deletions));
        report.would_delete(events, deletions);
        report.refused(refused.into_iter().map(|(_, error)| error).chain(unusable).collect())?;
        return Ok(report.left_out(left_out)?);
    }
    report.planned(events, &plan, &wanted, &others, &space, Tally::default());
    space.check().map_err(|error| pool::no_space(&error, session.directories.bucket.is_some()))?;

    report.phase(events, session, Phase::Fetch);
    if let (Some(fleet), Some(bucket)) = (&settings.fleet, session.directories.bucket.clone()) {
        let shared = fleet::share::Shared { fleet, settings, bucket: &bucket, plan: &plan };
        shared.store(&mut wanted, session, stop, report, events)?;
    }
    let ignore_missing = settings.ignore_missing;
    let mut result =
        fetch_files::fetch(&plan, &mut wanted, others, &mut refusals, ignore_missing, session, stop, events)?;
    for sha256 in &result.indexes {
        suites.iter_mut().for_each(|suite| suite.received(*sha256));
    }
    left_out.append(&mut result.ignored);
    if ignore_missing {
        left_out.extend(indexes::ignore_absent(&offers, &mut suites, &refusals, session));
    }
    let lacking = indexes::lacking(&offers, &suites, &refusals);
    result.is_absent |= lacking.iter().any(|(_, is_wrong)| !is_wrong);
    result.lack(lacking);
    report.wrong_forms(events, indexes::wrong_forms(&offers, &suites, &refusals));
    offer::take_side_files(side, session, stop, &mut offers)?;
    stop.check()?;

    report.phase(events, session, Phase::Sync);
    session.site.landing.checkpoint().map_err(|error| disk(&error))?;

    report.phase(events, session, Phase::Publish);
    let run = run_of(&offers, &suites);
    let held = run.hold_back(&*tree, &state, &wanted.subtraction, &mut result)?;
    run.note_damage(&mut state, &|place| run.is_complete(place, &result));
    run.publish(session, state, wanted, &result, report, events)?;
    report.complete = unusable.is_empty() && (0..offers.len()).all(|position| run.is_complete(position, &result));
    run.finish(session, above, report, events);
    if let Some(bucket) = session.directories.bucket.as_ref().filter(|_| report.complete) {
        bucket.unpin(pins.ended())?;
    }
    let mut errors: Vec<CommandError> = refused.into_iter().map(|(_, error)| error).chain(unusable).collect();
    if let Some(last) = errors.pop() {
        errors.push(held.iter().fold(last, CommandError::context));
    }
    report.refused(errors)?;
    result.missing.extend(held);
    report.missing(result.missing, result.why, result.is_absent)?;
    Ok(report.left_out(left_out)?)
}

/// Inputs of publishing that all steps share.
struct Run<'a> {
    settings: &'a MirrorSettings,
    plan: &'a Plan,
    offers: &'a [OfferedSuite],
    suites: &'a [SuiteIndexes],
    ids: &'a [SuiteId],
    /// Suites that cannot be published, by their place among the offers.
    refused: &'a [(usize, CommandError)],
    /// Plans of unfinished runs, which workers may be using.
    pins: &'a Pins,
    /// Whether the state's list could not be read to its end.
    is_damaged: bool,
    /// Installer images that no mirror has, in order.
    skipped: &'a [FileId],
    now: i64,
}

impl Run<'_> {
    /// Publishes the complete suites, commits the state, deletes expired files.
    fn publish(
        &self,
        session: &Session,
        state: State,
        mut wanted: FetchPlan,
        result: &FetchResult,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> Result<(), CommandError> {
        let (own, tree, was_killed) = (&session.own, &*session.tree, state.marked);
        let complete = |position: usize| self.is_complete(position, result);
        let mut publications = Vec::new();
        for position in (0..self.offers.len()).filter(|position| complete(*position)) {
            publications.push(self.publication(session, position)?);
        }
        publish::check(&publications, self.plan).map_err(|error| CommandError::new(ErrorKind::Verification, error))?;
        let is_published = |suite: &SuiteId| publications.iter().any(|one| one.id == *suite);
        let (replaced, waiting): (Vec<FileId>, Vec<FileId>) = wanted
            .subtraction
            .replacements(self.plan)
            .partition(|id| self.plan.file(*id).suites.iter().any(is_published));
        // The paths of these files still hold the old content.
        waiting.into_iter().for_each(|id| wanted.subtraction.done.remove(id));
        let mut names = publish::names(tree, &publications, &state.header.suites, self.plan, replaced)
            .map_err(|error| disk(&error))?;
        publish::keep_what_others_name(&mut names, own, &state, &publications)?;
        session.sync.device(|| session.destination.publish(&names)).map_err(|error| disk(&error))?;
        let left = session.directories.bucket.as_ref().map(|bucket| bucket.tree.take_left()).unwrap_or_default();
        for directory in left {
            report.warn(events, format!("{directory} is another program's directory: it stays, and is not an alias"));
        }

        let (foreign, clean) = self.others(tree, &state, &complete, report, events);
        let named_elsewhere =
            |path: &str| self.pins.names(path) || foreign.as_ref().is_none_or(|foreign| foreign.names(path));
        let orphans = wanted.subtraction.orphans;
        let commit =
            self.commit(session, &state, &wanted.subtraction.done, orphans, &publications, &complete, &named_elsewhere);
        let mut pending = commit::write(Commit { knows_others: foreign.is_some(), ..commit })?;
        let mut untracked = Vec::new();
        if clean {
            if self.settings.keep.clean == Clean::Untracked {
                untracked = self.untracked(tree, &pending.paths, &pending.state.header.suites, &named_elsewhere)?;
                self.tell_of_adopted(&pending.state.header.suites, report, events);
            }
            if let Err(error) = pending.allow_removal(&self.settings.keep.guard, Tally::of(&untracked)) {
                untracked.clear();
                report.guarded(events, &error);
            }
        } else {
            pending.put_off_removal();
        }
        let mut state = pending.publish(own, || sync(session))?;
        report.holds(&state.header);
        for publication in &publications {
            report.published(events, &publication.layout.directory);
        }
        session.journal.compact().map_err(|error| disk(&error))?;

        report.phase(events, session, Phase::Clean);
        let removed = clean::remove_expired(own, tree, &mut state, || sync(session))?;
        report.deleted(removed);
        report.deleted(clean::remove_untracked(tree, &untracked).map_err(|error| disk(&error))?);
        clean::stale_parts(own, &session.journal.unfinished(), self.plan).map_err(|error| disk(&error))?;
        if was_killed {
            clean::abandoned_parts(own, self.plan, &wanted.subtraction.done).map_err(|error| disk(&error))?;
        }
        store::sweep(own).map_err(|error| disk(&error))?;
        snapshot::sweep(own).map_err(|error| disk(&error))?;
        session.destination.save().map_err(|error| disk(&error))?;
        Ok(())
    }

    /// Notes, after damage of the list, which suites it does not list completely: all but the published ones.
    fn note_damage(&self, state: &mut State, published: &dyn Fn(usize) -> bool) {
        if self.is_damaged {
            let published = (0..self.ids.len()).filter(|place| published(*place)).map(|place| self.ids[place]);
            state.forget_files_of_others(&published.collect::<Vec<_>>());
        }
    }

    /// Finds the suites of other tools in the directory. Also returns whether files may be deleted, which an unreadable
    /// suite forbids. A suite that this run does not publish still belongs to its tool.
    fn others(
        &self,
        tree: &dyn Tree,
        state: &State,
        published: &dyn Fn(usize) -> bool,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) -> (Option<OtherSuites>, bool) {
        let of_run = self.offers.iter().enumerate().filter(|(place, _)| published(*place));
        let ours: Vec<String> = of_run.map(|(_, offer)| offer.layout.directory.clone()).collect();
        let may_clean = self.settings.keep.clean != Clean::Nothing;
        match other_suites::read(tree, state, &ours) {
            Ok(foreign) => (Some(foreign), may_clean),
            Err(error) => {
                if may_clean {
                    report.warn(events, format!("{error}: nothing is deleted"));
                }
                (None, false)
            }
        }
    }

    /// Finds untracked files to delete: none while clients of an earlier, unknown state may still need them.
    fn untracked(
        &self,
        tree: &dyn Tree,
        known: &PathSet,
        suites: &[SuiteRecord],
        named_elsewhere: &dyn Fn(&str) -> bool,
    ) -> Result<Vec<(String, u64)>, CommandError> {
        if suites.iter().any(|suite| suite.is_adopted_lately(&self.settings.keep.retention, self.now)) {
            return Ok(Vec::new());
        }
        // The files of odd entries and of excluded packages are named as well.
        let is_named = |path: &str| named_elsewhere(path) || self.plan.leaves_out(path);
        clean::find_untracked(tree, known, suites, &is_named).map_err(|error| disk(&error))
    }

    /// Warns, in the run that adopts a suite, that `--clean-foreign` does not delete yet.
    fn tell_of_adopted(&self, suites: &[SuiteRecord], report: &mut ReportBuilder, events: &mut dyn Events) {
        let retention = self.settings.keep.retention;
        let adopted = suites.iter().find(|suite| {
            suite.is_adopted_lately(&retention, self.now)
                && suite.adopted.as_ref().is_some_and(|adopted| adopted.at == self.now)
        });
        if let Some(suite) = adopted {
            report.warn(
                events,
                format!(
                    "{} was here before this mirror, and clients may still use its earlier files: untracked files are \
                     deleted after {} and {}",
                    suite.directory,
                    units::several(retention.generations.into(), "newer Release", "newer Releases"),
                    units::several(retention.hours.into(), "hour", "hours"),
                ),
            );
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn commit<'c>(
        &'c self,
        session: &'c Session,
        state: &'c State,
        done: &'c FileSet,
        orphans: Vec<LoggedFile>,
        publications: &[Publication],
        complete: &dyn Fn(usize) -> bool,
        named_elsewhere: &'c dyn Fn(&str) -> bool,
    ) -> Commit<'c> {
        Commit {
            own: &session.own,
            tree: &*session.tree,
            state,
            plan: self.plan,
            done,
            published: publications.iter().flat_map(Publication::files).collect(),
            suites: (0..self.offers.len())
                .map(|position| self.update(position, state, complete(position), done))
                .collect(),
            orphans,
            named_elsewhere,
            knows_others: true,
            mend_until: session.directories.bucket.as_ref().and_then(|bucket| bucket.mend_until()),
            opened_at: session.directories.bucket.as_ref().map_or(self.now, |bucket| bucket.opened_at()),
            retention: self.settings.keep.retention,
            now: self.now,
            boot_id: boot_id(),
            synced: self.settings.durability != Durability::None,
            note_paths: self.settings.keep.clean == Clean::Untracked,
        }
    }

    /// Collects the files of one suite for publishing.
    fn publication(&self, session: &Session, position: usize) -> Result<Publication, CommandError> {
        let offer = &self.offers[position];
        let mut stored = BTreeMap::new();
        for (name, content) in &offer.files {
            let sha256 = store::put(&session.directories.work, content, Some(offer.modified))?;
            stored.insert(
                *name,
                StoredFile { path: (*name).to_owned(), size: content.len() as u64, sha256, sha512: None },
            );
        }
        let mut files = self.suites[position].stored();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        let mut left_out = Vec::new();
        for entry in &offer.release.entries {
            let path = entry.path.as_str();
            if files.binary_search_by(|file| file.path.as_str().cmp(path)).is_err() {
                left_out.push(StoredFile {
                    path: path.to_owned(),
                    size: entry.size,
                    sha256: entry.sha256,
                    sha512: None,
                });
            }
        }
        Ok(Publication {
            id: self.ids[position],
            layout: offer.layout.clone(),
            by_hash: offer.release.acquire_by_hash,
            indexes: files,
            left_out,
            release_gpg: stored.remove("Release.gpg"),
            release: stored.remove("Release"),
            inrelease: stored.remove("InRelease"),
        })
    }

    fn update(&self, position: usize, state: &State, published: bool, done: &FileSet) -> SuiteUpdate {
        let offer = &self.offers[position];
        let before = state.suite(&offer.layout.directory);
        let mut sources = self.settings.sources.iter();
        let source = sources.find(|source| source.suites.contains(&offer.requested));
        let lacking =
            self.settings.ignore_missing && (self.lacks_files(position, done) || self.suites[position].lacks_ignored());
        SuiteUpdate {
            id: self.ids[position],
            record: SuiteRecord {
                directory: offer.layout.directory.clone(),
                requested: offer.requested.clone(),
                origins: self.settings.origins.iter().map(|origin| without_credentials(origin)).collect(),
                links: offer.layout.links.iter().map(|(link, _)| link.clone()).collect(),
                inrelease: offer.identity,
                tag: offer.tag.as_ref().map(ToString::to_string),
                date: offer.release.date.unwrap_or_default(),
                signed: offer.signed,
                fingerprint: offer.fingerprint,
                trust: source.map(|source| fingerprint::trust(source, self.settings.ignore_valid_until)),
                selection: offer.selections.iter().map(Selection::describe).collect::<Vec<_>>().join(" and "),
                filtered: !self.settings.filters.is_empty() || !within_indexes(&offer.selections).is_empty() || lacking,
                lacking,
                files_unknown: false,
                generation: before.map_or(1, |before| before.generation),
                adopted: match offer.is_found || self.is_damaged || before.is_some_and(|before| before.files_unknown) {
                    true => Some(Departure { suite: self.ids[position], generation: 1, at: self.now }),
                    false => before.and_then(|before| before.adopted.clone()),
                },
                published_at: self.now,
                mend_until: None,
                retired: false,
            },
            published,
        }
    }

    /// Whether the suite lacks files that no mirror has.
    fn lacks_files(&self, place: usize, done: &FileSet) -> bool {
        let is_lacking = |id: FileId| !done.contains(id) && self.skipped.binary_search(&id).is_err();
        self.plan.files().any(|file| file.suites.contains(&self.ids[place]) && is_lacking(file.id))
    }

    /// Whether the Release or the indexes of a suite prevent its publication.
    fn is_refused(&self, place: usize) -> bool {
        self.refused.iter().any(|(refused, _)| *refused == place)
    }

    /// Whether all files of a suite are present.
    fn is_complete(&self, position: usize, result: &FetchResult) -> bool {
        !self.is_refused(position)
            && !result.incomplete.contains(&self.ids[position])
            && self.suites[position].missing().is_none()
    }

    /// Writes the trace files, which tell when the mirror was last complete.
    fn finish(
        &self,
        session: &Session,
        above: Option<upstream::PendingTraces>,
        report: &mut ReportBuilder,
        events: &mut dyn Events,
    ) {
        let above = above.map(|asked| upstream::take(asked, session)).unwrap_or_default();
        if report.complete {
            let trace = report.trace(self.settings, self.offers, &session.site.fetcher.hosts(), above);
            if let Err(error) = trace_files::write(&*session.tree, &trace) {
                report.warn(events, format!("cannot write trace files: {error}"));
            }
        }
    }
}

/// Checks the name of the snapshot before the run, which would otherwise fail at its end.
fn snapshot_name_is_free(settings: &MirrorSettings, directories: &Directories) -> Result<(), CommandError> {
    let Some(name) = &settings.snapshot else { return Ok(()) };
    match &directories.bucket {
        Some(bucket) => bucket.tree.check_snapshot_name(name, settings.snapshot_full).map_err(no_snapshot),
        None => snapshot::check_name(&*directories.tree, name).map_err(CommandError::usage),
    }
}

fn no_snapshot(error: SnapshotError) -> CommandError {
    match error {
        SnapshotError::Name { .. } | SnapshotError::Exists { .. } | SnapshotError::TooLarge { .. } => {
            CommandError::usage(error)
        }
        other => disk(&other),
    }
}

/// Makes the snapshot after the last round, if that is complete.
fn snapshot_of(
    settings: &MirrorSettings,
    session: &Session,
    report: &mut ReportBuilder,
    events: &mut dyn Events,
) -> Result<(), CommandError> {
    let (Some(name), true) = (&settings.snapshot, settings.publishes()) else { return Ok(()) };
    if !report.complete {
        report.warn(events, format!("snapshot {name} was not made: the run was not complete"));
        return Ok(());
    }
    let mut state = State::open(&session.own, &boot_id())?;
    if state.header.suites.iter().any(|suite| suite.files_unknown && !suite.retired) {
        let why = "the list of files was damaged, and not all suites were mirrored since";
        report.warn(events, format!("snapshot {name} was not made: {why}"));
        return Ok(());
    }
    if let Some(bucket) = &session.directories.bucket {
        // A run that found nothing new has no lock yet.
        bucket.lock(&report.host)?;
        bucket.prepare(&[], Abandoned::Remove)?;
        bucket.note_takeover(&mut state)?;
        let made = match settings.snapshot_full {
            true => bucket.tree.make_full_snapshot(&state, name),
            false => bucket.tree.make_snapshot(&state, name),
        };
        return made.map_err(no_snapshot);
    }
    let directory = session.tree.as_directory().ok_or(SnapshotError::NoLinks).map_err(|error| disk(&error))?;
    snapshot::make(directory, &state, name).map_err(|error| disk(&error))?;
    sync(session)
}

/// Marks the tree as being changed, as ftpsync does, until dropped. The mark of a killed run stays.
struct InProgress {
    tree: Arc<dyn Tree>,
    host: String,
}

impl InProgress {
    fn mark(tree: &Arc<dyn Tree>, report: &mut ReportBuilder, events: &mut dyn Events) -> InProgress {
        if let Err(error) = trace_files::mark_in_progress(&**tree, &report.host) {
            report.warn(events, format!("cannot write trace files: {error}"));
        }
        InProgress { tree: tree.clone(), host: report.host.clone() }
    }
}

impl Drop for InProgress {
    fn drop(&mut self) {
        // If the mark cannot be removed, it is still true: the disk fails.
        let _ = trace_files::unmark_in_progress(&*self.tree, &self.host);
    }
}

fn sync(session: &Session) -> Result<(), CommandError> {
    session.sync.device(|| session.destination.barrier()).map_err(|error| disk(&error))?;
    Ok(())
}
