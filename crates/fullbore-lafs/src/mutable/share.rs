//! One share of a mutable file: its header, the proof that its owner wrote it, and where the blocks are.
//!
//! There are two layouts. SDMF (version 0) has one segment, and one salt for it in the header. MDMF (version 1) has
//! many, each block behind the salt of its segment. The owner's key signs sequence number, root hash and all sizes; the
//! cap has the hash of that key. The signed root proves the rest: it is that of the tree over the shares, whose leaves
//! are the roots of the trees over each share's blocks.

use std::collections::BTreeMap;
use std::ops::Range;

use aws_lc_rs::signature::{RSA_PSS_2048_8192_SHA256, UnparsedPublicKey};

use crate::geometry::SEGMENT_BYTES;
use crate::hash::{Hash, tagged};
use crate::merkle::{NODE_BYTES, Tree, node_count, proven_leaf};

/// The first bytes of a share, which hold everything but the blocks and their tree. The stock client's keys take less
/// than 2,400 bytes of them, 4096-bit keys less than 4,000.
pub const HEAD_BYTES: u64 = 4096;

/// Longest segment of an SDMF file in bytes, all in memory. The stock client has no bound; directories with a million
/// entries are smaller.
const SDMF_BYTES_MAX: u64 = 512 << 20;

/// Most segments of a file: 128 GiB in segments of 128 KiB, which the stock client writes. The tree over them takes 64
/// MiB, all in memory.
const SEGMENTS_MAX: u64 = 1 << 20;

/// Largest file in bytes: all offsets stay far below 2^64.
const FILE_BYTES_MAX: u64 = 1 << 56;

/// Length of a salt in bytes.
const SALT_BYTES: u64 = 16;

/// Length of the signed part of the header, before the offsets.
const SDMF_SIGNED: usize = 75;
const MDMF_SIGNED: usize = 59;
/// Length of the whole header.
const SDMF_HEADER: usize = 107;
const MDMF_HEADER: usize = 123;

/// Why a share of a mutable file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MutableShareError {
    /// The bytes end before the header says.
    #[error("the share is cut short")]
    Truncated,
    /// Neither SDMF nor MDMF.
    #[error("unknown mutable share version {version}, expected 0 or 1")]
    Version {
        /// The version in the share.
        version: u8,
    },
    /// Numbers that do not describe a possible file, or describe too large a file.
    #[error("its header is malformed: {field}")]
    Header {
        /// The field at fault.
        field: &'static str,
    },
    /// Another public key than the one of the cap.
    #[error("its public key is not the one of the cap")]
    Key,
    /// A wrong signature.
    #[error("its signature is wrong")]
    Signature,
    /// A hash that is wrong.
    #[error("{what} is damaged")]
    Hash {
        /// What does not have its hash.
        what: String,
    },
}

use MutableShareError::{Header as Malformed, Truncated};

/// The header of a share: the same in all shares of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MutableHeader {
    /// Whether the file has several segments, each with a salt.
    pub is_mdmf: bool,
    /// Version of the file, incremented with each write.
    pub sequence: u64,
    /// Root of the tree over the shares.
    pub root: Hash,
    /// Salt of the only segment of an SDMF file.
    pub salt: [u8; 16],
    /// Shares that a reader needs, k.
    pub needed: u16,
    /// Number of shares made, n.
    pub total: u16,
    /// Length of each segment but the last in bytes; a multiple of k.
    pub segment_size: u64,
    /// Size of the file in bytes.
    pub size: u64,
    /// Number of segments; an empty file has none.
    pub segments: u64,
    /// The signed bytes: equal in all shares of one version, different in others.
    pub signed: Vec<u8>,
    public_key: Range<usize>,
    signature: Range<usize>,
    proof: Range<usize>,
    private_key: Range<u64>,
    block_tree: u64,
    data: u64,
    end: u64,
}

