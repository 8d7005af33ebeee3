//! Names of a published suite: its directory, and links to it.
//!
//! The directory is named by the codename, and the suite's name is a link to it, as on Debian's servers. Not every
//! archive fits: Ubuntu's pockets share one codename, security suites up to buster have a slash, and older trees have a
//! real directory named by the suite. An existing directory is never replaced by a link.

use std::collections::BTreeSet;

use fullbore_debian::path;
use fullbore_debian::release::Release;
use fullbore_engine::files::{FileError, Kind};

use super::other_suites::SNAPSHOTS;
use super::state::{State, SuiteRecord};
use super::tree::Tree;

/// The directory and the links of a suite.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Path of the real directory, relative to the mirror: `dists/trixie`. Empty for a flat repository at the root.
    pub directory: String,
    /// Links with their targets, such as `dists/stable` → `trixie`.
    pub links: Vec<(String, String)>,
}

impl Layout {
    /// Layout by the requested name alone, for a Release with other names.
    pub(crate) fn as_requested(requested: &str) -> Layout {
        Layout { directory: format!("dists/{requested}"), links: Vec::new() }
    }

    /// Converts a path relative to the suite's directory into one relative to the mirror.
    pub(crate) fn path(&self, name: &str) -> String {
        below(&self.directory, name)
    }
}

/// A path below a suite's directory, which may be the mirror's own.
pub(crate) fn below(directory: &str, name: &str) -> String {
    if directory.is_empty() { name.to_owned() } else { format!("{directory}/{name}") }
}

/// Prefixes of the paths that a mirror with suites in these directories writes to. A flat repository at the top has
/// files at any path.
pub(crate) fn written_below<'a>(directories: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let flat = directories.filter(|directory| *directory != "dists" && !directory.starts_with("dists/"));
    let below: BTreeSet<String> =
        flat.map(|directory| below(directory, "")).chain(["dists/", "pool/"].map(str::to_owned)).collect();
    if below.contains("") { BTreeSet::from([String::new()]) } else { below }
}

/// Whether this directory is the snapshot directory of a mirror in a bucket, or below it.
pub(crate) fn is_of_snapshots(directory: &str) -> bool {
    is_within(directory, SNAPSHOTS)
}

/// The names of a suite, by the request and by its Release.
struct Names<'a> {
    /// Name of the real directory.
    real: &'a str,
    /// The other name, if it has one.
    other: Option<&'a str>,
    /// The rest of the request, such as `/updates`.
    rest: &'a str,
}

impl<'a> Names<'a> {
    fn of(requested: &'a str, release: &'a Release, has_snapshots: bool) -> Names<'a> {
        // A name that is not a valid path cannot be a directory, so the field counts as missing.
        let is_usable = |name: &&str| {
            path::check(name).is_ok()
                && !name.contains('/')
                && !(has_snapshots && is_of_snapshots(&format!("dists/{name}")))
        };
        let usable = |name: &'a Option<String>| name.as_deref().filter(is_usable);
        let (suite, codename) = (usable(&release.suite), usable(&release.codename));
        let base = requested.split_once('/').map_or(requested, |(base, _)| base);
        let real = codename.filter(|codename| names_suite(codename, suite)).unwrap_or(base);
        let other = if base == real { suite.filter(|suite| names_suite(real, Some(suite))) } else { Some(base) };
        Names { real, other: other.filter(|other| *other != real), rest: &requested[base.len()..] }
    }

    fn directory_of(&self, name: &str) -> String {
        format!("dists/{name}{}", self.rest)
    }
}

/// Requested name of the suite that occupies this one's directory, if it was requested by a third name. It may be the
/// same suite, renamed since, as Debian's `testing` becomes `stable`. Or two suites of an archive have the same
/// codename.
pub(crate) fn rival<'s>(requested: &str, release: &Release, state: &'s State, has_snapshots: bool) -> Option<&'s str> {
    if requested.ends_with('/') {
        return None;
    }
    let names = Names::of(requested, release, has_snapshots);
    let there = &state.suite(&names.directory_of(names.real))?.requested;
    let base = there.split_once('/').map_or(there.as_str(), |(base, _)| base);
    let is_third = there != requested && base != names.real && names.other.is_some_and(|other| other != base);
    is_third.then_some(there)
}

