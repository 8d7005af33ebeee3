//! What is listed, compared with what is there: directories, links and devices are made at once,
//! files are asked for, and what the source does not have is noted for deletion.

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

/// Directories whose lists may be open at once. A sender has one for each of its four threads that list, and the
/// root's stays: others may come behind it.
const OPEN_DIRECTORIES: usize = 64;

/// The first name of a file with several.
pub(super) struct First {
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    /// Its content comes with this copy.
    pub(super) is_wanted: bool,
}

/// A name that shall be a hard link to a file listed before it.
pub(super) struct LinkLater {
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) entry: Box<Entry>,
    pub(super) first: Arc<First>,
    /// Its number.
    pub(super) id: u64,
}

/// Something that was made before any content came.
pub(super) struct Made {
    path: Vec<u8>,
    is_directory: bool,
    /// The name beside it that what stood there has got.
    aside: Option<Vec<u8>>,
    /// Its number, if it may go at the source once it is kept.
    id: Option<u64>,
}

/// What the lists have told so far.
pub(super) struct Listing<'a> {
    pub(super) writers: &'a Writers<'a>,
    pub(super) room: FreeSpace,
    pub(super) case_insensitive: bool,
    /// An earlier run into this destination was torn, which began then: unfinished files may be found.
    pub(super) torn: Option<Time>,
    /// See `Marker::lost`.
    lost: bool,
    /// Directories in which an earlier run may have left something.
    pub(super) visited: BTreeSet<Arc<Vec<u8>>>,
    next: u64,
    /// Directories made by this run: nothing can be in them yet.
    fresh: HashSet<Vec<u8>>,
    /// The list taken last is of one of them.
    in_fresh: bool,
    /// Names listed in a directory whose list is not at its end.
    listed: HashMap<Vec<u8>, HashSet<Vec<u8>>>,
    /// What was told of directories of which not all is known.
    told: Told,
    /// What the source does not have, by directory; final when all has been listed.
    pub(super) extras: HashMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    /// Directories whose attributes are set at the end, when nothing changes them any more.
    pub(super) directories: Vec<(Vec<u8>, Box<Entry>)>,
    first_of_group: HashMap<u64, Arc<First>>,
    pub(super) links: Vec<LinkLater>,
    /// Names that cannot be at the destination.
    pub(super) impossible: u64,
    /// What was made before any content came, to be taken back if none may. None when content has come.
    pub(super) made: Option<Vec<Made>>,
    /// Files of the list taken last that are to be compared.
    to_compare: Vec<Compare>,
    /// Directories that are passed over, with all that is in them.
    skipped: HashSet<Vec<u8>>,
    /// The time of the destination itself before it was marked; none if it was made for this copy.
    before: Option<Time>,
    /// Files whose hashes are told at the end.
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

    /// With what is told of the files: the hashes of these, and what changes on a destination that `is_new`.
    pub(super) fn telling(self, hashed: Option<HashedPaths>, is_new: bool) -> Listing<'a> {
        Listing { hashed, before: self.before.filter(|_| !is_new), ..self }
    }

    fn is_dry(&self) -> bool {
        self.writers.context.options.dry_run
    }

    /// Entries told so far.
    pub(super) fn entries(&self) -> u64 {
        self.next
    }

    /// Takes a list and gives the answer to it; [`Listing::compare`] when it is sent.
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
            // It would have been made, in the place of a file or a link where there is one.
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
                // Its names were not noted.
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

    /// Not all names of a directory are known, or, with `beneath`, nothing of what is at a path.
    ///
    /// # Errors
    /// When there are more of them than this machine can keep.
    pub(super) fn unlisted(&mut self, path: &[u8], beneath: bool) -> Result<(), CopyError> {
        self.told.unlisted(path, beneath, self.writers.held);
        self.writers.held.check(self.writers.pending.bytes())
    }

    /// All has been listed: what no source has is known.
    pub(super) fn settle(&mut self) {
        self.told.spare(&mut self.extras, self.case_insensitive);
    }

    /// Has the files compared that the last answer asked to be. Behind that answer: hashes of a file that the
    /// sender does not yet know to be wanted mean nothing to it.
    pub(super) fn compare(&mut self) {
        for compare in self.to_compare.drain(..) {
            // A closed queue belongs to a run that ends; its reason is known to the cancel token.
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

    /// Compares one entry with what is there. Gives what is wanted of it.
    fn entry(
        &mut self,
        id: u64,
        directory: &Arc<Vec<u8>>,
        folder: Option<&Arc<Folder>>,
        path: &[u8],
        entry: Entry,
    ) -> Result<Option<Wanted>, Errno> {
        if entry.name.is_empty() {
            // The destination itself.
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
        // One that cannot be there does not keep the other names of its file from coming.
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

    /// Where a name is on another file system than the first one of its file, it takes room as a copy.
    fn add_copy_of_link(&mut self, folder: Option<&Arc<Folder>>, first: &First, there: Option<&Stat>, entry: &Entry) {
        let is_elsewhere = |folder: &&Arc<Folder>| {
            let first = self.writers.tree.folder(&first.directory);
            entry.kind == Kind::File && first.is_ok_and(|first| first.device != folder.device)
        };
        if let Some(folder) = folder.filter(|_| !self.is_dry()).filter(is_elsewhere) {
            let there = there.filter(|status| Kind::of_mode(status.st_mode) == Some(Kind::File));
            let existing = ExistingFile { old_bytes: there.map(allocated), left_bytes: None };
            // Not taken before the end, when it is copied.
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

    /// Tells what changes on the destination itself, whose marker has changed its time.
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

    /// Tells of a directory that is made, and how it differs from that of a base.
    fn itemize_made(&self, path: &[u8], entry: &Entry) {
        if self.writers.context.options.itemize.is_on() {
            let base = self.writers.base_directory(path);
            let there = base.as_ref().map(|(folder, status)| (&**folder, status));
            self.writers.itemize_in(Update::Local, path, entry, there, b".");
        }
    }

    /// Whether an entry is passed over, as the user wishes.
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

    /// A directory is passed over with all that is in it.
    fn skip_directory(&mut self, path: Vec<u8>) {
        self.writers.held.keep_name(&path);
        self.skipped.insert(path);
    }

    fn impossible(&mut self, path: &[u8], text: String) {
        self.impossible += 1;
        (self.writers.problem)(ProblemKind::Name, path, text);
    }

    /// Has something made, in the place of what is there, if anything is, or beside a directory that is to make way at
    /// the end. `make` gives false if it could not and has said so. Until content comes, what was there can be put back.
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
        // Beside it, and then in its place; a run that was cut there has left it.
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

    /// Takes an entry from a base. Until content comes, a link can be taken back.
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

    /// Keeps what is about to be replaced, if backups are wanted. False if that failed, which was told.
    fn keep_old(&self, folder: &Folder, path: &[u8]) -> Result<bool, Errno> {
        let Writers { backup, problem, .. } = self.writers;
        backup.map_or(Ok(true), |backup| backup.keep(folder, path, *problem))
    }

    /// What was replaced, and has this name now, goes, or becomes a backup.
    fn drop_old(&self, folder: &Folder, aside: &[u8], path: &[u8]) -> Result<(), Errno> {
        let Writers { backup, problem, .. } = self.writers;
        match backup {
            Some(backup) => backup.take(folder, aside, path, *problem).map(drop),
            None => folder.discard(aside),
        }
    }

    /// Content may come: what was made stays, and what it replaced goes.
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

    /// Takes back what was made: the copy is refused.
    pub(super) fn take_back(&mut self) {
        let tree = self.writers.tree;
        for Made { path, is_directory, aside, .. } in self.made.take().unwrap_or_default().into_iter().rev() {
            let flags = if is_directory { AtFlags::REMOVEDIR } else { AtFlags::empty() };
            tree.forget(&path);
            let (directory, name) = parts(&path);
            // What cannot be taken back is empty, and does no harm.
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
            // Said now, and not when its content has come.
            self.check_writable(folder)?;
        }
        if !folder.map_or(Ok(true), |folder| self.writers.finds_way(folder, path, status))? {
            return Ok(None);
        }
        // Where nothing is, the file of a base may be as good.
        let has_bases = status.is_none() && !self.writers.bases.is_empty();
        let base = if has_bases { self.writers.base(directory, &entry) } else { None };
        let folder_here = folder.map(|folder| &**folder);
        if let Some(base) = base.as_ref().filter(|base| base.matches >= Match::Content) {
            if let Some(folder) = folder_here.filter(|_| base.matches == Match::Content && !self.is_dry()) {
                // Not taken before the end, when it is copied.
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
            // A dry run compares with a base, where nothing is yet.
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
                // It is as long, and probably nothing is written.
                Share::default()
            } else {
                self.room.add_file(folder, entry.content_bytes(), ExistingFile { old_bytes, left_bytes })
            };
            let asked = RequestedFile { directory: directory.clone(), entry: Box::new(entry), share, compare, base };
            let pending = if !is_big {
                Pending::Small(asked)
            } else if found.is_empty() && !compare && !delta {
                // It takes memory when its first block comes.
                Pending::Big(asked)
            } else {
                let partial = Arc::new(Partial::new(id, asked, found, options.verify));
                let have_bytes = partial.have_bytes();
                missing_bytes = missing_bytes.saturating_sub(have_bytes);
                add(&progress.resumed_bytes, have_bytes);
                let mode = self.writers.attributes.unfinished_mode(folder, &partial.entry);
                if let Some(file) = partial.whole(folder, mode, &self.writers.boot)? {
                    // An earlier run was cut between the last block and the name.
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

    /// That names can be made in a directory. A dry run opens none that is closed.
    fn check_writable(&self, folder: &Folder) -> Result<(), Errno> {
        match folder.is_writable() {
            Err(_) if self.is_dry() && is_closed(&rustix::fs::fstat(folder)?) => Ok(()),
            result => result,
        }
    }

    /// Whether files are to be compared by their content as no run has read them back yet.
    pub(super) fn compares(&self) -> bool {
        self.writers.context.options.verify && self.torn.is_some()
    }

    /// Whether what is there was written by a run that was to read it back and was torn before.
    fn is_unverified(&self, status: &Stat) -> bool {
        self.compares() && self.torn.is_some_and(|began| changed(status) >= began)
    }

    /// What an earlier run left of a file, in bytes.
    fn left_bytes(&self, folder: &Folder, entry: &Entry) -> Result<Option<u64>, Errno> {
        match self.torn {
            Some(_) => Ok(folder.status(&names::part(&entry.name))?.as_ref().map(allocated)),
            None => Ok(None),
        }
    }

    /// Makes a link, device, pipe or socket, unless it is there.
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

    /// Notes what a directory has and the source has not; names that a file system takes for one.
    /// Gives the places of those entries.
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
            // Sources share the directory: only what none of them has.
            extras.retain(|name| !has(&names, name));
        } else if complete && let Ok(there) = list(folder) {
            // What a source has told that does not have all of the directory, the others leave out.
            let earlier = self.told.take(directory);
            let extras = there.into_iter().filter(|(name, kind)| {
                let path = join(directory, name);
                // Excluded names are protected, as with rsync.
                let is_excluded = self.writers.protects(&path, *kind == FileType::Directory);
                // So are those that are left out by their kind: the source may have them.
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
            // What is in a source may come behind others that have names there themselves.
            self.listed.insert(Vec::new(), names);
        } else {
            names.iter().for_each(|name| held.let_go(name));
        }
    }
}

/// What something takes of its file system, in bytes.
pub(super) fn allocated(status: &Stat) -> u64 {
    (status.st_blocks as u64).saturating_mul(512)
}

fn is_special(kind: FileType) -> bool {
    matches!(kind, FileType::Fifo | FileType::Socket | FileType::CharacterDevice | FileType::BlockDevice)
}

/// The directory of a path, and the name in it.
pub(super) fn parts(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (&[], path),
    }
}

/// A name as a file system that knows no case compares it, nearly enough.
pub(super) fn lower_case(name: &[u8]) -> Vec<u8> {
    String::from_utf8_lossy(name).to_lowercase().into_bytes()
}

/// Names in a directory, with what the file system tells of their kind.
pub(super) fn list(folder: &Folder) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
    // A descriptor of its own, as its position moves.
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
