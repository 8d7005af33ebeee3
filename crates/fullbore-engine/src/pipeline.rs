//! Timed channels between stages, and a crew of threads that ends together.
//!
//! A channel tries first and reads the clock only when it has to wait: a
//! waiting sender is blocked, a waiting receiver is starved. Each end may be
//! used from async code or from a plain thread. When the senders are gone the
//! receiver gets what is left and then the end; when the receiver is gone,
//! senders get their item back. So an error in any stage ends the others in
//! both directions, without a framework.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc::error::{TryRecvError, TrySendError};
use tokio::sync::{Notify, mpsc};

use crate::stage::StageClock;
use crate::window::Window;

/// A bounded channel from one stage to the next. Waits of senders count as
/// blocked on `from`, waits of the receiver as starved on `to`. A capacity of
/// zero is taken as one.
pub fn channel<T>(capacity: usize, from: &Arc<StageClock>, to: &Arc<StageClock>) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (Sender { inner: sender, clock: from.clone() }, Receiver { inner: receiver, clock: to.clone() })
}

/// The next stage is gone; the item comes back.
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
    /// Sends from async code.
    pub async fn send(&self, item: T) -> Result<(), Closed<T>> {
        match self.inner.try_send(item) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(item)) => Err(Closed(item)),
            Err(TrySendError::Full(item)) => {
                self.clock.blocked(self.inner.send(item)).await.map_err(|error| Closed(error.0))
            }
        }
    }

    /// Sends from a plain thread. Panics within an async task, as tokio's own does.
    pub fn send_blocking(&self, item: T) -> Result<(), Closed<T>> {
        match self.inner.try_send(item) {
            Ok(()) => Ok(()),
            Err(TrySendError::Closed(item)) => Err(Closed(item)),
            Err(TrySendError::Full(item)) => {
                self.clock.blocked_in(|| self.inner.blocking_send(item)).map_err(|error| Closed(error.0))
            }
        }
    }

    /// Waits for room for one item from async code: what is sent into it does not wait, so nothing is
    /// lost with a sender that ends while it waits.
    pub async fn reserve(&self) -> Result<Room<'_, T>, Closed<()>> {
        match self.inner.try_reserve() {
            Ok(room) => Ok(room),
            Err(TrySendError::Closed(())) => Err(Closed(())),
            Err(TrySendError::Full(())) => self.clock.blocked(self.inner.reserve()).await.map_err(|_| Closed(())),
        }
    }

    /// Sends if there is room now; gives the item back otherwise.
    pub fn try_send(&self, item: T) -> Result<(), Closed<T>> {
        self.inner.try_send(item).map_err(|error| Closed(error.into_inner()))
    }

    /// Whether the receiver is gone.
    pub fn is_closed(&self) -> bool {
        self.inner.is_closed()
    }
}

/// Room for one item in a channel.
pub type Room<'a, T> = mpsc::Permit<'a, T>;

/// The receiving end of a timed channel.
#[derive(Debug)]
pub struct Receiver<T> {
    inner: mpsc::Receiver<T>,
    clock: Arc<StageClock>,
}

impl<T> Receiver<T> {
    /// Receives in async code; none when all senders are gone and all is received.
    pub async fn recv(&mut self) -> Option<T> {
        match self.inner.try_recv() {
            Ok(item) => Some(item),
            Err(TryRecvError::Disconnected) => None,
            Err(TryRecvError::Empty) => self.clock.starved(self.inner.recv()).await,
        }
    }

    /// Receives on a plain thread. Panics within an async task, as tokio's own does.
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

    /// Whether nothing waits now.
    pub fn is_empty(&self) -> bool {
        self.inner.is_empty()
    }

    /// Takes nothing more; what was sent before can still be received.
    pub fn close(&mut self) {
        self.inner.close();
    }

    /// An item if there is one now.
    pub fn try_recv(&mut self) -> Option<T> {
        self.inner.try_recv().ok()
    }
}

/// Tells everybody who holds a clone that the run is over before its end.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    shared: Arc<CancelState>,
}

#[derive(Debug, Default)]
struct CancelState {
    cancelled: AtomicBool,
    notify: Notify,
}

impl Cancel {
    /// A run that goes on.
    pub fn new() -> Cancel {
        Cancel::default()
    }

    /// Ends the run; may be called more than once.
    pub fn cancel(&self) {
        self.shared.cancelled.store(true, Ordering::SeqCst);
        self.shared.notify.notify_waiters();
    }

    /// Whether the run was ended. Long work asks this now and then.
    pub fn is_cancelled(&self) -> bool {
        self.shared.cancelled.load(Ordering::SeqCst)
    }

    /// Returns when the run is ended.
    pub async fn cancelled(&self) {
        let notified = self.shared.notify.notified();
        let mut notified = std::pin::pin!(notified);
        // Registered before the flag is read, so a cancel in between is not missed.
        notified.as_mut().enable();
        if !self.is_cancelled() {
            notified.await;
        }
    }
}

/// Why a crew did not reach its end.
#[derive(Debug, thiserror::Error)]
pub enum CrewError<E> {
    /// A thread returned an error; the first one counts.
    #[error(transparent)]
    Failed(E),
    /// A thread panicked: an error of this program.
    #[error("thread `{thread}` panicked: {message}")]
    Panicked {
        /// Its name.
        thread: String,
        /// What the panic said.
        message: String,
    },
    /// The system would not start a thread.
    #[error("cannot start thread `{thread}`: {error}")]
    Spawn {
        /// Its name.
        thread: String,
        /// The system's error.
        error: std::io::Error,
    },
}

/// Threads that work together: an error or panic in one cancels all, and none
/// outlives the crew.
#[derive(Debug)]
pub struct Crew<E> {
    cancel: Cancel,
    threads: Vec<(String, JoinHandle<Result<(), E>>)>,
}

