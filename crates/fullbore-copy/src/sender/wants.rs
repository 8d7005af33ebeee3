//! The sender's memory between listing a file and the acknowledgement of its content.
//!
//! Every listed file is kept until the receiver has answered. Then it is dropped, or waits to be read. Records in
//! flight keep their permits of the window here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fullbore_engine::stage::StageClock;
use fullbore_engine::window::Permit;

use super::big::BigFile;
use super::source::SourceFile;
use crate::error::CopyError;
use crate::options::Options;
use crate::wire::{Answer, Basis, PACK_BYTES, PACK_FILES, SMALL_BYTES, blocks};

/// Most files that are listed and not yet done; then the listing waits. Each takes about 200 bytes here, and as many at
/// the receiver. Enough that the listing is normally far ahead of the content.
const FILES: usize = if cfg!(test) { 8 } else { 500_000 };
/// The sender announces the record count once no more than this many bytes are in flight. The receiver then need not
/// wait another round trip, and this end has almost nothing left to measure.
const LAST_BYTES: u64 = 4 << 20;

/// A small file to be read.
#[derive(Debug)]
pub(super) struct Small {
    /// The entry's number.
    pub(super) id: u64,
    pub(super) file: Box<SourceFile>,
    /// Whether to send it only if it differs from the destination's file.
    pub(super) compare: bool,
    /// Hash of the destination's file.
    pub(super) there: Option<[u8; 32]>,
}

/// A file that waits for hashes of the destination's file.
enum Comparing {
    Small(Box<SourceFile>),
    Big(Arc<BigFile>),
}

/// Work for a reader.
pub(super) enum Job {
    /// Read small files for one record.
    Pack(Vec<Small>),
    /// Read the next block of this file.
    Big(Arc<BigFile>),
}

pub(super) struct Wants {
    /// Most unfinished files; see [`FILES`].
    most_files: usize,
    state: Mutex<State>,
    /// Wakes readers when there is a job, or at the end.
    job: Condvar,
    /// Wakes the listing when there are fewer files.
    room: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of the first entry in `unanswered`.
    base: u64,
    unanswered: VecDeque<Option<Box<SourceFile>>>,
    small: VecDeque<Small>,
    big: VecDeque<Arc<BigFile>>,
    /// Files that are compared before any of their content is sent.
    comparing: HashMap<u64, Comparing>,
    /// The files in `big` by number, for hashes that arrive while they wait or are read.
    by_id: HashMap<u64, Arc<BigFile>>,
    /// Whether content may be sent.
    begun: bool,
    /// Total number of listed entries, once it is known.
    listed: Option<u64>,
    /// Number of jobs that readers work on.
    in_work: usize,
    /// Permits of records in flight, and the total of their bytes.
    under_way: HashMap<u64, Permit>,
    under_way_bytes: u64,
    next_sequence: u64,
    acknowledged_bytes: u64,
    finished: bool,
    closed: bool,
    /// Number of threads that wait for a job, and for room.
    readers: usize,
    listers: usize,
}

impl State {
    fn files(&self) -> usize {
        self.unanswered.len() + self.small.len() + self.big.len() + self.comparing.len()
    }

    fn is_full(&self, most_files: usize) -> bool {
        self.files() >= most_files && !self.closed
    }

    fn has_job(&self) -> bool {
        self.begun && (!self.small.is_empty() || !self.big.is_empty())
    }

    /// Whether there is nothing to read now, but may be later.
    fn is_idle(&self) -> bool {
        !self.has_job() && !self.closed && !self.finished
    }

    fn is_done(&self) -> bool {
        self.begun
            && self.listed == Some(self.base)
            && self.small.is_empty()
            && self.big.is_empty()
            && self.comparing.is_empty()
            && self.in_work == 0
            && self.under_way_bytes <= LAST_BYTES
    }
}

impl Default for Wants {
    fn default() -> Wants {
        Wants::new(FILES)
    }
}

impl Wants {
    /// If content waits for the whole listing, the listing must not wait for content. The receiver's memory, which
    /// keeps as many entries, is then the bound.
    pub(super) fn of(options: &Options) -> Wants {
        Wants::new(if options.delete_before { usize::MAX } else { FILES })
    }