/// Layout of the suite `requested`; a slash at the end means a flat repository. If another suite has `taken` its
/// directory, it gets a directory of its requested name.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn layout(requested: &str, release: &Release, taken: bool, tree: &dyn Tree) -> Result<Layout, FileError> {
    if requested.ends_with('/') {
        let directory = requested.trim_start_matches("./").trim_end_matches('/');
        let directory = if directory == "." { "" } else { directory };
        return Ok(Layout { directory: directory.to_owned(), links: Vec::new() });
    }
    let names = Names::of(requested, release, tree.links_are_copies());
    if !tree.has_links() {
        let directory = if taken { format!("dists/{requested}") } else { names.directory_of(names.real) };
        return Ok(Layout { directory, links: Vec::new() });
    }
    let (real, Some(other)) = (names.real, names.other) else {
        return Ok(Layout { directory: names.directory_of(names.real), links: Vec::new() });
    };
    let under = |name: &str, link: &str| Layout {
        directory: names.directory_of(name),
        links: vec![(format!("dists/{link}"), name.to_owned())],
    };
    let is_directory = |name: &str| {
        Ok::<_, FileError>(tree.stat(&format!("dists/{name}"))?.is_some_and(|status| status.kind == Kind::Directory))
    };
    let (real_is_there, other_is_there) = (is_directory(real)?, is_directory(other)?);
    Ok(if taken || real_is_there && other_is_there {
        // If both directories exist, the requested one is updated.
        Layout { directory: format!("dists/{requested}"), links: Vec::new() }
    } else if other_is_there {
        // In a tree of another tool, the names are swapped; that stays.
        under(other, real)
    } else {
        under(real, other)
    })
}

/// The target of a link to this directory.
pub(crate) fn link_target(directory: &str) -> &str {
    let below = directory.strip_prefix("dists/").unwrap_or(directory);
    below.split_once('/').map_or(below, |(base, _)| base)
}

/// Whether this directory is at the link, or below it.
pub(crate) fn is_within(directory: &str, link: &str) -> bool {
    directory.strip_prefix(link).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A link of a suite that is missing or has another target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BrokenLink<'a> {
    /// Directory of the suite, relative to the mirror.
    pub directory: &'a str,
    /// Path of the link, relative to the mirror.
    pub link: &'a str,
    /// Target that the link should have.
    pub target: &'a str,
    /// Target that the link has, if it exists.
    pub found: Option<String>,
}

/// Broken links of these suites. A link that two suites share may lead to either. A link does not count if a suite was
/// published in its place.
///
/// # Errors
/// [`FileError`] if a file or directory of the mirror cannot be read.
pub(crate) fn broken_links<'a>(tree: &dyn Tree, suites: &'a [SuiteRecord]) -> Result<Vec<BrokenLink<'a>>, FileError> {
    let mut lost = Vec::new();
    let published = || suites.iter().filter(|suite| !suite.retired);
    for suite in published() {
        for link in suite.links.iter().filter(|link| !published().any(|suite| is_within(&suite.directory, link))) {
            let found = tree.read_link(link)?;
            let leads = |to: &SuiteRecord| found.as_deref() == Some(link_target(&to.directory));
            if !published().any(|other| other.links.contains(link) && leads(other)) {
                lost.push(BrokenLink {
                    directory: &suite.directory,
                    link,
                    target: link_target(&suite.directory),
                    found,
                });
            }
        }
    }
    Ok(lost)
}

/// Whether the codename identifies the suite. Not if Ubuntu calls the suite `noble-updates` and the codename `noble`.
fn names_suite(codename: &str, suite: Option<&str>) -> bool {
    suite.is_none_or(|suite| !suite.strip_prefix(codename).is_some_and(|rest| rest.starts_with('-')))
}

#[cfg(test)]
mod tests {
    use fullbore_debian::signature::SignedText;
    use fullbore_engine::files::Root;

    use super::super::state::tests::suite;
    use super::*;

