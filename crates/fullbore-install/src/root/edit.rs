//! Changes of files in a root by path.
//!
//! All paths are resolved within the root. A link at the end of a path is not followed: a file that is written replaces
//! a link of its name, as in dpkg.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Root, RootError, retry};

/// Maximum depth of a tree to remove. Each level takes a descriptor, of which a process usually has 1,024.
const DEPTH_MAX: usize = 512;

impl Root {
    /// Splits a path into its open parent directory and its last part.
    pub(crate) fn parent<'p>(&self, path: &'p str) -> Result<(OwnedFd, &'p str), Errno> {
        let path = path.trim_matches('/');
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        if matches!(name, "" | "." | "..") {
            return Err(Errno::INVAL);
        }
        Ok((self.directory(parent.as_bytes())?, name))
    }

    fn in_parent<T>(
        &self,
        path: &str,
        operation: &'static str,
        call: impl FnOnce(BorrowedFd<'_>, &str) -> Result<T, Errno>,
    ) -> Result<T, RootError> {
        let done = self.parent(path).and_then(|(parent, name)| call(parent.as_fd(), name));
        done.map_err(|errno| RootError::new(path.as_bytes(), operation, errno))
    }

    /// Type of the file of this name; a link is not followed. `None` if there is none.
    pub fn kind(&self, path: &str) -> Option<FileType> {
        Some(FileType::from_raw_mode(self.status(path)?.st_mode))
    }

    /// Size in bytes of the file of this name; a link is not followed.
    pub fn size_bytes(&self, path: &str) -> Option<u64> {
        u64::try_from(self.status(path)?.st_size).ok()
    }

    fn status(&self, path: &str) -> Option<Stat> {
        let (parent, name) = self.parent(path).ok()?;
        rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// Type of the file that a path leads to; `None` if there is none.
    pub fn leads_to(&self, path: &str) -> Option<FileType> {
        let found = self.resolve(path.as_bytes(), OFlags::PATH).ok()?;
        Some(FileType::from_raw_mode(rustix::fs::fstat(&found).ok()?.st_mode))
    }

    /// Opens the file that a path leads to with `O_PATH`, as a mount point.
    ///
    /// # Errors
    /// [`RootError`] if no such file exists, or a directory of the path cannot be searched.
    pub fn place(&self, path: &str) -> Result<OwnedFd, RootError> {
        let found = self.resolve(path.as_bytes(), OFlags::PATH);
        found.map_err(|errno| RootError::new(path.as_bytes(), "open", errno))
    }

    /// Creates a file; `None` if the name exists, even as a dangling link.
    ///
    /// # Errors
    /// [`RootError`] if the file cannot be created, for example because its directory is missing.
    pub fn create_new(&self, path: &str, mode: u32) -> Result<Option<File>, RootError> {
        self.in_parent(path, "create", |parent, name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    // Independent of the umask.
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
                    Ok(Some(File::from(file)))
                }
                Err(Errno::EXIST) => Ok(None),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Writes a file and replaces any file or link of this name.
    ///
    /// # Errors
    /// [`RootError`] if the file cannot be written, or a directory has this name.
    pub fn write(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), RootError> {
        let error = |error: io::Error| RootError::new(path.as_bytes(), "write", error);
        let (parent, name) = self.parent(path).map_err(|errno| error(errno.into()))?;
        super::write_file(parent.as_fd(), name, mode, content).map(drop).map_err(error)
    }

    /// Appends to the file that a path leads to; creates it if the name does not exist.
    ///
    /// # Errors
    /// [`RootError`] if the path does not lead to a regular file, or the file cannot be written.
    pub fn append(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), RootError> {
        let error = |error: io::Error| RootError::new(path.as_bytes(), "write", error);
        let mut file = match self.create_new(path, mode)? {
            Some(file) => file,
            None => {
                let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::NONBLOCK;
                let file = self.resolve(path.as_bytes(), flags).map_err(|errno| error(errno.into()))?;
                File::from(file)
            }
        };
        if !file.metadata().map_err(error)?.is_file() {
            return Err(error(io::Error::other("is not a regular file")));
        }
        file.write_all(content).map_err(error)
    }

    /// Creates a directory and its parents. Links to directories count as directories.
    ///
    /// # Errors
    /// [`RootError`] if a directory cannot be created, or another file has its name.
    pub fn create_directories(&self, path: &str, mode: u32) -> Result<(), RootError> {
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for way in ends.map(|end| &path[..end]).filter(|way| !way.is_empty() && !way.ends_with('/')) {
            if self.directory(way.as_bytes()).is_ok() {
                continue;
            }
            self.create_directory(way, mode)?;
        }
        Ok(())
    }

    /// Creates a directory; returns whether it is new.
    ///
    /// # Errors
    /// [`RootError`] if the directory cannot be created, or another file has this name.
    pub fn create_directory(&self, path: &str, mode: u32) -> Result<bool, RootError> {
        self.in_parent(path, "create the directory", |parent, name| {
            match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
                Ok(()) => set_mode(parent, name.as_bytes(), mode).map(|()| true),
                Err(Errno::EXIST) if is_directory(parent, name) => Ok(false),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Sets owner and mode of a directory, and its group to root. Links are not followed.
    ///
    /// # Errors
    /// [`RootError`] if the path is not a directory, or cannot be changed.
    pub fn own_directory(&self, path: &str, owner: Option<u32>, mode: u32) -> Result<(), RootError> {
        self.in_parent(path, "set the owner of", |parent, name| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
            if let Some(owner) = owner {
                let (owner, group) = (rustix::fs::Uid::from_raw(owner), rustix::fs::Gid::ROOT);
                rustix::fs::fchown(&directory, Some(owner), Some(group))?;
            }
            rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))
        })
    }

    /// Creates a symbolic link; returns `false` if the name exists.
    ///
    /// # Errors
    /// [`RootError`] if the link cannot be created, for example because its directory is missing.
    pub fn symlink(&self, target: impl AsRef<Path>, path: &str) -> Result<bool, RootError> {
        let target = target.as_ref();
        self.in_parent(path, "create the link", |parent, name| match rustix::fs::symlinkat(target, parent, name) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno),
        })
    }

    /// Creates a character device.
    ///
    /// # Errors
    /// `EXIST` if the name exists, `PERM` in a user namespace.
    pub(crate) fn character_device(&self, path: &str, mode: u32, device: Dev) -> Result<(), Errno> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mknodat(&parent, name, FileType::CharacterDevice, Mode::from_raw_mode(mode), device)?;
        set_mode(parent.as_fd(), name.as_bytes(), mode)
    }

    /// Whether a device can be opened for writing, which a `nodev` mount forbids.
    pub(crate) fn device_works(&self, path: &str) -> bool {
        !matches!(self.resolve(path.as_bytes(), OFlags::WRONLY | OFlags::NONBLOCK), Err(Errno::ACCESS | Errno::PERM))
    }

    /// Sets the mode of a file; links are left alone.
    ///
    /// # Errors
    /// [`RootError`] if the file does not exist, or cannot be changed.
    pub fn set_mode(&self, path: &str, mode: u32) -> Result<(), RootError> {
        self.in_parent(path, "set the mode of", |parent, name| set_mode(parent, name.as_bytes(), mode))
    }

    /// Renames a file and replaces any file of the new name.
    ///
    /// # Errors
    /// [`RootError`] if the file does not exist, or cannot be renamed.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), RootError> {
        self.in_parent(from, "rename", |parent, name| {
            let (target, new) = self.parent(to)?;
            rustix::fs::renameat(parent, name, &target, new)
        })
    }

    /// Creates a hard link; a symbolic link is not followed.
    ///
    /// # Errors
    /// [`RootError`] if the file does not exist, or the new name exists.
    pub fn hard_link(&self, from: &str, to: &str) -> Result<(), RootError> {
        self.in_parent(from, "link", |parent, name| {
            let (target, new) = self.parent(to)?;
            rustix::fs::linkat(parent, name, &target, new, AtFlags::empty())
        })
    }

    /// Removes a file, a link, or a directory with its content; returns whether it existed.
    ///
    /// # Errors
    /// [`RootError`] if the file exists and cannot be removed.
    pub fn remove(&self, path: &str) -> Result<bool, RootError> {
        let removed = match self.parent(path) {
            Ok((parent, name)) => remove(parent.as_fd(), name.as_bytes(), 0),
            Err(errno) => Err(errno),
        };
        match removed {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(RootError::new(path.as_bytes(), "remove", errno)),
        }
    }

    /// Removes an empty directory; returns `false` if it is not empty or is not a directory.
    ///
    /// # Errors
    /// [`RootError`] if the directory exists and cannot be removed, for a reason that is not its content.
    pub fn remove_directory(&self, path: &str) -> Result<bool, RootError> {
        self.in_parent(path, "remove", |parent, name| match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        })
    }

    /// Removes the content of a directory except these names. Does nothing for a link or a missing directory.
    ///
    /// # Errors
    /// [`RootError`] if the directory cannot be read, or a file in it cannot be removed.
    pub fn empty(&self, path: &str, kept: &[&str]) -> Result<(), RootError> {
        if self.kind(path) != Some(FileType::Directory) {
            return Ok(());
        }
        let error = |errno| RootError::new(path.as_bytes(), "empty", errno);
        let directory = self.resolve(path.as_bytes(), OFlags::RDONLY | OFlags::DIRECTORY).map_err(error)?;
        for name in names_in(&directory).map_err(error)? {
            if !kept.iter().any(|kept| kept.as_bytes() == name) {
                remove(directory.as_fd(), &name, 0).map_err(error)?;
            }
        }
        Ok(())
    }
}

