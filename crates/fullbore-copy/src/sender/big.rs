//! A big file while its blocks are read, in order and by several threads.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::source::SourceFile;
use crate::error::CopyError;
use crate::wire::{Basis, Run, SEGMENTS, Segment, Wanted, block_bytes, block_len, blocks};

/// A file that is sent in blocks.
#[derive(Debug)]
pub(super) struct BigFile {
    pub(super) id: u64,
    pub(super) source: Box<SourceFile>,
    /// Whether to report if it differs at all from the destination's file.
    pub(super) compare: bool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: Option<Arc<File>>,
    next: u64,
    /// Blocks that the receiver has, ascending.
    have: VecDeque<Run>,
    /// Number of blocks that readers work on.
    reading: u32,
    over: bool,
    /// Whether a thread has been asked to check that the file has not changed.
    looked: bool,
    /// Hashes of blocks of the destination's old file.
    there: HashMap<u64, [u8; 32]>,
    /// Equal blocks, as long as no block differs. If all are equal, the file need not be written at all.
    held: Option<Vec<u64>>,
}

/// What to do with a block that was read and hashed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BlockOutcome {
    /// Send it. With `first` it is the first different block of its file, and `held` are the equal ones before it.
    Differs { first: bool, held: Vec<u64> },
    /// The destination takes it from its old file.
    Same,
    /// It is equal, and the whole file may be.
    Held,
}

/// The next work on a file.
#[derive(Debug)]
pub(super) enum Next {
    /// Read a block.
    Block(u64, Arc<File>),
    /// Send a run of blocks that are holes.
    Holes(Run),
    /// Nothing is left.
    End,
}

impl State {
    /// Skips the blocks that the receiver has.
    fn skip(&mut self) {
        while let Some(run) = self.have.front().copied().filter(|run| run.first <= self.next) {
            self.next = self.next.max(run.first.saturating_add(run.count));
            self.have.pop_front();
        }
    }
}

impl BigFile {
    pub(super) fn new(id: u64, source: Box<SourceFile>, wanted: &Wanted) -> BigFile {
        // A partly transferred file will be written anyway.
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

    /// Takes hashes of the destination's old file.
    ///
    /// # Errors
    /// [`CopyError::Meaning`] if the file has no such blocks.
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

    /// Whether the destination sent any hashes of its old file.
    pub(super) fn is_compared(&self) -> bool {
        let state = self.lock();
        !state.there.is_empty() || state.held.is_some()
    }

    /// Decides what to do with a block whose content has this hash.
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

    /// Takes the equal blocks at the end, if none differed: all of them, if the whole file is equal.
    pub(super) fn take_held(&self) -> Vec<u64> {
        self.lock().held.take().unwrap_or_default()
    }

    /// The next block that the receiver lacks. The first call opens the file.
    ///
    /// # Errors
    /// The error of opening the file or its directory, or of checking that it is unchanged. The file is finished then.
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
        // A file that may be equal is compared block by block, including holes.
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

    /// Number of blocks from this one on that are holes, up to `end`.
    fn holes(&self, file: &File, next: u64, end: u64) -> u64 {
        let length = block_bytes(self.source.size);
        match rustix::fs::seek(file, SeekFrom::Data(next * length)) {
            Ok(data) => (data / length).min(end).saturating_sub(next),
            // There is no data up to the end of the file.
            Err(Errno::NXIO) => end - next,
            // The file system does not report holes; zeros are sent.
            Err(_) => 0,
        }
    }

    /// Records that a block has been read.
    pub(super) fn read(&self) {
        self.lock().reading -= 1;
    }

    /// Returns the open file once, when nobody reads it any more. Whoever gets it checks that it has not changed.
    pub(super) fn to_be_looked_at(&self) -> Option<Arc<File>> {
        let mut state = self.lock();
        state.skip();
        let is_read = state.reading == 0 && (state.over || state.next >= blocks(self.source.size));
        if is_read && !std::mem::replace(&mut state.looked, true) { state.file.clone() } else { None }
    }

    /// Records that the file cannot be read further. Returns true for the first caller.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.lock();
        !std::mem::replace(&mut state.over, true)
    }

    /// The parts of a block that are not holes; empty if all of it is content.
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
