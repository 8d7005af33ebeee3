//! Where our own time goes: reading and hashing, on clocks of the run's ledger.

use std::time::Duration;

use fullbore_engine::stage::Ledger;
use fullbore_engine::stage::TimedStage;

/// The clocks.
#[derive(Debug)]
pub struct Work {
    source: TimedStage,
    hash: TimedStage,
}

impl Default for Work {
    fn default() -> Work {
        Work::new(&Ledger::off())
    }
}

impl Work {
    /// Counts in this ledger: stages `source` and `hash`.
    pub fn new(ledger: &Ledger) -> Work {
        Work { source: TimedStage::new(ledger, "source"), hash: TimedStage::new(ledger, "hash") }
    }

    /// Times reading, and keeping what was read.
    pub fn read<T>(&self, work: impl FnOnce() -> T) -> T {
        self.source.timed(work)
    }

    /// Times hashing.
    pub fn hash<T>(&self, work: impl FnOnce() -> T) -> T {
        self.hash.timed(work)
    }

    /// Notes a reader's wait for room in the window, or on the disk.
    pub fn wait<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.source.clock.blocked_in(wait)
    }

    /// Reading, all threads together.
    pub fn source_time(&self) -> Duration {
        self.source.worked()
    }

    /// Hashing, all threads together.
    pub fn hash_time(&self) -> Duration {
        self.hash.worked()
    }
}
