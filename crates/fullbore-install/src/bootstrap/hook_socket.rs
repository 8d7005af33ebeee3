//! The socket of `MMDEBSTRAP_HOOKSOCK`: hooks call a helper on it, and a thread answers.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::thread::JoinHandle;

use crate::hooks::protocol::{Peer, helper, listener};
use crate::nosync::session::pass_on;

/// The socket, and the thread that listens.
#[derive(Debug)]
pub(super) struct HookSocket {
    of_hooks: UnixStream,
    ours: UnixStream,
    listening: Option<JoinHandle<()>>,
}

impl HookSocket {
    /// Opens the socket and begins to listen.
    ///
    /// # Errors
    /// The system's error if the process has too many descriptors or threads.
    pub(super) fn open() -> io::Result<HookSocket> {
        let (of_hooks, ours) = UnixStream::pair()?;
        let (from, to) = (ours.try_clone()?, ours.try_clone()?);
        let listen = move || {
            // The hook sees the error as well, and ends the run by it.
            if let Err(error) = listener::run(&mut Peer::new(from, to)) {
                tracing::warn!("hook: {error}");
            }
        };
        let listening = std::thread::Builder::new().name("hooks".to_owned()).spawn(listen)?;
        Ok(HookSocket { of_hooks, ours, listening: Some(listening) })
    }

    /// Passes the socket to the command of a hook; returns its descriptor number there.
    pub(super) fn pass_to(&self, command: &mut Command) -> i32 {
        pass_on(command, self.of_hooks.as_fd());
        self.of_hooks.as_raw_fd()
    }

    /// Runs a command that moves files, in this process.
    ///
    /// # Errors
    /// The errors of [`helper::run`]: a malformed command, a file that cannot be read or written, or a failure at the
    /// other end.
    pub(super) fn call(&self, call: &helper::Call<'_>) -> io::Result<()> {
        helper::run(call, &mut Peer::new(&self.of_hooks, &self.of_hooks))
    }
}

impl Drop for HookSocket {
    fn drop(&mut self) {
        // A program that a hook left may hold the other end.
        let _ = self.ours.shutdown(Shutdown::Both);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}
