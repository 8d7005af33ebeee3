//! `fullbore check`: an archive read again against its signed indexes.

pub mod local;

use crate::error::{CommandError, ErrorKind};
use crate::events::Events;
use crate::report::Report;
use crate::settings::CheckSettings;

/// Checks the archive, and repairs it where asked to.
pub fn run(settings: &CheckSettings, _events: &mut dyn Events) -> Result<Report, CommandError> {
    Err(CommandError::new(ErrorKind::Internal, format_args!("{}: check is not built in", settings.dir.display())))
}
