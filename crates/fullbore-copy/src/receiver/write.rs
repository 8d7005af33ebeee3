//! The writers: threads that verify records and write their files.
//!
//! First the hash, then the content under a temporary name, with all attributes; then the committer gives the final
//! name. The acknowledgement is sent when a record is verified and written.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::stage::StageClock;
use rustix::fs::Stat;
use rustix::io::Errno;

use super::arrived::Arrived;
use super::attributes::{Attributes, Failures};
use super::backup::Backup;
use super::base::{Base, Bases, Match};
use super::bulk::Bulk;
use super::commit::{Commit, Finished, disk, is_fatal};
use super::compare::Comparing;
use super::held::{Held, entry_bytes};
use super::journal::Boot;
use super::opened::Opened;
use super::partial::{self, Found, Partial, Progress, Promised, RequestedFile};
use super::shared::Shared;
use super::tree::{Folder, Tree};
use super::verify::{Verify, Written};
use crate::entry::{Entry, join};
use crate::error::CopyError;
use crate::item::Update;
use crate::names;
use crate::session::{Context, Event, add};
use crate::wire::{Block, Message, Pack, Payload, ProblemKind, Run, Segment, block_len, blocks};

/// Unit in which holes in small files are found, in bytes: the page size of most machines.
const PAGE_BYTES: usize = 4096;

/// State of a requested file.
pub(super) enum Pending {
    /// A small file, which arrives within a record.
    Small(RequestedFile),
    /// A big file, of which no block has arrived.
    Big(RequestedFile),
    /// A big file, of which some blocks have arrived.
    Begun(Arc<Partial>),
    /// The sender cannot send it, or the receiver gave it up.
    Lost,
}

/// Requested files by number.
#[derive(Default)]
pub(super) struct PendingFiles {
    files: Mutex<Files>,
}

/// The files, and the memory that their entries take.
#[derive(Default)]
pub(super) struct Files {
    by_id: HashMap<u64, Pending>,
    bytes: u64,
}

impl Files {
    fn get(&self, id: u64) -> Option<&Pending> {
        self.by_id.get(&id)
    }

    pub(super) fn insert(&mut self, id: u64, pending: Pending) {
        self.bytes += pending.bytes();
        self.bytes -= self.by_id.insert(id, pending).map_or(0, |before| before.bytes());
    }

    fn remove(&mut self, id: u64) -> Option<Pending> {
        let pending = self.by_id.remove(&id)?;
        self.bytes -= pending.bytes();
        Some(pending)
    }
}

impl Pending {
    fn bytes(&self) -> u64 {
        match self {
            Pending::Small(asked) | Pending::Big(asked) => entry_bytes(&asked.entry),
            Pending::Begun(partial) => entry_bytes(&partial.entry),
            // No more than its place in the map.
            Pending::Lost => 0,
        }
    }
}

impl PendingFiles {
    pub(super) fn lock(&self) -> MutexGuard<'_, Files> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of memory that the entries take.
    pub(super) fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Records that the sender cannot send a file: further content is discarded. Returns the unfinished file, if there
    /// is one.
    pub(super) fn lose(&self, id: u64) -> Option<Arc<Partial>> {
        let mut files = self.lock();
        let pending = files.remove(id)?;
        files.insert(id, Pending::Lost);
        match pending {
            Pending::Begun(partial) => Some(partial),
            _ => None,
        }
    }

    /// Whether a requested file has neither arrived nor been given up.
    pub(super) fn is_anything_missing(&self) -> bool {
        self.lock().by_id.values().any(|pending| !matches!(pending, Pending::Lost))
    }
}

/// First names of files with several names, and those that lack the source's content. A problem is only recorded for
/// such a name, so that a sender cannot fill memory with made-up paths.
#[derive(Default)]
pub(super) struct Failed {
    firsts: Mutex<HashMap<Vec<u8>, bool>>,
}

