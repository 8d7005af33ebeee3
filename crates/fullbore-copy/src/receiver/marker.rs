//! The file that says "a copy writes here": a lock while it runs, a sign of a torn copy afterwards.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::tree::Folder;
use crate::error::CopyError;
use crate::names::MARKER;

const TEXT: &[u8] = b"fullbore copy: not finished; run it again to go on\n";
/// A copy that ends just now takes its marker away while we wait for it; then another is made.
const TRIES: usize = 8;

/// Held while a copy writes to a destination.
#[derive(Debug)]
pub(super) struct Marker {
    /// Holds the lock until it is dropped.
    _lock: File,
    /// An earlier copy was not finished.
    pub(super) was_there: bool,
    /// Names that differ in case alone are the same here.
    pub(super) case_insensitive: bool,
}

impl Marker {
    /// Marks and locks the destination.
    ///
    /// # Errors
    /// When another copy has it, or nothing can be written there.
    pub(super) fn set(root: &Folder, path: &Path) -> Result<Marker, CopyError> {
        let wrong = |error: Errno| CopyError::Disk(format!("{}: {}", path.display(), std::io::Error::from(error)));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        for _ in 0..TRIES {
            let mut file = File::from(rustix::fs::openat(root, MARKER, flags, Mode::RUSR | Mode::WUSR).map_err(wrong)?);
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
            let was_there = ours.st_size > 0;
            if !was_there {
                file.write_all(TEXT).map_err(|error| super::commit::disk(MARKER, error))?;
            }
            let upper = root.status(&MARKER.to_ascii_uppercase()).ok().flatten();
            let case_insensitive = upper.is_some_and(|upper| upper.st_ino == ours.st_ino);
            return Ok(Marker { _lock: file, was_there, case_insensitive });
        }
        Err(CopyError::Locked(path.display().to_string()))
    }

    /// The copy is finished. The lock is held until this is dropped.
    pub(super) fn remove(&self, root: &Folder) -> Result<(), CopyError> {
        root.unlink(MARKER).map_err(|error| super::commit::disk(MARKER, error.into()))
    }
}
