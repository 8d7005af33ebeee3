//! The end of a successful copy: separates shared files, makes hard links, deletes, sets attributes of directories.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use fullbore_engine::durability::Durability;
use fullbore_engine::stage::{Kind as Clock, StageClock};
use rustix::fs::{AtFlags, FileType, Stat};
use rustix::io::Errno;

use super::attributes::{change_mode, times};
use super::backup::Backup;
use super::commit;
use super::listing::{LinkLater, Listing, allocated, list, parts};
use super::marker::Marker;
use super::opened::is_closed;
use super::shared::{From, Later};
use super::tree::Folder;
use super::write::Writers;
use crate::entry::{Entry, Kind, join};
use crate::error::CopyError;
use crate::names::{self, MARKER};
use crate::session::{Event, add};
use crate::wire::{Message, ProblemKind};

/// Least directories or links per thread. A smaller number is done before another thread would start.
const EACH: usize = 500;
/// Greatest depth of directories that are deleted. A longer path cannot be named anyway.
pub(super) const DEPTH: usize = 2048;

/// Result of making a hard link.
enum Linked {
    /// The name is a link to this file.
    Is(Stat),
    /// The name is not a link: the run is dry, or a problem was reported.
    Not,
    /// The name cannot be a link, for this reason, and will be a copy.
    Copy(Errno),
}

