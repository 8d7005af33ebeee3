//! Fetches the files of a plan and the remaining indexes.
//!
//! Usually one round is enough. But files that wait for the place of others land under their hash, so files of equal
//! content are fetched one at a time. And a mirror may have reported the size of an installer image of other content.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use fullbore_engine::digest::Sha256;
use fullbore_engine::run::Stop;
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::events::Events;
use fullbore_wire::dispatcher::GivenUp;
use fullbore_wire::run::refusals::{Hosts, Refusals, Why, is_lost};

use super::batch::{Files, IndexDownload};
use super::membership::SuiteId;
use super::plan::{FileId, Plan};
use super::pool::FetchPlan;
use super::session::Session;
use super::sizes::{self, Asked, Told};
use super::subtract::{FileSet, Subtraction};

/// Maximum number of rounds of a run. A guess: nobody has more mirrors with images of different sizes, or more missing
/// files of one content.
const ROUNDS_MAX: u32 = 32;

/// Result of fetching the files of a plan.
pub(super) struct FetchResult {
    /// Files that no host served right, each with the reasons.
    pub missing: Vec<String>,
    /// Kind of the failures.
    pub why: Why,
    /// Suites that need missing files, and so cannot be published.
    pub incomplete: Vec<SuiteId>,
    /// Hashes of the fetched indexes.
    pub indexes: Vec<Sha256>,
    /// Lines about files that no mirror has; suites are published without them (`--ignore-missing`).
    pub ignored: Vec<String>,
    /// Whether for some missing file every mirror answered that it does not have it.
    pub is_absent: bool,
}

impl FetchResult {
    /// Adds missing indexes: for each a line, and whether a host sent other content.
    pub(super) fn lack(&mut self, lacking: Vec<(String, bool)>) {
        for (line, is_wrong) in lacking {
            if is_wrong && self.why == Why::Various {
                self.why = Why::Wrong;
            }
            self.missing.push(line);
        }
    }
}

/// Fetches the files of the plan and the remaining indexes.
///
/// # Errors
/// `Disk` if a file cannot be written, `Interrupted` if a signal arrived, and the errors of the store for a bucket.
#[allow(clippy::too_many_arguments)]
pub(super) fn fetch(
    plan: &Arc<Plan>,
    need: &mut FetchPlan,
    mut indexes: Vec<IndexDownload>,
    refusals: &mut Refusals,
    ignore_missing: bool,
    session: &mut Session,
    stop: &Stop,
    events: &mut dyn Events,
) -> Result<FetchResult, CommandError> {
    let mut waiting = need.subtraction.fetch.clone();
    let mut given_up: BTreeMap<FileId, GivenUp> = BTreeMap::new();
    let mut fetched_indexes = Vec::new();
    // Reported sizes of images that turned out to belong to other content.
    let mut wrong_sizes: BTreeMap<FileId, Vec<u64>> = BTreeMap::new();
    for round in 0..ROUNDS_MAX {
        if round > 0 && waiting.is_empty() {
            break;
        }
        let of_indexes = indexes.iter().map(|index| index.sha256).collect();
        let (now, later) = one_of_each_content(plan, &need.subtraction, waiting, of_indexes);
        let replace = need.subtraction.replace.clone();
        let files = Arc::new(Files::of_plan(plan.clone(), replace, need.learned.clone(), std::mem::take(&mut indexes)));
        let items = files.items(&now, session);
        let fetched = session.fetch(files.clone(), items, stop, events)?;
        for item in fetched.verified {
            match files.index(item) {
                Some(index) => fetched_indexes.push(index.sha256),
                None => drop(need.subtraction.done.insert(item)),
            }
        }
        let hosts = Hosts::of(&session.site.fetcher.hosts());
        for failed in fetched.given_up {
            match files.index(failed.item) {
                Some(index) => refusals.note(index.sha256, &failed, &hosts),
                None => drop(given_up.insert(failed.item, failed)),
            }
        }
        waiting = later;
        take_from_store(plan, &mut need.subtraction, &fetched_indexes, &mut given_up, &mut waiting);
        waiting.extend(with_other_sizes(plan, need, &given_up, &mut wrong_sizes, session, stop)?);
        waiting.iter().for_each(|id| drop(given_up.remove(id)));
    }
    let mut result = FetchResult {
        missing: Vec::new(),
        why: Why::of(given_up.values().flat_map(|given_up| &given_up.faults).map(|(_, fault)| fault)),
        incomplete: Vec::new(),
        indexes: fetched_indexes,
        ignored: Vec::new(),
        is_absent: false,
    };
    let hosts = Hosts::of(&session.site.fetcher.hosts());
    let failed = given_up.values().map(|given_up| (given_up.item, hosts.why(given_up), is_lost(given_up)));
    let of_no_size = need.needed_images.iter().map(|(id, told)| match told {
        Told::Absent => (*id, "no mirror has it, and another one is in its place".to_owned(), true),
        _ => (*id, "no mirror told the size of this installer image".to_owned(), false),
    });
    for (id, why, is_lost) in failed.chain(of_no_size) {
        let file = plan.file(id);
        let line = format!("{}: {why}", file.path);
        if ignore_missing && is_lost {
            result.ignored.push(line);
            continue;
        }
        result.is_absent |= is_lost;
        result.missing.push(line);
        result.incomplete.extend(file.suites);
    }
    for id in without_outcome(&need.subtraction.fetch, &need.subtraction.done, given_up.values()) {
        let file = plan.file(id);
        result.missing.push(format!("{}: it was requested and not received", file.path));
        result.incomplete.extend(file.suites);
    }
    result.incomplete.sort_unstable();
    result.incomplete.dedup();
    Ok(result)
}

