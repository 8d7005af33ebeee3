//! Writes a tree of named entries from outside safely below a directory, for `get` of a prefix of a store or a
//! directory of a grid.
//!
//! Whoever may write to the store chooses the names. They are judged here alone ([`TreeWriter::judge`]), and resolved
//! beneath a handle of the directory, without symbolic links: nothing outside it is read or written. An entry that
//! cannot be written is an error of its own, and does not stop the others.
//!
//! A file is written as `.NAME.part`, which a later run resumes after a kill. Verified files get their names in groups,
//! after one sync of the group ([`TreeWriter::commit`]): a power cut leaves no empty file under a final name.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags};

use super::directory::locked;
use super::part::Locked;
pub(crate) use super::part::set_times;
use super::{FileError, Kind, PartFile, Root, Status, name, note};
use crate::durability::{Barrier, Durability, WriteBack};
use crate::random::random;
use crate::run::error::{CommandError, ErrorKind};

/// Number of files that get their names after one sync. Each is open until then, and a process may have 1024 open
/// files.
const GROUP_FILES: usize = 256;

/// Most finished files that wait while a sync lasts. Together with the group being named and the files in flight, they
/// stay below the default limit of 1024 open files.
const GROUP_FILES_MAX: usize = 320;

/// Longest time that a finished file waits for a place in the group. After it, a disk or the caller is stuck.
const ROOM_TIME: Duration = Duration::from_secs(60);

/// Bytes that get their names after one sync. A guess: what a fast disk writes in a second.
const GROUP_BYTES: u64 = 1 << 30;

/// Age at which a group is named although it is not full. A guess at how much work a person minds losing by a kill.
const GROUP_TIME: Duration = Duration::from_secs(2);

/// Attempts to get an unfinished file that other processes keep replacing.
const ATTEMPTS: usize = 10;

/// Modification time of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtime {
    /// Seconds since 1970, negative before.
    pub unix_s: i64,
    /// Nanoseconds of the second, less than 10⁹.
    pub nanoseconds: u32,
}

/// Writes entries below one directory. The threads of a run share it.
#[derive(Debug)]
pub struct TreeWriter {
    root: Arc<Root>,
    barrier: Barrier,
    /// Name of directories that no entry may be in; empty for none.
    private: String,
    group: Mutex<Group>,
    /// Signals room in the group.
    has_room: Condvar,
    /// Inodes of the entries written so far; `None` on file systems that distinguish `a` from `A`.
    entries: Option<Mutex<HashSet<u64>>>,
}

/// Verified files that have no final names yet.
#[derive(Debug)]
struct Group {
    files: Vec<PartFile>,
    bytes: u64,
    since: Instant,
}

/// An unfinished file below the directory. Dropping it leaves it there, to be resumed.
#[derive(Debug)]
pub struct TreeFile {
    part: PartFile,
    write_back: WriteBack,
    /// Bytes from the beginning that an earlier run has written; they are not verified.
    pub resumed_bytes: u64,
}

/// Result of one file of a group.
#[derive(Debug)]
pub struct Committed {
    /// Path below the directory.
    pub path: String,
    /// `Ok` if the file has its name; otherwise the reason why not.
    pub result: Result<(), FileError>,
}

impl TreeWriter {
    /// Creates the directory if it is missing, and opens it. No entry may be in a directory called `private`, such as a
    /// mirror's state; "" allows all.
    ///
    /// # Errors
    /// [`FileError::Io`] if the directory cannot be created, opened or written to.
    pub fn create(directory: &Path, private: &str) -> Result<TreeWriter, FileError> {
        let root = Arc::new(Root::create_by_umask(directory)?);
        let folds = folds_case(&root)?;
        Ok(TreeWriter {
            barrier: Barrier::new(Arc::clone(&root), Durability::AtEnd),
            root,
            private: private.to_owned(),
            group: Mutex::new(Group { files: Vec::new(), bytes: 0, since: Instant::now() }),
            has_room: Condvar::new(),
            entries: folds.then(Mutex::default),
        })
    }