impl MutableHeader {
    /// Parses the header of a share from its first bytes; [`HEAD_BYTES`] are enough.
    ///
    /// # Errors
    /// [`MutableShareError::Truncated`] if the bytes end within the header; [`MutableShareError::Version`] for an
    /// unknown version; [`MutableShareError::Header`] for impossible numbers or offsets.
    pub fn parse(head: &[u8]) -> Result<MutableHeader, MutableShareError> {
        let is_mdmf = match head.first() {
            None => return Err(Truncated),
            Some(0) => false,
            Some(1) => true,
            Some(&version) => return Err(MutableShareError::Version { version }),
        };
        let (signed, header) = if is_mdmf { (MDMF_SIGNED, MDMF_HEADER) } else { (SDMF_SIGNED, SDMF_HEADER) };
        let fields = head.get(..header).ok_or(Truncated)?;
        let number =
            |at: usize, length: usize| fields[at..at + length].iter().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        let (mut root, mut salt) = ([0; 32], [0; 16]);
        root.copy_from_slice(&fields[9..41]);
        if !is_mdmf {
            salt.copy_from_slice(&fields[41..57]);
        }
        let sizes = signed - 18;
        let (needed, total) = (number(sizes, 1) as u16, number(sizes + 1, 1) as u16);
        let (segment_size, size) = (number(sizes + 2, 8), number(sizes + 10, 8));
        let offset = |index: usize| match (is_mdmf, index) {
            (true, index) => number(signed + 8 * index, 8),
            (false, 0..4) => number(signed + 4 * index, 4),
            (false, index) => number(signed + 16 + 8 * (index - 4), 8),
        };
        // SDMF: key, signature, proof, tree, data, private key. MDMF: private key, proof, signature, key, data, tree.
        let (public_key, signature, proof, block_tree, data, data_end) = match is_mdmf {
            false => {
                (header as u64..offset(0), offset(0)..offset(1), offset(1)..offset(2), offset(2), offset(3), offset(4))
            }
            true => (offset(3)..offset(4), offset(2)..offset(3), offset(1)..offset(2), offset(6), offset(5), offset(6)),
        };
        let within = |range: Range<u64>, field| {
            let is_good = header as u64 <= range.start && range.start <= range.end && range.end <= HEAD_BYTES;
            is_good.then_some(range.start as usize..range.end as usize).ok_or(Malformed { field })
        };
        let (private_key, end) = match is_mdmf {
            false => (offset(4)..offset(5), offset(5)),
            true => (offset(0)..offset(1), offset(7)),
        };
        let segments = segments(is_mdmf, needed, total, segment_size, size)?;
        let parsed = MutableHeader {
            is_mdmf,
            sequence: number(1, 8),
            root,
            salt,
            needed,
            total,
            segment_size,
            size,
            segments,
            signed: fields[..signed].to_vec(),
            public_key: within(public_key, "public key")?,
            signature: within(signature, "signature")?,
            proof: within(proof, "share hash chain")?,
            private_key,
            block_tree,
            data,
            end,
        };
        if data < header as u64 || data > FILE_BYTES_MAX || data_end < data || data_end - data < parsed.data_len() {
            return Err(Malformed { field: "share data" });
        }
        if block_tree < header as u64 || block_tree > FILE_BYTES_MAX {
            return Err(Malformed { field: "block hash tree" });
        }
        Ok(parsed)
    }

    /// Length of a block of this segment in bytes, without its salt.
    pub fn block_len(&self, segment: u64) -> u64 {
        self.segment_len(segment).div_ceil(u64::from(self.needed))
    }

    /// Bytes of the file in a segment.
    pub fn segment_len(&self, segment: u64) -> u64 {
        self.size.saturating_sub(segment.saturating_mul(self.segment_size)).min(self.segment_size)
    }

    /// Distance between the beginnings of two blocks in bytes.
    fn stride(&self) -> u64 {
        self.segment_size / u64::from(self.needed) + self.salt_len()
    }

    fn salt_len(&self) -> u64 {
        if self.is_mdmf { SALT_BYTES } else { 0 }
    }

    fn data_len(&self) -> u64 {
        match self.segments {
            0 => 0,
            segments => (segments - 1) * self.stride() + self.salt_len() + self.block_len(segments - 1),
        }
    }

    /// The range of the blocks of some segments, with their salts.
    pub fn blocks_range(&self, segments: &Range<u64>) -> Range<u64> {
        let end = match segments.end >= self.segments {
            true => self.data_len(),
            false => segments.end * self.stride(),
        };
        self.data + (segments.start * self.stride()).min(end)..self.data + end
    }

