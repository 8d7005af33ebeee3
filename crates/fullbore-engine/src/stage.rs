//! Stage clocks: where each role of the pipeline spends its time.
//!
//! A role on threads records waits (starved: nothing to receive; blocked: nobody takes its output) and device time
//! (calls wrapped in `device`). The sampler reads its CPU time and its waits for a core from the kernel, per thread, so
//! no thread clock is read per item.
//!
//! A role of async tasks has no busy clock. It records how long tasks were ready before they were polled, how long
//! polls took, and how often a socket was empty or full. Every wait is tried first: the clock is read only if the try
//! fails.
//!
//! All clocks of a run belong to one [`Ledger`]. A ledger made by [`Ledger::off`] has clocks that measure nothing.

mod ledger;
mod network;
mod reading;
mod slot;
mod task;
mod timed;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

pub use ledger::{Ledger, Mark};
pub use network::{Finding, HostClock, HostReading, SendReading, Trial};
pub use reading::{Kind, LedgerReading, StageReading};
pub use slot::ThreadReading;
use slot::{Activity, Slot};
use task::TaskCounters;
pub use timed::TimedStage;

/// Next number of a clock; each thread keeps its slots by these numbers.
static NEXT_STAGE: AtomicU64 = AtomicU64::new(1);

/// The clock of one role, shared by all its threads or tasks.
#[derive(Debug)]
pub struct StageClock {
    id: u64,
    name: String,
    kind: Kind,
    on: bool,
    origin: Instant,
    slots: Mutex<Vec<Arc<Slot>>>,
    /// Sum over threads that have ended.
    past: Mutex<StageReading>,
    task: TaskCounters,
}

impl StageClock {
    fn new(name: &str, kind: Kind, on: bool, origin: Instant) -> StageClock {
        StageClock {
            id: NEXT_STAGE.fetch_add(1, Ordering::Relaxed),
            name: name.to_owned(),
            kind,
            on,
            origin,
            slots: Mutex::default(),
            past: Mutex::new(StageReading::new(name, kind)),
            task: TaskCounters::default(),
        }
    }

    /// Name of the role, as in reports.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the role runs on threads or as tasks.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    fn now_ns(&self) -> u64 {
        let elapsed = self.origin.elapsed();
        // Not `as_nanos`: its 128 bits cost a third of reading the clock.
        elapsed.as_secs() * 1_000_000_000 + u64::from(elapsed.subsec_nanos())
    }

    /// Counts the CPU time of the calling thread for this role, from now until
    /// the thread ends. For threads that play one role, and for the threads of
    /// an async runtime (from its thread-start hook).
    pub fn adopt_thread(&self) {
        if self.on {
            self.with_slot(true, |_| ());
        }
    }

    /// Counts the CPU time of the calling thread for this role until the guard
    /// is dropped; then it counts again for the role the thread had before.
    /// For a thread that plays several roles one after the other.
    pub fn enter(&self) -> Entered {
        slot::enter(self)
    }

    /// Counts items and bytes that the stage has finished.
    pub fn add_items(&self, items: u64, bytes: u64) {
        if self.on {
            self.with_slot(false, |slot| slot.add_items(items, bytes));
        }
    }

    /// Runs a call that may sleep in the kernel for a device: open, write, read, sync, rename. The sampler subtracts
    /// its CPU time.
    pub fn device<R>(&self, call: impl FnOnce() -> R) -> R {
        if !self.on {
            return call();
        }
        self.measured(Activity::Device, false, call)
    }

    /// Times a wait for input, on a plain thread.
    pub fn starved_in<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting(Activity::Starved, wait)
    }

    /// Times a wait for a taker of the output, on a plain thread: a full channel, a window without permits.
    pub fn blocked_in<R>(&self, wait: impl FnOnce() -> R) -> R {
        self.waiting(Activity::Blocked, wait)
    }

    fn waiting<R>(&self, activity: Activity, wait: impl FnOnce() -> R) -> R {
        if !self.on {
            return wait();
        }
        // A thread without a role that waits in a channel of this role adopts it.
        self.measured(activity, self.kind == Kind::Thread, wait)
    }

    fn measured<R>(&self, activity: Activity, adopt: bool, call: impl FnOnce() -> R) -> R {
        let began_ns = self.now_ns();
        let outermost = self.with_slot(adopt, |slot| slot.begin(activity, began_ns));
        let result = call();
        if outermost {
            let now_ns = self.now_ns();
            self.with_slot(false, |slot| slot.end(activity, began_ns, now_ns));
        }
        result
    }

    /// Calls `use_slot` with the slot of the calling thread, which is created on first use. With `adopt`, the thread's
    /// CPU time counts for this role unless it has a role already.
    #[inline]
    fn with_slot<R: Default>(&self, adopt: bool, use_slot: impl FnOnce(&Slot) -> R) -> R {
        slot::with_slot(self, adopt, use_slot)
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The sum of all threads and tasks so far, including waits in progress.
    pub fn reading(&self) -> StageReading {
        let slots = self.slots();
        let now_ns = self.now_ns();
        let mut reading = self.past.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for slot in slots.iter() {
            slot.reading(now_ns).add_to(&mut reading);
            reading.threads += u64::from(slot.is_owner());
        }
        drop(slots);
        self.task.add_to(&mut reading, now_ns);
        reading
    }

    /// Readings per thread. Threads that have ended are returned a last time and then kept only as a sum, so a run of
    /// many short threads stays small.
    pub(crate) fn thread_readings(&self) -> Vec<ThreadReading> {
        let mut slots = self.slots();
        let now_ns = self.now_ns();
        let readings: Vec<ThreadReading> = slots.iter().map(|slot| slot.reading(now_ns)).collect();
        if readings.iter().any(|reading| reading.ended) {
            let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
            for (slot, reading) in slots.iter().zip(&readings) {
                if reading.ended {
                    reading.add_to(&mut past);
                    past.threads += u64::from(slot.is_owner());
                }
            }
            let mut ended = readings.iter().map(|reading| reading.ended);
            slots.retain(|_| !ended.next().unwrap_or(false));
        }
        readings
    }

    /// The counters of tasks only; the sampler adds the threads one by one.
    pub(crate) fn task_reading(&self) -> StageReading {
        let mut reading = StageReading::new(&self.name, self.kind);
        self.task.add_to(&mut reading, self.now_ns());
        reading
    }
}

