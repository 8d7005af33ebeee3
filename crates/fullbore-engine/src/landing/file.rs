//! One file on its thread: the ranges present, the hash so far, and the source of each range.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::sources::Sources;
use super::{Cause, Chunk, Entry, NO_TIME, RESUMED, RangeDigest, Shared};
use crate::digest::{Sha256, Sha256Hasher};
use crate::journal::Key;
use crate::ranges::Ranges;
use crate::stage::StageClock;
use crate::target::{Committed, PendingResult, Target, TargetError};
use crate::window::{Operation, Permit, Position};

/// Bytes of a file that are written before they are logged. Together with the window, this bounds the bytes fetched
/// again after a kill, per connection (the promise is 1 MB). Smaller files are not logged before they are finished.
const LOG_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 128 << 10 };

/// A file in progress.
pub(super) struct FileState<P> {
    pub(super) entry: Arc<Entry>,
    part: P,
    /// Key of the file in the journal, if it is large enough to have one.
    key: Option<Key>,
    /// Written ranges.
    present: Ranges,
    /// Written ranges that are not logged yet.
    unlogged: Ranges,
    sources: Sources,
    hasher: Sha256Hasher,
    /// Everything before this offset is hashed, or in `pending`.
    front: u64,
    /// Bytes before `front` that are still in memory, in order.
    pub(super) pending: Pending,
    /// Digests of the ranges when the whole was wrong.
    suspects: Vec<RangeDigest>,
    /// The file was found wrong and waits for the caller's decision.
    pub(super) is_wrong: bool,
    /// Round of the file; see [`Entry`].
    pub(super) round: u32,
}

/// Bytes that wait for the hash, with their permits.
#[derive(Default)]
pub(super) struct Pending {
    data: Vec<Bytes>,
    permits: Vec<Permit>,
}

/// Whether a file is ready to be concluded.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Bytes are missing or not hashed.
    Waits,
    /// All bytes are hashed.
    Whole,
}

/// Bytes to hash: from memory, or read back into the caller's buffer.
pub(super) enum Next {
    Held(Pending),
    Read(usize),
}

impl Next {
    /// Number of bytes, and the number of them that were read back.
    pub(super) fn bytes(&self) -> (u64, u64) {
        match self {
            Next::Held(pending) => (pending.bytes(), 0),
            Next::Read(bytes) => (*bytes as u64, *bytes as u64),
        }
    }
}

impl Pending {
    /// Marks the permits as in the hash and returns the bytes.
    pub(super) fn begin(&mut self) -> impl Iterator<Item = &[u8]> {
        for permit in &mut self.permits {
            permit.at(Position::In(Operation::Hash));
        }
        self.data.iter().map(AsRef::as_ref)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.data.iter().map(|data| data.len() as u64).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.data.is_empty()
    }
}

