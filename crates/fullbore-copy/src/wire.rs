//! The protocol of a copy between sender and receiver.
//!
//! Messages travel in frames of bounded length. [`Decoder`] turns bytes into messages and does no I/O; [`encode`] is
//! the inverse. Control messages of one direction keep their order. Data messages are numbered, and may arrive in any
//! order, over any connection. The page `docs/design/0010-copy.md` describes the course of a copy.
//!
//! The parser is strict: it rejects everything that an honest sender never writes. So later code may rely on valid
//! names, and on numbers within their bounds.

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

/// Version of the protocol. Both ends must have the same.
pub const VERSION: u32 = 9;

/// Longest control frame in bytes: a list of names with their attributes. A list ends once it has [`LIST_BYTES`], and
/// one more entry can have a path and all its attributes.
pub(crate) const CONTROL_BYTES: usize = 2 << 20;
/// Longest message between the transports, in bytes: a name and a token, or numbers.
pub(crate) const WAY_BYTES: usize = 4096;
/// A list is sent once its names and attributes have this number of bytes.
pub const LIST_BYTES: usize = 128 << 10;
/// Most entries in one list. Few enough for early answers.
pub(crate) const LIST_ENTRIES: usize = 1000;
/// Most numbers in one message about visible files.
pub(crate) const VISIBLE_IDS: usize = 10_000;
/// Most bytes in all paths of `--files-from`. A guess: a few million paths.
pub const PATHS_BYTES: usize = 256 << 20;
/// Most bytes of content in one record of small files.
pub(crate) const PACK_BYTES: usize = 1 << 20;
/// Most files in one record, as empty files never fill it.
pub(crate) const PACK_FILES: usize = 1024;
/// Files below this size in bytes are packed; larger ones are cut into blocks.
pub const SMALL_BYTES: u64 = 256 << 10;
/// Length of most files' blocks, in bytes. Large enough to hide the cost of a record, small enough that a lost
/// connection costs no more than this per record.
pub const BLOCK_BYTES: u64 = 1 << 20;
/// Length of the blocks of files above [`HUGE_BYTES`], in bytes: fewer hashes to keep.
pub(crate) const HUGE_BLOCK_BYTES: u64 = 4 << 20;
/// Files above this size in bytes have longer blocks.
pub(crate) const HUGE_BYTES: u64 = 256 << 30;
/// Most hashes of old blocks in one message. Few, as the sender may be about to read those blocks.
pub(crate) const BASIS_HASHES: usize = 16;
/// Longest data frame in bytes.
pub(crate) const DATA_BYTES: usize = HUGE_BLOCK_BYTES as usize + (64 << 10);
/// Most data segments of a block with holes; a hole is at least a page.
pub(crate) const SEGMENTS: usize = 1024;
/// Largest size of a file in bytes: the limit of Linux.
pub const FILE_BYTES: u64 = i64::MAX as u64;

/// Length in bytes of the blocks of a file of this size.
pub(crate) fn block_bytes(size: u64) -> u64 {
    if size > HUGE_BYTES { HUGE_BLOCK_BYTES } else { BLOCK_BYTES }
}

/// Number of blocks of a file of this size.
pub fn blocks(size: u64) -> u64 {
    size.div_ceil(block_bytes(size))
}

/// Length in bytes of one block of a file of this size; the last one may be shorter.
pub fn block_len(size: u64, index: u64) -> u64 {
    let length = block_bytes(size);
    index.checked_mul(length).map_or(0, |from| size.saturating_sub(from).min(length))
}
