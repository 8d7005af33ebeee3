//! Unfinished files: created, resumed, written, and given their final names.

use std::borrow::Borrow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use super::directory::Modes;
use super::tree::Mtime;
use super::{Directory, FILE_MODE, FileError, Root, name};

/// Files from this size on get their blocks reserved at once: fewer extents, and a full disk shows before the transfer.
/// Below it, the extra call costs more than it saves.
pub const PREALLOCATE_BYTES: u64 = 1 << 20;

/// Block size of most file systems, in bytes; larger blocks are multiples of it.
const BLOCK_BYTES: u64 = 4096;

/// Result of locking an unfinished file.
pub(super) enum Locked {
    /// This process holds the lock, until it drops the file.
    Ours(PartFile),
    /// Another process holds the lock and writes the file.
    Others,
    /// The file is gone, or another file has its name.
    Replaced,
}

/// An unfinished file, open for reading and writing under its dotted name. Dropping
/// it leaves it there, to be resumed.
#[derive(Debug)]
pub struct PartFile {
    file: File,
    directory: Arc<Directory>,
    path: String,
    part_name: String,
}

impl Root {
    /// Creates the unfinished file for `path` and its directory; an older unfinished file is replaced. From 1 MiB on,
    /// room for `size` bytes is reserved.
    ///
    /// # Errors
    /// - [`FileError::Path`] if `path` is not a path beneath the root.
    /// - [`FileError::Symlink`] if a symbolic link is on the way.
    /// - [`FileError::Io`] if the file cannot be created or its space reserved, such as on a full disk (`ENOSPC`).
    pub fn create_part(&self, path: &str, size: u64) -> Result<PartFile, FileError> {
        let (_, final_name) = name::split_final(path)?;
        self.create_named(path, name::part_name(final_name), size)
    }

    /// As [`Root::create_part`], but under the final name itself. For callers whose names are temporary already.
    ///
    /// # Errors
    /// As [`Root::create_part`].
    pub fn create_in_place(&self, path: &str, size: u64) -> Result<PartFile, FileError> {
        let (_, final_name) = name::split_final(path)?;
        self.create_named(path, final_name.to_owned(), size)
    }

    fn create_named(&self, path: &str, part_name: String, size: u64) -> Result<PartFile, FileError> {
        let (directory_path, _) = name::split_final(path)?;
        let mut directory = self.directories.get(directory_path, true)?;
        // O_EXCL: an older file may have other hard links; it is removed, never truncated.
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let is_fixed = self.directories.modes == Modes::Fixed;
        let mode = if is_fixed { FILE_MODE } else { Mode::from_raw_mode(0o666) };
        let mut result = rustix::fs::openat(&directory, &*part_name, flags, mode);
        if matches!(result, Err(Errno::NOENT)) {
            // Another process removed the directory of the cached handle.
            self.directories.forget(directory_path);
            directory = self.directories.get(directory_path, true)?;
            result = rustix::fs::openat(&directory, &*part_name, flags, mode);
        }
        if matches!(result, Err(Errno::EXIST)) {
            self.clear(&directory, &part_name, path)?;
            result = rustix::fs::openat(&directory, &*part_name, flags, mode);
        }
        let error = |errno| FileError::io("create", path, errno);
        let file = result.map_err(error)?;
        if is_fixed {
            directory.settle_mode(file.as_fd(), mode).map_err(error)?;
        }
        let part = PartFile { file: File::from(file), directory, path: path.to_owned(), part_name };
        part.preallocate(size)?;
        Ok(part)
    }

    /// Opens the unfinished file for `path` that an earlier run left. `None` when there is none: a link, a pipe, or a
    /// file with several names does not count.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a symbolic link is on
    /// the way, and [`FileError::Io`] if the file cannot be opened for reading and writing, such as `EACCES`.
    pub(crate) fn resume_part(&self, path: &str) -> Result<Option<PartFile>, FileError> {
        let (_, final_name) = name::split_final(path)?;
        self.resume_named(path, name::part_name(final_name))
    }

