//! The new state: old state, plan and published indexes merged in order of path.
//!
//! Sorted streams are merged, so memory does not grow with the mirror. The membership of each file is decided here
//! only: the published suites of this run name the files of their plan, and leave the others behind; suites of other
//! runs keep their files. The new header is not made current yet, so that the caller can refuse a deletion first
//! ([`PendingState::publish`]).

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::iter::Peekable;

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, PartFile, PartWriter, Root};

use super::layout::{below, is_within};
use super::links;
use super::membership::{Departure, Membership, MembershipTable, SuiteId};
use super::plan::Plan;
use super::records::{Record, RecordWriter};
use super::retention::{DeleteGuard, GuardError, Retention};
use super::state::{Header, OWN_DIRECTORY, Removal, State, StateError, SuiteRecord, list_path};
use super::subtract::{FileSet, LoggedFile, Tally};
use super::tree::Tree;

/// A suite of this run, with its new record.
#[derive(Debug, Clone)]
pub(super) struct SuiteUpdate {
    /// Number of the suite, from [`State::suite_id`] or the next free one.
    pub id: SuiteId,
    /// New record of the suite; the commit sets `generation`.
    pub record: SuiteRecord,
    /// Whether this run published the suite. If not, because files are missing, its record, its files, and the newly
    /// fetched files for it stay.
    pub published: bool,
}

/// A published index or signed file under `dists/`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PublishedFile {
    /// Path relative to the mirror's directory.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content.
    pub sha256: Sha256,
    /// Suite that the file belongs to.
    pub suite: SuiteId,
}

/// The inputs of a new state.
pub(super) struct Commit<'a> {
    /// Directory with fullbore's own files.
    pub own: &'a Root,
    /// The published files of the mirror.
    pub tree: &'a dyn Tree,
    /// State before this run.
    pub state: &'a State,
    /// Plan of this run: all files that its suites name.
    pub plan: &'a Plan,
    /// Files of the plan that are present.
    pub done: &'a FileSet,
    /// Published indexes and signed files, in any order.
    pub published: Vec<PublishedFile>,
    /// Suites of this run, published or not.
    pub suites: Vec<SuiteUpdate>,
    /// Files of a killed run that are no longer wanted.
    pub orphans: Vec<LoggedFile>,
    /// Whether a suite of another tool names this path.
    pub named_elsewhere: &'a dyn Fn(&str) -> bool,
    /// Whether all of those suites could be read. If not, `named_elsewhere` is true for every path.
    pub knows_others: bool,
    /// For a mirror in a bucket: until when a run whose lock this one took over may damage names; see
    /// [`SuiteRecord::mend_until`].
    pub mend_until: Option<i64>,
    /// Start of this run, by the same clock.
    pub opened_at: i64,
    /// Retention of files that no suite names any more.
    pub retention: Retention,
    /// Time of the commit, in Unix seconds.
    pub now: i64,
    /// The kernel's id of this boot (`/proc/sys/kernel/random/boot_id`).
    pub boot_id: String,
    /// Whether files and state are synced before the state becomes current.
    pub synced: bool,
    /// Whether all paths are collected, to find untracked files.
    pub note_paths: bool,
}

/// Numbers and sizes of the files in a state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// All files of the state.
    pub all: Tally,
    /// Files that signed texts and indexes of the suites name.
    pub named: Tally,
    /// Files whose retention has ended.
    pub expired: Tally,
}

impl Counts {
    /// Asks the guard whether the expired and the `foreign` files may be deleted.
    ///
    /// # Errors
    /// [`GuardError`] if the run would delete more than `guard` allows.
    pub(super) fn guarded(&self, guard: &DeleteGuard, foreign: Tally) -> Result<(), GuardError> {
        let (gone, all) = (self.expired.with(foreign), self.all.with(foreign));
        guard.check(gone.files, all.files, gone.bytes, all.bytes)
    }
}

/// A new state that is written but not yet current.
pub(super) struct PendingState {
    /// The new state, with its header.
    pub state: State,
    /// Numbers and sizes of its files.
    pub counts: Counts,
    /// Its paths, if they were collected.
    pub paths: PathSet,
    list: PartFile,
}

