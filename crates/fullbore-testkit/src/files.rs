//! How the archive's files are written, and how its times are spelled.

use std::{
    fs, io,
    path::Path,
    time::{Duration, SystemTime},
};

use crate::archive::ArchiveError;

pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> ArchiveError + '_ {
    move |source| ArchiveError::File { path: path.to_path_buf(), source }
}

pub(crate) fn make_directories(path: &Path) -> Result<(), ArchiveError> {
    fs::create_dir_all(path).map_err(at(path))
}

pub(crate) fn link(from: &Path, to: &Path) -> Result<(), ArchiveError> {
    if let Some(parent) = to.parent() {
        make_directories(parent)?;
    }
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other.map_err(at(to)),
    }
}

/// Writes a file under a new inode, so that hard links of the old one keep their content.
pub(crate) fn replace(path: &Path, bytes: &[u8], time_unix_s: i64) -> Result<(), ArchiveError> {
    if let Some(parent) = path.parent() {
        make_directories(parent)?;
    }
    let write = || -> io::Result<()> {
        let temporary = path.with_file_name(format!(
            ".{}.new",
            path.file_name().map(|name| name.to_string_lossy()).unwrap_or_default()
        ));
        fs::write(&temporary, bytes)?;
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(time_unix_s.max(0) as u64);
        fs::File::options().write(true).open(&temporary)?.set_modified(time)?;
        fs::rename(&temporary, path)
    };
    write().map_err(at(path))
}

/// A time as pdiffs are named.
pub(crate) fn stamp(date_unix_s: i64) -> String {
    jiff::Timestamp::from_second(date_unix_s).unwrap_or_default().strftime("%Y-%m-%d-%H%M.%S").to_string()
}

/// A time as Release files have it.
pub(crate) fn release_date(date_unix_s: i64) -> String {
    jiff::Timestamp::from_second(date_unix_s).unwrap_or_default().strftime("%a, %d %b %Y %H:%M:%S UTC").to_string()
}
