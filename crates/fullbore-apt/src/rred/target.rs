//! The expected result of a request.
//!
//! If APT merges the patches itself, it sends the expected result (`Expected-SHA256`). If the archive has merged them
//! (`X-Patch-Precedence: merged`, as Debian does), or if APT applies one patch after the other, it sends nothing, and
//! accepts any result of the last patch. The hash is known all the same, from the index of patches, `….diff_Index`. APT
//! has fetched it, verified it by the signed Release, and put it beside the old index. It is in `partial/` or, if the
//! archive said that it has not changed, one directory above.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use fullbore_debian::compression::{Form, Reader};
use fullbore_debian::diff_index::DiffIndex;
use fullbore_debian::index::IndexError;
use fullbore_engine::digest::Sha256;

use super::patches::Patches;
use super::with_suffix;
use crate::acquire::Request;
use crate::rewrite::Expected;

/// Largest index of patches in bytes, decompressed. Debian's have 40 kB.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// Why the expected result is unknown.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// APT's expectation is incomplete or malformed.
    #[error("APT's expectation is not a size with a SHA-256")]
    Expectation,
    /// APT sent no expectation, and there is no index of patches.
    #[error("cannot verify the result: neither APT nor an index of patches beside {} gives its hash", .0.display())]
    NoIndex(PathBuf),
    /// The index of patches cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the index of patches.
        path: PathBuf,
        /// The error of the system or the decompressor.
        source: io::Error,
    },
    /// The index of patches is invalid.
    #[error("{}: {source}", path.display())]
    Index {
        /// Path of the index of patches.
        path: PathBuf,
        /// Where and why it is invalid.
        source: IndexError,
    },
    /// The index of patches does not list the patch.
    #[error("{}: lists no patch with SHA-256 {sha256}", path.display())]
    Unlisted {
        /// Path of the index of patches.
        path: PathBuf,
        /// SHA-256 of the patch.
        sha256: Sha256,
    },
}

/// Finds size and SHA-256 of the result: in the request, or else in the index of patches.
///
/// # Errors
///
/// [`TargetError`] if APT's expectation is malformed, or if there is none and the index of patches is missing, invalid,
/// or does not list the last patch.
pub(super) fn expected(request: &Request, old: &Path, patches: &Patches) -> Result<Expected, TargetError> {
    if request.message.fields.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("expected-")) {
        // APT may send other hashes as well; without SHA-256 they do not count.
        return match (request.expected_size(), request.expected_sha256()) {
            (Some(size), Some(sha256)) => Ok(Expected { size, sha256 }),
            _ => Err(TargetError::Expectation),
        };
    }
    let (path, index) = diff_index(old)?;
    let start = request.message.get("Start-SHA256-Hash").and_then(|hex| hex.parse().ok());
    state_after(&index, &patches.last_sha256, start).ok_or(TargetError::Unlisted { path, sha256: patches.last_sha256 })
}

/// The state after the patch with this hash; `start` distinguishes equal patches. Among equal patches the last counts,
/// as in APT: if a state comes back, its history begins there.
fn state_after(index: &DiffIndex, patch: &Sha256, start: Option<Sha256>) -> Option<Expected> {
    let before = |name: &str| index.main.history.iter().find(|state| state.name == name);
    let fits = |name: &str| start.is_none_or(|start| before(name).is_some_and(|state| state.sha256 == start));
    let at = index.main.patches.iter().rposition(|listed| listed.sha256 == *patch && fits(&listed.name))?;
    let current = Expected { sha256: index.current.0, size: index.current.1 };
    match index.main.patches.get(at + 1) {
        // Each patch leads to the state that the next one starts from.
        Some(next) if !index.merged => {
            before(&next.name).map(|state| Expected { sha256: state.sha256, size: state.size })
        }
        _ => Some(current),
    }
}

/// The index of patches that belongs to an old index in `partial/`.
fn diff_index(old: &Path) -> Result<(PathBuf, DiffIndex), TargetError> {
    let text = old.to_str().unwrap_or_default();
    let (stem, _) = Form::split(text);
    let stem = Path::new(stem);
    let above = stem.parent().and_then(Path::parent).zip(stem.file_name()).map(|(above, name)| above.join(name));
    for candidate in [Some(stem.to_owned()), above].into_iter().flatten() {
        for form in Form::BY_SPEED {
            let path = with_suffix(&candidate, &format!(".diff_Index{}", form.extension()));
            let file = match File::open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(TargetError::Read { path, source }),
            };
            let reader = match Reader::open(form, BufReader::new(file), INDEX_BYTES_MAX) {
                Ok(reader) => reader,
                Err(source) => return Err(TargetError::Read { path, source }),
            };
            return match DiffIndex::parse(reader) {
                Ok(index) => Ok((path, index)),
                Err(source) => Err(TargetError::Index { path, source }),
            };
        }
    }
    Err(TargetError::NoIndex(old.to_owned()))
}
