//! The directories of a run: the mirror, and the one to write to.
//!
//! They are the same, except in a dry run, which writes into a temporary directory only. There, an empty directory
//! stands for a mirror that does not exist yet.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::temporary;

use super::bucket::BucketMirror;
use super::state::{LOG_PATH, OWN_DIRECTORY};
use super::tree::Tree;

/// The directories of a run.
pub struct Directories {
    /// Has fullbore's own files of the mirror.
    pub own: Arc<Root>,
    /// The published files of the mirror.
    pub tree: Arc<dyn Tree>,
    /// The directory to write to.
    pub work: Arc<Root>,
    /// A directory of the file system that the mirror is on, or will be.
    pub volume: Arc<Root>,
    /// The bucket, if the mirror is in one.
    pub bucket: Option<Arc<BucketMirror>>,
    scratch: Option<Scratch>,
}

/// A directory that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoriesError {
    /// The mirror's directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// A temporary one.
    #[error("cannot make a temporary directory in {}: {source}", path.display())]
    Scratch {
        /// Where.
        path: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

impl Directories {
    /// A run that writes into the mirror.
    pub fn of(root: Arc<Root>) -> Directories {
        Directories {
            work: root.clone(),
            volume: root.clone(),
            tree: root.clone(),
            own: root,
            bucket: None,
            scratch: None,
        }
    }

    /// A run over a mirror in a bucket; fullbore's own files are in a temporary directory.
    pub fn of_bucket(bucket: BucketMirror) -> Directories {
        let own = bucket.own().clone();
        Directories {
            work: own.clone(),
            volume: own.clone(),
            own,
            tree: bucket.tree.clone(),
            bucket: Some(Arc::new(bucket)),
            scratch: None,
        }
    }

    /// Directories of a dry run; its temporary directory is created below `below`.
    ///
    /// # Errors
    /// Errors of the file system. A missing mirror is no error.
    pub fn untouched(dir: &Path, below: &Path) -> Result<Directories, DirectoriesError> {
        let scratch =
            Scratch::make(below).map_err(|source| DirectoriesError::Scratch { path: below.to_owned(), source })?;
        let work = Arc::new(Root::open(&scratch.path)?);
        work.create_directory(OWN_DIRECTORY, 0o700)?;
        let (root, volume) = if dir.exists() {
            let root = Arc::new(Root::open(dir)?);
            (root.clone(), root)
        } else {
            work.create_directory(NO_MIRROR, 0o700)?;
            let above = dir.ancestors().find(|above| above.is_dir()).unwrap_or(Path::new("."));
            (Arc::new(Root::open(&scratch.path.join(NO_MIRROR))?), Arc::new(Root::open(above)?))
        };
        // The plan shows the work of a killed run, read from a copy of its log.
        if let Some((mut log, _)) = root.open_file(LOG_PATH)? {
            let mut copy = work.open_append(LOG_PATH)?;
            io::copy(&mut log, &mut copy)
                .map_err(|source| DirectoriesError::Scratch { path: scratch.path.clone(), source })?;
        }
        Ok(Directories { tree: root.clone(), own: root, work, volume, bucket: None, scratch: Some(scratch) })
    }

    /// Whether the mirror stays as it is.
    pub fn is_untouched(&self) -> bool {
        self.scratch.is_some()
    }
}

/// Stands for a mirror that does not exist.
const NO_MIRROR: &str = "mirror";

/// Prefix of temporary directories.
const SCRATCH: &str = "fullbore-";

/// A temporary directory of mode 0700, removed when dropped. Creating one removes those of killed runs.
pub(super) struct Scratch {
    path: PathBuf,
    /// Holds the lock.
    _held: File,
}

impl Scratch {
    /// Makes one below `below`.
    pub(super) fn make(below: &Path) -> io::Result<Scratch> {
        temporary::remove_abandoned(below, OsStr::new(SCRATCH), "", Metadata::is_dir);
        let (path, held) = temporary::kept_directory(below, OsStr::new(SCRATCH))?;
        Ok(Scratch { path, _held: held })
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // The system cleans its temporary directory.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_changes_nothing_leaves_nothing() {
        let below = tempfile::tempdir().unwrap();
        let temporary_directory = below.path();
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join(OWN_DIRECTORY)).unwrap();
        std::fs::write(here.path().join(LOG_PATH), b"log").unwrap();
        let places = Directories::untouched(here.path(), temporary_directory).unwrap();
        assert_eq!(places.work.read(LOG_PATH, 10).unwrap().unwrap(), b"log");
        assert_eq!(places.volume.path(), here.path());
        let missing = Directories::untouched(&here.path().join("a/b"), temporary_directory).unwrap();
        assert!(missing.is_untouched() && missing.tree.list("").unwrap().is_empty());
        assert_eq!(missing.volume.path(), here.path());
        drop((places, missing));
        // What a killed run left.
        let left = temporary::directory(temporary_directory, OsStr::new(SCRATCH)).unwrap();
        std::fs::write(left.join("index"), "").unwrap();
        drop(Directories::untouched(here.path(), temporary_directory).unwrap());
        assert_eq!(std::fs::read_dir(temporary_directory).unwrap().count(), 0);
        assert!(!here.path().join("a").exists());
    }
}
