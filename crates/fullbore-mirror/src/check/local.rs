//! Compares an archive with its own signed indexes, without the network.
//!
//! The Releases give the hashes of the indexes, and these the hashes of the files. Every file must exist and have its
//! size; a random share, or all, is also hashed. This works on trees of other tools, too. For fullbore's own trees the
//! state tells which files were selected.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io::BufReader;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_apt::signed_release::contradiction;
use fullbore_debian::classify::{IndexKind, classify};
use fullbore_debian::compression::Form;
use fullbore_debian::release::{IndexEntry, Release};
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};
use fullbore_engine::run::StoreFailure;
use fullbore_engine::stage::StageClock;

use super::findings::{Fault, Findings, IndexNames, Problem, SuiteFault, SuiteFound};
use crate::mirror::bucket::snapshots::{self, SnapshotFiles};
use crate::mirror::hash_files::{Job, Outcome, read_all};
use crate::mirror::index_reader::{plain_bytes_max, read_index};
use crate::mirror::layout::{below, broken_links};
use crate::mirror::links;
use crate::mirror::membership::{Membership, SuiteId};
use crate::mirror::other_suites::suite_directories;
use crate::mirror::plan::{FileId, Plan, PlanBuilder, PlanFile};
use crate::mirror::select::Reading;
use crate::mirror::signed_files::NestedSuites;
use crate::mirror::state::{State, StateError};
use crate::mirror::tree::Tree;
use crate::settings::Filters;

/// Options of [`check`].
pub(super) struct Options<'a> {
    /// The verifier; `None`: signatures are ignored (`Trusted: yes`).
    pub verifier: Option<&'a Verifier>,
    /// Share of the files whose content is read, 0 to 1.
    pub read_share: f64,
    /// Whether all other files are compared by the hash that the tree knows. A file without such a hash is read.
    pub checksums: bool,
    /// Seed of the random share; the same seed chooses the same files.
    pub seed: u64,
    /// Number of threads that read files.
    pub threads: usize,
    /// Clock of the stage "local scan".
    pub clock: &'a Arc<StageClock>,
    /// Flag of the caller; reading stops once it is set.
    pub stop: &'a AtomicBool,
    /// Callback for each read file, with its size in bytes.
    pub progress: &'a (dyn Fn(u64) + Sync),
}

/// Why a check could not run.
#[derive(Debug, thiserror::Error)]
pub(super) enum CheckError {
    /// There is no suite below the directory.
    #[error("{directory}: no InRelease or Release below dists/: not a Debian archive")]
    NoSuites {
        /// Path of the directory.
        directory: String,
    },
    /// No program that verifies signatures can be run.
    #[error("{directory}: {error}")]
    NoVerifier {
        /// Directory of the suite.
        directory: String,
        /// Reason of the failure.
        error: SignatureError,
    },
    /// The tree cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The state cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
}

/// Checks the archive in `tree`; `own` has fullbore's own files.
///
/// # Errors
/// [`CheckError`] if there is no suite, no signature verifier, or a tree or state that cannot be read. Wrong and
/// missing files are findings, not errors.
pub(super) fn check(own: &Root, tree: &dyn Tree, state: &State, options: &Options<'_>) -> Result<Findings, CheckError> {
    let snapshots = snapshots::read_all(tree)?;
    let with_snapshots = with_snapshots(state, &snapshots);
    let state = &with_snapshots;
    let mut checker = Checker::new(own, tree, state, options)?;
    checker.learn_snapshots(&snapshots);
    let mut plan = PlanBuilder::new(Filters::default());
    let mut listed = HashSet::new();
    for directory in checker.directories()? {
        // Directories are sorted, so the suite that lists this file was read before.
        if listed.contains(&below(&directory, "Release")) && !checker.is_suite(&directory)? {
            continue;
        }
        // A suite mirrored without a signature cannot be verified.
        let unsigned = state.suite(&directory).is_some_and(|suite| !suite.signed);
        let verifier = options.verifier.filter(|_| !unsigned);
        if unsigned && options.verifier.is_some() {
            checker.findings.unsigned.push(directory.clone());
        }
        let text = match signed_text(tree, &directory, verifier) {
            Err(SuiteFault::Signature(error)) if error.is_missing_program() => {
                return Err(CheckError::NoVerifier { directory, error });
            }
            other => other,
        };
        if let Ok(text) = &text {
            checker.check_detached(&directory, text, verifier)?;
        }
        let mut release = text.and_then(|text| Ok(Box::new(Release::parse(&text)?)));
        if let Ok(release) = &mut release {
            let entries = release.entries.iter().filter(|entry| entry.path.file_name() == "Release");
            listed.extend(entries.map(|entry| below(&directory, entry.path.as_str())));
            NestedSuites::new(tree, &directory, &state.header.suites, []).leave_out(release)?;
            checker.indexes(&directory, release, &mut plan)?;
        }
        checker.findings.suites.push(SuiteFound { directory, release });
    }
    if checker.findings.suites.is_empty() {
        return Err(CheckError::NoSuites { directory: tree.name() });
    }
    for lost in broken_links(tree, &state.header.suites)? {
        let is_copied = tree.links_are_copies();
        let fault = Fault::Link { target: lost.target.to_owned(), found: lost.found, is_copied };
        checker.problem(lost.link, None, Sha256::EMPTY, fault);
    }
    checker.choose(&mut plan)?;
    match plan.finish() {
        Ok(plan) => {
            checker.files(&plan)?;
            checker.extras(&plan)?;
        }
        Err(error) => checker.damaged("dists", Sha256::EMPTY, &error),
    }
    checker.findings.problems.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    Ok(checker.findings)
}