impl<P: Send + 'static> FileState<P> {
    /// Opens the file: afresh, or where an earlier run left it.
    pub(super) fn open<T: Target<Part = P>>(
        target: &T,
        shared: &Shared,
        entry: Arc<Entry>,
    ) -> Result<FileState<P>, Cause> {
        let spec = &entry.spec;
        let afresh = entry.resumed.is_empty();
        let part = if afresh {
            target.begin(&spec.path, spec.size, spec.sha256)?
        } else {
            let resumed = target.resume(&spec.path, spec.size)?;
            resumed.ok_or_else(|| Cause::Vanished { path: spec.path.clone() })?
        };
        let mut key = None;
        if spec.size > LOG_BYTES {
            match shared.journal.part(&spec.path, spec.size, spec.sha256, afresh) {
                Ok(name) => key = Some(name),
                Err(error) => shared.note_journal(Err(error)),
            }
        }
        let mut sources = Sources::default();
        for range in &entry.resumed {
            sources.insert(range.clone(), RESUMED);
        }
        Ok(FileState {
            part,
            key,
            present: entry.resumed.iter().cloned().collect(),
            unlogged: Ranges::new(),
            sources,
            hasher: Sha256Hasher::new(),
            front: 0,
            pending: Pending::default(),
            suspects: Vec::new(),
            is_wrong: false,
            round: 0,
            entry,
        })
    }

    /// Writes the new bytes of a chunk; bytes at the front also wait in memory for the hash.
    pub(super) fn take<T: Target<Part = P>>(
        &mut self,
        target: &T,
        shared: &Shared,
        clock: &StageClock,
        chunk: Chunk,
    ) -> Result<(), Cause> {
        let Chunk { offset, mut data, mut permit, source, .. } = chunk;
        let received = data.len() as u64;
        data.truncate(usize::try_from(self.entry.spec.size.saturating_sub(offset)).unwrap_or(usize::MAX));
        permit.at(Position::In(Operation::Write));
        let whole = offset..offset + data.len() as u64;
        let gaps;
        let missing = if whole.is_empty() {
            &[]
        } else if self.present.overlaps(&whole) {
            gaps = self.present.missing(whole);
            &gaps[..]
        } else {
            // The whole chunk is new, the usual case: no allocation.
            std::slice::from_ref(&whole)
        };
        let mut permit = Some(permit);
        let mut new_bytes = 0;
        for (index, range) in missing.iter().enumerate() {
            let Some(mut share) = permit.take() else { break };
            let len = range.end - range.start;
            if index + 1 < missing.len() {
                permit = Some(share.split(share.bytes().saturating_sub(len)));
            }
            // Cannot overflow: the range lies within a slice in memory.
            let at = (range.start - offset) as usize;
            let piece = data.slice(at..at + len as usize);
            clock.device(|| target.write_at(&mut self.part, range.start, &piece))?;
            self.note(range, source, piece, share);
            new_bytes += len;
        }
        shared.counters.written_bytes.fetch_add(new_bytes, Ordering::Relaxed);
        shared.counters.wasted_bytes.fetch_add(received - new_bytes, Ordering::Relaxed);
        clock.add_items(1, new_bytes);
        if self.unlogged.bytes() >= LOG_BYTES {
            self.log(shared);
        }
        Ok(())
    }

    /// Records written bytes; at the front they also stay in memory for the hash.
    fn note(&mut self, range: &Range<u64>, source: u16, data: Bytes, mut permit: Permit) {
        self.present.insert(range.clone());
        self.sources.insert(range.clone(), source);
        if self.key.is_some() {
            self.unlogged.insert(range.clone());
        }
        if range.start == self.front {
            self.front = range.end;
            permit.at(Position::Before(Operation::Hash));
            self.pending.data.push(data);
            self.pending.permits.push(permit);
        }
    }

    /// Number of bytes from the front on that are present and not hashed.
    pub(super) fn unhashed_bytes(&self) -> u64 {
        if self.is_wrong { 0 } else { self.present.end_of_run(self.front) - self.front + self.pending.bytes() }
    }

    /// Drops the bytes in memory: they are in the file, and are read back for the hash.
    pub(super) fn put_off(&mut self) {
        self.front -= std::mem::take(&mut self.pending).bytes();
    }

    /// Next bytes to hash: all that wait in memory, or a buffer full read back from the file. The hasher comes with
    /// them, and returns with `hashed`.
    pub(super) fn next_to_hash<T: Target<Part = P>>(
        &mut self,
        target: &T,
        clock: &StageClock,
        buffer: &mut [u8],
    ) -> Result<(Sha256Hasher, Next), Cause> {
        let next = if self.pending.is_empty() {
            let run = self.present.end_of_run(self.front) - self.front;
            let len = usize::try_from(run).unwrap_or(usize::MAX).min(buffer.len());
            let count = clock.device(|| target.read_at(&mut self.part, self.front, &mut buffer[..len]))?;
            if count == 0 {
                return Err(Cause::Vanished { path: self.entry.spec.path.clone() });
            }
            Next::Read(count)
        } else {
            Next::Held(std::mem::take(&mut self.pending))
        };
        Ok((std::mem::take(&mut self.hasher), next))
    }

    /// Takes back the hasher after the bytes of `next_to_hash` were hashed.
    pub(super) fn hashed(&mut self, shared: &Shared, hasher: Sha256Hasher, read_bytes: u64) {
        self.hasher = hasher;
        self.front += read_bytes;
        shared.counters.reread_bytes.fetch_add(read_bytes, Ordering::Relaxed);
    }

    pub(super) fn progress(&self) -> Progress {
        let is_whole = self.front == self.entry.spec.size && self.pending.is_empty();
        if is_whole { Progress::Whole } else { Progress::Waits }
    }

    /// Compares the hash. A right file is committed; a wrong one gets the digests of its ranges.
    pub(super) fn conclude<T: Target<Part = P>>(
        mut self,
        target: &T,
        shared: &Shared,
        clock: &StageClock,
        buffer: &mut [u8],
    ) -> Result<Conclusion<P>, Cause> {
        let spec = &self.entry.spec;
        let hasher = std::mem::take(&mut self.hasher);
        match hasher.verify(spec.size, spec.sha256) {
            Ok(proof) => {
                let culprits = self.culprits(target, clock, buffer)?;
                let mtime = self.entry.mtime.load(Ordering::Relaxed);
                let mtime = (mtime != NO_TIME).then_some(mtime);
                let FileState { part, sources, entry, .. } = self;
                let committed = clock.device(|| target.commit(part, &proof, mtime))?;
                let mut sources = sources.names();
                sources.retain(|source| *source != RESUMED);
                let right = RightFile { entry, sources, culprits };
                Ok(match committed {
                    Committed::Now => Conclusion::Right(right),
                    Committed::Later(pending) => Conclusion::Pending(right, pending),
                })
            }
            Err(got) => {
                // A wrong file must not be resumed by a later run, whatever happens next.
                self.forget(shared);
                let ranges = self.digests(target, clock, buffer, got)?;
                self.suspects.extend_from_slice(&ranges);
                self.is_wrong = true;
                Ok(Conclusion::Wrong { got, ranges, state: Box::new(self) })
            }
        }
    }

    /// Accepts these ranges again; the whole file if `ranges` is empty.
    pub(super) fn retry(&mut self, shared: &Shared, ranges: &[Range<u64>]) {
        let whole = 0..self.entry.spec.size;
        let whole = std::slice::from_ref(&whole);
        for range in if ranges.is_empty() { whole } else { ranges } {
            self.present.remove(range.clone());
            self.sources.remove(range);
        }
        self.pending = Pending::default();
        self.hasher = Sha256Hasher::new();
        self.front = 0;
        self.is_wrong = false;
        let spec = &self.entry.spec;
        if spec.size > LOG_BYTES {
            match shared.journal.part(&spec.path, spec.size, spec.sha256, true) {
                Ok(key) => self.key = Some(key),
                Err(error) => shared.note_journal(Err(error)),
            }
        }
    }

    /// Logs the ranges written since the last time.
    pub(super) fn log(&mut self, shared: &Shared) {
        let unlogged = std::mem::take(&mut self.unlogged);
        if let Some(key) = self.key
            && !unlogged.is_empty()
        {
            shared.note_journal(shared.journal.written(key, unlogged.as_slice()));
        }
    }

    /// Abandons the file: ranges that may be right stay for a later run; a file found wrong is removed.
    pub(super) fn abandon<T: Target<Part = P>>(
        mut self,
        target: &T,
        shared: &Shared,
        clock: &StageClock,
    ) -> Result<(), TargetError> {
        if self.is_wrong {
            return clock.device(|| target.abandon(self.part));
        }
        self.log(shared);
        Ok(())
    }

    fn forget(&mut self, shared: &Shared) {
        self.unlogged = Ranges::new();
        if let Some(key) = self.key.take() {
            shared.note_journal(shared.journal.forget(key));
        }
    }

    fn digests<T: Target<Part = P>>(
        &mut self,
        target: &T,
        clock: &StageClock,
        buffer: &mut [u8],
        whole: Sha256,
    ) -> Result<Vec<RangeDigest>, Cause> {
        let size = self.entry.spec.size;
        let mut digests = Vec::new();
        let ranges: Vec<_> = self.sources.iter().collect();
        for (range, source) in ranges {
            let sha256 = if range == (0..size) { whole } else { self.digest(target, clock, buffer, range.clone())? };
            digests.push(RangeDigest { range, source, sha256 });
        }
        Ok(digests)
    }

    /// Sources whose bytes differed from the right ones that are there now.
    fn culprits<T: Target<Part = P>>(
        &mut self,
        target: &T,
        clock: &StageClock,
        buffer: &mut [u8],
    ) -> Result<Vec<u16>, Cause> {
        let mut culprits = Vec::new();
        for suspect in std::mem::take(&mut self.suspects) {
            let known = suspect.source == RESUMED || culprits.contains(&suspect.source);
            if !known && self.digest(target, clock, buffer, suspect.range.clone())? != suspect.sha256 {
                culprits.push(suspect.source);
            }
        }
        culprits.sort_unstable();
        Ok(culprits)
    }

    fn digest<T: Target<Part = P>>(
        &mut self,
        target: &T,
        clock: &StageClock,
        buffer: &mut [u8],
        range: Range<u64>,
    ) -> Result<Sha256, Cause> {
        let mut hasher = Sha256Hasher::new();
        read_range(target, &mut self.part, clock, range, buffer, &self.entry, |data| {
            hasher.update(data);
        })?;
        Ok(hasher.finish())
    }
}

/// How a file ended.
pub(super) enum Conclusion<P> {
    Right(RightFile),
    /// The content is right, and the target will report when it is visible.
    Pending(RightFile, PendingResult),
    Wrong {
        got: Sha256,
        ranges: Vec<RangeDigest>,
        state: Box<FileState<P>>,
    },
}

/// A file whose content is right.
pub(super) struct RightFile {
    pub(super) entry: Arc<Entry>,
    pub(super) sources: Vec<u16>,
    pub(super) culprits: Vec<u16>,
}

fn read_range<T: Target>(
    target: &T,
    part: &mut T::Part,
    clock: &StageClock,
    range: Range<u64>,
    buffer: &mut [u8],
    entry: &Entry,
    mut each: impl FnMut(&[u8]),
) -> Result<(), Cause> {
    let mut at = range.start;
    while at < range.end {
        let len = usize::try_from(range.end - at).unwrap_or(usize::MAX).min(buffer.len());
        let count = clock.device(|| target.read_at(part, at, &mut buffer[..len]))?;
        if count == 0 {
            // Another process cut the file meanwhile.
            return Err(Cause::Vanished { path: entry.spec.path.clone() });
        }
        each(&buffer[..count]);
        at += count as u64;
    }
    Ok(())
}
