//! A tree of named entries from outside, written safely below a directory: what `get` makes of a prefix of a store and
//! of a directory of a grid.
//!
//! Names come from whoever may write to the store. They are judged here alone ([`TreeWriter::judge`]), and resolved
//! beneath a handle of the directory, without symbolic links: nothing outside it is read or written. An entry that
//! cannot be written is an error of its own, and keeps no other one from being written.
//!
//! A file is written as `.NAME.part`, which a later run takes up after a kill. Verified files get their names in
//! groups, after one sync of the group ([`TreeWriter::commit`]): a power cut leaves no empty file under a final name.

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

/// Files that get their names after one sync. Each is open until then, and a process may have 1024 open files.
const GROUP_FILES: usize = 256;

/// Finished files that wait for the end of a sync: with as many that are being named, and those on their way, fewer than
/// the 1024 open files that a process has by default.
const GROUP_FILES_MAX: usize = 320;

/// Time after which a finished file waits no longer for room; then a disk or the caller is stuck.
const ROOM_TIME: Duration = Duration::from_secs(60);

/// Bytes that get their names after one sync. A guess: a second of a fast disk.
const GROUP_BYTES: u64 = 1 << 30;

/// Time after which finished files do not wait for more. A guess at what a person does not mind to lose by a kill.
const GROUP_TIME: Duration = Duration::from_secs(2);

/// Attempts to get an unfinished file that other processes replace again and again.
const ATTEMPTS: usize = 10;

/// Time of last change of a file's content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtime {
    /// Seconds since 1970, negative before.
    pub unix_s: i64,
    /// Nanoseconds of the second, less than 10⁹.
    pub nanoseconds: u32,
}

/// Writes entries below one directory. Shared by the threads of a run.
#[derive(Debug)]
pub struct TreeWriter {
    root: Arc<Root>,
    barrier: Barrier,
    /// The name of directories that no entry may be in; empty: none.
    private: String,
    group: Mutex<Group>,
    /// Whether there is room in the group.
    has_room: Condvar,
    /// Inodes of entries that are there; `None` on file systems that tell `a` from `A`.
    entries: Option<Mutex<HashSet<u64>>>,
}

/// Verified files that have no names yet.
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
    /// Bytes that an earlier run has written, from the beginning; they are not verified.
    pub resumed_bytes: u64,
}

/// What became of one file of a group.
#[derive(Debug)]
pub struct Committed {
    /// The path below the directory.
    pub path: String,
    /// Whether the file has its name, and why not.
    pub result: Result<(), FileError>,
}

impl TreeWriter {
    /// Makes the directory if it is missing, and opens it. No entry may be in a directory called `private`, such as
    /// that of a mirror's state; "" allows all.
    ///
    /// # Errors
    /// A [`FileError`] if the directory cannot be made, opened or written.
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
    /// [`FileError::Path`] for whatever is no path beneath a directory: absolute, with parts that are empty, `.` or
    /// `..`, with NUL, too long, too deep. Likewise for names of unfinished files, and for what lies in a private
    /// directory.
    pub fn judge(&self, path: &str) -> Result<(), FileError> {
        name::split_final(path)?;
        if !self.private.is_empty() && path.split('/').any(|part| part.eq_ignore_ascii_case(&self.private)) {
            return Err(name::refuse(path, "it is in the private state of a mirror"));
        }
        Ok(())
    }

    /// The regular file that has this path already; `None` when nothing has it.
    ///
    /// # Errors
    /// [`TreeWriter::judge`]'s; a symbolic link, a directory or a device in the way; the system's.
    pub fn existing(&self, path: &str) -> Result<Option<(File, Status)>, FileError> {
        self.judge(path)?;
        match self.root.stat(path)? {
            None => Ok(None),
            Some(Status { kind: Kind::Symlink, .. }) => Err(FileError::Symlink { path: path.to_owned() }),
            Some(Status { kind: Kind::File, .. }) => self.root.open_file(path),
            Some(_) => Err(FileError::NotRegular { path: path.to_owned() }),
        }
    }

    /// Notes that the file under this path is the entry, so that no other one replaces it. Needed on file systems that
    /// do not tell `a` from `A`.
    ///
    /// # Errors
    /// [`FileError::Path`] if another entry of this run is that file.
    pub fn keep(&self, path: &str, status: &Status) -> Result<(), FileError> {
        match &self.entries {
            Some(entries) if !locked(entries).insert(status.inode) => Err(same_name(path)),
            _ => Ok(()),
        }
    }

    /// Begins a file, or takes up what an earlier run left of it. Only one process at a time writes a file.
    ///
    /// # Errors
    /// As [`TreeWriter::existing`]; a [`FileError`] if another process writes the file, or the disk is full.
    pub fn begin(&self, path: &str, size: u64) -> Result<TreeFile, FileError> {
        let replaced = self.existing(path)?;
        for _ in 0..ATTEMPTS {
            let (part, is_new) = match self.root.resume_part(path)? {
                Some(part) => (part, false),
                None => (self.root.create_part(path, size)?, true),
            };
            match part.lock(is_new)? {
                Locked::Ours(part) => {
                    // Before there is content: what nobody else may read stays so meanwhile. A later run may go on with it.
                    if let Some((_, old)) = &replaced {
                        part.set_mode(old.mode & 0o777 | 0o600)?;
                    }
                    // Room that was reserved counts as no data.
                    let resumed_bytes = if is_new { 0 } else { part.end_of_data()? };
                    return Ok(TreeFile { part, write_back: WriteBack::default(), resumed_bytes });
                }
                Locked::Others => break,
                // Somebody else's file is not written to; ours may have just got its name.
                Locked::Replaced => {
                    self.root.remove_part(path)?;
                }
            }
        }
        Err(FileError::Busy { path: path.to_owned() })
    }

