//! When a landing thread hashes which file.
//!
//! A SHA-256 is one long chain. A processor without SHA instructions computes eight chains in vector lanes in hardly
//! more time than one. So where that pays, a thread that falls behind puts hashing off until enough files have bytes
//! for it. Those bytes are then read back from the page cache, at a tenth of the cost that is saved. A thread that
//! keeps up hashes at once, from memory.

use std::collections::BTreeMap;
use std::time::Duration;

use super::Message;
use super::file::Next;
use super::worker::Worker;
use crate::digest::{STREAMS_MAX, Sha256Hasher, update_many};
use crate::pipeline::Receiver;
use crate::target::Target;

/// Bytes of one file read back at once. Those of all lanes together fit into a core's L2 cache.
const READ_BYTES: usize = 64 << 10;
pub(super) const READ_BUFFER_BYTES: usize = STREAMS_MAX * READ_BYTES;

/// Maximum number of bytes whose hash a thread puts off. They must stay in the page cache of a machine with little
/// memory, and suffice for some large files.
const PUT_OFF_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 256 << 20 };

/// A thread with at least this many bytes waiting is behind: a millisecond of eight lanes.
const BEHIND_BYTES: u64 = 1 << 20;

/// A thread that has put off hashing resumes it after this time without chunks. An empty window, or a network thread
/// waiting for a core, takes less.
const GATHER: Duration = Duration::from_millis(1);

/// Time that an idle thread waits after a first chunk for chunks of other files. Enough to receive about 100 KB of each
/// of four files at 1 Gbit/s.
const LINGER: Duration = Duration::from_millis(4);

/// A thread with fewer bytes waiting keeps up. New files are better hashed there, beside its others, than by an idle
/// thread alone.
const KEEPS_UP_BYTES: u64 = 1 << 20;

/// Files of a thread that have bytes to hash.
pub(super) struct Ready {
    files: BTreeMap<u32, u64>,
    bytes: u64,
    /// Number of files hashed at once; 1 where hashing several saves nothing.
    side_by_side: usize,
    /// Whether hashing has been put off.
    is_gathering: bool,
}

/// Chooses the thread for a new file, by the bytes that wait for each thread.
pub(super) fn thread_for_new(side_by_side: usize, waiting_bytes: impl Iterator<Item = u64> + Clone) -> usize {
    let keeps_up = waiting_bytes.clone().position(|bytes| side_by_side > 1 && bytes < KEEPS_UP_BYTES);
    let least = || waiting_bytes.enumerate().min_by_key(|(_, bytes)| *bytes).map_or(0, |(thread, _)| thread);
    keeps_up.unwrap_or_else(least)
}

impl Ready {
    pub(super) fn new(side_by_side: usize) -> Ready {
        Ready { files: BTreeMap::new(), bytes: 0, side_by_side, is_gathering: false }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Total of bytes to hash, of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Sets the number of bytes that a file has to hash.
    pub(super) fn set(&mut self, item: u32, bytes: u64) {
        let before = if bytes == 0 { self.files.remove(&item) } else { self.files.insert(item, bytes) };
        self.bytes = self.bytes + bytes - before.unwrap_or(0);
    }

    /// Whether waiting would let more files be hashed at once.
    fn may_wait(&self) -> bool {
        self.files.len() < self.side_by_side && self.bytes < PUT_OFF_BYTES
    }

    /// Whether hashing must continue even if chunks wait, so that it keeps pace: `taken_bytes` arrived, `hashed_bytes`
    /// were hashed.
    fn must_go_on(&self, taken_bytes: u64, hashed_bytes: u64) -> bool {
        self.side_by_side > 1
            && !self.is_empty()
            && (self.bytes >= PUT_OFF_BYTES || self.files.len() >= self.side_by_side && hashed_bytes < taken_bytes)
    }
}

impl<T: Target> Worker<T> {
    /// Waits a moment for more files, where that makes hashing cheaper.
    pub(super) fn linger(&self) {
        if self.ready.side_by_side > 1 {
            self.clocks.hash.starved_in(|| std::thread::sleep(LINGER));
        }
    }

    /// After hashing was put off, waits a moment for further chunks and returns the first.
    pub(super) fn gather(&mut self, messages: &mut Receiver<Message>) -> Option<Message> {
        if std::mem::take(&mut self.ready.is_gathering) {
            self.clocks.hash.starved_in(|| std::thread::sleep(GATHER));
            let first = messages.try_recv();
            self.ready.is_gathering = first.is_some();
            return first;
        }
        None
    }