    /// Opens a file made by [`Root::create_in_place`], with its content. `None` when there is none: a link, a pipe, or
    /// a file with several names does not count.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, [`FileError::Symlink`] if a symbolic link is on
    /// the way, and [`FileError::Io`] if the file cannot be opened for reading and writing, such as `EACCES`.
    pub fn resume_in_place(&self, path: &str) -> Result<Option<PartFile>, FileError> {
        let (_, final_name) = name::split_final(path)?;
        self.resume_named(path, final_name.to_owned())
    }

    fn resume_named(&self, path: &str, part_name: String) -> Result<Option<PartFile>, FileError> {
        let (directory, _) = name::split_final(path)?;
        let directory = match self.directories.get(directory, false) {
            Ok(directory) => directory,
            Err(error) if error.kind() == Some(io::ErrorKind::NotFound) => return Ok(None),
            Err(error) => return Err(error),
        };
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(&directory, &*part_name, flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::ISDIR) => return Ok(None),
            Err(errno) => return Err(FileError::io("open unfinished", path, errno)),
        };
        let error = |errno| FileError::io("look at unfinished", path, errno);
        let status = rustix::fs::fstat(&file).map_err(error)?;
        let regular = FileType::from_raw_mode(status.st_mode) == FileType::RegularFile;
        if !regular || status.st_nlink != 1 {
            return Ok(None);
        }
        Ok(Some(PartFile { file: File::from(file), directory, path: path.to_owned(), part_name }))
    }

    /// Length of the unfinished file for `path`, in bytes; `None` when there is none.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, and [`FileError::Io`] if the system cannot read
    /// its directory or status.
    pub fn part_size(&self, path: &str) -> Result<Option<u64>, FileError> {
        let (_, final_name) = name::split_final(path)?;
        Ok(self.part_status(path, final_name)?.map(|status| u64::try_from(status.st_size).unwrap_or(0)))
    }

    /// Disk space that the unfinished file for `path` takes, in bytes, with reserved space; 0 when there is none.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, and [`FileError::Io`] if the system cannot read
    /// its directory or status.
    pub fn part_room(&self, path: &str) -> Result<u64, FileError> {
        let (_, final_name) = name::split_final(path)?;
        // inode(7): `st_blocks` counts units of 512 bytes, whatever the block size of the file system.
        let blocks = self.part_status(path, final_name)?.map_or(0, |status| status.st_blocks);
        Ok(u64::try_from(blocks).unwrap_or(0).saturating_mul(512))
    }

    fn part_status(&self, path: &str, final_name: &str) -> Result<Option<rustix::fs::Stat>, FileError> {
        let Some((directory, _)) = self.existing(path)? else {
            return Ok(None);
        };
        match rustix::fs::statat(&directory, &*name::part_name(final_name), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) if FileType::from_raw_mode(status.st_mode) == FileType::RegularFile => Ok(Some(status)),
            Ok(_) | Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(FileError::io("look at unfinished", path, errno)),
        }
    }

    /// Removes the unfinished file for `path`; `false` when there was none.
    ///
    /// # Errors
    /// [`FileError::Path`] if `path` is not a path beneath the root, and [`FileError::Io`] if the system refuses to
    /// remove the file.
    pub fn remove_part(&self, path: &str) -> Result<bool, FileError> {
        let (_, final_name) = name::split_final(path)?;
        let Some((directory, _)) = self.existing(path)? else {
            return Ok(false);
        };
        match rustix::fs::unlinkat(&directory, &*name::part_name(final_name), AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(FileError::io("remove unfinished", path, errno)),
        }
    }

    /// Writes a small file of our own (state, trace files) under a temporary name. [`PartFile::finish`] makes it
    /// visible; the caller may sync it before.
    ///
    /// # Errors
    /// As [`Root::create_part`], and [`FileError::Io`] if it cannot be written, such as on a full disk.
    pub fn write_part(&self, path: &str, content: &[u8]) -> Result<PartFile, FileError> {
        let part = self.create_part(path, content.len() as u64)?;
        part.write_at(0, content)?;
        Ok(part)
    }

    pub(super) fn copy(&self, from: &str, to: &str) -> Result<(), FileError> {
        let Some((source, status)) = self.open_file(from)? else {
            return Err(FileError::io("open", from, Errno::NOENT));
        };
        let part = self.create_part(to, status.size)?;
        // io::copy uses copy_file_range where the file systems support it.
        io::copy(&mut &source, &mut &part.file).map_err(|error| FileError::io("copy to", to, error))?;
        part.set_mtime(status.mtime)?;
        part.finish()
    }
}

