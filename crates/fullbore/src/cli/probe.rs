//! The flags of `fullbore probe`.

use std::ffi::OsString;

use clap::Args;

use super::reach::ReachArgs;

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

    /// How the other machine is reached.
    #[command(flatten)]
    pub reach: ReachArgs,

    /// Print events as lines of JSON on stdout, the result last
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Do not say what is being tried
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,

    /// Log how the other machine is reached; repeat for more
    #[arg(long, short, help_heading = OUTPUT, action = clap::ArgAction::Count)]
    pub verbose: u8,
}
