//! Checking signatures: from downloaded bytes to text signed by a trusted key.
//!
//! Only this module makes a [`SignedText`]: `gpgv` checks an `InRelease` (or `Release` with `Release.gpg`) against
//! given keyrings, and sources with `Trusted: yes` have an explicit function. The frame around the text is checked
//! first (`clearsign`). `gpgv` writes the text that it verified to a file, and only that text is returned.

mod cache;
mod gpgv_files;
mod process;

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::clearsign::{self, FrameFault};
pub use crate::gpgv_status::Signer;
use crate::gpgv_status::{self, SignatureState};
use crate::keys::{Fingerprint, KeySource};
use cache::VerificationCache;
use gpgv_files::GpgvFiles;
pub use gpgv_files::sweep;
use process::run_bounded;

/// Maximum size of an `InRelease` or `Release`, in bytes: apt's `Acquire::MaxReleaseFileSize`. Debian's has 150 KB.
pub const RELEASE_BYTES_MAX: usize = 10_000_000;

/// Maximum size of a detached signature, in bytes; one of Debian's, by three keys, has 3 KB.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 20;

/// Time limit for `gpgv`, which usually takes 20 ms.
pub const GPGV_TIME_LIMIT: Duration = Duration::from_secs(30);

/// Message of `gpgv` about a full disk, in the C locale.
const NO_SPACE: &str = "No space left on device";

/// Text with a valid signature by a trusted key, or declared trusted by [`SignedText::trusted`]. Parsers of signed
/// files accept no other text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedText {
    text: String,
    signers: Vec<Signer>,
}

impl SignedText {
    /// The text.
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
    /// The file is too large, or its armour is malformed.
    pub fn trusted(bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let text = bounded_text(bytes)?;
        let text = if clearsign::is_clearsigned(bytes) { clearsign::text_within(&text)? } else { text };
        Ok(SignedText { text, signers: Vec::new() })
    }
}

/// Returns the text of an `InRelease` **without checking any signature**, for comparing the files of several mirrors.
///
/// # Errors
/// The file is too large, or its armour is malformed.
pub fn text_of_inrelease(bytes: &[u8]) -> Result<String, SignatureError> {
    Ok(clearsign::text_within(&bounded_text(bytes)?)?)
}

/// Error in verifying a signature.
#[derive(Debug, Error)]
pub enum SignatureError {
    /// The keyrings have no key for the signature.
    #[error("no public key for the signature by {}", .fingerprints.join(", "))]
    NoPublicKey {
        /// Fingerprints, or long key ids if the signature has no fingerprint.
        fingerprints: Vec<String>,
    },
    /// The signature is valid, but `Signed-By` does not name its key.
    #[error("signed by {}, which Signed-By does not list", .found.join(", "))]
    OtherKey {
        /// Fingerprints of the signing keys.
        found: Vec<String>,
    },
    /// A signature by a known key does not match the text.
    #[error("bad signature by {}", .keys.join(", "))]
    Bad {
        /// Long key ids of the signing keys.
        keys: Vec<String>,
    },
    /// The signature or its key has expired.
    #[error("signature or key expired: {}", .keys.join(", "))]
    Expired {
        /// Long key ids of the signing keys.
        keys: Vec<String>,
    },
    /// The key was revoked.
    #[error("key revoked: {}", .keys.join(", "))]
    Revoked {
        /// Long key ids of the signing keys.
        keys: Vec<String>,
    },
    /// All signatures use MD5, SHA-1 or RIPEMD-160.
    #[error("signature with a weak digest ({digest}) by {}", .keys.join(", "))]
    WeakDigest {
        /// Name of the algorithm.
        digest: &'static str,
        /// Long key ids or fingerprints.
        keys: Vec<String>,
    },
    /// The file is not clear-signed, but for instance the login page of a captive portal.
    #[error("not a clear-signed file (starts with {start:?})")]
    NotClearsigned {
        /// Start of the file.
        start: String,
    },
    /// The file has bytes that the signature does not cover, or malformed armour.
    #[error("malformed signed file: {0}")]
    Tampered(String),
    /// The file has no signature.
    #[error("no signature found")]
    NoSignature,
    /// A file exceeds its limit.
    #[error("{what} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Name of the file.
        what: &'static str,
        /// Size in bytes.
        bytes: usize,
        /// Limit in bytes.
        limit: usize,
    },
    /// `gpgv` cannot be started.
    #[error("cannot run {}: {source} (package gpgv)", .path.display())]
    GpgvMissing {
        /// Path of the program.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// `gpgv` did not finish in time, or failed.
    #[error("gpgv {what}: {messages}")]
    GpgvFailed {
        /// Description of the failure.
        what: &'static str,
        /// Messages of `gpgv`, at most 400 characters.
        messages: String,
    },
    /// A keyring cannot be used.
    #[error("keyring {keyring}: {what}")]
    Keyring {
        /// Path, or `Signed-By` for a key within a sources file.
        keyring: String,
        /// The fault.
        what: String,
    },
    /// There is no key to check with.
    #[error("no keyring given")]
    NoKeyring,
    /// The scratch directory cannot be used.
    #[error("scratch directory {}: {source}", .path.display())]
    Scratch {
        /// Path of the file.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
}

impl From<FrameFault> for SignatureError {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: String::new() },
            other => SignatureError::Tampered(other.to_string()),
        }
    }
}

