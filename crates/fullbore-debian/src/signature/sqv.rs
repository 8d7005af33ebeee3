//! Checks by `sqv`, which prints the primary fingerprints of good signatures, and messages for people about the others.
//!
//! `sqv` always gets a file and a detached signature, as from apt's own method. A clear-signed file is split here,
//! after the check of its frame; the returned text is the text that `sqv` read. Every version accepts files in this
//! form, and no two programs can disagree on where the signed text begins.

use std::process::Command;

use super::files::{CheckFiles, KeyringKind};
use super::policy;
use super::process::{Ended, run_bounded};
use super::{Check, NAME_OF_SQV, SignatureError, Signer, shorten};
use crate::clearsign::{self, ClearSigned};

/// Verifies a clear-signed file; returns the signed text with a newline at its end.
pub(super) fn clearsigned(
    check: &Check<'_>,
    message: &ClearSigned<'_>,
) -> Result<(String, Vec<Signer>), SignatureError> {
    let mut text = signed_form(&message.text);
    let signers = detached(check, text.as_bytes(), message.signature)?;
    text.push('\n');
    Ok((text, signers))
}

/// Returns the bytes that a clear-text signature covers (RFC 9580, section 7.2): no white space at the ends of lines,
/// and no newline at the end of the text. `sqv` itself hashes line ends as CR LF.
fn signed_form(text: &str) -> String {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let lines = text.split('\n').map(|line| line.trim_end_matches([' ', '\t']));
    lines.collect::<Vec<_>>().join("\n")
}

/// Verifies a file with its detached, armoured signature.
pub(super) fn detached(check: &Check<'_>, release: &[u8], signature: &str) -> Result<Vec<Signer>, SignatureError> {
    // sqv reads only the first of several armoured blocks, so it gets the packets of all.
    let packets = clearsign::dearmour(signature, "PGP SIGNATURE")
        .map_err(|what| SignatureError::Tampered(format!("signature: {what}")))?;
    let files = CheckFiles::create(check.scratch)?;
    let data = files.write("Release", release)?;
    let signature = files.write("Release.gpg", &packets)?;
    let mut command = Command::new(check.program);
    for (number, key) in check.keys.iter().enumerate() {
        let (path, kind) = files.keyring(number, key)?;
        if kind == KeyringKind::Keybox {
            return Err(SignatureError::Keybox { keyring: path });
        }
        command.arg("--keyring").arg(path);
    }
    // The form without `--signature-file`, which version 1.1 does not have. Later versions keep this form for apt.
    command.args([&signature, &data]);
    // Otherwise every error ends with an unreadable trace.
    command.env("RUST_BACKTRACE", "0");
    if let Some(policy) = policy::of_this_machine() {
        command.env(policy::VARIABLE, policy);
    }
    judge(&run_bounded(command, check.program, NAME_OF_SQV, check.time_limit)?)
}

/// The signers of good signatures. Only the exit code decides whether there are any.
fn judge(ended: &Ended) -> Result<Vec<Signer>, SignatureError> {
    let failed =
        |what, output: &str| SignatureError::VerifierFailed { program: NAME_OF_SQV, what, messages: shorten(output) };
    match ended.code {
        Some(0) => {
            let lines: Vec<&str> = ended.stdout.lines().collect();
            if lines.is_empty() || !lines.iter().all(|line| is_fingerprint(line)) {
                return Err(failed("printed no fingerprints", &ended.stdout));
            }
            let signer = |line: &&str| Signer { fingerprint: None, primary: line.to_ascii_uppercase() };
            Ok(lines.iter().map(signer).collect())
        }
        Some(1) => Err(refusal(&ended.stderr).unwrap_or_else(|| failed("found no valid signature", &ended.stderr))),
        _ => Err(failed("failed", &ended.stderr)),
    }
}