/// Sets the mode of a file in a directory; symbolic links and their targets stay unchanged.
pub(crate) fn set_mode(directory: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
    let open = |flags| retry(|| rustix::fs::openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()));
    // fchmodat(2) follows links, and fchmodat2(2) needs Linux 6.6. libc does the same as here.
    let held = open(OFlags::PATH | OFlags::NOFOLLOW)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&held)?.st_mode);
    if kind == FileType::Symlink {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode) {
        // Without /proc. Opening a device can have side effects.
        Err(Errno::NOENT) if !matches!(kind, FileType::CharacterDevice | FileType::BlockDevice) => {
            rustix::fs::fchmod(open(OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK)?, mode)
        }
        result => result,
    }
}

fn is_directory(parent: BorrowedFd<'_>, name: &str) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|status| FileType::from_raw_mode(status.st_mode) == FileType::Directory)
}

/// Names in an open directory, without `.` and `..`.
pub(super) fn names_in(directory: impl AsFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// Removes a file, or a directory with its content.
fn remove(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        // For a directory, POSIX requires the first and Linux returns the second.
        Err(Errno::PERM | Errno::ISDIR) => {}
        result => return result,
    }
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match retry(|| rustix::fs::openat(parent, name, flags, Mode::empty())) {
        // Not a directory, so the first error is the right one.
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::PERM),
        directory => directory?,
    };
    for inner in names_in(&directory)? {
        remove(directory.as_fd(), &inner, depth + 1)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
