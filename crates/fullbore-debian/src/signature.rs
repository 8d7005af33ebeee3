//! From bytes of the network to text that somebody we trust has signed.
//!
//! [`SignedText`] can only be made here: by `gpgv`, which checks an `InRelease`
//! (or `Release` with `Release.gpg`) against given keyrings, or by the explicit
//! route for sources marked `Trusted: yes`. The frame around the text is
//! checked first (`clearsign`), `gpgv` writes the text it verified to a file,
//! and that text, and no other, is handed out.

use std::fs::{self, DirBuilder};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::clearsign::{self, FrameFault};
pub use crate::gpgv_status::Signer;
use crate::gpgv_status::{self, Standing};
use crate::keys::{Fingerprint, KeySource};

/// Largest `InRelease` or `Release`: what apt allows (`Acquire::MaxReleaseFileSize`). Debian's has 150 KB.
pub const RELEASE_BYTES_MAX: usize = 10_000_000;

/// Largest detached signature; one of Debian's, by three keys, has 3 KB.
pub const SIGNATURE_BYTES_MAX: usize = 1 << 20;

/// Largest keyring that is read to find out its form; Debian's whole keyring has 60 KB.
const KEYRING_BYTES_MAX: u64 = 16 << 20;

/// How long `gpgv` may take. It needs 20 ms; more than this means that something hangs.
pub const GPGV_TIME_LIMIT: Duration = Duration::from_secs(30);

/// What is read of `gpgv`'s status and messages; a signature makes a few hundred bytes.
const GPGV_OUTPUT_BYTES_MAX: u64 = 1 << 20;

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

/// Checks signatures with `gpgv` against a set of keys.
#[derive(Debug, Clone)]
pub struct Verifier {
    gpgv: PathBuf,
    scratch: PathBuf,
    keys: Vec<KeySource>,
    fingerprints: Vec<Fingerprint>,
    time_limit: Duration,
}

impl Verifier {
    /// `scratch` is a directory that only we write to; files for `gpgv` stand there for the
    /// moment of a check, in a subdirectory of mode 0700.
    pub fn new(scratch: impl Into<PathBuf>, keys: Vec<KeySource>) -> Self {
        Verifier {
            gpgv: PathBuf::from("gpgv"),
            scratch: scratch.into(),
            keys,
            fingerprints: Vec::new(),
            time_limit: GPGV_TIME_LIMIT,
        }
    }

    /// Another `gpgv` than the one that `PATH` gives.
    #[must_use]
    pub fn with_gpgv(mut self, path: impl Into<PathBuf>) -> Self {
        self.gpgv = path.into();
        self
    }

    /// Accepts only these keys out of the keyrings (`Signed-By` with fingerprints); an empty
    /// list accepts all of them.
    #[must_use]
    pub fn with_fingerprints(mut self, fingerprints: Vec<Fingerprint>) -> Self {
        self.fingerprints = fingerprints;
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
        let message = bounded_text(bytes)?;
        let expected = clearsign::text_within(message).map_err(|fault| match fault {
            FrameFault::NotClearsigned => SignatureError::NotClearsigned { start: message.chars().take(60).collect() },
            other => other.into(),
        })?;
        let room = Room::create(&self.scratch)?;
        let input = room.write("InRelease", bytes)?;
        let output = room.path.join("text");
        let signers = self.run(&room, Some(&output), &[&input])?;
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
        let text = bounded_text(release)?.to_owned();
        if signature.len() > SIGNATURE_BYTES_MAX {
            let bytes = signature.len();
            return Err(SignatureError::TooLarge { what: "signature", bytes, limit: SIGNATURE_BYTES_MAX });
        }
        let armour = std::str::from_utf8(signature)
            .map_err(|_| SignatureError::Tampered("the signature is not armoured".to_owned()))?;
        clearsign::check_detached(armour)?;
        let room = Room::create(&self.scratch)?;
        let data = room.write("Release", release)?;
        let signature = room.write("Release.gpg", signature)?;
        let signers = self.run(&room, None, &[&signature, &data])?;
        Ok(SignedText { text, signers })
    }

    /// Runs `gpgv` and judges what it says; returns the good signers.
    fn run(&self, room: &Room, output: Option<&Path>, files: &[&Path]) -> Result<Vec<Signer>, SignatureError> {
        if self.keys.is_empty() {
            return Err(SignatureError::NoKeyring);
        }
        let mut command = Command::new(&self.gpgv);
        // Its own home, so that the user's ~/.gnupg/trustedkeys.gpg counts for nothing.
        command.arg("--homedir").arg(&room.path).args(["--status-fd", "1", "--ignore-time-conflict"]);
        for weak in ["MD5", "SHA1", "RIPEMD160"] {
            command.args(["--weak-digest", weak]);
        }
        for (number, key) in self.keys.iter().enumerate() {
            command.arg("--keyring").arg(room.keyring(number, key)?);
        }
        if let Some(output) = output {
            command.arg("--output").arg(output);
        }
        command.arg("--").args(files);
        let (status, messages) = run_bounded(command, &self.gpgv, self.time_limit)?;
        self.judge(&status, &messages, output.is_some())
    }

