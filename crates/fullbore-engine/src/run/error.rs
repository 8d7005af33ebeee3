//! What went wrong, as the person at the terminal and the exit code see it.
//!
//! Commands turn errors of the libraries into a [`CommandError`]: a kind, which
//! gives the exit code, a message naming the thing concerned, lines of context
//! ("from mirror …"), and hints on what to do. Rendering is in one place, here.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::report::Report;
use crate::escape;

/// The kinds of failure a caller can tell apart, each with its exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// Wrong flags, settings or files named by them.
    Usage,
    /// Most is done, but some files are missing or wrong.
    Partial,
    /// No network, or no mirror that answers as it should.
    Network,
    /// A signature or a hash is wrong and no mirror has the right content.
    Verification,
    /// The archive offered is older than what is here, or has expired.
    Stale,
    /// Another run holds the directory.
    Locked,
    /// The disk is full, read-only, or fails, or this user has no access.
    Disk,
    /// Stopped by a signal; running it again goes on.
    Interrupted,
    /// A fault of fullbore itself.
    Internal,
}

/// Exit code of a copy that went well, but for files of the source that were gone before they were read. rsync's.
pub const EXIT_VANISHED: u8 = 24;

/// Exit code of a run that was asked, by `--changed-exit`, to tell that nothing had changed.
pub const EXIT_UNCHANGED: u8 = 10;

impl ErrorKind {
    /// The documented exit code. `Internal` shares 1: a script can do no more about it.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Usage | ErrorKind::Internal => 1,
            ErrorKind::Partial => 2,
            ErrorKind::Network => 3,
            ErrorKind::Verification => 4,
            ErrorKind::Stale => 5,
            ErrorKind::Locked => 6,
            ErrorKind::Disk => 7,
            ErrorKind::Interrupted => 130,
        }
    }

    /// The kind's name in JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            ErrorKind::Usage => "usage",
            ErrorKind::Partial => "partial",
            ErrorKind::Network => "network",
            ErrorKind::Verification => "verification",
            ErrorKind::Stale => "stale",
            ErrorKind::Locked => "locked",
            ErrorKind::Disk => "disk",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Internal => "internal",
        }
    }
}

/// Lines of context shown; the rest is counted. A guess: what fits a screen.
const CONTEXT_SHOWN: usize = 12;

/// How `EACCES` of a file is written: by the time an error reaches a command it is text, in which Rust never
/// translates this message.
const ACCESS_DENIED: &str = "Permission denied (os error 13)";

/// The failure of a command.
///
/// `Display` gives the whole text without a newline at its end:
///
/// ```text
/// error: pool/main/g/glibc/glibc_2.41.orig.tar.xz: size 18226112, index says 18520836
///   from mirror ftp.example.org, after 2 tries
/// hint: this mirror may be half-way through an update; --origin-only avoids it
/// ```
#[derive(Debug)]
pub struct CommandError {
    /// Kind of the error, which decides the exit code.
    pub kind: ErrorKind,
    /// What happened to which thing; one line, no full stop.
    pub message: String,
    /// Further facts about the error, one line each.
    pub context: Vec<String>,
    /// What the user could do about the error, one sentence each.
    pub hints: Vec<String>,
    /// What was done until then, when there is something to report.
    pub report: Option<Box<Report>>,
}

impl CommandError {
    /// A failure of this kind.
    ///
    /// A file that this user may not read or write has one exit code and one hint in every command, whether it was
    /// named by a flag, is part of the source or lies at the destination.
    pub fn new(kind: ErrorKind, message: impl fmt::Display) -> Self {
        let (message, mut kind, mut hints) = (message.to_string(), kind, Vec::new());
        if matches!(kind, ErrorKind::Usage | ErrorKind::Disk) && message.contains(ACCESS_DENIED) {
            kind = ErrorKind::Disk;
            hints.push("run as a user who has access to it, or change its permissions".to_owned());
        }
        CommandError { kind, message, context: Vec::new(), hints, report: None }
    }

