//! Files that the walk found in a directory, opened where it saw them.
//!
//! Between the walk and the open, whoever may write to the directory can put a symbolic link or a pipe in the place of a
//! file. A link would give away a file of another place, and a pipe would block the run. Files are therefore opened
//! through the handle of the directory that the argument names, and no link is followed any more.

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
    /// Opens the file or directory that the user named.
    ///
    /// # Errors
    /// The error of the system if `argument` cannot be opened for reading.
    pub fn open(argument: &Path) -> io::Result<Arc<Root>> {
        Ok(Arc::new(Root { argument: argument.to_owned(), handle: File::open(argument)? }))
    }

    /// Opens a directory below the one that the user named, without following any symbolic link there.
    ///
    /// # Errors
    /// The error of the system if a directory cannot be opened for reading, and [`io::ErrorKind::InvalidInput`] where a
    /// symbolic link is on the way.
    pub fn open_beneath(argument: &Path, rest: &Path) -> io::Result<Arc<Root>> {
        let handle = beneath::open_directory(File::open(argument)?, rest)?;
        Ok(Arc::new(Root { argument: argument.join(rest), handle }))
    }

    /// A file at this path, which begins with the argument. `real` is the path beneath the argument without links; none
    /// where no link leads to the file.
    pub fn found(self: &Arc<Root>, real: Option<&Path>) -> Found {
        Found { root: Arc::clone(self), real: real.map(Into::into) }
    }
}

/// Where a regular file is that the walk found.
#[derive(Debug, Clone)]
pub struct Found {
    root: Arc<Root>,
    real: Option<Box<Path>>,
}

impl Found {
    /// Whether a symbolic link leads to the file, so that its path is not where it is.
    pub fn is_behind_a_link(&self) -> bool {
        self.real.is_some()
    }

    /// Opens the file, whose path this is.
    ///
    /// # Errors
    /// The system's, and where something else than a regular file is in its place now.
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
