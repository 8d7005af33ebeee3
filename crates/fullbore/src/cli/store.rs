//! The flags of `put` and `get`; those of S3 stores are in `s3`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::queue::QueueArgs;
use super::s3::{S3Args, S3GetArgs, S3PutArgs};
use super::selection::SelectionArgs;
use super::shared::OutputArgs;
use crate::settings::values::Rate;

pub(super) const PUT_LONG: &str = "\
Upload files to a Tahoe-LAFS grid and print their caps, or to an S3 store and print their addresses.

For a grid, fullbore encodes exactly like the stock client: the same file, secret and parameters \
give the same cap. It sends all shares of many files at once. It prints a cap when every share of \
the file is acknowledged and enough servers hold one (happiness). A directory becomes an immutable \
directory, with the times of its files. To resume an interrupted upload of a large file, run the \
same command again. Caps appear on stdout, in the events of --json and in the list of --caps, never \
in a log, report, trace or metrics file.

For a store, fullbore sends many small objects at once and large ones in parts, each with its \
SHA-256, which the store checks. It skips objects that exist with the same content, and does not \
read files that have not changed since an earlier run. It finds credentials as the AWS tools do: \
environment, profiles, credential_process, web identity, the services of containers and machines.";

pub(super) const GET_LONG: &str = "\
Download files from a Tahoe-LAFS grid or an S3 store.

From a grid, fullbore asks all servers at once, reads any k good shares, and checks every hash. It \
names damaged shares and replaces them with others. If a server is slow, it asks another one. It \
reads several files at once, and writes them one after the other. From a store, it downloads ranges \
of a large object in parallel, and compares the whole with the store's checksum.

For the cap of a directory, fullbore downloads all files below it into the directory of -o, with \
their times. It skips existing files with the right size and time. It leaves out paths that would \
lead outside, and unreadable files. It names each of them and exits with 2.

Several objects, or all below a prefix that ends in a slash, need -o DIR. fullbore downloads many at \
once, skips existing files with the same content, and sets their times. Run the same command again \
to resume. If a key is not a safe path below DIR, fullbore leaves it out, names it, and exits with \
2.";

const PUT_EXAMPLES: &str = "\
Examples:
  Upload a file with the settings of the node in ~/.tahoe:
    fullbore put --node ~/.tahoe photo.jpg
  Upload a directory, and write a list of all its caps:
    fullbore put --node ~/.tahoe --caps caps.jsonl photos
  Upload from a pipe while data arrives, with a random key:
    tar -c photos | fullbore put --node ~/.tahoe --random-key --size 123904000 -
  Print the cap that a file would have:
    fullbore put --dry-run --node ~/.tahoe photo.jpg
  Upload a mirror to a bucket, indexes last, and delete obsolete objects:
    fullbore put mirror s3://my-bucket/debian --copy-links --last 'dists/***' --last InRelease --delete
  Upload to a store other than Amazon's:
    fullbore put mirror s3://my-bucket/debian --endpoint https://store.example.org:9000
  Upload a directory that other machines have mounted, too (second command: on each of them):
    fullbore put /share/photos s3://my-bucket/2026 --queue tls://nats.example.org:4222
    fullbore work tls://nats.example.org:4222 --only s3://my-bucket/2026 --root /share=/mnt/share";

const GET_EXAMPLES: &str = "\
Examples:
  Download a file; its cap comes from a file, so that it is not in the list of processes:
    fullbore get --node ~/.tahoe -o photo.jpg - < photo.cap
  Download a directory with all that is below it:
    fullbore get --node ~/.tahoe -o photos - < photos.cap
  Download an object:
    fullbore get -o photo.jpg s3://my-bucket/photos/photo.jpg
  Download all objects below a prefix into a directory, except for previews:
    fullbore get -o photos s3://my-bucket/photos/ --exclude '*.preview.jpg'
  Download the objects whose addresses are in a file:
    fullbore get -o photos - < addresses.txt";

const WHAT: &str = "What to upload";
const GRID: &str = "Grid";
const HOW: &str = "How files are stored";
const NETWORK: &str = "Network";
const OUTPUT: &str = "Output";

/// Which grid, and how it is reached.
#[derive(Debug, Args)]
pub struct GridArgs {
    /// Take servers, secrets and encoding from this directory of a Tahoe-LAFS node, e.g. ~/.tahoe
    #[arg(long, value_name = "DIR", help_heading = GRID)]
    pub node: Option<PathBuf>,

