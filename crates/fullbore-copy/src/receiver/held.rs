//! Bounds the memory that a sender's lists may take here.
//!
//! Parts of a listing have to be kept: files until their content arrives, directories and further names of files until
//! the end. That grows with the tree, so the bound is a share of this machine's memory ([`memory`]).

use std::sync::atomic::{AtomicU64, Ordering};

use fullbore_engine::memory::{self, PLACE_BYTES};

use crate::entry::Entry;
use crate::error::CopyError;

/// The memory used by entries that are kept to the end.
#[derive(Debug)]
pub(super) struct Held {
    bytes: AtomicU64,
    most_bytes: u64,
}

impl Held {
    /// Starts at zero, with this machine's limit.
    pub(super) fn of_this_machine() -> Held {
        Held::new(memory::list_bytes_max())
    }

    /// Starts at zero, with a limit of `most_bytes`.
    pub(super) fn new(most_bytes: u64) -> Held {
        Held { bytes: AtomicU64::new(0), most_bytes }
    }

    /// Counts an entry that is kept.
    pub(super) fn keep(&self, path: &[u8], entry: &Entry) {
        self.bytes.fetch_add(name_bytes(path) + entry_bytes(entry), Ordering::Relaxed);
    }

    /// Counts a name that is kept.
    pub(super) fn keep_name(&self, name: &[u8]) {
        self.bytes.fetch_add(name_bytes(name), Ordering::Relaxed);
    }

    /// Takes off a name that is no longer kept.
    pub(super) fn let_go(&self, name: &[u8]) {
        self.bytes.fetch_sub(name_bytes(name), Ordering::Relaxed);
    }

    /// Checks the limit for kept entries together with `pending_bytes` of entries that wait for content.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if they take more memory than this machine's limit.
    pub(super) fn check(&self, pending_bytes: u64) -> Result<(), CopyError> {
        let bytes = self.bytes.load(Ordering::Relaxed).saturating_add(pending_bytes);
        if bytes > self.most_bytes {
            return Err(CopyError::Meaning("it lists more names and attributes than this machine can keep"));
        }
        Ok(())
    }
}

fn name_bytes(name: &[u8]) -> u64 {
    name.len() as u64 + PLACE_BYTES
}

/// Bytes that an entry takes in memory.
pub(super) fn entry_bytes(entry: &Entry) -> u64 {
    entry.memory_bytes() as u64 + PLACE_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::Kind;

    #[test]
    fn lists_are_kept_within_the_memory_of_this_machine() {
        assert_eq!(Held::of_this_machine().most_bytes, memory::list_bytes_max());
        let held = Held::new(100_000);
        let mut entry = Entry::plain(b"directory", Kind::Directory);
        entry.xattrs = vec![(b"user.any".to_vec(), vec![0; 30_000])];
        for _ in 0..3 {
            held.keep(b"directory", &entry);
            assert!(held.check(0).is_ok());
        }
        assert!(held.check(10_000).is_err());
        held.keep(b"directory", &entry);
        let refused = held.check(0).unwrap_err();
        assert_eq!(refused.exit_code(), 3);
        assert!(refused.to_string().contains("more names and attributes"), "{refused}");
        let names = Held::new(100_000);
        for _ in 0..100_000 {
            names.keep_name(b"name");
            names.let_go(b"name");
        }
        assert!(names.check(0).is_ok());
    }
}
