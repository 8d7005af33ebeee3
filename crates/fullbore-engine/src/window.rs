//! The in-flight window: how many bytes and items may be in flight at once.
//!
//! A sender takes a permit before it sends or requests. The code that proves completion, on any thread, gives the
//! permit back by dropping it. `flush` waits until every permit is back. The window bounds memory, and it makes a slow
//! receiver slow the sender down. A permit also records the position of its bytes (requested, on the wire, before the
//! hash, ...), which is the first of the verdict's two signals.
//!
//! Waiters are served in order, so small permits that would fit earlier do not starve a big one.

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

/// Kinds of work that a permit's bytes can be before or in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Reading a local file.
    Read,
    /// Decompressing, compressing, encrypting, encoding.
    Encode,
    /// Hashing.
    Hash,
    /// Writing to the destination.
    Write,
    /// Sending to another machine.
    Send,
}

impl Operation {
    const ALL: [Operation; 5] =
        [Operation::Read, Operation::Encode, Operation::Hash, Operation::Write, Operation::Send];
}

/// Position of a permit's bytes in the pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Position {
    /// Requested; the other side has the next move.
    Requested,
    /// Partly on the wire: the answer has begun, or the request is being sent.
    OnTheWire,
    /// In a queue before this operation.
    Before(Operation),
    /// In this operation.
    In(Operation),
    /// Finished here; the other side or the disk has not confirmed yet.
    AwaitingAcknowledgement,
}

/// Number of distinct positions.
const POSITIONS: usize = 3 + 2 * Operation::ALL.len();

impl Position {
    fn index(self) -> usize {
        match self {
            Position::Requested => 0,
            Position::OnTheWire => 1,
            Position::AwaitingAcknowledgement => 2,
            Position::Before(work) => 3 + 2 * work as usize,
            Position::In(work) => 4 + 2 * work as usize,
        }
    }
}

/// Bytes held by permits per position at one moment. Readings can be added across windows and processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PositionBytes {
    bytes: [u64; POSITIONS],
}

impl PositionBytes {
    /// Number of bytes that permits hold at `position`.
    pub fn at(&self, position: Position) -> u64 {
        self.bytes[position.index()]
    }

    /// Sets the bytes at one position; for tests and for readings of other machines.
    pub fn with(mut self, position: Position, bytes: u64) -> PositionBytes {
        self.bytes[position.index()] = bytes;
        self
    }

    /// Number of bytes that all permits hold.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// Bytes requested or on the wire: the network's part.
    pub fn network(&self) -> u64 {
        self.at(Position::Requested) + self.at(Position::OnTheWire)
    }

    /// Bytes before or in any of the given operations.
    pub(crate) fn before_or_in(&self, works: &[Operation]) -> u64 {
        works.iter().map(|work| self.at(Position::Before(*work)) + self.at(Position::In(*work))).sum()
    }
}

impl std::ops::AddAssign for PositionBytes {
    fn add_assign(&mut self, other: PositionBytes) {
        for (mine, theirs) in self.bytes.iter_mut().zip(other.bytes) {
            *mine += theirs;
        }
    }
}

/// State of a window at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WindowReading {
    /// Size of the window in bytes.
    pub bytes: u64,
    /// Size of the window in items.
    pub items: u32,
    /// Number of bytes that permits hold at the moment.
    pub held_bytes: u64,
    /// Number of items that permits hold at the moment.
    pub held_items: u32,
    /// Bytes held by permits, for each position.
    pub positions: PositionBytes,
    /// Time during which any caller waited for a permit, in nanoseconds.
    pub exhausted_ns: u64,
    /// Number of permits that were not available at once.
    pub waits: u64,
}

/// The window. Clones are handles to the same window.
#[derive(Clone, Debug)]
pub struct Window {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    bytes: u64,
    items: u32,
    state: Mutex<State>,
    positions: [AtomicU64; POSITIONS],
}

#[derive(Debug)]
struct State {
    free_bytes: u64,
    free_items: u32,
    /// Waiters, oldest first; tickets ascend.
    waiters: VecDeque<Waiter>,
    /// Tickets that were granted and whose futures have not been polled since.
    granted: Vec<u64>,
    flushers: Vec<Waker>,
    next_ticket: u64,
    waiting_since: Option<Instant>,
    exhausted: Duration,
    waits: u64,
    permits: u64,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    bytes: u64,
    items: u32,
    waker: Waker,
}

impl Window {
    /// Creates a window of `bytes` and `items`. Zero of either is taken as one, because a window that lets nothing
    /// through would be a deadlock.
    pub fn new(bytes: u64, items: u32) -> Window {
        let (bytes, items) = (bytes.max(1), items.max(1));
        Window {
            shared: Arc::new(Shared {
                bytes,
                items,
                state: Mutex::new(State {
                    free_bytes: bytes,
                    free_items: items,
                    waiters: VecDeque::new(),
                    granted: Vec::new(),
                    flushers: Vec::new(),
                    next_ticket: 0,
                    waiting_since: None,
                    exhausted: Duration::ZERO,
                    waits: 0,
                    permits: 0,
                }),
                positions: std::array::from_fn(|_| AtomicU64::new(0)),
            }),
        }
    }

