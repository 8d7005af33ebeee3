//! The layout of a share: a header with offsets, blocks, hashes, the URI extension block.
//!
//! Version 1 has fields of 4 bytes, version 2 fields of 8. The stock client uses version 2 if version 1 cannot hold the
//! numbers. All offsets are known before the first block, so shares are written as they are made. A server keeps a
//! share in a container of its own, which is not described here.

use bytes::Bytes;

use super::geometry::Geometry;
use super::hash::Hash;
use super::merkle::{NODE_BYTES, node_count, proof_nodes};

/// Length of the header of version 1 in bytes, and so the offset of the first block.
const HEADER_V1: u64 = 0x24;
/// The same of version 2.
const HEADER_V2: u64 = 0x44;
/// Length of the longer header in bytes: the first bytes that a reader requests.
pub(crate) const HEADER_BYTES_MAX: u64 = HEADER_V2;

/// Length of a node of a share's proof in bytes: a number of 2 bytes, and the hash.
const PROOF_NODE_BYTES: u64 = 34;

/// Version 1 holds numbers below this.
const V1_LIMIT: u64 = 1 << 32;

/// Fills the place where old clients stored the plaintext's tree.
static ZEROS: [u8; 16 << 10] = [0; 16 << 10];

/// The layout of one share. All offsets and lengths are in bytes, offsets from the beginning of the share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Version of the share format: 1 for 32-bit offsets, 2 for 64-bit offsets.
    pub version: u32,
    /// Length of a block of each segment but the last, as in the header.
    pub block_size: u64,
    /// Length of all blocks, as in the header.
    pub data_size: u64,
    /// Offset of the first block.
    pub data: u64,
    /// Offset of the plaintext's tree of old clients; zeros today.
    pub plaintext_tree: u64,
    /// Offset of the tree over the segments' ciphertext.
    pub crypttext_tree: u64,
    /// Offset of the tree over this share's blocks.
    pub block_tree: u64,
    /// Offset of the proof of this share.
    pub share_proof: u64,
    /// Offset of the length of the URI extension block, which the block follows.
    pub extension: u64,
}

/// Why a header cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// Fewer bytes than the header has.
    #[error("the share ends within its header")]
    Truncated,
    /// A version other than 1 and 2.
    #[error("unknown share version {version}, expected 1 or 2")]
    Version {
        /// The version in the header.
        version: u32,
    },
    /// Offsets out of order.
    #[error("the offsets in the share's header are not in order")]
    Order,
}

impl Layout {
    /// The layout of the shares of a file, in the version that its size needs.
    pub fn new(geometry: &Geometry) -> Layout {
        let layout = Layout::of_version(1, geometry);
        if layout.data_size < V1_LIMIT && layout.extension < V1_LIMIT {
            return layout;
        }
        Layout::of_version(2, geometry)
    }

    fn of_version(version: u32, geometry: &Geometry) -> Layout {
        let data = if version == 1 { HEADER_V1 } else { HEADER_V2 };
        let tree = node_count(geometry.segments) * NODE_BYTES;
        let proof = proof_nodes(usize::from(geometry.encoding.total), 0).len() as u64 * PROOF_NODE_BYTES;
        let data_size = geometry.share_data();
        let plaintext_tree = data + data_size;
        Layout {
            version,
            block_size: geometry.block_size(),
            data_size,
            data,
            plaintext_tree,
            crypttext_tree: plaintext_tree + tree,
            block_tree: plaintext_tree + 2 * tree,
            share_proof: plaintext_tree + 3 * tree,
            extension: plaintext_tree + 3 * tree + proof,
        }
    }

    /// Length of the length field before the URI extension block, in bytes.
    pub(crate) fn length_bytes(&self) -> u64 {
        if self.version == 1 { 4 } else { 8 }
    }

    /// Length of the whole share in bytes, with an extension block of `extension_len` bytes.
    pub fn share_len(&self, extension_len: u64) -> u64 {
        self.extension + self.length_bytes() + extension_len
    }

