//! The flags of `fullbore mirror`.

use std::path::PathBuf;

use clap::Args;
use fullbore_engine::durability::Durability;
use fullbore_mirror::{Filter, IndexFormat, Kind};

use super::choices;
use super::queue::QueueArgs;
use super::s3::{Aliases, STORE, StoreArgs, StoreLock};
use super::shared::{CHOICE, KEEP, NETWORK, NetworkArgs, OUTPUT, OutputArgs, TRUST, TrustArgs};
use crate::settings::values::Percent;

const WHAT: &str = "What to mirror";
const WORKERS: &str = "Many machines";

pub(super) const LONG: &str = "\
Clone or update a Debian archive from one or many mirrors.

Fetches the signed InRelease of each suite from the origin (the first --from), verifies it, and \
brings the directory to exactly that state. Files come from all mirrors at once. A file appears \
under its final name only with the right SHA-256. Pool files are published first, then indexes, \
InRelease last. Run the same command again to update the mirror, or to resume an interrupted run. A \
run that finds nothing new costs two or three round trips.";

const EXAMPLES: &str = "\
Examples:
  Mirror one suite from two mirrors:
    fullbore mirror --from https://deb.example.org/debian --from https://ftp.example.org/debian \\
        --suite trixie --component main --arch amd64,all --to /srv/mirror/debian
  Mirror what apt on this machine uses:
    fullbore mirror --sources /etc/apt/sources.list.d/debian.sources --to /srv/mirror
  Mirror a private archive in a bucket, with the credentials of a profile:
    fullbore mirror --from 's3://my-bucket/debian?profile=work' --suite trixie \\
        --to /srv/mirror/private
  See what an update would fetch:
    fullbore mirror --config /etc/fullbore/mirror.toml debian --dry-run
  Limit the rate to 20 MB/s, and write a report:
    fullbore mirror debian --limit-rate 20M --report run.html

