//! Merkle trees over hashes: complete binary trees, root first, level by level.
//!
//! Leaves are filled up to a power of two; node i has the children 2i+1 and 2i+2. A stored tree is a list of all its
//! nodes. A share proves its place in the tree of shares by its leaf and the siblings on the way to the root.

use std::collections::BTreeMap;

use super::hash::{Hash, tagged, tagged_pair};

/// Length of a node of the tree in bytes.
pub(crate) const NODE_BYTES: u64 = 32;

fn empty_leaf(index: usize) -> Hash {
    tagged(b"Merkle tree empty leaf", index.to_string().as_bytes())
}

fn parent(left: &Hash, right: &Hash) -> Hash {
    tagged_pair(b"Merkle tree internal node", left, right)
}

/// Number of nodes of the tree over this many leaves, at least one.
pub(crate) fn node_count(leaves: u64) -> u64 {
    leaves.max(1).next_power_of_two() * 2 - 1
}

/// A complete binary hash tree, as Tahoe-LAFS builds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    nodes: Vec<Hash>,
    leaves: usize,
}

impl Tree {
    /// The tree over these leaves; over one empty leaf if there are none.
    pub fn new(leaves: &[Hash]) -> Tree {
        let width = leaves.len().max(1).next_power_of_two();
        let mut nodes = vec![[0; 32]; 2 * width - 1];
        for (index, node) in nodes[width - 1..].iter_mut().enumerate() {
            *node = leaves.get(index).copied().unwrap_or_else(|| empty_leaf(index));
        }
        for index in (0..width - 1).rev() {
            nodes[index] = parent(&nodes[2 * index + 1], &nodes[2 * index + 2]);
        }
        Tree { nodes, leaves: leaves.len() }
    }

    /// Reads a stored tree of this many leaves; `None` if it has the wrong length. Only the leaves are used: the inner
    /// nodes are computed, so that the root proves them.
    pub fn from_stored(stored: &[u8], leaves: usize) -> Option<Tree> {
        let width = leaves.max(1).next_power_of_two();
        if stored.len() as u64 != node_count(leaves as u64) * NODE_BYTES {
            return None;
        }
        let (nodes, _) = stored.as_chunks::<32>();
        Some(Tree::new(nodes.get(width - 1..width - 1 + leaves)?))
    }

    /// Hash at the root.
    pub fn root(&self) -> &Hash {
        &self.nodes[0]
    }

    /// The hash of a leaf; `None` if there is no such leaf.
    pub(crate) fn leaf(&self, index: usize) -> Option<&Hash> {
        let width = self.nodes.len().div_ceil(2);
        self.nodes.get(width - 1 + index).filter(|_| index < self.leaves)
    }

    /// Hashes of all nodes, the root first.
    pub fn nodes(&self) -> &[Hash] {
        &self.nodes
    }

    /// The nodes that prove a leaf, in the stock client's order: the leaf, and each sibling on the way up. The root is
    /// known, and left out. In a tree of one leaf: that leaf.
    pub fn proof(&self, leaf: usize) -> Vec<(u16, Hash)> {
        stock_order(&proof_nodes(self.leaves, leaf))
            .into_iter()
            .map(|index| (index as u16, self.nodes[index]))
            .collect()
    }
}

/// Numbers of the nodes that prove a leaf of a tree of this many leaves.
pub fn proof_nodes(leaves: usize, leaf: usize) -> Vec<usize> {
    let width = leaves.max(1).next_power_of_two();
    let own = width - 1 + leaf;
    let mut nodes = Vec::new();
    let mut index = own;
    while index > 0 {
        nodes.push(if index % 2 == 1 { index + 1 } else { index - 1 });
        index = (index - 1) / 2;
    }
    nodes.push(own);
    nodes
}

