//! Destination of verified content: a directory or an object store.
//!
//! A [`Target`] takes content piece by piece under no visible name, and makes it visible only with a [`Verified`]
//! proof. It gives further names in the order of the request. Nothing in it assumes a rename: an object store completes
//! an upload where a directory renames a `.part` file.

pub mod faults;
pub mod in_place;
#[cfg(test)]
pub(crate) mod memory;
pub mod pending;

use std::io;
use std::sync::Arc;

use crate::digest::{Sha256, Verified};
use crate::durability::{Barrier, Durability, WriteBack};
use crate::files::{FileError, PartFile, Root};
pub use pending::{Committed, PendingResult, Promise};

/// Why an operation on a target failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A file operation in a directory failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The content's length differs from the proven length.
    #[error("{path}: {actual} bytes are there, {expected} were verified")]
    Length {
        /// Path of the content, beneath the target's root.
        path: String,
        /// Length of the content, in bytes.
        actual: u64,
        /// Length in the proof, in bytes.
        expected: u64,
    },
    /// A name to be published refers to content that does not exist.
    #[error("{path}: nothing there to publish as {name}")]
    NothingToPublish {
        /// Path of the missing content.
        path: String,
        /// The name that it should get.
        name: String,
    },
    /// Other content has the name, and this run may not replace it.
    #[error("{path}: the destination has other content there")]
    Occupied {
        /// Path of the existing content.
        path: String,
    },
    /// Another failure, of a target that is not a directory.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// The operation, as a verb phrase such as `write`.
        operation: &'static str,
        /// Path of the content, beneath the target's root.
        path: String,
        /// The underlying error.
        source: io::Error,
    },
}

impl TargetError {
    /// The kind of the system's error; `None` if it is not one.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            TargetError::File(error) => error.kind(),
            TargetError::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Whether the error is a full destination or an exceeded quota.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// A step of publishing. Paths are beneath the target's root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A second name for existing content; replaces an entry of that name in one step.
    Link {
        /// Path of the existing content.
        from: String,
        /// The further name.
        to: String,
    },
    /// A symbolic link. A store without links keeps a redirection or nothing.
    Symlink {
        /// Target of the link, relative to the link's directory.
        target: String,
        /// Path of the link.
        link: String,
    },
    /// Removes a name; a missing one is no error.
    Remove {
        /// The name to remove.
        path: String,
    },
}

/// Visible content, opened for reading.
pub type Content = Box<dyn io::Read + Send>;

