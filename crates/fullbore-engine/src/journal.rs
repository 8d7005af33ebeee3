//! The log from which a killed run resumes: which parts of unfinished files were written, and which files were
//! finished.
//!
//! Records are only appended, each with its length and a checksum. A torn record ends the log; the records before it
//! count. A part of a file is logged after it was written, so the log never claims more than the page cache holds. A
//! power cut empties the page cache: after it, only records before the last checkpoint count. The boot id distinguishes
//! the two cases.

pub mod locked;
mod record;
mod replay;

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::digest::Sha256;
use crate::durability;
use crate::files::{FileError, Root};
use crate::ranges::Ranges;
use record::Record;
pub use replay::Finished;

/// Records wait in memory up to this number of bytes before they are written. Twenty thousand small files may finish
/// per second, and each would cost a call. Losing the last records costs a re-hash, not a transfer.
const BUFFER_BYTES: usize = 16 << 10;

/// Bytes of records kept in memory while the log cannot be written. A guess: 500 records.
const LOST_BYTES: usize = 64 << 10;

/// A checkpoint rewrites the log when at least this many of its bytes, and more than half, are about files that are
/// finished or abandoned. A guess.
const STALE_BYTES: u64 = 16 << 20;

/// Maximum number of unfinished files remembered. A guess, far above the number in flight; further files would be
/// fetched from their beginning.
const UNFINISHED_FILES: usize = 100_000;

