//! A bounded queue between threads, with several consumers.
//!
//! Like the engine's channels, it first tries without the clock, and reads the clock only to wait. A thread that waits
//! for room counts as blocked, a thread that waits for an item as starved. Unlike those channels it may have many
//! consumers: the next free worker or connection gets the next item. After [`close`](Queue::close) consumers still get
//! the remaining items; [`break_off`](Queue::break_off) discards them.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::StageClock;

/// A bounded queue. Clones are handles to the same queue.
///
/// ```
/// use fullbore_copy::queue::Queue;
/// use fullbore_engine::stage::{Kind, Ledger};
///
/// let clock = Ledger::new().stage("write", Kind::Thread);
/// let queue = Queue::new(2);
/// queue.push("first", &clock).unwrap();
/// queue.close();
/// assert_eq!((queue.pop(&clock), queue.pop(&clock)), (Some("first"), None));
/// ```
#[derive(Debug)]
pub struct Queue<T> {
    shared: Arc<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    /// The queue is full when the total weight of its items reaches this.
    most_weight: usize,
    weigh: fn(&T) -> usize,
    state: Mutex<State<T>>,
    filled: Condvar,
    emptied: Condvar,
}

#[derive(Debug)]
struct State<T> {
    items: VecDeque<T>,
    weight: usize,
    closed: bool,
    /// A thread that waits with a time limit has to return now.
    nudged: bool,
    /// Number of threads that wait for an item, and for room.
    takers: usize,
    putters: usize,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Queue<T> {
        Queue { shared: self.shared.clone() }
    }
}

/// The error for a closed queue, which accepts no more items.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

/// The result of waiting for an item with a time limit.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// The next item.
    Item(T),
    /// The queue is closed and empty.
    End,
    /// The time limit passed without an item.
    TimedOut,
}

impl<T> Queue<T> {
    /// Makes a queue of at most `capacity` items; zero counts as one.
    pub fn new(capacity: usize) -> Queue<T> {
        Queue::of_weight(capacity.max(1), |_| 1)
    }

    /// Makes a queue that is full once the total weight of its items reaches `most_weight`. `weigh` returns the weight
    /// of an item.
    pub(crate) fn of_weight(most_weight: usize, weigh: fn(&T) -> usize) -> Queue<T> {
        Queue {
            shared: Arc::new(Inner {
                most_weight,
                weigh,
                state: Mutex::new(State {
                    items: VecDeque::new(),
                    weight: 0,
                    closed: false,
                    nudged: false,
                    takers: 0,
                    putters: 0,
                }),
                filled: Condvar::new(),
                emptied: Condvar::new(),
            }),
        }
    }

    /// Whether [`push`](Queue::push) would wait now.
    pub fn is_full(&self) -> bool {
        self.lock().weight >= self.shared.most_weight
    }

    /// Removes the first item, and takes its weight off.
    fn first(&self, state: &mut State<T>) -> Option<T> {
        let item = state.items.pop_front()?;
        state.weight -= (self.shared.weigh)(&item);
        Some(item)
    }

    /// Appends an item; waits while the queue is full.
    ///
    /// # Errors
    /// [`Closed`] if the queue is closed, before or during the wait; the item is dropped.
    pub fn push(&self, item: T, clock: &StageClock) -> Result<(), Closed> {
        self.push_behind(item, usize::MAX, clock)
    }

    /// Like [`Queue::push`], but waits until fewer than `most` items are in the queue. Later items then have fewer of
    /// these ahead of them.
    ///
    /// # Errors
    /// [`Closed`] if the queue is closed, before or during the wait; the item is dropped.
    pub(crate) fn push_behind(&self, item: T, most: usize, clock: &StageClock) -> Result<(), Closed> {
        let is_full = |state: &State<T>| {
            !state.closed && (state.items.len() >= most.max(1) || state.weight >= self.shared.most_weight)
        };
        let mut state = self.lock();
        if is_full(&state) {
            drop(state);
            state = clock.blocked_in(|| {
                let mut state = self.lock();
                while is_full(&state) {
                    state.putters += 1;
                    state = self.shared.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.putters -= 1;
                }
                state
            });
        }
        if state.closed {
            return Err(Closed);
        }
        state.weight += (self.shared.weigh)(&item);
        state.items.push_back(item);
        // Waking a thread is a system call, so none is made if no thread waits.
        let is_awaited = state.takers > 0;
        drop(state);
        if is_awaited {
            self.shared.filled.notify_one();
        }
        Ok(())
    }

