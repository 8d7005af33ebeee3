//! An object store in memory, without rename: the second implementation of [`Target`], for tests. Uploads have numbers,
//! not names; completing an upload creates an object, and a further name is a copy. It may complete uploads later, in
//! any order, and refuse some.

use std::collections::HashMap;
use std::io::Cursor;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Committed, Content, Name, Promise, Target, TargetError};
use crate::digest::{Sha256, Verified};
use crate::files;

/// The object store.
#[derive(Debug, Default)]
pub(crate) struct MemoryTarget {
    state: Arc<Mutex<State>>,
    /// Queue of uploads to complete later; `None` if each completes at once.
    late: Option<Sender<Completion>>,
}

/// An upload to complete.
struct Completion {
    upload: Upload,
    size: u64,
    promise: Promise,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Arc<Vec<u8>>>,
    /// The last upload begun for each path; an older one can no longer complete.
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
    /// A store that completes uploads later, on a thread of its own and in another order. It refuses uploads for whose
    /// number, from 1, `refuses` is true.
    pub(crate) fn late(refuses: impl Fn(u64) -> bool + Send + 'static) -> MemoryTarget {
        let (sender, receiver) = channel();
        let target = MemoryTarget { late: Some(sender), ..MemoryTarget::default() };
        let state = target.state.clone();
        std::thread::spawn(move || complete_in_reverse(&state, &receiver, &refuses));
        target
    }

    /// The same store, as a later run sees it.
    pub(crate) fn again(&self) -> MemoryTarget {
        MemoryTarget { state: self.state.clone(), late: None }
    }

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

    fn complete(&mut self, upload: &Upload, expected: u64) -> Result<(), TargetError> {
        let bytes = self.bytes(upload)?;
        let actual = bytes.len() as u64;
        if actual < expected {
            return Err(TargetError::Length { path: upload.path.clone(), actual, expected });
        }
        bytes.truncate(usize::try_from(expected).expect("tests write little"));
        let object = Arc::new(std::mem::take(bytes));
        self.uploads.remove(&upload.path);
        self.objects.insert(upload.path.clone(), object);
        Ok(())
    }
}

/// Collects uploads for a moment, then completes them, the last one first.
fn complete_in_reverse(state: &Mutex<State>, receiver: &Receiver<Completion>, refuses: &dyn Fn(u64) -> bool) {
    let mut number = 0;
    while let Ok(first) = receiver.recv() {
        std::thread::sleep(Duration::from_millis(5));
        let mut gathered: Vec<Completion> = std::iter::once(first).chain(receiver.try_iter()).collect();
        while let Some(Completion { upload, size, promise }) = gathered.pop() {
            number += 1;
            if refuses(number) {
                drop(promise);
                continue;
            }
            let result = state.lock().unwrap_or_else(PoisonError::into_inner).complete(&upload, size);
            promise.tell(result);
        }
    }
}

impl Target for MemoryTarget {
    type Part = Upload;

    fn begin(&self, path: &str, _size: u64, _sha256: Sha256) -> Result<Upload, TargetError> {
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

    fn commit(&self, part: Upload, proof: &Verified, _mtime: Option<i64>) -> Result<Committed, TargetError> {
        let size = proof.size();
        let Some(late) = &self.late else {
            self.state().complete(&part, size)?;
            return Ok(Committed::Now);
        };
        let (promise, pending) = Promise::new(&part.path);
        late.send(Completion { upload: part, size, promise }).expect("the thread is alive");
        Ok(Committed::Later(pending))
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
