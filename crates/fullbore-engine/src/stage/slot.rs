//! The counters of one thread in one role.
//!
//! Only the owning thread writes them, so a plain load and store per update is enough, without a locked instruction per
//! item. The sampler reads them from outside. One word holds the kind and the start of the present wait, so that a wait
//! of seconds is seen while it lasts.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::{Entered, StageClock, StageReading};
use crate::verdict::cpu::{self, SchedStat};

/// Kind of wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    Starved = 1,
    Blocked = 2,
    Device = 3,
}

/// Low bits of the activity word hold the kind; the other bits hold the start in nanoseconds.
const ACTIVITY_BITS: u32 = 2;

static NEXT_SLOT: AtomicU64 = AtomicU64::new(1);

/// Aligned to two cache lines, so that threads do not disturb one another: x86 fetches adjacent lines in pairs.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Slot {
    id: u64,
    thread_id: u32,
    owner: AtomicBool,
    ended: AtomicBool,
    items: AtomicU64,
    bytes: AtomicU64,
    starved_ns: AtomicU64,
    blocked_ns: AtomicU64,
    device_ns: AtomicU64,
    device_calls: AtomicU64,
    activity: AtomicU64,
    /// The thread's CPU counters when its CPU time began to count for this role.
    base: [AtomicU64; 2],
    /// CPU time of earlier periods in which the thread's CPU time counted for this role.
    closed: [AtomicU64; 2],
    /// Time at which the thread first played this role.
    began_ns: u64,
}

/// Counters of one thread in one role: so far, or within a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadReading {
    /// Number of this combination of thread and role, unique in this process.
    pub slot: u64,
    /// The kernel's number of the thread.
    pub thread_id: u32,
    /// Whether the thread has ended.
    pub ended: bool,
    /// Whether the thread's CPU time counts for this role.
    pub owner: bool,
    /// Items that the stage has finished.
    pub items: u64,
    /// Bytes that the stage has finished.
    pub bytes: u64,
    /// Time since the thread first played this role, while it lives.
    pub alive_ns: u64,
    /// CPU time of the thread, in nanoseconds.
    pub compute_ns: u64,
    /// Time that the thread was runnable without a core, in nanoseconds.
    pub run_delay_ns: u64,
    /// Time that the thread waited for input, in nanoseconds.
    pub starved_ns: u64,
    /// Time that the thread waited for a taker of its output, in nanoseconds.
    pub blocked_ns: u64,
    /// Wall time of calls wrapped in `device`, in nanoseconds.
    pub device_ns: u64,
    /// Number of calls wrapped in `device`.
    pub device_calls: u64,
}

impl ThreadReading {
    fn combine(&mut self, other: &ThreadReading, combine: impl Fn(u64, u64) -> u64) {
        self.items = combine(self.items, other.items);
        self.bytes = combine(self.bytes, other.bytes);
        self.alive_ns = combine(self.alive_ns, other.alive_ns);
        self.compute_ns = combine(self.compute_ns, other.compute_ns);
        self.run_delay_ns = combine(self.run_delay_ns, other.run_delay_ns);
        self.starved_ns = combine(self.starved_ns, other.starved_ns);
        self.blocked_ns = combine(self.blocked_ns, other.blocked_ns);
        self.device_ns = combine(self.device_ns, other.device_ns);
        self.device_calls = combine(self.device_calls, other.device_calls);
    }

    /// Difference of the counters to an earlier reading, never below zero.
    pub fn since(&self, earlier: &ThreadReading) -> ThreadReading {
        let mut difference = *self;
        difference.combine(earlier, u64::saturating_sub);
        difference
    }

    /// Takes the larger value of each counter; see [`StageReading::highest`].
    pub fn highest(&mut self, other: &ThreadReading) {
        self.combine(other, u64::max);
    }

    /// Adds a later period of the same thread in the same role.
    pub fn add(&mut self, later: &ThreadReading) {
        self.combine(later, u64::saturating_add);
        self.owner |= later.owner;
        self.ended = later.ended;
    }

