//! Where a file's bytes come from.

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
    /// A file that can be read again, and when it was last written to.
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
    /// A file, as it is now.
    pub fn file(file: File) -> Source {
        let written = modified(&file);
        Source::File(Arc::new(file), written)
    }

    /// Makes a source from a pipe, which can be read once.
    pub fn stream(reader: impl Read + Send + 'static) -> Source {
        Source::Stream(Arc::new(Mutex::new(Box::new(reader))))
    }

    /// Whether it can be read more than once.
    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self, Source::Stream(_))
    }

    /// Fills `into` with what is there from `offset` on; returns how many bytes that are. A stream has no offsets.
    ///
    /// # Errors
    /// The file or stream cannot be read; the system's error is returned unchanged.
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

    /// Whether nothing comes behind `size` bytes, which have been read.
    ///
    /// # Errors
    /// The file or stream cannot be read; the system's error is returned unchanged.
    pub(crate) fn ends_at(&self, size: u64) -> io::Result<bool> {
        Ok(self.read(size, &mut [0])? == 0)
    }

    /// Whether it was written to since the source was made: what was read at different times is then not one content.
    pub fn is_changed(&self) -> bool {
        matches!(self, Source::File(file, written) if modified(file) != *written)
    }
}

/// Reads until there is no room or nothing more comes; `read` hears how many bytes there are already.
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
