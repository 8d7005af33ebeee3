//! Names that a copy gives to files of its own in the destination.
//!
//! They stand beside the final names, begin with a dot, and end in words that no other program uses.
//! The source's own files of such names (it is the torn destination of another copy) are left out
//! and reported, unless they are excluded.

/// Longest name of our own, in bytes: what eCryptfs takes (143), the shortest of the file systems in use.
const OWN_BYTES: usize = 143;

/// At the root of the destination while a copy writes there: lock, and sign of a copy that was torn.
pub(crate) const MARKER: &[u8] = b".fullbore-copy";
const PART: &[u8] = b".fullbore-part";
const BLOCKS: &[u8] = b".fullbore-blocks";
const NEXT: &[u8] = b".fullbore-next";

/// The unfinished file for a name.
pub(crate) fn part(name: &[u8]) -> Vec<u8> {
    with_suffix(name, PART)
}

/// The journal of the unfinished file for a name.
pub(crate) fn blocks(name: &[u8]) -> Vec<u8> {
    with_suffix(name, BLOCKS)
}

/// The journal that takes its place, while it is being written.
pub(crate) fn next_blocks(name: &[u8]) -> Vec<u8> {
    with_suffix(name, NEXT)
}

/// Whether a name is one of ours.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name == MARKER || name.starts_with(b".") && [PART, BLOCKS, NEXT].iter().any(|suffix| name.ends_with(suffix))
}

/// Why a file of the source that has such a name is left out, and what to do.
pub(crate) fn explain(name: &[u8]) -> String {
    let pattern = match name == MARKER {
        true => "/.fullbore-copy",
        false => ".*.fullbore-*",
    };
    format!(
        "unfinished copies have files of such names, and this one would be taken for such a file; rename it, or leave it \
         out with --exclude '{pattern}'"
    )
}

fn with_suffix(name: &[u8], suffix: &[u8]) -> Vec<u8> {
    let mut own = Vec::with_capacity(OWN_BYTES);
    own.push(b'.');
    if 1 + name.len() + suffix.len() <= OWN_BYTES {
        own.extend_from_slice(name);
    } else {
        // Too long to be extended: its hash stands for it.
        own.extend_from_slice(blake3::hash(name).to_hex().as_bytes());
    }
    own.extend_from_slice(suffix);
    own
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::entry::NAME_BYTES;

    #[test]
    fn names_of_any_length_have_a_part() {
        assert_eq!(part(b"a"), b".a.fullbore-part");
        let (one, two) = ([b'x'; NAME_BYTES], [b'y'; NAME_BYTES]);
        assert!(part(&one).len() <= OWN_BYTES && part(&one) != part(&two) && part(&one) != blocks(&one));
        assert!(
            is_ours(&part(&one))
                && is_ours(&blocks(b"a"))
                && is_ours(&next_blocks(b"a"))
                && is_ours(MARKER)
                && !is_ours(b"a.fullbore-part")
        );
    }
}
