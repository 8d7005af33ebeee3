//! The flags of `fullbore ls`; those of S3 stores are in `s3`.

use std::ffi::OsString;

use clap::Args;

use super::s3::S3Args;
use super::shared::OutputArgs;
use super::store::GridArgs;

pub(super) const LONG: &str = "\
List a directory in a Tahoe-LAFS grid, or objects of an S3 store.

Prints one line per entry: size, time and name; directories end in /. Never prints caps. Reads \
immutable and mutable directories. In a store, shows keys with a slash after the prefix as \
directories.";

const EXAMPLES: &str = "\
Examples:
  List a directory; its cap comes from a file, so that it is not in the list of processes:
    fullbore ls --node ~/.tahoe - < dir.cap
  List a directory below it, as lines of JSON:
    fullbore ls --node ~/.tahoe --json \"$(cat dir.cap)/photos\"
  List everything below a directory:
    fullbore ls -R --node ~/.tahoe - < dir.cap
  List objects and directories below a prefix:
    fullbore ls s3://my-bucket/photos/
  List all objects of a bucket, with their whole keys:
    fullbore ls --recursive s3://my-bucket";

/// `fullbore ls`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct LsArgs {
    /// Cap of a directory, or CAP/PATH for one below it; `-` reads it from stdin. Or s3://BUCKET/PREFIX/
    #[arg(value_name = "s3://BUCKET/PREFIX|CAP")]
    pub what: OsString,

    /// List everything below the directory or prefix, not one level
    #[arg(long, short = 'R')]
    pub recursive: bool,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,

    /// The store.
    #[command(flatten)]
    pub s3: S3Args,
}
