//! The hook flags of `fullbore bootstrap`, in the order of the command line.
//!
//! A hook of one flag may rely on what a hook of another flag did before it, so that the order across flags counts.

use std::path::PathBuf;

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use fullbore_install::hooks::{Moment, Place};

const HOOKS: &str = "Hooks";

/// The flags as the help shows them.
#[derive(Debug, Args)]
struct HookFlags {
    /// Run this before any package is unpacked: a program, or a shell snippet with the root as $1; repeat for more
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    setup_hook: Vec<String>,

    /// Run this when the Essential packages are unpacked
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    extract_hook: Vec<String>,

    /// Run this when the Essential packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    essential_hook: Vec<String>,

    /// Run this when all packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    customize_hook: Vec<String>,

    /// Run this shell snippet in the root when the Essential packages are unpacked
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    chrooted_extract_hook: Vec<String>,

    /// Run this shell snippet in the root when the Essential packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    chrooted_essential_hook: Vec<String>,

    /// Run this shell snippet in the root when all packages are configured
    #[arg(long, value_name = "COMMAND", help_heading = HOOKS)]
    chrooted_customize_hook: Vec<String>,

    /// Run the programs in this directory whose names begin with setup, extract, essential or customize
    #[arg(long, value_name = "DIR", help_heading = HOOKS, visible_alias = "hook-dir")]
    hook_directory: Vec<PathBuf>,
}

/// Flags with a command, by their names in clap.
const COMMANDS: [(&str, Moment, Place); 7] = [
    ("setup_hook", Moment::Setup, Place::Outside),
    ("extract_hook", Moment::Extract, Place::Outside),
    ("essential_hook", Moment::Essential, Place::Outside),
    ("customize_hook", Moment::Customize, Place::Outside),
    ("chrooted_extract_hook", Moment::Extract, Place::Chrooted),
    ("chrooted_essential_hook", Moment::Essential, Place::Chrooted),
    ("chrooted_customize_hook", Moment::Customize, Place::Chrooted),
];

const DIRECTORY: &str = "hook_directory";

/// One flag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HookArg {
    /// A command.
    Command {
        /// When it runs.
        moment: Moment,
        /// Where it runs.
        place: Place,
        /// The command.
        script: String,
    },
    /// A directory of programs.
    Directory(PathBuf),
}

/// All hook flags, in order.
#[derive(Debug, Default)]
pub struct HookArgs(pub Vec<HookArg>);

impl Args for HookArgs {
    fn augment_args(command: Command) -> Command {
        HookFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        HookFlags::augment_args_for_update(command)
    }
}

impl FromArgMatches for HookArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<HookArgs, Error> {
        let mut found: Vec<(usize, HookArg)> = Vec::new();
        for (name, moment, place) in COMMANDS {
            let scripts = matches.get_many::<String>(name).unwrap_or_default();
            let hooks = scripts.map(|script| HookArg::Command { moment, place, script: script.clone() });
            found.extend(matches.indices_of(name).unwrap_or_default().zip(hooks));
        }
        let directories = matches.get_many::<PathBuf>(DIRECTORY).unwrap_or_default();
        let directories = directories.map(|path| HookArg::Directory(path.clone()));
        found.extend(matches.indices_of(DIRECTORY).unwrap_or_default().zip(directories));
        found.sort_by_key(|(index, _)| *index);
        Ok(HookArgs(found.into_iter().map(|(_, hook)| hook).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = HookArgs::from_arg_matches(matches)?;
        Ok(())
    }
}
