//! Memory for content, used again: a fresh megabyte from the system costs more than copying it.

use std::sync::{Arc, Mutex, PoisonError};

/// Buffers kept. What is in flight is bounded by the window; these are the ones that rest.
const KEPT: usize = 64;

/// A pool of buffers. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    buffers: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Pool {
    /// A buffer of this length, with whatever was in it.
    pub fn take(&self, length: usize) -> Vec<u8> {
        let mut buffer = {
            let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
            let fits = buffers.iter().rposition(|buffer| buffer.capacity() >= length);
            fits.map(|place| buffers.swap_remove(place)).unwrap_or_default()
        };
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
