//! The settings of `put`, and what they resolve to: encoding, key, grid.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use fullbore_engine::run::{CommandError, Events};
use fullbore_engine::tree::Choice;
use fullbore_engine::units::bytes;

use crate::base32;
use crate::geometry::{DEFAULT_ENCODING, Encoding, Geometry, SEGMENT_BYTES};
use crate::grid::{GridAccess, GridSettings, access};
use crate::node::read_convergence;
use crate::upload::{KeyChoice, PutOptions};

/// Memory for unacknowledged blocks in bytes. 64 MiB carry 1 Gbit/s over half a second.
const MEMORY_BYTES: u64 = 64 << 20;

/// Most memory for the blocks of one segment, all of which are in memory at once. A guess at the size that a user would
/// want to be warned of.
const SEGMENT_MEMORY_MAX: u64 = 1 << 30;

/// Default size of a segment in bytes, as of the stock client.
const DEFAULT_SEGMENT_BYTES: u64 = 1 << 20;

/// Settings of one `fullbore put` into a grid.
#[derive(Debug, Clone)]
pub struct PutSettings {
    /// The grid; not needed for `dry_run`.
    pub grid: GridSettings,
    /// Files and directories; `-` is stdin.
    pub paths: Vec<PathBuf>,
    /// Which files of directories to upload, and how to treat links.
    pub choice: Choice,
    /// Only compute and emit the caps.
    pub dry_run: bool,
    /// `K,H,N`: shares needed, servers that must hold one, shares made; `None`: the node's or the default.
    pub encoding: Option<String>,
    /// Largest segment in bytes; `None`: the default.
    pub segment_bytes: Option<u64>,
    /// How the key of each file is made.
    pub key: KeySettings,
    /// Number of bytes on stdin, if known.
    pub stdin_bytes: Option<u64>,
    /// File for the list of files and caps.
    pub list: Option<PathBuf>,
    /// Directory for the journals of uploads; `None`: no journal.
    pub journals: Option<PathBuf>,
    /// Directory for the temporary file that holds stdin until its end.
    pub spool: PathBuf,
    /// Limit in bytes sent per second; `None`: unlimited.
    pub limit_rate_bytes_per_s: Option<u64>,
}

/// How the key of each file is made: convergent or random.
#[derive(Clone, Default)]
pub enum KeySettings {
    /// From the content and the node's convergence secret.
    #[default]
    OfNode,
    /// From the content and this secret, in base32.
    Secret(OsString),
    /// From the content and the secret in this file.
    File(PathBuf),
    /// At random.
    Random,
}

impl fmt::Debug for KeySettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KeySettings::OfNode => "OfNode",
            KeySettings::Secret(_) => "Secret(…)",
            KeySettings::File(_) => "File(…)",
            KeySettings::Random => "Random",
        })
    }
}

/// The resolved settings.
pub(super) struct Resolved {
    /// Memory for unacknowledged blocks in bytes.
    pub memory_bytes: u64,
    /// How files are encoded.
    pub options: PutOptions,
    /// The grid; `None` only for `--dry-run`.
    pub access: Option<GridAccess>,
}

