//! The flags of `fullbore check`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::s3::{STORE, StoreArgs, StoreLock};
use super::shared::{NetworkArgs, OutputArgs, TrustArgs};
use super::store::GridArgs;
use crate::settings::values::Percent;

pub(super) const LONG: &str = "\
Verify an archive, on disk or in an S3 store, against its signed indexes, or files in a Tahoe-LAFS grid \
against their caps.

For an archive: verifies the signature of every InRelease below DIR, and follows the hashes from \
there to the indexes and to every file. Names each file that is missing or has the wrong size or \
content. --repair fetches these files. Works on any Debian archive, whichever tool made it. In a \
store, --checksums compares checksums from the store or from fullbore's metadata, and reads only \
files without either. --repair replaces an object only if nobody has changed it since the check.

For a grid: asks all servers for the shares of every file, also below directories, many files at \
once. Names each file that lacks shares, or has them on fewer servers than the node requires. \
Servers delete shares whose leases expire: --renew renews them. --verify reads all shares; --repair \
uploads missing shares again. Exit code 2: all files can be read, but some lack shares; 4: files can \
no longer be read, or shares are damaged.";

const EXAMPLES: &str = "\
Examples:
  Read everything:
    fullbore check /srv/mirror/debian
  Read a random twentieth, for example every night:
    fullbore check /srv/mirror/debian --read-data-subset 5%
  Fetch missing and wrong files:
    fullbore check /srv/mirror/debian --repair --from https://deb.example.org/debian
  Check a mirror in a bucket without downloading its packages, and repair it:
    fullbore check s3://my-bucket/debian --checksums --repair
  Check all files that an upload listed, and renew their leases, for example every week:
    fullbore check --node ~/.tahoe --renew --caps caps.jsonl
  Check a directory in a grid and all below it, and upload missing shares again:
    fullbore check --node ~/.tahoe --repair - < dir.cap";

const GRID: &str = "Grid";

/// `fullbore check`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct CheckArgs {
    /// The archive: the directory or bucket that holds dists/. Or caps of a grid; `-` reads caps from stdin, one per line
    #[arg(value_name = "DIR|s3://BUCKET/PREFIX|CAP", required_unless_present = "caps")]
    pub what: Vec<OsString>,

    /// Read the content of a random share of the files; check the sizes of all
    #[arg(long, value_name = "PERCENT")]
    pub read_data_subset: Option<Percent>,

    /// Compare checksums from the store, or from fullbore's metadata; read only files without either, and those of
    /// --read-data-subset
    #[arg(long, help_heading = STORE)]
    pub checksums: bool,

    /// Read fullbore's own files from this address, as given to mirror --state (default: beside the mirror)
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX", help_heading = STORE)]
    pub state: Option<PathBuf>,

    /// Keep two runs apart by a lock in the bucket; `none` if the store has no conditional writes [default: bucket]
    #[arg(long, value_name = "WHAT", help_heading = STORE, value_enum)]
    pub lock: Option<StoreLock>,

    /// Which store has the bucket.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Do not sign requests to the buckets of --from; for public buckets
    #[arg(long, help_heading = STORE)]
    pub no_sign_request: bool,

    /// Fetch missing and wrong files, or upload missing shares again
    #[arg(long)]
    pub repair: bool,

    /// Repair from this mirror; repeat for more (default: the mirrors that the files came from)
    ///
    /// An archive in an S3 store is s3://BUCKET/PREFIX; `fullbore mirror --help` says how to name its store.
    #[arg(long, value_name = "URL|s3://BUCKET/PREFIX", value_delimiter = ' ')]
    pub from: Vec<String>,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors when repairing.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Check the files in this list: one cap per line, or the list of put --caps
    #[arg(long, value_name = "FILE", help_heading = GRID)]
    pub caps: Option<PathBuf>,

    /// Renew the leases on all shares with the secrets of the node
    #[arg(long, help_heading = GRID)]
    pub renew: bool,

    /// Read all shares, and verify them against the caps
    #[arg(long, help_heading = GRID)]
    pub verify: bool,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
