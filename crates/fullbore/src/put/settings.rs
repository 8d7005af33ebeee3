//! What `put` was asked for: encoding, key, grid.

use fullbore_store::lafs::base32;
use fullbore_store::lafs::geometry::{DEFAULT_ENCODING, Encoding, SEGMENT_BYTES};
use fullbore_store::lafs::node::read_convergence;
use fullbore_store::lafs::upload::{KeyChoice, PutOptions};

use crate::cli::PutArgs;
use crate::error::CommandError;
use crate::grid::{Place, place, unreadable};

/// Resolved settings.
pub struct PutSettings {
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
        if !SEGMENT_BYTES.contains(&arguments.segment_size) {
            let (least, most) = (SEGMENT_BYTES.start(), SEGMENT_BYTES.end());
            return Err(CommandError::usage(format_args!(
                "--segment-size {}: {least} to {most} bytes are possible",
                arguments.segment_size
            )));
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
            (None, Some(file)) => KeyChoice::Convergent(read_convergence(file).map_err(|error| unreadable(&error))?.0),
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
        Ok(PutSettings { options: PutOptions { encoding, segment_max: arguments.segment_size, key }, place })
    }
}

/// `K,H,N`.
fn encoding(text: &str) -> Result<Encoding, CommandError> {
    let numbers: Option<Vec<u16>> = text.split(',').map(|number| number.trim().parse().ok()).collect();
    let Some([needed, happy, total]) = numbers.and_then(|numbers| <[u16; 3]>::try_from(numbers).ok()) else {
        return Err(CommandError::usage(format_args!("--encoding {text}: three numbers are needed, such as 3,7,10")));
    };
    Encoding::new(needed, happy, total).map_err(|error| CommandError::usage(format_args!("--encoding {text}: {error}")))
}