    /// Waits for a permit for one item of `bytes`. A permit bigger than the window is clamped to it: the item then has
    /// the window to itself. Dropping the future gives up its place in the queue.
    pub fn acquire(&self, bytes: u64) -> Acquire {
        self.acquire_parts(bytes, 1)
    }

    /// Waits for a permit for further `bytes` of an item that already has a permit.
    pub fn acquire_bytes(&self, bytes: u64) -> Acquire {
        self.acquire_parts(bytes, 0)
    }

    fn acquire_parts(&self, bytes: u64, items: u32) -> Acquire {
        Acquire { shared: self.shared.clone(), bytes: bytes.min(self.shared.bytes), items, ticket: None, done: false }
    }

    /// As [`Window::acquire`], for a plain thread.
    pub fn acquire_blocking(&self, bytes: u64) -> Permit {
        match self.try_acquire(bytes) {
            Some(permit) => permit,
            None => block_on(self.acquire(bytes)),
        }
    }

    /// As [`Window::acquire_bytes`], for a plain thread.
    pub fn acquire_bytes_blocking(&self, bytes: u64) -> Permit {
        block_on(self.acquire_bytes(bytes))
    }

    /// Returns a permit for one item of `bytes`; `None` if the window has too few free bytes or items, or if others
    /// wait.
    ///
    /// ```
    /// use fullbore_engine::window::Window;
    ///
    /// let window = Window::new(1000, 10);
    /// let permit = window.try_acquire(800).unwrap();
    /// assert!(window.try_acquire(300).is_none());
    /// drop(permit);
    /// assert!(window.try_acquire(300).is_some());
    /// ```
    pub fn try_acquire(&self, bytes: u64) -> Option<Permit> {
        let bytes = bytes.min(self.shared.bytes);
        let mut state = self.shared.lock();
        if !state.take(bytes, 1) {
            return None;
        }
        drop(state);
        Some(self.shared.permit(bytes, 1))
    }

    /// Waits until every permit is back.
    pub fn flush(&self) -> Flush {
        Flush { shared: self.shared.clone() }
    }

    /// As [`Window::flush`], for a plain thread.
    pub fn flush_blocking(&self) {
        block_on(self.flush());
    }

    /// Present state of the window.
    pub fn reading(&self) -> WindowReading {
        let shared = &self.shared;
        let mut positions = PositionBytes::default();
        for (reading, counter) in positions.bytes.iter_mut().zip(&shared.positions) {
            *reading = counter.load(Ordering::Relaxed);
        }
        let state = shared.lock();
        let waiting = state.waiting_since.map_or(Duration::ZERO, |since| since.elapsed());
        WindowReading {
            bytes: shared.bytes,
            items: shared.items,
            held_bytes: shared.bytes - state.free_bytes,
            held_items: shared.items - state.free_items,
            positions,
            exhausted_ns: (state.exhausted + waiting).as_nanos() as u64,
            waits: state.waits,
        }
    }
}

impl Shared {
    /// A panic elsewhere leaves the counters consistent, because every change below is complete before anything can
    /// panic. So poisoning is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn permit(self: &Arc<Self>, bytes: u64, items: u32) -> Permit {
        self.positions[Position::Requested.index()].fetch_add(bytes, Ordering::Relaxed);
        Permit { shared: self.clone(), bytes, items, position: Position::Requested }
    }

    /// Returns bytes, items and permits to the window, and serves the waiters.
    fn give_back(&self, bytes: u64, items: u32, permits: u64) {
        let mut state = self.lock();
        state.free_bytes += bytes;
        state.free_items += items;
        state.permits -= permits;
        let wakers = state.serve();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl State {
    fn fits(&self, bytes: u64, items: u32) -> bool {
        bytes <= self.free_bytes && items <= self.free_items
    }

    /// Takes bytes and items if they are free and nobody waits: no caller overtakes the queue.
    fn take(&mut self, bytes: u64, items: u32) -> bool {
        let free = self.waiters.is_empty() && self.fits(bytes, items);
        if free {
            self.deduct(bytes, items);
        }
        free
    }

    fn deduct(&mut self, bytes: u64, items: u32) {
        self.free_bytes -= bytes;
        self.free_items -= items;
        self.permits += 1;
    }

    /// True if the ticket was granted; otherwise stores the waker.
    fn collect(&mut self, ticket: u64, waker: &Waker) -> bool {
        if let Some(position) = self.granted.iter().position(|granted| *granted == ticket) {
            self.granted.swap_remove(position);
            return true;
        }
        if let Ok(position) = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) {
            self.waiters[position].waker.clone_from(waker);
        }
        false
    }

    /// Forgets a ticket; true if it was granted, so that its permit must be returned.
    fn abandon(&mut self, ticket: u64) -> bool {
        if let Some(position) = self.granted.iter().position(|granted| *granted == ticket) {
            self.granted.swap_remove(position);
            return true;
        }
        if let Ok(position) = self.waiters.binary_search_by_key(&ticket, |waiter| waiter.ticket) {
            self.waiters.remove(position);
        }
        false
    }

    /// Grants permits to the head of the queue as far as they fit. Returns the wakers, to be called after the lock is
    /// released.
    fn serve(&mut self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        while let Some(waiter) = self.waiters.front()
            && self.fits(waiter.bytes, waiter.items)
        {
            let (bytes, items) = (waiter.bytes, waiter.items);
            self.deduct(bytes, items);
            if let Some(waiter) = self.waiters.pop_front() {
                self.granted.push(waiter.ticket);
                wakers.push(waiter.waker);
            }
        }
        if self.waiters.is_empty()
            && let Some(since) = self.waiting_since.take()
        {
            self.exhausted += since.elapsed();
        }
        if self.permits == 0 {
            wakers.append(&mut self.flushers);
        }
        wakers
    }
}