    fn new(most_files: usize) -> Wants {
        Wants { most_files, state: Mutex::default(), job: Condvar::new(), room: Condvar::new() }
    }

    /// Wakes threads that can go on. Each wake-up is a system call, so none is made if no thread waits.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let (job, room) = (state.readers > 0 && !state.is_idle(), state.listers > 0 && !state.is_full(self.most_files));
        drop(state);
        if job {
            self.job.notify_all();
        }
        if room {
            self.room.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds entries that are about to be listed; waits while too many are unfinished.
    pub(super) fn add(&self, first: u64, files: Vec<Option<Box<SourceFile>>>, clock: &StageClock) {
        let mut state = self.lock();
        if state.is_full(self.most_files) {
            state.listers += 1;
            state = clock.blocked_in(|| {
                let is_full = |state: &mut State| state.is_full(self.most_files);
                self.room.wait_while(state, is_full).unwrap_or_else(PoisonError::into_inner)
            });
            state.listers -= 1;
        }
        debug_assert_eq!(state.base + state.unanswered.len() as u64, first);
        state.unanswered.extend(files);
    }

    /// Records the total number of entries.
    pub(super) fn listed(&self, entries: u64) {
        self.lock().listed = Some(entries);
    }

    /// Whether everything has been listed, with this number of entries.
    pub(super) fn is_listed(&self, entries: u64) -> bool {
        self.lock().listed == Some(entries)
    }

    /// Whether everything has been listed, with at least this number of entries.
    pub(super) fn has_listed(&self, entries: u64) -> bool {
        self.lock().listed.is_some_and(|listed| entries <= listed)
    }

    /// Allows content to be sent.
    pub(super) fn begin(&self) {
        let mut state = self.lock();
        state.begun = true;
        self.wake(state);
    }

    /// Takes the receiver's answer. Returns the paths of requested files if `names`. In a dry run nothing is read.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if it requests entries that were not listed, that are not files, or blocks that do not
    /// exist.
    pub(super) fn answer(&self, answer: &Answer, names: bool, dry_run: bool) -> Result<Vec<Vec<u8>>, CopyError> {
        let mut wanted = answer.wanted.iter().peekable();
        let mut paths = Vec::new();
        let mut state = self.lock();
        if answer.through > state.base + state.unanswered.len() as u64 {
            return Err(CopyError::Meaning("an answer to what was not listed"));
        }
        while state.base < answer.through {
            let file = state.unanswered.pop_front().flatten();
            let id = state.base;
            state.base += 1;
            if wanted.peek().is_none_or(|wanted| wanted.id != id) {
                continue;
            }
            let (Some(file), Some(wanted)) = (file, wanted.next()) else {
                return Err(CopyError::Meaning("content of an entry that is not a file is wanted"));
            };
            // Keep no more runs than the file has blocks.
            let end = wanted.have.last().map_or(0, |run| run.first.saturating_add(run.count));
            if end > blocks(file.size) || file.size < SMALL_BYTES && end > 0 {
                return Err(CopyError::Meaning("blocks are there that the file does not have"));
            }
            // A compared file is reported when it is found to differ.
            if names && !wanted.compare {
                paths.push(file.path());
            }
            if dry_run && !wanted.compare {
                continue;
            }
            match (file.size < SMALL_BYTES, wanted.compare) {
                (true, false) => state.small.push_back(Small { id, file, compare: false, there: None }),
                (true, true) => drop(state.comparing.insert(id, Comparing::Small(file))),
                (false, true) => {
                    let big = Arc::new(BigFile::new(id, file, wanted));
                    state.comparing.insert(id, Comparing::Big(big));
                }
                (false, false) => {
                    let big = Arc::new(BigFile::new(id, file, wanted));
                    state.by_id.insert(id, big.clone());
                    state.big.push_back(big);
                }
            }
        }
        if wanted.next().is_some() {
            return Err(CopyError::Meaning("content is wanted of what was answered before"));
        }
        self.wake(state);
        Ok(paths)
    }

    /// Takes hashes of the destination's files. Hashes of a file that has been read already are too late and ignored.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if the file has no such blocks, or was not answered yet.
    pub(super) fn learn(&self, basis: &Basis) -> Result<(), CopyError> {
        let mut state = self.lock();
        if basis.id >= state.base {
            return Err(CopyError::Meaning("hashes of a file before it is wanted"));
        }
        match state.comparing.remove(&basis.id) {
            Some(Comparing::Small(file)) => {
                if !basis.last || basis.first > 0 || basis.hashes.len() > 1 {
                    return Err(CopyError::Meaning("hashes of blocks of a small file"));
                }
                let there = basis.hashes.first().copied();
                state.small.push_back(Small { id: basis.id, file, compare: true, there });
            }
            Some(Comparing::Big(big)) => {
                big.learn(basis)?;
                if basis.last {
                    state.by_id.insert(basis.id, big.clone());
                    state.big.push_back(big);
                } else {
                    state.comparing.insert(basis.id, Comparing::Big(big));
                }
            }
            None => state.by_id.get(&basis.id).map_or(Ok(()), |big| big.learn(basis))?,
        }
        self.wake(state);
        Ok(())
    }

    /// Returns the next job; `None` when everything is sent. Half of the readers prefer small files, so that the costs
    /// per file and per byte overlap.
    pub(super) fn next(&self, prefer_small: bool, clock: &StageClock) -> Option<Job> {
        let mut state = self.lock();
        if state.is_idle() {
            state.readers += 1;
            state = clock.starved_in(|| {
                self.job.wait_while(state, |state| state.is_idle()).unwrap_or_else(PoisonError::into_inner)
            });
            state.readers -= 1;
        }
        if state.closed || !state.has_job() {
            return None;
        }
        state.in_work += 1;
        if let Some(big) = state.big.front().filter(|_| !prefer_small || state.small.is_empty()) {
            return Some(Job::Big(big.clone()));
        }
        let mut files = Vec::new();
        let mut bytes = 0;
        while let Some(small) = state.small.front()
            && files.len() < PACK_FILES
            && (files.is_empty() || bytes + small.file.size <= PACK_BYTES as u64)
        {
            bytes += small.file.size;
            files.extend(state.small.pop_front());
        }
        self.wake(state);
        Some(Job::Pack(files))
    }

    /// Records that all blocks of a file have been read.
    pub(super) fn read_to_its_end(&self, big: &Arc<BigFile>) {
        let mut state = self.lock();
        state.by_id.remove(&big.id);
        // Files are read in order, so it is one of the first.
        if let Some(position) = state.big.iter().position(|other| Arc::ptr_eq(other, big)) {
            state.big.remove(position);
        }
        // The listing may wait for fewer files.
        self.wake(state);
    }

    /// Numbers a record, and keeps its permit until it is acknowledged.
    pub(super) fn send(&self, permit: Permit) -> u64 {
        let mut state = self.lock();
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        if !state.closed {
            state.under_way_bytes += permit.bytes();
            state.under_way.insert(sequence, permit);
        }
        sequence
    }

    /// The other end has written and verified a record: releases its permit.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if there is no such record in flight.
    pub(super) fn acknowledge(&self, sequence: u64) -> Result<(), CopyError> {
        let permit = {
            let mut state = self.lock();
            let permit = state.under_way.remove(&sequence);
            let bytes = permit.as_ref().map_or(0, Permit::bytes);
            state.acknowledged_bytes += bytes;
            state.under_way_bytes -= bytes;
            permit
        };
        permit.map(drop).ok_or(CopyError::Meaning("an acknowledgement of what was not sent"))
    }

    /// Bytes of content that the receiver has acknowledged, uncompressed.
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        self.lock().acknowledged_bytes
    }