    pub(super) fn add_to(&self, reading: &mut StageReading) {
        reading.items += self.items;
        reading.bytes += self.bytes;
        reading.compute_ns += self.compute_ns;
        reading.run_delay_ns += self.run_delay_ns;
        reading.starved_ns += self.starved_ns;
        reading.blocked_ns += self.blocked_ns;
        reading.device_ns += self.device_ns;
        reading.device_calls += self.device_calls;
    }
}

fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

impl Slot {
    fn new(thread_id: u32, now_ns: u64) -> Slot {
        let zero = || AtomicU64::new(0);
        Slot {
            id: NEXT_SLOT.fetch_add(1, Ordering::Relaxed),
            thread_id,
            owner: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            items: zero(),
            bytes: zero(),
            starved_ns: zero(),
            blocked_ns: zero(),
            device_ns: zero(),
            device_calls: zero(),
            activity: zero(),
            base: [zero(), zero()],
            closed: [zero(), zero()],
            began_ns: now_ns,
        }
    }

    pub(super) fn is_owner(&self) -> bool {
        self.owner.load(Ordering::Relaxed) || self.closed.iter().any(|counter| counter.load(Ordering::Relaxed) > 0)
    }

    pub(super) fn add_items(&self, items: u64, bytes: u64) {
        bump(&self.items, items);
        bump(&self.bytes, bytes);
    }

    /// Records the start of a wait. False inside another measured wait: the outer one measures both.
    pub(super) fn begin(&self, activity: Activity, now_ns: u64) -> bool {
        let free = self.activity.load(Ordering::Relaxed) == 0;
        if free {
            self.activity.store(now_ns << ACTIVITY_BITS | activity as u64, Ordering::Relaxed);
        }
        free
    }

    /// Ends the wait that began at `began_ns`. The word is cleared before the total grows: a reader in between sees a
    /// little less, never the wait twice.
    pub(super) fn end(&self, activity: Activity, began_ns: u64, now_ns: u64) {
        self.activity.store(0, Ordering::Release);
        let took_ns = now_ns.saturating_sub(began_ns);
        match activity {
            Activity::Starved => bump(&self.starved_ns, took_ns),
            Activity::Blocked => bump(&self.blocked_ns, took_ns),
            Activity::Device => {
                bump(&self.device_ns, took_ns);
                bump(&self.device_calls, 1);
            }
        }
    }

    fn own(&self, cpu: SchedStat) {
        self.base[0].store(cpu.compute_ns, Ordering::Relaxed);
        self.base[1].store(cpu.run_delay_ns, Ordering::Relaxed);
        self.owner.store(true, Ordering::Release);
    }

    fn disown(&self, cpu: SchedStat) {
        if !self.owner.load(Ordering::Acquire) {
            return;
        }
        let (compute_ns, run_delay_ns) = self.since_base(cpu);
        self.owner.store(false, Ordering::Release);
        bump(&self.closed[0], compute_ns);
        bump(&self.closed[1], run_delay_ns);
    }

    fn since_base(&self, cpu: SchedStat) -> (u64, u64) {
        (
            cpu.compute_ns.saturating_sub(self.base[0].load(Ordering::Relaxed)),
            cpu.run_delay_ns.saturating_sub(self.base[1].load(Ordering::Relaxed)),
        )
    }

