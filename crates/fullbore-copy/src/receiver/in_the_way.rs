//! Full directories that stand where the source has something else.
//!
//! Without `--delete` they stay, and what the source has is left out. With it they go as everything else does that the
//! source does not have: at the end, if all that came before went well. What takes their place waits beside them until
//! then, whole, under its unfinished name ([`names::part`]). A run that is cut in between leaves it there.

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

/// Paths of directories that go at the end; whether what takes their place is whole.
#[derive(Default)]
pub(super) struct InTheWay {
    directories: Mutex<BTreeMap<Vec<u8>, bool>>,
}

impl InTheWay {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, bool>> {
        self.directories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether such a directory is there.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.lock().contains_key(path)
    }

    /// What takes the place of the directory of this path, if one is there, is whole. Gives whether one is.
    pub(super) fn is_followed(&self, path: &[u8]) -> bool {
        self.lock().get_mut(path).map(|is_followed| *is_followed = true).is_some()
    }

    /// The name that something has for now whose own is, or may be, a directory's.
    pub(super) fn present_name(&self, path: &[u8]) -> Vec<u8> {
        let (_, name) = parts(path);
        if self.lock().get(path) == Some(&true) { names::part(name) } else { name.to_vec() }
    }

    /// The paths of the directories.
    pub(super) fn paths(&self) -> Vec<Vec<u8>> {
        self.lock().keys().cloned().collect()
    }

    /// Whether anything waits beside one of them.
    pub(super) fn is_waited_for(&self) -> bool {
        self.lock().values().any(|is_followed| *is_followed)
    }
}

impl Writers<'_> {
    /// Whether something new can have this name, at once or when a directory has made way for it. If not, that has
    /// been told.
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
                let text = format!("a directory with something in it is in its place: {text}");
                (self.problem)(ProblemKind::Unwritable, path, text);
                Ok(false)
            }
            None => {
                // A dry run waits for nothing.
                self.commit.in_the_way.lock().insert(path.to_vec(), options.dry_run);
                Ok(true)
            }
        }
    }

    /// Why a directory cannot be deleted with all that is in it.
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

    /// Deletes directories that are in the way before any content comes, where that is to make room.
    pub(super) fn clear_way(&self) -> Result<(), CopyError> {
        self.make_way()?;
        for path in self.commit.in_the_way.paths() {
            let (directory, name) = parts(&path);
            let folder = self.tree.folder(directory);
            // What stays is told of, and is in the way at the end as well.
            if folder.is_ok_and(|folder| self.delete_one(&folder, name, FileType::Directory, &path, 0)) {
                self.commit.in_the_way.lock().remove(&path);
            }
            if self.context.cancel.is_cancelled() {
                return Err(CopyError::Interrupted);
            }
        }
        Ok(())
    }

    /// Deletes directories that are in the way, and gives what waits beside them its name.
    pub(super) fn make_way(&self) -> Result<(), CopyError> {
        let directories = self.commit.in_the_way.lock().clone();
        // Where nothing waits, the source has lost it meanwhile: the next run knows what is to be there.
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

    /// Puts what waits beside a directory in its place. False if that stays, which was told of.
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

    /// Says what has come and has no name yet, as nothing may be deleted.
    pub(super) fn tell_waiting(&self) {
        for (path, _) in self.commit.in_the_way.lock().iter().filter(|(_, is_followed)| **is_followed) {
            let text = "a directory is in its place, which is deleted when all else has gone well".to_owned();
            (self.problem)(ProblemKind::Unwritable, path, text);
        }
    }
}