/// Guard: while it exists, the calling thread's CPU time counts for a role. See [`StageClock::enter`].
#[derive(Debug)]
#[must_use = "the role ends when the guard is dropped"]
pub struct Entered {
    slot: Option<Arc<Slot>>,
    before: Option<Arc<Slot>>,
    /// Keeps the guard on its thread.
    not_send: std::marker::PhantomData<*const ()>,
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;

    const WAIT: Duration = Duration::from_millis(30);

    fn ms(nanoseconds: u64) -> u64 {
        nanoseconds / 1_000_000
    }

    #[test]
    fn waits_and_device_time_are_told_apart() {
        let ledger = Ledger::new();
        let clock = ledger.stage("hash", Kind::Thread);
        let sleep = || std::thread::sleep(WAIT);
        // How long a sleep is on a busy machine is not said: each is the wait itself to what the call took.
        let lasts = |call: &dyn Fn()| {
            let began = Instant::now();
            call();
            WAIT.as_nanos() as u64..=began.elapsed().as_nanos() as u64
        };
        let starved = lasts(&|| clock.starved_in(sleep));
        let blocked = lasts(&|| clock.blocked_in(sleep));
        let device = lasts(&|| clock.device(sleep));
        clock.add_items(3, 300);
        let reading = clock.reading();
        assert!(starved.contains(&reading.starved_ns), "{reading:?}");
        assert!(blocked.contains(&reading.blocked_ns), "{reading:?}");
        assert!(device.contains(&reading.device_ns), "{reading:?}");
        assert_eq!((reading.items, reading.bytes, reading.device_calls), (3, 300, 1));
    }

    #[test]
    fn a_wait_under_way_is_seen_while_it_lasts() {
        let ledger = Ledger::new();
        let clock = ledger.stage("disk write", Kind::Thread);
        let (begins, begun) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let call = move || {
            begins.send(()).expect("it is awaited");
            let _ = ended.recv();
        };
        std::thread::scope(|scope| {
            scope.spawn(|| clock.device(call));
            begun.recv().expect("it begins");
            std::thread::sleep(WAIT);
            let device_ns = clock.reading().device_ns;
            assert!(device_ns >= WAIT.as_nanos() as u64, "only {device_ns} ns after {WAIT:?} of a call");
            drop(end);
        });
    }

    #[test]
    fn compute_of_a_thread_comes_from_the_kernel_and_stays_after_its_end() {
        let ledger = Ledger::new();
        let clock = ledger.stage("hash", Kind::Thread);
        let of_thread = clock.clone();
        let thread = std::thread::spawn(move || {
            of_thread.adopt_thread();
            let began = Instant::now();
            while began.elapsed() < 2 * WAIT {
                std::hint::black_box(began);
            }
        });
        // The thread's last reading is taken as its thread-locals are destroyed, which a scope would not wait for.
        thread.join().expect("no panic");
        let reading = clock.reading();
        assert!(ms(reading.compute_ns + reading.run_delay_ns) >= 40, "{reading:?}");
        assert_eq!(reading.threads, 1);
        assert!(clock.thread_readings().iter().all(|thread| thread.ended));
        assert_eq!(clock.reading().compute_ns, reading.compute_ns, "folding loses nothing");
        assert!(clock.thread_readings().is_empty());
    }

    #[test]
    fn a_thread_that_changes_roles_splits_its_compute() {
        let ledger = Ledger::new();
        let scan = ledger.stage("local scan", Kind::Thread);
        let hash = ledger.stage("hash", Kind::Thread);
        let spin = |time: Duration| {
            let began = Instant::now();
            while began.elapsed() < time {
                std::hint::black_box(began);
            }
        };
        hash.adopt_thread();
        let entered = scan.enter();
        spin(WAIT);
        drop(entered);
        let scanned = scan.reading();
        spin(WAIT);
        assert_eq!(scan.reading().compute_ns, scanned.compute_ns, "the guard has ended the role");
        assert!(scanned.compute_ns > 0 && hash.reading().compute_ns > 0);
    }

    #[test]
    fn clocks_that_are_off_count_nothing() {
        let ledger = Ledger::off();
        let clock = ledger.stage("hash", Kind::Thread);
        clock.adopt_thread();
        clock.add_items(1, 1);
        clock.device(|| std::thread::sleep(Duration::from_millis(1)));
        let reading = clock.reading();
        assert_eq!((reading.items, reading.device_ns, reading.threads), (0, 0, 0));
    }
}
