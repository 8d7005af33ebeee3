//! The signals that end a run: SIGINT, SIGTERM, and the SIGHUP of a terminal that was closed.

use std::io;

use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::error::ErrorKind;

/// Those that have not come yet. While they are listened for none ends the program of itself.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// Unless it is ignored.
    hangup: Option<Signal>,
}

impl Signals {
    /// Listens from now on, though they may be waited for later. Handlers stay when the runtime is gone.
    ///
    /// # Errors
    /// When the handlers cannot be set.
    pub fn listen(runtime: &Runtime) -> io::Result<Signals> {
        let _within = runtime.enter();
        let hangup = if is_hangup_ignored() { None } else { Some(signal(SignalKind::hangup())?) };
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())?, hangup })
    }

    /// Waits for the next one: whether somebody sent it on purpose. Of one closed terminal several may come.
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

    /// Has the run stopped at the first one, and ends the program if somebody insists.
    pub async fn stop(mut self, stop: impl FnOnce()) {
        self.next().await;
        stop();
        while !self.next().await {}
        exit();
    }

    /// Ends the program at the first one.
    pub async fn end(mut self) {
        self.next().await;
        exit();
    }
}

fn exit() -> ! {
    std::process::exit(i32::from(ErrorKind::Interrupted.exit_code()))
}

/// Whether whoever started the program wants it to outlive its terminal, as nohup(1) does: `SigIgn` of proc(5), a
/// bit for each signal, the first one for the first.
fn is_hangup_ignored() -> bool {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = text.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or(0);
    ignored >> (rustix::process::Signal::HUP.as_raw() - 1) & 1 == 1
}
