//! What apt on this machine knows: its sources, mirror lists, credentials, architecture.

use std::path::{Path, PathBuf};

use fullbore_apt::parts::files_of;
use fullbore_debian::sources_list::{self, ArchiveSource, Suite};

use fullbore_wire::url::without_credentials;

use super::archive::Archive;
use super::file::read_text;
use fullbore_engine::run::error::CommandError;

/// Largest file of sources read. A guess: a thousand entries with inline keys.
const SOURCES_BYTES_MAX: u64 = 8 << 20;
/// Largest list of mirrors read for a `mirror+file:` address, and the most taken from it.
const MIRROR_LIST_BYTES_MAX: u64 = 1 << 20;
const MIRROR_LIST_MAX: usize = 256;

/// Reads a file of sources, or all `.sources` and `.list` files of a directory.
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

/// The suite as it is written in apt's sources.
pub fn suite_name(suite: &Suite) -> String {
    match suite {
        Suite::Distribution(name) => name.to_string(),
        Suite::Flat(None) => "/".to_owned(),
        Suite::Flat(Some(directory)) => format!("{directory}/"),
    }
}

/// The addresses an address stands for: `mirror+file:` names a file that lists mirrors.
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

/// Directories for several archives below one: the last part of each address that tells them
/// apart, `debian` and `debian-security`, or with the host in front where it does not, or with the whole path where
/// one host has several, as those of many people have them.
pub fn directory_names(archives: &[Archive]) -> Vec<String> {
    let names: Vec<[String; 3]> = archives
        .iter()
        .map(|archive| {
            let origin = without_credentials(&archive.origins[0]);
            let rest = origin.split_once("://").map_or("", |(_, rest)| rest);
            let (host, last) =
                (rest.split('/').next().unwrap_or_default(), rest.rsplit('/').next().unwrap_or_default());
            if rest.contains('/') {
                [safe(last), safe(&format!("{host}-{last}")), safe(&rest.replace('/', "-"))]
            } else {
                [(); 3].map(|()| safe(host))
            }
        })
        .collect();
    let is_alone = |own: &[String; 3], how: usize| names.iter().filter(|other| other[how] == own[how]).count() == 1;
    names.iter().map(|own| own[(0..2).find(|how| is_alone(own, *how)).unwrap_or(2)].clone()).collect()
}

/// A part of an address as the name of a directory.
fn safe(text: &str) -> String {
    let name: String =
        text.chars().map(|c| if c.is_ascii_alphanumeric() || "._+~-".contains(c) { c } else { '_' }).collect();
    if name.starts_with('.') { format!("_{name}") } else { name }
}

/// The files of one of apt's directories that can be done without.
pub fn parts(directory: &Path, endings: &[&str]) -> Vec<PathBuf> {
    files_of(directory, endings).unwrap_or_else(|error| {
        if error.kind() != std::io::ErrorKind::NotFound {
            tracing::warn!("cannot read {}: {error}", directory.display());
        }
        Vec::new()
    })
}

/// apt's own files with credentials that can be read. apt keeps them readable for root only;
/// who may not read them mirrors without.
pub fn auth_files() -> Vec<PathBuf> {
    let mut files = vec![PathBuf::from("/etc/apt/auth.conf")];
    files.extend(parts(Path::new("/etc/apt/auth.conf.d"), &["conf"]));
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
    fn directories_tell_archives_apart() {
        let archive = |origin: &str| Archive { origins: vec![origin.into()], sources: vec![], notes: vec![] };
        let names = |origins: &[&str]| directory_names(&origins.iter().map(|o| archive(o)).collect::<Vec<_>>());
        assert_eq!(names(&["https://a/debian", "https://a/debian-security"]), ["debian", "debian-security"]);
        assert_eq!(names(&["https://a/debian", "https://b:81/x/debian"]), ["a-debian", "b_81-debian"]);
        assert_eq!(names(&["https://a", "https://b/.."]), ["a", "_.."]);
        assert_eq!(
            names(&["https://a/x/ppa/ubuntu", "https://a/y/ppa/ubuntu", "https://b/ubuntu", "https://b/z"]),
            ["a-x-ppa-ubuntu", "a-y-ppa-ubuntu", "b-ubuntu", "z"]
        );
        let with_credentials = ["https://who:secret@a/debian", "https://who:secret@b/debian", "https://who:secret@c"];
        assert_eq!(names(&with_credentials), ["a-debian", "b-debian", "c"]);
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
