//! The one place that syncs: when bytes are safe on the disk, and at what price.
//!
//! With [`Durability::AtEnd`], write-back starts while bytes still arrive, and nothing waits for it. One `syncfs` at a
//! [`Barrier`] then covers everything before it, so the disk works beside the network instead of after it. `syncfs`
//! writes a file system's data *and* its names: it commits the journal of ext4 and XFS, and the transaction of btrfs.
//! So directories in which files were renamed need no fsync of their own. With [`Durability::Each`] they do, because no
//! barrier follows.

use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::files::{Directory, FileError, PartFile, Root};
use crate::sys;

/// Bytes written to a file before their write-back is started. A guess between a disk's preference for long runs and
/// the wish to start early; DESIGN names it.
const WRITE_BACK_BYTES: u64 = 8 << 20;

/// Finished files from this size on have the write-back of their last bytes started; smaller ones wait for the barrier.
/// A guess: below it, the call costs more than the overlap saves.
const WRITE_BACK_FILE_BYTES: u64 = 256 << 10;

/// The first Linux whose `syncfs` reports write-back errors (man page, ERRORS).
const SYNCFS_REPORTS_ERRORS: (u32, u32) = (5, 8);

/// When data must be on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Durability {
    /// Never: for a tree that is thrown away, or a machine that cannot fail.
    None,
    /// Before names refer to the data: one sync per checkpoint, and one before publishing.
    #[default]
    AtEnd,
    /// File by file: the content before its final name, the directory after it.
    Each,
}

impl fmt::Display for Durability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Durability::None => "none",
            Durability::AtEnd => "at-end",
            Durability::Each => "each",
        })
    }
}

/// The text is not the name of a durability (`none`, `at-end` or `each`).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("durability is `none`, `at-end` or `each`")]
pub struct UnknownDurability;

impl FromStr for Durability {
    type Err = UnknownDurability;
    fn from_str(text: &str) -> Result<Durability, UnknownDurability> {
        match text {
            "none" => Ok(Durability::None),
            "at-end" => Ok(Durability::AtEnd),
            "each" => Ok(Durability::Each),
            _ => Err(UnknownDurability),
        }
    }
}

/// Knows what to sync beneath a root, and when.
#[derive(Debug)]
pub struct Barrier {
    root: Arc<Root>,
    durability: Durability,
    /// Sync each file by itself, because this kernel's `syncfs` does not report write errors.
    per_file: bool,
}

/// Progress of the write-back of one file.
#[derive(Debug, Default)]
pub struct WriteBack {
    bytes: u64,
    /// The range that covers all bytes written since the last start.
    low: u64,
    high: u64,
}

impl Barrier {
    /// Creates a barrier for a root that nothing was written to yet. `syncfs` reports errors of our writes only through
    /// descriptors that were opened before them, and the root has those.
    pub fn new(root: Arc<Root>, durability: Durability) -> Barrier {
        let release = rustix::system::uname();
        let per_file = !syncfs_reports_errors(&release.release().to_string_lossy());
        Barrier { root, durability, per_file }
    }

    /// The durability given to [`Barrier::new`].
    pub fn durability(&self) -> Durability {
        self.durability
    }

    /// Records that bytes of a file were written. Every 8 MiB it has the kernel start to write them back. It does not
    /// wait for the disk, unless the disk's queue is full.
    ///
    /// # Errors
    /// [`FileError::Io`] with the part file's path if starting the write-back fails with `EIO`, `ENOSPC`, `EDQUOT` or
    /// `EROFS`. With [`Durability::None`], never.
    pub fn written(
        &self,
        part: &PartFile,
        state: &mut WriteBack,
        offset: u64,
        len_bytes: u64,
    ) -> Result<(), FileError> {
        if self.durability == Durability::None {
            return Ok(());
        }
        let end = offset.saturating_add(len_bytes);
        if state.bytes == 0 {
            (state.low, state.high) = (offset, end);
        } else {
            (state.low, state.high) = (state.low.min(offset), state.high.max(end));
        }
        state.bytes += len_bytes;
        if state.bytes < WRITE_BACK_BYTES {
            return Ok(());
        }
        self.start(part, state)
    }

    /// To be called with a verified file, before it gets its final name.
    ///
    /// # Errors
    /// [`FileError::Io`] with the file's path if `fsync` or the start of the write-back fails. With
    /// [`Durability::None`], never.
    pub fn before_name(&self, part: &PartFile, state: &mut WriteBack, size_bytes: u64) -> Result<(), FileError> {
        match self.durability {
            Durability::None => Ok(()),
            Durability::AtEnd if !self.per_file => {
                if size_bytes >= WRITE_BACK_FILE_BYTES && state.bytes > 0 {
                    self.start(part, state)
                } else {
                    Ok(())
                }
            }
            Durability::AtEnd | Durability::Each => sync_file(part, part.path()),
        }
    }

