//! Files found by the walk, opened where the walk saw them.
//!
//! Between the walk and the open, anyone who may write to the directory can replace a file by a symbolic link or a
//! pipe. A link would give away a file of another place, and a pipe would block the run. So files are opened through
//! the handle of the directory that the user named, and links are not followed any more.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::beneath;

/// The directory that an argument names, held open.
#[derive(Debug)]
pub struct Root {
    argument: PathBuf,
    handle: File,
}

impl Root {
    /// Opens the file or directory that the user named, for reading.
    ///
    /// # Errors
    /// The error of open(2), unchanged.
    pub fn open(argument: &Path) -> io::Result<Arc<Root>> {
        Ok(Arc::new(Root { argument: argument.to_owned(), handle: File::open(argument)? }))
    }

    /// Opens the directory `rest` below the directory `argument`, without following any symbolic link in `rest`.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a symbolic link is on the way; other errors of open(2) unchanged.
    pub fn open_beneath(argument: &Path, rest: &Path) -> io::Result<Arc<Root>> {
        let handle = beneath::open_directory(File::open(argument)?, rest)?;
        Ok(Arc::new(Root { argument: argument.join(rest), handle }))
    }

    /// Describes a file below the argument. `real` is its path beneath the argument without links; `None` if no link
    /// leads to it.
    pub fn found(self: &Arc<Root>, real: Option<&Path>) -> Found {
        Found { root: Arc::clone(self), real: real.map(Into::into) }
    }
}

/// How to open a regular file that the walk found.
#[derive(Debug, Clone)]
pub struct Found {
    root: Arc<Root>,
    real: Option<Box<Path>>,
}

impl Found {
    /// Whether a symbolic link leads to the file, so that its path is not its place.
    pub fn is_behind_a_link(&self) -> bool {
        self.real.is_some()
    }

    /// Opens the file for reading. `path` is its path as the walk found it.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidInput`] if a symbolic link or another kind of entry is in its place now; other errors of
    /// open(2) unchanged.
    pub fn open(&self, path: &Path) -> io::Result<File> {
        let beneath = self.real.as_deref().or_else(|| path.strip_prefix(&self.root.argument).ok()).unwrap_or(path);
        beneath::open_file(&self.root.handle, beneath)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_on_the_way_to_a_root_led_out_of_it() {
        let place = tempfile::tempdir().unwrap();
        let to = place.path().join("to");
        for directory in ["to/a/b", "outside/b"] {
            std::fs::create_dir_all(place.path().join(directory)).unwrap();
            std::fs::write(place.path().join(directory).join("file"), directory).unwrap();
        }
        symlink(place.path().join("outside"), to.join("out")).unwrap();
        symlink("a", to.join("within")).unwrap();
        // The user's own directory may be behind a link.
        symlink("to", place.path().join("link")).unwrap();
        for argument in [&to, &place.path().join("link")] {
            for rest in ["", "a", "a/b", "out", "out/b", "within", "within/b", "../outside", "none"] {
                let root = Root::open_beneath(argument, Path::new(rest));
                assert_eq!(root.is_ok(), matches!(rest, "" | "a" | "a/b"), "{rest}: {root:?}");
            }
        }
        let root = Root::open_beneath(&to, Path::new("a")).unwrap();
        assert!(root.found(None).open(&to.join("a/b/file")).is_ok());
    }
}
