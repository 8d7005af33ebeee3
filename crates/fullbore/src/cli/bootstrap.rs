//! The flags of `fullbore bootstrap`.

mod hooks;

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::shared::{NetworkArgs, OUTPUT, OutputArgs, TrustArgs};
pub use hooks::{HookArg, HookArgs};

pub(super) const LONG: &str = "\
Make a Debian root, with mmdebstrap's arguments.

apt resolves and dpkg configures. fullbore downloads the packages, verifies each by its SHA-256 from \
the signed index, and unpacks them in parallel. No command syncs while the root is made; fullbore \
syncs once at the end. Until then, TARGET contains a file .fullbore-unfinished. A root without this \
file is complete. A run that finds the file starts over.";

const PACKAGES: &str = "Which packages";
const FORMAT: &str = "Mode and format";

const KEYRING: &str = "Verify signatures with this keyring, or those in this directory; repeat for more (default: \
those that apt trusts, and those of Debian and Ubuntu)";

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
        trixie root /etc/apt/sources.list.d/debian.sources
  An image of a file system with a package of your own, and a shell in it:
    fullbore bootstrap --variant apt --include ./x.deb --chrooted-customize-hook bash \\
        trixie root.ext4 https://deb.example.org/debian";

/// `fullbore bootstrap`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
#[command(mut_arg("keyring", |keyring| keyring.help(KEYRING).value_name("FILE|DIR")))]
pub struct BootstrapArgs {
    /// The suite or codename; without SUITE, fullbore reads apt sources from stdin, and with an empty SUITE, it uses
    /// all suites of the sources
    #[arg(value_name = "SUITE")]
    pub suite: Option<String>,

    /// The new root: a directory that is empty or does not exist, a file for the other formats, or `-` for an archive
    /// on stdout
    #[arg(value_name = "TARGET", default_value = "-")]
    pub target: PathBuf,

    /// A URL, a line as in sources.list, a file of apt sources, or `-` for sources on stdin (default: this machine's
    /// archive, or the distribution's)
    ///
    /// Several URLs are mirrors of one archive; files come from all of them.
    #[arg(value_name = "MIRROR")]
    pub mirrors: Vec<String>,

    /// Which packages to install
    #[arg(long, value_name = "VARIANT", default_value = "important", help_heading = PACKAGES)]
    pub variant: Variant,

    /// Also install these packages: names, names with a version, files such as ./x.deb, comma-separated; or an apt
    /// pattern
    #[arg(long, value_name = "PACKAGE", help_heading = PACKAGES)]
    pub include: Vec<String>,

    /// Use packages of these components; comma-separated [default: main]
    #[arg(long, value_name = "COMPONENT", help_heading = PACKAGES, value_delimiter = ',', visible_alias = "component")]
    pub components: Vec<String>,

    /// The root's architecture, then foreign ones; comma-separated (default: this machine's)
    #[arg(long, value_name = "ARCH", help_heading = PACKAGES, value_delimiter = ',', visible_alias = "architectures")]
    pub arch: Vec<String>,

    /// Option for apt, in the root and while it is made: NAME=VALUE, text as in apt.conf, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = PACKAGES)]
    pub aptopt: Vec<String>,

    /// Option for dpkg, in the root and while it is made: text as in dpkg.cfg, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = PACKAGES)]
    pub dpkgopt: Vec<String>,

    /// How to make the root: as root, or in a user namespace
    #[arg(long, value_name = "MODE", default_value = "auto", help_heading = FORMAT)]
    pub mode: BootstrapMode,

    /// Leave out steps of mmdebstrap's list, such as check/empty, cleanup/apt/lists or output/dev; comma-separated
    #[arg(long, value_name = "STEP", help_heading = FORMAT)]
    pub skip: Vec<String>,

    /// Resolve the packages and print what would be installed; a directory gets only its layout
    #[arg(long, visible_alias = "dry-run", help_heading = FORMAT)]
    pub simulate: bool,

    /// Format of the root
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = FORMAT)]
    pub format: BootstrapFormat,

    /// Name of the OCI image in its layout, such as `base:1.0` [default: SUITE]
    #[arg(long, value_name = "NAME", help_heading = FORMAT)]
    pub oci_tag: Option<String>,

    /// Architecture that the OCI image names, such as `arm/v6`: Go's or Debian's name, with a variant or without
    /// [default: that of the root]
    #[arg(long, value_name = "ARCH", help_heading = FORMAT)]
    pub oci_arch: Option<String>,

    /// Commands between the steps.
    #[command(flatten)]
    pub hooks: HookArgs,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Also write each line of stderr to this file, with its time
    #[arg(long, value_name = "FILE", help_heading = OUTPUT, visible_alias = "logfile")]
    pub log_file: Option<PathBuf>,

    /// Log everything, like -vv
    #[arg(long, short, help_heading = OUTPUT)]
    pub debug: bool,

    /// Print only errors, like --quiet
    #[arg(long, short, help_heading = OUTPUT)]
    pub silent: bool,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Options of debootstrap that change nothing here, nor in mmdebstrap.
    #[command(flatten)]
    pub without_effect: WithoutEffect,
}

/// Flags that wrappers of debootstrap pass, and that have no effect.
#[derive(Debug, Args)]
pub struct WithoutEffect {
    /// apt resolves dependencies always.
    #[arg(long, hide = true)]
    pub resolve_deps: bool,
    /// The suite decides.
    #[arg(long, hide = true)]
    pub merged_usr: bool,
    /// The suite decides.
    #[arg(long, hide = true)]
    pub no_merged_usr: bool,
    /// Signatures are verified always.
    #[arg(long, hide = true)]
    pub force_check_gpg: bool,
}

impl WithoutEffect {
    /// The flags that were given.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        [
            ("--resolve-deps", self.resolve_deps),
            ("--merged-usr", self.merged_usr),
            ("--no-merged-usr", self.no_merged_usr),
            ("--force-check-gpg", self.force_check_gpg),
        ]
        .into_iter()
        .filter_map(|(flag, is_given)| is_given.then_some(flag))
    }
}

/// Which packages a root has, beside those of `--include`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Unpack the packages of --include and their dependencies, and configure none.
    Extract,
    /// Only the packages of --include.
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
    /// In a user namespace, with the IDs of /etc/subuid and /etc/subgid; for root, as root in its own namespaces.
    Unshare,
    /// A mode of mmdebstrap that is refused.
    #[value(alias = "fakeroot", hide = true)]
    Fakechroot,
    /// A mode of mmdebstrap that is refused.
    #[value(hide = true)]
    Chrootless,
}

/// What a bootstrap makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootstrapFormat {
    /// By the ending of TARGET: .tar and its compressed forms, .squashfs, .sqfs, .ext2, .ext4, .oci, .oci.tar, otherwise
    /// a directory. /dev/null makes nothing, and a FIFO gets a tar archive.
    Auto,
    /// A directory.
    #[value(alias = "directory")]
    Dir,
    /// A tar archive, compressed as the ending says.
    Tar,
    /// A squashfs image.
    #[value(alias = "sqfs")]
    Squashfs,
    /// An ext2 image.
    Ext2,
    /// An ext4 image.
    Ext4,
    /// Nothing: the root is made and removed, which tests the packages and hooks.
    Null,
    /// An OCI image: an archive if TARGET ends in .tar or is `-`, otherwise a layout directory.
    Oci,
}
