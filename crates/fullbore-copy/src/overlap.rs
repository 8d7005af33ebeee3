//! Sources and a destination on one machine, by whichever way they were named: a copy must not be into itself, nor
//! delete what it copies.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::Stat;
use serde::{Deserialize, Serialize};

use crate::error::CopyError;
use crate::options::Options;
use crate::receiver::Destination;

/// Where a source lies, as an end hears it that may be on the same machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whereabouts {
    /// The directory that it lies beneath, or whose content it is.
    pub root: Number,
    /// Its name there; none if it is all that is there.
    pub name: Option<Vec<u8>>,
    /// The directory of that name, if it is one.
    pub own: Option<Number>,
    /// The path of the directory beneath the destination, where paths are kept.
    #[serde(default)]
    pub prefix: Vec<u8>,
    /// As the user wrote it.
    pub written: Vec<u8>,
    /// Its path without links, by which a deletion would find it.
    pub content: Option<Vec<u8>>,
    /// What is by that path.
    #[serde(default)]
    pub itself: Option<Number>,
}

/// What a file or directory is known by on a machine: its device, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Number(pub u64, pub u64);

impl Number {
    /// Of what was looked at.
    pub fn of(status: &Stat) -> Number {
        Number(status.st_dev, status.st_ino)
    }

    fn is_of(self, path: &Path) -> bool {
        rustix::fs::stat(path).is_ok_and(|status| Number::of(&status) == self)
    }

    /// As [`Number::is_of`], of a path whose last name is itself meant, and not what a link of that name leads to.
    fn is_named(self, path: &Path) -> bool {
        rustix::fs::lstat(path).is_ok_and(|status| Number::of(&status) == self)
    }
}

/// Refuses a copy of sources on this machine that would be of themselves, or delete what it copies.
///
/// # Errors
/// What is wrong with it, and what to do.
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

/// As [`refuse`], where the sender is another process, which does not know the destination when it meets it: nor a
/// destination within a source, as what is written there would be listed again, and again below that.
///
/// # Errors
/// What is wrong with it, and what to do.
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
    /// Whether a copy of it would be itself, or go into itself and nowhere else.
    fn is(&self, destination: &Destination) -> bool {
        let renamed = destination.rename_to.as_ref().is_some_and(|name| self.name.as_ref() != Some(name));
        let there = &destination.directory;
        let is_within = self.root.is_of(&there.join(OsStr::from_bytes(&self.prefix)));
        !renamed && is_within || self.own.is_some_and(|own| own.is_of(there))
    }

    /// By which path the destination itself would come, if it lies within this and is listed.
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

    /// Whether it lies within the destination where names are deleted, and is not excluded. It would be deleted there,
    /// copied or not: of what the sources have by its path nothing is known.
    fn is_deleted(&self, sources: &[Whereabouts], destination: &Destination, options: &Options) -> bool {
        let Some(content) = self.content.as_deref().map(|path| Path::new(OsStr::from_bytes(path))) else {
            return false;
        };
        let there = destination.directory.canonicalize();
        let Some(within) = there.as_ref().ok().and_then(|there| content.strip_prefix(there).ok()) else {
            return false;
        };
        // What a source's directory does not have goes there, and a directory that is where a source's file is to be. One
        // that goes takes all with it.
        let deletes = |source: &Whereabouts| {
            let target = source.target();
            within.starts_with(&target) || source.is_directory() && target.starts_with(within)
        };
        let is_protected = !options.delete_excluded && excludes(options, within, self.is_directory());
        // A container of the same machine may have something else by that path.
        let is_there = self.itself.is_some_and(|itself| itself.is_named(content));
        !is_protected && is_there && sources.iter().any(deletes)
    }

    fn is_directory(&self) -> bool {
        self.name.is_none() || self.own.is_some()
    }

    /// Its path beneath the destination.
    fn target(&self) -> PathBuf {
        PathBuf::from(OsStr::from_bytes(&self.target_bytes()))
    }

    /// Its path beneath the destination; empty is the destination itself.
    pub(crate) fn target_bytes(&self) -> Vec<u8> {
        crate::entry::join(&self.prefix, self.name.as_deref().unwrap_or_default())
    }
}

/// Whether something, or a directory above it, is left out.
fn excludes(options: &Options, path: &Path, is_directory: bool) -> bool {
    let excludes = |path: &Path, is_directory| options.filters.excludes(path.as_os_str().as_bytes(), is_directory);
    excludes(path, is_directory) || path.ancestors().skip(1).any(|above| excludes(above, true))
}

/// A path without links, also of what is not there yet.
pub(crate) fn real(path: &Path) -> Option<PathBuf> {
    let path = std::path::absolute(path).ok()?;
    path.ancestors().find_map(|above| Some(above.canonicalize().ok()?.join(path.strip_prefix(above).ok()?)))
}
