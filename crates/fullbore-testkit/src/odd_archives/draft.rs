//! An archive before it is written: fields, stanzas and files that an oddity changes.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use md5::{Digest as _, Md5};
use sha2::{Sha256, Sha512};

use crate::archive::ArchiveError;
use crate::compression::Form;
use crate::deb;
use crate::files::{at, replace};
use crate::signer::Signer;

/// Packages of every archive: so many that one odd stanza is less than a tenth.
pub const PACKAGES: usize = 12;

/// `Date` of the archives and times of their files.
pub(super) const DATE_UNIX_S: i64 = 1_750_000_000;

/// Field and value, in order.
pub(super) type Fields = Vec<(String, String)>;

/// A list of hashes in a Release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Algorithm {
    Md5,
    Sha256,
    Sha512,
}

impl Algorithm {
    /// The name of the list in a Release.
    pub(super) fn field(self) -> &'static str {
        match self {
            Algorithm::Md5 => "MD5Sum",
            Algorithm::Sha256 => "SHA256",
            Algorithm::Sha512 => "SHA512",
        }
    }

    pub(super) fn of(self, bytes: &[u8]) -> String {
        match self {
            Algorithm::Md5 => hex(&Md5::digest(bytes)),
            Algorithm::Sha256 => hex(&Sha256::digest(bytes)),
            Algorithm::Sha512 => hex(&Sha512::digest(bytes)),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The signed files of a suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signed {
    InRelease,
    Release,
    ReleaseGpg,
}

/// See the module.
pub(super) struct Draft {
    /// Directory of the Release, with a slash at its end; empty at the root.
    pub directory: String,
    /// Path of the index below it, without the ending of a compression.
    pub index: String,
    /// The Release without its lists.
    pub release: Fields,
    /// The index of packages.
    pub stanzas: Vec<Fields>,
    /// The forms in which the index is published and listed.
    pub forms: Vec<Form>,
    /// The lists of the Release.
    pub lists: Vec<Algorithm>,
    /// What the Release lists beside the index: path and content.
    pub listed: Vec<(String, Vec<u8>)>,
    /// All files but the index and the signed files, by path below the root.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The signed files that exist.
    pub signed: Vec<Signed>,
    /// The last change of the Release before it is signed.
    pub edit_release: fn(String) -> Vec<u8>,
    /// The last change of the clear-signed file.
    pub edit_inrelease: fn(Vec<u8>) -> Vec<u8>,
}

impl Draft {
    /// An ordinary suite below `dists/`.
    pub(super) fn suite(suite: &str) -> Draft {
        let mut draft = Draft::bare(&format!("dists/{suite}/"), "main/binary-amd64/Packages", "pool/main/");
        draft.set("Suite", suite);
        draft.set("Codename", suite);
        draft.set("Components", "main");
        draft.set("Architectures", "amd64");
        draft
    }

    /// A flat archive: index and packages in one directory.
    pub(super) fn flat(suite: &str) -> Draft {
        let directory = suite.trim_start_matches("./").trim_start_matches('/');
        Draft::bare(directory, "Packages", directory)
    }

    fn bare(directory: &str, index: &str, pool: &str) -> Draft {
        let mut draft = Draft {
            directory: directory.to_owned(),
            index: index.to_owned(),
            release: Vec::new(),
            stanzas: Vec::new(),
            forms: vec![Form::Plain, Form::Gz],
            lists: vec![Algorithm::Md5, Algorithm::Sha256],
            listed: Vec::new(),
            files: BTreeMap::new(),
            signed: vec![Signed::InRelease, Signed::Release, Signed::ReleaseGpg],
            edit_release: String::into_bytes,
            edit_inrelease: |bytes| bytes,
        };
        draft.set("Origin", "Odd");
        draft.set("Date", "Sun, 15 Jun 2025 15:06:40 UTC");
        for number in 1..=PACKAGES {
            let stanza = draft.package(&format!("odd-{number:02}"), "1.0", pool);
            draft.stanzas.push(stanza);
        }
        draft
    }

    /// Makes a package in directory `pool` and returns its stanza.
    pub(super) fn package(&mut self, name: &str, version: &str, pool: &str) -> Fields {
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: Odd <odd@example.org>\n\
             Description: an odd package\n"
        );
        let payload = format!("{name} {version} {pool}");
        let deb = deb::build(name, &control, payload.as_bytes(), DATE_UNIX_S).expect("tar and xz write into memory");
        let path = format!("{pool}{name}_{version}_amd64.deb");
        let mut stanza: Fields = control
            .lines()
            .filter_map(|line| line.split_once(": "))
            .map(|(field, value)| (field.to_owned(), value.to_owned()))
            .collect();
        for (field, value) in [
            ("Filename", path.clone()),
            ("Size", deb.len().to_string()),
            ("MD5sum", Algorithm::Md5.of(&deb)),
            ("SHA256", Algorithm::Sha256.of(&deb)),
        ] {
            stanza.push((field.to_owned(), value));
        }
        self.files.insert(path, deb);
        stanza
    }

    /// Sets a field of the Release.
    pub(super) fn set(&mut self, field: &str, value: &str) {
        set(&mut self.release, field, value);
    }

    /// Removes a field of the Release.
    pub(super) fn unset(&mut self, field: &str) {
        unset(&mut self.release, field);
    }

    /// The first stanza, the one that is odd where one is.
    pub(super) fn first(&mut self) -> &mut Fields {
        &mut self.stanzas[0]
    }

    /// The file of the first stanza.
    pub(super) fn first_deb(&self) -> Vec<u8> {
        self.files[value(&self.stanzas[0], "Filename")].clone()
    }

    /// Writes all file names of the index anew.
    pub(super) fn rename(&mut self, name: impl Fn(&str) -> String) {
        for stanza in &mut self.stanzas {
            let renamed = name(value(stanza, "Filename"));
            set(stanza, "Filename", &renamed);
        }
    }

    /// The index as text.
    pub(super) fn index_text(&self) -> String {
        let mut text = String::new();
        for stanza in &self.stanzas {
            for (field, value) in stanza {
                text.push_str(&format!("{field}: {value}\n"));
            }
            text.push('\n');
        }
        text
    }

    /// Adds a file below the directory of the Release, which lists it.
    pub(super) fn publish(&mut self, path: &str, bytes: &[u8]) {
        self.files.insert(format!("{}{path}", self.directory), bytes.to_vec());
        self.list(path, bytes);
    }

    /// Lists a file that does not exist.
    pub(super) fn list(&mut self, path: &str, bytes: &[u8]) {
        self.listed.push((path.to_owned(), bytes.to_vec()));
    }

    /// The index in this form, published under the ending of another.
    pub(super) fn index_as(&mut self, ending: &str, bytes: &[u8]) {
        let path = format!("{}{ending}", self.index);
        self.publish(&path, bytes);
    }

    /// Writes and signs all of it.
    pub(super) fn write(mut self, root: &Path, signer: &Signer) -> Result<(), ArchiveError> {
        let text = self.index_text();
        for form in std::mem::take(&mut self.forms) {
            let bytes = form.compress(text.as_bytes()).map_err(at(root))?;
            self.index_as(form.suffix(), &bytes);
        }
        let release = (self.edit_release)(self.release_text());
        for signed in &self.signed {
            let (name, bytes) = match signed {
                Signed::InRelease => ("InRelease", (self.edit_inrelease)(signer.clearsign(&release)?)),
                Signed::Release => ("Release", release.clone()),
                Signed::ReleaseGpg => ("Release.gpg", signer.detached(&release)?),
            };
            self.files.insert(format!("{}{name}", self.directory), bytes);
        }
        for (path, bytes) in &self.files {
            replace(&root.join(path), bytes, DATE_UNIX_S)?;
        }
        Ok(())
    }

    fn release_text(&self) -> String {
        let mut text: String = self.release.iter().map(|(field, value)| format!("{field}: {value}\n")).collect();
        for algorithm in &self.lists {
            text.push_str(&format!("{}:\n", algorithm.field()));
            for (path, bytes) in &self.listed {
                text.push_str(&format!(" {} {:>8} {path}\n", algorithm.of(bytes), bytes.len()));
            }
        }
        text
    }
}

/// The value of a field that is there.
pub(super) fn value<'a>(fields: &'a Fields, field: &str) -> &'a str {
    fields.iter().find(|(name, _)| name == field).map_or("", |(_, value)| value)
}

/// Sets a field, at its place or at the end.
pub(super) fn set(fields: &mut Fields, field: &str, value: &str) {
    match fields.iter_mut().find(|(name, _)| name == field) {
        Some((_, old)) => value.clone_into(old),
        None => fields.push((field.to_owned(), value.to_owned())),
    }
}

/// Removes a field.
pub(super) fn unset(fields: &mut Fields, field: &str) {
    fields.retain(|(name, _)| name != field);
}
