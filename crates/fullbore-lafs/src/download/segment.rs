//! Makes a segment from blocks, or from parts of blocks: joins, checks and decrypts it.

use std::ops::Range;

use bytes::Bytes;

use crate::cap::Key;
use crate::cipher::Cipher;
use crate::code::Code;
use crate::encode::{block_leaves, crypttext_leaf};
use crate::geometry::Geometry;
use crate::hash::Hash;

/// A block of a share, or the part of it that a [`Strip`] covers.
#[derive(Debug)]
pub(super) struct Block {
    /// Number of its reader.
    pub reader: usize,
    /// Number of the share.
    pub share: u16,
    pub bytes: Bytes,
    /// Hash of the block, if the whole block is here and the share is proven.
    pub leaf: Option<Hash>,
}

/// The same bytes of k blocks.
#[derive(Debug)]
pub(super) struct Strip {
    /// Offsets within the block.
    pub range: Range<u64>,
    pub blocks: Vec<Block>,
}

/// All that is needed to make a segment.
#[derive(Debug)]
pub(super) struct Segment {
    pub number: u64,
    pub geometry: Geometry,
    /// Hash of its ciphertext.
    pub leaf: Hash,
    /// In order; together they cover the block.
    pub strips: Vec<Strip>,
}

/// Why a segment could not be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SegmentError {
    /// Blocks of these readers do not have their hashes.
    Blocks(Vec<usize>),
    /// The segment is wrong, but no block can be blamed: some came in parts, or without hashes.
    Somewhere,
    /// Every block has its hash, but the segment has not.
    Segment,
}

impl Segment {
    /// The segment's plaintext, or its ciphertext without a key. The segment's own hash decides, whatever the blocks'
    /// hashes say.
    pub(super) fn decode(&self, code: &Code, key: Option<&Key>) -> Result<Vec<u8>, SegmentError> {
        let known: Vec<&Block> =
            self.strips.iter().flat_map(|strip| &strip.blocks).filter(|block| block.leaf.is_some()).collect();
        let bytes: Vec<&Bytes> = known.iter().map(|block| &block.bytes).collect();
        let wrong: Vec<usize> = block_leaves(&bytes)
            .iter()
            .zip(&known)
            .filter(|(hash, block)| Some(**hash) != block.leaf)
            .map(|(_, block)| block.reader)
            .collect();
        if !wrong.is_empty() {
            return Err(SegmentError::Blocks(wrong));
        }
        let mut data = self.join(code).ok_or(SegmentError::Segment)?;
        data.truncate(self.geometry.segment_len(self.number) as usize);
        if crypttext_leaf(&data) != self.leaf {
            let all = self.strips.iter().flat_map(|strip| &strip.blocks).all(|block| block.leaf.is_some());
            return Err(if all { SegmentError::Segment } else { SegmentError::Somewhere });
        }
        if let Some(key) = key {
            Cipher::at(key, self.number * self.geometry.segment_size).apply(&mut data);
        }
        Ok(data)
    }

    /// Joins the ciphertext, padding included.
    fn join(&self, code: &Code) -> Option<Vec<u8>> {
        let strips: Option<Vec<Vec<u8>>> = self
            .strips
            .iter()
            .map(|strip| {
                let blocks: Vec<(usize, &[u8])> =
                    strip.blocks.iter().map(|block| (usize::from(block.share), &block.bytes[..])).collect();
                code.decode(&blocks).ok()
            })
            .collect();
        let mut strips = strips?;
        if strips.len() == 1 {
            return strips.pop();
        }
        let (needed, block) = (usize::from(self.geometry.encoding.needed), self.geometry.block_len(self.number));
        let mut data = vec![0; needed * block as usize];
        for (strip, decoded) in self.strips.iter().zip(strips) {
            let length = (strip.range.end - strip.range.start) as usize;
            for (piece, bytes) in decoded.chunks_exact(length).enumerate() {
                data.get_mut(piece * block as usize + strip.range.start as usize..)?
                    .get_mut(..length)?
                    .copy_from_slice(bytes);
            }
        }
        Some(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::encode_whole;
    use crate::geometry::Encoding;
    use crate::layout::Layout;
    use std::sync::Arc;

    const KEY: Key = [9; 16];

    /// A 3-of-7 segment of 1000 bytes, cut at these places, each strip from other shares.
    fn segment(cuts: &[u64], damage: Option<usize>) -> (Segment, Code, Vec<u8>) {
        let geometry = Geometry::new(Encoding::new(3, 1, 7).unwrap(), 1000, 1 << 20).unwrap();
        let plaintext: Vec<u8> = (0..1000_u32).map(|i| (i * 7) as u8).collect();
        let (_, mut shares) = encode_whole(geometry, KEY, Arc::new(Code::new(3, 7)), &plaintext).unwrap();
        let layout = Layout::parse(&shares[0]).unwrap();
        if let Some(share) = damage {
            shares[share][layout.data as usize + 50] ^= 1;
        }
        let data = |share: usize, range: &Range<u64>| {
            let from = layout.data as usize;
            Bytes::copy_from_slice(&shares[share][from + range.start as usize..from + range.end as usize])
        };
        let ends = cuts.iter().copied().chain([geometry.block_len(0)]);
        let mut begin = 0;
        let strips = ends
            .enumerate()
            .map(|(turn, end)| {
                let range = begin..end;
                begin = end;
                let blocks = (0..3)
                    .map(|i| (turn * 3 + i) % 7)
                    .map(|share| Block { reader: share, share: share as u16, bytes: data(share, &range), leaf: None })
                    .collect();
                Strip { range, blocks }
            })
            .collect();
        let mut ciphertext = plaintext.clone();
        Cipher::at(&KEY, 0).apply(&mut ciphertext);
        let leaf = crypttext_leaf(&ciphertext);
        (Segment { number: 0, geometry, leaf, strips }, Code::new(3, 7), plaintext)
    }

    #[test]
    fn strips_of_different_shares_make_a_segment() {
        for cuts in [&[][..], &[100], &[1, 333], &[100, 200, 300]] {
            let (segment, code, plaintext) = segment(cuts, None);
            assert_eq!(segment.decode(&code, Some(&KEY)).unwrap(), plaintext, "{cuts:?}");
        }
    }

    #[test]
    fn damage_is_found_and_blamed_on_nobody_without_proof() {
        let (mut damaged, code, _) = segment(&[100, 200], Some(1));
        assert_eq!(damaged.decode(&code, Some(&KEY)), Err(SegmentError::Somewhere));
        (damaged, ..) = segment(&[], Some(1));
        for block in &mut damaged.strips[0].blocks {
            let hash = block_leaves(&[&block.bytes])[0];
            block.leaf = Some(if block.share == 1 { [0; 32] } else { hash });
        }
        assert_eq!(damaged.decode(&code, Some(&KEY)), Err(SegmentError::Blocks(vec![1])));
        // Whoever made these shares lied: the block's hash fits to the damage.
        damaged.strips[0].blocks[1].leaf = Some(block_leaves(&[&damaged.strips[0].blocks[1].bytes])[0]);
        assert_eq!(damaged.decode(&code, Some(&KEY)), Err(SegmentError::Segment));
    }
}
