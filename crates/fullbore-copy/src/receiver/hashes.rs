//! `--hash-list`: the hashes of all files of the copy, as the destination has them when everything is done.
//!
//! Their paths are kept in a file without a name until then, so that the memory they take does not grow with the tree.

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

/// Read at once, in bytes.
const READ_BYTES: usize = 1 << 20;

/// Paths of files, each with a NUL behind it.
pub(super) struct HashedPaths {
    paths: Mutex<BufWriter<File>>,
}

impl HashedPaths {
    /// None where no hashes are wanted, or nothing is written.
    ///
    /// # Errors
    /// When the destination takes no file.
    pub(super) fn new(wanted: bool, destination: &Path) -> Result<Option<HashedPaths>, CopyError> {
        if !wanted {
            return Ok(None);
        }
        let file = unnamed(destination).map_err(|error| super::commit::disk(b"", error))?;
        Ok(Some(HashedPaths { paths: Mutex::new(BufWriter::new(file)) }))
    }

    /// Takes note of a file.
    pub(super) fn note(&self, path: &[u8]) -> Result<(), Errno> {
        let mut paths = self.paths.lock().unwrap_or_else(PoisonError::into_inner);
        paths.write_all(path).and_then(|()| paths.write_all(&[0])).map_err(super::partial::errno)
    }

    /// From the first path on.
    fn read(self) -> std::io::Result<BufReader<File>> {
        let paths = self.paths.into_inner().unwrap_or_else(PoisonError::into_inner);
        let mut file = paths.into_inner().map_err(std::io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(BufReader::new(file))
    }
}

impl Writers<'_> {
    /// Hashes all files, by several threads, and tells the hashes.
    ///
    /// # Errors
    /// When the run is broken off, or the paths cannot be read.
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
                        // A closed queue belongs to a run that ends; its reason is known to the cancel token.
                        let _ = self.context.link.control_out.push(Message::Hashed { path, hash }, &self.clock);
                    }
                    // It did not come, which was told.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::INVAL | Errno::LOOP) => {}
                    Err(error) => {
                        let text = format!("it has no hash: {}", std::io::Error::from(error));
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
