//! The pass on one core: each block passes all steps in the calling thread.

use fullbore_debian::pdiff::Edits;
use fullbore_engine::digest::Sha256Hasher;

use super::pass::{EncodedFrame, Pass, Sink};
use super::source::Frames;
use super::target::Target;
use super::{PassError, PassResult, Plan};
use crate::frames::{Buffer, Container, Decoder, Encoder, FrameSink};

struct Inline {
    hasher: Sha256Hasher,
    limit: u64,
    target: Target,
    /// `None` for a plain file.
    encoder: Option<Encoder>,
    container: Container,
    spare: Vec<Buffer>,
    packed: Vec<u8>,
    copied: u64,
}

pub(super) fn run(plan: &Plan<'_>, edits: &Edits, target: Target) -> Result<PassResult, PassError> {
    // One clock for all roles: separate ones would cost more than they tell.
    let _role = plan.clocks.patch.enter();
    let mut pass = Pass::new(edits, Inline::new(plan, target)?);
    match plan.layout {
        Some(layout) => {
            let mut frames = Frames::new(plan.file, layout, plan.clocks.read.clone());
            let mut decoder = Decoder::new(plan.old_form).map_err(PassError::Codec)?.ok_or(PassError::Lost)?;
            while let Some((frame, bytes, is_last)) = frames.next().map_err(PassError::Read)? {
                let mut text = pass.sink.spare();
                decoder.decode(&frame, &bytes, &mut text).map_err(PassError::Frame)?;
                let encoded = plan.copies().then_some(EncodedFrame { frame, bytes });
                pass.take(text, encoded, is_last)?;
            }
        }
        None => {
            let mut stream = plan.stream()?;
            loop {
                let buffer = pass.sink.spare();
                let Some(text) = stream.next(buffer).map_err(PassError::Read)? else { break };
                pass.take(text, None, false)?;
            }
        }
    }
    pass.finish()?.finish()
}

impl Inline {
    fn new(plan: &Plan<'_>, mut target: Target) -> Result<Inline, PassError> {
        let container = Container::new(plan.new_form);
        target.append(container.head())?;
        Ok(Inline {
            hasher: Sha256Hasher::new(),
            limit: plan.limit,
            target,
            encoder: Encoder::new(plan.new_form, plan.level).map_err(PassError::Codec)?,
            container,
            spare: Vec::new(),
            packed: Vec::new(),
            copied: 0,
        })
    }

    fn hash(&mut self, text: &[u8]) -> Result<(), PassError> {
        self.hasher.update(text);
        if self.hasher.bytes() > self.limit {
            return Err(PassError::TooLong(Some(Box::new(self.hasher.clone()))));
        }
        Ok(())
    }

    fn finish(mut self) -> Result<PassResult, PassError> {
        if self.container.needs_a_frame() && self.container.count() == 0 {
            self.frame(Buffer::default())?;
        }
        self.target.append(&self.container.tail())?;
        let encoded = self.container.count() - self.copied;
        Ok(PassResult { hasher: self.hasher, target: self.target, copied: self.copied, encoded })
    }
}

impl FrameSink for Inline {
    type Error = PassError;

    fn spare(&mut self) -> Buffer {
        self.spare.pop().unwrap_or_default()
    }

    fn frame(&mut self, text: Buffer) -> Result<(), PassError> {
        self.hash(&text)?;
        match &mut self.encoder {
            None => self.target.append(&text)?,
            Some(encoder) => {
                self.packed.clear();
                let frame = encoder.encode(&text, &mut self.packed).map_err(PassError::Codec)?;
                self.container.add(frame);
                self.target.append(&self.packed)?;
            }
        }
        self.give_back(text);
        Ok(())
    }
}

impl Sink for Inline {
    fn copy(&mut self, text: Buffer, encoded: EncodedFrame) -> Result<(), PassError> {
        self.hash(&text)?;
        self.container.add(encoded.frame);
        self.copied += 1;
        self.target.append(&encoded.bytes)?;
        self.give_back(text);
        Ok(())
    }

    fn give_back(&mut self, mut buffer: Buffer) {
        buffer.clear();
        self.spare.push(buffer);
    }

    fn is_plain(&self) -> bool {
        self.encoder.is_none()
    }
}
