//! A pool of memory for content. Memory returned to the kernel comes back page by page, each at the cost of a page
//! fault and of zeroing. That took a sixth of all processor time of an upload to a grid (measured: 100 MB, 3-of-10).

use std::sync::{Arc, Mutex, PoisonError};

/// Maximum number of idle buffers. The window bounds those in use.
const KEPT: usize = 64;

/// From this size on, buffers have one of few capacities, so that one can serve in another's place. It is the size of a
/// record or a block, with its header.
const LARGE_BYTES: usize = 64 << 10;
const CAPACITY_STEP_BYTES: usize = (1 << 20) + LARGE_BYTES;

fn capacity(length: usize) -> usize {
    if length < LARGE_BYTES { length } else { length.next_multiple_of(CAPACITY_STEP_BYTES) }
}

/// A pool of buffers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemoryPool {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl MemoryPool {
    /// Returns a buffer of `length` bytes with arbitrary content.
    pub fn take(&self, length: usize) -> Vec<u8> {
        let (found, useless) = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            match idle.iter().rposition(|buffer| buffer.capacity() >= length) {
                Some(place) => (Some(idle.swap_remove(place)), None),
                // For each new buffer, one that is too small is dropped, so that idle buffers do not outgrow those in
                // use.
                None => (None, idle.pop()),
            }
        };
        drop(useless);
        // The kernel's zeros are free; `resize` would write them.
        let mut buffer = found.unwrap_or_else(|| vec![0; capacity(length)]);
        buffer.resize(length, 0);
        buffer
    }

    /// Returns an idle buffer, or an empty one.
    pub fn take_idle(&self) -> Vec<u8> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Returns a buffer to the pool.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < KEPT && buffer.capacity() > 0 {
            idle.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_and_freed_when_it_is_too_small() {
        let pool = MemoryPool::default();
        let capacities = || pool.idle.lock().unwrap().iter().map(Vec::capacity).collect::<Vec<_>>();
        let buffer = pool.take(20);
        let address = buffer.as_ptr();
        pool.give(buffer);
        let again = pool.take(10);
        assert_eq!((again.as_ptr(), again.len(), capacities().len()), (address, 10, 0));
        pool.give(again);
        pool.give(pool.take(LARGE_BYTES));
        assert_eq!(capacities(), [CAPACITY_STEP_BYTES], "the small one went");
        assert_eq!(pool.take_idle().capacity(), CAPACITY_STEP_BYTES);
        assert_eq!(pool.take_idle().capacity(), 0);
        (0..2 * KEPT).for_each(|_| pool.give(vec![1]));
        assert_eq!(capacities().len(), KEPT);
    }
}
