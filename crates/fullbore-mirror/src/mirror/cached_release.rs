//! The local copies of the requested Releases. They make the requests conditional; usually the server answers 304.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fullbore_apt::signed_release::{CachedRelease, contradiction};
use fullbore_debian::release_date::DateCheck;
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;
use fullbore_wire::conditional::EntityTag;
use fullbore_wire::url::without_credentials;

use super::layout::below;
use super::merge_sources::WantedSuite;
use super::session::Session;
use super::state::{State, SuiteRecord};
use super::tree::Tree;

/// Record of the suite that was last mirrored under this name.
fn recorded<'a>(state: &'a State, suite: &str) -> Option<&'a SuiteRecord> {
    let asked_for_so = state.header.suites.iter().filter(|record| record.requested == suite && !record.retired);
    asked_for_so.max_by_key(|record| record.published_at)
}

/// The `InRelease` on disk, if it is the published one, as the condition of a request. None if it is dated in the
/// future, because its successor may have an earlier date.
pub(super) fn cached_release(
    session: &Session,
    state: &State,
    suite: &str,
    origin: &str,
    check: DateCheck,
) -> Option<CachedRelease> {
    let record = recorded(state, suite).filter(|record| check.future(Some(record.date)).is_none())?;
    let path = below(&record.directory, "InRelease");
    let status = session.tree.stat(&path).ok().flatten()?;
    let content = session.tree.read(&path, RELEASE_BYTES_MAX as u64).ok().flatten()?;
    // An `ETag` is valid for its own host only.
    let origin = without_credentials(origin);
    let tag = record.tag.as_deref().filter(|_| record.origins.first().is_some_and(|of| *of == origin));
    let tag = tag.and_then(EntityTag::parse);
    (Sha256::of(&content) == record.inrelease).then_some(CachedRelease {
        name: "InRelease",
        content,
        modified: status.mtime,
        tag,
    })
}

/// `Release` and `Release.gpg` of a suite that also has an `InRelease`.
pub(super) struct DetachedRelease {
    /// Content of `Release`, if it exists.
    pub release: Option<Vec<u8>>,
    /// Content of `Release.gpg`, if it exists.
    pub signature: Option<Vec<u8>>,
}

impl DetachedRelease {
    /// Reads both from a suite's directory.
    ///
    /// # Errors
    /// [`FileError`] if a file or directory of the mirror cannot be read.
    pub(super) fn read(tree: &dyn Tree, directory: &str) -> Result<DetachedRelease, FileError> {
        let read = |name: &str, limit: usize| tree.read(&below(directory, name), limit as u64);
        Ok(DetachedRelease {
            release: read("Release", RELEASE_BYTES_MAX)?,
            signature: read("Release.gpg", SIGNATURE_BYTES_MAX)?,
        })
    }

    /// Returns the files if they have the text of this `InRelease` and a valid signature; otherwise none.
    pub(super) fn of(self, inrelease: &SignedText, verifier: Option<&Verifier>) -> Vec<(&'static str, Vec<u8>)> {
        let DetachedRelease { release: Some(release), signature } = self else { return Vec::new() };
        let is_signed = verifier.is_none() || signature.is_some();
        if !is_signed || contradiction(&release, signature.as_deref(), inrelease, verifier).is_some() {
            return Vec::new();
        }
        let signature = signature.map(|signature| ("Release.gpg", signature));
        std::iter::once(("Release", release)).chain(signature).collect()
    }
}

/// Checks of the local signatures, started while requests are in flight: usually nothing has changed, and the results
/// are needed. After a drop no further check starts.
pub(super) struct EarlyChecks(Arc<AtomicBool>);

impl EarlyChecks {
    /// Starts checks of the cached and the detached Releases.
    pub(super) fn begin(
        session: &Session,
        state: &State,
        wanted_suites: &[WantedSuite<'_>],
        conditions: &[Option<CachedRelease>],
        verifiers: &[Option<Verifier>],
    ) -> EarlyChecks {
        let over = Arc::new(AtomicBool::new(false));
        let (mut inline, mut detached) = (Vec::new(), Vec::new());
        for ((wanted_suite, cached), verifier) in wanted_suites.iter().zip(conditions).zip(verifiers) {
            let (Some(cached), Some(verifier), Some(record)) = (cached, verifier, recorded(state, wanted_suite.suite))
            else {
                continue;
            };
            inline.push((verifier.clone(), cached.content.clone()));
            detached.push((verifier.clone(), record.directory.clone()));
        }
        // On two threads: each check is a process, and there may be many suites.
        let is_over = over.clone();
        session.runtime.spawn_blocking(move || {
            for (verifier, content) in inline.iter().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                // The verifier caches the result.
                drop(verifier.verify_inrelease(content));
            }
        });
        let (is_over, tree) = (over.clone(), session.tree.clone());
        session.runtime.spawn_blocking(move || {
            for (verifier, directory) in detached.iter().take_while(|_| !is_over.load(Ordering::Relaxed)) {
                if let Ok(DetachedRelease { release: Some(release), signature: Some(signature) }) =
                    DetachedRelease::read(&*tree, directory)
                {
                    drop(verifier.verify_detached(&release, &signature));
                }
            }
        });
        EarlyChecks(over)
    }
}

impl Drop for EarlyChecks {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
