//! One share on its way: where it stands, and its bytes that are in memory.

use std::collections::VecDeque;

use bytes::Bytes;
use tokio::task::AbortHandle;

use crate::gbs::UploadSecret;

/// Where a share stands.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) enum ShareState {
    /// Nowhere yet.
    #[default]
    Unplaced,
    /// Asked for; the first bytes may be on their way.
    Asked,
    /// The server takes it.
    Allocated,
    /// It is there, complete.
    Done,
    /// Lost after its beginning had left memory.
    Lost,
    /// No server takes it.
    Homeless,
}

#[derive(Debug, Default)]
pub(super) struct Share {
    pub state: ShareState,
    pub server: usize,
    pub secret: UploadSecret,
    /// Counts how often it was placed: answers to earlier requests say nothing about later ones.
    pub attempt: u32,
    /// What is in memory, and where in the share that begins.
    pub pieces: VecDeque<Bytes>,
    pub base: u64,
    pub gathered: u64,
    /// The first bytes went out with the question.
    pub speculated: u64,
    /// Writes that are not answered, and bytes that are acknowledged.
    pub open_writes: u32,
    pub acknowledged: u64,
    /// Those that wait for answers of writes: what is not sent when they end is not sent any more.
    pub waiting: Vec<AbortHandle>,
    /// Taken from the journal: these bytes are there and are not sent again.
    pub skip: u64,
    /// Its place is one that the journal knew, and the server has not confirmed it yet.
    pub taken_up: bool,
    /// It was taken from a server that has another one.
    pub moved: bool,
    /// Its first bytes were refused, which says something once it is known that the server takes it.
    pub early_error: Option<String>,
}

impl Share {
    pub(super) fn wants_bytes(&self) -> bool {
        matches!(self.state, ShareState::Unplaced | ShareState::Asked | ShareState::Allocated)
    }

    /// Every byte was sent, and some perhaps not answered.
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

    /// Lets go of what the server has already.
    pub(super) fn drop_skipped(&mut self) {
        if self.state == ShareState::Allocated && self.skip > self.base {
            let count = (self.skip - self.base).min(self.gathered);
            self.take(count);
        }
    }

    /// The first `count` bytes, which leave memory once they are acknowledged.
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

    /// A copy of the first `count` bytes, which stay.
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
