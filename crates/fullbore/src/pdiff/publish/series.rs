//! The patches of one index: what was published, the step that comes, and merged ones.

use std::collections::HashSet;
use std::io::{BufReader, Read as _};

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::{Listed, ListedPatch, OlderFile, Publication};
use fullbore_debian::pdiff::{Edits, Piece, SCRIPT_BYTES_MAX, Splice};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::{Barrier, WriteBack};
use fullbore_engine::files::{PartFile, Root};

use super::super::generate::{StepError, generate};
use super::super::{file_error, gz, input};
use super::find::Index;
use super::states::{Kept, States};
use super::{Outcome, listed, names};
use crate::error::{CommandError, ErrorKind};

/// Largest `diff/Index` that is read: 10,000 patches in all its lists.
const INDEX_FILE_BYTES_MAX: u64 = 16 << 20;
/// Files that stay beside those that are listed. A day of merged patches, four times over.
const OLDER_MAX: usize = 1_000;

/// Where names by hash are, below a directory of indexes. apt asks for the strongest hash of the
/// Release, and by the usual name if there is no such file.
const BY_HASH: &str = "by-hash/SHA256";
/// Older ones that stay however old they are: an archive may be published once a month.
const BY_HASH_KEPT: usize = 3;

/// Where the state before is found.
pub(super) enum Before {
    /// Kept by the last run.
    Kept(States),
    /// In another copy of the directory.
    Tree(Root),
}

/// What all indexes have in common.
pub(super) struct Series<'a> {
    pub root: &'a Root,
    pub barrier: &'a Barrier,
    pub before: &'a Before,
    pub merged: bool,
    pub patches_max: usize,
    pub keep_s: i64,
    pub now_unix_s: i64,
}

/// What is ready to be published of an index; its patches are there already.
pub(super) struct Next {
    pub outcome: Outcome,
    change: Change,
    state: Option<PartFile>,
    states_before: Vec<Kept>,
    expired: Vec<String>,
}

impl Next {
    /// Whether the Release has to be made anew for it.
    pub(super) fn changes_index(&self) -> bool {
        !matches!(self.change, Change::Nothing)
    }
}

/// What happens to the `Index`.
enum Change {
    Nothing,
    /// It lists what is there.
    Write(String),
    /// It would list patches to a state that is not the present one.
    Remove,
}

/// The state before the present one.
struct State {
    text: Vec<u8>,
    sha256: Sha256,
}

/// A patch, packed.
struct Packed {
    listed: ListedPatch,
    gz: Vec<u8>,
}

