//! `fullbore pdiff merge`: several patches as one.

use fullbore_apt::pdiff::input;
use fullbore_engine::run::error::{CommandError, ErrorKind};

use super::write_patch;
use crate::cli::PdiffMergeArgs;
use crate::progress::Screen;

pub(super) fn run(arguments: &PdiffMergeArgs, screen: &mut Screen) -> Result<(), CommandError> {
    let edits = input::edits(&arguments.patches)?;
    let mut script = Vec::new();
    edits.write_ed(&mut script).map_err(|error| CommandError::new(ErrorKind::Verification, error))?;
    write_patch(&script, arguments.output.as_deref(), screen)
}
