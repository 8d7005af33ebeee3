//! Compressed indexes, read with a limit on the plain size.
//!
//! Where apt detects the compression from the content, so does this module: LZMA data in a `.xz`, plain text in a
//! `.gz`.
//!
//! A signed `Release` has the plain size of each index. A reader of this module returns at most that number of bytes
//! and fails if there is one more, so a decompression bomb costs no more than the announced size. The memory for
//! dictionaries and windows is limited as well.

mod gzip;
mod lz4;

use std::fmt;
use std::io::{self, BufRead, Read};

use thiserror::Error;

use self::gzip::GzipDecoder;
use self::lz4::Lz4Decoder;
use fullbore_digest::{Sha256, Sha256Hasher};

/// Memory limit for the xz decoder, in bytes. `xz -9` needs 65 MB to decompress; archives have no larger dictionaries,
/// and a header may claim 4 GB.
const XZ_MEMORY_BYTES: u64 = 128 << 20;

/// Maximum window of zstd as a power of two: 128 MiB, the limit of `zstd -d` without `--long`.
const ZSTD_WINDOW_LOG_MAX: u32 = 27;

/// Compression of a file, as archives and packages use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Form {
    /// No compression.
    Plain,
    /// gzip: `.gz`
    Gz,
    /// xz: `.xz`
    Xz,
    /// Zstandard: `.zst`
    Zst,
    /// bzip2: `.bz2`
    Bz2,
    /// LZ4: `.lz4`. No archive publishes it, but apt keeps indexes in this form.
    Lz4,
}

impl Form {
    /// All compressions, the one that decompresses fastest first.
    pub const BY_SPEED: [Form; 6] = [Form::Plain, Form::Lz4, Form::Zst, Form::Gz, Form::Xz, Form::Bz2];

    /// Whether this compression is faster to decompress than another.
    pub fn is_faster_than(self, other: Form) -> bool {
        let rank = |form| Form::BY_SPEED.iter().position(|one| *one == form);
        rank(self) < rank(other)
    }

    /// Returns the compression that the extension of a path names.
    pub fn of(path: &str) -> Form {
        Form::split(path).1
    }

    /// Splits a path into its stem and the compression that its extension names.
    pub fn split(path: &str) -> (&str, Form) {
        for form in Form::BY_SPEED.into_iter().filter(|form| *form != Form::Plain) {
            if let Some(stem) = path.strip_suffix(form.extension()) {
                return (stem, form);
            }
        }
        (path, Form::Plain)
    }

    /// Extension with its dot; empty for [`Form::Plain`].
    pub fn extension(self) -> &'static str {
        match self {
            Form::Plain => "",
            Form::Gz => ".gz",
            Form::Xz => ".xz",
            Form::Zst => ".zst",
            Form::Bz2 => ".bz2",
            Form::Lz4 => ".lz4",
        }
    }

    /// Returns the compression of a name: `gz`, `xz`, `zst`, `bz2`, `lz4`, `plain` and the names of the programs.
    pub fn by_name(name: &str) -> Option<Form> {
        match name {
            "plain" | "none" | "uncompressed" => Some(Form::Plain),
            "gz" | "gzip" => Some(Form::Gz),
            "xz" => Some(Form::Xz),
            "zst" | "zstd" => Some(Form::Zst),
            "bz2" | "bzip2" => Some(Form::Bz2),
            "lz4" => Some(Form::Lz4),
            _ => None,
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.extension().strip_prefix('.').unwrap_or("plain"))
    }
}

/// The plain content exceeds its signed size. Inner error of an [`io::Error`] of kind `FileTooLarge`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("content exceeds the announced {limit_bytes} bytes")]
pub struct TooLarge {
    /// Signed size of the plain content, in bytes.
    pub limit_bytes: u64,
}

