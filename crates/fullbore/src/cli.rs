//! The command line: every flag, its help text, and nothing else.
//!
//! `settings` merges the flags with the environment and the settings file, and gives the commands plain resolved values.
//! Each flag can also be given as a variable `FULLBORE_…` (see [`command`]). Flags override the environment, and the
//! environment overrides the file.

mod apt;
mod bootstrap;
mod check;
mod choices;
mod completions;
mod convert;
mod copy;
mod divert;
mod install;
mod ls;
mod mirror;
mod mistakes;
mod nosync;
mod other_tools;
mod pdiff;
mod probe;
mod queue;
mod reach;
mod s3;
mod selection;
mod shared;
mod store;
mod update;
mod variables;
mod work;

use std::io::Write as _;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use fullbore_engine::escape;
use fullbore_install::divert::IS_WITHOUT_SYNCS;

use crate::settings::file::nearest;
use crate::{namespace, stdio};

pub use apt::{AptArgs, AptCommand, AptDisableArgs, AptEnableArgs, AptStatusArgs};
pub use bootstrap::{BootstrapArgs, BootstrapFormat, BootstrapMode, HookArg, Variant};
pub use check::CheckArgs;
pub use completions::CompletionsArgs;
pub use convert::{ConvertArgs, ForeignFormat};
pub use copy::{CopyArgs, FilterArgs};
pub use divert::{DivertArgs, DivertCommand, DivertOffArgs, DivertOnArgs, DivertStatusArgs, DivertVia};
pub use install::InstallArgs;
pub use ls::LsArgs;
pub use mirror::MirrorArgs;
pub use nosync::NosyncArgs;
pub(crate) use other_tools::for_key;
pub use pdiff::{PdiffApplyArgs, PdiffArgs, PdiffCommand, PdiffGenerateArgs, PdiffMergeArgs, PdiffPublishArgs};
pub use probe::ProbeArgs;
pub use queue::{QueueArgs, QueueLoginArgs};
pub use s3::{AddressingChoice, Aliases, S3Args, S3GetArgs, S3PutArgs, StoreArgs, StoreLock};
pub use selection::SelectionArgs;
pub use shared::{NetworkArgs, OutputArgs, TrustArgs};
pub use store::{GetArgs, GridArgs, PutArgs};
pub use update::{IndexLevel, UpdateArgs};
pub use work::WorkArgs;

const AFTER_HELP: &str = "\
Examples:
  Clone a suite of Debian:
    fullbore mirror --from https://deb.example.org/debian --suite trixie --to /srv/mirror/debian
  Copy a tree to another machine:
    fullbore copy /srv/data host:/srv/

Every flag but those of nosync can be set in the environment: --limit-rate is FULLBORE_LIMIT_RATE.
Flags override the environment, and the environment overrides the settings file.
fullbore also reads http_proxy, https_proxy, no_proxy, NO_COLOR and SOURCE_DATE_EPOCH.

Exit codes:
    0  done                                  6  locked: another run holds the lock
    1  wrong usage or settings               7  disk full or failing, or no access
    2  partial: some files are missing      10  nothing changed (with --changed-exit)
    3  network error, or no mirror answers  24  source files vanished before copy read them
    4  wrong signature or checksum         130  interrupted; run again to resume
    5  stale: older than the local copy, or expired";

