//! `--link-dest`: reuses files that another local directory has already. They are linked or copied from there instead
//! of transferred.
//!
//! A file with the same content and attributes becomes a hard link. One with other attributes is copied here at the
//! end, as changed attributes would show through every link. If only the content differs, equal blocks are reused.

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Stat};
use rustix::io::Errno;

use super::listing::is_same_thing;
use super::tree::{Folder, Tree};
use super::write::Writers;
use crate::entry::{Entry, Kind};
use crate::item::{Changes, Update};
use crate::options::Options;
use crate::session::add;

/// The base directories, in the order of the command line.
#[derive(Debug, Default)]
pub(super) struct Bases {
    trees: Vec<Tree>,
}

/// How well a base's file matches an entry; later variants match better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Match {
    /// It has the same name.
    Name,
    /// It has the same size, and may have the same content.
    Size,
    /// It has the same content.
    Content,
    /// It has the same content and attributes.
    All,
}

/// A base's file for an entry.
pub(super) struct Base {
    /// Number of the base, in the order of the command line.
    pub(super) index: usize,
    pub(super) folder: Arc<Folder>,
    pub(super) status: Stat,
    pub(super) matches: Match,
}

impl Bases {
    /// Opens the base directories, which are relative to the destination. Also returns those that cannot be opened,
    /// with the errors. With `--remove-source-files` there are none: a link could lead to the very file that is
    /// removed.
    pub(super) fn open(options: &Options, destination: &Path) -> (Bases, Vec<(Vec<u8>, Errno)>) {
        use std::os::unix::ffi::OsStrExt as _;
        let directories = if options.remove_source_files { &[][..] } else { &options.link_dest };
        let (mut trees, mut missing) = (Vec::new(), Vec::new());
        for directory in directories {
            let path = destination.join(std::ffi::OsStr::from_bytes(directory));
            // In a dry run the destination may not exist, so that `..` cannot be resolved from it.
            match Tree::open(&if destination.exists() { path } else { without_dots(&path) }) {
                Ok(tree) => trees.push(tree),
                Err(error) => missing.push((directory.clone(), error)),
            }
        }
        (Bases { trees }, missing)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.trees.is_empty()
    }

    /// A directory below a base.
    pub(super) fn folder(&self, index: usize, directory: &[u8]) -> Result<Arc<Folder>, Errno> {
        self.trees.get(index).ok_or(Errno::NOENT)?.folder(directory)
    }
}

/// A path with `..` resolved textually.
fn without_dots(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut path, part| {
        if part != Component::ParentDir || !path.pop() {
            path.push(part);
        }
        path
    })
}

impl Writers<'_> {
    /// The directory of the first base that has it, for comparing attributes.
    pub(super) fn base_directory(&self, path: &[u8]) -> Option<(Arc<Folder>, Stat)> {
        let folder = self.bases.trees.iter().find_map(|tree| tree.folder(path).ok())?;
        let status = rustix::fs::fstat(&*folder).ok()?;
        Some((folder, status))
    }

    /// The base with the best match for an entry; the first of equals.
    pub(super) fn base(&self, directory: &[u8], entry: &Entry) -> Option<Base> {
        let mut best: Option<Base> = None;
        for (index, tree) in self.bases.trees.iter().enumerate() {
            let Ok(folder) = tree.folder(directory) else { continue };
            let Ok(Some(status)) = folder.status(&entry.name) else { continue };
            let Some(matches) = self.matching(&folder, &status, entry) else { continue };
            if best.as_ref().is_none_or(|best| best.matches < matches) {
                best = Some(Base { index, folder, status, matches });
            }
        }
        best
    }

    fn matching(&self, folder: &Folder, status: &Stat, entry: &Entry) -> Option<Match> {
        let options = self.context.options;
        if Kind::of_mode(status.st_mode) != Some(entry.kind) {
            return None;
        }
        let has_all = || !self.attributes.mend(folder, &entry.name, status, entry, true).0;
        if entry.kind != Kind::File {
            let is_same = is_same_thing(folder, status, entry).unwrap_or(false);
            return (is_same && has_all()).then_some(Match::All);
        }
        let same_size = status.st_size as u64 == entry.size;
        let same_time =
            || options.size_only || !options.ignore_times && self.attributes.same_time(folder, entry, status);
        Some(match same_size {
            false => Match::Name,
            true if options.checksum => Match::Size,
            true if !same_time() => Match::Name,
            true if has_all() => Match::All,
            true => Match::Content,
        })
    }

    /// Takes an entry from a base that has its content: makes a hard link now, or schedules a copy for the end. A dry
    /// run only reports it. Returns whether a link was made.
    ///
    /// # Errors
    /// The error of linkat(2). Not `EXDEV`, `EPERM`, `EMLINK` and `EOPNOTSUPP`: a copy is scheduled then.
    pub(super) fn take_base(
        &self,
        id: u64,
        path: &[u8],
        folder: Option<&Folder>,
        entry: &Entry,
        base: &Base,
    ) -> Result<bool, Errno> {
        let is_dry = self.context.options.dry_run;
        if base.matches == Match::All {
            let name = &entry.name[..];
            let link = |folder: &Folder| rustix::fs::linkat(&base.folder, name, folder, name, AtFlags::empty());
            match folder.filter(|_| !is_dry).map_or(Ok(()), link) {
                Ok(()) => {
                    if self.context.options.itemize.level > 1 {
                        self.item(Update::Link, path, entry, Some(&Changes::default()));
                    }
                    add(&self.context.progress.made, 1);
                    return Ok(!is_dry);
                }
                // Another file system, someone else's file, a file system without links, or too many links.
                Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => {}
                Err(error) => return Err(error),
            }
        }
        self.itemize(Update::Local, path, entry, Some((&base.folder, &base.status)));
        self.copy_later(id, path, entry, base.index);
        Ok(false)
    }
}
