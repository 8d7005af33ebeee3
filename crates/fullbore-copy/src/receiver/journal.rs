//! The journal of an unfinished big file: the blocks that the file has, with their hashes.
//!
//! The journal is beside the unfinished file. A block is recorded after it was written. So a later run finds all
//! recorded blocks in the file, if the kernel and the mount are the same. A checkpoint is recorded after the data was
//! flushed. After a reboot, or if a disk was detached and attached again, blocks after the last checkpoint are read and
//! compared with their hashes. Any difference in the source discards the whole file: see [`Header::source`].
//!
//! Records have a fixed length and a checksum each; the first invalid record ends the journal.

use std::fs::File;
use std::io::{self, Write as _};

use crate::entry::{Entry, Identity, Time};
use crate::wire::{block_bytes, blocks};

const MAGIC: &[u8; 8] = b"fbblk\0\0\x01";
const HEADER_BYTES: usize = 128;
const RECORD_BYTES: usize = 48;
const BLOCK: u8 = 1;
const CHECKPOINT: u8 = 2;

/// Longest journal that is read: enough for twice the blocks of any file in practice. A file of 16 EiB would need more;
/// such a file is copied again.
pub(super) const JOURNAL_BYTES: u64 = 1 << 30;

/// Identifies a boot of this machine, as the kernel formats it.
pub type Boot = [u8; 36];
/// Stands for an unknown boot.
const UNKNOWN: Boot = [0; 36];

/// Identifies an unfinished file's source and its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The source's file, in the state in which it was listed.
    pub source: Identity,
    /// Length of the file in bytes.
    pub size: u64,
    /// Modification time of the source's file.
    pub modified: Time,
    /// The boot of the destination's machine in which the blocks were written.
    pub boot: Boot,
    /// Number of the mount through which they were written, unique within a boot; 0 if unknown.
    pub mount: u64,
}

impl Header {
    pub(super) fn of(entry: &Entry, boot: Boot, mount: u64) -> Header {
        Header { source: entry.identity, size: entry.size, modified: entry.modified, boot, mount }
    }

    /// Whether both headers are of the same file in the same state.
    pub(super) fn is_same_source(&self, other: &Header) -> bool {
        Header { boot: other.boot, mount: other.mount, ..*self } == *other
    }

    /// Whether all written blocks are still there, on the disk or in memory.
    pub(super) fn is_same_mount(&self, other: &Header) -> bool {
        (self.boot, self.mount) == (other.boot, other.mount) && self.boot != UNKNOWN && self.mount != 0
    }

    /// Whether written data cannot be in memory any more, so that reads come from the disk.
    pub(super) fn is_another_boot(&self, other: &Header) -> bool {
        self.boot != other.boot && self.boot != UNKNOWN && other.boot != UNKNOWN
    }

    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut at = 0;
        let mut put = |part: &[u8]| {
            bytes[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        };
        put(MAGIC);
        put(&self.source.device.to_le_bytes());
        put(&self.source.inode.to_le_bytes());
        put(&self.source.changed.seconds.to_le_bytes());
        put(&self.source.changed.nanoseconds.to_le_bytes());
        put(&self.modified.seconds.to_le_bytes());
        put(&self.modified.nanoseconds.to_le_bytes());
        put(&self.size.to_le_bytes());
        put(&self.boot);
        put(&self.mount.to_le_bytes());
        let sum = checksum(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&sum);
        bytes
    }

    fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Header> {
        if !bytes.starts_with(MAGIC) || checksum(&bytes[..HEADER_BYTES - 4]) != bytes[HEADER_BYTES - 4..] {
            return None;
        }
        let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        let time = |at: usize| Some(Time { seconds: u64_at(at)? as i64, nanoseconds: u32_at(at + 8)? });
        Some(Header {
            source: Identity { device: u64_at(8)?, inode: u64_at(16)?, changed: time(24)? },
            modified: time(36)?,
            size: u64_at(48)?,
            boot: bytes.get(56..92)?.try_into().ok()?,
            mount: u64_at(92)?,
        })
    }
}

