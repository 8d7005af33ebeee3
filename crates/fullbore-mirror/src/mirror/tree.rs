//! The published tree of a mirror: the files that clients see.
//!
//! A mirror has two parts. fullbore's own files (state, list, log, and the store of files by hash) are below
//! [`OWN_DIRECTORY`] of a local directory, a [`Root`]. Published files are in a [`Tree`]. For a mirror in a directory
//! both are the same [`Root`]. Functions take `own: &Root`, `tree: &dyn Tree`, or both, and so show which part they
//! use.
//!
//! The engine's `Target` gives new names. A tree is for reading, and for changes whose order does not matter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};

use super::links;
use super::state::{OWN_DIRECTORY, index_path};

/// Status of a name in a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Status {
    /// Type of the file.
    pub kind: Kind,
    /// Size of the content in bytes.
    pub size: u64,
    /// Modification time, Unix seconds.
    pub mtime: i64,
    /// Inode number, equal for two names of one file; `None` if the tree does not know it.
    pub inode: Option<u64>,
}

/// Content of an opened published file.
pub(crate) enum Content {
    /// A file on disk.
    File(File),
    /// A stream from elsewhere.
    Stream(Box<dyn Read + Send>),
}

impl Content {
    /// Announces that the content will be read to its end.
    pub(crate) fn will_be_read_whole(&self) {
        if let Content::File(file) = self {
            // The advice is only a hint; an error changes nothing.
            let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
        }
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Content::File(file) => file.read(buffer),
            Content::Stream(stream) => stream.read(buffer),
        }
    }
}

/// Target of a symbolic link to a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum LinkedDirectory {
    /// This directory of the mirror.
    Inside(String),
    /// A directory outside of the mirror.
    Outside,
}

/// The published files of a mirror, by their paths relative to the mirror.
///
/// Links are not followed: for a path behind a link, methods return [`FileError::Symlink`]. If the directory or store
/// fails, they return [`FileError::Io`].
pub(crate) trait Tree: Send + Sync {
    /// The directory or address of the tree, for messages.
    fn name(&self) -> String;

    /// Address of the mirror, as its state records it. `None` for a directory, whose state is in it.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Status of a name; `None` if nothing has it.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the tree cannot be read.
    fn stat(&self, path: &str) -> Result<Option<Status>, FileError>;

    /// Opens a regular file; `None` if no file has the name.
    ///
    /// # Errors
    /// [`FileError::NotRegular`] for another kind of file, [`FileError::Symlink`] for a path behind a link,
    /// [`FileError::Io`] if the tree cannot be read.
    fn open(&self, path: &str) -> Result<Option<(Content, Status)>, FileError>;

    /// Reads a whole file of at most `limit_bytes`; `None` if no file has the name.
    ///
    /// # Errors
    /// The errors of [`Tree::open`], and [`FileError::TooLarge`] if the file exceeds `limit_bytes`.
    fn read(&self, path: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError>;

    /// Target of a symbolic link; `None` if no link has the name.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the tree cannot be read.
    fn read_link(&self, path: &str) -> Result<Option<String>, FileError>;

    /// Target of a symbolic link to a directory; `None` if the link does not lead to one.
    ///
    /// # Errors
    /// [`FileError::Io`] if the tree cannot be read.
    fn linked_directory(&self, link: &str) -> Result<Option<LinkedDirectory>, FileError>;

    /// Names in a directory, in any order; empty if it does not exist.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the directory cannot be read.
    fn list(&self, directory: &str) -> Result<Vec<(OsString, Kind)>, FileError>;

    /// Writes a small file atomically.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the file cannot be written.
    fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError>;

    /// Removes a file or link; `false` if it did not exist.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the file cannot be removed.
    fn unlink(&self, path: &str) -> Result<bool, FileError>;

    /// Removes regular files, and no other kind of file. Returns for each whether it existed.
    ///
    /// # Errors
    /// [`FileError::Io`] if a file cannot be removed; some of the files may be gone then.
    fn remove_files(&self, paths: &[&str]) -> Result<Vec<bool>, FileError>;

    /// Removes an empty directory; `false` if it does not exist or is not empty.
    ///
    /// # Errors
    /// [`FileError::Symlink`] for a path behind a link, [`FileError::Io`] if the directory cannot be removed.
    fn remove_directory(&self, path: &str) -> Result<bool, FileError>;

    /// Makes `link` a symbolic link to `target`, atomically.
    ///
    /// # Errors
    /// [`FileError::Path`] for a target outside of the tree, [`FileError::Io`] if a directory is in its place or the
    /// tree cannot be written.
    fn symlink(&self, target: &str, link: &str) -> Result<(), FileError>;

    /// Whether this path has the content that is stored under this hash. `false` if only reading the file could tell.
    ///
    /// # Errors
    /// [`FileError::Io`] if the tree cannot be read.
    fn has_stored(&self, path: &str, sha256: Sha256) -> Result<bool, FileError>;

    /// Gives stored content a published name.
    ///
    /// # Errors
    /// [`FileError::Io`] if nothing is stored under the hash, or the tree cannot be written.
    fn give_stored(&self, sha256: Sha256, path: &str) -> Result<(), FileError>;

    /// Stores a published file under its hash, which the caller has compared. `false` if the content has changed
    /// meanwhile.
    ///
    /// # Errors
    /// [`FileError::Io`] if the file cannot be read, or fullbore's own files cannot be written.
    fn store(&self, path: &str, sha256: Sha256) -> Result<bool, FileError>;

    /// Hash and size of a published file, if the tree knows them without reading the file: from the time when fullbore
    /// wrote it.
    ///
    /// # Errors
    /// [`FileError::Io`] if the tree cannot be asked.
    fn known_content(&self, _path: &str) -> Result<Option<(Sha256, u64)>, FileError> {
        Ok(None)
    }

    /// A published path with this content, from which further names can be given without storing the content.
    ///
    /// # Errors
    /// [`FileError::Io`] if the tree cannot be read.
    fn published(&self, _sha256: Sha256) -> Result<Option<String>, FileError> {
        Ok(None)
    }

    /// Announces paths that will be looked up, sorted and spread evenly over all of them, so that the tree can list
    /// ranges in parallel.
    fn expect(&self, _paths: Vec<String>) {}

    /// Whether suites get links to their directories, or copies in place of links.
    fn has_links(&self) -> bool {
        true
    }

    /// Whether a symbolic link is a directory of copies, which each publication makes anew.
    fn links_are_copies(&self) -> bool {
        false
    }

    /// If links are copies: the directories of copies, complete or not, and the directory that each stands for.
    ///
    /// # Errors
    /// [`FileError::Io`] if the tree cannot be read.
    fn copied_links(&self) -> Result<Vec<(String, String)>, FileError> {
        Ok(Vec::new())
    }

    /// Number of files to read in parallel.
    fn readers(&self) -> usize {
        std::thread::available_parallelism().map_or(2, |cores| cores.get())
    }

    /// The directory of the tree, if it is one, for hard links between its files.
    fn as_directory(&self) -> Option<&Root> {
        None
    }
}

fn status(of: &fullbore_engine::files::Status) -> Status {
    Status { kind: of.kind, size: of.size, mtime: of.mtime, inode: Some(of.inode) }
}

/// In a directory, fullbore's own files are beside the published ones. Stored and published names are hard links.
impl Tree for Root {
    fn name(&self) -> String {
        self.path().display().to_string()
    }

