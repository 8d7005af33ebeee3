//! The flags of `fullbore divert` and of what is below it.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(super) const LONG: &str = "\
Make dpkg and apt-get of another root run without syncs, or undo it.

For installers and builders that call these programs themselves. `on` puts a wrapper in the place \
of each program by a dpkg diversion, `off` brings the programs back, removes everything, and syncs. \
Both may be killed at any moment and run again; there is no moment without dpkg.";

const EXAMPLES: &str = "\
Examples:
  While a system is installed below /target:
    fullbore divert on --root /target
  The same for APT alone, without diversions:
    fullbore divert on --root /target --via apt-conf
  See what is diverted:
    fullbore divert status --root /target
  Put everything back:
    fullbore divert off --root /target";

/// `fullbore divert`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES)]
pub struct DivertArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: DivertCommand,
}

/// What `fullbore divert` does.
#[derive(Debug, Subcommand)]
pub enum DivertCommand {
    /// Have programs run without syncs
    ///
    /// A copy of this program is put into the root and has to run there.
    On(DivertOnArgs),
    /// Bring programs back, and sync
    Off(DivertOffArgs),
    /// Show what is diverted
    Status(DivertStatusArgs),
}

/// `fullbore divert on`.
#[derive(Debug, Args)]
pub struct DivertOnArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// How programs are made to run without syncs
    #[arg(long, value_name = "WAY", value_enum, default_value_t = DivertVia::Diversions)]
    pub via: DivertVia,

    /// Divert these, as paths within the root (default: dpkg, apt-get, aptitude, tasksel in /usr/bin)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}

/// `--via` of `fullbore divert on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DivertVia {
    /// By dpkg's diversions: whoever starts the program
    Diversions,
    /// By APT's configuration: dpkg, when APT starts it; nothing of dpkg's is changed
    AptConf,
}

/// `fullbore divert off`.
#[derive(Debug, Args)]
pub struct DivertOffArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// Bring these back, as paths within the root (default: all that were diverted)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}

/// `fullbore divert status`.
#[derive(Debug, Args)]
pub struct DivertStatusArgs {
    /// Look at the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// Look at these, as paths within the root (default: all that are diverted)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}
