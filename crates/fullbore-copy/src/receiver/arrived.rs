//! How many records have come, and how many there are.
//!
//! The sender says how many there are when it has sent the last one, by another way than that goes: this end goes on to
//! the end of the copy when both are there.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts records. A writer that counts the last one and the thread that hears how many there are may be at it at the
/// same time: in any order at least one of them finds that it is all.
#[derive(Debug)]
pub(super) struct Arrived {
    come: AtomicU64,
    /// So many are there; more than any number until that is known.
    all: AtomicU64,
}

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived { come: AtomicU64::new(0), all: AtomicU64::new(u64::MAX) }
    }
}

impl Arrived {
    /// One more was verified and written. True if the thread that waits for all of them is to look.
    pub(super) fn another(&self) -> bool {
        self.come.fetch_add(1, Ordering::SeqCst);
        self.is_all()
    }

    /// ExistingFile are so many.
    pub(super) fn expect(&self, records: u64) {
        self.all.store(records, Ordering::SeqCst);
    }

    /// Whether all have come.
    pub(super) fn is_all(&self) -> bool {
        self.all.load(Ordering::SeqCst) <= self.come.load(Ordering::SeqCst)
    }
}
