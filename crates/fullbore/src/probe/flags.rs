//! The flags of `fullbore probe`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

pub(crate) const LONG: &str = "\
Measure what a copy would be limited by, before it.

SRC and DST are those of `fullbore copy`. Each part is tried alone: reading the real files (what is in \
memory and what is on the disk apart), hash, compression and cipher, the network with one connection and \
with as many as a copy has, creating and writing files with their flush; then neighbours together, then \
everything. The result is a table, the part that limits with its evidence, how long the copy of this tree \
would take, and what it would save to remove the limit. Nothing is written under any name, and no cache \
but that of the files tried is touched; a probe that is killed leaves nothing behind.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  What will limit a copy to another machine, and how long will it take?
    fullbore probe /srv/data me@backup.example.org:/backup
  The same as JSON, in ten seconds:
    fullbore probe --time 10 --json /srv/data me@backup.example.org:/backup";

const NETWORK: &str = "Other machines";
const OUTPUT: &str = "Output";

/// `fullbore probe`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct ProbeArgs {
    /// What would be copied, and where to; one of them may be [user@]host:PATH
    #[arg(value_name = "SRC DST", required = true, num_args = 2)]
    pub paths: Vec<OsString>,

    /// Take so many seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = clap::value_parser!(u32).range(3..=600))]
    pub time: u32,

    /// Stay on the file system of SRC
    #[arg(long, short = 'x')]
    pub one_file_system: bool,

    /// Reach the other machine by this command (default: ssh)
    #[arg(long, short = 'e', value_name = "COMMAND", help_heading = NETWORK, overrides_with = "rsh")]
    pub rsh: Option<String>,

    /// Run this there instead of `fullbore`, for example `sudo fullbore`
    #[arg(long, value_name = "COMMAND", help_heading = NETWORK, overrides_with = "remote_path")]
    pub remote_path: Option<String>,

    /// Open so many connections (default: as many as a copy would)
    #[arg(long, value_name = "N", help_heading = NETWORK, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub streams: Option<u8>,

    /// Send this program (or FILE, a statically linked one) along, run it there from a temporary directory, and
    /// leave nothing of it
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, help_heading = NETWORK)]
    pub send_program: Option<Option<PathBuf>>,

    /// Make connections by QUIC alone (default: only if no TCP connection gets through)
    #[arg(long, help_heading = NETWORK, conflicts_with = "ssh_only")]
    pub quic: bool,

    /// Send everything by ssh; make no connections of its own
    #[arg(long, help_heading = NETWORK)]
    pub ssh_only: bool,

    /// Give connections this congestion control (default: the system's, and bbr where loss asks for it)
    #[arg(long, value_name = "NAME", help_heading = NETWORK, value_parser = crate::copy::flags::congestion)]
    pub congestion: Option<String>,

    /// Print the result as one line of JSON on stdout
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Do not say what is being tried
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,
}
