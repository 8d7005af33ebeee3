//! The source: directories held open, names resolved beneath them, by rsync's rules for paths.
//!
//! A path with a slash at its end stands for what is in the directory, one without for the
//! directory itself (rsync(1), "USAGE"). Everything below is opened by way of the directory's handle,
//! without symbolic links: a link put in place of a directory meanwhile leads nowhere.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::entry::{Entry, Identity, Kind, PATH_BYTES, Time};
use crate::error::CopyError;
use crate::overlap::{Number, Whereabouts};

pub(super) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A directory that sources lie beneath.
#[derive(Debug)]
pub(super) struct Root {
    descriptor: OwnedFd,
    /// Its file system.
    pub(super) device: u64,
}

/// What one argument of the command stands for.
#[derive(Clone, Debug)]
pub struct Source {
    pub(super) root: Arc<Root>,
    /// The name beneath the root; none for all that is in it.
    pub(super) name: Option<Vec<u8>>,
    /// Whether it is a directory, or its content.
    pub(super) is_directory: bool,
    /// As it was opened.
    path: PathBuf,
}

impl Source {
    /// Opens what a path stands for.
    ///
    /// # Errors
    /// When there is nothing, or nothing that we may open.
    pub fn open(path: &Path) -> Result<Source, CopyError> {
        let bytes = path.as_os_str().as_bytes();
        let wrong = |error: Errno| CopyError::Usage(format!("{}: {}", path.display(), io::Error::from(error)));
        let last = bytes.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        if bytes.is_empty() {
            return Err(wrong(Errno::NOENT));
        }
        if matches!(last, b"" | b"." | b"..") {
            let root = Root::open(path).map_err(wrong)?;
            return Ok(Source { root: Arc::new(root), name: None, is_directory: true, path: path.to_owned() });
        }
        let parent = match &bytes[..bytes.len() - last.len()] {
            b"" => Path::new("."),
            parent => Path::new(OsStr::from_bytes(parent)),
        };
        let root = Root::open(parent).map_err(wrong)?;
        let status = rustix::fs::statat(&root.descriptor, last, AtFlags::SYMLINK_NOFOLLOW).map_err(wrong)?;
        let is_directory = Kind::of_mode(status.st_mode) == Some(Kind::Directory);
        // A mounted source is the file system that is meant.
        let root = Root { device: if is_directory { status.st_dev } else { root.device }, ..root };
        Ok(Source { root: Arc::new(root), name: Some(last.to_vec()), is_directory, path: path.to_owned() })
    }

    /// The name of a source that is no directory.
    pub(crate) fn single_file(&self) -> Option<&[u8]> {
        self.name.as_deref().filter(|_| !self.is_directory)
    }

    /// Where it lies; nothing if it has gone meanwhile.
    pub(crate) fn whereabouts(&self) -> Option<Whereabouts> {
        let root = Number::of(&rustix::fs::fstat(&self.root.descriptor).ok()?);
        let status = |name: &Vec<u8>| rustix::fs::statat(&self.root.descriptor, name, AtFlags::SYMLINK_NOFOLLOW).ok();
        let own = self.name.as_ref().filter(|_| self.is_directory).and_then(status);
        let content = if self.name.is_none() { self.path.canonicalize().ok() } else { None };
        Some(Whereabouts {
            root,
            name: self.name.clone(),
            own: own.as_ref().map(Number::of),
            written: self.path.as_os_str().as_bytes().to_vec(),
            content: content.map(|path| path.into_os_string().into_vec()),
        })
    }

    /// Whether it is on a disk whose arm has to be moved.
    pub fn is_rotational(&self) -> bool {
        crate::device::is_rotational(self.root.descriptor.as_fd())
    }
}

impl Root {
    fn open(path: &Path) -> Result<Root, Errno> {
        let descriptor = rustix::fs::open(path, DIRECTORY, Mode::empty())?;
        let device = rustix::fs::fstat(&descriptor)?.st_dev;
        Ok(Root { descriptor, device })
    }
}

/// A directory of the source; its path is the same beneath the root and beneath the destination.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) root: Arc<Root>,
    pub(super) path: Vec<u8>,
}

impl Directory {
    /// Opens it, beneath the root and without symbolic links.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        if self.path.is_empty() {
            return rustix::fs::openat(&self.root.descriptor, ".", DIRECTORY, Mode::empty());
        }
        if self.path.len() >= PATH_BYTES {
            // As the system says where it takes whole paths.
            return Err(Errno::NAMETOOLONG);
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match rustix::fs::openat2(&self.root.descriptor, &self.path[..], DIRECTORY, Mode::empty(), resolve) {
            // Before Linux 5.6, or filtered by a container.
            Err(Errno::NOSYS | Errno::PERM) => self.open_stepwise(),
            result => result,
        }
    }

    fn open_stepwise(&self) -> Result<OwnedFd, Errno> {
        let mut current = rustix::io::fcntl_dupfd_cloexec(&self.root.descriptor, 0)?;
        for part in self.path.split(|byte| *byte == b'/') {
            current = rustix::fs::openat(&current, part, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
        }
        Ok(current)
    }
}

/// A file of the source whose content may be wanted.
#[derive(Debug)]
pub(super) struct SourceFile {
    pub(super) directory: Arc<Directory>,
    pub(super) name: Box<[u8]>,
    pub(super) size: u64,
    pub(super) sparse: bool,
    pub(super) modified: Time,
    pub(super) identity: Identity,
}

impl SourceFile {
    /// Its path beneath the destination.
    pub(super) fn path(&self) -> Vec<u8> {
        crate::entry::join(&self.directory.path, &self.name)
    }

    /// Opens it for reading within its open directory.
    pub(super) fn open(&self, directory: &OwnedFd) -> Result<File, Errno> {
        // NONBLOCK: whoever puts a pipe in its place does not make us wait for ever.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, &self.name[..], flags, Mode::empty())?;
        Ok(File::from(file))
    }

    /// Whether an open file is the one that was listed, unchanged.
    pub(super) fn is_unchanged(&self, file: impl AsFd) -> Result<bool, Errno> {
        let status = rustix::fs::fstat(file)?;
        if Kind::of_mode(status.st_mode) != Some(Kind::File) {
            return Err(Errno::INVAL);
        }
        let unchanged = identity(&status) == self.identity && modified(&status) == self.modified;
        Ok(unchanged && status.st_size as u64 == self.size)
    }
}

/// The entry of a name, as its status tells; extended attributes and link targets come from elsewhere.
pub(super) fn entry(name: &[u8], status: &Stat) -> Option<Entry> {
    let kind = Kind::of_mode(status.st_mode)?;
    let size = if kind == Kind::File { status.st_size as u64 } else { 0 };
    let stored = (status.st_blocks as u64).saturating_mul(512);
    Some(Entry {
        mode: status.st_mode & 0o7777,
        user: status.st_uid,
        group: status.st_gid,
        modified: modified(status),
        size,
        stored: (kind == Kind::File && stored < size).then_some(stored),
        identity: if kind == Kind::Directory { Identity::default() } else { identity(status) },
        device: if kind.is_device() {
            (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev))
        } else {
            (0, 0)
        },
        ..Entry::plain(name, kind)
    })
}

pub(super) fn identity(status: &Stat) -> Identity {
    let changed = Time { seconds: status.st_ctime, nanoseconds: status.st_ctime_nsec as u32 };
    Identity { device: status.st_dev, inode: status.st_ino, changed }
}

pub(crate) fn modified(status: &Stat) -> Time {
    Time { seconds: status.st_mtime, nanoseconds: status.st_mtime_nsec as u32 }
}
