//! Sources files of apt (sources.list(5)): deb822 `.sources` and one-line `.list`.
//!
//! Both forms are parsed to [`ArchiveSource`]. Options that do not matter for a mirror are listed in `ignored`, so that
//! the program can report them. Options that change what is trusted or fetched are supported or refused.

use std::path::PathBuf;

use thiserror::Error;

use crate::deb822::{Deb822Error, Limits, Stanza, Stanzas};
use crate::keys::{Fingerprint, KeySource};
use crate::path::{self, ArchivePath};

/// Longest one-line entry, in bytes: a URI, options, components. A guess with room.
const LINE_BYTES_MAX: usize = 16 << 10;

/// Error in a sources file. Line numbers start at 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SourcesListError {
    /// The file is not a control file.
    #[error(transparent)]
    Syntax(#[from] Deb822Error),
    /// A field or word is missing.
    #[error("line {line}: no {what}")]
    Missing {
        /// Number of the line, or of the first line of the stanza.
        line: u64,
        /// Name of the missing part.
        what: &'static str,
    },
    /// A field or option has an invalid value.
    #[error("line {line}: {option} {value:?}: {what}")]
    Invalid {
        /// Number of the line, or of the first line of the stanza.
        line: u64,
        /// Name of the field or option, as in deb822.
        option: &'static str,
        /// The value.
        value: String,
        /// The fault.
        what: String,
    },
}

/// `By-Hash`: whether clients request indexes by hash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ByHash {
    /// If the `Release` has `Acquire-By-Hash: yes` (the default).
    Announced,
    /// Never.
    No,
    /// Always.
    Force,
}

/// One suite, or a flat repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Suite {
    /// Below `dists/`, such as `bookworm` or `buster/updates`.
    Distribution(ArchivePath),
    /// Flat repository, written with a slash at the end: indexes and packages are in this directory; `None` is the
    /// directory of the URI.
    Flat(Option<ArchivePath>),
}

impl Suite {
    /// Directory of the `Release`, relative to the URI; empty for the directory of the URI.
    pub fn release_directory(&self) -> String {
        match self {
            Suite::Distribution(name) => format!("dists/{name}"),
            Suite::Flat(directory) => directory.as_ref().map_or_else(String::new, ArchivePath::to_string),
        }
    }
}

/// A list that replaces its default or changes it (`Architectures-Add`, `arch+=`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListOption {
    /// Words that replace the default list (`Option: a b`).
    pub set: Option<Vec<String>>,
    /// Words that are added to the list (`Option-Add`).
    pub add: Vec<String>,
    /// Words that are removed from the list (`Option-Remove`).
    pub remove: Vec<String>,
}

impl ListOption {
    /// Applies the option to a default.
    pub fn resolve(&self, default: &[String]) -> Vec<String> {
        let mut list: Vec<String> = self.set.clone().unwrap_or_else(|| default.to_vec());
        list.extend(self.add.iter().cloned());
        let mut seen = std::collections::HashSet::new();
        list.retain(|word| !self.remove.contains(word) && seen.insert(word.clone()));
        list
    }
}

/// Value of `Signed-By`: keyrings and fingerprints (sources.list(5)).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SignedBy {
    /// Keyrings and keys; if empty, the default keyrings contain the keys of `fingerprints`.
    pub keys: Vec<KeySource>,
    /// Fingerprints of accepted keys; empty accepts all keys.
    pub fingerprints: Vec<Fingerprint>,
}

