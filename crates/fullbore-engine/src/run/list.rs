//! The list of caps: lines of JSON, readable by the owner alone, and written completely or not at all.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use super::error::CommandError;
use super::stored::StoredFile;
use crate::escape;
use crate::output::{self, Output};

/// A list of stored files that is being written; does nothing if none was requested.
#[derive(Debug)]
pub struct List(Option<Open>);

#[derive(Debug)]
struct Open {
    output: Output,
    lines: BufWriter<File>,
    is_empty: bool,
    failed: Option<io::Error>,
}

impl List {
    /// Begins a list under a temporary name beside `path`; without a path, nothing is written.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if the temporary file cannot be created beside `path`.
    pub fn open(path: Option<&Path>) -> Result<List, CommandError> {
        let Some(path) = path else { return Ok(List(None)) };
        let failed = |error| CommandError::cannot("write", path, &error).context("--caps");
        let output = Output::begin(path, output::PRIVATE).map_err(failed)?;
        let lines = BufWriter::new(output.file().try_clone().map_err(failed)?);
        Ok(List(Some(Open { output, lines, is_empty: true, failed: None })))
    }

    /// Adds the entry of a stored file to the list.
    pub fn add(&mut self, file: &StoredFile) {
        let Some(open) = &mut self.0 else { return };
        open.is_empty = false;
        if open.failed.is_none() {
            open.failed = open.lines.write_all(&escape::json_line(&file.entry())).err();
        }
    }

    /// Gives the list its final name. If it is empty and `all_done` is false, an older list stays: it may have the only
    /// copy of its caps.
    ///
    /// # Errors
    /// A [`CommandError`] of kind disk if a line could not be written, or the file cannot be synced or renamed.
    pub fn publish(&mut self, all_done: bool) -> Result<(), CommandError> {
        let Some(Open { output, mut lines, is_empty, failed }) = self.0.take() else { return Ok(()) };
        if is_empty && !all_done {
            return Ok(());
        }
        let path = output.path().to_owned();
        let written = failed.map_or_else(|| lines.flush(), Err);
        let published = written.and_then(|()| output.sync()).and_then(|()| output.publish());
        published.map_err(|error| CommandError::cannot("write", &path, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_list_is_whole_and_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("caps");
        let mut list = List::open(Some(&path)).unwrap();
        list.add(&StoredFile::new(Path::new("a\nb"), 5, "URI:LIT:x"));
        list.add(&StoredFile::new(Path::new(OsStr::from_bytes(b"\xff")), 6, "URI:LIT:y"));
        assert!(!path.exists());
        list.publish(false).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text.lines().next(), Some(r#"{"cap":"URI:LIT:x","path":"a\nb","size":5}"#));
        assert!(text.contains(r#""path_base64":"/w==""#), "{text}");
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        List::open(Some(&path)).unwrap().publish(false).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "nothing was put, and nothing is lost");
        drop(List::open(Some(&path)).unwrap());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing temporary is left");
    }
}
