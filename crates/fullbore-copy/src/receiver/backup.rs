//! `--backup`: keeps replaced and deleted files under another name or in another directory.
//!
//! A replaced file is first linked to its backup's name, where the file system can, so that its own name always has a
//! file. Directories are recreated in the backup directory, with their current attributes.

use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Mode};
use rustix::io::Errno;

use super::attributes::Attributes;
use super::commit::is_fatal;
use super::listing::{make, parts};
use super::partial;
use super::shared::copy_content;
use super::tree::{Folder, Tree};
use crate::entry::{Entry, Kind};
use crate::error::CopyError;
use crate::options::{BackupSettings, Options};
use crate::overlap::real;
use crate::sender::entry_of;
use crate::wire::ProblemKind;
use crate::xattrs;

/// Where backups go.
pub(super) struct Backup<'a> {
    tree: &'a Tree,
    suffix: Vec<u8>,
    directory: Option<BackupDirectory>,
}

/// The backup directory, which is created for the first backup.
struct BackupDirectory {
    path: PathBuf,
    /// Its path below the destination, if it is there.
    within: Option<Vec<u8>>,
    tree: Mutex<Option<Arc<Tree>>>,
    /// Keeps all attributes that the files have.
    attributes: Attributes,
}

impl<'a> Backup<'a> {
    /// Prepares backups; `None` if the options do not ask for them.
    ///
    /// # Errors
    /// [`CopyError::Usage`] if the backup directory is the destination itself.
    pub(super) fn new(options: &Options, destination: &Path, tree: &'a Tree) -> Result<Option<Backup<'a>>, CopyError> {
        let Some(BackupSettings { directory, suffix }) = &options.backup else { return Ok(None) };
        let directory = match directory {
            Some(directory) => {
                let path = destination.join(std::ffi::OsStr::from_bytes(directory));
                let within = real(&path).zip(real(destination));
                let within = within.and_then(|(path, there)| Some(path.strip_prefix(there).ok()?.to_owned()));
                let within = within.map(|path| path.as_os_str().as_bytes().to_vec());
                if within.as_ref().is_some_and(Vec::is_empty) {
                    return Err(CopyError::Usage("--backup-dir is DST itself: name another directory".to_owned()));
                }
                let attributes = Attributes::new(&Options { numeric_ids: true, ..Options::default() })?;
                Some(BackupDirectory { path, within, tree: Mutex::default(), attributes })
            }
            None => None,
        };
        Ok(Some(Backup { tree, suffix: suffix.clone(), directory }))
    }

    /// Whether a path of the destination is, or contains, a backup of this or an earlier run. Such paths are never
    /// deleted.
    pub(super) fn protects(&self, path: &[u8]) -> bool {
        match &self.directory {
            Some(directory) => directory
                .within
                .as_ref()
                .is_some_and(|within| within.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')),
            None => self.is_one(parts(path).1),
        }
    }

    /// Whether backups are beside their replacements, and this is the name of one.
    fn is_one(&self, name: &[u8]) -> bool {
        self.directory.is_none() && name.len() > self.suffix.len() && name.ends_with(&self.suffix)
    }

    /// Whether backups are beside their replacements.
    pub(super) fn is_beside(&self) -> bool {
        self.directory.is_none()
    }

    /// Backs up a file that is about to be replaced. Returns false if that failed and was reported.
    ///
    /// # Errors
    /// The error, if it means that the destination itself fails ([`is_fatal`]): full, over quota, read-only or broken.
    pub(super) fn keep(
        &self,
        folder: &Folder,
        path: &[u8],
        problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync),
    ) -> Result<bool, Errno> {
        let name = parts(path).1;
        self.put(folder, name, path, true).map(|()| true).or_else(|error| told(error, path, problem))
    }

    /// Moves a deleted file, or a replaced one that is now called `own`, to its backup. Returns false if that failed
    /// and was reported.
    ///
    /// # Errors
    /// The error, if it means that the destination itself fails ([`is_fatal`]): full, over quota, read-only or broken.
    /// If `own` is a backup itself, any error of removing it.
    pub(super) fn take(
        &self,
        folder: &Folder,
        own: &[u8],
        path: &[u8],
        problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync),
    ) -> Result<bool, Errno> {
        if self.is_one(parts(path).1) {
            return folder.unlink(own).map(|()| true);
        }
        self.put(folder, own, path, false).map(|()| true).or_else(|error| told(error, path, problem))
    }

