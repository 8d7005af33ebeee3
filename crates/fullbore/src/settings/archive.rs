//! Which archives are meant: by `--from` and `--suite`, or by apt's sources.

use std::path::{Path, PathBuf};

use fullbore_apt::system::sources as apt;
use fullbore_debian::keys::KeySource;
use fullbore_debian::release_date::MAX_FUTURE_S;
use fullbore_debian::sources_list::{ArchiveSource, ByHash, ListOption};
use fullbore_engine::run::error::CommandError;

use super::file::{Section, SourceSection};
use super::keys::{keyring, keys_or_default, signed_by};
use super::origins::{Store, origin};
use super::{SignedBy, SourceSpec};

/// One archive and what to take from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// Its addresses, the origin first.
    pub origins: Vec<String>,
    /// What to take from it.
    pub sources: Vec<SourceSpec>,
    /// What was read and has no effect, one line each, for the user.
    pub notes: Vec<String>,
}

/// The archives that a section names; never none.
pub(super) fn archives(wishes: &Section) -> Result<Vec<Archive>, CommandError> {
    if let Some(sources) = &wishes.sources {
        if !wishes.from.0.is_empty() {
            return Err(CommandError::usage("--sources and --from both name the archive").hint("pass only one of them"));
        }
        let entries = apt::read(sources)?;
        return apt_archives(entries, wishes, sources);
    }
    let mut origins = Vec::new();
    for from in &wishes.from.0 {
        let from = origin(from, &store_of(wishes))?;
        if !origins.contains(&from) {
            origins.push(from);
        }
    }
    if origins.is_empty() {
        return Err(CommandError::usage("no archive to mirror from").hint("pass --from URL, or --sources FILE"));
    }
    let mut parts: Vec<SourceSection> = Vec::new();
    if wishes.source.is_empty() || !wishes.suite.0.is_empty() {
        parts.push(SourceSection { suite: wishes.suite.clone(), ..SourceSection::default() });
    }
    parts.extend(wishes.source.iter().cloned());
    let mut sources = Vec::new();
    for part in parts {
        if part.suite.0.is_empty() {
            return Err(CommandError::usage("no suite to mirror").hint("pass --suite NAME, such as trixie or stable"));
        }
        for suite in &part.suite.0 {
            check_name("suite", suite)?;
        }
        let components = part.component.or(wishes.component.clone()).0;
        for component in &components {
            check_name("component", component)?;
        }
        let wanted = part.arch.or(wishes.arch.clone()).0;
        let (architectures, with_sources) = split_architectures(&wanted)?;
        let trusted = part.trusted.or(wishes.trusted).unwrap_or(false);
        let keyrings = part.keyring.or(wishes.keyring.clone()).0;
        let signed_by = if trusted && keyrings.is_empty() { SignedBy::Trusted } else { signed_by(&keyrings)? };
        sources.push(SourceSpec {
            suites: part.suite.0.into_iter().map(flat_suite).collect(),
            components,
            binaries: wanted.is_empty() || !architectures.is_empty(),
            sources: wanted.is_empty() || with_sources,
            architectures,
            ..SourceSpec::new("", signed_by)
        });
    }
    Ok(vec![Archive { origins, sources, notes: Vec::new() }])
}

/// What a section says of the stores of buckets.
pub(super) fn store_of(wishes: &Section) -> Store {
    Store {
        endpoint: wishes.endpoint.clone(),
        region: wishes.region.clone(),
        profile: wishes.profile.clone(),
        no_sign_request: wishes.no_sign_request.unwrap_or(false),
    }
}