Every flag can be set in the environment (FULLBORE_LIMIT_RATE) or, under its own name, in a
[mirror.NAME] section of the settings file (limit-rate = \"20M\").";

/// `fullbore mirror`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct MirrorArgs {
    /// Run these [mirror.NAME] sections of the settings file (default: all of them)
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,

    /// Fetch from this mirror of the archive; repeat for more mirrors. The first is the origin
    ///
    /// The URL leads to the directory that holds dists/, as in apt's sources. The origin decides which state of the
    /// archive is mirrored. Files come from all mirrors; a faster mirror gets more work.
    ///
    /// An archive in an S3 store is s3://BUCKET/PREFIX. Credentials are those that `aws` would use. --endpoint,
    /// --region and --profile apply to the buckets of --to and --from. For a bucket in another store, put the store's
    /// settings into the address; these flags then do not apply to this bucket:
    /// 's3://BUCKET/PREFIX?profile=NAME&endpoint=URL&region=NAME'. Further parameters are addressing=path and
    /// no-sign-request. If all mirrors are buckets, the default of --connections is 16.
    #[arg(long, value_name = "URL|s3://BUCKET/PREFIX", help_heading = WHAT, value_delimiter = ' ')]
    pub from: Vec<String>,

    /// Mirror this suite or codename; repeat or separate with commas
    ///
    /// A name that ends in a slash, as in apt's sources, is a flat repository.
    #[arg(long, value_name = "SUITE", help_heading = WHAT, value_delimiter = ',')]
    pub suite: Vec<String>,

    /// Mirror this component; repeat or separate with commas (default: all in the Release)
    #[arg(long, value_name = "COMPONENT", help_heading = WHAT, value_delimiter = ',')]
    pub component: Vec<String>,

    /// Mirror this architecture, `source` or `all`; repeat or separate with commas (default: all)
    #[arg(long, value_name = "ARCH", help_heading = WHAT, value_delimiter = ',')]
    pub arch: Vec<String>,

    /// Mirror the archives in this file or directory of apt sources (deb822 .sources or one-line .list)
    ///
    /// Several URIs in one entry are mirrors of one archive. If the entries name several archives, each gets its own
    /// directory below --to. The directory is named after the last part of the archive's URL: /srv/mirror/debian and
    /// /srv/mirror/debian-security.
    #[arg(long, value_name = "FILE|DIR", help_heading = WHAT)]
    pub sources: Option<PathBuf>,

    /// Read settings from this file (default: /etc/fullbore/mirror.toml)
    #[arg(long, value_name = "FILE", help_heading = WHAT)]
    pub config: Option<PathBuf>,

    /// Write the mirror into this directory, or into an S3 store, below this prefix
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX", help_heading = WHAT)]
    pub to: Option<PathBuf>,

    /// What to store under a suite's other names, such as stable: copies of its indexes, or nothing [default: copy]
    #[arg(long, value_name = "WHAT", help_heading = STORE, value_enum)]
    pub aliases: Option<Aliases>,

    /// Keep fullbore's own files below this address or directory, for example if the whole bucket is public (default:
    /// beside the mirror)
    #[arg(long, value_name = "DIR|s3://BUCKET/PREFIX", help_heading = STORE)]
    pub state: Option<PathBuf>,

    /// Cache-Control of indexes and signed files (default: a minute; that of packages is for ever)
    #[arg(long, value_name = "VALUE", help_heading = STORE)]
    pub cache_control: Option<String>,

    /// Keep two runs apart by a lock in the bucket; `none` if the store has no conditional writes [default: bucket]
    #[arg(long, value_name = "WHAT", help_heading = STORE, value_enum)]
    pub lock: Option<StoreLock>,

    /// Keep indexes and large files in this directory until they are in the bucket (default: TMPDIR or /var/tmp)
    #[arg(long, value_name = "DIR", help_heading = STORE)]
    pub scratch: Option<PathBuf>,

    /// Keep indexes in this directory between runs, to fetch only changed ones
    #[arg(long, value_name = "DIR", help_heading = STORE)]
    pub cache: Option<PathBuf>,

    /// After the run, keep the state as a snapshot of this name: hard links, or in a bucket copies of the indexes
    #[arg(long, value_name = "NAME", help_heading = WHAT)]
    pub snapshot: Option<String>,

    /// Also copy the packages into the snapshot; snapshots/NAME/ in the bucket is then a separate mirror
    #[arg(long, help_heading = STORE, requires = "snapshot")]
    pub snapshot_full: bool,

    /// Mirror only files whose path matches; with --exclude, bring matching files back
    ///
    /// fullbore searches for the regular expression in the path below the archive's root, such as
    /// pool/main/h/hello/hello_2.10-5_amd64.deb. Repeat for more.
    #[arg(long, value_name = "REGEX", help_heading = CHOICE)]
    pub include: Vec<Filter>,

    /// Skip files whose path matches this regular expression; repeat for more
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

    /// Fetch only these formats of each index; comma-separated (default: every compressed format that exists)
    #[arg(long, value_name = "FORMAT", help_heading = CHOICE, value_delimiter = ',', value_parser = choices::index_format())]
    pub index_formats: Vec<IndexFormat>,

    /// Skip these kinds of files; comma-separated
    #[arg(long, value_name = "KIND", help_heading = CHOICE, value_delimiter = ',', value_parser = choices::kind())]
    pub without: Vec<Kind>,

    /// Fetch translated descriptions only in these languages, such as en,de (default: all)
    #[arg(long, value_name = "LANGUAGE", help_heading = CHOICE, value_delimiter = ',')]
    pub languages: Vec<String>,

    /// Accepted signatures and certificates.
    #[command(flatten)]
    pub trust: TrustArgs,

    /// Accept a Release whose Valid-Until has passed; logged at every run
    #[arg(long, help_heading = TRUST)]
    pub ignore_valid_until: bool,

    /// Publish without files that no mirror serves with the indexed size and hash; name them and exit with code 2
    #[arg(long, help_heading = TRUST)]
    pub ignore_missing: bool,

    /// Delete nothing if more than this share of the mirrored files would go [default: 40%]
    #[arg(long, value_name = "PERCENT", help_heading = KEEP)]
    pub max_delete: Option<Percent>,

    /// Delete even if --max-delete is exceeded
    #[arg(long, help_heading = KEEP)]
    pub force_delete: bool,

    /// Also delete files that fullbore did not place
    ///
    /// Without this option, fullbore deletes only files that it placed and that no signed index names any more.
    #[arg(long, help_heading = KEEP)]
    pub clean_foreign: bool,

    /// Delete nothing
    #[arg(long, help_heading = KEEP)]
    pub no_clean: bool,

    /// Keep the files and by-hash indexes of N earlier states [default: 3]
    #[arg(long, value_name = "N", help_heading = KEEP)]
    pub keep_generations: Option<u32>,

    /// Keep the files of earlier states for at least HOURS [default: 24]
    #[arg(long, value_name = "HOURS", help_heading = KEEP)]
    pub keep_hours: Option<u32>,

    /// When to wait for the disk: never, once before publishing, or for each file [default: at-end]
    #[arg(long, value_name = "WHEN", help_heading = KEEP, value_parser = choices::durability())]
    pub durability: Option<Durability>,

    /// Use this public host name in the mirror's trace files (default: this machine's name)
    #[arg(long, value_name = "HOST", help_heading = KEEP)]
    pub trace_host: Option<String>,

    #[allow(rustdoc::invalid_html_tags, reason = "the text is also the help")]
    /// Write this line into the trace file, such as "Maintainer: NAME <ADDRESS>"; repeat for more
    #[arg(long, value_name = "LINE", help_heading = KEEP)]
    pub trace_info: Vec<String>,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Which store, for buckets.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Do not sign requests to the buckets of --from; for public buckets
    #[arg(long, help_heading = STORE)]
    pub no_sign_request: bool,

    /// Other machines that do the work.
    #[command(flatten)]
    pub queue: QueueArgs,

    /// Mirror the state of the archive at this URL (default: the first --from)
    #[arg(long, value_name = "URL", help_heading = NETWORK)]
    pub origin: Option<String>,

    /// Fetch everything from the origin
    #[arg(long, help_heading = NETWORK)]
    pub origin_only: bool,

    /// Show how many files and bytes would be fetched; change no file of the mirror
    #[arg(long, short = 'n', help_heading = OUTPUT)]
    pub dry_run: bool,

    /// Store the plan in the bucket for workers, and print the name of the run; see `fullbore work`
    #[arg(long, help_heading = WORKERS, conflicts_with_all = ["dry_run", "finish", "snapshot"])]
    pub pin: bool,

    /// After workers have stored files of this run, fetch the rest and publish
    #[arg(long, value_name = "RUN", help_heading = WORKERS, conflicts_with = "dry_run")]
    pub finish: Option<String>,

    /// Download and hash each object for which the store computed no checksum; do not trust its metadata
    #[arg(long, help_heading = WORKERS, requires = "finish")]
    pub verify_objects: bool,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,

    /// Exit with 10 if nothing changed, for scripts
    #[arg(long, help_heading = OUTPUT)]
    pub changed_exit: bool,
}