fn checksum(bytes: &[u8]) -> [u8; 4] {
    let [one, two, three, four, ..] = *blake3::hash(bytes).as_bytes();
    [one, two, three, four]
}

/// A block of the unfinished file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Number of the block, counted from 0.
    pub index: u64,
    /// BLAKE3 hash of its content.
    pub hash: [u8; 32],
    /// Whether a checkpoint covers it, so that it is on the disk.
    pub flushed: bool,
}

/// Contents of a journal: its header and the finished blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// Source and state of the file.
    pub header: Header,
    /// The blocks, in the order in which they were written.
    pub blocks: Vec<Entered>,
    /// Total length of the valid records in bytes.
    pub whole_bytes: usize,
}

/// Parses a journal; `None` if its header is invalid. Never returns a block beyond the end of the file.
pub fn parse(bytes: &[u8]) -> Option<Contents> {
    let (head, records) = bytes.split_first_chunk::<HEADER_BYTES>()?;
    let header = Header::decode(head)?;
    let count = blocks(header.size);
    let mut contents = Contents { header, blocks: Vec::new(), whole_bytes: HEADER_BYTES };
    for record in records.chunks_exact(RECORD_BYTES) {
        let (body, sum) = record.split_at(RECORD_BYTES - 4);
        let number = u64::from_le_bytes(body[4..12].try_into().unwrap_or_default());
        if checksum(body) != sum {
            break;
        }
        match body[0] {
            BLOCK if number < count => {
                let hash = body[12..44].try_into().unwrap_or_default();
                contents.blocks.push(Entered { index: number, hash, flushed: false });
            }
            CHECKPOINT if number <= contents.blocks.len() as u64 => {
                contents.blocks[..number as usize].iter_mut().for_each(|block| block.flushed = true);
            }
            _ => break,
        }
        contents.whole_bytes += RECORD_BYTES;
    }
    Some(contents)
}

/// A journal that is being written.
#[derive(Debug)]
pub(super) struct Journal {
    file: File,
    entered: u64,
    flushed: u64,
}

impl Journal {
    /// Begins a journal in an empty file.
    pub(super) fn begin(mut file: File, header: &Header) -> io::Result<Journal> {
        file.write_all(&header.encode())?;
        Ok(Journal { file, entered: 0, flushed: 0 })
    }

    /// Begins a new journal of this boot with the verified blocks of an old one. The journal is on the disk when this
    /// returns, and may replace the old one.
    pub(super) fn resume(file: File, header: &Header, blocks: &[Entered]) -> io::Result<Journal> {
        let mut journal = Journal::begin(file, header)?;
        let (flushed, others): (Vec<&Entered>, Vec<&Entered>) = blocks.iter().partition(|block| block.flushed);
        let mut bytes = Vec::with_capacity((blocks.len() + 1) * RECORD_BYTES);
        let enter = |blocks: &[&Entered], bytes: &mut Vec<u8>| {
            blocks.iter().for_each(|block| bytes.extend_from_slice(&record(BLOCK, block.index, &block.hash)));
        };
        enter(&flushed, &mut bytes);
        bytes.extend_from_slice(&record(CHECKPOINT, flushed.len() as u64, &[0; 32]));
        enter(&others, &mut bytes);
        journal.file.write_all(&bytes)?;
        journal.file.sync_data()?;
        (journal.entered, journal.flushed) = (blocks.len() as u64, flushed.len() as u64);
        Ok(journal)
    }

    /// Records a block that has been written.
    pub(super) fn enter(&mut self, index: u64, hash: &[u8; 32]) -> io::Result<()> {
        self.entered += 1;
        self.file.write_all(&record(BLOCK, index, hash))
    }

    /// Number of blocks recorded so far, which a flush that begins now will cover.
    pub(super) fn entered(&self) -> u64 {
        self.entered
    }

