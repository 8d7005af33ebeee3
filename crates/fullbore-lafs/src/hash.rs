//! Tagged hashes: SHA-256 of SHA-256 over a tag and a value, so that no value has two meanings.

use fullbore_engine::digest::{Sha256, Sha256Hasher, update_many};

/// A SHA-256 hash with a tag.
pub(crate) type Hash = [u8; 32];

/// Appends a netstring: the length in decimal, a colon, the data, a comma.
pub(crate) fn netstring(out: &mut Vec<u8>, data: &[u8]) {
    out.extend_from_slice(data.len().to_string().as_bytes());
    out.push(b':');
    out.extend_from_slice(data);
    out.push(b',');
}

/// Computes a tagged hash step by step.
#[derive(Clone, Debug)]
pub(crate) struct Tagged(Sha256Hasher);

impl Tagged {
    /// Starts with a tag.
    pub(crate) fn new(tag: &[u8]) -> Tagged {
        let mut prefix = Vec::with_capacity(tag.len() + 6);
        netstring(&mut prefix, tag);
        let mut hasher = Sha256Hasher::new();
        hasher.update(&prefix);
        Tagged(hasher)
    }

    /// Hashes the next bytes.
    pub(crate) fn update(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// Returns the hash of all bytes.
    pub(crate) fn finish(self) -> Hash {
        Sha256::of(&self.0.finish().0).0
    }
}

/// Adds the same bytes to two hashes, side by side if that is faster on this processor.
pub(crate) fn update_both(one: &mut Tagged, other: &mut Tagged, data: &[u8]) {
    let pieces = [data];
    update_many([(&mut one.0, &pieces[..]), (&mut other.0, &pieces[..])]);
}

/// The tagged hash of one value.
pub(crate) fn tagged(tag: &[u8], value: &[u8]) -> Hash {
    let mut hasher = Tagged::new(tag);
    hasher.update(value);
    hasher.finish()
}

/// The tagged hash of two values, each written as a netstring.
pub(crate) fn tagged_pair(tag: &[u8], first: &[u8], second: &[u8]) -> Hash {
    let mut text = Vec::with_capacity(tag.len() + first.len() + second.len() + 18);
    for part in [tag, first, second] {
        netstring(&mut text, part);
    }
    Sha256::of(&Sha256::of(&text).0).0
}

/// The tagged hashes of several values, side by side if that is faster on this processor.
pub(crate) fn tagged_many<D: AsRef<[u8]>>(tag: &[u8], values: &[D]) -> Vec<Hash> {
    let begun = Tagged::new(tag).0;
    let mut hashers = vec![begun; values.len()];
    update_many(hashers.iter_mut().zip(values.iter().map(std::slice::from_ref)));
    hashers.into_iter().map(|hasher| Tagged(hasher).finish()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_as_one_by_one() {
        let values: Vec<Vec<u8>> = (0..20).map(|i| vec![i as u8; i * 37]).collect();
        let one_by_one: Vec<Hash> = values.iter().map(|value| tagged(b"tag", value)).collect();
        assert_eq!(tagged_many(b"tag", &values), one_by_one);
    }

    #[test]
    fn both_are_as_one_by_one() {
        let (mut one, mut other) = (Tagged::new(b"tag"), Tagged::new(b"another tag"));
        let data = [7; 1000];
        update_both(&mut one, &mut other, &data);
        assert_eq!((one.finish(), other.finish()), (tagged(b"tag", &data), tagged(b"another tag", &data)));
    }

    #[test]
    fn a_tag_is_no_part_of_the_value() {
        assert_ne!(tagged(b"a", b"bc"), tagged(b"ab", b"c"));
        assert_ne!(tagged_pair(b"t", b"a", b"bc"), tagged_pair(b"t", b"ab", b"c"));
    }
}
