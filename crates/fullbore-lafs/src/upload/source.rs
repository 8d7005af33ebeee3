//! The sources of files' bytes.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use fullbore_engine::files::modified;

/// A file to be put. Clones read the same bytes.
#[derive(Clone)]
pub enum Source {
    /// A file that can be read again, and its time of modification.
    File(Arc<File>, Option<SystemTime>),
    /// Bytes in memory.
    Memory(Bytes),
    /// A pipe: read once, in order.
    Stream(Arc<Mutex<Box<dyn Read + Send>>>),
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::File(..) => "File",
            Source::Memory(_) => "Memory",
            Source::Stream(_) => "Stream",
        })
    }
}

impl Source {
    /// A source from a file, with its current time of modification.
    pub fn file(file: File) -> Source {
        let written = modified(&file);
        Source::File(Arc::new(file), written)
    }

    /// Makes a source from a pipe, which can be read once.
    pub fn stream(reader: impl Read + Send + 'static) -> Source {
        Source::Stream(Arc::new(Mutex::new(Box::new(reader))))
    }

    /// Whether the source can be read more than once.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Source::Stream(_))
    }

    /// Fills `into` from `offset` on; returns the number of bytes, fewer only at the end. A stream ignores `offset` and
    /// continues where it is.
    ///
    /// # Errors
    /// The error of pread(2), or of the stream's reader, unchanged.
    pub fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Source::Memory(bytes) => {
                let rest = usize::try_from(offset).ok().and_then(|offset| bytes.get(offset..)).unwrap_or_default();
                let length = rest.len().min(into.len());
                into[..length].copy_from_slice(&rest[..length]);
                Ok(length)
            }
            Source::File(file, _) => fill(into, |room, filled| file.read_at(room, offset + filled as u64)),
            Source::Stream(reader) => {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                fill(into, |room, _| reader.read(room))
            }
        }
    }

    /// Whether the source ends after `size` bytes, which have been read.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub(crate) fn ends_at(&self, size: u64) -> io::Result<bool> {
        Ok(self.read(size, &mut [0])? == 0)
    }

    /// Whether the file was modified since the source was made: reads at different times then do not belong to one
    /// content.
    pub fn is_changed(&self) -> bool {
        matches!(self, Source::File(file, written) if modified(file) != *written)
    }
}

/// Reads until `into` is full or the source ends; `read` gets the number of bytes read so far.
fn fill(into: &mut [u8], mut read: impl FnMut(&mut [u8], usize) -> io::Result<usize>) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match read(&mut into[filled..], filled) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
