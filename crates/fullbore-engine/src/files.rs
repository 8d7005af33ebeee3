//! The one place that creates files.
//!
//! A [`Root`] is a destination directory held open. Everything below it is reached through directory handles, so no
//! name from outside and no symbolic link leads out of it (invariant 5). New content is a [`PartFile`], called
//! `.NAME.part` in the directory of the final name; one rename gives it the final name. Files get mode 0644 and
//! directories 0755 whatever the umask, except in a user's own tree ([`tree`]). Nothing here syncs: see `durability`.

pub(crate) mod beneath;
mod directory;
pub mod identity;
mod name;
pub(crate) mod note;
mod part;
pub mod tree;
pub mod unnamed;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use crate::units;
pub use directory::Directory;
use directory::{Directories, Modes, Resolve};
pub use name::{PART_ENDING, is_part_name, part_name};
pub use part::{PREALLOCATE_BYTES, PartFile, PartWriter, reserve_room};

/// Time of the last change of the content; `None` where the file system keeps no times.
pub fn modified(file: &File) -> Option<std::time::SystemTime> {
    file.metadata().and_then(|metadata| metadata.modified()).ok()
}

const FILE_MODE: Mode = Mode::from_raw_mode(0o644);

/// Why an operation on a file failed, with the path of the file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The name from outside is not a path beneath the destination.
    #[error("{path:?} is not a path beneath the destination: {reason}")]
    Path {
        /// The path (its first 200 characters).
        path: String,
        /// Which rule the path breaks, as a clause for messages.
        reason: &'static str,
    },
    /// A symbolic link is in the place of a directory or file of ours.
    #[error("{path}: a symbolic link is in the way (links are not followed beneath the destination)")]
    Symlink {
        /// Path of the file or directory, beneath the root.
        path: String,
    },
    /// A directory, device or pipe is in the place of a regular file.
    #[error("{path}: not a regular file")]
    NotRegular {
        /// Path of the entry, beneath the root.
        path: String,
    },
    /// Another process is writing the unfinished file.
    #[error("{path}: another process is writing it")]
    Busy {
        /// Final path of the file, beneath the root.
        path: String,
    },
    /// The file has not got its name, because the sync before it failed.
    #[error("{path}: {reason}")]
    NotSynced {
        /// Final path of the file, beneath the root.
        path: String,
        /// The error of the sync, in words.
        reason: String,
    },
    /// The file is larger than the caller allows.
    #[error("{path}: larger than {}", units::bytes(*limit_bytes))]
    TooLarge {
        /// Path of the file, beneath the root.
        path: String,
        /// The caller's limit, in bytes.
        limit_bytes: u64,
    },
    /// The operating system refused an operation.
    #[error("cannot {operation} {path}: {source}")]
    Io {
        /// The operation, as a verb phrase such as `rename to`.
        operation: &'static str,
        /// Path of the file, beneath the root.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

impl FileError {
    pub(crate) fn io(operation: &'static str, path: impl Into<String>, source: impl Into<io::Error>) -> FileError {
        FileError::Io { operation, path: path.into(), source: source.into() }
    }

    /// The kind of the system's error; `None` for the other variants.
    pub fn kind(&self) -> Option<io::ErrorKind> {
        match self {
            FileError::Io { source, .. } => Some(source.kind()),
            _ => None,
        }
    }

    /// Whether the error is a full disk or an exceeded quota.
    pub fn is_out_of_space(&self) -> bool {
        matches!(self.kind(), Some(io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded))
    }
}

/// Type of the file that a name refers to (inode(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link (never followed).
    Symlink,
    /// A device, pipe or socket.
    Other,
}

/// What the file system knows about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Type of the file: regular, directory, link or other.
    pub kind: Kind,
    /// Length of the content, in bytes.
    pub size: u64,
    /// Time of last change of content, Unix seconds.
    pub mtime: i64,
    /// Permission bits, without the type (inode(7)).
    pub mode: u32,
    /// Inode number; equal for hard links of one file.
    pub inode: u64,
    /// Number of hard links to the file.
    pub links: u64,
}

