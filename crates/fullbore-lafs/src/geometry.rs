//! How a file is cut: into segments, each into k data blocks, from which n blocks are made.

use std::ops::RangeInclusive;

use fullbore_engine::units;

/// Most shares of one code: the field has 256 elements.
pub(crate) const SHARES_MAX: u16 = 256;

/// The stock client's default encoding.
pub(crate) const DEFAULT_ENCODING: Encoding = Encoding { needed: 3, happy: 7, total: 10 };

/// Default size of a segment in bytes, as of the stock client 1.19; before, 128 KiB.
pub const DEFAULT_SEGMENT_BYTES: u64 = 1 << 20;

/// Accepted segment sizes in bytes. All blocks of a segment are in memory at once; the stock client has no bound. The
/// lower bound keeps the hashes smaller than the data.
pub(crate) const SEGMENT_BYTES: RangeInclusive<u64> = 1..=64 << 20;

/// How many shares are made, how many are needed, and on how many servers they have to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Encoding {
    /// Shares that a reader needs, k.
    pub needed: u16,
    /// Servers that must hold different shares at the end of an upload.
    pub happy: u16,
    /// Number of shares made, n.
    pub total: u16,
}

/// Why these numbers do not give a valid encoding or geometry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GeometryError {
    /// Not 1 ≤ needed ≤ total ≤ 256.
    #[error("{needed} of {total} shares: must be 1 <= needed <= total <= {SHARES_MAX}")]
    Shares {
        /// Shares needed, k.
        needed: u16,
        /// Shares made, n.
        total: u16,
    },
    /// Not 1 ≤ happy ≤ total.
    #[error("happiness of {happy} with {total} shares: must be 1 to {total}")]
    Happy {
        /// Happiness asked for.
        happy: u16,
        /// Shares made, n.
        total: u16,
    },
    /// A segment size outside `SEGMENT_BYTES`.
    #[error("segments of {}: must be 1 B to {}", units::bytes(*bytes), units::bytes(*SEGMENT_BYTES.end()))]
    Segment {
        /// The size asked for, in bytes.
        bytes: u64,
    },
    /// An empty file has no segments.
    #[error("an empty file has no segments")]
    Empty,
    /// A file larger than 2^56 bytes.
    #[error("a file of {} is too large", units::bytes(*bytes))]
    TooLarge {
        /// Size of the file in bytes.
        bytes: u64,
    },
}

/// Largest file in bytes: all offsets stay far below 2^64. A guess at "enough".
const FILE_BYTES_MAX: u64 = 1 << 56;

impl Encoding {
    /// Checks the three numbers of an encoding.
    ///
    /// # Errors
    /// [`GeometryError::Shares`] unless `needed` is at least 1 and at most `total`, or if `total` exceeds the code's
    /// limit. [`GeometryError::Happy`] unless `happy` is at least 1 and at most `total`.
    pub fn new(needed: u16, happy: u16, total: u16) -> Result<Encoding, GeometryError> {
        if needed == 0 || needed > total || total > SHARES_MAX {
            return Err(GeometryError::Shares { needed, total });
        }
        if happy == 0 || happy > total {
            return Err(GeometryError::Happy { happy, total });
        }
        Ok(Encoding { needed, happy, total })
    }
}

/// How one file is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// The numbers k, happy and n of the encoding.
    pub encoding: Encoding,
    /// Size of the file in bytes.
    pub size: u64,
    /// Size of each segment but the last in bytes; a multiple of k.
    pub segment_size: u64,
    /// Number of segments, including the last.
    pub segments: u64,
}

impl Geometry {
    /// Divides a file of `size` bytes into segments of at most `segment_max` bytes, rounded up to a multiple of k, as
    /// the stock client does.
    ///
    /// ```
    /// use fullbore_lafs::{Encoding, Geometry};
    ///
    /// let geometry = Geometry::new(Encoding::new(3, 7, 10)?, 1_000_000, 128 << 10)?;
    /// assert_eq!((geometry.segment_size, geometry.segments), (131_073, 8));
    /// # Ok::<(), fullbore_lafs::GeometryError>(())
    /// ```
    ///
    /// # Errors
    /// [`GeometryError::Empty`] for an empty file; [`GeometryError::TooLarge`] above 2^56 bytes;
    /// [`GeometryError::Segment`] if `segment_max` is outside `SEGMENT_BYTES`.
    pub fn new(encoding: Encoding, size: u64, segment_max: u64) -> Result<Geometry, GeometryError> {
        if size == 0 {
            return Err(GeometryError::Empty);
        }
        if size > FILE_BYTES_MAX {
            return Err(GeometryError::TooLarge { bytes: size });
        }
        if !SEGMENT_BYTES.contains(&segment_max) {
            return Err(GeometryError::Segment { bytes: segment_max });
        }
        let segment_size = segment_max.min(size).next_multiple_of(u64::from(encoding.needed));
        Ok(Geometry { encoding, size, segment_size, segments: size.div_ceil(segment_size) })
    }

    /// Length of a block of every segment but the last, in bytes.
    pub fn block_size(&self) -> u64 {
        self.segment_size / self.needed()
    }

    /// Bytes of memory for encoding a segment: all its blocks.
    pub fn segment_memory(&self) -> u64 {
        self.block_size() * u64::from(self.encoding.total)
    }

    /// Bytes of the file in a segment.
    pub(crate) fn segment_len(&self, segment: u64) -> u64 {
        self.size.saturating_sub(segment.saturating_mul(self.segment_size)).min(self.segment_size)
    }

    /// Length of the last segment in bytes, padded to a multiple of k.
    pub(crate) fn padded_tail(&self) -> u64 {
        self.segment_len(self.segments - 1).next_multiple_of(self.needed())
    }

    /// Length of a block of this segment in bytes.
    pub fn block_len(&self, segment: u64) -> u64 {
        self.segment_len(segment).div_ceil(self.needed())
    }

    /// Length of all blocks of a share in bytes.
    pub fn share_data(&self) -> u64 {
        self.size.div_ceil(self.needed())
    }

    fn needed(&self) -> u64 {
        u64::from(self.encoding.needed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_that_make_no_code_are_refused() {
        assert!(Encoding::new(0, 1, 1).is_err());
        assert!(Encoding::new(4, 1, 3).is_err());
        assert!(Encoding::new(1, 1, 257).is_err());
        assert!(Encoding::new(1, 3, 2).is_err());
        assert!(Encoding::new(1, 0, 2).is_err());
        let encoding = Encoding::new(256, 256, 256).unwrap();
        assert_eq!(Geometry::new(encoding, 0, 1024), Err(GeometryError::Empty));
        assert!(Geometry::new(encoding, u64::MAX, 1024).is_err());
        assert!(Geometry::new(encoding, 1, 0).is_err());
    }

    proptest! {
        #[test]
        fn the_pieces_are_the_whole(
            needed in 1_u16..=256, size in 1_u64..5_000_000, segment_max in 1_u64..300_000,
        ) {
            let cut = Geometry::new(Encoding::new(needed, 1, 256).unwrap(), size, segment_max).unwrap();
            prop_assume!(cut.segments < 20_000);
            prop_assert_eq!((0..cut.segments).map(|segment| cut.segment_len(segment)).sum::<u64>(), size);
            prop_assert_eq!((0..cut.segments).map(|segment| cut.block_len(segment)).sum::<u64>(), cut.share_data());
            prop_assert_eq!(cut.padded_tail(), cut.block_len(cut.segments - 1) * u64::from(needed));
            prop_assert_eq!(cut.segment_len(cut.segments), 0);
        }
    }
}
