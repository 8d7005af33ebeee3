//! Compressed indexes in frames that can be copied into the next version of the file.
//!
//! A patch changes a few places of an index. In a usual compressed file everything behind the first change must be
//! compressed again. So fullbore writes frames of about 256 KiB of text that decompress independently: members of gzip,
//! frames of zstd, blocks in one stream of xz, independent blocks of LZ4. Frames end at line ends and may have any
//! length, so an insertion changes one frame and shifts none.
//!
//! The file itself has the positions of its frames, because apt deletes unknown files from its directory: an extra field
//! in each gzip header, a seek table in a skippable frame of zstd, the index of xz, the lengths before LZ4 blocks. apt and
//! other programs read all of these files. (apt reads no concatenated xz streams or LZ4 frames, hence one of each.)
//!
//! Tables are not trusted: a frame must decompress independently, to its last byte, to the length in the table. So the
//! result is that of reading from the beginning, or an error.
//!
//! ```
//! use fullbore_apt::frames::{Container, Encoder, Level};
//! use fullbore_debian::compression::Form;
//!
//! let (mut container, mut file) = (Container::new(Form::Gz), Vec::new());
//! let mut encoder = Encoder::new(Form::Gz, Level::Fast)?.expect("gzip has frames");
//! for text in [b"Package: a\n\n", b"Package: b\n\n"] {
//!     container.add(encoder.encode(text, &mut file)?);
//! }
//! file.extend(container.tail());
//! assert_eq!(container.count(), 2);
//! # Ok::<(), std::io::Error>(())
//! ```

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

/// Smallest text of a frame, except the last one; smaller frames are joined with the next one. Half of the usual size, so
/// that two joined frames are not too large.
pub const FRAME_BYTES_LEAST: usize = FRAME_BYTES / 2;

/// Largest text of a written frame: a full one joined with a small one.
pub const FRAME_BYTES_MOST: usize = FRAME_BYTES + FRAME_BYTES_LEAST;

/// Largest text of a frame that is read; a file with larger ones is read from its beginning. Bounds every buffer.
pub const FRAME_BYTES_MAX: usize = 2 * FRAME_BYTES;

/// Largest overhead of a frame over its text: enough for incompressible text in every format (LZ4: a 255th) and headers.
const FRAME_OVERHEAD_BYTES: usize = FRAME_BYTES_MAX / 128;

/// Most frames of a file: 64 GiB of text, a hundred times Debian's largest index. Bounds the
/// table (12 bytes for each).
pub const FRAMES_MAX: usize = 1 << 18;

/// How hard an [`Encoder`] compresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Level {
    /// Fast, for files that change four times a day: zstd 3, xz 0, gz 6, lz4 1.
    #[default]
    Fast,
    /// As small as apt makes them: zstd 19, xz 6, gz 6, lz4 1.
    Best,
}

/// Position data of one frame: a part of the file that can be decompressed alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// Length in the file, in bytes, with headers.
    pub size: u32,
    /// Length of its text, in bytes; not known before decompressing with LZ4.
    pub plain: Option<u32>,
    /// Padding at its end (xz).
    padding: u8,
}

/// The consecutive frames of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    /// Offset of the first frame in bytes.
    pub start: u64,
    /// All frames, in the order of the file.
    pub frames: Vec<Frame>,
}

impl Layout {
    /// Finds the frames of a file; `None` if they are not as fullbore writes them, and the file must be read from its
    /// beginning. It takes one read per frame for gzip and LZ4, three reads for the others.
    ///
    /// # Errors
    /// The file cannot be read. A truncated or foreign file gives `None`.
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
            // The file was truncated meanwhile, or a length exceeds it.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            layout => Ok(layout?.filter(|layout| layout.frames.len() <= FRAMES_MAX)),
        }
    }
}

/// A file that is read at offsets.
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

/// A buffer for the text of one frame, of [`FRAME_BYTES_MAX`] bytes.
pub struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

impl Default for Buffer {
    fn default() -> Buffer {
        // The system zeroes its pages on first use.
        Buffer { bytes: vec![0; FRAME_BYTES_MAX].into_boxed_slice(), filled: 0 }
    }
}

impl Buffer {
    /// Empties the buffer, and keeps its memory.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// The unused part of the buffer, to be filled.
    pub fn spare(&mut self) -> &mut [u8] {
        &mut self.bytes[self.filled..]
    }

    /// Adds `bytes` bytes that were written into [`Buffer::spare`].
    ///
    /// # Panics
    /// If `bytes` exceeds the free space.
    pub fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.bytes.len() - self.filled);
        self.filled += bytes;
    }

    /// Appends text up to a total length of `most` bytes; returns the rest.
    pub fn append<'t>(&mut self, text: &'t [u8], most: usize) -> &'t [u8] {
        let (now, later) = text.split_at(text.len().min(most.min(self.bytes.len()).saturating_sub(self.filled)));
        self.bytes[self.filled..self.filled + now.len()].copy_from_slice(now);
        self.filled += now.len();
        later
    }

    /// Shortens the text to `bytes` bytes.
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
