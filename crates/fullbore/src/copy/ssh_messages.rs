//! Text that ssh and the far machine write to stderr: shown line by line, behind the host's name.
//!
//! The far machine decides what it says there. So ssh does not get the terminal, but a pipe, and each line is escaped
//! as any other. ssh asks for passwords on the terminal itself (`/dev/tty`), not by stderr.

use std::io::{self, PipeReader, Read as _};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A longer line is shown in pieces. A guess: longer than any message of ssh.
const LINE_BYTES: usize = 4096;
/// Text without a line break is shown after this time: it may be a question.
const IDLE: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// How long the last words are awaited. An ssh that stays for later connections keeps the pipe open.
const LAST_WORDS: Duration = Duration::from_millis(300);

/// The pipe that stands for stderr of ssh. Dropped, it waits for the last line.
#[derive(Debug)]
pub struct Messages {
    descriptor: Option<Arc<OwnedFd>>,
    ended: Receiver<()>,
}

impl Messages {
    /// Begins to listen; `tell` gets each line.
    ///
    /// # Errors
    /// When there can be no pipe or no thread.
    pub fn listen(host: &str, tell: impl Fn(&str) + Send + 'static) -> io::Result<Messages> {
        let (from, to) = io::pipe()?;
        let (end, ended) = mpsc::channel();
        let host = host.to_owned();
        std::thread::Builder::new().name("ssh messages".to_owned()).spawn(move || {
            follow(from, &|line| tell(&format!("{host}: {line}")));
            // Nobody may wait for it.
            let _ = end.send(());
        })?;
        Ok(Messages { descriptor: Some(Arc::new(to.into())), ended })
    }

    /// For ssh.
    pub fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.descriptor.clone()
    }
}

impl Drop for Messages {
    fn drop(&mut self) {
        self.descriptor = None;
        let _ = self.ended.recv_timeout(LAST_WORDS);
    }
}

fn follow(mut from: PipeReader, tell: &dyn Fn(&str)) {
    let (mut text, mut buffer) = (Vec::new(), [0; LINE_BYTES]);
    loop {
        if !text.is_empty() && matches!(poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&IDLE)), Ok(0)) {
            told(&std::mem::take(&mut text), tell);
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
    // ssh ends its lines as a terminal in raw mode wants them.
    let line = String::from_utf8_lossy(line);
    let line = line.trim_end_matches(['\r', '\n']);
    if !line.is_empty() {
        tell(line);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn each_line_stands_behind_the_host_and_the_last_one_is_awaited() {
        let lines: Arc<Mutex<Vec<String>>> = Arc::default();
        let told = lines.clone();
        let messages = Messages::listen("host", move |line| told.lock().unwrap().push(line.to_owned())).unwrap();
        let mut ssh = std::fs::File::from(messages.descriptor().unwrap().try_clone().unwrap());
        ssh.write_all(b"one\r\n\r\ntwo\nthr").unwrap();
        ssh.write_all(b"ee\n\xff\nno end").unwrap();
        drop(ssh);
        drop(messages);
        assert_eq!(*lines.lock().unwrap(), ["host: one", "host: two", "host: three", "host: \u{fffd}", "host: no end"]);
    }

    #[test]
    fn a_question_without_a_line_break_is_shown() {
        let (told, lines) = mpsc::channel();
        let messages = Messages::listen("host", move |line| drop(told.send(line.to_owned()))).unwrap();
        let mut ssh = std::fs::File::from(messages.descriptor().unwrap().try_clone().unwrap());
        ssh.write_all(b"Password: ").unwrap();
        assert_eq!(lines.recv_timeout(Duration::from_secs(60)).unwrap(), "host: Password: ");
        ssh.write_all(&[b'x'; 3 * LINE_BYTES]).unwrap();
        assert!(lines.recv_timeout(Duration::from_secs(60)).unwrap().len() >= LINE_BYTES);
    }
}
