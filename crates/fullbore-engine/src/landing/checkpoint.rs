//! Checkpoints: syncs during the run. A power cut then costs little, and the final sync has little left to do.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{LandingError, Shared, locked};
use crate::stage::{Kind, Ledger};
use crate::target::{Target, TargetError};

/// Time between checkpoints, and bytes written between them: DESIGN, invariant 4.
const EVERY: Duration = Duration::from_secs(30);
const EVERY_BYTES: u64 = 8 << 30;

/// How often the thread checks whether enough bytes were written.
const LOOK: Duration = Duration::from_millis(500);

type Failure = Mutex<Option<Arc<TargetError>>>;

pub(super) struct Checkpoints {
    take: Box<dyn Fn() + Send + Sync>,
    /// The first sync that failed. The kernel reports an error once; the landing reports it for ever.
    failure: Arc<Failure>,
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Checkpoints {
    pub(super) fn start<T: Target>(target: Arc<T>, shared: Arc<Shared>, ledger: &Ledger) -> io::Result<Checkpoints> {
        let clock = ledger.stage("sync", Kind::Thread);
        let failure: Arc<Failure> = Arc::default();
        let stop: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let take: Arc<dyn Fn() + Send + Sync> = Arc::new({
            let (failure, shared, clock) = (failure.clone(), shared.clone(), clock.clone());
            move || {
                let begun = match shared.journal.begin_checkpoint() {
                    Ok(begun) => Some(begun),
                    Err(error) => {
                        shared.note_journal(Err(error));
                        None
                    }
                };
                match clock.device(|| target.barrier()) {
                    Ok(true) => {
                        if let Some(begun) = begun {
                            shared.note_journal(shared.journal.complete_checkpoint(begun));
                        }
                    }
                    // The target promises nothing, so nothing is marked as durable.
                    Ok(false) => {}
                    Err(error) => {
                        locked(&failure).get_or_insert_with(|| Arc::new(error));
                    }
                }
            }
        });
        let thread = std::thread::Builder::new().name("sync".into()).spawn({
            let (stop, take) = (stop.clone(), take.clone());
            move || {
                clock.adopt_thread();
                let (mut last, mut last_bytes) = (Instant::now(), 0);
                loop {
                    let stopped = locked(&stop.0);
                    let (stopped, _) = clock.starved_in(|| {
                        stop.1
                            .wait_timeout_while(stopped, LOOK, |stopped| !*stopped)
                            .unwrap_or_else(PoisonError::into_inner)
                    });
                    if *stopped {
                        return;
                    }
                    drop(stopped);
                    let bytes = shared.counters.written_bytes.load(Ordering::Relaxed);
                    let due = last.elapsed() >= EVERY || bytes - last_bytes >= EVERY_BYTES;
                    if due && bytes > last_bytes {
                        take();
                        (last, last_bytes) = (Instant::now(), bytes);
                    }
                }
            }
        })?;
        let thread = Mutex::new(Some(thread));
        Ok(Checkpoints { take: Box::new(move || take()), failure, stop, thread })
    }

    pub(super) fn now(&self) -> Result<(), LandingError> {
        if locked(&self.failure).is_none() {
            (self.take)();
        }
        self.so_far()
    }

    /// Result of all checkpoints so far.
    pub(super) fn so_far(&self) -> Result<(), LandingError> {
        match &*locked(&self.failure) {
            Some(error) => Err(LandingError::Sync(error.clone())),
            None => Ok(()),
        }
    }

    pub(super) fn end(&self) {
        *locked(&self.stop.0) = true;
        self.stop.1.notify_all();
        let thread = locked(&self.thread).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        self.end();
    }
}
