//! Maps of sparse files: the ranges of a file that the archive contains.

use super::header::unsigned;
use super::{BLOCK_BYTES, TarError};
use crate::release::parse_size as decimal;

/// Maximum number of segments of one file; 4 MiB of memory. A guess: a disk image of 1 TB has fewer.
pub(super) const SEGMENTS_MAX: usize = 1 << 18;

type Segments = Vec<(u64, u64)>;

/// Reads the map of GNU's old format: four segments in the header, more in blocks behind it. Also returns the size of
/// the whole file.
pub(super) fn old_gnu(
    header: &[u8; BLOCK_BYTES],
    offset: u64,
    mut next: impl FnMut() -> Result<[u8; BLOCK_BYTES], TarError>,
) -> Result<(Segments, u64), TarError> {
    let wrong = |what| TarError::Malformed { offset, what };
    let mut segments = Vec::new();
    let mut add = |fields: &[u8]| {
        for pair in fields.chunks_exact(24) {
            // A segment that begins with a NUL byte is unused.
            if pair[0] == 0 {
                continue;
            }
            let number = |field| unsigned(field).ok_or_else(|| wrong("a sparse map that has no numbers"));
            segments.push((number(&pair[..12])?, number(&pair[12..])?));
        }
        if segments.len() > SEGMENTS_MAX {
            return Err(wrong("a sparse map longer than any file needs"));
        }
        Ok(())
    };
    add(&header[386..482])?;
    let mut more = header[482] != 0;
    while more {
        let block = next()?;
        add(&block[..504])?;
        more = block[504] != 0;
    }
    let size = unsigned(&header[483..495]).ok_or_else(|| wrong("a sparse file without its size"))?;
    Ok((segments, size))
}

/// Reads the map of pax format 1.0: decimal numbers, one per line, in blocks before the content. Also returns the
/// number of those blocks.
pub(super) fn leading_map(
    offset: u64,
    mut next: impl FnMut() -> Result<[u8; BLOCK_BYTES], TarError>,
) -> Result<(Segments, u64), TarError> {
    let wrong = |what| TarError::Malformed { offset, what };
    let mut numbers = Vec::new();
    let mut digits = Vec::new();
    let mut blocks = 0;
    // The first line is the number of segments.
    let mut wanted: Option<usize> = None;
    loop {
        let block = next()?;
        blocks += 1;
        for byte in block {
            if byte != b'\n' {
                digits.push(byte);
                if digits.len() > 20 {
                    return Err(wrong("a sparse map that has no numbers"));
                }
                continue;
            }
            let number = decimal(&digits).ok_or_else(|| wrong("a sparse map that has no numbers"))?;
            digits.clear();
            match wanted {
                None => {
                    let count = usize::try_from(number).ok().filter(|count| *count <= SEGMENTS_MAX);
                    wanted = Some(count.ok_or_else(|| wrong("a sparse map longer than any file needs"))?);
                }
                Some(_) => numbers.push(number),
            }
            if wanted == Some(numbers.len() / 2) {
                // The rest of the block is padding.
                return Ok((numbers.chunks_exact(2).map(|pair| (pair[0], pair[1])).collect(), blocks));
            }
        }
    }
}

/// Checks that segments are in order and apart, within the file, and together as long as the stored content.
pub(super) fn check(segments: &[(u64, u64)], size: u64, stored: u64) -> Result<(), &'static str> {
    let (mut end, mut sum) = (0_u64, 0_u64);
    for (offset, bytes) in segments {
        if *offset < end {
            return Err("a sparse map out of order");
        }
        end = offset.checked_add(*bytes).filter(|end| *end <= size).ok_or("a sparse map beyond its file")?;
        sum += bytes;
    }
    if sum != stored || i64::try_from(size).is_err() {
        return Err("a sparse map of another length than what is stored");
    }
    Ok(())
}