/// Cancels when a thread ends by a panic or an error.
struct CancelOnFailure {
    cancel: Cancel,
    armed: bool,
}

impl Drop for CancelOnFailure {
    fn drop(&mut self) {
        if self.armed {
            self.cancel.cancel();
        }
    }
}

impl<E: Send + 'static> Crew<E> {
    /// An empty crew that shares `cancel` with the rest of the run.
    pub fn new(cancel: Cancel) -> Crew<E> {
        Crew { cancel, threads: Vec::new() }
    }

    /// What ends this crew.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Starts a thread that plays the role of `clock`. The kernel shows the
    /// first 15 bytes of its name.
    pub fn spawn(
        &mut self,
        clock: &Arc<StageClock>,
        work: impl FnOnce() -> Result<(), E> + Send + 'static,
    ) -> Result<(), CrewError<E>> {
        let name = clock.name().to_owned();
        let clock = clock.clone();
        let mut guard = CancelOnFailure { cancel: self.cancel.clone(), armed: true };
        let thread = std::thread::Builder::new().name(name.clone()).spawn(move || {
            clock.adopt_thread();
            let result = work();
            guard.armed = result.is_err();
            drop(guard);
            result
        });
        match thread {
            Ok(thread) => self.threads.push((name, thread)),
            Err(error) => {
                return Err(CrewError::Spawn { thread: name, error });
            }
        }
        Ok(())
    }

    /// Waits for all threads. The first error in the order of starting counts,
    /// a panic before any error.
    pub fn join(mut self) -> Result<(), CrewError<E>> {
        self.join_all()
    }

    /// Waits for all threads and then until every permit of `window` is home;
    /// after an error the permits are not waited for.
    pub fn join_and_flush(mut self, window: &Window) -> Result<(), CrewError<E>> {
        self.join_all()?;
        window.flush_blocking();
        Ok(())
    }

    fn join_all(&mut self) -> Result<(), CrewError<E>> {
        let mut failure = None;
        let mut panic = None;
        for (thread, handle) in self.threads.drain(..) {
            match handle.join() {
                Ok(Ok(())) => (),
                Ok(Err(error)) => {
                    failure.get_or_insert(CrewError::Failed(error));
                }
                Err(payload) => {
                    let message = payload
                        .downcast_ref::<&str>()
                        .map(|message| (*message).to_owned())
                        .or_else(|| payload.downcast_ref::<String>().cloned())
                        .unwrap_or_else(|| "no message".to_owned());
                    panic.get_or_insert(CrewError::Panicked { thread, message });
                }
            }
        }
        panic.or(failure).map_or(Ok(()), Err)
    }
}

impl<E> Drop for Crew<E> {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.cancel.cancel();
        for (_, thread) in self.threads.drain(..) {
            let _ = thread.join();
        }
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

    #[test]
    fn an_error_in_the_middle_ends_the_stages_on_both_sides() {
        let ledger = Ledger::new();
        let stage = |name| ledger.stage(name, Kind::Thread);
        let (read, hash, write) = (stage("read"), stage("hash"), stage("write"));
        let (to_hash, mut at_hash) = channel::<u32>(2, &read, &hash);
        let (to_write, mut at_write) = channel::<u32>(2, &hash, &write);
        let mut crew: Crew<String> = Crew::new(Cancel::new());
        let cancel = crew.cancel().clone();
        crew.spawn(&read, move || {
            (0..).take_while(|number| to_hash.send_blocking(*number).is_ok()).for_each(drop);
            Ok(())
        })
        .expect("a thread");
        crew.spawn(&hash, move || {
            while let Some(number) = at_hash.recv_blocking() {
                if number == 500 {
                    return Err(format!("item {number} is broken"));
                }
                to_write.send_blocking(number).map_err(|_| "no writer".to_owned())?;
            }
            Ok(())
        })
        .expect("a thread");
        crew.spawn(&write, move || {
            while at_write.recv_blocking().is_some() {}
            Ok(())
        })
        .expect("a thread");
        let error = crew.join().expect_err("one stage fails");
        assert_eq!(error.to_string(), "item 500 is broken");
        assert!(cancel.is_cancelled());
        runtime().block_on(cancel.cancelled());
    }

    #[test]
    fn a_panic_is_an_error_that_names_the_thread() {
        let clock = Ledger::new().stage("hash", Kind::Thread);
        let mut crew: Crew<String> = Crew::new(Cancel::new());
        crew.spawn(&clock, || panic!("number {}", 7)).expect("a thread");
        let error = crew.join().expect_err("it panics");
        assert_eq!(error.to_string(), "thread `hash` panicked: number 7");
    }

    #[test]
    fn the_end_of_a_crew_waits_for_the_last_permit() {
        let clock = Ledger::new().stage("hash", Kind::Thread);
        let window = Window::new(10, 1);
        let permit = window.acquire_blocking(10);
        let (give, take) = std::sync::mpsc::channel();
        let returner = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            drop::<crate::window::Permit>(take.recv().expect("sent"));
        });
        let mut crew: Crew<String> = Crew::new(Cancel::new());
        crew.spawn(&clock, move || give.send(permit).map_err(|error| error.to_string())).expect("a thread");
        crew.join_and_flush(&window).expect("all went well");
        assert_eq!(window.reading().held_bytes, 0);
        returner.join().expect("no panic");
    }

    #[test]
    fn cancel_wakes_who_waits_already() {
        let cancel = Cancel::new();
        let other = cancel.clone();
        let canceller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            other.cancel();
        });
        runtime().block_on(cancel.cancelled());
        canceller.join().expect("no panic");
    }
}
