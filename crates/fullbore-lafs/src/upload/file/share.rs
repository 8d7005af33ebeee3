//! One share of an upload: its state, and its bytes in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::task::AbortHandle;

use crate::gbs::UploadSecret;

/// State of a share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ShareState {
    /// Without a server.
    #[default]
    Unplaced,
    /// Requested at its server; the first bytes may be in flight.
    Asked,
    /// Accepted by its server.
    Allocated,
    /// Complete on its server.
    Done,
    /// Lost after its beginning had left memory.
    Lost,
    /// Refused by every server.
    Homeless,
}

#[derive(Debug, Default)]
pub(super) struct Share {
    pub state: ShareState,
    pub server: usize,
    pub secret: UploadSecret,
    /// Incremented with each placement: answers to earlier requests are ignored.
    pub attempt: u32,
    /// Bytes in memory; the next fields have their offset in the share, and their number.
    pub pieces: VecDeque<Bytes>,
    pub base: u64,
    pub gathered: u64,
    /// Number of first bytes sent along with the request for room.
    pub speculated: u64,
    /// Number of unanswered writes; the next field has the acknowledged bytes.
    pub open_writes: u32,
    pub acknowledged: u64,
    /// Tasks that await answers to writes. A write not yet sent is dropped when its task ends.
    pub waiting: Vec<AbortHandle>,
    /// Bytes that a resumed share has on its server; they are not sent again.
    pub skip: u64,
    /// Whether the place comes from the journal and the server has not confirmed it yet.
    pub taken_up: bool,
    /// Whether it was moved away from a server that has another share.
    pub moved: bool,
    /// Error of the first bytes. It counts only once the server has accepted the share.
    pub early_error: Option<String>,
}

impl Share {
    pub(super) fn wants_bytes(&self) -> bool {
        matches!(self.state, ShareState::Unplaced | ShareState::Asked | ShareState::Allocated)
    }

    /// Whether every byte was sent, answered or not.
    pub(super) fn is_all_sent(&self, share_len: u64) -> bool {
        self.base.max(self.speculated) >= share_len
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.state, ShareState::Asked | ShareState::Allocated)
    }

    pub(super) fn push(&mut self, bytes: Bytes) {
        self.gathered += bytes.len() as u64;
        self.pieces.push_back(bytes);
        self.drop_skipped();
    }

    /// Drops bytes that the server has already.
    pub(super) fn drop_skipped(&mut self) {
        if self.state == ShareState::Allocated && self.skip > self.base {
            let count = (self.skip - self.base).min(self.gathered);
            self.take(count);
        }
    }

    /// Removes and returns the first `count` bytes.
    pub(super) fn take(&mut self, count: u64) -> Vec<Bytes> {
        let mut taken = Vec::new();
        let mut left = count;
        while left > 0 {
            let Some(mut piece) = self.pieces.pop_front() else { break };
            if piece.len() as u64 > left {
                let rest = piece.split_off(left as usize);
                self.pieces.push_front(rest);
            }
            left -= piece.len() as u64;
            taken.push(piece);
        }
        self.base += count - left;
        self.gathered -= count - left;
        taken
    }

    /// Copies the first `count` bytes, which stay.
    pub(super) fn copy(&self, count: u64) -> Vec<Bytes> {
        let mut copied = Vec::new();
        let mut left = count;
        for piece in &self.pieces {
            if left == 0 {
                break;
            }
            let length = left.min(piece.len() as u64);
            copied.push(piece.slice(..length as usize));
            left -= length;
        }
        copied
    }

    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.gathered = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_a_share_in_order() {
        let mut share = Share::default();
        share.push(Bytes::from_static(b"abcdef"));
        share.push(Bytes::from_static(b"ghi"));
        assert_eq!(share.copy(7).concat(), b"abcdefg");
        assert_eq!(share.take(4).concat(), b"abcd");
        assert_eq!((share.base, share.gathered), (4, 5));
        assert_eq!(share.take(99).concat(), b"efghi");
        assert_eq!((share.base, share.gathered), (9, 0));
    }

    #[test]
    fn what_a_server_has_already_is_not_kept() {
        let mut share = Share { state: ShareState::Allocated, skip: 4, ..Share::default() };
        share.push(Bytes::from_static(b"abc"));
        share.push(Bytes::from_static(b"def"));
        assert_eq!((share.base, share.gathered), (4, 2));
        assert_eq!(share.copy(9).concat(), b"ef");
    }
}
