//! A word about an unfinished file for the run that takes it up, kept in an extended attribute: the version of the
//! object that its content is of. File systems without such attributes keep none.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::XattrFlags;

const NAME: &str = "user.fullbore.version";

/// Bytes of a note. A guess at the longest ETag of a store.
const BYTES_MAX: usize = 1024;

/// Keeps so many bytes of a file, and then notes which version they are of: all that the file has is of that version,
/// then. One that is too long is not noted.
///
/// # Errors
/// The system's, if it cannot cut the file.
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

/// The noted version.
pub(crate) fn get(file: impl AsFd) -> Option<String> {
    let mut bytes = vec![0; BYTES_MAX];
    let length = rustix::fs::fgetxattr(file, NAME, &mut bytes).ok()?;
    bytes.truncate(length);
    String::from_utf8(bytes).ok()
}

/// Takes the note off a file that is finished or begun anew.
pub(crate) fn clear(file: impl AsFd) {
    let _ = rustix::fs::fremovexattr(file, NAME);
}
