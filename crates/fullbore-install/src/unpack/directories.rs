//! Open directories of one worker. Entries of an archive are sorted by directory, so that a few open ones serve almost
//! all entries.

use std::cell::Cell;
use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;

use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::claims::{Claims, Identity};
use crate::root::Root;

/// Maximum number of open directories of all workers. A process may usually have 1024 descriptors.
const OPEN_MAX: usize = 512;

/// Minimum number of open directories of a worker. A path is seldom deeper.
const OPEN_MIN: usize = 8;

/// Other descriptors of a worker: the package, the new file, and directories that were just opened or are still in use.
const OTHERS: usize = 6;

/// Number of workers, at most `wanted`, that the limit of descriptors allows.
pub(super) fn workers(wanted: usize) -> usize {
    workers_within(wanted, descriptors_max())
}

fn workers_within(wanted: usize, descriptors_max: usize) -> usize {
    wanted.min(descriptors_max / (OPEN_MIN + OTHERS)).max(1)
}

/// Maximum number of open directories for one of `workers` workers.
fn directories_within(workers: usize, descriptors_max: usize) -> usize {
    let allowed = (descriptors_max / workers.max(1)).saturating_sub(OTHERS);
    allowed.min(OPEN_MAX / workers.max(1)).max(OPEN_MIN)
}

/// Maximum number of descriptors of all workers. A quarter of all is for the rest of the process, such as connections.
fn descriptors_max() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX) / 4 * 3)
}

/// An open directory in the root.
#[derive(Debug)]
pub(super) struct Directory {
    descriptor: OwnedFd,
    pub identity: Identity,
    /// Owner and group of new files: those of this process.
    pub own: (u32, u32),
    /// Whether new files get the group of the directory (set-group-id).
    pub hands_on_group: bool,
    /// Whether it was created in this round and so contains only claimed names.
    pub fresh: bool,
    /// Which permission bits new files keep.
    pub kept_bits: Cell<KeptBits>,
}

/// Permission bits that new files in a directory keep. The umask and a default ACL of the directory take bits away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptBits {
    /// No file was checked yet.
    Unknown,
    /// Files kept these bits. Others may be taken away.
    Known(u32),
    /// A file got another mode than requested. The mode of every file is set.
    Unreliable,
}

impl AsFd for Directory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Open directories of one worker.
pub(super) struct Directories<'a> {
    root: &'a Root,
    claims: &'a Claims,
    open: HashMap<Vec<u8>, Rc<Directory>>,
    last: Option<(Vec<u8>, Rc<Directory>)>,
    /// Maximum number of open directories.
    most: usize,
    own: (u32, u32),
}

impl<'a> Directories<'a> {
    /// Makes an empty set for one of `workers` workers.
    pub(super) fn new(root: &'a Root, claims: &'a Claims, workers: usize) -> Directories<'a> {
        let own = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let most = directories_within(workers, descriptors_max());
        Directories { root, claims, open: HashMap::new(), last: None, most, own }
    }

    /// Opens a directory by its path from the root, without a leading slash; links are followed.
    ///
    /// # Errors
    ///
    /// The `errno` of resolving or opening the directory: `ENOENT` or `ENOTDIR` if a part is missing or not a
    /// directory, `ELOOP` for a link loop, `EMFILE` for too many descriptors.
    pub(super) fn open(&mut self, path: &[u8]) -> Result<Rc<Directory>, Errno> {
        if let Some((last, directory)) = &self.last
            && last == path
        {
            return Ok(directory.clone());
        }
        let directory = match self.open.get(path) {
            Some(directory) => directory.clone(),
            None => {
                let descriptor = self.root.directory(path)?;
                self.keep(path, descriptor)?
            }
        };
        self.last = Some((path.to_vec(), directory.clone()));
        Ok(directory)
    }

    /// Opens a directory that was just created in `parent`.
    ///
    /// # Errors
    ///
    /// The `errno` of opening the directory, for example `ENOTDIR` if something replaced it.
    pub(super) fn open_fresh(&mut self, parent: &Directory, name: &[u8], path: &[u8]) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = rustix::fs::openat(parent, name, flags, Mode::empty())?;
        let status = rustix::fs::statat(&descriptor, "", AtFlags::EMPTY_PATH)?;
        self.claims.note_fresh((status.st_dev, status.st_ino));
        self.keep(path, descriptor)?;
        Ok(())
    }

    fn keep(&mut self, path: &[u8], descriptor: OwnedFd) -> Result<Rc<Directory>, Errno> {
        let status = rustix::fs::fstat(&descriptor)?;
        let identity = (status.st_dev, status.st_ino);
        self.root.note_file_system(descriptor.as_fd(), status.st_dev)?;
        let directory = Rc::new(Directory {
            descriptor,
            identity,
            own: self.own,
            hands_on_group: status.st_mode & 0o2000 != 0,
            fresh: self.claims.is_fresh(identity),
            kept_bits: Cell::new(KeptBits::Unknown),
        });
        if self.open.len() >= self.most {
            // The few needed directories are soon open again.
            self.open.clear();
        }
        self.open.insert(path.to_vec(), directory.clone());
        Ok(directory)
    }
}

/// Splits a path such as `/usr/bin/x` into directory and name.
pub(super) fn split(path: &[u8]) -> (&[u8], &[u8]) {
    let path = path.strip_prefix(b"/").unwrap_or(path);
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (b"", path),
    }
}

/// Temporary name of a file: `NAME.dpkg-new`.
pub(super) fn new_name(name: &[u8]) -> Vec<u8> {
    [name, b".dpkg-new"].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_of_any_number_stay_below_the_limit_of_descriptors() {
        for limit in [192, 768, 49_152] {
            for wanted in [1, 2, 8, 64, 90, 128, 500] {
                let workers = workers_within(wanted, limit);
                let open = workers * (directories_within(workers, limit) + OTHERS);
                assert!(open <= limit && workers >= wanted.min(limit / 16), "{limit} {wanted}: {open}");
            }
        }
        // Of 1024 descriptors.
        assert_eq!((workers_within(90, 768), workers_within(4, 768), workers_within(4, 8)), (54, 4, 1));
    }
}
