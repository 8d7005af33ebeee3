//! The patches of one index: [`Series::advance`] prepares those of this run.

mod before;
mod older;
mod patches;

use fullbore_debian::diff_index::{Listed, ListedPatch, Publication};
use fullbore_debian::pdiff::Edits;
use fullbore_engine::durability::Barrier;
use fullbore_engine::files::{PartFile, Root};
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::report::{IndexPatches, PatchesChange};

use super::super::step::{StepError, generate};
use super::super::{file_error, input};
use super::find::Index;
use super::listed;
use super::states::{SavedState, States};
use before::Published;
use patches::pack;

/// The source of the previous state.
pub(super) enum Before {
    /// The state that the last run saved.
    Saved(States),
    /// In another copy of the directory.
    Tree(Root),
}

/// The settings for all indexes.
pub(super) struct Series<'a> {
    pub root: &'a Root,
    pub barrier: &'a Barrier,
    pub before: &'a Before,
    pub merged: bool,
    pub patches_max: usize,
    pub keep_s: i64,
    pub now_unix_s: i64,
}

/// The prepared publication of an index; its patches are written.
pub(super) struct Next {
    pub outcome: IndexPatches,
    change: Change,
    state: Option<PartFile>,
    states_before: Vec<SavedState>,
    expired: Vec<String>,
}

impl Next {
    /// Whether the archive needs a new Release for it.
    pub(super) fn changes_index(&self) -> bool {
        !matches!(self.change, Change::Nothing)
    }
}

/// The change of the `Index`.
enum Change {
    Nothing,
    /// The new content.
    Write(String),
    /// Its patches do not lead to the current state.
    Remove,
}

impl Series<'_> {
    /// Generates and writes the patches to the current state of an index.
    pub(super) fn advance(&self, index: &Index, warn: &mut dyn FnMut(String)) -> Result<Next, CommandError> {
        let Some((file, _)) = self.root.open_file(&index.file()).map_err(file_error)? else {
            return Err(CommandError::new(
                ErrorKind::Disk,
                format_args!("{} was removed during the run", index.file()),
            ));
        };
        let text = input::index_of(file, index.form)
            .map_err(|error| CommandError::new(ErrorKind::Verification, format_args!("{}: {error}", index.file())))?;
        let current = listed(&text);
        let published = self.published(index, warn)?;
        let mut next = self.begin(index, &text, &current)?;
        let as_asked = |last: &&Publication| {
            published.is_here && last.current.sha256 == current.sha256 && last.merged.is_some() == self.merged
        };
        if let Some(last) = published.last.as_ref().filter(as_asked) {
            // Index and Release stay; only unneeded files are removed.
            next.outcome.patches = last.steps.len() as u64;
            next.outcome.merged = last.merged.as_ref().map_or(0, |merged| merged.len() as u64);
            next.expired = self.split_older(index, last.older.clone()).1;
            return Ok(next);
        }
        let (mut steps, newest) = self.steps(index, &published, &text, &current, &mut next, warn)?;
        drop(text);
        steps.drain(..steps.len().saturating_sub(self.patches_max));
        let merged = match self.merged {
            true => Some(self.sweep(index, &mut steps, newest, &current, warn)?),
            false => self.without_missing(index, &mut steps, warn).map(|()| None)?,
        };
        next.outcome.patches = steps.len() as u64;
        next.outcome.merged = merged.as_ref().map_or(0, |merged| merged.len() as u64);
        let publication = Publication { current, steps, merged, older: Vec::new() };
        self.list(index, &mut next, &published, publication)?;
        Ok(next)
    }

    /// Saves the current state for the next run, unless it is saved already.
    fn begin(&self, index: &Index, text: &[u8], current: &Listed) -> Result<Next, CommandError> {
        let (mut state, mut states_before) = (None, Vec::new());
        if let Before::Saved(states) = self.before {
            states_before = states.of(&index.path)?;
            if states_before.iter().all(|saved| saved.sha256 != current.sha256) {
                state = Some(states.write(&index.path, current.sha256, text)?);
            }
        }
        let outcome = IndexPatches::new(&index.path);
        Ok(Next { outcome, change: Change::Nothing, state, states_before, expired: Vec::new() })
    }

    /// The patches to the current state, and the edits of a new last one.
    fn steps(
        &self,
        index: &Index,
        published: &Published,
        text: &[u8],
        current: &Listed,
        next: &mut Next,
        warn: &mut dyn FnMut(String),
    ) -> Result<(Vec<ListedPatch>, Option<Edits>), CommandError> {
        let last = published.last.as_ref();
        let outcome = &mut next.outcome;
        if let Some(last) = last.filter(|last| last.current.sha256 == current.sha256) {
            outcome.what = PatchesChange::Relisted;
            return Ok((last.steps.clone(), None));
        }
        let Some(before) = self.state_before(index, last, &next.states_before, warn)? else {
            outcome.what = if last.is_some() { PatchesChange::Whole } else { PatchesChange::First };
            return Ok((Vec::new(), None));
        };
        if before.sha256 == current.sha256 {
            outcome.what = if last.is_some() { PatchesChange::Whole } else { PatchesChange::Unchanged };
            return Ok((Vec::new(), None));
        }
        let (edits, script) = match generate(&before.text, text) {
            Ok(made) => made,
            Err(StepError::Wrong) => {
                return Err(CommandError::new(
                    ErrorKind::Internal,
                    format_args!("{}: {}", index.path, StepError::Wrong),
                ));
            }
            Err(error) => {
                warn(format!("{}: {error}; clients fetch it whole", index.path));
                outcome.what = PatchesChange::Whole;
                return Ok((Vec::new(), None));
            }
        };
        let continued = last.filter(|last| last.current.sha256 == before.sha256);
        outcome.what =
            if continued.is_some() || last.is_none() { PatchesChange::Extended } else { PatchesChange::Restarted };
        let mut steps = continued.map(|last| last.steps.clone()).unwrap_or_default();
        let packed = pack(self.step_name(index, steps.last()), listed(&before.text), &script);
        outcome.added = Some(packed.listed.name.clone());
        (outcome.patch_bytes, outcome.download_bytes) = (packed.listed.patch.size, packed.listed.download.size);
        self.write_patch(index, &packed)?;
        steps.push(packed.listed);
        Ok((steps, Some(edits)))
    }

    /// Publishes the Index, whose patches are synced.
    pub(super) fn publish(&self, index: &Index, next: &Next) -> Result<(), CommandError> {
        let path = index.patch_path("Index");
        match &next.change {
            Change::Nothing => Ok(()),
            Change::Write(text) => {
                self.write(&path, text.as_bytes())?;
                self.name_by_hash(index, &path, text)
            }
            Change::Remove => self.root.unlink(&path).map(drop).map_err(file_error),
        }
    }

    /// Saves states and removes expired files, after the Index is synced.
    pub(super) fn settle(&self, next: &Next) -> Result<(), CommandError> {
        if let Before::Saved(states) = self.before {
            states.settle(next.state.as_ref(), &next.states_before)?;
        }
        for path in &next.expired {
            self.root.unlink(path).map_err(file_error)?;
        }
        Ok(())
    }
}
