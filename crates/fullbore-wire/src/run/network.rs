//! Runtimes for the connections of a run.

use std::time::Duration;

use fullbore_engine::run::{CommandError, ErrorKind};
use fullbore_engine::stage::{Kind, Ledger};

/// Time that tasks have to end after the run.
const NETWORK_END: Duration = Duration::from_secs(1);

/// Number of files put at once: enough to fill a path of 100 ms with files of 200 bytes, at the rate of ten servers
/// with one core each.
pub const FILES_AT_ONCE: usize = 128;

/// Number of threads for blocking work. Each file in flight has one, which may wait for servers; others look up names.
const BLOCKING_THREADS: usize = FILES_AT_ONCE + 64;

/// Creates the runtime for fetching: one worker, accounted as the stage "network".
///
/// # Errors
/// A [`CommandError`] of kind internal if the system cannot start the thread.
pub fn network_runtime(ledger: &Ledger) -> Result<tokio::runtime::Runtime, CommandError> {
    let clock = ledger.stage("network", Kind::Task);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("network")
        .on_thread_start(move || clock.adopt_thread())
        .enable_all()
        .build()
        .map_err(|error| CommandError::new(ErrorKind::Internal, error))
}

/// Creates the runtime for sending to many servers, with a blocking thread per file in flight. Its threads are
/// accounted as the stage `send`.
///
/// # Errors
/// A [`CommandError`] of kind internal if the system cannot start the threads.
pub fn sending_runtime(ledger: &Ledger) -> Result<tokio::runtime::Runtime, CommandError> {
    let clock = ledger.stage("send", Kind::Task);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(1, usize::from).min(4))
        .max_blocking_threads(BLOCKING_THREADS)
        .thread_name("network")
        .on_thread_start(move || clock.adopt_thread())
        .enable_all()
        .build()
        .map_err(|error| CommandError::new(ErrorKind::Internal, error))
}

/// A runtime that does not wait at its end: the lookup of a name may take any time.
pub struct Network(Option<tokio::runtime::Runtime>);

impl Network {
    /// Starts the runtime of [`network_runtime`] for a run.
    ///
    /// # Errors
    /// A [`CommandError`] of kind internal if the system cannot start the thread.
    pub fn start(ledger: &Ledger) -> Result<Network, CommandError> {
        network_runtime(ledger).map(|runtime| Network(Some(runtime)))
    }
}

impl std::ops::Deref for Network {
    type Target = tokio::runtime::Runtime;

    fn deref(&self) -> &tokio::runtime::Runtime {
        self.0.as_ref().expect("it is taken only when dropped")
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_timeout(NETWORK_END);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[test]
    fn the_end_of_the_network_does_not_wait_for_a_name() {
        let network = Network::start(&Ledger::off()).unwrap();
        let (begun, has_begun) = std::sync::mpsc::channel();
        let hour = Duration::from_secs(3600);
        network.spawn_blocking(move || {
            begun.send(()).unwrap();
            std::thread::sleep(hour);
        });
        has_begun.recv().unwrap();
        drop(network);
    }
}
