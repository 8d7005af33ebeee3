//! Directories: lists of names and caps, stored as the content of files. This module makes them; `entries` reads them.

mod entries;

use std::collections::BTreeMap;
use std::collections::btree_map;

use unicode_normalization::UnicodeNormalization;

use super::cap::Cap;
use super::hash::netstring;
pub use entries::{DIRECTORY_BYTES_MAX, DirectoryError, ENTRIES_MAX, Entry, Time, entries};

/// Why a directory of a grid cannot have this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not Unicode, which names in a grid have to be.
    #[error("the name {name:?} is not UTF-8, and names in a grid are")]
    NotUnicode {
        /// The name, as far as it can be shown.
        name: String,
    },
    /// Two names with the same composed form (Unicode NFC), which a grid stores.
    #[error("two files have the name {name:?} after Unicode normalisation (NFC)")]
    Twice {
        /// The name in its composed form.
        name: String,
    },
}

/// Converts a name to the form stored in a grid: Unicode's composed form (NFC).
pub fn in_grid(name: &str) -> String {
    name.nfc().collect()
}

/// An immutable directory under construction.
#[derive(Debug, Default)]
pub struct Directory {
    children: BTreeMap<String, (Cap, Option<Time>)>,
}

impl Directory {
    /// Adds a child with its last modification.
    ///
    /// # Errors
    /// [`NameError::NotUnicode`] if the name is not UTF-8; [`NameError::Twice`] if the directory has the name already.
    pub fn add(&mut self, name: &[u8], cap: Cap, modified: Option<Time>) -> Result<(), NameError> {
        let lossy = || String::from_utf8_lossy(name).into_owned();
        let text = std::str::from_utf8(name).map_err(|_| NameError::NotUnicode { name: lossy() })?;
        match self.children.entry(in_grid(text)) {
            btree_map::Entry::Vacant(place) => {
                place.insert((cap, modified));
                Ok(())
            }
            btree_map::Entry::Occupied(_) => Err(NameError::Twice { name: lossy() }),
        }
    }

    /// The packed content. Per child, in the order of names: a netstring of name, cap, an empty write cap, and
    /// metadata. The metadata holds only the file's own modification time: with more, the same tree would give
    /// different directories on different machines.
    pub fn pack(&self) -> Vec<u8> {
        let mut packed = Vec::new();
        for (name, (cap, modified)) in &self.children {
            let metadata =
                modified.map_or_else(|| "{}".to_owned(), |time| format!("{{\"mtime\": {}}}", time.to_json()));
            let mut entry = Vec::new();
            netstring(&mut entry, name.as_bytes());
            netstring(&mut entry, cap.to_text().as_bytes());
            netstring(&mut entry, b"");
            netstring(&mut entry, metadata.as_bytes());
            netstring(&mut packed, &entry);
        }
        packed
    }

    /// The cap of the directory, from the cap of its packed content.
    pub fn cap(content: Cap) -> Cap {
        match content {
            Cap::Literal(data) => Cap::LiteralDirectory(data),
            Cap::Chk(chk) => Cap::Directory(chk),
            other => other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_are_packed_in_order_of_their_normalised_names() {
        let mut directory = Directory::default();
        let time = Time { seconds: 9, nanoseconds: 500_000_000 };
        directory.add(b"b", Cap::Literal(b"x".to_vec()), Some(time)).unwrap();
        directory.add("a\u{308}".as_bytes(), Cap::Literal(Vec::new()), None).unwrap();
        let packed = String::from_utf8(directory.pack()).unwrap();
        assert_eq!(packed, "39:1:b,10:URI:LIT:pa,0:,14:{\"mtime\": 9.5},,24:2:ä,8:URI:LIT:,0:,2:{},,");
        assert_eq!(
            directory.add("ä".as_bytes(), Cap::Literal(Vec::new()), None),
            Err(NameError::Twice { name: "ä".into() })
        );
        assert!(directory.add(b"\xff", Cap::Literal(Vec::new()), None).is_err());
    }
}
