//! Compresses and decompresses single frames, with reused state.

use std::io;

use fullbore_debian::compression::Form;

use super::{Buffer, FRAME_BYTES_MAX, Frame, Level, broken, gz, lz4, xz, zst};

/// Compresses the text of frames in one compression format; its state is reused.
pub struct Encoder(Compress);

enum Compress {
    Gz(gz::Encoder),
    Xz(xz::Encoder),
    Zst(zst::Encoder),
    Lz4(lz4::Encoder),
}

impl Encoder {
    /// An encoder; `None` for forms without frames.
    ///
    /// # Errors
    /// An error of kind `OutOfMemory` or `Other` if the compression library cannot be set up.
    pub fn new(form: Form, level: Level) -> io::Result<Option<Encoder>> {
        Ok(Some(Encoder(match form {
            Form::Gz => Compress::Gz(gz::Encoder::new(level)),
            Form::Xz => Compress::Xz(xz::Encoder::new(level)?),
            Form::Zst => Compress::Zst(zst::Encoder::new(level)?),
            Form::Lz4 => Compress::Lz4(lz4::Encoder::new()),
            Form::Plain | Form::Bz2 => return Ok(None),
        })))
    }

    /// Approximate memory of an encoder in bytes, measured per thread.
    pub fn memory_bytes(form: Form, level: Level) -> usize {
        match (form, level) {
            (Form::Zst, Level::Best) => 8 << 20,
            (Form::Xz, Level::Best) => 5 << 20,
            (Form::Zst | Form::Xz, Level::Fast) => 3 << 20,
            (Form::Gz | Form::Lz4 | Form::Plain | Form::Bz2, _) => 1 << 20,
        }
    }

    /// Appends a frame of this text, of at most [`FRAME_BYTES_MAX`] bytes.
    ///
    /// # Errors
    /// The error of the compression library, for instance if memory is short or the text is too long.
    pub fn encode(&mut self, plain: &[u8], out: &mut Vec<u8>) -> io::Result<Frame> {
        if plain.len() > FRAME_BYTES_MAX {
            return Err(broken("too much text for a frame"));
        }
        let start = out.len();
        let padding = match &mut self.0 {
            Compress::Gz(encoder) => encoder.encode(plain, out).map(|()| 0),
            Compress::Xz(encoder) => encoder.encode(plain, out),
            Compress::Zst(encoder) => encoder.encode(plain, out).map(|()| 0),
            Compress::Lz4(encoder) => encoder.encode(plain, out).map(|()| 0),
        }?;
        Ok(Frame { size: (out.len() - start) as u32, plain: Some(plain.len() as u32), padding })
    }
}

/// Decompresses frames in one compression format; its state is reused.
pub struct Decoder(Decompress);

enum Decompress {
    Gz(gz::Decoder),
    Xz,
    Zst(zst::Decoder),
    Lz4,
}

impl Decoder {
    /// A decoder; `None` for forms without frames.
    ///
    /// # Errors
    /// An error of kind `OutOfMemory` or `Other` if the decompression library cannot be set up.
    pub fn new(form: Form) -> io::Result<Option<Decoder>> {
        Ok(Some(Decoder(match form {
            Form::Gz => Decompress::Gz(gz::Decoder::new()),
            Form::Xz => Decompress::Xz,
            Form::Zst => Decompress::Zst(zst::Decoder::new()?),
            Form::Lz4 => Decompress::Lz4,
            Form::Plain | Form::Bz2 => return Ok(None),
        })))
    }

    /// Decompresses the `bytes` of a frame into `out`.
    ///
    /// # Errors
    /// `InvalidData` or the library's error for damaged data, text of another length than the table says, or trailing
    /// bytes.
    pub fn decode(&mut self, frame: &Frame, bytes: &[u8], out: &mut Buffer) -> io::Result<()> {
        out.clear();
        let spare = match frame.plain {
            Some(plain) => out.spare().get_mut(..plain as usize).ok_or_else(|| broken("frame too large"))?,
            None => out.spare(),
        };
        let length = match &mut self.0 {
            Decompress::Gz(decoder) => decoder.decode(bytes, spare),
            Decompress::Xz => xz::decode(frame, bytes, spare),
            Decompress::Zst(decoder) => decoder.decode(bytes, spare),
            Decompress::Lz4 => lz4::decode(bytes, spare),
        }?;
        if frame.plain.is_some_and(|plain| plain as usize != length) {
            return Err(broken("frame shorter than its table says"));
        }
        out.advance(length);
        Ok(())
    }
}
