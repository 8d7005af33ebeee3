//! The flags of `fullbore work`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::s3::{STORE, StoreArgs};
use super::shared::{NETWORK, NetworkArgs, OutputArgs};

const WHICH: &str = "Which work";

pub(super) const LONG: &str = "\
Fetch files of a mirror in a bucket, as one of many machines.

`fullbore mirror … --pin` plans a run and prints its name. Each machine then fetches its shard of \
the files from the mirrors of the plan, verifies them, and stores them. After that it stores files \
that other machines have not stored yet. All machines together open at most --connections of the \
planner to each mirror; --connections of a worker can only lower its part. `fullbore mirror … \
--finish RUN` fetches what is missing, and publishes. A machine that dies, or starts twice, late or \
not at all, costs time, and no file.

A worker needs the right to list the bucket, to read the plan, and to write below pool/. It writes no \
index and deletes nothing.";

const EXAMPLES: &str = "\
Examples:
  Plan, and keep the name of the run:
    RUN=$(fullbore mirror debian --to s3://my-bucket/debian --pin)
  Store the fourth of sixteen shards:
    fullbore work s3://my-bucket/debian --run $RUN --shard 3/16
  Use sixteen machines of Slurm:
    sbatch --array=0-15 --requeue --export=ALL,RUN=$RUN \\
        --wrap 'fullbore work s3://my-bucket/debian --run $RUN --shard $SLURM_ARRAY_TASK_ID/16'
  Fetch the rest, and publish:
    fullbore mirror debian --to s3://my-bucket/debian --finish $RUN";

/// `fullbore work`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct WorkArgs {
    /// The mirror: the bucket and prefix of --to
    #[arg(value_name = "s3://BUCKET/PREFIX")]
    pub place: OsString,

    /// Work on the run of this name, which `fullbore mirror --pin` printed
    #[arg(long, value_name = "RUN", help_heading = WHICH)]
    pub run: Option<String>,

    /// Store shard INDEX of COUNT, then help the others; the first one is 0
    #[arg(long, value_name = "INDEX/COUNT", help_heading = WHICH)]
    pub shard: Option<String>,

    /// Which store has the bucket.
    #[command(flatten)]
    pub store: StoreArgs,

    /// The mirror has fullbore's own files below this address (default: beside the mirror)
    #[arg(long, value_name = "s3://BUCKET/PREFIX", help_heading = STORE)]
    pub state: Option<PathBuf>,

    /// Keep files above 16 MiB in this directory until they are in the bucket (default: TMPDIR or /var/tmp)
    #[arg(long, value_name = "DIR", help_heading = STORE)]
    pub scratch: Option<PathBuf>,

    /// Trust the certificates in this file in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = NETWORK)]
    pub cacert: Option<PathBuf>,

    /// How to reach the mirrors.
    #[command(flatten)]
    pub network: NetworkArgs,

    /// Output of the run.
    #[command(flatten)]
    pub output: OutputArgs,
}