    /// Whether an entry may have this path, judged by its name alone.
    ///
    /// # Errors
    /// [`FileError::Path`] if it is not a path beneath a directory (absolute, components that are empty, `.` or `..`,
    /// NUL, too long, too deep), if it is the name of an unfinished file, or if it lies in a private directory.
    pub fn judge(&self, path: &str) -> Result<(), FileError> {
        name::split_final(path)?;
        if !self.private.is_empty() && path.split('/').any(|part| part.eq_ignore_ascii_case(&self.private)) {
            return Err(name::refuse(path, "it is in the private state of a mirror"));
        }
        Ok(())
    }

    /// Opens the regular file that has this path already; `None` when there is none.
    ///
    /// # Errors
    /// - [`FileError::Path`] as of [`TreeWriter::judge`].
    /// - [`FileError::Symlink`] if a symbolic link has the name or is on the way.
    /// - [`FileError::NotRegular`] if a directory or a device has the name.
    /// - [`FileError::Io`] if the system cannot look it up or open it.
    pub fn existing(&self, path: &str) -> Result<Option<(File, Status)>, FileError> {
        self.judge(path)?;
        match self.root.stat(path)? {
            None => Ok(None),
            Some(Status { kind: Kind::Symlink, .. }) => Err(FileError::Symlink { path: path.to_owned() }),
            Some(Status { kind: Kind::File, .. }) => self.root.open_file(path),
            Some(_) => Err(FileError::NotRegular { path: path.to_owned() }),
        }
    }

    /// Records that the existing file at this path is the entry, so that no other entry replaces it. Needed on file
    /// systems that do not distinguish `a` from `A`.
    ///
    /// # Errors
    /// [`FileError::Path`] if another entry of this run is that file.
    pub fn keep(&self, path: &str, status: &Status) -> Result<(), FileError> {
        match &self.entries {
            Some(entries) if !locked(entries).insert(status.inode) => Err(same_name(path)),
            _ => Ok(()),
        }
    }

    /// Begins a file, or resumes what an earlier run left of it. Only one process at a time writes a file.
    ///
    /// # Errors
    /// As [`TreeWriter::existing`]; [`FileError::Busy`] if another process writes the file; [`FileError::Io`] if it
    /// cannot be created or its space reserved, such as on a full disk.
    pub fn begin(&self, path: &str, size: u64) -> Result<TreeFile, FileError> {
        let replaced = self.existing(path)?;
        for _ in 0..ATTEMPTS {
            let (part, is_new) = match self.root.resume_part(path)? {
                Some(part) => (part, false),
                None => (self.root.create_part(path, size)?, true),
            };
            match part.lock(is_new)? {
                Locked::Ours(part) => {
                    // Set before there is content, so that a file others may not read stays private meanwhile. A later
                    // run may resume it.
                    if let Some((_, old)) = &replaced {
                        part.set_mode(old.mode & 0o777 | 0o600)?;
                    }
                    // Reserved space does not count as data.
                    let resumed_bytes = if is_new { 0 } else { part.end_of_data()? };
                    return Ok(TreeFile { part, write_back: WriteBack::default(), resumed_bytes });
                }
                Locked::Others => break,
                // Another user's file is not written to; ours may have just got its final name.
                Locked::Replaced => {
                    self.root.remove_part(path)?;
                }
            }
        }
        Err(FileError::Busy { path: path.to_owned() })
    }

    /// Passes the written range to the barrier, which starts its write-back.
    fn written(&self, file: &mut TreeFile, offset: u64, bytes: u64) -> Result<(), FileError> {
        self.barrier.written(&file.part, &mut file.write_back, offset, bytes)
    }

    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// [`FileError::Io`] if the write fails, such as `ENOSPC` for a full disk or `EIO` for a broken one.
    pub fn write(&self, file: &mut TreeFile, offset: u64, data: &[u8]) -> Result<(), FileError> {
        file.part.write_at(offset, data)?;
        self.written(file, offset, data.len() as u64)
    }

