//! Reads the log: unfinished files, finished files, and which of the records count.

use std::collections::HashMap;
use std::fs::File;
use std::io::BufReader;
use std::sync::Arc;

use super::record::{Reader, Record};
use super::{EmitFinished, UNFINISHED_FILES, Unfinished};
use crate::digest::Sha256;
use crate::files::{FileError, Root};
use crate::ranges::Ranges;

/// A file that got its final name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finished {
    /// Path of the file beneath the destination.
    pub path: String,
    /// Length of the file, in bytes.
    pub size: u64,
    /// SHA-256 of the whole content.
    pub sha256: Sha256,
}

/// Result of reading a log.
pub(super) struct Replayed {
    /// Bytes of the header and of whole records.
    pub(super) bytes: u64,
    /// Boot id of the last record, if all records are of one boot.
    pub(super) boot: Option<String>,
    pub(super) unfinished: HashMap<String, Unfinished>,
    trust: Trust,
}

/// Which records count: those of this boot, and those before the last mark.
struct Trust {
    /// Offset from which on records are of the present boot.
    this_boot_from: u64,
    durable_upto: u64,
}

impl Trust {
    fn covers(&self, offset: u64) -> bool {
        offset >= self.this_boot_from || offset < self.durable_upto
    }
}

/// Reads the log twice: first the marks, which concern records before them, then the rest. So a log of a million files
/// needs no memory for them.
pub(super) fn replay(
    root: &Arc<Root>,
    path: &str,
    boot: &str,
    finished: &mut dyn FnMut(Finished, bool),
) -> Result<Replayed, FileError> {
    let mut replayed = Replayed {
        bytes: 0,
        boot: None,
        unfinished: HashMap::new(),
        trust: Trust { this_boot_from: u64::MAX, durable_upto: 0 },
    };
    let io = |error| FileError::io("read", path, error);
    let Some(mut reader) = open(root, path)? else {
        return Ok(replayed);
    };
    let mut boots = 0;
    while let Some((offset, record)) = reader.next().map_err(io)? {
        match record {
            Record::Boot { id } => {
                boots += 1;
                replayed.boot = (boots == 1).then(|| id.to_owned());
                let same = !boot.is_empty() && id == boot;
                replayed.trust.this_boot_from = if same { offset } else { u64::MAX };
            }
            // A mark beyond its own offset was not written by us.
            Record::Mark { upto } if upto <= offset => {
                replayed.trust.durable_upto = replayed.trust.durable_upto.max(upto);
            }
            _ => {}
        }
    }
    replayed.bytes = reader.bytes;

    let Some(mut reader) = open(root, path)? else {
        return Ok(replayed);
    };
    let mut paths: HashMap<u32, String> = HashMap::new();
    let unfinished = &mut replayed.unfinished;
    while let Some((offset, record)) = reader.next().map_err(io)? {
        let trusted = replayed.trust.covers(offset);
        match record {
            Record::Part { key, size, sha256, path } => {
                if unfinished.len() < UNFINISHED_FILES && key != 0 {
                    let present = Ranges::new();
                    let part = Unfinished { key, size, sha256, present, log_bytes: 0 };
                    if let Some(old) = unfinished.insert(path.to_owned(), part) {
                        paths.remove(&old.key);
                    }
                    paths.insert(key, path.to_owned());
                }
            }
            Record::Written { key, range } => {
                if let Some(part) = paths.get(&key).and_then(|path| unfinished.get_mut(path))
                    && trusted
                    && range.end <= part.size
                {
                    part.present.insert(range);
                }
            }
            Record::Forget { key } => {
                if let Some(path) = paths.remove(&key) {
                    unfinished.remove(&path);
                }
            }
            Record::Finished { size, sha256, path } => {
                if let Some(part) = unfinished.remove(path) {
                    paths.remove(&part.key);
                }
                finished(Finished { path: path.to_owned(), size, sha256 }, trusted);
            }
            Record::Boot { .. } | Record::Mark { .. } => {}
        }
    }
    Ok(replayed)
}

impl Replayed {
    /// Passes on the finished files that count, each with whether it is durable.
    pub(super) fn each_trusted(
        &self,
        root: &Arc<Root>,
        path: &str,
        emit: &mut EmitFinished<'_>,
    ) -> Result<(), FileError> {
        let Some(mut reader) = open(root, path)? else {
            return Ok(());
        };
        let io = |error| FileError::io("read", path, error);
        while let Some((offset, record)) = reader.next().map_err(io)? {
            if matches!(record, Record::Finished { .. }) && self.trust.covers(offset) {
                emit(&record, offset < self.trust.durable_upto)?;
            }
        }
        Ok(())
    }
}

fn open(root: &Arc<Root>, path: &str) -> Result<Option<Reader<BufReader<File>>>, FileError> {
    let Some((file, _)) = root.open_file(path)? else {
        return Ok(None);
    };
    let reader = BufReader::with_capacity(64 << 10, file);
    Reader::new(reader).map_err(|error| FileError::io("read", path, error))
}
