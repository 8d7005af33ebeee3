//! Divides objects into parts, and computes composite checksums.
//!
//! Parts are 8 MiB, or larger if 10,000 of them would not suffice. The length of a pipe is unknown, so its parts grow.
//! The first two thousand have 8 and 16 MiB and stay in memory; then the size doubles every hundred parts, up to the
//! largest that a store accepts. So a pipe may carry 39 TB. To reach an object's maximum of 50 TB, nearly all parts
//! would need the largest size.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_engine::digest::{Sha256, Sha256Hasher, update_many};

use super::checksum::{Algorithm, Hasher};

/// Maximum size of an object in bytes ("Amazon S3 multipart upload limits"; 5 TiB before December 2025). Many stores
/// accept less, and say so.
pub(crate) const OBJECT_BYTES_MAX: u64 = 50_000_000_000_000;

/// Maximum size of a part in bytes, from the same page.
pub(crate) const PART_BYTES_MAX: u64 = 5 << 30;

/// Maximum number of parts of an object, from the same page.
pub(crate) const PARTS_MAX: u64 = 10_000;

/// Size of a part in bytes, while 10,000 suffice. Eight in flight carry 1 Gbit/s over half a second. Smaller ones cost
/// servers more, because many store each as a file.
pub(crate) const PART_BYTES: u64 = 8 << 20;

/// Growth of the parts of an upload from a pipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Length of the first part in bytes; 8 MiB by default.
    pub first_bytes: u64,
    /// Number of parts after which their length doubles for the first and for the second time; 1000 by default.
    pub double_after: u64,
    /// Number of parts after which their length doubles again each time, up to 5 GiB; 100 by default.
    pub then_after: u64,
}

impl Growth {
    /// Size of part `number`, counted from 0, in bytes.
    fn part_bytes(&self, number: u64) -> u64 {
        let (slow, fast) = (self.double_after.max(1), self.then_after.max(1));
        let doublings = match number.checked_sub(slow.saturating_mul(2)) {
            Some(later) => 2 + later / fast,
            None => number / slow,
        };
        (self.first_bytes.max(1) << doublings.min(16)).min(PART_BYTES_MAX)
    }

    /// Maximum length of a pipe, in bytes.
    pub(crate) fn pipe_bytes_max(&self) -> u64 {
        let all = (0..PARTS_MAX).map(|number| self.part_bytes(number)).fold(0, u64::saturating_add);
        all.min(OBJECT_BYTES_MAX)
    }
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { first_bytes: PART_BYTES, double_after: 1000, then_after: 100 }
    }
}

/// Files up to this size are uploaded with one request.
pub const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// The sizes of an object's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Cut {
    /// All parts have this size, except the last.
    Even(u64),
    /// Sizes for a pipe.
    Growing(Growth),
    /// These sizes; at most [`PARTS_MAX`], none of them 0.
    Sizes(Arc<[u64]>),
}

impl Cut {
    /// The sizes for a file of this size.
    pub(crate) fn of(size: u64) -> Cut {
        Cut::at_most(size, PARTS_MAX)
    }

    /// The sizes for a file of this size, at a store that accepts at most `parts` parts.
    pub(crate) fn at_most(size: u64, parts: u64) -> Cut {
        let least = size.div_ceil(parts.max(1));
        Cut::Even(least.next_multiple_of(1 << 20).max(PART_BYTES))
    }

    /// Size of part `number`, counted from 0, in bytes, unless the object ends before.
    pub(crate) fn part_bytes(&self, number: u64) -> u64 {
        match self {
            Cut::Even(bytes) => (*bytes).max(1),
            // Bytes after the last part belong to no known part.
            Cut::Sizes(sizes) => {
                usize::try_from(number).ok().and_then(|number| sizes.get(number)).map_or(u64::MAX, |bytes| *bytes)
            }
            Cut::Growing(growth) => growth.part_bytes(number),
        }
    }

    /// Number of parts of an object of this size; an empty one has one.
    pub(crate) fn count(&self, size: u64) -> u64 {
        match self {
            Cut::Even(bytes) => size.div_ceil((*bytes).max(1)).max(1),
            Cut::Sizes(sizes) => sizes.len() as u64,
            Cut::Growing(_) => {
                let (mut count, mut reached) = (0, 0);
                // Sizes are claims of servers, and no object has more parts.
                while reached < size && count <= PARTS_MAX {
                    reached += self.part_bytes(count);
                    count += 1;
                }
                count.max(1)
            }
        }
    }

