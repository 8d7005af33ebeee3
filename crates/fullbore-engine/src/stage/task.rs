//! The counters of a role that runs as async tasks.
//!
//! A task has no busy clock of its own: the runtime's threads compute for many. So a task records what it can measure
//! itself: the number and the time of its polls, the time from wake to poll, and its waits. It waits for a socket, for
//! a receiver of its output, for a permit, or for our own rate limit.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use super::{StageClock, StageReading};

/// Time summed over many waits that may be under way at once.
///
/// The sum of `end - begin` over finished waits plus `now - begin` over open
/// ones is `open * now - sum of begins + sum of ends`, so two numbers are
/// enough however many tasks wait. Under a lock, because a reader that saw one
/// of the two change without the other would be wrong by the age of the run.
#[derive(Debug, Default)]
pub(super) struct Span {
    sums: Mutex<(i64, i64)>,
    begun: AtomicU64,
}

impl Span {
    fn begin(&self, now_ns: u64) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.0 += 1;
        sums.1 = sums.1.wrapping_sub_unsigned(now_ns);
    }

    fn end(&self, now_ns: u64) {
        let mut sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        sums.0 -= 1;
        sums.1 = sums.1.wrapping_add_unsigned(now_ns);
    }

    fn total_ns(&self, now_ns: u64) -> u64 {
        let sums = self.sums.lock().unwrap_or_else(PoisonError::into_inner);
        let now_ns = i64::try_from(now_ns).unwrap_or(i64::MAX);
        u64::try_from(sums.1.wrapping_add(sums.0.wrapping_mul(now_ns))).unwrap_or(0)
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
pub(super) struct TaskCounters {
    alive: Span,
    starved: Span,
    blocked: Span,
    socket_empty: Span,
    throttled: Span,
    reads: AtomicU64,
    polls: AtomicU64,
    poll_ns: AtomicU64,
    ready_ns: AtomicU64,
}

impl TaskCounters {
    pub(super) fn add_to(&self, reading: &mut StageReading, now_ns: u64) {
        reading.task_ns += self.alive.total_ns(now_ns);
        reading.starved_ns += self.starved.total_ns(now_ns);
        reading.blocked_ns += self.blocked.total_ns(now_ns);
        reading.reads += self.reads.load(Ordering::Relaxed);
        reading.socket_empty += self.socket_empty.begun();
        reading.socket_empty_ns += self.socket_empty.total_ns(now_ns);
        reading.throttled_ns += self.throttled.total_ns(now_ns);
        reading.polls += self.polls.load(Ordering::Relaxed);
        reading.poll_ns += self.poll_ns.load(Ordering::Relaxed);
        reading.ready_ns += self.ready_ns.load(Ordering::Relaxed);
    }
}

/// Ends a span when the wait is over or its future is dropped.
struct Open<'a> {
    clock: &'a StageClock,
    span: &'a Span,
}

impl<'a> Open<'a> {
    fn new(clock: &'a StageClock, span: &'a Span) -> Open<'a> {
        span.begin(clock.now_ns());
        Open { clock, span }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.span.end(self.clock.now_ns());
    }
}

impl StageClock {
    /// Times a wait for bytes from a socket. Counts a read, and "found empty" if the socket had no data at first.
    pub async fn socket_read<F: Future>(&self, read: F) -> F::Output {
        self.task.reads.fetch_add(u64::from(self.on), Ordering::Relaxed);
        self.span(&self.task.socket_empty, read).await
    }

    /// Times a wait for input from an earlier stage.
    pub async fn starved<F: Future>(&self, wait: F) -> F::Output {
        self.span(&self.task.starved, wait).await
    }

    /// Times a wait for a later stage. Do not use it for a wait for a permit beside reading. The window itself times
    /// how long it is exhausted, and a full window is normal while the network is the limit.
    pub async fn blocked<F: Future>(&self, wait: F) -> F::Output {
        self.span(&self.task.blocked, wait).await
    }

    /// Times a wait for the user's rate limit.
    pub async fn throttled<F: Future>(&self, wait: F) -> F::Output {
        self.span(&self.task.throttled, wait).await
    }

    /// Time counts from the first poll that did not complete, so a wait that ends at once reads no clock.
    async fn span<F: Future>(&self, span: &Span, wait: F) -> F::Output {
        if !self.on {
            return wait.await;
        }
        let mut wait = pin!(wait);
        let mut open = None;
        poll_fn(|context| {
            let poll = wait.as_mut().poll(context);
            if poll.is_pending() && open.is_none() {
                open = Some(Open::new(self, span));
            }
            poll
        })
        .await
    }

