//! What apt on this machine knows: its sources, mirror lists, credentials, architecture.

use std::path::{Path, PathBuf};

use fullbore_debian::deb822::{Limits, Stanzas};

use super::SignedBy;
use super::file::read_text;
use super::resolve::Archive;
use crate::error::CommandError;

/// Largest file of sources read. A guess: a thousand entries with inline keys.
const SOURCES_BYTES_MAX: u64 = 8 << 20;
/// Files read from a directory of sources; Debian machines have a handful.
const SOURCES_FILES_MAX: usize = 1000;
/// Largest list of mirrors read for a `mirror+file:` address, and the most taken from it.
const MIRROR_LIST_BYTES_MAX: u64 = 1 << 20;
const MIRROR_LIST_MAX: usize = 256;

/// One entry of apt's sources that is enabled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AptSource {
    /// Addresses, taken as mirrors of one archive.
    pub uris: Vec<String>,
    /// Suites; one with a slash at its end is a flat repository.
    pub suites: Vec<String>,
    /// Components; none for a flat repository.
    pub components: Vec<String>,
    /// Architectures; empty: the machine's own.
    pub architectures: Vec<String>,
    /// `deb` is among the types.
    pub binaries: bool,
    /// `deb-src` is among the types.
    pub sources: bool,
    /// Whose signatures are accepted, if the entry says so.
    pub signed_by: Option<AptSignedBy>,
}

/// `Signed-By` and `Trusted` of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AptSignedBy {
    /// `Trusted: yes`.
    Trusted,
    /// An armoured key in the entry.
    Inline(String),
    /// Keyring files and fingerprints.
    Keys {
        /// Absolute names of files.
        files: Vec<PathBuf>,
        /// Fingerprints as written.
        fingerprints: Vec<String>,
    },
}

impl AptSignedBy {
    /// With the system's keyrings filled in where the entry names none.
    pub fn resolve(
        self,
        keyrings_or_default: impl FnOnce(Vec<PathBuf>) -> Result<Vec<PathBuf>, CommandError>,
    ) -> Result<SignedBy, CommandError> {
        Ok(match self {
            AptSignedBy::Trusted => SignedBy::Trusted,
            AptSignedBy::Inline(key) => SignedBy::Inline(key),
            AptSignedBy::Keys { files, fingerprints } if fingerprints.is_empty() => {
                SignedBy::Keyrings(keyrings_or_default(files)?)
            }
            AptSignedBy::Keys { files, fingerprints } => {
                SignedBy::Fingerprints { fingerprints, keyrings: keyrings_or_default(files)? }
            }
        })
    }
}

/// Reads a file of sources, or all `.sources` and `.list` files of a directory.
pub fn read(path: &Path) -> Result<Vec<AptSource>, CommandError> {
    let cannot = |error: std::io::Error| CommandError::usage(format_args!("cannot read {}: {error}", path.display()));
    let mut files = vec![path.to_owned()];
    if std::fs::metadata(path).map_err(cannot)?.is_dir() {
        files = std::fs::read_dir(path)
            .map_err(cannot)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|file| matches!(file.extension().and_then(|ending| ending.to_str()), Some("sources" | "list")))
            .take(SOURCES_FILES_MAX)
            .collect();
        files.sort();
    }
    let mut sources = Vec::new();
    for file in files {
        let text = read_text(&file, SOURCES_BYTES_MAX)?;
        let one_line = file.extension().is_some_and(|ending| ending == "list");
        let entries = if one_line { one_line_entries(&text) } else { deb822_entries(&text) };
        sources.extend(entries.map_err(|message| CommandError::usage(format_args!("{}{message}", file.display())))?);
    }
    if sources.is_empty() {
        return Err(CommandError::usage(format_args!("{}: no enabled source", path.display())));
    }
    Ok(sources)
}

