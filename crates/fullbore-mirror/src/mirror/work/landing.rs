//! Destination of a worker's files: below the mirror's prefix, and only where no object is yet.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, Weak};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;
use fullbore_engine::target::Name;
use fullbore_s3::objects::Condition;
use fullbore_s3::target::{Layout, WriteMode};

use crate::mirror::bucket::tree::{SHORT_LIVED, fields};

/// A file that was verified.
struct VerifiedFile {
    path: String,
    /// Number of bytes that the store has, while the upload continues.
    sent: Weak<AtomicU64>,
    is_told: bool,
}

/// Layout of a worker, which publishes no names.
pub(super) struct Landing {
    short_lived: String,
    /// Paths that another worker had stored, until their outcome is taken.
    were_there: Mutex<HashSet<String>>,
    /// Files that were verified since the last call, or earlier if their upload still continues; `None` before the
    /// first call.
    verified: Mutex<Option<Vec<VerifiedFile>>>,
}

impl Landing {
    /// Makes the layout. `short_lived` is the `Cache-Control` of names that change; by default caches keep them for a
    /// minute.
    pub(super) fn new(short_lived: Option<String>) -> Landing {
        Landing {
            short_lived: short_lived.unwrap_or_else(|| SHORT_LIVED.to_owned()),
            were_there: Mutex::default(),
            verified: Mutex::default(),
        }
    }

    /// Paths that were verified since the last call, or earlier if their upload still continues, each with the number
    /// of bytes that the store has. Empty at the first call.
    pub(super) fn verified_files(&self) -> Vec<(String, u64)> {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        let files = verified.get_or_insert_default();
        let mut told = Vec::new();
        files.retain_mut(|file| {
            let (sent, is_new) = (file.sent.upgrade(), !std::mem::replace(&mut file.is_told, true));
            if sent.is_some() || is_new {
                let bytes = sent.as_ref().map_or(0, |sent| sent.load(Ordering::Relaxed));
                told.push((file.path.clone(), bytes));
            }
            sent.is_some()
        });
        told
    }

    /// Whether another worker had stored this path; true once only.
    pub(super) fn take_was_there(&self, path: &str) -> bool {
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

    fn verified(&self, path: &str, sent: Weak<AtomicU64>) {
        if let Some(verified) = &mut *self.verified.lock().unwrap_or_else(PoisonError::into_inner) {
            verified.push(VerifiedFile { path: path.to_owned(), sent, is_told: false });
        }
    }

    fn was_there(&self, path: &str) {
        self.were_there.lock().unwrap_or_else(PoisonError::into_inner).insert(path.to_owned());
    }

    fn changed(&self, _path: &str, _to: Option<(Sha256, u64, Option<String>)>) {}
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn verified_files_are_told_until_they_are_stored() {
        let landing = Landing::new(None);
        landing.verified("pool/a", Weak::new());
        assert!(landing.verified_files().is_empty());
        landing.verified("pool/b", Weak::new());
        let sent = Arc::new(AtomicU64::new(7));
        landing.verified("pool/c", Arc::downgrade(&sent));
        assert_eq!(landing.verified_files(), [("pool/b".to_owned(), 0), ("pool/c".to_owned(), 7)]);
        sent.store(9, Ordering::Relaxed);
        assert_eq!(landing.verified_files(), [("pool/c".to_owned(), 9)]);
        drop(sent);
        assert!(landing.verified_files().is_empty());
    }
}
