//! The standard streams: every byte that the program prints passes here.
//!
//! Lines for people are escaped here, once, by [`escape::line`]: one line in, one line out, whatever a server, the far
//! end of a copy or a file name puts into it. On stderr, [`escape::message`] leaves out credentials as well. Callers hand over lines, never a text with line breaks in it. Data for
//! programs is JSON, with the exact text, or the bytes of files.
//!
//! Output that is lost on stdout does not stop a run: the first error is kept, and [`finish`] makes it an error of kind
//! `Disk` at the end. A closed pipe is a normal end. What is lost on stderr cannot be told to anybody.

use std::fs::File;
use std::io::{self, IsTerminal as _, Write};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fullbore_engine::escape::json_line;
use fullbore_engine::run::error::{CommandError, EXIT_UNCHANGED, ErrorKind};
use fullbore_engine::{escape, sys};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Serialize;

/// What became of stdout.
#[derive(Debug, Default)]
struct State {
    /// The first error. Nothing is written after it: what follows would be a text with a hole.
    error: Option<Errno>,
    /// A command has made it an error of its own.
    is_told: bool,
}

static STDOUT: Mutex<State> = Mutex::new(State { error: None, is_told: false });

fn state() -> MutexGuard<'static, State> {
    STDOUT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The writer of stdout. Unbuffered: a caller writes whole lines or large pieces.
