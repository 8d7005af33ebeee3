//! Checking signatures: from downloaded bytes to text signed by a trusted key.
//!
//! Only this module makes a [`SignedText`]: `gpgv` or `sqv` checks an `InRelease` (or `Release` with `Release.gpg`)
//! against given keyrings, and sources with `Trusted: yes` have an explicit function. The frame around the text is
//! checked first (`clearsign`). The returned text is what the verifier wrote or read, nothing else.

mod cache;
mod error;
mod files;
mod gpgv;
mod gpgv_status;
mod keyring;
mod policy;
mod process;
mod sqv;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::clearsign::{self, FrameFault};
use crate::keys::{Fingerprint, KeySource};
use cache::VerificationCache;
pub use error::SignatureError;
pub use files::sweep;
pub use gpgv_status::Signer;
pub use keyring::check_keyring;
pub use policy::{PolicyVariables, set_policy_variables};

/// Maximum size of an `InRelease` or `Release`, in bytes: apt's `Acquire::MaxReleaseFileSize`. Debian's has 150 KB.
pub const RELEASE_BYTES_MAX: usize = 10_000_000;

/// Maximum size of a detached signature, in bytes; one of Debian's, by three keys, has 3 KB.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 20;

/// Time limit for a verifier, which usually takes 20 ms.
pub const VERIFIER_TIME_LIMIT: Duration = Duration::from_secs(30);

const NAME_OF_GPGV: &str = "gpgv";
const NAME_OF_SQV: &str = "sqv";

/// Text with a valid signature by a trusted key, or declared trusted by [`SignedText::trusted`]. Parsers of signed
/// files accept no other text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedText {
    text: String,
    signers: Vec<Signer>,
}

impl SignedText {
    /// The text that the signature covers, and nothing around it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Signing keys; empty for text that was only declared trusted.
    pub fn signers(&self) -> &[Signer] {
        &self.signers
    }

    /// Whether a signature was checked.
    pub fn is_verified(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Accepts a `Release` or `InRelease` **without checking any signature**, for sources that the user marked
    /// `Trusted: yes`. The armour of a clear-signed file must be correct; only the text within counts.
    ///
    /// # Errors
    /// [`SignatureError::TooLarge`] if the file exceeds [`RELEASE_BYTES_MAX`]; [`SignatureError::Tampered`] if the
    /// armour of a clear-signed file is malformed.
    pub fn trusted(bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let text = bounded_text(bytes)?;
        let text = if clearsign::is_clearsigned(bytes) { clearsign::text_within(&text)? } else { text };
        Ok(SignedText { text, signers: Vec::new() })
    }
}

/// Returns the text of an `InRelease` **without checking any signature**, for comparing the files of several mirrors.
///
/// # Errors
/// [`SignatureError::TooLarge`] if the file exceeds [`RELEASE_BYTES_MAX`]; [`SignatureError::NotClearsigned`] or
/// [`SignatureError::Tampered`] if it is not a well-formed clear-signed message.
pub fn text_of_inrelease(bytes: &[u8]) -> Result<String, SignatureError> {
    Ok(clearsign::text_within(&bounded_text(bytes)?)?)
}

/// A program that verifies signatures. A path without a slash is looked up in `PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Program {
    /// `gpgv` of GnuPG.
    Gpgv(PathBuf),
    /// `sqv` of Sequoia-PGP.
    Sqv(PathBuf),
}

impl Program {
    fn path(&self) -> &Path {
        let (Program::Gpgv(path) | Program::Sqv(path)) = self;
        path
    }
}

/// Input of a verifier besides the signed file.
#[derive(Clone, Copy)]
struct Check<'a> {
    program: &'a Path,
    scratch: &'a Path,
    keys: &'a [KeySource],
    time_limit: Duration,
}

/// Verifies signatures against a set of keys, with `gpgv`, or with `sqv` if there is no `gpgv`.
///
/// A verifier and its clones check the same bytes only once, so that a check may start before its result is needed.
///
/// ```no_run
/// use fullbore_debian::keys::KeySource;
/// use fullbore_debian::release::Release;
/// use fullbore_debian::signature::Verifier;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let keyring = KeySource::File("/usr/share/keyrings/debian-archive-keyring.gpg".into());
/// let verifier = Verifier::new("/var/tmp/scratch", vec![keyring]);
/// let text = verifier.verify_inrelease(&std::fs::read("InRelease")?)?;
/// println!("{:?}", Release::parse(&text)?.codename);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Verifier {
    programs: Vec<Program>,
    scratch: PathBuf,
    keys: Vec<KeySource>,
    fingerprints: Vec<Fingerprint>,
    time_limit: Duration,
    cache: Arc<VerificationCache>,
}

impl Verifier {
    /// Makes a verifier with these keys. No other user may be able to write to the directory `scratch`. The files for
    /// the verifier have no names; without `/proc`, they are in a subdirectory of mode 0700 during a check.
    pub fn new(scratch: impl Into<PathBuf>, keys: Vec<KeySource>) -> Self {
        Verifier {
            // gpgv first: it also refuses keys that expired after they signed, and knows subkeys.
            programs: vec![Program::Gpgv(NAME_OF_GPGV.into()), Program::Sqv(NAME_OF_SQV.into())],
            scratch: scratch.into(),
            keys,
            fingerprints: Vec::new(),
            time_limit: VERIFIER_TIME_LIMIT,
            cache: Arc::default(),
        }
    }

    /// Uses this program instead of `gpgv` or `sqv` in `PATH`.
    #[must_use]
    pub fn with_program(mut self, program: Program) -> Self {
        self.programs = vec![program];
        self.afresh()
    }

