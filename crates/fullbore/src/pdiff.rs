//! `fullbore pdiff`: patches of indexes as files, for scripts and for archive operators.
//!
//! The formats and the pass over bytes are libraries; here are the files. One module per
//! thing to do, `input` reads what they share.

mod apply;
mod generate;
mod input;
mod merge;
mod publish;

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use flate2::{Compression, GzBuilder};
use fullbore_debian::compression::Form;
use fullbore_engine::files::{FileError, Root};

use crate::cli::{PdiffArgs, PdiffCommand};
use crate::progress::Screen;
use crate::settings::Environment;
use fullbore_engine::output;
use fullbore_engine::run::error::{CommandError, ErrorKind};

/// Runs one of the subcommands.
pub fn run(arguments: &PdiffArgs, environment: &Environment, screen: &mut Screen) -> Result<(), CommandError> {
    match &arguments.command {
        PdiffCommand::Apply(arguments) => apply::run(arguments, screen),
        PdiffCommand::Merge(arguments) => merge::run(arguments, screen),
        PdiffCommand::Generate(arguments) => generate::run(arguments, screen),
        PdiffCommand::Publish(arguments) => publish::run(arguments, environment, screen),
    }
}

/// A patch as archives serve it: gzip at its highest level, without name and time, so that the
/// same patch is always the same file.
fn gz(script: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    let written = encoder.write_all(script).and_then(|()| encoder.finish());
    written.expect("memory takes everything")
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
            return Err(CommandError::usage(format_args!("{}: no patch is kept as {form}", output.display()))
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

/// A failure of our own files.
fn file_error(error: FileError) -> CommandError {
    CommandError::from_error(ErrorKind::Disk, &error)
}

/// A directory that was named and is none.
fn no_directory(error: FileError) -> CommandError {
    let kind = match error.kind() {
        Some(io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => ErrorKind::Usage,
        _ => ErrorKind::Disk,
    };
    CommandError::from_error(kind, &error)
}
