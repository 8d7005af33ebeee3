//! The forms an index is published in.

use std::io::{self, Write};

/// A compressed (or plain) form of an index file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// As it is.
    Plain,
    /// gzip.
    Gz,
    /// xz.
    Xz,
    /// Zstandard.
    Zst,
    /// bzip2.
    Bz2,
}

impl Form {
    /// What is added to the plain name, dot included.
    pub fn suffix(self) -> &'static str {
        match self {
            Form::Plain => "",
            Form::Gz => ".gz",
            Form::Xz => ".xz",
            Form::Zst => ".zst",
            Form::Bz2 => ".bz2",
        }
    }

    /// The bytes in this form. Low levels: the tests want speed, not small indexes.
    pub fn compress(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.compress_at(bytes, 4, 0)
    }

    /// The bytes in this form, by the levels that Debian's archive has.
    pub fn compress_as_debian(self, bytes: &[u8]) -> io::Result<Vec<u8>> {
        self.compress_at(bytes, 9, 6)
    }

    fn compress_at(self, bytes: &[u8], gz: u32, xz: u32) -> io::Result<Vec<u8>> {
        match self {
            Form::Plain => Ok(bytes.to_vec()),
            Form::Gz => {
                let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(gz));
                out.write_all(bytes)?;
                out.finish()
            }
            Form::Xz => {
                let mut out = liblzma::write::XzEncoder::new(Vec::new(), xz);
                out.write_all(bytes)?;
                out.finish()
            }
            Form::Zst => zstd::bulk::compress(bytes, 1),
            Form::Bz2 => {
                let mut out = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
                out.write_all(bytes)?;
                out.finish()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn each_form_reads_back() {
        let text = b"Package: a\n\n".repeat(100);
        let mut back = Vec::new();
        let gz = Form::Gz.compress(&text).unwrap();
        flate2::read::GzDecoder::new(&gz[..]).read_to_end(&mut back).unwrap();
        assert_eq!(back, text);
        back.clear();
        let xz = Form::Xz.compress(&text).unwrap();
        liblzma::read::XzDecoder::new(&xz[..]).read_to_end(&mut back).unwrap();
        assert_eq!(back, text);
        assert_eq!(zstd::bulk::decompress(&Form::Zst.compress(&text).unwrap(), 1 << 20).unwrap(), text);
        back.clear();
        let bz2 = Form::Bz2.compress(&text).unwrap();
        bzip2::read::BzDecoder::new(&bz2[..]).read_to_end(&mut back).unwrap();
        assert_eq!(back, text);
    }
}