/// One entry of a sources file: each type for each suite at each URI.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchiveSource {
    /// Number of the first line of the entry.
    pub line: u64,
    /// Whether `deb` is set, so that binary packages are wanted.
    pub binary: bool,
    /// Whether `deb-src` is set, so that source packages are wanted.
    pub source: bool,
    /// URIs as written, with `$(ARCH)` replaced.
    pub uris: Vec<String>,
    /// Suites or flat repositories of this source, at least one.
    pub suites: Vec<Suite>,
    /// Suites as written: apt derives file names from them (`./` and `/` are the same suite).
    pub suite_names: Vec<String>,
    /// Components; empty if and only if all suites are flat.
    pub components: Vec<String>,
    /// Option `Architectures`: changes of the default list.
    pub architectures: ListOption,
    /// Option `Languages`: changes of the default list.
    pub languages: ListOption,
    /// `Signed-By`; `None` means the default keyrings.
    pub signed_by: Option<SignedBy>,
    /// `Trusted`: `Some(true)` accepts a `Release` without a signature, `Some(false)` never does.
    pub trusted: Option<bool>,
    /// Option `By-Hash`: whether indexes are requested by hash.
    pub by_hash: ByHash,
    /// `Check-Valid-Until`: `no` accepts an expired `Release`. It overrides apt's configuration.
    pub check_valid_until: Option<bool>,
    /// `Check-Date`: whether dates are checked against the clock. `no` disables `Check-Valid-Until` as well.
    pub check_date: Option<bool>,
    /// `Date-Max-Future`: how far the `Date` may be ahead of the clock, in seconds.
    pub date_max_future_s: Option<u64>,
    /// Option `Valid-Until-Max`, in seconds after `Date` of the Release.
    pub valid_until_max_s: Option<u64>,
    /// Option `Valid-Until-Min`, in seconds after `Date` of the Release.
    pub valid_until_min_s: Option<u64>,
    /// `Targets`: kinds of indexes (`Packages`, `Contents-deb`, …) that an update fetches.
    pub targets: ListOption,
    /// `PDiffs`: whether an update uses patches.
    pub pdiffs: Option<bool>,
    /// Options with the value yes or no that are not in sources.list(5). apt treats such an option as a switch for the
    /// kind of index with this name, here in lower case.
    pub switches: Vec<(String, bool)>,
    /// Options that fullbore ignores: unknown ones, and options that only apt uses.
    pub ignored: Vec<String>,
}

impl ArchiveSource {
    fn new(line: u64) -> Self {
        ArchiveSource {
            line,
            binary: false,
            source: false,
            uris: Vec::new(),
            suites: Vec::new(),
            suite_names: Vec::new(),
            components: Vec::new(),
            architectures: ListOption::default(),
            languages: ListOption::default(),
            signed_by: None,
            trusted: None,
            by_hash: ByHash::Announced,
            check_valid_until: None,
            check_date: None,
            date_max_future_s: None,
            valid_until_max_s: None,
            valid_until_min_s: None,
            targets: ListOption::default(),
            pdiffs: None,
            switches: Vec::new(),
            ignored: Vec::new(),
        }
    }

    fn set_type(&mut self, word: &str) -> Result<(), SourcesListError> {
        match word {
            "deb" => self.binary = true,
            "deb-src" => self.source = true,
            _ => {
                return Err(invalid(self.line, "Types", word, "is neither deb nor deb-src"));
            }
        }
        Ok(())
    }

    fn add_suite(&mut self, word: &str) -> Result<(), SourcesListError> {
        let fault = |error: path::PathError| invalid(self.line, "Suites", word, &error.fault.to_string());
        let suite = match word.strip_suffix('/') {
            Some("" | ".") => Suite::Flat(None),
            Some(directory) => {
                Suite::Flat(Some(ArchivePath::parse_spelled(directory.trim_matches('/')).map_err(fault)?))
            }
            None => Suite::Distribution(ArchivePath::parse(word).map_err(fault)?),
        };
        self.suites.push(suite);
        self.suite_names.push(word.to_owned());
        Ok(())
    }

