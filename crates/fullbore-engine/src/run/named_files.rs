//! Files that the user named.

use std::path::{Path, PathBuf};

use super::error::CommandError;
use crate::units;

/// Reads a text file of at most so many bytes that the user named.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, CommandError> {
    use std::io::Read;
    let failed = |error: std::io::Error| CommandError::usage(format_args!("cannot read {}: {error}", path.display()));
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(CommandError::usage(format_args!(
            "{}: larger than {}",
            path.display(),
            units::round_bytes(bytes_max)
        )));
    }
    // Old shell and perl files may hold a name in Latin-1 in a comment; nothing we take does.
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Whether a file can be opened.
///
/// # Errors
/// It cannot, or is a directory.
pub fn readable(file: &Path) -> Result<(), CommandError> {
    match std::fs::File::open(file).and_then(|file| file.metadata()) {
        Ok(metadata) if metadata.is_dir() => {
            Err(CommandError::usage(format_args!("{}: is a directory", file.display())))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::usage(format_args!("cannot read {}: {error}", file.display()))),
    }
}

/// Whether a path is a directory that is there.
///
/// # Errors
/// It is not there, is no directory, or is closed to this user.
pub fn directory(path: &Path) -> Result<(), CommandError> {
    match std::fs::read_dir(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::usage(format_args!("cannot read directory {}: {error}", path.display()))),
    }
}

/// The path from the root on; it need not be there.
///
/// # Errors
/// The present directory is gone.
pub fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    std::path::absolute(path).map_err(|error| CommandError::usage(format_args!("{}: {error}", path.display())))
}