/// Move bulk data as fast as the slowest part allows, and name that part
#[derive(Debug, Parser)]
#[command(name = "fullbore", version, max_term_width = 100, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// One command per variant; each has a file of the same name.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Clone or update a Debian archive from one or many mirrors
    #[command(long_about = mirror::LONG)]
    Mirror(Box<MirrorArgs>),
    /// Fetch files of a mirror in a bucket, as one of many machines
    #[command(long_about = work::LONG)]
    Work(Box<WorkArgs>),
    /// Refresh APT's indexes as `apt-get update` does
    #[command(long_about = update::LONG)]
    Update(Box<UpdateArgs>),
    /// Verify an archive on disk or in a bucket, or files in a grid, and repair them
    #[command(long_about = check::LONG)]
    Check(Box<CheckArgs>),
    /// Apply, join, make and publish patches for APT's indexes
    #[command(long_about = pdiff::LONG)]
    Pdiff(PdiffArgs),
    /// Convert settings of apt-mirror, debmirror or ftpsync to fullbore's
    #[command(long_about = convert::LONG)]
    Convert(ConvertArgs),
    /// Make the system's own apt use fullbore's methods, or undo it
    #[command(long_about = apt::LONG)]
    Apt(AptArgs),
    /// Copy files and trees
    #[command(long_about = copy::LONG)]
    Copy(Box<CopyArgs>),
    /// Measure what will limit a copy, and how long it will take
    #[command(long_about = probe::LONG)]
    Probe(ProbeArgs),
    /// Make a Debian root, with mmdebstrap's arguments
    #[command(long_about = bootstrap::LONG)]
    Bootstrap(Box<BootstrapArgs>),
    /// Install packages like apt-get, unpacking in parallel and without needless syncs
    #[command(long_about = install::LONG)]
    Install(Box<InstallArgs>),
    /// Run a command without its sync calls, and sync once at its end
    #[command(long_about = nosync::LONG)]
    Nosync(NosyncArgs),
    /// Make dpkg and apt-get in another root run without syncs, or undo it
    #[command(long_about = divert::LONG)]
    Divert(DivertArgs),
    /// Upload files to a Tahoe-LAFS grid or an S3 store
    #[command(long_about = store::PUT_LONG)]
    Put(Box<PutArgs>),
    /// Download files from a Tahoe-LAFS grid or an S3 store
    #[command(long_about = store::GET_LONG)]
    Get(Box<GetArgs>),
    /// List a directory in a Tahoe-LAFS grid, or objects of an S3 store
    #[command(long_about = ls::LONG)]
    Ls(Box<LsArgs>),
    /// Print completions for a shell
    #[command(long_about = completions::LONG)]
    Completions(CompletionsArgs),
}

/// The whole command line as clap knows it, each flag with its variable.
///
/// The variables are hidden in the help texts, because one sentence gives the rule.
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

fn with_environment(command: clap::Command) -> clap::Command {
    // A variable for all commands must not change how another program runs; and elsewhere, `--report` is a file.
    if command.get_name() == "nosync" {
        return command;
    }
    command
        .mut_args(|argument| {
            let Some(long) = argument.get_long() else {
                return argument;
            };
            if matches!(long, "help" | "version") {
                return argument;
            }
            let variable = set_variable(long, argument.get_all_aliases().unwrap_or_default());
            let argument = argument.env(variable).hide_env(true);
            // FULLBORE_DRY_RUN=1 and =yes count as well as =true.
            if matches!(argument.get_action(), clap::ArgAction::SetTrue) {
                argument.value_parser(clap::builder::BoolishValueParser::new())
            } else {
                argument
            }
        })
        .mut_subcommands(with_environment)
}

/// What the variables begin with that set flags.
pub const PREFIX: &str = "FULLBORE_";

fn variable_of(long: &str) -> String {
    format!("{PREFIX}{}", long.to_ascii_uppercase().replace('-', "_"))
}

/// The variable of a flag: that of an alias if only that one is set. Scripts may still set a flag by its older name.
fn set_variable(long: &str, aliases: Vec<&str>) -> String {
    let is_set = |name: &&str| std::env::var_os(variable_of(name)).is_some();
    let set = if is_set(&long) { None } else { aliases.into_iter().find(is_set) };
    variable_of(set.unwrap_or(long))
}

/// Variables that no flag stands for, and beginnings of names that belong to the tests and benchmarks.
const OTHER_VARIABLES: &[&str] = &[
    "FULLBORE_LOG",
    "FULLBORE_RECORD",
    "FULLBORE_QUEUE_USER",
    "FULLBORE_QUEUE_PASSWORD",
    namespace::IN_NAMESPACE,
    IS_WITHOUT_SYNCS.0,
];
const RESERVED_VARIABLES: &[&str] = &["FULLBORE_TEST_", "FULLBORE_BENCH_"];

/// A warning for each of these variables that begins with `FULLBORE_` but sets nothing in any command.
pub fn unknown_variables(names: &[String]) -> Vec<String> {
    if names.is_empty() {
        return Vec::new();
    }
    let mut flags = Vec::new();
    collect_flags(&Cli::command(), &mut flags);
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let is_reserved = |name: &str| RESERVED_VARIABLES.iter().any(|start| name.starts_with(start));
    let is_known = |name: &str| OTHER_VARIABLES.contains(&name) || flags.iter().any(|flag| variable_of(flag) == name);
    names
        .iter()
        .filter(|name| !is_known(name) && !is_reserved(name))
        .map(|name| match nearest(name.trim_start_matches(PREFIX), &flags) {
            Some(near) => format!("warning: {name} sets nothing; {} is --{near}", variable_of(near)),
            None => format!("warning: {name} sets nothing; no flag has this name"),
        })
        .collect()
}