    /// Sets an option by its deb822 name in lower case. `value` has no comments.
    fn set_option(&mut self, name: &str, value: &str) -> Result<(), SourcesListError> {
        let line = self.line;
        let words = || split_list(value);
        let seconds = |option| {
            value.parse::<u64>().map(Some).map_err(|_| invalid(line, option, value, "is not a number of seconds"))
        };
        match name {
            "architectures" => self.architectures.set = Some(words()),
            "architectures-add" => self.architectures.add = words(),
            "architectures-remove" => self.architectures.remove = words(),
            "languages" => self.languages.set = Some(words()),
            "languages-add" => self.languages.add = words(),
            "languages-remove" => self.languages.remove = words(),
            "signed-by" => self.signed_by = Some(signed_by(line, value)?),
            "trusted" => self.trusted = Some(boolean(line, "Trusted", value)?),
            "by-hash" if value.eq_ignore_ascii_case("force") => self.by_hash = ByHash::Force,
            "by-hash" => {
                self.by_hash = if boolean(line, "By-Hash", value)? { ByHash::Announced } else { ByHash::No };
            }
            "check-valid-until" => self.check_valid_until = Some(boolean(line, "Check-Valid-Until", value)?),
            "check-date" => self.check_date = Some(boolean(line, "Check-Date", value)?),
            "date-max-future" => self.date_max_future_s = seconds("Date-Max-Future")?,
            "valid-until-max" => self.valid_until_max_s = seconds("Valid-Until-Max")?,
            "valid-until-min" => self.valid_until_min_s = seconds("Valid-Until-Min")?,
            "targets" => self.targets.set = Some(words()),
            "targets-add" => self.targets.add = words(),
            "targets-remove" => self.targets.remove = words(),
            "pdiffs" => self.pdiffs = Some(boolean(line, "PDiffs", value)?),
            _ => match yes_or_no(value) {
                Some(on) => self.switches.push((name.to_owned(), on)),
                None => self.ignored.push(name.to_owned()),
            },
        }
        Ok(())
    }

    /// Inserts the architecture and checks that the fields fit together.
    fn finish(mut self, architecture: &str) -> Result<Self, SourcesListError> {
        let missing = |what| SourcesListError::Missing { line: self.line, what };
        if !self.binary && !self.source {
            return Err(missing("type (deb or deb-src)"));
        }
        if self.uris.is_empty() {
            return Err(missing("URI"));
        }
        if self.suites.is_empty() {
            return Err(missing("suite"));
        }
        let flat = self.suites.iter().filter(|suite| matches!(suite, Suite::Flat(_))).count();
        if flat == 0 && self.components.is_empty() {
            return Err(missing("component (a flat repository's suite ends with a slash)"));
        }
        if flat > 0 && !self.components.is_empty() {
            let components = self.components.join(" ");
            return Err(invalid(self.line, "Components", &components, "a suite that ends with a slash has none"));
        }
        for uri in &mut self.uris {
            *uri = with_architecture(uri, architecture);
            if uri.chars().any(char::is_control) {
                return Err(invalid(self.line, "URIs", uri, "has a control character"));
            }
        }
        for component in &self.components {
            path::check(component).map_err(|fault| invalid(self.line, "Components", component, &fault.to_string()))?;
        }
        Ok(self)
    }
}

/// Parses a deb822 `.sources` file; `architecture` replaces `$(ARCH)`. Stanzas with `Enabled: no` are skipped.
///
/// ```
/// use fullbore_debian::sources_list::parse_deb822;
///
/// let text = "Types: deb\nURIs: http://deb.example.org/debian\nSuites: bookworm\nComponents: main\n";
/// let sources = parse_deb822(text, "amd64")?;
/// assert_eq!(sources[0].uris, ["http://deb.example.org/debian"]);
/// assert_eq!(sources[0].suites[0].release_directory(), "dists/bookworm");
/// # Ok::<(), fullbore_debian::sources_list::SourcesListError>(())
/// ```
///
/// # Errors
/// A [`SourcesListError`] with the line: `Syntax` if the file is malformed, `Missing` if a required field or word is
/// absent, `Invalid` if a value is not valid.
pub fn parse_deb822(text: &str, architecture: &str) -> Result<Vec<ArchiveSource>, SourcesListError> {
    let mut stanzas = Stanzas::new(text.as_bytes(), Limits::SOURCES_LIST);
    let mut sources = Vec::new();
    while let Some(stanza) = stanzas.next()? {
        if let Some(source) = from_stanza(&stanza, architecture)? {
            sources.push(source);
        }
    }
    Ok(sources)
}

