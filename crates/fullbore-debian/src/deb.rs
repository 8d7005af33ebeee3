//! Binary packages: an `ar` archive of `debian-binary`, `control.tar` and `data.tar` (deb(5)).
//!
//! Opening a package reads everything before the files, which is small. [`data`] reads the files.

mod control;
mod data;
#[cfg(test)]
mod tests;

use std::io::{self, Read};

use thiserror::Error;

use crate::ar::{self, ArError};
use crate::tar::TarError;

pub use control::{Control, ControlFile};
pub use data::{DataReader, Proof, blocks_of_xz, data};

/// Maximum size of a `control.tar`, compressed or not, in bytes. The largest in Debian has 2 MB of md5sums.
pub(crate) const CONTROL_BYTES_MAX: u64 = 64 << 20;

/// Compression of the members `control.tar` and `data.tar` (deb(5)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// No compression.
    None,
    /// gzip: `.gz`
    Gzip,
    /// xz: `.xz`
    Xz,
    /// Zstandard: `.zst`; dpkg reads it since 1.21.18.
    Zstd,
    /// bzip2: `.bz2`, for `data.tar` only.
    Bzip2,
    /// LZMA: `.lzma`, for `data.tar` only.
    Lzma,
}

impl Compression {
    /// Returns the compression of an extension, with its dot.
    fn by_extension(extension: &[u8]) -> Option<Compression> {
        Some(match extension {
            b"" => Compression::None,
            b".gz" => Compression::Gzip,
            b".xz" => Compression::Xz,
            b".zst" => Compression::Zstd,
            b".bz2" => Compression::Bzip2,
            b".lzma" => Compression::Lzma,
            _ => return None,
        })
    }
}

/// Position and compression of `data.tar` in a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataMember {
    /// Offset in bytes from the start of the package.
    pub offset: u64,
    /// Size of the compressed `data.tar`, in bytes.
    pub bytes: u64,
    /// Compression of `data.tar`, told from its suffix.
    pub compression: Compression,
}

/// Everything before the files of a package.
#[derive(Debug, Clone)]
pub struct Package {
    /// Content of `control.tar`, read whole.
    pub control: Control,
    /// Position of `data.tar` in the package.
    pub data: DataMember,
}

/// Why a binary package could not be read.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DebError {
    /// The ar archive is malformed.
    #[error(transparent)]
    Ar(#[from] ArError),
    /// Members are missing, repeated or in the wrong order.
    #[error("not a Debian package: {0}")]
    Members(&'static str),
    /// The version of the package format is unknown.
    #[error("package format {0}: only 2.x is known")]
    Format(String),
    /// A member has an unknown compression.
    #[error("{0}: unknown compression")]
    Compression(String),
    /// `control.tar` is malformed.
    #[error("control.tar: {0}")]
    Control(#[source] TarError),
    /// `control.tar` has an invalid member.
    #[error("control.tar: {name}: {what}")]
    ControlFile {
        /// Name of the member.
        name: String,
        /// The fault.
        what: &'static str,
    },
    /// A member cannot be read or decompressed.
    #[error("{member}: {source}")]
    Read {
        /// Name of the member.
        member: &'static str,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
}

impl Package {
    /// Reads a package from its start to the start of `data.tar`.
    ///
    /// # Errors
    /// [`DebError::Ar`], [`DebError::Members`] or [`DebError::Format`] if the file is not a package of format 2;
    /// [`DebError::Compression`] for an unknown one; [`DebError::Control`] or [`DebError::ControlFile`] if
    /// `control.tar` is malformed; [`DebError::Read`] if the input fails.
    pub fn read<R: Read>(input: R) -> Result<Package, DebError> {
        let mut archive = ar::Reader::new(input);
        let version = archive.next_member()?.ok_or(DebError::Members("it is empty"))?;
        if version.name != b"debian-binary" {
            return Err(DebError::Members("the first member is not debian-binary"));
        }
        check_version(&small(&mut archive, "debian-binary", version.size, 64)?)?;
        let control = next_known(&mut archive)?.ok_or(DebError::Members("no control.tar"))?;
        let form = compression(&control.name, b"control.tar", "control.tar")?;
        if matches!(form, Compression::Bzip2 | Compression::Lzma) {
            return Err(DebError::Compression(String::from_utf8_lossy(&control.name).into_owned()));
        }
        let packed = small(&mut archive, "control.tar", control.size, CONTROL_BYTES_MAX)?;
        let control = Control::read(&packed, form)?;
        let member = next_known(&mut archive)?.ok_or(DebError::Members("no data.tar"))?;
        let compression = compression(&member.name, b"data.tar", "data.tar")?;
        Ok(Package { control, data: DataMember { offset: member.offset, bytes: member.size, compression } })
    }
}

/// Returns the next member whose name does not begin with `_`. Members with such names may be anywhere, and are skipped
/// (deb(5)).
fn next_known<R: Read>(archive: &mut ar::Reader<R>) -> Result<Option<ar::Member>, ArError> {
    loop {
        match archive.next_member()? {
            Some(member) if member.name.starts_with(b"_") => {}
            member => return Ok(member),
        }
    }
}

/// Checks for a first line `2.x`; more lines may follow.
fn check_version(content: &[u8]) -> Result<(), DebError> {
    let line = content.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let minor = line.strip_prefix(b"2.").filter(|minor| !minor.is_empty() && minor.iter().all(u8::is_ascii_digit));
    match minor {
        Some(_) if content.contains(&b'\n') => Ok(()),
        _ => Err(DebError::Format(String::from_utf8_lossy(line).into_owned())),
    }
}

fn compression(name: &[u8], stem: &[u8], missing: &'static str) -> Result<Compression, DebError> {
    let extension = name.strip_prefix(stem).ok_or(DebError::Members(if missing == "data.tar" {
        "the member after control.tar is not data.tar"
    } else {
        "the member after debian-binary is not control.tar"
    }))?;
    Compression::by_extension(extension)
        .ok_or_else(|| DebError::Compression(String::from_utf8_lossy(name).into_owned()))
}

fn small<R: Read>(
    archive: &mut ar::Reader<R>,
    member: &'static str,
    size: u64,
    limit: u64,
) -> Result<Vec<u8>, DebError> {
    if size > limit {
        return Err(DebError::Members("a member before data.tar is larger than any package needs"));
    }
    let mut content = Vec::new();
    archive.content().read_to_end(&mut content).map_err(|source| DebError::Read { member, source })?;
    Ok(content)
}
