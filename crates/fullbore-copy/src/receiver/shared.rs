//! Files with several names at the destination that the source's files do not share.
//!
//! Attributes belong to a file, not to a name. If two files of the source are one file here, each would overwrite the
//! other's attributes, run after run. A name outside of the copy would get the attributes of another file. So such a
//! file's attributes are changed in place only if all of its names here are names of one file at the source. Else the
//! name gets its own file, with a copy of the content. This is decided at the end, when all names are known. A file
//! with the right attributes stays as it is: it may share its content with an older backup.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{OFlags, SeekFrom, Stat};
use rustix::io::Errno;

use super::commit::{disk, is_fatal};
use super::listing::{First, make, parts};
use super::partial::{self, errno};
use super::tree::Folder;
use super::verify::{Hashes, Written};
use super::write::Writers;
use crate::entry::{Entry, Kind, join};
use crate::error::CopyError;
use crate::item::Update;
use crate::names;
use crate::wire::{ProblemKind, block_bytes, block_len, blocks};

/// Device and inode number of a file at the destination.
type Inode = (u64, u64);

fn inode(status: &Stat) -> Inode {
    (status.st_dev, status.st_ino)
}

/// Number of names of a file.
#[allow(clippy::unnecessary_cast, reason = "32 bits on some machines")]
fn names_of(status: &Stat) -> u64 {
    status.st_nlink as u64
}

/// Identifies a file of the source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    /// The link group of a file with several names.
    Linked(u64),
    /// The number of the only entry of the file.
    Alone(u64),
}

impl Owner {
    fn of(id: u64, entry: &Entry) -> Owner {
        entry.link_group.map_or(Owner::Alone(id), Owner::Linked)
    }
}

/// A name whose file has other names here, and that needs other attributes or a file of its own.
pub(super) struct Later {
    pub(super) id: u64,
    pub(super) path: Vec<u8>,
    pub(super) entry: Box<Entry>,
    pub(super) from: From,
}

/// Where the content for the name's own file is.
pub(super) enum From {
    /// In the name's current file.
    Here,
    /// In the base with this number.
    Base(usize),
    /// Under the first name of the source's file, as this name cannot be a link to it.
    First { first: Arc<First>, error: Errno },
}

/// All knowledge about files with several names here. Its size depends on the files of the destination and on listed
/// names, not on other claims of a peer.
#[derive(Default)]
pub(super) struct Shared {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The file of the source that each inode stands for.
    owners: HashMap<Inode, Owner>,
    /// Number of listed names per inode here and link group at the source.
    names: HashMap<(Inode, u64), u64>,
    later: Vec<Later>,
    /// Names that get a copy of a base's file.
    from_bases: Vec<Later>,
    /// In a dry run: paths that would get their own file, and the number of names of each inode that would be replaced.
    separated: HashSet<Vec<u8>>,
    replaced: HashMap<Inode, u64>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a listed name for its existing file.
    pub(super) fn note(&self, status: &Stat, entry: &Entry) {
        if let Some(group) = entry.link_group.filter(|_| is_shared(status, entry)) {
            *self.lock().names.entry((inode(status), group)).or_default() += 1;
        }
    }

    /// In a dry run, counts a name that would be replaced by another file.
    pub(super) fn would_replace(&self, status: &Stat, entry: &Entry) {
        if is_shared(status, entry) {
            *self.lock().replaced.entry(inode(status)).or_default() += 1;
        }
    }

    /// Whether an inode may stand for this file of the source. The first file that asks gets it.
    fn may_stand_for(&self, status: &Stat, owner: Owner) -> bool {
        *self.lock().owners.entry(inode(status)).or_insert(owner) == owner
    }

    /// Whether a dry run would give this name its own file.
    pub(super) fn would_separate(&self, path: &[u8]) -> bool {
        self.lock().separated.contains(path)
    }
}

/// Whether a file has other names here.
fn is_shared(status: &Stat, entry: &Entry) -> bool {
    status.st_nlink > 1 && entry.kind != Kind::Directory
}

