//! The readers: threads that turn wanted files into records.
//!
//! First a permit of the window, then the content, its hash, and the queue to the other end. A file that has changed
//! since it was listed is sent as it is now, with its listed time, and reported. The next run then finds it changed and
//! copies it again.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use fullbore_engine::stage::StageClock;
use fullbore_engine::window::{Operation, Permit, Position, Window};
use rustix::io::Errno;

use super::big::{BigFile, BlockOutcome, Next};
use super::compress::{Compressor, Pays};
use super::source::{Directory, SourceFile};
use super::wants::{Job, Small, Wants};
use crate::session::{Context, Event};
use crate::wire::{
    Block, Message, Pack, Packed, Payload, Problem, ProblemKind, Run, Segment, block_bytes, block_len, blocks,
};

/// What a record without content counts in the window, in bytes: its header takes memory, too.
const HEAD_BYTES: u64 = 4096;

/// Most blocks in one message about equal blocks. The receiver copies all of them before it acknowledges.
const SAME_BLOCKS: u64 = 64;
/// Longest sleep for the rate limit before checking whether the run goes on.
const LIMIT_LOOK: Duration = Duration::from_millis(100);

/// One reader.
pub(super) struct Reader<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) wants: &'a Wants,
    pub(super) window: &'a Window,
    pub(super) clock: Arc<StageClock>,
    /// The open directory of the last file.
    pub(super) directory: Option<(Arc<Directory>, OwnedFd)>,
    pub(super) pays: &'a Pays,
    pub(super) compressor: Compressor,
}