    /// The range of the owner's encrypted key. Nothing proves that the key is there.
    pub fn private_key(&self) -> Range<u64> {
        self.private_key.clone()
    }

    /// The end of the share. Nothing proves it.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The range of the nodes that lead to the signed root.
    pub fn proof_range(&self) -> Range<u64> {
        self.proof.start as u64..self.proof.end as u64
    }

    /// The range of the tree over the share's blocks.
    pub fn block_tree_range(&self) -> Range<u64> {
        self.block_tree..self.block_tree + node_count(self.segments) * NODE_BYTES
    }

    /// Splits the bytes of [`Self::blocks_range`] into salt and block of each segment.
    ///
    /// # Errors
    /// [`MutableShareError::Truncated`] if there are too few bytes.
    pub fn split<'a>(
        &self,
        segments: &Range<u64>,
        mut bytes: &'a [u8],
    ) -> Result<Vec<SaltedBlock<'a>>, MutableShareError> {
        let mut blocks = Vec::new();
        for segment in segments.clone() {
            let mut salt = self.salt;
            if self.is_mdmf {
                let (own, rest) = bytes.split_first_chunk::<16>().ok_or(Truncated)?;
                (salt, bytes) = (*own, rest);
            }
            let (block, rest) = bytes.split_at_checked(self.block_len(segment) as usize).ok_or(Truncated)?;
            bytes = rest;
            blocks.push((salt, block));
        }
        Ok(blocks)
    }

    /// The hash of a block.
    pub fn block_leaf(&self, salt: &[u8; 16], block: &[u8]) -> Hash {
        const TAG: &[u8] = b"allmydata_encoded_subshare_v1";
        match self.is_mdmf {
            true => tagged(TAG, &[&salt[..], block].concat()),
            false => tagged(TAG, block),
        }
    }
}

/// Number of segments of a file of these numbers.
fn segments(is_mdmf: bool, needed: u16, total: u16, segment_size: u64, size: u64) -> Result<u64, MutableShareError> {
    if needed == 0 || needed > total {
        return Err(Malformed { field: "numbers of shares" });
    }
    if size > FILE_BYTES_MAX {
        return Err(Malformed { field: "size" });
    }
    let largest = if is_mdmf { *SEGMENT_BYTES.end() } else { SDMF_BYTES_MAX };
    if segment_size > largest || !segment_size.is_multiple_of(needed.into()) || (segment_size == 0 && size > 0) {
        return Err(Malformed { field: "segment size" });
    }
    match size {
        0 => Ok(0),
        size if is_mdmf && size.div_ceil(segment_size) <= SEGMENTS_MAX => Ok(size.div_ceil(segment_size)),
        size if !is_mdmf && segment_size == size.next_multiple_of(needed.into()) => Ok(1),
        _ => Err(Malformed { field: "segment size" }),
    }
}

/// The salt of a segment, and one of its blocks.
pub type SaltedBlock<'a> = ([u8; 16], &'a [u8]);

/// A share whose header the owner has signed.
#[derive(Debug, Clone)]
pub struct SignedShare {
    /// Number of the share.
    pub share: u16,
    /// The parsed header.
    pub header: MutableHeader,
    /// The nodes from its own root to the signed one.
    proof: BTreeMap<u16, Hash>,
}

impl SignedShare {
    /// Checks the key and the signature in the first bytes of a share. `fingerprint` is the key's hash in the cap.
    ///
    /// # Errors
    /// The errors of [`MutableHeader::parse`]; [`MutableShareError::Key`] for another key;
    /// [`MutableShareError::Signature`] if the signature is wrong; [`MutableShareError::Header`] if the share's number
    /// is not below n.
    pub fn verify(share: u16, head: &[u8], fingerprint: &Hash) -> Result<SignedShare, MutableShareError> {
        let header = MutableHeader::parse(head)?;
        let part = |range: &Range<usize>| head.get(range.clone()).ok_or(Truncated);
        let (key, signature) = (part(&header.public_key)?, part(&header.signature)?);
        if tagged(b"allmydata_mutable_pubkey_to_fingerprint_v1", key) != *fingerprint {
            return Err(MutableShareError::Key);
        }
        let public = UnparsedPublicKey::new(&RSA_PSS_2048_8192_SHA256, key);
        public.verify(&header.signed, signature).map_err(|_| MutableShareError::Signature)?;
        if share >= header.total {
            return Err(Malformed { field: "its number" });
        }
        let (nodes, _) = part(&header.proof)?.as_chunks::<34>();
        let proof = nodes.iter().map(|[high, low, hash @ ..]| (u16::from_be_bytes([*high, *low]), *hash)).collect();
        Ok(SignedShare { share, header, proof })
    }

