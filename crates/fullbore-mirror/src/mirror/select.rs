//! Selects the entries of a Release that are mirrored.
//!
//! A Release names each index in several forms, many of which do not exist: Debian's
//! names 257 uncompressed files that no server has. So:
//! - compressed forms are all wanted, unless `--index-formats` restricts them;
//! - the plain form is wanted only where it is the only one, or asked for;
//! - of one index (its *group*) one form is required; the others are left out if no host, including the origin, has
//!   them ([`Need`]);
//! - one form of each index that names files is marked to be read.
//!
//! Architectures: `source` is one here. `all` has its own `Packages` if the Release lists it and does not have
//! `No-Support-for-Architecture-all: Packages`. Clients of any architecture then read it, so it is included.
//! `Contents-all` is always included.

use std::collections::BTreeMap;

use fullbore_debian::classify::{IndexKind, IndexName, classify};
use fullbore_debian::compression::Form;
use fullbore_debian::release::{IndexEntry, Release};
use fullbore_engine::digest::Sha256;

use crate::settings::{IndexFormat, Kind};

/// The selected parts of a suite.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Whether this is a flat repository: no components, no architectures in paths.
    pub flat: bool,
    /// Components to mirror; empty: all.
    pub components: Vec<String>,
    /// Binary architectures, `all` perhaps among them; empty: all.
    pub architectures: Vec<String>,
    /// Whether binary packages are mirrored.
    pub binaries: bool,
    /// Whether source packages are mirrored.
    pub sources: bool,
    /// Kinds of files that are not mirrored.
    pub without: Vec<Kind>,
    /// Languages of translated descriptions; empty: all.
    pub languages: Vec<String>,
    /// Forms of indexes; empty: every compressed form.
    pub formats: Vec<IndexFormat>,
    /// Whether a missing component or architecture is expected, because the sources are for several archives.
    pub skips_absent: bool,
}

/// Whether an index is required for publishing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Need {
    /// One form of this group is required; the others may be missing on every mirror.
    OneOf(u32),
    /// The index may be missing on every mirror.
    Optional,
}

/// Format of an index that names files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reading {
    /// `Packages`
    Packages,
    /// `Sources`
    Sources,
    /// `SHA256SUMS` of installer images.
    InstallerSums,
    /// `X.diff/Index`
    DiffIndex,
}

/// A selected entry of the Release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WantedIndex {
    /// Path relative to the suite's directory.
    pub path: String,
    /// Size of the served file in bytes.
    pub size: u64,
    /// SHA-256 of the file as served.
    pub sha256: Sha256,
    /// SHA-512 in hex, for by-hash names.
    pub sha512: Option<Box<str>>,
    /// Compression of the file.
    pub form: Form,
    /// Whether the file is required.
    pub need: Need,
    /// Format of an index that names files, for all its forms. The first fetched form is read.
    pub reading: Option<Reading>,
    /// Rank in the order of reading within the group: 0 is fetched and read first.
    pub rank: u8,
}

/// Why a Release does not have a selection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectError {
    /// An unknown component.
    #[error("suite {suite} has no component {component:?}; it has: {}", .available.join(", "))]
    Component {
        /// The requested suite.
        suite: String,
        /// Name of the component.
        component: String,
        /// Components of the Release.
        available: Vec<String>,
    },
    /// An unknown architecture.
    #[error("suite {suite} has no architecture {architecture:?}; it has: {}", .available.join(", "))]
    Architecture {
        /// The requested suite.
        suite: String,
        /// Name of the architecture.
        architecture: String,
        /// Architectures of the Release.
        available: Vec<String>,
    },
    /// No packages are left to mirror.
    #[error("suite {suite}: the Release lists no package index for this selection")]
    Nothing {
        /// The requested suite.
        suite: String,
    },
}

/// Entries that match the selections, and missing parts.
#[derive(Debug)]
pub(crate) struct Selected {
    /// Entries to mirror; those to be read come first.
    pub wants: Vec<WantedIndex>,
    /// Components and architectures that the suite lacks.
    pub absent: Vec<Absent>,
}

/// A component or architecture that a suite lacks, while it has other selected parts.
#[derive(Debug)]
pub(crate) struct Absent {
    /// Error for a selection of this part alone.
    pub error: SelectError,
    /// Whether the absence is expected, so that the run does not fail: the sources are for several archives.
    pub is_expected: bool,
}

