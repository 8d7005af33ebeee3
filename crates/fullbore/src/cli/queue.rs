//! The flags of a queue: for its planners (`mirror`) and its workers (`work`).

use std::path::PathBuf;

use clap::Args;

pub(super) const QUEUE: &str = "Queue";

/// Who a client of a queue is.
#[derive(Debug, Args)]
pub struct QueueLoginArgs {
    /// Log in to the queue with this NATS credentials file, as `nsc` makes it
    ///
    /// fullbore reads a user and password from FULLBORE_QUEUE_USER and FULLBORE_QUEUE_PASSWORD.
    #[arg(long, value_name = "FILE", help_heading = QUEUE, conflicts_with = "queue_nkey")]
    pub queue_creds: Option<PathBuf>,

    /// Log in to the queue with the NKey seed in this file
    #[arg(long, value_name = "FILE", help_heading = QUEUE)]
    pub queue_nkey: Option<PathBuf>,

    /// Log in to the queue with this certificate (PEM)
    #[arg(long, value_name = "FILE", help_heading = QUEUE, requires = "queue_key")]
    pub queue_cert: Option<PathBuf>,

    /// Private key of --queue-cert (PEM)
    #[arg(long, value_name = "FILE", help_heading = QUEUE, requires = "queue_cert")]
    pub queue_key: Option<PathBuf>,

    /// Send credentials to a queue on another machine without TLS
    #[arg(long, help_heading = QUEUE)]
    pub queue_insecure: bool,
}

/// The queue of a planner.
#[derive(Debug, Args)]
pub struct QueueArgs {
    /// Share the work with machines that run `fullbore work` on this NATS server
    ///
    /// If there is no worker, or the server cannot be reached, this machine does everything itself.
    #[arg(long, value_name = "URL", help_heading = QUEUE)]
    pub queue: Option<String>,

    /// Who this planner is.
    #[command(flatten)]
    pub login: QueueLoginArgs,

    /// Leave all files to workers, as long as there are any
    #[arg(long, help_heading = QUEUE)]
    pub no_local: bool,

    /// End with exit code 3 if the queue cannot be reached at the start
    #[arg(long, help_heading = QUEUE)]
    pub require_workers: bool,
}
