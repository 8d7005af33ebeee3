//! The status lines of `gpgv` (GnuPG, `doc/DETAILS`, "Format of the --status-fd output").
//!
//! A signature is valid only with both `GOODSIG` and `VALIDSIG`: gpgv prints `VALIDSIG` alone for expired and revoked
//! keys.

/// Key that made a valid signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signer {
    /// Fingerprint of the signing key or subkey, in upper case; `None` if the verifier names only the primary key.
    pub fingerprint: Option<String>,
    /// Fingerprint of the primary key, in upper case.
    pub primary: String,
}

/// State of one signature.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SignatureState {
    /// `NEWSIG` without a verdict so far.
    Unknown,
    /// `GOODSIG`, before `VALIDSIG`.
    Good,
    /// `GOODSIG` and `VALIDSIG`, with a strong digest.
    Valid(Signer),
    /// The signature does not match the text.
    Bad,
    /// The signature or its key has expired.
    Expired,
    /// The key was revoked.
    Revoked,
    /// Not checked, because the key is missing.
    NoKey,
    /// Made with a weak digest of this name.
    Weak(&'static str),
    /// Could not be checked for another reason.
    Error,
}

/// One signature of the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Fingerprint or long key id, for messages.
    pub key: String,
    pub state: SignatureState,
}

impl Signature {
    pub(crate) fn good_signer(&self) -> Option<Signer> {
        match &self.state {
            SignatureState::Valid(signer) => Some(signer.clone()),
            _ => None,
        }
    }
}

/// Parsed status output.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub signatures: Vec<Signature>,
    /// Number of texts in the file.
    pub texts: usize,
}

/// Digests that apt refuses, by their number in RFC 9580, section 9.5.
fn weak_digest(number: &str) -> Option<&'static str> {
    match number {
        "1" => Some("MD5"),
        "2" => Some("SHA1"),
        "3" => Some("RIPEMD160"),
        _ => None,
    }
}

pub(crate) fn read(status: &str) -> Report {
    let mut report = Report::default();
    for line in status.lines() {
        let Some(line) = line.strip_prefix("[GNUPG:] ") else {
            continue;
        };
        let mut words = line.split(' ');
        let keyword = words.next().unwrap_or_default();
        let words: Vec<&str> = words.collect();
        let key = words.first().copied().unwrap_or_default();
        match keyword {
            "PLAINTEXT" => report.texts += 1,
            "NEWSIG" => report.signatures.push(Signature { key: String::new(), state: SignatureState::Unknown }),
            "GOODSIG" => set_state(&mut report, key, SignatureState::Good),
            "BADSIG" => set_state(&mut report, key, SignatureState::Bad),
            "EXPSIG" | "EXPKEYSIG" => set_state(&mut report, key, SignatureState::Expired),
            "REVKEYSIG" => set_state(&mut report, key, SignatureState::Revoked),
            "ERRSIG" => set_error_state(&mut report, key, &words),
            "VALIDSIG" => confirm(&mut report, &words),
            _ => {}
        }
    }
    report
}

/// Sets the state of the current signature. If it has one already, a further signature begins.
fn set_state(report: &mut Report, key: &str, state: SignatureState) {
    match report.signatures.last_mut() {
        Some(last) if last.state == SignatureState::Unknown => {
            *last = Signature { key: key.to_owned(), state };
        }
        _ => report.signatures.push(Signature { key: key.to_owned(), state }),
    }
}

/// `ERRSIG keyid pkalgo hashalgo sig_class time rc fpr`; rc 9 means that the key is missing.
fn set_error_state(report: &mut Report, key: &str, words: &[&str]) {
    let fingerprint = words.get(6).filter(|word| word.len() >= 40).copied().unwrap_or(key);
    let state = match (weak_digest(words.get(2).copied().unwrap_or_default()), words.get(5).copied()) {
        (_, Some("9")) => SignatureState::NoKey,
        (Some(digest), _) => SignatureState::Weak(digest),
        _ => SignatureState::Error,
    };
    set_state(report, fingerprint, state);
}