/// Entries of all selections together. All selections have the same formats.
///
/// # Errors
/// [`SelectError`] if the Release has none of the components or architectures, or lists no package index for them.
pub(crate) fn indexes(requested: &str, release: &Release, selections: &[Selection]) -> Result<Selected, SelectError> {
    let mut absent = Vec::new();
    for selection in selections.iter().filter(|selection| !selection.flat) {
        let lacking =
            [check_components(requested, release, selection), check_architectures(requested, release, selection)];
        for (lacking, is_all) in lacking {
            for error in lacking {
                if is_all {
                    return Err(error);
                }
                absent.push(Absent { error, is_expected: selection.skips_absent });
            }
        }
    }
    let mut groups: BTreeMap<String, Vec<(&IndexEntry, IndexName<'_>)>> = BTreeMap::new();
    for entry in &release.entries {
        let name = classify(entry.path.as_str());
        if selections.iter().any(|selection| selection.wants(&name, release)) {
            groups.entry(name.stem.to_owned()).or_default().push((entry, name));
        }
    }
    let formats = selections.first().map_or(&[][..], |selection| &selection.formats);
    let mut wants = Vec::new();
    for (number, group) in groups.into_values().enumerate() {
        add_group(&mut wants, number as u32, group, formats);
    }
    // Contents and translations alone, without packages, are not a mirror.
    if !wants.iter().any(|want| matches!(want.reading, Some(Reading::Packages | Reading::Sources))) {
        return Err(SelectError::Nothing { suite: requested.to_owned() });
    }
    // Indexes that are read go first, because the pool can begin only after them; large ones before small ones.
    wants.sort_by_key(|want| (want.reading.is_none(), want.rank, std::cmp::Reverse(want.size)));
    Ok(Selected { wants, absent })
}

/// Forms in order of reading. gzip is decompressed at three times the rate of xz, and the time to the first pool file
/// counts more than the bytes of an index.
const READING_ORDER: [Form; 6] = [Form::Lz4, Form::Gz, Form::Zst, Form::Xz, Form::Bz2, Form::Plain];

fn add_group(
    wants: &mut Vec<WantedIndex>,
    number: u32,
    mut group: Vec<(&IndexEntry, IndexName<'_>)>,
    formats: &[IndexFormat],
) {
    let asked = |form: Form| formats.iter().any(|format| form_of(*format) == form);
    let compressed = group.iter().any(|(_, name)| name.form != Form::Plain);
    let some_asked = group.iter().any(|(_, name)| asked(name.form));
    group.retain(|(_, name)| {
        if formats.is_empty() || !some_asked {
            // If no requested format is listed, all listed ones are taken, which is better than no index.
            name.form != Form::Plain || !compressed
        } else {
            asked(name.form)
        }
    });
    let rank = |form: Form| READING_ORDER.iter().position(|&other| other == form).unwrap_or(READING_ORDER.len());
    group.sort_by_key(|(_, name)| rank(name.form));
    for (rank, (entry, name)) in group.into_iter().enumerate() {
        wants.push(WantedIndex {
            path: entry.path.as_str().to_owned(),
            size: entry.size,
            sha256: entry.sha256,
            sha512: entry.sha512.clone(),
            form: name.form,
            need: need(&name, number),
            reading: Reading::of(&name),
            rank: rank as u8,
        });
    }
}

fn form_of(format: IndexFormat) -> Form {
    match format {
        IndexFormat::Plain => Form::Plain,
        IndexFormat::Xz => Form::Xz,
        IndexFormat::Gz => Form::Gz,
        IndexFormat::Zst => Form::Zst,
        IndexFormat::Bz2 => Form::Bz2,
    }
}

/// Whether a form is required. Many archives list small files beside the indexes but do not have them. Without a list
/// of patches, clients read the whole index.
fn need(name: &IndexName<'_>, group: u32) -> Need {
    match name.kind {
        _ if name.diff => Need::Optional,
        IndexKind::InnerRelease | IndexKind::TranslationIndex | IndexKind::ComponentIds | IndexKind::Other => {
            Need::Optional
        }
        IndexKind::InstallerSums { sha256: false, .. } => Need::Optional,
        _ => Need::OneOf(group),
    }
}

impl Reading {
    /// How an index of this name is read; `None` for an index that names no files.
    pub(crate) fn of(name: &IndexName<'_>) -> Option<Reading> {
        match name.kind {
            _ if name.diff => Some(Reading::DiffIndex),
            IndexKind::Packages { .. } => Some(Reading::Packages),
            IndexKind::Sources => Some(Reading::Sources),
            IndexKind::InstallerSums { sha256: true, .. } => Some(Reading::InstallerSums),
            _ => None,
        }
    }
}

impl Selection {
    fn wants(&self, name: &IndexName<'_>, release: &Release) -> bool {
        self.wants_kind(name) && (self.flat || (self.wants_component(name) && self.wants_architecture(name, release)))
    }

    fn wants_kind(&self, name: &IndexName<'_>) -> bool {
        let with = |kind: Kind| !self.without.contains(&kind);
        if name.diff && !with(Kind::Pdiff) {
            return false;
        }
        match name.kind {
            IndexKind::Packages { udeb: false } => self.binaries,
            IndexKind::Packages { udeb: true } => self.binaries && with(Kind::Udeb),
            IndexKind::Sources => self.sources,
            IndexKind::Contents { udeb } => with(Kind::Contents) && (!udeb || with(Kind::Udeb)),
            IndexKind::Translation { language } => {
                // Translation-de_AT is for clients that request de_AT; clients that request de read only
                // Translation-de.
                self.binaries
                    && with(Kind::Translations)
                    && (self.languages.is_empty() || self.languages.iter().any(|wanted| wanted == language))
            }
            IndexKind::TranslationIndex => self.binaries && with(Kind::Translations),
            IndexKind::Components | IndexKind::Icons { .. } | IndexKind::ComponentIds => {
                self.binaries && with(Kind::Dep11)
            }
            IndexKind::Commands => self.binaries && with(Kind::Cnf),
            IndexKind::InstallerSums { .. } => self.binaries && with(Kind::Installer),
            IndexKind::InnerRelease | IndexKind::Other => true,
        }
    }

    fn wants_component(&self, name: &IndexName<'_>) -> bool {
        match name.component {
            Some(component) => {
                self.components.is_empty() || self.components.iter().any(|wanted| same_component(wanted, component))
            }
            // Indexes at the top belong to all components, such as Contents of old suites. Unknown ones are mirrored
            // only if all components are.
            None => self.components.is_empty() || name.kind != IndexKind::Other,
        }
    }

    fn wants_architecture(&self, name: &IndexName<'_>, release: &Release) -> bool {
        let Some(architecture) = name.architecture else { return true };
        if architecture == "source" {
            return self.sources;
        }
        if !self.binaries {
            return false;
        }
        if self.architectures.is_empty() || self.architectures.iter().any(|wanted| wanted == architecture) {
            return true;
        }
        let read_by_all = !matches!(name.kind, IndexKind::Packages { .. } | IndexKind::InnerRelease)
            || !release.no_support_for_architecture_all;
        architecture == "all" && release.architectures.iter().any(|listed| listed == "all") && read_by_all
    }

    /// The selection as text, for messages and the state.
    pub(crate) fn describe(&self) -> String {
        let or_all = |list: &[String]| if list.is_empty() { "all".to_owned() } else { list.join(",") };
        let mut architectures = if self.binaries { or_all(&self.architectures) } else { String::new() };
        if self.sources {
            architectures.push_str(if architectures.is_empty() { "source" } else { ",source" });
        }
        format!("components {}; architectures {architectures}", or_all(&self.components))
    }
}

/// Architectures by which the packages of an index are filtered; empty for all. A flat repository has one list for all.
pub(crate) fn within_indexes(selections: &[Selection]) -> Vec<String> {
    let of_packages = || selections.iter().filter(|selection| selection.binaries);
    if of_packages().any(|selection| !selection.flat || selection.architectures.is_empty()) {
        return Vec::new();
    }
    let mut architectures: Vec<String> =
        of_packages().flat_map(|selection| selection.architectures.iter().cloned()).collect();
    architectures.sort_unstable();
    architectures.dedup();
    architectures
}

/// `main` is also `updates/main`, as security suites up to buster call it.
fn same_component(wanted: &str, component: &str) -> bool {
    wanted == component || component.rsplit_once('/').is_some_and(|(_, last)| last == wanted)
}

/// Errors for components that a suite lacks, and whether these are all of the selection. A component with entries is
/// present, whatever `Components` says: some archives name other components than they have.
fn check_components(requested: &str, release: &Release, selection: &Selection) -> (Vec<SelectError>, bool) {
    if release.components.is_empty() {
        return (Vec::new(), false);
    }
    let has_entry = |component: &str| {
        let of_entry = |entry: &IndexEntry| classify(entry.path.as_str()).component.map(str::to_owned);
        release.entries.iter().filter_map(of_entry).any(|listed| same_component(component, &listed))
    };
    let lacks = |component: &&String| {
        !release.components.iter().any(|listed| same_component(component, listed)) && !has_entry(component)
    };
    let error = |component: &String| SelectError::Component {
        suite: requested.to_owned(),
        component: component.clone(),
        available: release.components.clone(),
    };
    let lacking: Vec<SelectError> = selection.components.iter().filter(lacks).map(error).collect();
    let is_all = lacking.len() == selection.components.len();
    (lacking, is_all)
}

/// Errors for architectures that a suite lacks, and whether these are all of the selection.
fn check_architectures(requested: &str, release: &Release, selection: &Selection) -> (Vec<SelectError>, bool) {
    // `Architectures` never lists `source`; the entries show whether there are sources.
    let has_sources = release.entries.iter().any(|entry| classify(entry.path.as_str()).kind == IndexKind::Sources);
    let error = |architecture: &str| {
        let mut available = release.architectures.clone();
        available.extend(has_sources.then(|| "source".to_owned()));
        SelectError::Architecture { suite: requested.to_owned(), architecture: architecture.to_owned(), available }
    };
    let has_entry = |architecture: &str| {
        release.entries.iter().any(|entry| {
            let name = classify(entry.path.as_str());
            matches!(name.kind, IndexKind::Packages { .. }) && name.architecture == Some(architecture)
        })
    };
    let mut lacking = Vec::new();
    let mut is_all = false;
    if selection.binaries && !release.architectures.is_empty() {
        // Packages for all architectures are everywhere, listed or not.
        let lacks =
            |wanted: &&String| *wanted != "all" && !release.architectures.contains(wanted) && !has_entry(wanted);
        lacking.extend(selection.architectures.iter().filter(lacks).map(|wanted| error(wanted)));
        is_all = !lacking.is_empty() && lacking.len() == selection.architectures.len();
    }
    if selection.sources && !selection.binaries && !has_sources {
        return (vec![error("source")], true);
    }
    (lacking, is_all)
}

#[cfg(test)]
mod tests {
    use fullbore_debian::signature::SignedText;

    use super::*;

    fn release(fields: &str, paths: &[&str]) -> Release {
        let mut text = format!("{fields}\nDate: Sat, 10 May 2025 09:00:00 UTC\nSHA256:\n");
        for (at, path) in paths.iter().enumerate() {
            text.push_str(&format!(" {} {} {path}\n", Sha256::of(path.as_bytes()), 100 + at));
        }
        Release::parse(&SignedText::trusted(text.as_bytes()).unwrap()).unwrap()
    }

    const TRIXIE: &str = "Origin: Debian\nSuite: stable\nCodename: trixie\nArchitectures: all amd64 arm64\n\
        Components: main contrib\nAcquire-By-Hash: yes\nNo-Support-for-Architecture-all: Packages";

    const PATHS: &[&str] = &[
        "contrib/binary-amd64/Packages.xz",
        "main/Contents-all.gz",
        "main/Contents-amd64",
        "main/Contents-amd64.gz",
        "main/Contents-source.gz",
        "main/Contents-udeb-amd64.gz",
        "main/binary-all/Packages.xz",
        "main/binary-amd64/Packages",
        "main/binary-amd64/Packages.diff/Index",
        "main/binary-amd64/Packages.gz",
        "main/binary-amd64/Packages.xz",
        "main/binary-amd64/Release",
        "main/binary-arm64/Packages.xz",
        "main/cnf/Commands-amd64.xz",
        "main/debian-installer/binary-amd64/Packages.xz",
        "main/dep11/Components-amd64.yml.gz",
        "main/dep11/icons-48x48.tar",
        "main/dep11/icons-48x48.tar.gz",
        "main/i18n/Translation-de.bz2",
        "main/i18n/Translation-en.bz2",
        "main/installer-amd64/current/images/MD5SUMS",
        "main/installer-amd64/current/images/SHA256SUMS",
        "main/source/Release",
        "main/source/Sources.gz",
        "main/source/Sources.xz",
    ];

    fn names(strings: &[&str]) -> Vec<String> {
        strings.iter().map(|&name| name.to_owned()).collect()
    }

    fn amd64() -> Selection {
        Selection {
            components: names(&["main"]),
            architectures: names(&["amd64"]),
            binaries: true,
            ..Selection::default()
        }
    }

    fn paths(fields: &str, selection: &Selection) -> Vec<String> {
        let mut paths: Vec<_> = indexes("trixie", &release(fields, PATHS), std::slice::from_ref(selection))
            .unwrap()
            .wants
            .into_iter()
            .map(|want| want.path)
            .collect();
        paths.sort();
        paths
    }

    #[test]
    fn an_architecture_has_all_kinds_of_indexes_and_no_plain_ones() {
        assert_eq!(
            paths(TRIXIE, &amd64()),
            [
                "main/Contents-all.gz",
                "main/Contents-amd64.gz",
                "main/Contents-udeb-amd64.gz",
                "main/binary-amd64/Packages.diff/Index",
                "main/binary-amd64/Packages.gz",
                "main/binary-amd64/Packages.xz",
                "main/binary-amd64/Release",
                "main/cnf/Commands-amd64.xz",
                "main/debian-installer/binary-amd64/Packages.xz",
                "main/dep11/Components-amd64.yml.gz",
                "main/dep11/icons-48x48.tar.gz",
                "main/i18n/Translation-de.bz2",
                "main/i18n/Translation-en.bz2",
                "main/installer-amd64/current/images/MD5SUMS",
                "main/installer-amd64/current/images/SHA256SUMS",
            ]
        );
    }

    #[test]
    fn architecture_all_comes_along_where_clients_read_it() {
        let without = TRIXIE.replace("\nNo-Support-for-Architecture-all: Packages", "");
        let binary_all = "main/binary-all/Packages.xz".to_owned();
        assert!(paths(&without, &amd64()).contains(&binary_all));
        let asked = Selection { architectures: names(&["amd64", "all"]), ..amd64() };
        assert!(paths(TRIXIE, &asked).contains(&binary_all));
        assert!(!paths(TRIXIE, &amd64()).contains(&binary_all));
    }

    #[test]
    fn sources_alone_select_only_indexes_of_sources() {
        let selection = Selection { binaries: false, sources: true, ..amd64() };
        assert_eq!(
            paths(TRIXIE, &selection),
            ["main/Contents-source.gz", "main/source/Release", "main/source/Sources.gz", "main/source/Sources.xz"]
        );
    }

    #[test]
    fn kinds_languages_and_formats_restrict() {
        let selection = Selection {
            without: vec![Kind::Contents, Kind::Dep11, Kind::Cnf, Kind::Udeb, Kind::Installer, Kind::Pdiff],
            languages: names(&["en"]),
            formats: vec![IndexFormat::Xz],
            ..amd64()
        };
        assert_eq!(
            paths(TRIXIE, &selection),
            ["main/binary-amd64/Packages.xz", "main/binary-amd64/Release", "main/i18n/Translation-en.bz2"]
        );
        let plain = Selection { formats: vec![IndexFormat::Plain, IndexFormat::Gz], ..selection };
        assert!(paths(TRIXIE, &plain).contains(&"main/binary-amd64/Packages".to_owned()));
    }

    #[test]
    fn gzip_is_read_first_and_one_form_must_come() {
        let wants = indexes("trixie", &release(TRIXIE, PATHS), &[amd64()]).unwrap().wants;
        let find = |path: &str| wants.iter().find(|want| want.path == path).unwrap();
        let (gz, xz) = (find("main/binary-amd64/Packages.gz"), find("main/binary-amd64/Packages.xz"));
        assert_eq!((gz.reading, gz.rank, xz.rank), (Some(Reading::Packages), 0, 1));
        assert_eq!(gz.need, xz.need);
        assert!(matches!(gz.need, Need::OneOf(_)));
        assert_eq!(find("main/binary-amd64/Release").need, Need::Optional);
        assert_eq!(find("main/installer-amd64/current/images/SHA256SUMS").reading, Some(Reading::InstallerSums));
        assert!(wants[0].reading.is_some() && wants.last().unwrap().reading.is_none());
    }

    #[test]
    fn what_is_not_there_is_said_with_what_is() {
        let release = release(TRIXIE, PATHS);
        let error = |selection| indexes("trixie", &release, &[selection]).unwrap_err().to_string();
        assert_eq!(
            error(Selection { components: names(&["mian"]), ..amd64() }),
            "suite trixie has no component \"mian\"; it has: main, contrib"
        );
        assert_eq!(
            error(Selection { architectures: names(&["arm46"]), ..amd64() }),
            "suite trixie has no architecture \"arm46\"; it has: all, amd64, arm64, source"
        );
        assert_eq!(
            error(Selection { components: names(&["contrib"]), binaries: false, sources: true, ..amd64() }),
            "suite trixie: the Release lists no package index for this selection"
        );
    }

    #[test]
    fn what_only_some_suites_have_is_left_out_there() {
        let selection =
            Selection { components: names(&["main", "zoom"]), architectures: names(&["amd64", "i386"]), ..amd64() };
        let selected = indexes("trixie", &release(TRIXIE, PATHS), &[selection]).unwrap();
        assert!(selected.wants.iter().any(|want| want.path == "main/binary-amd64/Packages.gz"));
        let absent: Vec<String> = selected.absent.iter().map(|absent| absent.error.to_string()).collect();
        assert_eq!(
            absent,
            [
                "suite trixie has no component \"zoom\"; it has: main, contrib",
                "suite trixie has no architecture \"i386\"; it has: all, amd64, arm64, source"
            ]
        );
    }

    #[test]
    fn what_the_entries_have_is_there_whatever_the_fields_say() {
        let other = TRIXIE.replace("main contrib", "testing").replace("all amd64 arm64", "arm64");
        let selected = indexes("trixie", &release(&other, PATHS), &[amd64()]).unwrap();
        assert!(selected.absent.is_empty());
        assert!(selected.wants.iter().any(|want| want.path == "main/binary-amd64/Packages.gz"));
    }

    #[test]
    fn a_selection_without_packages_is_refused() {
        let listed: Vec<&str> = PATHS.iter().copied().filter(|path| !path.contains("binary-all")).collect();
        let all = Selection { architectures: names(&["all"]), ..amd64() };
        assert_eq!(
            indexes("trixie", &release(TRIXIE, &listed), std::slice::from_ref(&all)).unwrap_err(),
            SelectError::Nothing { suite: "trixie".to_owned() }
        );
        assert!(indexes("trixie", &release(TRIXIE, PATHS), &[all]).is_ok());
    }

    #[test]
    fn a_flat_repository_is_taken_whole() {
        let release = release("Suite: x", &["Packages", "Packages.gz", "Sources.gz"]);
        let selection = Selection { flat: true, binaries: true, sources: true, ..Selection::default() };
        let wants = indexes("./", &release, &[selection]).unwrap().wants;
        assert_eq!(wants.iter().map(|want| want.path.as_str()).collect::<Vec<_>>(), ["Sources.gz", "Packages.gz"]);
    }

    #[test]
    fn what_any_of_several_selections_wants_is_selected() {
        let contrib = Selection { components: names(&["contrib"]), ..amd64() };
        let sources = Selection { binaries: false, sources: true, ..amd64() };
        let wants = indexes("trixie", &release(TRIXIE, PATHS), &[contrib, sources]).unwrap().wants;
        let mut paths: Vec<_> = wants.iter().map(|want| want.path.as_str()).collect();
        paths.sort_unstable();
        let expected = [
            "contrib/binary-amd64/Packages.xz",
            "main/Contents-source.gz",
            "main/source/Release",
            "main/source/Sources.gz",
            "main/source/Sources.xz",
        ];
        assert_eq!(paths, expected);
        let flat = |architecture: &[&str]| Selection { flat: true, architectures: names(architecture), ..amd64() };
        assert_eq!(within_indexes(&[flat(&["arm64"]), flat(&["amd64", "arm64"])]), ["amd64", "arm64"]);
        assert!(within_indexes(&[flat(&["arm64"]), flat(&[])]).is_empty() && within_indexes(&[amd64()]).is_empty());
    }

    #[test]
    fn old_security_suites_have_components_without_their_prefix() {
        let release = release(
            "Suite: oldstable\nCodename: buster\nArchitectures: amd64\nComponents: updates/main updates/contrib",
            &["main/binary-amd64/Packages.xz", "contrib/binary-amd64/Packages.xz"],
        );
        let wants = indexes("buster/updates", &release, &[amd64()]).unwrap().wants;
        assert_eq!(wants[0].path, "main/binary-amd64/Packages.xz");
    }
}
