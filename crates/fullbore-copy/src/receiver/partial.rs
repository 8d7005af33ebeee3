//! A big file while its blocks arrive, in any order and from several threads.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fullbore_engine::files::reserve_room;
use rustix::fs::{FallocateFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::bulk::{BULK_BYTES, Bulk, Target};
use super::free_space::Share;
use super::journal::{self, Boot, Entered, Header, Journal};
use super::opened::Opened;
use super::runs::Runs;
use super::tree::Folder;
use super::verify::Hashes;
use crate::entry::Entry;
use crate::names;
use crate::wire::{Block, Run, block_bytes, block_len, blocks};

/// A file whose content the receiver has requested.
#[derive(Debug)]
pub(super) struct RequestedFile {
    /// Its directory below the destination.
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) entry: Box<Entry>,
    /// Its share of its file system's space.
    pub(super) share: Share,
    /// Whether the sender waits for hashes of the existing file, and may answer that it is equal.
    pub(super) compare: bool,
    /// The base that has the old file; `None` if the destination has it.
    pub(super) base: Option<usize>,
}

/// An unfinished file.
#[derive(Debug)]
pub(super) struct Partial {
    pub(super) id: u64,
    /// Its directory below the destination.
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) entry: Box<Entry>,
    share: Share,
    /// Whether the existing file was compared before anything was sent.
    pub(super) compare: bool,
    /// The base that has the old file; `None` if the destination has it.
    pub(super) base: Option<usize>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<Arc<File>>,
    /// The same file, opened for direct writes.
    direct: Option<Arc<File>>,
    journal: Option<Journal>,
    done: Runs,
    left: u64,
    /// End of the source's file when it was read, if it had become shorter than listed.
    end: Option<u64>,
    /// The file of an earlier run and its valid blocks, to continue with.
    resumed: Option<(File, Vec<Entered>)>,
    /// Whether the file was given up, so that further content is discarded.
    dead: bool,
    /// Hashes of blocks of the old file, as they were sent to the sender.
    promised: HashMap<u64, [u8; 32]>,
    /// The old file, open for reading.
    old: Option<Arc<File>>,
    /// Hashes of written blocks, if the file will be read back.
    hashes: Option<Hashes>,
}

/// Valid blocks that an earlier run left.
#[derive(Debug, Default)]
pub(super) struct Found {
    part: Option<File>,
    blocks: Vec<Entered>,
}

impl Found {
    /// Whether there are no valid blocks.
    pub(super) fn is_empty(&self) -> bool {
        self.part.is_none()
    }

    /// Finds the valid blocks that an earlier run left of a file, and removes useless leftovers. The names are
    /// predictable, so another user with write access may have made the files: only files of our own count (see
    /// [`is_own`]). If the earlier run `lost` unflushed data, memory may still have it but the disk never will. In that
    /// case nothing is read.
    pub(super) fn read(folder: &Folder, entry: &Entry, boot: &Boot, lost: bool) -> Result<Found, Errno> {
        let (part, journal) = (names::part(&entry.name), names::blocks(&entry.name));
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let text = match rustix::fs::openat(folder, &journal[..], OFlags::RDONLY | flags, Mode::empty()) {
            Ok(file) => {
                let mut text = Vec::new();
                if is_own(folder, &file)? {
                    File::from(file).take(journal::JOURNAL_BYTES).read_to_end(&mut text).map_err(errno)?;
                }
                text
            }
            // A link cannot be a journal of ours.
            Err(Errno::LOOP) => Vec::new(),
            Err(Errno::NOENT) => return Ok(Found::default()),
            Err(error) => return Err(error),
        };
        let header = Header::of(entry, *boot, folder.file_system.mount);
        let contents = journal::parse(&text).filter(|contents| contents.header.is_same_source(&header));
        let file = rustix::fs::openat(folder, &part[..], OFlags::RDWR | flags, Mode::empty()).map(File::from);
        let file = match file {
            Ok(file) if is_own(folder, &file)? => Some(file),
            _ => None,
        };
        let (Some(contents), Some(file)) = (contents, file) else {
            folder.discard(&part)?;
            folder.discard(&journal)?;
            return Ok(Found::default());
        };
        let (same_mount, another_boot) =
            (contents.header.is_same_mount(&header), contents.header.is_another_boot(&header));
        let mut right: Vec<Entered> = Vec::with_capacity(contents.blocks.len());
        for block in contents.blocks {
            if block.flushed || same_mount && !lost {
                right.push(block);
            } else if !lost && is_right(&file, entry.size, &block) {
                right.push(Entered { flushed: another_boot, ..block });
            }
        }
        Ok(Found { part: Some(file), blocks: right })
    }
}

