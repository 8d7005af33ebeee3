//! Changes in a root by path: each goes through the root's handle and does not follow a link at its end.
//!
//! Links on the way lead to where they lead once the root is `/`. What is written under a name replaces a link of this
//! name, as dpkg's renames do; it never goes where the link leads.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dev, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::{Root, RootError, retry};

/// Directories in each other that a tree to be removed may have. A path in the kernel has 4,096 bytes, so 2,048 parts;
/// each takes a descriptor, of which a process usually has 1,024.
const DEPTH_MAX: usize = 512;

impl Root {
    /// The directory that a path's last part is in, and that part. An empty one stands for the root itself.
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

    /// What has this name itself, be it a link; `None` if nothing has.
    pub fn kind(&self, path: &str) -> Option<FileType> {
        Some(FileType::from_raw_mode(self.status(path)?.st_mode))
    }

    /// The size of what has this name itself, in bytes.
    pub fn size_bytes(&self, path: &str) -> Option<u64> {
        u64::try_from(self.status(path)?.st_size).ok()
    }

    fn status(&self, path: &str) -> Option<Stat> {
        let (parent, name) = self.parent(path).ok()?;
        rustix::fs::statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW).ok()
    }

    /// What a path leads to within the root, links followed; `None` if it leads to nothing.
    pub fn leads_to(&self, path: &str) -> Option<FileType> {
        let found = self.resolve(path.as_bytes(), OFlags::PATH).ok()?;
        Some(FileType::from_raw_mode(rustix::fs::fstat(&found).ok()?.st_mode))
    }

    /// Opens what a path leads to within the root, as a place: to be mounted on, or to be asked about.
    ///
    /// # Errors
    /// It leads to nothing.
    pub fn place(&self, path: &str) -> Result<OwnedFd, RootError> {
        let found = self.resolve(path.as_bytes(), OFlags::PATH);
        found.map_err(|errno| RootError::new(path.as_bytes(), "open", errno))
    }

    /// Makes a new file; `None` if something has this name, be it a link to nothing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn create_new(&self, path: &str, mode: u32) -> Result<Option<File>, RootError> {
        self.in_parent(path, "create", |parent, name| {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            match rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    // Whatever the umask.
                    rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
                    Ok(Some(File::from(file)))
                }
                Err(Errno::EXIST) => Ok(None),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Writes a file in place of what has this name.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&self, path: &str, mode: u32, content: &[u8]) -> Result<(), RootError> {
        let error = |error: io::Error| RootError::new(path.as_bytes(), "write", error);
        let (parent, name) = self.parent(path).map_err(|errno| error(errno.into()))?;
        super::write_file(parent.as_fd(), name, mode, content).map(drop).map_err(error)
    }

    /// Writes at the end of the file that a path leads to within the root; makes it if nothing has this name.
    ///
    /// # Errors
    /// It is no regular file, or cannot be written.
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
            return Err(error(io::Error::other("is no regular file")));
        }
        file.write_all(content).map_err(error)
    }

    /// Makes a directory and those on the way to it. Links to directories count as such.
    ///
    /// # Errors
    /// One cannot be made.
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

    /// Makes a directory. Whether it was not there.
    ///
    /// # Errors
    /// It cannot be made, or something else has this name.
    pub fn create_directory(&self, path: &str, mode: u32) -> Result<bool, RootError> {
        self.in_parent(path, "create the directory", |parent, name| {
            match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode)) {
                Ok(()) => set_mode(parent, name.as_bytes(), mode).map(|()| true),
                Err(Errno::EXIST) if is_directory(parent, name) => Ok(false),
                Err(errno) => Err(errno),
            }
        })
    }

    /// Gives a directory an owner, group root, and a mode; a link of this name is refused.
    ///
    /// # Errors
    /// It is not there, is no directory, or the kernel refuses.
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

    /// Makes a symbolic link. Whether nothing had this name.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn symlink(&self, target: impl AsRef<Path>, path: &str) -> Result<bool, RootError> {
        let target = target.as_ref();
        self.in_parent(path, "create the link", |parent, name| match rustix::fs::symlinkat(target, parent, name) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno),
        })
    }

    /// Makes a character device. `EXIST` if something has this name.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn character_device(&self, path: &str, mode: u32, device: Dev) -> Result<(), Errno> {
        let (parent, name) = self.parent(path)?;
        rustix::fs::mknodat(&parent, name, FileType::CharacterDevice, Mode::from_raw_mode(mode), device)?;
        set_mode(parent.as_fd(), name.as_bytes(), mode)
    }

    /// Whether a device of this name may be written to; on a file system that is mounted `nodev` none may.
    pub(crate) fn device_works(&self, path: &str) -> bool {
        !matches!(self.resolve(path.as_bytes(), OFlags::WRONLY | OFlags::NONBLOCK), Err(Errno::ACCESS | Errno::PERM))
    }

    /// Sets the mode of what has this name; a link has none.
    ///
    /// # Errors
    /// It is not there, or the kernel refuses.
    pub fn set_mode(&self, path: &str, mode: u32) -> Result<(), RootError> {
        self.in_parent(path, "set the mode of", |parent, name| set_mode(parent, name.as_bytes(), mode))
    }

    /// Gives what has this name another one, in place of what has that.
    ///
    /// # Errors
    /// It is not there, or the kernel refuses.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), RootError> {
        self.in_parent(from, "rename", |parent, name| {
            let (target, new) = self.parent(to)?;
            rustix::fs::renameat(parent, name, &target, new)
        })
    }

    /// Gives a file a further name; a link gets it itself.
    ///
    /// # Errors
    /// It is not there, or something has the other name.
    pub fn hard_link(&self, from: &str, to: &str) -> Result<(), RootError> {
        self.in_parent(from, "link", |parent, name| {
            let (target, new) = self.parent(to)?;
            rustix::fs::linkat(parent, name, &target, new, AtFlags::empty())
        })
    }

    /// Removes what has this name, with what is in it if it is a directory; a link goes as such. Whether it was there.
    ///
    /// # Errors
    /// It cannot be removed.
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

    /// Removes an empty directory. Whether none is there now.
    ///
    /// # Errors
    /// The kernel refuses, but neither as something is in it nor as it is no directory.
    pub fn remove_directory(&self, path: &str) -> Result<bool, RootError> {
        self.in_parent(path, "remove", |parent, name| match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(true),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
            Err(errno) => Err(errno),
        })
    }

    /// Removes what is in a directory, but for these names. Nothing where there is none, or a link to one.
    ///
    /// # Errors
    /// Something cannot be removed.
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

