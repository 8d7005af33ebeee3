//! How an object is cut into parts, and the checksum of an object in parts.
//!
//! Parts are 8 MiB, more only where 10,000 of them would not do. From a pipe, whose end nobody knows, they double
//! every thousand: 10,000 of them hold 8 TiB, more than an object may have.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use fullbore_engine::digest::{Sha256, Sha256Hasher, update_many};

/// Bytes of an object ("Amazon S3 multipart upload limits").
pub const OBJECT_BYTES_MAX: u64 = 5 << 40;

/// Parts of an object, by the same page.
pub const PARTS_MAX: u64 = 10_000;

/// Bytes of a part, as far as 10,000 do. Eight on their way carry 1 Gbit/s over half a second; smaller ones cost
/// servers more (each is a file of its own in many of them).
pub const PART_BYTES: u64 = 8 << 20;

/// How parts of a pipe grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// Bytes of the first part.
    pub first_bytes: u64,
    /// Parts after which they double.
    pub double_after: u64,
}

impl Default for Growth {
    fn default() -> Growth {
        Growth { first_bytes: PART_BYTES, double_after: 1000 }
    }
}

/// Files up to this size are put by one request.
pub const WHOLE_BYTES_MAX: u64 = 16 << 20;

/// How an object is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// All parts of this many bytes, but the last.
    Even(u64),
    /// As pipes are.
    Growing(Growth),
}

impl Cut {
    /// For a file of this size.
    pub fn of(size: u64) -> Cut {
        let least = size.div_ceil(PARTS_MAX);
        Cut::Even(least.next_multiple_of(1 << 20).max(PART_BYTES))
    }

    /// Bytes of part `number`, counted from 0, unless the object ends before.
    pub fn part_bytes(self, number: u64) -> u64 {
        match self {
            Cut::Even(bytes) => bytes.max(1),
            Cut::Growing(growth) => growth.first_bytes.max(1) << (number / growth.double_after.max(1)).min(16),
        }
    }

    /// How many parts an object of this size has; one for an empty one.
    pub fn count(self, size: u64) -> u64 {
        match self {
            Cut::Even(bytes) => size.div_ceil(bytes.max(1)).max(1),
            Cut::Growing(_) => {
                let (mut count, mut reached) = (0, 0);
                // Sizes are what servers say, and no object has more parts than that.
                while reached < size && count <= PARTS_MAX {
                    reached += self.part_bytes(count);
                    count += 1;
                }
                count.max(1)
            }
        }
    }

    /// The cut by which an object of this size has so many parts, if its uploader was one of the usual:
    /// `first` is what is known of the first part's size.
    pub fn guess(size: u64, parts: u64, first: Option<u64>) -> Option<Cut> {
        if parts > PARTS_MAX {
            return None;
        }
        let even = first.into_iter().chain([PART_BYTES]).map(Cut::Even);
        even.chain([Cut::of(size), Cut::Growing(Growth::default())])
            .find(|cut| cut.count(size) == parts && first.is_none_or(|first| cut.part_bytes(0).min(size) == first))
    }
}

/// A hash as fields have it: base64.
pub fn base64(hash: &Sha256) -> String {
    STANDARD.encode(hash.as_bytes())
}

/// The checksum of an object in parts: the hash of the parts' hashes, and their number ("Checking object
/// integrity", composite checksums).
pub fn composite(parts: &[Sha256]) -> String {
    let mut hasher = Sha256Hasher::new();
    for part in parts {
        hasher.update(part.as_bytes());
    }
    format!("{}-{}", base64(&hasher.finish()), parts.len())
}

/// Hashes content that comes in order, whole and by parts.
#[derive(Debug)]
pub struct Composite {
    cut: Cut,
    part: Sha256Hasher,
    left: u64,
    done: Vec<Sha256>,
}

impl Composite {
    /// For content cut so.
    pub fn new(cut: Cut) -> Composite {
        Composite { cut, part: Sha256Hasher::new(), left: cut.part_bytes(0), done: Vec::new() }
    }