/// Whether only this user can have made the file and can name it: a regular file with one name that this user owns.
/// Someone else's file could receive our content, or pretend to have it already.
fn is_own(folder: &Folder, file: impl AsFd) -> Result<bool, Errno> {
    let status = rustix::fs::fstat(&file)?;
    if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile || status.st_nlink > 1 {
        return Ok(false);
    }
    let user = rustix::process::geteuid().as_raw();
    Ok(status.st_uid == user || folder.file_system.user_of_new_files(folder) == Some(status.st_uid))
}

/// Reads a block of an earlier boot or mount, and compares it with its hash.
fn is_right(file: &File, size: u64, block: &Entered) -> bool {
    let mut buffer = vec![0; block_len(size, block.index) as usize];
    let read = file.read_exact_at(&mut buffer, journal::offset(size, block.index));
    read.is_ok() && *blake3::hash(&buffer).as_bytes() == block.hash
}

pub(super) fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// State of an unfinished file after a write.
#[derive(Debug)]
pub(super) enum Progress {
    /// Blocks are missing.
    More,
    /// All blocks are there.
    Whole(Arc<File>),
    /// The file was given up before.
    Dead,
}

/// What the sender was told about a block of the old file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Promised {
    Hash([u8; 32]),
    Nothing,
    /// The new file was given up, so the answer is not known any more.
    Dead,
}

