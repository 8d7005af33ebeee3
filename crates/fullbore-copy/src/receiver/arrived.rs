//! Counts received records and compares with the total.
//!
//! The record count travels on the control channel, not with the data. The receiver finishes once it has the count and
//! all records.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts records. A writer may count the last record at the moment when the total arrives. In any order, at least one
/// of the two threads finds the copy complete.
#[derive(Debug)]
pub(super) struct Arrived {
    come: AtomicU64,
    /// Total number of records; `u64::MAX` until it is known.
    all: AtomicU64,
}

impl Default for Arrived {
    fn default() -> Arrived {
        Arrived { come: AtomicU64::new(0), all: AtomicU64::new(u64::MAX) }
    }
}

impl Arrived {
    /// Counts a record that was verified and written. Returns true if this completes the copy, so that the waiting
    /// thread has to check.
    pub(super) fn another(&self) -> bool {
        self.come.fetch_add(1, Ordering::SeqCst);
        self.is_all()
    }

    /// Sets the total number of records.
    pub(super) fn expect(&self, records: u64) {
        self.all.store(records, Ordering::SeqCst);
    }

    /// Whether all records have arrived.
    pub(super) fn is_all(&self) -> bool {
        self.all.load(Ordering::SeqCst) <= self.come.load(Ordering::SeqCst)
    }
}
