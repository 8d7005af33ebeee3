//! Plan − present = what is to be fetched.
//!
//! Plan and state are both in order of path, so one pass over the two is enough and
//! the directory tree is not walked. The state is believed (`check` finds what someone
//! changed behind our back); only wanted files that it does not know are looked for on
//! disk, and if they have the right size they are to be read and hashed: so an archive
//! made by debmirror or ftpsync, or a lost state, costs reading, not fetching.

use std::cmp::Ordering;

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};

use super::plan::{FileId, Plan, PlanFile};
use super::standing::SuiteId;
use super::state::{OWN_DIRECTORY, Removal, State, StateError, index_path};

/// One bit for each file of a plan.
#[derive(Debug, Clone)]
pub struct FileSet {
    words: Vec<u64>,
    count: usize,
}

impl FileSet {
    /// No file of a plan of `files` files.
    pub fn new(files: usize) -> Self {
        FileSet { words: vec![0; files.div_ceil(64)], count: 0 }
    }

    /// Adds a file; `true` if it was not there.
    pub fn insert(&mut self, id: FileId) -> bool {
        let (word, bit) = (id as usize / 64, 1_u64 << (id % 64));
        let Some(word) = self.words.get_mut(word) else { return false };
        let fresh = *word & bit == 0;
        *word |= bit;
        self.count += usize::from(fresh);
        fresh
    }

    /// Takes a file out.
    pub fn remove(&mut self, id: FileId) {
        if let Some(word) = self.words.get_mut(id as usize / 64) {
            let bit = 1_u64 << (id % 64);
            self.count -= usize::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    /// Whether the file is in the set.
    pub fn contains(&self, id: FileId) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word & 1 << (id % 64) != 0)
    }

    /// Number of files in the set.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no file is in the set.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }
}

/// A file that a run which did not complete had finished, from the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoggedFile {
    /// Path below the mirror's directory.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// Hash of the content.
    pub sha256: Sha256,
    /// It was on disk for certain: before a checkpoint, or written in this boot.
    pub durable: bool,
    /// Accepted on the word of an index without a signature.
    pub unsigned: bool,
}

/// Where a file stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Tally {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Tally {
    /// Counts one more.
    pub fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// The wanted files, sorted by what has to be done for them.
#[derive(Debug)]
pub struct Subtraction {
    /// Files that are there, in the right content. Grows as others are done.
    pub done: FileSet,
    /// How many were there at once.
    pub present: Tally,
    /// To be fetched, in order of path.
    pub fetch: Vec<FileId>,
    /// There with the right size, but unknown: to be hashed, in order of path.
    pub adopt: Vec<FileId>,
    /// Files whose path holds other content now. They must not get their name before
    /// their suite is published: fetch them to [`super::state::index_path`].
    pub replace: FileSet,
    /// Finished by an earlier run and not wanted any more.
    pub orphans: Vec<LoggedFile>,
    /// Why the state's list could not be read to its end.
    pub damage: Option<String>,
}

impl Subtraction {
    /// Notes what hashing of a file to be adopted gave.
    pub fn adopted(&mut self, id: FileId, right: bool) {
        if right {
            self.done.insert(id);
        } else {
            self.replace.insert(id);
            self.fetch.push(id);
        }
    }

    /// The path to which a file is to be fetched.
    pub fn landing_path(&self, plan: &Plan, id: FileId) -> String {
        let file = plan.file(id);
        if self.replace.contains(id) { index_path(file.sha256) } else { file.path.to_owned() }
    }
}

/// Compares the plan with the state, the log and, where both are silent, the disk.
/// `signed` tells which suites of this run carry a valid signature.
///
/// # Errors
/// A path that another suite, mirrored before, needs with other content; refusals of the system.
pub fn subtract(
    plan: &Plan,
    state: &State,
    log: impl IntoIterator<Item = LoggedFile>,
    root: &Root,
    signed: impl Fn(SuiteId) -> bool,
    this_run: impl Fn(SuiteId) -> bool,
) -> Result<Subtraction, StateError> {
    let mut result = Subtraction {
        done: FileSet::new(plan.len()),
        present: Tally::default(),
        fetch: Vec::new(),
        adopt: Vec::new(),
        replace: FileSet::new(plan.len()),
        orphans: Vec::new(),
        damage: None,
    };
    let needs_signature = |file: &PlanFile<'_>| file.suites.iter().any(|&suite| signed(suite));
    // Files that are on disk for certain but whose content must be read again.
    let mut doubtful = FileSet::new(plan.len());
    for logged in log {
        match plan.find(&logged.path) {
            Some(file) if file.size == logged.size && file.sha256 == logged.sha256 => {
                if logged.durable && !(logged.unsigned && needs_signature(&file)) {
                    result.done.insert(file.id);
                } else {
                    doubtful.insert(file.id);
                }
            }
            // Written over by the run that was killed: what the state says is out of date.
            Some(file) => {
                result.replace.insert(file.id);
            }
            // Waiting files have no name in the mirror yet; they are found by their hash.
            None if logged.path.starts_with(OWN_DIRECTORY) => {}
            None => result.orphans.push(logged),
        }
    }
    if let Err(error) = compare_state(plan, state, root, &mut result, &mut doubtful, &needs_signature, &this_run)? {
        result.damage = Some(error);
    }
    let mut disk = Disk { root, missing: String::new() };
    for file in plan.files() {
        if result.done.contains(file.id) {
            result.present.add(file.size);
        } else if result.replace.contains(file.id) && !doubtful.contains(file.id) {
            result.fetch.push(file.id);
        } else {
            match disk.look(file.path)? {
                Found::Nothing => result.fetch.push(file.id),
                Found::File(size) if size == file.size => result.adopt.push(file.id),
                Found::File(_) => {
                    result.replace.insert(file.id);
                    result.fetch.push(file.id);
                }
            }
        }
    }
    Ok(result)
}

