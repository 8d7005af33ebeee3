//! Bounded channels between stages, with timed waits.
//!
//! A channel reads the clock only when it has to wait: a waiting sender counts as blocked, a waiting receiver as
//! starved. Each end may be used from async code or from a plain thread. When all senders are gone, the receiver gets
//! the remaining items and then the end. When the receiver is gone, senders get their item back. So an error in any
//! stage ends the others in both directions, without a framework.

use std::sync::Arc;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{TryRecvError, TrySendError};

use crate::stage::StageClock;

/// Creates a bounded channel from one stage to the next. Waits of senders count as blocked on `from`, waits of the
/// receiver as starved on `to`. A capacity of zero is taken as one.
pub fn channel<T>(capacity: usize, from: &Arc<StageClock>, to: &Arc<StageClock>) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (Sender { inner: sender, clock: from.clone() }, Receiver { inner: receiver, clock: to.clone() })
}

/// The receiver is gone, or the channel is full; the item comes back.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the next stage of the pipeline has ended")]
pub struct Closed<T>(pub T);

/// The sending end of a timed channel.
#[derive(Debug)]
pub struct Sender<T> {
    inner: mpsc::Sender<T>,
    clock: Arc<StageClock>,
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        Sender { inner: self.inner.clone(), clock: self.clock.clone() }
    }
}

impl<T> Sender<T> {
    /// Sends an item from async code; waits while the channel is full.
    ///
    /// # Errors
    /// [`Closed`] with the item if the receiver is gone.
    pub async fn send(&self, item: T) -> Result<(), Closed<T>> {
        match self.inner.try_send(item) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(item)) => Err(Closed(item)),
            Err(TrySendError::Full(item)) => {
                self.clock.blocked(self.inner.send(item)).await.map_err(|error| Closed(error.0))
            }
        }
    }

    /// Sends from a plain thread. Panics within an async task, like tokio's `blocking_send`.
    ///
    /// # Errors
    /// [`Closed`] with the item if the receiver is gone.
    pub fn send_blocking(&self, item: T) -> Result<(), Closed<T>> {
        match self.inner.try_send(item) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(item)) => Err(Closed(item)),
            Err(TrySendError::Full(item)) => {
                self.clock.blocked_in(|| self.inner.blocking_send(item)).map_err(|error| Closed(error.0))
            }
        }
    }

    /// Waits in async code for a free slot. Sending into the slot does not wait, so a sender that is dropped while it
    /// waits loses no item.
    ///
    /// # Errors
    /// [`Closed`] without an item if the receiver is gone.
    pub async fn reserve(&self) -> Result<Slot<'_, T>, Closed<()>> {
        match self.inner.try_reserve() {
            Ok(slot) => Ok(slot),
            Err(TrySendError::Closed(())) => Err(Closed(())),
            Err(TrySendError::Full(())) => self.clock.blocked(self.inner.reserve()).await.map_err(|_| Closed(())),
        }
    }

    /// Sends an item if there is room; never waits.
    ///
    /// # Errors
    /// [`Closed`] with the item if the channel is full or the receiver is gone; [`Sender::is_closed`] distinguishes the
    /// two.
    pub fn try_send(&self, item: T) -> Result<(), Closed<T>> {
        self.inner.try_send(item).map_err(|error| Closed(error.into_inner()))
    }

    /// Whether the receiver is gone, so that sending fails.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// A reserved slot for one item in a channel.
pub type Slot<'a, T> = mpsc::Permit<'a, T>;

/// The receiving end of a timed channel.
#[derive(Debug)]
pub struct Receiver<T> {
    inner: mpsc::Receiver<T>,
    clock: Arc<StageClock>,
}

impl<T> Receiver<T> {
    /// Receives in async code; `None` when all senders are gone and all items are received.
    pub async fn recv(&mut self) -> Option<T> {
        match self.inner.try_recv() {
            Ok(item) => Some(item),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => self.clock.starved(self.inner.recv()).await,
        }
    }

    /// Receives on a plain thread; `None` as in [`Receiver::recv`]. Panics within an async task, like tokio's
    /// `blocking_recv`.
    pub fn recv_blocking(&mut self) -> Option<T> {
        match self.inner.try_recv() {
            Ok(item) => Some(item),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => {
                let inner = &mut self.inner;
                self.clock.starved_in(|| inner.blocking_recv())
            }
        }
    }

    /// Whether the channel holds no item at the moment.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Closes the channel for senders; items sent before can still be received.
    pub fn close(&mut self) {
        self.inner.close();
    }

    /// Returns an item if one is there now; never waits.
    pub fn try_recv(&mut self) -> Option<T> {
        self.inner.try_recv().ok()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::stage::{Kind, Ledger};

    fn clocks() -> (Arc<StageClock>, Arc<StageClock>) {
        let ledger = Ledger::new();
        (ledger.stage("network", Kind::Task), ledger.stage("hash", Kind::Thread))
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().expect("a small runtime")
    }

    /// Waits until it is so; no test may hang.
    fn until(so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !so() {
            assert!(begun.elapsed() < Duration::from_secs(60), "it does not come to it");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn async_to_thread_keeps_order_and_ends_when_the_senders_are_gone() {
        let (network, hash) = clocks();
        let (sender, mut receiver) = channel(2, &network, &hash);
        let receiving = thread::spawn(move || std::iter::from_fn(|| receiver.recv_blocking()).collect::<Vec<u32>>());
        runtime().block_on(async {
            for number in 0..1000 {
                sender.send(number).await.expect("the receiver lives");
            }
        });
        drop(sender);
        assert_eq!(receiving.join().expect("no panic"), (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn a_slow_receiver_blocks_and_a_slow_sender_starves() {
        const SLOW_NS: u64 = 20_000_000;
        let (network, hash) = clocks();
        thread::scope(|scope| {
            let (sender, mut receiver) = channel(1, &network, &hash);
            scope.spawn(|| {
                let sender = sender;
                until(|| hash.reading().starved_ns >= SLOW_NS);
                runtime().block_on(async {
                    for number in 0..3 {
                        sender.send(number).await.expect("the receiver lives");
                    }
                });
            });
            assert_eq!(receiver.recv_blocking(), Some(0));
            until(|| network.reading().blocked_ns >= SLOW_NS);
            assert_eq!(receiver.recv_blocking(), Some(1));
            assert_eq!(receiver.recv_blocking(), Some(2));
            assert_eq!(receiver.recv_blocking(), None);
        });
    }

    #[test]
    fn what_succeeds_at_once_counts_no_wait() {
        let (network, hash) = clocks();
        let (sender, mut receiver) = channel(1, &network, &hash);
        for number in 0..100 {
            sender.send_blocking(number).expect("room");
            assert_eq!(receiver.recv_blocking(), Some(number));
        }
        assert_eq!((hash.reading().starved_ns, network.reading().blocked_ns), (0, 0));
    }

    #[test]
    fn an_item_for_a_stage_that_is_gone_comes_back() {
        let (network, hash) = clocks();
        let (sender, receiver) = channel(1, &network, &hash);
        drop(receiver);
        assert_eq!(sender.send_blocking(7), Err(Closed(7)));
        assert_eq!(runtime().block_on(sender.send(8)), Err(Closed(8)));
    }
}
