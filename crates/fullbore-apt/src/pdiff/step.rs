//! The patch between two states of an index, tried before it is given.

use fullbore_debian::pdiff::{Edits, GenerateError, Piece, Splice};

/// Why there is no patch.
#[derive(Debug, thiserror::Error)]
pub enum StepError {
    /// None can express the difference.
    #[error(transparent)]
    Generate(#[from] GenerateError),
    /// An error of this program, found in time.
    #[error("the generated patch does not produce the new file; please report this")]
    Wrong,
}

/// The edits between two states, and the script that was written, read again and applied.
///
/// # Errors
/// See [`StepError`].
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

/// Whether the edits make `new` of `old`.
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