fn collect_flags(command: &clap::Command, flags: &mut Vec<String>) {
    let names = |argument: &clap::Arg| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases).map(str::to_owned).collect::<Vec<_>>()
    };
    flags.extend(command.get_arguments().flat_map(names));
    command.get_subcommands().for_each(|command| collect_flags(command, flags));
}

/// Shows what clap says: help and version on stdout, an error on stderr.
///
/// `command` is the first word of the command line.
pub fn show(mut error: clap::Error, command: Option<&str>, no_color: bool) {
    if !error.use_stderr() {
        let text = error.render();
        let is_styled = stdio::stdout_is_terminal() && !no_color;
        let text = if is_styled { text.ansi().to_string() } else { text.to_string() };
        // Lost output is reported at the end of the run.
        let _ = stdio::Stdout.write_all(text.as_bytes());
        return;
    }
    // A word of the command line may contain line breaks; clap's own texts are not in its context.
    let words: Vec<_> = error.context().filter_map(|(kind, value)| Some((kind, escaped(value)?))).collect();
    for (kind, value) in words {
        error.insert(kind, value);
    }
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        error.render().to_string().lines().for_each(stdio::say);
        return;
    }
    let mistake = mistakes::explain(&error, command.unwrap_or_default(), &self::command());
    stdio::say(&format!("error: {}", mistake.message));
    if let Some(hint) = mistake.hint {
        stdio::say(&format!("hint: {hint}"));
    }
}

fn escaped(value: &ContextValue) -> Option<ContextValue> {
    let line = |text: &String| escape::line(text).into_owned();
    match value {
        ContextValue::String(text) => Some(ContextValue::String(line(text))),
        ContextValue::Strings(texts) => Some(ContextValue::Strings(texts.iter().map(line).collect())),
        // Made by clap, of the definition.
        _ => None,
    }
}

/// Parses the command line. The error is clap's, for [`show`].
pub fn parse<I, T>(arguments: I) -> Result<Cli, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<std::ffi::OsString> + Clone,
{
    let mut arguments: Vec<std::ffi::OsString> = arguments.into_iter().map(Into::into).collect();
    let matches = loop {
        match command().try_get_matches_from(arguments.clone()) {
            Ok(matches) => break matches,
            Err(error) => match spelt_out(&error, &arguments) {
                Some(longer) => arguments = longer,
                None => return Err(error),
            },
        }
    };
    let matches = variables::set_aside(matches, &arguments, command)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
}

