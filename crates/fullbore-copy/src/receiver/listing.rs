//! Compares the lists with the destination. Directories, links and devices are made at once, files are requested, and
//! names that the source does not have are recorded for deletion.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::attributes::{changed, modified};
use super::base::{Base, Match};
use super::commit::{disk, is_fatal};
use super::compare::Compare;
use super::extras::Told;
use super::free_space::{ExistingFile, FreeSpace, Share};
use super::hashes::HashedPaths;
use super::marker::Marker;
use super::opened::is_closed;
use super::partial::{Found, Partial, RequestedFile};
use super::tree::Folder;
use super::write::{Pending, Writers};
use crate::entry::{Entry, Kind, Time, join};
use crate::error::CopyError;
use crate::item::Update;
use crate::names;
use crate::session::{Event, add};
use crate::wire::{Answer, BLOCK_BYTES, List, ProblemKind, SMALL_BYTES, Wanted};

/// Most directories whose lists may be open at once. A sender has one for each of its four listing threads. The root's
/// list stays open, as further sources may come.
const OPEN_DIRECTORIES: usize = 64;

/// The first name of a file that has several.
pub(super) struct First {
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    /// Whether its content arrives with this copy.
    pub(super) is_wanted: bool,
}

/// A name that will be a hard link to a file listed before.
pub(super) struct LinkLater {
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) entry: Box<Entry>,
    pub(super) first: Arc<First>,
    /// The entry's number.
    pub(super) id: u64,
}

/// An entry that was made before any content arrived.
pub(super) struct Made {
    path: Vec<u8>,
    is_directory: bool,
    /// Temporary name of the entry that it replaced.
    aside: Option<Vec<u8>>,
    /// The entry's number, if the source may remove it once it is safe.
    id: Option<u64>,
}

/// What the lists have said so far.
pub(super) struct Listing<'a> {
    pub(super) writers: &'a Writers<'a>,
    pub(super) room: FreeSpace,
    pub(super) case_insensitive: bool,
    /// When an earlier, interrupted run into this destination began. There may be unfinished files of it.
    pub(super) torn: Option<Time>,
    /// Whether data of that run may be lost; see `Marker::lost`.
    lost: bool,
    /// Directories in which an earlier run may have left files.
    pub(super) visited: BTreeSet<Arc<Vec<u8>>>,
    next: u64,
    /// Directories made by this run, which are empty.
    fresh: HashSet<Vec<u8>>,
    /// Whether the current list is of such a directory.
    in_fresh: bool,
    /// Names listed so far in directories whose lists are incomplete.
    listed: HashMap<Vec<u8>, HashSet<Vec<u8>>>,
    /// Lists of directories that are known only in part.
    told: Told,
    /// Names that the source does not have, by directory; final once all is listed.
    pub(super) extras: HashMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// Directories whose attributes are set at the end, after their last change.
    pub(super) directories: Vec<(Vec<u8>, Box<Entry>)>,
    first_of_group: HashMap<u64, Arc<First>>,
    pub(super) links: Vec<LinkLater>,
    /// Number of names that the destination cannot store.
    pub(super) impossible: u64,
    /// Entries made before any content arrived, to be removed if the copy is refused. `None` once content arrives.
    pub(super) made: Option<Vec<Made>>,
    /// Files of the current list to compare.
    to_compare: Vec<Compare>,
    /// Skipped directories; everything below them is skipped, too.
    skipped: HashSet<Vec<u8>>,
    /// Time of the destination itself before it was marked; `None` if it was made for this copy.
    before: Option<Time>,
    /// Files whose hashes are reported at the end.
    pub(super) hashed: Option<HashedPaths>,
}

