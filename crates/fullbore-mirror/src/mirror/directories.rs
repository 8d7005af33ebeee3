//! The directories of a run: the mirror itself, and where the run may write.
//!
//! They are one and the same, except in a dry run. That one leaves nothing behind and needs no right
//! to write: what it fetches goes into a directory of its own among the temporary files, and a mirror
//! that is still to be made is an empty directory there.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, Metadata};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fullbore_engine::files::{FileError, Root};
use fullbore_engine::temporary;

use super::state::{LOG_PATH, OWN_DIRECTORY};

/// Where a run reads and writes.
pub struct Directories {
    /// The mirror's directory.
    pub root: Arc<Root>,
    /// What is written to.
    pub work: Arc<Root>,
    /// A directory of the file system that the mirror is on, or will be.
    pub volume: Arc<Root>,
    scratch: Option<Scratch>,
}

/// Why there is no place for a run.
#[derive(Debug, thiserror::Error)]
pub enum DirectoriesError {
    /// The mirror's directory.
    #[error(transparent)]
    File(#[from] FileError),
    /// A temporary one.
    #[error("{}: cannot make a temporary directory: {source}", path.display())]
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
        Directories { work: root.clone(), volume: root.clone(), root, scratch: None }
    }

    /// A run that changes nothing. `below` is where its own directory is made.
    ///
    /// # Errors
    /// Refusals of the system. That the directory does not exist is none.
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
        // What a killed run has done already shows in the plan; its log is taken up from a copy.
        if let Some((mut log, _)) = root.open_file(LOG_PATH)? {
            let mut copy = work.open_append(LOG_PATH)?;
            io::copy(&mut log, &mut copy)
                .map_err(|source| DirectoriesError::Scratch { path: scratch.path.clone(), source })?;
        }
        Ok(Directories { root, work, volume, scratch: Some(scratch) })
    }

    /// Whether the mirror stays as it is.
    pub fn is_untouched(&self) -> bool {
        self.scratch.is_some()
    }
}

/// Stands for a mirror that does not exist.
const NO_MIRROR: &str = "mirror";

/// How the names of scratch directories begin.
const SCRATCH: &str = "fullbore-";

/// A directory of mode 0700 that goes when dropped. One that a killed run has left goes when the next one is made.
struct Scratch {
    path: PathBuf,
    /// Holds the lock.
    _held: File,
}

impl Scratch {
    fn make(below: &Path) -> io::Result<Scratch> {
        temporary::remove_abandoned(below, OsStr::new(SCRATCH), "", Metadata::is_dir);
        temporary::with_name(OsStr::new(SCRATCH), "", |name| {
            let path = below.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            let held = File::open(&path)?;
            temporary::keep(&held, &path)?;
            Ok(Scratch { path, _held: held })
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What cannot be removed lies among the temporary files, which are removed by others.
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
        assert!(missing.is_untouched() && missing.root.list("").unwrap().is_empty());
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
