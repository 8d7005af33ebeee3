//! xz (file format 1.2.1): one stream of many blocks, and the index that the format has anyway.
//!
//! The library at hand makes whole streams only. So each block is compressed as a stream of
//! its own, from which header, index and footer are taken off; for decompressing they are put
//! on again, which has the library check the block's lengths and CRC.

use std::io;

use flate2::Crc;
use liblzma::stream::{Action, Check, Error, Filters, LzmaOptions, Status, Stream};

use super::{Bytes, FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, FRAMES_MAX, Frame, Layout, Level, broken};

/// Magic, flags (CRC-32 of each block's text), CRC of the flags.
pub(super) const HEAD: [u8; 12] = [0xfd, b'7', b'z', b'X', b'Z', 0, 0, 1, 0x69, 0x22, 0xde, 0x36];
const FLAGS: [u8; 2] = [HEAD[6], HEAD[7]];
const FOOTER_BYTES: usize = 12;
const FOOTER_MAGIC: [u8; 2] = *b"YZ";

/// Memory for decompressing a block of ours: a dictionary of [`FRAME_BYTES_MAX`] and some tens of KB. A
/// file that asks for more is read from its beginning.
const MEMORY_BYTES: u64 = 16 << 20;

/// Longest number in an index: 63 bits, seven in each byte.
const NUMBER_BYTES: usize = 9;

pub(super) fn layout(file: &mut Bytes<'_>) -> io::Result<Option<Layout>> {
    let least = (HEAD.len() + FOOTER_BYTES) as u64;
    if file.size < least || !file.size.is_multiple_of(4) || file.read::<12>(0)? != HEAD {
        return Ok(None);
    }
    let footer: [u8; FOOTER_BYTES] = file.read(file.size - FOOTER_BYTES as u64)?;
    let index_bytes = (u64::from(number(&footer[4..])) + 1) * 4;
    // Two numbers for each frame, of three bytes each at least when they are ours; nine in the worst case.
    let too_long = index_bytes > (FRAMES_MAX * 2 * NUMBER_BYTES) as u64 || index_bytes > file.size - least;
    if footer != footer_of(index_bytes) || too_long {
        return Ok(None);
    }
    let end = file.size - FOOTER_BYTES as u64 - index_bytes;
    let index = file.read_vec(end, index_bytes as usize)?;
    Ok(read_index(&index, end))
}

/// The blocks, if the index is whole and they fill the file up to it.
fn read_index(index: &[u8], end: u64) -> Option<Layout> {
    let (body, crc) = index.split_last_chunk::<4>()?;
    if number(crc) != crc32(body) {
        return None;
    }
    let mut rest = body.strip_prefix(&[0])?;
    let count = variable(&mut rest)?;
    if count > FRAMES_MAX as u64 {
        return None;
    }
    let mut frames = Vec::new();
    let mut offset = HEAD.len() as u64;
    for _ in 0..count {
        let (unpadded, plain) = (variable(&mut rest)?, variable(&mut rest)?);
        if unpadded > (FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES) as u64 || plain > FRAME_BYTES_MAX as u64 {
            return None;
        }
        let padding = (4 - unpadded % 4) % 4;
        let size = unpadded + padding;
        offset += size;
        frames.push(Frame { size: size as u32, plain: Some(plain as u32), padding: padding as u8 });
    }
    let padded = rest.len() < 4 && rest.iter().all(|byte| *byte == 0);
    (padded && offset == end).then_some(Layout { start: HEAD.len() as u64, frames })
}

/// Index and footer of a stream of these blocks.
pub(super) fn tail(frames: &[Frame]) -> Vec<u8> {
    let mut tail = vec![0];
    put_variable(&mut tail, frames.len() as u64);
    for frame in frames {
        put_variable(&mut tail, u64::from(frame.size) - u64::from(frame.padding));
        put_variable(&mut tail, u64::from(frame.plain.unwrap_or(0)));
    }
    tail.resize(tail.len().next_multiple_of(4), 0);
    let crc = crc32(&tail);
    tail.extend_from_slice(&crc.to_le_bytes());
    let footer = footer_of(tail.len() as u64);
    tail.extend_from_slice(&footer);
    tail
}

