//! Turns a file's bytes into blocks: one thread reads and encrypts in order, a pool encodes and hashes, and the blocks
//! come out in order. Memory for blocks is taken from a window, and returned when the last block of a segment is
//! acknowledged.

use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc as threads};
use std::thread;
use std::time::{Duration, Instant};

use fullbore_engine::stage::Ledger;
use fullbore_engine::stage::TimedStage;
use fullbore_engine::window::Window;
use tokio::sync::{mpsc, oneshot, watch};

use super::source::Source;
use crate::cap::Key;
use crate::code::Code;
use crate::encode::{EncodeError, Encoded, Encoder, Finished, Input, KeyHasher};
use crate::geometry::Geometry;
use fullbore_engine::memory_pool::MemoryPool;

/// Bytes per read for the key.
const KEY_READ_BYTES: usize = 256 << 10;

/// The stages of an upload before the network: busy time over all threads, bytes, and clocks in the run's ledger.
#[derive(Debug)]
pub struct Meter {
    source: TimedStage,
    hash: TimedStage,
    encode: TimedStage,
    plaintext: AtomicU64,
    memory_ns: AtomicU64,
}

impl Default for Meter {
    fn default() -> Meter {
        Meter::new(&Ledger::off())
    }
}

/// Values of a [`Meter`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Costs {
    /// Reading the files, twice if the key is convergent.
    pub source: Duration,
    /// The key, encryption, and the hash over the ciphertext: one thread per file.
    pub hash: Duration,
    /// Coding and hashing of blocks, over all threads of the pool.
    pub encode: Duration,
    /// Waiting for memory, that is, for servers.
    pub memory: Duration,
    /// Bytes of files that were encoded.
    pub plaintext: u64,
}

impl Meter {
    /// A meter that counts in this ledger: stages `source`, `hash` and `encode`.
    pub fn new(ledger: &Ledger) -> Meter {
        Meter {
            source: TimedStage::new(ledger, "source"),
            hash: TimedStage::new(ledger, "hash"),
            encode: TimedStage::new(ledger, "encode"),
            plaintext: AtomicU64::new(0),
            memory_ns: AtomicU64::new(0),
        }
    }

    /// Times a read of the source, which may wait for a disk or the writer of a pipe.
    pub fn read<R>(&self, read: impl FnOnce() -> R) -> R {
        self.source.timed(|| self.source.clock.device(read))
    }

    /// Times a wait for memory, that is, for servers.
    fn wait_for_memory<R>(&self, wait: impl FnOnce() -> R) -> R {
        let begun = Instant::now();
        let result = self.hash.clock.blocked_in(wait);
        self.memory_ns.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
        result
    }

    /// Current values of all counters.
    pub fn reading(&self) -> Costs {
        Costs {
            source: self.source.worked(),
            hash: self.hash.worked(),
            encode: self.encode.worked(),
            memory: Duration::from_nanos(self.memory_ns.load(Ordering::Relaxed)),
            plaintext: self.plaintext.load(Ordering::Relaxed),
        }
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that encode and decode segments.
#[derive(Debug, Clone)]
pub struct Pool {
    jobs: threads::Sender<Job>,
    threads: usize,
}

impl Pool {
    /// Starts this many threads; they end with the last clone of the pool.
    pub fn new(threads: usize) -> Pool {
        let (jobs, receiver) = threads::channel::<Job>();
        let receiver = Arc::new(Mutex::new(receiver));
        let count = threads.max(1);
        for _ in 0..count {
            let receiver = Arc::clone(&receiver);
            let serve = move || {
                loop {
                    let job = receiver.lock().unwrap_or_else(PoisonError::into_inner).recv();
                    match job {
                        Ok(job) => job(),
                        Err(_) => break,
                    }
                }
            };
            // If a thread cannot be started, the others do its work, or the caller.
            let _ = thread::Builder::new().name("encode".into()).spawn(serve);
        }
        Pool { jobs, threads: count }
    }

    /// Number of threads in the pool.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs work in the pool; the result can be awaited.
    pub(crate) fn run_async<R: Send + 'static>(
        &self,
        work: impl FnOnce() -> R + Send + 'static,
    ) -> oneshot::Receiver<R> {
        let (sender, receiver) = oneshot::channel();
        self.hand_out(move || drop(sender.send(work())));
        receiver
    }

    fn run<R: Send + 'static>(&self, work: impl FnOnce() -> R + Send + 'static) -> threads::Receiver<R> {
        let (sender, receiver) = threads::channel();
        self.hand_out(move || drop(sender.send(work())));
        receiver
    }

