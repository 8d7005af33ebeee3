//! Files of the source that changed while they were read. The next run must not take the copy for current, even if
//! length and time are unchanged, or someone sets the time back. So the copy gets a different time.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use super::attributes::{DAY_S, change_time};
use super::listing::parts;
use super::tree::Folder;
use super::write::Writers;
use crate::entry::{Kind, Time};
use crate::names;

/// Paths of these files at the destination, and whether their time has been set.
#[derive(Debug, Default)]
pub(super) struct ChangedFiles {
    paths: Mutex<HashMap<Vec<u8>, bool>>,
    /// Whether there are any. That is rare, and saves a lookup per file.
    are_any: AtomicBool,
}

impl ChangedFiles {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, bool>> {
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a file. Ignores paths beyond the number of listed entries, so that a sender cannot fill memory with
    /// made-up paths.
    pub(super) fn note(&self, path: &[u8], listed: u64) {
        let mut paths = self.lock();
        if (paths.len() as u64) < listed {
            paths.insert(path.to_vec(), false);
            self.are_any.store(true, Ordering::Release);
        }
    }

    /// Whether any file changed.
    pub(super) fn are_any(&self) -> bool {
        self.are_any.load(Ordering::Acquire)
    }

    /// Whether the file at this path changed.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.are_any() && self.lock().contains_key(path)
    }

    /// Sets another time on a finished file that is still called `own`, if it changed.
    pub(super) fn mark(&self, folder: &Folder, own: &[u8], path: &[u8]) -> Result<(), Errno> {
        if self.has(path) {
            set_another_time(folder, own)?;
            self.lock().insert(path.to_vec(), true);
        }
        Ok(())
    }

    fn unmarked(&self) -> Vec<Vec<u8>> {
        self.lock().iter().filter(|(_, is_marked)| !**is_marked).map(|(path, _)| path.clone()).collect()
    }
}

/// Sets the time one day back: still useful to people, and never newer than the source, as `--update` would not replace
/// a newer file.
pub(super) fn set_another_time(folder: &Folder, name: &[u8]) -> Result<(), Errno> {
    let moved = |time: Time, by: i64| Time { seconds: time.seconds.saturating_add(by), ..time };
    change_time(folder, name, |now| [moved(now, -DAY_S), moved(now, DAY_S), Time::default()])
}

impl Writers<'_> {
    /// Sets another time on files that had their names before the change was known.
    pub(super) fn mark_changed(&self) {
        for path in self.commit.changed.unmarked() {
            let (directory, _) = parts(&path);
            let name = self.commit.in_the_way.present_name(&path);
            // If the time cannot be set, the file is still reported.
            let _ = self.tree.folder(directory).and_then(|folder| match folder.status(&name)? {
                // A file with several names was compared by content, as the next run will do, and is not ours alone.
                Some(status) if status.st_nlink == 1 && Kind::of_mode(status.st_mode) == Some(Kind::File) => {
                    self.commit.changed.mark(&folder, &name, &path)
                }
                _ => Ok(()),
            });
        }
    }

    /// Sets another time on an unfinished file that changed, just before it gets its name.
    pub(super) fn mark_unfinished(&self, folder: &Folder, path: &[u8], first: Option<&[u8]>) -> Result<(), Errno> {
        let changed = &self.commit.changed;
        let own = names::part(parts(path).1);
        match first {
            Some(first) if changed.has(first) => set_another_time(folder, &own),
            _ => changed.mark(folder, &own, path),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_files_of_made_up_paths_take_no_memory() {
        let changed = ChangedFiles::default();
        assert!(!changed.has(b"file"));
        for number in 0..100_000 {
            changed.note(format!("made up/{number}").as_bytes(), 3);
        }
        assert!(changed.has(b"made up/2") && !changed.has(b"made up/3"));
        assert_eq!(changed.lock().len(), 3);
    }
}
