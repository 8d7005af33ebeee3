//! The indexes that list files: `Packages`, `Sources`, and the installer's `SHA256SUMS`.
//!
//! Each is read as a stream. A visitor is called for every entry with a view that borrows from the read buffer. Nothing
//! is allocated per entry, and an entry is complete and checked before the call.
//!
//! Real archives have entries that cannot be verified, such as packages without a SHA-256. The visitor of
//! [`packages_and_odd`] gets these as [`OddEntry`] and decides; [`packages`] ends at the first. [`crate::diff_index`]
//! reads the list of patches (`diff/Index`). The crate has no readers for `Contents`, translations and AppStream data.

use std::io::{BufRead, Read};

use thiserror::Error;

use crate::deb822::{Deb822Error, Limits, Stanza, Stanzas};
use crate::path::{self, PathError, PathFault};
use crate::release::parse_size;
use fullbore_digest::Sha256;

/// Longest line of a `SHA256SUMS`, in bytes: a hash and a path.
const SUM_LINE_BYTES_MAX: usize = 64 + 16 + path::PATH_BYTES_MAX;

/// Largest file that an index may name, in bytes: far above the largest package (2.3 GB) and below any overflow.
const FILE_BYTES_MAX: u64 = 1 << 50;

/// Error in an index. Line numbers are those of the plain text and start at 1.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum IndexError {
    /// The index is not a control file, or cannot be read.
    #[error(transparent)]
    Syntax(#[from] Deb822Error),
    /// A required field is missing.
    #[error("entry at line {line}: no field {field}")]
    Missing {
        /// Number of the first line of the stanza.
        line: u64,
        /// Name of the field.
        field: &'static str,
    },
    /// A package has no SHA-256, only MD5 or SHA-1.
    #[error("entry at line {line}: no SHA-256, and other hashes can be forged")]
    NoSha256 {
        /// Number of the first line of the stanza.
        line: u64,
    },
    /// A package has only a SHA-512, but fullbore identifies files by SHA-256.
    #[error("entry at line {line}: no SHA-256, only SHA-512")]
    OnlySha512 {
        /// Number of the first line of the stanza.
        line: u64,
    },
    /// A field has an invalid value.
    #[error("entry at line {line}: field {field} ({value:?}) {what}")]
    Invalid {
        /// Number of the first line of the stanza, or of the line in a `SHA256SUMS`.
        line: u64,
        /// Name of the field.
        field: &'static str,
        /// The value, at most 120 bytes of it.
        value: String,
        /// The fault.
        what: &'static str,
    },
    /// A path is unsafe.
    #[error("entry at line {line}: {source}")]
    Path {
        /// Number of the first line of the stanza, or of the line in a `SHA256SUMS`.
        line: u64,
        /// The underlying error.
        #[source]
        source: PathError,
    },
}

impl IndexError {
    fn invalid(line: u64, field: &'static str, value: &[u8], what: &'static str) -> Self {
        let value = String::from_utf8_lossy(&value[..value.len().min(120)]).into_owned();
        IndexError::Invalid { line, field, value, what }
    }

    fn path(line: u64, path: &str, fault: PathFault) -> Self {
        IndexError::Path { line, source: PathError::new(path, fault) }
    }

    /// Whether the error concerns a single entry, so that further entries can be read.
    fn is_of_entry(&self) -> bool {
        match self {
            IndexError::Syntax(error) => error.is_of_stanza(),
            _ => true,
        }
    }
}

/// An entry that cannot be verified: a field is missing or wrong, or a path leads out of the archive.
#[derive(Debug)]
pub struct OddEntry {
    /// Field `Package`. This and the other fields are empty if they are missing.
    pub package: String,
    /// The field `Version`, as written (Debian policy, section 5.6.12).
    pub version: String,
    /// `Architecture`; `source` in an index of sources.
    pub architecture: String,
    /// Name of the source package.
    pub source: String,
    /// Field `Section`; empty if it is missing.
    pub section: String,
    /// Field `Priority`; empty if it is missing.
    pub priority: String,
    /// `Filename` or `Directory` as written, for filters.
    pub written: String,
    /// Usable paths of the files that it names. They must not be deleted because of the fault.
    pub paths: Vec<String>,
    /// The fault.
    pub fault: IndexError,
}