/// Verifies signatures with `gpgv` against a set of keys.
///
/// A verifier and its clones check the same bytes once, so that a check may start before its result is needed.
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
    gpgv: PathBuf,
    scratch: PathBuf,
    keys: Vec<KeySource>,
    fingerprints: Vec<Fingerprint>,
    time_limit: Duration,
    cache: Arc<VerificationCache>,
}

impl Verifier {
    /// Makes a verifier with these keys. No other user may be able to write to the directory `scratch`. The files for
    /// `gpgv` have no names; without `/proc`, they are in a subdirectory of mode 0700 during a check.
    pub fn new(scratch: impl Into<PathBuf>, keys: Vec<KeySource>) -> Self {
        Verifier {
            gpgv: PathBuf::from("gpgv"),
            scratch: scratch.into(),
            keys,
            fingerprints: Vec::new(),
            time_limit: GPGV_TIME_LIMIT,
            cache: Arc::default(),
        }
    }

    /// Uses this `gpgv` instead of the one in `PATH`.
    #[must_use]
    pub fn with_gpgv(mut self, path: impl Into<PathBuf>) -> Self {
        self.gpgv = path.into();
        self.afresh()
    }

    /// Accepts only these keys of the keyrings (`Signed-By` with fingerprints); an empty list accepts all.
    #[must_use]
    pub fn with_fingerprints(mut self, fingerprints: Vec<Fingerprint>) -> Self {
        self.fingerprints = fingerprints;
        self.afresh()
    }

    /// Drops cached results, which belong to other rules.
    fn afresh(mut self) -> Self {
        self.cache = Arc::default();
        self
    }

