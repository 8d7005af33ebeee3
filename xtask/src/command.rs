//! Runs other programs, and says which one failed.

use std::io;
use std::process::{Command, Stdio};

/// Runs a command to its end. Its output is ours.
pub fn run(command: &mut Command) -> io::Result<()> {
    let status = command.status().map_err(|error| cannot_run(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(io::Error::other(format!("{}: {status}", line(command)))),
    }
}

/// Runs a command to its end and returns its standard output.
pub fn output(command: &mut Command) -> io::Result<String> {
    let ran = command.stderr(Stdio::inherit()).output().map_err(|error| cannot_run(command, &error))?;
    if !ran.status.success() {
        return Err(io::Error::other(format!("{}: {}", line(command), ran.status)));
    }
    String::from_utf8(ran.stdout)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{}: its output is not UTF-8", line(command))))
}

fn cannot_run(command: &Command, error: &io::Error) -> io::Error {
    let program = command.get_program().display();
    io::Error::new(error.kind(), format!("cannot run {program}: {error}; install it or add it to PATH"))
}

/// The command as a person would type it, without its environment.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}
