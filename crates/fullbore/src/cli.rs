//! The command line: every flag, its help text, and nothing else.
//!
//! What is parsed here are wishes; `settings` merges them with the environment
//! and the settings file and hands the commands plain resolved values. Each flag
//! can also be given as a variable `FULLBORE_…` (see [`command`]), so that flags
//! win over the environment and the environment wins over the file.

mod s3;
mod store;

use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use fullbore_engine::digest::Sha256;

pub use crate::copy::flags::CopyArgs;
pub use crate::probe::flags::ProbeArgs;
use crate::settings::values::{DurabilityChoice, Filter, IndexFormat, Kind, Percent, Rate};

pub use s3::{AddressingChoice, S3Args, S3PutArgs};
pub use store::{GetArgs, GridArgs, PutArgs};

const AFTER_HELP: &str = "\
Every flag can be set in the environment: --limit-rate is FULLBORE_LIMIT_RATE.
Flags win over the environment, the environment wins over the settings file.
Also read: http_proxy, https_proxy, no_proxy, NO_COLOR, SOURCE_DATE_EPOCH.

Exit codes:
    0  done                                  5  stale: older than what is here, or expired
    1  wrong usage or settings               6  locked: another run holds the directory
    2  partial: some files are missing       7  disk full, or the disk fails
    3  network, or all mirrors dead         10  nothing had changed (with --changed-exit)
    4  signature or hash wrong             130  interrupted; run it again to go on";

/// Move Debian-archive-sized data as fast as the slowest part allows, and say which part that is
#[derive(Debug, Parser)]
#[command(name = "fullbore", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One command per variant; each has a file of the same name.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Clone or update a Debian archive from one or many mirrors
    #[command(long_about = MIRROR_LONG)]
    Mirror(Box<MirrorArgs>),
    /// Refresh APT's indexes as `apt-get update` does
    #[command(long_about = UPDATE_LONG)]
    Update(Box<UpdateArgs>),
    /// Re-read an archive against its signed indexes, and repair it
    #[command(long_about = CHECK_LONG)]
    Check(Box<CheckArgs>),
    /// Apply, join, make and publish patches of APT's indexes
    #[command(long_about = PDIFF_LONG)]
    Pdiff(PdiffArgs),
    /// Convert settings of apt-mirror, debmirror or ftpsync to fullbore's
    #[command(long_about = CONVERT_LONG)]
    Convert(ConvertArgs),
    /// Make the system's own apt use fullbore's methods, or undo it
    #[command(long_about = APT_LONG)]
    Apt(AptArgs),
    /// Copy files and trees
    #[command(long_about = crate::copy::flags::LONG)]
    Copy(Box<CopyArgs>),
    /// Say what a copy will be limited by, and how long it will take
    #[command(long_about = crate::probe::flags::LONG)]
    Probe(ProbeArgs),
    /// Make a Debian root, as mmdebstrap is called
    #[command(long_about = BOOTSTRAP_LONG)]
    Bootstrap(Box<BootstrapArgs>),
    /// Install packages as apt-get does, unpacked in parallel and without needless syncs
    #[command(long_about = INSTALL_LONG)]
    Install(Box<InstallArgs>),
    /// Run a command with its sync calls answered at once, and sync once when it has ended
    #[command(long_about = NOSYNC_LONG)]
    Nosync(NosyncArgs),
    /// Make dpkg and apt-get of another root run without syncs, or undo it
    #[command(long_about = DIVERT_LONG)]
    Divert(DivertArgs),
    /// Put files into a Tahoe-LAFS grid and print their caps
    #[command(long_about = store::PUT_LONG)]
    Put(Box<PutArgs>),
    /// Get files out of a Tahoe-LAFS grid
    #[command(long_about = store::GET_LONG)]
    Get(Box<GetArgs>),
}

const MIRROR_LONG: &str = "\
Clone or update a Debian archive from one or many mirrors.

Fetches the signed InRelease of each suite from the origin (the first --from), verifies it, and \
brings the directory to exactly that state: all files from all mirrors at once, each verified by \
its SHA-256 before it gets its name, indexes after the pool, InRelease very last. A run that is \
interrupted is taken up where it stopped. A run that finds nothing new costs two or three round \
trips.";

const MIRROR_EXAMPLES: &str = "\
Examples:
  Mirror one suite from two mirrors:
    fullbore mirror --from https://deb.example.org/debian --from https://ftp.example.org/debian \\
        --suite trixie --component main --arch amd64,all --to /srv/mirror/debian
  Mirror what apt on this machine uses:
    fullbore mirror --sources /etc/apt/sources.list.d/debian.sources --to /srv/mirror
  See what an update would fetch:
    fullbore mirror --config /etc/fullbore/mirror.toml debian --dry-run
  Take at most 20 MB/s and draw the run:
    fullbore mirror debian --limit-rate 20M --report run.html

