//! apt's sources for a new root, from the arguments, stdin, or this machine's apt.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use fullbore_apt::system::{configuration as apt_configuration, sources as apt};
use fullbore_engine::run::error::CommandError;
use fullbore_engine::run::named_files::read_text;
use fullbore_install::SourcesFile;

use super::super::suites::{Known, Releases};
use crate::cli::BootstrapArgs;
use crate::stdio;

/// Largest file of sources taken over into the new root. A guess: a thousand entries with inline keys.
const SOURCES_BYTES_MAX: u64 = 8 << 20;

/// Releases by the package distro-info-data.
const DEBIAN_RELEASES: &str = "/usr/share/distro-info/debian.csv";
const UBUNTU_RELEASES: &str = "/usr/share/distro-info/ubuntu.csv";

/// Stands for stdin among the mirrors.
const STDIN: &str = "-";

/// The files of sources, and the addresses that were given as mirrors of one archive. stdin is there once: it is left to
/// the program in its namespaces.
///
/// As in mmdebstrap, entries of one kind without a file name of their own share a file. If this machine's apt
/// `trusts_nothing`, the keyring of the suite's archive is named: nothing else could verify it.
pub(super) fn sources(
    arguments: &BootstrapArgs,
    architecture: &str,
    components: &str,
    reads_stdin: bool,
    trusts_nothing: bool,
) -> Result<(Vec<SourcesFile>, Vec<String>), CommandError> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut mirrors = Vec::new();
    let Some(suite) = &arguments.suite else {
        if reads_stdin {
            add_nameless(&mut entries, stdin()?);
        }
        return Ok((placed(entries)?, mirrors));
    };
    let read = |path: &str| read_text(Path::new(path), SOURCES_BYTES_MAX).unwrap_or_default();
    let releases = Releases { debian: read(DEBIAN_RELEASES), ubuntu: read(UBUNTU_RELEASES) };
    let keyring = releases.keyring(suite).filter(|keyring| trusts_nothing && Path::new(keyring).exists());
    let options = keyring.map(|keyring| format!("[signed-by=\"{keyring}\"] ")).unwrap_or_default();
    for mirror in &arguments.mirrors {
        if mirror == STDIN {
            if reads_stdin {
                add_nameless(&mut entries, stdin()?);
            }
        } else if mirror.starts_with("deb ") || mirror.starts_with("deb-src ") {
            add_line(&mut entries, format!("{mirror}\n"));
        } else if mirror.contains("://") {
            // apt decodes the words of such a line once (see `parse_one_line`).
            let word = mirror.replace('%', "%25");
            add_line(&mut entries, format!("deb {options}{word} {suite} {components}\n"));
            mirrors.push(mirror.trim_end_matches('/').to_owned());
        } else if Path::new(mirror).is_file() {
            let text = read_text(Path::new(mirror), SOURCES_BYTES_MAX)?;
            let kind = match mirror {
                name if name.ends_with(".list") => Kind::OneLine,
                name if name.ends_with(".sources") => Kind::Deb822,
                _ => guess(&text),
            };
            let name = Path::new(mirror).file_name().map(|name| name.to_string_lossy().into_owned());
            entries.push(Entry { kind, name, text });
        } else if !mirror.is_empty() {
            return Err(CommandError::usage(format_args!("`{mirror}` is no mirror"))
                .hint("an address has ://, a line begins with `deb`, anything else is a file of apt sources"));
        }
    }
    // An empty suite belongs to no archive: then a hook may bring sources.
    if arguments.mirrors.is_empty() && !suite.is_empty() {
        for line in of_this_machine(&releases, suite, architecture, (components, &options))? {
            if let Some(entry) = entries.last_mut() {
                entry.text.push_str(&line);
            } else {
                add_line(&mut entries, line);
            }
        }
    }
    Ok((placed(entries)?, mirrors))
}

fn placed(entries: Vec<Entry>) -> Result<Vec<SourcesFile>, CommandError> {
    if let Some(address) = entries.iter().find_map(|entry| bucket_in(&entry.text)) {
        return Err(CommandError::usage(format_args!("{address}: apt in the new root cannot read buckets")).hint(
            format_args!(
                "mirror it first, with `fullbore mirror --from {address} --to DIR`, and name file:DIR as MIRROR"
            ),
        ));
    }
    Ok(entries.into_iter().enumerate().map(|(number, entry)| entry.placed(number)).collect())
}

/// The first address of a bucket in a text of sources. apt itself has no method for them.
fn bucket_in(text: &str) -> Option<&str> {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).find(|word| word.starts_with(fullbore_s3::SCHEME))
}