    /// Uses this time limit instead of [`GPGV_TIME_LIMIT`].
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Verifies a clear-signed `InRelease`.
    ///
    /// # Errors
    /// Every variant of [`SignatureError`].
    pub fn verify_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        self.cache.once(&[bytes], || self.check_inrelease(bytes))
    }

    fn check_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let message = bounded_text(bytes)?;
        let expected = clearsign::text_within(&message).map_err(|fault| match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: message.chars().take(60).collect() },
            other => other.into(),
        })?;
        let files = GpgvFiles::create(&self.scratch)?;
        let input = files.write("InRelease", bytes)?;
        let output = files.output()?;
        let signers = self.run(&files, Some(&output), &[&input])?;
        let text = read_output(&output)?;
        // gpgv skips everything that it does not take for a part of the message. The text in the checked frame must be
        // the text that it verified; otherwise it is an attack.
        if !same_lines(&text, &expected) {
            return Err(SignatureError::Tampered("gpgv verified another text than the frame holds".to_owned()));
        }
        Ok(SignedText { text, signers })
    }

    /// Verifies a `Release` with its detached, armoured `Release.gpg`.
    ///
    /// # Errors
    /// Every variant of [`SignatureError`] but `NotClearsigned`.
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
        clearsign::check_detached(&armour.replace("\r\n", "\n"))?;
        let files = GpgvFiles::create(&self.scratch)?;
        let data = files.write("Release", release)?;
        let signature = files.write("Release.gpg", signature)?;
        let signers = self.run(&files, None, &[&signature, &data])?;
        Ok(SignedText { text, signers })
    }

    /// Runs `gpgv` and evaluates its status; returns the accepted signers.
    fn run(&self, files: &GpgvFiles, output: Option<&Path>, inputs: &[&Path]) -> Result<Vec<Signer>, SignatureError> {
        if self.keys.is_empty() {
            return Err(SignatureError::NoKeyring);
        }
        let mut command = Command::new(&self.gpgv);
        // A separate home directory, so that the user's ~/.gnupg/trustedkeys.gpg is not used.
        command.arg("--homedir").arg(files.home()).args(["--status-fd", "1", "--ignore-time-conflict"]);
        for weak in ["MD5", "SHA1", "RIPEMD160"] {
            command.args(["--weak-digest", weak]);
        }
        for (number, key) in self.keys.iter().enumerate() {
            command.arg("--keyring").arg(files.keyring(number, key)?);
        }
        if let Some(output) = output {
            command.arg("--output").arg(output);
        }
        command.arg("--").args(inputs);
        let said = run_bounded(command, &self.gpgv, self.time_limit);
        let messages = match &said {
            Ok((_, messages)) | Err(SignatureError::GpgvFailed { messages, .. }) => messages.as_str(),
            Err(_) => "",
        };
        // A write error is no statement about the signature.
        if messages.contains(NO_SPACE) {
            let source = io::ErrorKind::StorageFull.into();
            return Err(SignatureError::Scratch { path: self.scratch.clone(), source });
        }
        let (status, messages) = said?;
        self.judge(&status, &messages, output.is_some())
    }

    fn judge(&self, status: &str, messages: &str, clearsigned: bool) -> Result<Vec<Signer>, SignatureError> {
        let report = gpgv_status::read(status);
        // A detached signature must not contain text.
        if report.texts > usize::from(clearsigned) {
            return Err(SignatureError::Tampered("more than one text in the signed file".to_owned()));
        }
        let keys = |state: SignatureState| {
            let signatures = report.signatures.iter().filter(|signature| signature.state == state);
            Some(signatures.map(|signature| signature.key.clone()).collect()).filter(|keys: &Vec<_>| !keys.is_empty())
        };
        if let Some(keys) = keys(SignatureState::Bad) {
            return Err(SignatureError::Bad { keys });
        }
        let good: Vec<Signer> = report.signatures.iter().filter_map(|s| s.good_signer()).collect();
        if !good.is_empty() {
            let (accepted, others): (Vec<_>, Vec<_>) = good.into_iter().partition(|signer| self.accepts(signer));
            if accepted.is_empty() {
                let found = others.into_iter().map(|signer| signer.fingerprint).collect();
                return Err(SignatureError::OtherKey { found });
            }
            return Ok(accepted);
        }
        for signature in &report.signatures {
            if let SignatureState::Weak(digest) = signature.state {
                return Err(SignatureError::WeakDigest { digest, keys: vec![signature.key.clone()] });
            }
        }
        if let Some(keys) = keys(SignatureState::Revoked) {
            return Err(SignatureError::Revoked { keys });
        }
        if let Some(keys) = keys(SignatureState::Expired) {
            return Err(SignatureError::Expired { keys });
        }
        if let Some(fingerprints) = keys(SignatureState::NoKey) {
            return Err(SignatureError::NoPublicKey { fingerprints });
        }
        if report.signatures.is_empty() && !messages.contains("keyring") {
            return Err(SignatureError::NoSignature);
        }
        Err(SignatureError::GpgvFailed { what: "found no valid signature", messages: shorten(messages) })
    }

    fn accepts(&self, signer: &Signer) -> bool {
        self.fingerprints.is_empty()
            || self.fingerprints.iter().any(|wanted| wanted.covers(&signer.fingerprint, &signer.primary))
    }
}

/// The bytes as text with line feeds alone as line ends: those of Windows are no part of what is signed, and apt reads
/// them alike. Bytes that are not UTF-8 become U+FFFD, since only names for people have any.
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

fn read_output(path: &Path) -> Result<String, SignatureError> {
    let scratch = |source| SignatureError::Scratch { path: path.to_owned(), source };
    let mut text = Vec::new();
    fs::File::open(path)
        .map_err(scratch)?
        .take(RELEASE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(scratch)?;
    bounded_text(&text)
}

/// Compares lines without trailing white space, which a clear-text signature does not cover.
fn same_lines(left: &str, right: &str) -> bool {
    let left = left.trim_end().lines().map(str::trim_end);
    left.eq(right.trim_end().lines().map(str::trim_end))
}

fn shorten(messages: &str) -> String {
    messages.trim().replace('\n', "; ").chars().filter(|c| !c.is_control()).take(400).collect()
}

#[cfg(test)]
mod tests;
