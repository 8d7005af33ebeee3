//! gzip (RFC 1952): each frame is a member, and its header says how long it is.
//!
//! The extra field has one subfield, `FB`: the length of the member, then of its text, each
//! as 32 bits, the low byte first. Programs skip it. From member to member one hops without
//! decompressing. (The same thing as BGZF of the HTS library, whose field has 16 bits and so
//! frames of 64 KiB at most.)

use std::io;

use flate2::{Compress, Compression, Crc, Decompress, FlushCompress, FlushDecompress, Status};

use super::{Bytes, FRAME_BYTES_MAX, FRAME_OVERHEAD_BYTES, FRAMES_MAX, Frame, Layout, Level, broken};

/// Magic, deflate, an extra field; no time; no hint; unknown system; 12 bytes of extra
/// field: one subfield of 8 bytes.
const HEAD: [u8; 16] = [0x1f, 0x8b, 8, 4, 0, 0, 0, 0, 0, 255, 12, 0, b'F', b'B', 8, 0];
const HEADER_BYTES: usize = HEAD.len() + 8;
/// CRC-32 and length of the text.
const TRAILER_BYTES: usize = 8;

/// What apt and gzip take when nobody says otherwise; ours as well.
const LEVEL: u32 = 6;

pub(super) fn layout(file: &mut Bytes<'_>) -> io::Result<Option<Layout>> {
    let mut frames = Vec::new();
    let mut offset = 0;
    while offset < file.size {
        let header: [u8; HEADER_BYTES] = file.read(offset)?;
        let (size, plain) = (number(&header[16..]), number(&header[20..]));
        let fits = (HEADER_BYTES + TRAILER_BYTES..=FRAME_BYTES_MAX + FRAME_OVERHEAD_BYTES).contains(&(size as usize));
        if header[..16] != HEAD || !fits || plain as usize > FRAME_BYTES_MAX || frames.len() == FRAMES_MAX {
            return Ok(None);
        }
        frames.push(Frame { size, plain: Some(plain), padding: 0 });
        offset += u64::from(size);
    }
    // An empty file is not a gzip file.
    Ok((offset == file.size && offset > 0).then_some(Layout { start: 0, frames }))
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

pub(super) struct Encoder {
    deflate: Compress,
}

impl Encoder {
    pub(super) fn new(_: Level) -> Encoder {
        Encoder { deflate: Compress::new(Compression::new(LEVEL), false) }
    }

    pub(super) fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<()> {
        let start = out.len();
        out.extend_from_slice(&HEAD);
        out.extend_from_slice(&[0; 4]);
        out.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        self.deflate.reset();
        loop {
            let done = self.deflate.total_in() as usize;
            out.reserve(plain.len() / 4 + 1024);
            match self.deflate.compress_vec(&plain[done..], out, FlushCompress::Finish)? {
                Status::StreamEnd => break,
                Status::Ok | Status::BufError => {}
            }
        }
        let mut crc = Crc::new();
        crc.update(plain);
        out.extend_from_slice(&crc.sum().to_le_bytes());
        out.extend_from_slice(&(plain.len() as u32).to_le_bytes());
        let size = (out.len() - start) as u32;
        out[start + 16..start + 20].copy_from_slice(&size.to_le_bytes());
        Ok(())
    }
}

pub(super) struct Decoder {
    inflate: Decompress,
}

impl Decoder {
    pub(super) fn new() -> Decoder {
        Decoder { inflate: Decompress::new(false) }
    }

    pub(super) fn decode(&mut self, bytes: &[u8], room: &mut [u8]) -> io::Result<usize> {
        let body = bytes.get(HEADER_BYTES..).and_then(|rest| rest.split_last_chunk::<TRAILER_BYTES>());
        let (body, trailer) = body.ok_or_else(|| broken("gzip member without an end"))?;
        self.inflate.reset(false);
        // An empty slice would be no progress to the library; a member of no text has its end all the same.
        let mut one = [0];
        let target = if room.is_empty() { &mut one[..] } else { &mut *room };
        let status = self.inflate.decompress(body, target, FlushDecompress::Finish)?;
        let length = self.inflate.total_out() as usize;
        if status != Status::StreamEnd || self.inflate.total_in() != body.len() as u64 || length > room.len() {
            return Err(broken("gzip member of another length than its header says"));
        }
        let mut crc = Crc::new();
        crc.update(&room[..length]);
        if number(trailer) != crc.sum() || number(&trailer[4..]) != length as u32 {
            return Err(broken("gzip member with a wrong checksum"));
        }
        Ok(length)
    }
}