    /// Encodes the header of a share.
    pub fn header(&self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_V2 as usize);
        header.extend_from_slice(&self.version.to_be_bytes());
        for value in self.fields() {
            self.number(&mut header, value);
        }
        header
    }

    fn fields(&self) -> [u64; 8] {
        [
            self.block_size,
            self.data_size,
            self.data,
            self.plaintext_tree,
            self.crypttext_tree,
            self.block_tree,
            self.share_proof,
            self.extension,
        ]
    }

    fn number(&self, out: &mut Vec<u8>, value: u64) {
        let bytes = value.to_be_bytes();
        out.extend_from_slice(&bytes[8 - self.length_bytes() as usize..]);
    }

    /// The bytes after the blocks, in order. `crypttext` has the nodes of that tree. They come in pieces: for a file of
    /// 10 GB each tree is a megabyte, and all shares use the same memory for all but the last piece.
    pub fn trailer(&self, crypttext: &Bytes, blocks: &[Hash], proof: &[(u16, Hash)], extension: &[u8]) -> Vec<Bytes> {
        let mut pieces = Vec::new();
        let mut zeros = (self.crypttext_tree - self.plaintext_tree) as usize;
        while zeros > 0 {
            let piece = Bytes::from_static(&ZEROS[..zeros.min(ZEROS.len())]);
            zeros -= piece.len();
            pieces.push(piece);
        }
        pieces.push(crypttext.clone());
        let length = self.share_len(extension.len() as u64) - self.block_tree;
        let mut own = Vec::with_capacity(length as usize);
        own.extend_from_slice(blocks.as_flattened());
        for (node, hash) in proof {
            own.extend_from_slice(&node.to_be_bytes());
            own.extend_from_slice(hash);
        }
        self.number(&mut own, extension.len() as u64);
        own.extend_from_slice(extension);
        pieces.push(own.into());
        pieces
    }

    /// Parses a header, and checks only that its offsets are in order.
    ///
    /// # Errors
    /// `LayoutError::Truncated` if `share` ends within the header; `LayoutError::Version` for an unknown version;
    /// `LayoutError::Order` for offsets out of order.
    pub fn parse(share: &[u8]) -> Result<Layout, LayoutError> {
        let (version, rest) = share.split_first_chunk::<4>().ok_or(LayoutError::Truncated)?;
        let version = u32::from_be_bytes(*version);
        let mut fields = [0_u64; 8];
        match version {
            1 => {
                for (field, bytes) in
                    fields.iter_mut().zip(rest.get(..32).ok_or(LayoutError::Truncated)?.as_chunks::<4>().0)
                {
                    *field = u32::from_be_bytes(*bytes).into();
                }
            }
            2 => {
                for (field, bytes) in
                    fields.iter_mut().zip(rest.get(..64).ok_or(LayoutError::Truncated)?.as_chunks::<8>().0)
                {
                    *field = u64::from_be_bytes(*bytes);
                }
            }
            _ => return Err(LayoutError::Version { version }),
        }
        let [block_size, data_size, data, plaintext_tree, crypttext_tree, block_tree, share_proof, extension] = fields;
        if !fields[2..].is_sorted() || extension > u64::MAX / 2 {
            return Err(LayoutError::Order);
        }
        Ok(Layout {
            version,
            block_size,
            data_size,
            data,
            plaintext_tree,
            crypttext_tree,
            block_tree,
            share_proof,
            extension,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Encoding;
    use proptest::prelude::*;

    fn layout(size: u64) -> Layout {
        Layout::new(&Geometry::new(Encoding::new(3, 1, 10).unwrap(), size, 1 << 20).unwrap())
    }

    #[test]
    fn small_files_have_version_1_and_huge_ones_version_2() {
        let small = layout(1000);
        assert_eq!((small.version, small.data, small.plaintext_tree), (1, 0x24, 0x24 + 334));
        assert_eq!(small.header().len(), 0x24);
        // With 3 * 2^32 the data alone does not fit; with slightly less the offset of the extension does not.
        for (size, version) in [(3 << 32, 2), ((3 << 32) - 300, 2), (3 << 31, 1)] {
            assert_eq!(layout(size).version, version, "{size}");
        }
        let huge = layout(3 << 32);
        assert_eq!((huge.data, huge.header().len()), (0x44, 0x44));
        assert_eq!(&huge.header()[..12], [0, 0, 0, 2, 0, 0, 0, 0, 0, 5, 0x55, 0x56]);
        assert_eq!(huge.share_len(100), huge.extension + 108);
    }

    #[test]
    fn headers_are_read_as_they_are_written() {
        for size in [1, 1000, 5 << 20, 3 << 32, 1 << 50] {
            let layout = layout(size);
            assert_eq!(Layout::parse(&layout.header()), Ok(layout));
            assert_eq!(Layout::parse(&layout.header()[..30]), Err(LayoutError::Truncated));
        }
        assert_eq!(Layout::parse(&[0, 0, 0, 3]), Err(LayoutError::Version { version: 3 }));
        let backwards = Layout { block_tree: 5, ..layout(1000) };
        assert_eq!(Layout::parse(&backwards.header()), Err(LayoutError::Order));
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(share in proptest::collection::vec(any::<u8>(), 0..80), version in 0_u8..4) {
            let mut share = share;
            if share.len() > 4 {
                share[..4].copy_from_slice(&[0, 0, 0, version]);
            }
            let _ = Layout::parse(&share);
        }
    }
}