fn from_stanza(stanza: &Stanza<'_>, architecture: &str) -> Result<Option<ArchiveSource>, SourcesListError> {
    let line = stanza.line();
    if let Some(enabled) = stanza.get_text("Enabled")?
        && !boolean(line, "Enabled", enabled)?
    {
        return Ok(None);
    }
    let mut source = ArchiveSource::new(line);
    let mut seen = std::collections::HashSet::new();
    for (name, value) in stanza.fields() {
        let name = String::from_utf8_lossy(name).to_ascii_lowercase();
        let value = without_comments(stanza.decode("value", value)?);
        if !seen.insert(name.clone()) {
            return Err(invalid(line, "field", &name, "stands twice in one stanza"));
        }
        match name.as_str() {
            "types" => split_list(&value).iter().try_for_each(|word| source.set_type(word))?,
            "uris" => source.uris = split_list(&value),
            "suites" => {
                let value = with_architecture(&value, architecture);
                split_list(&value).iter().try_for_each(|word| source.add_suite(word))?;
            }
            "components" => source.components = split_list(&value),
            "enabled" | "x-repolib-name" | "description" => {}
            _ => source.set_option(&name, value.trim())?,
        }
    }
    source.finish(architecture).map(Some)
}

/// Parses a one-line `.list` file; `architecture` replaces `$(ARCH)`.
///
/// # Errors
/// A [`SourcesListError`] with the line: `Missing` if a required word is absent, `Invalid` if an option or value is not
/// valid.
pub fn parse_one_line(text: &str, architecture: &str) -> Result<Vec<ArchiveSource>, SourcesListError> {
    let mut sources = Vec::new();
    for (content, line) in text.lines().zip(1u64..) {
        if content.len() > LINE_BYTES_MAX {
            return Err(Deb822Error::TooLarge { line, what: "line", limit: LINE_BYTES_MAX }.into());
        }
        let content = content.split('#').next().unwrap_or_default().trim();
        if !content.is_empty() {
            sources.push(from_line(content, line, architecture)?);
        }
    }
    Ok(sources)
}

fn from_line(content: &str, line: u64, architecture: &str) -> Result<ArchiveSource, SourcesListError> {
    let mut source = ArchiveSource::new(line);
    let (kind, mut rest) = content.split_once([' ', '\t']).unwrap_or((content, ""));
    source.set_type(kind)?;
    rest = rest.trim_start();
    if let Some(options) = rest.strip_prefix('[') {
        let (options, behind) =
            options.split_once(']').ok_or_else(|| invalid(line, "options", options, "have no closing bracket"))?;
        for option in quoted_words(options) {
            set_short_option(&mut source, &option)?;
        }
        rest = behind;
    }
    let words = quoted_words(rest);
    let mut words = words.iter();
    source.uris.extend(words.next().cloned());
    if let Some(suite) = words.next() {
        source.add_suite(&with_architecture(suite, architecture))?;
    }
    source.components = words.cloned().collect();
    source.finish(architecture)
}

/// `arch=amd64,i386`, `arch+=`, `arch-=`, `signed-by=`, …
fn set_short_option(source: &mut ArchiveSource, option: &str) -> Result<(), SourcesListError> {
    let Some((name, value)) = option.split_once('=') else {
        return Err(invalid(source.line, "option", option, "is not name=value"));
    };
    // apt refuses both. An empty list of architectures would fetch no index.
    if name.is_empty() || value.is_empty() {
        let missing = if name.is_empty() { "has no name" } else { "has no value" };
        return Err(invalid(source.line, "option", option, missing));
    }
    let (name, suffix) = match (name.strip_suffix('+'), name.strip_suffix('-')) {
        (Some(name), _) => (name, "-add"),
        (_, Some(name)) => (name, "-remove"),
        _ => (name, ""),
    };
    let name = name.to_ascii_lowercase();
    let name = match name.as_str() {
        "arch" => "architectures",
        "lang" => "languages",
        "target" => "targets",
        other => other,
    };
    source.set_option(&format!("{name}{suffix}"), value)
}

/// Splits text into words; `[…]` and `"…"` keep blanks (`cdrom:[Debian 12]/`). As in libapt (`ParseQuoteWord`), `%xx`
/// in a word is a byte: an address with `%2F` is written with `%252F`.
fn quoted_words(text: &str) -> Vec<String> {
    let (mut words, mut word) = (Vec::new(), String::new());
    let (mut brackets, mut quoted) = (false, false);
    for c in text.chars() {
        match c {
            '"' => quoted = !quoted,
            '[' | ']' => {
                brackets = c == '[';
                word.push(c);
            }
            c if c.is_whitespace() && !brackets && !quoted => {
                if !word.is_empty() {
                    words.push(decoded(&std::mem::take(&mut word)));
                }
            }
            c => word.push(c),
        }
    }
    if !word.is_empty() {
        words.push(decoded(&word));
    }
    words
}

