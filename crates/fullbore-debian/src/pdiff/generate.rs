//! Finds the edits between two states of an index.
//!
//! The common beginning and end are skipped as bytes. The lines between are numbered, with one number for equal lines,
//! and compared as numbers (`compare`). Memory: both texts, about 40 bytes per line between, and the new text of the
//! result.

mod compare;

use bytes::Bytes;
use imara_diff::{Interner, Token};
use memchr::{memchr_iter, memrchr};
use thiserror::Error;

use super::chain::Builder;
use super::script::has_lone_dot;
use super::{EDITS_MAX, Edits, SCRIPT_BYTES_MAX};
use compare::{Hunk, compare};

/// Maximum number of lines of a text: line numbers have 31 bits.
const LINES_MAX: usize = (i32::MAX - 1) as usize;

/// Reason why no patch can express the difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum GenerateError {
    /// A new line is a lone dot, which would end the text in an ed script.
    #[error("line {line} of the new file is a lone dot, which no patch can express")]
    LoneDot {
        /// Line number, counted from 1.
        line: u64,
    },
    /// The new file has no newline at its end.
    #[error("the last line of the new file has no newline at its end, which no patch can express")]
    NoFinalNewline,
    /// A file or the difference exceeds a limit.
    #[error("the files are too large or too different: {what} beyond the limit of {limit}")]
    TooLarge {
        /// Name of the limit.
        what: &'static str,
        /// Value of the limit.
        limit: usize,
    },
}

/// Finds the edits that turn `old` into `new`.
///
/// ```
/// let edits = fullbore_debian::pdiff::generate(b"a\nb\n", b"a\nc\n")?;
/// let mut script = Vec::new();
/// edits.write_ed(&mut script)?;
/// assert_eq!(script, b"2c\nc\n.\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`GenerateError::LoneDot`] or [`GenerateError::NoFinalNewline`] if no ed script can express `new`;
/// [`GenerateError::TooLarge`] if a file or the difference exceeds a limit.
pub fn generate(old: &[u8], new: &[u8]) -> Result<Edits, GenerateError> {
    if new.last().is_some_and(|last| *last != b'\n') {
        return Err(GenerateError::NoFinalNewline);
    }
    let head = common_head(old, new);
    let (old, new_rest) = (&old[head.bytes..], &new[head.bytes..]);
    let tail = common_tail(old, new_rest);
    let (old, middle) = (&old[..old.len() - tail], &new_rest[..new_rest.len() - tail]);

    let hunks = compare_lines(old, middle)?;
    let mut text = Vec::new();
    let mut changes = Vec::new();
    let mut lines = Lines { text: middle, line: 0, at: 0 };
    for hunk in hunks {
        if changes.len() == EDITS_MAX {
            return Err(GenerateError::TooLarge { what: "number of edits", limit: EDITS_MAX });
        }
        let (from, to) = (lines.offset(hunk.after.start), lines.offset(hunk.after.end));
        let added = &middle[from..to];
        if has_lone_dot(added) {
            let before = head.lines + hunk.after.start as u64;
            return Err(GenerateError::LoneDot { line: before + lone_dot(added) + 1 });
        }
        if text.len() + added.len() > SCRIPT_BYTES_MAX / 2 {
            return Err(GenerateError::TooLarge { what: "bytes of new text", limit: SCRIPT_BYTES_MAX / 2 });
        }
        let start = text.len();
        text.extend_from_slice(added);
        let (line, removed) = (head.lines + hunk.before.start as u64, hunk.before.len() as u64);
        changes.push((line, removed, start..text.len()));
    }
    let text = Bytes::from(text);
    let mut builder = Builder::default();
    for (line, removed, range) in changes {
        builder.keep_to(line);
        builder.remove(removed);
        if !range.is_empty() {
            builder.add_text(&text, 0, range);
        }
    }
    Ok(builder.finish(vec![text]))
}

/// Whole lines at the beginning of both texts that are equal.
struct Head {
    bytes: usize,
    lines: u64,
}

/// Number of bytes compared at once while looking for the first difference. The comparison is vectorised; the differing
/// byte is then looked for in the block.
const COMPARE_BYTES: usize = 4 << 10;

fn common_head(old: &[u8], new: &[u8]) -> Head {
    let equal_blocks =
        old.chunks_exact(COMPARE_BYTES).zip(new.chunks_exact(COMPARE_BYTES)).take_while(|(a, b)| a == b).count();
    let at = equal_blocks * COMPARE_BYTES;
    let same = at + old[at..].iter().zip(&new[at..]).take_while(|(a, b)| a == b).count();
    let bytes = memrchr(b'\n', &old[..same]).map_or(0, |newline| newline + 1);
    Head { bytes, lines: memchr_iter(b'\n', &old[..bytes]).count() as u64 }
}

/// Number of bytes of whole lines at the end of both texts that are equal.
fn common_tail(old: &[u8], new: &[u8]) -> usize {
    let equal_blocks =
        old.rchunks_exact(COMPARE_BYTES).zip(new.rchunks_exact(COMPARE_BYTES)).take_while(|(a, b)| a == b).count();
    let at = equal_blocks * COMPARE_BYTES;
    let (old_rest, new_rest) = (&old[..old.len() - at], &new[..new.len() - at]);
    let same = at + old_rest.iter().rev().zip(new_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let tail = &old[old.len() - same..];
    // The line where the common part begins is common only if it is complete in both texts.
    let begins = |text: &[u8]| text.len() == same || text[text.len() - same - 1] == b'\n';
    if begins(old) && begins(new) {
        return same;
    }
    memchr::memchr(b'\n', tail).map_or(0, |newline| same - newline - 1)
}

fn compare_lines(old: &[u8], new: &[u8]) -> Result<Vec<Hunk>, GenerateError> {
    let count = |text: &[u8]| memchr_iter(b'\n', text).count() + 1;
    let (old_lines, new_lines) = (count(old), count(new));
    if old_lines.max(new_lines) > LINES_MAX {
        return Err(GenerateError::TooLarge { what: "number of lines", limit: LINES_MAX });
    }
    // Most lines are in both texts.
    let mut interner = Interner::new(old_lines.max(new_lines));
    let mut number = |text, lines| -> Vec<Token> {
        let mut tokens = Vec::with_capacity(lines);
        tokens.extend(imara_diff::sources::byte_lines(text).map(|line| interner.intern(line)));
        tokens
    };
    let (before, after) = (number(old, old_lines), number(new, new_lines));
    let different = interner.num_tokens();
    drop(interner);
    Ok(compare(&before, &after, different))
}

/// Positions of line starts, requested in ascending order.
struct Lines<'t> {
    text: &'t [u8],
    line: usize,
    at: usize,
}

impl Lines<'_> {
    fn offset(&mut self, line: usize) -> usize {
        if line > self.line {
            let newline = memchr_iter(b'\n', &self.text[self.at..]).nth(line - self.line - 1);
            // A last line without a newline ends with the text.
            self.at = newline.map_or(self.text.len(), |newline| self.at + newline + 1);
            self.line = line;
        }
        self.at
    }
}

/// Number of lines before the first lone dot, which must exist.
fn lone_dot(text: &[u8]) -> u64 {
    text.split(|byte| *byte == b'\n').take_while(|line| *line != b".").count() as u64
}
