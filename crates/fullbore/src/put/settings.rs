//! What `put` was asked for: encoding, key, grid.

use fullbore_lafs::base32;
use fullbore_lafs::geometry::{DEFAULT_ENCODING, Encoding, Geometry, SEGMENT_BYTES};
use fullbore_lafs::node::read_convergence;
use fullbore_lafs::upload::{KeyChoice, PutOptions};

use crate::cli::PutArgs;
use crate::grid::{Place, place, say};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::units::bytes;

/// Memory for blocks that are not acknowledged. 64 MiB carry 1 Gbit/s over half a second.
const MEMORY_BYTES: u64 = 64 << 20;

/// The most that the blocks of one segment may need, all of which are in memory at once. A guess at what a person would
/// rather hear of before.
const SEGMENT_MEMORY_MAX: u64 = 1 << 30;

/// Bytes of a segment at most, as the stock client has it.
const DEFAULT_SEGMENT_BYTES: u64 = 1 << 20;

/// Resolved settings.
pub struct PutSettings {
    /// Memory for blocks that are not acknowledged, bytes.
    pub memory_bytes: u64,
    /// How files are encoded.
    pub options: PutOptions,
    /// The grid; none is needed for `--dry-run`.
    pub place: Option<Place>,
}

impl PutSettings {
    /// Reads flags and files.
    pub fn resolve(arguments: &PutArgs) -> Result<PutSettings, CommandError> {
        let place = place(&arguments.grid)?;
        if place.is_none() && !arguments.dry_run {
            return Err(CommandError::usage("which grid? --node or --servers says it")
                .hint("--node ~/.tahoe takes everything from a Tahoe-LAFS node's directory"));
        }
        let node = place.as_ref().and_then(|place| place.node.as_ref());
        let encoding = match &arguments.encoding {
            Some(text) => encoding(text)?,
            None => node.map_or(DEFAULT_ENCODING, |node| node.encoding),
        };
        let segment_max = arguments.segment_size.unwrap_or(DEFAULT_SEGMENT_BYTES);
        if !SEGMENT_BYTES.contains(&segment_max) {
            let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            let text = format_args!("--segment-size {segment_max}: {least} to {most} bytes are possible");
            return Err(CommandError::usage(text));
        }
        if arguments.size.is_some() && !arguments.paths.iter().any(|path| path.as_os_str() == "-") {
            return Err(CommandError::usage("--size is about stdin, and `-` is not among the files"));
        }
        let key = match (&arguments.convergence, &arguments.convergence_file) {
            _ if arguments.random_key => KeyChoice::Random,
            (Some(secret), _) => {
                let secret = secret.to_str().and_then(|secret| base32::decode(secret).ok());
                KeyChoice::Convergent(secret.ok_or_else(|| {
                    CommandError::usage("--convergence: not base32 as Tahoe-LAFS writes it (a-z and 2-7, no padding)")
                })?)
            }
            (None, Some(file)) => KeyChoice::Convergent(read_convergence(file).map_err(CommandError::usage)?.0),
            (None, None) => match node {
                Some(node) => KeyChoice::Convergent(node.convergence.0.clone()),
                None => {
                    return Err(CommandError::usage(
                        "from what are keys made? Without a node there is no convergence secret",
                    )
                    .hint("--convergence-file FILE for a secret of your own, --random-key for keys by chance"));
                }
            },
        };
        if matches!(&key, KeyChoice::Convergent(secret) if secret.is_empty()) && !arguments.dry_run {
            let warning =
                "warning: the convergence secret is empty: whoever guesses a file can find out whether it is stored";
            say(&arguments.grid, warning);
        }
        let memory_bytes = memory(encoding, segment_max)?;
        if memory_bytes > MEMORY_BYTES {
            let warning = format!(
                "warning: the blocks of a segment are {} with this encoding, and so much memory is used; a smaller \
                 --segment-size makes them smaller (and gives other caps)",
                bytes(memory_bytes)
            );
            say(&arguments.grid, &warning);
        }
        let options = PutOptions { encoding, segment_max, key };
        Ok(PutSettings { memory_bytes, options, place })
    }
}

/// Memory for blocks: as usual, or what one segment needs.
fn memory(encoding: Encoding, segment_max: u64) -> Result<u64, CommandError> {
    let segment = Geometry::new(encoding, segment_max, segment_max).map_err(CommandError::usage)?.segment_memory();
    if segment > SEGMENT_MEMORY_MAX {
        let Encoding { needed, total, .. } = encoding;
        return Err(CommandError::usage(format_args!(
            "{needed} of {total} shares and segments of {}: the blocks of a segment would be {} in memory",
            bytes(segment_max),
            bytes(segment)
        ))
        .hint("a smaller --segment-size"));
    }
    Ok(segment.max(MEMORY_BYTES))
}

/// `K,H,N`.
fn encoding(text: &str) -> Result<Encoding, CommandError> {
    let numbers: Option<Vec<u16>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let Some([needed, happy, total]) = numbers.and_then(|numbers| <[u16; 3]>::try_from(numbers).ok()) else {
        return Err(CommandError::usage(format_args!("--encoding {text}: three numbers are needed, such as 3,7,10")));
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