    /// Guesses the sizes of an object's parts, if its uploader was one of the usual tools; `first` is the size of the
    /// first part, if known.
    pub(crate) fn guess(size: u64, parts: u64, first: Option<u64>) -> Option<Cut> {
        if parts > PARTS_MAX {
            return None;
        }
        let even = first.into_iter().chain([PART_BYTES]).map(Cut::Even);
        even.chain([Cut::of(size), Cut::Growing(Growth::default())])
            .find(|cut| cut.count(size) == parts && first.is_none_or(|first| cut.part_bytes(0).min(size) == first))
    }
}

/// A hash in base64, as in header fields.
pub(crate) fn base64(hash: &Sha256) -> String {
    STANDARD.encode(hash.as_bytes())
}

/// The composite checksum of an object: the hash of the parts' hashes, and their number ("Checking object integrity",
/// composite checksums).
pub(crate) fn composite(parts: &[Sha256]) -> String {
    let mut hasher = Sha256Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes());
    }
    format!("{}-{}", base64(&hasher.finish()), parts.len())
}

/// Computes the composite checksum of content that arrives in order.
pub(crate) struct Composite {
    algorithm: Algorithm,
    cut: Cut,
    part: Hasher,
    left: u64,
    /// Checksums of complete parts, concatenated.
    done: Vec<u8>,
    count: u64,
}

impl Composite {
    /// Creates a hasher for content with these part sizes.
    pub(crate) fn new(algorithm: Algorithm, cut: Cut) -> Composite {
        let left = cut.part_bytes(0);
        Composite { algorithm, cut, part: Hasher::new(algorithm), left, done: Vec::new(), count: 0 }
    }

    /// Adds the next bytes, in pieces. Several parts among them are hashed in parallel.
    pub(crate) fn update<D: AsRef<[u8]>>(&mut self, pieces: &[D]) {
        let mut parts: Vec<Vec<&[u8]>> = vec![Vec::new()];
        for mut piece in pieces.iter().map(AsRef::as_ref) {
            while !piece.is_empty() {
                if self.left == 0 {
                    self.left = self.cut.part_bytes(self.count + parts.len() as u64);
                    parts.push(Vec::new());
                }
                let now = piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                let (these, rest) = piece.split_at(now);
                if let Some(pieces) = parts.last_mut() {
                    pieces.push(these);
                }
                self.left -= now as u64;
                piece = rest;
            }
        }
        let mut hashers = vec![std::mem::replace(&mut self.part, Hasher::new(self.algorithm))];
        hashers.resize_with(parts.len(), || Hasher::new(self.algorithm));
        update_all(&mut hashers, &parts);
        self.part = hashers.pop().unwrap_or_else(|| Hasher::new(self.algorithm));
        self.count += hashers.len() as u64;
        hashers.into_iter().for_each(|hasher| self.done.extend(hasher.finish()));
    }

    /// Returns the composite checksum, without the number of parts.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.done.extend(self.part.finish());
        let mut hasher = Hasher::new(self.algorithm);
        hasher.update(&self.done);
        hasher.finish()
    }
}

/// Hashes the pieces of several parts; with SHA-256 in parallel.
fn update_all(hashers: &mut [Hasher], parts: &[Vec<&[u8]>]) {
    let mut side_by_side = Vec::new();
    for (hasher, pieces) in hashers.iter_mut().zip(parts) {
        match hasher {
            Hasher::Sha256(hasher) => side_by_side.push((&mut **hasher, &pieces[..])),
            hasher => pieces.iter().for_each(|piece| hasher.update(piece)),
        }
    }
    update_many(side_by_side);
}

#[cfg(test)]
mod tests {
    use super::super::checksum::tests::hash;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_thousand_parts_always_do() {
        assert_eq!(Cut::of(1 << 30), Cut::Even(PART_BYTES));
        for size in [1, PART_BYTES * PARTS_MAX, PART_BYTES * PARTS_MAX + 1, OBJECT_BYTES_MAX] {
            let Cut::Even(bytes) = Cut::of(size) else { panic!("not even") };
            assert!(size.div_ceil(bytes) <= PARTS_MAX && bytes % (1 << 20) == 0, "{size}");
            assert!(bytes <= PART_BYTES_MAX, "{size}");
        }
        let growing = Cut::Growing(Growth::default());
        let most = Growth::default().pipe_bytes_max();
        assert!(most > 39_000_000_000_000 && growing.count(most) <= PARTS_MAX, "{most}");
        let sizes = [0, 999, 1000, 1999, 2000, 2099, 2100, 2799, 2800, PARTS_MAX - 1];
        let expected = [8, 8, 16, 16, 32, 32, 64, 4096, 5120, 5120].map(|mebibytes| mebibytes << 20);
        assert_eq!(sizes.map(|number| growing.part_bytes(number)), expected);
    }

