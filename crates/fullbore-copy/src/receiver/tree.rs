//! The destination: one directory held open, and every path resolved below it.
//!
//! Like the engine's `files`, but for names of any bytes, and with the attributes that new files inherit from their
//! directory. `openat2` refuses every path that leads out. Where it is missing, paths are opened part by part.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{Access, AtFlags, Mode, OFlags, RenameFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use super::free_space::FileSystem;
use crate::entry::PATH_BYTES;
use crate::xattrs::{self, FileRef};

/// Number of directories kept open: half of the limit on open files, within these bounds. Listing runs far ahead of
/// writing and naming, and each of them needs its directories.
const OPEN_DIRECTORIES: std::ops::RangeInclusive<u64> = 128..=8192;

const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Most directories that are kept open.
fn most_open() -> u64 {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    (limit / 2).clamp(*OPEN_DIRECTORIES.start(), *OPEN_DIRECTORIES.end())
}

/// Makes the kernel enlarge this process's table of open files to the size that a receiver needs. In a process with
/// threads, each doubling of the table waits for an RCU grace period (`expand_fdtable` in `fs/file.c`). That is seven
/// times 10 to 20 ms (measured), in which the other threads wait for directories. So call it before there are other
/// threads, if a copy may go to this machine.
pub(crate) fn reserve_descriptors() {
    let any = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    // The table keeps its size when this descriptor is closed. If the call fails, the table grows as needed.
    drop(any.and_then(|any| rustix::io::fcntl_dupfd_cloexec(any, most_open() as i32)));
}

/// An open directory of the destination.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) descriptor: OwnedFd,
    /// Whether new files inherit the directory's group.
    pub(super) gives_group: bool,
    /// Whether new files inherit an ACL.
    pub(super) gives_acl: bool,
    /// Group of the directory.
    pub(super) group: u32,
    pub(super) device: u64,
    pub(super) file_system: Arc<FileSystem>,
    /// Whether names can be created in it; set by the first check.
    writable: OnceLock<Result<(), Errno>>,
}

impl Folder {
    fn of(descriptor: OwnedFd, open: &Mutex<Open>) -> Result<Folder, Errno> {
        let status = rustix::fs::fstat(&descriptor)?;
        let file_system = locked(open).file_system(status.st_dev, &descriptor)?;
        let mut space = [0_u8; 8];
        let acl = rustix::fs::fgetxattr(&descriptor, xattrs::ACL_DEFAULT, &mut space[..]);
        let gives_acl = matches!(acl, Ok(1..) | Err(Errno::RANGE));
        Ok(Folder {
            descriptor,
            gives_group: status.st_mode & 0o2000 != 0,
            gives_acl,
            group: status.st_gid,
            device: status.st_dev,
            file_system,
            writable: OnceLock::new(),
        })
    }

    /// Makes a directory whose new files inherit as given.
    #[cfg(test)]
    pub(super) fn like(&self, descriptor: OwnedFd, gives_group: bool, gives_acl: bool, group: u32) -> Folder {
        let (device, file_system) = (self.device, self.file_system.clone());
        Folder { descriptor, gives_group, gives_acl, group, device, file_system, writable: OnceLock::new() }
    }

    /// Checks whether names can be created in it.
    ///
    /// # Errors
    /// `EACCES` if this user may not write to the directory. Other obstacles show when files are written.
    pub(super) fn is_writable(&self) -> Result<(), Errno> {
        let look = || rustix::fs::accessat(&self.descriptor, ".", Access::WRITE_OK | Access::EXEC_OK, AtFlags::EACCESS);
        match self.writable.get_or_init(look) {
            Err(Errno::ACCESS) => Err(Errno::ACCESS),
            _ => Ok(()),
        }
    }

    /// The device number of its file system.
    pub(super) fn device(&self) -> u64 {
        self.device
    }

    /// The status of a name, without following links; `None` if it does not exist.
    pub(super) fn status(&self, name: &[u8]) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.descriptor, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(status)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reference to a name for calls on extended attributes.
    pub(super) fn file_ref<'a>(&'a self, name: &'a [u8]) -> FileRef<'a> {
        FileRef::Name(&self.descriptor, name)
    }

    /// Removes a file or link; succeeds if it does not exist.
    pub(super) fn unlink(&self, name: &[u8]) -> Result<(), Errno> {
        match rustix::fs::unlinkat(&self.descriptor, name, AtFlags::empty()) {
            Err(Errno::NOENT) => Ok(()),
            result => result,
        }
    }

    /// Removes a file, link or empty directory with a temporary name; succeeds if it does not exist.
    pub(super) fn discard(&self, name: &[u8]) -> Result<(), Errno> {
        match self.unlink(name) {
            Err(Errno::ISDIR) => rustix::fs::unlinkat(&self.descriptor, name, AtFlags::REMOVEDIR),
            result => result,
        }
    }