/// A preview of a new state.
#[derive(Default)]
pub(super) struct StatePreview {
    /// Numbers and sizes of its files.
    pub counts: Counts,
    /// Its paths, if they were collected.
    pub paths: PathSet,
    /// Suites of the new state.
    pub suites: Vec<SuiteRecord>,
    /// Files to be deleted, with their sizes in bytes, in order of path.
    pub expired: Vec<(String, u64)>,
}

/// A set of paths, of which 64-bit hashes are kept: equal hashes count as equal paths.
#[derive(Default)]
pub(crate) struct PathSet {
    hasher: RandomState,
    hashes: HashSet<u64>,
}

impl PathSet {
    /// Adds a path to the set.
    pub(crate) fn insert(&mut self, path: &str) {
        self.hashes.insert(self.hasher.hash_one(path));
    }

    /// Whether it is in the set.
    pub(crate) fn contains(&self, path: &str) -> bool {
        self.hashes.contains(&self.hasher.hash_one(path))
    }
}

/// A file of the merged streams.
struct Merged {
    size: u64,
    sha256: Sha256,
    membership: Membership,
}

/// Writes the list of files of the new state.
///
/// # Errors
/// [`StateError`] if a file cannot be read or written. A damaged old list is not an error: it ends at the damage.
pub(super) fn write(commit: Commit<'_>) -> Result<PendingState, StateError> {
    let number = commit.state.header.number + 1;
    let path = list_path(number);
    let list_error = |source| StateError::List { path: path.clone(), source };
    commit.own.create_directory(OWN_DIRECTORY, 0o700)?;
    let part = commit.own.create_part(&path, 0)?;
    let mut writer = RecordWriter::new(PartWriter::new(part)).map_err(list_error)?;
    let mut merge = Merge::new(&commit)?;
    let mut paths = PathSet::default();
    while let Some((path, merged)) = merge.next()? {
        if commit.note_paths {
            paths.insert(&path);
        }
        let membership = merge.table.intern(merged.membership);
        let record = Record { path: &path, size: merged.size, sha256: merged.sha256, membership };
        writer.write(record).map_err(list_error)?;
    }
    let (records, out) = writer.finish().map_err(list_error)?;
    let Merge { suites, table, counts, clean_due, .. } = merge;
    let header = Header {
        number,
        mirror: commit.tree.identity(),
        written_at: commit.now,
        boot_id: commit.boot_id,
        synced: commit.synced,
        records,
        bytes: counts.all.bytes,
        named: Some(counts.named),
        removal: Removal::None,
        clean_due,
        suites,
        memberships: table.as_slice().to_vec(),
    };
    let state = State { header, trusted: true, ..State::default() };
    Ok(PendingState { state, counts, paths, list: out.into_part() })
}

/// Computes the state that [`write`] would write, without writing.
///
/// # Errors
/// [`StateError`] if the old list or a file of the mirror cannot be read.
pub(super) fn preview(commit: &Commit<'_>) -> Result<StatePreview, StateError> {
    let mut preview = StatePreview::default();
    let mut merge = Merge::new(commit)?;
    while let Some((path, merged)) = merge.next()? {
        if commit.note_paths {
            preview.paths.insert(&path);
        }
        if merged.membership.expired {
            preview.expired.push((path, merged.size));
        }
    }
    Ok(StatePreview { counts: merge.counts, suites: merge.suites, ..preview })
}

impl PendingState {
    /// Marks the expired files for deletion, if the guard allows to delete them and the `foreign` files.
    ///
    /// # Errors
    /// [`GuardError`] if the guard refuses. Publish the state even then: the files stay in it.
    pub(super) fn allow_removal(&mut self, guard: &DeleteGuard, foreign: Tally) -> Result<(), GuardError> {
        let expired = self.counts.expired;
        if let Err(refused) = self.counts.guarded(guard, foreign) {
            // So that the next run tries again, even if the archive did not change.
            self.state.header.clean_due = Some(0);
            return Err(refused);
        }
        if expired.files > 0 {
            self.state.header.removal = Removal::Begun;
        }
        Ok(())
    }

    /// Leaves the expired files to a later run, which tries again even if the archive did not change.
    pub(super) fn put_off_removal(&mut self) {
        if self.counts.expired.files > 0 {
            self.state.header.clean_due = Some(0);
        }
    }

