//! Values of settings: path patterns, formats of indexes, kinds of files.

use std::str::FromStr;

use regex::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

/// An invalid regular expression, with the message of the regex crate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PatternError(pub String);

/// A regular expression for paths of an archive.
///
/// ```
/// let filter: fullbore_mirror::Filter = "-dbg(sym)?_".parse()?;
/// assert!(filter.0.is_match("pool/main/h/hello/hello-dbg_1_amd64.deb"));
/// # Ok::<(), fullbore_mirror::PatternError>(())
/// ```
#[derive(Debug, Clone, Deserialize)]
#[serde(try_from = "String")]
pub struct Filter(pub Regex);

/// Maximum size of a compiled pattern, the default of the regex crate. It is set here so that a pattern from a settings
/// file cannot take all memory.
const PATTERN_BYTES: usize = 10 << 20;

impl FromStr for Filter {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        RegexBuilder::new(text)
            .size_limit(PATTERN_BYTES)
            .build()
            .map(Filter)
            .map_err(|error| PatternError(format!("not a regular expression: {error}")))
    }
}

impl TryFrom<String> for Filter {
    type Error = PatternError;

    fn try_from(text: String) -> Result<Self, PatternError> {
        text.parse()
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

/// A compression format of a published index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum IndexFormat {
    /// Not compressed.
    Plain,
    /// xz, Debian's usual format
    Xz,
    /// gzip
    Gz,
    /// Zstandard
    Zst,
    /// bzip2
    Bz2,
}

/// Kinds of files that can be left out of a mirror.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Contents indexes: which package has which file
    Contents,
    /// Translated descriptions
    Translations,
    /// AppStream metadata and icons
    Dep11,
    /// Indexes for command-not-found
    Cnf,
    /// Packages of the installer (udeb)
    Udeb,
    /// Installer images
    Installer,
    /// Index differences (*.diff/Index and the patches it names)
    Pdiff,
}
