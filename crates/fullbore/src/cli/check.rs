//! The flags of `fullbore check`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{NetworkArgs, OutputArgs, TrustArgs};
use crate::settings::values::Percent;

pub(super) const LONG: &str = "\
Verify an archive on disk against its signed indexes.

Verifies the signature of every InRelease below DIR, and follows the hashes from there to the \
indexes and to every file. Names each file that is missing or has the wrong size or content. \
--repair fetches these files. Works on any Debian archive, whichever tool made it.";

const EXAMPLES: &str = "\
Examples:
  Read everything:
    fullbore check /srv/mirror/debian
  Read a random twentieth, for example every night:
    fullbore check /srv/mirror/debian --read-data-subset 5%
  Fetch missing and wrong files:
    fullbore check /srv/mirror/debian --repair --from https://deb.example.org/debian";

/// `fullbore check`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct CheckArgs {
    /// The archive: the directory that holds dists/
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Read the content of a random share of the files; check the sizes of all
    #[arg(long, value_name = "PERCENT")]
    pub read_data_subset: Option<Percent>,

    /// Fetch missing and wrong files
    #[arg(long)]
    pub repair: bool,

    /// Repair from this mirror; repeat for more (default: the mirrors that the files came from)
    #[arg(long, value_name = "URL", value_delimiter = ' ')]
    pub from: Vec<String>,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors when repairing.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