impl OddEntry {
    fn of(stanza: Option<&Stanza<'_>>, is_source: bool, fault: IndexError) -> OddEntry {
        let field = |name: &str| stanza.and_then(|stanza| stanza.last_text(name)).unwrap_or_default().into_owned();
        let package = field("Package");
        let source = field("Source").split_ascii_whitespace().next().map(str::to_owned);
        let mut scratch = String::new();
        let mut paths = Vec::new();
        let mut add = |path: &str| paths.extend(path::normalise(path, &mut scratch).ok().map(str::to_owned));
        if is_source {
            let directory = field("Directory");
            // Weak hashes name the same files.
            let lists = ["Checksums-Sha256", "Checksums-Sha512", "Checksums-Sha1", "Files"].map(field);
            for name in lists.iter().flat_map(|list| list.lines()).filter_map(|line| line.split_whitespace().nth(2)) {
                add(&format!("{directory}/{name}"));
            }
        } else {
            add(&field("Filename"));
        }
        paths.sort_unstable();
        paths.dedup();
        OddEntry {
            version: field("Version"),
            architecture: if is_source { "source".to_owned() } else { field("Architecture") },
            source: source.filter(|_| !is_source).unwrap_or_else(|| package.clone()),
            section: field("Section"),
            priority: field("Priority"),
            written: field(if is_source { "Directory" } else { "Filename" }),
            package,
            paths,
            fault,
        }
    }
}

/// What a visitor gets: a sound entry, or an odd one.
pub type Visited<'e, E> = Result<&'e E, OddEntry>;

/// One package of a `Packages` index, borrowed from the read buffer.
#[derive(Debug, Clone, Copy)]
pub struct PackageEntry<'a> {
    /// Field `Package`: name of the package (Policy 5.6.7).
    pub package: &'a str,
    /// Field `Version`, not yet parsed (Policy 5.6.12).
    pub version: &'a str,
    /// Field `Architecture` (Policy 5.6.8), such as `amd64` or `all`; `all` if it is missing.
    pub architecture: &'a str,
    /// Name of the source package: the first word of `Source`, otherwise the value of `Package`.
    pub source: &'a str,
    /// Field `Section` (Policy 5.6.5), such as `non-free/libs`.
    pub section: Option<&'a str>,
    /// Field `Priority` (Policy 5.6.6), such as `optional`.
    pub priority: Option<&'a str>,
    /// `Filename`, by [`path::normalise`]. Relative to the root of the archive; in a flat repository too, as for apt.
    pub path: &'a str,
    /// Field `Size`: size of the package file, in bytes.
    pub size: u64,
    /// Field `SHA256`: hash of the package file.
    pub sha256: Sha256,
    /// The whole stanza, for fields without a member here.
    pub stanza: Stanza<'a>,
}

