//! The files of a configuration directory that apt reads, in its order.
//!
//! By the rules of run-parts(8), apt ignores leftovers of editors and package managers, such as `x.list.dpkg-old`. So does
//! this module, because such files decide on trust.

use std::io;
use std::path::{Path, PathBuf};

/// Files read from one directory; systems have a handful.
const FILES_MAX: usize = 1000;

/// The files of a directory with one of these extensions.
///
/// # Errors
/// The error of reading the directory; `Other` for more than 1000 files.
pub(crate) fn files_of(directory: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let entry = entry?;
        let file = entry.path();
        let is_part = entry.file_name().to_str().is_some_and(|name| is_part(name, endings));
        // Links are followed.
        if is_part && std::fs::metadata(&file).is_ok_and(|status| status.is_file()) {
            files.push(file);
        }
        if files.len() > FILES_MAX {
            return Err(io::Error::other(format!("more than {FILES_MAX} files")));
        }
    }
    files.sort();
    Ok(files)
}

/// Whether a file of this name is read.
fn is_part(name: &str, endings: &[&str]) -> bool {
    let has_ending = name.rsplit_once('.').is_some_and(|(stem, ending)| !stem.is_empty() && endings.contains(&ending));
    has_ending
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.:".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_apt_passes_over_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["b.list", "a.sources", "A_0-1:x.y.list"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        for name in [".a.list", ".list", "a b.list", "a~.list", "ä.list", "a.list.save", "a.LIST", "list", "a#.sources"]
        {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        std::fs::create_dir(directory.path().join("d.list")).unwrap();
        std::os::unix::fs::symlink("b.list", directory.path().join("link.list")).unwrap();
        std::os::unix::fs::symlink("nothing", directory.path().join("loose.list")).unwrap();
        let files = files_of(directory.path(), &["sources", "list"]).unwrap();
        let names: Vec<_> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["A_0-1:x.y.list", "a.sources", "b.list", "link.list"]);
    }

    #[test]
    fn more_files_than_are_read_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        for number in 0..=FILES_MAX {
            std::fs::write(directory.path().join(format!("{number}.list")), "").unwrap();
        }
        assert!(files_of(directory.path(), &["list"]).unwrap_err().to_string().contains("more than"));
    }
}
