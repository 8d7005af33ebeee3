//! Signatures of keys that `gpg` creates for the test, in a separate home directory. Each case runs with every
//! verifier.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::process::{Command, Stdio};
use std::time::Instant;

use fullbore_testkit::process::write_program;

use super::*;

const TEXT: &str = "Origin: Test\nSuite: stable\nDescription: a\n- dashed\nSHA256:\n";

const KEY_BLOCK: &str = "-----BEGIN PGP PUBLIC KEY BLOCK-----\n\nYWJj\n-----END PGP PUBLIC KEY BLOCK-----\n";
const SIGNATURE_BLOCK: &str = "-----BEGIN PGP SIGNATURE-----\n\nYWJj\n-----END PGP SIGNATURE-----\n";

/// One test per case and verifier. script/test-apt runs them with those of other releases.
macro_rules! with_every_verifier {
    ($($case:ident)*) => {
        with_verifier!(gpgv, Program::Gpgv("gpgv".into()), $($case)*);
        with_verifier!(sqv, Program::Sqv("sqv".into()), $($case)*);
    };
}

macro_rules! with_verifier {
    ($module:ident, $program:expr, $($case:ident)*) => {
        mod $module {
            use super::*;

            $(
                #[test]
                fn $case() {
                    super::$case(&Lab::new($program));
                }
            )*
        }
    };
}

with_every_verifier! {
    a_good_signature_gives_the_text
    keys_of_every_form_are_taken
    keys_of_several_keyrings_count
    the_primary_key_names_its_subkeys
    bytes_outside_the_signature_are_refused
    line_ends_of_windows_change_no_clear_text
    white_space_at_the_ends_of_lines_is_not_signed
    signed_data_that_is_not_clear_text_is_refused
    another_mirror_signs_with_another_key
    weak_digests_are_refused
    a_key_that_expired_before_it_signed_is_refused
    a_signature_of_tomorrow_is_left_to_the_verifier
    revoked_keys_are_refused
    detached_signatures_cover_every_byte
    the_same_files_are_checked_once_unless_that_fails
    a_missing_or_hanging_verifier_is_told_apart
}

/// A GnuPG home with keys made for the test, a scratch directory, and the verifier.
struct Lab {
    program: Program,
    directory: tempfile::TempDir,
}

impl Lab {
    /// Fails on a machine without gpg and the verifier; `script/test` installs them.
    #[track_caller]
    fn new(program: Program) -> Lab {
        for path in [Path::new("gpg"), program.path()] {
            let found = Command::new(path).arg("--version").output().is_ok();
            assert!(found, "{0} is missing: apt-get install {0}", path.display());
        }
        let directory = tempfile::Builder::new().prefix("fb").tempdir().expect("temporary directory");
        for name in ["home", "scratch"] {
            DirBuilder::new().mode(0o700).create(directory.path().join(name)).expect("directory");
        }
        Lab { program, directory }
    }

    fn is_gpgv(&self) -> bool {
        matches!(self.program, Program::Gpgv(_))
    }

    /// The same kind of program at another path.
    fn program_at(&self, path: PathBuf) -> Program {
        if self.is_gpgv() { Program::Gpgv(path) } else { Program::Sqv(path) }
    }

