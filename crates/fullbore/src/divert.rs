//! `fullbore divert`: which programs of another root run without syncs.

use std::io;
use std::path::{Path, PathBuf};

use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_install::divert::{DivertError, Root, State};
use fullbore_install::nosync;

use crate::cli::{DivertArgs, DivertCommand, DivertOffArgs, DivertOnArgs, DivertVia};
use crate::stdio;

/// What is said of dpkg when it is APT's configuration that changes how it is started.
const BY_APT: &str = "/usr/bin/dpkg (when APT starts it)";

/// Does what is asked for, and says which programs it was done to.
pub fn run(arguments: &DivertArgs) -> Result<(), CommandError> {
    match &arguments.command {
        DivertCommand::On(arguments) => on(arguments),
        DivertCommand::Off(arguments) => off(arguments),
        DivertCommand::Status(arguments) => {
            let root = open(&arguments.root)?;
            for (program, state) in root.status(&arguments.programs).map_err(|error| command_error(&error))? {
                let state = match state {
                    State::On => "on",
                    State::Partial => "partial",
                    State::Off => "off",
                };
                say(state, &program);
            }
            if arguments.programs.is_empty() && root.is_on_by_apt().map_err(|error| command_error(&error))? {
                say("on", Path::new(BY_APT));
            }
            Ok(())
        }
    }
}

fn on(arguments: &DivertOnArgs) -> Result<(), CommandError> {
    let is_own = arguments.root.canonicalize().is_ok_and(|root| root == Path::new("/"));
    if is_own && let Some(manager) = nosync::service_manager() {
        return Err(CommandError::usage(format_args!("process 1 ({manager}) could start services here"))
            .hint("divert programs of a root in which no services are started"));
    }
    if arguments.via == DivertVia::AptConf && !arguments.programs.is_empty() {
        return Err(CommandError::usage("--via apt-conf is for dpkg alone, and takes no programs"));
    }
    let helper = std::env::current_exe();
    let helper = helper.map_err(|error| CommandError::cannot("read", Path::new("/proc/self/exe"), &error))?;
    let root = open(&arguments.root)?;
    if arguments.via == DivertVia::AptConf {
        root.on_by_apt(&helper, true, &mut |_| Ok(())).map_err(|error| command_error(&error))?;
        say("on", Path::new(BY_APT));
        return Ok(());
    }
    let programs = root.on(&arguments.programs, &helper, true, &mut |_| Ok(()));
    for program in programs.map_err(|error| command_error(&error))? {
        say("on", &program);
    }
    Ok(())
}

fn off(arguments: &DivertOffArgs) -> Result<(), CommandError> {
    let root = open(&arguments.root)?;
    let is_on_by_apt = || root.is_on_by_apt().map_err(|error| command_error(&error));
    let was_on_by_apt = is_on_by_apt()?;
    let programs = root.off(&arguments.programs, &mut |_| Ok(())).map_err(|error| command_error(&error))?;
    for program in &programs {
        say("off", program);
    }
    let is_dpkg = |program: &PathBuf| program.ends_with("dpkg");
    if was_on_by_apt && !is_on_by_apt()? {
        say("off", Path::new(BY_APT));
    } else if was_on_by_apt && arguments.programs.iter().any(is_dpkg) && !programs.iter().any(is_dpkg) {
        return Err(CommandError::usage("dpkg is not diverted; APT's configuration runs a wrapper of it")
            .hint("`fullbore divert off` without programs undoes that, too"));
    }
    Ok(())
}

fn open(root: &Path) -> Result<Root, CommandError> {
    Root::open(root)
        .map_err(|error| CommandError::new(ErrorKind::Usage, error).context("a root has dpkg's files in var/lib/dpkg"))
}

fn command_error(error: &DivertError) -> CommandError {
    let kind = match error {
        DivertError::File { error, .. } if error.kind() != io::ErrorKind::NotFound => ErrorKind::Disk,
        _ => ErrorKind::Usage,
    };
    let shown = CommandError::from_error(kind, error);
    match error {
        DivertError::Helper { .. } => {
            shown.hint("install this program's libraries in the root, or use a static program (script/build-static)")
        }
        DivertError::Path { .. } => shown,
        DivertError::Taken { .. } => shown.hint(
            "pass --via apt-conf, which needs no diversion; or name the other programs, or remove that diversion first",
        ),
        _ => shown.hint("run it again, or `fullbore divert off`: both go on from every state"),
    }
}

fn say(state: &str, program: &Path) {
    // Lost output is told at the end of the run.
    let _ = stdio::print_line(&format!("{state} {}", program.display()));
}
