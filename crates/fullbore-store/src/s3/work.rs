//! Where our own time goes: reading and hashing, on clocks of the run's ledger.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind, Ledger, StageClock};

/// The clocks.
#[derive(Debug)]
pub struct Work {
    source: Stage,
    hash: Stage,
}

#[derive(Debug)]
struct Stage {
    clock: Arc<StageClock>,
    worked_ns: AtomicU64,
}

impl Stage {
    fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let _role = self.clock.enter();
        let begun = Instant::now();
        let done = work();
        self.worked_ns.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    fn worked(&self) -> Duration {
        Duration::from_nanos(self.worked_ns.load(Ordering::Relaxed))
    }
}

impl Default for Work {
    fn default() -> Work {
        Work::new(&Ledger::off())
    }
}

impl Work {
    /// Counts in this ledger: stages `source` and `hash`.
    pub fn new(ledger: &Ledger) -> Work {
        let stage = |name| Stage { clock: ledger.stage(name, Kind::Thread), worked_ns: AtomicU64::new(0) };
        Work { source: stage("source"), hash: stage("hash") }
    }

    /// Times reading, and keeping what was read.
    pub fn read<T>(&self, work: impl FnOnce() -> T) -> T {
        self.source.time(work)
    }

    /// Times hashing.
    pub fn hash<T>(&self, work: impl FnOnce() -> T) -> T {
        self.hash.time(work)
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
