//! Measures the time of our own work: reading and hashing, on clocks of the run's ledger.

use std::time::Duration;

use fullbore_engine::stage::Ledger;
use fullbore_engine::stage::TimedStage;

/// The clocks of reading and hashing.
#[derive(Debug)]
pub(crate) struct Work {
    source: TimedStage,
    hash: TimedStage,
}

impl Default for Work {
    fn default() -> Work {
        Work::new(&Ledger::off())
    }
}

impl Work {
    /// Creates the clocks in this ledger: stages `source` and `hash`.
    pub(crate) fn new(ledger: &Ledger) -> Work {
        Work { source: TimedStage::new(ledger, "source"), hash: TimedStage::new(ledger, "hash") }
    }

    /// Times reading, and storing the read bytes.
    pub(crate) fn read<T>(&self, work: impl FnOnce() -> T) -> T {
        self.source.timed(work)
    }

    /// Times hashing.
    pub(crate) fn hash<T>(&self, work: impl FnOnce() -> T) -> T {
        self.hash.timed(work)
    }

    /// Times a reader's wait for room in the window, or on the disk.
    pub(crate) fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.source.clock.blocked_in(wait)
    }

    /// Time for reading, over all threads.
    pub(crate) fn source_time(&self) -> Duration {
        self.source.worked()
    }

    /// Time for hashing, over all threads.
    pub(crate) fn hash_time(&self) -> Duration {
        self.hash.worked()
    }
}
