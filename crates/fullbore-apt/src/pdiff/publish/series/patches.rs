//! Patch files: written, read, and merged.

use std::collections::HashSet;
use std::io::{BufReader, Read as _};

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::{Listed, ListedPatch};
use fullbore_debian::pdiff::{Edits, SCRIPT_BYTES_MAX};
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::WriteBack;
use fullbore_engine::run::error::CommandError;

use super::super::super::{file_error, gz};
use super::super::find::Index;
use super::super::{listed, names};
use super::Series;

/// A compressed patch.
pub(super) struct Packed {
    pub listed: ListedPatch,
    pub gz: Vec<u8>,
}

pub(super) fn pack(name: String, history: Listed, script: &[u8]) -> Packed {
    let gz = gz(script);
    let listed = ListedPatch { name, history, patch: listed(script), download: listed(&gz) };
    Packed { listed, gz }
}

impl Series<'_> {
    pub(super) fn step_name(&self, index: &Index, last: Option<&ListedPatch>) -> String {
        let is_taken = |name: &str| !matches!(self.root.stat(&index.patch_path(&format!("{name}.gz"))), Ok(None));
        names::step(self.now_unix_s, last.map(|last| last.name.as_str()), is_taken)
    }

    /// Merged patches from each state to the current one, newest first: each adds one step in front of the previous.
    pub(super) fn sweep(
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
        // apt uses the last entry of its state, so one per state is enough.
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

    /// Compresses scripts in parallel, and writes them.
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

    pub(super) fn write_patch(&self, index: &Index, packed: &Packed) -> Result<(), CommandError> {
        self.write(&index.patch_path(&packed.listed.file()), &packed.gz)
    }

    pub(super) fn write(&self, path: &str, content: &[u8]) -> Result<(), CommandError> {
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

    /// Drops steps with a missing file.
    pub(super) fn without_missing(
        &self,
        index: &Index,
        steps: &mut Vec<ListedPatch>,
        warn: &mut dyn FnMut(String),
    ) -> Result<(), CommandError> {
        for number in (0..steps.len()).rev() {
            let step = &steps[number];
            let status = self.root.stat(&index.patch_path(&step.file())).map_err(file_error)?;
            if status.is_none_or(|status| status.size != step.download.size) {
                warn(format!("{}: {} is missing; it and older patches are left out", index.path, step.file()));
                steps.drain(..=number);
                break;
            }
        }
        Ok(())
    }

    /// Reads a published patch; `None` if it is not as in the Index.
    pub(super) fn read_patch(&self, index: &Index, step: &ListedPatch) -> Result<Option<Edits>, CommandError> {
        let path = index.patch_path(&step.file());
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
}
