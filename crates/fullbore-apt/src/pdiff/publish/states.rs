//! Saved states of indexes from the last run.
//!
//! A state is `states/PATH/SHA256.zst`. A run without changes need not read it, and no program takes it for an index. The
//! new state gets its name last; then the old one is removed.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use fullbore_debian::compression::Form;
use fullbore_engine::digest::Sha256;
use fullbore_engine::durability::{Barrier, Durability};
use fullbore_engine::files::{PartFile, PartWriter, Root, is_part_name};
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::super::{file_error, input};
use super::locked;

/// In the directory of the indexes.
const OWN_DIRECTORY: &str = ".fullbore";
const ENDING: &str = ".zst";
/// zstd level 3: faster than the hash, and a tenth of the text (measured).
const LEVEL: i32 = 3;
/// Text handed to the compressor at once.
const PIECE_BYTES: usize = 1 << 20;

/// The saved states of one directory.
pub(super) struct States {
    root: Arc<Root>,
    barrier: Barrier,
    _lock: std::fs::File,
}

/// A saved state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedState {
    path: String,
    /// SHA-256 of the index's plain text.
    pub sha256: Sha256,
}

impl States {
    /// Opens or creates the directory of states, and locks it.
    pub(super) fn open(indexes: &Root, given: Option<&Path>, durability: Durability) -> Result<States, CommandError> {
        let path = given.map_or_else(|| indexes.path().join(OWN_DIRECTORY), Path::to_owned);
        if given.is_none() {
            // Not readable by clients of the archive.
            indexes.create_directory(OWN_DIRECTORY, 0o700).map_err(file_error)?;
        }
        let root = Arc::new(Root::create(&path).map_err(file_error)?);
        let Some(lock) = root.lock("lock").map_err(file_error)? else {
            return Err(locked(&path));
        };
        let barrier = Barrier::new(root.clone(), durability);
        Ok(States { root, barrier, _lock: lock })
    }

    /// The saved states of an index: one, or two after a killed run, whose unfinished files are removed.
    pub(super) fn of(&self, index: &str) -> Result<Vec<SavedState>, CommandError> {
        let directory = format!("states/{index}");
        let mut saved = Vec::new();
        for (entry, _) in self.root.list(&directory).map_err(file_error)? {
            if entry.to_str().is_some_and(is_part_name) {
                self.root.unlink(&format!("{directory}/{}", entry.to_string_lossy())).map_err(file_error)?;
            }
            let hash = entry.to_str().and_then(|entry| entry.strip_suffix(ENDING)?.parse().ok());
            if let Some(sha256) = hash {
                saved.push(SavedState { path: format!("{directory}/{sha256}{ENDING}"), sha256 });
            }
        }
        saved.sort_by_key(|saved| saved.sha256);
        Ok(saved)
    }

    /// Reads a state; `None` if its content does not match its name.
    pub(super) fn read(&self, saved: &SavedState) -> Result<Option<Vec<u8>>, CommandError> {
        let Some((file, _)) = self.root.open_file(&saved.path).map_err(file_error)? else {
            return Ok(None);
        };
        // A damaged state counts as none: clients can fetch the full index.
        let text = input::index_of(file, Form::Zst).ok();
        Ok(text.filter(|text| Sha256::of(text) == saved.sha256))
    }

    /// Writes the current state; [`States::settle`] renames it.
    pub(super) fn write(&self, index: &str, sha256: Sha256, text: &[u8]) -> Result<PartFile, CommandError> {
        let path = format!("states/{index}/{sha256}{ENDING}");
        let part = self.root.create_part(&path, 0).map_err(file_error)?;
        let failed =
            |error: io::Error| CommandError::new(ErrorKind::Disk, format_args!("cannot write {path}: {error}"));
        let mut encoder = zstd::stream::write::Encoder::new(PartWriter::new(&part), LEVEL).map_err(failed)?;
        for piece in text.chunks(PIECE_BYTES) {
            encoder.write_all(piece).map_err(failed)?;
        }
        encoder.finish().map_err(failed)?;
        Ok(part)
    }

    /// Syncs the written states.
    pub(super) fn sync(&self) -> Result<(), CommandError> {
        self.barrier.sync().map_err(file_error)
    }

    /// Renames the current state, and removes earlier ones.
    pub(super) fn settle(&self, new: Option<&PartFile>, before: &[SavedState]) -> Result<(), CommandError> {
        let Some(new) = new else { return Ok(()) };
        new.finish().map_err(file_error)?;
        for saved in before.iter().filter(|saved| saved.path != new.path()) {
            self.root.unlink(&saved.path).map_err(file_error)?;
        }
        Ok(())
    }
}
