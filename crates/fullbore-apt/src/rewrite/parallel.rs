//! The pass on several cores: workers decompress and compress frames, a thread hashes, and the calling thread patches and
//! writes in order.
//!
//! ```text
//! read ─┬─> workers: decompress ─┬─> patch ──> hash ─┬─> workers: compress ──> write
//!       └─> or a reader's stream ┘                   └─> (copied frames) ────> write
//! ```
//!
//! A buffer has one owner at a time; [`AHEAD`] and [`WAITING_BYTES`] bound the data in flight. The queues of jobs and
//! results hold everything in flight, so workers wait only for jobs, and no deadlock is possible.

mod workers;

use std::collections::VecDeque;
use std::sync::Mutex;
use std::thread;

use fullbore_debian::compression::Form;
use fullbore_debian::pdiff::Edits;
use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::pipeline::{Receiver, Sender, channel};

use self::workers::{Hashing, Job, Outcome, Pool, hash, put_back, read, take_from, work};
use super::pass::{EncodedFrame, Pass, Sink};
use super::source::Frames;
use super::target::Target;
use super::{PassError, PassResult, Plan};
use crate::acquire::panic_text;
use crate::frames::{Buffer, Container, FrameSink};

/// Frames in flight per worker, for decompression and for compression: one in work, one waiting, and one more for results
/// that arrive out of order.
const AHEAD: usize = 3;

/// Pieces of text in the queue of the hash, the slowest stage for plain text: a short queue keeps the text in the cache.
const HASH_AHEAD: usize = 4;

/// Bytes of finished frames that wait for an earlier frame.
const WAITING_BYTES: usize = 4 << 20;

pub(super) fn run(plan: &Plan<'_>, edits: &Edits, target: Target) -> Result<PassResult, PassError> {
    let clocks = &plan.clocks;
    let packs = !matches!(plan.new_form, Form::Plain);
    let workers = if packs || plan.layout.is_some() { plan.threads } else { 0 };
    let ahead = (AHEAD * workers).max(1);
    let (jobs, jobs_in) = channel(2 * ahead, &clocks.patch, &clocks.unpack);
    let (results, results_in) = channel(2 * ahead + 1, &clocks.unpack, &clocks.patch);
    let (to_hash, to_hash_in) = channel(HASH_AHEAD, &clocks.patch, &clocks.hash);
    let (texts, texts_in) = channel(HASH_AHEAD, &clocks.read, &clocks.patch);
    let jobs_in = Mutex::new(jobs_in);
    let pool = Pool::default();
    // Opened before any thread starts, for errors.
    let stream = if plan.layout.is_none() { Some(plan.stream()?) } else { None };

    thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..workers {
            let (jobs_in, results, pool) = (&jobs_in, results.clone(), &pool);
            threads.push(spawn(scope, "codec", move || {
                work(plan, jobs_in, &results, pool);
                Ok(None)
            })?);
        }
        let (encode, hash_pool) = (jobs.clone(), &pool);
        let failed = results.clone();
        threads.push(spawn(scope, "hash", move || hash(to_hash_in, &encode, &failed, hash_pool, clocks).map(Some))?);
        drop(results);
        if let Some(stream) = stream {
            let pool = &pool;
            threads.push(spawn(scope, "read", move || read(stream, &texts, pool).map(|()| None))?);
        }

        let _role = clocks.patch.enter();
        let pass = ParallelPass {
            jobs,
            results: results_in,
            to_hash,
            pool: pool.clone(),
            ahead,
            limit: plan.limit,
            given: 0,
            decoded: VecDeque::new(),
            decoded_before: 0,
            outputs: VecDeque::new(),
            outputs_before: 0,
            encoding: 0,
            waiting_bytes: 0,
            is_plain: !packs,
            container: Container::new(plan.new_form),
            target,
            copied: 0,
        };
        let result = pass.run(plan, edits, texts_in);
        join(threads, result)
    })
}

type Joined<'s> = thread::ScopedJoinHandle<'s, Result<Option<Sha256Hasher>, PassError>>;

fn spawn<'s, 'e>(
    scope: &'s thread::Scope<'s, 'e>,
    name: &str,
    work: impl FnOnce() -> Result<Option<Sha256Hasher>, PassError> + Send + 's,
) -> Result<Joined<'s>, PassError> {
    thread::Builder::new().name(name.to_owned()).spawn_scoped(scope, work).map_err(PassError::Codec)
}

/// Joins the threads. The first cause of a failure counts: a panic, an error of a thread, then that of the calling thread.
fn join(threads: Vec<Joined<'_>>, result: Result<ParallelPass, PassError>) -> Result<PassResult, PassError> {
    // The pass's channels must be closed for the threads to end.
    let (rest, mut failure) = match result {
        Ok(pass) => (Some((pass.target, pass.container, pass.copied)), None),
        Err(stop) => (None, Some(stop)),
    };
    let (mut hasher, mut cause) = (None, None);
    for thread in threads {
        match thread.join() {
            Ok(Ok(None)) => {}
            Ok(Ok(digest)) => hasher = digest,
            Ok(Err(stop)) => cause = cause.or(Some(stop)),
            Err(payload) => cause = Some(PassError::Panicked(panic_text(&*payload).to_owned())),
        }
    }
    if let Some(PassError::TooLong(seen)) = &mut failure {
        // The hash so far, for the message.
        *seen = hasher.take().map(Box::new);
    }
    match (cause.or(failure), rest, hasher) {
        (Some(stop), ..) => Err(stop),
        (None, Some((target, container, copied)), Some(hasher)) => {
            Ok(PassResult { hasher, target, copied, encoded: container.count() - copied })
        }
        (None, ..) => Err(PassError::Lost),
    }
}

