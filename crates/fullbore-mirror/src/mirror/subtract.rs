//! Subtracts present files from the plan; the rest is fetched.
//!
//! Plan and state are sorted by path, so one pass over both is enough, and the tree is not walked. The state is
//! trusted; `check` finds later changes. Files that the state does not know are looked up on disk, and hashed if their
//! size is right. So the tree of debmirror or ftpsync, or a lost state, takes reading but no download.

use std::collections::{BTreeMap, BTreeSet};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};
use serde::{Deserialize, Serialize};

use super::links;
use super::local_release::LocalRelease;
use super::membership::SuiteId;
use super::plan::{FileId, Plan, PlanFile};
use super::records::Record;
use super::state::{Conflict, OWN_DIRECTORY, Removal, State, StateError, index_path};
use super::tree::Tree;

/// Set of files of a plan, with one bit for each.
#[derive(Debug, Clone)]
pub(crate) struct FileSet {
    words: Vec<u64>,
}

impl FileSet {
    /// Makes an empty set for a plan of `files` files.
    pub(crate) fn new(files: usize) -> Self {
        FileSet { words: vec![0; files.div_ceil(64)] }
    }

    /// Adds a file; `true` if it was not in the set.
    pub(crate) fn insert(&mut self, id: FileId) -> bool {
        let (word, bit) = (id as usize / 64, 1_u64 << (id % 64));
        let Some(word) = self.words.get_mut(word) else { return false };
        let fresh = *word & bit == 0;
        *word |= bit;
        fresh
    }

    /// Removes a file from the set.
    pub(crate) fn remove(&mut self, id: FileId) {
        if let Some(word) = self.words.get_mut(id as usize / 64) {
            *word &= !(1_u64 << (id % 64));
        }
    }

    /// Whether the file is in the set.
    pub(crate) fn contains(&self, id: FileId) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word & 1 << (id % 64) != 0)
    }
}

/// A finished file in the log of a run that did not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LoggedFile {
    /// Path relative to the mirror's directory.
    pub path: String,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content.
    pub sha256: Sha256,
}

/// Number of files, and their total size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Tally {
    /// Number of files.
    pub files: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

impl Tally {
    /// Adds a file of this size in bytes.
    pub(crate) fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }

    /// Counts files, given with their sizes in bytes.
    pub(crate) fn of(files: &[(String, u64)]) -> Tally {
        Tally { files: files.len() as u64, bytes: files.iter().map(|(_, bytes)| bytes).sum() }
    }

    /// Sum of two tallies.
    pub(crate) fn with(self, other: Tally) -> Tally {
        Tally { files: self.files + other.files, bytes: self.bytes + other.bytes }
    }
}

/// Files of a plan, sorted by what has to be done.
#[derive(Debug)]
pub(crate) struct Subtraction {
    /// Files that are present with the right content. The set grows during the run.
    pub done: FileSet,
    /// Number and size of the files that were present at the start.
    pub present: Tally,
    /// Files to fetch, in order of path.
    pub fetch: Vec<FileId>,
    /// Unknown files of the right size that must be hashed, in order of path.
    pub adopt: Vec<FileId>,
    /// Files behind a symbolic link that must be hashed, with their real paths. Publishing their suite replaces the
    /// link.
    pub behind: Vec<(FileId, String)>,
    /// Files whose path holds other content. They must not get their name before their suite is published: fetch them
    /// to [`super::state::index_path`].
    pub replace: FileSet,
    /// For files whose path has other content in the state: the suites of this run that name that content.
    pub displaced: BTreeMap<FileId, Vec<SuiteId>>,
    /// Files that an earlier run finished and that are no longer wanted.
    pub orphans: Vec<LoggedFile>,
    /// Sizes, from state and log, of files whose index has none (installer images).
    sizes: BTreeMap<FileId, u64>,
    /// Damage of the state's list; `None` if it could be read to its end.
    pub damage: Option<String>,
}

impl Subtraction {
    /// Counts a file as present, as state or log say.
    fn known(&mut self, file: &PlanFile<'_>, size: u64) {
        self.done.insert(file.id);
        if file.known_size().is_none() {
            self.sizes.insert(file.id, size);
        }
    }

    /// Records the result of hashing: the size of the file if it is right.
    pub(crate) fn adopted(&mut self, id: FileId, right: Option<u64>) {
        if let Some(size) = right {
            self.present.add(size);
            self.done.insert(id);
            // The state was wrong, and the file is right.
            self.replace.remove(id);
        } else {
            self.replace.insert(id);
            self.fetch.push(id);
        }
    }

    /// Like [`Subtraction::adopted`], for a file behind a link whose content is in the store now.
    pub(crate) fn adopted_behind(&mut self, id: FileId, right: Option<u64>) {
        if let Some(size) = right {
            self.present.add(size);
            self.done.insert(id);
        } else {
            self.fetch.push(id);
        }
    }

