//! The old index, read frame by frame or from its beginning.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use fullbore_debian::compression::{Form, Reader};
use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::stage::StageClock;
use rustix::fs::{Advice, OFlags};

use super::clocks::Clocks;
use crate::frames::{Buffer, FRAME_BYTES, Frame, Layout, line_cut};

/// Compressed bytes read at once from files without frames.
const READ_BYTES: usize = 128 << 10;

/// Opens a regular file; a pipe or device is refused without blocking.
pub(super) fn open(path: &Path) -> io::Result<File> {
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = OpenOptions::new().read(true).custom_flags(nonblocking).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    // A hint to the kernel: read ahead.
    let _ = rustix::fs::fadvise(&file, 0, None, Advice::Sequential);
    Ok(file)
}

/// The frames of a file, in order.
pub(super) struct Frames<'f> {
    file: &'f File,
    layout: &'f Layout,
    next: usize,
    offset: u64,
    clock: Arc<StageClock>,
}

impl<'f> Frames<'f> {
    pub(super) fn new(file: &'f File, layout: &'f Layout, clock: Arc<StageClock>) -> Frames<'f> {
        Frames { file, layout, next: 0, offset: layout.start, clock }
    }

    /// The next frame with its bytes, and whether it is the last.
    pub(super) fn next(&mut self) -> io::Result<Option<(Frame, Vec<u8>, bool)>> {
        let Some(frame) = self.layout.frames.get(self.next).copied() else { return Ok(None) };
        let mut bytes = vec![0; frame.size as usize];
        self.clock.device(|| self.file.read_exact_at(&mut bytes, self.offset))?;
        self.clock.add_items(1, u64::from(frame.size));
        self.offset += u64::from(frame.size);
        self.next += 1;
        Ok(Some((frame, bytes, self.next == self.layout.frames.len())))
    }
}

/// The text of a file from its beginning, in pieces that may become frames.
pub(super) struct Stream {
    reader: Box<dyn Read + Send>,
    /// The start of a line that did not fit into the previous piece.
    carried: Vec<u8>,
    at_lines: bool,
    ended: bool,
    /// Whether the file is plain.
    is_plain: bool,
    clock: Arc<StageClock>,
}

impl Stream {
    /// With `at_lines`, pieces end at line ends. The caller bounds the total size.
    pub(super) fn open(file: File, form: Form, at_lines: bool, clocks: &Clocks) -> io::Result<Stream> {
        let reader: Box<dyn Read + Send> = match form {
            Form::Plain => Box::new(file),
            _ => Box::new(Reader::open(form, BufReader::with_capacity(READ_BYTES, file), u64::MAX)?),
        };
        let is_plain = form == Form::Plain;
        let clock = if is_plain { clocks.read.clone() } else { clocks.unpack.clone() };
        Ok(Stream { reader, carried: Vec::new(), at_lines, ended: false, is_plain, clock })
    }

    /// The clock of the reading thread.
    pub(super) fn clock(&self) -> &StageClock {
        &self.clock
    }

    /// The next piece, in this buffer; `None` at the end.
    pub(super) fn next(&mut self, mut buffer: Buffer) -> io::Result<Option<Buffer>> {
        buffer.clear();
        buffer.append(&self.carried, FRAME_BYTES);
        self.carried.clear();
        while !self.ended && buffer.len() < FRAME_BYTES {
            let free = FRAME_BYTES - buffer.len();
            let mut read = || self.reader.read(&mut buffer.spare()[..free]);
            let count = match if self.is_plain { self.clock.device(read) } else { read() } {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                count => count?,
            };
            self.ended = count == 0;
            buffer.advance(count);
        }
        self.clock.add_items(1, buffer.len() as u64);
        if self.at_lines && !self.ended {
            let cut = line_cut(&buffer);
            self.carried.extend_from_slice(&buffer[cut..]);
            buffer.truncate(cut);
        }
        Ok((!buffer.is_empty()).then_some(buffer))
    }

    /// Hashes the whole text; `None` if it exceeds the limit.
    pub(super) fn hash(mut self, limit_bytes: u64) -> io::Result<Option<Sha256Hasher>> {
        let (mut hasher, mut buffer) = (Sha256Hasher::new(), Buffer::default());
        while let Some(piece) = self.next(buffer)? {
            hasher.update(&piece);
            if hasher.bytes() > limit_bytes {
                return Ok(None);
            }
            buffer = piece;
        }
        Ok(Some(hasher))
    }
}
