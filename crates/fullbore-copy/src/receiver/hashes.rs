//! `--hash-list`: hashes of all files of the copy, as the destination has them at the end.
//!
//! Their paths are kept in an unnamed file until then, so that memory use does not grow with the tree.

use std::fs::File;
use std::io::{BufRead as _, BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::files::unnamed::unnamed;
use rustix::io::Errno;

use super::compare::open;
use super::listing::parts;
use super::write::Writers;
use crate::error::CopyError;
use crate::options::HashKind;
use crate::session::Event;
use crate::wire::{Message, ProblemKind};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// Paths of the files, each followed by a NUL.
pub(super) struct HashedPaths {
    paths: Mutex<BufWriter<File>>,
}

impl HashedPaths {
    /// Makes an empty list; `None` if hashes are not `wanted`.
    ///
    /// # Errors
    /// [`CopyError::Disk`] if the destination refuses a temporary file.
    pub(super) fn new(wanted: bool, destination: &Path) -> Result<Option<HashedPaths>, CopyError> {
        if !wanted {
            return Ok(None);
        }
        let file = unnamed(destination).map_err(|error| super::commit::disk(b"", error))?;
        Ok(Some(HashedPaths { paths: Mutex::new(BufWriter::new(file)) }))
    }

    /// Records a file.
    pub(super) fn note(&self, path: &[u8]) -> Result<(), Errno> {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.write_all(path).and_then(|()| paths.write_all(&[0])).map_err(super::partial::errno)
    }

    /// Reads the list from its start.
    fn read(self) -> std::io::Result<BufReader<File>> {
        let paths = self.paths.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut file = paths.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(BufReader::new(file))
    }
}

impl Writers<'_> {
    /// Hashes all files in several threads, and reports the hashes.
    ///
    /// # Errors
    /// [`CopyError::Interrupted`] if the run is cancelled, [`CopyError::Disk`] if the list of paths cannot be read.
    pub(super) fn tell_hashes(&self, paths: HashedPaths, kind: HashKind, threads: usize) -> Result<(), CopyError> {
        let paths = Mutex::new(paths.read().map_err(|error| super::commit::disk(b"", error))?);
        let next = || {
            let mut path = Vec::new();
            let read = paths.lock().unwrap_or_else(PoisonError::into_inner).read_until(0, &mut path);
            (matches!(read, Ok(1..)) && path.pop() == Some(0)).then_some(path)
        };
        let work = || {
            let _guard = self.context.cancel.guard();
            self.clock.adopt_thread();
            while let Some(path) = next().filter(|_| !self.context.cancel.is_cancelled()) {
                match self.clock.device(|| self.hash(&path, kind)) {
                    Ok(hash) => {
                        self.context.tell.tell(Event::Hashed { path: path.clone(), hash });
                        // A closed queue belongs to a run that ends; the cancel token has the reason.
                        let _ = self.context.link.control_out.push(Message::Hashed { path, hash }, &self.clock);
                    }
                    // The file was not copied, which has been reported.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::LOOP) => {}
                    Err(error) => {
                        let text = format!("cannot hash the file: {}", std::io::Error::from(error));
                        (self.problem)(ProblemKind::Unreadable, &path, text);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            (1..threads.max(1)).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        if self.context.cancel.is_cancelled() { Err(CopyError::Interrupted) } else { Ok(()) }
    }

    fn hash(&self, path: &[u8], kind: HashKind) -> Result<[u8; 32], Errno> {
        let (directory, name) = parts(path);
        let mut file = open(self.opened, &*self.tree.folder(directory)?, name)?;
        let mut buffer = vec![0; READ_BYTES];
        let mut read = |take: &mut dyn FnMut(&[u8])| loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(count) => take(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(super::partial::errno(error)),
            }
        };
        match kind {
            HashKind::Sha256 => {
                let mut hasher = Sha256Hasher::new();
                read(&mut |bytes| hasher.update(bytes))?;
                Ok(*hasher.finish().as_bytes())
            }
            HashKind::Blake3 => {
                let mut hasher = blake3::Hasher::new();
                read(&mut |bytes| {
                    hasher.update(bytes);
                })?;
                Ok(*hasher.finalize().as_bytes())
            }
        }
    }
}
