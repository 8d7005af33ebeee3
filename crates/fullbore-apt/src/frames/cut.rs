//! Cuts text into frames of a good size.

use super::{Buffer, FRAME_BYTES, FRAME_BYTES_LEAST, FRAME_BYTES_MOST};

/// Where to end a full frame: behind its last line end, unless the frame would be too small; otherwise at its end.
pub(crate) fn line_cut(text: &[u8]) -> usize {
    let newline = text.iter().rposition(|byte| *byte == b'\n');
    newline.map(|at| at + 1).filter(|cut| *cut >= FRAME_BYTES_LEAST).unwrap_or(text.len())
}

/// Whether a frame of `bytes` bytes of text is good in the middle of a file.
pub(crate) fn is_good(bytes: usize) -> bool {
    (FRAME_BYTES_LEAST..=FRAME_BYTES_MOST).contains(&bytes)
}

/// Receives frames.
pub(crate) trait FrameSink {
    /// Its error.
    type Error;

    /// An empty buffer.
    fn spare(&mut self) -> Buffer;

    /// Receives the text of the next frame.
    fn frame(&mut self, text: Buffer) -> Result<(), Self::Error>;
}

/// Cuts text between copied frames.
///
/// One full frame is held back, to be joined with a small rest. So every
/// frame has [`FRAME_BYTES_LEAST`] to [`FRAME_BYTES_MOST`] bytes, but the last of a file.
#[derive(Default)]
pub(crate) struct Cutter {
    held: Option<Buffer>,
    open: Buffer,
}

impl Cutter {
    /// Adds text, and passes complete frames on.
    pub(crate) fn append<O: FrameSink>(&mut self, mut text: &[u8], out: &mut O) -> Result<(), O::Error> {
        loop {
            text = self.open.append(text, FRAME_BYTES);
            if self.open.len() < FRAME_BYTES {
                return Ok(());
            }
            let cut = line_cut(&self.open);
            let mut next = out.spare();
            next.append(&self.open[cut..], FRAME_BYTES);
            self.open.truncate(cut);
            let full = std::mem::replace(&mut self.open, next);
            if let Some(held) = self.held.replace(full) {
                out.frame(held)?;
            }
        }
    }

    /// Passes all text on as frames, unless one would be too small; says whether it did. At the end of the file it always
    /// does.
    pub(crate) fn settle<O: FrameSink>(&mut self, at_end: bool, out: &mut O) -> Result<bool, O::Error> {
        if self.open.len() >= FRAME_BYTES_LEAST || self.open.is_empty() || (self.held.is_none() && at_end) {
            if let Some(held) = self.held.take() {
                out.frame(held)?;
            }
            if !self.open.is_empty() {
                let open = std::mem::replace(&mut self.open, out.spare());
                out.frame(open)?;
            }
            return Ok(true);
        }
        let Some(mut held) = self.held.take() else { return Ok(false) };
        held.append(&self.open, FRAME_BYTES_MOST);
        self.open.clear();
        out.frame(held)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Frames(Vec<Vec<u8>>);

    impl FrameSink for Frames {
        type Error = std::convert::Infallible;

        fn spare(&mut self) -> Buffer {
            Buffer::default()
        }

        fn frame(&mut self, text: Buffer) -> Result<(), Self::Error> {
            self.0.push(text.to_vec());
            Ok(())
        }
    }

    /// Cuts these pieces, settling after each piece where that is asked.
    fn cut(pieces: &[(Vec<u8>, bool)]) -> Vec<Vec<u8>> {
        let (mut cutter, mut frames, mut given) = (Cutter::default(), Frames::default(), 0);
        for (piece, settle) in pieces {
            cutter.append(piece, &mut frames).unwrap();
            given += piece.len();
            if *settle {
                let settled = cutter.settle(false, &mut frames).unwrap();
                assert_eq!(settled, frames.0.iter().map(Vec::len).sum::<usize>() == given);
            }
        }
        assert!(cutter.settle(true, &mut frames).unwrap());
        frames.0
    }

    fn pieces() -> impl Strategy<Value = Vec<(Vec<u8>, bool)>> {
        let piece = (0..700_000_usize, 1..5_000_usize, any::<bool>()).prop_map(|(length, line, settle)| {
            ((0..length).map(|at| if at % line == 0 { b'\n' } else { b'x' }).collect(), settle)
        });
        prop::collection::vec(piece, 0..6)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn frames_have_all_text_and_a_good_size(pieces in pieces()) {
            let frames = cut(&pieces);
            let text: Vec<u8> = pieces.iter().flat_map(|(piece, _)| piece).copied().collect();
            prop_assert_eq!(frames.concat(), text);
            if let Some((last, others)) = frames.split_last() {
                prop_assert!(!last.is_empty() && last.len() <= FRAME_BYTES_MOST);
                prop_assert!(others.iter().all(|frame| is_good(frame.len())));
            }
        }
    }

    #[test]
    fn frames_end_at_line_ends_unless_a_line_is_longer_than_a_frame() {
        let lines = b"0123456789abcdef0123456789abcde\n".repeat(30_000);
        assert!(cut(&[(lines, false)]).iter().all(|frame| frame.ends_with(b"\n")));
        assert_eq!(cut(&[(vec![b'x'; FRAME_BYTES + 1], false)]).len(), 1);
        assert_eq!(cut(&[(vec![b'x'; 3 * FRAME_BYTES], false)]).len(), 3);
    }
}
