//! Signals end a copy where another one can go on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::stop::Stop;

use crate::error::CopyError;
use crate::session::Brake;
use crate::transport::near::Tether;

/// The brake of the run that is under way; a lost connection makes another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Current {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    brake: Option<Brake>,
    /// While there is no connection yet: what is waited for.
    ssh: Option<Tether>,
}

impl Current {
    /// With one brake.
    pub(crate) fn of(brake: &Brake) -> Current {
        let current = Current::default();
        current.set(brake);
        current
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this one is pulled; at once, if a signal has come already.
    pub(crate) fn set(&self, brake: &Brake) {
        let stopped = {
            let mut state = self.lock();
            state.brake = Some(brake.clone());
            state.ssh = None;
            state.stopped
        };
        if stopped {
            brake.pull(CopyError::Interrupted);
        }
    }

    /// Until then this one is ended; at once, if a signal has come already.
    pub(crate) fn dial(&self, ssh: Option<Tether>) {
        let mut state = self.lock();
        state.ssh = ssh;
        if state.stopped {
            state.ssh.iter().for_each(Tether::cut);
        }
    }

    /// Ends what is waited for, if there is no connection yet.
    pub(crate) fn give_up_dialling(&self) {
        self.lock().ssh.iter().for_each(Tether::cut);
    }

    /// Whether a signal has come.
    pub(crate) fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    fn stop(&self) {
        let brake = {
            let mut state = self.lock();
            state.stopped = true;
            state.ssh.iter().for_each(Tether::cut);
            state.brake.clone()
        };
        if let Some(brake) = brake {
            brake.pull(CopyError::Interrupted);
        }
    }

    /// Signals pull the brake from now on; a second one ends the program.
    pub(crate) fn listen(&self) -> Result<(), CommandError> {
        let current = self.clone();
        let listening = Stop::in_thread(move || current.stop());
        listening.map(drop).map_err(|error| CommandError::new(ErrorKind::Internal, error))
    }
}