/// `VALIDSIG fpr date time expires version reserved pkalgo hashalgo class primary`
fn confirm(report: &mut Report, words: &[&str]) {
    let Some(last) = report.signatures.last_mut() else {
        return;
    };
    if last.state != SignatureState::Good {
        return;
    }
    let (Some(fingerprint), Some(hash), Some(class)) = (words.first(), words.get(7), words.get(8)) else {
        return;
    };
    last.key = fingerprint.to_ascii_uppercase();
    // 00 signs bytes, 01 text; other classes (of keys and certifications) do not sign a document.
    if !matches!(*class, "00" | "01") {
        last.state = SignatureState::Error;
    } else if let Some(digest) = weak_digest(hash) {
        last.state = SignatureState::Weak(digest);
    } else {
        let primary = words.get(9).unwrap_or(fingerprint).to_ascii_uppercase();
        last.state = SignatureState::Valid(Signer { fingerprint: Some(last.key.clone()), primary });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn states(status: &str) -> Vec<SignatureState> {
        let lines: String = status.lines().map(|line| format!("[GNUPG:] {}\n", line.trim())).collect();
        read(&lines).signatures.into_iter().map(|signature| signature.state).collect()
    }

    fn valid(hash: u8) -> String {
        format!("VALIDSIG {} 2026-01-01 1767225600 0 4 0 1 {hash} 01 {}", "A".repeat(40), "B".repeat(40))
    }

    fn signer() -> Signer {
        Signer { fingerprint: Some("A".repeat(40)), primary: "B".repeat(40) }
    }

    #[test]
    fn a_good_and_valid_signature_counts() {
        let status = format!("NEWSIG\nGOODSIG 0123456789ABCDEF Some One <x@y>\n{}", valid(10));
        assert_eq!(states(&status), [SignatureState::Valid(signer())]);
    }

    #[test]
    fn valid_alone_counts_for_nothing() {
        assert_eq!(states(&valid(10)), []);
        for (word, state) in [
            ("EXPKEYSIG", SignatureState::Expired),
            ("EXPSIG", SignatureState::Expired),
            ("REVKEYSIG", SignatureState::Revoked),
            ("BADSIG", SignatureState::Bad),
        ] {
            let status = format!("NEWSIG\n{word} 0123456789ABCDEF Some One\n{}", valid(10));
            assert_eq!(states(&status), [state]);
        }
    }

    #[test]
    fn weak_digests_are_named() {
        for (number, name) in [(1, "MD5"), (2, "SHA1"), (3, "RIPEMD160")] {
            let status = format!("NEWSIG\nGOODSIG 0123456789ABCDEF x\n{}", valid(number));
            assert_eq!(states(&status), [SignatureState::Weak(name)]);
        }
    }

    #[test]
    fn an_unknown_signer_hides_no_valid_one() {
        let status = format!(
            "NEWSIG\nERRSIG 0123456789ABCDEF 1 8 01 1700000000 9 {}\nNO_PUBKEY 0123456789ABCDEF\nNEWSIG\nGOODSIG FEDCBA9876543210 x\n{}",
            "C".repeat(40),
            valid(8)
        );
        assert_eq!(states(&status), [SignatureState::NoKey, SignatureState::Valid(signer())]);
    }

    #[test]
    fn a_user_id_forges_no_line() {
        // GnuPG escapes line ends in user ids; so a line without the prefix is not a status line.
        let report = read("GOODSIG 0123456789ABCDEF x\nVALIDSIG whatever\n");
        assert!(report.signatures.is_empty());
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(lines in prop::collection::vec("(\\[GNUPG:\\] )?(NEWSIG|GOODSIG|VALIDSIG|ERRSIG|BADSIG)( [A-F0-9]{0,4}){0,12}", 0..8)) {
            read(&lines.join("\n"));
        }
    }
}
