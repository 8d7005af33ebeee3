//! A directory tree in which files are written under their final names.
//!
//! For callers whose names are temporary themselves, such as those in apt's `partial/`: other programs read such a file
//! only when told to. There is no second name and no rename, nothing is synced, and paths are absolute. A file dropped
//! unfinished is cut to its bytes without a gap, so that a program that resumes at its end continues correctly. After a
//! kill, holes show the gaps ([`InPlaceTarget::trim`]).

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Committed, Content, Name, Target, TargetError};
use crate::digest::{Sha256, Verified};
use crate::files::{FileError, PartFile, Root};
use crate::ranges::Ranges;

/// Maximum number of directories held open. apt has two (lists and archives), and perhaps its working directory.
const DIRECTORIES: usize = 16;

/// Callback: the first bytes of this path are about to be written.
pub type OnBegin = Box<dyn Fn(&str) + Send + Sync>;

/// Writes files under their final names, at absolute paths.
pub struct InPlaceTarget {
    directories: Mutex<HashMap<String, Arc<Root>>>,
    on_begin: OnBegin,
}

/// An unfinished file of an [`InPlaceTarget`].
#[derive(Debug)]
pub struct InPlacePart {
    file: PartFile,
    written: Ranges,
    is_finished: bool,
}

impl InPlaceTarget {
    /// Creates a target. `on_begin` is called on the thread that writes; it must not block.
    pub fn new(on_begin: OnBegin) -> InPlaceTarget {
        InPlaceTarget { directories: Mutex::default(), on_begin }
    }

    /// Cuts a file left by another program or an earlier run to the bytes that may be right: those before the first
    /// gap, at most `size`. Returns their number; 0 when there is no such file of ours alone.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not absolute or invalid; [`FileError::Symlink`] or [`FileError::Io`] if the
    /// file cannot be opened, examined or cut.
    pub fn trim(&self, path: &str, size: u64) -> Result<u64, TargetError> {
        let (root, name) = match self.place(path) {
            Err(TargetError::File(error)) if error.kind() == Some(io::ErrorKind::NotFound) => return Ok(0),
            place => place?,
        };
        let Some(file) = root.resume_in_place(name)? else { return Ok(0) };
        let length = file.size()?;
        let whole = if length > size { 0 } else { file.end_of_data()? };
        if whole < length {
            file.set_size(whole)?;
        }
        Ok(whole)
    }

    /// Returns the directory, held open, and the name in it.
    fn place<'p>(&self, path: &'p str) -> Result<(Arc<Root>, &'p str), TargetError> {
        let refused = |reason| TargetError::File(FileError::Path { path: path.chars().take(200).collect(), reason });
        let (directory, name) = path.rsplit_once('/').ok_or_else(|| refused("it is not absolute"))?;
        if !path.starts_with('/') {
            return Err(refused("it is not absolute"));
        }
        let mut directories = self.directories.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(root) = directories.get(directory) {
            return Ok((root.clone(), name));
        }
        if directories.len() >= DIRECTORIES {
            directories.clear();
        }
        let root = Arc::new(Root::open(Path::new(if directory.is_empty() { "/" } else { directory }))?);
        directories.insert(directory.to_owned(), root.clone());
        Ok((root, name))
    }
}

impl std::fmt::Debug for InPlaceTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("InPlaceTarget")
    }
}

impl Drop for InPlacePart {
    fn drop(&mut self) {
        if !self.is_finished {
            // If the cut fails, the holes still show the gaps.
            let _ = self.file.set_size(self.written.end_of_run(0));
        }
    }
}

impl Target for InPlaceTarget {
    type Part = InPlacePart;

    fn begin(&self, path: &str, size: u64, _sha256: Sha256) -> Result<InPlacePart, TargetError> {
        let (root, name) = self.place(path)?;
        let file = root.create_in_place(name, size)?;
        (self.on_begin)(path);
        Ok(InPlacePart { file, written: Ranges::new(), is_finished: false })
    }

    fn resume(&self, path: &str, _size: u64) -> Result<Option<InPlacePart>, TargetError> {
        let (root, name) = self.place(path)?;
        let Some(file) = root.resume_in_place(name)? else { return Ok(None) };
        let written = std::iter::once(0..file.size()?).collect();
        (self.on_begin)(path);
        Ok(Some(InPlacePart { file, written, is_finished: false }))
    }

    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError> {
        let (root, name) = self.place(path)?;
        Ok(root.stat(name)?.map(|status| status.size))
    }

    fn write_at(&self, part: &mut InPlacePart, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        part.file.write_at(offset, data)?;
        part.written.insert(offset..offset + data.len() as u64);
        Ok(())
    }

