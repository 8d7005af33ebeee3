//! `fullbore pdiff`: patches of indexes as files, for scripts and for archive operators.
//!
//! The formats and the pass over bytes are libraries; here are the files. One module per
//! thing to do, `input` reads what they share.

mod apply;
mod generate;
mod merge;
mod publish;

use std::path::{Path, PathBuf};

use fullbore_apt::pdiff::{file_error, gz, no_directory};
use fullbore_debian::compression::Form;
use fullbore_engine::files::Root;
use fullbore_engine::output;
use fullbore_engine::run::error::CommandError;

use crate::cli::{PdiffArgs, PdiffCommand};
use crate::progress::Screen;
use crate::settings::Environment;

/// Runs one of the subcommands.
pub fn run(arguments: &PdiffArgs, environment: &Environment, screen: &mut Screen) -> Result<(), CommandError> {
    match &arguments.command {
        PdiffCommand::Apply(arguments) => apply::run(arguments, screen),
        PdiffCommand::Merge(arguments) => merge::run(arguments, screen),
        PdiffCommand::Generate(arguments) => generate::run(arguments, screen),
        PdiffCommand::Publish(arguments) => publish::run(arguments, environment, screen),
    }
}

/// Writes a patch to a file, compressed if its name says so, or to stdout.
fn write_patch(script: &[u8], output: Option<&Path>, screen: &mut Screen) -> Result<(), CommandError> {
    let Some(output) = output.filter(|output| *output != Path::new("-")) else {
        screen.print(script);
        return Ok(());
    };
    let output = &place(output)?;
    let content = match Form::of(&output.to_string_lossy()) {
        Form::Plain => script,
        Form::Gz => &gz(script),
        form => {
            return Err(CommandError::usage(format_args!("{}: patches cannot be written as {form}", output.display()))
                .hint("archives serve patches as .gz; a name without ending gives plain text"));
        }
    };
    let (root, name) = beside(output)?;
    let part = root.write_part(name, content).map_err(file_error)?;
    part.finish().map_err(file_error)
}

/// Where a result is put.
fn place(path: &Path) -> Result<PathBuf, CommandError> {
    output::place(path).map_err(|error| CommandError::usage(format_args!("{}: {error}", path.display())))
}

/// The directory of a file, and its name in it.
fn beside(path: &Path) -> Result<(Root, &str), CommandError> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| CommandError::usage(format_args!("{} cannot be a file's name", path.display())))?;
    Ok((Root::open(directory).map_err(no_directory)?, name))
}
