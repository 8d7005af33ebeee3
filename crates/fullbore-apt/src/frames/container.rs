//! Head and tail of a new file of frames.

use fullbore_debian::compression::Form;

use super::{Frame, lz4, xz, zst};

/// Collects the frames of a new file for the table at its end.
pub struct Container {
    form: Form,
    frames: Vec<Frame>,
    count: u64,
}

impl Container {
    /// Starts a file of this form without any frame.
    pub fn new(form: Form) -> Container {
        Container { form, frames: Vec::new(), count: 0 }
    }

    /// Bytes of the file before its first frame, for instance the header of xz.
    pub fn head(&self) -> &'static [u8] {
        match self.form {
            Form::Xz => &xz::HEAD,
            Form::Lz4 => &lz4::HEAD,
            Form::Gz | Form::Zst | Form::Plain | Form::Bz2 => &[],
        }
    }

    /// Whether an empty file needs a frame.
    pub(crate) fn needs_a_frame(&self) -> bool {
        matches!(self.form, Form::Gz | Form::Zst)
    }

    /// Adds the next frame. Empty frames are ignored: xz and LZ4 have no empty blocks.
    pub fn add(&mut self, frame: Frame) {
        if frame.size == 0 {
            return;
        }
        self.count += 1;
        // The others have no table.
        if matches!(self.form, Form::Xz | Form::Zst) {
            self.frames.push(frame);
        }
    }

    /// Number of frames that were added.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes after the last frame, such as an index of all frames.
    pub fn tail(&self) -> Vec<u8> {
        match self.form {
            Form::Xz => xz::tail(&self.frames),
            Form::Zst => zst::tail(&self.frames),
            Form::Lz4 => lz4::TAIL.to_vec(),
            Form::Gz | Form::Plain | Form::Bz2 => Vec::new(),
        }
    }
}
