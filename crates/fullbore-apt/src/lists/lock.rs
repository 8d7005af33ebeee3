//! The lock of the lists directory, as apt holds it.
//!
//! apt locks `lists/lock` with `fcntl`. Such a lock ends with the process, and does not exclude other descriptors of the
//! same process. The file stays.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

/// The name of the lock file in the lists directory.
const LOCK_NAME: &str = "lock";

/// Why a lists directory cannot be locked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// apt or another run holds the lock.
    #[error("{} is locked by another process", .path.display())]
    Held {
        /// Path of the lock file.
        path: PathBuf,
    },
    /// The lock file cannot be made or locked.
    #[error("{}: {source}", .path.display())]
    File {
        /// Path of the lock file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

/// The lock of a lists directory, held until dropped.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of the directory `lists` without waiting.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process holds the lock. [`LockError::File`] if the lock file cannot be created or
    /// locked.
    pub fn take(lists: &Path) -> Result<Lock, LockError> {
        let path = lists.join(LOCK_NAME);
        // Mode as in apt. A link is not followed: the directory may be writable by others.
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .map_err(|source| LockError::File { path: path.clone(), source })?;
        match rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(rustix::io::Errno::ACCESS | rustix::io::Errno::AGAIN) => Err(LockError::Held { path }),
            Err(error) => Err(LockError::File { path, source: error.into() }),
        }
    }
}
