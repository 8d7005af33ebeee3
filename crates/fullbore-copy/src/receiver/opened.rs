//! Directories of this user whose permissions deny access to the owner. They are opened while a copy writes to them.
//!
//! Read-only directories of a source are read-only at the destination as well, and the next copy has to write there.
//! Each directory gets its permissions back when the copy ends, unless the copy has set them. After a kill the next run
//! restores them: it sets the permissions of listed directories. The [`Marker`](super::marker) records those of the
//! destination itself, which is not always listed.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::change_mode;
use super::tree::{Folder, Tree};

/// Permissions that the owner needs to work in a directory.
const OWNER: u32 = 0o700;

/// Whether a directory belongs to this user and still denies access. Permissions do not bind root.
pub(super) fn is_closed(status: &Stat) -> bool {
    let user = rustix::process::geteuid();
    status.st_mode & OWNER != OWNER && status.st_uid == user.as_raw() && !user.is_root()
}

/// Opens the destination itself, by the user's path, if its permissions deny access. Returns the original permissions
/// if they were changed.
///
/// # Errors
/// The error of open(2), fstat(2) or chmod(2).
pub(super) fn open_root(path: &Path) -> Result<Option<u32>, Errno> {
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let status = rustix::fs::fstat(&held)?;
    if !is_closed(&status) {
        return Ok(None);
    }
    let mode = status.st_mode & 0o7777;
    let by_descriptor = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    rustix::fs::chmod(by_descriptor, Mode::from_raw_mode(mode | OWNER)).map(|()| Some(mode))
}

/// Opens a file for reading, if its permissions allow it. Does not follow a link, nor wait for a pipe.
pub(super) fn open_permitted(folder: &Folder, name: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Paths of opened directories and their original permissions. All of them are among the listed ones.
pub(super) struct Opened<'a> {
    tree: &'a Tree,
    modes: Mutex<BTreeMap<Vec<u8>, u32>>,
}

impl<'a> Opened<'a> {
    pub(super) fn of(tree: &'a Tree) -> Opened<'a> {
        Opened { tree, modes: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, u32>> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives this user access to a directory that denies it.
    ///
    /// # Errors
    /// The error of chmod(2) if the permissions cannot be changed.
    pub(super) fn open(&self, folder: &Folder, name: &[u8], path: &[u8], status: &Stat) -> Result<(), Errno> {
        if is_closed(status) {
            let mode = status.st_mode & 0o7777;
            change_mode(&folder.descriptor, name, mode | OWNER)?;
            self.was(path, mode);
        }
        Ok(())
    }

    /// Records the original permissions of a directory that is open now.
    pub(super) fn was(&self, path: &[u8], mode: u32) {
        self.lock().insert(path.to_vec(), mode);
    }

    /// Opens a file for reading, even if it is this user's and its own permissions deny that. Its permissions are
    /// restored at once.
    ///
    /// # Errors
    /// The error of open(2); `EACCES` also for another user's file. Otherwise the error of stat(2) or chmod(2).
    pub(super) fn open_file(&self, folder: &Folder, name: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
        let open = || open_permitted(folder, name, how);
        match open() {
            Err(Errno::ACCESS) => {}
            result => return result,
        }
        // One thread at a time: another name of the same file may have its permissions changed at the moment.
        let _alone = self.lock();
        let status = folder.status(name)?.ok_or(Errno::NOENT)?;
        if status.st_uid != rustix::process::geteuid().as_raw() {
            return Err(Errno::ACCESS);
        }
        let mode = status.st_mode & 0o7777;
        change_mode(&folder.descriptor, name, mode | Mode::RUSR.as_raw_mode())?;
        let opened = open();
        change_mode(&folder.descriptor, name, mode)?;
        opened
    }

    /// The copy itself sets the permissions of this directory.
    pub(super) fn settle(&self, path: &[u8]) {
        self.lock().remove(path);
    }

    /// Restores permissions that are still as they were opened, deepest directory first.
    fn close(&self) {
        for (path, mode) in std::mem::take(&mut *self.lock()).into_iter().rev() {
            // A directory that is gone, or that someone else has changed, is left alone.
            let _ = self.tree.folder(&path).and_then(|folder| {
                let now = rustix::fs::fstat(&*folder)?.st_mode & 0o7777;
                if now == mode | OWNER { change_mode(&folder.descriptor, b".", mode) } else { Ok(()) }
            });
        }
    }
}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        self.close();
    }
}
