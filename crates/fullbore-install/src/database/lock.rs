//! dpkg's two locks: `lock` for the database, `lock-frontend` for frontends such as apt.

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::DIRECTORY;
use crate::root::{Root, RootError};

/// A lock of dpkg, released on drop. It belongs to the process: the same process can take it twice, and the first
/// release ends both (fcntl(2), record locks).
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// Error in taking one of dpkg's locks.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process holds the lock.
    #[error("/var/lib/dpkg/{0}: another process holds the lock (dpkg or apt is running)")]
    Held(&'static str),
    /// The lock file cannot be opened.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl Lock {
    /// Takes `lock-frontend`, from the decision to the end of the installation. dpkg then runs with
    /// `DPKG_FRONTEND_LOCKED` in its environment.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process holds the lock, [`LockError::Root`] if the lock file cannot be opened.
    pub fn frontend(root: &Root) -> Result<Lock, LockError> {
        Lock::take(root, "lock-frontend")
    }

    /// Takes `lock`, to read and change the database. dpkg takes it itself.
    ///
    /// # Errors
    /// [`LockError::Held`] if another process holds the lock, [`LockError::Root`] if the lock file cannot be opened.
    pub fn database(root: &Root) -> Result<Lock, LockError> {
        Lock::take(root, "lock")
    }

    fn take(root: &Root, name: &'static str) -> Result<Lock, LockError> {
        let file = open_lock(root, name)?;
        match rustix::io::retry_on_intr(|| rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(Errno::AGAIN | Errno::ACCESS) => Err(LockError::Held(name)),
            Err(errno) => Err(failed(name, errno).into()),
        }
    }
}

/// Lock files in dpkg's directory, in the order of taking them.
pub(crate) const LOCKS: [&str; 2] = ["lock-frontend", "lock"];

/// Opens a lock file without taking the lock.
pub(crate) fn open_lock(root: &Root, name: &str) -> Result<OwnedFd, RootError> {
    let directory = root.directory(DIRECTORY.as_bytes()).map_err(|errno| failed(name, errno))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o640)).map_err(|errno| failed(name, errno))
}

fn failed(name: &str, errno: Errno) -> RootError {
    RootError::new(format!("{DIRECTORY}/{name}").as_bytes(), "lock", errno)
}
