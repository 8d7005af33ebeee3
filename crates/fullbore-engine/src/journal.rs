//! The log of what was written: which parts of unfinished files are there, which files
//! were finished. It is what a run that was killed is resumed from.
//!
//! Records are only ever appended, each with its length and a checksum. A record that
//! is torn ends the log; what is before it counts. A part of a file is logged after it
//! was written, so the log never says more than the page cache holds; after a power
//! cut, which empties the page cache, only what a checkpoint had made durable counts.
//! The boot id tells the two apart.

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

/// Records wait in memory up to this many bytes before they are written: finished
/// small files come twenty thousand a second, and each would cost a call. Losing the
/// last ones costs a re-hash, no transfer.
const BUFFER_BYTES: usize = 16 << 10;

/// Records kept in memory while the log cannot be written. A guess: 500 records.
const LOST_BYTES: usize = 64 << 10;

/// The log is rewritten at a checkpoint when this much of it is about files that are
/// finished or given up, and that is more than half. A guess.
const STALE_BYTES: u64 = 16 << 20;

/// Unfinished files remembered at most. A guess: many more than can be in flight; the
/// rest would be fetched from their beginning.
const UNFINISHED_FILES: usize = 100_000;

/// What the log is about.
#[derive(Debug)]
pub struct Journal {
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// `None`: nothing is logged, nothing resumed.
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
    /// Of them, bytes about files that no longer matter.
    stale_bytes: u64,
    buffer: Vec<u8>,
    /// How often it was written anew: offsets of before mean nothing after.
    rewrites: u64,
    /// After a write that could be neither finished nor taken back.
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

/// Remembers up to where the log went before a checkpoint's sync began.
#[derive(Debug, Clone, Copy)]
#[must_use = "a checkpoint that is not completed proves nothing"]
pub struct Checkpoint {
    upto: u64,
    rewrites: u64,
}

/// Names an unfinished file in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

impl Journal {
    /// A journal that keeps nothing, for what need not be resumed.
    pub fn none() -> Journal {
        Journal::with(None, HashMap::new(), 1)
    }

    /// Opens or makes the log at `path` and takes up what it says: `finished` gets every
    /// file finished since the last [`Journal::compact`], in order; with `trusted` false
    /// when the machine went down before a checkpoint had covered it, so that its content
    /// must be hashed again before it counts.
    ///
    /// # Errors
    /// When it cannot be read or written. Damage in it is no error.
    pub fn open(root: &Arc<Root>, path: &str, finished: &mut dyn FnMut(Finished, bool)) -> Result<Journal, FileError> {
        let boot = boot_id();
        let mut replayed = replay::replay(root, path, &boot, finished)?;
        let file = root.open_append(path)?;
        if file.metadata().is_ok_and(|data| data.len() > replayed.bytes) {
            file.set_len(replayed.bytes).map_err(|error| FileError::io("mend", path, error))?;
        }
        // Another boot, or a damaged log: written anew, so that no later checkpoint seems
        // to cover what went before it. What was distrusted is gone from the log then.
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

    /// Which bytes of an unfinished file were written, as far as the log knows; whether
    /// the file is still there is for the caller to see.
    pub fn present(&self, path: &str, size: u64, sha256: Sha256) -> Ranges {
        let inner = self.lock();
        match inner.unfinished.get(path) {
            Some(part) if part.size == size && part.sha256 == sha256 => part.present.clone(),
            _ => Ranges::new(),
        }
    }

    /// Takes note of bytes that are there though nobody logged them: what another program has left.
    /// They are held against the hash as all are. For a journal that keeps nothing; one with a log
    /// believes its log alone.
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

    /// Unfinished files in the log, for those who clean up.
    pub fn unfinished(&self) -> Vec<String> {
        self.lock().unfinished.keys().cloned().collect()
    }

    /// Names an unfinished file. With `afresh`, or when the log knew other content of
    /// that path, nothing of it is present.
    ///
    /// # Errors
    /// When the log cannot be written.
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
    /// When the log cannot be written.
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

    /// Logs that nothing of the file is to be counted on any more. It is in the log when
    /// this returns: the caller may now remove or cut the file.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn forget(&self, key: Key) -> Result<(), FileError> {
        let mut inner = self.lock();
        inner.forget(key.0)?;
        inner.flush()
    }

    /// Logs that the file has its final name.
    ///
    /// # Errors
    /// When the log cannot be written.
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

    /// Writes out what waits in memory.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub fn flush(&self) -> Result<(), FileError> {
        self.lock().flush()
    }

    /// To be called before the sync of a checkpoint.
    ///
    /// # Errors
    /// When the log cannot be written.
    pub(crate) fn begin_checkpoint(&self) -> Result<Checkpoint, FileError> {
        let mut inner = self.lock();
        inner.flush()?;
        let (upto, rewrites) = inner.log.as_ref().map_or((0, 0), |log| (log.bytes, log.rewrites));
        Ok(Checkpoint { upto, rewrites })
    }

    /// To be called when that sync has succeeded: all that was logged before it is now
    /// safe from power cuts.
    ///
    /// # Errors
    /// When the log cannot be written.
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

    /// Forgets the finished files: the caller has a better record of them, durably.
    ///
    /// # Errors
    /// When the log cannot be written anew; the old one stands then.
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

    /// Writes the log anew under a temporary name and puts it in place of the old one:
    /// first the finished files that `finished` hands out, then what is in memory.
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
        // Durable before, durable now; said in the new log's offsets.
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
        // The one small file that must not turn up empty after a power cut.
        durability::sync_file(&part, part.path())?;
        part.finish()?;
        log.file = log.root.open_append(&log.path)?;
        (log.bytes, log.stale_bytes, log.broken) = (bytes, 0, false);
        log.rewrites += 1;
        Ok(())
    }
}

/// Hands out finished files, each with whether it is durable already.
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

    /// Returns how many bytes the record has.
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
                // The disk stays full. What is dropped costs transfers, never a wrong file.
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
        // Whoever cares about errors has flushed before.
        let _ = self.flush();
    }
}

/// How many whole records a log has from its beginning, and their bytes. For the fuzzer:
/// [`Journal::open`] reads with the same parser.
pub fn whole_records(log: &[u8]) -> (usize, u64) {
    let Ok(Some(mut reader)) = record::Reader::new(log) else { return (0, 0) };
    let mut count = 0;
    while let Ok(Some(_)) = reader.next() {
        count += 1;
    }
    (count, reader.bytes)
}

/// Identifies this run of the kernel: page-cache content of another one is gone.
fn boot_id() -> String {
    crate::machine::boot_id().chars().take(record::BOOT_BYTES).collect()
}

#[cfg(test)]
mod tests;
