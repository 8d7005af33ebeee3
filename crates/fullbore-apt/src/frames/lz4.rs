//! LZ4: one frame of independent blocks. The length before each block leads to the next.
//!
//! No checksums, as in what apt writes. The frame's header allows blocks of 1 MiB, the next size
//! above that of our largest.

use std::io;

use lz4_flex::block::{CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size};

use super::{Bytes, FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, FRAMES_MAX, Frame, Layout, broken};

/// Magic; version 1 with independent blocks; blocks of at most 1 MiB; the header's checksum (second byte of
/// the xxHash32 of the two before it).
pub(super) const HEAD: [u8; 7] = [0x04, 0x22, 0x4d, 0x18, 0x60, 0x60, 0x51];
/// A block of no length ends the frame.
pub(super) const TAIL: [u8; 4] = [0; 4];
/// Set in the length of a block that is not compressed.
const STORED: u32 = 1 << 31;

pub(super) fn layout(file: &mut Bytes<'_>) -> io::Result<Option<Layout>> {
    if file.read::<7>(0)? != HEAD {
        return Ok(None);
    }
    let start = HEAD.len() as u64;
    let (mut frames, mut offset) = (Vec::new(), start);
    loop {
        let length = u32::from_le_bytes(file.read(offset)?);
        if length == 0 {
            let ended = offset + TAIL.len() as u64 == file.size;
            return Ok(ended.then_some(Layout { start, frames }));
        }
        let size = (length & !STORED).saturating_add(4);
        if size as usize > FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES || frames.len() == FRAMES_MAX {
            return Ok(None);
        }
        frames.push(Frame { size, plain: None, padding: 0 });
        offset += u64::from(size);
    }
}

pub(super) struct Encoder {
    table: CompressTable,
    scratch: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> Encoder {
        Encoder { table: CompressTable::large(), scratch: vec![0; get_maximum_output_size(FRAME_BYTES_MAX)] }
    }

    pub(super) fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        if plain.is_empty() {
            // A block of no length would end the frame.
            return Ok(());
        }
        let length = compress_into_with_table(plain, &mut self.scratch, &mut self.table).map_err(io::Error::other)?;
        if length < plain.len() {
            out.extend_from_slice(&(length as u32).to_le_bytes());
            out.extend_from_slice(&self.scratch[..length]);
        } else {
            out.extend_from_slice(&(plain.len() as u32 | STORED).to_le_bytes());
            out.extend_from_slice(plain);
        }
        Ok(())
    }
}

pub(super) fn decode(bytes: &[u8], spare: &mut [u8]) -> io::Result<usize> {
    let (length, block) = bytes.split_first_chunk().ok_or_else(|| broken("LZ4 block without a length"))?;
    let length = u32::from_le_bytes(*length);
    if (length & !STORED) as usize != block.len() || block.is_empty() {
        return Err(broken("LZ4 block of another length"));
    }
    if length & STORED == 0 {
        return decompress_into(block, spare).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
    }
    spare.get_mut(..block.len()).ok_or_else(|| broken("LZ4 block too large"))?.copy_from_slice(block);
    Ok(block.len())
}
