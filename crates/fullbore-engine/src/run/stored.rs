//! A file in a grid or a bucket, with its cap or address.
//!
//! The cap of a file in a grid grants the right to read it. It is output for the user: on stdout, and in the list of
//! `--caps`. It must appear nowhere else, so `Debug` of this type omits it.

use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};

use super::error::{CommandError, ErrorKind};

/// One stored file, in the form of `--json`.
#[derive(Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct StoredFile {
    /// Cap of the file in a grid, or its address in a bucket.
    pub cap: String,
    /// SHA-256 as reported by stores: base64, with the number of parts if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub checksum_sha256: Option<String>,
    /// Number of servers of the grid that hold different shares.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub happiness: Option<usize>,
    /// Path of the file on this machine.
    pub path: String,
    /// Bytes of the path in base64, if they are not UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_base64: Option<String>,
    /// Size of the file, in bytes.
    pub size: u64,
    /// Whether the cap is printed for people. Files in a stored directory are not: the directory's cap leads to them.
    #[serde(skip)]
    pub is_shown: bool,
}

/// The same file in the list of `--caps`.
#[derive(Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub(super) struct Entry<'a> {
    cap: &'a str,
    path: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path_base64: Option<&'a str>,
    size: u64,
}

impl StoredFile {
    /// Creates a stored file with this cap or address.
    pub fn new(path: &Path, size: u64, cap: &str) -> StoredFile {
        let path_base64 = path.to_str().is_none().then(|| STANDARD.encode(path.as_os_str().as_bytes()));
        StoredFile {
            cap: cap.to_owned(),
            path: path.to_string_lossy().into_owned(),
            path_base64,
            size,
            ..StoredFile::default()
        }
    }

    pub(super) fn entry(&self) -> Entry<'_> {
        let StoredFile { cap, path, path_base64, size, .. } = self;
        Entry { cap, path, path_base64: path_base64.as_deref(), size: *size }
    }
}

impl fmt::Debug for StoredFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("StoredFile");
        shown.field("path", &self.path).field("size", &self.size).field("cap", &"…").finish_non_exhaustive()
    }
}

/// Files that could not be stored, with the reasons.
pub type NotStored = Vec<(PathBuf, CommandError)>;

/// Returns an error if any file is missing. `done` is the number of stored files.
///
/// # Errors
/// The error of the first missing file, with a line for each other one. If `done` is above 0, its kind becomes
/// [`ErrorKind::Partial`], except after an interruption.
pub fn all_stored(mut missing: NotStored, done: u64) -> Result<(), CommandError> {
    if missing.is_empty() {
        return Ok(());
    }
    let (path, mut error) = missing.remove(0);
    error.message = format!("{}: {}", path.display(), error.message);
    if done > 0 && error.kind != ErrorKind::Interrupted {
        error.kind = ErrorKind::Partial;
    }
    for (path, other) in missing {
        error = error.context(format_args!("{}: {}", path.display(), other.message));
    }
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_no_part_of_what_is_shown() {
        let file = StoredFile::new(Path::new("a"), 5, "URI:CHK:secret");
        assert!(!format!("{file:?}").contains("secret"));
        let text = serde_json::to_string(&file).unwrap();
        assert_eq!(text, r#"{"cap":"URI:CHK:secret","path":"a","size":5}"#);
    }

    #[test]
    fn what_is_missing_is_an_error_of_its_own_kind_or_a_partial_success() {
        let missing = || vec![("a".into(), CommandError::usage("x")), ("b".into(), CommandError::usage("y"))];
        assert!(all_stored(Vec::new(), 0).is_ok());
        let none = all_stored(missing(), 0).unwrap_err();
        assert_eq!(
            (none.kind, none.message.as_str(), none.context),
            (ErrorKind::Usage, "a: x", vec!["b: y".to_owned()])
        );
        assert_eq!(all_stored(missing(), 1).unwrap_err().kind, ErrorKind::Partial);
        let ended = vec![("a".into(), CommandError::new(ErrorKind::Interrupted, "x"))];
        assert_eq!(all_stored(ended, 1).unwrap_err().kind, ErrorKind::Interrupted);
    }
}