    /// Files that are present and wait in the store, because their path holds other content.
    pub(crate) fn replacements(&self, plan: &Plan) -> impl Iterator<Item = FileId> {
        (0..plan.len() as FileId).filter(|id| self.replace.contains(*id) && self.done.contains(*id))
    }

    /// Path to which a file is fetched.
    pub(crate) fn landing_path(&self, plan: &Plan, id: FileId) -> String {
        let file = plan.file(id);
        if self.replace.contains(id) { index_path(file.sha256) } else { file.path.to_owned() }
    }
}

/// Comparison of a plan with state and disk.
pub(crate) struct Comparison<'a> {
    plan: &'a Plan,
    /// Suites of this run, and whether their Release carries a valid signature.
    suites: &'a [(SuiteId, bool)],
    result: Subtraction,
    /// Files on disk whose content must be hashed again.
    doubtful: FileSet,
    /// Suites of the state whose directory is gone, so that nothing names their files.
    gone: BTreeSet<SuiteId>,
    log_unsigned: bool,
    /// Whether the state belongs to another tree than this one.
    overtaken: bool,
}

impl<'a> Comparison<'a> {
    /// Begins a comparison. `suites` has the suites of this run, and whether each is signed.
    pub(crate) fn new(plan: &'a Plan, state: &State, suites: &'a [(SuiteId, bool)]) -> Self {
        let result = Subtraction {
            done: FileSet::new(plan.len()),
            present: Tally::default(),
            fetch: Vec::new(),
            adopt: Vec::new(),
            behind: Vec::new(),
            replace: FileSet::new(plan.len()),
            displaced: BTreeMap::new(),
            orphans: Vec::new(),
            sizes: BTreeMap::new(),
            damage: None,
        };
        Comparison {
            plan,
            suites,
            result,
            doubtful: FileSet::new(plan.len()),
            gone: BTreeSet::new(),
            log_unsigned: state.unfinished_unsigned,
            overtaken: state.overtaken,
        }
    }

    /// Adds a finished file of a killed run; `durable` if it was synced. Wanted files take no memory, so the log may be
    /// long.
    pub(crate) fn logged(&mut self, logged: LoggedFile, durable: bool) {
        match self.plan.find(&logged.path) {
            Some(file) if file.is(logged.size, logged.sha256) => {
                if durable && !self.overtaken && !(self.log_unsigned && self.needs_signature(&file)) {
                    self.result.known(&file, logged.size);
                } else {
                    self.doubtful.insert(file.id);
                }
            }
            // The killed run wrote over the file, so the state is outdated.
            Some(file) => {
                self.result.done.remove(file.id);
                self.result.replace.insert(file.id);
            }
            // Waiting files have no name in the mirror yet, and are found by their hash.
            None if logged.path.starts_with(OWN_DIRECTORY) => {}
            None => self.result.orphans.push(logged),
        }
    }

    fn needs_signature(&self, file: &PlanFile<'_>) -> bool {
        file.suites.iter().any(|wanted| self.suites.iter().any(|(suite, signed)| suite == wanted && *signed))
    }

    /// Compares with the state, and with the disk where the state has no entry.
    ///
    /// # Errors
    /// [`StateError::Conflict`] for a path that a suite of another run needs with other content, [`StateError::File`]
    /// if a file cannot be looked at.
    pub(crate) fn finish(mut self, state: &State, own: &Root, tree: &dyn Tree) -> Result<Subtraction, StateError> {
        self.gone = gone(state, tree)?;
        if let Err(damage) = self.compare_state(state, own)? {
            self.result.damage = Some(damage);
        }
        let (plan, result) = (self.plan, &mut self.result);
        let mut disk = Disk { tree, missing: String::new() };
        for file in plan.files() {
            if result.done.contains(file.id) {
                let size = file.known_size().or_else(|| result.sizes.get(&file.id).copied());
                result.present.add(size.unwrap_or(0));
            } else if result.replace.contains(file.id) && !self.doubtful.contains(file.id) {
                result.fetch.push(file.id);
            } else {
                match disk.find(file.path)? {
                    Found::Nothing => result.fetch.push(file.id),
                    Found::File(size) if file.known_size().is_none_or(|known| known == size) => {
                        result.adopt.push(file.id)
                    }
                    Found::File(_) | Found::Link => {
                        result.replace.insert(file.id);
                        result.fetch.push(file.id);
                    }
                    Found::Behind(size, path) => {
                        result.replace.insert(file.id);
                        if file.known_size().is_none_or(|known| known == size) {
                            result.behind.push((file.id, path));
                        } else {
                            result.fetch.push(file.id);
                        }
                    }
                }
            }
        }
        Ok(self.result)
    }