    /// Hands a job to the pool, or runs it here if the pool has no threads.
    fn hand_out(&self, job: impl FnOnce() + Send + 'static) {
        if let Err(threads::SendError(job)) = self.jobs.send(Box::new(job)) {
            job();
        }
    }
}

/// A file that cannot be read as announced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A read failed.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// The file does not have the announced size.
    #[error("not {size} bytes long: it changed while it was read, or --size is wrong")]
    Size {
        /// The announced size in bytes.
        size: u64,
    },
    /// The file was changed while it was put.
    #[error("changed while it was put")]
    Changed,
    /// Segments are missing or have wrong lengths.
    #[error(transparent)]
    Encode(#[from] EncodeError),
}

/// Output of the producer, in order.
#[derive(Debug)]
pub enum Piece {
    /// Blocks of the next segment.
    Blocks(Encoded),
    /// No memory is left: send what was gathered.
    Flush,
    /// All blocks are out.
    Finished(Box<Finished>),
    /// The file cannot be read.
    Failed(SourceError),
}

/// What all producers of a run share.
#[derive(Debug, Clone)]
pub struct ProducerContext {
    /// Encodes segments.
    pub pool: Pool,
    /// Bounds the memory for blocks.
    pub memory: Window,
    /// Unused memory for blocks.
    pub spare: MemoryPool,
    /// Measures the time of the stages.
    pub meter: Arc<Meter>,
}

impl ProducerContext {
    /// The convergent key of a file. Reads all of it, blocking. `None` if the run was stopped.
    ///
    /// # Errors
    /// [`SourceError::Read`] if a read fails; [`SourceError::Size`] if the source is shorter than `geometry` says.
    pub fn key(
        &self,
        source: &Source,
        geometry: &Geometry,
        secret: &[u8],
        stop: &watch::Receiver<bool>,
    ) -> Result<Option<Key>, SourceError> {
        let mut hasher = KeyHasher::new(geometry, secret);
        let mut buffer = vec![0; KEY_READ_BYTES];
        let mut offset = 0;
        while offset < geometry.size {
            if *stop.borrow() {
                return Ok(None);
            }
            let length = (geometry.size - offset).min(KEY_READ_BYTES as u64) as usize;
            let piece = &mut buffer[..length];
            if self.meter.read(|| source.read(offset, piece))? < length {
                return Err(SourceError::Size { size: geometry.size });
            }
            self.meter.hash.timed(|| hasher.update(&buffer[..length]));
            offset += length as u64;
        }
        Ok(Some(hasher.finish()))
    }

    /// Encodes a file into `out`; blocks until all is out, or the receiver is gone.
    pub fn produce(
        &self,
        source: &Source,
        geometry: Geometry,
        input: Input,
        code: Arc<Code>,
        out: &mpsc::Sender<Piece>,
    ) {
        let last = match self.segments(source, geometry, input, code, out) {
            Ok(Some(finished)) => Piece::Finished(Box::new(finished)),
            Ok(None) => return,
            Err(error) => Piece::Failed(error),
        };
        let _ = out.blocking_send(last);
    }

