//! Ends a run early at a signal, in a state from which the next run can resume.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::error::{CommandError, ErrorKind};
use super::signals::Signals;

/// The error of a run that a signal ended.
pub fn interruption() -> CommandError {
    CommandError::new(ErrorKind::Interrupted, "interrupted; nothing new was published")
        .hint("run again: what was fetched is kept")
}

/// Waits until `stop` becomes true, which means that the run must end.
pub async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The sender is gone, so `stop` can never become true.
        std::future::pending::<()>().await;
    }
}

/// Tells a run that a signal has arrived. Clones share it.
#[derive(Clone)]
pub struct Stop {
    seen: tokio::sync::watch::Receiver<bool>,
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Listens for signals from now on. A second signal ends the program at once.
    pub fn listen(runtime: &tokio::runtime::Runtime) -> Stop {
        let (sender, seen) = tokio::sync::watch::channel(false);
        let flag = Arc::new(AtomicBool::new(false));
        let raised = flag.clone();
        if let Ok(signals) = Signals::listen(runtime) {
            runtime.spawn(signals.stop(move || {
                raised.store(true, Ordering::Relaxed);
                let _ = sender.send(true);
            }));
        }
        Stop { seen, flag }
    }

    /// As [`Stop::listen`], for a command without a runtime: a thread of its own calls `then` at the first signal.
    ///
    /// # Errors
    /// The system's error if the runtime, a signal handler or the thread cannot be set up.
    pub fn in_thread(then: impl FnOnce() + Send + 'static) -> io::Result<Stop> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
        let signals = Signals::listen(&runtime)?;
        let (sender, seen) = tokio::sync::watch::channel(false);
        let flag = Arc::new(AtomicBool::new(false));
        let raised = flag.clone();
        let stop = move || {
            raised.store(true, Ordering::Relaxed);
            let _ = sender.send(true);
            then();
        };
        let listen = move || runtime.block_on(signals.stop(stop));
        std::thread::Builder::new().name("signals".to_owned()).spawn(listen)?;
        Ok(Stop { seen, flag })
    }

    /// A flag that is set when a signal has arrived, for plain threads.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// Runs `future` to its end, unless a signal arrives first.
    ///
    /// # Errors
    /// A [`CommandError`] of kind interrupted if a signal arrives before `future` ends.
    pub async fn or<F: Future>(&self, future: F) -> Result<F::Output, CommandError> {
        tokio::select! {
            biased;
            () = self.requested() => Err(interruption()),
            output = future => Ok(output),
        }
    }

    /// A receiver that becomes true when a signal has arrived.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<bool> {
        self.seen.clone()
    }

    /// Waits for a signal.
    pub async fn requested(&self) {
        stopped(&mut self.seen.clone()).await;
    }

    /// Checks whether a signal has arrived.
    ///
    /// # Errors
    /// A [`CommandError`] of kind interrupted if a signal has arrived.
    pub fn check(&self) -> Result<(), CommandError> {
        if *self.seen.borrow() { Err(interruption()) } else { Ok(()) }
    }
}
