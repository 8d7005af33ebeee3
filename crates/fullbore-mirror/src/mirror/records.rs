//! The list of files in the state: sorted by path, front-coded, zstd-compressed.
//!
//! A record has these fields; numbers are in LEB128:
//!
//! - number of bytes shared with the previous path;
//! - number of new bytes, and these bytes;
//! - size of the file;
//! - SHA-256 (32 bytes);
//! - number of the membership.
//!
//! Lists are read and written as streams, so that a million files take no memory. zstd's own checksum detects damage;
//! the header tells the number of records.

use std::io::{self, BufRead, BufReader, Read, Write};

use fullbore_debian::path::PATH_BYTES_MAX;
use fullbore_engine::digest::Sha256;

/// Compression level of zstd. Hashes do not compress, and the paths are front-coded already. Level 1 takes half the
/// time of level 3 for 2 % more bytes.
const LEVEL: i32 = 1;

/// Maximum zstd window when reading, as a power of two. Level 1 uses at most 512 KiB; the rest is for other levels. A
/// damaged header must not ask for gigabytes.
const WINDOW_LOG_MAX: u32 = 23;

/// A file of the mirror, with its path borrowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Record<'a> {
    /// Path relative to the mirror's directory.
    pub path: &'a str,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content, computed by fullbore from the bytes that it wrote or read.
    pub sha256: Sha256,
    /// Number of the membership in the table of the header.
    pub membership: u32,
}

/// Writes records in order of path.
pub(super) struct RecordWriter<W: Write> {
    out: zstd::Encoder<'static, W>,
    last: Vec<u8>,
    count: u64,
    buffer: Vec<u8>,
}

impl<W: Write> RecordWriter<W> {
    /// Begins a list that is written to `out`.
    ///
    /// # Errors
    ///
    /// The system's error if the compressor cannot be initialised.
    pub(super) fn new(out: W) -> io::Result<Self> {
        let mut out = zstd::Encoder::new(out, LEVEL)?;
        out.include_checksum(true)?;
        Ok(RecordWriter { out, last: Vec::new(), count: 0, buffer: Vec::new() })
    }

    /// Adds a record. Its path must sort after the previous one.
    ///
    /// # Errors
    ///
    /// An error if the path is out of order, or the error of `out`.
    pub(super) fn write(&mut self, record: Record<'_>) -> io::Result<()> {
        let path = record.path.as_bytes();
        if self.count > 0 && path <= self.last.as_slice() {
            return Err(io::Error::other(format!("state: {} out of order", record.path)));
        }
        let shared = path.iter().zip(&self.last).take_while(|(a, b)| a == b).count();
        self.buffer.clear();
        push_number(&mut self.buffer, shared as u64);
        push_number(&mut self.buffer, (path.len() - shared) as u64);
        self.buffer.extend_from_slice(&path[shared..]);
        push_number(&mut self.buffer, record.size);
        self.buffer.extend_from_slice(record.sha256.as_bytes());
        push_number(&mut self.buffer, u64::from(record.membership));
        self.out.write_all(&self.buffer)?;
        self.last.truncate(shared);
        self.last.extend_from_slice(&path[shared..]);
        self.count += 1;
        Ok(())
    }

    /// Ends the list. Returns the number of records, and `out`.
    ///
    /// # Errors
    ///
    /// The error of `out`.
    pub(super) fn finish(self) -> io::Result<(u64, W)> {
        Ok((self.count, self.out.finish()?))
    }
}

fn push_number(buffer: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        buffer.push(number as u8 | 0x80);
        number >>= 7;
    }
    buffer.push(number as u8);
}

/// Reads the records of a list in order.
pub(crate) struct RecordReader<R: Read> {
    input: BufReader<zstd::Decoder<'static, BufReader<R>>>,
    path: String,
    remaining: u64,
    memberships: u32,
    started: bool,
}

/// Bytes that are decompressed at once.
const READ_BYTES: usize = 64 << 10;

fn damaged(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("damaged list of files: {what}"))
}

impl<R: Read> RecordReader<R> {
    /// Begins to read a list of `records` records, whose memberships are below `memberships`.
    ///
    /// # Errors
    ///
    /// The system's error if the decompressor cannot be initialised.
    pub(crate) fn new(input: R, records: u64, memberships: u32) -> io::Result<Self> {
        let mut decoder = zstd::Decoder::with_buffer(BufReader::new(input))?;
        decoder.window_log_max(WINDOW_LOG_MAX)?;
        let input = BufReader::with_capacity(READ_BYTES, decoder);
        Ok(RecordReader { input, path: String::new(), remaining: records, memberships, started: false })
    }

