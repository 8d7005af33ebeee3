//! The list of hashes that `--hash-list` leaves: lines as `sha256sum` and `b3sum` write them, for their `-c`.

use std::fs::File;
use std::io::{self, BufWriter, Seek as _, Write};
use std::path::{Path, PathBuf};

use fullbore_engine::output::{FOR_ALL, Output};
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// A list that is being written.
#[derive(Debug)]
pub(super) struct HashList {
    path: PathBuf,
    output: Output,
    lines: BufWriter<File>,
    /// What went wrong first.
    failed: Option<io::Error>,
}

impl HashList {
    /// Begins a list that will be at this path.
    pub(super) fn begin(path: &Path) -> Result<HashList, CommandError> {
        let wrong = |error: io::Error| CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", path.display()));
        let output = Output::begin(path, FOR_ALL).map_err(wrong)?;
        let lines = BufWriter::new(output.file().try_clone().map_err(wrong)?);
        Ok(HashList { path: path.to_owned(), output, lines, failed: None })
    }

    /// Adds a file.
    pub(super) fn add(&mut self, path: &[u8], hash: &[u8; 32]) {
        if self.failed.is_none() {
            self.failed = self.lines.write_all(&line(path, hash)).err();
        }
    }

    /// Begins anew: another connection tells all of them once more.
    pub(super) fn restart(&mut self) {
        let file = self.output.file();
        let restarted = self.lines.flush().and_then(|()| file.set_len(0)).and_then(|()| (&*file).rewind());
        self.failed = self.failed.take().or(restarted.err());
    }

    /// Gives it its name.
    pub(super) fn publish(self) -> Result<(), CommandError> {
        let HashList { path, output, mut lines, failed } = self;
        let written = failed.map_or(Ok(()), Err).and_then(|()| lines.flush()).and_then(|()| output.sync());
        written.and_then(|()| output.publish()).map_err(|error| {
            CommandError::new(ErrorKind::Disk, format_args!("{}: {error}", path.display()))
                .context("the copy itself is complete")
        })
    }
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