fn is_fingerprint(line: &str) -> bool {
    matches!(line.len(), 40 | 64) && line.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Digests that apt refuses, in the spelling of `sqv` and of gpgv.
const WEAK_DIGESTS: [(&str, &str); 3] = [("MD5", "MD5"), ("SHA1", "SHA1"), ("RipeMD160", "RIPEMD160")];

/// The error behind the messages of a failed check. They are for people and may change, so they only affect the
/// wording. `None` if they are not understood.
fn refusal(messages: &str) -> Option<SignatureError> {
    let (mut missing, mut revoked, mut expired) = (Vec::new(), Vec::new(), None::<Vec<String>>);
    let (mut bad, mut weak, mut other) = (false, None, false);
    // A heading, and indented lines with the reasons, for each signature.
    for signature in in_blocks(messages) {
        let (heading, reasons) = signature.split_first()?;
        let has = |words: &str| reasons.iter().any(|reason| reason.contains(words));
        let key = heading.strip_prefix("Signing key on ").and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        let digest = || WEAK_DIGESTS.iter().find(|(name, _)| has(&format!(" {name} is not considered secure")));
        if let Some(rest) = heading.strip_prefix("Missing key ") {
            missing.push(rest.split(',').next().unwrap_or_default().to_owned());
        } else if has("Message has been manipulated") {
            bad = true;
        } else if let (None, Some((_, name))) = (&key, digest()) {
            weak = Some(*name);
        } else if has("revoked") {
            revoked.extend(key);
        } else if has("Expired on ") {
            expired.get_or_insert_default().extend(key);
        } else {
            other = true;
        }
    }
    if bad {
        Some(SignatureError::Bad { keys: Vec::new() })
    } else if let Some(digest) = weak {
        Some(SignatureError::WeakDigest { digest, keys: Vec::new() })
    } else if !revoked.is_empty() {
        Some(SignatureError::Revoked { keys: revoked })
    } else if let Some(keys) = expired {
        Some(SignatureError::Expired { keys })
    } else if !missing.is_empty() && !other {
        Some(SignatureError::NoPublicKey { fingerprints: missing })
    } else {
        None
    }
}

/// Groups lines; each group begins with a line without indentation.
fn in_blocks(messages: &str) -> Vec<Vec<&str>> {
    let mut blocks: Vec<Vec<&str>> = Vec::new();
    for line in messages.lines().filter(|line| !line.trim().is_empty()) {
        match blocks.last_mut() {
            Some(block) if line.starts_with(' ') => block.push(line),
            _ => blocks.push(vec![line]),
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ended(code: i32, stdout: &str, stderr: &str) -> Ended {
        Ended { code: Some(code), stdout: stdout.to_owned(), stderr: stderr.to_owned() }
    }

    #[test]
    fn only_success_with_fingerprints_counts() {
        let line = "A".repeat(40);
        let signers = judge(&ended(0, &format!("{line}\n"), "Missing key 0, which is needed")).expect("good");
        assert_eq!(signers, [Signer { fingerprint: None, primary: line.clone() }]);
        for (code, stdout) in [(0, ""), (0, "yes\n"), (1, line.as_str()), (2, &line), (101, &line)] {
            judge(&ended(code, stdout, "")).expect_err("not verified");
        }
        judge(&ended(0, &format!("{line}\nOrigin: evil\n"), "")).expect_err("something else");
        judge(&Ended { code: None, stdout: line, stderr: String::new() }).expect_err("killed");
    }

    #[test]
    fn messages_become_errors() {
        let (one, two) = ("A".repeat(40), "B".repeat(40));
        let missing = format!("Missing key {one}, which is needed to verify signature.\n");
        let revoked = format!("Signing key on {two} is bad:\n           Invalid key: \"certificate is revoked\"\n");
        let expired = format!(
            "Signing key on {two} is bad:\n           The primary key is not live\n  because: Expired on 2020-02-01\n"
        );
        let weak = "Verifying signature:\n           Policy rejected non-revocation signature (Text) requiring \
             collision resistance\n  because: RipeMD160 is not considered secure since 2013-02-01T00:00:00Z\n";
        let bad = "Verifying signature:\n           Message has been manipulated\n";
        let unbound = format!(
            "Signing key on {two} is not bound:\n           because: SHA1 is not considered secure since 2013\n"
        );
        let text = |messages: &str| refusal(messages).map(|error| error.to_string());
        assert_eq!(text(&missing), Some(format!("no public key for the signature by {one}")));
        assert_eq!(text(&[&missing, revoked.as_str()].concat()), Some(format!("key revoked: {two}")));
        assert_eq!(text(&expired), Some(format!("signature or key expired: {two}")));
        assert_eq!(text("Verifying signature:\n    Expired on 2020\n").as_deref(), Some("signature or key expired"));
        assert_eq!(text(weak).as_deref(), Some("signature with a weak digest (RIPEMD160)"));
        assert_eq!(text(&[&missing, bad].concat()).as_deref(), Some("bad signature"));
        // Another key would not help here, so the messages of sqv are shown.
        assert_eq!(text(&[&missing, unbound.as_str()].concat()), None);
        assert_eq!(text("Error: Failed to parse keyring \"x\"\n\nCaused by:\n    EOF\n"), None);
        assert_eq!(text(""), None);
    }

    #[test]
    fn blanks_at_line_ends_are_not_signed() {
        for (text, signed) in [("a \nb\t \n", "a\nb"), ("\n", ""), ("a\n\n\n", "a\n\n"), ("a\u{a0}\n", "a\u{a0}")] {
            assert_eq!(signed_form(text), signed);
        }
    }

    proptest! {
        #[test]
        fn messages_never_panic(messages in "( {0,4}(Missing key|Signing key on|Verifying|Expired on)? ?[A-F]{0,4},?\n){0,8}") {
            refusal(&messages);
        }
    }
}
