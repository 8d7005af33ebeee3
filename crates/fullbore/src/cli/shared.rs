//! Flags that several commands have, and the headings under which help texts list them.

use std::path::PathBuf;

use clap::Args;

use crate::settings::values::Rate;

pub(super) const TRUST: &str = "Trust";
pub(super) const NETWORK: &str = "Network";
pub(super) const OUTPUT: &str = "Output";
pub(super) const CHOICE: &str = "Which files";
pub(super) const KEEP: &str = "Keeping and deleting";

/// Flags about trust, of several commands.
#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Verify signatures with this keyring; repeat for more (default: Signed-By, or the keyrings of
    /// Debian and Ubuntu)
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub keyring: Vec<PathBuf>,

    /// Trust the certificates in this file in addition to the system's
    #[arg(long, value_name = "FILE", help_heading = TRUST)]
    pub cacert: Option<PathBuf>,
}

/// Flags about the network, of several commands.
#[derive(Debug, Args)]
pub struct NetworkArgs {
    /// Limit the download rate in bytes per second, such as 20M, 2.5MB, 512KiB or 100Mbit
    #[arg(long, value_name = "RATE", help_heading = NETWORK)]
    pub limit_rate: Option<Rate>,

    /// Open at most N connections to each host, 1 to 16 [default: 4]
    ///
    /// Public mirrors limit connections, and block clients that open many. Four usually fill the link.
    #[arg(long, value_name = "N", help_heading = NETWORK, value_parser = clap::value_parser!(u16).range(1..=16))]
    pub connections: Option<u16>,

    /// Use only HTTP/1.1, never HTTP/2
    #[arg(long, help_heading = NETWORK)]
    pub http1: bool,

    /// Never request data from a second host while a slow one sends it
    #[arg(long, help_heading = NETWORK)]
    pub no_hedge: bool,

    /// Read credentials from this file in apt's auth.conf format (default: apt's own files)
    #[arg(long, value_name = "FILE", help_heading = NETWORK)]
    pub auth: Option<PathBuf>,
}

/// Flags about output, of several commands.
#[derive(Debug, Args)]
pub struct OutputArgs {
    /// Print events as lines of JSON on stdout, the totals last
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Write a report of the run: an HTML page, or JSON if the name ends in .json
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub report: Option<PathBuf>,

    /// Write metrics for Prometheus' textfile collector
    #[arg(long, value_name = "FILE.prom", help_heading = OUTPUT)]
    pub metrics: Option<PathBuf>,

    /// Write a trace of the run's phases and stages, for Perfetto
    #[arg(long, value_name = "FILE.json", help_heading = OUTPUT)]
    pub trace: Option<PathBuf>,

    /// Print only errors
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,

    /// Log more; repeat for even more
    #[arg(long, short, action = clap::ArgAction::Count, help_heading = OUTPUT)]
    pub verbose: u8,
}