Every flag can be set in the environment (FULLBORE_LIMIT_RATE) or, under its own name, in a
[mirror.NAME] section of the settings file (limit-rate = \"20M\").";

const WHAT: &str = "What to mirror";
const CHOICE: &str = "Which files";
const TRUST: &str = "Trust";
const KEEP: &str = "Keeping and deleting";
const NETWORK: &str = "Network";
const OUTPUT: &str = "Output";
const HOOKS: &str = "Hooks";

/// `fullbore mirror`.
#[derive(Debug, Args)]
#[command(after_long_help = MIRROR_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct MirrorArgs {
    /// Run these [mirror.NAME] sections of the settings file (default: all of them)
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Fetch from this archive; repeat for more mirrors of it. The first is the origin
    ///
    /// The address is the directory that holds dists/, as in apt's sources. The origin decides
    /// which state of the archive is mirrored; files come from all of them, whoever is faster.
    #[arg(long, value_name = "URL", help_heading = WHAT, value_delimiter = ' ')]
    pub from: Vec<String>,

    /// Mirror this suite or codename; repeat or separate with commas
    ///
    /// A name with a slash at its end, as in apt's sources, is a flat repository.
    #[arg(long, value_name = "SUITE", help_heading = WHAT, value_delimiter = ',')]
    pub suite: Vec<String>,

    /// Mirror this component; repeat or separate with commas (default: all in the Release)
    #[arg(long, value_name = "COMPONENT", help_heading = WHAT, value_delimiter = ',')]
    pub component: Vec<String>,

    /// Mirror this architecture, `source` or `all`; repeat or separate with commas (default: all)
    #[arg(long, value_name = "ARCH", help_heading = WHAT, value_delimiter = ',')]
    pub arch: Vec<String>,

    /// Mirror what this file or directory of apt sources names (deb822 .sources or one-line .list)
    ///
    /// Several URIs in one entry are taken as mirrors of one archive. Where the entries name
    /// several archives, each gets a directory of its own below --to, named like the last part of
    /// its address: /srv/mirror/debian and /srv/mirror/debian-security.
    #[arg(long, value_name = "FILE|DIR", help_heading = WHAT)]
    pub sources: Option<PathBuf>,

    /// Read settings from this file (default: /etc/fullbore/mirror.toml)
    #[arg(long, value_name = "FILE", help_heading = WHAT)]
    pub config: Option<PathBuf>,

    /// Write the mirror into this directory
    #[arg(long, value_name = "DIR", help_heading = WHAT)]
    pub to: Option<PathBuf>,

    /// Keep this run also as a snapshot of this name, made of hard links
    #[arg(long, value_name = "NAME", help_heading = WHAT)]
    pub snapshot: Option<String>,

    /// Mirror only files whose path matches; with --exclude: bring such files back
    ///
    /// The regular expression is searched in the path below the archive's root, such as
    /// pool/main/h/hello/hello_2.10-5_amd64.deb. Repeat for more.
    #[arg(long, value_name = "REGEX", help_heading = CHOICE)]
    pub include: Vec<Filter>,

    /// Leave out files whose path matches this regular expression; repeat for more
    #[arg(long, value_name = "REGEX", help_heading = CHOICE)]
    pub exclude: Vec<Filter>,

    /// Mirror only packages of this section: `devel`, or `contrib/devel`; comma-separated
    #[arg(long, value_name = "SECTION", help_heading = CHOICE, value_delimiter = ',')]
    pub section: Vec<String>,

    /// Mirror only packages of this priority, such as `required`; comma-separated
    #[arg(long, value_name = "PRIORITY", help_heading = CHOICE, value_delimiter = ',')]
    pub priority: Vec<String>,

    /// Mirror only packages built from this source package; comma-separated
    #[arg(long, value_name = "SOURCE", help_heading = CHOICE, value_delimiter = ',')]
    pub source_package: Vec<String>,

    /// Mirror only the newest N versions of each package
    #[arg(long, value_name = "N", help_heading = CHOICE, value_parser = clap::value_parser!(u32).range(1..))]
    pub newest: Option<u32>,

    /// Fetch only these forms of each index; comma-separated (default: every compressed form that exists)
    #[arg(long, value_name = "FORMAT", help_heading = CHOICE, value_delimiter = ',')]
    pub index_formats: Vec<IndexFormat>,

    /// Leave out these kinds of files; comma-separated
    #[arg(long, value_name = "KIND", help_heading = CHOICE, value_delimiter = ',')]
    pub without: Vec<Kind>,

    /// Fetch translated descriptions only in these languages, such as en,de (default: all)
    #[arg(long, value_name = "LANGUAGE", help_heading = CHOICE, value_delimiter = ',')]
    pub languages: Vec<String>,

    /// What decides which signatures are accepted.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Accept a Release whose Valid-Until has passed; logged at every run
    #[arg(long, help_heading = TRUST)]
    pub ignore_valid_until: bool,

    /// Stop when more than this share of the mirrored files would be deleted [default: 40%]
    #[arg(long, value_name = "PERCENT", help_heading = KEEP)]
    pub max_delete: Option<Percent>,

    /// Delete even when --max-delete is exceeded
    #[arg(long, help_heading = KEEP)]
    pub force_delete: bool,

    /// Delete also files that fullbore did not put there
    ///
    /// Without it only files that fullbore placed and no signed index names any more are deleted.
    #[arg(long, help_heading = KEEP)]
    pub clean_foreign: bool,

    /// Delete nothing
    #[arg(long, help_heading = KEEP)]
    pub no_clean: bool,

    /// Keep the files and by-hash indexes of this many earlier states [default: 3]
    #[arg(long, value_name = "N", help_heading = KEEP)]
    pub keep_generations: Option<u32>,

    /// Keep them at least this many hours [default: 24]
    #[arg(long, value_name = "HOURS", help_heading = KEEP)]
    pub keep_hours: Option<u32>,

    /// When to wait for the disk: never, once before publishing, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN", help_heading = KEEP)]
    pub durability: Option<DurabilityChoice>,

    /// Call this mirror so in its trace files: its public host name (default: this machine's name)
    #[arg(long, value_name = "HOST", help_heading = KEEP)]
    pub trace_host: Option<String>,

    /// Write this line into the trace file, such as "Maintainer: NAME <ADDRESS>"; repeat for more
    #[arg(long, value_name = "LINE", help_heading = KEEP)]
    pub trace_info: Vec<String>,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Name the origin: it decides the state to mirror (default: the first --from)
    #[arg(long, value_name = "URL", help_heading = NETWORK)]
    pub origin: Option<String>,

    /// Fetch everything from the origin alone
    #[arg(long, help_heading = NETWORK)]
    pub origin_only: bool,

    /// Show what would be fetched, in files and bytes; no file of the mirror changes
    #[arg(long, short = 'n', help_heading = OUTPUT)]
    pub dry_run: bool,

    /// What is shown and written about the run.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Exit with 10 when nothing had changed, so that scripts can tell
    #[arg(long, help_heading = OUTPUT)]
    pub changed_exit: bool,
}

