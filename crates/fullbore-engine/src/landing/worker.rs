//! A thread of the landing: takes chunks, writes, hashes, concludes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::file::{Conclusion, FileState, Progress};
use super::{Cause, Chunk, Entry, Load, Message, Order, Outcome, Retry, Shared, locked};
use crate::digest::update_many;
use crate::pipeline::Receiver;
use crate::stage::StageClock;
use crate::target::Target;

/// Chunks written before their files are hashed: several files at once, while their
/// bytes are still in the processor's cache. A guess.
const BATCH_CHUNKS: usize = 64;
const BATCH_BYTES: u64 = 4 << 20;

/// Bytes read back at once; a chunk waits for at most one such read.
const READ_BYTES: usize = 256 << 10;

#[derive(Clone)]
pub(super) struct Clocks {
    pub(super) network: Arc<StageClock>,
    pub(super) hash: Arc<StageClock>,
    pub(super) write: Arc<StageClock>,
}

pub(super) struct Worker<T: Target> {
    target: Arc<T>,
    shared: Arc<Shared>,
    load: Arc<Load>,
    clocks: Clocks,
    files: HashMap<u32, FileState<T::Part>>,
    /// Files with bytes to read back.
    behind: VecDeque<u32>,
    /// Files that the present batch has touched.
    touched: HashSet<u32>,
    buffer: Vec<u8>,
    ended: bool,
}

impl<T: Target> Worker<T> {
    pub(super) fn new(target: Arc<T>, shared: Arc<Shared>, load: Arc<Load>, clocks: Clocks) -> Worker<T> {
        Worker {
            target,
            shared,
            load,
            clocks,
            files: HashMap::new(),
            behind: VecDeque::new(),
            touched: HashSet::new(),
            buffer: vec![0; READ_BYTES],
            ended: false,
        }
    }

    pub(super) fn run(mut self, mut messages: Receiver<Message>) {
        self.clocks.hash.adopt_thread();
        while let Some(first) = self.next(&mut messages) {
            // Orders first: a chunk that came after an order must meet its effect.
            let mut batch = Some(first);
            let (mut chunks, mut bytes) = (0, 0);
            while let Some(message) = batch.take() {
                self.obey();
                if let Message::Chunk(entry, round, chunk) = message {
                    let len = chunk.data.len() as u64;
                    self.load.bytes.fetch_sub(len, Ordering::Relaxed);
                    bytes += len;
                    self.take(entry, round, chunk);
                }
                chunks += 1;
                if chunks < BATCH_CHUNKS && bytes < BATCH_BYTES {
                    batch = messages.try_recv();
                }
            }
            self.hash();
            self.catch_up();
        }
        for file in self.files.values_mut().filter(|file| !file.is_wrong) {
            file.log(&self.shared);
        }
        self.shared.note_journal(self.shared.journal.flush());
    }

    /// The next message; none when all is done. While there is something to read back,
    /// nobody waits for messages.
    fn next(&mut self, messages: &mut Receiver<Message>) -> Option<Message> {
        if let Some(message) = messages.try_recv() {
            return Some(message);
        }
        if !self.behind.is_empty() {
            return Some(Message::Look);
        }
        if self.ended {
            return None;
        }
        self.shared.note_journal(self.shared.journal.flush());
        messages.recv_blocking()
    }

    fn obey(&mut self) {
        let orders = std::mem::take(&mut *locked(&self.load.orders));
        for order in orders {
            match order {
                Order::Start(entry) => {
                    let item = entry.spec.item;
                    if self.open(entry) {
                        self.touched.insert(item);
                    }
                }
                Order::Retry(item, round, retry) => {
                    let Some(file) = self.files.get_mut(&item) else {
                        continue;
                    };
                    let ranges = match retry {
                        Retry::Whole => Vec::new(),
                        Retry::Ranges(ranges) => ranges,
                    };
                    file.round = round;
                    file.retry(&self.shared, &ranges);
                    self.touched.insert(item);
                }
                Order::Abandon(entry) => {
                    let item = entry.spec.item;
                    if let Some(file) = self.files.remove(&item) {
                        // A wrong file that cannot be removed harms nobody: it has no name
                        // that anybody reads, and the journal has forgotten it.
                        let _ = file.abandon(&*self.target, &self.shared, &self.clocks.write);
                    }
                    self.shared.left(&entry);
                }
                Order::End => self.ended = true,
            }
        }
    }

