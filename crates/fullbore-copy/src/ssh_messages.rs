//! Relays text that ssh and the far machine write to stderr, line by line.
//!
//! The far machine decides what this text is. So ssh gets a pipe instead of the terminal, and each line is escaped like
//! any other. ssh asks for passwords on the terminal itself (`/dev/tty`), not through stderr.

use std::io::{self, PipeReader, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Longest line in bytes; longer ones are shown in pieces. A guess: longer than any message of ssh.
const LINE_BYTES: usize = 4096;
/// Text without a line break is shown after this time, as it may be a question. At the end, the last text is awaited
/// for as long: an ssh that stays for later connections keeps the pipe open.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// The pipe that replaces ssh's stderr. Once this is dropped, its thread ends after the last line.
#[derive(Debug)]
pub(crate) struct Messages {
    descriptor: Option<Arc<OwnedFd>>,
    over: Arc<AtomicBool>,
}

impl Messages {
    /// Starts a thread that passes each line to `tell`.
    ///
    /// # Errors
    /// The error of pipe(2), or of starting a thread.
    pub(crate) fn listen<'scope>(
        scope: &'scope Scope<'scope, '_>,
        tell: impl Fn(&str) + Send + 'scope,
    ) -> io::Result<Messages> {
        let (from, to) = io::pipe()?;
        let over = Arc::new(AtomicBool::new(false));
        let ending = over.clone();
        let follow = move || follow(from, &ending, &tell);
        std::thread::Builder::new().name("ssh messages".to_owned()).spawn_scoped(scope, follow)?;
        Ok(Messages { descriptor: Some(Arc::new(to.into())), over })
    }

    /// The write end of the pipe, for ssh's stderr.
    pub(crate) fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptor.clone()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.descriptor = None;
        self.over.store(true, Ordering::Release);
    }
}

fn follow(mut from: PipeReader, over: &AtomicBool, tell: &dyn Fn(&str)) {
    let (mut text, mut buffer) = (Vec::new(), [0; LINE_BYTES]);
    loop {
        let ends = over.load(Ordering::Acquire);
        if matches!(poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&IDLE)), Ok(0)) {
            told(&std::mem::take(&mut text), tell);
            if ends {
                return;
            }
            continue;
        }
        match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            told(&line, tell);
        }
        if text.len() >= LINE_BYTES {
            told(&std::mem::take(&mut text), tell);
        }
    }
    told(&text, tell);
}

fn told(line: &[u8], tell: &dyn Fn(&str)) {
    // ssh ends its lines for a terminal in raw mode, with a carriage return.
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches(['\r', '\n']);
    if !line.is_empty() {
        tell(line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::{Mutex, mpsc};
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_line_is_told_and_the_last_one_is_awaited() {
        let lines: Mutex<Vec<String>> = Mutex::default();
        std::thread::scope(|scope| {
            let messages = Messages::listen(scope, |line| lines.lock().unwrap().push(line.to_owned())).unwrap();
            let mut ssh = std::fs::File::from(messages.descriptor().unwrap().try_clone().unwrap());
            ssh.write_all(b"one\r\n\r\ntwo\nthr").unwrap();
            ssh.write_all(b"ee\n\xff\nno end").unwrap();
        });
        assert_eq!(*lines.lock().unwrap(), ["one", "two", "three", "\u{fffd}", "no end"]);
    }

    #[test]
    fn a_prompt_without_a_line_break_is_shown() {
        let (told, lines) = mpsc::channel();
        let ssh = std::thread::scope(|scope| {
            let messages = Messages::listen(scope, move |line| drop(told.send(line.to_owned()))).unwrap();
            let mut ssh = std::fs::File::from(messages.descriptor().unwrap().try_clone().unwrap());
            ssh.write_all(b"Password: ").unwrap();
            assert_eq!(lines.recv_timeout(Duration::from_secs(60)).unwrap(), "Password: ");
            ssh.write_all(&[b'x'; 3 * LINE_BYTES]).unwrap();
            assert!(lines.recv_timeout(Duration::from_secs(60)).unwrap().len() >= LINE_BYTES);
            ssh
        });
        // The thread has ended though the pipe is open.
        drop(ssh);
    }
}
