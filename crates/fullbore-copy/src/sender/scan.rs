//! Lists the source: directories in parallel, each reported when it has been read, parents before children.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fullbore_engine::stage::{Kind as RoleKind, StageClock};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, Stat};
use rustix::io::Errno;

use super::remove::{Removable, Removables};
use super::source::{self, Directory, Entered, Implied, KeptPath, Source, SourceFile, is_kernel_view, look};
use super::wants::Wants;
use super::{Skip, Sources};
use crate::entry::{Entry, Kind, is_path, join};
use crate::names;
use crate::owners;
use crate::session::{Context, Event};
use crate::wire::{LIST_BYTES, LIST_ENTRIES, List, Message, Owner, Problem, ProblemKind};
use crate::xattrs::{self, FileRef, Treatment};

/// Buffer for names of a directory per system call, in bytes. Larger than libc's, for directories as large as those of
/// mail.
const NAMES_BYTES: usize = 64 << 10;

/// State of the listing that all scanners share.
pub(super) struct Scan<'a> {
    context: &'a Context<'a>,
    wants: &'a Wants,
    clock: Arc<StageClock>,
    /// The destination, if it is on this machine, so that it is not copied into itself.
    skip: Option<Skip>,
    by_inode: bool,
    todo: Mutex<Todo>,
    more: Condvar,
    teller: Mutex<Teller>,
    links: Mutex<HashMap<(u64, u64), u64>>,
    /// Records names to remove once they are copied.
    removables: Option<&'a Removables>,
    errors: AtomicU64,
}

#[derive(Default)]
struct Todo {
    directories: Vec<Arc<Directory>>,
    /// Number of directories that are being listed, and may have subdirectories.
    listing: usize,
    /// Number of threads that wait for a directory.
    waiting: usize,
    closed: bool,
}