    /// The tree over the blocks of an MDMF share, from the bytes of [`MutableHeader::block_tree_range`].
    ///
    /// # Errors
    /// [`MutableShareError::Truncated`] if it has the wrong length; [`MutableShareError::Hash`] if it is not the signed
    /// tree.
    pub fn block_tree(&self, stored: &[u8]) -> Result<Tree, MutableShareError> {
        let tree = Tree::from_stored(stored, self.header.segments as usize).ok_or(Truncated)?;
        self.prove(tree)
    }

    /// The tree over the only block of an SDMF share.
    ///
    /// # Errors
    /// [`MutableShareError::Hash`] if the block is not the signed one.
    pub fn tree_of(&self, block: &[u8]) -> Result<Tree, MutableShareError> {
        self.prove(Tree::new(&[self.header.block_leaf(&self.header.salt, block)]))
    }

    fn prove(&self, tree: Tree) -> Result<Tree, MutableShareError> {
        let total = usize::from(self.header.total);
        // Writers leave out the leaf, which is the root of the tree over the blocks.
        let mut proof = self.proof.clone();
        proof.insert((total.next_power_of_two() - 1) as u16 + self.share, *tree.root());
        match proven_leaf(total, usize::from(self.share), &proof, &self.header.root) {
            Some(_) => Ok(tree),
            None => {
                Err(MutableShareError::Hash { what: "its block, its block hash tree, or its share hash chain".into() })
            }
        }
    }

