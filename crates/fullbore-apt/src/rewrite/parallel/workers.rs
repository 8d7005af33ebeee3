//! The other threads: reading, hashing, and codec workers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use fullbore_engine::digest::Sha256Hasher;
use fullbore_engine::pipeline::{Receiver, Sender};

use crate::acquire::panic_text;
use crate::frames::{Buffer, Decoder, Encoder, Frame};
use crate::rewrite::clocks::Clocks;
use crate::rewrite::pass::EncodedFrame;
use crate::rewrite::source::Stream;
use crate::rewrite::{PassError, Plan};

/// A job for a worker.
pub(super) enum Job {
    Decode { frame: Frame, bytes: Vec<u8>, number: usize, is_last: bool },
    Encode { text: Buffer, number: usize },
}

/// A result of a worker.
pub(super) enum Outcome {
    Decoded { text: Buffer, encoded: EncodedFrame, number: usize, is_last: bool },
    Encoded { encoded: EncodedFrame, number: usize },
    Failed(PassError),
}

/// Text for the hash thread.
pub(super) struct Hashing {
    pub(super) text: Buffer,
    /// Its number among the new frames, if it must be compressed.
    pub(super) encode: Option<usize>,
}

/// Unused buffers.
pub(super) type Pool = Arc<Mutex<Vec<Buffer>>>;

pub(super) fn take_from(pool: &Pool) -> Buffer {
    pool.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default()
}

pub(super) fn put_back(pool: &Pool, mut buffer: Buffer) {
    buffer.clear();
    pool.lock().unwrap_or_else(PoisonError::into_inner).push(buffer);
}

/// Reads the old text from its beginning.
pub(super) fn read(mut stream: Stream, texts: &Sender<Buffer>, pool: &Pool) -> Result<(), PassError> {
    let _role = stream.clock().enter();
    while let Some(text) = stream.next(take_from(pool)).map_err(PassError::Read)? {
        if texts.send_blocking(text).is_err() {
            break;
        }
    }
    Ok(())
}

/// Hashes all text in order, and sends frames to compression.
pub(super) fn hash(
    mut texts: Receiver<Hashing>,
    encode: &Sender<Job>,
    failed: &Sender<Outcome>,
    pool: &Pool,
    clocks: &Clocks,
) -> Result<Sha256Hasher, PassError> {
    let _role = clocks.hash.enter();
    let mut hasher = Sha256Hasher::new();
    let hashed = catch_unwind(AssertUnwindSafe(|| {
        while let Some(Hashing { text, encode: number }) = texts.recv_blocking() {
            hasher.update(&text);
            clocks.hash.add_items(1, text.len() as u64);
            match number {
                None => put_back(pool, text),
                // An error means that the receiver has ended.
                Some(number) => drop(encode.send_blocking(Job::Encode { text, number })),
            }
        }
    }));
    hashed.map(|()| hasher).map_err(|payload| {
        // The calling thread waits for frames that are lost now.
        let message = panic_text(&*payload).to_owned();
        let _ = failed.send_blocking(Outcome::Failed(PassError::Panicked(message.clone())));
        PassError::Panicked(message)
    })
}

/// A worker's codecs, created on first use.
struct Coder<'p> {
    plan: &'p Plan<'p>,
    decoder: Option<Decoder>,
    encoder: Option<Encoder>,
}

/// Processes jobs until the channel closes.
pub(super) fn work(plan: &Plan<'_>, jobs: &Mutex<Receiver<Job>>, results: &Sender<Outcome>, pool: &Pool) {
    let mut coder = Coder { plan, decoder: None, encoder: None };
    let clocks = &plan.clocks;
    loop {
        let job = clocks.unpack.starved_in(|| jobs.lock().unwrap_or_else(PoisonError::into_inner).recv_blocking());
        let Some(job) = job else { return };
        // After a panic of a codec the others still need a result.
        let outcome = match catch_unwind(AssertUnwindSafe(|| coder.run(job, pool))) {
            Ok(Ok(outcome)) => outcome,
            Ok(Err(stop)) => Outcome::Failed(stop),
            Err(payload) => Outcome::Failed(PassError::Panicked(panic_text(&*payload).to_owned())),
        };
        if results.send_blocking(outcome).is_err() {
            return;
        }
    }
}

impl Coder<'_> {
    fn run(&mut self, job: Job, pool: &Pool) -> Result<Outcome, PassError> {
        let clocks = &self.plan.clocks;
        match job {
            Job::Decode { frame, bytes, number, is_last } => {
                let _role = clocks.unpack.enter();
                if self.decoder.is_none() {
                    self.decoder = Decoder::new(self.plan.old_form).map_err(PassError::Codec)?;
                }
                let mut text = take_from(pool);
                self.decoder
                    .as_mut()
                    .ok_or(PassError::Lost)?
                    .decode(&frame, &bytes, &mut text)
                    .map_err(PassError::Frame)?;
                clocks.unpack.add_items(1, text.len() as u64);
                Ok(Outcome::Decoded { text, encoded: EncodedFrame { frame, bytes }, number, is_last })
            }
            Job::Encode { text, number } => {
                let _role = clocks.pack.enter();
                if self.encoder.is_none() {
                    self.encoder = Encoder::new(self.plan.new_form, self.plan.level).map_err(PassError::Codec)?;
                }
                let mut bytes = Vec::new();
                let encoder = self.encoder.as_mut().ok_or(PassError::Lost)?;
                let frame = encoder.encode(&text, &mut bytes).map_err(PassError::Codec)?;
                clocks.pack.add_items(1, text.len() as u64);
                put_back(pool, text);
                Ok(Outcome::Encoded { encoded: EncodedFrame { frame, bytes }, number })
            }
        }
    }
}