    /// Merges plan and state. The inner error is damage: the rest of the list is unknown.
    fn compare_state(&mut self, state: &State, own: &Root) -> Result<Result<(), String>, StateError> {
        let mut records = match state.records(own) {
            Ok(Some(records)) => records,
            Ok(None) if state.header.records == 0 => return Ok(Ok(())),
            Ok(None) => return Ok(Err(format!("{} is missing", state.list_path()))),
            Err(StateError::List { path, source }) => return Ok(Err(format!("{path}: {source}"))),
            Err(error) => return Err(error),
        };
        let plan = self.plan;
        let mut files = plan.files().peekable();
        loop {
            let record = match records.next() {
                Ok(Some(record)) => record,
                Ok(None) => return Ok(Ok(())),
                Err(error) => return Ok(Err(format!("{}: {error}", state.list_path()))),
            };
            while files.next_if(|file| file.path < record.path).is_some() {}
            if let Some(file) = files.next_if(|file| file.path == record.path) {
                self.compare_record(&file, &record, state)?;
            }
        }
    }

    fn compare_record(&mut self, file: &PlanFile<'_>, record: &Record<'_>, state: &State) -> Result<(), StateError> {
        let membership = &state.header.memberships[record.membership as usize];
        let unread = !state.trusted || state.overtaken || (membership.unsigned && self.needs_signature(file));
        let result = &mut self.result;
        if membership.expired && state.header.removal != Removal::None {
            return Ok(());
        }
        let is_same = file.is(record.size, record.sha256);
        if !is_same {
            let of_run = |member: &SuiteId| self.suites.iter().any(|(suite, _)| suite == member);
            let named =
                membership.members.iter().copied().filter(|member| of_run(member) && !self.gone.contains(member));
            result.displaced.insert(file.id, named.collect());
        }
        if result.done.contains(file.id) || result.replace.contains(file.id) {
            return Ok(());
        }
        if !is_same {
            let other = membership
                .members
                .iter()
                .find(|member| self.suites.iter().all(|(suite, _)| suite != *member) && !self.gone.contains(member));
            if let Some(other) = other.and_then(|&other| state.header.suites.get(usize::from(other))) {
                return Err(StateError::Conflict(Box::new(Conflict {
                    path: file.path.to_owned(),
                    index: self.plan.index_of(file.id).to_owned(),
                    wanted: file.sha256,
                    directory: other.directory.clone(),
                    requested: other.requested.clone(),
                    selection: other.selection.clone(),
                    fingerprint: other.fingerprint,
                    trust: other.trust,
                    origins: other.origins.clone(),
                    have: record.sha256,
                })));
            }
            // After a killed run the disk may be newer than the state, so it is looked at before fetching.
            if state.unfinished || state.overtaken {
                self.doubtful.insert(file.id);
            }
            result.replace.insert(file.id);
        } else if unread {
            self.doubtful.insert(file.id);
        } else {
            result.known(file, record.size);
        }
        Ok(())
    }
}

/// Suites of the state whose signed files are gone from the tree.
fn gone(state: &State, tree: &dyn Tree) -> Result<BTreeSet<SuiteId>, FileError> {
    let mut gone = BTreeSet::new();
    for (id, suite) in (0..).zip(&state.header.suites) {
        if suite.retired || LocalRelease::read(tree, &suite.directory)?.is_none() {
            gone.insert(id);
        }
    }
    Ok(gone)
}

enum Found {
    Nothing,
    File(u64),
    /// The path leads through a symbolic link to a file of this size, at this real path.
    Behind(u64, String),
    /// The path leads through a symbolic link, and to nothing.
    Link,
}

/// Looks up files in order of path, and skips missing directories: a first run needs one lookup, not a million.
struct Disk<'a> {
    tree: &'a dyn Tree,
    /// A directory that is missing, with a slash at the end.
    missing: String,
}

impl Disk<'_> {
    fn find(&mut self, path: &str) -> Result<Found, FileError> {
        if !self.missing.is_empty() && path.starts_with(&self.missing) {
            return Ok(Found::Nothing);
        }
        let status = match self.tree.stat(path) {
            // Only below `dists/` it is known which suite a link belongs to, so that it may be replaced.
            Err(FileError::Symlink { .. }) if path.starts_with("dists/") => {
                return Ok(match links::follow(self.tree, path)? {
                    Some((status, Some(real))) if status.kind == Kind::File => Found::Behind(status.size, real),
                    _ => Found::Link,
                });
            }
            other => other?,
        };
        match status {
            Some(status) if status.kind == Kind::File => Ok(Found::File(status.size)),
            // A link or a directory in place of a file; fetching the file reports it.
            Some(_) => Ok(Found::Nothing),
            None => {
                self.note_missing_directory(path)?;
                Ok(Found::Nothing)
            }
        }
    }

    fn note_missing_directory(&mut self, path: &str) -> Result<(), FileError> {
        // Innermost directory first, which usually exists.
        for (slash, _) in path.match_indices('/').collect::<Vec<_>>().into_iter().rev() {
            if self.tree.stat(&path[..slash])?.is_some() {
                break;
            }
            path[..=slash].clone_into(&mut self.missing);
        }
        Ok(())
    }
}
