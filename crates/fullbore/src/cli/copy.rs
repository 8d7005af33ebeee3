//! The flags of `fullbore copy`, with rsync's names where they mean the same.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{ArgAction, ArgMatches, Args, Command, FromArgMatches};

use super::reach::{NETWORK, ReachArgs};

pub(crate) const LONG: &str = "\
Copy files and trees, on this machine or to and from another one.

Paths follow rsync's rules: SRC with a slash at its end means the contents of the directory, SRC \
without one means the directory itself. By default, fullbore keeps everything that rsync -aHAXS \
keeps: permissions, owners, nanosecond times, symbolic and hard links, holes, ACLs, extended \
attributes, devices. If it cannot keep something, it counts it, names it, and exits with 2.

fullbore reaches the other machine by ssh, and must be installed there. Content goes over direct \
connections, encrypted with keys of this run, or through ssh if no direct connection is possible. \
Each file gets its name only when it is complete. To resume an interrupted copy, run it again. If \
everything is there already, fullbore copies nothing.";

pub(crate) const EXAMPLES: &str = "\
Examples:
  Copy the contents of a directory into another one:
    fullbore copy /srv/data/ /backup/data
  Push to another machine, pull from it:
    fullbore copy /srv/data/ me@backup.example.org:/backup/data
    fullbore copy me@backup.example.org:/backup/data/ /srv/data
  Show what would be copied and deleted:
    fullbore copy -n --delete /srv/data/ /backup/data
  Skip caches:
    fullbore copy --exclude '.cache/' /home/ /backup/home";

const SELECTION: &str = "Which files";
const KEPT: &str = "Attributes";
const OUTPUT: &str = "Output";

/// `fullbore copy`.
#[derive(Debug, Args)]
#[command(args_override_self = true, disable_help_flag = true, after_long_help = EXAMPLES, after_help = "Try --help for examples and all details.")]
pub struct CopyArgs {
    /// Sources, and the destination last
    #[arg(value_name = "SRC... DST", required_unless_present_any = ["server", "status", "set", "human_readable"], num_args = 1..)]
    pub paths: Vec<OsString>,

    /// Print help
    // Without clap's -h: `-avh`, as with rsync, must not print the help.
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,

    /// Show what would be done; write nothing
    #[arg(long, short = 'n')]
    pub dry_run: bool,

    /// Compare files of the same size by content instead of time
    #[arg(long, short = 'c')]
    pub checksum: bool,

    /// Remove files from the source once they are on the destination's disk
    #[arg(long, conflicts_with = "delete")]
    pub remove_source_files: bool,

    /// Read all written data back from the device, not from the page cache, and compare it
    #[arg(long)]
    pub verify: bool,

    /// Delete files that the source does not have, if everything else succeeded
    #[arg(long)]
    pub delete: bool,

    /// Which names.
    #[command(flatten)]
    pub filters: FilterArgs,

    /// Copy only the paths in this file, one per line, relative to SRC (- for stdin)
    #[arg(long, value_name = "FILE", help_heading = SELECTION)]
    pub files_from: Option<PathBuf>,

    /// Paths and patterns in files end in NULs, as find -print0 writes them
    #[arg(long, short = '0', help_heading = SELECTION)]
    pub from0: bool,

    /// Stay on the file system of each SRC; /proc and /sys are never entered
    #[arg(long, short = 'x', help_heading = SELECTION)]
    pub one_file_system: bool,

    /// With --files-from: copy all contents of the directories that the file names
    #[arg(long, short = 'r', help_heading = SELECTION)]
    pub recursive: bool,

    /// Keep owners and groups by number, not by name
    #[arg(long, help_heading = KEPT)]
    pub numeric_ids: bool,

    /// Do not keep owners
    #[arg(long, alias = "no-o", help_heading = KEPT)]
    pub no_owner: bool,

    /// Do not keep groups
    #[arg(long, alias = "no-g", help_heading = KEPT)]
    pub no_group: bool,

    /// Do not keep permissions
    #[arg(long, alias = "no-p", help_heading = KEPT)]
    pub no_perms: bool,

    /// Do not keep ACLs
    #[arg(long, help_heading = KEPT)]
    pub no_acls: bool,

    /// Do not keep extended attributes
    #[arg(long, help_heading = KEPT)]
    pub no_xattrs: bool,

