//! Directories: lists of names and caps, which are themselves the content of files. Here they are made; `entries` reads them.

mod entries;

use std::collections::BTreeMap;
use std::collections::btree_map;

use unicode_normalization::UnicodeNormalization;

use super::cap::Cap;
use super::hash::netstring;
pub use entries::{DIRECTORY_BYTES_MAX, DirectoryError, ENTRIES_MAX, Entry, Time, entries};

/// A name that a directory of a grid cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Names in a grid are Unicode.
    #[error("the name {name:?} is not UTF-8, and names in a grid are")]
    NotUnicode {
        /// As far as it can be shown.
        name: String,
    },
    /// Two names that are one in Unicode's composed form, in which a grid keeps them.
    #[error("two files have the name {name:?} after Unicode normalisation (NFC)")]
    Twice {
        /// The name.
        name: String,
    },
}

/// A name as a grid has it: in Unicode's composed form.
pub fn in_grid(name: &str) -> String {
    name.nfc().collect()
}

/// An immutable directory that is being made.
#[derive(Debug, Default)]
pub struct Directory {
    children: BTreeMap<String, (Cap, Option<Time>)>,
}

impl Directory {
    /// Adds a child, and when it was last written to.
    ///
    /// # Errors
    /// [`NameError`] if the directory cannot hold an entry of this name.
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

    /// The content to be put: per child, in the order of names, a netstring of name, cap, nothing (the
    /// place of a right to write) and metadata. Of these there is the one time that is the file's own, wherever it is: with
    /// more, the same tree would be another directory on each machine.
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

    /// The cap of the directory, from that of its packed content.
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