/// The state with the suites of snapshots in a bucket added. These have the selections and the trust settings of their
/// time.
fn with_snapshots(state: &State, snapshots: &[SnapshotFiles]) -> State {
    let mut header = state.header.clone();
    for snapshot in snapshots {
        let first = header.suites.len();
        header.suites.extend(snapshot.suites.iter().cloned());
        let members = (first..header.suites.len()).filter_map(|id| SuiteId::try_from(id).ok()).collect();
        header.memberships.push(Membership { members, ..Membership::default() });
    }
    State { header, ..State::default() }
}

/// Reads and verifies the Release of a suite.
fn signed_text(tree: &dyn Tree, directory: &str, verifier: Option<&Verifier>) -> Result<SignedText, SuiteFault> {
    let read = |name: &str, limit: usize| tree.read(&below(directory, name), limit as u64);
    Ok(if let Some(inrelease) = read("InRelease", RELEASE_BYTES_MAX)? {
        match verifier {
            Some(verifier) => verifier.verify_inrelease(&inrelease)?,
            None => SignedText::trusted(&inrelease)?,
        }
    } else {
        let release = read("Release", RELEASE_BYTES_MAX)?.ok_or(SuiteFault::NoSignature)?;
        match (verifier, read("Release.gpg", SIGNATURE_BYTES_MAX)?) {
            (None, _) => SignedText::trusted(&release)?,
            (Some(verifier), Some(signature)) => verifier.verify_detached(&release, &signature)?,
            (Some(_), None) => return Err(SuiteFault::NoSignature),
        }
    })
}

struct Checker<'a> {
    tree: &'a dyn Tree,
    state: &'a State,
    options: &'a Options<'a>,
    /// Membership of each file that the state lists, by the hash of its path.
    known: HashMap<u64, u32>,
    hasher: RandomState,
    /// Whether the state's list of files was read to its end.
    is_whole: bool,
    /// Paths of indexes, which are not extra files.
    indexes: HashSet<String>,
    findings: Findings,
}

/// A copy of an index in the tree.
struct IndexCopy {
    path: String,
    /// Real path of the copy, if a symbolic link leads to it.
    behind: Option<String>,
    size: u64,
    sha256: Sha256,
    /// Other names of the same file.
    twins: Vec<String>,
    names: IndexNames,
}

impl IndexCopy {
    fn path(&self) -> &str {
        self.behind.as_deref().unwrap_or(&self.path)
    }
}

