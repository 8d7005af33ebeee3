//! The list of hashes that `--hash-list` leaves: lines as `sha256sum` and `b3sum` write them, for their `-c`.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use fullbore_engine::output::{FOR_ALL, Output};
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// A list. It is begun when the copy is done: its place may be within the source or the destination, and a file that
/// is being written there would be copied, or deleted.
#[derive(Debug)]
pub(super) struct HashList {
    path: PathBuf,
    lines: Option<Lines>,
    /// What went wrong first.
    failed: Option<io::Error>,
}

/// The lines as far as they are known.
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
    /// A list that will be at this path, where a file can be written.
    ///
    /// # Errors
    /// When none can.
    pub(super) fn at(path: &Path) -> Result<HashList, CommandError> {
        // What has no name yet goes at once.
        drop(Lines::begin(path).map_err(|error| wrong(path, &error))?);
        Ok(HashList { path: path.to_owned(), lines: None, failed: None })
    }

    /// Adds a file.
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

    /// Begins anew: another connection tells all of them once more.
    pub(super) fn restart(&mut self) {
        (self.lines, self.failed) = (None, None);
    }

    /// Gives it its name.
    pub(super) fn publish(mut self) -> Result<(), CommandError> {
        let written = self.failed.take().map_or(Ok(()), Err).and_then(|()| {
            // One without files is empty.
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

/// A line: the hash, two spaces, the path. Where a path has line breaks or backslashes, they are escaped, and a
/// backslash begins the line (sha256sum(1)).
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
