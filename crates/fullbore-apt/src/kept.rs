//! The forms in which apt keeps indexes, cut into frames that can be used again.
//!
//! A patch changes a few places of an index. In a compressed file everything behind the
//! first of them would have to be compressed again, so we write compressed files in frames
//! of some 256 KiB of text, each of which can be decompressed alone: members of gzip, frames
//! of zstd, blocks in one stream of xz, independent blocks of LZ4. Frames end at line ends
//! and may have any length, so that an insertion changes one frame and shifts none.
//!
//! Where frames lie is told by the file itself, since apt deletes files that it does not know
//! from its directory: by an extra field in each gzip header, by a seek table in a skippable
//! frame behind those of zstd, by the index of xz, by the lengths before LZ4 blocks. apt and
//! the usual programs read all of them (apt reads neither concatenated xz streams nor
//! concatenated LZ4 frames: hence one of each).
//!
//! Nothing that a table says is believed: a frame must decompress, alone and to its last byte,
//! to exactly as much as the table says. So what comes out is what reading from the
//! beginning would give, or an error.

/// How hard to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// As fits files that change four times a day: zstd 3, xz 0, gz 6, lz4 1.
    #[default]
    Own,
    /// As apt does it: zstd 19, xz 6, gz 6, lz4 1.
    Apt,
}
