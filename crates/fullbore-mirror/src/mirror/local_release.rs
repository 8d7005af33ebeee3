//! The signed Release that lies in a suite's directory, whoever put it there.
//!
//! The state tells what was published; the directory may know better: a tree of another program, a state
//! that was lost, or one that was put back and is older than the tree. What lies there counts as far as its
//! signature is valid: nothing older takes its place (M10).

use fullbore_debian::release::Release;
use fullbore_debian::signature::{RELEASE_BYTES_MAX, SIGNATURE_BYTES_MAX, SignatureError, SignedText, Verifier};
use fullbore_engine::digest::Sha256;
use fullbore_engine::files::{FileError, Root};

use super::layout::below;

/// A file that identifies a state of a suite: `InRelease`, or `Release` where there is none.
pub struct LocalRelease {
    name: &'static str,
    content: Vec<u8>,
    directory: String,
}

/// Why it cannot be told whether a signature is valid.
#[derive(Debug, thiserror::Error)]
pub enum LocalReleaseError {
    /// The directory cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// The verifier has no room, or is missing.
    #[error(transparent)]
    Scratch(SignatureError),
}

impl LocalRelease {
    /// What lies in this directory, if there is anything.
    ///
    /// # Errors
    /// Refusals of the system.
    pub fn read(root: &Root, directory: &str) -> Result<Option<LocalRelease>, FileError> {
        for name in ["InRelease", "Release"] {
            if let Some(content) = content(root, directory, name, RELEASE_BYTES_MAX)? {
                return Ok(Some(LocalRelease { name, content, directory: directory.to_owned() }));
            }
        }
        Ok(None)
    }

    /// Its hash, as the state has it.
    pub fn identity(&self) -> Sha256 {
        Sha256::of(&self.content)
    }

    /// Its `Date` (Unix seconds), if it is validly signed. Without a verifier the source is trusted as it is.
    ///
    /// # Errors
    /// When this machine cannot check signatures.
    pub fn date(&self, root: &Root, verifier: Option<&Verifier>) -> Result<Option<i64>, LocalReleaseError> {
        let text = match (verifier, self.name) {
            (None, _) => SignedText::trusted(&self.content),
            (Some(verifier), "InRelease") => verifier.verify_inrelease(&self.content),
            (Some(verifier), _) => {
                let signature = content(root, &self.directory, "Release.gpg", SIGNATURE_BYTES_MAX)?;
                let Some(signature) = signature else { return Ok(None) };
                verifier.verify_detached(&self.content, &signature)
            }
        };
        match text {
            Ok(text) => Ok(Release::parse(&text).ok().and_then(|release| release.date)),
            Err(error @ SignatureError::Scratch { .. }) => Err(LocalReleaseError::Scratch(error)),
            Err(_) => Ok(None),
        }
    }
}

/// A file of the directory; what is no file, or too large for one of this name, is none.
fn content(root: &Root, directory: &str, name: &str, limit: usize) -> Result<Option<Vec<u8>>, FileError> {
    match root.read(&below(directory, name), limit as u64) {
        Err(FileError::Symlink { .. } | FileError::NotRegular { .. } | FileError::TooLarge { .. }) => Ok(None),
        other => other,
    }
}

#[cfg(test)]
mod tests {
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