    fn release(suite: &str, codename: &str) -> Release {
        let text = format!(
            "Suite: {suite}\nCodename: {codename}\nDate: Sat, 10 May 2025 09:00:00 UTC\nSHA256:\n {} 1 Packages\n",
            fullbore_engine::digest::Sha256::EMPTY
        );
        Release::parse(&SignedText::trusted(text.as_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn files_of_flat_repositories_are_below_their_directories() {
        let of = |directories: &[&str]| written_below(directories.iter().copied()).into_iter().collect::<Vec<_>>();
        assert_eq!(of(&["dists/trixie", "dists/trixie"]), ["dists/", "pool/"]);
        assert_eq!(of(&["dists/trixie", "deb/amd64", "distsfiles"]), ["deb/amd64/", "dists/", "distsfiles/", "pool/"]);
        assert_eq!(of(&["dists/trixie", ""]), [""]);
    }

    fn names(root: &Root, taken: bool, requested: &str, suite: &str, codename: &str) -> String {
        let layout = layout(requested, &release(suite, codename), taken, root).unwrap();
        let links: Vec<_> = layout.links.iter().map(|(link, target)| format!(" {link}->{target}")).collect();
        format!("{}{}", layout.directory, links.concat())
    }

    #[test]
    fn the_codename_is_real_and_the_suite_a_link() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        for (requested, suite, codename, expected) in [
            ("stable", "stable", "trixie", "dists/trixie dists/stable->trixie"),
            ("trixie", "stable", "trixie", "dists/trixie dists/stable->trixie"),
            (
                "trixie-updates",
                "stable-updates",
                "trixie-updates",
                "dists/trixie-updates dists/stable-updates->trixie-updates",
            ),
            ("experimental", "experimental", "rc-buggy", "dists/rc-buggy dists/experimental->rc-buggy"),
            ("noble-updates", "noble-updates", "noble", "dists/noble-updates"),
            ("noble", "noble", "noble", "dists/noble"),
            ("buster/updates", "oldstable", "buster", "dists/buster/updates dists/oldstable->buster"),
            ("oldstable/updates", "oldstable", "buster", "dists/buster/updates dists/oldstable->buster"),
            ("./", "x", "y", ""),
            ("/", "x", "y", ""),
            ("deb/amd64/", "x", "y", "deb/amd64"),
            ("stable", "../..", "/etc", "dists/stable"),
        ] {
            assert_eq!(names(&root, false, requested, suite, codename), expected, "{requested}");
        }
    }

    #[test]
    fn a_real_directory_is_never_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        std::fs::create_dir_all(directory.path().join("dists/stable")).unwrap();
        assert_eq!(names(&root, false, "stable", "stable", "trixie"), "dists/stable dists/trixie->stable");
        assert_eq!(names(&root, false, "trixie", "stable", "trixie"), "dists/stable dists/trixie->stable");
        std::fs::create_dir_all(directory.path().join("dists/trixie")).unwrap();
        assert_eq!(names(&root, false, "stable", "stable", "trixie"), "dists/stable");
    }

    #[test]
    fn a_link_that_leads_elsewhere_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let mut suites = vec![suite()];
        let lost = |suites: &[SuiteRecord]| -> Vec<Option<String>> {
            broken_links(&root, suites).unwrap().into_iter().map(|lost| lost.found).collect()
        };
        assert_eq!(lost(&suites), [None]);
        root.symlink("other", "dists/stable").unwrap();
        assert_eq!(lost(&suites), [Some("other".to_owned())]);
        suites.push(SuiteRecord { directory: "dists/other".into(), ..suite() });
        assert_eq!(lost(&suites), [], "two claim it");
        suites[1].retired = true;
        root.symlink("trixie", "dists/stable").unwrap();
        assert_eq!(lost(&suites), []);
        suites[1] = SuiteRecord { directory: "dists/stable".into(), links: Vec::new(), ..suite() };
        root.unlink("dists/stable").unwrap();
        assert_eq!(lost(&suites), [], "a suite of its own by now");
    }

    #[test]
    fn a_second_suite_of_a_codename_keeps_its_requested_name() {
        let directory = tempfile::tempdir().unwrap();
        let root = Root::open(directory.path()).unwrap();
        let record = |directory: &str, requested: &str| SuiteRecord {
            directory: directory.into(),
            requested: requested.into(),
            ..suite()
        };
        let mut state = State::default();
        state.header.suites = vec![record("dists/any", "stable"), record("dists/any/updates", "stable/updates")];
        for (requested, suite, rival_name) in [
            ("stable", "stable", None),
            ("any", "stable", None),
            ("any", "testing", Some("stable")),
            ("testing", "testing", Some("stable")),
            ("testing/updates", "testing", Some("stable/updates")),
            ("testing/", "testing", None),
        ] {
            assert_eq!(rival(requested, &release(suite, "any"), &state, false), rival_name, "{requested}");
        }
        assert_eq!(names(&root, true, "testing", "testing", "any"), "dists/testing");
        assert_eq!(names(&root, false, "testing", "testing", "any"), "dists/any dists/testing->any", "renamed");
        state.header.suites[0].retired = true;
        assert_eq!(rival("testing", &release("testing", "any"), &state, false), None);
    }
}
