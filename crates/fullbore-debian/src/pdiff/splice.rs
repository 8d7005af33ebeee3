//! Applies edits in one streaming pass over the old file.
//!
//! Line starts are found by counting newlines in whole blocks. Everything between two edits is passed on as one range.

use std::ops::Range;

use memchr::memchr_iter;
use thiserror::Error;

use super::{Edit, Edits};

/// Size of the blocks in which newlines are counted before their positions are looked up. Small enough that the
/// look-up, which every edit needs, is short; large enough that calls take no measurable time (measured: 1 to 16 KiB
/// are alike).
const COUNT_BYTES: usize = 4 << 10;

/// A piece of the new file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// A range of the old bytes passed to [`Splice::feed`].
    Old(Range<usize>),
    /// New bytes from a patch.
    New(&'a [u8]),
}

/// Why edits do not fit the old file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum SpliceError {
    /// An edit lies beyond the end of the file.
    #[error("a patch changes line {line}, the old file has {lines} lines")]
    BeyondEnd {
        /// Number of the last line that the edit needs, counted from 1.
        line: u64,
        /// Number of lines of the old file.
        lines: u64,
    },
    /// An edit appends text to a last line without a newline.
    #[error("a patch appends to line {line}, the last of the old file, which has no newline at its end")]
    NoFinalNewline {
        /// Line number, counted from 1.
        line: u64,
    },
}

/// Applies edits in one pass over the old file.
pub struct Splice<'e> {
    edits: &'e Edits,
    /// Edits that are not started.
    rest: &'e [Edit],
    /// Number of the current line of the old file, counted from 0.
    line: u64,
    /// Whether part of that line was read.
    inside_line: bool,
    /// First old line to keep.
    skip_to: u64,
}

impl<'e> Splice<'e> {
    /// Starts to apply the edits to a file.
    pub fn new(edits: &'e Edits) -> Splice<'e> {
        Splice { edits, rest: &edits.edits, line: 0, inside_line: false, skip_to: 0 }
    }

    /// Takes the next bytes of the old file and calls `out` with the resulting pieces of the new file, in order.
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
                // No edit is left, so lines are not counted any more.
                out(Piece::Old(at..old.len()));
                return;
            };
            let length = self.advance(&old[at..], next.line);
            out(Piece::Old(at..at + length));
            at += length;
        }
    }

    /// Skips the next block of old bytes if no edit touches it, and returns whether it did. A skipped block is copied
    /// unchanged; any other one must be passed to [`Splice::feed`].
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
        // An edit at the line that begins after the block does not change the block.
        if next.line < line || (next.line == line && inside_line) {
            return false;
        }
        (self.line, self.inside_line) = (line, inside_line);
        true
    }

    /// Whether all edits are applied, so that the rest of the old file stays unchanged.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty() && self.skip_to <= self.line
    }

    /// Ends the pass and calls `out` with the last pieces.
    ///
    /// # Errors
    /// Every variant of [`SpliceError`]. The new file is then invalid.
    pub fn finish(mut self, out: &mut impl FnMut(Piece<'_>)) -> Result<(), SpliceError> {
        if self.skip_to <= self.line {
            self.begin(out);
        }
        // A last line without a newline is a line too.
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

    /// Starts the edit at the current position, if there is one.
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

    /// Number of bytes of `old` before the given line (all of them, if it is not reached), which count as passed. The
    /// line must be after the present one.
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