impl<'a> Checker<'a> {
    fn new(own: &Root, tree: &'a dyn Tree, state: &'a State, options: &'a Options<'a>) -> Result<Self, CheckError> {
        let hasher = RandomState::new();
        let mut known = HashMap::new();
        // If the list is damaged, every file of the indexes is expected.
        let damage = match state.records(own) {
            Ok(Some(mut records)) => loop {
                match records.next() {
                    Ok(Some(record)) => drop(known.insert(hasher.hash_one(record.path), record.membership)),
                    Ok(None) => break None,
                    Err(error) => break Some(error.to_string()),
                }
            },
            Ok(None) if state.header.records == 0 => None,
            Ok(None) => Some("it is missing".to_owned()),
            Err(StateError::List { source, .. }) => Some(source.to_string()),
            Err(error) => return Err(error.into()),
        };
        let (findings, is_whole) = (Findings::default(), damage.is_none());
        let mut checker = Checker { tree, state, options, known, hasher, is_whole, indexes: HashSet::new(), findings };
        if let Some(damage) = damage {
            checker.problem(&state.list_path(), None, Sha256::EMPTY, Fault::List(damage));
        }
        Ok(checker)
    }

    /// Adds the files of snapshots to the known ones. Their memberships are the last entries of the state's table
    /// ([`with_snapshots`]).
    fn learn_snapshots(&mut self, snapshots: &[SnapshotFiles]) {
        let first = self.state.header.memberships.len() - snapshots.len();
        for (membership, snapshot) in (first as u32..).zip(snapshots) {
            for path in &snapshot.files {
                self.known.insert(self.hasher.hash_one(path), membership);
            }
        }
    }

    fn membership(&self, path: &str) -> Option<&Membership> {
        self.state.header.memberships.get(*self.known.get(&self.hasher.hash_one(path))? as usize)
    }

    /// Whether the state lists this file and it is not expired.
    fn is_known(&self, path: &str) -> bool {
        self.membership(path).is_some_and(|membership| !membership.expired)
    }

    /// Whether the list lacks files of the suite, because it was damaged.
    fn is_unknown(&self, suite: SuiteId) -> bool {
        self.state.header.suites.get(usize::from(suite)).is_some_and(|record| record.files_unknown)
    }

    /// Whether the suite no longer names this file because its selection was narrowed.
    fn was_given_up(&self, path: &str, suite: SuiteId) -> bool {
        self.membership(path).is_some_and(|membership| !membership.members.contains(&suite))
    }

    /// Suite directories: those below `dists/`, and flat repositories at the top or in the state.
    fn directories(&self) -> Result<Vec<String>, CheckError> {
        let mut directories = suite_directories(self.tree)?;
        let flat = self.state.header.suites.iter().filter(|suite| !suite.retired).map(|suite| suite.directory.clone());
        for directory in flat.chain([String::new()]) {
            let there = self.tree.stat(&below(&directory, "InRelease"))?.is_some()
                || self.tree.stat(&below(&directory, "Release"))?.is_some();
            if there && !directories.contains(&directory) {
                directories.push(directory);
            }
        }
        Ok(directories)
    }

    /// Whether this directory, whose `Release` another suite lists, is itself a suite. If not, its `Release` is an
    /// unsigned file of the other suite, as in component directories.
    fn is_suite(&self, directory: &str) -> Result<bool, CheckError> {
        Ok(NestedSuites::new(self.tree, "", &self.state.header.suites, []).is_suite(directory)?)
    }

    /// Checks `Release` and `Release.gpg` of a suite with an `InRelease`.
    fn check_detached(
        &mut self,
        directory: &str,
        text: &SignedText,
        verifier: Option<&Verifier>,
    ) -> Result<(), CheckError> {
        let path = |name: &str| below(directory, name);
        if self.tree.stat(&path("InRelease"))?.is_none() {
            return Ok(());
        }
        let release = self.tree.read(&path("Release"), RELEASE_BYTES_MAX as u64)?;
        let signature = self.tree.read(&path("Release.gpg"), SIGNATURE_BYTES_MAX as u64)?;
        let mut wrong = Vec::new();
        for (name, there) in [("Release", release.is_some()), ("Release.gpg", signature.is_some())] {
            if !there && self.is_known(&path(name)) {
                wrong.push((name, "missing".to_owned()));
            }
        }
        wrong.extend(release.and_then(|release| contradiction(&release, signature.as_deref(), text, verifier)));
        for (name, why) in wrong {
            self.problem(&path(name), None, Sha256::EMPTY, Fault::Detached(why));
        }
        Ok(())
    }

