//! Measures work that needs only the processor: hash, cipher, compression.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::tree::{Draw, Sample};
use crate::transport::keys::Speeds;

/// Duration of each measurement.
const TRIAL: Duration = Duration::from_millis(100);
/// Bytes hashed at once: a block of a copy.
const BLOCK_BYTES: usize = 1 << 20;
/// Number of pieces of files that are compressed, and their length in bytes. Enough to tell text from video.
const PIECES: usize = 64;
const PIECE_BYTES: usize = 64 << 10;
/// The zstd level that a copy uses.
const LEVEL: i32 = 1;

/// Throughput of one core, in bytes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Compute {
    /// Cores that the process may use.
    pub cores: usize,
    /// Bytes of BLAKE3 hashing per second.
    pub hash: f64,
    /// Bytes of AES-128-GCM encryption per second.
    pub aes: f64,
    /// Bytes of ChaCha20-Poly1305 encryption per second.
    pub chacha: f64,
    /// How well zstd compresses the source's content; `None` at the destination.
    pub compress: Option<Compress>,
}

/// How well, and how fast, content compresses.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compress {
    /// Compressed size as a share of the original, from 0 to 1.
    pub left: f64,
    /// Uncompressed bytes per second of one core.
    pub bytes_per_s: f64,
}

/// Measures hash and ciphers, and compression on pieces of the sample's files.
pub(super) fn measure(sample: &Sample) -> Compute {
    let block = Draw(3).bytes(BLOCK_BYTES);
    let began = Instant::now();
    let mut bytes = 0;
    while began.elapsed() < TRIAL {
        std::hint::black_box(blake3::hash(std::hint::black_box(&block)));
        bytes += BLOCK_BYTES;
    }
    let hash = bytes as f64 / began.elapsed().as_secs_f64();
    let speeds = Speeds::measure();
    Compute {
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        hash,
        aes: speeds.aes,
        chacha: speeds.chacha,
        compress: compress(sample),
    }
}

fn compress(sample: &Sample) -> Option<Compress> {
    let mut draw = Draw(5);
    let all: Vec<_> = sample.big.iter().chain(&sample.small).filter(|(_, size)| *size > 0).collect();
    let mut compressor = zstd::bulk::Compressor::new(LEVEL).ok()?;
    let (mut before, mut after, mut time) = (0, 0, Duration::ZERO);
    let mut piece = vec![0; PIECE_BYTES];
    for _ in 0..PIECES.min(all.len() * 4) {
        let (path, size) = all[draw.below(all.len() as u64) as usize];
        let offset = draw.below(size.saturating_sub(PIECE_BYTES as u64));
        let Ok(length) = File::open(path).and_then(|file| file.read_at(&mut piece, offset)) else { continue };
        let began = Instant::now();
        let Ok(packed) = compressor.compress(&piece[..length]) else { continue };
        time += began.elapsed();
        before += length;
        after += packed.len();
        if time > TRIAL {
            break;
        }
    }
    (before > 0).then(|| Compress {
        left: after as f64 / before as f64,
        bytes_per_s: before as f64 / time.as_secs_f64().max(1e-9),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_compresses_and_noise_does_not() {
        let directory = tempfile::tempdir().unwrap();
        let (text, noise) = (directory.path().join("text"), directory.path().join("noise"));
        std::fs::write(&text, b"what was said ".repeat(5000)).unwrap();
        std::fs::write(&noise, Draw(1).bytes(70_000)).unwrap();
        let of = |path| compress(&Sample { small: vec![(path, 70_000)], big: Vec::new() }).unwrap();
        assert!(of(text).left < 0.1);
        assert!(of(noise).left > 0.99);
        assert_eq!(compress(&Sample::default()), None);
        let compute = measure(&Sample::default());
        assert!(compute.hash > 1e6 && compute.aes > 1e6, "{compute:?}");
    }
}