    fn stat(&self, path: &str) -> Result<Option<Status>, FileError> {
        Ok(Root::stat(self, path)?.as_ref().map(status))
    }

    fn open(&self, path: &str) -> Result<Option<(Content, Status)>, FileError> {
        Ok(self.open_file(path)?.map(|(file, of)| (Content::File(file), status(&of))))
    }

    fn read(&self, path: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError> {
        Root::read(self, path, limit_bytes)
    }

    fn read_link(&self, path: &str) -> Result<Option<String>, FileError> {
        Root::read_link(self, path)
    }

    fn linked_directory(&self, link: &str) -> Result<Option<LinkedDirectory>, FileError> {
        // A link that leads nowhere, or into a closed directory, counts as no link to a directory.
        let real = |path: &Path| path.canonicalize().ok();
        let (Some(root), Some(target)) = (real(self.path()), real(&self.path().join(link))) else { return Ok(None) };
        if !target.is_dir() {
            return Ok(None);
        }
        let Ok(below) = target.strip_prefix(root) else { return Ok(Some(LinkedDirectory::Outside)) };
        Ok(below.to_str().filter(|below| !below.is_empty()).map(|below| LinkedDirectory::Inside(below.to_owned())))
    }

    fn list(&self, directory: &str) -> Result<Vec<(OsString, Kind)>, FileError> {
        Root::list(self, directory)
    }

    fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError> {
        self.write_part(path, content)?.finish()
    }

    fn unlink(&self, path: &str) -> Result<bool, FileError> {
        Root::unlink(self, path)
    }

    fn remove_files(&self, paths: &[&str]) -> Result<Vec<bool>, FileError> {
        let remove = |path: &&str| match links::stat(self, path)? {
            Some(status) if status.kind == Kind::File => Root::unlink(self, path),
            _ => Ok(false),
        };
        paths.iter().map(remove).collect()
    }

    fn remove_directory(&self, path: &str) -> Result<bool, FileError> {
        Root::remove_directory(self, path)
    }

    fn symlink(&self, target: &str, link: &str) -> Result<(), FileError> {
        Root::symlink(self, target, link)
    }

    fn has_stored(&self, path: &str, sha256: Sha256) -> Result<bool, FileError> {
        let inode = |path: &str| Ok::<_, FileError>(links::stat(self, path)?.and_then(|status| status.inode));
        let here = inode(path)?;
        Ok(here.is_some() && here == inode(&index_path(sha256))?)
    }

    fn give_stored(&self, sha256: Sha256, path: &str) -> Result<(), FileError> {
        self.hard_link(&index_path(sha256), path).map(drop)
    }

    fn store(&self, path: &str, sha256: Sha256) -> Result<bool, FileError> {
        self.create_directory(OWN_DIRECTORY, 0o700)?;
        self.hard_link(path, &index_path(sha256))?;
        Ok(true)
    }

    fn as_directory(&self) -> Option<&Root> {
        Some(self)
    }
}
