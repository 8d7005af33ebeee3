//! Where the content of files that were got goes: stdout, or a file that gets its name when all is there.

use std::fmt;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::CommandError;
use crate::output::{self, Output};

/// Destination of content: a file under a temporary name, or stdout.
pub struct Sink<'a> {
    to: To<'a>,
    /// Nobody reads stdout any more (`fullbore get CAP | head`): a quiet, normal end.
    pub is_abandoned: bool,
    /// Number of bytes that were given to `write`.
    pub written: u64,
    /// Time that writing took.
    worked: Duration,
}

enum To<'a> {
    File(Output),
    Stdout(&'a mut (dyn Write + Send)),
}

impl<'a> Sink<'a> {
    /// To the file of this name, or to `stdout`.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the temporary file cannot be created beside `path`.
    pub fn open(path: Option<&Path>, stdout: &'a mut (dyn Write + Send)) -> Result<Sink<'a>, CommandError> {
        let begin = |path| {
            let output = Output::begin(path, output::FOR_ALL);
            output.map_err(|error| CommandError::disk(path, &error).context("-o"))
        };
        let to = path.map_or(Ok(To::Stdout(stdout)), |path| begin(path).map(To::File))?;
        Ok(Sink { to, is_abandoned: false, written: 0, worked: Duration::ZERO })
    }

    /// The time that writing took so far.
    pub fn worked(&self) -> Duration {
        self.worked
    }

    /// Appends bytes to the file or to stdout.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the file or stdout cannot be written. A closed pipe is no error.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), CommandError> {
        self.written += bytes.len() as u64;
        let begun = Instant::now();
        let written = match &mut self.to {
            To::Stdout(stdout) => {
                let written = stdout.write_all(bytes);
                self.is_abandoned = written.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::BrokenPipe);
                match written {
                    Err(error) if !self.is_abandoned => Err(CommandError::disk(Path::new("stdout"), &error)),
                    _ => Ok(()),
                }
            }
            To::File(output) => {
                output.file().write_all(bytes).map_err(|error| CommandError::disk(output.path(), &error))
            }
        };
        self.worked += begun.elapsed();
        written
    }

    /// Gives the file its name: all of it is there, and right. Returns the time that all writing took.
    ///
    /// # Errors
    /// A [`CommandError`] about the disk if the file cannot be synced or renamed.
    pub fn publish(self) -> Result<Duration, CommandError> {
        let begun = Instant::now();
        let published = match self.to {
            To::Stdout(_) => Ok(()),
            To::File(output) => {
                let path = output.path().to_owned();
                let published = output.sync().and_then(|()| output.publish());
                published.map_err(|error| CommandError::disk(&path, &error))
            }
        };
        published.map(|()| self.worked + begun.elapsed())
    }
}

impl fmt::Debug for Sink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sink").field("written", &self.written).finish_non_exhaustive()
    }
}
