//! Index patches (pdiffs): the line changes between two states of an index.
//!
//! An archive publishes each change as an ed script in the format of `diff --ed`. [`Edits::parse`] reads a script
//! strictly, and [`Edits::chain`] joins any number of steps into one. [`Splice`] applies the result in one streaming
//! pass over the old index, which can have any size: only the edits are in memory, with their texts as ranges of the
//! patches. In the other direction, [`generate`] finds the edits between two states, and [`Edits::write_ed`] writes
//! them.
//!
//! A line is everything up to a newline; it may contain any bytes, including NUL. An index whose last line has no
//! newline is copied unchanged. A patch that adds text after that line is refused, because the text would continue the
//! line (GNU ed would add the newline, apt would not).

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

/// Maximum size of a script, in bytes. The largest merged patch of Debian (14 days of `Contents`) has 8 MB; one of a
/// gigabyte would exceed the index.
pub const SCRIPT_BYTES_MAX: usize = 1 << 30;

/// Maximum number of edits of a script, or of joined steps. Fourteen days of Debian's `Contents` have some ten
/// thousand; a million takes about 80 MB of memory.
pub(crate) const EDITS_MAX: usize = 1 << 20;

/// Largest line number in a script. `Contents` has 7 million lines; sums of such numbers cannot overflow.
pub(crate) const LINE_MAX: u64 = 1 << 42;

/// Maximum number of steps that [`Edits::chain`] joins. Debian lists 56.
pub const STEPS_MAX: usize = 10_000;

/// A sorted list of edits to an old file.
///
/// Texts are ranges of the patches, so that copies are cheap. The default has no edits and leaves every file
/// unchanged.
///
/// ```
/// use fullbore_debian::pdiff::{Edits, Piece, Splice};
///
/// let old = b"a\nb\nc\n";
/// let edits = Edits::parse(&b"2c\nB\n.\n"[..])?;
/// let mut new = Vec::new();
/// let mut push = |piece: Piece<'_>| match piece {
///     Piece::Old(range) => new.extend_from_slice(&old[range]),
///     Piece::New(text) => new.extend_from_slice(text),
/// };
/// let mut splice = Splice::new(&edits);
/// splice.feed(old, &mut push);
/// splice.finish(&mut push)?;
/// assert_eq!(new, b"a\nB\nc\n");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct Edits {
    /// Ascending and disjoint, with at least one unchanged line between two edits.
    edits: Vec<Edit>,
    /// The texts of all edits, in their order.
    slices: Vec<Slice>,
    /// Patches; slices are ranges of them.
    buffers: Vec<Bytes>,
}

/// One edit: after `line` lines of the old file, `added` new lines replace `removed` old ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edit {
    /// Number of lines of the old file before the edit.
    pub line: u64,
    /// Number of lines that the edit removes.
    pub removed: u64,
    /// Number of new lines; [`Edits::text`] returns their bytes.
    pub added: u64,
    /// Index of the first slice of the text.
    first_slice: usize,
    slices: usize,
}

impl Edit {
    /// Number of the first line of the old file after the edit, counted from 0.
    pub fn end(&self) -> u64 {
        self.line + self.removed
    }
}

/// A range of whole lines in one of the patches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Slice {
    buffer: usize,
    start: usize,
    end: usize,
    lines: u64,
}

impl Edits {
    /// The edits: ascending and disjoint, with at least one unchanged line between two edits.
    pub fn edits(&self) -> &[Edit] {
        &self.edits
    }

    /// Whether there are no edits: both files are equal.
    pub fn is_empty(&self) -> bool {
        self.edits.is_empty()
    }

    /// New lines of an edit of this list, in slices of whole lines.
    ///
    /// # Panics
    /// May panic, or return other lines, for an edit of another list.
    pub fn text(&self, edit: &Edit) -> impl Iterator<Item = &[u8]> {
        let slices = &self.slices[edit.first_slice..edit.first_slice + edit.slices];
        slices.iter().map(|slice| &self.buffers[slice.buffer][slice.start..slice.end])
    }

    /// Number of bytes of new text in all edits.
    pub fn text_bytes(&self) -> u64 {
        self.slices.iter().map(|slice| (slice.end - slice.start) as u64).sum()
    }
}