    /// Runs synchronous work inside a task (such as processing TLS records) and counts its time as poll time of this
    /// role.
    pub fn work<R>(&self, work: impl FnOnce() -> R) -> R {
        if !self.on {
            return work();
        }
        let began_ns = self.now_ns();
        let result = work();
        self.count_poll(self.now_ns().saturating_sub(began_ns));
        result
    }

    fn count_poll(&self, took_ns: u64) {
        self.task.polls.fetch_add(1, Ordering::Relaxed);
        self.task.poll_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Runs a whole task (one connection) under this clock: its lifetime, its
    /// polls, and the time from wake to poll, which is a wait for the CPU.
    pub async fn watch<F: Future>(&self, task: F) -> F::Output {
        if !self.on {
            return task.await;
        }
        let _alive = Open::new(self, &self.task.alive);
        let stamp = Arc::new(Stamp { origin: self.origin, woken_ns: AtomicU64::new(0), inner: Mutex::new(None) });
        let waker = Waker::from(stamp.clone());
        let mut task = pin!(task);
        poll_fn(|context| {
            stamp.forward_to(context.waker());
            let woken_ns = stamp.woken_ns.swap(0, Ordering::AcqRel);
            let began_ns = self.now_ns();
            if woken_ns > 0 {
                let ready_ns = began_ns.saturating_sub(woken_ns);
                self.task.ready_ns.fetch_add(ready_ns, Ordering::Relaxed);
            }
            let poll: Poll<F::Output> = task.as_mut().poll(&mut Context::from_waker(&waker));
            self.count_poll(self.now_ns().saturating_sub(began_ns));
            poll
        })
        .await
    }
}

/// A waker that notes when it was first called since the last poll.
struct Stamp {
    origin: std::time::Instant,
    woken_ns: AtomicU64,
    inner: Mutex<Option<Waker>>,
}

impl Stamp {
    fn forward_to(&self, waker: &Waker) {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.as_mut() {
            Some(inner) => inner.clone_from(waker),
            None => *inner = Some(waker.clone()),
        }
    }
}

impl Wake for Stamp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let now_ns = u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let _ = self.woken_ns.compare_exchange(0, now_ns.max(1), Ordering::AcqRel, Ordering::Relaxed);
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(inner) = inner {
            inner.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::stage::{Kind, Ledger};

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a small runtime")
    }

    #[test]
    fn a_read_that_is_ready_at_once_is_not_found_empty() {
        let clock = Ledger::new().stage("network", Kind::Task);
        runtime().block_on(async {
            assert_eq!(clock.socket_read(async { 7 }).await, 7);
            clock.socket_read(tokio::time::sleep(Duration::from_millis(20))).await;
        });
        let reading = clock.reading();
        assert_eq!((reading.reads, reading.socket_empty), (2, 1));
        assert!(reading.socket_empty_ns >= 19_000_000, "{reading:?}");
    }

    #[test]
    fn waits_of_several_tasks_add_and_an_abandoned_wait_ends() {
        let clock = Ledger::new().stage("network", Kind::Task);
        runtime().block_on(async {
            let wait = || clock.blocked(tokio::time::sleep(Duration::from_millis(20)));
            tokio::join!(wait(), wait(), wait());
            let endless = clock.blocked(std::future::pending::<()>());
            let _ = tokio::time::timeout(Duration::from_millis(20), endless).await;
        });
        let first = clock.reading();
        assert!((78_000_000..3_000_000_000).contains(&first.blocked_ns), "{first:?}");
        assert_eq!(clock.reading().blocked_ns, first.blocked_ns, "nothing is waiting any more");
    }

    #[test]
    fn time_from_wake_to_poll_counts_as_ready() {
        let clock = Ledger::new().stage("network", Kind::Task);
        runtime().block_on(async {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            // It wakes the other, and holds the only thread.
            let hog = async {
                tokio::time::sleep(Duration::from_millis(5)).await;
                let _ = sender.send(());
                std::thread::sleep(Duration::from_millis(40));
            };
            let late = clock.watch(async {
                let _ = receiver.await;
            });
            tokio::join!(hog, late);
        });
        let reading = clock.reading();
        assert!(reading.ready_ns >= 40_000_000, "{reading:?}");
        assert!(reading.polls >= 2 && reading.task_ns >= 40_000_000, "{reading:?}");
    }
}
