//! Signatures of keys that `gpg` creates for the test, in a separate home directory.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::process::Stdio;
use std::time::Instant;

use super::*;

const TEXT: &str = "Origin: Test\nSuite: stable\nDescription: a\n- dashed\nSHA256:\n";

/// A GnuPG home with keys made for the test, and a scratch directory.
struct Lab {
    directory: tempfile::TempDir,
}

impl Lab {
    /// Fails on a machine without gpg and gpgv; `script/test` installs them.
    #[track_caller]
    fn new() -> Lab {
        for program in ["gpg", "gpgv"] {
            let found = Command::new(program).arg("--version").output().is_ok();
            assert!(found, "{program} is missing: apt-get install {program}");
        }
        let directory = tempfile::Builder::new().prefix("fb").tempdir().expect("temporary directory");
        for name in ["home", "scratch"] {
            DirBuilder::new().mode(0o700).create(directory.path().join(name)).expect("directory");
        }
        Lab { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn gpg(&self, arguments: &[&str], input: &[u8]) -> Vec<u8> {
        use std::io::Write as _;
        let mut child = Command::new("gpg")
            .arg("--homedir")
            .arg(self.path("home"))
            .args(["--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""])
            .args(["--allow-weak-digest-algos", "--trust-model", "always"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("gpg");
        child.stdin.take().expect("piped").write_all(input).expect("gpg reads");
        let output = child.wait_with_output().expect("gpg ends");
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Makes an ed25519 key; returns its fingerprint.
    fn key(&self, name: &str, expire: &str) -> String {
        self.gpg(&["--quick-generate-key", name, "ed25519", "sign", expire], b"");
        let listing = self.gpg(&["--with-colons", "--list-keys", name], b"");
        let listing = String::from_utf8(listing).expect("UTF-8");
        let line = listing.lines().find(|line| line.starts_with("fpr")).expect("a fingerprint");
        line.split(':').nth(9).expect("field 10").to_owned()
    }

    fn clearsign(&self, text: &str, arguments: &[&str]) -> Vec<u8> {
        let arguments = [arguments, &["--clearsign", "--output", "-"]].concat();
        self.gpg(&arguments, text.as_bytes())
    }

    /// The public keys of `names`, binary, in a file.
    fn keyring(&self, file: &str, names: &[&str]) -> KeySource {
        let bytes = self.gpg(&[&["--export"], names].concat(), b"");
        fs::write(self.path(file), bytes).expect("keyring");
        KeySource::File(self.path(file))
    }

    fn verifier(&self, keys: Vec<KeySource>) -> Verifier {
        Verifier::new(self.path("scratch"), keys)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = Command::new("gpgconf").arg("--homedir").arg(self.path("home")).args(["--kill", "all"]).output();
        // Whatever a check wrote is gone.
        if !std::thread::panicking() {
            assert_eq!(fs::read_dir(self.path("scratch")).expect("scratch").count(), 0);
        }
    }
}

#[test]
fn a_good_signature_gives_the_text() {
    let lab = Lab::new();
    let fingerprint = lab.key("one", "never");
    let keyring = lab.keyring("one.gpg", &["one"]);
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let signed = lab.verifier(vec![keyring]).verify_inrelease(&message).expect("good");
    assert_eq!(signed.as_str(), TEXT);
    assert!(signed.is_verified());
    assert_eq!(signed.signers()[0].primary, fingerprint);
}

#[test]
fn keys_in_every_form() {
    let lab = Lab::new();
    let fingerprint = lab.key("one", "never");
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let armour = String::from_utf8(lab.gpg(&["--armor", "--export", "one"], b"")).expect("ASCII");
    fs::write(lab.path("one.asc"), &armour).expect("keyring");
    let inline = armour.lines().map(|line| if line.is_empty() { " ." } else { line }).collect::<Vec<_>>().join("\n ");
    for key in [KeySource::File(lab.path("one.asc")), KeySource::Inline(inline)] {
        lab.verifier(vec![key.clone()]).verify_inrelease(&message).expect("good");
        let own = vec![fingerprint.parse().expect("fingerprint")];
        lab.verifier(vec![key.clone()]).with_fingerprints(own).verify_inrelease(&message).expect("named");
        let other = vec!["A".repeat(40).parse().expect("fingerprint")];
        let error = lab.verifier(vec![key]).with_fingerprints(other).verify_inrelease(&message).expect_err("other");
        assert!(matches!(error, SignatureError::OtherKey { found } if found == [fingerprint.clone()]));
    }
    let missing = KeySource::File(lab.path("nowhere.gpg"));
    assert!(matches!(lab.verifier(vec![missing]).verify_inrelease(&message), Err(SignatureError::Keyring { .. })));
    assert!(matches!(lab.verifier(vec![]).verify_inrelease(&message), Err(SignatureError::NoKeyring)));
    let broken = KeySource::Inline("-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n".to_owned());
    assert!(matches!(lab.verifier(vec![broken]).verify_inrelease(&message), Err(SignatureError::Keyring { .. })));
}

#[test]
fn bytes_outside_the_signature() {
    let lab = Lab::new();
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    let message = String::from_utf8(lab.clearsign(TEXT, &["-u", "one"])).expect("ASCII");
    verifier.verify_inrelease(message.as_bytes()).expect("good before");
    let signature = &message[message.find("-----BEGIN PGP SIGNATURE").expect("there")..];
    for (name, changed) in [
        ("stanza before", format!("Origin: evil\n\n{message}")),
        ("stanza behind", format!("{message}\nOrigin: evil\n")),
        ("message twice", message.repeat(2)),
        ("second signature", format!("{message}{signature}")),
        ("text between", message.replace("\n-----BEGIN PGP SIGNATURE", "\nOrigin: evil\n-----BEGIN PGP SIGNATURE")),
        ("NUL", message.replace("Suite", "Su\0ite")),
        ("changed", message.replace("stable", "stabel")),
        ("text in the header", message.replacen("Hash:", "Comment: Origin: evil\nHash:", 1)),
        ("header line of 8 MB", message.replacen("Hash: ", &format!("Hash: {}", "A".repeat(8 << 20)), 1)),
        ("11 MB", format!("{message}{}", "\n".repeat(11_000_000))),
        ("no signature", message[..message.find("-----BEGIN PGP SIGNATURE").expect("there")].to_owned()),
        (
            "empty signature",
            message.replace(signature, "-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n"),
        ),
        ("only the text", TEXT.to_owned()),
        ("login page", "<!DOCTYPE html><html>Please log in</html>".to_owned()),
        ("nothing", String::new()),
    ] {
        verifier.verify_inrelease(changed.as_bytes()).expect_err(name);
    }
    let error = verifier.verify_inrelease(message.replace("stable", "stabel").as_bytes()).expect_err("changed");
    assert!(matches!(error, SignatureError::Bad { .. }), "{error}");
    let page = verifier.verify_inrelease(b"<html>").expect_err("page").to_string();
    assert_eq!(page, "not a clear-signed file (starts with \"<html>\")");
}

#[test]
fn line_ends_of_windows_and_other_bytes_are_read_as_apt_does() {
    let lab = Lab::new();
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    let expected = verifier.verify_inrelease(&lab.clearsign(TEXT, &["-u", "one"])).expect("good").as_str().to_owned();
    let text_of_windows = TEXT.replace('\n', "\r\n");
    let signed = lab.clearsign(&text_of_windows, &["-u", "one"]);
    let sent = String::from_utf8(lab.clearsign(TEXT, &["-u", "one"])).expect("ASCII").replace('\n', "\r\n");
    for (name, message) in [("signed so", signed), ("sent so", sent.into_bytes())] {
        let text = verifier.verify_inrelease(&message).expect(name);
        assert_eq!(text.as_str().trim_end(), expected.trim_end(), "{name}");
        let changed = String::from_utf8(message).expect("ASCII").replace("stable", "stabel");
        assert!(matches!(verifier.verify_inrelease(changed.as_bytes()), Err(SignatureError::Bad { .. })), "{name}");
    }
    let signature = lab.gpg(&["-u", "one", "--armor", "--detach-sign", "--output", "-"], text_of_windows.as_bytes());
    let text = verifier.verify_detached(text_of_windows.as_bytes(), &signature).expect("detached");
    assert_eq!(text.as_str(), TEXT);
    verifier.verify_detached(TEXT.as_bytes(), &signature).expect_err("a detached signature covers line ends");
    assert!(is_same_text(text_of_windows.as_bytes(), &text) && !is_same_text(b"Suite: other\n", &text));
    assert_eq!(SignedText::trusted(b"Label: \xff\n").expect("bytes").as_str(), "Label: \u{fffd}\n");
}

#[test]
fn signed_data_that_is_not_clear_text() {
    let lab = Lab::new();
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    // A message that carries its own text, given as the detached signature of another text.
    let inline = lab.gpg(&["-u", "one", "--armor", "--sign", "--output", "-"], TEXT.as_bytes());
    let disguised = String::from_utf8(inline).expect("ASCII").replace("PGP MESSAGE", "PGP SIGNATURE");
    verifier.verify_detached(b"Origin: evil\n", disguised.as_bytes()).expect_err("not detached");
    // The same within the frame of a clear-signed message.
    let framed = format!("-----BEGIN PGP SIGNED MESSAGE-----\nHash: SHA512\n\nOrigin: evil\n{disguised}");
    verifier.verify_inrelease(framed.as_bytes()).expect_err("not the text");
}

#[test]
fn another_mirror_signs_with_another_key() {
    let lab = Lab::new();
    lab.key("archive", "never");
    let stranger = lab.key("stranger", "never");
    let verifier = lab.verifier(vec![lab.keyring("archive.gpg", &["archive"])]);
    let error = verifier.verify_inrelease(&lab.clearsign(TEXT, &["-u", "stranger"])).expect_err("stranger");
    assert!(matches!(&error, SignatureError::NoPublicKey { fingerprints } if *fingerprints == [stranger]), "{error}");
    // A further signer without a key of ours is fine.
    let both = lab.clearsign(TEXT, &["-u", "stranger", "-u", "archive"]);
    assert_eq!(verifier.verify_inrelease(&both).expect("one of two").signers().len(), 1);
}

#[test]
fn expired_and_revoked_keys_and_weak_digests() {
    let lab = Lab::new();
    lab.key("weak", "never");
    let keyring = lab.keyring("weak.gpg", &["weak"]);
    let message = lab.clearsign(TEXT, &["-u", "weak", "--digest-algo", "SHA1"]);
    let error = lab.verifier(vec![keyring]).verify_inrelease(&message).expect_err("SHA-1");
    assert!(matches!(error, SignatureError::WeakDigest { digest: "SHA1", .. }), "{error}");

    let old = ["--faked-system-time", "20200101T000000!"];
    lab.gpg(&[&old[..], &["--quick-generate-key", "old", "ed25519", "sign", "2020-02-01"]].concat(), b"");
    let message = lab.clearsign(TEXT, &[&old[..], &["-u", "old"]].concat());
    let keyring = lab.keyring("old.gpg", &["old"]);
    let error = lab.verifier(vec![keyring]).verify_inrelease(&message).expect_err("expired");
    assert!(matches!(error, SignatureError::Expired { .. }), "{error}");

    let revoked = lab.key("revoked", "never");
    let message = lab.clearsign(TEXT, &["-u", "revoked"]);
    let certificate =
        fs::read_to_string(lab.path(&format!("home/openpgp-revocs.d/{revoked}.rev"))).expect("made with the key");
    lab.gpg(&["--import"], certificate.replace(":-----BEGIN", "-----BEGIN").as_bytes());
    let error =
        lab.verifier(vec![lab.keyring("revoked.gpg", &["revoked"])]).verify_inrelease(&message).expect_err("revoked");
    assert!(matches!(error, SignatureError::Revoked { .. }), "{error}");
}

#[test]
fn what_stands_beside_a_good_signature() {
    let verifier = Verifier::new("/nowhere", Vec::new());
    let (good, other) = ("A".repeat(40), "0123456789ABCDEF");
    let judge = |line: &str| {
        let status = format!(
            "[GNUPG:] NEWSIG\n[GNUPG:] {line}\n[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG {} x\n\
             [GNUPG:] VALIDSIG {good} 2026-01-01 1767225600 0 4 0 22 10 01 {good}\n",
            &good[..16]
        );
        verifier.judge(&status, "", true)
    };
    // As apt decides: only a bad signature spoils a good one.
    for line in [
        format!("EXPKEYSIG {other} x"),
        format!("EXPSIG {other} x"),
        format!("REVKEYSIG {other} x"),
        format!("ERRSIG {other} 1 2 01 1700000000 5 -"),
        format!("ERRSIG {other} 1 10 01 1700000000 9 -"),
    ] {
        assert_eq!(judge(&line).map(|signers| signers.len()).ok(), Some(1), "{line}");
    }
    assert!(matches!(judge(&format!("BADSIG {other} x")), Err(SignatureError::Bad { .. })));
    let two_texts = "[GNUPG:] PLAINTEXT 74 0 \n[GNUPG:] PLAINTEXT 74 0 \n";
    assert!(matches!(verifier.judge(two_texts, "", true), Err(SignatureError::Tampered(_))));
    assert!(matches!(verifier.judge("", "", true), Err(SignatureError::NoSignature)));
}

#[test]
fn detached_signatures() {
    let lab = Lab::new();
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    let signature = lab.gpg(&["-u", "one", "--armor", "--detach-sign", "--output", "-"], TEXT.as_bytes());
    let signed = verifier.verify_detached(TEXT.as_bytes(), &signature).expect("good");
    assert_eq!(signed.as_str(), TEXT);
    let changed = TEXT.replace("stable", "stabel");
    assert!(matches!(verifier.verify_detached(changed.as_bytes(), &signature), Err(SignatureError::Bad { .. })));
    let appended = format!("{TEXT}\nOrigin: evil\n");
    assert!(matches!(verifier.verify_detached(appended.as_bytes(), &signature), Err(SignatureError::Bad { .. })));
    let binary = lab.gpg(&["-u", "one", "--detach-sign", "--output", "-"], TEXT.as_bytes());
    assert!(matches!(verifier.verify_detached(TEXT.as_bytes(), &binary), Err(SignatureError::Tampered(_))));
    verifier.verify_detached(TEXT.as_bytes(), b"").expect_err("empty");
}

#[test]
fn the_same_files_are_checked_once_unless_that_fails() {
    use std::os::unix::fs::PermissionsExt as _;
    let lab = Lab::new();
    let fingerprint = lab.key("one", "never");
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let (program, log) = (lab.path("gpgv-counted"), lab.path("runs"));
    let text = format!("#!/bin/sh\necho run >> {}\nexec gpgv \"$@\"\n", log.display());
    fs::write(&program, text).expect("script");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("script");
    let runs = || fs::read_to_string(&log).map_or(0, |log| log.lines().count());
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]).with_gpgv(program);
    std::thread::scope(|scope| {
        let checks: Vec<_> = (0..3).map(|_| scope.spawn(|| verifier.clone().verify_inrelease(&message))).collect();
        for check in checks {
            assert_eq!(check.join().expect("it ends").expect("good").as_str(), TEXT);
        }
    });
    assert_eq!(runs(), 1);
    let other = String::from_utf8(message.clone()).expect("ASCII").replace("Origin: Test", "Origin: Best");
    for _ in 0..2 {
        assert!(matches!(verifier.verify_inrelease(other.as_bytes()), Err(SignatureError::Bad { .. })));
    }
    assert_eq!(runs(), 3);
    let strict = verifier.with_fingerprints(vec!["A".repeat(40).parse().expect("fingerprint")]);
    let error = strict.verify_inrelease(&message).expect_err("another key");
    assert!(matches!(error, SignatureError::OtherKey { found } if found == [fingerprint.clone()]));
}

#[test]
fn trusted_is_explicit_and_marked() {
    let signed = SignedText::trusted(TEXT.as_bytes()).expect("text");
    assert!(!signed.is_verified());
    assert!(SignedText::trusted(&vec![b'a'; RELEASE_BYTES_MAX + 1]).is_err());
    let lab = Lab::new();
    lab.key("one", "never");
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    assert_eq!(SignedText::trusted(&message).expect("the text within").as_str(), TEXT);
    SignedText::trusted(&[&message[..], b"Origin: evil\n"].concat()).expect_err("bytes behind");
}

#[test]
fn a_missing_or_hanging_gpgv_is_told_apart() {
    use std::os::unix::fs::PermissionsExt as _;
    let lab = Lab::new();
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let error = verifier.clone().with_gpgv(lab.path("no-gpgv")).verify_inrelease(&message).expect_err("missing");
    assert!(matches!(error, SignatureError::GpgvMissing { .. }));
    let hanging = lab.path("gpgv-hangs");
    fs::write(&hanging, "#!/bin/sh\nexec sleep 60\n").expect("script");
    fs::set_permissions(&hanging, fs::Permissions::from_mode(0o755)).expect("script");
    let started = Instant::now();
    let hanging = verifier.clone().with_gpgv(hanging).with_time_limit(Duration::from_millis(200));
    let error = hanging.verify_inrelease(&message).expect_err("hangs");
    assert!(matches!(error, SignatureError::GpgvFailed { what: "did not finish in time", .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    // No file has a name, so that no directory is needed.
    Verifier::new(lab.path("nowhere"), verifier.keys.clone()).verify_inrelease(&message).expect("good");
}