    fn put(&self, folder: &Folder, own: &[u8], path: &[u8], stays: bool) -> Result<(), Errno> {
        let Some(status) = folder.status(own)? else { return Ok(()) };
        if Kind::of_mode(status.st_mode) == Some(Kind::Directory) {
            return if stays { Ok(()) } else { folder.discard(own) };
        }
        let (directory, name) = parts(path);
        let new = [name, &self.suffix[..]].concat();
        let there = match &self.directory {
            Some(backups) => Some(self.folder(backups, directory)?),
            None => None,
        };
        let to = there.as_deref().unwrap_or(folder);
        to.unlink(&new)?;
        let moved = match stays {
            true => rustix::fs::linkat(folder, own, to, &new[..], AtFlags::empty()),
            false => rustix::fs::renameat(folder, own, to, &new[..]),
        };
        match (moved, &self.directory) {
            (Err(Errno::XDEV), Some(backups)) => {
                let entry = entry_of(&new, &status).ok_or(Errno::INVAL)?;
                copy(folder, own, to, entry, &backups.attributes)?;
                if stays { Ok(()) } else { folder.unlink(own) }
            }
            // The file system has no links, the file has too many, or it belongs to someone else
            // (`protected_hardlinks`, proc(5)).
            (Err(Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP), _) if stays => {
                rustix::fs::renameat(folder, own, to, &new[..])
            }
            (moved, _) => moved,
        }
    }

    /// The backup directory for files of this directory.
    fn folder(&self, backups: &BackupDirectory, directory: &[u8]) -> Result<Arc<Folder>, Errno> {
        let tree = backups.open(self.tree.root())?;
        self.folder_within(backups, &tree, directory)
    }

    fn folder_within(&self, backups: &BackupDirectory, tree: &Tree, directory: &[u8]) -> Result<Arc<Folder>, Errno> {
        match tree.folder(directory) {
            Err(Errno::NOENT) => {}
            result => return result,
        }
        let (above, name) = parts(directory);
        let above = self.folder_within(backups, tree, above)?;
        match rustix::fs::mkdirat(&*above, name, Mode::RWXU) {
            // Another thread created it first.
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        backups.like(&above, name, &*self.tree.folder(directory)?)?;
        tree.folder(directory)
    }
}

fn told(error: Errno, path: &[u8], problem: &(dyn Fn(ProblemKind, &[u8], String) + Sync)) -> Result<bool, Errno> {
    if is_fatal(error) {
        return Err(error);
    }
    let text = format!("cannot back up the existing file: {}", std::io::Error::from(error));
    problem(ProblemKind::Unwritable, path, text);
    Ok(false)
}

impl BackupDirectory {
    /// Opens the backup directory. Creates it with the destination's attributes if it is missing.
    fn open(&self, destination: &Folder) -> Result<Arc<Tree>, Errno> {
        let mut tree = self.tree.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(tree) = &*tree {
            return Ok(tree.clone());
        }
        let opened = match Tree::open(&self.path) {
            Err(Errno::NOENT) => {
                let mut builder = std::fs::DirBuilder::new();
                std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
                builder.recursive(true).create(&self.path).map_err(partial::errno)?;
                let made = Tree::open(&self.path)?;
                self.like(made.root(), b".", destination)?;
                made
            }
            result => result?,
        };
        Ok(tree.insert(Arc::new(opened)).clone())
    }

    /// Gives a backup directory the attributes of the original, so that nobody can see more than before.
    fn like(&self, above: &Folder, name: &[u8], here: &Folder) -> Result<(), Errno> {
        let status = rustix::fs::fstat(here)?;
        let mut entry = entry_of(name, &status).ok_or(Errno::INVAL)?;
        entry.mode |= 0o700;
        entry.xattrs = xattrs::read(here.file_ref(b"."), true, true)?;
        self.attributes.put_on_name(above, name, &entry).map(drop)
    }
}

/// Copies a file to a backup directory on another file system, and flushes it, as the original is removed right after.
fn copy(folder: &Folder, own: &[u8], to: &Folder, mut entry: Entry, attributes: &Attributes) -> Result<(), Errno> {
    entry.xattrs = xattrs::read(folder.file_ref(own), true, true)?;
    if entry.kind != Kind::File {
        if entry.kind == Kind::Symlink {
            entry.target = rustix::fs::readlinkat(folder, own, Vec::new())?.into_bytes();
        }
        make(to, &entry.name, &entry, attributes.node_mode(to, &entry))?;
        return attributes.put_on_name(to, &entry.name, &entry).map(drop);
    }
    let source: File = super::compare::open_permitted(folder, own)?;
    let mode = attributes.unfinished_mode(to, &entry);
    let target = partial::create(to, &entry.name, mode)?;
    copy_content(&source, &target)?;
    // Losing attributes is no reason to lose the content.
    drop(attributes.put(&target, mode, to, &entry));
    rustix::fs::fsync(&target)
}
