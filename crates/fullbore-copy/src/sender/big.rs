//! A big file while its blocks are read, by several threads and in order.

use std::collections::VecDeque;
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::source::SourceFile;
use crate::wire::{Run, SEGMENTS, Segment, block_bytes, block_len, blocks};

/// A file that is cut into blocks.
#[derive(Debug)]
pub(super) struct BigFile {
    pub(super) id: u64,
    pub(super) source: Box<SourceFile>,
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

impl BigFile {
    pub(super) fn new(id: u64, source: Box<SourceFile>, have: &[Run]) -> BigFile {
        let state = State { file: None, next: 0, have: have.iter().copied().collect(), reading: 0, over: false };
        BigFile { id, source, state: Mutex::new(state) }
    }

    /// The next block that the receiver has not; opens the file at first.
    ///
    /// # Errors
    /// When it cannot be opened: the file is over then.
    pub(super) fn next(&self) -> Result<Next, Errno> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let count = blocks(self.source.size);
        while let Some(run) = state.have.front().copied().filter(|run| run.first <= state.next) {
            state.next = state.next.max(run.first.saturating_add(run.count));
            state.have.pop_front();
        }
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
        if self.source.sparse {
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

    /// A block has been read. True if it was the last one: nobody reads any more.
    pub(super) fn read(&self) -> Option<Arc<File>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.reading -= 1;
        let last = state.reading == 0 && (state.over || state.next >= blocks(self.source.size));
        if last { state.file.clone() } else { None }
    }

    /// It cannot be read further. True for the first who says so.
    pub(super) fn give_up(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
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
