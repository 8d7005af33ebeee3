//! The new index while it is written: under a temporary name, removed unless it is finished.

use std::path::Path;
use std::sync::Arc;

use fullbore_engine::files::{FileError, PartFile, Root};
use fullbore_engine::stage::StageClock;

use super::PassError;

pub(super) struct Target {
    /// Taken when it is finished.
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
        // No room is reserved: it would cost more than it gives, memory pages twice on tmpfs.
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

    /// Makes it visible; gives its length. The caller has checked what is in it.
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
            // There is a better error to report already.
            let _ = part.remove();
        }
    }
}
