//! The flags of `put` and `get`; those of S3 stores are in `s3`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::s3::{S3Args, S3GetArgs, S3PutArgs};
use super::shared::OutputArgs;
use crate::settings::values::Rate;

pub(super) const PUT_LONG: &str = "\
Put files into a Tahoe-LAFS grid and print their caps, or into an S3 store and print their addresses.

For a grid, encodes exactly as the stock client does, so that the same file, secret and numbers give the same \
cap, and sends all shares of many files at once, each server at its own pace. A cap is printed when \
every share of its file is acknowledged and enough servers hold one (happiness). A directory becomes \
an immutable directory. An interrupted upload of a large file is taken up where it stopped, when the \
same command is run again. Caps are printed, are in the events of --json and in the list of --caps; log, \
report, trace and metrics never have one.

For a store, sends many small objects at once and large ones in parts, each with its SHA-256, which \
the store checks. Objects that are there with the same content are not sent again. Credentials are \
found as the AWS tools find them: environment, profiles, credential_process, web identity, the \
services of containers and machines.";

pub(super) const GET_LONG: &str = "\
Get files out of a Tahoe-LAFS grid or an S3 store.

From a grid, asks all servers at once, reads any k good shares, and checks every hash. Damaged shares are named \
and replaced by others; what a slow server does not send in time is asked of another one. Several \
files are read at once, and written one after the other. From a store, gets a large object by ranges \
at once, and compares the whole with the store's checksum.";

const PUT_EXAMPLES: &str = "\
Examples:
  Put a file by the settings of the node in ~/.tahoe:
    fullbore put --node ~/.tahoe photo.jpg
  Put a directory, and keep a list of all caps in it:
    fullbore put --node ~/.tahoe --caps caps.jsonl photos
  Put what comes out of a pipe, as it comes, with a key of its own:
    tar -c photos | fullbore put --node ~/.tahoe --random-key --size 123904000 -
  See the cap that a file would have:
    fullbore put --dry-run --node ~/.tahoe photo.jpg
  Put a mirror into a bucket, indexes last, and delete what is no more:
    fullbore put mirror s3://my-bucket/debian --copy-links --last 'dists/***' --last InRelease --delete
  The same into another store than Amazon's:
    fullbore put mirror s3://my-bucket/debian --endpoint https://store.example.org:9000";

const GET_EXAMPLES: &str = "\
Examples:
  Get a file whose cap is in a file of its own, so that it is not in the list of processes:
    fullbore get --node ~/.tahoe -o photo.jpg - < photo.cap
  Get an object:
    fullbore get -o photo.jpg s3://my-bucket/photos/photo.jpg";

const WHAT: &str = "What is put";
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

    /// Take the servers from this file, in the form of a node's private/servers.yaml
    #[arg(long, value_name = "FILE", help_heading = GRID, conflicts_with = "node")]
    pub servers: Option<PathBuf>,

    /// Give a server up after so many seconds in which nothing moves
    #[arg(long, value_name = "SECONDS", help_heading = NETWORK, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub timeout: u64,
}

/// `fullbore put`.
#[derive(Debug, Args)]
#[command(after_long_help = PUT_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct PutArgs {
    /// Files and directories to put; `-` is stdin. With s3://BUCKET/PREFIX at the end, they go there
    #[arg(value_name = "FILE|DIR", required = true)]
    pub paths: Vec<PathBuf>,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Follow symbolic links that end within the directory that is put
    #[arg(long, help_heading = WHAT)]
    pub copy_links: bool,

    /// Put also the snapshots of a mirror
    #[arg(long, help_heading = WHAT)]
    pub with_snapshots: bool,

    /// Print the caps that the files would have; speaks to no server
    #[arg(long, help_heading = OUTPUT)]
    pub dry_run: bool,

    /// Shares needed, servers that must hold one, shares made (default: the node's, or 3,7,10)
    #[arg(long, value_name = "K,H,N", help_heading = HOW)]
    pub encoding: Option<String>,

    /// Bytes of a segment at most; another value than the stock client's gives other caps [default: 1048576]
    #[arg(long, value_name = "BYTES", help_heading = HOW)]
    pub segment_size: Option<u64>,

    /// Convergence secret in base32, for --dry-run only: everybody on the machine can see it
    #[arg(long, value_name = "B32", help_heading = HOW, requires = "dry_run", conflicts_with_all = ["random_key", "convergence_file"])]
    pub convergence: Option<OsString>,

    /// Read the convergence secret from this file instead of the node's private/convergence
    #[arg(long, value_name = "FILE", help_heading = HOW, conflicts_with = "random_key")]
    pub convergence_file: Option<PathBuf>,

    /// Give each file a key of its own: equal files are not recognised, by nobody
    #[arg(long, help_heading = HOW)]
    pub random_key: bool,

    /// Stdin has exactly so many bytes and is sent as it comes; needs --random-key
    #[arg(long, value_name = "BYTES", help_heading = HOW, requires = "random_key")]
    pub size: Option<u64>,

    /// Write a list of all files and their caps, as lines of JSON, readable by you only
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub caps: Option<PathBuf>,

    /// Send at most so many bytes per second: 20M, 512KiB, 100Mbit
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub limit_rate: Option<Rate>,

    /// Keep journals of uploads here, mode 0600 (default: fullbore/put in the directory for state)
    #[arg(long, value_name = "DIR", help_heading = OUTPUT)]
    pub journals: Option<PathBuf>,

    /// What is shown and written.
    #[command(flatten)]
    pub shown: OutputArgs,

    /// The store.
    #[command(flatten)]
    pub s3: S3Args,

    /// How objects are put there.
    #[command(flatten)]
    pub s3_put: S3PutArgs,
}

/// `fullbore get`.
#[derive(Debug, Args)]
#[command(after_long_help = GET_EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct GetArgs {
    /// Caps of files, which are written one after the other; `-` reads caps from stdin, one in each line, as they
    /// come. Or one s3://BUCKET/KEY
    #[arg(value_name = "CAP", required = true)]
    pub caps: Vec<OsString>,

    /// The grid.
    #[command(flatten)]
    pub grid: GridArgs,

    /// Write to this file instead of to stdout; it appears when it is complete
    #[arg(short, long, value_name = "FILE", help_heading = OUTPUT)]
    pub output: Option<PathBuf>,

    /// What is shown and written.
    #[command(flatten)]
    pub shown: OutputArgs,

    /// The store.
    #[command(flatten)]
    pub s3: S3Args,

    /// What is required of its objects.
    #[command(flatten)]
    pub s3_get: S3GetArgs,
}