/// Entries of apt's sources, grouped by archive; flags restrict or override them.
fn apt_archives(entries: Vec<ArchiveSource>, wishes: &Section, path: &Path) -> Result<Vec<Archive>, CommandError> {
    let mut archives: Vec<Archive> = Vec::new();
    let mut notes = Vec::new();
    let (wanted_architectures, wanted_sources) = split_architectures(&wishes.arch.0)?;
    for entry in entries {
        let suites: Vec<String> = entry
            .suites
            .iter()
            .map(apt::suite_name)
            .filter(|suite| wishes.suite.0.is_empty() || wishes.suite.0.contains(suite))
            .collect();
        if suites.is_empty() {
            continue;
        }
        let mut origins = Vec::new();
        for uri in &entry.uris {
            // An installer's disc beside the archive, say: apt has its use for it, a mirror cannot.
            if let Some((scheme, _)) = uri.split_once(':').filter(|(scheme, _)| is_local(scheme)) {
                let place = format!("{}:{}", path.display(), entry.line);
                notes.push(format!("{place}: left out: {scheme}: only http, https and s3 archives can be mirrored"));
                continue;
            }
            for uri in apt::expand(uri)? {
                let uri = origin(&uri, &store_of(wishes))?;
                if !origins.contains(&uri) {
                    origins.push(uri);
                }
            }
        }
        let Some(origin) = origins.first().cloned() else {
            continue;
        };
        let architectures = if wanted_architectures.is_empty() {
            apt_architectures(&entry.architectures)
        } else {
            wanted_architectures.clone()
        };
        let spec = SourceSpec {
            suites,
            components: if wishes.component.0.is_empty() {
                entry.components.clone()
            } else {
                wishes.component.0.clone()
            },
            architectures,
            binaries: entry.binary && (wishes.arch.0.is_empty() || !wanted_architectures.is_empty()),
            sources: entry.source || wanted_sources,
            // They are the same for many archives, and apt only says what one lacks.
            skips_absent: true,
            languages: entry.languages.set.is_some().then(|| languages(&entry.languages)),
            signed_by: apt_signed_by(&entry, &wishes.keyring.0)?,
            // As in apt: who does not believe the clock cannot tell what has expired.
            check_valid_until: entry.check_valid_until != Some(false) && entry.check_date != Some(false),
            check_date: entry.check_date.unwrap_or(true),
            max_future_s: entry.date_max_future_s.map_or(MAX_FUTURE_S, |s| i64::try_from(s).unwrap_or(i64::MAX)),
            valid_until_max_s: entry.valid_until_max_s,
            valid_until_min_s: entry.valid_until_min_s,
        };
        notes.extend(without_effect(&entry, path));
        match archives.iter_mut().find(|archive| archive.origins[0] == origin) {
            Some(archive) => {
                for origin in origins {
                    if !archive.origins.contains(&origin) {
                        archive.origins.push(origin);
                    }
                }
                merge_source(&mut archive.sources, spec);
            }
            None => archives.push(Archive { origins, sources: vec![spec], notes: Vec::new() }),
        }
    }
    let Some(first) = archives.first_mut() else {
        let error = CommandError::usage(format_args!("{}: no enabled source for these suites", path.display()));
        return Err(notes.into_iter().fold(error, CommandError::context));
    };
    first.notes = notes;
    Ok(archives)
}

/// The languages that an entry names. `none` is none of them, as in `Acquire::Languages` (apt.conf(5)).
fn languages(named: &ListOption) -> Vec<String> {
    named.resolve(&[]).into_iter().filter(|language| language != "none").collect()
}

/// Whether what apt calls so lies on this machine.
fn is_local(scheme: &str) -> bool {
    ["cdrom", "file", "copy"].iter().any(|local| scheme.eq_ignore_ascii_case(local))
}

/// What an entry says that decides what apt takes from an archive, and nothing of a mirror.
fn without_effect(entry: &ArchiveSource, path: &Path) -> Option<String> {
    let mut fields: Vec<String> = Vec::new();
    let targets = &entry.targets;
    if targets.set.is_some() || !targets.add.is_empty() || !targets.remove.is_empty() {
        fields.push("Targets".to_owned());
    }
    // Without a list of its own an entry has all languages here, and apt's defaults there.
    let of_languages = &entry.languages;
    if of_languages.set.is_none() && (!of_languages.add.is_empty() || !of_languages.remove.is_empty()) {
        fields.push("Languages".to_owned());
    }
    if entry.by_hash != ByHash::Announced {
        fields.push("By-Hash".to_owned());
    }
    let chooses = |name: &&String| matches!(name.as_str(), "include" | "exclude");
    fields
        .extend(entry.ignored.iter().filter(chooses).map(|name| format!("{}{}", name[..1].to_uppercase(), &name[1..])));
    if fields.is_empty() {
        return None;
    }
    let (path, line) = (path.display(), entry.line);
    Some(format!(
        "{path}:{line}: without effect on a mirror: {} (see --include, --exclude, --languages and --without)",
        fields.join(", ")
    ))
}

/// The architectures of an entry. apt fetches the machine's own by default, with `all` in them.
fn apt_architectures(option: &ListOption) -> Vec<String> {
    let native = [apt::native_architecture().to_owned()];
    let mut architectures = option.resolve(&native);
    if !architectures.iter().any(|name| name == "all") {
        architectures.push("all".to_owned());
    }
    architectures
}

/// Whose signatures count for an entry: `--keyring` over what it says itself.
fn apt_signed_by(entry: &ArchiveSource, keyrings: &[PathBuf]) -> Result<SignedBy, CommandError> {
    if !keyrings.is_empty() {
        return signed_by(keyrings);
    }
    if entry.trusted == Some(true) {
        return Ok(SignedBy::Trusted);
    }
    let Some(named) = &entry.signed_by else {
        return signed_by(&[]);
    };
    for key in &named.keys {
        if let KeySource::File(file) = key {
            keyring(file)?;
        }
    }
    let keys = if named.keys.is_empty() { keys_or_default(&[])? } else { named.keys.clone() };
    Ok(SignedBy::Keys { keys, fingerprints: named.fingerprints.clone() })
}

