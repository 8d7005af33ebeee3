//! The flags of `fullbore update`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use fullbore_engine::durability::Durability;

use super::choices;
use super::shared::{CHOICE, KEEP, NetworkArgs, OUTPUT, OutputArgs, TRUST, TrustArgs};

pub(super) const LONG: &str = "\
Refresh APT's indexes as `apt-get update` does, in a fraction of the time.

Fetches the signed InRelease of each source, verifies it, and brings the lists directory to that \
state. All indexes are fetched at once. For each index, fullbore chooses between patches (pdiffs, \
joined into one pass over the file) and the whole file, by an estimate of time. fullbore verifies \
each result before it renames the file into place.

Sources, targets, languages and compression are those of apt's configuration. Files have the names \
and the layout that apt expects, and apt uses them as its own.";

const KEYRING: &str = "Verify signatures with this keyring; repeat for more (default: Signed-By, or the keys that apt \
trusts)";

const EXAMPLES: &str = "\
Examples:
  Refresh what apt on this machine uses:
    fullbore update
  Refresh the indexes of an image:
    fullbore update --sources image/etc/apt/sources.list.d --lists image/var/lib/apt/lists

If --lists is not apt's own directory, fullbore does not run apt's hooks: APT::Update::Pre-Invoke,
Post-Invoke and Post-Invoke-Success.";

/// `fullbore update`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
#[command(mut_arg("keyring", |keyring| keyring.help(KEYRING)))]
pub struct UpdateArgs {
    /// Take the sources from this file or directory (deb822 .sources or one-line .list; default: apt's)
    #[arg(long, value_name = "FILE|DIR", help_heading = CHOICE)]
    pub sources: Option<PathBuf>,

    /// Keep the indexes in this directory (default: apt's, /var/lib/apt/lists)
    #[arg(long, value_name = "DIR", help_heading = CHOICE)]
    pub lists: Option<PathBuf>,

    /// Fetch whole indexes, never patches
    #[arg(long, help_heading = CHOICE)]
    pub no_pdiffs: bool,

    /// Compress stored indexes fast, or into the smallest files, as apt does
    #[arg(long, value_name = "LEVEL", default_value = "fast", help_heading = CHOICE)]
    pub level: IndexLevel,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Accept a Release whose Valid-Until has passed; logged at every run
    #[arg(long, help_heading = TRUST)]
    pub ignore_valid_until: bool,

    /// Keep the lists of removed sources
    #[arg(long, help_heading = KEEP)]
    pub no_clean: bool,

    /// Do not run apt's hooks, such as APT::Update::Pre-Invoke
    #[arg(long, help_heading = KEEP)]
    pub no_hooks: bool,

    /// When to wait for the disk: never, once at the end, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN", help_heading = KEEP, value_parser = choices::durability())]
    pub durability: Option<Durability>,

    /// How to use the network.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Exit with 10 if nothing changed, for scripts
    #[arg(long, help_heading = OUTPUT)]
    pub changed_exit: bool,
}

/// How hard fullbore compresses indexes. The hidden names `own` and `apt` are older.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum IndexLevel {
    /// zstd 3, xz 0, gz 6, lz4 1.
    #[value(alias = "own")]
    Fast,
    /// zstd 19, xz 6, gz 6, lz4 1: the levels of apt.
    #[value(alias = "apt")]
    Best,
}
