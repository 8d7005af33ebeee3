//! One share as seen by a reader: the bytes fetched, and what of them is proven.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::cap::Verifier;
use crate::extension::{EXTENSION_BYTES_MAX, Extension, extension_hash};
use crate::geometry::{DEFAULT_SEGMENT_BYTES, Encoding, Geometry};
use crate::hash::Hash;
use crate::layout::Layout;
use crate::merkle::{NODE_BYTES, Tree, node_count, proven_leaf};

/// Bytes of hashes fetched beyond the expected number: servers may leave gaps between the sections of a share. Also the
/// bytes allowed beyond half of its data: more is a lie, however small the segments.
const HASHES_SLACK_BYTES: u64 = 1 << 20;

/// A share whose place in the file is proven.
#[derive(Debug)]
pub(crate) struct Proven {
    pub layout: Layout,
    pub extension: Extension,
    /// The URI extension block as stored.
    pub block: Vec<u8>,
    /// Tree over the segments' ciphertext.
    pub crypttext: Tree,
    /// Tree over this share's blocks.
    pub blocks: Tree,
}

/// Why a share cannot be used, in words.
pub(crate) type Damage = String;

/// The range of all hashes of a share, from the crypttext tree to its end, with some slack.
///
/// A header alone is trusted for as many hashes as segments of the usual size have. For more, this returns `None`: the
/// URI extension block must be read first ([`extension_range`]). The cap vouches for it, and it tells the number of
/// segments.
pub(crate) fn hashes_range(
    layout: &Layout,
    cap: &Verifier,
    extension: Option<&Extension>,
) -> Result<Option<(u64, u64)>, Damage> {
    let length = hashes_bytes(layout);
    let expected = |geometry: &Geometry| hashes_bytes(&Layout::new(geometry)) + HASHES_SLACK_BYTES;
    let encoding = Encoding::new(cap.needed, 1, cap.total).map_err(|error| error.to_string())?;
    let usual = Geometry::new(encoding, cap.size, DEFAULT_SEGMENT_BYTES).map_err(|error| error.to_string())?;
    let data = cap.size.div_ceil(u64::from(cap.needed.max(1)));
    let most = extension.map_or(u64::MAX, |extension| expected(&extension.geometry)).min(data / 2 + HASHES_SLACK_BYTES);
    if length <= expected(&usual) || (extension.is_some() && length <= most) {
        return Ok(Some((layout.crypttext_tree, length)));
    }
    match extension.is_none() && length <= most {
        true => Ok(None),
        false => Err(format!("its header claims {length} bytes of hashes")),
    }
}

fn hashes_bytes(layout: &Layout) -> u64 {
    let (offset, length) = extension_range(layout);
    offset.saturating_add(length).saturating_sub(layout.crypttext_tree)
}

/// The range of the URI extension block of a share: its length field, and the most bytes it may have.
pub(crate) fn extension_range(layout: &Layout) -> (u64, u64) {
    (layout.extension, layout.length_bytes() + EXTENSION_BYTES_MAX)
}

/// Checks the URI extension block in the bytes of [`extension_range`] against the cap.
pub(crate) fn read_extension(cap: &Verifier, layout: &Layout, bytes: &[u8]) -> Result<(Extension, Vec<u8>), Damage> {
    let cut_short = || "it is cut short".to_owned();
    let (length, behind) = bytes.split_at_checked(layout.length_bytes() as usize).ok_or_else(cut_short)?;
    let length = length.iter().fold(0_u64, |sum, &byte| sum << 8 | u64::from(byte));
    if length > EXTENSION_BYTES_MAX {
        return Err("the length of its URI extension block is absurd".to_owned());
    }
    let block = behind.get(..length as usize).ok_or_else(cut_short)?;
    if extension_hash(block) != cap.extension_hash {
        return Err("the hash of its URI extension block is wrong".to_owned());
    }
    let extension = Extension::parse(block, cap.needed, cap.total, cap.size).map_err(|error| error.to_string())?;
    Ok((extension, block.to_vec()))
}

