//! Archives that apt's sources name.

use std::path::{Path, PathBuf};

use fullbore_apt::acquire::Configuration;
use fullbore_apt::lists::Defaults;
use fullbore_apt::system::files::{trusted_keyrings, usable_keyrings};
use fullbore_apt::system::sources as apt;
use fullbore_debian::keys::KeySource;
use fullbore_debian::release_date::MAX_FUTURE_S;
use fullbore_debian::sources_list::{ArchiveSource, ByHash, ListOption};
use fullbore_engine::run::error::CommandError;

use super::archive::{Archive, split_architectures, store_of};
use super::file::Section;
use super::keys::{keyring, no_keyring, signed_by, system_keyrings};
use super::origins::origin;
use super::{SignedBy, SourceSpec};

/// What apt takes where a source says nothing.
#[derive(Default)]
pub(super) struct AptDefaults {
    architectures: Vec<String>,
    keyrings: Vec<KeySource>,
    /// About keyrings that are left out, one line each.
    notes: Vec<String>,
}

impl AptDefaults {
    pub fn of(configuration: &Configuration) -> AptDefaults {
        let architectures = Defaults::new(configuration, apt::native_architecture(), Vec::new()).architectures;
        // One damaged keyring makes the verifier refuse the keys of all.
        let all = [trusted_keyrings(configuration), system_keyrings()].concat();
        let (keyrings, notes) = usable_keyrings(&all);
        AptDefaults { architectures, keyrings, notes }
    }

    /// The keys for a source without its own: those that apt trusts, and those of the distributions' archives.
    fn keys(&self, notes: &mut Vec<String>) -> Result<Vec<KeySource>, CommandError> {
        if self.keyrings.is_empty() {
            return Err(self.notes.iter().fold(no_keyring(), CommandError::context));
        }
        notes.extend(self.notes.iter().filter(|note| !notes.contains(note)).cloned().collect::<Vec<_>>());
        Ok(self.keyrings.clone())
    }
}

/// Entries of apt's sources, grouped by archive; flags restrict or override them.
pub(super) fn apt_archives(
    entries: Vec<ArchiveSource>,
    wishes: &Section,
    path: &Path,
    defaults: &AptDefaults,
) -> Result<Vec<Archive>, CommandError> {
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
            apt_architectures(&entry.architectures, &defaults.architectures)
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
            signed_by: apt_signed_by(&entry, &wishes.keyring.0, defaults, &mut notes)?,
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

/// The architectures of an entry, with `all` in them.
fn apt_architectures(option: &ListOption, defaults: &[String]) -> Vec<String> {
    let mut architectures = option.resolve(defaults);
    if !architectures.iter().any(|name| name == "all") {
        architectures.push("all".to_owned());
    }
    architectures
}

/// Whose signatures count for an entry: `--keyring` over what it says itself.
fn apt_signed_by(
    entry: &ArchiveSource,
    keyrings: &[PathBuf],
    defaults: &AptDefaults,
    notes: &mut Vec<String>,
) -> Result<SignedBy, CommandError> {
    if !keyrings.is_empty() {
        return signed_by(keyrings);
    }
    if entry.trusted == Some(true) {
        return Ok(SignedBy::Trusted);
    }
    let named = entry.signed_by.clone().unwrap_or_default();
    if named.keys.is_empty() {
        return Ok(SignedBy::Keys { keys: defaults.keys(notes)?, fingerprints: named.fingerprints });
    }
    for key in &named.keys {
        if let KeySource::File(file) = key {
            keyring(file)?;
        }
    }
    Ok(SignedBy::Keys { keys: named.keys, fingerprints: named.fingerprints })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disc_among_the_sources_is_left_out() {
        let disc = "deb [trusted=yes] cdrom:[Debian 13]/ trixie main\n";
        let archives = |text: &str| {
            let entries = fullbore_debian::sources_list::parse_one_line(text, "amd64").unwrap();
            apt_archives(entries, &Section::default(), Path::new("x.list"), &AptDefaults::default())
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
        let (sources, defaults) = (Path::new("x.sources"), AptDefaults::default());
        let archives = apt_archives(entries, &Section::default(), sources, &defaults).unwrap();
        assert_eq!(
            archives[0].notes,
            [
                "x.sources:1: without effect on a mirror: Targets, Include (see --include, --exclude, --languages and --without)"
            ]
        );
    }

    #[test]
    fn an_entry_without_keys_or_architectures_has_those_of_apt() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("own.gpg"), [0x98, 1, 4]).unwrap();
        std::fs::write(directory.path().join("bad.gpg"), b"key").unwrap();
        let mut configuration = Configuration::new();
        configuration.set("Dir::Etc::trustedparts", directory.path().to_str().unwrap());
        configuration.set("APT::Architectures::", "amd64");
        configuration.set("APT::Architectures::", "i386");
        let line = "deb http://host/debian trixie main\ndeb http://other/debian trixie main\n";
        let archives = |line: &str| {
            let entries = fullbore_debian::sources_list::parse_one_line(line, "amd64").unwrap();
            let defaults = AptDefaults::of(&configuration);
            apt_archives(entries, &Section::default(), Path::new("x.list"), &defaults).unwrap()
        };
        let found = archives(line);
        let source = &found[0].sources[0];
        assert_eq!(source.architectures, ["amd64", "i386", "all"]);
        let SignedBy::Keys { keys, fingerprints } = &source.signed_by else { panic!("{source:?}") };
        assert_eq!((&keys[0], fingerprints.len()), (&KeySource::File(directory.path().join("own.gpg")), 0));
        let about_bad: Vec<_> = found[0].notes.iter().filter(|note| note.contains("bad.gpg")).collect();
        assert_eq!(about_bad.len(), 1, "{:?}", found[0].notes);
        let found = archives("deb [arch=arm64 trusted=yes] http://host/debian trixie main\n");
        assert_eq!(found[0].sources[0].architectures, ["arm64", "all"]);
        assert_eq!((&found[0].sources[0].signed_by, found[0].notes.len()), (&SignedBy::Trusted, 0));
    }

    #[test]
    fn languages_of_an_entry_choose_those_of_the_mirror() {
        let archives = |fields: &str| {
            let text = format!(
                "Types: deb\nURIs: http://host/debian\nSuites: trixie\nComponents: main\nTrusted: yes\n{fields}"
            );
            let entries = fullbore_debian::sources_list::parse_deb822(&text, "amd64").unwrap();
            let (sources, defaults) = (Path::new("x"), AptDefaults::default());
            let archive = apt_archives(entries, &Section::default(), sources, &defaults).unwrap().remove(0);
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
