//! Format of the log: records with a length, a checksum and a body, little-endian.
//!
//! The parser accepts any bytes: a record that is cut short, too long, of a wrong checksum or of an unknown kind ends
//! the log.

use std::io::{self, Read};
use std::ops::Range;

use crate::digest::Sha256;

/// First bytes of the file.
const MAGIC: &[u8; 8] = b"fbjrnl1\n";
/// Longest body: a path (4095 bytes) and fixed fields of under a hundred.
const BODY_BYTES: usize = 4096 + 100;
/// Longest boot id; Linux has 36 characters.
pub(super) const BOOT_BYTES: usize = 64;

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// The records after this one were logged in this boot of the kernel.
    Boot { id: &'a str },
    /// Assigns a key to an unfinished file.
    Part { key: u32, size: u64, sha256: Sha256, path: &'a str },
    /// A range of the file was written.
    Written { key: u32, range: Range<u64> },
    /// Nothing of the file counts any more.
    Forget { key: u32 },
    /// The file has its final name.
    Finished { size: u64, sha256: Sha256, path: &'a str },
    /// The records before this offset of the log are durable.
    Mark { upto: u64 },
}

impl Record<'_> {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(&[0; 8]);
        match self {
            Record::Boot { id } => {
                out.push(1);
                out.extend_from_slice(id.as_bytes());
            }
            Record::Part { key, size, sha256, path } => {
                out.push(2);
                out.extend_from_slice(&key.to_le_bytes());
                out.extend_from_slice(&size.to_le_bytes());
                out.extend_from_slice(sha256.as_bytes());
                out.extend_from_slice(path.as_bytes());
            }
            Record::Written { key, range } => {
                out.push(3);
                out.extend_from_slice(&key.to_le_bytes());
                out.extend_from_slice(&range.start.to_le_bytes());
                out.extend_from_slice(&range.end.to_le_bytes());
            }
            Record::Forget { key } => {
                out.push(4);
                out.extend_from_slice(&key.to_le_bytes());
            }
            Record::Finished { size, sha256, path } => {
                out.push(5);
                out.extend_from_slice(&size.to_le_bytes());
                out.extend_from_slice(sha256.as_bytes());
                out.extend_from_slice(path.as_bytes());
            }
            Record::Mark { upto } => {
                out.push(6);
                out.extend_from_slice(&upto.to_le_bytes());
            }
        }
        let body = &out[start + 8..];
        let len = u32::try_from(body.len()).expect("a body is as long as a path");
        let sum = checksum(body);
        out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
    }

    fn decode(body: &[u8]) -> Option<Record<'_>> {
        let mut fields = Fields(body);
        let record = match fields.u8()? {
            1 => Record::Boot { id: fields.text(BOOT_BYTES)? },
            2 => Record::Part {
                key: fields.u32()?,
                size: fields.u64()?,
                sha256: fields.sha256()?,
                path: fields.text(BODY_BYTES)?,
            },
            3 => {
                let key = fields.u32()?;
                let range = fields.u64()?..fields.u64()?;
                if range.start >= range.end {
                    return None;
                }
                Record::Written { key, range }
            }
            4 => Record::Forget { key: fields.u32()? },
            5 => Record::Finished { size: fields.u64()?, sha256: fields.sha256()?, path: fields.text(BODY_BYTES)? },
            6 => Record::Mark { upto: fields.u64()? },
            _ => return None,
        };
        fields.0.is_empty().then_some(record)
    }
}

/// Writes the header of a log: magic bytes and boot id.
pub(super) fn start(out: &mut Vec<u8>, boot: &str) {
    out.extend_from_slice(MAGIC);
    Record::Boot { id: boot }.encode(out);
}

/// Reads records one after another, in bounded memory.
pub(super) struct Reader<R> {
    input: R,
    body: Vec<u8>,
    /// Bytes of the header and of the whole records read so far.
    pub(super) bytes: u64,
}

impl<R: Read> Reader<R> {
    /// Reads the header; `None` when the input is not a log.
    pub(super) fn new(mut input: R) -> io::Result<Option<Reader<R>>> {
        let mut magic = [0; MAGIC.len()];
        if !fill(&mut input, &mut magic)? || magic != *MAGIC {
            return Ok(None);
        }
        Ok(Some(Reader { input, body: Vec::new(), bytes: MAGIC.len() as u64 }))
    }