    fn read_at(&self, part: &mut InPlacePart, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError> {
        Ok(part.file.read_at(offset, buffer)?)
    }

    fn commit(&self, mut part: InPlacePart, proof: &Verified, mtime: Option<i64>) -> Result<Committed, TargetError> {
        super::complete(&part.file, proof, mtime)?;
        part.is_finished = true;
        Ok(Committed::Now)
    }

    fn abandon(&self, mut part: InPlacePart) -> Result<(), TargetError> {
        part.is_finished = true;
        Ok(part.file.remove_by_name()?)
    }

    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError> {
        let (root, name) = self.place(path)?;
        let opened = root.open_file(name)?;
        Ok(opened.map(|(file, status)| (Box::new(file) as Content, status.size)))
    }

    fn barrier(&self) -> Result<bool, TargetError> {
        Ok(false)
    }

    /// A file has only its own name, so there is nothing to publish.
    fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        match names.first() {
            None => Ok(()),
            Some(Name::Link { from, to }) => {
                Err(TargetError::NothingToPublish { path: from.clone(), name: to.clone() })
            }
            Some(Name::Symlink { target, link }) => {
                Err(TargetError::NothingToPublish { path: target.clone(), name: link.clone() })
            }
            Some(Name::Remove { path }) => {
                Err(TargetError::NothingToPublish { path: path.clone(), name: String::new() })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::digest::Sha256Hasher;

    fn target() -> (InPlaceTarget, Arc<AtomicUsize>) {
        let begun = Arc::new(AtomicUsize::new(0));
        let counter = begun.clone();
        let count = move |_: &str| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        (InPlaceTarget::new(Box::new(count)), begun)
    }

    fn proof(data: &[u8]) -> Verified {
        let mut hasher = Sha256Hasher::new();
        hasher.update(data);
        hasher.verify(data.len() as u64, Sha256::of(data)).unwrap()
    }

    #[test]
    fn a_file_grows_under_its_own_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.deb");
        let name = path.to_str().unwrap();
        let (target, begun) = target();
        std::fs::write(&path, "older and longer").unwrap();
        let mut part = target.begin(name, 6, Sha256::EMPTY).unwrap();
        assert_eq!(begun.load(Ordering::Relaxed), 1);
        target.write_at(&mut part, 3, b"def").unwrap();
        target.write_at(&mut part, 0, b"abc").unwrap();
        let mut buffer = [0; 9];
        assert_eq!(target.read_at(&mut part, 1, &mut buffer).unwrap(), 5);
        target.commit(part, &proof(b"abcdef"), Some(1_700_000_000)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdef");
        let modified = path.metadata().unwrap().modified().unwrap();
        assert_eq!(modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(), 1_700_000_000);
        let part = target.begin(name, 6, Sha256::EMPTY).unwrap();
        target.abandon(part).unwrap();
        assert!(!path.exists());
        assert!(target.begin("relative", 1, Sha256::EMPTY).is_err());
        assert!(target.begin(&directory.path().join("none/x").display().to_string(), 1, Sha256::EMPTY).is_err());
    }

    #[test]
    fn what_is_dropped_ends_where_its_first_gap_begins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.deb");
        let name = path.to_str().unwrap();
        let (target, _) = target();
        let mut part = target.begin(name, 100, Sha256::EMPTY).unwrap();
        target.write_at(&mut part, 0, &[1; 10]).unwrap();
        target.write_at(&mut part, 20, &[2; 10]).unwrap();
        drop(part);
        assert_eq!(std::fs::read(&path).unwrap(), [1; 10]);
        assert_eq!(target.trim(name, 100).unwrap(), 10);
        assert_eq!(target.kept(name).unwrap(), Some(10));
        let mut part = target.resume(name, 12).unwrap().unwrap();
        target.write_at(&mut part, 10, &[1; 2]).unwrap();
        target.commit(part, &proof(&[1; 12]), None).unwrap();
        assert_eq!(target.trim(name, 11).unwrap(), 0, "longer than it may be");
        assert_eq!(target.trim(&directory.path().join("none/x").display().to_string(), 1).unwrap(), 0);
    }

    #[test]
    fn after_a_kill_only_what_is_before_the_first_hole_counts() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.deb");
        let name = path.to_str().unwrap();
        let (target, _) = target();
        let mut part = target.begin(name, 3 << 20, Sha256::EMPTY).unwrap();
        target.write_at(&mut part, 0, &[1; 70_000]).unwrap();
        target.write_at(&mut part, 2 << 20, &[2; 1000]).unwrap();
        std::mem::forget(part);
        let kept = target.trim(name, 3 << 20).unwrap();
        // Not every file system has holes; then the hash of the whole is what finds them.
        assert!(kept <= 70_000 || kept == (2 << 20) + 1000, "{kept}");
        assert_eq!(path.metadata().unwrap().len(), kept);
    }
}
