//! The list of hashes that `--hash-list` writes, in the line format of `sha256sum` and `b3sum`, for their `-c`.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use fullbore_engine::output::{FOR_ALL, Output};
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// A hash list. It is begun when the copy is done. Its path may be within the source or the destination, where a file
/// in progress would be copied or deleted.
#[derive(Debug)]
pub(super) struct HashList {
    path: PathBuf,
    lines: Option<Lines>,
    /// The first error of writing.
    failed: Option<io::Error>,
}

/// The lines written so far.
#[derive(Debug)]
struct Lines {
    output: Output,
    writer: BufWriter<File>,
}

impl Lines {
    fn begin(path: &Path) -> io::Result<Lines> {
        let output = Output::begin(path, FOR_ALL)?;
        let writer = BufWriter::new(output.file().try_clone()?);
        Ok(Lines { output, writer })
    }
}

impl HashList {
    /// Prepares a list at this path, after checking that a file can be written there.
    ///
    /// # Errors
    /// [`ErrorKind::Disk`] with the path if no file can be created beside it.
    pub(super) fn at(path: &Path) -> Result<HashList, CommandError> {
        // Dropping the unnamed file removes it at once.
        drop(Lines::begin(path).map_err(|error| wrong(path, &error))?);
        Ok(HashList { path: path.to_owned(), lines: None, failed: None })
    }

    /// Adds a file's hash.
    pub(super) fn add(&mut self, path: &[u8], hash: &[u8; 32]) {
        if self.failed.is_none() {
            let added = self.lines().and_then(|lines| lines.writer.write_all(&line(path, hash)));
            self.failed = added.err();
        }
    }

    fn lines(&mut self) -> io::Result<&mut Lines> {
        if self.lines.is_none() {
            self.lines = Some(Lines::begin(&self.path)?);
        }
        self.lines.as_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Starts over: after a reconnect all hashes are reported again.
    pub(super) fn restart(&mut self) {
        (self.lines, self.failed) = (None, None);
    }

    /// Gives the list its name.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Disk`] if any line, or the file, could not be written.
    pub(super) fn publish(mut self) -> Result<(), CommandError> {
        let written = self.failed.take().map_or(Ok(()), Err).and_then(|()| {
            // A list without files is an empty file.
            self.lines()?;
            let Some(Lines { output, mut writer }) = self.lines.take() else { return Ok(()) };
            writer.flush()?;
            output.sync()?;
            output.publish()
        });
        written.map_err(|error| wrong(&self.path, &error).context("the copy itself is complete"))
    }
}

fn wrong(path: &Path, error: &io::Error) -> CommandError {
    CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", path.display()))
}

/// Formats a line: the hash, two spaces, the path. Line breaks and backslashes in a path are escaped, and a backslash
/// begins the line (sha256sum(1)).
fn line(path: &[u8], hash: &[u8; 32]) -> Vec<u8> {
    let is_escaped = path.iter().any(|byte| matches!(byte, b'\n' | b'\r' | b'\\'));
    let mut line = Vec::with_capacity(path.len() + 68);
    if is_escaped {
        line.push(b'\\');
    }
    hash.iter().for_each(|byte| line.extend_from_slice(format!("{byte:02x}").as_bytes()));
    line.extend_from_slice(b"  ");
    for byte in path {
        match byte {
            b'\n' => line.extend_from_slice(b"\\n"),
            b'\r' => line.extend_from_slice(b"\\r"),
            b'\\' => line.extend_from_slice(b"\\\\"),
            byte => line.push(*byte),
        }
    }
    line.push(b'\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_line_breaks_are_one_line() {
        let hash = "07".repeat(32);
        for (path, before, after) in
            [("a/b c", "", "a/b c"), ("a\nb", "\\", "a\\nb"), ("a\\b", "\\", "a\\\\b"), ("\r", "\\", "\\r")]
        {
            let line = String::from_utf8(line(path.as_bytes(), &[7; 32])).unwrap();
            assert_eq!(line, format!("{before}{hash}  {after}\n"));
        }
    }
}
