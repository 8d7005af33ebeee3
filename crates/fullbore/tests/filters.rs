//! Which files a filter lets through: exactly those that a second reading of the same indexes, by other
//! means, says.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod harness;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::sync::OnceLock;

use fullbore_testkit::archive::{Archive, ArchiveBuilder};
use fullbore_testkit::compression::Form;
use fullbore_testkit::server::Server;
use harness::{Mirror, need, signer};

/// An archive with several sections and priorities, and sources of two versions.
fn archive() -> &'static Archive {
    static ARCHIVE: OnceLock<Archive> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let directory = tempfile::tempdir().unwrap().keep();
        harness::remove_at_exit(directory.clone());
        ArchiveBuilder::tiny(directory)
            .signer(signer())
            .components(&["main", "contrib"])
            .states(1)
            .sources(60)
            .pool_bytes(600_000)
            .extras(true)
            .build()
            .unwrap()
    })
}

/// A package of an index, and the files it stands for.
#[derive(Debug)]
struct Package {
    index: String,
    fields: BTreeMap<String, String>,
    paths: Vec<String>,
}

impl Package {
    fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    fn source(&self) -> &str {
        match self.field("Source").split(' ').next() {
            Some("") | None => self.field("Package"),
            Some(source) => source,
        }
    }
}

/// All packages of suite trixie, read line by line.
fn packages() -> Vec<Package> {
    let state = archive().state(0);
    let forge = archive().forge(0, "trixie");
    let stems: BTreeSet<&str> = state
        .indexes
        .iter()
        .filter(|index| index.suite == "trixie" && index.present && !index.path.contains(".diff/"))
        .filter_map(|index| index.path.strip_suffix(".xz"))
        .filter(|stem| stem.ends_with("/Packages") || stem.ends_with("/Sources"))
        .collect();
    let mut packages = Vec::new();
    for stem in stems {
        for stanza in forge.index(stem).unwrap().split("\n\n").filter(|stanza| !stanza.trim().is_empty()) {
            let mut package = Package { index: stem.to_owned(), fields: BTreeMap::new(), paths: Vec::new() };
            let mut names = Vec::new();
            for line in stanza.lines() {
                match line.strip_prefix(' ') {
                    Some(more) => names.extend(more.split(' ').nth(2).map(str::to_owned)),
                    None => {
                        let (name, value) = line.split_once(':').unwrap();
                        package.fields.insert(name.to_owned(), value.trim().to_owned());
                    }
                }
            }
            package.paths = match package.fields.get("Filename") {
                Some(path) => vec![path.clone()],
                None => {
                    let directory = package.field("Directory");
                    let files = names.iter().filter(|name| name.contains('_') && name.contains('.'));
                    files.map(|name| format!("{directory}/{name}")).collect()
                }
            };
            packages.push(package);
        }
    }
    packages
}

fn paths<'a>(packages: impl IntoIterator<Item = &'a Package>) -> BTreeSet<String> {
    packages.into_iter().flat_map(|package| package.paths.iter().cloned()).collect()
}

/// What a run with these flags has in its pool.
fn mirrored(flags: &[&str]) -> BTreeSet<String> {
    let server = Server::start(&archive().state(0).root).unwrap();
    let mirror = Mirror::new(archive());
    mirror.run_with(&[&server], flags).exits(0);
    let pool: BTreeSet<String> = mirror.tree().into_keys().filter(|path| path.starts_with("pool/")).collect();
    let all = archive().state(0).select(|file| file.suite == "trixie");
    harness::holds(&mirror.to, &all.into_iter().filter(|(path, _)| pool.contains(*path)).collect());
    pool
}

/// Runs with flags and compares with the packages that `wanted` takes. Some must go and some must stay, or
/// the test would say nothing.
#[track_caller]
fn exactly(flags: &[&str], wanted: impl Fn(&Package) -> bool) {
    let all = packages();
    let expected = paths(all.iter().filter(|package| wanted(package)));
    assert!(!expected.is_empty() && expected.len() < paths(&all).len(), "{flags:?}: {} files", expected.len());
    assert_eq!(mirrored(flags), expected, "{flags:?}");
}

/// A value that some packages have and others have not.
fn some(field: &str) -> String {
    let all = packages();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    all.iter().filter(|package| package.fields.contains_key(field)).for_each(|package| {
        *counts.entry(package.field(field)).or_default() += 1;
    });
    assert!(counts.len() > 1, "all packages have the same {field}: {counts:?}");
    counts.into_iter().min_by_key(|(_, count)| *count).unwrap().0.to_owned()
}

#[test]
fn without_a_filter_all_is_mirrored() {
    assert_eq!(mirrored(&[]), paths(&packages()));
}

#[test]
fn section_selects_by_section_with_or_without_its_component() {
    let section = some("Section");
    let name = section.rsplit('/').next().unwrap().to_owned();
    exactly(&["--section", &name], |package| package.field("Section").rsplit('/').next() == Some(&name));
    // With its component in front it is that one alone.
    let inner = packages().iter().map(|package| package.field("Section").to_owned()).find(|name| name.contains('/'));
    let inner = inner.expect("a section of another component than main");
    exactly(&["--section", &inner], |package| package.field("Section") == inner);
}

#[test]
fn priority_selects_by_priority() {
    let priority = some("Priority");
    exactly(&["--priority", &priority], |package| package.field("Priority") == priority);
}

#[test]
fn source_package_selects_by_source() {
    let all = packages();
    let several = all.iter().map(Package::source).find(|source| {
        let files = all.iter().filter(|package| package.source() == *source);
        files.count() > 2
    });
    let (one, other) = (several.unwrap(), all.last().unwrap().source());
    assert_ne!(one, other);
    exactly(&["--source-package", one], |package| package.source() == one);
    exactly(&["--source-package", &format!("{one},{other}")], |package| [one, other].contains(&package.source()));
}

