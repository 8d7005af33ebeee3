//! Small archives with the oddities of real ones: dates, paths, stanzas, names and forms as scripts and vendors write them.
//!
//! Each is a signed suite of a dozen packages with one thing that is unusual, wrong or missing. Its doc line names a
//! report of such an archive as `owner/repo#number`, where one is known. A test runs APT and fullbore over all of them ([`all`]).

mod dates;
mod draft;
mod flat;
mod forms;
mod hashes;
mod missing;
mod names;
mod paths;
mod release;
mod stanzas;

use std::collections::BTreeSet;
use std::path::Path;

use crate::archive::ArchiveError;
use crate::signer::Signer;

use draft::Draft;
pub use draft::PACKAGES;

/// What a client trusts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// The key that signs.
    Key,
    /// Everything: `Trusted: yes`.
    Everything,
}

/// One archive, and how a client asks for it.
#[derive(Clone, Copy, Debug)]
pub struct OddArchive {
    /// Its name in tables and messages.
    pub name: &'static str,
    /// The suite as a source names it; with a slash at the end for a flat archive.
    pub suite: &'static str,
    /// The components as a source names them.
    pub components: &'static str,
    /// The architectures as a source names them.
    pub architectures: &'static str,
    /// What a client trusts.
    pub trust: Trust,
    change: fn(&mut Draft),
}

impl OddArchive {
    /// The suite `stable`, component main, amd64.
    const fn usual(name: &'static str, change: fn(&mut Draft)) -> OddArchive {
        OddArchive { name, suite: "stable", components: "main", architectures: "amd64", trust: Trust::Key, change }
    }

    const fn suite(self, suite: &'static str) -> OddArchive {
        OddArchive { suite, ..self }
    }

    const fn components(self, components: &'static str) -> OddArchive {
        OddArchive { components, ..self }
    }

    const fn architectures(self, architectures: &'static str) -> OddArchive {
        OddArchive { architectures, ..self }
    }

    const fn trusted(self) -> OddArchive {
        OddArchive { trust: Trust::Everything, ..self }
    }

    /// Writes the archive below `directory`.
    ///
    /// # Errors
    /// No signature, or a file that cannot be written.
    pub fn write(&self, directory: &Path, signer: &Signer) -> Result<(), ArchiveError> {
        self.draft().write(directory, signer)
    }

    /// The names of the packages in its index.
    pub fn names(&self) -> BTreeSet<String> {
        let name = |(field, value): &(String, String)| field.eq_ignore_ascii_case("Package").then(|| value.clone());
        self.draft().stanzas.iter().filter_map(|stanza| stanza.iter().find_map(name)).collect()
    }

    fn draft(&self) -> Draft {
        let flat = self.suite.ends_with('/');
        let mut draft = if flat { Draft::flat(self.suite) } else { Draft::suite(self.suite) };
        (self.change)(&mut draft);
        draft
    }
}

/// All odd archives, by subject.
pub fn all() -> Vec<OddArchive> {
    [dates::ALL, paths::ALL, stanzas::ALL, hashes::ALL, names::ALL, missing::ALL, forms::ALL, release::ALL, flat::ALL]
        .concat()
}
