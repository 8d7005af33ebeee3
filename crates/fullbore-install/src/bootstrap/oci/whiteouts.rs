//! Names that stand for deleted files in the layers of an image.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::CommandError;

use crate::bootstrap::pack::{DEV, LEFT_OUT};

/// Prefix of the names of deleted files (image-spec, layer.md, "Whiteouts").
const PREFIX: &[u8] = b".wh.";

/// Checks that a root has no file whose name would delete another one.
///
/// # Errors
/// `Usage` with the path if the root has such a file, `Disk` if a directory cannot be read.
pub(super) fn check(root: &Path) -> Result<(), CommandError> {
    let Some(path) = first(root)? else { return Ok(()) };
    let inside = Path::new("/").join(path.strip_prefix(root).unwrap_or(&path));
    Err(CommandError::usage(format_args!("{}: an image cannot contain a file of this name", inside.display()))
        .context("in the layers of an image, names that begin with .wh. stand for deleted files")
        .hint("remove it in a --customize-hook, or make a root of another --format"))
}

/// The first such name that is found. The walk stays on one file system, as packing does.
fn first(root: &Path) -> Result<Option<PathBuf>, CommandError> {
    let disk = |path: &Path, error: &std::io::Error| CommandError::cannot("read", path, error);
    let device = fs::symlink_metadata(root).map_err(|error| disk(root, &error))?.dev();
    let mut ahead = vec![root.to_owned()];
    while let Some(directory) = ahead.pop() {
        for entry in fs::read_dir(&directory).map_err(|error| disk(&directory, &error))? {
            let entry = entry.map_err(|error| disk(&directory, &error))?;
            let (name, path) = (entry.file_name(), entry.path());
            if directory == root && LEFT_OUT.iter().chain([&DEV]).any(|left_out| name == *left_out) {
                continue;
            }
            if name.as_bytes().starts_with(PREFIX) {
                return Ok(Some(path));
            }
            let is_directory = entry.file_type().map_err(|error| disk(&path, &error))?.is_dir();
            if is_directory && path.symlink_metadata().map_err(|error| disk(&path, &error))?.dev() == device {
                ahead.push(path);
            }
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_deleted_files_are_found_wherever_they_are_packed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |path: &str| dir.path().join(path);
        fs::create_dir_all(at("usr/share/doc")).unwrap();
        fs::create_dir_all(at("dev")).unwrap();
        std::os::unix::fs::symlink("/", at("usr/root")).unwrap();
        // Names that only resemble them, and one that is not packed.
        for name in ["usr/.wh", "usr/x.wh.y", "usr/share/.whisper", "dev/.wh.null"] {
            fs::write(at(name), "").unwrap();
        }
        check(dir.path()).unwrap();
        fs::create_dir(at("usr/share/doc/.wh..wh..opq")).unwrap();
        let error = check(dir.path()).unwrap_err();
        assert!(error.message.starts_with("/usr/share/doc/.wh..wh..opq: "), "{error}");
        fs::remove_dir(at("usr/share/doc/.wh..wh..opq")).unwrap();
        std::os::unix::fs::symlink("none", at(".wh.link")).unwrap();
        assert!(check(dir.path()).is_err());
    }
}