impl Partial {
    pub(super) fn new(id: u64, asked: RequestedFile, found: Found, verify: bool) -> Partial {
        let RequestedFile { directory, entry, share, compare, base } = asked;
        let mut done = Runs::default();
        let mut left = blocks(entry.size);
        for block in &found.blocks {
            left -= done.add(Run { first: block.index, count: 1 });
        }
        let hashes = verify.then(|| found.blocks.iter().map(|block| (block.index, block.hash)).collect());
        let state = State {
            file: None,
            direct: None,
            journal: None,
            done,
            left,
            end: None,
            resumed: found.part.map(|file| (file, found.blocks)),
            dead: false,
            promised: HashMap::new(),
            old: None,
            hashes,
        };
        Partial { id, directory, entry, share, compare, base, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first missing block from this one on; `None` if no more blocks are expected.
    pub(super) fn missing_from(&self, index: u64) -> Option<u64> {
        let state = self.lock();
        let next = state.done.missing_from(index);
        (!state.dead && next < blocks(self.entry.size)).then_some(next)
    }

    /// Records the hash of a block of the old file, before it is sent to the sender.
    pub(super) fn promise(&self, index: u64, hash: [u8; 32]) {
        self.lock().promised.insert(index, hash);
    }

    /// What the sender was told about a block of the old file.
    pub(super) fn promised(&self, index: u64) -> Promised {
        let state = self.lock();
        match state.promised.get(&index) {
            _ if state.dead => Promised::Dead,
            Some(hash) => Promised::Hash(*hash),
            None => Promised::Nothing,
        }
    }

    /// Whether the sender got the hash of any block of the old file.
    pub(super) fn is_compared(&self) -> bool {
        !self.lock().promised.is_empty()
    }

    /// Opens the old file in this directory.
    pub(super) fn old(&self, opened: &Opened<'_>, folder: &Folder) -> Result<Arc<File>, Errno> {
        if let Some(old) = &self.lock().old {
            return Ok(old.clone());
        }
        let old = Arc::new(super::compare::open(opened, folder, &self.entry.name)?);
        self.lock().old = Some(old.clone());
        Ok(old)
    }

    /// The end of the file, and the hashes of its blocks if they were kept.
    pub(super) fn written(&self) -> (u64, Option<Hashes>) {
        let mut state = self.lock();
        (state.end.unwrap_or(self.entry.size), state.hashes.take())
    }

    /// The blocks that are there, for the answer to the sender.
    pub(super) fn have(&self) -> Vec<Run> {
        self.lock().done.iter().collect()
    }

    /// Bytes of the blocks that are there.
    pub(super) fn have_bytes(&self) -> u64 {
        self.have().iter().map(|run| run.count * block_bytes(self.entry.size)).sum::<u64>().min(self.entry.size)
    }

    /// Opens the file of an earlier run that has all blocks already.
    pub(super) fn whole(&self, folder: &Folder, mode: Mode, boot: &Boot) -> Result<Option<Arc<File>>, Errno> {
        let mut state = self.lock();
        if state.left > 0 {
            return Ok(None);
        }
        self.open(&mut state, folder, mode, boot)?;
        Ok(state.file.take())
    }

    /// Writes a verified block.
    ///
    /// # Errors
    /// The error of creating or writing the file or its journal. The caller then gives the file up.
    pub(super) fn write(
        &self,
        block: &Block,
        content: &[u8],
        folder: &Folder,
        mode: Mode,
        boot: &Boot,
        bulk: &Bulk,
    ) -> Result<Progress, Errno> {
        let begin = journal::offset(self.entry.size, block.index);
        let file = {
            let mut state = self.lock();
            if state.dead || state.done.has(block.index) {
                return Ok(Progress::Dead);
            }
            self.open(&mut state, folder, mode, boot)?
        };
        if block.segments.is_empty() && self.entry.size >= BULK_BYTES {
            let direct = || self.direct(folder, &file);
            bulk.write(&Target { device: folder.device(), file: &file, direct: &direct }, content, begin)?;
        } else if block.segments.is_empty() {
            file.write_all_at(content, begin).map_err(errno)?;
        } else {
            for part in &block.segments {
                let (from, to) = (part.offset as usize, (part.offset + part.length) as usize);
                file.write_all_at(&content[from..to], begin + u64::from(part.offset)).map_err(errno)?;
            }
        }
        let mut state = self.lock();
        if let Some(hashes) = &mut state.hashes {
            hashes.push((block.index, block.hash));
        }
        if u64::from(block.length) < block_len(self.entry.size, block.index) {
            let end = begin + u64::from(block.length);
            state.end = Some(state.end.map_or(end, |known| known.min(end)));
        } else if let Some(journal) = &mut state.journal {
            journal.enter(block.index, &block.hash).map_err(errno)?;
        }
        self.count(&mut state, Run { first: block.index, count: 1 })
    }

    /// Opens the same file for direct writes.
    fn direct(&self, folder: &Folder, file: &File) -> Result<Arc<File>, Errno> {
        if let Some(direct) = &self.lock().direct {
            return Ok(direct.clone());
        }
        let flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let direct = rustix::fs::openat(folder, names::part(&self.entry.name), flags, Mode::empty())?;
        let (one, other) = (rustix::fs::fstat(&direct)?, rustix::fs::fstat(file)?);
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            // Someone has put another file in its place.
            return Err(Errno::STALE);
        }
        let direct = Arc::new(File::from(direct));
        self.lock().direct = Some(direct.clone());
        Ok(direct)
    }

    /// Counts blocks that are holes. The file has its full length already, so they need no write.
    pub(super) fn holes(&self, run: Run, folder: &Folder, mode: Mode, boot: &Boot) -> Result<Progress, Errno> {
        let mut state = self.lock();
        if state.dead {
            return Ok(Progress::Dead);
        }
        self.open(&mut state, folder, mode, boot)?;
        self.count(&mut state, run)
    }

    fn count(&self, state: &mut State, run: Run) -> Result<Progress, Errno> {
        state.left -= state.done.add(run);
        if state.left > 0 {
            return Ok(Progress::More);
        }
        let Some(file) = state.file.take() else { return Ok(Progress::Dead) };
        state.direct = None;
        state.old = None;
        state.promised = HashMap::new();
        if let Some(end) = state.end {
            rustix::fs::ftruncate(&file, end)?;
        }
        Ok(Progress::Whole(file))
    }

    /// The open file; the first call creates it, or takes over the one of an earlier run.
    fn open(&self, state: &mut State, folder: &Folder, mode: Mode, boot: &Boot) -> Result<Arc<File>, Errno> {
        if let Some(file) = &state.file {
            return Ok(file.clone());
        }
        let (part, journal) = (names::part(&self.entry.name), names::blocks(&self.entry.name));
        let header = Header::of(&self.entry, *boot, folder.file_system.mount);
        let private = Mode::from_raw_mode(0o600);
        // Before the file is taken: a check of free space in between must not find the space needed and gone.
        folder.file_system.take(self.share);
        let file = match state.resumed.take() {
            Some((file, entered)) => {
                // The old journal stays until the new one is on the disk, as the power may fail again.
                let next = names::next_blocks(&self.entry.name);
                let resumed = Journal::resume(create(folder, &next, private)?, &header, &entered).map_err(errno)?;
                folder.rename(&next, &journal)?;
                state.journal = Some(resumed);
                // After a power failure the file may have lost its length.
                rustix::fs::ftruncate(&file, self.entry.size)?;
                file
            }
            None => {
                folder.unlink(&journal)?;
                folder.unlink(&part)?;
                let file = create(folder, &part, mode)?;
                rustix::fs::ftruncate(&file, self.entry.size)?;
                // A file of one block is about to be written anyway.
                if self.entry.stored.is_none() && blocks(self.entry.size) > 1 {
                    reserve_room(&file, FallocateFlags::empty(), self.entry.size)?;
                }
                let journal = create(folder, &journal, private)?;
                state.journal = Some(Journal::begin(journal, &header).map_err(errno)?);
                file
            }
        };
        let file = Arc::new(file);
        state.file = Some(file.clone());
        Ok(file)
    }

    /// Gives the file up: further content is discarded. With `keep` the existing blocks stay for another run.
    pub(super) fn give_up(&self, folder: &Folder, keep: bool) {
        let mut state = self.lock();
        state.dead = true;
        state.file = None;
        state.direct = None;
        state.journal = None;
        state.old = None;
        state.promised = HashMap::new();
        if !keep {
            // If these fail, the next run removes the leftovers.
            let _ = folder.unlink(&names::part(&self.entry.name));
            let _ = folder.unlink(&names::blocks(&self.entry.name));
        }
    }

    /// Number of blocks in the journal, which a flush that begins now will cover.
    pub(super) fn entered(&self) -> u64 {
        self.lock().journal.as_ref().map_or(0, Journal::entered)
    }

    /// Records in the journal that the first `entered` blocks are on the disk.
    pub(super) fn checkpoint(&self, entered: u64) -> io::Result<()> {
        self.lock().journal.as_mut().map_or(Ok(()), |journal| journal.checkpoint(entered))
    }
}

/// Creates a file with a temporary name.
pub(super) fn create(folder: &Folder, name: &[u8], mode: Mode) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(folder, name, flags, mode) {
        // An earlier run left one.
        Err(Errno::EXIST) => {
            folder.unlink(name)?;
            rustix::fs::openat(folder, name, flags, mode)
        }
        result => result,
    }
    .map(File::from)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use super::super::tree::Tree;
    use super::*;
    use crate::entry::Kind;
    use crate::wire::Payload;
    use fullbore_engine::memory_pool::MemoryPool;

