//! Directory handles: opened beneath the root, without following symbolic links, and cached.
//!
//! [`super::beneath`] opens them. Without the cache, twenty thousand small files per second would each pay for the
//! walk.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::Mode;
use rustix::io::Errno;

use super::beneath::{self, DIRECTORY};
use super::{FileError, name};

/// Directory handles kept open. A guess: a quarter of the usual limit of 1024 open
/// files per process; a pool has about 3,000 directories, visited in no order.
const CACHED_DIRECTORIES: usize = 256;

pub(super) const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o755);

/// An open directory beneath the root.
#[derive(Debug)]
pub struct Directory {
    descriptor: OwnedFd,
    path: String,
    /// Whether new files here get the mode that we ask for: 0 not known yet, 1 yes, 2 no. With 2, the umask or a
    /// default ACL takes bits away, and each file needs a chmod.
    modes: AtomicU8,
    /// Whether the names of this directory and those above it were synced. Only used with `Durability::Each`.
    pub(crate) ancestors_synced: AtomicBool,
}

impl Directory {
    /// Path beneath the root; "" for the root itself.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Gives a file just created here `mode`, whatever the umask. It checks the first file in each directory, and
    /// afterwards acts only where needed.
    pub(super) fn settle_mode(&self, file: BorrowedFd<'_>, mode: Mode) -> Result<(), Errno> {
        match self.modes.load(Ordering::Relaxed) {
            1 => return Ok(()),
            2 => {}
            _ => {
                let right = rustix::fs::fstat(file)?.st_mode & 0o777 == mode.as_raw_mode();
                self.modes.store(if right { 1 } else { 2 }, Ordering::Relaxed);
                if right {
                    return Ok(());
                }
            }
        }
        rustix::fs::fchmod(file, mode)
    }
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// How directories are opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resolve {
    /// With `openat2`.
    Kernel,
    /// Component by component.
    Stepwise,
}

/// Which permissions new files and directories get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Modes {
    /// The given ones, whatever the umask.
    Fixed,
    /// The umask applies, as for other tools that write a user's own files.
    Umask,
}

#[derive(Debug)]
pub(super) struct Directories {
    root: Arc<Directory>,
    resolve: Resolve,
    pub(super) modes: Modes,
    cache: Mutex<Cache>,
    file_systems: Mutex<Vec<(u64, Arc<OwnedFd>)>>,
}

#[derive(Debug, Default)]
struct Cache {
    entries: HashMap<String, (Arc<Directory>, u64)>,
    clock: u64,
}

impl Directories {
    pub(super) fn new(root: OwnedFd, resolve: Option<Resolve>, modes: Modes) -> Result<Directories, FileError> {
        let resolve = resolve.unwrap_or_else(|| match beneath::by_kernel(root.as_fd(), Path::new("."), DIRECTORY) {
            Ok(_) => Resolve::Kernel,
            // ENOSYS: before Linux 5.6; EPERM: seccomp filters of older containers.
            Err(_) => Resolve::Stepwise,
        });
        let directories = Directories {
            root: Arc::new(handle(root, "")),
            resolve,
            modes,
            cache: Mutex::default(),
            file_systems: Mutex::default(),
        };
        directories.note_file_system(&directories.root)?;
        Ok(directories)
    }

    pub(super) fn root(&self) -> &Arc<Directory> {
        &self.root
    }

    /// One descriptor per file system met so far. Each was opened before anything was written to it through this root.
    pub(super) fn file_systems(&self) -> Vec<Arc<OwnedFd>> {
        locked(&self.file_systems).iter().map(|(_, descriptor)| descriptor.clone()).collect()
    }

    /// Returns the handle of a directory. With `create`, a missing directory and its parents are created.
    pub(super) fn get(&self, path: &str, create: bool) -> Result<Arc<Directory>, FileError> {
        if path.is_empty() {
            return Ok(self.root.clone());
        }
        if let Some(directory) = locked(&self.cache).get(path) {
            return Ok(directory);
        }
        name::check_directory(path)?;
        let descriptor = match self.open(path) {
            Err(Errno::NOENT) if create => self.make(path, DIRECTORY_MODE)?,
            result => result.map_err(|errno| self.explain("open directory", path, errno))?,
        };
        let directory = Arc::new(handle(descriptor, path));
        self.note_file_system(&directory)?;
        locked(&self.cache).put(path, directory.clone());
        Ok(directory)
    }