/// Numbers the entries, and sends lists in the order of the numbers.
#[derive(Default)]
struct Teller {
    next: u64,
    owners: HashSet<(bool, u32)>,
    names: owners::Names,
    /// Paths sent so far, and whether they are directories. Only if several sources may have the same path.
    seen: Option<HashMap<Vec<u8>, bool>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Scan<'a> {
    pub(super) fn new(
        context: &'a Context<'a>,
        wants: &'a Wants,
        by_inode: bool,
        skip: Option<Skip>,
        removables: Option<&'a Removables>,
    ) -> Scan<'a> {
        Scan {
            context,
            wants,
            clock: context.ledger.stage("scan", RoleKind::Thread),
            skip,
            by_inode,
            todo: Mutex::default(),
            more: Condvar::new(),
            teller: Mutex::default(),
            links: Mutex::default(),
            removables,
            errors: AtomicU64::new(0),
        }
    }

    /// Lists all sources with `threads` threads, including the calling one, then sends the end.
    pub(super) fn run(&self, all: &Sources, threads: usize) {
        self.clock.adopt_thread();
        let _guard = self.context.cancel.guard();
        let (sources, only) = (&all.sources[..], all.only.as_deref());
        for missing in &all.missing {
            self.error(&missing.path, &missing.text);
            let relative = self.context.options.relative;
            let kept = if relative { KeptPath::relative(&missing.path) } else { Some(KeptPath::last(&missing.path)) };
            // Files that an earlier copy took from this source stay. If the source stands for its content, its names
            // are not known.
            if let Some(kept) = kept.filter(|kept| !kept.names.is_empty()) {
                self.unlisted(&kept.names.join(&b'/'), true);
            }
        }
        // If two sources may have the same path, the first one wins; then they are listed one after the other.
        let together = if may_collide(sources) {
            locked(&self.teller).seen = Some(HashMap::new());
            1
        } else {
            sources.len().max(1)
        };
        for sources in sources.chunks(together) {
            match only {
                Some(paths) => sources.iter().for_each(|source| self.list_only(source, paths)),
                None => sources.iter().for_each(|source| self.begin(source)),
            }
            std::thread::scope(|scope| {
                for _ in 1..threads {
                    scope.spawn(|| self.work());
                }
                self.work();
            });
        }
        let entries = locked(&self.teller).next;
        let errors = self.errors.load(Ordering::Relaxed);
        // Send this before another thread can find that everything is done; only the end may follow it.
        self.send(Message::Listed { entries, errors });
        self.wants.listed(entries);
        if let Some(records) = self.wants.settle() {
            // A closed queue belongs to a run that ends; the cancel token has the reason.
            let _ = self.context.say_last(Message::Finish { records }, &self.clock);
        }
    }

    /// Ends the threads of a cancelled run.
    pub(super) fn break_off(&self) {
        locked(&self.todo).closed = true;
        self.more.notify_all();
    }

    /// Sends the entries of the source itself, at the root of the destination.
    fn begin(&self, source: &Source) {
        source.implied.iter().for_each(|implied| self.lead(implied));
        let mut root = Directory::of_root(&source.root);
        let Ok(descriptor) = root.open() else {
            return self.unreadable(&root.path, "cannot be opened");
        };
        if source.root.follows {
            root.entered = rustix::fs::fstat(&descriptor).ok().and_then(|status| Entered::within(None, &status));
        }
        let root = Arc::new(root);
        // A directory whose content is copied gives its attributes to the destination.
        let name = source.name.as_deref().unwrap_or_default();
        let own = if name.is_empty() { &b"."[..] } else { name };
        let path = join(&root.path, name);
        match rustix::fs::statat(&descriptor, own, look(source.root.follows)) {
            Ok(status) => {
                let is_directory = Kind::of_mode(status.st_mode) == Some(Kind::Directory);
                if !name.is_empty() && self.context.options.filters.excludes(&path, is_directory) {
                    return;
                }
                let mut batch = Batch::default();
                // A source whose path is kept was sent as the last of its parents.
                if !name.is_empty() || root.path.is_empty() {
                    self.add(&root, &descriptor, own, name, &status, &mut batch);
                    self.tell(&root, batch.take(), false, false);
                }
                self.push(if name.is_empty() && self.context.options.recursive { vec![root] } else { batch.children });
            }
            Err(error) => self.failed(&path, error),
        }
    }

    /// Sends a directory that leads to a source.
    fn lead(&self, implied: &Implied) {
        let (above, name) = match implied.path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&implied.path[..slash], &implied.path[slash + 1..]),
            None => (&implied.path[..0], &implied.path[..]),
        };
        let own = Directory::of_root(&implied.root);
        let looked = own.open().and_then(|descriptor| Ok((rustix::fs::fstat(&descriptor)?, descriptor)));
        match looked {
            Ok((status, descriptor)) => {
                let (above, mut batch) =
                    (Arc::new(Directory::new(implied.root.clone(), above.to_vec())), Batch::default());
                self.add(&above, &descriptor, b".", name, &status, &mut batch);
                self.tell(&above, batch.take(), false, false);
            }
            Err(error) => self.failed(&implied.path, error),
        }
    }

    fn work(&self) {
        let _guard = self.context.cancel.guard();
        self.clock.adopt_thread();
        while let Some(directory) = self.next() {
            self.list(&directory);
            let mut todo = locked(&self.todo);
            todo.listing -= 1;
            if todo.listing == 0 && todo.directories.is_empty() {
                self.more.notify_all();
            }
        }
    }

    fn next(&self) -> Option<Arc<Directory>> {
        let mut todo = locked(&self.todo);
        if todo.directories.is_empty() && todo.listing > 0 && !todo.closed {
            drop(todo);
            todo = self.clock.starved_in(|| {
                let mut todo = locked(&self.todo);
                todo.waiting += 1;
                let idle = |todo: &mut Todo| todo.directories.is_empty() && todo.listing > 0 && !todo.closed;
                let mut todo = self.more.wait_while(todo, idle).unwrap_or_else(PoisonError::into_inner);
                todo.waiting -= 1;
                todo
            });
        }
        if todo.closed {
            return None;
        }
        let directory = todo.directories.pop()?;
        todo.listing += 1;
        Some(directory)
    }

    fn push(&self, mut children: Vec<Arc<Directory>>) {
        if children.is_empty() {
            return;
        }
        // The last one pushed is listed next: in the order of names.
        children.reverse();
        let mut todo = locked(&self.todo);
        todo.directories.append(&mut children);
        let is_awaited = todo.waiting > 0;
        drop(todo);
        // Waking threads is a system call.
        if is_awaited {
            self.more.notify_all();
        }
    }

    fn list(&self, directory: &Arc<Directory>) {
        let opened = self.clock.device(|| directory.open());
        let names = opened.and_then(|descriptor| self.names(&descriptor).map(|names| (descriptor, names)));
        let (descriptor, names) = match names {
            Ok(names) => names,
            Err(Errno::NOENT) => {
                self.problem(ProblemKind::Vanished, &directory.path, "the directory is gone".to_owned());
                self.unlisted(&directory.path, true);
                return self.tell(directory, Vec::new(), false, false);
            }
            Err(error) => return self.failed(&directory.path, error),
        };
        let mut batch = Batch::default();
        for (name, kind) in &names {
            let path = || join(&directory.path, name);
            let filters = &self.context.options.filters;
            let excluded = |is_directory| !filters.is_empty() && filters.excludes(&path(), is_directory);
            let is_known = *kind != FileType::Unknown;
            if is_known && excluded(*kind == FileType::Directory) {
                continue;
            }
            let follows = directory.root.follows;
            match self.clock.device(|| rustix::fs::statat(&descriptor, &name[..], look(follows))) {
                Ok(status) => {
                    // If a link is followed, its target decides as well; so does an entry that replaced the listed one.
                    let is_known = is_known && FileType::from_raw_mode(status.st_mode) == *kind;
                    if !is_known && excluded(Kind::of_mode(status.st_mode) == Some(Kind::Directory)) {
                        continue;
                    }
                    self.add(directory, &descriptor, name, name, &status, &mut batch);
                }
                Err(Errno::NOENT) if follows && *kind == FileType::Symlink => {
                    self.lacks(&mut batch, &path(), "a symbolic link that leads nowhere");
                }
                Err(Errno::NOENT) => {}
                Err(error) => self.lacks(&mut batch, &path(), std::io::Error::from(error)),
            }
            if batch.is_full() {
                self.tell(directory, batch.take(), false, true);
            }
            if self.context.cancel.is_cancelled() {
                return;
            }
        }
        if batch.is_lacking {
            self.unlisted(&directory.path, false);
        }
        self.tell(directory, batch.take(), !batch.is_lacking, false);
        self.push(batch.children);
    }

    /// Names in a directory, in the best order for reading.
    fn names(&self, descriptor: &OwnedFd) -> Result<Vec<(Vec<u8>, FileType)>, Errno> {
        self.clock.device(|| {
            let mut space = [const { MaybeUninit::uninit() }; NAMES_BYTES];
            let mut reader = RawDir::new(descriptor, &mut space);
            let mut names = Vec::new();
            while let Some(entry) = reader.next() {
                let entry = entry?;
                let name = entry.file_name().to_bytes();
                if !matches!(name, b"." | b"..") {
                    names.push((entry.ino(), name.to_vec(), entry.file_type()));
                }
            }
            // A rotational disk reads files fastest in the order of inodes; for others the order does not matter.
            names.sort_unstable_by(|one, two| {
                let by_inode = if self.by_inode { one.0.cmp(&two.0) } else { std::cmp::Ordering::Equal };
                by_inode.then_with(|| one.1.cmp(&two.1))
            });
            Ok(names.into_iter().map(|(_, name, kind)| (name, kind)).collect())
        })
    }

    /// Adds an entry called `name`, which is `own` in its directory.
    fn add(
        &self,
        directory: &Arc<Directory>,
        descriptor: &OwnedFd,
        own: &[u8],
        name: &[u8],
        status: &Stat,
        batch: &mut Batch,
    ) {
        let options = self.context.options;
        let path = || join(&directory.path, name);
        if names::is_ours(name) {
            return self.problem(ProblemKind::Name, &path(), names::explain(name));
        }
        let Some(mut entry) = source::entry(name, status) else {
            self.unlisted(&path(), true);
            return self.problem(ProblemKind::Special, &path(), "a file of unknown kind".to_owned());
        };
        if !options.chmod.is_empty() && entry.kind != Kind::Symlink {
            entry.mode = options.chmod.apply(entry.mode, entry.kind == Kind::Directory);
        }
        let follows = directory.root.follows;
        if follows && entry.kind != Kind::Directory && status.st_dev != directory.root.device {
            let led = rustix::fs::openat(descriptor, own, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
            if led.is_ok_and(|led| is_kernel_view(led.as_fd())) {
                return self.lacks(batch, &path(), "it leads to /proc or /sys, of which nothing is copied");
            }
        }
        if entry.kind.is_special() && !options.specials {
            return;
        }
        if entry.kind == Kind::Directory
            && let Some(skip) = self.skip.filter(|skip| (skip.device, skip.inode) == (status.st_dev, status.st_ino))
        {
            if !skip.is_new {
                self.lacks(batch, &path(), "it is the destination; --exclude leaves it out");
            }
            return;
        }
        if entry.kind == Kind::Symlink {
            match rustix::fs::readlinkat(descriptor, own, Vec::new()) {
                Ok(target) => entry.target = target.into_bytes(),
                Err(error) => return self.lacks(batch, &path(), std::io::Error::from(error)),
            }
        }
        if options.acls || options.xattrs {
            let file = if follows { FileRef::Followed(descriptor, own) } else { FileRef::Name(descriptor, own) };
            match xattrs::read(file, options.acls, options.xattrs) {
                Ok(xattrs) => entry.xattrs = xattrs,
                // The file has disappeared. Or `/proc`, which the lookup needs, is not mounted; then the file still
                // exists.
                Err(Errno::NOENT) => match rustix::fs::statat(descriptor, own, AtFlags::SYMLINK_NOFOLLOW) {
                    Err(Errno::NOENT) => return,
                    _ => self.problem(ProblemKind::Xattrs, &path(), "to read them takes /proc, mounted".to_owned()),
                },
                Err(error) => self.problem(ProblemKind::Xattrs, &path(), std::io::Error::from(error).to_string()),
            }
        }
        if options.hard_links && status.st_nlink > 1 && entry.kind != Kind::Directory {
            let mut links = locked(&self.links);
            let next = links.len() as u64;
            entry.link_group = Some(*links.entry((status.st_dev, status.st_ino)).or_insert(next));
        }
        let file = (entry.kind == Kind::File).then(|| {
            Box::new(SourceFile {
                directory: directory.clone(),
                name: name.into(),
                size: entry.size,
                sparse: entry.stored.is_some(),
                modified: entry.modified,
                identity: entry.identity,
            })
        });
        if entry.kind == Kind::Directory
            && !name.is_empty()
            && options.recursive
            && self.is_entered(directory, status, descriptor, own)
        {
            let entered = if follows { Entered::within(directory.entered.as_ref(), status) } else { None };
            if follows && entered.is_none() {
                return self.lacks(batch, &path(), "a symbolic link that leads to a directory that it is in");
            }
            batch.children.push(Arc::new(Directory { root: directory.root.clone(), path: path(), entered }));
        }
        let removable = (self.removables.is_some() && entry.kind != Kind::Directory)
            .then(|| Removable::new(directory, own, status));
        batch.add(entry, file, removable);
    }

    /// Whether to descend into a directory.
    fn is_entered(&self, parent: &Directory, status: &Stat, descriptor: &OwnedFd, name: &[u8]) -> bool {
        if status.st_dev == parent.root.device {
            return true;
        }
        if self.context.options.one_file_system {
            return false;
        }
        let opened = rustix::fs::openat(descriptor, name, source::DIRECTORY, Mode::empty());
        opened.map_or(true, |directory| !is_kernel_view(directory.as_fd()))
    }

    /// Sends a list, with the names of owners that it is the first to mention.
    fn tell(&self, directory: &Directory, mut batch: Vec<Listed>, complete: bool, more: bool) {
        let mut teller = locked(&self.teller);
        if teller.is_taken(&directory.path) {
            return;
        }
        for path in teller.drop_taken(&directory.path, &mut batch) {
            let text = "another source has an entry that is not a directory in its place".to_owned();
            self.problem(ProblemKind::Name, &path, text);
        }
        let owners = if self.context.options.numeric_ids { Vec::new() } else { teller.new_owners(&batch) };
        if !owners.is_empty() {
            self.send(Message::Owners(owners));
        }
        let first = teller.next;
        teller.next += batch.len() as u64;
        let count = batch.len();
        let (mut entries, mut files) = (Vec::with_capacity(count), Vec::with_capacity(count));
        let mut names = Vec::new();
        for listed in batch {
            entries.push(listed.entry);
            files.push(listed.file);
            names.push(listed.removable);
        }
        if let Some(removables) = self.removables {
            removables.add(first, names.into_iter());
        }
        self.wants.add(first, files, &self.clock);
        self.clock.add_items(entries.len() as u64, 0);
        self.send(Message::List(List { first, directory: directory.path.clone(), complete, more, entries }));
    }

    /// Lists these paths below a source, and the directories that lead to them (`--files-from`). One that ends in a
    /// slash includes the content of that directory; a single slash is the source.
    fn list_only(&self, source: &Source, paths: &[Vec<u8>]) {
        let recursive = self.context.options.recursive;
        let contents: HashSet<&[u8]> = paths.iter().filter_map(|path| path.strip_suffix(b"/")).collect();
        let listed: HashSet<&[u8]> = paths.iter().map(|path| path.strip_suffix(b"/").unwrap_or(path)).collect();
        if contents.contains(&b""[..]) && recursive {
            return self.begin(source);
        }
        let mut by_directory: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>> =
            contents.iter().map(|path| (path.to_vec(), BTreeSet::new())).collect();
        for path in &listed {
            let mut rest = *path;
            while !rest.is_empty() {
                let (parent, name) = match rest.iter().rposition(|byte| *byte == b'/') {
                    Some(slash) => (&rest[..slash], &rest[slash + 1..]),
                    None => (&rest[..0], rest),
                };
                by_directory.entry(parent.to_vec()).or_default().insert(name.to_vec());
                rest = parent;
            }
        }
        // Directories that are listed as a whole, or cannot be listed: nothing below them is searched.
        let mut done: HashSet<Vec<u8>> = HashSet::new();
        for (path, names) in &by_directory {
            let mut ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
            if done.contains(path) || ends.any(|end| done.contains(&path[..end])) {
                continue;
            }
            let directory = Arc::new(Directory::new(source.root.clone(), path.clone()));
            let descriptor = match directory.open() {
                Ok(descriptor) => descriptor,
                Err(error) => {
                    self.failed(path, error);
                    done.insert(path.clone());
                    continue;
                }
            };
            if contents.contains(&path[..]) {
                self.list(&directory);
                continue;
            }
            let mut batch = Batch::default();
            for name in names {
                let path = join(&directory.path, name);
                let is_listed = listed.contains(&path[..]);
                match rustix::fs::statat(&descriptor, &name[..], look(source.root.follows)) {
                    Ok(status) => {
                        let is_directory = Kind::of_mode(status.st_mode) == Some(Kind::Directory);
                        // Filters do not apply to a directory that only leads to a path of the list.
                        let excluded = is_listed && self.context.options.filters.excludes(&path, is_directory);
                        if !excluded || by_directory.contains_key(&path) {
                            self.add(&directory, &descriptor, name, name, &status, &mut batch);
                        }
                        if is_listed && !excluded && is_directory && recursive {
                            done.insert(path);
                        }
                    }
                    Err(error) => {
                        self.failed(&path, error);
                        done.insert(path);
                    }
                }
                if batch.is_full() {
                    self.tell(&directory, batch.take(), false, true);
                }
            }
            self.tell(&directory, batch.take(), false, false);
            // Descend only into directories that the list names, not into those that lead to them.
            batch.children.retain(|child| done.contains(&child.path));
            self.push(batch.children);
        }
    }

    fn send(&self, message: Message) {
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let _ = self.context.link.control_out.push(message, &self.clock);
    }

    fn failed(&self, path: &[u8], error: Errno) {
        self.unreadable(path, &std::io::Error::from(error).to_string());
    }

    fn unreadable(&self, path: &[u8], text: &str) {
        self.error(path, text);
        self.unlisted(path, true);
    }

    /// Reports an entry that cannot be listed, so that its directory is not listed completely.
    fn lacks(&self, batch: &mut Batch, path: &[u8], text: impl std::fmt::Display) {
        batch.is_lacking = true;
        self.unreadable(path, &text.to_string());
    }

    fn error(&self, path: &[u8], text: &str) {
        self.errors.fetch_add(1, Ordering::Relaxed);
        self.problem(ProblemKind::Unreadable, path, text.to_owned());
    }

    /// Keeps the receiver from deleting entries that this source may have. Another source may have the same directory
    /// with all of its names.
    fn unlisted(&self, path: &[u8], beneath: bool) {
        if !self.context.options.delete {
            return;
        }
        // A path that is too long is reported as its parent.
        let mut told = path;
        while !is_path(told) {
            told = &told[..told.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        }
        self.send(Message::Unlisted { directory: told.to_vec(), beneath: beneath || told.len() < path.len() });
    }

    fn problem(&self, kind: ProblemKind, path: &[u8], text: String) {
        let problem = Problem { kind, path: path.to_vec(), text };
        self.context.tell.tell(Event::Problem(problem.clone()));
        self.send(Message::Problem(problem));
    }
}

/// A name that was listed.
struct Listed {
    entry: Entry,
    file: Option<Box<SourceFile>>,
    removable: Option<Removable>,
}

/// Entries that have not been sent yet, and directories to list after them.
#[derive(Default)]
struct Batch {
    entries: Vec<Listed>,
    bytes: usize,
    children: Vec<Arc<Directory>>,
    /// Whether an entry of the directory could not be listed.
    is_lacking: bool,
}

impl Batch {
    fn add(&mut self, entry: Entry, file: Option<Box<SourceFile>>, removable: Option<Removable>) {
        let xattrs: usize = entry.xattrs.iter().map(|(name, value)| name.len() + value.len()).sum();
        self.bytes += entry.name.len() + entry.target.len() + xattrs;
        self.entries.push(Listed { entry, file, removable });
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= LIST_ENTRIES || self.bytes >= LIST_BYTES
    }

    fn take(&mut self) -> Vec<Listed> {
        self.bytes = 0;
        std::mem::take(&mut self.entries)
    }
}

/// Whether two sources may have the same path at the destination.
fn may_collide(sources: &[Source]) -> bool {
    if sources.len() > 1 && sources.iter().any(|source| !source.implied.is_empty()) {
        return true;
    }
    let names: HashSet<_> = sources.iter().map(|source| &source.name).collect();
    names.len() < sources.len() || sources.len() > 1 && sources.iter().any(|source| source.name.is_none())
}

impl Teller {
    /// Drops entries that another source has sent under the same path. Directories of the same path are merged. Returns
    /// the directories whose path another source has as something else.
    fn drop_taken(&mut self, directory: &[u8], batch: &mut Vec<Listed>) -> Vec<Vec<u8>> {
        let mut without_place = Vec::new();
        if let Some(seen) = &mut self.seen {
            batch.retain(|Listed { entry, .. }| {
                let is_directory = entry.kind == Kind::Directory;
                let path = join(directory, &entry.name);
                let taken = seen.get(&path).copied();
                match taken {
                    None => drop(seen.insert(path, is_directory)),
                    Some(false) if is_directory => without_place.push(path),
                    Some(_) => {}
                }
                taken.is_none()
            });
        }
        without_place
    }

    /// Whether another source has an entry other than a directory at this path or above, so that the destination has no
    /// such directory.
    fn is_taken(&self, directory: &[u8]) -> bool {
        let Some(seen) = &self.seen else { return false };
        let slashes = directory.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        slashes.chain([directory.len()]).any(|end| seen.get(&directory[..end]) == Some(&false))
    }

    fn new_owners(&mut self, batch: &[Listed]) -> Vec<Owner> {
        let mut owners = Vec::new();
        for Listed { entry, .. } in batch {
            let in_xattrs = entry.xattrs.iter().flat_map(|(name, value)| match Treatment::of(name) {
                Treatment::Acl => owners::ids_in_acl(value),
                Treatment::Capability => owners::id_in_capability(value).map(|id| (false, id)).into_iter().collect(),
                _ => Vec::new(),
            });
            for (group, id) in [(false, entry.user), (true, entry.group)].into_iter().chain(in_xattrs) {
                if self.owners.insert((group, id))
                    && let Some(name) = self.names.of(group, id)
                {
                    owners.push(Owner { group, id, name });
                }
            }
        }
        owners
    }
}
