//! Encodes a file into shares, segment by segment.
//!
//! [`convergent_key`] needs a first pass over the file; a random key does not. Then [`Encoder::segment`] takes the
//! plaintext in order and encrypts it. Each [`Segment`] it returns may be encoded and hashed by any thread
//! ([`Segment::encode`]). [`Encoder::add`] collects the hashes in any order, and [`Encoder::finish`] gives the cap, and
//! for each share the bytes after its blocks. Memory: the segments in progress, and 32 bytes per block for the trees.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use super::cap::{Chk, Key, first_half};
use super::cipher::Cipher;
use super::code::Code;
use super::extension::{Extension, extension_hash};
use super::geometry::{Encoding, Geometry};
use super::hash::{Hash, Tagged, netstring, tagged, tagged_many, update_both};
use super::layout::Layout;
use super::merkle::Tree;

/// Derives a convergent key: equal files with the same secret and encoding get the same key.
#[derive(Debug)]
pub(crate) struct KeyHasher(Tagged);

impl KeyHasher {
    /// Starts with a file of this geometry. `secret` is the node's convergence secret. It may be empty; then everybody
    /// who has the file can find out that it is stored.
    pub(crate) fn new(geometry: &Geometry, secret: &[u8]) -> KeyHasher {
        let Encoding { needed, total, .. } = geometry.encoding;
        let mut tag = b"allmydata_immutable_content_to_key_with_added_secret_v1+".to_vec();
        netstring(&mut tag, secret);
        netstring(&mut tag, format!("{needed},{total},{}", geometry.segment_size).as_bytes());
        KeyHasher(Tagged::new(&tag))
    }

    /// Hashes the next bytes of the file.
    pub(crate) fn update(&mut self, plaintext: &[u8]) {
        self.0.update(plaintext);
    }

    /// Returns the key for the content.
    pub(crate) fn finish(self) -> Key {
        first_half(&self.0.finish())
    }
}

/// The convergent key of a file in memory.
pub fn convergent_key(geometry: &Geometry, secret: &[u8], plaintext: &[u8]) -> Key {
    let mut hasher = KeyHasher::new(geometry, secret);
    hasher.update(plaintext);
    hasher.finish()
}

const CRYPTTEXT_LEAF: &[u8] = b"allmydata_crypttext_segment_v1";

/// The hash of one segment's ciphertext.
pub(super) fn crypttext_leaf(ciphertext: &[u8]) -> Hash {
    tagged(CRYPTTEXT_LEAF, ciphertext)
}

/// The hashes of blocks.
pub(super) fn block_leaves<D: AsRef<[u8]>>(blocks: &[D]) -> Vec<Hash> {
    tagged_many(b"allmydata_encoded_subshare_v1", blocks)
}

/// Why shares cannot be made: wrong length, or wrong hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// A segment of the wrong length.
    #[error("segment {segment} has {found} bytes; {expected} were announced: the file changed while it was read")]
    Length {
        /// Number of the segment.
        segment: u64,
        /// Bytes given.
        found: u64,
        /// Bytes expected.
        expected: u64,
    },
    /// Shares made again would differ from those that the file had.
    #[error("the shares do not have the hashes that the cap vouches for")]
    Different,
    /// The file ended before its last segment.
    #[error("{missing} of {segments} segments were not encoded")]
    Missing {
        /// Number of missing segments.
        missing: u64,
        /// Number of all segments.
        segments: u64,
    },
}

/// A stored file whose shares are made again, by its URI extension block, whose hash is in the cap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Original {
    /// The block as stored. Other client versions have written other fields.
    pub block: Vec<u8>,
    /// The parsed block.
    pub extension: Extension,
}

/// What shares are made of.
#[derive(Clone)]
pub enum Input {
    /// The file itself, encrypted by this key.
    Plaintext(Key),
    /// The ciphertext of a file that has shares already.
    Ciphertext(Arc<Original>),
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Input::Plaintext(_) => "Plaintext(…)",
            Input::Ciphertext(_) => "Ciphertext(…)",
        })
    }
}

/// Encodes one file into shares.
pub struct Encoder {
    geometry: Geometry,
    layout: Layout,
    input: Input,
    code: Arc<Code>,
    cipher: Option<Cipher>,
    crypttext: Tagged,
    /// Segments encrypted so far.
    taken: u64,
    added: u64,
    crypttext_leaves: Vec<Hash>,
    /// Hashes of blocks, per share.
    block_leaves: Vec<Vec<Hash>>,
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Encoder({:?}, segment {})", self.geometry, self.taken)
    }
}

