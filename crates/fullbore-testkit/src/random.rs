//! Repeatable chance: numbers and file contents that depend on a seed alone.
//!
//! File contents are slices of one random pad with a unique mark at the start of each
//! piece, so that they cannot be compressed, cost no more than a copy to make, and a block
//! that ended up in the wrong place or file shows.

use std::sync::OnceLock;

use crate::digest::Digest;

/// SplitMix64 (Steele, Lea, Flood 2014): small, fast, and good enough to draw tests from.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers depend on the seed and a label only.
    pub fn new(seed: u64, label: &str) -> Random {
        let digest = Digest::of(format!("{seed}/{label}").as_bytes());
        let mut start = [0; 8];
        start.copy_from_slice(&digest.0[..8]);
        Random(u64::from_le_bytes(start))
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 when `limit` is 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        // The bias of the remainder is beneath anything a test could see.
        if limit == 0 { 0 } else { self.bits() % limit }
    }

    /// A number from 0 up to, but not including, 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// True with the given probability.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// One of the items; the slice must not be empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

/// Length of the pad. Longer than the window of gzip and of xz's lowest presets, so that
/// repetitions are far apart.
const PAD_BYTES: usize = 4 << 20;

/// Distance of the marks that make every piece unique.
const PIECE_BYTES: usize = 64 << 10;

fn pad() -> &'static [u8] {
    static PAD: OnceLock<Vec<u8>> = OnceLock::new();
    PAD.get_or_init(|| {
        let mut random = Random::new(0, "pad");
        let mut pad = Vec::with_capacity(PAD_BYTES + PIECE_BYTES);
        while pad.len() < PAD_BYTES + PIECE_BYTES {
            pad.extend_from_slice(&random.bits().to_le_bytes());
        }
        pad
    })
}

/// The `length` bytes that belong to a seed and a name; hands them out piece by piece.
pub fn content(seed: u64, name: &str, length: u64, mut take: impl FnMut(&[u8])) {
    let own = Digest::of(format!("{seed}:{name}").as_bytes());
    let mut random = Random::new(seed, name);
    let mut left = length;
    let mut number: u64 = 0;
    while left > 0 {
        let piece = left.min(PIECE_BYTES as u64) as usize;
        let mut mark = own.0;
        for (byte, count) in mark.iter_mut().zip(number.to_le_bytes()) {
            *byte ^= count;
        }
        let head = piece.min(mark.len());
        take(&mark[..head]);
        if piece > head {
            let start = random.below(PAD_BYTES as u64) as usize;
            take(&pad()[start..start + piece - head]);
        }
        left -= piece as u64;
        number += 1;
    }
}

/// The bytes of [`content`] in one vector.
///
/// ```
/// use fullbore_testkit::random::content_vec;
///
/// assert_eq!(content_vec(1, "pool/a.deb", 5000), content_vec(1, "pool/a.deb", 5000));
/// assert_ne!(content_vec(1, "pool/a.deb", 5000), content_vec(2, "pool/a.deb", 5000));
/// ```
pub fn content_vec(seed: u64, name: &str, length: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length as usize);
    content(seed, name, length, |piece| bytes.extend_from_slice(piece));
    bytes
}

/// `length` bytes that look like chance, the same for the same seed.
pub fn noise(length: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&random.bits().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_depends_on_seed_and_name_and_has_the_length() {
        for length in [0, 1, 31, 32, 33, 65_536, 65_537, 200_000] {
            assert_eq!(content_vec(1, "a", length).len() as u64, length);
        }
        assert_eq!(content_vec(1, "a", 70_000), content_vec(1, "a", 70_000));
        assert_ne!(content_vec(1, "a", 70_000), content_vec(2, "a", 70_000));
        assert_ne!(content_vec(1, "a", 70_000), content_vec(1, "b", 70_000));
    }

    #[test]
    fn unit_stays_in_its_interval() {
        let mut random = Random::new(7, "unit");
        assert!((0..10_000).all(|_| (0.0..1.0).contains(&random.unit())));
    }
}