/// The state of the calling thread.
struct ParallelPass {
    jobs: Sender<Job>,
    results: Receiver<Outcome>,
    to_hash: Sender<Hashing>,
    pool: Pool,
    /// Largest number of frames in flight in each direction.
    ahead: usize,
    limit: u64,
    /// Bytes of new text so far.
    given: u64,
    /// Frames in decompression, from number `decoded_before` on.
    decoded: VecDeque<Option<(Buffer, EncodedFrame, bool)>>,
    decoded_before: usize,
    /// New frames, from number `outputs_before` on.
    outputs: VecDeque<Option<EncodedFrame>>,
    outputs_before: usize,
    /// Number of these in compression.
    encoding: usize,
    /// Bytes of the finished ones.
    waiting_bytes: usize,
    is_plain: bool,
    container: Container,
    target: Target,
    copied: u64,
}

impl ParallelPass {
    fn run(mut self, plan: &Plan<'_>, edits: &Edits, mut texts: Receiver<Buffer>) -> Result<ParallelPass, PassError> {
        self.target.append(self.container.head())?;
        let mut pass = Pass::new(edits, self);
        match plan.layout {
            Some(layout) => {
                let mut frames = Frames::new(plan.file, layout, plan.clocks.read.clone());
                while let Some((text, encoded, is_last)) = pass.sink.next_frame(&mut frames)? {
                    pass.take(text, plan.copies().then_some(encoded), is_last)?;
                }
            }
            None => {
                while let Some(text) = texts.recv_blocking() {
                    pass.take(text, None, false)?;
                }
            }
        }
        pass.finish()?.finish()
    }

    /// The next decompressed frame; later ones are in work.
    fn next_frame(&mut self, frames: &mut Frames<'_>) -> Result<Option<(Buffer, EncodedFrame, bool)>, PassError> {
        loop {
            while self.decoded.len() < self.ahead {
                let Some((frame, bytes, is_last)) = frames.next().map_err(PassError::Read)? else { break };
                let number = self.decoded_before + self.decoded.len();
                self.decoded.push_back(None);
                self.job(Job::Decode { frame, bytes, number, is_last })?;
            }
            match self.decoded.front_mut().map(Option::take) {
                None => return Ok(None),
                Some(Some(ready)) => {
                    self.decoded.pop_front();
                    self.decoded_before += 1;
                    return Ok(Some(ready));
                }
                Some(None) => self.receive()?,
            }
        }
    }

    fn job(&self, job: Job) -> Result<(), PassError> {
        self.jobs.send_blocking(job).map_err(|_| PassError::Lost)
    }

    /// Receives one result of the workers.
    fn receive(&mut self) -> Result<(), PassError> {
        match self.results.recv_blocking().ok_or(PassError::Lost)? {
            Outcome::Decoded { text, encoded, number, is_last } => {
                self.decoded[number - self.decoded_before] = Some((text, encoded, is_last));
                Ok(())
            }
            Outcome::Encoded { encoded, number } => {
                self.waiting_bytes += encoded.bytes.len();
                self.outputs[number - self.outputs_before] = Some(encoded);
                self.encoding -= 1;
                self.write_ready()
            }
            Outcome::Failed(stop) => Err(stop),
        }
    }

    fn write_ready(&mut self) -> Result<(), PassError> {
        while let Some(Some(encoded)) = self.outputs.front_mut().map(Option::take) {
            self.outputs.pop_front();
            self.outputs_before += 1;
            self.waiting_bytes -= encoded.bytes.len();
            self.container.add(encoded.frame);
            self.target.append(&encoded.bytes)?;
        }
        Ok(())
    }

    fn hash(&mut self, text: Buffer, encode: Option<usize>) -> Result<(), PassError> {
        self.given += text.len() as u64;
        let too_long = self.given > self.limit;
        self.to_hash.send_blocking(Hashing { text, encode }).map_err(|_| PassError::Lost)?;
        if too_long { Err(PassError::TooLong(None)) } else { Ok(()) }
    }

    fn finish(mut self) -> Result<ParallelPass, PassError> {
        if self.container.needs_a_frame() && self.container.count() == 0 && self.outputs.is_empty() {
            self.frame(Buffer::default())?;
        }
        while !self.outputs.is_empty() {
            self.receive()?;
        }
        self.target.append(&self.container.tail())?;
        Ok(self)
    }
}

impl FrameSink for ParallelPass {
    type Error = PassError;

    fn spare(&mut self) -> Buffer {
        take_from(&self.pool)
    }

    fn frame(&mut self, text: Buffer) -> Result<(), PassError> {
        if self.is_plain {
            self.target.append(&text)?;
            return self.hash(text, None);
        }
        while self.encoding >= self.ahead {
            self.receive()?;
        }
        let number = self.outputs_before + self.outputs.len();
        self.outputs.push_back(None);
        self.encoding += 1;
        self.hash(text, Some(number))
    }
}

impl Sink for ParallelPass {
    fn copy(&mut self, text: Buffer, encoded: EncodedFrame) -> Result<(), PassError> {
        while self.waiting_bytes > WAITING_BYTES {
            self.receive()?;
        }
        self.copied += 1;
        self.waiting_bytes += encoded.bytes.len();
        self.outputs.push_back(Some(encoded));
        self.hash(text, None)?;
        self.write_ready()
    }

    fn give_back(&mut self, buffer: Buffer) {
        put_back(&self.pool, buffer);
    }

    fn is_plain(&self) -> bool {
        self.is_plain
    }
}
