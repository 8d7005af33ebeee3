//! The previous publication: the last `Index`, and the state that its patches lead to.

use fullbore_debian::compression::Form;
use fullbore_debian::diff_index::{ListedPatch, Publication};
use fullbore_debian::pdiff::{Edits, Piece, SCRIPT_BYTES_MAX, Splice};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::Root;
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::super::super::{file_error, input};
use super::super::find::Index;
use super::super::states::SavedState;
use super::{Before, Series};

/// Largest `diff/Index` that is read: 10,000 patches in all its lists.
const INDEX_FILE_BYTES_MAX: u64 = 16 << 20;

/// The previous publication of an index.
pub(super) struct Published {
    /// The last `Index`, if it can be read.
    pub last: Option<Publication>,
    /// Whether there is one in this directory, not only in the other copy.
    pub is_here: bool,
}

/// The previous state.
pub(super) struct State {
    pub text: Vec<u8>,
    pub sha256: Sha256,
}

impl Series<'_> {
    /// Reads the last `Index`.
    pub(super) fn published(&self, index: &Index, warn: &mut dyn FnMut(String)) -> Result<Published, CommandError> {
        let path = index.patch_path("Index");
        let mut bytes = self.root.read(&path, INDEX_FILE_BYTES_MAX).map_err(file_error)?;
        let is_here = bytes.is_some();
        if let (None, Before::Tree(tree)) = (&bytes, self.before) {
            bytes = tree.read(&path, INDEX_FILE_BYTES_MAX).map_err(file_error)?;
        }
        let Some(bytes) = bytes else { return Ok(Published { last: None, is_here }) };
        let last = match Publication::parse(&bytes[..]) {
            Ok(last) => {
                if let Before::Tree(tree) = self.before {
                    self.carry_over(index, tree, &last)?;
                }
                Some(last)
            }
            Err(error) => {
                warn(format!("{path}: {error}; its patches are left out"));
                None
            }
        };
        Ok(Published { last, is_here })
    }

    /// Copies files that only the other tree has.
    fn carry_over(&self, index: &Index, tree: &Root, published: &Publication) -> Result<(), CommandError> {
        let listed = published.patches().map(ListedPatch::file);
        for file in listed.chain(published.older.iter().map(|older| older.file.clone())) {
            let path = index.patch_path(&file);
            if self.root.stat(&path).map_err(file_error)?.is_none()
                && let Some(content) = tree.read(&path, SCRIPT_BYTES_MAX as u64).map_err(file_error)?
            {
                self.write(&path, &content)?;
            }
        }
        Ok(())
    }

    /// The state that the last published patch leads to, or another saved one.
    pub(super) fn state_before(
        &self,
        index: &Index,
        last: Option<&Publication>,
        saved: &[SavedState],
        warn: &mut dyn FnMut(String),
    ) -> Result<Option<State>, CommandError> {
        let found = match self.before {
            Before::Saved(states) => {
                // A killed run may have left two: prefer the published one.
                let rank = |saved: &&SavedState| last.is_some_and(|last| last.current.sha256 == saved.sha256);
                let saved = saved.iter().max_by_key(rank);
                let text = saved.map(|saved| states.read(saved)).transpose()?.flatten();
                text.zip(saved).map(|(text, saved)| State { text, sha256: saved.sha256 })
            }
            Before::Tree(tree) => state_in(tree, &index.path)?,
        };
        let Some(last) = last else { return Ok(found) };
        let Some(found) = found else {
            warn(format!("{}: no earlier state is recorded; patches start over", index.path));
            return Ok(None);
        };
        if found.sha256 == last.current.sha256 {
            return Ok(Some(found));
        }
        // The last run was killed after publishing and before saving the state: apply its patches.
        if let Some(state) = self.patched(index, &found, last)? {
            return Ok(Some(state));
        }
        warn(format!("{}: its patches do not lead to the earlier state; they start over", index.path));
        Ok(Some(found))
    }

    /// The published state, from an older one and the published patches.
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
}

/// An index of another tree, in any form.
fn state_in(tree: &Root, path: &str) -> Result<Option<State>, CommandError> {
    for form in Form::BY_SPEED {
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