enum Decoder<R: BufRead> {
    Plain(R),
    Gz(GzipDecoder<R>),
    MemberGz(flate2::bufread::MultiGzDecoder<R>),
    Xz(liblzma::bufread::XzDecoder<R>),
    Zst(zstd::stream::read::Decoder<'static, R>),
    Bz2(bzip2::bufread::MultiBzDecoder<R>),
    Lz4(Lz4Decoder<R>),
}

impl<R: BufRead> Decoder<R> {
    fn open(form: Form, input: R) -> io::Result<Self> {
        Ok(match form {
            Form::Plain => Decoder::Plain(input),
            Form::Gz => Decoder::Gz(GzipDecoder::new(input)),
            Form::Xz => {
                // It also reads the older format of LZMA utils, which some tools write into a `.xz`.
                let stream = liblzma::stream::Stream::new_auto_decoder(XZ_MEMORY_BYTES, liblzma::stream::CONCATENATED)
                    .map_err(io::Error::from)?;
                Decoder::Xz(liblzma::bufread::XzDecoder::new_stream(input, stream))
            }
            Form::Zst => {
                let mut decoder = zstd::stream::read::Decoder::with_buffer(input)?;
                decoder.window_log_max(ZSTD_WINDOW_LOG_MAX)?;
                Decoder::Zst(decoder)
            }
            Form::Bz2 => Decoder::Bz2(bzip2::bufread::MultiBzDecoder::new(input)),
            Form::Lz4 => Decoder::Lz4(Lz4Decoder::new(input)),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Decoder::Plain(input) => input.read(buffer),
            Decoder::Gz(decoder) => decoder.read(buffer),
            Decoder::MemberGz(decoder) => decoder.read(buffer),
            Decoder::Xz(decoder) => decoder.read(buffer),
            Decoder::Zst(decoder) => decoder.read(buffer),
            Decoder::Bz2(decoder) => decoder.read(buffer),
            Decoder::Lz4(decoder) => decoder.read(buffer),
        }
    }

    fn into_inner(self) -> R {
        match self {
            Decoder::Plain(input) => input,
            Decoder::Gz(decoder) => decoder.into_inner(),
            Decoder::MemberGz(decoder) => decoder.into_inner(),
            Decoder::Xz(decoder) => decoder.into_inner(),
            Decoder::Zst(decoder) => decoder.finish(),
            Decoder::Bz2(decoder) => decoder.into_inner(),
            Decoder::Lz4(decoder) => decoder.into_inner(),
        }
    }
}

/// Decompresses a file of any [`Form`], up to a limit.
///
/// ```
/// use std::io::Read;
///
/// use fullbore_debian::compression::{Form, Reader};
///
/// let file = b"Package: hello\n";
/// let mut text = String::new();
/// Reader::open(Form::of("Packages"), &file[..], 15)?.read_to_string(&mut text)?;
/// assert_eq!(text, "Package: hello\n");
///
/// let error = Reader::open(Form::Plain, &file[..], 14)?.read_to_string(&mut text).unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::FileTooLarge);
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Reader<R: BufRead> {
    decoder: Decoder<R>,
    limit_bytes: u64,
    produced_bytes: u64,
}

impl<R: BufRead> Reader<R> {
    /// Opens a compressed file. `limit_bytes` is the size of the plain content in the signed `Release`.
    ///
    /// # Errors
    /// The error of the decompressor, if it cannot allocate its state or read the start of `input`.
    pub fn open(form: Form, input: R, limit_bytes: u64) -> io::Result<Self> {
        Ok(Reader { decoder: Decoder::open(form, input)?, limit_bytes, produced_bytes: 0 })
    }

    /// Opens a member of a binary package. Its content must have the compression of its name: dpkg does not accept
    /// plain text as gzip.
    ///
    /// # Errors
    /// The error of the decompressor, if it cannot allocate its state or read the start of `input`.
    pub fn open_member(form: Form, input: R, limit_bytes: u64) -> io::Result<Self> {
        let decoder = match form {
            Form::Gz => Decoder::MemberGz(flate2::bufread::MultiGzDecoder::new(input)),
            other => Decoder::open(other, input)?,
        };
        Ok(Reader { decoder, limit_bytes, produced_bytes: 0 })
    }

    /// Returns the input at its current position.
    pub fn into_inner(self) -> R {
        self.decoder.into_inner()
    }
}

impl<R: BufRead> Read for Reader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let room = self.limit_bytes - self.produced_bytes;
        if room == 0 {
            // One more byte distinguishes the end from a file that is too long.
            return match self.decoder.read(&mut [0])? {
                0 => Ok(0),
                _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, TooLarge { limit_bytes: self.limit_bytes })),
            };
        }
        let length = buffer.len().min(usize::try_from(room).unwrap_or(usize::MAX));
        let count = self.decoder.read(&mut buffer[..length])?;
        self.produced_bytes += count as u64;
        Ok(count)
    }
}

