//! Whether the run is to end early, where it can be taken up again.

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

/// Returns when the run is to end: when this becomes true.
pub async fn stopped(stop: &mut tokio::sync::watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // Nobody is left who could say so.
        std::future::pending::<()>().await;
    }
}

/// Whether a signal has come: the run ends where it can be taken up again.
#[derive(Clone)]
pub struct Stop {
    seen: tokio::sync::watch::Receiver<bool>,
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Listens from now on. A second signal ends the program at once.
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

    /// Listens from now on, for a command of plain threads: a thread of its own calls `then` at the first signal.
    ///
    /// # Errors
    /// When the handlers cannot be set, or the system gives no thread.
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

    /// The same for plain threads: set when a signal has come.
    pub fn flag(&self) -> &AtomicBool {
        &self.flag
    }

    /// What comes of this, unless a signal comes first.
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

    /// Becomes true when a signal has come.
    pub fn watch(&self) -> tokio::sync::watch::Receiver<bool> {
        self.seen.clone()
    }

    /// Returns when a signal has come.
    pub async fn requested(&self) {
        stopped(&mut self.seen.clone()).await;
    }

    /// An error if a signal has come.
    ///
    /// # Errors
    /// A [`CommandError`] of kind interrupted if a signal has arrived.
    pub fn check(&self) -> Result<(), CommandError> {
        if *self.seen.borrow() { Err(interruption()) } else { Ok(()) }
    }
}
