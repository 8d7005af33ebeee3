//! Read buffers that are reused.
//!
//! A connection reads into a `BytesMut`, hands out slices of it as `Bytes`, and asks for room when it is nearly full.
//! The pool then returns the same memory if every slice has been dropped. Otherwise it returns an idle buffer whose
//! slices are all gone, or a new one. So nothing is copied or zeroed per read, and a steady run allocates nothing. The
//! window bounds the bytes in flight; the pool bounds the idle buffers.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;

/// Size of one read buffer in bytes. 256 KiB: beyond it larger reads from a
/// socket no longer save measurable CPU (a guess from published socket
/// benchmarks, to be confirmed by `bench/`), and 16 connections hold 4 MiB.
pub(crate) const BUFFER_BYTES: usize = 256 * 1024;

/// Below this much room a read costs a system call for too little. A guess:
/// one full TLS record (16 KiB).
pub(crate) const LEAST_ROOM_BYTES: usize = 16 * 1024;

/// How many idle buffers are tested for live slices before a new one is allocated. This bounds the time of one refill.
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
    /// Creates a pool that keeps at most `keep` idle buffers of `BUFFER_BYTES`.
    pub fn new(keep: usize) -> Buffers {
        Buffers::with_size(keep, BUFFER_BYTES)
    }

    /// Creates a pool of buffers of `size` bytes instead of [`BUFFER_BYTES`].
    pub(crate) fn with_size(keep: usize, size: usize) -> Buffers {
        Buffers { shared: Arc::new(Pool { keep, size: size.max(1), resting: Mutex::default() }) }
    }

    /// Takes an empty buffer with room for `BUFFER_BYTES` from the pool, or allocates one.
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

    /// Makes room in a connection's inbox without growing it. Bytes that were not consumed yet (part of a head, usually
    /// none) move to the new buffer.
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

    /// Returns a buffer when its connection ends. Its memory is reused once the slices made from it are dropped.
    pub fn put_back(&self, mut buffer: BytesMut) {
        buffer.clear();
        let mut resting = self.shared.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.buffers.push_back(buffer);
        if resting.buffers.len() > self.shared.keep {
            resting.buffers.pop_front();
        }
    }

    /// Numbers of buffers allocated and of buffers reused, since the pool was made.
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