    /// Hashes waiting bytes, unless it is better to wait for more files.
    pub(super) fn hash(&mut self, taken_bytes: u64, more_waits: bool) {
        let is_behind = more_waits || taken_bytes >= BEHIND_BYTES || self.ready.is_gathering;
        if is_behind && self.ready.side_by_side > 1 {
            // Even if hashing is due: the surplus of the longest file would be hashed alone.
            self.put_off();
        }
        self.ready.is_gathering = is_behind && self.ready.may_wait();
        if self.ready.is_gathering {
            return;
        }
        let mut hashed_bytes = self.hash_once();
        while self.ready.must_go_on(taken_bytes, hashed_bytes) {
            hashed_bytes += self.hash_once();
        }
    }

    /// Drops the bytes in memory, and so their permits.
    fn put_off(&mut self) {
        for item in self.ready.files.keys() {
            if let Some(file) = self.files.get_mut(item) {
                file.put_off();
            }
        }
    }

    /// Hashes all bytes in memory and, beside them, as many put-off bytes as fit into the buffer. Returns the number of
    /// bytes hashed.
    fn hash_once(&mut self) -> u64 {
        let turns = self.turns();
        let mut jobs = Vec::with_capacity(turns.len());
        let mut failed = Vec::new();
        let mut buffers = self.buffer.chunks_mut(READ_BYTES);
        for item in turns {
            let Some(file) = self.files.get_mut(&item) else { continue };
            let buffer = if file.pending.is_empty() { buffers.next().unwrap_or_default() } else { &mut [] };
            match file.next_to_hash(&*self.target, &self.clocks.write, buffer) {
                Ok((hasher, next)) => jobs.push(Job { item, hasher, next, buffer }),
                Err(cause) => failed.push((item, cause)),
            }
        }
        let mut streams: Vec<_> = jobs.iter_mut().map(Job::stream).collect();
        update_many(streams.iter_mut().map(|(hasher, pieces)| (&mut **hasher, &pieces[..])));
        let mut hashed_bytes = 0;
        // Dropping the bytes drops their permits.
        let done: Vec<_> = jobs.into_iter().map(|job| (job.item, job.next.bytes(), job.hasher)).collect();
        for (item, (bytes, read_bytes), hasher) in done {
            hashed_bytes += bytes;
            self.clocks.hash.add_items(1, bytes);
            if let Some(file) = self.files.get_mut(&item) {
                file.hashed(&self.shared, hasher, read_bytes);
                self.settle(item);
            }
        }
        for (item, cause) in failed {
            self.fail(item, cause);
        }
        hashed_bytes
    }

    /// Files to hash now: first those with bytes in memory, to release their permits. Then files that were put off, the
    /// longest first: otherwise it would be hashed alone at the end.
    fn turns(&self) -> Vec<u32> {
        let is_held = |item: &u32| self.files.get(item).is_some_and(|file| !file.pending.is_empty());
        let (mut turns, put_off): (Vec<u32>, Vec<u32>) = self.ready.files.keys().partition(|item| is_held(item));
        let mut put_off: Vec<(u64, u32)> = put_off.into_iter().map(|item| (self.ready.files[&item], item)).collect();
        put_off.sort_unstable_by(|a, b| b.cmp(a));
        let room = STREAMS_MAX.saturating_sub(turns.len());
        turns.extend(put_off.into_iter().take(room).map(|(_, item)| item));
        turns
    }
}

/// Bytes of one file to hash.
struct Job<'b> {
    item: u32,
    hasher: Sha256Hasher,
    next: Next,
    buffer: &'b [u8],
}

impl Job<'_> {
    fn stream(&mut self) -> (&mut Sha256Hasher, Vec<&[u8]>) {
        let pieces = match &mut self.next {
            Next::Held(pending) => pending.begin().collect(),
            Next::Read(bytes) => vec![&self.buffer[..*bytes]],
        };
        (&mut self.hasher, pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_files_go_to_the_idlest_thread_or_to_company() {
        let new = |side_by_side, waiting: [u64; 3]| thread_for_new(side_by_side, waiting.into_iter());
        assert_eq!(new(1, [10, 5, 7]), 1);
        assert_eq!(new(8, [10, 5, 7]), 0);
        assert_eq!(new(8, [KEEPS_UP_BYTES, 5, 0]), 1);
        assert_eq!(new(8, [3, 2, 4].map(|n| n * KEEPS_UP_BYTES)), 1);
    }
}
