//! Where the files of a worker land: below the mirror's prefix, only where no object is yet.

use std::collections::HashSet;
use std::io;
use std::sync::{Mutex, PoisonError};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;
use fullbore_engine::target::Name;
use fullbore_s3::objects::Condition;
use fullbore_s3::target::{Layout, WriteMode};

use crate::mirror::bucket::tree::{SHORT_LIVED, fields};

/// The layout of a worker, which publishes no names.
pub struct Landing {
    short_lived: String,
    /// Paths that somebody else had stored, until their outcome is told.
    were_there: Mutex<HashSet<String>>,
    /// Paths that were verified since somebody looked, and bytes of them that were sent before; `None` if nobody looks.
    verified: Mutex<Option<Vec<(String, u64)>>>,
}

impl Landing {
    /// `Cache-Control` of names that change.
    pub fn new(short_lived: Option<String>) -> Landing {
        Landing {
            short_lived: short_lived.unwrap_or_else(|| SHORT_LIVED.to_owned()),
            were_there: Mutex::default(),
            verified: Mutex::default(),
        }
    }

    /// The paths that were verified since the last call, and how many bytes of each had been sent before; none at the first
    /// call.
    pub fn take_verified(&self) -> Vec<(String, u64)> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).replace(Vec::new()).unwrap_or_default()
    }

    /// Whether somebody else had stored this path; once.
    pub fn take_was_there(&self, path: &str) -> bool {
        self.were_there.lock().unwrap_or_else(PoisonError::into_inner).remove(path)
    }
}

impl Layout for Landing {
    /// Workers have no files of their own.
    fn is_own(&self, _path: &str) -> bool {
        false
    }

    fn stored(&self, _path: &str) -> Option<Sha256> {
        None
    }

    fn fields(&self, path: &str) -> Vec<(String, String)> {
        fields(path, &self.short_lived)
    }

    fn step(&self, _name: &Name) -> u32 {
        0
    }

    fn is_link(&self, _name: &Name) -> bool {
        false
    }

    fn link(&self, _name: &Name) -> Result<(), FileError> {
        Ok(())
    }

    fn may_publish(&self) -> io::Result<()> {
        Err(io::Error::other("a worker publishes nothing"))
    }

    fn overtaken(&self) {}

    fn condition(&self, _path: &str) -> Condition {
        Condition::Absent
    }

    fn copy_of(&self, _sha256: Sha256) -> Option<String> {
        None
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::CreateShared
    }

    fn verified(&self, path: &str, sent_bytes: u64) {
        if let Some(verified) = &mut *self.verified.lock().unwrap_or_else(PoisonError::into_inner) {
            verified.push((path.to_owned(), sent_bytes));
        }
    }

    fn was_there(&self, path: &str) {
        self.were_there.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
    }

    fn changed(&self, _path: &str, _to: Option<(Sha256, u64, Option<String>)>) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verified_paths_are_told_once_somebody_looks() {
        let landing = Landing::new(None);
        landing.verified("pool/a", 0);
        assert!(landing.take_verified().is_empty());
        landing.verified("pool/b", 7);
        assert_eq!(landing.take_verified(), [("pool/b".to_owned(), 7)]);
        assert!(landing.take_verified().is_empty());
    }
}