    /// Puts an item before all others, even if the queue is full.
    ///
    /// # Errors
    /// [`Closed`] if the queue is closed; the item is dropped.
    pub(crate) fn push_first(&self, item: T) -> Result<(), Closed> {
        let mut state = self.lock();
        if state.closed {
            return Err(Closed);
        }
        state.weight += (self.shared.weigh)(&item);
        state.items.push_front(item);
        drop(state);
        self.shared.filled.notify_one();
        Ok(())
    }

    /// Removes and returns the next item; waits for one. `None` once the queue is closed and empty.
    pub fn pop(&self, clock: &StageClock) -> Option<T> {
        match self.take(None, clock) {
            Taken::Item(item) => Some(item),
            Taken::End | Taken::TimedOut => None,
        }
    }

    /// Removes and returns the next item, if there is one now.
    pub fn try_pop(&self) -> Option<T> {
        let mut state = self.lock();
        let item = self.first(&mut state);
        self.emptied(state);
        item
    }

    /// Wakes waiting producers once half of the queue is free. Waking them for each item would make producers and
    /// consumers take turns item by item. All are woken, as one may wait for more room than the next.
    fn emptied(&self, state: MutexGuard<'_, State<T>>) {
        let is_awaited = state.putters > 0 && state.weight <= self.shared.most_weight / 2;
        drop(state);
        if is_awaited {
            self.shared.emptied.notify_all();
        }
    }

    /// Like [`Queue::pop`], but waits at most for `time`.
    pub fn pop_within(&self, time: Duration, clock: &StageClock) -> Taken<T> {
        self.take(Some(time), clock)
    }

    /// Ends the wait of a thread with a time limit, or the next such wait.
    pub(crate) fn nudge(&self) {
        self.lock().nudged = true;
        self.shared.filled.notify_all();
    }

    fn take(&self, time: Option<Duration>, clock: &StageClock) -> Taken<T> {
        let mut state = self.lock();
        if state.items.is_empty() && !state.closed {
            drop(state);
            let until = time.map(|time| Instant::now() + time);
            state = clock.starved_in(|| self.wait_for_item(until));
        }
        let taken = match self.first(&mut state) {
            Some(item) => Taken::Item(item),
            None if state.closed => Taken::End,
            None => {
                state.nudged = false;
                Taken::TimedOut
            }
        };
        self.emptied(state);
        taken
    }

    fn wait_for_item(&self, until: Option<Instant>) -> MutexGuard<'_, State<T>> {
        let mut state = self.lock();
        while state.items.is_empty() && !state.closed {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero() || state.nudged) {
                break;
            }
            state.takers += 1;
            state = match left {
                Some(left) => {
                    let waited = self.shared.filled.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.filled.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
            state.takers -= 1;
        }
        state
    }

    /// Closes the queue for new items. Consumers still get the remaining ones.
    pub fn close(&self) {
        self.lock().closed = true;
        self.shared.filled.notify_all();
        self.shared.emptied.notify_all();
    }

    /// Closes the queue and discards its items.
    pub fn break_off(&self) {
        self.break_off_but(|_| false);
    }

    /// Closes the queue and discards its items, except those that `keep` selects for the consumers.
    pub(crate) fn break_off_but(&self, keep: impl Fn(&T) -> bool) {
        self.end(None, keep);
    }

    /// Like [`Queue::break_off_but`], but appends a last item. Does nothing if the queue is closed already.
    pub(crate) fn end_with(&self, last: T, keep: impl Fn(&T) -> bool) {
        self.end(Some(last), keep);
    }

    fn end(&self, last: Option<T>, keep: impl Fn(&T) -> bool) {
        let gone = {
            let mut state = self.lock();
            if state.closed && last.is_some() {
                return;
            }
            state.closed = true;
            let items = std::mem::take(&mut state.items);
            let (kept, gone): (VecDeque<T>, VecDeque<T>) = items.into_iter().partition(|item| keep(item));
            state.items = kept;
            state.items.extend(last);
            state.weight = state.items.iter().map(self.shared.weigh).sum();
            gone
        };
        drop(gone);
        self.shared.filled.notify_all();
        self.shared.emptied.notify_all();
    }