///
/// std's own writer takes `EBADF` for success, which is what a descriptor that is open for reading only gives.
#[derive(Debug, Clone, Copy)]
pub struct Stdout;

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut state = state();
        if state.error.is_none() {
            state.error = write_through(bytes).err();
        }
        state.error.map_or(Ok(()), |errno| Err(errno.into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The content of files that were got, on stdout. An error ends the command, which shows it.
#[derive(Debug, Clone, Copy)]
pub struct Content;

impl Write for Content {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let written = Stdout.write_all(bytes);
        state().is_told |= written.is_err();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_through(mut rest: &[u8]) -> Result<(), Errno> {
    if sys::stdout_was_closed() {
        return Err(Errno::BADF);
    }
    let stdout = io::stdout();
    while !rest.is_empty() {
        match rustix::io::write(&stdout, rest) {
            Ok(0) => return Err(Errno::IO),
            Ok(count) => rest = &rest[count..],
            Err(Errno::INTR) => {}
            // Whoever shares the pipe may have made it so.
            Err(Errno::AGAIN) => {
                let _ = poll(&mut [PollFd::new(&stdout, PollFlags::OUT)], None);
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Whether nobody reads stdout any more.
pub fn is_closed() -> bool {
    state().error == Some(Errno::PIPE)
}

/// A line for people on stdout.
///
/// # Errors
/// As [`Stdout`] has them; they are kept for [`finish`], and need not be looked at.
pub fn print_line(text: &str) -> io::Result<()> {
    Stdout.write_all(format!("{}\n", escape::line(text)).as_bytes())
}

/// A line of JSON on stdout.
///
/// # Errors
/// As [`print_line`].
pub fn print_json(value: &impl Serialize) -> io::Result<()> {
    Stdout.write_all(&json_line(value))
}

/// A line for people on stderr.
pub fn say(text: &str) {
    // Nobody is left to be told of an error on stderr.
    let _ = io::stderr().write_all(format!("{}\n", escape::message(text)).as_bytes());
}

/// A failure on stderr.
pub fn say_error(error: &CommandError) {
    error.lines().iter().for_each(|line| say(line));
}

/// A question on stderr, without a line break behind it.
pub fn ask(text: &str) {
    let _ = io::stderr().write_all(escape::message(text).as_bytes());
}

/// The writer of stderr, for lines that were escaped before.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        io::stderr().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The writer of the libraries' log: one record per call, as tracing writes them.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Write for Log {
    fn write(&mut self, record: &[u8]) -> io::Result<usize> {
        say(&record_text(record));
        Ok(record.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The text of a log record without the line break at its end.
pub(crate) fn record_text(record: &[u8]) -> String {
    let text = String::from_utf8_lossy(record);
    text.strip_suffix('\n').unwrap_or(&text).to_owned()
}

/// stdout itself, for a child or a peer that speaks over it.
///
/// # Errors
/// When it is closed.
pub fn stdout_file() -> io::Result<File> {
    if sys::stdout_was_closed() {
        return Err(Errno::BADF.into());
    }
    io::stdout().as_fd().try_clone_to_owned().map(File::from)
}

/// stderr itself, for a child.
///
/// # Errors
/// When it cannot be duplicated.
pub fn stderr_file() -> io::Result<File> {
    io::stderr().as_fd().try_clone_to_owned().map(File::from)
}

/// Programs started from here on find stdout closed if it was closed for this one: they are not deceived by the
/// descriptor that the run-time has put in its place.
pub fn pass_on_closed_stdout() {
    if sys::stdout_was_closed() {
        // The descriptor is open; setting its flag cannot fail.
        let _ = rustix::io::fcntl_setfd(io::stdout(), rustix::io::FdFlags::CLOEXEC);
    }
}

/// Whether a person sees stdout.
pub fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// Whether a person sees stderr.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether a person types stdin.
pub fn stdin_is_terminal() -> bool {
    io::stdin().is_terminal()
}

/// Whether stdout is `/dev/null` (null(4): major 1, minor 3).
pub fn stdout_is_thrown_away() -> bool {
    let status = rustix::fs::fstat(io::stdout());
    !sys::stdout_was_closed() && status.is_ok_and(|status| status.st_rdev == rustix::fs::makedev(1, 3))
}

/// Makes an error of stdout one of the command, which shows it and ends by it.
pub fn stdout_error(error: &io::Error) -> CommandError {
    state().is_told = true;
    CommandError::disk(Path::new("stdout"), error)
}

/// The exit code of a run in view of its output: lost output fails a run that was good, no other.
pub fn finish(exit_code: u8) -> u8 {
    let errno = {
        let state = state();
        state.error.filter(|errno| *errno != Errno::PIPE && !state.is_told)
    };
    let Some(errno) = errno else { return exit_code };
    let error = CommandError::disk(Path::new("stdout"), &errno.into())
        .context("output is missing; the run itself went on to its end");
    say_error(&error);
    decided(exit_code)
}

/// The code of a run whose output was lost, or whose log or report could not be written.
pub fn decided(exit_code: u8) -> u8 {
    if matches!(exit_code, 0 | EXIT_UNCHANGED) { ErrorKind::Disk.exit_code() } else { exit_code }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_output_fails_only_a_good_run() {
        assert_eq!([0, EXIT_UNCHANGED, 2, 4, 7, 130].map(decided), [7, 7, 2, 4, 7, 130]);
    }

    #[test]
    fn a_log_record_is_one_line_whatever_it_holds() {
        assert_eq!(record_text(b"WARN a\nb\xff\n"), "WARN a\nb\u{fffd}");
        let line = String::from_utf8(json_line(&"\u{9b}\n\u{202e}")).unwrap();
        assert_eq!(line, "\"\\u009b\\n\\u202e\"\n");
    }

    /// Files that may use the standard streams by themselves: this one.
    #[test]
    fn nothing_prints_but_this_module() {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut files = Vec::new();
        for name in std::fs::read_dir(crates).unwrap().flatten() {
            // The testkit's programs are no part of what is installed.
            if name.file_name() != "fullbore-testkit" {
                sources(&name.path().join("src"), &mut files);
            }
        }
        assert!(files.len() > 200, "{} files", files.len());
        // Put together, or this test would find itself.
        let forbidden = ["print!(", "println!(", "io::stdout(", "io::stderr(", "std::io::Stdout", "stdio::stdout("];
        for file in files.iter().filter(|file| !file.ends_with("fullbore/src/stdio.rs")) {
            let text = std::fs::read_to_string(file).unwrap();
            let own = text.split("#[cfg(test)]").next().unwrap_or_default();
            // Examples in documentation may print.
            let own: Vec<&str> = own.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
            let is_test =
                file.file_name().is_some_and(|name| name == "tests.rs") || file.iter().any(|part| part == "tests");
            for word in forbidden.iter().filter(|_| !is_test) {
                let found = own.iter().any(|line| line.contains(word));
                assert!(!found, "{}: {word} belongs into stdio.rs", file.display());
            }
        }
    }

    fn sources(directory: &Path, files: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, files);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                files.push(path);
            }
        }
    }
}
