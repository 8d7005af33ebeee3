//! A cache of valid signatures, and of running checks, so that a second request for the same check waits for the first.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{SignatureError, SignedText};
use fullbore_digest::Sha256;

/// Text of a successful check; `None` after a failed one.
type Outcome = Arc<OnceLock<Option<SignedText>>>;

/// Results, by the hashes of the checked files. A run checks at most three files per suite, so no entry is ever
/// dropped.
#[derive(Debug, Default)]
pub(super) struct VerificationCache(Mutex<HashMap<Vec<Sha256>, Outcome>>);

impl VerificationCache {
    /// Returns the result of checking these files. A failed check is repeated, because its error went to another
    /// caller.
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
