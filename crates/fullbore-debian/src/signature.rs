//! From bytes of the network to text that somebody we trust has signed.
//!
//! [`SignedText`] can only be made here: by `gpgv`, which checks an `InRelease`
//! (or `Release` with `Release.gpg`) against given keyrings, or by the explicit
//! route for sources marked `Trusted: yes`. The frame around the text is
//! checked first (`clearsign`), `gpgv` writes the text it verified to a file,
//! and that text, and no other, is handed out.

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

/// Largest `InRelease` or `Release`: what apt allows (`Acquire::MaxReleaseFileSize`). Debian's has 150 KB.
pub const RELEASE_BYTES_MAX: usize = 10_000_000;

/// Largest detached signature; one of Debian's, by three keys, has 3 KB.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 20;

/// How long `gpgv` may take. It needs 20 ms; more than this means that something hangs.
pub const GPGV_TIME_LIMIT: Duration = Duration::from_secs(30);

/// How `gpgv`, in the C locale, tells of a full disk.
const NO_SPACE: &str = "No space left on device";

/// Text with a valid signature of a trusted key (or declared trusted, see
/// [`SignedText::trusted`]). Whoever holds one may parse it.
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

    /// Who signed it; empty when it was only declared trusted.
    pub fn signers(&self) -> &[Signer] {
        &self.signers
    }

    /// Whether a signature was checked.
    pub fn is_verified(&self) -> bool {
        !self.signers.is_empty()
    }

    /// Takes a `Release` or `InRelease` **without checking any signature**: for sources marked
    /// `Trusted: yes` by the user, and for nothing else. Where the file is clear-signed, its
    /// frame must still be right and only the text within counts.
    pub fn trusted(bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let text = bounded_text(bytes)?;
        let text = if clearsign::is_clearsigned(bytes) { clearsign::text_within(text)? } else { text.to_owned() };
        Ok(SignedText { text, signers: Vec::new() })
    }
}

/// The text within an `InRelease`, **of which no signature was checked**: for comparing offers, not for use.
pub fn text_of_inrelease(bytes: &[u8]) -> Result<String, SignatureError> {
    Ok(clearsign::text_within(bounded_text(bytes)?)?)
}

