//! Checks by `gpgv`, which reports its findings in status lines and writes the verified text to a file.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;

use super::files::CheckFiles;
use super::gpgv_status::{self, SignatureState};
use super::process::run_bounded;
use super::{Check, NAME_OF_GPGV, RELEASE_BYTES_MAX, SignatureError, Signer, bounded_text, shorten};

/// Message of `gpgv` about a full disk, in the C locale.
const NO_SPACE: &str = "No space left on device";

/// Verifies a clear-signed file whose frame holds the text `expected`; returns the text that `gpgv` wrote.
pub(super) fn clearsigned(
    check: &Check<'_>,
    message: &[u8],
    expected: &str,
) -> Result<(String, Vec<Signer>), SignatureError> {
    let files = CheckFiles::create(check.scratch)?;
    let input = files.write("InRelease", message)?;
    let output = files.output()?;
    let signers = run(check, &files, Some(&output), &[&input])?;
    let text = read_output(&output)?;
    // gpgv skips everything that it does not consider part of the message. The text in the checked frame must equal the
    // text that it verified; otherwise it is an attack.
    if !same_lines(&text, expected) {
        return Err(SignatureError::Tampered("gpgv verified another text than the frame holds".to_owned()));
    }
    Ok((text, signers))
}

/// Verifies a file with its detached, armoured signature.
pub(super) fn detached(check: &Check<'_>, release: &[u8], signature: &str) -> Result<Vec<Signer>, SignatureError> {
    let files = CheckFiles::create(check.scratch)?;
    let data = files.write("Release", release)?;
    let signature = files.write("Release.gpg", signature.as_bytes())?;
    run(check, &files, None, &[&signature, &data])
}

/// Runs `gpgv` and evaluates its status; returns the signers of good signatures.
fn run(
    check: &Check<'_>,
    files: &CheckFiles,
    output: Option<&Path>,
    inputs: &[&Path],
) -> Result<Vec<Signer>, SignatureError> {
    let mut command = Command::new(check.program);
    // A separate home directory, so that the user's ~/.gnupg/trustedkeys.gpg is not used.
    command.arg("--homedir").arg(files.home()).args(["--status-fd", "1", "--ignore-time-conflict"]);
    for weak in ["MD5", "SHA1", "RIPEMD160"] {
        command.args(["--weak-digest", weak]);
    }
    for (number, key) in check.keys.iter().enumerate() {
        command.arg("--keyring").arg(files.keyring(number, key)?.0);
    }
    if let Some(output) = output {
        command.arg("--output").arg(output);
    }
    command.arg("--").args(inputs);
    let ended = run_bounded(command, check.program, NAME_OF_GPGV, check.time_limit)?;
    // A write error says nothing about the signature.
    if ended.stderr.contains(NO_SPACE) {
        let source = io::ErrorKind::StorageFull.into();
        return Err(SignatureError::Scratch { path: check.scratch.to_owned(), source });
    }
    match ended.code {
        // 1: a bad signature; 2: also "no key for a further signer". The status lines show which.
        Some(0..=2) => judge(&ended.stdout, &ended.stderr, output.is_some()),
        _ => Err(failed("failed", &ended.stderr)),
    }
}

/// The signers of good signatures, if there is at least one and no signature is bad.
pub(super) fn judge(status: &str, messages: &str, clearsigned: bool) -> Result<Vec<Signer>, SignatureError> {
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
        return Ok(good);
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
    Err(failed("found no valid signature", messages))
}

fn failed(what: &'static str, messages: &str) -> SignatureError {
    SignatureError::VerifierFailed { program: NAME_OF_GPGV, what, messages: shorten(messages) }
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
