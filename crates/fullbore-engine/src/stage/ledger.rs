//! The ledger: all clocks of a run in one place, for the sampler to read.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::{HostClock, Kind, LedgerReading, SendReading, StageClock, Trial};
use crate::window::Window;

/// Maximum number of trials, and of marks; a run makes a few dozen at most.
const KEPT: usize = 1000;

/// A named moment of the run, for the timeline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Time from the creation of the ledger to the mark.
    pub at: Duration,
    /// Name of the part of the run that began: "indexes", "pool", "sync".
    pub name: String,
}

/// All clocks of a run. Clones are handles to the same ledger.
#[derive(Clone, Debug)]
pub struct Ledger {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    on: bool,
    origin: Instant,
    stages: Mutex<Vec<Arc<StageClock>>>,
    windows: Mutex<Vec<Window>>,
    hosts: Mutex<BTreeMap<String, Arc<HostClock>>>,
    trials: Mutex<Vec<Trial>>,
    marks: Mutex<Vec<Mark>>,
    sending: Mutex<SendReading>,
    rate_limit_bytes_per_s: AtomicU64,
}

impl Default for Ledger {
    fn default() -> Ledger {
        Ledger::new()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// Creates a ledger whose clocks run; time counts from now.
    pub fn new() -> Ledger {
        Ledger::with(true)
    }

    /// Creates a ledger whose clocks measure nothing, to find out the cost of the others.
    pub fn off() -> Ledger {
        Ledger::with(false)
    }

    fn with(on: bool) -> Ledger {
        Ledger {
            shared: Arc::new(Shared {
                on,
                origin: Instant::now(),
                stages: Mutex::default(),
                windows: Mutex::default(),
                hosts: Mutex::default(),
                trials: Mutex::default(),
                marks: Mutex::default(),
                sending: Mutex::default(),
                rate_limit_bytes_per_s: AtomicU64::new(0),
            }),
        }
    }

    /// Returns the clock of a role. The same name gives the same clock.
    pub fn stage(&self, name: &str, kind: Kind) -> Arc<StageClock> {
        let mut stages = lock(&self.shared.stages);
        if let Some(stage) = stages.iter().find(|stage| stage.name() == name) {
            return stage.clone();
        }
        let stage = Arc::new(StageClock::new(name, kind, self.shared.on, self.shared.origin));
        stages.push(stage.clone());
        stage
    }

    /// Adds a window to the ledger, so that the sampler sees the positions of its permits.
    pub fn watch_window(&self, window: &Window) {
        lock(&self.shared.windows).push(window.clone());
    }

    /// Returns the counters of a host. The same name gives the same counters.
    pub fn host(&self, name: &str) -> Arc<HostClock> {
        let mut hosts = lock(&self.shared.hosts);
        hosts.entry(name.to_owned()).or_insert_with(|| Arc::new(HostClock::new(name))).clone()
    }

    /// Records a trial: how one more host or connection changed the total rate.
    pub fn trial(&self, trial: Trial) {
        let mut trials = lock(&self.shared.trials);
        if trials.len() < KEPT {
            trials.push(trial);
        }
    }

    /// Records that a named part of the run begins now.
    pub fn mark(&self, name: &str) {
        let at = self.shared.origin.elapsed();
        let mut marks = lock(&self.shared.marks);
        if marks.len() < KEPT {
            marks.push(Mark { at, name: name.to_owned() });
        }
    }

    /// Adds the kernel's counters of sending sockets since the last call.
    pub fn add_sending(&self, sent: SendReading) {
        *lock(&self.shared.sending) += sent;
    }

    /// Sets the user's rate limit in bytes per second; 0 for none.
    pub fn set_rate_limit(&self, bytes_per_s: u64) {
        self.shared.rate_limit_bytes_per_s.store(bytes_per_s, Ordering::Relaxed);
    }

    /// The user's rate limit in bytes per second; 0 for none.
    pub fn rate_limit(&self) -> u64 {
        self.shared.rate_limit_bytes_per_s.load(Ordering::Relaxed)
    }

    /// Time since the ledger was made.
    pub fn elapsed(&self) -> Duration {
        self.shared.origin.elapsed()
    }

    /// Returns all marks that were set so far.
    pub fn marks(&self) -> Vec<Mark> {
        lock(&self.shared.marks).clone()
    }

    /// Returns all counters since the ledger was made.
    pub fn reading(&self) -> LedgerReading {
        LedgerReading {
            stages: self.stages().iter().map(|stage| stage.reading()).collect(),
            ..self.reading_without_stages()
        }
    }

    pub(crate) fn reading_without_stages(&self) -> LedgerReading {
        LedgerReading {
            stages: Vec::new(),
            windows: lock(&self.shared.windows).iter().map(Window::reading).collect(),
            hosts: lock(&self.shared.hosts).values().map(|host| host.reading()).collect(),
            trials: lock(&self.shared.trials).clone(),
            sending: *lock(&self.shared.sending),
        }
    }

    pub(crate) fn stages(&self) -> Vec<Arc<StageClock>> {
        lock(&self.shared.stages).clone()
    }
}