/// Free space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes that this user may still write (`f_bavail` of statvfs(3)): less than all free bytes where some are
    /// reserved for root.
    pub bytes: u64,
    /// Files that may still be created; `None` where the file system has no limit.
    pub inodes: Option<u64>,
}

/// A destination directory, held open. Share it in an [`Arc`].
#[derive(Debug)]
pub struct Root {
    path: PathBuf,
    directories: Directories,
}

impl Root {
    /// Opens an existing directory. Its own path is the user's and may hold links.
    ///
    /// # Errors
    /// [`FileError::Io`] with `path` if it cannot be opened, or is not a directory (`ENOTDIR`).
    pub fn open(path: &Path) -> Result<Root, FileError> {
        Root::open_resolving(path, None, Modes::Fixed)
    }

    /// Creates the directory and its missing parents, and opens it.
    ///
    /// # Errors
    /// [`FileError::Io`] with the path if a directory cannot be created or opened.
    pub fn create(path: &Path) -> Result<Root, FileError> {
        create_directories(path)?;
        Root::open(path)
    }

    /// As [`Root::create`], but the umask decides the permissions of new files and directories.
    fn create_by_umask(path: &Path) -> Result<Root, FileError> {
        create_directories(path)?;
        Root::open_resolving(path, None, Modes::Umask)
    }