const BOOTSTRAP_LONG: &str = "\
Make a Debian root, as mmdebstrap is called.

apt resolves and dpkg configures; packages come by fullbore's wire, each verified by its SHA-256 from \
the signed index, and are unpacked in parallel. No command syncs while the root is made; one sync is at \
the end. Until then TARGET holds a file .fullbore-unfinished; a root without it is complete. A run that \
finds such a file starts over.";

const BOOTSTRAP_EXAMPLES: &str = "\
Examples:
  A small root:
    fullbore bootstrap --variant minbase trixie /srv/root https://deb.example.org/debian
  With packages, as an archive, without being root:
    fullbore bootstrap --variant apt --include ca-certificates,curl trixie root.tar.zst
  With sources of its own, and a hook:
    fullbore bootstrap --customize-hook 'chroot \"$1\" useradd --create-home user' \\
        trixie root /etc/apt/sources.list.d/debian.sources";

/// `fullbore bootstrap`.
#[derive(Debug, Args)]
#[command(after_long_help = BOOTSTRAP_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct BootstrapArgs {
    /// The suite or codename
    #[arg(value_name = "SUITE")]
    pub suite: String,

    /// Where the root goes: a directory that is empty or not there, or a file for --format tar or squashfs
    #[arg(value_name = "TARGET")]
    pub target: PathBuf,

    /// An archive's address, a line as in sources.list, or a file of apt sources (default: this machine's archive)
    ///
    /// Several addresses are taken as mirrors of one archive: files come from all of them.
    #[arg(value_name = "MIRROR")]
    pub mirrors: Vec<String>,

    /// Which packages are installed
    #[arg(long, value_name = "VARIANT", default_value = "important", help_heading = CHOICE)]
    pub variant: Variant,

    /// Install these packages, too: names, patterns of apt, or names with a version; comma-separated
    #[arg(long, value_name = "PACKAGE", help_heading = CHOICE)]
    pub include: Vec<String>,

    /// Take packages of these components; comma-separated [default: main]
    #[arg(long, value_name = "COMPONENT", help_heading = CHOICE, value_delimiter = ',', visible_alias = "component")]
    pub components: Vec<String>,

    /// The root's architecture, and foreign ones after it; comma-separated (default: this machine's)
    #[arg(long, value_name = "ARCH", help_heading = CHOICE, value_delimiter = ',', visible_alias = "architectures")]
    pub arch: Vec<String>,

    /// Option for apt in the root and while it is made: text as in apt.conf, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = CHOICE)]
    pub aptopt: Vec<String>,

    /// Option for dpkg in the root and while it is made: text as in dpkg.cfg, or a file; repeat for more
    #[arg(long, value_name = "OPTION|FILE", help_heading = CHOICE)]
    pub dpkgopt: Vec<String>,

    /// How the root is made: with the rights of root, or in a user namespace [default: whichever is possible]
    #[arg(long, value_name = "MODE", default_value = "auto", help_heading = KEEP)]
    pub mode: BootstrapMode,

    /// What is made (default: by the ending of TARGET)
    #[arg(long, value_name = "FORMAT", default_value = "auto", help_heading = KEEP)]
    pub format: BootstrapFormat,

    /// Run this before any package: a program, or a snippet for sh with the root as $1; repeat for more
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub setup_hook: Vec<String>,

    /// Run this when Essential packages are unpacked
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub extract_hook: Vec<String>,

    /// Run this when Essential packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub essential_hook: Vec<String>,

    /// Run this when all packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    pub customize_hook: Vec<String>,

    /// Run the programs of this directory whose names begin with setup, extract, essential or customize
    #[arg(long, value_name = "DIR", help_heading = HOOKS, visible_alias = "hook-dir")]
    pub hook_directory: Vec<PathBuf>,

    /// What decides which signatures are accepted.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// What is shown and written about the run.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Which packages a root has, beside those of `--include`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// None.
    Custom,
    /// Essential packages and what they need.
    Essential,
    /// That, and apt.
    Apt,
    /// All packages of priority required.
    #[value(alias = "minbase")]
    Required,
    /// That, and build-essential.
    Buildd,
    /// All packages of priorities required and important.
    #[value(aliases = ["debootstrap", "-"])]
    Important,
    /// That, and those of priority standard.
    Standard,
}

