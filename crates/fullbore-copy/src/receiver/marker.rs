//! The file that says "a copy writes here": a lock while it runs, a sign of a torn copy afterwards.

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
/// More than the text has, in bytes.
const TEXT_BYTES: u64 = 4096;
/// A copy that ends just now takes its marker away while we wait for it; then another is made.
const TRIES: usize = 8;

/// Held while a copy writes to a destination.
#[derive(Debug)]
pub(super) struct Marker {
    /// Holds the lock until it is dropped.
    file: File,
    /// An earlier copy was not finished; it, or the first of several, began at this time, by the clock that gives
    /// files there their change times. What that copy wrote was changed since then.
    pub(super) torn: Option<Time>,
    /// A flush of that copy failed: what it had written since the one before may be nowhere, though memory has it.
    pub(super) lost: bool,
    /// The permissions that the destination itself had before it was opened for the copy, if it was.
    pub(super) closed: Option<u32>,
    /// The time of the destination itself before it was marked.
    pub(super) before: Time,
    /// Names that differ in case alone are the same here.
    pub(super) case_insensitive: bool,
    /// What times are kept in here.
    pub(super) grain: Grain,
}

impl Marker {
    /// Marks and locks the destination, which was opened for that if it was `closed`, with these permissions.
    ///
    /// # Errors
    /// When another copy has it, or nothing can be written there.
    pub(super) fn set(root: &Folder, path: &Path, closed: Option<u32>) -> Result<Marker, CopyError> {
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
            if FileType::from_raw_mode(ours.st_mode) != FileType::RegularFile || ours.st_nlink > 1 {
                // It would be written to, and get another time.
                let marker = String::from_utf8_lossy(MARKER);
                let text = format!("{}/{marker}: is no file that a copy has made; remove it", path.display());
                return Err(CopyError::Disk(text));
            }
            let failed = |error| super::commit::disk(MARKER, error);
            let mut text = Vec::new();
            (&file).take(TEXT_BYTES).read_to_end(&mut text).map_err(failed)?;
            // Of one that does not tell, everything there may be.
            let said = String::from_utf8_lossy(&text);
            let torn = was_there.then(|| parse(&said).unwrap_or_default());
            // Whoever else may have written it does not decide on permissions.
            let is_ours = ours.st_uid == rustix::process::geteuid().as_raw();
            let closed = closed.or_else(|| parse_closed(&said).filter(|_| is_ours));
            let lost = said.lines().any(|line| line == LOST);
            let case_insensitive = ignores_case(root, ours.st_ino).map_err(wrong)?;
            // What the file system makes of a time tells how exactly those of files can be compared.
            let kept = rustix::fs::futimens(&file, &times(TRIAL)).and_then(|()| root.status(MARKER));
            let kept = kept.ok().flatten();
            let grain = kept.as_ref().map_or(Grain::Unknown, |kept| Grain::of_trial(modified(kept)));
            if text.is_empty() {
                // Behind the trial: where changes have no time of their own this is the trial's, which is before all.
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

    /// A flush has failed; the next run shall know.
    pub(super) fn lose(&self, root: &Folder) -> Result<(), CopyError> {
        let note = format!("{LOST}\n");
        let noted = (&self.file).seek(SeekFrom::End(0)).and_then(|_| (&self.file).write_all(note.as_bytes()));
        // Where there is no room for that either, it goes: then nothing unfinished is believed.
        noted.or_else(|_| self.remove(root))
    }

    /// The copy is finished. The lock is held until this is dropped.
    pub(super) fn remove(&self, root: &Folder) -> Result<(), CopyError> {
        root.unlink(MARKER).map_err(|error| super::commit::disk(MARKER, error.into()))
    }
}

impl Drop for Marker {
    fn drop(&mut self) {
        // A process that another thread has just begun has the file open, too, until it runs its program.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// When the copy began that a marker tells of.
fn parse(text: &str) -> Option<Time> {
    let (seconds, nanoseconds) = text.lines().find_map(|line| line.strip_prefix(BEGAN))?.split_once('.')?;
    Some(Time { seconds: seconds.parse().ok()?, nanoseconds: nanoseconds.parse().ok()? })
}

/// The permissions that a marker tells of.
fn parse_closed(text: &str) -> Option<u32> {
    let mode = text.lines().find_map(|line| line.strip_prefix(CLOSED))?;
    u32::from_str_radix(mode, 8).ok().filter(|mode| *mode <= 0o7777)
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
        assert!(refused.contains(".fullbore-copy: is no file that a copy has made"), "{refused}");
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