    /// A shell script in place of the verifier.
    fn script(&self, name: &str, text: &str) -> Program {
        let path = self.path(name);
        write_program(&path, &format!("#!/bin/sh\n{text}\n"));
        self.program_at(path)
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
        Verifier::new(self.path("scratch"), keys).with_program(self.program.clone())
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

fn a_good_signature_gives_the_text(lab: &Lab) {
    let fingerprint = lab.key("one", "never");
    let keyring = lab.keyring("one.gpg", &["one"]);
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let signed = lab.verifier(vec![keyring]).verify_inrelease(&message).expect("good");
    assert_eq!(signed.as_str(), TEXT);
    assert!(signed.is_verified());
    assert_eq!(signed.signers()[0].primary, fingerprint);
}

fn keys_of_every_form_are_taken(lab: &Lab) {
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
        assert!(matches!(error, SignatureError::OtherKey { found, .. } if found == [fingerprint.clone()]));
    }
    let missing = KeySource::File(lab.path("nowhere.gpg"));
    assert!(matches!(lab.verifier(vec![missing]).verify_inrelease(&message), Err(SignatureError::Keyring { .. })));
    assert!(matches!(lab.verifier(vec![]).verify_inrelease(&message), Err(SignatureError::NoKeyring)));
    let broken = KeySource::Inline("-----BEGIN PGP PUBLIC KEY BLOCK-----\nabc\n".to_owned());
    assert!(matches!(lab.verifier(vec![broken]).verify_inrelease(&message), Err(SignatureError::Keyring { .. })));
    let keybox = lab.path("one.kbx");
    lab.gpg(&["--no-default-keyring", "--keyring", keybox.to_str().expect("UTF-8"), "--import"], armour.as_bytes());
    let result = lab.verifier(vec![KeySource::File(keybox)]).verify_inrelease(&message);
    match lab.is_gpgv() {
        true => assert_eq!(result.expect("gpgv reads a keybox").as_str(), TEXT),
        false => assert!(matches!(result, Err(SignatureError::Keybox { .. }))),
    }
}

fn keys_of_several_keyrings_count(lab: &Lab) {
    for name in ["one", "two", "three"] {
        lab.key(name, "never");
    }
    let keyrings = [lab.keyring("first.gpg", &["one"]), lab.keyring("second.gpg", &["two", "three"])];
    for signer in ["one", "two", "three"] {
        let message = lab.clearsign(TEXT, &["-u", signer]);
        assert_eq!(lab.verifier(keyrings.to_vec()).verify_inrelease(&message).expect(signer).signers().len(), 1);
        let alone = lab.verifier(keyrings[..1].to_vec()).verify_inrelease(&message);
        assert_eq!(alone.is_ok(), signer == "one", "{signer}");
    }
    let all = lab.clearsign(TEXT, &["-u", "one", "-u", "two", "-u", "three"]);
    assert_eq!(lab.verifier(keyrings.to_vec()).verify_inrelease(&all).expect("three").signers().len(), 3);
}

/// A signing subkey, as archives use: `Signed-By` may name the primary key. sqv does not name the subkey, so with it
/// `Signed-By` cannot select one, and nothing is accepted in its place.
fn the_primary_key_names_its_subkeys(lab: &Lab) {
    lab.gpg(&["--quick-generate-key", "archive", "ed25519", "cert", "never"], b"");
    let fingerprints = || {
        let listing = lab.gpg(&["--with-colons", "--list-keys", "archive"], b"");
        let listing = String::from_utf8(listing).expect("UTF-8");
        let lines = listing.lines().filter(|line| line.starts_with("fpr"));
        lines.filter_map(|line| line.split(':').nth(9).map(str::to_owned)).collect::<Vec<_>>()
    };
    lab.gpg(&["--quick-add-key", &fingerprints()[0], "ed25519", "sign", "never"], b"");
    let [primary, subkey] = fingerprints().try_into().expect("two keys");
    let message = lab.clearsign(TEXT, &["-u", "archive"]);
    let verifier = lab.verifier(vec![lab.keyring("archive.gpg", &["archive"])]);
    let signed = verifier.verify_inrelease(&message).expect("by the subkey");
    assert_eq!(signed.signers()[0].primary, primary);
    assert_eq!(signed.signers()[0].fingerprint, lab.is_gpgv().then(|| subkey.clone()));
    for (named, accepted) in [
        (primary.clone(), true),
        (format!("{primary}!"), false),
        (subkey.clone(), lab.is_gpgv()),
        (format!("{subkey}!"), lab.is_gpgv()),
    ] {
        let strict = verifier.clone().with_fingerprints(vec![named.parse().expect("fingerprint")]);
        match strict.verify_inrelease(&message) {
            Ok(_) => assert!(accepted, "{named}"),
            Err(SignatureError::OtherKey { primary_only, .. }) => {
                assert_eq!((accepted, primary_only), (false, !lab.is_gpgv()), "{named}");
            }
            Err(error) => panic!("{named}: {error}"),
        }
    }
}

fn bytes_outside_the_signature_are_refused(lab: &Lab) {
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

/// They are no part of what a clear-text signature covers.
fn line_ends_of_windows_change_no_clear_text(lab: &Lab) {
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
}

/// A clear-text signature does not cover it, so it must not reach the text that is parsed.
fn white_space_at_the_ends_of_lines_is_not_signed(lab: &Lab) {
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    for (text, signed) in
        [("Origin: Test \t\nSuite: stable\n", "Origin: Test\nSuite: stable\n"), ("a\n\n\n", "a\n\n\n")]
    {
        let message = String::from_utf8(lab.clearsign(text, &["-u", "one"])).expect("ASCII");
        for message in [message.clone(), message.replace("Suite: stable", "Suite: stable \t ")] {
            let verified = verifier.verify_inrelease(message.as_bytes()).expect("good");
            let lines = |text: &str| text.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>();
            assert_eq!(lines(verified.as_str()), lines(signed));
        }
        verifier.verify_inrelease(message.replacen("\n\n", "\n\n\n", 1).as_bytes()).expect_err("an empty line more");
    }
}

fn signed_data_that_is_not_clear_text_is_refused(lab: &Lab) {
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

fn another_mirror_signs_with_another_key(lab: &Lab) {
    lab.key("archive", "never");
    let stranger = lab.key("stranger", "never");
    let verifier = lab.verifier(vec![lab.keyring("archive.gpg", &["archive"])]);
    let error = verifier.verify_inrelease(&lab.clearsign(TEXT, &["-u", "stranger"])).expect_err("stranger");
    assert!(matches!(&error, SignatureError::NoPublicKey { fingerprints } if *fingerprints == [stranger]), "{error}");
    // A further signer without a key of ours is fine.
    let both = lab.clearsign(TEXT, &["-u", "stranger", "-u", "archive"]);
    assert_eq!(verifier.verify_inrelease(&both).expect("one of two").signers().len(), 1);
}

fn weak_digests_are_refused(lab: &Lab) {
    lab.key("weak", "never");
    let verifier = lab.verifier(vec![lab.keyring("weak.gpg", &["weak"])]);
    for weak in ["MD5", "SHA1", "RIPEMD160"] {
        let message = lab.clearsign(TEXT, &["-u", "weak", "--digest-algo", weak]);
        let error = verifier.verify_inrelease(&message).expect_err(weak);
        assert!(matches!(error, SignatureError::WeakDigest { digest, .. } if digest == weak), "{weak}: {error}");
        let arguments = ["-u", "weak", "--digest-algo", weak, "--armor", "--detach-sign", "--output", "-"];
        let detached = lab.gpg(&arguments, TEXT.as_bytes());
        let error = verifier.verify_detached(TEXT.as_bytes(), &detached).expect_err(weak);
        assert!(matches!(error, SignatureError::WeakDigest { digest, .. } if digest == weak), "{weak}: {error}");
    }
}

fn a_key_that_expired_before_it_signed_is_refused(lab: &Lab) {
    let (then, later) = (["--faked-system-time", "20200101T000000!"], ["--faked-system-time", "20200301T000000!"]);
    lab.gpg(&[&then[..], &["--quick-generate-key", "old", "ed25519", "sign", "2020-02-01"]].concat(), b"");
    let before = lab.clearsign(TEXT, &[&then[..], &["-u", "old"]].concat());
    let verifier = lab.verifier(vec![lab.keyring("old.gpg", &["old"])]);
    // The archive's own copy of the key is valid for longer than ours.
    let listing = String::from_utf8(lab.gpg(&["--with-colons", "--list-keys", "old"], b"")).expect("UTF-8");
    let fingerprint = listing.lines().find(|line| line.starts_with("fpr")).and_then(|line| line.split(':').nth(9));
    lab.gpg(&[&later[..], &["--quick-set-expire", fingerprint.expect("a key"), "0"]].concat(), b"");
    let after = lab.clearsign(TEXT, &[&later[..], &["-u", "old"]].concat());
    let error = verifier.verify_inrelease(&after).expect_err("expired when it signed");
    assert!(matches!(error, SignatureError::Expired { .. }), "{error}");
    // The programs differ, and so does apt with them: sqv asks whether the key was valid when it signed.
    match (lab.is_gpgv(), verifier.verify_inrelease(&before)) {
        (true, Err(SignatureError::Expired { .. })) | (false, Ok(_)) => {}
        (_, other) => panic!("{other:?}"),
    }
}

/// The caller compares the `Date` of the Release with the clock. sqv refuses by itself.
fn a_signature_of_tomorrow_is_left_to_the_verifier(lab: &Lab) {
    lab.key("one", "never");
    let tomorrow = jiff::Timestamp::now().as_second() + 86_400;
    let message = lab.clearsign(TEXT, &["--faked-system-time", &format!("{tomorrow}!"), "-u", "one"]);
    match lab.verifier(vec![lab.keyring("one.gpg", &["one"])]).verify_inrelease(&message) {
        Ok(_) => assert!(lab.is_gpgv()),
        Err(error) => assert!(!lab.is_gpgv() && error.to_string().contains("Not live until"), "{error}"),
    }
}

fn revoked_keys_are_refused(lab: &Lab) {
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
fn only_a_bad_signature_spoils_a_good_one() {
    let (good, other) = ("A".repeat(40), "0123456789ABCDEF");
    let judge = |line: &str| {
        let status = format!(
            "[GNUPG:] NEWSIG\n[GNUPG:] {line}\n[GNUPG:] NEWSIG\n[GNUPG:] GOODSIG {} x\n\
             [GNUPG:] VALIDSIG {good} 2026-01-01 1767225600 0 4 0 22 10 01 {good}\n",
            &good[..16]
        );
        super::gpgv::judge(&status, "", true)
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
    assert!(matches!(super::gpgv::judge(two_texts, "", true), Err(SignatureError::Tampered(_))));
    assert!(matches!(super::gpgv::judge("", "", true), Err(SignatureError::NoSignature)));
}

fn detached_signatures_cover_every_byte(lab: &Lab) {
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
    // Several armoured blocks in one file, as some archives have: each counts.
    lab.key("stranger", "never");
    let other = lab.gpg(&["-u", "stranger", "--armor", "--detach-sign", "--output", "-"], TEXT.as_bytes());
    for both in [[&signature[..], &other[..]].concat(), [&other[..], &signature[..]].concat()] {
        assert_eq!(verifier.verify_detached(TEXT.as_bytes(), &both).expect("one of two").signers().len(), 1);
    }
    // As apt with the same program: for gpgv, a bad signature spoils a good one.
    let bad = lab.gpg(&["-u", "one", "--armor", "--detach-sign", "--output", "-"], changed.as_bytes());
    match verifier.verify_detached(TEXT.as_bytes(), &[&bad[..], &signature[..]].concat()) {
        Ok(_) => assert!(!lab.is_gpgv()),
        Err(error) => assert!(lab.is_gpgv() && matches!(error, SignatureError::Bad { .. }), "{error}"),
    }
    let error = verifier.verify_detached(TEXT.as_bytes(), &other).expect_err("a stranger's alone");
    assert!(matches!(error, SignatureError::NoPublicKey { .. }), "{error}");
}

fn the_same_files_are_checked_once_unless_that_fails(lab: &Lab) {
    let fingerprint = lab.key("one", "never");
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let log = lab.path("runs");
    let text = format!("echo run >> {}\nexec {} \"$@\"", log.display(), lab.program.path().display());
    let counted = lab.script("counted", &text);
    let runs = || fs::read_to_string(&log).map_or(0, |log| log.lines().count());
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]).with_program(counted);
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
    assert!(matches!(error, SignatureError::OtherKey { found, .. } if found == [fingerprint]));
}

#[test]
fn trusted_is_explicit_and_marked() {
    let signed = SignedText::trusted(TEXT.as_bytes()).expect("text");
    assert!(!signed.is_verified());
    assert!(SignedText::trusted(&vec![b'a'; RELEASE_BYTES_MAX + 1]).is_err());
    let lab = Lab::new(Program::Gpgv("gpgv".into()));
    lab.key("one", "never");
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    assert_eq!(SignedText::trusted(&message).expect("the text within").as_str(), TEXT);
    SignedText::trusted(&[&message[..], b"Origin: evil\n"].concat()).expect_err("bytes behind");
}

fn a_missing_or_hanging_verifier_is_told_apart(lab: &Lab) {
    lab.key("one", "never");
    let verifier = lab.verifier(vec![lab.keyring("one.gpg", &["one"])]);
    let message = lab.clearsign(TEXT, &["-u", "one"]);
    let absent = lab.program_at(lab.path("absent"));
    let error = verifier.clone().with_program(absent.clone()).verify_inrelease(&message).expect_err("missing");
    assert!(error.is_missing_program() && matches!(error, SignatureError::NoProgram { .. }));
    // The next program is used only if the first is missing, not if it refuses the file.
    let mut two = verifier.clone().with_program(absent);
    two.programs.push(lab.program.clone());
    two.verify_inrelease(&message).expect("good");
    two.programs[0] = lab.script("refuses", "exit 1");
    let error = two.clone().afresh().verify_inrelease(&message).expect_err("refused");
    assert!(!error.is_missing_program(), "{error}");
    let hanging = lab.script("hangs", "exec sleep 60");
    let started = Instant::now();
    let hanging = verifier.clone().with_program(hanging).with_time_limit(Duration::from_millis(200));
    let error = hanging.verify_inrelease(&message).expect_err("hangs");
    assert!(matches!(error, SignatureError::VerifierFailed { what: "did not finish in time", .. }), "{error}");
    let endless = verifier.clone().with_program(lab.script("endless", "exec yes"));
    let error = endless.with_time_limit(Duration::from_secs(8)).verify_inrelease(&message).expect_err("endless");
    assert!(!error.is_missing_program() && error.to_string().len() < 500, "{error}");
    assert!(started.elapsed() < Duration::from_secs(10));
    // No file has a name, so that no directory is needed.
    let nowhere = Verifier::new(lab.path("nowhere"), verifier.keys.clone()).with_program(lab.program.clone());
    nowhere.verify_inrelease(&message).expect("good");
}

#[test]
fn without_any_verifier_both_are_named() {
    let absent = [Program::Gpgv("/nowhere/gpgv".into()), Program::Sqv("/nowhere/sqv".into())];
    let mut verifier = Verifier::new("/nowhere", vec![KeySource::Inline(KEY_BLOCK.to_owned())]);
    assert_eq!(verifier.programs, [Program::Gpgv("gpgv".into()), Program::Sqv("sqv".into())]);
    verifier.programs = absent.to_vec();
    let error = verifier.verify_detached(b"x", SIGNATURE_BLOCK.as_bytes()).expect_err("no program");
    assert_eq!(error.to_string(), "cannot verify signatures: found no /nowhere/gpgv and no /nowhere/sqv");
}