/// With whose rights a root is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootstrapMode {
    /// As root if it is root, else in a user namespace.
    Auto,
    /// As root.
    #[value(alias = "sudo")]
    Root,
    /// In a user namespace, with the numbers of /etc/subuid and /etc/subgid.
    Unshare,
}

/// What a bootstrap makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BootstrapFormat {
    /// By the ending of the target's name: .tar and its compressed forms, .squashfs, .sqfs, else a directory.
    Auto,
    /// A directory.
    #[value(alias = "directory")]
    Dir,
    /// An archive for tar, compressed as the ending says.
    Tar,
    /// A file system for squashfs.
    #[value(alias = "sqfs")]
    Squashfs,
}

const INSTALL_LONG: &str = "\
Install packages as apt-get does, unpacked in parallel and without needless syncs.

The root's own apt resolves, holds its locks, runs its hooks and keeps its records, and the root's own \
dpkg configures. Package files come by fullbore's wire. New packages are unpacked in parallel; upgrades, \
removals and whatever is out of the ordinary go to dpkg. No command syncs meanwhile; one sync is at the end. \
If fullbore is killed, dpkg goes on by itself.";

const INSTALL_EXAMPLES: &str = "\
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
#[command(after_long_help = INSTALL_EXAMPLES, after_help = "Try --help for examples and all details.")]
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

    /// Do not ask before anything is installed
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

const CHECK_LONG: &str = "\
Re-read an archive against its signed indexes.

Verifies the signature of every InRelease below DIR, follows the hashes from there to the indexes \
and from the indexes to every file, and names each file that is missing, has the wrong size or the \
wrong content. With --repair what is wrong is fetched again. Works on any Debian archive, whoever \
made it.";

const CHECK_EXAMPLES: &str = "\
Examples:
  Read everything:
    fullbore check /srv/mirror/debian
  Read a random twentieth, as a nightly job:
    fullbore check /srv/mirror/debian --read-data-subset 5%
  Fetch what is wrong:
    fullbore check /srv/mirror/debian --repair --from https://deb.example.org/debian";