impl Failed {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, bool>> {
        self.firsts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records problems with this name from now on.
    pub(super) fn watch(&self, path: &[u8]) {
        self.lock().entry(path.to_vec()).or_insert(false);
    }

    /// Another name has become the first one.
    pub(super) fn forget(&self, path: &[u8]) {
        self.lock().remove(path);
    }

    /// Records a problem, if the path is watched.
    pub(super) fn note(&self, kind: ProblemKind, path: &[u8]) {
        use ProblemKind::{Name, Special, Unreadable, Unwritable, Vanished};
        if matches!(kind, Name | Special | Unreadable | Unwritable | Vanished)
            && let Some(failed) = self.lock().get_mut(path)
        {
            *failed = true;
        }
    }

    /// Whether a first name lacks its content.
    pub(super) fn has(&self, path: &[u8]) -> bool {
        self.lock().get(path) == Some(&true)
    }
}

/// State that all writers share.
pub(super) struct Writers<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) tree: &'a Tree,
    pub(super) attributes: &'a Attributes,
    pub(super) opened: &'a Opened<'a>,
    pub(super) pending: &'a PendingFiles,
    pub(super) failed: &'a Failed,
    pub(super) commit: &'a Commit,
    pub(super) comparing: &'a Comparing,
    pub(super) verify: &'a Verify,
    pub(super) bulk: &'a Bulk,
    pub(super) arrived: &'a Arrived,
    pub(super) shared: &'a Shared,
    pub(super) held: &'a Held,
    pub(super) bases: &'a Bases,
    pub(super) backup: Option<&'a Backup<'a>>,
    pub(super) boot: Boot,
    /// Whether the source is on this machine.
    pub(super) beside_source: bool,
    pub(super) problem: &'a (dyn Fn(ProblemKind, &[u8], String) + Sync),
    pub(super) clock: Arc<StageClock>,
}

