//! The layer of an image: a tar archive that is compressed on all cores, and hashed before and after, in one pass.
//!
//! The archive is cut into blocks. Each block is compressed by itself, with the end of the previous block as its
//! dictionary, as in pigz. Together they are one gzip member (RFC 1952), which every reader of images accepts. The
//! output depends on the block size, but not on the number of cores.

use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::sync::{Mutex, PoisonError};

use flate2::{Compress, Compression, Crc, FlushCompress, Status};
use fullbore_digest::{Sha256, Sha256Hasher};
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// Size of a block. Another size gives other output for the same root. A guess: large enough that the few bytes at the
/// end of each block do not matter, and small enough that a small root keeps all cores busy.
const BLOCK_BYTES: usize = 1 << 20;

/// Size of the dictionary: the window of deflate (RFC 1951).
const DICTIONARY_BYTES: usize = 32 << 10;

/// Maximum number of compressing threads. A guess: one thread hashes the archive, hardly faster than this many compress
/// it.
const THREADS_MAX: usize = 16;

/// Blocks per thread that are being compressed or wait for their turn to be written. Two, so that no thread waits for a
/// slow block.
const BLOCKS_PER_THREAD: usize = 2;

/// Room for output beside the size of the input, in bytes, for content that cannot be compressed. If it is too small,
/// more is added.
const SPARE_BYTES: usize = 64 << 10;

/// Header of gzip: no name, no time, unknown system (RFC 1952, 2.3).
const HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];

/// A written layer: its hashes and its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layer {
    /// SHA-256 of the compressed archive, which names the blob.
    pub digest: Sha256,
    /// Size of the compressed archive in bytes.
    pub size: u64,
    /// SHA-256 of the uncompressed archive.
    pub diff_id: Sha256,
}

/// Compresses the output of `fill` into `to`. Error messages name `path`.
///
/// # Errors
/// The errors of `fill`, or `Disk` if `to` cannot be written.
pub(super) fn compress(
    to: impl Write + Send,
    path: &Path,
    cores: usize,
    fill: impl FnOnce(&mut dyn Write) -> Result<(), CommandError>,
) -> Result<Layer, CommandError> {
    let threads = cores.min(THREADS_MAX);
    let (jobs, waiting) = mpsc::sync_channel(threads);
    let waiting = Mutex::new(waiting);
    let (order, ordered) = mpsc::sync_channel(threads * BLOCKS_PER_THREAD);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| deflate_blocks(&waiting));
        }
        let writing = scope.spawn(move || write_in_order(to, &ordered));
        let mut cutter = Cutter { jobs, order, block: Vec::new(), dictionary: Vec::new(), hasher: Sha256Hasher::new() };
        let filled = fill(&mut cutter).and_then(|()| {
            // This fails only if the writer has ended, and then the writer reports why.
            cutter.send_block(true).map_err(|error| CommandError::new(ErrorKind::Internal, error))
        });
        let hasher = cutter.end();
        let written = writing.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        let (digest, size) = written.map_err(|error| CommandError::cannot("write", path, &error))?;
        filled.map(|()| Layer { digest, size, diff_id: hasher.finish() })
    })
}

/// A block to compress.
struct Job {
    block: Vec<u8>,
    dictionary: Vec<u8>,
    is_last: bool,
    done: SyncSender<io::Result<Deflated>>,
}

/// A compressed block.
struct Deflated {
    bytes: Vec<u8>,
    /// Checksum of the block before compression.
    crc: Crc,
}

/// Cuts written bytes into blocks, and hashes them.
struct Cutter {
    jobs: SyncSender<Job>,
    /// The writer waits for the blocks in this order.
    order: SyncSender<Receiver<io::Result<Deflated>>>,
    block: Vec<u8>,
    dictionary: Vec<u8>,
    hasher: Sha256Hasher,
}

impl Cutter {
    fn send_block(&mut self, is_last: bool) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.hasher.update(&block);
        let next = block[block.len().saturating_sub(DICTIONARY_BYTES)..].to_vec();
        let dictionary = std::mem::replace(&mut self.dictionary, next);
        let (done, result) = mpsc::sync_channel(1);
        let ended = || io::Error::other("the writer of the layer has ended");
        self.order.send(result).map_err(|_| ended())?;
        self.jobs.send(Job { block, dictionary, is_last, done }).map_err(|_| ended())
    }

    /// Ends the input, so that the other threads end. Returns the hasher of all bytes.
    fn end(self) -> Sha256Hasher {
        self.hasher
    }
}

impl Write for Cutter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.block.len() == BLOCK_BYTES {
            self.send_block(false)?;
        }
        if self.block.capacity() == 0 {
            self.block.reserve_exact(BLOCK_BYTES);
        }
        let count = bytes.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Compresses blocks until there are no more.
fn deflate_blocks(waiting: &Mutex<Receiver<Job>>) {
    loop {
        let next = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { block, dictionary, is_last, done }) = next else { return };
        // If the writer has ended, nobody waits for the result.
        let _ = done.send(deflate(&block, &dictionary, is_last));
    }
}

