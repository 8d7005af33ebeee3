//! The protocol of a copy: what sender and receiver say to each other.
//!
//! Messages travel in frames of bounded length. [`Decoder`] takes bytes and gives messages, and
//! does no I/O; [`encode`] is the other way. Control messages of one direction keep their order;
//! data messages carry numbers and may come in any order, by any connection. The page
//! `docs/design/0010-copy.md` tells the course of a copy.
//!
//! The parser is strict: it refuses what an honest sender never writes, so that whatever lies
//! behind it may rely on names being names and numbers being within their bounds.

mod decode;
mod encode;
mod frame;
mod message;
#[cfg(test)]
mod tests;

pub use decode::WireError;
pub use encode::encode;
pub use frame::Decoder;
pub(crate) use message::with_counters;
pub use message::{
    Account, Answer, Basis, Block, List, Message, Owner, Pack, Packed, Payload, Problem, ProblemKind, Run, Segment,
    Wanted,
};

/// The version of the protocol. Both ends must have the same.
pub const VERSION: u32 = 9;

/// Longest frame of control, in bytes: a list of names with their attributes. A list ends when it is
/// [`LIST_BYTES`] long, and one entry more can hold a path and all its attributes.
pub(crate) const CONTROL_BYTES: usize = 2 << 20;
/// Longest word of one transport to the other: a name and a token, or numbers.
pub(crate) const WAY_BYTES: usize = 4096;
/// A list is sent when its names and attributes are so many bytes.
pub const LIST_BYTES: usize = 128 << 10;
/// Most entries in one list. Few enough that the receiver answers soon.
pub(crate) const LIST_ENTRIES: usize = 1000;
/// Most numbers in one message of what is visible.
pub(crate) const VISIBLE_IDS: usize = 10_000;
/// Paths that `--files-from` may name in all, in bytes. A guess: a few million paths.
pub const PATHS_BYTES: usize = 256 << 20;
/// Content of one record of small files, in bytes.
pub(crate) const PACK_BYTES: usize = 1 << 20;
/// Most files in one record. Empty files fill no record by their content.
pub(crate) const PACK_FILES: usize = 1024;
/// Files below this size are packed; larger ones are cut into blocks.
pub const SMALL_BYTES: u64 = 256 << 10;
/// Length of most files' blocks, in bytes. Large enough that a record's costs do not show, small
/// enough that a megabyte's worth is all that a broken line costs.
pub const BLOCK_BYTES: u64 = 1 << 20;
/// Length of the blocks of files above [`HUGE_BYTES`]: fewer hashes to keep.
pub(crate) const HUGE_BLOCK_BYTES: u64 = 4 << 20;
/// Files above this size have longer blocks.
pub(crate) const HUGE_BYTES: u64 = 256 << 30;
/// Most hashes of old blocks in one message: few, as the sender may be about to read those blocks.
pub(crate) const BASIS_HASHES: usize = 16;
/// Longest frame with data, in bytes.
pub(crate) const DATA_BYTES: usize = HUGE_BLOCK_BYTES as usize + (64 << 10);
/// Parts with data of one block that has holes; a hole is at least a page.
pub(crate) const SEGMENTS: usize = 1024;
/// Largest size of a file, in bytes: Linux' own limit.
pub const FILE_BYTES: u64 = i64::MAX as u64;

/// The length of the blocks of a file of this size.
pub(crate) fn block_bytes(size: u64) -> u64 {
    if size > HUGE_BYTES { HUGE_BLOCK_BYTES } else { BLOCK_BYTES }
}

/// How many blocks a file of this size has.
pub fn blocks(size: u64) -> u64 {
    size.div_ceil(block_bytes(size))
}

/// The length of one block of a file of this size: the last one may be shorter.
pub fn block_len(size: u64, index: u64) -> u64 {
    let length = block_bytes(size);
    index.checked_mul(length).map_or(0, |from| size.saturating_sub(from).min(length))
}
