//! Ed scripts: a strict parser, and a writer of the format of `diff --ed`.
//!
//! The accepted subset is that of apt: `N[,M]` and `a`, `c` or `d`, from the end of the file to its beginning. After
//! `a` and `c` follow lines of text up to a single dot. A text line that is a single dot cannot be written that way.
//! For it `diff --ed` writes two dots and `s/.//`; this is read here but never written, because apt refuses it.
//!
//! Everything else is refused, because the full index can always be fetched instead. Each command is a complete line,
//! so a truncated script is detected unless the cut is between two commands; its hash detects that.

use std::fmt;
use std::io::{self, Write};

use bytes::Bytes;
use memchr::{memchr, memchr_iter, memmem, memrchr};
use thiserror::Error;

use super::chain::Builder;
use super::{EDITS_MAX, Edits, LINE_MAX, SCRIPT_BYTES_MAX, STEPS_MAX};

/// Longest command line, in bytes: two numbers of 13 digits, a comma and a letter, and leading zeros that no generator
/// writes.
const COMMAND_BYTES_MAX: usize = 64;

/// Maximum number of text ranges in a script: with `s/.//` in every command there are two of each.
pub(super) const TEXTS_MAX: usize = 2 * EDITS_MAX;

/// Error in a script, with its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScriptError {
    /// Number of the step, counted from 0.
    pub step: usize,
    /// Line number in the script, counted from 1; 0 if the error concerns no single line.
    pub line: u64,
    /// Offset of that line, in bytes.
    pub offset: usize,
    /// What is wrong with the script at that line.
    pub fault: ScriptFault,
}

impl fmt::Display for ScriptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {} (byte {}): ", self.line, self.offset)?;
        }
        self.fault.fmt(f)
    }
}

impl std::error::Error for ScriptError {}

/// Kinds of faults in an ed script.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ScriptFault {
    /// A line is not a command: `N[,M]` with `a`, `c` or `d`.
    #[error("{command:?} is not a patch command (N[,M] with a, c or d)")]
    Command {
        /// The line, shortened and escaped.
        command: String,
    },
    /// A line number exceeds `LINE_MAX`.
    #[error("a line number beyond {LINE_MAX}")]
    Number,
    /// Line 0, which is valid in `0a` only.
    #[error("line 0 is changed or deleted")]
    LineZero,
    /// A range ends before it starts, such as `5,3d`.
    #[error("the range {first},{last} ends before it begins")]
    Backwards {
        /// First number.
        first: u64,
        /// Second number.
        last: u64,
    },
    /// Commands go from the end of the file to its beginning and may not overlap.
    #[error("line {last} is changed after line {before} was; commands must go from the end to the beginning")]
    Order {
        /// Last line of this command.
        last: u64,
        /// First line of the command before it.
        before: u64,
    },
    /// The script is incomplete.
    #[error("the script is incomplete: {0}")]
    Cut(&'static str),
    /// `a` or `c` with no text. Programs disagree on its effect.
    #[error("empty text")]
    NoText,
    /// `s/.//` after text that does not end with a line of two dots.
    #[error("s/.// behind text that does not end with a line of two dots")]
    Substitute,
    /// The script exceeds a limit.
    #[error("{what} beyond the limit of {limit}")]
    TooLarge {
        /// Name of the limit.
        what: &'static str,
        /// Value of the limit.
        limit: usize,
    },
}

impl ScriptFault {
    /// Makes an error that concerns no single line.
    pub(super) fn of_step(self, step: usize) -> ScriptError {
        ScriptError { step, line: 0, offset: 0, fault: self }
    }
}

/// One command; texts are ranges of the script.
struct Command {
    /// Number of lines before the change.
    line: u64,
    removed: u64,
    /// Range of bytes; more than one per command only around `s/.//`.
    text: std::ops::Range<usize>,
}

/// Meaning of a command line: lines before the change, lines to remove, whether text follows.
type Head = (u64, u64, bool);

