//! The signed Release in a suite's directory.
//!
//! It differs from the recorded one if the tree belongs to another program, the state was lost, or an older state was
//! restored. If its signature is valid, no older Release replaces it (M10).

use fullbore_debian::release::Release;
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::FileError;

use super::layout::below;
use super::tree::Tree;

/// File that identifies a state of a suite: `InRelease`, or `Release` if there is none.
pub(super) struct LocalRelease {
    name: &'static str,
    content: Vec<u8>,
    directory: String,
}

/// Why a signature could not be checked.
#[derive(Debug, thiserror::Error)]
pub(super) enum LocalReleaseError {
    /// The directory cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The verifier is missing, or has no space for its files.
    #[error(transparent)]
    Scratch(SignatureError),
}

impl LocalRelease {
    /// Reads the Release of a directory; `None` if it has none.
    ///
    /// # Errors
    /// [`FileError`] if a file or directory of the mirror cannot be read.
    pub(super) fn read(tree: &dyn Tree, directory: &str) -> Result<Option<LocalRelease>, FileError> {
        for name in ["InRelease", "Release"] {
            if let Some(content) = content(tree, directory, name, RELEASE_BYTES_MAX)? {
                return Ok(Some(LocalRelease { name, content, directory: directory.to_owned() }));
            }
        }
        Ok(None)
    }

    /// SHA-256 of the file, as recorded in the state.
    pub(super) fn identity(&self) -> Sha256 {
        Sha256::of(&self.content)
    }

    /// Parses the Release without checking its signature.
    pub(super) fn release(&self) -> Option<Release> {
        Release::parse(&SignedText::trusted(&self.content).ok()?).ok()
    }

    /// Its `Date` in Unix seconds, if it is validly signed. Without a verifier it is trusted.
    ///
    /// # Errors
    /// [`LocalReleaseError`] if this machine cannot check signatures, or a file cannot be read. An invalid signature is
    /// `None`.
    pub(super) fn date(&self, tree: &dyn Tree, verifier: Option<&Verifier>) -> Result<Option<i64>, LocalReleaseError> {
        let text = match (verifier, self.name) {
            (None, _) => SignedText::trusted(&self.content),
            (Some(verifier), "InRelease") => verifier.verify_inrelease(&self.content),
            (Some(verifier), _) => {
                let signature = content(tree, &self.directory, "Release.gpg", SIGNATURE_BYTES_MAX)?;
                let Some(signature) = signature else { return Ok(None) };
                verifier.verify_detached(&self.content, &signature)
            }
        };
        match text {
            Ok(text) => Ok(Release::parse(&text).ok().and_then(|release| release.date)),
            Err(error @ SignatureError::Scratch { .. }) => Err(LocalReleaseError::Scratch(error)),
            Err(error) if error.is_missing_program() => Err(LocalReleaseError::Scratch(error)),
            Err(_) => Ok(None),
        }
    }
}

/// A regular file of the directory within the size limit.
fn content(tree: &dyn Tree, directory: &str, name: &str, limit: usize) -> Result<Option<Vec<u8>>, FileError> {
    match tree.read(&below(directory, name), limit as u64) {
        Err(FileError::Symlink { .. } | FileError::NotRegular { .. } | FileError::TooLarge { .. }) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use fullbore_engine::files::Root;

    use super::*;

    #[test]
    fn a_release_without_signature_counts_where_none_is_asked_for() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        assert!(LocalRelease::read(&root, "dists/x").unwrap().is_none());
        let text = format!("Date: Sat, 10 May 2025 09:00:00 UTC\nSHA256:\n {} 1 Packages\n", Sha256::EMPTY);
        root.write_part("dists/x/Release", text.as_bytes()).unwrap().finish().unwrap();
        let here = LocalRelease::read(&root, "dists/x").unwrap().unwrap();
        assert_eq!(here.identity(), Sha256::of(text.as_bytes()));
        assert_eq!(here.date(&root, None).unwrap(), Some(1_746_867_600));
        let verifier = Verifier::new(directory.path(), Vec::new());
        assert_eq!(here.date(&root, Some(&verifier)).unwrap(), None, "not signed");
        // A directory of that name is somebody's, and no Release.
        std::fs::create_dir(directory.path().join("dists/x/InRelease")).unwrap();
        assert!(LocalRelease::read(&root, "dists/x").unwrap().is_some());
    }
}