/// `deb` and `deb-src` lines of one-line files become one source.
fn merge_source(sources: &mut Vec<SourceSpec>, spec: SourceSpec) {
    let twin = sources.iter_mut().find(|other| {
        other.suites == spec.suites
            && other.components == spec.components
            && other.languages == spec.languages
            && other.trusts_like(&spec)
    });
    match twin {
        Some(other) if other.architectures == spec.architectures || !(other.binaries && spec.binaries) => {
            if spec.binaries && !other.binaries {
                other.architectures = spec.architectures;
            }
            other.binaries |= spec.binaries;
            other.sources |= spec.sources;
        }
        _ => sources.push(spec),
    }
}

/// Splits `amd64,source,all` into binary architectures and whether sources are wanted.
fn split_architectures(wanted: &[String]) -> Result<(Vec<String>, bool), CommandError> {
    let mut architectures: Vec<String> = Vec::new();
    for name in wanted.iter().filter(|name| *name != "source") {
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
            return Err(CommandError::usage(format_args!("{name:?} is not the name of an architecture")));
        }
        if !architectures.contains(name) {
            architectures.push(name.clone());
        }
    }
    Ok((architectures, wanted.iter().any(|name| name == "source")))
}

/// A suite or component becomes part of paths; the final check is the archive path's own.
fn check_name(what: &str, name: &str) -> Result<(), CommandError> {
    let bad = name.is_empty()
        || (name.starts_with('/') && name != "/")
        || name.split('/').any(|part| part == "..")
        || name.chars().any(|c| c.is_control() || c.is_whitespace());
    if bad { Err(CommandError::usage(format_args!("{name:?} is not the name of a {what}"))) } else { Ok(()) }
}

/// `./`, as many sources have it, is the archive's own directory: `/`.
fn flat_suite(suite: String) -> String {
    match suite.strip_prefix("./") {
        Some("") => "/".to_owned(),
        Some(rest) => rest.to_owned(),
        None => suite,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disc_among_the_sources_is_left_out() {
        let disc = "deb [trusted=yes] cdrom:[Debian 13]/ trixie main\n";
        let archives = |text: &str| {
            let entries = fullbore_debian::sources_list::parse_one_line(text, "amd64").unwrap();
            apt_archives(entries, &Section::default(), Path::new("x.list"))
        };
        let found = archives(&format!("{disc}deb [trusted=yes] http://host/debian trixie main\n")).unwrap();
        assert_eq!((found.len(), found[0].origins.as_slice()), (1, &["http://host/debian".to_owned()][..]));
        assert_eq!(found[0].notes, ["x.list:1: left out: cdrom: only http, https and s3 archives can be mirrored"]);
        let error = archives(disc).unwrap_err();
        assert!(error.to_string().contains("no enabled source"), "{error}");
    }

    #[test]
    fn fields_that_mean_nothing_to_a_mirror_are_named() {
        let text = "Types: deb\nURIs: http://host/debian\nSuites: trixie\nComponents: main\nTargets: Packages\n\
                    Include: ~nfoo\nSigned-By: /dev/null\nTrusted: yes\n";
        let entries = fullbore_debian::sources_list::parse_deb822(text, "amd64").unwrap();
        let archives = apt_archives(entries, &Section::default(), Path::new("x.sources")).unwrap();
        assert_eq!(
            archives[0].notes,
            [
                "x.sources:1: without effect on a mirror: Targets, Include (see --include, --exclude, --languages and --without)"
            ]
        );
    }

    #[test]
    fn languages_of_an_entry_choose_those_of_the_mirror() {
        let archives = |fields: &str| {
            let text = format!(
                "Types: deb\nURIs: http://host/debian\nSuites: trixie\nComponents: main\nTrusted: yes\n{fields}"
            );
            let entries = fullbore_debian::sources_list::parse_deb822(&text, "amd64").unwrap();
            let archive = apt_archives(entries, &Section::default(), Path::new("x")).unwrap().remove(0);
            (archive.sources[0].languages.clone(), archive.notes.concat())
        };
        let list = |words: &[&str]| Some(words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(archives(""), (None, String::new()));
        assert_eq!(archives("Languages: en de\n"), (list(&["en", "de"]), String::new()));
        assert_eq!(archives("Languages: none\n"), (list(&[]), String::new()));
        let (languages, note) = archives("Languages-Remove: de\nBy-Hash: no\n");
        assert!(languages.is_none() && note.contains("without effect on a mirror: Languages, By-Hash "), "{note}");
    }
}
