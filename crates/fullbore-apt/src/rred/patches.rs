//! The patches of a request: found beside the old index, decompressed, verified, parsed.
//!
//! One patch is `OLD.ed` (gzip data despite its name); several are `OLD.ed.NAME.gz`, in the
//! order of their names. APT tells size and hash of each as `Patch-0-…`, `Patch-1-…`, taken
//! from the signed index of patches. A patch that APT did not name, or one that it named and
//! that is not there, is an error.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::pdiff::{Edits, STEPS_MAX, ScriptError};
use fullbore_engine::digest::Sha256;

use super::with_suffix;
use crate::acquire::Message;

/// Most bytes of all patches of a request, decompressed. Fourteen days of the largest index are
/// 8 MB; APT itself prefers the full index to patches that are larger than it.
const PATCHES_BYTES_MAX: u64 = 512 << 20;

/// Unusable patches.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PatchError {
    /// A patch, or the directory they are in, cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// Neither `OLD.ed` nor `OLD.ed.NAME.gz`.
    #[error("no patches for {}", .0.display())]
    None(PathBuf),
    /// Too many patches.
    #[error("more than {STEPS_MAX} patches for {}", .0.display())]
    TooMany(PathBuf),
    /// Too many bytes.
    #[error("patches of {bytes} bytes for {}", path.display())]
    TooLarge {
        /// The old index.
        path: PathBuf,
        /// Size of the patches, decompressed.
        bytes: u64,
    },
    /// APT sent no size and SHA-256.
    #[error("APT gave no size and SHA-256 of patch {number} ({})", path.display())]
    Unnamed {
        /// Number in the list, from 0.
        number: usize,
        /// The patch.
        path: PathBuf,
    },
    /// APT named more patches than there are.
    #[error("patch {number} of {} is missing", path.display())]
    Missing {
        /// Number in the list, from 0.
        number: usize,
        /// The old index.
        path: PathBuf,
    },
    /// The content is not what was signed.
    #[error("{}: {size} bytes with SHA-256 {sha256}, expected are {expected_size} bytes, {expected_sha256}", path.display())]
    Mismatch {
        /// The patch.
        path: PathBuf,
        /// Bytes of its content.
        size: u64,
        /// Hash of its content.
        sha256: Sha256,
        /// Expected bytes.
        expected_size: u64,
        /// Expected hash.
        expected_sha256: Sha256,
    },
    /// The content is not a valid script.
    #[error("{}: {source}", path.display())]
    Script {
        /// The patch.
        path: PathBuf,
        /// The error.
        source: ScriptError,
    },
}

/// The verified patches of a request.
#[derive(Debug)]
pub struct Patches {
    /// Their edits, oldest first.
    pub edits: Vec<Edits>,
    /// SHA-256 of the last patch's content.
    pub last_sha256: Sha256,
    /// Time of the last patch, Unix seconds.
    pub mtime_unix_s: i64,
}

/// Reads the patches for this index that a request names.
pub fn read(old: &Path, message: &Message) -> Result<Patches, PatchError> {
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
