//! The patches of a request: found beside the old index, decompressed, verified, parsed.
//!
//! A single patch is `OLD.ed` (gzip data despite its name); several are `OLD.ed.NAME.gz`, in the order of their names.
//! APT sends size and hash of each as `Patch-0-…`, `Patch-1-…`, from the signed index of patches. A patch that APT did
//! not name, or a named one that does not exist, is an error.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::pdiff::{Edits, STEPS_MAX, ScriptError};
use fullbore_engine::digest::Sha256;
use fullbore_engine::units;

use super::with_suffix;
use crate::acquire::Message;

/// Most bytes of all patches of a request, decompressed. Fourteen days of the largest index are 8 MB. APT itself
/// prefers the full index if the patches are larger.
const PATCHES_BYTES_MAX: u64 = 512 << 20;

/// Why the patches of a request cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// A patch, or the directory of the patches, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the patch or directory.
        path: PathBuf,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// There is neither `OLD.ed` nor `OLD.ed.NAME.gz`.
    #[error("no patches for {}", .0.display())]
    None(PathBuf),
    /// There are too many patches.
    #[error("more than {STEPS_MAX} patches for {}", .0.display())]
    TooMany(PathBuf),
    /// The patches are too large.
    #[error("patches for {} have {}, which is too much", path.display(), units::bytes(*bytes))]
    TooLarge {
        /// Path of the old index.
        path: PathBuf,
        /// Total size of the patches in bytes, decompressed.
        bytes: u64,
    },
    /// APT sent no size and SHA-256 for a patch.
    #[error("APT gave no size and SHA-256 of patch {number} ({})", path.display())]
    Unnamed {
        /// Number of the patch in the list, from 0.
        number: usize,
        /// Path of the patch.
        path: PathBuf,
    },
    /// APT named more patches than there are.
    #[error("patch {number} of {} is missing", path.display())]
    Missing {
        /// Number of the patch in the list, from 0.
        number: usize,
        /// Path of the old index.
        path: PathBuf,
    },
    /// The content of a patch differs from what was signed.
    #[error("{}: {size} bytes with SHA-256 {sha256}, expected are {expected_size} bytes, {expected_sha256}", path.display())]
    Mismatch {
        /// Path of the patch.
        path: PathBuf,
        /// Actual size in bytes.
        size: u64,
        /// SHA-256 of the actual content.
        sha256: Sha256,
        /// Signed size in bytes.
        expected_size: u64,
        /// Signed SHA-256.
        expected_sha256: Sha256,
    },
    /// The content of a patch is not a valid ed script.
    #[error("{}: {source}", path.display())]
    Script {
        /// Path of the patch.
        path: PathBuf,
        /// Where and why the script is invalid.
        source: ScriptError,
    },
}

/// The verified patches of a request.
#[derive(Debug)]
pub(super) struct Patches {
    /// The edits of each patch, oldest first.
    pub edits: Vec<Edits>,
    /// SHA-256 of the last patch's content.
    pub last_sha256: Sha256,
    /// Time of the last patch, Unix seconds.
    pub mtime_unix_s: i64,
}

/// Reads the patches for this index that a request names.
///
/// # Errors
///
/// [`PatchError`] if a patch is missing, unreadable, unnamed by APT, too large, not as signed, or not a valid script.
pub(super) fn read(old: &Path, message: &Message) -> Result<Patches, PatchError> {
    let paths = find(old)?;
    let mut named = Vec::with_capacity(paths.len());
    let mut bytes = 0_u64;
    for (number, path) in paths.iter().enumerate() {
        let named_patch = name(message, number).ok_or_else(|| PatchError::Unnamed { number, path: path.clone() })?;
        bytes = bytes.saturating_add(named_patch.size);
        named.push(named_patch);
    }
    if name(message, paths.len()).is_some() {
        return Err(PatchError::Missing { number: paths.len(), path: old.to_owned() });
    }
    if bytes > PATCHES_BYTES_MAX {
        return Err(PatchError::TooLarge { path: old.to_owned(), bytes });
    }
    let mut patches = Patches { edits: Vec::with_capacity(paths.len()), last_sha256: Sha256::EMPTY, mtime_unix_s: 0 };
    for (path, named) in paths.iter().zip(&named) {
        let (edits, mtime_unix_s) = one(path, named)?;
        patches.edits.push(edits);
        (patches.last_sha256, patches.mtime_unix_s) = (named.sha256, mtime_unix_s);
    }
    Ok(patches)
}

/// Size and hash of a patch, plain.
struct Named {
    size: u64,
    sha256: Sha256,
}

fn name(message: &Message, number: usize) -> Option<Named> {
    let size = message.get(&format!("Patch-{number}-Checksum-FileSize-Hash"))?.parse().ok()?;
    let sha256 = message.get(&format!("Patch-{number}-SHA256-Hash"))?.parse().ok()?;
    Some(Named { size, sha256 })
}

/// The paths of the patches, in order.
fn find(old: &Path) -> Result<Vec<PathBuf>, PatchError> {
    let single = with_suffix(old, ".ed");
    if single.is_file() {
        return Ok(vec![single]);
    }
    let directory = old.parent().unwrap_or(Path::new("/"));
    let cannot = |source| PatchError::Read { path: directory.to_owned(), source };
    let start = with_suffix(Path::new(old.file_name().unwrap_or_default()), ".ed.").into_os_string();
    let is_patch = |name: &OsStr| name.as_bytes().starts_with(start.as_bytes()) && name.as_bytes().ends_with(b".gz");
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(cannot)? {
        let entry = entry.map_err(cannot)?;
        if is_patch(&entry.file_name()) {
            paths.push(entry.path());
        }
        if paths.len() > STEPS_MAX {
            return Err(PatchError::TooMany(old.to_owned()));
        }
    }
    if paths.is_empty() {
        return Err(PatchError::None(old.to_owned()));
    }
    paths.sort_unstable_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
    Ok(paths)
}

/// Reads one patch; returns its edits and its time.
fn one(path: &Path, named: &Named) -> Result<(Edits, i64), PatchError> {
    let content = || {
        let file = File::open(path)?;
        let mtime_unix_s = file.metadata()?.mtime();
        let mut content = Vec::new();
        // No preallocation for a claimed size.
        Reader::open(Form::Gz, BufReader::new(file), named.size)?.read_to_end(&mut content)?;
        Ok((content, mtime_unix_s))
    };
    let (content, mtime_unix_s) = content().map_err(|source| PatchError::Read { path: path.to_owned(), source })?;
    let (size, sha256) = (content.len() as u64, Sha256::of(&content));
    if (size, sha256) != (named.size, named.sha256) {
        return Err(PatchError::Mismatch {
            path: path.to_owned(),
            size,
            sha256,
            expected_size: named.size,
            expected_sha256: named.sha256,
        });
    }
    let edits = Edits::parse(content).map_err(|source| PatchError::Script { path: path.to_owned(), source })?;
    Ok((edits, mtime_unix_s))
}
