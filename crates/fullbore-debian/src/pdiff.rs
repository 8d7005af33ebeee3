//! Index patches (pdiffs): what changes between two states of an index, line by line.
//!
//! An archive serves the way from one state of an index to the next as an ed script, as
//! `diff --ed` writes it. Here a script is read strictly ([`Edits::parse`]), any number of
//! steps are joined to one ([`Edits::chain`]), and the result is applied in one streaming
//! pass over the old index ([`Splice`]), which may lie anywhere and be of any size: only the
//! edits are held in memory, their texts as ranges of the patches they came from. The other
//! way round, [`generate`] finds the edits between two states and [`Edits::write_ed`] writes
//! them.
//!
//! A line is what ends with a newline; its bytes may be anything, NUL included. An index
//! whose last line lacks the newline is copied as it is; only text behind that line is
//! refused, because it would continue the line (GNU ed would add the newline, apt would not).

mod chain;
mod generate;
mod script;
mod splice;
#[cfg(test)]
mod tests;

use bytes::Bytes;

pub use generate::{GenerateError, generate};
pub use script::{ScriptError, ScriptFault};
pub use splice::{Piece, Splice, SpliceError};

/// Largest script, in bytes. The largest merged patch of Debian (14 days of `Contents`) has
/// 8 MB; one of a gigabyte would be larger than the index it patches.
pub const SCRIPT_BYTES_MAX: usize = 1 << 30;

/// Most edits of one script, or of steps joined. Fourteen days of Debian's `Contents` are some
/// ten thousand; a million costs about 80 MB of memory.
pub const EDITS_MAX: usize = 1 << 20;

/// Largest line number in a script. `Contents` has 7 million lines; this leaves room for
/// a million times as many, and sums of such numbers cannot overflow.
pub const LINE_MAX: u64 = 1 << 42;

/// Most steps joined by [`Edits::chain`]. Debian lists 56.
pub const STEPS_MAX: usize = 10_000;

/// A sorted list of edits against one old file.
///
/// Cheap to hold and to move: texts are ranges of the patches they came from. The default is
/// no edit at all, which leaves every file as it is.
#[derive(Debug, Clone, Default)]
pub struct Edits {
    /// Ascending, disjoint, and at least one untouched line between two of them.
    edits: Vec<Edit>,
    /// The texts of all edits, in their order.
    slices: Vec<Slice>,
    /// What slices are ranges of.
    buffers: Vec<Bytes>,
}

/// One change: behind `line` lines of the old file, `removed` lines give way to `added` new ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// Lines of the old file before the change; so the first line that is removed, counted from 0.
    pub line: u64,
    /// Lines of the old file that go.
    pub removed: u64,
    /// Lines that come in their place; their bytes are [`Edits::text`].
    pub added: u64,
    /// Slices of the text: from here, so many.
    first_slice: usize,
    slices: usize,
}

impl Edit {
    /// The first line of the old file behind the change, counted from 0.
    pub fn end(&self) -> u64 {
        self.line + self.removed
    }
}

/// Some whole lines in one of the buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    buffer: usize,
    start: usize,
    end: usize,
    lines: u64,
}

impl Edits {
    /// The edits: ascending, disjoint, and with at least one untouched line between two of them.
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// The new lines of an edit of this list, in slices of whole lines.
    ///
    /// # Panics
    /// May panic, or give other lines, when the edit is of another list.
    pub fn text(&self, edit: &Edit) -> impl Iterator<Item = &[u8]> {
        let slices = &self.slices[edit.first_slice..edit.first_slice + edit.slices];
        slices.iter().map(|slice| &self.buffers[slice.buffer][slice.start..slice.end])
    }

    /// Bytes of new text, over all edits.
    pub fn text_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| (slice.end - slice.start) as u64).sum()
    }
}