    /// Records that the first `entered` blocks are on the disk.
    pub(super) fn checkpoint(&mut self, entered: u64) -> io::Result<()> {
        if entered <= self.flushed {
            return Ok(());
        }
        self.flushed = entered;
        self.file.write_all(&record(CHECKPOINT, entered, &[0; 32]))
    }
}

fn record(kind: u8, number: u64, hash: &[u8; 32]) -> [u8; RECORD_BYTES] {
    let mut bytes = [0; RECORD_BYTES];
    bytes[0] = kind;
    bytes[4..12].copy_from_slice(&number.to_le_bytes());
    bytes[12..44].copy_from_slice(hash);
    let sum = checksum(&bytes[..44]);
    bytes[44..].copy_from_slice(&sum);
    bytes
}

/// Offset of a block in a file of this size.
pub(super) fn offset(size: u64, index: u64) -> u64 {
    index * block_bytes(size)
}

/// The current boot of this machine (random(4)); zeros if the kernel does not tell, as in some containers.
pub fn boot() -> Boot {
    let text = fullbore_engine::machine::boot_id();
    text.as_bytes().get(..36).and_then(|text| text.try_into().ok()).unwrap_or(UNKNOWN)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        let changed = Time { seconds: -5, nanoseconds: 7 };
        let source = Identity { device: 1, inode: 2, changed };
        Header { source, size: 10 << 20, modified: Time { seconds: 3, nanoseconds: 4 }, boot: [b'x'; 36], mount: 9 }
    }

    fn journal(blocks: &[u64], checkpoint: u64) -> Vec<u8> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let mut journal = Journal::begin(File::create(&path).unwrap(), &header()).unwrap();
        for (position, index) in blocks.iter().enumerate() {
            journal.enter(*index, &[*index as u8; 32]).unwrap();
            if position as u64 + 1 == checkpoint {
                journal.checkpoint(checkpoint).unwrap();
            }
        }
        let mut bytes = Vec::new();
        File::open(&path).unwrap().read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn what_was_entered_is_read_and_what_was_flushed_is_known() {
        let contents = parse(&journal(&[3, 0, 9], 2)).unwrap();
        assert_eq!(contents.header, header());
        let blocks: Vec<_> = contents.blocks.iter().map(|block| (block.index, block.hash[0], block.flushed)).collect();
        assert_eq!(blocks, [(3, 3, true), (0, 0, true), (9, 9, false)]);
        assert_eq!(parse(&journal(&[3, 10, 9], 0)).unwrap().blocks.len(), 1, "the file has no block 10");
    }

    #[test]
    fn what_was_flushed_is_known_to_be_when_a_journal_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        let entered = |index, flushed| Entered { index, hash: [index as u8; 32], flushed };
        let blocks = [entered(4, false), entered(2, true), entered(7, true)];
        let mut journal = Journal::resume(File::create(&path).unwrap(), &header(), &blocks).unwrap();
        journal.enter(1, &[1; 32]).unwrap();
        let contents = parse(&std::fs::read(&path).unwrap()).unwrap();
        assert_eq!(contents.blocks, [entered(2, true), entered(7, true), entered(4, false), entered(1, false)]);
        assert_eq!(journal.entered(), 4);
    }

    proptest! {
        #[test]
        fn a_torn_journal_gives_what_was_whole(cut in 0..700_usize, at in 0..700_usize, value in any::<u8>()) {
            let whole = journal(&[0, 1, 2, 3, 4, 5, 6, 7], 4);
            let expected = parse(&whole).unwrap().blocks;
            let mut torn = whole[..cut.min(whole.len())].to_vec();
            if let Some(contents) = parse(&torn) {
                prop_assert!(contents.blocks.iter().zip(&expected).all(|(one, two)| (one.index, one.hash) == (two.index, two.hash)));
                prop_assert!(contents.whole_bytes <= torn.len());
            }
            if let Some(byte) = torn.get_mut(at) {
                *byte = value;
            }
            if let Some(contents) = parse(&torn) {
                prop_assert!(contents.blocks.iter().zip(&expected).all(|(one, two)| (one.index, one.hash) == (two.index, two.hash)));
            }
        }
    }
}
