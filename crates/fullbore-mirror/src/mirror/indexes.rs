//! From the signed Releases to the plan: fetches indexes into the store and reads them.
//!
//! One form of each index is read; these forms are fetched first, the others together with the pool. Indexes from the
//! store of files by hash are hashed again before use.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufReader;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fullbore_debian::compression::Form;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::events::Events;
use fullbore_engine::units;
use fullbore_wire::run::refusals::{Hosts, Refusals};

use super::alternatives;
use super::batch::{Files, IndexDownload};
use super::index_reader::{plain_bytes_max, read_index};
use super::links;
use super::membership::SuiteId;
use super::offer::OfferedSuite;
use super::plan::{Plan, PlanBuilder};
use super::publish::StoredFile;
use super::select::{self, Absent, Need, Reading, SelectError, Selected, WantedIndex};
use super::session::{Session, disk};
use super::state::{StateError, index_path};
use super::store;
use crate::settings::MirrorSettings;

/// Selected indexes of a suite, and which of them are in the store of files by hash.
pub(super) struct SuiteIndexes {
    /// Entries of the suite's Release to mirror.
    pub wants: Vec<WantedIndex>,
    have: BTreeSet<Sha256>,
    /// Groups that no mirror has. The suite is published without them (`--ignore-missing`).
    ignored: BTreeSet<u32>,
}

impl SuiteIndexes {
    /// Whether this index is in the store.
    pub(super) fn has(&self, want: &WantedIndex) -> bool {
        self.have.contains(&want.sha256)
    }

    /// A required index of which no form is in the store; `None` if all are there.
    pub(super) fn missing(&self) -> Option<&WantedIndex> {
        self.missing_of(&|_| true)
    }

    /// Like [`SuiteIndexes::missing`], but only for indexes that `kind` accepts.
    fn missing_of(&self, kind: &dyn Fn(&&WantedIndex) -> bool) -> Option<&WantedIndex> {
        let received: BTreeSet<u32> = self.wants.iter().filter(|want| self.has(want)).filter_map(group).collect();
        let is_missing = |want: &&WantedIndex| {
            group(want).is_some_and(|group| !received.contains(&group) && !self.ignored.contains(&group))
        };
        self.wants.iter().filter(is_missing).find(kind)
    }

    /// Whether the suite is published without a required index.
    pub(super) fn lacks_ignored(&self) -> bool {
        let is_here = |of: &u32| self.wants.iter().any(|want| group(want) == Some(*of) && self.has(want));
        !self.ignored.iter().all(is_here)
    }

    /// Hashes of all forms of an index.
    fn forms(&self, want: &WantedIndex) -> impl Iterator<Item = Sha256> {
        let of = group(want);
        self.wants.iter().filter(move |other| of.is_some() && group(other) == of).map(|other| other.sha256)
    }

    /// Indexes in the store, with the names that they get.
    pub(super) fn stored(&self) -> Vec<StoredFile> {
        self.wants
            .iter()
            .filter(|want| self.has(want))
            .map(|want| StoredFile {
                path: want.path.clone(),
                size: want.size,
                sha256: want.sha256,
                sha512: want.sha512.clone(),
            })
            .collect()
    }

    /// Counts all indexes as stored, for a dry run.
    pub(super) fn all_came(&mut self) {
        self.have.extend(self.wants.iter().map(|want| want.sha256));
    }

    /// Counts this index as stored.
    pub(super) fn received(&mut self, sha256: Sha256) {
        self.have.insert(sha256);
    }
}

fn group(want: &WantedIndex) -> Option<u32> {
    match want.need {
        Need::OneOf(group) => Some(group),
        Need::Optional => None,
    }
}

/// Selects the indexes of all suites and finds those that are already stored. Suites without the selected parts are
/// added to `refused`. Parts that only some suites lack are added to `absent`.
///
/// # Errors
///
/// `Disk` if a file of the mirror or the store cannot be read.
pub(super) fn select(
    offers: &[OfferedSuite],
    session: &Session,
    refused: &mut Vec<(usize, CommandError)>,
    absent: &mut Vec<Absent>,
) -> Result<Vec<SuiteIndexes>, CommandError> {
    let mut suites = Vec::new();
    for (place, offer) in offers.iter().enumerate() {
        let mut selected = select::indexes(&offer.requested, &offer.release, &offer.selections);
        if let Ok(Selected { absent, .. }) = &selected
            && let Some(gone) = absent.iter().find(|absent| was_mirrored(offer, absent, session))
        {
            selected = Err(gone.error.clone());
        }
        let wants = match selected {
            Ok(selected) => {
                absent.extend(selected.absent);
                selected.wants
            }
            Err(error) => {
                refused.push((place, CommandError::usage(error)));
                Vec::new()
            }
        };
        let have = those_here(offer, &wants, session).map_err(|error| disk(&error))?;
        suites.push(SuiteIndexes { wants, have, ignored: BTreeSet::new() });
    }
    Ok(suites)
}