    /// Puts the entry `own` in the place of `name`, and keeps the replaced entry. Returns the name that the replaced
    /// entry has now.
    pub(super) fn swap(&self, own: &[u8], name: &[u8], aside: &[u8]) -> Result<Vec<u8>, Errno> {
        let rename = |from: &[u8], to: &[u8]| rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to);
        let (here, flags) = (&self.descriptor, RenameFlags::EXCHANGE);
        match rustix::fs::renameat_with(here, own, here, name, flags) {
            // Not every file system can exchange names.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => {
                self.discard(aside)?;
                rename(name, aside)?;
                rename(own, name).inspect_err(|_| {
                    let _ = rename(aside, name);
                })?;
                Ok(aside.to_vec())
            }
            result => result.map(|()| own.to_vec()),
        }
    }

    /// Gives a file its final name. Replaces any file or empty directory that has the name.
    pub(super) fn rename(&self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        match rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to) {
            Err(Errno::ISDIR | Errno::EXIST | Errno::NOTEMPTY) => {
                rustix::fs::unlinkat(&self.descriptor, to, AtFlags::REMOVEDIR)?;
                rustix::fs::renameat(&self.descriptor, from, &self.descriptor, to)
            }
            result => result,
        }
    }
}

impl AsFd for Folder {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The tree at the destination.
#[derive(Debug)]
pub(super) struct Tree {
    root: Arc<Folder>,
    /// Whether the destination does not exist: a dry run into a directory that it would make.
    nowhere: bool,
    open: Mutex<Open>,
    most_open: usize,
}

#[derive(Debug, Default)]
struct Open {
    folders: HashMap<Vec<u8>, (Arc<Folder>, u64)>,
    clock: u64,
    /// File systems met so far.
    file_systems: Vec<Arc<FileSystem>>,
}

impl Tree {
    /// Opens an existing directory. The path comes from the user, so links in it are followed.
    pub(super) fn open(path: &Path) -> Result<Tree, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = Mutex::default();
        let root = Arc::new(Folder::of(rustix::fs::open(path, flags, Mode::empty())?, &open)?);
        Ok(Tree { root, nowhere: false, open, most_open: most_open() as usize })
    }

    /// A destination that does not exist, for comparing in a dry run.
    pub(super) fn nowhere() -> Result<Tree, Errno> {
        Tree::open(Path::new("/")).map(|tree| Tree { nowhere: true, ..tree })
    }

    /// The destination's own directory.
    pub(super) fn root(&self) -> &Arc<Folder> {
        &self.root
    }

    /// A directory below the destination; empty is the root.
    pub(super) fn folder(&self, path: &[u8]) -> Result<Arc<Folder>, Errno> {
        if self.nowhere {
            return Err(Errno::NOENT);
        }
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        if let Some(folder) = self.lock().get(path) {
            return Ok(folder);
        }
        let folder = Arc::new(Folder::of(self.resolve(path)?, &self.open)?);
        self.lock().put(path, folder.clone(), self.most_open);
        Ok(folder)
    }

    /// Removes a deleted directory and everything below it from the cache.
    pub(super) fn forget(&self, path: &[u8]) {
        let is_below = |other: &[u8]| other.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/');
        self.lock().folders.retain(|other, _| !is_below(other));
    }

    /// All file systems met so far.
    pub(super) fn file_systems(&self) -> Vec<Arc<FileSystem>> {
        self.lock().file_systems.clone()
    }

    fn resolve(&self, path: &[u8]) -> Result<OwnedFd, Errno> {
        if path.len() >= PATH_BYTES {
            // The error that the system returns for whole paths.
            return Err(Errno::NAMETOOLONG);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root.descriptor, path, DIRECTORY, Mode::empty(), resolve) {
            // Before Linux 5.6, or if a container filters the call.
            Err(Errno::NOSYS | Errno::PERM) => {
                let mut current = rustix::io::fcntl_dupfd_cloexec(&self.root.descriptor, 0)?;
                for part in path.split(|byte| *byte == b'/') {
                    current = rustix::fs::openat(&current, part, DIRECTORY, Mode::empty())?;
                }
                Ok(current)
            }
            result => result,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        locked(&self.open)
    }
}

fn locked(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Open {
    /// The file system with this device number. The first directory on it represents it.
    fn file_system(&mut self, device: u64, directory: &OwnedFd) -> Result<Arc<FileSystem>, Errno> {
        if let Some(known) = self.file_systems.iter().find(|file_system| file_system.device == device) {
            return Ok(known.clone());
        }
        let own = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty())?;
        let met = Arc::new(FileSystem::new(device, own));
        self.file_systems.push(met.clone());
        Ok(met)
    }

    fn get(&mut self, path: &[u8]) -> Option<Arc<Folder>> {
        self.clock += 1;
        let (folder, used) = self.folders.get_mut(path)?;
        *used = self.clock;
        Some(folder.clone())
    }

    fn put(&mut self, path: &[u8], folder: Arc<Folder>, most: usize) {
        self.clock += 1;
        if self.folders.len() >= most {
            // Drop half of the cached directories at once, so that a large tree does not cost a search per directory.
            let mut used: Vec<u64> = self.folders.values().map(|(_, used)| *used).collect();
            let middle = used.len() / 2;
            let middle = *used.select_nth_unstable(middle).1;
            self.folders.retain(|_, (_, used)| *used > middle);
        }
        self.folders.insert(path.to_vec(), (folder, self.clock));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_open_files_has_its_size_before_directories_are_opened() {
        reserve_descriptors();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u64>().unwrap() > most_open(), "{size}");
    }
}