    /// Opens the file unless it is; false when it has failed or is closed.
    fn open(&mut self, entry: Arc<Entry>) -> bool {
        let item = entry.spec.item;
        if entry.closed.load(Ordering::Acquire) {
            return false;
        }
        if self.files.contains_key(&item) {
            return true;
        }
        let (target, shared) = (&*self.target, &*self.shared);
        match self.clocks.write.device(|| FileState::open(target, shared, entry)) {
            Ok(file) => {
                self.files.insert(item, file);
                true
            }
            Err(cause) => {
                self.fail(item, cause);
                false
            }
        }
    }

    fn take(&mut self, entry: Arc<Entry>, round: u32, chunk: Chunk) {
        let (item, len) = (chunk.item, chunk.data.len() as u64);
        if !self.open(entry) {
            self.shared.counters.wasted_bytes.fetch_add(len, Ordering::Relaxed);
            return;
        }
        let Some(file) = self.files.get_mut(&item) else {
            return;
        };
        if round != file.round {
            self.shared.counters.wasted_bytes.fetch_add(len, Ordering::Relaxed);
            return;
        }
        if let Err(cause) = file.take(&*self.target, &self.shared, &self.clocks.write, chunk) {
            self.fail(item, cause);
            return;
        }
        self.touched.insert(item);
    }

    /// Hashes the new bytes of all files of the batch side by side.
    fn hash(&mut self) {
        let mut jobs = Vec::with_capacity(self.touched.len());
        for item in self.touched.drain() {
            let Some(file) = self.files.get_mut(&item) else { continue };
            let (hasher, pending) = file.take_pending();
            jobs.push((item, hasher, pending));
        }
        update_many(
            jobs.iter_mut()
                .filter(|(_, _, pending)| !pending.is_empty())
                .map(|(_, hasher, pending)| (hasher, pending.begin())),
        );
        for (item, hasher, pending) in jobs {
            self.clocks.hash.add_items(1, pending.bytes());
            drop(pending); // the permits go home
            if let Some(file) = self.files.get_mut(&item) {
                file.put_back(hasher);
                self.settle(item);
            }
        }
    }

    /// Reads back one buffer for one file.
    fn catch_up(&mut self) {
        let Some(item) = self.behind.pop_front() else {
            return;
        };
        let Some(file) = self.files.get_mut(&item) else {
            return;
        };
        file.is_catching_up = false;
        if file.progress() == Progress::Behind {
            let read = file.catch_up(&*self.target, &self.shared, &self.clocks.write, &mut self.buffer);
            match read {
                Ok(bytes) => self.clocks.hash.add_items(0, bytes),
                Err(cause) => return self.fail(item, cause),
            }
        }
        self.settle(item);
    }

    /// After hashing: what the file needs next.
    fn settle(&mut self, item: u32) {
        let Some(file) = self.files.get_mut(&item) else {
            return;
        };
        match file.progress() {
            Progress::Waits => {}
            Progress::Behind => {
                if !file.is_catching_up {
                    file.is_catching_up = true;
                    self.behind.push_back(item);
                }
            }
            Progress::Whole if file.is_wrong => {}
            Progress::Whole => self.conclude(item),
        }
    }

    fn conclude(&mut self, item: u32) {
        let Some(file) = self.files.remove(&item) else {
            return;
        };
        let size = file.entry.spec.size;
        let (target, shared) = (&*self.target, &*self.shared);
        match file.conclude(target, shared, &self.clocks.write, &mut self.buffer) {
            Ok(Conclusion::Right { sources, culprits }) => {
                if self.shared.close(item).is_some() {
                    self.shared.tell(Outcome::Verified { item, sources, culprits });
                }
            }
            Ok(Conclusion::Wrong { got, ranges, state }) => {
                self.files.insert(item, *state);
                self.shared.tell(Outcome::Mismatch { item, size, got, ranges });
            }
            Err(cause) => self.fail(item, cause),
        }
    }

    fn fail(&mut self, item: u32, cause: Cause) {
        if let Some(mut file) = self.files.remove(&item)
            && !file.is_wrong
        {
            file.log(&self.shared);
        }
        if self.shared.close(item).is_some() {
            self.shared.tell(Outcome::Failed { item, cause });
        }
    }
}