impl Writers<'_> {
    /// Postpones a name whose file has other names here, if anything has to change. Returns false if the caller may
    /// correct the file now.
    pub(super) fn put_off(&self, id: u64, path: &[u8], folder: &Folder, status: &Stat, entry: &Entry) -> bool {
        if !is_shared(status, entry) {
            return false;
        }
        let is_taken = !self.shared.may_stand_for(status, Owner::of(id, entry));
        // Without hard links, names may share a file as long as its attributes are right.
        let is_wrong = is_taken && self.context.options.hard_links;
        let is_put_off = is_wrong || self.attributes.mend(folder, &entry.name, status, entry, true).0;
        if is_put_off {
            self.itemize(Update::Attributes, path, entry, Some((folder, status)));
            self.held.keep(path, entry);
            let later = Later { id, path: path.to_vec(), entry: Box::new(entry.clone()), from: From::Here };
            self.shared.lock().later.push(later);
        }
        is_put_off
    }

    /// Schedules a copy of a base's file for the end.
    pub(super) fn copy_later(&self, id: u64, path: &[u8], entry: &Entry, base: usize) {
        self.held.keep(path, entry);
        let later = Later { id, path: path.to_vec(), entry: Box::new(entry.clone()), from: From::Base(base) };
        self.shared.lock().from_bases.push(later);
    }

    /// Corrects the postponed files, or gives the names their own files. Runs when all files have their names, and
    /// before links are made.
    pub(super) fn separate(&self, threads: usize) -> Result<(), CopyError> {
        let (later, from_bases) = {
            let mut state = self.shared.lock();
            (std::mem::take(&mut state.later), std::mem::take(&mut state.from_bases))
        };
        let (apart, in_place): (Vec<_>, Vec<_>) = self.decide(&later).into_iter().partition(|(_, apart)| *apart);
        if self.context.options.dry_run {
            let paths = apart.iter().map(|(later, _)| later.path.clone());
            self.shared.lock().separated.extend(paths);
            apart.iter().for_each(|(later, _)| self.made(&later.path));
            from_bases.iter().for_each(|later| self.made(&later.path));
        } else {
            self.set_apart(&apart.iter().map(|(later, _)| *later).collect::<Vec<_>>(), threads)?;
            self.set_apart(&from_bases.iter().collect::<Vec<_>>(), threads)?;
        }
        for (Later { id, path, entry, .. }, _) in in_place {
            let mended = self.at(path).map(|(folder, status)| self.mend_now(*id, path, &folder, &status, entry));
            mended.or_else(|error| self.not_separated(path, error))?;
        }
        Ok(())
    }

    /// Decides which names need a file of their own. The last name of a file may keep it.
    fn decide<'l>(&self, later: &'l [Later]) -> Vec<(&'l Later, bool)> {
        let mut left: HashMap<Inode, u64> = HashMap::new();
        let state = self.shared.lock();
        let mut decide = |later: &'l Later| {
            let (_, status) = self.at(&later.path).ok()?;
            let inode = inode(&status);
            let group = later.entry.link_group;
            let own = group.and_then(|group| state.names.get(&(inode, group)).copied()).unwrap_or(1);
            let others = || names_of(&status).saturating_sub(state.replaced.get(&inode).copied().unwrap_or(0));
            let left = left.entry(inode).or_insert_with(others);
            let is_apart = *left > own;
            if is_apart {
                *left -= own;
            }
            Some((later, is_apart))
        };
        // Someone else removed the file; the next run will see that.
        later.iter().filter_map(&mut decide).collect()
    }

    fn at(&self, path: &[u8]) -> Result<(Arc<Folder>, Stat), Errno> {
        let (directory, name) = parts(path);
        let folder = self.tree.folder(directory)?;
        let status = folder.status(name)?.ok_or(Errno::NOENT)?;
        Ok((folder, status))
    }

    /// Creates the new files beside the names, flushes them, and then renames them: a name never lacks content.
    ///
    /// # Errors
    /// [`CopyError::Disk`] if the destination itself fails, [`CopyError::Interrupted`] if the run is cancelled.
    pub(super) fn set_apart(&self, apart: &[&Later], threads: usize) -> Result<(), CopyError> {
        let made = Mutex::new((Vec::new(), None));
        let lock = || made.lock().unwrap_or_else(PoisonError::into_inner);
        self.share_out(apart, threads, |later| {
            if lock().1.is_some() {
                return;
            }
            let result =
                if self.context.cancel.is_cancelled() { Err(CopyError::Interrupted) } else { self.beside(later) };
            match result {
                Ok(file) => lock().0.extend(file.map(|file| (*later, file))),
                Err(error) => drop(lock().1.get_or_insert(error)),
            }
        });
        let (made, error) = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(error) = error {
            return Err(error);
        }
        if !made.is_empty() {
            self.flush(&self.clock)?;
        }
        for (later, Beside { sure, written }) in made {
            let Later { id, path, entry, from } = later;
            match self.give_name(later) {
                Ok(Some(status)) => {
                    self.made(path);
                    written.into_iter().for_each(|written| self.verify.note(written));
                    if let From::First { error, .. } = from {
                        let text = format!("copied instead: {}", std::io::Error::from(*error));
                        (self.problem)(ProblemKind::Link, path, text);
                    } else if sure {
                        self.kept(*id, path, &status, entry);
                    }
                }
                Ok(None) => {}
                Err(error) => self.not_separated(path, error)?,
            }
        }
        Ok(())
    }

    /// Renames a file that was made beside its name. Returns its status; `None` if that failed and was reported.
    fn give_name(&self, later: &Later) -> Result<Option<Stat>, Errno> {
        let (path, name) = (&later.path, &later.entry.name[..]);
        let folder = self.tree.folder(parts(path).0)?;
        let own = names::part(name);
        let first = match &later.from {
            From::First { first, .. } => Some(join(&first.directory, &first.name)),
            _ => None,
        };
        self.mark_unfinished(&folder, path, first.as_deref())?;
        if first.is_some() {
            if self.commit.in_the_way.is_followed(path) {
                // The file waits until a directory is deleted.
                return folder.status(&own);
            }
            // The name belongs to another file now.
            if !self.backup.map_or(Ok(true), |backup| backup.keep(&folder, path, self.problem))? {
                return folder.discard(&own).map(|()| None);
            }
        }
        folder.rename(&own, name).inspect_err(|_| {
            let _ = folder.discard(&own);
        })?;
        folder.status(name)?.ok_or(Errno::NOENT).map(Some)
    }

    /// Makes the new file; `None` if that failed and was reported.
    fn beside(&self, later: &Later) -> Result<Option<Beside>, CopyError> {
        let Later { path, entry, from, .. } = later;
        let (directory, name) = parts(path);
        let own = names::part(name);
        let made = self.tree.folder(directory).and_then(|folder| {
            if entry.kind == Kind::File {
                let (there, its_name) = match from {
                    From::Here => (folder.clone(), name.to_vec()),
                    From::Base(base) => (self.bases.folder(*base, directory)?, name.to_vec()),
                    From::First { first, .. } => {
                        let its_path = join(&first.directory, &first.name);
                        (self.tree.folder(&first.directory)?, self.commit.in_the_way.present_name(&its_path))
                    }
                };
                return self.duplicate((&there, &its_name), (&folder, &own), directory, entry);
            }
            folder.discard(&own)?;
            make(&folder, &own, entry, self.attributes.node_mode(&folder, entry))?;
            let failures = self.attributes.put_on_name(&folder, &own, entry)?;
            let sure = failures.is_empty();
            self.tell(failures, directory, entry);
            Ok(Beside { sure, written: None })
        });
        match made {
            Ok(file) => Ok(Some(file)),
            Err(error) => {
                let _ = self.tree.folder(directory).and_then(|folder| folder.discard(&own));
                self.not_separated(path, error).map(|()| None)
            }
        }
    }

    /// Reports why a name did not get its own file.
    ///
    /// # Errors
    /// [`CopyError::Disk`] with the path if the destination itself fails ([`is_fatal`]).
    pub(super) fn not_separated(&self, path: &[u8], error: Errno) -> Result<(), CopyError> {
        if is_fatal(error) {
            return Err(disk(path, error.into()));
        }
        (self.problem)(ProblemKind::Unwritable, path, std::io::Error::from(error).to_string());
        Ok(())
    }

    /// Makes a second file with the content of one here, and the attributes of an entry.
    fn duplicate(
        &self,
        (from, from_name): (&Folder, &[u8]),
        (to, own): (&Folder, &[u8]),
        directory: &[u8],
        entry: &Entry,
    ) -> Result<Beside, Errno> {
        let source = File::from(self.opened.open_file(from, from_name, OFlags::empty())?);
        let mode = self.attributes.unfinished_mode(to, entry);
        let target = partial::create(to, own, mode)?;
        let size = self.clock.device(|| copy_content(&source, &target))?;
        let failures = self.attributes.put(target.as_fd(), mode, to, entry);
        let sure = failures.is_empty();
        self.tell(failures, directory, entry);
        let written = if self.context.options.verify {
            let hashes = self.clock.device(|| hashes(&source, size))?;
            let (directory, name) = (Arc::new(directory.to_vec()), entry.name.clone());
            Some(Written { directory, name, size, end: size, hashes })
        } else {
            None
        };
        Ok(Beside { sure, written })
    }
}