    /// Returns the next record; `None` after the last one. The record is lent, which an iterator cannot do.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidData`] if the list is damaged, has more records, or is out of order. The error of the
    /// input otherwise.
    #[allow(clippy::should_implement_trait)]
    pub(crate) fn next(&mut self) -> io::Result<Option<Record<'_>>> {
        if self.remaining == 0 {
            // Reading to the end makes zstd check its checksum.
            return match self.input.fill_buf()? {
                [] => Ok(None),
                _ => Err(damaged("more records than the header says")),
            };
        }
        self.remaining -= 1;
        let shared = usize::try_from(self.number()?).map_err(|_| damaged("length"))?;
        let fresh = usize::try_from(self.number()?).map_err(|_| damaged("length"))?;
        if shared > self.path.len() || fresh > PATH_BYTES_MAX - shared.min(PATH_BYTES_MAX) {
            return Err(damaged("length of a path"));
        }
        let mut suffix = [0; PATH_BYTES_MAX];
        self.input.read_exact(&mut suffix[..fresh])?;
        if self.started && suffix[..fresh] <= self.path.as_bytes()[shared..] {
            return Err(damaged("order of paths"));
        }
        self.started = true;
        // Front-coding counts bytes, and may split a character of several bytes.
        let mut bytes = std::mem::take(&mut self.path).into_bytes();
        bytes.truncate(shared);
        bytes.extend_from_slice(&suffix[..fresh]);
        self.path = String::from_utf8(bytes).map_err(|_| damaged("path is not UTF-8"))?;
        let size = self.number()?;
        let mut sha256 = [0; 32];
        self.input.read_exact(&mut sha256)?;
        let membership = u32::try_from(self.number()?).map_err(|_| damaged("membership"))?;
        if membership >= self.memberships {
            return Err(damaged("membership"));
        }
        Ok(Some(Record { path: &self.path, size, sha256: Sha256(sha256), membership }))
    }

    fn number(&mut self) -> io::Result<u64> {
        let mut number = 0_u64;
        for shift in (0..63).step_by(7) {
            let mut byte = [0];
            self.input.read_exact(&mut byte)?;
            number |= u64::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(damaged("number"))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn written(paths: &[(&str, u64)]) -> Vec<u8> {
        let mut writer = RecordWriter::new(Vec::new()).unwrap();
        for &(path, size) in paths {
            writer.write(Record { path, size, sha256: Sha256::of(path.as_bytes()), membership: 1 }).unwrap();
        }
        writer.finish().unwrap().1
    }

    fn read(bytes: &[u8], count: u64) -> io::Result<Vec<(String, u64)>> {
        let mut reader = RecordReader::new(bytes, count, 2)?;
        let mut all = Vec::new();
        while let Some(record) = reader.next()? {
            assert_eq!(record.sha256, Sha256::of(record.path.as_bytes()));
            all.push((record.path.to_owned(), record.size));
        }
        Ok(all)
    }

    #[test]
    fn what_is_written_is_read() {
        let files = [("pool/a", 0), ("pool/a/b", u64::MAX >> 1), ("pool/z\u{e4}", 3), ("pool/z\u{e5}", 4)];
        let expected: Vec<_> = files.iter().map(|&(path, size)| (path.to_owned(), size)).collect();
        assert_eq!(read(&written(&files), 4).unwrap(), expected);
        assert_eq!(read(&written(&[]), 0).unwrap(), []);
    }

    #[test]
    fn order_is_kept_by_the_writer() {
        let mut writer = RecordWriter::new(Vec::new()).unwrap();
        let record = Record { path: "b", size: 0, sha256: Sha256::EMPTY, membership: 0 };
        writer.write(record).unwrap();
        assert!(writer.write(record).is_err());
        assert!(writer.write(Record { path: "a", ..record }).is_err());
    }

    #[test]
    fn a_short_or_long_list_is_damage() {
        let bytes = written(&[("a", 1), ("b", 2)]);
        assert!(read(&bytes, 1).is_err());
        assert!(read(&bytes, 3).is_err());
        assert!(read(&bytes[..bytes.len() - 1], 2).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400), count in 0..50_u64) {
            let _ = read(&bytes, count);
            // The same bytes inside a valid frame reach the parser itself.
            let framed = zstd::encode_all(bytes.as_slice(), 1).unwrap();
            let mut reader = RecordReader::new(framed.as_slice(), count, 2).unwrap();
            while let Ok(Some(_)) = reader.next() {}
        }

        #[test]
        fn a_flipped_bit_never_gives_other_records(at in 0..2000_usize, bit in 0..8_u8) {
            let mut bytes = written(&[("pool/main/a/a_1.deb", 10), ("pool/main/b/b_1.deb", 20)]);
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            if let Ok(files) = read_unchecked(&bytes, 2) {
                prop_assert_eq!(files, vec![("pool/main/a/a_1.deb".to_owned(), 10), ("pool/main/b/b_1.deb".to_owned(), 20)]);
            }
        }
    }

    fn read_unchecked(bytes: &[u8], count: u64) -> io::Result<Vec<(String, u64)>> {
        let mut reader = RecordReader::new(bytes, count, 2)?;
        let mut all = Vec::new();
        while let Some(record) = reader.next()? {
            all.push((record.path.to_owned(), record.size));
        }
        Ok(all)
    }
}
