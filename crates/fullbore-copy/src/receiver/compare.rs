//! Hashes existing files of the destination and sends the hashes. The sender does not send blocks that it finds equal.
//!
//! With `--checksum` the sender waits for the hashes. Otherwise it is a race: while a changed file waits to be read,
//! hashes of the old file overtake it if the link is slower than this disk. On a faster link the sender does not wait,
//! and the comparing stops. So a delta is never slower than sending the whole file.
//!
//! With `--verify`, files that the sender waits for are read from the device. Equal data then needs no further read
//! back.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use fullbore_engine::stage::{Kind as Clock, StageClock};
use rustix::fs::OFlags;
use rustix::io::Errno;

use super::base::Bases;
use super::opened::{self, Opened};
use super::partial::{Partial, errno};
use super::tree::{Folder, Tree};
use super::verify;
use crate::entry::Kind;
use crate::queue::{Closed, Queue};
use crate::session::Context;
use crate::wire::{BASIS_HASHES, Basis, Message, SMALL_BYTES, block_bytes, block_len, blocks};

/// Most files that wait to be compared.
const WAITING: usize = if cfg!(test) { 8 } else { 65_536 };
/// Comparing has to be this many times faster than incoming content, or it stops: disk and processor are then better
/// used for content.
const AHEAD: f64 = 2.0;
/// Bytes to hash before the comparing is judged.
const JUDGED_BYTES: u64 = 64 << 20;

/// A file to compare.
pub(super) struct Compare {
    pub(super) id: u64,
    pub(super) directory: Arc<Vec<u8>>,
    pub(super) name: Vec<u8>,
    /// Length of the source's file in bytes.
    pub(super) size: u64,
    /// The new file, if it is written in blocks.
    pub(super) partial: Option<Arc<Partial>>,
    /// Whether the sender waits for all hashes.
    pub(super) awaited: bool,
    /// The base that has the old file; `None` if the destination has it.
    pub(super) base: Option<usize>,
}

/// The queue of files to compare.
pub(super) struct Comparing {
    pub(super) queue: Queue<Compare>,
    /// Whether content arrives faster than old files are read.
    outrun: AtomicBool,
}

impl Comparing {
    pub(super) fn new() -> Comparing {
        Comparing { queue: Queue::new(WAITING), outrun: AtomicBool::new(false) }
    }

    /// Compares files until the queue is closed.
    pub(super) fn run(&self, context: &Context<'_>, (tree, opened): (&Tree, &Opened<'_>), bases: &Bases) {
        let _guard = context.cancel.guard();
        let clock = context.ledger.stage("compare", Clock::Thread);
        clock.adopt_thread();
        let comparer = Comparer { context, tree, opened, bases, clock: &clock, outrun: &self.outrun };
        let (began, mut hashed_bytes, mut spent) = (Instant::now(), 0, Duration::ZERO);
        while let Some(file) = self.queue.pop(&clock) {
            if !file.awaited && self.outrun.load(Ordering::Relaxed) {
                continue;
            }
            let since = Instant::now();
            match comparer.file(&file) {
                Ok(bytes) => hashed_bytes += bytes,
                // The run ends: discard waiting files, as the listing thread may wait for room.
                Err(Closed) => return self.queue.break_off(),
            }
            spent += since.elapsed();
            if is_outrun(hashed_bytes, spent, context.progress.account().written_bytes, began.elapsed()) {
                self.outrun.store(true, Ordering::Relaxed);
            }
        }
    }
}

/// Whether comparing is too slow for the rate of incoming content. It hashed `hashed_bytes` in the time `spent`.
fn is_outrun(hashed_bytes: u64, spent: Duration, come_bytes: u64, elapsed: Duration) -> bool {
    let come_bytes_per_s = come_bytes as f64 / elapsed.as_secs_f64().max(0.001);
    hashed_bytes >= JUDGED_BYTES && (hashed_bytes as f64) < AHEAD * come_bytes_per_s * spent.as_secs_f64()
}

/// An open file that the destination has under a name.
struct Old {
    file: File,
    from_device: bool,
}

struct Comparer<'a> {
    context: &'a Context<'a>,
    tree: &'a Tree,
    opened: &'a Opened<'a>,
    bases: &'a Bases,
    clock: &'a StageClock,
    outrun: &'a AtomicBool,
}

