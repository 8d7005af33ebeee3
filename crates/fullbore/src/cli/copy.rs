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
attributes, devices. If it cannot keep an attribute, it reports the loss and exits with 2.

fullbore reaches the other machine by ssh, and must be installed there. Content goes over direct \
connections, encrypted with keys of this run, or through ssh if no direct connection is possible. A \
file appears under its final name only when it is complete. To resume an interrupted copy, run it \
again. If everything exists already, fullbore copies nothing.";

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
const DELETING: &str = "Deleting, and keeping old files";
const KEPT: &str = "Attributes";
const OUTPUT: &str = "Output";
const HABITS: &str = "Options of rsync, and their effect";

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
    #[arg(long, conflicts_with_all = ["delete", "delete_before", "delete_excluded", "delete_after", "link_dest"])]
    pub remove_source_files: bool,

    /// Read all written data back from the device, not from the page cache, and compare it
    #[arg(long)]
    pub verify: bool,

    /// Write the hashes of all files to FILE after the copy, for sha256sum -c, or for b3sum -c if FILE ends in .b3
    #[arg(long, value_name = "FILE")]
    pub hash_list: Option<PathBuf>,

    /// Delete files that the source does not have, at the end, if everything else succeeded
    #[arg(long, help_heading = DELETING)]
    pub delete: bool,

    /// Delete before copying any content, to free space
    #[arg(long, help_heading = DELETING)]
    pub delete_before: bool,

    /// Delete excluded files, too
    #[arg(long, help_heading = DELETING)]
    pub delete_excluded: bool,

    /// Delete at most N names; exit with 2 if there are more
    #[arg(long, value_name = "N", help_heading = DELETING, allow_hyphen_values = true)]
    pub max_delete: Option<i64>,

    /// Delete despite read errors, except in directories that could not be listed completely
    #[arg(long, help_heading = DELETING)]
    pub ignore_errors: bool,

    /// Keep replaced and deleted files in place, as NAME~
    #[arg(long, short = 'b', help_heading = DELETING)]
    pub backup: bool,

    /// Keep replaced and deleted files in this directory, relative to DST
    #[arg(long, value_name = "DIR", help_heading = DELETING)]
    pub backup_dir: Option<PathBuf>,

    /// Suffix for names of backups (default: ~, or none with --backup-dir)
    #[arg(long, value_name = "SUFFIX", help_heading = DELETING)]
    pub suffix: Option<OsString>,

    /// Make hard links to equal files of this directory, relative to DST, instead of copying them; repeat for more
    #[arg(long, value_name = "DIR", help_heading = DELETING)]
    pub link_dest: Vec<PathBuf>,

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

    /// Copy what symbolic links lead to, instead of the links
    #[arg(long, short = 'L', help_heading = SELECTION)]
    pub copy_links: bool,

    /// Keep the whole path of each SRC at DST, or the part after /./
    #[arg(long, short = 'R', help_heading = SELECTION)]
    pub relative: bool,

    /// Skip files that are newer at the destination
    #[arg(long, short = 'u', help_heading = SELECTION)]
    pub update: bool,

    /// Skip files that the destination does not have
    #[arg(long, alias = "ignore-non-existing", help_heading = SELECTION)]
    pub existing: bool,

    /// Skip files that the destination has
    #[arg(long, help_heading = SELECTION)]
    pub ignore_existing: bool,

    /// Skip files larger than SIZE: bytes, or with K, M, G (1024), KB, MB, GB (1000)
    #[arg(long, value_name = "SIZE", help_heading = SELECTION, value_parser = size)]
    pub max_size: Option<u64>,

    /// Skip files smaller than SIZE
    #[arg(long, value_name = "SIZE", help_heading = SELECTION, value_parser = size)]
    pub min_size: Option<u64>,

    /// Skip files of the same size, whatever their times
    #[arg(long, help_heading = SELECTION)]
    pub size_only: bool,

    /// Treat every file as changed, even if size and time are equal
    #[arg(long, short = 'I', help_heading = SELECTION)]
    pub ignore_times: bool,

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

    /// Do not keep times of directories
    #[arg(long, short = 'O', help_heading = KEPT)]
    pub omit_dir_times: bool,

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

    /// Give all files to this owner and group: USER:GROUP, USER or :GROUP
    #[arg(long, value_name = "USER:GROUP", help_heading = KEPT)]
    pub chown: Option<String>,

    /// Give files of user FROM to user TO; FROM is a name, a pattern, a number or a range of numbers
    #[arg(long, value_name = "FROM:TO,...", help_heading = KEPT)]
    pub usermap: Vec<String>,

    /// Give files of group FROM to group TO, as for --usermap
    #[arg(long, value_name = "FROM:TO,...", help_heading = KEPT)]
    pub groupmap: Vec<String>,

    /// Change permissions, such as u+w or D755,F644 (D: directories only; F: all but directories)
    #[arg(long, value_name = "CHANGES", help_heading = KEPT)]
    pub chmod: Vec<String>,

    /// What rsync's users type by habit.
    #[command(flatten)]
    pub habits: HabitArgs,

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

    /// Redial a lost connection for SECONDS (default: 600)
    #[arg(long, value_name = "SECONDS", help_heading = NETWORK)]
    pub retry_for: Option<u64>,

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

    /// Print the changes of each file, in rsync's letters; twice: also unchanged files
    #[arg(long, short = 'i', help_heading = OUTPUT, action = ArgAction::Count)]
    pub itemize_changes: u8,

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

