//! Running `gpgv` with a time limit and a limit on its output.

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::SignatureError;

/// Maximum size of the status and of the messages of `gpgv`, in bytes; a signature takes a few hundred bytes.
const GPGV_OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Runs `gpgv` to its end or to the time limit; returns status and messages.
pub(super) fn run_bounded(
    mut command: Command,
    gpgv: &Path,
    limit: Duration,
) -> Result<(String, String), SignatureError> {
    let deadline = Instant::now() + limit;
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| SignatureError::GpgvMissing { path: gpgv.to_owned(), source })?;
    let status = read_in_thread(child.stdout.take());
    let messages = read_in_thread(child.stderr.take());
    let left = || deadline.saturating_duration_since(Instant::now());
    let outputs = status.recv_timeout(left()).and_then(|status| Ok((status, messages.recv_timeout(left())?)));
    let Ok((status, messages)) = outputs else {
        stop(&mut child);
        return Err(SignatureError::GpgvFailed {
            what: "did not finish in time",
            messages: format!("limit {limit:?}"),
        });
    };
    // Its outputs are closed, so it exits soon.
    let exit = loop {
        match child.try_wait() {
            Ok(Some(exit)) => break exit,
            Ok(None) if left().is_zero() => {
                stop(&mut child);
                return Err(SignatureError::GpgvFailed {
                    what: "did not exit in time",
                    messages: super::shorten(&messages),
                });
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(source) => {
                return Err(SignatureError::GpgvMissing { path: gpgv.to_owned(), source });
            }
        }
    };
    // 1: a bad signature; 2: also "no key for a further signer". The status lines say which.
    match exit.code() {
        Some(0..=2) => Ok((status, messages)),
        _ => Err(SignatureError::GpgvFailed { what: "failed", messages: super::shorten(&messages) }),
    }
}

fn stop(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn read_in_thread(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // Output before a read error is used; without the rest the check fails.
            let _ = stream.take(GPGV_OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