    /// Encodes all segments; `None` if the receiver is gone.
    fn segments(
        &self,
        source: &Source,
        geometry: Geometry,
        input: Input,
        code: Arc<Code>,
        out: &mpsc::Sender<Piece>,
    ) -> Result<Option<Finished>, SourceError> {
        let mut encoder = Encoder::of(geometry, input, code);
        let mut under_way: VecDeque<threads::Receiver<Encoded>> = VecDeque::new();
        let memory = geometry.segment_memory();
        let hand_out = |encoder: &mut Encoder, encoded: Encoded| {
            encoder.add(&encoded.hashes);
            out.blocking_send(Piece::Blocks(encoded)).is_ok()
        };
        for index in 0..geometry.segments {
            let permit = match self.memory.try_acquire(memory) {
                Some(permit) => permit,
                None => {
                    // Encoded segments go out first: they hold memory, too.
                    for done in under_way.drain(..) {
                        if !hand_out(&mut encoder, received(&done)) {
                            return Ok(None);
                        }
                    }
                    if out.blocking_send(Piece::Flush).is_err() {
                        return Ok(None);
                    }
                    self.meter.wait_for_memory(|| self.memory.acquire_blocking(memory))
                }
            };
            let length = geometry.segment_len(index) as usize;
            let mut blocks = self.spare.take(memory as usize);
            let read = || source.read(index * geometry.segment_size, &mut blocks[..length]);
            if self.meter.read(read)? < length {
                return Err(SourceError::Size { size: geometry.size });
            }
            let spare = self.spare.clone();
            let home = Box::new(move |blocks| {
                // In this order, so that spare memory stays within the window.
                spare.give(blocks);
                drop(permit);
            });
            let segment = self.meter.hash.timed(|| encoder.segment(blocks, length, Some(home)))?;
            self.meter.plaintext.fetch_add(length as u64, Ordering::Relaxed);
            if geometry.segments == 1 {
                // No other thread could help.
                let encoded = self.meter.encode.timed(|| segment.encode());
                if !hand_out(&mut encoder, encoded) {
                    return Ok(None);
                }
                break;
            }
            let meter = Arc::clone(&self.meter);
            under_way.push_back(self.pool.run(move || meter.encode.timed(|| segment.encode())));
            if under_way.len() > self.pool.threads
                && let Some(done) = under_way.pop_front()
                && !hand_out(&mut encoder, received(&done))
            {
                return Ok(None);
            }
        }
        for done in under_way {
            if !hand_out(&mut encoder, received(&done)) {
                return Ok(None);
            }
        }
        if !source.ends_at(geometry.size)? {
            return Err(SourceError::Size { size: geometry.size });
        }
        // The key was made from the bytes read first. Shares of anything else under it would be taken for that content.
        if source.is_changed() {
            return Err(SourceError::Changed);
        }
        Ok(Some(encoder.finish()?))
    }

    /// Encodes a file only to get its cap; blocks.
    ///
    /// # Errors
    /// [`SourceError::Read`] if a read fails; [`SourceError::Size`] if the source has another size;
    /// [`SourceError::Changed`] if it changed since its key was made.
    pub(crate) fn finish_only(
        &self,
        source: &Source,
        geometry: Geometry,
        key: Key,
        code: Arc<Code>,
    ) -> Result<Finished, SourceError> {
        let (out, mut pieces) = mpsc::channel(1);
        thread::scope(|scope| {
            scope.spawn(move || self.produce(source, geometry, Input::Plaintext(key), code, &out));
            loop {
                match pieces.blocking_recv() {
                    Some(Piece::Finished(finished)) => return Ok(*finished),
                    Some(Piece::Failed(error)) => return Err(error),
                    Some(Piece::Blocks(_) | Piece::Flush) => {}
                    None => return Err(SourceError::Size { size: geometry.size }),
                }
            }
        })
    }
}

/// Waits for the result of a job of the pool.
fn received(done: &threads::Receiver<Encoded>) -> Encoded {
    done.recv().expect("a thread of the pool does not end while it encodes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Encoding;
    use std::io::Write;
    use std::time::SystemTime;

    #[test]
    fn a_file_that_is_written_to_while_it_is_put_has_no_cap() {
        let context = context();
        let geometry = Geometry::new(Encoding::new(1, 1, 1).unwrap(), 100, 1 << 20).unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100]).unwrap();
        let source = Source::file(file.try_clone().unwrap());
        let finish = || context.finish_only(&source, geometry, [0; 16], Arc::new(Code::new(1, 1)));
        finish().unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(matches!(finish(), Err(SourceError::Changed)));
    }

    fn context() -> ProducerContext {
        let memory = Window::new(1 << 20, u32::MAX);
        ProducerContext { pool: Pool::new(1), memory, spare: MemoryPool::default(), meter: Arc::new(Meter::default()) }
    }

    #[test]
    fn a_key_that_is_not_wanted_any_more_is_not_made() {
        let context = context();
        let geometry = Geometry::new(Encoding::new(1, 1, 1).unwrap(), 100, 1 << 20).unwrap();
        let source = Source::Memory(vec![7; 100].into());
        let stop = watch::Sender::new(false);
        assert!(context.key(&source, &geometry, b"secret", &stop.subscribe()).unwrap().is_some());
        stop.send_replace(true);
        assert!(context.key(&source, &geometry, b"secret", &stop.subscribe()).unwrap().is_none());
    }
}