    /// Copy each name of a hard-linked file as a separate file
    #[arg(long, help_heading = KEPT)]
    pub no_hard_links: bool,

    /// Skip devices, named pipes and sockets
    #[arg(long, help_heading = KEPT)]
    pub no_specials: bool,

    /// For rsync's users: everything that these ask for is kept anyway
    #[command(flatten)]
    pub kept: KeptArgs,

    /// How the other machine is reached.
    #[command(flatten)]
    pub reach: ReachArgs,

    /// Compress all data that gets smaller (default: if a trial shows that the copy gets faster)
    #[arg(long, short = 'z', help_heading = NETWORK, overrides_with = "no_compress")]
    pub compress: bool,

    /// Compress nothing
    #[arg(long, help_heading = NETWORK, overrides_with = "compress")]
    pub no_compress: bool,

    /// Send changed files whole, not only their changed blocks
    #[arg(long, short = 'W', help_heading = NETWORK)]
    pub whole_file: bool,

    /// Limit the rate, in rsync's units: 1000 or 1000K is 1000 KiB/s; also 1.5M, 20MB; 0 is no limit
    #[arg(long, value_name = "RATE", help_heading = NETWORK, value_parser = rate)]
    pub bwlimit: Option<u64>,

    /// Redial a lost connection for SECONDS
    #[arg(long, value_name = "SECONDS", default_value = "600", help_heading = NETWORK)]
    pub retry_for: u64,

    /// Serve the other end of a copy on stdin and stdout
    #[arg(long, hide = true)]
    pub server: bool,

    /// Carry bytes between stdin and stdout and a running server
    #[arg(long, hide = true, value_name = "NAME", requires = "server")]
    pub join: Option<String>,

    /// Remove the program's own file, which was sent for this run
    #[arg(long, hide = true, requires = "server")]
    pub remove_self: bool,

    /// Interval of renames and checkpoints, in milliseconds; for tests
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub group_time: Option<u64>,

    /// Interval of progress lines, in milliseconds; for tests
    #[arg(long, hide = true, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub line_time: Option<u64>,

    /// When to sync: never (`none`), or once at the end (`at-end`)
    #[arg(long, value_name = "WHEN", default_value = "at-end", value_parser = ["none", "at-end"])]
    pub durability: String,

    /// List your running copies on this machine
    #[arg(long, help_heading = OUTPUT)]
    pub status: bool,

    /// Change the rate limit of your running copies: bwlimit=RATE, as for --bwlimit
    #[arg(long, value_name = "bwlimit=RATE", help_heading = OUTPUT, value_parser = setting)]
    pub set: Option<u64>,

    /// With --status or --set: only the copy with this process number
    #[arg(long, value_name = "PID", help_heading = OUTPUT)]
    pub pid: Option<u32>,

    /// Write the start and end of the copy to this file, its problems, and its progress every 30 seconds
    #[arg(long, value_name = "FILE", help_heading = OUTPUT)]
    pub log_file: Option<PathBuf>,

    /// Print events as lines of JSON on stdout, the totals last
    #[arg(long, help_heading = OUTPUT)]
    pub json: bool,

    /// Print only errors
    #[arg(long, short, help_heading = OUTPUT)]
    pub quiet: bool,

    /// Name each copied file, and log how the other machine is reached; repeat for more
    #[arg(long, short, help_heading = OUTPUT, action = ArgAction::Count)]
    pub verbose: u8,
}

