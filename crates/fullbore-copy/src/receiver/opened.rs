//! Directories that their own permissions close to us, although they are ours: opened while a copy writes to them.
//!
//! Read-only directories of a source are read-only at the destination as well, and the next copy has to get in. Each
//! gets its permissions back when the copy ends, however it ends, unless the copy has set them. After a kill the next
//! run does that: it sets the permissions of what is listed, and the [`Marker`](super::marker) tells of the destination
//! itself, which is not listed where a source goes into it by its name.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::attributes::change_mode;
use super::tree::{Folder, Tree};

/// What the owner of a directory needs to work in it.
const OWNER: u32 = 0o700;

/// Whether a directory is ours, and closed to us all the same. Permissions do not bind root.
pub(super) fn is_closed(status: &Stat) -> bool {
    let user = rustix::process::geteuid();
    status.st_mode & OWNER != OWNER && status.st_uid == user.as_raw() && !user.is_root()
}

/// Opens the destination itself, by the user's own path, if it is closed; gives the permissions that it had.
///
/// # Errors
/// It cannot be looked at.
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

/// Opens a file for reading, if its permissions let us; a link is not followed, and a pipe not waited for.
pub(super) fn open_permitted(folder: &Folder, name: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
    let flags = how | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(folder, name, flags, Mode::empty())
}

/// Paths of the directories that were opened, and the permissions that they had. They are among those that are listed.
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

    /// Opens a directory, if it is closed.
    ///
    /// # Errors
    /// Its permissions cannot be changed.
    pub(super) fn open(&self, folder: &Folder, name: &[u8], path: &[u8], status: &Stat) -> Result<(), Errno> {
        if is_closed(status) {
            let mode = status.st_mode & 0o7777;
            change_mode(&folder.descriptor, name, mode | OWNER)?;
            self.was(path, mode);
        }
        Ok(())
    }

    /// A directory that is open now had these permissions.
    pub(super) fn was(&self, path: &[u8], mode: u32) {
        self.lock().insert(path.to_vec(), mode);
    }

    /// Opens a file for reading, also one of ours that its own permissions close to us; they stay as they are.
    ///
    /// # Errors
    /// As open(2).
    pub(super) fn open_file(&self, folder: &Folder, name: &[u8], how: OFlags) -> Result<OwnedFd, Errno> {
        let open = || open_permitted(folder, name, how);
        match open() {
            Err(Errno::ACCESS) => {}
            result => return result,
        }
        // One at a time: by another name of the same file its permissions may be changed just now.
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

    /// The copy itself sets the permissions of a directory.
    pub(super) fn settle(&self, path: &[u8]) {
        self.lock().remove(path);
    }

    /// Closes what is still as it was opened, the deepest first.
    fn close(&self) {
        for (path, mode) in std::mem::take(&mut *self.lock()).into_iter().rev() {
            // One that is gone, or that somebody else has changed, is none of ours.
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
