//! Errors in verifying a signature.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use crate::clearsign::FrameFault;

/// Why a signature was not accepted.
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
        /// Whether the verifier names only primary keys, so that `Signed-By` cannot select a subkey.
        primary_only: bool,
    },
    /// A signature by a known key does not match the text.
    #[error("bad signature{}", named(" by ", .keys))]
    Bad {
        /// Long key ids of the signing keys, if the verifier names them.
        keys: Vec<String>,
    },
    /// The signature or its key has expired.
    #[error("signature or key expired{}", named(": ", .keys))]
    Expired {
        /// Long key ids or fingerprints of the signing keys, if the verifier names them.
        keys: Vec<String>,
    },
    /// The key was revoked.
    #[error("key revoked: {}", .keys.join(", "))]
    Revoked {
        /// Long key ids or fingerprints of the signing keys.
        keys: Vec<String>,
    },
    /// All signatures use MD5, SHA-1 or RIPEMD-160.
    #[error("signature with a weak digest ({digest}){}", named(" by ", .keys))]
    WeakDigest {
        /// Name of the algorithm.
        digest: &'static str,
        /// Long key ids or fingerprints, if the verifier names them.
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
    /// No program that verifies signatures is installed.
    #[error("cannot verify signatures: found no {}", .programs.join(" and no "))]
    NoProgram {
        /// Names of the programs that would do.
        programs: Vec<String>,
    },
    /// A verifier cannot be started.
    #[error("cannot run {}: {source}", .path.display())]
    CannotRun {
        /// Path of the program.
        path: PathBuf,
        /// The underlying error.
        source: io::Error,
    },
    /// A verifier did not finish in time, or failed.
    #[error("{program} {what}: {messages}")]
    VerifierFailed {
        /// Name of the verifier.
        program: &'static str,
        /// Description of the failure.
        what: &'static str,
        /// Its messages, at most 400 characters.
        messages: String,
    },
    /// A keyring is a GnuPG keybox, which only `gpgv` reads.
    #[error("keyring {}: sqv cannot read a GnuPG keybox", .keyring.display())]
    Keybox {
        /// Path of the keyring.
        keyring: PathBuf,
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

/// Formats keys for the end of a message; empty without keys.
fn named(words: &str, keys: &[String]) -> String {
    if keys.is_empty() { String::new() } else { format!("{words}{}", keys.join(", ")) }
}

impl SignatureError {
    /// Whether this machine cannot verify any signature, so that the error says nothing about the file.
    pub fn is_missing_program(&self) -> bool {
        matches!(self, SignatureError::NoProgram { .. } | SignatureError::CannotRun { .. })
    }
}

impl From<FrameFault> for SignatureError {
    fn from(fault: FrameFault) -> Self {
        match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: String::new() },
            other => SignatureError::Tampered(other.to_string()),
        }
    }
}