    /// The next bytes, in pieces. Several parts among them are hashed side by side.
    pub fn update<D: AsRef<[u8]>>(&mut self, pieces: &[D]) {
        let mut parts: Vec<(Sha256Hasher, Vec<&[u8]>)> = vec![(std::mem::take(&mut self.part), Vec::new())];
        for mut piece in pieces.iter().map(AsRef::as_ref) {
            while !piece.is_empty() {
                if self.left == 0 {
                    let begun = (self.done.len() + parts.len()) as u64;
                    self.left = self.cut.part_bytes(begun);
                    parts.push(Default::default());
                }
                let now = piece.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                let (these, rest) = piece.split_at(now);
                if let Some((_, pieces)) = parts.last_mut() {
                    pieces.push(these);
                }
                self.left -= now as u64;
                piece = rest;
            }
        }
        update_many(parts.iter_mut().map(|(hasher, pieces)| (hasher, &pieces[..])));
        let mut hashers = parts.into_iter().map(|(hasher, _)| hasher);
        self.part = hashers.next_back().unwrap_or_default();
        self.done.extend(hashers.map(Sha256Hasher::finish));
    }

    /// The composite checksum, as servers have it.
    pub fn finish(mut self) -> String {
        self.done.push(self.part.finish());
        composite(&self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ten_thousand_parts_always_do() {
        assert_eq!(Cut::of(1 << 30), Cut::Even(PART_BYTES));
        for size in [1, PART_BYTES * PARTS_MAX, PART_BYTES * PARTS_MAX + 1, OBJECT_BYTES_MAX] {
            let Cut::Even(bytes) = Cut::of(size) else { panic!("not even") };
            assert!(size.div_ceil(bytes) <= PARTS_MAX && bytes % (1 << 20) == 0, "{size}");
        }
        let growing = Cut::Growing(Growth::default());
        let all: u64 = (0..PARTS_MAX).map(|number| growing.part_bytes(number)).sum();
        assert!(all >= OBJECT_BYTES_MAX && growing.count(OBJECT_BYTES_MAX) <= PARTS_MAX);
        // A part may have 5 GiB.
        assert!(growing.part_bytes(PARTS_MAX - 1) <= 5 << 30);
    }

    #[test]
    fn the_checksum_of_parts_is_that_of_their_hashes() {
        let content: Vec<u8> = (0..100_u8).collect();
        let mut composite_hash = Composite::new(Cut::Even(40));
        for piece in content.chunks(7) {
            composite_hash.update(&[piece]);
        }
        let parts: Vec<Sha256> = content.chunks(40).map(Sha256::of).collect();
        assert_eq!(composite_hash.finish(), composite(&parts));
        assert!(composite(&parts).ends_with("-3"));
        let mut exact = Composite::new(Cut::Even(50));
        exact.update(&[&content]);
        assert_eq!(exact.finish(), composite(&[Sha256::of(&content[..50]), Sha256::of(&content[50..])]));
        let mut nothing = Composite::new(Cut::Even(50));
        nothing.update::<&[u8]>(&[]);
        assert_eq!(nothing.finish(), composite(&[Sha256::EMPTY]));
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
            let cut = Cut::Growing(Growth { first_bytes, double_after });
            let mut side_by_side = Composite::new(cut);
            let pieces: Vec<&[u8]> = content.chunks(piece_bytes).collect();
            pieces.chunks(batch).for_each(|pieces| side_by_side.update(pieces));
            let (mut rest, mut alone) = (&content[..], Vec::new());
            while !rest.is_empty() {
                let bytes = cut.part_bytes(alone.len() as u64).min(rest.len() as u64);
                let (part, behind) = rest.split_at(bytes as usize);
                alone.push(Sha256::of(part));
                rest = behind;
            }
            prop_assert_eq!(side_by_side.finish(), composite(&alone));
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
