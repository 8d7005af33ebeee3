//! A bounded queue between threads, with several takers.
//!
//! As the engine's channels it tries first and reads the clock only to wait: who waits for room is
//! blocked, who waits for an item is starved. Unlike them it may have many takers, so that the next
//! free worker, or the next free connection, gets the next item. Closing it lets takers have what is
//! left; breaking it throws that away.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fullbore_engine::stage::StageClock;

/// A bounded queue. Clones are handles to the same one.
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
    /// The queue is full when its items together have this weight.
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
    /// A thread that waits with a time limit returns now.
    nudged: bool,
    /// Threads that wait for an item, and for room.
    takers: usize,
    putters: usize,
}

impl<T> Clone for Queue<T> {
    fn clone(&self) -> Queue<T> {
        Queue { shared: self.shared.clone() }
    }
}

/// The queue takes nothing any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

/// The result of waiting for an item with a time limit.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken<T> {
    /// An item.
    Item(T),
    /// The queue is closed and empty.
    End,
    /// The time limit passed without an item.
    TimedOut,
}

impl<T> Queue<T> {
    /// A queue of at most `capacity` items; zero is taken as one.
    pub fn new(capacity: usize) -> Queue<T> {
        Queue::of_weight(capacity.max(1), |_| 1)
    }

    /// A queue that takes items until their weight reaches `most_weight`.
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

    /// Whether whoever puts something in has to wait.
    pub fn is_full(&self) -> bool {
        self.lock().weight >= self.shared.most_weight
    }

    /// The first item, off the queue.
    fn first(&self, state: &mut State<T>) -> Option<T> {
        let item = state.items.pop_front()?;
        state.weight -= (self.shared.weigh)(&item);
        Some(item)
    }

    /// Puts an item in, waiting for room.
    ///
    /// # Errors
    /// When the queue is closed; the item is dropped.
    pub fn push(&self, item: T, clock: &StageClock) -> Result<(), Closed> {
        self.push_behind(item, usize::MAX, clock)
    }

    /// As [`Queue::push`], but waits until fewer than so many items are before it: others that are put in
    /// need not wait behind many of this kind.
    ///
    /// # Errors
    /// As [`Queue::push`].
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
        // Nobody is woken who does not wait: each time would be a system call.
        let is_awaited = state.takers > 0;
        drop(state);
        if is_awaited {
            self.shared.filled.notify_one();
        }
        Ok(())
    }

    /// Puts an item in before all others, without waiting for room.
    ///
    /// # Errors
    /// As [`Queue::push`].
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

    /// Takes the next item; none when the queue is closed and empty.
    pub fn pop(&self, clock: &StageClock) -> Option<T> {
        match self.take(None, clock) {
            Taken::Item(item) => Some(item),
            Taken::End | Taken::TimedOut => None,
        }
    }

    /// Takes the next item if there is one now.
    pub fn try_pop(&self) -> Option<T> {
        let mut state = self.lock();
        let item = self.first(&mut state);
        self.emptied(state);
        item
    }

    /// Wakes who waits for room when half of it is free: woken for each place, putters and takers would take turns
    /// item by item. Whoever waits may wait for more of it than the next one does.
    fn emptied(&self, state: MutexGuard<'_, State<T>>) {
        let is_awaited = state.putters > 0 && state.weight <= self.shared.most_weight / 2;
        drop(state);
        if is_awaited {
            self.shared.emptied.notify_all();
        }
    }

    /// As [`Queue::pop`], but waits no longer than this.
    pub fn pop_within(&self, time: Duration, clock: &StageClock) -> Taken<T> {
        self.take(Some(time), clock)
    }

    /// Whoever waits for an item with a limit of time, or is the next to do so, waits no longer.
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

    /// Takes no more items; those in it can still be had.
    pub fn close(&self) {
        self.lock().closed = true;
        self.shared.filled.notify_all();
        self.shared.emptied.notify_all();
    }

    /// Closes it and throws away what is in it.
    pub fn break_off(&self) {
        self.break_off_but(|_| false);
    }

    /// Closes it and throws away what is in it, but for what is worth to be heard of by whoever takes the rest.
    pub(crate) fn break_off_but(&self, keep: impl Fn(&T) -> bool) {
        self.end(None, keep);
    }

    /// As [`Queue::break_off_but`], and leaves this as the last item; not if it is closed already.
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

    /// A panic elsewhere leaves the state whole: every change is one step.
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