/// The log of one destination.
#[derive(Debug)]
pub struct Journal {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None`: nothing is logged or resumed.
    log: Option<Log>,
    unfinished: HashMap<String, Unfinished>,
    paths: HashMap<u32, String>,
    next_key: u32,
}

#[derive(Debug)]
struct Log {
    root: Arc<Root>,
    path: String,
    file: File,
    boot: String,
    /// Bytes of whole records in the file.
    bytes: u64,
    /// Bytes of records about files that no longer matter; part of `bytes`.
    stale_bytes: u64,
    buffer: Vec<u8>,
    /// Number of rewrites. Offsets from before a rewrite mean nothing after it.
    rewrites: u64,
    /// Set when a failed write could be neither completed nor undone.
    broken: bool,
}

#[derive(Debug, Clone)]
struct Unfinished {
    key: u32,
    size: u64,
    sha256: Sha256,
    present: Ranges,
    log_bytes: u64,
}

/// The end of the log when a checkpoint's sync began.
#[derive(Debug, Clone, Copy)]
#[must_use = "a checkpoint that is not completed proves nothing"]
pub struct Checkpoint {
    upto: u64,
    rewrites: u64,
}

/// Number of an unfinished file in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

impl Journal {
    /// A journal that keeps nothing, for files that need not be resumed.
    pub fn none() -> Journal {
        Journal::with(None, HashMap::new(), 1)
    }

    /// Opens or creates the log at `path` and reads it. `finished` receives every file finished since the last
    /// [`Journal::compact`], in order. Its `trusted` argument is false if the machine went down before a checkpoint
    /// covered the file: its content must then be hashed again.
    ///
    /// # Errors
    /// [`FileError`] if the log cannot be opened, read, cut or rewritten. Damage in it is not an error: the log ends
    /// there.
    pub fn open(root: &Arc<Root>, path: &str, finished: &mut dyn FnMut(Finished, bool)) -> Result<Journal, FileError> {
        let boot = boot_id();
        let mut replayed = replay::replay(root, path, &boot, finished)?;
        let file = root.open_append(path)?;
        if file.metadata().is_ok_and(|data| data.len() > replayed.bytes) {
            file.set_len(replayed.bytes).map_err(|error| FileError::io("mend", path, error))?;
        }
        // Another boot, or a damaged log: write it anew, so that no later checkpoint seems to cover the records before.
        // Distrusted records are gone from the log then.
        let same_boot = !boot.is_empty() && replayed.boot.as_ref() == Some(&boot);
        let rewrite = replayed.bytes > 0 && !same_boot;
        let log = Log {
            root: root.clone(),
            path: path.to_owned(),
            file,
            boot,
            bytes: replayed.bytes,
            stale_bytes: 0,
            buffer: Vec::new(),
            rewrites: 0,
            broken: false,
        };
        let next_key = replayed.unfinished.values().map(|part| part.key).max().unwrap_or(0) + 1;
        let unfinished = std::mem::take(&mut replayed.unfinished);
        let journal = Journal::with(Some(log), unfinished, next_key);
        if rewrite {
            journal.rewrite(&mut |emit| replayed.each_trusted(root, path, emit))?;
        }
        Ok(journal)
    }

    fn with(log: Option<Log>, unfinished: HashMap<String, Unfinished>, next_key: u32) -> Journal {
        let paths = unfinished.iter().map(|(path, part)| (part.key, path.clone())).collect();
        Journal { inner: Mutex::new(Inner { log, unfinished, paths, next_key }) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Every change is complete before anything that could panic.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ranges of an unfinished file that were written, as far as the log knows. The caller must check that the file
    /// still exists.
    pub fn present(&self, path: &str, size: u64, sha256: Sha256) -> Ranges {
        let inner = self.lock();
        match inner.unfinished.get(path) {
            Some(part) if part.size == size && part.sha256 == sha256 => part.present.clone(),
            _ => Ranges::new(),
        }
    }

    /// Records ranges that are present although nobody logged them, such as a file left by another program. They are
    /// hashed like all others. Only for a journal without a log; one with a log trusts the log alone.
    pub fn found(&self, path: &str, size: u64, sha256: Sha256, present: Ranges) {
        let mut inner = self.lock();
        if inner.log.is_some() {
            return;
        }
        if present.is_empty() || inner.unfinished.len() >= UNFINISHED_FILES {
            inner.unfinished.remove(path);
            return;
        }
        inner.unfinished.insert(path.to_owned(), Unfinished { key: 0, size, sha256, present, log_bytes: 0 });
    }

    /// Paths of the unfinished files in the log, for cleaning up.
    pub fn unfinished(&self) -> Vec<String> {
        self.lock().unfinished.keys().cloned().collect()
    }

    /// Registers an unfinished file and returns its key. With `afresh`, or if the log knew other content at that path,
    /// none of its bytes count as present.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub fn part(&self, path: &str, size: u64, sha256: Sha256, afresh: bool) -> Result<Key, FileError> {
        let mut inner = self.lock();
        if inner.log.is_none() {
            return Ok(Key(0));
        }
        if let Some(part) = inner.unfinished.get(path) {
            let key = part.key;
            if !afresh && part.size == size && part.sha256 == sha256 {
                return Ok(Key(key));
            }
            inner.forget(key)?;
        }
        if inner.unfinished.len() >= UNFINISHED_FILES {
            return Ok(Key(0));
        }
        let key = inner.next_key;
        inner.next_key = inner.next_key.wrapping_add(1).max(1);
        let written = inner.append(&Record::Part { key, size, sha256, path })?;
        let present = Ranges::new();
        let part = Unfinished { key, size, sha256, present, log_bytes: written };
        inner.unfinished.insert(path.to_owned(), part);
        inner.paths.insert(key, path.to_owned());
        Ok(Key(key))
    }

    /// Logs that these bytes of the file were written, and writes the log out.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub fn written(&self, key: Key, ranges: &[Range<u64>]) -> Result<(), FileError> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let Some(path) = inner.paths.get(&key.0).cloned() else {
            return Ok(());
        };
        for range in ranges {
            let record = Record::Written { key: key.0, range: range.clone() };
            let written = inner.append(&record)?;
            if let Some(part) = inner.unfinished.get_mut(&path) {
                part.present.insert(range.clone());
                part.log_bytes += written;
            }
        }
        inner.flush()
    }

    /// Logs that nothing of the file counts any more. The record is in the log when this returns, so the caller may
    /// remove or cut the file.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub fn forget(&self, key: Key) -> Result<(), FileError> {
        let mut inner = self.lock();
        inner.forget(key.0)?;
        inner.flush()
    }

    /// Logs that the file has its final name.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub fn finished(&self, path: &str, size: u64, sha256: Sha256) -> Result<(), FileError> {
        let mut inner = self.lock();
        if let Some(part) = inner.unfinished.remove(path) {
            inner.paths.remove(&part.key);
            if let Some(log) = &mut inner.log {
                log.stale_bytes += part.log_bytes;
            }
        }
        inner.append(&Record::Finished { size, sha256, path }).map(drop)
    }

    /// Writes the records that wait in memory.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub fn flush(&self) -> Result<(), FileError> {
        self.lock().flush()
    }

    /// To be called before the sync of a checkpoint.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub(crate) fn begin_checkpoint(&self) -> Result<Checkpoint, FileError> {
        let mut inner = self.lock();
        inner.flush()?;
        let (upto, rewrites) = inner.log.as_ref().map_or((0, 0), |log| (log.bytes, log.rewrites));
        Ok(Checkpoint { upto, rewrites })
    }

    /// To be called when that sync has succeeded: all records logged before it are now safe from power cuts.
    ///
    /// # Errors
    /// [`FileError::Io`] if the log cannot be written.
    pub(crate) fn complete_checkpoint(&self, checkpoint: Checkpoint) -> Result<(), FileError> {
        let mut inner = self.lock();
        if inner.log.as_ref().is_some_and(|log| log.rewrites != checkpoint.rewrites) {
            return Ok(()); // the next checkpoint covers it
        }
        inner.append(&Record::Mark { upto: checkpoint.upto })?;
        inner.flush()?;
        let stale =
            inner.log.as_ref().is_some_and(|log| log.stale_bytes > STALE_BYTES && log.stale_bytes > log.bytes / 2);
        drop(inner);
        if stale { self.rewrite_keeping_finished() } else { Ok(()) }
    }

    /// Drops the finished files: the caller now has a better, durable record of them.
    ///
    /// # Errors
    /// [`FileError`] if the log cannot be written anew; the old log stays then.
    pub fn compact(&self) -> Result<(), FileError> {
        self.rewrite(&mut |_| Ok(()))
    }

    fn rewrite_keeping_finished(&self) -> Result<(), FileError> {
        let (root, path, boot) = match &self.lock().log {
            Some(log) => (log.root.clone(), log.path.clone(), log.boot.clone()),
            None => return Ok(()),
        };
        self.rewrite(&mut |emit| {
            let replayed = replay::replay(&root, &path, &boot, &mut |_, _| {})?;
            replayed.each_trusted(&root, &path, emit)
        })
    }

    /// Writes the log anew under a temporary name and replaces the old one: first the finished files that `finished`
    /// supplies, then the state in memory.
    fn rewrite(&self, finished: &mut KeepFinished<'_>) -> Result<(), FileError> {
        let mut guard = self.lock();
        let inner = &mut *guard;
        inner.flush()?;
        let Some(log) = &mut inner.log else {
            return Ok(());
        };
        let part = log.root.create_part(&log.path, 0)?;
        let mut bytes = 0;
        let mut durable_upto = 0;
        let mut buffer = Vec::new();
        record::start(&mut buffer, &log.boot);
        finished(&mut |record, durable| {
            record.encode(&mut buffer);
            if durable {
                durable_upto = bytes + buffer.len() as u64;
            }
            if buffer.len() >= BUFFER_BYTES {
                part.write_at(bytes, &buffer)?;
                bytes += buffer.len() as u64;
                buffer.clear();
            }
            Ok(())
        })?;
        // Durable before, so durable now; expressed in offsets of the new log.
        Record::Mark { upto: durable_upto }.encode(&mut buffer);
        for (path, unfinished) in &mut inner.unfinished {
            let start = buffer.len();
            let Unfinished { key, size, sha256, .. } = *unfinished;
            Record::Part { key, size, sha256, path }.encode(&mut buffer);
            for range in unfinished.present.as_slice() {
                Record::Written { key, range: range.clone() }.encode(&mut buffer);
            }
            unfinished.log_bytes = (buffer.len() - start) as u64;
        }
        part.write_at(bytes, &buffer)?;
        bytes += buffer.len() as u64;
        // An empty log after a power cut would lose everything, so this one small file is synced.
        durability::sync_file(&part, part.path())?;
        part.finish()?;
        log.file = log.root.open_append(&log.path)?;
        (log.bytes, log.stale_bytes, log.broken) = (bytes, 0, false);
        log.rewrites += 1;
        Ok(())
    }
}

/// Supplies finished files, each with whether it is durable already.
type KeepFinished<'a> = dyn FnMut(&mut EmitFinished<'_>) -> Result<(), FileError> + 'a;
type EmitFinished<'a> = dyn FnMut(&Record<'_>, bool) -> Result<(), FileError> + 'a;

impl Inner {
    fn forget(&mut self, key: u32) -> Result<(), FileError> {
        let Some(path) = self.paths.remove(&key) else {
            return Ok(());
        };
        if let Some(part) = self.unfinished.remove(&path)
            && let Some(log) = &mut self.log
        {
            log.stale_bytes += part.log_bytes;
        }
        self.append(&Record::Forget { key }).map(drop)
    }

    /// Appends the record and returns its length in bytes.
    fn append(&mut self, record: &Record<'_>) -> Result<u64, FileError> {
        let Some(log) = &mut self.log else {
            return Ok(0);
        };
        if log.bytes == 0 && log.buffer.is_empty() {
            record::start(&mut log.buffer, &log.boot);
        }
        let before = log.buffer.len();
        record.encode(&mut log.buffer);
        let written = (log.buffer.len() - before) as u64;
        if log.buffer.len() >= BUFFER_BYTES {
            self.flush()?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> Result<(), FileError> {
        let Some(log) = &mut self.log else {
            return Ok(());
        };
        if log.buffer.is_empty() {
            return Ok(());
        }
        let error = |error: io::Error| FileError::io("log to", log.path.as_str(), error);
        if log.broken {
            return Err(error(io::Error::other("an earlier write left it damaged")));
        }
        if let Err(cause) = log.file.write_all(&log.buffer) {
            // Half a record would hide every later one.
            log.broken = log.file.set_len(log.bytes).is_err();
            if log.buffer.len() >= LOST_BYTES {
                // The disk stays full. Dropped records cost transfers, never a wrong file.
                log.buffer.clear();
                log.broken = true;
            }
            return Err(error(cause));
        }
        log.bytes += log.buffer.len() as u64;
        log.buffer.clear();
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A caller that cares about errors has flushed before.
        let _ = self.flush();
    }
}

/// Number of whole records at the beginning of a log, and their bytes. For the fuzzer: [`Journal::open`] uses the same
/// parser.
pub fn whole_records(log: &[u8]) -> (usize, u64) {
    let Ok(Some(mut reader)) = record::Reader::new(log) else { return (0, 0) };
    let mut count = 0;
    while let Ok(Some(_)) = reader.next() {
        count += 1;
    }
    (count, reader.bytes)
}

/// Identifies this boot of the kernel: page-cache content of an earlier boot is gone.
fn boot_id() -> String {
    crate::machine::boot_id().chars().take(record::BOOT_BYTES).collect()
}

#[cfg(test)]
mod tests;
