//! The serial part of a pass: each block of old text is copied or patched, in order.

use fullbore_debian::pdiff::{Edits, Piece, Splice};

use super::PassError;
use crate::frames::{Buffer, Cutter, Frame, FrameSink, is_good};

/// A compressed frame of the old file.
pub(super) struct EncodedFrame {
    pub(super) frame: Frame,
    pub(super) bytes: Vec<u8>,
}

/// Hashes, compresses and writes.
pub(super) trait Sink: FrameSink<Error = PassError> {
    /// Copies a frame.
    fn copy(&mut self, text: Buffer, encoded: EncodedFrame) -> Result<(), PassError>;

    /// Returns a buffer to the pool.
    fn give_back(&mut self, buffer: Buffer);

    /// Whether the new file is plain, so that text may be cut anywhere.
    fn is_plain(&self) -> bool;
}

pub(super) struct Pass<'e, S> {
    splice: Splice<'e>,
    cutter: Cutter,
    pub(super) sink: S,
}

impl<'e, S: Sink> Pass<'e, S> {
    pub(super) fn new(edits: &'e Edits, sink: S) -> Pass<'e, S> {
        Pass { splice: Splice::new(edits), cutter: Cutter::default(), sink }
    }

    /// Processes the next block of old text; `encoded` is its frame, if it can be copied.
    pub(super) fn take(&mut self, text: Buffer, encoded: Option<EncodedFrame>, is_last: bool) -> Result<(), PassError> {
        let untouched = self.splice.pass_untouched(&text);
        let plain = self.sink.is_plain();
        // A frame of a bad size is joined with its neighbours; the last one only if text follows.
        let stays = !text.is_empty() && (plain || is_good(text.len()) || (is_last && self.splice.is_done()));
        if untouched && stays && self.cutter.settle(plain, &mut self.sink)? {
            return match encoded {
                Some(encoded) => self.sink.copy(text, encoded),
                None => self.sink.frame(text),
            };
        }
        if untouched {
            self.cutter.append(&text, &mut self.sink)?;
        } else {
            let (cutter, sink) = (&mut self.cutter, &mut self.sink);
            pieces(cutter, sink, &text, |mut out| self.splice.feed(&text, &mut out))?;
        }
        self.sink.give_back(text);
        Ok(())
    }

    /// Processes the end of the old text.
    pub(super) fn finish(mut self) -> Result<S, PassError> {
        let splice = self.splice;
        pieces(&mut self.cutter, &mut self.sink, &[], |mut out| splice.finish(&mut out))?.map_err(PassError::Splice)?;
        self.cutter.settle(true, &mut self.sink)?;
        Ok(self.sink)
    }
}

/// Sends the pieces of a splice to the cutter. After an error the rest is dropped.
fn pieces<S: Sink, R>(
    cutter: &mut Cutter,
    sink: &mut S,
    text: &[u8],
    splice: impl FnOnce(&mut dyn FnMut(Piece<'_>)) -> R,
) -> Result<R, PassError> {
    let mut state = Ok(());
    let result = splice(&mut |piece| {
        if state.is_ok() {
            state = match piece {
                Piece::Old(range) => cutter.append(&text[range], sink),
                Piece::New(new) => cutter.append(new, sink),
            };
        }
    });
    state.map(|()| result)
}