    /// The state is consistent even after a panic of another thread, as every change is one step.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::stage::{Kind, Ledger};

    use super::*;

    #[test]
    fn many_takers_get_everything_once_and_the_end() {
        let ledger = Ledger::new();
        let clock = ledger.stage("test", Kind::Thread);
        let queue = Queue::new(3);
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let takers: Vec<_> =
                (0..3).map(|_| scope.spawn(|| std::iter::from_fn(|| queue.pop(&clock)).sum::<u64>())).collect();
            (1..=1000).for_each(|item| queue.push(item, &clock).unwrap());
            queue.close();
            takers.into_iter().map(|taker| taker.join().unwrap()).collect()
        });
        assert_eq!(sums.iter().sum::<u64>(), 500_500);
        assert_eq!(queue.push(1, &clock), Err(Closed));
    }

    #[test]
    fn a_queue_that_weighs_is_full_when_its_items_are_heavy() {
        let clock = Ledger::new().stage("test", Kind::Thread);
        let queue = Queue::of_weight(10, |item: &usize| *item);
        for item in [4, 5, 3] {
            assert!(!queue.is_full());
            queue.push(item, &clock).unwrap();
        }
        assert!(queue.is_full());
        assert_eq!(queue.try_pop(), Some(4));
        assert!(!queue.is_full());
        queue.break_off_but(|item| *item == 5);
        assert_eq!((queue.pop(&clock), queue.pop(&clock)), (Some(5), None));
    }

    #[test]
    fn what_is_to_go_first_waits_neither_for_room_nor_behind_others() {
        let clock = Ledger::new().stage("test", Kind::Thread);
        let queue = Queue::new(2);
        (1..=2).for_each(|item| queue.push(item, &clock).unwrap());
        queue.push_first(0).unwrap();
        queue.close();
        assert_eq!(queue.push_first(3), Err(Closed));
        assert_eq!(std::iter::from_fn(|| queue.pop(&clock)).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn who_waits_for_room_is_woken_when_half_is_free() {
        let clock = Ledger::new().stage("test", Kind::Thread);
        let queue = Queue::new(4);
        (1..=4).for_each(|item| queue.push(item, &clock).unwrap());
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| queue.push(5, &clock));
            while queue.lock().putters == 0 {
                std::thread::yield_now();
            }
            assert_eq!(queue.pop(&clock), Some(1));
            assert_eq!((queue.lock().putters, pushing.is_finished()), (1, false));
            assert_eq!(queue.try_pop(), Some(2));
            pushing.join().unwrap().unwrap();
        });
        queue.close();
        assert_eq!(std::iter::from_fn(|| queue.pop(&clock)).collect::<Vec<_>>(), [3, 4, 5]);
    }

    #[test]
    fn breaking_it_off_wakes_who_waits_for_room_and_who_waits_for_an_item() {
        let ledger = Ledger::new();
        let clock = ledger.stage("test", Kind::Thread);
        let (full, empty) = (Queue::new(1), Queue::<u8>::new(1));
        full.push(1, &clock).unwrap();
        std::thread::scope(|scope| {
            let pushing = scope.spawn(|| full.push(2, &clock));
            let taking = scope.spawn(|| empty.pop(&clock));
            full.break_off();
            empty.break_off();
            assert_eq!((pushing.join().unwrap(), taking.join().unwrap()), (Err(Closed), None));
        });
        assert_eq!(full.pop(&clock), None);
        let kept = Queue::new(4);
        (1..=4).for_each(|item| kept.push(item, &clock).unwrap());
        kept.end_with(9, |item| item % 2 == 0);
        kept.end_with(8, |_| true);
        assert_eq!(std::iter::from_fn(|| kept.pop(&clock)).collect::<Vec<_>>(), [2, 4, 9]);
        assert_eq!(Queue::<u8>::new(1).pop_within(Duration::from_millis(1), &clock), Taken::TimedOut);
        let waited = Queue::<u8>::new(1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| waited.pop_within(Duration::from_secs(3600), &clock));
            waited.nudge();
            assert_eq!(waiting.join().unwrap(), Taken::TimedOut);
        });
    }
}
