//! The flags of `fullbore convert`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

pub(super) const LONG: &str = "\
Convert settings of apt-mirror (mirror.list), debmirror (debmirror.conf) or ftpsync (ftpsync.conf) \
to fullbore's.

fullbore reads the file and never executes it. It names each setting that has no counterpart, on \
stderr and as a comment in the result.";

const EXAMPLES: &str = "\
Examples:
  Print the result:
    fullbore convert /etc/apt/mirror.list
  Write it to the settings file:
    fullbore convert /etc/debmirror.conf -o /etc/fullbore/mirror.toml";

/// `fullbore convert`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct ConvertArgs {
    /// The file to convert
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write the result to this file instead of stdout; never replace an existing file
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,

    /// Read the file as settings of this program (default: detect by name, then by content)
    #[arg(long, value_name = "PROGRAM")]
    pub format: Option<ForeignFormat>,
}

/// The program whose settings file is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ForeignFormat {
    /// apt-mirror's mirror.list.
    AptMirror,
    /// debmirror.conf.
    Debmirror,
    /// ftpsync.conf.
    Ftpsync,
}