impl Reader<'_> {
    /// Reads until no more files are wanted.
    pub(super) fn run(&mut self, prefer_small: bool) {
        let _guard = self.context.cancel.guard();
        self.clock.adopt_thread();
        while let Some(job) = self.wants.next(prefer_small, &self.clock) {
            match job {
                Job::Pack(files) => self.pack(&files),
                Job::Big(big) => self.big(&big),
            }
            self.wants.done();
            self.settle();
        }
    }

    fn settle(&self) {
        if let Some(records) = self.wants.settle() {
            let _ = self.context.say_last(Message::Finish { records }, &self.clock);
        }
    }

    fn permit(&self, bytes: u64) -> Permit {
        let bytes = bytes + HEAD_BYTES;
        match self.window.try_acquire(bytes) {
            Some(permit) => permit,
            None => self.clock.blocked_in(|| self.window.acquire_blocking(bytes)),
        }
    }

    fn pack(&mut self, files: &[Small]) {
        let sum: u64 = files.iter().map(|small| small.file.size).sum();
        let mut permit = self.permit(sum);
        permit.at(Position::In(Operation::Read));
        let mut buffer = self.context.link.pool.take(sum as usize);
        let mut packed = Vec::with_capacity(files.len());
        let mut end = 0;
        for Small { id, file, compare, there } in files {
            let space = &mut buffer[end..end + file.size as usize];
            match self.small(file, space) {
                Ok(length) if *compare && !self.differs(*id, file, &space[..length], there.as_ref()) => {}
                Ok(length) => {
                    end += length;
                    packed.push(Packed { id: *id, length: length as u32 });
                }
                Err(error) => {
                    self.unreadable(&file.path(), error);
                    self.control(Message::Lost { id: *id });
                }
            }
        }
        buffer.truncate(end);
        if packed.is_empty() {
            return self.context.link.pool.give(buffer);
        }
        let hash = *blake3::hash(&buffer).as_bytes();
        self.clock.add_items(packed.len() as u64, end as u64);
        permit.at(Position::Before(Operation::Send));
        let (buffer, compressed) = self.compress(buffer);
        let sequence = self.wants.send(permit);
        self.data(Message::Pack(Pack { sequence, hash, files: packed, compressed, payload: Payload::new(buffer) }));
    }

    /// Compares a small file with the destination's. Returns true if it has to be sent.
    fn differs(&self, id: u64, file: &SourceFile, content: &[u8], there: Option<&[u8; 32]>) -> bool {
        if there.is_some_and(|there| *blake3::hash(content).as_bytes() == *there) {
            self.record(|sequence| Message::Identical { sequence, id });
            return false;
        }
        self.tell_difference(id, file);
        !self.context.options.dry_run
    }

    fn tell_difference(&self, id: u64, file: &SourceFile) {
        let options = self.context.options;
        if options.tell_names {
            self.context.tell.tell(Event::Wanted(file.path()));
        }
        if options.tell_names || options.itemize.is_on() {
            self.record(|sequence| Message::Differs { sequence, id });
        }
    }

    /// Sends a record without content.
    fn record(&self, message: impl FnOnce(u64) -> Message) {
        let sequence = self.wants.send(self.permit(0));
        self.data(message(sequence));
    }

    /// Compresses a record's content if that pays. Returns the content, and whether it is compressed.
    fn compress(&mut self, content: Vec<u8>) -> (Vec<u8>, bool) {
        let data = &self.context.link.data;
        if !self.pays.try_now(data.is_full(), self.wants.acknowledged_bytes(), Instant::now()) {
            return (content, false);
        }
        let pool = &self.context.link.pool;
        match self.compressor.compress(&content, pool.take_idle()) {
            Ok(smaller) => {
                pool.give(content);
                (smaller, true)
            }
            Err(unused) => {
                pool.give(unused);
                (content, false)
            }
        }
    }

    /// Reads a small file. Returns its current length, at most the listed one.
    fn small(&mut self, file: &SourceFile, space: &mut [u8]) -> Result<usize, Errno> {
        let clock = self.clock.clone();
        let directory = self.open_directory(&file.directory)?;
        clock
            .device(|| {
                let open = file.open(directory)?;
                let length = read_at(&open, space, 0)?;
                Ok((length, file.is_unchanged(&open)?))
            })
            .map(|(length, unchanged)| {
                if !unchanged {
                    self.changed(file);
                }
                length
            })
    }

    fn open_directory(&mut self, directory: &Arc<Directory>) -> Result<&OwnedFd, Errno> {
        if !self.directory.as_ref().is_some_and(|(open, _)| Arc::ptr_eq(open, directory)) {
            self.directory = Some((directory.clone(), self.clock.device(|| directory.open())?));
        }
        self.directory.as_ref().map(|(_, descriptor)| descriptor).ok_or(Errno::NOENT)
    }

    fn big(&mut self, big: &Arc<BigFile>) {
        match big.next() {
            Ok(Next::End) => {
                self.check_unchanged(big);
                self.wants.read_to_its_end(big);
            }
            Ok(Next::Holes(_)) if self.context.options.dry_run => {}
            Ok(Next::Holes(run)) => {
                self.record(|sequence| Message::Holes { sequence, id: big.id, run });
                self.check_unchanged(big);
            }
            Ok(Next::Block(index, file)) => {
                let read = self.block(big, index, &file);
                big.read();
                match read {
                    Err(error) => self.lost(big, error),
                    Ok(()) => self.check_unchanged(big),
                }
            }
            Err(error) => {
                self.unreadable(&big.source.path(), error);
                self.control(Message::Lost { id: big.id });
                self.wants.read_to_its_end(big);
            }
        }
    }

    /// Whoever reads the last block of a file checks that it has not changed.
    fn check_unchanged(&self, big: &BigFile) {
        if let Some(file) = big.to_be_looked_at() {
            self.end(big);
            if !big.source.is_unchanged(&*file).unwrap_or(false) {
                self.changed(&big.source);
            }
        }
    }

    /// All of a file has been read: sends the equal blocks that were held back.
    fn end(&self, big: &BigFile) {
        let held = big.take_held();
        if held.len() as u64 == blocks(big.source.size) {
            self.record(|sequence| Message::Identical { sequence, id: big.id });
        } else {
            self.same(big.id, held);
        }
    }

    /// Sends that these blocks equal the destination's.
    fn same(&self, id: u64, mut indexes: Vec<u64>) {
        if self.context.options.dry_run {
            return;
        }
        indexes.sort_unstable();
        let follows = |one: &u64, two: &u64| one + 1 == *two;
        for run in indexes.chunk_by(follows).flat_map(|run| run.chunks(SAME_BLOCKS as usize)) {
            let run = Run { first: run[0], count: run.len() as u64 };
            self.record(|sequence| Message::Same { sequence, id, run });
        }
    }

    fn lost(&self, big: &Arc<BigFile>, error: Errno) {
        if big.give_up() {
            self.unreadable(&big.source.path(), error);
            self.control(Message::Lost { id: big.id });
        }
        self.wants.read_to_its_end(big);
    }

    fn block(&mut self, big: &Arc<BigFile>, index: u64, file: &File) -> Result<(), Errno> {
        let size = big.source.size;
        let length = block_len(size, index);
        let mut permit = self.permit(length);
        permit.at(Position::In(Operation::Read));
        let pool = &self.context.link.pool;
        let mut buffer = pool.take(length as usize);
        let read = self.clock.device(|| {
            let segments = big.segments(file, index);
            read_at(file, &mut buffer, index * block_bytes(size)).map(|length| (length, segments))
        });
        let (length, segments) = match read {
            Ok(read) => read,
            Err(error) => {
                pool.give(buffer);
                return Err(error);
            }
        };
        buffer.truncate(length);
        let hash = *blake3::hash(&buffer).as_bytes();
        self.clock.add_items(0, length as u64);
        let held = match big.is_compared().then(|| big.judge(index, &hash)) {
            Some(same @ (BlockOutcome::Same | BlockOutcome::Held)) => {
                drop(permit);
                self.context.link.pool.give(buffer);
                if same == BlockOutcome::Same {
                    self.same(big.id, vec![index]);
                }
                return Ok(());
            }
            Some(BlockOutcome::Differs { first, held }) => {
                if first && big.compare {
                    self.tell_difference(big.id, &big.source);
                }
                if self.context.options.dry_run {
                    self.context.link.pool.give(buffer);
                    drop(permit);
                    big.give_up();
                    self.wants.read_to_its_end(big);
                    return Ok(());
                }
                held
            }
            None => Vec::new(),
        };
        let (segments, content) = self.gather(buffer, segments);
        permit.at(Position::Before(Operation::Send));
        let (content, compressed) = self.compress(content);
        let sequence = self.wants.send(permit);
        self.data(Message::Block(Block {
            sequence,
            id: big.id,
            index,
            hash,
            length: length as u32,
            segments,
            compressed,
            payload: Payload::new(content),
        }));
        self.same(big.id, held);
        Ok(())
    }

    /// Removes the holes from a block.
    fn gather(&self, buffer: Vec<u8>, segments: Vec<Segment>) -> (Vec<Segment>, Vec<u8>) {
        if segments.is_empty() || !has_all(&segments, &buffer) {
            return (Vec::new(), buffer);
        }
        let sum: usize = segments.iter().map(|part| part.length as usize).sum();
        let mut content = self.context.link.pool.take(sum);
        let mut at = 0;
        for part in &segments {
            let (from, length) = (part.offset as usize, part.length as usize);
            content[at..at + length].copy_from_slice(&buffer[from..from + length]);
            at += length;
        }
        self.context.link.pool.give(buffer);
        (segments, content)
    }

    fn data(&self, message: Message) {
        self.pay(message.content_bytes() as u64);
        // A closed queue belongs to a run that ends; the cancel token has the reason.
        let _ = self.context.link.data.push(message, &self.clock);
    }

    /// Waits for the rate limit, until the run ends at the latest.
    fn pay(&self, bytes: u64) {
        let limit = self.context.limit;
        loop {
            let changes = limit.changes();
            let wait = limit.pay(bytes, Instant::now());
            if wait.is_zero() {
                return;
            }
            let until = Instant::now() + wait;
            let waits = || !self.context.cancel.is_cancelled() && limit.changes() == changes;
            self.clock.blocked_in(|| {
                while Instant::now() < until && waits() {
                    std::thread::sleep(until.saturating_duration_since(Instant::now()).min(LIMIT_LOOK));
                }
            });
            // The limit has changed: wait again under the new one.
            if waits() || self.context.cancel.is_cancelled() {
                return;
            }
        }
    }

    fn control(&self, message: Message) {
        let _ = self.context.link.control_out.push(message, &self.clock);
    }

    fn unreadable(&self, path: &[u8], error: Errno) {
        let kind = if error == Errno::NOENT { ProblemKind::Vanished } else { ProblemKind::Unreadable };
        self.problem(kind, path, std::io::Error::from(error).to_string());
    }

    fn changed(&self, file: &SourceFile) {
        self.problem(ProblemKind::Changed, &file.path(), "copied as it was at that time; run again".to_owned());
    }

    fn problem(&self, kind: ProblemKind, path: &[u8], text: String) {
        let problem = Problem { kind, path: path.to_vec(), text };
        self.context.tell.tell(Event::Problem(problem.clone()));
        self.control(Message::Problem(problem));
    }
}

