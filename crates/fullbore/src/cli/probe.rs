//! The flags of `fullbore probe`.

use std::ffi::OsString;

use clap::Args;

use super::reach::ReachArgs;

pub(crate) const LONG: &str = "\
Measure what will limit a copy, before the copy.

SRC and DST are those of `fullbore copy`. fullbore tries each part alone: reading, hashing, \
compression, encryption, the network, and writing. It reads the real files, separately from memory \
and from disk. It uses the network with one connection, and with as many as a copy has. It creates, \
writes and flushes files. Then it tries neighbouring parts together, then everything.

The result is a table, and the limiting part with its evidence. It also shows the time that a copy \
of this tree would take, and the time that removing the limit would save. Test files have no names, \
so a killed probe leaves nothing behind. Only the tested files are dropped from the page cache.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  Find out what will limit a copy to another machine, and how long it will take:
    fullbore probe /srv/data me@backup.example.org:/backup
  The same as JSON, in ten seconds:
    fullbore probe --time 10 --json /srv/data me@backup.example.org:/backup";

const OUTPUT: &str = "Output";

/// `fullbore probe`.
#[derive(Debug, Args)]
#[command(after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct ProbeArgs {
    #[allow(rustdoc::broken_intra_doc_links, reason = "the text is also the help")]
    /// Source and destination; one of them may be [user@]host:PATH
    #[arg(value_name = "SRC DST", required = true, num_args = 1..)]
    pub paths: Vec<OsString>,

    /// Measure for SECONDS
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

    /// Print only the result
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,

    /// Log how the other machine is reached; repeat for more
    #[arg(long, short, help_heading = OUTPUT, action = clap::ArgAction::Count)]
    pub verbose: u8,
}
