//! Extracts frames from a stream of bytes, however it is split.
//!
//! The decoder hands out memory for the next bytes, so that content is read from the socket to its final place. A
//! frame's memory is allocated once its header has arrived and its length is within the bounds of its kind.

use fullbore_engine::memory_pool::MemoryPool;

use super::decode::{self, WireError};
use super::message::Message;

/// Bytes before the body: four of length, one of kind.
const HEAD_BYTES: usize = 5;

/// Takes bytes and returns messages.
///
/// ```
/// use fullbore_copy::wire::{Decoder, Message, encode};
///
/// let mut frame = Vec::new();
/// encode(&Message::Finish { records: 7 }, &mut frame);
/// let (mut decoder, mut message) = (Decoder::new(), None);
/// for byte in frame {
///     decoder.space()[0] = byte;
///     message = decoder.filled(1)?;
/// }
/// assert_eq!(message, Some(Message::Finish { records: 7 }));
/// # Ok::<(), fullbore_copy::wire::WireError>(())
/// ```
#[derive(Debug, Default)]
pub struct Decoder {
    head: [u8; HEAD_BYTES],
    /// Number of header bytes that have arrived.
    head_bytes: usize,
    body: Vec<u8>,
    /// Number of body bytes that have arrived.
    body_bytes: usize,
    /// Pool for the memory of bodies.
    pool: MemoryPool,
}

impl Decoder {
    /// Makes a decoder that has received nothing.
    pub fn new() -> Decoder {
        Decoder::default()
    }

    /// Makes a decoder that takes memory from a pool. The reader of the content gives it back.
    pub(crate) fn with_pool(pool: MemoryPool) -> Decoder {
        Decoder { pool, ..Decoder::default() }
    }

    /// Memory for the next bytes; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        if self.head_bytes < HEAD_BYTES { &mut self.head[self.head_bytes..] } else { &mut self.body[self.body_bytes..] }
    }

    /// Whether the stream may end here, between frames.
    pub(crate) fn is_between_frames(&self) -> bool {
        self.head_bytes == 0
    }

    /// Tells the decoder that the first `bytes` bytes of [`Decoder::space`] are filled. Returns a message if one is
    /// complete.
    ///
    /// # Errors
    /// [`WireError`] if the data is malformed; nothing more can be read then.
    pub fn filled(&mut self, bytes: usize) -> Result<Option<Message>, WireError> {
        if self.head_bytes < HEAD_BYTES {
            self.head_bytes = (self.head_bytes + bytes).min(HEAD_BYTES);
            if self.head_bytes < HEAD_BYTES {
                return Ok(None);
            }
            let [one, two, three, four, kind] = self.head;
            let length = u32::from_le_bytes([one, two, three, four]);
            if length as usize > decode::longest(kind)? {
                return Err(WireError::TooLong { kind, length: u64::from(length) });
            }
            self.body = self.memory(length as usize);
            self.body_bytes = 0;
        } else {
            self.body_bytes += bytes;
        }
        if self.body_bytes < self.body.len() {
            return Ok(None);
        }
        self.head_bytes = 0;
        self.body_bytes = 0;
        decode::message(self.head[4], &mut self.body).map(Some)
    }

    fn memory(&mut self, length: usize) -> Vec<u8> {
        // The buffer of a message without content is reused for the next one.
        let mut buffer = std::mem::take(&mut self.body);
        if buffer.capacity() < length {
            return self.pool.take(length);
        }
        // Fill only the missing part with zeros.
        buffer.truncate(length);
        buffer.resize(length, 0);
        buffer
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::encode;

    #[test]
    fn memory_for_content_is_not_spent_on_messages_without() {
        let mut decoder = Decoder::new();
        let room = 1 << 20;
        decoder.pool.give(Vec::with_capacity(room));
        for sequence in 0..3 {
            let (mut frame, mut heard) = (Vec::new(), None);
            encode(&Message::Acknowledge { sequence }, &mut frame);
            let mut rest = &frame[..];
            while heard.is_none() {
                let space = decoder.space();
                let count = space.len().min(rest.len());
                space[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                heard = decoder.filled(count).unwrap();
            }
            assert_eq!(heard, Some(Message::Acknowledge { sequence }));
        }
        assert!(decoder.body.capacity() + decoder.pool.take_idle().capacity() >= room);
    }
}