/// `fullbore check`.
#[derive(Debug, Args)]
#[command(after_long_help = CHECK_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct CheckArgs {
    /// The archive: the directory that holds dists/
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Read the content of only this random share of the files; sizes are checked for all
    #[arg(long, value_name = "PERCENT")]
    pub read_data_subset: Option<Percent>,

    /// Fetch what is missing or wrong
    #[arg(long)]
    pub repair: bool,

    /// Repair from this archive; repeat for more (default: where the mirror came from)
    #[arg(long, value_name = "URL", value_delimiter = ' ')]
    pub from: Vec<String>,

    /// What decides which signatures are accepted.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// How to reach the mirrors when repairing.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// What is shown and written about the run.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Flags that decide what is trusted, shared by the commands.
#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Verify signatures with this keyring; repeat for more (default: Signed-By, or Debian's keyring)
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub keyring: Vec<PathBuf>,

    /// Verify TLS with these certificates in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub cacert: Option<PathBuf>,
}

/// Flags of the network, shared by the commands.
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// Receive at most this many bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub limit_rate: Option<Rate>,

    /// Open at most this many connections to one host, up to 16 [default: 4]
    ///
    /// Public mirrors limit connections and block who takes many; four fill the link.
    #[arg(long, value_name = "N", help_heading = NETWORK, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub connections: Option<u16>,

    /// Speak only HTTP/1.1, never HTTP/2
    #[arg(long, help_heading = NETWORK)]
    pub http1: bool,

    /// Never ask a second host for what a slow one is sending
    #[arg(long, help_heading = NETWORK)]
    pub no_hedge: bool,

    /// Read credentials from this file in apt's auth.conf format (default: apt's own files)
    #[arg(long, value_name = "FILE", help_heading = NETWORK)]
    pub auth: Option<PathBuf>,
}

/// Flags of what is shown and written, shared by the commands.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print events as lines of JSON on stdout, the totals last
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Write a report of the run: one HTML page, or all its data if the name ends in .json
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,

    /// Write metrics for Prometheus' textfile collector
    #[arg(long, value_name = "FILE.prom", help_heading = OUTPUT)]
    pub metrics: Option<PathBuf>,

    /// Write a trace of the run's phases and stages, to be opened in Perfetto
    #[arg(long, value_name = "FILE.json", help_heading = OUTPUT)]
    pub trace: Option<PathBuf>,

    /// Print only errors
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,

    /// Log more; repeat for still more
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = OUTPUT)]
    pub verbose: u8,
}

const UPDATE_LONG: &str = "\
Refresh APT's indexes as `apt-get update` does, in a fraction of the time.

Fetches the signed InRelease of each source, verifies it, and brings the lists directory to that \
state: per index by patches (pdiffs, joined into one pass over the file) or whole, whichever is \
estimated to be faster, all indexes at once. Each result is verified before it gets its name. \
Sources, targets, languages and kept forms are those of apt's configuration; files are named and \
laid out as apt expects them, and apt uses them as its own.";

const UPDATE_EXAMPLES: &str = "\
Examples:
  Refresh what apt on this machine uses:
    fullbore update
  Indexes for an image, in a directory of their own:
    fullbore update --sources image/etc/apt/sources.list.d --lists image/var/lib/apt/lists

Not run where --lists is not apt's own directory: the commands of APT::Update::Pre-Invoke,
Post-Invoke and Post-Invoke-Success.";

/// `fullbore update`.
#[derive(Debug, Args)]
#[command(after_long_help = UPDATE_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct UpdateArgs {
    /// Take the sources from this file or directory (deb822 .sources or one-line .list; default: apt's)
    #[arg(long, value_name = "FILE|DIR", help_heading = CHOICE)]
    pub sources: Option<PathBuf>,

    /// Keep the indexes in this directory (default: apt's, /var/lib/apt/lists)
    #[arg(long, value_name = "DIR", help_heading = CHOICE)]
    pub lists: Option<PathBuf>,

    /// Fetch indexes whole, never by patches
    #[arg(long, help_heading = CHOICE)]
    pub no_pdiffs: bool,

    /// Compress what stays compressed for speed (`own`) or as hard as apt does (`apt`)
    #[arg(long, value_name = "LEVEL", default_value = "own", help_heading = CHOICE)]
    pub level: KeptLevel,

    /// What decides which signatures are accepted.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Accept a Release whose Valid-Until has passed; logged at every run
    #[arg(long, help_heading = TRUST)]
    pub ignore_valid_until: bool,

    /// Leave files of sources that are gone
    #[arg(long, help_heading = KEEP)]
    pub no_clean: bool,

    /// Do not run the commands that apt's configuration has for before and after an update
    #[arg(long, help_heading = KEEP)]
    pub no_hooks: bool,

    /// Wait for the disk never, once at the end, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN", help_heading = KEEP)]
    pub durability: Option<DurabilityChoice>,

    /// How the network is used.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// What is shown and written.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Exit with code 10 instead of 0 when nothing had changed
    #[arg(long, help_heading = OUTPUT)]
    pub changed_exit: bool,
}