impl Input {
    /// Length of the URI extension block for this geometry, in bytes.
    pub(crate) fn extension_len(&self, geometry: Geometry) -> u64 {
        match self {
            Input::Plaintext(_) => Extension::length(geometry),
            Input::Ciphertext(original) => original.block.len() as u64,
        }
    }
}

impl Encoder {
    /// Starts a file to be encrypted by `key`. `code` fits to the geometry's encoding; files may share it.
    ///
    /// # Panics
    /// If `code` is for other numbers than the geometry.
    pub fn new(geometry: Geometry, key: Key, code: Arc<Code>) -> Encoder {
        Encoder::of(geometry, Input::Plaintext(key), code)
    }

    /// Starts a file, from its plaintext or from the ciphertext of a stored file.
    ///
    /// # Panics
    /// As [`Encoder::new`].
    pub fn of(geometry: Geometry, input: Input, code: Arc<Code>) -> Encoder {
        let total = usize::from(geometry.encoding.total);
        assert!(code.is(geometry.encoding.needed, geometry.encoding.total), "the code of the file's encoding");
        Encoder {
            geometry,
            layout: Layout::new(&geometry),
            code,
            cipher: match &input {
                Input::Plaintext(key) => Some(Cipher::at(key, 0)),
                Input::Ciphertext(_) => None,
            },
            input,
            crypttext: Tagged::new(b"allmydata_crypttext_v1"),
            taken: 0,
            added: 0,
            crypttext_leaves: vec![[0; 32]; geometry.segments as usize],
            block_leaves: vec![vec![[0; 32]; geometry.segments as usize]; total],
        }
    }

    /// The layout of each share.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Length of each share in bytes.
    pub fn share_len(&self) -> u64 {
        self.layout.share_len(self.input.extension_len(self.geometry))
    }

    /// Takes the next segment of the file, the first `length` bytes of `memory`, and encrypts it. Its blocks are made
    /// in the same memory, which may have room for them already ([`Geometry::segment_memory`]). `home` gets the memory
    /// back when the last block is dropped.
    ///
    /// # Errors
    /// [`EncodeError::Length`] unless the segment has the length that its number in the file demands.
    pub fn segment(
        &mut self,
        mut memory: Vec<u8>,
        length: usize,
        home: Option<ReturnBuffer>,
    ) -> Result<Segment, EncodeError> {
        let index = self.taken;
        let (found, expected) = (memory.len().min(length) as u64, self.geometry.segment_len(index));
        if found != expected || expected == 0 {
            return Err(EncodeError::Length { segment: index, found, expected });
        }
        let ciphertext = &mut memory[..length];
        if let Some(cipher) = &mut self.cipher {
            cipher.apply(ciphertext);
        }
        let mut leaf = Tagged::new(CRYPTTEXT_LEAF);
        update_both(&mut self.crypttext, &mut leaf, ciphertext);
        self.taken += 1;
        let encoding = self.geometry.encoding;
        let blocks = Blocks { memory, home };
        Ok(Segment { index, encoding, length, crypttext: leaf.finish(), blocks, code: Arc::clone(&self.code) })
    }

    /// Adds the hashes of an encoded segment to the trees.
    pub fn add(&mut self, hashes: &SegmentHashes) {
        let Some(leaf) = self.crypttext_leaves.get_mut(hashes.index as usize) else { return };
        *leaf = hashes.crypttext;
        for (leaves, hash) in self.block_leaves.iter_mut().zip(&hashes.blocks) {
            leaves[hashes.index as usize] = *hash;
        }
        self.added += 1;
    }

    /// Returns the cap and the ends of all shares, once every segment is encoded and added.
    ///
    /// # Errors
    /// [`EncodeError::Missing`] if some segments were not taken, or their hashes not added. [`EncodeError::Different`]
    /// if a stored file would get other hashes than it has.
    pub fn finish(self) -> Result<Finished, EncodeError> {
        let segments = self.geometry.segments;
        let missing = segments.saturating_sub(self.taken.min(self.added));
        if missing > 0 {
            return Err(EncodeError::Missing { missing, segments });
        }
        let crypttext = Tree::new(&self.crypttext_leaves);
        let mut roots = Vec::with_capacity(self.block_leaves.len());
        for leaves in &self.block_leaves {
            roots.push(*Tree::new(leaves).root());
        }
        let shares = Tree::new(&roots);
        let extension = Extension {
            geometry: self.geometry,
            crypttext_hash: Some(self.crypttext.finish()),
            crypttext_root: *crypttext.root(),
            share_root: *shares.root(),
        }
        .to_bytes();
        let (key, extension) = match &self.input {
            Input::Plaintext(key) => (*key, extension),
            Input::Ciphertext(original) => {
                let Extension { crypttext_root, share_root, .. } = original.extension;
                if (crypttext_root, share_root) != (*crypttext.root(), *shares.root()) {
                    return Err(EncodeError::Different);
                }
                (Key::default(), original.block.clone())
            }
        };
        let Encoding { needed, total, .. } = self.geometry.encoding;
        let cap = Chk { key, extension_hash: extension_hash(&extension), needed, total, size: self.geometry.size };
        let crypttext = Bytes::copy_from_slice(crypttext.nodes().as_flattened());
        Ok(Finished { cap, layout: self.layout, crypttext, block_leaves: self.block_leaves, shares, extension })
    }
}