    /// Ends a verified file of `size` bytes: the next [`TreeWriter::commit`] gives it its name. It inherits the
    /// permissions of a file that it replaces.
    ///
    /// # Errors
    /// As [`TreeWriter::existing`]; [`FileError::Io`] if the file cannot be cut to its size, dated, or written back.
    /// The unfinished file stays.
    pub fn finish(&self, mut file: TreeFile, size: u64, mtime: Option<Mtime>) -> Result<(), FileError> {
        let TreeFile { part, .. } = &file;
        if let Some((_, old)) = self.existing(part.path())? {
            part.set_mode(old.mode & 0o777)?;
        }
        // An earlier run may have written or reserved bytes behind the end.
        part.set_size(size)?;
        note::clear(part);
        if let Some(mtime) = mtime {
            part.set_modified(mtime.unix_s, mtime.nanoseconds)?;
        }
        self.barrier.before_name(&file.part, &mut file.write_back, size)?;
        let group = locked(&self.group);
        // Each finished file is open. While a commit lasts, they must not exceed the limit on open files.
        let waited = self.has_room.wait_timeout_while(group, ROOM_TIME, |group| group.files.len() >= GROUP_FILES_MAX);
        let mut group = waited.unwrap_or_else(PoisonError::into_inner).0;
        if group.files.is_empty() {
            group.since = Instant::now();
        }
        group.bytes += size;
        group.files.push(file.part);
        Ok(())
    }

    /// Whether it is time for [`TreeWriter::commit`]: the group is full, or 2 s old.
    pub fn is_due(&self) -> bool {
        let group = locked(&self.group);
        let is_full = group.files.len() >= GROUP_FILES || group.bytes >= GROUP_BYTES;
        is_full || !group.files.is_empty() && group.since.elapsed() >= GROUP_TIME
    }

    /// Syncs, and gives all finished files their names. Returns the result of each.
    pub fn commit(&self) -> Vec<Committed> {
        let files = {
            let mut group = locked(&self.group);
            group.bytes = 0;
            std::mem::take(&mut group.files)
        };
        self.has_room.notify_all();
        if files.is_empty() {
            return Vec::new();
        }
        let synced = self.barrier.sync();
        let name = |part: &PartFile| match &synced {
            Ok(()) => self.name(part),
            Err(error) => Err(FileError::NotSynced { path: part.path().to_owned(), reason: error.to_string() }),
        };
        files.iter().map(|part| Committed { path: part.path().to_owned(), result: name(part) }).collect()
    }

    fn name(&self, part: &PartFile) -> Result<(), FileError> {
        let path = part.path();
        // Checked again: another entry or another process may have put a link or a directory here meanwhile.
        if let Some((_, old)) = self.existing(path)?
            && let Some(entries) = &self.entries
            && locked(entries).contains(&old.inode)
        {
            return Err(same_name(path));
        }
        // Another process that began the same file at the same time may have replaced ours.
        if !part.has_its_name()? {
            return Err(FileError::Busy { path: path.to_owned() });
        }
        part.finish()?;
        if let (Some(entries), Some(status)) = (&self.entries, self.root.stat(path)?) {
            locked(entries).insert(status.inode);
        }
        Ok(())
    }

    /// Creates a directory and its missing parents; an existing one stays as it is.
    ///
    /// # Errors
    /// - [`FileError::Path`] as of [`TreeWriter::judge`].
    /// - [`FileError::Symlink`] if a symbolic link has the name or is on the way.
    /// - [`FileError::Io`] if a file has the name (`ENOTDIR`), or the system refuses.
    pub fn create_directory(&self, path: &str) -> Result<(), FileError> {
        self.judge(path)?;
        self.root.create_directory(path, 0o777)
    }

    /// Sets the modification time of a directory, after the last entry in it was written.
    ///
    /// # Errors
    /// As [`Root::directory`], and [`FileError::Io`] if the system refuses to set the time.
    pub fn set_directory_mtime(&self, path: &str, mtime: Mtime) -> Result<(), FileError> {
        let directory = self.root.directory(path)?;
        set_times(&*directory, mtime).map_err(|errno| FileError::io("set the time of", path, errno))
    }

