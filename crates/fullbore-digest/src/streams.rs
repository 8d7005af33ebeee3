//! Several streams hashed at the same time, one per vector lane.

use super::Sha256Hasher;
use super::vector::{self, Block, LANES};

/// Bytes of a stream that are not hashed yet.
struct Stream<'s, D> {
    hasher: &'s mut Sha256Hasher,
    pieces: std::slice::Iter<'s, D>,
    /// Whole blocks of the current piece.
    blocks: &'s [Block],
    /// Rest of the current piece, after the whole blocks.
    rest: &'s [u8],
    /// Number of bytes that are not hashed yet.
    left: usize,
}

impl<'s, D: AsRef<[u8]>> Stream<'s, D> {
    fn new(hasher: &'s mut Sha256Hasher, pieces: &'s [D]) -> Stream<'s, D> {
        let left = pieces.iter().map(|piece| piece.as_ref().len()).sum();
        Stream { hasher, pieces: pieces.iter(), blocks: &[], rest: &[], left }
    }

    /// Advances to a piece with whole blocks; `false` at the end.
    fn has_blocks(&mut self) -> bool {
        while self.blocks.is_empty() {
            self.hasher.keep(std::mem::take(&mut self.rest));
            let Some(piece) = self.pieces.next() else { return false };
            (self.blocks, self.rest) = self.hasher.align(piece.as_ref());
        }
        true
    }

    /// Removes the first `count` blocks, which are hashed.
    fn advance(&mut self, count: usize) {
        self.blocks = &self.blocks[count..];
        self.left -= size_of::<Block>() * count;
    }
}

/// Adds pieces to several hashers, in order. On processors with AVX2 or AVX-512 several streams take hardly longer
/// than one, on those with SHA instructions two; elsewhere they are hashed in turn.
///
/// ```
/// use fullbore_digest::{Sha256, Sha256Hasher, update_many};
///
/// let mut hashers = [Sha256Hasher::new(), Sha256Hasher::new()];
/// let pieces: [&[&[u8]]; 2] = [&[b"a", b"bc"], &[b"def"]];
/// update_many(hashers.iter_mut().zip(pieces));
/// let [first, second] = hashers.map(Sha256Hasher::finish);
/// assert_eq!((first, second), (Sha256::of(b"abc"), Sha256::of(b"def")));
/// ```
pub fn update_many<'s, D: AsRef<[u8]> + 's>(streams: impl IntoIterator<Item = (&'s mut Sha256Hasher, &'s [D])>) {
    let mut open: Vec<Stream<'s, D>> =
        streams.into_iter().map(|(hasher, pieces)| Stream::new(hasher, pieces)).collect();
    let Some(tier) = open.first().map(|stream| stream.hasher.tier) else { return };
    loop {
        open.retain_mut(Stream::has_blocks);
        if open.len() < tier.worthwhile_lanes() {
            break;
        }
        // The longest first, so that the lanes are busy until the end.
        open.sort_unstable_by_key(|stream| std::cmp::Reverse(stream.left));
        let lanes = tier.lanes(open.len());
        let mut states = [[0; 8]; LANES];
        let mut data: [&[Block]; LANES] = [&[]; LANES];
        for (index, stream) in open[..lanes].iter().enumerate() {
            states[index] = stream.hasher.state;
            data[index] = stream.blocks;
        }
        let count = data[..lanes].iter().map(|blocks| blocks.len()).min().unwrap_or(0);
        vector::compress_lanes(tier, &mut states[..lanes], &data[..lanes], count);
        for (stream, state) in open[..lanes].iter_mut().zip(states) {
            stream.hasher.state = state;
            stream.advance(count);
        }
    }
    for mut stream in open {
        while stream.has_blocks() {
            let blocks = std::mem::take(&mut stream.blocks);
            vector::compress(tier, &mut stream.hasher.state, blocks);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Sha256;
    use crate::vector::Tier;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]

        /// Any number of streams in any pieces: what each has alone.
        #[test]
        fn streams_hashed_side_by_side_have_the_digests_of_each_alone(
            streams in proptest::collection::vec(
                proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..300), 0..4), 0..20),
            before in proptest::collection::vec(any::<u8>(), 0..70),
        ) {
            for tier in vector::tests::tiers() {
                let mut hashers: Vec<_> = streams.iter().map(|_| Sha256Hasher::of_tier(tier)).collect();
                for hasher in &mut hashers {
                    hasher.update(&before);
                }
                update_many(hashers.iter_mut().zip(streams.iter().map(Vec::as_slice)));
                for (hasher, pieces) in hashers.into_iter().zip(&streams) {
                    let whole = [&before[..], &pieces.concat()].concat();
                    prop_assert_eq!(hasher.bytes(), whole.len() as u64);
                    let mut alone = Sha256Hasher::of_tier(Tier::Library);
                    alone.update(&whole);
                    prop_assert_eq!(hasher.finish(), alone.finish());
                    let library: [u8; 32] = <sha2::Sha256 as sha2::Digest>::digest(&whole).into();
                    prop_assert_eq!(Sha256::of(&whole), Sha256(library));
                }
            }
        }
    }
}
