//! Memory for content, used again: a fresh megabyte from the system costs more than copying it.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers kept. What is in flight is bounded by the window; these are the ones that rest.
const KEPT: usize = 64;

/// From this size on buffers are made of the same few lengths, in bytes, so that one fits in another's place: a record, or
/// a block, and what stands before it.
const LARGE_BYTES: usize = 64 << 10;
const ROOM_BYTES: usize = (1 << 20) + LARGE_BYTES;

/// An empty buffer with room for so many bytes.
pub(crate) fn fresh(length: usize) -> Vec<u8> {
    Vec::with_capacity(if length < LARGE_BYTES { length } else { length.next_multiple_of(ROOM_BYTES) })
}

/// A pool of buffers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Pool {
    /// A buffer of this length, with whatever was in it.
    pub fn take(&self, length: usize) -> Vec<u8> {
        let buffer = {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = buffers.iter().rposition(|buffer| buffer.capacity() >= length);
            fits.map(|place| buffers.swap_remove(place))
        };
        let mut buffer = buffer.unwrap_or_else(|| fresh(length));
        buffer.resize(length, 0);
        buffer
    }

    /// A buffer that rests, or an empty one.
    pub fn rest(&self) -> Vec<u8> {
        self.buffers.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
    }

    /// Takes a buffer back.
    pub fn give(&self, buffer: Vec<u8>) {
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        if buffers.len() < KEPT && buffer.capacity() > 0 {
            buffers.push(buffer);
        }
    }
}
