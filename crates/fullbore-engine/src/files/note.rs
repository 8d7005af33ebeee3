//! A note about an unfinished file for a later run that resumes it. The extended attribute holds the version of the
//! object that the content belongs to. File systems without extended attributes keep none.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

const NAME: &str = "user.fullbore.version";

/// Longest note, in bytes. A guess at the longest ETag of a store.
const BYTES_MAX: usize = 1024;

/// Cuts a file to its first `bytes` bytes, then notes that they are of `version`. A version longer than 1024 bytes is
/// not noted.
///
/// # Errors
/// The system's error if the file's length cannot be read or the file cannot be cut. Failing to write the note is no
/// error.
pub(crate) fn settle(file: &File, bytes: u64, version: Option<&str>) -> io::Result<()> {
    clear(file);
    if file.metadata()?.len() > bytes {
        file.set_len(bytes)?;
    }
    if let Some(version) = version.filter(|version| version.len() <= BYTES_MAX) {
        let _ = rustix::fs::fsetxattr(file, NAME, version.as_bytes(), XattrFlags::empty());
    }
    Ok(())
}

/// The version noted by an earlier run, if there is one.
pub(crate) fn get(file: impl AsFd) -> Option<String> {
    let mut bytes = vec![0; BYTES_MAX];
    let length = rustix::fs::fgetxattr(file, NAME, &mut bytes).ok()?;
    bytes.truncate(length);
    String::from_utf8(bytes).ok()
}

/// Removes the note from a file that is finished or begun anew.
pub(crate) fn clear(file: impl AsFd) {
    let _ = rustix::fs::fremovexattr(file, NAME);
}