impl PartFile {
    /// Final path of the file, beneath the root.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The open directory that holds the unfinished file.
    pub fn directory(&self) -> &Arc<Directory> {
        &self.directory
    }

    /// Current length of the unfinished file, in bytes.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system cannot read the status of the open file.
    pub fn size(&self) -> Result<u64, FileError> {
        self.file.metadata().map(|data| data.len()).map_err(|error| self.error("look at", error))
    }

    /// Writes all of `data` at `offset`.
    ///
    /// # Errors
    /// [`FileError::Io`] if a write fails: `ENOSPC` for a full disk, `EDQUOT` for a full quota, `EIO` for a broken
    /// disk.
    pub fn write_at(&self, offset: u64, data: &[u8]) -> Result<(), FileError> {
        self.file.write_all_at(data, offset).map_err(|error| self.error("write", error))
    }

    /// Reads up to a buffer full at `offset`; 0 at the end.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system cannot read the file, such as `EIO` for a broken disk.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, FileError> {
        loop {
            match self.file.read_at(buffer, offset) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                result => return result.map_err(|error| self.error("read back", error)),
            }
        }
    }

    /// Length of the data from the start to the first hole. It may be up to a block too short, since holes are known
    /// only in blocks, and it is the whole length where the file system cannot report holes.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system cannot read the length of the file.
    pub(crate) fn end_of_data(&self) -> Result<u64, FileError> {
        let length = self.size()?;
        match rustix::fs::seek(&self.file, rustix::fs::SeekFrom::Hole(0)) {
            // The block before the hole may end in zeros that no run wrote.
            Ok(hole) if hole < length => Ok((hole / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(BLOCK_BYTES)),
            _ => Ok(length),
        }
    }

    /// Locks the unfinished file, so that two processes do not write it. Where the file system has no locks, the call
    /// succeeds without one. An older file of another user, who could still write to it, counts as replaced. The owner
    /// of a new file is not checked: a mount option or the server may set it.
    pub(super) fn lock(self, is_new: bool) -> Result<Locked, FileError> {
        match rustix::fs::flock(&self.file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {}
            Err(Errno::WOULDBLOCK) => return Ok(Locked::Others),
            Err(errno) => return Err(self.error("lock", errno.into())),
        }
        let is_ours = is_new || self.status()?.st_uid == rustix::process::geteuid().as_raw();
        Ok(if is_ours && self.has_its_name()? { Locked::Ours(self) } else { Locked::Replaced })
    }

    /// Whether the name of the unfinished file still refers to this file, and no other name does.
    pub(super) fn has_its_name(&self) -> Result<bool, FileError> {
        let own = self.status()?;
        let named = rustix::fs::statat(&self.directory, &*self.part_name, AtFlags::SYMLINK_NOFOLLOW);
        let is_same = named.is_ok_and(|named| (named.st_dev, named.st_ino) == (own.st_dev, own.st_ino));
        Ok(is_same && own.st_nlink == 1)
    }

    fn status(&self) -> Result<rustix::fs::Stat, FileError> {
        rustix::fs::fstat(&self.file).map_err(|errno| self.error("look at", errno.into()))
    }

    /// Gives the file the permissions of the file that it replaces.
    pub(super) fn set_mode(&self, mode: u32) -> Result<(), FileError> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))
            .map_err(|errno| self.error("set mode of", errno.into()))
    }

    /// Duplicates the file's descriptor.
    pub(super) fn handle(&self) -> Result<File, FileError> {
        self.file.try_clone().map_err(|error| self.error("open a second time", error))
    }

    /// Cuts or extends the file to `size` bytes.
    ///
    /// # Errors
    /// [`FileError::Io`] if `ftruncate` fails, such as `EFBIG` or `EIO`.
    pub(crate) fn set_size(&self, size: u64) -> Result<(), FileError> {
        self.file.set_len(size).map_err(|error| self.error("truncate", error))
    }

    /// Sets the modification time, in Unix seconds; the access time stays.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system refuses to set the time.
    pub fn set_mtime(&self, unix_s: i64) -> Result<(), FileError> {
        self.set_modified(unix_s, 0)
    }

    /// Sets the modification time, to the nanosecond; the access time stays.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system refuses to set the time.
    pub fn set_modified(&self, unix_s: i64, nanoseconds: u32) -> Result<(), FileError> {
        set_times(&self.file, Mtime { unix_s, nanoseconds })
            .map_err(|errno| self.error("set the time of", errno.into()))
    }

    /// Gives the file its final name, and replaces a file that has it. The caller must have verified the content
    /// before, and synced it where the durability asks for that.
    ///
    /// # Errors
    /// [`FileError::Io`] if a directory has the name (`EISDIR`) or the rename fails. The unfinished file stays.
    pub fn finish(&self) -> Result<(), FileError> {
        let final_name = self.path.rsplit('/').next().unwrap_or(&self.path);
        rustix::fs::renameat(&self.directory, &*self.part_name, &self.directory, final_name)
            .map_err(|errno| self.error("give the final name to", errno.into()))
    }

    /// Removes the unfinished file, content and name. A file that is gone already is no error.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system refuses to remove it.
    pub fn remove(self) -> Result<(), FileError> {
        self.remove_by_name()
    }

    pub(crate) fn remove_by_name(&self) -> Result<(), FileError> {
        match rustix::fs::unlinkat(&self.directory, &*self.part_name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(self.error("remove unfinished", errno.into())),
        }
    }

    fn preallocate(&self, size: u64) -> Result<(), FileError> {
        if size < PREALLOCATE_BYTES {
            return Ok(());
        }
        // KEEP_SIZE: the file's length must still tell how far the data has come.
        reserve_room(&self.file, FallocateFlags::KEEP_SIZE, size).map_err(|errno| {
            let _ = rustix::fs::unlinkat(&self.directory, &*self.part_name, AtFlags::empty());
            self.error("reserve room for", errno.into())
        })
    }

    fn error(&self, operation: &'static str, source: io::Error) -> FileError {
        FileError::io(operation, self.path.as_str(), source)
    }
}