/// The command line with the unknown option of this error spelt out, if it is the beginning of a single one.
/// mmdebstrap takes options so, and scripts for it use them; each call lengthens one option.
fn spelt_out(error: &clap::Error, arguments: &[std::ffi::OsString]) -> Option<Vec<std::ffi::OsString>> {
    if error.kind() != ErrorKind::UnknownArgument || arguments.get(1)?.to_str() != Some("bootstrap") {
        return None;
    }
    let Some(ContextValue::String(wrong)) = error.get(ContextKind::InvalidArg) else { return None };
    let begin = wrong.strip_prefix("--").filter(|begin| !begin.is_empty())?;
    let command = command();
    let mut found = command.find_subcommand("bootstrap")?.get_arguments().filter_map(|argument| {
        let aliases = argument.get_all_aliases().unwrap_or_default();
        argument.get_long().into_iter().chain(aliases).find(|name| name.starts_with(begin))
    });
    let (Some(name), None) = (found.next(), found.next()) else { return None };
    let mut longer = arguments.to_vec();
    let place = longer.iter().position(|argument| {
        let text = argument.to_str().unwrap_or_default();
        text == wrong || text.strip_prefix(wrong.as_str()).is_some_and(|rest| rest.starts_with('='))
    })?;
    let rest = longer[place].to_str()?[wrong.len()..].to_owned();
    longer[place] = format!("--{name}{rest}").into();
    Some(longer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        command().debug_assert();
    }

    #[test]
    fn lists_may_be_repeated_or_separated_by_commas() {
        let cli = parse(["fullbore", "mirror", "--suite", "a,b", "--suite", "c", "--from", "http://x/"]).unwrap();
        let Command::Mirror(arguments) = cli.command else { panic!("not mirror") };
        assert_eq!(arguments.suite, ["a", "b", "c"]);
    }

    #[test]
    fn what_follows_the_command_is_its_own() {
        for line in [&["fullbore", "nosync", "--", "sh", "-c", "x"][..], &["fullbore", "nosync", "sh", "-c", "x"]] {
            let Command::Nosync(arguments) = parse(line).unwrap().command else { panic!("not nosync") };
            assert_eq!(arguments.command, ["sh", "-c", "x"]);
        }
        let cli = parse(["fullbore", "nosync", "--report", "ls", "--force", "--", "--help"]).unwrap();
        let Command::Nosync(arguments) = cli.command else { panic!("not nosync") };
        assert!(arguments.report && !arguments.force);
        assert_eq!(arguments.command, ["ls", "--force", "--", "--help"]);
        assert!(parse(["fullbore", "nosync"]).is_err());
    }

    #[test]
    fn options_of_bootstrap_may_be_shortened() {
        let bootstrap = |words: &[&str]| {
            let words = ["fullbore", "bootstrap"].iter().chain(words);
            match parse(words)?.command {
                Command::Bootstrap(arguments) => Ok::<_, clap::Error>(arguments),
                _ => panic!("not bootstrap"),
            }
        };
        let arguments = bootstrap(&["--comp=main,contrib", "--inc", "vim", "--dry", "x"]).unwrap();
        assert_eq!(arguments.components, ["main", "contrib"]);
        assert_eq!(arguments.include, ["vim"]);
        assert!(arguments.simulate);
        assert!(bootstrap(&["--chrooted", "x"]).is_err(), "several begin so");
        assert!(bootstrap(&["--architecture", "amd64", "x"]).is_ok());
        // A value is left as it is.
        let arguments = bootstrap(&["--customize-hook", "--inc", "--inc", "vim", "x"]);
        assert!(arguments.is_err() || arguments.unwrap().include == ["vim"]);
    }

    #[test]
    fn a_misspelt_variable_is_told_of() {
        let warnings =
            |names: &[&str]| unknown_variables(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
        assert!(warnings(&["FULLBORE_LIMIT_RATE", "FULLBORE_LOG", "FULLBORE_TEST_X", "FULLBORE_BWLIMIT"]).is_empty());
        let [near, far] = &warnings(&["FULLBORE_LIMIT_RAET", "FULLBORE_WEATHER_TODAY"])[..] else { panic!() };
        assert!(near.contains("FULLBORE_LIMIT_RATE"), "{near}");
        assert!(far.contains("no flag"), "{far}");
    }

    #[test]
    fn flags_of_older_versions_are_taken() {
        let Command::Put(put) =
            parse(["fullbore", "put", "--resend", "--journals", "j", "x", "s3://b/"]).unwrap().command
        else {
            panic!("not put")
        };
        assert!(put.s3_put.overwrite);
        assert_eq!(put.state_dir, Some("j".into()));
        for (word, level) in [("own", IndexLevel::Fast), ("apt", IndexLevel::Best), ("best", IndexLevel::Best)] {
            let Command::Update(update) = parse(["fullbore", "update", "--level", word]).unwrap().command else {
                panic!("not update")
            };
            assert_eq!(update.level, level, "{word}");
        }
        assert!(unknown_variables(&["FULLBORE_RESEND".to_owned(), "FULLBORE_JOURNALS".to_owned()]).is_empty());
    }

    #[test]
    fn the_help_of_every_command_shows_an_example() {
        fn check(command: &mut clap::Command, path: &str, faults: &mut Vec<String>) {
            let path = format!("{path}{} ", command.get_name());
            if !command.render_long_help().to_string().contains("Examples:\n") {
                faults.push(path.clone());
            }
            // clap adds `help`.
            let own = command.get_subcommands_mut().filter(|command| command.get_name() != "help");
            own.for_each(|command| check(command, &path, faults));
        }
        let mut faults = Vec::new();
        check(&mut Cli::command(), "", &mut faults);
        assert_eq!(faults, [] as [&str; 0]);
    }

    #[test]
    fn connections_are_bounded() {
        assert!(parse(["fullbore", "mirror", "--connections", "17"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "0"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "16"]).is_ok());
    }
}
