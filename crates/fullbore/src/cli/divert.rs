//! The flags of `fullbore divert` and its commands.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

pub(super) const LONG: &str = "\
Make dpkg and apt-get in another root run without syncs, or undo it.

For installers and builders that call these programs themselves. `on` puts a wrapper in place of \
each program, with a dpkg diversion. `off` restores the programs, removes everything, and syncs. If \
either is killed, run it again; dpkg is never missing.";

const EXAMPLES: &str = "\
Examples:
  While a system is installed below /target:
    fullbore divert on --root /target
  The same for APT alone, without diversions:
    fullbore divert on --root /target --via apt-conf
  Show diverted programs:
    fullbore divert status --root /target
  Restore everything:
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
    /// Make programs run without syncs
    ///
    /// fullbore copies itself into the root, and must be able to run there.
    On(DivertOnArgs),
    /// Restore programs, and sync
    Off(DivertOffArgs),
    /// Show diverted programs
    Status(DivertStatusArgs),
}

const ON_EXAMPLES: &str = "\
Examples:
  While a system is installed below /target:
    fullbore divert on --root /target
  Only dpkg, and only if APT starts it:
    fullbore divert on --root /target --via apt-conf";

/// `fullbore divert on`.
#[derive(Debug, Args)]
#[command(after_long_help = ON_EXAMPLES)]
pub struct DivertOnArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// How to make programs run without syncs
    #[arg(long, value_name = "WAY", value_enum, default_value_t = DivertVia::Diversions)]
    pub via: DivertVia,

    /// Divert these programs, as paths within the root (default: dpkg, apt-get, aptitude and tasksel in /usr/bin)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}

/// `--via` of `fullbore divert on`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum DivertVia {
    /// Divert the programs with dpkg, no matter what starts them
    Diversions,
    /// Configure APT to start a wrapper of dpkg; dpkg stays unchanged
    AptConf,
}

const OFF_EXAMPLES: &str = "\
Examples:
  Restore all programs of the system below /target:
    fullbore divert off --root /target";

/// `fullbore divert off`.
#[derive(Debug, Args)]
#[command(after_long_help = OFF_EXAMPLES)]
pub struct DivertOffArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// Restore these programs, as paths within the root (default: all diverted programs)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  Show which programs of the system below /target run without syncs:
    fullbore divert status --root /target";

/// `fullbore divert status`.
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLES)]
pub struct DivertStatusArgs {
    /// Inspect the system below this directory
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,

    /// Inspect these programs, as paths within the root (default: all diverted programs)
    #[arg(value_name = "PROGRAM")]
    pub programs: Vec<PathBuf>,
}
