//! Signatures by `gpg` with a key that lives as long as the value does.
//!
//! The key's home is a temporary directory beneath `/tmp` whatever `TMPDIR` says, because
//! the agent's socket inside it may not have a name longer than 107 bytes.

use std::{
    io::{self, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// Why a key or a signature could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SignerError {
    /// gpg is not installed.
    #[error("gpg is not installed (Debian: apt-get install gpg); the test archives are signed by it")]
    Missing,
    /// gpg could not be run or ended badly.
    #[error("gpg {arguments}: {message}")]
    Failed {
        /// What gpg was told.
        arguments: String,
        /// What it said, or why it did not start.
        message: String,
    },
    /// No place for the key.
    #[error("no temporary directory for the key: {0}")]
    Home(#[source] io::Error),
}

/// Waits for the end of its input, which comes with the end of our process, however that ends. Then it ends the agent and
/// removes the key: a static value is never dropped.
const KEEPER: &str = r#"trap "" HUP INT TERM; cat; gpgconf --homedir "$1" --kill all; rm -rf "$1""#;

/// A throw-away ed25519 key without a passphrase.
#[derive(Debug)]
pub struct Signer {
    home: PathBuf,
    keeper: Child,
    fingerprint: String,
    /// The time of the key and of all its signatures, in seconds since 1970; the clock's without.
    time_unix_s: Option<i64>,
}

impl Signer {
    /// Makes a key under the given name. About 0.1 s.
    pub fn new(name: &str) -> Result<Signer, SignerError> {
        Signer::with_time(name, None)
    }

    /// Makes a key that signs as if the time stood still: a clock that is behind ours takes signatures of today for those
    /// of a false key.
    pub fn at(name: &str, time_unix_s: i64) -> Result<Signer, SignerError> {
        Signer::with_time(name, Some(time_unix_s))
    }

    fn with_time(name: &str, time_unix_s: Option<i64>) -> Result<Signer, SignerError> {
        let home = tempfile::Builder::new().prefix("fbkey.").tempdir_in("/tmp").map_err(SignerError::Home)?;
        let keeper = Command::new("sh")
            .args(["-c", KEEPER, "sh"])
            .arg(home.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(SignerError::Home)?;
        let mut signer = Signer { home: home.keep(), keeper, fingerprint: String::new(), time_unix_s };
        let identity = format!("{name} <{}@example.org>", name.replace(' ', "-").to_lowercase());
        let made = signer.gpg(&["--status-fd", "1", "--quick-gen-key", &identity, "ed25519", "sign", "never"], b"")?;
        let status = String::from_utf8_lossy(&made);
        signer.fingerprint = status
            .split_whitespace()
            .find(|word| word.len() == 40 && word.bytes().all(|b| b.is_ascii_hexdigit()))
            .unwrap_or_default()
            .to_string();
        Ok(signer)
    }

    /// GnuPG's home with the secret key, for programs that sign by themselves.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The key's fingerprint, 40 hex digits.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The public key as `Signed-By` and gpgv take it (binary).
    pub fn public_key(&self) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--export"], b"")
    }

    /// The public key in ASCII armour, for an inline `Signed-By`.
    pub fn public_key_armored(&self) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--armor", "--export"], b"")
    }

    /// The secret key in ASCII armour, for programs that change an archive later.
    pub fn secret_key_armored(&self) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--armor", "--export-secret-keys"], b"")
    }

    /// The text with a clear signature around it: what `InRelease` is.
    pub fn clearsign(&self, text: &[u8]) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--digest-algo", "SHA512", "--clearsign"], text)
    }

    /// A clear signature by a weak digest (SHA-1, or what the name says).
    pub fn clearsign_with_digest(&self, text: &[u8], digest: &str) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--digest-algo", digest, "--clearsign"], text)
    }

    /// An armoured signature beside the text: what `Release.gpg` is.
    pub fn detached(&self, text: &[u8]) -> Result<Vec<u8>, SignerError> {
        self.gpg(&["--digest-algo", "SHA512", "--armor", "--detach-sign"], text)
    }

    fn gpg(&self, arguments: &[&str], input: &[u8]) -> Result<Vec<u8>, SignerError> {
        let failed = |message: String| SignerError::Failed { arguments: arguments.join(" "), message };
        // The input is a file: with two pipes a long text could block both sides for ever.
        let mut text = tempfile::tempfile_in(&self.home).map_err(SignerError::Home)?;
        text.write_all(input).and_then(|()| text.seek(SeekFrom::Start(0))).map_err(SignerError::Home)?;
        let output = Command::new("gpg")
            .arg("--homedir")
            .arg(&self.home)
            .args(["--batch", "--quiet", "--no-tty", "--no-options", "--allow-weak-digest-algos"])
            .args(["--pinentry-mode", "loopback", "--passphrase", ""])
            .args(self.time_unix_s.map(|time| format!("--faked-system-time={time}!")))
            .args(arguments)
            .stdin(text)
            .output()
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => SignerError::Missing,
                _ => failed(error.to_string()),
            })?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_string()));
        }
        Ok(output.stdout)
    }
}

impl Drop for Signer {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // What it could not do is no worse for us.
        let _ = self.keeper.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signer_signs_exports_its_key_and_leaves_nothing() {
        let signer = Signer::new("Signer test").unwrap();
        let text = String::from_utf8(signer.clearsign(b"Suite: stable\n").unwrap()).unwrap();
        assert!(text.starts_with("-----BEGIN PGP SIGNED MESSAGE-----"));
        assert!(text.contains("Suite: stable\n"));
        assert!(signer.detached(b"a\n").unwrap().starts_with(b"-----BEGIN PGP SIGNATURE-----"));
        assert!(!signer.public_key().unwrap().is_empty());
        assert_eq!(signer.fingerprint().len(), 40);
        let home = signer.home().to_owned();
        assert!(home.is_dir());
        drop(signer);
        assert!(!home.exists(), "nothing is left of the key");
    }
}