/// Sets the mode of a name in a directory. A symbolic link has none of its own: it stays, and so does its target.
pub(crate) fn set_mode(directory: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<(), Errno> {
    let open = |flags| retry(|| rustix::fs::openat(directory, name, flags | OFlags::CLOEXEC, Mode::empty()));
    // fchmodat(2) follows links, and fchmodat2(2) is there since Linux 6.6 only: this is what libc does before.
    let held = open(OFlags::PATH | OFlags::NOFOLLOW)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&held)?.st_mode);
    if kind == FileType::Symlink {
        return Ok(());
    }
    let mode = Mode::from_raw_mode(mode);
    match rustix::fs::chmod(format!("/proc/self/fd/{}", held.as_raw_fd()), mode) {
        // Without /proc; opening a device might do something.
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

/// The names in a directory that is open for reading, without `.` and `..`.
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

/// Removes a name, and what is in it if it is a directory.
fn remove(parent: BorrowedFd<'_>, name: &[u8], depth: usize) -> Result<(), Errno> {
    match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
        // What POSIX says of a directory, and what Linux does.
        Err(Errno::PERM | Errno::ISDIR) => {}
        result => return result,
    }
    if depth > DEPTH_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match retry(|| rustix::fs::openat(parent, name, flags, Mode::empty())) {
        // Not a directory, so that the first answer stands.
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::PERM),
        directory => directory?,
    };
    for inner in names_in(&directory)? {
        remove(directory.as_fd(), &inner, depth + 1)?;
    }
    rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR)
}