/// Flags of rsync that ask for what happens anyway, or for what is called something else here.
#[derive(Debug, Args)]
pub struct HabitArgs {
    /// On by default
    #[arg(long, short = 'a', help_heading = HABITS, hide_short_help = true)]
    archive: bool,
    /// On by default
    #[arg(long, short = 'l', help_heading = HABITS, hide_short_help = true)]
    links: bool,
    /// On by default
    #[arg(long, short = 'p', help_heading = HABITS, hide_short_help = true)]
    perms: bool,
    /// On by default
    #[arg(long, short = 't', help_heading = HABITS, hide_short_help = true)]
    times: bool,
    /// On by default
    #[arg(long, short = 'o', help_heading = HABITS, hide_short_help = true)]
    owner: bool,
    /// On by default
    #[arg(long, short = 'g', help_heading = HABITS, hide_short_help = true)]
    group: bool,
    /// On by default: devices, named pipes and sockets
    #[arg(short = 'D', aliases = ["devices", "specials"], help_heading = HABITS, hide_short_help = true)]
    specials: bool,
    /// On by default
    #[arg(long, short = 'H', help_heading = HABITS, hide_short_help = true)]
    hard_links: bool,
    /// On by default
    #[arg(long, short = 'A', help_heading = HABITS, hide_short_help = true)]
    acls: bool,
    /// On by default
    #[arg(long, short = 'X', help_heading = HABITS, hide_short_help = true)]
    xattrs: bool,
    /// On by default: holes of the source stay holes
    #[arg(long, short = 'S', help_heading = HABITS, hide_short_help = true)]
    sparse: bool,
    /// On by default: permissions are kept
    #[arg(long, short = 'E', help_heading = HABITS, hide_short_help = true)]
    executability: bool,
    /// On by default: unfinished files are always kept and resumed
    #[arg(long, help_heading = HABITS, hide_short_help = true)]
    partial: bool,
    /// No effect: unfinished files are in the final directory, with names that begin with a dot
    #[arg(long, value_name = "DIR", help_heading = HABITS, hide_short_help = true)]
    partial_dir: Option<PathBuf>,
    /// On by default, on a terminal: a bar for the whole copy
    #[arg(long, help_heading = HABITS, hide_short_help = true)]
    progress: bool,
    /// --partial and --progress
    #[arg(short = 'P', help_heading = HABITS, hide_short_help = true)]
    partial_and_progress: bool,
    /// On by default; alone, as with rsync: print help
    #[arg(long, short = 'h', help_heading = HABITS, hide_short_help = true)]
    pub human_readable: bool,
    /// On by default: figures are printed at the end
    #[arg(long, help_heading = HABITS, hide_short_help = true)]
    stats: bool,
    /// progress2 and stats are on by default; name is -v; others have no effect
    #[arg(long, value_name = "FLAGS", value_delimiter = ',', help_heading = HABITS, hide_short_help = true)]
    pub info: Vec<String>,
    /// --delete; also --delete-during, --del and --delete-delay: it always deletes at the end
    #[arg(long, aliases = ["delete-during", "del", "delete-delay"], help_heading = HABITS, hide_short_help = true)]
    pub delete_after: bool,
    /// On by default: missing directories above DST are made
    #[arg(long, help_heading = HABITS, hide_short_help = true)]
    mkpath: bool,
    /// On by default: no shell sees a path
    #[arg(long, short = 's', alias = "secluded-args", help_heading = HABITS, hide_short_help = true)]
    protect_args: bool,
    /// --remote-path, with fullbore in place of rsync: 'sudo rsync' runs `sudo fullbore`
    #[arg(long, value_name = "COMMAND", help_heading = HABITS, hide_short_help = true)]
    pub rsync_path: Option<String>,
    /// --retry-for: a connection that is silent for a minute counts as lost, and is redialled for SECONDS
    #[arg(long, value_name = "SECONDS", help_heading = HABITS, hide_short_help = true)]
    pub timeout: Option<u64>,
    /// No effect: it is for rsync daemons
    #[arg(long, value_name = "SECONDS", help_heading = HABITS, hide_short_help = true)]
    contimeout: Option<u64>,
    /// No effect: files are copied while others are listed, unless --delete-before waits for all
    #[arg(long, aliases = ["no-inc-recursive", "i-r", "no-i-r"], help_heading = HABITS, hide_short_help = true)]
    inc_recursive: bool,
    /// On by default: everything is synced once, at the end
    #[arg(long, help_heading = HABITS, hide_short_help = true)]
    fsync: bool,
    /// No effect: blocks come only from the old file of the same name
    #[arg(long, short = 'y', help_heading = HABITS, hide_short_help = true)]
    fuzzy: bool,
    /// No effect: zstd is used
    #[arg(long, alias = "zc", value_name = "NAME", help_heading = HABITS, hide_short_help = true)]
    compress_choice: Option<String>,
    /// No effect: fullbore chooses the level
    #[arg(long, alias = "zl", value_name = "N", allow_hyphen_values = true, help_heading = HABITS, hide_short_help = true)]
    compress_level: Option<i32>,
}