    /// Take the servers from this file, in the format of a node's private/servers.yaml
    #[arg(long, value_name = "FILE", help_heading = GRID, conflicts_with = "node")]
    pub servers: Option<PathBuf>,

    /// Stop using a server if no data moves for SECONDS
    #[arg(long, value_name = "SECONDS", help_heading = NETWORK, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

impl GridArgs {
    /// Whether a grid is named.
    pub fn is_named(&self) -> bool {
        self.node.is_some() || self.servers.is_some()
    }
}

/// `fullbore put`.
#[derive(Debug, Args)]
#[command(after_long_help = PUT_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct PutArgs {
    /// Files and directories to upload; `-` is stdin. For an S3 store, s3://BUCKET/PREFIX is the last argument
    #[arg(value_name = "FILE|DIR|s3://BUCKET/PREFIX", required = true)]
    pub paths: Vec<PathBuf>,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Follow symbolic links that end within the uploaded directory
    #[arg(long, help_heading = WHAT)]
    pub copy_links: bool,

    /// Also upload the snapshots of a mirror
    #[arg(long, help_heading = WHAT)]
    pub with_snapshots: bool,

    /// Which files of directories.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Upload nothing: print the caps that the files would have, or the objects to upload
    #[arg(long, help_heading = OUTPUT)]
    pub dry_run: bool,

    /// Shares needed, servers that must hold one, shares in all (default: the node's, or 3,7,10)
    #[arg(long, value_name = "K,H,N", help_heading = HOW)]
    pub encoding: Option<String>,

    /// Maximum segment size; a value other than the stock client's changes the caps [default: 1048576]
    #[arg(long, value_name = "BYTES", help_heading = HOW)]
    pub segment_size: Option<u64>,

    /// Convergence secret in base32; only with --dry-run, because every user of the machine can see it
    #[arg(long, value_name = "B32", help_heading = HOW, requires = "dry_run", conflicts_with_all = ["random_key", "convergence_file"])]
    pub convergence: Option<OsString>,

    /// Read the convergence secret from this file instead of the node's private/convergence
    #[arg(long, value_name = "FILE", help_heading = HOW, conflicts_with = "random_key")]
    pub convergence_file: Option<PathBuf>,

    /// Use a random key per file, so that nobody can recognise equal files
    #[arg(long, help_heading = HOW)]
    pub random_key: bool,

    /// Exact size of stdin, to upload data as it arrives; needs --random-key
    #[arg(long, value_name = "BYTES", help_heading = HOW, requires = "random_key")]
    pub size: Option<u64>,

    /// Write a list of all files and their caps, as lines of JSON that only you can read
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub caps: Option<PathBuf>,

    /// Limit the upload rate in bytes per second, such as 20M, 512KiB or 100Mbit
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub limit_rate: Option<Rate>,

    /// Keep journals of uploads and notes on unchanged files in this directory, mode 0600 (default: ~/.local/state/fullbore/put)
    #[arg(long, value_name = "DIR", help_heading = OUTPUT, alias = "journals")]
    pub state_dir: Option<PathBuf>,

    /// Output of the run.
    #[command(flatten)]
    pub shown: OutputArgs,

    /// The store.
    #[command(flatten)]
    pub s3: S3Args,

    /// How objects are uploaded.
    #[command(flatten)]
    pub s3_put: S3PutArgs,

    /// Other machines that read and upload files, too.
    #[command(flatten)]
    pub queue: QueueArgs,
}

/// `fullbore get`.
#[derive(Debug, Args)]
#[command(after_long_help = GET_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct GetArgs {
    /// Caps of files or one directory; or s3://BUCKET/KEY, s3://BUCKET/PREFIX/ for all below it. `-` reads stdin
    #[arg(value_name = "s3://BUCKET/KEY|CAP", required = true)]
    pub caps: Vec<OsString>,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Write to this file, or below this directory, instead of stdout; a file appears when it is complete
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,

    /// Limit the download rate in bytes per second, such as 20M, 512KiB or 100Mbit
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub limit_rate: Option<Rate>,

    /// Which objects below a prefix.
    #[command(flatten)]
    pub selection: SelectionArgs,

    /// Output of the run.
    #[command(flatten)]
    pub shown: OutputArgs,

    /// The store.
    #[command(flatten)]
    pub s3: S3Args,

    /// Requirements on objects.
    #[command(flatten)]
    pub s3_get: S3GetArgs,
}