    fn judge(&self, status: &str, messages: &str, clearsigned: bool) -> Result<Vec<Signer>, SignatureError> {
        let report = gpgv_status::read(status);
        // A "detached" signature that brings its own text is not one.
        if report.texts > usize::from(clearsigned) {
            return Err(SignatureError::Tampered("more than one text in the signed file".to_owned()));
        }
        let keys = |wanted: &dyn Fn(&Standing) -> bool| -> Vec<String> {
            report.signatures.iter().filter(|s| wanted(&s.standing)).map(|s| s.key.clone()).collect()
        };
        let bad = keys(&|standing| *standing == Standing::Bad);
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
            if let Standing::Weak(digest) = signature.standing {
                return Err(SignatureError::WeakDigest { digest, keys: vec![signature.key.clone()] });
            }
        }
        let revoked = keys(&|standing| *standing == Standing::Revoked);
        if !revoked.is_empty() {
            return Err(SignatureError::Revoked { keys: revoked });
        }
        let expired = keys(&|standing| *standing == Standing::Expired);
        if !expired.is_empty() {
            return Err(SignatureError::Expired { keys: expired });
        }
        let unknown = keys(&|standing| *standing == Standing::NoKey);
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

/// A directory of mode 0700 that goes when dropped.
struct Room {
    path: PathBuf,
}

impl Room {
    fn create(scratch: &Path) -> Result<Room, SignatureError> {
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        // A leftover of a killed process with our number must not stand in the way.
        for _ in 0..1000 {
            let number = COUNTER.fetch_add(1, Ordering::Relaxed);
            let path = scratch.join(format!("verify-{}-{number}", std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                // gpgv reads a relative keyring path as one in its home directory.
                Ok(()) => {
                    let path = fs::canonicalize(&path).map_err(|source| SignatureError::Scratch { path, source })?;
                    return Ok(Room { path });
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(SignatureError::Scratch { path: scratch.to_owned(), source }),
            }
        }
        let source = io::Error::from(io::ErrorKind::AlreadyExists);
        Err(SignatureError::Scratch { path: scratch.to_owned(), source })
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, SignatureError> {
        let path = self.path.join(name);
        fs::write(&path, bytes).map_err(|source| SignatureError::Scratch { path: path.clone(), source })?;
        Ok(path)
    }

    /// A keyring as `gpgv` reads it: binary, with an absolute path.
    fn keyring(&self, number: usize, key: &KeySource) -> Result<PathBuf, SignatureError> {
        let (name, text) = match key {
            KeySource::Inline(text) => ("Signed-By".to_owned(), text.lines().map(unfold).collect::<Vec<_>>().join("\n")),
            KeySource::File(path) => {
                let name = path.display().to_string();
                let fault = |error: io::Error| SignatureError::Keyring { keyring: name.clone(), what: error.to_string() };
                let path = fs::canonicalize(path).map_err(fault)?;
                let mut bytes = Vec::new();
                fs::File::open(&path)
                    .and_then(|file| file.take(KEYRING_BYTES_MAX).read_to_end(&mut bytes))
                    .map_err(fault)?;
                if !bytes.windows(15).any(|window| window == b"-----BEGIN PGP ") {
                    if bytes.is_empty() {
                        return Err(SignatureError::Keyring { keyring: name, what: "is empty".to_owned() });
                    }
                    return Ok(path);
                }
                (name, String::from_utf8_lossy(&bytes).into_owned())
            }
        };
        let bytes = clearsign::dearmour(&text, "PGP PUBLIC KEY BLOCK")
            .map_err(|what| SignatureError::Keyring { keyring: name, what: what.to_owned() })?;
        self.write(&format!("keyring-{number}.gpg"), &bytes)
    }
}

/// A line of a key within a control file: ` .` stands for an empty one.
fn unfold(line: &str) -> &str {
    match line.trim() {
        "." => "",
        line => line,
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        // What cannot be removed is a few KB in our own directory.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Runs to the end or to the time limit; returns status and messages, each bounded.
fn run_bounded(mut command: Command, gpgv: &Path, limit: Duration) -> Result<(String, String), SignatureError> {
    let deadline = Instant::now() + limit;
    command.env("LC_ALL", "C").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|source| SignatureError::GpgvMissing { path: gpgv.to_owned(), source })?;
    let status = read_in_thread(child.stdout.take());
    let messages = read_in_thread(child.stderr.take());
    let left = || deadline.saturating_duration_since(Instant::now());
    let outputs = status.recv_timeout(left()).and_then(|status| Ok((status, messages.recv_timeout(left())?)));
    let Ok((status, messages)) = outputs else {
        stop(&mut child);
        return Err(SignatureError::GpgvFailed { what: "did not finish in time", messages: format!("limit {limit:?}") });
    };
    // Its outputs are closed, so it is about to exit.
    let exit = loop {
        match child.try_wait() {
            Ok(Some(exit)) => break exit,
            Ok(None) if left().is_zero() => {
                stop(&mut child);
                return Err(SignatureError::GpgvFailed { what: "did not exit in time", messages: shorten(&messages) });
            }
            Ok(None) => std::thread::sleep(Duration::from_millis(1)),
            Err(source) => return Err(SignatureError::GpgvMissing { path: gpgv.to_owned(), source }),
        }
    };
    // 1: a bad signature; 2: also "no key for a further signer". The status lines say which.
    match exit.code() {
        Some(0..=2) => Ok((status, messages)),
        _ => Err(SignatureError::GpgvFailed { what: "failed", messages: shorten(&messages) }),
    }
}

fn stop(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn read_in_thread(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // What was read before an error still counts; the rest is missing and fails the check.
            let _ = stream.take(GPGV_OUTPUT_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Origin: Test\nSuite: stable\nDescription: a\n- dashed\nSHA256:\n";

    /// A GnuPG home with keys made for the test, and a scratch directory.
    struct Lab {
        directory: tempfile::TempDir,
    }

    impl Lab {
        /// `None` on a machine without gpg and gpgv; `script/test` installs them.
        fn new() -> Option<Lab> {
            let found = |program| Command::new(program).arg("--version").output().is_ok();
            if !(found("gpg") && found("gpgv")) {
                return None;
            }
            let directory = tempfile::Builder::new().prefix("fb").tempdir().expect("temporary directory");
            for name in ["home", "scratch"] {
                DirBuilder::new().mode(0o700).create(directory.path().join(name)).expect("directory");
            }
            Some(Lab { directory })
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
        let Some(lab) = Lab::new() else { return };
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
        let Some(lab) = Lab::new() else { return };
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
    fn m1_bytes_outside_the_signature() {
        let Some(lab) = Lab::new() else { return };
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
            ("CRLF", message.replace('\n', "\r\n")),
            ("NUL", message.replace("Suite", "Su\0ite")),
            ("changed", message.replace("stable", "stabel")),
            ("text in the header", message.replacen("Hash:", "Comment: Origin: evil\nHash:", 1)),
            ("header line of 8 MB", message.replacen("Hash: ", &format!("Hash: {}", "A".repeat(8 << 20)), 1)),
            ("11 MB", format!("{message}{}", "\n".repeat(11_000_000))),
            ("no signature", message[..message.find("-----BEGIN PGP SIGNATURE").expect("there")].to_owned()),
            ("empty signature", message.replace(signature, "-----BEGIN PGP SIGNATURE-----\n\n-----END PGP SIGNATURE-----\n")),
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
    fn m1_signed_data_that_is_not_clear_text() {
        let Some(lab) = Lab::new() else { return };
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
    fn m2_another_mirror_signs_with_another_key() {
        let Some(lab) = Lab::new() else { return };
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
        let Some(lab) = Lab::new() else { return };
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
        let certificate = fs::read_to_string(lab.path(&format!("home/openpgp-revocs.d/{revoked}.rev"))).expect("made with the key");
        lab.gpg(&["--import"], certificate.replace(":-----BEGIN", "-----BEGIN").as_bytes());
        let error = lab.verifier(vec![lab.keyring("revoked.gpg", &["revoked"])]).verify_inrelease(&message).expect_err("revoked");
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
        let Some(lab) = Lab::new() else { return };
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
    fn m6_trusted_is_explicit_and_marked() {
        let signed = SignedText::trusted(TEXT.as_bytes()).expect("text");
        assert!(!signed.is_verified());
        assert!(SignedText::trusted(b"\xff").is_err());
        assert!(SignedText::trusted(&vec![b'a'; RELEASE_BYTES_MAX + 1]).is_err());
        let Some(lab) = Lab::new() else { return };
        lab.key("one", "never");
        let message = lab.clearsign(TEXT, &["-u", "one"]);
        assert_eq!(SignedText::trusted(&message).expect("the text within").as_str(), TEXT);
        SignedText::trusted(&[&message[..], b"Origin: evil\n"].concat()).expect_err("bytes behind");
    }

    #[test]
    fn a_missing_or_hanging_gpgv_is_told_apart() {
        use std::os::unix::fs::PermissionsExt as _;
        let Some(lab) = Lab::new() else { return };
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
        let error = Verifier::new(lab.path("nowhere"), verifier.keys.clone()).verify_inrelease(&message).expect_err("scratch");
        assert!(matches!(error, SignatureError::Scratch { .. }));
    }
}
