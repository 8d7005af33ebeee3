//! Symbolic links of other tools below a suite's directory.
//!
//! Debian's `installer-ARCH/current` is a link to a directory named by a date; rsync copies it as a link. fullbore never
//! writes through a link. It reads files behind links within the mirror, and publishing replaces the links by directories.

use std::collections::VecDeque;
use std::io::ErrorKind;

use fullbore_engine::files::{FileError, Kind};

use super::tree::{Status, Tree};

/// Maximum number of links in one path, as in Linux (path_resolution(7)).
const LINKS_MAX: usize = 40;

/// Real path of a file; `None` if it does not exist, or is outside of the mirror.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn resolve(tree: &dyn Tree, path: &str) -> Result<Option<String>, FileError> {
    let mut ahead: VecDeque<String> = path.split('/').map(str::to_owned).collect();
    let mut real: Vec<String> = Vec::new();
    let mut links = 0;
    while let Some(part) = ahead.pop_front() {
        match part.as_str() {
            "" | "." => continue,
            ".." if real.pop().is_none() => return Ok(None),
            ".." => continue,
            _ => real.push(part),
        }
        let target = match tree.read_link(&real.join("/")) {
            Ok(Some(target)) => target,
            Ok(None) => continue,
            Err(error) if error.kind() == Some(ErrorKind::NotADirectory) => return Ok(None),
            Err(error) => return Err(error),
        };
        links += 1;
        if target.starts_with('/') || links > LINKS_MAX {
            return Ok(None);
        }
        real.pop();
        target.split('/').rev().for_each(|part| ahead.push_front(part.to_owned()));
    }
    Ok((!real.is_empty()).then(|| real.join("/")))
}

/// The status of a file, with its real path if links lead to it.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn follow(tree: &dyn Tree, path: &str) -> Result<Option<(Status, Option<String>)>, FileError> {
    match tree.stat(path) {
        Ok(Some(status)) if status.kind == Kind::Symlink => {}
        Err(FileError::Symlink { .. }) => {}
        other => return Ok(other?.map(|status| (status, None))),
    }
    let Some(real) = resolve(tree, path)? else { return Ok(None) };
    Ok(tree.stat(&real)?.map(|status| (status, Some(real))))
}

/// Like [`Tree::stat`], but `None` for a path behind a link.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn stat(tree: &dyn Tree, path: &str) -> Result<Option<Status>, FileError> {
    match tree.stat(path) {
        Err(FileError::Symlink { .. }) => Ok(None),
        other => other,
    }
}

/// First symbolic link between `directory` and a path below it.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn first_link<'p>(tree: &dyn Tree, directory: &str, path: &'p str) -> Result<Option<&'p str>, FileError> {
    let below = if directory.is_empty() { 0 } else { directory.len() + 1 };
    for (slash, _) in path.match_indices('/').filter(|(slash, _)| *slash > below) {
        if tree.read_link(&path[..slash])?.is_some() {
            return Ok(Some(&path[..slash]));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use fullbore_engine::files::Root;

    use super::*;

    #[test]
    fn links_are_read_through_as_long_as_they_stay_inside() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        root.write_part("dists/x/i/2025/images/a", b"content").unwrap().finish().unwrap();
        let link = |target: &str, name: &str| {
            std::os::unix::fs::symlink(target, directory.path().join("dists/x/i").join(name)).unwrap();
        };
        link("2025", "current");
        link("./current/../current", "latest");
        link("/etc", "absolute");
        link("../../../..", "outside");
        link("round", "round");
        link("2025/images/a", "file");
        let real = "dists/x/i/2025/images/a";
        for path in ["current/images/a", "latest/images/a", "file"] {
            let (status, found) = follow(&root, &format!("dists/x/i/{path}")).unwrap().unwrap();
            assert_eq!((status.size, found.as_deref()), (7, Some(real)), "{path}");
        }
        assert_eq!(follow(&root, real).unwrap().unwrap().1, None);
        for path in ["absolute/hosts", "outside/etc/hosts", "round/a", "current/none", "2025/images/a/b", "none/a"] {
            let path = format!("dists/x/i/{path}");
            assert!(!matches!(follow(&root, &path), Ok(Some(_))), "{path}");
        }
        assert!(stat(&root, "dists/x/i/current/images/a").unwrap().is_none());
        let way = |path: &'static str| first_link(&root, "dists/x", path).unwrap();
        assert_eq!(way("dists/x/i/latest/images/a"), Some("dists/x/i/latest"));
        assert_eq!((way(real), way("dists/x/i/file")), (None, None));
    }
}
