//! A small signed Debian archive in a directory, in several states.
//!
//! `DIR/T0`, `DIR/T1`, … are complete trees with `dists/` and `pool/`, equal files hard-linked,
//! so serving the next state means pointing a server at the next directory. The same settings
//! and seed give the same bytes, but for the key and the signatures. A list of every file the
//! indexes name comes with each state, for tests that check a mirror without reading the
//! indexes again.

use std::{collections::BTreeMap, io, path::PathBuf, sync::Arc};

pub use crate::builder::ArchiveBuilder;
use crate::{
    digest::Digest,
    signer::{Signer, SignerError},
};

/// Why an archive could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// No key or signature.
    #[error(transparent)]
    Signer(#[from] SignerError),
    /// A file or directory could not be written.
    #[error("{path}: {source}")]
    File {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A suite of the archive: `dists/CODENAME`, with a symlink `dists/SUITE`.
#[derive(Clone, Debug)]
pub struct SuiteSpec {
    /// The directory, for example `trixie`.
    pub codename: String,
    /// The alias, for example `stable`.
    pub suite: String,
    /// `Version` of the Release file.
    pub version: Option<String>,
    /// Share of the main suite's packages it holds; 1.0 makes it the main suite.
    pub share: f64,
    /// Seconds from `Date` to `Valid-Until`; no such field without it.
    pub valid_for_s: Option<i64>,
}

impl SuiteSpec {
    /// The main suite: every package.
    pub fn main(codename: &str, suite: &str) -> SuiteSpec {
        let version = Some("13.0".to_string());
        SuiteSpec { codename: codename.into(), suite: suite.into(), version, share: 1.0, valid_for_s: None }
    }

    /// A small suite beside the main one, as `trixie-updates`.
    pub fn updates(codename: &str, suite: &str) -> SuiteSpec {
        SuiteSpec { version: None, share: 0.1, ..SuiteSpec::main(codename, suite) }
    }

    /// As [`SuiteSpec::updates`], with `Valid-Until` so many seconds after `Date`.
    pub fn security(codename: &str, suite: &str, valid_for_s: i64) -> SuiteSpec {
        SuiteSpec { valid_for_s: Some(valid_for_s), ..SuiteSpec::updates(codename, suite) }
    }
}

/// What a file of the archive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileKind {
    /// Part of a source package.
    Source,
    /// A binary package.
    Deb,
    /// A package of the installer.
    Udeb,
    /// An installer image below `dists/`.
    Image,
}

/// A file that an index names.
#[derive(Clone, Debug)]
pub struct ArchiveFile {
    /// Beneath the archive's root.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Of its content.
    pub sha256: Digest,
    /// Codename of the suite whose index names it; a file in several suites is listed for each.
    /// `flat` for the flat repository.
    pub suite: String,
    /// `main`, `contrib`, …
    pub component: String,
    /// `source`, `all`, `amd64`, …
    pub architecture: String,
    /// What it is.
    pub kind: FileKind,
}

/// A file that a Release names.
#[derive(Clone, Debug)]
pub struct IndexFile {
    /// Codename of the suite.
    pub suite: String,
    /// Beneath `dists/CODENAME/`.
    pub path: String,
    /// Bytes.
    pub size: u64,
    /// Of its content.
    pub sha256: Digest,
    /// Whether it is on the server; the plain forms are listed and absent, as in Debian.
    pub present: bool,
}

/// One state of the archive.
#[derive(Debug)]
pub struct State {
    /// The tree to serve.
    pub root: PathBuf,
    /// `Date` of all its Release files.
    pub date_unix_s: i64,
    /// All files that the indexes name.
    pub files: Vec<ArchiveFile>,
    /// All files that the Release files name.
    pub indexes: Vec<IndexFile>,
}

impl State {
    /// The files chosen by the filter, each path once.
    pub fn select(&self, filter: impl Fn(&ArchiveFile) -> bool) -> BTreeMap<&str, &ArchiveFile> {
        self.files.iter().filter(|file| filter(file)).map(|file| (file.path.as_str(), file)).collect()
    }

    /// The files a mirror of these suites, components and architectures holds; with any
    /// architecture but `source` come the packages for `all`.
    pub fn selection(
        &self,
        suites: &[&str],
        components: &[&str],
        architectures: &[&str],
    ) -> BTreeMap<&str, &ArchiveFile> {
        let binaries = architectures.iter().any(|name| *name != "source");
        self.select(|file| {
            suites.contains(&file.suite.as_str())
                && components.contains(&file.component.as_str())
                && (architectures.contains(&file.architecture.as_str()) || (binaries && file.architecture == "all"))
        })
    }
}

/// A finished archive.
#[derive(Debug)]
pub struct Archive {
    /// The directory with `T0`, `T1`, … and the keys.
    pub directory: PathBuf,
    /// T0, T1, …
    pub states: Vec<State>,
    pub(crate) signer: Arc<Signer>,
    pub(crate) settings: ArchiveBuilder,
}

impl Archive {
    /// State `number`; panics when there is none, as only a wrong test asks for it.
    pub fn state(&self, number: usize) -> &State {
        &self.states[number]
    }

    /// Who signs it.
    pub fn signer(&self) -> &Arc<Signer> {
        &self.signer
    }

    /// The public key, for `--keyring`, `Signed-By` and `gpgv`.
    pub fn key(&self) -> PathBuf {
        self.directory.join("key.gpg")
    }

    /// How it was made.
    pub fn settings(&self) -> &ArchiveBuilder {
        &self.settings
    }
}