/// How hard kept indexes are compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KeptLevel {
    /// zstd 3, xz 0, gz 6, lz4 1.
    Own,
    /// zstd 19, xz 6, gz 6, lz4 1.
    Apt,
}

const PDIFF_LONG: &str = "\
Apply, join, make and publish patches of APT's indexes (pdiffs).

A patch is an ed script, as `diff --ed` writes it and `X.diff/Index` of an archive lists it. Files may \
be compressed; the form is known by the extension.";

/// `fullbore pdiff`.
#[derive(Debug, Args)]
pub struct PdiffArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: PdiffCommand,
}

/// What `fullbore pdiff` can do.
#[derive(Debug, Subcommand)]
pub enum PdiffCommand {
    /// Apply patches to an index, oldest first, in one pass
    #[command(long_about = PDIFF_APPLY_LONG)]
    Apply(PdiffApplyArgs),
    /// Join patches, oldest first, to one that does what they do
    #[command(long_about = PDIFF_MERGE_LONG)]
    Merge(PdiffMergeArgs),
    /// Make the patch that leads from one state of an index to another
    #[command(long_about = PDIFF_GENERATE_LONG)]
    Generate(PdiffGenerateArgs),
    /// Publish patches beside an archive's indexes, for those who run one
    #[command(long_about = PDIFF_PUBLISH_LONG)]
    Publish(PdiffPublishArgs),
}

const PDIFF_APPLY_LONG: &str = "\
Apply patches to an index, oldest first, in one pass.

The patches are joined first, so that twenty take hardly longer than one; memory does not depend on \
the size of the index. NEW gets its name when it is complete and, with --sha256, right. It may be \
the same file as OLD.";

const PDIFF_APPLY_EXAMPLES: &str = "\
Examples:
  Two steps at once, verified:
    fullbore pdiff apply Packages 2026-10-29-2000.12.gz 2026-10-30-0800.52.gz -o Packages.new \\
        --sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
  From one form to another:
    fullbore pdiff apply Contents-amd64.xz 2026-10-30-0800.52.gz -o Contents-amd64.zst";

/// `fullbore pdiff apply`.
#[derive(Debug, Args)]
#[command(after_long_help = PDIFF_APPLY_EXAMPLES)]
pub struct PdiffApplyArgs {
    /// The index: plain, .gz, .xz, .zst, .lz4 or .bz2
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The patches, oldest first
    #[arg(value_name = "PATCH", required = true)]
    pub patches: Vec<PathBuf>,

    /// Write the patched index to this file: plain, .gz, .xz, .zst or .lz4
    #[arg(long, short, value_name = "NEW")]
    pub output: PathBuf,

    /// Give the result its name only if its content, uncompressed, has this SHA-256
    #[arg(long, value_name = "HASH")]
    pub sha256: Option<Sha256>,

    /// Compress for speed (`own`) or as hard as apt does (`apt`)
    #[arg(long, value_name = "LEVEL", default_value = "own")]
    pub level: KeptLevel,
}

const PDIFF_MERGE_LONG: &str = "\
Join patches, oldest first, to one that does what they do one after the other.

The index itself is not needed.";

/// `fullbore pdiff merge`.
#[derive(Debug, Args)]
pub struct PdiffMergeArgs {
    /// The patches, oldest first
    #[arg(value_name = "PATCH", required = true)]
    pub patches: Vec<PathBuf>,

    /// Write the patch to this file, plain or .gz (default: to stdout)
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,
}

const PDIFF_GENERATE_LONG: &str = "\
Make the patch that leads from one state of an index to another.

Both are read into memory. The patch is applied once before it is written.";

/// `fullbore pdiff generate`.
#[derive(Debug, Args)]
pub struct PdiffGenerateArgs {
    /// The index as it was, in any form
    #[arg(value_name = "OLD")]
    pub old: PathBuf,

    /// The index as it is, in any form
    #[arg(value_name = "NEW")]
    pub new: PathBuf,

    /// Write the patch to this file, plain or .gz (default: to stdout)
    #[arg(long, short, value_name = "PATCH")]
    pub output: Option<PathBuf>,
}

