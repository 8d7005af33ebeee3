//! A stage that also sums its working time over all threads, whether or not a sampler reads its clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::{Kind, Ledger, StageClock};

/// A stage's clock in the run's ledger, with its total working time.
#[derive(Debug)]
pub struct TimedStage {
    /// Clock of the stage, for waits that the caller times.
    pub clock: Arc<StageClock>,
    worked_ns: AtomicU64,
}

impl TimedStage {
    /// Creates the stage in this ledger.
    pub fn new(ledger: &Ledger, name: &'static str) -> TimedStage {
        TimedStage { clock: ledger.stage(name, Kind::Thread), worked_ns: AtomicU64::new(0) }
    }

    /// Runs `work` and adds its duration to the total.
    pub fn timed<T>(&self, work: impl FnOnce() -> T) -> T {
        let _role = self.clock.enter();
        let begun = Instant::now();
        let done = work();
        self.worked_ns.fetch_add(u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        done
    }

    /// Total time that all threads of the stage have worked.
    pub fn worked(&self) -> Duration {
        Duration::from_nanos(self.worked_ns.load(Ordering::Relaxed))
    }
}