/// The plain content of an index differs from the signed `Release`. Inner error of an [`io::Error`] of kind
/// `InvalidData`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("content of {bytes} bytes has SHA-256 {actual}; the signed Release says {expected_bytes} bytes, {expected}")]
pub struct Mismatch {
    /// Actual size of the plain content, in bytes.
    pub bytes: u64,
    /// Size in the signed `Release`, in bytes.
    pub expected_bytes: u64,
    /// Actual SHA-256 of the plain content.
    pub actual: Sha256,
    /// SHA-256 in the signed `Release`.
    pub expected: Sha256,
}

/// Passes bytes through and fails at their end if size or SHA-256 differ from the expected ones.
///
/// For a cached index in another compression than the one that was fetched and hashed: the signed hash of the plain
/// content detects changes. Nothing that was read is verified before the end is reached without an error.
pub struct Checked<R> {
    reader: R,
    /// `None` once the end was reached.
    hasher: Option<Sha256Hasher>,
    expected_bytes: u64,
    expected: Sha256,
}

impl<R: Read> Checked<R> {
    /// Checks the bytes of `reader` against this size and SHA-256.
    pub fn new(reader: R, expected_bytes: u64, expected: Sha256) -> Self {
        Checked { reader, hasher: Some(Sha256Hasher::new()), expected_bytes, expected }
    }
}

