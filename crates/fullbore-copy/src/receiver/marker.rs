//! The file that says "a copy writes here": a lock while it runs, a sign of a torn copy afterwards.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{Grain, TRIAL, modified, times};
use super::listing::list;
use super::tree::Folder;
use crate::entry::Time;
use crate::error::CopyError;
use crate::names::MARKER;

const TEXT: &str = "fullbore copy: not finished; run it again to go on";
/// A copy that ends just now takes its marker away while we wait for it; then another is made.
const TRIES: usize = 8;

/// Held while a copy writes to a destination.
#[derive(Debug)]
pub(super) struct Marker {
    /// Holds the lock until it is dropped.
    _lock: File,
    /// An earlier copy was not finished.
    pub(super) was_there: bool,
    /// The time of the destination itself before it was marked.
    pub(super) before: Time,
    /// Names that differ in case alone are the same here.
    pub(super) case_insensitive: bool,
    /// What times are kept in here.
    pub(super) grain: Grain,
}

impl Marker {
    /// Marks and locks the destination.
    ///
    /// # Errors
    /// When another copy has it, or nothing can be written there.
    pub(super) fn set(root: &Folder, path: &Path) -> Result<Marker, CopyError> {
        let wrong = |error: Errno| CopyError::Disk(format!("{}: {}", path.display(), std::io::Error::from(error)));
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(root, MARKER, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        let before = modified(&rustix::fs::fstat(root).map_err(wrong)?);
        for _ in 0..TRIES {
            // Also an empty one is an earlier copy's: the power failed before it was written out.
            let (mut file, was_there) = match open(flags | OFlags::CREATE | OFlags::EXCL) {
                Err(Errno::EXIST) => match open(flags) {
                    Err(Errno::NOENT) => continue,
                    opened => (opened.map_err(wrong)?, true),
                },
                made => (made.map_err(wrong)?, false),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(CopyError::Locked(path.display().to_string())),
                Err(error) => return Err(wrong(error)),
            }
            let ours = rustix::fs::fstat(&file).map_err(wrong)?;
            let there = root.status(MARKER).map_err(wrong)?;
            if there.is_none_or(|there| there.st_ino != ours.st_ino) {
                continue;
            }
            if ours.st_size == 0 {
                let failed = |error| super::commit::disk(MARKER, error);
                file.write_all(format!("{TEXT}\n").as_bytes()).map_err(failed)?;
            }
            let case_insensitive = ignores_case(root, ours.st_ino).map_err(wrong)?;
            // What the file system makes of a time tells how exactly those of files can be compared.
            let kept = rustix::fs::futimens(&file, &times(TRIAL)).and_then(|()| root.status(MARKER));
            let grain = kept.ok().flatten().map_or(Grain::Unknown, |kept| Grain::of_trial(modified(&kept)));
            return Ok(Marker { _lock: file, was_there, before, case_insensitive, grain });
        }
        Err(CopyError::Locked(path.display().to_string()))
    }

    /// The copy is finished. The lock is held until this is dropped.
    pub(super) fn remove(&self, root: &Folder) -> Result<(), CopyError> {
        root.unlink(MARKER).map_err(|error| super::commit::disk(MARKER, error.into()))
    }
}

/// Whether the marker, which has this inode, is there by its name in capitals as well. File systems of FUSE may
/// give each name an inode of its own; then the directory tells whether it is another file.
fn ignores_case(root: &Folder, inode: u64) -> Result<bool, Errno> {
    let capitals = MARKER.to_ascii_uppercase();
    match root.status(&capitals) {
        Ok(Some(there)) if there.st_ino == inode => Ok(true),
        Ok(Some(_)) => Ok(!list(root)?.iter().any(|(name, _)| *name == capitals)),
        // What cannot have such a name has no other either.
        Ok(None) | Err(_) => Ok(false),
    }
}