impl Writers<'_> {
    /// Writes until no more data arrives.
    pub(super) fn run(&self) {
        let _guard = self.context.cancel.guard();
        self.clock.adopt_thread();
        while let Some(message) = self.context.link.data.pop(&self.clock) {
            let result = match message {
                Message::Pack(pack) => self.pack(pack),
                Message::Block(block) => self.block(block),
                Message::Holes { sequence, id, run } => self.holes(sequence, id, run),
                Message::Same { sequence, id, run } => self.same(sequence, id, run),
                Message::Identical { sequence, id } => self.identical(sequence, id),
                Message::Differs { sequence, id } => self.differs(sequence, id),
                _ => Err(CopyError::Meaning("a control message among the data")),
            };
            if let Err(error) = result {
                return self.context.cancel.cancel(error);
            }
        }
    }

    fn pack(&self, pack: Pack) -> Result<(), CopyError> {
        let sum = pack.files.iter().map(|file| file.length as usize).sum();
        let unpacked = self.decompressed(&pack.payload, pack.compressed, sum)?;
        let content = unpacked.as_deref().unwrap_or(pack.payload.bytes());
        if *blake3::hash(content).as_bytes() != pack.hash {
            return Err(CopyError::Verification { path: "a record of small files".to_owned() });
        }
        let files: Vec<Pending> = {
            let mut pending = self.pending.lock();
            pack.files.iter().map_while(|file| pending.remove(file.id)).collect()
        };
        if files.len() != pack.files.len() {
            return Err(CopyError::Meaning("content of a file that was not requested"));
        }
        let mut open: Option<(Arc<Vec<u8>>, Arc<Folder>)> = None;
        let mut begin = 0;
        for (file, packed) in files.into_iter().zip(&pack.files) {
            let Pending::Small(RequestedFile { directory, entry, share, .. }) = file else {
                return Err(CopyError::Meaning("a big file within a record of small ones"));
            };
            let end = begin + packed.length as usize;
            if u64::from(packed.length) > entry.size {
                return Err(CopyError::Meaning("a file longer than it was listed"));
            }
            let known =
                open.as_ref().filter(|(path, _)| Arc::ptr_eq(path, &directory)).map(|(_, folder)| folder.clone());
            let folder = known.map_or_else(|| self.tree.folder(&directory), Ok);
            let written = folder.and_then(|folder| {
                open = Some((directory.clone(), folder.clone()));
                folder.file_system.take(share);
                self.small(&folder, &entry, &content[begin..end])
            });
            match written {
                Ok(failures) => {
                    let sure = failures.is_empty();
                    self.tell(failures, &directory, &entry);
                    if self.context.options.verify {
                        let hashes = vec![(0, *blake3::hash(&content[begin..end]).as_bytes())];
                        let (name, size) = (entry.name.clone(), u64::from(packed.length));
                        self.verify.note(Written { directory: directory.clone(), name, size, end: size, hashes });
                    }
                    self.finished(packed.id, directory, &entry, u64::from(packed.length), false, sure);
                }
                Err(error) => self.refused(&directory, &entry, error)?,
            }
            begin = end;
        }
        let bytes = content.len() as u64;
        self.clock.add_items(pack.files.len() as u64, bytes);
        add(&self.context.progress.written_bytes, bytes);
        self.give(unpacked);
        self.acknowledge(pack.sequence, pack.payload);
        Ok(())
    }

    /// Decompresses a payload, which must have exactly this length.
    fn decompressed(&self, payload: &Payload, compressed: bool, length: usize) -> Result<Option<Vec<u8>>, CopyError> {
        if !compressed {
            return Ok(None);
        }
        let mut content = self.context.link.pool.take(length);
        let count = zstd::bulk::decompress_to_buffer(payload.bytes(), &mut content[..]);
        if !count.is_ok_and(|count| count == length) {
            return Err(CopyError::Meaning("compressed content of another length"));
        }
        Ok(Some(content))
    }

    fn give(&self, buffer: Option<Vec<u8>>) {
        buffer.into_iter().for_each(|buffer| self.context.link.pool.give(buffer));
    }

    fn small(&self, folder: &Folder, entry: &Entry, content: &[u8]) -> Result<Failures, Errno> {
        let mode = self.attributes.creation_mode(folder, entry);
        self.clock.device(|| {
            let mut file = partial::create(folder, &names::part(&entry.name), mode)?;
            if entry.stored.is_some() {
                write_sparse(&file, content)?;
            } else {
                file.write_all(content).map_err(partial::errno)?;
            }
            Ok(self.attributes.put(&file, mode, folder, entry))
        })
    }

    pub(super) fn tell(&self, failures: Failures, directory: &[u8], entry: &Entry) {
        for (kind, text) in failures {
            (self.problem)(kind, &join(directory, &entry.name), text);
        }
    }

    fn partial(&self, id: u64) -> Result<Option<Arc<Partial>>, CopyError> {
        let mut pending = self.pending.lock();
        if let Some(Pending::Big(_)) = pending.get(id)
            && let Some(Pending::Big(asked)) = pending.remove(id)
        {
            let partial = Arc::new(Partial::new(id, asked, Found::default(), self.context.options.verify));
            self.commit.watch(&partial);
            pending.insert(id, Pending::Begun(partial));
        }
        match pending.get(id) {
            Some(Pending::Begun(partial)) => Ok(Some(partial.clone())),
            Some(Pending::Lost) => Ok(None),
            _ => Err(CopyError::Meaning("a block of a file that was not requested")),
        }
    }

    fn block(&self, block: Block) -> Result<(), CopyError> {
        let Some(partial) = self.partial(block.id)? else {
            self.acknowledge(block.sequence, block.payload);
            return Ok(());
        };
        let expected = block_len(partial.entry.size, block.index);
        if u64::from(block.length) > expected || expected == 0 {
            return Err(CopyError::Meaning("a block beyond the end of its file"));
        }
        let path = || join(&partial.directory, &partial.entry.name);
        let pool = &self.context.link.pool;
        let stored = match &block.segments[..] {
            [] => block.length as usize,
            segments => segments.iter().map(|part| part.length as usize).sum(),
        };
        let unpacked = self.decompressed(&block.payload, block.compressed, stored)?;
        let arrived = unpacked.as_deref().unwrap_or(block.payload.bytes());
        // With its holes, as it was hashed. A block without holes stays where it arrived.
        let spread = (!block.segments.is_empty()).then(|| {
            let mut whole = pool.take(block.length as usize);
            whole.fill(0);
            let mut rest = arrived;
            for part in &block.segments {
                let (content, behind) = rest.split_at(part.length as usize);
                whole[part.offset as usize..][..content.len()].copy_from_slice(content);
                rest = behind;
            }
            whole
        });
        let content = spread.as_deref().unwrap_or(arrived);
        if *blake3::hash(content).as_bytes() != block.hash {
            return Err(CopyError::Verification { path: crate::entry::shown(&path()) });
        }
        let folder = self.tree.folder(&partial.directory);
        let written = folder.and_then(|folder| {
            let mode = self.attributes.unfinished_mode(&folder, &partial.entry);
            let progress =
                self.clock.device(|| partial.write(&block, content, &folder, mode, &self.boot, self.bulk))?;
            Ok((folder, progress))
        });
        self.clock.add_items(0, u64::from(block.length));
        add(&self.context.progress.written_bytes, stored as u64);
        self.after(&partial, written)?;
        self.give(spread);
        self.give(unpacked);
        self.acknowledge(block.sequence, block.payload);
        Ok(())
    }

    fn holes(&self, sequence: u64, id: u64, run: Run) -> Result<(), CopyError> {
        if let Some(partial) = self.partial(id)? {
            if partial.entry.stored.is_none() || run.first + run.count > blocks(partial.entry.size) {
                return Err(CopyError::Meaning("holes where there are none"));
            }
            let written = self.tree.folder(&partial.directory).and_then(|folder| {
                let mode = self.attributes.unfinished_mode(&folder, &partial.entry);
                let progress = self.clock.device(|| partial.holes(run, &folder, mode, &self.boot))?;
                Ok((folder, progress))
            });
            self.after(&partial, written)?;
        }
        self.acknowledge(sequence, Payload::default());
        Ok(())
    }

    /// Takes blocks from the old file, whose hashes the sender has compared.
    fn same(&self, sequence: u64, id: u64, run: Run) -> Result<(), CopyError> {
        for index in run.first..run.first + run.count {
            // The file was given up after one of the previous blocks.
            let Some(partial) = self.partial(id)? else { break };
            let hash = match partial.promised(index) {
                Promised::Hash(hash) => hash,
                Promised::Nothing => return Err(CopyError::Meaning("blocks that were never compared")),
                Promised::Dead => break,
            };
            let folder = self.tree.folder(&partial.directory);
            let written = folder.and_then(|folder| {
                let progress = self.clock.device(|| self.take_old(&partial, &folder, index, hash))?;
                Ok((folder, progress))
            });
            let length = block_len(partial.entry.size, index);
            self.clock.add_items(0, length);
            add(&self.context.progress.written_bytes, length);
            add(&self.context.progress.reused_bytes, length);
            self.after(&partial, written)?;
        }
        self.acknowledge(sequence, Payload::default());
        Ok(())
    }

    fn take_old(&self, partial: &Partial, folder: &Folder, index: u64, hash: [u8; 32]) -> Result<Progress, Errno> {
        let (size, pool) = (partial.entry.size, &self.context.link.pool);
        let mode = self.attributes.unfinished_mode(folder, &partial.entry);
        let mut content = pool.take(block_len(size, index) as usize);
        let base = partial.base.map(|base| self.bases.folder(base, &partial.directory)).transpose()?;
        partial
            .old(self.opened, base.as_deref().unwrap_or(folder))?
            .read_exact_at(&mut content, super::journal::offset(size, index))
            .map_err(partial::errno)?;
        if *blake3::hash(&content).as_bytes() != hash {
            // Someone writes to the old file.
            return Err(Errno::BUSY);
        }
        let segments = if partial.entry.stored.is_some() { segments(&content) } else { Vec::new() };
        let progress = if partial.entry.stored.is_some() && segments.is_empty() {
            partial.holes(Run { first: index, count: 1 }, folder, mode, &self.boot)
        } else {
            let length = content.len() as u32;
            let payload = Payload::default();
            let block =
                Block { sequence: 0, id: partial.id, index, hash, length, segments, compressed: false, payload };
            partial.write(&block, &content, folder, mode, &self.boot, self.bulk)
        };
        pool.give(content);
        progress
    }

    /// The existing file has the content of the source's file.
    fn identical(&self, sequence: u64, id: u64) -> Result<(), CopyError> {
        let unasked = CopyError::Meaning("a file is the same that was never compared");
        let pending = self.pending.lock().remove(id);
        let (directory, entry, compare, base) = match pending {
            Some(Pending::Small(RequestedFile { directory, entry, compare: true, base, .. })) => {
                (directory, entry, true, base)
            }
            Some(Pending::Begun(partial)) if partial.is_compared() => {
                if let Ok(folder) = self.tree.folder(&partial.directory) {
                    partial.give_up(&folder, false);
                }
                (partial.directory.clone(), partial.entry.clone(), partial.compare, partial.base)
            }
            Some(Pending::Lost) => {
                self.acknowledge(sequence, Payload::default());
                return Ok(());
            }
            _ => return Err(unasked),
        };
        let progress = self.context.progress;
        progress.wanted_files.fetch_sub(1, Ordering::Relaxed);
        progress.wanted_bytes.fetch_sub(entry.content_bytes(), Ordering::Relaxed);
        if compare && self.context.options.verify {
            // It was read from the device (see `compare`).
            add(&progress.verified_bytes, entry.size);
        }
        let (folder, path) = (self.tree.folder(&directory), join(&directory, &entry.name));
        if let Some(index) = base {
            let folder = match folder {
                // A dry run has not made the directory.
                Err(_) if self.context.options.dry_run => Ok(None),
                folder => folder.map(Some),
            };
            let taken = folder.and_then(|folder| {
                let from = self.bases.folder(index, &directory)?;
                let status = from.status(&entry.name)?.ok_or(Errno::NOENT)?;
                let has_all = !self.attributes.mend(&from, &entry.name, &status, &entry, true).0;
                let matches = if has_all { Match::All } else { Match::Content };
                self.take_base(id, &path, folder.as_deref(), &entry, &Base { index, folder: from, status, matches })
            });
            if let Err(error) = taken {
                self.refused(&directory, &entry, error)?;
            }
            self.acknowledge(sequence, Payload::default());
            return Ok(());
        }
        let there = folder.and_then(|folder| Ok((folder.status(&entry.name)?.ok_or(Errno::NOENT)?, folder)));
        match there {
            Ok((status, folder)) => self.mend(id, &path, &folder, &status, &entry),
            Err(error) => self.refused(&directory, &entry, error)?,
        }
        self.acknowledge(sequence, Payload::default());
        Ok(())
    }

    /// The existing file differs from the source's; reported if the user wants names.
    fn differs(&self, sequence: u64, id: u64) -> Result<(), CopyError> {
        let (directory, entry, base) = match self.pending.lock().get(id) {
            Some(Pending::Small(asked) | Pending::Big(asked)) => {
                (asked.directory.clone(), asked.entry.clone(), asked.base)
            }
            Some(Pending::Begun(partial)) => (partial.directory.clone(), partial.entry.clone(), partial.base),
            _ => return Err(CopyError::Meaning("a difference in a file that was not requested")),
        };
        let path = join(&directory, &entry.name);
        if self.context.options.itemize.is_on() {
            let folder = match base {
                Some(base) => self.bases.folder(base, &directory),
                None => self.tree.folder(&directory),
            };
            let there = folder.and_then(|folder| Ok(folder.status(&entry.name)?.map(|status| (folder, status))));
            let there = there.ok().flatten();
            let there = there.as_ref().map(|(folder, status)| (&**folder, status));
            self.itemize_content(Update::Transfer, &path, &entry, there, true);
        }
        if self.context.options.tell_names {
            self.context.tell.tell(Event::Wanted(path));
        }
        self.acknowledge(sequence, Payload::default());
        Ok(())
    }

    /// Corrects the attributes of a file with the right content. If it has other names here, that is postponed to the
    /// end.
    pub(super) fn mend(&self, id: u64, path: &[u8], folder: &Folder, status: &Stat, entry: &Entry) {
        if !self.put_off(id, path, folder, status, entry) {
            self.itemize(Update::Attributes, path, entry, Some((folder, status)));
            self.mend_now(id, path, folder, status, entry);
        }
    }

    /// Corrects the attributes of an existing entry, whatever other names it has.
    pub(super) fn mend_now(&self, id: u64, path: &[u8], folder: &Folder, status: &Stat, entry: &Entry) {
        let options = self.context.options;
        let (differs, failures) = self.attributes.mend(folder, &entry.name, status, entry, options.dry_run);
        if failures.is_empty() {
            self.kept(id, path, status, entry);
        }
        for (kind, text) in failures {
            (self.problem)(kind, path, text);
        }
        let progress = self.context.progress;
        add(if differs { &progress.retouched } else { &progress.kept }, 1);
    }

    /// Counts a link, device or directory that is made, or would be in a dry run.
    pub(super) fn made(&self, path: &[u8]) {
        add(&self.context.progress.made, 1);
        if self.context.options.tell_names {
            self.context.tell.tell(Event::Wanted(path.to_vec()));
            // A closed queue belongs to a run that ends; the cancel token has the reason.
            let _ = self.context.link.control_out.push(Message::Made { path: path.to_vec() }, &self.clock);
        }
    }

    /// Reports an entry that the source may remove, unless it is the source's own through a link or a mount.
    pub(super) fn kept(&self, id: u64, path: &[u8], status: &Stat, entry: &Entry) {
        if !self.context.options.remove_source_files {
            return;
        }
        if self.beside_source && (status.st_dev, status.st_ino) == (entry.identity.device, entry.identity.inode) {
            let text = "it is the same at the source and at the destination".to_owned();
            return (self.problem)(ProblemKind::Undeleted, path, text);
        }
        if !self.context.options.dry_run {
            self.commit.named(id);
        }
    }

    /// Finishes a big file after its last block. Gives it up if it cannot be written.
    fn after(&self, partial: &Arc<Partial>, written: Result<(Arc<Folder>, Progress), Errno>) -> Result<(), CopyError> {
        match written {
            Ok((folder, Progress::Whole(file))) => self.whole(partial, &folder, &file),
            Ok((_, Progress::More | Progress::Dead)) => Ok(()),
            Err(error) => {
                // Do this first: another thread that finds the file given up must not take the sender's answers for a
                // lie.
                self.pending.lock().insert(partial.id, Pending::Lost);
                if let Ok(folder) = self.tree.folder(&partial.directory) {
                    partial.give_up(&folder, is_fatal(error));
                }
                self.refused(&partial.directory, &partial.entry, error)
            }
        }
    }

    /// All blocks of a file are there.
    pub(super) fn whole(&self, partial: &Arc<Partial>, folder: &Folder, file: &File) -> Result<(), CopyError> {
        self.pending.lock().remove(partial.id);
        let failures = self.clock.device(|| {
            let mode = self.attributes.present_mode(file, folder, &partial.entry);
            self.attributes.put(file, mode, folder, &partial.entry)
        });
        let sure = failures.is_empty();
        self.tell(failures, &partial.directory, &partial.entry);
        self.clock.add_items(1, 0);
        let (directory, entry) = (partial.directory.clone(), &partial.entry);
        if let (end, Some(hashes)) = partial.written() {
            let (name, size) = (entry.name.clone(), entry.size);
            self.verify.note(Written { directory: directory.clone(), name, size, end, hashes });
        }
        self.finished(partial.id, directory, entry, entry.size, true, sure);
        Ok(())
    }

    /// Hands a file over to the committer.
    pub(super) fn finished(&self, id: u64, directory: Arc<Vec<u8>>, entry: &Entry, bytes: u64, big: bool, sure: bool) {
        add(&self.context.progress.files, 1);
        let finished = Finished { id, directory, name: entry.name.clone(), bytes, big, sure };
        self.commit.finished(finished, &self.clock);
    }

    fn refused(&self, directory: &[u8], entry: &Entry, error: Errno) -> Result<(), CopyError> {
        let path = join(directory, &entry.name);
        if is_fatal(error) {
            return Err(disk(&path, error.into()));
        }
        (self.problem)(ProblemKind::Unwritable, &path, std::io::Error::from(error).to_string());
        Ok(())
    }

    fn acknowledge(&self, sequence: u64, payload: Payload) {
        self.context.link.pool.give(payload.into_buffer());
        let _ = self.context.link.control_out.push(Message::Acknowledge { sequence }, &self.clock);
        if self.arrived.another() {
            self.context.link.control_in.nudge();
        }
    }
}

