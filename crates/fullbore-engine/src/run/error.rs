//! What went wrong, as the person at the terminal and the exit code see it.
//!
//! Commands turn errors of the libraries into a [`CommandError`]: a kind, which
//! gives the exit code, a message naming the thing concerned, lines of context
//! ("from mirror …"), and hints on what to do. Rendering is in one place, here.

use std::path::Path;
use std::{fmt, io};

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

/// The hint for `EACCES`. `EPERM` has no hint, because it has too many causes: file systems without links or owners,
/// containers, sandboxes, immutable files.
const NO_ACCESS: &str = "run as a user who has access to it, or change its permissions";

/// Whether this text tells of `EACCES`. By the time an error reaches a command, it is often text, in which Rust never
/// translates this message.
fn says_no_access(text: &str) -> bool {
    text.contains("Permission denied (os error 13)")
}

fn is_no_access(error: &io::Error) -> bool {
    match error.raw_os_error() {
        Some(_) => says_no_access(&error.to_string()),
        None => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

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
        let message = message.to_string();
        let is_denied = says_no_access(&message);
        CommandError { kind, message, context: Vec::new(), hints: Vec::new(), report: None }.without_access(is_denied)
    }

    /// The same failure with the kind and the hint of a refusal, if it was one of this machine.
    fn without_access(mut self, is_denied: bool) -> Self {
        if !is_denied {
            return self;
        }
        match self.kind {
            ErrorKind::Usage | ErrorKind::Locked | ErrorKind::Internal | ErrorKind::Disk => {
                self.kind = ErrorKind::Disk;
            }
            // What a server or an archive wrote may be part of the text: it gets a hint, and no other exit code.
            ErrorKind::Partial | ErrorKind::Verification => {}
            // connect(2) says the same of a packet that a firewall refuses.
            ErrorKind::Network | ErrorKind::Stale | ErrorKind::Interrupted => return self,
        }
        if !self.hints.iter().any(|given| given == NO_ACCESS) {
            self.hints.push(NO_ACCESS.to_owned());
        }
        self
    }

    /// A failure made from an error and all its sources, joined by colons.
    ///
    /// A source whose text the outer error has already taken over is not repeated.
    pub fn from_error(kind: ErrorKind, error: &(dyn std::error::Error + 'static)) -> Self {
        let mut message = error.to_string();
        let mut is_denied = is_denied_by_kernel(error);
        let mut source = error.source();
        while let Some(inner) = source {
            let text = inner.to_string();
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            is_denied |= is_denied_by_kernel(inner);
            source = inner.source();
        }
        CommandError::new(kind, message).without_access(is_denied)
    }

    /// An error about flags or settings, with exit code 1.
    pub fn usage(message: impl fmt::Display) -> Self {
        CommandError::new(ErrorKind::Usage, message)
    }

    /// A failed operation on a local file, where it is not known which one: reading or writing. `stdin`, `stdout` and
    /// `stderr` name the standard streams. Full, quota and read-only are of kind `Disk` too.
    pub fn disk(path: &Path, error: &io::Error) -> Self {
        let verb = match path.to_str() {
            Some("stdin") => "read",
            Some("stdout" | "stderr") => "write to",
            _ => "read or write",
        };
        CommandError::cannot(verb, path, error)
    }

    /// A failed operation on a local file: `cannot VERB PATH: reason`.
    pub fn cannot(verb: &str, path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot {verb} {}: {error}", path.display());
        CommandError::new(ErrorKind::Disk, message).without_access(is_no_access(error))
    }

    /// A file that the user named and that cannot be read: `cannot read PATH: reason`.
    pub fn unreadable(path: &Path, error: &io::Error) -> Self {
        let message = format!("cannot read {}: {error}", path.display());
        CommandError::new(ErrorKind::Usage, message).without_access(is_no_access(error))
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
    pub fn within(self, directory: &Path) -> Self {
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

/// Whether an error is a refusal of the kernel. One that a library has made, such as that of a store, has no number.
fn is_denied_by_kernel(error: &(dyn std::error::Error + 'static)) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.raw_os_error().is_some() && is_no_access(error))
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
        let escaped: Vec<_> = lines.iter().map(|line| escape::message(line)).collect();
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
        let error = CommandError::usage("https://me:secret@example.org/x: a wrong address");
        assert_eq!(error.to_string(), "error: https://example.org/x: a wrong address");
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
        let denied = io::Error::from(rustix::io::Errno::ACCESS);
        for error in [
            CommandError::usage(format_args!("cannot read x: {denied}")),
            CommandError::new(ErrorKind::Internal, format_args!("cannot open x: {denied}")),
            CommandError::new(ErrorKind::Locked, format_args!("cannot lock x: {denied}")),
            CommandError::disk(Path::new("x"), &denied),
            CommandError::cannot("write", Path::new("x"), &denied),
            CommandError::unreadable(Path::new("x"), &denied),
            CommandError::from_error(ErrorKind::Usage, &denied),
        ] {
            assert_eq!((error.exit_code(), error.hints.len()), (7, 1), "{error}");
        }
        // Most is done, or a signature was wrong: that is what a script has to know.
        for kind in [ErrorKind::Partial, ErrorKind::Verification] {
            let error = CommandError::new(kind, format_args!("x: {denied}"));
            assert_eq!((error.kind, error.hints.len()), (kind, 1), "{error}");
        }
        let firewall = CommandError::new(ErrorKind::Network, format_args!("host: cannot connect: {denied}"));
        assert_eq!((firewall.exit_code(), firewall.hints.len()), (3, 0));
        let not_permitted = io::Error::from(rustix::io::Errno::PERM);
        let error = CommandError::unreadable(Path::new("x"), &not_permitted);
        assert_eq!((error.exit_code(), error.hints.len()), (1, 0), "{error}");
        let other = CommandError::usage("x: No such device or address (os error 6)");
        assert_eq!((other.exit_code(), other.hints.len()), (1, 0));
        let ssh = CommandError::new(ErrorKind::Network, "host: Permission denied (publickey)");
        assert_eq!((ssh.exit_code(), ssh.hints.len()), (3, 0));
    }

    #[test]
    fn a_refusal_is_known_by_its_kind_and_not_only_by_its_text() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read settings")]
        struct Outer(#[source] io::Error);
        let error = CommandError::from_error(ErrorKind::Usage, &Outer(rustix::io::Errno::ACCESS.into()));
        assert_eq!((error.exit_code(), error.hints.len()), (7, 1), "{error}");
        let strange = io::Error::new(io::ErrorKind::PermissionDenied, "a link of another user is not followed");
        let error = CommandError::cannot("write", Path::new("x"), &strange);
        assert_eq!((error.exit_code(), error.hints.len()), (7, 1), "{error}");
        // A store's refusal is none of this machine.
        let error = CommandError::from_error(ErrorKind::Verification, &Outer(strange));
        assert_eq!((error.exit_code(), error.hints.len()), (4, 0), "{error}");
    }

    #[test]
    fn an_error_of_the_disk_is_a_sentence() {
        let full = io::Error::from(rustix::io::Errno::NOSPC);
        let said = |error: CommandError| error.message.replace(": No space left on device (os error 28)", "");
        assert_eq!(said(CommandError::disk(Path::new("/x/y"), &full)), "cannot read or write /x/y");
        assert_eq!(said(CommandError::disk(Path::new("stdout"), &full)), "cannot write to stdout");
        assert_eq!(said(CommandError::disk(Path::new("stdin"), &full)), "cannot read stdin");
        assert_eq!(said(CommandError::cannot("write", Path::new("/x/y"), &full)), "cannot write /x/y");
        let absent = io::Error::from(rustix::io::Errno::NOENT);
        let error = CommandError::unreadable(Path::new("/x/y"), &absent);
        assert_eq!((error.exit_code(), error.hints.len()), (1, 0), "{error}");
        assert!(error.message.starts_with("cannot read /x/y: No such file"), "{error}");
    }
}