    /// Reads all indexes of a suite into the plan.
    fn indexes(&mut self, directory: &str, release: &Release, plan: &mut PlanBuilder) -> Result<(), CheckError> {
        let suite = self.state.suite_id(directory).unwrap_or(SuiteId::MAX);
        let (copies, missing) = self.find_copies(directory, suite, release)?;
        // For a recorded suite the list tells which indexes are missing. Such a suite has at least one package list.
        let is_told = !missing.is_empty();
        self.findings.problems.extend(missing);
        if !is_told {
            self.find_absent(directory, suite, release, &copies);
        }
        let right = self.read_copies(&copies)?;
        // One form of each index, among the right ones: the form that is fastest to read.
        let mut groups: BTreeMap<&str, (Form, Reading, usize)> = BTreeMap::new();
        let at_of: BTreeMap<(&str, Sha256), usize> = copies
            .iter()
            .enumerate()
            .filter(|(at, _)| right[*at])
            .map(|(at, copy)| ((copy.path.as_str(), copy.sha256), at))
            .collect();
        let by_content: BTreeMap<Sha256, usize> = at_of.iter().map(|((_, sha256), at)| (*sha256, *at)).collect();
        for entry in &release.entries {
            let name = classify(entry.path.as_str());
            let Some(reading) = Reading::of(&name) else { continue };
            let Some(&at) = by_content.get(&entry.sha256) else { continue };
            if groups.get(name.stem).is_none_or(|(form, ..)| name.form.is_faster_than(*form)) {
                groups.insert(name.stem, (name.form, reading, at));
            }
        }
        for (stem, (form, reading, at)) in groups {
            let copy = &copies[at];
            // Paths in an index are relative to the directory of its plain name, not of its by-hash name.
            let path = format!("{}{}", below(directory, stem), form.extension());
            let limit = plain_bytes_max(release, stem, copy.size);
            let Some((file, _)) = self.tree.open(copy.path())? else { continue };
            let fed = match plan.index(&path, suite) {
                // Entries that a mirror leaves out are not damage.
                Ok(id) => read_index(plan, id, reading, &path, form, limit, BufReader::new(file)).map(drop),
                Err(error) => Err(error.into()),
            };
            if let Err(error) = fed {
                self.damaged(&copy.path, copy.sha256, &error);
            }
        }
        Ok(())
    }

    /// Chooses a content for each path for which the indexes name several. Each of them is right, so the present one is
    /// chosen.
    fn choose(&self, plan: &mut PlanBuilder) -> Result<(), CheckError> {
        for (path, contents) in plan.alternatives().clone() {
            let job = |at: usize| {
                let content = contents.get(at)?;
                let known_is_enough = self.options.checksums;
                Some(Job {
                    id: at as u32,
                    path: &path,
                    size: Some(content.size),
                    sha256: content.sha256,
                    known_is_enough,
                })
            };
            let right = self.read(&job)?.into_iter().find(|(_, outcome)| matches!(outcome, Outcome::Right(_)));
            if let Some((at, _)) = right {
                plan.choose(&path, &contents[at as usize]);
            }
        }
        Ok(())
    }

    /// All copies of the Release's indexes, and the missing ones.
    fn find_copies(
        &mut self,
        directory: &str,
        suite: SuiteId,
        release: &Release,
    ) -> Result<(Vec<IndexCopy>, Vec<Problem>), CheckError> {
        let (mut copies, mut missing) = (Vec::<IndexCopy>::new(), Vec::new());
        for entry in &release.entries {
            let by_hash = if release.acquire_by_hash { entry.by_hash().unwrap_or_default() } else { Vec::new() };
            let names = IndexNames {
                canonical: below(directory, entry.path.as_str()),
                by_hash: by_hash.iter().map(|path| below(directory, path.as_str())).collect(),
            };
            let mut inode = None;
            for path in names.all().map(str::to_owned) {
                // A leftover of an earlier Release may have another hash.
                if self.was_given_up(&path, suite) {
                    continue;
                }
                let there = links::follow(self.tree, &path)?;
                let (size, sha256, names) = (entry.size, entry.sha256, names.clone());
                if there.is_none() && self.is_known(&path) {
                    self.findings.wanted.add(size);
                    missing.push(Problem { path, size: Some(size), sha256, fault: Fault::Missing, names: Some(names) });
                } else if let Some((there, behind)) = there {
                    self.indexes.insert(path.clone());
                    match copies.last_mut() {
                        Some(copy) if inode.is_some() && inode == there.inode => copy.twins.push(path),
                        _ => copies.push(IndexCopy { path, behind, size, sha256, twins: Vec::new(), names }),
                    }
                    inode = there.inode;
                }
            }
        }
        Ok((copies, missing))
    }