/// Why a text was not accepted.
#[derive(Debug, Error)]
pub enum SignatureError {
    /// Signed, but by none of the keys given.
    #[error("no public key for the signature by {}", .fingerprints.join(", "))]
    NoPublicKey {
        /// Fingerprints (long key ids where the signature tells no more).
        fingerprints: Vec<String>,
    },
    /// A valid signature, but of a key that `Signed-By` does not name.
    #[error("signed by {}, which is none of the fingerprints asked for", .found.join(", "))]
    OtherKey {
        /// Fingerprints of the signing keys.
        found: Vec<String>,
    },
    /// A signature by a known key does not match the text.
    #[error("bad signature by {}", .keys.join(", "))]
    Bad {
        /// Long key ids.
        keys: Vec<String>,
    },
    /// The signature or its key has expired.
    #[error("signature or key expired: {}", .keys.join(", "))]
    Expired {
        /// Long key ids.
        keys: Vec<String>,
    },
    /// The key was revoked.
    #[error("key revoked: {}", .keys.join(", "))]
    Revoked {
        /// Long key ids.
        keys: Vec<String>,
    },
    /// Only signatures with MD5, SHA-1 or RIPEMD-160.
    #[error("signature with a weak digest ({digest}) by {}", .keys.join(", "))]
    WeakDigest {
        /// Name of the algorithm.
        digest: &'static str,
        /// Long key ids or fingerprints.
        keys: Vec<String>,
    },
    /// Not a clear-signed file, such as the login page of a captive portal.
    #[error("not a clear-signed file (starts with {start:?})")]
    NotClearsigned {
        /// How it starts instead.
        start: String,
    },
    /// Bytes that the signature does not cover, or a broken frame.
    #[error("the frame of the signature was tampered with: {0}")]
    Tampered(String),
    /// No signature at all.
    #[error("no signature found")]
    NoSignature,
    /// More than any `Release` file needs.
    #[error("{what} has {bytes} bytes; the limit is {limit}")]
    TooLarge {
        /// Which file.
        what: &'static str,
        /// Its size.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The text is not UTF-8.
    #[error("not UTF-8 at byte {offset}")]
    NotUtf8 {
        /// Where.
        offset: usize,
    },
    /// `gpgv` is not installed where expected.
    #[error("cannot run {}: {source} (package gpgv)", .path.display())]
    GpgvMissing {
        /// What was started.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// `gpgv` did not finish in time, or died.
    #[error("gpgv {what}: {messages}")]
    GpgvFailed {
        /// What happened.
        what: &'static str,
        /// What it said, shortened.
        messages: String,
    },
    /// A keyring that cannot be used.
    #[error("keyring {keyring}: {what}")]
    Keyring {
        /// Path, or `Signed-By` for a key within a sources file.
        keyring: String,
        /// What is wrong.
        what: String,
    },
    /// No key at all to check with.
    #[error("no keyring given")]
    NoKeyring,
    /// The scratch directory cannot be used.
    #[error("scratch directory {}: {source}", .path.display())]
    Scratch {
        /// Which.
        path: PathBuf,
        /// The cause.
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

/// Checks signatures with `gpgv` against a set of keys: the same bytes once, however often it (or a clone of it) is
/// asked, so that a check can be begun before it is known to be needed.
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
    /// `scratch` is a directory that only we write to. The files for `gpgv` have no names; where `/proc` is not
    /// mounted, they are in a subdirectory of mode 0700 during a check.
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

    /// Another `gpgv` than the one that `PATH` gives.
    #[must_use]
    pub fn with_gpgv(mut self, path: impl Into<PathBuf>) -> Self {
        self.gpgv = path.into();
        self.afresh()
    }

    /// Accepts only these keys out of the keyrings (`Signed-By` with fingerprints); an empty
    /// list accepts all of them.
    #[must_use]
    pub fn with_fingerprints(mut self, fingerprints: Vec<Fingerprint>) -> Self {
        self.fingerprints = fingerprints;
        self.afresh()
    }

    /// What another set of rules found valid counts for nothing.
    fn afresh(mut self) -> Self {
        self.cache = Arc::default();
        self
    }

    /// Another limit than [`GPGV_TIME_LIMIT`].
    #[must_use]
    pub fn with_time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Checks a clear-signed `InRelease`.
    pub fn verify_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        self.cache.once(&[bytes], || self.check_inrelease(bytes))
    }

    fn check_inrelease(&self, bytes: &[u8]) -> Result<SignedText, SignatureError> {
        let message = bounded_text(bytes)?;
        let expected = clearsign::text_within(message).map_err(|fault| match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: message.chars().take(60).collect() },
            other => other.into(),
        })?;
        let files = GpgvFiles::create(&self.scratch)?;
        let input = files.write("InRelease", bytes)?;
        let output = files.output()?;
        let signers = self.run(&files, Some(&output), &[&input])?;
        let text = read_output(&output)?;
        // gpgv skips what it takes for no part of the message; the text that we found in the
        // frame must be the text that it verified, or somebody plays with the difference.
        if !same_lines(&text, &expected) {
            return Err(SignatureError::Tampered("gpgv verified another text than the frame holds".to_owned()));
        }
        Ok(SignedText { text, signers })
    }

    /// Checks a `Release` with its detached, armoured `Release.gpg`.
    pub fn verify_detached(&self, release: &[u8], signature: &[u8]) -> Result<SignedText, SignatureError> {
        self.cache.once(&[release, signature], || self.check_detached(release, signature))
    }

