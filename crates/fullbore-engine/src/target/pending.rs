//! A commit whose result comes later.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use super::TargetError;

/// Result of [`Target::commit`](super::Target::commit).
#[derive(Debug)]
pub enum Committed {
    /// The content is visible.
    Now,
    /// The target will report the result, on a thread of its own.
    Later(PendingResult),
}

/// The future result of a commit.
#[derive(Debug)]
pub struct PendingResult(Arc<Mutex<State>>);

/// The obligation to report a result. Dropping it reports that the target gave up.
#[derive(Debug)]
pub struct Promise {
    state: Arc<Mutex<State>>,
    path: String,
}

type Listener = Box<dyn FnOnce(Result<(), TargetError>) + Send>;

#[derive(Default)]
enum State {
    #[default]
    Waiting,
    Told(Result<(), TargetError>),
    Heard(Listener),
    Over,
}

impl Promise {
    /// Creates a promise for the content of `path`, and the matching result.
    pub fn new(path: &str) -> (Promise, PendingResult) {
        let state = Arc::<Mutex<State>>::default();
        (Promise { state: state.clone(), path: path.to_owned() }, PendingResult(state))
    }

    /// Reports the result, and runs the listener on this thread.
    pub fn tell(self, result: Result<(), TargetError>) {
        tell(&self.state, result);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        let source = io::Error::other("it was given up");
        tell(&self.state, Err(TargetError::Io { operation: "store", path: std::mem::take(&mut self.path), source }));
    }
}

impl PendingResult {
    /// Calls `listener` with the result: now if it is known, otherwise on the thread that reports it.
    pub fn then(self, listener: impl FnOnce(Result<(), TargetError>) + Send + 'static) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Over) {
            State::Told(result) => {
                drop(state);
                listener(result);
            }
            _ => *state = State::Heard(Box::new(listener)),
        }
    }
}

/// Only the first result counts.
fn tell(state: &Mutex<State>, result: Result<(), TargetError>) {
    let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
    match std::mem::replace(&mut *state, State::Over) {
        State::Waiting => *state = State::Told(result),
        State::Heard(listener) => {
            drop(state);
            listener(result);
        }
        told => *state = told,
    }
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            State::Waiting => "Waiting",
            State::Told(_) => "Told",
            State::Heard(_) => "Heard",
            State::Over => "Over",
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_result_is_heard_once_whoever_comes_first() {
        for listens_first in [false, true] {
            let (promise, pending) = Promise::new("a");
            let (sender, receiver) = channel();
            let listen = move |result: Result<(), TargetError>| sender.send(result.is_ok()).unwrap();
            if listens_first {
                pending.then(listen);
                promise.tell(Ok(()));
            } else {
                promise.tell(Ok(()));
                pending.then(listen);
            }
            assert_eq!(receiver.iter().collect::<Vec<_>>(), [true]);
        }
    }

    #[test]
    fn a_dropped_promise_is_a_failure_that_names_its_path() {
        let (promise, pending) = Promise::new("pool/a");
        drop(promise);
        let (sender, receiver) = channel();
        pending.then(move |result| sender.send(result).unwrap());
        let error = receiver.recv().unwrap().unwrap_err().to_string();
        assert_eq!(error, "cannot store pool/a: it was given up");
    }
}