/// The order in which the stock client writes a proof: that of a set of small integers in CPython. Readers accept any
/// order. With the same one shares are identical byte for byte, whoever made them, which repairs and tests compare.
fn stock_order(nodes: &[usize]) -> Vec<usize> {
    /// Adjacent slots tried before a jump (`LINEAR_PROBES` in CPython's setobject.c).
    const NEXT_SLOTS: usize = 9;
    fn insert(slots: &mut [Option<usize>], node: usize) {
        let mask = slots.len() - 1;
        let (mut at, mut perturb) = (node & mask, node);
        loop {
            let last = if at + NEXT_SLOTS <= mask { at + NEXT_SLOTS } else { at };
            if let Some(free) = (at..=last).find(|&slot| slots[slot].is_none()) {
                slots[free] = Some(node);
                return;
            }
            perturb >>= 5;
            at = (at * 5 + 1 + perturb) & mask;
        }
    }
    let mut slots = vec![None; 8];
    for (before, &node) in nodes.iter().enumerate() {
        insert(&mut slots, node);
        let used = before + 1;
        if used * 5 >= (slots.len() - 1) * 3 {
            let mut larger = vec![None; (used * 4 + 1).next_power_of_two().max(8)];
            slots.into_iter().flatten().for_each(|node| insert(&mut larger, node));
            slots = larger;
        }
    }
    slots.into_iter().flatten().collect()
}

/// The leaf proven by `proof`, if the proof leads to `root`.
pub(crate) fn proven_leaf(leaves: usize, leaf: usize, proof: &BTreeMap<u16, Hash>, root: &Hash) -> Option<Hash> {
    let width = leaves.max(1).next_power_of_two();
    let node = |index: usize| proof.get(&u16::try_from(index).ok()?);
    let mut index = width - 1 + leaf;
    let proven = *node(index)?;
    let mut hash = proven;
    while index > 0 {
        hash = if index % 2 == 1 { parent(&hash, node(index + 1)?) } else { parent(node(index - 1)?, &hash) };
        index = (index - 1) / 2;
    }
    (hash == *root).then_some(proven)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: usize) -> Vec<Hash> {
        (0..count).map(|index| [index as u8; 32]).collect()
    }

    #[test]
    fn every_leaf_is_proven_and_no_other_in_its_place() {
        for count in [1, 2, 3, 5, 10, 16, 255, 256] {
            let tree = Tree::new(&leaves(count));
            assert_eq!(tree.nodes().len() as u64, node_count(count as u64));
            for leaf in 0..count {
                let proof: BTreeMap<u16, Hash> = tree.proof(leaf).into_iter().collect();
                assert_eq!(proven_leaf(count, leaf, &proof, tree.root()), tree.leaf(leaf).copied());
                for index in proof.keys() {
                    let mut damaged = proof.clone();
                    if let Some(hash) = damaged.get_mut(index) {
                        hash[0] ^= 1;
                    }
                    assert_eq!(proven_leaf(count, leaf, &damaged, tree.root()), None, "{count} {leaf} {index}");
                }
            }
        }
    }

    #[test]
    fn proofs_are_in_the_stock_order() {
        let order = |leaves, leaf| stock_order(&proof_nodes(leaves, leaf));
        assert_eq!(order(1, 0), [0]);
        assert_eq!(order(3, 2), [1, 5, 6]);
        assert_eq!(order(5, 0), [8, 2, 4, 7]);
        assert_eq!(order(5, 2), [2, 9, 10, 3]);
        assert_eq!(order(5, 3), [10, 9, 2, 3]);
        assert_eq!(order(255, 0), [256, 32, 64, 128, 4, 2, 8, 16, 255]);
        assert_eq!(order(255, 3), [64, 257, 32, 2, 4, 258, 8, 16, 127]);
    }

    #[test]
    fn a_stored_tree_is_as_good_as_its_leaves() {
        let tree = Tree::new(&leaves(5));
        let mut stored = tree.nodes().concat();
        stored[0] ^= 1;
        assert_eq!(Tree::from_stored(&stored, 5).unwrap().root(), tree.root(), "the stored root does not count");
        let last = (node_count(5) - 4) as usize * 32;
        stored[last] ^= 1;
        assert_ne!(Tree::from_stored(&stored, 5).unwrap().root(), tree.root());
        assert_eq!(Tree::from_stored(&stored[1..], 5), None);
    }
}