/// The merge of plan and state. The inner error is damage: the rest of the list is unknown.
fn compare_state(
    plan: &Plan,
    state: &State,
    root: &Root,
    result: &mut Subtraction,
    doubtful: &mut FileSet,
    needs_signature: &impl Fn(&PlanFile<'_>) -> bool,
    this_run: &impl Fn(SuiteId) -> bool,
) -> Result<Result<(), String>, StateError> {
    let Some(mut records) = (match state.records(root) {
        Ok(records) => records,
        Err(StateError::List { path, source }) => return Ok(Err(format!("{path}: {source}"))),
        Err(error) => return Err(error),
    }) else {
        let missing = state.header.records > 0;
        return Ok(if missing { Err(format!("{} is missing", state.list_path())) } else { Ok(()) });
    };
    let mut files = plan.files().peekable();
    loop {
        let record = match records.next() {
            Ok(Some(record)) => record,
            Ok(None) => return Ok(Ok(())),
            Err(error) => return Ok(Err(format!("{}: {error}", state.list_path()))),
        };
        while files.next_if(|file| file.path < record.path).is_some() {}
        let Some(file) = files.next_if(|file| file.path.cmp(record.path) == Ordering::Equal) else { continue };
        let standing = &state.header.standings[record.standing as usize];
        if standing.expired && state.header.removal != Removal::None {
            continue;
        }
        if result.done.contains(file.id) || result.replace.contains(file.id) {
            continue;
        }
        if record.sha256 != file.sha256 || record.size != file.size {
            let other = standing.members.iter().find(|&&suite| !this_run(suite));
            if let Some(other) = other.and_then(|&other| state.header.suites.get(usize::from(other))) {
                return Err(StateError::Conflict {
                    path: file.path.to_owned(),
                    index: plan.index_of(file.id).to_owned(),
                    wanted: file.sha256,
                    directory: other.directory.clone(),
                    have: record.sha256,
                });
            }
            // After a killed run the disk may be ahead of the state: look before fetching.
            if state.unfinished {
                doubtful.insert(file.id);
            }
            result.replace.insert(file.id);
        } else if !state.trusted || (standing.unsigned && needs_signature(&file)) {
            doubtful.insert(file.id);
        } else {
            result.done.insert(file.id);
        }
    }
}

enum Found {
    Nothing,
    File(u64),
}

/// Looks for files in order of path and skips what lies in directories that are missing:
/// the first run into an empty directory costs one look, not a million.
struct Disk<'a> {
    root: &'a Root,
    /// A directory found missing, with a slash at its end.
    missing: String,
}

impl Disk<'_> {
    fn look(&mut self, path: &str) -> Result<Found, FileError> {
        if !self.missing.is_empty() && path.starts_with(&self.missing) {
            return Ok(Found::Nothing);
        }
        match self.root.stat(path)? {
            Some(status) if status.kind == Kind::File => Ok(Found::File(status.size)),
            // A link or a directory where a file belongs; landing will say so.
            Some(_) => Ok(Found::Nothing),
            None => {
                self.note_missing_directory(path)?;
                Ok(Found::Nothing)
            }
        }
    }

    fn note_missing_directory(&mut self, path: &str) -> Result<(), FileError> {
        // Innermost first: mostly the directory is there and one look is enough.
        for (slash, _) in path.match_indices('/').collect::<Vec<_>>().into_iter().rev() {
            if self.root.stat(&path[..slash])?.is_some() {
                break;
            }
            path[..=slash].clone_into(&mut self.missing);
        }
        Ok(())
    }
}