/// The parts of a block that are not zeros, in whole pages.
fn segments(content: &[u8]) -> Vec<Segment> {
    let mut segments: Vec<Segment> = Vec::new();
    for (number, page) in content.chunks(PAGE_BYTES).enumerate() {
        if page.iter().all(|byte| *byte == 0) {
            continue;
        }
        let (offset, length) = ((number * PAGE_BYTES) as u32, page.len() as u32);
        match segments.last_mut() {
            Some(last) if last.offset + last.length == offset => last.length += length,
            _ => segments.push(Segment { offset, length }),
        }
    }
    segments
}

/// Writes a small file without the pages that are all zeros.
fn write_sparse(file: &File, content: &[u8]) -> Result<(), Errno> {
    rustix::fs::ftruncate(file, content.len() as u64)?;
    for (number, page) in content.chunks(PAGE_BYTES).enumerate() {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, (number * PAGE_BYTES) as u64).map_err(partial::errno)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use partial::tests::asked;

    #[test]
    fn what_the_sender_cannot_send_is_known_at_every_moment() {
        let pending = PendingFiles::default();
        let partial = Arc::new(Partial::new(0, asked(b"file", 3 << 20), Found::default(), false));
        pending.lock().insert(0, Pending::Begun(partial));
        pending.lock().insert(1, Pending::Small(asked(b"file", 3)));
        pending.lock().insert(2, Pending::Big(asked(b"file", 3 << 20)));
        assert!(pending.is_anything_missing());
        assert!(pending.lose(0).is_some() && (1..4).all(|id| pending.lose(id).is_none()));
        assert!((0..3).all(|id| matches!(pending.lock().get(id), Some(Pending::Lost))));
        assert!(!pending.is_anything_missing());
        assert_eq!(pending.bytes(), 0);
    }

    #[test]
    fn problems_of_made_up_paths_take_no_memory() {
        let failed = Failed::default();
        failed.watch(b"first");
        for number in 0..100_000 {
            failed.note(ProblemKind::Unwritable, format!("made up/{number}").as_bytes());
        }
        failed.note(ProblemKind::Times, b"first");
        assert!(!failed.has(b"first"));
        failed.note(ProblemKind::Vanished, b"first");
        assert!(failed.has(b"first") && !failed.has(b"made up/1"));
        assert_eq!(failed.lock().len(), 1);
    }
}