/// Decodes each `%xx` to its byte.
fn decoded(word: &str) -> String {
    let (mut bytes, mut rest) = (Vec::with_capacity(word.len()), word.as_bytes());
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..2).filter(|digits| *first == b'%' && digits.iter().all(u8::is_ascii_hexdigit));
        let byte = digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = &rest[if byte.is_some() { 3 } else { 1 }..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn signed_by(line: u64, value: &str) -> Result<SignedBy, SourcesListError> {
    let mut signed_by = SignedBy::default();
    if value.contains("-----BEGIN PGP PUBLIC KEY BLOCK-----") {
        signed_by.keys.push(KeySource::Inline(value.to_owned()));
        return Ok(signed_by);
    }
    for word in split_list(value) {
        if word.starts_with('/') {
            signed_by.keys.push(KeySource::File(PathBuf::from(word)));
        } else {
            let fingerprint = word
                .parse()
                .map_err(|_| invalid(line, "Signed-By", &word, "is neither an absolute path nor a fingerprint"))?;
            signed_by.fingerprints.push(fingerprint);
        }
    }
    if signed_by == SignedBy::default() {
        return Err(invalid(line, "Signed-By", value, "names no key"));
    }
    Ok(signed_by)
}

/// Parses apt's words for yes and no.
fn boolean(line: u64, option: &'static str, value: &str) -> Result<bool, SourcesListError> {
    yes_or_no(value).ok_or_else(|| invalid(line, option, value, "is neither yes nor no"))
}

fn yes_or_no(value: &str) -> Option<bool> {
    match value.to_ascii_lowercase().as_str() {
        "yes" | "true" | "with" | "on" | "enable" | "1" => Some(true),
        "no" | "false" | "without" | "off" | "disable" | "0" => Some(false),
        _ => None,
    }
}

fn invalid(line: u64, option: &'static str, value: &str, what: &str) -> SourcesListError {
    SourcesListError::Invalid { line, option, value: value.chars().take(200).collect(), what: what.to_owned() }
}

fn without_comments(value: &str) -> String {
    value.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
}

fn split_list(value: &str) -> Vec<String> {
    value.split(|c: char| c.is_whitespace() || c == ',').filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

fn with_architecture(text: &str, architecture: &str) -> String {
    text.replace("$(ARCH)", architecture)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(text: &str) -> ArchiveSource {
        let mut sources = parse_deb822(text, "amd64").expect("valid");
        assert_eq!(sources.len(), 1);
        sources.remove(0)
    }

    fn names(source: &ArchiveSource) -> Vec<String> {
        source.suites.iter().map(Suite::release_directory).collect()
    }

    const DEBIAN: &str = "# written by the installer\n\nTypes: deb deb-src\nURIs: http://deb.example.org/debian/\n# kept: https://old.example.org\n  http://mirror.example.net/debian\nSuites: bookworm bookworm-updates\nComponents: main contrib\n# non-free\n non-free-firmware\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n";

    #[test]
    fn one_line_entries_decode_what_is_quoted_by_percent_as_apt_does() {
        let line = "deb http://us:se%252F%2540k@h/de%62 x%79 main%zz\n";
        let source = &parse_one_line(line, "amd64").expect("valid")[0];
        assert_eq!(source.uris, ["http://us:se%2F%40k@h/deb"]);
        assert_eq!(
            (names(source), source.components.clone()),
            (vec!["dists/xy".to_owned()], vec!["main%zz".to_owned()])
        );
        let same = one("Types: deb\nURIs: http://h/de%62\nSuites: x\nComponents: main\n");
        assert_eq!(same.uris, ["http://h/de%62"]);
    }

    #[test]
    fn the_file_of_an_installed_system_is_read() {
        let source = one(DEBIAN);
        assert!(source.binary && source.source);
        assert_eq!(source.uris, ["http://deb.example.org/debian/", "http://mirror.example.net/debian"]);
        assert_eq!(names(&source), ["dists/bookworm", "dists/bookworm-updates"]);
        assert_eq!(source.components, ["main", "contrib", "non-free-firmware"]);
        assert_eq!((source.line, source.trusted, source.by_hash), (3, None, ByHash::Announced));
        let keyring = KeySource::File("/usr/share/keyrings/debian-archive-keyring.gpg".into());
        assert_eq!(source.signed_by.expect("given").keys, [keyring]);
    }

    #[test]
    fn options_of_a_stanza_are_read() {
        let source = one(
            "Types: deb\nURIs: https://x/$(ARCH)\nSuites: a-$(ARCH)\nComponents: main\nArchitectures: amd64 i386\n\
             Architectures-Add: arm64\nArchitectures-Remove: i386\nLanguages: en, de\nTrusted: yes\nBy-Hash: force\n\
             Check-Valid-Until: no\nValid-Until-Max: 3600\nTargets: Packages\nPDiffs: no\n\
             Contents-deb: yes\nX-Unknown: x\n",
        );
        assert_eq!((source.uris[0].as_str(), names(&source)[0].as_str()), ("https://x/amd64", "dists/a-amd64"));
        assert_eq!(source.architectures.resolve(&[]), ["amd64", "arm64"]);
        assert_eq!(source.languages.resolve(&[]), ["en", "de"]);
        assert_eq!((source.trusted, source.by_hash), (Some(true), ByHash::Force));
        assert_eq!((source.check_valid_until, source.valid_until_max_s), (Some(false), Some(3600)));
        assert_eq!((source.targets.resolve(&[]), source.pdiffs), (vec!["Packages".to_owned()], Some(false)));
        assert_eq!(
            (source.switches, source.ignored),
            (vec![("contents-deb".to_owned(), true)], vec!["x-unknown".to_owned()])
        );
    }

    #[test]
    fn signed_by_may_hold_keys_or_fingerprints() {
        let inline = "Types: deb\nURIs: http://x\nSuites: ./\nSigned-By:\n -----BEGIN PGP PUBLIC KEY BLOCK-----\n .\n abcd\n -----END PGP PUBLIC KEY BLOCK-----\n";
        let signed_by = one(inline).signed_by.expect("given");
        assert!(matches!(&signed_by.keys[..], [KeySource::Inline(text)] if text.contains("\n .\n")));
        let fingerprints =
            format!("Types: deb\nURIs: http://x\nSuites: ./\nSigned-By: {},{}!\n", "A".repeat(40), "b".repeat(40));
        let signed_by = one(&fingerprints).signed_by.expect("given");
        assert_eq!((signed_by.keys.len(), signed_by.fingerprints.len()), (0, 2));
        assert!(signed_by.fingerprints[1].to_string().ends_with('!'));
    }

    #[test]
    fn flat_repositories_have_a_directory_for_a_suite() {
        for (suite, directory) in [("./", ""), ("/", ""), ("xUbuntu_22.04/", "xUbuntu_22.04"), ("./a/b/", "a/b")] {
            let source = one(&format!("Types: deb\nURIs: http://x\nSuites: {suite}\n"));
            assert_eq!(names(&source), [directory], "{suite}");
        }
    }

    #[test]
    fn disabled_stanzas_are_left_out() {
        let text = format!("Enabled: no\nTypes: nonsense\n\n{DEBIAN}");
        assert_eq!(parse_deb822(&text, "amd64").expect("valid").len(), 1);
    }

    #[test]
    fn one_line_entries_are_read() {
        let text = "# comment\n\ndeb http://x/debian bookworm main contrib # behind\n\
            deb-src [ arch=amd64,arm64 arch-=i386 signed-by=/k.gpg trusted=no pdiffs=no ] http://x/debian buster/updates main\n\
            deb [arch+=all] https://[2001:db8::1]/flat ./\n\tdeb cdrom:[Debian 12 \"x\"]/ bookworm main\n";
        let sources = parse_one_line(text, "amd64").expect("valid");
        assert_eq!(sources.len(), 4);
        assert_eq!((sources[0].binary, sources[0].source, sources[0].line), (true, false, 3));
        assert_eq!(sources[0].components, ["main", "contrib"]);
        assert_eq!(sources[1].architectures.resolve(&[]), ["amd64", "arm64"]);
        assert_eq!((sources[1].trusted, names(&sources[1])[0].as_str()), (Some(false), "dists/buster/updates"));
        assert_eq!(sources[1].pdiffs, Some(false));
        assert_eq!(sources[2].architectures.resolve(&["amd64".to_owned()]), ["amd64", "all"]);
        assert_eq!((sources[2].uris[0].as_str(), names(&sources[2])[0].as_str()), ("https://[2001:db8::1]/flat", ""));
        assert_eq!(sources[3].uris, ["cdrom:[Debian 12 x]/"]);
    }

    #[test]
    fn what_cannot_be_understood_is_refused_with_its_line() {
        for (text, part) in [
            ("Types: rpm\nURIs: http://x\nSuites: a\nComponents: main\n", "neither deb nor deb-src"),
            ("URIs: http://x\nSuites: a\nComponents: main\n", "no type"),
            ("Types: deb\nSuites: a\nComponents: main\n", "no URI"),
            ("Types: deb\nURIs: http://x\nComponents: main\n", "no suite"),
            ("Types: deb\nURIs: http://x\nSuites: a\n", "no component"),
            ("Types: deb\nURIs: http://x\nSuites: ./\nComponents: main\n", "has none"),
            ("Types: deb\nURIs: http://x\nSuites: ../../etc\nComponents: main\n", "`..`"),
            ("Types: deb\nURIs: http://x\nSuites: a\nComponents: ../x\n", "`..`"),
            ("Types: deb\nURIs: http://x\nSuites: a\nComponents: main\nTrusted: maybe\n", "neither yes nor no"),
            ("Types: deb\nURIs: http://x\nSuites: a\nComponents: main\nSigned-By: DEADBEEF\n", "fingerprint"),
            ("Types: deb\nURIs: http://x\nSuites: a\nComponents: main\nSigned-By: relative.gpg\n", "absolute"),
            ("Types: deb\nURIs: http://x\nSuites: a\nComponents: main\nSuites: b\n", "twice"),
        ] {
            let error = parse_deb822(text, "amd64").expect_err(text).to_string();
            assert!(error.contains("line 1") && error.contains(part), "{text}: {error}");
        }
        for text in [
            "deb",
            "deb http://x",
            "deb http://x a",
            "rpm http://x a main",
            "deb [arch=x http://x a main",
            "deb [arch] http://x a b",
        ] {
            assert!(parse_one_line(text, "amd64").is_err(), "{text}");
        }
    }

    /// As `apt-get` says of each: `[option] no value`, `[option] no key`.
    #[test]
    fn an_option_without_a_name_or_a_value_is_refused() {
        for options in ["arch=", "arch=\"\"", "arch+=", "trusted=yes lang=", "signed-by=", "unknown=", "=x", "a="] {
            let error = parse_one_line(&format!("deb [{options}] http://x a main"), "amd64").expect_err(options);
            assert!(error.to_string().contains("has no "), "{options}: {error}");
        }
        let quoted = &parse_one_line("deb [ arch=\"amd64\" ] http://x a main", "amd64").expect("valid")[0];
        assert_eq!(quoted.architectures.resolve(&[]), ["amd64"]);
        assert_eq!(parse_one_line("deb [] http://x a main", "amd64").expect("valid").len(), 1);
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(deb|deb-src|Types|URIs|Suites|Signed-By|Trusted|: ?|\n|\n |\\[|\\]|=|\"|#|[a-z./+-]{1,5}| ){0,30}") {
            let _ = parse_deb822(&text, "amd64");
            let _ = parse_one_line(&text, "amd64");
        }

        #[test]
        fn both_forms_say_the_same(suite in "[a-z]{1,8}", components in prop::collection::vec("[a-z]{1,8}", 1..4), arch in "[a-z]{1,6}") {
            let components = components.join(" ");
            let long = format!("Types: deb\nURIs: http://x\nSuites: {suite}\nComponents: {components}\nArchitectures: {arch}\n");
            let short = format!("deb [arch={arch}] http://x {suite} {components}\n");
            prop_assert_eq!(parse_deb822(&long, "amd64").expect("valid"), parse_one_line(&short, "amd64").expect("valid"));
        }
    }
}