/// The entries of a deb822 file; an error begins with the line.
fn deb822_entries(text: &str) -> Result<Vec<AptSource>, String> {
    let mut sources = Vec::new();
    let mut stanzas = Stanzas::new(text.as_bytes(), Limits::SOURCES_LIST);
    while let Some(stanza) = stanzas.next().map_err(|error| format!(": {error}"))? {
        let words = |name: &'static str| -> Result<Vec<String>, String> {
            let text = stanza.get_text(name).map_err(|error| format!(": {error}"))?.unwrap_or_default();
            Ok(text.split_whitespace().map(str::to_owned).collect())
        };
        let is = |name, word: &str| words(name).map(|words| words.iter().any(|w| w.eq_ignore_ascii_case(word)));
        if is("Enabled", "no")? {
            continue;
        }
        let key = stanza.get_text("Signed-By").map_err(|error| format!(": {error}"))?.unwrap_or_default();
        sources.push(AptSource {
            uris: words("URIs")?,
            suites: words("Suites")?,
            components: words("Components")?,
            architectures: words("Architectures")?,
            binaries: is("Types", "deb")?,
            sources: is("Types", "deb-src")?,
            signed_by: signed_by(is("Trusted", "yes")?, key),
        });
    }
    Ok(sources)
}

/// The entries of a one-line file; an error begins with the line.
fn one_line_entries(text: &str) -> Result<Vec<AptSource>, String> {
    let mut sources = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = || format!(":{}: not an entry of apt's sources", i + 1);
        let (kind, mut rest) = line.split_once(char::is_whitespace).ok_or_else(wrong)?;
        let mut options = Vec::new();
        if let Some(inside) = rest.trim_start().strip_prefix('[') {
            let (inside, after) = inside.split_once(']').ok_or_else(wrong)?;
            options = inside.split_whitespace().filter_map(|option| option.split_once('=')).collect();
            rest = after;
        }
        let mut words = rest.split_whitespace().map(str::to_owned);
        let option = |name: &str| options.iter().find(|(key, _)| *key == name).map_or("", |(_, value)| *value);
        sources.push(AptSource {
            uris: vec![words.next().ok_or_else(wrong)?],
            suites: vec![words.next().ok_or_else(wrong)?],
            components: words.collect(),
            architectures: option("arch").split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            binaries: kind == "deb",
            sources: kind == "deb-src",
            signed_by: signed_by(option("trusted") == "yes", &option("signed-by").replace(',', " ")),
        });
    }
    Ok(sources)
}

fn signed_by(trusted: bool, key: &str) -> Option<AptSignedBy> {
    if key.contains("-----BEGIN PGP") {
        return Some(AptSignedBy::Inline(key.to_owned()));
    }
    let words = key.split_whitespace().map(|word| word.trim_end_matches(','));
    let (files, fingerprints): (Vec<&str>, Vec<&str>) = words.partition(|word| word.starts_with('/'));
    if files.is_empty() && fingerprints.is_empty() {
        return trusted.then_some(AptSignedBy::Trusted);
    }
    Some(AptSignedBy::Keys {
        files: files.into_iter().map(PathBuf::from).collect(),
        fingerprints: fingerprints.into_iter().map(str::to_owned).collect(),
    })
}

/// The addresses an address stands for: `mirror+file:` names a file that lists mirrors.
pub fn expand(uri: &str) -> Result<Vec<String>, CommandError> {
    let Some(file) = uri.strip_prefix("mirror+file:") else { return Ok(vec![uri.to_owned()]) };
    // file:/path and file:///path are the same.
    let file = PathBuf::from(format!("/{}", file.trim_start_matches('/')));
    let text = read_text(&file, MIRROR_LIST_BYTES_MAX)?;
    let mirrors: Vec<String> = text
        .lines()
        .map(|line| line.split('#').next().unwrap_or_default())
        .filter_map(|line| line.split_whitespace().next())
        .take(MIRROR_LIST_MAX)
        .map(str::to_owned)
        .collect();
    if mirrors.is_empty() {
        return Err(CommandError::usage(format_args!("{}: lists no mirrors", file.display())));
    }
    Ok(mirrors)
}

