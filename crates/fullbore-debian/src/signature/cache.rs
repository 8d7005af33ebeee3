//! What was found valid, so that it is not checked again; and what is being checked, so that whoever asks for it
//! meanwhile waits for that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{SignatureError, SignedText};
use fullbore_digest::Sha256;

/// The text of a check, or `None` if that failed.
type Outcome = Arc<OnceLock<Option<SignedText>>>;

/// By the hashes of the files that a check is of. A run checks three files of a suite or fewer, so nothing is ever
/// forgotten.
#[derive(Debug, Default)]
pub(super) struct VerificationCache(Mutex<HashMap<Vec<Sha256>, Outcome>>);

impl VerificationCache {
    /// What the check of these files gives. One that failed is made again, for its error is with who made it.
    pub(super) fn once(
        &self,
        files: &[&[u8]],
        check: impl Fn() -> Result<SignedText, SignatureError>,
    ) -> Result<SignedText, SignatureError> {
        let key = files.iter().map(|file| Sha256::of(file)).collect();
        let outcome = self.0.lock().unwrap_or_else(PoisonError::into_inner).entry(key).or_default().clone();
        let mut failed = None;
        let text = outcome.get_or_init(|| check().map_err(|error| failed = Some(error)).ok());
        match (text, failed) {
            (Some(text), _) => Ok(text.clone()),
            (None, Some(error)) => Err(error),
            (None, None) => check(),
        }
    }
}