/// A destination. Operations block; they run on plain threads.
pub trait Target: Send + Sync + 'static {
    /// Unfinished content. Dropping it leaves it to be resumed.
    type Part: Send + 'static;

    /// Begins content for `path` afresh; older unfinished content is replaced. `size` in bytes and `sha256` are the
    /// expected values: a target may send the content on while it is written.
    ///
    /// # Errors
    /// [`TargetError`] if the path is invalid or is the name of unfinished content, or if the destination refuses, such
    /// as a full disk.
    fn begin(&self, path: &str, size: u64, sha256: Sha256) -> Result<Self::Part, TargetError>;

    /// Resumes unfinished content; `None` when there is none.
    ///
    /// # Errors
    /// As [`Target::begin`], and [`TargetError`] if the unfinished content cannot be opened.
    fn resume(&self, path: &str, size: u64) -> Result<Option<Self::Part>, TargetError>;

    /// Length of the unfinished content for `path`, holes included; `None` when there is none. Quick enough for async
    /// code.
    ///
    /// # Errors
    /// [`TargetError`] if the path is invalid or the target cannot look it up.
    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError>;

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// [`TargetError`] if the write fails, such as on a full or broken disk.
    fn write_at(&self, part: &mut Self::Part, offset: u64, data: &[u8]) -> Result<(), TargetError>;

    /// Reads back written content; fewer bytes than requested at the end.
    ///
    /// # Errors
    /// [`TargetError`] if the read fails, such as on a broken disk.
    fn read_at(&self, part: &mut Self::Part, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError>;

    /// Makes verified content visible under its path. `mtime` is in Unix seconds. A target that needs a round trip does
    /// not block: it returns [`Committed::Later`].
    ///
    /// # Errors
    /// [`TargetError::Length`] if the content's length is not the proven one; other variants if the destination
    /// refuses, at once or later. Nothing is visible then, and unfinished content that can be resumed is kept.
    fn commit(&self, part: Self::Part, proof: &Verified, mtime: Option<i64>) -> Result<Committed, TargetError>;

    /// Removes unfinished content.
    ///
    /// # Errors
    /// [`TargetError`] if the target refuses to remove it.
    fn abandon(&self, part: Self::Part) -> Result<(), TargetError>;

    /// Opens visible content, with its length in bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`TargetError`] if the entry is not content (such as a symbolic link or directory), or cannot be opened.
    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError>;

    /// Returns when everything committed so far is as durable as the target promises; `false` when it promises nothing.
    ///
    /// # Errors
    /// [`TargetError`] for write errors since the last barrier.
    fn barrier(&self) -> Result<bool, TargetError>;

    /// Publishes names in this order, with a barrier before and one after. Before the first name, all content that they
    /// refer to is looked up.
    ///
    /// # Errors
    /// [`TargetError::NothingToPublish`] for missing content; nothing is changed then. [`TargetError::Occupied`] and
    /// other variants if the target refuses a name.
    fn publish(&self, names: &[Name]) -> Result<(), TargetError>;
}

/// A target that is a local directory.
#[derive(Debug)]
pub struct LocalTarget {
    root: Arc<Root>,
    barrier: Barrier,
}

/// An unfinished file of a [`LocalTarget`].
#[derive(Debug)]
pub struct LocalPart {
    file: PartFile,
    write_back: WriteBack,
}

impl LocalTarget {
    /// Creates a target that writes to `root` with this durability.
    pub fn new(root: Arc<Root>, durability: Durability) -> LocalTarget {
        let barrier = Barrier::new(root.clone(), durability);
        LocalTarget { root, barrier }
    }

    /// The directory that the target writes to.
    pub fn root(&self) -> &Arc<Root> {
        &self.root
    }

    /// When the target syncs its writes.
    pub fn durability(&self) -> Durability {
        self.barrier.durability()
    }
}

/// Sets a file's length and modification time as proven.
fn complete(file: &PartFile, proof: &Verified, mtime: Option<i64>) -> Result<(), TargetError> {
    let (actual, expected) = (file.size()?, proof.size());
    if actual > expected {
        // Bytes left over from a longer file of that name, begun earlier.
        file.set_size(expected)?;
    } else if actual < expected {
        return Err(TargetError::Length { path: file.path().to_owned(), actual, expected });
    }
    if let Some(unix_s) = mtime {
        file.set_mtime(unix_s)?;
    }
    Ok(())
}

impl Target for LocalTarget {
    type Part = LocalPart;

    fn begin(&self, path: &str, size: u64, _sha256: Sha256) -> Result<LocalPart, TargetError> {
        let file = self.root.create_part(path, size)?;
        Ok(LocalPart { file, write_back: WriteBack::default() })
    }

    fn resume(&self, path: &str, _size: u64) -> Result<Option<LocalPart>, TargetError> {
        let file = self.root.resume_part(path)?;
        Ok(file.map(|file| LocalPart { file, write_back: WriteBack::default() }))
    }

    fn kept(&self, path: &str) -> Result<Option<u64>, TargetError> {
        Ok(self.root.part_size(path)?)
    }

    fn write_at(&self, part: &mut LocalPart, offset: u64, data: &[u8]) -> Result<(), TargetError> {
        part.file.write_at(offset, data)?;
        self.barrier.written(&part.file, &mut part.write_back, offset, data.len() as u64)?;
        Ok(())
    }