/// Directories for several archives below one: the last part of each address that tells them
/// apart, `debian` and `debian-security`, or with the host in front where it does not.
pub fn directory_names(archives: &[Archive]) -> Vec<String> {
    let parts: Vec<(String, String)> = archives
        .iter()
        .map(|archive| {
            let rest = archive.origins[0].split_once("://").map_or("", |(_, rest)| rest);
            let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
            (safe(host), safe(path.rsplit('/').next().unwrap_or_default()))
        })
        .collect();
    parts
        .iter()
        .map(|(host, last)| match last.as_str() {
            "" => host.clone(),
            last if parts.iter().filter(|(_, other)| other == last).count() > 1 => format!("{host}-{last}"),
            last => last.to_owned(),
        })
        .collect()
}

/// A part of an address as the name of a directory.
fn safe(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "._+~-".contains(c) { c } else { '_' }).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

/// apt's own files with credentials that can be read. apt keeps them readable for root only;
/// who may not read them mirrors without.
pub fn auth_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/auth.conf")];
    if let Ok(entries) = std::fs::read_dir("/etc/apt/auth.conf.d") {
        let mut more: Vec<PathBuf> = entries
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .filter(|file| file.extension().is_some_and(|ending| ending == "conf"))
            .take(SOURCES_FILES_MAX)
            .collect();
        more.sort();
        files.extend(more);
    }
    files.retain(|file| std::fs::File::open(file).is_ok());
    files
}

/// dpkg's name of the architecture this program was built for.
pub fn native_architecture() -> &'static str {
    match (std::env::consts::ARCH, cfg!(target_endian = "little")) {
        ("x86_64", _) => "amd64",
        ("x86", _) => "i386",
        ("aarch64", _) => "arm64",
        ("arm", _) => "armhf",
        ("powerpc64", true) => "ppc64el",
        ("powerpc64", false) => "ppc64",
        ("mips64", true) => "mips64el",
        // riscv64, s390x, loong64 have one name everywhere.
        (other, _) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_entries_have_options() {
        let entries = one_line_entries(
            "# comment\ndeb [arch=amd64,arm64 signed-by=/k.gpg] http://a/debian sid main contrib # end\n\
             deb-src http://a/debian sid main\ndeb [trusted=yes] http://b ./\n",
        )
        .unwrap();
        assert_eq!(entries[0].architectures, ["amd64", "arm64"]);
        assert_eq!(entries[0].components, ["main", "contrib"]);
        assert_eq!(
            entries[0].signed_by,
            Some(AptSignedBy::Keys { files: vec!["/k.gpg".into()], fingerprints: vec![] })
        );
        assert!(entries[1].sources && !entries[1].binaries);
        assert_eq!(entries[2].signed_by, Some(AptSignedBy::Trusted));
        assert_eq!(one_line_entries("\ndeb\n").unwrap_err(), ":2: not an entry of apt's sources");
    }

    #[test]
    fn disabled_entries_are_left_out() {
        let entries = deb822_entries("Types: deb\nURIs: http://a\nSuites: s\nEnabled: no\n").unwrap();
        assert!(entries.is_empty());
    }

    #[test]
    fn directories_tell_archives_apart() {
        let archive = |origin: &str| Archive { origins: vec![origin.into()], sources: vec![] };
        let names = |origins: &[&str]| directory_names(&origins.iter().map(|o| archive(o)).collect::<Vec<_>>());
        assert_eq!(names(&["https://a/debian", "https://a/debian-security"]), ["debian", "debian-security"]);
        assert_eq!(names(&["https://a/debian", "https://b:81/x/debian"]), ["a-debian", "b_81-debian"]);
        assert_eq!(names(&["https://a", "https://b/.."]), ["a", "_.."]);
    }

    #[test]
    fn a_list_of_mirrors_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("mirrors.txt");
        std::fs::write(&file, "http://a/debian\tpriority:1\n# no\nhttp://b/debian\n").unwrap();
        let uri = format!("mirror+file:{}", file.display());
        assert_eq!(expand(&uri).unwrap(), ["http://a/debian", "http://b/debian"]);
        assert_eq!(expand("http://c").unwrap(), ["http://c"]);
    }
}
