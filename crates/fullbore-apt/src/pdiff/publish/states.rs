//! The states of indexes as the last run saw them, in a directory of our own.
//!
//! A state is `states/PATH/SHA256.zst`: its name says what it is, so that a run that finds nothing
//! new does not read it, and is not that of an index, so that nobody takes it for one. The new one
//! gets its name last; the one before is removed after that.

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
/// Fast enough not to show beside the hash, and a tenth of the text (measured: zstd 3).
const LEVEL: i32 = 3;
/// Text handed to the compressor at once.
const PIECE_BYTES: usize = 1 << 20;

/// The kept states of one directory of indexes.
pub(super) struct States {
    root: Arc<Root>,
    barrier: Barrier,
    _lock: std::fs::File,
}

/// One that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SavedState {
    path: String,
    /// What it is the state of.
    pub sha256: Sha256,
}

impl States {
    /// Opens, or makes, the directory of states, and locks it.
    pub(super) fn open(indexes: &Root, given: Option<&Path>, durability: Durability) -> Result<States, CommandError> {
        let path = given.map_or_else(|| indexes.path().join(OWN_DIRECTORY), Path::to_owned);
        if given.is_none() {
            // Not for those who read the archive.
            indexes.create_directory(OWN_DIRECTORY, 0o700).map_err(file_error)?;
        }
        let root = Arc::new(Root::create(&path).map_err(file_error)?);
        let Some(lock) = root.lock("lock").map_err(file_error)? else {
            return Err(locked(&path));
        };
        let barrier = Barrier::new(root.clone(), durability);
        Ok(States { root, barrier, _lock: lock })
    }

    /// The states kept of an index: one, or two if a run was killed; what such a run was still
    /// writing is removed.
    pub(super) fn of(&self, index: &str) -> Result<Vec<SavedState>, CommandError> {
        let directory = format!("states/{index}");
        let mut kept = Vec::new();
        for (entry, _) in self.root.list(&directory).map_err(file_error)? {
            if entry.to_str().is_some_and(is_part_name) {
                self.root.unlink(&format!("{directory}/{}", entry.to_string_lossy())).map_err(file_error)?;
            }
            let hash = entry.to_str().and_then(|entry| entry.strip_suffix(ENDING)?.parse().ok());
            if let Some(sha256) = hash {
                kept.push(SavedState { path: format!("{directory}/{sha256}{ENDING}"), sha256 });
            }
        }
        kept.sort_by_key(|kept| kept.sha256);
        Ok(kept)
    }

    /// Reads a state; `None` when it is not what its name says.
    pub(super) fn read(&self, kept: &SavedState) -> Result<Option<Vec<u8>>, CommandError> {
        let Some((file, _)) = self.root.open_file(&kept.path).map_err(file_error)? else {
            return Ok(None);
        };
        // What cannot be decompressed is as good as nothing: there is the full index to fetch.
        let text = input::index_of(file, Form::Zst).ok();
        Ok(text.filter(|text| Sha256::of(text) == kept.sha256))
    }

    /// Writes the present state; it gets its name by [`States::settle`].
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

    /// Returns when states that were written would survive a power cut.
    pub(super) fn sync(&self) -> Result<(), CommandError> {
        self.barrier.sync().map_err(file_error)
    }

    /// Gives the present state its name, and removes those before.
    pub(super) fn settle(&self, new: Option<&PartFile>, before: &[SavedState]) -> Result<(), CommandError> {
        let Some(new) = new else { return Ok(()) };
        new.finish().map_err(file_error)?;
        for kept in before.iter().filter(|kept| kept.path != new.path()) {
            self.root.unlink(&kept.path).map_err(file_error)?;
        }
        Ok(())
    }
}
