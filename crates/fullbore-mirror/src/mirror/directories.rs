//! The directories of a run: the mirror, and the one to write to.
//!
//! Both are the same, except in a dry run, which writes into a temporary directory only. If the mirror does not exist
//! yet, a dry run reads an empty directory in its place.

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

/// Directories of a run.
pub(crate) struct Directories {
    /// Directory with fullbore's own files of the mirror.
    pub own: Arc<Root>,
    /// The published files of the mirror.
    pub tree: Arc<dyn Tree>,
    /// Directory that the run writes to.
    pub work: Arc<Root>,
    /// Directory on the file system of the mirror, for measuring free space.
    pub volume: Arc<Root>,
    /// Bucket of the mirror, if it is in one.
    pub bucket: Option<Arc<BucketMirror>>,
    scratch: Option<Scratch>,
}

/// Why the directories cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoriesError {
    /// The mirror's directory cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// A temporary directory cannot be created.
    #[error("cannot make a temporary directory in {}: {source}", path.display())]
    Scratch {
        /// Parent of the temporary directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl Directories {
    /// Directories of a run that writes into the mirror.
    pub(crate) fn of(root: Arc<Root>) -> Directories {
        Directories {
            work: root.clone(),
            volume: root.clone(),
            tree: root.clone(),
            own: root,
            bucket: None,
            scratch: None,
        }
    }

    /// Directories of a run with a mirror in a bucket; fullbore's own files are in a temporary directory.
    pub(crate) fn of_bucket(bucket: BucketMirror) -> Directories {
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
    /// [`DirectoriesError`] if a directory cannot be opened or the temporary one cannot be created. A missing mirror is
    /// not an error.
    pub(crate) fn untouched(dir: &Path, below: &Path) -> Result<Directories, DirectoriesError> {
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
        // The plan also uses the work of a killed run, from a copy of its log.
        if let Some((mut log, _)) = root.open_file(LOG_PATH)? {
            let mut copy = work.open_append(LOG_PATH)?;
            io::copy(&mut log, &mut copy)
                .map_err(|source| DirectoriesError::Scratch { path: scratch.path.clone(), source })?;
        }
        Ok(Directories { tree: root.clone(), own: root, work, volume, bucket: None, scratch: Some(scratch) })
    }

    /// Whether the run leaves the mirror unchanged.
    pub(crate) fn is_untouched(&self) -> bool {
        self.scratch.is_some()
    }
}

/// Name of the empty directory that is used in place of a missing mirror.
const NO_MIRROR: &str = "mirror";

/// Prefix of the names of temporary directories.
const SCRATCH: &str = "fullbore-";

/// A temporary directory of mode 0700, removed when dropped. Creating one removes those of killed runs.
pub(super) struct Scratch {
    path: PathBuf,
    /// File with the lock, which marks the directory as in use.
    _held: File,
}

impl Scratch {
    /// Creates a temporary directory in `below`.
    pub(super) fn make(below: &Path) -> io::Result<Scratch> {
        temporary::remove_abandoned(below, OsStr::new(SCRATCH), "", Metadata::is_dir);
        let (path, held) = temporary::kept_directory(below, OsStr::new(SCRATCH))?;
        Ok(Scratch { path, _held: held })
    }

    /// Path of the directory.
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
