//! The flags of `fullbore apt` and of what is below it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(super) const LONG: &str = "\
Make the system's own apt use fullbore's methods, or undo it.

apt asks programs of its own, its methods, to fetch files and to apply patches to indexes. `enable` \
writes one file, /etc/apt/apt.conf.d/90fullbore, which makes it ask fullbore instead; `disable` \
removes that file, and nothing is left. No file of apt's is replaced.";

const EXAMPLES: &str = "\
Examples:
  Let apt-get update apply patches faster:
    fullbore apt enable
  Let apt also fetch from several mirrors at once:
    fullbore apt enable --mirrors /etc/fullbore/mirrors.txt
  See what apt uses:
    fullbore apt status
  Undo it:
    fullbore apt disable";

/// `fullbore apt`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct AptArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: AptCommand,
}

/// What `fullbore apt` does.
#[derive(Debug, Subcommand)]
pub enum AptCommand {
    /// Make apt use fullbore's methods
    ///
    /// The program is tried out first, as the user that apt gives its methods. With --mirrors apt
    /// also fetches by fullbore's http and https methods; without, only indexes are patched by
    /// fullbore.
    Enable(AptEnableArgs),
    /// Make apt use its own methods again
    Disable(AptDisableArgs),
    /// Show which methods apt uses
    ///
    /// Exit code 2 tells of problems: another file that overrides fullbore's, a program that is not
    /// there any more, changes by hand.
    Status(AptStatusArgs),
}

/// `fullbore apt enable`.
#[derive(Debug, Args)]
pub struct AptEnableArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Have apt start this program (default: this one; in another root /usr/bin/fullbore)
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,

    /// Fetch from the mirrors listed in this file, too; repeat for more
    #[arg(long, value_name = "FILE")]
    pub mirrors: Vec<PathBuf>,

    /// How hard to compress indexes that apt keeps compressed
    #[arg(long, value_name = "LEVEL", default_value = "own")]
    pub level: AptLevel,

    /// Replace a snippet that was changed by hand
    #[arg(long)]
    pub force: bool,
}

/// `fullbore apt disable`.
#[derive(Debug, Args)]
pub struct AptDisableArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Remove a snippet that was changed by hand
    #[arg(long)]
    pub force: bool,
}

/// `fullbore apt status`.
#[derive(Debug, Args)]
pub struct AptStatusArgs {
    /// Look at the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Print it as a line of JSON
    #[arg(long)]
    pub json: bool,
}

/// How hard kept indexes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AptLevel {
    /// Fast: zstd 3, xz 0, gz 6, lz4 1
    Own,
    /// As apt does it, for the smallest files
    Apt,
}
