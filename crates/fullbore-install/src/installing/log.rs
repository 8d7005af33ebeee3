//! Output of commands, which is shown if a command fails.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use fullbore_engine::run::error::{CommandError, ErrorKind};
use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::resolve;

/// Number of lines shown of a failed command, and the bytes that are read for them.
const LINES_SHOWN: usize = 12;
const BYTES_SHOWN: u64 = 16 << 10;

/// Interval between checks for new lines: short enough to appear immediate.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Log of the output of a run's commands.
#[derive(Debug)]
pub(crate) struct Log {
    file: File,
    /// Destination that replaces the file.
    shown: Option<Arc<File>>,
}

impl Log {
    /// Opens a log in a nameless file of this directory. With `shown` all output goes there unchanged instead: apt,
    /// dpkg and the scripts of the root run as root, and may draw on the terminal as without fullbore.
    ///
    /// # Errors
    /// `Disk` if the file cannot be created.
    pub(crate) fn open(directory: &Path, shown: Option<Arc<File>>) -> Result<Log, CommandError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
        let file = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
            // Not everywhere: on an overlay since Linux 6.1, never on NFS.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => in_memory(),
            opened => opened,
        }
        .map_err(|error| CommandError::cannot("create a file in", directory, &error.into()))?;
        Ok(Log { file: File::from(file), shown })
    }

    /// Opens a separate log with the same settings.
    ///
    /// # Errors
    /// `Disk` if the file cannot be created.
    pub(crate) fn another(&self, directory: &Path) -> Result<Log, CommandError> {
        Log::open(directory, self.shown.clone())
    }

    /// Redirects stderr of a command here, and stdout with `also_stdout`.
    ///
    /// # Errors
    /// `Internal` if a descriptor cannot be duplicated.
    pub(crate) fn take(&self, command: &mut Command, also_stdout: bool) -> Result<(), CommandError> {
        let stdio =
            || -> io::Result<Stdio> { Ok(Stdio::from(self.shown.as_deref().unwrap_or(&self.file).try_clone()?)) };
        let internal = |error: io::Error| CommandError::new(ErrorKind::Internal, error);
        command.stderr(stdio().map_err(internal)?);
        if also_stdout {
            command.stdout(stdio().map_err(internal)?);
        }
        Ok(())
    }

    /// Runs a command until it ends. Messages call it `what`.
    ///
    /// # Errors
    /// `Usage` if the command cannot be started, `Partial` with its last lines if it fails, and `Internal` if a
    /// descriptor cannot be duplicated.
    pub(crate) fn run(&self, command: &mut Command, what: &str) -> Result<(), CommandError> {
        self.take(command, true)?;
        let status = command.status().map_err(|error| cannot_start(command, &error))?;
        self.judge(status, what)
    }

    /// Like [`Log::run`], and passes each line to `told` as it appears. Does not wait for programs that the command
    /// left running.
    ///
    /// # Errors
    /// The errors of [`Log::run`].
    pub(crate) fn follow(
        &self,
        command: &mut Command,
        what: &str,
        told: &mut dyn FnMut(String),
    ) -> Result<(), CommandError> {
        self.take(command, true)?;
        let mut at = self.length();
        let mut child = command.spawn().map_err(|error| cannot_start(command, &error))?;
        let mut pause = Duration::from_millis(1);
        let status = loop {
            let ended = child.try_wait().map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
            self.tell(&mut at, ended.is_some(), told);
            if let Some(status) = ended {
                break status;
            }
            std::thread::sleep(pause);
            pause = POLL_INTERVAL.min(pause * 2);
        };
        self.judge(status, what)
    }

    /// Passes the lines from `at` on to `told` and advances `at`; with `all` also an incomplete line.
    fn tell(&self, at: &mut u64, all: bool, told: &mut dyn FnMut(String)) {
        let mut bytes = vec![0; BYTES_SHOWN as usize];
        loop {
            let count = self.file.read_at(&mut bytes, *at).unwrap_or(0);
            let whole = bytes[..count].iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
            let taken = if whole > 0 || !(all || count == bytes.len()) { whole } else { count };
            if taken == 0 {
                return;
            }
            *at += taken as u64;
            let text = String::from_utf8_lossy(&bytes[..taken]);
            for line in text.lines().map(str::trim_end).filter(|line| !line.is_empty()) {
                told(line.replace('\t', "    "));
            }
        }
    }

    /// Runs a command to its end; returns its stdout.
    ///
    /// # Errors
    /// The errors of [`Log::run`].
    pub(crate) fn read(&self, command: &mut Command, what: &str) -> Result<String, CommandError> {
        let (status, text) = self.output(command)?;
        self.judge(status, what)?;
        Ok(text)
    }

    fn output(&self, command: &mut Command) -> Result<(ExitStatus, String), CommandError> {
        self.take(command, false)?;
        let output = command.stdout(Stdio::piped()).output().map_err(|error| cannot_start(command, &error))?;
        Ok((output.status, String::from_utf8_lossy(&output.stdout).into_owned()))
    }

    /// Like [`Log::read`], for apt-get; an error includes its explanation.
    ///
    /// # Errors
    /// The errors of [`Log::run`]; if the command fails, with apt's explanation from its stdout.
    pub(crate) fn ask(&self, command: &mut Command, what: &str) -> Result<String, CommandError> {
        let start = self.length();
        let (status, text) = self.output(command)?;
        if status.success() {
            return Ok(text);
        }
        let said = self.lines_since(start);
        let explained = resolve::explanation(&text).into_iter().map(str::to_owned);
        let error = CommandError::new(ErrorKind::Partial, format_args!("{what}: {status}"));
        Err(said.into_iter().chain(explained).fold(error, CommandError::context))
    }

    /// Checks the exit status of a command.
    ///
    /// # Errors
    /// `Partial` if the command failed, with the last lines of the log.
    pub(crate) fn judge(&self, status: ExitStatus, what: &str) -> Result<(), CommandError> {
        if status.success() {
            return Ok(());
        }
        let error = CommandError::new(ErrorKind::Partial, format_args!("{what}: {status}"));
        Err(self.lines_since(0).into_iter().fold(error, CommandError::context))
    }

    /// Content of the log, up to a limit.
    pub(crate) fn all(&self) -> Vec<u8> {
        /// Maximum number of bytes. A guess: more than the output of successful scripts.
        const BYTES_MAX: u64 = 1 << 20;
        let mut bytes = vec![0; self.length().min(BYTES_MAX) as usize];
        let count = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }

    fn length(&self) -> u64 {
        self.file.metadata().map_or(0, |status| status.len())
    }

    /// Last lines of the log after offset `start`.
    fn lines_since(&self, start: u64) -> Vec<String> {
        let mut bytes = vec![0; BYTES_SHOWN as usize];
        let from = self.length().saturating_sub(BYTES_SHOWN).max(start);
        let count = self.file.read_at(&mut bytes, from).unwrap_or(0);
        let text = String::from_utf8_lossy(&bytes[..count]);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(LINES_SHOWN)..].iter().map(|line| (*line).to_owned()).collect()
    }
}