/// Calls `visit` for each package of a `Packages` index; returns the number of packages.
///
/// ```
/// use fullbore_debian::index::{self, IndexError};
///
/// let text = "Package: hello\nVersion: 2.10-3\nArchitecture: amd64\nSize: 53068\n\
///             Filename: pool/main/h/hello/hello_2.10-3_amd64.deb\n\
///             SHA256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855\n";
/// let mut bytes = 0;
/// let count = index::packages(text.as_bytes(), |package| {
///     bytes += package.size;
///     Ok::<_, IndexError>(())
/// })?;
/// assert_eq!((count, bytes), (1, 53068));
/// # Ok::<(), IndexError>(())
/// ```
///
/// # Errors
/// The first [`IndexError`], including that of an odd entry, or an error of `visit`.
pub fn packages<R: Read, E: From<IndexError>>(
    reader: R,
    mut visit: impl FnMut(&PackageEntry<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    packages_and_odd(reader, |entry| visit(entry.map_err(|odd| odd.fault)?))
}

/// Like [`packages`], but passes odd entries to the visitor instead of ending at the first.
///
/// # Errors
/// An [`IndexError`] that concerns more than one entry, or an error of `visit`.
pub fn packages_and_odd<R: Read, E: From<IndexError>>(
    reader: R,
    mut visit: impl FnMut(Visited<'_, PackageEntry<'_>>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut scratch = String::new();
    each_stanza(reader, |stanza| match stanza {
        Ok(stanza) => match package(stanza, &mut scratch) {
            Ok(entry) => visit(Ok(&entry)),
            Err(fault) => visit(Err(OddEntry::of(Some(&stanza), false, fault))),
        },
        Err(fault) => visit(Err(OddEntry::of(None, false, fault))),
    })
}

/// Calls `visit` for every stanza, and for every error that concerns a single stanza; returns their number.
fn each_stanza<R: Read, E: From<IndexError>>(
    reader: R,
    mut visit: impl FnMut(Result<Stanza<'_>, IndexError>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut stanzas = Stanzas::new(reader, Limits::INDEX);
    let mut count = 0;
    loop {
        match stanzas.next() {
            Ok(None) => return Ok(count),
            Ok(Some(stanza)) => visit(Ok(stanza))?,
            Err(error) => {
                let fault = IndexError::from(error);
                if !fault.is_of_entry() {
                    return Err(fault.into());
                }
                visit(Err(fault))?;
            }
        }
        count += 1;
    }
}

/// Collects the wanted fields of a stanza in one pass. If a name occurs twice, the last one counts, as in apt.
fn pick<'a, const N: usize>(stanza: &Stanza<'a>, wanted: &[&'static str; N]) -> [Option<&'a [u8]>; N] {
    // The lengths of known fields, one bit each: this test rejects most of the thirty fields of a package.
    let lengths = wanted.iter().fold(0u64, |lengths, field| lengths | 1 << (field.len() & 63));
    let mut picked = [None; N];
    for (name, value) in stanza.raw_fields() {
        if lengths & (1 << (name.len() & 63)) == 0 {
            continue;
        }
        let is_name = |field: &&str| field.len() == name.len() && field.as_bytes().eq_ignore_ascii_case(name);
        let Some(at) = wanted.iter().position(is_name) else {
            continue;
        };
        picked[at] = Some(value.trim_ascii());
    }
    picked
}

/// A field that must be present, not empty, and UTF-8.
fn required<'a>(stanza: &Stanza<'a>, field: &'static str, value: Option<&'a [u8]>) -> Result<&'a str, IndexError> {
    match value {
        Some(value) if !value.is_empty() => Ok(stanza.decode(field, value)?),
        _ => Err(IndexError::Missing { line: stanza.line(), field }),
    }
}

/// A field that may be missing; an empty one counts as missing.
fn optional<'a>(
    stanza: &Stanza<'a>,
    field: &'static str,
    value: Option<&'a [u8]>,
) -> Result<Option<&'a str>, IndexError> {
    match value {
        Some(value) if !value.is_empty() => Ok(Some(stanza.decode(field, value)?)),
        _ => Ok(None),
    }
}

fn package<'a>(stanza: Stanza<'a>, scratch: &'a mut String) -> Result<PackageEntry<'a>, IndexError> {
    const FIELDS: [&str; 9] =
        ["Package", "Version", "Architecture", "Source", "Section", "Priority", "Filename", "Size", "SHA256"];
    let line = stanza.line();
    let [package, version, architecture, source, section, priority, filename, size, sha256] = pick(&stanza, &FIELDS);
    let package = required(&stanza, "Package", package)?;
    let filename = required(&stanza, "Filename", filename)?;
    let filename = path::normalise(filename, scratch).map_err(|fault| IndexError::path(line, filename, fault))?;
    let size = required(&stanza, "Size", size)?;
    let sha256 = sha256.ok_or_else(|| no_sha256(&stanza, "SHA512"))?;
    // `Source: glibc (2.36-9)` if the versions differ.
    let source = optional(&stanza, "Source", source)?.and_then(|source| source.split_ascii_whitespace().next());
    Ok(PackageEntry {
        package,
        version: required(&stanza, "Version", version)?,
        // apt treats a package without the field as one for every architecture.
        architecture: optional(&stanza, "Architecture", architecture)?.unwrap_or("all"),
        source: source.unwrap_or(package),
        section: optional(&stanza, "Section", section)?,
        priority: optional(&stanza, "Priority", priority)?,
        path: filename,
        size: file_size(line, "Size", size.as_bytes())?,
        sha256: hash(line, "SHA256", sha256)?,
        stanza,
    })
}

