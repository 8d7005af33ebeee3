//! Signals end a copy where another one can go on.

use fullbore_copy::error::CopyError;
use fullbore_copy::session::Brake;
use tokio::signal::unix::{SignalKind, signal};

use crate::error::{CommandError, ErrorKind};

/// SIGINT, SIGTERM, and SIGHUP of a terminal that was closed pull the brake; a second one ends the program.
pub fn pull(brake: &Brake) -> Result<(), CommandError> {
    let internal = |error: std::io::Error| CommandError::new(ErrorKind::Internal, error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(internal)?;
    let brake = brake.clone();
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
                brake.pull(CopyError::Interrupted);
            }
        });
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(listen).map_err(internal)?;
    Ok(())
}
