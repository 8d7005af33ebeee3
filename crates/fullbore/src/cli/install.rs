//! The flags of `fullbore install`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{CHOICE, KEEP, NetworkArgs, OutputArgs, TRUST};

pub(super) const LONG: &str = "\
Install packages as apt-get does, unpacked in parallel and without needless syncs.

The root's own apt resolves, holds its locks, runs its hooks and keeps its records, and the root's own \
dpkg configures. Package files come by fullbore's wire. New packages are unpacked in parallel; upgrades, \
removals and whatever is out of the ordinary go to dpkg. No command syncs meanwhile; one sync is at the end. \
If fullbore is killed, dpkg goes on by itself.";

const EXAMPLES: &str = "\
Examples:
  Into this machine's own root, while no services can be started:
    fullbore install --yes build-essential
  Into an image:
    fullbore install --root /srv/image --yes openssh-server
  As apt-get would with an option:
    fullbore install --aptopt APT::Install-Recommends=false --yes xfce4

A service that a package starts would run without syncs as long as it lives. Where services can be
started, policy-rc.d has to deny it, or --force insists.";

/// `fullbore install`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct InstallArgs {
    /// Packages, as apt-get install takes them
    #[arg(value_name = "PACKAGE", required = true)]
    pub packages: Vec<String>,

    /// Install into this root, with its own apt and dpkg
    #[arg(long, value_name = "DIR", default_value = "/", help_heading = CHOICE)]
    pub root: PathBuf,

    /// Option for apt: NAME=VALUE, as for apt-get --option; repeat for more
    #[arg(long, value_name = "NAME=VALUE", help_heading = CHOICE)]
    pub aptopt: Vec<String>,

    /// Do not ask before more is done than to install what is named
    #[arg(long, short, help_heading = CHOICE)]
    pub yes: bool,

    /// Install even where services could be started, which would then run without syncs
    #[arg(long, help_heading = KEEP)]
    pub force: bool,

    /// Verify TLS with these certificates in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub cacert: Option<PathBuf>,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// What is shown and written about the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