/// A new file that has a temporary name.
struct Beside {
    /// Whether all of its attributes were set.
    sure: bool,
    /// The hashes for reading it back.
    written: Option<Written>,
}

/// Copies content with its holes; the file system shares the blocks if it can. Returns the length.
pub(super) fn copy_content(source: &File, target: &File) -> Result<u64, Errno> {
    let size = rustix::fs::fstat(source)?.st_size as u64;
    rustix::fs::ftruncate(target, size)?;
    let mut at = 0;
    while at < size {
        let data = match rustix::fs::seek(source, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(Errno::NXIO) => break,
            // The file system does not report holes: everything is content.
            Err(_) => at,
        };
        let end = rustix::fs::seek(source, SeekFrom::Hole(data)).unwrap_or(size).clamp(data + 1, size.max(data + 1));
        let (mut from, mut to) = (source, target);
        from.seek(std::io::SeekFrom::Start(data)).map_err(errno)?;
        to.seek(std::io::SeekFrom::Start(data)).map_err(errno)?;
        std::io::copy(&mut from.take(end - data), &mut to).map_err(errno)?;
        at = end;
    }
    Ok(size)
}

fn hashes(file: &File, size: u64) -> Result<Hashes, Errno> {
    let mut buffer = Vec::new();
    let hash = |index| {
        buffer.resize(block_len(size, index) as usize, 0);
        file.read_exact_at(&mut buffer, index * block_bytes(size)).map_err(errno)?;
        Ok((index, *blake3::hash(&buffer).as_bytes()))
    };
    (0..blocks(size)).map(hash).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn a_copied_file_has_the_holes_of_the_other_one() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| {
            let path = directory.path().join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        };
        let (source, target) = (open("one"), open("other"));
        source.set_len(20 << 20).unwrap();
        source.write_all_at(b"island", 7 << 20).unwrap();
        source.write_all_at(b"coast", (20 << 20) - 5).unwrap();
        assert_eq!(copy_content(&source, &target), Ok(20 << 20));
        let content = |file: &File| {
            let mut content = vec![0; 20 << 20];
            file.read_exact_at(&mut content, 0).unwrap();
            content
        };
        assert!(content(&source) == content(&target));
        let blocks = [&source, &target].map(|file| file.metadata().unwrap().blocks());
        assert!(blocks[1] <= blocks[0] + 8, "{blocks:?}");
        assert_eq!(hashes(&source, 20 << 20), hashes(&target, 20 << 20));
    }
}