/// Whether this part of the suite was mirrored by an earlier run. Then its files would be deleted if the suite went on
/// without it.
fn was_mirrored(offer: &OfferedSuite, absent: &Absent, session: &Session) -> bool {
    let directories = || match &absent.error {
        SelectError::Component { component, .. } => vec![component.clone()],
        SelectError::Architecture { architecture, .. } => offer
            .release
            .components
            .iter()
            .chain(offer.selections.iter().flat_map(|selection| &selection.components))
            .map(|component| format!("{component}/binary-{architecture}"))
            .collect(),
        SelectError::Nothing { .. } => Vec::new(),
    };
    // A directory that cannot be looked at may be there.
    directories()
        .iter()
        .any(|directory| session.tree.stat(&offer.layout.path(directory)).map_or(true, |there| there.is_some()))
}

/// Hashes of the indexes that are already stored. Several are looked up in parallel, because in a bucket each may take
/// several round trips.
fn those_here(offer: &OfferedSuite, wants: &[WantedIndex], session: &Session) -> Result<BTreeSet<Sha256>, StateError> {
    // Two names of one content would be stored in the same place.
    let mut names: BTreeMap<Sha256, Vec<&WantedIndex>> = BTreeMap::new();
    wants.iter().for_each(|want| names.entry(want.sha256).or_default().push(want));
    let names: Vec<Vec<&WantedIndex>> = names.into_values().collect();
    let next = AtomicUsize::new(0);
    let look = || -> Result<Vec<Sha256>, StateError> {
        let mut here = Vec::new();
        while let Some(names) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            for want in names {
                if is_here(offer, want, session)? {
                    here.push(want.sha256);
                    break;
                }
            }
        }
        Ok(here)
    };
    let threads = session.tree.readers().min(names.len());
    std::thread::scope(|scope| {
        let looking: Vec<_> = (0..threads).map(|_| scope.spawn(look)).collect();
        let mut have = BTreeSet::new();
        for looking in looking {
            have.extend(looking.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(have)
    })
}

/// Whether an index is in the store, or in the published tree, from which it is then linked into the store.
fn is_here(offer: &OfferedSuite, want: &WantedIndex, session: &Session) -> Result<bool, StateError> {
    if session.directories.is_untouched() {
        return store::has(&session.own, want.sha256, want.size);
    }
    if store::verify(&session.own, want.sha256, want.size)? {
        return Ok(true);
    }
    let is_read = want.reading.is_some() && want.rank == 0;
    let cache = session.directories.bucket.as_ref().and_then(|bucket| bucket.cache.as_ref());
    // A cache that cannot be read costs only a download.
    if is_read && cache.is_some_and(|cache| cache.take(&session.own, want.sha256, want.size).unwrap_or(false)) {
        return Ok(true);
    }
    if !is_read && session.tree.published(want.sha256)?.is_some() {
        return Ok(true);
    }
    let published = offer.layout.path(&want.path);
    let (directory, _) = published.rsplit_once('/').unwrap_or_default();
    let slash = if directory.is_empty() { "" } else { "/" };
    let by_hash = format!("{directory}{slash}by-hash/SHA256/{}", want.sha256);
    for name in [published, by_hash] {
        if let Some((_, behind)) = links::follow(&*session.tree, &name)?
            && store::adopt(&*session.tree, &behind.unwrap_or(name), want.sha256, want.size)?
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The indexes that are read, among those in the store: hash and size.
pub(super) fn read_ones(suites: &[SuiteIndexes]) -> Vec<(Sha256, u64)> {
    let wants = suites.iter().flat_map(|suite| suite.wants.iter().filter(|want| suite.has(want)));
    let are_read = wants.filter(|want| want.reading.is_some() && want.rank == 0);
    are_read.map(|want| (want.sha256, want.size)).collect()
}

/// The download of an index, with its paths on the mirrors.
fn stored_index(offer: &OfferedSuite, want: &WantedIndex) -> IndexDownload {
    let plain = format!("{}{}", offer.remote, want.path);
    let directory = plain.rsplit_once('/').map_or("", |(directory, _)| directory);
    let slash = if directory.is_empty() { "" } else { "/" };
    let by_hash = format!("{directory}{slash}by-hash/SHA256/{}", want.sha256);
    let (path, other_path) = if offer.release.acquire_by_hash { (by_hash, Some(plain)) } else { (plain, None) };
    IndexDownload { path, other_path, size: want.size, sha256: want.sha256 }
}

/// Missing indexes, each content once: those to be read first, or all others.
pub(super) fn missing(offers: &[OfferedSuite], suites: &[SuiteIndexes], to_be_read: bool) -> Vec<IndexDownload> {
    let mut seen = BTreeSet::new();
    let mut indexes = Vec::new();
    for (offer, suite) in offers.iter().zip(suites) {
        for want in suite.wants.iter().filter(|want| !suite.has(want)) {
            if (want.reading.is_some() && want.rank == 0) == to_be_read && seen.insert(want.sha256) {
                indexes.push(stored_index(offer, want));
            }
        }
    }
    indexes
}

/// With `--ignore-missing`: lets suites be published without the indexes that no mirror has, and returns a line for
/// each. An index that was mirrored before is not ignored, because the files that it names would be deleted.
pub(super) fn ignore_absent(
    offers: &[OfferedSuite],
    suites: &mut [SuiteIndexes],
    refusals: &Refusals,
    session: &Session,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (offer, suite) in offers.iter().zip(suites) {
        while let Some(want) = suite.missing_of(&|want| is_lost(suite, want, refusals)) {
            let names_files = want.reading.is_some_and(|reading| reading != Reading::DiffIndex);
            let mut forms = suite.wants.iter().filter(|other| group(other) == group(want));
            let is_here = |form: &WantedIndex| session.tree.stat(&offer.layout.path(&form.path));
            if names_files && forms.any(|form| is_here(form).map_or(true, |there| there.is_some())) {
                break;
            }
            lines.push(format!("{}{}: no mirror has it; the suite is published without it", offer.remote, want.path));
            let Some(group) = group(want) else { break };
            suite.ignored.insert(group);
        }
    }
    lines
}

/// Whether every host answered, and none has the index in any form. If the index names packages, other content does not
/// count as lost, because it belongs to another state of the archive.
fn is_lost(suite: &SuiteIndexes, want: &WantedIndex, refusals: &Refusals) -> bool {
    match want.reading {
        Some(_) => refusals.are(&mut suite.forms(want), |refusal| refusal.is_absent),
        None => refusals.are(&mut suite.forms(want), |refusal| refusal.is_lost),
    }
}

/// For each suite that cannot be published: the first required index that no mirror has, and whether a mirror sent
/// other content.
pub(super) fn lacking(offers: &[OfferedSuite], suites: &[SuiteIndexes], refusals: &Refusals) -> Vec<(String, bool)> {
    let of_suite = |(offer, suite): (&OfferedSuite, &SuiteIndexes)| {
        let want = suite.missing()?;
        let refusal = refusals.of(&mut suite.forms(want));
        Some(match refusal.filter(|refusal| refusal.is_wrong) {
            Some(refusal) => (format!("{}{}: {}", offer.remote, want.path, refusal.reasons.join("; ")), true),
            None => (format!("{}{}: no mirror has it", offer.remote, want.path), false),
        })
    };
    offers.iter().zip(suites).filter_map(of_suite).collect()
}

/// Warnings about forms of indexes that were wrong on every mirror, while another form was right. The suite is
/// published without these forms.
pub(super) fn wrong_forms(offers: &[OfferedSuite], suites: &[SuiteIndexes], refusals: &Refusals) -> Vec<String> {
    let of_suite = |(offer, suite): (&OfferedSuite, &SuiteIndexes)| {
        let is_wrong = |want: &&WantedIndex| !suite.has(want) && suite.missing().is_none();
        let line = |want: &WantedIndex| {
            let refusal = refusals.of(&mut std::iter::once(want.sha256)).filter(|refusal| refusal.is_wrong)?;
            Some(format!(
                "{}{}: no mirror has the content that the signed Release names ({}); the suite is published without it",
                offer.remote,
                want.path,
                refusal.reasons.join("; ")
            ))
        };
        suite.wants.iter().filter(is_wrong).filter_map(line).collect::<Vec<_>>()
    };
    offers.iter().zip(suites).flat_map(of_suite).collect()
}

/// Fetches the indexes to be read. If no mirror has the preferred form, the next one is fetched. Returns the failures.
///
/// # Errors
///
/// `Disk` if a file cannot be written, `Interrupted` if a signal arrived, and the errors of the store for a bucket.
/// Failures of mirrors are in the result.
pub(super) fn fetch(
    offers: &[OfferedSuite],
    suites: &mut [SuiteIndexes],
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<Refusals, CommandError> {
    let mut refusals = Refusals::default();
    let mut indexes = missing(offers, suites, true);
    for rank in 1.. {
        if !indexes.is_empty() {
            let files = Arc::new(Files::of_indexes(indexes));
            let items = files.items(&[], session);
            let fetched = session.fetch(files.clone(), items, stop, events)?;
            for item in fetched.verified {
                let Some(index) = files.index(item) else { continue };
                suites.iter_mut().for_each(|suite| suite.received(index.sha256));
            }
            let hosts = Hosts::of(&session.site.fetcher.hosts());
            for given_up in &fetched.given_up {
                let Some(index) = files.index(given_up.item) else { continue };
                refusals.note(index.sha256, given_up, &hosts);
            }
        }
        // If no mirror has a group's form of this rank, the next form is read.
        indexes = Vec::new();
        let mut more = false;
        for (offer, suite) in offers.iter().zip(suites.iter()) {
            let received: BTreeSet<u32> = suite.wants.iter().filter(|want| suite.has(want)).filter_map(group).collect();
            let open = |want: &&WantedIndex| {
                want.reading.is_some() && group(want).is_some_and(|group| !received.contains(&group))
            };
            more |= suite.wants.iter().filter(open).any(|want| want.rank >= rank);
            indexes.extend(
                suite.wants.iter().filter(open).filter(|want| want.rank == rank).map(|want| stored_index(offer, want)),
            );
        }
        if !more {
            break;
        }
    }
    Ok(refusals)
}

/// Suites that lack a required index naming files, by their place among the offers, with the errors.
pub(super) fn unreadable_suites(
    offers: &[OfferedSuite],
    suites: &[SuiteIndexes],
    refusals: &Refusals,
) -> Vec<(usize, CommandError)> {
    let of_suite = |(place, (offer, suite)): (usize, (&OfferedSuite, &SuiteIndexes))| {
        let want = suite.missing_of(&|want| want.reading.is_some())?;
        Some((place, unreadable(offer, suite, want, refusals)))
    };
    offers.iter().zip(suites).enumerate().filter_map(of_suite).collect()
}

/// Hint for files that no mirror has.
pub(super) const HINT_IGNORE_MISSING: &str = "if the archive lost it for good, --ignore-missing publishes the rest";

/// Error for a required index that no mirror has in any form.
fn unreadable(offer: &OfferedSuite, suite: &SuiteIndexes, want: &WantedIndex, refusals: &Refusals) -> CommandError {
    // If several are missing, wrong content says more than a missing index.
    let missing = || suite.wants.iter().filter(|want| want.reading.is_some() && !suite.has(want));
    let is_wrong = |want: &&WantedIndex| refusals.of(&mut std::iter::once(want.sha256)).is_some_and(|one| one.is_wrong);
    let received = |want: &WantedIndex| suite.forms(want).any(|sha256| suite.have.contains(&sha256));
    let wrong = missing().filter(|want| !received(want)).find(is_wrong);
    let want = wrong.unwrap_or(want);
    let path = format!("{}{}", offer.remote, want.path);
    let refusal = refusals.of(&mut suite.forms(want));
    let mut error = match wrong {
        Some(_) => CommandError::new(
            ErrorKind::Verification,
            format_args!("{}: {path}: no mirror has the content that the signed Release names", offer.requested),
        ),
        None => CommandError::new(ErrorKind::Network, format_args!("{}: no mirror has {path}", offer.requested)),
    };
    for reason in refusal.into_iter().flat_map(|refusal| &refusal.reasons) {
        error = error.context(reason);
    }
    let error = error.context("the Release names it");
    let is_absent = refusals.are(&mut suite.forms(want), |refusal| refusal.is_absent);
    let error = error.hint(match wrong {
        Some(_) => {
            "the mirrors may be half-way through an update: try again in some minutes; if that does not help, add \
             another --from: a mirror's storage or a cache in between may be at fault"
        }
        None if offer.selections.iter().all(|selection| selection.formats.is_empty()) => {
            "the mirrors may be half-way through an update: try again in some minutes, or add another --from"
        }
        None => "remove --index-formats: no mirror has the index in these forms",
    });
    if is_absent { error.hint(HINT_IGNORE_MISSING) } else { error }
}

/// Plan of all suites whose indexes can be read, and the reports about the rest.
pub(super) struct Planned {
    /// Files that the indexes name and the filters want.
    pub plan: Plan,
    /// Lines about entries that cannot be verified, and about contents that the archive does not serve.
    pub left_out: Vec<String>,
    /// Suites that cannot be published, by their place among the offers, with the reasons.
    pub refused: Vec<(usize, CommandError)>,
}

/// Reads all indexes into a plan. `ids` are the numbers of the suites in the state. Suites in `refused` are left out;
/// suites with an unreadable index are added to it.
///
/// # Errors
///
/// `Verification` if the plan exceeds a limit, or a suite that stays needs other content than the archive serves.
/// `Disk` if a file cannot be read, `Interrupted` if a signal arrived. An unreadable index refuses its suite only.
#[allow(clippy::too_many_arguments)]
pub(super) fn plan(
    settings: &MirrorSettings,
    offers: &[OfferedSuite],
    suites: &[SuiteIndexes],
    ids: &[SuiteId],
    mut refused: Vec<(usize, CommandError)>,
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<Planned, CommandError> {
    // Starts again when a suite is refused, because the plan must not have its files.
    let (mut builder, mut left_out) = loop {
        let mut builder = PlanBuilder::new(settings.filters.clone());
        let mut left_out = Vec::new();
        let before = refused.len();
        for (place, ((offer, suite), id)) in offers.iter().zip(suites).zip(ids).enumerate() {
            if refused.iter().any(|(other, _)| *other == place) {
                continue;
            }
            match read_suite(&mut builder, offer, suite, *id, session) {
                Ok(lines) => left_out.extend(lines),
                Err(error) if error.kind == ErrorKind::Verification => refused.push((place, error)),
                Err(error) => return Err(error),
            }
        }
        if refused.len() == before {
            break (builder, left_out);
        }
    };
    left_out.extend(alternatives::choose(&mut builder, session, stop, events)?);
    let plan = builder.finish().map_err(|error| CommandError::new(ErrorKind::Verification, error))?;
    Ok(Planned { plan, left_out, refused })
}

/// Reads the indexes of one suite; returns lines about the entries that are left out.
fn read_suite(
    builder: &mut PlanBuilder,
    offer: &OfferedSuite,
    suite: &SuiteIndexes,
    id: SuiteId,
    session: &Session,
) -> Result<Vec<String>, CommandError> {
    let mut read: BTreeMap<(String, Reading), &WantedIndex> = BTreeMap::new();
    for want in suite.wants.iter().filter(|want| suite.has(want)) {
        let Some(reading) = want.reading else { continue };
        let (stem, _) = Form::split(&want.path);
        let best = read.entry((stem.to_owned(), reading)).or_insert(want);
        if want.rank < best.rank {
            *best = want;
        }
    }
    let mut left_out = Vec::new();
    for ((stem, reading), want) in read {
        let path = offer.layout.path(&want.path);
        let bad = |error: &dyn std::fmt::Display| {
            CommandError::new(ErrorKind::Verification, format_args!("{path}: {error}"))
                .context("the index is signed: the archive itself is at fault")
        };
        let mut file = None;
        // A dry run fetches into its working directory; a wrong file in the mirror stays.
        for root in [&session.directories.work, &session.own] {
            if file.is_none() {
                file = root.open_file(&index_path(want.sha256)).map_err(|error| disk(&error))?;
            }
        }
        if file.is_none()
            && let Some(published) = session.tree.published(want.sha256).map_err(|error| disk(&error))?
            && session.tree.store(&published, want.sha256).map_err(|error| disk(&error))?
        {
            file = session.own.open_file(&index_path(want.sha256)).map_err(|error| disk(&error))?;
        }
        let Some((file, _)) = file else {
            return Err(bad(&"it vanished from the store"));
        };
        let index = builder.index(&path, id).map_err(|error| bad(&error))?;
        builder.only(index, &select::within_indexes(&offer.selections));
        let limit = plain_bytes_max(&offer.release, &stem, want.size);
        let input = BufReader::with_capacity(256 << 10, file);
        let tally = read_index(builder, index, reading, &path, want.form, limit, input).map_err(|error| bad(&error))?;
        if tally.is_mostly_odd() {
            let all = units::several(tally.entries, "entry", "entries");
            let error = bad(&format_args!("{} of {all} cannot be used: too many for a usable mirror", tally.odd));
            let error = tally.lines.into_iter().fold(error, CommandError::context);
            return Err(error.hint("--exclude leaves out packages before they are judged"));
        }
        left_out.extend(tally.lines);
    }
    Ok(left_out)
}
