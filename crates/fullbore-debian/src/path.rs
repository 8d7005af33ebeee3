//! Paths in an archive's indexes, checked before use.
//!
//! `Filename`, `Directory` and the lists in `Release` are untrusted. An [`ArchivePath`] is relative, stays in its
//! directory, and has none of our own dotted names (`.fullbore`, `.NAME.part`). The engine also opens it beneath a
//! directory handle only.

use std::fmt;

use thiserror::Error;

/// Maximum length of one part of a path, in bytes: `NAME_MAX` on Linux.
pub const PART_BYTES_MAX: usize = 255;

/// Maximum length of a path, in bytes. The longest in Debian's main archive is below 250. The limit is a guess that
/// leaves room for a destination directory below `PATH_MAX`.
pub const PATH_BYTES_MAX: usize = 1024;

/// Maximum number of characters of a refused path in an error: enough to find it, too few to flood a log.
const SHOWN_CHARS_MAX: usize = 120;

/// Reason why a path is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PathFault {
    /// The path is empty.
    #[error("is empty")]
    Empty,
    /// Starts with `/`.
    #[error("is absolute")]
    Absolute,
    /// Two consecutive slashes, or one at the end.
    #[error("has an empty part")]
    EmptyPart,
    /// A part is `.` or `..`.
    #[error("has a part `.` or `..`")]
    Dots,
    /// A part starts with a dot; fullbore itself uses such names.
    #[error("has a part that starts with a dot")]
    Hidden,
    /// A backslash, which some servers treat as a slash.
    #[error("has a backslash")]
    Backslash,
    /// A NUL, newline or other control character.
    #[error("has a control character")]
    Control,
    /// `%2e`, `%2f`, `%5c`, `%25` or an encoded control character: further decoding would change the path.
    #[error("has a percent-encoded dot, slash, percent or control character")]
    Encoded,
    /// A URL, such as `https://example.org/x.deb`.
    #[error("is an address")]
    Address,
    /// A part exceeds [`PART_BYTES_MAX`].
    #[error("has a part longer than {PART_BYTES_MAX} bytes")]
    PartTooLong,
    /// The path exceeds [`PATH_BYTES_MAX`].
    #[error("is longer than {PATH_BYTES_MAX} bytes")]
    TooLong,
}

/// A refused path, with the reason.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("path {shown:?} {fault}")]
pub struct PathError {
    /// The path, at most 120 characters of it.
    pub shown: String,
    /// Why [`check`] refused the path.
    pub fault: PathFault,
}

impl PathError {
    pub(crate) fn new(path: &str, fault: PathFault) -> Self {
        PathError { shown: path.chars().take(SHOWN_CHARS_MAX).collect(), fault }
    }
}

/// Checks that a path is relative, stays below its directory, and has no hidden or ambiguous part.
///
/// ```
/// use fullbore_debian::path::{self, PathFault};
///
/// assert_eq!(path::check("pool/main/h/hello/hello_2.10-3_amd64.deb"), Ok(()));
/// assert_eq!(path::check("pool/../../etc/passwd"), Err(PathFault::Dots));
/// ```
///
/// # Errors
/// The first [`PathFault`] found: an empty or absolute path, a part that is empty, hidden, `.` or `..`, a forbidden or
/// encoded character, or a length above [`PATH_BYTES_MAX`] or [`PART_BYTES_MAX`].
pub fn check(path: &str) -> Result<(), PathFault> {
    if path.is_empty() {
        return Err(PathFault::Empty);
    }
    if path.len() > PATH_BYTES_MAX {
        return Err(PathFault::TooLong);
    }
    if path.starts_with('/') {
        return Err(PathFault::Absolute);
    }
    let bytes = path.as_bytes();
    // One pass over the bytes, because a run checks a hundred thousand paths.
    let mut part_start = 0;
    for (at, &byte) in bytes.iter().enumerate() {
        if NEEDS_CHECK[usize::from(byte)] {
            check_byte(&bytes[at..])?;
            if byte == b'/' {
                check_part(&bytes[part_start..at])?;
                part_start = at + 1;
            }
        }
    }
    check_part(&bytes[part_start..])?;
    // The C1 controls are two bytes in UTF-8; plain ASCII paths skip this pass.
    if !path.is_ascii() && path.chars().any(char::is_control) {
        return Err(PathFault::Control);
    }
    Ok(())
}

/// Checks a file name, such as in `Checksums-Sha256`.
///
/// # Errors
/// Like [`check`], and for every slash.
pub fn check_name(name: &str) -> Result<(), PathFault> {
    if name.contains('/') {
        return Err(if name.starts_with('/') { PathFault::Absolute } else { PathFault::EmptyPart });
    }
    check(name)
}