/// Whether these parts have all of a block's content. They were found before the block was read. Data written into a
/// hole in between was hashed, and has to be sent.
fn has_all(segments: &[Segment], content: &[u8]) -> bool {
    let mut rest = 0;
    let is_empty = |hole: &[u8]| hole.iter().all(|byte| *byte == 0);
    for part in segments {
        let (begin, end) = (part.offset as usize, part.offset as usize + part.length as usize);
        if end > content.len() || !content.get(rest..begin).is_some_and(is_empty) {
            return false;
        }
        rest = end;
    }
    is_empty(&content[rest..])
}

/// Reads into the buffer from an offset, until it is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read_at(&mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
        }
    }
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_whose_holes_got_data_since_is_sent_whole() {
        let segments = [Segment { offset: 4096, length: 4096 }, Segment { offset: 16_384, length: 100 }];
        let mut content = vec![0; 20_000];
        content[4096..8192].fill(1);
        content[16_384..16_484].fill(2);
        assert!(has_all(&segments, &content));
        for at in [0, 4095, 8192, 16_383, 16_484, 19_999] {
            content[at] = 3;
            assert!(!has_all(&segments, &content), "at {at}");
            content[at] = 0;
        }
        // What has become shorter meanwhile is sent as it is.
        assert!(has_all(&segments, &content[..16_484]) && !has_all(&segments, &content[..16_483]));
        assert!(!has_all(&segments, &content[..100]));
    }
}
