//! The marker file: a lock while a copy runs, and the sign of an interrupted copy afterwards.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use rustix::fs::{FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::attributes::{Grain, TRIAL, changed, modified, times};
use super::listing::list;
use super::tree::Folder;
use crate::entry::Time;
use crate::error::CopyError;
use crate::names::MARKER;

const TEXT: &str = "fullbore copy: not finished; run it again to go on";
const BEGAN: &str = "began ";
const CLOSED: &str = "closed ";
const LOST: &str = "a flush failed";
/// Most bytes read of a marker: more than its text has.
const TEXT_BYTES: u64 = 4096;
/// Attempts to lock the marker. A copy that ends just now removes its marker while we wait for it, so another one has
/// to be made.
const TRIES: usize = 8;

/// The marker and its lock, held while a copy writes to a destination.
#[derive(Debug)]
pub(super) struct Marker {
    /// Holds the lock until it is closed.
    file: File,
    /// Start of an earlier copy that was not finished, or of the first of several, by the clock of change times there.
    /// Files that it wrote have changed since then.
    pub(super) torn: Option<Time>,
    /// Whether a flush of that copy failed. Its data since the previous flush may be lost, even if it is still in
    /// memory.
    pub(super) lost: bool,
    /// Original permissions of the destination, if they were changed for the copy.
    pub(super) closed: Option<u32>,
    /// Time of the destination itself before it was marked.
    pub(super) before: Time,
    /// Whether the file system ignores the case of names.
    pub(super) case_insensitive: bool,
    /// Resolution of times on this file system.
    pub(super) grain: Grain,
}

impl Marker {
    /// Marks and locks the destination. `closed` has its original permissions, if they were changed to open it.
    ///
    /// # Errors
    /// [`CopyError::Locked`] if another copy holds the lock. [`CopyError::Disk`] if the marker cannot be written, or is
    /// not a file that a copy made.
    pub(super) fn set(root: &Folder, path: &Path, closed: Option<u32>) -> Result<Marker, CopyError> {
        let wrong = |error: Errno| CopyError::Disk(format!("{}: {}", path.display(), std::io::Error::from(error)));
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |flags| rustix::fs::openat(root, MARKER, flags, Mode::RUSR | Mode::WUSR).map(File::from);
        let before = modified(&rustix::fs::fstat(root).map_err(wrong)?);
        for _ in 0..TRIES {
            // An empty marker counts as well: the power failed before it was written out.
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
            if FileType::from_raw_mode(ours.st_mode) != FileType::RegularFile || ours.st_nlink > 1 {
                // Such a file would be overwritten, and get another time.
                let marker = String::from_utf8_lossy(MARKER);
                let text = format!("{}/{marker}: not a file that a copy made; remove it", path.display());
                return Err(CopyError::Disk(text));
            }
            let failed = |error| super::commit::disk(MARKER, error);
            let mut text = Vec::new();
            (&file).take(TEXT_BYTES).read_to_end(&mut text).map_err(failed)?;
            // A marker without a start time belongs to a copy that may have written everything there.
            let said = String::from_utf8_lossy(&text);
            let torn = was_there.then(|| parse(&said).unwrap_or_default());
            // Someone else's marker must not decide on permissions.
            let is_ours = ours.st_uid == rustix::process::geteuid().as_raw();
            let closed = closed.or_else(|| parse_closed(&said).filter(|_| is_ours));
            let lost = said.lines().any(|line| line == LOST);
            let case_insensitive = ignores_case(root, ours.st_ino).map_err(wrong)?;
            // How the file system stores this time tells how exactly times of files can be compared.
            let kept = rustix::fs::futimens(&file, &times(TRIAL)).and_then(|()| root.status(MARKER));
            let kept = kept.ok().flatten();
            let grain = kept.as_ref().map_or(Grain::Unknown, |kept| Grain::of_trial(modified(kept)));
            if text.is_empty() {
                // After the trial: a file system without change times reports the trial's, which is before all others.
                let began = torn.unwrap_or_else(|| kept.as_ref().map(changed).unwrap_or_default());
                let mut text = format!("{TEXT}\n{BEGAN}{}.{:09}\n", began.seconds, began.nanoseconds);
                if let Some(mode) = closed {
                    text.push_str(&format!("{CLOSED}{mode:o}\n"));
                }
                file.write_all(text.as_bytes()).map_err(failed)?;
            }
            return Ok(Marker { file, torn, lost, closed, before, case_insensitive, grain });
        }
        Err(CopyError::Locked(path.display().to_string()))
    }