/// Normalises a path and checks it. It removes slashes and `./` at the start, and empty parts and parts `.` within.
/// Archives name `/pool/…`, `./x.deb` and `pool//x` alike, and servers take them for the same file. `scratch` holds the
/// result if it differs from `path`.
///
/// ```
/// use fullbore_debian::path::{self, PathFault};
///
/// let mut scratch = String::new();
/// assert_eq!(path::normalise("/pool//a/./a.deb", &mut scratch), Ok("pool/a/a.deb"));
/// assert_eq!(path::normalise("/../etc/passwd", &mut scratch), Err(PathFault::Dots));
/// ```
///
/// # Errors
/// Like [`check`], except for the faults that it removes. A slash at the end stays an error: it names a directory.
pub fn normalise<'a>(path: &'a str, scratch: &'a mut String) -> Result<&'a str, PathFault> {
    match check(path) {
        Ok(()) => Ok(path),
        Err(_) if path.contains("://") => Err(PathFault::Address),
        // Nearly all paths are normal and cost no more than their check.
        Err(PathFault::Absolute | PathFault::EmptyPart | PathFault::Dots) if !path.ends_with('/') => {
            scratch.clear();
            for part in path.split('/').filter(|part| !matches!(*part, "" | ".")) {
                if !scratch.is_empty() {
                    scratch.push('/');
                }
                scratch.push_str(part);
            }
            check(scratch).map(|()| scratch.as_str())
        }
        Err(fault) => Err(fault),
    }
}

/// Bytes that [`check_byte`] must examine, and the slash.
static NEEDS_CHECK: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 0x20 {
        table[byte] = true;
        byte += 1;
    }
    table[0x7f] = true;
    table[b'\\' as usize] = true;
    table[b'%' as usize] = true;
    table[b'/' as usize] = true;
    table
};

/// Checks the first byte of `rest`.
fn check_byte(rest: &[u8]) -> Result<(), PathFault> {
    match rest.first() {
        Some(0..=0x1f | 0x7f) => Err(PathFault::Control),
        Some(b'\\') => Err(PathFault::Backslash),
        Some(b'%') => check_encoded(&rest[1..]),
        _ => Ok(()),
    }
}

/// Files saved by `apt-get download` have `%3a` for the colon of an epoch, and these are real names. Encodings whose
/// decoding would change the shape of the path are refused.
fn check_encoded(rest: &[u8]) -> Result<(), PathFault> {
    let digit = |at: usize| rest.get(at).and_then(|&b| char::from(b).to_digit(16));
    let (Some(high), Some(low)) = (digit(0), digit(1)) else {
        return Ok(());
    };
    match high * 16 + low {
        0..=0x1f | 0x7f | 0x2e | 0x2f | 0x5c | 0x25 => Err(PathFault::Encoded),
        _ => Ok(()),
    }
}

fn check_part(part: &[u8]) -> Result<(), PathFault> {
    match part {
        b"" => Err(PathFault::EmptyPart),
        b"." | b".." => Err(PathFault::Dots),
        [b'.', ..] => Err(PathFault::Hidden),
        _ if part.len() > PART_BYTES_MAX => Err(PathFault::PartTooLong),
        _ => Ok(()),
    }
}

/// A checked path, relative to an archive or to the directory of a suite.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArchivePath(Box<str>);

impl ArchivePath {
    /// Checks a path with [`check`], and copies it.
    ///
    /// # Errors
    /// A [`PathError`] with the path and the [`PathFault`] of [`check`].
    pub fn parse(path: &str) -> Result<Self, PathError> {
        check(path).map_err(|fault| PathError::new(path, fault))?;
        Ok(ArchivePath(path.into()))
    }

    /// Like [`ArchivePath::parse`], but accepts every spelling that [`normalise`] accepts, such as the `./` that
    /// `dpkg-scanpackages .` writes in flat repositories.
    ///
    /// # Errors
    /// A [`PathError`] with the path and the [`PathFault`] of [`normalise`].
    pub(crate) fn parse_spelled(path: &str) -> Result<Self, PathError> {
        let mut scratch = String::new();
        let path = normalise(path, &mut scratch).map_err(|fault| PathError::new(path, fault))?;
        Ok(ArchivePath(path.into()))
    }

