//! The flags of `fullbore ls`.

use std::ffi::OsString;

use clap::Args;

use super::shared::OutputArgs;
use super::store::GridArgs;

pub(super) const LONG: &str = "\
List a directory in a Tahoe-LAFS grid.

Prints one line per entry: size and time, and the name, with / behind directories. Caps are never \
printed. Reads immutable and mutable directories.";

const EXAMPLES: &str = "\
Examples:
  List a directory; its cap comes from a file, so that it is not in the list of processes:
    fullbore ls --node ~/.tahoe - < dir.cap
  List a directory below it, as lines of JSON:
    fullbore ls --node ~/.tahoe --json \"$(cat dir.cap)/photos\"";

/// `fullbore ls`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct LsArgs {
    /// Cap of a directory, or CAP/PATH for one below it; `-` reads it from stdin
    #[arg(value_name = "CAP")]
    pub what: OsString,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