    /// Records a failed flush for the next run.
    pub(super) fn lose(&self, root: &Folder) -> Result<(), CopyError> {
        let note = format!("{LOST}\n");
        let noted = (&self.file).seek(SeekFrom::End(0)).and_then(|_| (&self.file).write_all(note.as_bytes()));
        // If there is no space for the note either, remove the marker: the next run then trusts no unfinished file.
        noted.or_else(|_| self.remove(root))
    }

    /// Removes the marker at the end of the copy. The lock is held until `self` is dropped.
    pub(super) fn remove(&self, root: &Folder) -> Result<(), CopyError> {
        root.unlink(MARKER).map_err(|error| super::commit::disk(MARKER, error.into()))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // A child process of another thread has the file open as well until it runs its program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// The start time of a copy, from its marker.
fn parse(text: &str) -> Option<Time> {
    let (seconds, nanoseconds) = text.lines().find_map(|line| line.strip_prefix(BEGAN))?.split_once('.')?;
    Some(Time { seconds: seconds.parse().ok()?, nanoseconds: nanoseconds.parse().ok()? })
}

/// The original permissions of the destination, from a marker.
fn parse_closed(text: &str) -> Option<u32> {
    let mode = text.lines().find_map(|line| line.strip_prefix(CLOSED))?;
    u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)
}

/// Whether the marker with this inode also exists under its name in capitals. FUSE file systems may give each name its
/// own inode; then the directory's names decide.
fn ignores_case(root: &Folder, inode: u64) -> Result<bool, Errno> {
    let capitals = MARKER.to_ascii_uppercase();
    match root.status(&capitals) {
        Ok(Some(there)) if there.st_ino == inode => Ok(true),
        Ok(Some(_)) => Ok(!list(root)?.iter().any(|(name, _)| *name == capitals)),
        // If such a name is not possible, the file system does not ignore case.
        Ok(None) | Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tree::Tree;
    use super::*;

    #[test]
    fn the_first_torn_part_is_kept_until_a_copy_finishes() {
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path(), directory.path().join(".fullbore-copy"));
        let tree = Tree::open(path).unwrap();
        // The lock goes with it.
        let torn = || Marker::set(tree.root(), path, None).unwrap().torn;
        std::fs::write(path.join("before"), "x").unwrap();
        assert_eq!(torn(), None);
        let began = torn().unwrap();
        let changed = |name: &[u8]| changed(&tree.root().status(name).unwrap().unwrap());
        std::fs::write(path.join("since"), "x").unwrap();
        assert!(changed(b"before") <= began && began <= changed(b"since"), "{began:?}");
        assert_eq!(torn(), Some(began));
        Marker::set(tree.root(), path, None).unwrap().remove(tree.root()).unwrap();
        assert_eq!(torn(), None);
        // One of a disk that failed.
        let lost = || Marker::set(tree.root(), path, None).unwrap().lost;
        let marker = Marker::set(tree.root(), path, None).unwrap();
        assert!(!marker.lost);
        marker.lose(tree.root()).unwrap();
        drop(marker);
        assert!(lost() && lost());
        Marker::set(tree.root(), path, None).unwrap().remove(tree.root()).unwrap();
        assert!(!lost());
        // One of which nothing was written out before the power failed, and one of another kind.
        for content in ["", "fullbore copy"] {
            std::fs::write(&text, content).unwrap();
            assert_eq!([torn(), torn()], [Some(Time::default()); 2], "{content}");
        }
    }

    #[test]
    fn what_others_had_put_in_place_of_the_marker_was_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path(), directory.path().join(".fullbore-copy"));
        let tree = Tree::open(path).unwrap();
        std::fs::write(path.join("other"), "").unwrap();
        std::fs::hard_link(path.join("other"), &text).unwrap();
        let refused = Marker::set(tree.root(), path, None).unwrap_err().to_string();
        assert!(refused.contains(".fullbore-copy: not a file that a copy made"), "{refused}");
        std::fs::remove_file(&text).unwrap();
        rustix::fs::mknodat(tree.root(), MARKER, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        assert!(Marker::set(tree.root(), path, None).is_err());
        std::fs::remove_file(&text).unwrap();
        assert_eq!(std::fs::read(path.join("other")).unwrap(), b"");
    }

    #[test]
    fn the_permissions_of_an_opened_destination_outlive_a_kill() {
        assert!(rustix::process::geteuid().is_root(), "gives files away: run as root (script/test does)");
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path(), directory.path().join(".fullbore-copy"));
        let tree = Tree::open(path).unwrap();
        let closed = |closed| Marker::set(tree.root(), path, closed).unwrap().closed;
        assert_eq!([closed(Some(0o555)), closed(None)], [Some(0o555); 2]);
        std::os::unix::fs::chown(&text, Some(65534), None).unwrap();
        assert_eq!(closed(None), None, "another user's word");
    }
}