    /// Makes the new state current: renames the list, syncs it and all files with `sync`, replaces the header, syncs
    /// again, and removes old lists. The caller may compact the log after that.
    ///
    /// # Errors
    /// [`StateError`] if a file cannot be written or renamed, and the errors of `sync`. The old state stays intact.
    pub(super) fn publish<E: From<StateError>>(self, own: &Root, sync: impl Fn() -> Result<(), E>) -> Result<State, E> {
        self.list.finish().map_err(StateError::from)?;
        sync()?;
        self.state.write_header(own)?;
        sync()?;
        remove_other_lists(own, &self.state).map_err(StateError::from)?;
        State::end(own)?;
        Ok(self.state)
    }
}

/// Removes old lists, and those of killed runs.
fn remove_other_lists(own: &Root, state: &State) -> Result<(), FileError> {
    let present = state.list_path();
    for (name, _) in own.list(OWN_DIRECTORY)? {
        let Some(name) = name.to_str() else { continue };
        let path = format!("{OWN_DIRECTORY}/{name}");
        if name.starts_with("files-") && path != present {
            own.unlink(&path)?;
        }
    }
    Ok(())
}

type SortedFiles<'a, T> = Peekable<std::vec::IntoIter<T>>;

struct Merge<'a> {
    commit: &'a Commit<'a>,
    suites: Vec<SuiteRecord>,
    /// Suites whose members this run decides anew.
    decided: HashSet<SuiteId>,
    /// Suites whose Release is gone from the tree.
    retired: HashSet<SuiteId>,
    signed: HashSet<SuiteId>,
    table: MembershipTable,
    counts: Counts,
    clean_due: Option<i64>,
    old: OldRecords,
    plan_at: u32,
    published: SortedFiles<'a, PublishedFile>,
    orphans: SortedFiles<'a, LoggedFile>,
}

/// The old list with its next record, because the reader lends its records and cannot be peeked.
struct OldRecords {
    reader: Option<super::records::RecordReader<std::fs::File>>,
    next: Option<(String, u64, Sha256, u32)>,
}

impl OldRecords {
    fn advance(&mut self) {
        // The comparison with the plan has reported damage; here the list simply ends.
        let record = self.reader.as_mut().and_then(|reader| reader.next().ok().flatten());
        match (record, &mut self.next) {
            (Some(record), Some((path, size, sha256, membership))) => {
                path.clear();
                path.push_str(record.path);
                (*size, *sha256, *membership) = (record.size, record.sha256, record.membership);
            }
            (Some(record), next) => {
                *next = Some((record.path.to_owned(), record.size, record.sha256, record.membership));
            }
            (None, next) => {
                *next = None;
                self.reader = None;
            }
        }
    }
}

