//! The flags of `fullbore install`.

use std::path::PathBuf;

use clap::Args;

use super::shared::{NetworkArgs, OutputArgs, TRUST};

pub(super) const LONG: &str = "\
Install packages like apt-get, unpacking in parallel and without needless syncs.

The root's own apt resolves, holds its locks, runs its hooks and keeps its records, and the root's \
own dpkg configures. fullbore downloads the packages and unpacks new ones in parallel. dpkg handles \
upgrades, removals and unusual packages. No command syncs meanwhile; fullbore syncs once at the end. \
If fullbore is killed, dpkg continues by itself.";

const HOW: &str = "How to install";

const EXAMPLES: &str = "\
Examples:
  Into this machine's own root, where no services can start:
    fullbore install --yes build-essential
  Into an image:
    fullbore install --root /srv/image --yes openssh-server
  With an option for apt:
    fullbore install --aptopt APT::Install-Recommends=false --yes xfce4

A service that a package starts would run without syncs until it ends. If services can start,
fullbore refuses to install, unless policy-rc.d denies starts or you pass --force.";

/// `fullbore install`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct InstallArgs {
    /// Packages, as apt-get install takes them
    #[arg(value_name = "PACKAGE", required = true)]
    pub packages: Vec<String>,

    /// Install into this root, with its own apt and dpkg
    #[arg(long, value_name = "DIR", default_value = "/", help_heading = HOW)]
    pub root: PathBuf,

    /// Option for apt: NAME=VALUE, or as in apt.conf; repeat for more
    #[arg(long, value_name = "NAME=VALUE", help_heading = HOW)]
    pub aptopt: Vec<String>,

    /// Do not ask before additional changes
    #[arg(long, short, help_heading = HOW)]
    pub yes: bool,

    /// Install even if services can start; they would run without syncs until they end
    #[arg(long, help_heading = HOW)]
    pub force: bool,

    /// Trust the certificates in this file in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub cacert: Option<PathBuf>,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