impl<R: Read> Read for Checked<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.reader.read(buffer)?;
        if count > 0 {
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&buffer[..count]);
            }
            return Ok(count);
        }
        if buffer.is_empty() {
            return Ok(0);
        }
        let Some(hasher) = self.hasher.take() else {
            return Ok(0);
        };
        let bytes = hasher.bytes();
        match hasher.verify(self.expected_bytes, self.expected) {
            Ok(_) => Ok(0),
            Err(actual) => {
                let (expected_bytes, expected) = (self.expected_bytes, self.expected);
                Err(io::Error::new(io::ErrorKind::InvalidData, Mismatch { bytes, expected_bytes, actual, expected }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write};

    use proptest::prelude::*;

    use super::*;

    const FORMS: [Form; 6] = Form::BY_SPEED;

    fn compress(form: Form, content: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        match form {
            Form::Plain => out.extend_from_slice(content),
            Form::Gz => {
                let mut encoder = flate2::write::GzEncoder::new(&mut out, flate2::Compression::fast());
                encoder.write_all(content).expect("memory");
                encoder.finish().expect("memory");
            }
            Form::Xz => {
                let mut encoder = liblzma::write::XzEncoder::new(&mut out, 0);
                encoder.write_all(content).expect("memory");
                encoder.finish().expect("memory");
            }
            Form::Zst => out = zstd::encode_all(content, 1).expect("memory"),
            Form::Bz2 => {
                let mut encoder = bzip2::write::BzEncoder::new(&mut out, bzip2::Compression::fast());
                encoder.write_all(content).expect("memory");
                encoder.finish().expect("memory");
            }
            Form::Lz4 => {
                let mut encoder = lz4_flex::frame::FrameEncoder::new(&mut out);
                encoder.write_all(content).expect("memory");
                encoder.finish().expect("memory");
            }
        }
        out
    }

    fn expand(form: Form, bytes: &[u8], limit: u64) -> io::Result<Vec<u8>> {
        let mut out = Vec::new();
        Reader::open(form, bytes, limit)?.read_to_end(&mut out)?;
        Ok(out)
    }

    #[test]
    fn forms_are_known_by_their_extension() {
        assert_eq!(Form::split("main/binary-amd64/Packages.xz"), ("main/binary-amd64/Packages", Form::Xz));
        assert_eq!(Form::split("Packages"), ("Packages", Form::Plain));
        for form in FORMS {
            assert_eq!(Form::of(&format!("x{}", form.extension())), form);
            assert_eq!(Form::by_name(&form.to_string()), Some(form));
        }
    }

    #[test]
    fn bomb_stops_at_the_signed_size_plus_one() {
        // 16 MB of zeros from a few KB; signed size 1000.
        let zeros = vec![0; 16 << 20];
        for form in FORMS {
            let bomb = compress(form, &zeros);
            let mut reader = Reader::open(form, &bomb[..], 1000).expect("opens");
            let mut out = Vec::new();
            let error = reader.read_to_end(&mut out).expect_err("too much");
            assert!(error.get_ref().is_some_and(|inner| inner.is::<TooLarge>()), "{form}: {error}");
            assert_eq!(out.len(), 1000, "{form}");
        }
    }

    #[test]
    fn hostile_dictionary_is_refused() {
        // An xz stream whose filter claims a dictionary of 1 GiB.
        let mut options = liblzma::stream::LzmaOptions::new_preset(0).expect("preset");
        options.dict_size(1 << 30);
        let mut filters = liblzma::stream::Filters::new();
        filters.lzma2(&options);
        // The encoder of such a stream takes some GiB of address space, of which little is touched.
        let stream = liblzma::stream::Stream::new_stream_encoder(&filters, liblzma::stream::Check::Crc32);
        let stream = stream.expect("address space for the sample");
        let mut bytes = Vec::new();
        let mut encoder = liblzma::write::XzEncoder::new_stream(&mut bytes, stream);
        encoder.write_all(b"small").expect("memory");
        encoder.finish().expect("memory");
        assert!(expand(Form::Xz, &bytes, 100).is_err());
    }

    #[test]
    fn altered_cache_of_an_index_is_detected() {
        let honest = b"Package: a\nFilename: pool/a.deb\n".repeat(50);
        let altered = [&b"Package: evil\n"[..], &honest[14..]].concat();
        let (size, sha256) = (honest.len() as u64, Sha256::of(&honest));
        for form in FORMS {
            let read = |content: &[u8]| {
                let cached = compress(form, content);
                let mut out = Vec::new();
                let reader = Reader::open(form, &cached[..], size).expect("opens");
                Checked::new(reader, size, sha256).read_to_end(&mut out).map(|_| out)
            };
            assert_eq!(read(&honest).expect("untouched"), honest, "{form}");
            let error = read(&altered).expect_err("altered");
            assert!(error.get_ref().is_some_and(|inner| inner.is::<Mismatch>()), "{form}: {error}");
            read(&honest[..10]).expect_err("short");
        }
    }

    #[test]
    fn the_exact_size_is_fine_and_an_early_end_is_an_error() {
        let content = b"Package: a\n".repeat(1000);
        for form in FORMS {
            let bytes = compress(form, &content);
            assert_eq!(expand(form, &bytes, content.len() as u64).expect("exact"), content, "{form}");
            if form != Form::Plain {
                let cut = &bytes[..bytes.len() - 3];
                assert!(expand(form, cut, content.len() as u64).is_err(), "{form} cut");
            }
        }
    }

    #[test]
    fn content_decides_where_it_does_for_apt() {
        let text = b"Package: a\n".repeat(100);
        let options = liblzma::stream::LzmaOptions::new_preset(6).expect("preset");
        let stream = liblzma::stream::Stream::new_lzma_encoder(&options).expect("encoder");
        let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
        encoder.write_all(&text).expect("memory");
        let lzma = encoder.finish().expect("memory");
        assert_eq!(expand(Form::Xz, &lzma, text.len() as u64).expect("LZMA"), text);
        assert_eq!(expand(Form::Gz, &text, text.len() as u64).expect("plain"), text);
        assert_eq!(expand(Form::Gz, b"", 0).expect("nothing"), b"");
        assert!(expand(Form::Xz, &text, text.len() as u64).is_err(), "plain text is no xz for apt either");
    }

    #[test]
    fn padding_behind_gzip_is_none_of_the_content() {
        let text = b"Package: a\n".repeat(100);
        for padding in [&b"\0"[..], &[0; 700], b"garbage"] {
            let bytes = [&compress(Form::Gz, &text)[..], padding].concat();
            assert_eq!(expand(Form::Gz, &bytes, text.len() as u64).expect("padded"), text);
        }
    }

    #[test]
    fn several_members_are_one_file() {
        for form in FORMS {
            let bytes = [compress(form, b"one "), compress(form, b"two")].concat();
            assert_eq!(expand(form, &bytes, 7).expect("two members"), b"one two", "{form}");
        }
    }

    proptest! {
        #[test]
        fn content_of_every_form_is_read_again(
            content in prop::collection::vec(any::<u8>(), 0..4000), buffer in 1usize..100,
        ) {
            for form in FORMS {
                let bytes = compress(form, &content);
                let mut out = Vec::new();
                let input = BufReader::with_capacity(buffer, &bytes[..]);
                Reader::open(form, input, content.len() as u64).expect("opens").read_to_end(&mut out).expect("honest");
                prop_assert_eq!(&out, &content);
            }
        }

        #[test]
        fn arbitrary_input_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..60) {
            for form in FORMS {
                let _ = expand(form, &bytes, 1000);
                let mut broken = compress(form, b"some content of a file");
                broken.truncate(cut);
                broken.extend_from_slice(&bytes);
                let _ = expand(form, &broken, 1000);
            }
        }
    }
}