impl<'a> Listing<'a> {
    pub(super) fn new(writers: &'a Writers<'a>, room: FreeSpace, marker: Option<&Marker>) -> Listing<'a> {
        Listing {
            writers,
            room,
            case_insensitive: marker.is_some_and(|marker| marker.case_insensitive),
            torn: marker.and_then(|marker| marker.torn),
            lost: marker.is_some_and(|marker| marker.lost),
            visited: BTreeSet::new(),
            next: 0,
            fresh: HashSet::new(),
            in_fresh: false,
            listed: HashMap::new(),
            told: Told::default(),
            extras: HashMap::new(),
            directories: Vec::new(),
            first_of_group: HashMap::new(),
            links: Vec::new(),
            impossible: 0,
            made: Some(Vec::new()),
            to_compare: Vec::new(),
            skipped: HashSet::new(),
            before: marker.map(|marker| marker.before),
            hashed: None,
        }
    }

    /// Sets what to report: hashes of these files, and the changes of a destination that `is_new`.
    pub(super) fn telling(self, hashed: Option<HashedPaths>, is_new: bool) -> Listing<'a> {
        Listing { hashed, before: self.before.filter(|_| !is_new), ..self }
    }

    fn is_dry(&self) -> bool {
        self.writers.context.options.dry_run
    }

    /// Number of entries listed so far.
    pub(super) fn entries(&self) -> u64 {
        self.next
    }

    /// Handles a list and returns its answer. [`Listing::compare`] follows once the answer is sent.
    pub(super) fn take(&mut self, list: List) -> Result<Answer, CopyError> {
        if list.first != self.next {
            return Err(CopyError::Meaning("numbers of entries with a gap"));
        }
        self.next += list.entries.len() as u64;
        let progress = self.writers.context.progress;
        add(&progress.entries, list.entries.len() as u64);
        let directory = Arc::new(list.directory);
        if self.skipped.contains(&**directory) {
            let directories = list.entries.iter().filter(|entry| entry.kind == Kind::Directory);
            directories.for_each(|entry| self.skip_directory(join(&directory, &entry.name)));
            self.writers.held.check(self.writers.pending.bytes())?;
            return Ok(Answer { through: self.next, wanted: Vec::new() });
        }
        self.in_fresh = self.fresh.contains(&**directory);
        let folder = self.writers.clock.device(|| self.writers.tree.folder(&directory));
        let mut wanted = Vec::new();
        match folder {
            Ok(folder) => {
                if self.torn.is_some() || self.writers.context.options.delete {
                    self.visited.insert(directory.clone());
                }
                let taken = self.note_names(&directory, &folder, &list.entries, list.complete, list.more);
                for (position, entry) in list.entries.into_iter().enumerate() {
                    let id = list.first + position as u64;
                    let path = join(&directory, &entry.name);
                    if taken.contains(&position) {
                        let text = "the destination takes it for the same as another name of that directory";
                        self.impossible(&path, text.to_owned());
                        continue;
                    }
                    match self.entry(id, &directory, Some(&folder), &path, entry) {
                        Ok(want) => wanted.extend(want),
                        Err(error) => self.refused(&path, error)?,
                    }
                }
            }
            // The directory would have been made, maybe in the place of a file or link.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if self.is_dry() => {
                for (position, entry) in list.entries.into_iter().enumerate() {
                    let path = join(&directory, &entry.name);
                    if let Ok(want) = self.entry(list.first + position as u64, &directory, None, &path, entry) {
                        wanted.extend(want);
                    }
                }
            }
            Err(error) => {
                for entry in &list.entries {
                    self.refused(&join(&directory, &entry.name), error)?;
                }
                // Its names were not recorded.
                self.told.unlisted(&directory, false, self.writers.held);
            }
        }
        if !list.more {
            self.fresh.remove(&*directory);
        }
        if self.listed.len() > OPEN_DIRECTORIES {
            return Err(CopyError::Meaning("it lists more directories at once than it has threads"));
        }
        self.writers.held.check(self.writers.pending.bytes())?;
        Ok(Answer { through: self.next, wanted })
    }

    /// Records a directory that is not completely listed or, with `beneath`, a path below which nothing is known.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if the kept names take more memory than this machine's limit.
    pub(super) fn unlisted(&mut self, path: &[u8], beneath: bool) -> Result<(), CopyError> {
        self.told.unlisted(path, beneath, self.writers.held);
        self.writers.held.check(self.writers.pending.bytes())
    }

    /// All is listed: the names that no source has are known.
    pub(super) fn settle(&mut self) {
        self.told.spare(&mut self.extras, self.case_insensitive);
    }

    /// Queues the files to compare that the last answer announced. The answer has to be sent first: the sender ignores
    /// hashes of files that it does not yet know as wanted.
    pub(super) fn compare(&mut self) {
        for compare in self.to_compare.drain(..) {
            // A closed queue belongs to a run that ends; the cancel token has the reason.
            let _ = self.writers.comparing.queue.push(compare, &self.writers.clock);
        }
    }

    fn refused(&self, path: &[u8], error: Errno) -> Result<(), CopyError> {
        if is_fatal(error) {
            return Err(disk(path, error.into()));
        }
        (self.writers.problem)(ProblemKind::Unwritable, path, std::io::Error::from(error).to_string());
        Ok(())
    }

    /// Compares one entry with the destination. Returns the request for its content, if any.
    fn entry(
        &mut self,
        id: u64,
        directory: &Arc<Vec<u8>>,
        folder: Option<&Arc<Folder>>,
        path: &[u8],
        entry: Entry,
    ) -> Result<Option<Wanted>, Errno> {
        if entry.name.is_empty() {
            // This entry is the destination itself.
            self.itemize_root(folder, &entry);
            self.writers.held.keep(path, &entry);
            self.directories.push((path.to_vec(), Box::new(entry)));
            return Ok(None);
        }
        if let Some(longest) = self.room.longest_name
            && entry.name.len() as u64 > longest
        {
            self.impossible(path, format!("names there have at most {longest} bytes"));
            return Ok(None);
        }
        if names::is_ours(&entry.name) {
            (self.writers.problem)(ProblemKind::Name, path, names::explain(&entry.name));
            return Ok(None);
        }
        let status = match folder {
            Some(folder) if !self.in_fresh => folder.status(&entry.name)?,
            _ => None,
        };
        if self.is_skipped(path, status.as_ref(), &entry) {
            return Ok(None);
        }
        if let Some(hashed) = self.hashed.as_ref().filter(|_| entry.kind == Kind::File) {
            hashed.note(path)?;
        }
        if let Some(status) = &status {
            self.writers.shared.note(status, &entry);
        }
        if let Some(first) = entry.link_group.and_then(|group| self.first_of_group.get(&group).cloned()) {
            if folder.map_or(Ok(true), |folder| self.writers.finds_way(folder, path, status.as_ref()))? {
                self.writers.held.keep(path, &entry);
                self.add_copy_of_link(folder, &first, status.as_ref(), &entry);
                self.links.push(LinkLater { directory: directory.clone(), entry: Box::new(entry), first, id });
            }
            return Ok(None);
        }
        let group = entry.link_group.map(|group| (group, entry.name.clone()));
        if group.is_some() {
            self.writers.failed.watch(path);
        }
        let wanted = match entry.kind {
            Kind::Directory => self.directory(path, folder, status.as_ref(), entry).map(|()| None),
            Kind::File => self.file(id, directory, folder, path, status.as_ref(), entry),
            _ => self.small_thing(id, path, folder, status.as_ref(), &entry).map(|()| None),
        }?;
        // A name that the destination cannot store does not keep the other names of its file from arriving.
        if let Some((group, name)) = group {
            if self.writers.failed.has(path) {
                self.writers.failed.forget(path);
                return Ok(wanted);
            }
            self.writers.held.keep_name(path);
            let is_wanted = wanted.as_ref().is_some_and(|wanted| !wanted.compare);
            self.first_of_group.insert(group, Arc::new(First { directory: directory.clone(), name, is_wanted }));
        }
        Ok(wanted)
    }

    /// A name on another file system than the first one of its file needs space as a copy.
    fn add_copy_of_link(&mut self, folder: Option<&Arc<Folder>>, first: &First, there: Option<&Stat>, entry: &Entry) {
        let is_elsewhere = |folder: &&Arc<Folder>| {
            let first = self.writers.tree.folder(&first.directory);
            entry.kind == Kind::File && first.is_ok_and(|first| first.device != folder.device)
        };
        if let Some(folder) = folder.filter(|_| !self.is_dry()).filter(is_elsewhere) {
            let there = there.filter(|status| Kind::of_mode(status.st_mode) == Some(Kind::File));
            let existing = ExistingFile { old_bytes: there.map(allocated), left_bytes: None };
            // The space is used at the end, when the copy is made.
            let _ = self.room.add_file(folder, entry.content_bytes(), existing);
        }
    }

    fn directory(
        &mut self,
        path: &[u8],
        folder: Option<&Arc<Folder>>,
        status: Option<&Stat>,
        entry: Entry,
    ) -> Result<(), Errno> {
        let there = status.and_then(|status| Kind::of_mode(status.st_mode));
        match (there, folder) {
            (Some(Kind::Directory), Some(folder)) => {
                self.writers.itemize(Update::Attributes, path, &entry, status.map(|status| (&**folder, status)));
                if let Some(status) = status.filter(|_| !self.is_dry()) {
                    self.writers.opened.open(folder, &entry.name, path, status)?;
                }
            }
            (_, Some(folder)) if !self.is_dry() => {
                self.put(folder, path, status, &entry, |listing, name| {
                    listing.writers.attributes.make_directory(folder, name, &entry).map(|()| true)
                })?;
                self.fresh.insert(path.to_vec());
                self.itemize_made(path, &entry);
                self.writers.made(path);
            }
            (there, _) => {
                if there != Some(Kind::Directory) {
                    self.itemize_made(path, &entry);
                    self.writers.made(path);
                }
            }
        }
        self.writers.held.keep(path, &entry);
        self.directories.push((path.to_vec(), Box::new(entry)));
        Ok(())
    }

    /// Reports the changes of the destination itself, whose time the marker has changed.
    fn itemize_root(&self, folder: Option<&Arc<Folder>>, entry: &Entry) {
        if !self.writers.context.options.itemize.is_on() {
            return;
        }
        let status = folder.and_then(|folder| rustix::fs::fstat(&**folder).ok());
        let status = status.filter(|_| self.before.is_some() || self.is_dry()).map(|mut status| {
            if let Some(before) = self.before {
                (status.st_mtime, status.st_mtime_nsec) = (before.seconds, before.nanoseconds.into());
            }
            status
        });
        match folder.map(|folder| &**folder).zip(status.as_ref()) {
            None => self.itemize_made(&[], entry),
            there => self.writers.itemize(Update::Attributes, &[], entry, there),
        }
    }

    /// Reports a new directory, and how it differs from a base's.
    fn itemize_made(&self, path: &[u8], entry: &Entry) {
        if self.writers.context.options.itemize.is_on() {
            let base = self.writers.base_directory(path);
            let there = base.as_ref().map(|(folder, status)| (&**folder, status));
            self.writers.itemize_in(Update::Local, path, entry, there, b".");
        }
    }

    /// Whether the user's options skip an entry.
    fn is_skipped(&mut self, path: &[u8], status: Option<&Stat>, entry: &Entry) -> bool {
        let skip = &self.writers.context.options.skip;
        let (is_directory, is_file) = (entry.kind == Kind::Directory, entry.kind == Kind::File);
        let there = status.and_then(|status| Kind::of_mode(status.st_mode));
        let is_newer = |status: &Stat| there == Some(Kind::File) && modified(status) > entry.modified;
        let is_skipped = skip.absent && status.is_none()
            || skip.present && status.is_some() && !(is_directory && there == Some(Kind::Directory))
            || skip.newer && is_file && status.is_some_and(is_newer)
            || is_file && skip.above_bytes.is_some_and(|most| entry.size > most)
            || is_file && skip.below_bytes.is_some_and(|least| entry.size < least);
        if is_skipped && is_directory {
            self.skip_directory(path.to_vec());
        }
        is_skipped
    }

    /// Skips a directory with everything in it.
    fn skip_directory(&mut self, path: Vec<u8>) {
        self.writers.held.keep_name(&path);
        self.skipped.insert(path);
    }

    fn impossible(&mut self, path: &[u8], text: String) {
        self.impossible += 1;
        (self.writers.problem)(ProblemKind::Name, path, text);
    }

    /// Makes an entry, in the place of an existing one, or beside a directory that will be deleted at the end. `make`
    /// returns false if it failed and reported that. Until content arrives, the old entry can be restored.
    fn put(
        &mut self,
        folder: &Folder,
        path: &[u8],
        status: Option<&Stat>,
        entry: &Entry,
        make: impl FnOnce(&Self, &[u8]) -> Result<bool, Errno>,
    ) -> Result<bool, Errno> {
        let name = &entry.name[..];
        let is_directory = entry.kind == Kind::Directory;
        if status.is_none() {
            let is_made = make(self, name)?;
            if let Some(made) = self.made.as_mut().filter(|_| is_made) {
                made.push(Made { path: path.to_vec(), is_directory, aside: None, id: None });
            }
            return Ok(is_made);
        }
        // Make it beside the old one, then rename. An interrupted run has left its temporary file.
        let own = names::part(name);
        folder.discard(&own)?;
        let mut path = path.to_vec();
        let put = make(self, &own).and_then(|is_made| match (is_made, &self.made) {
            (false, _) => Ok(None),
            _ if !is_directory && self.made.is_none() && !self.keep_old(folder, &path)? => Ok(None),
            _ if self.writers.commit.in_the_way.is_followed(&path) => {
                path = join(parts(&path).0, &own);
                Ok(Some(None))
            }
            (true, None) if !is_directory => folder.rename(&own, name).map(|()| Some(None)),
            (true, _) => folder.swap(&own, name, &names::blocks(name)).map(|aside| Some(Some(aside))),
        });
        let Ok(Some(aside)) = put else {
            let _ = folder.discard(&own);
            return put.map(|_| false);
        };
        self.writers.tree.forget(&path);
        match (&mut self.made, aside) {
            (Some(made), aside) => made.push(Made { path, is_directory, aside, id: None }),
            (None, Some(aside)) => self.drop_old(folder, &aside, &path)?,
            (None, None) => {}
        }
        Ok(true)
    }

    /// Takes an entry from a base. Until content arrives, a link can be removed again.
    fn take_base(
        &mut self,
        id: u64,
        path: &[u8],
        folder: Option<&Folder>,
        entry: &Entry,
        base: &Base,
    ) -> Result<(), Errno> {
        let is_linked = self.writers.take_base(id, path, folder, entry, base)?;
        if let Some(made) = self.made.as_mut().filter(|_| is_linked) {
            made.push(Made { path: path.to_vec(), is_directory: false, aside: None, id: None });
        }
        Ok(())
    }

    /// Backs up an entry that is about to be replaced, if backups are wanted. Returns false if that failed and was
    /// reported.
    fn keep_old(&self, folder: &Folder, path: &[u8]) -> Result<bool, Errno> {
        let Writers { backup, problem, .. } = self.writers;
        backup.map_or(Ok(true), |backup| backup.keep(folder, path, *problem))
    }

    /// Deletes a replaced entry, which has this name now, or makes it a backup.
    fn drop_old(&self, folder: &Folder, aside: &[u8], path: &[u8]) -> Result<(), Errno> {
        let Writers { backup, problem, .. } = self.writers;
        match backup {
            Some(backup) => backup.take(folder, aside, path, *problem).map(drop),
            None => folder.discard(aside),
        }
    }

    /// Content may arrive: new entries stay, and replaced ones are deleted.
    pub(super) fn keep_made(&mut self) {
        for Made { path, aside, id, .. } in self.made.take().unwrap_or_default() {
            id.into_iter().for_each(|id| self.writers.commit.named(id));
            let (directory, _) = parts(&path);
            let Some(aside) = aside else { continue };
            let folder = self.writers.tree.folder(directory);
            if let Err(error) = folder.and_then(|folder| self.drop_old(&folder, &aside, &path)) {
                let path = join(directory, &aside);
                (self.writers.problem)(ProblemKind::Undeleted, &path, std::io::Error::from(error).to_string());
            }
        }
    }

    /// The copy is refused: removes new entries and restores replaced ones.
    pub(super) fn take_back(&mut self) {
        let tree = self.writers.tree;
        for Made { path, is_directory, aside, .. } in self.made.take().unwrap_or_default().into_iter().rev() {
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            tree.forget(&path);
            let (directory, name) = parts(&path);
            // New entries that cannot be removed are empty and do no harm.
            let _ = tree.folder(directory).and_then(|folder| {
                rustix::fs::unlinkat(&folder, name, flags)?;
                aside.map_or(Ok(()), |aside| rustix::fs::renameat(&folder, &aside[..], &folder, name))
            });
        }
    }

    fn file(
        &mut self,
        id: u64,
        directory: &Arc<Vec<u8>>,
        folder: Option<&Arc<Folder>>,
        path: &[u8],
        status: Option<&Stat>,
        entry: Entry,
    ) -> Result<Option<Wanted>, Errno> {
        let progress = self.writers.context.progress;
        let there = status.filter(|status| Kind::of_mode(status.st_mode) == Some(Kind::File));
        let options = self.writers.context.options;
        let same_size = there.is_some_and(|status| status.st_size as u64 == entry.size);
        let mut compare = options.checksum && same_size;
        let same_time = |folder: &Folder, status: &Stat| {
            options.size_only || !options.ignore_times && self.writers.attributes.same_time(folder, &entry, status)
        };
        if let (Some(status), Some(folder), false) = (there, folder, options.checksum)
            && same_size
            && same_time(folder, status)
        {
            if !self.is_unverified(status) {
                self.writers.mend(id, path, folder, status, &entry);
                return Ok(None);
            }
            compare = true;
        }
        if let Some(folder) = folder.filter(|_| !self.in_fresh) {
            // Report this before the content is transferred.
            self.check_writable(folder)?;
        }
        if !folder.map_or(Ok(true), |folder| self.writers.finds_way(folder, path, status))? {
            return Ok(None);
        }
        // If nothing exists, the file of a base may serve.
        let has_bases = status.is_none() && !self.writers.bases.is_empty();
        let base = if has_bases { self.writers.base(directory, &entry) } else { None };
        let folder_here = folder.map(|folder| &**folder);
        if let Some(base) = base.as_ref().filter(|base| base.matches >= Match::Content) {
            if let Some(folder) = folder_here.filter(|_| base.matches == Match::Content && !self.is_dry()) {
                // The space is used at the end, when the copy is made.
                let _ = self.room.add_file(folder, entry.content_bytes(), ExistingFile::default());
            }
            self.take_base(id, path, folder_here, &entry, base)?;
            return Ok(None);
        }
        compare |= base.as_ref().is_some_and(|base| base.matches == Match::Size);
        let same_size = same_size || compare;
        add(&progress.wanted_files, 1);
        if let Some(status) = status.filter(|_| self.is_dry() && !compare) {
            self.writers.shared.would_replace(status, &entry);
        }
        if options.tell_names && !compare {
            self.writers.context.tell.tell(Event::Wanted(path.to_vec()));
        }
        if !compare {
            let in_base = || base.as_ref().map(|base| (&*base.folder, &base.status));
            let there = folder_here.zip(there).or_else(in_base);
            let is_compared = options.checksum && there.is_some();
            self.writers.itemize_content(Update::Transfer, path, &entry, there, is_compared);
        }
        let mut wanted = Wanted { id, have: Vec::new(), compare, same_size };
        let size = entry.size;
        let old = there.or(base.as_ref().map(|base| &base.status));
        let old_size = old.map_or(0, |status| status.st_size as u64);
        let base = base.as_ref().map(|base| base.index);
        let delta = options.delta && !self.is_dry() && size >= SMALL_BYTES && old_size >= BLOCK_BYTES.min(size);
        let compared = (compare || delta).then(|| entry.name.clone());
        let mut begun = None;
        let mut missing_bytes = entry.content_bytes();
        if folder.is_none() && compare {
            // A dry run compares with a base if the destination has no file.
            let (directory, entry) = (directory.clone(), Box::new(entry));
            let asked = RequestedFile { directory, entry, share: Share::default(), compare, base };
            self.writers.pending.lock().insert(id, Pending::Small(asked));
        } else if let Some(folder) = folder
            && (compare || !self.is_dry())
        {
            let is_big = size >= SMALL_BYTES && !self.is_dry();
            let found = match self.torn {
                Some(_) if is_big => Found::read(folder, &entry, &self.writers.boot, self.lost)?,
                _ => Found::default(),
            };
            let (old_bytes, left_bytes) = (there.map(allocated), self.left_bytes(folder, &entry)?);
            let share = if compare {
                // It has the same length, and probably nothing is written.
                Share::default()
            } else {
                self.room.add_file(folder, entry.content_bytes(), ExistingFile { old_bytes, left_bytes })
            };
            let asked = RequestedFile { directory: directory.clone(), entry: Box::new(entry), share, compare, base };
            let pending = if !is_big {
                Pending::Small(asked)
            } else if found.is_empty() && !compare && !delta {
                // Memory is allocated with its first block.
                Pending::Big(asked)
            } else {
                let partial = Arc::new(Partial::new(id, asked, found, options.verify));
                let have_bytes = partial.have_bytes();
                missing_bytes = missing_bytes.saturating_sub(have_bytes);
                add(&progress.resumed_bytes, have_bytes);
                let mode = self.writers.attributes.unfinished_mode(folder, &partial.entry);
                if let Some(file) = partial.whole(folder, mode, &self.writers.boot)? {
                    // An earlier run was interrupted between the last block and the name.
                    let _ = self.writers.whole(&partial, folder, &file);
                    return Ok(None);
                }
                wanted.have = partial.have();
                self.writers.commit.watch(&partial);
                begun = Some(partial.clone());
                Pending::Begun(partial)
            };
            self.writers.pending.lock().insert(id, pending);
        }
        add(&progress.wanted_bytes, missing_bytes);
        if let Some(name) = compared {
            let (directory, partial) = (directory.clone(), begun);
            self.to_compare.push(Compare { id, directory, name, size, partial, awaited: compare, base });
        }
        Ok(Some(wanted))
    }

    /// Checks that names can be created in a directory. A dry run does not change permissions to try.
    fn check_writable(&self, folder: &Folder) -> Result<(), Errno> {
        match folder.is_writable() {
            Err(_) if self.is_dry() && is_closed(&rustix::fs::fstat(folder)?) => Ok(()),
            result => result,
        }
    }

    /// Whether files are compared by content because no run has read them back yet.
    pub(super) fn compares(&self) -> bool {
        self.writers.context.options.verify && self.torn.is_some()
    }

    /// Whether an existing file was written by an interrupted run with `--verify`, before it was read back.
    fn is_unverified(&self, status: &Stat) -> bool {
        self.compares() && self.torn.is_some_and(|began| changed(status) >= began)
    }

    /// Bytes that an earlier run left of a file.
    fn left_bytes(&self, folder: &Folder, entry: &Entry) -> Result<Option<u64>, Errno> {
        match self.torn {
            Some(_) => Ok(folder.status(&names::part(&entry.name))?.as_ref().map(allocated)),
            None => Ok(None),
        }
    }

    /// Makes a link, device, pipe or socket, unless it exists already.
    fn small_thing(
        &mut self,
        id: u64,
        path: &[u8],
        folder: Option<&Arc<Folder>>,
        status: Option<&Stat>,
        entry: &Entry,
    ) -> Result<(), Errno> {
        let has_bases = status.is_none() && !self.writers.bases.is_empty();
        if let Some(base) = if has_bases { self.writers.base(parts(path).0, entry) } else { None } {
            return self.take_base(id, path, folder.map(|folder| &**folder), entry, &base);
        }
        let (Some(folder), false) = (folder, self.is_dry() && status.is_none()) else {
            self.writers.itemize(Update::Local, path, entry, None);
            self.writers.made(path);
            return Ok(());
        };
        if let Some(status) = status
            && is_same_thing(folder, status, entry)?
        {
            self.writers.mend(id, path, folder, status, entry);
            return Ok(());
        }
        if !self.writers.finds_way(folder, path, status)? {
            return Ok(());
        }
        let there = status.filter(|status| Kind::of_mode(status.st_mode) == Some(entry.kind));
        let there = there.map(|status| (&**folder, status));
        self.writers.itemize_content(Update::Local, path, entry, there, true);
        self.writers.made(path);
        if self.is_dry() {
            status.iter().for_each(|status| self.writers.shared.would_replace(status, entry));
            return Ok(());
        }
        let mut sure = false;
        let is_made = self.put(folder, path, status, entry, |listing, name| {
            if let Err(error) = make(folder, name, entry, listing.writers.attributes.node_mode(folder, entry)) {
                let kind = if entry.kind == Kind::Symlink { ProblemKind::Unwritable } else { ProblemKind::Special };
                (listing.writers.problem)(kind, path, std::io::Error::from(error).to_string());
                return Ok(false);
            }
            let failures = listing.writers.attributes.put_on_name(folder, name, entry)?;
            sure = failures.is_empty();
            for (kind, text) in failures {
                (listing.writers.problem)(kind, path, text);
            }
            Ok(true)
        })?;
        if is_made && sure && self.writers.context.options.remove_source_files {
            match self.made.as_mut().and_then(|made| made.last_mut()) {
                Some(made) => made.id = Some(id),
                None => self.writers.commit.named(id),
            }
        }
        Ok(())
    }

    /// Records names that the destination has and the source has not, and names that a case-insensitive file system
    /// takes for the same. Returns the positions of the latter.
    fn note_names(
        &mut self,
        directory: &[u8],
        folder: &Folder,
        entries: &[Entry],
        complete: bool,
        more: bool,
    ) -> HashSet<usize> {
        let mut taken = HashSet::new();
        let delete = self.writers.context.options.delete;
        if !delete && !self.case_insensitive {
            return taken;
        }
        let (names, held) = (self.listed.entry(directory.to_vec()).or_default(), self.writers.held);
        let mut note = |name: Vec<u8>| {
            let is_new = !names.contains(&name);
            if is_new {
                held.keep_name(&name);
                names.insert(name);
            }
            is_new
        };
        for (position, entry) in entries.iter().enumerate().filter(|(_, entry)| !entry.name.is_empty()) {
            if self.case_insensitive && !note(lower_case(&entry.name)) {
                taken.insert(position);
            }
            note(entry.name.clone());
        }
        if !more {
            self.note_extras(directory, folder, delete && complete);
        }
        taken
    }

    fn note_extras(&mut self, directory: &[u8], folder: &Folder, complete: bool) {
        let Some(names) = self.listed.remove(directory) else { return };
        let (case_insensitive, options, held) =
            (self.case_insensitive, self.writers.context.options, self.writers.held);
        let has = |names: &HashSet<Vec<u8>>, name: &Vec<u8>| {
            names.contains(name) || case_insensitive && names.contains(&lower_case(name))
        };
        if let Some(extras) = self.extras.get_mut(directory) {
            // Several sources share the directory: keep only names that none of them has.
            extras.retain(|name| !has(&names, name));
        } else if complete && let Ok(there) = list(folder) {
            // Names from a source with a partial list of this directory, which complete lists leave out.
            let earlier = self.told.take(directory);
            let extras = there.into_iter().filter(|(name, kind)| {
                let path = join(directory, name);
                // Excluded names are protected, as in rsync.
                let is_excluded = self.writers.protects(&path, *kind == FileType::Directory);
                // So are kinds of entries that are left out: the source may have them.
                let is_left_out = !options.specials && is_special(*kind);
                let is_listed = has(&names, name) || has(&earlier, name);
                !is_listed && !names::is_ours(name) && !is_excluded && !is_left_out
            });
            self.extras.insert(directory.to_vec(), extras.map(|(name, _)| name).collect());
            earlier.iter().for_each(|name| held.let_go(name));
        } else if options.delete && !directory.is_empty() {
            return self.told.keep(directory, names, held);
        }
        if directory.is_empty() {
            // At the root, further sources may add names.
            self.listed.insert(Vec::new(), names);
        } else {
            names.iter().for_each(|name| held.let_go(name));
        }
    }
}