fn in_memory() -> Result<std::os::fd::OwnedFd, Errno> {
    let file = rustix::fs::memfd_create("log", MemfdFlags::CLOEXEC)?;
    // Several programs write at the same time.
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(file)
}

fn cannot_start(command: &Command, error: &io::Error) -> CommandError {
    CommandError::usage(format_args!("{}: {error}", command.get_program().to_string_lossy()))
        .hint("install dpkg, apt, util-linux, coreutils and tar")
}

/// Removes a file if it exists.
///
/// # Errors
/// `Disk` if the file exists and cannot be removed.
pub(crate) fn removed(path: &Path) -> Result<(), CommandError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CommandError::cannot("remove", path, &error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_as_they_come_and_what_is_left_behind_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), None).unwrap();
        let mut told = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 60 & echo $!; printf 'a\\tb\\n\\nno end' >&2; exit 3"]);
        let error = log.follow(&mut command, "hook", &mut |line| told.push(line)).unwrap_err();
        let pid = rustix::process::Pid::from_raw(told.remove(0).parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        assert_eq!(told, ["a    b", "no end"]);
        assert!(error.message.contains("hook: exit status: 3") && error.context.ends_with(&["no end".to_owned()]));
    }

    #[test]
    fn a_line_longer_than_is_read_at_once_is_told_in_pieces() {
        let dir = tempfile::tempdir().unwrap();
        let log = Log::open(dir.path(), None).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "head -c 40000 /dev/zero | tr '\\0' x; echo; echo end"]);
        let (mut lines, mut last) = (0, String::new());
        let mut bytes = 0;
        log.follow(&mut command, "long", &mut |line| {
            lines += 1;
            bytes += line.len();
            last = line;
        })
        .unwrap();
        assert_eq!((bytes, last.as_str()), (40_003, "end"));
        assert!(lines >= 4, "{lines}");
    }
}
