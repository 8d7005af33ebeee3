//! Generates the patch between two states of an index, and verifies it.

use fullbore_debian::pdiff::{Edits, GenerateError, Piece, Splice};

/// Why no patch could be generated.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StepError {
    /// The difference cannot be expressed.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// A bug in fullbore.
    #[error("the generated patch does not produce the new file; please report this")]
    Wrong,
}

/// The edits between two states, and their ed script. The script is parsed again and applied, as a test.
///
/// # Errors
/// [`StepError::Generate`] if the difference cannot be expressed as an ed script. [`StepError::Wrong`] if the script
/// does not produce `new`, which is a bug.
///
/// ```
/// let (edits, script) = fullbore_apt::pdiff::generate(b"a\nb\n", b"a\nc\n")?;
/// assert_eq!(edits.edits().len(), 1);
/// assert_eq!(script, b"2c\nc\n.\n");
/// # Ok::<(), fullbore_apt::pdiff::StepError>(())
/// ```
pub fn generate(old: &[u8], new: &[u8]) -> Result<(Edits, Vec<u8>), StepError> {
    let edits = fullbore_debian::pdiff::generate(old, new)?;
    let mut script = Vec::new();
    edits.write_ed(&mut script).map_err(|_| StepError::Wrong)?;
    let again = Edits::parse(script.clone()).map_err(|_| StepError::Wrong)?;
    if !makes(&again, old, new) {
        return Err(StepError::Wrong);
    }
    Ok((edits, script))
}

/// Whether the edits turn `old` into `new`.
pub(super) fn makes(edits: &Edits, old: &[u8], new: &[u8]) -> bool {
    let (mut rest, mut same) = (new, true);
    let mut take = |piece: &[u8]| match rest.strip_prefix(piece) {
        Some(behind) => rest = behind,
        None => same = false,
    };
    let mut splice = Splice::new(edits);
    splice.feed(old, &mut |piece| match piece {
        Piece::Old(range) => take(&old[range]),
        Piece::New(text) => take(text),
    });
    let fits = splice.finish(&mut |piece| match piece {
        Piece::Old(range) => take(&old[range]),
        Piece::New(text) => take(text),
    });
    fits.is_ok() && same && rest.is_empty()
}
