//! Memory that was read into, used again when the reader of the data has dropped it: memory that is given back to the
//! kernel returns page by page, each at the cost of a fault and of zeros that nobody reads (measured: a get of 1 GB on
//! loopback, a twelfth of the client's processor time).

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use bytes::BytesMut;

/// Bytes read from a socket at once.
pub(super) const READ_BYTES: usize = 256 << 10;

/// Below this much room memory is left for other memory.
const LEAST_ROOM: usize = 16 << 10;

/// Memory that was read into, in the order in which it was full. Some of it is still with the reader of the data.
#[derive(Debug)]
pub(super) struct Memory {
    kept: Mutex<VecDeque<BytesMut>>,
    /// Pieces that are kept.
    most: usize,
}

impl Memory {
    /// None yet; `kept_bytes` of it will be kept.
    pub(super) fn new(kept_bytes: usize) -> Memory {
        Memory { kept: Mutex::default(), most: kept_bytes / READ_BYTES }
    }

    /// Room for the first read of a connection.
    pub(super) fn inbox(&self) -> BytesMut {
        self.take(READ_BYTES)
    }

    /// Gives `inbox` room for another read, if it has little left. What is in it stays.
    pub(crate) fn make_room(&self, inbox: &mut BytesMut) {
        if inbox.capacity() - inbox.len() >= LEAST_ROOM {
            return;
        }
        let mut room = self.take(READ_BYTES.max(inbox.len() + LEAST_ROOM));
        room.extend_from_slice(inbox);
        let mut full = std::mem::replace(inbox, room);
        full.clear();
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_back(full);
        if kept.len() > self.most {
            kept.pop_front();
        }
    }

    fn take(&self, bytes: usize) -> BytesMut {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let free = kept.iter_mut().position(|memory| memory.try_reclaim(bytes));
        free.and_then(|free| kept.remove(free)).unwrap_or_else(|| BytesMut::with_capacity(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_again_when_its_data_was_dropped() {
        let memory = Memory::new(10 * READ_BYTES);
        let mut inbox = memory.inbox();
        let address = inbox.as_ptr();
        inbox.resize(READ_BYTES, 1);
        let came = inbox.split_to(READ_BYTES - 10).freeze();
        memory.make_room(&mut inbox);
        assert_ne!(inbox.as_ptr(), address, "somebody has it");
        assert!(inbox[..] == [1; 10] && inbox.capacity() == READ_BYTES);
        let other = inbox.as_ptr();
        memory.make_room(&mut inbox);
        assert_eq!(inbox.as_ptr(), other, "there is room");
        drop(came);
        inbox.resize(READ_BYTES, 2);
        inbox.clear();
        let _ = inbox.split_off(0);
        memory.make_room(&mut inbox);
        assert_eq!(inbox.as_ptr(), address);
        assert!(inbox.is_empty() && inbox.capacity() == READ_BYTES);
    }
}