/// Flags of rsync that change nothing here.
#[derive(Debug, Args)]
pub struct KeptArgs {
    /// On by default
    #[arg(long, short = 'a', help_heading = KEPT)]
    archive: bool,
    /// On by default
    #[arg(long, short = 'l', help_heading = KEPT)]
    links: bool,
    /// On by default
    #[arg(long, short = 'p', help_heading = KEPT)]
    perms: bool,
    /// On by default
    #[arg(long, short = 't', help_heading = KEPT)]
    times: bool,
    /// On by default
    #[arg(long, short = 'o', help_heading = KEPT)]
    owner: bool,
    /// On by default
    #[arg(long, short = 'g', help_heading = KEPT)]
    group: bool,
    /// On by default: devices, named pipes and sockets
    #[arg(short = 'D', aliases = ["devices", "specials"], help_heading = KEPT)]
    specials: bool,
    /// On by default
    #[arg(long, short = 'H', help_heading = KEPT)]
    hard_links: bool,
    /// On by default
    #[arg(long, short = 'A', help_heading = KEPT)]
    acls: bool,
    /// On by default
    #[arg(long, short = 'X', help_heading = KEPT)]
    xattrs: bool,
    /// On by default: holes of the source stay holes
    #[arg(long, short = 'S', help_heading = KEPT)]
    sparse: bool,
    /// On by default: unfinished files are always kept and resumed
    #[arg(long, help_heading = KEPT)]
    partial: bool,
    /// On by default, on a terminal: a bar for the whole copy
    #[arg(long, help_heading = OUTPUT)]
    progress: bool,
    /// --partial and --progress
    #[arg(short = 'P', help_heading = OUTPUT)]
    partial_and_progress: bool,
    /// On by default; alone, as with rsync: print help
    #[arg(long, short = 'h', help_heading = OUTPUT)]
    pub human_readable: bool,
}

/// One `--include`, `--exclude`, `--include-from` or `--exclude-from`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterArg {
    /// Include, else exclude.
    pub include: bool,
    /// The value is a file with patterns.
    pub from: bool,
    /// The pattern, or the file.
    pub value: OsString,
}

/// The filter flags, in the order in which they were given: it decides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterArgs {
    /// All of them.
    pub rules: Vec<FilterArg>,
}

const FLAGS: [(&str, bool, bool, &str, &str); 4] = [
    ("exclude", false, false, "PATTERN", "Skip files that match this rsync pattern; the first matching rule decides"),
    ("include", true, false, "PATTERN", "Copy files that match this rsync pattern, even if a later rule excludes them"),
    ("exclude-from", false, true, "FILE", "Read patterns to exclude from this file, one per line"),
    ("include-from", true, true, "FILE", "Read patterns to include from this file, one per line"),
];

impl Args for FilterArgs {
    fn augment_args(command: Command) -> Command {
        FLAGS.iter().fold(command, |command, (name, _, _, value, help)| {
            let argument = clap::Arg::new(*name)
                .long(*name)
                .value_name(*value)
                .help(*help)
                .help_heading(SELECTION)
                .allow_hyphen_values(true)
                .action(ArgAction::Append)
                .value_parser(clap::value_parser!(OsString));
            command.arg(argument)
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        FilterArgs::augment_args(command)
    }
}

impl FromArgMatches for FilterArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<FilterArgs, clap::Error> {
        let mut rules: Vec<(usize, FilterArg)> = Vec::new();
        for (name, include, from, _, _) in FLAGS {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            rules.extend(
                values.zip(places).map(|(value, place)| (place, FilterArg { include, from, value: value.clone() })),
            );
        }
        rules.sort_by_key(|(place, _)| *place);
        Ok(FilterArgs { rules: rules.into_iter().map(|(_, rule)| rule).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = FilterArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

/// `bwlimit=RATE`.
fn setting(text: &str) -> Result<u64, String> {
    rate(text.strip_prefix("bwlimit=").ok_or("only bwlimit=RATE can be set")?)
}

/// A rate as rsync writes it (rsync(1), `--bwlimit`): KiB by default, suffixes K, M, G of 1024, KB, MB, GB of 1000.
fn rate(text: &str) -> Result<u64, String> {
    let wrong = || "expected KiB per second, or a number with K, M, G, KB, MB or GB".to_owned();
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|byte: char| !byte.is_ascii_digit() && byte != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let unit = match unit {
        "" | "k" | "kib" => 1024.0,
        "b" => 1.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        _ => return Err(wrong()),
    };
    let bytes_per_s = number * unit;
    if bytes_per_s > 0.0 && bytes_per_s < 1.0 {
        return Err("less than a byte per second; 0 is no limit".to_owned());
    }
    if bytes_per_s.is_finite() && bytes_per_s < 1e15 { Ok(bytes_per_s as u64) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_rsyncs() {
        for (text, bytes) in [("1000", 1_024_000), ("1.5m", 1_572_864), ("20MB", 20_000_000), ("0", 0), ("512b", 512)] {
            assert_eq!(rate(text), Ok(bytes), "{text}");
        }
        assert!(rate("fast").is_err() && rate("1x").is_err() && rate("0.0001").is_err());
    }
}