impl Comparer<'_> {
    fn say(&self, id: u64, first: u64, hashes: Vec<[u8; 32]>, last: bool) -> Result<(), Closed> {
        self.context.link.control_out.push(Message::Basis(Basis { id, first, hashes, last }), self.clock)
    }

    /// Sends the hashes of one file. Returns the number of hashed bytes.
    fn file(&self, file: &Compare) -> Result<u64, Closed> {
        let from_device = file.awaited && self.context.options.verify;
        let opened = || {
            let folder = match file.base {
                Some(base) => self.bases.folder(base, &file.directory)?,
                None => self.tree.folder(&file.directory)?,
            };
            let open = if from_device { verify::open } else { open };
            open(self.opened, &folder, &file.name).map(|file| Old { file, from_device })
        };
        let Ok(old) = self.clock.device(opened) else {
            // There is no file that could be equal.
            return if file.awaited { self.say(file.id, 0, Vec::new(), true).map(|()| 0) } else { Ok(0) };
        };
        if file.size < SMALL_BYTES {
            let hash = self.clock.device(|| whole(&old, file.size, self.context));
            return self.say(file.id, 0, hash.into_iter().collect(), true).map(|()| file.size);
        }
        self.big(file, &old)
    }

    fn big(&self, file: &Compare, old: &Old) -> Result<u64, Closed> {
        let (mut first, mut hashes, mut hashed_bytes) = (0, Vec::new(), 0);
        let mut next = 0;
        while next < blocks(file.size) {
            if self.context.cancel.is_cancelled() || !file.awaited && self.outrun.load(Ordering::Relaxed) {
                break;
            }
            // Skip blocks that an earlier run left, or that the sender has sent meanwhile.
            let missing = file.partial.as_ref().map_or(Some(next), |partial| partial.missing_from(next));
            let Some(index) = missing else { break };
            next = index + 1;
            let Ok((hash, length)) = self.clock.device(|| block(old, file.size, index, self.context)) else { break };
            hashed_bytes += length;
            if let Some(partial) = &file.partial {
                partial.promise(index, hash);
            }
            if first + hashes.len() as u64 != index || hashes.len() == BASIS_HASHES {
                let full = std::mem::take(&mut hashes);
                if !full.is_empty() {
                    self.say(file.id, first, full, false)?;
                }
                first = index;
            }
            hashes.push(hash);
        }
        self.say(file.id, first, hashes, true)?;
        Ok(hashed_bytes)
    }
}

/// Opens a name for reading if it is a file, even if its own permissions deny it to us as the owner.
pub(super) fn open(opened: &Opened<'_>, folder: &Folder, name: &[u8]) -> Result<File, Errno> {
    file_of(opened.open_file(folder, name, OFlags::empty())?)
}

/// Opens a name for reading if it is a file and its permissions allow it.
pub(super) fn open_permitted(folder: &Folder, name: &[u8]) -> Result<File, Errno> {
    file_of(opened::open_permitted(folder, name, OFlags::empty())?)
}

fn file_of(open: OwnedFd) -> Result<File, Errno> {
    let kind = Kind::of_mode(rustix::fs::fstat(&open)?.st_mode);
    if kind == Some(Kind::File) { Ok(File::from(open)) } else { Err(Errno::INVAL) }
}

/// The hash of a small file; `None` if its size differs by now.
fn whole(old: &Old, size: u64, context: &Context<'_>) -> Option<[u8; 32]> {
    let same_size = rustix::fs::fstat(&old.file).is_ok_and(|status| status.st_size as u64 == size);
    if same_size { block(old, size, 0, context).ok().map(|(hash, _)| hash) } else { None }
}

/// The hash and length of a block of the old file; an error if it has no such block.
fn block(old: &Old, size: u64, index: u64, context: &Context<'_>) -> Result<([u8; 32], u64), Errno> {
    let (offset, length) = (index * block_bytes(size), block_len(size, index));
    let mut buffer = context.link.pool.take(length as usize);
    let hash = |content: &[u8]| *blake3::hash(content).as_bytes();
    let read = if old.from_device {
        let read = verify::read(&old.file, &mut buffer, offset, length as usize);
        read.and_then(|content| content.map(hash).ok_or(Errno::NODATA))
    } else {
        old.file.read_exact_at(&mut buffer, offset).map_err(errno).map(|()| hash(&buffer))
    };
    context.link.pool.give(buffer);
    read.map(|hash| (hash, length))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;
    use crate::options::Options;
    use crate::session::tests::with_context;

    #[test]
    fn comparing_goes_on_only_while_it_is_ahead_of_the_content() {
        let (second, enough) = (Duration::from_secs(1), JUDGED_BYTES);
        // A gigabyte per second hashed: a fast network outruns that, a slow one does not.
        for (hashed_bytes, spent, come_bytes, elapsed, outrun) in [
            (enough, second / 10, enough * 4, second, false),
            (enough, second / 10, enough * 6, second, true),
            (enough - 1, second / 10, enough * 6, second, false),
            (enough * 10, second, enough * 40, second * 10, false),
            (enough * 10, second, enough * 60, second * 10, true),
            // Nothing has come, and no time has passed.
            (enough, second, 0, Duration::ZERO, false),
        ] {
            let judged = is_outrun(hashed_bytes, spent, come_bytes, elapsed);
            assert_eq!(judged, outrun, "{hashed_bytes} in {spent:?}, {come_bytes} in {elapsed:?}");
        }
    }

    #[test]
    fn where_nobody_hears_of_hashes_nobody_waits_to_have_files_compared() {
        let directory = tempfile::tempdir().unwrap();
        let tree = Tree::open(directory.path()).unwrap();
        let (comparing, pushed) = (Comparing::new(), AtomicUsize::new(0));
        with_context(&Options::default(), |context| {
            context.link.control_out.close();
            let clock = context.ledger.stage("test", Clock::Thread);
            std::thread::scope(|scope| {
                scope.spawn(|| comparing.run(context, (&tree, &Opened::of(&tree)), &Bases::default()));
                let pushing = scope.spawn(|| {
                    for id in 0..20 {
                        let compare = Compare {
                            id,
                            directory: Arc::default(),
                            name: b"file".into(),
                            size: 3,
                            partial: None,
                            awaited: true,
                            base: None,
                        };
                        let _ = comparing.queue.push(compare, &clock);
                        pushed.fetch_add(1, Ordering::Relaxed);
                    }
                });
                let until = Instant::now() + Duration::from_secs(60);
                while !pushing.is_finished() && Instant::now() < until {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let pushed = pushed.load(Ordering::Relaxed);
                comparing.queue.break_off();
                assert_eq!(pushed, 20);
            });
        });
    }
}