fn file_size(line: u64, field: &'static str, digits: &[u8]) -> Result<u64, IndexError> {
    parse_size(digits)
        .filter(|&size| size <= FILE_BYTES_MAX)
        .ok_or_else(|| IndexError::invalid(line, field, digits, "is not a size in bytes"))
}

fn no_sha256(stanza: &Stanza<'_>, other: &str) -> IndexError {
    let line = stanza.line();
    if stanza.get(other).is_some() { IndexError::OnlySha512 { line } } else { IndexError::NoSha256 { line } }
}

/// apt compares hashes as text, so capital letters never match.
fn hash(line: u64, field: &'static str, hex: &[u8]) -> Result<Sha256, IndexError> {
    let is_lower = |hex: &[u8]| !hex.iter().any(u8::is_ascii_uppercase);
    let sha256 = Sha256::from_hex(hex).ok().filter(|_| is_lower(hex));
    sha256.ok_or_else(|| IndexError::invalid(line, field, hex, "is not a SHA-256"))
}

/// One source package of a `Sources` index, borrowed from the read buffer.
#[derive(Debug, Clone, Copy)]
pub struct SourceEntry<'a> {
    /// Field `Package`: name of the source (Policy 5.6.1).
    pub package: &'a str,
    /// Field `Version`, not yet parsed (Policy 5.6.12).
    pub version: &'a str,
    /// Field `Section` (Policy 5.6.5), if present.
    pub section: Option<&'a str>,
    /// Field `Priority` (Policy 5.6.6), if present.
    pub priority: Option<&'a str>,
    /// `Extra-Source-Only: yes`: the archive keeps it only for `Built-Using` of a binary package.
    pub extra_source_only: bool,
    /// `Directory` without a leading `./`, checked; empty for the root of a flat repository.
    pub directory: &'a str,
    /// The whole stanza, for fields without a member here.
    pub stanza: Stanza<'a>,
    checksums: &'a str,
}

impl<'a> SourceEntry<'a> {
    /// Files of the source package: the `.dsc` and all files that it lists.
    pub fn files(&self) -> impl Iterator<Item = SourceFile<'a>> + use<'a> {
        let (directory, line) = (self.directory, self.stanza.line());
        self.checksums.lines().filter_map(move |text| source_file(directory, line, text).ok().flatten())
    }
}

/// One file of a source package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceFile<'a> {
    /// Directory, as in [`SourceEntry::directory`].
    pub directory: &'a str,
    /// Name of the file, checked to be a single path part.
    pub name: &'a str,
    /// Size of the file in bytes, as the index states it.
    pub size: u64,
    /// SHA-256 of the whole file.
    pub sha256: Sha256,
}

impl SourceFile<'_> {
    /// Writes `directory/name` into `buffer`, so that a loop allocates nothing, and returns it.
    pub fn path_in<'b>(&self, buffer: &'b mut String) -> &'b str {
        buffer.clear();
        buffer.push_str(self.directory);
        if !self.directory.is_empty() {
            buffer.push('/');
        }
        buffer.push_str(self.name);
        buffer
    }
}