    #[test]
    fn the_checksum_of_parts_is_that_of_their_hashes() {
        let content: Vec<u8> = (0..100_u8).collect();
        let composite_of = |cut| Composite::new(Algorithm::Sha256, cut);
        let finished = |composite: Composite| STANDARD.encode(composite.finish());
        let sum = |parts: &[Sha256]| composite(parts).rsplit_once('-').unwrap().0.to_owned();
        let mut composite_hash = composite_of(Cut::Even(40));
        for piece in content.chunks(7) {
            composite_hash.update(&[piece]);
        }
        let parts: Vec<Sha256> = content.chunks(40).map(Sha256::of).collect();
        assert_eq!(finished(composite_hash), sum(&parts));
        assert!(composite(&parts).ends_with("-3"));
        let mut exact = composite_of(Cut::Even(50));
        exact.update(&[&content]);
        assert_eq!(finished(exact), sum(&[Sha256::of(&content[..50]), Sha256::of(&content[50..])]));
        let mut nothing = composite_of(Cut::Even(50));
        nothing.update::<&[u8]>(&[]);
        assert_eq!(finished(nothing), sum(&[Sha256::EMPTY]));
    }

    /// Part sizes × checksums: in pieces that do not end where parts do.
    #[test]
    fn each_checksum_of_each_cut_is_that_of_its_parts() {
        let content: Vec<u8> = (0..=255_u8).cycle().take(20_000).collect();
        let cuts: [&[usize]; 7] = [&[5, 4], &[10, 5, 5], &[6, 7, 5], &[8, 8, 4], &[1, 1, 1, 1], &[20], &[1, 19]];
        for (algorithm, sizes) in Algorithm::ALL.into_iter().flat_map(|algorithm| cuts.map(|cut| (algorithm, cut))) {
            let listed: Vec<u64> = sizes.iter().map(|size| 1000 * *size as u64).collect();
            let all = listed.iter().sum::<u64>() as usize;
            let (mut rest, mut sums) = (&content[..all], Vec::new());
            for size in sizes {
                let (part, behind) = rest.split_at(1000 * size);
                sums.extend(hash(algorithm, part));
                rest = behind;
            }
            for batch in [1, 3, 100] {
                let mut composite = Composite::new(algorithm, Cut::Sizes(listed.clone().into()));
                let pieces: Vec<&[u8]> = content[..all].chunks(777).collect();
                pieces.chunks(batch).for_each(|pieces| composite.update(pieces));
                assert_eq!(composite.finish(), hash(algorithm, &sums), "{algorithm:?} {sizes:?} {batch}");
            }
        }
    }

    proptest! {
        /// In whatever pieces and batches it comes.
        #[test]
        fn parts_are_hashed_side_by_side_as_alone(
            content in proptest::collection::vec(any::<u8>(), 1..3000),
            (first_bytes, double_after) in (1_u64..500, 1_u64..4),
            piece_bytes in 1_usize..400,
            batch in 1_usize..20,
        ) {
            let cut = Cut::Growing(Growth { first_bytes, double_after, then_after: double_after });
            let mut side_by_side = Composite::new(Algorithm::Sha256, cut.clone());
            let pieces: Vec<&[u8]> = content.chunks(piece_bytes).collect();
            pieces.chunks(batch).for_each(|pieces| side_by_side.update(pieces));
            let (mut rest, mut alone) = (&content[..], Vec::new());
            while !rest.is_empty() {
                let bytes = cut.part_bytes(alone.len() as u64).min(rest.len() as u64);
                let (part, behind) = rest.split_at(bytes as usize);
                alone.push(Sha256::of(part));
                rest = behind;
            }
            let sum = STANDARD.encode(side_by_side.finish());
            prop_assert_eq!(format!("{sum}-{}", alone.len()), composite(&alone));
        }
    }

    #[test]
    fn the_cut_of_another_uploader_is_found() {
        let size = 100 << 20;
        assert_eq!(Cut::guess(size, 13, None), Some(Cut::Even(PART_BYTES)));
        assert_eq!(Cut::guess(size, 2, Some(50 << 20)), Some(Cut::Even(50 << 20)));
        assert_eq!(Cut::guess(size, 7, None), None);
        let pipe = PART_BYTES * 1001;
        assert_eq!(Cut::guess(pipe, 1001, Some(PART_BYTES)), Some(Cut::Even(PART_BYTES)));
        assert_eq!(Cut::guess(pipe + PART_BYTES, 1001, Some(PART_BYTES)), Some(Cut::Growing(Growth::default())));
        // What no object is: it would be counted for ever, or hashed byte by byte.
        assert_eq!(Cut::guess(u64::MAX, 3, None), None);
        assert_eq!(Cut::guess(1 << 20, 1 << 20, Some(1)), None);
    }
}