fn footer_of(index_bytes: u64) -> [u8; FOOTER_BYTES] {
    let mut footer = [0; FOOTER_BYTES];
    footer[4..8].copy_from_slice(&((index_bytes / 4 - 1) as u32).to_le_bytes());
    footer[8..10].copy_from_slice(&FLAGS);
    let crc = crc32(&footer[4..10]);
    footer[..4].copy_from_slice(&crc.to_le_bytes());
    footer[10..].copy_from_slice(&FOOTER_MAGIC);
    footer
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// Seven bits in each byte, the low ones first; the high bit says that more follow.
fn variable(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for index in 0..NUMBER_BYTES {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            // The shortest way to write it is the only one.
            return (byte != 0 || index == 0).then_some(value);
        }
    }
    None
}

fn put_variable(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

pub(super) struct Encoder {
    filters: Filters,
    stream: Vec<u8>,
}

impl Encoder {
    pub(super) fn new(level: Level) -> io::Result<Encoder> {
        let mut options = match level {
            Level::Fast => LzmaOptions::new_preset(0)?,
            Level::Best => LzmaOptions::new_preset(6)?,
        };
        if level == Level::Best {
            // A dictionary larger than the block finds nothing more and costs 94 MB.
            options.dict_size(FRAME_BYTES_MAX as u32);
        }
        let mut filters = Filters::new();
        filters.lzma2(&options);
        Ok(Encoder { filters, stream: Vec::new() })
    }

    /// Gives the bytes of padding at the end.
    pub(super) fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<u8> {
        let mut stream = Stream::new_stream_encoder(&self.filters, Check::Crc32)?;
        self.stream.clear();
        loop {
            let done = stream.total_in() as usize;
            self.stream.reserve(plain.len() / 4 + 1024);
            match stream.process_vec(&plain[done..], &mut self.stream, Action::Finish)? {
                Status::StreamEnd => break,
                Status::Ok | Status::MemNeeded | Status::GetCheck => {}
            }
        }
        let footer = self.stream.len() - FOOTER_BYTES;
        let index_bytes = (number(&self.stream[footer + 4..]) as usize + 1) * 4;
        let layout = read_index(&self.stream[footer - index_bytes..footer], (footer - index_bytes) as u64);
        let Some([frame]) = layout.as_ref().map(|layout| &layout.frames[..]) else {
            return if plain.is_empty() { Ok(0) } else { Err(broken("a stream of other than one block")) };
        };
        out.extend_from_slice(&self.stream[HEAD.len()..HEAD.len() + frame.size as usize]);
        Ok(frame.padding)
    }
}

pub(super) fn decode(frame: &Frame, bytes: &[u8], room: &mut [u8]) -> io::Result<usize> {
    let mut stream = Stream::new_stream_decoder(MEMORY_BYTES, 0)?;
    let tail = tail(std::slice::from_ref(frame));
    for (part, is_last) in [(&HEAD[..], false), (bytes, false), (&tail, true)] {
        let (from, filled) = (stream.total_in(), stream.total_out() as usize);
        let status = match stream.process(part, &mut room[filled..], Action::Run) {
            Err(Error::MemLimit) | Ok(Status::MemNeeded) => return Err(broken("xz block that needs much memory")),
            status => status?,
        };
        let whole = stream.total_in() - from == part.len() as u64;
        match status {
            Status::StreamEnd if whole && is_last => return Ok(stream.total_out() as usize),
            Status::Ok if whole && !is_last => {}
            _ => return Err(broken("xz block of another length than the index says")),
        }
    }
    Err(broken("xz block that does not end"))
}
