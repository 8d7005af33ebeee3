//! Signals end a copy where another one can go on.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_copy::error::CopyError;
use fullbore_copy::session::Brake;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{CommandError, ErrorKind};

/// The brake of the run that is under way; a lost connection makes another one.
#[derive(Clone, Debug, Default)]
pub struct Current {
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    stopped: bool,
    brake: Option<Brake>,
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
            state.stopped
        };
        if stopped {
            brake.pull(CopyError::Interrupted);
        }
    }

    /// Whether a signal has come.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    fn stop(&self) {
        let brake = {
            let mut state = self.lock();
            state.stopped = true;
            state.brake.clone()
        };
        if let Some(brake) = brake {
            brake.pull(CopyError::Interrupted);
        }
    }
}

/// SIGINT, SIGTERM, and SIGHUP of a terminal that was closed pull the brake; a second one ends the program.
pub fn pull(current: &Current) -> Result<(), CommandError> {
    let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(internal)?;
    let current = current.clone();
    let listening = runtime.block_on(async {
        Ok((signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?, signal(SignalKind::hangup())?))
    });
    let (mut interrupt, mut terminate, mut hangup) = listening.map_err(internal)?;
    let listen = move || {
        runtime.block_on(async {
            for count in 0.. {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    _ = hangup.recv() => {}
                }
                if count > 0 {
                    std::process::exit(i32::from(ErrorKind::Interrupted.exit_code()));
                }
                current.stop();
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(internal)?;
    Ok(())
}