impl Edits {
    /// Parses an uncompressed ed script, as `diff --ed` writes it.
    ///
    /// # Errors
    /// A [`ScriptError`] with line and offset for anything outside the subset.
    pub fn parse(script: impl Into<Bytes>) -> Result<Edits, ScriptError> {
        let script = script.into();
        let mut parser = Parser { script: &script, at: 0, texts: Vec::new() };
        let too_large = |what, limit| ScriptFault::TooLarge { what, limit };
        if script.len() > SCRIPT_BYTES_MAX {
            return Err(too_large("size in bytes", SCRIPT_BYTES_MAX).of_step(0));
        }
        let mut commands: Vec<Command> = Vec::new();
        let mut before = LINE_MAX + 1;
        while parser.at < script.len() {
            let start = parser.at;
            let locate = |fault| error_at(&script, start, fault);
            let command = parser.command().map_err(|(offset, fault)| error_at(&script, offset, fault))?;
            if command.line + command.removed > before {
                let (last, before) = (command.line + command.removed.max(1), before + 1);
                return Err(locate(ScriptFault::Order { last, before }));
            }
            before = command.line;
            if commands.len() == EDITS_MAX {
                return Err(locate(too_large("number of commands", EDITS_MAX)));
            }
            commands.push(command);
        }
        let texts = parser.texts;
        let mut builder = Builder::default();
        for command in commands.iter().rev() {
            builder.keep_to(command.line);
            builder.remove(command.removed);
            for text in &texts[command.text.clone()] {
                builder.add_text(&script, 0, text.clone());
            }
        }
        Ok(builder.finish(vec![script]))
    }

    /// Writes the edits as an ed script, like `diff --ed`: from the end to the start.
    ///
    /// # Errors
    /// The error of the writer, or [`io::ErrorKind::InvalidInput`] for a new line that is a lone dot. Only a script
    /// with `s/.//` can contain one: apt could not read it.
    pub fn write_ed(&self, out: &mut impl Write) -> io::Result<()> {
        for edit in self.edits.iter().rev() {
            let (first, last) = (edit.line + 1, edit.end());
            match (edit.removed, edit.added) {
                (0, 0) => continue,
                (0, _) => writeln!(out, "{}a", edit.line)?,
                (1, 0) => writeln!(out, "{first}d")?,
                (_, 0) => writeln!(out, "{first},{last}d")?,
                (1, _) => writeln!(out, "{first}c")?,
                (_, _) => writeln!(out, "{first},{last}c")?,
            }
            if edit.added > 0 {
                for text in self.text(edit) {
                    if has_lone_dot(text) {
                        let message = "a line of the new text is a lone dot, which no patch can express";
                        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
                    }
                    out.write_all(text)?;
                }
                out.write_all(b".\n")?;
            }
        }
        Ok(())
    }
}

/// Whether any of these whole lines is a lone dot.
pub(super) fn has_lone_dot(text: &[u8]) -> bool {
    text.starts_with(b".\n") || memmem::find(text, b"\n.\n").is_some()
}

struct Parser<'s> {
    script: &'s [u8],
    at: usize,
    /// Ranges of text in the script, of all commands.
    texts: Vec<std::ops::Range<usize>>,
}

