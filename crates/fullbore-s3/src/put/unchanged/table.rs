//! The file in which a run records, for later runs, the files that it has read and the ETags of their objects.
//!
//! ```text
//! magic and version    16 bytes
//! destination          32 bytes   SHA-256 of store, bucket and prefix
//! entries              34 bytes each, sorted by key
//!   key                16 bytes   the first ones of the SHA-256 of the object's key
//!   state              16 bytes   the same of the file's identity and the object's ETag
//!   day                 2 bytes   when a run last used it, in days since 1970; big endian
//! CRC64-NVME            8 bytes   of all before, big endian
//! ```
//!
//! It contains no names of files. Each entry is true for ever: "while the object of this key has this ETag, it has the
//! content that the file had in this state". So an old table, or one of two concurrent writes, only lacks entries.

use std::io::{self, Write};

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::identity::Identity;

use crate::checksum::{Algorithm, Hasher};

/// Maximum number of entries of a table: 340 MB on the disk, and as much memory. A guess at the most files in one run;
/// their plan takes several times as much memory. Further files are read by each run.
pub(super) const ENTRIES_MAX: usize = 10_000_000;

/// Age in days after which an unused entry is dropped: its file is gone, or is not uploaded any more.
pub(super) const DAYS_MAX: u16 = 90;

const MAGIC: &[u8; 16] = b"fullbore-files-1";

const HEAD_BYTES: usize = MAGIC.len() + 32;
const END_BYTES: usize = 8;
const KEY_BYTES: usize = 16;
const STATE_END: usize = KEY_BYTES + 16;
const ENTRY_BYTES: usize = STATE_END + 2;

/// Maximum size of a table, in bytes.
pub(super) const TABLE_BYTES_MAX: u64 = (HEAD_BYTES + ENTRIES_MAX * ENTRY_BYTES + END_BYTES) as u64;

/// An entry: the state of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry([u8; ENTRY_BYTES]);

impl Entry {
    /// Creates an entry: the object of `key` has `etag` and the content of a file with this identity. A run used this
    /// on `day`.
    pub fn new(key: &str, identity: &Identity, etag: &str, day: u16) -> Entry {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..KEY_BYTES].copy_from_slice(&key_hash(key));
        // The identity has a fixed length, so none of it can be taken for a part of the ETag.
        let mut state = identity.to_bytes().to_vec();
        state.extend_from_slice(etag.as_bytes());
        bytes[KEY_BYTES..STATE_END].copy_from_slice(&Sha256::of(&state).as_bytes()[..STATE_END - KEY_BYTES]);
        bytes[STATE_END..].copy_from_slice(&day.to_be_bytes());
        Entry(bytes)
    }

    fn key(&self) -> &[u8] {
        &self.0[..KEY_BYTES]
    }

    /// Whether both entries have the same key, file state and ETag.
    pub fn is_same(&self, other: &Entry) -> bool {
        self.0[..STATE_END] == other.0[..STATE_END]
    }

    /// Day of the last use, in days since 1970.
    pub fn day(&self) -> u16 {
        u16::from_be_bytes([self.0[STATE_END], self.0[STATE_END + 1]])
    }
}

fn key_hash(key: &str) -> [u8; KEY_BYTES] {
    let mut bytes = [0; KEY_BYTES];
    bytes.copy_from_slice(&Sha256::of(key.as_bytes()).as_bytes()[..KEY_BYTES]);
    bytes
}

/// Why a table is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TableError {
    /// The table is incomplete or damaged.
    #[error("the file is damaged")]
    Damaged,
    /// The table has another magic or version.
    #[error("the file is of another version")]
    Version,
    /// The table belongs to another destination.
    #[error("the file is about another destination")]
    Foreign,
    /// The table is larger than [`TABLE_BYTES_MAX`].
    #[error("the file is too large")]
    TooLarge,
}

/// The entries of one destination, sorted by key.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Table(Vec<Entry>);

impl Table {
    /// Parses a table.
    ///
    /// # Errors
    /// [`TableError::TooLarge`], [`TableError::Version`], [`TableError::Damaged`] or [`TableError::Foreign`], if it is
    /// not a table of this version and destination.
    pub fn parse(bytes: &[u8], destination: &Sha256) -> Result<Table, TableError> {
        if bytes.len() as u64 > TABLE_BYTES_MAX {
            return Err(TableError::TooLarge);
        }
        if bytes.get(..MAGIC.len()).is_some_and(|magic| magic != MAGIC) {
            return Err(TableError::Version);
        }
        let length = bytes.len().checked_sub(END_BYTES).filter(|length| *length >= HEAD_BYTES);
        let (content, end) = length.and_then(|length| bytes.split_at_checked(length)).ok_or(TableError::Damaged)?;
        let (head, entries) = content.split_at(HEAD_BYTES);
        if checksum(content) != end {
            return Err(TableError::Damaged);
        }
        if head[MAGIC.len()..] != *destination.as_bytes() {
            return Err(TableError::Foreign);
        }
        let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() || !entries.is_sorted_by(|one, next| one[..KEY_BYTES] < next[..KEY_BYTES]) {
            return Err(TableError::Damaged);
        }
        Ok(Table(entries.iter().copied().map(Entry).collect()))
    }

    /// Returns the entry of a key.
    pub fn of(&self, key: &str) -> Option<&Entry> {
        let hash = key_hash(key);
        self.0.binary_search_by(|entry| entry.key().cmp(&hash)).ok().map(|at| &self.0[at])
    }

