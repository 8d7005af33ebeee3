//! Signals end a copy where another one can go on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_copy::error::CopyError;
use fullbore_copy::session::Brake;
use fullbore_copy::transport::near::Tether;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::run::signals::Signals;

/// The brake of the run that is under way; a lost connection makes another one.
#[derive(Clone, Debug, Default)]
pub struct Current {
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
    pub fn of(brake: &Brake) -> Current {
        let current = Current::default();
        current.set(brake);
        current
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on this one is pulled; at once, if a signal has come already.
    pub fn set(&self, brake: &Brake) {
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
    pub fn dial(&self, ssh: Option<Tether>) {
        let mut state = self.lock();
        state.ssh = ssh;
        if state.stopped {
            state.ssh.iter().for_each(Tether::cut);
        }
    }

    /// Ends what is waited for, if there is no connection yet.
    pub fn give_up_dialling(&self) {
        self.lock().ssh.iter().for_each(Tether::cut);
    }

    /// Whether a signal has come.
    pub fn is_stopped(&self) -> bool {
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
}

/// Signals pull the brake; a second one ends the program.
pub fn pull(current: &Current) -> Result<(), CommandError> {
    let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(internal)?;
    let signals = Signals::listen(&runtime).map_err(internal)?;
    let current = current.clone();
    let listen = move || runtime.block_on(signals.stop(|| current.stop()));
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(internal)?;
    Ok(())
}