    /// Reports missing package lists of a suite whose selection is unknown, because it has no state or a damaged one.
    /// They are not errors. But if there is no list at all, one counts as missing.
    fn find_absent(&mut self, directory: &str, suite: SuiteId, release: &Release, copies: &[IndexCopy]) {
        let here: HashSet<Sha256> = copies.iter().map(|copy| copy.sha256).collect();
        let mut lists: BTreeMap<&str, (bool, &IndexEntry)> = BTreeMap::new();
        for entry in &release.entries {
            let name = classify(entry.path.as_str());
            if !name.diff && matches!(name.kind, IndexKind::Packages { .. } | IndexKind::Sources) {
                // An empty index is not reported: archives list many.
                let there = here.contains(&entry.sha256) || entry.size == 0;
                lists.entry(name.stem).or_insert((false, entry)).0 |= there;
            }
        }
        let any = !here.is_empty() && lists.values().any(|(there, _)| *there);
        let absent: BTreeSet<&str> = lists.iter().filter(|(_, (there, _))| !there).map(|(stem, _)| *stem).collect();
        match lists.values().next() {
            Some((_, entry)) if !any => {
                self.findings.wanted.add(entry.size);
                self.problem(&below(directory, entry.path.as_str()), Some(entry.size), entry.sha256, Fault::Missing);
            }
            _ if suite == SuiteId::MAX || !self.is_whole || self.is_unknown(suite) => {
                self.findings.absent.extend(absent.into_iter().map(|stem| below(directory, stem)));
            }
            _ => {}
        }
    }

    /// Reads indexes; returns for each whether it is right.
    fn read_copies(&mut self, copies: &[IndexCopy]) -> Result<Vec<bool>, CheckError> {
        let job = |at: usize| {
            let copy = copies.get(at)?;
            // Indexes are parsed, so they are read in any case.
            let (size, sha256) = (Some(copy.size), copy.sha256);
            Some(Job { id: at as u32, path: copy.path(), size, sha256, known_is_enough: false })
        };
        let mut right = vec![false; copies.len()];
        for (id, outcome) in self.read(&job)? {
            let copy = &copies[id as usize];
            self.findings.wanted.add(copy.size);
            right[id as usize] = matches!(outcome, Outcome::Right(_));
            let judged = self.findings.problems.len();
            self.judge(&copy.path, Some(copy.size), copy.sha256, outcome);
            // A problem of an index concerns all its names.
            if let Some(problem) = self.findings.problems.get_mut(judged) {
                problem.names = Some(copy.names.clone());
                let problem = problem.clone();
                let of_twin = |twin: &String| Problem { path: twin.clone(), ..problem.clone() };
                self.findings.problems.extend(copy.twins.iter().map(of_twin));
            }
        }
        Ok(right)
    }

    /// Checks every file that the indexes name.
    fn files(&mut self, plan: &Plan) -> Result<(), CheckError> {
        self.tree.expect(plan.parted());
        let mut chosen: Vec<(FileId, Option<String>, bool)> = Vec::new();
        for file in plan.files() {
            // Links are followed below `dists/` only: a pool behind a link may be on another disk.
            let there = match file.path.starts_with("dists/") {
                true => links::follow(self.tree, file.path)?,
                false => self.tree.stat(file.path)?.map(|status| (status, None)),
            };
            if there.is_none() && self.is_left_out(&file) {
                continue;
            }
            let size = file.known_size().or_else(|| there.as_ref().map(|(status, _)| status.size));
            self.findings.wanted.add(size.unwrap_or(0));
            let fault = match there {
                None => Fault::Missing,
                Some((status, _)) if status.kind != Kind::File => Fault::Unreadable("not a regular file".to_owned()),
                Some((status, _)) if file.known_size().is_some_and(|size| size != status.size) => {
                    Fault::Size(status.size)
                }
                Some((_, behind)) => {
                    let is_read = is_chosen(file.path, self.options.seed, self.options.read_share);
                    if is_read || self.options.checksums {
                        chosen.push((file.id, behind, !is_read));
                    } else {
                        (self.options.progress)(0);
                    }
                    continue;
                }
            };
            (self.options.progress)(0);
            self.problem(file.path, file.known_size(), file.sha256, fault);
        }
        let job = |at: usize| {
            let (id, behind, known_is_enough) = chosen.get(at)?;
            let file = plan.file(*id);
            Some(Job {
                id: file.id,
                path: behind.as_deref().unwrap_or(file.path),
                size: file.known_size(),
                sha256: file.sha256,
                known_is_enough: *known_is_enough,
            })
        };
        for (id, outcome) in self.read(&job)? {
            let file = plan.file(id);
            self.judge(file.path, file.known_size(), file.sha256, outcome);
        }
        Ok(())
    }