fn deflate(block: &[u8], dictionary: &[u8], is_last: bool) -> io::Result<Deflated> {
    // Without a header: the whole layer has only one. A new one for each block: with zlib-rs 0.6, the output after
    // `reset` depends on earlier blocks, and so on which thread had them.
    let mut compress = Compress::new(Compression::default(), false);
    if !dictionary.is_empty() {
        compress.set_dictionary(dictionary)?;
    }
    // A synchronised block ends at a byte, where the next one may begin.
    let flush = if is_last { FlushCompress::Finish } else { FlushCompress::Sync };
    let mut bytes = Vec::with_capacity(block.len() + SPARE_BYTES);
    loop {
        let taken = compress.total_in() as usize;
        let status = compress.compress_vec(&block[taken..], &mut bytes, flush)?;
        let has_room = bytes.len() < bytes.capacity();
        let is_taken = compress.total_in() as usize == block.len();
        if status == Status::StreamEnd || !is_last && is_taken && has_room {
            break;
        }
        bytes.reserve(SPARE_BYTES);
    }
    let mut crc = Crc::new();
    crc.update(block);
    Ok(Deflated { bytes, crc })
}

/// Writes the blocks between gzip's header and trailer. Returns the hash and the size of all.
fn write_in_order(mut to: impl Write, ordered: &Receiver<Receiver<io::Result<Deflated>>>) -> io::Result<(Sha256, u64)> {
    let (mut hasher, mut size, mut crc) = (Sha256Hasher::new(), 0, Crc::new());
    let mut write = |bytes: &[u8]| {
        hasher.update(bytes);
        size += bytes.len() as u64;
        to.write_all(bytes)
    };
    write(&HEADER)?;
    for result in ordered {
        let deflated = result.recv().map_err(|_| io::Error::other("the thread that compresses has ended"))??;
        write(&deflated.bytes)?;
        crc.combine(&deflated.crc);
    }
    write(&crc.sum().to_le_bytes())?;
    // The size modulo 2^32, as flate2 counts it.
    write(&crc.amount().to_le_bytes())?;
    to.flush()?;
    Ok((hasher.finish(), size))
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;
    use std::process::{Command, Stdio};

    use super::*;

    /// Half of it can be compressed, also across the borders of blocks.
    fn content(size: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut bytes = Vec::with_capacity(size + 64);
        while bytes.len() < size {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            bytes.extend((state >> 16).to_le_bytes());
            bytes.extend_from_slice(b"the same");
        }
        bytes.truncate(size);
        bytes
    }

    /// Compresses in writes of this size.
    fn compressed(content: &[u8], cores: usize, write_bytes: usize) -> (Vec<u8>, Layer) {
        let mut bytes = Vec::new();
        let layer = compress(&mut bytes, Path::new("layer"), cores, |to| {
            content.chunks(write_bytes).for_each(|chunk| to.write_all(chunk).unwrap());
            Ok(())
        });
        (bytes, layer.unwrap())
    }

    #[test]
    fn gzip_reads_one_member_with_the_right_hashes() {
        for size in [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 12345] {
            let content = content(size);
            let (bytes, layer) = compressed(&content, 2, 100_000);
            assert_eq!(layer.size, bytes.len() as u64, "{size}");
            assert_eq!(layer.digest, Sha256::of(&bytes), "{size}");
            assert_eq!(layer.diff_id, Sha256::of(&content), "{size}");
            let mut read = Vec::new();
            let mut member = flate2::bufread::GzDecoder::new(&bytes[..]);
            member.read_to_end(&mut read).unwrap();
            assert!(read == content && member.into_inner().is_empty(), "{size}");
            let mut gzip = Command::new("gzip");
            let mut child = gzip.args(["-d", "-c"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
            let mut stdin = child.stdin.take().unwrap();
            let output = std::thread::scope(|scope| {
                scope.spawn(move || stdin.write_all(&bytes).unwrap());
                child.wait_with_output().unwrap()
            });
            assert!(output.status.success() && output.stdout == content, "{size}");
        }
    }

    #[test]
    fn the_bytes_do_not_depend_on_cores_or_writes() {
        let content = content(5 * BLOCK_BYTES + 1);
        let (one, _) = compressed(&content, 1, 4096);
        let (four, _) = compressed(&content, 4, 3 * BLOCK_BYTES);
        assert!(one == four);
        assert!(one.len() < content.len() * 3 / 4, "{}", one.len());
        // Whatever memory the threads had before.
        for _ in 0..4 {
            assert!(compressed(&content, 3, 100_001).0 == one);
        }
    }

    /// A disk that is full after some bytes.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_the_error_whatever_the_source_says() {
        let content = content(BLOCK_BYTES);
        for room in [0, 9, 100_000, 5 * BLOCK_BYTES] {
            let error = compress(Full(room), Path::new("/x/layer"), 2, |to| {
                for _ in 0..100 {
                    to.write_all(&content).map_err(|error| CommandError::new(ErrorKind::Internal, error))?;
                }
                Ok(())
            })
            .unwrap_err();
            assert_eq!(error.kind, ErrorKind::Disk, "{room}: {error}");
            assert!(error.message.starts_with("cannot write /x/layer: "), "{room}: {error}");
        }
    }

    #[test]
    fn an_error_of_the_source_is_passed_on() {
        let error = compress(io::sink(), Path::new("layer"), 2, |to| {
            to.write_all(&content(BLOCK_BYTES)).unwrap();
            Err(CommandError::new(ErrorKind::Partial, "tar: exit status: 2"))
        });
        assert_eq!(error.unwrap_err().kind, ErrorKind::Partial);
    }
}
