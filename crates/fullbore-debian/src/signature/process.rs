//! Runs a verifier with a time limit and a limit on its output.

use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::SignatureError;

/// Maximum size of each output of a verifier, in bytes; a signature takes a few hundred bytes.
const OUTPUT_BYTES_MAX: u64 = 1 << 20;

/// Result of a verifier that ran to its end.
pub(super) struct Ended {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

/// Runs a verifier to its end or to the time limit. `name` is its name for messages.
pub(super) fn run_bounded(
    mut command: Command,
    program: &Path,
    name: &'static str,
    limit: Duration,
) -> Result<Ended, SignatureError> {
    let deadline = Instant::now() + limit;
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let cannot_run = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => SignatureError::NoProgram { programs: vec![program.display().to_string()] },
        _ => SignatureError::CannotRun { path: program.to_owned(), source },
    };
    let mut child = command.spawn().map_err(cannot_run)?;
    let stdout = read_in_thread(child.stdout.take());
    let stderr = read_in_thread(child.stderr.take());
    let left = || deadline.saturating_duration_since(Instant::now());
    let outputs = stdout.recv_timeout(left()).and_then(|stdout| Ok((stdout, stderr.recv_timeout(left())?)));
    let Ok((stdout, stderr)) = outputs else {
        stop(&mut child);
        let messages = format!("limit {limit:?}");
        return Err(SignatureError::VerifierFailed { program: name, what: "did not finish in time", messages });
    };
    // Its outputs are closed, so it exits soon.
    loop {
        match child.try_wait() {
            Ok(Some(exit)) => return Ok(Ended { code: exit.code(), stdout, stderr }),
            Ok(None) if left().is_zero() => {
                stop(&mut child);
                let messages = super::shorten(&stderr);
                return Err(SignatureError::VerifierFailed { program: name, what: "did not exit in time", messages });
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(source) => return Err(SignatureError::CannotRun { path: program.to_owned(), source }),
        }
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
            // Output before a read error is used; without the rest, the check fails.
            let _ = stream.take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}
