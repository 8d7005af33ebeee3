//! What stands around the frames of a new file.

use fullbore_debian::compression::Form;

use super::{Frame, lz4, xz, zst};

/// Collects the frames of a new file, in order, for the table at its end.
pub struct Container {
    form: Form,
    frames: Vec<Frame>,
    count: u64,
}

impl Container {
    /// A file without frames.
    pub fn new(form: Form) -> Container {
        Container { form, frames: Vec::new(), count: 0 }
    }

    /// What comes first in the file.
    pub fn head(&self) -> &'static [u8] {
        match self.form {
            Form::Xz => &xz::HEAD,
            Form::Lz4 => &lz4::HEAD,
            Form::Gz | Form::Zst | Form::Plain | Form::Bz2 => &[],
        }
    }

    /// Whether a file of no text needs a frame to be one of this form.
    pub fn needs_a_frame(&self) -> bool {
        matches!(self.form, Form::Gz | Form::Zst)
    }

    /// Takes the next frame. One of no bytes is none: xz and LZ4 have no block for no text.
    pub fn add(&mut self, frame: Frame) {
        if frame.size == 0 {
            return;
        }
        self.count += 1;
        // The others have no table. A file of more frames gets one that nobody believes.
        if matches!(self.form, Form::Xz | Form::Zst) {
            self.frames.push(frame);
        }
    }

    /// Frames so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// What comes last in the file.
    pub fn tail(&self) -> Vec<u8> {
        match self.form {
            Form::Xz => xz::tail(&self.frames),
            Form::Zst => zst::tail(&self.frames),
            Form::Lz4 => lz4::TAIL.to_vec(),
            Form::Gz | Form::Plain | Form::Bz2 => Vec::new(),
        }
    }
}