    fn open_resolving(path: &Path, resolve: Option<Resolve>, modes: Modes) -> Result<Root, FileError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let descriptor = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|errno| FileError::io("open directory", path.to_string_lossy(), errno))?;
        Ok(Root { path: path.to_owned(), directories: Directories::new(descriptor, resolve, modes)? })
    }

    /// The path that the root was opened by, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One descriptor per file system met so far, since a directory below may be a mount of its own. Each was opened
    /// before anything was written to its file system through this root.
    pub fn file_systems(&self) -> Vec<Arc<OwnedFd>> {
        self.directories.file_systems()
    }

    /// Room on the file system of the root.
    ///
    /// # Errors
    /// [`FileError::Io`] with the path of the root if `fstatvfs` fails.
    pub fn space(&self) -> Result<Space, FileError> {
        let figures = rustix::fs::fstatvfs(self.directories.root())
            .map_err(|errno| FileError::io("measure", self.path.to_string_lossy(), errno))?;
        Ok(Space {
            bytes: figures.f_bavail.saturating_mul(figures.f_frsize),
            // btrfs and some others report no inodes at all: they have no limit.
            inodes: (figures.f_files > 0).then_some(figures.f_favail),
        })
    }

    /// The handle of a directory beneath the root ("" is the root).
    ///
    /// # Errors
    /// - [`FileError::Path`] if `path` is not a path beneath the root.
    /// - [`FileError::Symlink`] if a symbolic link is on the way.
    /// - [`FileError::Io`] if it is missing (`ENOENT`), is not a directory (`ENOTDIR`), or cannot be opened.
    pub fn directory(&self, path: &str) -> Result<Arc<Directory>, FileError> {
        self.directories.get(path, false)
    }

    /// Creates a directory with `mode`, and its missing parents with 0755. An existing directory stays as it is.
    ///
    /// # Errors
    /// - [`FileError::Path`] if `path` is not a path beneath the root.
    /// - [`FileError::Symlink`] if a symbolic link is on the way or has the name.
    /// - [`FileError::Io`] if something else has the name (`ENOTDIR`), or the system refuses.
    pub fn create_directory(&self, path: &str, mode: u32) -> Result<(), FileError> {
        self.directories.make(path, Mode::from_raw_mode(mode)).map(drop)
    }

    /// Removes an empty directory; `false` when it is missing or not empty.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root. [`FileError::Io`] if the system refuses, except
    /// for a missing or non-empty directory.
    pub fn remove_directory(&self, path: &str) -> Result<bool, FileError> {
        let Some((directory, name)) = self.existing(path)? else {
            return Ok(false);
        };
        match rustix::fs::unlinkat(&directory, name, AtFlags::REMOVEDIR) {
            Ok(()) => {
                self.directories.forget(path);
                Ok(true)
            }
            Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
            Err(errno) => Err(FileError::io("remove directory", path, errno)),
        }
    }

    /// Status of the entry with this name; symbolic links are not followed. `None` when there is none.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a link is on the way,
    /// and [`FileError::Io`] for errors of the system other than `ENOENT`.
    pub fn stat(&self, path: &str) -> Result<Option<Status>, FileError> {
        let Some((directory, name)) = self.existing(path)? else {
            return Ok(None);
        };
        match rustix::fs::statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(Some(status_of(&status))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(FileError::io("look at", path, errno)),
        }
    }

    /// Opens a regular file for reading; `None` when no entry has this name.
    ///
    /// # Errors
    /// - [`FileError::Path`] if `path` is not a path beneath the root.
    /// - [`FileError::Symlink`] if a symbolic link is on the way or has the name.
    /// - [`FileError::NotRegular`] for a directory, device or pipe.
    /// - [`FileError::Io`] for errors of the system other than `ENOENT`.
    pub fn open_file(&self, path: &str) -> Result<Option<(File, Status)>, FileError> {
        let Some((directory, name)) = self.existing(path)? else {
            return Ok(None);
        };
        // O_NONBLOCK: opening a pipe that someone put there must not hang.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&directory, name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(self.directories.explain("open", path, errno)),
        };
        let status = rustix::fs::fstat(&file).map_err(|errno| FileError::io("look at", path, errno))?;
        let status = status_of(&status);
        if status.kind != Kind::File {
            return Err(FileError::NotRegular { path: path.to_owned() });
        }
        Ok(Some((File::from(file), status)))
    }

    /// Reads a whole file of at most `limit_bytes`; `None` when there is none.
    ///
    /// # Errors
    /// As [`Root::open_file`]; [`FileError::TooLarge`] if the file has more than `limit_bytes`; [`FileError::Io`] if
    /// reading fails.
    pub fn read(&self, path: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        let Some((file, status)) = self.open_file(path)? else {
            return Ok(None);
        };
        let too_large = || FileError::TooLarge { path: path.to_owned(), limit_bytes };
        if status.size > limit_bytes {
            return Err(too_large());
        }
        let mut content = Vec::with_capacity(usize::try_from(status.size).unwrap_or(0));
        // The file may grow while it is read: the limit holds all the same.
        file.take(limit_bytes.saturating_add(1))
            .read_to_end(&mut content)
            .map_err(|error| FileError::io("read", path, error))?;
        if content.len() as u64 > limit_bytes {
            return Err(too_large());
        }
        Ok(Some(content))
    }

    /// Target of a symbolic link; `None` when there is no link of that name.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a link is on the way,
    /// and [`FileError::Io`] for errors of the system other than `ENOENT` and `EINVAL` (not a link).
    pub fn read_link(&self, path: &str) -> Result<Option<String>, FileError> {
        let Some((directory, name)) = self.existing(path)? else {
            return Ok(None);
        };
        match rustix::fs::readlinkat(&directory, name, Vec::new()) {
            Ok(target) => Ok(Some(target.to_string_lossy().into_owned())),
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(FileError::io("read link", path, errno)),
        }
    }

    /// Names and kinds of the entries of a directory, in no order; empty when the directory is missing.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a link is on the way,
    /// and [`FileError::Io`] if it is not a directory or cannot be read.
    pub fn list(&self, path: &str) -> Result<Vec<(OsString, Kind)>, FileError> {
        use std::os::unix::ffi::OsStrExt as _;
        let directory = match self.directories.get(path, false) {
            Ok(directory) => directory,
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let error = |errno| FileError::io("list", path, errno);
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&directory).map_err(error)? {
            let entry = entry.map_err(error)?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    let flags = AtFlags::SYMLINK_NOFOLLOW;
                    match rustix::fs::statat(&directory, entry.file_name(), flags) {
                        Ok(status) => kind_of(FileType::from_raw_mode(status.st_mode)),
                        Err(Errno::NOENT) => continue,
                        Err(errno) => return Err(error(errno)),
                    }
                }
                known => kind_of(known),
            };
            names.push((std::ffi::OsStr::from_bytes(name).to_owned(), kind));
        }
        Ok(names)
    }

    /// Renames within the root, and replaces an entry that has the new name.
    ///
    /// # Errors
    /// [`FileError::Path`] if a path is not beneath the root, [`FileError::Symlink`] if a link is on the way, and
    /// [`FileError::Io`] if `from` is missing (`ENOENT`) or the system refuses.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), FileError> {
        let (from_directory, from_name) = name::split(from)?;
        let (to_directory, to_name) = name::split(to)?;
        let from_directory = self.directories.get(from_directory, false)?;
        let to_directory = self.directories.get(to_directory, true)?;
        rustix::fs::renameat(&from_directory, from_name, &to_directory, to_name)
            .map_err(|errno| FileError::io("rename to", to, errno))?;
        self.directories.forget(from);
        Ok(())
    }

    /// Removes a file or link; `false` when there was none.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a link is on the way,
    /// and [`FileError::Io`] if the entry is a directory (`EISDIR`) or the system refuses.
    pub fn unlink(&self, path: &str) -> Result<bool, FileError> {
        let Some((directory, name)) = self.existing(path)? else {
            return Ok(false);
        };
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(FileError::io("remove", path, errno)),
        }
    }

    /// Gives an existing file a second name, and replaces an entry that has it in one step. Returns `false` if it had
    /// to copy the content instead: the file system has no hard links, `to` is on another mount, or the file has too
    /// many names already (65,000 on ext4).
    ///
    /// # Errors
    /// [`FileError::Path`] if a path is not beneath the root, [`FileError::Symlink`] if a link is on the way, and
    /// [`FileError::Io`] if `from` is missing (`ENOENT`) or the system refuses.
    pub fn hard_link(&self, from: &str, to: &str) -> Result<bool, FileError> {
        let (from_directory, from_name) = name::split(from)?;
        let (to_directory, to_name) = name::split_final(to)?;
        let from_directory = self.directories.get(from_directory, false)?;
        let to_directory = self.directories.get(to_directory, true)?;
        let error = |errno| FileError::io("link", to, errno);
        let flags = AtFlags::empty();
        match rustix::fs::linkat(&from_directory, from_name, &to_directory, to_name, flags) {
            Ok(()) => return Ok(true),
            Err(Errno::EXIST) => {}
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {
                return self.copy(from, to).map(|()| false);
            }
            Err(errno) => return Err(error(errno)),
        }
        let temporary = name::link_name(to_name);
        self.clear(&to_directory, &temporary, to)?;
        match rustix::fs::linkat(&from_directory, from_name, &to_directory, &*temporary, flags) {
            Ok(()) => {}
            Err(Errno::XDEV | Errno::MLINK | Errno::PERM | Errno::OPNOTSUPP) => {
                return self.copy(from, to).map(|()| false);
            }
            Err(errno) => return Err(error(errno)),
        }
        rustix::fs::renameat(&to_directory, &*temporary, &to_directory, to_name).map_err(error)?;
        // If both names are the same file already, rename(2) does nothing and leaves the temporary name in place.
        self.clear(&to_directory, &temporary, to)?;
        Ok(true)
    }

    /// Makes `link` a symbolic link to `target`, and replaces a link with another target in one step. The target must
    /// stay beneath the root.
    ///
    /// # Errors
    /// [`FileError::Path`] if `link` is not a path beneath the root or `target` leads outside. [`FileError::Io`] if a
    /// directory has the name (`EISDIR`) or the system refuses.
    pub fn symlink(&self, target: &str, link: &str) -> Result<(), FileError> {
        name::check_link_target(link, target)?;
        let (directory, name) = name::split_final(link)?;
        let directory = self.directories.get(directory, true)?;
        if self.read_link(link)?.as_deref() == Some(target) {
            return Ok(());
        }
        let error = |errno| FileError::io("create symbolic link", link, errno);
        let temporary = name::link_name(name);
        self.clear(&directory, &temporary, link)?;
        rustix::fs::symlinkat(target, &directory, &*temporary).map_err(error)?;
        rustix::fs::renameat(&directory, &*temporary, &directory, name).map_err(|errno| {
            // The entry in the way stays; our own temporary link is removed.
            let _ = rustix::fs::unlinkat(&directory, &*temporary, AtFlags::empty());
            error(errno)
        })?;
        self.directories.forget(link);
        Ok(())
    }

    /// Opens or creates a file that is only appended to, such as a log. A new file has mode 0644.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a symbolic link is in
    /// the way, and [`FileError::Io`] if the system refuses.
    pub fn open_append(&self, path: &str) -> Result<File, FileError> {
        self.open_or_create(path, OFlags::RDWR | OFlags::APPEND)
    }

    /// Takes the lock of the lock file at `path`; `None` when another process holds it. The lock is held until the
    /// returned file is dropped or the process ends.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a symbolic link is in
    /// the way, and [`FileError::Io`] if the file cannot be created or locked.
    pub fn lock(&self, path: &str) -> Result<Option<File>, FileError> {
        let file = self.open_or_create(path, OFlags::RDWR)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Some(file)),
            Err(Errno::WOULDBLOCK) => Ok(None),
            Err(errno) => Err(FileError::io("lock", path, errno)),
        }
    }

    fn open_or_create(&self, path: &str, flags: OFlags) -> Result<File, FileError> {
        let (directory, name) = name::split(path)?;
        let directory = self.directories.get(directory, true)?;
        let flags = flags | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::openat(&directory, name, flags, FILE_MODE)
            .map_err(|errno| self.directories.explain("open", path, errno))?;
        Ok(File::from(file))
    }

    /// The open directory and the name in it; `None` when there is no such directory.
    fn existing<'p>(&self, path: &'p str) -> Result<Option<(Arc<Directory>, &'p str)>, FileError> {
        let (directory, name) = name::split(path)?;
        match self.directories.get(directory, false) {
            Ok(directory) => Ok(Some((directory, name))),
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a temporary that an earlier run may have left.
    fn clear(&self, directory: &Directory, name: &str, path: &str) -> Result<(), FileError> {
        match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(FileError::io("remove temporary of", path, errno)),
        }
    }
}

