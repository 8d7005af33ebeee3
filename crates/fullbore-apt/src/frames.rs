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

mod codec;
mod container;
mod cut;
mod gz;
mod lz4;
mod xz;
mod zst;

use std::fs::File;
use std::io;
use std::ops::Deref;

use fullbore_debian::compression::Form;

pub use codec::{Decoder, Encoder};
pub use container::Container;
pub(crate) use cut::{Cutter, FrameSink, is_good, line_cut};

/// Plain text in a frame that we write, in bytes. Measured on a step of Debian's Contents (75 KB in 233
/// places): frames of 64 KiB have 4 % of their text touched but cost a tenth in size, of 256 KiB 13 %,
/// of 1 MiB 43 %.
pub const FRAME_BYTES: usize = 256 << 10;

/// Frames of less are joined with the next one when they are come across; only the last of a
/// file may be smaller. Half, so that two that are joined make no frame that is too large.
pub const FRAME_BYTES_LEAST: usize = FRAME_BYTES / 2;

/// Frames of more are not written. A whole one and one of less than the least were joined.
pub const FRAME_BYTES_MOST: usize = FRAME_BYTES + FRAME_BYTES_LEAST;

/// Frames of more are not ours: the file is read from its beginning then. It bounds every
/// buffer here.
pub const FRAME_BYTES_MAX: usize = 2 * FRAME_BYTES;

/// What a frame may be longer in the file than its text: no format needs more for what cannot
/// be compressed (LZ4: a 255th) and for its headers.
const FRAME_OVERHEAD_BYTES: usize = FRAME_BYTES_MAX / 128;

/// Most frames of a file: 64 GiB of text, a hundred times Debian's largest index. Bounds the
/// table (12 bytes for each).
pub const FRAMES_MAX: usize = 1 << 18;

/// How hard to compress.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// As fits files that change four times a day: zstd 3, xz 0, gz 6, lz4 1.
    #[default]
    Own,
    /// As apt does it: zstd 19, xz 6, gz 6, lz4 1.
    Apt,
}

/// A frame: its length in the file, and of its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Length in the file, in bytes, with all that belongs to the frame.
    pub size: u32,
    /// Length of its text, in bytes; not known before decompressing with LZ4.
    pub plain: Option<u32>,
    /// Bytes at its end that only align it (xz).
    padding: u8,
}

/// Where the frames of a file lie: one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Where the first begins, in bytes from the start of the file.
    pub start: u64,
    /// All of them, in order.
    pub frames: Vec<Frame>,
}

impl Layout {
    /// Finds the frames of a file; none when they are not as we write them, so that the file is to be read
    /// from its beginning. Costs one read per frame for gzip and LZ4, three reads for the others.
    ///
    /// # Errors
    /// Those of the disk.
    pub fn of(file: &File, form: Form) -> io::Result<Option<Layout>> {
        let mut file = Bytes { file, size: file.metadata()?.len() };
        let layout = match form {
            Form::Gz => gz::layout(&mut file),
            Form::Xz => xz::layout(&mut file),
            Form::Zst => zst::layout(&mut file),
            Form::Lz4 => lz4::layout(&mut file),
            Form::Plain | Form::Bz2 => Ok(None),
        };
        match layout {
            // The file became shorter while we looked at it, or a length led beyond its end.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            layout => Ok(layout?.filter(|layout| layout.frames.len() <= FRAMES_MAX)),
        }
    }
}

/// A file that is looked at here and there.
struct Bytes<'f> {
    file: &'f File,
    size: u64,
}

impl Bytes<'_> {
    fn read<const N: usize>(&mut self, offset: u64) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        std::os::unix::fs::FileExt::read_exact_at(self.file, &mut bytes, offset)?;
        Ok(bytes)
    }

    /// A table; the caller has bounded its length.
    fn read_vec(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length];
        std::os::unix::fs::FileExt::read_exact_at(self.file, &mut bytes, offset)?;
        Ok(bytes)
    }
}

/// Room for the text of one frame.
pub struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        // Comes zeroed from the system, page by page as it is used.
        Buffer { bytes: vec![0; FRAME_BYTES_MAX].into_boxed_slice(), filled: 0 }
    }
}

impl Buffer {
    /// Empties it.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// What is free.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Takes so many bytes that were put into the room.
    ///
    /// # Panics
    /// When there was not so much room.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.filled);
        self.filled += bytes;
    }

    /// Appends as much as there is room for, up to so many bytes in all; gives back the rest.
    pub fn append<'t>(&mut self, text: &'t [u8], most: usize) -> &'t [u8] {
        let (now, later) = text.split_at(text.len().min(most.min(self.bytes.len()).saturating_sub(self.filled)));
        self.bytes[self.filled..self.filled + now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    /// Keeps the first so many bytes.
    pub fn truncate(&mut self, bytes: usize) {
        self.filled = self.filled.min(bytes);
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.filled)
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.filled]
    }
}

fn broken(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests;
