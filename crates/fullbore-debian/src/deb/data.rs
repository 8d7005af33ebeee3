//! `data.tar` as a stream of plain bytes, for every compression that dpkg supports.

use std::io::{self, BufRead, BufReader, Read};

use super::{Compression, DataMember};
use crate::compression::{Form, Reader};

/// Memory limit of one decoder, in bytes. `xz -9` and `lzma -9` need 65 MB; data that claims more is not a package.
const DECODER_BYTES: u64 = 128 << 20;

/// Memory limit for decoding several xz blocks at once, in bytes; beyond it, fewer blocks are decoded at once.
const THREADED_BYTES: u64 = 1 << 30;

/// Size of reads of the packed bytes. They come from the page cache: large enough that calls take no measurable time.
const PACKED_BYTES: usize = 256 << 10;

/// Reader of the plain `data.tar`. It ends with the compressed stream.
pub struct DataReader<R: Read>(Inner<BufReader<io::Take<R>>>);

enum Inner<R: BufRead> {
    Usual(Reader<R>),
    Lzma(liblzma::bufread::XzDecoder<R>),
}

/// Evidence that the plain bytes are correct.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// The checksums in the compressed stream.
    Checksums,
    /// A hash of the compressed bytes, which the caller compares before it uses any plain byte. The checksums of xz
    /// are skipped: they would repeat the hash.
    HashOfPacked,
}

/// Makes a reader of the plain `data.tar`. `packed` is positioned at the first byte of the member and is not read
/// beyond its end. Up to `threads` blocks of an xz stream are decoded in parallel.
///
/// # Errors
/// The error of the decompressor, if it cannot allocate its state or read the start of the member.
pub fn data<R: Read>(packed: R, place: DataMember, threads: usize, proof: Proof) -> io::Result<DataReader<R>> {
    let packed = BufReader::with_capacity(PACKED_BYTES, packed.take(place.bytes));
    let form = match place.compression {
        Compression::None => Form::Plain,
        Compression::Gzip => Form::Gz,
        Compression::Zstd => Form::Zst,
        Compression::Bzip2 => Form::Bz2,
        Compression::Xz if threads > 1 => {
            let threads = u32::try_from(threads).unwrap_or(u32::MAX);
            let stream = liblzma::stream::MtStreamBuilder::new()
                .threads(threads)
                .memlimit_threading(THREADED_BYTES)
                .memlimit_stop(DECODER_BYTES)
                .decoder()?;
            return Ok(DataReader(Inner::Lzma(liblzma::bufread::XzDecoder::new_stream(packed, stream))));
        }
        Compression::Xz if proof == Proof::HashOfPacked => {
            let flags = liblzma::stream::CONCATENATED | liblzma::stream::IGNORE_CHECK;
            let stream = liblzma::stream::Stream::new_stream_decoder(DECODER_BYTES, flags)?;
            return Ok(DataReader(Inner::Lzma(liblzma::bufread::XzDecoder::new_stream(packed, stream))));
        }
        Compression::Xz => Form::Xz,
        Compression::Lzma => {
            let stream = liblzma::stream::Stream::new_lzma_decoder(DECODER_BYTES)?;
            return Ok(DataReader(Inner::Lzma(liblzma::bufread::XzDecoder::new_stream(packed, stream))));
        }
    };
    // The plain size is not announced anywhere; only the disk limits it, as for dpkg.
    Ok(DataReader(Inner::Usual(Reader::open_member(form, packed, u64::MAX)?)))
}

impl<R: Read> DataReader<R> {
    /// Reads the rest of the member and returns the source, positioned after it.
    ///
    /// # Errors
    /// The error of the source if the rest cannot be read; [`io::ErrorKind::UnexpectedEof`] if the package ends before
    /// the member does.
    pub fn finish(self) -> io::Result<R> {
        let mut packed = match self.0 {
            Inner::Usual(reader) => reader.into_inner(),
            Inner::Lzma(reader) => reader.into_inner(),
        };
        io::copy(&mut packed, &mut io::sink())?;
        let member = packed.into_inner();
        // Truncated after the part that the decoder reads, in padding or an unused checksum.
        if member.limit() > 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the package ends before data.tar does"));
        }
        Ok(member.into_inner())
    }
}

impl<R: Read> Read for DataReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.0 {
            Inner::Usual(reader) => reader.read(buffer),
            Inner::Lzma(reader) => reader.read(buffer),
        }
    }
}

/// Whether an xz file has more than one block, judged by its first bytes and its size. The header of a block has its
/// size if several threads compressed the file (xz file format 1.1, sections 2.1 and 3.1). `None` if the header has no
/// size.
pub fn blocks_of_xz(first: &[u8], packed_bytes: u64) -> Option<bool> {
    /// Size of stream header and footer, and maximum size of an index of one block.
    const AROUND_BYTES: u64 = 12 + 12 + 64;
    let header = first.get(12..)?;
    let header_bytes = (u64::from(*header.first()?) + 1) * 4;
    let flags = *header.get(1)?;
    if flags & 0x40 == 0 || header_bytes == 4 {
        return None;
    }
    let mut size = 0_u64;
    for (at, byte) in header.get(2..)?.iter().take(9).enumerate() {
        size |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some(header_bytes + size + 64 + AROUND_BYTES < packed_bytes);
        }
    }
    None
}
