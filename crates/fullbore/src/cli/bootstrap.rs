//! The flags of `fullbore bootstrap`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{CHOICE, KEEP, NetworkArgs, OutputArgs, TrustArgs};

const HOOKS: &str = "Hooks";

pub(super) const LONG: &str = "\
Make a Debian root, with mmdebstrap's arguments.

apt resolves and dpkg configures. fullbore downloads the packages, verifies each by its SHA-256 from \
the signed index, and unpacks them in parallel. No command syncs while the root is made; fullbore \
syncs once at the end. Until then, TARGET contains a file .fullbore-unfinished. A root without this \
file is complete. A run that finds the file starts over.";

const EXAMPLES: &str = "\
Examples:
  A small root:
    fullbore bootstrap --variant minbase trixie /srv/root https://deb.example.org/debian
  A tar archive with more packages, made without root privileges:
    fullbore bootstrap --variant apt --include ca-certificates,curl trixie root.tar.zst
  A tar archive on stdout:
    fullbore bootstrap --variant minbase trixie - https://deb.example.org/debian | docker import -
  A container image, for podman load, or skopeo copy oci-archive:trixie.oci.tar:
    fullbore bootstrap --variant minbase trixie trixie.oci.tar https://deb.example.org/debian
  Other sources, and a hook:
    fullbore bootstrap --customize-hook 'chroot \"$1\" useradd --create-home user' \\
        trixie root /etc/apt/sources.list.d/debian.sources";

/// `fullbore bootstrap`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct BootstrapArgs {
    /// The suite or codename
    #[arg(value_name = "SUITE")]
    pub suite: String,

    /// The new root: a directory that is empty or does not exist, a file for --format tar, squashfs or oci, or `-` for
    /// an archive on stdout
    #[arg(value_name = "TARGET", default_value = "-")]
    pub target: PathBuf,

    /// A URL, a line as in sources.list, a file of apt sources, or `-` for sources on stdin (default: this machine's
    /// archive, or the distribution's)
    ///
    /// Several URLs are mirrors of one archive; files come from all of them.
    #[arg(value_name = "MIRROR")]
    pub mirrors: Vec<String>,

    /// Which packages to install
    #[arg(long, value_name = "VARIANT", default_value = "important", help_heading = CHOICE)]
    pub variant: Variant,

    /// Also install these packages: names, apt patterns, or names with a version; comma-separated
    #[arg(long, value_name = "PACKAGE", help_heading = CHOICE)]
    pub include: Vec<String>,

    /// Use packages of these components; comma-separated [default: main]
    #[arg(long, value_name = "COMPONENT", help_heading = CHOICE, value_delimiter = ',', visible_alias = "component")]
    pub components: Vec<String>,

    /// The root's architecture, then foreign ones; comma-separated (default: this machine's)
    #[arg(long, value_name = "ARCH", help_heading = CHOICE, value_delimiter = ',', visible_alias = "architectures")]
    pub arch: Vec<String>,

    /// Option for apt, in the root and while it is made: text as in apt.conf, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = CHOICE)]
    pub aptopt: Vec<String>,

    /// Option for dpkg, in the root and while it is made: text as in dpkg.cfg, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = CHOICE)]
    pub dpkgopt: Vec<String>,

    /// How to make the root: as root, or in a user namespace
    #[arg(long, value_name = "MODE", default_value = "auto", help_heading = KEEP)]
    pub mode: BootstrapMode,

    /// What to make
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = KEEP)]
    pub format: BootstrapFormat,

    /// Name of the OCI image in its layout, such as `base:1.0` [default: SUITE]
    #[arg(long, value_name = "NAME", help_heading = KEEP)]
    pub oci_tag: Option<String>,

    /// Architecture that the OCI image names, such as `arm/v6`: Go's or Debian's name, with a variant or without
    /// [default: that of the root]
    #[arg(long, value_name = "ARCH", help_heading = KEEP)]
    pub oci_arch: Option<String>,

    /// Run this before any package is unpacked: a program, or a shell snippet with the root as $1; repeat for more
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub setup_hook: Vec<String>,

    /// Run this when the Essential packages are unpacked
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub extract_hook: Vec<String>,

    /// Run this when the Essential packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub essential_hook: Vec<String>,

    /// Run this when all packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub customize_hook: Vec<String>,

    /// Run the programs in this directory whose names begin with setup, extract, essential or customize
    #[arg(long, value_name = "DIR", help_heading = HOOKS, visible_alias = "hook-dir")]
    pub hook_directory: Vec<PathBuf>,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Which packages a root has, beside those of `--include`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// None.
    Custom,
    /// Essential packages and their dependencies.
    Essential,
    /// `essential`, and apt.
    Apt,
    /// All packages of priority required; minbase is the same.
    #[value(alias = "minbase")]
    Required,
    /// `required`, and build-essential.
    Buildd,
    /// All packages of priorities required and important.
    #[value(aliases = ["debootstrap", "-"])]
    Important,
    /// `important`, and all packages of priority standard.
    Standard,
}

/// With which privileges a root is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootstrapMode {
    /// As root if run by root, otherwise in a user namespace.
    Auto,
    /// As root.
    #[value(alias = "sudo")]
    Root,
    /// In a user namespace, with the IDs of /etc/subuid and /etc/subgid.
    Unshare,
}

/// What a bootstrap makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootstrapFormat {
    /// By the ending of TARGET: .tar and its compressed forms, .squashfs, .sqfs, .oci, .oci.tar, otherwise a directory.
    Auto,
    /// A directory.
    #[value(alias = "directory")]
    Dir,
    /// A tar archive, compressed as the ending says.
    Tar,
    /// A squashfs image.
    #[value(alias = "sqfs")]
    Squashfs,
    /// An OCI image: an archive if TARGET ends in .tar or is `-`, otherwise a layout directory.
    Oci,
}