/// Checks that a finished file may have this path, without touching anything.
///
/// # Errors
/// [`FileError::Path`] if `path` is not a path beneath a root, or is the name of an unfinished file.
#[cfg(test)]
pub(crate) fn check_final(path: &str) -> Result<(), FileError> {
    name::split_final(path).map(drop)
}

fn create_directories(path: &Path) -> Result<(), FileError> {
    #[allow(clippy::disallowed_methods)] // this module is where files are created
    std::fs::create_dir_all(path).map_err(|error| FileError::io("create directory", path.to_string_lossy(), error))
}

fn kind_of(kind: FileType) -> Kind {
    match kind {
        FileType::RegularFile => Kind::File,
        FileType::Directory => Kind::Directory,
        FileType::Symlink => Kind::Symlink,
        _ => Kind::Other,
    }
}

fn status_of(status: &rustix::fs::Stat) -> Status {
    Status {
        kind: kind_of(FileType::from_raw_mode(status.st_mode)),
        size: u64::try_from(status.st_size).unwrap_or(0),
        mtime: status.st_mtime,
        mode: status.st_mode & 0o7777,
        inode: status.st_ino,
        #[allow(clippy::useless_conversion)] // u32 on some architectures
        links: u64::from(status.st_nlink),
    }
}

#[cfg(test)]
mod tests;
