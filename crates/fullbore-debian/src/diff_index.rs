//! `X.diff/Index`: the patches from earlier states of an index to the current one.
//!
//! The file is one stanza with lists of `hash size name`: the states before each patch (`History`), the patches
//! uncompressed (`Patches`) and compressed (`Download`). The same fields with the prefix `X-Unmerged-` list single-step
//! patches beside merged ones.

mod publication;

use std::io::Read;

use crate::deb822::{Deb822Error, Limits, Stanza, Stanzas};
use crate::index::IndexError;
use crate::path::{self, PathError};
use crate::release::parse_size;
use fullbore_digest::Sha256;

pub use publication::{Listed, ListedPatch, OlderFile, Publication, Sha1};

/// Maximum number of lines in a list. Debian has 56 (14 days with 4 updates each); the limit is a guess.
pub(crate) const LIST_ENTRIES_MAX: usize = 10_000;

/// Hash, size and name of a patch or of the state before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffFile {
    /// File name, checked: `2026-10-30-0800.52` or `T-…-F-…`, with `.gz` in downloads.
    pub name: String,
    /// Size of the file, in bytes.
    pub size: u64,
    /// SHA-256 of the file, or of the index in that state.
    pub sha256: Sha256,
}

/// The lists of one set of patches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PatchSet {
    /// State of the index before each patch, oldest first.
    pub history: Vec<DiffFile>,
    /// Uncompressed patches, from the oldest to the newest.
    pub patches: Vec<DiffFile>,
    /// Compressed patches, as the archive serves them in the directory of the `Index`.
    pub downloads: Vec<DiffFile>,
}

/// A parsed `diff/Index`: the patches of one index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiffIndex {
    /// `SHA256-Current`: hash and size of the index after all patches.
    pub current: (Sha256, u64),
    /// `X-Patch-Precedence: merged`: each patch of `main` leads to `current` directly.
    pub merged: bool,
    /// The patches that clients apply, one after another or merged.
    pub main: PatchSet,
    /// Patches from each state to the next, if `main` has merged ones.
    pub unmerged: PatchSet,
}

impl DiffIndex {
    /// Parses an `Index` with SHA-256 lists.
    ///
    /// # Errors
    /// [`IndexError::Syntax`] if it is not a control file of one stanza; [`IndexError::Missing`] without
    /// `SHA256-Current`; [`IndexError::Invalid`] for a malformed line; [`IndexError::Path`] for an unsafe file name.
    pub fn parse(reader: impl Read) -> Result<DiffIndex, IndexError> {
        let mut stanzas = Stanzas::new(reader, Limits::RELEASE);
        let Some(stanza) = stanzas.next()? else {
            return Err(IndexError::Missing { line: 1, field: "SHA256-Current" });
        };
        let index = DiffIndex {
            current: current(&stanza)?,
            merged: is_merged(&stanza),
            main: PatchSet {
                history: list(&stanza, "SHA256-History")?,
                patches: list(&stanza, "SHA256-Patches")?,
                downloads: list(&stanza, "SHA256-Download")?,
            },
            unmerged: PatchSet {
                history: list(&stanza, "X-Unmerged-SHA256-History")?,
                patches: list(&stanza, "X-Unmerged-SHA256-Patches")?,
                downloads: list(&stanza, "X-Unmerged-SHA256-Download")?,
            },
        };
        match stanzas.next()? {
            Some(second) => Err(Deb822Error::Line { line: second.line(), what: "a second stanza" }.into()),
            None => Ok(index),
        }
    }

    /// All files in the directory of the `Index` that a mirror needs, merged and unmerged.
    pub fn downloads(&self) -> impl Iterator<Item = &DiffFile> {
        self.main.downloads.iter().chain(&self.unmerged.downloads)
    }
}

fn is_merged(stanza: &Stanza<'_>) -> bool {
    stanza.get("X-Patch-Precedence").is_some_and(|value| value.eq_ignore_ascii_case(b"merged"))
}

fn current(stanza: &Stanza<'_>) -> Result<(Sha256, u64), IndexError> {
    const FIELD: &str = "SHA256-Current";
    let value = stanza.get_text(FIELD)?.ok_or(IndexError::Missing { line: stanza.line(), field: FIELD })?;
    match hash_and_size(value, |hex| Sha256::from_hex(hex).ok()) {
        Some((hash, size, None)) => Ok((hash, size)),
        _ => Err(invalid(stanza, FIELD, value, "is not `hash size`")),
    }
}

