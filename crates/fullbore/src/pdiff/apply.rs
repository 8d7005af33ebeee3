//! `fullbore pdiff apply`: patches joined and applied in one pass over an index of any form.

use std::path::Path;

use fullbore_apt::frames::Level;
use fullbore_apt::pdiff::{file_error, input};
use fullbore_apt::rewrite::{Rewrite, RewriteError, Rewritten, rewrite};
use fullbore_debian::compression::Form;
use fullbore_engine::digest::Sha256;
use fullbore_engine::run::error::{CommandError, ErrorKind};
use fullbore_engine::units;

use super::{beside, place};
use crate::cli::{IndexLevel, PdiffApplyArgs};
use crate::progress::Screen;

pub(super) fn run(arguments: &PdiffApplyArgs, screen: &mut Screen) -> Result<(), CommandError> {
    let output = place(&arguments.output)?;
    beside(&output)?;
    let edits = input::edits(&arguments.patches)?;
    let job = Rewrite {
        old: &arguments.old,
        old_form: None,
        edits: &edits,
        new: &output,
        new_form: Some(form_of(&arguments.output)?),
        level: match arguments.level {
            IndexLevel::Fast => Level::Fast,
            IndexLevel::Best => Level::Best,
        },
        expected: None,
        ledger: None,
        threads: 0,
    };
    let done = match arguments.sha256 {
        Some(expected) => verified(&job, expected)?,
        None => rewrite(&job).map_err(failure)?,
    };
    let Rewritten { plain_size, sha256, file_size, .. } = done;
    let new = arguments.output.display();
    let kept = if file_size == plain_size { String::new() } else { format!(", {} on disk", units::bytes(file_size)) };
    screen.print_line(&format!("{new}: {}{kept}, SHA-256 {sha256}", units::bytes(plain_size)));
    Ok(())
}

/// The form that a name asks for. Standard output would show a result before it is verified.
fn form_of(output: &Path) -> Result<Form, CommandError> {
    let refused =
        |why: &str, hint: &str| Err(CommandError::usage(format_args!("{}: {why}", output.display())).hint(hint));
    if output == Path::new("-") {
        return refused(
            "cannot write to stdout: the result must be verified before anybody reads it",
            "pass a file name with -o",
        );
    }
    match Form::of(&output.to_string_lossy()) {
        Form::Plain if output.extension().is_some_and(|ending| ending == "lzma" || ending == "lz") => {
            refused("this form cannot be written", "gz, xz, lz4 and zst can; a name without ending gives plain text")
        }
        form => Ok(form),
    }
}

/// As the pass itself, but the result gets its name only when it has this hash: nobody says
/// beforehand how long it is, which the pass would want to know.
fn verified(job: &Rewrite<'_>, expected: Sha256) -> Result<Rewritten, CommandError> {
    let (root, name) = beside(job.new)?;
    let unverified = format!(".{name}.unverified");
    let done = rewrite(&Rewrite { new: &job.new.with_file_name(&unverified), ..*job }).map_err(failure)?;
    if done.sha256 == expected {
        return root.rename(&unverified, name).map(|()| done).map_err(file_error);
    }
    root.unlink(&unverified).map_err(file_error)?;
    let Rewritten { plain_size, sha256, .. } = done;
    let new = job.new.display();
    let message = format!("{new}: patched content of {plain_size} bytes has SHA-256 {sha256}, expected is {expected}");
    Err(CommandError::new(ErrorKind::Verification, message).hint(format_args!(
        "check that {} is the file that the first patch applies to, and that no patch is missing",
        job.old.display()
    )))
}

fn failure(error: RewriteError) -> CommandError {
    if let RewriteError::Read { path, source } = &error {
        return input::unreadable(path, source);
    }
    let kind = match &error {
        RewriteError::Splice { .. } | RewriteError::Mismatch { .. } | RewriteError::TooLarge { .. } => {
            ErrorKind::Verification
        }
        RewriteError::Read { .. } | RewriteError::Write(_) | RewriteError::Codec { .. } => ErrorKind::Disk,
        RewriteError::Target { .. } => ErrorKind::Usage,
        RewriteError::Panicked { .. } => ErrorKind::Internal,
    };
    let error = CommandError::from_error(kind, &error);
    match kind {
        ErrorKind::Verification => error.hint("pass patches that are for this state of the index"),
        _ => error,
    }
}