const PDIFF_PUBLISH_LONG: &str = "\
Publish patches beside an archive's indexes, so that clients fetch what has changed.

DIR is the directory of a suite (dists/SUITE) or of some indexes below one. For each Packages, Sources, \
Contents and Translation in it that has changed since the last run, the new step is added to X.diff/: \
the patch, and the Index that lists it. The state before is kept in DIR/.fullbore, or taken from \
another copy of DIR with --old. The first run only keeps the states.

Run it each time between making the indexes and making the Release file, which must list each \
X.diff/Index, and the uncompressed X even if only X.xz is there. Then sign the Release. Until it \
is signed, clients fetch whole what has changed, as always.";

const PDIFF_PUBLISH_EXAMPLES: &str = "\
Examples:
  An archive made by apt-ftparchive:
    apt-ftparchive generate archive.conf
    fullbore pdiff publish dists/trixie
    apt-ftparchive -c release.conf release dists/trixie > Release.new
    mv Release.new dists/trixie/Release
    gpg --clearsign -o InRelease.new dists/trixie/Release
    mv InRelease.new dists/trixie/InRelease
  Let clients fetch one patch instead of a chain:
    fullbore pdiff publish dists/trixie --merged
  The state before is in another tree:
    fullbore pdiff publish /srv/new/dists/trixie --old /srv/public/dists/trixie";

/// `fullbore pdiff publish`.
#[derive(Debug, Args)]
#[command(after_long_help = PDIFF_PUBLISH_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct PdiffPublishArgs {
    /// The directory of a suite, dists/SUITE, or of some indexes
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,

    /// Take the states before from this copy of DIR, and keep none
    #[arg(long, value_name = "OLD")]
    pub old: Option<PathBuf>,

    /// Keep the states of the indexes in this directory (default: DIR/.fullbore)
    #[arg(long, value_name = "STATE", conflicts_with = "old")]
    pub state: Option<PathBuf>,

    /// Publish also a patch from each state directly to the present one, and offer these first
    ///
    /// Clients then fetch one patch instead of several. apt needs longer to apply it: it cannot know
    /// the hash of what will come out, and computes all that it knows.
    #[arg(long)]
    pub merged: bool,

    /// Keep patches for at most so many states
    #[arg(long, value_name = "N", default_value_t = 56, value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub max_patches: u16,

    /// Keep files that are listed no more for so many hours, for clients that are just fetching them
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    pub keep_hours: u16,

    /// Leave out indexes whose path below DIR matches this regular expression; repeat for more
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<Filter>,

    /// When to wait for the disk: never, once before publishing, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN")]
    pub durability: Option<DurabilityChoice>,

    /// Print a line of JSON for each index
    #[arg(long)]
    pub json: bool,

    /// Print only errors
    #[arg(long, short)]
    pub quiet: bool,
}

const CONVERT_LONG: &str = "\
Convert settings of apt-mirror (mirror.list), debmirror (debmirror.conf) or ftpsync (ftpsync.conf) \
to fullbore's.

The file is read, never executed. Each setting that has no counterpart is named, on stderr and as a \
comment in the result.";

const CONVERT_EXAMPLES: &str = "\
Examples:
  See the result:
    fullbore convert /etc/apt/mirror.list
  Keep it:
    fullbore convert /etc/debmirror.conf -o /etc/fullbore/mirror.toml";

/// `fullbore convert`.
#[derive(Debug, Args)]
#[command(after_long_help = CONVERT_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct ConvertArgs {
    /// The file to convert
    #[arg(value_name = "FILE")]
    pub file: PathBuf,

    /// Write the result to this file instead of stdout; an existing file is not replaced
    #[arg(long, short, value_name = "OUT")]
    pub output: Option<PathBuf>,

    /// Take the file to be of this program (default: by name, then by content)
    #[arg(long, value_name = "PROGRAM")]
    pub format: Option<ForeignFormat>,
}

/// Whose settings file is converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ForeignFormat {
    /// apt-mirror's mirror.list.
    AptMirror,
    /// debmirror.conf.
    Debmirror,
    /// ftpsync.conf.
    Ftpsync,
}

const APT_LONG: &str = "\
Make the system's own apt use fullbore's methods, or undo it.

apt asks programs of its own, its methods, to fetch files and to apply patches to indexes. `enable` \
writes one file, /etc/apt/apt.conf.d/90fullbore, which makes it ask fullbore instead; `disable` \
removes that file, and nothing is left. No file of apt's is replaced.";

const APT_EXAMPLES: &str = "\
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
#[command(after_long_help = APT_EXAMPLES)]
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

