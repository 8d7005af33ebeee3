//! The log of an unfinished mirror (`.fullbore/log`), read without the code under test: a mistake that the new version
//! makes in reading must not make a test expect too little.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes before the first record.
const MAGIC: &[u8] = b"fbjrnl1\n";
/// Length and checksum of a record.
const HEAD_BYTES: usize = 8;

/// What a log says.
pub struct Log {
    path: PathBuf,
    bytes: Vec<u8>,
    /// Unfinished files, each with its ranges that are there.
    pub parts: BTreeMap<String, Vec<Range<u64>>>,
    /// Files that are whole.
    pub finished: BTreeSet<String>,
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

fn key(body: &[u8]) -> u32 {
    u32::from_le_bytes(body[1..5].try_into().unwrap())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

impl Log {
    /// Reads that of a mirror.
    pub fn of(mirror: &Path) -> Log {
        let path = mirror.join(".fullbore/log");
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.starts_with(MAGIC), "the fixture has another form");
        let (mut parts, mut finished, mut names) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let mut at = MAGIC.len();
        while at < bytes.len() {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let body = &bytes[at + HEAD_BYTES..at + HEAD_BYTES + length];
            match body[0] {
                // The boot; up to where everything is on the disk.
                1 | 6 => {}
                2 => {
                    names.insert(key(body), text(&body[45..]));
                    parts.insert(text(&body[45..]), Vec::new());
                }
                3 => parts.get_mut(&names[&key(body)]).unwrap().push(number(body, 5)..number(body, 13)),
                5 => {
                    parts.remove(&text(&body[41..]));
                    finished.insert(text(&body[41..]));
                }
                other => panic!("the fixture has a record of kind {other}"),
            }
            at += HEAD_BYTES + length;
        }
        // A run may be killed between the last rename and its record.
        let whole: Vec<String> = parts.keys().filter(|path| mirror.join(path).exists()).cloned().collect();
        for path in whole {
            parts.remove(&path);
            finished.insert(path);
        }
        Log { path, bytes, parts, finished }
    }

    /// Makes it one of this boot.
    pub fn say_it_was_written_in(&mut self, boot: &str) {
        let at = MAGIC.len();
        let body = at + HEAD_BYTES..at + HEAD_BYTES + 1 + boot.len();
        assert_eq!((self.bytes[body.start], usize::from(self.bytes[at])), (1, body.len()), "it begins with the boot");
        self.bytes[body.start + 1..body.end].copy_from_slice(boot.as_bytes());
        let mut checksum = flate2::Crc::new();
        checksum.update(&self.bytes[body]);
        self.bytes[at + 4..at + HEAD_BYTES].copy_from_slice(&checksum.sum().to_le_bytes());
        std::fs::write(&self.path, &self.bytes).unwrap();
    }
}