    /// Removes an unfinished file whose content is not needed any more.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system refuses to remove it.
    pub fn discard(&self, file: TreeFile) -> Result<(), FileError> {
        file.part.remove()
    }

    /// Path of the directory, for messages.
    pub fn path(&self) -> &Path {
        self.root.path()
    }
}

impl TreeFile {
    /// Path that the file will have, below the directory.
    pub fn path(&self) -> &str {
        self.part.path()
    }

    /// Opens a second handle, to read the content beside a writer.
    ///
    /// # Errors
    /// [`FileError::Io`] if the system cannot duplicate the descriptor, such as `EMFILE`.
    pub fn reader(&self) -> Result<Reader, FileError> {
        self.part.handle().map(Reader)
    }

    /// Version of the content as noted by an earlier run, such as an ETag.
    pub fn version(&self) -> Option<String> {
        note::get(&self.part)
    }

    /// Discards the content that an earlier run has written.
    ///
    /// # Errors
    /// [`FileError::Io`] if the file cannot be cut to length 0.
    pub fn start_over(&mut self) -> Result<(), FileError> {
        self.resumed_bytes = 0;
        note::clear(&self.part);
        self.part.set_size(0)
    }
}

/// Reads an unfinished file beside its writer.
#[derive(Debug)]
pub struct Reader(File);

impl Reader {
    /// Reads up to a buffer full at `offset`; 0 at the end.
    ///
    /// # Errors
    /// The error of pread(2), unchanged.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    /// Cuts the file to its first `bytes` bytes and notes that they are of `version`, for a run that resumes it.
    ///
    /// # Errors
    /// The system's error if the file's length cannot be read or the file cannot be cut.
    pub fn settle(&self, bytes: u64, version: Option<&str>) -> io::Result<()> {
        note::settle(&self.0, bytes, version)
    }
}

/// Error of one entry, for a line that begins with its path. An entry that no run can write is of kind partial ("left
/// out: …"); all other errors are of kind disk.
pub fn explain(error: &FileError) -> CommandError {
    let left_out = |reason: &str| CommandError::new(ErrorKind::Partial, format_args!("left out: {reason}"));
    match error {
        FileError::Path { reason, .. } => left_out(reason),
        FileError::Symlink { .. } => left_out("a symbolic link is in the way"),
        FileError::NotRegular { .. } => left_out("a directory or device has its name"),
        FileError::Busy { .. } => left_out("another process is writing it"),
        FileError::NotSynced { reason, .. } => CommandError::new(ErrorKind::Disk, reason),
        // A file is in the place of a directory above the entry.
        FileError::Io { source, .. } if source.kind() == io::ErrorKind::NotADirectory => {
            left_out("a file is in the place of a directory above it")
        }
        FileError::Io { operation, source, .. } => {
            CommandError::new(ErrorKind::Disk, format_args!("cannot {operation} it: {source}"))
        }
        other => CommandError::from_error(ErrorKind::Disk, other),
    }
}

fn same_name(path: &str) -> FileError {
    name::refuse(path, "the file system does not tell its name from that of another entry")
}

/// Whether the file system of a directory treats `a` and `A` as one name. Tested with a temporary file.
fn folds_case(root: &Root) -> Result<bool, FileError> {
    let path = || root.path().to_string_lossy();
    let number = u64::from_le_bytes(random());
    let [name, other] = [format!(".fullbore-case-{number:016x}"), format!(".FULLBORE-case-{number:016x}")];
    let directory = root.directory("")?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&*directory, &*name, flags, Mode::RUSR | Mode::WUSR);
    drop(file.map_err(|errno| FileError::io("create a file in", path(), errno))?);
    let folds = rustix::fs::statat(&*directory, &*other, AtFlags::SYMLINK_NOFOLLOW).is_ok();
    rustix::fs::unlinkat(&*directory, &*name, AtFlags::empty())
        .map_err(|errno| FileError::io("remove a file from", path(), errno))?;
    Ok(folds)
}

#[cfg(test)]
mod tests;