/// The sources on stdin; none is right as well, because a hook may bring some.
fn stdin() -> Result<String, CommandError> {
    if stdio::stdin_is_terminal() {
        return Err(CommandError::usage("stdin: a terminal, and no apt sources")
            .hint("name a SUITE, or send apt sources to stdin: `< file.sources`"));
    }
    let mut text = String::new();
    let read = std::io::stdin().take(SOURCES_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|error| CommandError::usage(format_args!("stdin: {error}")))?;
    Ok(text)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    OneLine,
    Deb822,
}

struct Entry {
    kind: Kind,
    name: Option<String>,
    text: String,
}

impl Entry {
    /// Under the name that mmdebstrap would give it.
    fn placed(self, number: usize) -> SourcesFile {
        let ending = match self.kind {
            Kind::OneLine => ".list",
            Kind::Deb822 => ".sources",
        };
        let path = match (self.name, self.kind) {
            (None, Kind::OneLine) if number == 0 => PathBuf::from("etc/apt/sources.list"),
            (name, _) => {
                let mut name = format!("{number:04}{}", name.as_deref().unwrap_or("main"));
                if !name.ends_with(".list") && !name.ends_with(".sources") {
                    name.push_str(ending);
                }
                Path::new("etc/apt/sources.list.d").join(name)
            }
        };
        SourcesFile { path, content: self.text }
    }
}

fn add_line(entries: &mut Vec<Entry>, line: String) {
    add(entries, Kind::OneLine, line);
}

/// Adds text that may be of either kind; whitespace is none.
fn add_nameless(entries: &mut Vec<Entry>, text: String) {
    if !text.trim().is_empty() {
        add(entries, guess(&text), text);
    }
}

fn add(entries: &mut Vec<Entry>, kind: Kind, text: String) {
    match entries.last_mut() {
        Some(entry) if entry.kind == kind && entry.name.is_none() => {
            entry.text.push_str(match kind {
                Kind::OneLine => "\n",
                Kind::Deb822 => "\n\n",
            });
            entry.text.push_str(&text);
        }
        _ => entries.push(Entry { kind, name: None, text }),
    }
}

fn guess(text: &str) -> Kind {
    let is_line = |line: &str| line.starts_with("deb ") || line.starts_with("deb-src ") || line.starts_with("deb [");
    if text.lines().any(is_line) { Kind::OneLine } else { Kind::Deb822 }
}

/// The archive that apt on this machine uses, or the distribution's own: with the suites that belong to this one.
fn of_this_machine(
    releases: &Releases,
    suite: &str,
    architecture: &str,
    words: (&str, &str),
) -> Result<Vec<String>, CommandError> {
    let configuration = apt_configuration::read()?;
    let mut here = Vec::new();
    for key in ["Dir::Etc::sourcelist", "Dir::Etc::sourceparts"] {
        let Some(path) = configuration.path(key).filter(|path| path.exists()) else { continue };
        // An empty sources.list beside a directory of sources is usual.
        for source in apt::read(&path).unwrap_or_default().iter().filter(|source| source.binary) {
            let Some(uri) = source.uris.first() else { continue };
            here.extend(source.suite_names.iter().map(|suite| Known { uri: uri.clone(), suite: suite.clone() }));
        }
    }
    releases.sources(suite, architecture, words, &here).ok_or_else(|| {
        CommandError::usage(format_args!("no mirror is named, and it is not known whose suite `{suite}` is"))
            .hint("say `fullbore bootstrap SUITE TARGET https://deb.example.org/debian`")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_placed_as_by_mmdebstrap() {
        let entry = |kind, name: Option<&str>| Entry { kind, name: name.map(str::to_owned), text: String::new() };
        let path = |entry: Entry, number| entry.placed(number).path.display().to_string();
        assert_eq!(path(entry(Kind::OneLine, None), 0), "etc/apt/sources.list");
        assert_eq!(path(entry(Kind::Deb822, None), 0), "etc/apt/sources.list.d/0000main.sources");
        assert_eq!(path(entry(Kind::OneLine, None), 2), "etc/apt/sources.list.d/0002main.list");
        assert_eq!(path(entry(Kind::Deb822, Some("x.sources")), 1), "etc/apt/sources.list.d/0001x.sources");
    }
    #[test]
    fn nameless_sources_of_one_kind_share_a_file() {
        let mut entries = Vec::new();
        let stanza = "Types: deb\nURIs: http://a/\nSuites: x\nComponents: main\n";
        add_line(&mut entries, "deb http://a x main\n".to_owned());
        add_nameless(&mut entries, "deb http://b x main\n".to_owned());
        add_nameless(&mut entries, " \n".to_owned());
        add_nameless(&mut entries, stanza.to_owned());
        add_nameless(&mut entries, stanza.to_owned());
        let texts: Vec<&str> = entries.iter().map(|entry| entry.text.as_str()).collect();
        assert_eq!(texts, ["deb http://a x main\n\ndeb http://b x main\n", &format!("{stanza}\n\n{stanza}")]);
    }
}