impl Parser<'_> {
    /// Reads the next command with its text; there must be at least one byte left. An error comes with its offset.
    fn command(&mut self) -> Result<Command, (usize, ScriptFault)> {
        let start = self.at;
        let line = self.line(COMMAND_BYTES_MAX);
        let (line, removed, has_text) =
            line.and_then(|line| head(&self.script[line])).map_err(|fault| (start, fault))?;
        let first_text = self.texts.len();
        if has_text {
            self.text()?;
        }
        Ok(Command { line, removed, text: first_text..self.texts.len() })
    }

    /// Reads the next line, without its newline.
    fn line(&mut self, bytes_max: usize) -> Result<std::ops::Range<usize>, ScriptFault> {
        let start = self.at;
        let rest = &self.script[start..];
        let window = &rest[..rest.len().min(bytes_max + 1)];
        match memchr(b'\n', window) {
            Some(length) => {
                self.at = start + length + 1;
                Ok(start..start + length)
            }
            None if rest.len() <= bytes_max => Err(ScriptFault::Cut("its last line has no newline")),
            None => Err(unknown(window)),
        }
    }

    /// Reads lines of text up to a lone dot, and further text after `s/.//`.
    fn text(&mut self) -> Result<(), (usize, ScriptFault)> {
        loop {
            let start = self.at;
            let rest = &self.script[start..];
            if rest.starts_with(b".\n") {
                return Err((start, ScriptFault::NoText));
            }
            let Some(length) = memmem::find(rest, b"\n.\n").map(|newline| newline + 1) else {
                return Err((self.script.len(), ScriptFault::Cut("no lone dot ends its last text")));
            };
            let end = start + length;
            self.at = end + 2;
            if !self.take(b"s/.//\n") {
                return self.push(start..end);
            }
            // The last line is two dots, of which one is removed.
            let last = memrchr(b'\n', &rest[..length - 1]).map_or(0, |newline| newline + 1);
            if &rest[last..length] != b"..\n" {
                return Err((end + 2, ScriptFault::Substitute));
            }
            self.push(start..start + last)?;
            self.push(start + last + 1..end)?;
            if !self.take(b"a\n") {
                return Ok(());
            }
        }
    }

    fn push(&mut self, text: std::ops::Range<usize>) -> Result<(), (usize, ScriptFault)> {
        if text.is_empty() {
            return Ok(());
        }
        // One command can have any number of texts, separated by `s/.//`.
        if self.texts.len() == TEXTS_MAX {
            return Err((text.start, ScriptFault::TooLarge { what: "number of texts", limit: TEXTS_MAX }));
        }
        self.texts.push(text);
        Ok(())
    }

    fn take(&mut self, what: &[u8]) -> bool {
        let found = self.script[self.at..].starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }
}

/// Parses `N[,M]` and a letter.
fn head(line: &[u8]) -> Result<Head, ScriptFault> {
    let Some((letter, numbers)) = line.split_last() else {
        return Err(unknown(line));
    };
    let (first, last) = match memchr(b',', numbers) {
        Some(comma) => (number(&numbers[..comma], line)?, number(&numbers[comma + 1..], line)?),
        None => {
            let number = number(numbers, line)?;
            (number, number)
        }
    };
    if last < first {
        return Err(ScriptFault::Backwards { first, last });
    }
    match letter {
        // Text is appended after one line. Ed uses the last line of a range, and diff writes no range.
        b'a' if first == last => Ok((first, 0, true)),
        b'c' | b'd' if first == 0 => Err(ScriptFault::LineZero),
        b'c' => Ok((first - 1, last - first + 1, true)),
        b'd' => Ok((first - 1, last - first + 1, false)),
        _ => Err(unknown(line)),
    }
}

fn number(digits: &[u8], line: &[u8]) -> Result<u64, ScriptFault> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(unknown(line));
    }
    let value = digits.iter().try_fold(0_u64, |value, digit| {
        // Checked at each digit, so that the number does not overflow.
        Some(value * 10 + u64::from(digit - b'0')).filter(|value| *value <= LINE_MAX)
    });
    value.ok_or(ScriptFault::Number)
}

/// Maximum number of bytes of a wrong command in an error.
const SHOWN_BYTES: usize = 30;

fn unknown(line: &[u8]) -> ScriptFault {
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    ScriptFault::Command { command: String::from_utf8_lossy(&line[..line.len().min(SHOWN_BYTES)]).into_owned() }
}

fn error_at(script: &[u8], offset: usize, fault: ScriptFault) -> ScriptError {
    let line = memchr_iter(b'\n', &script[..offset]).count() as u64 + 1;
    ScriptError { step: 0, line, offset, fault }
}

/// The error for more steps than [`STEPS_MAX`].
pub(super) fn too_many_steps() -> ScriptError {
    ScriptFault::TooLarge { what: "number of patches", limit: STEPS_MAX }.of_step(STEPS_MAX)
}