    /// A failure made from an error and all its sources, joined by colons.
    ///
    /// A source whose text the outer error has already taken over is not repeated.
    pub fn from_error(kind: ErrorKind, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            source = inner.source();
        }
        CommandError::new(kind, message)
    }

    /// An error about flags or settings, with exit code 2.
    pub fn usage(message: impl fmt::Display) -> Self {
        CommandError::new(ErrorKind::Usage, message)
    }

    /// A failed operation on a local file; full, quota and read-only are of kind `Disk` too.
    pub fn disk(path: &std::path::Path, error: &std::io::Error) -> Self {
        CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", path.display()))
    }

    /// Adds a line to the facts about the error.
    #[must_use]
    pub fn context(mut self, line: impl fmt::Display) -> Self {
        self.context.push(line.to_string());
        self
    }

    /// Adds a sentence that says what the user could do.
    #[must_use]
    pub fn hint(mut self, line: impl fmt::Display) -> Self {
        self.hints.push(line.to_string());
        self
    }

    /// Names the directory worked on, where a refusal of the disk does not: paths are told from there.
    #[must_use]
    pub fn within(self, directory: &std::path::Path) -> Self {
        let shown = directory.display().to_string();
        if self.kind != ErrorKind::Disk || self.message.contains(&shown) {
            return self;
        }
        self.context(format_args!("in {shown}"))
    }

    /// Adds what was done until the failure.
    #[must_use]
    pub fn with_report(mut self, report: Report) -> Self {
        self.report = Some(Box::new(report));
        self
    }

    /// The documented exit code.
    pub fn exit_code(&self) -> u8 {
        self.kind.exit_code()
    }
}

impl CommandError {
    /// The text, line by line. Foreign text in a line is as it came: the writer of lines escapes it.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("error: {}", self.message)];
        lines.extend(self.context.iter().take(CONTEXT_SHOWN).map(|line| format!("  {line}")));
        if let Some(more) = self.context.len().checked_sub(CONTEXT_SHOWN).filter(|more| *more > 0) {
            lines.push(format!("  and {more} more"));
        }
        lines.extend(self.hints.iter().map(|hint| format!("hint: {hint}")));
        lines
    }
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines = self.lines();
        let escaped: Vec<_> = lines.iter().map(|line| escape::line(line)).collect();
        f.write_str(&escaped.join("\n"))
    }
}

impl std::error::Error for CommandError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_thing_source_and_remedy() {
        let error = CommandError::new(
            ErrorKind::Verification,
            "pool/main/g/glibc/glibc_2.41.orig.tar.xz: size 18226112, index says 18520836",
        )
        .context("from mirror ftp.example.org, after 2 tries (also: mirror.example.net timed out)")
        .hint("this mirror may be half-way through an update; --origin-only avoids it");
        assert_eq!(
            error.to_string(),
            "error: pool/main/g/glibc/glibc_2.41.orig.tar.xz: size 18226112, index says 18520836\n  \
             from mirror ftp.example.org, after 2 tries (also: mirror.example.net timed out)\n\
             hint: this mirror may be half-way through an update; --origin-only avoids it"
        );
        assert_eq!(error.exit_code(), 4);
    }

    #[test]
    fn control_characters_from_outside_are_escaped() {
        let error = CommandError::new(ErrorKind::Network, "host \u{1b}[31mred\nerror: forged");
        assert_eq!(error.to_string(), "error: host \\u{1b}[31mred\\nerror: forged");
    }

    #[test]
    fn long_context_is_counted() {
        let error = (0..20).fold(CommandError::usage("x"), |error, i| error.context(i));
        assert!(error.to_string().ends_with("\n  11\n  and 8 more"));
    }

    #[test]
    fn sources_are_joined_once() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read settings")]
        struct Outer(#[source] std::io::Error);
        let error = Outer(std::io::Error::from_raw_os_error(2));
        let error = CommandError::from_error(ErrorKind::Usage, &error);
        assert_eq!(error.message, "cannot read settings: No such file or directory (os error 2)");
    }

    #[test]
    fn a_file_without_access_has_one_exit_code_and_one_hint() {
        let denied = std::io::Error::from(rustix::io::Errno::ACCESS);
        for error in [
            CommandError::usage(format_args!("cannot read x: {denied}")),
            CommandError::disk(std::path::Path::new("x"), &denied),
            CommandError::from_error(ErrorKind::Usage, &denied),
        ] {
            assert_eq!((error.exit_code(), error.hints.len()), (7, 1), "{error}");
        }
        let ssh = CommandError::new(ErrorKind::Network, "host: Permission denied (publickey)");
        assert_eq!((ssh.exit_code(), ssh.hints.len()), (3, 0));
    }
}
