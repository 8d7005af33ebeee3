//! An object store in memory, without rename: the second implementation of
//! [`Target`], for tests. Uploads have numbers, not names; completing one puts an
//! object; a further name is a copy.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{Content, Name, Target, TargetError};
use crate::digest::Verified;
use crate::files;

/// The store.
#[derive(Debug, Default)]
pub(crate) struct MemoryTarget {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Arc<Vec<u8>>>,
    /// The last upload begun for a path; an older one can no longer complete.
    uploads: HashMap<String, (u64, Vec<u8>)>,
    next_upload: u64,
}

/// An upload.
#[derive(Debug)]
pub(crate) struct Upload {
    path: String,
    number: u64,
}

impl MemoryTarget {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn bytes(&mut self, upload: &Upload) -> Result<&mut Vec<u8>, TargetError> {
        match self.uploads.get_mut(&upload.path) {
            Some((number, bytes)) if *number == upload.number => Ok(bytes),
            _ => Err(TargetError::Io {
                operation: "find upload of",
                path: upload.path.clone(),
                source: std::io::ErrorKind::NotFound.into(),
            }),
        }
    }
}

impl Target for MemoryTarget {
    type Part = Upload;

    fn begin(&self, path: &str, _size: u64) -> Result<Upload, TargetError> {
        files::check_final(path)?;
        let mut state = self.state();
        state.next_upload += 1;
        let number = state.next_upload;
        state.uploads.insert(path.to_owned(), (number, Vec::new()));
        Ok(Upload { path: path.to_owned(), number })
    }

    fn resume(&self, path: &str, _size: u64) -> Result<Option<Upload>, TargetError> {
        let state = self.state();
        let found = state.uploads.get(path);
        Ok(found.map(|(number, _)| Upload { path: path.to_owned(), number: *number }))
    }

    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError> {
        Ok(self.state().uploads.get(path).map(|(_, bytes)| bytes.len() as u64))
    }

    fn write_at(&self, part: &mut Upload, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        let mut state = self.state();
        let bytes = state.bytes(part)?;
        let start = usize::try_from(offset).expect("tests write little");
        bytes.resize(bytes.len().max(start + data.len()), 0);
        bytes[start..start + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn read_at(&self, part: &mut Upload, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError> {
        let mut state = self.state();
        let bytes = state.bytes(part)?;
        let start = usize::try_from(offset).expect("tests write little").min(bytes.len());
        let count = buffer.len().min(bytes.len() - start);
        buffer[..count].copy_from_slice(&bytes[start..start + count]);
        Ok(count)
    }

    fn commit(&self, part: Upload, proof: &Verified, _mtime: Option<i64>) -> Result<(), TargetError> {
        let mut state = self.state();
        let bytes = state.bytes(&part)?;
        let (actual, expected) = (bytes.len() as u64, proof.size());
        if actual < expected {
            return Err(TargetError::Length { path: part.path, actual, expected });
        }
        bytes.truncate(usize::try_from(expected).expect("tests write little"));
        let object = Arc::new(std::mem::take(bytes));
        state.uploads.remove(&part.path);
        state.objects.insert(part.path, object);
        Ok(())
    }

    fn abandon(&self, part: Upload) -> Result<(), TargetError> {
        let mut state = self.state();
        state.bytes(&part)?;
        state.uploads.remove(&part.path);
        Ok(())
    }

    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError> {
        let found = self.state().objects.get(path).cloned();
        Ok(found.map(|object| {
            let size = object.len() as u64;
            (Box::new(Cursor::new(object.as_ref().clone())) as Content, size)
        }))
    }

    fn barrier(&self) -> Result<bool, TargetError> {
        Ok(true)
    }

    fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        let mut state = self.state();
        for name in names {
            if let Name::Link { from, to } = name
                && !state.objects.contains_key(from)
            {
                return Err(TargetError::NothingToPublish { path: from.clone(), name: to.clone() });
            }
        }
        for name in names {
            match name {
                Name::Link { from, to } => {
                    let object = state.objects.get(from).expect("looked for above").clone();
                    state.objects.insert(to.clone(), object);
                }
                Name::Symlink { .. } => {} // no such thing in a store
                Name::Remove { path } => {
                    state.objects.remove(path);
                }
            }
        }
        Ok(())
    }
}