/// Proves a share from `hashes`, its bytes from the crypttext tree to its end.
pub(crate) fn prove(cap: &Verifier, share: u16, layout: Layout, hashes: &[u8]) -> Result<Proven, Damage> {
    let from = layout.crypttext_tree;
    let part = |begin: u64, end: u64| -> Result<&[u8], Damage> {
        let (begin, end) = (begin.saturating_sub(from) as usize, end.saturating_sub(from) as usize);
        hashes.get(begin..end).ok_or_else(|| "it is cut short".to_owned())
    };
    let behind = hashes.get(layout.extension.saturating_sub(from) as usize..).unwrap_or_default();
    let (extension, block) = read_extension(cap, &layout, behind)?;
    let geometry = extension.geometry;
    if layout.block_size != geometry.block_size() || layout.data_size != geometry.share_data() {
        return Err("its header contradicts its URI extension block".to_owned());
    }
    // Bounds the allocation: the number of segments is proven, but may be huge.
    let tree = node_count(geometry.segments).saturating_mul(NODE_BYTES);
    if layout.block_tree - layout.crypttext_tree < tree || layout.share_proof - layout.block_tree < tree {
        return Err("its hash trees are too short".to_owned());
    }
    let segments = geometry.segments as usize;
    let read = |begin: u64, what: &str| -> Result<Tree, Damage> {
        Tree::from_stored(part(begin, begin + tree)?, segments).ok_or_else(|| format!("its {what} tree is malformed"))
    };
    let crypttext = read(layout.crypttext_tree, "crypttext")?;
    if *crypttext.root() != extension.crypttext_root {
        return Err("its crypttext hash tree is damaged".to_owned());
    }
    let blocks = read(layout.block_tree, "block")?;
    let proof: BTreeMap<u16, Hash> = part(layout.share_proof, layout.extension)?
        .as_chunks::<34>()
        .0
        .iter()
        .map(|[high, low, hash @ ..]| (u16::from_be_bytes([*high, *low]), *hash))
        .collect();
    let leaf = proven_leaf(usize::from(cap.total), usize::from(share), &proof, &extension.share_root);
    if leaf != Some(*blocks.root()) {
        return Err("its block hash tree, or its proof, is damaged".to_owned());
    }
    Ok(Proven { layout, extension, block, crypttext, blocks })
}

/// Bytes fetched of a share, by offset, without overlaps.
#[derive(Debug, Default)]
pub(super) struct Fetched(BTreeMap<u64, Bytes>);

impl Fetched {
    pub(super) fn insert(&mut self, offset: u64, bytes: Bytes) {
        self.0.insert(offset, bytes);
    }

    /// The bytes of a range if all are here, joined if they came in pieces.
    pub(super) fn get(&self, offset: u64, length: u64) -> Option<Bytes> {
        let (&first, _) = self.0.range(..=offset).next_back()?;
        let end = offset.checked_add(length)?;
        let mut at = offset;
        let mut joined = Vec::new();
        for (&begin, bytes) in self.0.range(first..) {
            let from = usize::try_from(at.checked_sub(begin)?).ok()?;
            let to = usize::try_from(end - begin).ok()?.min(bytes.len());
            if from > to {
                return None;
            }
            if joined.is_empty() && begin + to as u64 == end {
                return Some(bytes.slice(from..to));
            }
            joined.extend_from_slice(&bytes[from..to]);
            at = begin + to as u64;
            if at == end {
                return Some(joined.into());
            }
        }
        None
    }

    /// Drops everything before an offset.
    pub(super) fn forget(&mut self, offset: u64) {
        while let Some((&begin, bytes)) = self.0.first_key_value()
            && begin + bytes.len() as u64 <= offset
        {
            self.0.pop_first();
        }
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use crate::encode::encode_whole;
    use std::sync::Arc;

    #[test]
    fn every_damaged_byte_of_the_hashes_is_found() {
        let geometry = Geometry::new(Encoding::new(2, 1, 5).unwrap(), 1000, 300).unwrap();
        let plaintext: Vec<u8> = (0..1000).map(|i| i as u8).collect();
        let (cap, shares) = encode_whole(geometry, [3; 16], Arc::new(Code::new(2, 5)), &plaintext).unwrap();
        let cap = cap.verifier();
        for (number, share) in (0..).zip(&shares) {
            let layout = Layout::parse(share).unwrap();
            let (from, _) = hashes_range(&layout, &cap, None).unwrap().unwrap();
            let hashes = &share[from as usize..];
            prove(&cap, number, layout, hashes).unwrap();
            assert!(prove(&cap, (number + 1) % 5, layout, hashes).is_err(), "in another's place");
            for length in 0..hashes.len() {
                assert!(prove(&cap, number, layout, &hashes[..length]).is_err());
            }
            let mut unnoticed = 0;
            for at in 0..hashes.len() {
                let mut damaged = hashes.to_vec();
                damaged[at] ^= 0x40;
                unnoticed += usize::from(prove(&cap, number, layout, &damaged).is_ok());
            }
            // Changes in unused bytes stay unnoticed. These are the inner nodes of both stored trees, which are
            // computed (3 nodes, 4 segments), and hashes of proof nodes with unused numbers.
            assert!(unnoticed <= 2 * 3 * 32, "{unnoticed}");
        }
    }

    #[test]
    fn ranges_are_found_in_what_was_fetched() {
        let mut fetched = Fetched::default();
        fetched.insert(10, Bytes::from_static(b"abcdef"));
        fetched.insert(16, Bytes::from_static(b"gh"));
        assert_eq!(fetched.get(12, 3).unwrap(), "cde");
        assert_eq!(fetched.get(14, 4).unwrap(), "efgh", "in two pieces");
        assert_eq!((fetched.get(9, 1), fetched.get(14, 5), fetched.get(30, 1)), (None, None, None));
        fetched.insert(20, Bytes::from_static(b"xy"));
        assert_eq!(fetched.get(16, 5), None, "a gap");
        fetched.forget(16);
        assert_eq!((fetched.get(12, 1), fetched.get(17, 1).is_some()), (None, true));
    }
}