/// Divides files into those to fetch now and those to fetch later. Of the files that land under their hash, only one of
/// each content is fetched now. `taken` has the hashes of indexes that land in the same place.
fn one_of_each_content(
    plan: &Plan,
    subtraction: &Subtraction,
    files: Vec<FileId>,
    mut taken: HashSet<Sha256>,
) -> (Vec<FileId>, Vec<FileId>) {
    files.into_iter().partition(|id| !subtraction.replace.contains(*id) || taken.insert(plan.file(*id).sha256))
}

/// Counts files as done whose content was fetched under another name.
fn take_from_store(
    plan: &Plan,
    subtraction: &mut Subtraction,
    indexes: &[Sha256],
    given_up: &mut BTreeMap<FileId, GivenUp>,
    waiting: &mut Vec<FileId>,
) {
    let candidates: Vec<FileId> =
        waiting.iter().chain(given_up.keys()).copied().filter(|id| subtraction.replace.contains(*id)).collect();
    if candidates.is_empty() {
        return;
    }
    let replaced = subtraction.replacements(plan).map(|id| plan.file(id).sha256);
    let there: HashSet<Sha256> = replaced.chain(indexes.iter().copied()).collect();
    for id in candidates.into_iter().filter(|id| there.contains(&plan.file(*id).sha256)) {
        subtraction.done.insert(id);
        given_up.remove(&id);
    }
    waiting.retain(|id| !subtraction.done.contains(*id));
}

/// Images that did not have the reported size, and for which another mirror reports another size.
fn with_other_sizes(
    plan: &Plan,
    need: &mut FetchPlan,
    given_up: &BTreeMap<FileId, GivenUp>,
    wrong_sizes: &mut BTreeMap<FileId, Vec<u64>>,
    session: &Session,
    stop: &Stop,
) -> Result<Vec<FileId>, CommandError> {
    let mut asked = Vec::new();
    for (id, size) in need.learned.iter().filter(|(id, _)| given_up.contains_key(id)) {
        let wrong = wrong_sizes.entry(*id).or_default();
        if !wrong.contains(size) {
            wrong.push(*size);
            asked.push((*id, Asked { path: plan.file(*id).path.to_owned(), wrong: wrong.clone() }));
        }
    }
    let told = match asked.is_empty() {
        true => Vec::new(),
        false => sizes::learn(asked.iter().map(|(_, asked)| asked.clone()).collect(), session, stop)?,
    };
    let mut again = Vec::new();
    for ((id, _), size) in asked.iter().zip(told).filter_map(|(asked, told)| Some((asked, told.size()?))) {
        if let Ok(at) = need.learned.binary_search_by_key(id, |(id, _)| *id) {
            need.learned[at].1 = size;
            again.push(*id);
        }
    }
    Ok(again)
}

/// Requested files without an outcome; they count as missing.
fn without_outcome<'a>(wanted: &[FileId], done: &FileSet, given_up: impl Iterator<Item = &'a GivenUp>) -> Vec<FileId> {
    let given_up: BTreeSet<FileId> = given_up.map(|given_up| given_up.item).collect();
    wanted.iter().copied().filter(|id| !done.contains(*id) && !given_up.contains(id)).collect()
}

#[cfg(test)]
mod tests {
    use fullbore_wire::hosts::HostSet;

    use super::*;

    #[test]
    fn a_file_of_which_nothing_was_said_is_missing() {
        let mut done = FileSet::new(5);
        done.insert(1);
        let given_up = GivenUp { item: 3, tried: HostSet::default(), missing: true, faults: Vec::new() };
        assert_eq!(without_outcome(&[1, 2, 3], &done, [&given_up].into_iter()), [2]);
    }
}
