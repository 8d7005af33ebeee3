//! Names of the temporary files that a copy makes in the destination.
//!
//! They are in the same directory as the final names, begin with a dot, and have suffixes that no other program uses. A
//! source may itself be the unfinished destination of another copy. Its files with such names are left out and
//! reported, unless a filter excludes them.

/// Longest temporary name, in bytes: eCryptfs' limit (143), the lowest of the file systems in use.
const OWN_BYTES: usize = 143;

/// The file at the root of the destination while a copy writes there. It is the lock, and it marks an interrupted copy.
pub(crate) const MARKER: &[u8] = b".fullbore-copy";
const PART: &[u8] = b".fullbore-part";
const BLOCKS: &[u8] = b".fullbore-blocks";
const NEXT: &[u8] = b".fullbore-next";

/// Name of the unfinished file for a final name.
pub(crate) fn part(name: &[u8]) -> Vec<u8> {
    with_suffix(name, PART)
}

/// Name of the journal of the unfinished file.
pub(crate) fn blocks(name: &[u8]) -> Vec<u8> {
    with_suffix(name, BLOCKS)
}

/// Name of the new journal while it is written. A rename then replaces the old one.
pub(crate) fn next_blocks(name: &[u8]) -> Vec<u8> {
    with_suffix(name, NEXT)
}

/// Whether a name has the form of a temporary name of a copy.
pub(crate) fn is_ours(name: &[u8]) -> bool {
    name == MARKER || name.starts_with(b".") && [PART, BLOCKS, NEXT].iter().any(|suffix| name.ends_with(suffix))
}

/// Explains why the copy leaves out a file of the source with such a name, and what the user can do.
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
        // A name that is too long for a suffix is replaced by its hash.
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