fn list(stanza: &Stanza<'_>, field: &'static str) -> Result<Vec<DiffFile>, IndexError> {
    let mut files = Vec::new();
    for line in lines(stanza, field)? {
        let Some((sha256, size, Some(name))) = hash_and_size(line, |hex| Sha256::from_hex(hex).ok()) else {
            return Err(invalid(stanza, field, line, "is not `hash size name`"));
        };
        check_name(stanza, name)?;
        files.push(DiffFile { name: name.to_owned(), size, sha256 });
    }
    Ok(files)
}

/// The non-empty lines of a list, at most [`LIST_ENTRIES_MAX`]; none if there is no such field.
fn lines<'a>(stanza: &Stanza<'a>, field: &'static str) -> Result<Vec<&'a str>, IndexError> {
    let value = stanza.get_text(field)?.unwrap_or_default();
    let lines: Vec<&str> = value.lines().filter(|line| !line.trim().is_empty()).take(LIST_ENTRIES_MAX + 1).collect();
    if lines.len() > LIST_ENTRIES_MAX {
        let line = stanza.line();
        return Err(Deb822Error::TooLarge { line, what: "number of patches", limit: LIST_ENTRIES_MAX }.into());
    }
    Ok(lines)
}

/// Parses `hash size` or `hash size name`; `None` for anything else.
fn hash_and_size<H>(line: &str, hash: impl Fn(&[u8]) -> Option<H>) -> Option<(H, u64, Option<&str>)> {
    let mut words = line.split_ascii_whitespace();
    let hash = hash(words.next()?.as_bytes())?;
    let size = parse_size(words.next()?.as_bytes())?;
    let name = words.next();
    words.next().is_none().then_some((hash, size, name))
}

fn check_name(stanza: &Stanza<'_>, name: &str) -> Result<(), IndexError> {
    path::check_name(name)
        .map_err(|fault| IndexError::Path { line: stanza.line(), source: PathError::new(name, fault) })
}

fn invalid(stanza: &Stanza<'_>, field: &'static str, value: &str, what: &'static str) -> IndexError {
    IndexError::Invalid { line: stanza.line(), field, value: value.chars().take(120).collect(), what }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn sample(lists: &str) -> String {
        format!("SHA1-Current: da39a3ee5e6b4b0d3255bfef95601890afd80709 65\nSHA256-Current: {HASH} 65012345\n{lists}")
    }

    #[test]
    fn merged_and_unmerged_patches_are_listed() {
        let text = sample(&format!(
            "SHA256-History:\n {HASH} 64 T-2026-10-30-0800.52-F-2026-10-29-2000.12\n\
             SHA256-Patches:\n {HASH} 79 T-2026-10-30-0800.52-F-2026-10-29-2000.12\n\
             SHA256-Download:\n {HASH} 23 T-2026-10-30-0800.52-F-2026-10-29-2000.12.gz\n\
             X-Unmerged-SHA256-Download:\n {HASH} 24 2026-10-30-0800.52.gz\n {HASH} 25 2026-10-30-1400.52.gz\n\
             X-Patch-Precedence: merged\nX-DAK-Older-Patches:\n {HASH} 1 2026-10-01-0800.52.gz\n"
        ));
        let index = DiffIndex::parse(text.as_bytes()).expect("valid");
        assert!(index.merged);
        assert_eq!(index.current.1, 65_012_345);
        assert_eq!((index.main.history.len(), index.main.patches.len()), (1, 1));
        let downloads: Vec<_> = index.downloads().map(|file| (file.name.as_str(), file.size)).collect();
        assert_eq!(
            downloads,
            [
                ("T-2026-10-30-0800.52-F-2026-10-29-2000.12.gz", 23),
                ("2026-10-30-0800.52.gz", 24),
                ("2026-10-30-1400.52.gz", 25)
            ]
        );
    }

    #[test]
    fn hostile_lists_are_refused() {
        for list in [
            format!("SHA256-Download:\n {HASH} 1 ../x.gz\n"),
            format!("SHA256-Download:\n {HASH} 1 a/x.gz\n"),
            format!("SHA256-Download:\n {HASH} x a.gz\n"),
            format!("SHA256-Download:\n {HASH} a.gz\n"),
            format!("SHA256-Download:{}\n", format!("\n {HASH} 1 a.gz").repeat(LIST_ENTRIES_MAX + 1)),
            "\nA: second stanza\n".to_owned(),
        ] {
            assert!(DiffIndex::parse(sample(&list).as_bytes()).is_err(), "{}", &list[..60.min(list.len())]);
        }
        assert!(DiffIndex::parse(&b""[..]).is_err());
        assert!(DiffIndex::parse(&b"SHA1-Current: x 1\n"[..]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(SHA256-(Current|Download|History)|X-Unmerged-|: ?|\n|\n |[a-f0-9]{64}|[a-z0-9.]{1,9}| ){0,40}") {
            let _ = DiffIndex::parse(text.as_bytes());
        }
    }
}
