//! The form of `+` in paths that a host understands: `+` or `%2B`.
//!
//! Some object stores read `+` as a space (RFC 1866 forms) and do not find any `g++`. So a path with `+` that is not
//! found is requested once more in the other form. The form that worked is kept for the host.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::url::Plus;

/// After this number of names missing in both forms, a host counts as one that understands `+` but lacks files.
const MISSED_IN_BOTH_FORMS: u32 = 4;

/// State of a host whose form is `%2B`.
const ENCODED: u32 = u32::MAX;

/// What is known of one host: [`ENCODED`], or the number of names missing in both forms.
#[derive(Debug, Default)]
pub(crate) struct PlusForm(AtomicU32);

impl PlusForm {
    /// The form to use in requests.
    pub(crate) fn form(&self) -> Plus {
        if self.0.load(Ordering::Relaxed) == ENCODED { Plus::Encoded } else { Plus::Raw }
    }

    /// Whether to try the other form after a raw `+` was not found. Also true if the host's form was learned while the
    /// answer was in flight.
    pub(crate) fn is_worth_a_try(&self, path: &str) -> bool {
        let known = self.0.load(Ordering::Relaxed);
        path.contains('+') && (known < MISSED_IN_BOTH_FORMS || known == ENCODED)
    }

    /// Records whether the other form found the file.
    pub(crate) fn tried(&self, found: bool) {
        let next = |known: u32| {
            if found { Some(ENCODED) } else { (known != ENCODED).then(|| known + 1) }
        };
        // A refused update leaves the state as it is, which is right.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_lacks_files_is_not_asked_for_ever() {
        let store = PlusForm::default();
        assert!(store.is_worth_a_try("pool/g++.deb") && !store.is_worth_a_try("pool/gcc.deb"));
        store.tried(true);
        store.tried(false);
        assert_eq!(store.form(), Plus::Encoded);
        assert!(store.is_worth_a_try("pool/g++.deb"), "if it was asked for before that was known");
        let patchy = PlusForm::default();
        (0..MISSED_IN_BOTH_FORMS).for_each(|_| patchy.tried(false));
        assert!(!patchy.is_worth_a_try("pool/g++.deb"));
        assert_eq!(patchy.form(), Plus::Raw);
    }
}
