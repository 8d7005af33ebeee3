//! The flags of `fullbore work`: a worker of a queue, or of a pinned plan.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::queue::{QUEUE, QueueLoginArgs};
use super::s3::{STORE, StoreArgs};
use super::shared::{NETWORK, NetworkArgs, OutputArgs};

const WHICH: &str = "Which work";

pub(super) const LONG: &str = "\
Fetch files of a mirror in a bucket, as one of many machines.

With the address of a queue, it waits for runs of `fullbore mirror ... --queue URL`, and stores \
files of each run until you stop it. Any number of workers may start at any time. --only says where \
a worker may store. All workers together open no more connections to a mirror than --connections of \
the run allows.

With the address of a mirror, no queue is needed. `fullbore mirror ... --pin` plans a run and prints \
its name. Each machine then fetches its shard of the files from the mirrors of the plan, verifies \
them, and stores them. After that, it stores files that other machines have not stored yet. All \
machines together open no more connections to each mirror than --connections of the planner allows; \
--connections of a worker can only lower its part. `fullbore mirror ... --finish RUN` fetches the \
missing files, and publishes. A machine that dies, or starts twice, late or not at all, costs time, \
but no file.

A worker has its own credentials for the bucket. It needs the right to list the bucket, to read the \
plan, and to read and write below pool/. For runs of `put`, it needs to read and write below the \
prefix of the upload. It writes no index and deletes nothing.";

const EXAMPLES: &str = "\
Examples:
  Work for a queue:
    fullbore work tls://nats.example.org:4222 --queue-creds worker.creds --only s3://my-bucket/debian
  See runs, workers and connections:
    fullbore work tls://nats.example.org:4222 --queue-creds worker.creds --status
  Plan, and keep the name of the run:
    RUN=$(fullbore mirror debian --to s3://my-bucket/debian --pin)
  Store the fourth of sixteen shards:
    fullbore work s3://my-bucket/debian --run $RUN --shard 3/16
  Use sixteen machines of Slurm:
    sbatch --array=0-15 --requeue --export=ALL,RUN=$RUN \\
        --wrap 'fullbore work s3://my-bucket/debian --run $RUN --shard $SLURM_ARRAY_TASK_ID/16'
  Fetch the rest, and publish:
    fullbore mirror debian --to s3://my-bucket/debian --finish $RUN";

/// A worker has no default of its own.
const CONNECTIONS: &str = "Open at most N connections to each host, 1 to 16 (default: what the run allows)";

/// `fullbore work`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
#[command(mut_arg("connections", |connections| connections.help(CONNECTIONS).long_help(CONNECTIONS)))]
pub struct WorkArgs {
    /// The queue, or the mirror: the bucket and prefix of --to
    #[arg(value_name = "tls://HOST:PORT|s3://BUCKET/PREFIX")]
    pub place: OsString,

    /// Store only below this bucket and prefix; repeat for more. The worker leaves other runs to other workers
    #[arg(long, value_name = "s3://BUCKET/PREFIX", help_heading = QUEUE)]
    pub only: Vec<OsString>,

    /// Also work on runs of `put`: the planner's directory FROM is TO on this machine; repeat for more
    #[arg(long, value_name = "FROM=TO", help_heading = QUEUE)]
    pub root: Vec<OsString>,

    /// End when the queue has no more runs (default: wait for the next one)
    #[arg(long, help_heading = QUEUE)]
    pub once: bool,

    /// Print runs, workers and connections of the queue
    #[arg(long, help_heading = QUEUE, conflicts_with = "once")]
    pub status: bool,

    /// Who this worker is.
    #[command(flatten)]
    pub login: QueueLoginArgs,

    /// Work on the run of this name, which `fullbore mirror --pin` printed
    #[arg(long, value_name = "RUN", help_heading = WHICH)]
    pub run: Option<String>,

    /// Store shard INDEX of COUNT, then help with the others; the first shard is 0
    #[arg(long, value_name = "INDEX/COUNT", help_heading = WHICH, allow_hyphen_values = true)]
    pub shard: Option<String>,

    /// Which store has the bucket.
    #[command(flatten)]
    pub store: StoreArgs,

    /// Read fullbore's own files from this address, as given to mirror --state (default: beside the mirror)
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