impl AsFd for PartFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Reserves space for a file of `size` bytes, where the file system can: fewer extents, and a full disk shows before
/// the transfer.
///
/// # Errors
/// `ENOSPC` if there is not enough space, or `size` exceeds the whole file system; other errors of `fallocate`
/// unchanged. A peer may claim any size, and some file systems would use up all free space before they fail. So a size
/// beyond the whole file system is not even tried.
pub fn reserve_room(file: impl AsFd, flags: FallocateFlags, size: u64) -> Result<(), Errno> {
    let file = file.as_fd();
    // The free space is no measure: space of deleted files may come back later. Some file systems report no sizes.
    let all = rustix::fs::fstatvfs(file).map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    if all > 0 && size > all {
        return Err(Errno::NOSPC);
    }
    match rustix::fs::fallocate(file, flags, 0, size) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(()),
        result => result,
    }
}

/// Sets the modification time; the access time stays.
pub(crate) fn set_times(file: impl AsFd, mtime: Mtime) -> Result<(), Errno> {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        last_modification: Timespec { tv_sec: mtime.unix_s, tv_nsec: mtime.nanoseconds.into() },
    };
    rustix::fs::futimens(file, &times)
}

/// Appends to a [`PartFile`], from offset 0 on.
pub struct PartWriter<P = PartFile> {
    part: P,
    offset: u64,
}

impl<P: Borrow<PartFile>> PartWriter<P> {
    /// Creates a writer at offset 0.
    pub fn new(part: P) -> Self {
        PartWriter { part, offset: 0 }
    }

    /// Returns the file, still under its temporary name.
    pub fn into_part(self) -> P {
        self.part
    }
}

impl<P: Borrow<PartFile>> io::Write for PartWriter<P> {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        self.part.borrow().write_at(self.offset, data).map_err(io::Error::other)?;
        self.offset += data.len() as u64;
        Ok(data.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