/// Future of a permit; see [`Window::acquire`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Acquire {
    shared: Arc<Shared>,
    bytes: u64,
    items: u32,
    ticket: Option<u64>,
    done: bool,
}

impl Future for Acquire {
    type Output = Permit;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let shared = self.shared.clone();
        let mut state = shared.lock();
        let granted = match self.ticket {
            None => state.take(self.bytes, self.items),
            Some(ticket) => state.collect(ticket, context.waker()),
        };
        if granted {
            drop(state);
            self.done = true;
            return Poll::Ready(shared.permit(self.bytes, self.items));
        }
        if self.ticket.is_none() {
            let ticket = state.next_ticket;
            state.next_ticket += 1;
            state.waits += 1;
            state.waiting_since.get_or_insert_with(Instant::now);
            let (bytes, items) = (self.bytes, self.items);
            let waker = context.waker().clone();
            state.waiters.push_back(Waiter { ticket, bytes, items, waker });
            self.ticket = Some(ticket);
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        let Some(ticket) = self.ticket.filter(|_| !self.done) else {
            return;
        };
        let mut state = self.shared.lock();
        if state.abandon(ticket) {
            state.free_bytes += self.bytes;
            state.free_items += self.items;
            state.permits -= 1;
        }
        // Whether the dropped waiter had a grant or blocked the queue, the waiters behind it may fit now.
        let wakers = state.serve();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// Future that ends when every permit is back; see [`Window::flush`].
#[derive(Debug)]
#[must_use = "a future does nothing unless it is awaited"]
pub struct Flush {
    shared: Arc<Shared>,
}

impl Future for Flush {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.shared.lock();
        if state.permits == 0 {
            return Poll::Ready(());
        }
        if !state.flushers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.flushers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// The right to have some bytes (and perhaps an item) in flight. Dropping it, on any thread, gives it back.
#[derive(Debug)]
#[must_use = "a permit that is dropped at once bounds nothing"]
pub struct Permit {
    shared: Arc<Shared>,
    bytes: u64,
    items: u32,
    position: Position,
}

impl Permit {
    /// Number of bytes of the permit, after clamping to the window.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The position at which the permit's bytes are counted.
    pub fn position(&self) -> Position {
        self.position
    }

    /// Moves the permit's bytes to another position.
    pub fn at(&mut self, position: Position) {
        if position == self.position {
            return;
        }
        self.shared.positions[position.index()].fetch_add(self.bytes, Ordering::Relaxed);
        self.shared.positions[self.position.index()].fetch_sub(self.bytes, Ordering::Relaxed);
        self.position = position;
    }

    /// Gives back all but `bytes`; a permit never grows.
    pub fn shrink(&mut self, bytes: u64) {
        let surplus = self.bytes.saturating_sub(bytes);
        if surplus == 0 {
            return;
        }
        self.bytes -= surplus;
        self.shared.positions[self.position.index()].fetch_sub(surplus, Ordering::Relaxed);
        self.shared.give_back(surplus, 0, 0);
    }

    /// Splits off a permit for up to `bytes` of this permit's bytes. The item stays with this permit; the new one has
    /// the same position.
    pub fn split(&mut self, bytes: u64) -> Permit {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.shared.lock().permits += 1;
        Permit { shared: self.shared.clone(), bytes, items: 0, position: self.position }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.shared.positions[self.position.index()].fetch_sub(self.bytes, Ordering::Relaxed);
        self.shared.give_back(self.bytes, self.items, 1);
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future to its end on this thread. Only for futures of this crate, which need no runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            // A wake between poll and park leaves the park token set, so none is lost.
            Poll::Pending => thread::park(),
        }
    }
}

#[cfg(test)]
mod tests;