    /// The checked path as text, without a leading slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The file name: the last part.
    pub fn file_name(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// The directory; empty for a path of one part.
    pub fn directory(&self) -> &str {
        self.0.rsplit_once('/').map_or("", |(directory, _)| directory)
    }

    /// Path of the same file by its hash: `DIRECTORY/by-hash/SHA256/HEX` (`Acquire-By-Hash` in a `Release`).
    /// `algorithm` is the name of the list in the `Release`.
    ///
    /// # Errors
    /// A [`PathError`] with [`PathFault::TooLong`] or [`PathFault::PartTooLong`] if the resulting path is too long.
    pub fn by_hash(&self, algorithm: &str, hex: &str) -> Result<Self, PathError> {
        let directory = self.directory();
        let slash = if directory.is_empty() { "" } else { "/" };
        Self::parse(&format!("{directory}{slash}by-hash/{algorithm}/{hex}"))
    }
}

impl fmt::Display for ArchivePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for ArchivePath {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Removes every leading `./`.
pub(crate) fn without_dot(mut path: &str) -> &str {
    while let Some(rest) = path.strip_prefix("./") {
        path = rest;
    }
    path
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn real_names_pass() {
        for path in [
            "pool/main/g/gcc-12/g++-12_12.2.0-14+deb12u1_amd64.deb",
            "pool/main/0/0ad/0ad_0.0.26-3.dsc",
            "pool/main/l/linux/linux_6.1.99~rc1.orig.tar.xz",
            "main/binary-amd64/Packages.xz",
            "foo_1%3a2.0-1_amd64.deb",
            "pool/ä/x_1:2.deb",
            "main/dep11/icons-48x48@2.tar.gz",
        ] {
            assert_eq!(ArchivePath::parse(path).map(|p| p.to_string()).as_deref(), Ok(path));
        }
    }

    #[test]
    fn hostile_names_are_refused_with_their_fault() {
        for (path, fault) in [
            ("", PathFault::Empty),
            ("/etc/passwd", PathFault::Absolute),
            ("//host/x", PathFault::Absolute),
            ("../x", PathFault::Dots),
            ("pool/../../x", PathFault::Dots),
            ("pool/..", PathFault::Dots),
            ("./x", PathFault::Dots),
            ("pool/./x", PathFault::Dots),
            ("pool//x", PathFault::EmptyPart),
            ("pool/", PathFault::EmptyPart),
            ("pool/%2e%2e/x", PathFault::Encoded),
            ("pool/%2E%2e/x", PathFault::Encoded),
            ("pool%2f..", PathFault::Encoded),
            ("pool/%252e%252e/x", PathFault::Encoded),
            ("pool/x%00", PathFault::Encoded),
            ("pool/x%0d%0aHost:", PathFault::Encoded),
            ("pool\\..\\x", PathFault::Backslash),
            ("pool/x\0", PathFault::Control),
            ("pool/x\r\nHost: evil", PathFault::Control),
            ("pool/\u{85}x", PathFault::Control),
            (".fullbore/state.zst", PathFault::Hidden),
            ("pool/.x.deb.part", PathFault::Hidden),
        ] {
            assert_eq!(ArchivePath::parse(path).map_err(|e| e.fault), Err(fault), "{path:?}");
        }
        let long_part = format!("pool/{}", "a".repeat(256));
        assert_eq!(check(&long_part), Err(PathFault::PartTooLong));
        assert_eq!(check(&"a/".repeat(2048)), Err(PathFault::TooLong));
        assert_eq!(check_name("a/b"), Err(PathFault::EmptyPart));
    }

    #[test]
    fn errors_show_a_bounded_part_of_the_path() {
        let error = ArchivePath::parse(&"x".repeat(5000)).expect_err("too long");
        assert!(error.to_string().len() < 200);
    }

    #[test]
    fn spellings_of_real_archives_become_one() {
        for path in ["pool/a.deb", "./pool/a.deb", "/pool/a.deb", "//pool/a.deb", ".//pool//./a.deb", "pool/./a.deb"] {
            assert_eq!(ArchivePath::parse_spelled(path).map(|p| p.to_string()), Ok("pool/a.deb".into()), "{path}");
        }
        let address = ArchivePath::parse_spelled("https://example.org/a.deb").map_err(|error| error.fault);
        assert_eq!(address, Err(PathFault::Address));
        for path in ["", "/", "./", "./../a.deb", "/..", "pool/../a", "pool/", "./.fullbore/x", "/pool/%2e%2e/a"] {
            assert!(ArchivePath::parse_spelled(path).is_err(), "{path}");
        }
    }

    #[test]
    fn by_hash_stands_beside_the_index() {
        let path = ArchivePath::parse("main/binary-amd64/Packages.xz").expect("legal");
        let hashed = path.by_hash("SHA256", "00ff").expect("legal");
        assert_eq!(hashed.as_str(), "main/binary-amd64/by-hash/SHA256/00ff");
        let flat = ArchivePath::parse("Packages").expect("legal").by_hash("SHA512", "00ff").expect("legal");
        assert_eq!(flat.as_str(), "by-hash/SHA512/00ff");
    }

    proptest! {
        #[test]
        fn what_is_normalised_is_checked(path in "[a./%2eE\\\\~+:]{0,24}") {
            let mut scratch = String::new();
            if let Ok(plain) = normalise(&path, &mut scratch) {
                prop_assert_eq!(check(plain), Ok(()));
            }
        }

        #[test]
        fn what_passes_stays_inside(path in "[a./%2eE\\\\~+:]{0,24}") {
            if check(&path).is_ok() {
                let mut depth = 0;
                for part in std::path::Path::new(&path).components() {
                    prop_assert!(matches!(part, std::path::Component::Normal(_)));
                    depth += 1;
                }
                prop_assert_eq!(depth, path.split('/').count());
            }
        }
    }
}
