//! Bytes to be written: request heads joined in one buffer, and large body pieces by reference, so that an upload is
//! not copied.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Body pieces below this size are copied behind the heads; larger ones are queued by reference. 4 KiB: copying a page
/// is cheaper than one more `iovec`. A guess.
const COPY_BYTES_MAX: usize = 4 * 1024;

/// The queue of bytes to send. It is a [`Buf`], so `write_buf` and vectored writes accept it.
#[derive(Debug, Default)]
pub struct Outgoing {
    segments: VecDeque<Bytes>,
    /// Bytes behind all segments.
    tail: BytesMut,
    /// Number of bytes in `segments`.
    segment_bytes: usize,
}

impl Outgoing {
    /// Number of bytes that are not written yet.
    pub fn len(&self) -> usize {
        self.segment_bytes + self.tail.len()
    }

    /// Whether all bytes have been written.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buffer at the end of the queue.
    pub(super) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    /// Appends a piece of a body.
    pub(super) fn push(&mut self, data: Bytes) {
        if data.len() < COPY_BYTES_MAX {
            self.tail.extend_from_slice(&data);
            return;
        }
        if !self.tail.is_empty() {
            let heads = self.tail.split().freeze();
            self.segment_bytes += heads.len();
            self.segments.push_back(heads);
        }
        self.segment_bytes += data.len();
        self.segments.push_back(data);
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.segments.front().map_or(&self.tail, |first| first)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let parts =
            self.segments.iter().map(|segment| &segment[..]).chain((!self.tail.is_empty()).then_some(&self.tail[..]));
        let mut filled = 0;
        for (slice, part) in slices.iter_mut().zip(parts) {
            *slice = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut count: usize) {
        while count > 0 {
            let Some(first) = self.segments.front_mut() else {
                self.tail.advance(count);
                return;
            };
            let step = count.min(first.len());
            first.advance(step);
            self.segment_bytes -= step;
            count -= step;
            if first.is_empty() {
                self.segments.pop_front();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_keep_their_order_and_large_ones_are_not_copied() {
        let mut outgoing = Outgoing::default();
        outgoing.buffer().extend_from_slice(b"head1 ");
        let large = Bytes::from(vec![b'x'; COPY_BYTES_MAX]);
        outgoing.push(large.clone());
        outgoing.push(Bytes::from_static(b"small"));
        outgoing.buffer().extend_from_slice(b" head2");
        assert_eq!(outgoing.len(), 6 + COPY_BYTES_MAX + 11);
        assert!(outgoing.segments.iter().any(|part| part.as_ptr() == large.as_ptr()));
        let mut slices = [IoSlice::new(&[]); 8];
        assert_eq!(outgoing.chunks_vectored(&mut slices), 3);
        outgoing.advance(7);
        let rest = outgoing.copy_to_bytes(outgoing.remaining());
        assert!(rest.starts_with(b"xxx") && rest.ends_with(b"xsmall head2"));
        assert!(outgoing.is_empty());
    }
}
