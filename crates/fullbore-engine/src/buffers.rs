//! Read buffers that are used again.
//!
//! A connection reads into a `BytesMut`, hands slices of it on as `Bytes`, and
//! asks for room when it is nearly full. The pool then gives the same memory
//! again if every slice has been dropped, else an earlier buffer whose slices
//! are all gone, else a new one. So nothing is copied, nothing is zeroed per
//! read, and a steady run allocates nothing. What is in flight is bounded by
//! the window; the pool bounds what is kept for later.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

/// Size of one read buffer in bytes. 256 KiB: beyond it larger reads from a
/// socket no longer save measurable CPU (a guess from published socket
/// benchmarks, to be confirmed by `bench/`), and 16 connections hold 4 MiB.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;

/// Below this much room a read costs a system call for too little. A guess:
/// one full TLS record (16 KiB).
pub(crate) const LEAST_ROOM_BYTES: usize = 16 * 1024;

/// How many resting buffers are asked whether their slices are gone before a
/// new one is allocated; bounds the time of one refill.
const LOOKS: usize = 4;

/// A pool of read buffers. Clones share it.
#[derive(Clone, Debug)]
pub struct Buffers {
    shared: Arc<Pool>,
}

#[derive(Debug)]
struct Pool {
    keep: usize,
    size: usize,
    resting: Mutex<Resting>,
}

#[derive(Debug, Default)]
struct Resting {
    buffers: std::collections::VecDeque<BytesMut>,
    allocated: u64,
    reused: u64,
}

impl Buffers {
    /// A pool that keeps at most `keep` buffers of [`BUFFER_BYTES`] for later.
    pub fn new(keep: usize) -> Buffers {
        Buffers::with_size(keep, BUFFER_BYTES)
    }

    /// A pool of buffers of another size.
    pub(crate) fn with_size(keep: usize, size: usize) -> Buffers {
        Buffers { shared: Arc::new(Pool { keep, size: size.max(1), resting: Mutex::default() }) }
    }

    /// An empty buffer to read into.
    pub fn take(&self) -> BytesMut {
        let mut resting = self.shared.resting.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..LOOKS.min(resting.buffers.len()) {
            let Some(mut buffer) = resting.buffers.pop_front() else {
                break;
            };
            if buffer.try_reclaim(self.shared.size) {
                resting.reused += 1;
                return buffer;
            }
            resting.buffers.push_back(buffer);
        }
        resting.allocated += 1;
        drop(resting);
        BytesMut::with_capacity(self.shared.size)
    }

    /// Makes room in a connection's inbox without growing it: the bytes that
    /// were not consumed yet (part of a head, usually none) are carried over.
    pub fn refill(&self, inbox: &mut BytesMut) {
        let least = LEAST_ROOM_BYTES.min(self.shared.size);
        if inbox.capacity() - inbox.len() >= least {
            return;
        }
        let wanted = self.shared.size.saturating_sub(inbox.len()).max(least);
        if inbox.try_reclaim(wanted) {
            return;
        }
        let mut fresh = self.take();
        fresh.extend_from_slice(inbox);
        let mut used = std::mem::replace(inbox, fresh);
        used.clear();
        self.put_back(used);
    }

    /// Returns a buffer at the end of a connection. Its memory is used again
    /// once the slices made from it are dropped.
    pub fn put_back(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut resting = self.shared.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.buffers.push_back(buffer);
        if resting.buffers.len() > self.shared.keep {
            resting.buffers.pop_front();
        }
    }

    /// Buffers allocated and buffers used again so far.
    pub fn counts(&self) -> (u64, u64) {
        let resting = self.shared.resting.lock().unwrap_or_else(PoisonError::into_inner);
        (resting.allocated, resting.reused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: usize = 64 * 1024;

    #[test]
    fn a_buffer_is_used_again_only_after_its_last_slice_is_dropped() {
        let buffers = Buffers::with_size(4, SIZE);
        let mut inbox = buffers.take();
        inbox.resize(SIZE, 7);
        let first = inbox.split_to(SIZE / 2).freeze();
        let second = inbox.split().freeze();
        buffers.refill(&mut inbox);
        assert_eq!(buffers.counts(), (2, 0), "slices are alive, so new memory was needed");
        assert!(first.iter().chain(&second).all(|byte| *byte == 7));
        drop((first, second));
        inbox.resize(SIZE, 8);
        let third = inbox.split().freeze();
        buffers.refill(&mut inbox);
        assert_eq!(buffers.counts(), (2, 1), "the first buffer came back");
        assert!(third.iter().all(|byte| *byte == 8));
    }

    #[test]
    fn unconsumed_bytes_survive_a_refill() {
        let buffers = Buffers::with_size(4, SIZE);
        let mut inbox = buffers.take();
        inbox.resize(SIZE - 10, 1);
        let body = inbox.split_to(SIZE - 110).freeze();
        buffers.refill(&mut inbox);
        assert_eq!(inbox.len(), 100);
        assert!(inbox.iter().all(|byte| *byte == 1));
        assert!(inbox.capacity() - inbox.len() >= LEAST_ROOM_BYTES);
        assert_eq!(body.len(), SIZE - 110);
    }

    #[test]
    fn a_steady_run_allocates_no_further_buffer() {
        let buffers = Buffers::with_size(4, SIZE);
        let mut inbox = buffers.take();
        for _ in 0..1000 {
            buffers.refill(&mut inbox);
            let room = inbox.capacity() - inbox.len();
            inbox.resize(inbox.len() + room.min(5000), 3);
            drop(inbox.split().freeze());
        }
        assert_eq!(buffers.counts().0, 1);
    }

    #[test]
    fn the_pool_keeps_no_more_than_it_may() {
        let buffers = Buffers::with_size(2, SIZE);
        for _ in 0..5 {
            buffers.put_back(BytesMut::with_capacity(SIZE));
        }
        assert_eq!(buffers.shared.resting.lock().expect("no panic holds it").buffers.len(), 2);
    }
}
