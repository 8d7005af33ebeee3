//! Ends a copy on a signal, at a point where another copy can continue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::stop::Stop;

use crate::error::CopyError;
use crate::session::CancelToken;
use crate::transport::near::SshHandle;

/// The cancel token of the current run; reconnecting makes another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    cancel: Option<CancelToken>,
    /// The ssh process that is waited for, before there is a connection.
    ssh: Option<SshHandle>,
}

impl Current {
    /// For a run with this cancel token.
    pub(crate) fn of(cancel: &CancelToken) -> Current {
        let current = Current::default();
        current.set(cancel);
        current
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Signals cancel this run from now on. Cancels it at once if a signal has come already.
    pub(crate) fn set(&self, cancel: &CancelToken) {
        let stopped = {
            let mut state = self.lock();
            state.cancel = Some(cancel.clone());
            state.ssh = None;
            state.stopped
        };
        if stopped {
            cancel.cancel(CopyError::Interrupted);
        }
    }

    /// Until [`Current::set`] is called, signals end this ssh process. Ends it at once if a signal has come already.
    pub(crate) fn dial(&self, ssh: Option<SshHandle>) {
        let mut state = self.lock();
        state.ssh = ssh;
        if state.stopped {
            state.ssh.iter().for_each(SshHandle::cut);
        }
    }

    /// Ends the ssh process that is waited for, if there is no connection yet.
    pub(crate) fn give_up_dialling(&self) {
        self.lock().ssh.iter().for_each(SshHandle::cut);
    }

    /// Whether a signal has come.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    fn stop(&self) {
        let cancel = {
            let mut state = self.lock();
            state.stopped = true;
            state.ssh.iter().for_each(SshHandle::cut);
            state.cancel.clone()
        };
        if let Some(cancel) = cancel {
            cancel.cancel(CopyError::Interrupted);
        }
    }

    /// From now on a signal cancels the run; a second one ends the program.
    ///
    /// # Errors
    ///
    /// If the signal handlers cannot be installed.
    pub(crate) fn listen(&self) -> Result<(), CommandError> {
        let current = self.clone();
        let listening = Stop::in_thread(move || current.stop());
        listening.map(drop).map_err(|error| CommandError::new(ErrorKind::Internal, error))
    }
}