/// Bytes that a file occupies on its file system.
pub(super) fn allocated(status: &Stat) -> u64 {
    (status.st_blocks as u64).saturating_mul(512)
}

fn is_special(kind: FileType) -> bool {
    matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice)
}

/// Splits a path into its directory and its name.
pub(super) fn parts(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// A name in lower case, roughly as a case-insensitive file system compares it.
pub(super) fn lower_case(name: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(name).to_lowercase().into_bytes()
}

/// Names in a directory, with their types as the file system reports them.
pub(super) fn list(folder: &Folder) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    // Open the directory again, as reading moves the descriptor's position.
    let own = rustix::fs::openat(folder, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut space = vec![std::mem::MaybeUninit::uninit(); 32 << 10];
    let mut reader = RawDir::new(own, &mut space);
    let mut names = Vec::new();
    while let Some(entry) = reader.next() {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            let kind = match entry.file_type() {
                FileType::Unknown => {
                    folder.status(name)?.map_or(FileType::Unknown, |status| FileType::from_raw_mode(status.st_mode))
                }
                kind => kind,
            };
            names.push((name.to_vec(), kind));
        }
    }
    Ok(names)
}

pub(super) fn is_same_thing(folder: &Folder, status: &Stat, entry: &Entry) -> Result<bool, Errno> {
    if Kind::of_mode(status.st_mode) != Some(entry.kind) {
        return Ok(false);
    }
    Ok(match entry.kind {
        Kind::Symlink => rustix::fs::readlinkat(folder, &entry.name[..], Vec::new())?.as_bytes() == entry.target,
        Kind::Character | Kind::Block => {
            (rustix::fs::major(status.st_rdev), rustix::fs::minor(status.st_rdev)) == entry.device
        }
        _ => true,
    })
}

pub(super) fn make(folder: &Folder, name: &[u8], entry: &Entry, mode: Mode) -> Result<(), Errno> {
    let kind = match entry.kind {
        Kind::Symlink => return rustix::fs::symlinkat(&entry.target[..], folder, name),
        Kind::Fifo => FileType::Fifo,
        Kind::Socket => FileType::Socket,
        Kind::Character => FileType::CharacterDevice,
        Kind::Block => FileType::BlockDevice,
        Kind::File | Kind::Directory => return Err(Errno::INVAL),
    };
    let device = rustix::fs::makedev(entry.device.0, entry.device.1);
    rustix::fs::mknodat(folder, name, kind, mode, device)
}

#[cfg(test)]
mod tests;
