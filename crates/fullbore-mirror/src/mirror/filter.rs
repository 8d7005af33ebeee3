//! Decides which files of the indexes are wanted: by path, section, priority and source package.
//!
//! With `include` alone only matching paths are wanted; with `exclude` alone all except matching ones. With both,
//! `include` brings back files that `exclude` left out, as in debmirror. Section, priority and source package must
//! match as well, if they are given. `newest` needs a whole index, so the plan applies it.

use fullbore_engine::digest::Sha256;

use crate::settings::Filters;

/// A file that an index names, with the fields that filters use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate<'a> {
    /// Path relative to the archive's root.
    pub path: &'a str,
    /// Size of the file in bytes.
    pub size: u64,
    /// SHA-256 of the content.
    pub sha256: Sha256,
    /// Package of the file. Installer images and index differences have none; only path filters apply to them.
    pub package: Option<PackageFacts<'a>>,
}

/// Fields of a package that filters use.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PackageFacts<'a> {
    /// Value of `Package`.
    pub name: &'a str,
    /// Value of `Architecture`; `source` for source packages.
    pub architecture: &'a str,
    /// Value of `Version`.
    pub version: &'a str,
    /// Value of `Source` without its version; the package name if there is none.
    pub source: &'a str,
    /// Value of `Section`; empty if there is none.
    pub section: &'a str,
    /// Value of `Priority`; empty if there is none.
    pub priority: &'a str,
}

/// Whether the filters want the file; `newest` is not considered.
pub(super) fn wants(filters: &Filters, candidate: &Candidate<'_>) -> bool {
    match candidate.package {
        Some(package) => filters.wants(candidate.path, package.section, package.priority, package.source),
        None => filters.wants_path(candidate.path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Filter;

    fn patterns(texts: &[&str]) -> Vec<Filter> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn package<'a>(path: &'a str, section: &'a str, priority: &'a str, source: &'a str) -> Candidate<'a> {
        let package = PackageFacts { name: "hello", architecture: "amd64", version: "1", source, section, priority };
        Candidate { path, size: 1, sha256: Sha256::EMPTY, package: Some(package) }
    }

    #[test]
    fn include_alone_selects_and_with_exclude_brings_back() {
        let file = |path| package(path, "", "", "");
        let only = Filters { include: patterns(&["/h/"]), ..Filters::default() };
        assert!(wants(&only, &file("pool/main/h/hello.deb")));
        assert!(!wants(&only, &file("pool/main/a/apt.deb")));
        let exclude = patterns(&["-doc_", "-dbg_"]);
        let both = Filters { include: patterns(&["hello-doc"]), exclude, ..Filters::default() };
        assert!(wants(&both, &file("pool/main/h/hello_1.deb")));
        assert!(wants(&both, &file("pool/main/h/hello-doc_1.deb")));
        assert!(!wants(&both, &file("pool/main/a/apt-doc_1.deb")));
    }

    #[test]
    fn section_priority_and_source_must_all_match() {
        let filters = Filters {
            sections: vec!["devel".into()],
            priorities: vec!["optional".into()],
            source_packages: vec!["gcc-14".into()],
            ..Filters::default()
        };
        let wanted = |section, priority, source| wants(&filters, &package("p/a", section, priority, source));
        assert!(wanted("devel", "optional", "gcc-14"));
        assert!(wanted("contrib/devel", "optional", "gcc-14"));
        assert!(wanted("devel", "", "gcc-14"));
        assert!(!wanted("libs", "optional", "gcc-14"));
        assert!(!wanted("devel", "required", "gcc-14"));
        assert!(!wanted("devel", "optional", "gcc-13"));
        let image = Candidate { path: "dists/x/linux", size: 1, sha256: Sha256::EMPTY, package: None };
        assert!(wants(&filters, &image), "no package: no section to ask for");
    }
}