impl Series<'_> {
    /// Makes and writes the patches to the present state of an index.
    pub(super) fn advance(&self, index: &Index, warn: &mut dyn FnMut(String)) -> Result<Next, CommandError> {
        let Some((file, _)) = self.root.open_file(&index.file()).map_err(file_error)? else {
            return Err(CommandError::new(ErrorKind::Disk, format_args!("{} has gone", index.file())));
        };
        let text = input::index_of(file, index.form)
            .map_err(|error| CommandError::new(ErrorKind::Verification, format_args!("{}: {error}", index.file())))?;
        let current = listed(&text);
        let (published, is_here) = self.published(index, warn)?;
        let states_before = match self.before {
            Before::Kept(states) => states.of(&index.path)?,
            Before::Tree(_) => Vec::new(),
        };
        let state = match self.before {
            Before::Kept(states) if states_before.iter().all(|kept| kept.sha256 != current.sha256) => {
                Some(states.write(&index.path, current.sha256, &text)?)
            }
            _ => None,
        };
        let mut next = Next {
            outcome: Outcome {
                index: index.path.clone(),
                outcome: "unchanged",
                patches: 0,
                merged: 0,
                added: None,
                patch_bytes: 0,
                download_bytes: 0,
            },
            change: Change::Nothing,
            state,
            states_before,
            expired: Vec::new(),
        };
        let is_current = published.as_ref().is_some_and(|published| published.current.sha256 == current.sha256);
        let as_asked = |published: &&Publication| is_here && is_current && published.merged.is_some() == self.merged;
        if let Some(published) = published.as_ref().filter(as_asked) {
            next.outcome.patches = published.steps.len();
            next.outcome.merged = published.merged.as_ref().map_or(0, Vec::len);
            // The Index stays as it is, and so does the Release; only files that nobody needs go.
            next.expired = self.split_older(published.older.clone()).1;
            next.expired.iter_mut().for_each(|file| *file = index.beside(file));
            return Ok(next);
        }
        let mut steps = published.as_ref().map(|published| published.steps.clone()).unwrap_or_default();
        let mut new_step = None;
        if is_current {
            next.outcome.outcome = "relisted";
        } else {
            match self.state_before(index, published.as_ref(), &next.states_before, warn)? {
                Some(before) if before.sha256 == current.sha256 => {
                    next.outcome.outcome = if published.is_some() { "whole" } else { "first" };
                    steps.clear();
                }
                Some(before) => {
                    let continues = published.as_ref().is_some_and(|last| last.current.sha256 == before.sha256);
                    next.outcome.outcome = if continues || published.is_none() { "extended" } else { "restarted" };
                    if !continues {
                        steps.clear();
                    }
                    match generate(&before.text, &text) {
                        Ok((edits, script)) => {
                            let name = self.step_name(index, steps.last());
                            let history = listed(&before.text);
                            drop(before);
                            let packed = pack(name, history, &script);
                            next.outcome.added = Some(packed.listed.name.clone());
                            next.outcome.patch_bytes = packed.listed.patch.size;
                            next.outcome.download_bytes = packed.listed.download.size;
                            self.write_patch(index, &packed)?;
                            steps.push(packed.listed);
                            new_step = Some(edits);
                        }
                        Err(StepError::Wrong) => {
                            let message = format!("{}: {}", index.path, StepError::Wrong);
                            return Err(CommandError::new(ErrorKind::Internal, message));
                        }
                        Err(error) => {
                            warn(format!("{}: {error}; clients fetch it whole", index.path));
                            next.outcome.outcome = "whole";
                            steps.clear();
                        }
                    }
                }
                None => {
                    next.outcome.outcome = if published.is_some() { "whole" } else { "first" };
                    steps.clear();
                }
            }
        }
        drop(text);
        steps.drain(..steps.len().saturating_sub(self.patches_max));
        let merged = match self.merged {
            true => Some(self.sweep(index, &mut steps, new_step, &current, warn)?),
            false => {
                self.without_missing(index, &mut steps, warn)?;
                None
            }
        };
        next.outcome.patches = steps.len();
        next.outcome.merged = merged.as_ref().map_or(0, Vec::len);
        self.list(index, &mut next, published, Publication { current, steps, merged, older: Vec::new() })?;
        Ok(next)
    }

    /// What was published before, and whether that is here; nothing if it cannot be read.
    fn published(
        &self,
        index: &Index,
        warn: &mut dyn FnMut(String),
    ) -> Result<(Option<Publication>, bool), CommandError> {
        let path = index.beside("Index");
        let mut bytes = self.root.read(&path, INDEX_FILE_BYTES_MAX).map_err(file_error)?;
        let is_here = bytes.is_some();
        if let (None, Before::Tree(tree)) = (&bytes, self.before) {
            bytes = tree.read(&path, INDEX_FILE_BYTES_MAX).map_err(file_error)?;
        }
        let Some(bytes) = bytes else { return Ok((None, false)) };
        match Publication::parse(&bytes[..]) {
            Ok(published) => {
                if let Before::Tree(tree) = self.before {
                    self.carry_over(index, tree, &published)?;
                }
                Ok((Some(published), is_here))
            }
            Err(error) => {
                warn(format!("{path}: {error}; its patches are left out"));
                Ok((None, is_here))
            }
        }
    }

    /// Files that the other copy has and this one lacks.
    fn carry_over(&self, index: &Index, tree: &Root, published: &Publication) -> Result<(), CommandError> {
        let listed = published.patches().map(ListedPatch::file);
        for file in listed.chain(published.older.iter().map(|older| older.file.clone())) {
            let path = index.beside(&file);
            if self.root.stat(&path).map_err(file_error)?.is_none()
                && let Some(content) = tree.read(&path, SCRIPT_BYTES_MAX as u64).map_err(file_error)?
            {
                self.write(&path, &content)?;
            }
        }
        Ok(())
    }

    /// The state that the last published patch led to, or another one if that is not to be had.
    fn state_before(
        &self,
        index: &Index,
        published: Option<&Publication>,
        kept: &[Kept],
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<State>, CommandError> {
        let found = match self.before {
            Before::Kept(states) => {
                // A run that was killed may have left two: the one that was published is wanted.
                let rank = |kept: &&Kept| published.is_some_and(|last| last.current.sha256 == kept.sha256);
                let kept = kept.iter().max_by_key(rank);
                let text = kept.map(|kept| states.read(kept)).transpose()?.flatten();
                text.zip(kept).map(|(text, kept)| State { text, sha256: kept.sha256 })
            }
            Before::Tree(tree) => state_in(tree, &index.path)?,
        };
        let Some(published) = published else { return Ok(found) };
        let Some(found) = found else {
            warn(format!("{}: no state is kept to make a patch from; patches begin anew", index.path));
            return Ok(None);
        };
        if found.sha256 == published.current.sha256 {
            return Ok(Some(found));
        }
        // The last run published, and was killed before it kept the state: the patches lead there.
        if let Some(state) = self.patched(index, &found, published)? {
            return Ok(Some(state));
        }
        warn(format!("{}: its patches do not lead to the state before; they begin anew", index.path));
        Ok(Some(found))
    }

    /// The state that was published, made of an older one by the patches themselves.
    fn patched(&self, index: &Index, old: &State, published: &Publication) -> Result<Option<State>, CommandError> {
        let Some(first) = published.steps.iter().rposition(|step| step.history.sha256 == old.sha256) else {
            return Ok(None);
        };
        let mut steps = Vec::new();
        for step in &published.steps[first..] {
            let Some(edits) = self.read_patch(index, step)? else { return Ok(None) };
            steps.push(edits);
        }
        let Ok(edits) = Edits::chain(steps) else { return Ok(None) };
        let mut text = Vec::with_capacity(old.text.len() + usize::try_from(edits.text_bytes()).unwrap_or(0));
        let mut take = |piece: Piece<'_>| match piece {
            Piece::Old(range) => text.extend_from_slice(&old.text[range]),
            Piece::New(new) => text.extend_from_slice(new),
        };
        let mut splice = Splice::new(&edits);
        splice.feed(&old.text, &mut take);
        let fits = splice.finish(&mut take).is_ok();
        let state = State { sha256: Sha256::of(&text), text };
        Ok(Some(state).filter(|state| fits && state.sha256 == published.current.sha256))
    }

    fn step_name(&self, index: &Index, last: Option<&ListedPatch>) -> String {
        let is_taken = |name: &str| !matches!(self.root.stat(&index.beside(&format!("{name}.gz"))), Ok(None));
        names::step(self.now_unix_s, last.map(|last| last.name.as_str()), is_taken)
    }

    /// A patch from each state to the present one: from the newest step to the oldest, so that each
    /// is the one before it with one step joined in front.
    fn sweep(
        &self,
        index: &Index,
        steps: &mut Vec<ListedPatch>,
        mut newest: Option<Edits>,
        current: &Listed,
        warn: &mut dyn FnMut(String),
    ) -> Result<Vec<ListedPatch>, CommandError> {
        let Some(last) = steps.last().map(|step| step.name.clone()) else {
            return Ok(Vec::new());
        };
        let at_once = std::thread::available_parallelism().map_or(1, usize::from);
        // apt takes the last entry that has its state, so one is enough of those that come again.
        let mut seen = HashSet::from([current.sha256]);
        let (mut all, mut scripts, mut merged) = (Edits::default(), Vec::new(), Vec::new());
        let mut number = steps.len();
        while number > 0 {
            number -= 1;
            let step = &steps[number];
            let edits = match newest.take() {
                Some(edits) => Some(edits),
                None => self.read_patch(index, step)?,
            };
            let joined = edits.and_then(|edits| Edits::chain(vec![edits, all]).ok());
            let mut script = Vec::new();
            let Some(joined) = joined.filter(|joined| joined.write_ed(&mut script).is_ok()) else {
                warn(format!("{}: {} cannot be read; it and older patches are left out", index.path, step.file()));
                steps.drain(..=number);
                break;
            };
            all = joined;
            if seen.insert(step.history.sha256) {
                scripts.push((names::merged(&last, &step.name), step.history, script));
            }
            if scripts.len() >= at_once {
                merged.extend(self.write_patches(index, &mut scripts)?);
            }
        }
        merged.extend(self.write_patches(index, &mut scripts)?);
        merged.reverse();
        Ok(merged)
    }

    /// Packs scripts, each on a core of its own, and writes them.
    fn write_patches(
        &self,
        index: &Index,
        scripts: &mut Vec<(String, Listed, Vec<u8>)>,
    ) -> Result<Vec<ListedPatch>, CommandError> {
        let packed: Vec<Packed> = std::thread::scope(|scope| {
            let threads: Vec<_> = scripts
                .drain(..)
                .map(|(name, history, script)| scope.spawn(move || pack(name, history, &script)))
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("compression into memory does not panic")).collect()
        });
        packed.into_iter().map(|packed| self.write_patch(index, &packed).map(|()| packed.listed)).collect()
    }

    fn write_patch(&self, index: &Index, packed: &Packed) -> Result<(), CommandError> {
        self.write(&index.beside(&packed.listed.file()), &packed.gz)
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<(), CommandError> {
        let part = self.root.write_part(path, content).map_err(file_error)?;
        let mut write_back = WriteBack::default();
        let named = self
            .barrier
            .written(&part, &mut write_back, 0, content.len() as u64)
            .and_then(|()| self.barrier.before_name(&part, &mut write_back, content.len() as u64))
            .and_then(|()| part.finish())
            .and_then(|()| self.barrier.after_name(part.directory()));
        named.map_err(file_error)
    }

    /// Leaves out steps that cannot be followed because a file is missing.
    fn without_missing(
        &self,
        index: &Index,
        steps: &mut Vec<ListedPatch>,
        warn: &mut dyn FnMut(String),
    ) -> Result<(), CommandError> {
        for number in (0..steps.len()).rev() {
            let step = &steps[number];
            let status = self.root.stat(&index.beside(&step.file())).map_err(file_error)?;
            if status.is_none_or(|status| status.size != step.download.size) {
                warn(format!("{}: {} is missing; it and older patches are left out", index.path, step.file()));
                steps.drain(..=number);
                break;
            }
        }
        Ok(())
    }

    /// Reads a published patch; `None` when it is not what the Index says.
    fn read_patch(&self, index: &Index, step: &ListedPatch) -> Result<Option<Edits>, CommandError> {
        let path = index.beside(&step.file());
        let Some((file, _)) = self.root.open_file(&path).map_err(file_error)? else {
            return Ok(None);
        };
        let mut script = Vec::new();
        let reader = Reader::open(Form::Gz, BufReader::new(file), step.patch.size.min(SCRIPT_BYTES_MAX as u64));
        if reader.and_then(|mut reader| reader.read_to_end(&mut script)).is_err() {
            return Ok(None);
        }
        let right = script.len() as u64 == step.patch.size && Sha256::of(&script) == step.patch.sha256;
        Ok(if right { Edits::parse(script).ok() } else { None })
    }

    /// Decides on the new Index, and on files that leave it.
    fn list(
        &self,
        index: &Index,
        next: &mut Next,
        published: Option<Publication>,
        mut publication: Publication,
    ) -> Result<(), CommandError> {
        if publication.steps.is_empty() {
            if published.is_some() {
                next.change = Change::Remove;
            }
            return Ok(());
        }
        let listed: HashSet<String> = publication.patches().map(ListedPatch::file).collect();
        let mut older = Vec::new();
        let mut known: HashSet<String> = HashSet::new();
        if let Some(published) = published {
            let dropped =
                published.patches().map(|patch| OlderFile { file: patch.file(), since_unix_s: self.now_unix_s });
            older = published.older.iter().cloned().chain(dropped).collect();
        }
        older.retain(|older| !listed.contains(&older.file) && known.insert(older.file.clone()));
        // Files of a run that was killed, or of an Index that could not be continued.
        for (name, _) in self.root.list(&format!("{}.diff", index.path)).map_err(file_error)? {
            let Some(file) = name.to_str().filter(|name| name.ends_with(".gz")) else { continue };
            if !listed.contains(file) && known.insert(file.to_owned()) {
                older.push(OlderFile { file: file.to_owned(), since_unix_s: self.now_unix_s });
            }
        }
        let (kept, expired) = self.split_older(older);
        (publication.older, next.expired) = (kept, expired);
        next.expired.iter_mut().for_each(|file| *file = index.beside(file));
        next.change = Change::Write(publication.render());
        Ok(())
    }

    /// Files that stay for a while, and those that have stayed long enough.
    fn split_older(&self, mut older: Vec<OlderFile>) -> (Vec<OlderFile>, Vec<String>) {
        older.sort_by(|a, b| (a.since_unix_s, &a.file).cmp(&(b.since_unix_s, &b.file)));
        let too_many = older.len().saturating_sub(OLDER_MAX);
        let last = self.now_unix_s - self.keep_s;
        let is_over = |(number, older): (usize, &OlderFile)| number < too_many || older.since_unix_s < last;
        let over = older.iter().enumerate().filter(|entry| is_over((entry.0, entry.1))).count();
        let kept = older.split_off(over);
        (kept, older.into_iter().map(|older| older.file).collect())
    }

    /// Gives the Index its name. The patches it lists are on the disk.
    pub(super) fn publish(&self, index: &Index, next: &Next) -> Result<(), CommandError> {
        let path = index.beside("Index");
        match &next.change {
            Change::Nothing => Ok(()),
            Change::Write(text) => {
                self.write(&path, text.as_bytes())?;
                self.name_by_hash(index, &path, text)
            }
            Change::Remove => self.root.unlink(&path).map(drop).map_err(file_error),
        }
    }

    /// Where indexes have names by hash, the Index has one too: who reads the Release of before then
    /// finds the Index that it lists.
    fn name_by_hash(&self, index: &Index, path: &str, text: &str) -> Result<(), CommandError> {
        let beside = index.path.rsplit_once('/').map_or(String::new(), |(directory, _)| format!("{directory}/"));
        if self.root.stat(&format!("{beside}{BY_HASH}")).map_err(file_error)?.is_none() {
            return Ok(());
        }
        let directory = index.beside(BY_HASH);
        let name = format!("{directory}/{}", Sha256::of(text.as_bytes()));
        self.root.create_directory(&directory, 0o755).map_err(file_error)?;
        self.root.hard_link(path, &name).map_err(file_error)?;
        let mut older = Vec::new();
        for (entry, _) in self.root.list(&directory).map_err(file_error)? {
            let path = format!("{directory}/{}", entry.to_string_lossy());
            if let Some(status) = self.root.stat(&path).map_err(file_error)?.filter(|_| path != name) {
                older.push((status.mtime, path));
            }
        }
        older.sort();
        older.truncate(older.len().saturating_sub(BY_HASH_KEPT));
        for (_, path) in older.iter().filter(|(mtime, _)| *mtime < self.now_unix_s - self.keep_s) {
            self.root.unlink(path).map_err(file_error)?;
        }
        Ok(())
    }

    /// What is left to do when the Index is on the disk.
    pub(super) fn settle(&self, next: &mut Next) -> Result<(), CommandError> {
        if let Before::Kept(states) = self.before {
            states.settle(next.state.as_ref(), &next.states_before)?;
        }
        for path in &next.expired {
            self.root.unlink(path).map_err(file_error)?;
        }
        Ok(())
    }
}

/// An index as another tree has it, in whichever form.
fn state_in(tree: &Root, path: &str) -> Result<Option<State>, CommandError> {
    for form in super::find::BY_SPEED {
        let file = format!("{path}{}", form.extension());
        if let Some((file, _)) = tree.open_file(&file).map_err(file_error)? {
            let text = input::index_of(file, form).map_err(|error| {
                let path = tree.path().join(path);
                CommandError::new(ErrorKind::Verification, format_args!("{}: {error}", path.display()))
            })?;
            return Ok(Some(State { sha256: Sha256::of(&text), text }));
        }
    }
    Ok(None)
}

fn pack(name: String, history: Listed, script: &[u8]) -> Packed {
    let gz = gz(script);
    let listed = ListedPatch { name, history, patch: listed(script), download: listed(&gz) };
    Packed { listed, gz }
}
