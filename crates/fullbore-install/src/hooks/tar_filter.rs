//! Removes device nodes from a tar archive while it passes.

use std::io::{self, ErrorKind, Read, Write};

/// Size of headers; content is padded to blocks of the same size.
const BLOCK_BYTES: usize = 512;

/// Byte ranges of a header's size and type.
const SIZE_AT: std::ops::Range<usize> = 124..136;
const TYPE_AT: usize = 156;

/// Types of entries that describe the next one: long names, and attributes.
const DESCRIBING: &[u8] = b"xLK";

/// Types of device nodes.
const DEVICES: &[u8] = b"34";

/// Largest description of an entry. A guess: many times the longest path and all attributes.
const DESCRIPTION_BYTES_MAX: usize = 8 << 20;

/// Copies an uncompressed archive without its character and block devices.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the input is not a plain tar archive, or the system's error if the input cannot be
/// read or the output cannot be written.
pub fn without_devices(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut description = Vec::new();
    let mut header = [0; BLOCK_BYTES];
    loop {
        from.read_exact(&mut header)?;
        if header.iter().all(|byte| *byte == 0) {
            // The end of the archive, which padding may follow.
            to.write_all(&header)?;
            io::copy(&mut from, &mut to)?;
            return to.flush();
        }
        if &header[257..262] != b"ustar" {
            return Err(io::Error::new(ErrorKind::InvalidData, "not a plain tar archive"));
        }
        let padded = size(&header[SIZE_AT])?.next_multiple_of(BLOCK_BYTES as u64);
        let mut content = (&mut from).take(padded);
        let kind = header[TYPE_AT];
        if DESCRIBING.contains(&kind) {
            if padded > (DESCRIPTION_BYTES_MAX - description.len().min(DESCRIPTION_BYTES_MAX)) as u64 {
                return Err(io::Error::new(ErrorKind::InvalidData, "the description of an entry is too long"));
            }
            description.extend(header);
            content.read_to_end(&mut description)?;
        } else if DEVICES.contains(&kind) {
            description.clear();
            io::copy(&mut content, &mut io::sink())?;
        } else {
            to.write_all(&description)?;
            description.clear();
            to.write_all(&header)?;
            io::copy(&mut content, &mut to)?;
        }
        if content.limit() > 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Parses a size: octal digits, or GNU's binary form for large files.
fn size(field: &[u8]) -> io::Result<u64> {
    let wrong = || io::Error::new(ErrorKind::InvalidData, "not a plain tar archive");
    if field[0] & 0x80 != 0 {
        return Ok(field[4..].iter().fold(0, |size, byte| size << 8 | u64::from(*byte)));
    }
    let text = std::str::from_utf8(field).map_err(|_| wrong())?.trim_matches(['\0', ' ']);
    if text.is_empty() { Ok(0) } else { u64::from_str_radix(text, 8).map_err(|_| wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_archive_is_refused() {
        for text in [&b""[..], &[b'x'; 600], &[b'x'; 512]] {
            assert!(without_devices(text, io::sink()).is_err());
        }
        let empty = [0; 1024];
        let mut copy = Vec::new();
        without_devices(&empty[..], &mut copy).unwrap();
        assert_eq!(copy, empty);
    }
}
