//! What the arguments name: files, and directories with all that is in them, children before parents.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::CommandError;

/// One thing to put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Item {
    /// A file.
    File {
        /// Where it is.
        path: PathBuf,
        /// Its directory, as a position in the list; none for arguments.
        parent: Option<usize>,
    },
    /// A directory; its children name it as their parent.
    Directory {
        /// Where it is.
        path: PathBuf,
        /// Its own directory.
        parent: Option<usize>,
    },
    /// Stdin.
    Stdin,
}

impl Item {
    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Item::File { path, .. } | Item::Directory { path, .. } => path,
            Item::Stdin => Path::new("-"),
        }
    }

    /// The directory that it is in, if that is put as well.
    pub fn parent(&self) -> Option<usize> {
        match self {
            Item::File { parent, .. } | Item::Directory { parent, .. } => *parent,
            Item::Stdin => None,
        }
    }
}

/// Levels of directories: the kernel's limit on paths is reached before.
const DEPTH_MAX: usize = 2000;

/// Lists everything, each directory before what is in it. What is neither file nor directory is told to
/// `skipped` and left out; links are not followed, except those that are arguments.
pub fn list(arguments: &[PathBuf], skipped: &mut dyn FnMut(&Path, &str)) -> Result<Vec<Item>, CommandError> {
    let mut items = Vec::new();
    for path in arguments {
        if path.as_os_str() == "-" {
            if items.contains(&Item::Stdin) {
                return Err(CommandError::usage("`-` twice: stdin can be read once"));
            }
            items.push(Item::Stdin);
            continue;
        }
        let kind =
            fs::metadata(path).map_err(|error| CommandError::usage(format_args!("{}: {error}", path.display())))?;
        if kind.is_dir() {
            add_directory(path, None, 0, &mut items, skipped)?;
        } else {
            items.push(Item::File { path: path.clone(), parent: None });
        }
    }
    Ok(items)
}

fn add_directory(
    path: &Path,
    parent: Option<usize>,
    depth: usize,
    items: &mut Vec<Item>,
    skipped: &mut dyn FnMut(&Path, &str),
) -> Result<(), CommandError> {
    let failed = |error: std::io::Error| CommandError::disk(path, &error);
    let own = items.len();
    items.push(Item::Directory { path: path.to_owned(), parent });
    if depth > DEPTH_MAX {
        return Err(CommandError::usage(format_args!(
            "{}: more than {DEPTH_MAX} levels of directories",
            path.display()
        )));
    }
    let mut entries: Vec<_> = fs::read_dir(path).map_err(failed)?.collect::<Result<_, _>>().map_err(failed)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let kind = entry.file_type().map_err(failed)?;
        let path = entry.path();
        if kind.is_dir() {
            add_directory(&path, Some(own), depth + 1, items, skipped)?;
        } else if kind.is_file() {
            items.push(Item::File { path, parent: Some(own) });
        } else {
            skipped(&path, if kind.is_symlink() { "a symbolic link" } else { "no regular file" });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_come_before_what_is_in_them() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("b")).unwrap();
        fs::write(root.path().join("b/y"), "").unwrap();
        fs::write(root.path().join("a"), "").unwrap();
        std::os::unix::fs::symlink("a", root.path().join("link")).unwrap();
        let mut skipped = Vec::new();
        let items = list(&[root.path().to_owned()], &mut |path, _| skipped.push(path.to_owned())).unwrap();
        let names: Vec<_> = items
            .iter()
            .map(|item| (item.path().strip_prefix(root.path()).unwrap().to_owned(), item.parent()))
            .collect();
        let expected = [("", None), ("a", Some(0)), ("b", Some(0)), ("b/y", Some(2))];
        assert_eq!(names, expected.map(|(path, parent)| (PathBuf::from(path), parent)));
        assert_eq!(skipped, [root.path().join("link")]);
        assert!(list(&["/nonexistent".into()], &mut |_, _| {}).is_err());
        assert!(list(&["-".into(), "-".into()], &mut |_, _| {}).is_err(), "each would have a part of it");
    }
}