impl<'a> Merge<'a> {
    fn new(commit: &'a Commit<'a>) -> Result<Self, StateError> {
        let mut suites = commit.state.header.suites.clone();
        let mut signed = HashSet::new();
        let mut decided = HashSet::new();
        for update in &commit.suites {
            let at = usize::from(update.id);
            let mut record = update.record.clone();
            if update.published {
                decided.insert(update.id);
                record.generation = match suites.get(at) {
                    None => 1,
                    // For clients it is the same Release.
                    Some(old) if old.inrelease == record.inrelease && !old.retired => old.generation,
                    Some(old) => old.generation + 1,
                };
                record.published_at = commit.now;
                record.mend_until = suites.get(at).and_then(|old| old.mend_until);
                if let Some(adopted) = record.adopted.as_mut().filter(|adopted| adopted.at == commit.now) {
                    adopted.generation = record.generation;
                }
            }
            if record.signed {
                signed.insert(update.id);
            }
            if at < suites.len() {
                if update.published {
                    suites[at] = record;
                }
            } else {
                // Numbers are given in order; a gap would be a bug of the caller.
                suites.resize(at + 1, SuiteRecord { retired: true, ..record.clone() });
                // A suite that could not be published yet must not count as published.
                suites[at] = SuiteRecord { retired: !update.published, ..record };
            }
        }
        let mut retired = HashSet::new();
        for (at, suite) in suites.iter_mut().enumerate() {
            let id = at as SuiteId;
            if commit.suites.iter().any(|update| update.id == id) {
                continue;
            }
            let published = || commit.suites.iter().filter(|update| update.published).map(|update| &update.record);
            // The link now belongs to a suite of this run, or is itself the directory of one.
            suite.links.retain(|link| {
                !published().any(|other| other.links.contains(link) || is_within(&other.directory, link))
            });
            if suite.retired {
                // It is gone already, or was begun once and never published.
                retired.insert(id);
                continue;
            }
            if published().any(|other| other.directory == suite.directory) {
                // Two numbers for one directory, from a version that did not merge sources: one is enough.
                suite.retired = true;
                retired.insert(id);
                continue;
            }
            let named = |name: &str| commit.tree.stat(&below(&suite.directory, name));
            if named("InRelease")?.is_none() && named("Release")?.is_none() {
                suite.retired = true;
                retired.insert(id);
            }
        }
        for (at, suite) in suites.iter_mut().enumerate() {
            let is_mended = decided.contains(&(at as SuiteId));
            suite.mend_until = suite.mend_until.filter(|until| !is_mended || commit.opened_at <= *until);
            suite.mend_until = suite.mend_until.max(commit.mend_until);
        }
        let reader = match commit.state.records(commit.own) {
            Ok(reader) => reader,
            Err(StateError::List { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut old = OldRecords { reader, next: None };
        old.advance();
        let mut published = commit.published.clone();
        published.sort_unstable();
        let mut orphans = commit.orphans.clone();
        orphans.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        orphans.dedup_by(|b, a| a.path == b.path);
        Ok(Merge {
            commit,
            suites,
            decided,
            retired,
            signed,
            table: MembershipTable::default(),
            counts: Counts::default(),
            clean_due: None,
            old,
            plan_at: 0,
            published: published.into_iter().peekable(),
            orphans: orphans.into_iter().peekable(),
        })
    }

    /// The next file of the new state.
    fn next(&mut self) -> Result<Option<(String, Merged)>, StateError> {
        loop {
            let planned = self.next_planned();
            let candidates = [
                self.old.next.as_ref().map(|(path, ..)| path.as_str()),
                planned.map(|file| file.path),
                self.published.peek().map(|file| file.path.as_str()),
                self.orphans.peek().map(|file| file.path.as_str()),
            ];
            let Some(path) = candidates.into_iter().flatten().min().map(str::to_owned) else { return Ok(None) };
            if let Some(merged) = self.merge(&path)? {
                self.count(&path, &merged);
                return Ok(Some((path, merged)));
            }
        }
    }

    /// Next file of the plan that is present.
    fn next_planned(&mut self) -> Option<super::plan::PlanFile<'a>> {
        let plan: &'a Plan = self.commit.plan;
        while (self.plan_at as usize) < plan.len() {
            if self.commit.done.contains(self.plan_at) {
                return Some(plan.file(self.plan_at));
            }
            self.plan_at += 1;
        }
        None
    }

    /// Merges the entries of all streams for one path, and advances them.
    fn merge(&mut self, path: &str) -> Result<Option<Merged>, StateError> {
        let mut merged = self.take_old(path)?;
        if let Some(orphan) = self.orphans.next_if(|file| file.path == path)
            && merged.is_none()
        {
            merged = Some(Merged { size: orphan.size, sha256: orphan.sha256, membership: self.orphaned() });
        }
        if let Some(file) = self.next_planned().filter(|file| file.path == path) {
            self.plan_at += 1;
            let size = match (file.known_size(), &merged) {
                (Some(size), _) => size,
                (None, Some(old)) if old.sha256 == file.sha256 => old.size,
                (None, _) => links::follow(self.commit.tree, path)?.map_or(0, |(status, _)| status.size),
            };
            self.name(&mut merged, size, file.sha256, file.suites);
        }
        while let Some(file) = self.published.next_if(|file| file.path == path) {
            self.name(&mut merged, file.size, file.sha256, &[file.suite]);
        }
        let Some(mut merged) = merged else { return Ok(None) };
        let membership = &mut merged.membership;
        let (suites, retention, now) = (&self.suites, &self.commit.retention, self.commit.now);
        let generation_of =
            |id: SuiteId| suites.get(usize::from(id)).filter(|suite| !suite.retired).map(|suite| suite.generation);
        membership.age(retention, generation_of, now);
        if membership.expired && (self.commit.named_elsewhere)(path) {
            membership.expired = false;
            if !self.commit.knows_others {
                // So that the next run tries again, even if the archive did not change.
                self.clean_due = Some(0);
            }
        }
        Ok(Some(merged))
    }

    /// The old record of this path, without the suites that stopped naming it.
    fn take_old(&mut self, path: &str) -> Result<Option<Merged>, FileError> {
        let Some((_, size, sha256, number)) = self.old.next.as_ref().filter(|(old, ..)| old == path) else {
            return Ok(None);
        };
        let (size, sha256) = (*size, *sha256);
        let mut membership = self.commit.state.header.memberships[*number as usize].clone();
        self.old.advance();
        // A begun deletion is completed before a commit, unless this run may not delete.
        let may_be_here = || match self.commit.state.header.removal {
            Removal::None => Ok(true),
            Removal::Begun => Ok(self.commit.tree.stat(path)?.is_some()),
            Removal::Done => Ok::<_, FileError>(false),
        };
        if membership.expired && !may_be_here()? {
            return Ok(None);
        }
        membership.expired = false;
        let filtered = self.commit.plan.leaves_out(path);
        for member in membership.members.clone() {
            let decided = self.decided.contains(&member) && !filtered;
            if decided || self.retired.contains(&member) {
                let generation = self.suites.get(usize::from(member)).map_or(0, |suite| suite.generation);
                membership.leave(Departure { suite: member, generation, at: self.commit.now });
            }
        }
        Ok(Some(Merged { size, sha256, membership }))
    }

    /// Membership of a file that a killed run fetched for an outdated Release. It stays as long as files that were left
    /// behind by the current generation.
    fn orphaned(&self) -> Membership {
        let left = self.commit.suites.first().map(|update| Departure {
            suite: update.id,
            generation: self.suites.get(usize::from(update.id)).map_or(0, |suite| suite.generation),
            at: self.commit.now,
        });
        Membership {
            left: left.into_iter().collect(),
            unsigned: self.commit.state.unfinished_unsigned,
            ..Membership::default()
        }
    }

    /// Adds suites that name this content.
    fn name(&self, merged: &mut Option<Merged>, size: u64, sha256: Sha256, suites: &[SuiteId]) {
        let vouched = suites.iter().any(|suite| self.signed.contains(suite));
        let merged = match merged {
            Some(merged) if merged.sha256 == sha256 && merged.size == size => {
                // It has no signature now, but was accepted by an earlier signature, which still counts.
                merged.membership.unsigned &= !vouched;
                merged
            }
            other => other.insert(Merged {
                size,
                sha256,
                membership: Membership { unsigned: !vouched, ..Membership::default() },
            }),
        };
        for &suite in suites {
            merged.membership.join(suite);
        }
    }

    /// Whether the path counts as named: it is neither a signed file nor a by-hash name.
    fn is_named(&self, path: &str) -> bool {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let is_signed = matches!(name, "InRelease" | "Release" | "Release.gpg")
            && self.suites.iter().any(|suite| suite.directory == directory);
        !is_signed && !path.contains("/by-hash/")
    }

    fn count(&mut self, path: &str, merged: &Merged) {
        let (size, membership) = (merged.size, &merged.membership);
        self.counts.all.add(size);
        if membership.expired {
            self.counts.expired.add(size);
        } else if membership.members.is_empty() {
            // While generations are still to come, a new publication decides, not time.
            let at_once = Retention { hours: 0, ..self.commit.retention };
            let hours_s = i64::from(self.commit.retention.hours) * 3600;
            let due = |left: &Departure| {
                let generation = self
                    .suites
                    .get(usize::from(left.suite))
                    .filter(|suite| !suite.retired)
                    .map(|suite| suite.generation);
                at_once.is_over(left, generation, left.at).then(|| left.at.saturating_add(hours_s))
            };
            let due: Option<Vec<i64>> = membership.left.iter().map(due).collect();
            let due = due.and_then(|due| due.into_iter().max());
            // None of these files is due now. A file that only a suite of another tool names has no suite here. A
            // publication after the end of that suite deletes it, not time: a snapshot may hold files for years.
            self.clean_due = [self.clean_due, due].into_iter().flatten().min();
        } else if self.is_named(path) {
            self.counts.named.add(size);
        }
    }
}

#[cfg(test)]
mod tests;
