//! Where a file's bytes come from.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;

use crate::modified;

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

    /// A pipe.
    pub fn stream(reader: impl Read + Send + 'static) -> Source {
        Source::Stream(Arc::new(Mutex::new(Box::new(reader))))
    }

    /// Whether it can be read more than once.
    pub fn is_repeatable(&self) -> bool {
        !matches!(self, Source::Stream(_))
    }

    /// Appends `length` bytes from `offset` on, or as many as there are. A stream has no offsets.
    ///
    /// # Errors
    /// The reader's.
    pub fn read(&self, offset: u64, length: usize, into: &mut Vec<u8>) -> io::Result<()> {
        let start = into.len();
        match self {
            Source::Memory(bytes) => {
                let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
                into.extend_from_slice(&bytes[from..bytes.len().min(from.saturating_add(length))]);
            }
            Source::File(file, _) => {
                into.resize(start + length, 0);
                let mut filled = 0;
                while filled < length {
                    match file.read_at(&mut into[start + filled..], offset + filled as u64) {
                        Ok(0) => break,
                        Ok(bytes) => filled += bytes,
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(error) => return Err(error),
                    }
                }
                into.truncate(start + filled);
            }
            Source::Stream(reader) => {
                let mut reader = reader.lock().unwrap_or_else(PoisonError::into_inner);
                reader.by_ref().take(length as u64).read_to_end(into)?;
            }
        }
        Ok(())
    }

    /// Whether nothing comes behind `size` bytes, which have been read.
    ///
    /// # Errors
    /// The reader's.
    pub fn ends_at(&self, size: u64) -> io::Result<bool> {
        let mut more = Vec::new();
        self.read(size, 1, &mut more)?;
        Ok(more.is_empty())
    }

    /// Whether it was written to since the source was made: what was read at different times is then not one content.
    pub fn is_changed(&self) -> bool {
        matches!(self, Source::File(file, written) if modified(file) != *written)
    }
}