    fn read_at(&self, part: &mut LocalPart, offset: u64, buffer: &mut [u8]) -> Result<usize, TargetError> {
        Ok(part.file.read_at(offset, buffer)?)
    }

    fn commit(&self, mut part: LocalPart, proof: &Verified, mtime: Option<i64>) -> Result<Committed, TargetError> {
        complete(&part.file, proof, mtime)?;
        self.barrier.before_name(&part.file, &mut part.write_back, proof.size())?;
        part.file.finish()?;
        self.barrier.after_name(part.file.directory())?;
        Ok(Committed::Now)
    }

    fn abandon(&self, part: LocalPart) -> Result<(), TargetError> {
        Ok(part.file.remove()?)
    }

    fn open(&self, path: &str) -> Result<Option<(Content, u64)>, TargetError> {
        let opened = self.root.open_file(path)?;
        Ok(opened.map(|(file, status)| (Box::new(file) as Content, status.size)))
    }

    fn barrier(&self) -> Result<bool, TargetError> {
        self.barrier.sync()?;
        Ok(self.barrier.durability() != Durability::None)
    }

    fn publish(&self, names: &[Name]) -> Result<(), TargetError> {
        for name in names {
            if let Name::Link { from, to } = name
                && self.root.stat(from)?.is_none()
            {
                return Err(TargetError::NothingToPublish { path: from.clone(), name: to.clone() });
            }
        }
        self.barrier.sync()?;
        for name in names {
            match name {
                Name::Link { from, to } => drop(self.root.hard_link(from, to)?),
                Name::Symlink { target, link } => self.root.symlink(target, link)?,
                Name::Remove { path } => drop(self.root.unlink(path)?),
            }
        }
        self.barrier.sync()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    //! Behaviour required of every target, tested on the directory and on the store in memory.

    use super::memory::MemoryTarget;
    use super::*;
    use crate::digest::Sha256Hasher;

    fn proof(data: &[u8]) -> Verified {
        let mut hasher = Sha256Hasher::new();
        hasher.update(data);
        let expected = crate::digest::Sha256::of(data);
        hasher.verify(data.len() as u64, expected).unwrap()
    }

    /// Waits for the result of a commit.
    fn commit<T: Target>(target: &T, part: T::Part, proof: &Verified, mtime: Option<i64>) -> Result<(), TargetError> {
        match target.commit(part, proof, mtime)? {
            Committed::Now => Ok(()),
            Committed::Later(pending) => {
                let (sender, receiver) = std::sync::mpsc::channel();
                pending.then(move |result| sender.send(result).unwrap());
                receiver.recv_timeout(std::time::Duration::from_secs(20)).unwrap()
            }
        }
    }

    fn content(target: &impl Target, path: &str) -> Option<Vec<u8>> {
        let (mut reader, size) = target.open(path).unwrap()?;
        let mut data = Vec::new();
        reader.read_to_end(&mut data).unwrap();
        assert_eq!(data.len() as u64, size);
        Some(data)
    }

    fn conforms(target: &impl Target) {
        // Out of order, then visible at once and whole.
        let mut part = target.begin("pool/a", 6, Sha256::EMPTY).unwrap();
        target.write_at(&mut part, 3, b"def").unwrap();
        assert_eq!(content(target, "pool/a"), None);
        assert_eq!(target.kept("pool/a").unwrap(), Some(6));
        target.write_at(&mut part, 0, b"abc").unwrap();
        let mut buffer = [0; 16];
        assert_eq!(target.read_at(&mut part, 2, &mut buffer).unwrap(), 4);
        assert_eq!(&buffer[..4], b"cdef");
        commit(target, part, &proof(b"abcdef"), Some(1_700_000_000)).unwrap();
        assert_eq!(content(target, "pool/a").unwrap(), b"abcdef");
        assert_eq!(target.kept("pool/a").unwrap(), None);

        // Dropped, then resumed; too long, then cut to what was proven.
        let mut part = target.begin("pool/b", 4, Sha256::EMPTY).unwrap();
        target.write_at(&mut part, 0, b"wxyz!").unwrap();
        drop(part);
        assert_eq!(target.kept("pool/b").unwrap(), Some(5));
        let mut part = target.resume("pool/b", 4).unwrap().unwrap();
        target.write_at(&mut part, 1, b"X").unwrap();
        commit(target, part, &proof(b"wXyz"), None).unwrap();
        assert_eq!(content(target, "pool/b").unwrap(), b"wXyz");
        assert!(target.resume("pool/b", 4).unwrap().is_none());

        // Too short: stays invisible, what was there stays visible.
        let mut part = target.begin("pool/b", 4, Sha256::EMPTY).unwrap();
        target.write_at(&mut part, 0, b"wX").unwrap();
        let error = commit(target, part, &proof(b"wXyz"), None).unwrap_err();
        assert!(matches!(error, TargetError::Length { actual: 2, expected: 4, .. }), "{error}");
        assert_eq!(content(target, "pool/b").unwrap(), b"wXyz");
        assert_eq!(target.kept("pool/b").unwrap(), Some(2));

        // Begun afresh: empty; abandoned: gone.
        let part = target.begin("pool/b", 4, Sha256::EMPTY).unwrap();
        assert_eq!(target.kept("pool/b").unwrap(), Some(0));
        target.abandon(part).unwrap();
        assert_eq!(target.kept("pool/b").unwrap(), None);

        // Empty content.
        let part = target.begin("pool/empty", 0, Sha256::EMPTY).unwrap();
        commit(target, part, &proof(b""), None).unwrap();
        assert_eq!(content(target, "pool/empty").unwrap(), b"");
        target.barrier().unwrap();

        // Names: all or none when content is missing; later ones replace.
        let link = |from: &str, to: &str| Name::Link { from: from.into(), to: to.into() };
        let missing = [link("pool/a", "dists/t/x"), link("pool/none", "dists/t/y")];
        let error = target.publish(&missing).unwrap_err();
        assert!(matches!(error, TargetError::NothingToPublish { .. }), "{error}");
        assert_eq!(content(target, "dists/t/x"), None);
        target
            .publish(&[
                link("pool/a", "dists/t/x"),
                link("pool/b", "dists/t/x"),
                link("pool/b", "dists/t/x"),
                link("pool/a", "dists/t/y"),
                Name::Remove { path: "pool/empty".into() },
                Name::Remove { path: "pool/empty".into() },
                Name::Symlink { target: "t".into(), link: "dists/s".into() },
            ])
            .unwrap();
        assert_eq!(content(target, "dists/t/x").unwrap(), b"wXyz");
        assert_eq!(content(target, "dists/t/y").unwrap(), b"abcdef");
        assert_eq!(content(target, "pool/empty"), None);

        // Impossible paths, and the names of unfinished content.
        for path in ["../x", "/x", "", "a/../b", "pool/.a.part"] {
            assert!(target.begin(path, 1, Sha256::EMPTY).is_err(), "{path:?}");
        }
    }

    #[test]
    fn a_directory_conforms() {
        for durability in [Durability::None, Durability::AtEnd, Durability::Each] {
            let directory = tempfile::tempdir().unwrap();
            let root = Arc::new(Root::open(directory.path()).unwrap());
            conforms(&LocalTarget::new(root.clone(), durability));
            assert_eq!(root.read_link("dists/s").unwrap().as_deref(), Some("t"));
            let status = root.stat("pool/a").unwrap().unwrap();
            assert_eq!((status.mtime, status.links), (1_700_000_000, 2));
        }
    }

    #[test]
    fn a_store_without_rename_conforms() {
        conforms(&MemoryTarget::default());
    }

    #[test]
    fn a_store_that_answers_later_conforms() {
        conforms(&MemoryTarget::late(|_| false));
    }
}
