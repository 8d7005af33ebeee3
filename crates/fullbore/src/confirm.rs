//! The question before an installation.

use std::os::fd::AsFd;

use fullbore_engine::run::{CommandError, units};
use fullbore_install::install::Changes;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::stdio;

/// Asks on stderr, and reads a line of stdin.
///
/// # Errors
/// Nobody can be asked, or `wanted` has one.
pub fn confirm(changes: &Changes, wanted: &dyn Fn() -> Result<(), CommandError>) -> Result<bool, CommandError> {
    stdio::say(&changes.packages.join(" "));
    stdio::ask(&format!(
        "{} new, {} upgraded, {} removed; {} to fetch. Continue? [Y/n] ",
        changes.new,
        changes.upgraded,
        changes.removed,
        units::bytes(changes.fetch_bytes),
    ));
    match answer(std::io::stdin(), wanted)?.as_deref().map(str::trim) {
        None => Err(CommandError::usage("cannot ask for confirmation: stdin is not a terminal")
            .hint("pass --yes to install without confirmation")),
        Some(answer) => Ok(answer.is_empty() || answer.starts_with(['y', 'Y'])),
    }
}

/// How often is looked, while nobody answers, whether an answer is still wanted.
const LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// One line, and no byte more: what follows in a pipe may be for scripts. None at the end. An error if it is not
/// `wanted` any more.
fn answer(from: impl AsFd, wanted: &dyn Fn() -> Result<(), CommandError>) -> Result<Option<String>, CommandError> {
    /// A yes or no, generously.
    const BYTES_MAX: usize = 1024;
    let (mut line, mut byte) = (Vec::new(), [0]);
    while line.len() < BYTES_MAX {
        wanted()?;
        // A signal may come between; what cannot be polled can be read at once.
        if matches!(
            rustix::event::poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&LOOK_EVERY)),
            Ok(0) | Err(Errno::INTR)
        ) {
            continue;
        }
        match rustix::io::retry_on_intr(|| rustix::io::read(&from, &mut byte)) {
            Ok(1) if byte[0] == b'\n' => return Ok(Some(String::from_utf8_lossy(&line).into_owned())),
            Ok(1) => line.push(byte[0]),
            _ => break,
        }
    }
    Ok((!line.is_empty()).then(|| String::from_utf8_lossy(&line).into_owned()))
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn one_line_is_taken_as_the_answer() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"yes\nfor a script\nn").unwrap();
        drop(writer);
        let line = || answer(&reader, &|| Ok(())).unwrap();
        assert_eq!(line().as_deref(), Some("yes"));
        assert_eq!(line().as_deref(), Some("for a script"));
        assert_eq!(line().as_deref(), Some("n"));
        assert_eq!(line(), None);
    }
}
