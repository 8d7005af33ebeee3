//! A big file while its blocks are read, by several threads and in order.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::source::SourceFile;
use crate::error::CopyError;
use crate::wire::{Basis, Run, SEGMENTS, Segment, Wanted, block_bytes, block_len, blocks};

/// A file that is cut into blocks.
#[derive(Debug)]
pub(super) struct BigFile {
    pub(super) id: u64,
    pub(super) source: Box<SourceFile>,
    /// Whether it differs at all from what the destination has shall be told.
    pub(super) compare: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<Arc<File>>,
    next: u64,
    /// Blocks that the receiver has, ascending.
    have: VecDeque<Run>,
    /// Blocks in the hands of readers.
    reading: u32,
    over: bool,
    /// Somebody has been asked to look whether it is still the same.
    looked: bool,
    /// Hashes of blocks that the destination has in its old file.
    there: HashMap<u64, [u8; 32]>,
    /// Blocks found to be the same while nothing has been found that differs: if it stays so, the file
    /// need not be written at all.
    held: Option<Vec<u64>>,
}

/// What becomes of a block that was read and hashed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockOutcome {
    /// It is sent. With `first` it is the first of its file that differs.
    Differs { first: bool, held: Vec<u64> },
    /// The destination takes it from its old file.
    Same,
    /// It is the same, and so may be the whole file.
    Held,
}

/// What comes next of a file.
#[derive(Debug)]
pub(super) enum Next {
    /// A block to be read.
    Block(u64, Arc<File>),
    /// Blocks of nothing but holes.
    Holes(Run),
    /// No more.
    End,
}

impl State {
    /// Goes on behind what the receiver has.
    fn skip(&mut self) {
        while let Some(run) = self.have.front().copied().filter(|run| run.first <= self.next) {
            self.next = self.next.max(run.first.saturating_add(run.count));
            self.have.pop_front();
        }
    }
}

impl BigFile {
    pub(super) fn new(id: u64, source: Box<SourceFile>, wanted: &Wanted) -> BigFile {
        // Where some of it is there already it is written anyway.
        let may_be_same = wanted.same_size && wanted.have.is_empty();
        let state = State {
            file: None,
            next: 0,
            have: wanted.have.iter().copied().collect(),
            reading: 0,
            over: false,
            looked: false,
            there: HashMap::new(),
            held: may_be_same.then(Vec::new),
        };
        BigFile { id, source, compare: wanted.compare, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes hashes of what the destination has.
    ///
    /// # Errors
    /// When the file has no such blocks.
    pub(super) fn learn(&self, basis: &Basis) -> Result<(), CopyError> {
        let count = blocks(self.source.size);
        if basis.first.saturating_add(basis.hashes.len() as u64) > count {
            return Err(CopyError::Meaning("hashes of blocks beyond the end of the file"));
        }
        let mut state = self.lock();
        let read = state.next;
        let new = (basis.first..).zip(&basis.hashes).filter(|(index, _)| *index >= read);
        state.there.extend(new.map(|(index, hash)| (index, *hash)));
        Ok(())
    }

    /// Whether the destination has told anything of its old file.
    pub(super) fn is_compared(&self) -> bool {
        let state = self.lock();
        !state.there.is_empty() || state.held.is_some()
    }

    /// Says what becomes of a block, whose content has this hash.
    pub(super) fn judge(&self, index: u64, hash: &[u8; 32]) -> BlockOutcome {
        let mut state = self.lock();
        let same = state.there.remove(&index).is_some_and(|there| there == *hash);
        match (same, state.held.take()) {
            (true, Some(mut held)) => {
                held.push(index);
                state.held = Some(held);
                BlockOutcome::Held
            }
            (true, None) => BlockOutcome::Same,
            (false, held) => BlockOutcome::Differs { first: held.is_some(), held: held.unwrap_or_default() },
        }
    }

    /// At the end: blocks that were the same, if nothing differed; all of them, if the whole file is the same.
    pub(super) fn take_held(&self) -> Vec<u64> {
        self.lock().held.take().unwrap_or_default()
    }

    /// The next block that the receiver has not; opens the file at first.
    ///
    /// # Errors
    /// When it cannot be opened: the file is over then.
    pub(super) fn next(&self) -> Result<Next, Errno> {
        let mut state = self.lock();
        let count = blocks(self.source.size);
        state.skip();
        if state.over || state.next >= count {
            return Ok(Next::End);
        }
        let file = match &state.file {
            Some(file) => file.clone(),
            None => {
                let opened = self.source.directory.open().and_then(|directory| self.source.open(&directory));
                let checked = opened.and_then(|file| self.source.is_unchanged(&file).map(|_| file));
                let file = Arc::new(checked.inspect_err(|_| state.over = true)?);
                state.file = Some(file.clone());
                file
            }
        };
        // A file that may be the same is compared block by block, holes and all.
        if self.source.sparse && state.held.is_none() {
            let end = state.have.front().map_or(count, |run| run.first.min(count));
            let holes = self.holes(&file, state.next, end);
            if holes > 0 {
                let run = Run { first: state.next, count: holes };
                state.next += holes;
                return Ok(Next::Holes(run));
            }
        }
        let index = state.next;
        state.next += 1;
        state.reading += 1;
        Ok(Next::Block(index, file))
    }

    /// How many blocks from this one on are all hole, up to `end`.
    fn holes(&self, file: &File, next: u64, end: u64) -> u64 {
        let length = block_bytes(self.source.size);
        match rustix::fs::seek(file, SeekFrom::Data(next * length)) {
            Ok(data) => (data / length).min(end).saturating_sub(next),
            // No data up to the end of the file.
            Err(Errno::NXIO) => end - next,
            // A file system that does not tell; then zeros are sent.
            Err(_) => 0,
        }
    }

    /// A block has been read.
    pub(super) fn read(&self) {
        self.lock().reading -= 1;
    }

    /// The file, once, when nobody reads any more of it: whoever gets it looks whether it is still the same.
    pub(super) fn to_be_looked_at(&self) -> Option<Arc<File>> {
        let mut state = self.lock();
        state.skip();
        let is_read = state.reading == 0 && (state.over || state.next >= blocks(self.source.size));
        if is_read && !std::mem::replace(&mut state.looked, true) { state.file.clone() } else { None }
    }

    /// It cannot be read further. True for the first who says so.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.lock();
        !std::mem::replace(&mut state.over, true)
    }

    /// The parts of a block that are no holes; empty if all of it is content.
    pub(super) fn segments(&self, file: &File, index: u64) -> Vec<Segment> {
        if !self.source.sparse {
            return Vec::new();
        }
        let begin = index * block_bytes(self.source.size);
        let end = begin + block_len(self.source.size, index);
        let mut segments = Vec::new();
        let mut at = begin;
        while at < end {
            let data = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(data) if data < end => data,
                Ok(_) | Err(Errno::NXIO) => break,
                Err(_) => return Vec::new(),
            };
            let hole = rustix::fs::seek(file, SeekFrom::Hole(data)).unwrap_or(end).clamp(data + 1, end);
            segments.push(Segment { offset: (data - begin) as u32, length: (hole - data) as u32 });
            if segments.len() > SEGMENTS {
                return Vec::new();
            }
            at = hole;
        }
        let whole = segments.first().is_some_and(|first| u64::from(first.length) == end - begin);
        if whole { Vec::new() } else { segments }
    }
}
