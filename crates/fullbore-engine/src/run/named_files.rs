//! Files and directories that the user named on the command line.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::error::CommandError;
use crate::units;

/// Reads a text file of at most `bytes_max` bytes.
///
/// # Errors
/// A [`CommandError`] of kind usage if the file cannot be read or has more than `bytes_max` bytes.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, CommandError> {
    use std::io::Read;
    let failed = |error: std::io::Error| CommandError::unreadable(path, &error);
    let mut bytes = Vec::new();
    std::fs::File::open(path).and_then(|file| file.take(bytes_max + 1).read_to_end(&mut bytes)).map_err(failed)?;
    if bytes.len() as u64 > bytes_max {
        return Err(CommandError::usage(format_args!(
            "{}: larger than {}",
            path.display(),
            units::round_bytes(bytes_max)
        )));
    }
    // Old shell and perl files may contain a name in Latin-1 in a comment; no setting that is read does.
    Ok(String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// Checks that a file can be opened for reading.
///
/// # Errors
/// A [`CommandError`] of kind usage if it cannot be opened, or is a directory.
pub fn readable(file: &Path) -> Result<(), CommandError> {
    match std::fs::File::open(file).and_then(|file| file.metadata()) {
        Ok(metadata) if metadata.is_dir() => {
            Err(CommandError::usage(format_args!("{}: is a directory", file.display())))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::unreadable(file, &error)),
    }
}

/// Checks that a path is a directory that can be listed.
///
/// # Errors
/// A [`CommandError`] of kind usage if it is missing, is not a directory, or may not be read.
pub fn directory(path: &Path) -> Result<(), CommandError> {
    match std::fs::read_dir(path) {
        Ok(_) => Ok(()),
        Err(error) => Err(CommandError::usage(format_args!("cannot read directory {}: {error}", path.display()))),
    }
}

/// Longest text before `://` that counts as a scheme, in bytes.
const SCHEME_BYTES: usize = 16;

/// Splits an address `scheme://rest` into the scheme in lower case and the rest (RFC 3986, section 3.1: letter case
/// does not matter).
pub fn scheme(text: &OsStr) -> Option<(String, String)> {
    let text = text.to_string_lossy();
    let (scheme, rest) = text.split_once("://")?;
    let mut letters = scheme.bytes();
    let is_scheme = scheme.len() <= SCHEME_BYTES
        && letters.next().is_some_and(|first| first.is_ascii_alphabetic())
        && letters.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    is_scheme.then(|| (scheme.to_ascii_lowercase(), rest.to_owned()))
}

/// Makes a path absolute; it need not exist.
///
/// # Errors
/// A [`CommandError`] of kind usage if it is an address with a scheme, is empty, or the current directory cannot be
/// read.
pub fn absolute(path: &Path) -> Result<PathBuf, CommandError> {
    if scheme(path.as_os_str()).is_some() {
        return Err(CommandError::usage(format_args!("{}: an address, and a path is expected", path.display()))
            .hint("name a local file or directory; write ./ before a name that contains ://"));
    }
    std::path::absolute(path).map_err(|error| CommandError::usage(format_args!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_is_letters_before_two_slashes() {
        let read = |text: &str| scheme(OsStr::new(text)).map(|(scheme, rest)| format!("{scheme} {rest}"));
        assert_eq!(read("S3://b/k"), Some("s3 b/k".into()));
        for text in ["", "://x", "1x://y", "a/b://c", "host:/x", "averyveryverylongscheme://x"] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_is_not_a_path() {
        assert!(absolute(Path::new("https://deb.example.org/debian")).is_err());
        assert_eq!(absolute(Path::new("/srv/m")).unwrap(), Path::new("/srv/m"));
        assert!(absolute(Path::new("./https://x")).is_ok());
    }
}
