//! Non-empty directories in places where the source has something else.
//!
//! Without `--delete` they stay, and the source's entry is left out. With it they are deleted like everything that the
//! source does not have: at the end, if all went well before. Until then their complete replacements wait beside them
//! under their unfinished names ([`names::part`]). An interrupted run leaves the replacements there.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::finish::DEPTH;
use super::listing::{list, parts};
use super::tree::Folder;
use super::write::Writers;
use crate::entry::{Kind, join, shown};
use crate::error::CopyError;
use crate::names;
use crate::wire::ProblemKind;

/// Paths of directories to delete at the end, and whether their replacement is complete.
#[derive(Default)]
pub(super) struct InTheWay {
    directories: Mutex<BTreeMap<Vec<u8>, bool>>,
}

impl InTheWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, bool>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is such a directory at this path.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.lock().contains_key(path)
    }

    /// Records that the replacement of the directory at this path is complete. Returns false if there is no such
    /// directory.
    pub(super) fn is_followed(&self, path: &[u8]) -> bool {
        self.lock().get_mut(path).map(|is_followed| *is_followed = true).is_some()
    }

    /// The current name of an entry whose own name such a directory may occupy.
    pub(super) fn present_name(&self, path: &[u8]) -> Vec<u8> {
        let (_, name) = parts(path);
        if self.lock().get(path) == Some(&true) { names::part(name) } else { name.to_vec() }
    }

    /// The paths of these directories.
    pub(super) fn paths(&self) -> Vec<Vec<u8>> {
        self.lock().keys().cloned().collect()
    }

    /// Whether a replacement waits beside one of them.
    pub(super) fn is_waited_for(&self) -> bool {
        self.lock().values().any(|is_followed| *is_followed)
    }
}

impl Writers<'_> {
    /// Whether a new entry can have this name, now or after a directory was deleted. If not, that has been reported.
    pub(super) fn finds_way(&self, folder: &Folder, path: &[u8], status: Option<&Stat>) -> Result<bool, Errno> {
        let Some(status) = status.filter(|status| Kind::of_mode(status.st_mode) == Some(Kind::Directory)) else {
            return Ok(true);
        };
        let options = self.context.options;
        let inner = self.tree.folder(path)?;
        if list(&inner)?.is_empty() {
            return Ok(true);
        }
        let obstacle = if !options.delete {
            Some("--delete would delete it".to_owned())
        } else if options.one_file_system && status.st_dev != folder.device {
            Some("it is another file system".to_owned())
        } else {
            self.obstacle(&inner, path, 0)?
        };
        self.tree.forget(path);
        match obstacle {
            Some(text) => {
                let text = format!("a non-empty directory is in its place: {text}");
                (self.problem)(ProblemKind::Unwritable, path, text);
                Ok(false)
            }
            None => {
                // In a dry run nothing has to wait.
                self.commit.in_the_way.lock().insert(path.to_vec(), options.dry_run);
                Ok(true)
            }
        }
    }

    /// Why a directory and its content cannot be deleted, if so.
    fn obstacle(&self, folder: &Folder, path: &[u8], depth: usize) -> Result<Option<String>, Errno> {
        if depth > DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let options = self.context.options;
        for (name, kind) in list(folder)? {
            let (path, is_directory) = (join(path, &name), kind == FileType::Directory);
            if self.protects(&path, is_directory) {
                let why = if options.filters.excludes(&path, is_directory) { "excluded" } else { "a backup" };
                return Ok(Some(format!("{} is {why}", shown(&path))));
            }
            if !is_directory {
                continue;
            }
            let inner = self.tree.folder(&path)?;
            if options.one_file_system && inner.device != folder.device {
                return Ok(Some(format!("{} is another file system", shown(&path))));
            }
            let obstacle = self.obstacle(&inner, &path, depth + 1)?;
            if obstacle.is_some() {
                return Ok(obstacle);
            }
        }
        Ok(None)
    }

    /// Deletes these directories before any content arrives, to free space.
    pub(super) fn clear_way(&self) -> Result<(), CopyError> {
        self.make_way()?;
        for path in self.commit.in_the_way.paths() {
            let (directory, name) = parts(&path);
            let folder = self.tree.folder(directory);
            // A directory that cannot be deleted is reported, and still in the way at the end.
            if folder.is_ok_and(|folder| self.delete_one(&folder, name, FileType::Directory, &path, 0)) {
                self.commit.in_the_way.lock().remove(&path);
            }
            if self.context.cancel.is_cancelled() {
                return Err(CopyError::Interrupted);
            }
        }
        Ok(())
    }

    /// Deletes these directories and renames their replacements.
    pub(super) fn make_way(&self) -> Result<(), CopyError> {
        let directories = self.commit.in_the_way.lock().clone();
        // Without a replacement the source's entry has disappeared meanwhile; the next run decides.
        for path in directories.into_iter().filter_map(|(path, is_followed)| is_followed.then_some(path)) {
            match self.follow(&path) {
                Ok(true) => drop(self.commit.in_the_way.lock().remove(&path)),
                Ok(false) => {}
                Err(error) => (self.problem)(ProblemKind::Unwritable, &path, std::io::Error::from(error).to_string()),
            }
            if self.context.cancel.is_cancelled() {
                return Err(CopyError::Interrupted);
            }
        }
        Ok(())
    }

    /// Puts a replacement in the place of its directory. Returns false if the directory stays and was reported.
    fn follow(&self, path: &[u8]) -> Result<bool, Errno> {
        let (directory, name) = parts(path);
        let folder = self.tree.folder(directory)?;
        let kind = folder.status(name)?.map(|status| FileType::from_raw_mode(status.st_mode));
        if kind == Some(FileType::Directory) && !self.delete_one(&folder, name, FileType::Directory, path, 0) {
            if !self.context.cancel.is_cancelled() {
                (self.problem)(ProblemKind::Unwritable, path, "the directory in its place stays".to_owned());
            }
            return Ok(false);
        }
        if !self.context.options.dry_run {
            folder.rename(&names::part(name), name)?;
            folder.unlink(&names::blocks(name))?;
        }
        Ok(true)
    }

    /// Reports replacements that arrived but have no name, because nothing may be deleted.
    pub(super) fn tell_waiting(&self) {
        for (path, _) in self.commit.in_the_way.lock().iter().filter(|(_, is_followed)| **is_followed) {
            let text = "a directory is in its place, which is deleted when all else has gone well".to_owned();
            (self.problem)(ProblemKind::Unwritable, path, text);
        }
    }
}
