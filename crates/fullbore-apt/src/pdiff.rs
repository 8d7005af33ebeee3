//! Patches of indexes (pdiffs): read, generated, and published beside an archive's indexes.

pub mod input;
pub mod publish;
mod step;

use std::io::{self, Write as _};

use flate2::{Compression, GzBuilder};
use fullbore_engine::files::FileError;
use fullbore_engine::run::{CommandError, ErrorKind};

pub use step::{StepError, generate};

/// Compresses a patch as archives serve it: gzip at its highest level, without name and time, so that equal patches give
/// equal files.
///
/// ```
/// assert_eq!(fullbore_apt::pdiff::gz(b"1d\n"), fullbore_apt::pdiff::gz(b"1d\n"));
/// ```
pub fn gz(script: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    let written = encoder.write_all(script).and_then(|()| encoder.finish());
    written.expect("memory takes everything")
}

/// The error of a file operation.
pub fn file_error(error: FileError) -> CommandError {
    CommandError::from_error(ErrorKind::Disk, &error)
}

/// The error of a named directory: a usage error if it does not exist.
pub fn no_directory(error: FileError) -> CommandError {
    let kind = match error.kind() {
        Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => ErrorKind::Usage,
        _ => ErrorKind::Disk,
    };
    CommandError::from_error(kind, &error)
}
