//! A thread of the landing: receives chunks, writes them, and concludes files. `hashing` decides when it hashes.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::commits::PendingCommit;
use super::file::{Conclusion, FileState, Progress};
use super::hashing::{READ_BUFFER_BYTES, Ready};
use super::{Cause, Chunk, Command, Entry, Load, Message, Outcome, Retry, Shared, locked};
use crate::pipeline::Receiver;
use crate::stage::StageClock;
use crate::target::Target;

/// Chunks written before their files are hashed: several files at once, while their bytes are still in the processor's
/// cache. A guess.
const BATCH_CHUNKS: usize = 64;
const BATCH_BYTES: u64 = 4 << 20;

#[derive(Clone)]
pub(super) struct Clocks {
    pub(super) network: Arc<StageClock>,
    pub(super) hash: Arc<StageClock>,
    pub(super) write: Arc<StageClock>,
}

pub(super) struct Worker<T: Target> {
    pub(super) target: Arc<T>,
    pub(super) shared: Arc<Shared>,
    /// Number of this thread.
    number: usize,
    load: Arc<Load>,
    pub(super) clocks: Clocks,
    pub(super) files: HashMap<u32, FileState<T::Part>>,
    /// Files with bytes to hash.
    pub(super) ready: Ready,
    /// Buffer for bytes that are read back.
    pub(super) buffer: Vec<u8>,
    ended: bool,
}

impl<T: Target> Worker<T> {
    pub(super) fn new(
        target: Arc<T>,
        shared: Arc<Shared>,
        number: usize,
        load: Arc<Load>,
        clocks: Clocks,
        side_by_side: usize,
    ) -> Worker<T> {
        Worker {
            target,
            shared,
            number,
            load,
            clocks,
            files: HashMap::new(),
            ready: Ready::new(side_by_side),
            buffer: vec![0; READ_BUFFER_BYTES],
            ended: false,
        }
    }

    pub(super) fn run(mut self, mut messages: Receiver<Message>) {
        self.clocks.hash.adopt_thread();
        while let Some(first) = self.next(&mut messages) {
            let taken_bytes = self.take_batch(first, &mut messages);
            self.shared.note_journal(self.shared.journal.flush());
            self.hash(taken_bytes, !messages.is_empty());
            self.load.put_off_bytes.store(self.ready.bytes(), Ordering::Relaxed);
        }
        for file in self.files.values_mut().filter(|file| !file.is_wrong) {
            file.log(&self.shared);
        }
        self.shared.note_journal(self.shared.journal.flush());
    }

    /// Returns the next message; `None` when all work is done. Does not wait for messages while there is something to
    /// hash.
    fn next(&mut self, messages: &mut Receiver<Message>) -> Option<Message> {
        if self.ended {
            // Work handed over before the end is done; nothing more is accepted.
            messages.close();
        }
        if let Some(message) = messages.try_recv().or_else(|| self.gather(messages)) {
            return Some(message);
        }
        if !self.ready.is_empty() {
            return Some(Message::Wake);
        }
        if self.ended {
            return None;
        }
        let first = messages.recv_blocking();
        self.linger();
        first
    }

    /// Writes the first chunk and some that wait behind it; returns the number of their bytes.
    fn take_batch(&mut self, first: Message, messages: &mut Receiver<Message>) -> u64 {
        let mut next = Some(first);
        let (mut chunks, mut bytes) = (0, 0);
        while let Some(message) = next.take() {
            // Commands first: a chunk that was sent after a command must meet its effect.
            self.obey();
            if let Message::Chunk(entry, round, chunk) = message {
                let len = chunk.data.len() as u64;
                self.load.bytes.fetch_sub(len, Ordering::Relaxed);
                bytes += len;
                self.take(entry, round, chunk);
            }
            chunks += 1;
            if chunks < BATCH_CHUNKS && bytes < BATCH_BYTES {
                next = messages.try_recv();
            }
        }
        bytes
    }

    fn obey(&mut self) {
        let commands = std::mem::take(&mut *locked(&self.load.commands));
        for command in commands {
            match command {
                Command::Start(entry) => {
                    let item = entry.spec.item;
                    if self.open(entry) {
                        self.settle(item);
                    }
                }
                Command::Retry(item, round, retry) => {
                    let Some(file) = self.files.get_mut(&item) else {
                        continue;
                    };
                    let ranges = match retry {
                        Retry::Whole => Vec::new(),
                        Retry::Ranges(ranges) => ranges,
                    };
                    file.round = round;
                    file.retry(&self.shared, &ranges);
                    self.settle(item);
                }
                Command::Abandon(entry) => {
                    if let Some(file) = self.close(entry.spec.item) {
                        // A wrong file that cannot be removed does no harm: nobody reads its temporary name, and the
                        // journal has forgotten it.
                        let _ = file.abandon(&*self.target, &self.shared, &self.clocks.write);
                    }
                    self.shared.left(&entry);
                }
                Command::End => self.ended = true,
            }
        }
    }

    /// Opens the file unless it is open; false when it has failed or is closed.
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
        self.settle(item);
    }

    /// Updates the bytes that wait for the hash, and concludes a file that is complete.
    pub(super) fn settle(&mut self, item: u32) {
        let Some(file) = self.files.get(&item) else {
            return;
        };
        self.ready.set(item, file.unhashed_bytes());
        if file.progress() == Progress::Whole && !file.is_wrong {
            self.conclude(item);
        }
    }

    /// Removes a file from those that this thread has open.
    fn close(&mut self, item: u32) -> Option<FileState<T::Part>> {
        self.ready.set(item, 0);
        self.files.remove(&item)
    }

    fn conclude(&mut self, item: u32) {
        let Some(file) = self.close(item) else {
            return;
        };
        let size = file.entry.spec.size;
        let (target, shared) = (&*self.target, &*self.shared);
        match file.conclude(target, shared, &self.clocks.write, &mut self.buffer) {
            Ok(Conclusion::Right(right)) => self.shared.committed(right),
            Ok(Conclusion::Pending(right, pending)) => {
                // Late copies of its bytes would begin the file anew.
                right.entry.closed.store(true, Ordering::Release);
                let pending_commit = PendingCommit::begin(&self.shared);
                pending.then(move |result| pending_commit.end(right, result));
            }
            Ok(Conclusion::Wrong { got, ranges, state }) => {
                self.files.insert(item, *state);
                self.shared.tell(Outcome::Mismatch { item, size, got, ranges });
            }
            Err(cause) => self.fail(item, cause),
        }
    }

    pub(super) fn fail(&mut self, item: u32, cause: Cause) {
        if let Some(mut file) = self.close(item)
            && !file.is_wrong
        {
            file.log(&self.shared);
        }
        self.shared.failed(item, cause);
    }
}

impl<T: Target> Drop for Worker<T> {
    /// After a panic nobody else would report this thread's files.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.items_of(self.number).into_iter().for_each(|item| self.shared.thread_failed(item));
        }
    }
}
