//! Detects a source and a destination that overlap on one machine, whatever paths name them. A copy must not go into
//! itself, nor delete its own source.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::error::CopyError;
use crate::options::Options;
use crate::receiver::Destination;

/// Where a source is, for an end that may be on the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// The directory that has the source, or whose content is the source.
    pub root: Number,
    /// The source's name in `root`; `None` if all of the content of `root` is copied.
    pub name: Option<Vec<u8>>,
    /// The source itself, if it is a directory.
    pub own: Option<Number>,
    /// The path of `root` below the destination (`--relative`); else empty.
    #[serde(default)]
    pub prefix: Vec<u8>,
    /// The source as the user wrote it, for messages.
    pub written: Vec<u8>,
    /// The source's path without symbolic links, as a deletion would reach it.
    pub content: Option<Vec<u8>>,
    /// The file or directory at the path `content`.
    #[serde(default)]
    pub itself: Option<Number>,
}

/// Identifies a file or directory on one machine: its device number and inode number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Number(pub u64, pub u64);

impl Number {
    /// Takes the numbers from a stat(2).
    pub fn of(status: &Stat) -> Number {
        Number(status.st_dev, status.st_ino)
    }

    fn is_of(self, path: &Path) -> bool {
        rustix::fs::stat(path).is_ok_and(|status| Number::of(&status) == self)
    }

    /// Like [`Number::is_of`], but does not follow a symbolic link at the end of the path.
    fn is_named(self, path: &Path) -> bool {
        rustix::fs::lstat(path).is_ok_and(|status| Number::of(&status) == self)
    }
}

/// Refuses a copy of local sources onto themselves, or one that would delete its own source.
///
/// # Errors
/// [`CopyError::Usage`] with the reason and a way out.
pub(crate) fn refuse(sources: &[Whereabouts], destination: &Destination, options: &Options) -> Result<(), CopyError> {
    if sources.iter().any(|source| source.is(destination)) {
        return Err(CopyError::Usage("SRC and DST are the same, or SRC would go into itself".to_owned()));
    }
    match sources.iter().find(|source| options.delete && source.is_deleted(sources, destination, options)) {
        Some(source) => Err(CopyError::Usage(format!(
            "{} is within DST, and --delete would delete it: name another DST, or exclude it",
            crate::entry::shown(&source.written)
        ))),
        None => Ok(()),
    }
}

/// Like [`refuse`], but for a sender in another process, which does not know the destination. Also refuses any
/// destination within a source: the sender would list the new files, and copy them again one level deeper.
///
/// # Errors
/// [`CopyError::Usage`] with the reason and a way out.
pub(crate) fn refuse_by_ssh(
    sources: &[Whereabouts],
    destination: &Destination,
    options: &Options,
) -> Result<(), CopyError> {
    refuse(sources, destination, options)?;
    let Some(path) = sources.iter().find_map(|source| source.path_of(destination, options)) else { return Ok(()) };
    destination.take_back();
    let path = path.display();
    Err(CopyError::Usage(format!("DST is within SRC and would go into itself: `--exclude '/{path}'` leaves it out")))
}

impl Whereabouts {
    /// Whether a copy would be the source itself, or only go into it.
    fn is(&self, destination: &Destination) -> bool {
        let renamed = destination.rename_to.as_ref().is_some_and(|name| self.name.as_ref() != Some(name));
        let there = &destination.directory;
        let is_within = self.root.is_of(&there.join(OsStr::from_bytes(&self.prefix)));
        !renamed && is_within || self.own.is_some_and(|own| own.is_of(there))
    }

    /// The path by which the source's list would include the destination, if the destination lies within this source.
    fn path_of(&self, destination: &Destination, options: &Options) -> Option<PathBuf> {
        let there = real(&destination.directory)?;
        let own = if self.name.is_none() { Some(self.root) } else { self.own }?;
        let within =
            there.ancestors().find(|above| own.is_of(above)).and_then(|above| there.strip_prefix(above).ok())?;
        let name = self.name.as_deref().unwrap_or_default();
        let path = Path::new(OsStr::from_bytes(&self.prefix)).join(OsStr::from_bytes(name)).join(within);
        let is_elsewhere = |directory: &Path| rustix::fs::stat(directory).is_ok_and(|status| status.st_dev != own.0);
        let is_mounted = there.ancestors().take(within.iter().count()).any(is_elsewhere);
        let is_listed = options.recursive && !(options.one_file_system && is_mounted);
        (is_listed && !excludes(options, &path, true)).then_some(path)
    }

    /// Whether the source lies within the destination, where `--delete` would delete it. True whether or not it is
    /// copied as well, as nothing is known about the other sources' entries at its path.
    fn is_deleted(&self, sources: &[Whereabouts], destination: &Destination, options: &Options) -> bool {
        let Some(content) = self.content.as_deref().map(|path| Path::new(OsStr::from_bytes(path))) else {
            return false;
        };
        let there = destination.directory.canonicalize();
        let Some(within) = there.as_ref().ok().and_then(|there| content.strip_prefix(there).ok()) else {
            return false;
        };
        // `--delete` deletes what a source's directory does not have, and a directory in the place of a source's file.
        // Deleting a directory deletes everything below it.
        let deletes = |source: &Whereabouts| {
            let target = source.target();
            within.starts_with(&target) || source.is_directory() && target.starts_with(within)
        };
        let is_protected = !options.delete_excluded && excludes(options, within, self.is_directory());
        // A container on the same machine may have another file at that path.
        let is_there = self.itself.is_some_and(|itself| itself.is_named(content));
        !is_protected && is_there && sources.iter().any(deletes)
    }

    fn is_directory(&self) -> bool {
        self.name.is_none() || self.own.is_some()
    }

    /// The source's path below the destination.
    fn target(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.target_bytes()))
    }

    /// The source's path below the destination; empty for the destination itself.
    pub(crate) fn target_bytes(&self) -> Vec<u8> {
        crate::entry::join(&self.prefix, self.name.as_deref().unwrap_or_default())
    }
}

/// Whether a filter leaves out this path, or a directory above it.
fn excludes(options: &Options, path: &Path, is_directory: bool) -> bool {
    let excludes = |path: &Path, is_directory| options.filters.excludes(path.as_os_str().as_bytes(), is_directory);
    excludes(path, is_directory) || path.ancestors().skip(1).any(|above| excludes(above, true))
}

/// A path with symbolic links resolved, also if its last parts do not exist yet.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|above| Some(above.canonicalize().ok()?.join(path.strip_prefix(above).ok()?)))
}
