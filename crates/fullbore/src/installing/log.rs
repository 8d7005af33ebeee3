//! What commands print: kept, and shown if one of them fails.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;

use crate::error::{CommandError, ErrorKind};

/// Lines shown of a command that failed, and bytes read for them.
const LINES_SHOWN: usize = 12;
const BYTES_SHOWN: u64 = 16 << 10;

/// The output of all commands of a run.
#[derive(Debug)]
pub struct Log {
    file: File,
    shown: bool,
}

impl Log {
    /// In a nameless file of this directory; with `shown` everything goes to stderr at once.
    pub fn open(directory: &Path, shown: bool) -> Result<Log, CommandError> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
        let file = match rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR) {
            // Not everywhere: on an overlay since Linux 6.1, never on NFS.
            Err(Errno::OPNOTSUPP | Errno::ISDIR) => in_memory(),
            opened => opened,
        }
        .map_err(|error| CommandError::disk(directory, &error.into()))?;
        Ok(Log { file: File::from(file), shown })
    }

    /// Has a command write here; its stdout only if nobody reads it.
    pub fn take(&self, command: &mut Command, also_stdout: bool) -> Result<(), CommandError> {
        let stdio = || -> io::Result<Stdio> {
            if self.shown {
                Ok(Stdio::from(std::os::fd::AsFd::as_fd(&io::stderr()).try_clone_to_owned()?))
            } else {
                Ok(Stdio::from(self.file.try_clone()?))
            }
        };
        let internal = |error: io::Error| CommandError::new(ErrorKind::Internal, error);
        command.stderr(stdio().map_err(internal)?);
        if also_stdout {
            command.stdout(stdio().map_err(internal)?);
        }
        Ok(())
    }

    /// Runs a command to its end.
    pub fn run(&self, command: &mut Command, what: &str) -> Result<(), CommandError> {
        self.take(command, true)?;
        let status = command.status().map_err(|error| cannot_start(command, &error))?;
        self.judge(status, what)
    }

    /// Runs a command to its end and gives what it printed.
    pub fn read(&self, command: &mut Command, what: &str) -> Result<String, CommandError> {
        self.take(command, false)?;
        let output = command.stdout(Stdio::piped()).output().map_err(|error| cannot_start(command, &error))?;
        self.judge(output.status, what)?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// An error if the command failed, with the last lines that were printed.
    pub fn judge(&self, status: ExitStatus, what: &str) -> Result<(), CommandError> {
        if status.success() {
            return Ok(());
        }
        let mut error = CommandError::new(ErrorKind::Partial, format_args!("{what}: {status}"));
        for line in self.last_lines() {
            error = error.context(line);
        }
        Err(error)
    }

    /// The last lines that commands have printed.
    pub fn last_lines(&self) -> Vec<String> {
        let mut file = &self.file;
        let length = file.metadata().map_or(0, |status| status.len());
        let mut bytes = Vec::new();
        let read = file
            .seek(SeekFrom::Start(length.saturating_sub(BYTES_SHOWN)))
            .and_then(|_| file.take(BYTES_SHOWN).read_to_end(&mut bytes));
        if read.is_err() {
            return Vec::new();
        }
        let text = String::from_utf8_lossy(&bytes);
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
        .hint("dpkg, apt, util-linux, coreutils and tar are needed")
}

/// Removes a file that may not be there.
pub fn removed(path: &Path) -> Result<(), CommandError> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(CommandError::disk(path, &error)),
        _ => Ok(()),
    }
}