    pub(in super::super) fn asked(name: &[u8], size: u64) -> RequestedFile {
        let entry = Box::new(Entry { size, ..Entry::plain(name, Kind::File) });
        RequestedFile { directory: Arc::default(), entry, share: Share::default(), compare: false, base: None }
    }

    fn write(partial: &Partial, folder: &Folder, boot: &Boot, index: u64, content: &[u8]) {
        let hash = *blake3::hash(content).as_bytes();
        let length = content.len() as u32;
        let (segments, payload) = (Vec::new(), Payload::default());
        let block = Block { sequence: 0, id: 0, index, hash, length, segments, compressed: false, payload };
        let bulk = Bulk::new(MemoryPool::default());
        partial.write(&block, content, folder, Mode::RUSR | Mode::WUSR, boot, &bulk).unwrap();
    }

    #[test]
    fn a_file_that_was_given_up_does_not_make_a_liar_of_the_sender() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let partial = Partial::new(0, asked(b"file", 3 << 20), Found::default(), false);
        partial.promise(1, [7; 32]);
        assert_eq!((partial.promised(0), partial.promised(1)), (Promised::Nothing, Promised::Hash([7; 32])));
        partial.give_up(tree.root(), false);
        assert_eq!((partial.promised(0), partial.promised(1)), (Promised::Dead, Promised::Dead));
    }

    #[test]
    fn a_file_of_any_size_costs_what_has_come_of_it() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let partial = Partial::new(0, asked(b"file", i64::MAX as u64), Found::default(), true);
        assert_eq!((partial.have(), partial.have_bytes()), (vec![], 0));
        assert_eq!(partial.missing_from(7), Some(7));
        // No file system here is that large; it is a matter of this file alone.
        let all = Run { first: 0, count: blocks(i64::MAX as u64) };
        let held = partial.holes(all, tree.root(), Mode::RUSR | Mode::WUSR, &[b'x'; 36]);
        assert!(matches!(held, Err(Errno::FBIG | Errno::INVAL) | Ok(Progress::Whole(_))), "{held:?}");
        // Who compares it with an old one does not go on for as many blocks as it has.
        partial.give_up(tree.root(), false);
        assert_eq!(partial.missing_from(7), None);
    }

    #[test]
    fn a_third_run_does_not_read_flushed_or_verified_blocks_again() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let folder = tree.root();
        let entry = asked(b"file", 4 << 20).entry;
        let [first, second, third] = [b'1', b'2', b'3'].map(|boot| [boot; 36]);
        let partial = Partial::new(0, asked(b"file", 4 << 20), Found::default(), false);
        write(&partial, folder, &first, 0, &[1; 1 << 20]);
        partial.checkpoint(partial.entered()).unwrap();
        write(&partial, folder, &first, 1, &[2; 1 << 20]);
        partial.give_up(folder, true);
        // The power fails twice; between that, one block comes, and there is no checkpoint.
        let found = Found::read(folder, &entry, &second, false).unwrap();
        let partial = Partial::new(0, asked(b"file", 4 << 20), found, false);
        assert_eq!(partial.have(), [Run { first: 0, count: 2 }]);
        write(&partial, folder, &second, 2, &[3; 1 << 20]);
        partial.give_up(folder, true);
        let part = File::options().write(true).open(directory.path().join(".file.fullbore-part")).unwrap();
        for index in 0..3 {
            part.write_all_at(b"damaged", index << 20).unwrap();
        }
        let found = Found::read(folder, &entry, &third, false).unwrap();
        let have: Vec<u64> = found.blocks.iter().map(|block| block.index).collect();
        assert_eq!(have, [0, 1], "read again, they would not be right any more");
        assert!(!directory.path().join(".file.fullbore-next").exists());
    }

    #[test]
    fn unflushed_data_of_a_removed_disk_is_read_again() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let (folder, boot) = (tree.root(), [b'x'; 36]);
        let entry = asked(b"file", 4 << 20).entry;
        let mount = folder.file_system.mount;
        // Before Linux 6.8 nothing is known of mounts.
        for (mount, expected) in [(mount, if mount == 0 { 2 } else { 4 }), (mount + 1, 2), (0, 2)] {
            let part = create(folder, &names::part(b"file"), Mode::RUSR | Mode::WUSR).unwrap();
            // Two of four blocks never came to the disk.
            part.write_all_at(&[7; 1 << 20], 0).unwrap();
            part.write_all_at(&[7; 1 << 20], 2 << 20).unwrap();
            let journal = create(folder, &names::blocks(b"file"), Mode::RUSR | Mode::WUSR).unwrap();
            let mut journal = Journal::begin(journal, &Header::of(&entry, boot, mount)).unwrap();
            let hash = *blake3::hash(&[7; 1 << 20]).as_bytes();
            (0..4).for_each(|index| journal.enter(index, &hash).unwrap());
            let found = Found::read(folder, &entry, &boot, false).unwrap();
            assert_eq!(found.blocks.len(), expected, "mount {mount}");
            assert!(found.blocks.iter().all(|block| !block.flushed), "what is read may be in memory only");
            assert_eq!(Found::read(folder, &entry, &boot, true).unwrap().blocks, [], "the disk refused them");
        }
    }

    #[test]
    fn what_somebody_else_has_put_in_place_of_an_unfinished_file_was_believed() {
        assert!(rustix::process::geteuid().is_root(), "gives files away: run as root (script/test does)");
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let (folder, boot) = (tree.root(), [b'x'; 36]);
        let entry = asked(b"file", 4 << 20).entry;
        let [part, journal, victim] = [names::part(b"file"), names::blocks(b"file"), b"victim".to_vec()]
            .map(|name| directory.path().join(std::ffi::OsStr::from_bytes(&name)));
        let left_by_us = || {
            let partial = Partial::new(0, asked(b"file", 4 << 20), Found::default(), false);
            write(&partial, folder, &boot, 0, &[1; 1 << 20]);
            partial.checkpoint(partial.entered()).unwrap();
            partial.give_up(folder, true);
        };
        std::fs::write(&victim, "untouched").unwrap();
        let replaced = |path: &Path, make: &dyn Fn()| {
            std::fs::remove_file(path).unwrap();
            make();
        };
        let given_away = |path: &Path| std::os::unix::fs::chown(path, Some(65534), None).unwrap();
        let pipe = |path: &Path| {
            rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        };
        type Plant<'a> = (&'a str, &'a dyn Fn(&Path));
        let plants: [Plant<'_>; 5] = [
            ("another user's", &given_away),
            ("a hard link", &|path| replaced(path, &|| std::fs::hard_link(&victim, path).unwrap())),
            ("a symbolic link", &|path| replaced(path, &|| std::os::unix::fs::symlink(&victim, path).unwrap())),
            ("a pipe", &|path| replaced(path, &|| pipe(path))),
            ("a directory", &|path| replaced(path, &|| std::fs::create_dir(path).unwrap())),
        ];
        for (what, plant) in plants {
            for path in [&part, &journal] {
                left_by_us();
                assert!(!Found::read(folder, &entry, &boot, false).unwrap().is_empty(), "our own is gone on with");
                plant(path);
                let found = Found::read(folder, &entry, &boot, false).unwrap();
                assert!(found.is_empty(), "{what}: {}", path.display());
                let left: Vec<_> =
                    std::fs::read_dir(directory.path()).unwrap().map(|name| name.unwrap().path()).collect();
                assert_eq!(left, std::slice::from_ref(&victim), "{what}");
                assert_eq!(std::fs::read(&victim).unwrap(), b"untouched", "{what}");
            }
        }
    }

    #[test]
    fn a_file_that_lost_its_length_with_the_power_has_it_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let (folder, [first, second]) = (tree.root(), [b'1', b'2'].map(|boot| [boot; 36]));
        let entry = asked(b"file", 4 << 20).entry;
        let partial = Partial::new(0, asked(b"file", 4 << 20), Found::default(), false);
        write(&partial, folder, &first, 0, &[1; 1 << 20]);
        partial.give_up(folder, true);
        let part = directory.path().join(".file.fullbore-part");
        File::options().write(true).open(&part).unwrap().set_len(1 << 20).unwrap();
        let found = Found::read(folder, &entry, &second, false).unwrap();
        let partial = Partial::new(0, asked(b"file", 4 << 20), found, false);
        let rest = Run { first: 1, count: 3 };
        let progress = partial.holes(rest, folder, Mode::RUSR | Mode::WUSR, &second).unwrap();
        assert!(matches!(progress, Progress::Whole(_)), "{progress:?}");
        assert_eq!(std::fs::metadata(part).unwrap().len(), 4 << 20);
    }
}
