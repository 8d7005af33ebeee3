//! dpkg's two locks: `lock` for the database, `lock-frontend` for who decides what is done (apt and its like).

use std::os::fd::OwnedFd;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::DIRECTORY;
use crate::root::{Root, RootError};

/// A lock, held until it is dropped. It is the process's: a second one for the same file in the
/// same process is granted, and closing either gives both back (fcntl(2), record locks).
#[derive(Debug)]
pub struct Lock {
    _file: OwnedFd,
}

/// Why a lock was not had.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("/var/lib/dpkg/{0}: another process holds the lock (dpkg or apt is running)")]
    Held(&'static str),
    /// The file could not be opened.
    #[error(transparent)]
    Root(#[from] RootError),
}

impl Lock {
    /// `lock-frontend`: before deciding, until all is done. dpkg is then started with
    /// `DPKG_FRONTEND_LOCKED` in its environment.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn frontend(root: &Root) -> Result<Lock, LockError> {
        Lock::take(root, "lock-frontend")
    }

    /// `lock`: while the database is read and changed; dpkg takes it itself.
    ///
    /// # Errors
    /// See [`LockError`].
    pub fn database(root: &Root) -> Result<Lock, LockError> {
        Lock::take(root, "lock")
    }

    fn take(root: &Root, name: &'static str) -> Result<Lock, LockError> {
        let file = open_lock(root, name)?;
        match retry_interrupted(|| rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)) {
            Ok(()) => Ok(Lock { _file: file }),
            Err(Errno::AGAIN | Errno::ACCESS) => Err(LockError::Held(name)),
            Err(errno) => Err(failed(name, errno).into()),
        }
    }
}

/// The lock files in dpkg's directory, in the order in which they are taken.
pub(crate) const LOCKS: [&str; 2] = ["lock-frontend", "lock"];

/// Opens one of them, without taking it.
pub(crate) fn open_lock(root: &Root, name: &str) -> Result<OwnedFd, RootError> {
    let directory = root.directory(DIRECTORY.as_bytes()).map_err(|errno| failed(name, errno))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o640)).map_err(|errno| failed(name, errno))
}

fn failed(name: &str, errno: Errno) -> RootError {
    RootError::new(format!("{DIRECTORY}/{name}").as_bytes(), "lock", errno)
}

fn retry_interrupted<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            result => return result,
        }
    }
}