    /// Creates a directory unless it exists, and opens it. It gets `mode` and its parents 0755; with [`Modes::Umask`],
    /// all get 0777 less the umask.
    pub(super) fn make(&self, path: &str, mode: Mode) -> Result<OwnedFd, FileError> {
        let is_fixed = self.modes == Modes::Fixed;
        let mode = if is_fixed { mode } else { Mode::from_raw_mode(0o777) };
        // The depth of the recursion is bounded by the depth of a checked path.
        let (parent, last) = name::split(path)?;
        let parent = self.get(parent, true)?;
        let made = rustix::fs::mkdirat(&parent, last, mode);
        let error = |errno| self.explain("create directory", path, errno);
        match made {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(error(errno)),
        }
        let descriptor = rustix::fs::openat(&parent, last, DIRECTORY, Mode::empty()).map_err(error)?;
        if made.is_ok() && is_fixed {
            let is = rustix::fs::fstat(&descriptor).map_err(error)?.st_mode;
            if is & 0o777 != mode.as_raw_mode() {
                // Keeps an inherited set-group-id bit, which chmod would drop.
                let wanted = Mode::from_raw_mode(is & 0o7000) | mode;
                rustix::fs::fchmod(&descriptor, wanted).map_err(error)?;
            }
        }
        Ok(descriptor)
    }

    /// Drops the cached handles of a removed directory and of those below it.
    pub(super) fn forget(&self, path: &str) {
        let below = |entry: &str| entry.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        locked(&self.cache).entries.retain(|entry, _| !below(entry));
    }

    fn open(&self, path: &str) -> Result<OwnedFd, Errno> {
        match self.resolve {
            Resolve::Kernel => beneath::by_kernel(self.root.as_fd(), Path::new(path), DIRECTORY),
            Resolve::Stepwise => beneath::by_steps(self.root.as_fd(), Path::new(path), DIRECTORY),
        }
    }

    /// Maps the different errors that kernels give for a symbolic link to [`FileError::Symlink`].
    pub(super) fn explain(&self, operation: &'static str, path: &str, errno: Errno) -> FileError {
        let is_link = || {
            let Ok((parent, last)) = name::split(path) else {
                return false;
            };
            let parent = if parent.is_empty() {
                self.root.descriptor.try_clone().map_err(|_| Errno::IO)
            } else {
                self.open(parent)
            };
            parent
                .and_then(|parent| rustix::fs::statat(&parent, last, rustix::fs::AtFlags::SYMLINK_NOFOLLOW))
                .is_ok_and(|status| {
                    rustix::fs::FileType::from_raw_mode(status.st_mode) == rustix::fs::FileType::Symlink
                })
        };
        match errno {
            Errno::LOOP | Errno::XDEV => FileError::Symlink { path: path.to_owned() },
            Errno::NOTDIR if is_link() => FileError::Symlink { path: path.to_owned() },
            errno => FileError::io(operation, path, errno),
        }
    }

    fn note_file_system(&self, directory: &Directory) -> Result<(), FileError> {
        let error = |errno| FileError::io("look at", &directory.path, errno);
        let device = rustix::fs::fstat(directory).map_err(error)?.st_dev;
        let mut file_systems = locked(&self.file_systems);
        if !file_systems.iter().any(|(known, _)| *known == device) {
            let own = rustix::fs::openat(directory, ".", DIRECTORY, Mode::empty());
            file_systems.push((device, Arc::new(own.map_err(error)?)));
        }
        Ok(())
    }
}

impl Cache {
    fn get(&mut self, path: &str) -> Option<Arc<Directory>> {
        self.clock += 1;
        let (directory, used) = self.entries.get_mut(path)?;
        *used = self.clock;
        Some(directory.clone())
    }

    fn put(&mut self, path: &str, directory: Arc<Directory>) {
        self.clock += 1;
        if self.entries.len() >= CACHED_DIRECTORIES {
            // A scan of 256 entries takes about a microsecond, on a path that opens a directory anyway. So no ordered
            // list is kept.
            let oldest = self.entries.iter().min_by_key(|(_, (_, used))| *used);
            if let Some(oldest) = oldest.map(|(path, _)| path.clone()) {
                self.entries.remove(&oldest);
            }
        }
        self.entries.insert(path.to_owned(), (directory, self.clock));
    }
}

fn handle(descriptor: OwnedFd, path: &str) -> Directory {
    Directory { descriptor, path: path.to_owned(), modes: AtomicU8::new(0), ancestors_synced: AtomicBool::new(false) }
}

/// A panic never leaves the map half-changed, so a poisoned lock is still good.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
