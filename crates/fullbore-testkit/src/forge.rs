//! Signed indexes that lie: everything an attacker, a broken tool or a bad day does to `dists/`.
//!
//! A [`Forge`] works on one suite of one state, in place. Files are replaced, never written
//! over, so hard links in other states keep their content.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
};

use crate::{
    archive::{Archive, ArchiveError},
    compression::Form,
    digest::Digest,
    files::{at, link, release_date, replace},
    publish,
    signer::Signer,
};

/// Changes the indexes of one suite and signs them again.
#[derive(Debug)]
pub struct Forge<'a> {
    directory: PathBuf,
    signer: &'a Signer,
    date_unix_s: i64,
    forms: Vec<Form>,
}

impl Archive {
    /// A forge for a suite of a state, which signs with the archive's own key.
    pub fn forge(&self, state: usize, codename: &str) -> Forge<'_> {
        let state = self.state(state);
        Forge {
            directory: state.root.join("dists").join(codename),
            signer: self.signer(),
            date_unix_s: state.date_unix_s,
            forms: self.settings().forms.clone(),
        }
    }
}

impl<'a> Forge<'a> {
    /// Signs with another key from here on.
    pub fn signed_by(self, signer: &'a Signer) -> Forge<'a> {
        Forge { signer, ..self }
    }

    /// The text of `Release`.
    pub fn release(&self) -> Result<String, ArchiveError> {
        read(&self.directory.join("Release")).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Replaces the text of `Release` and signs it.
    pub fn set_release(&self, text: &str) -> Result<(), ArchiveError> {
        replace(&self.directory.join("Release"), text.as_bytes(), self.date_unix_s)?;
        publish::sign_directory(&self.directory, self.signer, self.date_unix_s)
    }

    /// Replaces a field of `Release` (adds it when it is not there) and signs.
    pub fn set_field(&self, name: &str, value: &str) -> Result<(), ArchiveError> {
        let text = self.release()?;
        let start = format!("{name}: ");
        let mut lines: Vec<String> =
            text.lines().filter(|line| !line.starts_with(&start)).map(ToString::to_string).collect();
        lines.insert(0, format!("{name}: {value}"));
        self.set_release(&(lines.join("\n") + "\n"))
    }

    /// `Date` becomes so many seconds older or (negative) newer.
    pub fn older_by_s(&self, seconds: i64) -> Result<(), ArchiveError> {
        self.set_field("Date", &release_date(self.date_unix_s - seconds))
    }

    /// `Valid-Until` lies at the given time.
    pub fn valid_until(&self, unix_s: i64) -> Result<(), ArchiveError> {
        self.set_field("Valid-Until", &release_date(unix_s))
    }

    /// `InRelease` as it is now.
    pub fn in_release(&self) -> Result<Vec<u8>, ArchiveError> {
        read(&self.directory.join("InRelease"))
    }

    /// Writes `InRelease` as given, without a signature of ours.
    pub fn set_in_release(&self, bytes: &[u8]) -> Result<(), ArchiveError> {
        replace(&self.directory.join("InRelease"), bytes, self.date_unix_s)
    }

    /// Unsigned text behind the signature (CVE-2013-1051, CVE-2016-1252).
    pub fn append_unsigned(&self, text: &str) -> Result<(), ArchiveError> {
        let mut bytes = self.in_release()?;
        bytes.extend_from_slice(text.as_bytes());
        self.set_in_release(&bytes)
    }

    /// Unsigned text before the signed message.
    pub fn prepend_unsigned(&self, text: &str) -> Result<(), ArchiveError> {
        let bytes = [text.as_bytes(), &self.in_release()?].concat();
        self.set_in_release(&bytes)
    }

    /// A second signed message, by another key, behind the first.
    pub fn append_signed_by(&self, signer: &Signer, text: &str) -> Result<(), ArchiveError> {
        let mut bytes = self.in_release()?;
        bytes.extend_from_slice(&signer.clearsign(text.as_bytes())?);
        self.set_in_release(&bytes)
    }

    /// Changes one byte of the signed text, not of the signature.
    pub fn flip_signed_byte(&self) -> Result<(), ArchiveError> {
        let mut bytes = self.in_release()?;
        let at = find(&bytes, b"Description: ").map_or(bytes.len() / 2, |start| start + 13);
        bytes[at] ^= 1;
        self.set_in_release(&bytes)
    }

    /// All line ends become CR LF.
    pub fn crlf(&self) -> Result<(), ArchiveError> {
        let text = String::from_utf8_lossy(&self.in_release()?).replace('\n', "\r\n");
        self.set_in_release(text.as_bytes())
    }

    /// A NUL behind the first field of `Release`, properly signed.
    pub fn nul(&self) -> Result<(), ArchiveError> {
        let text = self.release()?.replacen("Origin: Test", "Origin: Te\0st", 1);
        self.set_release(&text)
    }

    /// A first line of so many bytes before the message.
    pub fn long_first_line(&self, length: usize) -> Result<(), ArchiveError> {
        self.prepend_unsigned(&format!("{}\n", "x".repeat(length)))
    }

    /// An armour header (`Hash: …`) of so many bytes.
    pub fn long_armour_header(&self, length: usize) -> Result<(), ArchiveError> {
        let text = String::from_utf8_lossy(&self.in_release()?).into_owned();
        let line = format!("-----\nComment: {}\nHash:", "x".repeat(length));
        self.set_in_release(text.replacen("-----\nHash:", &line, 1).as_bytes())
    }

    /// Signs by a digest that nobody should accept any more, such as `SHA1`.
    pub fn weak_digest(&self, digest: &str) -> Result<(), ArchiveError> {
        let signed = self.signer.clearsign_with_digest(self.release()?.as_bytes(), digest)?;
        self.set_in_release(&signed)
    }

    /// Removes `InRelease`, so that `Release` and `Release.gpg` must do.
    pub fn remove_in_release(&self) -> Result<(), ArchiveError> {
        let path = self.directory.join("InRelease");
        fs::remove_file(&path).map_err(at(&path))
    }

    /// The text of an index, such as `main/binary-amd64/Packages`.
    pub fn index(&self, path: &str) -> Result<String, ArchiveError> {
        let mut text = String::new();
        for form in &self.forms {
            let file = self.directory.join(format!("{path}{}", form.suffix()));
            let Ok(bytes) = fs::read(&file) else { continue };
            let read = match form {
                Form::Plain => (&bytes[..]).read_to_string(&mut text),
                Form::Gz => flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text),
                Form::Xz => liblzma::read::XzDecoder::new(&bytes[..]).read_to_string(&mut text),
                Form::Zst => zstd::Decoder::new(&bytes[..]).and_then(|mut reader| reader.read_to_string(&mut text)),
                Form::Bz2 => bzip2::read::BzDecoder::new(&bytes[..]).read_to_string(&mut text),
            };
            read.map_err(at(&file))?;
            return Ok(text);
        }
        read(&self.directory.join(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Replaces an index in all its forms, corrects `Release`, and signs.
    pub fn set_index(&self, path: &str, text: &str) -> Result<(), ArchiveError> {
        let mut release = with_entry(&self.release()?, path, text.as_bytes());
        for form in self.forms.iter().filter(|form| **form != Form::Plain) {
            let name = format!("{path}{}", form.suffix());
            let bytes = form.compress(text.as_bytes()).map_err(at(Path::new(&name)))?;
            release = self.put(&release, &name, &bytes)?;
        }
        if self.directory.join(path).exists() {
            release = self.put(&release, path, text.as_bytes())?;
        }
        self.set_release(&release)
    }

    /// Replaces one form of an index by any bytes, corrects `Release`, and signs: a bomb, garbage.
    pub fn set_index_form(&self, path: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let release = self.put(&self.release()?, path, bytes)?;
        self.set_release(&release)
    }

    /// Adds or changes what `Release` says about a file, whatever is on the server, and signs.
    pub fn set_entry(&self, path: &str, size: u64, sha256: Digest) -> Result<(), ArchiveError> {
        let text = without_entry(&self.release()?, path);
        self.set_release(&format!("{text} {sha256} {size} {path}\n"))
    }

    fn put(&self, release: &str, path: &str, bytes: &[u8]) -> Result<String, ArchiveError> {
        let file = self.directory.join(path);
        replace(&file, bytes, self.date_unix_s)?;
        let by_hash = file.with_file_name("by-hash");
        if by_hash.exists() {
            link(&file, &by_hash.join("SHA256").join(Digest::of(bytes).to_string()))?;
        }
        Ok(with_entry(release, path, bytes))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ArchiveError> {
    fs::read(path).map_err(at(path))
}

fn find(text: &[u8], what: &[u8]) -> Option<usize> {
    text.windows(what.len()).position(|window| window == what)
}

fn without_entry(release: &str, path: &str) -> String {
    let end = format!(" {path}");
    let keep = |line: &&str| !(line.starts_with(' ') && line.trim_end().ends_with(&end));
    release.split_inclusive('\n').filter(keep).collect()
}

/// `Release` with the entry of a path corrected. The list of files is its last field.
fn with_entry(release: &str, path: &str, bytes: &[u8]) -> String {
    format!("{} {} {} {path}\n", without_entry(release, path), Digest::of(bytes), bytes.len())
}
