//! Zstandard (RFC 8878): frames, and behind them a table in a skippable frame.
//!
//! The table is that of zstd's seekable format: magic `0x184D2A5E`, its length, for each
//! frame its length and that of its text, the number of frames, a byte of flags (no
//! checksums), magic `0x8F92EAB1`; numbers have 32 bits, the low byte first.

use std::io;

use super::{Bytes, FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, FRAMES_MAX, Frame, Layout, Level, broken};

const SKIPPABLE_MAGIC: u32 = 0x184D_2A5E;
const TABLE_MAGIC: u32 = 0x8F92_EAB1;
const HEADER_BYTES: usize = 8;
const ENTRY_BYTES: usize = 8;
const FOOTER_BYTES: usize = 9;

/// apt's level up to 2.9.33.
const LEVEL_BEST: i32 = 19;
/// The lowest level at which Contents are as small as with gzip -9; see bench/README.md.
const LEVEL_FAST: i32 = 3;

pub(super) fn layout(file: &mut Bytes<'_>) -> io::Result<Option<Layout>> {
    let Some(footer_at) = file.size.checked_sub(FOOTER_BYTES as u64) else { return Ok(None) };
    let footer: [u8; FOOTER_BYTES] = file.read(footer_at)?;
    let count = number(&footer) as usize;
    if number(&footer[5..]) != TABLE_MAGIC || footer[4] != 0 || count > FRAMES_MAX {
        return Ok(None);
    }
    let length = HEADER_BYTES + count * ENTRY_BYTES + FOOTER_BYTES;
    let Some(end) = file.size.checked_sub(length as u64) else { return Ok(None) };
    let table = file.read_vec(end, length - FOOTER_BYTES)?;
    let (header, entries) = table.split_at(HEADER_BYTES);
    if number(header) != SKIPPABLE_MAGIC || number(&header[4..]) as usize != length - HEADER_BYTES {
        return Ok(None);
    }
    let entry = |entry: &[u8]| Frame { size: number(entry), plain: Some(number(&entry[4..])), padding: 0 };
    let frames: Vec<Frame> = entries.chunks_exact(ENTRY_BYTES).map(entry).collect();
    let ours = |frame: &Frame| {
        frame.size as usize <= FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES
            && frame.plain.is_some_and(|plain| plain as usize <= FRAME_BYTES_MAX)
    };
    let all: u64 = frames.iter().map(|frame| u64::from(frame.size)).sum();
    Ok((all == end && frames.iter().all(ours)).then_some(Layout { start: 0, frames }))
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The table of these frames.
pub(super) fn tail(frames: &[Frame]) -> Vec<u8> {
    let length = frames.len() * ENTRY_BYTES + FOOTER_BYTES;
    let mut table = Vec::with_capacity(HEADER_BYTES + length);
    table.extend_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
    table.extend_from_slice(&(length as u32).to_le_bytes());
    for frame in frames {
        table.extend_from_slice(&frame.size.to_le_bytes());
        table.extend_from_slice(&frame.plain.unwrap_or(0).to_le_bytes());
    }
    table.extend_from_slice(&(frames.len() as u32).to_le_bytes());
    table.push(0);
    table.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
    table
}

pub(super) struct Encoder {
    context: zstd::bulk::Compressor<'static>,
    /// Room for the worst case; what came out is copied, so that no frame holds more than it needs.
    scratch: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(level: Level) -> io::Result<Encoder> {
        let level = match level {
            Level::Fast => LEVEL_FAST,
            Level::Best => LEVEL_BEST,
        };
        Ok(Encoder { context: zstd::bulk::Compressor::new(level)?, scratch: Vec::new() })
    }

    pub(super) fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        self.scratch.clear();
        self.scratch.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        self.context.compress_to_buffer(plain, &mut self.scratch)?;
        out.extend_from_slice(&self.scratch);
        Ok(())
    }
}

pub(super) struct Decoder {
    context: zstd::bulk::Decompressor<'static>,
}

impl Decoder {
    pub(super) fn new() -> io::Result<Decoder> {
        Ok(Decoder { context: zstd::bulk::Decompressor::new()? })
    }

    /// One call takes all the bytes or fails. If they are several frames, they are what reading
    /// from the beginning would give all the same.
    pub(super) fn decode(&mut self, bytes: &[u8], room: &mut [u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Err(broken("empty zstd frame"));
        }
        self.context.decompress_to_buffer(bytes, room)
    }
}