    pub(super) fn reading(&self, now_ns: u64) -> ThreadReading {
        // Read the ended flag first: if it is set, the values below are final.
        let ended = self.ended.load(Ordering::Acquire);
        let mut reading = ThreadReading {
            slot: self.id,
            thread_id: self.thread_id,
            ended,
            owner: self.is_owner(),
            items: self.items.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            // For a thread that has ended this is slightly too long, by at most a sample.
            alive_ns: now_ns.saturating_sub(self.began_ns),
            starved_ns: self.starved_ns.load(Ordering::Relaxed),
            blocked_ns: self.blocked_ns.load(Ordering::Relaxed),
            device_ns: self.device_ns.load(Ordering::Relaxed),
            device_calls: self.device_calls.load(Ordering::Relaxed),
            compute_ns: self.closed[0].load(Ordering::Relaxed),
            run_delay_ns: self.closed[1].load(Ordering::Relaxed),
        };
        if self.owner.load(Ordering::Acquire)
            && let Some(cpu) = cpu::schedstat(self.thread_id)
        {
            let (compute_ns, run_delay_ns) = self.since_base(cpu);
            reading.compute_ns += compute_ns;
            reading.run_delay_ns += run_delay_ns;
        }
        let word = self.activity.load(Ordering::Acquire);
        let so_far_ns = now_ns.saturating_sub(word >> ACTIVITY_BITS);
        match word & ((1 << ACTIVITY_BITS) - 1) {
            1 => reading.starved_ns += so_far_ns,
            2 => reading.blocked_ns += so_far_ns,
            3 => reading.device_ns += so_far_ns,
            _ => (),
        }
        reading
    }
}

/// Slots of the calling thread, and the one that its CPU time counts for.
struct Mine {
    slots: Vec<(u64, Arc<Slot>)>,
    owner: Option<Arc<Slot>>,
}

impl Drop for Mine {
    fn drop(&mut self) {
        if let Some(owner) = &self.owner {
            owner.disown(cpu::own_schedstat());
        }
        for (_, slot) in &self.slots {
            slot.ended.store(true, Ordering::Release);
        }
    }
}

thread_local! {
    static MINE: RefCell<Mine> = const { RefCell::new(Mine { slots: Vec::new(), owner: None }) };
}

impl Mine {
    #[inline]
    fn slot(&mut self, stage: &StageClock) -> &Arc<Slot> {
        let known = self.slots.iter().position(|(id, _)| *id == stage.id);
        let position = known.unwrap_or_else(|| self.register(stage));
        &self.slots[position].1
    }

    #[cold]
    fn register(&mut self, stage: &StageClock) -> usize {
        let slot = Arc::new(Slot::new(cpu::thread_id(), stage.now_ns()));
        stage.slots().push(slot.clone());
        // Drop slots whose clock is gone (an earlier run in this thread).
        self.slots.retain(|(_, slot)| Arc::strong_count(slot) > 1);
        self.slots.push((stage.id, slot));
        self.slots.len() - 1
    }

    fn own(&mut self, slot: Option<Arc<Slot>>) -> Option<Arc<Slot>> {
        let cpu = cpu::own_schedstat();
        if let Some(before) = &self.owner {
            before.disown(cpu);
        }
        if let Some(slot) = &slot {
            slot.own(cpu);
        }
        std::mem::replace(&mut self.owner, slot)
    }
}

#[inline]
pub(super) fn with_slot<R: Default>(stage: &StageClock, adopt: bool, use_slot: impl FnOnce(&Slot) -> R) -> R {
    // A thread that is being torn down has nothing left to count.
    MINE.try_with(|mine| {
        let Ok(mut mine) = mine.try_borrow_mut() else {
            return R::default();
        };
        if adopt && mine.owner.as_ref().is_none_or(|owner| Arc::strong_count(owner) <= 2) {
            // No role yet, or a role whose ledger is gone.
            let slot = mine.slot(stage).clone();
            if mine.owner.as_ref().is_none_or(|owner| !Arc::ptr_eq(owner, &slot)) {
                mine.own(Some(slot));
            }
        }
        use_slot(mine.slot(stage))
    })
    .unwrap_or_default()
}

pub(super) fn enter(stage: &StageClock) -> Entered {
    let nothing = Entered { slot: None, before: None, not_send: PhantomData };
    if !stage.on {
        return nothing;
    }
    MINE.try_with(|mine| {
        let mut mine = mine.borrow_mut();
        let slot = mine.slot(stage).clone();
        let before = mine.own(Some(slot.clone()));
        Entered { slot: Some(slot), before, not_send: PhantomData }
    })
    .unwrap_or(nothing)
}

impl Drop for Entered {
    fn drop(&mut self) {
        if self.slot.is_some() {
            let before = self.before.take();
            let _ = MINE.try_with(|mine| mine.borrow_mut().own(before));
        }
    }
}
