//! Checks a mirrored tree against what the archive's maker knows, file by file.

use std::{collections::BTreeMap, fmt, fs, io, path::Path};

use crate::{archive::ArchiveFile, archive::State, digest::Digest};

/// Something in a mirror that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// The file is not there.
    Missing(String),
    /// Size or content differ.
    Wrong(String),
    /// A temporary that nobody cleaned up.
    Leftover(String),
    /// The file or directory could not be read.
    Unreadable(String),
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Problem::Missing(path) => write!(f, "{path}: missing"),
            Problem::Wrong(path) => write!(f, "{path}: wrong content"),
            Problem::Leftover(path) => write!(f, "{path}: a leftover"),
            Problem::Unreadable(path) => write!(f, "{path}: cannot be read"),
        }
    }
}

/// Compares each expected file with the one in `mirror`, by SHA-256.
pub fn files(mirror: &Path, expected: &BTreeMap<&str, &ArchiveFile>) -> Vec<Problem> {
    let check = |(path, file): (&&str, &&ArchiveFile)| compare(mirror, path, file.size, file.sha256);
    expected.iter().filter_map(check).collect()
}

/// Compares the signed files of a suite (byte for byte) and each index in the mirror with the
/// archive. An index that the mirror has no copy of is no problem here: what is wanted is
/// the client's choice.
pub fn suite(mirror: &Path, state: &State, codename: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for name in ["InRelease", "Release", "Release.gpg"] {
        let path = format!("dists/{codename}/{name}");
        match (fs::read(state.root.join(&path)), fs::read(mirror.join(&path))) {
            (Ok(there), Ok(here)) if there == here => {}
            (Ok(_), Ok(_)) => problems.push(Problem::Wrong(path)),
            (Ok(_), Err(_)) => problems.push(Problem::Missing(path)),
            (Err(_), _) => {}
        }
    }
    for index in state.indexes.iter().filter(|index| index.suite == codename) {
        let path = format!("dists/{codename}/{}", index.path);
        if mirror.join(&path).exists() {
            problems.extend(compare(mirror, &path, index.size, index.sha256));
        }
    }
    problems
}

/// Temporaries (`.NAME.part`) beneath `dists/` and `pool/` of a mirror.
pub fn leftovers(mirror: &Path) -> Vec<Problem> {
    let mut problems = Vec::new();
    for top in ["dists", "pool"] {
        let mut visit = |path: &Path| {
            let name = path.file_name().map(|name| name.to_string_lossy().to_string()).unwrap_or_default();
            if name.starts_with('.') && name.ends_with(".part") {
                problems.push(Problem::Leftover(path.display().to_string()));
            }
        };
        if let Err(error) = walk(&mirror.join(top), &mut visit)
            && error.kind() != io::ErrorKind::NotFound
        {
            problems.push(Problem::Unreadable(format!("{top}: {error}")));
        }
    }
    problems
}

/// Calls `visit` for every file that is neither a directory nor a link.
pub fn walk(directory: &Path, visit: &mut impl FnMut(&Path)) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            walk(&entry.path(), visit)?;
        } else if kind.is_file() {
            visit(&entry.path());
        }
    }
    Ok(())
}

fn compare(mirror: &Path, path: &str, size: u64, sha256: Digest) -> Option<Problem> {
    match Digest::of_file(&mirror.join(path)) {
        Ok((digest, length)) if digest == sha256 && length == size => None,
        Ok(_) => Some(Problem::Wrong(path.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Problem::Missing(path.to_string())),
        Err(error) => Some(Problem::Unreadable(format!("{path}: {error}"))),
    }
}
