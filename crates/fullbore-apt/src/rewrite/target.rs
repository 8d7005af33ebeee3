//! The new index under its temporary name; removed unless it is finished.

use std::path::Path;
use std::sync::Arc;

use fullbore_engine::files::{FileError, PartFile, Root};
use fullbore_engine::stage::StageClock;

use super::PassError;

pub(super) struct Target {
    /// `None` after finishing.
    part: Option<PartFile>,
    offset: u64,
    clock: Arc<StageClock>,
}

impl Target {
    pub(super) fn create(path: &Path, clock: Arc<StageClock>) -> Result<Target, PassError> {
        let directory = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let name = path.file_name().and_then(|name| name.to_str()).ok_or(PassError::Name)?;
        // No preallocation: on tmpfs it would need the pages twice.
        let part = clock.device(|| Root::open(directory)?.create_part(name, 0)).map_err(PassError::Write)?;
        Ok(Target { part: Some(part), offset: 0, clock })
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), PassError> {
        let Some(part) = &self.part else { return Ok(()) };
        self.clock.device(|| part.write_at(self.offset, bytes)).map_err(PassError::Write)?;
        self.clock.add_items(1, bytes.len() as u64);
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Renames the verified file; returns its length.
    pub(super) fn finish(mut self) -> Result<u64, FileError> {
        if let Some(part) = &self.part {
            part.finish()?;
        }
        self.part = None;
        Ok(self.offset)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            // A better error is reported already.
            let _ = part.remove();
        }
    }
}
