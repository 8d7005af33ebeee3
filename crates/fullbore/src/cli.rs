//! The command line: every flag, its help text, and nothing else.
//!
//! What is parsed here are wishes; `settings` merges them with the environment
//! and the settings file and hands the commands plain resolved values. Each flag
//! can also be given as a variable `FULLBORE_…` (see [`command`]), so that flags
//! win over the environment and the environment wins over the file.

mod apt;
mod bootstrap;
mod check;
mod choices;
mod completions;
mod convert;
mod copy;
mod divert;
mod install;
mod mirror;
mod nosync;
mod pdiff;
mod probe;
mod reach;
mod s3;
mod shared;
mod store;
mod update;

use std::io::Write as _;

use clap::error::ContextValue;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use fullbore_engine::escape;

use crate::stdio;

pub use apt::{AptArgs, AptCommand, AptDisableArgs, AptEnableArgs, AptLevel, AptStatusArgs};
pub use bootstrap::{BootstrapArgs, BootstrapFormat, BootstrapMode, Variant};
pub use check::CheckArgs;
pub use completions::CompletionsArgs;
pub use convert::{ConvertArgs, ForeignFormat};
pub use copy::CopyArgs;
pub use divert::{DivertArgs, DivertCommand, DivertOffArgs, DivertOnArgs, DivertStatusArgs, DivertVia};
pub use install::InstallArgs;
pub use mirror::MirrorArgs;
pub use nosync::NosyncArgs;
pub use pdiff::{PdiffApplyArgs, PdiffArgs, PdiffCommand, PdiffGenerateArgs, PdiffMergeArgs, PdiffPublishArgs};
pub use probe::ProbeArgs;
pub use s3::{AddressingChoice, S3Args, S3GetArgs, S3PutArgs};
pub use shared::{NetworkArgs, OutputArgs, TrustArgs};
pub use store::{GetArgs, GridArgs, PutArgs};
pub use update::{KeptLevel, UpdateArgs};

const AFTER_HELP: &str = "\
Every flag can be set in the environment: --limit-rate is FULLBORE_LIMIT_RATE.
Flags win over the environment, the environment wins over the settings file.
Also read: http_proxy, https_proxy, no_proxy, NO_COLOR, SOURCE_DATE_EPOCH.

Exit codes:
    0  done                                  5  stale: older than what is here, or expired
    1  wrong usage or settings               6  locked: another run holds the directory
    2  partial: some files are missing       7  disk full, failing, not writable
    3  network, or all mirrors dead         10  nothing had changed (with --changed-exit)
    4  signature or hash wrong             130  interrupted; run it again to go on";

/// Move Debian-archive-sized data as fast as the slowest part allows, and say which part that is
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
    /// Refresh APT's indexes as `apt-get update` does
    #[command(long_about = update::LONG)]
    Update(Box<UpdateArgs>),
    /// Re-read an archive against its signed indexes, and repair it
    #[command(long_about = check::LONG)]
    Check(Box<CheckArgs>),
    /// Apply, join, make and publish patches of APT's indexes
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
    /// Say what a copy will be limited by, and how long it will take
    #[command(long_about = probe::LONG)]
    Probe(ProbeArgs),
    /// Make a Debian root, as mmdebstrap is called
    #[command(long_about = bootstrap::LONG)]
    Bootstrap(Box<BootstrapArgs>),
    /// Install packages as apt-get does, unpacked in parallel and without needless syncs
    #[command(long_about = install::LONG)]
    Install(Box<InstallArgs>),
    /// Run a command with its sync calls answered at once, and sync once when it has ended
    #[command(long_about = nosync::LONG)]
    Nosync(NosyncArgs),
    /// Make dpkg and apt-get of another root run without syncs, or undo it
    #[command(long_about = divert::LONG)]
    Divert(DivertArgs),
    /// Put files into a Tahoe-LAFS grid or an S3 store
    #[command(long_about = store::PUT_LONG)]
    Put(Box<PutArgs>),
    /// Get files out of a Tahoe-LAFS grid or an S3 store
    #[command(long_about = store::GET_LONG)]
    Get(Box<GetArgs>),
    /// Print completions for a shell
    #[command(long_about = completions::LONG)]
    Completions(CompletionsArgs),
}

/// The whole command line as clap knows it, each flag with its variable.
///
/// The variables are hidden in the help texts; one sentence tells the rule.
pub fn command() -> clap::Command {
    with_environment(Cli::command())
}

fn with_environment(command: clap::Command) -> clap::Command {
    // What a variable says for all commands must not decide how another program is run; and
    // `--report` is a file elsewhere.
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
            let variable = format!("FULLBORE_{}", long.to_ascii_uppercase().replace('-', "_"));
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

/// Shows what clap says: help and version on stdout, an error on stderr.
pub fn show(mut error: clap::Error, no_color: bool) {
    if !error.use_stderr() {
        let text = error.render();
        let is_styled = stdio::stdout_is_terminal() && !no_color;
        let text = if is_styled { text.ansi().to_string() } else { text.to_string() };
        // Kept for the end of the run.
        let _ = stdio::Stdout.write_all(text.as_bytes());
        return;
    }
    // A word of the command line may hold line breaks; those of clap itself are none of its context.
    let words: Vec<_> = error.context().filter_map(|(kind, value)| Some((kind, escaped(value)?))).collect();
    for (kind, value) in words {
        error.insert(kind, value);
    }
    error.render().to_string().lines().for_each(stdio::say);
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
    let matches = command().try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command()))
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
    fn connections_are_bounded() {
        assert!(parse(["fullbore", "mirror", "--connections", "17"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "0"]).is_err());
        assert!(parse(["fullbore", "mirror", "--connections", "16"]).is_ok());
    }
}
