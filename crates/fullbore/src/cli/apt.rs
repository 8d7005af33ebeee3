//! The flags of `fullbore apt` and its commands.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::update::IndexLevel;

pub(super) const LONG: &str = "\
Make the system's own apt use fullbore's methods, or undo it.

apt runs helper programs, its methods, to fetch files and to apply patches to indexes. `enable` \
writes one file, /etc/apt/apt.conf.d/90fullbore, which makes apt run fullbore's methods instead. \
`disable` removes that file. `enable` changes nothing else. fullbore replaces no file of apt's.";

const EXAMPLES: &str = "\
Examples:
  Let apt-get update apply patches faster:
    fullbore apt enable
  Let apt also fetch from several mirrors at once:
    fullbore apt enable --mirrors /etc/fullbore/apt-mirrors
  Show what apt uses:
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
    /// fullbore first runs the program once, as the user that runs apt's methods. With --mirrors, apt also downloads
    /// with fullbore's http and https methods. Without it, fullbore only patches indexes.
    Enable(AptEnableArgs),
    /// Make apt use its own methods again
    Disable(AptDisableArgs),
    /// Show which methods apt uses
    ///
    /// Exit code 2 means a problem: another file overrides fullbore's, the program is gone, or the file was edited by
    /// hand.
    Status(AptStatusArgs),
}

const ENABLE_EXAMPLES: &str = "\
Examples:
  Let apt-get update apply patches faster:
    fullbore apt enable
  Let apt also fetch from several mirrors at once:
    fullbore apt enable --mirrors /etc/fullbore/apt-mirrors";

/// `fullbore apt enable`.
#[derive(Debug, Args)]
#[command(after_long_help = ENABLE_EXAMPLES)]
pub struct AptEnableArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Make apt run this program (default: this one; in another root, /usr/bin/fullbore)
    #[arg(long, value_name = "PATH")]
    pub program: Option<PathBuf>,

    /// Download from the mirrors listed in this file, too; repeat for more
    #[arg(long, value_name = "FILE")]
    pub mirrors: Vec<PathBuf>,

    /// Compress stored indexes fast, or into the smallest files, as apt does
    #[arg(long, value_name = "LEVEL", default_value = "fast")]
    pub level: IndexLevel,

    /// Replace the file even if it was edited by hand
    #[arg(long)]
    pub force: bool,
}

const DISABLE_EXAMPLES: &str = "\
Examples:
  Make apt on this machine use its own methods again:
    fullbore apt disable
  The same in a root below /srv/root:
    fullbore apt disable --root /srv/root";

/// `fullbore apt disable`.
#[derive(Debug, Args)]
#[command(after_long_help = DISABLE_EXAMPLES)]
pub struct AptDisableArgs {
    /// Change the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Remove the file even if it was edited by hand
    #[arg(long)]
    pub force: bool,
}

const STATUS_EXAMPLES: &str = "\
Examples:
  Show which methods apt on this machine uses:
    fullbore apt status
  The same for scripts:
    fullbore apt status --json";

/// `fullbore apt status`.
#[derive(Debug, Args)]
#[command(after_long_help = STATUS_EXAMPLES)]
pub struct AptStatusArgs {
    /// Inspect the system below this directory
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub root: PathBuf,

    /// Print one line of JSON
    #[arg(long)]
    pub json: bool,
}
