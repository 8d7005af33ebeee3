//! The signals that end a run: SIGINT, SIGTERM, and SIGHUP of a closed terminal.

use std::io;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::ErrorKind;

/// Receives the signals. While it exists, no signal ends the program by itself.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` if the parent process had SIGHUP ignored.
    hangup: Option<Signal>,
}

impl Signals {
    /// Installs the handlers at once; waiting may begin later. The handlers stay when the runtime is gone.
    ///
    /// # Errors
    /// The system's error if a handler cannot be installed.
    pub fn listen(runtime: &Runtime) -> io::Result<Signals> {
        let _within = runtime.enter();
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next signal. False for SIGHUP: one closed terminal may send several, so it does not count as
    /// insistence.
    async fn next(&mut self) -> bool {
        let hangup = async {
            match &mut self.hangup {
                Some(hangup) => hangup.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => true,
            _ = self.terminate.recv() => true,
            _ = hangup => false,
        }
    }

    /// Calls `stop` at the first signal, and exits the program at a second one (SIGINT or SIGTERM).
    pub async fn stop(mut self, stop: impl FnOnce()) {
        self.next().await;
        stop();
        while !self.next().await {}
        exit();
    }

    /// Exits the program at the first signal.
    pub async fn end(mut self) {
        self.next().await;
        exit();
    }
}

fn exit() -> ! {
    std::process::exit(i32::from(ErrorKind::Interrupted.exit_code()))
}

/// Whether the parent process had SIGHUP ignored, as nohup(1) does. `SigIgn` of proc(5) is a mask; bit n - 1 is signal
/// n.
fn is_hangup_ignored() -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    ignored >> (rustix::process::Signal::HUP.as_raw() - 1) & 1 == 1
}
