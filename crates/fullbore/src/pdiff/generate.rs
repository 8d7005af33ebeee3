//! `fullbore pdiff generate`: the patch between two states of an index.

use fullbore_apt::pdiff::input;
use fullbore_apt::pdiff::{StepError, generate};
use fullbore_engine::run::{CommandError, ErrorKind};

use super::write_patch;
use crate::cli::PdiffGenerateArgs;
use crate::progress::Screen;

pub(super) fn run(arguments: &PdiffGenerateArgs, screen: &mut Screen) -> Result<(), CommandError> {
    let old = input::index(&arguments.old)?;
    let new = input::index(&arguments.new)?;
    let (_, script) = generate(&old, &new).map_err(|error| match error {
        StepError::Generate(error) => CommandError::usage(format_args!("{}: {error}", arguments.new.display())),
        error => CommandError::new(ErrorKind::Internal, format_args!("{}: {error}", arguments.new.display())),
    })?;
    write_patch(&script, arguments.output.as_deref(), screen)
}
