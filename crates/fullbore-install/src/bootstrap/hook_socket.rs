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
pub struct HookSocket {
    of_hooks: UnixStream,
    ours: UnixStream,
    listening: Option<JoinHandle<()>>,
}

impl HookSocket {
    /// Opens the socket and begins to listen.
    ///
    /// # Errors
    /// There are no more descriptors, or threads.
    pub fn open() -> io::Result<HookSocket> {
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

    /// Gives the socket to a hook. Returns its number there.
    pub fn pass_to(&self, command: &mut Command) -> i32 {
        pass_on(command, self.of_hooks.as_fd());
        self.of_hooks.as_raw_fd()
    }

    /// Runs a command that moves files, in this process.
    ///
    /// # Errors
    /// Like [`helper::run`].
    pub fn call(&self, call: &helper::Call<'_>) -> io::Result<()> {
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