/// A segment, encrypted and not yet encoded.
pub struct Segment {
    index: u64,
    encoding: Encoding,
    /// Length of the ciphertext at the beginning of the memory, and its hash.
    length: usize,
    crypttext: Hash,
    blocks: Blocks,
    code: Arc<Code>,
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({}, {} bytes)", self.index, self.length)
    }
}

/// Receives the memory of a segment when its last block is dropped.
pub(crate) type ReturnBuffer = Box<dyn FnOnce(Vec<u8>) + Send + Sync>;

/// The memory of all blocks of a segment.
struct Blocks {
    memory: Vec<u8>,
    home: Option<ReturnBuffer>,
}

impl Drop for Blocks {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home(std::mem::take(&mut self.memory));
        }
    }
}

impl AsRef<[u8]> for Blocks {
    fn as_ref(&self) -> &[u8] {
        &self.memory
    }
}

impl Segment {
    /// Makes the blocks, and all hashes of them. This is the main work of an upload; any thread may do it.
    pub fn encode(self) -> Encoded {
        let (needed, total) = (usize::from(self.encoding.needed), usize::from(self.encoding.total));
        let Segment { index, length, crypttext, mut blocks, code, .. } = self;
        let block = length.div_ceil(needed);
        let memory = &mut blocks.memory;
        if memory.len() < total * block {
            memory.resize(total * block, 0);
        }
        let (data, rest) = memory.split_at_mut(needed * block);
        // The ciphertext is the first k blocks; zeros after it fill the last of them.
        data[length..].fill(0);
        code.encode(data, &mut rest[..(total - needed) * block], block);
        let memory = Bytes::from_owner(blocks);
        let blocks: Vec<Bytes> = (0..total).map(|share| memory.slice(share * block..(share + 1) * block)).collect();
        let hashes = SegmentHashes { index, crypttext, blocks: block_leaves(&blocks) };
        Encoded { blocks, hashes }
    }
}

/// The blocks of a segment, by share.
#[derive(Debug)]
pub struct Encoded {
    /// One block per share.
    pub blocks: Vec<Bytes>,
    /// The input of [`Encoder::add`].
    pub hashes: SegmentHashes,
}

/// The hashes of a segment.
#[derive(Debug, Clone)]
pub struct SegmentHashes {
    /// Number of the segment.
    pub index: u64,
    crypttext: Hash,
    blocks: Vec<Hash>,
}

impl SegmentHashes {
    /// Hash of the segment's ciphertext.
    pub(crate) fn crypttext(&self) -> &Hash {
        &self.crypttext
    }
}

/// A file all of whose blocks are made.
#[derive(Debug)]
pub struct Finished {
    /// The right to read the file. Made from ciphertext, it has no usable key.
    pub cap: Chk,
    /// The layout of each share.
    pub layout: Layout,
    /// All nodes of the tree over the segments' ciphertext.
    crypttext: Bytes,
    block_leaves: Vec<Vec<Hash>>,
    shares: Tree,
    extension: Vec<u8>,
}

impl Finished {
    /// The bytes of a share after its blocks; `None` if there is no such share.
    pub fn trailer(&self, share: u16) -> Option<Vec<Bytes>> {
        let leaves = self.block_leaves.get(usize::from(share))?;
        let blocks = Tree::new(leaves);
        let proof = self.shares.proof(usize::from(share));
        Some(self.layout.trailer(&self.crypttext, blocks.nodes(), &proof, &self.extension))
    }
}

