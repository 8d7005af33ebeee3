//! A single file that a command writes: under a temporary name beside it, until all of it is there.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// The mode of files that everybody may read, less what the umask takes away.
pub const FOR_ALL: u32 = 0o666;

/// The mode of files with secrets in them.
pub const PRIVATE: u32 = 0o600;

/// A file that has no name yet. Without [`Output::publish`] nothing is left of it.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    part: PathBuf,
    file: File,
    published: bool,
}

impl Output {
    /// Begins a file that will be at `path`.
    ///
    /// # Errors
    /// When it cannot be made, or [`replaceable`] refuses.
    pub fn begin(path: &Path, mode: u32) -> io::Result<Output> {
        replaceable(path)?;
        let Some(name) = path.file_name() else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "is not the name of a file"));
        };
        let mut part = std::ffi::OsString::from(".");
        part.push(name);
        part.push(format!(".{}.part", std::process::id()));
        let part = path.with_file_name(part);
        // Left by a process that was killed and had this number.
        let _ = fs::remove_file(&part);
        let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&part)?;
        Ok(Output { path: path.to_owned(), part, file, published: false })
    }

    /// To be written to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it will be.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits until all of it is on the disk.
    ///
    /// # Errors
    /// When it is not.
    pub fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    /// Gives it its name.
    ///
    /// # Errors
    /// When the kernel refuses; nothing is left of it then.
    pub fn publish(mut self) -> io::Result<()> {
        fs::rename(&self.part, &self.path)?;
        self.published = true;
        Ok(())
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        if !self.published {
            let _ = fs::remove_file(&self.part);
        }
    }
}

/// Writes a whole file: a reader finds the old or the new one.
///
/// # Errors
/// As [`Output::begin`].
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let output = Output::begin(path, FOR_ALL)?;
    output.file().write_all(bytes)?;
    output.publish()
}

/// Whether a file may be put in this place by a rename: nothing is there, or a file.
///
/// # Errors
/// Something else is there. A rename would make a plain file of `/dev/null`, for the whole machine.
pub fn replaceable(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(about) if !about.is_file() => Err(io::Error::other("is not a file, and is not replaced by one")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_a_file_that_was_not_published() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, "old").unwrap();
        let output = Output::begin(&path, PRIVATE).unwrap();
        output.file().write_all(b"new").unwrap();
        drop(output);
        assert_eq!(fs::read(&path).unwrap(), b"old");
        write_atomically(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(Output::begin(dir.path(), PRIVATE).is_err(), "a directory is not replaced");
    }
}