/// Calls `visit` for each source package of a `Sources` index; returns the number of source packages.
///
/// # Errors
/// The first [`IndexError`], including that of an odd entry, or an error of `visit`.
pub fn sources<R: Read, E: From<IndexError>>(
    reader: R,
    mut visit: impl FnMut(&SourceEntry<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    sources_and_odd(reader, |entry| visit(entry.map_err(|odd| odd.fault)?))
}

/// Like [`sources`], but passes odd entries to the visitor instead of ending at the first.
///
/// # Errors
/// An [`IndexError`] that concerns more than one entry, or an error of `visit`.
pub fn sources_and_odd<R: Read, E: From<IndexError>>(
    reader: R,
    mut visit: impl FnMut(Visited<'_, SourceEntry<'_>>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut scratch = String::new();
    each_stanza(reader, |stanza| match stanza {
        Ok(stanza) => match source(stanza, &mut scratch) {
            Ok(entry) => visit(Ok(&entry)),
            Err(fault) => visit(Err(OddEntry::of(Some(&stanza), true, fault))),
        },
        Err(fault) => visit(Err(OddEntry::of(None, true, fault))),
    })
}

fn source<'a>(stanza: Stanza<'a>, scratch: &'a mut String) -> Result<SourceEntry<'a>, IndexError> {
    const FIELDS: [&str; 7] =
        ["Package", "Version", "Directory", "Section", "Priority", "Extra-Source-Only", "Checksums-Sha256"];
    let line = stanza.line();
    let [package, version, directory, section, priority, extra, checksums] = pick(&stanza, &FIELDS);
    let directory = match optional(&stanza, "Directory", directory)?.map(|directory| directory.trim_end_matches('/')) {
        None | Some("" | ".") => "",
        Some(directory) => {
            path::normalise(directory, scratch).map_err(|fault| IndexError::path(line, directory, fault))?
        }
    };
    let checksums = checksums.ok_or_else(|| no_sha256(&stanza, "Checksums-Sha512"))?;
    let entry = SourceEntry {
        package: required(&stanza, "Package", package)?,
        version: required(&stanza, "Version", version)?,
        section: optional(&stanza, "Section", section)?,
        priority: optional(&stanza, "Priority", priority)?,
        extra_source_only: extra.is_some_and(|value| value.eq_ignore_ascii_case(b"yes")),
        directory,
        stanza,
        checksums: stanza.decode("Checksums-Sha256", checksums)?,
    };
    for text in entry.checksums.lines() {
        source_file(directory, line, text)?;
    }
    Ok(entry)
}

/// Parses `hash size name`; `None` for an empty line.
fn source_file<'a>(directory: &'a str, line: u64, text: &'a str) -> Result<Option<SourceFile<'a>>, IndexError> {
    const FIELD: &str = "Checksums-Sha256";
    let mut words = text.split_ascii_whitespace();
    let Some(hex) = words.next() else {
        return Ok(None);
    };
    let (Some(size), Some(name), None) = (words.next(), words.next(), words.next()) else {
        return Err(IndexError::invalid(line, FIELD, text.as_bytes(), "is not `hash size name`"));
    };
    path::check_name(name).map_err(|fault| IndexError::path(line, name, fault))?;
    if directory.len() + 1 + name.len() > path::PATH_BYTES_MAX {
        return Err(IndexError::path(line, name, PathFault::TooLong));
    }
    let size = file_size(line, FIELD, size.as_bytes())?;
    let sha256 = hash(line, FIELD, hex.as_bytes())?;
    Ok(Some(SourceFile { directory, name, size, sha256 }))
}

/// One line of an installer's `SHA256SUMS`, which has no sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumEntry<'a> {
    /// Path relative to the directory of the `SHA256SUMS`, without `./`, checked.
    pub path: &'a str,
    /// SHA-256 of the whole file.
    pub sha256: Sha256,
}

/// Calls `visit` for each line of a `SHA256SUMS`, in the format of sha256sum(1); returns the number of files.
///
/// # Errors
/// [`IndexError::Invalid`] or [`IndexError::Path`] for the first malformed line, [`IndexError::Syntax`] if the input
/// cannot be read or has too long a line, or an error of `visit`.
pub fn sha256sums<R: BufRead, E: From<IndexError>>(
    mut reader: R,
    mut visit: impl FnMut(&SumEntry<'_>) -> Result<(), E>,
) -> Result<u64, E> {
    let mut count = 0;
    let mut buffer = Vec::new();
    for line in 1u64.. {
        buffer.clear();
        let read = reader.by_ref().take(SUM_LINE_BYTES_MAX as u64 + 1).read_until(b'\n', &mut buffer);
        if read.map_err(|source| IndexError::from(Deb822Error::Read { line, source }))? == 0 {
            break;
        }
        if buffer.trim_ascii().is_empty() {
            continue;
        }
        visit(&sum(&buffer, line)?)?;
        count += 1;
    }
    Ok(count)
}

fn sum(text: &[u8], line: u64) -> Result<SumEntry<'_>, IndexError> {
    const FIELD: &str = "SHA256SUMS";
    if text.len() > SUM_LINE_BYTES_MAX {
        return Err(Deb822Error::TooLarge { line, what: "line", limit: SUM_LINE_BYTES_MAX }.into());
    }
    let text = text.strip_suffix(b"\n").unwrap_or(text);
    let invalid = |what| IndexError::invalid(line, FIELD, text, what);
    // Two blanks before the name, or a blank and an asterisk (binary mode).
    let (hex, name) = text.split_at_checked(64).ok_or_else(|| invalid("is not `hash  name`"))?;
    let name =
        name.strip_prefix(b"  ").or_else(|| name.strip_prefix(b" *")).ok_or_else(|| invalid("is not `hash  name`"))?;
    let name = std::str::from_utf8(name).map_err(|_| invalid("is not UTF-8"))?;
    let name = path::without_dot(name);
    path::check(name).map_err(|fault| IndexError::path(line, name, fault))?;
    Ok(SumEntry { path: name, sha256: hash(line, FIELD, hex)? })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HASH: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn package_text(fields: &[(&str, &str)]) -> String {
        let mut stanza = vec![
            ("Package", "libc6"),
            ("Source", "glibc (2.36-9+deb12u4)"),
            ("Version", "2.36-9+deb12u4+b1"),
            ("Architecture", "amd64"),
            ("Section", "libs"),
            ("Priority", "optional"),
            ("Filename", "pool/main/g/glibc/libc6_2.36-9+deb12u4_amd64.deb"),
            ("Size", "2753796"),
            ("SHA256", HASH),
        ];
        for &(name, value) in fields {
            stanza.retain(|(other, _)| *other != name);
            if value != "-" {
                stanza.push((name, value));
            }
        }
        stanza.into_iter().map(|(name, value)| format!("{name}: {value}\n")).collect()
    }

    fn read_packages(text: &str) -> Result<Vec<String>, IndexError> {
        let mut found = Vec::new();
        packages(text.as_bytes(), |entry| {
            found.push(format!("{} {} {} {}", entry.package, entry.source, entry.path, entry.size));
            Ok::<_, IndexError>(())
        })?;
        Ok(found)
    }

    #[test]
    fn packages_are_read_as_an_archive_lists_them() {
        let text = format!(
            "{}Installed-Size: 12986\nMaintainer: Å\nDescription: GNU C Library\n\n{}",
            package_text(&[]),
            package_text(&[("Package", "flat"), ("Source", "-"), ("Filename", "./flat_1_all.deb"), ("Section", "-")])
        );
        let expected = [
            "libc6 glibc pool/main/g/glibc/libc6_2.36-9+deb12u4_amd64.deb 2753796",
            "flat flat flat_1_all.deb 2753796",
        ];
        assert_eq!(read_packages(&text).expect("valid"), expected);
        assert_eq!(read_packages("").expect("empty"), Vec::<String>::new());
    }

    #[test]
    fn hostile_names_are_refused_with_their_line() {
        for path in
            ["../../etc/passwd", "/../passwd", "pool/%2e%2e/x", "pool/.fullbore/x", "a\\..\\x", &"a/".repeat(2048)]
        {
            let error = read_packages(&package_text(&[("Filename", path)])).expect_err(path);
            assert!(matches!(error, IndexError::Path { line: 1, .. }), "{path}: {error}");
        }
        let nul = package_text(&[("Filename", "pool/x\0")]);
        assert!(matches!(read_packages(&nul), Err(IndexError::Syntax(Deb822Error::Nul { line: 9 }))));
    }

    #[test]
    fn missing_and_wrong_fields_name_the_stanza() {
        for (field, value) in [
            ("Filename", "-"),
            ("Size", "-"),
            ("Size", "12x"),
            ("Size", "-5"),
            ("Size", "99999999999999999999999999"),
            ("SHA256", "-"),
            ("SHA256", "abcd"),
            ("Package", ""),
            ("Version", "-"),
            ("SHA256", &HASH.to_uppercase()),
        ] {
            let text = format!("{}\n{}", package_text(&[]), package_text(&[(field, value)]));
            let error = read_packages(&text).expect_err(field).to_string();
            assert!(error.starts_with("entry at line 11:"), "{field} {value}: {error}");
        }
        let md5_only = package_text(&[("SHA256", "-"), ("MD5sum", "d41d8cd98f00b204e9800998ecf8427e")]);
        assert!(matches!(read_packages(&md5_only), Err(IndexError::NoSha256 { .. })));
        let sha512 = package_text(&[("SHA256", "-"), ("SHA512", &HASH.repeat(2))]);
        assert!(matches!(read_packages(&sha512), Err(IndexError::OnlySha512 { .. })));
        let twice = format!("{}filename: other\n", package_text(&[]));
        assert_eq!(read_packages(&twice).expect("the last counts"), ["libc6 glibc other 2753796"]);
    }

    #[test]
    fn an_odd_entry_is_named_and_the_others_are_read() {
        let odd = package_text(&[("SHA256", "-"), ("Package", "odd"), ("Filename", "./pool//o/odd.deb")]);
        let outside = package_text(&[("Filename", "../../etc/passwd")]);
        let text = format!("{odd}\n continuation first\n\n{outside}\n{}", package_text(&[]));
        let (mut sound, mut found) = (Vec::new(), Vec::new());
        let count = packages_and_odd(text.as_bytes(), |entry| {
            match entry {
                Ok(entry) => sound.push(entry.package.to_owned()),
                Err(odd) => found.push(odd),
            }
            Ok::<_, IndexError>(())
        });
        assert_eq!((count.expect("read to its end"), sound), (4, vec!["libc6".to_owned()]));
        let [odd, broken, outside] = &found[..] else { panic!("{found:?}") };
        assert_eq!((odd.package.as_str(), odd.source.as_str()), ("odd", "glibc"));
        assert_eq!(odd.paths, ["pool/o/odd.deb"]);
        assert!(matches!(odd.fault, IndexError::NoSha256 { line: 1 }));
        assert!(matches!(broken.fault, IndexError::Syntax(_)) && broken.paths.is_empty());
        assert!(matches!(outside.fault, IndexError::Path { .. }) && outside.paths.is_empty());
    }

    #[test]
    fn an_odd_source_names_its_files() {
        let text = "Package: a\nVersion: 1\nDirectory: /pool/a/\nFiles:\n 00 1 a.dsc\n 00 2 ../a\n 00 3 a.tar.xz\n";
        let mut paths = Vec::new();
        let read = sources_and_odd(text.as_bytes(), |entry| {
            paths.extend(entry.map(|_| Vec::new()).unwrap_or_else(|odd| odd.paths));
            Ok::<_, IndexError>(())
        });
        assert_eq!((read.expect("read"), paths), (1, vec!["pool/a/a.dsc".to_owned(), "pool/a/a.tar.xz".to_owned()]));
    }

    #[test]
    fn a_visitor_ends_the_walk() {
        let text = format!("{}\n{}", package_text(&[]), package_text(&[]));
        let mut seen = 0;
        let result = packages(text.as_bytes(), |_| {
            seen += 1;
            Err(IndexError::NoSha256 { line: 77 })
        });
        assert!(matches!(result, Err(IndexError::NoSha256 { line: 77 })) && seen == 1);
    }

    fn source_text(directory: &str, name: &str) -> String {
        format!(
            "Package: hello\nBinary: hello\nVersion: 2.10-3\nSection: devel\n{directory}\
             Files:\n d41d8cd98f00b204e9800998ecf8427e 1 {name}\n\
             Checksums-Sha256:\n {HASH} 1701 hello_2.10-3.dsc\n {HASH} 725946 {name}\nExtra-Source-Only: yes\n"
        )
    }

    fn read_sources(text: &str) -> Result<Vec<String>, IndexError> {
        let (mut found, mut path) = (Vec::new(), String::new());
        sources(text.as_bytes(), |entry| {
            assert!(entry.extra_source_only);
            found.extend(entry.files().map(|file| format!("{} {}", file.path_in(&mut path), file.size)));
            Ok::<_, IndexError>(())
        })?;
        Ok(found)
    }

    #[test]
    fn sources_join_directory_and_name() {
        let text = source_text("Directory: pool/main/h/hello\n", "hello_2.10.orig.tar.gz");
        let expected = ["pool/main/h/hello/hello_2.10-3.dsc 1701", "pool/main/h/hello/hello_2.10.orig.tar.gz 725946"];
        assert_eq!(read_sources(&text).expect("valid"), expected);
        for directory in ["", "Directory: .\n", "Directory: ./\n"] {
            let found = read_sources(&source_text(directory, "x.tar.gz")).expect("flat");
            assert_eq!(found, ["hello_2.10-3.dsc 1701", "x.tar.gz 725946"]);
        }
    }

    #[test]
    fn hostile_names_in_sources_are_refused() {
        for (directory, name) in [
            ("Directory: ../x\n", "a"),
            ("Directory: /../x\n", "a"),
            ("Directory: pool\n", "../a"),
            ("Directory: pool\n", "b/a"),
            ("Directory: pool\n", "/a"),
            ("Directory: pool\n", ".a"),
            ("Directory: pool\n", "%2e%2e"),
        ] {
            let error = read_sources(&source_text(directory, name)).expect_err(name);
            assert!(matches!(error, IndexError::Path { .. }), "{directory}{name}: {error}");
        }
        let only_md5 = "Package: a\nVersion: 1\nFiles:\n d41d8cd98f00b204e9800998ecf8427e 1 a.dsc\n";
        assert!(matches!(read_sources(only_md5), Err(IndexError::NoSha256 { line: 1 })));
    }

    fn read_sums(text: &[u8]) -> Result<Vec<String>, IndexError> {
        let mut found = Vec::new();
        sha256sums(text, |entry| {
            found.push(entry.path.to_owned());
            Ok::<_, IndexError>(())
        })?;
        Ok(found)
    }

    #[test]
    fn sums_of_the_installer_name_its_images() {
        let text = format!("{HASH}  ./cdrom/initrd.gz\n{HASH} *netboot/mini.iso\n\n{HASH}  udeb.list");
        assert_eq!(read_sums(text.as_bytes()).expect("valid"), ["cdrom/initrd.gz", "netboot/mini.iso", "udeb.list"]);
        for wrong in [format!("{HASH} x"), format!("{HASH}  ../x"), format!("{HASH}  /x"), "abc  x".to_owned()] {
            assert!(read_sums(wrong.as_bytes()).is_err(), "{wrong}");
        }
        assert!(read_sums(&vec![b'a'; 1 << 20]).is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_input_never_panics(text in "(Package|Filename|Size|SHA256|Directory|Checksums-Sha256|: ?|\n\n|\n|\n |[a-f0-9./]{1,9}|[a-f0-9]{64}){0,40}") {
            let _ = read_packages(&text);
            let _ = sources(text.as_bytes(), |entry| { entry.files().for_each(drop); Ok::<_, IndexError>(()) });
            let _ = read_sums(text.as_bytes());
        }
    }
}