impl HabitArgs {
    /// Whether `--info` asks for the names of files.
    pub fn asks_for_names(&self) -> bool {
        self.info.iter().any(|flag| flag.starts_with("name") && flag != "name0")
    }
}

impl CopyArgs {
    /// Whether anything is to be deleted, whenever.
    pub fn delete(&self) -> bool {
        self.delete || self.delete_before || self.delete_excluded || self.habits.delete_after
    }
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
    ("include", true, false, "PATTERN", "Take files that match this rsync pattern, even if a later rule excludes them"),
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

/// A size as rsync writes it (rsync(1), `--max-size`): bytes by default; `+1` or `-1` may stand behind.
fn size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let (number, more) = match (text.strip_suffix("+1"), text.strip_suffix("-1")) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, -1),
        _ => (text, 0),
    };
    let bytes = bytes(number, "b").map(|bytes| (bytes as u64).saturating_add_signed(more));
    bytes.ok_or_else(|| "expected bytes, or a number with K, M, G, T, KB, MB, GB or TB".to_owned())
}

/// A number with a unit, in bytes: K, M, G, T of 1024, KB, MB, GB, TB of 1000.
fn bytes(text: &str, usual_unit: &str) -> Option<f64> {
    let lower = text.trim().to_ascii_lowercase();
    let digits = lower.find(|byte: char| !byte.is_ascii_digit() && byte != '.').unwrap_or(lower.len());
    let (number, unit) = lower.split_at(digits);
    let unit = match if unit.is_empty() { usual_unit } else { unit } {
        "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1024.0 * 1024.0,
        "g" | "gib" => 1024.0 * 1024.0 * 1024.0,
        "t" | "tib" => 1024.0 * 1024.0 * 1024.0 * 1024.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * unit)
}

/// A rate as rsync writes it (rsync(1), `--bwlimit`): KiB by default.
fn rate(text: &str) -> Result<u64, String> {
    let wrong = || "expected KiB per second, or a number with K, M, G, KB, MB or GB".to_owned();
    let bytes_per_s = bytes(text, "k").ok_or_else(wrong)?;
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
        for (text, bytes) in [("1000", 1000), ("1.5m", 1_572_864), ("2KB-1", 1999), ("1K+1", 1025), ("0", 0), ("7b", 7)]
        {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        assert!(size("big").is_err() && size("").is_err() && size("1x").is_err());
        assert!(rate("fast").is_err() && rate("1x").is_err() && rate("0.0001").is_err());
    }
}
