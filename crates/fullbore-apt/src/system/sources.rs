//! apt's sources and lists of mirrors on this machine, and its architecture.

use std::path::{Path, PathBuf};

use fullbore_debian::sources_list::{self, ArchiveSource, Suite};
use fullbore_engine::run::CommandError;
use fullbore_engine::run::named_files::read_text;

use crate::acquire::Configuration;
use crate::system::parts::files_of;

/// Largest file of sources read. A guess: a thousand entries with inline keys.
const SOURCES_BYTES_MAX: u64 = 8 << 20;
/// Largest list of mirrors for a `mirror+file:` address in bytes, and the largest number of mirrors taken from it.
const MIRROR_LIST_BYTES_MAX: u64 = 1 << 20;
const MIRROR_LIST_MAX: usize = 256;

/// Reads a file of sources, or all `.sources` and `.list` files of a directory.
///
/// # Errors
/// A usage error if a file cannot be read or parsed, or if no source is enabled.
pub fn read(path: &Path) -> Result<Vec<ArchiveSource>, CommandError> {
    let cannot = |error: std::io::Error| CommandError::usage(format_args!("cannot read {}: {error}", path.display()));
    let mut files = vec![path.to_owned()];
    if std::fs::metadata(path).map_err(cannot)?.is_dir() {
        files = files_of(path, &["sources", "list"]).map_err(cannot)?;
    }
    let mut sources = Vec::new();
    for file in files {
        let text = read_text(&file, SOURCES_BYTES_MAX)?;
        let one_line = file.extension().is_some_and(|ending| ending == "list");
        let entries = if one_line {
            sources_list::parse_one_line(&text, native_architecture())
        } else {
            sources_list::parse_deb822(&text, native_architecture())
        };
        sources.extend(entries.map_err(|error| CommandError::usage(format_args!("{}: {error}", file.display())))?);
    }
    if sources.is_empty() {
        return Err(CommandError::usage(format_args!("{}: no enabled source", path.display())));
    }
    Ok(sources)
}

/// All sources of this configuration; never empty.
///
/// # Errors
/// A usage error if a file cannot be read or parsed, or if apt has no source.
pub fn configured(configuration: &Configuration) -> Result<Vec<ArchiveSource>, CommandError> {
    let mut sources = Vec::new();
    let mut searched = Vec::new();
    for key in ["Dir::Etc::sourcelist", "Dir::Etc::sourceparts"] {
        let Some(path) = configuration.path(key).filter(|path| path.exists()) else { continue };
        match read(&path) {
            Ok(more) => sources.extend(more),
            // An empty sources.list beside a directory of sources is usual.
            Err(error) if error.message.ends_with("no enabled source") => searched.push(path.display().to_string()),
            Err(error) => return Err(error),
        }
    }
    if sources.is_empty() {
        return Err(CommandError::usage(format_args!("no sources: looked at {}", searched.join(" and ")))
            .hint("name apt's sources with --sources FILE|DIR"));
    }
    Ok(sources)
}

/// The suite as in apt's sources.
pub fn suite_name(suite: &Suite) -> String {
    match suite {
        Suite::Distribution(name) => name.to_string(),
        Suite::Flat(None) => "/".to_owned(),
        Suite::Flat(Some(directory)) => format!("{directory}/"),
    }
}

/// The addresses for an address: `mirror+file:` names a file with mirrors.
///
/// # Errors
/// A usage error if the list of a `mirror+file:` address cannot be read, or names no mirror.
pub fn expand(uri: &str) -> Result<Vec<String>, CommandError> {
    let Some(file) = uri.strip_prefix("mirror+file:") else {
        return Ok(vec![uri.to_owned()]);
    };
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

/// dpkg's name of the architecture of this program.
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
    fn a_directory_of_sources_is_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        write("b.list", "deb [trusted=yes] http://b ./\n");
        write("a.sources", "Types: deb\nURIs: http://a\nSuites: s\nComponents: main\n");
        for name in ["c.sources.disabled", ".c.list", "c c.sources", "c.list~"] {
            write(name, "nonsense");
        }
        let sources = read(dir.path()).unwrap();
        assert_eq!(sources.iter().map(|source| source.uris[0].as_str()).collect::<Vec<_>>(), ["http://a", "http://b"]);
        assert_eq!(suite_name(&sources[1].suites[0]), "/");
        write("d.list", "\ndeb\n");
        let error = read(dir.path()).unwrap_err();
        assert!(error.message.contains("d.list: line 2"), "{error}");
        std::fs::write(dir.path().join("d.list"), "").unwrap();
        assert!(read(&dir.path().join("d.list")).unwrap_err().message.contains("no enabled source"));
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
