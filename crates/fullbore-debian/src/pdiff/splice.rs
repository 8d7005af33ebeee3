//! One streaming pass over the old file: where a line begins is found by counting newlines,
//! whole blocks at a time, and everything between two edits is handed on as one range.

use std::ops::Range;

use memchr::memchr_iter;
use thiserror::Error;

use super::{Edit, Edits};

/// Bytes in which newlines are counted before their positions are looked at. Small enough that
/// the second look, which every edit needs, is short; large enough that calls do not show
/// (measured: 1 to 16 KiB are alike).
const COUNT_BYTES: usize = 4 << 10;

/// A piece of the new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// This range of the old bytes that were just fed.
    Old(Range<usize>),
    /// These bytes, out of a patch.
    New(&'a [u8]),
}

/// The old file does not fit the edits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SpliceError {
    /// An edit needs more lines than there are.
    #[error("a patch changes line {line}, the old file has {lines} lines")]
    BeyondEnd {
        /// The last line that the edit needs, counted from 1.
        line: u64,
        /// Lines of the old file.
        lines: u64,
    },
    /// Text comes behind a last line that has no newline.
    #[error("a patch appends to line {line}, the last of the old file, which has no newline at its end")]
    NoFinalNewline {
        /// Counted from 1.
        line: u64,
    },
}

/// The state of one pass: which line the old file has reached, and which edit is next.
pub struct Splice<'e> {
    edits: &'e Edits,
    /// Edits that have not begun.
    rest: &'e [Edit],
    /// Newlines of the old file so far, so the line we are in, counted from 0.
    line: u64,
    /// Whether some bytes of that line have passed.
    inside_line: bool,
    /// Old lines are dropped until this one.
    skip_to: u64,
}

impl<'e> Splice<'e> {
    /// A pass that has seen nothing yet.
    pub fn new(edits: &'e Edits) -> Splice<'e> {
        Splice { edits, rest: &edits.edits, line: 0, inside_line: false, skip_to: 0 }
    }

    /// Gives the pieces of the new file that follow from this piece of the old one, in order.
    pub fn feed(&mut self, old: &[u8], out: &mut impl FnMut(Piece<'_>)) {
        let mut at = 0;
        loop {
            if self.skip_to <= self.line {
                self.begin(out);
            }
            if at == old.len() {
                return;
            }
            if self.skip_to > self.line {
                at += self.advance(&old[at..], self.skip_to);
                continue;
            }
            let Some(next) = self.rest.first() else {
                // Nothing comes any more: no need to count.
                out(Piece::Old(at..old.len()));
                return;
            };
            let length = self.advance(&old[at..], next.line);
            out(Piece::Old(at..at + length));
            at += length;
        }
    }

    /// Whether no edit touches the block of old bytes that comes next: if so it has passed and
    /// may be copied as it is; if not, nothing has changed, and it is to be fed.
    pub fn pass_untouched(&mut self, old: &[u8]) -> bool {
        if self.skip_to > self.line {
            return old.is_empty();
        }
        let Some(next) = self.rest.first() else {
            return true;
        };
        let Some(last) = old.last() else {
            return true;
        };
        let inside_line = *last != b'\n';
        let line = self.line + memchr_iter(b'\n', old).count() as u64;
        // An edit at the very line that begins behind the block does not touch it.
        if next.line < line || (next.line == line && inside_line) {
            return false;
        }
        (self.line, self.inside_line) = (line, inside_line);
        true
    }

    /// Whether all edits are made: whatever comes of the old file stays as it is.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty() && self.skip_to <= self.line
    }

    /// Gives what comes at the end of the file.
    ///
    /// # Errors
    /// When an edit lies beyond the last line, or would continue a last line without newline;
    /// then what was given before is worth nothing.
    pub fn finish(mut self, out: &mut impl FnMut(Piece<'_>)) -> Result<(), SpliceError> {
        if self.skip_to <= self.line {
            self.begin(out);
        }
        // A last line without its newline is a line all the same.
        let lines = self.line + u64::from(self.inside_line);
        let (line, removed) = match self.rest.first() {
            _ if self.skip_to > lines => (self.skip_to, 1),
            Some(edit) => (edit.line.max(edit.end()), edit.removed),
            None => return Ok(()),
        };
        if self.inside_line && removed == 0 && line == lines {
            return Err(SpliceError::NoFinalNewline { line });
        }
        Err(SpliceError::BeyondEnd { line, lines })
    }

    /// Begins the edit at the present position if there is one; there is never a second one at
    /// the same place.
    fn begin(&mut self, out: &mut impl FnMut(Piece<'_>)) {
        if self.inside_line {
            return;
        }
        let Some((edit, rest)) = self.rest.split_first().filter(|(edit, _)| edit.line == self.line) else {
            return;
        };
        for text in self.edits.text(edit) {
            out(Piece::New(text));
        }
        (self.rest, self.skip_to) = (rest, edit.end());
    }

    /// How many bytes of `old` lie before the given line (all, if it is not reached); they are
    /// counted as passed. The line is behind the present one.
    fn advance(&mut self, old: &[u8], line: u64) -> usize {
        let mut at = 0;
        for block in old.chunks(COUNT_BYTES) {
            let newlines = memchr_iter(b'\n', block).count() as u64;
            let wanted = line - self.line;
            if newlines >= wanted {
                let position = memchr_iter(b'\n', block).nth((wanted - 1) as usize).expect("counted above");
                (self.line, self.inside_line) = (line, false);
                return at + position + 1;
            }
            self.line += newlines;
            at += block.len();
        }
        self.inside_line = old.last().is_some_and(|last| *last != b'\n');
        at
    }
}
