//! The published tree of a mirror: the files that clients see.
//!
//! A mirror has two sides. fullbore's own files (state, list, log, and the store of files by hash) lie below
//! [`OWN_DIRECTORY`] of a local directory, a [`Root`]. Published files lie in a [`Tree`]. For a mirror in a directory both
//! are the same [`Root`]. Functions take `own: &Root`, `tree: &dyn Tree`, or both, and so say which side they use.
//!
//! New names are given by the engine's `Target`; a tree is looked at, and changed where the order does not matter.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Kind, Root};

use super::links;
use super::state::{OWN_DIRECTORY, index_path};

/// What a tree knows about a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Whether it is a file, a directory or a link.
    pub kind: Kind,
    /// Length of the content in bytes.
    pub size: u64,
    /// Time of last change of the content, Unix seconds.
    pub mtime: i64,
    /// The same number for two names of one file, where the tree knows.
    pub inode: Option<u64>,
}

/// A published file, opened.
pub enum Content {
    /// A file on disk.
    File(File),
    /// A stream from elsewhere.
    Stream(Box<dyn Read + Send>),
}

impl Content {
    /// Says that the content will be read to its end.
    pub fn will_be_read_whole(&self) {
        if let Content::File(file) = self {
            // Only a hint: an error changes nothing.
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

/// Where a symbolic link to a directory leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LinkedDirectory {
    /// To this directory of the mirror.
    Inside(String),
    /// Out of the mirror.
    Outside,
}

/// The published files of a mirror, by their paths below the mirror's directory.
///
/// Links are not followed: a path behind one is [`FileError::Symlink`].
pub trait Tree: Send + Sync {
    /// The directory or address of the tree, for messages.
    fn name(&self) -> String;

    /// What a state says of which mirror it is; `None` for a directory, whose state lies in it.
    fn identity(&self) -> Option<String> {
        None
    }

    /// What has this name; `None` if nothing has.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn stat(&self, path: &str) -> Result<Option<Status>, FileError>;

    /// Opens a regular file; `None` if there is none of that name.
    ///
    /// # Errors
    /// Another kind of file; the tree cannot be read.
    fn open(&self, path: &str) -> Result<Option<(Content, Status)>, FileError>;

    /// Reads a whole file of at most `limit_bytes`; `None` if there is none.
    ///
    /// # Errors
    /// As [`Tree::open`]; [`FileError::TooLarge`].
    fn read(&self, path: &str, limit_bytes: u64) -> Result<Option<Vec<u8>>, FileError>;

    /// The target of a symbolic link; `None` if there is no link of that name.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn read_link(&self, path: &str) -> Result<Option<String>, FileError>;

    /// Where a symbolic link to a directory leads; `None` if it leads to none.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn linked_directory(&self, link: &str) -> Result<Option<LinkedDirectory>, FileError>;

    /// The names in a directory, in no order; none if it is missing.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn list(&self, directory: &str) -> Result<Vec<(OsString, Kind)>, FileError>;

    /// Writes a small file, whole or not at all.
    ///
    /// # Errors
    /// The tree cannot be written.
    fn write(&self, path: &str, content: &[u8]) -> Result<(), FileError>;

    /// Removes a file or link; `false` if there is none.
    ///
    /// # Errors
    /// The tree cannot be written.
    fn unlink(&self, path: &str) -> Result<bool, FileError>;

    /// Removes regular files, and nothing else of these names; says of each whether it was there.
    ///
    /// # Errors
    /// The tree cannot be written; some of the files may be gone then.
    fn remove_files(&self, paths: &[&str]) -> Result<Vec<bool>, FileError>;

    /// Removes an empty directory; `false` if it is missing or not empty.
    ///
    /// # Errors
    /// The tree cannot be written.
    fn remove_directory(&self, path: &str) -> Result<bool, FileError>;

    /// Makes `link` a symbolic link to `target`, in one step.
    ///
    /// # Errors
    /// A target outside of the tree, a directory in the way; the tree cannot be written.
    fn symlink(&self, target: &str, link: &str) -> Result<(), FileError>;

    /// Whether this path has the content that is stored under this hash. `false` where finding out would mean reading it.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn has_stored(&self, path: &str, sha256: Sha256) -> Result<bool, FileError>;

    /// Gives the content that is stored under this hash a published name.
    ///
    /// # Errors
    /// Nothing is stored under the hash; the tree cannot be written.
    fn give_stored(&self, sha256: Sha256, path: &str) -> Result<(), FileError>;

    /// Stores the content of a published file under its hash, which the caller has compared. `false` if the content is
    /// another one by now.
    ///
    /// # Errors
    /// The file cannot be read; fullbore's own files cannot be written.
    fn store(&self, path: &str, sha256: Sha256) -> Result<bool, FileError>;

    /// Hash and size of a published file, where the tree knows them without reading it: by what fullbore said when it
    /// wrote the file.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn known_content(&self, _path: &str) -> Result<Option<(Sha256, u64)>, FileError> {
        Ok(None)
    }

    /// A published path with this content, from which further names can be given without storing it.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn published(&self, _sha256: Sha256) -> Result<Option<String>, FileError> {
        Ok(None)
    }

    /// Hears of paths that will be looked up, sorted and spread evenly over all of them, so that they can be found at once.
    fn expect(&self, _paths: Vec<String>) {}

    /// Whether suites get symbolic links, or copies in their place.
    fn has_links(&self) -> bool {
        true
    }

    /// Whether a symbolic link is a directory of copies, which each publication makes anew.
    fn links_are_copies(&self) -> bool {
        false
    }

    /// Where links are copies: the directories of copies, finished or not, and which directory each stands for.
    ///
    /// # Errors
    /// The tree cannot be read.
    fn copied_links(&self) -> Result<Vec<(String, String)>, FileError> {
        Ok(Vec::new())
    }

    /// Number of files to read at once.
    fn readers(&self) -> usize {
        std::thread::available_parallelism().map_or(2, |cores| cores.get())
    }

    /// The directory that the tree is, if it is one: for hard links between its files.
    fn as_directory(&self) -> Option<&Root> {
        None
    }
}

fn status(of: &fullbore_engine::files::Status) -> Status {
    Status { kind: of.kind, size: of.size, mtime: of.mtime, inode: Some(of.inode) }
}

/// A directory has fullbore's own files beside the published ones; stored and published names are hard links.
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
        // Of a link that leads nowhere, or to where nobody may look, nothing is known.
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