impl Resolved {
    /// Resolves the settings, and reads the files that they name.
    ///
    /// # Errors
    /// `ErrorKind::Usage` for a missing grid, an unreadable node directory or servers file, an invalid encoding,
    /// segment size or secret, or a segment that needs too much memory.
    pub(super) fn new(settings: &PutSettings, events: &mut dyn Events) -> Result<Resolved, CommandError> {
        let access = access(&settings.grid)?;
        if access.is_none() && !settings.dry_run {
            return Err(CommandError::usage("no Tahoe-LAFS grid is named")
                .hint("give --node ~/.tahoe for the grid of a Tahoe-LAFS node, or --servers FILE"));
        }
        let node = access.as_ref().and_then(|access| access.node.as_ref());
        let encoding = match &settings.encoding {
            Some(text) => encoding(text)?,
            None => node.map_or(DEFAULT_ENCODING, |node| node.encoding),
        };
        let segment_max = settings.segment_bytes.unwrap_or(DEFAULT_SEGMENT_BYTES);
        if !SEGMENT_BYTES.contains(&segment_max) {
            let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            let text = format!("--segment-size {segment_max}: must be {least} to {most} bytes");
            return Err(CommandError::usage(text));
        }
        if settings.stdin_bytes.is_some() && !settings.paths.iter().any(|path| path.as_os_str() == "-") {
            return Err(CommandError::usage("--size is about stdin, and `-` is not among the files"));
        }
        let key = match &settings.key {
            KeySettings::Random => KeyChoice::Random,
            KeySettings::Secret(secret) => {
                let secret = secret.to_str().and_then(|secret| base32::decode(secret).ok());
                KeyChoice::Convergent(secret.ok_or_else(|| {
                    CommandError::usage("--convergence: not base32 as Tahoe-LAFS writes it (a-z and 2-7, no padding)")
                })?)
            }
            KeySettings::File(file) => KeyChoice::Convergent(read_convergence(file).map_err(CommandError::usage)?.0),
            KeySettings::OfNode => match node {
                Some(node) => KeyChoice::Convergent(node.convergence.0.clone()),
                None => {
                    return Err(CommandError::usage("no convergence secret: no node is given")
                        .hint("pass --convergence-file FILE, or --random-key"));
                }
            },
        };
        if matches!(&key, KeyChoice::Convergent(secret) if secret.is_empty()) && !settings.dry_run {
            let warning = "the convergence secret is empty: whoever guesses a file can find out whether it is stored";
            events.warn(warning.to_owned());
        }
        let memory_bytes = memory(encoding, segment_max)?;
        if memory_bytes > MEMORY_BYTES {
            events.warn(format!(
                "the blocks of a segment are {} with this encoding, and so much memory is used; a smaller --segment-size \
                 makes them smaller (and gives other caps)",
                bytes(memory_bytes)
            ));
        }
        let options = PutOptions { encoding, segment_max, key };
        Ok(Resolved { memory_bytes, options, access })
    }
}

/// Memory for blocks in bytes: the default, or what one segment needs.
fn memory(encoding: Encoding, segment_max: u64) -> Result<u64, CommandError> {
    let segment = Geometry::new(encoding, segment_max, segment_max).map_err(CommandError::usage)?.segment_memory();
    if segment > SEGMENT_MEMORY_MAX {
        let Encoding { needed, total, .. } = encoding;
        return Err(CommandError::usage(format_args!(
            "{needed} of {total} shares and segments of {}: the blocks of a segment would be {} in memory",
            bytes(segment_max),
            bytes(segment)
        ))
        .hint("pass a smaller --segment-size"));
    }
    Ok(segment.max(MEMORY_BYTES))
}

/// Parses `K,H,N`.
fn encoding(text: &str) -> Result<Encoding, CommandError> {
    let numbers: Option<Vec<u16>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let Some([needed, happy, total]) = numbers.and_then(|numbers| <[u16; 3]>::try_from(numbers).ok()) else {
        return Err(CommandError::usage(format_args!("--encoding {text}: expected three numbers, such as 3,7,10")));
    };
    Encoding::new(needed, happy, total).map_err(|error| CommandError::usage(format_args!("--encoding {text}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_memory_for_one_segment_or_it_is_refused() {
        let of = |needed, total, segment_max| memory(Encoding::new(needed, 1, total).unwrap(), segment_max);
        assert_eq!(of(3, 10, 1 << 20).unwrap(), MEMORY_BYTES);
        assert_eq!(of(1, 256, 1 << 20).unwrap(), 256 << 20);
        let error = of(1, 256, 64 << 20).unwrap_err();
        assert!(error.message.contains("1 of 256"), "{}", error.message);
    }
}
