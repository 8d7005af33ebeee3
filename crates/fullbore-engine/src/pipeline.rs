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
pub fn channel<T>(
    capacity: usize,
    from: &Arc<StageClock>,
    to: &Arc<StageClock>,
) -> (Sender<T>, Receiver<T>) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    (
        Sender { inner: sender, clock: from.clone() },
        Receiver { inner: receiver, clock: to.clone() },
    )
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
            Err(TrySendError::Full(item)) => self
                .clock
                .blocked_in(|| self.inner.blocking_send(item))
                .map_err(|error| Closed(error.0)),
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
            Err(error) => return Err(CrewError::Spawn { thread: name, error }),
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