    /// To be called when the file has its final name.
    ///
    /// # Errors
    /// [`FileError::Io`] with the directory's path if `fsync` on it, or on a directory above it, fails. Only with
    /// [`Durability::Each`].
    pub fn after_name(&self, directory: &Directory) -> Result<(), FileError> {
        if self.durability != Durability::Each {
            return Ok(());
        }
        sync_file(directory, directory.path())?;
        if directory.ancestors_synced.swap(true, Ordering::Relaxed) {
            return Ok(());
        }
        // Directories that this run created on the way have names of their own to keep.
        let mut path = directory.path();
        while !path.is_empty() {
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
            sync_file(&*self.root.directory(path)?, path)?;
        }
        Ok(())
    }

    /// Returns when everything written and named so far would survive a power cut. With [`Durability::None`] it returns
    /// at once and promises nothing.
    ///
    /// # Errors
    /// [`FileError::Io`] with the root's path if `syncfs` fails. It reports write errors since the last barrier without
    /// saying of which file, so everything written since then is in doubt.
    pub fn sync(&self) -> Result<(), FileError> {
        if self.durability == Durability::None {
            return Ok(());
        }
        for file_system in self.root.file_systems() {
            rustix::fs::syncfs(&*file_system)
                .map_err(|errno| FileError::io("sync the file system of", self.root.path().to_string_lossy(), errno))?;
        }
        Ok(())
    }

    fn start(&self, part: &PartFile, state: &mut WriteBack) -> Result<(), FileError> {
        let (low, high) = (state.low, state.high);
        *state = WriteBack::default();
        match sys::start_write_back(part.as_fd(), low, high - low) {
            Ok(()) => Ok(()),
            Err(error) if is_disk_trouble(&error) => Err(FileError::io("write back", part.path(), error)),
            // This is only advice: a file system that does not support it loses time, not data.
            Err(_) => Ok(()),
        }
    }
}

/// Syncs one file or directory that must not wait for a barrier. `path` is for messages.
///
/// # Errors
/// [`FileError::Io`] with `path` if `fsync` fails. `EINVAL` and `ENOSYS` are no errors: some file systems cannot sync a
/// directory.
pub fn sync_file(file: &impl AsFd, path: &str) -> Result<(), FileError> {
    match rustix::fs::fsync(file) {
        Ok(()) => Ok(()),
        // Some network and FUSE file systems cannot sync a directory.
        Err(Errno::INVAL | Errno::NOSYS) => Ok(()),
        Err(errno) => Err(FileError::io("sync", path, errno)),
    }
}

fn is_disk_trouble(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::IO | Errno::NOSPC | Errno::DQUOT | Errno::ROFS))
}

fn syncfs_reports_errors(release: &str) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= SYNCFS_REPORTS_ERRORS,
        _ => false, // a release that we cannot read gets the careful way
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_5_8_on_report_errors_of_syncfs() {
        for release in ["5.8.0", "5.10.0-30-amd64", "6.1", "10.0.1-rc1"] {
            assert!(syncfs_reports_errors(release), "{release}");
        }
        for release in ["5.7.19", "4.19.0-27-amd64", "5.4", "", "linux", "5", "99999999999.1"] {
            assert!(!syncfs_reports_errors(release), "{release}");
        }
    }

    #[test]
    fn names_of_durabilities_are_read_as_they_are_written() {
        for durability in [Durability::None, Durability::AtEnd, Durability::Each] {
            assert_eq!(durability.to_string().parse(), Ok(durability));
            let json = serde_json::to_string(&durability).unwrap();
            assert_eq!(json, format!("\"{durability}\""));
        }
        assert!("always".parse::<Durability>().is_err());
    }

    #[test]
    fn every_way_goes_through() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(directory.path()).unwrap());
        for (durability, per_file) in [
            (Durability::None, false),
            (Durability::AtEnd, false),
            (Durability::AtEnd, true),
            (Durability::Each, false),
        ] {
            let mut barrier = Barrier::new(root.clone(), durability);
            barrier.per_file = per_file;
            let part = root.create_part("a/b/c", 300 << 10).unwrap();
            let mut state = WriteBack::default();
            part.write_at(0, &vec![1; 300 << 10]).unwrap();
            barrier.written(&part, &mut state, 0, 300 << 10).unwrap();
            barrier.before_name(&part, &mut state, 300 << 10).unwrap();
            part.finish().unwrap();
            barrier.after_name(part.directory()).unwrap();
            barrier.sync().unwrap();
        }
    }

    /// The range that is started covers what was written since the last start.
    #[test]
    fn write_back_starts_every_8_mib() {
        let directory = tempfile::tempdir().unwrap();
        let root = Arc::new(Root::open(directory.path()).unwrap());
        let barrier = Barrier::new(root.clone(), Durability::AtEnd);
        let part = root.create_part("f", 0).unwrap();
        let mut state = WriteBack::default();
        barrier.written(&part, &mut state, 5 << 20, 4 << 20).unwrap();
        barrier.written(&part, &mut state, 1 << 20, 1 << 20).unwrap();
        assert_eq!((state.low, state.high, state.bytes), (1 << 20, 9 << 20, 5 << 20));
        barrier.written(&part, &mut state, 9 << 20, 3 << 20).unwrap();
        assert_eq!(state.bytes, 0);
    }
}