    /// Returns the next record with the offset of its first byte; `None` at the end of the log, or where it is damaged.
    pub(super) fn next(&mut self) -> io::Result<Option<(u64, Record<'_>)>> {
        let mut head = [0; 8];
        if !fill(&mut self.input, &mut head)? {
            return Ok(None);
        }
        let [l0, l1, l2, l3, s0, s1, s2, s3] = head;
        let len = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if len > BODY_BYTES {
            return Ok(None);
        }
        self.body.resize(len, 0);
        if !fill(&mut self.input, &mut self.body)? || checksum(&self.body) != u32::from_le_bytes([s0, s1, s2, s3]) {
            return Ok(None);
        }
        let Some(record) = Record::decode(&self.body) else {
            return Ok(None);
        };
        let offset = self.bytes;
        self.bytes += 8 + len as u64;
        Ok(Some((offset, record)))
    }
}

/// Fills the buffer; false when the input ends first.
fn fill(input: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    match input.read_exact(buffer) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*field)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    fn sha256(&mut self) -> Option<Sha256> {
        self.take().map(Sha256)
    }

    /// The rest of the body as text.
    fn text(&mut self, limit: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(std::mem::take(&mut self.0)).ok()?;
        (text.len() <= limit).then_some(text)
    }
}

/// CRC-32 (IEEE 802.3). It guards against torn and misplaced blocks, not against an adversary; twenty lines are lighter
/// than a crate.
fn checksum(data: &[u8]) -> u32 {
    let sum = data.iter().fold(!0_u32, |sum, byte| sum >> 8 ^ CRC_TABLE[usize::from(sum as u8 ^ byte)]);
    !sum
}

const CRC_TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut value = index as u32;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { value >> 1 ^ 0xedb8_8320 } else { value >> 1 };
            bit += 1;
        }
        table[index] = value;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn checksum_is_crc_32() {
        assert_eq!(checksum(b"123456789"), 0xcbf4_3926);
    }

    fn records(bytes: &[u8]) -> Vec<String> {
        let Some(mut reader) = Reader::new(bytes).unwrap() else {
            return Vec::new();
        };
        let mut found = Vec::new();
        while let Some((offset, record)) = reader.next().unwrap() {
            found.push(format!("{offset} {record:?}"));
        }
        found
    }

    fn sample() -> Vec<u8> {
        let mut log = Vec::new();
        start(&mut log, "boot");
        let sha256 = Sha256::EMPTY;
        for record in [
            Record::Part { key: 1, size: 10, sha256, path: "pool/a" },
            Record::Written { key: 1, range: 0..5 },
            Record::Finished { size: 10, sha256, path: "pool/b" },
            Record::Mark { upto: 100 },
            Record::Forget { key: 1 },
        ] {
            record.encode(&mut log);
        }
        log
    }

    /// Cut at any byte: exactly the whole records before the cut.
    #[test]
    fn a_torn_log_has_all_whole_records_before_the_cut() {
        let log = sample();
        let all = records(&log);
        assert_eq!(all.len(), 6);
        let mut seen = 0;
        for cut in 0..=log.len() {
            let found = records(&log[..cut]);
            assert_eq!(found, all[..found.len()]);
            assert!(found.len() >= seen);
            seen = found.len();
        }
        assert_eq!(seen, 6);
    }

    proptest! {
        /// Any one damaged byte: a beginning of the records, nothing invented.
        #[test]
        fn a_damaged_log_has_only_records_before_the_damage(at in 0_usize..300, flip in 1_u8..) {
            let mut log = sample();
            let all = records(&log);
            let at = at % log.len();
            log[at] ^= flip;
            let found = records(&log);
            prop_assert!(found.len() < all.len());
            prop_assert_eq!(&found[..], &all[..found.len()]);
        }

        #[test]
        fn any_bytes_are_survived(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), whole: bool) {
            if whole {
                bytes.splice(0..0, *MAGIC);
            }
            records(&bytes);
        }
    }
}