impl Writers<'_> {
    /// All files have their names: does the rest, and flushes everything. A dry run, which sets no marker, ends before
    /// the flush.
    pub(super) fn finish(
        &self,
        listing: &mut Listing<'_>,
        errors: &AtomicU64,
        marker: Option<&Marker>,
        threads: usize,
    ) -> Result<(), CopyError> {
        self.clock.adopt_thread();
        self.mark_changed();
        self.separate(threads)?;
        self.links(&std::mem::take(&mut listing.links), threads)?;
        let without_errors = errors.load(Ordering::Relaxed) == 0;
        if self.may_delete(errors) {
            self.make_way()?;
            self.delete(listing)?;
        } else {
            self.tell_waiting();
        }
        let Some(marker) = marker else { return Ok(()) };
        if without_errors {
            self.clean(listing);
        }
        let in_the_way = &self.commit.in_the_way;
        self.verify.forget(in_the_way);
        let clock = self.context.ledger.stage("sync", Clock::Thread);
        // While the marker exists: if this run is interrupted here, the next one has to read back all files that it
        // named.
        let verified = if self.context.options.verify {
            self.flush(&clock)?;
            self.verify.run(self.context, (self.tree, self.opened), threads, self.problem)
        } else {
            Ok(0)
        };
        // Remove the marker before attributes of directories are set, as it is in one. It stays while something is
        // missing: the next run then continues with the files of an interrupted run, or with files that wait for
        // deletions.
        if matches!(verified, Ok(0)) && (without_errors || listing.torn.is_none() && !in_the_way.is_waited_for()) {
            marker.remove(self.tree.root())?;
        }
        let account = self.context.progress.account();
        if account.files + account.made + account.deleted == 0 {
            // Nothing was changed, so restore the directory's time; a failure does no harm.
            let _ = rustix::fs::futimens(self.tree.root(), &times(marker.before));
        }
        self.directories(listing, threads);
        self.flush(&clock)?;
        let unread = verified?;
        if let (Some(paths), Some(kind)) = (listing.hashed.take(), self.context.options.hashes) {
            self.tell_hashes(paths, kind, threads)?;
        }
        if self.context.options.remove_source_files {
            // Any of the files may be the one that could not be read back.
            let named = if unread == 0 { self.commit.take_named() } else { Vec::new() };
            commit::tell_visible(self.context, &named, true, &clock);
            return self.hear_removed();
        }
        Ok(())
    }

    /// Whether the user wants deletions, and no error forbids them.
    pub(super) fn may_delete(&self, errors: &AtomicU64) -> bool {
        let options = self.context.options;
        options.delete && (options.ignore_errors || errors.load(Ordering::Relaxed) == 0)
    }

    /// Whether a name of the destination stays, whatever the source has.
    pub(super) fn protects(&self, path: &[u8], is_directory: bool) -> bool {
        let options = self.context.options;
        !options.delete_excluded && options.filters.excludes(path, is_directory)
            || self.backup.is_some_and(|backup| backup.protects(path))
    }

    pub(super) fn flush(&self, clock: &StageClock) -> Result<(), CopyError> {
        if self.context.options.durability != Durability::None {
            let began = Instant::now();
            commit::flush(self.tree, clock)?;
            add(&self.context.progress.sync_us, u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// Waits until the sender has removed its files, and reports those that it could not remove.
    fn hear_removed(&self) -> Result<(), CopyError> {
        while let Some(message) = self.context.link.control_in.pop(&self.clock) {
            match message {
                Message::Removed { .. } => return Ok(()),
                Message::Problem(problem) => self.context.tell.tell(Event::Problem(problem)),
                Message::Abort { exit_code, text } => return Err(CopyError::told(exit_code, text)),
                Message::Counters(_) | Message::Lost { .. } => {}
                _ => return Err(CopyError::Meaning("content after the end")),
            }
        }
        Err(CopyError::Network("the connection broke before the source's files were removed".to_owned()))
    }

    /// Applies `work` to each item, in several threads.
    pub(super) fn share_out<T: Sync>(&self, all: &[T], threads: usize, work: impl Fn(&T) + Sync) {
        let mut shares = all.chunks(all.len().div_ceil(threads).max(EACH));
        let own = shares.next().unwrap_or_default();
        let work = &work;
        std::thread::scope(|scope| {
            for others in shares {
                scope.spawn(move || {
                    let _guard = self.context.cancel.guard();
                    self.clock.adopt_thread();
                    others.iter().for_each(work);
                });
            }
            own.iter().for_each(work);
        });
    }

    /// Makes the further names of files that have several.
    ///
    /// # Errors
    /// [`CopyError::Disk`] with the path if the destination itself fails. Links that cannot be made are reported as
    /// problems.
    fn links(&self, links: &[LinkLater], threads: usize) -> Result<(), CopyError> {
        let state = Mutex::new((Vec::new(), None));
        let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
        self.share_out(links, threads, |link| {
            if lock().1.is_some() {
                return;
            }
            match self.link(link) {
                Ok(copy) => lock().0.extend(copy),
                Err(error) => drop(lock().1.get_or_insert(error)),
            }
        });
        let (copies, error) = state.into_inner().unwrap_or_else(PoisonError::into_inner);
        error.map_or(Ok(()), Err)?;
        self.set_apart(&copies.iter().collect::<Vec<_>>(), threads)
    }

    /// Makes one further name of a file. Returns the copy to make if a link is impossible.
    fn link(&self, link: &LinkLater) -> Result<Option<Later>, CopyError> {
        let path = join(&link.directory, &link.entry.name);
        let linked = if self.context.options.dry_run { self.would_link(link, &path) } else { self.link_one(link) };
        match linked {
            Ok(Linked::Is(status)) => self.kept(link.id, &path, &status, &link.entry),
            Ok(Linked::Not) => {}
            Ok(Linked::Copy(error)) => {
                let from = From::First { first: link.first.clone(), error };
                return Ok(Some(Later { id: link.id, path, entry: link.entry.clone(), from }));
            }
            Err(error) => self.not_separated(&path, error)?,
        }
        Ok(None)
    }

    /// Reports a link that a dry run would make.
    fn would_link(&self, link: &LinkLater, path: &[u8]) -> Result<Linked, Errno> {
        let status = |directory: &[u8], name: &[u8]| self.tree.folder(directory).ok()?.status(name).ok()?;
        let is_new = || {
            let first = join(&link.first.directory, &link.first.name);
            link.first.is_wanted || self.shared.would_separate(&first)
        };
        let first = status(&link.first.directory, &link.first.name).filter(|_| !is_new());
        let there = status(&link.directory, &link.entry.name);
        let same = there.filter(|there| first.is_some_and(|first| is_same(there, &first)));
        match &same {
            Some(_) => add(&self.context.progress.kept, 1),
            None => {
                let folder = self.tree.folder(&link.directory).ok();
                self.itemize_link(link, path, folder.as_deref().zip(there.as_ref()));
                self.made(path);
            }
        }
        Ok(same.map_or(Linked::Not, Linked::Is))
    }

    fn link_one(&self, link: &LinkLater) -> Result<Linked, Errno> {
        let progress = self.context.progress;
        let first = &link.first;
        let (from, to) = (self.tree.folder(&first.directory)?, self.tree.folder(&link.directory)?);
        let name = &link.entry.name[..];
        let there = to.status(name)?;
        // The existing file may be an earlier copy's, of another source file.
        let from_path = join(&first.directory, &first.name);
        let is_there = !self.failed.has(&from_path);
        let from_name = &self.commit.in_the_way.present_name(&from_path);
        let first = from.status(from_name)?.filter(|_| is_there).ok_or(Errno::NOENT)?;
        if there.is_some_and(|there| is_same(&there, &first)) {
            add(&progress.kept, 1);
            return Ok(Linked::Is(first));
        }
        let own = if there.is_some() { names::part(name) } else { name.to_vec() };
        if there.is_some() {
            to.unlink(&own)?;
        }
        let path = join(&link.directory, name);
        self.itemize_link(link, &path, Some(&*to).zip(there.as_ref()));
        match rustix::fs::linkat(&from, &from_name[..], &to, &own[..], AtFlags::empty()) {
            Ok(()) => {}
            // Another mount, a file system without hard links, or too many names: copy the content at least.
            Err(error @ (Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP))
                if link.entry.kind == Kind::File =>
            {
                return Ok(Linked::Copy(error));
            }
            Err(error) => return Err(error),
        }
        if there.is_some() && !self.commit.in_the_way.is_followed(&path) {
            if !self.backup.map_or(Ok(true), |backup| backup.keep(&to, &path, self.problem))? {
                let _ = to.discard(&own);
                return Ok(Linked::Not);
            }
            to.rename(&own, name).inspect_err(|_| {
                let _ = to.discard(&own);
            })?;
        }
        self.made(&path);
        Ok(Linked::Is(first))
    }

    fn itemize_link(&self, link: &LinkLater, path: &[u8], there: Option<(&Folder, &Stat)>) {
        let there = there.filter(|(_, status)| Kind::of_mode(status.st_mode) == Some(link.entry.kind));
        self.item_of_link(path, &link.entry, &join(&link.first.directory, &link.first.name), there);
    }

    /// Bytes that deletions would free at the end, as far as known.
    pub(super) fn deletable_bytes(&self, listing: &Listing<'_>) -> u64 {
        let extras =
            listing.extras.iter().flat_map(|(directory, names)| names.iter().map(move |name| (directory, name)));
        let extras = extras.map(|(directory, name)| join(directory, name));
        extras.chain(self.commit.in_the_way.paths()).map(|path| self.allocated_bytes(&path, 0)).sum()
    }

    /// Bytes that a name and everything below it occupy, in files without other names.
    fn allocated_bytes(&self, path: &[u8], depth: usize) -> u64 {
        let (directory, name) = parts(path);
        let status = self.tree.folder(directory).and_then(|folder| folder.status(name)).ok().flatten();
        let Some(status) = status.filter(|_| depth <= DEPTH) else { return 0 };
        if Kind::of_mode(status.st_mode) != Some(Kind::Directory) {
            return if status.st_nlink > 1 { 0 } else { allocated(&status) };
        }
        let names = self.tree.folder(path).and_then(|folder| list(&folder)).unwrap_or_default();
        let stays = |path: &[u8], kind: &FileType| self.protects(path, *kind == FileType::Directory);
        let paths = names.into_iter().map(|(name, kind)| (join(path, &name), kind));
        paths.filter(|(path, kind)| !stays(path, kind)).map(|(path, _)| self.allocated_bytes(&path, depth + 1)).sum()
    }

    /// Deletes before any content arrives, to free space.
    pub(super) fn delete_first(&self, listing: &mut Listing<'_>, errors: &AtomicU64) -> Result<(), CopyError> {
        if self.may_delete(errors) {
            self.clear_way()?;
            self.delete(listing)?;
        }
        Ok(())
    }

    /// Deletes what the source does not have, until the run is cancelled. A dry run only reports it.
    pub(super) fn delete(&self, listing: &mut Listing<'_>) -> Result<(), CopyError> {
        for (directory, extras) in std::mem::take(&mut listing.extras) {
            let Ok(folder) = self.tree.folder(&directory) else { continue };
            for name in extras {
                let path = join(&directory, &name);
                match folder.status(&name) {
                    Ok(Some(status)) => {
                        let kind = FileType::from_raw_mode(status.st_mode);
                        self.delete_one(&folder, &name, kind, &path, 0);
                    }
                    Ok(None) => {}
                    Err(error) => self.undeleted(&path, error),
                }
                if self.context.cancel.is_cancelled() {
                    return Err(CopyError::Interrupted);
                }
            }
        }
        Ok(())
    }

    fn undeleted(&self, path: &[u8], error: Errno) {
        (self.problem)(ProblemKind::Undeleted, path, std::io::Error::from(error).to_string());
    }

    /// Removes files that earlier runs left for files that the source no longer has. All current files have their
    /// names.
    fn clean(&self, listing: &mut Listing<'_>) {
        let mut others: Vec<Arc<Vec<u8>>> = Vec::new();
        for directory in std::mem::take(&mut listing.visited) {
            let Ok(folder) = self.tree.folder(&directory) else { continue };
            let Ok(names) = list(&folder) else { continue };
            if !directory.is_empty() && names.iter().any(|(name, _)| name == MARKER) {
                others.push(directory.clone());
            }
            // Another copy writes there, or will continue there.
            if others.iter().any(|other| is_below(&directory, other)) {
                continue;
            }
            for (name, _) in names.iter().filter(|(name, _)| names::is_ours(name) && name != MARKER) {
                if let Err(error) = folder.discard(name) {
                    self.undeleted(&join(&directory, name), error);
                }
            }
        }
    }

    /// Deletes an entry with everything in it. Returns false if something stays and was reported.
    pub(super) fn delete_one(&self, folder: &Folder, name: &[u8], kind: FileType, path: &[u8], depth: usize) -> bool {
        if self.context.cancel.is_cancelled() {
            return false;
        }
        let options = self.context.options;
        if !self.may_delete_more(path) {
            return false;
        }
        let is_dry = self.context.options.dry_run;
        let deleted = match kind {
            FileType::Directory => self.empty(folder, name, path, depth).and_then(|is_empty| match is_empty {
                // The entries in the directory count, too.
                true if !self.may_delete_more(path) => Ok(false),
                true if !is_dry => rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR).map(|()| true),
                is_empty => Ok(is_empty),
            }),
            _ if is_dry => Ok(true),
            _ => match self.backup {
                Some(backup) => backup.take(folder, name, path, self.problem),
                None => folder.unlink(name).map(|()| true),
            },
        };
        match deleted {
            Ok(true) => {
                add(&self.context.progress.deleted, 1);
                // rsync shows directories with a slash.
                let is_marked = options.itemize.is_on() && kind == FileType::Directory;
                let path = &if is_marked { [path, b"/"].concat() } else { path.to_vec() };
                self.context.tell.tell(Event::Deleted(path.to_vec()));
                let _ = self.context.link.control_out.push(Message::Deleted { path: path.to_vec() }, &self.clock);
                true
            }
            Ok(false) => false,
            Err(error) => {
                self.undeleted(path, error);
                false
            }
        }
    }

    /// Whether `--max-delete` allows another deletion; reports a problem if not.
    fn may_delete_more(&self, path: &[u8]) -> bool {
        let deleted = self.context.progress.deleted.load(Ordering::Relaxed);
        let may = self.context.options.max_delete.is_none_or(|most| deleted < most);
        if !may {
            (self.problem)(ProblemKind::MaxDelete, path, "the limit of --max-delete is reached".to_owned());
        }
        may
    }

    /// Empties a directory, even if its permissions deny that but allow us to change them. Returns false if something
    /// stays and was reported.
    fn empty(&self, folder: &Folder, name: &[u8], path: &[u8], depth: usize) -> Result<bool, Errno> {
        let closed = folder.status(name)?.filter(is_closed);
        let change = |mode| change_mode(&folder.descriptor, name, mode);
        let Some(mode) = closed.map(|status| status.st_mode & 0o7777).filter(|_| !self.context.options.dry_run) else {
            return self.empty_open(folder, path, depth);
        };
        change(mode | 0o700)?;
        let is_empty = self.empty_open(folder, path, depth);
        if !matches!(is_empty, Ok(true)) {
            change(mode)?;
        }
        is_empty
    }

    fn empty_open(&self, folder: &Folder, path: &[u8], depth: usize) -> Result<bool, Errno> {
        if depth > DEPTH {
            return Err(Errno::NAMETOOLONG);
        }
        let options = self.context.options;
        self.tree.forget(path);
        let inner = self.tree.folder(path)?;
        if options.one_file_system && inner.device != folder.device {
            // A mounted file system is not part of this copy.
            return Err(Errno::BUSY);
        }
        let (mut is_protected, mut is_empty) = (false, true);
        for (name, kind) in list(&inner)? {
            let path = join(path, &name);
            // Excluded names are protected, so their directory stays as well.
            if self.protects(&path, kind == FileType::Directory) {
                is_protected = true;
            } else {
                is_empty &= self.delete_one(&inner, &name, kind, &path, depth + 1);
            }
        }
        // Backups of its files may be in the directory.
        let has_backups = is_empty && !options.dry_run && self.backup.is_some_and(Backup::is_beside);
        let has_backups = has_backups && !is_protected && !list(&inner)?.is_empty();
        drop(inner);
        self.tree.forget(path);
        if is_protected || has_backups {
            let what = if has_backups { "there are backups in it" } else { "there is something excluded in it" };
            (self.problem)(ProblemKind::Protected, path, what.to_owned());
        }
        let is_protected = is_protected || has_backups;
        Ok(is_empty && !is_protected)
    }

    /// Sets the attributes of directories, after the last change that affects their times. Deepest first, as the
    /// parent's attributes may deny access; those of equal depth in several threads.
    fn directories(&self, listing: &mut Listing<'_>, threads: usize) {
        let mut directories = std::mem::take(&mut listing.directories);
        let depth = |(path, _): &(Vec<u8>, Box<Entry>)| {
            path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()).count()
        };
        directories.sort_by_cached_key(|directory| std::cmp::Reverse(depth(directory)));
        for level in directories.chunk_by(|one, two| depth(one) == depth(two)) {
            self.share_out(level, threads, |(path, entry)| self.directory(path, entry));
        }
    }

    fn directory(&self, path: &[u8], entry: &Entry) {
        let result = self.tree.folder(path).and_then(|folder| {
            let status = rustix::fs::fstat(&*folder)?;
            if self.context.options.permissions {
                self.opened.settle(path);
            }
            Ok(self.attributes.mend(&folder, b".", &status, entry, false).1)
        });
        match result {
            Ok(failures) => {
                for (kind, text) in failures {
                    (self.problem)(kind, path, text);
                }
            }
            Err(error) => (self.problem)(ProblemKind::Unwritable, path, std::io::Error::from(error).to_string()),
        }
    }
}

/// Whether two names are of the same file.
fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// Whether a path is this directory, or below it.
fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
}