    fn check_detached(&self, release: &[u8], signature: &[u8]) -> Result<SignedText, SignatureError> {
        let text = bounded_text(release)?.to_owned();
        if signature.len() > SIGNATURE_BYTES_MAX {
            let bytes = signature.len();
            return Err(SignatureError::TooLarge { what: "signature", bytes, limit: SIGNATURE_BYTES_MAX });
        }
        let armour = std::str::from_utf8(signature)
            .map_err(|_| SignatureError::Tampered("the signature is not armoured".to_owned()))?;
        clearsign::check_detached(armour)?;
        let files = GpgvFiles::create(&self.scratch)?;
        let data = files.write("Release", release)?;
        let signature = files.write("Release.gpg", signature)?;
        let signers = self.run(&files, None, &[&signature, &data])?;
        Ok(SignedText { text, signers })
    }

    /// Runs `gpgv` and judges what it says; returns the good signers.
    fn run(&self, files: &GpgvFiles, output: Option<&Path>, inputs: &[&Path]) -> Result<Vec<Signer>, SignatureError> {
        if self.keys.is_empty() {
            return Err(SignatureError::NoKeyring);
        }
        let mut command = Command::new(&self.gpgv);
        // Its own home, so that the user's ~/.gnupg/trustedkeys.gpg counts for nothing.
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
        // What it could not write says nothing about the signature.
        if messages.contains(NO_SPACE) {
            let source = io::ErrorKind::StorageFull.into();
            return Err(SignatureError::Scratch { path: self.scratch.clone(), source });
        }
        let (status, messages) = said?;
        self.judge(&status, &messages, output.is_some())
    }

    fn judge(&self, status: &str, messages: &str, clearsigned: bool) -> Result<Vec<Signer>, SignatureError> {
        let report = gpgv_status::read(status);
        // A "detached" signature that brings its own text is not one.
        if report.texts > usize::from(clearsigned) {
            return Err(SignatureError::Tampered("more than one text in the signed file".to_owned()));
        }
        let keys = |wanted: &dyn Fn(&SignatureState) -> bool| -> Vec<String> {
            report.signatures.iter().filter(|s| wanted(&s.state)).map(|s| s.key.clone()).collect()
        };
        let bad = keys(&|state| *state == SignatureState::Bad);
        if !bad.is_empty() {
            return Err(SignatureError::Bad { keys: bad });
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
        let revoked = keys(&|state| *state == SignatureState::Revoked);
        if !revoked.is_empty() {
            return Err(SignatureError::Revoked { keys: revoked });
        }
        let expired = keys(&|state| *state == SignatureState::Expired);
        if !expired.is_empty() {
            return Err(SignatureError::Expired { keys: expired });
        }
        let unknown = keys(&|state| *state == SignatureState::NoKey);
        if !unknown.is_empty() {
            return Err(SignatureError::NoPublicKey { fingerprints: unknown });
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

fn bounded_text(bytes: &[u8]) -> Result<&str, SignatureError> {
    if bytes.len() > RELEASE_BYTES_MAX {
        return Err(SignatureError::TooLarge { what: "Release file", bytes: bytes.len(), limit: RELEASE_BYTES_MAX });
    }
    std::str::from_utf8(bytes).map_err(|error| SignatureError::NotUtf8 { offset: error.valid_up_to() })
}

fn read_output(path: &Path) -> Result<String, SignatureError> {
    let scratch = |source| SignatureError::Scratch { path: path.to_owned(), source };
    let mut text = Vec::new();
    fs::File::open(path)
        .map_err(scratch)?
        .take(RELEASE_BYTES_MAX as u64 + 1)
        .read_to_end(&mut text)
        .map_err(scratch)?;
    bounded_text(&text).map(str::to_owned)
}

/// Line by line without white space at the ends, which a clear-text signature does not cover.
fn same_lines(left: &str, right: &str) -> bool {
    let left = left.trim_end().lines().map(str::trim_end);
    left.eq(right.trim_end().lines().map(str::trim_end))
}

fn shorten(messages: &str) -> String {
    messages.trim().replace('\n', "; ").chars().filter(|c| !c.is_control()).take(400).collect()
}

#[cfg(test)]
mod tests;