/// Encodes a file in memory; returns its cap and its shares. For small files and tests.
///
/// # Errors
/// [`EncodeError::Length`] or [`EncodeError::Missing`] if `plaintext` is not as long as the geometry says.
pub fn encode_whole(
    geometry: Geometry,
    key: Key,
    code: Arc<Code>,
    plaintext: &[u8],
) -> Result<(Chk, Vec<Vec<u8>>), EncodeError> {
    let mut encoder = Encoder::new(geometry, key, code);
    let header = encoder.layout().header();
    let mut shares = vec![header; usize::from(geometry.encoding.total)];
    for piece in plaintext.chunks(geometry.segment_size as usize) {
        let encoded = encoder.segment(piece.to_vec(), piece.len(), None)?.encode();
        encoder.add(&encoded.hashes);
        for (share, block) in shares.iter_mut().zip(&encoded.blocks) {
            share.extend_from_slice(block);
        }
    }
    let finished = encoder.finish()?;
    for (number, share) in (0..).zip(&mut shares) {
        finished.trailer(number).unwrap_or_default().iter().for_each(|piece| share.extend_from_slice(piece));
    }
    Ok((finished.cap, shares))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(size: u64) -> (Geometry, Arc<Code>) {
        let geometry = Geometry::new(Encoding::new(3, 1, 10).unwrap(), size, 300).unwrap();
        (geometry, Arc::new(Code::new(3, 10)))
    }

    #[test]
    fn shares_are_as_long_as_was_announced() {
        for size in [1, 56, 299, 300, 301, 1000, 5000] {
            let (geometry, code) = cut(size);
            let plaintext: Vec<u8> = (0..size).map(|i| i as u8).collect();
            let announced = Encoder::new(geometry, [7; 16], Arc::clone(&code)).share_len();
            let (cap, shares) = encode_whole(geometry, [7; 16], code, &plaintext).unwrap();
            assert!(shares.iter().all(|share| share.len() as u64 == announced), "{size}");
            assert_eq!((cap.size, cap.needed, cap.total), (size, 3, 10));
        }
    }

    #[test]
    fn segments_may_be_encoded_in_any_order() {
        let (geometry, code) = cut(1000);
        let plaintext: Vec<u8> = (0..1000_u32).map(|i| (i * i) as u8).collect();
        let (cap, shares) = encode_whole(geometry, [7; 16], Arc::clone(&code), &plaintext).unwrap();
        let mut encoder = Encoder::new(geometry, [7; 16], code);
        let segments: Vec<Segment> =
            plaintext.chunks(300).map(|piece| encoder.segment(piece.to_vec(), piece.len(), None).unwrap()).collect();
        for segment in segments.into_iter().rev() {
            encoder.add(&segment.encode().hashes);
        }
        let finished = encoder.finish().unwrap();
        assert_eq!(finished.cap, cap);
        assert!(shares[9].ends_with(&finished.trailer(9).unwrap().concat()));
        assert_eq!(finished.trailer(10), None);
    }

    #[test]
    fn what_stands_behind_the_blocks_of_all_shares_is_in_memory_once() {
        let (geometry, code) = cut(300_000);
        let mut encoder = Encoder::new(geometry, [7; 16], code);
        for _ in 0..geometry.segments {
            let segment = encoder.segment(vec![1; 300], 300, None).unwrap();
            encoder.add(&segment.encode().hashes);
        }
        let finished = encoder.finish().unwrap();
        let [one, other] = [0, 9].map(|share| finished.trailer(share).unwrap());
        let same = |(one, other): &(&Bytes, &Bytes)| one.as_ptr() == other.as_ptr();
        let shared: usize = one.iter().zip(&other).filter(same).map(|(one, _)| one.len()).sum();
        assert_eq!(shared as u64, finished.layout.block_tree - finished.layout.plaintext_tree);
    }

    #[test]
    fn a_file_that_changes_under_way_is_an_error() {
        let (geometry, code) = cut(1000);
        let mut encoder = Encoder::new(geometry, [7; 16], code);
        assert!(encoder.segment(vec![0; 300], 300, None).is_ok());
        let short = encoder.segment(vec![0; 300], 299, None).unwrap_err();
        assert_eq!(short, EncodeError::Length { segment: 1, found: 299, expected: 300 });
        assert_eq!(encoder.finish().unwrap_err(), EncodeError::Missing { missing: 4, segments: 4 });
    }

    #[test]
    fn a_buffer_returns_with_its_last_block_and_is_reused_clean() {
        let (geometry, code) = cut(299);
        let (homes, home) = std::sync::mpsc::channel();
        let encode = |mut memory: Vec<u8>| {
            memory[..299].fill(5);
            let homes = homes.clone();
            let mut encoder = Encoder::new(geometry, [7; 16], Arc::clone(&code));
            let coming = Box::new(move |memory| homes.send(memory).unwrap());
            encoder.segment(memory, 299, Some(coming)).unwrap().encode()
        };
        let first = encode(vec![0; 299]);
        let mut blocks = first.blocks.clone();
        let again = encode(vec![9; geometry.segment_memory() as usize]);
        assert_eq!((&again.blocks, &again.hashes.blocks), (&first.blocks, &first.hashes.blocks));
        drop(first);
        blocks.truncate(1);
        assert!(home.try_recv().is_err());
        blocks.clear();
        assert_eq!(home.try_recv().unwrap().len() as u64, geometry.segment_memory());
    }
}