    /// Whether a missing file was never mirrored: filters excluded it, or it is an installer image of unknown size.
    fn is_left_out(&self, file: &PlanFile<'_>) -> bool {
        let left_out = |suite: &SuiteId| {
            let record = self.state.header.suites.get(usize::from(*suite));
            record.is_some_and(|record| record.filtered || file.known_size().is_none())
        };
        file.suites.iter().all(left_out) && !self.is_known(file.path)
    }

    /// Hashes files in parallel. A store that fails ends the check, because its failure says nothing about the files.
    fn read<'j>(&self, job: &(impl Fn(usize) -> Option<Job<'j>> + Sync)) -> Result<Vec<(u32, Outcome)>, CheckError> {
        let outcomes = Mutex::new((Vec::new(), None));
        let Options { threads, clock, stop, progress, .. } = *self.options;
        read_all(self.tree, job, threads, clock, stop, &|id, outcome| {
            progress(if let Outcome::Right(bytes) = outcome { bytes } else { 0 });
            let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
            match outcome {
                Outcome::Unreadable(error) if StoreFailure::behind(&error).is_some() => {
                    stop.store(true, Ordering::Relaxed);
                    outcomes.1.get_or_insert(error);
                }
                outcome => outcomes.0.push((id, outcome)),
            }
        });
        match outcomes.into_inner().unwrap_or_else(PoisonError::into_inner) {
            (_, Some(error)) => Err(CheckError::File(error)),
            (outcomes, None) => Ok(outcomes),
        }
    }

    fn judge(&mut self, path: &str, size: Option<u64>, sha256: Sha256, outcome: Outcome) {
        let fault = match outcome {
            Outcome::Right(bytes) => return self.findings.read.add(bytes),
            Outcome::Missing => Fault::Missing,
            Outcome::Size(found) => Fault::Size(found),
            Outcome::Hash(found) => Fault::Content(found),
            Outcome::Unreadable(error) => Fault::Unreadable(error.to_string()),
        };
        self.problem(path, size, sha256, fault);
    }

    fn problem(&mut self, path: &str, size: Option<u64>, sha256: Sha256, fault: Fault) {
        self.findings.problems.push(Problem { path: path.to_owned(), size, sha256, fault, names: None });
    }

    fn damaged(&mut self, path: &str, sha256: Sha256, error: &dyn std::error::Error) {
        self.problem(path, None, sha256, Fault::Damaged(error.to_string()));
    }

    /// Finds files that no index names. By-hash directories hold earlier Releases on purpose.
    fn extras(&mut self, plan: &Plan) -> Result<(), CheckError> {
        let mut extra = Vec::new();
        for top in ["dists", "pool"] {
            crate::mirror::clean::walk(self.tree, top, 0, &mut |path, name, kind| {
                let named = plan.find(path).is_some()
                    || self.indexes.contains(path)
                    || self.is_known(path)
                    || snapshots::is_marker(path)
                    || path.contains("/by-hash/")
                    || matches!(name, "InRelease" | "Release" | "Release.gpg");
                if kind == Kind::File && !named {
                    extra.push((path.to_owned(), self.tree.stat(path)?.map_or(0, |status| status.size)));
                }
                Ok(())
            })?;
        }
        extra.sort_unstable();
        self.findings.extra = extra;
        Ok(())
    }
}

/// Whether a file belongs to the random share, by SHA-256 of path and seed: one seed always chooses the same files.
fn is_chosen(path: &str, seed: u64, share: f64) -> bool {
    if share >= 1.0 {
        return true;
    }
    let hash = Sha256::of(format!("{seed} {path}").as_bytes());
    let mut first = [0; 8];
    first.copy_from_slice(&hash.as_bytes()[..8]);
    (u64::from_be_bytes(first) as f64) < share * 18_446_744_073_709_551_616.0
}

#[cfg(test)]
mod tests;