    /// Checks the block of a segment.
    ///
    /// # Errors
    /// [`MutableShareError::Hash`] if the block does not have its hash.
    pub fn check(&self, tree: &Tree, segment: u64, salt: &[u8; 16], block: &[u8]) -> Result<(), MutableShareError> {
        match tree.leaf(segment as usize) == Some(&self.header.block_leaf(salt, block)) {
            true => Ok(()),
            false => Err(MutableShareError::Hash { what: format!("block {segment}") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::Code;
    use aws_lc_rs::encoding::{AsDer, PublicKeyX509Der};
    use aws_lc_rs::rand::SystemRandom;
    use aws_lc_rs::rsa::KeySize;
    use aws_lc_rs::signature::{KeyPair, RSA_PSS_SHA256, RsaKeyPair};
    use proptest::prelude::*;
    use std::sync::LazyLock;

    /// Length of a segment in these 2-of-3 files.
    const SEGMENT: usize = 100;

    static KEY: LazyLock<RsaKeyPair> = LazyLock::new(|| RsaKeyPair::generate(KeySize::Rsa2048).unwrap());

    fn public_key() -> Vec<u8> {
        let der: PublicKeyX509Der<'_> = KEY.public_key().as_der().unwrap();
        der.as_ref().to_vec()
    }

    fn fingerprint() -> Hash {
        tagged(b"allmydata_mutable_pubkey_to_fingerprint_v1", &public_key())
    }

    fn leaf(is_mdmf: bool, salt: &[u8; 16], block: &[u8]) -> Hash {
        let hashed = if is_mdmf { [&salt[..], block].concat() } else { block.to_vec() };
        tagged(b"allmydata_encoded_subshare_v1", &hashed)
    }

    /// The shares of a ciphertext, as the specification has them, and the offset of their blocks.
    fn shares(is_mdmf: bool, content: &[u8]) -> Vec<Vec<u8>> {
        let segment = if is_mdmf { SEGMENT } else { content.len().next_multiple_of(2) };
        let code = Code::new(2, 3);
        let salt = |number: usize| if is_mdmf { [number as u8; 16] } else { [9; 16] };
        let mut blocks: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 3];
        for piece in content.chunks(segment.max(1)) {
            let block = piece.len().div_ceil(2);
            let mut data = piece.to_vec();
            data.resize(2 * block, 0);
            let mut parity = vec![0; block];
            code.encode(&data, &mut parity, block);
            for (share, bytes) in data.chunks(block).chain([&parity[..]]).enumerate() {
                blocks[share].push(bytes.to_vec());
            }
        }
        let leaves = |share: usize| -> Vec<Hash> {
            blocks[share].iter().enumerate().map(|(number, block)| leaf(is_mdmf, &salt(number), block)).collect()
        };
        let trees: Vec<Tree> = (0..3).map(|share| Tree::new(&leaves(share))).collect();
        let roots: Vec<Hash> = trees.iter().map(|tree| *tree.root()).collect();
        let all = Tree::new(&roots);
        let mut signed = vec![u8::from(is_mdmf)];
        signed.extend_from_slice(&7_u64.to_be_bytes());
        signed.extend_from_slice(all.root());
        if !is_mdmf {
            signed.extend_from_slice(&salt(0));
        }
        signed.extend_from_slice(&[2, 3]);
        signed.extend_from_slice(&(segment as u64).to_be_bytes());
        signed.extend_from_slice(&(content.len() as u64).to_be_bytes());
        let key = public_key();
        let mut signature = vec![0; KEY.public_modulus_len()];
        KEY.sign(&RSA_PSS_SHA256, &SystemRandom::new(), &signed, &mut signature).unwrap();
        (0..3)
            .map(|share| {
                // Without the leaf, as the stock client writes it.
                let own = 3 + share as u16;
                let nodes = all.proof(share).into_iter().filter(|(node, _)| *node != own);
                let proof: Vec<u8> = nodes.flat_map(|(node, hash)| [&node.to_be_bytes()[..], &hash].concat()).collect();
                let tree = trees[share].nodes().concat();
                let data: Vec<u8> = (blocks[share].iter().enumerate())
                    .flat_map(
                        |(number, block)| if is_mdmf { [&salt(number)[..], block].concat() } else { block.clone() },
                    )
                    .collect();
                let private = vec![5; 1220];
                let parts: [&[u8]; 6] = match is_mdmf {
                    false => [&key, &signature, &proof, &tree, &data, &private],
                    true => [&private, &proof, &signature, &key, &data, &tree],
                };
                let mut offsets = Vec::new();
                let mut at = if is_mdmf { MDMF_HEADER } else { SDMF_HEADER };
                for part in &parts {
                    offsets.push(at);
                    at += part.len();
                }
                offsets.push(at);
                let mut bytes = signed.clone();
                match is_mdmf {
                    // Signature, proof, tree, data; private key and end.
                    false => {
                        offsets[1..5].iter().for_each(|at| bytes.extend_from_slice(&(*at as u32).to_be_bytes()));
                        offsets[5..].iter().for_each(|at| bytes.extend_from_slice(&(*at as u64).to_be_bytes()));
                    }
                    // Private key, proof, signature, key, end of the key, data, tree, end.
                    true => {
                        let all = [0, 1, 2, 3, 4, 4, 5, 6].map(|index: usize| offsets[index]);
                        all.iter().for_each(|at| bytes.extend_from_slice(&(*at as u64).to_be_bytes()));
                    }
                }
                parts.iter().for_each(|part| bytes.extend_from_slice(part));
                bytes
            })
            .collect()
    }

    /// The blocks of a share if all of them are proven.
    fn blocks(share: u16, bytes: &[u8]) -> Result<Vec<Vec<u8>>, MutableShareError> {
        let head = &bytes[..bytes.len().min(HEAD_BYTES as usize)];
        let signed = SignedShare::verify(share, head, &fingerprint())?;
        let header = &signed.header;
        let part = |range: Range<u64>| bytes.get(range.start as usize..range.end as usize).ok_or(Truncated);
        if header.segments == 0 {
            return Ok(Vec::new());
        }
        let all = 0..header.segments;
        let split = header.split(&all, part(header.blocks_range(&all))?)?;
        let tree = match header.is_mdmf {
            true => signed.block_tree(part(header.block_tree_range())?)?,
            false => signed.tree_of(split[0].1)?,
        };
        for (segment, (salt, block)) in all.zip(&split) {
            signed.check(&tree, segment, salt, block)?;
        }
        Ok(split.into_iter().map(|(_, block)| block.to_vec()).collect())
    }

    #[test]
    fn any_k_shares_are_the_file() {
        for is_mdmf in [false, true] {
            for size in [0, 1, 2, 99, 100, 101, 250, 799] {
                let content: Vec<u8> = (0..size).map(|i| i as u8).collect();
                let shares = shares(is_mdmf, &content);
                let all: Vec<Vec<Vec<u8>>> =
                    (0..).zip(&shares).map(|(number, share)| blocks(number, share).unwrap()).collect();
                let header = MutableHeader::parse(&shares[0]).unwrap();
                assert_eq!((header.sequence, header.size, header.total), (7, size as u64, 3));
                let mut joined = Vec::new();
                for segment in 0..header.segments {
                    let some = [(1, &all[1][segment as usize][..]), (2, &all[2][segment as usize][..])];
                    let mut data = Code::new(2, 3).decode(&some).unwrap();
                    data.truncate(header.segment_len(segment) as usize);
                    joined.extend(data);
                }
                assert_eq!(joined, content, "{is_mdmf} {size}");
            }
        }
    }

    #[test]
    fn every_damaged_byte_is_found_or_changes_nothing() {
        let content: Vec<u8> = (0..250_u32).map(|i| (i * 3) as u8).collect();
        for is_mdmf in [false, true] {
            let share = shares(is_mdmf, &content).remove(1);
            let right = blocks(1, &share).unwrap();
            assert!(blocks(0, &share).is_err(), "in another's place");
            let (mut found, mut harmless) = (0, 0);
            // A signature check per position is slow: every seventh byte stands for all.
            for at in (0..share.len()).step_by(7) {
                let mut damaged = share.clone();
                damaged[at] ^= 0x10;
                match blocks(1, &damaged) {
                    Ok(blocks) => {
                        assert_eq!(blocks, right, "byte {at}");
                        harmless += 1;
                    }
                    Err(_) => found += 1,
                }
            }
            // The private key is not read here, nor are a tree's inner nodes, which are computed.
            assert!(found > 100 && harmless < 1220 / 7 + 30, "{found} {harmless}");
            for length in [0, 1, 50, 100, 500, 1500, share.len() - 1].into_iter().filter(|_| is_mdmf) {
                assert!(blocks(1, &share[..length]).is_err(), "{length} bytes");
            }
            let other = SignedShare::verify(1, &share[..share.len().min(4096)], &[1; 32]);
            assert_eq!(other.unwrap_err(), MutableShareError::Key);
        }
    }

    #[test]
    fn sizes_that_are_too_large_are_refused() {
        let share = shares(true, &[1; 250]).remove(0);
        let at = |position: usize, value: u64| {
            let mut changed = share.clone();
            changed[position..position + 8].copy_from_slice(&value.to_be_bytes());
            MutableHeader::parse(&changed)
        };
        assert!(at(MDMF_SIGNED - 16, 100).is_ok());
        for segment in [0, 101, 1 << 40, u64::MAX] {
            assert!(at(MDMF_SIGNED - 16, segment).is_err(), "segments of {segment}");
        }
        for size in [1 << 40, u64::MAX] {
            assert!(at(MDMF_SIGNED - 8, size).is_err(), "{size} bytes");
        }
        for offset in 0..7 {
            for value in [u64::MAX, 1 << 60] {
                assert!(at(MDMF_SIGNED + 8 * offset, value).is_err() || offset == 0, "offset {offset}");
            }
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_the_parser_panic(
            is_mdmf: bool, bytes in proptest::collection::vec(any::<u8>(), 0..90), at in 0_usize..130,
            cut in 0_usize..5000,
        ) {
            static SHARES: LazyLock<[Vec<u8>; 2]> =
                LazyLock::new(|| [false, true].map(|is_mdmf| shares(is_mdmf, &[3; 250]).remove(0)));
            let mut share = SHARES[usize::from(is_mdmf)].clone();
            for (offset, byte) in bytes.iter().enumerate() {
                share[at + offset] = *byte;
            }
            share.truncate(cut);
            if let Ok(header) = MutableHeader::parse(&share) {
                let range = header.blocks_range(&(0..header.segments));
                prop_assert!(range.start <= range.end);
                let _ = header.block_tree_range();
                let _ = header.split(&(0..header.segments.min(9)), &share);
            }
        }
    }
}