    /// Appends to what is known of the disk: bytes at this offset were written.
    fn written(&self, file: &mut TreeFile, offset: u64, bytes: u64) -> Result<(), FileError> {
        self.barrier.written(&file.part, &mut file.write_back, offset, bytes)
    }

    /// Writes bytes at an offset.
    ///
    /// # Errors
    /// A full or broken disk.
    pub fn write(&self, file: &mut TreeFile, offset: u64, data: &[u8]) -> Result<(), FileError> {
        file.part.write_at(offset, data)?;
        self.written(file, offset, data.len() as u64)
    }

    /// Ends a verified file of this size: it gets its name by the next [`TreeWriter::commit`]. A file that it replaces
    /// passes its permissions on.
    ///
    /// # Errors
    /// What is in the way of the name, and the system's errors. The unfinished file stays.
    pub fn finish(&self, mut file: TreeFile, size: u64, mtime: Option<Mtime>) -> Result<(), FileError> {
        let TreeFile { part, .. } = &file;
        if let Some((_, old)) = self.existing(part.path())? {
            part.set_mode(old.mode & 0o777)?;
        }
        // What an earlier run may have written behind the end, or reserved.
        part.set_size(size)?;
        note::clear(part);
        if let Some(mtime) = mtime {
            part.set_modified(mtime.unix_s, mtime.nanoseconds)?;
        }
        self.barrier.before_name(&file.part, &mut file.write_back, size)?;
        let group = locked(&self.group);
        // Each has its file open. A commit that lasts must not let them pass what the system allows.
        let waited = self.has_room.wait_timeout_while(group, ROOM_TIME, |group| group.files.len() >= GROUP_FILES_MAX);
        let mut group = waited.unwrap_or_else(PoisonError::into_inner).0;
        if group.files.is_empty() {
            group.since = Instant::now();
        }
        group.bytes += size;
        group.files.push(file.part);
        Ok(())
    }

    /// Whether enough files are finished for a [`TreeWriter::commit`].
    pub fn is_due(&self) -> bool {
        let group = locked(&self.group);
        let is_full = group.files.len() >= GROUP_FILES || group.bytes >= GROUP_BYTES;
        is_full || !group.files.is_empty() && group.since.elapsed() >= GROUP_TIME
    }

    /// Syncs, and gives all finished files their names. Returns what became of each.
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
        // Looked at again: a link or a directory may have come meanwhile, by another entry or another process.
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

    /// Makes sure of a directory; those above it come with it.
    ///
    /// # Errors
    /// As [`TreeWriter::judge`]; a file or link in the way; the system's.
    pub fn create_directory(&self, path: &str) -> Result<(), FileError> {
        self.judge(path)?;
        self.root.create_directory(path, 0o777)
    }

    /// Sets the time of last change of a directory, when nothing more is written into it.
    ///
    /// # Errors
    /// The system's.
    pub fn set_directory_mtime(&self, path: &str, mtime: Mtime) -> Result<(), FileError> {
        let directory = self.root.directory(path)?;
        set_times(&*directory, mtime).map_err(|errno| FileError::io("set the time of", path, errno))
    }

    /// Removes the unfinished file for `path`, whose content is of no use any more.
    ///
    /// # Errors
    /// The system's.
    pub fn discard(&self, file: TreeFile) -> Result<(), FileError> {
        file.part.remove()
    }

    /// The directory, for messages.
    pub fn path(&self) -> &Path {
        self.root.path()
    }
}

impl TreeFile {
    /// The path below the directory that the file will have.
    pub fn path(&self) -> &str {
        self.part.path()
    }

    /// A second handle of the content, for reading it beside a writer.
    ///
    /// # Errors
    /// The system's.
    pub fn reader(&self) -> Result<Reader, FileError> {
        self.part.handle().map(Reader)
    }

    /// The version of the content that an earlier run has noted.
    pub fn version(&self) -> Option<String> {
        note::get(&self.part)
    }

    /// Forgets what an earlier run has written.
    ///
    /// # Errors
    /// The system's.
    pub fn start_over(&mut self) -> Result<(), FileError> {
        self.resumed_bytes = 0;
        note::clear(&self.part);
        self.part.set_size(0)
    }
}

/// Reads an unfinished file.
#[derive(Debug)]
pub struct Reader(File);

impl Reader {
    /// Reads up to a buffer full at `offset`; 0 at the end.
    ///
    /// # Errors
    /// The system's.
    pub fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    /// Keeps so many bytes of the content, and notes which version they are of, for a run that takes the file up.
    ///
    /// # Errors
    /// The system's.
    pub fn settle(&self, bytes: u64, version: Option<&str>) -> io::Result<()> {
        note::settle(&self.0, bytes, version)
    }
}

/// What is wrong with one entry, for a line that begins with its path. What no run can write is left out; the rest are
/// errors of the disk.
pub fn explain(error: &FileError) -> CommandError {
    let left_out = |reason: &str| CommandError::new(ErrorKind::Partial, format_args!("left out: {reason}"));
    match error {
        FileError::Path { reason, .. } => left_out(reason),
        FileError::Symlink { .. } => left_out("a symbolic link is in the way"),
        FileError::NotRegular { .. } => left_out("a directory or device has its name"),
        FileError::Busy { .. } => left_out("another process is writing it"),
        FileError::NotSynced { reason, .. } => CommandError::new(ErrorKind::Disk, reason),
        // A file that is in the way of a directory.
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

/// Whether the file system of a directory takes `a` and `A` for one name.
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
