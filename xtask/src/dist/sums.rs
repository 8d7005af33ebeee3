//! `SHA256SUMS`: checksums of all artefacts, in the format of sha256sum, sorted by name, ready to be signed.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::Path;

use fullbore_digest::{Sha256, Sha256Hasher};

pub const NAME: &str = "SHA256SUMS";

/// The artefacts of an earlier run into this directory.
pub fn listed(directory: &Path) -> io::Result<BTreeSet<String>> {
    match fs::read_to_string(directory.join(NAME)) {
        Ok(text) => Ok(names(&text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
        Err(error) => Err(error),
    }
}

fn names(text: &str) -> BTreeSet<String> {
    let name = |line: &str| Some(line.split_once("  ")?.1.to_owned());
    text.lines().filter_map(name).filter(|name| !name.contains('/')).collect()
}

/// Writes the checksums of these files of the directory.
pub fn write(directory: &Path, names: &BTreeSet<String>) -> io::Result<()> {
    let mut text = String::new();
    for name in names {
        text += &format!("{}  {name}\n", sum(&directory.join(name))?.to_hex().as_str());
    }
    fs::write(directory.join(NAME), text)
}

fn sum(path: &Path) -> io::Result<Sha256> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    let mut hasher = Sha256Hasher::new();
    hasher.read_to_end(File::open(path).map_err(named)?).map_err(named)?;
    Ok(hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_sorted_by_name_and_can_be_read_back() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            fs::write(directory.path().join(name), "").unwrap();
        }
        let names = BTreeSet::from(["b".to_owned(), "a".to_owned()]);
        write(directory.path(), &names).unwrap();
        let text = fs::read_to_string(directory.path().join(NAME)).unwrap();
        let empty = Sha256::EMPTY.to_hex();
        assert_eq!(text, format!("{0}  a\n{0}  b\n", empty.as_str()));
        assert_eq!(listed(directory.path()).unwrap(), names);
    }
}