    /// Accepts only these keys of the keyrings (`Signed-By` with fingerprints); an empty list accepts all.
    #[must_use]
    pub fn with_fingerprints(mut self, fingerprints: Vec<Fingerprint>) -> Self {
        self.fingerprints = fingerprints;
        self.afresh()
    }

    /// Drops cached results, because they were made under other rules.
    fn afresh(mut self) -> Self {
        self.cache = Arc::default();
        self
    }

    /// Uses this time limit instead of [`VERIFIER_TIME_LIMIT`].
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Verifies a clear-signed `InRelease`.
    ///
    /// # Errors
    /// - [`SignatureError::NotClearsigned`], [`SignatureError::Tampered`] or [`SignatureError::TooLarge`] if the file
    ///   is not a well-formed clear-signed message.
    /// - [`SignatureError::NoProgram`], [`SignatureError::CannotRun`], [`SignatureError::VerifierFailed`],
    ///   [`SignatureError::Scratch`] or a keyring error if this machine cannot verify it.
    /// - Other variants if no trusted key has made a valid signature of the text.
    pub fn verify_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        self.cache.once(&[bytes], || self.check_inrelease(bytes))
    }

    fn check_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let message = bounded_text(bytes)?;
        let parts = clearsign::split(&message).map_err(|fault| match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: message.chars().take(60).collect() },
            other => other.into(),
        })?;
        let (text, signers) = self.by_first_program(|program, check| match program {
            Program::Gpgv(_) => gpgv::clearsigned(check, bytes, &parts.text),
            Program::Sqv(_) => sqv::clearsigned(check, &parts),
        })?;
        Ok(SignedText { text, signers: self.accepted(signers)? })
    }

    /// Verifies a `Release` with its detached, armoured `Release.gpg`.
    ///
    /// # Errors
    /// As [`Verifier::verify_inrelease`], but never [`SignatureError::NotClearsigned`].
    pub fn verify_detached(&self, release: &[u8], signature: &[u8]) -> Result<SignedText, SignatureError> {
        self.cache.once(&[release, signature], || self.check_detached(release, signature))
    }

    fn check_detached(&self, release: &[u8], signature: &[u8]) -> Result<SignedText, SignatureError> {
        let text = bounded_text(release)?;
        if signature.len() > SIGNATURE_BYTES_MAX {
            let bytes = signature.len();
            return Err(SignatureError::TooLarge { what: "signature", bytes, limit: SIGNATURE_BYTES_MAX });
        }
        let armour = std::str::from_utf8(signature)
            .map_err(|_| SignatureError::Tampered("the signature is not armoured".to_owned()))?;
        let armour = &armour.replace("\r\n", "\n");
        clearsign::check_detached(armour)?;
        let signers = self.by_first_program(|program, check| match program {
            Program::Gpgv(_) => gpgv::detached(check, release, armour),
            Program::Sqv(_) => sqv::detached(check, release, armour),
        })?;
        Ok(SignedText { text, signers: self.accepted(signers)? })
    }

    /// Checks with the first program that is installed.
    fn by_first_program<T>(
        &self,
        verify: impl Fn(&Program, &Check<'_>) -> Result<T, SignatureError>,
    ) -> Result<T, SignatureError> {
        if self.keys.is_empty() {
            return Err(SignatureError::NoKeyring);
        }
        let mut missing = Vec::new();
        for program in &self.programs {
            let check = Check {
                program: program.path(),
                scratch: &self.scratch,
                keys: &self.keys,
                time_limit: self.time_limit,
            };
            match verify(program, &check) {
                Err(SignatureError::NoProgram { programs }) => missing.extend(programs),
                other => return other,
            }
        }
        Err(SignatureError::NoProgram { programs: missing })
    }

    /// The signers whose keys `Signed-By` lists.
    fn accepted(&self, good: Vec<Signer>) -> Result<Vec<Signer>, SignatureError> {
        let (accepted, others): (Vec<_>, Vec<_>) = good.into_iter().partition(|signer| self.accepts(signer));
        if accepted.is_empty() {
            let primary_only = others.iter().all(|signer| signer.fingerprint.is_none());
            let found = others.into_iter().map(|signer| signer.fingerprint.unwrap_or(signer.primary)).collect();
            return Err(SignatureError::OtherKey { found, primary_only });
        }
        Ok(accepted)
    }

    fn accepts(&self, signer: &Signer) -> bool {
        self.fingerprints.is_empty()
            || self.fingerprints.iter().any(|wanted| wanted.covers(signer.fingerprint.as_deref(), &signer.primary))
    }
}

/// Decodes the bytes as text with line feeds as line ends. Line ends of Windows are not part of the signed text, and
/// apt reads them alike. Bytes that are not UTF-8 become U+FFFD, since only names for people have any.
fn bounded_text(bytes: &[u8]) -> Result<String, SignatureError> {
    if bytes.len() > RELEASE_BYTES_MAX {
        return Err(SignatureError::TooLarge { what: "Release file", bytes: bytes.len(), limit: RELEASE_BYTES_MAX });
    }
    Ok(String::from_utf8_lossy(bytes).replace("\r\n", "\n"))
}

/// Whether an unsigned `Release` has the text of this signed one, apart from line ends and white space at its end.
pub fn is_same_text(release: &[u8], signed: &SignedText) -> bool {
    bounded_text(release).is_ok_and(|text| text.trim_end() == signed.as_str().trim_end())
}

fn shorten(messages: &str) -> String {
    messages.trim().replace('\n', "; ").chars().filter(|c| !c.is_control()).take(400).collect()
}

#[cfg(test)]
mod tests;