const NOSYNC_LONG: &str = "\
Run a command with its sync calls answered at once, and sync once when it has ended.

fsync, fdatasync, sync, syncfs, msync and sync_file_range do nothing for CMD and all that it starts, \
whether static, 32-bit or in a chroot; opens with O_SYNC are left alone. When CMD has ended, every \
writable file system is synced, and a write error since the start fails the run. Until then a crash \
of the machine loses what was written: for roots that can be made again.";

const NOSYNC_EXAMPLES: &str = "\
Examples:
  Make a root, syncing once:
    fullbore nosync -- debootstrap trixie /srv/root https://deb.example.org/debian
  In a container, and see what was saved:
    fullbore nosync --report -- apt-get install -y build-essential

Exit status: that of CMD, or its signal. If CMD succeeded: 7 the final sync failed, 2 programs have
outlived CMD. If CMD was not run: 125 refused, 126 cannot be run, 127 not found.";

/// `fullbore nosync`.
#[derive(Debug, Args)]
#[command(after_long_help = NOSYNC_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct NosyncArgs {
    /// Count the sync calls and say about how much time they would have taken
    ///
    /// Each call then takes a detour over this process, which waits until the last program that
    /// CMD has started ends. Also counts what stays synchronous: opens with O_SYNC, and io_uring.
    #[arg(long)]
    pub report: bool,

    /// Run even where a service manager could start services that would keep the filter
    #[arg(long)]
    pub force: bool,

    /// Leave the final sync to somebody else
    #[arg(long)]
    pub no_final_sync: bool,

    /// The command and its arguments
    #[arg(value_name = "CMD", required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}

const DIVERT_LONG: &str = "\
Make dpkg and apt-get of another root run without syncs, or undo it.

For installers and builders that call these programs themselves. `on` puts a wrapper in the place \
of each program by a dpkg diversion, `off` brings the programs back, removes everything, and syncs. \
Both may be killed at any moment and run again; there is no moment without dpkg.";

const DIVERT_EXAMPLES: &str = "\
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
#[command(after_long_help = DIVERT_EXAMPLES)]
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
}

/// The whole command line as clap knows it, each flag with its variable.
///
/// The variables are hidden in the help texts; one sentence tells the rule.
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

fn with_environment(command: clap::Command) -> clap::Command {
    // What a variable says for all commands must not decide how another program is run; and
    // `--report` is a file elsewhere.
    if command.get_name() == "nosync" {
        return command;
    }
    command
        .mut_args(|argument| {
            let Some(long) = argument.get_long() else {
                return argument;
            };
            if matches!(long, "help" | "version") {
                return argument;
            }
            let variable = format!("FULLBORE_{}", long.to_ascii_uppercase().replace('-', "_"));
            let argument = argument.env(variable).hide_env(true);
            // FULLBORE_DRY_RUN=1 and =yes count as well as =true.
            if matches!(argument.get_action(), clap::ArgAction::SetTrue) {
                argument.value_parser(clap::builder::BoolishValueParser::new())
            } else {
                argument
            }
        })
        .mut_subcommands(with_environment)
}

/// Parses the command line. The error is clap's, to be rendered by it.
pub fn parse<I, T>(arguments: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let matches = command().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn lists_may_be_repeated_or_separated_by_commas() {
        let cli = parse(["fullbore", "mirror", "--suite", "a,b", "--suite", "c", "--from", "http://x/"]).unwrap();
        let Command::Mirror(arguments) = cli.command else { panic!("not mirror") };
        assert_eq!(arguments.suite, ["a", "b", "c"]);
    }

    #[test]
    fn what_follows_the_command_is_its_own() {
        for line in [&["fullbore", "nosync", "--", "sh", "-c", "x"][..], &["fullbore", "nosync", "sh", "-c", "x"]] {
            let Command::Nosync(arguments) = parse(line).unwrap().command else { panic!("not nosync") };
            assert_eq!(arguments.command, ["sh", "-c", "x"]);
        }
        let cli = parse(["fullbore", "nosync", "--report", "ls", "--force", "--", "--help"]).unwrap();
        let Command::Nosync(arguments) = cli.command else { panic!("not nosync") };
        assert!(arguments.report && !arguments.force);
        assert_eq!(arguments.command, ["ls", "--force", "--", "--help"]);
        assert!(parse(["fullbore", "nosync"]).is_err());
    }

    #[test]
    fn connections_are_bounded() {
        assert!(parse(["fullbore", "mirror", "--connections", "17"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "0"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "16"]).is_ok());
    }
}