    /// Merges new entries, which replace older ones of the same keys, and drops entries that no run has used for long.
    pub fn merge(&mut self, mut fresh: Vec<Entry>, today: u16) {
        fresh.sort();
        // Duplicates would come from a plan with two files of one key, which is a bug; either entry is true.
        fresh.dedup_by(|one, other| one.key() == other.key());
        let is_replaced = |entry: &Entry| fresh.binary_search_by(|new| new.key().cmp(entry.key())).is_ok();
        let is_old = |entry: &Entry| today.checked_sub(entry.day()).is_none_or(|days| days > DAYS_MAX);
        self.0.retain(|entry| !is_old(entry) && !is_replaced(entry));
        // Entries of this run have precedence if there is no room for all.
        fresh.truncate(ENTRIES_MAX);
        self.0.truncate(ENTRIES_MAX - fresh.len());
        self.0.append(&mut fresh);
        self.0.sort();
    }

    /// Number of entries.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Writes the table in the format of [`Table::parse`].
    ///
    /// # Errors
    /// The error of the writer `to`, unchanged.
    pub fn write(&self, mut to: impl Write, destination: &Sha256) -> io::Result<()> {
        let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
        let mut write = |bytes: &[u8]| {
            hasher.update(bytes);
            to.write_all(bytes)
        };
        write(MAGIC)?;
        write(destination.as_bytes())?;
        self.0.iter().try_for_each(|entry| write(&entry.0))?;
        to.write_all(&hasher.finish())?;
        to.flush()
    }

    /// A file with these bytes as its entries, for the fuzz target.
    #[doc(hidden)]
    pub fn sealed(entries: &[u8], destination: &Sha256) -> Vec<u8> {
        let mut bytes = [MAGIC.as_slice(), destination.as_bytes(), entries].concat();
        bytes.extend(checksum(&bytes));
        bytes
    }
}

fn checksum(bytes: &[u8]) -> Vec<u8> {
    let mut hasher = Hasher::new(Algorithm::Crc64Nvme);
    hasher.update(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TODAY: u16 = 20_000;

    fn identity() -> Identity {
        Identity::of(&std::fs::metadata("/proc/self/exe").unwrap())
    }

    fn entry(key: u8, etag: u8, day: u16) -> Entry {
        Entry::new(&key.to_string(), &identity(), &etag.to_string(), day)
    }

    fn bytes(table: &Table, destination: &Sha256) -> Vec<u8> {
        let mut bytes = Vec::new();
        table.write(&mut bytes, destination).unwrap();
        bytes
    }

    #[test]
    fn what_is_no_table_of_this_destination_is_not_used() {
        let (here, there) = (Sha256::of(b"here"), Sha256::of(b"there"));
        let mut table = Table::default();
        table.merge(vec![entry(1, 1, TODAY), entry(2, 1, TODAY)], TODAY);
        let whole = bytes(&table, &here);
        assert_eq!(whole.len(), HEAD_BYTES + 2 * ENTRY_BYTES + END_BYTES);
        assert_eq!(Table::parse(&whole, &here), Ok(table));
        assert_eq!(Table::parse(&whole, &there), Err(TableError::Foreign));
        for length in 0..whole.len() {
            assert_eq!(Table::parse(&whole[..length], &here), Err(TableError::Damaged), "{length}");
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] ^= 1;
            let expected = if at < MAGIC.len() { TableError::Version } else { TableError::Damaged };
            assert_eq!(Table::parse(&damaged, &here), Err(expected), "{at}");
        }
        // With the right checksum, too: a key that stands there twice, and one out of its order.
        let mut entries = [entry(1, 1, TODAY), entry(2, 1, TODAY)];
        entries.sort();
        let reversed = Table(entries.iter().rev().copied().collect());
        for wrong in [Table(vec![entries[0], entries[0]]), reversed] {
            assert_eq!(Table::parse(&bytes(&wrong, &here), &here), Err(TableError::Damaged));
        }
    }

    #[test]
    fn entries_that_no_run_uses_go() {
        let mut table = Table::default();
        table.merge(vec![entry(1, 1, TODAY - DAYS_MAX), entry(2, 1, TODAY - DAYS_MAX - 1)], TODAY - DAYS_MAX);
        // A clock that was wrong: days in the future.
        table.merge(vec![entry(3, 1, TODAY + 1)], TODAY - DAYS_MAX);
        assert_eq!(table.count(), 3);
        table.merge(vec![entry(4, 1, TODAY)], TODAY);
        let left: Vec<_> = (1..=4).filter(|key: &u8| table.of(&key.to_string()).is_some()).collect();
        assert_eq!(left, [1, 4]);
    }

    proptest! {
        /// Against a map that does the same in another way, through the file's form.
        #[test]
        fn the_last_of_each_key_counts(
            runs in prop::collection::vec(prop::collection::btree_map(0..20_u8, any::<u8>(), 0..12), 1..5)
        ) {
            let destination = Sha256::of(b"destination");
            let mut table = Table::default();
            let mut expected = std::collections::BTreeMap::new();
            for run in runs {
                table.merge(run.iter().map(|(key, etag)| entry(*key, *etag, TODAY)).collect(), TODAY);
                expected.extend(run);
                table = Table::parse(&bytes(&table, &destination), &destination).unwrap();
            }
            prop_assert_eq!(table.count(), expected.len());
            for key in 0..20_u8 {
                let found = table.of(&key.to_string()).copied();
                prop_assert_eq!(found, expected.get(&key).map(|etag| entry(key, *etag, TODAY)));
            }
        }
    }
}
