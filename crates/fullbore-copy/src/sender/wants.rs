//! What is wanted of the source: the sender's memory between listing a file and its acknowledgement.
//!
//! Every file listed is kept until the receiver has answered; then it is forgotten or waits to be
//! read. Records under way hold their permits of the window here.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fullbore_engine::stage::StageClock;
use fullbore_engine::window::Permit;

use super::big::BigFile;
use super::source::SourceFile;
use crate::error::CopyError;
use crate::wire::{Answer, PACK_BYTES, PACK_FILES, SMALL_BYTES};

/// Files listed and not yet done, at most: the listing waits then. About 200 bytes each here and as
/// many at the receiver; enough that a listing is normally far ahead of the content.
const FILES: usize = 500_000;

/// A small file to be read, with its number.
pub(super) type Small = (u64, Box<SourceFile>);

/// Something to be read.
pub(super) enum Job {
    /// Small files for one record.
    Pack(Vec<Small>),
    /// The next block of this file.
    Big(Arc<BigFile>),
}

#[derive(Default)]
pub(super) struct Wants {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The number of the first entry in `unanswered`.
    base: u64,
    unanswered: VecDeque<Option<Box<SourceFile>>>,
    small: VecDeque<Small>,
    big: VecDeque<Arc<BigFile>>,
    /// Content may go.
    begun: bool,
    /// Entries listed in all, once that is known.
    listed: Option<u64>,
    /// Jobs in the hands of readers.
    in_work: usize,
    /// Records under way, with their permits.
    under_way: HashMap<u64, Permit>,
    next_sequence: u64,
    finished: bool,
    closed: bool,
}

impl State {
    fn files(&self) -> usize {
        self.unanswered.len() + self.small.len()
    }

    fn has_job(&self) -> bool {
        self.begun && (!self.small.is_empty() || !self.big.is_empty())
    }

    fn is_done(&self) -> bool {
        self.begun
            && self.listed == Some(self.base)
            && self.small.is_empty()
            && self.big.is_empty()
            && self.in_work == 0
            && self.under_way.is_empty()
    }
}

impl Wants {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Entries that are about to be listed; waits while too many are unfinished.
    pub(super) fn add(&self, first: u64, files: Vec<Option<Box<SourceFile>>>, clock: &StageClock) {
        let mut state = self.lock();
        if state.files() >= FILES && !state.closed {
            drop(state);
            state = clock.blocked_in(|| {
                let full = |state: &mut State| state.files() >= FILES && !state.closed;
                self.changed.wait_while(self.lock(), full).unwrap_or_else(PoisonError::into_inner)
            });
        }
        debug_assert_eq!(state.base + state.unanswered.len() as u64, first);
        state.unanswered.extend(files);
    }

    /// Everything has been listed.
    pub(super) fn listed(&self, entries: u64) {
        self.lock().listed = Some(entries);
    }

    /// Content may go.
    pub(super) fn begin(&self) {
        self.lock().begun = true;
        self.changed.notify_all();
    }

    /// The receiver's answer. Gives the paths that are wanted, if `names`; in a dry run nothing is read.
    ///
    /// # Errors
    /// When it asks for what it was not told of.
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
                return Err(CopyError::Meaning("content of what is no file is wanted"));
            };
            if names {
                paths.push(file.path());
            }
            if dry_run {
                continue;
            }
            if file.size < SMALL_BYTES {
                state.small.push_back((id, file));
            } else {
                state.big.push_back(Arc::new(BigFile::new(id, file, &wanted.have)));
            }
        }
        if wanted.next().is_some() {
            return Err(CopyError::Meaning("content is wanted of what was answered before"));
        }
        drop(state);
        self.changed.notify_all();
        Ok(paths)
    }

    /// The next thing to be read; none when all is sent. Half of the readers prefer small files, so
    /// that the costs of names and of bytes are paid at the same time.
    pub(super) fn next(&self, prefer_small: bool, clock: &StageClock) -> Option<Job> {
        let mut state = self.lock();
        if !state.has_job() && !state.closed && !state.finished {
            drop(state);
            state = clock.starved_in(|| {
                let idle = |state: &mut State| !state.has_job() && !state.closed && !state.finished;
                self.changed.wait_while(self.lock(), idle).unwrap_or_else(PoisonError::into_inner)
            });
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
        while let Some((_, file)) = state.small.front()
            && files.len() < PACK_FILES
            && (files.is_empty() || bytes + file.size <= PACK_BYTES as u64)
        {
            bytes += file.size;
            files.extend(state.small.pop_front());
        }
        drop(state);
        self.changed.notify_all();
        Some(Job::Pack(files))
    }

    /// A file has no block left to be read.
    pub(super) fn read_to_its_end(&self, big: &Arc<BigFile>) {
        self.lock().big.retain(|other| !Arc::ptr_eq(other, big));
    }

    /// Numbers a record and keeps its permit until it is acknowledged.
    pub(super) fn send(&self, permit: Permit) -> u64 {
        let mut state = self.lock();
        let sequence = state.next_sequence;
        state.next_sequence += 1;
        if !state.closed {
            state.under_way.insert(sequence, permit);
        }
        sequence
    }

    /// A record has been written and verified at the other end.
    ///
    /// # Errors
    /// When it was never sent.
    pub(super) fn acknowledge(&self, sequence: u64) -> Result<(), CopyError> {
        let permit = self.lock().under_way.remove(&sequence);
        permit.map(drop).ok_or(CopyError::Meaning("an acknowledgement of what was not sent"))
    }

    /// A reader has done its job.
    pub(super) fn done(&self) {
        self.lock().in_work -= 1;
    }

    /// Whether all that is wanted has been sent and acknowledged; true only once.
    pub(super) fn settle(&self) -> bool {
        let mut state = self.lock();
        let now = !state.finished && !state.closed && state.is_done();
        if now {
            state.finished = true;
            drop(state);
            self.changed.notify_all();
        }
        now
    }

    /// Ends all waiting and gives permits back: the run was broken off.
    pub(super) fn break_off(&self) {
        let permits = {
            let mut state = self.lock();
            state.closed = true;
            std::mem::take(&mut state.under_way)
        };
        drop(permits);
        self.changed.notify_all();
    }
}