#[test]
fn newest_keeps_the_newest_version_of_each_index() {
    need("dpkg", "dpkg");
    let newer =
        |a: &str, b: &str| Command::new("dpkg").args(["--compare-versions", a, "gt", b]).status().unwrap().success();
    let all = packages();
    exactly(&["--newest", "1"], |package| {
        !all.iter().any(|other| {
            other.index == package.index
                && ["Package", "Architecture"].iter().all(|name| {
                    // Sources name the architectures that they build for, which is another thing.
                    package.index.ends_with("Sources") && *name == "Architecture"
                        || other.field(name) == package.field(name)
                })
                && newer(other.field("Version"), package.field("Version"))
        })
    });
    assert_eq!(mirrored(&["--newest", "2"]), paths(&all), "nothing has three versions");
}

#[test]
fn include_and_exclude_select_by_expression() {
    let is = |package: &Package, ending: &str| package.paths.iter().all(|path| path.ends_with(ending));
    exactly(&["--include", r"\.deb$"], |package| is(package, ".deb"));
    exactly(&["--exclude", r"\.u?deb$"], |package| !is(package, "deb"));
    let name = packages()[0].field("Package").to_owned();
    let path = packages()[0].paths[0].clone();
    let pattern = format!("/{}_", name.replace('+', r"\+"));
    let brought_back = mirrored(&["--exclude", r"\.u?deb$", "--include", &pattern]);
    let mut expected = paths(packages().iter().filter(|package| !is(package, "deb")));
    let back = paths(&packages()).into_iter().filter(|path| path.contains(&format!("/{name}_")));
    expected.extend(back);
    assert!(expected.contains(&path));
    assert_eq!(brought_back, expected);
}

#[test]
fn all_filters_must_agree() {
    let (section, priority) = (some("Section"), some("Priority"));
    let name = section.rsplit('/').next().unwrap().to_owned();
    let all = packages();
    let both = |package: &Package| {
        package.field("Section").rsplit('/').next() == Some(&name) && package.field("Priority") == priority
    };
    assert_eq!(
        mirrored(&["--section", &name, "--priority", &priority]),
        paths(all.iter().filter(|package| both(package)))
    );
}

#[test]
fn an_archive_with_indexes_of_one_form_alone_is_mirrored() {
    for form in [Form::Bz2, Form::Zst, Form::Gz] {
        let directory = tempfile::tempdir().unwrap();
        let builder = ArchiveBuilder::tiny(directory.path()).signer(signer()).forms(&[form]).plain_present(false);
        let archive = builder.states(1).sources(12).pool_bytes(100_000).build().unwrap();
        let state = archive.state(0);
        let packages = format!("dists/trixie/main/binary-amd64/Packages{}", form.suffix());
        assert!(state.root.join(packages).exists());
        let mirror = Mirror::new(&archive);
        mirror.run_with(&[&Server::start(&state.root).unwrap()], &[]).exits(0);
        harness::verified(&mirror.to, &archive, 0);
    }
}

#[test]
fn index_formats_and_languages_select_indexes() {
    let server = Server::start(&archive().state(0).root).unwrap();
    let indexes: BTreeSet<&str> = archive()
        .state(0)
        .indexes
        .iter()
        .filter(|index| index.suite == "trixie" && index.present)
        .map(|index| index.path.as_str())
        .collect();
    let endings = [".xz", ".gz", ".bz2", ".zst", ".lz4"];
    let split = |path: &str| -> (String, String) {
        let ending = endings.iter().find(|ending| path.ends_with(**ending)).copied().unwrap_or("");
        (path.strip_suffix(ending).unwrap().to_owned(), ending.to_owned())
    };
    for (flag, wanted) in [("xz", vec![".xz"]), ("gz", vec![".gz"]), ("xz,gz", vec![".xz", ".gz"])] {
        let mirror = Mirror::new(archive());
        mirror.run_with(&[&server], &["--index-formats", flag]).exits(0);
        // Of an index with none of these forms all forms stay: something must be there.
        let expected: BTreeSet<String> = indexes
            .iter()
            .filter(|path| {
                let (stem, ending) = split(path);
                let has = |form: &str| indexes.contains(format!("{stem}{form}").as_str());
                wanted.contains(&ending.as_str()) || !wanted.iter().any(|form| has(form))
            })
            .map(|path| (*path).to_owned())
            .collect();
        assert!(expected.len() < indexes.len() || flag == "xz,gz");
        let published: BTreeSet<String> = mirror
            .tree()
            .into_keys()
            .filter_map(|path| path.strip_prefix("dists/trixie/").map(str::to_owned))
            .filter(|path| !path.contains("/by-hash/") && indexes.contains(path.as_str()))
            .collect();
        assert_eq!(published, expected, "--index-formats {flag}");
    }
    let languages = |flags: &[&str]| -> BTreeSet<String> {
        let mirror = Mirror::new(archive());
        mirror.run_with(&[&server], flags).exits(0);
        let names = mirror.tree().into_keys().filter(|path| !path.contains("/by-hash/"));
        let name = |path: String| Some(split(path.split_once("/Translation-")?.1).0);
        names.filter_map(name).collect()
    };
    for (flags, expected) in [
        (&[][..], &["en"][..]),
        (&["--languages", "de,en"], &["en"]),
        (&["--languages", "de"], &[]),
        (&["--without", "translations"], &[]),
    ] {
        assert_eq!(languages(flags), expected.iter().map(|name| (*name).to_owned()).collect(), "{flags:?}");
    }
}