    /// Records that a reader has finished its job.
    pub(super) fn done(&self) {
        self.lock().in_work -= 1;
    }

    /// The number of records, once everything is sent and nearly all of it acknowledged. Returned only once.
    pub(super) fn settle(&self) -> Option<u64> {
        let mut state = self.lock();
        if state.finished || state.closed || !state.is_done() {
            return None;
        }
        state.finished = true;
        let records = state.next_sequence;
        self.wake(state);
        Some(records)
    }

    /// Whether everything was sent and acknowledged.
    pub(super) fn is_acknowledged(&self) -> bool {
        let state = self.lock();
        state.finished && state.under_way.is_empty()
    }

    /// The run was cancelled: ends all waits and releases all permits.
    pub(super) fn break_off(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.under_way_bytes = 0;
        let permits = std::mem::take(&mut state.under_way);
        self.wake(state);
        drop(permits);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fullbore_engine::stage::{Kind, Ledger};
    use fullbore_engine::window::Window;

    use super::super::Source;
    use super::super::source::Directory;
    use super::*;
    use crate::entry::{Identity, Time};
    use crate::wire::Wanted;

    fn big(path: &Path) -> Box<SourceFile> {
        let root = Source::open(&path.join("")).unwrap().root;
        Box::new(SourceFile {
            directory: Arc::new(Directory::new(root, Vec::new())),
            name: b"file".as_slice().into(),
            size: 3 << 20,
            sparse: false,
            modified: Time::default(),
            identity: Identity::default(),
        })
    }

    #[test]
    fn the_end_is_told_when_all_is_sent_and_only_little_is_under_way() {
        let wants = Wants::default();
        wants.begin();
        wants.listed(0);
        let window = Window::new(64 << 20, 10);
        let permit = |bytes| window.try_acquire(bytes).unwrap();
        let (large, small) = (wants.send(permit(LAST_BYTES)), wants.send(permit(1)));
        assert_eq!(wants.settle(), None, "too much is under way");
        wants.acknowledge(large).unwrap();
        assert_eq!((wants.settle(), wants.settle()), (Some(2), None), "once");
        assert!(!wants.is_acknowledged());
        wants.acknowledge(small).unwrap();
        assert!(wants.is_acknowledged());
    }

    #[test]
    fn a_listing_waits_for_big_files_too() {
        let directory = tempfile::tempdir().unwrap();
        let (wants, clock) = (Wants::default(), Ledger::off().stage("test", Kind::Thread));
        let ids = 0..FILES as u64;
        wants.add(0, ids.clone().map(|_| Some(big(directory.path()))).collect(), &clock);
        let wanted_entry = |id| Wanted { id, have: Vec::new(), compare: false, same_size: false };
        let wanted = ids.map(wanted_entry).collect();
        wants.answer(&Answer { through: FILES as u64, wanted }, false, false).unwrap();
        wants.begin();
        assert_eq!(wants.lock().files(), FILES);
        std::thread::scope(|scope| {
            let listing = scope.spawn(|| wants.add(FILES as u64, vec![None], &clock));
            while wants.lock().listers == 0 {
                assert!(!listing.is_finished(), "it did not wait");
                std::thread::yield_now();
            }
            let Some(Job::Big(file)) = wants.next(false, &clock) else { panic!("nothing to read") };
            wants.read_to_its_end(&file);
            listing.join().unwrap();
        });
    }

    #[test]
    fn a_listing_that_deletions_wait_for_waits_for_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Ledger::off().stage("test", Kind::Thread);
        for (delete_before, is_full) in [(false, true), (true, false)] {
            let wants = Wants::of(&Options { delete_before, ..Options::default() });
            wants.add(0, (0..FILES).map(|_| Some(big(directory.path()))).collect(), &clock);
            assert_eq!(wants.lock().is_full(wants.most_files), is_full);
        }
    }

    #[test]
    fn blocks_that_a_file_does_not_have_are_not_there() {
        let directory = tempfile::tempdir().unwrap();
        let clock = Ledger::off().stage("test", Kind::Thread);
        let small = |path: &Path| Box::new(SourceFile { size: 3, ..*big(path) });
        for (is_big, first, count, is_right) in [
            (true, 0, 3, true),
            (true, 2, 1, true),
            (true, 2, 2, false),
            (true, 1 << 40, 1, false),
            (false, 0, 1, false),
        ] {
            let wants = Wants::default();
            let file = if is_big { big(directory.path()) } else { small(directory.path()) };
            wants.add(0, vec![Some(file)], &clock);
            let have = vec![crate::wire::Run { first, count }];
            let wanted = vec![Wanted { id: 0, have, compare: false, same_size: false }];
            let answered = wants.answer(&Answer { through: 1, wanted }, false, false);
            assert_eq!(answered.is_ok(), is_right, "{first}, {count}: {answered:?}");
        }
    }
}
